//! The allocator on streams: which stream gets freed bytes, and when. Every block holds a word of its own as long as it is alive, so
//! that bytes that are handed out too early are found by their contents on any device.

use super::*;
use crate::dice::Dice;
use millpond::{Growth, Limit, Reuse};
use std::sync::mpsc;

fn exact() -> Config {
    Config::default().reuse(Reuse::WithWaits).growth(Growth::Exact)
}

/// Driver calls so far, without those that get or set the current context: these do not use the device.
fn calls<T: Bench>(b: &T) -> u64 {
    let bookkeeping = ["cuCtxGetCurrent", "cuCtxSetCurrent", "cuCtxPushCurrent", "cuCtxPopCurrent"];
    b.device().calls().iter().filter(|(name, _)| !bookkeeping.contains(name)).map(|&(_, n)| n).sum()
}

pub fn a_hit_makes_no_driver_call<T: Bench>(b: &T) {
    let gpu = allocator(b, Config::default());
    let s = gpu.stream().expect("a stream");
    drop(gpu.alloc(MIB, &s).expect("warm"));
    let before = calls(b);
    assert!(before > 0, "the device counts");
    for _ in 0..50 {
        let pair = [gpu.alloc(MIB, &s).expect("hit"), gpu.alloc(300 * KIB, &s).expect("hit")];
        drop(pair);
    }
    assert_eq!(calls(b), before);
}

/// O2: on one stream freed bytes are reused at once, whatever still runs.
pub fn the_same_stream_reuses_at_once<T: Bench>(b: &T) {
    let gpu = allocator(b, exact());
    let s = gpu.stream().expect("a stream");
    let gate = b.gate(s.native());
    let mut first = None;
    for _ in 0..5 {
        let block = gpu.alloc(MIB, &s).expect("memory");
        assert_eq!(*first.get_or_insert(block.address()), block.address());
        let word = own(b, &block, &s);
        still(b, &block, &s, word);
    }
    assert!(pending(b, &mark(b, s.native())));
    b.open(gate);
    s.synchronize().expect("waited");
}

/// A stream that is ordered after the free gets the bytes, without growing and without a wait.
pub fn an_ordered_stream_gets_the_bytes<T: Bench>(b: &T) {
    let gpu = allocator(b, exact().reuse(Reuse::Ordered));
    let (s, t) = (gpu.stream().expect("s"), gpu.stream().expect("t"));
    let gate = b.gate(s.native());
    let block = gpu.alloc(4 * MIB, &s).expect("memory");
    let (at, word) = (block.address(), own(b, &block, &s));
    still(b, &block, &s, word);
    drop(block);
    t.wait_stream(&s).expect("ordered");
    let next = gpu.alloc(4 * MIB, &t).expect("memory");
    assert_eq!(next.address(), at);
    let word = own(b, &next, &t);
    still(b, &next, &t, word);
    assert!(pending(b, &mark(b, t.native())), "t waits for s");
    b.open(gate);
    t.synchronize().expect("waited");
    let report = gpu.report();
    assert_eq!((report.growths, report.total.counters.waits_inserted), (1, 0));
}

/// A stream that is not ordered after the free gets other bytes, and does not wait.
pub fn an_unordered_stream_gets_other_bytes<T: Bench>(b: &T) {
    let gpu = allocator(b, exact().reuse(Reuse::Ordered));
    let (s, t) = (gpu.stream().expect("s"), gpu.stream().expect("t"));
    let gate = b.gate(s.native());
    let block = gpu.alloc(4 * MIB, &s).expect("memory");
    let (at, word) = (block.address(), own(b, &block, &s));
    still(b, &block, &s, word);
    drop(block);
    let next = gpu.alloc(4 * MIB, &t).expect("memory");
    assert_ne!(next.address(), at, "s may still use them");
    let word = own(b, &next, &t);
    still(b, &next, &t, word);
    assert!(done(b, &mark(b, t.native())), "t waits for no stream");
    b.open(gate);
    s.synchronize().expect("waited");
}

/// When there is no other memory, the allocator makes the stream wait for the bytes' last use, on the device.
pub fn a_wait_is_inserted_when_memory_is_short<T: Bench>(b: &T) {
    let gpu = allocator(b, exact().limit(Limit::Bytes(4 * MIB)));
    let (s, t) = (gpu.stream().expect("s"), gpu.stream().expect("t"));
    let gate = b.gate(s.native());
    let block = gpu.alloc(4 * MIB, &s).expect("memory");
    let word = own(b, &block, &s);
    still(b, &block, &s, word);
    drop(block);
    let next = gpu.alloc(4 * MIB, &t).expect("the same memory, in order");
    let word = own(b, &next, &t);
    still(b, &next, &t, word);
    assert!(pending(b, &mark(b, t.native())), "t waits for s, the host does not");
    assert_eq!(gpu.report().total.counters.waits_inserted, 1);
    b.open(gate);
    t.synchronize().expect("waited");
}

/// Bytes with a recorded use by another stream are not reused by the home stream before that use is complete.
pub fn a_recorded_use_is_respected<T: Bench>(b: &T) {
    let gpu = allocator(b, exact().reuse(Reuse::Ordered));
    let (s, t) = (gpu.stream().expect("s"), gpu.stream().expect("t"));
    let (at, gate) = freed_under_a_reader(b, &gpu, 4 * MIB, &s, &t);
    let next = gpu.alloc(4 * MIB, &s).expect("memory");
    assert_ne!(next.address(), at, "t still reads them");
    let word = own(b, &next, &s);
    still(b, &next, &s, word);
    assert!(done(b, &mark(b, s.native())), "s waits for no stream");
    b.open(gate);
    gpu.synchronize().expect("waited");
    let growths = gpu.report().growths;
    let again = gpu.alloc(4 * MIB, &s).expect("memory");
    assert_eq!((again.address(), gpu.report().growths), (at, growths), "now they are reused");
}

/// Bytes that were freed with unknown users are not reused before these are complete.
pub fn a_free_by_an_unknown_stream_is_respected<T: Bench>(b: &T) {
    let gpu = allocator(b, exact().reuse(Reuse::Ordered));
    let s = gpu.stream().expect("s");
    let unknown = stream(b);
    let block = gpu.alloc(4 * MIB, &s).expect("memory");
    let (at, word) = (block.address(), own(b, &block, &s));
    s.synchronize().expect("written");
    let gate = b.gate(&unknown);
    b.check(&unknown, at, 4 * MIB, word);
    drop(unknown);
    block.free_unknown();
    let next = gpu.alloc(4 * MIB, &s).expect("memory");
    assert_ne!(next.address(), at, "a destroyed stream still reads them");
    own(b, &next, &s);
    b.open(gate);
    gpu.synchronize().expect("waited");
}

/// Streams are dropped before their allocations, allocations before their streams, the allocator before both.
pub fn streams_and_allocations_end_in_any_order<T: Bench>(b: &T) {
    for order in 0..6 {
        let gpu = allocator(b, Config::default());
        let s = gpu.stream().expect("a stream");
        let block = gpu.alloc(MIB, &s).expect("memory");
        let gate = b.gate(s.native());
        let word = own(b, &block, &s);
        still(b, &block, &s, word);
        // The last drop of a pool waits for its stream.
        b.open(gate);
        let (mut gpu, mut s, mut block) = (Some(gpu), Some(s), Some(block));
        let first = order % 3;
        let second = (first + 1 + order / 3) % 3;
        for which in [first, second, 3 - first - second] {
            match which {
                0 => drop(gpu.take()),
                1 => drop(s.take()),
                _ => drop(block.take()),
            }
        }
    }
}

/// A block is freed on the thread that drops it.
pub fn allocations_are_freed_from_other_threads<T: Bench>(b: &T) {
    let gpu = allocator(b, exact());
    let s = gpu.stream().expect("a stream");
    let (send, receive) = mpsc::channel();
    let at = std::thread::scope(|scope| {
        scope.spawn(move || receive.into_iter().for_each(drop));
        let mut at = None;
        for _ in 0..20 {
            let block = gpu.alloc(MIB, &s).expect("memory");
            let word = own(b, &block, &s);
            still(b, &block, &s, word);
            at = Some(block.address());
            send.send(block).expect("the other thread listens");
        }
        drop(send);
        at
    });
    assert!(gpu.report().total.live == 0 && at.is_some());
    let again = gpu.alloc(MIB, &s).expect("memory");
    own(b, &again, &s);
    gpu.check();
}

/// The default streams have pools like others, and the device orders them implicitly.
pub fn default_streams_are_adopted<T: Bench>(b: &T) {
    let gpu = allocator(b, exact().reuse(Reuse::Ordered));
    for native in [b.legacy(), b.per_thread()] {
        let (s, again) = (gpu.adopt(native.clone()).expect("adopted"), gpu.adopt(native).expect("twice"));
        assert_eq!(s.id(), again.id());
        let block = gpu.alloc(MIB, &s).expect("memory");
        let (at, word) = (block.address(), own(b, &block, &s));
        still(b, &block, &again, word);
        drop(block);
        let next = gpu.alloc(MIB, &again).expect("memory");
        assert_eq!(next.address(), at, "one pool");
        own(b, &next, &again);
    }
}

/// A live block of the random program, its word, and its home.
struct LiveBlock<T: Bench> {
    block: millpond::Allocation<T::Device>,
    word: u64,
    home: usize,
}

fn sizes(random: &mut Dice) -> u64 {
    match random.below(4) {
        0 => 512 * (1 + random.below(16)) as u64,
        1 => 64 * KIB + 512 * random.below(64) as u64,
        2 => 512 * KIB,
        _ => MIB + 64 * KIB * random.below(8) as u64,
    }
}

/// Random allocations, cross-stream uses, waits and frees with a low limit; every block keeps its word.
pub fn a_seeded_churn_keeps_every_pattern<T: Bench>(b: &T) {
    for (seed, policy) in [(1, millpond::Policy::Latency), (2, millpond::Policy::Footprint)] {
        let gpu = allocator(
            b,
            Config::default().reuse(Reuse::WithWaits).policy(policy).limit(Limit::Bytes(64 * MIB)),
        );
        let streams: Vec<_> = (0..3).map(|_| gpu.stream().expect("a stream")).collect();
        let mut random = Dice::new(seed);
        let mut live: Vec<LiveBlock<T>> = Vec::new();
        for _ in 0..300 {
            let at = random.below(3);
            if live.len() < 12 && random.below(2) == 0 {
                let block = gpu.alloc(sizes(&mut random), &streams[at]).expect("memory");
                let word = own(b, &block, &streams[at]);
                live.push(LiveBlock { block, word, home: at });
            } else if let Some(pick) = (!live.is_empty()).then(|| random.below(live.len())) {
                let t = &live[pick];
                if random.below(3) == 0 {
                    streams[at].wait_stream(&streams[t.home]).expect("ordered");
                    t.block.record_use(&streams[at]).expect("recorded");
                    still(b, &t.block, &streams[at], t.word);
                } else {
                    still(b, &t.block, &streams[t.home], t.word);
                    live.swap_remove(pick);
                }
            }
            if random.below(40) == 0 {
                streams[at].synchronize().expect("waited");
            }
        }
        gpu.check();
        let counters = gpu.report().total.counters;
        assert!(counters.hits > 0 && counters.in_flight_frees > 0, "{counters:?}");
    }
}

/// Threads with a stream each and one allocator; some blocks are freed by the next thread.
pub fn threads_with_a_stream_each_keep_theirs<T: Bench>(b: &T) {
    let gpu = allocator(b, Config::default().limit(Limit::Bytes(256 * MIB)));
    let (sends, receives): (Vec<_>, Vec<_>) = (0..4).map(|_| mpsc::channel()).unzip();
    std::thread::scope(|scope| {
        for (i, inbox) in receives.into_iter().enumerate() {
            let (gpu, next) = (gpu.clone(), sends[(i + 1) % 4].clone());
            scope.spawn(move || {
                let s = gpu.stream().expect("a stream");
                let mut random = Dice::new(i as u64);
                for _ in 0..60 {
                    let block = gpu.alloc(sizes(&mut random), &s).expect("memory");
                    let word = own(b, &block, &s);
                    still(b, &block, &s, word);
                    if random.below(3) == 0 {
                        // If that thread has ended, the block is freed here.
                        let _ = next.send(block);
                    }
                    inbox.try_iter().for_each(drop);
                }
                s.synchronize().expect("waited");
            });
        }
        drop(sends);
    });
    gpu.check();
    assert_eq!(gpu.report().total.live, 0);
}
