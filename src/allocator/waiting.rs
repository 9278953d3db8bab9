//! How the host waits for several streams on behalf of one request: for no longer than the request may, and for whichever
//! completes first.
//!
//! The simple way is to wait for one after the other. Then a kernel of seconds on the first keeps the request from what the second
//! gives back in a moment, and uses up the time for the others. So the host waits for each in turn, for as long as
//! it has waited for all of them so far: whatever completes is found after at most twice the time that it took.
//!
//! This file does not know what is waited for, nor which streams a request may wait for (`bounded.rs`).

use super::registry::Registry;
use crate::driver::{Driver, DriverResult};
use crate::error::DriverError;
use crate::laws::cost;
use crate::order::Pending;
use core::time::Duration;

/// A first turn: as long as the host only queries, and ten times what a query and a look at a pool take.
const TURN: Duration = Duration::from_micros(50);

/// How long one request may still block the host: `Config::bounded_wait` at first, less every wait since.
pub(crate) struct Patience(Duration);

impl Patience {
    /// The default of `Config::bounded_wait`.
    const DEFAULT: Duration = Duration::from_secs(2);

    pub(crate) fn new(limit: Option<Duration>) -> Patience {
        Patience(limit.unwrap_or(Self::DEFAULT))
    }

    pub(crate) fn is_over(&self) -> bool {
        self.0.is_zero()
    }

    /// The time that is left.
    pub(crate) fn left(&self) -> Duration {
        self.0
    }

    /// Runs `wait` with the time that is left, and subtracts how long it took by this clock.
    pub(crate) fn spend<T>(&mut self, clock: impl Fn() -> Duration, wait: impl FnOnce(Duration) -> T) -> T {
        let start = clock();
        let result = wait(self.0);
        self.0 = cost::patience(self.0, || clock().saturating_sub(start));
        result
    }
}

/// Waits until `enough` of these are complete, or all that can be waited for, or the time is over; returns how many are. `first` is called with
/// each before the first wait for it. One that cannot be waited for is passed to `instead`, with the error: what that returns is waited for in
/// its place.
///
/// # Errors
/// What `instead` returns for the driver's.
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
        // A device that gives up before the time is over will not wait longer the next time either.
        if later.is_empty() || (done == 0 && patience.left() == before) {
            break;
        }
        (waiting, is_first, turn) = (later, false, turn * 2);
    }
    Ok(done)
}
