//! Rows of tests/rows.rs that need a device of their own kind under them: they are shown on each bench.

use super::*;
use millpond::{Growth, Limit, Reuse};
use std::collections::HashSet;

/// How often a stream is dropped: handle values come back within a few.
const DROPS: usize = 40;

/// D3: a stream is dropped with a reader of freed bytes still pending on it, and its handle value comes back as another
/// stream's, to which the bytes go. Who knows streams by handle takes the two for one and orders nothing. Once with room
/// to spare, where other bytes serve; once with room for one block, where the same bytes serve behind a wait.
pub fn d03_a_stream_dropped_with_work_pending<T: Bench>(b: &T) {
    let (mut values_back, mut same_bytes) = (0, 0);
    for limit in [Limit::None, Limit::Bytes(4 * MIB)] {
        let gpu = allocator(b, Config::default().growth(Growth::Exact).limit(limit));
        let mut values = HashSet::new();
        for _ in 0..DROPS {
            let s = gpu.stream().expect("a stream");
            values_back += usize::from(!values.insert(b.handle(s.native())));
            let block = gpu.alloc(4 * MIB, &s).expect("memory");
            let (at, word) = (block.address(), own(b, &block, &s));
            let gate = b.gate(s.native());
            let behind = mark(b, s.native());
            still(b, &block, &s, word);
            drop(block);
            drop(s);
            let t = gpu.stream().expect("a stream");
            values_back += usize::from(!values.insert(b.handle(t.native())));
            let next = gpu.alloc(4 * MIB, &t).expect("other bytes, or the same behind a wait");
            same_bytes += usize::from(next.address() == at);
            let word = own(b, &next, &t);
            assert!(pending(b, &behind), "the reader had not run when its bytes were given away");
            b.open(gate);
            still(b, &next, &t, word);
            gpu.synchronize().expect("waited");
        }
    }
    assert!(values_back > 0, "no handle value came back: nothing was shown");
    assert!(same_bytes >= DROPS, "under the limit every block is the former one's bytes: {same_bytes}");
    let wrong = b.tally();
    if std::env::var_os("MILLPOND_DEMO").is_some() {
        let found = wrong.as_ref().err().map_or("none", String::as_str);
        say(&format!(
            "D3 millpond: {} streams dropped with work pending; a handle value back {values_back} times, the same \
             bytes given away {same_bytes} times; wrong contents: {found}",
            2 * DROPS
        ));
    }
    wrong.expect("what was read is what was written");
}

/// C7: two threads' default streams share one handle value. They are two streams all the same, each with a pool, and
/// what one of them still reads is not given to the other.
pub fn c07_per_thread_default_streams_are_known_by_their_ids<T: Bench>(b: &T) {
    let gpu = allocator(b, Config::default().growth(Growth::Exact).reuse(Reuse::Ordered));
    let native = b.per_thread();
    let here = gpu.adopt(native.clone()).expect("adopted");
    let block = gpu.alloc(MIB, &here).expect("memory");
    let (at, word) = (block.address(), own(b, &block, &here));
    let gate = b.gate(&native);
    still(b, &block, &here, word);
    drop(block);
    let (id, value, other) = std::thread::scope(|scope| {
        let theirs = scope.spawn(|| {
            let native = b.per_thread();
            let there = gpu.adopt(native.clone()).expect("adopted");
            let block = gpu.alloc(MIB, &there).expect("memory");
            let word = own(b, &block, &there);
            still(b, &block, &there, word);
            finish_stream(b, &native);
            (there.id(), b.handle(&native), block.address())
        });
        theirs.join().expect("no panic")
    });
    assert_eq!(value, b.handle(&native), "one value for two streams");
    assert_ne!(id, here.id(), "and two ids");
    assert_ne!(other, at, "bytes that this thread's stream still reads");
    let again = gpu.alloc(MIB, &here).expect("memory");
    assert_eq!(again.address(), at, "its own stream has them at once");
    own(b, &again, &here);
    b.open(gate);
    gpu.synchronize().expect("waited");
}
