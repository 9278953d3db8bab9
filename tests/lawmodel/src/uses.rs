//! The uses of an allocation (O6): raw uses, which the user records; operations of the library, which insert the waits that they need; and
//! borrowed uses.

use crate::mutants::*;
use crate::{markers::*, reach::*, truth::*, world::*};

/// The user declares that their own work on `t` uses the allocation: one open raw entry for each stream.
pub async fn record_use(mut w: WorldRef, id: usize, t: usize) {
    make_due_marker(w, t).await;
    let p = w.allocs[id].pool;
    lock(w, p).await;
    if !w.allocs[id].uses.iter().any(|u| u.s == t && u.raw && u.e.is_none()) {
        let (n, sealed) = (w.allocs[id].hi - w.allocs[id].lo, w.next(t));
        w.allocs[id].uses.push(Use {
            s: t,
            e: None,
            w: true,
            lo: 0,
            hi: n,
            raw: true,
            borrowed: false,
            sealed,
            op: 0,
        });
        w.timelines[t].open += 1;
        w.allocs[id].regs[t] = true;
        w.say(|| format!("record_use #{id} s{t}"));
    }
    unlock(w, p);
}

/// An operation that the library launches: it inserts the missing waits. A copy makes a marker right after it.
pub async fn array_op(mut w: WorldRef, id: usize, t: usize, wr: bool, lo: usize, hi: usize, copy: bool) {
    if !w.is(Mutant::DueAfterLaunch) {
        make_due_marker(w, t).await
    }
    let p = w.allocs[id].pool;
    let whole = lo == 0 && hi == w.allocs[id].hi - w.allocs[id].lo;
    lock(w, p).await;
    w.say(|| {
        format!(
            "array {} #{id}[{lo},{hi}) on s{t}{}",
            if wr { "write" } else { "read" },
            if copy { " (copy)" } else { "" }
        )
    });
    let mut needs: Vec<(usize, Epoch, Clock)> = vec![];
    for i in 0..w.allocs[id].uses.len() {
        let u = w.allocs[id].uses[i].clone();
        if u.s != t && u.lo < hi && lo < u.hi && (wr || u.w) {
            let e = u.e.unwrap_or_else(|| w.next(u.s));
            let mut v = [0; N];
            for &(s, pos, hw, l, r) in &w.allocs[id].hist {
                if s == u.s && l < u.hi && u.lo < r && (hw || wr) {
                    v[s] = v[s].max(pos)
                }
            }
            needs.push((u.s, e, v));
            if u.e.is_none() && w.is(Mutant::NeedClosesOpen) {
                w.allocs[id].uses[i].e = Some(e);
                w.timelines[u.s].open -= 1
            }
        }
    }
    let mine = Use {
        s: t,
        e: None,
        w: wr,
        lo,
        hi,
        raw: false,
        borrowed: false,
        sealed: w.next(t),
        op: {
            w.next_op += 1;
            w.next_op
        },
    };
    let (shared, op) = (w.is(Mutant::SharedOpenEntry), w.next_op); // An open entry belongs to one operation.
    let same = move |u: &Use| {
        u.s == t
            && u.w == wr
            && u.lo == lo
            && u.hi == hi
            && u.e.is_none()
            && !u.raw
            && !u.borrowed
            && (shared || u.op == op)
    };
    let kind = move |u: &Use| u.s == t && u.e.is_some() && u.w == wr && u.lo == lo && u.hi == hi;
    let had = w.allocs[id].uses.iter().any(same);
    if !had && !w.is(Mutant::RegisterAfterOp) {
        w.allocs[id].uses.push(mine.clone());
        w.timelines[t].open += 1
    }
    unlock(w, p);
    let mut ok = true;
    if w.is(Mutant::VMaxPerStream) || w.is(Mutant::VBirthAndMax) {
        needs.sort_by_key(|n| (n.0, std::cmp::Reverse(n.1)));
        if let Some(i) = needs.iter().position(|n| n.0 == p) {
            let x = needs.remove(i);
            ok = wait_for(w, t, x.0, x.1, x.2, 2).await
        }
    }
    if ok && t != p {
        let mut v = [0; N];
        for va in w.allocs[id].lo + lo..w.allocs[id].lo + hi {
            if let Some(c) = w.cell(va) {
                join(&mut v, &w.phys[c].prev)
            }
        }
        let b = w.allocs[id].birth;
        ok = wait_for(w, t, p, b, v, 1).await;
    }
    for (u, e, v) in needs {
        ok = ok && wait_for(w, t, u, e, v, 2).await
    }
    pause().await;
    let drop_mine = |mut w: WorldRef| {
        if let Some(i) = w.allocs[id].uses.iter().position(same) {
            w.allocs[id].uses.swap_remove(i);
            w.timelines[t].open -= 1
        }
    };
    if !ok || w.fault() {
        if !had {
            lock(w, p).await;
            drop_mine(w);
            unlock(w, p)
        }
        return;
    }
    judge_by_bytes(w, id, t, lo, hi);
    let pre = if w.is(Mutant::ExactReservedBeforeOp) && copy {
        w.timelines[t].submitted += 1;
        let n = w.timelines[t].submitted;
        pause().await;
        Some(n)
    } else {
        None
    };
    w.access(id, t, wr, lo, hi);
    pause().await;
    if w.fault() {
        w.say(|| "  the call returns an error after its launch".into());
        return;
    }
    if w.is(Mutant::DueAfterLaunch) {
        make_due_marker(w, t).await
    }
    if w.is(Mutant::RegisterAfterOp) && !had {
        lock(w, p).await;
        w.allocs[id].uses.push(mine.clone());
        w.timelines[t].open += 1;
        unlock(w, p)
    }
    let multi = t != p || w.allocs[id].uses.iter().any(|u| u.s != p);
    if w.is(Mutant::OneLastWrite) && wr {
        let l: Vec<Use> = w.allocs[id].uses.iter().filter(|u| u.w && !same(u)).cloned().collect();
        for u in l {
            if u.e.is_none() {
                w.timelines[u.s].open -= 1
            }
        }
        w.allocs[id].uses.retain(|u| !u.w || same(u))
    }
    if copy || (wr && multi) {
        let replace = |mut w: WorldRef| {
            if (whole && (wr || w.is(Mutant::ReplaceUnordered))) || (wr && w.is(Mutant::SubviewReplaces)) {
                if w.is(Mutant::WholeReplacesOpen) {
                    let l = std::mem::take(&mut w.allocs[id].uses);
                    for u in l {
                        if u.e.is_none() {
                            if same(&u) { w.allocs[id].uses.push(u) } else { w.timelines[u.s].open -= 1 }
                        }
                    }
                } else {
                    w.allocs[id].uses.retain(|u| u.e.is_none())
                }
            }
            // All work of a borrow was queued before this operation, which has exclusive access to the whole array.
            if (wr && (whole || w.is(Mutant::BorrowEndsAtPart))) || (whole && w.is(Mutant::BorrowEndsAtRead))
            {
                end_borrows(w, id)
            }
        };
        let mk = make_marker(w, t).await.map(|m| Mark { n: pre.unwrap_or(m.n), ..m });
        lock(w, p).await;
        match mk {
            Some(m) => {
                replace(w);
                // Another operation of the same kind may still be open under the same entry: only the last one seals it.
                let acts = w.allocs[id].acts.iter().filter(|a| **a == (lo, hi, wr)).count();
                if acts <= 1 || !shared {
                    drop_mine(w);
                    let n = if w.is(Mutant::ExactLastWins) {
                        m.n
                    } else {
                        w.allocs[id].uses.iter().filter(|u| kind(u)).fold(m.n, |a, u| a.max(u.e.unwrap()))
                    };
                    w.allocs[id].uses.retain(|u| !kind(u));
                    w.allocs[id].uses.push(Use { e: Some(n), ..mine })
                }
            }
            None => {
                if w.is(Mutant::ReplaceOnMarkFail) {
                    replace(w);
                    drop_mine(w)
                }
            }
        }
        unlock(w, p);
    }
}

/// An operation with several whole arrays, each with whether it is written. It joins what they come after, the newest epoch of each stream,
/// waits for that, and accesses each array once. Its own marker is right after it.
pub async fn joint_op(mut w: WorldRef, operands: &[(usize, bool)], t: usize) {
    make_due_marker(w, t).await;
    w.next_op += 1;
    let op = w.next_op;
    let mut needs: Vec<(usize, Epoch, Clock)> = vec![];
    let mut add = |s: usize, e: Epoch, v: Clock| match needs.iter_mut().find(|n| n.0 == s) {
        Some(n) => {
            n.1 = n.1.max(e);
            join(&mut n.2, &v)
        }
        None => needs.push((s, e, v)),
    };
    for &(id, wr) in operands {
        let p = w.allocs[id].pool;
        let n = w.allocs[id].hi - w.allocs[id].lo;
        lock(w, p).await;
        w.say(|| format!("joint {} #{id} on s{t}", if wr { "write" } else { "read" }));
        if t != p {
            let mut v = [0; N];
            for va in w.allocs[id].lo..w.allocs[id].hi {
                if let Some(c) = w.cell(va) {
                    join(&mut v, &w.phys[c].prev)
                }
            }
            add(p, w.allocs[id].birth, v)
        }
        for u in w.allocs[id].uses.iter().filter(|u| u.s != t && (wr || u.w)) {
            let mut v = [0; N];
            for &(s, pos, ..) in w.allocs[id].hist.iter().filter(|h| h.0 == u.s && (h.2 || wr)) {
                v[s] = v[s].max(pos)
            }
            add(u.s, u.e.unwrap_or_else(|| w.next(u.s)), v)
        }
        let sealed = w.next(t);
        w.allocs[id].uses.push(Use {
            s: t,
            e: None,
            w: wr,
            lo: 0,
            hi: n,
            raw: false,
            borrowed: false,
            sealed,
            op,
        });
        w.timelines[t].open += 1;
        unlock(w, p);
    }
    let ok = wait_for_all(w, t, &needs).await;
    pause().await;
    let fails = !ok || w.fault();
    if !fails {
        for &(id, wr) in operands {
            let n = w.allocs[id].hi - w.allocs[id].lo;
            judge_by_bytes(w, id, t, 0, n);
            w.access(id, t, wr, 0, n);
        }
        pause().await;
    }
    let mk = if fails { None } else { make_marker(w, t).await };
    for &(id, wr) in operands {
        let p = w.allocs[id].pool;
        lock(w, p).await;
        let mine = w.allocs[id].uses.iter().position(|u| u.s == t && u.op == op && u.e.is_none());
        // Without a marker the use stays open.
        if let (Some(i), true) = (mine, fails || mk.is_some()) {
            let mine = w.allocs[id].uses.swap_remove(i);
            w.timelines[t].open -= 1;
            if let Some(m) = &mk {
                if wr {
                    w.allocs[id].uses.retain(|u| u.e.is_none());
                    end_borrows(w, id)
                }
                w.allocs[id].uses.push(Use { e: Some(m.n), ..mine })
            }
        }
        unlock(w, p);
    }
}

/// Other code borrows `lo..hi` of the array. It may queue operations on `t` during the borrow, and does not say when the borrow ends. The
/// borrowed use is ordered after what it conflicts with, and stays until an exclusive borrow of the whole array, or the free.
pub async fn begin_borrow(mut w: WorldRef, id: usize, t: usize, wr: bool, lo: usize, hi: usize) -> bool {
    make_due_marker(w, t).await;
    let p = w.allocs[id].pool;
    let whole = lo == 0 && hi == w.allocs[id].hi - w.allocs[id].lo;
    lock(w, p).await;
    w.say(|| format!("borrow #{id}[{lo},{hi}) on s{t} to {}", if wr { "write" } else { "read" }));
    let mut needs: Vec<(usize, Epoch)> = vec![];
    for u in &w.allocs[id].uses {
        if u.s != t && u.lo < hi && lo < u.hi && (wr || u.w) {
            needs.push((u.s, u.e.unwrap_or_else(|| w.next(u.s))))
        }
    }
    unlock(w, p);
    let birth = w.allocs[id].birth;
    let mut ok = t == p || wait_for(w, t, p, birth, [0; N], 1).await;
    for (u, e) in needs {
        ok = ok && wait_for(w, t, u, e, [0; N], 2).await
    }
    if !ok {
        return false;
    }
    judge_by_bytes(w, id, t, lo, hi);
    lock(w, p).await;
    if wr && whole {
        // Like a write that is ordered after all of them, but this use stays open.
        w.allocs[id].uses.retain(|u| u.e.is_none());
        end_borrows(w, id)
    }
    let sealed = w.next(t);
    let e = w.is(Mutant::BorrowSealedAtCall).then_some(sealed);
    w.allocs[id].uses.push(Use { s: t, e, w: wr, lo, hi, raw: false, borrowed: true, sealed, op: 0 });
    w.timelines[t].open += u32::from(e.is_none());
    unlock(w, p);
    true
}

/// Removes the borrowed uses of an allocation, which a later use covers. Its pool's lock is held.
fn end_borrows(mut w: WorldRef, id: usize) {
    let open: Vec<usize> =
        w.allocs[id].uses.iter().filter(|u| u.borrowed && u.e.is_none()).map(|u| u.s).collect();
    for s in open {
        w.timelines[s].open -= 1
    }
    w.allocs[id].uses.retain(|u| !u.borrowed)
}

/// For mutants of the birth stamp: only the former owners' accesses to these bytes count, not the position of the allocation.
fn judge_by_bytes(mut w: WorldRef, id: usize, t: usize, lo: usize, hi: usize) {
    if w.is(Mutant::VBirthIsChunkStamp) || w.is(Mutant::VBirthAndMax) || w.is(Mutant::NoBirth) {
        let (c, h) = (w.dev.clock[t], w.dev.host);
        let mut c = c;
        join(&mut c, &h);
        let prev_ok = (w.allocs[id].lo + lo..w.allocs[id].lo + hi)
            .all(|va| w.cell(va).is_none_or(|x| le(&w.phys[x].prev, &c)));
        if prev_ok {
            let b = w.allocs[id].born;
            w.allocs[id].born = {
                let mut x = b;
                for i in 0..N {
                    x[i] = x[i].min(c[i])
                }
                x
            };
        }
    }
}
