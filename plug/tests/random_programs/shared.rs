//! The stream that threads which run at once have in common. In half of their programs a thread may end it while the others remember it and have
//! memory that it used; it does so between two of their steps, because a call that names a stream promises that it is alive. The next one mostly gets
//! its handle.
//!
//! The other half has no lock around its steps: a lock would order accesses that `ThreadSanitizer` has to see unordered.

use super::{STREAMS, Step, Verb, World};
use crate::driver;
use crate::model::{Made, Named, Who};
use std::sync::RwLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// What the threads know of it.
#[derive(Default)]
pub(super) struct Shared {
    /// A thread that names it holds this for reading; `None` if no thread may end it.
    ends: Option<RwLock<Option<Made>>>,
    /// It was declared permanent.
    lasts: AtomicBool,
}

impl Shared {
    pub(super) fn new(ends: bool) -> Shared {
        Shared { ends: ends.then(RwLock::default), lasts: AtomicBool::new(false) }
    }
}

impl World {
    /// Creates the first such stream, for all threads that will run at once.
    pub(crate) fn share(&mut self, flags: u32) {
        self.shared = Some(self.made(0, flags).who);
        if let Some(ends) = self.concurrent.as_ref().and_then(|concurrent| concurrent.shared.ends.as_ref()) {
            *ends.write().expect("no thread panicked") = self.streams[0];
        }
    }

    pub(super) fn is_shared(&self, stream: Named) -> bool {
        self.shared == Some(stream.who)
    }

    /// Notes that the stream must not be destroyed from now on.
    pub(super) fn lasts(&self, stream: Named) {
        if let Some(concurrent) = self.concurrent.as_ref().filter(|_| self.is_shared(stream)) {
            concurrent.shared.lasts.store(true, Ordering::Relaxed);
        }
    }

    /// Runs something that may name it; no thread ends it meanwhile.
    pub(super) fn while_it_lives(&mut self, run: impl FnOnce(&mut World)) {
        let concurrent = self.concurrent.clone();
        let there = concurrent.as_ref().and_then(|concurrent| concurrent.shared.ends.as_ref());
        let there = there.map(|ends| ends.read().expect("no thread panicked"));
        if let Some(there) = &there {
            self.meets(**there);
        }
        run(self);
    }

    /// Ends it if the step says so. Returns whether the step is one that ends it.
    pub(super) fn ends_shared(&mut self, step: Step) -> bool {
        let Some(concurrent) = self.concurrent.clone() else { return false };
        let Some(ends) = &concurrent.shared.ends else { return false };
        if step.verb != Verb::Close || !usize::from(step.a).is_multiple_of(STREAMS) {
            return false;
        }
        let mut there = ends.write().expect("no thread panicked");
        self.meets(*there);
        let ends = |_: &mut Made| !concurrent.shared.lasts.load(Ordering::Relaxed) && !driver::is_broken();
        if let Some(Made { named, blocking, .. }) = there.take_if(ends) {
            driver::bind(self.contexts[0]);
            say!(self, "cuStreamDestroy({named}); // a stream that other threads name");
            driver::destroy_stream(named.raw());
            let handle = driver::stream(u32::from(!blocking));
            let named = Named { who: Who::Made(self.name()), handle };
            say!(self, "cuStreamCreate(&{named}, {}); // {handle:#x}", u32::from(!blocking));
            // A driver that has just broken creates none.
            *there = (handle != 0).then_some(Made {
                named,
                permanent: false,
                kept: false,
                declared: false,
                blocking,
            });
            self.meets(*there);
        }
        // Lets other threads name the next one.
        drop(there);
        std::thread::yield_now();
        true
    }

    /// Takes over the current stream, if another thread has replaced it.
    fn meets(&mut self, there: Option<Made>) {
        let who = there.map(|made| made.named.who);
        if self.shared != who {
            (self.shared, self.streams[0]) = (who, there);
        }
    }
}
