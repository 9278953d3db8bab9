//! One stream's published markers and its clock (laws O3 and O8).
//!
//! To make marker m on u: reserve its number, copy `K_u`, record the event, publish. The number is an atomic that the
//! registry keeps, because stamps are loaded on the hot path without this structure's lock; the other steps that touch
//! shared state are here. Two threads may publish out of order: numbers, not the order of publishing, say what a marker
//! covers, because whatever carries stamp e was queued before any marker numbered e or higher was reserved.
//!
//! It does not know what an event is, nor whether one is complete.

use super::{Clock, TimelineId};
use crate::laws::{self, cost};
use crate::units::Epoch;
use std::collections::VecDeque;

/// A recorded marker: everything queued on its stream before its number was reserved, and all that the stream was
/// ordered after by then.
#[derive(Clone, Debug)]
pub struct Marker<E> {
    /// Its number.
    pub number: Epoch,
    /// The recorded event.
    pub event: E,
    /// `K` of the stream, copied after the number was reserved and before the event was recorded.
    pub copy: Clock,
}

/// The lock-protected part of a timeline.
#[derive(Debug)]
pub struct MarkerLog<E> {
    id: TimelineId,
    clock: Clock,
    published: VecDeque<Marker<E>>,
}

impl<E: Clone> MarkerLog<E> {
    /// A stream with no work yet.
    pub fn new(id: TimelineId) -> MarkerLog<E> {
        MarkerLog { id, clock: Clock::EMPTY, published: VecDeque::new() }
    }

    /// `K_t`.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Publishes a recorded marker (the last step of O8). One that failed to record is never published and its number
    /// covers nothing.
    ///
    /// # Panics
    /// When the number was published before.
    pub fn publish(&mut self, marker: Marker<E>) {
        let at = self.published.partition_point(|m| m.number < marker.number);
        assert!(
            self.published.get(at).is_none_or(|m| m.number != marker.number),
            "O8: marker {:?} of {:?} published twice",
            marker.number,
            self.id
        );
        self.published.insert(at, marker);
    }

    /// The oldest published marker that covers `epoch`: waiting for it waits for the least work.
    pub fn covering(&self, epoch: Epoch) -> Option<&Marker<E>> {
        let at = self.published.partition_point(|m| m.number < epoch);
        self.published.get(laws::covering(at))
    }

    /// A wait on a marker of `on` returned: joins its number and the clock that it carries (O8). Never called before
    /// the wait has returned.
    pub fn waited(&mut self, on: TimelineId, marker: &Marker<E>) {
        if on != self.id {
            self.clock.raise(on, marker.number);
        }
        self.clock.join(&marker.copy, self.id);
    }

    /// Published markers above `seen`, oldest first.
    pub fn above(&self, seen: Epoch) -> impl DoubleEndedIterator<Item = &Marker<E>> + ExactSizeIterator {
        let at = self.published.partition_point(|m| m.number <= seen);
        self.published.range(at..)
    }

    /// The marker to query next, in a search for the newest complete one: what is at or below `done` is known to be complete,
    /// what is at or above `open` is not. The newest first, because if that is complete one query was enough; of a stream
    /// that was `behind` at its last query the oldest first, because if that is not complete one query was enough
    /// too. Then the middle of what is left.
    pub fn probe(&self, done: Epoch, open: Option<Epoch>, behind: bool) -> Option<&Marker<E>> {
        let from = self.published.partition_point(|m| m.number <= done);
        let to =
            open.map_or(self.published.len(), |open| self.published.partition_point(|m| m.number < open));
        if from >= to {
            return None;
        }
        let at = match open {
            None if behind => from,
            None => to - 1,
            Some(_) => usize::midpoint(from, to),
        };
        self.published.get(at)
    }

    /// Removes markers, evenly among all but the `newest` ones, until there are at most twice as many. A wait for an
    /// epoch that a removed marker covered waits for a later marker, which covers it too: for a little more work, and never for
    /// less. The newest marker always stays.
    pub fn thin(&mut self, newest: usize) -> Vec<Marker<E>> {
        let newest = newest.max(1);
        let mut out = Vec::new();
        while self.published.len() > 2 * newest {
            // Every second one of the older.
            let old = self.published.len() - newest;
            let mut kept = VecDeque::with_capacity(2 * newest);
            for (i, marker) in self.published.drain(..).enumerate() {
                if i < old && i % 2 == 0 {
                    out.push(marker);
                } else {
                    kept.push_back(marker);
                }
            }
            self.published = kept;
            if !cost::thins_on() {
                break;
            }
        }
        out
    }

    /// Removes the marker of this number, whose event turned out to be recorded behind nothing: waits for what it covered use
    /// the next marker. `None`: it was already gone.
    pub fn take_out(&mut self, number: Epoch) -> Option<Marker<E>> {
        let at = self.published.partition_point(|m| m.number < number);
        self.published.get(at).filter(|m| m.number == number)?;
        self.published.remove(at)
    }

    /// Removes the markers up to `seen`, which are complete and will not be waited for again.
    pub fn retire(&mut self, seen: Epoch) -> impl Iterator<Item = Marker<E>> + '_ {
        let n = self.published.partition_point(|m| laws::may_retire(m.number, seen));
        self.published.drain(..n)
    }

    /// The newest published number; 0 if none.
    pub fn newest(&self) -> Epoch {
        self.published.back().map_or(Epoch(0), |m| m.number)
    }

    /// Mutable `K_t`, to drop what is complete.
    pub fn clock_mut(&mut self) -> &mut Clock {
        &mut self.clock
    }
}
