//! What stands behind an allocator's pinned memory: its segments, its limit, and memory of the program's that is registered.

use super::bytes;
use super::render::counted;
use core::fmt;
use core::time::Duration;

/// What stands behind pinned memory; what is live, cached and in flight of it is in [`Report::pinned`](super::Report::pinned).
#[derive(Clone, PartialEq, Eq, Default, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(not(feature = "internals"), non_exhaustive)]
pub struct PinnedReport {
    /// The [limit](crate::Config::pinned_limit) in bytes, if there is one.
    pub limit: Option<u64>,
    /// What the limit is a share of, in words, if it is no number of bytes.
    pub limit_share: Option<String>,
    /// Segments now: `segments_created - segments_released`. No copy crosses two.
    pub segments: u64,
    /// Segments pinned so far.
    pub segments_created: u64,
    /// Segments given back so far.
    pub segments_released: u64,
    /// How long requests have spent on pinning memory, refused attempts included.
    pub growth_time: Duration,
    /// Bytes of the program's own memory that are [registered](crate::Allocator::register), which count nowhere else; also those whose arrays are gone, until
    /// the next trim.
    pub registered: u64,
}

impl fmt::Display for PinnedReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let limit = self.limit.map_or("none".into(), bytes);
        let share = self.limit_share.as_ref().map_or_else(String::new, |share| format!(" ({share})"));
        write!(
            f,
            "{} now ({} created, {} released), {:.1} ms spent on growth; {} of the program's registered; limit {limit}{share}",
            counted(self.segments, "segment"),
            self.segments_created,
            self.segments_released,
            self.growth_time.as_secs_f64() * 1e3,
            bytes(self.registered),
        )
    }
}
