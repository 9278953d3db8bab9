//! How much an allocator remembers: counts that must stay flat while a program runs forever.
//!
//! Everything an allocator keeps beside the heap is there for work that is *pending*: markers of streams, uses of live
//! allocations, ranges in flight, values that the device still reads. Completed work must leave nothing behind.
//! `tests/soak.rs` checks loops of all kinds against these counts; a user who suspects growth can print them. This file
//! only reads; it does not know which count is too high.

use super::Allocator;
use super::pool::PoolState;
use crate::driver::Driver;
use crate::units::Epoch;

/// What an allocator and its device's timelines hold at one moment, as counts. Gathered lock by lock, without a driver
/// call: exact when no other thread works meanwhile.
///
/// In a steady loop each count is bounded by what is pending on the device, not by the number of rounds. Timelines are
/// shared by all allocators of a device, and so are the counts of their state.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Bookkeeping {
    /// Timelines of live streams and of ended ones that are not known to be complete; and one of the context.
    pub timelines: usize,
    /// Published markers that no timeline has dropped yet. Each holds a driver event.
    pub markers: usize,
    /// Driver events that no marker uses, kept for the next one.
    pub events_pooled: usize,
    /// Entries of the streams' clocks: for each stream, which others it is ordered after.
    pub clock_entries: usize,
    /// Pairs of streams that the program itself has ordered, each counted at both.
    pub edges: usize,
    /// Pools, including closed ones that still hold something.
    pub pools: usize,
    /// Recorded uses of live allocations, device and pinned memory.
    pub uses: usize,
    /// Slots for the uses of one allocation each, free ones included.
    pub use_slots: usize,
    /// Freed ranges that another stream may still access, device and pinned memory.
    pub in_flight: usize,
    /// Recorded uses of those ranges.
    pub in_flight_uses: usize,
    /// Values kept because the device may still read them: sources of copies whose tokens were dropped.
    pub kept: usize,
    /// Names of live allocations.
    pub names: usize,
    /// Chunks of the pools' heaps: live, free and in flight.
    pub chunks: usize,
    /// Segments taken from the device, and pinned ones.
    pub segments: usize,
    /// Windows of virtual memory, empty ones too.
    pub windows: usize,
    /// Former places of handles that moved, which are still mapped.
    pub former_places: usize,
    /// Trace events not yet delivered to a sink.
    pub events_recorded: usize,
    /// Batches of references, counted in advance for handles, that pools hold.
    pub reference_batches: usize,
}

impl Bookkeeping {
    /// Every count with its name.
    pub fn counts(&self) -> [(&'static str, usize); 18] {
        [
            ("timelines", self.timelines),
            ("markers", self.markers),
            ("events pooled", self.events_pooled),
            ("clock entries", self.clock_entries),
            ("edges", self.edges),
            ("pools", self.pools),
            ("uses", self.uses),
            ("use slots", self.use_slots),
            ("ranges in flight", self.in_flight),
            ("uses in flight", self.in_flight_uses),
            ("kept values", self.kept),
            ("names", self.names),
            ("chunks", self.chunks),
            ("segments", self.segments),
            ("windows", self.windows),
            ("former places", self.former_places),
            ("recorded events", self.events_recorded),
            ("batches of references", self.reference_batches),
        ]
    }
}

impl<D: Driver> Allocator<D> {
    /// How much this allocator and its device's timelines remember: a diagnostic, for tests and for users who suspect that a
    /// long run grows. Takes each lock for a moment and makes no driver call; not for hot paths.
    pub fn bookkeeping(&self) -> Bookkeeping {
        let core = self.core();
        let mut b = Bookkeeping {
            events_pooled: core.registry.events_pooled(),
            kept: core.deferred_drops.len(),
            segments: core.backing.lock().segments.len(),
            events_recorded: core.events_recorded(),
            ..Bookkeeping::default()
        };
        if let Some(of) = &core.windows {
            let records = of.lock();
            b.windows = records.stats().windows as usize;
            b.former_places = records.draining();
        }
        for timeline in core.registry.timelines() {
            let state = timeline.state.lock();
            b.timelines += 1;
            b.markers += state.markers.above(Epoch(0)).len();
            b.clock_entries += state.markers.clock().len();
            b.edges += state.edges.len();
        }
        for pool in core.pool_list() {
            b.pools += 1;
            let state = pool.lock();
            state.count(&mut b);
            b.reference_batches += state.refcounts.batches();
        }
        let host = core.host.lock();
        host.pool.count(&mut b);
        b.segments += host.backing.segments.len();
        drop(host);
        b
    }
}

impl PoolState {
    /// Adds what it remembers.
    pub(super) fn count(&self, to: &mut Bookkeeping) {
        let heap = self.heap.stats();
        to.uses += self.uses.slots.iter().map(|uses| uses.iter().count()).sum::<usize>();
        to.use_slots += self.uses.slots.len();
        to.names += self.names.len();
        to.in_flight += self.in_flight.len();
        to.in_flight_uses += self.in_flight.uses().count();
        to.chunks += (heap.live + heap.free_chunks + heap.in_flight_chunks) as usize;
    }
}
