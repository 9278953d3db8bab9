//! How a timeline can be marked by the present call, so that it ends no capture by other code.
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
//! A context-wide event ends every capture in the context, and no check can rule one out: a capture may begin right after the
//! check. An unmanaged stream may be gone, and another one may have its handle.
//!
//! A stream that other code may capture is checked before its record and after it. A capture that began in between took the
//! event: nothing uses it, and the graph has no node of it. A capture that begins *and ends* between the two checks is not
//! seen here, but by the first query or wait for its event (`captured`).

use super::{CONTEXT, Registry, StreamTimeline};
use crate::driver::{Driver, DriverResult};
use crate::error::{DriverError, DriverErrorKind};
use crate::laws;
use crate::sync::{Arc, Ordering};
use crate::units::StreamId;

/// Whether the current call names the stream, so that it is alive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Named {
    Yes,
    No,
}

/// How a timeline can be marked: the right columns of the table above.
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

    /// Records a marker's event. A call that names the stream has checked it just now.
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
        let may_capture = timeline.adopted.load(Ordering::Relaxed) || driver.may_capture(native);
        if may_capture && named == Named::No && driver.is_capturing(native)? {
            return Err(captured(timeline));
        }
        driver.record(event, native)?;
        if laws::queries_again(may_capture) && driver.is_capturing(native)? {
            return Err(captured(timeline));
        }
        Ok(())
    }
}

/// Whether this timeline is marked by its stream's handle, in a call that names no stream: then that ends no capture.
pub(crate) fn is_marked_by_handle<D: Driver>(driver: &D, timeline: &StreamTimeline<D>) -> bool {
    Means::of(driver, timeline, Named::No) == Means::Handle
}

impl<D: Driver> Registry<D> {
    /// A stream of one of these timelines that captures, if there is one among those that can be checked: a wait for the device would destroy the capture.
    ///
    /// # Errors
    /// The driver's, from the check of a stream that is there: it may capture.
    pub(crate) fn find_capturing(
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
    /// Waits for the device in place of a wait that could not be made, if the call may: captures that can be detected are checked for first, and survive.
    ///
    /// # Errors
    /// A stream captures: nothing was waited for. The driver's.
    pub(crate) fn synchronize_instead(&self, driver: &D) -> DriverResult<()> {
        if laws::checks_captures()
            && let Some(stream) = self.find_capturing(driver, &self.timelines())?
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

/// The error of a marker that cannot be made by this call.
pub(super) fn held_back<D: Driver>(timeline: &StreamTimeline<D>) -> DriverError {
    let what = if timeline.id == CONTEXT {
        "work on streams that no allocator holds (memory was borrowed by it, or freed behind it with its users unknown) needs a context-wide event, which would destroy any capture in progress: what was freed behind it is held back until the program synchronises, which counts it over (Allocator::synchronize), and an operation that this refused can be repeated then; adopt such a stream before it is given memory".to_owned()
    } else {
        format!(
            "{} is marked only in calls that name it, or on its own thread: what it holds is held back until it is named again or the program synchronises",
            timeline.info
        )
    };
    DriverError::new("record", 801, DriverErrorKind::NotSupported, what)
}

/// The error of one stream whose memory is passed over. A request does not wait for a stream's end.
pub(super) fn closing<D: Driver>(timeline: &StreamTimeline<D>) -> DriverError {
    let what = format!(
        "{} ends, its last marker could not be recorded, and the thread that ends it waits for the whole of it: what it holds can be reused when that is over",
        timeline.info.id
    );
    DriverError::new("record", 400, DriverErrorKind::InvalidHandle, what)
}
