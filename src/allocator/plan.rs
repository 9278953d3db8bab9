//! What fills the missing parts of a run: spare handles, new ones, handles that move from elsewhere.
//!
//! ```text
//!   missing     |          14 MiB           |     and 6 MiB of room before anything moves
//!   pieces      |      8      |   4   |  2  |     powers of two, none longer than the handles of the moment
//!   sources     | 4  moves |4 | room  | room |    a part that no handle fits is filled in halves
//! ```
//!
//! In this order: spare handles of a part's length; new ones, while no more is reserved than the policy allows before a move; handles that move,
//! the cheapest and oldest first; room from longer ones that are complete and are released; new ones up to the limit. A plan takes spare
//! handles out and claims room. It does not call the driver, and handles that are to move stay where they are: when their turn comes, they may not be free any more.

use super::in_transit::TransitGuard;
use super::miss::Miss;
use super::moves::{Candidate, Candidates};
use super::physical::Windows;
use crate::driver::Driver;
use crate::heap::{Kind, Run};
use crate::laws::price;
use crate::physical::{BusyHandle, HandleId};
use crate::units::{GRANULE_BYTES, Granules};

/// What may be taken for what is missing.
#[derive(Clone, Copy)]
pub(super) struct Means {
    /// The bytes that may be reserved before any handle moves.
    pub(super) first: u64,
    /// The bytes that may be reserved in all.
    pub(super) last: u64,
    /// Whether handles may move.
    pub(super) moves: bool,
    /// How scarce time is: [`price`].
    pub(super) level: u32,
}

impl Means {
    /// New physical memory only, as long as no more than `max` bytes are reserved.
    pub(super) fn new_up_to(max: u64, level: u32) -> Means {
        Means { first: max, last: max, moves: false, level }
    }
}

/// A handle that fills a part of a run.
pub(super) struct Piece<D: Driver> {
    pub(super) offset: Granules,
    pub(super) len: Granules,
    pub(super) source: Source<D>,
}

/// Where a handle comes from.
pub(super) enum Source<D: Driver> {
    /// It is there already.
    Spare(BusyHandle),
    /// It is to be created: its bytes are claimed, or are to be released first.
    Room,
    /// It is mapped elsewhere, and free.
    Elsewhere(Candidate<D>),
}

impl<D: Driver> Source<D> {
    /// The spare handle.
    pub(super) fn spare(self) -> Option<BusyHandle> {
        match self {
            Source::Spare(spare) => Some(spare),
            Source::Room | Source::Elsewhere(_) => None,
        }
    }
}

/// What fills a run.
pub(super) struct Plan<'m, D: Driver> {
    /// Handles that are released first.
    pub(super) releases: Vec<Candidate<D>>,
    /// Those that are still to be filled, in order of offset.
    pub(super) pieces: std::vec::IntoIter<Piece<D>>,
    /// What is claimed and not made yet.
    pub(super) left: Granules,
    /// A claim is memory in hand: the driver may refuse it, and then there is room for others.
    pub(super) _transit: TransitGuard<'m>,
}

/// How much may be created, while a plan is made, in granules.
struct Rooms {
    /// Before any handle moves.
    first: u64,
    /// At all, the first included.
    last: u64,
    /// What is to be released for it and is not spent yet.
    released: u64,
    /// What is to be claimed.
    new: u64,
}

impl Rooms {
    /// Spends room for a part: of what may be reserved before a handle moves.
    fn first(&mut self, len: Granules) -> bool {
        let len = u64::from(len.0);
        let has = self.first >= len && self.last >= len;
        if has {
            (self.first, self.last, self.new) = (self.first - len, self.last - len, self.new + len);
        }
        has
    }
    /// The same, of what is to be released.
    fn released(&mut self, len: Granules) -> bool {
        let left = self.released.checked_sub(len.0.into());
        self.released = left.unwrap_or(self.released);
        left.is_some()
    }
    /// The same, of what may be reserved at all.
    fn last(&mut self, len: Granules) -> bool {
        let len = u64::from(len.0);
        let has = self.last >= len;
        if has {
            (self.last, self.new) = (self.last - len, self.new + len);
        }
        has
    }
}

impl<'m, D: Driver> Miss<'m, D> {
    /// A plan for the missing parts of a run, without the handles that were `skipped`. `None`, and nothing has changed, if there is not enough.
    pub(super) fn plan(
        &self,
        of: &Windows<D>,
        run: &Run,
        means: Means,
        skipped: &[HandleId],
    ) -> Option<Plan<'m, D>> {
        if self.lies_alone().is_some() {
            return self.plan_one(of, run, means, skipped, self.transit());
        }
        if !means.moves {
            return self.plan_with(of, run, means, Candidates::none());
        }
        let free = self.movable(of, run, skipped);
        // Room is spent in order of address: what is left of it may fit no part, and a handle may fit one that it was spent on.
        let plan = self.plan_with(of, run, means, free.clone());
        plan.or_else(|| self.plan_with(of, run, Means { first: 0, ..means }, free))
    }

    fn plan_with(
        &self,
        of: &Windows<D>,
        run: &Run,
        means: Means,
        mut free: Candidates<D>,
    ) -> Option<Plan<'m, D>> {
        let mut records = of.lock();
        let mut backing = self.core.backing.lock();
        let unit = records.unit();
        let options = &self.core.config.footprint;
        // Where growth would be refused, nothing is saved but memory.
        let at_limit = means.last == 0 || backing.room(u64::MAX) < self.want.len.bytes();
        let (level, mut moves) =
            if at_limit { (0, u32::MAX) } else { (means.level, options.moves.unwrap_or(u32::MAX)) };
        let most = match self.want.kind {
            Kind::Small => unit.bytes(),
            Kind::Large => {
                price::handle_bytes(level, (backing.reserved, options.largest_handle), unit.bytes())
            }
        };
        let most = Granules((most / GRANULE_BYTES) as u32);
        let room = |max| backing.room(max) / GRANULE_BYTES;
        let mut rooms = Rooms { first: room(means.first), last: room(means.last), released: 0, new: 0 };
        let (mut pieces, mut lacking, mut releases) = (Vec::new(), Vec::new(), Vec::new());
        for &(from, len) in &run.missing {
            let (mut offset, end) = (from, Granules(from.0 + len.0));
            while offset < end {
                let units = (end.0 - offset.0) / unit.0;
                let fits = Granules(unit.0 << units.ilog2());
                let len = fits.min(most);
                let source = records.take_spare(len).map(Source::Spare);
                let source = source.or_else(|| rooms.first(len).then_some(Source::Room));
                // One that is there already may be longer than those that are made.
                let len = if source.is_some() { len } else { fits.min(most.max(free.longest(unit))) };
                match source {
                    Some(source) => pieces.push(Piece { offset, len, source }),
                    None => lacking.push((offset, len)),
                }
                offset.0 += len.0;
            }
        }
        // A stack, with the lowest part on top.
        lacking.reverse();
        while let Some((offset, len)) = lacking.pop() {
            if moves == 0 {
                free = Candidates::none();
            }
            let releasable = |c: &Candidate<D>| records.handle(c.handle).is_some_and(|h| h.former == 0);
            let source = if let Some(candidate) = free.take(len) {
                moves -= 1;
                Some(Source::Elsewhere(candidate))
            } else if len > most {
                None
            } else if price::joins_handles(level)
                && let Some(shorter) = free.take_shorter(len, releasable)
            {
                moves = moves.saturating_sub(shorter.len() as u32);
                rooms.released += u64::from(len.0);
                releases.extend(shorter);
                rooms.released(len).then_some(Source::Room)
            } else if free.shorter_than(len) >= u64::from(len.0) {
                None
            } else if rooms.released(len) {
                Some(Source::Room)
            } else if let Some(longer) = free.take_longer(len) {
                moves -= 1;
                rooms.released += u64::from(longer.len.0);
                releases.push(longer);
                rooms.released(len).then_some(Source::Room)
            } else {
                rooms.last(len).then_some(Source::Room)
            };
            if let Some(source) = source {
                pieces.push(Piece { offset, len, source });
            } else if len > unit {
                let half = Granules(len.0 / 2);
                lacking.extend([(Granules(offset.0 + half.0), half), (offset, half)]);
            } else {
                let spares = pieces.into_iter().filter_map(|piece: Piece<D>| piece.source.spare());
                spares.for_each(|spare| records.spare(spare));
                return None;
            }
        }
        let left = Granules(rooms.new as u32);
        // The room was read in this hold of the lock, but another member of a group may have claimed it.
        if !backing.claim(left, u64::MAX) {
            let spares = pieces.into_iter().filter_map(|piece: Piece<D>| piece.source.spare());
            spares.for_each(|spare| records.spare(spare));
            return None;
        }
        pieces.sort_by_key(|piece| piece.offset);
        Some(Plan { releases, pieces: pieces.into_iter(), left, _transit: self.transit() })
    }
}
