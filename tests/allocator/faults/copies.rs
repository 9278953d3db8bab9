//! Every verb of arrays and copies once, over two streams, with borrowed, owned, shared and dropped host memory: what the
//! fault tests run on the simulated device and on the stand-in driver. It does not know which call will fail.

use millpond::driver::{Driver, Kernels};
use millpond::transfer::Part;
use millpond::{Allocator, Error, Stream, kernel, transfer};
use std::sync::Arc;

/// The length of its arrays.
const LENGTH: usize = 3000;

/// Both ways through pinned memory of its own: by value, shared in parts, dropped and forgotten on the way.
#[allow(clippy::many_single_char_names, reason = "arrays x, y, z on streams s, t, as in the traces")]
fn owned<D: Driver + Kernels>(gpu: &Allocator<D>, s: &Stream<D>, t: &Stream<D>) -> Result<(), Error> {
    let mut x = gpu.zeros::<u32>(LENGTH, s)?;
    let source = gpu.pinned_from_fn(LENGTH, |i| i as u32)?;
    let sent = x.copy_from(source, s)?;
    let mut y = gpu.uninit::<u32>(LENGTH, t)?;
    y.copy_from_device(&x, t)?;
    let mut z = x.duplicate(t)?;
    kernel::saxpy(2, &x, &mut z, t)?;
    let back = y.to_pinned(t)?.wait()?;
    assert_eq!(back[LENGTH - 1], LENGTH as u32 - 1, "the copy was waited for");
    let source = Arc::new(sent.wait()?);
    let (low, high) = z.split_at_mut(LENGTH / 2);
    for (mut half, range) in [(low, 0..LENGTH / 2), (high, LENGTH / 2..LENGTH)] {
        // Dropped at once: the deferred drops hold the source until the copy is complete.
        drop(half.copy_from(Part::new(Arc::clone(&source), range), s)?);
    }
    drop(source);
    drop(z.to_pinned(t)?);
    assert_eq!(z.to_vec(t)?, back[..], "both halves arrived");
    Ok(())
}

/// From and to memory of the caller's: pageable, staged; pinned, in a scope; with a pitch.
fn borrowed<D: Driver + Kernels>(gpu: &Allocator<D>, s: &Stream<D>, t: &Stream<D>) -> Result<(), Error> {
    let words: Vec<u32> = (0..LENGTH as u32).rev().collect();
    let mut x = gpu.array_from_slice(&words, s)?;
    x.copy_from_slice(&words, t)?;
    let from = gpu.pinned_from_slice(&words[..100])?;
    let mut to = gpu.pinned_zeros::<u32>(LENGTH)?;
    transfer::scope(t, |copies| {
        copies.upload(&mut x.slice_mut(..100), from.view())?;
        copies.download(&x, to.view_mut())
    })??;
    assert_eq!(to[..], words[..], "the scope waited");
    let mut plane = gpu.zeros::<u32>([10, 8], s)?;
    plane.view_mut().plane(10, 4, 8)?.copy_from_plane(&x.slice(..100).plane(10, 4, 10)?, s)?;
    let rows = plane.view().plane(10, 4, 8)?.to_pinned(t)?.wait()?;
    assert_eq!(rows[4], words[10], "row by row");
    x.fill_bytes(0xff, t)?;
    x.wait_on(s)?;
    x.record_use(s)?;
    Ok(())
}

/// The whole program, and its streams: no call returns the errors that their destructors meet.
pub(crate) fn program<D: Driver + Kernels>(gpu: &Allocator<D>) -> Result<[Stream<D>; 2], Error> {
    let (s, t) = (gpu.stream()?, gpu.stream()?);
    owned(gpu, &s, &t)?;
    borrowed(gpu, &s, &t)?;
    gpu.synchronize()?;
    gpu.trim(millpond::Trim::All)?;
    gpu.check();
    Ok([s, t])
}
