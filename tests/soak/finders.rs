//! Bugs that random programs of the soak find above a bound (`pending`), and by what. The suite against planted bugs (tests/mutants.rs) reads
//! this too: no bug is looked for by scenarios alone unless a reason says why.

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
