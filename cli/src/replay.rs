//! `millpond replay`: runs traces and shows what came of them.

use crate::args::{Device, ReplayArgs, Switch, for_logs};
use crate::options::Setup;
use crate::output::{self, Output, Status, complain, grouped, progress};
use millpond::report::bytes;
use millpond::trace::{Log, Program};
use millpond_replay::import::Trace;
use millpond_replay::{
    Outcome, ReplayError, Touch, Workload, replay_log, replay_program, replay_program_with_map,
};
use millpond_sim::null::Null;
use std::io::{self, Write};
use std::path::Path;

/// Runs each trace; the worst status of all.
pub(crate) fn run(args: &ReplayArgs, out: &mut Output) -> io::Result<Status> {
    #[cfg(millpond_mutants)]
    if args.plant.is_some() {
        millpond::mutant::plant_everywhere(args.plant);
    }
    let mut worst = Status::Clean;
    for (k, path) in args.traces.iter().enumerate() {
        if k > 0 && !args.json {
            writeln!(out)?;
        }
        let status = match one(args, path) {
            Ok((outcome, of_a)) => {
                if args.json {
                    writeln!(out, "{}", json(args, &outcome))?;
                } else {
                    show(args, &outcome, of_a, out)?;
                }
                let served = outcome.refused == 0;
                if outcome.is_clean() && served { Status::Clean } else { Status::Failed }
            }
            Err((status, what)) => {
                complain(&what);
                status
            }
        };
        out.flush()?;
        worst = worst.max(status);
    }
    Ok(worst)
}

/// What was replayed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Log,
    Program,
}

/// What went wrong, and how bad that is.
type Trouble = (Status, String);

fn one(args: &ReplayArgs, path: &Path) -> Result<(Outcome, Kind), Trouble> {
    let bad = |what: String| (Status::BadInput, what);
    let setup = args.setup.setup(args.check == Switch::On, args.workload.seed.unwrap_or_default());
    // What is wrong with the environment and a device that is not there show before a long import.
    setup.config().map_err(|e| bad(e.to_string()))?;
    let gpu = match args.device {
        Device::Cuda(n) if args.run_ahead == 0 => Some(setup.cuda(n).map_err(|e| bad(e.to_string()))?),
        Device::Cuda(_) => {
            return Err(bad("--run-ahead holds the simulated device back; a GPU runs by itself".into()));
        }
        Device::Sim | Device::Null => None,
    };
    let trace = output::open(path).map_err(|e| bad(e.to_string()))?;
    let outcome = match (&trace, gpu) {
        (Trace::Log(log), Some(gpu)) => of_log(args, log, gpu, &setup),
        (Trace::Log(log), None) if args.device == Device::Sim => of_log(args, log, setup.sim(), &setup),
        (Trace::Log(log), None) => of_log(args, log, setup.null(), &setup),
        (Trace::Program(program), gpu) => {
            refuse_workload(args).map_err(|e| bad(format!("{}: {e}", path.display())))?;
            match gpu {
                Some(gpu) => of_program(args, program, gpu, &setup),
                None if args.device == Device::Sim => of_program(args, program, setup.sim(), &setup),
                None => of_program(args, program, setup.null(), &setup),
            }
        }
    };
    let kind = if matches!(trace, Trace::Log(_)) { Kind::Log } else { Kind::Program };
    outcome.map(|o| (o, kind)).map_err(|e| {
        let status = if matches!(e, ReplayError::Workload { .. } | ReplayError::Fault(_)) {
            Status::BadInput
        } else {
            Status::Failed
        };
        (status, format!("{}: {e}", path.display()))
    })
}

fn of_log<D: Touch>(args: &ReplayArgs, log: &Log, driver: D, setup: &Setup) -> Result<Outcome, ReplayError> {
    let workload = args
        .workload
        .workload()
        .run_ahead(args.run_ahead)
        .legacy(args.legacy)
        .racy(args.racy)
        .repeat(args.repeat)
        .map(args.map);
    let bar = progress(&log.name, log.calls.len() as u64 * u64::from(args.repeat));
    let config = setup.config().map_err(ReplayError::Setup)?;
    let outcome = replay_log(log, &workload, driver, config, &|done| bar.set_position(done));
    bar.finish_and_clear();
    outcome
}

fn of_program<D: Touch>(
    args: &ReplayArgs,
    program: &Program,
    driver: D,
    setup: &Setup,
) -> Result<Outcome, ReplayError> {
    let config = setup.config().map_err(ReplayError::Setup)?;
    let run = if args.map { replay_program_with_map } else { replay_program };
    run(program, driver, config, args.run_ahead)
}

/// A program says its streams, threads and uses itself.
fn refuse_workload(args: &ReplayArgs) -> Result<(), String> {
    let given = [("--repeat", args.repeat != 1), ("--legacy", args.legacy), ("--racy", args.racy)];
    let given = given.iter().find(|(_, given)| *given).map(|(option, _)| *option);
    args.workload.given().or(given).map_or(Ok(()), |option| Err(for_logs(option)))
}

fn json(args: &ReplayArgs, outcome: &Outcome) -> serde_json::Value {
    let mut v = outcome.to_value();
    v["device"] = args.device.to_string().into();
    v["checked"] = is_judged(args).into();
    v
}

fn is_judged(args: &ReplayArgs) -> bool {
    args.device == Device::Sim && args.check == Switch::On
}

/// What there is to say about order where no oracle judged it.
fn unjudged(device: Device, o: &Outcome) -> String {
    match device {
        Device::Sim => "not judged (oracle off)".into(),
        Device::Null => "not judged (null device)".into(),
        Device::Cuda(_) if o.accesses_checked == 0 => "not judged (checks off)".into(),
        Device::Cuda(_) => format!(
            "by contents, {} in {} (our kernels on the GPU)",
            counted(o.mismatches, "mismatch", "mismatches"),
            counted(o.accesses_checked, "check", "checks")
        ),
    }
}

fn counted(n: u64, one: &str, many: &str) -> String {
    format!("{} {}", grouped(n), if n == 1 { one } else { many })
}

fn show(args: &ReplayArgs, o: &Outcome, kind: Kind, out: &mut Output) -> io::Result<()> {
    let calls = match kind {
        Kind::Log => counted(o.calls, "call", "calls"),
        Kind::Program => counted(o.calls, "step", "steps"),
    };
    let streams = counted(o.streams, "stream", "streams");
    let threads = if o.threads > 1 { format!(" and {} threads", o.threads) } else { String::new() };
    let ordering = if is_judged(args) {
        format!(
            "ordering: {} in {} (oracle on)",
            counted(o.violations, "violation", "violations"),
            counted(o.accesses_checked, "access", "accesses")
        )
    } else {
        format!("ordering: {}", unjudged(args.device, o))
    };
    // A name out of a file must not write to the terminal.
    let name: String = o.trace.chars().filter(|c| !c.is_control()).collect();
    writeln!(out, "{name}   {calls} over {streams}{threads}   {ordering}")?;
    let ratio = o.reserved_over_requested.map_or("-".to_owned(), |r| format!("{r:.3}"));
    writeln!(
        out,
        "requested   peak {}   reserved {} at the peak   ratio {ratio}   {}",
        bytes(o.peak_requested_bytes),
        bytes(o.peak_reserved_bytes),
        counted(o.cross_stream_uses, "use on another stream", "uses on other streams"),
    )?;
    if o.peak_pinned_bytes > 0 {
        writeln!(out, "pinned      peak {} requested of the host's memory", bytes(o.peak_pinned_bytes))?;
    }
    if let (Some(ns), Some(ratio)) = (o.makespan_ns, o.makespan_ratio) {
        let ms = ns as f64 / 1e6;
        writeln!(
            out,
            "time        {ms:.3} ms on the device's clock, {ratio:.3} times that of fresh memory for every block   {} waits beyond need, {} host waits",
            o.waits_beyond_need, o.host_waits
        )?;
    }
    if let Some(ns) = o.warm_ns_per_call {
        let touched = match args.device {
            Device::Null => "",
            Device::Sim => ", the device's simulation included",
            Device::Cuda(_) if args.check == Switch::On => ", launches of our kernels included",
            Device::Cuda(_) => ", the program's own events and waits included",
        };
        writeln!(out, "warm        {ns:.1} ns a call{touched} (wall time on this machine)")?;
    }
    if o.refused > 0 {
        writeln!(out, "refused     {}", counted(o.refused, "request", "requests"))?;
    }
    write!(out, "{}", o.report)?;
    if let Some(map) = &o.map {
        write!(out, "{map}")?;
    }
    if let Some(failure) = &o.failure {
        writeln!(out, "FAILED      {failure}")?;
    }
    if !o.lost.is_nothing() {
        write!(out, "LOST        {}", o.lost)?;
    }
    if !o.verdict.is_empty() {
        writeln!(out, "VIOLATED    {}", o.verdict.trim_end())?;
    }
    Ok(())
}

/// A warm replay on the null device, for `bench`.
pub(crate) fn warm(log: &Log, repeat: u32) -> Result<Outcome, ReplayError> {
    let workload = Workload::default().repeat(repeat);
    replay_log(log, &workload, Null::default(), millpond::Config::default(), &|_| {})
}
