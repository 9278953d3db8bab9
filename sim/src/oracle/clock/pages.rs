//! Clocks that share what they have in common.
//!
//! A [`Clock`] is a tree of pages that are never changed while two clocks share them. A leaf holds the ticks of the lines
//! of one range, sorted, with nothing stored for unknown lines; a page above has 16 of those below, and the tree is no
//! higher than its highest line needs. A join looks only at pages that the two do not share, takes over whole pages of
//! the other's where they include everything in its own, and of two equal pages keeps the other's. So if the host's waits show each of
//! thousands of streams what is complete, or each waits for another, a stream pays for what is new to it and not
//! for all that it knows. By which wait something was learnt is in a tree beside it (`marks`), because two clocks with the
//! same entries may have learnt them in two ways.
//!
//! Pages: every page has at least one entry; a page's `len` is the number of entries below it; no tick is 0.
//!
//! It does not know who owns a clock, nor what a tick stands for.

mod marks;

use super::{At, Entry, Line, Via};
use marks::Marks;
use std::sync::Arc;

/// A leaf holds the lines whose places differ only in this many low bits.
const LEAF: u32 = 6;
/// A page above a leaf selects by this many bits.
const FAN: u32 = 4;
const PAGES: usize = 1 << FAN;

/// A line's place in the tree: streams and host threads alternate, so that few of both give a low tree.
fn place(line: Line) -> u32 {
    line.0.rotate_left(1)
}
/// Which of the pages below one of this height contains a place.
fn slot(place: u32, height: u32) -> usize {
    (place >> (LEAF + FAN * (height - 1))) as usize & (PAGES - 1)
}
/// Whether a tree of this height has a place.
fn has_room(height: u32, place: u32) -> bool {
    place.checked_shr(LEAF + FAN * height).unwrap_or(0) == 0
}

type Link = Option<Arc<Page>>;

const NO_LINKS: [Link; PAGES] = [const { None }; PAGES];

#[derive(Clone, Debug)]
struct Page {
    len: usize,
    holds: Holds,
}

#[derive(Clone, Debug)]
enum Holds {
    /// Ascending by place.
    Ticks(Vec<At>),
    Pages(Box<[Link; PAGES]>),
}

impl Page {
    fn leaf(ticks: Vec<At>) -> Link {
        (!ticks.is_empty()).then(|| Arc::new(Page { len: ticks.len(), holds: Holds::Ticks(ticks) }))
    }
    fn above(links: [Link; PAGES]) -> Link {
        let len = links.iter().flatten().map(|page| page.len).sum();
        (len > 0).then(|| Arc::new(Page { len, holds: Holds::Pages(Box::new(links)) }))
    }
}

fn ticks(page: Option<&Arc<Page>>) -> &[At] {
    match page.map(|page| &page.holds) {
        None => &[],
        Some(Holds::Ticks(ticks)) => ticks,
        Some(Holds::Pages(_)) => unreachable!("a page of height 0 has ticks"),
    }
}
fn below(page: Option<&Arc<Page>>, slot: usize) -> Option<&Arc<Page>> {
    match &page?.holds {
        Holds::Pages(links) => links[slot].as_ref(),
        Holds::Ticks(_) => unreachable!("only pages of height 0 have ticks"),
    }
}
fn is_same(a: Option<&Arc<Page>>, b: Option<&Arc<Page>>) -> bool {
    match (a, b) {
        (Some(a), Some(b)) => Arc::ptr_eq(a, b),
        (None, None) => true,
        _ => false,
    }
}

/// For each line the newest tick that happened before, and by which wait that was learnt.
#[derive(Clone, Default, Debug)]
pub(in crate::oracle) struct Clock {
    root: Link,
    /// For lines without a tick they have no meaning.
    marks: Marks,
    height: u32,
}

impl Clock {
    /// How many lines are known.
    pub(in crate::oracle) fn len(&self) -> usize {
        self.root.as_ref().map_or(0, |page| page.len)
    }
    /// The newest tick of a line; 0 if nothing is known of it.
    pub(super) fn tick_of(&self, line: Line) -> u64 {
        let place = place(line);
        if !has_room(self.height, place) {
            return 0;
        }
        let mut page = self.root.as_ref();
        for height in (1..=self.height).rev() {
            page = below(page, slot(place, height));
        }
        let ticks = ticks(page);
        find(ticks, place).map_or(0, |i| ticks[i].tick)
    }
    /// What is known of a line.
    pub(in crate::oracle) fn get(&self, line: Line) -> Option<Entry> {
        let tick = self.tick_of(line);
        (tick > 0).then(|| Entry { line, via: self.marks.get(place(line), self.height), tick })
    }
    /// Whether `is` holds for any tick of `other`'s that is newer than what is known here. Stops at the first; pages that both
    /// share are skipped.
    pub(in crate::oracle) fn any_beyond(&self, other: &Clock, mut is: impl FnMut(At) -> bool) -> bool {
        let height = self.height.max(other.height);
        let (own, other) = (self.as_high_as(height), other.as_high_as(height));
        any_beyond(own.as_ref(), other.as_ref(), height, &mut is)
    }
    /// Takes in all that `other` knows; returns whether it learnt anything about lines other than `own`. What a wait adds is marked with it; without
    /// a wait the other's marks are taken over.
    pub(super) fn join(&mut self, other: &Clock, own: Option<Line>, via: Via) -> bool {
        if is_same(self.root.as_ref(), other.root.as_ref()) {
            return false;
        }
        let height = self.height.max(other.height);
        let (ours, theirs) = (self.as_high_as(height), other.as_high_as(height));
        self.marks = self.marks.as_high_as(self.height, height);
        self.height = height;
        let others = other.marks.as_high_as(other.height, height);
        let mut join = Join { own: own.map(place), via, learnt: false };
        let (root, marks) = join.pages(ours.as_ref(), theirs.as_ref(), [&self.marks, &others], height);
        self.root = root;
        if let Some(marks) = marks {
            self.marks = marks;
        }
        join.learnt
    }
    /// Sets what is known of one line, which is no older than before.
    pub(super) fn put(&mut self, at: At, via: Via) {
        let (known, place) = (self.tick_of(at.line), place(at.line));
        let mut height = self.height;
        while !has_room(height, place) {
            height += 1;
        }
        if known < at.tick {
            let mut root = self.as_high_as(height);
            set(&mut root, at, height, known == 0);
            self.root = root;
        }
        self.marks = self.marks.as_high_as(self.height, height);
        self.marks.set(place, height, via);
        self.height = height;
    }
    /// Forgets lines, where they are three quarters of a leaf: what stays is at most four times what is kept, and leaves with fewer are still
    /// shared with other clocks.
    pub(in crate::oracle) fn retain(&mut self, keep: impl Fn(Line) -> bool) {
        self.root = retained(self.root.as_ref(), self.height, &keep);
    }
    /// The same pages in a tree of this height, which is no lower.
    fn as_high_as(&self, height: u32) -> Link {
        (self.height..height).fold(self.root.clone(), |page, _| {
            let mut links = NO_LINKS;
            links[0] = page;
            Page::above(links)
        })
    }
}

fn find(ticks: &[At], at: u32) -> Result<usize, usize> {
    // Most clocks of small programs hold a handful of lines: a linear search beats a binary one there.
    if ticks.len() <= 8 {
        let i = ticks.iter().position(|e| place(e.line) >= at).unwrap_or(ticks.len());
        return if ticks.get(i).is_some_and(|e| place(e.line) == at) { Ok(i) } else { Err(i) };
    }
    ticks.binary_search_by_key(&at, |e| place(e.line))
}

fn set(link: &mut Link, at: At, height: u32, is_new: bool) {
    let empty = || match height {
        0 => Holds::Ticks(Vec::new()),
        _ => Holds::Pages(Box::new(NO_LINKS)),
    };
    let page = Arc::make_mut(link.get_or_insert_with(|| Arc::new(Page { len: 0, holds: empty() })));
    page.len += usize::from(is_new);
    match &mut page.holds {
        Holds::Ticks(ticks) => match find(ticks, place(at.line)) {
            Ok(i) => ticks[i] = at,
            Err(i) => ticks.insert(i, at),
        },
        Holds::Pages(links) => set(&mut links[slot(place(at.line), height)], at, height - 1, is_new),
    }
}

fn any_beyond(
    own: Option<&Arc<Page>>,
    other: Option<&Arc<Page>>,
    height: u32,
    is: &mut impl FnMut(At) -> bool,
) -> bool {
    if other.is_none() || is_same(own, other) {
        return false;
    }
    if height > 0 {
        return (0..PAGES).any(|i| any_beyond(below(own, i), below(other, i), height - 1, is));
    }
    let mut own = ticks(own).iter().peekable();
    ticks(other).iter().any(|e| {
        while own.next_if(|o| place(o.line) < place(e.line)).is_some() {}
        !own.peek().is_some_and(|o| o.line == e.line && o.tick >= e.tick) && is(*e)
    })
}

/// A page without some lines; a page that loses nothing stays shared.
fn retained(page: Option<&Arc<Page>>, height: u32, keep: &impl Fn(Line) -> bool) -> Link {
    let whole = page?;
    if height == 0 {
        let kept = ticks(page).iter().filter(|e| keep(e.line)).count();
        if 4 * kept > whole.len {
            return Some(whole.clone());
        }
        return Page::leaf(ticks(page).iter().copied().filter(|e| keep(e.line)).collect());
    }
    let left: [Link; PAGES] = std::array::from_fn(|i| retained(below(page, i), height - 1, keep));
    let stays = (0..PAGES).all(|i| is_same(left[i].as_ref(), below(page, i)));
    if stays { Some(whole.clone()) } else { Page::above(left) }
}

/// The newer tick of each line.
fn newest(mine: &[At], theirs: &[At]) -> Vec<At> {
    let mut all = Vec::with_capacity(mine.len().max(theirs.len()) + 1);
    let mut rest = mine.iter().copied().peekable();
    for &e in theirs {
        while let Some(o) = rest.next_if(|o| place(o.line) < place(e.line)) {
            all.push(o);
        }
        let known = rest.next_if(|o| o.line == e.line);
        all.push(known.filter(|o| o.tick >= e.tick).unwrap_or(e));
    }
    all.extend(rest);
    all
}

struct Join {
    own: Option<u32>,
    via: Via,
    learnt: bool,
}

impl Join {
    /// What both know, and the marks if they differ from before. `marks`: own and the other's.
    fn pages(
        &mut self,
        own: Option<&Arc<Page>>,
        other: Option<&Arc<Page>>,
        marks: [&Marks; 2],
        height: u32,
    ) -> (Link, Option<Marks>) {
        let Some(theirs) = other.filter(|_| !is_same(own, other)) else { return (own.cloned(), None) };
        if own.is_none() {
            self.learnt |= theirs.len > 1 || self.is_of_others(theirs);
            let marks = if self.via == Via::NONE { marks[1].clone() } else { Marks::all(self.via) };
            return (Some(theirs.clone()), Some(marks));
        }
        if height == 0 {
            return self.leaves(own, other, marks);
        }
        let mut links = NO_LINKS;
        let mut marked: Option<Marks> = None;
        for (i, link) in links.iter_mut().enumerate() {
            let (own, other) = (below(own, i), below(other, i));
            if other.is_none() || is_same(own, other) {
                *link = own.cloned();
                continue;
            }
            let below_marks = marks.map(|marks| marks.below(i));
            let (page, learnt) = self.pages(own, other, below_marks.each_ref(), height - 1);
            *link = page;
            if let Some(learnt) = learnt {
                marked.get_or_insert_with(|| marks[0].clone()).set_below(i, learnt);
            }
        }
        let all_of = |page| (0..PAGES).all(|i| is_same(links[i].as_ref(), below(page, i)));
        let page = if all_of(other) {
            other.cloned()
        } else if all_of(own) {
            own.cloned()
        } else {
            Page::above(links)
        };
        (page, marked)
    }
    /// Whether the one tick of a page is of another line than the own one.
    fn is_of_others(&self, page: &Arc<Page>) -> bool {
        match &page.holds {
            Holds::Ticks(ticks) => ticks.iter().any(|e| Some(place(e.line)) != self.own),
            Holds::Pages(links) => links.iter().flatten().any(|page| self.is_of_others(page)),
        }
    }
    fn leaves(
        &mut self,
        own: Option<&Arc<Page>>,
        other: Option<&Arc<Page>>,
        marks: [&Marks; 2],
    ) -> (Link, Option<Marks>) {
        let (mine, theirs) = (ticks(own), ticks(other));
        // How many of the own ticks the other's page has too, no older.
        let (mut i, mut has, mut is_new) = (0, 0, false);
        let mut marked: Option<Marks> = None;
        for e in theirs {
            let at = place(e.line);
            while i < mine.len() && place(mine[i].line) < at {
                i += 1;
            }
            let known = mine.get(i).filter(|o| o.line == e.line).map_or(0, |o| o.tick);
            has += usize::from(known > 0 && known <= e.tick);
            if known < e.tick {
                is_new = true;
                self.learnt |= Some(at) != self.own;
                let via = if self.via == Via::NONE { marks[1].get(at, 0) } else { self.via };
                if marks[0].get(at, 0) != via {
                    marked.get_or_insert_with(|| marks[0].clone()).set(at, 0, via);
                }
            }
        }
        let page = if has == mine.len() {
            other.cloned()
        } else if is_new {
            Page::leaf(newest(mine, theirs))
        } else {
            own.cloned()
        };
        (page, marked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oracle::{HostKey, StreamKey};
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn line(n: u32) -> Line {
        if n.is_multiple_of(7) { Line::host(HostKey(n / 7)) } else { Line::stream(StreamKey(n)) }
    }

    #[derive(Clone, Debug)]
    enum Step {
        Raise { clock: usize, line: u32, tick: u64, via: u32 },
        Join { into: usize, from: usize, via: u32, except: u32 },
        Copy { into: usize, from: usize },
        Forget { clock: usize, part: u32 },
    }
    fn lines() -> impl Strategy<Value = u32> {
        prop_oneof![0..40u32, 0..3000u32, Just((1 << 30) - 1)]
    }
    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            6 => (0..4usize, lines(), 0..9u64, 0..3u32).prop_map(|(clock, line, tick, via)| Step::Raise { clock, line, tick, via }),
            4 => (0..4usize, 0..4usize, 0..3u32, lines()).prop_map(|(into, from, via, except)| Step::Join { into, from, via, except }),
            1 => (0..4usize, 0..4usize).prop_map(|(into, from)| Step::Copy { into, from }),
            1 => (0..4usize, 3..9u32).prop_map(|(clock, part)| Step::Forget { clock, part }),
        ]
    }
    type Model = BTreeMap<Line, (u64, Via)>;
    fn check(page: Option<&Arc<Page>>, height: u32) -> Vec<At> {
        let Some(whole) = page else { return Vec::new() };
        let all: Vec<At> = match &whole.holds {
            Holds::Ticks(ticks) => {
                assert_eq!(height, 0);
                ticks.clone()
            }
            Holds::Pages(_) => (0..PAGES).flat_map(|i| check(below(page, i), height - 1)).collect(),
        };
        assert!(!all.is_empty() && all.len() == whole.len, "{} ticks, counted {}", all.len(), whole.len);
        assert!(all.is_sorted_by_key(|e| place(e.line)) && all.iter().all(|e| e.tick > 0));
        all
    }

    proptest! {
        /// Against maps: every entry with its mark, whether a join taught anything, and what one knows beyond another.
        #[test]
        fn clocks_are_maps(steps in prop::collection::vec(step(), 1..60)) {
            let mut clocks: [Clock; 4] = Default::default();
            let mut models: [Model; 4] = Default::default();
            let raised = |model: &mut Model, line, tick, source: Via, via: Via| {
                let is_new = model.get(&line).map_or(0, |known| known.0) < tick;
                if is_new {
                    model.insert(line, (tick, if via == Via::NONE { source } else { via }));
                }
                is_new
            };
            for step in steps {
                match step {
                    Step::Raise { clock, line: n, tick, via } => {
                        let learnt = clocks[clock].raise(At { line: line(n), tick }, Via(via));
                        prop_assert_eq!(learnt, raised(&mut models[clock], line(n), tick, Via::NONE, Via(via)));
                    }
                    Step::Join { into, from, via, except } => {
                        let (other, model) = (clocks[from].clone(), models[from].clone());
                        let learnt = clocks[into].join(&other, Some(line(except)), Via(via));
                        let mut expected = false;
                        for (l, (tick, source)) in model {
                            let learnt = raised(&mut models[into], l, tick, source, Via(via));
                            expected |= learnt && l != line(except);
                        }
                        prop_assert_eq!(learnt, expected);
                    }
                    Step::Copy { into, from } => {
                        clocks[into] = clocks[from].clone();
                        models[into] = models[from].clone();
                    }
                    Step::Forget { clock, part } => {
                        let (of, model) = (&mut clocks[clock], &mut models[clock]);
                        let keep = |line: Line| (line.0 >> 3) % 8 >= part;
                        of.retain(keep);
                        model.retain(|&line, _| keep(line) || of.tick_of(line) > 0);
                        let kept = model.keys().filter(|&&line| keep(line)).count();
                        prop_assert!(of.len() <= 4 * kept);
                    }
                }
                for (clock, model) in clocks.iter().zip(&models) {
                    let mut all = check(clock.root.as_ref(), clock.height);
                    all.sort_unstable_by_key(|e| e.line);
                    let all: Vec<_> = all.iter().map(|e| (e.line, e.tick)).collect();
                    prop_assert_eq!(&all, &model.iter().map(|(line, of)| (*line, of.0)).collect::<Vec<_>>());
                    for (&line, &(tick, via)) in model {
                        prop_assert_eq!(clock.get(line), Some(Entry { line, via, tick }));
                    }
                }
                for (a, of_a) in clocks.iter().zip(&models) {
                    for (b, of_b) in clocks.iter().zip(&models) {
                        let mut beyond = Vec::new();
                        a.any_beyond(b, |e| { beyond.push(e.line); false });
                        beyond.sort_unstable();
                        let known = |line| of_a.get(line).map_or(0, |known| known.0);
                        let newer: Vec<Line> = of_b.iter().filter(|(line, of)| known(line) < of.0).map(|of| *of.0).collect();
                        prop_assert_eq!(beyond, newer);
                    }
                }
            }
        }
    }

    /// Pages of `b` that `a` does not have in the same place.
    fn apart(a: Option<&Arc<Page>>, b: Option<&Arc<Page>>, height: u32) -> usize {
        if b.is_none() || is_same(a, b) {
            return 0;
        }
        let each = |i| if height == 0 { 0 } else { apart(below(a, i), below(b, i), height - 1) };
        1 + (0..PAGES).map(each).sum::<usize>()
    }
    fn pages_apart(a: &Clock, b: &Clock) -> usize {
        let height = a.height.max(b.height);
        let (a, b) = (a.as_high_as(height), b.as_high_as(height));
        apart(a.as_ref(), b.as_ref(), height)
    }
    impl Clock {
        /// Raises one line, if it was lower; returns whether it was.
        fn raise(&mut self, at: At, via: Via) -> bool {
            let learnt = at.tick > self.tick_of(at.line);
            if learnt {
                self.put(at, via);
            }
            learnt
        }
    }
    fn at(stream: u32, tick: u64) -> At {
        At { line: Line::stream(StreamKey(stream)), tick }
    }
    /// What knows one operation of each of 20,000 streams.
    fn of_many_streams() -> Clock {
        let mut clock = Clock::default();
        for n in 0..20_000 {
            clock.raise(at(n, 1), Via::NONE);
        }
        clock
    }

    #[test]
    fn what_is_learnt_of_one_line_costs_the_pages_of_that_line() {
        let mut host = of_many_streams();
        let path = 1 + host.height as usize;
        let mut stream = Clock::default();
        stream.raise(at(7, 1), Via::NONE);
        stream.join(&host, None, Via::NONE);
        for tick in 2..100 {
            host.raise(at(tick as u32 * 177, tick), Via::NONE);
            assert_eq!(pages_apart(&stream, &host), path);
            assert!(stream.join(&host, None, Via::NONE) && pages_apart(&stream, &host) == 0);
            assert!(!stream.join(&host, None, Via::NONE));
        }
    }

    /// Streams that have all learnt of each other, by different waits: one more wait costs what is new.
    #[test]
    fn clocks_that_learnt_the_same_by_other_waits_share_it() {
        let source = of_many_streams();
        let path = 1 + source.height as usize;
        let mut clocks: Vec<Clock> = (0..50).map(|_| Clock::default()).collect();
        for (n, clock) in (20_000..).zip(&mut clocks) {
            assert!(clock.join(&source, Some(Line::stream(StreamKey(n))), Via(n)));
        }
        for tick in 2..100 {
            let (one, other) = (tick as usize * 7 % 50, tick as usize * 11 % 49);
            let other = if other < one { other } else { other + 1 };
            clocks[other].raise(at(tick as u32 * 177, tick), Via::NONE);
            let before = clocks[one].clone();
            let source = clocks[other].clone();
            clocks[one].join(&source, None, Via(tick as u32));
            assert!(pages_apart(&before, &clocks[one]) <= path * 14, "pages are copied that both had");
            assert_eq!(
                clocks[one].get(Line::stream(StreamKey(3))).map(|e| e.via),
                Some(Via(20_000 + one as u32))
            );
            assert_eq!(
                clocks[one].get(Line::stream(StreamKey(tick as u32 * 177))).map(|e| e.via),
                Some(Via(tick as u32))
            );
        }
    }
}
