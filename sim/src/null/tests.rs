//! The null device keeps its books: addresses, capacity, counts; and its pinned memory is real.

use super::*;
use millpond_driver::{Mapping, OwnedHost, VirtualMemory};

fn count(device: &Null, name: &str) -> u64 {
    device.calls().into_iter().find(|c| c.0 == name).map(|c| c.1).expect("a call of this name")
}

#[test]
fn ranges_never_overlap_and_never_come_back() {
    let device = Null::with_capacity(1 << 30);
    let mut seen: Vec<(u64, u64)> = Vec::new();
    for round in 1..200_u64 {
        let bytes = 512 * (round * 7919 % 9000 + 1);
        let range = device.allocate(bytes).unwrap();
        let (lo, hi) = (range.addr().0, range.addr().0 + bytes);
        assert_eq!(lo % ADDRESS_ALIGN, 0);
        assert!(seen.iter().all(|&(l, h)| hi <= l || h <= lo), "{lo:#x} was handed out before");
        seen.push((lo, hi));
    }
    assert_eq!((device.reserved(), device.outstanding()), (0, (0, 0)));
}

#[test]
fn the_capacity_is_kept_to_the_byte() {
    let device = Null::with_capacity(2048);
    let first = device.allocate(1536).unwrap();
    assert_eq!(device.memory_info().unwrap(), MemoryInfo::new(512, 2048));
    let error = device.allocate(1024).unwrap_err();
    assert!(error.is_out_of_memory());
    assert_eq!(error.to_string(), "allocate failed with code 2: requested 1024 bytes; 512 of 2048 are free");
    let last = device.allocate(512).unwrap();
    assert!(device.allocate(512).unwrap_err().is_out_of_memory());
    first.release().unwrap();
    assert_eq!(device.reserved(), 512);
    drop(last);
    assert_eq!(device.reserved(), 0);
    assert_eq!((count(&device, "allocate"), count(&device, "free")), (4, 2));
}

#[test]
fn sizes_near_the_integer_limit_are_refused_and_not_wrapped() {
    let device = Null::with_capacity(u64::MAX);
    let max = u64::MAX - 511;
    assert!(device.allocate(max).unwrap_err().is_out_of_memory());
    for odd in [0, 1, 511, u64::MAX] {
        assert_eq!(device.allocate(odd).unwrap_err().kind, DriverErrorKind::InvalidValue);
    }
    assert_eq!(device.outstanding(), (0, 0));
}

#[test]
#[allow(unsafe_code, reason = "wrong frees on purpose: this driver answers them with an error")]
fn a_range_is_freed_whole_and_once() {
    let device = Null::default();
    let addr = device.allocate_raw(4096).unwrap();
    // SAFETY: no memory is behind the addresses; the driver checks its arguments.
    let free = |addr, bytes| unsafe { device.free_raw(addr, bytes) };
    assert!(free(addr, 512).unwrap_err().message.contains("4096 were handed out"));
    assert!(free(Addr(addr.0 + 512), 512).unwrap_err().message.contains("not the first byte"));
    assert_eq!(device.reserved(), 4096);
    free(addr, 4096).unwrap();
    assert!(free(addr, 4096).unwrap_err().message.contains("given back before"));
}

#[test]
#[allow(unsafe_code, reason = "reads and writes the pinned bytes it was given")]
fn pinned_memory_is_real_and_zeroed() {
    let device = Null::default();
    let pinned: OwnedHost<Null> = device.pin(8192, HostKind::Cached).unwrap();
    assert_eq!(pinned.addr().0 % 512, 0);
    // SAFETY: the range is live, 8192 bytes long and exclusively ours.
    let bytes = unsafe { core::slice::from_raw_parts_mut(pinned.ptr().as_ptr(), 8192) };
    assert!(bytes.iter().all(|&b| b == 0));
    bytes.fill(7);
    let stream = device.default_stream();
    // SAFETY: as above; the device address is not accessed.
    unsafe { device.copy_d2h(bytes.as_mut_ptr(), Addr(0), 4096, &stream) }.unwrap();
    assert!(bytes[..4096].iter().all(|&b| b == 0), "a copy from the device writes zeros");
    assert!(bytes[4096..].iter().all(|&b| b == 7), "and no byte more");
    assert_eq!((device.outstanding(), device.reserved()), ((0, 1), 0));
    drop(pinned);
    assert_eq!(device.outstanding(), (0, 0));
    assert_eq!((count(&device, "pin"), count(&device, "unpin"), count(&device, "copy_d2h")), (1, 1, 1));
}

#[test]
fn streams_have_unique_numbers_and_events_are_complete() {
    let device = Null::default();
    let mut ids = vec![device.stream_info(&device.default_stream()).unwrap().id];
    for blocking in [false, true] {
        for _ in 0..50 {
            let stream = device.create_stream(StreamOptions::default().blocking(blocking)).unwrap();
            let info = device.stream_info(&stream).unwrap();
            assert_eq!(info.kind == StreamKind::Blocking, blocking);
            ids.push(info.id);
        }
    }
    let all = ids.len();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), all);

    let (stream, event) = (device.default_stream(), device.create_event().unwrap());
    assert!(device.query(&event).unwrap());
    device.record(&event, &stream).unwrap();
    device.wait(&stream, &event).unwrap();
    assert!(device.wait_event(&event, Duration::MAX).unwrap());
    for name in ["query", "record", "wait", "wait_event"] {
        assert_eq!(count(&device, name), 1, "{name}");
    }
    assert_eq!(count(&device, "create_stream"), 100);
}

#[test]
fn a_stream_of_another_device_is_refused() {
    let (here, there) = (Null::default(), Null::new(DeviceId(1), 0));
    let (stream, event) = (there.default_stream(), here.create_event().unwrap());
    let error = here.record(&event, &stream).unwrap_err();
    assert_eq!(error.kind, DriverErrorKind::InvalidHandle);
    assert_eq!(error.message, "stream 0 of device 1 was used on device 0");
}

#[test]
fn clones_are_one_device() {
    let device = Null::default();
    let range = device.clone().allocate(512).unwrap();
    assert_eq!(device.reserved(), 512);
    drop((device.clone(), range));
    assert_eq!((device.reserved(), count(&device, "free")), (0, 1));
}

fn plus(addr: Addr, bytes: u64) -> Addr {
    Addr(addr.0 + bytes)
}

#[test]
fn virtual_memory_has_addresses_and_counts() {
    let device = Null::with_capacity(4 * ADDRESS_ALIGN);
    let memory = VirtualMemory::new(device.clone()).unwrap();
    assert_eq!(memory.facts().granularity, ADDRESS_ALIGN);
    let base = memory.reserve(64 * ADDRESS_ALIGN, None).unwrap();
    assert_eq!(memory.reserve(ADDRESS_ALIGN, Some(plus(base, 64 * ADDRESS_ALIGN))).unwrap().0, {
        base.0 + 64 * ADDRESS_ALIGN
    });
    assert_eq!(device.reserved(), 0, "addresses are no memory");
    let handle = memory.create(3 * ADDRESS_ALIGN).unwrap();
    let error = memory.create(2 * ADDRESS_ALIGN).unwrap_err();
    assert_eq!(
        error.to_string(),
        "create failed with code 2: requested 4194304 bytes; 2097152 of 8388608 are free"
    );
    memory.map(handle, base).unwrap();
    memory.map(handle, plus(base, 8 * ADDRESS_ALIGN)).unwrap();
    assert_eq!((device.reserved(), device.outstanding_virtual()), (3 * ADDRESS_ALIGN, (2, 1, 2)));
    memory.unmap(base).unwrap();
    drop(memory);
    assert_eq!((device.reserved(), device.outstanding_virtual()), (0, (0, 0, 0)));
    assert_eq!(
        ["create", "map", "set_access", "unmap", "release"].map(|n| count(&device, n)),
        [2, 2, 2, 2, 1]
    );
}

#[test]
#[allow(unsafe_code, reason = "wrong calls on purpose: this driver answers them with an error")]
fn wrong_mappings_are_refused() {
    let device = Null::default();
    let (base, handle) =
        (device.reserve(4 * ADDRESS_ALIGN, None).unwrap(), device.create(2 * ADDRESS_ALIGN).unwrap());
    // SAFETY: no memory is behind the addresses; the driver checks its arguments.
    let map = |at| unsafe { device.map(at, &handle) };
    // SAFETY: as above.
    let unmap = |at, bytes| unsafe { device.unmap(at, bytes) };
    // SAFETY: as above.
    let unreserve = |bytes| unsafe { device.unreserve(base, bytes) };
    // SAFETY: as above.
    let release = || unsafe { device.release(&handle) };
    assert!(device.create(ADDRESS_ALIGN + 512).is_err() && device.reserve(512, None).is_err());
    map(base).unwrap();
    for wrong in [base, plus(base, ADDRESS_ALIGN), plus(base, 3 * ADDRESS_ALIGN), plus(base, 512), Addr(0)] {
        assert_eq!(map(wrong).unwrap_err().kind, DriverErrorKind::InvalidValue, "{wrong}");
    }
    assert!(unmap(base, ADDRESS_ALIGN).is_err(), "a part");
    assert!(unreserve(4 * ADDRESS_ALIGN).is_err(), "something is mapped there");
    release().unwrap();
    assert_eq!(release().unwrap_err().kind, DriverErrorKind::InvalidHandle);
    assert_eq!(map(plus(base, 2 * ADDRESS_ALIGN)).unwrap_err().kind, DriverErrorKind::InvalidHandle);
    assert_eq!(device.reserved(), 2 * ADDRESS_ALIGN, "a released handle lives while it is mapped");
    unmap(base, 4 * ADDRESS_ALIGN).unwrap();
    assert_eq!((device.reserved(), device.outstanding_virtual()), (0, (1, 0, 0)));
    assert!(unmap(base, 4 * ADDRESS_ALIGN).is_err(), "nothing is left");
    assert!(unreserve(2 * ADDRESS_ALIGN).is_err(), "a part");
    unreserve(4 * ADDRESS_ALIGN).unwrap();
}
