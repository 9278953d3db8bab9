//! What can be seen only from inside: the addresses of the hot structures.

use super::{Allocator, Config};
use crate::sync::Arc;
use core::ops::Range;
use millpond_sim::null::Null;

/// Two neighbouring 64-byte lines are fetched together.
const LINE: usize = 128;

/// Another core takes a modified line alone. For the tables of records that is what counts: a neighbouring line
/// that is fetched too affects only the first and the last record of a table, and to avoid that every record
/// would have to be twice as long, or start at an alignment that no vector has.
const RECORD_LINE: usize = 64;

/// The cache lines that a value behind an `Arc` occupies, its two counts included.
fn cache_lines<T>(of: &Arc<T>) -> Range<usize> {
    cache_lines_at(Arc::as_ptr(of))
}

fn cache_lines_at<T>(value: *const T) -> Range<usize> {
    let start = value.addr();
    (start - 2 * size_of::<usize>()) / LINE..(start + size_of::<T>()).div_ceil(LINE)
}

fn overlaps(all: &[Range<usize>]) -> usize {
    let mut sorted = all.to_vec();
    sorted.sort_unstable_by_key(|r| r.start);
    sorted.windows(2).filter(|w| w[0].end > w[1].start).count()
}

#[test]
fn no_two_pools_share_a_cache_line() {
    let gpu = Allocator::new(Null::default(), Config::default()).unwrap();
    let streams: Vec<_> = (0..100).map(|_| gpu.stream().unwrap()).collect();
    let hot: Vec<_> =
        streams.iter().flat_map(|s| [cache_lines(s.pool()), cache_lines(s.timeline())]).collect();
    assert_eq!(hot.len(), 200);
    assert_eq!(overlaps(&hot), 0, "{hot:?}");
    // The state that the lock protects is inside: none of it is elsewhere, on a line of its own.
    for s in &streams {
        let state = core::ptr::from_ref(&*s.pool().lock()).addr() / LINE;
        assert!(cache_lines(s.pool()).contains(&state));
    }
}

/// Every hit writes the record of a chunk and that of its segment, which are in tables of their own: those of one pool share
/// no cache line with another's, nor with anything else.
#[test]
fn no_two_pools_share_a_cache_line_of_records() {
    let gpu = Allocator::new(Null::default(), Config::default()).unwrap();
    let streams: Vec<_> = (0..100).map(|_| gpu.stream().unwrap()).collect();
    // The tables grow in turns, so that each lies between others'.
    let blocks: Vec<_> =
        (0..5).flat_map(|_| streams.iter().map(|s| gpu.alloc(512, s).unwrap()).collect::<Vec<_>>()).collect();
    let records: Vec<_> = streams.iter().flat_map(|s| s.pool().lock().heap.records()).collect();
    let lines: Vec<_> = records.iter().map(|r| r.start / RECORD_LINE..r.end.div_ceil(RECORD_LINE)).collect();
    assert_eq!(lines.len(), 200);
    assert!(lines.iter().all(|lines| !lines.is_empty()), "each pool has records: {lines:?}");
    assert_eq!(overlaps(&lines), 0, "{lines:?}");
    for table in &records {
        let whole = [table.start, table.end].iter().all(|at| at.is_multiple_of(RECORD_LINE));
        assert!(whole, "{table:x?} shares a line with what lies before it or behind");
    }
    drop(blocks);
}

/// The check can fail: without their alignment, values behind an `Arc` may lie this close and share lines.
#[test]
fn shared_cache_lines_are_counted() {
    let behind_their_counts = [([0_usize; 2], [0_u64; 9]); 100];
    let close: Vec<_> = behind_their_counts.iter().map(|(_, value)| cache_lines_at(value)).collect();
    assert!(overlaps(&close) > 0);
}

/// A request that finds nothing checks whether anything was freed meanwhile: each free counts, of pools that are gone too.
#[test]
fn every_free_is_counted() {
    let gpu = Allocator::new(Null::default(), Config::default()).unwrap();
    let (gone, stream) = (gpu.stream().unwrap(), gpu.stream().unwrap());
    for n in 1..=3 {
        drop(gpu.alloc(512, &gone).unwrap());
        drop(gpu.alloc(512, &stream).unwrap());
        assert_eq!(gpu.core().frees(), 2 * n);
    }
    drop(gone);
    gpu.trim(crate::Trim::All).unwrap();
    assert_eq!(gpu.core().frees(), 6);
}

/// Other threads, or owners' drops, add ever new values that move on from stream to stream: a sweep ends nevertheless, and with it the request that it is
/// part of. Before, it looked again as long as any moved on.
#[test]
#[cfg(not(any(loom, shuttle)))]
fn a_sweep_ends_though_ever_new_values_go_on() {
    use super::Stream;
    use super::deferred_drops::Until;
    use crate::order::Pending;
    use crate::units::GIB;
    use core::sync::atomic::{AtomicU32, Ordering};
    use millpond_sim::Sim;

    /// Its drop files the next one.
    struct Again([Stream<Sim>; 2], Arc<AtomicU32>);
    impl Drop for Again {
        fn drop(&mut self) {
            if self.1.fetch_add(1, Ordering::Relaxed) < 1000 {
                file(self.0.clone(), Arc::clone(&self.1));
            }
        }
    }
    /// Waits for its first stream, and then for its second.
    fn file(streams: [Stream<Sim>; 2], count: Arc<AtomicU32>) {
        let uses =
            streams.iter().map(|s| Pending { on: s.timeline().id, epoch: s.timeline().stamp() }).collect();
        let deferred_drops = Arc::clone(streams[0].deferred_drops());
        deferred_drops.keep(Until::Uses(uses), 0, Box::new(Again(streams, count)));
    }

    let gpu = Allocator::new(Sim::new(GIB), Config::default()).unwrap();
    let (s, t) = (gpu.stream().unwrap(), gpu.stream().unwrap());
    let count = Arc::new(AtomicU32::new(0));
    // At any time one waits for either stream.
    file([s.clone(), t.clone()], Arc::clone(&count));
    file([t.clone(), s.clone()], Arc::clone(&count));
    gpu.core().deferred_drops.sweep();
    let dropped = count.load(Ordering::Relaxed);
    assert!((2..20).contains(&dropped), "{dropped} values in one sweep");
    // What is filed from here on is the last.
    count.store(1000, Ordering::Relaxed);
    gpu.synchronize().unwrap();
    gpu.synchronize().unwrap();
}
