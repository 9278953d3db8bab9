//! Events kept until they can be handed to the sinks: a bounded queue, filled anywhere, emptied only where user code may
//! run.
//!
//! A free happens inside drops and under a pool's lock, where no user code may run (O9); so an event is only stored
//! there, with its number, and delivered by the next call that holds no lock and is no drop. It does not know what a
//! sink does.

use crate::sync::atomic::{AtomicBool, AtomicU64};
use crate::sync::{Arc, Mutex, Ordering};
use crate::trace::{Event, Sink};
use std::collections::VecDeque;

/// Drops without an allocation in between are rarely thousands: past this many events the oldest are lost, counted.
const KEPT: usize = 1 << 16;

pub(crate) struct Recorder {
    sinks: Vec<Arc<dyn Sink>>,
    kept: Mutex<Kept>,
    delivering: AtomicBool,
    lost: AtomicU64,
}

#[derive(Default)]
struct Kept {
    events: VecDeque<(u64, Event)>,
    next: u64,
}

impl Recorder {
    pub(crate) fn new(sinks: Vec<Arc<dyn Sink>>) -> Recorder {
        Recorder {
            sinks,
            kept: Mutex::new(Kept::default()),
            delivering: AtomicBool::new(false),
            lost: AtomicU64::new(0),
        }
    }

    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        !self.sinks.is_empty()
    }

    #[cold]
    #[inline(never)]
    pub(crate) fn push(&self, event: Event) {
        let mut kept = self.kept.lock();
        let number = kept.next;
        kept.next += 1;
        if kept.events.len() == KEPT {
            kept.events.pop_front();
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
        kept.events.push_back((number, event));
    }

    /// Hands over what is kept, in order. One thread at a time: a sink that calls back in, or a second thread, leaves
    /// its events to the one that delivers, which looks once more after it has said that it no longer does. A sink that panics loses the event it was given and no other.
    #[cold]
    #[inline(never)]
    pub(crate) fn deliver(&self) {
        struct Done<'a>(&'a AtomicBool);
        impl Drop for Done<'_> {
            fn drop(&mut self) {
                self.0.store(false, Ordering::Release);
            }
        }
        while !self.kept.lock().events.is_empty() {
            if self.delivering.swap(true, Ordering::Acquire) {
                return;
            }
            let _done = Done(&self.delivering);
            loop {
                let next = self.kept.lock().events.pop_front();
                let Some((number, event)) = next else { break };
                for sink in &self.sinks {
                    sink.event(number, &event);
                }
            }
        }
    }
}
