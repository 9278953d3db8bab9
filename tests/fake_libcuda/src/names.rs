//! The names and meanings of codes.
//!
//! This file does not know calls.

use crate::entry::{Code, Fail};
use crate::raw::Out;
use std::ffi::{CStr, c_char};
use std::ptr;

/// Code, name, meaning.
const NAMES: &[(Code, &CStr, &CStr)] = &[
    (0, c"CUDA_SUCCESS", c"no error"),
    (1, c"CUDA_ERROR_INVALID_VALUE", c"invalid argument"),
    (2, c"CUDA_ERROR_OUT_OF_MEMORY", c"out of memory"),
    (3, c"CUDA_ERROR_NOT_INITIALIZED", c"initialization error"),
    (4, c"CUDA_ERROR_DEINITIALIZED", c"driver shutting down"),
    (46, c"CUDA_ERROR_DEVICE_UNAVAILABLE", c"device is busy or unavailable"),
    (100, c"CUDA_ERROR_NO_DEVICE", c"no device"),
    (101, c"CUDA_ERROR_INVALID_DEVICE", c"invalid device ordinal"),
    (200, c"CUDA_ERROR_INVALID_IMAGE", c"the kernel image is invalid"),
    (201, c"CUDA_ERROR_INVALID_CONTEXT", c"invalid device context"),
    (218, c"CUDA_ERROR_INVALID_PTX", c"the PTX cannot be compiled"),
    (400, c"CUDA_ERROR_INVALID_HANDLE", c"invalid resource handle"),
    (500, c"CUDA_ERROR_NOT_FOUND", c"symbol not found"),
    (600, c"CUDA_ERROR_NOT_READY", c"device not ready"),
    (700, c"CUDA_ERROR_ILLEGAL_ADDRESS", c"illegal memory access"),
    (709, c"CUDA_ERROR_CONTEXT_IS_DESTROYED", c"context is destroyed"),
    (712, c"CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED", c"memory is already registered"),
    (713, c"CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", c"memory is not registered"),
    (719, c"CUDA_ERROR_LAUNCH_FAILED", c"launch failed"),
    (800, c"CUDA_ERROR_NOT_PERMITTED", c"operation not permitted"),
    (801, c"CUDA_ERROR_NOT_SUPPORTED", c"operation not supported"),
    (900, c"CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", c"operation not permitted while a stream is capturing"),
    (901, c"CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", c"the capture failed because of an earlier error"),
    (905, c"CUDA_ERROR_STREAM_CAPTURE_ISOLATION", c"dependency on work outside the capture"),
    (906, c"CUDA_ERROR_STREAM_CAPTURE_IMPLICIT", c"the capture would depend on the legacy stream"),
    (907, c"CUDA_ERROR_CAPTURED_EVENT", c"the event was recorded in a capture"),
    (999, c"CUDA_ERROR_UNKNOWN", c"unknown error"),
];

fn find(code: Code) -> Option<&'static (Code, &'static CStr, &'static CStr)> {
    NAMES.iter().find(|n| n.0 == code)
}

fn unknown(code: Code) -> Fail {
    Fail::invalid(format!("no code is {code}"))
}

driver_calls! {
    /// A code's name; null for one that is not known.
    fn cuGetErrorName(code: Code, name: Out<*const c_char>) {
        let found = find(code);
        name.put(found.map_or(ptr::null(), |n| n.1.as_ptr()))?;
        found.map(|_| ()).ok_or_else(|| unknown(code))
    }
    /// A code's meaning; null for one that is not known.
    fn cuGetErrorString(code: Code, text: Out<*const c_char>) {
        let found = find(code);
        text.put(found.map_or(ptr::null(), |n| n.2.as_ptr()))?;
        found.map(|_| ()).ok_or_else(|| unknown(code))
    }
}
