//! A table of values by number that only grows. A number names its value for ever. It does not know what the values are.

use core::sync::atomic::{AtomicUsize, Ordering};
use std::sync::OnceLock;

/// At most `N` values.
pub(crate) struct Table<T, const N: usize> {
    places: [OnceLock<T>; N],
    /// So many places are taken, filled or not.
    taken: AtomicUsize,
}

impl<T, const N: usize> Table<T, N> {
    pub(crate) const fn new() -> Table<T, N> {
        Table { places: [const { OnceLock::new() }; N], taken: AtomicUsize::new(0) }
    }

    /// Takes a number and fills its place with what is made of it; `None` if all are taken. Never beyond: a count that went past the
    /// end and came back would give a number twice.
    pub(crate) fn put(&self, make: impl FnOnce(usize) -> T) -> Option<&T> {
        let more = |taken| (taken < N).then_some(taken + 1);
        let number = self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        Some(self.places[number].get_or_init(|| make(number)))
    }

    /// Whether all numbers are taken.
    pub(crate) fn is_full(&self) -> bool {
        self.taken.load(Ordering::Relaxed) >= N
    }

    pub(crate) fn get(&self, number: usize) -> Option<&T> {
        self.places.get(number)?.get()
    }

    /// All there are. A place that is taken and not filled yet is passed over, and what lies behind it is not.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.places.iter().take(self.taken.load(Ordering::Relaxed)).filter_map(OnceLock::get)
    }
}

#[cfg(test)]
mod tests {
    use super::Table;

    /// Somebody stands still between the number and the place: others are found all the same.
    #[test]
    fn a_place_that_is_not_filled_yet_hides_nobody() {
        let table = Table::<usize, 3>::new();
        table.put(|first| {
            assert_eq!(table.put(|second| second), Some(&1));
            assert_eq!(table.iter().collect::<Vec<_>>(), [&1]);
            assert_eq!((table.get(first), table.get(1)), (None, Some(&1)));
            first
        });
        assert_eq!(table.iter().collect::<Vec<_>>(), [&0, &1]);
    }

    /// At the end, and past it, no number is given twice, whoever asks at once.
    #[test]
    fn no_number_is_given_twice() {
        let table = Table::<usize, 64>::new();
        let ask = || (0..32).filter_map(|_| table.put(|n| n).copied()).collect::<Vec<_>>();
        let mut given = std::thread::scope(|s| {
            let asking: Vec<_> = (0..4).map(|_| s.spawn(ask)).collect();
            asking.into_iter().flat_map(|a| a.join().expect("it ends well")).collect::<Vec<_>>()
        });
        given.sort_unstable();
        assert_eq!(given, (0..64).collect::<Vec<_>>());
        assert_eq!((table.put(|n| n), table.get(64), table.is_full()), (None, None, true));
        assert!(!Table::<usize, 1>::new().is_full());
    }
}
