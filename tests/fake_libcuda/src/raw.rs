//! Arguments from C: out parameters, structures, arrays, texts.
//!
//! All unsafe code that reads or writes through a caller's pointer is here. Values of these types come only from calls from
//! C, whose contract is the driver's: a pointer is null, or valid for what the function does with it during the call.
//! They do not know what the values mean.

use crate::entry::{Fail, Outcome};
use std::ffi::{CStr, c_char};

/// The place for a result: null, or writable.
#[derive(Debug)]
#[repr(transparent)]
pub struct Out<T>(*mut T);

impl<T> Clone for Out<T> {
    fn clone(&self) -> Out<T> {
        *self
    }
}
impl<T> Copy for Out<T> {}

#[allow(unsafe_code, reason = "the boundary to C")]
impl<T: Copy> Out<T> {
    /// Writes the result; a null pointer is an invalid value.
    pub(crate) fn put(self, value: T) -> Outcome {
        if self.0.is_null() {
            return Err(Fail::invalid("the pointer for a result is null"));
        }
        // SAFETY: the caller's contract: not null, so writable. Callers may pass pointers of any alignment.
        unsafe { self.0.write_unaligned(value) };
        Ok(())
    }
    /// Writes the result unless the pointer is null.
    pub(crate) fn put_if_wanted(self, value: T) {
        if !self.0.is_null() {
            // SAFETY: as above.
            unsafe { self.0.write_unaligned(value) };
        }
    }
    /// Reads the value, for parameters that are both input and output.
    pub(crate) fn get(self) -> Outcome<T> {
        if self.0.is_null() {
            return Err(Fail::invalid("the pointer to a value is null"));
        }
        // SAFETY: as above; such a parameter is readable too.
        Ok(unsafe { self.0.read_unaligned() })
    }
}

#[allow(unsafe_code, reason = "the boundary to C")]
impl Out<c_char> {
    /// Writes a text of at most `room` bytes, its final zero included.
    pub(crate) fn put_text(self, text: &str, room: usize) -> Outcome {
        if self.0.is_null() || room == 0 {
            return Err(Fail::invalid("no room for a text"));
        }
        let bytes = text.len().min(room - 1);
        // SAFETY: the caller's contract: `room` bytes are writable, and less than that is written.
        unsafe { self.0.cast::<u8>().copy_from_nonoverlapping(text.as_ptr(), bytes) };
        // SAFETY: as above: `bytes` is less than `room`.
        unsafe { self.0.add(bytes).write(0) };
        Ok(())
    }
}

/// A structure that is an input: null, or readable.
#[derive(Debug)]
#[repr(transparent)]
pub struct In<T>(*const T);

impl<T> Clone for In<T> {
    fn clone(&self) -> In<T> {
        *self
    }
}
impl<T> Copy for In<T> {}

#[allow(unsafe_code, reason = "the boundary to C")]
impl<T: Copy> In<T> {
    pub(crate) fn get(self) -> Outcome<T> {
        if self.0.is_null() {
            return Err(Fail::invalid("the pointer to a structure is null"));
        }
        // SAFETY: the caller's contract: not null, so readable.
        Ok(unsafe { self.0.read_unaligned() })
    }
    /// The element with this index, if the caller passes several.
    pub(crate) fn nth(self, index: usize) -> Outcome<T> {
        if self.0.is_null() {
            return Err(Fail::invalid("the pointer to structures is null"));
        }
        // SAFETY: the caller passes the count with the pointer, and `index` is below it.
        Ok(unsafe { self.0.add(index).read_unaligned() })
    }
}

/// An array of pointers to a kernel's parameters.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub struct Array(*const *const u8);

#[allow(unsafe_code, reason = "the boundary to C")]
impl Array {
    /// The parameter with this index, `bytes` long and at most 8.
    pub(crate) fn parameter(self, index: usize, bytes: usize) -> Outcome<u64> {
        if self.0.is_null() {
            return Err(Fail::invalid("the kernel has parameters, and none were passed"));
        }
        // SAFETY: the caller passes as many pointers as the kernel has parameters, and `index` is below that.
        let from = unsafe { self.0.add(index).read_unaligned() };
        if from.is_null() {
            return Err(Fail::invalid("the pointer to a kernel's parameter is null"));
        }
        let mut word = [0_u8; 8];
        // SAFETY: the caller's contract: each parameter is readable for its length, which is at most 8.
        unsafe { from.copy_to_nonoverlapping(word.as_mut_ptr(), bytes.min(8)) };
        Ok(u64::from_le_bytes(word))
    }
}

/// A text that ends with a zero: null, or readable up to there.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub struct Text(*const c_char);

#[allow(unsafe_code, reason = "the boundary to C")]
impl Text {
    pub(crate) fn get(self) -> Outcome<String> {
        if self.0.is_null() {
            return Err(Fail::invalid("the pointer to a text is null"));
        }
        // SAFETY: the caller's contract: not null, so a text that ends with a zero.
        Ok(unsafe { CStr::from_ptr(self.0) }.to_string_lossy().into_owned())
    }
}

impl<T> Out<T> {
    /// The same place, for a result of another type.
    pub(crate) fn narrow<U>(self) -> Out<U> {
        Out(self.0.cast())
    }
}
