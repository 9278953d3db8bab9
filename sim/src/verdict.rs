//! The judgement: the oracle's violations and the mismatches of the contents, in one answer.
//!
//! It checks nothing itself.

use super::Sim;
use super::exec;
use super::mismatch::Mismatch;
use super::oracle::{Oracle, Tally, Verdict, Violation, shown};
use core::fmt;

/// Something was wrong: the oracle found violations, or operations found the wrong bytes, or both. Displays the first few of
/// each, three lines for each, and is the same text whenever the program does the same.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub struct SimVerdict {
    /// The oracle's verdict, if it found anything.
    pub oracle: Option<Box<Verdict>>,
    /// What the contents showed, in order of execution; at most 64 are kept.
    pub mismatches: Vec<Mismatch>,
    /// How many mismatches there were.
    pub mismatches_total: u64,
}

/// The same text: what is printed by a `main` that returns it, or by `unwrap`.
impl fmt::Debug for SimVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for SimVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(verdict) = &self.oracle {
            write!(f, "{verdict}")?;
        }
        if self.mismatches_total == 0 {
            return Ok(());
        }
        let end = if self.oracle.is_some() { "\n" } else { "" };
        let met = if self.mismatches_total == 1 { "operation met" } else { "operations met" };
        write!(f, "{end}{} {met} the wrong bytes", self.mismatches_total)?;
        let shown = shown(&self.mismatches);
        for (n, mismatch) in shown.iter().enumerate() {
            write!(f, "\n{}. {mismatch}", n + 1)?;
        }
        match self.mismatches_total - shown.len() as u64 {
            0 => Ok(()),
            1 => f.write_str("\nand 1 more operation"),
            more => write!(f, "\nand {more} more operations"),
        }
    }
}

impl Sim {
    /// Runs whatever is still queued and can run, then judges: returns the counts if the oracle found no violation and the contents no
    /// mismatch. With the oracle off all counts are 0.
    ///
    /// # Errors
    /// Everything that was found.
    pub fn verdict(&self) -> Result<Tally, SimVerdict> {
        exec::run_all(&self.lock());
        self.verdict_so_far()
    }
    /// Judges like [`Sim::verdict`] without running anything: the contents of what is still queued are not
    /// judged.
    ///
    /// # Errors
    /// Everything that was found.
    pub fn verdict_so_far(&self) -> Result<Tally, SimVerdict> {
        let guard = self.lock();
        let world = guard.borrow();
        let (tally, convicted) = match world.oracle.as_ref().map(Oracle::verdict) {
            None => (Tally::default(), None),
            Some(Ok(tally)) => (tally, None),
            Some(Err(verdict)) => (Tally::default(), Some(Box::new(verdict))),
        };
        if convicted.is_none() && world.mismatches_total == 0 {
            return Ok(tally);
        }
        Err(SimVerdict {
            oracle: convicted,
            mismatches: world.mismatches.clone(),
            mismatches_total: world.mismatches_total,
        })
    }
    /// The oracle's counts so far.
    pub fn tally(&self) -> Tally {
        self.lock().borrow().oracle.as_ref().map_or_else(Tally::default, Oracle::tally)
    }
    /// The oracle's violations so far, without running anything.
    pub fn violations(&self) -> Vec<Violation> {
        self.lock().borrow().oracle.as_ref().map_or_else(Vec::new, |o| o.violations().to_vec())
    }
}
