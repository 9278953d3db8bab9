//! The ranges that this backend allocated: what makes the safe calls over raw addresses safe, and a wrong free an error
//! with a message instead of the driver's number.
//!
//! It is used where memory is allocated and freed, and by the safe launches and copies that replay uses; the
//! allocator's own paths over memory that it holds never come here. It does not know owners or streams, nor what a pool of the driver's is.

use super::pages::Pages;
use super::table::{Call, invalid};
use millpond_driver::DriverResult;
use millpond_driver::sync::{Arc, Mutex};
use millpond_driver::units::Addr;
use std::collections::BTreeMap;

/// Where a range came from: `P` is a pool of the driver's.
#[derive(Debug)]
pub(super) enum Kind<P> {
    /// `cuMemAlloc`.
    Plain,
    /// A pool of the driver's.
    Pooled(Arc<P>),
    /// A mapping of a virtual memory handle.
    Mapped,
    /// Page-locked host memory of the driver's.
    Pinned,
    /// Our own pages, registered.
    Pages(Pages),
    /// Memory of the program's, registered.
    Registered,
}

impl<P> Kind<P> {
    fn is_on_device(&self) -> bool {
        !matches!(self, Kind::Pinned | Kind::Pages(_) | Kind::Registered)
    }
}

/// Live ranges by first address.
pub(super) struct Ranges<P>(Mutex<BTreeMap<u64, (u64, Kind<P>)>>);

impl<P> Default for Ranges<P> {
    fn default() -> Ranges<P> {
        Ranges(Mutex::default())
    }
}

/// What lies under a range of addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Place {
    /// Memory of the device, all of it; ranges may continue each other.
    Device,
    /// One pinned range.
    Pinned,
}

/// What a call may touch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Reach {
    /// Device memory, where no Rust reference leads: what safe calls may.
    Device,
    /// Pinned memory too.
    Anywhere,
}

/// A safe call names device memory only: Rust may be looking at pinned memory.
pub(super) fn refuse_pinned(place: Place, addr: Addr, bytes: u64, call: Call) -> DriverResult<()> {
    if place == Place::Device || mutant!(CudaPinnedUnrefused) {
        return Ok(());
    }
    Err(invalid(
        call,
        format!(
            "{bytes} bytes at {addr} are pinned memory, which Rust references may lead to: use copy_anywhere, \
             write_pattern_anywhere or check_pattern_anywhere, which are unsafe, or copies of arrays"
        ),
    ))
}

impl<P> Ranges<P> {
    pub(super) fn add(&self, addr: u64, bytes: u64, kind: Kind<P>) {
        self.0.lock().insert(addr, (bytes, kind));
    }

    /// Takes out the range that is exactly this one, if `is` says yes to its kind.
    pub(super) fn remove(&self, addr: u64, bytes: u64, is: impl FnOnce(&Kind<P>) -> bool) -> Option<Kind<P>> {
        let mut ranges = self.0.lock();
        let (found, kind) = ranges.get(&addr)?;
        if (*found != bytes && !mutant!(CudaPartFreed)) || !is(kind) {
            return None;
        }
        ranges.remove(&addr).map(|(_, kind)| kind)
    }

    /// Takes out the mappings that begin in here.
    pub(super) fn remove_mapped(&self, addr: u64, bytes: u64) {
        if mutant!(CudaMappingKept) {
            return;
        }
        let mut ranges = self.0.lock();
        let inside = ranges.range(addr..addr.saturating_add(bytes));
        let starts: Vec<u64> =
            inside.filter(|(_, (_, kind))| matches!(kind, Kind::Mapped)).map(|(&at, _)| at).collect();
        for at in starts {
            ranges.remove(&at);
        }
    }

    /// Takes out what pools of the driver's still have out; a pool for each range.
    pub(super) fn take_pooled(&mut self) -> Vec<Arc<P>> {
        let ranges = core::mem::take(self.0.get_mut());
        let pool = |(_, kind)| if let Kind::Pooled(pool) = kind { Some(pool) } else { None };
        ranges.into_values().filter_map(pool).collect()
    }

    /// What lies under these addresses, if it is all ours and of one sort.
    pub(super) fn place(&self, addr: u64, bytes: u64) -> Option<Place> {
        let end = addr.checked_add(bytes)?;
        let ranges = self.0.lock();
        let (mut at, mut place) = (addr, None);
        loop {
            let (&start, (length, kind)) = ranges.range(..=at).next_back()?;
            let here = if kind.is_on_device() { Place::Device } else { Place::Pinned };
            let to = start + length;
            // A copy may not run from one pinned range into the next, even where they touch.
            if to <= at || place.is_some_and(|p| p != here || p == Place::Pinned) {
                return None;
            }
            place = Some(here);
            at = to;
            if at >= end {
                return place;
            }
        }
    }

    /// What is still out, a line each.
    pub(super) fn list(&self) -> Vec<String> {
        let line = |(at, (bytes, kind)): (&u64, &(u64, Kind<P>))| {
            let what = match kind {
                Kind::Plain => "plain device memory",
                Kind::Pooled(_) => "device memory of a driver's pool",
                Kind::Mapped => "mapped device memory",
                Kind::Pinned | Kind::Pages(_) => "pinned memory",
                Kind::Registered => "registered memory of the program",
            };
            format!("{bytes} bytes of {what} at {at:#x}")
        };
        self.0.lock().iter().map(line).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_continue_on_the_device_and_end_with_each_pinned_range() {
        let ranges = Ranges::<()>::default();
        ranges.add(0x1000, 0x1000, Kind::Plain);
        ranges.add(0x2000, 0x1000, Kind::Mapped);
        ranges.add(0x3000, 0x1000, Kind::Pinned);
        ranges.add(0x4000, 0x1000, Kind::Pinned);
        assert_eq!(ranges.place(0x1800, 0x1800), Some(Place::Device), "two ranges that touch");
        assert_eq!(ranges.place(0x2800, 0x900), None, "from the device into pinned memory");
        assert_eq!(ranges.place(0x3800, 0x800), Some(Place::Pinned));
        assert_eq!(ranges.place(0x3800, 0x801), None, "over the border of two pinned ranges");
        assert_eq!(ranges.place(0xfff, 2), None, "begins before");
        assert_eq!(ranges.place(0x4fff, 2), None, "ends behind");
        assert_eq!(ranges.place(u64::MAX, 2), None, "wraps");
        assert_eq!(ranges.place(0x1000, 0), Some(Place::Device), "nothing at a live address");
    }

    #[test]
    fn only_the_whole_range_of_the_right_kind_comes_out() {
        let ranges = Ranges::<()>::default();
        ranges.add(0x1000, 0x1000, Kind::Plain);
        assert!(ranges.remove(0x1000, 0x800, |_| true).is_none());
        assert!(ranges.remove(0x1800, 0x800, |_| true).is_none());
        assert!(ranges.remove(0x1000, 0x1000, |k| matches!(k, Kind::Pinned)).is_none());
        assert!(ranges.remove(0x1000, 0x1000, |k| matches!(k, Kind::Plain)).is_some());
        assert!(ranges.remove(0x1000, 0x1000, |_| true).is_none(), "once");
        ranges.add(0x1000, 0x1000, Kind::Mapped);
        ranges.add(0x2000, 0x1000, Kind::Pinned);
        ranges.remove_mapped(0, 0x10000);
        assert_eq!(ranges.list(), ["4096 bytes of pinned memory at 0x2000"]);
    }
}
