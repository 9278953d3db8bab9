//! The records of physical memory beneath the pools: which handles exist, where each is mapped, and which of them a thread is working on.
//!
//! A **handle** is one piece of physical memory from the driver; it is mapped as a whole. An **arena** is one reservation of addresses. A
//! **window** is a part of an arena that serves as one segment of heaps. A **slot** is a mapping of a handle at a place in a window; addresses
//! without a slot are a **hole**. Handles move between windows; allocations keep their addresses.
//!
//! ```text
//!   arena      |<------------------ window 3 ------------------>|<---- window 5 ---- ...
//!   slots      | handle 1 |   hole   | handle 4     | handle 2   |
//!                  Here                   Here         Draining: handle 2 is Here in window 5 now
//! ```
//!
//! This module keeps these records and decides which thread may change what. It never sees a driver (the driver's handle is a type parameter), a
//! lock, a heap, a pool, a stream or a clock: an owner is a number, and the caller says when a use is over. It can fail only by a bug, its
//! own or its caller's, and then it panics with the number of the broken invariant.
//!
//! # Work on a handle
//!
//! No lock is held over a driver call, so between two operations on these records one thread alone works on a handle, or on a slot. Two values
//! represent that, [`BusyHandle`] and [`LeavingSlot`]: they cannot be copied, and the operation that ends the work consumes them. A place is a
//! slot from before the driver maps there until after the driver has unmapped: if a driver call panics, no other thread gets its addresses.
//!
//! ```text
//!   created ──► Busy, no place ──start_map──► Busy, Arriving ──mapped──► Mapped
//!                  │  ▲    ▲                    │        │
//!            spare │  │    └────map_failed──────┘        └─map_stuck──► Busy, Draining ──spare──► Spare, Draining
//!                  ▼  │ take_spare
//!                 Spare
//!
//!   Mapped ──begin──► Busy, Here ──put_back──► Mapped
//!                        │    │
//!                        │    └──start_map──► Busy, Here and Arriving ──moved──► Mapped at the new place, and a LeavingSlot
//!                        │                       map_failed, map_stuck: back to Busy, Here
//!                        └──detached──► Busy, no place ──released──► gone
//!
//!   LeavingSlot ──unmapped──► hole
//!        │  ▲
//!   drain▼  │drained
//!      Draining
//! ```
//!
//! If the driver panics over a mapping, it is unknown whether it is there: that slot drains, and the handle is spare behind it ([`Physical::abandoned`]).
//!
//! A new mapping that the driver cannot take away again drains with no use to wait for. So no flag says that a handle is stuck: its slot does,
//! and [`Physical::drained`] returns that slot again until the driver unmaps it.
//!
//! # Invariants
//!
//! With `h` a handle, `w` a window, `s` a slot, lengths in units:
//!
//! * **B1** a handle counts once, however often it is mapped: `units = Σ units(h)`; the sums of spare, draining and held units likewise. The
//!   index of spare handles has exactly those that are Spare and mapped nowhere.
//! * **B2** the slots of `w` are disjoint and inside it. Slots and handles refer to each other: a slot that is Here is `at(h)`, one that is Arriving
//!   `arriving(h)`, any other is in `former(h)`, which has at most [`MOST_FORMER`].
//!   The holes of `w` are what no slot has.
//! * **B4** `holds(h) > 0 ⇒ h` is Mapped: no thread works on it, so it is neither moved nor released.
//! * **B6** a draining slot leaves only through [`Physical::drained`], once all uses through its addresses are over; the queue has each draining
//!   slot once. A handle is released only when it is mapped nowhere.
//! * **B8** windows and gaps tile the aligned part of each arena; a window is aligned to 512 MiB and its length is a multiple of that. No mapping
//!   starts in a closed window; the list of retired windows has exactly those that are closed and have no slot.
//! * **B10** `h` is Busy `⇔` there is a [`BusyHandle`] of it; only then has it an Arriving slot. `s` is Leaving `⇔` there is a [`LeavingSlot`] of it.
//!   At rest there are neither.
//! * **B11** a held handle has the place that it had when it was first held, and as many holds as there are [`Hold`]s of it.
//!
//! [`Physical::check`] checks them, [`Physical::check_at_rest`] the last sentence of B10 too. Each operation also checks those that it could break,
//! in release builds too: beside a driver call that costs nothing.
//!
//! The allocator keeps the others, which need its heaps, streams and limit: the bytes of handles, of plain segments and of claims are what is
//! reserved, within the limit (the rest of B1); the bytes of slots that are Here are in heaps or in transit, and Absent in all heaps otherwise (B3);
//! what a pool has of a held handle, or of a held plain segment, it keeps (the rest of B11); a thread that works on a handle has cut all its bytes out of the heaps (B5); a handle's uses
//! are complete before it is unmapped or released (the rest of B6), and ordered before its next owner (B7); stamps (B9).
//!
//! # A handle keeps no stamps of former pools
//!
//! The next owner of a handle has to come after everything that its bytes were used for. The stamps that heaps now have of those bytes cover
//! the pools that had them earlier: by O5 a range enters a pool either complete or with the number of a marker that the pool's stream makes after
//! everything that the range carried. Stamps kept in each handle would repeat that, and every migration would have to update them. Only the
//! uses of a handle that moved are in no heap; its old slot has them while it drains.

/// Asserts an invariant by its number.
macro_rules! law {
    ($number:ident, $holds:expr, $($what:tt)+) => {
        if !$holds {
            $crate::physical::broken(stringify!($number), format_args!($($what)+));
        }
    };
}

mod arena;
mod check;
mod handle;
mod hold;
mod slot;
#[cfg(test)]
mod tests;
mod window;

pub use arena::AddrRange;
pub use handle::{BusyHandle, HandleState, HandleView, MOST_FORMER};
pub use hold::Hold;
pub use slot::{LeavingSlot, SlotState, SlotView};
pub use window::{NoWindow, WindowView};

use crate::units::{Granules, MIB, SegmentId};
use arena::Arenas;
use core::fmt;
use handle::Handles;
use std::collections::VecDeque;
use window::Windows;

/// The unit of sizes and places: the granularity of every device seen so far. A device with a larger granularity has larger units.
pub const UNIT: Granules = Granules(4096);
/// The alignment of windows, whose lengths are multiples of it: the driver maps and unmaps faster in a range of 512 MiB in which something else is
/// mapped.
pub const WINDOW_BYTES: u64 = 512 * MIB;

/// A handle's number, in the order of creation. Never used twice, so a stale one names no handle.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct HandleId(pub u64);

/// The place of a mapping.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct WindowPosition {
    /// The window.
    pub segment: SegmentId,
    /// The offset in units of the first address.
    pub unit: u32,
}

/// The owner of a window's holes: a number that the caller derives from a pool and from the kind of its segments.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Owner(pub u64);

/// Why an operation on a handle is not possible now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unavailable {
    /// It was released.
    Gone,
    /// It has no place.
    Spare,
    /// A thread is working on it.
    Busy,
    /// It is held: exported or registered, for example.
    Held,
    /// It is still mapped at former places.
    Draining,
    /// No handle is mapped at some of these addresses.
    Absent,
}

/// The records of one allocator's physical memory.
#[derive(Clone)]
pub struct Physical<H> {
    unit: Granules,
    handles: Handles<H>,
    windows: Windows,
    arenas: Arenas,
    /// The draining slots, the least recently checked first.
    draining: VecDeque<WindowPosition>,
    totals: Totals,
}

/// Sums that each operation updates.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
struct Totals {
    /// Units of all handles.
    units: u64,
    /// Units of handles that are Spare and mapped nowhere.
    spare: u64,
    /// Units of Draining and Leaving slots.
    draining: u64,
    /// Units of held handles.
    held: u64,
    created: u64,
    released: u64,
    moved: u64,
    second_mappings: u64,
    stuck: u64,
}

/// What exists, in bytes, and what was done since the beginning.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Stats {
    /// The number of handles.
    pub handles: u64,
    /// Their bytes, each handle once: what the device gave.
    pub bytes: u64,
    /// The bytes of spare handles.
    pub spare: u64,
    /// The number of spare handles.
    pub spares: u64,
    /// Addresses of former places that are still to be unmapped.
    pub draining: u64,
    /// The bytes of held handles.
    pub held: u64,
    /// The number of windows.
    pub windows: u64,
    /// Their addresses.
    pub window_bytes: u64,
    /// All reserved addresses.
    pub reserved_addresses: u64,
    /// Handles created.
    pub created: u64,
    /// Handles released.
    pub released: u64,
    /// Moves from one place to another.
    pub moved: u64,
    /// Moves of handles with uses pending: for a time such a handle was mapped twice.
    pub second_mappings: u64,
    /// How often the driver could not take a new mapping away again.
    pub stuck: u64,
}

/// What is to be given back at the end, in this order.
#[derive(Debug)]
pub struct Remains<H> {
    /// Every mapping.
    pub mappings: Vec<AddrRange>,
    /// Every handle.
    pub handles: Vec<H>,
    /// Every reservation.
    pub reservations: Vec<AddrRange>,
}

impl<H: Clone> Physical<H> {
    /// The records of a device with nothing mapped. A window is at most as long as `capacity`, rounded up, unless a request is longer. `None`
    /// if the driver's granularity is no power of two or is longer than a window: the allocator then uses plain segments.
    pub fn new(granularity: u64, capacity: u64) -> Option<Physical<H>> {
        let unit = Granules::exactly(granularity.max(UNIT.bytes()))?;
        let fits = granularity.is_power_of_two() && unit.bytes() <= WINDOW_BYTES;
        fits.then(|| Physical {
            unit,
            handles: Handles::new(),
            windows: Windows::new(unit, capacity),
            arenas: Arenas::new(),
            draining: VecDeque::new(),
            totals: Totals::default(),
        })
    }

    /// The unit of sizes and places.
    pub fn unit(&self) -> Granules {
        self.unit
    }

    /// Whether any handle is spare.
    #[must_use]
    pub fn has_spares(&self) -> bool {
        !self.handles.spare().is_empty()
    }

    /// What exists, and what was done.
    pub fn stats(&self) -> Stats {
        let bytes = |units: u64| units * self.unit.bytes();
        let t = &self.totals;
        Stats {
            handles: self.handles.len() as u64,
            bytes: bytes(t.units),
            spare: bytes(t.spare),
            spares: self.handles.spare().len() as u64,
            draining: bytes(t.draining),
            held: bytes(t.held),
            windows: self.windows.len() as u64,
            window_bytes: bytes(self.windows.units()),
            reserved_addresses: self.arenas.bytes(),
            created: t.created,
            released: t.released,
            moved: t.moved,
            second_mappings: t.second_mappings,
            stuck: t.stuck,
        }
    }

    /// Everything, at the end; only the counters of what was done remain. It includes places at which a thread had started to map and never
    /// finished, because a driver call panicked: the handle may be mapped there.
    pub fn take_all(&mut self) -> Remains<H> {
        let mappings = self.windows.take_all().into_iter();
        let unit = self.unit;
        let mappings = mappings
            .map(|(base, units)| AddrRange { base, bytes: u64::from(units) * unit.bytes() })
            .collect();
        self.draining.clear();
        let t = self.totals;
        self.totals = Totals { units: 0, spare: 0, draining: 0, held: 0, ..t };
        Remains { mappings, handles: self.handles.take_all(), reservations: self.arenas.take_all() }
    }
}

impl<H: Clone> fmt::Debug for Physical<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Physical").field("stats", &self.stats()).finish_non_exhaustive()
    }
}

/// An invariant does not hold: the program must not continue to hand out memory.
#[cold]
#[inline(never)]
fn broken(number: &str, what: fmt::Arguments<'_>) -> ! {
    panic!("invariant {number} of physical memory is broken: {what}")
}
