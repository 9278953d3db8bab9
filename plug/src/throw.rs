//! An exception that PyTorch recognises as out of memory, or as an error of another kind, with our message in it.
//!
//! It cannot be made in Rust directly: it is a C++ object of a class of PyTorch's. But a class is a constructor, a table of
//! virtual functions and a description, and those are found by name in the libraries that the process has loaded. The object
//! is made by the constructor of `c10::Error(SourceLocation, std::string)`, the class for any other kind. For out of memory it gets the table and
//! the description of `c10::OutOfMemoryError`, a subclass that adds nothing to it. Building this needs nothing of PyTorch; if PyTorch is not
//! loaded, or changes its classes one day, `std::bad_alloc` or `std::runtime_error` is thrown, and without any C++ the result is null.

#![allow(unsafe_code, reason = "C++ by hand")]

use core::ffi::{CStr, c_char, c_int, c_void};
use libloading::os::unix::Library;

/// The loader returns what is loaded, and loads nothing.
const NO_LOAD: c_int = 4;
const LAZY: c_int = 1;
/// Room for the exception object, which is smaller than 300 bytes.
const ROOM: usize = 2048;

/// `c10::SourceLocation`, passed by value.
#[repr(C)]
struct Location {
    function: *const c_char,
    file: *const c_char,
    line: u32,
}

/// `std::string` of the C++11 ABI: a text of more than 15 bytes lies in memory from `operator new`.
#[repr(C)]
struct Text {
    begin: *mut c_char,
    len: usize,
    room: usize,
    _inside: usize,
}

type Constructor = unsafe extern "C-unwind" fn(*mut c_void, Location, *mut Text);
type Destructor = unsafe extern "C-unwind" fn(*mut c_void);

struct Cpp {
    allocate: unsafe extern "C" fn(usize) -> *mut c_void,
    throw: unsafe extern "C-unwind" fn(*mut c_void, *const c_void, Option<Destructor>) -> !,
    new: unsafe extern "C-unwind" fn(usize) -> *mut c_void,
    bad_alloc: unsafe extern "C-unwind" fn() -> !,
    /// Not every C++ library has it.
    runtime_error: Option<unsafe extern "C-unwind" fn(*const c_char) -> !>,
}

struct Torch {
    construct: Constructor,
    /// If it differs from the constructor's own.
    table: Option<*const usize>,
    description: *const c_void,
    destroy: Option<Destructor>,
}

fn loaded(name: &str) -> Option<Library> {
    // SAFETY: nothing is loaded, so nothing is initialised.
    unsafe { Library::open(Some(name), NO_LOAD | LAZY) }.ok()
}

/// A symbol of the first library that has it. Every library stays loaded: handles are not closed.
fn symbol<T: Copy>(libraries: &[Library], name: &CStr) -> Option<T> {
    const { assert!(size_of::<T>() == size_of::<*const c_void>()) };
    let found = libraries.iter().find_map(|l| {
        // SAFETY: a symbol's address as a pointer; its name says what it is.
        unsafe { l.get::<*const c_void>(name.to_bytes_with_nul()) }
            .ok()
            .map(libloading::os::unix::Symbol::into_raw)
    })?;
    // SAFETY: of the size of a pointer, and not null.
    (!found.is_null()).then(|| unsafe { core::mem::transmute_copy(&found) })
}

/// The libraries stay loaded. Their list is freed: a throw may happen at every allocation.
fn stay(libraries: Vec<Library>) {
    libraries.into_iter().for_each(core::mem::forget);
}

fn cpp() -> Option<Cpp> {
    let libraries: Vec<Library> =
        ["libstdc++.so.6", "libc++abi.so.1"].into_iter().filter_map(loaded).collect();
    let found = Cpp {
        allocate: symbol(&libraries, c"__cxa_allocate_exception")?,
        throw: symbol(&libraries, c"__cxa_throw")?,
        // Found like PyTorch's `operator delete`, its counterpart: the program's own, if it has replaced both.
        new: symbol(&[Library::this()], c"_Znwm").or_else(|| symbol(&libraries, c"_Znwm"))?,
        bad_alloc: symbol(&libraries, c"_ZSt17__throw_bad_allocv")?,
        runtime_error: symbol(&libraries, c"_ZSt21__throw_runtime_errorPKc"),
    };
    stay(libraries);
    Some(found)
}

fn torch(out_of_memory: bool) -> Option<Torch> {
    let libraries: Vec<Library> = ["libc10.so", "libc10_cuda.so", "libtorch_cuda.so", "libtorch_python.so"]
        .into_iter()
        .filter_map(loaded)
        .collect();
    let constructor =
        c"_ZN3c105ErrorC1ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE";
    let base = c"_ZN3c105ErrorC2ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE";
    let construct = symbol(&libraries, constructor).or_else(|| symbol(&libraries, base))?;
    let found = if out_of_memory {
        Torch {
            construct,
            table: Some(symbol(&libraries, c"_ZTVN3c1016OutOfMemoryErrorE")?),
            description: symbol(&libraries, c"_ZTIN3c1016OutOfMemoryErrorE")?,
            destroy: symbol(&libraries, c"_ZN3c1016OutOfMemoryErrorD1Ev"),
        }
    } else {
        Torch {
            construct,
            table: None,
            description: symbol(&libraries, c"_ZTIN3c105ErrorE")?,
            destroy: symbol(&libraries, c"_ZN3c105ErrorD1Ev"),
        }
    };
    stay(libraries);
    Some(found)
}

/// Throws out of memory, or another kind of error, with this message. Returns only if there is no C++.
pub(crate) fn throw(words: *const c_char, out_of_memory: bool) {
    let Some(cpp) = cpp() else { return };
    let Some(torch) = torch(out_of_memory) else {
        // SAFETY: it throws, and every frame up to the caller lets it pass; the message is copied.
        unsafe {
            match cpp.runtime_error {
                Some(throw) if !out_of_memory => throw(words),
                _ => (cpp.bad_alloc)(),
            }
        }
    };
    // SAFETY: an object of the class is made as its own constructor makes one, in room that is larger than it; the text lies
    // in memory that its destructor frees; every frame up to the caller lets the exception pass.
    unsafe {
        let words = CStr::from_ptr(words).to_bytes();
        let room = words.len().max(31);
        let begin = (cpp.new)(room + 1).cast::<c_char>();
        core::ptr::copy_nonoverlapping(words.as_ptr().cast(), begin, words.len());
        begin.add(words.len()).write(0);
        let mut text = Text { begin, len: words.len(), room, _inside: 0 };
        let object = (cpp.allocate)(ROOM);
        object.cast::<u8>().write_bytes(0, ROOM);
        let at = Location { function: c"millpond_torch_alloc".as_ptr(), file: c"millpond".as_ptr(), line: 0 };
        (torch.construct)(object, at, &raw mut text);
        // What the constructor left of the text: a short one inside itself, which needs no end.
        if let Some(table) = torch.table {
            object.cast::<*const usize>().write(table.add(2));
        }
        (cpp.throw)(object, torch.description, torch.destroy)
    }
}
