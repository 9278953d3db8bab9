//! Copies of pageable memory: through a few pinned slots, which threads fill or empty while others travel.
//!
//! To the device: pieces are filled ahead, and each is queued as soon as it and those before it are filled; a slot is filled again when its copy is over.
//! The source has been read when the call returns, the last copies may still run. To the host: copies are queued ahead, each is waited for and then moved
//! out, so the call blocks until all is there. A short copy goes through one slot, by the calling thread. Only the calling thread makes driver calls,
//! and always the same (`plan`); the threads move bytes (`moves`), to the host past the caches (`bytes`).
//!
//! A token owns each slot while the device uses it, as in other copies, and a move while a thread does, which is over before the call ends: whichever
//! call of the driver fails, no slot is lost and nothing reads the source afterwards.

mod bytes;
mod moves;
mod packed;
mod plan;

pub use packed::Uploads;

use self::bytes::{as_target, filled_vec, move_out};
use self::moves::{Move, Moves};
use self::plan::Plan;
use super::token::{Download, Refused, Upload};
use super::{Part, noted, same_shape};
use crate::allocator::access::{Mark, Touch, operate};
use crate::allocator::{Allocator, Stream};
use crate::array::{DeviceArray, DeviceView, DeviceViewMut, PinnedArray, Shape};
use crate::driver::{Called, Driver};
use crate::error::Error;
use crate::units::Addr;
use bytemuck::Pod;
use core::fmt;
use core::mem::MaybeUninit;
use smallvec::SmallVec;
use std::collections::VecDeque;

/// A staged copy that failed, and how much of it was made.
///
/// It turns into an [`Error`] by `?`.
#[derive(Debug)]
#[non_exhaustive]
pub struct Incomplete {
    /// So many elements, from the first on, are copied, or queued to be in stream order, as by a copy that succeeds. Each byte behind them is the source's or what
    /// the target held before.
    pub complete: usize,
    /// Why.
    pub error: Error,
}

impl Incomplete {
    /// Of a copy of these elements, of which so many bytes were made.
    fn of<T>(complete: usize, error: Error) -> Incomplete {
        Incomplete { complete: complete.checked_div(size_of::<T>()).unwrap_or(0), error }
    }
}
impl fmt::Display for Incomplete {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}
// By hand: it stands for its `error`, source and all.
impl std::error::Error for Incomplete {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.error.source()
    }
}
impl From<Incomplete> for Error {
    fn from(incomplete: Incomplete) -> Error {
        incomplete.error
    }
}

/// Device memory that a copy uses: where it begins, and its part in an operation.
struct Remote<'a, D: Driver> {
    addr: Addr,
    touch: Touch<'a, D>,
}

/// Pinned memory, as long as a plan's slots.
type Slot<D> = PinnedArray<u8, D>;
/// A copy to the device that owns its slot.
type Sent<D> = Upload<Part<Slot<D>>, D>;

/// A slot to be filled with a piece of the source.
struct Fill<'s, D: Driver> {
    slot: Slot<D>,
    from: &'s [u8],
}

impl<D: Driver> Move for Fill<'_, D> {
    type Slot = Slot<D>;
    fn run(mut self) -> Slot<D> {
        self.slot.elements_mut()[..self.from.len()].copy_from_slice(self.from);
        self.slot
    }
}

/// A slot to be emptied into a piece of the target.
struct Drain<'s, D: Driver> {
    slot: Slot<D>,
    to: &'s mut [MaybeUninit<u8>],
    past_caches: bool,
}

impl<D: Driver> Move for Drain<'_, D> {
    type Slot = Slot<D>;
    fn run(mut self) -> Slot<D> {
        move_out(&self.slot.elements_mut()[..self.to.len()], self.to, self.past_caches);
        self.slot
    }
}

impl<D: Driver> Remote<'_, D> {
    /// Queues the copy of a filled slot's first bytes to the bytes from `at` on.
    #[allow(unsafe_code, reason = "copies work on raw addresses")]
    fn write(&self, at: usize, (slot, len): (Slot<D>, usize), stream: &Stream<D>) -> Result<Sent<D>, Error> {
        let to = Addr(self.addr.0 + at as u64);
        let sent = Upload::fly(Part::new(slot, ..len), stream, |source| {
            let from = source.as_ptr();
            operate(stream, &[self.touch], Mark::Each, |driver, native| {
                // SAFETY: the token owns the source, which is as long, until the copy is done; the target lies in an allocation that is reused only
                // behind this use, and is borrowed exclusively.
                noted(unsafe { driver.copy_h2d(to, from, len as u64, native) }, stream, from)
            })
        })?;
        Ok(sent)
    }

    /// Queues the copy of the bytes from `at` on into a slot's first bytes.
    #[allow(unsafe_code, reason = "copies work on raw addresses")]
    fn read(
        &self,
        at: usize,
        (mut slot, len): (Slot<D>, usize),
        stream: &Stream<D>,
    ) -> Result<Download<u8, D>, Refused<Slot<D>>> {
        let from = Addr(self.addr.0 + at as u64);
        let to = slot.elements_mut()[..len].as_mut_ptr();
        Download::fly(slot, stream, |_| {
            operate(stream, &[self.touch], Mark::Each, |driver, native| {
                // SAFETY: the token owns the target, which is as long, until the copy is done; the source lies in an allocation that is reused
                // only behind this use.
                noted(unsafe { driver.copy_d2h(to, from, len as u64, native) }, stream, to)
            })
        })
    }
}

/// Fills slots, ahead of the copies that `queue` makes of them in the pieces' order. Returns when everything is queued; what was filled is no
/// longer read then, whatever failed.
fn send<'s, D: Driver, M: Move<Slot = Slot<D>> + 's>(
    stream: &Stream<D>,
    plan: &Plan,
    (pieces, slot_bytes): (usize, usize),
    fill: impl Fn(usize, Slot<D>) -> M,
    mut queue: impl FnMut(usize, Slot<D>) -> Result<Sent<D>, Error>,
) -> Result<(), Error> {
    stream.staging().0.scope(plan.threads && pieces > 1, |scope| {
        // On every way out the moves are over before the scope ends; a token's drop leaves its slot to the copy.
        let mut under_way = VecDeque::new();
        let mut moves = Moves::new(scope);
        let ahead = plan.ahead(scope.is_some());
        let mut filling = 0;
        for piece in 0..pieces {
            while filling < pieces.min(piece + ahead) {
                let slot = if filling < plan.slots {
                    stream.allocator().pinned_uninit(slot_bytes)?
                } else {
                    let oldest: Sent<D> = under_way.pop_front().expect("queued below");
                    oldest.wait()?.into_inner()
                };
                moves.start(fill(filling, slot));
                filling += 1;
            }
            under_way.push_back(queue(piece, moves.finish(piece))?);
        }
        Ok(())
    })
}

/// Copies to the device what one slot holds. No event is made behind it, which would cost a tenth of a short copy: that the stream uses the slot is declared
/// instead, and its pool finds out when it has none.
#[allow(unsafe_code, reason = "copies work on raw addresses")]
fn upload_short<D: Driver>(
    to: &Remote<'_, D>,
    source: &[u8],
    stream: &Stream<D>,
    queued: &mut usize,
) -> Result<(), Error> {
    if source.is_empty() {
        return Ok(());
    }
    let mut slot: Slot<D> = stream.allocator().pinned_uninit(source.len())?;
    slot.elements_mut().copy_from_slice(source);
    // Before the copy: whatever happens from here on, the slot is not reused before the stream is done with it.
    slot.memory().record_use(stream)?;
    let (from, bytes) = (slot.elements_mut().as_ptr(), source.len() as u64);
    operate(stream, &[to.touch], Mark::Shared, |driver, native| {
        // SAFETY: the use of the slot, which is as long, is declared; the target lies in an allocation that is reused only behind this use, and is borrowed
        // exclusively.
        noted(unsafe { driver.copy_h2d(to.addr, from, bytes, native) }, stream, from)
    })?;
    *queued = source.len();
    Ok(())
}

/// Copies to the device. `queued` counts the bytes, from the first on, whose copies are queued.
fn upload<D: Driver>(
    to: &Remote<'_, D>,
    source: &[u8],
    stream: &Stream<D>,
    queued: &mut usize,
) -> Result<(), Error> {
    let (threads, sizes) = stream.staging();
    if source.len() <= sizes.single {
        return upload_short(to, source, stream, queued);
    }
    let plan = Plan::new(source.len(), threads.count(), sizes);
    let pieces: SmallVec<[(usize, usize); 4]> = plan.pieces().collect();
    let fill = |piece: usize, slot| {
        let (at, len) = pieces[piece];
        Fill { slot, from: &source[at..at + len] }
    };
    send(stream, &plan, (pieces.len(), plan.slot()), fill, |piece, slot| {
        let (at, len) = pieces[piece];
        let sent = to.write(at, (slot, len), stream)?;
        *queued += len;
        Ok(sent)
    })
}

/// Copies to the host, and waits. All of the target is written, unless there is an error; `complete` counts the bytes, from the first on, that are known to be.
fn download<D: Driver>(
    from: &Remote<'_, D>,
    target: &mut [MaybeUninit<u8>],
    stream: &Stream<D>,
    complete: &mut usize,
) -> Result<(), Error> {
    let (threads, sizes) = stream.staging();
    let plan = Plan::new(target.len(), threads.count(), sizes);
    threads.scope(plan.threads, |scope| {
        // On every way out the moves are over before the scope ends; a token's drop leaves its slot to the copy.
        let mut under_way = VecDeque::new();
        let mut moves = Moves::new(scope);
        let copies = plan.copies_ahead(scope.is_some());
        let (mut to_queue, mut lengths) = (plan.pieces(), plan.pieces());
        let mut rest = target;
        let (mut queued, mut emptied) = (0, 0);
        for (piece, (_, len)) in plan.pieces().enumerate() {
            while queued < piece + copies
                && let Some((at, len)) = to_queue.next()
            {
                let slot = if queued < plan.slots {
                    stream.allocator().pinned_uninit(plan.slot())?
                } else {
                    let slot = moves.finish(emptied);
                    emptied += 1;
                    *complete += lengths.next().map_or(0, |(_, len)| len);
                    slot
                };
                under_way.push_back(from.read(at, (slot, len), stream)?);
                queued += 1;
            }
            let oldest: Download<u8, D> = under_way.pop_front().expect("queued above");
            let slot = oldest.wait()?;
            let (to, behind) = rest.split_at_mut(len);
            rest = behind;
            moves.start(Drain { slot, to, past_caches: plan.streams });
        }
        for (_, len) in lengths {
            drop(moves.finish(emptied));
            emptied += 1;
            *complete += len;
        }
        Ok(())
    })
}

impl<D: Driver> Allocator<D> {
    /// A device array with a slice's elements, through pinned slots: as [`DeviceViewMut::copy_from_slice`].
    ///
    /// # Errors
    /// No memory on the device, or none that is pinned; a stream of another device, a capturing stream, the driver's:
    /// [`Allocator::uninit`] and [`DeviceViewMut::copy_from_slice`].
    #[track_caller]
    pub fn array_from_slice<T: Pod>(
        &self,
        from: &[T],
        stream: &Stream<D>,
    ) -> Result<DeviceArray<T, D>, Error> {
        let mut array = self.uninit(from.len(), stream)?;
        array.copy_from_slice(from, stream)?;
        Ok(array)
    }
}

impl<T: Pod, D: Driver> DeviceViewMut<'_, T, D> {
    /// Copies a slice of any memory, through pinned slots, on `stream`, behind what it conflicts with. The source has been read when this returns: the
    /// host fills the slots and waits for slots, not for the last of the copies. Long copies are moved by the allocator's
    /// [staging threads](crate::Config::staging_threads).
    ///
    /// # Errors
    /// [`Error::Mismatch`] unless there are as many elements; as [`DeviceViewMut::copy_from`] and
    /// [`Allocator::alloc_pinned`]. [`Incomplete::complete`] says how much of the target is written all the same.
    #[track_caller]
    pub fn copy_from_slice(&mut self, source: &[T], stream: &Stream<D>) -> Result<(), Incomplete> {
        let _called = Called::<D>::here();
        let sides =
            (("the target", Shape::line(self.len())), ("the source, a slice,", Shape::line(source.len())));
        same_shape::<T>("copy_from_slice", sides.0, sides.1).map_err(|e| Incomplete::of::<T>(0, e))?;
        let mut queued = 0;
        let to = Remote { addr: self.address(), touch: self.touch() };
        upload(&to, bytemuck::cast_slice(source), stream, &mut queued)
            .map_err(|e| Incomplete::of::<T>(queued, e))
    }
}

impl<T: Pod, D: Driver> DeviceView<'_, T, D> {
    fn remote(&self) -> Remote<'_, D> {
        Remote { addr: self.address(), touch: self.touch() }
    }

    /// Copies into a slice of any memory, through pinned slots, on `stream`, behind the last write. **Blocks the host**
    /// until all of it is there. Long copies are moved by the allocator's [staging threads](crate::Config::staging_threads).
    ///
    /// # Errors
    /// [`Error::Mismatch`] unless there are as many elements; as [`DeviceView::to_pinned`]. [`Incomplete::complete`] says how much of the target is
    /// written all the same.
    #[track_caller]
    #[allow(unsafe_code, reason = "the target's bytes are written as a new vector's are")]
    pub fn copy_to_slice(&self, target: &mut [T], stream: &Stream<D>) -> Result<(), Incomplete> {
        let _called = Called::<D>::here();
        let sides =
            (("the target, a slice,", Shape::line(target.len())), ("the source", Shape::line(self.len())));
        same_shape::<T>("copy_to_slice", sides.0, sides.1).map_err(|e| Incomplete::of::<T>(0, e))?;
        let mut complete = 0;
        // SAFETY: what `download` writes are a slot's bytes, which are initialised.
        let target = unsafe { as_target(target) };
        download(&self.remote(), target, stream, &mut complete).map_err(|e| Incomplete::of::<T>(complete, e))
    }

    /// The elements in a vector: as [`DeviceView::copy_to_slice`], which **blocks the host**.
    ///
    /// # Errors
    /// No pinned memory, a stream of another device, a capturing stream, the driver's: [`DeviceView::copy_to_slice`].
    #[track_caller]
    #[allow(unsafe_code, reason = "nothing is written twice")]
    pub fn to_vec(&self, stream: &Stream<D>) -> Result<Vec<T>, Error> {
        let _called = Called::<D>::here();
        // SAFETY: unless it fails, `download` writes all of its target.
        unsafe { filled_vec(self.len(), |room| download(&self.remote(), room, stream, &mut 0)) }
    }
}

/// Staged copies of whole arrays.
impl<T: Pod, D: Driver> DeviceArray<T, D> {
    /// Copies a slice of any memory into all of the array: [`DeviceViewMut::copy_from_slice`].
    ///
    /// # Errors
    /// [`Error::Mismatch`] unless there are as many elements, or what a copy can meet: [`DeviceViewMut::copy_from_slice`].
    #[track_caller]
    pub fn copy_from_slice(&mut self, source: &[T], stream: &Stream<D>) -> Result<(), Incomplete> {
        self.view_mut().copy_from_slice(source, stream)
    }
    /// Copies the whole array into a slice of any memory: [`DeviceView::copy_to_slice`].
    ///
    /// # Errors
    /// [`Error::Mismatch`] unless there are as many elements, or what a copy can meet: [`DeviceView::copy_to_slice`].
    #[track_caller]
    pub fn copy_to_slice(&self, target: &mut [T], stream: &Stream<D>) -> Result<(), Incomplete> {
        self.view().copy_to_slice(target, stream)
    }
    /// The whole array's elements as a vector: [`DeviceView::to_vec`].
    ///
    /// # Errors
    /// No pinned memory, a stream of another device, a capturing stream, the driver's: [`DeviceView::to_vec`].
    #[track_caller]
    pub fn to_vec(&self, stream: &Stream<D>) -> Result<Vec<T>, Error> {
        self.view().to_vec(stream)
    }
}
