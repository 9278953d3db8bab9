//! Runs until one fails, and shrinks a failing run.

use crate::mutants::*;
use crate::{explore::*, world::*};
use std::time::Instant;

/// The shortest failing run so far.
pub struct Found {
    /// Steps and runs until the first failure.
    pub steps: u64,
    pub runs: u64,
    /// Configuration and choices that fail.
    pub cfg: Cfg,
    pub rec: Vec<u16>,
    pub why: String,
}

/// Runs until `best_of` failures or `max_steps`. Returns the numbers of steps and runs, and the shortest failure.
pub fn search(
    m: Mutant,
    seed: u64,
    max_steps: u64,
    st: &mut Stats,
    best_of: usize,
) -> (u64, u64, Option<Found>) {
    let (mut r, mut steps, mut runs, mut n) = (seed | 1, 0, 0, 0);
    let mut found: Option<Found> = None;
    for _ in 0..10 {
        config(&mut r);
    }
    while steps < max_steps {
        let cfg = config(&mut r);
        let w = run(&cfg, m, r.wrapping_mul(0x9E3779B97F4A7C15) >> 1, None, false);
        steps += w.steps;
        runs += 1;
        add(st, &w.st);
        if let Some(f) = &w.fail {
            n += 1;
            if found.as_ref().is_none_or(|o| w.rec.len() < o.rec.len()) {
                let (s, ru) = found.as_ref().map_or((steps, runs), |o| (o.steps, o.runs));
                found = Some(Found { steps: s, runs: ru, cfg, rec: w.rec.clone(), why: f.clone() })
            }
            if n >= best_of {
                break;
            }
        }
    }
    (steps, runs, found)
}

/// The kind of a failure: its first word.
pub fn code(s: &str) -> &str {
    s.split(' ').next().unwrap_or("")
}

/// Fewer choices, then smaller ones, with which the run still fails in the same way.
pub fn shrink(cfg: &Cfg, m: Mutant, rec: Vec<u16>, why: &str, secs: f64) -> (Cfg, Vec<u16>) {
    let (mut cfg, mut best) = (cfg.clone(), rec);
    let t0 = Instant::now();
    let ok = |c: &Cfg, v: &Vec<u16>| {
        let w = run(c, m, 1, Some(v.clone()), false);
        w.fail.as_deref().is_some_and(|f| code(f) == code(why))
    };
    if !ok(&cfg, &best) {
        return (cfg, best);
    }
    loop {
        let before = best.clone();
        let mut size = best.len().div_ceil(2).max(1);
        loop {
            let mut i = 0;
            while i < best.len() && t0.elapsed().as_secs_f64() < secs {
                let j = (i + size).min(best.len());
                let mut v = best.clone();
                v.drain(i..j);
                if ok(&cfg, &v) {
                    best = v;
                    continue;
                }
                if best[i..j].iter().any(|&x| x != 0) {
                    let mut v = best.clone();
                    v[i..j].fill(0);
                    if ok(&cfg, &v) {
                        best = v
                    }
                }
                i = j;
            }
            if size == 1 {
                break;
            }
            size /= 2;
        }
        for f in 0..6 {
            let mut c = cfg.clone();
            match f {
                0 => c.fault = 0,
                1 => c.up = false,
                2 => c.x = false,
                3 => c.close = false,
                4 => c.nt = c.nt.max(2) - 1,
                _ => c.mv = false,
            }
            if c.nt >= 1 && ok(&c, &best) {
                cfg = c
            }
        }
        while best.last() == Some(&0) {
            best.pop();
        }
        if best == before || t0.elapsed().as_secs_f64() >= secs {
            break;
        }
    }
    (cfg, best)
}

/// Adds one run's counts to the total.
pub fn add(a: &mut Stats, b: &Stats) {
    macro_rules! s { ($($f:ident),*) => { $(a.$f += b.$f;)* } }
    s!(
        idone,
        made,
        mademore,
        allocs,
        hits,
        migrated,
        migrated_waiting,
        migrated_infl,
        moves,
        second,
        trims,
        marks,
        due_marks,
        waits,
        implied,
        more,
        bwaits,
        bimplied,
        awaits,
        aimplied,
        amore,
        syncs,
        oom,
        closed,
        unknown,
        infl,
        drained
    );
}

/// Shrinks a failure and prints its trace.
pub fn show(f: &Found, m: Mutant, secs: f64) {
    let (c, v) = shrink(&f.cfg, m, f.rec.clone(), &f.why, secs);
    let w = run(&c, m, 1, Some(v.clone()), true);
    println!(
        "  {m:?}: {} | shrunk {} -> {} choices; {c:?}",
        w.fail.as_deref().unwrap_or("?"),
        f.rec.len(),
        v.len()
    );
    for l in &w.log {
        println!("    {l}")
    }
}

/// The ratio of two counts.
pub fn r(a: u64, b: u64) -> f64 {
    a as f64 / b.max(1) as f64
}
