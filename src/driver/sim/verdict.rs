//! The judgement: what the oracle says and what the contents showed, in one answer.
//!
//! It finds nothing out itself.

use super::Sim;
use super::exec;
use super::launch::Mismatch;
use super::oracle::{Oracle, Tally, Verdict, Violation};
use core::fmt;

/// Something was wrong: the oracle found violations, or operations met the wrong bytes, or both.
#[derive(Clone, Debug)]
pub struct SimVerdict {
    /// What the oracle says, if it found anything.
    pub oracle: Option<Box<Verdict>>,
    /// What the contents showed, in order of execution; at most 64 are kept.
    pub mismatches: Vec<Mismatch>,
    /// How many mismatches there were.
    pub mismatches_total: u64,
}

impl fmt::Display for SimVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(verdict) = &self.oracle {
            writeln!(f, "{verdict}")?;
        }
        for mismatch in &self.mismatches {
            writeln!(f, "{mismatch}")?;
        }
        let more = self.mismatches_total - self.mismatches.len() as u64;
        if more > 0 {
            writeln!(f, "and {more} more mismatches")?;
        }
        Ok(())
    }
}

impl std::error::Error for SimVerdict {}

impl Sim {
    /// Runs whatever is still queued and can run, then judges: the counts if the oracle found no violation and the contents no
    /// mismatch. With the oracle off all counts are 0.
    ///
    /// # Errors
    /// Everything that was found.
    pub fn verdict(&self) -> Result<Tally, SimVerdict> {
        let guard = self.lock();
        exec::run_all(&guard);
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
