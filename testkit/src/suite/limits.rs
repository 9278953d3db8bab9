//! The allocator when memory is short: limits, out of memory, trims, closing.

use super::*;
use millpond::{Error, Growth, Limit, Reuse, Trim};

fn exact() -> Config {
    Config::default().growth(Growth::Exact).bounded_wait(Duration::from_millis(20))
}

fn is_out_of_memory<X>(result: Result<X, Error>) -> bool {
    match result {
        Ok(_) => false,
        Err(e) => {
            let facts = e.out_of_memory().unwrap_or_else(|| panic!("it failed with {e}"));
            assert!(!facts.advice().is_empty() && facts.rounded >= facts.requested);
            true
        }
    }
}

pub fn a_limit_refuses_and_recovers<T: Bench>(b: &T) {
    let gpu = allocator(b, exact().limit(Limit::Bytes(8 * MIB)));
    let s = gpu.stream().expect("a stream");
    let first = gpu.alloc(6 * MIB, &s).expect("within the limit");
    let word = own(b, &first, &s);
    assert!(is_out_of_memory(gpu.alloc(4 * MIB, &s)));
    still(b, &first, &s, word);
    drop(first);
    let second = gpu.alloc(6 * MIB, &s).expect("the cached bytes");
    own(b, &second, &s);
    gpu.set_limit(Limit::Bytes(16 * MIB)).expect("raised");
    let third = gpu.alloc(8 * MIB, &s).expect("within the new limit");
    own(b, &third, &s);
    assert!(gpu.report().reserved <= 16 * MIB);
}

pub fn limits_of_nothing<T: Bench>(b: &T) {
    for limit in [0, 1] {
        let gpu = allocator(b, exact().limit(Limit::Bytes(limit)));
        let s = gpu.stream().expect("a stream");
        assert!(is_out_of_memory(gpu.alloc(1, &s)));
        let empty = gpu.alloc(0, &s).expect("no bytes are always granted");
        assert!(empty.is_empty());
        assert_eq!(gpu.report().reserved, 0);
    }
}

pub fn requests_beyond_the_device<T: Bench>(b: &T) {
    let gpu = allocator(b, exact());
    let s = gpu.stream().expect("a stream");
    assert!(is_out_of_memory(gpu.alloc(gpu.capacity() + MIB, &s)));
    for absurd in [u64::MAX, u64::MAX - 511, 1 << 63] {
        assert!(matches!(gpu.alloc(absurd, &s), Err(Error::TooLarge { .. })), "{absurd}");
    }
    let block = gpu.alloc(MIB, &s).expect("the allocator still works");
    own(b, &block, &s);
    gpu.check();
}

pub fn a_trim_gives_everything_back<T: Bench>(b: &T) {
    let gpu = allocator(b, exact());
    let streams = [gpu.stream().expect("s"), gpu.stream().expect("t")];
    for s in &streams {
        for bytes in [3 * MIB, 100 * KIB, 7 * MIB] {
            let block = gpu.alloc(bytes, s).expect("memory");
            let word = own(b, &block, s);
            still(b, &block, s, word);
        }
    }
    let reserved = gpu.report().reserved;
    assert!(reserved >= 10 * MIB);
    gpu.synchronize().expect("waited");
    let trimmed = gpu.trim(Trim::All).expect("trimmed");
    assert_eq!((trimmed.bytes, gpu.report().reserved), (reserved, 0));
    let again = gpu.alloc(MIB, &streams[0]).expect("memory");
    own(b, &again, &streams[0]);
}

/// O4: memory that may still be in use is not given back, although it is free.
pub fn memory_in_flight_is_not_trimmed<T: Bench>(b: &T) {
    let gpu = allocator(b, exact().reuse(Reuse::Ordered));
    let (s, t) = (gpu.stream().expect("s"), gpu.stream().expect("t"));
    let (_, gate) = freed_under_a_reader(b, &gpu, 4 * MIB, &s, &t);
    let trimmed = gpu.trim(Trim::All).expect("nothing goes back, and nothing is waited for");
    assert_eq!((trimmed.bytes, gpu.report().reserved), (0, 4 * MIB));
    assert!(pending(b, &mark(b, t.native())));
    b.open(gate);
    gpu.synchronize().expect("waited");
    assert_eq!(gpu.trim(Trim::All).expect("now it goes back").bytes, 4 * MIB);
}

/// All memory of both kinds within the limits is in use by an independent stream, which is held by a gate: a request is refused at once, although
/// it could wait long for other streams. If the request waited, the gate would end by itself, which `open` reports.
pub fn no_request_waits_for_an_independent_stream<T: Bench>(b: &T) {
    let gpu =
        allocator(b, exact().limit(Limit::Bytes(8 * MIB)).pinned_limit(8 * MIB).bounded_wait(3 * PATIENCE));
    let (s, alone) = (gpu.stream().expect("a stream"), gpu.stream().expect("a stream").independent());
    let (block, host) = (gpu.alloc(6 * MIB, &s).expect("memory"), gpu.alloc_pinned(6 * MIB).expect("memory"));
    let gate = b.gate(alone.native());
    block.record_use(&alone).expect("a use");
    host.record_use(&alone).expect("a use");
    drop((block, host));
    assert!(is_out_of_memory(gpu.alloc(4 * MIB, &s)));
    assert!(matches!(gpu.alloc_pinned(4 * MIB), Err(Error::OutOfMemory(_))));
    b.open(gate);
    gpu.synchronize().expect("waited");
    let block = gpu.alloc(4 * MIB, &s).expect("its use is complete");
    own(b, &block, &s);
    drop(gpu.alloc_pinned(4 * MIB).expect("its use of pinned memory too"));
}

/// Everything that the allocator made is released with the last reference to it; the verdict reports what is not.
pub fn nothing_lasts_beyond_the_last_drop<T: Bench>(b: &T) {
    let gpu = allocator(b, Config::default());
    let streams: Vec<_> = (0..4).map(|_| gpu.stream().expect("a stream")).collect();
    let mut blocks = Vec::new();
    for (i, s) in streams.iter().enumerate() {
        let block = gpu.alloc((1 + i as u64) * 700 * KIB, s).expect("memory");
        let word = own(b, &block, s);
        let reader = &streams[(i + 1) % 4];
        reader.wait_stream(s).expect("ordered");
        block.record_use(reader).expect("recorded");
        still(b, &block, reader, word);
        blocks.push(block);
    }
    let events: Vec<_> = streams.iter().map(|s| s.record().expect("an event")).collect();
    let host = gpu.alloc_pinned(MIB).expect("pinned memory");
    drop((gpu, streams, events, host, blocks));
}
