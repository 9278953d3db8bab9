//! Makes one call, with a fault or without, and judges its answer: what codes it may answer, and that a code other than OK has
//! changed nothing.

use super::World;
use super::breaks::may_fail;
use crate::driver;
use crate::model::{Block, Stats, last};
use crate::program::{Fault, parts};
use millpond_plug::status::MillpondStatus as Status;
use std::ffi::CStr;

/// Calls by which a destructor gives something back: where one fails, it stays. Memory is given back by the next allocator's end.
const KEPT: &[&CStr] =
    &[c"cuModuleUnload", c"cuStreamDestroy_v2", c"cuEventDestroy_v2", c"cuDevicePrimaryCtxRelease_v2"];

/// Calls that wait for the device or a stream: no free makes one, no use and no release, whether the allocator has ended or not.
const WAITING: [&CStr; 3] = [c"cuCtxSynchronize", c"cuStreamSynchronize", c"cuEventSynchronize"];
/// Calls that give memory back, in which the driver may wait: of those a release alone makes some.
const GIVING: [&CStr; 3] = [c"cuMemFree_v2", c"cuMemFreeHost", c"cuMemHostUnregister"];

/// A steady program looks at all that there is behind one in so many calls, prime so that each call of a round has its turn: it makes the
/// same ones in each, and reports were nine tenths of its time.
const STEADY_LOOKS: u64 = 31;

/// How often what this call may not do was done; none if it may do all. A release that overwrites what goes back waits for that, on a stream of its own.
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
    /// Has the `fault`th driver call of this thread from here fail.
    pub(crate) fn arm_here(fault: Fault) {
        let (nth, code) = parts(fault);
        if nth > 0 {
            driver::is_planted(code);
            driver::fail_here(nth, code);
        }
    }

    /// Takes that fault away: the name of the call that it struck, or nothing.
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
        self.deafened(call);
    }

    /// Whether something that failed was to give something back.
    pub(crate) fn has_kept() -> bool {
        driver::struck(KEPT) > 0
    }

    /// Has the `fault`th driver call from here fail, on whatever thread: its number.
    pub(crate) fn arm(fault: Fault) -> u64 {
        let (nth, code) = parts(fault);
        let number = driver::calls(std::ptr::null()) + nth;
        if nth > 0 {
            driver::is_planted(code);
            driver::fail_call(number, code);
        }
        number
    }

    /// Takes the fault away: the name of the call that it struck, or nothing.
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

    /// Makes one call, the `fault`th driver call of which fails.
    pub(super) fn call(&mut self, fault: Fault, words: &str, call: impl FnOnce() -> Status) -> Status {
        say!(self, "{words};");
        // Others call meanwhile, where there are some; and a soak counts by itself, round after round.
        let looks = !self.steady && self.mail.is_none();
        let scrubs = self.ending.is_some_and(|door| self.doors[door].scrubs);
        let waits = || if looks { waits(words, scrubs) } else { None };
        let before = waits();
        let seen = self.seen();
        World::arm_here(fault);
        let status = crate::inside(call);
        let struck = self.disarm_here(fault);
        self.settle();
        assert_eq!(waits(), before, "{words} calls what may wait: {WAITING:?}, {GIVING:?}");
        if status != Status::Ok || !struck.is_empty() {
            say!(self, "    // {status:?} {}{struck}", if struck.is_empty() { "" } else { "in a failing " });
        }
        if status != Status::Ok {
            assert!(!matches!(status, Status::Panic | Status::Forked), "{words}: {status:?}: {}", last());
            let told = |b: &Block| b.elsewhere.len() + usize::from(b.unsure);
            let elsewhere = self.blocks.iter().map(told).max().unwrap_or(0);
            World::is_as_it_was(&seen, words, fault, elsewhere);
            self.nothing_has_changed(words, fault);
        }
        status
    }

    /// A call that must answer this; with a fault, any failure will do.
    pub(super) fn must(
        &mut self,
        fault: Fault,
        expected: Status,
        words: &str,
        call: impl FnOnce() -> Status,
    ) -> bool {
        self.may(fault, &[expected], words, call)
    }

    /// The same of several answers.
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

    /// Whether that is being destroyed by another thread.
    fn names_one_that_ends(&self, words: &str) -> bool {
        self.door_named(words).is_some_and(|door| self.is_ending(door))
    }

    /// What every allocator has is what the model has. Others change it meanwhile, where there are some: then it has what this thread
    /// has, and more.
    fn nothing_has_changed(&mut self, words: &str, fault: Fault) {
        let told = last();
        if self.mail.is_some() {
            self.nothing_of_ours_has_changed(words, fault);
            assert!(!told.is_empty(), "{words} failed without a word");
            return;
        }
        if !self.looks() {
            assert!(!told.is_empty(), "{words} failed without a word");
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
        assert!(!told.is_empty(), "{words} failed without a word");
    }

    /// Whether to look at all that there is, behind this call.
    pub(super) fn looks(&mut self) -> bool {
        self.looks += 1;
        !self.steady || self.looks.is_multiple_of(STEADY_LOOKS)
    }

    fn nothing_of_ours_has_changed(&self, words: &str, fault: Fault) {
        // Threads at once are refused as often as they have blocks: thousands of times. And to look for a block goes through all, as a
        // report does; both give every pool's lock up fairly, which on a loaded machine is this thread's turn. So: of what the call names.
        let of_call = self.door_named(words).filter(|_| fault > 0);
        if let Some(d) = of_call {
            let door = &self.doors[d];
            let stats = Stats::of(door.number);
            // Another thread may have freed by now what this call or an earlier one has put off.
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
