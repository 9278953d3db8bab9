//! Holds: memory that code outside the allocator knows by its address or by its handle, which it exported, registered, opened in another process or
//! mapped for another device.
//!
//! The uses of such code are in no stamp, so no order shows when they are over: the program says so, by dropping the hold. Until then (B11) a held
//! handle stays where it is and is not released, a held plain or pinned segment does not go back either, and what a pool has of either stays that pool's: it may
//! hand it out again, to its own stream, since the addresses and what is behind them are the same.
//!
//! A hold counts first, and then takes the lock of each pool once. A range leaves its pool in a hold of that lock in which it looks at what is held, so that
//! none that left later has missed it. What was between two pools before arrives. It does not know who holds what, or why.

use super::allocation::Allocation;
use super::core::{Core, Owner};
use super::held::{Held, Record, What};
use super::pool::Pool;
use super::segment::PieceOf;
use super::{Allocator, segment};
use crate::driver::Driver;
use crate::error::Error;
use crate::laws::holds as laws;
use crate::physical::Unavailable;
use crate::sync::{Arc, Ordering, yield_now};
use crate::units::{Addr, Granules, SegmentId};
use core::fmt;
use std::collections::BTreeMap;

/// Memory that stays where it is until this is dropped ([`Allocator::hold`]). It keeps its allocator from ending.
#[must_use = "the memory is held until this is dropped"]
pub struct Hold<D: Driver> {
    number: u64,
    address: Addr,
    bytes: u64,
    owner: Owner<D>,
}

impl<D: Driver> Hold<D> {
    /// The first address that is held.
    pub fn address(&self) -> Addr {
        self.address
    }
    /// How many bytes from there.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl<D: Driver> fmt::Debug for Hold<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Hold({} B at {})", self.bytes, self.address)
    }
}

impl<D: Driver> Drop for Hold<D> {
    fn drop(&mut self) {
        self.owner.core().end_hold(self.number);
    }
}

impl<D: Driver> Core<D> {
    /// What is held, if anything is. Taken with a pool's lock held.
    pub(super) fn held(&self) -> Option<Held<'_>> {
        let records = || self.windows.as_ref().map(super::physical::Windows::lock);
        self.holds.any().then(|| Held::new(records(), &self.holds))
    }

    /// Holds the pieces that a range lies in; `None` if some of it is no memory of this allocator's.
    fn begin_hold(&self, address: Addr, bytes: u64) -> Option<u64> {
        self.holds.count.fetch_add(1, Ordering::AcqRel);
        let what = if bytes == 0 { Some(What::Nothing) } else { self.count_hold(address, bytes) };
        let Some(what) = what else {
            self.holds.count.fetch_sub(1, Ordering::AcqRel);
            return None;
        };
        let owners = self.owners_of(&what);
        let number = self.holds.next.fetch_add(1, Ordering::Relaxed);
        self.holds.all.lock().insert(number, Record { what, owners });
        Some(number)
    }

    fn count_hold(&self, address: Addr, bytes: u64) -> Option<What> {
        loop {
            let piece = self.piece_at(address)?;
            let (offset, len) = piece.granules(address, bytes)?;
            let inside = address.0.checked_add(bytes)? - piece.address.0 <= piece.bytes;
            let pinned = match piece.of {
                PieceOf::Handle { segment, .. } => {
                    match self.windows.as_ref()?.lock().hold(segment, offset, len) {
                        Ok(hold) => return Some(What::Handles(hold)),
                        // Another thread looks whether it is free, or moves it.
                        Err(Unavailable::Busy) => yield_now(),
                        Err(_) => return None,
                    }
                    continue;
                }
                PieceOf::Plain(_) => false,
                PieceOf::Pinned(_) => true,
            };
            if !inside {
                return None;
            }
            if self.count_segment(piece, pinned) {
                let (PieceOf::Plain(id) | PieceOf::Pinned(id)) = piece.of else { return None };
                return Some(What::Segment(pinned, id));
            }
            // It went meanwhile.
        }
    }

    /// Counts a hold of a segment, if it is there still: decided in a hold of the lock under which it would be taken out to go.
    fn count_segment(&self, piece: segment::Piece, pinned: bool) -> bool {
        let (PieceOf::Plain(id) | PieceOf::Pinned(id)) = piece.of else { return false };
        let count = || {
            let mut segments = self.holds.segments.lock();
            let holds = segments.entry((pinned, id)).or_insert(0);
            *holds = laws::held_again(*holds);
        };
        if pinned {
            let host = self.host.lock();
            host.backing.segments.contains_key(&id).then(count).is_some()
        } else {
            let backing = self.backing.lock();
            backing.segments.contains_key(&id).then(count).is_some()
        }
    }

    /// What pools have of it. After this no pool loses any of it.
    fn owners_of(&self, what: &What) -> Vec<(u32, SegmentId, Granules, Granules)> {
        let ranges: Vec<(SegmentId, Granules, Granules)> = match what {
            What::Nothing | What::Segment(true, _) => return Vec::new(),
            What::Segment(false, id) => {
                let backing = self.backing.lock();
                let len = backing.segments.get(id).and_then(|range| Granules::exactly(range.bytes()));
                len.map(|len| (*id, Granules::ZERO, len)).into_iter().collect()
            }
            What::Handles(hold) => {
                let Some(of) = &self.windows else { return Vec::new() };
                let records = of.lock();
                let unit = records.unit().0;
                let handles = hold.ids().iter().filter_map(|&id| records.handle(id));
                let places = handles.filter_map(|h| Some((h.at?, h.len)));
                places.map(|(at, len)| (at.segment, Granules(at.unit * unit), len)).collect()
            }
        };
        let mut owners = Vec::new();
        for pool in self.pool_list() {
            let state = pool.lock();
            for &(segment, offset, len) in &ranges {
                let here = state.heap.here_in(segment, offset, len);
                owners.extend(here.map(|(offset, len)| (pool.number, segment, offset, len)));
            }
        }
        owners
    }

    fn end_hold(&self, number: u64) {
        let Some(record) = self.holds.all.lock().remove(&number) else { return };
        match record.what {
            What::Nothing => {}
            What::Handles(hold) => {
                if let Some(of) = &self.windows {
                    of.lock().unhold(hold);
                }
            }
            What::Segment(pinned, id) => {
                let mut segments = self.holds.segments.lock();
                let left = segments.get(&(pinned, id)).map_or(0, |holds| holds.saturating_sub(1));
                if left == 0 {
                    segments.remove(&(pinned, id));
                } else {
                    segments.insert((pinned, id), left);
                }
            }
        }
        self.holds.count.fetch_sub(1, Ordering::AcqRel);
    }

    /// Panics unless B11 holds; if nothing is `moving` between pools, what they have of held memory too.
    pub(super) fn check_holds(&self, pools: &[Arc<Pool<D>>], moving: u64) {
        let all = self.holds.all.lock();
        let (mut handles, mut segments) = (BTreeMap::new(), BTreeMap::new());
        for record in all.values() {
            match &record.what {
                What::Nothing => {}
                What::Segment(pinned, id) => *segments.entry((*pinned, *id)).or_insert(0) += 1,
                What::Handles(hold) => {
                    hold.ids().iter().for_each(|&id| *handles.entry(id).or_insert(0_u32) += 1);
                }
            }
        }
        assert_eq!(segments, *self.holds.segments.lock(), "B11: holds of segments, and their counts");
        for (id, holds) in handles {
            let counted =
                self.windows.as_ref().and_then(|of| of.lock().handle(id)).map(|handle| handle.holds);
            assert_eq!(Some(holds), counted, "B11: holds of {id:?}, and its count");
        }
        for &(pool, segment, offset, len) in all.values().flat_map(|record| &record.owners) {
            let here = pools.iter().find(|p| p.number == pool).is_some_and(|pool| {
                let mut here = pool.lock().heap.here_in(segment, offset, len).collect::<Vec<_>>().into_iter();
                here.next() == Some((offset, len))
            });
            assert!(
                here || moving > 0,
                "B11: pool {pool} had {len} at {offset} of segment {}, which is held, and has less",
                segment.0
            );
        }
    }
}

impl<D: Driver> Allocator<D> {
    /// Holds an allocation: until the value is dropped, the handles of physical memory that it lies on, or its plain segment, stay where they are, do not go
    /// back to the device, and do not pass to another stream's pool, whatever is freed meanwhile. For memory that was exported, registered (RDMA, NCCL,
    /// UCX), opened by another process or mapped for another device: such users go by address or by handle, and their uses are in no stream of this
    /// allocator's.
    ///
    /// What a hold does not do: it keeps no allocation alive, and orders nothing. Bytes that are freed while they are held are cached for their own stream, which
    /// reuses them in its order; code outside that still uses them then sees another allocation's contents. Free them only when it has stopped, or keep
    /// the allocation. A hold is of whole handles or segments, so it may keep neighbours in their pool too. It makes no driver call. Holds of one
    /// allocation count.
    ///
    /// # Errors
    /// [`Error::UnknownAddress`] for an allocation of another allocator, or of external memory.
    pub fn hold(&self, allocation: &Allocation<D>) -> Result<Hold<D>, Error> {
        self.hold_range(allocation.address(), allocation.len())
    }

    /// Holds whatever lies at so many bytes from an address, of device or pinned memory, as [`Allocator::hold`] does; zero bytes hold nothing.
    ///
    /// # Errors
    /// [`Error::UnknownAddress`], if not all of it lies in one segment of this allocator's, without a hole; nothing is held then.
    pub fn hold_range(&self, address: Addr, bytes: u64) -> Result<Hold<D>, Error> {
        let owner = self.owner.clone();
        let held = owner.core().begin_hold(address, bytes);
        let number = held.ok_or(Error::UnknownAddress { address, bytes })?;
        Ok(Hold { number, address, bytes, owner })
    }
}
