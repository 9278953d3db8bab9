//! A driver that fails from some call on, for a while or for ever, and what a program does meanwhile: it queues no work of its own, its calls
//! may fail in any way except a panic, and a free that returned OK has freed. If the driver recovers, everything is judged as usual again. A lost
//! context does not recover; then the allocators' figures must still agree with the model.

use super::{Here, World};
use crate::driver;
use crate::program::{CODES, Fault, STICKY, Verb};
use std::sync::atomic::Ordering;

/// Whether a call may fail: one of its driver calls fails, or all do.
pub(super) fn may_fail(fault: Fault) -> bool {
    fault > 0 || driver::is_broken()
}

impl World {
    /// From the `nth` next driver call on, all return a code.
    pub(super) fn breaks(&mut self, which: u8, nth: u8) {
        let code = match which {
            0..64 => STICKY[usize::from(which) % STICKY.len()],
            _ => CODES[usize::from(which) % CODES.len()],
        };
        // Threads that run at once make each step several times; only one of these times breaks the driver.
        let concurrent = self.concurrent.clone();
        if concurrent
            .as_ref()
            .is_some_and(|concurrent| concurrent.breaks.fetch_add(1, Ordering::Relaxed) != nth % 4)
        {
            return;
        }
        // A capture that cannot be ended would stay until the program's end: during a capture only a code that loses the context is used.
        let others = concurrent.as_ref().map(|m| m.captures.read().expect("no thread panicked"));
        let captures = !self.captures.is_empty() || others.is_some_and(|n| *n > 0);
        if driver::is_broken() || captures && !STICKY.contains(&code) {
            return;
        }
        say!(self, "// from the {nth}th driver call on: {code}");
        self.struck = true;
        driver::breaks(nth.into(), code);
    }

    /// The driver recovers, if it can.
    pub(super) fn mends(&mut self) {
        if driver::is_broken() && !driver::is_lost() {
            say!(self, "// the driver works again");
            driver::mends();
        }
    }

    /// Tries once to free everything: what cannot be freed stays.
    pub(super) fn free_what_can_be(&mut self, here: Here) {
        for x in (0..self.blocks.len()).rev() {
            let verb = [Verb::Free, Verb::FreeOn, Verb::FreeAfter][x % 3];
            self.free(x, verb, (x as u8).wrapping_mul(37), 0, here);
        }
        for x in (0..self.pinned.len()).rev() {
            self.free_pinned(x, Verb::PinFree, 0, here);
        }
    }

    /// Checks that each allocator's figures of live memory agree with the model.
    pub(super) fn live_figures_agree(&self) {
        for (d, door, stats) in self.reports() {
            let pinned = self.pinned.iter().filter(|p| p.door == d).count() as u64;
            let found = ((stats.total("live"), stats.total("requested")), stats.pinned("live"));
            if self.concurrent.is_some() && door.torch {
                // Other threads may have carried out frees that were put off.
                let waits = self.later.iter().filter(|b| b.door == d).count() as u64;
                let (most, live) = (self.live_of(d).0, stats.total("live"));
                assert!((most - waits..=most).contains(&live), "a{}: {stats}", door.number);
                continue;
            }
            assert_eq!(found, (self.live_of(d), pinned), "a{}: {stats}", door.number);
        }
    }
}
