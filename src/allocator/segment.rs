//! What lies under an address: for code that registers or shares memory, or asks why it cannot.
//!
//! It reads the tables of plain segments, of windows and of pinned memory, and looks into no heap: freed memory has a segment as live memory has. It does
//! not know who uses what.

use super::Allocator;
use super::core::Core;
use crate::driver::Driver;
use crate::error::Error;
use crate::physical::{HandleId, SlotState};
use crate::units::{Addr, Granules, SegmentId};

/// What memory is made of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum SegmentKind {
    /// One allocation of the driver's.
    Plain,
    /// One handle of physical memory, mapped in a window of virtual memory.
    OneHandle,
    /// Several such handles side by side.
    Handles,
    /// Pinned host memory.
    Pinned,
}

/// How other processes can open it.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub struct Sharing {
    /// By a legacy IPC handle of its segment (`cuIpcGetMemHandle`).
    pub legacy_ipc: bool,
    /// Each handle by a file descriptor (`cuMemExportToShareableHandle`).
    pub file_descriptor: bool,
    /// Each handle by a fabric handle.
    pub fabric: bool,
}

/// The memory that an address lies in ([`Allocator::segment`]).
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Segment {
    /// The first address.
    pub address: Addr,
    /// The length in bytes. Of virtual memory it is the stretch around the address that is mapped without a hole.
    pub bytes: u64,
    /// What all of that is made of.
    pub kind: SegmentKind,
    /// The first address of the piece that the driver knows as one and that the address lies in: the plain or pinned segment, or the handle. The driver's own
    /// query of an address range answers this piece, and a registration or an export takes it whole.
    pub piece: Addr,
    /// The piece's length in bytes.
    pub piece_bytes: u64,
    /// How other processes can open the piece.
    pub sharing: Sharing,
    /// Whether the piece is held ([`Allocator::hold`]).
    pub held: bool,
}

impl Segment {
    /// Whether so many bytes from an address lie in the piece, so that they can be registered or shared in one call.
    pub fn is_one_piece(&self, address: Addr, bytes: u64) -> bool {
        let end = address.0.checked_add(bytes);
        address >= self.piece && end.is_some_and(|end| end - self.piece.0 <= self.piece_bytes)
    }
}

/// A piece that the driver knows as one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    pub(super) of: PieceOf,
    pub(super) address: Addr,
    pub(super) bytes: u64,
}

/// Whose it is.
#[derive(Clone, Copy, Debug)]
pub(super) enum PieceOf {
    Plain(SegmentId),
    Pinned(SegmentId),
    Handle { segment: SegmentId, base: Addr, handle: HandleId },
}

impl Piece {
    /// A range of addresses within the segment, as offset and length in granules.
    pub(super) fn granules(&self, address: Addr, bytes: u64) -> Option<(Granules, Granules)> {
        let base = if let PieceOf::Handle { base, .. } = self.of { base } else { self.address };
        let from = Granules::exactly((address.0 - base.0) / Granules(1).bytes() * Granules(1).bytes())?;
        let end = Granules::holding((address.0 - base.0).checked_add(bytes)?)?;
        Some((from, Granules(end.0 - from.0)))
    }
}

impl<D: Driver> Allocator<D> {
    /// What lies under an address of this allocator's: base, length, what it is made of, and whether other processes can open it. Any address within a
    /// block will do, of device or pinned memory. Looks through the tables of segments; makes no driver call.
    ///
    /// What it says may change as soon as memory is freed: only what is [held](Allocator::hold) keeps its handles. Blocks of external memory are not this
    /// allocator's.
    ///
    /// ```
    /// use millpond::{Allocator, Config, VirtualMemory, units::{GIB, MIB}};
    /// use millpond_sim::Sim;
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let gpu = Allocator::new(Sim::new(GIB), Config::default().virtual_memory(VirtualMemory::Auto))?;
    /// let s = gpu.stream()?;
    /// let x = gpu.alloc(6 * MIB, &s)?;
    /// let segment = gpu.segment(x.address())?;
    /// assert!(!segment.is_one_piece(x.address(), x.len())); // three handles of 2 MiB
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::UnknownAddress`], if no memory of this allocator lies there.
    pub fn segment(&self, address: Addr) -> Result<Segment, Error> {
        let core = self.core();
        core.segment_at(address).ok_or(Error::UnknownAddress { address, bytes: 1 })
    }
}

impl<D: Driver> Core<D> {
    /// The piece that an address lies in.
    pub(super) fn piece_at(&self, at: Addr) -> Option<Piece> {
        if let Some(of) = &self.windows {
            let records = of.lock();
            if let Some(w) = records.window_at(at) {
                let offset = Granules(((at.0 - w.base.0) / Granules(1).bytes()) as u32);
                let slot = records.slots_in(w.id, offset, Granules(1)).next();
                let slot = slot.filter(|slot| *slot.state == SlotState::Here)?;
                let of = PieceOf::Handle { segment: w.id, base: w.base, handle: slot.handle };
                return Some(Piece { of, address: w.base.offset(slot.offset), bytes: slot.len.bytes() });
            }
        }
        let inside = |base: Addr, bytes: u64| at >= base && at.0 - base.0 < bytes;
        let plain = {
            let backing = self.backing.lock();
            let mut all = backing.segments.iter().map(|(&id, range)| (id, range.addr(), range.bytes()));
            all.find(|&(_, base, bytes)| inside(base, bytes))
        };
        if let Some((id, address, bytes)) = plain {
            return Some(Piece { of: PieceOf::Plain(id), address, bytes });
        }
        let host = self.host.lock();
        let mut all = host.backing.segments.iter().map(|(&id, range)| (id, range.addr(), range.bytes()));
        let (id, address, bytes) = all.find(|&(_, base, bytes)| inside(base, bytes))?;
        Some(Piece { of: PieceOf::Pinned(id), address, bytes })
    }

    fn segment_at(&self, at: Addr) -> Option<Segment> {
        let piece = self.piece_at(at)?;
        let (mut address, mut bytes) = (piece.address, piece.bytes);
        let (kind, sharing, held) = match piece.of {
            PieceOf::Plain(id) => {
                let sharing = Sharing { legacy_ipc: self.driver.shares_by_ipc(), ..Sharing::default() };
                (SegmentKind::Plain, sharing, self.holds.is_held(id, false))
            }
            PieceOf::Pinned(id) => (SegmentKind::Pinned, Sharing::default(), self.holds.is_held(id, true)),
            PieceOf::Handle { segment, handle, .. } => {
                let records = self.windows.as_ref()?.lock();
                let w = records.window(segment)?;
                let here = records.slots_in(segment, Granules::ZERO, w.len);
                let here = here.filter(|slot| *slot.state == SlotState::Here);
                // The stretch that is being walked, and the number of its handles.
                let (mut from, mut end, mut handles) = (Granules::ZERO, Granules::ZERO, 0);
                let offset = Granules(((piece.address.0 - w.base.0) / Granules(1).bytes()) as u32);
                for slot in here {
                    if slot.offset != end {
                        if end > offset {
                            break;
                        }
                        (from, handles) = (slot.offset, 0);
                    }
                    (end, handles) = (Granules(slot.offset.0 + slot.len.0), handles + 1);
                }
                (address, bytes) = (w.base.offset(from), Granules(end.0 - from.0).bytes());
                let held = records.handle(handle).is_some_and(|handle| handle.holds > 0);
                let kind = if handles == 1 { SegmentKind::OneHandle } else { SegmentKind::Handles };
                let properties = self.windows.as_ref()?.device.properties();
                let (file_descriptor, fabric) = (properties.file_descriptor, properties.fabric);
                (kind, Sharing { legacy_ipc: false, file_descriptor, fabric }, held)
            }
        };
        let (piece, piece_bytes) = (piece.address, piece.bytes);
        Some(Segment { address, bytes, kind, piece, piece_bytes, sharing, held })
    }
}
