//! `millpond trace`: what traces amount to, other forms of them, and failing programs made small.

use crate::args::{Form, TraceCommand, WorkloadArgs, for_logs};
use crate::options::Setup;
use crate::output::{self, Output, Status, complain, grouped};
use comfy_table::{CellAlignment, Table, presets};
use millpond::report::bytes;
use millpond::trace::{Info, Log, Program};
use millpond_replay::ReplayError;
use millpond_replay::import::Trace;
use millpond_replay::replay_program;
use millpond_replay::shrink;
use millpond_sim::{Sim, oracle::Blame};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::path::{Path, PathBuf};

pub(crate) fn run(command: &TraceCommand, out: &mut Output) -> io::Result<Status> {
    match command {
        TraceCommand::Info { files, json } => info(files, *json, out),
        TraceCommand::Convert { from, to, form, workload } => convert(from, to, *form, workload, out),
        TraceCommand::Shrink { program, output, seed, run_ahead, setup } => {
            make_small(program, output.as_deref(), *run_ahead, &setup.setup(true, *seed), out)
        }
    }
}

fn open(path: &Path) -> Option<Trace> {
    match output::open(path) {
        Ok(trace) => Some(trace),
        Err(e) => {
            complain(&e.to_string());
            None
        }
    }
}

const HEADER: [&str; 11] = [
    "trace",
    "kind",
    "calls",
    "allocations",
    "streams",
    "threads",
    "bytes",
    "largest",
    "peak live",
    "alive at end",
    "span",
];

fn info(files: &[PathBuf], json: bool, out: &mut Output) -> io::Result<Status> {
    let mut status = Status::Clean;
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_header(HEADER);
    for column in table.column_iter_mut().skip(2) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    let mut notes = Vec::new();
    for path in files {
        let Some(trace) = open(path) else {
            status = Status::BadInput;
            continue;
        };
        let (kind, info, steps) = match &trace {
            Trace::Log(log) => ("log", log.info(), log.calls.len()),
            // A program that was read is well-formed.
            Trace::Program(p) => {
                let (log, _) = Log::from_program(p).unwrap_or_default();
                ("program", log.info(), p.steps.len())
            }
        };
        if json {
            let mut v = serde_json::to_value(&info).map_err(io::Error::other)?;
            v["kind"] = kind.into();
            v["steps"] = steps.into();
            writeln!(out, "{v}")?;
        }
        if kind == "program" {
            notes.push(format!(
                "{}: {} steps, of which the table counts allocations and frees",
                info.name,
                grouped(steps as u64)
            ));
        }
        if info.skipped > 0 {
            notes.push(format!("{}: {} entries were left out", info.name, grouped(info.skipped)));
        }
        table.add_row(cells(kind, &info));
    }
    if !json && table.row_count() > 0 {
        for line in table.lines() {
            writeln!(out, "{}", line.trim())?;
        }
        for note in notes {
            writeln!(out, "{note}")?;
        }
    }
    Ok(status)
}

fn cells(kind: &str, info: &Info) -> Vec<String> {
    vec![
        info.name.chars().filter(|c| !c.is_control()).collect(),
        kind.into(),
        grouped(info.calls),
        grouped(info.allocations),
        grouped(info.streams),
        grouped(info.threads),
        bytes(info.bytes),
        bytes(info.largest),
        bytes(info.peak_live),
        bytes(info.live_at_end),
        if kind == "program" { "-".into() } else { format!("{:.1} s", info.micros as f64 / 1e6) },
    ]
}

fn form_of(path: &Path) -> Option<Form> {
    match path.extension()?.to_str()? {
        "trace" | "txt" => Some(Form::Text),
        "bin" => Some(Form::Binary),
        "csv" => Some(Form::Csv),
        _ => None,
    }
}

fn convert(
    from: &Path,
    to: &Path,
    form: Option<Form>,
    workload: &WorkloadArgs,
    out: &mut Output,
) -> io::Result<Status> {
    let Some(form) = form.or_else(|| form_of(to)) else {
        complain(&format!(
            "{}: the ending says no form; end it in .trace, .txt, .bin or .csv, or say --to text, binary or csv",
            to.display()
        ));
        return Ok(Status::BadInput);
    };
    let Some(trace) = open(from) else { return Ok(Status::BadInput) };
    let bytes = match spread(trace, workload).and_then(|trace| encode(&trace, form)) {
        Ok(bytes) => bytes,
        Err(e) => {
            complain(&format!("{}: {e}", from.display()));
            return Ok(Status::BadInput);
        }
    };
    save(to, &bytes, out)
}

/// A log as the program that `replay` runs with these options, if one is given.
fn spread(trace: Trace, workload: &WorkloadArgs) -> Result<Trace, String> {
    match (workload.given(), trace) {
        (None, _) if workload.seed.is_some() => {
            Err("--seed is what the choices of --streams, --threads, --uses and --break are drawn from, and none of these is given".into())
        }
        (None, trace) => Ok(trace),
        (Some(option), Trace::Program(_)) => Err(for_logs(option)),
        (Some(_), Trace::Log(log)) => {
            workload.workload().program(&log).map(Trace::Program).map_err(|e| e.to_string())
        }
    }
}

fn encode(trace: &Trace, form: Form) -> Result<Vec<u8>, String> {
    let made;
    let program = match trace {
        Trace::Program(program) => program,
        Trace::Log(log) if form == Form::Csv => return csv(log),
        Trace::Log(log) => {
            made = log.to_program();
            &made
        }
    };
    match form {
        Form::Text => Ok(program.to_string().into_bytes()),
        Form::Binary => Ok(program.to_binary()),
        Form::Csv => {
            let (log, left_out) = Log::from_program(program).map_err(|e| e.to_string())?;
            if left_out > 0 {
                complain(&format!(
                    "{} steps are no allocation or free of device memory and were left out",
                    grouped(left_out as u64)
                ));
            }
            csv(&log)
        }
    }
}

fn csv(log: &Log) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    log.write_rmm(&mut bytes).map_err(|e| e.to_string())?;
    Ok(bytes)
}

/// Writes a file, or the standard output for `-`.
fn save(to: &Path, bytes: &[u8], out: &mut Output) -> io::Result<Status> {
    if to == Path::new("-") {
        out.write_all(bytes)?;
        return Ok(Status::Clean);
    }
    let written = File::create(to).and_then(|file| {
        let mut file = BufWriter::new(file);
        file.write_all(bytes)?;
        file.flush()
    });
    match written {
        Ok(()) => Ok(Status::Clean),
        Err(e) => {
            complain(&format!("{}: cannot be written: {e}", to.display()));
            Ok(Status::BadInput)
        }
    }
}

/// How a program fails: two runs that give the same are the same failure to a person.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Symptom {
    /// The first violation: whose fault, which property, which fault.
    Violation(String),
    Mismatch,
    Lost,
    /// A request was refused, and nothing else.
    Refused,
    /// An error, by its words up to the first number.
    Error(String),
    /// A panic, by its words up to the first number.
    Panic(String),
}

fn up_to_number(text: &str) -> String {
    text.chars().take_while(|c| !c.is_ascii_digit()).collect()
}

/// Runs a program on a fresh device; how it failed, if it did.
///
/// # Errors
/// It cannot be run as it is.
fn symptom(program: &Program, setup: &Setup, run_ahead: u64) -> Result<Option<Symptom>, ReplayError> {
    let sim = setup.sim();
    let eyes: Sim = sim.clone();
    let config = setup.config().unwrap_or_default();
    let ran = catch_unwind(AssertUnwindSafe(|| replay_program(program, sim, config, run_ahead)));
    let outcome = match ran {
        Err(panic) => {
            let words = panic.downcast_ref::<String>().map(String::as_str);
            let words = words.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("");
            return Ok(Some(Symptom::Panic(up_to_number(words))));
        }
        Ok(Err(e @ ReplayError::Workload { .. })) => return Err(e),
        Ok(Err(e)) => {
            let e = std::error::Error::source(&e).map_or_else(|| e.to_string(), ToString::to_string);
            return Ok(Some(Symptom::Error(up_to_number(&e))));
        }
        Ok(Ok(outcome)) => outcome,
    };
    let violations = eyes.violations();
    // The allocator's are what one looks for first.
    let first = violations.iter().find(|v| v.blame == Blame::Allocator).or(violations.first());
    if let Some(v) = first {
        return Ok(Some(Symptom::Violation(format!("{:?}, {:?}, {:?}", v.blame, v.property, v.fault))));
    }
    if outcome.mismatches > 0 {
        return Ok(Some(Symptom::Mismatch));
    }
    if !outcome.lost.is_nothing() {
        return Ok(Some(Symptom::Lost));
    }
    Ok((outcome.refused > 0).then_some(Symptom::Refused))
}

fn make_small(
    path: &Path,
    output: Option<&Path>,
    run_ahead: u64,
    setup: &Setup,
    out: &mut Output,
) -> io::Result<Status> {
    if let Err(e) = setup.config() {
        complain(&e.to_string());
        return Ok(Status::BadInput);
    }
    let program = match open(path) {
        Some(Trace::Program(program)) => program,
        Some(Trace::Log(_)) => {
            complain(&format!(
                "{}: a log of allocations and frees; convert it to a program first",
                path.display()
            ));
            return Ok(Status::BadInput);
        }
        None => return Ok(Status::BadInput),
    };
    // A panic is a finding here, thousands of times over: its words are shown once, at the end.
    let hook = take_hook();
    set_hook(Box::new(|_| {}));
    let found = symptom(&program, setup, run_ahead);
    let small = found.as_ref().ok().and_then(Option::as_ref).map(|found| {
        let fails = |p: &Program| symptom(p, setup, run_ahead).is_ok_and(|s| s.as_ref() == Some(found));
        shrink(&program, fails)
    });
    set_hook(hook);
    let found = match found {
        Ok(found) => found,
        Err(e) => {
            complain(&format!("{}: {e}", path.display()));
            return Ok(Status::BadInput);
        }
    };
    let (Some(found), Some(small)) = (found, small) else {
        complain(&format!(
            "{}: does not fail on the simulated device under this schedule; try --schedule latest or random",
            path.display()
        ));
        return Ok(Status::BadInput);
    };
    complain(&format!(
        "{} steps became {}; it fails by {found:?}",
        grouped(program.steps.len() as u64),
        grouped(small.steps.len() as u64)
    ));
    let to = output.unwrap_or(Path::new("-"));
    let binary = form_of(to) == Some(Form::Binary);
    let bytes = if binary { small.to_binary() } else { small.to_string().into_bytes() };
    save(to, &bytes, out)
}
