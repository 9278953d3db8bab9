//! What can be seen only from inside: where the hot structures lie.

use super::{Allocator, Config};
use crate::sync::Arc;
use core::ops::Range;
use millpond_sim::null::Null;

/// Two neighbouring 64-byte lines are fetched together.
const LINE: usize = 128;

/// What is written is taken from another core by single lines. For the tables of records that is what counts: a neighbour
/// that is fetched along can trouble only the first and the last record of a table, and to spare them that every record
/// would have to be twice as long, or begin at a place that no vector asks for.
const RECORD_LINE: usize = 64;

/// The lines that a value behind an `Arc` touches, the two counts before it included.
fn timelines<T>(of: &Arc<T>) -> Range<usize> {
    timelines_at(Arc::as_ptr(of))
}

fn timelines_at<T>(value: *const T) -> Range<usize> {
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
    let hot: Vec<_> = streams.iter().flat_map(|s| [timelines(s.pool()), timelines(s.timeline())]).collect();
    assert_eq!(hot.len(), 200);
    assert_eq!(overlaps(&hot), 0, "{hot:?}");
    // The state that the lock protects is inside: nothing of it is on a line of its own elsewhere.
    for s in &streams {
        let state = core::ptr::from_ref(&*s.pool().lock()).addr() / LINE;
        assert!(timelines(s.pool()).contains(&state));
    }
}

/// Every hit writes the record of a chunk and that of its segment, which lie in tables of their own: those of one pool are
/// on no line of another's, nor of anything else's.
#[test]
fn no_two_pools_share_a_cache_line_of_records() {
    let gpu = Allocator::new(Null::default(), Config::default()).unwrap();
    let streams: Vec<_> = (0..100).map(|_| gpu.stream().unwrap()).collect();
    // The tables grow in turns, so that each comes to lie between others'.
    let blocks: Vec<_> =
        (0..5).flat_map(|_| streams.iter().map(|s| gpu.alloc(512, s).unwrap()).collect::<Vec<_>>()).collect();
    let records: Vec<_> = streams.iter().flat_map(|s| s.pool().lock().heap.records()).collect();
    let timelines: Vec<_> =
        records.iter().map(|r| r.start / RECORD_LINE..r.end.div_ceil(RECORD_LINE)).collect();
    assert_eq!(timelines.len(), 200);
    assert!(timelines.iter().all(|timelines| !timelines.is_empty()), "each pool has records: {timelines:?}");
    assert_eq!(overlaps(&timelines), 0, "{timelines:?}");
    for table in &records {
        let whole = [table.start, table.end].iter().all(|at| at.is_multiple_of(RECORD_LINE));
        assert!(whole, "{table:x?} shares a line with what lies before it or behind");
    }
    drop(blocks);
}

/// The check can fail: without their alignment, values behind an `Arc` may lie as close as this and share lines.
#[test]
fn shared_timelines_are_counted() {
    let behind_their_counts = [([0_usize; 2], [0_u64; 9]); 100];
    let close: Vec<_> = behind_their_counts.iter().map(|(_, value)| timelines_at(value)).collect();
    assert!(overlaps(&close) > 0);
}

/// A request that finds nothing asks whether anything was freed meanwhile: each free counts, of pools that are gone too.
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

/// Other threads, or owners' drops, bring ever new values that go on from stream to stream: a sweep ends, and with it the request that it is a part of.
/// It looked again for as long as any went on.
#[test]
#[cfg(not(any(loom, shuttle)))]
fn a_sweep_ends_though_ever_new_values_go_on() {
    use super::Stream;
    use super::deferred_drops::Until;
    use crate::order::Pending;
    use crate::units::GIB;
    use core::sync::atomic::{AtomicU32, Ordering};
    use millpond_sim::Sim;

    /// Each is followed by the next one.
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
    // One waits for either stream at any time.
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
