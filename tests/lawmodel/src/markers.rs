//! Markers on a stream (O8): how they are made, waited for and queried, how a stream is synchronised, markers that are due (O9), and the
//! marker that closes a stream.
//!
//! Every driver call, change of a lock's holder and bare atomic is a [`pause`], at which another thread may run. This file knows no ranges.

use crate::mutants::*;
use crate::{reach::*, truth::*, world::*};

/// O8: reserve, copy the clock, record, publish.
pub async fn make_marker(mut w: WorldRef, u: usize) -> Option<Mark> {
    if closed(w, u) && !w.is(Mutant::DestroyWhileMarking) {
        return None;
    }
    if !w.is(Mutant::DestroyWhileMarking) {
        w.timelines[u].marking += 1
    }
    let r = marker_steps(w, u).await;
    if !w.is(Mutant::DestroyWhileMarking) {
        w.timelines[u].marking -= 1
    }
    r
}

/// The four steps; another thread may run between any two of them.
pub async fn marker_steps(mut w: WorldRef, u: usize) -> Option<Mark> {
    let ev = w.dev.new_event();
    let mut n = 0;
    if !w.is(Mutant::CountAfterRecord) {
        w.timelines[u].submitted += 1;
        n = w.timelines[u].submitted;
        w.say(|| format!("  reserve marker {n} on s{u}"));
    }
    pause().await;
    let mut k = w.timelines[u].k;
    if u == CTX && w.is(Mutant::VCtxCopiesSubmitted) {
        for x in 0..CTX {
            k[x] = w.timelines[x].submitted
        }
    }
    pause().await;
    if w.is(Mutant::PublishBeforeRecord) {
        w.timelines[u].marks.push(Mark { n, ev, k });
        w.say(|| format!("  publish marker {n} on s{u} before its record"));
        pause().await;
    }
    let f = w.fault();
    if f {
        w.say(|| format!("  record on s{u} FAILS"));
        if !w.is(Mutant::FailedRecordCounts) {
            return None;
        }
    } else {
        if u < CTX && w.dev.gone[u] {
            w.bad(format!("record on destroyed stream s{u}"));
            return None;
        }
        w.dev.record(u, ev);
        w.say(|| format!("  record on s{u} (marker {n})"));
    }
    pause().await;
    if w.is(Mutant::CopyAfterRecord) {
        k = w.timelines[u].k
    }
    if w.is(Mutant::CountAfterRecord) {
        w.timelines[u].submitted += 1;
        n = w.timelines[u].submitted;
        w.say(|| format!("  count marker {n} on s{u}"));
    }
    let mk = Mark { n, ev, k };
    if !w.is(Mutant::PublishBeforeRecord) {
        w.timelines[u].marks.push(mk.clone());
    }
    w.st.marks += 1;
    w.say(|| format!("  publish marker {n} on s{u}"));
    Some(mk)
}

/// Orders `t` after epoch `e` of `u` by an inserted wait. `need` is the ground truth, by which unnecessary waits are counted; `kind` is what
/// the wait is for: 0 a migration or move, 1 a birth stamp, 2 an array's uses, 3 the user's own call.
pub async fn wait_for(mut w: WorldRef, t: usize, u: usize, e: Epoch, need: Clock, kind: u8) -> bool {
    for _ in 0..30 {
        if w.ordered(t, &w.timelines[t].k, u, e) {
            return true;
        }
        if w.is(Mutant::VQueryBeforeWait) && kind != 3 {
            poll_completed(w, u).await;
            if w.ordered(t, &w.timelines[t].k, u, e) {
                return true;
            }
        }
        let best = w.timelines[u].marks.iter().filter(|m| m.n >= e).min_by_key(|m| m.n).cloned();
        let made = best.is_none();
        let mk = match best {
            Some(m) => m,
            None => {
                if closed(w, u) && !w.is(Mutant::DestroyWhileMarking) {
                    pause().await;
                    continue;
                }
                match make_marker(w, u).await {
                    Some(m) if m.n >= e => m,
                    Some(_) => continue,
                    None => {
                        if closed(w, u) {
                            continue;
                        } else {
                            return false;
                        }
                    }
                }
            }
        };
        let grow = |mut w: WorldRef| {
            let before = w.timelines[t].k;
            let k = if w.is(Mutant::CopyAtWait) {
                w.timelines[u].k
            } else if w.is(Mutant::NoCopyTravels) {
                [0; N]
            } else {
                mk.k
            };
            for x in 0..N {
                if x != t {
                    w.timelines[t].k[x] = w.timelines[t].k[x].max(k[x])
                }
            }
            w.timelines[t].k[u] = w.timelines[t].k[u].max(mk.n);
            for x in 0..N {
                if w.timelines[t].k[x] > before[x] {
                    w.timelines[t].learned[x] = w.timelines[t].submitted
                }
            }
        };
        if w.is(Mutant::KBeforeWait) {
            grow(w)
        }
        pause().await;
        if w.fault() {
            w.say(|| format!("  wait s{t} on marker {} of s{u} FAILS", mk.n));
            return false;
        }
        let v = w.dev.evs[mk.ev];
        let implied = (0..N).all(|x| need[x] <= w.dev.clock[t][x].max(w.dev.host[x]));
        let more = w.dev.covers_more(t, &need, &v);
        if kind != 3 {
            let d = le(&need, &w.dev.done);
            w.st.idone += d as u64;
            w.st.made += made as u64;
            w.st.mademore += (made && more) as u64
        }
        let s = &mut w.st;
        match kind {
            0 => {
                s.waits += 1;
                s.implied += implied as u64;
                s.more += more as u64
            }
            1 => {
                s.bwaits += 1;
                s.bimplied += implied as u64
            }
            2 => {
                s.awaits += 1;
                s.aimplied += implied as u64;
                s.amore += more as u64
            }
            _ => (),
        }
        w.dev.wait(t, &v);
        w.say(|| format!("  s{t} waits on marker {} of s{u}", mk.n));
        pause().await;
        grow(w);
        return true;
    }
    false
}

/// The marker to wait for: the oldest published one that covers epoch `e` of `u`, else a new one. None if none can be made.
async fn marker_for(w: WorldRef, u: usize, e: Epoch) -> Option<Mark> {
    for _ in 0..30 {
        if let Some(m) = w.timelines[u].marks.iter().filter(|m| m.n >= e).min_by_key(|m| m.n) {
            return Some(m.clone());
        }
        // Another thread may run between the search for a marker and the making of one.
        pause().await;
        match make_marker(w, u).await {
            Some(m) if m.n >= e => return Some(m),
            Some(_) => {}
            None if closed(w, u) => pause().await,
            None => return None,
        }
    }
    None
}

/// Orders `t` after all of these: it finds or makes a marker for each that `t` is not ordered after, one after the other; then it waits. A
/// wait is left out only if `t`'s clock covers the use at that moment.
pub async fn wait_for_all(mut w: WorldRef, t: usize, needs: &[(usize, Epoch, Clock)]) -> bool {
    let mut found: Vec<(usize, Epoch, Clock, Mark)> = vec![];
    for &(u, e, need) in needs {
        if !w.ordered(t, &w.timelines[t].k, u, e) {
            let Some(mk) = marker_for(w, u, e).await else { return false };
            found.push((u, e, need, mk))
        }
    }
    let covers = |i: usize, j: usize| found[i].3.k[found[j].0] >= found[j].1;
    for (i, (u, e, need, mk)) in found.iter().enumerate() {
        let left_to = |j: usize| j != i && covers(j, i);
        let out = match w.m {
            Mutant::CoverOther => (0..found.len()).any(left_to),
            Mutant::CoverTie => (0..found.len()).any(|j| left_to(j) && !(i < j && covers(i, j))),
            _ => false,
        };
        if out || w.ordered(t, &w.timelines[t].k, *u, *e) {
            continue;
        }
        pause().await;
        if w.fault() {
            w.say(|| format!("  wait s{t} on marker {} of s{u} FAILS", mk.n));
            return false;
        }
        let v = w.dev.evs[mk.ev];
        w.st.awaits += 1;
        w.st.aimplied += (0..N).all(|x| need[x] <= w.dev.clock[t][x].max(w.dev.host[x])) as u64;
        w.st.amore += w.dev.covers_more(t, need, &v) as u64;
        w.dev.wait(t, &v);
        w.say(|| format!("  s{t} waits on marker {} of s{u}", mk.n));
        pause().await;
        let to = &mut w.timelines[t];
        for x in (0..N).filter(|&x| x != t) {
            let n = if x == *u { mk.k[x].max(mk.n) } else { mk.k[x] };
            if n > to.k[x] {
                (to.k[x], to.learned[x]) = (n, to.submitted)
            }
        }
    }
    true
}

/// The host learnt that epoch `n` of `u` is complete.
pub fn set_complete(mut w: WorldRef, u: usize, n: Epoch) {
    if n > w.timelines[u].complete {
        w.timelines[u].complete = n;
        w.say(|| format!("  complete_s{u} = {n}"))
    }
}

/// Queries one published marker of `u`.
pub async fn poll_completed(mut w: WorldRef, u: usize) {
    let c = w.timelines[u].complete;
    let l: Vec<Mark> = w.timelines[u].marks.iter().filter(|m| m.n > c).cloned().collect();
    if l.is_empty() {
        return;
    }
    let mk = l[if w.quiet { l.len() - 1 } else { w.choose(l.len()) }].clone();
    pause().await;
    let err = w.fault();
    let v = w.dev.evs[mk.ev];
    let ready = if err { w.is(Mutant::QueryErrorReady) } else { w.dev.is_done(&v) };
    if ready && !err {
        w.dev.observe(&v)
    }
    pause().await;
    if ready {
        let n = if w.is(Mutant::QueryNumberAfter) { w.timelines[u].submitted } else { mk.n };
        set_complete(w, u, n);
        if w.is(Mutant::VDoneJoinsCopy) {
            for x in 0..N {
                set_complete(w, x, mk.k[x])
            }
        }
        let c = w.timelines[u].complete;
        if u < w.cfg.ns {
            w.timelines[u].marks.retain(|m| m.n >= c)
        }
    }
}

/// Synchronises a stream: the number that this proves complete is read before the call.
pub async fn sync(mut w: WorldRef, u: usize) {
    if w.choose(2) == 0 {
        // With a reserved number it proves every stamp that was given out so far.
        w.timelines[u].submitted += 1
    }
    let n = w.timelines[u].submitted;
    pause().await;
    let v = w.dev.clock[u];
    for _ in 0..25 {
        if w.dev.is_done(&v) {
            break;
        }
        pause().await
    }
    if !w.dev.is_done(&v) {
        return;
    }
    w.dev.observe(&v);
    w.st.syncs += 1;
    pause().await;
    let n = if w.is(Mutant::SyncNumberAfter) { w.timelines[u].submitted } else { n };
    set_complete(w, u, n);
}

/// Makes the marker that has fallen due on `u`.
pub async fn make_due_marker(mut w: WorldRef, u: usize) {
    if !w.timelines[u].due {
        return;
    }
    if w.is(Mutant::DueClearedOnFail) {
        w.timelines[u].due = false
    }
    if make_marker(w, u).await.is_some() {
        w.timelines[u].due = false;
        w.st.due_marks += 1
    }
}

/// Closes a dropped stream: it sets the flag under the pool's lock, makes the closing marker, waits until no thread makes a marker on the
/// stream, and destroys the native stream.
pub async fn try_close(mut w: WorldRef, u: usize) {
    lock(w, u).await;
    let idle = w.pools[u].live == 0 && w.timelines[u].open == 0;
    let go = w.timelines[u].dropped
        && !w.pools[u].closed
        && !w.timelines[u].ctx_done
        && (idle || w.is(Mutant::CloseEarly));
    if !go {
        unlock(w, u);
        return;
    }
    w.timelines[u].ctx_done = true;
    w.say(|| format!("close s{u}"));
    if !w.is(Mutant::ClosedFlagLate) {
        w.pools[u].closed = true
    }
    unlock(w, u);
    for i in 0.. {
        if marker_steps(w, u).await.is_some() {
            break;
        }
        if i > 20 {
            return;
        }
    }
    if w.is(Mutant::ClosedFlagLate) {
        w.pools[u].closed = true
    }
    while w.timelines[u].marking > 0 {
        w.blocked = true;
        pause().await
    }
    if !w.is(Mutant::CloseEarly) {
        w.dev.gone[u] = true
    }
    w.st.closed += 1;
    w.say(|| format!("native stream s{u} destroyed"));
}
