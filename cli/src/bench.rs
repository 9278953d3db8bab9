//! `millpond bench`: what the bookkeeping costs on the null device, in wall time of this machine.
//!
//! The numbers are for looking at two builds on one quiet machine; a machine with other work on it adds to them, never
//! takes away. Counts of instructions, which can be compared, are another tool's.

use crate::args::BenchArgs;
use crate::output::{self, Output, Status, complain, grouped};
use crate::replay::warm;
use comfy_table::{CellAlignment, Table, presets};
use millpond::driver::random::SplitMix64;
use millpond::{Allocator, Config, Error};
use millpond_replay::import::Trace;
use millpond_sim::null::Null;
use std::hint::black_box;
use std::io::{self, Write};
use std::time::Instant;

/// Blocks alive in the mixed loop.
const LIVE: usize = 1000;

pub(crate) fn run(args: &BenchArgs, out: &mut Output) -> io::Result<Status> {
    let mut status = Status::Clean;
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_header(["what", "calls", "ns a call"]);
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    let mut row = |what: &str, timed: Result<(u64, f64), String>| match timed {
        Ok((calls, ns)) => {
            table.add_row([what.to_owned(), grouped(calls), format!("{ns:.1}")]);
        }
        Err(e) => {
            complain(&e);
            status = Status::BadInput;
        }
    };
    row("cached pair, 1 MiB", cached_pair(args.calls).map_err(|e| e.to_string()));
    row("mixed sizes, 1,000 live", mixed(args.calls).map_err(|e| e.to_string()));
    for path in &args.traces {
        let timed = match output::open(path) {
            Ok(Trace::Log(log)) => warm(&log, args.repeat).map_err(|e| e.to_string()).and_then(|o| {
                let ns = o.warm_ns_per_call.ok_or_else(|| {
                    o.failure.map_or_else(|| "no calls to time".to_owned(), |f| f.to_string())
                })?;
                Ok((o.calls, ns))
            }),
            Ok(Trace::Program(_)) => Err("a program; the bench replays logs of allocations and frees".into()),
            Err(e) => Err(e.to_string()),
        };
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let name: String = name.chars().filter(|c| !c.is_control()).collect();
        row(&format!("warm replay of {name}"), timed.map_err(|e| format!("{}: {e}", path.display())));
    }
    writeln!(out, "null device, one thread; wall time of this machine, not comparable with another's")?;
    for line in table.lines() {
        writeln!(out, "{}", line.trim())?;
    }
    Ok(status)
}

fn timed(calls: u64, run: impl FnOnce() -> Result<(), Error>) -> Result<(u64, f64), Error> {
    let start = Instant::now();
    run()?;
    Ok((calls, start.elapsed().as_nanos() as f64 / calls as f64))
}

/// Allocates and drops one size, again and again.
fn cached_pair(calls: u64) -> Result<(u64, f64), Error> {
    let gpu = Allocator::new(Null::default(), Config::default())?;
    let stream = gpu.stream()?;
    drop(gpu.alloc(1 << 20, &stream)?);
    timed(calls / 2 * 2, || {
        for _ in 0..calls / 2 {
            drop(black_box(gpu.alloc(black_box(1 << 20), &stream)?));
        }
        Ok(())
    })
}

/// Replaces random blocks among a thousand of mixed sizes.
fn mixed(calls: u64) -> Result<(u64, f64), Error> {
    let gpu = Allocator::new(Null::default(), Config::default())?;
    let stream = gpu.stream()?;
    let mut random = SplitMix64::new(1);
    // 512 B to 16 MiB, each octave as likely.
    let mut size = || {
        let r = random.next();
        let octave = 512u64 << (r % 16);
        ((r >> 32) as usize % LIVE, octave + (r >> 8) % octave)
    };
    let mut live = Vec::with_capacity(LIVE);
    for _ in 0..LIVE {
        live.push(gpu.alloc(size().1, &stream)?);
    }
    // Long enough to see every kind of hole once.
    for _ in 0..20 * LIVE {
        let (at, bytes) = size();
        live[at] = gpu.alloc(bytes, &stream)?;
    }
    timed(calls / 2 * 2, || {
        for _ in 0..calls / 2 {
            let (at, bytes) = size();
            live[at] = gpu.alloc(bytes, &stream)?;
        }
        Ok(())
    })
}
