#![doc = concat!("[examples]: ", env!("CARGO_PKG_REPOSITORY"), "/blob/HEAD/feed/examples")]
#![doc = concat!("[why]: ", env!("CARGO_PKG_REPOSITORY"), "/blob/HEAD/docs/decisions/feeder.md")]
#![doc = ""]
#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod batch;
mod drain;
mod epoch;
mod error;
mod feeder;
mod kinds;
mod meter;
mod out_of_core;
mod planted;
mod slots;
mod split;
mod stats;
#[cfg(test)]
mod tests;

pub use millpond;

pub use batch::{Batch, FIELD_ALIGNMENT, Fields, FillError, Layout, Slot};
pub use drain::{Drain, DrainBuilder, DrainError, DrainStats, Drained};
pub use error::{FeedError, Stage, StartError};
pub use feeder::{Batches, Builder, FedBatch, Feeder};
pub use kinds::{Elements, Filled, Ragged, ShapeError, Shaped};
pub use out_of_core::{OutOfCore, OutOfCoreCause, OutOfCoreError, OutOfCoreStats};
pub use split::Split;
pub use stats::{Bottleneck, FeedStats};
