//! The functions for tests: they set the devices up, plant faults, and return the oracle's verdict.
//!
//! These functions are not the driver's; a test finds them in the loaded library by name. Calls of them are not counted. Texts
//! that they return stay valid until the same function is called again. They do not know what programs do.

use crate::entry::{Code, clear_here, is_sticky, plant_before_here, plant_here, struck_here};
use crate::raw::Text;
use crate::state::{State, state, stream};
use millpond_sim::{Call, Schedule};
use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int, c_uint};
use std::ptr;
use std::sync::{Mutex, PoisonError};

/// The texts that were returned last, kept alive.
static ANSWERS: Mutex<[Option<CString>; 4]> = Mutex::new([const { None }; 4]);

/// Keeps a text and returns a pointer to it; null for no text.
fn answer(slot: usize, text: Option<String>) -> *const c_char {
    let text = text.map(|t| CString::new(t.replace('\0', " ")).unwrap_or_default());
    let mut answers = ANSWERS.lock().unwrap_or_else(PoisonError::into_inner);
    answers[slot] = text;
    answers[slot].as_ref().map_or(ptr::null(), |t| t.as_ptr())
}

thread_local! {
    /// The same for texts that belong to one thread.
    static ANSWER_HERE: RefCell<CString> = RefCell::new(CString::default());
}

/// Functions for tests.
macro_rules! control_calls {
    ($($(#[$meta:meta])* fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? $body:block)*) => {$(
        $(#[$meta])*
        #[allow(unsafe_code, reason = "a name that tests find; there is one of each")]
        #[unsafe(no_mangle)]
        pub extern "C" fn $name($($arg: $ty),*) $(-> $ret)? $body
    )*};
}

control_calls! {
    /// Starts again with fresh devices: everything that programs had is forgotten. `schedule` is 0 for work that runs at
    /// once, 1 for as late as legal, 2 for random with this seed. There may be no device.
    fn millpond_fake_reset(capacity: u64, devices: c_uint, schedule: c_uint, seed: u64) {
        let schedule = match schedule {
            0 => Schedule::Earliest,
            1 => Schedule::Latest,
            _ => Schedule::Random(seed),
        };
        let mut fresh = State::new(capacity, devices.min(64), schedule);
        let mut state = state();
        // A process initialises its driver once.
        fresh.initialised = state.initialised;
        let old = std::mem::replace(&mut *state, fresh);
        drop(state);
        crate::host::forget(&old);
    }
    /// Runs the queued work that can run, and returns the oracle's verdict: null if there is no violation.
    fn millpond_fake_verdict() -> *const c_char {
        crate::spin::poll();
        let sims = state().sims.clone();
        let judged = sims.first().and_then(|sim| sim.verdict().err());
        answer(0, judged.map(|v| v.to_string()))
    }
    /// What programs have not given back, one line each; null if there is nothing.
    fn millpond_fake_leaks() -> *const c_char {
        let found = state().leaks();
        answer(1, (!found.is_empty()).then(|| found.join("\n")))
    }
    /// The reason of the last failed call, as text; null if none failed.
    fn millpond_fake_last_refusal() -> *const c_char {
        let last = state().last_refusal.clone();
        answer(2, last)
    }
    /// How often a function was called since the reset, failed calls included; all functions if the name is null.
    fn millpond_fake_calls(name: Text) -> u64 {
        let state = state();
        name.get().map_or_else(|_| state.log.total(), |n| state.log.of(&n))
    }
    /// The name of the call with this number, from 1; null if there is none yet. The first million names are kept.
    fn millpond_fake_call_name(number: u64) -> *const c_char {
        let name = state().log.name(number);
        answer(3, name.map(str::to_owned))
    }
    /// The call with this number since the reset, from 1, fails with a code. A sticky code loses the context.
    fn millpond_fake_fail_call(number: u64, code: Code) {
        state().faults.plant_number(number, code);
    }
    /// The call with this number since the reset, from 1, fails with a code, and so does every later call of any function, until
    /// planted faults are removed.
    fn millpond_fake_fail_from(number: u64, code: Code) {
        state().faults.plant_from(number, code);
    }
    /// The `nth` call of a function from now on fails; 1 is the next.
    fn millpond_fake_fail_next(name: Text, nth: u64, code: Code) {
        if let Ok(name) = name.get() {
            state().faults.plant_name(name, nth, code);
        }
    }
    /// The `nth` call of the calling thread from now on fails, of any function; 1 is the next, and 0 removes the fault. There is
    /// one such fault at a time.
    fn millpond_fake_fail_here(nth: u64, code: Code) {
        plant_here(Vec::new(), nth, code);
    }
    /// The same for calls of these functions only, whose names are separated by commas.
    fn millpond_fake_fail_here_of(names: Text, nth: u64, code: Code) {
        if let Ok(names) = names.get() {
            plant_here(names.split(',').map(str::to_owned).collect(), nth, code);
        }
    }
    /// From now on until the reset faults of a thread do not strike calls of this function, on any thread.
    fn millpond_fake_exempt_here(name: Text) {
        if let Ok(name) = name.get() {
            state().exempt_here.push(name);
        }
    }
    /// The name of the call that the calling thread's last fault struck; null if it has not struck.
    fn millpond_fake_struck_here() -> *const c_char {
        let Some(name) = struck_here() else { return ptr::null() };
        let name = CString::new(name).unwrap_or_default();
        ANSWER_HERE.with_borrow_mut(|answer| {
            *answer = name;
            answer.as_ptr()
        })
    }
    /// How often planted faults of any kind struck a function since the reset.
    fn millpond_fake_struck(name: Text) -> u64 {
        name.get().map_or(0, |name| state().log.struck_of(&name))
    }
    /// This many of the next queries return "not ready", even if the work is complete.
    fn millpond_fake_not_ready(times: c_uint) {
        state().faults.not_ready = times;
    }
    /// This many of the next ranges of plain and of pinned memory begin 256 bytes after a multiple of 512.
    fn millpond_fake_askew(times: c_uint) {
        state().faults.askew = times;
    }
    /// After how many "not ready" results in a row the device completes the queried work by itself: 16 by default.
    fn millpond_fake_patience(times: c_uint) {
        state().patience = times.max(1);
    }
    /// The context is lost with a sticky code (any other counts as 700): every later call returns it.
    fn millpond_fake_lose_context(code: Code) {
        state().lost = Some(if is_sticky(code) { code } else { 700 });
    }
    /// The code with which the context is lost; 0 if it is not.
    fn millpond_fake_lost() -> Code {
        state().lost.unwrap_or(0)
    }
    /// The driver is shut down, as it is when a process ends: until the next reset every call of any function returns 4.
    fn millpond_fake_shut_down() {
        state().shut_down = true;
    }
    /// Sets the value that every device returns for an attribute, until the next reset.
    fn millpond_fake_attribute(attribute: c_uint, value: c_int) {
        state().attributes.insert(attribute, value);
    }
    /// A capture begins on a stream of the current context right after the `nth` check from now on whether some stream
    /// captures, as another thread may begin one; 1 is the next.
    fn millpond_fake_capture_behind(nth: u64, value: u64) {
        if let Ok((sim, _, on)) = stream(value) {
            let _ = sim.capture_behind(Call::StreamIsCapturing, nth.max(1), &on);
        }
    }
    /// A global capture begins on a stream of the current context right before the `nth` call of this kind from now on, `cuEventRecord` or
    /// `cuCtxRecordEvent`, and ends right after it, as another thread's may; 1 is the next.
    fn millpond_fake_capture_around(name: Text, nth: u64, value: u64) {
        let call = match name.get().as_deref() {
            Ok("cuEventRecord") => Call::EventRecord,
            Ok("cuCtxRecordEvent") => Call::CtxRecordEvent,
            _ => return,
        };
        if let Ok((sim, _, on)) = stream(value) {
            let _ = sim.capture_around(call, nth.max(1), &on);
        }
    }
    /// Runs a function of the test before the next call of this name by the calling thread, whatever code makes that call.
    fn millpond_fake_before_here(name: Text, what: extern "C" fn()) {
        plant_before_here(name.get().unwrap_or_default(), what);
    }
    /// How many captures around a call were destroyed by it since the reset.
    fn millpond_fake_captures_destroyed() -> u64 {
        let sims = state().sims.clone();
        sims.first().map_or(0, millpond_sim::Sim::captures_destroyed)
    }
    /// Removes planted faults (of the faults of threads only the calling one's) and captures that have not begun; a lost context stays lost.
    fn millpond_fake_clear_faults() {
        clear_here();
        state().faults = crate::state::Faults::default();
        let sims = state().sims.clone();
        if let Some(sim) = sims.first() {
            sim.clear_faults();
        }
    }
    /// Sets the version that the driver returns.
    fn millpond_fake_driver_version(version: c_uint) {
        state().version = version;
    }
}
