//! Arrays in kernels that other code queues: a guard orders its stream after earlier uses when it is made, and records the use at its end;
//! if it is forgotten, the use stays open.

#![allow(clippy::many_single_char_names, reason = "b is the bench; s, t, u are streams; x, y arrays")]

use super::*;
use millpond::{DeviceArray, Limit};

type Bytes<T> = DeviceArray<u8, <T as Bench>::Device>;

/// A kernel of other code writes the array on a stream.
fn writes<T: Bench>(b: &T, x: &mut Bytes<T>, on: &Stream<T::Device>, word: u64, forget: bool) {
    let bytes = x.size_bytes();
    let guard = x.write_on(on).expect("ordered");
    b.write(on.native(), guard.address(), bytes, word);
    if forget {
        core::mem::forget(guard);
    }
}

/// A kernel of other code reads it.
fn reads<T: Bench>(b: &T, x: &Bytes<T>, on: &Stream<T::Device>, word: u64) {
    let guard = x.read_on(on).expect("ordered");
    assert_eq!((guard.len(), guard.stream().id()), (x.len(), on.id()));
    b.check(on.native(), guard.address(), x.size_bytes(), word);
}

pub fn a_guard_waits_for_what_it_must_and_is_waited_for_alone<T: Bench>(b: &T) {
    let gpu = allocator(b, Config::default());
    let (s, t, u) =
        (gpu.stream().expect("a stream"), gpu.stream().expect("a stream"), gpu.stream().expect("a stream"));
    let mut x = gpu.uninit::<u8>(1 << 20, &s).expect("an array");
    let gate = b.gate(s.native());
    writes(b, &mut x, &s, A, false);
    reads(b, &x, &t, A);
    assert!(pending(b, &mark(b, t.native())), "the reader waits for the writer, whose stream is held");
    reads(b, &x, &u, A);
    b.open(gate);
    // Work that its stream gets after a guard's end is not part of the guard's use.
    let late = b.gate(t.native());
    reads(b, &x, &u, A);
    assert!(done(b, &mark(b, u.native())), "a reader waits for no reader");
    writes(b, &mut x, &u, B, false);
    assert!(done(b, &mark(b, u.native())), "the writer waits for the reader, not for later work");
    b.open(late);
    reads(b, &x, &s, B);
}

pub fn a_forgotten_guard_stays_open<T: Bench>(b: &T) {
    let gpu = allocator(b, Config::default());
    let (s, t) = (gpu.stream().expect("a stream"), gpu.stream().expect("a stream"));
    // Forgotten on another stream than the array's, and on the array's own.
    for (forgotten, other) in [(&t, &s), (&s, &t)] {
        let mut x = gpu.uninit::<u8>(1 << 20, &s).expect("an array");
        writes(b, &mut x, forgotten, A, true);
        let gate = b.gate(forgotten.native());
        reads(b, &x, other, A);
        assert!(pending(b, &mark(b, other.native())), "it may have been queued behind the gate");
        b.open(gate);
        writes(b, &mut x, other, B, false);
        reads(b, &x, forgotten, B);
    }
}

pub fn an_array_dropped_behind_a_forgotten_guard_is_reused_in_order<T: Bench>(b: &T) {
    let config = Config::default().growth(millpond::Growth::Exact).limit(Limit::Bytes(MIB));
    let gpu = allocator(b, config);
    let (s, t) = (gpu.stream().expect("a stream"), gpu.stream().expect("a stream"));
    for (on, forget) in [(&t, true), (&s, true), (&t, false)] {
        let mut x = gpu.uninit::<u8>(1 << 20, &s).expect("an array");
        let at = x.address();
        let gate = b.gate(on.native());
        writes(b, &mut x, on, A, forget);
        if forget {
            b.check(on.native(), at, MIB, A);
        }
        drop(x);
        let mut y = gpu.uninit::<u8>(1 << 20, &s).expect("the next owner");
        assert_eq!(y.address(), at, "with other bytes nothing would be shown");
        y.fill_bytes(0x5B, &s).expect("filled");
        assert!(pending(b, &mark(b, s.native())), "behind the former owner's kernel");
        b.open(gate);
        reads(b, &y, &t, 0x5B5B_5B5B_5B5B_5B5B);
    }
}

pub fn a_part_is_written_beside_another<T: Bench>(b: &T) {
    let gpu = allocator(b, Config::default());
    let (s, t) = (gpu.stream().expect("a stream"), gpu.stream().expect("a stream"));
    let mut x = gpu.uninit::<u8>(1 << 20, &s).expect("an array");
    {
        let (low, high) = x.split_at_mut(1 << 19);
        let low = low.write_on(&s).expect("ordered");
        let high = high.write_on(&t).expect("ordered");
        b.write(s.native(), low.address(), 1 << 19, A);
        b.write(t.native(), high.address(), 1 << 19, B);
        assert_eq!(high.address(), low.address().plus(1 << 19));
    }
    let whole = x.read_on(&s).expect("behind both");
    b.check(s.native(), whole.address(), 1 << 19, A);
    b.check(s.native(), whole.address().plus(1 << 19), 1 << 19, B);
}
