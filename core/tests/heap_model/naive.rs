//! The naive heap: lists of ranges, searched from end to end by the documented rule, merged by starting again.

use millpond_core::heap::Kind;
use std::collections::BTreeMap;

/// What a range is. Free ranges remember when they entered their bin: a bin is searched newest first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum What {
    Free { entered: u64, stamp: u64 },
    Allocated { handle: u32, stamp: u64 },
    InFlight { handle: u32, stamp: u64 },
    Absent,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Range {
    pub(crate) offset: u32,
    pub(crate) len: u32,
    pub(crate) what: What,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Spec {
    pub(crate) id: u32,
    /// The base address in granules.
    pub(crate) base: u64,
    pub(crate) len: u32,
    pub(crate) kind: Kind,
    /// Of a window, what its memory comes and goes in; 0 of a plain segment.
    pub(crate) unit: u32,
}

/// A free piece that left: where, how long, and between what its stamp is.
pub(crate) type Piece = (u32, u32, (u64, u64));

/// Units of a window with no memory behind them: the window's number, where, how long.
pub(crate) type Hole = (u32, u32, u32);

/// Where a request is to be filled up: the window's number, where the request would lie, and what is missing there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Run {
    pub(crate) segment: u32,
    pub(crate) at: u32,
    pub(crate) missing: Vec<(u32, u32)>,
}

impl Run {
    /// What is compared: bytes, parts, place of what is missing.
    pub(crate) fn key(&self) -> (u32, usize, u32, u32) {
        (self.missing.iter().map(|m| m.1).sum(), self.missing.len(), self.segment, self.missing[0].0)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Ask {
    pub(crate) kind: Kind,
    pub(crate) len: u32,
    pub(crate) align: u32,
}

/// A free range, with its segment's number and where an aligned piece would begin.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Spot {
    pub(crate) segment: u32,
    pub(crate) offset: u32,
    pub(crate) len: u32,
    pub(crate) at: u32,
    pub(crate) stamp: u64,
    entered: u64,
    bin: u64,
    fits: bool,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Live {
    pub(crate) requested: u64,
    pub(crate) tag: u32,
}

#[derive(Clone, Default, Debug)]
pub(crate) struct Pool {
    pub(crate) segments: BTreeMap<u32, (Spec, Vec<Range>)>,
    pub(crate) live: BTreeMap<u32, Live>,
    /// With which stamp each granule entered last, by segment and offset.
    entries: BTreeMap<(u32, u32), u64>,
    /// The latest stamp with which any of a window's unit entered since it was last away, by window and number.
    units: BTreeMap<(u32, u32), u64>,
    clock: u64,
}

/// A length's bin: its power of two, cut into sixteen.
pub(crate) fn bin(len: u32) -> u64 {
    let len = u64::from(len);
    if len < 16 {
        return len;
    }
    let (mut power, mut level) = (16, 1);
    while power * 2 <= len {
        power *= 2;
        level += 1;
    }
    level * 16 + (len - power) * 16 / power
}

/// An exact fit, the first there is; or else the shortest fit, of equals the lowest.
fn pick<'a>(spots: impl Iterator<Item = &'a Spot> + Clone, len: u32) -> Option<Spot> {
    let fits = spots.filter(|s| s.fits);
    let exact = fits.clone().find(|s| s.len == len);
    exact.or_else(|| fits.min_by_key(|s| (s.len, s.segment, s.offset))).copied()
}

impl Pool {
    pub(crate) fn add(&mut self, spec: Spec) {
        let absent = Range { offset: 0, len: spec.len, what: What::Absent };
        self.segments.entry(spec.id).or_insert((spec, vec![absent]));
    }

    fn now(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// The free ranges of a kind, newest first.
    fn spots(&self, ask: Ask, kind: Kind) -> Vec<Spot> {
        let mut spots = Vec::new();
        for (spec, ranges) in self.segments.values().filter(|(s, _)| s.kind == kind) {
            for r in ranges {
                if let What::Free { entered, stamp } = r.what {
                    let at =
                        (spec.base + u64::from(r.offset)).next_multiple_of(u64::from(ask.align)) - spec.base;
                    let fits = at + u64::from(ask.len) <= u64::from(r.offset + r.len);
                    let at = u32::try_from(at).unwrap();
                    let (offset, len, bin) = (r.offset, r.len, bin(r.len));
                    spots.push(Spot { segment: spec.id, offset, len, at, stamp, entered, bin, fits });
                }
            }
        }
        spots.sort_by_key(|s| std::cmp::Reverse(s.entered));
        spots
    }

    /// Which free range a take is served from: sixteen of the own bin, sixteen of the next occupied one, then all.
    fn choose(&self, ask: Ask, kind: Kind) -> Option<Spot> {
        let spots = self.spots(ask, kind);
        let own = bin(ask.len);
        let next = spots.iter().map(|s| s.bin).filter(|&b| b > own).min();
        let of = |b: u64| spots.iter().filter(move |s| s.bin == b);
        let chosen = pick(of(own).take(16), ask.len)
            .or_else(|| pick(of(next?).take(16), ask.len))
            .or_else(|| self.seek(ask, kind, 1024, |_| true));
        // Row T4: while bins are short, this is the best fit of all.
        if of(own).count() <= 16 && next.is_none_or(|b| of(b).count() <= 16) {
            let shortest = spots.iter().filter(|s| s.fits).map(|s| s.len).min();
            assert_eq!(chosen.map(|s| s.len), shortest);
        }
        chosen
    }

    /// Bin after bin, newest first, at most `steps` in all; stamps must be accepted.
    pub(crate) fn seek(
        &self,
        ask: Ask,
        kind: Kind,
        steps: usize,
        accept: impl Fn(u64) -> bool,
    ) -> Option<Spot> {
        let mut spots = self.spots(ask, kind);
        spots.retain(|s| s.bin >= bin(ask.len));
        spots.sort_by_key(|s| s.bin);
        spots.truncate(steps);
        let mut bins: Vec<u64> = spots.iter().map(|s| s.bin).collect();
        bins.dedup();
        bins.iter().find_map(|&b| pick(spots.iter().filter(|s| s.bin == b && accept(s.stamp)), ask.len))
    }

    /// Replaces `[offset, offset + len)`, which lies in one range, by `what`; what is around it stays. If it is free, the
    /// lowest piece keeps its place in its bin, if that is still its bin, and others enter theirs anew, the front before
    /// the back.
    fn replace(&mut self, segment: u32, offset: u32, len: u32, what: What) {
        let (front, back) = (self.now(), self.now());
        let ranges = &mut self.segments.get_mut(&segment).unwrap().1;
        let i = ranges.iter().position(|r| r.offset <= offset && offset + len <= r.offset + r.len).unwrap();
        let old = ranges.remove(i);
        let renew = |len: u32, lowest: bool, now: u64| match old.what {
            What::Free { entered, stamp } => {
                let stays = lowest && bin(len) == bin(old.len);
                What::Free { entered: if stays { entered } else { now }, stamp }
            }
            other => other,
        };
        let (end, old_end) = (offset + len, old.offset + old.len);
        let (before, behind) = (offset - old.offset, old_end - end);
        let pieces = [
            Range { offset: old.offset, len: before, what: renew(before, true, front) },
            Range { offset, len, what },
            Range { offset: end, len: behind, what: renew(behind, before == 0, back) },
        ];
        ranges.splice(i..i, pieces.into_iter().filter(|p| p.len > 0));
        self.join(segment, offset);
    }

    /// Joins the range at `offset` with its neighbours, if they are both free or both absent. A free neighbour absorbs it,
    /// the one before rather than the one behind, and keeps its place in its bin, if that is still its bin.
    fn join(&mut self, segment: u32, offset: u32) {
        let now = self.now();
        let ranges = &mut self.segments.get_mut(&segment).unwrap().1;
        let at = ranges.iter().position(|r| r.offset == offset).unwrap();
        let alike = |r: &&Range| {
            matches!(
                (r.what, ranges[at].what),
                (What::Absent, What::Absent) | (What::Free { .. }, What::Free { .. })
            )
        };
        let before = at.checked_sub(1).and_then(|i| ranges.get(i)).filter(alike).copied();
        let behind = ranges.get(at + 1).filter(alike).copied();
        let all = [before, Some(ranges[at]), behind];
        let len = all.iter().flatten().map(|r| r.len).sum();
        let stamps = all.iter().flatten().filter_map(|r| match r.what {
            What::Free { stamp, .. } => Some(stamp),
            _ => None,
        });
        let what = match (before.or(behind).map(|r| (r.len, r.what)), stamps.max()) {
            (Some((old, What::Free { entered, .. })), Some(stamp)) => {
                What::Free { entered: if bin(old) == bin(len) { entered } else { now }, stamp }
            }
            _ => ranges[at].what,
        };
        let first = at - usize::from(before.is_some());
        let last = at + usize::from(behind.is_some());
        let whole = Range { offset: ranges[first].offset, len, what };
        ranges.splice(first..=last, [whole]);
    }

    pub(crate) fn take(&mut self, ask: Ask, across: bool, handle: u32, requested: u64) -> Option<Spot> {
        let spot = self.choose(ask, if across { ask.kind.other() } else { ask.kind })?;
        self.replace(spot.segment, spot.at, ask.len, What::Allocated { handle, stamp: spot.stamp });
        self.live.insert(handle, Live { requested, tag: 0 });
        Some(spot)
    }

    /// A range entered with this stamp.
    fn stamp(&mut self, segment: u32, offset: u32, len: u32, stamp: u64) {
        let unit = self.segments[&segment].0.unit;
        for granule in offset..offset + len {
            self.entries.insert((segment, granule), stamp);
            if let Some(unit) = granule.checked_div(unit) {
                let latest = self.units.entry((segment, unit)).or_default();
                *latest = stamp.max(*latest);
            }
        }
    }

    /// No earlier and no later than what may the stamp of a part be of a free range with this stamp.
    pub(crate) fn bounds(&self, segment: u32, offset: u32, len: u32, stamp: u64) -> (u64, u64) {
        let unit = self.segments[&segment].0.unit;
        if unit == 0 {
            return (stamp, stamp);
        }
        let entries = (offset..offset + len).map(|granule| self.entries[&(segment, granule)]);
        let units = (offset / unit..(offset + len).div_ceil(unit)).map(|unit| self.units[&(segment, unit)]);
        (entries.max().unwrap(), units.max().unwrap().min(stamp))
    }

    /// Every place of a window for `ask`, each granule of which is free or in a hole, by what it misses there; none that misses nothing.
    pub(crate) fn runs<'a>(&'a self, ask: Ask, holes: &'a [Hole]) -> impl Iterator<Item = Run> + 'a {
        let windows = self.segments.values().filter(move |(s, _)| s.kind == ask.kind && s.unit > 0);
        windows.flat_map(move |(spec, ranges)| {
            let holes: Vec<_> = holes.iter().filter(|h| h.0 == spec.id).map(|h| (h.1, h.1 + h.2)).collect();
            let hole_at = move |at: u32| holes.iter().position(|h| h.0 <= at && at < h.1);
            let fits = (0..=spec.len.saturating_sub(ask.len))
                .filter(move |at| (spec.base + u64::from(*at)).is_multiple_of(u64::from(ask.align)));
            fits.filter_map(move |at| {
                let mut missing: Vec<(usize, u32, u32)> = Vec::new();
                for granule in at..at.checked_add(ask.len).filter(|end| *end <= spec.len)? {
                    if let Some(hole) = hole_at(granule) {
                        let unit = granule / spec.unit * spec.unit;
                        match missing.last_mut() {
                            Some(last) if last.0 == hole => last.2 = unit + spec.unit - last.1,
                            _ => missing.push((hole, unit, spec.unit)),
                        }
                    } else {
                        let r = ranges.iter().find(|r| r.offset <= granule && granule < r.offset + r.len)?;
                        matches!(r.what, What::Free { .. }).then_some(())?;
                    }
                }
                let missing: Vec<_> = missing.into_iter().map(|m| (m.1, m.2)).collect();
                (!missing.is_empty()).then_some(Run { segment: spec.id, at, missing })
            })
        })
    }

    /// Takes from the free range at a place, at its first aligned address.
    pub(crate) fn take_at(&mut self, ask: Ask, segment: u32, at: u32, handle: u32) -> (u32, u64) {
        let (spec, ranges) = &self.segments[&segment];
        let r = ranges.iter().find(|r| r.offset <= at && at < r.offset + r.len).unwrap();
        let What::Free { stamp, .. } = r.what else { panic!("{r:?} is not free") };
        let begin = (spec.base + u64::from(r.offset)).next_multiple_of(u64::from(ask.align)) - spec.base;
        let begin = u32::try_from(begin).unwrap();
        assert!(begin + ask.len <= r.offset + r.len, "{r:?} does not hold {ask:?}");
        self.replace(segment, begin, ask.len, What::Allocated { handle, stamp });
        self.live.insert(handle, Live { requested: u64::from(ask.len) * 512, tag: 0 });
        (begin, stamp)
    }

    /// Every free piece of `[offset, offset + len)` leaves; nothing if any of it is in use.
    pub(crate) fn cut_free_in(&mut self, segment: u32, offset: u32, len: u32) -> Option<Vec<Piece>> {
        let Some((_, ranges)) = self.segments.get(&segment) else { return Some(Vec::new()) };
        let mut pieces = Vec::new();
        for r in ranges.iter().filter(|r| r.offset < offset + len && offset < r.offset + r.len) {
            let (from, end) = (r.offset.max(offset), (r.offset + r.len).min(offset + len));
            match r.what {
                What::Free { stamp, .. } => {
                    pieces.push((from, end - from, self.bounds(segment, from, end - from, stamp)));
                }
                What::Absent => {}
                _ => return None,
            }
        }
        for &(from, len, _) in &pieces {
            self.cut(segment, from, len);
        }
        Some(pieces)
    }

    /// Where a handle's range is.
    pub(crate) fn place(&self, handle: u32) -> Option<(u32, Range)> {
        self.segments.values().find_map(|(spec, ranges)| {
            let has = |r: &&Range| matches!(r.what, What::Allocated { handle: h, .. } | What::InFlight { handle: h, .. } if h == handle);
            Some((spec.id, *ranges.iter().find(has)?))
        })
    }

    pub(crate) fn give(&mut self, handle: u32, stamp: u64) {
        let (segment, r) = self.place(handle).unwrap();
        let entered = self.now();
        self.stamp(segment, r.offset, r.len, stamp);
        self.replace(segment, r.offset, r.len, What::Free { entered, stamp });
        self.live.remove(&handle);
    }

    pub(crate) fn hold(&mut self, handle: u32, stamp: u64) {
        let (segment, r) = self.place(handle).unwrap();
        self.replace(segment, r.offset, r.len, What::InFlight { handle, stamp });
    }

    pub(crate) fn extend(&mut self, segment: u32, offset: u32, len: u32, stamp: u64) {
        let entered = self.now();
        self.stamp(segment, offset, len, stamp);
        self.replace(segment, offset, len, What::Free { entered, stamp });
    }

    pub(crate) fn cut(&mut self, segment: u32, offset: u32, len: u32) {
        self.leave(segment, offset, len);
    }

    /// A range is away; so is every unit that it was the last of.
    fn leave(&mut self, segment: u32, offset: u32, len: u32) {
        self.replace(segment, offset, len, What::Absent);
        let (spec, ranges) = &self.segments[&segment];
        let absent = ranges.iter().find(|r| r.offset <= offset && offset < r.offset + r.len).unwrap();
        let is_away = |unit: u32| {
            absent.offset <= unit * spec.unit && (unit + 1) * spec.unit <= absent.offset + absent.len
        };
        self.units.retain(|key, _| key.0 != segment || !is_away(key.1));
    }

    /// The front of a range in flight leaves; the handle goes with the last of it.
    pub(crate) fn cut_in_flight(&mut self, handle: u32, len: u32) -> (u32, u32) {
        let (segment, r) = self.place(handle).unwrap();
        self.leave(segment, r.offset, len);
        if r.len == len {
            self.live.remove(&handle);
        }
        (segment, r.offset)
    }

    pub(crate) fn free_ranges(&self, segment: u32) -> Vec<Range> {
        let ranges = self.segments.get(&segment).map_or(&[][..], |s| &s.1);
        ranges.iter().filter(|r| matches!(r.what, What::Free { .. })).copied().collect()
    }

    /// Forgets a segment that is wholly absent.
    pub(crate) fn forget(&mut self, segment: u32) {
        if self.segments.get(&segment).is_some_and(|s| s.1.iter().all(|r| r.what == What::Absent)) {
            self.segments.remove(&segment);
        }
    }

    /// Granules that are free, allocated, in flight.
    pub(crate) fn sums(&self) -> [u64; 3] {
        let mut sums = [0; 3];
        for r in self.segments.values().flat_map(|s| &s.1) {
            let i = match r.what {
                What::Free { .. } => 0,
                What::Allocated { .. } => 1,
                What::InFlight { .. } => 2,
                What::Absent => continue,
            };
            sums[i] += u64::from(r.len);
        }
        sums
    }
}
