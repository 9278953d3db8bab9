//! Random user programs that are correct, and what must be possible when they are over.
//!
//! A user orders its own launches with its own events, so every violation is the allocator's.

use crate::mutants::*;
use crate::{handles::*, markers::*, pools::*, reach::*, truth::*, uses::*};

/// A random stream that the user still has, other than `skip`.
pub fn lib_stream(mut w: WorldRef, skip: usize) -> Option<usize> {
    let l: Vec<usize> = (0..w.cfg.ns).filter(|&s| !w.timelines[s].dropped && s != skip).collect();
    if l.is_empty() {
        return None;
    }
    let i = w.choose(l.len());
    Some(l[i])
}

/// One user thread.
pub async fn user(mut w: WorldRef) {
    for _ in 0..w.cfg.budget {
        if w.fail.is_some() {
            return;
        }
        let wt = w.cfg.wt;
        let (mut r, mut act) = (w.choose(wt.iter().sum()), 0);
        while r >= wt[act] {
            r -= wt[act];
            act += 1
        }
        match act {
            0 => pause().await,
            1 => {
                let Some(t) = lib_stream(w, 9) else { continue };
                w.timelines[t].users += 1;
                let hs = w.cfg.h;
                let (n, r) = (1 + w.choose(hs), w.choose(4));
                let arr = r < w.cfg.arr;
                let id = alloc(w, t, n, arr).await;
                if let Some(id) = id
                    && w.choose(4) > 0
                {
                    if arr {
                        w.allocs[id].acts.push((0, n, true));
                        array_op(w, id, t, true, 0, n, false).await;
                        w.allocs[id].acts.pop();
                    } else {
                        w.access(id, t, true, 0, n);
                    }
                }
                w.timelines[t].users -= 1;
            }
            2 => {
                let l: Vec<usize> = (0..w.allocs.len()).filter(|&i| w.allocs[i].live).collect();
                if l.is_empty() {
                    continue;
                }
                let id = l[w.choose(l.len())];
                let n = w.allocs[id].hi - w.allocs[id].lo;
                let home = w.allocs[id].pool;
                if w.allocs[id].array && w.choose(4) != 1 {
                    let wr = w.choose(2) == 1;
                    let (lo, hi) = match w.choose(3) {
                        0 => (0, n),
                        1 => (0, n.div_ceil(2)),
                        _ => (n / 2, n),
                    };
                    if lo == hi || w.allocs[id].acts.iter().any(|&(l, r, aw)| l < hi && lo < r && (aw || wr))
                    {
                        continue;
                    }
                    let Some(t) = lib_stream(w, 9) else { continue };
                    if w.choose(4) < w.cfg.joint {
                        joint(w, id, t).await;
                        continue;
                    }
                    let how = w.choose(3);
                    w.timelines[t].users += 1;
                    w.allocs[id].acts.push((lo, hi, wr));
                    if how == 2 {
                        borrow(w, id, t, wr, lo, hi).await
                    } else {
                        array_op(w, id, t, wr, lo, hi, how == 1).await
                    }
                    let i = w.allocs[id].acts.iter().position(|a| *a == (lo, hi, wr)).unwrap();
                    w.allocs[id].acts.swap_remove(i);
                    w.timelines[t].users -= 1;
                } else {
                    raw_use(w, id, n, home).await
                }
            }
            3 => {
                let l: Vec<usize> = (0..w.allocs.len())
                    .filter(|&i| w.allocs[i].live && w.allocs[i].acts.is_empty())
                    .collect();
                if l.is_empty() {
                    continue;
                }
                let id = l[w.choose(l.len())];
                w.allocs[id].acts.push((0, 99, true)); // from here on no other task uses it
                free(w, id).await;
            }
            4 => {
                let Some(t) = lib_stream(w, 9) else { continue };
                let Some(u) = lib_stream(w, t) else { continue };
                w.timelines[t].users += 1;
                w.timelines[u].users += 1;
                let e = w.next(u);
                w.say(|| format!("user: s{t}.wait_for(s{u})"));
                wait_for(w, t, u, e, [0; N], 3).await;
                if w.choose(3) == 1 {
                    // Two streams that wait for each other.
                    let e = w.next(t);
                    w.say(|| format!("user: s{u}.wait_for(s{t})"));
                    wait_for(w, u, t, e, [0; N], 3).await;
                }
                w.timelines[t].users -= 1;
                w.timelines[u].users -= 1;
            }
            5 => {
                let ns = w.cfg.ns;
                let (t, u) = (w.choose(ns), w.choose(ns));
                if t != u && !w.dev.gone[t] {
                    let v = w.dev.clock[u];
                    w.dev.wait(t, &v);
                    w.say(|| format!("user's own event: s{t} waits for s{u}"))
                }
            }
            6 => {
                let ns = w.cfg.ns;
                let u = w.choose(ns);
                if w.choose(2) == 0 {
                    poll_completed(w, u).await
                } else if !w.dev.gone[u] && !w.timelines[u].dropped {
                    w.timelines[u].users += 1;
                    sync(w, u).await;
                    w.timelines[u].users -= 1
                }
                poll_completed(w, CTX).await
            }
            7 => {
                if let Some(t) = lib_stream(w, 9) {
                    w.timelines[t].users += 1;
                    trim_one(w, t, None).await;
                    finish_deferred(w).await;
                    w.timelines[t].users -= 1
                }
                for p in 0..w.cfg.ns {
                    if w.choose(2) == 0 {
                        drain(w, p).await
                    }
                    try_close(w, p).await
                }
            }
            _ => {
                if w.cfg.close {
                    let l = (0..w.cfg.ns).filter(|&s| !w.timelines[s].dropped).count();
                    if l > 1 {
                        let u = lib_stream(w, 9).unwrap();
                        if w.timelines[u].users == 0 {
                            w.timelines[u].dropped = true;
                            w.say(|| format!("user drops Stream s{u}"));
                            try_close(w, u).await
                        }
                    }
                }
            }
        }
    }
}

/// An operation with this array and one or two others, if no other task uses them.
async fn joint(mut w: WorldRef, id: usize, t: usize) {
    let free = |w: &WorldRef, i: usize| w.allocs[i].live && w.allocs[i].array && w.allocs[i].acts.is_empty();
    let mut operands = vec![];
    let mut others: Vec<usize> = (0..w.allocs.len()).filter(|&i| i != id && free(&w, i)).collect();
    if !free(&w, id) || others.is_empty() {
        return;
    }
    let first = w.choose(2) == 1;
    operands.push((id, first));
    for _ in 0..1 + w.choose(2) {
        if others.is_empty() {
            break;
        }
        let i = w.choose(others.len());
        let wr = w.choose(2) == 1;
        operands.push((others.swap_remove(i), wr))
    }
    w.timelines[t].users += 1;
    for &(i, wr) in &operands {
        let n = w.allocs[i].hi - w.allocs[i].lo;
        w.allocs[i].acts.push((0, n, wr))
    }
    joint_op(w, &operands, t).await;
    for &(i, wr) in &operands {
        let n = w.allocs[i].hi - w.allocs[i].lo;
        let at = w.allocs[i].acts.iter().position(|a| *a == (0, n, wr)).unwrap();
        w.allocs[i].acts.swap_remove(at);
    }
    w.timelines[t].users -= 1;
}

/// Another library borrows the array for one call or two. While it does it may queue work on its stream, and the allocator is not notified when
/// the borrow ends.
pub async fn borrow(mut w: WorldRef, id: usize, t: usize, wr: bool, lo: usize, hi: usize) {
    if begin_borrow(w, id, t, wr, lo, hi).await {
        for _ in 0..1 + w.choose(2) {
            pause().await;
            w.access(id, t, wr, lo, hi);
        }
    }
}

/// A launch by the user, who orders it with their own events: after the allocation and, on arrays, after conflicting accesses.
pub async fn raw_use(mut w: WorldRef, id: usize, n: usize, home: usize) {
    if w.allocs[id].acts.iter().any(|a| a.1 == 99 || w.allocs[id].array) {
        return;
    }
    let ns = w.cfg.ns;
    let x = w.cfg.x && !w.allocs[id].array && w.choose(4) == 1;
    let t = if x { X } else { w.choose(ns) };
    w.allocs[id].acts.push((0, 98, true));
    let arr = w.allocs[id].array;
    let known = x || (t == home && !arr) || w.allocs[id].regs[t];
    let mut ok = true;
    if !known {
        if w.timelines[t].dropped {
            ok = false
        } else {
            w.timelines[t].users += 1;
            record_use(w, id, t).await;
            w.timelines[t].users -= 1;
            pause().await
        }
    }
    if ok {
        if x {
            w.allocs[id].unknown = true
        }
        let mut v = w.allocs[id].born;
        if arr {
            for &(s, p, ..) in &w.allocs[id].hist {
                v[s] = v[s].max(p)
            }
        }
        if (t != home || arr) && !le(&v, &w.dev.clock[t]) {
            w.say(|| format!("user's own event: s{t} waits for what #{id} needs"));
            w.dev.wait(t, &v);
        }
        w.access(id, t, true, 0, n);
        pause().await;
    }
    let i = w.allocs[id].acts.iter().position(|a| a.1 == 98).unwrap();
    w.allocs[id].acts.swap_remove(i);
}

/// Quiescence: everything is freed. Then some stream must be able to get all memory (L1), and every handle must be releasable (L2).
pub async fn finale(mut w: WorldRef) {
    w.quiet = true;
    w.say(|| "--- quiescence".into());
    for id in 0..w.allocs.len() {
        if w.allocs[id].live {
            free(w, id).await
        }
    }
    for p in 0..w.cfg.ns {
        try_close(w, p).await
    }
    let t = lib_stream(w, 9).unwrap();
    let mut ids = vec![];
    if w.choose(2) == 0 {
        for _ in 0..w.cfg.nh * w.cfg.h {
            // Requests of one cell: fragmentation cannot explain a refusal.
            match alloc(w, t, 1, false).await {
                Some(id) => ids.push(id),
                None => {
                    let s = state(w);
                    w.bad(format!("L1 stranded: s{t} cannot get all memory: {s}"));
                    return;
                }
            }
        }
    }
    for id in ids {
        free(w, id).await
    }
    for _ in 0..3 {
        bounded_wait(w).await;
        for u in 0..w.cfg.ns {
            poll_completed(w, u).await
        }
        poll_completed(w, CTX).await;
        for p in 0..w.cfg.ns {
            if p == t || !w.is(Mutant::DrainOwnOnly) {
                drain(w, p).await
            }
        }
        finish_deferred(w).await;
        for h in 0..w.cfg.nh {
            trim_one(w, t, Some(h)).await;
        }
    }
    if w.handles.iter().any(|h| h.exists) {
        let s = state(w);
        w.bad(format!("L2 not all handles can be released: {s}"))
    }
}

/// The pools' contents, for a failure's message.
pub fn state(w: WorldRef) -> String {
    (0..w.cfg.ns)
        .map(|p| {
            format!(
                "s{p}{} free {:?} inflight {:?} submitted {} complete {}; ",
                if w.pools[p].closed { "(closed)" } else { "" },
                w.pools[p].free.iter().map(|f| (f.lo, f.hi, f.st)).collect::<Vec<_>>(),
                w.pools[p].infl,
                w.timelines[p].submitted,
                w.timelines[p].complete
            )
        })
        .collect()
}
