//! A block of real memory behind a pinned range.
//!
//! It is the simulator's own, or the program's, which registered it. It does not know addresses of the simulated device, nor who may access what.

use core::ptr::NonNull;
use std::alloc::{Layout, alloc_zeroed, dealloc};

/// Alignment of pinned ranges in bytes: a page.
const PAGE: usize = 4096;
/// The alignment requested from the allocator: above this it would touch zeroed memory.
const ASKED: usize = 16;
/// Bytes moved at a time if a closure makes them.
const PIECE: usize = 64 << 10;

/// A block of real memory. Not freed when dropped: pinned memory stays valid until it is unpinned, whatever happens to
/// the simulator.
#[derive(Debug)]
pub(super) struct HostBlock {
    pub(super) base: NonNull<u8>,
    /// What to give back; `None` if the memory is the program's.
    raw: Option<(NonNull<u8>, Layout)>,
}

#[allow(unsafe_code, reason = "the block is memory of its own, reached under the world's lock")]
// SAFETY: the pointers are the only ones the simulator has, and are used under its lock.
unsafe impl Send for HostBlock {}

#[allow(unsafe_code, reason = "real memory that the CPU can reach")]
impl HostBlock {
    /// Zeroed memory, aligned to a page, or `None` if there is none.
    pub(super) fn new(bytes: u64) -> Option<HostBlock> {
        let size = usize::try_from(bytes).ok()?.checked_add(PAGE)?;
        let layout = Layout::from_size_align(size, ASKED).ok()?;
        // SAFETY: the size is at least a page, so not 0.
        let raw = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        let skip = raw.as_ptr().align_offset(PAGE);
        // SAFETY: less than a page further on, and the block is a page longer than requested.
        let base = unsafe { raw.add(skip) };
        Some(HostBlock { base, raw: Some((raw, layout)) })
    }
    /// Memory of the program's, which keeps it alive as long as the block is used.
    pub(super) fn of_program(base: NonNull<u8>) -> HostBlock {
        HostBlock { base, raw: None }
    }
    pub(super) fn is_of_program(&self) -> bool {
        self.raw.is_none()
    }
    pub(super) fn free(self) {
        if let Some((raw, layout)) = self.raw {
            // SAFETY: from `alloc_zeroed` with this layout; taken by value, so freed once.
            unsafe { dealloc(raw.as_ptr(), layout) }
        }
    }
    fn at(&self, offset: u64) -> *mut u8 {
        // SAFETY: M3: offsets of a mapping lie inside its piece.
        unsafe { self.base.as_ptr().add(offset as usize) }
    }
    pub(super) fn write(&mut self, offset: u64, data: &[u8]) {
        // SAFETY: M3 for the block; the code that queued the access keeps the CPU away from it (contract of copies).
        unsafe { core::ptr::copy_nonoverlapping(data.as_ptr(), self.at(offset), data.len()) }
    }
    pub(super) fn read(&self, offset: u64, into: &mut [u8]) {
        // SAFETY: as for `write`.
        unsafe { core::ptr::copy_nonoverlapping(self.at(offset), into.as_mut_ptr(), into.len()) }
    }
    pub(super) fn to_vec(&self, offset: u64, bytes: u64) -> Vec<u8> {
        let mut data = vec![0; bytes as usize];
        self.read(offset, &mut data);
        data
    }
    /// Writes what `make` puts into each piece, given its offset.
    pub(super) fn write_with(&mut self, offset: u64, bytes: u64, make: impl Fn(&mut [u8], u64)) {
        let mut buffer = vec![0; PIECE.min(bytes as usize)];
        let mut done = 0;
        while done < bytes {
            let piece = &mut buffer[..PIECE.min((bytes - done) as usize)];
            make(piece, offset + done);
            let piece_bytes = piece.len() as u64;
            self.write(offset + done, &buffer[..piece_bytes as usize]);
            done += piece_bytes;
        }
    }
}
