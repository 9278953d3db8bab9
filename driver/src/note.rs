//! The notes by which an allocator notifies its device, and the trait of all that it needs of one.
//!
//! A judging device learns here who owns which bytes; others ignore it. It does not know how a device judges.

use crate::sync::{Arc, Mutex, Weak};
use crate::units::{Addr, AllocationId, StreamId};
use crate::{Copies, Fences, Host, Mapping, Memory, RangeUse};
use core::any::Any;
use core::fmt;

/// A notification of an allocator to its device about ownership, so that a checking device can judge.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Note {
    /// Bytes were handed out on a stream. Sent after the pool was unlocked.
    Allocated {
        /// Which allocation.
        id: AllocationId,
        /// First byte.
        addr: Addr,
        /// Requested bytes (not rounded).
        bytes: u64,
        /// The stream it was allocated on; `None` for pinned host memory.
        stream: Option<StreamId>,
    },
    /// A use on a stream was recorded; the free respects it; on the home stream, later operations do too.
    Used {
        /// Which allocation.
        id: AllocationId,
        /// The stream that uses it.
        stream: StreamId,
        /// The use covers only what the stream holds by now, not up to the free: it was recorded up to an event.
        so_far: bool,
    },
    /// A stream uses memory that the library knows only by its address, and keeps until the use is complete: pinned memory that a
    /// copy owns, which may be any value that stays in place, or the external memory of an array.
    UsedAt {
        /// Any byte of it.
        addr: Addr,
        /// The stream that uses it.
        stream: StreamId,
        /// The use covers only what the stream holds by now, not up to the free.
        so_far: bool,
    },
    /// An array in external memory begins at an address. The library knows earlier work on that memory
    /// as far as it is already queued on this stream, or ordered before it; the program orders the rest before this stream.
    BroughtIn {
        /// The first byte.
        addr: Addr,
        /// The stream on which the memory was imported.
        stream: StreamId,
    },
    /// Another stream than its own may use it from here on: it was ordered behind the work of the bytes' previous owner, if any
    /// of that is pending.
    Admitted {
        /// Which allocation.
        id: AllocationId,
        /// The admitted stream.
        stream: StreamId,
    },
    /// An operation is about to be queued on a stream, and the library has ordered that stream behind every conflicting use that it
    /// knew of. Sent for each allocation that the operation touches, whatever its home stream.
    Operation {
        /// Which allocation.
        id: AllocationId,
        /// The stream on which the operation is queued next.
        stream: StreamId,
        /// How the operation accesses it.
        used: RangeUse,
        /// Who queues it.
        by: QueuedBy,
    },
    /// An operation is about to be queued on an array in external memory: [`Note::Operation`] by an address.
    OperationAt {
        /// Any byte of it.
        addr: Addr,
        /// The stream on which the operation is queued next.
        stream: StreamId,
        /// How the operation accesses it.
        used: RangeUse,
        /// Who queues it.
        by: QueuedBy,
    },
    /// A guard that was notified as an operation ended: later work on the stream is not under it.
    GuardEnded {
        /// Which allocation.
        id: AllocationId,
        /// The stream that the guard was for.
        stream: StreamId,
        /// Its access.
        used: RangeUse,
    },
    /// A guard of an array in external memory ended: [`Note::GuardEnded`] by an address.
    GuardEndedAt {
        /// Any byte of it.
        addr: Addr,
        /// The stream that the guard was for.
        stream: StreamId,
        /// Its access.
        used: RangeUse,
    },
    /// Bytes were freed. Sent before the pool is locked.
    Freed {
        /// Which allocation.
        id: AllocationId,
        /// Freed with `free_unknown`: any stream may have used it.
        unknown: bool,
    },
}

/// Who queues the operation that a [`Note::Operation`] announces. It says which later work the library has to order behind that operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum QueuedBy {
    /// The library itself, or other code to which it gives the memory for one call. The library knows the operation.
    Library,
    /// The holder of a guard of the library's, who may queue any number of operations. The library knows all that are queued on the stream until the
    /// guard [ends](Note::GuardEnded).
    Guard,
    /// The program, which may queue one operation or several. The library knows them only as far as the program records the use ([`Note::Used`]).
    Program,
}

/// Where the allocators of one device keep what they share. Empty until first used.
#[derive(Default)]
pub struct DeviceSlot(Mutex<Option<Weak<dyn Any + Send + Sync>>>);

impl DeviceSlot {
    /// The shared value of this type; if none is alive, `make` makes one.
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
pub trait Driver: Memory + Mapping + Fences + Copies + Host {
    /// Whether it judges its calls, and so needs the program's line of each call ([`Caller`](crate::Caller)).
    const JUDGES: bool = false;
    /// Notifies a checking device about ownership. No driver call; empty by default.
    #[inline]
    fn note(&self, note: Note) {
        let _ = note;
    }
    /// Notifies a checking device of the program's name for an allocation. No driver call; empty by default.
    fn name(&self, id: AllocationId, name: &str) {
        let _ = (id, name);
    }
    /// This driver, as one that overwrites plain and pinned memory before it gives it back, if another allocation could
    /// get it unchanged. Itself by default: for devices whose memory is always fresh.
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
