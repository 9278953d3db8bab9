//! What a feeder did and where its time went, as plain data. It does not know how it is measured.

use core::fmt;
use core::time::Duration;

/// What a feeder did so far, over all its epochs.
///
/// Times are the host's, summed over its threads. The device's work is seen where the host had to wait for it: a filler that needs a pinned slot waits first for what
/// its copy waits for (`compute_wait`: a batch in use on the device) and then for the copy (`copy_wait`).
#[derive(Clone, Default, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct FeedStats {
    /// Batches delivered.
    pub batches: u64,
    /// Bytes of their fields, with what lies between those.
    pub bytes: u64,
    /// Errors delivered.
    pub errors: u64,
    /// Calls of `next` that found no batch ready, the first of each epoch apart.
    pub stalls: u64,
    /// From when the source was first asked to the last event.
    pub wall: Duration,
    /// In the source, as it made its items. Only one thread is in it at a time.
    pub source: Duration,
    /// Writing batches into pinned slots.
    pub fill: Duration,
    /// Waiting for copies whose pinned slots were needed.
    pub copy_wait: Duration,
    /// Waiting, for the same slots, for the device to be done with earlier batches.
    pub compute_wait: Duration,
    /// Waiting for slots that the program held, or that other fillers wrote.
    pub slot_wait: Duration,
    /// Consumers in `next`, waiting for a batch.
    pub starved: Duration,
    /// Batches in the hands of consumers, each from its delivery to its drop.
    pub in_use: Duration,
    /// Filler threads; 0: batches are filled by `next`.
    pub fillers: usize,
}

/// What limits a feeder's speed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Bottleneck {
    /// Nothing was measured yet.
    Unknown,
    /// Making the items.
    Source,
    /// Writing them into pinned memory.
    Fill,
    /// The copies to the device.
    Copy,
    /// The consumer: batches wait for it.
    Compute,
}

impl fmt::Display for Bottleneck {
    /// One sentence that says what to do.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Bottleneck::Unknown => "Nothing was fed yet.",
            Bottleneck::Source => {
                "The source limits the speed: make its items smaller descriptions and let `fill` read the data, or make them faster."
            }
            Bottleneck::Fill => {
                "Filling limits the speed: use more filler threads, or write less for each batch."
            }
            Bottleneck::Copy => {
                "The copies to the device limit the speed: the link is busy; send fewer bytes, such as narrower types."
            }
            Bottleneck::Compute => {
                "The consumer limits the speed: batches wait for it or for its work on the device, and a faster feeder gains nothing."
            }
        })
    }
}

impl FeedStats {
    /// What limits the speed: the stage that was busy for the largest part of the time, by what was measured so far.
    pub fn bottleneck(&self) -> Bottleneck {
        if self.batches == 0 {
            return Bottleneck::Unknown;
        }
        // A consumer that waits for a twentieth of its time or less has its batches in time.
        if self.starved * 20 <= self.wall {
            return Bottleneck::Compute;
        }
        // Only one thread at a time is in the source or waits for a slot.
        let fillers = u32::try_from(self.fillers.max(1)).unwrap_or(u32::MAX);
        let stages = [
            (self.compute_wait + self.slot_wait, Bottleneck::Compute),
            (self.copy_wait, Bottleneck::Copy),
            (self.fill / fillers, Bottleneck::Fill),
            (self.source, Bottleneck::Source),
        ];
        stages.into_iter().max_by_key(|&(time, _)| time).map_or(Bottleneck::Unknown, |(_, stage)| stage)
    }
}

impl fmt::Display for FeedStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = |time: Duration| format!("{:.3} s", time.as_secs_f64());
        let rate = self.bytes as f64 / self.wall.as_secs_f64().max(1e-9) / 1e9;
        writeln!(
            f,
            "{} batches, {:.3} GB in {}, {rate:.2} GB/s; {} errors, {} stalls",
            self.batches,
            self.bytes as f64 / 1e9,
            seconds(self.wall),
            self.errors,
            self.stalls
        )?;
        writeln!(
            f,
            "source {}, fill {} on {} threads, waits: copy {}, compute {}, slot {}; consumer: waits {}, uses {}",
            seconds(self.source),
            seconds(self.fill),
            self.fillers,
            seconds(self.copy_wait),
            seconds(self.compute_wait),
            seconds(self.slot_wait),
            seconds(self.starved),
            seconds(self.in_use)
        )?;
        write!(f, "{}", self.bottleneck())
    }
}
