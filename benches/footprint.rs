//! What the recorded workloads take of the device, beside what was live: on the simulated device, under both policies, with the peers' figures.
//!
//! `cargo bench --bench footprint`, or the binary by itself, which needs no GPU:
//!
//! ```text
//! footprint [--traces DIR] [--only PART,...] [--streams own,1,2,4,8] [--ahead 0,200,1000] [--policy latency,footprint]
//!     [--at-once] [--check]
//! ```
//!
//! Each trace is replayed on its own streams (`prefetch_multistream` has four, the others have one), and dealt over 1 to 8, whatever its own are, in runs of 1 to
//! 24 allocations, as `benches/peers/taken.py` deals it to peers; each block is written at its allocation and read before its free. The host runs 0, 200 or 1000 operations ahead of the device, so that what was freed last is not
//! complete. It makes each call at its time in the log; with `--at-once` right after the one before, so that little is complete. Everything else is as the environment says (`MILLPOND_*`). The oracle and the contents are off: tests judge order; here bytes are
//! counted. So all figures but the seconds are the same on every machine.
//!
//! A line for each policy: the most bytes taken over the most bytes live, as requested; what the driver's memory calls cost, by the simulated prices, in
//! microseconds an allocation and in percent of the log's own time; how many there were; the waits that were put between streams, and the host's; the time of the whole device
//! work over that of a run whose memory costs nothing. With `--check` it ends with 1 if a mean or a line is above its aim.

use millpond::Config;
use millpond::allocator::Policy;
use millpond::trace::{self, Action, Log, StreamNo};
use millpond_replay::import::{self, Options, Trace};
use millpond_replay::{Outcome, Workload, replay_log};
use millpond_sim::{Call, Sim};
use rivals::clock::option;
use std::fs::File;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

/// The H200's memory.
const CAPACITY: u64 = 141 << 30;

/// A policy and its aims for workloads on their own streams: the geometric mean, with the host running ahead and not, and the worst. They are for virtual
/// memory under the pools (`MILLPOND_VIRTUAL=auto`); plain segments miss them. Those of `latency` are near what a simulation of windows without moves gave: 1.073
/// on one stream.
struct Aim {
    policy: Policy,
    name: &'static str,
    mean: f64,
    mean_ahead: f64,
    worst: f64,
}

const AIMS: [Aim; 2] = [
    Aim { policy: Policy::Latency, name: "latency", mean: 1.10, mean_ahead: 1.15, worst: 1.25 },
    Aim { policy: Policy::Footprint, name: "footprint", mean: 1.02, mean_ahead: 1.025, worst: 1.05 },
];

/// What peers take of each trace, over what was live, with nothing queued on any stream.
struct Peers {
    trace: &'static str,
    /// On its own streams, H200: tests/traces/README.md. PyTorch's native allocator, its expandable segments, cudaMallocAsync, RMM's pool, CuPy.
    own: [f64; 5],
    /// Dealt over one stream and over four, H100: benches/RESULTS.md. PyTorch's native allocator and its expandable segments.
    over_one: [f64; 2],
    over_four: [f64; 2],
}

const PEERS: [Peers; 5] = [
    Peers {
        trace: "gnn_train",
        own: [2.36, 1.02, 1.04, 1.33, 2.35],
        over_one: [2.357, 1.020],
        over_four: [3.406, 1.989],
    },
    Peers {
        trace: "gpt2_varlen_train",
        own: [1.20, 1.08, 1.06, 2.08, 1.20],
        over_one: [1.198, 1.079],
        over_four: [2.450, 1.501],
    },
    Peers {
        trace: "llama_generate",
        own: [1.12, 1.04, 1.14, 1.09, 1.08],
        over_one: [1.123, 1.041],
        over_four: [1.777, 1.408],
    },
    Peers {
        trace: "prefetch_multistream",
        own: [2.52, 1.41, 1.26, 1.76, 2.56],
        over_one: [1.901, 1.153],
        over_four: [7.282, 3.564],
    },
    Peers {
        trace: "seq2seq_lstm",
        own: [1.24, 1.04, 1.41, 1.29, 1.14],
        over_one: [1.236, 1.037],
        over_four: [2.212, 1.732],
    },
];

/// The driver calls that take memory, map it or give it back.
const MEMORY_CALLS: [Call; 9] = [
    Call::MemAlloc,
    Call::MemFree,
    Call::AddressReserve,
    Call::AddressFree,
    Call::Create,
    Call::Map,
    Call::SetAccess,
    Call::Unmap,
    Call::Release,
];

/// What a call costs at least, in nanoseconds: a handle's access and its unmap in a window in which something else is mapped.
fn price(call: Call) -> u64 {
    call.price()
        + match call {
            Call::SetAccess => 16_500,
            Call::Unmap => 11_700,
            _ => 0,
        }
}

fn main() -> ExitCode {
    let streams = listed("streams", "own,1,2,4,8");
    let ahead = listed("ahead", "0,200,1000");
    let policies = listed("policy", "latency,footprint");
    let policies: Vec<&Aim> = AIMS.iter().filter(|aim| policies.iter().any(|p| p == aim.name)).collect();
    let logs: Vec<(Log, Log)> = logs().into_iter().map(|log| (on_one_stream(&log), log)).collect();
    println!(
        "# most bytes taken / most bytes live; simulated device, {} GiB, no oracle, no contents",
        CAPACITY >> 30
    );
    println!(
        "{:<21} {:>7} {:>6} {:<9} {:>7}  {:>9} {:>6} {:>7} {:>7} {:>9} {:>6}  peers",
        "trace",
        "streams",
        "ahead",
        "policy",
        "taken/live",
        "us/alloc",
        "%",
        "calls",
        "waits",
        "host waits",
        "time"
    );
    let start = Instant::now();
    let mut missed = Vec::new();
    for over in &streams {
        for ahead in &ahead {
            let mut ratios = vec![Vec::new(); policies.len()];
            for (merged, log) in &logs {
                let log = if over == "own" { log } else { merged };
                for (aim, ratios) in policies.iter().zip(&mut ratios) {
                    let outcome = replayed(log, aim.policy, over, number("ahead", ahead));
                    ratios.push(line(log, over, ahead, aim.name, &outcome));
                }
            }
            for (aim, ratios) in policies.iter().zip(&ratios) {
                let (mean, worst) = (geometric(ratios), ratios.iter().copied().fold(0.0, f64::max));
                print!(
                    "{:<21} {over:>7} {ahead:>6} {:<9} {mean:>10.3}  worst {worst:.3}",
                    "geometric mean", aim.name
                );
                if over == "own" {
                    let most = if ahead == "0" { aim.mean } else { aim.mean_ahead };
                    print!("  aims {most:.3} and {:.3}", aim.worst);
                    if mean > most || worst > aim.worst {
                        print!(": ABOVE");
                        missed.push(format!("{} with {ahead} ahead", aim.name));
                    }
                }
                println!();
            }
        }
    }
    println!("# {:.0} s", start.elapsed().as_secs_f64());
    if missed.is_empty() {
        println!("# every aim is met");
        return ExitCode::SUCCESS;
    }
    println!("# above its aim: {}", missed.join(", "));
    if flag("check") { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// The requested recorded logs, by name.
fn logs() -> Vec<Log> {
    let folder = option("traces").unwrap_or_else(|| "tests/traces".into());
    let only = option("only");
    let entries = std::fs::read_dir(&folder).unwrap_or_else(|e| panic!("{folder}: {e}; give --traces DIR"));
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.expect("a folder can be read").path()).collect();
    files.retain(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.contains(".csv") && only.as_ref().is_none_or(|o| o.split(',').any(|part| name.contains(part)))
    });
    files.sort();
    assert!(!files.is_empty(), "{folder} has no such .csv or .csv.gz");
    files
        .iter()
        .map(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let name = name.split('.').next().unwrap_or_default();
            let file = File::open(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
            match import::read(name, file, Options::default()) {
                Ok(Trace::Log(log)) => log,
                Ok(Trace::Program(_)) => panic!("{}: a program, no log", path.display()),
                Err(e) => panic!("{}: {e}", path.display()),
            }
        })
        .collect()
}

/// The same calls, all on one stream: dealt over several, they know no other.
fn on_one_stream(log: &Log) -> Log {
    let calls = log.calls.iter().map(|call| {
        let made = match call.action() {
            Action::Alloc => trace::Call::alloc,
            Action::Free => trace::Call::free,
        };
        made(call.block(), call.bytes(), StreamNo(0), call.thread(), call.micros())
    });
    Log::new(&log.name, calls.collect(), vec![0], log.threads.clone())
}

fn replayed(log: &Log, policy: Policy, over: &str, ahead: u64) -> Outcome {
    let streams = (over != "own").then(|| number("streams", over) as u32);
    let workload = Workload::default().streams(streams).threads(1).run_ahead(ahead).paced(!flag("at-once"));
    let sim = Sim::new(CAPACITY).oracle(false).contents(false);
    let config = Config::from_env().expect("the environment's options").policy(policy);
    let outcome = replay_log(log, &workload, sim, config, &|_| ()).expect("a replay");
    assert!(outcome.failure.is_none() && outcome.lost.is_nothing(), "{}: {outcome:?}", log.name);
    outcome
}

/// Prints what came of one replay; taken over live.
fn line(log: &Log, over: &str, ahead: &str, policy: &str, outcome: &Outcome) -> f64 {
    let calls = |call: &Call| outcome.report.driver_calls.get(call.name()).copied().unwrap_or(0);
    let cost: u64 = MEMORY_CALLS.iter().map(|call| calls(call) * price(*call)).sum();
    let count: u64 = MEMORY_CALLS.iter().map(calls).sum();
    let ratio = outcome.reserved_over_requested.expect("something was live");
    let text = format!(
        "{:<21} {:>7} {ahead:>6} {policy:<9} {ratio:>10.3}  {:>9.2} {:>6.2} {count:>7} {:>7} {:>9} {:>7.3}  {}",
        log.name,
        if over == "own" { format!("own {}", outcome.streams) } else { over.to_owned() },
        cost as f64 / 1e3 / (outcome.hits + outcome.misses).max(1) as f64,
        cost as f64 / 1e3 / log.info().micros.max(1) as f64 * 100.0,
        outcome.waits_inserted,
        outcome.host_waits,
        outcome.makespan_ratio.unwrap_or(f64::NAN),
        // They were measured with nothing queued.
        if ahead == "0" { peers(&log.name, over) } else { String::new() },
    );
    println!("{}", text.trim_end());
    ratio
}

fn peers(trace: &str, over: &str) -> String {
    let Some(peers) = PEERS.iter().find(|peers| peers.trace == trace) else { return String::new() };
    match over {
        "own" => {
            let [native, expandable, asynchronous, rmm, cupy] = peers.own;
            format!("native {native} expandable {expandable} async {asynchronous} RMM {rmm} CuPy {cupy}")
        }
        "1" => format!("native {} expandable {}", peers.over_one[0], peers.over_one[1]),
        "4" => format!("native {} expandable {}", peers.over_four[0], peers.over_four[1]),
        _ => String::new(),
    }
}

fn geometric(of: &[f64]) -> f64 {
    (of.iter().map(|ratio| ratio.ln()).sum::<f64>() / of.len() as f64).exp()
}

/// The words behind an option.
fn listed(name: &str, otherwise: &str) -> Vec<String> {
    option(name).unwrap_or_else(|| otherwise.to_owned()).split(',').map(str::to_owned).collect()
}

fn flag(name: &str) -> bool {
    std::env::args().any(|arg| arg.strip_prefix("--") == Some(name))
}

fn number(option: &str, word: &str) -> u64 {
    word.parse().unwrap_or_else(|_| panic!("--{option} {word}: not a number"))
}
