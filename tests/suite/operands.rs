//! What verbs take for an array.

use super::*;
use millpond::{AsViewMut, DeviceArray, DeviceView, DeviceViewMut, Error, IntoView, kernel, transfer};

/// Something of a program's that holds an array.
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

/// A loop over an array that somebody else owns: no `&mut *y`.
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
    // A `&mut` behind another one, and a view that is borrowed twice.
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
    kernel::load_house(b.device()).expect("loaded");
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
