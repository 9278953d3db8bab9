//! The state machine: the naive model predicts each operation exactly, every invariant is checked after each step, and the slots are compared with
//! what the device has mapped.
//!
//! The device is as strict as a driver: it refuses to map over a mapping, to unmap what is not mapped, and to release a handle that is mapped. The
//! programs interleave the work of several threads wherever the operations allow it.

use super::naive::{At, LONGEST, No, Records, STEP, Stage, What};
use millpond_core::order::{Pending, PendingSet, TimelineId};
use millpond_core::physical::{
    AddrRange, BusyHandle, HandleId, HandleState, Hold, LeavingSlot, MOST_FORMER, NoWindow, Owner, Physical,
    SlotState, UNIT, Unavailable, WINDOW_BYTES, WindowPosition,
};
use millpond_driver::units::{Addr, Epoch, Granules, MIB, SegmentId};
use proptest::prelude::*;
use proptest::sample::select;
use proptest_state_machine::{ReferenceStateMachine, StateMachineTest, prop_state_machine};
use std::collections::BTreeMap;

const UNIT_BYTES: u64 = 2 * MIB;

/// The possible reservations: first address and length, in units. The first two are adjacent, the third is not aligned, the fourth is too short
/// for a window.
const ARENAS: [(u64, u64); 4] =
    [(256 * 16, 256 * 3), (256 * 19, 256 * 2 + 7), (256 * 40 + 1, 256 * 5), (9, 300)];

/// The aligned part of an arena, in steps: the first, and the one after the last.
fn usable((base, len): (u64, u64)) -> (u64, u64) {
    let step = u64::from(STEP);
    let first = base.div_ceil(step);
    (first, ((base + len) / step).max(first))
}

#[derive(Clone, Debug)]
enum Op {
    Reserve(usize),
    Unreserve,
    Window {
        id: u32,
        owner: u64,
        need: u32,
    },
    Close(u64),
    RemoveWindow(u32),
    Create(u32),
    TakeSpare(Option<u32>),
    Begin(u64),
    /// To move it only.
    BeginMove(u64),
    StartMap(u64, At),
    /// Ends as `mapped` or `moved`.
    Map(u64),
    MapFailed(u64),
    MapStuck(u64),
    PutBack(u64),
    Detach(u64),
    Spare(u64),
    Release(u64),
    Drained {
        most: usize,
        complete: u64,
    },
    Unmapped(At),
    Drain(At, u64),
    Hold {
        window: u32,
        offset: u32,
        len: u32,
    },
    Unhold(u32),
    /// Queries about a range, in granules.
    Look {
        owner: u64,
        window: u32,
        offset: u32,
        len: u32,
    },
    Seen {
        handle: u64,
        now: Option<u64>,
    },
}

/// What the operation just done returns, by the naive model.
#[derive(Clone, Debug)]
enum Expected {
    Nothing,
    Window(u64, Option<u64>),
    Arena(Option<usize>),
    Handle(Option<u64>),
    Begun(Result<(), No>),
    Left(Vec<At>),
    Held(Result<u32, No>),
    Since(u64),
}

#[derive(Clone, Debug)]
struct State {
    records: Records,
    arenas: Vec<usize>,
    windows: u32,
    expected: Expected,
}

struct Naive;

impl State {
    fn busy(&self) -> Vec<u64> {
        self.records.handles.keys().copied().filter(|&h| self.records.is_busy(h)).collect()
    }
    fn leaving(&self) -> Vec<At> {
        self.records.mappings.iter().filter(|m| m.what == What::Leaving).map(|m| m.at).collect()
    }
    /// Sorts arenas by address, in the naive model too.
    fn sort(&mut self) {
        self.arenas.sort_by_key(|&a| ARENAS[a].0);
        self.records.arenas = self.arenas.iter().map(|&a| usable(ARENAS[a])).collect();
    }
}

type Weighted = (u32, BoxedStrategy<Op>);

/// The operations on handles that threads work on.
fn of_busy(state: &State, all: &mut Vec<Weighted>) {
    let records = &state.records;
    let mut is = |weight: u32, of: &dyn Fn(u64) -> bool, op: fn(u64) -> Op| {
        let those: Vec<u64> = state.busy().into_iter().filter(|&h| of(h)).collect();
        if !those.is_empty() {
            all.push((weight, select(those).prop_map(op).boxed()));
        }
    };
    let arriving = |h: u64| records.arriving(h).is_some();
    is(8, &arriving, Op::Map);
    is(2, &arriving, Op::MapFailed);
    is(1, &arriving, Op::MapStuck);
    is(2, &|h| records.may_put_back(h), Op::PutBack);
    is(2, &|h| records.may_put_back(h), Op::Detach);
    is(2, &|h| records.may_spare(h), Op::Spare);
    is(1, &|h| records.may_release(h), Op::Release);
    let mappable: Vec<u64> = state.busy().into_iter().filter(|&h| records.may_arrive(h)).collect();
    let open: Vec<(u32, u32)> = records
        .windows
        .iter()
        .filter(|(_, w)| !w.closed)
        .flat_map(|(&id, _)| records.holes(id, 0, u32::MAX).into_iter().map(move |(from, to)| (id, from, to)))
        .flat_map(|(id, from, to)| [(id, from), (id, from.midpoint(to))])
        .collect();
    if !mappable.is_empty() && !open.is_empty() {
        let start = (select(mappable), select(open)).prop_map(|(handle, at)| Op::StartMap(handle, at));
        all.push((12, start.boxed()));
    }
}

impl ReferenceStateMachine for Naive {
    type State = State;
    type Transition = Op;

    fn init_state() -> BoxedStrategy<State> {
        let mut state =
            State { records: Records::default(), arenas: vec![0], windows: 1, expected: Expected::Nothing };
        state.sort();
        state.records.add_window(0, 0, 1);
        Just(state).boxed()
    }

    fn transitions(state: &State) -> BoxedStrategy<Op> {
        let records = &state.records;
        let units = || select(vec![1_u32, 1, 1, 2, 2, 4, 8, 32, 100, 128]);
        let owner = 0_u64..3;
        let id = state.windows;
        let window = (owner.clone(), prop_oneof![6 => Just(1_u32), 1 => 1_u32..700])
            .prop_map(move |(owner, need)| Op::Window { id, owner, need });
        let known = 0..state.windows;
        let range = (known, 0_u32..300 * UNIT.0, 0_u32..300 * UNIT.0, any::<bool>()).prop_map(
            |(window, offset, len, short)| (window, offset, if short { len % (4 * UNIT.0) } else { len }),
        );
        let look = (owner.clone(), range.clone()).prop_map(|(owner, (window, offset, len))| Op::Look {
            owner,
            window,
            offset,
            len,
        });
        let drained = (0_usize..4, 0_u64..6).prop_map(|(most, complete)| Op::Drained { most, complete });
        let spare = prop_oneof![Just(None), units().prop_map(Some)].prop_map(Op::TakeSpare);
        let mut all: Vec<Weighted> = vec![
            (1, Just(Op::Unreserve).boxed()),
            (2, window.boxed()),
            (1, owner.prop_map(Op::Close).boxed()),
            (6, units().prop_map(Op::Create).boxed()),
            (3, spare.boxed()),
            (3, drained.boxed()),
            (2, look.boxed()),
        ];
        let missing: Vec<usize> = (0..ARENAS.len()).filter(|a| !state.arenas.contains(a)).collect();
        if !missing.is_empty() {
            all.push((1, select(missing).prop_map(Op::Reserve).boxed()));
        }
        of_busy(state, &mut all);
        if records.next > 0 {
            // Released ones too.
            all.push((3, (0..records.next).prop_map(Op::Begin).boxed()));
            all.push((6, (0..records.next).prop_map(Op::BeginMove).boxed()));
            let seen = (0..records.next, prop::option::of(0_u64..50));
            all.push((1, seen.prop_map(|(handle, now)| Op::Seen { handle, now }).boxed()));
        }
        let mapped: Vec<At> = records.mappings.iter().map(|m| m.at).collect();
        if !mapped.is_empty() {
            let len = prop_oneof![0..3 * UNIT.0, 0..12 * UNIT.0];
            let near = (select(mapped), 0_u32..2 * UNIT.0, len).prop_map(|(at, skip, len)| {
                // From the unit before it on.
                let offset = (at.1 * UNIT.0 + skip).saturating_sub(UNIT.0);
                Op::Hold { window: at.0, offset, len }
            });
            all.push((2, near.boxed()));
        }
        let leaving = state.leaving();
        if !leaving.is_empty() {
            let one = select(leaving);
            let drain = (one.clone(), 0_u64..6).prop_map(|(at, until)| Op::Drain(at, until));
            all.extend([(2, one.prop_map(Op::Unmapped).boxed()), (3, drain.boxed())]);
        }
        let retired = records.retired();
        if !retired.is_empty() {
            all.push((2, select(retired).prop_map(Op::RemoveWindow).boxed()));
        }
        let holds: Vec<u32> = records.holds.keys().copied().collect();
        if !holds.is_empty() {
            all.push((2, select(holds).prop_map(Op::Unhold).boxed()));
        }
        proptest::strategy::Union::new_weighted(all).boxed()
    }

    fn preconditions(state: &State, op: &Op) -> bool {
        let records = &state.records;
        match *op {
            Op::Reserve(arena) => !state.arenas.contains(&arena),
            Op::Window { id, .. } => id == state.windows,
            Op::RemoveWindow(id) => records.retired().contains(&id),
            Op::StartMap(handle, at) => records.may_start_map(handle, at),
            Op::Map(h) | Op::MapFailed(h) | Op::MapStuck(h) => {
                records.is_busy(h) && records.arriving(h).is_some()
            }
            Op::PutBack(h) | Op::Detach(h) => records.may_put_back(h),
            Op::Spare(h) => records.may_spare(h),
            Op::Release(h) => records.may_release(h),
            Op::Unmapped(at) | Op::Drain(at, _) => records.is_leaving(at),
            Op::Unhold(n) => records.holds.contains_key(&n),
            Op::Unreserve
            | Op::Close(_)
            | Op::Create(_)
            | Op::TakeSpare(_)
            | Op::Begin(_)
            | Op::BeginMove(_)
            | Op::Drained { .. }
            | Op::Hold { .. }
            | Op::Look { .. }
            | Op::Seen { .. } => true,
        }
    }

    fn apply(mut state: State, op: &Op) -> State {
        let records = &mut state.records;
        let mut expected = Expected::Nothing;
        match *op {
            Op::Reserve(arena) => {
                state.arenas.push(arena);
                state.sort();
            }
            Op::Unreserve => {
                let found = records.unused_arena().map(|at| state.arenas.remove(at));
                expected = Expected::Arena(found);
                state.sort();
            }
            Op::Window { id, owner, need } => {
                let (steps, base) = records.add_window(id, owner, need);
                state.windows += 1;
                expected = Expected::Window(steps, base);
            }
            Op::Close(owner) => records.close(owner),
            Op::RemoveWindow(id) => drop(records.windows.remove(&id)),
            Op::Create(units) => expected = Expected::Handle(Some(records.create(units))),
            Op::TakeSpare(units) => expected = Expected::Handle(records.take_spare(units)),
            Op::Begin(handle) => expected = Expected::Begun(records.begin(handle, 0)),
            Op::BeginMove(handle) => {
                expected = Expected::Begun(records.begin(handle, MOST_FORMER - 1));
            }
            Op::StartMap(handle, at) => records.start_map(handle, at),
            Op::Map(handle) => expected = Expected::Left(records.finish_map(handle).into_iter().collect()),
            Op::MapFailed(handle) => records.map_failed(handle),
            Op::MapStuck(handle) => expected = Expected::Left(vec![records.map_stuck(handle)]),
            Op::PutBack(handle) => records.put_back(handle),
            Op::Detach(handle) => expected = Expected::Left(vec![records.detach(handle)]),
            Op::Spare(handle) => records.spare(handle),
            Op::Release(handle) => records.release(handle),
            Op::Drained { most, complete } => expected = Expected::Left(records.drained(most, complete)),
            Op::Unmapped(at) => records.unmapped(at),
            Op::Drain(at, until) => records.drain(at, until),
            Op::Hold { window, offset, len } => {
                let to = if len == 0 { 0 } else { (offset + len).div_ceil(UNIT.0) };
                expected = Expected::Held(records.hold(window, offset / UNIT.0, to));
            }
            Op::Unhold(n) => drop(records.holds.remove(&n)),
            Op::Look { .. } => {}
            Op::Seen { handle, now } => {
                if let Some(handle) = records.handles.get_mut(&handle) {
                    match now {
                        Some(now) => expected = Expected::Since(*handle.free_since.get_or_insert(now)),
                        None => handle.free_since = None,
                    }
                }
            }
        }
        state.expected = expected;
        state
    }
}

/// The handle and the length at each mapped address, and the length of each handle.
#[derive(Default)]
struct Device {
    mapped: BTreeMap<u64, (u64, u64)>,
    handles: BTreeMap<u64, u64>,
}

impl Device {
    fn map(&mut self, addr: Addr, handle: u64) {
        let bytes = self.handles[&handle];
        let below = self.mapped.range(..addr.0 + bytes).next_back();
        assert!(below.is_none_or(|(at, (_, len))| at + len <= addr.0), "mapped over {below:?}");
        self.mapped.insert(addr.0, (handle, bytes));
        let twice = self.mapped.values().filter(|m| m.0 == handle).count();
        assert!(twice <= MOST_FORMER + 1, "handle {handle} is mapped {twice} times");
    }
    fn unmap(&mut self, addr: Addr, bytes: u64) {
        assert_eq!(self.mapped.remove(&addr.0).map(|m| m.1), Some(bytes), "unmapped at {addr}");
    }
    fn release(&mut self, handle: u64) {
        assert!(self.mapped.values().all(|m| m.0 != handle), "handle {handle} is released but mapped");
        assert!(self.handles.remove(&handle).is_some());
    }
}

/// The records, the values of the threads that work on handles and slots, and the device.
struct Real {
    physical: Physical<u64>,
    busy: BTreeMap<u64, BusyHandle>,
    leaving: BTreeMap<At, LeavingSlot>,
    holds: BTreeMap<u32, Hold>,
    device: Device,
}

fn addr(units: u64) -> Addr {
    Addr(units * UNIT_BYTES)
}
fn reservation(arena: usize) -> AddrRange {
    let (base, units) = ARENAS[arena];
    AddrRange { base: addr(base), bytes: units * UNIT_BYTES }
}
fn place((window, unit): At) -> WindowPosition {
    WindowPosition { segment: SegmentId(window), unit }
}
fn at(place: WindowPosition) -> At {
    (place.segment.0, place.unit)
}
fn until(epoch: u64) -> PendingSet {
    let some = (epoch > 0).then_some(Pending { on: TimelineId(0), epoch: Epoch(epoch) });
    some.into_iter().collect()
}
fn no(why: Unavailable) -> No {
    match why {
        Unavailable::Gone => No::Gone,
        Unavailable::Spare => No::Spare,
        Unavailable::Busy => No::Busy,
        Unavailable::Held => No::Held,
        Unavailable::Draining => No::Draining,
        Unavailable::Absent => No::Absent,
    }
}

impl Real {
    fn begun(&mut self, begun: Result<BusyHandle, Unavailable>, handle: u64, expected: Result<(), No>) {
        assert_eq!(begun.as_ref().map(|_| ()).map_err(|&why| no(why)), expected);
        if let Ok(busy) = begun {
            self.take(Some(busy), Some(handle));
        }
    }
    fn addr_of(&self, (window, unit): At) -> Addr {
        let base = self.physical.window(SegmentId(window)).expect("a window").base;
        base.offset(Granules(unit * UNIT.0))
    }
    fn leaves(&mut self, slots: Vec<LeavingSlot>, expected: &[At]) {
        assert_eq!(slots.iter().map(|slot| at(slot.place())).collect::<Vec<_>>(), expected);
        for slot in slots {
            assert_eq!(slot.addr(), self.addr_of(at(slot.place())));
            self.leaving.insert(at(slot.place()), slot);
        }
    }
    fn take(&mut self, busy: Option<BusyHandle>, expected: Option<u64>) {
        assert_eq!(busy.as_ref().map(|busy| busy.id().0), expected);
        if let Some(busy) = busy {
            assert!(self.busy.insert(busy.id().0, busy).is_none(), "two threads work on it");
        }
    }

    /// Runs an operation on a handle that a thread works on.
    fn with_busy(&mut self, state: &State, op: &Op) {
        match (op, &state.expected) {
            (&Op::StartMap(handle, to), _) => {
                let found = self.physical.start_map(&self.busy[&handle], place(to));
                assert_eq!(found, self.addr_of(to));
            }
            (&Op::Map(handle), Expected::Left(left)) => {
                let busy = self.busy.remove(&handle).unwrap();
                let to = state.records.here(handle).unwrap();
                self.device.map(self.addr_of(to), handle);
                if left.is_empty() {
                    self.physical.mapped(busy);
                } else {
                    let slot = self.physical.moved(busy);
                    self.leaves(vec![slot], left);
                }
            }
            (&Op::MapFailed(handle), _) => self.physical.map_failed(&self.busy[&handle]),
            (&Op::MapStuck(handle), Expected::Left(at)) => {
                self.device.map(self.addr_of(at[0]), handle);
                self.physical.map_stuck(&self.busy[&handle]);
            }
            (&Op::PutBack(handle), _) => {
                let busy = self.busy.remove(&handle).unwrap();
                self.physical.put_back(busy);
            }
            (&Op::Detach(handle), Expected::Left(at)) => {
                let bytes = self.device.handles[&handle];
                self.device.unmap(self.addr_of(at[0]), bytes);
                self.physical.detached(&self.busy[&handle]);
            }
            (&Op::Spare(handle), _) => {
                let busy = self.busy.remove(&handle).unwrap();
                self.physical.spare(busy);
            }
            (&Op::Release(handle), _) => {
                let busy = self.busy.remove(&handle).unwrap();
                assert_eq!(self.physical.to_release(&busy), Some(handle));
                let bytes = self.device.handles[&handle];
                self.device.release(handle);
                assert_eq!(self.physical.released(busy).bytes(), bytes);
            }
            (op, expected) => panic!("{op:?} gives {expected:?}"),
        }
    }

    /// Compares the queries about a range.
    fn look(&self, state: &State, owner: u64, window: u32, offset: u32, len: u32) {
        let (id, owner) = (SegmentId(window), Owner(owner));
        let (o, l) = (Granules(offset), Granules(len));
        let holes: Vec<_> = self.physical.holes(owner, id, o, l).map(|(o, l)| (o.0, l.0)).collect();
        let slots: Vec<_> =
            self.physical.slots_in(id, o, l).map(|s| (s.offset.0 / UNIT.0, s.handle.0)).collect();
        let is_hole = self.physical.is_hole(owner, id, o, l);
        let Some(w) = state.records.windows.get(&window) else {
            assert!(holes.is_empty() && slots.is_empty() && !is_hole);
            return;
        };
        let own = w.owner == owner.0 && !w.closed;
        let inside = state.records.holes(window, offset.div_ceil(UNIT.0), (offset + len) / UNIT.0);
        let inside: Vec<_> = inside.iter().map(|&(a, b)| (a * UNIT.0, (b - a) * UNIT.0)).collect();
        assert_eq!(holes, if own { inside } else { Vec::new() });
        let (from, to) = (offset / UNIT.0, (offset + len).div_ceil(UNIT.0));
        let over = (from..to).filter_map(|unit| state.records.over((window, unit)));
        let mut known: Vec<_> = over.map(|m| (m.at.1, m.handle)).collect();
        known.dedup();
        assert_eq!(is_hole, own && known.is_empty());
        assert_eq!(slots, known);
        let here = |&&(first, handle): &&(u32, u64)| state.records.here(handle) == Some((window, first));
        let held = known.iter().filter(here).any(|&(_, handle)| state.records.is_held(handle));
        assert_eq!(self.physical.is_held(id, o, l), held);
    }
}

impl StateMachineTest for Real {
    type SystemUnderTest = Real;
    type Reference = Naive;

    fn init_test(_: &State) -> Real {
        let mut physical = Physical::new(UNIT_BYTES, u64::from(LONGEST) * WINDOW_BYTES).unwrap();
        physical.add_arena(reservation(0));
        physical.add_window(SegmentId(0), Owner(0), UNIT).unwrap();
        let device = Device::default();
        Real { physical, busy: BTreeMap::new(), leaving: BTreeMap::new(), holds: BTreeMap::new(), device }
    }

    fn apply(mut real: Real, state: &State, op: Op) -> Real {
        match (op, &state.expected) {
            (Op::Reserve(arena), _) => real.physical.add_arena(reservation(arena)),
            (Op::Unreserve, Expected::Arena(found)) => {
                assert_eq!(real.physical.take_unused_arena(), found.map(reservation));
            }
            (Op::Window { id, owner, need }, &Expected::Window(steps, base)) => {
                let got = real.physical.add_window(SegmentId(id), Owner(owner), Granules(need * UNIT.0));
                match base {
                    Some(base) => {
                        let view = got.expect("an arena has a gap");
                        assert_eq!(view.base, addr(base * u64::from(STEP)));
                        assert_eq!(view.len.bytes(), steps * WINDOW_BYTES);
                    }
                    None => assert_eq!(got, Err(NoWindow::Reserve((steps + 1) * WINDOW_BYTES))),
                }
            }
            (Op::Close(owner), _) => real.physical.close(Owner(owner)),
            (Op::RemoveWindow(id), _) => real.physical.remove_window(SegmentId(id)),
            (Op::Create(units), &Expected::Handle(handle)) => {
                let native = handle.unwrap();
                real.device.handles.insert(native, u64::from(units) * UNIT_BYTES);
                let busy = real.physical.created(native, Granules(units * UNIT.0));
                real.take(Some(busy), handle);
            }
            (Op::TakeSpare(units), &Expected::Handle(handle)) => {
                let busy = match units {
                    Some(units) => real.physical.take_spare(Granules(units * UNIT.0)),
                    None => real.physical.take_any_spare(),
                };
                real.take(busy, handle);
            }
            (Op::Begin(handle), Expected::Begun(expected)) => {
                let begun = real.physical.begin(HandleId(handle));
                real.begun(begun, handle, *expected);
            }
            (Op::BeginMove(handle), Expected::Begun(expected)) => {
                let begun = real.physical.begin_move(HandleId(handle));
                real.begun(begun, handle, *expected);
            }
            (Op::Drained { most, complete }, Expected::Left(left)) => {
                let over = |uses: &PendingSet| uses.iter().all(|p| p.epoch.0 <= complete);
                let slots = real.physical.drained(most, over);
                real.leaves(slots, left);
            }
            (Op::Unmapped(at), _) => {
                let slot = real.leaving.remove(&at).unwrap();
                real.device.unmap(slot.addr(), slot.bytes());
                real.physical.unmapped(slot);
            }
            (Op::Drain(at, epoch), _) => {
                let slot = real.leaving.remove(&at).unwrap();
                real.physical.drain(slot, until(epoch));
            }
            (Op::Hold { window, offset, len }, Expected::Held(expected)) => {
                let hold = real.physical.hold(SegmentId(window), Granules(offset), Granules(len));
                assert_eq!(hold.as_ref().map(|_| ()).map_err(|&why| no(why)), expected.map(|_| ()));
                if let (Ok(hold), Ok(n)) = (hold, expected) {
                    assert_eq!(hold.handles(), state.records.holds[n].len());
                    real.holds.insert(*n, hold);
                }
            }
            (Op::Unhold(n), _) => {
                let hold = real.holds.remove(&n).unwrap();
                real.physical.unhold(hold);
            }
            (Op::Look { owner, window, offset, len }, _) => real.look(state, owner, window, offset, len),
            (Op::Seen { handle, now: None }, _) => real.physical.seen_used(HandleId(handle)),
            (Op::Seen { handle, now: Some(now) }, expected) => {
                let since = if let Expected::Since(since) = *expected { since } else { now };
                assert_eq!(real.physical.seen_free(HandleId(handle), now), since);
            }
            (op, _) => real.with_busy(state, &op),
        }
        real
    }

    fn check_invariants(real: &Real, state: &State) {
        let (physical, naive) = (&real.physical, &state.records);
        physical.check();
        if real.busy.is_empty() && real.leaving.is_empty() {
            physical.check_at_rest();
        }
        let stats = physical.stats();
        let sums = [stats.bytes, stats.spare, stats.draining, stats.held].map(|bytes| bytes / UNIT_BYTES);
        assert_eq!(sums, naive.sums());
        let done = [stats.created, stats.released, stats.moved, stats.second_mappings, stats.stuck];
        assert_eq!(done, naive.done);
        assert_eq!(stats.handles as usize, naive.handles.len());
        assert_eq!(stats.bytes, real.device.handles.values().sum::<u64>(), "each handle counts once");
        assert_eq!(physical.draining(), naive.draining.len());
        let retired: Vec<u32> = physical.retired().map(|id| id.0).collect();
        assert_eq!(retired, naive.retired());
        let addresses: u64 = state.arenas.iter().map(|&a| reservation(a).bytes).sum();
        assert_eq!(stats.reserved_addresses, addresses);
        let windows: Vec<_> = physical.windows().map(|w| (w.id.0, w.base, w.owner.0, w.closed)).collect();
        let known = naive.windows.iter();
        let known: Vec<_> =
            known.map(|(&id, w)| (id, addr(w.base * u64::from(STEP)), w.owner, w.closed)).collect();
        assert_eq!(windows, known);
        // The slots are what the device has mapped.
        let (mut mapped, mut slots) = (BTreeMap::new(), 0);
        for w in physical.windows() {
            assert_eq!(physical.window_at(w.base.offset(Granules(w.len.0 - 1))), Some(w));
            for slot in physical.slots_in(w.id, Granules::ZERO, w.len) {
                let known = naive.at((w.id.0, slot.offset.0 / UNIT.0)).expect("a mapping");
                let what = match slot.state {
                    SlotState::Arriving => What::Arriving,
                    SlotState::Here => What::Here,
                    SlotState::Draining(uses) => What::Draining(uses.first().map_or(0, |p| p.epoch.0)),
                    SlotState::Leaving => What::Leaving,
                };
                assert_eq!((slot.handle.0, what), (known.handle, known.what));
                slots += 1;
                if what != What::Arriving {
                    mapped.insert(w.base.offset(slot.offset).0, (slot.handle.0, slot.len.bytes()));
                }
            }
        }
        assert_eq!(slots, naive.mappings.len());
        assert_eq!(mapped, real.device.mapped);
        for (&id, handle) in &naive.handles {
            let view = physical.handle(HandleId(id)).expect("it was not released");
            let state = match handle.state {
                Stage::Spare => HandleState::Spare,
                Stage::Busy => HandleState::Busy,
                Stage::Mapped => HandleState::Mapped,
            };
            assert_eq!((view.state, view.holds > 0), (state, naive.is_held(id)));
            assert_eq!((view.at.map(at), view.arriving.map(at)), (naive.here(id), naive.arriving(id)));
            assert_eq!(view.former, naive.former(id));
        }
    }

    fn teardown(mut real: Real, state: State) {
        let remains = real.physical.take_all();
        for range in remains.mappings {
            // An Arriving slot is not mapped yet.
            if real.device.mapped.contains_key(&range.base.0) {
                real.device.unmap(range.base, range.bytes);
            }
        }
        assert_eq!(remains.handles.len(), state.records.handles.len());
        for handle in remains.handles {
            real.device.release(handle);
        }
        let reservations: Vec<AddrRange> = state.arenas.iter().map(|&a| reservation(a)).collect();
        assert_eq!(remains.reservations, reservations);
        assert!(real.device.mapped.is_empty() && real.device.handles.is_empty());
        real.physical.check_at_rest();
    }
}

prop_state_machine! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn programs_match_the_naive_model(sequential 1..150 => Real);
}

prop_state_machine! {
    #![proptest_config(ProptestConfig { cases: 12, failure_persistence: None, ..ProptestConfig::default() })]

    /// Long enough that windows fill, owners close and spare handles accumulate.
    #[test]
    fn long_programs_match_the_naive_model(sequential 500..700 => Real);
}
