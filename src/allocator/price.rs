//! What requests spend on physical memory, and what that does to the numbers by which they take it.
//!
//! The price of each driver call that a request makes for windows is added up where the call is made. Before a request decides how far the pool may grow,
//! and before it moves anything, the sum is taken out of the bucket (`laws::price`), which then gives the level. A trim that the program calls costs nothing.
//!
//! It does not know what a call does, nor which time it is: that is the driver's clock, or [`Config::clock`].

use super::config::{Config, Policy};
use crate::driver::Driver;
use crate::laws::price::{self, Bucket};
use crate::sync::atomic::AtomicU64;
use crate::sync::{Mutex, Ordering};
use core::time::Duration;

/// What an allocator has spent, where that is bounded.
pub(super) struct Price {
    bucket: Mutex<Bucket>,
    /// Nanoseconds that were spent and are not yet taken out of the bucket.
    spent: AtomicU64,
}

impl Price {
    /// `None` where time changes nothing.
    pub(super) fn new(config: &Config, now: impl FnOnce() -> Duration) -> Option<Price> {
        let share = config.footprint.time_millionths();
        if config.policy != Policy::Footprint || config.deterministic || share == 0 {
            return None;
        }
        let bucket = Bucket::new(share, config.footprint.credit, now());
        Some(Price { bucket: Mutex::new(bucket), spent: AtomicU64::new(0) })
    }

    /// Adds the price of a call that a request has made or is about to make.
    pub(super) fn charge(&self, nanos: u64) {
        self.spent.fetch_add(price::charged(nanos), Ordering::Relaxed);
    }

    /// At which level requests take physical memory from now on.
    pub(super) fn level(&self, now: Duration) -> u32 {
        let mut bucket = self.bucket.lock();
        bucket.account(now, self.spent.swap(0, Ordering::Relaxed))
    }
}

impl Config {
    /// The time, of which moves may take a share.
    pub(super) fn time<D: Driver>(&self, driver: &D) -> Duration {
        self.clock.as_ref().map_or_else(|| driver.host_time(), |clock| clock())
    }
}
