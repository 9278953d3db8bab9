//! Copies of pageable memory: the CPU of the calling thread copies through a few pinned slots.
//!
//! To the device: fill a slot, queue its copy, take the next slot; with all slots under way wait for the oldest. The source
//! has been read when the call returns, the last copies may still run. To the host: as many copies ahead as there are
//! slots, each waited for and then copied out, so the call blocks until all is there. One thread copies at the rate of
//! one core, well below the link's; this module does not use several threads or streaming stores.

use super::token::{Download, Upload};
use super::{Part, same_shape};
use crate::allocator::{Allocator, Stream};
use crate::array::{DeviceArray, DeviceView, DeviceViewMut, PinnedArray, Shape};
use crate::driver::Driver;
use crate::error::Error;
use bytemuck::Pod;
use std::collections::VecDeque;

/// Bytes of a slot: from 4 MiB on a copy runs at the link's speed.
const SLOT_BYTES: usize = 4 << 20;
/// Slots of one call: one is filled or emptied while others travel.
const SLOTS: usize = 3;

/// Elements of a slot.
fn slot_len<T>(all: usize) -> usize {
    let max = SLOT_BYTES.checked_div(size_of::<T>()).unwrap_or(usize::MAX);
    max.clamp(1, all.max(1))
}

impl<D: Driver> Allocator<D> {
    /// A device array with a slice's elements, through pinned slots: as [`DeviceViewMut::copy_from_pageable`].
    ///
    /// # Errors
    /// No memory on the device, or none that is pinned; a stream of another device, a capturing stream, the driver's:
    /// [`Allocator::uninit`] and [`DeviceViewMut::copy_from_pageable`].
    #[track_caller]
    pub fn array_from_slice<T: Pod>(
        &self,
        from: &[T],
        stream: &Stream<D>,
    ) -> Result<DeviceArray<T, D>, Error> {
        let mut array = self.uninit(from.len(), stream)?;
        array.copy_from_pageable(from, stream)?;
        Ok(array)
    }
}

impl<T: Pod, D: Driver> DeviceViewMut<'_, T, D> {
    /// Copies a slice of any memory, through pinned slots, on `stream`. The source has been read when this returns: the
    /// host copies it and waits for slots, not for the last of the copies. Slower than [`DeviceViewMut::copy_from`],
    /// and nothing overlaps with the calling thread.
    ///
    /// # Errors
    /// [`Error::Mismatch`] unless there are as many elements; as [`DeviceViewMut::copy_from`] and
    /// [`Allocator::alloc_pinned`]. Some of the target may have been written then.
    #[track_caller]
    pub fn copy_from_pageable(&mut self, source: &[T], stream: &Stream<D>) -> Result<(), Error> {
        let sides =
            (("the target", Shape::line(self.len())), ("the source, a slice,", Shape::line(source.len())));
        same_shape::<T>("copy_from_pageable", sides.0, sides.1)?;
        let each = slot_len::<T>(source.len());
        let mut under_way: VecDeque<Upload<Part<PinnedArray<T, D>>, D>> = VecDeque::new();
        for (i, piece) in source.chunks(each).enumerate() {
            let oldest = if i >= SLOTS { under_way.pop_front() } else { None };
            let mut slot = match oldest {
                Some(oldest) => oldest.wait()?.into_inner(),
                None => stream.allocator().pinned_uninit(each)?,
            };
            slot[..piece.len()].copy_from_slice(piece);
            let start = i * each;
            let mut target = self.view_mut().slice(start..start + piece.len());
            under_way.push_back(target.copy_from(Part::new(slot, ..piece.len()), stream)?);
        }
        Ok(())
    }
}

impl<T: Pod, D: Driver> DeviceView<'_, T, D> {
    /// Copies into a slice of any memory, through pinned slots, on `stream`, behind the last write. **Blocks the host**
    /// until all of it is there.
    ///
    /// # Errors
    /// [`Error::Mismatch`] unless there are as many elements; as [`DeviceView::to_pinned`]. Some of the target may have
    /// been written then.
    #[track_caller]
    pub fn copy_to_pageable(&self, target: &mut [T], stream: &Stream<D>) -> Result<(), Error> {
        let sides =
            (("the target, a slice,", Shape::line(target.len())), ("the source", Shape::line(self.len())));
        same_shape::<T>("copy_to_pageable", sides.0, sides.1)?;
        let each = slot_len::<T>(target.len());
        let mut under_way: VecDeque<(usize, Download<T, D>)> = VecDeque::new();
        let mut next = 0;
        while next < target.len() || !under_way.is_empty() {
            if next < target.len() && under_way.len() < SLOTS {
                let end = target.len().min(next + each);
                under_way.push_back((next, self.slice(next..end).to_pinned(stream)?));
                next = end;
            } else if let Some((start, oldest)) = under_way.pop_front() {
                let piece = oldest.wait()?;
                target[start..start + piece.len()].copy_from_slice(&piece);
            }
        }
        Ok(())
    }

    /// The elements in a vector: [`DeviceView::copy_to_pageable`], which **blocks the host**.
    ///
    /// # Errors
    /// No pinned memory, a stream of another device, a capturing stream, the driver's: [`DeviceView::copy_to_pageable`].
    #[track_caller]
    pub fn to_vec(&self, stream: &Stream<D>) -> Result<Vec<T>, Error> {
        let each = slot_len::<T>(self.len());
        let mut all = Vec::with_capacity(self.len());
        let mut under_way = VecDeque::new();
        let mut next = 0;
        while all.len() < self.len() {
            if next < self.len() && under_way.len() < SLOTS {
                let end = self.len().min(next + each);
                under_way.push_back(self.slice(next..end).to_pinned(stream)?);
                next = end;
            } else if let Some(oldest) = under_way.pop_front() {
                all.extend_from_slice(&oldest.wait()?);
            }
        }
        Ok(all)
    }
}

/// Staged copies of whole arrays.
impl<T: Pod, D: Driver> DeviceArray<T, D> {
    /// Copies from pageable memory into all of the array: [`DeviceViewMut::copy_from_pageable`].
    ///
    /// # Errors
    /// [`Error::Mismatch`] unless there are as many elements, or what a copy can meet: [`DeviceViewMut::copy_from_pageable`].
    #[track_caller]
    pub fn copy_from_pageable(&mut self, source: &[T], stream: &Stream<D>) -> Result<(), Error> {
        self.view_mut().copy_from_pageable(source, stream)
    }
    /// Copies the whole array into pageable memory: [`DeviceView::copy_to_pageable`].
    ///
    /// # Errors
    /// [`Error::Mismatch`] unless there are as many elements, or what a copy can meet: [`DeviceView::copy_to_pageable`].
    #[track_caller]
    pub fn copy_to_pageable(&self, target: &mut [T], stream: &Stream<D>) -> Result<(), Error> {
        self.view().copy_to_pageable(target, stream)
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
