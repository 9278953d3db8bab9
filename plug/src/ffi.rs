//! The C functions. Each is one line of Rust behind a check of its pointers.
#![allow(unsafe_code, reason = "functions for C: exported by name, and pointers are as the caller promises")]
#![allow(
    clippy::not_unsafe_ptr_arg_deref,
    reason = "C has no unsafe functions; the header says what pointers must be"
)]

use crate::door::Door;
use crate::status::{Failure, MillpondStatus, MillpondStatus as Status, call, last};
use core::ffi::{CStr, c_char, c_int, c_void};
use core::sync::atomic::{AtomicU32, Ordering};

/// The name of an allocator; 0 is never one.
pub type MillpondAllocator = u32;

pub(crate) fn text<'a>(text: *const c_char) -> Result<&'a str, Failure> {
    if text.is_null() {
        return Ok("");
    }
    // SAFETY: a text that ends with a zero byte, by the header.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map_err(|_| Failure::new(Status::BadArgument, format!("{text:?} is no UTF-8")))
}

/// Fails if there is no place for a result: to be checked before anything is done.
pub(crate) fn place<T>(to: *mut T) -> Result<(), Failure> {
    if to.is_null() {
        return Err(Failure::new(Status::BadArgument, "the place for the result is null"));
    }
    Ok(())
}

pub(crate) fn put<T>(to: *mut T, value: T) -> Result<(), Failure> {
    place(to)?;
    // SAFETY: not null, and by the header a place for one value.
    unsafe { to.write(value) };
    Ok(())
}

/// As `snprintf`: as much as fits with a zero behind it, and how long the whole is.
pub(crate) fn copy_out(whole: &str, to: *mut c_char, room: usize) -> usize {
    if !to.is_null() && room > 0 {
        let fits = whole.len().min(room - 1);
        // SAFETY: by the header there is room for `room` bytes.
        unsafe {
            core::ptr::copy_nonoverlapping(whole.as_ptr(), to.cast(), fits);
            to.add(fits).write(0);
        }
    }
    whole.len()
}

/// How many calls have touched a device, or are about to.
static TOUCHED: AtomicU32 = AtomicU32::new(0);

#[cfg(unix)]
fn watch_forks() {
    use std::sync::Once;
    type Handler = Option<extern "C" fn()>;
    unsafe extern "C" {
        fn pthread_atfork(prepare: Handler, parent: Handler, child: Handler) -> c_int;
    }
    extern "C" fn child() {
        if TOUCHED.load(Ordering::Relaxed) > 0 {
            crate::status::forked();
        }
    }
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the function of POSIX; the handler stores to a flag, which any thread may do after a fork. It fails only
        // where there is no memory, and then a child is not recognised.
        let _ = unsafe { pthread_atfork(None, None, Some(child)) };
    });
}
#[cfg(not(unix))]
fn watch_forks() {}

/// A new allocator. A process that is forked from this one while it has one, or is making one, has none.
pub(crate) fn open(device: u32, options: &str) -> Result<&'static Door, Failure> {
    watch_forks();
    crate::presence::prepare();
    TOUCHED.fetch_add(1, Ordering::Relaxed);
    let opened = Door::open(device, options);
    let is_untouched = opened.as_ref().is_err_and(|e| match e.status {
        // An unknown option, found before any driver call.
        Status::BadArgument => true,
        // No driver, or one that does not start: CUDA has started if the driver counts devices and this is not one of them.
        Status::NoDevice => !pond::cuda::Cuda::devices().is_ok_and(|count| count > 0),
        _ => false,
    });
    if is_untouched {
        TOUCHED.fetch_sub(1, Ordering::Relaxed);
    }
    opened
}

/// Makes an allocator on a device. `options` is null or `NAME=VALUE,...` with the names limit, soft_limit, low_watermark, high_watermark, pinned_limit, policy, reuse,
/// growth, deterministic, scrub, virtual, slack, handle, moves, move_time, move_credit_ms, export, rdma, one_handle, wait_ms, staging_threads (of copies of slices, which Rust programs make), captures; options that are not given come from the environment (MILLPOND_LIMIT and so on).
/// `captures=none` promises that graphs are captured on this device only on streams that were declared permanent, and on these not while another
/// thread calls. Then memory freed by an unknown stream, or on another thread's default stream, is marked when needed, which would end
/// any other capture, and is not held back. It takes effect if every allocator of the device, ended or not, was made with it.
/// `deterministic=1` queries no event, so that the same calls have the same results. Memory that several streams used, and memory freed on
/// streams that ended, becomes known to be free at a millpond_synchronize: without one such a program may take ever more memory, up to its limit.
/// It holds if all allocators of the device are deterministic: they share what is known of streams, including the answers to another one's queries.
/// A process can have 4096 allocators at one time, including ended ones with live memory: the next one is BAD_ARGUMENT. The number that it makes one after
/// another is not limited; but of those that end during one long call on another thread, such as a wait for a long kernel, none makes room before that call returns. A name is never reused.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_create(
    device: c_int,
    options: *const c_char,
    out: *mut MillpondAllocator,
) -> MillpondStatus {
    call(|| {
        put(out, 0)?;
        let device = u32::try_from(device).map_err(|_| {
            Failure::new(Status::BadArgument, format!("{device} is no device: they count from 0"))
        })?;
        put(out, open(device, text(options)?)?.name())
    })
}

/// Ends an allocator: waits for all that is queued on the device and gives back all memory that is not in use. It waits by events as far as these suffice, then by freeing a page
/// of pinned memory, which ends no capture; with captures=none it waits like millpond_synchronize. While the page is freed, launches of other threads block in the driver:
/// if work on a stream that was not declared waits for what another thread has yet to launch (collectives), synchronize that stream first, or end the allocator with
/// millpond_release. Live allocations can still be freed (and
/// millpond_torch_record_stream still records their uses), and millpond_trim and millpond_synchronize still give back what was freed; except for calls that only look (millpond_find, the reports) everything else
/// fails from now on. When it has no live memory any more, a later create removes it, unless it is one of the 64 that ended last and there is room: then it is as unknown as
/// if it had never been made, and every call that names it returns UNKNOWN_ALLOCATOR. With a code other than OK it was not ended: it works as before, and can be ended later.
/// A free after the end waits no more than one before it. The freed memory goes back to the device, if its work is complete, at the next create, trim,
/// synchronize or destroy of any allocator in the process, including a trim or synchronize of this one (memory that is held
/// back, and a deterministic one's memory: synchronize or destroy of one of the same device). Other threads that called for it remember its streams, at most 16 and
/// their own default stream, each with a driver event, until they end or call for others. No other events are left: those of permanent streams are given
/// back here, or at the millpond_synchronize that gives the last of its memory back. One reference to the device's primary context is kept for
/// all allocators of the device, including ended ones, to the end of the process: threads that remember streams of an ended one release them in the driver when
/// they end.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_destroy(allocator: MillpondAllocator) -> MillpondStatus {
    call(|| Door::find(allocator)?.close())
}

/// Like millpond_destroy, but neither waits for the work of any stream nor ends a capture: for garbage collectors, and for callers that cannot know what is being captured
/// just now. Complete memory goes back to the device, where the driver may wait in its frees, and with scrub=1 after it is overwritten; the rest goes back later, like memory freed after a
/// destroy. Memory that is held back, and all of a deterministic one, is not known to be complete: millpond_synchronize of this one, or that or
/// millpond_destroy of another one of the same device, gives it back. While a millpond_destroy waits on another thread, it ends the allocator at once,
/// and the destroy returns UNKNOWN_ALLOCATOR when it has waited.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_release(allocator: MillpondAllocator) -> MillpondStatus {
    call(|| Door::find(allocator)?.release())
}

/// Bytes on a stream, aligned to 512, uninitialised, for work queued on the stream from now on. 0 bytes are a null pointer.
/// The stream must be alive. If the cache serves it, the call queries the driver whether the stream captures and, unless the stream is
/// permanent, its id; it makes no other driver call and waits for nothing. Exception: a deterministic allocator, which queries no event, waits here for up to
/// wait_ms, at most 2 s, for streams that have ended, when there are dozens of them; no free and no millpond_record_use does.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_alloc(
    allocator: MillpondAllocator,
    bytes: usize,
    stream: *mut c_void,
    out: *mut *mut c_void,
) -> MillpondStatus {
    call(|| {
        put(out, core::ptr::null_mut())?;
        put(out, Door::find(allocator)?.alloc(bytes, stream.addr())?)
    })
}

/// Frees behind the allocation's own stream and all recorded uses. Never waits for the device, even if the allocator was
/// destroyed: then the memory goes back later (see millpond_destroy). For streams that were not declared permanent the memory is held back from others until they are named again. Null
/// does nothing.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_free(allocator: MillpondAllocator, ptr: *mut c_void) -> MillpondStatus {
    call(|| Door::any(allocator)?.free(ptr))
}

/// Like millpond_free, and behind what `stream` holds: for a free on another stream than the allocation's, or on its own if that may
/// end. A stream that was not declared permanent is marked here; if the driver refuses that, the memory is still freed and held back until the stream is named again.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_free_on(
    allocator: MillpondAllocator,
    ptr: *mut c_void,
    stream: *mut c_void,
) -> MillpondStatus {
    call(|| Door::any(allocator)?.free_on(ptr, stream.addr()))
}

/// Like millpond_free, and behind everything that any stream of the device holds: for memory whose users are unknown. Held back until
/// millpond_synchronize.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_free_unknown(allocator: MillpondAllocator, ptr: *mut c_void) -> MillpondStatus {
    call(|| Door::any(allocator)?.free_unknown(ptr))
}

/// Like millpond_free, and behind what each of `n` streams holds: for memory whose possible users are known, but not its actual ones. All of
/// them are alive; the allocation's own may be among them. With a code other than OK it frees nothing. If one of them captures, nothing else is
/// changed either; if one belongs to another device, or the driver fails, the uses of those before it may stay recorded: the memory of a later free comes
/// back behind what they hold then, and naming them all again has the same effect as the first time. Those that were not declared permanent are marked here, as by
/// millpond_free_on.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_free_after(
    allocator: MillpondAllocator,
    ptr: *mut c_void,
    streams: *const *mut c_void,
    n: usize,
) -> MillpondStatus {
    call(|| {
        let door = Door::any(allocator)?;
        let streams = match n {
            0 => &[],
            _ if streams.is_null() || n > isize::MAX as usize / size_of::<*mut c_void>() => {
                let message = format!("{n} streams at {streams:p}: there is no such list");
                return Err(Failure::new(Status::BadArgument, message));
            }
            // SAFETY: not null, and by the header so many handles.
            _ => unsafe { core::slice::from_raw_parts(streams, n) },
        };
        if ptr.is_null() {
            return Ok(());
        }
        // A capturing stream is found before a use is recorded anywhere, and before any stream's id is queried: a stream that another's capture
        // takes in meanwhile would destroy that capture.
        for stream in streams {
            // SAFETY: alive, by the header.
            if unsafe { door.gpu().driver().raw_captures(stream.cast())? } {
                let message =
                    format!("the stream {stream:p} is capturing a graph: free it again when that is over");
                return Err(Failure::new(Status::Capturing, message));
            }
        }
        let max = if mutant!(DoorFreeAfterOne) { 1 } else { n };
        for stream in streams.iter().take(max) {
            door.record_use(ptr, stream.addr())?;
        }
        door.free_and_mark(ptr, streams.iter().map(|stream| stream.addr()))
    })
}

/// Work on `stream`, queued by now or before the free, uses the allocation: its bytes are reused behind that.
/// For a thread's own default stream that is what is queued before the thread ends: a use is closed there, and work that destructors queue later, of
/// pthread keys or of thread_local objects, may not be covered. For null it does nothing.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_record_use(
    allocator: MillpondAllocator,
    ptr: *mut c_void,
    stream: *mut c_void,
) -> MillpondStatus {
    call(|| Door::find(allocator)?.record_use(ptr, stream.addr()))
}

/// Pinned host memory, aligned to 512, from the cache of pinned segments. 0 bytes are a null pointer. May pin more, and may wait
/// for what is in flight when the limit is reached.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_alloc_pinned(
    allocator: MillpondAllocator,
    bytes: usize,
    out: *mut *mut c_void,
) -> MillpondStatus {
    call(|| {
        put(out, core::ptr::null_mut())?;
        put(out, Door::find(allocator)?.alloc_pinned(bytes)?)
    })
}

/// Frees pinned memory: it is reused when all recorded uses are complete. Like millpond_free it never waits. Null does nothing.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_free_pinned(allocator: MillpondAllocator, ptr: *mut c_void) -> MillpondStatus {
    call(|| Door::any(allocator)?.free_pinned(ptr, false))
}

/// Like millpond_free_pinned, but reused when everything that any stream of the device holds is complete: for memory when it is unknown which
/// copies use it. Held back until millpond_synchronize.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_free_pinned_unknown(
    allocator: MillpondAllocator,
    ptr: *mut c_void,
) -> MillpondStatus {
    call(|| Door::any(allocator)?.free_pinned(ptr, true))
}

/// A copy on `stream`, queued by now or before the free, uses the pinned memory. For a thread's own default stream the same holds as for millpond_record_use. For null it does nothing.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_record_pinned_use(
    allocator: MillpondAllocator,
    ptr: *mut c_void,
    stream: *mut c_void,
) -> MillpondStatus {
    call(|| Door::find(allocator)?.record_pinned_use(ptr, stream.addr()))
}

/// The stream is never destroyed while the process lives: its handle alone identifies it, and a call queries the driver
/// at most whether it captures. It is marked whenever needed, unless it captures.
/// It may be declared at any time, by one allocator of the device for all: memory that was held back for it until then is marked when
/// needed. A program that declares a stream and destroys it even so loses what was freed there: that memory is kept until the end of the allocator;
/// other streams' memory stays available. If it is declared again, its id is queried: MILLPOND_STATUS_BAD_ARGUMENT if another stream has the handle,
/// MILLPOND_STATUS_CAPTURING while it captures.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_declare_permanent(
    allocator: MillpondAllocator,
    stream: *mut c_void,
) -> MillpondStatus {
    call(|| Door::find(allocator)?.declare_permanent(stream.addr()))
}

/// The live allocation that contains an address: its first byte and its requested length. Slow.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_find(
    allocator: MillpondAllocator,
    ptr: *const c_void,
    begin: *mut *mut c_void,
    bytes: *mut usize,
) -> MillpondStatus {
    call(|| {
        place(begin)?;
        place(bytes)?;
        let (at, len) = Door::any(allocator)?.around(ptr)?;
        put(begin, at as *mut c_void)?;
        put(bytes, len as usize)
    })
}

/// Gives idle memory back to the device, as far as it is known to be complete. `freed`, if not null, receives the number of bytes. May wait
/// for the device in the driver's frees, which end no capture. For a destroyed allocator this is what was freed after its end.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_trim(allocator: MillpondAllocator, freed: *mut usize) -> MillpondStatus {
    call(|| {
        let bytes = Door::any(allocator)?.trim()?;
        if freed.is_null() { Ok(()) } else { put(freed, bytes as usize) }
    })
}

/// The maximum that may be reserved on the device: `6GiB`, a number of bytes, `40%`, `none`.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_set_limit(allocator: MillpondAllocator, limit: *const c_char) -> MillpondStatus {
    call(|| Door::find(allocator)?.set_limit(text(limit)?))
}

/// Waits for the device, and takes back all freed memory whose work is done, including what was held back. Not while a graph is being captured: the
/// driver refuses then, and the capture is lost; but a capture on a stream that was declared permanent is checked for first, and survives.
/// For a destroyed allocator, everything that was freed of it goes back to the device. This is how a program declares that the device is idle:
/// if it is, the wait returns at once, and there is no call that declares it without a wait.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_synchronize(allocator: MillpondAllocator) -> MillpondStatus {
    call(|| Door::any(allocator)?.synchronize())
}

/// Sets the peaks of the report to the current values.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_reset_peaks(allocator: MillpondAllocator) -> MillpondStatus {
    call(|| {
        Door::find(allocator)?.gpu().reset_peaks();
        Ok(())
    })
}

/// What the pools hold, as JSON. Writes at most `room` bytes, the last of them a zero; `needed`, if not null, receives the bytes that the
/// whole text takes, including its zero.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_stats_json(
    allocator: MillpondAllocator,
    to: *mut c_char,
    room: usize,
    needed: *mut usize,
) -> MillpondStatus {
    report(allocator, to, room, needed, pond::report::Report::to_json)
}

/// What the pools hold, as text for a person. Otherwise like millpond_stats_json.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_report(
    allocator: MillpondAllocator,
    to: *mut c_char,
    room: usize,
    needed: *mut usize,
) -> MillpondStatus {
    report(allocator, to, room, needed, ToString::to_string)
}

fn report(
    allocator: MillpondAllocator,
    to: *mut c_char,
    room: usize,
    needed: *mut usize,
    words: impl FnOnce(&pond::report::Report) -> String,
) -> MillpondStatus {
    call(|| {
        let whole = words(&Door::any(allocator)?.gpu().report());
        let len = copy_out(&whole, to, room);
        if needed.is_null() { Ok(()) } else { put(needed, len + 1) }
    })
}

/// The message of the calling thread's last failure: what was requested, what was found, what to do. Valid until its next failure; never null.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_last_error() -> *const c_char {
    last()
}

/// The library's version.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}
