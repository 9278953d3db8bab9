//! What goes wrong, for the consumer. It does not know mechanics.

use crate::batch::FillError;
use core::any::Any;

/// Why a feeder or a drain could not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// Its stream could not be made.
    #[error("no stream for the copies: {0}")]
    Device(#[from] millpond::Error),
    /// A thread could not be started. Those that were have ended.
    #[error("thread {started} of {asked} could not be started ({error}): ask for fewer")]
    Threads {
        /// How many were.
        started: usize,
        /// How many were asked for.
        asked: usize,
        /// Why.
        #[source]
        error: std::io::Error,
    },
}

/// Where a panic came from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Stage {
    /// The source, as it was asked for its next batch.
    Source,
    /// A batch, as it said its layout or was filled.
    Fill,
    /// The driver, as the copy was queued.
    Copy,
    /// The sink of a drain.
    Sink,
}

/// What a consumer gets in the place of a batch.
///
/// Every error but [`FeedError::Held`] and [`FeedError::TimedOut`] takes the place of one batch, and those behind it follow; the consumer decides whether to go on. Two end the epoch: a source that
/// panicked is not asked again, and on a device whose context is lost nothing can follow.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FeedError<E> {
    /// The source gave an error.
    #[error("the source of batch {batch} failed: {error}")]
    Source {
        /// The place in the epoch, from 0.
        batch: u64,
        /// The source's own.
        error: E,
    },
    /// The batch could not be filled.
    #[error("batch {batch} could not be filled: {error}")]
    Fill {
        /// The place in the epoch, from 0.
        batch: u64,
        /// The batch's own.
        error: FillError,
    },
    /// The source, a filler or the driver panicked.
    #[error("panic at batch {batch} ({stage:?}): {message}")]
    Panicked {
        /// The place in the epoch, from 0.
        batch: u64,
        /// Who.
        stage: Stage,
        /// The panic's message.
        message: String,
    },
    /// The batch alone exceeds the budget: it needs its bytes twice, pinned and on the device.
    #[error(
        "batch {batch} has {bytes} bytes, which are needed twice (pinned, and on the device), and the budget is {budget}: raise the budget or split the batch"
    )]
    TooLarge {
        /// The place in the epoch, from 0.
        batch: u64,
        /// Its bytes.
        bytes: u64,
        /// The budget in bytes.
        budget: u64,
    },
    /// A feeder without filler threads has no room for another batch until one that a consumer holds is dropped. The batch is not lost:
    /// it comes with the next call that finds room.
    #[error(
        "the budget of {budget} bytes is used up, {held_bytes} of them by {held} batches that the program holds: drop one, or raise the budget"
    )]
    Held {
        /// Batches that consumers hold.
        held: usize,
        /// Their slots' bytes.
        held_bytes: u64,
        /// The budget in bytes.
        budget: u64,
    },
    /// No batch came within the limit. It takes no batch's place.
    #[error(
        "batch {batch} did not come in time; the program holds {held} batches, {held_bytes} bytes of a budget of {budget}: if that leaves no room, drop one"
    )]
    TimedOut {
        /// The place in the epoch of the batch that comes next.
        batch: u64,
        /// Batches that consumers hold.
        held: usize,
        /// Their slots' bytes.
        held_bytes: u64,
        /// The budget in bytes.
        budget: u64,
    },
    /// No memory, or the driver failed.
    #[error("batch {batch}: {error}")]
    Device {
        /// The place in the epoch, from 0.
        batch: u64,
        /// The allocator's or the driver's.
        #[source]
        error: millpond::Error,
    },
}

impl<E> FeedError<E> {
    /// Whether the device's context is lost.
    pub fn is_context_lost(&self) -> bool {
        matches!(self, FeedError::Device { error, .. } if error.is_context_lost())
    }
}

/// The text of a panic.
pub(crate) fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "(no text)".to_owned())
}
