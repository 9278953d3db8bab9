//! Addresses to allocations: a table by address, built like a page table, so that threads share no lock.
//!
//! The simple version: a hash map under a lock. This one has a root of leaves, a leaf for each 256 MiB of addresses that
//! ever held an allocation, a slot for each 512 bytes of it. All of it is zeroed memory of the system, which costs
//! nothing until a page of it is touched: one of 4 KiB for up to 128 neighbouring granules with allocations.
//!
//! A slot is empty, live, or held: a call that looks at an allocation or ends it holds its slot meanwhile, and a free or a recorded use on a stream that
//! is new to it holds it through the driver calls about that stream too. So a free beside another call on the same pointer, which is the caller's
//! mistake, is an error code and nothing worse; the second call yields until the first is done. This file knows an allocation as words; the allocator knows their meaning.

#![allow(unsafe_code, reason = "leaves are reached through atomic pointers and are never freed")]

use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::sync::OnceLock;

/// The maximum number of bits of an address; addresses beyond are refused.
const BITS: u32 = 52;
/// A slot stands for 2^9 bytes, a leaf for 2^28.
const GRANULE: u32 = 9;
const LEAF: u32 = 28;
const SLOTS: usize = 1 << (LEAF - GRANULE);

/// The first word of an empty slot.
const EMPTY: u64 = 0;
const HELD: u64 = 1;

/// An allocation as words; the first is above 1.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Entry {
    /// `RawAllocation::to_words`.
    pub(crate) words: [u64; 3],
    /// Other facts that its allocator needs.
    pub(crate) tag: u64,
}

#[derive(Debug)]
struct Slot([AtomicU64; 4]);

/// The table of a process.
#[derive(Debug)]
pub(crate) struct Index {
    root: Box<[AtomicPtr<Slot>]>,
}

/// The process's own.
#[inline]
pub(crate) fn index() -> &'static Index {
    static INDEX: OnceLock<Index> = OnceLock::new();
    INDEX.get_or_init(Index::new)
}

/// A slot that is held, until it is put back or ended.
pub(crate) struct Hold<'a> {
    slot: &'a Slot,
    entry: Entry,
}

impl Hold<'_> {
    pub(crate) fn entry(&self) -> Entry {
        self.entry
    }
    pub(crate) fn set_tag(&mut self, tag: u64) {
        self.entry.tag = tag;
        self.slot.0[3].store(tag, Ordering::Relaxed);
    }
    /// Ends the allocation. Call it before its bytes can be reused.
    pub(crate) fn end(self) {
        self.slot.0[0].store(EMPTY, Ordering::Release);
        core::mem::forget(self);
    }
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        self.slot.0[0].store(self.entry.words[0], Ordering::Release);
    }
}

impl Index {
    fn new() -> Index {
        let zeroes = vec![0_usize; 1 << (BITS - LEAF)].into_boxed_slice();
        // SAFETY: a null pointer is a word of zeroes, of the same size and alignment; the box keeps its layout.
        Index { root: unsafe { Box::from_raw(Box::into_raw(zeroes) as *mut [AtomicPtr<Slot>]) } }
    }

    fn leaf(&self, addr: u64) -> Option<&AtomicPtr<Slot>> {
        self.root.get(usize::try_from(addr >> LEAF).ok()?)
    }

    fn slot_of(leaf: &AtomicPtr<Slot>, addr: u64) -> Option<&Slot> {
        let slots = leaf.load(Ordering::Acquire);
        // SAFETY: null, or a leaf of SLOTS slots that is never freed.
        (!slots.is_null()).then(|| unsafe { &*slots.add((addr >> GRANULE) as usize % SLOTS) })
    }

    #[cold]
    fn grow(leaf: &AtomicPtr<Slot>) {
        let zeroes = vec![[0_u64; 4]; SLOTS].into_boxed_slice();
        let fresh = Box::into_raw(zeroes).cast::<Slot>();
        if leaf.compare_exchange(core::ptr::null_mut(), fresh, Ordering::AcqRel, Ordering::Acquire).is_err() {
            let zeroes = core::ptr::slice_from_raw_parts_mut(fresh.cast::<[u64; 4]>(), SLOTS);
            // SAFETY: made above, and not yet shared.
            drop(unsafe { Box::from_raw(zeroes) });
        }
    }

    /// An allocation begins at `addr`, a multiple of 512. `false`: the address is out of range or, which is a defect, not
    /// free.
    #[must_use]
    #[inline]
    pub(crate) fn insert(&self, addr: u64, entry: Entry) -> bool {
        let Some(leaf) = self.leaf(addr) else { return false };
        if leaf.load(Ordering::Acquire).is_null() {
            Index::grow(leaf);
        }
        let Some(slot) = Index::slot_of(leaf, addr) else { return false };
        if slot.0[0].load(Ordering::Acquire) != EMPTY {
            return false;
        }
        // The caller has exclusive ownership of the bytes, and so of their slot.
        slot.0[1].store(entry.words[1], Ordering::Relaxed);
        slot.0[2].store(entry.words[2], Ordering::Relaxed);
        slot.0[3].store(entry.tag, Ordering::Relaxed);
        slot.0[0].store(entry.words[0], Ordering::Release);
        true
    }

    /// The live allocation that begins at `addr`.
    #[inline]
    pub(crate) fn hold(&self, addr: u64) -> Option<Hold<'_>> {
        if addr & ((1 << GRANULE) - 1) != 0 {
            return None;
        }
        let slot = Index::slot_of(self.leaf(addr)?, addr)?;
        loop {
            match slot.0[0].load(Ordering::Relaxed) {
                EMPTY => return None,
                HELD => std::thread::yield_now(),
                first => {
                    let held = if mutant!(DoorHoldShared) {
                        std::thread::yield_now();
                        slot.0[0].store(HELD, Ordering::Relaxed);
                        Ok(first)
                    } else {
                        slot.0[0].compare_exchange(first, HELD, Ordering::Acquire, Ordering::Relaxed)
                    };
                    if held.is_ok() {
                        let [_, b, c, d] = &slot.0;
                        let words = [first, b.load(Ordering::Relaxed), c.load(Ordering::Relaxed)];
                        return Some(Hold { slot, entry: Entry { words, tag: d.load(Ordering::Relaxed) } });
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Entry, Index};

    fn entry(n: u64) -> Entry {
        Entry { words: [n, n + 1, n + 2], tag: !n }
    }

    #[test]
    fn what_is_put_in_is_found_until_it_ends() {
        let index = Index::new();
        for addr in [512, 1 << 28, (1 << 28) - 1024, 0x7f12_3456_7800, (1 << 52) - 512] {
            assert!(index.hold(addr).is_none());
            assert!(index.insert(addr, entry(addr)));
            assert!(!index.insert(addr, entry(7)), "a live allocation is not overwritten");
            assert_eq!(index.hold(addr).expect("it is there").entry(), entry(addr));
            assert!(index.hold(addr + 1).is_none() && index.hold(addr + 512).is_none(), "not inside it");
            index.hold(addr).expect("a look ends nothing").end();
            assert!(index.hold(addr).is_none());
            assert!(index.insert(addr, entry(9)), "the next one may begin there");
        }
    }

    #[test]
    fn addresses_out_of_range_are_refused() {
        let index = Index::new();
        for addr in [1 << 52, !511] {
            assert!(!index.insert(addr, entry(2)));
            assert!(index.hold(addr).is_none());
        }
    }

    #[test]
    fn of_many_frees_of_one_pointer_one_succeeds() {
        let index = Index::new();
        for round in 0..2000 {
            assert!(index.insert(1 << 30, entry(100 + round)));
            let ended: usize = std::thread::scope(|scope| {
                let free = || match index.hold(1 << 30) {
                    Some(hold) => {
                        hold.end();
                        1
                    }
                    None => 0,
                };
                let threads = [scope.spawn(free), scope.spawn(free), scope.spawn(free)];
                threads.into_iter().map(|t| t.join().expect("no panic")).sum()
            });
            assert_eq!(ended, 1);
        }
    }
}
