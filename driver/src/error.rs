//! A driver's errors, and why a device cannot be opened.
//!
//! Every message says what was requested, what was found and what to do. This file knows only those driver codes that the
//! functions below name.

use std::borrow::Cow;

/// What a driver's failure means to an allocator.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum DriverErrorKind {
    /// The device or the host has no memory left.
    OutOfMemory,
    /// An argument, an address or a size was refused.
    InvalidValue,
    /// A handle names nothing alive.
    InvalidHandle,
    /// The call is not allowed while a stream is being captured.
    Capturing,
    /// The device or driver cannot do this.
    NotSupported,
    /// The context is lost: nothing will work again in this process.
    ContextLost,
    /// Anything else.
    Other,
}

/// A driver call that failed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{call} failed with code {code}: {message}")]
#[non_exhaustive]
pub struct DriverError {
    /// The call, by its name in the driver's interface.
    pub call: &'static str,
    /// The driver's number for the failure.
    pub code: u32,
    /// What it means.
    pub kind: DriverErrorKind,
    /// The driver's message, or ours.
    pub message: Cow<'static, str>,
}

impl DriverError {
    /// An error of `call`.
    pub fn new(
        call: &'static str,
        code: u32,
        kind: DriverErrorKind,
        message: impl Into<Cow<'static, str>>,
    ) -> DriverError {
        DriverError { call, code, kind, message: message.into() }
    }
    /// Whether the device or the host had no memory left.
    pub fn is_out_of_memory(&self) -> bool {
        self.kind == DriverErrorKind::OutOfMemory
    }
    /// Whether it is about one stream, and about no other: the stream captures, or a capture took its event, or it is
    /// gone. Not that the whole context is gone (201), which has the same kind.
    #[doc(hidden)]
    pub fn is_of_one_stream(&self) -> bool {
        let gone = self.kind == DriverErrorKind::InvalidHandle && self.code != 201;
        gone || self.kind == DriverErrorKind::Capturing
    }
    /// Whether it is about an event, and not a stream, and says that a capture took its last record: CUDA's 907 while the capture is active, and 1
    /// when it has ended, if a backend knows that the call was one for an event.
    #[doc(hidden)]
    pub fn is_of_captured_event(&self) -> bool {
        self.kind == DriverErrorKind::Capturing && matches!(self.code, 1 | 907)
    }
    /// Whether nothing will work again in this process.
    pub fn is_context_lost(&self) -> bool {
        self.kind == DriverErrorKind::ContextLost
    }
}

/// Why a device cannot be opened at all. Nothing was opened.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Unavailable {
    /// No driver library could be loaded on this machine.
    #[error(
        "no NVIDIA driver on this machine (tried {}): install one, or use the simulated device",
        tried.join(", ")
    )]
    DriverMissing {
        /// The names tried, each with the loader's message.
        tried: Vec<String>,
    },
    /// The driver is older than what this crate was made for. Versions as the driver counts: 12040 is 12.4.
    #[error(
        "the NVIDIA driver supports CUDA {}, {} is needed: install a newer driver",
        version(*have),
        version(*need)
    )]
    DriverTooOld {
        /// The oldest supported version.
        need: u32,
        /// The version found.
        have: u32,
    },
    /// The driver's library lacks a function that every driver of its version has.
    #[error(
        "the NVIDIA driver's library has no function {name}: its installation is damaged, or it is a stand-in"
    )]
    SymbolMissing {
        /// The function.
        name: &'static str,
    },
    /// There is no such device.
    #[error("device {requested} was requested{}: check nvidia-smi and CUDA_VISIBLE_DEVICES", there_are(*found))]
    NoDevice {
        /// The requested ordinal.
        requested: u32,
        /// How many devices there are, from 0.
        found: u32,
    },
    /// The driver exists and failed.
    #[error("{0}")]
    Driver(#[from] DriverError),
}

/// A version as people write it: 12040 is 12.4.
fn version(number: u32) -> String {
    format!("{}.{}", number / 1000, number % 1000 / 10)
}

fn there_are(found: u32) -> String {
    match found {
        0 => " and the NVIDIA driver sees none".to_owned(),
        found => format!(", there are {found}, numbered from 0"),
    }
}
