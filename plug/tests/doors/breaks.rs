//! A driver that fails from some call on, for a while or for ever, and what a program does beside that: it has nothing of its own
//! run, its calls may fail in any way but by a panic, and what was freed is what it was told to be. Where the driver gets well all is
//! judged as ever; a lost context does not, and then what there is still is what the books say.

use super::{Here, World};
use crate::driver;
use crate::program::{CODES, Fault, STICKY, Verb};
use std::sync::atomic::Ordering;

/// Whether a call may fail: a driver call of it does, or all do.
pub(super) fn may_fail(fault: Fault) -> bool {
    fault > 0 || driver::is_broken()
}

impl World {
    /// From the `nth` next driver call on all answer a code.
    pub(super) fn breaks(&mut self, which: u8, nth: u8) {
        let code = match which {
            0..64 => STICKY[usize::from(which) % STICKY.len()],
            _ => CODES[usize::from(which) % CODES.len()],
        };
        // Threads at once make each step several times; some of them before.
        let mail = self.mail.clone();
        if mail.as_ref().is_some_and(|mail| mail.breaks.fetch_add(1, Ordering::Relaxed) != nth % 4) {
            return;
        }
        // A capture that nobody can end would stay to the program's end: beside one the context is lost, or nothing is.
        let others = mail.as_ref().map(|m| m.captures.read().expect("nothing went wrong"));
        let captures = !self.captures.is_empty() || others.is_some_and(|n| *n > 0);
        if driver::is_broken() || captures && !STICKY.contains(&code) {
            return;
        }
        say!(self, "// from the {nth}th driver call on: {code}");
        self.struck = true;
        driver::breaks(nth.into(), code);
    }

    /// The driver gets well, if it can.
    pub(super) fn mends(&mut self) {
        if driver::is_broken() && !driver::is_lost() {
            say!(self, "// the driver is well again");
            driver::mends();
        }
    }

    /// All that there is, once: what cannot be freed stays.
    pub(super) fn free_what_can_be(&mut self, here: Here) {
        for x in (0..self.blocks.len()).rev() {
            let verb = [Verb::Free, Verb::FreeOn, Verb::FreeAfter][x % 3];
            self.free(x, verb, (x as u8).wrapping_mul(37), 0, here);
        }
        for x in (0..self.pinned.len()).rev() {
            self.free_pinned(x, Verb::PinFree, 0, here);
        }
    }

    /// What is alive of each allocator, its own books and the program's.
    pub(super) fn books_agree(&self) {
        for (d, door, stats) in self.reports() {
            let pinned = self.pinned.iter().filter(|p| p.door == d).count() as u64;
            let found = ((stats.total("live"), stats.total("requested")), stats.pinned("live"));
            if self.mail.is_some() && door.torch {
                // Other threads may have freed what had to wait.
                let waits = self.later.iter().filter(|b| b.door == d).count() as u64;
                let (most, live) = (self.live_of(d).0, stats.total("live"));
                assert!((most - waits..=most).contains(&live), "a{}: {stats}", door.number);
                continue;
            }
            assert_eq!(found, (self.live_of(d), pinned), "a{}: {stats}", door.number);
        }
    }
}
