//! Watermarks and idle trimming: what goes back, when, and that nothing is waited for.

use super::windows;
use crate::rig::{all_clean, late, on, write};
use crate::windows::taken;
use millpond::units::MIB;
use millpond::{Allocation, Allocator, Config, Error, Limit, Stream};
use millpond_sim::Sim;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

fn marked(low: u64, high: u64) -> Config {
    windows().watermarks(Limit::Bytes(low * MIB), Limit::Bytes(high * MIB))
}

fn blocks(gpu: &Allocator<Sim>, n: usize, s: &Stream<Sim>) -> Vec<Allocation<Sim>> {
    (0..n).map(|_| gpu.alloc(2 * MIB, s).unwrap()).collect()
}

/// Up to the high mark everything stays cached; above it what is idle goes back down to the low one, between live allocations too, and a call gives back 32
/// handles at most.
#[test]
fn what_is_cached_above_the_high_mark_goes_back_to_the_low_one() {
    let sim = late();
    let gpu = on(&sim, marked(10, 20));
    let s = gpu.stream().unwrap();
    let mut live = blocks(&gpu, 100, &s);
    live.truncate(90);
    gpu.synchronize().unwrap();
    assert_eq!(gpu.maintain().unwrap().bytes, 0);
    assert_eq!(taken(&sim, &gpu), 200 * MIB, "20 MiB are cached");
    // One more, in the middle.
    drop(live.remove(40));
    gpu.synchronize().unwrap();
    let given = gpu.maintain().unwrap();
    assert_eq!((given.bytes, given.segments), (12 * MIB, 6));
    assert_eq!((taken(&sim, &gpu), gpu.report().total.cached), (188 * MIB, 10 * MIB));
    live.truncate(9);
    gpu.synchronize().unwrap();
    for left in [124, 60, 28, 28] {
        gpu.maintain().unwrap();
        assert_eq!(taken(&sim, &gpu), left * MIB);
    }
    drop((live, s));
    all_clean(&sim, gpu);
}

/// A miss gives back too, and what it was served stays.
#[test]
fn a_miss_gives_back_what_is_above_the_mark() {
    let sim = late();
    let gpu = on(&sim, marked(0, 8));
    let (s, t) = (gpu.stream().unwrap(), gpu.stream().unwrap());
    drop(blocks(&gpu, 20, &s));
    gpu.synchronize().unwrap();
    assert_eq!(taken(&sim, &gpu), 40 * MIB);
    let x = gpu.alloc_aligned(64 * MIB, 64 * MIB, &t).unwrap();
    write(&sim, &x, &t);
    assert_eq!(taken(&sim, &gpu), 64 * MIB);
    drop((x, s, t));
    all_clean(&sim, gpu);
}

/// What is pending stays, nothing is waited for, and a program in which nothing is idle pays for few looks.
#[test]
fn what_is_pending_stays() {
    let sim = late();
    let gpu = on(&sim, marked(0, 4));
    let s = gpu.stream().unwrap();
    let all = blocks(&gpu, 10, &s);
    for x in &all {
        write(&sim, x, &s);
    }
    drop(all);
    assert_eq!(gpu.maintain().unwrap().bytes, 0);
    assert_eq!((taken(&sim, &gpu), sim.ledger().host_waits), (20 * MIB, 0));
    sim.run_until_idle();
    assert_eq!(gpu.maintain().unwrap().bytes, 20 * MIB);
    assert_eq!(sim.ledger().host_waits, 0);
    drop(s);
    all_clean(&sim, gpu);
}

/// A steady program whose cache goes up and down below the high mark makes no driver call when it is warm, whatever it frees, and one that goes above it pays
/// once a crossing and not for each free.
#[test]
fn marks_have_a_gap_in_which_a_steady_program_calls_no_driver() {
    let sim = late();
    let gpu = on(&sim, marked(8, 40));
    let s = gpu.stream().unwrap();
    let keep = blocks(&gpu, 4, &s);
    let round = |n: usize| {
        let all = blocks(&gpu, n, &s);
        gpu.maintain().unwrap();
        drop(all);
        gpu.maintain().unwrap();
    };
    round(20);
    gpu.synchronize().unwrap();
    let warm = sim.call_count();
    for n in 0..200 {
        round(1 + n % 20);
    }
    assert_eq!(sim.call_count(), warm, "at most 40 MiB are cached");
    assert_eq!(taken(&sim, &gpu), 48 * MIB);
    let released = |run: &dyn Fn()| {
        let before = gpu.report().releases;
        run();
        gpu.report().releases - before
    };
    // Two more cross it: one time down to the low mark, and then there is room for a long while.
    let crossed = released(&|| {
        round(22);
        gpu.synchronize().unwrap();
        gpu.maintain().unwrap();
    });
    assert_eq!(crossed, 18, "from 44 MiB to 8");
    assert_eq!(released(&|| round(18)), 0);
    drop((keep, s));
    all_clean(&sim, gpu);
}

/// Shares are those of the device, a low mark that is missing is the high one, and a low one above it is refused.
#[test]
fn marks_are_checked() {
    for (low, high, valid) in [
        (Limit::Fraction(0.1), Limit::Fraction(0.2), true),
        (Limit::None, Limit::Bytes(0), true),
        (Limit::Bytes(7), Limit::None, true),
        (Limit::Bytes(2 * MIB), Limit::Bytes(MIB), false),
        (Limit::Fraction(1.2), Limit::None, false),
    ] {
        let made = Allocator::new(late(), windows().watermarks(low, high));
        assert_eq!(made.is_ok(), valid, "{low:?}, {high:?}");
        assert!(valid || matches!(made, Err(Error::Config { .. })));
    }
}

/// Without virtual memory segments go back only where a free waits for nothing.
#[test]
fn segments_go_back_only_where_a_free_waits_for_nothing() {
    for waits in [true, false] {
        let sim = Sim::new(1 << 30).virtual_memory(false).waiting_frees(waits);
        let gpu = on(&sim, Config::default().watermarks(Limit::Bytes(0), Limit::Bytes(0)));
        let s = gpu.stream().unwrap();
        drop([gpu.alloc(30 * MIB, &s).unwrap(), gpu.alloc(40 * MIB, &s).unwrap()]);
        gpu.synchronize().unwrap();
        let given = gpu.maintain().unwrap();
        assert_eq!((given.bytes, given.segments), if waits { (0, 0) } else { (70 * MIB, 2) });
        assert_eq!(gpu.trim_idle(Duration::ZERO).unwrap().bytes, 0);
        drop(s);
        all_clean(&sim, gpu);
    }
}

/// Memory goes back when it was idle for the age, by the program's clock, and not before: what was used meanwhile begins anew, whatever is beside it.
#[test]
fn idle_memory_goes_back_with_age() {
    let sim = late();
    let now = Arc::new(AtomicU64::new(0));
    let clock = Arc::clone(&now);
    let gpu = on(&sim, windows().clock(move || Duration::from_secs(clock.load(Ordering::Relaxed))));
    let s = gpu.stream().unwrap();
    let at = |seconds| now.store(seconds, Ordering::Relaxed);
    let idle_for = |seconds| gpu.trim_idle(Duration::from_secs(seconds)).unwrap().bytes / MIB;
    let mut all = blocks(&gpu, 8, &s);
    let second = all.split_off(4);
    at(100);
    assert_eq!(idle_for(0), 0, "everything is live");
    drop(all);
    gpu.synchronize().unwrap();
    at(110);
    assert_eq!(idle_for(10), 0, "freed between the calls: it counts as used until now");
    at(115);
    drop(second);
    gpu.synchronize().unwrap();
    assert_eq!(idle_for(10), 0);
    at(120);
    assert_eq!(idle_for(10), 8, "of the first 10 s ago");
    assert_eq!(taken(&sim, &gpu), 8 * MIB);
    // Used again.
    drop(gpu.alloc(2 * MIB, &s).unwrap());
    gpu.synchronize().unwrap();
    at(125);
    assert_eq!(idle_for(10), 6, "one was used meanwhile");
    at(134);
    assert_eq!(idle_for(10), 0);
    at(135);
    assert_eq!((idle_for(10), taken(&sim, &gpu)), (2, 0));
    drop(s);
    all_clean(&sim, gpu);
}

/// Idle trimming waits for nothing and takes nothing that is pending, however old.
#[test]
fn idle_memory_that_is_pending_stays() {
    let sim = late();
    let gpu = on(&sim, windows());
    let s = gpu.stream().unwrap();
    let x = gpu.alloc(4 * MIB, &s).unwrap();
    write(&sim, &x, &s);
    drop(x);
    for _ in 0..3 {
        assert_eq!(gpu.trim_idle(Duration::ZERO).unwrap().bytes, 0);
    }
    assert_eq!(sim.ledger().host_waits, 0);
    sim.run_until_idle();
    assert_eq!(gpu.trim_idle(Duration::ZERO).unwrap().bytes, 4 * MIB);
    drop(s);
    all_clean(&sim, gpu);
}
