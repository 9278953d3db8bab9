//! What copies, their overlap with kernels, launches and waits cost on a GPU: ours beside plain CUDA and cudarc, in one run
//! (rows S2, S3, S7, S13, T9, P1 and P3 of tests/architecture/requirements.rs).
//!
//! `gpu_transfers [quick|tiny] [PART...]` prints tab-separated tables, a heading each, then every aim with its figure, and
//! PASS or FAIL. Parts: `rates`, `three_ways`, `overlap`, `launches`, `waits`, `pageable`, `staged`, `many_small`, `staged_sizes`; all of them if none is named. `quick`
//! repeats less, `tiny` is for a machine whose speed means nothing: small arrays, every line run once or twice.
//!
//! | file | what it measures |
//! |---|---|
//! | `rates` | copies from and to pinned memory, back to back; pageable memory |
//! | `staged` | copies of pageable memory of every size, both ways, by several numbers of threads, and in other pieces |
//! | `overlap` | which programs run copies beside kernels, and how much of the shorter leg is hidden |
//! | `three_ways` | a copy each way and kernels at once |
//! | `launches` | what a launch costs the host |
//! | `waits` | how long the host takes to see that a copy is done |
//! | `bench` | clocks, plain memory, medians, aims |
//!
//! Ends with 0, with 3 if an aim was missed, with 2 without a GPU, with 1 if something failed. It takes at most 4 GiB of
//! the device and 5 GiB of pinned memory. Contestants take turns in every round, and a ratio is the median of the rounds'.

mod bench;
#[path = "../common.rs"]
mod common;
mod launches;
mod overlap;
mod rates;
mod staged;
mod three_ways;
mod waits;

use bench::{Aims, Bench, Fallible, Size};
use common::on_the_gpu;
use millpond::cuda::Cuda;
use std::process::ExitCode;

type Part = fn(&Bench, &mut Aims) -> Fallible<()>;

/// In the order of their worth, should the time be over before the last.
const PARTS: &[(&str, Part)] = &[
    ("rates", rates::pinned),
    ("three_ways", three_ways::at_once),
    ("overlap", overlap::programs),
    ("launches", launches::cost),
    ("waits", waits::latency),
    ("pageable", rates::pageable),
    ("staged", staged::all_sizes),
    ("many_small", staged::many_small),
    ("staged_sizes", staged::sizes_of_pieces),
];

fn run(cuda: &Cuda, arguments: &[String]) -> Fallible<bool> {
    let size = match () {
        () if arguments.iter().any(|a| a == "tiny") => Size::Tiny,
        () if arguments.iter().any(|a| a == "quick") => Size::Quick,
        () => Size::Full,
    };
    let wanted = |name: &str| arguments.iter().any(|a| a == name);
    let all = !PARTS.iter().any(|(name, _)| wanted(name));
    let bench = Bench::new(cuda, size)?;
    let mut aims = Aims::default();
    for (name, part) in PARTS.iter().filter(|(name, _)| all || wanted(name)) {
        part(&bench, &mut aims).map_err(|e| format!("{name}: {e}"))?;
        println!();
    }
    Ok(aims.judge())
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let known =
        |a: &String| ["quick", "tiny"].contains(&a.as_str()) || PARTS.iter().any(|(name, _)| name == a);
    if let Some(stray) = arguments.iter().find(|a| !known(a)) {
        eprintln!("gpu_transfers [quick|tiny] [PART...]: what is {stray:?}?");
        return ExitCode::FAILURE;
    }
    on_the_gpu(|cuda| run(cuda, &arguments))
}
