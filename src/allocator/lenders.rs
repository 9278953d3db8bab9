//! Which pools may have something to lend: their numbers, by the class of their longest free range.
//!
//! A miss of a program with thousands of streams cannot look at every pool. So the core keeps all pools that have free memory
//! in the order of a class of lengths, and a miss looks at those of its own class and above. There are eight classes to a power
//! of two: what is left of segments is often a little shorter than what everybody asks for. A pool moves when the bound on
//! its longest free range changes class: upwards at a free or an entry that makes a range longer than the bound, downwards where a
//! search found the truth. Neither is a hit, nor a free that makes no longer range than there was.
//!
//! - **F1** While nobody holds a pool's lock, it stands in the class of its bound, or nowhere if that is 0. The bound may be
//!   too high and is never too low ([`Pool::longest_hint`]), so a pool that could serve is never left out.
//!
//! It does not know what a pool would accept, nor pools that have left: numbers are looked up in the list.
//!
//! [`Pool::longest_hint`]: super::pool::Pool::longest_hint

use crate::sync::{Rank, Ranked};
use std::collections::BTreeSet;

/// Classes to a power of two, as a power of two.
const FINE: u32 = 3;

/// A class of lengths: of two lengths the longer one is in no lower class.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Class(u32);

impl Class {
    /// The class of a range of `len` granules; none holds nothing.
    fn of(len: u32) -> Option<Class> {
        let power = len.checked_ilog2()?;
        // The power, and behind it the bits of the length that follow its first.
        let bits = if power < FINE { len << (FINE - power) } else { len >> (power - FINE) };
        Some(Class(power << FINE | bits & ((1 << FINE) - 1)))
    }
}

/// All pools that have free memory.
pub(crate) struct Lenders(Ranked<All>);

struct All {
    by_class: BTreeSet<(Class, u32)>,
}

/// Pools that may hold enough, by their numbers, in order.
pub(super) struct Candidates {
    /// Those in a class above that of the request: their bound is high enough.
    pub(super) surely: Vec<u32>,
    /// Those in the class of the request: their bound tells.
    pub(super) perhaps: Vec<u32>,
}

impl Lenders {
    pub(crate) fn new() -> Lenders {
        Lenders(Ranked::new(Rank::Leaf, All { by_class: BTreeSet::new() }))
    }

    /// The bound of a pool changed, from `before`. Called under the pool's lock.
    pub(crate) fn moved(&self, pool: u32, before: u32, now: u32) {
        let (before, now) = (Class::of(before), Class::of(now));
        if before == now {
            return;
        }
        let mut all = self.0.lock();
        if let Some(class) = before {
            all.by_class.remove(&(class, pool));
        }
        if let Some(class) = now {
            all.by_class.insert((class, pool));
        }
    }

    /// Who may have a free range of `len` granules.
    pub(super) fn of(&self, len: u32) -> Candidates {
        let Some(least) = Class::of(len) else {
            return Candidates { surely: Vec::new(), perhaps: Vec::new() };
        };
        let above = Class(least.0 + 1);
        let all = self.0.lock();
        let perhaps = all.by_class.range((least, 0)..(above, 0)).map(|&(_, pool)| pool).collect();
        let mut surely: Vec<u32> = all.by_class.range((above, 0)..).map(|&(_, pool)| pool).collect();
        drop(all);
        surely.sort_unstable();
        Candidates { surely, perhaps }
    }

    /// Panics unless the pool stands in the class of this bound, and nowhere else.
    pub(crate) fn check(&self, pool: u32, bound: u32) {
        let all = self.0.lock();
        let stands: Vec<Class> = all.by_class.iter().filter(|at| at.1 == pool).map(|at| at.0).collect();
        let right: Vec<Class> = Class::of(bound).into_iter().collect();
        assert_eq!(stands, right, "F1: the classes of pool {pool}, whose bound is {bound}");
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
