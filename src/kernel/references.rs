//! What the built-in kernels do, on the CPU: the same to the last bit, except the bits of a NaN.
//!
//! Each reference takes the arguments of its kernel (see the sources in `kernels`) and all elements at once. Floats are
//! added and rounded in the kernels' order. It does not know streams, arrays, or the caller.

use crate::driver::{Argument, ReferenceMemory};
use crate::units::Addr;

/// Elements of one block's part of a sum, as in kernels/reduce.cu.
pub(super) const PART: usize = 8192;
/// Threads of a block, as there.
const THREADS: usize = 256;

/// A type that there are kernels for.
pub(super) trait Word: Copy {
    const ZERO: Self;
    fn of(argument: Argument) -> Self;
    fn load(memory: &mut dyn ReferenceMemory, at: Addr, n: u64) -> Vec<Self>;
    fn store(memory: &mut dyn ReferenceMemory, at: Addr, values: &[Self]);
    /// `a * x + y`, rounded once.
    fn fused(a: Self, x: Self, y: Self) -> Self;
    fn plus(self, other: Self) -> Self;
    fn counted(i: u64) -> Self;
}

macro_rules! words {
    ($($word:ty: $zero:expr, |$bits:ident| $of:expr, |$a:ident, $x:ident, $y:ident| $fused:expr, $plus:expr;)*) => {$(
        impl Word for $word {
            const ZERO: $word = $zero;
            fn of($bits: Argument) -> $word {
                $of
            }
            fn load(memory: &mut dyn ReferenceMemory, at: Addr, n: u64) -> Vec<$word> {
                let mut bytes = vec![0; n as usize * size_of::<$word>()];
                memory.read(at, &mut bytes);
                let (words, _) = bytes.as_chunks();
                words.iter().map(|&w| <$word>::from_le_bytes(w)).collect()
            }
            fn store(memory: &mut dyn ReferenceMemory, at: Addr, values: &[$word]) {
                let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
                memory.write(at, &bytes);
            }
            fn fused($a: $word, $x: $word, $y: $word) -> $word {
                $fused
            }
            fn plus(self, other: $word) -> $word {
                $plus(self, other)
            }
            fn counted(i: u64) -> $word {
                i as $word
            }
        }
    )*};
}
words! {
    u32: 0, |b| b.as_u32(), |a, x, y| a.wrapping_mul(x).wrapping_add(y), u32::wrapping_add;
    u64: 0, |b| b.bits(), |a, x, y| a.wrapping_mul(x).wrapping_add(y), u64::wrapping_add;
    f32: 0.0, |b| b.as_f32(), |a, x, y| a.mul_add(x, y), |a: f32, b: f32| a + b;
    f64: 0.0, |b| b.as_f64(), |a, x, y| a.mul_add(x, y), |a: f64, b: f64| a + b;
}

/// The arguments, as many as the kernel has.
fn all<const N: usize>(arguments: &[Argument]) -> [Argument; N] {
    arguments.try_into().unwrap_or_else(|_| panic!("the kernel takes {N} arguments, not {}", arguments.len()))
}

pub(super) fn fill(memory: &mut dyn ReferenceMemory, arguments: &[Argument]) {
    let [at, bytes, word] = all(arguments);
    memory.fill(at.as_addr(), bytes.bits(), word.bits());
}

pub(super) fn iota<W: Word>(memory: &mut dyn ReferenceMemory, arguments: &[Argument]) {
    let [out, n, first, step] = all(arguments);
    let (first, step) = (W::of(first), W::of(step));
    let values: Vec<W> = (0..n.bits()).map(|i| W::fused(W::counted(i), step, first)).collect();
    W::store(memory, out.as_addr(), &values);
}

pub(super) fn saxpy<W: Word>(memory: &mut dyn ReferenceMemory, arguments: &[Argument]) {
    let [y, x, n, a] = all(arguments);
    let (a, xs) = (W::of(a), W::load(memory, x.as_addr(), n.bits()));
    let mut ys = W::load(memory, y.as_addr(), n.bits());
    for (y, &x) in ys.iter_mut().zip(&xs) {
        *y = W::fused(a, x, *y);
    }
    W::store(memory, y.as_addr(), &ys);
}

pub(super) fn reduce<W: Word>(memory: &mut dyn ReferenceMemory, arguments: &[Argument]) {
    let [out, x, n] = all(arguments);
    let xs = W::load(memory, x.as_addr(), n.bits());
    let sums: Vec<W> = xs.chunks(PART).map(sum_of_part).collect();
    W::store(memory, out.as_addr(), &sums);
}

/// The sum of one block's part, added as its threads do.
fn sum_of_part<W: Word>(part: &[W]) -> W {
    let mut sums = [W::ZERO; THREADS];
    for (i, &x) in part.iter().enumerate() {
        sums[i % THREADS] = sums[i % THREADS].plus(x);
    }
    let mut half = THREADS / 2;
    while half > 0 {
        for thread in 0..half {
            sums[thread] = sums[thread].plus(sums[thread + half]);
        }
        half /= 2;
    }
    sums[0]
}

/// Reads the bytes of an array.
fn bytes(memory: &mut dyn ReferenceMemory, at: Addr, len: u64) -> Vec<u8> {
    let mut bytes = vec![0; len as usize];
    memory.read(at, &mut bytes);
    bytes
}

/// Copies elements between two arrays by an index on one side; skips those whose index is beyond the end.
fn moved(from: &[u8], to: &mut [u8], element: usize, pairs: impl Iterator<Item = (usize, usize)>) {
    for (source, target) in pairs {
        let (source, target) = (source * element, target * element);
        if let (Some(from), Some(to)) =
            (from.get(source..source + element), to.get_mut(target..target + element))
        {
            to.copy_from_slice(from);
        }
    }
}

pub(super) fn gather<const PIECE: u64>(memory: &mut dyn ReferenceMemory, arguments: &[Argument]) {
    let [out, from, length, at, n, pieces] = all(arguments);
    let element = PIECE * pieces.bits();
    let indices = u32::load(memory, at.as_addr(), n.bits());
    let from = bytes(memory, from.as_addr(), length.bits() * element);
    let mut target = bytes(memory, out.as_addr(), n.bits() * element);
    let pairs = indices.iter().enumerate().map(|(i, &source)| (source as usize, i));
    moved(&from, &mut target, element as usize, pairs);
    memory.write(out.as_addr(), &target);
}

pub(super) fn scatter<const PIECE: u64>(memory: &mut dyn ReferenceMemory, arguments: &[Argument]) {
    let [out, length, from, at, n, pieces] = all(arguments);
    let element = PIECE * pieces.bits();
    let indices = u32::load(memory, at.as_addr(), n.bits());
    let from = bytes(memory, from.as_addr(), n.bits() * element);
    let mut target = bytes(memory, out.as_addr(), length.bits() * element);
    let pairs = indices.iter().enumerate().map(|(i, &to)| (i, to as usize));
    moved(&from, &mut target, element as usize, pairs);
    memory.write(out.as_addr(), &target);
}

pub(super) fn unpack(memory: &mut dyn ReferenceMemory, arguments: &[Argument]) {
    let [packed, table, n] = all(arguments);
    let in_packed = |at: u64| Addr(packed.as_addr().0 + at);
    let table = u64::load(memory, in_packed(table.bits()), 3 * n.bits());
    let (pieces, _) = table.as_chunks();
    for &[to, from, len] in pieces {
        let piece = bytes(memory, in_packed(from), len);
        memory.write(Addr(to), &piece);
    }
}
