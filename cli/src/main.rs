//! The binary `millpond`: replays, inspects, converts and shrinks traces, and times the bookkeeping.
//!
//! Exit status: 0 when nothing was violated or lost, 1 when something was, 2 for bad input or usage.

mod args;
mod bench;
mod options;
mod output;
mod replay;
mod trace;

use args::{Cli, Command};
use clap::Parser;
use output::{Output, Status};
use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let mut out = Output::new();
    let status = match &cli.command {
        Command::Replay(args) => replay::run(args, &mut out),
        Command::Trace { command } => trace::run(command, &mut out),
        Command::Bench(args) => bench::run(args, &mut out),
    };
    match status.and_then(|s| out.finish().map(|()| s)) {
        Ok(status) => status.code(),
        Err(e) => {
            output::complain(&format!("the output could not be written: {e}"));
            Status::BadInput.code()
        }
    }
}
