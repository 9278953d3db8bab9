//! What an allocator tells its device, and the whole of what it needs of one.
//!
//! A device that judges learns here who owns which bytes; others ignore it. It does not know how a device judges.

use crate::sync::{Arc, Mutex, Weak};
use crate::units::{Addr, AllocationId, StreamId};
use crate::{Copies, Fences, Host, Memory, RangeUse};
use core::any::Any;
use core::fmt;

/// What an allocator tells its device about ownership, so that a checking device can judge.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Note {
    /// Bytes were handed out on a stream. Told after the pool was unlocked.
    Allocated {
        /// Which allocation.
        id: AllocationId,
        /// First byte.
        addr: Addr,
        /// Bytes asked for (not rounded).
        bytes: u64,
        /// The stream it was allocated on; `None` for pinned host memory.
        stream: Option<StreamId>,
    },
    /// A use on a stream was recorded, to be respected from the free on; on the home stream, by later operations too.
    Used {
        /// Which allocation.
        id: AllocationId,
        /// The stream that uses it.
        stream: StreamId,
        /// Only what the stream was given up to now, not up to the free: the use was recorded up to an event.
        so_far: bool,
    },
    /// A stream uses memory that the library knows by its address only, and keeps until the use is complete: pinned memory that a
    /// copy owns, which may be any value that stays where it is, or what an array in memory of others is made of.
    UsedAt {
        /// Any byte of it.
        addr: Addr,
        /// The stream that uses it.
        stream: StreamId,
        /// Only what the stream was given up to now, not up to the free.
        so_far: bool,
    },
    /// An array in memory of others begins at an address. What was done with the memory before it is known to the library
    /// as far as this stream was given it by now, or was ordered before it; the rest is the program's to order before this stream.
    BroughtIn {
        /// The first byte.
        addr: Addr,
        /// The stream that the memory was brought in on.
        stream: StreamId,
    },
    /// Another stream than its own may use it from here on: it was ordered behind the bytes' former life, if they have one
    /// that is not over.
    Admitted {
        /// Which allocation.
        id: AllocationId,
        /// The stream let in.
        stream: StreamId,
    },
    /// An operation is about to be queued on a stream, and the library has ordered that behind every use it knew of
    /// that conflicts. Told for each allocation that the operation touches, whatever its home stream.
    Operation {
        /// Which allocation.
        id: AllocationId,
        /// The stream that is given the operation next.
        stream: StreamId,
        /// What the operation does to it.
        used: RangeUse,
        /// Who queues it.
        by: QueuedBy,
    },
    /// An operation is about to be queued on an array in memory of others: [`Note::Operation`] by an address.
    OperationAt {
        /// Any byte of it.
        addr: Addr,
        /// The stream that is given the operation next.
        stream: StreamId,
        /// What the operation does to it.
        used: RangeUse,
        /// Who queues it.
        by: QueuedBy,
    },
    /// A guard ended that was told of as an operation: what the stream is given later is not under it.
    GuardEnded {
        /// Which allocation.
        id: AllocationId,
        /// The stream that the guard was for.
        stream: StreamId,
        /// What it was to do.
        used: RangeUse,
    },
    /// A guard of an array in memory of others ended: [`Note::GuardEnded`] by an address.
    GuardEndedAt {
        /// Any byte of it.
        addr: Addr,
        /// The stream that the guard was for.
        stream: StreamId,
        /// What it was to do.
        used: RangeUse,
    },
    /// Bytes came back. Told before the pool is locked.
    Freed {
        /// Which allocation.
        id: AllocationId,
        /// Freed with `free_unknown`: any stream may have used it.
        unknown: bool,
    },
}

/// Who queues the operation that a stream was ordered for ([`Note::Operation`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum QueuedBy {
    /// The library, or somebody under a borrow of the library's: it knows the operation from then on.
    Library,
    /// Whoever holds a guard of the library's: it knows every operation on the stream from then on, until the guard [ends](Note::GuardEnded).
    Guard,
    /// The program: one operation or several, of which the library knows nothing but what [`Note::Used`] tells it.
    Program,
}

/// A place in a driver where the allocators of one device keep what they share. Empty until first used.
#[derive(Default)]
pub struct DeviceSlot(Mutex<Option<Weak<dyn Any + Send + Sync>>>);

impl DeviceSlot {
    /// The shared value of this type, made by `make` if there is none alive.
    ///
    /// # Panics
    /// When the slot holds a value of another type, which one crate version cannot cause.
    pub fn get_or_make<T: Any + Send + Sync>(&self, make: impl FnOnce() -> T) -> Arc<T> {
        let mut slot = self.0.lock();
        if let Some(found) = slot.as_ref().and_then(Weak::upgrade) {
            return found.downcast::<T>().expect("one kind of shared state a device");
        }
        let made = Arc::new(make());
        let weak: Weak<T> = Arc::downgrade(&made);
        *slot = Some(weak);
        made
    }
}

impl fmt::Debug for DeviceSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DeviceSlot")
    }
}

/// Everything an allocator needs of a device.
pub trait Driver: Memory + Fences + Copies + Host {
    /// Whether it judges what is asked of it, and so wants to know which line of the program asked ([`Caller`](crate::Caller)).
    const JUDGES: bool = false;
    /// Tells a checking device about ownership. No driver call; empty by default.
    #[inline]
    fn note(&self, note: Note) {
        let _ = note;
    }
    /// Tells a checking device what the program calls an allocation. No driver call; empty by default.
    fn name(&self, id: AllocationId, name: &str) {
        let _ = (id, name);
    }
    /// This driver, as one that overwrites plain and pinned memory before it gives it back, if somebody else could be given
    /// it unchanged. Itself by default: for devices whose memory always comes fresh.
    #[must_use]
    fn scrubbing(self) -> Self {
        self
    }
    /// Where the allocators of this device keep what they share.
    fn slot(&self) -> &DeviceSlot;
    /// How often each driver call was made, by name, if the driver counts.
    fn calls(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }
}
