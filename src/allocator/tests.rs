//! What can be seen only from inside: where the hot structures lie.

use super::{Allocator, Config};
use crate::driver::null::Null;
use crate::sync::Arc;
use core::ops::Range;

/// Two neighbouring 64-byte lines are fetched together.
const LINE: usize = 128;

/// The lines that a value behind an `Arc` touches, the two counts before it included.
fn lines<T>(of: &Arc<T>) -> Range<usize> {
    let start = Arc::as_ptr(of).addr();
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
    let hot: Vec<_> = streams.iter().flat_map(|s| [lines(s.pool()), lines(s.line())]).collect();
    assert_eq!(hot.len(), 200);
    assert_eq!(overlaps(&hot), 0, "{hot:?}");
    // The state that the lock protects is inside: nothing of it is on a line of its own elsewhere.
    for s in &streams {
        let state = core::ptr::from_ref(&*s.pool().lock()).addr() / LINE;
        assert!(lines(s.pool()).contains(&state));
    }
}

/// The check can fail: without their alignment, values behind an `Arc` do share lines.
#[test]
fn shared_lines_are_counted() {
    let close: Vec<Arc<[u64; 9]>> = (0..100).map(|i| Arc::new([i; 9])).collect();
    assert!(overlaps(&close.iter().map(lines).collect::<Vec<_>>()) > 0);
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
