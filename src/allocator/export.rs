//! Memory for other processes: a block's handle as a file descriptor, held meanwhile.
//!
//! It does not know how the descriptor reaches the other process, nor when that has stopped using the memory.

use super::Allocator;
use super::allocation::Allocation;
use super::hold::Hold;
use super::segment::PieceOf;
use crate::driver::Driver;
use crate::error::{Error, NotShareable};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// A block that another process can open ([`Allocator::export`]). Its handle is held until this is dropped.
#[must_use = "the memory is held until this is dropped"]
#[derive(Debug)]
pub struct Exported<D: Driver> {
    file: OwnedFd,
    bytes: u64,
    offset: u64,
    hold: Hold<D>,
}

impl<D: Driver> Exported<D> {
    /// The length of the memory that the descriptor opens, in bytes: a whole handle's, in which other blocks may lie.
    pub fn handle_bytes(&self) -> u64 {
        self.bytes
    }
    /// Where the block begins in it, in bytes.
    pub fn offset(&self) -> u64 {
        self.offset
    }
    /// What holds the handle.
    pub fn hold(&self) -> &Hold<D> {
        &self.hold
    }
    /// The descriptor and the hold apart: the descriptor may be closed as soon as the other process has it, and the hold is for as long as that uses the memory.
    pub fn into_parts(self) -> (OwnedFd, Hold<D>) {
        (self.file, self.hold)
    }
}

impl<D: Driver> AsFd for Exported<D> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl<D: Driver> Allocator<D> {
    /// Exports an allocation: a file descriptor of the handle of physical memory that it lies on, to be sent to another process, which opens the handle
    /// (`cuMemImportFromShareableHandle`, [`Mapping::import`](crate::driver::Mapping::import)), maps it and finds the block [`offset`](Exported::offset) bytes
    /// behind its start. All of the handle is opened, with the other blocks that lie there.
    ///
    /// The handle is [held](Allocator::hold) until the value is dropped. Drop it, and the allocation, when the other process has stopped using the memory. Orders
    /// nothing: what the other process reads has to be complete, by an event that both share or by a wait. Makes one driver call, which waits for nothing.
    ///
    /// # Errors
    /// [`Error::NotShareable`], if the allocation lies in a plain segment, on several handles, or on handles that were not made to be exported
    /// ([`Handles`](super::Handles)); [`Error::UnknownAddress`] for an allocation of another allocator, or of no bytes; the driver's. Nothing is held then.
    pub fn export(&self, allocation: &Allocation<D>) -> Result<Exported<D>, Error> {
        let (core, address, bytes) = (self.core(), allocation.address(), allocation.len());
        let hold = self.hold(allocation)?;
        let piece = core.piece_at(address).ok_or(Error::UnknownAddress { address, bytes })?;
        let refused = |found, advice| {
            Err(Error::from(NotShareable { asked: "a file descriptor", address, bytes, found, advice }))
        };
        let (Some(of), PieceOf::Handle { handle, .. }) = (&core.windows, piece.of) else {
            return refused(
                "they lie in a plain segment, which has none",
                "turn on virtual memory and Handles::exportable, or share the segment by the driver's legacy IPC",
            );
        };
        if !of.device.properties().file_descriptor {
            return refused(
                "they lie on physical memory that was not made to be exported, or that this device cannot export",
                "set Handles::exportable (MILLPOND_EXPORT=fd) before the allocator is made",
            );
        }
        let offset = address.0 - piece.address.0;
        if offset + bytes > piece.bytes {
            return refused(
                "they lie on several handles",
                "set Handles::one_above (MILLPOND_ONE_HANDLE) below this size",
            );
        }
        let native = of.lock().held_native(handle).ok_or(Error::UnknownAddress { address, bytes })?;
        let file = core.driver.relaxed(|| of.device.export(native));
        let file = core.registry.watch(file)?;
        Ok(Exported { file, bytes: piece.bytes, offset, hold })
    }
}
