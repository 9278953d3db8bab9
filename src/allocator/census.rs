//! What lies where: the ranges of all pools, laid over the handles of windows and over plain segments. For reports, maps and the facts of a request that
//! is out of memory.
//!
//! Everything is gathered in pieces, each in one hold of a pool's lock or of the records', and put together without a lock. It is exact when no
//! other thread works meanwhile; otherwise a range that changed hands may be missing or counted twice, and nothing here relies on that. It decides
//! nothing.

use super::core::Core;
use super::physical::Windows;
use super::pool::Pool;
use super::pool::pieces::{PIECE, each_in_flight, each_range, each_segment};
use crate::driver::Driver;
use crate::heap::{ChunkState, FreeRange, Kind, SegmentView};
use crate::laws::cost;
use crate::physical::{HandleState, Owner, SlotState, WindowView};
use crate::report::{MapRange, MapSegment, MemoryMap, PhysicalReport, PoolReport, RangeState};
use crate::sync::Arc;
use crate::units::{GRANULE_BYTES, Granules, SegmentId, StreamId};
use hashbrown::HashMap;
use std::collections::BTreeMap;

/// A range of a segment in a pool, in granules.
#[derive(Clone, Copy, Debug)]
struct Range {
    segment: SegmentId,
    from: u32,
    to: u32,
    state: ChunkState,
    /// The pool's place in the list.
    pool: usize,
}

/// What a mapping is of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mapping {
    /// A handle at its place, which may go if all of it is free.
    Here { may_go: bool },
    /// A handle that is on its way there.
    Arriving,
    /// The former place of one.
    Former,
}

/// A mapping in a window, and what pools have of it, in granules.
#[derive(Clone, Copy, Debug)]
struct Slot {
    from: u32,
    to: u32,
    mapping: Mapping,
    live: u32,
    in_flight: u32,
    free: u32,
    /// Whether any of what is free is held back.
    held_back: bool,
}

impl Slot {
    fn len(&self) -> u32 {
        self.to - self.from
    }
    fn is_here(&self) -> bool {
        matches!(self.mapping, Mapping::Here { .. })
    }
    /// Whether the handle may move elsewhere or go back, if everything is complete.
    fn is_free(&self) -> bool {
        self.mapping == Mapping::Here { may_go: true } && self.free == self.len()
    }

    fn count(&mut self, range: &Range) {
        let granules = range.to.min(self.to).saturating_sub(range.from.max(self.from));
        if granules == 0 {
            return;
        }
        match range.state {
            ChunkState::Allocated => self.live += granules,
            ChunkState::InFlight => self.in_flight += granules,
            ChunkState::Free => self.free += granules,
            ChunkState::Absent => {}
        }
    }
}

/// A window and its mappings, by offset.
struct Window {
    view: WindowView,
    slots: Vec<Slot>,
}

impl Window {
    /// What is between the mappings that count, in granules.
    fn holes<'a>(&'a self, counts: impl Fn(&Slot) -> bool + 'a) -> impl Iterator<Item = (u32, u32)> + 'a {
        let mut end = 0;
        let slots = self.slots.iter().filter(move |slot| counts(slot)).map(|slot| (slot.from, slot.to));
        slots.chain([(self.view.len.0, self.view.len.0)]).filter_map(move |(from, to)| {
            let hole = (end < from).then_some((end, from));
            end = to;
            hole
        })
    }
}

/// Segments and handles of which less than half is live, and something.
#[derive(Clone, Copy, Default)]
pub(super) struct Sparse {
    pub(super) count: u64,
    pub(super) bytes: u64,
    pub(super) live: u64,
}

impl Sparse {
    /// One of so many bytes, of which so many are live.
    fn add(&mut self, bytes: u64, live: u64) {
        if live > 0 && 2 * live < bytes {
            (self.count, self.bytes, self.live) = (self.count + 1, self.bytes + bytes, self.live + live);
        }
    }
}

/// A part of a stretch of a window in which a request may lie, in granules.
#[derive(Clone, Copy, Debug)]
struct Part {
    len: u64,
    /// Handles are to fill it, as much of it as is wanted.
    hole: bool,
}

impl Part {
    fn cost(&self) -> u64 {
        if self.hole { self.len } else { 0 }
    }
}

/// The longest request in a stretch of parts for whose holes there is so much: the last part may be a hole that is filled in part.
fn longest<'a>(parts: impl Iterator<Item = &'a Part> + Clone, budget: u64) -> u64 {
    let (mut first, mut cost, mut len, mut best) = (parts.clone(), 0, 0, 0);
    for part in parts {
        if part.hole {
            best = best.max(len + part.len.min(budget - cost));
        }
        (cost, len) = (cost + part.cost(), len + part.len);
        while cost > budget {
            let Some(gone) = first.next() else { break };
            (cost, len) = (cost - gone.cost(), len - gone.len);
        }
        best = best.max(len);
    }
    best
}

/// What pools have of windows.
pub(super) struct Census {
    windows: Vec<Window>,
    /// By place.
    ranges: Vec<Range>,
    /// Spare handles, in bytes.
    spare: u64,
}

impl Census {
    /// The windows of an allocator, and what the pools have of them.
    fn of<D: Driver>(of: &Windows<D>, pools: &[Arc<Pool<D>>]) -> Census {
        let mut ranges = Vec::new();
        gather(pools, true, &mut ranges);
        let mut census = Census { windows: windows(of), ranges, spare: of.stats().spare };
        for window in &mut census.windows {
            for slot in window.slots.iter_mut().filter(|slot| slot.is_here()) {
                let id = window.view.id;
                let first = census.ranges.partition_point(|r| (r.segment, r.to) <= (id, slot.from));
                let (ranges, end) = (census.ranges[first..].iter(), slot.to);
                ranges.take_while(|r| r.segment == id && r.from < end).for_each(|range| slot.count(range));
            }
        }
        census
    }

    fn here(&self) -> impl Iterator<Item = &Slot> {
        self.windows.iter().flat_map(|window| &window.slots).filter(|slot| slot.is_here())
    }

    /// Notes a free range that is held back.
    fn hold_back(&mut self, range: &FreeRange) {
        let Ok(at) = self.windows.binary_search_by_key(&range.segment, |window| window.view.id) else {
            return;
        };
        let slots = &mut self.windows[at].slots;
        let first = slots.partition_point(|slot| slot.to <= range.offset.0);
        let end = range.offset.0 + range.len.0;
        slots[first..].iter_mut().take_while(|slot| slot.from < end).for_each(|slot| slot.held_back = true);
    }

    /// The bytes of handles that are free and not held back, and of spare ones; and of those that will be when nothing is in flight.
    fn idle(&self) -> (u64, u64) {
        let (mut now, mut then) = (self.spare, self.spare);
        for slot in
            self.here().filter(|slot| slot.mapping == Mapping::Here { may_go: true } && !slot.held_back)
        {
            let bytes = u64::from(slot.len()) * GRANULE_BYTES;
            now += if slot.free == slot.len() { bytes } else { 0 };
            then += if slot.free + slot.in_flight == slot.len() { bytes } else { 0 };
        }
        (now, then)
    }

    /// The parts of a window that its owner may have requests in, stretch by stretch: what is free in this pool, and holes. The place of a handle that is
    /// wholly free, in whichever pools, counts as a hole: a request at the limit gives it back, and fills so much with another. So does a former place, which a
    /// request unmaps.
    fn stretches(&self, window: &Window, pool: usize) -> Vec<Vec<Part>> {
        let id = window.view.id;
        let first = self.ranges.partition_point(|r| r.segment < id);
        let own = self.ranges[first..].iter().take_while(|r| r.segment == id);
        let own = own.filter(|r| r.pool == pool && r.state == ChunkState::Free);
        let holes = window.holes(|slot| !slot.is_free() && slot.mapping != Mapping::Former);
        let mut parts: Vec<(u32, Part)> =
            holes.map(|(from, to)| (from, Part { len: u64::from(to - from), hole: true })).collect();
        for range in own {
            let first = window.slots.partition_point(|slot| slot.to <= range.from);
            let slots = window.slots[first..].iter().take_while(|slot| slot.from < range.to);
            for slot in slots.filter(|slot| !slot.is_free()) {
                let (from, to) = (slot.from.max(range.from), slot.to.min(range.to));
                parts.push((from, Part { len: u64::from(to - from), hole: false }));
            }
        }
        parts.sort_unstable_by_key(|part| part.0);
        let (mut stretches, mut end): (Vec<Vec<Part>>, _) = (Vec::new(), None);
        for (from, part) in parts {
            match stretches.last_mut() {
                Some(stretch) if end == Some(u64::from(from)) => stretch.push(part),
                _ => stretches.push(vec![part]),
            }
            end = Some(u64::from(from) + part.len);
        }
        stretches
    }

    /// The longest request that needs no growth, in bytes, beside what is free in one range: on the stream that can have most. Whatever streams keep for
    /// themselves, a request at the limit gives back what is wholly free in any pool.
    fn largest_request<D: Driver>(&self, pools: &[Arc<Pool<D>>]) -> u64 {
        let free = self.here().filter(|slot| slot.is_free()).map(|slot| u64::from(slot.len()));
        let budget = self.spare / GRANULE_BYTES + free.sum::<u64>();
        let mut best = budget;
        let numbers: HashMap<Owner, usize> =
            pools.iter().enumerate().map(|(at, pool)| (pool.owner(Kind::Large), at)).collect();
        for window in self.windows.iter().filter(|window| !window.view.closed) {
            let Some(&pool) = numbers.get(&window.view.owner) else { continue };
            for stretch in self.stretches(window, pool) {
                let from_both = longest(stretch.iter(), budget).max(longest(stretch.iter().rev(), budget));
                best = best.max(from_both);
            }
        }
        best * GRANULE_BYTES
    }

    fn report<D: Driver>(&self, of: &Windows<D>) -> PhysicalReport {
        let stats = of.stats();
        let mut report = PhysicalReport {
            handles: stats.handles,
            handle_bytes: stats.bytes,
            handles_created: stats.created,
            handles_released: stats.released,
            spare_handles: stats.spares,
            spare_bytes: stats.spare,
            moves: stats.moved,
            moves_in_use: stats.second_mappings,
            windows: stats.windows,
            window_bytes: stats.window_bytes,
            reserved_addresses: stats.reserved_addresses,
            ..PhysicalReport::default()
        };
        for window in &self.windows {
            report.mappings += window.slots.len() as u64;
            for slot in window.slots.iter().filter(|slot| slot.mapping == Mapping::Former) {
                report.former_places += 1;
                report.former_bytes += u64::from(slot.len()) * GRANULE_BYTES;
            }
            for (from, to) in window.holes(|_| true) {
                let bytes = u64::from(to - from) * GRANULE_BYTES;
                report.holes += 1;
                report.hole_bytes += bytes;
                report.largest_hole = report.largest_hole.max(bytes);
            }
        }
        report
    }
}

/// Adds the ranges of all pools, and sorts them by place.
fn gather<D: Driver>(pools: &[Arc<Pool<D>>], windows_only: bool, ranges: &mut Vec<Range>) {
    for (at, pool) in pools.iter().enumerate() {
        each_range(&**pool, windows_only, |segment, range| {
            let (from, to) = (range.offset.0, range.offset.0 + range.len.0);
            ranges.push(Range { segment, from, to, state: range.state, pool: at });
        });
    }
    ranges.sort_unstable_by_key(|range| (range.segment, range.from));
}

/// The windows by number, with their mappings and nothing counted.
fn windows<D: Driver>(of: &Windows<D>) -> Vec<Window> {
    let mut all: Vec<Window> = Vec::new();
    loop {
        let last = all.last().map(|window| window.view.id);
        let views: Vec<WindowView> = of.lock().windows_behind(last).take(cost::piece(PIECE)).collect();
        if views.is_empty() {
            break;
        }
        all.extend(views.into_iter().map(|view| Window { view, slots: Vec::new() }));
    }
    for Window { view, slots } in &mut all {
        loop {
            let from = slots.last().map_or(0, |slot: &Slot| slot.to);
            let records = of.lock();
            let rest = Granules(view.len.0.saturating_sub(from));
            let some = records.slots_in(view.id, Granules(from), rest).take(cost::piece(PIECE));
            let before = slots.len();
            for slot in some.filter(|slot| slot.offset.0 >= from) {
                let may_go = || {
                    let handle = records.handle(slot.handle);
                    handle.is_some_and(|handle| handle.state == HandleState::Mapped && handle.holds == 0)
                };
                let mapping = match slot.state {
                    SlotState::Here => Mapping::Here { may_go: may_go() },
                    SlotState::Arriving => Mapping::Arriving,
                    SlotState::Draining(_) | SlotState::Leaving => Mapping::Former,
                };
                slots.push(Slot {
                    from: slot.offset.0,
                    to: slot.offset.0 + slot.len.0,
                    mapping,
                    live: 0,
                    in_flight: 0,
                    free: 0,
                    held_back: false,
                });
            }
            if slots.len() == before {
                break;
            }
        }
    }
    all
}

/// What a report says of what lies where.
pub(super) struct Figures {
    pub(super) sparse: Sparse,
    pub(super) largest_request: u64,
    pub(super) physical: Option<PhysicalReport>,
}

impl<D: Driver> Core<D> {
    /// The figures of these pools, whose reports are there.
    pub(super) fn figures(&self, pools: &[Arc<Pool<D>>], reports: &[PoolReport]) -> Figures {
        let longest_free = reports.iter().map(|r| r.largest_free).max().unwrap_or(0);
        let mut figures =
            Figures { sparse: self.sparse_segments(pools), largest_request: longest_free, physical: None };
        if let Some(of) = &self.windows {
            let census = Census::of(of, pools);
            for slot in census.here() {
                let [bytes, live] = [slot.len(), slot.live].map(|n| u64::from(n) * GRANULE_BYTES);
                figures.sparse.add(bytes, live);
            }
            if of.is_usable() {
                // What a stream left that is gone serves small requests, and long ones by whole handles.
                let most = |closed| if closed { self.small_bytes } else { u64::MAX };
                let longest = reports.iter().map(|r| r.largest_free.min(most(r.closed))).max();
                figures.largest_request = longest.unwrap_or(0).max(census.largest_request(pools));
            }
            figures.physical = Some(census.report(of));
        }
        figures
    }

    /// Plain segments of which less than half is live: what is neither free nor in flight is.
    fn sparse_segments(&self, pools: &[Arc<Pool<D>>]) -> Sparse {
        let mut live: HashMap<SegmentId, (u64, u64)> = HashMap::new();
        for pool in pools {
            each_segment(&**pool, |segment| {
                let of = live.entry(segment.id).or_insert((segment.len.bytes(), 0));
                of.1 += segment.here.bytes() - segment.free.bytes();
            });
            each_in_flight(&**pool, |segment, len| {
                if let Some(of) = live.get_mut(&segment) {
                    of.1 = of.1.saturating_sub(len.bytes());
                }
            });
        }
        let mut sparse = Sparse::default();
        let all: Vec<(SegmentId, (u64, u64))> = live.into_iter().collect();
        for some in all.chunks(cost::piece(PIECE)) {
            let backing = self.backing.lock();
            let plain = some.iter().filter(|(id, _)| backing.segments.contains_key(id));
            plain.for_each(|&(_, (bytes, live))| sparse.add(bytes, live));
        }
        sparse
    }

    /// The bytes of handles that a trim would give back when the work queued on them is complete, and of those for which this holds once nothing is in
    /// flight.
    pub(super) fn idle_handles(&self, pools: &[Arc<Pool<D>>]) -> (u64, u64) {
        let Some(of) = &self.windows else { return (0, 0) };
        let mut census = Census::of(of, pools);
        for pool in pools {
            pool.for_free_held_back(|range| census.hold_back(&range));
        }
        census.idle()
    }

    /// A map of everything, range by range.
    pub(super) fn memory_map(&self) -> MemoryMap {
        let pools = self.pool_list();
        let mut ranges = Vec::new();
        gather(&pools, false, &mut ranges);
        let streams: Vec<StreamId> = pools.iter().map(|pool| pool.timeline.info.id).collect();
        let mut segments: BTreeMap<SegmentId, MapSegment> = BTreeMap::new();
        for pool in &pools {
            each_segment(&**pool, |SegmentView { id, base, len, kind, .. }| {
                let small = kind == Kind::Small;
                segments.entry(id).or_insert_with(|| MapSegment {
                    id,
                    addr: base,
                    bytes: len.bytes(),
                    small,
                    ..MapSegment::default()
                });
            });
        }
        let mapped = self.windows.as_ref().map_or_else(Vec::new, windows);
        let mut owners: HashMap<Owner, (StreamId, bool)> = HashMap::new();
        for (pool, &stream) in pools.iter().zip(&streams) {
            owners.extend(Kind::ALL.map(|kind| (pool.owner(kind), (stream, kind == Kind::Small))));
        }
        for WindowView { id, base, len, owner, closed } in mapped.iter().map(|window| window.view) {
            let of = owners.get(&owner);
            let small = of.map_or_else(|| segments.get(&id).is_some_and(|known| known.small), |of| of.1);
            let stream = of.filter(|_| !closed).map(|of| of.0);
            let (bytes, ranges) = (len.bytes(), Vec::new());
            segments.insert(id, MapSegment { id, addr: base, bytes, window: true, small, stream, ranges });
        }
        for (&id, segment) in &mut segments {
            let first = ranges.partition_point(|range: &Range| range.segment < id);
            let own: Vec<Range> =
                ranges[first..].iter().take_while(|range| range.segment == id).copied().collect();
            let window = mapped.binary_search_by_key(&id, |window| window.view.id).ok().map(|at| &mapped[at]);
            let len = (segment.bytes / GRANULE_BYTES) as u32;
            let mut to = Laid { segment, end: 0, streams: &streams };
            match window {
                None => to.pools(0, len, &own),
                Some(window) => {
                    for slot in &window.slots {
                        to.plain(slot.from, RangeState::Hole);
                        match slot.mapping {
                            Mapping::Former => to.plain(slot.to, RangeState::FormerPlace),
                            Mapping::Here { .. } | Mapping::Arriving => to.pools(slot.from, slot.to, &own),
                        }
                    }
                    to.plain(len, RangeState::Hole);
                }
            }
        }
        MemoryMap { segments: segments.into_values().collect() }
    }
}

/// A segment of a map whose ranges are laid one behind the other.
struct Laid<'a> {
    segment: &'a mut MapSegment,
    /// The end of what is laid, in granules.
    end: u32,
    streams: &'a [StreamId],
}

impl Laid<'_> {
    /// Up to `to`, in one state and of nobody.
    fn plain(&mut self, to: u32, state: RangeState) {
        self.lay(to, state, None);
    }

    /// What pools have of `from..to`; what none has is moving.
    fn pools(&mut self, from: u32, to: u32, own: &[Range]) {
        let first = own.partition_point(|range| range.to <= from);
        for range in own[first..].iter().take_while(|range| range.from < to) {
            self.lay(range.from.max(from), RangeState::Moving, None);
            let state = match range.state {
                ChunkState::Allocated => RangeState::Live,
                ChunkState::InFlight => RangeState::InFlight,
                ChunkState::Free => RangeState::Free,
                ChunkState::Absent => RangeState::Moving,
            };
            // An allocation that goes on from one handle to the next is one range.
            let goes_on = state == RangeState::Live && range.from < from;
            let stream = Some(self.streams[range.pool]);
            match self.segment.ranges.last_mut().filter(|_| goes_on) {
                Some(last) => {
                    last.bytes += u64::from(range.to.min(to).saturating_sub(self.end)) * GRANULE_BYTES;
                    self.end = self.end.max(range.to.min(to));
                }
                None => self.lay(range.to.min(to), state, stream),
            }
        }
        self.lay(to, RangeState::Moving, None);
    }

    fn lay(&mut self, to: u32, state: RangeState, stream: Option<StreamId>) {
        if to <= self.end {
            return;
        }
        let (offset, bytes) = (u64::from(self.end) * GRANULE_BYTES, u64::from(to - self.end) * GRANULE_BYTES);
        match self.segment.ranges.last_mut() {
            // A live range is one allocation, and is not joined with its neighbour.
            Some(last) if (last.state, last.stream) == (state, stream) && state != RangeState::Live => {
                last.bytes += bytes;
            }
            _ => self.segment.ranges.push(MapRange { offset, bytes, state, stream }),
        }
        self.end = to;
    }
}
