//! The entry of every call that a program makes.
//!
//! A call is counted and logged. It is refused if the driver is not initialised, a context is lost, a fault was planted
//! or the thread is inside a host function; otherwise its body runs, and no panic unwinds into C. Its code is
//! returned, and the reason of a refusal is kept for [`control`](crate::control). This file does not know what calls do.

use crate::spin;
use crate::state::{State, state};
use millpond::DriverError;
use millpond::driver::Fences;
use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What the driver returns: 0 is success.
pub type Code = u32;

/// What a body returns.
pub(crate) type Outcome<T = ()> = Result<T, Fail>;

/// A refusal: its code, and the reason as text, which a real driver does not give.
#[derive(Debug)]
pub(crate) struct Fail {
    pub(crate) code: Code,
    pub(crate) why: Cow<'static, str>,
}

impl Fail {
    pub(crate) fn new(code: Code, why: impl Into<Cow<'static, str>>) -> Fail {
        Fail { code, why: why.into() }
    }
    pub(crate) fn invalid(why: impl Into<Cow<'static, str>>) -> Fail {
        Fail::new(INVALID_VALUE, why)
    }
    pub(crate) fn unsupported(why: impl Into<Cow<'static, str>>) -> Fail {
        Fail::new(NOT_SUPPORTED, why)
    }
}

impl From<DriverError> for Fail {
    fn from(e: DriverError) -> Fail {
        Fail::new(e.code, e.message)
    }
}

/// `CUDA_ERROR_INVALID_VALUE`
pub(crate) const INVALID_VALUE: Code = 1;
/// `CUDA_ERROR_OUT_OF_MEMORY`
pub(crate) const OUT_OF_MEMORY: Code = 2;
/// `CUDA_ERROR_NOT_INITIALIZED`
pub(crate) const NOT_INITIALIZED: Code = 3;
/// `CUDA_ERROR_DEINITIALIZED`
pub(crate) const DEINITIALIZED: Code = 4;
/// `CUDA_ERROR_NO_DEVICE`
pub(crate) const NO_DEVICE: Code = 100;
/// `CUDA_ERROR_INVALID_DEVICE`
pub(crate) const INVALID_DEVICE: Code = 101;
/// `CUDA_ERROR_INVALID_CONTEXT`
pub(crate) const INVALID_CONTEXT: Code = 201;
/// `CUDA_ERROR_INVALID_HANDLE`
pub(crate) const INVALID_HANDLE: Code = 400;
/// `CUDA_ERROR_NOT_FOUND`
pub(crate) const NOT_FOUND: Code = 500;
/// `CUDA_ERROR_NOT_READY`
pub(crate) const NOT_READY: Code = 600;
/// `CUDA_ERROR_CONTEXT_IS_DESTROYED`
pub(crate) const CONTEXT_IS_DESTROYED: Code = 709;
/// `CUDA_ERROR_NOT_PERMITTED`
pub(crate) const NOT_PERMITTED: Code = 800;
/// `CUDA_ERROR_NOT_SUPPORTED`
pub(crate) const NOT_SUPPORTED: Code = 801;
/// `CUDA_ERROR_UNKNOWN`
pub(crate) const UNKNOWN: Code = 999;

/// Codes after which nothing works again in the process.
pub(crate) fn is_sticky(code: Code) -> bool {
    matches!(code, 46 | 214 | 220 | 226 | 700 | 702 | 710 | 714..=719)
}

/// Calls that work before the driver is initialised.
const BEFORE_INIT: &[&str] = &["cuInit", "cuDriverGetVersion", "cuGetErrorName", "cuGetErrorString"];
/// Calls that only depend on the process and work although a context is lost.
const AFTER_LOSS: &[&str] = &[
    "cuInit",
    "cuDriverGetVersion",
    "cuGetErrorName",
    "cuGetErrorString",
    "cuDeviceGet",
    "cuDeviceGetCount",
    "cuDeviceGetName",
    "cuDeviceGetAttribute",
    "cuCtxGetCurrent",
    "cuCtxSetCurrent",
    "cuCtxPushCurrent_v2",
    "cuCtxPopCurrent_v2",
    "cuThreadExchangeStreamCaptureMode",
];

thread_local! {
    /// Whether this thread runs a host function, in which no driver call is permitted.
    static IN_HOST_FUNCTION: Cell<bool> = const { Cell::new(false) };
    /// This thread's capture mode: 0 global, 1 thread-local, 2 relaxed.
    static CAPTURE_MODE: Cell<u32> = const { Cell::new(0) };
    /// Which of this thread's next calls fails, 1 being the next, and with what code; 0 is none.
    static FAULT_HERE: Cell<(u64, Code)> = const { Cell::new((0, 0)) };
    /// The functions whose calls may fail; empty means all.
    static FAULTY_HERE: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
    /// What runs before this thread's next call of a function.
    static BEFORE_HERE: RefCell<Option<(String, extern "C" fn())>> = const { RefCell::new(None) };
    /// The call that this thread's fault struck.
    static STRUCK_HERE: Cell<Option<&'static str>> = const { Cell::new(None) };
}

/// Makes the `nth` call of this thread from now on fail, 1 being the next, of these functions or of all; 0 removes the fault.
pub(crate) fn plant_here(names: Vec<String>, nth: u64, code: Code) {
    FAULTY_HERE.set(names);
    FAULT_HERE.set((nth, code));
    STRUCK_HERE.set(None);
}

/// Removes this thread's fault; which call it struck stays known.
pub(crate) fn clear_here() {
    FAULT_HERE.set((0, 0));
}

/// Which call the fault of this thread struck, if it did.
pub(crate) fn struck_here() -> Option<&'static str> {
    STRUCK_HERE.get()
}

/// Runs `what` on the calling thread before its next call of a function.
pub(crate) fn plant_before_here(name: String, what: extern "C" fn()) {
    BEFORE_HERE.set(Some((name, what)));
}

fn run_before(name: &str) {
    // A destructor may call after the thread's own values were dropped.
    let due = BEFORE_HERE.try_with(|before| before.borrow_mut().take_if(|(of, _)| of == name));
    if let Ok(Some((_, what))) = due {
        what();
    }
}

fn strike_here(state: &State, name: &'static str) -> Option<Code> {
    let (left, code) = FAULT_HERE.get();
    if left == 0 || state.exempt_here.iter().any(|exempt| exempt == name) {
        return None;
    }
    if !FAULTY_HERE.with_borrow(|of| of.is_empty() || of.iter().any(|of| of == name)) {
        return None;
    }
    FAULT_HERE.set((left - 1, code));
    (left == 1).then(|| {
        STRUCK_HERE.set(Some(name));
        code
    })
}

/// Runs a host function: driver calls in it are refused.
pub(crate) fn host_function(function: impl FnOnce()) {
    let before = IN_HOST_FUNCTION.replace(true);
    function();
    IN_HOST_FUNCTION.set(before);
}

/// Changes this thread's capture mode and returns the old one.
pub(crate) fn exchange_capture_mode(mode: u32) -> u32 {
    CAPTURE_MODE.replace(mode)
}

/// Counts a call. Returns the reason why it is refused, if there is one.
fn refusal(state: &mut State, name: &'static str) -> Option<Fail> {
    let number = state.log.write(name);
    let planted = strike_here(state, name).or(state.faults.strike(name, number));
    if planted.is_some() {
        state.log.struck(name);
    }
    if state.shut_down {
        return Some(Fail::new(DEINITIALIZED, "the driver was shut down: the process is ending"));
    }
    if let Some(code) = state.lost
        && !AFTER_LOSS.contains(&name)
    {
        return Some(Fail::new(code, "the context is lost: nothing works again"));
    }
    if let Some(code) = planted {
        if is_sticky(code) {
            state.lost = Some(code);
        }
        return Some(Fail::new(code, "a planted fault"));
    }
    if !state.initialised && !BEFORE_INIT.contains(&name) {
        return Some(Fail::new(NOT_INITIALIZED, "cuInit was not called"));
    }
    None
}

/// One call of the driver.
pub(crate) fn enter(name: &'static str, body: impl FnOnce() -> Outcome) -> Code {
    run_before(name);
    let run = || {
        if IN_HOST_FUNCTION.get() {
            return Err(Fail::new(NOT_PERMITTED, "no driver call is permitted in a host function"));
        }
        if let Some(fail) = refusal(&mut state(), name) {
            return Err(fail);
        }
        spin::poll();
        if CAPTURE_MODE.get() == 2 {
            let any = state().sims.first().cloned();
            return match any {
                Some(sim) => sim.relaxed(body),
                None => body(),
            };
        }
        body()
    };
    let fail = match catch_unwind(AssertUnwindSafe(run)) {
        Ok(Ok(())) => return 0,
        Ok(Err(fail)) => fail,
        Err(_) => Fail::new(UNKNOWN, "a panic in the stand-in: see standard error"),
    };
    // "Not ready" is a normal result of a query, not a refusal.
    if fail.code != NOT_READY {
        state().last_refusal = Some(format!("{name}: {} ({})", fail.why, fail.code));
    }
    fail.code
}
