//! A host allocator that counts what is held, on accounts.
//!
//! Each thread books on the account that it was put on ([`Account::scope`]), and each account has two sides: the program
//! with the library, and the device. While a thread is inside the simulated device ([`device`]) it books on the device's
//! side, because a simulator may remember all that ever happened: its oracle does. Every block carries, in front of its
//! first byte, the account and the side that it was booked on, so a block is taken off where it was put on, whoever frees
//! it and from where. That is exact: what the device allocated and the library frees never lowers the library's figure.
//!
//! It does not know what is held, nor how much is too much.

#![allow(unsafe_code, reason = "an allocator is an unsafe trait")]
#![allow(clippy::cast_possible_wrap, reason = "no block has 2^63 bytes")]
#![allow(clippy::cast_ptr_alignment, reason = "the word lies in front of the bytes, which are aligned to 8")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicI64, AtomicU32, Ordering::Relaxed};

/// The allocator.
pub struct Counting;

/// Accounts that can be opened in one process. Account 0 is that of threads without one.
const ACCOUNTS: usize = 1024;

struct Side {
    bytes: AtomicI64,
    blocks: AtomicI64,
    /// What was ever made: it only grows.
    bytes_made: AtomicI64,
    blocks_made: AtomicI64,
}

impl Side {
    const fn new() -> Side {
        Side {
            bytes: AtomicI64::new(0),
            blocks: AtomicI64::new(0),
            bytes_made: AtomicI64::new(0),
            blocks_made: AtomicI64::new(0),
        }
    }
}

static SIDES: [Side; 2 * ACCOUNTS] = [const { Side::new() }; 2 * ACCOUNTS];

thread_local! {
    /// Twice the account's number, and one more inside the device.
    static SIDE: Cell<u32> = const { Cell::new(0) };
}

/// What one run holds.
#[derive(Clone, Copy)]
pub struct Account(u32);

/// What a side of an account holds.
#[derive(Clone, Copy, Debug)]
pub struct Held {
    pub bytes: i64,
    pub blocks: i64,
}

impl Account {
    /// A new account.
    ///
    /// # Panics
    /// When too many were opened.
    pub fn open() -> Account {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let number = NEXT.fetch_add(1, Relaxed);
        assert!((number as usize) < ACCOUNTS, "{ACCOUNTS} accounts in one process: make room for more");
        Account(number)
    }
    /// The account of threads that have none.
    pub fn unassigned() -> Account {
        Account(0)
    }
    /// The calling thread's.
    #[allow(dead_code, reason = "not every test that counts asks for it")]
    pub fn here() -> Account {
        Account(SIDE.get() / 2)
    }
    /// Runs something on this account, outside the device.
    pub fn scope<R>(self, run: impl FnOnce() -> R) -> R {
        on_side(2 * self.0, run)
    }
    /// What the library and the program hold.
    pub fn library(self) -> Held {
        held(2 * self.0)
    }
    /// What the library and the program ever made, held or not: the work of making it, not what is left of it.
    #[allow(dead_code, reason = "not every test that counts asks for it")]
    pub fn made(self) -> Held {
        let side = &SIDES[2 * self.0 as usize];
        Held { bytes: side.bytes_made.load(Relaxed), blocks: side.blocks_made.load(Relaxed) }
    }
    /// What the device holds.
    pub fn device(self) -> Held {
        held(2 * self.0 + 1)
    }
}

fn held(side: u32) -> Held {
    let side = &SIDES[side as usize];
    Held { bytes: side.bytes.load(Relaxed), blocks: side.blocks.load(Relaxed) }
}

/// Runs something inside the device.
pub fn device<R>(run: impl FnOnce() -> R) -> R {
    on_side(SIDE.get() | 1, run)
}

/// Runs what the device was given to call: the library again.
pub fn library<R>(run: impl FnOnce() -> R) -> R {
    on_side(SIDE.get() & !1, run)
}

fn on_side<R>(side: u32, run: impl FnOnce() -> R) -> R {
    struct Back(u32);
    impl Drop for Back {
        fn drop(&mut self) {
            SIDE.set(self.0);
        }
    }
    let _back = Back(SIDE.replace(side));
    run()
}

/// How far in front of the bytes the block begins: room for the side, and the alignment is kept.
fn front(layout: Layout) -> usize {
    layout.align().max(8)
}

/// The block's own layout; `None` if there is none so large.
fn whole(layout: Layout) -> Option<Layout> {
    Layout::from_size_align(layout.size().checked_add(front(layout))?, layout.align().max(8)).ok()
}

fn book(side: u32, blocks: i64, bytes: i64) {
    let side = &SIDES[side as usize];
    side.blocks.fetch_add(blocks, Relaxed);
    side.bytes.fetch_add(bytes, Relaxed);
    if blocks > 0 {
        side.blocks_made.fetch_add(blocks, Relaxed);
        side.bytes_made.fetch_add(bytes, Relaxed);
    }
}

impl Counting {
    /// Puts the side in front of a block that was just made.
    fn sign(block: *mut u8, layout: Layout) -> *mut u8 {
        if block.is_null() {
            return block;
        }
        let side = SIDE.try_with(Cell::get).unwrap_or(0);
        book(side, 1, layout.size() as i64);
        // SAFETY: the block is `front` longer than asked for, `front` is at least 8 and a multiple of 8 because alignments
        // are powers of two, and the block is aligned to 8: the word right in front of the bytes is in it and aligned.
        unsafe {
            let bytes = block.add(front(layout));
            bytes.cast::<u32>().sub(1).write(side);
            bytes
        }
    }
}

// SAFETY: blocks come from the system's allocator, longer in front by a multiple of the alignment; layouts are changed the
// same way when a block is made and when it is given back.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let Some(whole) = whole(layout) else { return std::ptr::null_mut() };
        // SAFETY: it is not empty.
        Self::sign(unsafe { System.alloc(whole) }, layout)
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let Some(whole) = whole(layout) else { return std::ptr::null_mut() };
        // SAFETY: it is not empty.
        Self::sign(unsafe { System.alloc_zeroed(whole) }, layout)
    }

    unsafe fn dealloc(&self, bytes: *mut u8, layout: Layout) {
        let whole = whole(layout).expect("it was allocated with this layout");
        // SAFETY: `sign` wrote the word, and the block begins `front` before the bytes.
        unsafe {
            let side = bytes.cast::<u32>().sub(1).read();
            book(side, -1, -(layout.size() as i64));
            System.dealloc(bytes.sub(front(layout)), whole);
        }
    }
}
