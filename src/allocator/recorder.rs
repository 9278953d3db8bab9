//! Events stored until they can be delivered to the sinks: a bounded queue, filled anywhere, emptied only where user
//! code may run.
//!
//! A free happens inside drops and under a pool's lock, where no user code may run (O9). So there an event is only stored,
//! with its number, and the next call that holds no lock and is not a drop delivers it. It does not know what a
//! sink does.

use crate::sync::atomic::{AtomicBool, AtomicU64};
use crate::sync::{Mutex, Ordering};
use std::collections::VecDeque;

/// Thousands of drops without an allocation in between are rare: beyond this many events the oldest are lost, and counted.
const KEPT: usize = 1 << 16;

pub(crate) struct Recorder<E> {
    kept: Mutex<Kept<E>>,
    delivering: AtomicBool,
    lost: AtomicU64,
}

struct Kept<E> {
    events: VecDeque<(u64, E)>,
    next: u64,
}

impl<E> Recorder<E> {
    pub(crate) fn new() -> Recorder<E> {
        Recorder {
            kept: Mutex::new(Kept { events: VecDeque::new(), next: 0 }),
            delivering: AtomicBool::new(false),
            lost: AtomicU64::new(0),
        }
    }

    /// How many events are stored.
    pub(crate) fn len(&self) -> usize {
        self.kept.lock().events.len()
    }

    /// How many events will never be delivered, because the queue was full.
    pub(crate) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    #[cold]
    #[inline(never)]
    pub(crate) fn push(&self, event: E) {
        let mut kept = self.kept.lock();
        let number = kept.next;
        kept.next += 1;
        if kept.events.len() == KEPT {
            kept.events.pop_front();
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
        kept.events.push_back((number, event));
    }

    /// Delivers what is stored, in order. One thread at a time: a sink that calls back, or a second thread, leaves its events to the thread
    /// that delivers, which looks once more after it has cleared its flag. A sink that panics loses the event it received and no other.
    #[cold]
    #[inline(never)]
    pub(crate) fn deliver(&self, sink: impl Fn(u64, &E)) {
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
                sink(number, &event);
            }
        }
    }
}
