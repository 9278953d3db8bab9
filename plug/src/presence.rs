//! Which threads are in a call, so that what a call may use is freed after it and not under it.
//!
//! The simple version: a reader-writer lock around each call. This one has a cache line for each thread, with a number that is odd in a call, and
//! entering and leaving write only that, without a fence: a thread that needs to know has the kernel make every thread of the process
//! pass a fence (`membarrier`). If the kernel does not support that, each call has a fence of its own.
//!
//! The race, and both outcomes: a calling thread writes its number and then looks for an allocator; a freeing thread takes one out of the table,
//! then has the barrier, and then reads the numbers. Either the number is seen, and the freeing thread waits for the next one; or it was written after the
//! barrier, and then the allocator is not found any more.
//!
//! It does not know what is freed.

#![allow(unsafe_code, reason = "a call of the kernel, and lines that are never freed")]

use crate::sync::{
    AtomicBool, AtomicPtr, AtomicU64, Ordering, compiler_fence, fence, is_over, per_thread, shared,
};
use core::cell::Cell;

/// A thread's line, alone on its cache line. There are as many as threads ever existed at one time.
#[repr(align(128))]
struct Line {
    /// Odd in a call.
    turn: AtomicU64,
    taken: AtomicBool,
    next: *const Line,
}
// SAFETY: `next` is written before others see the line, and the rest are atomics.
unsafe impl Sync for Line {}

shared! {
    /// All lines, the newest first.
    static LINES: AtomicPtr<Line> = AtomicPtr::new(core::ptr::null_mut());
}
shared! {
    /// Calls of threads without a line: from destructors that run last.
    static STRAYS: AtomicU64 = AtomicU64::new(0);
}
shared! {
    /// The kernel makes the fences.
    static BY_KERNEL: AtomicBool = AtomicBool::new(false);
}

/// What a thread has instead of a line before its first call, and after its last one.
#[derive(Clone, Copy)]
enum Mine {
    None,
    Over,
    At(&'static Line),
}

/// Passes a thread's line on to another one when the thread ends.
struct GivenBack;

impl Drop for GivenBack {
    fn drop(&mut self) {
        if is_over() {
            return;
        }
        if let Ok(Mine::At(line)) = MINE.try_with(|mine| mine.replace(Mine::Over)) {
            line.taken.store(false, Ordering::Release);
        }
    }
}

per_thread! {
    static MINE: Cell<Mine> = Cell::new(Mine::None);
}
per_thread! {
    static GIVEN_BACK: GivenBack = GivenBack;
}

fn lines() -> impl Iterator<Item = &'static Line> {
    // SAFETY: null, or a line that is never freed.
    let at = |line: *const Line| unsafe { line.as_ref() };
    core::iter::successors(at(LINES.load(Ordering::Acquire)), move |line| at(line.next))
}

/// A line for the calling thread, of one that has ended or a new one; `None` if the thread's own values are gone. No lock: a thread may
/// fork meanwhile.
#[cold]
fn first() -> Option<&'static Line> {
    GIVEN_BACK.try_with(|_| ()).ok()?;
    // Read first: a line that is in use is written by its thread in every call, and a write here would take its cache line away.
    let is_free = |line: &&'static Line| {
        !line.taken.load(Ordering::Relaxed) && !line.taken.swap(true, Ordering::AcqRel)
    };
    let free = lines().find(is_free);
    let line = free.unwrap_or_else(|| {
        let (turn, taken) = (AtomicU64::new(0), AtomicBool::new(true));
        let line = Box::leak(Box::new(Line { turn, taken, next: core::ptr::null() }));
        let mut next = LINES.load(Ordering::Acquire);
        loop {
            line.next = next;
            match LINES.compare_exchange(next, line, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return line,
                Err(newer) => next = newer,
            }
        }
    });
    MINE.with(|mine| mine.set(Mine::At(line)));
    Some(line)
}

/// The calling thread is in a call until this is dropped.
#[must_use = "the call lasts until this is dropped"]
pub(crate) struct Here(How);

enum How {
    /// Left by storing this number.
    Counted(&'static Line, u64),
    Stray,
    /// A call inside another one.
    Within,
}

impl Drop for Here {
    #[inline]
    fn drop(&mut self) {
        match self.0 {
            // The call's reads are ordered before this store.
            How::Counted(line, turn) => line.turn.store(turn, Ordering::Release),
            How::Stray => drop(STRAYS.fetch_sub(1, Ordering::AcqRel)),
            How::Within => {}
        }
    }
}

/// Marks the calling thread as in a call.
#[inline]
pub(crate) fn enter() -> Here {
    let line = match MINE.with(Cell::get) {
        Mine::At(line) => Some(line),
        Mine::None => first(),
        Mine::Over => None,
    };
    let Some(line) = line else { return stray() };
    let turn = line.turn.load(Ordering::Relaxed);
    if turn % 2 == 1 {
        return Here(How::Within);
    }
    line.turn.store(turn + 1, Ordering::Relaxed);
    if BY_KERNEL.load(Ordering::Relaxed) {
        compiler_fence(Ordering::SeqCst);
    } else {
        fence(Ordering::SeqCst);
    }
    Here(How::Counted(line, turn + 2))
}

#[cold]
fn stray() -> Here {
    STRAYS.fetch_add(1, Ordering::SeqCst);
    fence(Ordering::SeqCst);
    Here(How::Stray)
}

/// The calls that were under way when this was made, except the calling thread's own.
pub(crate) struct Calls {
    busy: Vec<(&'static Line, u64)>,
    strays: bool,
    /// The kernel made no fences, for example where a process sandboxes itself later: it is unknown which calls are under way.
    unseen: bool,
}

impl Calls {
    /// The calls under way now: a call that is not among them sees what was written before.
    pub(crate) fn now() -> Calls {
        let unseen = !barrier();
        let mine = MINE.with(Cell::get);
        let is_mine = |line: &Line| matches!(mine, Mine::At(mine) if core::ptr::eq(line, mine));
        let others =
            lines().filter(|line| !is_mine(line)).map(|line| (line, line.turn.load(Ordering::Acquire)));
        Calls {
            busy: others.filter(|(_, turn)| turn % 2 == 1).collect(),
            strays: STRAYS.load(Ordering::Acquire) > 0,
            unseen,
        }
    }

    /// Whether all have been left. If they were unknown, they are the calls under way now, with whatever is left of theirs.
    pub(crate) fn are_over(&mut self) -> bool {
        if self.unseen {
            *self = Calls::now();
        }
        self.busy.retain(|(line, turn)| line.turn.load(Ordering::Acquire) == *turn);
        // The calls are unknown: there has to be a moment without any.
        self.strays &= STRAYS.load(Ordering::Acquire) > 0;
        self.busy.is_empty() && !self.strays && !self.unseen
    }
}

/// What this thread wrote is visible to every call that begins from here on, and every call that has begun is visible here. `false`: the kernel refused.
fn barrier() -> bool {
    if mutant!(DoorBarrierSkipped) {
        return true;
    }
    fence(Ordering::SeqCst);
    let made = !BY_KERNEL.load(Ordering::Relaxed) || kernel::barrier();
    fence(Ordering::SeqCst);
    made
}

/// Call it before the first allocator is made.
pub(crate) fn prepare() {
    if kernel::register() {
        BY_KERNEL.store(true, Ordering::Relaxed);
    }
}

#[cfg(all(not(loom), target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
mod kernel {
    use core::ffi::{c_int, c_long};

    unsafe extern "C" {
        fn syscall(number: c_long, ...) -> c_long;
    }
    const MEMBARRIER: c_long = if cfg!(target_arch = "x86_64") { 324 } else { 283 };
    const PRIVATE_EXPEDITED: c_int = 8;
    const REGISTER_PRIVATE_EXPEDITED: c_int = 16;

    fn membarrier(command: c_int) -> bool {
        // SAFETY: membarrier(2) with a command and no flags; one that the kernel does not know is an error code.
        unsafe { syscall(MEMBARRIER, command, 0 as c_int, 0 as c_int) == 0 }
    }
    /// Whether the kernel supports it.
    pub(super) fn register() -> bool {
        membarrier(REGISTER_PRIVATE_EXPEDITED) && membarrier(PRIVATE_EXPEDITED)
    }
    /// Whether it was done: once registered it succeeds, unless memory is short, or a filter of system calls has since forbidden it.
    pub(super) fn barrier() -> bool {
        #[cfg(test)]
        if REFUSES.get() {
            return false;
        }
        membarrier(PRIVATE_EXPEDITED)
    }
    #[cfg(test)]
    std::thread_local! {
        /// It does not, for the calling thread.
        pub(super) static REFUSES: core::cell::Cell<bool> = const { core::cell::Cell::new(false) };
    }
}
#[cfg(not(all(not(loom), target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64"))))]
mod kernel {
    pub(super) fn register() -> bool {
        false
    }
    pub(super) fn barrier() -> bool {
        true
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::{Calls, Here, How, enter};
    use std::sync::mpsc::{Receiver, Sender, channel};

    /// A call that reports that it has begun, and ends when it receives the signal.
    fn one_call(sender: &Sender<()>, gone: &Receiver<()>) {
        let _here = enter();
        sender.send(()).expect("the receiver waits");
        gone.recv().expect("a message");
    }

    /// A call of another thread's is waited for, and none that begins later; one's own is not.
    #[test]
    fn calls_of_others_are_waited_for() {
        let mine = enter();
        assert!(matches!(enter(), Here(How::Within)));
        let ((sender, receiver), (go, gone)) = (channel(), channel());
        let other = std::thread::spawn(move || (0..2).for_each(|_| one_call(&sender, &gone)));
        receiver.recv().expect("a message");
        let mut calls = Calls::now();
        assert!(!calls.are_over());
        go.send(()).expect("it waits");
        receiver.recv().expect("a message");
        // Other tests' threads call too.
        while !calls.are_over() {
            std::thread::yield_now();
        }
        assert!(!Calls::now().are_over(), "the next one");
        go.send(()).expect("it waits");
        other.join().expect("it is well");
        drop(mine);
    }

    /// A kernel that made fences and does not any more: no call is known to be over, and once it does again those are that are.
    #[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
    #[test]
    fn without_fences_no_call_is_over() {
        super::prepare();
        if !super::BY_KERNEL.load(super::Ordering::Relaxed) {
            println!("SKIPPED: this kernel makes no fences");
            return;
        }
        let refuses = |refuses| super::kernel::REFUSES.set(refuses);
        refuses(true);
        let mut calls = Calls::now();
        assert!(!calls.are_over(), "without fences it is unknown");
        let ((sender, receiver), (go, gone)) = (channel(), channel());
        let other = std::thread::spawn(move || one_call(&sender, &gone));
        receiver.recv().expect("a message");
        assert!(!calls.are_over() && !calls.are_over(), "nor now");
        refuses(false);
        assert!(!calls.are_over(), "one call is under way");
        go.send(()).expect("it waits");
        other.join().expect("it is well");
        // Other tests' threads call too.
        while !calls.are_over() {
            std::thread::yield_now();
        }
    }
}
