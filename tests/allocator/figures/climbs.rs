//! What the rungs of the miss ladder say of one request: how often each was tried follows from which served, and in which round.
//!
//! A request goes over the rungs in their order until one serves; a round in which nothing moved is followed by one that looks at
//! everything, in which the host does not wait, and if that finds nothing the callback runs.

use millpond::report::Ladder;
use std::collections::BTreeSet;

pub(crate) const POLL: usize = 0;
pub(crate) const MIGRATE: usize = 1;
pub(crate) const GROW: usize = 2;
const WITH_WAIT: usize = 3;
pub(crate) const TRIM: usize = 5;
const WAIT: usize = 6;
const CALLBACK: usize = 7;

/// One request that no free range served.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Climb {
    /// It is served from small segments.
    pub small: bool,
    /// It is above the limit: nothing is tried.
    pub never_fits: bool,
    pub served: bool,
    /// By this rung, if that is known.
    pub rung: Option<usize>,
    /// How often the callback ran: a request that is served after that was helped.
    pub asked: u64,
    /// So often nothing moved though all was looked at: then the callback ran, or had run too often, or the request was refused.
    pub stuck: u64,
}

/// What the allocator is like.
#[derive(Clone, Copy)]
pub(crate) struct Rungs {
    /// It inserts waits, and grows last; otherwise it does neither, and knows only what a wait of the program showed.
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
    pub(crate) fn explain(self, all: &[Climb], tried: [u64; 8], served: [u64; 8]) -> bool {
        let mut sums = BTreeSet::from([([0; 8], [0; 8])]);
        for of in all {
            let ends = self.ends(of, tried, served);
            sums = sums
                .iter()
                .flat_map(|sum| ends.iter().map(|end| (plus(sum.0, end.0), plus(sum.1, end.1))))
                .filter(|sum| within(sum.0, tried) && within(sum.1, served))
                .collect();
        }
        sums.contains(&(tried, served))
    }

    /// How often each rung may have been tried, and served, by one request.
    ///
    /// Rounds in which the host may wait follow one another as long as something moves, which is the device's to say; where nothing waits nothing
    /// does. Behind one in which nothing moved comes one that looks at everything, without the wait. If that finds nothing either the callback runs,
    /// or the request refused. So of each number of rounds there is one number of waits.
    fn ends(self, of: &Climb, tried: [u64; 8], served: [u64; 8]) -> BTreeSet<([u64; 8], [u64; 8])> {
        let mut ends = BTreeSet::new();
        let mut counts = [0; 8];
        counts[CALLBACK] = of.asked;
        if of.never_fits {
            ends.extend((!of.served).then_some((counts, [0; 8])));
            return ends;
        }
        // In a round that looked at everything, and one before that.
        for _ in 0..of.stuck {
            counts = self.after_a_round(self.after_a_round(counts, of.small, false), of.small, true);
        }
        // And as many more as something moved in, which are not the last before one that looks at everything.
        while within(counts, tried) {
            if !of.served {
                ends.insert((counts, [0; 8]));
            }
            let all = self.after_a_round(counts, of.small, false);
            for (mut sum, thorough) in [(counts, false), (all, true)] {
                // Where growth was refused idle streams are looked for: what they have is migrated, or was the own pool's in flight, in place of what follows.
                let idle = [POLL, MIGRATE].map(|rung| [POLL, MIGRATE, GROW, rung]);
                for idle in idle {
                    let (mut sum, mut by) = (sum, [0; 8]);
                    for rung in idle {
                        sum[rung] += 1;
                    }
                    let counted = if of.asked > 0 { CALLBACK } else { idle[3] };
                    by[counted] = 1;
                    let right = of.served && of.rung.is_none_or(|known| known == idle[3]);
                    if right && served[counted] > 0 {
                        ends.insert((sum, by));
                    }
                }
                for rung in self.of_a_round(of.small, thorough) {
                    sum[rung] += 1;
                    let (counted, mut by) = (if of.asked > 0 { CALLBACK } else { rung }, [0; 8]);
                    by[counted] = 1;
                    let right = of.served && of.rung.is_none_or(|known| known == rung);
                    if right && served[counted] > 0 {
                        ends.insert((sum, by));
                    }
                }
            }
            if !self.waits {
                break;
            }
            counts = all;
        }
        ends
    }

    fn after_a_round(self, mut counts: [u64; 8], small: bool, thorough: bool) -> [u64; 8] {
        self.of_a_round(small, thorough).into_iter().for_each(|rung| counts[rung] += 1);
        counts
    }
}

fn within(counts: [u64; 8], all: [u64; 8]) -> bool {
    (0..8).all(|rung| counts[rung] <= all[rung])
}

fn plus(a: [u64; 8], b: [u64; 8]) -> [u64; 8] {
    core::array::from_fn(|rung| a[rung] + b[rung])
}

/// How often each rung was tried, and served.
pub(crate) fn counts(ladder: &Ladder) -> ([u64; 8], [u64; 8]) {
    (ladder.rungs().map(|(_, r)| r.tried), ladder.rungs().map(|(_, r)| r.served))
}
