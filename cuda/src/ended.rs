//! Which streams that may end unannounced have ended.
//!
//! No notice of their end exists, and the driver cannot be queried about a stream that is gone. But a handle names one stream at a time: when it is
//! found to be another stream's, by the driver's id, the stream that had it has ended, and no code can queue work there any more.
//!
//! It does not know what is done with a stream, nor which references to it exist.

use core::sync::atomic::{AtomicBool, Ordering};
use hashbrown::HashMap;
use millpond_driver::sync::{Arc, Mutex, Weak};
use millpond_driver::units::StreamId;

/// Whether one stream is known to have ended: all references to it have this.
#[derive(Debug, Default)]
pub(super) struct Ended(AtomicBool);

impl Ended {
    /// Whether the end is known: a thread that sees this also sees what the handle's next stream was made behind.
    pub(super) fn is_known(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// Of each handle the unmanaged stream that had it last, if something refers to that still: so at most as many as handles, and twice as many as are
/// referred to.
#[derive(Debug, Default)]
pub(super) struct Unmanaged(Mutex<HashMap<usize, (StreamId, Weak<Ended>)>>);

impl Unmanaged {
    /// A handle is a stream's, by the driver's word, in a call during which that is alive.
    pub(super) fn met(&self, handle: usize, id: StreamId, unmanaged: bool) -> Option<Arc<Ended>> {
        let mut last = self.0.lock();
        if let Some((former, ended)) = last.get(&handle) {
            let ended = ended.upgrade();
            if *former == id {
                if let Some(ended) = ended.filter(|_| unmanaged) {
                    return Some(ended);
                }
            } else {
                if let Some(ended) = ended {
                    ended.0.store(true, Ordering::Release);
                }
                last.remove(&handle);
            }
        }
        if !unmanaged {
            return None;
        }
        if last.len() == last.capacity() {
            last.retain(|_, (_, ended)| ended.strong_count() > 0);
        }
        let ended = Arc::new(Ended::default());
        last.insert(handle, (id, Arc::downgrade(&ended)));
        Some(ended)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unmanaged_stream_has_ended_when_its_handle_is_another_ones() {
        let unmanaged = Unmanaged::default();
        let first = unmanaged.met(0x10, StreamId(1), true).expect("unmanaged");
        let again = unmanaged.met(0x10, StreamId(1), true).expect("unmanaged");
        let other = unmanaged.met(0x20, StreamId(2), true).expect("unmanaged");
        assert!(Arc::ptr_eq(&first, &again), "one for all references");
        assert!(unmanaged.met(0x10, StreamId(1), false).is_none(), "the same stream, promised to last");
        assert!(!first.is_known());
        let next = unmanaged.met(0x10, StreamId(3), true).expect("unmanaged");
        assert!(first.is_known() && !next.is_known() && !other.is_known());
        // A stream of the library's, for example.
        assert!(unmanaged.met(0x20, StreamId(4), false).is_none());
        assert!(other.is_known() && !next.is_known());
    }

    #[test]
    fn as_many_are_remembered_as_are_referred_to() {
        let unmanaged = Unmanaged::default();
        for n in 0..10_000 {
            drop(unmanaged.met(n, StreamId(n as u64), true));
        }
        assert!(unmanaged.0.lock().capacity() <= 16, "none is referred to");
    }
}
