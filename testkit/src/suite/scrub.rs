//! Scrubbing: a new owner of bytes reads zeroes, in stream order, and the host waits for nothing.

use super::pinned::{get, put};
use super::*;
use millpond::{Growth, Limit, Reuse};

/// Space for one block, so that the next owner gets the previous one's bytes.
const BLOCK: u64 = MIB;

fn scrubbing() -> Config {
    Config::default().reuse(Reuse::WithWaits).growth(Growth::Exact).limit(Limit::Bytes(BLOCK)).scrub(true)
}

/// On the home stream, whose earlier work is still pending: the bytes are reused at once, and the fill is queued after that work.
pub fn a_new_tenant_reads_zeroes<T: Bench>(b: &T) {
    let gpu = allocator(b, scrubbing());
    let s = gpu.stream().expect("a stream");
    let gate = b.gate(s.native());
    let behind = mark(b, s.native());
    let mut first = None;
    // Also lengths that are not a whole number of granules: all requested bytes are zero.
    for bytes in [BLOCK, 4096, 1000, 8, BLOCK - 8, BLOCK] {
        let block = gpu.alloc(bytes, &s).expect("memory");
        assert_eq!(block.address(), *first.get_or_insert(block.address()), "the former owner's bytes");
        still(b, &block, &s, 0);
        let word = own(b, &block, &s);
        still(b, &block, &s, word);
    }
    assert!(pending(b, &behind), "no fill was waited for");
    b.open(gate);
    finish_stream(b, s.native());
}

/// Migrated behind a wait: the fill is on the receiver's stream, after the source's work.
pub fn a_receiver_reads_zeroes<T: Bench>(b: &T) {
    let gpu = allocator(b, scrubbing());
    let (s, t) = (gpu.stream().expect("a stream"), gpu.stream().expect("a stream"));
    let block = gpu.alloc(BLOCK, &s).expect("memory");
    let (at, word) = (block.address(), own(b, &block, &s));
    let gate = b.gate(s.native());
    let behind = mark(b, s.native());
    still(b, &block, &s, word);
    drop(block);
    let next = gpu.alloc(BLOCK, &t).expect("migrated behind a wait");
    assert_eq!(next.address(), at);
    still(b, &next, &t, 0);
    assert!(pending(b, &behind), "nothing was waited for");
    b.open(gate);
    finish_stream(b, t.native());
}

/// A first use on another stream comes after the fill. The former owner's work is complete here, so that `share_with` has only the fill
/// to order.
pub fn a_first_use_elsewhere_comes_after_the_fill<T: Bench>(b: &T) {
    let gpu = allocator(b, scrubbing());
    let (s, t) = (gpu.stream().expect("a stream"), gpu.stream().expect("a stream"));
    let former = gpu.alloc(BLOCK, &s).expect("memory");
    own(b, &former, &s);
    drop(former);
    gpu.synchronize().expect("waited");
    let gate = b.gate(s.native());
    let block = gpu.alloc(BLOCK, &s).expect("memory");
    block.share_with(&t).expect("ordered");
    still(b, &block, &t, 0);
    assert!(pending(b, &mark(b, t.native())), "after the fill, which is behind the gate");
    b.open(gate);
    finish_stream(b, t.native());
}

/// Pinned memory is zero when the call returns, because the CPU is on no stream.
pub fn pinned_bytes_are_zero<T: Bench>(b: &T) {
    let gpu = allocator(b, Config::default().scrub(true));
    let first = gpu.alloc_pinned(4 * KIB).expect("pinned");
    let at = first.address();
    put::<T>(&first, &[7; 4 << 10]);
    drop(first);
    let second = gpu.alloc_pinned(4 * KIB).expect("pinned");
    assert_eq!(second.address(), at, "the former owner's bytes");
    assert_eq!(get::<T>(&second), vec![0; 4 << 10]);
}

/// The tests above can fail: without the option the former owner's word is there.
pub fn without_scrubbing_the_former_word_is_there<T: Bench>(b: &T) {
    let gpu = allocator(b, scrubbing().scrub(false));
    let s = gpu.stream().expect("a stream");
    let former = gpu.alloc(BLOCK, &s).expect("memory");
    own(b, &former, &s);
    drop(former);
    let block = gpu.alloc(BLOCK, &s).expect("memory");
    still(b, &block, &s, 0);
    finish_stream(b, s.native());
}
