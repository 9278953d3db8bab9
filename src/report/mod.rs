//! What the pools hold, as plain data: per pool and in total, with peaks, counters and histograms.
//!
//! A report is a copy: it holds no lock and refers to nothing. Its `Display` is text for a person, its JSON is data
//! for programs. This module does not know how the numbers were gathered.
//!
//! Figures may be added: for users its structs are `non_exhaustive`. This repository's tests name every field (the feature
//! `internals`), so that a new one must be shown and compared.

mod group;
mod histogram;
mod map;
mod physical;
mod pinned;
mod profile;
#[cfg(feature = "serde")]
pub(crate) mod read;
mod render;

#[cfg(test)]
mod tests;

pub use group::{GroupReport, MemberReport};
pub use histogram::Histogram;
pub use map::{MapRange, MapSegment, MemoryMap, RangeState};
pub use millpond_driver::{Size, SizeError, Unit, bytes, parse_size};
pub use physical::PhysicalReport;
pub use pinned::PinnedReport;
pub use profile::{Profile, ProfileRow, Scope, Usage};

use crate::units::{DeviceId, StreamId};
use std::borrow::Cow;
use std::collections::BTreeMap;

/// What a pool did since it was made.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(not(feature = "internals"), non_exhaustive)]
pub struct Counters {
    /// Allocations served.
    pub allocations: u64,
    /// Allocations given back.
    pub frees: u64,
    /// Served from the pool's own free chunks, with no driver call.
    pub hits: u64,
    /// Had to climb the miss ladder.
    pub misses: u64,
    /// Ranges that came from another pool.
    pub migrations_in: u64,
    /// Ranges that went to another pool.
    pub migrations_out: u64,
    /// Waits inserted between streams, for reuse.
    pub waits_inserted: u64,
    /// Times the host waited for the device.
    pub host_waits: u64,
    /// Chunks split.
    pub splits: u64,
    /// Chunks merged.
    pub merges: u64,
    /// Frees that had to wait for another stream.
    pub in_flight_frees: u64,
    /// Bytes handed out in all, as requested.
    pub bytes_served: u64,
}

impl Counters {
    /// Adds another's counts to these.
    pub fn add(&mut self, other: &Counters) {
        let Counters {
            allocations,
            frees,
            hits,
            misses,
            migrations_in,
            migrations_out,
            waits_inserted,
            host_waits,
            splits,
            merges,
            in_flight_frees,
            bytes_served,
        } = other;
        self.allocations += allocations;
        self.frees += frees;
        self.hits += hits;
        self.misses += misses;
        self.migrations_in += migrations_in;
        self.migrations_out += migrations_out;
        self.waits_inserted += waits_inserted;
        self.host_waits += host_waits;
        self.splits += splits;
        self.merges += merges;
        self.in_flight_frees += in_flight_frees;
        self.bytes_served += bytes_served;
    }
}

/// One pool: what one stream owns in one allocator. In `Report::total`, the sum.
#[derive(Clone, PartialEq, Default, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(not(feature = "internals"), non_exhaustive)]
pub struct PoolReport {
    /// The stream; `None` in a sum over several, and of pinned memory, which belongs to no stream.
    pub stream: Option<StreamId>,
    /// The stream's name, if any.
    pub name: Option<String>,
    /// Its stream is gone: the pool only remains until it is empty.
    pub closed: bool,
    /// All bytes in the pool: `allocated + cached + in_flight`.
    pub reserved: u64,
    /// Bytes handed out (rounded up to granules).
    pub allocated: u64,
    /// Bytes handed out, as requested.
    pub requested: u64,
    /// Free bytes kept for reuse. Cached, not leaked.
    pub cached: u64,
    /// Bytes freed while another stream still used them.
    pub in_flight: u64,
    /// The part of cached and in-flight bytes that no request of another stream and no trim can have, because it is unknown when
    /// their uses end: freed memory of streams that are marked only in calls that name them
    /// ([`StreamInfo::unmanaged`](crate::driver::StreamInfo::unmanaged)), and memory freed on an unknown stream where captures by other code
    /// are expected. It comes back when a call names those streams, or at [`Allocator::synchronize`](crate::Allocator::synchronize).
    ///
    /// Memory of another stream that captures a graph at the moment does not count. It comes back when the capture ends, without a call, and no call
    /// brings it back sooner. Only the driver knows of the capture, and a report does not query the driver.
    pub held_back: u64,
    /// Highest `allocated` so far; in a sum over several pools an upper bound ([`Report::allocated_peak`]).
    pub allocated_peak: u64,
    /// Highest `reserved` so far.
    pub reserved_peak: u64,
    /// Live allocations.
    pub live: u64,
    /// Free chunks.
    pub free_chunks: u64,
    /// The largest free range, in bytes.
    pub largest_free: u64,
    /// Ranges in flight.
    pub in_flight_ranges: u64,
    /// How many markers the oldest in-flight use lies behind its stream's newest.
    pub oldest_in_flight: Option<u64>,
    /// What it did.
    pub counters: Counters,
    /// Sizes of all requests.
    pub sizes: Histogram,
}

/// The names of pools on default streams.
pub(crate) const DEFAULT: &str = "default";
pub(crate) const PER_THREAD_DEFAULT: &str = "per-thread default";

/// A name with newlines or escapes must not break a table or the terminal.
fn printable(name: &str) -> String {
    name.chars().filter(|c| !c.is_control()).collect()
}

impl PoolReport {
    /// The stream as text, or what replaces it.
    pub(crate) fn place(&self) -> String {
        match (self.stream, &self.name) {
            (Some(stream), None) => stream.to_string(),
            // The same words as in `StreamInfo` and in verdicts.
            (Some(_), Some(name)) if name == DEFAULT => "the default stream".into(),
            (Some(stream), Some(name)) if name == PER_THREAD_DEFAULT => format!("{name} {stream}"),
            (Some(stream), Some(name)) => format!("{stream} ({})", printable(name)),
            (None, Some(name)) => printable(name),
            (None, None) => "all streams".into(),
        }
    }
    /// 1 − largest free / free: 0 when the free bytes are one range, near 1 when they are many small ranges.
    pub fn fragmentation(&self) -> f64 {
        if self.cached == 0 { 0.0 } else { 1.0 - self.largest_free as f64 / self.cached as f64 }
    }
    /// The sum of pools: everything is added up, except `largest_free`, which is the largest of all, and
    /// `oldest_in_flight`, which is the oldest of all.
    ///
    /// The peaks are added up too. Pools rarely peak at the same moment, so the sum is an upper bound for these pools;
    /// [`Report::allocated_peak`] and [`Report::reserved_peak`] are more precise for all pools. There is no stream and no name.
    pub fn sum<'a>(pools: impl IntoIterator<Item = &'a PoolReport>) -> PoolReport {
        let mut t = PoolReport::default();
        for p in pools {
            t.reserved += p.reserved;
            t.allocated += p.allocated;
            t.requested += p.requested;
            t.cached += p.cached;
            t.in_flight += p.in_flight;
            t.held_back += p.held_back;
            t.allocated_peak += p.allocated_peak;
            t.reserved_peak += p.reserved_peak;
            t.live += p.live;
            t.free_chunks += p.free_chunks;
            t.largest_free = t.largest_free.max(p.largest_free);
            t.in_flight_ranges += p.in_flight_ranges;
            t.oldest_in_flight = t.oldest_in_flight.max(p.oldest_in_flight);
            t.counters.add(&p.counters);
            t.sizes.merge(&p.sizes);
        }
        t
    }
    /// The share of allocations that were served with no driver call.
    pub fn hit_rate(&self) -> f64 {
        if self.counters.allocations == 0 {
            0.0
        } else {
            self.counters.hits as f64 / self.counters.allocations as f64
        }
    }
}

/// How often each rung of the miss ladder was climbed, and how often it served.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(not(feature = "internals"), non_exhaustive)]
pub struct Rung {
    /// Tried.
    pub tried: u64,
    /// It ended the miss.
    pub served: u64,
}

/// The miss ladder's counts, in the order of the rungs.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(not(feature = "internals"), non_exhaustive)]
pub struct Ladder {
    /// Completed markers polled, own in-flight ranges drained.
    pub poll: Rung,
    /// A range of another pool, already ordered.
    pub migrate: Rung,
    /// Memory from the device.
    pub grow: Rung,
    /// A range of another pool, or one in flight, behind an inserted wait.
    pub migrate_with_wait: Rung,
    /// Physical memory that is free in other windows, of any pool, mapped where the request lacks some.
    pub move_handles: Rung,
    /// Idle memory given back to make room, then growth: handles of windows, and segments only where the driver's frees wait for nothing.
    pub trim: Rung,
    /// A bounded wait of the host for the device.
    pub wait: Rung,
    /// The user's out-of-memory callback: tried whenever it runs. It served if the request got memory, by any rung, after the callback requested
    /// another try.
    pub callback: Rung,
}

impl Ladder {
    /// The rungs by name, in their order.
    pub fn rungs(&self) -> [(&'static str, Rung); 8] {
        [
            ("poll", self.poll),
            ("migrate", self.migrate),
            ("grow", self.grow),
            ("migrate with wait", self.migrate_with_wait),
            ("move handles", self.move_handles),
            ("trim", self.trim),
            ("wait", self.wait),
            ("callback", self.callback),
        ]
    }
}

/// Everything an allocator holds and did.
///
/// With the feature `serde` it is a value in both directions: what `Report::to_json` writes, or any format of serde's, is read back
/// equal. A reader uses the default for a missing field, ignores unknown fields, and names the field of a value that
/// does not fit.
///
/// ```
/// use millpond::{Allocator, Config, units::MIB};
/// use millpond_sim::Sim;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let gpu = Allocator::new(Sim::new(1 << 30), Config::default())?;
/// let work = gpu.stream()?;
/// for _ in 0..100 {
///     drop(gpu.alloc(3 * MIB, &work)?);                     // the same bytes each time
/// }
/// let report = gpu.report();
/// assert_eq!((report.growths, report.peak_allocated()), (1, Some(3 * MIB)));
/// assert_eq!((report.total.counters.hits, report.total.allocated), (99, 0));
/// println!("{report}");
/// # Ok(()) }
/// ```
#[derive(Clone, PartialEq, Default, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(not(feature = "internals"), non_exhaustive)]
pub struct Report {
    /// The device.
    pub device: DeviceId,
    /// The device's memory in bytes, as it was when the allocator was made.
    pub capacity: u64,
    /// The limit in bytes, if one is set.
    pub limit: Option<u64>,
    /// The [soft limit](crate::Config::soft_limit) in bytes, if one is set.
    pub soft_limit: Option<u64>,
    /// The group that shares a budget with this allocator, if it is in one.
    pub group: Option<GroupReport>,
    /// The growth policy's name.
    pub policy: Cow<'static, str>,
    /// Bytes reserved from the device now: every plain segment and every handle of windows.
    pub reserved: u64,
    /// Highest `reserved` so far.
    pub reserved_peak: u64,
    /// Plain segments now: `segments_created - segments_released`. Windows of [virtual memory](crate::Config::virtual_memory) are
    /// [`PhysicalReport::windows`].
    pub segments: u64,
    /// Plain segments reserved from the device so far.
    pub segments_created: u64,
    /// Plain segments given back so far.
    pub segments_released: u64,
    /// Bytes between two pools at the moment of the report.
    pub moving: u64,
    /// How often memory was reserved from the device so far: `segments_created`, and once a request that created handles, however many.
    pub growths: u64,
    /// How often memory was given back so far: `segments_released`, and once a [handle](PhysicalReport::handles_released).
    pub releases: u64,
    /// How many plain segments and handles are *sparse*: something is live in them, and less than half of their bytes. Neither goes back to the device
    /// as long as anything is live in it, so these are what small live ranges pin.
    pub sparse: u64,
    /// The length of sparse segments and handles, in bytes.
    pub sparse_bytes: u64,
    /// Allocated bytes in them (rounded). The others, `sparse_bytes - sparse_live`, serve requests and no trim.
    pub sparse_live: u64,
    /// The longest request, in bytes, that would be served without more memory from the device once all queued work is complete: on the stream that
    /// can have the longest, with no alignment. Memory in flight does not count.
    ///
    /// Without windows it is the longest free range. With windows, free ranges count together with the holes between them, as far as there are
    /// enough wholly free handles to fill the holes: mapped in any window, or spare. The addresses of such a handle, and former places, count as
    /// holes too. A request at the limit moves or replaces handles for that, whatever it costs. Of windows of streams that are gone, and of those for
    /// small requests, only wholly free handles count, so that a longer request may be served.
    pub largest_request: u64,
    /// The most that was allocated at once over all pools, in bytes (rounded): a lower bound. A hit updates no other pool, so
    /// with several pools only two bounds are known; they are equal where the figure itself is known ([`Report::peak_allocated`]).
    pub allocated_peak: u64,
    /// The most that was allocated at once over all pools: an upper bound.
    pub allocated_peak_at_most: u64,
    /// The sum over pools.
    pub total: PoolReport,
    /// One a stream, in the order of their creation.
    pub pools: Vec<PoolReport>,
    /// The miss ladder.
    pub ladder: Ladder,
    /// Physical memory of windows; `None` where pools have plain segments only.
    pub physical: Option<PhysicalReport>,
    /// The pinned host pool, if it was used: reserved, allocated, cached, in flight of host memory.
    pub pinned: Option<PoolReport>,
    /// What stands behind pinned memory, if there was any, or memory of the program's is registered.
    pub pinned_host: Option<PinnedReport>,
    /// Driver calls by name, if the driver counts.
    pub driver_calls: BTreeMap<Cow<'static, str>, u64>,
    /// Events that were not delivered to a sink: too many were kept, by frees with no allocation in between.
    pub events_lost: u64,
    /// Errors where no caller could receive them: in destructors, and in calls of other libraries' traits that cannot fail. The newest 64 of the CUDA
    /// backend's, preceded by how many there were before.
    pub deferred_errors: Vec<String>,
}

impl Report {
    /// The most that was allocated at once over all pools, in bytes (rounded): [`Report::allocated_peak`] where it equals
    /// [`Report::allocated_peak_at_most`]. `None` where they differ: then the figure is only known to lie between the two.
    pub fn peak_allocated(&self) -> Option<u64> {
        (self.allocated_peak == self.allocated_peak_at_most).then_some(self.allocated_peak)
    }

    /// Bytes reserved and not allocated now: cached, in flight, on the way between pools, spare.
    pub fn slack(&self) -> u64 {
        self.reserved.saturating_sub(self.total.allocated)
    }

    /// The most that was reserved less the most that was allocated, if that is known: slack at the peak.
    pub fn slack_at_peak(&self) -> Option<u64> {
        Some(self.reserved_peak.saturating_sub(self.peak_allocated()?))
    }

    /// Allocated bytes over reserved bytes now: 1 is perfect. `None` if nothing is reserved.
    pub fn allocated_over_reserved(&self) -> Option<f64> {
        ratio(self.total.allocated, self.reserved)
    }

    /// The most that was allocated over the most that was reserved, if that is known: the inverse of [`Report::reserved_over_allocated`].
    pub fn allocated_over_reserved_at_peak(&self) -> Option<f64> {
        ratio(self.peak_allocated()?, self.reserved_peak)
    }

    /// Peak bytes reserved from the device over peak allocated bytes: 1 is perfect. `None` before the first allocation, and where the
    /// peak of allocated bytes is not known exactly: then there are [bounds](Report::reserved_over_allocated_bounds).
    pub fn reserved_over_allocated(&self) -> Option<f64> {
        self.peak_allocated().and_then(|live| ratio(self.reserved_peak, live))
    }

    /// The least and the most that [`Report::reserved_over_allocated`] can be. `None` before the first allocation.
    pub fn reserved_over_allocated_bounds(&self) -> Option<(f64, f64)> {
        let least = ratio(self.reserved_peak, self.allocated_peak_at_most)?;
        Some((least, ratio(self.reserved_peak, self.allocated_peak)?))
    }
}

fn ratio(of: u64, over: u64) -> Option<f64> {
    (over > 0).then(|| of as f64 / over as f64)
}
