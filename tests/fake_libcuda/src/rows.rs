//! Two-dimensional copies. The simulated device supports them between its own and pinned memory; a pageable side, an array or
//! a unified address is `CUDA_ERROR_NOT_SUPPORTED`.
//!
//! This file does not know order: it puts operations on streams.

use crate::entry::{Fail, Outcome};
use crate::raw::In;
use crate::state::stream;
use millpond::driver::{Copies, CopySide, Pitched};
use millpond::units::Addr;
use std::ffi::c_int;

/// `CUDA_MEMCPY2D`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Copy2d {
    from_x: usize,
    from_y: usize,
    from: Side,
    to_x: usize,
    to_y: usize,
    to: Side,
    width: usize,
    height: usize,
}

/// One side of it.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Side {
    kind: c_int,
    host: u64,
    device: u64,
    array: u64,
    pitch: usize,
}

impl Side {
    /// The first byte that is copied.
    fn place(&self, x: usize, y: usize) -> Outcome<CopySide> {
        let skipped = (y * self.pitch + x) as u64;
        match self.kind {
            1 => Ok(CopySide::Pinned(std::ptr::with_exposed_provenance_mut((self.host + skipped) as usize))),
            2 => Ok(CopySide::Device(Addr(self.device + skipped))),
            other => Err(Fail::unsupported(format!("memory of type {other} is not modelled"))),
        }
    }
}

driver_calls! {
    /// Copies rows with a pitch, on a stream.
    fn cuMemcpy2DAsync_v2(copy: In<Copy2d>, on: u64) {
        let copy = copy.get()?;
        let (sim, _, on) = stream(on)?;
        let pitched = Pitched {
            to: copy.to.place(copy.to_x, copy.to_y)?,
            to_pitch: copy.to.pitch as u64,
            from: copy.from.place(copy.from_x, copy.from_y)?,
            from_pitch: copy.from.pitch as u64,
            width: copy.width as u64,
            rows: copy.height as u64,
        };
        rows(&sim, &pitched, &on)
    }
}

#[allow(unsafe_code, reason = "copies work on raw addresses")]
fn rows(sim: &millpond_sim::Sim, copy: &Pitched, on: &millpond_sim::SimStream) -> Outcome {
    // SAFETY: the program's contract with the driver: both sides stay allocated until the copy is done. The simulator checks
    // that each side is memory of its own.
    Ok(unsafe { sim.copy_rows(copy, on) }?)
}
