//! Makes one call, with a fault or without, and judges its result: which codes it may return, and that a call with another code than OK has
//! changed nothing.

use super::World;
use super::breaks::may_fail;
use crate::driver;
use crate::model::{Block, Stats, last};
use crate::program::{Fault, parts};
use millpond_plug::status::MillpondStatus as Status;
use std::ffi::CStr;

/// Driver calls with which a destructor gives something back: if one fails, that stays. Memory is not among it: the next allocator's end gives it back.
const KEPT: &[&CStr] =
    &[c"cuModuleUnload", c"cuStreamDestroy_v2", c"cuEventDestroy_v2", c"cuDevicePrimaryCtxRelease_v2"];

/// Driver calls that wait for the device or a stream: no free, recorded use or release makes one, whether the allocator has ended or not.
const WAITING: [&CStr; 3] = [c"cuCtxSynchronize", c"cuStreamSynchronize", c"cuEventSynchronize"];
/// Driver calls that give memory back, in which the driver may wait: of the functions above only a release makes them.
const GIVING: [&CStr; 3] = [c"cuMemFree_v2", c"cuMemFreeHost", c"cuMemHostUnregister"];

/// A steady program checks everything after one in so many calls, a prime so that each call of a round has its turn: every round makes the
/// same calls, and reports took nine tenths of its time.
const STEADY_LOOKS: u64 = 31;

/// The counts of the driver calls that this call must not make; `None` if it may make any. A release that overwrites memory before it goes back waits for
/// that, on an internal stream.
fn waits(words: &str, scrubs: bool) -> Option<Vec<u64>> {
    const WAIT_FOR_NOTHING: [&str; 4] =
        ["millpond_free", "millpond_torch_free", "millpond_record_", "millpond_torch_record_"];
    let releases = words.starts_with("millpond_release");
    let gives = (!releases).then_some(GIVING).into_iter().flatten();
    if releases && scrubs {
        return Some(vec![driver::calls(WAITING[0].as_ptr()), driver::calls(WAITING[2].as_ptr())]);
    }
    (releases || WAIT_FOR_NOTHING.iter().any(|call| words.starts_with(call)))
        .then(|| WAITING.into_iter().chain(gives).map(|name| driver::calls(name.as_ptr())).collect())
}

impl World {
    /// Makes the `fault`th driver call of this thread from here on fail.
    pub(crate) fn arm_here(fault: Fault) {
        let (nth, code) = parts(fault);
        if nth > 0 {
            driver::is_planted(code);
            driver::fail_here(nth, code);
        }
    }

    /// Removes that fault. Returns the name of the driver call that it struck, or an empty text.
    fn disarm_here(&mut self, fault: Fault) -> String {
        if fault == 0 {
            return String::new();
        }
        let struck = driver::words(driver::struck_here());
        driver::fail_here(0, 0);
        driver::is_over(parts(fault).1);
        self.has_struck(&struck);
        struck
    }

    fn has_struck(&mut self, call: &str) {
        self.struck |= !call.is_empty();
        self.capture_guard_failed(call);
    }

    /// Whether a driver call has failed that was to give something back.
    pub(crate) fn has_kept() -> bool {
        driver::struck(KEPT) > 0
    }

    /// Makes the `fault`th driver call from here on fail, on any thread. Returns its number.
    pub(crate) fn arm(fault: Fault) -> u64 {
        let (nth, code) = parts(fault);
        let number = driver::calls(std::ptr::null()) + nth;
        if nth > 0 {
            driver::is_planted(code);
            driver::fail_call(number, code);
        }
        number
    }

    /// Removes the fault. Returns the name of the driver call that it struck, or an empty text.
    pub(crate) fn disarm(&mut self, fault: Fault, number: u64) -> String {
        if fault == 0 {
            return String::new();
        }
        driver::clear_faults();
        driver::is_over(parts(fault).1);
        if driver::calls(std::ptr::null()) < number {
            return String::new();
        }
        let struck = driver::words(driver::call_name(number));
        self.has_struck(&struck);
        struck
    }

    /// Makes one call, of which the `fault`th driver call fails.
    pub(super) fn call(&mut self, fault: Fault, words: &str, call: impl FnOnce() -> Status) -> Status {
        say!(self, "{words};");
        // Not if other threads call meanwhile, nor in a soak, which counts these calls itself in each round.
        let looks = !self.steady && self.concurrent.is_none();
        let scrubs = self.ending.is_some_and(|door| self.doors[door].scrubs);
        let waits = || if looks { waits(words, scrubs) } else { None };
        let before = waits();
        let seen = self.seen();
        World::arm_here(fault);
        let status = crate::inside(call);
        let struck = self.disarm_here(fault);
        self.drop_freed();
        assert_eq!(waits(), before, "{words} makes a driver call that may wait: {WAITING:?}, {GIVING:?}");
        if status != Status::Ok || !struck.is_empty() {
            say!(self, "    // {status:?} {}{struck}", if struck.is_empty() { "" } else { "in a failing " });
        }
        if status != Status::Ok {
            assert!(!matches!(status, Status::Panic | Status::Forked), "{words}: {status:?}: {}", last());
            let recorded = |b: &Block| b.elsewhere.len() + usize::from(b.unsure);
            let elsewhere = self.blocks.iter().map(recorded).max().unwrap_or(0);
            World::is_as_it_was(&seen, words, fault, elsewhere);
            self.nothing_has_changed(words, fault);
        }
        status
    }

    /// A call that must return this code; with a fault, it may fail with any code.
    pub(super) fn must(
        &mut self,
        fault: Fault,
        expected: Status,
        words: &str,
        call: impl FnOnce() -> Status,
    ) -> bool {
        self.may(fault, &[expected], words, call)
    }

    /// The same for several codes.
    pub(super) fn may(
        &mut self,
        fault: Fault,
        expected: &[Status],
        words: &str,
        call: impl FnOnce() -> Status,
    ) -> bool {
        let status = self.call(fault, words, call);
        assert!(
            expected.contains(&status)
                || may_fail(fault) && status != Status::Ok
                || status == Status::UnknownAllocator && self.names_one_that_ends(words),
            "{words}: {status:?} instead of {expected:?}: {}",
            last()
        );
        status == Status::Ok
    }

    /// The allocator that a call names, as in `millpond_trim(a3, NULL)`.
    fn door_named(&self, words: &str) -> Option<usize> {
        let rest = words.split_once("(a").map_or("", |(_, rest)| rest);
        let digits = rest.split(|c: char| !c.is_ascii_digit()).next().unwrap_or_default();
        self.doors.iter().position(|d| digits.parse() == Ok(d.number))
    }

    /// Whether another thread is ending the allocator that a call names.
    fn names_one_that_ends(&self, words: &str) -> bool {
        self.door_named(words).is_some_and(|door| self.is_ending(door))
    }

    /// Checks that every allocator has what the model has. If other threads change it meanwhile, it has at least what this thread has.
    fn nothing_has_changed(&mut self, words: &str, fault: Fault) {
        let message = last();
        if self.concurrent.is_some() {
            self.nothing_of_ours_has_changed(words, fault);
            assert!(!message.is_empty(), "{words} failed without a message");
            return;
        }
        if !self.looks() {
            assert!(!message.is_empty(), "{words} failed without a message");
            return;
        }
        for (d, door, stats) in self.reports() {
            let (live, asked) = self.live_of(d);
            assert_eq!(
                (stats.total("live"), stats.total("requested")),
                (live, asked),
                "after {words}: {stats}"
            );
            let pinned = self.pinned.iter().filter(|p| p.door == d).count() as u64;
            assert_eq!(stats.pinned("live"), pinned, "pinned, after {words}: {stats}");
            assert_eq!(stats.limit(), door.limit, "after {words}");
        }
        self.blocks.iter().for_each(|block| self.look(block, 0));
        assert!(!message.is_empty(), "{words} failed without a message");
    }

    /// Whether to check everything after this call.
    pub(super) fn looks(&mut self) -> bool {
        self.looks += 1;
        !self.steady || self.looks.is_multiple_of(STEADY_LOOKS)
    }

    fn nothing_of_ours_has_changed(&self, words: &str, fault: Fault) {
        // Calls of threads that run at once fail about as often as they have blocks: thousands of times. A lookup of a block goes through all of them, as a
        // report does; both release every pool's lock fairly, which costs this thread its turn on a loaded machine. So only what the call names is checked.
        let of_call = self.door_named(words).filter(|_| fault > 0);
        if let Some(d) = of_call {
            let door = &self.doors[d];
            let stats = Stats::of(door.number);
            // Another thread may have carried out by now a free that this call or an earlier one has put off.
            let ours = || self.blocks.iter().filter(|b| b.door == d && self.freeing != Some(b.at));
            let (live, asked) = (ours().count() as u64, ours().map(|b| b.bytes as u64).sum());
            let has = |name| stats.total(name);
            assert!(
                has("live") >= live && has("requested") >= asked,
                "{live}, {asked} after {words}: {stats}"
            );
            let pinned = self.pinned.iter().filter(|p| p.door == d).count() as u64;
            assert!(stats.pinned("live") >= pinned, "{pinned} pinned, after {words}: {stats}");
            assert_eq!(stats.limit(), door.limit, "after {words}");
        }
        let named = |b: &&Block| {
            words.split(|c: char| !c.is_ascii_alphanumeric()).any(|w| w == format!("p{}", b.name))
        };
        let latest = self.blocks.iter().rev().take(2);
        self.blocks.iter().find(named).into_iter().chain(latest).for_each(|block| self.look(block, 0));
    }
}
