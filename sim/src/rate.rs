//! How long things take: engines with a rate, and a booking for each operation.
//!
//! The simple model: an operation starts when its stream, what it waits for and the host's call are all past, and when
//! its engine is free; it lasts its bytes over the engine's rate. Everything is known when the operation is submitted, except
//! behind a closed gate (`late`), so no time depends on when the executor runs it. There are three engines per device: compute (kernels, fills
//! and copies inside the device, all bound by memory bandwidth, so that two concurrent kernels take as long as
//! in sequence), copies in, copies out. A copy to another device uses the sender's engine for copies out and the
//! receiver's for copies in, and is over when both are.
//!
//! One departure: while an operation waits for another stream, others may use its engine. An
//! engine remembers the gaps in its bookings (the latest 64) and fills the first that fits.
//!
//! This module knows no stream, no memory and no host; it counts virtual nanoseconds and nothing here ever sleeps.

/// What an operation runs on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Engine {
    /// No engine: records, waits, host functions.
    None,
    /// Kernels, fills, copies inside the device.
    Compute,
    /// Host to device.
    In,
    /// Device to host.
    Out,
}

/// Bytes per microsecond that kernels, fills and copies inside the device move.
const COMPUTE_BYTES_PER_US: u64 = 2_000_000;
/// Bytes per microsecond over the bus, each way (measured: 55.5 GB/s; DESIGN.md, what the driver costs).
const BUS_BYTES_PER_US: u64 = 55_500;
/// Gaps that an engine remembers.
const GAPS_KEPT: usize = 64;

impl Engine {
    /// Nanoseconds to move these bytes, at least 1 if there are any.
    pub(super) fn nanos(self, bytes: u64) -> u64 {
        let rate = match self {
            Engine::None => return 0,
            Engine::Compute => COMPUTE_BYTES_PER_US,
            Engine::In | Engine::Out => BUS_BYTES_PER_US,
        };
        u64::try_from(u128::from(bytes) * 1000 / u128::from(rate))
            .unwrap_or(u64::MAX / 4)
            .max(u64::from(bytes > 0))
    }
}

/// The cost of an operation: a time on an engine of its stream's device and, for a copy to another device, on that one's engine for copies in too.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    pub(super) engine: Engine,
    pub(super) nanos: u64,
    /// The receiver's index.
    pub(super) into: Option<usize>,
}

/// When one engine is busy.
#[derive(Debug, Default)]
struct Lane {
    /// Free spans before `tail`, in order of time.
    gaps: Vec<(u64, u64)>,
    /// Free from here on.
    tail: u64,
}

impl Lane {
    /// Books the first free span of this length at or after `ready`; returns its start. Nothing will ever be booked
    /// before `now`.
    fn book(&mut self, now: u64, ready: u64, nanos: u64) -> u64 {
        let past = self.gaps.iter().take_while(|g| g.1 <= now).count();
        self.gaps.drain(..past);
        let fit = self.gaps.iter().position(|&(from, to)| from.max(ready).saturating_add(nanos) <= to);
        if let Some(i) = fit {
            let (from, to) = self.gaps.remove(i);
            let start = from.max(ready);
            let end = start.saturating_add(nanos);
            if end < to {
                self.gaps.insert(i, (end, to));
            }
            if from < start {
                self.gaps.insert(i, (from, start));
            }
            return start;
        }
        let start = ready.max(self.tail);
        if start > self.tail {
            if self.gaps.len() >= GAPS_KEPT {
                self.gaps.remove(0);
            }
            self.gaps.push((self.tail, start));
        }
        self.tail = start.saturating_add(nanos);
        start
    }
}

/// One device's engines.
#[derive(Debug, Default)]
pub(super) struct Engines {
    lanes: [Lane; 3],
}

impl Engines {
    /// Books an operation; returns when it ends.
    pub(super) fn book(&mut self, engine: Engine, now: u64, ready: u64, nanos: u64) -> u64 {
        let lane = match engine {
            Engine::None => return ready.saturating_add(nanos),
            Engine::Compute => 0,
            Engine::In => 1,
            Engine::Out => 2,
        };
        if nanos == 0 { ready } else { self.lanes[lane].book(now, ready, nanos).saturating_add(nanos) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_waiting_operation_does_not_hold_its_engine() {
        let mut e = Engines::default();
        assert_eq!(e.book(Engine::Compute, 0, 1000, 100), 1100, "waits for something until 1000");
        assert_eq!(e.book(Engine::Compute, 0, 0, 600), 600, "fills the gap before it");
        assert_eq!(e.book(Engine::Compute, 0, 0, 500), 1600, "does not fit in the 400 left");
        assert_eq!(e.book(Engine::Compute, 0, 0, 400), 1000, "fits exactly");
        assert_eq!(e.book(Engine::Compute, 0, 0, 1), 1601, "nothing left in front");
        assert_eq!(e.book(Engine::In, 0, 0, 1), 1, "another engine is free");
    }

    #[test]
    fn rates() {
        assert_eq!(Engine::Compute.nanos(2_000_000_000), 1_000_000);
        assert_eq!(Engine::In.nanos(55_500), 1000);
        assert_eq!(Engine::Out.nanos(1), 1);
        assert_eq!(Engine::Out.nanos(0), 0);
        assert!(Engine::In.nanos(u64::MAX) < u64::MAX / 2, "no overflow");
        let mut e = Engines::default();
        assert_eq!(e.book(Engine::In, 0, u64::MAX, u64::MAX), u64::MAX, "behind all time");
        assert_eq!(e.book(Engine::In, 0, 1, u64::MAX), u64::MAX, "the gap before it ends where time ends");
        assert_eq!(e.book(Engine::In, 0, 0, 1), 1);
    }
}
