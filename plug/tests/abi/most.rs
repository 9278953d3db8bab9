//! Allocators that are created and ended any number of times; as many at once as a process can have, and one more.

use super::{BAD_ARGUMENT, Door, MIB, NO_DEVICE, OK, UNKNOWN_ALLOCATOR, alone, last, program, stream};
use pond::driver::Fences as _;
use std::collections::HashSet;

#[test]
fn one_allocator_too_many_is_a_code_and_costs_nothing() {
    alone("most::one_allocator_too_many_is_a_code_and_costs_nothing", |fake| {
        let cuda = program();
        let s = stream(&cuda);
        let first = Door::new("");
        let x = first.alloc(MIB, &s);
        // An allocator that cannot be created takes no place.
        for _ in 0..8 {
            assert_eq!(Door::on(7, "").err(), Some(NO_DEVICE));
            assert_eq!(Door::on(0, "policy=best").err(), Some(BAD_ARGUMENT));
        }
        // An ended allocator keeps its place only while some of its memory is alive, however it ended.
        let ended = Door::new("");
        let y = ended.alloc(MIB, &s);
        ended.destroy();
        let mut open = vec![first];
        for n in 3..=4096 {
            let door = Door::new("");
            match n % 3 {
                0 => door.destroy(),
                1 => assert_eq!(door.one("millpond_release"), OK),
                _ => {}
            }
            if n % 3 < 2 { open.push(Door::new("")) } else { open.push(door) }
        }
        assert_eq!(open.len(), 4095);
        for n in 0..3 {
            let calls = fake.calls_total();
            assert_eq!(Door::on(0, "").err(), Some(BAD_ARGUMENT));
            assert!(last().contains("this process has 4096 allocators"), "{}", last());
            assert!(last().contains("make one a device and keep it"), "{}", last());
            assert!(n == 0 || fake.calls_total() == calls, "the call stops before it calls the driver");
        }
        // Its memory is freed, and its place is free.
        assert_eq!(ended.free_on(y, &s), OK);
        cuda.synchronize_device().expect("waited");
        let next = Door::new("");
        assert_eq!(Door::on(0, "").err(), Some(BAD_ARGUMENT));
        next.destroy();
        assert_eq!(next.one("millpond_destroy"), UNKNOWN_ALLOCATOR);
        assert_eq!(next.one("millpond_synchronize"), OK, "an ended allocator still accepts this");
        // The other allocators have not changed.
        assert_eq!(open[0].free_on(x, &s), OK);
        for door in &open {
            door.destroy();
        }
        assert_eq!(fake.verdict(), None);
    });
}

/// The number of an ended allocator is never reused: it is an error for ever, and memory is never taken for another allocator's.
#[test]
fn names_are_never_given_twice() {
    alone("most::names_are_never_given_twice", |fake| {
        let cuda = program();
        let s = stream(&cuda);
        let (kept, mut names) = (Door::new(""), HashSet::new());
        let first = Door::new("");
        first.destroy();
        for _ in 0..10_000 {
            let door = Door::new("");
            assert!(names.insert(door.0), "{} was used before", door.0);
            let x = door.alloc(MIB, &s);
            assert_eq!(kept.free_on(x, &s), super::WRONG_ALLOCATOR);
            assert_eq!(door.free_on(x, &s), OK);
            door.destroy();
        }
        assert!(!names.contains(&kept.0) && !names.contains(&first.0));
        let calls = ["millpond_synchronize", "millpond_destroy", "millpond_release"];
        assert_eq!(calls.map(|call| first.one(call)), [UNKNOWN_ALLOCATOR; 3]);
        assert_eq!(kept.free_on(kept.alloc(MIB, &s), &s), OK);
        kept.destroy();
        assert_eq!(fake.verdict(), None);
    });
}
