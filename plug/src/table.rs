//! A table of values by number, which is never reused for another value. A value stays until it is taken out and no call can be looking at
//! it any more; then its place is free for the next one, under another number. It does not know what the values are.
//!
//! A number is a place, of `N`, and how many values were in it before: 5 in a table of 4,096 places is the first value of place 5, and 4,101 the second.

#![allow(
    unsafe_code,
    reason = "values are reached through atomic pointers, and freed behind the last call that may hold one"
)]

use crate::presence::Calls;
use crate::sync::{AtomicPtr, AtomicU32, AtomicUsize, Mutex, Ordering, each, makes};
use std::collections::VecDeque;

/// At most `N` values at one time, a power of two.
pub(crate) struct Table<T, const N: usize> {
    places: [AtomicPtr<T>; N],
    /// The number of the next value of each place; 0 if there was none yet.
    next: [AtomicU32; N],
    /// How many places were ever taken.
    taken: AtomicUsize,
    apart: Mutex<Apart<T>>,
}

/// What is needed only when a value comes or goes.
struct Apart<T> {
    free: VecDeque<usize>,
    /// Values that are in no place, and the calls that may still look at them.
    leaving: Vec<(usize, Box<T>, Calls)>,
}

impl<T, const N: usize> Table<T, N> {
    makes! {
        pub(crate) fn new() -> Table<T, N> {
            assert!(N.is_power_of_two() && N <= 1 << 12, "a tag has so much room");
            Table {
                places: each![AtomicPtr::new(core::ptr::null_mut()); N],
                next: each![AtomicU32::new(0); N],
                taken: AtomicUsize::new(0),
                apart: Mutex::new(Apart { free: VecDeque::new(), leaving: Vec::new() }),
            }
        }
    }

    /// The place of a number.
    pub(crate) const fn place(number: u32) -> usize {
        number as usize % N
    }

    /// Takes a number and fills its place with the value that `make` makes of it; `None` if all places are taken.
    pub(crate) fn put(&self, make: impl FnOnce(u32) -> Box<T>) -> Option<&T> {
        let place = self.apart.lock().free.pop_front();
        let place = if let Some(place) = place {
            place
        } else {
            let more = |taken| (taken < N).then_some(taken + 1);
            self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?
        };
        let number = match self.next[place].load(Ordering::Relaxed) {
            0 => place as u32,
            number => number,
        };
        let value = Box::into_raw(make(number));
        // The last number of a place has no successor: `free` no longer has it.
        self.next[place].store(number.saturating_add(N as u32), Ordering::Relaxed);
        self.places[place].store(value, Ordering::Release);
        // SAFETY: just made, and it stays while a call is under way that may look at it, including this one.
        Some(unsafe { &*value })
    }

    /// Whether all places are taken.
    pub(crate) fn is_full(&self) -> bool {
        self.taken.load(Ordering::Relaxed) >= N && self.apart.lock().free.is_empty()
    }

    /// What is in a place now.
    pub(crate) fn at(&self, place: usize) -> Option<&T> {
        // SAFETY: null, or a value that is freed behind the calls that may have found it here.
        self.places.get(place).and_then(|at| unsafe { at.load(Ordering::Acquire).as_ref() })
    }

    /// All values. A place that is taken and not filled yet is skipped, and those behind it are not.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        (0..self.taken.load(Ordering::Relaxed)).filter_map(|place| self.at(place))
    }

    /// Takes a value out, which no later call will look up; the calls that have it keep it to their end. The caller does this once
    /// for each value.
    pub(crate) fn leaves(&self, number: u32) {
        let place = Self::place(number);
        let value = self.places[place].swap(core::ptr::null_mut(), Ordering::AcqRel);
        if value.is_null() {
            return;
        }
        let calls = Calls::now();
        // SAFETY: from `put`, and in no place any more, so that no other call takes it out.
        let value = unsafe { Box::from_raw(value) };
        self.apart.lock().leaving.push((place, value, calls));
    }

    /// The values that left, and that no call looks at any more: their places are free.
    pub(crate) fn gone(&self) -> Vec<Box<T>> {
        let mut apart = self.apart.lock();
        let Apart { free, leaving } = &mut *apart;
        let gone = leaving.extract_if(.., |(_, _, calls)| mutant!(DoorFreedEarly) || calls.are_over());
        gone.map(|(place, value, _)| {
            // A place whose numbers are all used up stays empty.
            if self.next[place].load(Ordering::Relaxed) < u32::MAX - N as u32 {
                free.push_back(place);
            }
            value
        })
        .collect()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::Table;
    use crate::presence::enter;

    /// A thread is stopped between the number and the place: other values are found nevertheless.
    #[test]
    fn a_place_that_is_not_filled_yet_hides_no_other() {
        let table = Table::<u32, 4>::new();
        table.put(|first| {
            assert_eq!(table.put(Box::new), Some(&1));
            assert_eq!(table.iter().collect::<Vec<_>>(), [&1]);
            assert_eq!((table.at(first as usize), table.at(1)), (None, Some(&1)));
            Box::new(first)
        });
        assert_eq!(table.iter().collect::<Vec<_>>(), [&0, &1]);
    }

    /// At the end, and past it, no number is given twice, however many threads call at once.
    #[test]
    fn no_number_is_given_twice() {
        let table = Table::<u32, 64>::new();
        let ask = || (0..32).filter_map(|_| table.put(Box::new).copied()).collect::<Vec<_>>();
        let mut given = std::thread::scope(|s| {
            let asking: Vec<_> = (0..4).map(|_| s.spawn(ask)).collect();
            asking.into_iter().flat_map(|a| a.join().expect("it ends well")).collect::<Vec<_>>()
        });
        given.sort_unstable();
        assert_eq!(given, (0..64).collect::<Vec<_>>());
        assert_eq!((table.put(Box::new), table.at(64), table.is_full()), (None, None, true));
        assert!(!Table::<u32, 1>::new().is_full());
    }

    /// Nor is one that left, and its place has room for the next.
    #[test]
    fn a_place_is_taken_again_under_another_number() {
        let table = Table::<u32, 2>::new();
        assert_eq!((table.put(Box::new), table.put(Box::new), table.is_full()), (Some(&0), Some(&1), true));
        let mut before = 1;
        for n in 1..1000 {
            let leaves = if n == 1 { 1 } else { before };
            table.leaves(leaves);
            assert_eq!(table.at(1), None);
            // Calls of other tests' threads may be under way.
            while table.gone().is_empty() {
                std::thread::yield_now();
            }
            before = *table.put(Box::new).expect("a place");
            assert_eq!((before, table.is_full()), (1 + 2 * n, true));
        }
    }

    /// A call that found a value has it to its end.
    #[test]
    fn a_value_is_freed_behind_the_calls_that_may_have_it() {
        static TABLE: Table<u32, 2> = Table::new();
        TABLE.put(Box::new);
        let (sender, receiver) = std::sync::mpsc::channel();
        let (go, gone) = std::sync::mpsc::channel::<()>();
        let reader = std::thread::spawn(move || {
            let here = enter();
            let value = TABLE.at(0).expect("it is there");
            sender.send(()).expect("the receiver waits");
            gone.recv().expect("a word");
            let found = *value;
            drop(here);
            found
        });
        receiver.recv().expect("a message");
        TABLE.leaves(0);
        assert!(TABLE.gone().is_empty());
        go.send(()).expect("it waits");
        assert_eq!(reader.join().expect("it is well"), 0);
        while TABLE.gone().is_empty() {
            std::thread::yield_now();
        }
    }
}
