//! Every small program of each family, up to symmetry, is judged right; and there are as many as there are to be.
//!
//! * Blocks on two streams (`testkit/src/worlds/blocks.rs`): 3 operations, at a limit of two units, by one thread and by two.
//! * A large range with up to two users, on three streams (`testkit/src/worlds/ranges.rs`): 5 operations.
//! * An array on two streams, with tokens, guards, pinned memory and a fault (`testkit/src/worlds/arrays.rs`): 3 operations.
//!
//! Each must satisfy both oracles, leave the heaps sound and strand nothing.
//!
//! `.ci/worlds`, a check of `.ci/run`, judges 4 of the first by two threads too, 4 on a device that stands anywhere, 6 of the range and 4 of the array.
//! `MILLPOND_WORLDS` sets the length of the first, 3 unless said: `.ci/worlds 5` does that, and
//! `.ci/worlds 6 3 40` judges the third of forty parts of all programs of six, so that they can be judged piece by piece.
//! `MILLPOND_WORLDS_DEALT` sets the length of those that are dealt to two threads, `MILLPOND_WORLDS_ANYWHERE` of those on a
//! device that stands anywhere, `MILLPOND_WORLDS_RANGES` and `MILLPOND_WORLDS_ARRAYS` of the other families.
//!
//! Each operation more is some 35 times the programs: 81,904 of 4 take 5 s of a processor's time, 2,893,900 of 5 some 200 s
//! (with 655,232 of 4 by two threads; one run, all judged right), and 6 would take more than an hour and a half; 191,127 of
//! 4 on a device that stands anywhere take some 16 s. Of the range an operation more is some 17 times the programs: 26,538 of 6 take 6 s,
//! each for a host that may wait and for one that may not; of the array some 28 times: 99,096 of 4 take 8 s.

use millpond::units::MIB;
use millpond_testkit::cases::World;
use millpond_testkit::worlds;
use millpond_testkit::worlds::arrays::Arrays;
use millpond_testkit::worlds::blocks::{self, DEALT, Second, Seen};
use millpond_testkit::worlds::ranges::Ranges;
use std::io::Write as _;

/// A number from the environment.
fn number(name: &str, default: usize) -> usize {
    std::env::var(name)
        .map_or(default, |n| n.parse().unwrap_or_else(|e| panic!("{name}={n:?} is no number: {e}")))
}

/// Which part of the programs to judge, of how many.
fn part() -> (usize, usize) {
    let (part, of) = (number("MILLPOND_WORLDS_PART", 1), number("MILLPOND_WORLDS_PARTS", 1));
    assert!(1 <= part && part <= of, "MILLPOND_WORLDS_PART is {part} of {of}");
    (part, of)
}

#[test]
fn all_small_programs() {
    let length = number("MILLPOND_WORLDS", 3);
    assert!(
        length >= DEALT,
        "MILLPOND_WORLDS is {length}: programs of {DEALT} operations are the shortest that say anything"
    );
    let dealt = number("MILLPOND_WORLDS_DEALT", length);
    assert!(dealt >= DEALT, "MILLPOND_WORLDS_DEALT is {dealt}, and {DEALT} the least");
    let (part, of) = part();
    // Which thread makes a whole call is a symmetry of programs whose calls follow one another. Those by one thread stand for
    // all of these, as far as asked; that they may is shown less far, where each is run in all ways of dealing its calls to two.
    for (length, threads) in [(length, 1), (dealt, 2)] {
        let programs = blocks::all(length, threads == 2, (part, of));
        // Past the test harness, which hides what a passing test prints.
        let _ = writeln!(
            std::io::stderr(),
            "small worlds, part {part} of {of}: {programs} programs of {length} operations by {threads} of 2 threads{}",
            if threads == 1 {
                format!(
                    ", which stand for {} by two threads whose calls follow one another",
                    programs * blocks::ways(length, true)
                )
            } else {
                String::new()
            }
        );
        let known = COUNTS.iter().find(|c| (c.0, c.1) == (length, threads) && of == 1);
        assert!(known.is_none_or(|c| c.2 == programs), "{programs} programs, and not {known:?}");
    }
}

/// How many programs of a length there are, by one thread and by two: not fewer, which would be a hole, and not more unsaid.
const COUNTS: [(usize, usize, usize); 6] =
    [(3, 1, 2600), (3, 2, 10_400), (4, 1, 81_904), (4, 2, 655_232), (5, 1, 2_893_900), (5, 2, 46_302_400)];

/// The same for those on a device that may stand anywhere.
const COUNTS_ANYWHERE: [(usize, usize); 2] = [(3, 3508), (4, 191_127)];

#[test]
fn all_small_programs_on_a_device_that_stands_anywhere() {
    let length = number("MILLPOND_WORLDS_ANYWHERE", 3);
    assert!(length >= DEALT, "MILLPOND_WORLDS_ANYWHERE is {length}, and {DEALT} the least");
    let (part, of) = part();
    let programs = blocks::all_anywhere(length, (part, of));
    let _ = writeln!(
        std::io::stderr(),
        "small worlds, part {part} of {of}: {programs} programs of {length} operations on a device that stands anywhere"
    );
    let known = COUNTS_ANYWHERE.iter().find(|c| c.0 == length && of == 1);
    assert!(known.is_none_or(|c| c.1 == programs), "{programs} programs, and not {known:?}");
}

/// The same for the other families.
const COUNTS_RANGES: &[(usize, usize)] = &[(3, 6), (4, 96), (5, 1569), (6, 26_538)];
const COUNTS_ARRAYS: &[(usize, usize)] = &[(2, 112), (3, 3504), (4, 99_096)];

/// Every program of a family is judged right, and there are as many as there are to be.
fn family<F: worlds::Family>(family: &F, name: &str, length: usize, counts: &[(usize, usize)]) {
    let (part, of) = part();
    let programs = worlds::all(family, length, (part, of));
    let _ = writeln!(
        std::io::stderr(),
        "small worlds, part {part} of {of}: {programs} programs of {length} operations {name}"
    );
    let known = counts.iter().find(|c| c.0 == length && of == 1);
    assert!(known.is_none_or(|c| c.1 == programs), "{programs} programs, and not {known:?}");
}

#[test]
fn all_small_programs_of_a_range() {
    family(&Ranges, "on a range", number("MILLPOND_WORLDS_RANGES", 5), COUNTS_RANGES);
}

#[test]
fn all_small_programs_of_an_array() {
    family(&Arrays, "on an array", number("MILLPOND_WORLDS_ARRAYS", 3), COUNTS_ARRAYS);
}

/// What a call comes to is compared, so that one would be found that depends on its thread: of a thread's default stream
/// each has its own, and with it a pool of its own.
#[test]
fn a_call_whose_thread_matters_is_seen() {
    let second = Second::new();
    let by = |threads: [usize; 2]| {
        let (mut w, mut addresses) = (World::at(2), Vec::new());
        for thread in threads {
            let call = move || {
                let stream = w.gpu.adopt(w.sim.per_thread_stream()).expect("adopted");
                let block = w.gpu.alloc(MIB, &stream).expect("memory");
                let address = block.address();
                drop(block);
                (w, address)
            };
            let address;
            (w, address) = if thread == 0 { call() } else { second.run(call) };
            addresses.push(Some(address));
        }
        Seen::of(&w, addresses)
    };
    assert_eq!(by([0, 0]), by([0, 0]));
    assert_ne!(by([0, 0]), by([0, 1]));
}
