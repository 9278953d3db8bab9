//! Published markers whose events a capture took.
//!
//! The driver is queried after each record whether the stream captures, and if so the event is discarded. A capture that began *and ended* between
//! two such checks is not seen: the event is published, and every query and wait for it fails (error 1 from CUDA's drivers, which the backend
//! recognises). That is never "complete" nor an order. The call that meets the error takes the marker out. Its number covers nothing then, as if
//! the record had failed; another marker falls due, and a call that needs the stream takes the next one or makes it.
//!
//! It does not know which code captured.

use super::super::events::SharedEvent;
use super::{Registry, StreamTimeline};
use crate::driver::{Driver, DriverResult};
use crate::error::DriverError;
use crate::laws;
use crate::order::Marker;
use crate::units::Epoch;
use core::time::Duration;

/// How many times one call replaces a marker that a capture took. Even one replacement needs a capture that begins and ends inside a record.
const AGAIN: usize = 3;

impl<D: Driver> Registry<D> {
    /// Whether this error says that a capture took a published marker's event. Then the marker has been removed from its timeline.
    pub(crate) fn is_captured(
        &self,
        timeline: &StreamTimeline<D>,
        marker: &Marker<SharedEvent<D>>,
        answer: &DriverError,
    ) -> bool {
        if !laws::takes_out_captured(answer.is_of_captured_event()) {
            return false;
        }
        if let Some(gone) = timeline.take_out(marker.number) {
            self.forget([gone]);
            if let Some(timeline) = self.timeline(timeline.id).filter(|timeline| !timeline.is_closed()) {
                self.request_maintenance(&timeline);
            }
        }
        true
    }

    /// Runs `then` on the marker to wait for ([`Registry::marker_for`]), and on the next one if a capture took the event. `None`: complete.
    ///
    /// # Errors
    /// The driver's; that a capture took the event, if there is no next one.
    pub(crate) fn with_marker<R>(
        &self,
        driver: &D,
        timeline: &StreamTimeline<D>,
        epoch: Epoch,
        limit: Duration,
        mut then: impl FnMut(&Marker<SharedEvent<D>>) -> DriverResult<R>,
    ) -> DriverResult<Option<R>> {
        let (mut taken, mut left) = (None, AGAIN);
        loop {
            let marker = match self.marker_for(driver, timeline, epoch, limit) {
                // If the stream cannot be marked now, the reason why its marker is gone says more.
                Err(e) if !e.is_context_lost() => return Err(taken.unwrap_or(e)),
                marker => marker?,
            };
            let Some(marker) = marker else { return Ok(None) };
            match then(&marker) {
                Err(e) if self.is_captured(timeline, &marker, &e) && left > 0 => {
                    left -= 1;
                    taken = Some(e);
                }
                done => return done.map(Some),
            }
        }
    }
}
