//! What a context keeps of its kernels: the modules that are loaded, what checks have found, and the cells of gates. The device holds these, and
//! `kernel`, `launch` and `gate` use them. This file does not know the device, nor any call of the driver's.

use super::table::Handle;
use core::fmt;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, Ordering};
use cudarc::driver::sys::{CUfunc_st, CUmod_st};
use hashbrown::HashMap;
use millpond_driver::sync::Mutex;
use millpond_driver::units::{Addr, AllocationId, StreamId};

/// The kernels of one context, with what they report into.
pub(super) struct Kernels {
    pub(super) fill: Kernel,
    pub(super) check: Kernel,
    pub(super) spin: Kernel,
    /// Device memory: the slots of one lap.
    pub(super) slots: u64,
    pub(super) log: Mutex<Log>,
    pub(super) cells: Mutex<Cells>,
}

/// A loaded module and its function.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kernel {
    pub(super) module: Handle<CUmod_st>,
    pub(super) function: Handle<CUfunc_st>,
}

/// What a check was launched for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Launched {
    pub(super) stream: StreamId,
    pub(super) addr: Addr,
    pub(super) bytes: u64,
    pub(super) word: u64,
    pub(super) allocation: Option<AllocationId>,
}

#[derive(Default)]
pub(super) struct Log {
    /// Checks that were queued.
    pub(super) checks: u64,
    /// What each used slot of this lap is for.
    pub(super) lap: Vec<Launched>,
    /// Slots of the lap before that have been read and are not yet made as new: not 0 only while the driver refuses.
    pub(super) used: usize,
    /// What earlier laps found, the first ones.
    pub(super) found: Vec<BadRange>,
    /// How many checks of earlier laps found something.
    pub(super) bad: u64,
}

/// A range that did not hold what it should have: one check's finding.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct BadRange {
    /// The stream that the check ran on.
    pub stream: StreamId,
    /// The range's first byte.
    pub addr: Addr,
    /// The range's length in bytes.
    pub bytes: u64,
    /// The allocation that it was checked for, if that was said.
    pub allocation: Option<AllocationId>,
    /// The repeating word that was expected.
    pub expected: u64,
    /// What one of the threads that saw a difference found instead: a word, or a byte where no whole word fits.
    pub found: u64,
    /// The lowest offset of a difference, in bytes from the beginning of the range.
    pub offset: u64,
    /// How many words differ (bytes where no whole word fits).
    pub words: u64,
}

impl fmt::Display for BadRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "check on {}", self.stream)?;
        if let Some(id) = self.allocation {
            write!(f, ", for allocation {id}")?;
        }
        write!(
            f,
            ", of {} bytes at {}: {} words differ, the first {} bytes into it; found {:#x} instead of {:#x}: another operation wrote between the write and this check, or this one ran before its data was there",
            self.bytes, self.addr, self.words, self.offset, self.found, self.expected
        )
    }
}

/// The modules and kernels of one context.
#[derive(Default)]
pub(super) struct Loaded {
    /// By the address of the text.
    pub(super) modules: HashMap<usize, Handle<CUmod_st>>,
    /// By the addresses of the text and the name.
    pub(super) functions: HashMap<(usize, usize), Handle<CUfunc_st>>,
}

/// The kernel has not begun.
pub(super) const WAITING: u32 = 0;
/// It ended because it was opened.
pub(super) const OPENED: u32 = 2;
/// It ended because its limit was over.
pub(super) const TIMED_OUT: u32 = 3;

/// The two words of a gate, in a page that lives as long as the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Cell(pub(super) NonNull<AtomicU32>);

// SAFETY: the words are atomics in a page that is unpinned only with the device, which every gate holds.
#[allow(unsafe_code, reason = "a pointer to atomics that outlive it")]
unsafe impl Send for Cell {}
// SAFETY: as above.
#[allow(unsafe_code, reason = "a pointer to atomics that outlive it")]
unsafe impl Sync for Cell {}

#[allow(unsafe_code, reason = "words shared with the device")]
impl Cell {
    pub(super) fn flag(&self) -> &AtomicU32 {
        // SAFETY: the page lives as long as the device, and is only reached through atomics.
        unsafe { self.0.as_ref() }
    }
    pub(super) fn state(&self) -> &AtomicU32 {
        // SAFETY: the cell is two words.
        let second = unsafe { self.0.add(1) };
        // SAFETY: as in `flag`.
        unsafe { second.as_ref() }
    }
    pub(super) fn is_over(self) -> bool {
        matches!(self.state().load(Ordering::Acquire), OPENED | TIMED_OUT)
    }
}

/// The cells of a device: pinned pages, what is free in them, what a kernel may still look at.
#[derive(Default)]
pub(super) struct Cells {
    pub(super) pages: Vec<NonNull<u8>>,
    pub(super) free: Vec<Cell>,
    pub(super) retired: Vec<Cell>,
}

// SAFETY: the pages are numbers to be unpinned; the cells are Send.
#[allow(unsafe_code, reason = "raw pointers that are only numbers here")]
unsafe impl Send for Cells {}
