//! Bugs that random programs of the soak find: above the bound of a count or by what else they judge (`pending`), or by what grows
//! (`random`). The suite against planted bugs (tests/mutants.rs) reads this too: no bug is left to scenarios unless a reason says why.

#![allow(unreachable_pub, reason = "a module of two tests")]

use millpond::mutant::Bug;

/// Each with the count that leaves its bound, or what the other judges say.
pub const ABOVE_THEIR_BOUNDS: &[(Bug, &str)] = &[
    (Bug::LeakUnlooked, "markers"),
    (Bug::LeakThinned, "markers"),
    (Bug::BurstKept, "events pooled"),
    (Bug::LeakKept, "kept values"),
    (Bug::FlightNeverCrowded, "ranges in flight"),
    (Bug::UsesNeverCrowded, "uses"),
    (Bug::SweepNever, "pools"),
    (Bug::FinishNever, "timelines"),
    (Bug::ClockNeverCrowded, "clock entries"),
    (Bug::NamesKept, "clock entries"),
    (Bug::NamesPruned, "waits for what the stream is ordered behind"),
    (Bug::CopyEmpty, "waits for what the stream is ordered behind"),
    (Bug::DueDropped, "a marker that failed is not made again"),
];

/// Bugs that steady random programs find by what grows (`random`): the same steps again and again.
pub const BY_WHAT_GROWS: &[Bug] = &[
    Bug::LeakUnlooked,
    Bug::LeakUnpooled,
    Bug::LeakUnfiled,
    Bug::LeakKept,
    // In programs of its own (`unqueried`).
    Bug::LeakUnordered,
    Bug::SweepNever,
    Bug::UsesNeverCrowded,
];
