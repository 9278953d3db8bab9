//! What an operation costs does not depend on how many streams there are.
//!
//! Nothing is timed. Counted are the ranked locks that the library takes, one for each pool, timeline or index that it looks at
//! (`sync::locks_taken`, in debug builds), the blocks and bytes of host memory that it makes, and the driver's calls. Steady programs
//! (`benches/streams/steady.rs`) run beside 500 and 2,000 streams (a quarter of `MILLPOND_STREAMS` and all of them), as many rounds as there are streams, so that what is
//! done once for all streams counts once and no more. Bytes are compared from 20,000 on, as `.ci/soak` has it; instructions, which see everything, are
//! counted beside 20,000 by `benches/streams.rs`.
//!
//! | test | what it shows |
//! |---|---|
//! | `on_the_null_device_*` | the cost of each kind of operation, four streams beside quiet ones and all in turns |
//! | `on_the_simulated_device` | the same where work is pending for a while, the device's own memory counted apart |
//! | `arrays_tokens_and_pinned_memory` | operations on arrays of several streams, dropped tokens, pinned blocks that streams use |
//! | `tokens_and_pinned_memory_with_thousands_pending` | the same on a device that does nothing, where as many things are kept as there are streams, and more |
//! | `a_replay_of_a_log` | the calls of a log of thousands of streams, spread and run |
//! | `a_miss_*` | a request that finds nothing, beside streams that its pool's memory waits for |
//! | `a_trim_*` | pools and segments, not one times the other |
//! | `at_the_limit_*` | a request that is refused looks at pools that cannot be waited for twice, whatever there are |
//! | `a_chain_*` | what the clocks of streams that wait for each other keep: the one thing that grows with pending streams |

#![allow(unreachable_pub, reason = "modules of a test")]

#[allow(dead_code, reason = "the bench's too")]
#[path = "../benches/streams/steady.rs"]
mod steady;

use millpond::allocator::Policy;
use millpond::driver::{Copies, Driver, Kernels};
use millpond::sync::Rank;
use millpond::units::{GIB, MIB};
use millpond::{Allocator, Config, Growth, Limit, Reuse, Trim};
use millpond_replay::{Touch, Workload, replay_log};
use millpond_sim::null::Null;
use millpond_sim::{Call, Launch, Schedule, Sim};
use millpond_testkit::counted::Device;
use millpond_testkit::counting::{self, Account, device as on_device};
use std::fmt::Write;
use std::time::Duration;
use steady::{Step, Who, World};

#[global_allocator]
static COUNTING: counting::Counting = counting::Counting;

/// So much, by name, for a step on average.
type Costs = [(&'static str, f64); 4];

/// A count may be half as much again with four times the streams, and this much more: programs are not in quite the same phase.
const MORE: [f64; 4] = [16.0, 2.0, 512.0, 0.5];

fn locks_taken() -> u64 {
    millpond::sync::locks_taken().iter().sum()
}

fn calls<D: Driver>(gpu: &Allocator<D>) -> u64 {
    on_device(|| gpu.driver().calls().iter().map(|call| call.1).sum())
}

/// What a step costs the library, after as many rounds as there are streams.
fn costs<D: Driver + Copies + Kernels>(
    driver: D,
    policy: Policy,
    streams: usize,
    who: Who,
    step: Step,
) -> Costs {
    let account = Account::open();
    account.scope(|| {
        let mut world =
            World::new(driver, Config::default().policy(policy).reuse(Reuse::WithWaits), streams, who);
        for _ in 0..streams {
            world.step(step);
        }
        let (locks, made, called) = (locks_taken(), account.made(), calls(&world.gpu));
        for _ in 0..streams {
            world.step(step);
        }
        let (locks, now) = (locks_taken() - locks, account.made());
        let called = calls(&world.gpu) - called;
        #[allow(clippy::cast_precision_loss, reason = "counts of millions")]
        let each = |count: u64| count as f64 / streams as f64;
        let grown = |now: i64, before: i64| each(u64::try_from(now - before).expect("it only grows"));
        [
            ("locks", each(locks)),
            ("blocks", grown(now.blocks, made.blocks)),
            ("bytes", grown(now.bytes, made.bytes)),
            ("driver calls", each(called)),
        ]
    })
}

/// What a call costs a replay of a log of so many streams, which are made and end in it.
fn replayed<D: Touch>(driver: D, policy: Policy, streams: usize, uses: f64) -> Costs {
    let account = Account::open();
    account.scope(|| {
        let log = steady::log(streams);
        let config = Config::default().policy(policy).reuse(Reuse::WithWaits);
        let (locks, made) = (locks_taken(), account.made());
        let outcome = replay_log(&log, &Workload::default().uses(uses), driver, config, &|_| {});
        let (outcome, locks, now) = (outcome.expect("a replay"), locks_taken() - locks, account.made());
        assert!(outcome.is_clean() && outcome.refused == 0 && outcome.calls as usize == 4 * streams);
        #[allow(clippy::cast_precision_loss, reason = "counts of millions")]
        let each = |count: u64| count as f64 / streams as f64;
        let grown = |now: i64, before: i64| each(u64::try_from(now - before).expect("it only grows"));
        let called = outcome.report.driver_calls.iter().map(|call| call.1).sum();
        [
            ("locks", each(locks)),
            ("blocks", grown(now.blocks, made.blocks)),
            ("bytes", grown(now.bytes, made.bytes)),
            ("driver calls", each(called)),
        ]
    })
}

/// Panics if a step costs more beside more streams.
fn holds<D: Driver + Copies + Kernels>(
    driver: impl Fn() -> D,
    sizes: &[usize],
    policy: Policy,
    who: Who,
    steps: &[Step],
) {
    let mut found = String::new();
    for &step in steps {
        let of = |&streams: &usize| costs(driver(), policy, streams, who, step);
        let all: Vec<Costs> = sizes.iter().map(of).collect();
        println!("{policy:?} {who:?} {step:?}: {all:.2?}");
        for (streams, costs) in sizes.iter().zip(&all).skip(1) {
            for ((&(name, now), &(_, few)), more) in costs.iter().zip(&all[0]).zip(MORE) {
                let is_level = name != "bytes" || *streams >= LEVEL_FROM;
                if is_level && now > 1.5 * few + more {
                    let _ = write!(
                        found,
                        "\n    {step:?}: {now:.1} {name} beside {streams} streams, {few:.1} beside {}",
                        sizes[0]
                    );
                }
            }
        }
        // A hit and its free take a lock each; of pinned memory what its free looks up as well.
        let most = match step {
            Step::Hit if policy == Policy::Latency => 2.01,
            Step::PinnedHit => 3.01,
            _ => continue,
        };
        for costs in &all {
            let [(_, locks), (_, blocks), _, (_, calls)] = *costs;
            assert!(
                calls == 0.0 && blocks < 0.01 && locks <= most,
                "{step:?} takes at most {most:.0} locks, and no more: {costs:?}"
            );
        }
    }
    assert!(found.is_empty(), "{policy:?}, {who:?}:{found}");
}

/// With fewer streams the bytes of a free elsewhere under `footprint` are still on their way to what they are with any number: 8 KB beside 1,000
/// streams, 17 beside 4,000, 27 to 30 from 5,000 on.
const LEVEL_FROM: usize = 20_000;

/// How many streams there are: a quarter, and all.
fn sizes() -> [usize; 2] {
    let said = std::env::var("MILLPOND_STREAMS").ok();
    let all: usize = said.map_or(2000, |n| n.parse().expect("MILLPOND_STREAMS is a number"));
    [all / 4, all]
}

/// 2 MiB for each stream, and what grows.
fn null() -> Null {
    Null::with_capacity(1 << 50)
}

#[test]
fn on_the_null_device_few_of_many() {
    holds(null, &sizes(), Policy::Latency, Who::Few, &Step::ALL);
}

#[test]
fn on_the_null_device_all_in_turns() {
    holds(null, &sizes(), Policy::Latency, Who::All, &Step::ALL);
}

#[test]
fn on_the_null_device_few_of_many_with_little_memory() {
    holds(null, &sizes(), Policy::Footprint, Who::Few, &Step::ALL);
}

#[test]
fn on_the_null_device_all_in_turns_with_little_memory() {
    holds(null, &sizes(), Policy::Footprint, Who::All, &Step::ALL);
}

/// A device that does everything at once: what is complete has to be queried.
fn sim() -> Device {
    Device::new(on_device(|| Sim::new(1 << 50).contents(false).oracle(false)))
}

#[test]
fn on_the_simulated_device() {
    holds(sim, &sizes(), Policy::Latency, Who::All, &Step::ALL);
    holds(sim, &sizes(), Policy::Footprint, Who::Few, &Step::ALL);
}

/// Half as many, for what takes the simulated device longer.
fn halves() -> [usize; 2] {
    sizes().map(|streams| streams / 2)
}

#[test]
fn arrays_tokens_and_pinned_memory() {
    holds(null, &sizes(), Policy::Latency, Who::All, &Step::ARRAYS);
    holds(sim, &halves(), Policy::Latency, Who::Few, &Step::ARRAYS);
    // Not on the null device, whose pinned memory is the host's.
    holds(sim, &halves(), Policy::Latency, Who::All, &Step::HOST);
}

/// A device that does nothing before the host waits: all that the steps leave behind is pending, as many things as there are streams when
/// counting begins, and twice as many when it ends.
fn late() -> Device {
    Device::new(on_device(|| Sim::new(1 << 50).schedule(Schedule::Latest).contents(false).oracle(false)))
}

/// Blocks of 4 KiB: of pinned memory 16,384 lie in a segment. What misses cost is the next test's.
#[test]
fn tokens_and_pinned_memory_with_thousands_pending() {
    holds(late, &halves(), Policy::Latency, Who::Few, &[Step::SourceKept, Step::PinnedUsed]);
    holds(late, &halves(), Policy::Latency, Who::All, &Step::HOST);
    holds(late, &halves(), Policy::Latency, Who::Few, &Step::ARRAYS);
}

/// What a request costs that finds nothing, while memory of its pool waits for so many streams: locks, for a request of device memory
/// and of pinned.
fn misses_beside_in_flight(streams: usize) -> [f64; 2] {
    let gpu = Allocator::new(late(), Config::default()).expect("an allocator");
    let home = gpu.stream().expect("a stream");
    let mut others = Vec::new();
    for _ in 0..streams {
        let other = gpu.stream().expect("a stream");
        let block = gpu.alloc(4096, &home).expect("memory");
        block.record_use(&other).expect("a use");
        let pinned = gpu.alloc_pinned(4096).expect("memory");
        pinned.record_use(&other).expect("a use");
        others.push(other);
    }
    let each = |mut miss: Box<dyn FnMut() + '_>| {
        let before = locks_taken();
        (0..64).for_each(|_| miss());
        #[allow(clippy::cast_precision_loss, reason = "counts of thousands")]
        let each = (locks_taken() - before) as f64 / 64.0;
        each
    };
    let (mut kept, mut pinned) = (Vec::new(), Vec::new());
    let device = each(Box::new(|| kept.push(gpu.alloc(64 * MIB, &home).expect("memory"))));
    let host = each(Box::new(|| pinned.push(gpu.alloc_pinned(64 * MIB).expect("memory"))));
    [device, host]
}

/// Memory in flight is looked at by each miss, stream by stream: by two numbers of each, and not by its locks.
#[test]
fn a_miss_takes_no_lock_for_each_stream_that_its_memory_waits_for() {
    let [few, many] = [500, 2_000].map(misses_beside_in_flight);
    println!("beside 500: {few:?}, beside 2,000: {many:?}");
    for (few, many) in few.into_iter().zip(many) {
        assert!(many <= few + 16.0, "{many} locks a miss beside four times the streams, and {few}");
    }
}

/// `millpond replay` of a log of thousands of streams takes time in proportion to its length, on the device that only hands out addresses and
/// on the simulated one, which judges it where streams know the same of each other: by the host, or by the waits of a pool's growth. Where each
/// waited for others of its own choice their clocks differ in all that is pending, and share nothing.
#[test]
fn a_replay_of_a_log() {
    let mut found = String::new();
    for (policy, uses) in [(Policy::Latency, 0.0), (Policy::Footprint, 0.0), (Policy::Latency, 0.1)] {
        let judged = uses == 0.0;
        let on_null = |&streams: &usize| replayed(null(), policy, streams, uses);
        let on_sim = |&streams: &usize| replayed(Sim::new(1 << 50).oracle(judged), policy, streams, uses);
        for all in [sizes().each_ref().map(on_null), sizes().each_ref().map(on_sim)] {
            println!("{policy:?}, {uses} of blocks used elsewhere: {all:.2?}");
            for ((&(name, now), &(_, few)), more) in all[1].iter().zip(&all[0]).zip(MORE) {
                if now > 1.5 * few + more {
                    let _ = write!(
                        found,
                        "\n    {policy:?}, {uses} of blocks used elsewhere: {now:.1} {name}, and {few:.1}"
                    );
                }
            }
        }
    }
    assert!(found.is_empty(), "a call of a log costs more with four times the streams:{found}");
}

/// Streams each of which waits for the one before, all with work that is pending.
fn chain(streams: usize) -> (Sim, Allocator<Sim>, Vec<millpond::Stream<Sim>>) {
    let sim = Sim::new(64 * GIB).schedule(Schedule::Latest).oracle(false);
    let gpu = Allocator::new(sim.clone(), Config::default()).expect("an allocator");
    let streams: Vec<_> = (0..streams).map(|_| gpu.stream().expect("a stream")).collect();
    round(&streams);
    (sim, gpu, streams)
}

fn round(streams: &[millpond::Stream<Sim>]) {
    for pair in streams.windows(2) {
        pair[1].wait_stream(&pair[0]).expect("a wait");
    }
}

/// docs/decisions/clock-chains.md: n streams in a chain, all pending, have n(n - 1)/2 entries in their clocks, because each is ordered after all
/// before it, and which of them a later request is served from cannot be predicted. And they are queried a few times a wait.
#[test]
fn a_chain_that_is_pending_names_all_before() {
    for n in [50, 200, 400] {
        let (sim, gpu, streams) = chain(n);
        assert_eq!(gpu.bookkeeping().clock_entries, n * (n - 1) / 2, "{n} streams");
        let asked = sim.ledger().calls_of(Call::EventQuery);
        assert!(asked <= 3 * n as u64, "{asked} questions for {n} waits");
        drop(streams);
    }
}

/// What is over is named no more: a clock has twice the entries that were pending when it was last looked at, or 64, or one.
#[test]
fn a_chain_that_is_over_is_forgotten() {
    for n in [200, 400] {
        let (sim, gpu, streams) = chain(n);
        // Each round's work is over before the next one.
        for _ in 0..4 {
            sim.run_until_idle();
            round(&streams);
            sim.run_until_idle();
        }
        // Nothing is pending while this chain is made.
        for pair in streams.windows(2) {
            pair[1].wait_stream(&pair[0]).expect("a wait");
            sim.run_until_idle();
        }
        let kept = gpu.bookkeeping().clock_entries;
        assert!(kept <= 65 * n, "{kept} entries in the clocks of {n} streams");
    }
}

/// A trim asks each pool once, and moves the pieces of segments that are wholly free: its cost is pools and segments, not one times the other.
#[test]
fn a_trim_queries_each_pool_once_and_not_for_each_segment() {
    let trim = |streams: usize| {
        let gpu = Allocator::new(null(), Config::default().growth(Growth::Exact)).expect("an allocator");
        let streams: Vec<_> = (0..streams).map(|_| gpu.stream().expect("a stream")).collect();
        let kept: Vec<_> = streams
            .iter()
            .map(|stream| {
                drop(gpu.alloc(3 * MIB, stream).expect("room"));
                gpu.alloc(4 * MIB, stream).expect("room")
            })
            .collect();
        gpu.synchronize().expect("a wait");
        let before = millpond::sync::locks_taken()[Rank::Pool as usize];
        let trimmed = gpu.trim(Trim::All).expect("a trim");
        let looks = millpond::sync::locks_taken()[Rank::Pool as usize] - before;
        assert_eq!((trimmed.segments, trimmed.bytes), (streams.len() as u64, 3 * MIB * streams.len() as u64));
        gpu.check();
        drop(kept);
        looks
    };
    let [few, many] = [500, 2000].map(trim);
    println!("{few} looks at 500 pools with 1,000 segments, {many} at 2,000 with 4,000");
    assert!(many <= 20 * 2000, "{few} looks at pools with 500, and {many} with 2,000");
}

/// Why a stream cannot be waited for.
#[derive(Clone, Copy, Debug)]
enum Refuses {
    /// Only calls that name it mark it.
    HeldBack,
    /// Other code captures on it.
    Captures,
    /// It was declared independent.
    Independent,
}

/// Locks of pools, and driver calls, of a request that is refused: all memory is free and pending on so many streams, of which none
/// can be waited for.
fn refused(why: Refuses, streams: usize) -> (u64, u64) {
    let sim = Sim::new(64 * GIB).schedule(Schedule::Latest).oracle(false).contents(false);
    let config = Config::default().growth(Growth::Exact).reuse(Reuse::WithWaits);
    let config = config.limit(Limit::Bytes(streams as u64 * MIB));
    let gpu = Allocator::new(sim.clone(), config.bounded_wait(Duration::ZERO)).expect("an allocator");
    let natives: Vec<_> = (0..streams).map(|_| sim.stream().expect("a stream")).collect();
    let streams: Vec<_> = natives
        .iter()
        .map(|native| match why {
            Refuses::HeldBack => gpu.adopt(sim.unmanaged_stream(native)).expect("a stream"),
            Refuses::Captures => gpu.adopt(native.clone()).expect("a stream"),
            Refuses::Independent => gpu.adopt(native.clone()).expect("a stream").independent(),
        })
        .collect();
    for (stream, native) in streams.iter().zip(&natives) {
        let block = gpu.alloc(MIB, stream).expect("room");
        sim.launch(native, Launch::new("write").writes(block.address(), 512)).expect("a launch");
        drop(block);
    }
    if matches!(why, Refuses::Captures) {
        for native in &natives {
            sim.begin_capture(native).expect("a capture");
        }
    }
    let late = gpu.stream().expect("a stream");
    let count = || (millpond::sync::locks_taken()[Rank::Pool as usize], sim.ledger().calls_total());
    // The first one has all that is pending stand aside.
    gpu.alloc(MIB, &late).expect_err("all of it is pending");
    let before = count();
    gpu.alloc(MIB, &late).expect_err("all of it is pending");
    let now = count();
    (now.0 - before.0, now.1 - before.1)
}

/// Each of a refused request's two rounds looks once at what a pool has free and once at what it has in flight, and asks a stream that captures
/// once. A look for idle streams makes a constant number of calls. Of independent streams' pools neither is looked at: what is counted there is what else is done for each pool, facts and report. A
/// pool of which some is held back is looked at twice for that by the report, and twice by what the error says of a trim.
#[test]
fn at_the_limit_pools_that_cannot_be_waited_for_are_looked_at_once_a_round() {
    for n in [200, 400, 800] {
        let [(held_back, asked), (captures, asks), (independent, unqueried)] =
            [Refuses::HeldBack, Refuses::Captures, Refuses::Independent].map(|why| refused(why, n));
        let n = n as u64;
        println!(
            "beside {n}: {held_back}, {captures} and {independent} locks, {asked}, {asks} and {unqueried} calls"
        );
        // At most eight streams a look: a marker with its event and two checks for a capture, and a query or two, each between two changes of the
        // thread's capture mode.
        let idle = 2 * 8 * 16;
        assert!(
            asked == 0 && unqueried <= idle && asks <= 2 * n + idle,
            "{asked}, {asks} and {unqueried} calls for {n} streams"
        );
        let more = held_back.saturating_sub(independent);
        assert!(
            more <= (2 * 2 + 2 + 2) * n,
            "{more} looks at the pools of {n} streams whose memory is held back"
        );
        // What was cut out is put back: two locks more a round, and the look that shows that there is no other.
        let more = captures.saturating_sub(independent);
        assert!(more <= 2 * 4 * n, "{more} looks at the pools of {n} streams that capture");
    }
}
