//! What the members of a group of allocators hold together.

use super::bytes;
use crate::units::DeviceId;
use core::fmt;

/// One member of a [`Group`](crate::Group).
#[derive(Clone, PartialEq, Eq, Default, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(not(feature = "internals"), non_exhaustive)]
pub struct MemberReport {
    /// Its device.
    pub device: DeviceId,
    /// Its own limit in bytes, if it has one.
    pub limit: Option<u64>,
    /// Bytes that it reserves, and claims for requests under way.
    pub reserved: u64,
    /// Bytes of these that are live (rounded).
    pub allocated: u64,
}

/// A [`Group`](crate::Group) of allocators that share one budget.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(not(feature = "internals"), non_exhaustive)]
pub struct GroupReport {
    /// The most that all members may reserve together, in bytes.
    pub hard: Option<u64>,
    /// Above this they tighten their policy.
    pub soft: Option<u64>,
    /// Bytes that all members reserve, and claim for requests under way; also what stays allocated for good of members that could not give it back.
    pub reserved: u64,
    /// Highest `reserved` so far of what the devices gave.
    pub reserved_peak: u64,
    /// Each member that has not ended, in the order in which they were made.
    pub members: Vec<MemberReport>,
}

impl fmt::Display for GroupReport {
    /// One line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let limit = |of: Option<u64>| of.map_or("none".into(), bytes);
        write!(
            f,
            "reserved {} (peak {}) of limit {}, soft limit {}, by {} allocators:",
            bytes(self.reserved),
            bytes(self.reserved_peak),
            limit(self.hard),
            limit(self.soft),
            self.members.len()
        )?;
        for (n, member) in self.members.iter().enumerate() {
            let then = if n == 0 { "" } else { "," };
            write!(
                f,
                "{then} {} on {} ({} live)",
                bytes(member.reserved),
                member.device,
                bytes(member.allocated)
            )?;
        }
        Ok(())
    }
}
