//! Finding the driver: open its library, query its version, resolve the table. Once a process, whatever comes of it;
//! nothing here panics.
//!
//! The library is never closed: handles live until the process ends, and destructors run after `main`. This file does not
//! know devices or contexts.

use super::table::{Call, Table, check};
use core::ffi::{CStr, c_char, c_int};
use libloading::Library;
use millpond_driver::{DriverError, Unavailable};
use std::ffi::OsStr;
use std::mem::ManuallyDrop;
use std::sync::OnceLock;

/// What a driver function returns.
pub(super) type Code = u32;

/// The oldest driver that has every required function, as the driver counts: CUDA 11.4.
pub(super) const OLDEST: u32 = 11_040;

/// Where the driver is, if not where the system's loader finds it: a path, tried alone.
pub(super) const PATH_VARIABLE: &str = "MILLPOND_LIBCUDA";

/// The names of the driver's library, in cudarc's order: handles go to and fro, so both must find the same one.
pub(super) const NAMES: &[&str] = &["libcuda.so", "libcuda.so.1", "nvcuda.dll"];

/// A driver that was found.
pub(super) struct Api {
    pub(super) table: Table,
    pub(super) version: u32,
    _library: ManuallyDrop<Library>,
}

/// The process's driver, started. Starting it again does nothing, and is what every CUDA program does.
#[allow(unsafe_code, reason = "foreign calls")]
pub(super) fn api() -> Result<&'static Api, Unavailable> {
    static API: OnceLock<Result<Api, Unavailable>> = OnceLock::new();
    // A path need not be text.
    let opened = API.get_or_init(|| match std::env::var_os(PATH_VARIABLE) {
        Some(path) if !path.is_empty() => open(&[path]).and_then(look),
        _ => open(NAMES).and_then(look),
    });
    let api = opened.as_ref().map_err(Clone::clone)?;
    // SAFETY: no arguments that could be wrong; 0 is the only flag there is.
    let code = unsafe { (api.table.init)(0) };
    check(&api.table, Call::init, code)?;
    Ok(api)
}

/// The first of these libraries that can be loaded.
pub(super) fn open(names: &[impl AsRef<OsStr>]) -> Result<Library, Unavailable> {
    let mut tried = Vec::new();
    for name in names.iter().map(AsRef::as_ref) {
        // SAFETY: what runs on load is the driver's own start-up, which every CUDA program runs.
        #[allow(unsafe_code, reason = "loading a library runs its code")]
        match unsafe { Library::new(name) } {
            Ok(library) => return Ok(library),
            Err(e) => tried.push(refusal(&name.to_string_lossy(), &e)),
        }
    }
    Err(Unavailable::DriverMissing { tried })
}

/// The name, and the loader's own words, without the wrapping and on one line, unless they only say that there is no such
/// file.
fn refusal(name: &str, error: &dyn std::error::Error) -> String {
    let mut inner = error;
    while let Some(source) = inner.source() {
        inner = source;
    }
    let text = inner.to_string();
    let words = text.lines().next().unwrap_or("no reason given").trim();
    let words = words.strip_prefix(name).map_or(words, |w| w.trim_start_matches([':', ' ']));
    if words.contains("No such file") { name.to_owned() } else { format!("{name}: {words}") }
}

/// Checks the version before the functions, so that an old driver is called old and not damaged.
#[allow(unsafe_code, reason = "foreign calls")]
pub(super) fn look(library: Library) -> Result<Api, Unavailable> {
    type GetVersion = unsafe extern "system" fn(*mut c_int) -> Code;
    let name = "cuDriverGetVersion";
    // SAFETY: the C function of this name has this signature in every driver.
    let found = unsafe { library.get::<GetVersion>(name.as_bytes()) };
    let get_version = *found.map_err(|_| Unavailable::SymbolMissing { name })?;
    let mut version = 0;
    // SAFETY: the pointer is a local's. This is one of the few calls that work before `cuInit`.
    let code = unsafe { get_version(&raw mut version) };
    if code != 0 {
        let mut message = "the driver does not return its version: is its installation whole?".to_owned();
        // SAFETY: the C function of this name has this signature in every driver.
        if let Ok(ask) = unsafe { library.get::<ErrorName>(b"cuGetErrorName") }
            && let Some(its_name) = text_of(*ask, code)
        {
            message = format!("{its_name}; {message}");
        }
        return Err(DriverError::new(name, code, super::table::kind_of(code), message).into());
    }
    let have = u32::try_from(version).unwrap_or(0);
    if have < OLDEST {
        return Err(Unavailable::DriverTooOld { need: OLDEST, have });
    }
    let table = Table::resolve(&library)?;
    Ok(Api { table, version: have, _library: ManuallyDrop::new(library) })
}

/// The driver's name of a code, and its words.
pub(super) fn explain(table: &Table, code: Code) -> String {
    match (text_of(table.get_error_name, code), text_of(table.get_error_string, code)) {
        (Some(name), Some(words)) => format!("{name}, {words}"),
        (Some(one), None) | (None, Some(one)) => one,
        (None, None) => "a code that this driver itself cannot name".into(),
    }
}

type ErrorName = unsafe extern "system" fn(u32, *mut *const c_char) -> Code;

#[allow(unsafe_code, reason = "foreign calls")]
fn text_of(ask: ErrorName, code: Code) -> Option<String> {
    let mut text: *const c_char = core::ptr::null();
    // SAFETY: the pointer is to a local; any number may be passed.
    let answer = unsafe { ask(code, &raw mut text) };
    if answer != 0 || text.is_null() {
        return None;
    }
    // SAFETY: the driver answered with a string of its own that lives as long as its library, which is never closed.
    let text = unsafe { CStr::from_ptr(text) };
    Some(text.to_string_lossy().into_owned())
}
