//! The smallest programs with operations on arrays beside a thread that orders the streams, in every schedule, however many
//! preemptions it has; and that the search which leaves out what comes to the same (`reduced`) leaves out nothing else.
//!
//! The device is the minimal one, whose streams have a lock each, as a driver's have.

use super::minimal_device::joined;
use super::minimal_device::operands::{in_step, out_of_order};
use super::operands::convicts;
use super::reduced::{Tried, every_order};
use millpond::mutant::Bug;
use millpond::sync::Rank;
use millpond::sync::atomic::AtomicU32;
use millpond::sync::{Mutex, Ordering::SeqCst};
use shuttle::sync::Arc;
use shuttle::thread;
use std::collections::BTreeSet;

/// The table of timelines and the pool of events: no stream begins or ends meanwhile, and no event comes back, since nothing is
/// complete.
const READ_ONLY: &[u8] = &[Rank::Registry as u8, Rank::Leaf as u8];

fn every(program: fn()) -> Tried {
    let tried = every_order(READ_ONLY, program);
    eprintln!("{} schedules, and {} that came to the same as others", tried.whole, tried.known);
    tried
}

#[test]
fn an_operation_beside_two_streams_that_are_kept_in_step_in_every_schedule() {
    every(in_step);
    for bug in [Bug::CoverOther, Bug::ArrayCoverAny] {
        assert!(convicts(bug, || every(in_step)), "{bug}");
    }
}

#[test]
fn an_operation_behind_markers_that_are_published_out_of_order_in_every_schedule() {
    every(out_of_order);
    for bug in [Bug::CoverOther, Bug::CoverTie] {
        assert!(convicts(bug, || every(out_of_order)), "{bug}");
    }
}

/// Three operations each of two threads: on one atomic in all 20 orders, on one each in one, reads in one, and under one lock in all
/// orders of the holds.
#[test]
fn operations_that_commute_are_tried_in_one_order() {
    let tried = |work: fn(&[AtomicU32; 2], &Mutex<u32>, usize)| {
        every_order(&[], move || {
            let things = Arc::new(([AtomicU32::new(0), AtomicU32::new(0)], Mutex::new(0)));
            let theirs = Arc::clone(&things);
            let other = thread::spawn(move || (0..3).for_each(|_| work(&theirs.0, &theirs.1, 1)));
            (0..3).for_each(|_| work(&things.0, &things.1, 0));
            other.join().unwrap();
            joined();
        })
        .whole
    };
    assert_eq!(tried(|atomics, _, _| _ = atomics[0].fetch_add(1, SeqCst)), 20);
    assert_eq!(tried(|atomics, _, me| _ = atomics[me].fetch_add(1, SeqCst)), 1);
    assert_eq!(tried(|atomics, _, _| _ = atomics[0].load(SeqCst)), 1);
    assert_eq!(tried(|_, lock, _| *lock.lock() += 1), 20);
}

/// Random small programs of three threads on locks and atomics come to the same ends as in all schedules, one by one.
#[test]
fn every_end_of_a_program_is_come_to() {
    use super::operands::every_schedule_of;
    for seed in 0..40_u64 {
        let ends = |search: &dyn Fn(Box<dyn Fn() + Send + Sync>)| {
            let ends = std::sync::Arc::new(std::sync::Mutex::new(BTreeSet::new()));
            let seen = std::sync::Arc::clone(&ends);
            search(Box::new(move || _ = seen.lock().unwrap().insert(small(seed))));
            std::sync::Arc::into_inner(ends).unwrap().into_inner().unwrap()
        };
        let reduced = ends(&|program| _ = every_order(&[], program));
        let all = ends(&|program| _ = every_schedule_of(usize::MAX, program));
        assert_eq!(reduced, all, "seed {seed}");
    }
}

/// Two threads or three of a few operations each; what each of them read, and what is there in the end.
fn small(seed: u64) -> Vec<u32> {
    let things = Arc::new(([AtomicU32::new(0), AtomicU32::new(0)], [Mutex::new(0), Mutex::new(0)]));
    let mut state = seed;
    let mut draw = |n: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % n
    };
    let (threads, steps) = if draw(3) > 0 { (2, 3) } else { (3, 1) };
    let threads: Vec<_> = (1..=threads)
        .map(|me| {
            let steps: Vec<_> = (0..steps).map(|_| (draw(4), draw(2) as usize)).collect();
            let things = Arc::clone(&things);
            thread::spawn(move || {
                let mut read = Vec::new();
                for (what, at) in steps {
                    let (atomics, locks) = &*things;
                    match what {
                        0 => read.push(atomics[at].load(SeqCst)),
                        1 => atomics[at].store(me, SeqCst),
                        2 => {
                            let mut held = locks[at].lock();
                            read.push(*held);
                            *held = 10 * *held + me;
                        }
                        _ => {
                            let mut held = locks[at].lock();
                            *held = 10 * *held + atomics[0].fetch_add(me, SeqCst);
                        }
                    }
                }
                read
            })
        })
        .collect();
    let mut end: Vec<u32> = threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
    joined();
    end.extend(things.0.each_ref().map(|atomic| atomic.load(SeqCst)));
    end.extend(things.1.each_ref().map(|lock| *lock.lock()));
    end
}
