//! Copies between arrays: to the device, from it, inside it, between devices, of rows; and the tokens that own what is in
//! flight.
//!
//! A copy to the device takes its pinned source by value and gives it back when it is done ([`Upload`]); a copy to the
//! host gives its data only then ([`Download`]). So nothing in flight can be read early or overwritten. Dropping a token
//! never blocks: pinned memory goes back to its pool, which waits for the copy, anything else to the allocator's deferred drops
//! (but for the last handle of an allocator that is gone, at [its end](crate::Allocator#its-end)).
//! Forgetting a token costs the memory that it owns, the pinned segments that it lies in, and one event, which keeps the device's
//! context; nothing else. [`scope()`] is the borrowed form, which waits before it returns.
//! Memory that is not pinned goes through pinned slots, by functions whose other side is a slice (`copy_from_slice`, `copy_to_slice`).
//!
//! Every copy is queued on the stream it is given, behind what it conflicts with, and records a marker right behind
//! itself: later operations wait for the copy and for nothing that came after it (but a copy of a short slice to the device, which is marked as kernels are,
//! when another stream has to wait for it). Shapes of both sides are compared.
//!
//! It does not know markers, uses or chunks: arrays do the waiting. It does not know what the data mean.

#![allow(
    clippy::result_large_err,
    reason = "the error gives back the host's memory, which is moved and not copied"
)]

#[cfg(feature = "allocator-api2")]
mod collections;
mod copy;
mod peer;
mod rows;
mod scope;
mod source;
mod staged;
mod token;

pub use rows::{Plane, PlaneMut};
pub use scope::{Scope, scope};
pub use source::{Part, StableSource};
pub use staged::{Incomplete, Uploads};
pub use token::{Download, Refused, Upload};

use crate::allocator::Stream;
use crate::array::Shape;
use crate::driver::{Driver, DriverResult, Note};
use crate::error::{Error, Mismatch, Side};
use crate::units::Addr;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// Fails unless the two sides of a copy have the same shape.
fn same_shape<T>(
    verb: &'static str,
    (target, to): (&'static str, Shape),
    (source, from): (&'static str, Shape),
) -> Result<(), Error> {
    if to == from {
        return Ok(());
    }
    let element = core::any::type_name::<T>();
    Err(Mismatch {
        verb,
        one: Side { what: target, element, shape: to.to_vec() },
        other: Side { what: source, element, shape: from.to_vec() },
        advice: "the shapes of a copy's sides must be equal: slice or reshape one of them",
    }
    .into())
}

/// A copy on a stream, as it is queued, that uses host memory; notifies a checking device that this library keeps the memory
/// until the copy is done.
fn noted<D: Driver, T>(copy: DriverResult<()>, stream: &Stream<D>, host: *const T) -> DriverResult<()> {
    copy?;
    let addr = Addr(host.addr() as u64);
    stream.driver().note(Note::UsedAt { addr, stream: stream.id(), so_far: true });
    Ok(())
}

/// Waits for copies on a stream when only the host's wait orders what comes next: after this they are over, whatever error the
/// wait for them returned. Waits by a marker of the stream, which delays no other stream, else for all, in a way that ends no capture, and only if that
/// fails for the device. If the driver panics in a wait, it may have waited for nothing: the wait is repeated once, and then made for the device, before
/// the panic continues. Returns the original result.
fn over<D: Driver>(stream: &Stream<D>, waited: Result<(), Error>) -> Result<(), Error> {
    let Err(error) = waited else { return Ok(()) };
    let wait = || catch_unwind(AssertUnwindSafe(|| stream.wait_or_synchronize()));
    let device = |_| stream.driver().relaxed(|| stream.driver().synchronize_device());
    let (waited, panic) = match wait() {
        Ok(waited) => (waited, None),
        Err(panic) => (wait().unwrap_or_else(device), Some(panic)),
    };
    match waited {
        // During another panic this one cannot be reported.
        Ok(()) if !std::thread::panicking() => panic.map_or(Err(error), |panic| resume_unwind(panic)),
        Ok(()) => Err(error),
        // In a lost context nothing runs any more.
        Err(e) if e.is_context_lost() => Err(error),
        Err(e) => {
            eprintln!(
                "millpond: copies cannot be waited for, and their memory is about to be used ({error}; {e}): the process ends"
            );
            std::process::abort()
        }
    }
}
