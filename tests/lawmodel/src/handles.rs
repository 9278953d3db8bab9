//! Physical handles: they are mapped into a pool, gathered from all pools, moved to another pool and released to the device (O4).
//!
//! This file knows the stamps of pieces, but not the uses of an allocation.

use crate::mutants::*;
use crate::{markers::*, reach::*, truth::*, world::*};

/// Removes a slot's mapping, and checks that this was allowed (O4).
pub fn unmap(mut w: WorldRef, s: usize) {
    w.say(|| format!("  unmap slot {s}"));
    if !le(&w.slots[s].acc, &w.dev.host) {
        w.bad(format!("P4 slot {s} unmapped with an access through it not known complete"))
    }
    w.slots[s].st = SlotState::Empty;
    w.slots[s].acc = [0; N];
}

/// Removes the old mappings whose uses are complete.
pub async fn finish_deferred(w: WorldRef) {
    for s in 0..w.slots.len() {
        if let SlotState::Deferred(h, c) = w.slots[s].st.clone() {
            let only = w.is(Mutant::UnmapNotOnlyMapping) && w.handles[h].slot != s;
            if only || c.iter().all(|&(u, e)| w.is_complete(u, e)) {
                pause().await;
                if w.slots[s].st == SlotState::Deferred(h, c) {
                    unmap(w, s)
                }
            }
        }
    }
}

/// Pieces that were cut out: pool, range, stamp.
pub type Pieces = Vec<(usize, usize, usize, Epoch)>;

/// Puts pieces back as they were.
pub async fn put_back(mut w: WorldRef, ps: &Pieces) {
    for &(p, lo, hi, st) in ps {
        lock(w, p).await;
        let st = if w.is(Mutant::PutBackZero) { 0 } else { st };
        if !(w.is(Mutant::ClosedRefusesPutBack) && w.pools[p].closed && !w.is_complete(p, st)) {
            w.put(p, lo, hi, st, false)
        }
        unlock(w, p)
    }
}

/// Cuts every free piece of a handle out of every pool, one lock at a time; if some byte is not free, all are put back.
pub async fn gather(mut w: WorldRef, h: usize) -> Option<Pieces> {
    let (s, n) = (w.handles[h].slot, w.cfg.h);
    let (lo, hi) = (s * n, s * n + n);
    let mut ps: Pieces = vec![];
    let mut got = 0;
    for p in 0..w.cfg.ns {
        if got == n {
            break;
        }
        lock(w, p).await;
        let mut i = 0;
        while i < w.pools[p].free.len() {
            let f = w.pools[p].free[i];
            let (l, r) = (f.lo.max(lo), f.hi.min(hi));
            if l < r {
                let st = w.eff(p, &f, l, r);
                w.cut_free(p, i, l, r);
                ps.push((p, l, r, st));
                got += r - l;
                i = 0
            } else {
                i += 1
            }
        }
        unlock(w, p);
    }
    if got == n {
        Some(ps)
    } else {
        put_back(w, &ps).await;
        None
    }
}

/// The uses of a gathered handle that may be pending: the newest stamp of each pool's pieces. Where a piece migrated, the receiver's stamp is
/// enough, because the receiver is ordered after the source's stamp.
fn uses_of(w: WorldRef, ps: &Pieces) -> Vec<(usize, Epoch)> {
    let mut all = [0; N];
    for &(p, _, _, st) in ps {
        all[p] = all[p].max(st)
    }
    let mut uses: Vec<(usize, Epoch)> = (0..w.cfg.ns).filter(|&p| all[p] > 0).map(|p| (p, all[p])).collect();
    if w.is(Mutant::HandleOneStamp) {
        uses.truncate(1)
    }
    uses
}

/// A random handle that no thread is moving or releasing.
pub fn pick_handle(mut w: WorldRef, f: impl Fn(&Handle) -> bool) -> Option<usize> {
    let l: Vec<usize> = (0..w.handles.len()).filter(|&h| !w.handles[h].busy && f(&w.handles[h])).collect();
    if l.is_empty() {
        None
    } else {
        let i = w.choose(l.len());
        Some(l[i])
    }
}

/// An empty slot of `t`'s pool, reserved.
pub fn pick_slot(mut w: WorldRef, t: usize) -> Option<usize> {
    let s = (t * w.cfg.spp..(t + 1) * w.cfg.spp).find(|&s| w.slots[s].st == SlotState::Empty)?;
    w.slots[s].st = SlotState::Busy;
    Some(s)
}

/// Sets what is at a slot.
pub fn place(mut w: WorldRef, s: usize, st: SlotState) {
    w.slots[s].st = st
}

/// Releases a wholly free handle, if its uses allow it.
pub async fn trim_one(mut w: WorldRef, t: usize, only: Option<usize>) -> bool {
    let Some(h) = only.or_else(|| pick_handle(w, |h| h.exists)) else { return false };
    if w.handles[h].busy || !w.handles[h].exists {
        return false;
    }
    if w.slots.iter().any(|s| matches!(s.st, SlotState::Deferred(x, _) if x == h)) {
        return false;
    }
    w.handles[h].busy = true;
    let mut ok = false;
    if let Some(ps) = gather(w, h).await {
        let uses = uses_of(w, &ps);
        let k = w.timelines[t].k;
        let up = w.cfg.up && !w.quiet && w.choose(2) == 0;
        let allc = uses.iter().all(|&(u, e)| w.is_complete(u, e));
        let ord = uses.iter().all(|&(u, e)| w.ordered(t, &k, u, e));
        let s = w.handles[h].slot;
        if allc || (ord && (up || w.is(Mutant::ReleaseOnOrder))) {
            pause().await;
            let hold = up && !allc; // given back to a stream-ordered source on t: no unmap by us
            if hold {
                place(w, s, SlotState::Empty);
                w.slots[s].acc = [0; N];
                let v = w.dev.clock[t];
                w.handles[h].up = Some(v)
            } else {
                unmap(w, s);
                w.handles[h].up = None
            }
            pause().await;
            if !hold && !le(&w.handles[h].acc, &w.dev.host) {
                w.bad(format!("P4 handle {h} released with an access not known complete"))
            }
            w.say(|| {
                format!("  release handle {h}{}", if hold { " to the stream-ordered source" } else { "" })
            });
            w.handles[h].exists = false;
            w.st.trims += 1;
            ok = true;
        } else {
            put_back(w, &ps).await
        }
    }
    w.handles[h].busy = false;
    ok
}

/// Maps a new handle for `t` and takes from it.
pub async fn grow(mut w: WorldRef, t: usize, n: usize, arr: bool) -> Option<usize> {
    let h = pick_handle(w, |h| !h.exists)?;
    let s = pick_slot(w, t)?;
    w.handles[h].busy = true;
    let pb = w.next(t);
    pause().await;
    if w.fault() {
        place(w, s, SlotState::Empty);
        w.handles[h].busy = false;
        return None;
    }
    let up = w.handles[h].up.take();
    if let Some(v) = &up {
        w.dev.wait(t, v)
    }
    place(w, s, SlotState::Mapped(h));
    w.say(|| {
        format!(
            "  map handle {h} at slot {s} for s{t}{}",
            if up.is_some() { " from the stream-ordered source" } else { "" }
        )
    });
    let hd = &mut w.handles[h];
    hd.exists = true;
    hd.slot = s;
    if up.is_none() {
        hd.acc = [0; N]
    }
    pause().await;
    lock(w, t).await;
    let hs = w.cfg.h;
    let complete = up.is_none() || w.is(Mutant::UpstreamZero);
    w.enter(t, s * hs, s * hs + hs, complete, 0, None);
    w.handles[h].busy = false;
    let r = w.take(t, n, arr, pb);
    unlock(w, t);
    r
}

/// Moves a wholly free handle to `t`'s pool, by a second mapping if its last uses are pending.
pub async fn move_handle(mut w: WorldRef, t: usize, n: usize, arr: bool, wait: bool) -> Option<usize> {
    let h = pick_handle(w, |h| h.exists)?;
    let s = pick_slot(w, t)?;
    w.handles[h].busy = true;
    let pre = w.next(t);
    let r = move_steps(w, t, n, arr, wait, h, s, pre).await;
    w.handles[h].busy = false;
    if w.slots[s].st == SlotState::Busy {
        place(w, s, SlotState::Empty)
    }
    r
}

/// The move itself, between marking the handle busy and free again.
pub async fn move_steps(
    mut w: WorldRef,
    t: usize,
    n: usize,
    arr: bool,
    wait: bool,
    h: usize,
    s: usize,
    pre: Epoch,
) -> Option<usize> {
    pause().await;
    let ps = gather(w, h).await?;
    let old = w.handles[h].slot;
    let sz = w.cfg.h;
    let need = w.need_clock(old * sz, old * sz + sz);
    let uses = uses_of(w, &ps);
    let mut ok = true;
    for &(u, e) in &uses {
        if !w.ordered(t, &w.timelines[t].k, u, e)
            && !w.is(Mutant::SecondMapNoWait)
            && (!wait || !wait_for(w, t, u, e, need, 0).await)
        {
            ok = false;
            break;
        }
    }
    pause().await;
    if !ok || w.fault() {
        w.say(|| format!("  move of handle {h} fails"));
        put_back(w, &ps).await;
        return None;
    }
    place(w, s, SlotState::Mapped(h));
    w.handles[h].slot = s;
    let allc = uses.iter().all(|&(u, e)| w.is_complete(u, e));
    w.say(|| format!("  handle {h}: slot {old} -> slot {s} of s{t}, ordered after {uses:?}"));
    w.st.moves += 1;
    if allc || w.is(Mutant::UnmapEarly) {
        unmap(w, old)
    } else {
        w.st.second += 1;
        let c = uses
            .iter()
            .cloned()
            .filter(|&(p, _)| !w.is(Mutant::UnmapHomeOnly) || p == old / w.cfg.spp)
            .collect();
        place(w, old, SlotState::Deferred(h, c));
    }
    pause().await;
    lock(w, t).await;
    let (z, pre_st) =
        (w.is(Mutant::MoveZero), if w.is(Mutant::StampBeforeFactMigration) { Some(pre) } else { None });
    let old = if w.is(Mutant::VLearnedStamp) && !allc { w.learned(t, &uses) } else { 0 };
    w.enter(t, s * sz, s * sz + sz, allc || z, old, pre_st);
    let r = w.take(t, n, arr, pre);
    unlock(w, t);
    r
}
