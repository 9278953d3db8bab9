//! The operations on a pool's ranges, called with its lock held: insert and merge, enter (O5), cut, take (O7); and the check of each access.
//!
//! This file knows stamps and ranges, but makes no marker and waits for nothing.

use crate::mutants::*;
use crate::{truth::*, world::*};

impl World {
    // --- order
    /// Whether the host knows epoch `e` of `u` to be complete.
    pub fn is_complete(&self, u: usize, e: Epoch) -> bool {
        e == 0 || self.timelines[u].complete >= e
    }
    /// O1: whether `t`, with clock `k`, is ordered after epoch `e` of `u`.
    pub fn ordered(&self, t: usize, k: &Known, u: usize, e: Epoch) -> bool {
        u == t || k[u] >= e || self.is_complete(u, e)
    }
    /// The stamp of what happens now: one above the newest number reserved.
    pub fn next(&self, u: usize) -> Epoch {
        let frozen = self.is(Mutant::CloseEarly) && u < self.cfg.ns && self.pools[u].closed;
        self.timelines[u].submitted + if self.is(Mutant::StampNotPlusOne) || frozen { 0 } else { 1 }
    }
    /// For a variant: the least stamp that covers these uses, the first number reserved after their order became known.
    pub fn learned(&self, t: usize, needs: &[(usize, Epoch)]) -> Epoch {
        needs
            .iter()
            .filter(|n| !self.is_complete(n.0, n.1))
            .map(|n| if n.0 == t { n.1 } else { self.timelines[t].learned[n.0] + 1 })
            .max()
            .unwrap_or(0)
    }
    // --- addresses
    /// The handle mapped at an address.
    pub fn handle_at(&self, va: usize) -> Option<usize> {
        match self.slots[va / self.cfg.h].st {
            SlotState::Mapped(h) => Some(h),
            SlotState::Deferred(h, _) => Some(h),
            _ => None,
        }
    }
    /// The physical cell at an address.
    pub fn cell(&self, va: usize) -> Option<usize> {
        self.handle_at(va).map(|h| h * self.cfg.h + va % self.cfg.h)
    }
    /// Ground truth: everything that the range's next owner must be ordered after.
    pub fn need_clock(&self, lo: usize, hi: usize) -> Clock {
        let mut v = [0; N];
        for va in lo..hi {
            if let Some(c) = self.cell(va) {
                join(&mut v, &self.phys[c].prev);
                join(&mut v, &self.phys[c].cur)
            }
        }
        v
    }
    // --- operations of the heap (pool lock held)
    /// Writes a range's stamp to the units that it touches; a unit keeps the maximum.
    fn write_units(&mut self, p: usize, lo: usize, hi: usize, st: Epoch) {
        let (h, overwrites) = (self.cfg.h, self.is(Mutant::UnitOverwritten));
        for unit in &mut self.pools[p].units[lo / h..=(hi - 1) / h] {
            *unit = if overwrites { st } else { st.max(*unit) }
        }
    }
    /// Inserts a range and merges it with its neighbours. Parts keep their stamps: where ranges with different stamps merge, the stamp of each
    /// that is not mixed yet is written to its units first.
    pub fn put(&mut self, p: usize, lo: usize, hi: usize, st: Epoch, mixed: bool) {
        let res = self.cfg.h * self.cfg.spp;
        let (mut lo, mut hi, mut st, mut mixed) = (lo, hi, st, mixed);
        let mut i = 0;
        while i < self.pools[p].free.len() {
            let f = self.pools[p].free[i];
            if (f.hi == lo || f.lo == hi) && f.lo / res == lo / res {
                let left = f.hi == lo;
                if st != f.st || mixed || f.mixed {
                    if !mixed {
                        self.write_units(p, lo, hi, st)
                    }
                    if !f.mixed && !self.is(Mutant::UnitNeighbourUnwritten) {
                        self.write_units(p, f.lo, f.hi, f.st)
                    }
                    mixed = true
                }
                st = if self.is(Mutant::MergeMin) {
                    st.min(f.st)
                } else if self.is(Mutant::MergeLeft) {
                    if left { f.st } else { st }
                } else {
                    st.max(f.st)
                };
                lo = lo.min(f.lo);
                hi = hi.max(f.hi);
                self.pools[p].free.swap_remove(i);
                i = 0;
            } else {
                i += 1
            }
        }
        self.pools[p].free.push(Free { lo, hi, st, mixed });
    }
    /// A range enters pool p or is freed there: all of it has this stamp of p's stream.
    pub fn give(&mut self, p: usize, lo: usize, hi: usize, st: Epoch, at_free: bool) {
        // The mutant: the range is marked as mixed although its stamp was not written to its units.
        let unwritten = !at_free && self.is(Mutant::HandleStampAtFreeOnly);
        self.put(p, lo, hi, st, unwritten)
    }
    /// O5. `old`: the range's stamp before (only mutants use it); `pre`: submitted + 1, read before the order was checked (mutants).
    pub fn enter(
        &mut self,
        p: usize,
        lo: usize,
        hi: usize,
        complete: bool,
        old: Epoch,
        pre: Option<Epoch>,
    ) -> Epoch {
        let st = if (complete && (!self.is(Mutant::NeverZero) || self.pools[p].closed))
            || self.is(Mutant::ZeroIfOrdered)
        {
            0
        } else if let Some(e) = pre {
            e
        } else if old != 0 {
            old
        } else {
            self.next(p)
        };
        self.give(p, lo, hi, st, false);
        st
    }
    /// Cuts `lo..hi` out of a free range; the parts before and after it stay free.
    pub fn cut_free(&mut self, p: usize, i: usize, lo: usize, hi: usize) {
        let f = self.pools[p].free.swap_remove(i);
        let rest = if self.is(Mutant::SplitRemainderZero) { 0 } else { f.st };
        let mixed = f.mixed && !self.is(Mutant::VMixedForgotten);
        if f.lo < lo {
            self.pools[p].free.push(Free { lo: f.lo, hi: lo, st: rest, mixed })
        }
        if hi < f.hi {
            self.pools[p].free.push(Free { lo: hi, hi: f.hi, st: rest, mixed })
        }
        // A unit without free bytes needs no stamp: what enters has one.
        let h = self.cfg.h;
        for unit in lo / h..=(hi - 1) / h {
            let free = self.pools[p].free.iter().any(|f| f.lo < (unit + 1) * h && unit * h < f.hi);
            if !free || self.is(Mutant::UnitForgottenAtPart) {
                self.pools[p].units[unit] = 0
            }
        }
    }
    /// An upper bound of the stamps of a part of a free chunk: the chunk's stamp, and for a mixed chunk at most the newest of the part's units.
    pub fn eff(&self, p: usize, f: &Free, lo: usize, hi: usize) -> Epoch {
        let h = self.cfg.h;
        let last = if self.is(Mutant::UnitFirstOnly) { lo } else { hi - 1 };
        let units = &self.pools[p].units[lo / h..=last / h];
        if f.mixed { f.st.min(units.iter().copied().max().unwrap_or(0)) } else { f.st }
    }
    /// Takes n cells from a free chunk of p (lock held), with a birth stamp (O7). In the ground truth the cells get a new owner.
    pub fn take(&mut self, p: usize, n: usize, array: bool, pre_birth: Epoch) -> Option<usize> {
        let c: Vec<usize> = (0..self.pools[p].free.len())
            .filter(|&i| self.pools[p].free[i].hi - self.pools[p].free[i].lo >= n)
            .collect();
        if c.is_empty() {
            return None;
        }
        let i = c[self.choose(c.len())];
        let f = self.pools[p].free[i];
        let lo = if self.choose(2) == 0 { f.lo } else { f.hi - n };
        let est = self.eff(p, &f, lo, lo + n);
        self.cut_free(p, i, lo, lo + n);
        let id = self.allocs.len();
        for va in lo..lo + n {
            let Some(c) = self.cell(va) else {
                self.bad(format!("P3 alloc {id} got unmapped address {va}"));
                return None;
            };
            if self.phys[c].owner != 0 {
                let o = self.phys[c].owner - 1;
                self.bad(format!("P1 cell {c}: owners {o} and {id}"))
            }
            let cell = &mut self.phys[c];
            let cur = cell.cur;
            join(&mut cell.prev, &cur);
            cell.cur = [0; N];
            cell.owner = id as u32 + 1;
        }
        self.pools[p].live += 1;
        let birth = if self.is(Mutant::NoBirth) {
            0
        } else if self.is(Mutant::BirthBeforeWait) {
            pre_birth
        } else if self.is(Mutant::VBirthIsChunkStamp) || self.is(Mutant::VBirthAndMax) {
            if self.is_complete(p, est) { 0 } else { est }
        } else {
            self.next(p)
        };
        let mut born = self.dev.clock[p];
        let h = self.dev.host;
        join(&mut born, &h);
        self.allocs.push(Alloc {
            pool: p,
            lo,
            hi: lo + n,
            birth,
            uses: vec![],
            born,
            live: true,
            array,
            unknown: false,
            acts: vec![],
            hist: vec![],
            regs: [false; N],
        });
        self.st.allocs += 1;
        self.say(|| {
            format!("  alloc #{id} = [{lo},{}) on s{p}, birth {birth}, chunk stamp {}", lo + n, f.st)
        });
        Some(id)
    }
    /// Ground truth: one access by stream t.
    pub fn access(&mut self, id: usize, t: usize, w: bool, lo: usize, hi: usize) -> u16 {
        let (alo, born) = (self.allocs[id].lo, self.allocs[id].born);
        if self.dev.gone[t] {
            self.bad(format!("launch on destroyed stream s{t}"))
        }
        let pos = self.dev.submit(t, true);
        let c = self.dev.clock[t];
        self.say(|| {
            format!("  access #{id}[{lo},{hi}) on s{t} at position {pos}{}", if w { " write" } else { "" })
        });
        if !le(&born, &c) {
            self.bad(format!("P3 use of #{id} on s{t} not ordered after its allocation"))
        }
        for va in alo + lo..alo + hi {
            let Some(p) = self.cell(va) else {
                self.bad(format!("P3 access to unmapped address {va}"));
                return pos;
            };
            if self.phys[p].owner != id as u32 + 1 {
                self.bad(format!("P1/P3 cell {p} not owned by #{id}"))
            }
            if !le(&self.phys[p].prev, &c) {
                let q = self.phys[p].prev;
                self.bad(format!(
                    "P2 #{id} on s{t} clock {c:?} reaches cell {p} unordered against former owners {q:?}"
                ))
            }
            self.phys[p].cur[t] = pos;
            let s = va / self.cfg.h;
            self.slots[s].acc[t] = pos;
            let h = self.handle_at(va).unwrap();
            self.handles[h].acc[t] = pos;
        }
        if self.allocs[id].array {
            for &(s, p, hw, l, r) in &self.allocs[id].hist {
                if l < hi && lo < r && (w || hw) && p > c[s] {
                    self.bad(format!(
                        "P2' array #{id} on s{t}: conflicting access ({s},{p}) not ordered before"
                    ));
                    break;
                }
            }
            self.allocs[id].hist.push((t, pos, w, lo, hi));
        }
        pos
    }
}
