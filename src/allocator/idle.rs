//! Idle trimming: memory that nothing used for some time goes back.
//!
//! A free does not read a clock. It leaves a stamp, the number that its stream's next marker has; so what has a stamp up to the newest number of a stream was
//! freed before that number was read. Each call notes these numbers beside the time, and the next one knows of each stamp a time before which its bytes were
//! used last:
//!
//! ```text
//!   stream's numbers   ··· 4 ········ 5 ····· 6 ··  next: 7
//!   noted at                 10 s       20 s
//!   a stamp of 5: last used before 20 s
//! ```
//!
//! It does not know what memory is given back.

use super::Allocator;
use super::core::Core;
use super::trim::{How, Trimmed};
use crate::driver::{Called, Driver, DriverResult};
use crate::error::Error;
use core::cell::Cell;
use core::time::Duration;

impl<D: Driver> Core<D> {
    fn trim_idle(&self, age: Duration) -> DriverResult<Trimmed> {
        let learnt = self.learn();
        let pools = self.pool_list();
        let numbers = pools.iter().map(|pool| (pool.number, pool.timeline.marked())).collect();
        // Behind them: what has such a stamp was freed before.
        let now = self.config.time(&self.driver);
        let stamps = {
            let mut idle = self.marks.notes.lock();
            idle.note(now, &numbers);
            idle.idle_for(age, now)
        };
        let given = self.give_back(None, u64::MAX, How::until(self.gives_segments(), &stamps), &Cell::new(0));
        learnt.and(given.whole())
    }
}

impl<D: Driver> Allocator<D> {
    /// Gives back what is free, complete and was used last at least `age` ago, by [`Config::clock`](super::Config::clock): handles of
    /// [virtual memory](super::Config::virtual_memory), and segments only where the driver's free waits for nothing. It waits for nothing.
    ///
    /// A free reads no clock: what was freed between two of these calls counts as used until the second. So a program calls it regularly, and memory goes back
    /// with the first call that is `age` behind one that found it idle; never earlier. With an age of zero it is a [trim](Allocator::trim) that does not wait.
    ///
    /// # Errors
    /// The driver's first; what was given back stays given back, the rest is kept.
    #[track_caller]
    pub fn trim_idle(&self, age: Duration) -> Result<Trimmed, Error> {
        let _called = Called::<D>::here();
        let trimmed = self.core().trim_idle(age);
        self.core().deliver();
        Ok(trimmed?)
    }
}
