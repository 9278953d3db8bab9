//! Published markers whose events a capture took.
//!
//! A stream is asked behind each record whether it captures, and the event thrown away if so. A capture that began *and ended* between
//! the two questions is seen by neither: its event is published, and answers every query and wait with an error (1 from CUDA's drivers, whose backend knows it), which is never
//! "complete" nor an order. Whoever is answered so takes the marker out. Its number covers nothing then, as if the record had failed;
//! another marker falls due, and whoever needs the stream takes the next one or makes it.
//!
//! It does not know who captured.

use super::super::events::SharedEvent;
use super::{Registry, StreamTimeline};
use crate::driver::{Driver, DriverResult};
use crate::error::DriverError;
use crate::laws;
use crate::order::Marker;
use crate::units::Epoch;
use core::time::Duration;

/// So often one call takes another marker for one that a capture took. A single time takes a capture that begins and ends inside a record.
const AGAIN: usize = 3;

impl<D: Driver> Registry<D> {
    /// Whether this answer says that a capture took a published marker's event. Then the marker is on its timeline no more.
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
                // That nobody can mark the stream here is no more to be told than why its marker is gone.
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
