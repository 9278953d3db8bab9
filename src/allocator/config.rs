//! Options: what a user may choose, as a builder and as environment variables.
//!
//! It holds values only; their meaning is documented where they act.

mod footprint;
mod handles;
mod limits;
mod pinned;
mod staging;

pub use footprint::Footprint;
pub use handles::Handles;
pub(super) use pinned::PinnedLimit;
#[doc(hidden)]
pub use staging::StagingPieces;

use super::group::Group;
use crate::error::{Error, OutOfMemory};
use crate::laws::cost;
use crate::report::{Size, parse_size};
use crate::sync::Arc;
use crate::trace::Sink;
use crate::units::Granules;
use core::fmt;
use core::time::Duration;

/// The user's out-of-memory callback.
pub(crate) type OutOfMemoryHook = Arc<dyn Fn(&OutOfMemory) -> bool + Send + Sync>;
/// The time, of which moves of physical memory may take a share.
pub(crate) type Clock = Arc<dyn Fn() -> Duration + Send + Sync>;

/// How much may be reserved on the device.
#[derive(Clone, Copy, PartialEq, Default, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum Limit {
    /// As much as the device has.
    #[default]
    None,
    /// This many bytes. 0 refuses every request that is not empty.
    Bytes(u64),
    /// A fraction of the device's memory, 0 to 1.
    Fraction(#[cfg_attr(feature = "serde", serde(deserialize_with = "fraction"))] f64),
}

/// Reads a fraction of a device's memory.
#[cfg(feature = "serde")]
fn fraction<'de, D: serde::Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    let f = <f64 as serde::Deserialize>::deserialize(from)?;
    if (0.0..=1.0).contains(&f) {
        Ok(f)
    } else {
        Err(serde::de::Error::custom(format_args!("found {f}; expected {A_FRACTION}")))
    }
}

/// Which fractions are valid.
const A_FRACTION: &str = "a fraction from 0 to 1 (0% to 100%)";

impl From<u64> for Limit {
    fn from(bytes: u64) -> Limit {
        Limit::Bytes(bytes)
    }
}

impl Limit {
    /// The limit in bytes on a device of `capacity` bytes.
    ///
    /// # Errors
    /// [`Error::Config`] for a fraction outside 0 to 1.
    pub fn bytes(self, capacity: u64) -> Result<Option<u64>, Error> {
        match self {
            Limit::None => Ok(None),
            Limit::Bytes(n) => Ok(Some(n)),
            #[allow(clippy::cast_sign_loss, reason = "the fraction was checked to be between 0 and 1")]
            Limit::Fraction(f) if (0.0..=1.0).contains(&f) => Ok(Some((capacity as f64 * f) as u64)),
            Limit::Fraction(f) => {
                Err(Error::Config { name: "limit", found: f.to_string(), expected: A_FRACTION })
            }
        }
    }
}

/// What a miss tries first.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum Policy {
    /// Grow before making one stream wait for another: a miss takes less time, the program more memory.
    #[default]
    Latency,
    /// Stay within 1 % of the highest live bytes ([`Footprint::slack`]): wait in stream order for other pools' memory before growing.
    Footprint,
}

impl Policy {
    /// Its name in reports, variables and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Policy::Latency => "latency",
            Policy::Footprint => "footprint",
        }
    }
}

/// Whether one stream's freed memory serves another.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum Reuse {
    /// Never: a pool keeps what it reserved while its stream lives. Memory of streams that are gone serves others as it becomes complete.
    Never,
    /// Only when it is complete, or ordered already.
    Ordered,
    /// Also by inserting a wait on the device, but only between two streams that the program itself has ordered one behind the other, in
    /// either direction ([`Stream::wait`](crate::Stream::wait), a declared use, an array of the one used on the other), or for a stream that it declared
    /// [dependable](crate::Stream::set_dependable): a program whose streams depend on each other by flags or collectives could hang if
    /// others waited. Other memory serves when it is complete, and the pool grows meanwhile. Only what the program orders after the first allocator
    /// of the device with this value was created counts.
    #[default]
    #[cfg_attr(feature = "serde", serde(rename = "known"))]
    KnownWaits,
    /// Also by inserting a wait between any two streams of which none is [independent](crate::Stream::set_independent).
    #[cfg_attr(feature = "serde", serde(rename = "waits"))]
    WithWaits,
}

impl Reuse {
    /// Whether any wait may be inserted at all.
    pub(crate) fn inserts_waits(self) -> bool {
        matches!(self, Reuse::KnownWaits | Reuse::WithWaits)
    }
}

/// How much a pool acquires from the device at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum Growth {
    /// Exactly the rounded request: no segment serves a second request unless it is freed.
    Exact,
    /// Segments that later requests share.
    Rounded {
        /// The segment for small requests (≤ 256 KiB), in bytes.
        small: u64,
        /// The least segment for large ones, in bytes.
        large: u64,
        /// Larger requests are rounded up to a multiple of this, in bytes.
        multiple: u64,
    },
}

impl Default for Growth {
    /// 2 MiB for small requests; for large ones max(20 MiB, the request rounded up to 2 MiB): docs/misses.md, "Growth".
    fn default() -> Growth {
        Growth::Rounded { small: 2 << 20, large: 20 << 20, multiple: 2 << 20 }
    }
}

/// The largest request that is served from small segments, in bytes.
pub const SMALL_BYTES: u64 = 256 << 10;

/// Whether pools take a device's virtual memory: windows of addresses that physical memory fills where a request lacks some, in units of 2 MiB. Without,
/// each request that fits into no free range takes a segment of its own.
///
/// Mapped memory is its device's alone: a kernel of another GPU that may read plain memory after `cuCtxEnablePeerAccess` may not read it, and
/// `cuIpcGetMemHandle` refuses it. Copies between devices work. With `cuda::Backing::Async` it takes the place of the driver's own pool.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum VirtualMemory {
    /// Where the device has it, but for baselines that count bytes: [`Growth::Exact`], [`Config::exact_fit`].
    Auto,
    /// Plain segments only.
    #[default]
    Never,
    /// Required: where [`VirtualMemory::Auto`] would use plain segments, [`Allocator::new`](crate::Allocator::new) fails.
    Always,
}

/// An allocator's options.
///
/// ```
/// use millpond::{Config, Policy, allocator::Limit};
/// let config = Config::default().limit(Limit::Fraction(0.4)).policy(Policy::Footprint);
/// # let _ = config;
/// ```
///
/// With the feature `serde` it is a value in both directions, each option under its builder's name. Sinks and the out-of-memory callback are
/// code and not data: they are not written, and a configuration that was read has none; add them with the builder. A missing option is read as
/// its default, unknown names are ignored, and the error for a value that does not fit names the option.
///
/// ```
/// # use millpond::Config;
/// let text = r#"{"limit": {"fraction": 0.4}, "policy": "footprint", "bounded_wait": {"secs": 1, "nanos": 0}}"#;
/// let config: Config = serde_json::from_str(text)?;
/// let again: Config = serde_json::from_str(&serde_json::to_string(&config)?)?;
/// assert_eq!(format!("{again:?}"), format!("{config:?}"));
/// let refused = serde_json::from_str::<Config>(r#"{"policy": "fast"}"#).unwrap_err().to_string();
/// assert!(refused.starts_with("policy: unknown variant `fast`, expected `latency` or `footprint`"));
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Config {
    pub(crate) limit: Limit,
    pub(crate) soft_limit: Limit,
    pub(crate) low_watermark: Limit,
    pub(crate) high_watermark: Limit,
    /// `None`: half of the host's memory, where the device says how much that is.
    pub(crate) pinned_limit: Option<Limit>,
    pub(crate) policy: Policy,
    pub(crate) reuse: Reuse,
    pub(crate) growth: Growth,
    pub(crate) deterministic: bool,
    pub(crate) exact_fit: bool,
    pub(crate) scrub: bool,
    pub(crate) virtual_memory: VirtualMemory,
    pub(crate) footprint: Footprint,
    pub(crate) handles: Handles,
    #[cfg_attr(feature = "serde", serde(rename = "bounded_wait"))]
    pub(crate) wait: Option<Duration>,
    #[cfg_attr(feature = "serde", serde(rename = "look_at_each_of"))]
    pub(crate) few: Option<usize>,
    pub(crate) staging_threads: Option<usize>,
    #[cfg_attr(feature = "serde", serde(skip))]
    pub(crate) staging_pieces: StagingPieces,
    #[cfg_attr(feature = "serde", serde(skip))]
    pub(crate) sinks: Vec<Arc<dyn Sink>>,
    #[cfg_attr(feature = "serde", serde(skip))]
    pub(crate) hook: Option<OutOfMemoryHook>,
    #[cfg_attr(feature = "serde", serde(skip))]
    pub(crate) clock: Option<Clock>,
    #[cfg_attr(feature = "serde", serde(skip))]
    pub(crate) group: Option<Group>,
}

#[cfg(feature = "serde")]
crate::report::read::read_fields!(Config {
    limit,
    soft_limit,
    low_watermark,
    high_watermark,
    pinned_limit,
    policy,
    reuse,
    growth,
    deterministic,
    exact_fit,
    scrub,
    virtual_memory,
    footprint,
    handles,
    wait as "bounded_wait",
    few as "look_at_each_of",
    staging_threads,
} but staging_pieces, sinks, hook, clock, group);

impl Config {
    /// The defaults: no limit for memory of the device, half of the host's memory for pinned memory where the device says how much the host has,
    /// [`Policy::Latency`], [`Reuse::KnownWaits`], [`Growth::Rounded`], plain segments, a bounded wait of 2 s.
    pub fn new() -> Config {
        Config::default()
    }
    /// How much may be reserved on the device.
    #[must_use]
    pub fn limit(mut self, limit: Limit) -> Config {
        self.limit = limit;
        self
    }
    /// What a miss tries first.
    #[must_use]
    pub fn policy(mut self, policy: Policy) -> Config {
        self.policy = policy;
        self
    }
    /// Whether one stream's freed memory serves another.
    #[must_use]
    pub fn reuse(mut self, reuse: Reuse) -> Config {
        self.reuse = reuse;
        self
    }
    /// How much a pool acquires from the device at once.
    #[must_use]
    pub fn growth(mut self, growth: Growth) -> Config {
        self.growth = growth;
        self
    }
    /// No reuse that depends on when the device happened to finish: the same calls give the same addresses relative to
    /// their segments in every run. Completion is learnt only from waits that the caller or the ladder makes. This holds if every allocator of the
    /// device's context is deterministic: they share the streams' timelines, so what another one queries is known here, too. So that the
    /// end of streams becomes known at all, a program that has dropped many streams waits for the older ones' work when it creates
    /// another one ([`Allocator::stream`](super::Allocator::stream), `adopt`), for two seconds at most. Memory that other streams used
    /// comes back by waits on the device: a stream that has as much of it in flight as it ever had live, and 2 MiB, waits for the
    /// older half before its pool grows, if [`reuse`](Config::reuse) allows those waits. Memory with unknown users
    /// ([`Allocation::free_unknown`](super::Allocation::free_unknown)) comes back at [`Allocator::synchronize`](super::Allocator::synchronize) only, except under
    /// [`Reuse::WithWaits`]: no wait for single streams covers all of them. Pinned memory is not known to be free until its uses were
    /// waited for: a program that never waits pins ever more of it, up to [`pinned_limit`](Config::pinned_limit).
    #[must_use]
    pub fn deterministic(mut self, on: bool) -> Config {
        self.deterministic = on;
        self
    }
    /// A baseline for comparison: a cached chunk serves only a request of its own rounded size, as pools did before
    /// best fit. Not useful otherwise.
    #[must_use]
    pub fn exact_fit(mut self, on: bool) -> Config {
        self.exact_fit = on;
        self
    }
    /// Reused memory shows nothing of its earlier contents: for tenants that must not read each other's bytes. Off
    /// by default.
    ///
    /// Every allocation is filled with zeroes on its stream before it is returned: work on that stream comes after the
    /// fill, and so does work on a stream that [`share_with`](crate::Allocation::share_with) ordered, or the program's
    /// own event recorded after the allocation. The host does not wait; each allocation costs one driver call, between two that change the
    /// thread's capture mode so that a capture by other code does not refuse it, and on a
    /// per-thread default stream it must be made by that stream's own thread. Pinned memory is overwritten by the CPU when it is
    /// allocated. What goes back to the device or to the host is overwritten before (on NVIDIA GPUs as
    /// `cuda::Cuda::scrub` describes, which waits for the fill).
    ///
    /// Nothing happens at the drop itself, which makes no driver call: until the next allocation the bytes stay in the cache
    /// unchanged, and only an access outside every allocation could read them.
    #[must_use]
    pub fn scrub(mut self, on: bool) -> Config {
        self.scrub = on;
        self
    }
    /// Whether pools take the device's virtual memory; not by default yet.
    #[must_use]
    pub fn virtual_memory(mut self, choice: VirtualMemory) -> Config {
        self.virtual_memory = choice;
        self
    }
    /// The numbers by which `footprint` trades memory against time.
    #[must_use]
    pub fn footprint(mut self, numbers: Footprint) -> Config {
        self.footprint = numbers;
        self
    }
    /// What handles of physical memory are made for, and which blocks lie on one each.
    #[must_use]
    pub fn handles(mut self, handles: Handles) -> Config {
        self.handles = handles;
        self
    }
    /// The program's time, of which moves of physical memory may take a share ([`Footprint::time`]), from any fixed point: the device's host clock by
    /// default, which is the process's own, or virtual on a simulated device. For programs whose time is another, a replay's for example, which makes the calls
    /// of minutes within a second. Called by requests that no cached memory serves, with no pool's lock held; it may not call the allocator.
    #[must_use]
    pub fn clock(mut self, clock: impl Fn() -> Duration + Send + Sync + 'static) -> Config {
        self.clock = Some(Arc::new(clock));
        self
    }
    /// How long a request may block the host in all before it is out of memory; 2 s by default. It never waits for an
    /// [independent](crate::Stream::set_independent) stream, nor for the whole device.
    #[must_use]
    pub fn bounded_wait(mut self, limit: Duration) -> Config {
        self.wait = Some(limit);
        self
    }
    /// Up to how many pools a miss looks at each of them; 64 by default. If there are more, a pool in which a miss found nothing that it may take is not
    /// looked at again before something changes there. For test programs with few streams that search for bugs in that.
    #[doc(hidden)]
    #[must_use]
    pub fn look_at_each_of(mut self, pools: usize) -> Config {
        self.few = Some(pools);
        self
    }
    /// Adds a sink for events. It is called with no lock held, never by a drop, and may call back into the allocator.
    #[must_use]
    pub fn sink(mut self, sink: Arc<dyn Sink>) -> Config {
        self.sinks.push(sink);
        self
    }
    /// Called when a request for device or pinned memory is about to fail, with no lock held; `true` means "something was
    /// freed, try again". It may allocate and free; a miss inside it does not call it again. It is called at most three
    /// times for one request.
    ///
    /// A request gives no idle segment back to the driver, because that may wait for the whole device. A program that
    /// would rather wait than fail trims here: `gpu.trim(Trim::All).is_ok_and(|trimmed| trimmed.bytes > 0)`, on a clone
    /// of the allocator that is stored where the callback finds it, and removed again at the end.
    #[must_use]
    pub fn on_out_of_memory(mut self, hook: impl Fn(&OutOfMemory) -> bool + Send + Sync + 'static) -> Config {
        self.hook = Some(Arc::new(hook));
        self
    }

    /// The defaults, changed by environment variables:
    ///
    /// | variable | values | effect |
    /// |---|---|---|
    /// | `MILLPOND_LIMIT` | a size such as 6GiB, a number of bytes, a fraction such as 40%, or none | how much may be reserved on the device |
    /// | `MILLPOND_SOFT_LIMIT` | a size such as 6GiB, a number of bytes, a fraction such as 40%, or none | how much may be reserved before reuse and moves come before growth |
    /// | `MILLPOND_LOW_WATERMARK` | a size such as 6GiB, a number of bytes, a fraction such as 40%, or none | how much stays cached when what is above the high watermark goes back |
    /// | `MILLPOND_HIGH_WATERMARK` | a size such as 6GiB, a number of bytes, a fraction such as 40%, or none | how much may be cached before idle memory goes back |
    /// | `MILLPOND_PINNED_LIMIT` | a size such as 4GiB, a number of bytes, a fraction of the host's memory such as 40%, or none | how much host memory may be pinned |
    /// | `MILLPOND_POLICY` | latency or footprint | what a miss tries first: growing, or other pools' memory |
    /// | `MILLPOND_REUSE` | never, ordered, known or waits | whether one stream's freed memory serves another |
    /// | `MILLPOND_GROWTH` | rounded or exact | how much is reserved from the device at once |
    /// | `MILLPOND_DETERMINISTIC` | 0 or 1 | no reuse that depends on when the device happened to finish |
    /// | `MILLPOND_SCRUB` | 0 or 1 | reused memory shows nothing of its earlier contents |
    /// | `MILLPOND_VIRTUAL` | auto, never or always | whether pools take the device's virtual memory |
    /// | `MILLPOND_SLACK` | a share from 0% to 100% | how much more than what is live footprint reserves before it moves memory |
    /// | `MILLPOND_HANDLE` | a size of at least 2MiB | how long the handles of physical memory are at most |
    /// | `MILLPOND_MOVES` | a number, or none | how many handles one request moves at most |
    /// | `MILLPOND_MOVE_TIME` | a share from 0% (no bound) to 100% | how much of the time requests may spend on physical memory |
    /// | `MILLPOND_MOVE_CREDIT_MS` | a number of milliseconds | what they may spend so besides, for the beginning |
    /// | `MILLPOND_EXPORT` | none, fd or fabric | how other processes can open handles of physical memory |
    /// | `MILLPOND_RDMA` | 0 or 1 | whether network cards can read and write them |
    /// | `MILLPOND_ONE_HANDLE` | a size such as 8MiB, a number of bytes, or none | above which size a block lies on one handle |
    /// | `MILLPOND_STAGING_THREADS` | a number from 0 (the calling thread alone) to 64 | how many threads move the bytes of copies of pageable memory |
    /// | `MILLPOND_WAIT_MS` | a number of milliseconds | how long a request may block the host before it is out of memory |
    ///
    /// [`Config::VARIABLES`] is this table.
    ///
    /// # Errors
    /// [`Error::Config`] names the variable, what it holds and what it may hold.
    pub fn from_env() -> Result<Config, Error> {
        Config::from_env_and(|_| None)
    }

    /// The defaults, changed by environment variables ([`Config::from_env`]) and by values of the caller under the
    /// same names, which take precedence over the environment.
    ///
    /// # Errors
    /// As [`Config::from_env`].
    pub fn from_env_and(given: impl Fn(&str) -> Option<String>) -> Result<Config, Error> {
        Config::read(|name| {
            match given(name)
                .map(Into::into)
                .or_else(|| std::env::var_os(name))
                .map(std::ffi::OsString::into_string)
            {
                None => Ok(None),
                Some(Ok(value)) => Ok(Some(value)),
                Some(Err(raw)) => {
                    let found = raw.to_string_lossy().into_owned();
                    Err(Error::Config { name, found, expected: "text in UTF-8" })
                }
            }
        })
    }

    /// The defaults, changed by what the caller's function returns for the variables of [`Config::from_env`];
    /// the environment is not read.
    ///
    /// # Errors
    /// As [`Config::from_env`].
    pub fn from_variables(get: impl Fn(&str) -> Option<String>) -> Result<Config, Error> {
        Config::read(|name| Ok(get(name)))
    }

    fn read(get: impl Fn(&'static str) -> Result<Option<String>, Error>) -> Result<Config, Error> {
        let mut config = Config::default();
        for variable in Config::VARIABLES {
            let value = get(variable.name)?.unwrap_or_default();
            if !value.trim().is_empty() {
                variable.set(&mut config, value.trim())?;
            }
        }
        Ok(config)
    }

    /// Plans a growth for `len`: sizes to try, largest first.
    pub(crate) fn growth_sizes(&self, len: Granules, kind: crate::heap::Kind) -> Vec<Granules> {
        let mut sizes = Vec::with_capacity(3);
        if let Growth::Rounded { small, large, multiple } = self.growth {
            let rounded = len.bytes().div_ceil(multiple.max(1)) * multiple.max(1);
            let planned = match kind {
                crate::heap::Kind::Small => small.max(len.bytes()),
                crate::heap::Kind::Large => rounded.max(large),
            };
            for bytes in [planned, rounded] {
                sizes.extend(Granules::holding(bytes).filter(|&g| g > len));
            }
        }
        if cost::grows_by_request() {
            sizes.push(len);
        }
        sizes.dedup();
        sizes
    }
}

/// An option with a text form: for the environment, a command line, or a program in another language.
#[derive(Clone, Copy, Debug)]
pub struct Variable {
    name: &'static str,
    values: &'static str,
    effect: &'static str,
    /// Applies a text in lower case; returns whether it is a valid value.
    set: fn(&mut Config, &str) -> bool,
}

impl Variable {
    /// Its environment variable.
    pub fn name(&self) -> &'static str {
        self.name
    }
    /// Its possible values, in words. Capitals do not matter.
    pub fn values(&self) -> &'static str {
        self.values
    }
    /// Its effect, in words.
    pub fn effect(&self) -> &'static str {
        self.effect
    }
    /// Sets the option.
    ///
    /// # Errors
    /// [`Error::Config`] for a text that is not a value of it.
    pub fn set(&self, config: &mut Config, text: &str) -> Result<(), Error> {
        let set = (self.set)(config, &text.to_ascii_lowercase());
        let bad = || Error::Config { name: self.name, found: text.to_owned(), expected: self.values };
        if set { Ok(()) } else { Err(bad()) }
    }
}

macro_rules! variables {
    ($($name:literal: $values:expr, $effect:literal, $set:expr;)*) => {
        impl Config {
            /// All options with a text form, which [`Config::from_env`] reads.
            pub const VARIABLES: &[Variable] =
                &[$(Variable { name: $name, values: $values, effect: $effect, set: $set },)*];
        }
    };
}

variables! {
    "MILLPOND_LIMIT": A_LIMIT, "how much may be reserved on the device", |c, v| put(&mut c.limit, limit(v));
    "MILLPOND_SOFT_LIMIT": A_LIMIT, "how much may be reserved before reuse and moves come before growth", |c, v| put(&mut c.soft_limit, limit(v));
    "MILLPOND_LOW_WATERMARK": A_LIMIT, "how much stays cached when what is above the high watermark goes back", |c, v| put(&mut c.low_watermark, limit(v));
    "MILLPOND_HIGH_WATERMARK": A_LIMIT, "how much may be cached before idle memory goes back", |c, v| put(&mut c.high_watermark, limit(v));
    "MILLPOND_PINNED_LIMIT": "a size such as 4GiB, a number of bytes, a fraction of the host's memory such as 40%, or none", "how much host memory may be pinned",
        |c, v| put(&mut c.pinned_limit, limit(v).map(Some));
    "MILLPOND_POLICY": "latency or footprint", "what a miss tries first: growing, or other pools' memory",
        |c, v| one_of(&mut c.policy, v, &[("latency", Policy::Latency), ("footprint", Policy::Footprint)]);
    "MILLPOND_REUSE": "never, ordered, known or waits", "whether one stream's freed memory serves another",
        |c, v| one_of(&mut c.reuse, v, &[("never", Reuse::Never), ("ordered", Reuse::Ordered), ("known", Reuse::KnownWaits), ("waits", Reuse::WithWaits)]);
    "MILLPOND_GROWTH": "rounded or exact", "how much is reserved from the device at once",
        |c, v| one_of(&mut c.growth, v, &[("rounded", Growth::default()), ("exact", Growth::Exact)]);
    "MILLPOND_DETERMINISTIC": "0 or 1", "no reuse that depends on when the device happened to finish",
        |c, v| one_of(&mut c.deterministic, v, SWITCH);
    "MILLPOND_SCRUB": "0 or 1", "reused memory shows nothing of its earlier contents",
        |c, v| one_of(&mut c.scrub, v, SWITCH);
    "MILLPOND_VIRTUAL": "auto, never or always", "whether pools take the device's virtual memory",
        |c, v| one_of(&mut c.virtual_memory, v, &[("auto", VirtualMemory::Auto), ("never", VirtualMemory::Never), ("always", VirtualMemory::Always)]);
    "MILLPOND_SLACK": "a share from 0% to 100%", "how much more than what is live footprint reserves before it moves memory",
        |c, v| footprint::fraction(&mut c.footprint.slack, v);
    "MILLPOND_HANDLE": "a size of at least 2MiB", "how long the handles of physical memory are at most", footprint::largest_handle;
    "MILLPOND_MOVES": "a number, or none", "how many handles one request moves at most", footprint::moves;
    "MILLPOND_MOVE_TIME": "a share from 0% (no bound) to 100%", "how much of the time requests may spend on physical memory",
        |c, v| footprint::fraction(&mut c.footprint.time, v);
    "MILLPOND_MOVE_CREDIT_MS": "a number of milliseconds", "what they may spend so besides, for the beginning",
        |c, v| put(&mut c.footprint.credit, v.parse().ok().map(Duration::from_millis));
    "MILLPOND_EXPORT": "none, fd or fabric", "how other processes can open handles of physical memory", handles::export;
    "MILLPOND_RDMA": "0 or 1", "whether network cards can read and write them",
        |c, v| one_of(&mut c.handles.rdma, v, SWITCH);
    "MILLPOND_ONE_HANDLE": "a size such as 8MiB, a number of bytes, or none", "above which size a block lies on one handle", handles::one_above;
    "MILLPOND_STAGING_THREADS": staging::THREADS_EXPECTED, "how many threads move the bytes of copies of pageable memory", staging::threads;
    "MILLPOND_WAIT_MS": "a number of milliseconds", "how long a request may block the host before it is out of memory",
        |c, v| put(&mut c.wait, v.parse().ok().map(Duration::from_millis).map(Some));
}

const A_LIMIT: &str = "a size such as 6GiB, a number of bytes, a fraction such as 40%, or none";
const SWITCH: &[(&str, bool)] = &[("0", false), ("1", true)];

fn put<T>(into: &mut T, value: Option<T>) -> bool {
    value.map(|value| *into = value).is_some()
}

fn one_of<T: Copy>(into: &mut T, text: &str, values: &[(&str, T)]) -> bool {
    put(into, values.iter().find(|(name, _)| *name == text).map(|(_, value)| *value))
}

/// `40%`, `6GiB`, a number of bytes, `none`.
impl core::str::FromStr for Limit {
    type Err = Error;

    fn from_str(text: &str) -> Result<Limit, Error> {
        let bad = || Error::Config { name: "limit", found: text.trim().to_owned(), expected: A_LIMIT };
        limit(text.trim()).ok_or_else(bad)
    }
}

fn limit(text: &str) -> Option<Limit> {
    if text.eq_ignore_ascii_case("none") {
        return Some(Limit::None);
    }
    match parse_size(text) {
        Ok(Size::Bytes(n)) => Some(Limit::Bytes(n)),
        Ok(Size::Fraction(f)) if (0.0..=1.0).contains(&f) => Some(Limit::Fraction(f)),
        _ => None,
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("limit", &self.limit)
            .field("soft_limit", &self.soft_limit)
            .field("low_watermark", &self.low_watermark)
            .field("high_watermark", &self.high_watermark)
            .field("pinned_limit", &self.pinned_limit)
            .field("policy", &self.policy)
            .field("reuse", &self.reuse)
            .field("growth", &self.growth)
            .field("deterministic", &self.deterministic)
            .field("exact_fit", &self.exact_fit)
            .field("scrub", &self.scrub)
            .field("virtual_memory", &self.virtual_memory)
            .field("footprint", &self.footprint)
            .field("handles", &self.handles)
            .field("wait", &self.wait)
            .field("few", &self.few)
            .field("staging_threads", &self.staging_threads)
            .field("staging_pieces", &self.staging_pieces)
            .field("sinks", &self.sinks.len())
            .field("hook", &self.hook.is_some())
            .field("clock", &self.clock.is_some())
            .field("group", &self.group)
            .finish()
    }
}

#[cfg(all(test, feature = "serde"))]
mod tests;
