//! What an allocator keeps about the bounds above which memory goes back: whether there are any, when it looks, and when idle memory was used last.
//!
//! It does not know how much is reserved, nor what goes back.

use super::backing::Backing;
use super::config::Config;
use crate::error::Error;
use crate::laws::limits::{Notes, Pace};
use crate::sync::Mutex;
use crate::sync::atomic::AtomicBool;

/// Soft limits, watermarks, and what is known for them.
pub(super) struct Marks {
    /// Whether there is a soft limit, of the allocator or its group.
    pub(super) soft: AtomicBool,
    /// How much may be cached: up to the second, and the first when it was above.
    pub(super) cached: Option<(u64, u64)>,
    pub(super) pace: Mutex<Pace>,
    pub(super) notes: Mutex<Notes>,
}

impl Marks {
    /// What these options ask for on a device of `capacity` bytes; the soft limit is set in the books.
    ///
    /// # Errors
    /// [`Error::Config`] for a value that is none.
    pub(super) fn new<R>(config: &Config, capacity: u64, backing: &mut Backing<R>) -> Result<Marks, Error> {
        backing.soft = config.soft_limit.bytes(capacity)?;
        Ok(Marks {
            soft: AtomicBool::new(backing.soft.is_some() || config.group_has_soft()),
            cached: config.marks(capacity)?,
            pace: Mutex::new(Pace::default()),
            notes: Mutex::new(Notes::default()),
        })
    }
}
