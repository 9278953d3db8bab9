//! What happens to ranges between streams: free (O5, O6), drain, migration, a bounded wait of the host, and the miss ladder of an allocation.
//!
//! The order of the rungs is random here, because the laws must hold in every order.

use crate::mutants::*;
use crate::{handles::*, markers::*, reach::*, truth::*, world::*};

/// Drains pool p: its ranges in flight whose uses are all complete or ordered before p's stream become free.
pub async fn drain(mut w: WorldRef, p: usize) {
    lock(w, p).await;
    let mut i = 0;
    while i < w.pools[p].infl.len() {
        let f = w.pools[p].infl[i].clone();
        let pre = if w.is(Mutant::StampBeforeFactDrain) {
            let e = w.next(p);
            pause().await;
            Some(e)
        } else {
            None
        };
        let k = w.timelines[p].k;
        let allc = f.uses.iter().all(|&(u, e)| w.is_complete(u, e))
            && (w.is_complete(p, f.home) || w.is(Mutant::ZeroCrossStreamOnly));
        let ord = if w.is(Mutant::OneOfTwoUses) {
            f.uses.iter().any(|&(u, e)| w.ordered(p, &k, u, e))
        } else {
            f.uses.iter().all(|&(u, e)| w.ordered(p, &k, u, e))
        };
        if allc
            || (ord
                && (!w.pools[p].closed || w.is(Mutant::ClosedStampC1) || w.is(Mutant::ClosedAdmitsOrdered)))
        {
            w.pools[p].infl.swap_remove(i);
            pause().await;
            let mut fu = f.uses.clone();
            fu.push((p, f.home));
            let old = if w.is(Mutant::VLearnedStamp) && !allc {
                w.learned(p, &fu)
            } else if w.is(Mutant::DrainKeepsStamp) {
                f.home
            } else if w.pools[p].closed && w.is(Mutant::ClosedAdmitsOrdered) {
                w.timelines[p].submitted
            } else {
                0
            };
            let allc = allc && !(w.pools[p].closed && w.is(Mutant::ClosedStampC1));
            let st = w.enter(p, f.lo, f.hi, allc, old, pre);
            w.st.drained += 1;
            w.say(|| format!("  drain [{},{}) into s{p} stamp {st}", f.lo, f.hi));
        } else {
            i += 1
        }
    }
    unlock(w, p);
}

/// The user drops an allocation: its uses are sealed, then its range becomes free or goes in flight.
pub async fn free(mut w: WorldRef, id: usize) {
    let p = w.allocs[id].pool;
    if w.allocs[id].unknown {
        w.st.unknown += 1
    }
    lock(w, p).await;
    let (lo, hi) = (w.allocs[id].lo, w.allocs[id].hi);
    w.say(|| format!("free #{id} [{lo},{hi}) of s{p}"));
    for va in lo..hi {
        if let Some(c) = w.cell(va) {
            w.phys[c].owner = 0
        }
    }
    let uses = std::mem::take(&mut w.allocs[id].uses);
    let pre = if w.is(Mutant::StampBeforeFactFree) {
        let e = w.next(p);
        pause().await;
        Some(e)
    } else {
        None
    };
    let mut f: Vec<(usize, Epoch)> = vec![];
    for u in uses {
        let open = u.e.is_none();
        if open && w.is(Mutant::OpenDroppedBeforeSeal) {
            w.timelines[u.s].open -= 1;
            pause().await
        }
        if u.s != p {
            let e = u.e.unwrap_or_else(|| if w.is(Mutant::SealEarly) { u.sealed } else { w.next(u.s) });
            f.push((u.s, e));
        }
        if open && !w.is(Mutant::OpenDroppedBeforeSeal) {
            w.timelines[u.s].open -= 1
        }
    }
    if w.allocs[id].unknown {
        if w.is(Mutant::UnknownKnownOnly) {
            for u in 0..w.cfg.ns {
                if u != p && !w.pools[u].closed && !w.timelines[u].dropped {
                    let e = w.next(u);
                    f.push((u, e))
                }
            }
        } else {
            let e = if w.is(Mutant::CtxMarkerAtMostOnce) {
                w.timelines[CTX].submitted.max(1)
            } else {
                w.next(CTX)
            };
            f.push((CTX, e))
        }
    }
    f.sort();
    f.reverse();
    f.dedup_by_key(|x| x.0);
    f.reverse();
    pause().await;
    let k = w.timelines[p].k;
    if f.iter().all(|&(u, e)| w.ordered(p, &k, u, e)) {
        pause().await;
        let st = pre.unwrap_or(w.next(p));
        w.give(p, lo, hi, st, true);
        w.say(|| format!("  free: into s{p} stamp {st}"));
    } else {
        pause().await;
        let home = if w.is(Mutant::NoHomeInflight) { 0 } else { w.next(p) };
        for &(u, _) in &f {
            w.timelines[u].frees += 1;
            if w.timelines[u].frees.is_multiple_of(2) && u < w.cfg.ns {
                w.timelines[u].due = true
            }
        }
        w.say(|| format!("  free: in flight, uses {f:?} home {home}"));
        w.pools[p].infl.push(Infl { lo, hi, uses: f, home });
        w.st.infl += 1;
    }
    w.pools[p].live -= 1;
    w.allocs[id].live = false;
    unlock(w, p);
}

/// Migrates a range to `t`'s pool if `t` is ordered after its uses. With `wait` it inserts the waits that are missing, and takes ranges in
/// flight too.
pub async fn migrate(
    mut w: WorldRef,
    t: usize,
    n: usize,
    arr: bool,
    wait: bool,
    from: Option<usize>,
) -> Option<usize> {
    let kt = w.timelines[t].k;
    let pre = w.next(t);
    pause().await;
    let ns = w.cfg.ns;
    let a = from.unwrap_or_else(|| w.choose(ns));
    lock(w, a).await;
    let mut l: Vec<(usize, Option<usize>)> = vec![];
    if a != t {
        for i in 0..w.pools[a].free.len() {
            let f = w.pools[a].free[i];
            if f.hi - f.lo >= n {
                l.push((i, None))
            }
        }
    }
    if wait {
        for i in 0..w.pools[a].infl.len() {
            if w.pools[a].infl[i].hi - w.pools[a].infl[i].lo >= n {
                l.push((0, Some(i)))
            }
        }
    }
    if l.is_empty() {
        unlock(w, a);
        return None;
    }
    let c = l[w.choose(l.len())];
    let (lo, hi, st, infl);
    if let Some(i) = c.1 {
        let f = w.pools[a].infl.swap_remove(i);
        // All of it, or a piece: the rest stays in flight with all its uses.
        let cut = if w.choose(2) == 0 { f.hi } else { f.lo + n };
        if cut < f.hi {
            w.pools[a].infl.push(Infl { lo: cut, ..f.clone() })
        }
        (lo, hi, st) = (f.lo, cut, f.home);
        infl = Some(f.uses);
    } else {
        let f = w.pools[a].free[c.0];
        let (l, r) = match w.choose(3) {
            0 => (f.lo, f.hi),
            1 => (f.lo, f.lo + n),
            _ => (f.hi - n, f.hi),
        };
        let e = w.eff(a, &f, l, r);
        if !wait && !w.ordered(t, &kt, a, e) {
            unlock(w, a);
            return None;
        }
        w.cut_free(a, c.0, l, r);
        (lo, hi, st) = (l, r, e);
        infl = None;
    }
    w.say(|| format!("  cut [{lo},{hi}) stamp {st} uses {infl:?} from s{a} for s{t}"));
    unlock(w, a);
    let need = w.need_clock(lo, hi);
    let mut needs = infl.clone().unwrap_or_default();
    if !(infl.is_some() && w.is(Mutant::MigrationInflCrossStreamOnly)) {
        needs.push((a, st))
    }
    pause().await;
    let mut ok = true;
    for &(u, e) in &needs {
        if !w.ordered(t, &w.timelines[t].k, u, e) && !wait_for(w, t, u, e, need, 0).await {
            ok = false;
            break;
        }
    }
    if !ok || (wait && w.fault()) {
        w.say(|| format!("  migration fails: [{lo},{hi}) goes back"));
        if let Some(uses) = infl {
            lock(w, a).await;
            w.pools[a].infl.push(Infl { lo, hi, uses, home: st });
            unlock(w, a)
        } else {
            put_back(w, &vec![(a, lo, hi, st)]).await
        }
        return None;
    }
    pause().await;
    lock(w, t).await;
    let allc = needs.iter().all(|&(u, e)| w.is_complete(u, e));
    let (old, pre_st) = (
        if w.is(Mutant::VLearnedStamp) && !allc {
            w.learned(t, &needs)
        } else if w.is(Mutant::MigrationKeepsStamp) {
            st.max(1)
        } else {
            0
        },
        if w.is(Mutant::StampBeforeFactMigration) { Some(pre) } else { None },
    );
    let s = w.enter(t, lo, hi, allc, old, pre_st);
    w.say(|| format!("  migrated [{lo},{hi}) s{a} -> s{t}, stamp {s}"));
    if infl.is_some() {
        w.st.migrated_infl += 1
    } else if wait {
        w.st.migrated_waiting += 1
    } else {
        w.st.migrated += 1
    }
    let r = w.take(t, n, arr, pre);
    unlock(w, t);
    r
}

/// A hit, or the miss ladder with its rungs in random order.
pub async fn alloc(mut w: WorldRef, t: usize, n: usize, arr: bool) -> Option<usize> {
    let pb = w.next(t);
    lock(w, t).await;
    w.say(|| format!("alloc {n} on s{t}"));
    let r = w.take(t, n, arr, pb);
    unlock(w, t);
    if r.is_some() {
        w.st.hits += 1;
        return r;
    }
    make_due_marker(w, t).await;
    for round in 0..if w.quiet { 16 } else { 5 } {
        let rung = if w.quiet { [0, 7, 6, 1, 2, 3, 4, 0][round % 8] } else { w.choose(8) };
        let r = match rung {
            0 => {
                for u in 0..w.cfg.ns {
                    if w.quiet || w.choose(3) == 0 {
                        poll_completed(w, u).await
                    }
                }
                poll_completed(w, CTX).await;
                if w.is(Mutant::DrainOwnOnly) || (!w.quiet && w.choose(2) == 0) {
                    drain(w, t).await
                } else {
                    for p in 0..w.cfg.ns {
                        drain(w, p).await
                    }
                }
                finish_deferred(w).await;
                lock(w, t).await;
                let r = w.take(t, n, arr, pb);
                unlock(w, t);
                r
            }
            1 | 3 if w.quiet => {
                let mut r = None;
                for a in 0..w.cfg.ns {
                    if r.is_none() {
                        r = migrate(w, t, n, arr, rung == 3, Some(a)).await
                    }
                }
                r
            }
            1 => migrate(w, t, n, arr, false, None).await,
            2 => grow(w, t, n, arr).await,
            3 => migrate(w, t, n, arr, true, None).await,
            4 | 5 => {
                if w.cfg.mv {
                    let b = w.quiet || w.choose(2) == 0;
                    move_handle(w, t, n, arr, b).await
                } else {
                    None
                }
            }
            6 => {
                if w.quiet {
                    for h in 0..w.cfg.nh {
                        trim_one(w, t, Some(h)).await;
                    }
                } else if w.choose(3) == 0 {
                    trim_one(w, t, None).await;
                }
                None
            }
            _ => {
                if w.quiet || w.choose(3) == 0 {
                    bounded_wait(w).await
                }
                None
            }
        };
        if r.is_some() {
            return r;
        }
        if w.fail.is_some() {
            return None;
        }
    }
    w.st.oom += 1;
    None
}

/// The host waits for something pending in any pool (the wait rung); at quiescence for everything.
pub async fn bounded_wait(mut w: WorldRef) {
    let mut l: Vec<(usize, Epoch)> = vec![];
    for p in 0..w.cfg.ns {
        for f in &w.pools[p].free {
            l.push((p, f.st))
        }
        for f in &w.pools[p].infl {
            l.push((p, f.home));
            l.extend(&f.uses)
        }
    }
    for s in &w.slots {
        if let SlotState::Deferred(_, c) = &s.st {
            l.extend(c)
        }
    }
    l.retain(|&(u, e)| !w.is_complete(u, e));
    if l.is_empty() {
        return;
    }
    if !w.quiet {
        let i = w.choose(l.len());
        l = vec![l[i]]
    }
    for (u, e) in l {
        if w.is_complete(u, e) {
            continue;
        }
        if !w.timelines[u].marks.iter().any(|m| m.n >= e) && make_marker(w, u).await.is_none() {
            continue;
        }
        for _ in 0..12 {
            pause().await;
            poll_completed(w, u).await;
            if w.is_complete(u, e) {
                break;
            }
        }
    }
}
