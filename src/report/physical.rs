//! Physical memory beneath the pools, in figures: handles, where they are mapped, and the addresses that nothing is mapped at.
//!
//! Only data and the two lines that show it. It does not know how the figures were gathered.

use super::bytes;
use super::render::counted;
use core::fmt;

/// Physical memory of windows ([virtual memory](crate::Config::virtual_memory) beneath the pools), and the addresses that it is mapped at. Lengths are in
/// bytes.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(not(feature = "internals"), non_exhaustive)]
pub struct PhysicalReport {
    /// Handles that exist: `handles_created - handles_released`.
    pub handles: u64,
    /// Their length, each handle once however often it is mapped. With that of plain segments it is [`Report::reserved`](super::Report::reserved).
    pub handle_bytes: u64,
    /// Handles created so far.
    pub handles_created: u64,
    /// Handles given back so far.
    pub handles_released: u64,
    /// Of the handles, those that are mapped nowhere: the driver did not take them back. The next request for their length takes them.
    pub spare_handles: u64,
    /// Their length.
    pub spare_bytes: u64,
    /// How often a handle moved from one place to another so far.
    pub moves: u64,
    /// Of the moves, those of handles whose bytes were still in use: the handle stays mapped at its former place until that is over.
    pub moves_in_use: u64,
    /// Places that handles are mapped at, former ones included.
    pub mappings: u64,
    /// Of the mappings, those that are to be taken away: of handles that moved while in use, and of those that the driver refused to unmap.
    pub former_places: u64,
    /// The addresses of former places.
    pub former_bytes: u64,
    /// Windows, empty ones too.
    pub windows: u64,
    /// The addresses of windows.
    pub window_bytes: u64,
    /// All addresses that are reserved from the driver, those that no window has yet included.
    pub reserved_addresses: u64,
    /// Holes: stretches of a window that nothing is mapped at.
    pub holes: u64,
    /// Their addresses: those of windows that are not mapped.
    pub hole_bytes: u64,
    /// The longest hole.
    pub largest_hole: u64,
}

impl fmt::Display for PhysicalReport {
    /// Two lines: the handles, and the addresses.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "handles     {} of {}, {} created, {} released, {} spare of {}; {}, {} of them in use",
            self.handles,
            bytes(self.handle_bytes),
            self.handles_created,
            self.handles_released,
            self.spare_handles,
            bytes(self.spare_bytes),
            counted(self.moves, "move"),
            self.moves_in_use
        )?;
        writeln!(
            f,
            "addresses   {} of {}, {} reserved; {}, {} of them former places of {}; {} of {}, largest hole {}",
            counted(self.windows, "window"),
            bytes(self.window_bytes),
            bytes(self.reserved_addresses),
            counted(self.mappings, "mapping"),
            self.former_places,
            bytes(self.former_bytes),
            counted(self.holes, "hole"),
            bytes(self.hole_bytes),
            bytes(self.largest_hole)
        )
    }
}
