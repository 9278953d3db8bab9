//! Which streams have read a pooled slice since it was last written, with an event each.
//!
//! cudarc has one event a slice for reads: a second reader's record replaces the first one's. If the second stream waited for the
//! first one's read instead, two threads that read at once would still lose one of the two, and readers would queue behind each other. So each
//! stream that reads records in an event of ours, which cudarc's own mark of a use's end does for us, and a writer comes behind each of these.
//!
//! Each handle has one event, for all streams that have it one after the other: the next one comes behind what the last one read before
//! it records there. While a read is being queued its stream is borrowed, so that no other stream has its handle by then. All threads' default
//! streams share one handle: each thread has its own event, which another thread takes when the first has ended.
//!
//! It does not know what a slice is.

use crate::cuda::Found;
use crate::driver::ThreadEnd;
use crate::driver::sync::Mutex;
use crate::laws;
use crate::units::StreamId;
use cudarc::driver::{CudaContext, CudaEvent, CudaStream, DriverError};
use std::sync::{Arc, OnceLock};

/// `CU_STREAM_LEGACY`; 0 means the same here.
const LEGACY: usize = 1;
/// `CU_STREAM_PER_THREAD`: a different stream on each thread.
const PER_THREAD: usize = 2;

/// A stream that reads or writes.
#[derive(Clone)]
pub(super) struct Party {
    handle: usize,
    id: StreamId,
    /// The thread, for a thread's default stream.
    thread: Option<ThreadEnd>,
}

impl Party {
    /// This stream, with the given identity.
    pub(super) fn new(stream: &CudaStream, found: &Found) -> Party {
        let id = match found {
            Found::Default(native) => native.info().id,
            Found::Known(id) => *id,
        };
        let handle = stream.cu_stream().addr().max(LEGACY);
        let thread = if handle == PER_THREAD { ThreadEnd::of_this_thread() } else { None };
        Party { handle, id, thread }
    }

    /// Whether it is this very stream. Without the driver's ids this is unknown.
    fn is(&self, other: &Party) -> bool {
        self.handle == other.handle && self.id == other.id && self.id != StreamId(u64::MAX)
    }

    /// Whether no more work can be queued on it, because `other` is here.
    fn is_over_for(&self, other: &Party) -> bool {
        match (&self.thread, self.handle) {
            (Some(thread), _) => thread.has_come(),
            // The stream of a thread that was ending.
            (None, PER_THREAD) => false,
            (None, handle) => handle == other.handle,
        }
    }
}

/// What one stream has read, or several with one handle: the last read since the slice was written.
struct Reading {
    by: Mutex<Option<Party>>,
    event: CudaEvent,
    next: OnceLock<Box<Reading>>,
}

/// A list that only grows, so that an event of it can be borrowed while others are added. It has as many entries as streams have read between two writes.
pub(super) struct Readings(OnceLock<Box<Reading>>);

impl Readings {
    pub(super) fn new() -> Readings {
        Readings(OnceLock::new())
    }

    fn each(&self) -> impl Iterator<Item = &Reading> {
        core::iter::successors(self.0.get(), |reading| reading.next.get()).map(|reading| &**reading)
    }

    /// The event in which the end of what this stream reads is to be recorded.
    pub(super) fn event(
        &self,
        reader: &Party,
        stream: &CudaStream,
        of: &Arc<CudaContext>,
    ) -> Result<&CudaEvent, DriverError> {
        let mut at = &self.0;
        loop {
            let reading = if let Some(reading) = at.get() {
                reading
            } else {
                // Not under a lock. If another thread's event is added first, this one is checked below, without an owner.
                let (by, event) = (Mutex::new(None), of.new_event(None)?);
                at.get_or_init(|| Box::new(Reading { by, event, next: OnceLock::new() }))
            };
            if reading.is_had_by(reader, stream)? {
                return Ok(&reading.event);
            }
            at = &reading.next;
        }
    }

    /// Makes a stream wait for all reads, except its own. Returns whether there were any.
    pub(super) fn wait(&self, writer: &Party, stream: &CudaStream) -> Result<bool, DriverError> {
        let others = |reading: &&Reading| reading.by.lock().as_ref().is_some_and(|by| !by.is(writer));
        let mut any = false;
        for reading in self.each().filter(others) {
            stream.wait(&reading.event)?;
            any = true;
        }
        Ok(any)
    }

    /// Whether there was a read.
    pub(super) fn is_any(&self) -> bool {
        self.each().any(|reading| reading.by.lock().is_some())
    }

    /// Makes a stream wait for all reads.
    pub(super) fn wait_all(&self, stream: &CudaStream) -> Result<(), DriverError> {
        self.each()
            .filter(|reading| reading.by.lock().is_some())
            .try_for_each(|reading| stream.wait(&reading.event))
    }

    /// Makes the host wait for all reads.
    pub(super) fn synchronize(&self) -> Result<(), DriverError> {
        self.each()
            .filter(|reading| reading.by.lock().is_some())
            .try_for_each(|reading| reading.event.synchronize())
    }

    /// The slice's write event is behind all reads. Needs exclusive access.
    pub(super) fn forget(&self) {
        self.each().for_each(|reading| *reading.by.lock() = None);
    }
}

impl Reading {
    /// Takes the event for a stream, if it is its own, unused, or belonged to one that is no longer used.
    fn is_had_by(&self, reader: &Party, stream: &CudaStream) -> Result<bool, DriverError> {
        let mut by = self.by.lock();
        match &*by {
            Some(last) if last.is(reader) || !laws::distinguishes_readers() => {}
            // Under the lock: a second call on the same stream would record in the event before it is waited for.
            Some(last) if last.is_over_for(reader) => {
                laws::behind_its_handles_last(|| stream.wait(&self.event))?;
            }
            Some(_) => return Ok(false),
            None => {}
        }
        *by = Some(reader.clone());
        Ok(true)
    }
}

impl Drop for Readings {
    /// One by one, without recursion: a list of any length.
    fn drop(&mut self) {
        let mut next = self.0.take();
        while let Some(reading) = &mut next {
            next = reading.next.take();
        }
    }
}
