//! What the rungs of the miss ladder say of one request: how often each was tried follows from which served, and in which round.
//!
//! A request goes over the rungs in their order until one serves; a round in which nothing moved is followed by one that looks at
//! everything, in which the host does not wait, and if that finds nothing the user is asked.

use millpond::report::Ladder;
use std::collections::BTreeSet;

pub(crate) const POLL: usize = 0;
pub(crate) const MIGRATE: usize = 1;
pub(crate) const GROW: usize = 2;
const WITH_WAIT: usize = 3;
pub(crate) const TRIM: usize = 4;
const WAIT: usize = 5;
const CALLBACK: usize = 6;

/// One request that no free range served.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Climb {
    /// It is served from small segments.
    pub small: bool,
    /// It is above the limit: nothing is tried.
    pub hopeless: bool,
    pub served: bool,
    /// By this rung, if that is known.
    pub rung: Option<usize>,
    /// So often was the user asked: who is served then was helped.
    pub asked: u64,
}

/// What the allocator is like.
#[derive(Clone, Copy)]
pub(crate) struct Rungs {
    /// It inserts waits, and grows last; else it does neither, and knows nothing that it was not told by a wait of the program's.
    pub waits: bool,
    pub frees_wait: bool,
}

impl Rungs {
    fn of_a_round(self, small: bool, thorough: bool) -> Vec<usize> {
        let mut rungs = vec![POLL, MIGRATE, GROW, POLL];
        rungs.extend(small.then_some(MIGRATE));
        rungs.extend(self.waits.then_some([WITH_WAIT, GROW]).into_iter().flatten());
        rungs.extend((!self.frees_wait).then_some(TRIM));
        rungs.extend((!thorough).then_some(WAIT));
        rungs
    }

    /// Whether the counts of these requests can be these.
    pub(crate) fn explain(self, all: &[Climb], tried: [u64; 7], served: [u64; 7]) -> bool {
        let mut sums = BTreeSet::from([([0; 7], [0; 7])]);
        for of in all {
            let ends = self.ends(of, tried, served);
            sums = sums
                .iter()
                .flat_map(|sum| ends.iter().map(|end| (plus(sum.0, end.0), plus(sum.1, end.1))))
                .filter(|sum| self.within(sum.0, tried) && (0..7).all(|rung| sum.1[rung] <= served[rung]))
                .collect();
        }
        // How many rounds the host waited in, and in which of them what it waited for was no more, is the device's where it may wait.
        let same = |sum: [u64; 7]| (0..7).all(|rung| self.waits && rung == WAIT || sum[rung] == tried[rung]);
        let any = tried[WAIT] == 0 || !self.waits || !all.is_empty();
        any && sums.iter().any(|&(sum, by)| same(sum) && by == served)
    }

    fn within(self, counts: [u64; 7], tried: [u64; 7]) -> bool {
        (0..7).all(|rung| self.waits && rung == WAIT || counts[rung] <= tried[rung])
    }

    /// How often each rung may have been tried, and served, by one request.
    fn ends(self, of: &Climb, tried: [u64; 7], served: [u64; 7]) -> BTreeSet<([u64; 7], [u64; 7])> {
        let mut ends = BTreeSet::new();
        let mut counts = [0; 7];
        counts[CALLBACK] = of.asked;
        if of.hopeless {
            ends.extend((!of.served).then_some((counts, [0; 7])));
            return ends;
        }
        // Whoever was asked, or refused, had a round before that looked at everything.
        let stuck = of.asked + u64::from(!of.served && of.asked == 0);
        for full in 0.. {
            // Where the host waits, something may have moved in a round that found nothing: then it may wait in the next one too.
            let round = self.of_a_round(of.small, !self.waits && full % 2 == 1);
            if !of.served && full / 2 >= stuck {
                ends.insert((counts, [0; 7]));
            }
            for rung in round {
                counts[rung] += 1;
                let (counted, mut by) = (if of.asked > 0 { CALLBACK } else { rung }, [0; 7]);
                by[counted] = 1;
                let right = of.served && full / 2 >= stuck && of.rung.is_none_or(|known| known == rung);
                if right && served[counted] > 0 {
                    ends.insert((counts, by));
                }
            }
            if !self.within(counts, tried) {
                break;
            }
        }
        if self.waits {
            // Which of them is not asked.
            ends = ends
                .into_iter()
                .map(|(mut counts, by)| {
                    counts[WAIT] = 0;
                    (counts, by)
                })
                .collect();
        }
        ends
    }
}

fn plus(a: [u64; 7], b: [u64; 7]) -> [u64; 7] {
    core::array::from_fn(|rung| a[rung] + b[rung])
}

/// How often each rung was tried, and served.
pub(crate) fn counts(ladder: &Ladder) -> ([u64; 7], [u64; 7]) {
    (ladder.rungs().map(|(_, r)| r.tried), ladder.rungs().map(|(_, r)| r.served))
}
