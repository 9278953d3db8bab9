//! Times and tables: rounds in turn, so that whatever else the machine does hits all lines alike; the best and the median
//! round of each; and the machine's name, without which an absolute time means nothing.

use std::time::Instant;

/// Nanoseconds a call in each round of one line.
#[derive(Clone, Debug)]
pub struct Times {
    pub name: &'static str,
    pub rounds: Vec<f64>,
}

impl Times {
    pub fn new(name: &'static str) -> Times {
        Times { name, rounds: Vec::new() }
    }
    /// Times one round of `calls` calls.
    pub fn round(&mut self, calls: usize, run: impl FnOnce()) {
        let start = Instant::now();
        run();
        self.rounds.push(start.elapsed().as_nanos() as f64 / calls as f64);
    }
    pub fn best(&self) -> f64 {
        self.rounds.iter().copied().fold(f64::INFINITY, f64::min)
    }
    pub fn median(&self) -> f64 {
        let mut sorted = self.rounds.clone();
        sorted.sort_by(f64::total_cmp);
        sorted[sorted.len() / 2]
    }
}

/// One workload's lines in a table: ns a call, best and median, and the ratio of ours to each.
pub fn show(workload: &str, calls: usize, lines: &[Times]) {
    let ours = lines[0].best();
    print!("{workload:<26} {calls:>9}");
    for line in lines {
        print!("  {:>6} {:>6.1} ({:>6.1})", line.name, line.best(), line.median());
    }
    for line in &lines[1..] {
        print!("  {:.2} x {}", ours / line.best(), line.name);
    }
    println!();
}

/// What ran and where.
pub fn heading(what: &str) {
    println!("# {what}");
    println!("# {}", machine());
    println!(
        "# ns a call, an allocation or a free: the best round (the median); then ours as a multiple of each line"
    );
}

/// The processor and how many of it.
fn machine() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info
        .lines()
        .find_map(|l| l.strip_prefix("model name"))
        .map_or("unknown", |l| l.trim_start_matches([' ', '\t', ':']));
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    format!("{model}, {cores} cores, {}", std::env::consts::ARCH)
}

/// The value behind `--name` on the command line. `cargo bench` adds `--bench`, which is ignored.
pub fn option(name: &str) -> Option<String> {
    let mut args = std::env::args().skip(1);
    args.find(|a| a.strip_prefix("--") == Some(name))?;
    args.next()
}

/// A number behind `--name`.
pub fn number(name: &str, otherwise: usize) -> usize {
    match option(name) {
        None => otherwise,
        Some(value) => value.parse().unwrap_or_else(|_| panic!("--{name} {value}: not a number")),
    }
}
