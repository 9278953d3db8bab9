//! The allocator's pinned host memory: it is reused only when its uses are complete, because the CPU is on no stream.

use super::*;
use millpond::driver::Copies;
use millpond::{Error, PinnedAllocation};

#[allow(unsafe_code, reason = "pinned memory is real")]
pub fn put<T: Bench>(host: &PinnedAllocation<T::Device>, data: &[u8]) {
    assert!(data.len() as u64 <= host.len());
    // SAFETY: the block is as long, and every caller has exclusive access to it.
    unsafe { host.as_ptr().as_ptr().copy_from_nonoverlapping(data.as_ptr(), data.len()) }
}
#[allow(unsafe_code, reason = "pinned memory is real")]
pub fn get<T: Bench>(host: &PinnedAllocation<T::Device>) -> Vec<u8> {
    // SAFETY: every caller has waited for what writes the block.
    unsafe { std::slice::from_raw_parts(host.as_ptr().as_ptr(), host.len() as usize) }.to_vec()
}

/// Copies a pinned block to the device and records the use.
#[allow(unsafe_code, reason = "copies take raw host pointers")]
fn send<T: Bench>(b: &T, to: Addr, host: &PinnedAllocation<T::Device>, s: &Stream<T::Device>) {
    host.record_use(s).expect("recorded");
    // SAFETY: the use is recorded, so the bytes stay until the copy is complete; the target is the caller's.
    unsafe { b.device().copy_h2d(to, host.as_ptr().as_ptr(), host.len(), s.native()) }.expect("a copy in");
}
#[allow(unsafe_code, reason = "copies take raw host pointers")]
fn fetch<T: Bench>(b: &T, host: &PinnedAllocation<T::Device>, from: Addr, s: &Stream<T::Device>) {
    host.record_use(s).expect("recorded");
    // SAFETY: as for `send`.
    unsafe { b.device().copy_d2h(host.as_ptr().as_ptr(), from, host.len(), s.native()) }.expect("a copy out");
}

pub fn bytes_go_there_and_back<T: Bench>(b: &T) {
    let gpu = allocator(b, Config::default());
    let s = gpu.stream().expect("a stream");
    let (source, target) =
        (gpu.alloc_pinned(100_000).expect("pinned"), gpu.alloc_pinned(100_000).expect("pinned"));
    let block = gpu.alloc(100_000, &s).expect("memory");
    let data: Vec<u8> = (0..100_000_u32).map(|i| (i * 31 % 239) as u8).collect();
    put::<T>(&source, &data);
    send(b, block.address(), &source, &s);
    fetch(b, &target, block.address(), &s);
    s.synchronize().expect("waited");
    assert!(get::<T>(&target) == data);
}

/// Z14: a source whose copy is only ordered, not complete, is not reused.
pub fn a_source_in_flight_has_no_other_owner<T: Bench>(b: &T) {
    let gpu = allocator(b, Config::default());
    let s = gpu.stream().expect("a stream");
    let block = gpu.alloc(64 * KIB, &s).expect("memory");
    let source = gpu.alloc_pinned(64 * KIB).expect("pinned");
    let first = source.address();
    put::<T>(&source, &vec![0xAB; 64 << 10]);
    let gate = b.gate(s.native());
    send(b, block.address(), &source, &s);
    drop(source);
    let next = gpu.alloc_pinned(64 * KIB).expect("other bytes");
    assert_ne!(next.address(), first, "the copy has not read them yet");
    put::<T>(&next, &vec![0xCD; 64 << 10]);
    b.open(gate);
    b.check(s.native(), block.address(), 64 * KIB, 0xABAB_ABAB_ABAB_ABAB);
    gpu.synchronize().expect("waited");
    let again = gpu.alloc_pinned(64 * KIB).expect("pinned");
    assert_eq!(again.address(), first, "complete now");
}

/// The same if the copy is not recorded, and the block is freed with unknown users.
#[allow(unsafe_code, reason = "copies take raw host pointers")]
pub fn a_source_freed_by_unknown_streams_has_no_other_owner<T: Bench>(b: &T) {
    let gpu = allocator(b, Config::default());
    let s = gpu.stream().expect("a stream");
    let unknown = stream(b);
    let block = gpu.alloc(64 * KIB, &s).expect("memory");
    s.synchronize().expect("the former uses of the block are complete");
    block.record_use(&gpu.adopt(unknown.clone()).expect("adopted")).expect("used by the copy");
    let source = gpu.alloc_pinned(64 * KIB).expect("pinned");
    let first = source.address();
    put::<T>(&source, &vec![0xAB; 64 << 10]);
    let gate = b.gate(&unknown);
    // SAFETY: the source is freed with unknown users, so that it stays until the copy is done; the target is freed after that.
    unsafe { b.device().copy_h2d(block.address(), source.as_ptr().as_ptr(), 64 * KIB, &unknown) }
        .expect("a copy in");
    b.check(&unknown, block.address(), 64 * KIB, 0xABAB_ABAB_ABAB_ABAB);
    drop(unknown);
    source.free_unknown();
    let next = gpu.alloc_pinned(64 * KIB).expect("other bytes");
    assert_ne!(next.address(), first, "the copy has not read them yet");
    put::<T>(&next, &vec![0xCD; 64 << 10]);
    b.open(gate);
    gpu.synchronize().expect("waited");
    let again = gpu.alloc_pinned(64 * KIB).expect("pinned");
    assert_eq!(again.address(), first, "complete now");
}

/// P15: pinned memory has a limit, and a request above it fails.
pub fn p15_a_pinned_limit_refuses_and_recovers<T: Bench>(b: &T) {
    let gpu = allocator(b, Config::default().pinned_limit(0));
    assert!(matches!(gpu.alloc_pinned(1), Err(Error::OutOfMemory(_))));
    assert!(gpu.alloc_pinned(0).expect("no bytes are always granted").is_empty());
    let gpu = allocator(b, Config::default());
    let n = b.many(1 << 20, 1 << 10);
    let held = gpu.alloc_pinned(n as u64).expect("pinned");
    put::<T>(&held, &vec![1; n]);
    drop(held);
    assert!(gpu.trim(millpond::Trim::All).expect("trimmed").bytes >= n as u64);
}
