//! The last accesses to each byte of one piece of physical memory, and its owner.
//!
//! The simple version keeps, per byte, its owner and every access ever made. This one departs from it in four ways:
//! 1. Bytes with the same history share a [`Cell`]; cells tile the memory in a tree by offset, split at the borders of
//!    accesses and allocations and merge again where they agree: O(log n) for an access to a whole cell.
//! 2. Of one generation's accesses only those are kept that no kept one dominates: a write drops what it is ordered after, a
//!    read the older reads of its own stream (and, in short lists, all that it is ordered after). Whatever is ordered after
//!    the one kept is ordered after those dropped, and if the host sees the one kept complete it sees them complete.
//! 3. At a new generation they become *former* accesses; those that happened before its birth are *ordered*, and dropped at
//!    the first access of the new generation: that one and every other lawful one comes after the birth, and an unlawful one
//!    is a violation because of that. Not earlier: a generation that is never accessed leaves nothing for the next one to come
//!    after, so it must pass on what it got. (Dropping them at the birth was tried, and random programs found an
//!    unordered reuse across an owner that never accessed the bytes.)
//! 4. Nothing else is ever dropped, except what was already part of a violation.
//!
//! The first access to a whole generation makes its bytes one cell again, unless former accesses remain: the number of cells follows the number of
//! live allocations, not their history. It does not know clocks: the visitor of the cells provides the judgement.

use super::AccessKind;
use super::clock::At;
use millpond_driver::Caller;
use millpond_driver::units::AllocationId;
use smallvec::SmallVec;
use std::collections::BTreeMap;

/// The name of an operation, interned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct What(pub(super) u32);

/// One access, as far as later ones need it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Access {
    pub(super) at: At,
    pub(super) what: What,
    /// Where in the program it was called.
    pub(super) from: Option<Caller>,
    /// The generation it belonged to; `None` if none was reported.
    pub(super) id: Option<AllocationId>,
    pub(super) kind: AccessKind,
    /// Neither ordered before its free nor recorded with the allocator: the program's fault, if it leads to a violation.
    pub(super) unrecorded: bool,
    /// An operation that the library queued itself.
    pub(super) librarys: bool,
    /// How many operations of all streams there were, including this one.
    pub(super) number: u64,
}

/// Who owns bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Owner {
    /// Never handed out.
    NeverAllocated,
    /// Handed out.
    Live(AllocationId),
    /// Handed out once, and freed.
    Freed(AllocationId),
}

/// Bytes with one history.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Cell {
    /// One past the last byte.
    pub(super) end: u64,
    pub(super) owner: Owner,
    /// Accesses of the current owner, or of the last one.
    pub(super) now: SmallVec<[Access; 2]>,
    /// Accesses of earlier owners that are not known to be before the current one's birth.
    pub(super) former: Vec<Access>,
    /// Accesses of earlier owners that are known to be before it, kept while the current owner has not touched these bytes.
    pub(super) ordered: Vec<Access>,
}

impl Cell {
    fn same_history(&self, other: &Cell) -> bool {
        self.owner == other.owner
            && self.now == other.now
            && self.former == other.former
            && self.ordered == other.ordered
    }
}

/// Up to this many kept accesses, a read searches all for those that it dominates, not only its own stream's.
const SHORT: usize = 8;

impl Cell {
    /// Adds an access that was judged; `before` tests whether an earlier one happened before it.
    pub(super) fn add(&mut self, new: Access, mut before: impl FnMut(At) -> bool) {
        let short = self.now.len() <= SHORT;
        self.now.retain(|old| {
            let same_line = old.at.line == new.at.line;
            let dominated = match (new.kind, old.kind) {
                (AccessKind::Write, _) => same_line || before(old.at),
                (AccessKind::Read, AccessKind::Read) => same_line || (short && before(old.at)),
                (AccessKind::Read, AccessKind::Write) => false,
            };
            !dominated
        });
        self.ordered.clear();
        self.now.push(new);
    }
    /// Makes the current accesses former ones, and moves those former ones to `ordered` that happened before the new birth, by `is_ordered`.
    pub(super) fn end_generation(&mut self, mut is_ordered: impl FnMut(&Access) -> bool) {
        let older = std::mem::take(&mut self.ordered);
        for access in self.now.drain(..).chain(older) {
            match self.former.iter_mut().find(|f| f.at.line == access.at.line) {
                Some(f) if f.at.tick >= access.at.tick => {}
                Some(f) => *f = access,
                None => self.former.push(access),
            }
        }
        self.ordered.extend(self.former.extract_if(.., |f| is_ordered(f)));
    }
}

/// One piece of physical memory.
#[derive(Debug)]
pub(super) struct Shadow {
    bytes: u64,
    cells: BTreeMap<u64, Cell>,
}

impl Shadow {
    /// Memory without accesses.
    pub(super) fn new(bytes: u64) -> Shadow {
        let cell = Cell {
            end: bytes,
            owner: Owner::NeverAllocated,
            now: SmallVec::new(),
            former: Vec::new(),
            ordered: Vec::new(),
        };
        Shadow { bytes, cells: BTreeMap::from([(0, cell)]) }
    }
    /// All cells, by offset.
    pub(super) fn cells(&self) -> impl Iterator<Item = (u64, &Cell)> {
        self.cells.iter().map(|(&start, cell)| (start, cell))
    }
    /// The cells that touch a range, whole.
    pub(super) fn cells_in(&self, start: u64, end: u64) -> impl Iterator<Item = (u64, &Cell)> {
        let first = self.cells.range(..=start).next_back().map_or(start, |(&s, _)| s);
        self.cells.range(first..end).map(|(&s, cell)| (s, cell)).filter(move |(_, cell)| cell.end > start)
    }
    /// Cuts the cell that holds `at` in two, so that a cell starts there.
    fn cut(&mut self, at: u64) {
        let Some((&start, cell)) = self.cells.range_mut(..=at).next_back() else { return };
        if start < at && at < cell.end {
            let right = cell.clone();
            cell.end = at;
            self.cells.insert(at, right);
        }
    }
    /// Calls `each` for all bytes of a range, a cell at a time, and merges those that then agree.
    ///
    /// # Panics
    /// When the range leaves the memory.
    pub(super) fn for_each_cell(&mut self, start: u64, end: u64, mut each: impl FnMut(u64, &mut Cell)) {
        assert!(
            start <= end && end <= self.bytes,
            "the oracle was notified of bytes {start}..{end} of memory of {} bytes",
            self.bytes
        );
        if start == end {
            return;
        }
        if let Some(cell) = self.cells.get_mut(&start)
            && cell.end == end
        {
            each(start, cell);
            return;
        }
        self.cut(start);
        self.cut(end);
        let mut count = 0;
        for (&at, cell) in self.cells.range_mut(start..end) {
            each(at, cell);
            count += 1;
        }
        if count > 1 {
            self.merge(start, end);
        }
    }
    fn merge(&mut self, start: u64, end: u64) {
        let mut at = start;
        loop {
            let cell = &self.cells[&at];
            let next = cell.end;
            if next >= end {
                return;
            }
            if self.cells[&next].same_history(cell) {
                let gone = self.cells.remove(&next).expect("cells tile the memory");
                self.cells.get_mut(&at).expect("looked up above").end = gone.end;
            } else {
                at = next;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::clock::Line;
    use super::super::{AccessKind, StreamKey};
    use super::*;

    fn access(stream: u32, tick: u64, kind: AccessKind) -> Access {
        let at = At { line: Line::stream(StreamKey(stream)), tick };
        Access {
            at,
            what: What(0),
            from: None,
            id: None,
            kind,
            unrecorded: false,
            librarys: false,
            number: 0,
        }
    }
    fn borders(s: &Shadow) -> Vec<(u64, u64)> {
        s.cells().map(|(start, c)| (start, c.end)).collect()
    }

    #[test]
    fn cells_split_at_borders_and_merge_when_they_agree() {
        let mut s = Shadow::new(100);
        let w = access(1, 1, AccessKind::Write);
        s.for_each_cell(10, 20, |_, c| c.add(w, |_| true));
        s.for_each_cell(15, 40, |_, c| c.add(access(1, 2, AccessKind::Read), |_| true));
        assert_eq!(borders(&s), [(0, 10), (10, 15), (15, 20), (20, 40), (40, 100)]);
        s.for_each_cell(0, 100, |_, c| c.add(access(1, 3, AccessKind::Write), |_| true));
        assert_eq!(borders(&s), [(0, 100)]);
        assert_eq!(s.cells_in(99, 100).count(), 1);
    }

    #[test]
    fn a_write_drops_what_it_is_ordered_after_and_keeps_the_rest() {
        let mut s = Shadow::new(1);
        s.for_each_cell(0, 1, |_, c| {
            c.add(access(1, 1, AccessKind::Read), |_| false);
            c.add(access(2, 1, AccessKind::Read), |_| false);
            c.add(access(3, 1, AccessKind::Write), |at| at.line == Line::stream(StreamKey(1)));
            assert_eq!(c.now.len(), 2);
            assert_eq!(c.now[0].at.line, Line::stream(StreamKey(2)));
        });
    }

    #[test]
    fn a_read_never_drops_a_write() {
        let mut s = Shadow::new(1);
        s.for_each_cell(0, 1, |_, c| {
            c.add(access(1, 1, AccessKind::Write), |_| true);
            c.add(access(1, 2, AccessKind::Read), |_| true);
            assert_eq!(
                c.now.iter().map(|a| a.kind).collect::<Vec<_>>(),
                [AccessKind::Write, AccessKind::Read]
            );
            c.add(access(2, 1, AccessKind::Read), |_| true);
            assert_eq!(c.now.len(), 2, "the older read is dominated, the write is not dropped");
        });
    }

    #[test]
    fn folding_keeps_the_newest_of_each_line() {
        let mut s = Shadow::new(1);
        s.for_each_cell(0, 1, |_, c| {
            c.add(access(1, 5, AccessKind::Write), |_| false);
            c.end_generation(|_| false);
            c.add(access(1, 4, AccessKind::Read), |_| false);
            c.add(access(2, 1, AccessKind::Read), |_| false);
            c.end_generation(|f| f.at.tick == 1);
            assert_eq!(c.former.iter().map(|a| a.at.tick).collect::<Vec<_>>(), [5]);
            assert_eq!(c.ordered.iter().map(|a| a.at.tick).collect::<Vec<_>>(), [1]);
            assert!(c.now.is_empty());
            c.end_generation(|_| false);
            assert_eq!(c.former.len(), 2, "an owner that touched nothing hands on what it was given");
            c.end_generation(|_| true);
            c.add(access(3, 1, AccessKind::Read), |_| false);
            assert!(c.former.is_empty() && c.ordered.is_empty());
        });
    }

    #[test]
    #[should_panic(expected = "bytes 5..11 of memory of 10 bytes")]
    fn bytes_beyond_the_memory_are_refused() {
        Shadow::new(10).for_each_cell(5, 11, |_, _| {});
    }
}
