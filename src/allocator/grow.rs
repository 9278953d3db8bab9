//! Rungs 3, 6 and 7: memory from the device, within the limit.
//!
//! Room is claimed, the driver asked with no lock held but the grower's turn, and the segment committed *and* taken from
//! in one hold of the pool's lock: otherwise another thread of the same stream takes what this one brought and this one
//! grows again. Sizes are tried from the planned one down to the exact request, because a limit or a full card may
//! still have room for that.

use super::entry::Range;
use super::ladder::Step;
use super::miss::Miss;
use super::undo::Undo;
use crate::driver::Driver;
use crate::laws::cost;
use crate::sync::assert_unlocked;
use crate::trace::Event;
use crate::units::Granules;

impl<D: Driver> Miss<'_, D> {
    /// Grows within the limit; with `slack`, only as far as 1 % above the highest live bytes, this request included.
    pub(crate) fn grow(&mut self, slack: bool) -> Step {
        // One grower at a time; who waited looks again, for what the other brought.
        let _turn = self.pool.grower.lock();
        if let Some(handed) = self.again() {
            return Ok(Some(handed));
        }
        let max = if slack {
            let peak = self.core.peak_with(self.want.len.bytes());
            peak.saturating_add(peak / 100)
        } else {
            u64::MAX
        };
        // A segment is aligned as the driver aligns it: an aligned request may have to skip a front.
        let Some(needed) = Granules::exactly(self.want.bytes_anywhere()) else { return Ok(None) };
        // What another rung was refused says nothing about smaller sizes.
        let before = self.refusal.take();
        for len in self.core.config.growth_sizes(needed, self.want.kind) {
            if let Some(handed) = self.grow_by(len, max)? {
                return Ok(Some(handed));
            }
            if self.refusal.as_ref().is_some_and(|e| !e.is_out_of_memory()) {
                break;
            }
        }
        self.refusal = self.refusal.take().or(before);
        Ok(None)
    }

    fn grow_by(&mut self, len: Granules, max: u64) -> Step {
        let core = self.core;
        let claimed = {
            let mut backing = core.backing.lock();
            backing.claim(len, max).then(|| self.transit())
        };
        // A claim is memory in hand: the driver may refuse it, and then there is room for others.
        let Some(_transit) = claimed else { return Ok(None) };
        assert_unlocked("memory is taken from the device");
        let unclaim = Undo::new(|| core.backing.lock().unclaim(len));
        let asked = core.registry.watch(core.driver.relaxed(|| core.driver.allocate(len.bytes())));
        unclaim.forget();
        let range = match asked {
            Ok(range) => range,
            Err(e) => {
                if cost::unclaims() {
                    core.backing.lock().unclaim(len);
                }
                return self.refused(e);
            }
        };
        let base = range.addr();
        let segment = core.backing.lock().add(range, len.bytes());
        let whole =
            Range { segment, base, segment_len: len, kind: self.want.kind, offset: Granules::ZERO, len };
        let mut guard = self.pool.lock();
        let state = &mut *guard;
        // Fresh from the device: nothing is pending, stamp 0.
        let entered = self.pool.enter(state, &whole, &[]);
        let Some(chunk) = entered else { panic!("closing: {:?} grows while closed", self.pool) };
        let taken =
            state.take_brought(&self.want, self.requested, chunk).expect("a new segment holds the request");
        if core.is_recording() {
            // Before others can take from the segment and tell of it.
            core.record(Event::Grow { addr: base, bytes: len.bytes(), stream: self.pool.timeline.info.id });
        }
        drop(guard);
        core.cut_peaks_when_due();
        Ok(Some(taken))
    }

    /// Rung 7, only where a free does not wait for the device: idle segments go back if that can make room, then growth.
    pub(crate) fn trim_and_grow(&mut self) -> Step {
        if self.core.config.reuse == super::config::Reuse::Never
            && self.core.backing.lock().segments.is_empty()
        {
            return Ok(None);
        }
        // In slices: enough is enough, what is kept serves later. Growth needs what an alignment may skip, too.
        let freed = match self.core.trim_segments(None, self.want.bytes_anywhere(), self.own) {
            Ok(freed) => freed,
            Err(e) => return self.refused(e),
        };
        if freed.bytes == 0 { Ok(None) } else { self.grow(false) }
    }
}
