//! What operations accept as an array, and a kernel compared with its CPU reference.

#![allow(clippy::many_single_char_names, reason = "b is the bench; s, t are streams; x, y arrays")]

use super::*;
use millpond::kernel::{self, Argument, Kernel, ReferenceMemory};
use millpond::{AsViewMut, DeviceArray, DeviceView, DeviceViewMut, Error, IntoView, transfer};

/// A program's own type that has an array.
struct Tensor<D: Driver> {
    data: DeviceArray<u32, D>,
}

impl<D: Driver> AsViewMut for Tensor<D> {
    type Item = u32;
    type Device = D;
    fn as_view_mut(&mut self) -> DeviceViewMut<'_, u32, D> {
        self.data.view_mut()
    }
}

impl<'a, D: Driver> IntoView<'a> for &'a Tensor<D> {
    type Item = u32;
    type Device = D;
    fn into_view(self) -> DeviceView<'a, u32, D> {
        self.data.view()
    }
}

/// A loop with an array that the caller owns, without `&mut *y`.
fn steps<D: Driver + Kernels>(
    y: &mut DeviceArray<u32, D>,
    x: &Tensor<D>,
    on: &Stream<D>,
) -> Result<(), Error> {
    for _ in 0..3 {
        kernel::saxpy(2, x, y, on)?;
    }
    let mut sum = on.allocator().uninit(1, on)?;
    kernel::reduce_sum(&y, &mut sum, on)?;
    assert_eq!(sum.to_vec(on)?, [6 * (1 + 2 + 3 + 4)]);
    // A `&mut` of a `&mut`, and a view that is borrowed twice.
    let mut held = y;
    kernel::fill(&mut held, 5, on)?;
    let mut part = held.slice_mut(1..3);
    for first in [7, 8] {
        kernel::iota(&mut part, first, 1, on)?;
        kernel::reduce_sum(&part, &mut sum, on)?;
    }
    assert_eq!(sum.to_vec(on)?, [8 + 9]);
    Ok(())
}

pub fn a_borrowed_array_goes_through_a_loop_of_verbs<T: Bench>(b: &T) {
    kernel::load_builtins(b.device()).expect("loaded");
    let gpu = allocator(b, Config::default());
    let s = gpu.stream().expect("a stream");
    let mut x = Tensor { data: gpu.zeros(4, &s).expect("x") };
    let mut y = gpu.zeros(4, &s).expect("y");
    kernel::iota(&mut x, 1, 1, &s).expect("queued");
    steps(&mut y, &x, &s).expect("queued");
    assert_eq!(y.to_vec(&s).expect("done"), [5, 8, 9, 5]);
    let host = gpu.pinned_from_slice(&[1_u32, 2, 3, 4]).expect("pinned");
    let mut back = gpu.pinned_zeros::<u32>(4).expect("pinned");
    let to = &mut y;
    let copied = transfer::scope(&s, |copies| {
        for _ in 0..2 {
            copies.upload(to, host.view())?;
        }
        copies.download(&to, back.view_mut())
    });
    copied.expect("waited for").expect("queued");
    assert_eq!(back[..], [1, 2, 3, 4]);
}

/// The built-in kernel of this name.
fn named(name: &str) -> &'static Kernel {
    kernel::builtins().find(|k| k.name().to_bytes() == name.as_bytes()).expect("a built-in one")
}

/// The kernels' own CPU references agree with the device. A wrong reference is found at its first wrong element. A comparison by a closure
/// accepts small differences.
#[allow(unsafe_code, reason = "launches by name")]
pub fn a_kernel_is_compared_with_its_reference<T: Bench>(b: &T) {
    kernel::load_builtins(b.device()).expect("loaded");
    let gpu = allocator(b, Config::default());
    let (s, t) = (gpu.stream().expect("a stream"), gpu.stream().expect("a stream"));
    let saxpy = named("millpond_saxpy_f32");
    let reference = saxpy.on_cpu().expect("a reference");
    let xs: Vec<f32> = (0..600_u16).map(|i| f32::from(i) * 0.3).collect();
    let x = gpu.array_from_slice(&xs, &s).expect("x");
    let mut y = gpu.array_from_slice(&xs, &s).expect("y");
    // SAFETY: kernels/saxpy.cu takes these, of 600 elements each.
    unsafe { t.launch_and_compare(saxpy, reference, 600, (y.write(), x.read(), 600_u64, 2.0_f32)) }
        .expect("they agree");
    let right = xs[599].mul_add(2.0, xs[599]);
    assert_eq!(y.to_vec(&s).expect("done")[599].to_bits(), right.to_bits(), "the kernel ran");

    // One element of a part is wrong by 1, a later one by more.
    let wrong = |memory: &mut dyn ReferenceMemory, arguments: &[Argument]| {
        reference(memory, arguments);
        for (index, by) in [(17_u64, 1.0_f32), (30, 100.0)] {
            let (at, mut bytes) = (Addr(arguments[0].as_addr().0 + 4 * index), [0; 4]);
            memory.read(at, &mut bytes);
            memory.write(at, &(f32::from_le_bytes(bytes) + by).to_le_bytes());
        }
    };
    let before = y.slice(100..200).to_pinned(&s).expect("queued").wait().expect("done").to_vec();
    let mut part = y.slice_mut(100..200);
    let arguments = (part.write(), x.slice(..100).read(), 100_u64, 0.0_f32);
    // SAFETY: as above, of 100 elements each.
    let found = unsafe { s.launch_and_compare(saxpy, wrong, 100, arguments) };
    let Err(Error::Differs(first)) = found else { panic!("{found:?}") };
    assert_eq!((first.argument, first.index, first.element), (0, 17, "f32"));
    assert_eq!(first.values::<f32>(), Some((before[17] + 1.0, before[17])));
    assert_eq!(first.values::<f64>(), None);
    let said = first.to_string();
    assert!(said.starts_with("millpond_saxpy_f32: element 17 of argument 0, of type f32, is "), "{said}");

    let arguments = (part.write(), x.slice(..100).read(), 100_u64, 0.0_f32);
    // SAFETY: as above.
    let found = unsafe {
        s.launch_and_compare_by(saxpy, wrong, 100, arguments, |it| {
            it.values::<f32>().is_some_and(|(a, b)| (a - b).abs() <= 2.0)
        })
    };
    assert!(matches!(&found, Err(Error::Differs(second)) if second.index == 30), "{found:?}");

    // No threads and no elements: nothing to compare.
    // SAFETY: as above, of no elements.
    unsafe { s.launch_and_compare(saxpy, wrong, 0, (part.write(), x.read(), 0_u64, 0.0_f32)) }
        .expect("nothing ran");
}

/// A reference that accesses memory outside the operands of the launch, or writes one that it may only read, panics.
#[allow(unsafe_code, reason = "launches by name")]
pub fn a_reference_is_held_to_its_operands<T: Bench>(b: &T) {
    kernel::load_builtins(b.device()).expect("loaded");
    let gpu = allocator(b, Config::default());
    let s = gpu.stream().expect("a stream");
    let saxpy = named("millpond_saxpy_u32");
    let (x, mut y) = (gpu.zeros::<u32>(8, &s).expect("x"), gpu.zeros::<u32>(8, &s).expect("y"));
    let beyond = |memory: &mut dyn ReferenceMemory, arguments: &[Argument]| {
        memory.read(Addr(arguments[0].as_addr().0 + 30), &mut [0; 4]);
    };
    let read_only =
        |memory: &mut dyn ReferenceMemory, arguments: &[Argument]| memory.fill(arguments[1].as_addr(), 8, 1);
    let mut refused = |reference: &dyn Fn(&mut dyn ReferenceMemory, &[Argument])| {
        let run = std::panic::AssertUnwindSafe(|| {
            // SAFETY: kernels/saxpy.cu takes these, of 8 elements each.
            unsafe { s.launch_and_compare(saxpy, reference, 8, (y.write(), x.read(), 8_u64, 1_u32)) }
        });
        let panicked = std::panic::catch_unwind(run).expect_err("the reference is refused");
        panicked.downcast_ref::<String>().expect("words").clone()
    };
    assert!(refused(&beyond).contains("millpond_saxpy_u32 reads 4 bytes at"));
    assert!(refused(&read_only).contains("millpond_saxpy_u32 writes 8 bytes at"));
}
