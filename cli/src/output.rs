//! What goes to the terminal: results to the standard output, complaints and progress to the standard error.
//!
//! No colours at all, and no progress bar unless a person looks. A reader that goes away (`| head`) is no error: what
//! would still be written is left out, and the exit status stays that of the work.

use indicatif::{ProgressBar, ProgressStyle};
use millpond_replay::import::{self, ImportError, Trace};
use std::io::{self, BufWriter, ErrorKind, IsTerminal, Stdout, Write};
use std::path::Path;
use std::process::ExitCode;

/// What a command came to; the later the worse.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Status {
    Clean,
    Failed,
    BadInput,
}

impl Status {
    pub(crate) fn code(self) -> ExitCode {
        ExitCode::from(match self {
            Status::Clean => 0,
            Status::Failed => 1,
            Status::BadInput => 2,
        })
    }
}

/// The standard output, until its reader is gone.
pub(crate) struct Output {
    out: BufWriter<Stdout>,
    gone: bool,
}

impl Output {
    pub(crate) fn new() -> Output {
        Output { out: BufWriter::new(io::stdout()), gone: false }
    }

    fn unless_gone<T>(&mut self, done: io::Result<T>, otherwise: T) -> io::Result<T> {
        match done {
            Err(e) if e.kind() == ErrorKind::BrokenPipe => {
                self.gone = true;
                Ok(otherwise)
            }
            done => done,
        }
    }

    /// Writes out what was said so far.
    pub(crate) fn finish(&mut self) -> io::Result<()> {
        self.flush()
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.gone {
            return Ok(bytes.len());
        }
        let done = self.out.write(bytes);
        self.unless_gone(done, bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        if self.gone {
            return Ok(());
        }
        let done = self.out.flush();
        self.unless_gone(done, ())
    }
}

/// Writes what is wrong to the standard error. If that fails too, it is ignored.
pub(crate) fn complain(what: &str) {
    let _ = writeln!(io::stderr(), "millpond: {what}");
}

/// Reads a trace; errors name the path that was given.
pub(crate) fn open(path: &Path) -> Result<Trace, ImportError> {
    import::open(path, import::Options::default()).map_err(|mut e| {
        e.name = path.display().to_string();
        e
    })
}

/// A progress bar for a person, or nothing.
pub(crate) fn progress(name: &str, calls: u64) -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(calls);
    if let Ok(style) =
        ProgressStyle::with_template("{prefix}   {human_pos}/{human_len} calls {wide_bar} {percent} % {eta}")
    {
        bar.set_style(style);
    }
    bar.set_prefix(name.to_owned());
    bar
}

/// A number with its thousands apart.
pub(crate) fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::new();
    for (k, digit) in digits.chars().enumerate() {
        if k > 0 && (digits.len() - k).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::grouped;

    #[test]
    fn thousands_are_apart() {
        for (n, text) in [(0, "0"), (999, "999"), (1000, "1,000"), (1_234_567, "1,234,567")] {
            assert_eq!(grouped(n), text);
        }
    }
}
