//! The result of a call: a code, and the message of the thread's last failure.

use core::ffi::c_char;
use core::sync::atomic::{AtomicBool, Ordering};
use pond::{DriverErrorKind, Error};
use std::cell::RefCell;
use std::ffi::CString;

/// The result of a call. Every code except `MILLPOND_STATUS_OK` means that nothing was changed, except for what the head of this file names.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MillpondStatus {
    /// Success.
    Ok = 0,
    /// Out of memory: `millpond_last_error` has the report; or more was requested than one allocation can be.
    OutOfMemory = 1,
    /// The pointer is not a live allocation: it was freed, belongs to another library, or points inside an allocation.
    UnknownPointer = 2,
    /// The allocation, or the stream, belongs to another allocator or another device.
    WrongAllocator = 3,
    /// A null pointer, an unknown option, or one allocator too many.
    BadArgument = 4,
    /// No such allocator, or it was destroyed.
    UnknownAllocator = 5,
    /// The stream captures a graph.
    Capturing = 6,
    /// No driver, too old a driver, or no such device.
    NoDevice = 7,
    /// The driver failed.
    Driver = 8,
    /// A defect of millpond: it is unknown what was changed.
    Panic = 9,
    /// This process was forked from one that had an allocator, or had started CUDA to make one: CUDA does not work here.
    Forked = 10,
}

use MillpondStatus as Status;

/// A failure on its way out.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) status: Status,
    pub(crate) message: String,
    /// The driver says so of a stream, and will not say otherwise later.
    pub(crate) for_good: bool,
}

impl Failure {
    pub(crate) fn new(status: Status, message: impl Into<String>) -> Failure {
        Failure { status, message: message.into(), for_good: false }
    }
}

impl From<Error> for Failure {
    fn from(e: Error) -> Failure {
        let status = match &e {
            // More than a range can be is more than there is.
            Error::OutOfMemory(_) | Error::TooLarge { .. } => Status::OutOfMemory,
            Error::WrongDevice { .. } | Error::OtherAllocator { .. } => Status::WrongAllocator,
            Error::Capturing { .. } => Status::Capturing,
            Error::Driver(e) if e.kind == DriverErrorKind::Capturing => Status::Capturing,
            Error::Unavailable(_) => Status::NoDevice,
            Error::Driver(_) | Error::TimedOut { .. } => Status::Driver,
            _ => Status::BadArgument,
        };
        let kind = if let Error::Driver(e) = &e { Some(e.kind) } else { None };
        let for_good = matches!(kind, Some(DriverErrorKind::InvalidHandle | DriverErrorKind::NotSupported));
        Failure { status, message: e.to_string(), for_good }
    }
}
impl From<pond::DriverError> for Failure {
    fn from(e: pond::DriverError) -> Failure {
        Error::Driver(e).into()
    }
}

thread_local! {
    static LAST: RefCell<CString> = RefCell::new(CString::default());
}

/// The message of the thread's last failure, until its next one.
pub(crate) fn last() -> *const c_char {
    LAST.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"the thread is ending".as_ptr())
}

fn remember(message: &str) {
    let text = CString::new(message.replace('\0', " ")).unwrap_or_default();
    let _ = LAST.try_with(|last| last.replace(text));
}

/// In a process that was forked from one that had touched a device.
static FORKED: AtomicBool = AtomicBool::new(false);

/// This is such a process: every call fails from now on, and does nothing else. Another thread of the parent may have held
/// any lock at the fork, so nothing but this flag may be looked at.
pub(crate) fn forked() {
    FORKED.store(true, Ordering::Relaxed);
}

/// Whether this is such a process.
pub(crate) fn is_forked() -> bool {
    FORKED.load(Ordering::Relaxed)
}

#[cold]
fn in_the_child() -> Status {
    failed(&Failure::new(
        Status::Forked,
        "this process was forked from one that had an allocator, or had started CUDA to make one, and CUDA does not work in it: nothing was done; start the process by spawn or forkserver, or fork before the first allocator is created",
    ))
}

/// Runs a call; a panic stops here.
#[inline]
pub(crate) fn call(body: impl FnOnce() -> Result<(), Failure>) -> Status {
    if is_forked() {
        return in_the_child();
    }
    let _here = crate::presence::enter();
    match std::panic::catch_unwind(core::panic::AssertUnwindSafe(body)) {
        Ok(Ok(())) => Status::Ok,
        Ok(Err(failure)) => failed(&failure),
        Err(panic) => {
            let said = panic.downcast_ref::<String>().map(String::as_str);
            let said = said.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no words");
            failed(&Failure::new(Status::Panic, format!("a defect of millpond: {said}")))
        }
    }
}

#[cold]
fn failed(failure: &Failure) -> Status {
    remember(&failure.message);
    failure.status
}
