//! PyTorch's pair of functions and its hooks, over one allocator a device.
//!
//! PyTorch takes no for an answer badly: a null pointer becomes a null tensor, and a free cannot fail. So an allocation that
//! fails throws what PyTorch knows as out of memory, or as an error of another kind, and a free that cannot be ordered is ordered behind everything. What
//! went wrong without anybody to tell is counted.

#![allow(unsafe_code, reason = "functions for C: exported by name, and pointers are as the caller promises")]
#![allow(clippy::not_unsafe_ptr_arg_deref, reason = "C has no unsafe functions")]

use crate::door::Door;
use crate::elsewhere::{self, Later};
use crate::ffi::{MillpondAllocator, place, put, text};
use crate::status::{Failure, MillpondStatus, MillpondStatus as Status, call, last};
use crate::throw::throw;
use core::ffi::{c_char, c_int, c_void};
use core::sync::atomic::{AtomicU64, Ordering};
use parking_lot::Mutex;
use std::sync::OnceLock;

/// So many devices at most.
const DEVICES: usize = 64;
static OF_DEVICE: [OnceLock<&'static Door>; DEVICES] = [const { OnceLock::new() }; DEVICES];
static OPENING: Mutex<()> = Mutex::new(());
/// Frees and uses of pointers that are none of ours, and of streams that could not be asked.
static UNTOLD: AtomicU64 = AtomicU64::new(0);

fn slot(device: c_int) -> Result<&'static OnceLock<&'static Door>, Failure> {
    let slot = usize::try_from(device).ok().and_then(|d| OF_DEVICE.get(d));
    slot.ok_or_else(|| Failure::new(Status::BadArgument, format!("{device} is no device")))
}

/// A device's, made if there is none yet.
fn door(device: c_int) -> Result<&'static Door, Failure> {
    let slot = slot(device)?;
    match slot.get() {
        Some(door) => Ok(door),
        None => open(device, slot, None),
    }
}

#[cold]
fn open(
    device: c_int,
    place: &OnceLock<&'static Door>,
    options: Option<&str>,
) -> Result<&'static Door, Failure> {
    let _one = OPENING.lock();
    if let Some(door) = place.get() {
        return match options {
            None => Ok(door),
            Some(_) => Err(Failure::new(
                Status::BadArgument,
                format!(
                    "device {device} has its allocator already: configure it before the first allocation"
                ),
            )),
        };
    }
    let door = crate::ffi::open(device.cast_unsigned(), options.unwrap_or_default())?;
    door.lasts();
    Ok(place.get_or_init(|| door))
}

/// The allocator that PyTorch's calls for a device go to; made with `options` (see millpond_create) if they are not null, and
/// then it may not exist yet.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_torch_allocator(
    device: c_int,
    options: *const c_char,
    out: *mut MillpondAllocator,
) -> MillpondStatus {
    call(|| {
        place(out)?;
        let found = if options.is_null() {
            door(device)?
        } else {
            open(device, slot(device)?, Some(text(options)?))?
        };
        put(out, found.name())
    })
}

/// PyTorch's `malloc`: throws c10::OutOfMemoryError, or std::bad_alloc without PyTorch, with the report; and where it is refused for another reason,
/// as on a stream that captures a graph, c10::Error, or std::runtime_error.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn millpond_torch_alloc(
    size: usize,
    device: c_int,
    stream: *mut c_void,
) -> *mut c_void {
    let mut ptr = core::ptr::null_mut();
    let status = call(|| {
        ptr = door(device)?.alloc(size, stream.addr())?;
        Ok(())
    });
    if status != Status::Ok {
        // Nothing here is left to drop: a foreign exception passes through.
        throw(last(), status == Status::OutOfMemory);
    }
    ptr
}

/// PyTorch's `free`, on the stream of the allocation.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_torch_free(ptr: *mut c_void, _size: usize, device: c_int, stream: *mut c_void) {
    untold(call(|| {
        let slot = slot(device)?;
        if ptr.is_null() {
            return Ok(());
        }
        // A device without an allocator has no allocation either.
        let door = *slot.get().ok_or_else(|| foreign(ptr))?;
        free_behind(door, ptr, stream.addr())
    }));
}

fn free_on(door: &Door, ptr: *mut c_void, handle: usize) -> Result<(), Failure> {
    door.free_on(ptr, handle).or_else(|e| match e.status {
        Status::UnknownPointer => Err(e),
        // The stream captures, cannot be asked or is another device's: behind everything, then. Of another allocator's
        // pointer this says the same again.
        _ => door.free_unknown(ptr),
    })
}

/// Where memory was used on other devices the oldest of the frees that could not be made is tried again first.
fn free_behind(door: &'static Door, ptr: *mut c_void, handle: usize) -> Result<(), Failure> {
    if elsewhere::is_some() {
        free_later(1);
    }
    if let Err(e) = elsewhere::behind(door, ptr) {
        if e.status != Status::UnknownPointer {
            Later::new(door, ptr, handle).waits();
        }
        return Err(e);
    }
    free_on(door, ptr, handle)
}

/// Tries frees again that could not be made, so many of them. What fails once more was counted when it failed first.
#[cold]
fn free_later(most: usize) {
    for _ in 0..most {
        let Some(later) = Later::oldest() else { return };
        if elsewhere::record(later.door, later.ptr()).is_ok() {
            untold(call(|| free_on(later.door, later.ptr(), later.handle)));
        } else {
            later.waits();
        }
    }
}

/// PyTorch's `record_stream`. Of another device's stream too, if PyTorch has an allocator there; but a default stream's handle, which is null,
/// means the one of the pointer's device. While such a use cannot be recorded, because its stream captures or the driver fails, the memory is not freed: a later
/// millpond_torch_free or millpond_torch_empty_cache does. Every other function that frees answers
/// a code then, CAPTURING if a stream captures, and has freed nothing.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_torch_record_stream(ptr: *mut c_void, stream: *mut c_void) {
    untold(call(|| {
        // No bytes.
        if ptr.is_null() {
            return Ok(());
        }
        let door = owner(ptr)?;
        door.record_use(ptr, stream.addr()).or_else(|e| match e.status {
            Status::UnknownPointer => Err(e),
            Status::WrongAllocator => use_elsewhere(door, ptr, stream.addr(), e),
            _ if planted!(DoorRecordLost) => Ok(()),
            _ => {
                // It captures, say, and may be any device's: the free finds out.
                others(door).for_each(|other| elsewhere::note(other, ptr, stream.addr()));
                door.use_unknown(ptr)
            }
        })
    }));
}

/// PyTorch's allocators of other devices than this one. Only PyTorch's own memory is freed where uses elsewhere are looked for.
fn others(door: &Door) -> impl Iterator<Item = &'static Door> {
    let doors = || OF_DEVICE.iter().filter_map(OnceLock::get).copied();
    let is_pytorchs = doors().any(|of| core::ptr::eq(of, door));
    doors().filter(move |other| is_pytorchs && !core::ptr::eq(*other, door))
}

/// The stream is another device's: the free will be behind what it holds then. Of a device that cannot be asked just now it may be, too.
#[cold]
fn use_elsewhere(door: &Door, ptr: *mut c_void, handle: usize, why: Failure) -> Result<(), Failure> {
    let mut may_be = false;
    for other in others(door) {
        match other.on(handle, |_| Ok(())) {
            Err(e) if e.status == Status::WrongAllocator || planted!(DoorElsewhereUnasked) => {}
            asked => {
                elsewhere::note(other, ptr, handle);
                may_be = true;
                if asked.is_ok() {
                    return Ok(());
                }
            }
        }
    }
    door.use_unknown(ptr)?;
    if may_be { Ok(()) } else { Err(why) }
}

/// PyTorch's `empty_cache`, for all devices: waits for them first, as PyTorch's own does, in the way of millpond_destroy, which ends no capture.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_torch_empty_cache() {
    // What cannot be freed yet for work of another device, first: it goes back here, too.
    free_later(Later::count());
    for door in OF_DEVICE.iter().filter_map(OnceLock::get) {
        untold(call(|| door.empty()));
    }
}

/// PyTorch's `set_per_process_memory_fraction`.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_torch_memory_fraction(fraction: f64, device: c_int) {
    untold(call(|| {
        let limit = format!("{}%", fraction * 100.0);
        // Before an allocator is made for it.
        limit.parse::<pond::Limit>()?;
        door(device)?.set_limit(&limit)
    }));
}

/// PyTorch's `getBaseAllocation`: where the allocation of an address begins, and how long it is.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_torch_base(ptr: *mut c_void, size: *mut usize) -> *mut c_void {
    let mut begin = core::ptr::null_mut();
    untold(call(|| {
        let doors = || OF_DEVICE.iter().filter_map(OnceLock::get);
        let (at, bytes) = doors().find_map(|d| d.around(ptr).ok()).ok_or_else(|| foreign(ptr))?;
        begin = at as *mut c_void;
        if !size.is_null() {
            // SAFETY: not null, and a place for one value.
            unsafe { size.write(bytes as usize) };
        }
        Ok(())
    }));
    begin
}

/// How many calls failed with nobody to tell: millpond_last_error on their thread had the words.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_torch_untold() -> u64 {
    UNTOLD.load(Ordering::Relaxed)
}

fn untold(status: Status) {
    if status != Status::Ok {
        UNTOLD.fetch_add(1, Ordering::Relaxed);
    }
}

fn foreign(ptr: *const c_void) -> Failure {
    Failure::new(Status::UnknownPointer, format!("{ptr:p} is no allocation that PyTorch has from here"))
}

/// The allocator that a pointer is of, an ended one too: what is alive of it is used still.
fn owner(ptr: *const c_void) -> Result<&'static Door, Failure> {
    let name = Door::of(ptr).ok_or_else(|| foreign(ptr))?;
    Door::any(name)
}
