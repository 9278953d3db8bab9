//! Between which streams a wait is inserted for memory: by default between those that the program itself has ordered, and for those that it
//! declared dependable; never for independent ones.

use crate::rig::{all_clean, check, check_all, late, on, write, write_all};
use millpond::allocator::VirtualMemory;
use millpond::units::MIB;
use millpond::{Allocation, Allocator, Config, Growth, Limit, Policy, Reuse, Stream};
use millpond_sim::{Schedule, Sim};
use std::time::Duration;

type Gpu = Allocator<Sim>;
type Lane = Stream<Sim>;

/// Where a wait comes before growth, and the host never waits.
fn config() -> Config {
    Config::default().policy(Policy::Footprint).growth(Growth::Exact).bounded_wait(Duration::ZERO)
}

/// What a request for 8 MiB on `t` cost while 8 MiB that `s` has freed are still written: growths, waits on the device, waits of the host.
fn cost(sim: &Sim, gpu: &Gpu, s: &Lane, t: &Lane) -> (u64, u64, u64) {
    let x = gpu.alloc(8 * MIB, s).unwrap();
    write(sim, &x, s);
    drop(x);
    let counts = || {
        let report = gpu.report();
        (report.growths, report.total.counters.waits_inserted, report.total.counters.host_waits)
    };
    let before = counts();
    let y = gpu.alloc(8 * MIB, t).unwrap();
    write(sim, &y, t);
    let after = counts();
    gpu.check();
    (after.0 - before.0, after.1 - before.1, after.2 - before.2)
}

const GROWS: (u64, u64, u64) = (1, 0, 0);
const WAITS: (u64, u64, u64) = (0, 1, 0);

/// The same for two streams of which the program has said what `order` says, both ways: whichever of them was ordered behind the other.
fn cost_after(config: &Config, order: impl Fn(&Sim, &Gpu, &Lane, &Lane)) -> [(u64, u64, u64); 2] {
    [false, true].map(|turned| {
        let sim = late();
        let gpu = on(&sim, config.clone());
        let (a, b) = (gpu.stream().unwrap(), gpu.stream().unwrap());
        order(&sim, &gpu, &a, &b);
        let cost = if turned { cost(&sim, &gpu, &b, &a) } else { cost(&sim, &gpu, &a, &b) };
        drop((a, b));
        all_clean(&sim, gpu);
        cost
    })
}

fn block(sim: &Sim, gpu: &Gpu, on: &Lane) -> Allocation<Sim> {
    let x = gpu.alloc(4096, on).unwrap();
    write(sim, &x, on);
    x
}

/// The default's text is `known`.
#[test]
fn known_waits_are_the_default() {
    assert_eq!(Reuse::default(), Reuse::KnownWaits);
}

/// Two streams that have nothing to do with each other do not wait for each other.
#[test]
fn streams_that_the_program_has_not_ordered_grow() {
    assert_eq!(cost_after(&config(), |_, _, _, _| {}), [GROWS; 2]);
    assert_eq!(cost_after(&config().reuse(Reuse::Ordered), |_, gpu, s, t| order(gpu, s, t)), [GROWS; 2]);
    assert_eq!(cost_after(&config().reuse(Reuse::WithWaits), |_, _, _, _| {}), [WAITS; 2]);
    // What they do on the same allocator is no order: nor is the host's.
    let apart = |sim: &Sim, gpu: &Gpu, s: &Lane, t: &Lane| {
        for lane in [s, t] {
            drop(block(sim, gpu, lane));
            lane.record().unwrap().synchronize(Duration::from_secs(1)).unwrap();
            lane.synchronize().unwrap();
        }
        s.wait_stream(s).unwrap();
        gpu.synchronize().unwrap();
    };
    assert_eq!(cost_after(&config(), apart), [GROWS; 2]);
    // A use of memory of one's own is none either.
    let own = |sim: &Sim, gpu: &Gpu, s: &Lane, _: &Lane| {
        let x = block(sim, gpu, s);
        x.record_use(s).unwrap();
        x.share_with(s).unwrap();
    };
    assert_eq!(cost_after(&config(), own), [GROWS; 2]);
}

fn order(_: &Gpu, s: &Lane, t: &Lane) {
    t.wait_stream(s).unwrap();
}

/// Each way in which a program orders streams through us is an edge, in both directions.
#[test]
fn each_order_of_the_program_is_seen() {
    type Order = fn(&Sim, &Gpu, &Lane, &Lane);
    let ways: [(&str, Order); 12] = [
        ("a wait for a stream", |_, _, s, t| t.wait_stream(s).unwrap()),
        ("a wait for an event", |_, _, s, t| t.wait(&s.record().unwrap()).unwrap()),
        ("a wait for what is complete", |_, _, s, t| {
            let event = s.record().unwrap();
            s.synchronize().unwrap();
            t.wait(&event).unwrap();
        }),
        ("record_use", |sim, gpu, s, t| block(sim, gpu, s).record_use(t).unwrap()),
        ("record_use_until", |sim, gpu, s, t| {
            let x = block(sim, gpu, s);
            x.record_use_until(&t.record().unwrap()).unwrap();
        }),
        ("share_with", |sim, gpu, s, t| block(sim, gpu, s).share_with(t).unwrap()),
        ("free_on", |sim, gpu, s, t| block(sim, gpu, s).free_on(t).unwrap()),
        ("a write to an array", |_, gpu, s, t| {
            gpu.zeros::<u8>(4096, s).unwrap().fill_bytes(1, t).unwrap();
        }),
        ("a read of an array", |_, gpu, s, t| {
            gpu.zeros::<u8>(4096, s).unwrap().to_pinned(t).unwrap().wait().unwrap();
        }),
        ("an array that is new", |_, gpu, s, t| {
            gpu.uninit::<u8>(4096, s).unwrap().fill_bytes(1, t).unwrap();
        }),
        ("a copy between arrays", |_, gpu, s, t| {
            let x = gpu.zeros::<u8>(4096, s).unwrap();
            let mut y = gpu.zeros::<u8>(4096, t).unwrap();
            y.copy_from_device(&x, t).unwrap();
        }),
        ("an array's declared use", |_, gpu, s, t| {
            gpu.zeros::<u8>(4096, s).unwrap().record_use(t).unwrap();
        }),
    ];
    for (way, order) in ways {
        assert_eq!(cost_after(&config(), order), [WAITS; 2], "{way}");
    }
}

/// An operation's stream is ordered behind other users of its operands, not only behind their home.
#[test]
fn users_of_an_array_are_seen() {
    let sim = late();
    let gpu = on(&sim, config());
    let [home, s, t] = [0; 3].map(|_| gpu.stream().unwrap());
    let mut x = gpu.zeros::<u8>(4096, &home).unwrap();
    x.fill_bytes(1, &s).unwrap();
    x.fill_bytes(2, &t).unwrap();
    assert_eq!(cost(&sim, &gpu, &s, &t), WAITS);
    drop((x, home, s, t));
    all_clean(&sim, gpu);
}

/// Two streams that both meet a third have no edge: each wait is between streams that the program itself has ordered.
#[test]
fn an_edge_is_between_two_streams() {
    let meet = |_: &Sim, gpu: &Gpu, s: &Lane, t: &Lane| {
        let between = gpu.stream().unwrap();
        between.wait_stream(s).unwrap();
        between.wait_stream(t).unwrap();
    };
    assert_eq!(cost_after(&config(), meet), [GROWS; 2]);
}

/// Any stream waits for a dependable one, and a dependable one for no other on that account. Declarations come and go, and the last one counts.
#[test]
fn any_stream_waits_for_a_dependable_one() {
    let both =
        |_: &Sim, _: &Gpu, s: &Lane, t: &Lane| [s, t].iter().for_each(|lane| lane.set_dependable(true));
    assert_eq!(cost_after(&config(), both), [WAITS; 2]);
    assert_eq!(cost_after(&config(), |_, _, s, _| s.set_dependable(true)), [WAITS, GROWS]);
    let taken_back = |_: &Sim, _: &Gpu, s: &Lane, _: &Lane| {
        s.set_dependable(true);
        s.set_dependable(false);
    };
    assert_eq!(cost_after(&config(), taken_back), [GROWS; 2]);
    let last = |_: &Sim, _: &Gpu, s: &Lane, _: &Lane| {
        s.set_independent(true);
        s.set_dependable(true);
        // Takes back what does not hold any more.
        s.set_independent(false);
    };
    assert_eq!(cost_after(&config(), last), [WAITS, GROWS]);
    let where_made = |gpu: &Gpu| gpu.stream().unwrap().dependable();
    let sim = late();
    let gpu = on(&sim, config());
    let (s, t) = (where_made(&gpu), gpu.stream().unwrap());
    assert_eq!(cost(&sim, &gpu, &s, &t), WAITS);
    drop((s, t));
    all_clean(&sim, gpu);
}

/// Whatever else was said or done, no stream waits for an independent one, nor an independent one for another.
#[test]
fn independent_wins() {
    for reuse in [Reuse::KnownWaits, Reuse::WithWaits] {
        let last = |_: &Sim, _: &Gpu, s: &Lane, t: &Lane| {
            t.wait_stream(s).unwrap();
            s.set_dependable(true);
            t.set_dependable(true);
            s.set_independent(true);
            // Takes back what does not hold any more.
            s.set_dependable(false);
        };
        assert_eq!(cost_after(&config().reuse(reuse), last), [GROWS; 2], "{reuse:?}");
    }
}

/// What the allocator orders for reuse is not the program's order: t waited for s because s was dependable then.
#[test]
fn the_allocators_own_waits_are_no_edges() {
    let sim = late();
    let gpu = on(&sim, config());
    let (s, t) = (gpu.stream().unwrap().dependable(), gpu.stream().unwrap());
    assert_eq!(cost(&sim, &gpu, &s, &t), WAITS);
    assert_eq!(gpu.bookkeeping().edges, 0);
    s.set_dependable(false);
    gpu.synchronize().unwrap();
    gpu.trim(millpond::Trim::All).unwrap();
    assert_eq!(cost(&sim, &gpu, &s, &t), GROWS);
    drop((s, t));
    all_clean(&sim, gpu);
}

/// At a limit the answer is the same: out of memory, or with patience a bounded wait of the host, which needs no edge.
#[test]
fn at_a_limit_the_host_waits() {
    for (patience, edge) in [(0, false), (1000, false), (0, true)] {
        let sim = late();
        let at = Limit::Bytes(8 * MIB);
        let gpu = on(&sim, config().limit(at).bounded_wait(Duration::from_millis(patience)));
        let (s, t) = (gpu.stream().unwrap(), gpu.stream().unwrap());
        if edge {
            s.wait_stream(&t).unwrap();
        }
        let x = gpu.alloc(8 * MIB, &s).unwrap();
        write(&sim, &x, &s);
        drop(x);
        let y = gpu.alloc(8 * MIB, &t);
        let counters = gpu.report().total.counters;
        assert_eq!(y.is_ok(), patience > 0 || edge);
        assert_eq!((counters.waits_inserted, counters.host_waits > 0), (u64::from(edge), patience > 0));
        if let Ok(y) = &y {
            write(&sim, y, &t);
        }
        drop((y, s, t));
        all_clean(&sim, gpu);
    }
}

/// Memory of a pool in flight: behind its home stream and its users, each of which needs an edge; the own stream has one to each of its users.
#[test]
fn ranges_in_flight_wait_for_what_the_program_ordered() {
    for (with_user, waits) in [(false, GROWS), (true, (0, 2, 0))] {
        let sim = late();
        let gpu = on(&sim, config());
        let [home, user, third] = [0; 3].map(|_| gpu.stream().unwrap());
        third.wait_stream(&home).unwrap();
        if with_user {
            third.wait_stream(&user).unwrap();
        }
        let x = gpu.alloc(8 * MIB, &home).unwrap();
        write(&sim, &x, &home);
        x.share_with(&user).unwrap();
        user.wait_stream(&home).unwrap();
        check(&sim, &x, &user);
        drop(x);
        let counts = || {
            let report = gpu.report();
            (report.growths, report.total.counters.waits_inserted, report.total.counters.host_waits)
        };
        let before = counts();
        let y = gpu.alloc(8 * MIB, &third).unwrap();
        write(&sim, &y, &third);
        let after = counts();
        assert_eq!((after.0 - before.0, after.1 - before.1, after.2 - before.2), waits);
        drop((y, home, user, third));
        all_clean(&sim, gpu);
    }
    // Its own: the use on the other stream is the edge.
    let sim = late();
    let gpu = on(&sim, config());
    let [home, user] = [0; 2].map(|_| gpu.stream().unwrap());
    let x = gpu.alloc(8 * MIB, &home).unwrap();
    x.share_with(&user).unwrap();
    write(&sim, &x, &user);
    drop(x);
    let y = gpu.alloc(8 * MIB, &home).unwrap();
    write(&sim, &y, &home);
    let report = gpu.report();
    assert_eq!((report.growths, report.total.counters.waits_inserted), (1, 1));
    drop((y, home, user));
    all_clean(&sim, gpu);
}

/// Physical memory moves behind a wait by the same rule.
#[test]
fn moves_wait_for_what_the_program_ordered() {
    for edge in [false, true] {
        let sim = late();
        let config = config().virtual_memory(VirtualMemory::Always).growth(Growth::default());
        let gpu = on(&sim, config.limit(Limit::Bytes(32 * MIB)));
        let (s, t) = (gpu.stream().unwrap(), gpu.stream().unwrap());
        if edge {
            s.wait_stream(&t).unwrap();
        }
        let all: Vec<_> = (0..16).map(|_| gpu.alloc(2 * MIB, &s).unwrap()).collect();
        write_all(&sim, &all, &s);
        let kept: Vec<_> = all.into_iter().enumerate().filter(|(n, _)| n % 2 == 1).map(|(_, x)| x).collect();
        let moved = gpu.alloc(16 * MIB, &t);
        assert_eq!(moved.is_ok(), edge);
        assert_eq!(gpu.report().total.counters.waits_inserted, u64::from(edge));
        if let Ok(x) = &moved {
            write(&sim, x, &t);
        }
        check_all(&sim, &kept, &s);
        drop((moved, kept, s, t));
        all_clean(&sim, gpu);
    }
}

/// Where no queries are made, the stream waits for the older half of what is in flight: of what streams used that the program ordered. For memory whose
/// users nobody knows it would wait for all streams, which nobody has ordered.
#[test]
fn deterministic_allocators_wait_by_the_same_rule() {
    for (unknown, reuse, waits) in
        [(false, Reuse::KnownWaits, true), (true, Reuse::KnownWaits, false), (true, Reuse::WithWaits, true)]
    {
        let sim = late();
        let gpu = on(&sim, Config::default().deterministic(true).growth(Growth::Exact).reuse(reuse));
        let (s, t) = (gpu.stream().unwrap(), gpu.stream().unwrap());
        for _ in 0..32 {
            let x = gpu.alloc(MIB, &s).unwrap();
            x.share_with(&t).unwrap();
            write(&sim, &x, &t);
            if unknown { x.free_unknown() } else { drop(x) }
        }
        let report = gpu.report();
        assert_eq!(report.total.counters.waits_inserted > 0, waits, "{unknown} {reuse:?}");
        assert_eq!(report.growths < 32, waits, "{unknown} {reuse:?}");
        gpu.synchronize().unwrap();
        drop((s, t));
        all_clean(&sim, gpu);
    }
}

/// A thread's default stream may be marked by the whole context, behind all streams.
#[test]
fn a_wait_for_all_streams_is_never_known() {
    for (reuse, costs) in [(Reuse::KnownWaits, GROWS), (Reuse::WithWaits, WAITS)] {
        let sim = late();
        let gpu = on(&sim, config().reuse(reuse));
        let (s, t) = (gpu.adopt(sim.per_thread_stream()).unwrap(), gpu.stream().unwrap());
        t.wait_stream(&s).unwrap();
        s.set_dependable(true);
        assert_eq!(cost(&sim, &gpu, &s, &t), costs);
        drop((s, t));
        all_clean(&sim, gpu);
    }
}

/// The kernel of a waits for a flag that the host sets when b is done. Were b made to wait for a, neither would ever end.
#[test]
fn a_program_with_a_flag_between_its_streams_ends() {
    for policy in [Policy::Latency, Policy::Footprint] {
        for (reuse, ends) in [(Reuse::default(), true), (Reuse::WithWaits, policy == Policy::Latency)] {
            let sim = Sim::new(1 << 30).schedule(Schedule::Earliest);
            let gpu = on(&sim, config().reuse(reuse).policy(policy));
            let (a, b) = (gpu.stream().unwrap(), gpu.stream().unwrap());
            let flag = sim.gate(a.native()).unwrap();
            let x = gpu.alloc(8 * MIB, &a).unwrap();
            write(&sim, &x, &a);
            drop(x);
            let y = gpu.alloc(8 * MIB, &b).unwrap();
            write(&sim, &y, &b);
            let done = b.synchronize();
            assert_eq!(done.is_ok(), ends, "{policy:?} {reuse:?}: {done:?}");
            assert_eq!(sim.ledger().endless_waits > 0, !ends, "{policy:?} {reuse:?}");
            flag.open();
            b.synchronize().unwrap();
            drop((y, a, b));
            all_clean(&sim, gpu);
        }
    }
}

/// Beside more streams than a miss looks at each, the rule is the same.
#[test]
fn among_many_streams() {
    let sim = late();
    let gpu = on(&sim, config());
    let streams: Vec<Lane> = (0..100).map(|_| gpu.stream().unwrap()).collect();
    let blocks: Vec<_> = streams.iter().map(|s| gpu.alloc(8 * MIB, s).unwrap()).collect();
    for (x, s) in blocks.iter().zip(&streams) {
        write(&sim, x, s);
    }
    drop(blocks);
    let counts = || (gpu.report().growths, gpu.report().total.counters.waits_inserted);
    let t = gpu.stream().unwrap();
    let mut held = Vec::new();
    let mut ask = || {
        let before = counts();
        let x = gpu.alloc(8 * MIB, &t).unwrap();
        write(&sim, &x, &t);
        held.push(x);
        (counts().0 - before.0, counts().1 - before.1)
    };
    assert_eq!(ask(), (1, 0));
    for n in [7, 63, 64, 99] {
        streams[n].wait_stream(&t).unwrap();
        assert_eq!(ask(), (0, 1), "stream {n}");
        assert_eq!(ask(), (1, 0), "stream {n} has no more");
    }
    drop((held, streams, t));
    all_clean(&sim, gpu);
}

/// Edges go with their streams: ten thousand of them meet one that stays, in turn, and each other.
#[test]
fn edges_end_with_their_streams() {
    for deterministic in [false, true] {
        let sim = Sim::new(1 << 30).oracle(false);
        let gpu = on(&sim, Config::default().deterministic(deterministic));
        let stays = gpu.stream().unwrap();
        let mut last = gpu.stream().unwrap();
        let mut events = Vec::new();
        let mut most = 0;
        for n in 0..10_000 {
            let next = gpu.stream().unwrap();
            next.wait_stream(&stays).unwrap();
            next.wait_stream(&last).unwrap();
            let x = gpu.alloc(512, &next).unwrap();
            x.record_use(&stays).unwrap();
            // An event keeps the timeline of a stream that is gone, and brings its edge back if it is waited for.
            events.push(last.record().unwrap());
            if n % 16 == 0 {
                sim.run_until_idle();
                events.drain(..).for_each(|event| stays.wait(&event).unwrap());
            }
            last = next;
            let b = gpu.bookkeeping();
            assert!(b.edges <= b.timelines * b.timelines, "{b:?}");
            most = most.max(b.edges);
        }
        // As many timelines as there may be, with two edges each, at both ends.
        assert!((3..=1000).contains(&most), "{most} ends of edges");
        drop((last, events));
        gpu.synchronize().unwrap();
        drop(stays);
        all_clean(&sim, gpu);
    }
}
