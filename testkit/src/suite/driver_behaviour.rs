//! How a driver behaves: which calls wait for kernels, which handle values are used again, what a context event covers, when copies return.

use super::*;
use millpond::driver::Memory;
use raw_calls::{d2d, d2h, fill, free, h2d, map, pin, read, release, set_access, unmap, unpin, unreserve};
use std::collections::HashSet;

/// A plain free waits for every kernel of the device, whichever stream it runs on.
pub fn a_plain_free_waits_for_running_kernels<T: Bench>(b: &T) {
    let s = stream(b);
    let addr = b.device().allocate_raw(MIB).expect("memory");
    assert!(b.waits(&s, &mut || free(b, addr, MIB)));
    finish_stream(b, &s);
}

/// So does unpinning.
pub fn unpinning_waits_for_running_kernels<T: Bench>(b: &T) {
    let s = stream(b);
    let host = pin(b, 64 << 10);
    assert!(b.waits(&s, &mut || unpin(b, &host)));
    finish_stream(b, &s);
}

/// Unpinning also waits for all that is queued, on streams of every kind: what runs, what is queued behind it, what waits for an event of another
/// stream, and the work of streams that were destroyed. An allocator's `synchronize_beside_captures` depends on that.
pub fn unpinning_waits_for_whatever_is_queued<T: Bench>(b: &T) {
    let d = b.device();
    let gated = stream(b);
    let streams = [stream(b), stream(b), blocking_stream(b), b.per_thread(), b.legacy()];
    let ranges = [(); 7].map(|()| d.allocate(MIB).expect("memory"));
    for page in [512, 64 << 10, 4 << 20] {
        let host = pin(b, page);
        let mut marks: Vec<EventOf<T>> = Vec::new();
        let waited = b.waits(&gated, &mut || {
            // A bench that cannot wait for a closed gate makes the call a second time.
            if marks.is_empty() {
                marks.push(mark(b, &gated));
                // A chain: each stream waits for the former one.
                for (on, range) in streams.iter().zip(&ranges) {
                    d.wait(on, marks.last().expect("one"))?;
                    b.write(on, range.addr(), MIB, A);
                    marks.push(mark(b, on));
                }
                // The end of the chain is on streams that are destroyed before the page is freed.
                for (gone, range) in [stream(b), blocking_stream(b)].into_iter().zip(&ranges[5..]) {
                    d.wait(&gone, marks.last().expect("one"))?;
                    b.write(&gone, range.addr(), MIB, A);
                    marks.push(mark(b, &gone));
                    drop(gone);
                }
            }
            unpin(b, &host)?;
            assert!(marks.iter().all(|mark| done(b, mark)), "{page} B: unpinning waited for less");
            Ok(())
        });
        assert!(waited, "{page} B");
    }
    for stream in &streams {
        finish_stream(b, stream);
    }
    drop(ranges);
}

/// Allocating, pinning, streams, events and all of virtual memory wait for nothing.
pub fn everything_else_waits_for_nothing<T: Bench>(b: &T) {
    let d = b.device();
    let (s, unit) = (stream(b), raw_calls::granularity(b));
    let gate = b.gate(&s);
    let behind = mark(b, &s);
    let (plain, host) = (d.allocate_raw(MIB).expect("memory"), pin(b, 64 << 10));
    let (addr, handle) = (d.reserve(unit, None).expect("addresses"), d.create(unit).expect("a handle"));
    map(b, addr, &handle).expect("mapped");
    set_access(b, addr, unit).expect("usable");
    let other = stream(b);
    b.write(&other, addr, unit, A);
    assert!(done(b, &mark(b, &other)), "another stream's work ends meanwhile");
    unmap(b, addr, unit).expect("unmapped");
    release(b, &handle);
    unreserve(b, addr, unit);
    drop(other);
    d.memory_info().expect("an answer");
    assert!(pending(b, &behind), "none of it waited");
    b.open(gate);
    finish_stream(b, &s);
    unpin(b, &host).expect("unpinned");
    free(b, plain, MIB).expect("freed");
}

/// E7: destroying a stream does not wait, and its work runs on.
pub fn a_destroyed_stream_goes_on<T: Bench>(b: &T) {
    let (s, t, range) = (stream(b), stream(b), b.device().allocate(MIB).expect("memory"));
    let gate = b.gate(&s);
    b.write(&s, range.addr(), MIB, A);
    let written = mark(b, &s);
    drop(s);
    assert!(pending(b, &written), "the destroy did not wait");
    b.open(gate);
    b.device().wait(&t, &written).expect("the event outlives the stream");
    b.check(&t, range.addr(), MIB, A);
    finish_stream(b, &t);
}

/// E7: a destroyed stream's handle value is soon used for another stream; its id is never used again.
pub fn handle_values_come_back_and_ids_do_not<T: Bench>(b: &T) {
    let (mut values, mut ids) = (HashSet::new(), HashSet::new());
    for _ in 0..40 {
        let s = stream(b);
        values.insert(b.handle(&s));
        ids.insert(b.device().stream_info(&s).expect("its id").id);
    }
    assert_eq!(ids.len(), 40);
    assert!(values.len() < 40, "no handle value of 40 streams was used again");
}

/// A context event covers streams of every kind, destroyed ones included.
pub fn a_context_event_covers_every_kind_of_stream<T: Bench>(b: &T) {
    type Make<T> = fn(&T) -> StreamOf<T>;
    let kinds: [(&str, Make<T>); 4] = [
        ("non-blocking", stream),
        ("blocking", blocking_stream),
        ("legacy", T::legacy),
        ("per-thread", T::per_thread),
    ];
    for (kind, make) in kinds {
        for destroyed in [false, true] {
            let s = make(b);
            let gate = b.gate(&s);
            let kept = (!destroyed).then_some(s);
            let event = b.device().create_event().expect("an event");
            b.device().record_context(&event).expect("recorded");
            assert!(pending(b, &event), "{kind}, destroyed {destroyed}");
            b.open(gate);
            assert!(done(b, &event), "{kind}, destroyed {destroyed}");
            drop(kept);
        }
    }
}

/// A context event delays nothing that is queued later.
pub fn a_context_event_holds_nothing_back<T: Bench>(b: &T) {
    let (s, t) = (stream(b), stream(b));
    let gate = b.gate(&s);
    let event = b.device().create_event().expect("an event");
    b.device().record_context(&event).expect("recorded");
    assert!(done(b, &mark(b, &t)));
    b.device().wait(&t, &event).expect("a wait");
    let behind = mark(b, &t);
    assert!(pending(b, &behind), "a stream that waits for it is held");
    b.open(gate);
    assert!(done(b, &behind));
}

/// A small copy from pageable memory has read its source when it returns.
pub fn a_pageable_source_is_free_at_return<T: Bench>(b: &T) {
    let (s, range) = (stream(b), b.device().allocate(4 * KIB).expect("memory"));
    let gate = b.gate(&s);
    let mut source = vec![7_u8; 4096];
    h2d(b, range.addr(), source.as_ptr(), source.len(), &s);
    source.fill(9);
    b.open(gate);
    assert_eq!(read(b, range.addr(), 4096, &s), vec![7; 4096]);
}

/// A copy from pinned memory reads its source when it runs: the source must not be written until then.
pub fn a_pinned_source_is_read_when_the_copy_runs<T: Bench>(b: &T) {
    let (s, range, source) = (stream(b), b.device().allocate(4 * KIB).expect("memory"), pin(b, 4096));
    source.fill(7);
    let gate = b.gate(&s);
    h2d(b, range.addr(), source.as_ptr(), 4096, &s);
    source.fill(9);
    b.open(gate);
    assert_eq!(read(b, range.addr(), 4096, &s), vec![9; 4096]);
    unpin(b, &source).expect("unpinned");
}

/// A copy to pageable memory is done when it returns, without any other wait; one to pinned memory only in stream order.
pub fn a_pageable_target_is_full_at_return<T: Bench>(b: &T) {
    let (s, range, target) = (stream(b), b.device().allocate(4 * KIB).expect("memory"), pin(b, 4096));
    b.write(&s, range.addr(), 4 * KIB, A);
    assert_eq!(read(b, range.addr(), 4096, &s), A.to_le_bytes().repeat(512));
    target.fill(0);
    let gate = b.gate(&s);
    d2h(b, &target, range.addr(), 4096, &s);
    assert_eq!(target.to_vec(), vec![0; 4096], "not yet");
    b.open(gate);
    finish_stream(b, &s);
    assert_eq!(target.to_vec(), A.to_le_bytes().repeat(512));
    unpin(b, &target).expect("unpinned");
}

/// Copies and fills move their bytes and touch nothing else, at odd addresses and lengths too.
pub fn copies_and_fills_move_their_bytes<T: Bench>(b: &T) {
    let (s, range) = (stream(b), b.device().allocate(64 * KIB).expect("memory"));
    let base = range.addr();
    let data: Vec<u8> = (0..20_000_u32).map(|i| (i * 7 % 251) as u8).collect();
    fill(b, base, 0x11, 64 * KIB, &s);
    h2d(b, base.plus(3), data.as_ptr(), data.len(), &s);
    d2d(b, base.plus(40_001), base.plus(3), 20_000, &s);
    fill(b, base.plus(40_101), 0x22, 77, &s);
    let all = read(b, base, 64 << 10, &s);
    let mut expected = vec![0x11; 64 << 10];
    expected[3..20_003].copy_from_slice(&data);
    expected[40_001..60_001].copy_from_slice(&data);
    expected[40_101..40_178].fill(0x22);
    assert!(all == expected, "first difference at {:?}", all.iter().zip(&expected).position(|(a, b)| a != b));
}
