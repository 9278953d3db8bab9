//! Free chunks by size: one set of bins for each kind, a bitmap over it, and the bounded best fit.
//!
//! A bin holds the chunks whose lengths lie between two sentinels. Each power of two is cut into sixteen bins, so that a
//! bin is at most 1/16 wider than its smallest chunk; below 32 granules there is a bin for every length.
//!
//! ```text
//! 5 granules     101              shift 0:   0·16 +  5 =   5   exactly 5
//! 2048 (1 MiB)   1 0000 ·······   shift 7:   7·16 + 16 = 128   2048 ..= 2175
//! 2175           1 0000 1111111   shift 7:   7·16 + 16 = 128
//! 2176           1 0001 ·······   shift 7:   7·16 + 17 = 129   2176 ..= 2303
//!                ╰────╯ the leading one and four bits, kept by the shift
//! ```
//!
//! The simple version of a search walks every free chunk and keeps the shortest that fits. We depart from it in three
//! ways. 1: only two bins are walked, the request's own and the next occupied one; all chunks beyond are longer.
//! 2: at most sixteen chunks of each, so that a hit costs at most 32 steps however many chunks are free. 3: an exact
//! fit ends the walk. Where sixteen were too few, a sweep follows, off the hot path.
//!
//! A bin is a stack: a chunk enters at the head. That is one store more than nothing, the last freed bytes are the
//! warmest, and sorting would buy little, because a search compares lengths anyway and a bin is narrow. A chunk whose
//! length changes within the bin's width stays where it is.
//!
//! A bin and its chunks are links of a circular doubly linked list, and all links are in one array: a chunk enters and leaves without
//! a branch on whether it has neighbours, is the first or is the last. What a program frees next is unpredictable,
//! and a mispredicted branch costs more than the instructions that avoid it (benches/RESULTS.md).
//!
//! ```text
//! links   0 ..= 463     the bins of small chunks        ╭─► bin 48 ─► chunk 7 ─► chunk 2 ─╮
//!         512 ..= 975   the bins of large ones          ╰─────────────────────────────────╯
//!         1023 + id     the chunk in slot id            bin 49 ─╮     an empty bin follows itself
//!                                                       ╰───────╯
//! ```
//!
//! The bitmap is flat, eight words in one cache line for each kind, because it is written often and rarely searched far: with
//! a second level, a bit for each power of two, a pair that cuts and joins took 8 % more instructions.
//!
//! This module does not know who owns these bytes, what a stamp means, or where a segment lies, except to align.

use super::Kind;
use super::chunk::{Chunk, ChunkState, NO_CHUNK};
use super::segment::Segments;
use crate::laws;

/// How many bins a power of two is cut into, as a power of two.
const SUB_BITS: u32 = 4;
/// Bins in one level.
const SUBS: u32 = 1 << SUB_BITS;
/// Levels: one for lengths below 16, one for each leading bit from 4 to 31.
const LEVELS: usize = 29;
/// Bins in all.
const BINS: usize = LEVELS * SUBS as usize;
/// From one kind's first bin to the other's: a power of two.
const HALF: u32 = BINS.next_power_of_two() as u32;
/// Links of bins: those of the chunks are behind them.
const HEADS: u32 = 2 * HALF;
/// A chunk's link number is its slot plus this. Slot 0 has no chunk and no link: it stands for a bin, so code that
/// meets a bin's link in a list needs no branch.
const FIRST: u32 = HEADS - 1;
/// Words of the bitmap.
const WORDS: usize = HEADS as usize / 64;
const _: () = assert!(BINS < HALF as usize, "one past the last bin of a kind is a bin of that kind too");

/// Chunks looked at in one bin before the search takes the tightest so far. On recorded traces a walk takes 0.2
/// to 1.9 steps in the own bin and 0.5 to 3.9 in the next one.
pub(super) const WALK: u32 = 16;
/// Chunks looked at by the sweep before a take is called a miss: microseconds, where growth costs hundreds.
pub(super) const SWEEP: usize = 1024;

/// A bin's number. Of one kind, higher bins hold longer chunks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Bin(u32);

impl Bin {
    /// The bin of a chunk that is in none.
    pub(super) const NONE: Bin = Bin(u32::MAX);

    /// The bin of chunks of a kind and of `len` granules.
    #[inline]
    pub(super) const fn of(kind: Kind, len: u32) -> Bin {
        Bin(kind as u32 * HALF).of_same_kind(len)
    }
    /// The bin of chunks of this bin's kind and of `len` granules.
    #[inline]
    const fn of_same_kind(self, len: u32) -> Bin {
        // The leading one stays at bit 4: a length of five significant bits or fewer is not shifted at all.
        let shift = (len | SUBS).ilog2() - SUB_BITS;
        Bin((self.0 & HALF) + (shift << SUB_BITS) + (len >> shift))
    }
    /// One past the last bin of a kind.
    pub(super) const fn end(kind: Kind) -> Bin {
        Bin(kind as u32 * HALF + BINS as u32)
    }
    /// The first bin all of whose chunks have `len` granules or more. May be one past the last bin.
    pub(super) const fn holding_only(kind: Kind, len: u32) -> Bin {
        let bin = Bin::of(kind, len);
        if bin.low() == len { bin } else { bin.next() }
    }
    #[inline]
    pub(super) const fn next(self) -> Bin {
        Bin(self.0 + 1)
    }
    /// The bin's number among the bins of its kind.
    const fn rank(self) -> u32 {
        self.0 & (HALF - 1)
    }
    const fn is_end(self) -> bool {
        self.rank() == BINS as u32
    }
    const fn shift(self) -> u32 {
        (self.rank() >> SUB_BITS).saturating_sub(1)
    }
    /// The shortest length that belongs here.
    pub(super) const fn low(self) -> u32 {
        let shift = self.shift();
        (self.rank() - (shift << SUB_BITS)) << shift
    }
    /// The longest length that belongs here.
    pub(super) const fn high(self) -> u32 {
        self.low() | ((1 << self.shift()) - 1)
    }
    /// The word of the bitmap that holds the bin's bit.
    #[inline]
    const fn word(self) -> usize {
        self.0 as usize / 64 % WORDS
    }
    #[inline]
    const fn place_in_word(self) -> u32 {
        self.0 % 64
    }
    #[inline]
    const fn bit(self) -> u64 {
        1 << self.place_in_word()
    }
    fn all(kind: Kind) -> impl Iterator<Item = Bin> {
        (0..BINS as u32).map(move |rank| Bin(kind as u32 * HALF + rank))
    }
}

impl core::fmt::Debug for Bin {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "bin {}", self.rank())
    }
}

/// What a search looks for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sought<'a> {
    pub(super) kind: Kind,
    pub(super) len: u32,
    /// A power of two, in granules of address.
    pub(super) align: u32,
    pub(super) segments: &'a Segments,
}

impl Sought<'_> {
    /// Granules to skip at the front of `chunk` so that the address is aligned.
    #[inline]
    pub(super) fn skip(&self, chunk: &Chunk) -> u32 {
        if self.align == 1 { 0 } else { self.segments.skip(chunk, self.align) }
    }
    #[inline]
    pub(super) fn fits(&self, chunk: &Chunk) -> bool {
        chunk.len >= self.len && (self.align == 1 || chunk.len - self.len >= self.skip(chunk))
    }
}

/// A place in a list: the numbers of the links before and behind it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Link {
    pub(super) prev: u32,
    pub(super) next: u32,
}

/// The free chunks by kind and size.
#[derive(Clone, Debug)]
pub(super) struct Bins {
    /// One bit per bin, set iff the bin is not empty. The bit behind the last bin of a kind is always set, so that a search for the
    /// next occupied bin needs no bound check.
    words: [u64; WORDS],
    /// The bins' links, then the chunks'; none before the first chunk enters.
    links: Vec<Link>,
}

impl Bins {
    pub(super) const fn new() -> Bins {
        let mut words = [0; WORDS];
        words[Bin::end(Kind::Small).word()] = Bin::end(Kind::Small).bit();
        words[Bin::end(Kind::Large).word()] = Bin::end(Kind::Large).bit();
        Bins { words, links: Vec::new() }
    }

    /// A free chunk enters the bin of its length.
    #[inline]
    pub(super) fn enter(&mut self, chunks: &mut [Chunk], id: u32, kind: Kind) {
        let chunk = &mut chunks[id as usize];
        let (state, bin) = (chunk.state, chunk.bin);
        law!(H4, state == Some(ChunkState::Free), "chunk {id} is {state:?} but enters a bin");
        law!(H3, bin == Bin::NONE, "chunk {id} enters a bin but is in one");
        chunk.bin = Bin::of(kind, laws::binned(chunk.len));
        let bin = chunk.bin;
        if (FIRST + id) as usize >= self.links.len() {
            self.grow(id);
        }
        self.put_first(FIRST + id, bin);
    }

    /// A free chunk leaves its bin.
    #[inline(never)]
    pub(super) fn leave(&mut self, chunks: &mut [Chunk], id: u32) {
        let bin = Bins::begin_leave(&mut chunks[id as usize], id);
        self.close_gap(FIRST + id, bin);
    }

    #[inline]
    fn begin_leave(chunk: &mut Chunk, id: u32) -> Bin {
        let (state, bin) = (chunk.state, chunk.bin);
        law!(H4, state == Some(ChunkState::Free), "chunk {id} is {state:?} but leaves a bin");
        law!(H3, bin != Bin::NONE, "chunk {id} leaves a bin but is in none");
        chunk.bin = Bin::NONE;
        bin
    }

    /// [`Bins::leave`] for the chunk that [`Bins::first`] returned for this bin.
    #[inline]
    pub(super) fn pop(&mut self, chunks: &mut [Chunk], id: u32, bin: Bin) {
        let own = Bins::begin_leave(&mut chunks[id as usize], id);
        let at = FIRST + id;
        let links = self.links.as_mut_slice();
        let (prev, next) = (links[at as usize].prev, links[at as usize].next);
        law!(
            H3,
            own == bin && prev == bin.0,
            "chunk {id}, of {own:?}, is the first of {bin:?} but behind {}",
            Shown(prev)
        );
        links[bin.0 as usize].next = next;
        let back = core::mem::replace(&mut links[next as usize].prev, bin.0);
        law!(H3, back == at, "{} is behind {} but linked to {}", Shown(next), Shown(at), Shown(back));
        self.words[bin.word()] &= !(u64::from(next == bin.0) << bin.place_in_word());
    }

    /// Changes the length of a free chunk in a bin. Returns the bin that it is in and the one that it belongs into now: if they
    /// differ, the caller must [`rebin`](Bins::rebin) it at once.
    #[inline]
    pub(super) fn resize(chunk: &mut Chunk, id: u32, new: u32) -> (Bin, Bin) {
        let (state, old) = (chunk.state, chunk.bin);
        law!(H4, state == Some(ChunkState::Free), "chunk {id} is {state:?} but changes its length in a bin");
        law!(H3, old != Bin::NONE, "chunk {id} changes its length in a bin but is in none");
        chunk.len = new;
        chunk.bin = old.of_same_kind(laws::binned(new));
        (old, chunk.bin)
    }

    /// The length of a free chunk in a bin has changed: it stays where it is or moves to the right bin.
    pub(super) fn resized(&mut self, chunks: &mut [Chunk], id: u32) {
        let chunk = &mut chunks[id as usize];
        let (from, to) = Bins::resize(chunk, id, chunk.len);
        if from != to {
            self.rebin(id, from, to);
        }
    }

    /// A chunk whose length changed moves from its old bin to its new one.
    #[allow(clippy::inline_always, reason = "a cut with its join makes two")]
    #[inline(always)]
    pub(super) fn rebin(&mut self, id: u32, from: Bin, to: Bin) {
        self.close_gap(FIRST + id, from);
        self.put_first(FIRST + id, to);
    }

    /// Inserts a link that is in no list behind its bin.
    #[inline]
    fn put_first(&mut self, at: u32, bin: Bin) {
        let links = self.links.as_mut_slice();
        let head = &mut links[bin.0 as usize];
        let behind = head.next;
        head.next = at;
        links[behind as usize].prev = at;
        links[at as usize] = Link { prev: bin.0, next: behind };
        self.words[bin.word()] |= bin.bit();
    }

    /// Links the neighbours of a link to each other. If they are the same, that is the bin, now empty.
    #[allow(clippy::inline_always, reason = "as a call it costs twenty instructions more")]
    #[inline(always)]
    fn close_gap(&mut self, at: u32, bin: Bin) {
        let links = self.links.as_mut_slice();
        let (prev, next) = (links[at as usize].prev, links[at as usize].next);
        let back = core::mem::replace(&mut links[next as usize].prev, prev);
        law!(H3, back == at, "{} is behind {} but linked to {}", Shown(next), Shown(at), Shown(back));
        let on = core::mem::replace(&mut links[prev as usize].next, next);
        law!(H3, on == at, "{} is before {} but linked to {}", Shown(prev), Shown(at), Shown(on));
        self.words[bin.word()] &= !(u64::from(prev == next) << bin.place_in_word());
    }

    /// Adds links for the chunks up to `id`, and for the bins if there are none yet.
    #[cold]
    #[inline(never)]
    fn grow(&mut self, id: u32) {
        let from = self.links.len() as u32;
        self.links.extend((from..=FIRST + id).map(|at| Link { prev: at, next: at }));
    }

    /// The chunk that entered a bin last, or `NO_CHUNK`; `None` before anything entered any: there are no links.
    #[inline]
    pub(super) fn first(&self, bin: Bin) -> Option<u32> {
        self.links.get(bin.0 as usize).map(|link| link.next.saturating_sub(FIRST))
    }

    /// The chunk behind a link; `NO_CHUNK` if that is the bin again.
    #[inline]
    fn behind(&self, at: u32) -> u32 {
        self.links[at as usize].next.saturating_sub(FIRST)
    }

    /// The bounded best fit of the hot path, for `len` granules at any address: the chunk, or `NO_CHUNK`, and how many it
    /// looked at, at most [`WALK`] in the own bin and as many in the next occupied one.
    #[inline]
    pub(super) fn best_fit(&self, chunks: &[Chunk], len: u32, own: Bin) -> (u32, u32) {
        let mut steps = 0;
        if self.links[own.0 as usize].next != own.0 {
            let (found, walked) = self.walk(own, chunks, len);
            if found != NO_CHUNK {
                return (found, walked);
            }
            steps = walked;
        }
        let (found, walked) = self.shortest(self.occupied_from(own.next()), chunks);
        (found, steps + walked)
    }

    /// The shortest of the first [`WALK`] chunks of a bin, and how many it looked at; of equals the lowest, so that long
    /// ranges form at the high end.
    #[inline]
    fn shortest(&self, bin: Bin, chunks: &[Chunk]) -> (u32, u32) {
        // The length, then the place, in one number: a single comparison without a jump decides whether a chunk is the best so
        // far.
        let key = |id: u32| {
            let chunk = &chunks[id as usize];
            u128::from(chunk.len) << 64 | u128::from(chunk.place.number())
        };
        let mut best = self.behind(bin.0);
        if best == NO_CHUNK {
            return (NO_CHUNK, 0);
        }
        let mut id = self.behind(FIRST + best);
        let mut steps = 1;
        if id != NO_CHUNK {
            let mut least = key(best);
            while id != NO_CHUNK && steps < WALK {
                let this = key(id);
                (best, least) = if this < least { (id, this) } else { (best, least) };
                id = self.behind(FIRST + id);
                steps += 1;
            }
        }
        (best, steps)
    }

    /// The tightest of the first [`WALK`] chunks of a bin that have `len` granules, or `NO_CHUNK`, and how many it looked at;
    /// of equals the lowest.
    #[inline(never)]
    fn walk(&self, bin: Bin, chunks: &[Chunk], len: u32) -> (u32, u32) {
        // As above, but comparing what is left over. A chunk that is too short wraps around to more than any length.
        let (mut best, mut least) = (NO_CHUNK, 1 << 96);
        let mut steps = 0;
        for id in self.ids(bin).take(WALK as usize) {
            let chunk = &chunks[id as usize];
            steps += 1;
            let left = u64::from(chunk.len).wrapping_sub(u64::from(len));
            if left == 0 {
                return (id, steps);
            }
            let this = u128::from(left) << 64 | u128::from(chunk.place.number());
            (best, least) = if this < least { (id, this) } else { (best, least) };
        }
        (best, steps)
    }

    /// A chunk of exactly the length sought; looks at no more than `steps` of its bin.
    pub(super) fn exact(&self, chunks: &[Chunk], sought: &Sought<'_>, steps: usize) -> Option<u32> {
        let ids = self.ids(Bin::of(sought.kind, sought.len)).take(steps);
        ids.map(|id| (id, &chunks[id as usize]))
            .find(|(_, chunk)| chunk.len == sought.len && sought.skip(chunk) == 0)
            .map(|(id, _)| id)
    }

    /// The first occupied bin of the same kind from `bin` up, or the one past the last, which is always empty.
    #[inline]
    pub(super) fn occupied_from(&self, bin: Bin) -> Bin {
        let mut at = bin.word();
        let mut word = self.words[at] & bin.bit().wrapping_neg();
        while word == 0 {
            at = (at + 1) % WORDS;
            word = self.words[at];
        }
        Bin((at as u32) << 6 | word.trailing_zeros())
    }

    /// The bin of the longest free chunk of a kind.
    pub(super) fn highest(&self, kind: Kind) -> Option<Bin> {
        self.highest_before(Bin::end(kind))
    }

    /// The highest occupied bin of the same kind before this one.
    pub(super) fn highest_before(&self, end: Bin) -> Option<Bin> {
        let of_bins =
            |at: usize| if at == end.word() { self.words[at] & (end.bit() - 1) } else { self.words[at] };
        let at = (end.word() / (WORDS / 2) * (WORDS / 2)..=end.word()).rev().find(|&at| of_bins(at) != 0)?;
        Some(Bin((at as u32) << 6 | of_bins(at).ilog2()))
    }

    /// The tightest fit where the address matters, and how many chunks it looked at.
    pub(super) fn best_fit_at(&self, chunks: &[Chunk], sought: &Sought<'_>) -> (Option<u32>, u32) {
        let own = Bin::of(sought.kind, sought.len);
        let (hit, first) = self.tightest(own, chunks, sought, WALK as usize, |_| true);
        if hit.is_some() {
            return (hit, first as u32);
        }
        let bin = self.occupied_from(own.next());
        let (hit, second) = self.tightest(bin, chunks, sought, WALK as usize, |_| true);
        (hit, (first + second) as u32)
    }

    /// The tightest chunk that fits and is accepted, bin after bin, looking at no more than `limit`.
    pub(super) fn sweep(
        &self,
        chunks: &[Chunk],
        sought: &Sought<'_>,
        limit: usize,
        mut accept: impl FnMut(&Chunk) -> bool,
    ) -> (Option<u32>, usize) {
        let mut steps = 0;
        let mut from = Bin::of(sought.kind, sought.len);
        loop {
            let bin = self.occupied_from(from);
            if bin.is_end() {
                return (None, steps);
            }
            let (hit, more) = self.tightest(bin, chunks, sought, limit - steps, &mut accept);
            steps += more;
            if hit.is_some() || steps == limit {
                return (hit, steps);
            }
            from = bin.next();
        }
    }

    /// The chunks of the own bin of what is sought and of all above it.
    pub(super) fn own_and_above(&self, sought: &Sought<'_>) -> impl Iterator<Item = u32> + '_ {
        let occupied = |bin: Bin| Some(self.occupied_from(bin)).filter(|bin| !bin.is_end());
        let own = occupied(Bin::of(sought.kind, sought.len));
        core::iter::successors(own, move |&bin| occupied(bin.next())).flat_map(|bin| self.ids(bin))
    }

    /// A chunk so long that it fits at any address; looks at one.
    pub(super) fn certain(&self, chunks: &[Chunk], sought: &Sought<'_>) -> Option<u32> {
        let bin =
            self.occupied_from(Bin::holding_only(sought.kind, sought.len.checked_add(sought.align - 1)?));
        self.tightest(bin, chunks, sought, 1, |_| true).0
    }

    /// The tightest of the first `limit` chunks of a bin that are accepted, and how many it looked at.
    fn tightest(
        &self,
        bin: Bin,
        chunks: &[Chunk],
        sought: &Sought<'_>,
        limit: usize,
        mut accept: impl FnMut(&Chunk) -> bool,
    ) -> (Option<u32>, usize) {
        let mut best: Option<(u32, &Chunk)> = None;
        let mut steps = 0;
        for id in self.ids(bin).take(limit) {
            let chunk = &chunks[id as usize];
            steps += 1;
            let tighter = best.is_none_or(|(_, b)| (chunk.len, chunk.place) < (b.len, b.place));
            if tighter && sought.fits(chunk) && accept(chunk) {
                if chunk.len == sought.len {
                    return (Some(id), steps);
                }
                best = Some((id, chunk));
            }
        }
        (best.map(|(id, _)| id), steps)
    }

    /// The chunks of a bin, newest first.
    pub(super) fn ids(&self, bin: Bin) -> impl Iterator<Item = u32> + '_ {
        let known = |id: u32| (id != NO_CHUNK).then_some(id);
        let first = self.first(bin).unwrap_or(NO_CHUNK);
        core::iter::successors(known(first), move |&id| known(self.behind(FIRST + id)))
    }

    /// The bins of a kind that have a chunk or a bit: for the checker.
    pub(super) fn in_use(&self, kind: Kind) -> impl Iterator<Item = Bin> + '_ {
        Bin::all(kind).filter(|&bin| {
            let first = self.links.get(bin.0 as usize).map_or(bin.0, |head| head.next);
            first != bin.0 || self.words[bin.word()] & bin.bit() != 0
        })
    }

    /// The chunks of a bin, newest first, and whether its bit is set: for the checker.
    pub(super) fn contents(&self, bin: Bin) -> (bool, impl Iterator<Item = u32> + '_) {
        (self.words[bin.word()] & bin.bit() != 0, self.ids(bin))
    }
    /// Whether the chunk before it in its bin (for the first, the bin) is what a chunk's link points back to, and what that is.
    pub(super) fn linked_back(
        &self,
        id: u32,
        before: Option<u32>,
        bin: Bin,
    ) -> (bool, impl core::fmt::Display + use<>) {
        let back = self.links[(FIRST + id) as usize].prev;
        (back == before.map_or(bin.0, |id| FIRST + id), Shown(back))
    }
    #[cfg(test)]
    pub(super) fn forget_bit(&mut self, bin: Bin) {
        self.words[bin.word()] &= !bin.bit();
    }
    #[cfg(test)]
    pub(super) fn link_mut(&mut self, id: u32) -> &mut Link {
        &mut self.links[(FIRST + id) as usize]
    }
}

/// A link's number, as the message of a law shows it.
struct Shown(u32);

impl core::fmt::Display for Shown {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self.0.saturating_sub(FIRST) {
            id @ 1.. => write!(f, "chunk {id}"),
            NO_CHUNK => write!(f, "{:?}", Bin(self.0)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{BINS, Bin, Bins, HALF, Kind};

    /// Every length to 2^16, and every sentinel of a bin to `u32::MAX` with its neighbours. Fewer of both under Miri, some
    /// hundred times slower.
    fn lengths() -> Vec<u32> {
        let (all, apart) = if cfg!(miri) { (1 << 6, 5) } else { (1 << 16, 1) };
        let sentinels = (4..32).step_by(apart).flat_map(|e| (0..16).map(move |s| (16 + s) << (e - 4)));
        let mut all: Vec<u32> = (1..=all)
            .chain(sentinels.flat_map(|n: u64| [n - 1, n, n + 1]))
            .chain([u64::from(u32::MAX) - 1, u64::from(u32::MAX)])
            .map(|n| u32::try_from(n).unwrap())
            .collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// The definition, with division instead of shifts.
    fn naive(len: u32) -> u64 {
        let len = u64::from(len);
        if len < 16 {
            return len;
        }
        let mut power = 16;
        let mut level = 1;
        while power * 2 <= len {
            power *= 2;
            level += 1;
        }
        level * 16 + (len - power) * 16 / power
    }

    #[test]
    fn every_length_has_the_bin_of_the_definition() {
        for len in lengths() {
            assert_eq!(u64::from(Bin::of(Kind::Small, len).0), naive(len), "length {len}");
        }
        assert_eq!(Bin::of(Kind::Small, u32::MAX).rank() as usize, BINS - 1);
        assert_eq!(Bin::of(Kind::Large, u32::MAX).0, HALF + BINS as u32 - 1);
    }

    #[test]
    fn bins_are_monotone_and_tile_the_lengths() {
        for pair in lengths().windows(2) {
            assert!(Bin::of(Kind::Large, pair[0]) <= Bin::of(Kind::Large, pair[1]), "{pair:?}");
        }
        for bin in Bin::all(Kind::Large).skip(1) {
            assert_eq!(Bin::of(Kind::Large, bin.low()), bin);
            assert_eq!(Bin::of(Kind::Large, bin.high()), bin);
            match bin.high().checked_add(1) {
                Some(n) => {
                    assert_eq!(Bin::of(Kind::Large, n), bin.next(), "{bin:?} and the next leave a hole");
                }
                None => assert_eq!(bin.rank() as usize, BINS - 1),
            }
            let width = u64::from(bin.high() - bin.low()) + 1;
            assert!(width == 1 || width * 16 <= u64::from(bin.low()), "{bin:?} is wide");
        }
    }

    #[test]
    fn a_chunk_of_a_higher_bin_always_fits() {
        for len in lengths() {
            let own = Bin::of(Kind::Large, len);
            assert!(own.low() <= len && len <= own.high(), "length {len}");
            if (own.rank() as usize) < BINS - 1 {
                assert!(own.next().low() > len, "a chunk above the bin of {len} may be too short");
            }
            let sure = Bin::holding_only(Kind::Large, len);
            if !sure.is_end() {
                assert!(sure.low() >= len, "length {len}");
            }
            assert!(
                sure.rank() == 0 || Bin(sure.0 - 1).low() < len,
                "a lower bin than {sure:?} would do for {len}"
            );
        }
    }

    #[test]
    fn the_bitmap_finds_the_same_bin_as_a_walk() {
        let last = BINS as u32 - 1;
        for (a, b) in [(0, last), (1, 16), (15, 16), (31, 48), (200, 207), (last - 1, last), (7, 7)] {
            for kind in Kind::ALL {
                let base = kind as u32 * HALF;
                let mut bins = Bins::new();
                for bin in [Bin(base + a), Bin(base + b)] {
                    bins.words[bin.word()] |= bin.bit();
                }
                assert_eq!((bins.highest(kind), bins.highest(kind.other())), (Some(Bin(base + b)), None));
                for from in (0..=BINS as u32).step_by(if cfg!(miri) { BINS / 16 } else { 1 }) {
                    let expected = [a, b].into_iter().filter(|&n| n >= from).min().map(|n| Bin(base + n));
                    let found = bins.occupied_from(Bin(base + from));
                    assert_eq!(found, expected.unwrap_or(Bin::end(kind)), "from {from}");
                }
            }
        }
        for kind in Kind::ALL {
            assert_eq!(Bins::new().highest(kind), None);
            assert_eq!(Bins::new().occupied_from(Bin(kind as u32 * HALF)), Bin::end(kind));
        }
    }
}
