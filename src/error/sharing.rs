//! What to say when memory cannot be shared.

use crate::units::Addr;

/// Memory that another process cannot open as requested.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("asked for {asked} of {bytes} bytes at {address}: {found}; {advice}")]
#[non_exhaustive]
pub struct NotShareable {
    /// What was requested.
    pub asked: &'static str,
    /// The first byte.
    pub address: Addr,
    /// How many bytes.
    pub bytes: u64,
    /// Why it cannot be.
    pub found: &'static str,
    /// What to do.
    pub advice: &'static str,
}
