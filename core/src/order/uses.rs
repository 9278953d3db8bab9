//! Which streams touched an allocation (laws O6 and O7): a small set, kept under its pool's lock.
//!
//! An **exact** use has a marker that was reserved and recorded after the operation. An **open** use has only a stream:
//! it belongs to a number of operations there, each of which closes it once. A raw `record_use` keeps one declared use per stream until
//! the free, because nothing reports when the user's kernel was queued. A **borrowed** use is open for as long as a borrow of the
//! array, whose end is not reported: until the next exclusive borrow of the whole array, or the free. The same holds for an operation that
//! was forgotten. Open uses are sealed at the free with the number that the next marker of their stream will have; open uses
//! of a stream on which no more work can be queued are sealed earlier, when the uses are looked at.
//!
//! It does not know the allocation, the pool or which stream waits.

mod table;

use table::{Key, Table};

use super::{Completed, Pending, PendingSet, TimelineId};
use crate::laws::{self, cost};
use crate::units::Epoch;
use smallvec::SmallVec;

/// Some streams.
pub type Streams = SmallVec<[TimelineId; 2]>;

/// What a use did to the bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Access {
    /// Only read.
    Read,
    /// Wrote, or may have.
    Write,
}

/// One operation's part in an open use, which it closes once.
#[derive(PartialEq, Eq, Debug)]
pub struct Operation {
    on: TimelineId,
    access: Access,
}

/// How well the end of a use is known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum UseKind {
    /// Declared by `record_use`: open until the free, or until no more work can be queued on the stream.
    Declared,
    /// Open, for operations that are all queued before the array's next exclusive borrow.
    Borrows,
    /// Open, for this many operations: each is queued before its owner closes it, or before the next exclusive borrow of the whole array.
    Open(u64),
    /// Ends at or before this marker.
    Exact(Epoch),
}

/// One use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Use {
    /// The stream.
    pub on: TimelineId,
    /// What it did.
    pub access: Access,
    /// How well its end is known.
    pub kind: UseKind,
}

impl Use {
    fn is_open(&self) -> bool {
        !matches!(self.kind, UseKind::Exact(_))
    }
    fn key(&self) -> Key {
        Key::of(self.on, self.access, self.kind)
    }
}

/// The uses of one allocation.
#[derive(Clone, Default, Debug)]
pub struct Uses {
    all: Table,
    /// A quarter more than the last look for complete ones left.
    crowd: u32,
}

/// Up to this many uses are kept without a look.
const FEW: usize = 8;

impl Uses {
    /// Whether only the home stream is known to have touched it.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Whether there are a quarter more uses than [`Uses::retire`] left, so that another look is paid for by the uses added
    /// since. Until then, an array that is only read has a use for each stream that ever read it, and long-lived memory one for each
    /// stream that was ever declared to use it.
    pub fn is_crowded(&self) -> bool {
        cost::uses_are_crowded(self.all.len(), FEW, self.crowd as usize)
    }

    /// Drops exact uses that are complete: nothing has to come after them any more.
    pub fn retire(&mut self, seen: &impl Completed) {
        self.all.retain(
            |u| !matches!(u.kind, UseKind::Exact(epoch) if seen.is_complete(Pending { on: u.on, epoch })),
        );
        // Not twice as many: uses that `end` has just ended are known to be complete one or two looks later, as are their streams' timelines
        // by the registry's looks, whose distance is the number of timelines. Each look would come later than the one before, without a bound.
        let crowd = self.all.len() + self.all.len() / 4;
        self.crowd = u32::try_from(crowd).unwrap_or(u32::MAX);
    }

    /// Open uses (including declared ones, and borrowed ones if `borrowed`) end where `end` says so: those for which no more work can be queued
    /// end at what their streams hold by now. Returns the streams whose open uses ended, one entry a use.
    #[must_use = "the streams' counts of open uses fall"]
    pub fn end(&mut self, borrowed: bool, mut end: impl FnMut(Use) -> Option<Epoch>) -> Streams {
        let mut ended = Streams::new();
        for u in self.all.take() {
            let last = match u.kind {
                UseKind::Open(_) | UseKind::Declared => end(u),
                UseKind::Borrows if borrowed => end(u),
                UseKind::Borrows | UseKind::Exact(_) => None,
            };
            match last {
                Some(epoch) => {
                    ended.push(u.on);
                    self.exact(u.on, u.access, epoch);
                }
                None => self.put(u),
            }
        }
        ended
    }

    fn put(&mut self, u: Use) {
        match u.kind {
            UseKind::Exact(epoch) => self.exact(u.on, u.access, epoch),
            _ => drop(self.all.insert(u)),
        }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Every use.
    pub fn iter(&self) -> impl Iterator<Item = &Use> {
        self.all.iter()
    }

    /// A raw `record_use`: `true` if it is new, `false` if that stream had already declared one (which stays open anyway).
    pub fn declare(&mut self, on: TimelineId) -> bool {
        self.all.insert(Use { on, access: Access::Write, kind: UseKind::Declared })
    }

    /// An operation is about to be queued: registers its use first, so that an error after the launch finds it. Also returns whether the stream
    /// had none of the kind.
    pub fn open(&mut self, on: TimelineId, access: Access) -> (Operation, bool) {
        let operation = Operation { on, access };
        if let Some(count) = self.opened(on, access) {
            *count = laws::opened_again(*count);
            return (operation, false);
        }
        self.all.insert(Use { on, access, kind: UseKind::Open(1) });
        (operation, true)
    }

    fn opened(&mut self, on: TimelineId, access: Access) -> Option<&mut u64> {
        match &mut self.all.get_mut(Key::of(on, access, UseKind::Open(0)))?.kind {
            UseKind::Open(count) => Some(count),
            _ => None,
        }
    }

    /// Other code may queue operations on `on` while it borrows the array, at an unknown time: `true` if this is new,
    /// `false` if as much was borrowed there already.
    pub fn borrow(&mut self, on: TimelineId, access: Access) -> bool {
        self.all.insert(Use { on, access, kind: UseKind::Borrows })
    }

    /// If more than `max` streams have borrowed uses, these become borrowed uses of `all`, a timeline that stands for every stream. Returns the
    /// streams whose open uses ended, one entry a use, and how many uses of `all` began.
    #[must_use = "the streams' counts of open uses change"]
    pub fn borrow_by_all(&mut self, all: TimelineId, max: usize) -> (Streams, usize) {
        let borrowed = |u: &Use| u.kind == UseKind::Borrows && u.on != all;
        if self.all.len() <= max || self.all.iter().filter(|u| borrowed(u)).count() <= max {
            return (Streams::new(), 0);
        }
        let ended: SmallVec<[Use; 2]> = self.all.iter().filter(|u| borrowed(u)).copied().collect();
        self.all.retain(|u| !borrowed(u));
        let accesses =
            [Access::Read, Access::Write].into_iter().filter(|a| ended.iter().any(|u| u.access == *a));
        let began = accesses.filter(|&access| laws::borrowed_by_all() && self.borrow(all, access)).count();
        (ended.iter().map(|u| u.on).collect(), began)
    }

    /// The operation is no longer open: it was never queued, or has a number. Returns whether the stream has none left of the kind.
    pub fn close(&mut self, Operation { on, access }: Operation) -> bool {
        let Some(count) = self.opened(on, access) else { return false };
        *count -= 1;
        let last = *count == 0;
        if last {
            self.all.remove(Key::of(on, access, UseKind::Open(0)));
        }
        last
    }

    /// A use that ends at or before marker `epoch`. On one stream the maximum counts (law O6): whichever of two exact
    /// uses was published last, the higher number covers both.
    pub fn exact(&mut self, on: TimelineId, access: Access, epoch: Epoch) {
        if laws::use_replaces_others() {
            self.all.retain(|u| u.access != access);
        }
        let new = Use { on, access, kind: UseKind::Exact(epoch) };
        match self.all.get_mut(new.key()).map(|u| &mut u.kind) {
            Some(UseKind::Exact(e)) => *e = laws::exact_of(*e, epoch),
            _ => drop(self.all.insert(new)),
        }
    }

    /// A write to the whole allocation, ordered after all its uses, succeeded, and so did its marker: earlier exact uses are
    /// obsolete. So are borrowed and open ones, whose operations were queued before the exclusive borrow. Returns the
    /// streams whose open uses ended, one entry a use. Declared uses stay.
    #[must_use = "the streams' counts of open uses fall"]
    pub fn replace_exact(&mut self, on: TimelineId, epoch: Epoch) -> Streams {
        let ended = self.forget_exact();
        self.exact(on, Access::Write, epoch);
        ended
    }

    /// Forgets the uses that a write to the whole allocation ends ([`Uses::replace_exact`]): a write by the home
    /// stream, whose own uses need no entry, or by a use that stays open.
    #[must_use = "the streams' counts of open uses fall"]
    pub fn forget_exact(&mut self) -> Streams {
        let ends = |u: &Use| u.is_open() && u.kind != UseKind::Declared;
        let ended = self.all.iter().filter(|u| ends(u)).map(|u| u.on).collect();
        self.all.retain(|u| laws::outlasts_a_write(u.kind == UseKind::Declared));
        ended
    }

    /// What an access on `to` has to be ordered after: writes for a read, everything for a write. Open uses get the
    /// number that their stream's next marker will have, from `next`, and stay open.
    pub fn conflicts(
        &self,
        to: TimelineId,
        access: Access,
        mut next: impl FnMut(TimelineId) -> Epoch,
    ) -> PendingSet {
        let of = |u: &Use| u.on != to && (access == Access::Write || u.access == Access::Write);
        self.pending(of, &mut next)
    }

    /// At the free: every use on another stream than `home`, if there is one, with open ones sealed by the number that their stream's next marker
    /// will have, from `next`; one a stream, the maximum.
    pub fn at_free(&self, home: Option<TimelineId>, mut next: impl FnMut(TimelineId) -> Epoch) -> PendingSet {
        let mut all = self.pending(|u| Some(u.on) != home, &mut next);
        if laws::free_forgets_uses() {
            all.drain(..all.len().saturating_sub(1));
        }
        all
    }

    /// Streams that hold a use open, one entry a use: each falls at the free.
    pub fn open_on(&self) -> impl Iterator<Item = TimelineId> + '_ {
        self.all.iter().filter(|u| u.is_open()).map(|u| u.on)
    }

    fn pending(&self, of: impl Fn(&Use) -> bool, next: &mut impl FnMut(TimelineId) -> Epoch) -> PendingSet {
        let mut set = PendingSet::new();
        // Of many uses, those of one stream are neighbours.
        let near = if self.all.is_sorted() { 1 } else { usize::MAX };
        for u in self.all.iter().filter(|u| of(u)) {
            let epoch = match u.kind {
                UseKind::Exact(e) => e,
                UseKind::Declared | UseKind::Borrows | UseKind::Open(_) => next(u.on),
            };
            match set.iter_mut().rev().take(near).find(|p: &&mut Pending| p.on == u.on) {
                Some(p) => p.epoch = p.epoch.max(epoch),
                None => set.push(Pending { on: u.on, epoch }),
            }
        }
        set
    }
}
