//! The program's own side: calls of the driver by their names, as a program in C makes them, and the stand-in's controls that
//! any thread may use. The soak uses it too. It does not know the C interface.

use crate::program::STICKY;
use crate::remote;
use libloading::{Library, Symbol};
use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{LazyLock, Mutex, PoisonError};

pub(crate) type Handle = *mut c_void;

static DRIVER: LazyLock<Library> = LazyLock::new(|| {
    // SAFETY: the stand-in has no initialisers of its own beyond Rust's.
    unsafe { Library::new(remote::path().expect("it was found before")) }.expect("it loads")
});

/// How often the program called a function of the driver itself.
static OWN: Mutex<BTreeMap<&str, u64>> = Mutex::new(BTreeMap::new());

fn own(name: &'static str) {
    *OWN.lock().unwrap_or_else(PoisonError::into_inner).entry(name).or_default() += 1;
}

pub(crate) fn own_calls(name: &str) -> u64 {
    OWN.lock().unwrap_or_else(PoisonError::into_inner).get(name).copied().unwrap_or(0)
}

macro_rules! driver {
    ($($name:ident = $symbol:literal ($($arg:ident: $type:ty),*);)*) => {$(
        pub(crate) fn $name($($arg: $type),*) {
            static AT: LazyLock<Symbol<'static, extern "C" fn($($type),*) -> c_uint>> =
                // SAFETY: the function has this type in the driver's interface.
                LazyLock::new(|| unsafe { DRIVER.get($symbol) }.expect("a function of the driver"));
            own(std::str::from_utf8($symbol).expect("a name"));
            let code = AT($($arg),*);
            assert!(code == 0 || is_broken(), "the program's own {}: {code}, {}", stringify!($name), refusal());
        }
    )*};
}
driver! {
    init = b"cuInit" (flags: c_uint);
    retain = b"cuDevicePrimaryCtxRetain" (context: *mut Handle, device: c_int);
    set_current = b"cuCtxSetCurrent" (context: Handle);
    create_stream = b"cuStreamCreate" (stream: *mut Handle, flags: c_uint);
    destroy_stream = b"cuStreamDestroy_v2" (stream: Handle);
    synchronize_stream = b"cuStreamSynchronize" (stream: Handle);
    synchronize = b"cuCtxSynchronize" ();
    set = b"cuMemsetD8Async" (at: u64, value: u8, bytes: usize, stream: Handle);
    copy = b"cuMemcpyDtoDAsync_v2" (to: u64, from: u64, bytes: usize, stream: Handle);
    copy_in = b"cuMemcpyHtoDAsync_v2" (to: u64, from: u64, bytes: usize, stream: Handle);
    copy_out = b"cuMemcpyDtoHAsync_v2" (to: u64, from: u64, bytes: usize, stream: Handle);
    copy_back = b"cuMemcpyDtoH_v2" (to: *mut u8, from: u64, bytes: usize);
    create_event = b"cuEventCreate" (event: *mut Handle, flags: c_uint);
    destroy_event = b"cuEventDestroy_v2" (event: Handle);
    record = b"cuEventRecord" (event: Handle, stream: Handle);
    wait = b"cuStreamWaitEvent" (stream: Handle, event: Handle, flags: c_uint);
    alloc = b"cuMemAlloc_v2" (at: *mut u64, bytes: usize);
    free = b"cuMemFree_v2" (at: u64);
    begin_capture = b"cuStreamBeginCapture_v2" (stream: Handle, mode: c_uint);
    capture_state = b"cuStreamIsCapturing" (stream: Handle, state: *mut c_uint);
    destroy_graph = b"cuGraphDestroy" (graph: Handle);
}

macro_rules! control {
    ($($name:ident = $symbol:literal ($($arg:ident: $type:ty),*) $(-> $answer:ty)?;)*) => {$(
        pub(crate) fn $name($($arg: $type),*) $(-> $answer)? {
            static AT: LazyLock<Symbol<'static, extern "C" fn($($type),*) $(-> $answer)?>> =
                // SAFETY: the function has this type in the stand-in.
                LazyLock::new(|| unsafe { DRIVER.get($symbol) }.expect("a function of the stand-in"));
            AT($($arg),*)
        }
    )*};
}
control! {
    calls = b"millpond_fake_calls" (name: *const c_char) -> u64;
    call_name = b"millpond_fake_call_name" (number: u64) -> *const c_char;
    fail_call = b"millpond_fake_fail_call" (number: u64, code: c_uint);
    fail_from = b"millpond_fake_fail_from" (number: u64, code: c_uint);
    clear_faults = b"millpond_fake_clear_faults" ();
    lost = b"millpond_fake_lost" () -> c_uint;
    fail_here = b"millpond_fake_fail_here" (nth: u64, code: c_uint);
    struck_here = b"millpond_fake_struck_here" () -> *const c_char;
    exempt = b"millpond_fake_exempt_here" (name: *const c_char);
    struck_of = b"millpond_fake_struck" (name: *const c_char) -> u64;
    last_refusal = b"millpond_fake_last_refusal" () -> *const c_char;
    capture_behind = b"millpond_fake_capture_behind" (nth: u64, stream: u64);
    capture_around = b"millpond_fake_capture_around" (name: *const c_char, nth: u64, stream: u64);
    captures_destroyed = b"millpond_fake_captures_destroyed" () -> u64;
    // A call of the driver that may fail.
    end_capture = b"cuStreamEndCapture" (stream: Handle, graph: *mut Handle) -> c_uint;
}

/// How many planted faults there are that break the driver if they strike.
static BREAKING: AtomicU32 = AtomicU32::new(0);
static BROKE: AtomicBool = AtomicBool::new(false);
/// The code that all calls return if it is broken.
static ANSWER: AtomicU32 = AtomicU32::new(0);

/// Whether any call may fail, the program's own too.
pub(crate) fn is_broken() -> bool {
    BREAKING.load(Ordering::Acquire) > 0 || is_lost()
}

/// Whether the context is lost, so that it never recovers.
pub(crate) fn is_lost() -> bool {
    lost() > 0
}

/// Notes that a fault with this code is planted, which may lose the context; below, that it was removed.
pub(crate) fn is_planted(code: u32) {
    BREAKING.fetch_add(u32::from(STICKY.contains(&code)), Ordering::AcqRel);
}
pub(crate) fn is_over(code: u32) {
    BREAKING.fetch_sub(u32::from(STICKY.contains(&code)), Ordering::AcqRel);
}

/// Whether it was broken at some time, for more than one call.
pub(crate) fn has_broken() -> bool {
    BROKE.load(Ordering::Acquire)
}

/// The `nth` next call fails, and all after it.
pub(crate) fn breaks(nth: u64, code: u32) {
    BROKE.store(true, Ordering::Release);
    ANSWER.store(code, Ordering::Release);
    BREAKING.fetch_add(1, Ordering::AcqRel);
    fail_from(calls(std::ptr::null()) + nth, code);
}

/// The code with which all calls fail; 0 if they do not.
pub(crate) fn answer() -> u32 {
    ANSWER.load(Ordering::Acquire)
}

pub(crate) fn mends() {
    clear_faults();
    ANSWER.store(0, Ordering::Release);
    BREAKING.fetch_sub(1, Ordering::AcqRel);
}

/// A C string as text; empty if it is null.
pub(crate) fn words(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: not null, and the call that returned it keeps it until its next result.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

pub(crate) fn refusal() -> String {
    words(last_refusal())
}

/// How often faults struck one of these functions, on any thread.
pub(crate) fn struck(names: &[&CStr]) -> u64 {
    names.iter().map(|name| struck_of(name.as_ptr())).sum()
}

/// The primary contexts of both devices, which are never released.
pub(crate) fn contexts() -> [u64; 2] {
    init(0);
    [0, 1].map(|device| {
        let mut context = null_mut();
        retain(&raw mut context, device);
        context.addr() as u64
    })
}

pub(crate) fn bind(context: u64) {
    set_current(context as Handle);
}

pub(crate) fn stream(flags: u32) -> usize {
    let mut stream = null_mut();
    create_stream(&raw mut stream, flags);
    stream.addr()
}

/// A new event, recorded after all work queued on the stream.
pub(crate) fn mark(stream: usize) -> usize {
    let mut event = null_mut();
    create_event(&raw mut event, 2);
    record(event, stream as Handle);
    event.addr()
}
