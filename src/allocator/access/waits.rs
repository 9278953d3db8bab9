//! The waits that order a stream behind several uses: one wait may make the next one unnecessary.
//!
//! This file does not know whose uses they are.

use super::super::events::SharedEvent;
use super::super::registry::{CONTEXT, Registry, StreamTimeline};
use crate::driver::{Driver, DriverResult};
use crate::error::DriverErrorKind;
use crate::laws;
use crate::order::{Marker, Pending, PendingSet, is_ordered};
use core::time::Duration;
use smallvec::SmallVec;

/// How many missing uses a marker's clock is compared with, to order the waits.
const COMPARED: usize = 64;

impl<D: Driver> Registry<D> {
    /// Orders later work on `to` after all of `pending`, and skips the waits that earlier ones made unnecessary.
    ///
    /// Whether a wait can be skipped is decided against the clock of `to`, which only waits that have returned raise. A marker
    /// that was not waited for makes no other wait unnecessary: two markers can each carry a clock that covers the other's use,
    /// because another thread may order the two streams both ways between the making of the one and of the other, and then
    /// neither wait would be made. Nor is such cover transitive: of two markers of one stream the later one may be published
    /// first.
    pub(super) fn order_after_all(
        &self,
        driver: &D,
        to: &StreamTimeline<D>,
        pending: &[Pending],
    ) -> DriverResult<()> {
        let missing: PendingSet = {
            let clock = to.clock();
            let seen = self.seen();
            pending.iter().copied().filter(|&p| !is_ordered(to.id, &clock, &seen, p)).collect()
        };
        match missing[..] {
            [] => return Ok(()),
            [one] if one.on != CONTEXT => return self.insert_wait(driver, to, one, Duration::MAX).map(drop),
            _ => {}
        }
        let mut markers = SmallVec::<[_; 2]>::new();
        for &p in &missing {
            if let Some(from) = self.timeline(p.on)
                && let Some(marker) = self.marker_or_wait(driver, &from, p)?
            {
                markers.push((p, marker));
            }
        }
        // A marker that covers most of the other uses comes first: its wait may make their waits unnecessary. The order decides how many
        // waits are made, never whether one is missing, so only some of many are compared.
        markers.sort_by_cached_key(|(_, marker)| {
            missing.iter().take(COMPARED).filter(|p| marker.copy.get(p.on) < p.epoch).count()
        });
        let covers = |i: usize, j: usize| markers[i].1.copy.get(markers[j].0.on) >= markers[j].0.epoch;
        for (i, (p, marker)) in markers.iter().enumerate() {
            if !laws::is_left_to_another(i, markers.len(), covers)
                && !is_ordered(to.id, &to.clock(), &self.seen(), *p)
            {
                match (self.wait_for(driver, to, p.on, marker), self.timeline(p.on)) {
                    (Err(e), Some(from)) if self.is_captured(&from, marker, &e) => {
                        self.insert_wait(driver, to, *p, Duration::MAX)?;
                    }
                    (waited, _) => waited?,
                }
            }
        }
        Ok(())
    }

    /// The marker to wait for. `None` if it is complete, because the host waited where the driver has no context-wide markers.
    pub(super) fn marker_or_wait(
        &self,
        driver: &D,
        from: &StreamTimeline<D>,
        p: Pending,
    ) -> DriverResult<Option<Marker<SharedEvent<D>>>> {
        match self.marker_for(driver, from, p.epoch, Duration::MAX) {
            Err(e) if p.on == CONTEXT && e.kind == DriverErrorKind::NotSupported => {
                self.wait_host(driver, p, Duration::MAX).map(|_| None)
            }
            marker => marker,
        }
    }
}
