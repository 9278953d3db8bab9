//! How the host waits for several streams on behalf of one request: for no longer than the request may, and for whichever is
//! over first.
//!
//! The simple way is to wait for one after the other. Then a kernel of seconds on the first keeps the request from what the second
//! gives back in a moment, and takes the time that others would have needed. So the host waits for each in turn, for as long as
//! it has waited for all of them so far: whatever is over is found after at most twice the time that it took.
//!
//! This file does not know what is waited for, nor for whom a request may wait (`bounded.rs`).

use super::registry::Registry;
use crate::driver::{Driver, DriverResult};
use crate::error::DriverError;
use crate::laws::cost;
use crate::order::Pending;
use core::time::Duration;

/// A first turn: as long as the host does nothing but ask, and ten times what a question and a look at a pool take.
const TURN: Duration = Duration::from_micros(50);

/// How long one request may still block the host: `Config::bounded_wait` at first, and less by whatever it waited.
pub(crate) struct Patience(Duration);

impl Patience {
    /// Where the configuration does not say.
    const DEFAULT: Duration = Duration::from_secs(2);

    pub(crate) fn new(limit: Option<Duration>) -> Patience {
        Patience(limit.unwrap_or(Self::DEFAULT))
    }

    pub(crate) fn is_over(&self) -> bool {
        self.0.is_zero()
    }

    /// What is left.
    pub(crate) fn left(&self) -> Duration {
        self.0
    }

    /// Takes off what `wait` blocks, by this clock. It is told what is left.
    pub(crate) fn spend<T>(&mut self, clock: impl Fn() -> Duration, wait: impl FnOnce(Duration) -> T) -> T {
        let start = clock();
        let result = wait(self.0);
        self.0 = cost::patience(self.0, || clock().saturating_sub(start));
        result
    }
}

/// Waits until `enough` of these are complete, or all that can be waited for, or the time is over; how many are. `first` hears of each
/// before it is first waited for. One that cannot be waited for is given to `instead`, with the reason: what it returns is waited for in
/// its place.
///
/// # Errors
/// What `instead` makes of the driver's.
pub(crate) fn wait_for_some<D: Driver, E>(
    (registry, driver): (&Registry<D>, &D),
    mut waiting: Vec<Pending>,
    enough: usize,
    patience: &mut Patience,
    mut first: impl FnMut(Pending),
    mut instead: impl FnMut(Pending, DriverError) -> Result<Option<Pending>, E>,
) -> Result<usize, E> {
    let (mut done, mut turn, mut is_first) = (0, TURN, true);
    while !waiting.is_empty() && done < enough && !patience.is_over() {
        let (mut later, before) = (Vec::new(), patience.left());
        let alone = waiting.len() == 1;
        for pending in waiting {
            if done >= enough || patience.is_over() {
                break;
            }
            if is_first {
                first(pending);
            }
            let wait = |left: Duration| -> DriverResult<bool> {
                registry.wait_host(driver, pending, if alone { left } else { left.min(turn) })
            };
            match patience.spend(|| driver.host_time(), wait) {
                Ok(true) => done += 1,
                Ok(false) => later.push(pending),
                Err(e) => later.extend(instead(pending, e)?),
            }
        }
        // A device that gives up before the time is over will not be patient the next time either.
        if later.is_empty() || (done == 0 && patience.left() == before) {
            break;
        }
        (waiting, is_first, turn) = (later, false, turn * 2);
    }
    Ok(done)
}
