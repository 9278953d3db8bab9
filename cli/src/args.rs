//! The command line, as clap reads it. It holds texts and values; their meaning is documented where they act.

use crate::options::{Setup, parse_bytes, parse_share};
use clap::{ArgAction, Args, Parser, Subcommand, ValueEnum};
use millpond::Config;
use millpond_replay::Workload;
use std::fmt;
use std::path::PathBuf;

/// Replays recorded GPU allocations through millpond, and judges the order of things.
#[derive(Parser, Debug)]
#[command(name = "millpond", version, propagate_version = true, max_term_width = 110)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Subcommand, Debug)]
#[allow(clippy::doc_markdown, reason = "the comments are the help text, where backticks would show")]
pub(crate) enum Command {
    /// Run traces through the whole allocator, by default on the simulated device under the ordering oracle
    ///
    /// Exit status: 0 if nothing was violated, mismatched or lost and no request failed; 1 if something was; 2 for bad
    /// input. MILLPOND_LIMIT, MILLPOND_POLICY, MILLPOND_REUSE, MILLPOND_GROWTH, MILLPOND_VIRTUAL and MILLPOND_DETERMINISTIC are read
    /// first; the options go above them.
    Replay(Box<ReplayArgs>),
    /// Look at traces, convert them, make failing ones small
    Trace {
        #[command(subcommand)]
        command: TraceCommand,
    },
    /// Time the bookkeeping on the null device: wall time of this machine, not to be compared with another's
    Bench(BenchArgs),
}

/// The device to run on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Device {
    /// The simulated device: contents, streams, virtual time.
    Sim,
    /// Addresses only: what the bookkeeping costs.
    Null,
    /// An NVIDIA GPU, by its ordinal.
    Cuda(u32),
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Device::Sim => f.write_str("sim"),
            Device::Null => f.write_str("null"),
            Device::Cuda(n) => write!(f, "cuda:{n}"),
        }
    }
}

fn device(text: &str) -> Result<Device, String> {
    match text {
        "sim" => Ok(Device::Sim),
        "null" => Ok(Device::Null),
        "cuda" => Ok(Device::Cuda(0)),
        _ => text
            .strip_prefix("cuda:")
            .and_then(|n| n.parse().ok())
            .map(Device::Cuda)
            .ok_or_else(|| "expected sim, null, or cuda:N for the N-th GPU from 0".into()),
    }
}

/// On or off.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Switch {
    /// Yes
    On,
    /// No
    Off,
}

/// When the simulated device runs what was queued.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum When {
    /// As soon as it may
    Earliest,
    /// Only when the host waits for it
    Latest,
    /// By a coin drawn from --seed
    Random,
}

#[derive(Args, Debug)]
#[allow(clippy::doc_markdown, reason = "the comments are the help text, where backticks would show")]
#[allow(clippy::struct_excessive_bools, reason = "flags of a command line, each by itself")]
pub(crate) struct ReplayArgs {
    /// RMM CSV logs (.gz too), PyTorch memory snapshots as JSON, JSON lines of a recorder or of CuPy's printing hook, programs as text or
    /// binary; recognised by their content
    #[arg(required = true, value_name = "TRACE")]
    pub(crate) traces: Vec<PathBuf>,
    /// The device: sim (simulated, with contents and virtual time), null (addresses only) or cuda:N (a GPU, whose blocks
    /// our own kernels write and check)
    #[arg(long, value_name = "sim|null|cuda:N", default_value = "sim", value_parser = device)]
    pub(crate) device: Device,
    /// Whether the oracle and the contents judge (simulated device)
    #[arg(long, value_enum, default_value = "on")]
    pub(crate) check: Switch,
    #[command(flatten)]
    pub(crate) workload: WorkloadArgs,
    /// The device work of a call becomes due N calls later (simulated device)
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) run_ahead: u64,
    #[command(flatten)]
    pub(crate) setup: SetupArgs,
    /// Run each trace K times on one allocator; the repeats after the first are timed
    #[arg(long, value_name = "K", default_value_t = 1)]
    pub(crate) repeat: u32,
    /// The trace's stream 0 is the legacy default stream instead of a stream like the others
    #[arg(long)]
    pub(crate) legacy: bool,
    /// Let the host threads run freely instead of taking turns in the order of the trace
    #[arg(long)]
    pub(crate) racy: bool,
    /// Plant a bug of docs/mutants.md, such as z16: the report must name it
    #[cfg(millpond_mutants)]
    #[arg(long, value_name = "BUG")]
    pub(crate) plant: Option<millpond::mutant::Bug>,
    /// Show which ranges of each segment and window are live, free, in flight or a hole: of a log when most is live, of a program at its end
    #[arg(long, conflicts_with = "racy")]
    pub(crate) map: bool,
    /// One JSON object a line for each trace instead of text
    #[arg(long)]
    pub(crate) json: bool,
}

/// How a log of allocations and frees becomes work on streams and host threads.
#[derive(Args, Debug)]
pub(crate) struct WorkloadArgs {
    /// Spread the blocks over N streams, in runs; the trace's own streams stay apart [default: the trace's]
    #[arg(long, value_name = "N")]
    pub(crate) streams: Option<u32>,
    /// Spread the calls over T host threads, in runs [default: the trace's]
    #[arg(long, value_name = "T")]
    pub(crate) threads: Option<u32>,
    /// The share of blocks that are used on another stream too, such as 10% or 0.1
    #[arg(long, value_name = "P", default_value = "0", value_parser = parse_share)]
    pub(crate) uses: f64,
    /// The share of those uses in which a wait or a record is left out: the oracle must blame the program
    #[arg(long = "break", value_name = "P", default_value = "0", value_parser = parse_share)]
    pub(crate) broken: f64,
    /// What these choices, and the random schedule of a replay, are drawn from [default: 0]
    #[arg(long, value_name = "S")]
    pub(crate) seed: Option<u64>,
}

impl WorkloadArgs {
    /// One pass, whose threads take turns.
    pub(crate) fn workload(&self) -> Workload {
        Workload::default()
            .streams(self.streams)
            .threads(self.threads)
            .uses(self.uses)
            .seed(self.seed.unwrap_or_default())
            .broken(self.broken)
    }

    /// An option that a program leaves nothing to choose by, if one was given.
    pub(crate) fn given(&self) -> Option<&'static str> {
        let given = [
            ("--streams", self.streams.is_some()),
            ("--threads", self.threads.is_some()),
            ("--uses", self.uses > 0.0),
            ("--break", self.broken > 0.0),
        ];
        given.iter().find(|(_, given)| *given).map(|(option, _)| *option)
    }
}

/// What there is to say where such an option meets a program.
pub(crate) fn for_logs(option: &str) -> String {
    format!(
        "{option} is for logs of allocations and frees; this is a program, which says every operation itself"
    )
}

/// The device's memory and schedule, and the allocator's options.
#[derive(Args, Debug)]
pub(crate) struct SetupArgs {
    /// When the simulated device runs what was queued
    #[arg(long, value_enum, default_value = "earliest")]
    pub(crate) schedule: When,
    /// The device's memory, such as 80GiB
    #[arg(long, value_name = "SIZE", default_value = "144GiB", value_parser = parse_bytes)]
    pub(crate) capacity: u64,
    /// How much of it may be reserved, such as 6GiB, 40% or none
    #[arg(long, value_name = "SIZE|P%", value_parser = text_of("MILLPOND_LIMIT"))]
    pub(crate) limit: Option<String>,
    /// What a miss tries first: growing (latency) or other pools' memory (footprint)
    #[arg(long, value_name = "latency|footprint", value_parser = text_of("MILLPOND_POLICY"))]
    pub(crate) policy: Option<String>,
    /// Whether one stream's freed memory serves another: never, only if ordered already, or also behind a wait
    #[arg(long, value_name = "never|ordered|known|waits", value_parser = text_of("MILLPOND_REUSE"))]
    pub(crate) reuse: Option<String>,
    /// How much is reserved from the device at once: rounded segments, or exactly the request
    #[arg(long, value_name = "rounded|exact", value_parser = text_of("MILLPOND_GROWTH"))]
    pub(crate) growth: Option<String>,
    /// Whether pools take the device's virtual memory: never, where the device has it, or always
    #[arg(long = "virtual", value_name = "never|auto|always", value_parser = text_of("MILLPOND_VIRTUAL"))]
    pub(crate) virtual_memory: Option<String>,
    /// No reuse that depends on when the device happened to finish
    #[arg(long, action = ArgAction::SetTrue)]
    pub(crate) deterministic: bool,
}

/// Takes what the variable may hold, and refuses else.
fn text_of(name: &'static str) -> impl Fn(&str) -> Result<String, String> + Clone + Send + Sync + 'static {
    move |text| {
        let variable = Config::VARIABLES.iter().find(|v| v.name() == name).ok_or("no such variable")?;
        let fits = variable.set(&mut Config::default(), text.trim());
        fits.map(|()| text.to_owned()).map_err(|_| format!("expected {}", variable.values()))
    }
}

impl SetupArgs {
    pub(crate) fn setup(&self, check: bool, seed: u64) -> Setup {
        Setup {
            schedule: self.schedule,
            capacity: self.capacity,
            given: [
                ("MILLPOND_LIMIT", self.limit.clone()),
                ("MILLPOND_POLICY", self.policy.clone()),
                ("MILLPOND_REUSE", self.reuse.clone()),
                ("MILLPOND_GROWTH", self.growth.clone()),
                ("MILLPOND_VIRTUAL", self.virtual_memory.clone()),
                ("MILLPOND_DETERMINISTIC", self.deterministic.then(|| "1".to_owned())),
            ],
            check,
            seed,
        }
    }
}

#[derive(Subcommand, Debug)]
pub(crate) enum TraceCommand {
    /// What traces amount to, in a table
    Info {
        /// Traces of any kind
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
        /// One JSON object a line for each file instead of a table
        #[arg(long)]
        json: bool,
    },
    /// Write a trace in another form
    ///
    /// A log becomes a program of allocations and frees; with an option of how it is spread, the program that `replay` runs with that option,
    /// every use, wait and free of it. A program becomes a log without its other steps.
    Convert {
        /// A trace of any kind
        #[arg(value_name = "IN")]
        from: PathBuf,
        /// Where to; `-` is the standard output
        #[arg(value_name = "OUT")]
        to: PathBuf,
        /// The form [default: by OUT's ending: .trace or .txt, .bin, .csv]
        #[arg(long = "to", value_name = "FORM", value_enum)]
        form: Option<Form>,
        #[command(flatten)]
        workload: WorkloadArgs,
    },
    /// Make a program that fails on the simulated device small, while it keeps failing in the same way
    Shrink {
        /// A program, as text or binary
        #[arg(value_name = "PROGRAM")]
        program: PathBuf,
        /// Where to [default: the standard output]
        #[arg(short, long, value_name = "OUT")]
        output: Option<PathBuf>,
        /// What a random schedule is drawn from
        #[arg(long, value_name = "S", default_value_t = 0)]
        seed: u64,
        /// Device work becomes due N `tick` steps later
        #[arg(long, value_name = "N", default_value_t = 0)]
        run_ahead: u64,
        #[command(flatten)]
        setup: SetupArgs,
    },
}

/// A form of trace files.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Form {
    /// A program as text, one step a line
    Text,
    /// A program as bytes
    Binary,
    /// A log in RMM's columns
    Csv,
}

#[derive(Args, Debug)]
pub(crate) struct BenchArgs {
    /// Logs to replay warm, beside the two loops that need none
    #[arg(value_name = "TRACE")]
    pub(crate) traces: Vec<PathBuf>,
    /// Passes over each trace; the first is not timed
    #[arg(long, value_name = "K", default_value_t = 5, value_parser = clap::value_parser!(u32).range(2..))]
    pub(crate) repeat: u32,
    /// Calls of each loop
    #[arg(long, value_name = "N", default_value_t = 4_000_000, value_parser = clap::value_parser!(u64).range(1000..))]
    pub(crate) calls: u64,
}
