//! As many allocators as a process can make, and one more.

use super::{BAD_ARGUMENT, Door, MIB, NO_DEVICE, OK, UNKNOWN_ALLOCATOR, alone, last, program, stream};

#[test]
fn one_allocator_too_many_is_a_code_and_costs_nothing() {
    alone("most::one_allocator_too_many_is_a_code_and_costs_nothing", |fake| {
        let cuda = program();
        let s = stream(&cuda);
        let first = Door::new("");
        let x = first.alloc(MIB, &s);
        // One that cannot be made takes no place.
        for _ in 0..8 {
            assert_eq!(Door::on(7, "").err(), Some(NO_DEVICE));
            assert_eq!(Door::on(0, "policy=best").err(), Some(BAD_ARGUMENT));
        }
        for n in 2..=4096 {
            let door = Door::new("");
            // The next ones are made whether these have ended or not; and however they ended.
            match n % 3 {
                0 => door.destroy(),
                1 => assert_eq!(door.one("millpond_release"), OK),
                _ => {}
            }
        }
        let calls = fake.calls_total();
        for _ in 0..3 {
            assert_eq!(Door::on(0, "").err(), Some(BAD_ARGUMENT));
            assert!(last().contains("4096 allocators were made in this process"), "{}", last());
            assert!(last().contains("make one a device and keep it"), "{}", last());
        }
        assert_eq!(fake.calls_total(), calls, "nothing is made that could be left");
        // The others are as they were.
        assert_eq!(first.free_on(x, &s), OK);
        assert_eq!(Door(4096).one("millpond_destroy"), UNKNOWN_ALLOCATOR, "released");
        assert_eq!(Door(4095).one("millpond_release"), UNKNOWN_ALLOCATOR, "destroyed");
        assert_eq!([4095, 4096].map(|n| Door(n).one("millpond_synchronize")), [OK; 2], "and nothing is owed");
        assert_eq!(Door(4097).one("millpond_synchronize"), UNKNOWN_ALLOCATOR, "never was one");
        assert_eq!(Door(4094).one("millpond_synchronize"), OK);
        first.destroy();
        assert_eq!((first.stat("taken"), fake.verdict()), (0, None));
    });
}
