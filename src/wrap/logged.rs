//! A log of the calls of an allocator's users.
//!
//! A free happens in a drop, where no user code may run (O9): it is stored, and logged by the next call that is not a drop. So
//! the log is in order, and a sink may be slow, call the allocator, or panic. If more calls are stored than fit, the oldest are lost,
//! which is logged in their place.

use super::passed_on;
use crate::allocator::recorder::Recorder;
use crate::allocator::{Limit, Trimmed};
use crate::erased::{AnyAllocation, AnyStream, Facts, GpuAlloc, Watcher};
use crate::error::Error;
use crate::sync::Ordering;
use crate::sync::plain::AtomicU64;
use crate::units::StreamId;
use core::fmt;
use std::sync::Arc;

/// An allocator that calls a closure with each call and its number, in order. Frees and uses, which happen on handles, are
/// logged by the next call on this allocator, or by [`Logged::deliver`]; those after the last of these are not logged. 65,536 are stored until
/// then: if there are more, the oldest are lost, and [`Call::Lost`] says how many.
///
/// ```
/// use millpond::{Allocator, Config, GpuAlloc, units::{GIB, KIB}, wrap::Logged};
/// use millpond_sim::Sim;
/// use std::sync::{Arc, Mutex};
/// # fn main() -> Result<(), millpond::Error> {
/// let gpu = Allocator::new(Sim::new(GIB), Config::default())?;
/// let lines = Arc::new(Mutex::new(Vec::new()));
/// let log = Arc::clone(&lines);
/// let logged = Logged::new(gpu.erase(), move |number, call| log.lock().unwrap().push(format!("{number} {call}")));
/// let stream = logged.stream()?;
/// drop(logged.alloc(KIB, &stream)?);
/// logged.deliver();                                         // the free, which happened in a drop
/// let lines = lines.lock().unwrap();
/// assert!(lines[0].starts_with("0 allocated") && lines[1].starts_with("1 freed"), "{lines:?}");
/// # Ok(()) }
/// ```
pub struct Logged {
    inner: Arc<dyn GpuAlloc>,
    log: Arc<Log>,
}

struct Log {
    kept: Recorder<Call>,
    /// The number of the next call to log. One thread at a time delivers.
    next: AtomicU64,
    sink: Box<Sink>,
}

type Sink = dyn Fn(u64, &Call) + Send + Sync;

/// One call. Shown as one line of text.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub enum Call {
    /// An allocation was made.
    Allocated(Facts),
    /// A request failed.
    Refused {
        /// Requested bytes.
        bytes: u64,
        /// The stream of the request.
        stream: StreamId,
        /// The error's message.
        why: String,
    },
    /// A use by another stream's work was recorded.
    Used {
        /// The allocation that is used.
        what: Facts,
        /// The stream.
        by: StreamId,
    },
    /// An allocation was freed.
    Freed(Facts),
    /// A trim gave this many bytes back to the device; `None` if it failed.
    Trimmed(Option<u64>),
    /// A new limit.
    Limited(Limit),
    /// The host waited for the device.
    Synchronized,
    /// The number of calls that are not logged, from this one's number on: more were stored than fit.
    Lost(u64),
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let show = |f: &mut fmt::Formatter<'_>, what: &str, facts: &Facts| {
            write!(f, "{what} {} + {} B", facts.address, facts.bytes)?;
            facts.id.map_or(Ok(()), |id| write!(f, " ({id})"))
        };
        match self {
            Call::Allocated(facts) => {
                show(f, "allocated", facts)?;
                facts.stream.map_or(Ok(()), |s| write!(f, " on {s}"))
            }
            Call::Refused { bytes, stream, why } => write!(f, "refused {bytes} B on {stream}: {why}"),
            Call::Used { what, by } => show(f, "used", what).and_then(|()| write!(f, " by {by}")),
            Call::Freed(facts) => show(f, "freed", facts),
            Call::Trimmed(Some(bytes)) => write!(f, "trimmed {bytes} B"),
            Call::Trimmed(None) => f.write_str("trim failed"),
            Call::Limited(limit) => write!(f, "limit {limit:?}"),
            Call::Synchronized => f.write_str("synchronized"),
            Call::Lost(calls) => write!(f, "lost {calls} calls: more were stored than fit"),
        }
    }
}

/// What the end of an allocation has to log.
struct Entry(Arc<Log>);

impl Watcher for Entry {
    fn used(&self, of: &Facts, by: StreamId) {
        self.0.kept.push(Call::Used { what: *of, by });
    }
    fn freed(self: Box<Self>, of: &Facts) {
        self.0.kept.push(Call::Freed(*of));
    }
}

impl Logged {
    /// Calls `sink` with each call.
    pub fn new(inner: Arc<dyn GpuAlloc>, sink: impl Fn(u64, &Call) + Send + Sync + 'static) -> Logged {
        Logged {
            inner,
            log: Arc::new(Log { kept: Recorder::new(), next: AtomicU64::new(0), sink: Box::new(sink) }),
        }
    }
    /// Logs what is stored now.
    pub fn deliver(&self) {
        let log = &*self.log;
        log.kept.deliver(|number, call| {
            // Before the sink, which may panic: then it loses this call, and no other is lost.
            let next = log.next.swap(number + 1, Ordering::Relaxed);
            if next < number {
                (log.sink)(next, &Call::Lost(number - next));
            }
            (log.sink)(number, call);
        });
    }
    /// How many calls were or will not be logged, because more were stored than fit.
    pub fn lost(&self) -> u64 {
        self.log.kept.lost()
    }

    fn logged<T>(&self, outcome: T, call: impl FnOnce(&T) -> Call) -> T {
        self.log.kept.push(call(&outcome));
        self.deliver();
        outcome
    }
    fn allocated(
        &self,
        requested: u64,
        stream: &AnyStream,
        made: Result<AnyAllocation, Error>,
    ) -> Result<AnyAllocation, Error> {
        // Watched before it is logged: if the sink panics, the allocation is freed.
        let made = made.map(|memory| memory.watched(Box::new(Entry(Arc::clone(&self.log)))));
        self.logged(made, |made| match made {
            Ok(memory) => Call::Allocated(*memory.facts()),
            Err(e) => Call::Refused { bytes: requested, stream: stream.id(), why: e.to_string() },
        })
    }
}

impl GpuAlloc for Logged {
    passed_on!();
    fn alloc(&self, bytes: u64, stream: &AnyStream) -> Result<AnyAllocation, Error> {
        self.allocated(bytes, stream, self.inner.alloc(bytes, stream))
    }
    fn alloc_aligned(&self, bytes: u64, align: u64, stream: &AnyStream) -> Result<AnyAllocation, Error> {
        self.allocated(bytes, stream, self.inner.alloc_aligned(bytes, align, stream))
    }
    fn trim(&self, which: Option<&AnyStream>) -> Result<Trimmed, Error> {
        self.logged(self.inner.trim(which), |t| Call::Trimmed(t.as_ref().ok().map(|t| t.bytes)))
    }
    fn set_limit(&self, limit: Limit) -> Result<(), Error> {
        self.logged(self.inner.set_limit(limit), |_| Call::Limited(limit))
    }
    fn synchronize(&self) -> Result<(), Error> {
        self.logged(self.inner.synchronize(), |_| Call::Synchronized)
    }
}

impl fmt::Debug for Logged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Logged").field("inner", &self.inner).finish_non_exhaustive()
    }
}
