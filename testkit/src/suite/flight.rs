//! Reuse while everything is in flight.
//!
//! Streams are closed by gates first, so that no work can run. Then blocks are allocated, filled with words of their
//! own, read by other streams, checked and freed, many times in little memory: every block after the first few has the
//! bytes of a former one whose uses are all pending. The events behind the gates show that they still are at the end. Then
//! the gates open, one after the other, and every check must find its word. Bytes that were given to a stream without order
//! are overwritten as soon as that stream's gate opens, whatever the other's does.
//!
//! The same test on a driver that forgets waits must fail.

use super::without_waits::WithoutWaits;
use super::*;
use crate::dice::Dice;
use millpond::{Growth, Limit, Reuse};

/// The number of rounds; on hardware more are run.
fn rounds() -> u64 {
    std::env::var("MILLPOND_ROUNDS").ok().and_then(|r| r.parse().ok()).unwrap_or(4)
}

/// Rounds between two calls of [`Bench::tally`]: a round makes some 130 checks, and the GPU's bench has room for 65,536.
const TALLY: u64 = 100;

const STREAMS: usize = 4;
const BLOCK: u64 = 256 * KIB;
/// The limit, in blocks: twice as many as are alive at most, so that most requests reuse bytes.
const ROOM: u64 = 16;

/// One block and its word.
struct LiveBlock<D: Driver> {
    block: Allocation<D>,
    word: u64,
    home: usize,
}

/// Closes all streams, allocates and frees, and opens them. Returns how many waits the allocator inserted.
fn round<T: Bench, D>(b: &T, driver: &D, seed: u64) -> u64
where
    D: Driver + Fences<Stream = StreamOf<T>>,
{
    let config =
        Config::default().reuse(Reuse::WithWaits).growth(Growth::Exact).limit(Limit::Bytes(ROOM * BLOCK));
    let gpu = Allocator::new(driver.clone(), config).expect("an allocator");
    let streams: Vec<Stream<D>> = (0..STREAMS).map(|_| gpu.stream().expect("a stream")).collect();
    let mut gates: Vec<Option<T::Gate>> = streams.iter().map(|s| Some(b.gate(s.native()))).collect();
    let behind: Vec<EventOf<T>> = streams.iter().map(|s| mark(b, s.native())).collect();
    let mut random = Dice::new(seed);
    let mut live: Vec<LiveBlock<D>> = Vec::new();
    for _ in 0..120 {
        let at = random.below(STREAMS);
        if live.len() < ROOM as usize / 2 {
            let block = gpu.alloc(BLOCK, &streams[at]).expect("half the room is free");
            let word = fresh_word();
            b.write(streams[at].native(), block.address(), BLOCK, word);
            live.push(LiveBlock { block, word, home: at });
            continue;
        }
        let t = live.swap_remove(random.below(live.len()));
        if random.below(3) == 0 && at != t.home {
            // A reader of other code, ordered by the program itself, through the device's own driver.
            let written = mark(b, streams[t.home].native());
            b.device().wait(streams[at].native(), &written).expect("ordered");
            t.block.record_use(&streams[at]).expect("recorded");
            b.check(streams[at].native(), t.block.address(), BLOCK, t.word);
        }
        b.check(streams[t.home].native(), t.block.address(), BLOCK, t.word);
    }
    for t in live {
        b.check(streams[t.home].native(), t.block.address(), BLOCK, t.word);
    }
    assert!(behind.iter().all(|e| pending(b, e)), "all of it was in flight");
    // The order in which they open must not matter.
    for _ in 0..STREAMS {
        let closed: Vec<usize> = (0..STREAMS).filter(|&i| gates[i].is_some()).collect();
        let next = closed[random.below(closed.len())];
        b.open(gates[next].take().expect("closed"));
        assert!(done(b, &behind[next]));
        // What can run on it now gets time to run before the next one opens.
        let end = mark(b, streams[next].native());
        b.device().wait_event(&end, Duration::from_millis(2)).expect("an answer");
    }
    gpu.synchronize().expect("waited");
    gpu.check();
    gpu.report().total.counters.waits_inserted
}

pub fn patterns_survive_while_everything_is_in_flight<T: Bench>(b: &T) {
    let mut waits = 0;
    for seed in 0..rounds() {
        waits += round(b, b.device(), seed);
        if seed % TALLY == TALLY - 1 {
            b.tally().unwrap_or_else(|why| panic!("by round {seed}: {why}"));
        }
    }
    assert!(waits > 0, "no bytes went to another stream behind a wait: nothing was shown");
    if rounds() > 100 {
        say(&format!("{} rounds, {waits} waits inserted by the allocator", rounds()));
    }
}

/// The test above can fail.
pub fn a_driver_that_forgets_waits_is_found<T: Bench>(b: &T) {
    for seed in 0..4 {
        round(b, &WithoutWaits::new(b.device().clone()), seed);
    }
}
