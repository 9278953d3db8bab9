//! Kernels on arrays: each built-in one is compared with plain loops, on many lengths and alignments; and a launch waits for
//! what it must wait for and for nothing else. Floats are compared bit by bit.

#![allow(clippy::many_single_char_names, reason = "b is the bench; s, t, u are streams; x, y arrays")]
#![allow(clippy::cast_possible_wrap, reason = "test values, small or wrapped around on purpose")]

use super::*;
use crate::dice::Dice;
use bytemuck::Pod;
use millpond::kernel::{self, Argument, Grid, Kernel, Number, ReferenceMemory};
use millpond::{DeviceArray, Error};
use std::fmt::Debug;

/// Lengths around those of a thread, of a block and of a part of a sum.
const LENGTHS: [usize; 12] = [0, 1, 2, 31, 255, 256, 257, 1000, 8191, 8192, 8193, 40_000];
/// Elements before the part that a kernel works on, so that it is aligned to its element only.
const BEFORE: [usize; 3] = [0, 1, 3];
/// Elements after it.
const BEHIND: usize = 2;

/// Every length, each with one of these offsets: only a fill depends on the alignment of its target.
fn lengths_and_places() -> impl Iterator<Item = (usize, usize)> {
    LENGTHS.into_iter().zip(BEFORE.into_iter().cycle())
}

type Array<T, B> = DeviceArray<T, <B as Bench>::Device>;

/// The built-in kernel of this name.
fn named(name: &str) -> &'static Kernel {
    kernel::builtins().find(|k| k.name().to_bytes() == name.as_bytes()).expect("a built-in one")
}

/// An allocator, with the kernels loaded: a first launch may wait for a gate otherwise.
fn ready<T: Bench>(b: &T) -> Allocator<T::Device> {
    kernel::load_builtins(b.device()).expect("loaded");
    allocator(b, Config::default())
}

/// An array with these elements.
fn given<B: Bench, T: Pod>(gpu: &Allocator<B::Device>, on: &Stream<B::Device>, values: &[T]) -> Array<T, B> {
    let (array, sent) =
        gpu.array_from_pinned(gpu.pinned_from_slice(values).expect("pinned"), on).expect("an array");
    drop(sent);
    array
}

/// The elements of an array.
fn of<B: Bench, T: Pod>(array: &Array<T, B>, on: &Stream<B::Device>) -> Vec<T> {
    array.to_pinned(on).expect("queued").wait().expect("done").to_vec()
}

/// Runs an operation on the part of an array between its first `before` elements and the last two, and compares the whole array with what it
/// has to be. `old` and `new` are the part's elements before and after.
fn compare<B: Bench, T: Pod + Into<Argument> + Debug>(
    what: &str,
    (gpu, s): (&Allocator<B::Device>, &Stream<B::Device>),
    (before, old, new): (usize, &[T], &[T]),
    work: impl FnOnce(millpond::DeviceViewMut<'_, T, B::Device>),
) {
    let rim = |inner: &[T]| {
        let mut all = vec![old.first().or(new.first()).copied(); before + inner.len() + BEHIND];
        for (to, from) in all[before..].iter_mut().zip(inner) {
            *to = Some(*from);
        }
        all.into_iter().flatten().collect::<Vec<T>>()
    };
    let (from, expected) = (rim(old), rim(new));
    let mut array = given::<B, T>(gpu, s, &from);
    let end = array.len().saturating_sub(BEHIND);
    if !from.is_empty() {
        work(array.slice_mut(before..end));
    }
    let found: Vec<u64> = of::<B, T>(&array, s).into_iter().map(|v| v.into().bits()).collect();
    let expected: Vec<u64> = expected.into_iter().map(|v| v.into().bits()).collect();
    let first = found.iter().zip(&expected).position(|(f, e)| f != e);
    assert_eq!(first, None, "{what}, {} elements from {before} on: {found:x?}", old.len());
}

/// A type that the built-in kernels compute with, and its test values.
trait Sample: Number + Debug {
    /// A whole number.
    fn count(i: usize) -> Self;
    /// A less regular value.
    fn value(i: usize) -> Self;
    /// `a * x + y`, wrapped around or rounded once.
    fn fused(a: Self, x: Self, y: Self) -> Self;
}

macro_rules! samples {
    ($($number:ty: |$i:ident| $value:expr, |$a:ident, $x:ident, $y:ident| $fused:expr;)*) => {
        $(impl Sample for $number {
            fn count($i: usize) -> $number {
                $i as $number
            }
            fn value($i: usize) -> $number {
                $value
            }
            fn fused($a: $number, $x: $number, $y: $number) -> $number {
                $fused
            }
        })*
        /// Checks each of these types.
        macro_rules! each_number {
            ($check:ident, $b:expr) => {{ $($check::<$number, _>($b);)* }};
        }
    };
}
samples! {
    u32: |i| (i as u32).wrapping_mul(0x9E37_79B9), |a, x, y| a.wrapping_mul(x).wrapping_add(y);
    i32: |i| (i as i32).wrapping_mul(0x1E37_79B9), |a, x, y| a.wrapping_mul(x).wrapping_add(y);
    u64: |i| (i as u64).wrapping_mul(A), |a, x, y| a.wrapping_mul(x).wrapping_add(y);
    i64: |i| -((i as i64) << 40), |a, x, y| a.wrapping_mul(x).wrapping_add(y);
    f32: |i| i as f32 * 0.3 - 7.0, |a, x, y| a.mul_add(x, y);
    f64: |i| i as f64 * 1e-3 + 0.1, |a, x, y| a.mul_add(x, y);
}

fn iota_of<E: Sample, B: Bench>(b: &B) {
    let gpu = ready(b);
    let s = gpu.stream().expect("a stream");
    let (first, step) = (E::value(3), E::value(7));
    for (n, before) in lengths_and_places() {
        let new: Vec<E> = (0..n).map(|i| E::fused(E::count(i), step, first)).collect();
        compare::<B, E>("iota", (&gpu, &s), (before, &vec![E::value(1); n], &new), |mut part| {
            kernel::iota(&mut part, first, step, &s).expect("queued");
        });
    }
}

pub fn iota_counts_up<T: Bench>(b: &T) {
    each_number!(iota_of, b);
}

fn saxpy_of<E: Sample, B: Bench>(b: &B) {
    let gpu = ready(b);
    let (s, t) = (gpu.stream().expect("a stream"), gpu.stream().expect("a stream"));
    let a = E::value(11);
    for (n, before) in lengths_and_places() {
        let xs: Vec<E> = (0..=n).map(E::value).collect();
        let ys: Vec<E> = (0..n).map(|i| E::value(2 * i + 1)).collect();
        let x = given::<B, E>(&gpu, &t, &xs);
        let new: Vec<E> = xs[1..].iter().zip(&ys).map(|(&x, &y)| E::fused(a, x, y)).collect();
        compare::<B, E>("saxpy", (&gpu, &s), (before, &ys, &new), |mut part| {
            kernel::saxpy(a, x.slice(1..), &mut part, &s).expect("queued");
        });
    }
}

pub fn saxpy_adds_a_multiple<T: Bench>(b: &T) {
    each_number!(saxpy_of, b);
}

pub fn a_fill_writes_every_element<T: Bench>(b: &T) {
    let gpu = ready(b);
    let s = gpu.stream().expect("a stream");
    for (n, before) in LENGTHS.iter().flat_map(|&n| BEFORE.map(|o| (n, o))) {
        let at = (&gpu, &s);
        compare::<T, u8>("a fill of u8", at, (before, &vec![9; n], &vec![0xA5; n]), |mut part| {
            kernel::fill(&mut part, 0xA5, &s).expect("queued");
        });
        compare::<T, i16>("a fill of i16", at, (before, &vec![9; n], &vec![-2; n]), |mut part| {
            kernel::fill(&mut part, -2, &s).expect("queued");
        });
        compare::<T, f32>("a fill of f32", at, (before, &vec![9.0; n], &vec![0.1; n]), |mut part| {
            kernel::fill(&mut part, 0.1, &s).expect("queued");
        });
        compare::<T, u64>("a fill of u64", at, (before, &vec![9; n], &vec![A ^ B; n]), |mut part| {
            kernel::fill(&mut part, A ^ B, &s).expect("queued");
        });
    }
    let mut rows = given::<T, [u8; 4]>(&gpu, &s, &[[0; 4]; 100]);
    kernel::fill(&mut rows.slice_mut(1..), [1, 2, 3, 4], &s).expect("queued");
    let found = of::<T, [u8; 4]>(&rows, &s);
    assert_eq!(found[0], [0; 4]);
    assert!(found[1..].iter().all(|e| e == &[1, 2, 3, 4]), "{found:?}");
}

/// Memory for a CPU reference without a device: two arrays, far from each other.
struct Two {
    target: Vec<u8>,
    source: Vec<u8>,
}

const TARGET: u64 = 1 << 20;
const SOURCE: u64 = 1 << 40;

impl ReferenceMemory for Two {
    fn read(&mut self, addr: Addr, into: &mut [u8]) {
        into.copy_from_slice(&self.source[(addr.0 - SOURCE) as usize..][..into.len()]);
    }
    fn write(&mut self, addr: Addr, from: &[u8]) {
        self.target[(addr.0 - TARGET) as usize..][..from.len()].copy_from_slice(from);
    }
    fn fill(&mut self, _: Addr, _: u64, _: u64) {
        unreachable!("a sum fills nothing");
    }
}

/// The sum by the kernel's CPU reference, of parts and then of their sums.
fn sum_by_reference(values: &[f32]) -> f32 {
    let reference = named("millpond_reduce_f32").on_cpu().expect("a reference");
    let parts = values.len().div_ceil(8192);
    let source = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    let mut memory = Two { target: vec![0; parts * 4], source };
    reference(&mut memory, &[Addr(TARGET).into(), Addr(SOURCE).into(), values.len().into()]);
    let (sums, _) = memory.target.as_chunks();
    let sums: Vec<f32> = sums.iter().map(|&s| f32::from_le_bytes(s)).collect();
    if parts == 1 { sums[0] } else { sum_by_reference(&sums) }
}

fn sum_of<E: Sample, B: Bench>(b: &B) {
    let gpu = ready(b);
    let s = gpu.stream().expect("a stream");
    // Whole numbers of few bits: exact in any order for floats too.
    let one = E::count(1);
    for (n, before) in lengths_and_places() {
        let xs: Vec<E> = (0..before + n).map(|i| E::count(i % 61)).collect();
        let sum = xs[before..].iter().fold(E::count(0), |sum, &x| E::fused(one, x, sum));
        let x = given::<B, E>(&gpu, &s, &xs);
        compare::<B, E>("a sum", (&gpu, &s), (1, &[E::count(5)], &[sum]), |mut part| {
            kernel::reduce_sum(x.slice(before..), &mut part, &s).expect("queued");
        });
    }
}

pub fn a_sum_is_the_sum<T: Bench>(b: &T) {
    each_number!(sum_of, b);
}

pub fn a_sum_of_floats_is_the_same_everywhere<T: Bench>(b: &T) {
    let gpu = ready(b);
    let s = gpu.stream().expect("a stream");
    let mut seeded = Dice::new(6);
    for n in LENGTHS.into_iter().filter(|&n| n > 0) {
        // The magnitudes differ by up to 60 powers of two, so that another order of additions has another sum.
        let values: Vec<f32> = (0..n)
            .map(|_| (seeded.below(2000) as f32 - 1000.0) * 2_f32.powi(seeded.below(60) as i32))
            .collect();
        let x = given::<T, f32>(&gpu, &s, &values);
        let mut sum = gpu.uninit::<f32>(1, &s).expect("an array");
        kernel::reduce_sum(&x, &mut sum, &s).expect("queued");
        let found = of::<T, f32>(&sum, &s)[0];
        assert_eq!(found.to_bits(), sum_by_reference(&values).to_bits(), "the sum of {n} numbers, {found}");
    }
}

fn moves_of<T: Pod + PartialEq + Debug, B: Bench>(b: &B, value: &dyn Fn(usize) -> T) {
    let gpu = ready(b);
    let (s, t) = (gpu.stream().expect("a stream"), gpu.stream().expect("a stream"));
    let mut seeded = Dice::new(7);
    for n in [0, 1, 5, 256, 257, 3000] {
        let length = n / 2 + 3;
        let from: Vec<T> = (0..length).map(value).collect();
        let old: Vec<T> = (0..n).map(|i| value(i + 100)).collect();
        // Some indices are beyond the end, by one or by far.
        let at: Vec<u32> = (0..n)
            .map(|i| match i % 9 {
                4 => length as u32,
                8 => u32::MAX,
                _ => seeded.below(length) as u32,
            })
            .collect();
        let (source, mut target) = (given::<B, T>(&gpu, &t, &from), given::<B, T>(&gpu, &s, &old));
        let indices = given::<B, u32>(&gpu, &s, &at);
        kernel::gather(&source, &indices, &mut target, &s).expect("queued");
        let expected: Vec<T> =
            at.iter().zip(&old).map(|(&i, &o)| from.get(i as usize).copied().unwrap_or(o)).collect();
        assert_eq!(of::<B, T>(&target, &t), expected, "a gather of {n}");

        // Every index at most once, in another order, and some not at all.
        let wide = 2 * n + 1;
        let old: Vec<T> = (0..wide).map(|i| value(i + 7)).collect();
        let from: Vec<T> = (0..n).map(|i| value(i + 5000)).collect();
        let at: Vec<u32> = (0..n)
            .map(|i| if i % 11 == 3 { wide as u32 + i as u32 } else { (wide - 1 - 2 * i) as u32 })
            .collect();
        let mut expected = old.clone();
        for (&i, &v) in at.iter().zip(&from) {
            if let Some(place) = expected.get_mut(i as usize) {
                *place = v;
            }
        }
        let (source, mut target) = (given::<B, T>(&gpu, &t, &from), given::<B, T>(&gpu, &s, &old));
        kernel::scatter(&source, &given::<B, u32>(&gpu, &t, &at), &mut target, &s).expect("queued");
        assert_eq!(of::<B, T>(&target, &t), expected, "a scatter of {n}");
    }
}

pub fn elements_are_picked_and_spread<T: Bench>(b: &T) {
    moves_of::<u8, T>(b, &|i| i as u8);
    moves_of::<i16, T>(b, &|i| i as i16 - 77);
    moves_of::<f32, T>(b, &|i| i as f32 * 0.5);
    moves_of::<[f32; 3], T>(b, &|i| [i as f32, -(i as f32), 0.25]);
    moves_of::<u128, T>(b, &|i| (i as u128) << 70 | 5);
    moves_of::<[u8; 5], T>(b, &|i| [i as u8, 1, 2, 3, (i >> 8) as u8]);
    // Slices of the operands.
    let gpu = ready(b);
    let s = gpu.stream().expect("a stream");
    let (from, at) = (given::<T, u64>(&gpu, &s, &[10, 11, 12, 13]), given::<T, u32>(&gpu, &s, &[9, 3, 0, 1]));
    let mut into = gpu.zeros::<u64>(4, &s).expect("an array");
    kernel::gather(from.slice(1..), at.slice(1..), &mut into.slice_mut(1..), &s).expect("queued");
    assert_eq!(of::<T, u64>(&into, &s), [0, 0, 11, 12], "index 3 is beyond the slice of three");
}

pub fn lengths_are_compared<T: Bench>(b: &T) {
    let gpu = ready(b);
    let s = gpu.stream().expect("a stream");
    let (x, at) = (gpu.zeros::<f32>([3, 4], &s).expect("x"), gpu.zeros::<u32>(11, &s).expect("at"));
    let mut y = gpu.zeros::<f32>([4, 3], &s).expect("y");
    let refused = [
        ("saxpy", kernel::saxpy(1.0, &x, &mut y, &s), "[3, 4] of f32"),
        ("reduce_sum", kernel::reduce_sum(&x, &mut y, &s), "[4, 3] of f32 (12 elements)"),
        ("gather", kernel::gather(&x, &at, &mut y, &s), "[11] of u32"),
        ("scatter", kernel::scatter(&x, &at, &mut y, &s), "[11] of u32"),
    ];
    for (verb, refused, side) in refused {
        let Err(Error::Mismatch(m)) = refused else {
            panic!("{verb} took lengths that do not fit: {refused:?}")
        };
        let said = m.to_string();
        assert!(said.starts_with(verb) && said.contains(side), "{said}");
    }
    assert!(of::<T, f32>(&y, &s).iter().all(|&v| v == 0.0), "nothing was queued");
    // Other shapes are accepted where only memory order counts.
    kernel::iota(&mut y, 1.0, 1.0, &s).expect("queued");
    kernel::reduce_sum(&y, &mut x_of_one(&gpu, &s).slice_mut(..), &s).expect("queued");
}

fn x_of_one<D: millpond::driver::Driver>(gpu: &Allocator<D>, s: &Stream<D>) -> DeviceArray<f32, D> {
    gpu.uninit::<f32>(1, s).expect("an array")
}

pub fn a_launch_waits_for_exactly_what_it_must<T: Bench>(b: &T) {
    let gpu = ready(b);
    let (s, t, u) =
        (gpu.stream().expect("a stream"), gpu.stream().expect("a stream"), gpu.stream().expect("a stream"));
    let mut x = gpu.zeros::<u32>(5000, &s).expect("x");
    let mut y = gpu.zeros::<u32>(5000, &t).expect("y");
    let mut z = gpu.zeros::<u32>(5000, &u).expect("z");
    finish_stream(b, s.native());
    // A read after a write on another stream waits; an operation on another array does not.
    let gate = b.gate(s.native());
    kernel::iota(&mut x, 7, 1, &s).expect("queued");
    kernel::saxpy(3, &x, &mut y, &t).expect("queued");
    kernel::iota(&mut z, 1, 0, &u).expect("queued");
    let (behind, beside) = (mark(b, t.native()), mark(b, u.native()));
    assert!(done(b, &beside), "z does not depend on the stream that is held");
    assert!(pending(b, &behind), "y's new elements need x, whose stream is held");
    b.open(gate);
    finish_stream(b, t.native());
    // A read does not wait for a read; a write after it does.
    let gate = b.gate(t.native());
    kernel::saxpy(1, &x, &mut y, &t).expect("queued");
    kernel::saxpy(1, &x, &mut z, &u).expect("queued");
    let beside = mark(b, u.native());
    assert!(done(b, &beside), "two may read x at once");
    kernel::fill(&mut x, 0, &u).expect("queued");
    let behind = mark(b, u.native());
    assert!(pending(b, &behind), "x is still to be read on the stream that is held");
    b.open(gate);
    assert!(of::<T, u32>(&x, &s).iter().all(|&v| v == 0));
    assert!((7..).zip(of::<T, u32>(&y, &s)).all(|(i, v)| v == 4 * i));
    assert!((7..).zip(of::<T, u32>(&z, &s)).all(|(i, v)| v == i + 1));
}

pub fn arrays_dropped_behind_a_launch_are_reused_in_order<T: Bench>(b: &T) {
    let gpu = ready(b);
    let (s, t) = (gpu.stream().expect("a stream"), gpu.stream().expect("a stream"));
    let n = 100_000_usize;
    for round in 0..6_u64 {
        let mut x = gpu.uninit::<u64>(n, &s).expect("x");
        let mut sum = gpu.uninit::<u64>(1, &t).expect("a sum");
        let gate = b.gate(t.native());
        kernel::iota(&mut x, round, 1, &s).expect("queued");
        kernel::reduce_sum(&x, &mut sum, &t).expect("queued");
        drop(x);
        // With the same bytes and no order, this fill would run before the sum.
        let mut other = gpu.uninit::<u64>(n, &s).expect("another");
        kernel::fill(&mut other, u64::MAX, &s).expect("queued");
        b.open(gate);
        let all = n as u64;
        assert_eq!(of::<T, u64>(&sum, &t), [all * round + all * (all - 1) / 2], "round {round}");
    }
}

#[allow(unsafe_code, reason = "launches by name")]
pub fn a_named_kernel_takes_operands<T: Bench>(b: &T) {
    let gpu = ready(b);
    let (s, t) = (gpu.stream().expect("a stream"), gpu.stream().expect("a stream"));
    let saxpy = named("millpond_saxpy_f32");
    let mut x = gpu.uninit::<f32>(600, &s).expect("x");
    let mut y = gpu.uninit::<f32>(600, &t).expect("y");
    kernel::iota(&mut x, 0.0, 1.0, &s).expect("queued");
    kernel::fill(&mut y, 0.5, &t).expect("queued");
    // SAFETY: kernels/saxpy.cu takes these, of 600 elements each.
    unsafe { t.launch(saxpy, 600, (y.write(), x.read(), 600_u64, 2.0_f32)) }.expect("queued");
    // Two parts of one array, one written.
    let (mut low, high) = y.split_at_mut(300);
    // SAFETY: as above, of 300 elements each.
    unsafe { s.launch(saxpy, Grid::new(1, 32), (low.write(), high.read(), 300_u64, 1.0_f32)) }
        .expect("queued");
    let found = of::<T, f32>(&y, &t);
    for (i, &v) in found.iter().enumerate() {
        let (i, one) = (i as f32, |i: f32| 2.0 * i + 0.5);
        let expected = if i < 300.0 { one(i) + one(i + 300.0) } else { one(i) };
        assert_eq!(v.to_bits(), expected.to_bits(), "element {i}");
    }
    // No thread: nothing.
    // SAFETY: as above, of no elements.
    unsafe { s.launch(saxpy, 0, (y.write(), x.read(), 0_u64, 2.0_f32)) }.expect("nothing to queue");
    // More threads than a block can have on any device: refused, and the array has no use of it afterwards.
    let gate = b.gate(t.native());
    // SAFETY: as above.
    let refused = unsafe { t.launch(saxpy, Grid::new(1, 2048), (y.write(), x.read(), 600_u64, 2.0_f32)) };
    assert!(matches!(&refused, Err(Error::Driver(e)) if e.code == 1), "{refused:?}");
    b.open(gate);
    assert_eq!(of::<T, f32>(&y, &s), found);
}

/// A launch on a capturing stream would be replayed when others may own the bytes. So the built-in kernels and others
/// with declared operands are refused, the capture and the array stay as they are, and other streams can be used.
#[allow(unsafe_code, reason = "a built-in kernel, by its name")]
pub fn a_capturing_stream_gets_no_kernel<T: Bench>(b: &T) {
    let gpu = ready(b);
    let (s, native) = (gpu.stream().expect("a stream"), stream(b));
    let theirs = gpu.adopt(native.clone()).expect("adopted");
    let (mut x, mut y) = (gpu.uninit::<f32>(600, &s).expect("x"), gpu.uninit::<f32>(600, &s).expect("y"));
    kernel::fill(&mut x, 2.0, &s).expect("queued");
    kernel::fill(&mut y, 1.0, &s).expect("queued");
    s.synchronize().expect("waited");
    let uses = gpu.report().total.counters;
    b.begin_capture(&native);
    let saxpy = named("millpond_saxpy_f32");
    let refused = [
        kernel::fill(&mut y, 9.0, &theirs),
        kernel::saxpy(3.0, &x, &mut y, &theirs),
        // SAFETY: kernels/saxpy.cu takes these, of 600 elements each.
        unsafe { theirs.launch(saxpy, 600, (y.write(), x.read(), 600_u64, 5.0_f32)) },
    ];
    for refused in refused {
        let of_theirs = matches!(&refused, Err(Error::Capturing { stream: Some(id) }) if *id == theirs.id());
        assert!(of_theirs, "{refused:?}");
    }
    assert_eq!(gpu.report().total.counters, uses, "nothing is counted");
    kernel::saxpy(2.0, &x, &mut y, &s).expect("other streams can be used");
    assert_eq!(b.end_capture(&native), Ok(()), "the capture survived");
    assert!(of::<T, f32>(&y, &s).iter().all(|&v| v.to_bits() == 5.0_f32.to_bits()), "1 and twice 2");
    kernel::fill(&mut y, 7.0, &theirs).expect("after the capture");
    assert!(of::<T, f32>(&y, &s).iter().all(|&v| v.to_bits() == 7.0_f32.to_bits()));
}
