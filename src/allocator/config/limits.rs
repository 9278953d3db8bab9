//! Options that bound memory besides the limit: a soft limit, watermarks, a group.

use super::{Config, Limit};
use crate::allocator::group::Group;
use crate::error::Error;

impl Config {
    /// How much may be reserved before reuse comes before growth, whatever the [policy](super::Policy); none by default. Requests above it succeed, up to the
    /// [limit](Config::limit).
    ///
    /// A request that would grow above it waits in stream order for other pools' memory first, where [reuse](Config::reuse) allows that, and moves free physical
    /// memory of [windows](Config::virtual_memory), whatever that costs; then it grows. While more is reserved, what is idle and complete goes back to the device,
    /// as above the [high watermark](Config::watermarks), and never by a wait. It is reported to the sinks by
    /// [`Event::SoftLimit`](crate::trace::Event::SoftLimit) when it is crossed, once until less is reserved again.
    #[must_use]
    pub fn soft_limit(mut self, limit: Limit) -> Config {
        self.soft_limit = limit;
        self
    }

    /// When more than `high` is cached, idle memory goes back to the device until `low` is; by default none does without a [trim](crate::Allocator::trim). Shares
    /// are those of the device's memory. [`Limit::None`] for `high`: never; for `low`: until `high`.
    ///
    /// What goes back is free and complete: handles of [windows](Config::virtual_memory), and whole segments only where the driver's free waits for nothing
    /// (`cuda::Backing::Async`). Nothing is waited for. A free makes no driver call, and neither does a hit: it happens in the next request that the cache does
    /// not serve, in a synchronise of the allocator or in [`Allocator::maintain`](crate::Allocator::maintain), at most 32 handles a call.
    #[must_use]
    pub fn watermarks(mut self, low: Limit, high: Limit) -> Config {
        (self.low_watermark, self.high_watermark) = (low, high);
        self
    }

    /// The budget of a [group](Group) counts besides the own limit. Not part of the configuration as a value: a group is shared, and cannot be written down.
    #[must_use]
    pub fn group(mut self, group: &Group) -> Config {
        self.group = Some(group.clone());
        self
    }

    /// Whether the group has a soft limit.
    pub(crate) fn group_has_soft(&self) -> bool {
        self.group.as_ref().is_some_and(Group::has_soft)
    }

    /// The watermarks on a device of `capacity` bytes, if there are any.
    ///
    /// # Errors
    /// [`Error::Config`] for a share outside 0 to 1, and if the low one is above the high one.
    pub(crate) fn marks(&self, capacity: u64) -> Result<Option<(u64, u64)>, Error> {
        let low = self.low_watermark.bytes(capacity)?;
        let Some(high) = self.high_watermark.bytes(capacity)? else { return Ok(None) };
        let low = low.unwrap_or(high);
        if low > high {
            let found = format!("{low} bytes, and {high} for the high one");
            return Err(Error::Config {
                name: "low_watermark",
                found,
                expected: "no more than the high one",
            });
        }
        Ok(Some((low, high)))
    }
}
