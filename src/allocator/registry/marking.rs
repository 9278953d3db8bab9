//! How a timeline can be marked here and now, so that no capture of somebody else's ends by it.
//!
//! | timeline | captures are expected | else |
//! |---|---|---|
//! | a stream's that is ours, adopted or permanent | its handle | its handle |
//! | the calling thread's default stream's | its handle | its handle |
//! | another thread's default stream's | nothing | a context-wide event |
//! | an unmanaged stream's, in a call that names it | its handle | its handle |
//! | an unmanaged stream's otherwise | nothing | nothing |
//! | the context's | nothing | a context-wide event |
//!
//! A context-wide event ends every capture in the context, and nobody can be asked whether there is one: a question leaves a
//! capture out that begins behind it. An unmanaged stream may be gone, and another one have its handle.
//!
//! A stream that somebody else may capture is asked before its record and behind it. A capture that began in between took the
//! event: nobody looks at it, and the graph has no node of it. One that begins *and ends* between the two questions is not
//! seen here, but by whoever asks or waits for its event first (`captured`).

use super::{CONTEXT, Registry, StreamTimeline};
use crate::driver::{Driver, DriverResult};
use crate::error::{DriverError, DriverErrorKind};
use crate::laws;
use crate::sync::{Arc, Ordering};
use crate::units::StreamId;

/// Whether the call that is under way names the stream, so that it is alive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Named {
    Yes,
    No,
}

/// By what a timeline can be marked: the right columns of the table above.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Means {
    Handle,
    Context,
    Nothing,
}

impl Means {
    pub(super) fn of<D: Driver>(driver: &D, timeline: &StreamTimeline<D>, named: Named) -> Means {
        if timeline.id != CONTEXT && timeline.is_marked_by_handle(named) {
            Means::Handle
        } else if laws::may_mark_context(timeline.is_unmanaged(), || driver.expects_captures()) {
            Means::Context
        } else {
            Means::Nothing
        }
    }

    /// Records a marker's event. Whoever names the stream has asked it just now.
    ///
    /// # Errors
    /// The driver's; the stream captures, or began to meanwhile.
    pub(super) fn record<D: Driver>(
        self,
        driver: &D,
        timeline: &StreamTimeline<D>,
        event: &D::Event,
        native: Option<&D::Stream>,
        named: Named,
    ) -> DriverResult<()> {
        let (Means::Handle, Some(native)) = (self, native) else {
            return driver.record_context(event);
        };
        let asked = timeline.adopted.load(Ordering::Relaxed) || driver.may_capture(native);
        if asked && named == Named::No && driver.is_capturing(native)? {
            return Err(captured(timeline));
        }
        driver.record(event, native)?;
        if laws::asks_again(asked) && driver.is_capturing(native)? {
            return Err(captured(timeline));
        }
        Ok(())
    }
}

/// Whether this timeline is marked by its stream's handle, in a call that names no stream: then no capture ends by it.
pub(crate) fn is_marked_by_handle<D: Driver>(driver: &D, timeline: &StreamTimeline<D>) -> bool {
    Means::of(driver, timeline, Named::No) == Means::Handle
}

impl<D: Driver> Registry<D> {
    /// The stream of one of these timelines that captures, of those that can be asked: a wait for the device would destroy that.
    ///
    /// # Errors
    /// The driver's, to a question about a stream that is there: it may capture.
    pub(crate) fn who_captures(
        &self,
        driver: &D,
        timelines: &[Arc<StreamTimeline<D>>],
    ) -> DriverResult<Option<StreamId>> {
        for timeline in timelines {
            let Some(native) = timeline.native().filter(|_| timeline.is_marked_by_handle(Named::No)) else {
                continue;
            };
            if !(timeline.adopted.load(Ordering::Relaxed) || driver.may_capture(&native)) {
                continue;
            }
            match self.watch(driver.is_capturing(&native)) {
                Ok(true) => return Ok(Some(timeline.info.id)),
                Err(e) if !e.is_of_one_stream() => return Err(e),
                _ => {}
            }
        }
        Ok(None)
    }
}

impl<D: Driver> Registry<D> {
    /// Waits for the device in place of a wait that could not be made, for who may: a capture that can be asked for is, and lives.
    ///
    /// # Errors
    /// A stream captures: nothing was waited for. The driver's.
    pub(crate) fn synchronize_instead(&self, driver: &D) -> DriverResult<()> {
        if laws::asks_who_captures()
            && let Some(stream) = self.who_captures(driver, &self.timelines())?
        {
            let message = format!("{stream} is capturing a graph, which a wait for the device would end");
            return Err(DriverError::new("synchronize", 900, DriverErrorKind::Capturing, message));
        }
        self.watch(driver.relaxed(|| driver.synchronize_device()))
    }
}

/// An event recorded on a capturing stream becomes a part of the graph and says nothing of the work before: no marker.
fn captured<D: Driver>(timeline: &StreamTimeline<D>) -> DriverError {
    let message = format!("{} is capturing a graph: its work can be marked after the capture", timeline.info);
    DriverError::new("record", 900, DriverErrorKind::Capturing, message)
}

/// A marker that cannot be made here and now.
pub(super) fn held_back<D: Driver>(timeline: &StreamTimeline<D>) -> DriverError {
    let what = if timeline.id == CONTEXT {
        "work on streams that no allocator holds (memory was borrowed by it, or freed behind it with its users unknown) needs a context-wide event, which would destroy a capture that somebody may have begun: what was freed behind it is held back until the program synchronises, which counts it over (Allocator::synchronize), and an operation that this refused can be repeated then; adopt such a stream before it is given memory".to_owned()
    } else {
        format!(
            "{} is marked only in calls that name it, or on its own thread: what it holds is held back until it is named again or the program synchronises",
            timeline.info
        )
    };
    DriverError::new("record", 801, DriverErrorKind::NotSupported, what)
}

/// Of one stream, whose memory is passed over. A request does not wait for a stream's end.
pub(super) fn closing<D: Driver>(timeline: &StreamTimeline<D>) -> DriverError {
    let what = format!(
        "{} ends, its last marker could not be recorded, and whoever ends it waits for the whole of it: what it holds can be had when that is over",
        timeline.info.id
    );
    DriverError::new("record", 400, DriverErrorKind::InvalidHandle, what)
}
