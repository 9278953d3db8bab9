//! Reserved addresses, and which of them no window has.
//!
//! A reservation from the driver is an arena. Windows use its aligned part; up to 512 MiB at each end stay unused. Adjacent reservations are not
//! joined: no mapping and no window may span two.
//!
//! The simple version walks the windows in address order for the first gap that is long enough. With 20,000 streams each new window would walk
//! all others, so the gaps are kept; there are few. This module does not know what a window is for.

use super::WINDOW_BYTES;
use crate::units::Addr;
use std::collections::BTreeMap;

/// A range of addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AddrRange {
    /// The first address.
    pub base: Addr,
    /// The length.
    pub bytes: u64,
}

/// One reservation.
#[derive(Clone, Debug)]
struct Arena {
    bytes: u64,
    /// The first aligned address, and the length from there on that windows can use.
    first: u64,
    usable: u64,
    /// The gaps: lengths by first address. No two are adjacent.
    gaps: BTreeMap<u64, u64>,
}

/// All arenas, by first address.
#[derive(Clone, Debug)]
pub(super) struct Arenas {
    all: BTreeMap<u64, Arena>,
}

impl Arenas {
    pub(super) const fn new() -> Arenas {
        Arenas { all: BTreeMap::new() }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.all.values().map(|a| a.bytes).sum()
    }

    pub(super) fn add(&mut self, AddrRange { base: Addr(base), bytes }: AddrRange) {
        let end = base.checked_add(bytes);
        let Some(end) = end.filter(|_| bytes > 0) else {
            super::broken(
                "B8",
                format_args!("a reservation of {bytes} bytes at {base:#x} is empty or too long"),
            )
        };
        let below = self.all.range(..end).next_back();
        law!(
            B8,
            below.is_none_or(|(at, a)| at + a.bytes <= base),
            "a reservation of {bytes} bytes at {base:#x} overlaps another"
        );
        let first = base.checked_next_multiple_of(WINDOW_BYTES).unwrap_or(u64::MAX);
        let usable = end.saturating_sub(first) / WINDOW_BYTES * WINDOW_BYTES;
        let gaps = if usable > 0 { BTreeMap::from([(first, usable)]) } else { BTreeMap::new() };
        self.all.insert(base, Arena { bytes, first, usable, gaps });
    }

    /// Takes this many bytes from the lowest gap that has them.
    pub(super) fn take(&mut self, bytes: u64) -> Option<Addr> {
        for arena in self.all.values_mut() {
            let found = arena.gaps.iter().find(|gap| *gap.1 >= bytes).map(|(&at, &len)| (at, len));
            if let Some((at, len)) = found {
                arena.gaps.remove(&at);
                if len > bytes {
                    arena.gaps.insert(at + bytes, len - bytes);
                }
                return Some(Addr(at));
            }
        }
        None
    }

    /// Takes back the addresses of a removed window.
    pub(super) fn give(&mut self, Addr(at): Addr, bytes: u64) {
        let arena = self.all.range_mut(..=at).next_back().map(|(_, arena)| arena);
        let inside = |a: &&mut Arena| a.first <= at && at + bytes <= a.first + a.usable;
        let Some(arena) = arena.filter(inside) else {
            super::broken("B8", format_args!("the window of {bytes} bytes at {at:#x} is in no arena"))
        };
        let overlaps = arena.gaps.range(..at + bytes).next_back().is_some_and(|(gap, len)| gap + len > at);
        law!(B8, !overlaps, "the window of {bytes} bytes at {at:#x} is a gap already");
        let (mut from, mut len) = (at, bytes);
        if let Some(behind) = arena.gaps.remove(&(at + bytes)) {
            len += behind;
        }
        if let Some((&gap, &before)) = arena.gaps.range(..at).next_back().filter(|gap| gap.0 + gap.1 == at) {
            (from, len) = (gap, before + len);
        }
        arena.gaps.insert(from, len);
    }

    /// Takes out the first arena that has no window.
    pub(super) fn take_unused(&mut self) -> Option<AddrRange> {
        let (&base, bytes) = self
            .all
            .iter()
            .find(|(_, a)| a.gaps.values().sum::<u64>() == a.usable)
            .map(|(base, a)| (base, a.bytes))?;
        self.all.remove(&base);
        Some(AddrRange { base: Addr(base), bytes })
    }

    /// Takes out all arenas.
    pub(super) fn take_all(&mut self) -> Vec<AddrRange> {
        let all = core::mem::take(&mut self.all).into_iter();
        all.map(|(base, a)| AddrRange { base: Addr(base), bytes: a.bytes }).collect()
    }

    /// The aligned part of each arena, which windows and gaps tile: its first address, its length and its gaps.
    pub(super) fn tiles(&self) -> impl Iterator<Item = (u64, u64, &BTreeMap<u64, u64>)> {
        self.all.values().map(|a| (a.first, a.usable, &a.gaps))
    }

    #[cfg(test)]
    pub(super) fn gaps_mut(&mut self) -> &mut BTreeMap<u64, u64> {
        &mut self.all.values_mut().next().expect("an arena").gaps
    }
}
