//! Every invariant must be able to break: each row plants one breach, or makes a call that no correct caller makes, and gives the start of the
//! message in which the operation that detects it, or the checker, names the invariant.
//!
//! A test also runs all rows and checks by the messages that no `law!` is without one: a message that several places share has as many rows.

use super::*;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// An invariant's number, the start of the message, and what breaks it.
type Breach = (&'static str, &'static str, fn());

fn window(memory: &mut Physical<u32>) -> &mut crate::physical::window::Window {
    memory.windows.all.get_mut(&S).expect("a window")
}
fn slot(memory: &mut Physical<u32>, unit: u32) -> &mut crate::physical::slot::Slot {
    window(memory).slots.get_mut(&unit).expect("a slot")
}
/// One handle of two units, mapped at 4.
fn one() -> (Physical<u32>, HandleId) {
    let mut memory = memory();
    let id = map(&mut memory, 4, 2);
    memory.check_at_rest();
    (memory, id)
}
/// The same, Busy.
fn begun() -> (Physical<u32>, BusyHandle) {
    let (mut memory, id) = one();
    let busy = memory.begin(id).unwrap();
    (memory, busy)
}
/// The same, moved to 8: its slot at 4 is Leaving.
fn left() -> (Physical<u32>, HandleId, LeavingSlot) {
    let (mut memory, id) = one();
    let left = move_to(&mut memory, id, 8);
    (memory, id, left)
}
/// The same, and that slot is Draining.
fn drains() -> (Physical<u32>, HandleId) {
    let (mut memory, id, left) = left();
    memory.drain(left, pending(1));
    memory.check_at_rest();
    (memory, id)
}
/// One spare handle of two units.
fn spare() -> (Physical<u32>, HandleId) {
    let mut memory = memory();
    let busy = create(&mut memory, 2);
    let id = busy.id();
    memory.spare(busy);
    (memory, id)
}

const ADDRESSES: &[Breach] = &[
    ("B8", "a reservation of 0 bytes at 0x0 is empty", || {
        memory().add_arena(AddrRange { base: Addr(0), bytes: 0 });
    }),
    ("B8", "a reservation of 2 bytes at 0xffff", || {
        memory().add_arena(AddrRange { base: Addr(u64::MAX), bytes: 2 });
    }),
    ("B8", "a reservation of 4096 bytes at 0x", || {
        memory().add_arena(AddrRange { base: Addr(BASE + 2 * GIB - 4096), bytes: 4096 });
    }),
    ("B8", "a reservation of 8192 bytes at 0x", || {
        memory().add_arena(AddrRange { base: Addr(BASE - 4096), bytes: 8192 });
    }),
    ("B8", "the window of 536870912 bytes at 0x0 is in no arena", || {
        memory().arenas.give(Addr(0), WINDOW_BYTES);
    }),
    ("B8", "the window of 536870912 bytes at 0x10080000000 is in no arena", || {
        memory().arenas.give(Addr(BASE + 2 * GIB), WINDOW_BYTES);
    }),
    ("B8", "the window of 536870912 bytes at 0x10020000000 is a gap already", || {
        memory().arenas.give(Addr(BASE + WINDOW_BYTES), WINDOW_BYTES);
    }),
    ("B8", "segment 7 is a window already", || {
        let _ = memory().add_window(S, OWNER, UNIT);
    }),
    ("B8", "segment 7 is removed but is no retired window", || {
        memory().remove_window(S);
    }),
    ("B8", "segment 9 is retired but is no window", || {
        let mut memory = memory();
        memory.windows.retired.insert(SegmentId(9));
        memory.remove_window(SegmentId(9));
    }),
    ("B2", "HandleId(0) is mapped into segment 9, which is no window", || {
        let mut memory = memory();
        let busy = create(&mut memory, 1);
        memory.start_map(&busy, WindowPosition { segment: SegmentId(9), unit: 0 });
    }),
    ("B8", "HandleId(0) is mapped into segment 7, which is closed", || {
        let mut memory = memory();
        let busy = create(&mut memory, 1);
        memory.close(OWNER);
        memory.start_map(&busy, at(0));
    }),
    ("B2", "HandleId(0) of 2 units at 255 extends beyond window 7", || {
        let mut memory = memory();
        let busy = create(&mut memory, 2);
        memory.start_map(&busy, at(255));
    }),
    ("B2", "HandleId(0) of 2 units at 4294967295 extends beyond window 7", || {
        let mut memory = memory();
        let busy = create(&mut memory, 2);
        memory.start_map(&busy, at(u32::MAX));
    }),
    ("B2", "HandleId(1) of 2 units at 5 overlaps Some((4, HandleId(0)))", || {
        let (mut memory, _) = one();
        let busy = create(&mut memory, 2);
        memory.start_map(&busy, at(5));
    }),
    ("B2", "HandleId(1) of 2 units at 3 overlaps Some((4, HandleId(0)))", || {
        let (mut memory, _) = one();
        let busy = create(&mut memory, 2);
        memory.start_map(&busy, at(3));
    }),
];

const HANDLES: &[Breach] = &[
    ("B2", "HandleId(9) is referred to but does not exist", || {
        let (mut memory, _) = spare();
        memory.handles.spare_mut().insert((1, HandleId(9)));
        memory.totals.spare += 1;
        memory.take_any_spare();
    }),
    ("B10", "put_back of HandleId(0), which is Some(Mapped)", || {
        let (_, busy) = begun();
        one().0.put_back(busy);
    }),
    ("B10", "released of HandleId(0), which is None", || {
        let (_, busy) = begun();
        Physical::<u32>::new(0x20_0000, GIB).unwrap().released(busy);
    }),
    ("B1", "a handle of 512 B does not consist of whole units", || {
        let _ = memory().created(0, Granules(1));
    }),
    ("B1", "a handle of 2097664 B does not consist of whole units", || {
        let _ = memory().created(0, Granules(UNIT.0 + 1));
    }),
    ("B2", "abandoned: HandleId(0) has no slot that a driver call changes", || {
        let mut memory = memory();
        let busy = create(&mut memory, 2);
        memory.abandoned(&busy);
    }),
    ("B2", "put_back of HandleId(0), which has no place or an Arriving slot", || {
        let mut memory = memory();
        let busy = create(&mut memory, 1);
        memory.put_back(busy);
    }),
    ("B2", "put_back of HandleId(0), which has no place or an Arriving slot", || {
        let (mut memory, busy) = begun();
        memory.start_map(&busy, at(0));
        memory.put_back(busy);
    }),
    (
        "B2",
        "start_map of HandleId(0) at WindowPosition { segment: SegmentId(7), unit: 1 }, which arrives at Some",
        || {
            let (mut memory, busy) = begun();
            memory.start_map(&busy, at(0));
            memory.start_map(&busy, at(1));
        },
    ),
    ("B2", "mapped: HandleId(0) is at Some", || {
        let (mut memory, busy) = begun();
        memory.start_map(&busy, at(0));
        memory.mapped(busy);
    }),
    ("B2", "moved: HandleId(0) had no place", || {
        let mut memory = memory();
        let busy = create(&mut memory, 1);
        memory.start_map(&busy, at(0));
        let _ = memory.moved(busy);
    }),
    ("B2", "moved: HandleId(0) has no Arriving slot", || {
        let (mut memory, busy) = begun();
        let _ = memory.moved(busy);
    }),
    ("B2", "detached: HandleId(0) has no place or an Arriving slot", || {
        let mut memory = memory();
        let busy = create(&mut memory, 1);
        memory.detached(&busy);
    }),
    ("B2", "detached: HandleId(0) has no place or an Arriving slot", || {
        let (mut memory, busy) = begun();
        memory.start_map(&busy, at(0));
        memory.detached(&busy);
    }),
    ("B6", "spare of HandleId(0), which is mapped", || {
        let (mut memory, busy) = begun();
        memory.spare(busy);
    }),
    ("B6", "spare of HandleId(0), which is mapped", || {
        let mut memory = memory();
        let busy = create(&mut memory, 1);
        memory.start_map(&busy, at(0));
        memory.spare(busy);
    }),
    ("B6", "released: HandleId(0) is mapped", || {
        let (mut memory, busy) = begun();
        memory.released(busy);
    }),
    ("B6", "released: HandleId(0) is mapped", || {
        let mut memory = memory();
        let busy = create(&mut memory, 1);
        memory.start_map(&busy, at(0));
        memory.map_stuck(&busy);
        memory.released(busy);
    }),
    ("B2", "map_failed: HandleId(0) has no Arriving slot", || {
        let (mut memory, busy) = begun();
        memory.map_failed(&busy);
    }),
    // It is stuck already.
    ("B2", "map_stuck: HandleId(0) has no Arriving slot", || {
        let (mut memory, busy) = begun();
        memory.start_map(&busy, at(0));
        memory.map_stuck(&busy);
        memory.map_stuck(&busy);
    }),
    ("B2", "WindowPosition { segment: SegmentId(7), unit: 4 } becomes Leaving but is no slot", || {
        let (mut memory, busy) = begun();
        memory.start_map(&busy, at(0));
        window(&mut memory).slots.remove(&4);
        let _ = memory.moved(busy);
    }),
    ("B4", "unhold of HandleId(0), which is not held", || {
        let (mut memory, _) = one();
        let hold = memory.clone().hold(S, units(4), UNIT).unwrap();
        memory.unhold(hold);
    }),
];

const SLOTS: &[Breach] = &[
    ("B6", "WindowPosition { segment: SegmentId(7), unit: 4 } drains but is no slot", || {
        let (mut memory, _) = drains();
        window(&mut memory).slots.remove(&4);
        memory.drained(1, |_| true);
    }),
    ("B6", "WindowPosition { segment: SegmentId(7), unit: 4 } is in the queue but Here", || {
        let (mut memory, _) = drains();
        slot(&mut memory, 4).state = SlotState::Here;
        memory.drained(1, |_| true);
    }),
    ("B2", "WindowPosition { segment: SegmentId(9), unit: 0 } is in no window", || {
        let _ = memory().leaving(WindowPosition { segment: SegmentId(9), unit: 0 }, 1);
    }),
    ("B2", "HandleId(0) left WindowPosition { segment: SegmentId(7), unit: 4 } but was at []", || {
        let (mut memory, id, left) = left();
        memory.handles.known(id).former.clear();
        memory.unmapped(left);
    }),
    ("B10", "unmapped of WindowPosition { segment: SegmentId(7), unit: 4 }, which is None", || {
        let (_, _, left) = left();
        memory().unmapped(left);
    }),
    ("B10", "drain of WindowPosition { segment: SegmentId(7), unit: 4 }, which is Some(Slot", || {
        let (_, _, left) = left();
        let (mut memory, _) = drains();
        memory.drain(left, pending(2));
    }),
];

const WALKER: &[Breach] = &[
    ("B1", "HandleId(0) is spare but not in the index", || {
        let (mut memory, _) = spare();
        memory.handles.spare_mut().clear();
        memory.check();
    }),
    ("B1", "the index has 2 handles, 1 are spare", || {
        let (mut memory, id) = spare();
        memory.handles.spare_mut().insert((3, id));
        memory.check();
    }),
    ("B1", "all: the total is 3 units, the handles have 2", || {
        let (mut memory, _) = one();
        memory.totals.units += 1;
        memory.check();
    }),
    ("B1", "spare: the total is 1 units", || {
        let (mut memory, _) = one();
        memory.totals.spare += 1;
        memory.check();
    }),
    ("B1", "draining: the total is 1 units", || {
        let (mut memory, _) = one();
        memory.totals.draining += 1;
        memory.check();
    }),
    ("B1", "held: the total is 0 units, the handles have 2", || {
        let (mut memory, id) = one();
        let handle = memory.handles.known(id);
        (handle.holds, handle.held_at) = (1, handle.at);
        memory.check();
    }),
    ("B11", "HandleId(0) has 1 holds since it was at None and is at Some", || {
        let (mut memory, id) = one();
        memory.handles.known(id).holds = 1;
        memory.check();
    }),
    ("B6", "the queue has a slot twice", || {
        let (mut memory, _) = drains();
        memory.draining.push_back(at(4));
        memory.check();
    }),
    ("B6", "the queue has {}", || {
        let (mut memory, _) = drains();
        memory.draining.clear();
        memory.check();
    }),
    ("B6", "the queue has {WindowPosition", || {
        let (mut memory, _) = one();
        memory.draining.push_back(at(4));
        memory.check();
    }),
    ("B10", "HandleId(0) is Busy at rest", || {
        begun().0.check_at_rest();
    }),
    ("B10", "a slot of segment 7 is Leaving at rest", || {
        left().0.check_at_rest();
    }),
    ("B2", "the slot at 5 of segment 7 overlaps the one below it", || {
        let (mut memory, _) = one();
        let twin = slot(&mut memory, 4).clone();
        window(&mut memory).slots.insert(5, twin);
        memory.check();
    }),
    ("B2", "WindowPosition { segment: SegmentId(7), unit: 4 } has HandleId(9), which does not exist", || {
        let (mut memory, _) = one();
        slot(&mut memory, 4).handle = HandleId(9);
        memory.check();
    }),
    ("B2", "WindowPosition { segment: SegmentId(7), unit: 4 } has 3 units, HandleId(0) has 2", || {
        let (mut memory, _) = one();
        slot(&mut memory, 4).units = 3;
        memory.check();
    }),
    // A third mapping.
    ("B2", "WindowPosition { segment: SegmentId(7), unit: 20 } is Draining", || {
        let (mut memory, _) = drains();
        let third = slot(&mut memory, 4).clone();
        window(&mut memory).slots.insert(20, third);
        memory.check();
    }),
    (
        "B2",
        "WindowPosition { segment: SegmentId(7), unit: 4 } is Here for HandleId(0), which is at None, arrives at None and was at []",
        || {
            let (mut memory, id) = one();
            memory.handles.known(id).at = None;
            memory.check();
        },
    ),
    (
        "B10",
        "WindowPosition { segment: SegmentId(7), unit: 0 } is Arriving, but HandleId(0) is Mapped",
        || {
            let (mut memory, busy) = begun();
            memory.start_map(&busy, at(0));
            memory.handles.known(busy.id()).state = HandleState::Mapped;
            memory.check();
        },
    ),
    ("B2", "the slots of segment 7 end at 257 of 256", || {
        let mut memory = memory();
        let id = map(&mut memory, 255, 1);
        memory.handles.known(id).units = 2;
        slot(&mut memory, 255).units = 2;
        memory.check();
    }),
    ("B8", "segment 7 at 0x10000000000 has 255 units", || {
        let mut memory = memory();
        window(&mut memory).units = 255;
        memory.check();
    }),
    ("B8", "segment 7 at 0x10000000200 has 256 units", || {
        let mut memory = memory();
        window(&mut memory).base = Addr(BASE + 512);
        memory.check();
    }),
    ("B8", "segment 7 is in the list of retired windows: true", || {
        let mut memory = memory();
        memory.windows.retired.insert(S);
        memory.check();
    }),
    ("B8", "segment 7 is in the list of retired windows: false", || {
        let mut memory = memory();
        memory.close(OWNER);
        memory.windows.retired.clear();
        memory.check();
    }),
    ("B8", "segment 7 is in the list of its owner: false", || {
        let mut memory = memory();
        memory.windows.by_owner.clear();
        memory.check();
    }),
    ("B8", "segment 7 is not in the index by address", || {
        let mut memory = memory();
        memory.windows.by_base.clear();
        memory.check();
    }),
    (
        "B2",
        "HandleId(0) has a mapping at WindowPosition { segment: SegmentId(7), unit: 4 }, but that slot is None",
        || {
            let (mut memory, _) = one();
            window(&mut memory).slots.clear();
            memory.check();
        },
    ),
    ("B2", "segment 7 has the holes {0: 4, 6: 255}, not {0: 4, 6: 256}", || {
        let (mut memory, _) = one();
        window(&mut memory).holes.insert(6, 255);
        memory.check();
    }),
    ("B2", "HandleId(0) is Mapped at None", || {
        let (mut memory, id) = spare();
        memory.handles.spare_mut().clear();
        memory.handles.known(id).state = HandleState::Mapped;
        memory.check();
    }),
    ("B2", "HandleId(0) is Spare at Some", || {
        let (mut memory, id) = one();
        memory.handles.known(id).state = HandleState::Spare;
        memory.check();
    }),
    ("B4", "HandleId(0) is held and Busy", || {
        let (mut memory, busy) = begun();
        memory.handles.known(busy.id()).holds = 1;
        memory.check();
    }),
    ("B8", "two gaps are adjacent at 0x10040000000", || {
        let mut memory = memory();
        *memory.arenas.gaps_mut() =
            [(BASE + WINDOW_BYTES, WINDOW_BYTES), (BASE + 2 * WINDOW_BYTES, 2 * WINDOW_BYTES)].into();
        memory.check();
    }),
    ("B8", "at 0x10020000000 an arena has the window None and the gap None", || {
        let mut memory = memory();
        memory.arenas.gaps_mut().clear();
        memory.check();
    }),
    ("B8", "at 0x10000000000 an arena has the window Some", || {
        let mut memory = memory();
        memory.arenas.gaps_mut().insert(BASE, WINDOW_BYTES);
        memory.check();
    }),
    ("B8", "windows and gaps of the arena at 0x10000000000 end at 0x100a0000000", || {
        let mut memory = memory();
        memory.arenas.gaps_mut().insert(BASE + WINDOW_BYTES, 4 * WINDOW_BYTES);
        memory.check();
    }),
    ("B8", "the arena at 0x10000000000 has a gap outside itself", || {
        let mut memory = memory();
        memory.arenas.gaps_mut().insert(BASE + 4 * GIB, WINDOW_BYTES);
        memory.check();
    }),
    ("B8", "the windows have 256 units, the total is 257", || {
        let (mut memory, _) = one();
        memory.windows.total += 1;
        memory.check();
    }),
    ("B8", "1 windows, but 0 in arenas", || {
        let mut memory = memory();
        memory.arenas.take_all();
        memory.check();
    }),
    ("B8", "1 windows, but 2 in the index by address", || {
        let mut memory = memory();
        memory.windows.by_base.insert(5, S);
        memory.check();
    }),
    ("B8", "1 open windows, but 2 in the lists of owners", || {
        let mut memory = memory();
        memory.windows.by_owner.insert(Owner(2), vec![S]);
        memory.check();
    }),
    ("B8", "0 retired windows, but 1 in their list", || {
        let mut memory = memory();
        memory.windows.retired.insert(SegmentId(9));
        memory.check();
    }),
];

fn rows() -> impl Iterator<Item = &'static Breach> {
    [ADDRESSES, HANDLES, SLOTS, WALKER].into_iter().flatten()
}

/// The message of a breach.
fn said(breach: fn()) -> Option<String> {
    let panic = catch_unwind(AssertUnwindSafe(breach)).err()?;
    Some(panic.downcast_ref::<String>().cloned().unwrap_or_default())
}

#[test]
fn every_breach_is_noticed_and_named() {
    let missed: Vec<String> = rows()
        .filter_map(|&(number, words, breach)| {
            let expected = format!("invariant {number} of physical memory is broken: {words}");
            let said = said(breach).unwrap_or_else(|| "nothing".to_owned());
            (!said.starts_with(&expected)).then(|| format!("{expected:?}: said was {said:?}"))
        })
        .collect();
    assert!(missed.is_empty(), "{} of {}:\n{}", missed.len(), rows().count(), missed.join("\n"));
}

/// What stands around the braces of a format.
fn pieces(format: &str) -> Vec<&str> {
    let pieces = format.split('{').enumerate();
    pieces.map(|(at, p)| if at == 0 { p } else { p.split_once('}').map_or("", |p| p.1) }).collect()
}

/// Whether a format can come to these words.
fn comes_to(pieces: &[&str], words: &str) -> bool {
    let Some((last, first)) = pieces.split_last() else { return false };
    let mut rest = words;
    for (at, piece) in first.iter().enumerate() {
        match rest.find(piece) {
            Some(found) if at > 0 || found == 0 => rest = &rest[found + piece.len()..],
            _ => return false,
        }
    }
    if first.is_empty() { rest == *last } else { rest.ends_with(last) }
}

#[test]
fn every_law_has_a_breach() {
    let sources = [
        include_str!("../arena.rs"),
        include_str!("../check.rs"),
        include_str!("../handle.rs"),
        include_str!("../hold.rs"),
        include_str!("../mod.rs"),
        include_str!("../slot.rs"),
        include_str!("../window.rs"),
    ];
    // The message is the first string after the number of the invariant.
    let format = |at: &str| {
        at.split('"').nth(usize::from(at.starts_with("\"B")) * 2 + 1).unwrap_or_default().to_owned()
    };
    let mut laws: Vec<String> = Vec::new();
    for source in sources {
        for call in [" law!(", "::broken("] {
            let calls = source.match_indices(call).map(|(at, _)| source[at + call.len()..].trim_start());
            // Not where it is defined.
            laws.extend(calls.filter(|call| !call.starts_with("stringify")).map(format));
        }
    }
    assert!(laws.len() > 50, "{} laws: the search finds no more", laws.len());
    let said: Vec<String> = rows()
        .filter_map(|row| said(row.2))
        .filter_map(|words| words.split_once(" is broken: ").map(|(_, words)| words.to_owned()))
        .collect();
    let unmet: Vec<&String> = laws
        .iter()
        .filter(|law| {
            let law = pieces(law);
            let places = laws.iter().filter(|other| pieces(other) == law).count();
            said.iter().filter(|words| comes_to(&law, words)).count() < places
        })
        .collect();
    assert!(unmet.is_empty(), "no breach for {}:\n{unmet:#?}", unmet.len());
}
