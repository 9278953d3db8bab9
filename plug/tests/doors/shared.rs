//! The one stream that threads that run at once have in common. In half of their programs a thread that comes to end it does, while the others remember it
//! and have memory that it used: between two steps of theirs, because whoever names a stream promises that it is alive. The next one has its handle, mostly.
//!
//! The other half has no lock around its steps: it would order what `ThreadSanitizer` is to see unordered.

use super::{STREAMS, Step, Verb, World};
use crate::driver;
use crate::model::{Made, Named, Who};
use std::sync::RwLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// What its threads know of it.
#[derive(Default)]
pub(super) struct Shared {
    /// Who names it holds this for reading; `None` where it is nobody's to end.
    ends: Option<RwLock<Option<Made>>>,
    /// It was promised to last.
    lasts: AtomicBool,
}

impl Shared {
    pub(super) fn new(ends: bool) -> Shared {
        Shared { ends: ends.then(RwLock::default), lasts: AtomicBool::new(false) }
    }
}

impl World {
    /// Makes the first stream, for all threads that will run at once.
    pub(crate) fn share(&mut self, flags: u32) {
        self.shared = Some(self.made(0, flags).who);
        if let Some(ends) = self.mail.as_ref().and_then(|mail| mail.shared.ends.as_ref()) {
            *ends.write().expect("nothing went wrong") = self.streams[0];
        }
    }

    pub(super) fn is_shared(&self, stream: Named) -> bool {
        self.shared == Some(stream.who)
    }

    /// It is to last from now on.
    pub(super) fn lasts(&self, stream: Named) {
        if let Some(mail) = self.mail.as_ref().filter(|_| self.is_shared(stream)) {
            mail.shared.lasts.store(true, Ordering::Relaxed);
        }
    }

    /// Runs what may name it, while nobody ends it.
    pub(super) fn while_it_lives(&mut self, run: impl FnOnce(&mut World)) {
        let mail = self.mail.clone();
        let there = mail.as_ref().and_then(|mail| mail.shared.ends.as_ref());
        let there = there.map(|ends| ends.read().expect("nothing went wrong"));
        if let Some(there) = &there {
            self.meets(**there);
        }
        run(self);
    }

    /// Whether a step is one that ends it, which this does then.
    pub(super) fn ends_shared(&mut self, step: Step) -> bool {
        let Some(mail) = self.mail.clone() else { return false };
        let Some(ends) = &mail.shared.ends else { return false };
        if step.verb != Verb::Close || !usize::from(step.a).is_multiple_of(STREAMS) {
            return false;
        }
        let mut there = ends.write().expect("nothing went wrong");
        self.meets(*there);
        let ends = |_: &mut Made| !mail.shared.lasts.load(Ordering::Relaxed) && !driver::is_broken();
        if let Some(Made { named, blocking, .. }) = there.take_if(ends) {
            driver::bind(self.contexts[0]);
            say!(self, "cuStreamDestroy({named}); // and others name it");
            driver::destroy_stream(named.raw());
            let handle = driver::stream(u32::from(!blocking));
            let named = Named { who: Who::Made(self.name()), handle };
            say!(self, "cuStreamCreate(&{named}, {}); // {handle:#x}", u32::from(!blocking));
            // A driver that has just broken makes none.
            *there = (handle != 0).then_some(Made {
                named,
                permanent: false,
                kept: false,
                declared: false,
                blocking,
            });
            self.meets(*there);
        }
        // Others name the next one, as soon as they may.
        drop(there);
        std::thread::yield_now();
        true
    }

    /// Another thread has ended it, and made the next.
    fn meets(&mut self, there: Option<Made>) {
        let who = there.map(|made| made.named.who);
        if self.shared != who {
            (self.shared, self.streams[0]) = (who, there);
        }
    }
}
