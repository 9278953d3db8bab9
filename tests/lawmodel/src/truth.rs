//! Ground truth: streams, events, the host's clock, accesses to physical cells.
//!
//! Vector clocks over [`N`] timelines hold what is ordered before what, and how far each stream has really run. This file knows nothing of
//! the allocator's laws: they are checked against it.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};
pub const N: usize = 6; // timelines: library streams 0..4, X (raw, unadopted) = 4, CTX (context-wide markers) = 5
pub const X: usize = 4;
pub const CTX: usize = 5;
pub type Clock = [u16; N];
pub fn join(a: &mut Clock, b: &Clock) {
    for i in 0..N {
        if b[i] > a[i] {
            a[i] = b[i]
        }
    }
}
pub fn le(a: &Clock, b: &Clock) -> bool {
    (0..N).all(|i| a[i] <= b[i])
}

#[derive(Default)]
pub struct Dev {
    pub clock: [Clock; N],
    pub ops: [Vec<(Clock, bool)>; N],
    pub done: [u16; N],
    pub host: Clock,
    pub gone: [bool; N],
    pub evs: Vec<Clock>,
}
impl Dev {
    pub fn submit(&mut self, s: usize, access: bool) -> u16 {
        let h = self.host;
        join(&mut self.clock[s], &h);
        self.clock[s][s] += 1;
        let v = self.clock[s];
        self.ops[s].push((v, access));
        v[s]
    }
    pub fn new_event(&mut self) -> usize {
        self.evs.push([0; N]);
        self.evs.len() - 1
    } // never recorded: the empty set
    pub fn record(&mut self, s: usize, ev: usize) {
        if s == CTX {
            let mut v = self.host;
            for u in 0..CTX {
                let c = self.clock[u];
                join(&mut v, &c)
            }
            self.evs[ev] = v
        } else {
            self.submit(s, false);
            self.evs[ev] = self.clock[s]
        }
    }
    pub fn wait(&mut self, t: usize, v: &Clock) {
        join(&mut self.clock[t], v)
    }
    pub fn is_done(&self, v: &Clock) -> bool {
        le(v, &self.done)
    }
    pub fn observe(&mut self, v: &Clock) {
        join(&mut self.host, v)
    }
    pub fn advance(&mut self, s: usize) -> bool {
        let d = self.done[s] as usize;
        if d >= self.ops[s].len() {
            return false;
        }
        let v = self.ops[s][d].0;
        if (0..N).any(|u| u != s && v[u] > self.done[u]) {
            return false;
        }
        self.done[s] += 1;
        true
    }
    /// Accesses that `m` covers, that are neither needed nor already ordered before t.
    pub fn covers_more(&self, t: usize, need: &Clock, m: &Clock) -> bool {
        (0..CTX).any(|x| {
            x != t
                && (need[x].max(self.clock[t][x]).max(self.host[x])..m[x]).any(|p| self.ops[x][p as usize].1)
        })
    }
}
#[derive(Clone, Copy, Default)]
pub struct Cell {
    pub prev: Clock,
    pub cur: Clock,
    pub owner: u32,
}

pub struct Pause(bool);
impl Future for Pause {
    type Output = ();
    fn poll(mut self: Pin<&mut Self>, _: &mut Context) -> Poll<()> {
        if self.0 {
            Poll::Ready(())
        } else {
            self.0 = true;
            Poll::Pending
        }
    }
}
/// A point where other host threads and the device may run.
pub fn pause() -> Pause {
    Pause(false)
}
