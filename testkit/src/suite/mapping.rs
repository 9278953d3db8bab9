//! Virtual memory: the behaviour of the driver on which the allocator depends.

use super::*;
use millpond::driver::Properties;
use millpond::{DriverErrorKind, Handles, Limit, VirtualMemory};
use raw_calls::{HandleOf, granularity, map, read, release, set_access, unmap, unreserve};
use std::os::fd::AsFd;

/// Reserves so many units.
fn reserve<T: Bench>(b: &T, units: u64) -> Addr {
    b.device().reserve(units * granularity(b), None).expect("addresses")
}

/// Creates a handle of one unit, maps it and makes it accessible.
fn mapped<T: Bench>(b: &T, addr: Addr) -> HandleOf<T> {
    let handle = b.device().create(granularity(b)).expect("a handle");
    map(b, addr, &handle).expect("mapped");
    set_access(b, addr, granularity(b)).expect("usable");
    handle
}

fn gone<T: Bench>(b: &T, addr: Addr, units: u64) {
    unreserve(b, addr, units * granularity(b));
}

/// Releases the second mapping of a handle, then the handle, then the addresses of both mappings.
fn both_gone<T: Bench>(b: &T, handle: &HandleOf<T>, first: Addr, second: Addr) {
    unmap(b, second, granularity(b)).expect("unmapped");
    release(b, handle);
    gone(b, first, 1);
    gone(b, second, 1);
}

fn is_refused(result: DriverResult<impl Sized>) -> bool {
    match result {
        Ok(_) => false,
        Err(e) if e.kind == DriverErrorKind::InvalidValue => true,
        Err(e) => panic!("refused, but with {e}"),
    }
}

pub fn the_unit_is_2_mib_and_odd_sizes_are_refused<T: Bench>(b: &T) {
    let d = b.device();
    assert_eq!(granularity(b), 2 * MIB);
    for odd in [MIB, 3 * MIB, 2 * MIB + 512] {
        assert!(is_refused(d.create(odd)), "a handle of {odd} bytes");
        assert!(is_refused(d.reserve(odd, None)), "a reservation of {odd} bytes");
    }
    let (addr, handle) = (reserve(b, 2), d.create(2 * MIB).expect("a handle"));
    assert!(is_refused(map(b, addr.plus(MIB), &handle)), "an odd address");
    release(b, &handle);
    gone(b, addr, 2);
}

pub fn one_handle_at_two_addresses_is_the_same_memory<T: Bench>(b: &T) {
    let (unit, s) = (granularity(b), stream(b));
    let (first, second) = (reserve(b, 1), reserve(b, 1));
    let handle = mapped(b, first);
    map(b, second, &handle).expect("mapped again");
    set_access(b, second, unit).expect("usable");
    for word in [A, B] {
        b.write(&s, first, unit, word);
        b.check(&s, second, unit, word);
        b.write(&s, second, unit, !word);
        b.check(&s, first, unit, !word);
    }
    finish_stream(b, &s);
    unmap(b, first, unit).expect("unmapped");
    b.check(&s, second, unit, !B);
    finish_stream(b, &s);
    both_gone(b, &handle, first, second);
}

/// A handle goes to another owner by a second mapping: its work is queued through that before the former owner's, through the first, has run.
/// Each sees what the other wrote. Then the first mapping is removed before later work through the second has run.
pub fn a_second_mapping_borrows_a_handle<T: Bench>(b: &T) {
    let (unit, s, t) = (granularity(b), stream(b), stream(b));
    let (first, second) = (reserve(b, 1), reserve(b, 1));
    let handle = mapped(b, first);
    let before = b.gate(&s);
    b.write(&s, first, unit, A);
    let written = mark(b, &s);
    map(b, second, &handle).expect("mapped again");
    set_access(b, second, unit).expect("usable");
    b.device().wait(&t, &written).expect("ordered");
    b.check(&t, second, unit, A);
    b.write(&t, second, unit, B);
    b.device().wait(&s, &mark(b, &t)).expect("ordered");
    b.check(&s, first, unit, B);
    let read_back = mark(b, &s);
    assert!(pending(b, &written), "neither call has waited");
    b.device().wait(&t, &read_back).expect("ordered");
    let after = b.gate(&t);
    b.write(&t, second, unit, !A);
    b.check(&t, second, unit, !A);
    let rewritten = mark(b, &t);
    b.open(before);
    assert!(done(b, &read_back), "the last use of the first mapping");
    unmap(b, first, unit).expect("unmapped");
    assert!(pending(b, &rewritten), "this call has not waited either");
    b.open(after);
    assert!(done(b, &rewritten));
    b.check(&t, second, unit, !A);
    finish_stream(b, &t);
    both_gone(b, &handle, first, second);
}

pub fn access_is_given_again_after_every_map<T: Bench>(b: &T) {
    let (unit, s, addr) = (granularity(b), stream(b), reserve(b, 2));
    let handle = mapped(b, addr);
    assert!(is_refused(set_access(b, addr.plus(unit), unit)), "nothing is mapped there");
    b.write(&s, addr, unit, A);
    finish_stream(b, &s);
    for _ in 0..2 {
        unmap(b, addr, unit).expect("unmapped");
        assert!(is_refused(set_access(b, addr, unit)), "nothing is mapped here now");
        map(b, addr, &handle).expect("mapped again");
        set_access(b, addr, unit).expect("usable again");
        b.check(&s, addr, unit, A);
        finish_stream(b, &s);
    }
    unmap(b, addr, unit).expect("unmapped");
    release(b, &handle);
    gone(b, addr, 2);
}

pub fn a_handle_is_mapped_whole<T: Bench>(b: &T) {
    let (unit, s, addr) = (granularity(b), stream(b), reserve(b, 4));
    let handle = b.device().create(2 * unit).expect("a handle");
    map(b, addr, &handle).expect("mapped");
    assert!(is_refused(set_access(b, addr, unit)), "access to a part");
    set_access(b, addr, 2 * unit).expect("usable");
    assert!(is_refused(unmap(b, addr, unit)), "a part unmapped");
    assert!(is_refused(map(b, addr.plus(unit), &handle)), "something is mapped there");
    // A range beyond the reservation is not tried: an H200 did not refuse it where more reserved addresses followed.
    b.write(&s, addr, 2 * unit, A);
    b.check(&s, addr, 2 * unit, A);
    finish_stream(b, &s);
    unmap(b, addr, 2 * unit).expect("unmapped whole");
    release(b, &handle);
    gone(b, addr, 4);
}

pub fn one_call_may_span_handles_and_holes<T: Bench>(b: &T) {
    let (unit, s, addr) = (granularity(b), stream(b), reserve(b, 4));
    let d = b.device();
    let handles = [d.create(unit).expect("a handle"), d.create(unit).expect("a handle")];
    map(b, addr, &handles[0]).expect("mapped");
    map(b, addr.plus(unit), &handles[1]).expect("mapped");
    set_access(b, addr, 2 * unit).expect("two handles in one call");
    b.write(&s, addr, 2 * unit, A);
    b.check(&s, addr, 2 * unit, A);
    finish_stream(b, &s);
    unmap(b, addr.plus(unit), unit).expect("unmapped");
    map(b, addr.plus(2 * unit), &handles[1]).expect("mapped behind a hole");
    set_access(b, addr.plus(2 * unit), unit).expect("usable");
    b.check(&s, addr.plus(2 * unit), unit, A);
    finish_stream(b, &s);
    unmap(b, addr, 3 * unit).expect("two handles and a hole in one call");
    for handle in &handles {
        release(b, handle);
    }
    gone(b, addr, 4);
}

pub fn contents_survive_a_move<T: Bench>(b: &T) {
    let (unit, s) = (granularity(b), stream(b));
    let (from, to) = (reserve(b, 1), reserve(b, 1));
    let handle = mapped(b, from);
    b.write(&s, from, unit, A);
    finish_stream(b, &s);
    unmap(b, from, unit).expect("unmapped");
    map(b, to, &handle).expect("mapped elsewhere");
    set_access(b, to, unit).expect("usable");
    b.check(&s, to, unit, A);
    finish_stream(b, &s);
    unmap(b, to, unit).expect("unmapped");
    release(b, &handle);
    gone(b, from, 1);
    gone(b, to, 1);
}

pub fn fresh_memory_is_zero<T: Bench>(b: &T) {
    let (unit, s, addr) = (granularity(b), stream(b), reserve(b, 1));
    for _ in 0..3 {
        let handle = mapped(b, addr);
        b.check(&s, addr, unit, 0);
        b.write(&s, addr, unit, A);
        finish_stream(b, &s);
        unmap(b, addr, unit).expect("unmapped");
        release(b, &handle);
    }
    gone(b, addr, 1);
}

pub fn a_released_handle_lives_while_it_is_mapped<T: Bench>(b: &T) {
    let (unit, s, addr) = (granularity(b), stream(b), reserve(b, 1));
    let handle = mapped(b, addr);
    b.write(&s, addr, unit, A);
    release(b, &handle);
    b.check(&s, addr, unit, A);
    assert_eq!(read(b, addr, 8, &s), A.to_le_bytes());
    unmap(b, addr, unit).expect("unmapped, which releases the memory");
    gone(b, addr, 1);
}

pub fn a_reservation_can_be_continued<T: Bench>(b: &T) {
    let (unit, s) = (granularity(b), stream(b));
    let first = reserve(b, 8);
    // Addresses that were released just now can be requested.
    let tail = first.plus(4 * unit);
    gone(b, first, 8);
    assert_eq!(b.device().reserve(4 * unit, Some(first)).expect("addresses"), first);
    assert_eq!(b.device().reserve(4 * unit, Some(tail)).expect("addresses"), tail, "right after the first");
    let seam = tail.0 - unit;
    let handles = [mapped(b, Addr(seam)), mapped(b, tail)];
    b.write(&s, Addr(seam), 2 * unit, A);
    b.check(&s, Addr(seam), 2 * unit, A);
    finish_stream(b, &s);
    unmap(b, Addr(seam), unit).expect("unmapped");
    unmap(b, tail, unit).expect("unmapped");
    for handle in &handles {
        release(b, handle);
    }
    gone(b, first, 4);
    gone(b, tail, 4);
}

pub fn work_runs_across_the_seam_of_two_handles<T: Bench>(b: &T) {
    let (unit, s, addr) = (granularity(b), stream(b), reserve(b, 2));
    let handles = [mapped(b, addr), mapped(b, addr.plus(unit))];
    let seam = addr.plus(unit - 4096);
    let data: Vec<u8> = (0..8192_u32).map(|i| (i * 13 % 241) as u8).collect();
    raw_calls::h2d(b, seam, data.as_ptr(), data.len(), &s);
    raw_calls::d2d(b, addr, seam, 8192, &s);
    assert!(read(b, addr, 8192, &s) == data);
    raw_calls::fill(b, seam, 0x77, 8192, &s);
    assert!(read(b, seam, 8192, &s) == vec![0x77; 8192]);
    unmap(b, addr, 2 * unit).expect("unmapped");
    for handle in &handles {
        release(b, handle);
    }
    gone(b, addr, 2);
}

/// Whether the device exports physical memory as a descriptor.
fn exports<T: Bench>(b: &T) -> bool {
    let is = b.device().mapping().is_some_and(|facts| facts.may.file_descriptor);
    if !is {
        say("SKIPPED: this device exports no physical memory");
    }
    is
}

/// A handle that was exported and opened by its descriptor is the same memory, and lives until both owners have released it.
pub fn an_exported_handle_is_the_same_memory<T: Bench>(b: &T) {
    if !exports(b) {
        return;
    }
    let (d, unit, s) = (b.device(), granularity(b), stream(b));
    let (first, second) = (reserve(b, 1), reserve(b, 1));
    let handle = d.create_with(unit, Properties::new(true, false, false)).expect("a handle");
    map(b, first, &handle).expect("mapped");
    set_access(b, first, unit).expect("usable");
    b.write(&s, first, unit, A);
    let descriptor = d.export(&handle).expect("a descriptor");
    let opened = d.import(descriptor.as_fd(), unit).expect("opened");
    drop(descriptor);
    map(b, second, &opened).expect("mapped");
    set_access(b, second, unit).expect("usable");
    b.check(&s, second, unit, A);
    finish_stream(b, &s);
    unmap(b, first, unit).expect("unmapped");
    release(b, &handle);
    b.check(&s, second, unit, A);
    finish_stream(b, &s);
    both_gone(b, &opened, first, second);
    let plain = d.create(unit).expect("a handle");
    assert!(d.export(&plain).is_err(), "it was not created for it");
    release(b, &plain);
}

/// A block of an allocator's, on a handle of its own, as another owner opens it; it stays there while others ask for all that is free.
pub fn an_exported_block_is_opened_where_it_lies<T: Bench>(b: &T) {
    if !exports(b) {
        return;
    }
    let handles = Handles::default().exportable(true).one_above(2 * MIB);
    let config = Config::default().limit(Limit::Bytes(64 * MIB)).handles(handles);
    let config = config.virtual_memory(VirtualMemory::Always);
    let gpu = Allocator::new(b.device().clone(), config).expect("an allocator");
    let (s, other) = (gpu.stream().expect("s"), gpu.stream().expect("another"));
    let x = gpu.alloc(7 * MIB, &s).expect("memory");
    let word = own(b, &x, &s);
    let exported = gpu.export(&x).expect("exported");
    let bytes = exported.handle_bytes();
    assert_eq!((bytes, exported.offset()), (8 * MIB, 0));
    let opened = b.device().import(exported.as_fd(), bytes).expect("opened");
    let at = reserve(b, bytes / granularity(b));
    map(b, at, &opened).expect("mapped");
    set_access(b, at, bytes).expect("usable");
    for _ in 0..3 {
        let everything = gpu.alloc(56 * MIB, &other).expect("everything else");
        own(b, &everything, &other);
    }
    gpu.synchronize().expect("waited");
    b.check(s.native(), at, x.len(), word);
    finish_stream(b, s.native());
    unmap(b, at, bytes).expect("unmapped");
    release(b, &opened);
    gone(b, at, bytes / granularity(b));
    still(b, &x, &s, word);
    drop((exported, x));
    gpu.synchronize().expect("waited");
    drop(gpu.alloc(64 * MIB, &other).expect("all of it"));
    gpu.check();
}
