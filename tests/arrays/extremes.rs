//! Numbers at the ends of what can be counted, where an array, a view, a plane or an alignment takes them: each answer is what `i128`
//! arithmetic says, or its typed error. Nothing overflows, and a panic is the documented one.

#![allow(
    clippy::many_single_char_names,
    reason = "s is a stream, x and y are arrays, a and b planes or ends of a range"
)]
#![allow(clippy::cast_sign_loss, reason = "what is cast was found to lie in the range before")]

use millpond::array::MOST_DIMENSIONS;
use millpond::bytemuck::Pod;
use millpond::transfer::Part;
use millpond::units::{GIB, MIB};
use millpond::{Allocator, Config, DeviceArray, Error, PinnedArray, Shape, Trim};
use millpond_sim::Sim;
use millpond_testkit::quiet;
use proptest::prelude::*;
use std::ops::Bound;

/// The device's memory, and what of the host's can be pinned: none of it is ever touched.
const DEVICE: u64 = GIB;
const PINNED: u64 = 64 * MIB;
/// Of an allocation that an array is made over.
const HAS: u64 = 4096;
/// The most granules of 512 bytes that a range can have, in bytes.
const MOST: u64 = 512 * u32::MAX as u64;

fn device() -> (Sim, Allocator<Sim>) {
    let sim = Sim::new(DEVICE).pinned_capacity(PINNED);
    (sim.clone(), Allocator::new(sim, Config::default()).unwrap())
}

/// The ends of a range of numbers that a program may well pass, and their neighbours: 0, `n`, half of all there are, all.
fn ends(n: usize) -> impl Strategy<Value = usize> {
    let ends = [0, n, usize::MAX / 2, usize::MAX];
    let near = |x: usize| [x.wrapping_sub(1), x, x.wrapping_add(1)];
    let mut all: Vec<usize> = ends.into_iter().flat_map(near).chain([2, n / 2]).collect();
    all.sort_unstable();
    all.dedup();
    prop_oneof![4 => prop::sample::select(all), 1 => 0..=n]
}

/// Lengths whose products lie at the ends, too: powers of two and what is beside them.
fn lengths() -> impl Strategy<Value = Vec<usize>> {
    let power =
        (0..64_u32, 0..3_usize).prop_map(|(bits, near)| (1_usize << bits).wrapping_add(near).wrapping_sub(1));
    prop::collection::vec(prop_oneof![2 => ends(100), 1 => power, 2 => 1..9_usize], 0..9)
}

/// The product, or `None` if that is beyond even these numbers. A length of 0 makes it 0 however large the others are.
fn product(lengths: &[usize]) -> Option<i128> {
    if lengths.contains(&0) {
        return Some(0);
    }
    lengths.iter().try_fold(1_i128, |n, &len| n.checked_mul(len as i128))
}

/// What is requested, as these numbers say it.
#[derive(Debug, PartialEq)]
enum Answer {
    Given { elements: usize, bytes: u64 },
    Overflow,
    TooLarge(u64),
    OutOfMemory,
    TooShort,
}

/// Of an array of this shape, where there are so many bytes.
fn of_array<T>(lengths: &[usize], room: u64) -> Answer {
    let elements = product(lengths).filter(|&n| n <= usize::MAX as i128);
    let Some(bytes) = elements.and_then(|n| n.checked_mul(size_of::<T>() as i128)) else {
        return Answer::Overflow;
    };
    let Some(bytes) = u64::try_from(bytes).ok().filter(|&b| i64::try_from(b).is_ok()) else {
        return Answer::Overflow;
    };
    if bytes > MOST {
        Answer::TooLarge(bytes)
    } else if bytes.next_multiple_of(512) > room {
        Answer::OutOfMemory
    } else {
        Answer::Given { elements: elements.unwrap() as usize, bytes }
    }
}

fn refused(e: &Error) -> Answer {
    // Whatever the numbers, it has words.
    let _ = e.to_string();
    match e {
        Error::Overflow { .. } => Answer::Overflow,
        &Error::TooLarge { requested: asked, max: most } => {
            assert_eq!(most, MOST);
            Answer::TooLarge(asked)
        }
        Error::OutOfMemory(_) => Answer::OutOfMemory,
        Error::Mismatch(_) => Answer::TooShort,
        other => panic!("{other}"),
    }
}

fn arrays_of<T: Pod + std::fmt::Debug>(lengths: &[usize]) {
    let Ok(shape) = Shape::try_from(lengths) else { return };
    let (_sim, gpu) = device();
    let s = gpu.stream().unwrap();
    let said = |bytes, elements| Answer::Given { elements, bytes };
    let device = gpu.uninit::<T>(shape, &s).map(|x| said(x.size_bytes(), x.len()));
    assert_eq!(device.unwrap_or_else(|e| refused(&e)), of_array::<T>(lengths, DEVICE), "on the device");
    let pinned = gpu.pinned_uninit::<T>(shape).map(|x| said(x.size_bytes(), x.len()));
    assert_eq!(pinned.unwrap_or_else(|e| refused(&e)), of_array::<T>(lengths, PINNED), "pinned");
    // Over an allocation, which the array may be shorter than.
    let over = DeviceArray::<T, Sim>::from_allocation(gpu.alloc(HAS, &s).unwrap(), shape);
    let expected = match of_array::<T>(lengths, u64::MAX) {
        Answer::Given { bytes, .. } | Answer::TooLarge(bytes) if bytes > HAS => Answer::TooShort,
        other => other,
    };
    let over = over.map_or_else(|(_, e)| refused(&e), |x| said(x.size_bytes(), x.len()));
    assert_eq!(over, expected, "over an allocation");
}

fn fixed<const N: usize>(lengths: &[usize]) -> Shape {
    Shape::from(<[usize; N]>::try_from(lengths).unwrap())
}

/// What a call comes to that panics where a range does not lie in what it names; `None` there.
fn lies<R>(call: impl FnOnce() -> R) -> Option<R> {
    quiet::catch(call)
        .map_err(|panic| {
            let said = panic.downcast_ref::<String>().map_or("", |said| said);
            assert!(said.contains(" does not lie in 0.."), "another panic: {said:?}");
        })
        .ok()
}

type Bounds = (Bound<usize>, Bound<usize>);

fn bounds(n: usize) -> impl Strategy<Value = Bounds> {
    let bound = move || {
        prop_oneof![
            3 => ends(n).prop_map(Bound::Included),
            3 => ends(n).prop_map(Bound::Excluded),
            1 => Just(Bound::Unbounded),
        ]
    };
    (bound(), bound())
}

/// The range, if it lies in `len`.
fn range((from, to): Bounds, len: usize) -> Option<(usize, usize)> {
    let start = match from {
        Bound::Included(s) => s as i128,
        Bound::Excluded(s) => s as i128 + 1,
        Bound::Unbounded => 0,
    };
    let end = match to {
        Bound::Included(e) => e as i128 + 1,
        Bound::Excluded(e) => e as i128,
        Bound::Unbounded => len as i128,
    };
    (start <= end && end <= len as i128).then_some((start as usize, end as usize))
}

/// Parts of an array of this shape: where they begin, and how long they are.
fn parts<T: Pod>(shape: Shape, of: Bounds, middle: usize, to: Shape) {
    let (_sim, gpu) = device();
    let s = gpu.stream().unwrap();
    let mut x = gpu.uninit::<T>(shape, &s).unwrap();
    let (base, len) = (x.address().0, x.len());
    let at = |first: i128| base + (first * size_of::<T>() as i128) as u64;
    let rest =
        if shape.lengths().len() < 2 { 1 } else { product(&shape.lengths()[1..]).unwrap_or(i128::MAX) };
    let lengths = |rows: usize| [&[rows], shape.lengths().get(1..).unwrap_or_default()].concat();

    let slice = range(of, len).map(|(a, b)| (at(a as i128), vec![b - a]));
    let rows = range(of, shape.rows()).map(|(a, b)| (at((a as i128).saturating_mul(rest)), lengths(b - a)));
    // Without elements it is unknown where a part begins.
    let rows = if len == 0 { rows.map(|(_, lengths)| (base, lengths)) } else { rows };
    assert_eq!(lies(|| x.slice(of)).map(|v| (v.address().0, v.shape().to_vec())), slice);
    assert_eq!(lies(|| x.slice_mut(of)).map(|v| (v.address().0, v.shape().to_vec())), slice);
    assert_eq!(lies(|| x.rows(of)).map(|v| (v.address().0, v.shape().to_vec())), rows);
    assert_eq!(lies(|| x.rows_mut(of)).map(|v| (v.address().0, v.shape().to_vec())), rows);
    let halves = (middle <= len).then(|| (base, middle, at(middle as i128), len - middle));
    let two =
        lies(|| x.view().split_at(middle)).map(|(a, b)| (a.address().0, a.len(), b.address().0, b.len()));
    assert_eq!(two, halves);
    let two = lies(|| x.split_at_mut(middle)).map(|(a, b)| (a.address().0, a.len(), b.address().0, b.len()));
    assert_eq!(two, halves);
    // The elements stay, or it is refused.
    let keeps = product(to.lengths()) == Some(len as i128);
    assert_eq!(
        x.view().reshape(to).map(|v| v.shape()).map_err(|e| refused(&e)),
        keeps.then_some(to).ok_or(Answer::TooShort)
    );
    assert_eq!(x.view_mut().reshape(to).map_err(|e| refused(&e)).is_ok(), keeps);
    let pinned = gpu.pinned_uninit::<T>(shape).unwrap();
    assert_eq!(
        lies(|| pinned.view().slice(of)).map(|v| v.shape().to_vec()),
        slice.map(|(_, lengths)| lengths)
    );
    assert_eq!(lies(|| Part::new(pinned, of).range()), range(of, len).map(|(a, b)| a..b));
}

#[derive(Clone, Copy, Debug)]
struct Plane {
    rows: usize,
    width: usize,
    pitch: usize,
}

impl Plane {
    /// Whether it lies in so many elements, and its rows in their pitch.
    fn lies_in(self, len: usize) -> bool {
        let (rows, width, pitch) = (self.rows as i128, self.width as i128, self.pitch as i128);
        let last =
            if rows == 0 || width == 0 { 0 } else { (rows - 1).saturating_mul(pitch).saturating_add(width) };
        width <= pitch && last <= len as i128
    }
    fn shape(self) -> Vec<usize> {
        vec![self.rows, self.width]
    }
    /// The places of its elements.
    fn places(self) -> impl Iterator<Item = usize> {
        let none = self.rows == 0 || self.width == 0;
        let (rows, width) = if none { (0, 0) } else { (self.rows, self.width) };
        (0..rows).flat_map(move |row| (0..width).map(move |column| row * self.pitch + column))
    }
}

/// Half of them lie in so many elements, or nearly; the others are any ends.
fn plane(n: usize) -> impl Strategy<Value = Plane> {
    let any = (ends(n), ends(n), ends(n)).prop_map(|(rows, width, pitch)| Plane { rows, width, pitch });
    let near = (1..6_usize, 0..9_usize, 0..n, 0..3_usize).prop_map(move |(rows, width, pitch, off)| {
        // The last row ends with the elements, or one behind or before.
        let pitch = if rows == 1 { pitch } else { (n + off).saturating_sub(width + 1) / (rows - 1) };
        Plane { rows, width, pitch }
    });
    prop_oneof![any, near]
}

const N: usize = 60;

fn fitting(rows: usize) -> impl Strategy<Value = Shape> {
    let lengths = move |of: usize| {
        if of.is_multiple_of(rows) { Shape::from([rows, of / rows]) } else { Shape::from(of) }
    };
    prop_oneof![
        3 => Just(lengths(N)),
        1 => Just(Shape::from([0, usize::MAX, usize::MAX])),
        1 => Just(Shape::from([usize::MAX, 0])),
        1 => Just(Shape::from([])),
    ]
}

/// Rows to the host, from one plane to another, from a source of some shape, and from one that fits: then every element is where it belongs.
fn copies<T: Pod + PartialEq + std::fmt::Debug>(
    a: Plane,
    b: Plane,
    source: [usize; 2],
    element: fn(usize) -> T,
) {
    let (sim, gpu) = device();
    let s = gpu.stream().unwrap();
    let first: Vec<T> = (0..N).map(element).collect();
    let of = |pinned: PinnedArray<T, Sim>| gpu.array_from_pinned(pinned, &s).unwrap();
    let (x, sent) = of(gpu.pinned_from_slice(&first).unwrap());
    let mut y = gpu.zeros::<T>(N, &s).unwrap();
    let mut expected: Vec<T> = vec![T::zeroed(); N];

    let (from, to) = (x.view().plane(a.rows, a.width, a.pitch), y.view_mut().plane(b.rows, b.width, b.pitch));
    assert_eq!(from.is_ok(), a.lies_in(N), "{a:?}");
    assert_eq!(to.is_ok(), b.lies_in(N), "{b:?}");
    for e in [from.as_ref().err(), to.as_ref().err()].into_iter().flatten() {
        assert!(matches!(e, Error::Mismatch(m) if m.verb == "plane"), "{e}");
        let _ = e.to_string();
    }
    if let Ok(from) = &from {
        assert_eq!(from.shape().to_vec(), a.shape());
        let back = from.to_pinned(&s).unwrap().wait().unwrap();
        assert_eq!(back.shape().to_vec(), a.shape());
        assert_eq!(back[..], a.places().map(element).collect::<Vec<T>>()[..], "{a:?}");
    }
    if let (Ok(from), Ok(mut to)) = (from, to) {
        let same = a.shape() == b.shape();
        let copied = to.copy_from_plane(&from, &s);
        assert_eq!(copied.is_ok(), same, "{copied:?}");
        if same {
            a.places().zip(b.places()).for_each(|(from, to)| expected[to] = element(from));
        }
        if let Ok(pinned) = gpu.pinned_uninit::<T>(source) {
            let sent = to.copy_from(pinned, &s);
            let sent = sent.map_err(|e| e.error.to_string());
            assert_eq!(sent.is_ok(), source.to_vec() == b.shape(), "{source:?} {b:?}: {sent:?}");
        }
        // Whatever was in that source, this is what comes behind it.
        if b.places().next().is_some() {
            let rows = gpu.pinned_from_fn(Shape::from([b.rows, b.width]), |i| element(i + 7)).unwrap();
            drop(to.copy_from(rows, &s).unwrap());
            b.places().enumerate().for_each(|(i, place)| expected[place] = element(i + 7));
        }
    }
    assert_eq!(y.to_pinned(&s).unwrap().wait().unwrap()[..], expected[..]);
    drop(sent);
    sim.verdict().unwrap();
}

/// A plane of what has no bytes may have as many elements as can be counted.
fn planes_of_nothing(p: Plane, elements: usize) {
    let (_sim, gpu) = device();
    let s = gpu.stream().unwrap();
    let mut x = gpu.uninit::<()>(elements, &s).unwrap();
    let found =
        x.view().plane(p.rows, p.width, p.pitch).map(|p| p.to_pinned(&s).unwrap().wait().unwrap().len());
    let lies = p.lies_in(elements).then(|| p.rows * p.width);
    assert_eq!(found.map_err(|e| refused(&e)), lies.ok_or(Answer::TooShort), "{p:?} of {elements}");
    assert_eq!(x.view_mut().plane(p.rows, p.width, p.pitch).is_ok(), lies.is_some());
}

/// The last index is behind no element, so that a range up to and with it lies in nothing. Both ends were taken for the number before: of rows
/// without elements, and of elements without bytes, there may be as many as can be counted, and this range gave them all.
#[test]
fn no_range_holds_the_last_index() {
    let (_sim, gpu) = device();
    let s = gpu.stream().unwrap();
    let x = gpu.uninit::<u8>([usize::MAX, 0], &s).unwrap();
    assert!(lies(|| x.rows(0..=usize::MAX)).is_none());
    assert!(lies(|| x.rows((Bound::Excluded(usize::MAX), Bound::Unbounded))).is_none());
    assert_eq!(x.rows(..).shape().lengths(), [usize::MAX, 0]);
    let y = gpu.uninit::<()>(usize::MAX, &s).unwrap();
    assert!(lies(|| y.slice(..=usize::MAX)).is_none());
    assert_eq!(y.slice(..usize::MAX).len(), usize::MAX);
}

/// A shape of more elements than can be counted has words all the same.
#[test]
fn what_cannot_be_counted_has_words() {
    let (_sim, gpu) = device();
    let s = gpu.stream().unwrap();
    let x = gpu.uninit::<u8>(6, &s).unwrap();
    let view = x.view();
    for e in [view.plane(2, 1, usize::MAX).unwrap_err(), view.reshape([usize::MAX, 2]).unwrap_err()] {
        assert!(e.to_string().contains("(more elements than can be counted)"), "{e}");
    }
    let e = view.reshape([usize::MAX, 2, 0]).unwrap_err();
    assert!(e.to_string().contains("(0 elements)"), "{e}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, failure_persistence: None, ..Default::default() })]

    #[test]
    fn shapes_count_as_the_numbers_do(lengths in lengths(), rows in ends(100)) {
        let elements = product(&lengths).and_then(|n| usize::try_from(n).ok());
        match Shape::try_from(&lengths[..]) {
            Ok(shape) => {
                prop_assert!(lengths.len() <= MOST_DIMENSIONS);
                prop_assert_eq!((shape.lengths(), shape.elements()), (&lengths[..], elements));
                prop_assert_eq!(shape.rows(), lengths.first().copied().unwrap_or(1));
                let same = match lengths.len() {
                    0 => fixed::<0>(&lengths),
                    1 => fixed::<1>(&lengths),
                    2 => fixed::<2>(&lengths),
                    3 => fixed::<3>(&lengths),
                    4 => fixed::<4>(&lengths),
                    5 => fixed::<5>(&lengths),
                    _ => fixed::<6>(&lengths),
                };
                prop_assert_eq!(shape, same);
            }
            Err(e @ Error::TooManyDimensions { requested: asked, max: most }) => {
                prop_assert!(e.to_string().contains("dimensions"));
                prop_assert!(lengths.len() > MOST_DIMENSIONS);
                prop_assert_eq!((asked, most), (lengths.len(), MOST_DIMENSIONS));
            }
            Err(other) => prop_assert!(false, "{}", other),
        }
        prop_assert_eq!(Shape::from(rows).elements(), Some(rows));
        prop_assert_eq!(Shape::from(rows), Shape::line(rows));
        arrays_of::<()>(&lengths);
        arrays_of::<u8>(&lengths);
        arrays_of::<[u64; 3]>(&lengths);
    }

    #[test]
    fn alignments_skip_what_the_numbers_say(
        bytes in prop_oneof![ends(DEVICE as usize), ends(MOST as usize), ends(4096)],
        align in prop_oneof![ends(DEVICE as usize), ends(512), (0..64_u32).prop_map(|bits| 1 << bits)],
        less in 0..3_u64,
    ) {
        let (_sim, gpu) = device();
        let s = gpu.stream().unwrap();
        let align = align as u64;
        // Also what holds exactly, one byte less and one granule less, wherever it begins.
        let skips = i128::from(align.max(512)) - 512;
        let exactly = i128::from(DEVICE) - skips - [0, 1, -1][less as usize];
        for bytes in [bytes as u64, u64::try_from(exactly).unwrap_or(0)] {
            let rounded = (i128::from(bytes) + 511) / 512 * 512;
            let given = gpu.alloc_aligned(bytes, align, &s);
            match given {
                Ok(block) => {
                    prop_assert!(align.is_power_of_two() && align <= GIB);
                    prop_assert!(bytes == 0 || rounded + skips <= i128::from(DEVICE), "{} at {}", bytes, align);
                    prop_assert_eq!((block.len(), block.address().0 % align), (bytes, 0));
                }
                Err(e @ Error::BadAlignment { requested: asked, max: most }) => {
                    prop_assert!(e.to_string().contains("alignment"));
                    prop_assert_eq!((asked, most), (align, GIB));
                    prop_assert!(!align.is_power_of_two() || align > GIB);
                }
                Err(e @ Error::TooLarge { requested: asked, max: most }) => {
                    prop_assert!(e.to_string().contains("split the request"));
                    prop_assert_eq!((asked, most), (bytes, MOST));
                    prop_assert!(rounded > i128::from(MOST));
                }
                Err(Error::OutOfMemory(facts)) => {
                    let _ = facts.to_string();
                    prop_assert!(bytes > 0 && rounded <= i128::from(MOST));
                    prop_assert!(rounded + skips > i128::from(DEVICE), "{} at {}: {}", bytes, align, facts);
                    let reported = (i128::from(facts.rounded), i128::from(facts.needed));
                    prop_assert_eq!(reported, (rounded, rounded + skips));
                }
                Err(other) => prop_assert!(false, "{}", other),
            }
            gpu.synchronize().unwrap();
            gpu.trim(Trim::All).unwrap();
        }
    }

    #[test]
    fn parts_lie_where_the_numbers_say(
        shape in (1..8_usize).prop_flat_map(fitting),
        of in prop_oneof![bounds(N), bounds(7)],
        middle in ends(N),
        to in lengths(),
        all in ends(N),
    ) {
        let to = Shape::try_from(&to[..]).unwrap_or(Shape::from([N, 1]));
        parts::<u8>(shape, of, middle, to);
        parts::<u64>(shape, of, middle, to);
        parts::<()>(shape, of, middle, to);
        parts::<()>(Shape::from(all), of, middle, to);
    }

    #[test]
    fn planes_lie_where_the_numbers_say(
        (a, b) in (plane(N), plane(N), any::<bool>(), ends(N)).prop_map(|(a, b, same, pitch)| {
            // Often of one shape, so that rows are copied from one to the other.
            (a, if same { Plane { pitch: if b.width % 2 == 0 { a.pitch } else { pitch }, ..a } } else { b })
        }),
        source in (ends(N), ends(N), any::<bool>()),
        elements in ends(N),
    ) {
        let source = if source.2 { [b.rows, b.width] } else { [source.0, source.1] };
        copies::<u8>(a, b, source, |i| i as u8 + 1);
        copies::<u64>(a, b, source, |i| i as u64 + 1);
        planes_of_nothing(a, elements);
        planes_of_nothing(b, usize::MAX);
    }
}

/// The words of what is too long say no more than is so.
#[test]
fn what_is_too_long_is_printed_as_it_is() {
    let gpu = Allocator::new(Sim::new(GIB), Config::default()).unwrap();
    let s = gpu.stream().unwrap();
    let said = [
        gpu.uninit::<u8>(1 << 63, &s).map(drop).unwrap_err(),
        gpu.uninit::<()>([usize::MAX, 2], &s).map(drop).unwrap_err(),
    ];
    for error in said {
        assert!(matches!(error, Error::Overflow { .. }));
        assert!(error.to_string().contains("more than 2^63 - 1 bytes, or more elements"), "{error}");
    }
}
