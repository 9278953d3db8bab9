//! An executable model of the ordering laws O1-O9: see README.md beside `Cargo.toml`.

mod explore;
mod handles;
mod heap;
mod markers;
mod mutants;
mod pools;
mod program;
mod reach;
mod search;
#[cfg(test)]
mod tests;
mod truth;
mod uses;
mod world;

use explore::*;
use mutants::*;
use search::*;
use std::time::Instant;
use world::*;

/// The mutant of this name, in any case of letters.
fn mutant(name: &str) -> Mutant {
    ALL.iter().copied().find(|m| format!("{m:?}").eq_ignore_ascii_case(name)).unwrap_or_else(|| {
        eprintln!("no mutant is called {name:?}; these are: {ALL:?}");
        std::process::exit(2)
    })
}

fn main() {
    let a: Vec<String> = std::env::args().collect();
    let arg = |i: usize, d: &str| a.get(i).cloned().unwrap_or(d.into());
    let max: u64 = (arg(2, "20").parse::<f64>().unwrap() * 1e6) as u64;
    let seed: u64 = arg(3, "12345").parse().unwrap();
    let t0 = Instant::now();
    match arg(1, "None").as_str() {
        "exh" => {
            // exh SECONDS SEED MUTANT DELAYS
            let m = mutant(&arg(4, "None"));
            let (delays, mut r, mut full, mut n, mut runs, mut steps) =
                (arg(5, "2").parse().unwrap(), seed | 1, 0, 0, 0, 0);
            while t0.elapsed().as_secs_f64() < max as f64 / 1e6 {
                let mut c = config(&mut r);
                c.nt = 2;
                c.budget = 3 + (r >> 40) as usize % 3;
                c.ns = 2 + (r >> 50) as usize % 2;
                c.nh = 1;
                c.spp = 2;
                c.fault = 0;
                let (a, b, f, done) = exhaust(&c, m, r, delays, 400_000);
                n += 1;
                runs += a;
                steps += b;
                full += done as u64;
                if let Some(f) = f {
                    println!("{m:?}: program {n}: {f} after {runs} runs {steps} steps; {c:?}");
                    return;
                }
            }
            println!(
                "{m:?}: {n} programs, {full} of them exhausted at {delays} delays, {runs} schedules, {steps} steps, all clean"
            );
        }
        "all" => {
            for &m in ALL {
                let mut st = Stats::default();
                let (steps, runs, f) = search(m, seed, max, &mut st, 1);
                match f {
                    Some(f) => println!(
                        "{m:?}\tFOUND\tsteps {}\truns {}\t{}",
                        f.steps,
                        f.runs,
                        f.why.chars().take(70).collect::<String>()
                    ),
                    None => println!(
                        "{m:?}\tclean\tsteps {steps}\truns {runs}\twaits {} implied {:.3} more {:.3} | birth {} implied {:.3} | array {} implied {:.3} more {:.3} | marks/alloc {:.2}",
                        st.waits,
                        r(st.implied, st.waits),
                        r(st.more, st.waits),
                        st.bwaits,
                        r(st.bimplied, st.bwaits),
                        st.awaits,
                        r(st.aimplied, st.awaits),
                        r(st.amore, st.awaits),
                        r(st.marks, st.allocs)
                    ),
                }
            }
        }
        n => {
            let m = mutant(n);
            let mut st = Stats::default();
            let (steps, runs, f) = search(m, seed, max, &mut st, arg(4, "1").parse().unwrap());
            println!("{m:?}: {steps} steps, {runs} runs, {:.1} s, {st:?}", t0.elapsed().as_secs_f64());
            if let Some(f) = f {
                println!("found after {} steps, {} runs", f.steps, f.runs);
                show(&f, m, arg(5, "20").parse().unwrap())
            }
        }
    }
}
