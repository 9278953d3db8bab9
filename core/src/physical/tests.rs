//! Tests that need private parts: every invariant can break; what each failing driver call leaves behind.

mod breaches;

use super::*;
use crate::order::{Pending, PendingSet, TimelineId};
use crate::units::{Addr, Epoch, GIB};

const S: SegmentId = SegmentId(7);
const OWNER: Owner = Owner(1);
const BASE: u64 = 1 << 40;

/// An arena of 2 GiB, and in it a window of 512 MiB.
fn memory() -> Physical<u32> {
    let mut memory = Physical::new(2 * MIB, GIB).expect("a granularity like any device's");
    memory.add_arena(AddrRange { base: Addr(BASE), bytes: 2 * GIB });
    memory.add_window(S, OWNER, UNIT).expect("there is a gap");
    memory.check_at_rest();
    memory
}

fn units(n: u32) -> Granules {
    Granules(n * UNIT.0)
}
fn at(unit: u32) -> WindowPosition {
    WindowPosition { segment: S, unit }
}
fn pending(epoch: u64) -> PendingSet {
    PendingSet::from_slice(&[Pending { on: TimelineId(1), epoch: Epoch(epoch) }])
}

/// A handle of `n` units, without a place.
fn create(memory: &mut Physical<u32>, n: u32) -> BusyHandle {
    memory.created(n, units(n))
}
/// A handle of `n` units, mapped at `unit`.
fn map(memory: &mut Physical<u32>, unit: u32, n: u32) -> HandleId {
    let busy = create(memory, n);
    let id = busy.id();
    memory.start_map(&busy, at(unit));
    memory.mapped(busy);
    id
}
/// Moves the handle to `unit`; returns the slot that it left.
fn move_to(memory: &mut Physical<u32>, id: HandleId, unit: u32) -> LeavingSlot {
    let busy = memory.begin(id).expect("it is mapped");
    memory.start_map(&busy, at(unit));
    memory.moved(busy)
}
fn holes(memory: &Physical<u32>) -> Vec<(u32, u32)> {
    let all = memory.holes(OWNER, S, Granules::ZERO, units(256));
    all.map(|(offset, len)| (offset.0 / UNIT.0, len.0 / UNIT.0)).collect()
}

#[test]
fn a_device_with_larger_granularity_has_larger_units() {
    for (granularity, unit) in [(0, None), (4096, Some(UNIT)), (2 * MIB, Some(UNIT)), (3 * MIB, None)] {
        assert_eq!(Physical::<u32>::new(granularity, GIB).map(|p| p.unit()), unit, "{granularity}");
    }
    let large = Physical::<u32>::new(64 * MIB, GIB).unwrap();
    assert_eq!(large.unit(), Granules(32 * UNIT.0));
    assert!(Physical::<u32>::new(GIB, GIB).is_none(), "no unit fits into a window");
    assert!(Physical::<u32>::new(1 << 63, GIB).is_none());
}

#[test]
fn windows_double_up_to_the_capacity_and_are_aligned() {
    let mut memory = Physical::<u32>::new(2 * MIB, GIB).unwrap();
    let reserve = NoWindow::Reserve(2 * WINDOW_BYTES);
    assert_eq!(memory.add_window(S, OWNER, UNIT), Err(reserve));
    // Not aligned: windows use neither the first nor the last addresses.
    memory.add_arena(AddrRange { base: Addr(BASE + 2 * MIB), bytes: 5 * GIB });
    let mut lens = Vec::new();
    for (id, need) in [(1, 1), (2, 1), (3, 1), (4, 600)] {
        match memory.add_window(SegmentId(id), OWNER, units(need)) {
            Ok(w) => {
                assert!(w.base.0.is_multiple_of(WINDOW_BYTES));
                lens.push(w.len.bytes() / WINDOW_BYTES);
            }
            Err(e) => panic!("{id}: {e:?}"),
        }
        memory.check_at_rest();
    }
    assert_eq!(lens, [1, 2, 2, 3], "the last is as long as its request");
    assert_eq!(memory.add_window(S, OWNER, Granules::MAX), Err(NoWindow::TooLong));
    let longest = Granules(u32::MAX / UNIT.0 / 256 * 256 * UNIT.0);
    assert!(matches!(memory.add_window(S, OWNER, longest), Err(NoWindow::Reserve(_))));
    assert_eq!(memory.window_at(Addr(BASE)), None);
    let first = memory.windows().next().unwrap();
    assert_eq!(memory.window_at(first.base.offset(units(255))), Some(first));
    assert_eq!(memory.take_unused_arena(), None);
}

#[test]
fn a_closed_owners_windows_go_when_the_last_slot_has_gone() {
    let mut memory = memory();
    let id = map(&mut memory, 3, 2);
    memory.add_window(SegmentId(8), Owner(2), UNIT).unwrap();
    memory.close(OWNER);
    memory.check_at_rest();
    assert_eq!(memory.retired().next(), None);
    assert!(holes(&memory).is_empty(), "the holes of a closed window are not filled");
    let busy = memory.begin(id).unwrap();
    memory.start_map(&busy, WindowPosition { segment: SegmentId(8), unit: 0 });
    let left = memory.moved(busy);
    assert_eq!(memory.retired().next(), None, "it has a slot");
    memory.unmapped(left);
    assert_eq!(memory.retired().collect::<Vec<_>>(), [S]);
    memory.remove_window(S);
    memory.close(Owner(2));
    memory.close(Owner(3));
    memory.check_at_rest();
    assert_eq!(memory.take_unused_arena(), None);
    let busy = memory.begin(id).unwrap();
    memory.detached(&busy);
    assert_eq!(memory.to_release(&busy), Some(2));
    assert_eq!(memory.released(busy), units(2));
    memory.remove_window(SegmentId(8));
    let arena = memory.take_unused_arena().unwrap();
    assert_eq!(arena, AddrRange { base: Addr(BASE), bytes: 2 * GIB });
    memory.check_at_rest();
    let stats = memory.stats();
    assert_eq!((stats.handles, stats.bytes, stats.windows, stats.reserved_addresses), (0, 0, 0, 0));
    assert_eq!((stats.created, stats.moved, stats.second_mappings, stats.released), (1, 1, 0, 1));
}

/// Numbers are never used twice, so a stale one does not name the next handle at the same place.
#[test]
fn a_stale_number_names_no_handle() {
    let mut memory = memory();
    let old = map(&mut memory, 0, 1);
    let busy = memory.begin(old).unwrap();
    memory.detached(&busy);
    memory.released(busy);
    let new = map(&mut memory, 0, 1);
    assert_ne!(old, new);
    assert_eq!(memory.begin(old), Err(Unavailable::Gone));
    assert_eq!(memory.handle(old), None);
    assert_eq!((memory.seen_free(old, 5), memory.seen_free(old, 6)), (5, 6), "no record of it is left");
}

/// While one thread works on a handle, the operations of others fail or see no hole.
#[test]
fn a_busy_handle_is_one_threads() {
    let mut memory = memory();
    let id = map(&mut memory, 0, 2);
    let busy = memory.begin(id).unwrap();
    assert_eq!(memory.begin(id), Err(Unavailable::Busy));
    assert_eq!(memory.hold(S, Granules::ZERO, UNIT), Err(Unavailable::Busy));
    assert_eq!(holes(&memory), [(2, 254)], "its place is no hole");
    memory.start_map(&busy, at(10));
    assert_eq!(holes(&memory), [(2, 8), (12, 244)], "nor is the place that it is mapped at");
    assert!(!memory.is_hole(OWNER, S, units(11), units(3)) && memory.is_hole(OWNER, S, units(12), units(3)));
    memory.map_failed(&busy);
    memory.put_back(busy);
    memory.check_at_rest();
    assert_eq!(holes(&memory), [(2, 254)]);
    assert!(!memory.is_hole(Owner(2), S, units(2), UNIT), "another owner's window");
    assert!(!memory.is_hole(OWNER, SegmentId(8), units(2), UNIT), "not a window");
}

/// A handle moves while uses through its old addresses are pending: it has its new place at once, is not released, and the old addresses
/// are no hole until the uses are over.
#[test]
fn a_former_place_drains() {
    let mut memory = memory();
    let id = map(&mut memory, 0, 2);
    let left = move_to(&mut memory, id, 4);
    assert_eq!((left.place(), left.addr(), left.bytes()), (at(0), Addr(BASE), 4 * MIB));
    memory.drain(left, pending(3));
    memory.check_at_rest();
    assert_eq!(memory.begin(id), Err(Unavailable::Draining));
    assert_eq!(holes(&memory), [(2, 2), (6, 250)]);
    assert_eq!(memory.stats().draining, 4 * MIB);
    assert_eq!(memory.stats().bytes, 4 * MIB, "the handle counts once");
    assert!(memory.drained(4, |_| false).is_empty());
    let [left] = <[_; 1]>::try_from(memory.drained(4, |uses| uses[..] == pending(3)[..])).unwrap();
    assert!(memory.drained(4, |_| true).is_empty(), "no other thread gets it");
    assert_eq!(memory.begin(id), Err(Unavailable::Draining));
    // The driver could not unmap it: it is returned again.
    memory.drain(left, PendingSet::new());
    memory.check_at_rest();
    let [left] = <[_; 1]>::try_from(memory.drained(4, PendingSet::is_empty)).unwrap();
    memory.unmapped(left);
    memory.check_at_rest();
    let busy = memory.begin(id).unwrap();
    memory.put_back(busy);
    assert_eq!((memory.stats().second_mappings, memory.stats().draining), (1, 0));
}

/// A handle moves again and again while the device has not caught up, up to a bound; the last of its former places to be unmapped lets it be released.
#[test]
fn a_handle_has_a_bounded_number_of_former_places() {
    let mut memory = memory();
    let id = map(&mut memory, 0, 1);
    for n in 0..MOST_FORMER {
        let busy = memory.begin_move(id).unwrap();
        memory.start_map(&busy, at(2 * n as u32 + 2));
        let left = memory.moved(busy);
        assert_eq!(left.place(), at(2 * n as u32));
        memory.drain(left, pending(n as u64));
        memory.check_at_rest();
        assert_eq!(memory.begin(id), Err(Unavailable::Draining));
    }
    assert_eq!(memory.begin_move(id), Err(Unavailable::Draining));
    assert_eq!(memory.handle(id).unwrap().former, MOST_FORMER);
    assert_eq!((memory.stats().bytes, memory.stats().draining), (2 * MIB, MOST_FORMER as u64 * 2 * MIB));
    // Not in the order of the moves.
    for n in (0..MOST_FORMER).rev() {
        let [left] =
            <[_; 1]>::try_from(memory.drained(99, |uses| uses[..] == pending(n as u64)[..])).unwrap();
        memory.unmapped(left);
        memory.check_at_rest();
        let busy = memory.begin_move(id).unwrap();
        memory.put_back(busy);
    }
    let busy = memory.begin(id).unwrap();
    memory.detached(&busy);
    assert!(memory.to_release(&busy).is_some());
    memory.released(busy);
    memory.check_at_rest();
}

/// A slow stream delays no other, however few slots are checked at a time.
#[test]
fn draining_slots_are_checked_in_turn() {
    let mut memory = memory();
    for n in 0..3 {
        let id = map(&mut memory, n, 1);
        let left = move_to(&mut memory, id, 10 + n);
        memory.drain(left, pending(u64::from(n)));
    }
    let seen = |memory: &mut Physical<u32>| {
        let mut seen = Vec::new();
        let left = memory.drained(2, |uses| {
            seen.push(uses[0].epoch.0);
            uses[0].epoch == Epoch(2)
        });
        (seen, left)
    };
    assert_eq!(seen(&mut memory).0, [0, 1]);
    let (looked, left) = seen(&mut memory);
    assert_eq!((looked, left.len(), memory.draining()), (vec![2, 0], 1, 2));
    for slot in left {
        memory.unmapped(slot);
    }
    assert_eq!(seen(&mut memory).0, [1, 0]);
    memory.check_at_rest();
}

/// Creation succeeded and the map failed: the handle is released, or, if that fails too, it is spare.
#[test]
fn a_handle_that_could_not_be_mapped_is_released_or_spare() {
    let mut memory = memory();
    for release in [true, false] {
        let busy = create(&mut memory, 4);
        assert_eq!(memory.start_map(&busy, at(8)), Addr(BASE + 16 * MIB));
        assert_eq!(memory.to_release(&busy), None, "it may be mapped");
        memory.map_failed(&busy);
        assert_eq!((memory.to_release(&busy), memory.native(&busy)), (Some(4), 4));
        if release {
            assert_eq!(memory.released(busy), units(4));
        } else {
            memory.spare(busy);
        }
        memory.check_at_rest();
    }
    assert_eq!((memory.stats().spare, memory.stats().bytes), (8 * MIB, 8 * MIB));
    assert_eq!(memory.take_spare(units(2)), None, "only of exactly that length");
    assert_eq!(memory.take_spare(Granules(units(4).0 + 1)), None);
    let busy = memory.take_spare(units(4)).unwrap();
    assert_eq!(memory.take_any_spare(), None);
    memory.spare(busy);
    let busy = memory.take_any_spare().unwrap();
    assert_eq!(memory.begin(busy.id()), Err(Unavailable::Busy));
    memory.spare(busy);
    memory.check_at_rest();
}

/// The map succeeded, the access could not be set and the driver could not unmap: the addresses are no hole, and the handle is not used before
/// they are. A handle that was to move stays at its place.
#[test]
fn a_mapping_that_is_stuck_keeps_its_addresses_and_its_handle() {
    let mut memory = memory();
    let busy = create(&mut memory, 1);
    let new = busy.id();
    memory.start_map(&busy, at(0));
    memory.map_stuck(&busy);
    assert_eq!(memory.to_release(&busy), None, "it is mapped");
    memory.spare(busy);
    let old = map(&mut memory, 1, 1);
    let busy = memory.begin(old).unwrap();
    memory.start_map(&busy, at(2));
    memory.map_stuck(&busy);
    memory.put_back(busy);
    memory.check_at_rest();
    assert_eq!(holes(&memory), [(3, 253)]);
    assert_eq!((memory.take_any_spare(), memory.begin(new)), (None, Err(Unavailable::Spare)));
    assert_eq!(memory.begin(old), Err(Unavailable::Draining));
    assert_eq!((memory.stats().spare, memory.stats().stuck, memory.stats().second_mappings), (0, 2, 0));
    for slot in memory.drained(usize::MAX, PendingSet::is_empty) {
        memory.unmapped(slot);
    }
    memory.check_at_rest();
    assert_eq!(holes(&memory), [(0, 1), (2, 254)]);
    assert_eq!(memory.take_any_spare().map(|busy| busy.id()), Some(new));
    assert!(memory.begin(old).is_ok());
}

/// The driver panics over a mapping, new or old: those addresses and the handle are not used before they are unmapped. A handle that was to move is at
/// its place.
#[test]
fn a_mapping_that_the_driver_panics_over_drains() {
    for (has_place, maps, left, after) in [
        (false, true, HandleState::Spare, [(0, 8), (10, 246)]),
        (true, false, HandleState::Spare, [(0, 8), (10, 246)]),
        (true, true, HandleState::Mapped, [(0, 8), (12, 244)]),
    ] {
        let mut memory = memory();
        let busy = if has_place {
            let id = map(&mut memory, 8, 2);
            memory.begin(id).unwrap()
        } else {
            create(&mut memory, 2)
        };
        if maps {
            memory.start_map(&busy, at(if has_place { 10 } else { 8 }));
        }
        memory.abandoned(&busy);
        let id = busy.id();
        drop(busy);
        memory.check_at_rest();
        assert_eq!(holes(&memory), after);
        assert_eq!((memory.handle(id).unwrap().state, memory.take_any_spare()), (left, None));
        assert_eq!((memory.stats().spare, memory.stats().draining), (0, 4 * MIB));
        for slot in memory.drained(usize::MAX, PendingSet::is_empty) {
            memory.unmapped(slot);
        }
        memory.check_at_rest();
        let is_spare = left == HandleState::Spare;
        assert_eq!(holes(&memory), if is_spare { vec![(0, 256)] } else { vec![(0, 8), (10, 246)] });
        assert_eq!(memory.take_any_spare().is_some(), is_spare);
        assert_eq!(memory.begin(id).is_ok(), !is_spare);
    }
}

/// A stuck mapping may be unmapped while its handle is still Busy.
#[test]
fn a_stuck_mapping_may_go_while_its_handle_is_busy() {
    let mut memory = memory();
    let busy = create(&mut memory, 1);
    memory.start_map(&busy, at(0));
    memory.map_stuck(&busy);
    let slots = memory.drained(1, |_| true);
    memory.check();
    for slot in slots {
        memory.unmapped(slot);
    }
    memory.check();
    assert_eq!(memory.stats().spare, 0, "it is Busy");
    memory.start_map(&busy, at(0));
    memory.mapped(busy);
    memory.check_at_rest();
}

#[test]
fn a_hold_covers_all_handles_of_a_range() {
    let mut memory = memory();
    let ids = [map(&mut memory, 0, 2), map(&mut memory, 2, 1), map(&mut memory, 3, 1)];
    let hold = memory.hold(S, Granules(units(2).0 - 1), Granules(2)).unwrap();
    assert_eq!(hold.handles(), 2);
    let again = memory.hold(S, units(2), UNIT).unwrap();
    assert_eq!(
        ids.map(|id| memory.begin(id).err()),
        [Some(Unavailable::Held), Some(Unavailable::Held), None]
    );
    assert_eq!(memory.stats().held, 6 * MIB);
    assert!(memory.is_held(S, units(1), Granules(1)) && !memory.is_held(S, units(3), UNIT));
    memory.unhold(hold);
    memory.check();
    assert_eq!(memory.begin(ids[1]), Err(Unavailable::Held), "the other hold's");
    memory.unhold(again);
    assert!(memory.begin(ids[1]).is_ok());
    assert_eq!(memory.stats().held, 0);
}

#[test]
fn only_mapped_ranges_are_held() {
    let mut memory = memory();
    map(&mut memory, 1, 1);
    map(&mut memory, 5, 1);
    let moved = map(&mut memory, 3, 1);
    let left = move_to(&mut memory, moved, 2);
    memory.drain(left, pending(1));
    let absent = Err(Unavailable::Absent);
    // A hole before, a draining slot at the end, nothing, a hole between, a hole at the end.
    for (from, to) in [(0, 2), (1, 4), (4, 5), (2, 6), (5, 7)] {
        assert_eq!(memory.hold(S, units(from), units(to - from)), absent, "{from} to {to}");
    }
    map(&mut memory, 7, 1);
    assert_eq!(memory.hold(S, units(5), units(3)), absent, "only a hole between");
    assert_eq!(memory.hold(S, units(1), Granules::ZERO), absent);
    assert_eq!(memory.hold(SegmentId(8), units(1), UNIT), absent);
    let hold = memory.hold(S, units(1), units(2)).unwrap();
    assert_eq!(memory.drained(1, |_| true).len(), 1, "its former place may go");
    memory.unhold(hold);
}

#[test]
fn age_is_since_a_handle_was_first_found_free() {
    let mut memory = memory();
    let id = map(&mut memory, 0, 1);
    assert_eq!((memory.seen_free(id, 5), memory.seen_free(id, 9)), (5, 5));
    memory.seen_used(id);
    assert_eq!(memory.seen_free(id, 9), 9);
    let left = move_to(&mut memory, id, 1);
    memory.unmapped(left);
    assert_eq!(memory.seen_free(id, 12), 12, "by the count of its new owner");
}

#[test]
fn at_the_end_everything_is_returned_once() {
    let mut memory = memory();
    let id = map(&mut memory, 0, 2);
    let left = move_to(&mut memory, id, 4);
    memory.drain(left, pending(1));
    let busy = create(&mut memory, 1);
    memory.spare(busy);
    let remains = memory.take_all();
    let mapped = |unit: u64| AddrRange { base: Addr(BASE + unit * 2 * MIB), bytes: 4 * MIB };
    assert_eq!(remains.mappings, [mapped(0), mapped(4)]);
    assert_eq!(remains.handles, [2, 1]);
    assert_eq!(remains.reservations, [AddrRange { base: Addr(BASE), bytes: 2 * GIB }]);
    memory.check_at_rest();
    let stats = memory.stats();
    assert_eq!(stats, Stats { created: 2, moved: 1, second_mappings: 1, ..Stats::default() });
    assert_eq!(format!("{memory:?}").matches("created: 2").count(), 1);
}
