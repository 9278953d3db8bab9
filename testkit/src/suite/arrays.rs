//! Typed arrays: shapes and sizes, views, and that each operation on any stream waits for the uses that it conflicts with.

#![allow(clippy::many_single_char_names, reason = "b is the bench; s, t, u are streams; x, y arrays")]

use super::*;
use millpond::units::GIB;
use millpond::{DeviceArray, Error, Shape};

type Array<T, B> = DeviceArray<T, <B as Bench>::Device>;

/// Checks on a stream that an array holds one byte everywhere. `wait_on` and `record_use` are the only calls that establish the order.
fn holds<T: Bench>(b: &T, array: &Array<u8, T>, on: &Stream<T::Device>, value: u8) {
    array.wait_on(on).expect("ordered");
    array.record_use(on).expect("recorded");
    b.check(on.native(), array.address(), array.size_bytes(), u64::from_le_bytes([value; 8]));
}

pub fn shapes_and_sizes<T: Bench>(b: &T) {
    let gpu = allocator(b, Config::default());
    let s = gpu.stream().expect("a stream");
    let mut x = gpu.uninit::<f32>([3, 4, 5], &s).expect("an array");
    assert_eq!((x.len(), x.size_bytes(), x.shape().lengths()), (60, 240, &[3, 4, 5][..]));
    assert_eq!(x.address().0 % 512, 0);
    x.reshape([6, 10]).expect("as many elements");
    let Err(Error::Mismatch(m)) = x.reshape([7, 9]) else { panic!("63 are not 60") };
    let said = m.to_string();
    assert!(said.contains("[6, 10] of f32 (60 elements)") && said.contains("[7, 9]"), "{said}");
    assert_eq!(x.shape(), Shape::from([6, 10]), "a refused reshape changes nothing");

    for shape in [[usize::MAX, 2], [usize::MAX / 2, 1]] {
        let refused = gpu.uninit::<u64>(shape, &s).expect_err("more than there is");
        assert!(matches!(&refused, Error::Overflow { shape: said, .. } if said == &shape), "{refused}");
    }
    let refused = gpu.uninit::<u8>(usize::try_from(4096 * GIB).expect("64 bits"), &s).expect_err("too much");
    assert!(matches!(refused, Error::TooLarge { .. }), "{refused}");
    let refused = gpu.pinned_uninit::<u64>([usize::MAX, 3]).expect_err("more than there is");
    assert!(matches!(refused, Error::Overflow { .. }), "{refused}");
}

pub fn no_elements_are_an_array_too<T: Bench>(b: &T) {
    let gpu = allocator(b, Config::default());
    let (s, t) = (gpu.stream().expect("a stream"), gpu.stream().expect("a stream"));
    for shape in [Shape::from(0), Shape::from([usize::MAX, 0, 7]), Shape::from([0, usize::MAX, 2])] {
        let mut x = gpu.zeros::<f64>(shape, &s).expect("an array of nothing");
        assert!(x.is_empty() && x.id().is_none() && x.slice(..).is_empty());
        x.fill_bytes(1, &t).expect("nothing to fill");
        assert!(x.slice_mut(0..0).view().is_empty() && x.rows(0..0).is_empty(), "{shape}");
        let pinned = gpu.pinned_zeros::<f64>(shape).expect("nothing pinned");
        assert!(pinned.is_empty());
    }
    let x = gpu.zeros::<[f32; 0]>(9, &s).expect("nine times nothing");
    assert_eq!((x.len(), x.size_bytes()), (9, 0));
    assert_eq!(gpu.report().total.counters.allocations, 0, "nothing was taken");
}

pub fn zeros_are_zero_and_pinned_too<T: Bench>(b: &T) {
    let gpu = allocator(b, Config::default());
    let s = gpu.stream().expect("a stream");
    // The bytes were used before.
    let mut x = gpu.uninit::<u8>(100_000, &s).expect("an array");
    x.fill_bytes(0xEE, &s).expect("filled");
    let address = x.address();
    drop(x);
    let x = gpu.zeros::<u8>(100_000, &s).expect("an array");
    assert_eq!(x.address(), address, "the same bytes");
    holds(b, &x, &s, 0);
    let mut p = gpu.pinned_uninit::<u64>(5000).expect("pinned");
    p.fill(u64::MAX);
    drop(p);
    assert!(gpu.pinned_zeros::<u64>(5000).expect("pinned").iter().all(|&v| v == 0));
    let from = gpu.pinned_from_fn([2, 3], |i| u16::try_from(i * 10).expect("small")).expect("pinned");
    assert_eq!((&from[..], from.shape().lengths()), (&[0, 10, 20, 30, 40, 50][..], &[2, 3][..]));
    assert_eq!(&gpu.pinned_from_slice(&[1.5_f32, 2.5]).expect("pinned")[..], &[1.5, 2.5]);
}

pub fn pinned_kinds_never_share_a_segment<T: Bench>(b: &T) {
    use millpond::driver::HostKind::{Cached, WriteCombined};
    let gpu = allocator(b, Config::default());
    let one = gpu.pinned_uninit_as::<u8>(4096, WriteCombined).expect("pinned");
    let other = gpu.pinned_uninit_as::<u8>(4096, Cached).expect("pinned");
    let (at, apart) = (one.as_ptr().addr(), one.as_ptr().addr().abs_diff(other.as_ptr().addr()));
    assert!(apart >= 64 << 20, "a segment has 64 MiB, and these are {apart} bytes apart");
    drop(one);
    let cached = gpu.pinned_uninit_as::<u8>(4096, Cached).expect("pinned");
    assert_ne!(cached.as_ptr().addr(), at, "write-combined bytes are not used for cached memory");
    let again = gpu.pinned_uninit_as::<u8>(4096, WriteCombined).expect("pinned");
    assert_eq!(again.as_ptr().addr(), at);
    // Without a kind the memory is cached: it gets the bytes that a cached array leaves, each time.
    let at = cached.as_ptr().addr();
    drop((cached, again));
    let plain = gpu.pinned_uninit::<u8>(4096).expect("pinned");
    assert_eq!(plain.as_ptr().addr(), at, "cached unless another kind is requested");
    drop(plain);
    let plain = gpu.alloc_pinned(4096).expect("pinned");
    assert_eq!(plain.as_ptr().as_ptr().addr(), at, "an allocation without a type too");
}

pub fn views_name_their_elements<T: Bench>(b: &T) {
    let gpu = allocator(b, Config::default());
    let s = gpu.stream().expect("a stream");
    let mut x = gpu.zeros::<u32>([4, 6], &s).expect("an array");
    let base = x.address();
    assert_eq!(x.slice(5..9).address(), base.plus(20));
    assert_eq!((x.rows(1..3).address(), x.rows(1..3).shape().lengths()), (base.plus(24), &[2, 6][..]));
    assert_eq!(x.rows(..).slice(3..).rows(..=1).len(), 2);
    let (mut low, mut high) = x.split_at_mut(10);
    assert_eq!((low.len(), high.len(), high.address()), (10, 14, base.plus(40)));
    low.fill_bytes(0x11, &s).expect("filled");
    high.fill_bytes(0x22, &s).expect("filled");
    let (mut one, two) = high.split_at(3);
    one.fill_bytes(0x33, &s).expect("filled");
    assert_eq!(two.address(), base.plus(52));
    b.check(s.native(), base, 40, 0x1111_1111_1111_1111);
    b.check(s.native(), base.plus(40), 12, 0x3333_3333_3333_3333);
    b.check(s.native(), base.plus(52), 44, 0x2222_2222_2222_2222);
    let view = x.view();
    let beyond: [&dyn Fn(); 3] =
        [&|| _ = view.slice(20..25), &|| _ = view.rows(2..5), &|| _ = view.split_at(25)];
    for slice in beyond {
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(slice));
        assert!(caught.is_err(), "a range beyond the end is an error of the program");
    }
}

pub fn each_stream_waits_for_the_last_write<T: Bench>(b: &T) {
    let gpu = allocator(b, Config::default());
    let (s, t, u) =
        (gpu.stream().expect("a stream"), gpu.stream().expect("a stream"), gpu.stream().expect("a stream"));
    let mut x = gpu.uninit::<u8>(1 << 20, &s).expect("an array");
    for round in 1..4_u8 {
        let gate = b.gate(s.native());
        x.fill_bytes(round, &s).expect("filled");
        x.slice_mut(..1 << 19).fill_bytes(round ^ 0x40, &t).expect("filled");
        x.fill_bytes(round ^ 0x80, &u).expect("filled");
        let behind = mark(b, u.native());
        assert!(pending(b, &behind), "the third write waits for the first, whose stream is held");
        b.open(gate);
        holds(b, &x, &s, round ^ 0x80);
    }
}

pub fn dropped_in_flight_is_reused_in_order<T: Bench>(b: &T) {
    let gpu = allocator(b, Config::default().limit(millpond::Limit::Bytes(64 * MIB)));
    let (s, t) = (gpu.stream().expect("a stream"), gpu.stream().expect("a stream"));
    let mut next = Vec::new();
    for _ in 0..8 {
        let mut x = gpu.uninit::<u8>(16 << 20, &s).expect("an array");
        let gate = b.gate(t.native());
        x.fill_bytes(0xA1, &t).expect("filled");
        holds(b, &x, &t, 0xA1);
        std::thread::scope(|scope| scope.spawn(|| drop(x)).join().expect("dropped by another thread"));
        let mut y = gpu.uninit::<u8>(16 << 20, &s).expect("an array");
        y.fill_bytes(0xB2, &s).expect("filled");
        b.open(gate);
        holds(b, &y, &s, 0xB2);
        if next.len() == 2 {
            next.clear();
        }
        next.push(y);
    }
}

pub fn an_array_has_a_life_as_an_allocation<T: Bench>(b: &T) {
    let gpu = allocator(b, Config::default());
    let (s, t) = (gpu.stream().expect("a stream"), gpu.stream().expect("a stream"));
    let block = gpu.alloc(64 * KIB, &s).expect("memory");
    let gate = b.gate(s.native());
    b.write(s.native(), block.address(), block.len(), 0x0505_0505_0505_0505);
    let (block, refused) = DeviceArray::<u64, _>::from_allocation(block, 8193).expect_err("one too many");
    assert!(matches!(refused, Error::Mismatch(_)), "{refused}");
    let mut x = DeviceArray::<u8, _>::from_allocation(block, 64 << 10).expect("as long");
    // The work on its stream so far counts as a write.
    x.slice_mut(8..).fill_bytes(6, &t).expect("filled");
    let behind = mark(b, t.native());
    assert!(pending(b, &behind), "it waits for the kernel that the program launched");
    b.open(gate);
    x.wait_on(&t).expect("ordered");
    x.record_use(&t).expect("recorded");
    b.check(t.native(), x.address(), 8, 0x0505_0505_0505_0505);
    b.check(t.native(), x.address().plus(8), (64 << 10) - 8, 0x0606_0606_0606_0606);
    let block = x.into_allocation().expect("memory of ours");
    assert_eq!(block.len(), 64 * KIB);
    drop(block);
}

pub fn a_stream_of_another_device_is_refused<T: Bench>(b: &T) {
    // An operation accepts streams of all allocators of the device; an allocation needs a stream of its own allocator.
    let (gpu, other) = (allocator(b, Config::default()), allocator(b, Config::default()));
    let (s, t) = (gpu.stream().expect("a stream"), other.stream().expect("a stream"));
    let mut x = gpu.zeros::<u8>(4096, &s).expect("an array");
    x.fill_bytes(3, &t).expect("filled by a stream of another allocator");
    holds(b, &x, &s, 3);
    let refused = gpu.zeros::<u8>(4096, &t).expect_err("memory comes from the stream's own allocator");
    assert!(matches!(refused, Error::OtherAllocator { .. }), "{refused}");
}
