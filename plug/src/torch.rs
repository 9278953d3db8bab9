//! PyTorch's pair of functions and its hooks, over one allocator a device.
//!
//! PyTorch cannot handle a refusal: a null pointer becomes a null tensor, and a free cannot fail. So an allocation that
//! fails throws what PyTorch knows as out of memory, or as an error of another kind, and a free that cannot be ordered is ordered behind everything.
//! Failures that cannot be reported are counted.

#![allow(unsafe_code, reason = "functions for C: exported by name, and pointers are as the caller promises")]
#![allow(clippy::not_unsafe_ptr_arg_deref, reason = "C has no unsafe functions")]

use crate::door::{Door, User};
use crate::ffi::{MillpondAllocator, place, put, text};
use crate::status::{Failure, MillpondStatus, MillpondStatus as Status, call, last};
use crate::tag::PER_THREAD;
use crate::throw::throw;
use core::ffi::{c_char, c_int, c_void};
use core::sync::atomic::{AtomicU64, Ordering};
use parking_lot::Mutex;
use std::sync::OnceLock;

/// The maximum number of devices.
const DEVICES: usize = 64;
static OF_DEVICE: [OnceLock<&'static Door>; DEVICES] = [const { OnceLock::new() }; DEVICES];
static OPENING: Mutex<()> = Mutex::new(());
/// Frees and uses of unknown pointers, and of streams that could not be queried.
static UNREPORTED: AtomicU64 = AtomicU64::new(0);

fn slot(device: c_int) -> Result<&'static OnceLock<&'static Door>, Failure> {
    let slot = usize::try_from(device).ok().and_then(|d| OF_DEVICE.get(d));
    slot.ok_or_else(|| Failure::new(Status::BadArgument, format!("{device} is no device")))
}

/// A device's allocator, made if there is none yet.
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

/// Whether a free of what begins there is postponed: for tests, for which every call reports that there is no allocation.
#[doc(hidden)]
#[must_use]
pub fn is_put_off(ptr: usize) -> bool {
    Door::is_put_off(ptr)
}

/// How many frees are postponed: for tests.
#[doc(hidden)]
#[must_use]
pub fn put_off() -> usize {
    Door::put_off_now()
}

/// The allocator that PyTorch's calls for a device go to. If `options` (see millpond_create) are not null it is made with them, and
/// then must not exist yet.
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
        put(out, found.opened()?.name())
    })
}

/// PyTorch's `malloc`: if out of memory it throws c10::OutOfMemoryError, or std::bad_alloc without PyTorch, with the report; if it is refused for another reason,
/// such as a stream that captures a graph, c10::Error, or std::runtime_error.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn millpond_torch_alloc(
    size: usize,
    device: c_int,
    stream: *mut c_void,
) -> *mut c_void {
    let mut ptr = core::ptr::null_mut();
    let status = call(|| {
        let door = door(device)?;
        ptr = door.alloc(size, stream.addr()).or_else(|e| {
            // Memory that waits for another device may be available by now.
            let had = e.status == Status::OutOfMemory && Door::try_again(usize::MAX) > 0;
            if had { door.alloc(size, stream.addr()) } else { Err(e) }
        })?;
        Ok(())
    });
    if status != Status::Ok {
        // Nothing here is left to drop: a C++ exception passes through.
        throw(last(), status == Status::OutOfMemory);
    }
    ptr
}

/// PyTorch's `free`, on the stream of the allocation. If work on another device prevents the free now (see
/// millpond_torch_record_stream), it counts as a call that failed, and is made later: until then the memory is freed for the program, and its pointer is not an allocation.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_torch_free(ptr: *mut c_void, _size: usize, device: c_int, stream: *mut c_void) {
    count_failure(call(|| {
        let slot = slot(device)?;
        if ptr.is_null() {
            return Ok(());
        }
        // A device without an allocator has no allocation either.
        let door = *slot.get().ok_or_else(|| unknown_pointer(ptr))?;
        if Door::put_off_now() > 0 {
            Door::try_again(1);
        }
        free_on(door, ptr, stream.addr())
    }));
}

fn free_on(door: &Door, ptr: *mut c_void, handle: usize) -> Result<(), Failure> {
    door.free_on(ptr, handle).or_else(|e| match e.status {
        Status::UnknownPointer => Err(e),
        // The stream captures, cannot be queried or is another device's: then behind everything. For another allocator's
        // pointer this fails in the same way.
        _ => door.free_unknown_now(ptr).or_else(|e| match e.status {
            Status::UnknownPointer | Status::WrongAllocator => Err(e),
            // A use on another device.
            _ => door.put_off(ptr, Some(handle)).and(Err(e)),
        }),
    })
}

/// PyTorch's `record_stream`. It works for another device's stream too, if PyTorch has an allocator there; but a default stream's handle, which is null,
/// means the default stream of the pointer's device. Another device's stream must be alive until the memory is freed, because the free calls the driver for it; so must a stream of any
/// device that was not declared permanent and captures when it is named. If it has ended
/// even so, or captures then, or cannot be queried because the driver fails, the memory cannot be freed: a later
/// millpond_torch_free of any memory on any thread tries again, and so does a millpond_torch_alloc that is out of memory, until the driver answers; a wait for the stream's device frees
/// the memory too, without a call for the stream: millpond_torch_empty_cache, or millpond_synchronize or millpond_destroy of an allocator there. Other functions that free such memory
/// fail while they cannot record the use; but millpond_free_unknown behind a stream that has ended is OK, and frees as late. For a stream that captures here and was not declared permanent it is unknown which device it belongs to: if
/// PyTorch has no allocator on that device, the use is not known, and not counted.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_torch_record_stream(ptr: *mut c_void, stream: *mut c_void) {
    count_failure(call(|| {
        // An empty allocation.
        if ptr.is_null() {
            return Ok(());
        }
        let (door, handle) = (owner(ptr)?, stream.addr());
        door.record_use(ptr, handle).or_else(|e| match e.status {
            Status::UnknownPointer => Err(e),
            Status::WrongAllocator => use_elsewhere(door, ptr, handle, e),
            _ if mutant!(DoorRecordLost) => Ok(()),
            _ => use_unqueried(door, ptr, handle),
        })
    }));
}

/// PyTorch's allocators of other devices than this one. Only frees of PyTorch's own memory look for uses elsewhere.
fn others(door: &Door) -> impl Iterator<Item = &'static Door> {
    let doors = || OF_DEVICE.iter().filter_map(OnceLock::get).copied();
    let is_pytorchs = doors().any(|of| core::ptr::eq(of, door));
    doors().filter(move |other| is_pytorchs && !core::ptr::eq(*other, door))
}

/// The stream belongs to another device: the free will be behind what it holds then.
#[cold]
fn use_elsewhere(door: &Door, ptr: *mut c_void, handle: usize, why: Failure) -> Result<(), Failure> {
    let mut is_kept = false;
    for other in others(door) {
        let user = match other.stream_id_of(handle) {
            Ok(id) => User::Known(id),
            Err(e) if e.status == Status::WrongAllocator || mutant!(DoorElsewhereUnqueried) => continue,
            // It captures, or the driver fails: the free will find out.
            Err(e) => {
                if e.for_good {
                    User::Unmarked
                } else {
                    User::Unqueried
                }
            }
        };
        door.used_elsewhere(ptr, other, handle, user)?;
        is_kept = true;
        if matches!(user, User::Known(_)) {
            break;
        }
    }
    if !is_kept {
        door.use_unknown(ptr)?;
        return Err(why);
    }
    Ok(())
}

/// The stream cannot be queried: for example it captures, and may be any device's.
#[cold]
fn use_unqueried(door: &Door, ptr: *mut c_void, handle: usize) -> Result<(), Failure> {
    door.use_unknown(ptr)?;
    // The meaning of a default stream's handle, and of a declared one's, needs no query.
    if handle <= PER_THREAD || door.declared(handle).is_some() {
        return Ok(());
    }
    if let Some((other, id)) = others(door).find_map(|other| Some((other, other.declared(handle)?))) {
        return door.used_elsewhere(ptr, other, handle, User::Known(id));
    }
    let home = door.home_without_ids(handle);
    let user = if home.is_some() { User::Unmarked } else { User::Unqueried };
    let may_be = |other: &&'static Door| home.is_none_or(|device| device == other.device());
    others(door).filter(may_be).try_for_each(|other| door.used_elsewhere(ptr, other, handle, user))
}

/// PyTorch's `empty_cache`, for all devices: like PyTorch's own it first waits for them, in the way of millpond_destroy, which ends no capture. While it
/// frees its page launches of other threads block: if queued work waits for what another thread has yet to launch (collectives), synchronize its stream first.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_torch_empty_cache() {
    count_failure(call(|| {
        let (made, done) = empty_all();
        // Memory that waited for another device goes back, too.
        if made > 0 { done.and(empty_all().1) } else { done }
    }));
}

/// All devices': how many postponed frees were made, and the first failure.
fn empty_all() -> (usize, Result<(), Failure>) {
    OF_DEVICE.iter().filter_map(OnceLock::get).fold((0, Ok(())), |(made, done), door| match door.empty() {
        Ok(more) => (made + more, done),
        Err(e) => (made, done.and(Err(e))),
    })
}

/// PyTorch's `set_per_process_memory_fraction`.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_torch_memory_fraction(fraction: f64, device: c_int) {
    count_failure(call(|| {
        let limit = format!("{}%", fraction * 100.0);
        // Before an allocator is made for it.
        limit.parse::<pond::Limit>()?;
        door(device)?.set_limit(&limit)
    }));
}

/// PyTorch's `getBaseAllocation`: where the allocation that contains an address begins, and its length.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_torch_base(ptr: *mut c_void, size: *mut usize) -> *mut c_void {
    let mut begin = core::ptr::null_mut();
    count_failure(call(|| {
        let doors = || OF_DEVICE.iter().filter_map(OnceLock::get);
        let (at, bytes) = doors().find_map(|d| d.around(ptr).ok()).ok_or_else(|| unknown_pointer(ptr))?;
        begin = at as *mut c_void;
        if !size.is_null() {
            // SAFETY: not null, and a place for one value.
            unsafe { size.write(bytes as usize) };
        }
        Ok(())
    }));
    begin
}

/// How many calls failed without a way to report it: millpond_last_error on their thread had the message.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_torch_untold() -> u64 {
    UNREPORTED.load(Ordering::Relaxed)
}

fn count_failure(status: Status) {
    if status != Status::Ok {
        UNREPORTED.fetch_add(1, Ordering::Relaxed);
    }
}

fn unknown_pointer(ptr: *const c_void) -> Failure {
    Failure::new(Status::UnknownPointer, format!("{ptr:p} is no allocation that PyTorch has from here"))
}

/// The allocator of a pointer, even an ended one: its live memory is still in use.
fn owner(ptr: *const c_void) -> Result<&'static Door, Failure> {
    let name = Door::of(ptr).ok_or_else(|| unknown_pointer(ptr))?;
    Door::any(name)
}
