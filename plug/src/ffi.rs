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

/// The name of an allocator; 0 is none.
pub type MillpondAllocator = u32;

pub(crate) fn text<'a>(text: *const c_char) -> Result<&'a str, Failure> {
    if text.is_null() {
        return Ok("");
    }
    // SAFETY: a text that ends with a zero byte, by the header.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map_err(|_| Failure::new(Status::BadArgument, format!("{text:?} is no UTF-8")))
}

/// Fails if there is no place for a result: to be asked before anything is done.
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
        // where there is no memory, and then a child is not told apart.
        let _ = unsafe { pthread_atfork(None, None, Some(child)) };
    });
}
#[cfg(not(unix))]
fn watch_forks() {}

/// A new allocator. Whoever is forked from this process while it has one, or is making one, has none.
pub(crate) fn open(device: u32, options: &str) -> Result<&'static Door, Failure> {
    watch_forks();
    crate::presence::prepare();
    TOUCHED.fetch_add(1, Ordering::Relaxed);
    let opened = Door::open(device, options);
    let is_untouched = opened.as_ref().is_err_and(|e| match e.status {
        // An option that is none, found before the driver was asked for anything.
        Status::BadArgument => true,
        // No driver, or one that does not start: CUDA has begun where the driver counts devices and this is none of them.
        Status::NoDevice => !pond::cuda::Cuda::devices().is_ok_and(|count| count > 0),
        _ => false,
    });
    if is_untouched {
        TOUCHED.fetch_sub(1, Ordering::Relaxed);
    }
    opened
}

/// Makes an allocator on a device. `options` is null or `NAME=VALUE,...` with the names limit, pinned_limit, policy, reuse,
/// growth, deterministic, scrub, wait_ms, captures; what is not said comes from the environment (MILLPOND_LIMIT and so on).
/// `captures=none` promises that nobody captures a graph on this device but on streams that were declared permanent, and on these not while another
/// thread calls. Then what was freed by nobody knows whom, or on another thread's default stream, is marked when that is needed, which would end
/// any other capture, and is not held back. It counts if no allocator of the device, ended or not, was made without it.
/// `deterministic=1` asks no event whether it is over, so that the same calls have the same answers. What several streams used, and what was freed on
/// streams that ended, is known to be over at a millpond_synchronize: without one such a program may take ever more memory, up to its limit.
/// It holds where all allocators of the device are deterministic: they share what is known of streams, and another one's questions tell this one, too.
/// A process can have 4096 at one time, ended ones of which memory is alive among them: the next one is BAD_ARGUMENT. How many it makes one after
/// the other has no such end; but of those that end beside one call that lasts, such as a wait for a long kernel on another thread, none makes room before that call is over. A name is never another's.
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

/// Ends an allocator: waits for all that is queued on the device and gives back what nobody has. It waits by events as far as these tell, then by freeing a page
/// of pinned memory, which ends no capture; with captures=none it waits as millpond_synchronize. While the page is freed, other threads' launches stand in the driver:
/// where work on a stream that was not declared waits for what another thread has yet to launch (collectives), synchronize that stream first, or end by
/// millpond_release. What is alive can still be freed (and
/// millpond_torch_record_stream still says who uses it), and millpond_trim and millpond_synchronize still give back what was; but for the calls that only look (millpond_find, the reports) everything else
/// fails from now on. When nothing of it is alive any more, a later create lets it go, unless it is one of the 64 that ended last, and there is room: it is then as unknown as
/// if it had never been made, and every call that names it is UNKNOWN_ALLOCATOR. With a code other than OK it was not ended: it works as before, and can be ended later.
/// A free after the end waits no more than one before it. What it freed goes back to the device, if its work is complete, at the next create, trim,
/// synchronize or destroy of whatever allocator in the process, a trim or synchronize of this one included (what is held
/// back, and what a deterministic one had: synchronize or destroy of one of the same device). Other threads that called for it remember its streams, at most 16 and
/// their own default stream, each with a driver event, until they end or call for others. Nothing else is left of events: those of permanent streams go
/// back here, or at the millpond_synchronize by which the last of it goes back. One hold of the device's primary context is kept for
/// all allocators of the device, ended ones too, to the end of the process: threads that remember streams of an ended one let go of them in the driver, when
/// they end.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_destroy(allocator: MillpondAllocator) -> MillpondStatus {
    call(|| Door::find(allocator)?.close())
}

/// As millpond_destroy, and neither waits for the work of any stream nor ends a capture: for garbage collectors, and for whoever cannot know who captures
/// just now. What is complete goes back to the device, where the driver may wait in its frees, and with scrub=1 behind the overwriting; the rest is owed as what is freed after a
/// destroy. What is held back, and all of a deterministic one, is not known to be complete: millpond_synchronize of this one, or that or
/// millpond_destroy of another one of the same device, gives it back. Beside a millpond_destroy that waits on another thread it ends the allocator at once,
/// and the destroy answers UNKNOWN_ALLOCATOR when it has waited.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_release(allocator: MillpondAllocator) -> MillpondStatus {
    call(|| Door::find(allocator)?.release())
}

/// Bytes on a stream, aligned to 512, uninitialised, for work queued on the stream from now on. 0 bytes are a null pointer.
/// The stream must be alive. From the cache it asks the driver whether the stream captures and, unless it is
/// permanent, who it is; it makes no other call and waits for nothing. But a deterministic allocator, which asks no event, waits here for up to
/// wait_ms, and 2 s at most, for streams that have ended, when dozens have; no free and no millpond_record_use does.
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

/// Frees in the order of the allocation's own stream and of all recorded uses. Never waits for the device, nor if the allocator was
/// destroyed: then it goes back later (see millpond_destroy). Of streams that were not declared permanent it is held back from others until they are named again. Null is
/// nothing.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_free(allocator: MillpondAllocator, ptr: *mut c_void) -> MillpondStatus {
    call(|| Door::any(allocator)?.free(ptr))
}

/// As millpond_free, and behind what `stream` holds: for a free on another stream than the allocation's, or on its own if that may
/// end. A stream that was not declared permanent is marked here; where the driver refuses that, it is freed all the same and held back until the stream is named again.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_free_on(
    allocator: MillpondAllocator,
    ptr: *mut c_void,
    stream: *mut c_void,
) -> MillpondStatus {
    call(|| Door::any(allocator)?.free_on(ptr, stream.addr()))
}

/// As millpond_free, and behind everything that any stream of the device holds: when nobody can say who used it. Held back until
/// millpond_synchronize.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_free_unknown(allocator: MillpondAllocator, ptr: *mut c_void) -> MillpondStatus {
    call(|| Door::any(allocator)?.free_unknown(ptr))
}

/// As millpond_free, and behind what each of `n` streams holds: when it is known who may have used it, but not who did. All of
/// them are alive, the allocation's own may be among them. With a code other than OK it frees nothing. If one of them captures nothing is
/// changed either; if one is another device's, or the driver fails, the uses of those before it may stay recorded: a later free comes
/// back behind what they hold then, and to name them all again is as if it were the first time. Those that were not declared permanent are marked here, as
/// millpond_free_on has it.
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
        // Whoever captures is found before a use is recorded anywhere, and before any stream is asked who it is: one that another's capture
        // draws in meanwhile would lose it by that.
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

/// Work on `stream`, queued by now or before the free, uses the allocation: its bytes come back behind that.
/// Of a thread's own default stream that is what is queued before the thread ends: a use is closed there, and what destructors that run later queue, of
/// pthread keys or of thread_local objects, may not be covered. A use of null is nothing.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_record_use(
    allocator: MillpondAllocator,
    ptr: *mut c_void,
    stream: *mut c_void,
) -> MillpondStatus {
    call(|| Door::find(allocator)?.record_use(ptr, stream.addr()))
}

/// Pinned host memory, aligned to 512, from the cache of pinned segments. 0 bytes are a null pointer. May pin more, and wait
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

/// Frees pinned memory: it is handed out again when all recorded uses are complete. Never waits, as millpond_free. Null is nothing.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_free_pinned(allocator: MillpondAllocator, ptr: *mut c_void) -> MillpondStatus {
    call(|| Door::any(allocator)?.free_pinned(ptr, false))
}

/// As millpond_free_pinned, and when everything that any stream of the device holds is complete: when nobody can say which
/// copies use it. Held back until millpond_synchronize.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_free_pinned_unknown(
    allocator: MillpondAllocator,
    ptr: *mut c_void,
) -> MillpondStatus {
    call(|| Door::any(allocator)?.free_pinned(ptr, true))
}

/// A copy on `stream`, queued by now or before the free, uses the pinned memory. Of a thread's own default stream as millpond_record_use. A use of null is nothing.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_record_pinned_use(
    allocator: MillpondAllocator,
    ptr: *mut c_void,
    stream: *mut c_void,
) -> MillpondStatus {
    call(|| Door::find(allocator)?.record_pinned_use(ptr, stream.addr()))
}

/// The stream is never destroyed while the process lives: its handle alone says who it is, and a call asks the driver
/// at most whether it captures. It is marked whenever that is needed, unless it captures.
/// It may be declared at any time, by one allocator of the device for all: what it held back until then is marked when that is
/// needed. Who declares a stream and destroys it all the same loses what was freed there: it is held until the end of the allocator,
/// and other streams' memory is had as before. Declared again it is asked who it is: MILLPOND_STATUS_BAD_ARGUMENT if another stream has the handle,
/// MILLPOND_STATUS_CAPTURING while it captures.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_declare_permanent(
    allocator: MillpondAllocator,
    stream: *mut c_void,
) -> MillpondStatus {
    call(|| Door::find(allocator)?.declare_permanent(stream.addr()))
}

/// The live allocation that an address lies in: its first byte and its length as asked for. Slow.
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

/// Gives idle memory back to the device, as far as it is known complete. `freed`, if not null, is how many bytes that was. May wait
/// for the device in the driver's frees, which end no capture. Of a destroyed allocator that is what was freed after its end.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_trim(allocator: MillpondAllocator, freed: *mut usize) -> MillpondStatus {
    call(|| {
        let bytes = Door::any(allocator)?.trim()?;
        if freed.is_null() { Ok(()) } else { put(freed, bytes as usize) }
    })
}

/// How much may be taken of the device: `6GiB`, a number of bytes, `40%`, `none`.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_set_limit(allocator: MillpondAllocator, limit: *const c_char) -> MillpondStatus {
    call(|| Door::find(allocator)?.set_limit(text(limit)?))
}

/// Waits for the device, and takes back what it is done with, what was held back included. Not while anybody captures a graph: the
/// driver refuses then, and the capture is lost; but one of a stream that was declared permanent is looked for first, and lives.
/// Of a destroyed allocator, all that was freed of it goes back to the device. So this is how a program says that the device is quiet:
/// where it is, the wait comes back at once, and there is no call that says so without one.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_synchronize(allocator: MillpondAllocator) -> MillpondStatus {
    call(|| Door::any(allocator)?.synchronize())
}

/// Sets the peaks of the report to the present values.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_reset_peaks(allocator: MillpondAllocator) -> MillpondStatus {
    call(|| {
        Door::find(allocator)?.gpu().reset_peaks();
        Ok(())
    })
}

/// What the pools hold, as JSON. Writes at most `room` bytes, the last of them a zero; `needed`, if not null, is how many the
/// whole takes, its zero included.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_stats_json(
    allocator: MillpondAllocator,
    to: *mut c_char,
    room: usize,
    needed: *mut usize,
) -> MillpondStatus {
    report(allocator, to, room, needed, pond::report::Report::to_json)
}

/// What the pools hold, for people. As millpond_stats_json.
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

/// What the calling thread's last failure was, in words: asked, found, what to do. Valid until its next failure; never null.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_last_error() -> *const c_char {
    last()
}

/// The library's version.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}
