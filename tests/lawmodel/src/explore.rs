//! Runs: a random configuration and a random schedule, in which a thread may run on for several steps or stand still for many; or every
//! schedule of a small program with a bounded number of preemptions.

use crate::mutants::*;
use crate::{program::*, reach::*, truth::*, world::*};
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

/// A random small configuration.
pub fn config(r: &mut u64) -> Cfg {
    let mut g = |n: u64| {
        *r ^= *r << 13;
        *r ^= *r >> 7;
        *r ^= *r << 17;
        ((*r >> 33) % n) as usize
    };
    let nh = 1 + g(3);
    let h = [1, 2, 2, 4][g(4)];
    Cfg {
        ns: 2 + g(3),
        nt: 1 + g(3),
        h,
        nh,
        spp: nh + 1,
        x: g(4) == 0,
        up: g(5) == 0,
        fault: [0, 0, 12, 30][g(4)],
        dev: [0, 1, 3, 5][g(4)],
        stick: [0, 6, 10][g(3)],
        budget: [4, 8, 16, 40][g(4)],
        arr: g(5),
        joint: [0, 1, 4, 4][g(4)],
        close: g(3) == 0,
        mv: g(4) != 0,
        freeze: [0, 20, 60, 200][g(4)],
        wt: [
            1,
            [6, 9][g(2)],
            [6, 11, 16][g(3)],
            [4, 6, 9][g(3)],
            [1, 4, 12][g(3)],
            [0, 1, 4][g(3)],
            [1, 3][g(2)],
            [1, 4][g(2)],
            1,
        ],
    }
}

/// One run, to its end or its first failure.
pub fn run(cfg: &Cfg, m: Mutant, seed: u64, replay: Option<Vec<u16>>, trace: bool) -> Box<World> {
    let mut world = Box::new(World::new(cfg.clone(), m, seed));
    world.replay = replay;
    world.trace = trace;
    let mut w = WorldRef(&mut *world);
    let mut th: Vec<Option<Pin<Box<dyn Future<Output = ()>>>>> =
        (0..cfg.nt).map(|_| Some(Box::pin(user(w)) as Pin<Box<dyn Future<Output = ()>>>)).collect();
    let mut cx = Context::from_waker(Waker::noop());
    let mut cur = 0;
    let mut frozen = vec![0u64; cfg.nt];
    while w.fail.is_none() {
        w.steps += 1;
        let live: Vec<usize> = (0..th.len()).filter(|&i| th[i].is_some()).collect();
        if live.is_empty() {
            break;
        }
        if w.steps > 6000 {
            let i = live[w.steps as usize % live.len()];
            cur = i;
            for s in 0..CTX {
                w.dev.advance(s);
            }
            if w.steps > 12000 {
                w.bad("D deadlock".into());
                break;
            }
        } else {
            let r = w.choose(16);
            if cfg.nt > 1 && r == 15 && cfg.freeze > 0 && w.choose(4) == 1 {
                let k = w.choose(cfg.freeze) as u64;
                frozen[cur] = w.steps + k
            }
            let live: Vec<usize> = {
                let l: Vec<usize> = live.iter().copied().filter(|&i| frozen[i] <= w.steps).collect();
                if l.is_empty() { live } else { l }
            };
            if r < cfg.stick && live.contains(&cur) {
            } else if r < 16 - cfg.dev {
                cur = live[w.choose(live.len())]
            } else {
                let s = w.choose(5);
                let many = w.choose(3);
                for _ in 0..=many {
                    w.dev.advance(s);
                }
                continue;
            }
        }
        w.tid = cur;
        if let Poll::Ready(()) = th[cur].as_mut().unwrap().as_mut().poll(&mut cx) {
            th[cur] = None;
            cur = 0
        }
    }
    drop(th);
    if w.fail.is_none() {
        let mut f = Box::pin(finale(w));
        for i in 0.. {
            w.steps += 1;
            loop {
                let mut any = false;
                for s in 0..CTX {
                    any |= w.dev.advance(s)
                }
                if !any {
                    break;
                }
            }
            if f.as_mut().poll(&mut cx).is_ready() {
                break;
            }
            if i > 100000 {
                w.bad("D finale never ends".into());
                break;
            }
        }
    }
    world
}

/// Every schedule of one small program with at most `delays` preemptions or device steps; the user's choices are fixed
/// per thread. Returns the numbers of runs and steps, the failure, and whether all schedules were run.
pub fn exhaust(cfg: &Cfg, m: Mutant, seed: u64, delays: usize, cap: u64) -> (u64, u64, Option<String>, bool) {
    let (mut dfs, mut runs, mut steps): (Vec<(u16, u16)>, u64, u64) = (vec![], 0, 0);
    loop {
        let mut world = Box::new(World::new(cfg.clone(), m, 1));
        world.trng =
            Some(std::array::from_fn(|i| (seed ^ (i as u64 + 1).wrapping_mul(0x9E3779B97F4A7C15)) | 1));
        world.dfs = std::mem::take(&mut dfs);
        world.delays = delays;
        let mut w = WorldRef(&mut *world);
        let mut th: Vec<Option<Pin<Box<dyn Future<Output = ()>>>>> =
            (0..cfg.nt).map(|_| Some(Box::pin(user(w)) as Pin<Box<dyn Future<Output = ()>>>)).collect();
        let mut cx = Context::from_waker(Waker::noop());
        let mut cur = 0;
        while w.fail.is_none() && th.iter().any(|t| t.is_some()) && w.steps < 3000 {
            w.steps += 1;
            if th[cur].is_none() || w.blocked {
                w.blocked = false;
                loop {
                    cur = (cur + 1) % cfg.nt;
                    if th[cur].is_some() {
                        break;
                    }
                }
            }
            let mut alt: Vec<usize> = (0..cfg.nt).filter(|&i| i != cur && th[i].is_some()).collect();
            for s in 0..CTX {
                if (w.dev.done[s] as usize) < w.dev.ops[s].len() {
                    alt.push(100 + s)
                }
            }
            let c = w.branch(alt.len() + 1);
            if c > 0 {
                let a = alt[c - 1];
                if a >= 100 {
                    while w.dev.advance(a - 100) {}
                    continue;
                }
                cur = a
            }
            w.tid = cur;
            if let Poll::Ready(()) = th[cur].as_mut().unwrap().as_mut().poll(&mut cx) {
                th[cur] = None
            }
        }
        drop(th);
        if w.fail.is_none() && w.steps < 3000 {
            w.tid = 7;
            let mut f = Box::pin(finale(w));
            loop {
                w.steps += 1;
                loop {
                    let mut any = false;
                    for s in 0..CTX {
                        any |= w.dev.advance(s)
                    }
                    if !any {
                        break;
                    }
                }
                if f.as_mut().poll(&mut cx).is_ready() {
                    break;
                }
            }
        }
        runs += 1;
        steps += w.steps;
        if let Some(f) = &w.fail {
            return (runs, steps, Some(f.clone()), true);
        }
        dfs = std::mem::take(&mut w.dfs);
        while let Some(&(c, n)) = dfs.last() {
            if c + 1 < n {
                dfs.last_mut().unwrap().0 += 1;
                break;
            }
            dfs.pop();
        }
        if dfs.is_empty() {
            return (runs, steps, None, true);
        }
        if runs >= cap {
            return (runs, steps, None, false);
        }
    }
}
