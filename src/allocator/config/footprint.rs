//! The numbers of the policy `footprint`, and what they may be.

use super::{A_FRACTION, Config, put};
use crate::error::Error;
use crate::laws::price::ONE;
use crate::report::{Size, parse_size};
use crate::units::MIB;
use core::time::Duration;

/// The numbers by which memory is traded against time where a device's virtual memory is beneath the pools ([`Config::footprint`]): how much more than
/// what is live may be reserved under [`Policy::Footprint`](super::Policy::Footprint), and how much time may be spent on moving physical memory
/// to keep it there. The slack counts with plain segments too.
///
/// A handle that moves costs the host 28 to 47 µs, whatever its length (on an H200). What requests spend so is a share of the program's time. If it
/// is used up, handles become longer in steps, up to a 64th of what is reserved and four times [`largest_handle`](Footprint::largest_handle), then
/// the slack rises in steps up to 10 %; if that is not enough, more time is spent. It goes back when less is spent again. Within reach
/// of the limit, and in deterministic mode, nothing is changed by time.
///
/// ```
/// use millpond::{Config, Policy, allocator::Footprint};
/// use std::time::Duration;
/// let numbers = Footprint::default().slack(0.05).time(0.002).credit(Duration::from_millis(50));
/// let config = Config::default().policy(Policy::Footprint).footprint(numbers);
/// # let _ = config;
/// ```
#[derive(Clone, Copy, PartialEq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Footprint {
    pub(crate) slack: f64,
    pub(crate) largest_handle: u64,
    pub(crate) moves: Option<u32>,
    pub(crate) time: f64,
    pub(crate) credit: Duration,
}

#[cfg(feature = "serde")]
crate::report::read::read_fields!(Footprint { slack, largest_handle, moves, time, credit });

/// A unit of physical memory on every device seen, in bytes.
const UNIT: u64 = 2 * MIB;
const A_HANDLE: &str = "a size of 2 MiB or more";

impl Default for Footprint {
    /// 1 % of slack, handles of 64 MiB, any number of moves, 1 % of the time and a credit of 20 ms.
    fn default() -> Footprint {
        Footprint {
            slack: 0.01,
            largest_handle: 64 * MIB,
            moves: None,
            time: 0.01,
            credit: Duration::from_millis(20),
        }
    }
}

impl Footprint {
    /// How much more may be reserved than the highest live bytes before other pools' memory is waited for or moved, as a fraction of these; 0.01 by default.
    /// On recorded workloads the holes within handles in use take 0.6 to 1.7 % in any case, and more than 2 % saves little.
    #[must_use]
    pub fn slack(mut self, fraction: f64) -> Footprint {
        self.slack = fraction;
        self
    }
    /// How long the handles of physical memory are at most that fill large requests, in bytes; 64 MiB by default, from which on copies within the device are
    /// as fast as over one handle. They are a 256th of what is reserved, if that is less; a length that is no power of two is taken as the next lower one.
    #[must_use]
    pub fn largest_handle(mut self, bytes: u64) -> Footprint {
        self.largest_handle = bytes;
        self
    }
    /// How many handles one request may move or release at most, to bound how long it takes; any number by default. What it lacks beyond that it takes from the
    /// device; where the limit or the device gives no more, the bound does not count.
    #[must_use]
    pub fn moves(mut self, most: u32) -> Footprint {
        self.moves = Some(most);
        self
    }
    /// The share of the program's time that requests may spend on physical memory, as a fraction; 0.01 by default. 0: as much as it takes. The prices are those
    /// of a driver with nothing else to do; beside busy kernels its calls may take twice as long. Of time in which little is spent, ten seconds count later.
    #[must_use]
    pub fn time(mut self, fraction: f64) -> Footprint {
        self.time = fraction;
        self
    }
    /// What may be spent so besides, for the beginning of a program; 20 ms by default, with which the recorded workloads reserve what they do without a bound on time
    /// (with 10 ms `gnn_train` 1.025 of its live peak in place of 1.010, 1,000 operations ahead of the device).
    #[must_use]
    pub fn credit(mut self, time: Duration) -> Footprint {
        self.credit = time;
        self
    }

    /// # Errors
    /// [`Error::Config`] for a number that is none of these.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let fraction = |f: f64| (0.0..=1.0).contains(&f);
        let all = [
            ("footprint.slack", self.slack.to_string(), A_FRACTION, fraction(self.slack)),
            ("footprint.time", self.time.to_string(), A_FRACTION, fraction(self.time)),
            (
                "footprint.largest_handle",
                self.largest_handle.to_string(),
                A_HANDLE,
                self.largest_handle >= UNIT,
            ),
        ];
        all.into_iter().try_for_each(|(name, found, expected, valid)| {
            if valid { Ok(()) } else { Err(Error::Config { name, found, expected }) }
        })
    }

    /// The slack in millionths.
    pub(crate) fn slack_millionths(&self) -> u64 {
        millionths(self.slack)
    }
    /// The share of time in millionths.
    pub(crate) fn time_millionths(&self) -> u64 {
        millionths(self.time)
    }
}

#[allow(clippy::cast_sign_loss, reason = "fractions were checked to be between 0 and 1")]
fn millionths(fraction: f64) -> u64 {
    (fraction * ONE as f64).round() as u64
}

/// `5%`, `0`.
pub(super) fn fraction(into: &mut f64, text: &str) -> bool {
    let found = match parse_size(text) {
        Ok(Size::Fraction(f)) => Some(f),
        Ok(Size::Bytes(0)) => Some(0.0),
        _ => None,
    };
    put(into, found)
}

/// `64MiB`.
pub(super) fn largest_handle(c: &mut Config, text: &str) -> bool {
    let found = match parse_size(text) {
        Ok(Size::Bytes(bytes)) if bytes >= UNIT => Some(bytes),
        _ => None,
    };
    put(&mut c.footprint.largest_handle, found)
}

/// A number of moves, `none`.
pub(super) fn moves(c: &mut Config, text: &str) -> bool {
    let found = if text == "none" { Some(None) } else { text.parse().ok().map(Some) };
    put(&mut c.footprint.moves, found)
}
