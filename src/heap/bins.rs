//! Free chunks by size: one set of bins for each kind, a bitmap over it, and the bounded best fit.
//!
//! A bin holds the chunks whose lengths lie between two edges. Each power of two is cut into sixteen bins, so that a
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
//! The bitmap is flat, eight words in one cache line, because it is written more often than searched far: with a second
//! level, a bit for each power of two, a pair that cuts and joins took 8 % more instructions.
//!
//! This module does not know whose bytes these are, what a stamp means, or where a segment lies except to align.

use super::chunk::{Chunk, ChunkState, NIL, OUT};
use super::segment::Segments;
use crate::units::Epoch;

/// How many bins a power of two is cut into, as a power of two.
const SUB_BITS: u32 = 4;
/// Bins in one level.
const SUBS: u32 = 1 << SUB_BITS;
/// Levels: one for lengths below 16, one for each leading bit from 4 to 31.
const LEVELS: usize = 29;
/// Bins in all.
const BINS: usize = LEVELS * SUBS as usize;
/// Room for the bins: a power of two, so that an index is masked and needs no check.
const ROOM: usize = BINS.next_power_of_two();
/// Words of the bitmap.
const WORDS: usize = ROOM / 64;
const _: () =
    assert!(BINS / 64 == WORDS - 1 && BINS < ROOM, "one past the last bin is a bin too, in the last word");

/// Chunks looked at in one bin before the search settles for the tightest so far. On recorded traces a walk takes 0.2
/// to 1.9 steps in the own bin and 0.5 to 3.9 in the next one.
pub(super) const WALK: u32 = 16;
/// Chunks looked at by the sweep before a take is called a miss: microseconds, where growth costs hundreds.
pub(super) const SWEEP: usize = 1024;

/// A bin's number. Higher bins hold longer chunks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Bin(u32);

impl Bin {
    /// One past the last bin.
    const END: Bin = Bin(BINS as u32);

    /// The bin of chunks of `len` granules.
    #[inline]
    pub(super) const fn of(len: u32) -> Bin {
        // The leading one stays at bit 4: a length of five significant bits or fewer is not shifted at all.
        let shift = (len | SUBS).ilog2() - SUB_BITS;
        Bin((shift << SUB_BITS) + (len >> shift))
    }
    /// The first bin all of whose chunks have `len` granules or more. May be one past the last bin.
    pub(super) const fn holding_only(len: u32) -> Bin {
        let bin = Bin::of(len);
        if bin.low() == len { bin } else { bin.next() }
    }
    /// Whether chunks of both lengths belong into one bin: they differ only below the five leading bits of the longer.
    #[inline]
    const fn share(one: u32, other: u32) -> bool {
        ((one ^ other) << (one | other | SUBS).leading_zeros()) >> (u32::BITS - 1 - SUB_BITS) == 0
    }
    #[inline]
    pub(super) const fn next(self) -> Bin {
        Bin(self.0 + 1)
    }
    const fn shift(self) -> u32 {
        (self.0 >> SUB_BITS).saturating_sub(1)
    }
    /// The shortest length that belongs here.
    pub(super) const fn low(self) -> u32 {
        let shift = self.shift();
        (self.0 - (shift << SUB_BITS)) << shift
    }
    /// The longest length that belongs here.
    pub(super) const fn high(self) -> u32 {
        self.low() | ((1 << self.shift()) - 1)
    }
    #[inline]
    const fn index(self) -> usize {
        self.0 as usize & (ROOM - 1)
    }
    /// The word of the bitmap that it has a bit in.
    #[inline]
    const fn word(self) -> usize {
        self.index() >> 6
    }
    #[inline]
    const fn bit(self) -> u64 {
        1 << (self.0 & 63)
    }
    #[cfg(test)]
    fn all() -> impl Iterator<Item = Bin> {
        (0..BINS as u32).map(Bin)
    }
}

/// What a search looks for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sought<'a> {
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
    fn fits(&self, chunk: &Chunk) -> bool {
        chunk.len >= self.len && (self.align == 1 || chunk.len - self.len >= self.skip(chunk))
    }
}

/// The free chunks of one kind.
#[derive(Clone, Debug)]
pub(super) struct Bins {
    /// A bit a bin, set iff the bin is not empty: one cache line. The bit behind the last bin is always set, so that a
    /// search for the next one ends without looking for the end.
    words: [u64; WORDS],
    heads: [u32; ROOM],
}

impl Bins {
    pub(super) const fn new() -> Bins {
        let mut words = [0; WORDS];
        words[Bin::END.word()] = Bin::END.bit();
        Bins { words, heads: [NIL; ROOM] }
    }

    /// A free chunk enters the bin of its length.
    #[inline]
    pub(super) fn enter(&mut self, chunks: &mut [Chunk], id: u32) {
        let bin = Bin::of(chunks[id as usize].len);
        self.link(chunks, id, bin);
    }

    /// A free chunk leaves the bin of its length, which must not have changed since it entered.
    #[inline]
    pub(super) fn leave(&mut self, chunks: &mut [Chunk], id: u32) {
        let bin = Bin::of(chunks[id as usize].len);
        self.unlink(chunks, id, bin);
    }

    /// A free chunk in a bin gets another length. Returns whether that belongs into another bin: then the caller is to
    /// [`rebin`](Bins::rebin) it at once.
    #[inline]
    pub(super) fn resize(chunk: &mut Chunk, id: u32, new: u32) -> bool {
        let (state, prev, old) = (chunk.state, chunk.bin_prev, chunk.len);
        law!(H4, state == Some(ChunkState::Free), "chunk {id} is {state:?} but changes its length in a bin");
        law!(H3, prev != OUT, "chunk {id} changes its length in a bin but is in none");
        chunk.len = new;
        !Bin::share(old, new)
    }

    /// A free chunk of `old` granules, in a bin, has got another length: it stays where it is or moves to the right bin.
    pub(super) fn resized(&mut self, chunks: &mut [Chunk], id: u32, old: u32) {
        let chunk = &mut chunks[id as usize];
        let new = core::mem::replace(&mut chunk.len, old);
        if Bins::resize(chunk, id, new) {
            self.rebin(chunks, id, old, new);
        }
    }

    /// A chunk whose length changed moves from its old bin to its new one.
    #[allow(
        clippy::inline_always,
        reason = "as a call it costs 20 instructions more, and a cut with its join makes two"
    )]
    #[inline(always)]
    pub(super) fn rebin(&mut self, chunks: &mut [Chunk], id: u32, old: u32, new: u32) {
        let (old, new) = (Bin::of(old), Bin::of(new));
        let head = self.heads[new.index()];
        let chunk = &mut chunks[id as usize];
        let (prev, next) = (chunk.bin_prev, chunk.bin_next);
        chunk.bin_prev = NIL;
        chunk.bin_next = head;
        self.close_gap(chunks, id, old, prev, next);
        self.put_first(chunks, id, new, head);
    }

    /// [`Bins::enter`] for a caller that knows the bin.
    #[inline]
    fn link(&mut self, chunks: &mut [Chunk], id: u32, bin: Bin) {
        let head = self.heads[bin.index()];
        let chunk = &mut chunks[id as usize];
        let state = chunk.state;
        law!(H4, state == Some(ChunkState::Free), "chunk {id} is {state:?} but enters a bin");
        law!(H3, chunk.bin_prev == OUT, "chunk {id} enters a bin but is in one");
        chunk.bin_prev = NIL;
        chunk.bin_next = head;
        self.put_first(chunks, id, bin, head);
    }

    /// The bin begins with `id` from now on, instead of with `head`.
    #[inline]
    fn put_first(&mut self, chunks: &mut [Chunk], id: u32, bin: Bin, head: u32) {
        self.heads[bin.index()] = id;
        // The end of a list is beyond the slab, so one comparison tells whether there is a chunk.
        if let Some(behind) = chunks.get_mut(head as usize) {
            behind.bin_prev = id;
        } else {
            self.words[bin.word()] |= bin.bit();
        }
    }

    /// [`Bins::leave`] for a caller that knows the bin.
    #[inline]
    pub(super) fn unlink(&mut self, chunks: &mut [Chunk], id: u32, bin: Bin) {
        let chunk = &mut chunks[id as usize];
        let (state, prev, next) = (chunk.state, chunk.bin_prev, chunk.bin_next);
        law!(H4, state == Some(ChunkState::Free), "chunk {id} is {state:?} but leaves a bin");
        law!(H3, prev != OUT, "chunk {id} leaves a bin but is in none");
        chunk.bin_prev = OUT;
        self.close_gap(chunks, id, bin, prev, next);
    }

    /// The neighbours in its bin of a chunk that is gone from between them are linked to each other.
    #[inline]
    fn close_gap(&mut self, chunks: &mut [Chunk], id: u32, bin: Bin, prev: u32, next: u32) {
        if let Some(after) = chunks.get_mut(next as usize) {
            let back = after.bin_prev;
            law!(H3, back == id, "chunk {next} is behind chunk {id} in a bin but linked to {back}");
            after.bin_prev = prev;
        }
        if let Some(before) = chunks.get_mut(prev as usize) {
            let on = before.bin_next;
            law!(H3, on == id, "chunk {prev} is before chunk {id} in a bin but linked to {on}");
            before.bin_next = next;
        } else {
            let first = self.heads[bin.index()];
            law!(
                H3,
                first == id,
                "chunk {id} of {} granules heads a bin that begins with {first}",
                bin.low()
            );
            self.heads[bin.index()] = next;
            if next == NIL {
                self.words[bin.word()] &= !bin.bit();
            }
        }
    }

    /// The chunk that entered a bin last, or `NIL`.
    #[inline]
    pub(super) fn head(&self, bin: Bin) -> u32 {
        self.heads[bin.index()]
    }

    /// [`Bins::unlink`] for the chunk that [`Bins::head`] returned.
    #[inline]
    pub(super) fn pop(&mut self, chunks: &mut [Chunk], id: u32, bin: Bin) {
        let chunk = &mut chunks[id as usize];
        let (state, prev, next) = (chunk.state, chunk.bin_prev, chunk.bin_next);
        law!(H4, state == Some(ChunkState::Free), "chunk {id} is {state:?} but leaves a bin");
        law!(H3, prev == NIL, "chunk {id} heads a bin but is linked to {prev}");
        chunk.bin_prev = OUT;
        self.heads[bin.index()] = next;
        if let Some(after) = chunks.get_mut(next as usize) {
            let back = after.bin_prev;
            law!(H3, back == id, "chunk {next} is behind chunk {id} in a bin but linked to {back}");
            after.bin_prev = NIL;
        } else {
            self.words[bin.word()] &= !bin.bit();
        }
    }

    /// The bounded best fit of the hot path, for `len` granules at any address: the chunk, or `NIL`, and how many were
    /// looked at, [`WALK`] at most of the own bin and as many of the next occupied one. Most bins hold one chunk: then
    /// there is nothing to compare.
    #[inline]
    pub(super) fn best_fit(&self, chunks: &[Chunk], len: u32, own: Bin) -> (u32, u32) {
        let mut steps = 0;
        let head = self.head(own);
        if let Some(first) = chunks.get(head as usize) {
            let (found, walked) = if first.bin_next == NIL {
                (if first.len >= len { head } else { NIL }, 1)
            } else {
                walk(head, chunks, len)
            };
            if found != NIL {
                return (found, walked);
            }
            steps = walked;
        }
        let head = self.head(self.occupied_from(own.next()));
        match chunks.get(head as usize) {
            Some(first) if first.bin_next == NIL => (head, steps + 1),
            Some(_) => {
                let (found, walked) = walk(head, chunks, len);
                (found, steps + walked)
            }
            None => (NIL, steps),
        }
    }

    /// A chunk of exactly the length sought, looking at no more than `steps` of its bin.
    pub(super) fn exact(&self, chunks: &[Chunk], sought: &Sought<'_>, steps: usize) -> Option<u32> {
        let mut at = self.heads[Bin::of(sought.len).index()];
        for _ in 0..steps {
            if at == NIL {
                return None;
            }
            let chunk = &chunks[at as usize];
            if chunk.len == sought.len && sought.skip(chunk) == 0 {
                return Some(at);
            }
            at = chunk.bin_next;
        }
        None
    }

    /// The first occupied bin from `bin` up, or the one past the last, which is always empty.
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

    /// The bin of the longest free chunk.
    pub(super) fn highest(&self) -> Option<Bin> {
        let of_bins = |at: usize| {
            if at == Bin::END.word() { self.words[at] & (Bin::END.bit() - 1) } else { self.words[at] }
        };
        let at = (0..WORDS).rev().find(|&at| of_bins(at) != 0)?;
        Some(Bin((at as u32) << 6 | of_bins(at).ilog2()))
    }

    /// As [`Bins::best_fit`], at an address to be sought.
    pub(super) fn best_fit_at(&self, chunks: &[Chunk], sought: &Sought<'_>) -> (Option<u32>, u32) {
        let own = Bin::of(sought.len);
        let (hit, first) = self.tightest(own, chunks, sought, WALK as usize, |_| true);
        if hit.is_some() {
            return (hit, first as u32);
        }
        let bin = self.occupied_from(own.next());
        let (hit, second) = self.tightest(bin, chunks, sought, WALK as usize, |_| true);
        (hit, (first + second) as u32)
    }

    /// The tightest chunk that fits and whose stamp is accepted, bin after bin, looking at no more than `limit`.
    pub(super) fn sweep(
        &self,
        chunks: &[Chunk],
        sought: &Sought<'_>,
        limit: usize,
        mut accept: impl FnMut(Epoch) -> bool,
    ) -> (Option<u32>, usize) {
        let mut steps = 0;
        let mut from = Bin::of(sought.len);
        loop {
            let bin = self.occupied_from(from);
            if bin == Bin::END {
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

    /// A chunk so long that it fits wherever it begins, looking at one.
    pub(super) fn certain(&self, chunks: &[Chunk], sought: &Sought<'_>) -> Option<u32> {
        let bin = self.occupied_from(Bin::holding_only(sought.len.checked_add(sought.align - 1)?));
        self.tightest(bin, chunks, sought, 1, |_| true).0
    }

    /// The tightest of the first `limit` chunks of a bin that are accepted, and how many were looked at.
    fn tightest(
        &self,
        bin: Bin,
        chunks: &[Chunk],
        sought: &Sought<'_>,
        limit: usize,
        mut accept: impl FnMut(Epoch) -> bool,
    ) -> (Option<u32>, usize) {
        let mut best: Option<(u32, &Chunk)> = None;
        let mut steps = 0;
        let mut at = self.heads[bin.index()];
        while at != NIL && steps < limit {
            let chunk = &chunks[at as usize];
            steps += 1;
            let tighter = best.is_none_or(|(_, b)| (chunk.len, chunk.place()) < (b.len, b.place()));
            if tighter && sought.fits(chunk) && accept(chunk.stamp) {
                if chunk.len == sought.len {
                    return (Some(at), steps);
                }
                best = Some((at, chunk));
            }
            at = chunk.bin_next;
        }
        (best.map(|(id, _)| id), steps)
    }

    /// The bins that have a head or a bit: for the walker. Sixty-four that have neither are seen to at once.
    pub(super) fn in_use(&self) -> impl Iterator<Item = Bin> + '_ {
        let end = |at: usize| if at == Bin::END.word() { Bin::END.bit() } else { 0 };
        let quiet = move |at: usize| self.words[at] == end(at) && self.heads[at * 64..][..64] == [NIL; 64];
        (0..WORDS)
            .filter(move |&at| !quiet(at))
            .flat_map(|at| (at * 64..BINS.min(at * 64 + 64)).map(|b| Bin(b as u32)))
    }

    /// The chunks of a bin, newest first, and whether its bit is set: for the walker.
    pub(super) fn contents<'a>(
        &self,
        bin: Bin,
        chunks: &'a [Chunk],
    ) -> (bool, impl Iterator<Item = u32> + use<'a>) {
        let head = self.heads[bin.index()];
        let next = |id: u32| (id != NIL).then_some(id);
        let marked = self.words[bin.word()] & bin.bit() != 0;
        (marked, core::iter::successors(next(head), move |&id| next(chunks[id as usize].bin_next)))
    }
    #[cfg(test)]
    pub(super) fn forget_bit(&mut self, bin: Bin) {
        self.words[bin.word()] &= !bin.bit();
    }
}

/// The tightest of the first [`WALK`] chunks from `at` on that have `len` granules, or `NIL`, and how many were looked at.
/// Of equals the lowest, so that long ranges form at the high end.
#[inline(never)]
fn walk(mut at: u32, chunks: &[Chunk], len: u32) -> (u32, u32) {
    // What is left over, and behind it the place: one number, so that one comparison without a jump tells whether a chunk is
    // the best so far. Of a chunk that is too short the first half wraps around to more than any length.
    let (mut best, mut least) = (NIL, 1 << 96);
    let mut steps = 0;
    while let Some(chunk) = chunks.get(at as usize) {
        steps += 1;
        let left = u64::from(chunk.len).wrapping_sub(u64::from(len));
        if left == 0 {
            return (at, steps);
        }
        let this = u128::from(left) << 64 | u128::from(chunk.place());
        (best, least) = if this < least { (at, this) } else { (best, least) };
        at = chunk.bin_next;
        if steps == WALK {
            break;
        }
    }
    (best, steps)
}

#[cfg(test)]
mod tests {
    use super::{BINS, Bin, Bins};

    /// Every length to 2^16, and every edge of a bin to `u32::MAX` with its neighbours. Fewer of both under Miri, some
    /// hundred times slower.
    fn lengths() -> Vec<u32> {
        let (all, apart) = if cfg!(miri) { (1 << 6, 5) } else { (1 << 16, 1) };
        let edges = (4..32).step_by(apart).flat_map(|e| (0..16).map(move |s| (16 + s) << (e - 4)));
        let mut all: Vec<u32> = (1..=all)
            .chain(edges.flat_map(|n: u64| [n - 1, n, n + 1]))
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
            assert_eq!(u64::from(Bin::of(len).0), naive(len), "length {len}");
        }
        assert_eq!(Bin::of(u32::MAX).0 as usize, BINS - 1);
    }

    #[test]
    fn bins_are_monotone_and_tile_the_lengths() {
        for pair in lengths().windows(2) {
            assert!(Bin::of(pair[0]) <= Bin::of(pair[1]), "{pair:?}");
        }
        for bin in Bin::all().skip(1) {
            assert_eq!(Bin::of(bin.low()), bin);
            assert_eq!(Bin::of(bin.high()), bin);
            match bin.high().checked_add(1) {
                Some(n) => assert_eq!(Bin::of(n), bin.next(), "{bin:?} and the next leave a hole"),
                None => assert_eq!(bin.0 as usize, BINS - 1),
            }
            let width = u64::from(bin.high() - bin.low()) + 1;
            assert!(width == 1 || width * 16 <= u64::from(bin.low()), "{bin:?} is wide");
        }
    }

    #[test]
    fn lengths_share_a_bin_if_their_bins_are_one() {
        for pair in lengths().windows(2) {
            for longer in [pair[1], pair[1].saturating_mul(2), pair[1].saturating_add(pair[1] / 16)] {
                assert_eq!(
                    Bin::share(pair[0], longer),
                    Bin::of(pair[0]) == Bin::of(longer),
                    "{pair:?} {longer}"
                );
            }
            assert!(Bin::share(pair[0], pair[0]));
        }
    }

    #[test]
    fn a_chunk_of_a_higher_bin_always_fits() {
        for len in lengths() {
            let own = Bin::of(len);
            assert!(own.low() <= len && len <= own.high(), "length {len}");
            if (own.0 as usize) < BINS - 1 {
                assert!(own.next().low() > len, "a chunk above the bin of {len} may be too short");
            }
            let sure = Bin::holding_only(len);
            if (sure.0 as usize) < BINS {
                assert!(sure.low() >= len, "length {len}");
            }
            assert!(
                sure.0 == 0 || Bin(sure.0 - 1).low() < len,
                "a lower bin than {sure:?} would do for {len}"
            );
        }
    }

    #[test]
    fn the_bitmap_finds_the_same_bin_as_a_walk() {
        for (a, b) in [(0, 463), (1, 16), (15, 16), (31, 48), (200, 207), (462, 463), (7, 7)] {
            let mut bins = Bins::new();
            for bin in [Bin(a), Bin(b)] {
                bins.words[bin.word()] |= bin.bit();
            }
            assert_eq!(bins.highest(), Some(Bin(b)));
            for from in (0..=BINS as u32).step_by(if cfg!(miri) { BINS / 16 } else { 1 }) {
                let expected = [a, b].into_iter().filter(|&n| n >= from).min().map(Bin);
                assert_eq!(bins.occupied_from(Bin(from)), expected.unwrap_or(Bin::END), "from {from}");
            }
        }
        assert_eq!(Bins::new().highest(), None);
        assert_eq!(Bins::new().occupied_from(Bin(0)), Bin::END);
    }
}
