//! What the checks in `.ci` have to judge, as commands: `cargo run -p xtask -- --help`. The scripts build and run; what comes of that is read
//! here, where it can be tested.
//!
//! It knows file formats of tools and the lists that explain them, nothing of the library.

mod archives;
mod budgets;
mod coverage;
mod executables;
mod features;
mod lines;
mod mutants;
mod names;
#[allow(dead_code, reason = "shared with tests/architecture, which uses the rest")]
#[path = "../../tests/architecture/sources/rust.rs"]
mod rust;
mod values;

use clap::{Parser, Subcommand};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[derive(Parser)]
#[command(about)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// The features of a package, one a line, `default` left out.
    Features {
        /// Its Cargo.toml.
        #[arg(default_value = "Cargo.toml")]
        manifest: PathBuf,
    },
    /// Lines that no test runs, against those that a list explains.
    Coverage {
        /// Reports in lcov's format. A line that one of them has run is run.
        #[arg(required = true)]
        reports: Vec<PathBuf>,
        /// The list: `# why`, and below it `file: text`, a line for each line.
        #[arg(long)]
        explained: PathBuf,
        /// Prints what is not run, with line numbers, and judges nothing.
        #[arg(long)]
        list: bool,
    },
    /// The archives that `cargo package` has made: one of each package, with its licences and README, of at most 1 MiB. Runs tar.
    Archives {
        /// Cargo's folder of them, `target/package`.
        folder: PathBuf,
        /// The packages.
        #[arg(required = true)]
        packages: Vec<String>,
    },
    /// Instruction counts of a bench against their budgets: at most 2 % above, at most 5 % below.
    Budgets {
        /// The budgets: `"name" = instructions`.
        budgets: PathBuf,
        /// What the bench printed.
        printed: PathBuf,
    },
    /// Instruction counts beside few and many streams: with four times the streams a step takes at most half as many again.
    Growth {
        /// What the bench printed.
        printed: PathBuf,
        /// How many programs it must have counted.
        #[arg(long)]
        programs: usize,
    },
    /// Where the executables of these targets are, a line each in the order of the names.
    Executables {
        /// What cargo wrote with `--message-format=json`.
        messages: PathBuf,
        /// Names of targets.
        #[arg(required = true)]
        names: Vec<String>,
    },
    /// Whether each of these names, by which tests are chosen or left out, is part of a test's.
    Names {
        /// What test programs printed: with `-- --list`, or as they ran. Or folders with the tests' sources.
        #[arg(long = "in", required = true)]
        places: Vec<PathBuf>,
        /// The names.
        #[arg(required = true)]
        names: Vec<String>,
    },
    /// The text at a path of keys in a TOML file.
    Value {
        /// The file.
        file: PathBuf,
        /// The keys, `workspace.package.rust-version`.
        path: String,
    },
    /// The version of a package in Cargo.lock.
    Locked {
        /// The package.
        package: String,
    },
    /// Lines of code, neither blank nor comment nor test, of each package and of each of its rooms.
    Lines {
        /// Where sources are.
        #[arg(default_values = ["src", "core/src", "driver/src", "cuda/src", "sim/src", "trace/src", "replay/src", "feed/src", "cli/src", "plug/src", "xtask/src"])]
        folders: Vec<PathBuf>,
    },
    /// docs/mutants.md against the descriptions of planted bugs in driver/src/mutant.rs.
    Mutants {
        /// Writes the tables anew, instead of judging them.
        #[arg(long)]
        write: bool,
        /// What `.ci/mutants` printed: what was measured of the allocator's own bugs is taken from there.
        #[arg(long)]
        printed: Option<PathBuf>,
    },
}

/// What a command has to say, and whether that is good.
struct Verdict {
    text: String,
    is_good: bool,
}

fn read(path: impl AsRef<Path>) -> Result<String, String> {
    let path = path.as_ref();
    std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))
}

fn run(command: Command) -> Result<Verdict, String> {
    match command {
        Command::Features { manifest } => {
            let text = features::of(&read(&manifest)?)?.join("\n") + "\n";
            Ok(Verdict { text, is_good: true })
        }
        Command::Coverage { reports, explained, list } => {
            let reports = reports.iter().map(read).collect::<Result<Vec<_>, _>>()?;
            let source = |file: &str| read(file);
            let root = std::env::current_dir().map_err(|e| e.to_string())?;
            let missed = coverage::missed(&reports, &format!("{}/", root.display()), &source)?;
            if list {
                return Ok(Verdict { text: missed.list(), is_good: true });
            }
            Ok(missed.judge(&explained.display().to_string(), &read(&explained)?))
        }
        Command::Archives { folder, packages } => archives::judge(&folder, &packages),
        Command::Budgets { budgets, printed } => budgets::judge(&read(&budgets)?, &read(&printed)?),
        Command::Executables { messages, names } => {
            let text = executables::of(&read(&messages)?, &names)?.join("\n") + "\n";
            Ok(Verdict { text, is_good: true })
        }
        Command::Names { places, names } => {
            let (folders, printed): (Vec<_>, Vec<_>) = places.into_iter().partition(|place| place.is_dir());
            let text = if folders.is_empty() {
                let printed = printed.iter().map(read).collect::<Result<Vec<_>, _>>()?;
                names::missing(&printed.join("\n"), &names)
            } else {
                names::missing_in(&folders, &names)?
            };
            Ok(Verdict { is_good: text.is_empty(), text })
        }
        Command::Value { file, path } => {
            Ok(Verdict { text: values::at(&read(&file)?, &path)? + "\n", is_good: true })
        }
        Command::Locked { package } => {
            let text = values::locked(&read("Cargo.lock")?, &package)? + "\n";
            Ok(Verdict { text, is_good: true })
        }
        Command::Lines { folders } => {
            let packages: Result<Vec<_>, _> = folders.iter().map(|folder| lines::read(folder)).collect();
            Ok(Verdict { text: lines::table(&packages?), is_good: true })
        }
        Command::Mutants { write, printed } => {
            let path = PathBuf::from("docs/mutants.md");
            let document = read(&path)?;
            let printed = printed.as_ref().map(read).transpose()?;
            let source = read("driver/src/mutant.rs")?;
            let written = mutants::written(&document, &source, printed.as_deref())?;
            let text = mutants::differences(&document, &written);
            if write {
                std::fs::write(&path, &written).map_err(|e| format!("{}: {e}", path.display()))?;
                return Ok(Verdict { text, is_good: true });
            }
            Ok(Verdict { is_good: text.is_empty(), text })
        }
        Command::Growth { printed, programs } => Ok(budgets::growth(&read(&printed)?, programs)),
    }
}

fn main() -> ExitCode {
    match run(Args::parse().command) {
        Ok(Verdict { text, is_good }) => {
            print!("{text}");
            if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(why) => {
            eprintln!("{why}");
            ExitCode::from(2)
        }
    }
}
