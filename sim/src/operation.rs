//! What identifies and orders operations and events: names, positions on streams, what an event captured.
//!
//! It does not know what an operation does, nor what waits for what.

use super::late::End;
use super::oracle::StreamKey;
use smallvec::SmallVec;

/// An operation's name.
pub(super) type Name = std::borrow::Cow<'static, str>;

/// Positions on streams, all of them.
pub(super) type Points = SmallVec<[(StreamKey, u64); 1]>;

/// What an event captured last.
#[derive(Debug, Default)]
pub(super) struct EventState {
    pub(super) device: usize,
    pub(super) points: Points,
    /// When all of it ends.
    pub(super) finish: End,
    /// The capture it was last recorded in.
    pub(super) capture: Option<u32>,
    /// How many more queries answer "not ready", whatever the state.
    pub(super) not_ready: u32,
}
