//! What requests spend on moves of physical memory: a share of the program's time, by longer handles and more slack, and at a limit whatever it takes.

use crate::rig::{all_clean, late, on, write_all};
use crate::windows::taken;
use millpond::allocator::{Footprint, VirtualMemory};
use millpond::units::{GIB, KIB, MIB};
use millpond::{Allocator, Config, Error, Limit, Policy, Stream, Trim};
use millpond_sim::{Call, Sim};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// What is live of an alternation.
const LIVE: u64 = 400 * MIB;
/// What the bucket may owe at 1 %, in microseconds: seven steps of 1 ms.
const OWED: u64 = 7_000;
const CREDIT: u64 = 20_000;

fn config() -> Config {
    Config::default().virtual_memory(VirtualMemory::Always).policy(Policy::Footprint)
}

/// No bound on time.
fn unbounded() -> Config {
    config().footprint(Footprint::default().time(0.0))
}

/// What the calls on physical memory cost so far, by their simulated prices, in microseconds.
fn spent(sim: &Sim) -> u64 {
    let ledger = sim.ledger();
    let calls = [(Call::Create, 0), (Call::Map, 16_500), (Call::Unmap, 11_700), (Call::Release, 0)];
    calls.map(|(call, more)| ledger.calls_of(call) * (call.price() + more)).iter().sum::<u64>() / 1000
}

/// So many bytes on these streams by turns, in pieces of another length each time, so that no range of one stream serves the next; a round every so often.
fn alternate_of(
    live: u64,
    (sim, gpu): (&Sim, &Allocator<Sim>),
    streams: &[Stream<Sim>],
    (rounds, every): (usize, Duration),
) {
    let start = sim.host_time();
    for round in 0..rounds {
        let s = &streams[round % streams.len()];
        s.wait_stream(&streams[(round + streams.len() - 1) % streams.len()]).unwrap();
        let pieces = 3 + round as u64 % 5;
        let blocks: Vec<_> = (0..pieces).map(|_| gpu.alloc(live / pieces, s).unwrap()).collect();
        write_all(sim, &blocks, s);
        drop(blocks);
        sim.run_until_idle();
        sim.idle_until(start + every * (round as u32 + 1));
    }
}

fn alternate(sim: &Sim, gpu: &Allocator<Sim>, streams: &[Stream<Sim>], rounds: usize, every: Duration) {
    alternate_of(LIVE, (sim, gpu), streams, (rounds, every));
}

fn eight(gpu: &Allocator<Sim>) -> Vec<Stream<Sim>> {
    (0..8).map(|_| gpu.stream().unwrap()).collect()
}

/// How many handles a new range of 64 MiB has beside what is live, while nothing is free.
fn handles_of_a_growth(sim: &Sim, gpu: &Allocator<Sim>, s: &Stream<Sim>) -> u64 {
    let base = gpu.alloc(LIVE, s).unwrap();
    gpu.synchronize().unwrap();
    gpu.trim(Trim::All).unwrap();
    let before = sim.ledger().calls_of(Call::Create);
    let x = gpu.alloc(64 * MIB, s).unwrap();
    let made = sim.ledger().calls_of(Call::Create) - before;
    drop((base, x));
    made
}

/// An alternation of shapes that costs more than the share of time where that is not bounded, spends the share, the credit and what may be owed.
#[test]
fn an_alternation_spends_its_share_of_time() {
    // Handles of 4 MiB, of 16 where time is scarce.
    let (live, every) = (4 * LIVE, Duration::from_millis(130));
    let run = |config| {
        let sim = late();
        let gpu = on(&sim, config);
        let streams = eight(&gpu);
        alternate_of(live, (&sim, &gpu), &streams, (256, every));
        let may = CREDIT + OWED + sim.host_time().as_micros() as u64 / 100;
        let found = (spent(&sim), may, taken(&sim, &gpu));
        drop(streams);
        all_clean(&sim, gpu);
        found
    };
    let (cost, may, bytes) = run(config());
    assert!(cost <= may, "{cost} us of {may}");
    assert!(bytes * 100 <= live * 111, "{bytes} bytes for {live}");
    let (cost, may, bytes) = run(unbounded());
    assert!(2 * cost > 3 * may, "{cost} us of {may}: this alternation shows nothing");
    assert!(bytes * 100 <= live * 102, "{bytes} bytes for {live}");
}

/// With no time at all handles become longer, then the slack rises to 10 %, and no request fails for want of time. When time has passed, both are as they were.
#[test]
fn handles_and_slack_grow_and_return() {
    let sim = late();
    let gpu = on(&sim, config());
    let streams = eight(&gpu);
    alternate(&sim, &gpu, &streams[..1], 5, Duration::ZERO);
    let first = taken(&sim, &gpu);
    assert!(first * 100 <= LIVE * 102, "{first} bytes for {LIVE}: the credit is not spent yet");
    let made = sim.ledger().calls_of(Call::Create);
    assert!(made >= first / (2 * MIB), "{made} handles for {first} bytes: a 256th is less than a unit");
    alternate(&sim, &gpu, &streams, 48, Duration::ZERO);
    let bytes = taken(&sim, &gpu);
    assert!(bytes * 100 > LIVE * 104, "{bytes} bytes for {LIVE}");
    assert!(bytes * 100 <= LIVE * 111, "{bytes} bytes for {LIVE}");
    let stats = spent(&sim);
    assert!(stats > 2 * (CREDIT + OWED), "{stats} us: the bound yielded");
    assert_eq!(gpu.report().total.counters.host_waits, 0);

    assert_eq!(handles_of_a_growth(&sim, &gpu, &streams[0]), 16, "a 64th are 4 MiB");
    sim.idle_until(sim.host_time() + Duration::from_secs(30));
    assert_eq!(handles_of_a_growth(&sim, &gpu, &streams[0]), 32, "a 256th is less than a unit");
    gpu.synchronize().unwrap();
    gpu.trim(Trim::All).unwrap();
    alternate(&sim, &gpu, &streams, 48, Duration::from_secs(1));
    let (bytes, most) = (taken(&sim, &gpu), LIVE + 64 * MIB);
    assert!(bytes * 100 <= most * 102, "{bytes} bytes for {most}");
    drop(streams);
    all_clean(&sim, gpu);
}

/// Where growth would be refused a request moves whatever it needs, however much was spent, and takes handles as short as ever.
#[test]
fn at_a_limit_time_does_not_count() {
    let limit = |config: Config| config.limit(Limit::Bytes(LIVE + 8 * MIB));
    let run = |config| {
        let sim = late();
        let gpu = on(&sim, config);
        let streams = eight(&gpu);
        alternate(&sim, &gpu, &streams, 48, Duration::ZERO);
        let counters = gpu.report().total.counters;
        assert!(taken(&sim, &gpu) <= LIVE + 8 * MIB);
        drop(streams);
        all_clean(&sim, gpu);
        counters.host_waits
    };
    assert_eq!(run(limit(config())), run(limit(unbounded())));
}

/// Time changes nothing in deterministic mode: with a bound and without one the same calls are made, and as many when the clock is another.
#[test]
fn a_deterministic_allocator_knows_no_time() {
    let run = |config: Config, every| {
        let sim = late();
        let gpu = on(&sim, config);
        let streams = eight(&gpu);
        alternate(&sim, &gpu, &streams, 48, every);
        let ledger = sim.ledger();
        let calls = [Call::Create, Call::Map, Call::Unmap, Call::Release].map(|call| ledger.calls_of(call));
        drop(streams);
        all_clean(&sim, gpu);
        calls
    };
    let (none, some) = (Duration::ZERO, Duration::from_millis(80));
    let [bounded, later, unbound] =
        [(config(), none), (config(), some), (unbounded(), none)].map(|(c, t)| run(c.deterministic(true), t));
    assert_eq!(bounded, unbound);
    assert_eq!(bounded, later);
    assert_ne!(run(config(), none), run(unbounded(), none), "this alternation shows nothing");
}

/// The time is that of the clock that the program gives: by one that stands still the credit is all there is.
#[test]
fn a_clock_of_the_programs_own() {
    let run = |share: u64| {
        let sim = late();
        let clock = Arc::new(AtomicU64::new(0));
        let time = Arc::clone(&clock);
        let gpu = on(&sim, config().clock(move || Duration::from_nanos(time.load(Ordering::Relaxed))));
        let streams = eight(&gpu);
        for _ in 0..6 {
            alternate(&sim, &gpu, &streams, 8, Duration::from_secs(1));
            clock.fetch_add(share * 8_000_000_000, Ordering::Relaxed);
        }
        let bytes = taken(&sim, &gpu);
        drop(streams);
        all_clean(&sim, gpu);
        bytes
    };
    let (stands, goes) = (run(0), run(1));
    assert!(stands * 100 > LIVE * 104, "{stands} bytes for {LIVE}");
    assert!(goes * 100 <= LIVE * 102, "{goes} bytes for {LIVE}");
}

/// A trim is the program's, and no request's: what it costs is not owed.
#[test]
fn a_trim_spends_nothing() {
    let sim = late();
    let gpu = on(&sim, config());
    let s = gpu.stream().unwrap();
    for _ in 0..4 {
        // 4.5 ms to make them, 3.7 ms to give them back.
        drop(gpu.alloc(LIVE, &s).unwrap());
        gpu.synchronize().unwrap();
        gpu.trim(Trim::All).unwrap();
        assert_eq!(taken(&sim, &gpu), 0);
        sim.idle_until(sim.host_time() + Duration::from_millis(450));
    }
    let before = sim.ledger().calls_of(Call::Create);
    drop(gpu.alloc(LIVE, &s).unwrap());
    assert_eq!(sim.ledger().calls_of(Call::Create) - before, LIVE / (2 * MIB), "handles as short as ever");
    drop(s);
    all_clean(&sim, gpu);
}

/// So many blocks of 2 MiB, every other one freed, and a request for 16 MiB: how many handles moved, and how many bytes are reserved.
fn fragments(config: Config) -> (u64, u64) {
    let sim = late();
    let gpu = on(&sim, config);
    let s = gpu.stream().unwrap();
    let mut all: Vec<_> = (0..16).map(|_| Some(gpu.alloc(2 * MIB, &s).unwrap())).collect();
    all.iter_mut().step_by(2).for_each(|x| drop(x.take()));
    let (maps, creates) = (sim.ledger().calls_of(Call::Map), sim.ledger().calls_of(Call::Create));
    let x = gpu.alloc(16 * MIB, &s).unwrap();
    let new = sim.ledger().calls_of(Call::Create) - creates;
    let moved = sim.ledger().calls_of(Call::Map) - maps - new;
    let bytes = taken(&sim, &gpu);
    drop((x, all, s));
    all_clean(&sim, gpu);
    (moved, bytes / MIB)
}

#[test]
fn the_bound_on_moves_counts_below_the_limit() {
    let bound = |most| config().footprint(Footprint::default().moves(most));
    assert_eq!(fragments(config()), (8, 32));
    let (moved, mib) = fragments(bound(3));
    assert!(moved <= 3 && mib > 32, "{moved} moves, {mib} MiB");
    let (moved, mib) = fragments(bound(0));
    assert!(moved == 0 && mib >= 48 - 4, "{moved} moves, {mib} MiB");
    assert_eq!(fragments(bound(3).limit(Limit::Bytes(32 * MIB))), (8, 32), "at the limit");
}

#[test]
fn the_slack_is_taken_before_anything_moves() {
    let slack = |of| config().footprint(Footprint::default().slack(of));
    assert_eq!(fragments(slack(0.0)), (8, 32));
    // 32 MiB are live at most: 20 % above are 6 MiB of room, and five handles move.
    assert_eq!(fragments(slack(0.2)), (5, 38));
    assert_eq!(fragments(slack(1.0)).0, 0);
}

#[test]
fn the_largest_handle_is_as_configured() {
    let made = |config: Config| {
        let sim = Sim::new(8 * GIB).contents(false);
        let gpu = on(&sim, config);
        let s = gpu.stream().unwrap();
        // 2 GiB, of which a 256th is 8 MiB.
        let base = gpu.alloc(2 * GIB, &s).unwrap();
        let before = sim.ledger().calls_of(Call::Create);
        let x = gpu.alloc(64 * MIB, &s).unwrap();
        let made = sim.ledger().calls_of(Call::Create) - before;
        drop((x, base, s));
        all_clean(&sim, gpu);
        made
    };
    let largest = |bytes| unbounded_with(Footprint::default().largest_handle(bytes));
    assert_eq!(made(largest(64 * MIB)), 8);
    assert_eq!(made(largest(4 * MIB)), 16);
    assert_eq!(made(largest(7 * MIB)), 16, "the next lower power of two");
    assert_eq!(made(largest(2 * MIB)), 32);
}

fn unbounded_with(numbers: Footprint) -> Config {
    config().footprint(numbers.time(0.0))
}

#[test]
fn a_number_out_of_range_is_named() {
    let numbers = Footprint::default();
    for (numbers, name, found, expected) in [
        (numbers.slack(1.5), "footprint.slack", "1.5", "0 to 1"),
        (numbers.slack(f64::NAN), "footprint.slack", "NaN", "0 to 1"),
        (numbers.time(-0.01), "footprint.time", "-0.01", "0 to 1"),
        (numbers.largest_handle(512 * KIB), "footprint.largest_handle", "524288", "2 MiB or more"),
    ] {
        match Allocator::new(late(), config().footprint(numbers)) {
            Err(Error::Config { name: of, found: what, expected: may }) => {
                assert_eq!((of, what.as_str()), (name, found));
                assert!(may.contains(expected), "{may}");
            }
            other => panic!("{name}: {other:?}"),
        }
    }
}
