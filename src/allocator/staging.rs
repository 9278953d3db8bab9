//! The threads that move the bytes of staged copies: started by the first copy that wants them, shared by all copies of one allocator, ended with it.
//!
//! A thread runs what a copy gives it, in the order of all copies' pieces, so that two copies at once share the threads piece by piece. What it runs moves
//! bytes between slices: it makes no driver call, takes no lock of the allocator and frees nothing. A copy does not end before what it gave is over: the
//! threads' scope sees to that, even in a panic.
//!
//! It does not know what is copied, nor slots. Where threads cannot be started there are none, and the caller does all the work.

use super::config::Config;
use core::fmt;

#[cfg(not(any(loom, shuttle)))]
pub(crate) use rayon_core::Scope;
#[cfg(not(any(loom, shuttle)))]
use rayon_core::{ThreadPool, ThreadPoolBuilder};
#[cfg(not(any(loom, shuttle)))]
use std::sync::OnceLock;

/// An allocator's staging threads.
pub(crate) struct StagingThreads {
    count: usize,
    #[cfg(not(any(loom, shuttle)))]
    pool: OnceLock<Option<ThreadPool>>,
}

#[cfg(not(any(loom, shuttle)))]
impl StagingThreads {
    pub(crate) fn new(config: &Config) -> StagingThreads {
        StagingThreads { count: config.threads_to_stage(), pool: OnceLock::new() }
    }

    /// How many there are, or will be.
    pub(crate) fn count(&self) -> usize {
        if let Some(None) = self.pool.get() { 0 } else { self.count }
    }

    /// Runs `f`, on this thread, with the threads if they are `wanted` and there are any; returns when everything that it spawned is over.
    pub(crate) fn scope<'scope, R>(&self, wanted: bool, f: impl FnOnce(Option<&Scope<'scope>>) -> R) -> R {
        let threads = if wanted && self.count > 0 { self.started() } else { None };
        match threads {
            Some(pool) => pool.in_place_scope(|scope| f(Some(scope))),
            None => f(None),
        }
    }

    fn started(&self) -> Option<&ThreadPool> {
        let start = || {
            let named = |i| format!("millpond-stage-{i}");
            ThreadPoolBuilder::new().num_threads(self.count).thread_name(named).build().ok()
        };
        self.pool.get_or_init(start).as_ref()
    }
}

/// A model checker's threads are its own: there are none here.
#[cfg(any(loom, shuttle))]
pub(crate) struct Scope<'scope>(core::marker::PhantomData<&'scope ()>);

#[cfg(any(loom, shuttle))]
impl<'scope> Scope<'scope> {
    pub(crate) fn spawn(&self, run: impl FnOnce(&Scope<'scope>)) {
        run(self);
    }
}

#[cfg(any(loom, shuttle))]
impl StagingThreads {
    pub(crate) fn new(config: &Config) -> StagingThreads {
        StagingThreads { count: config.threads_to_stage() }
    }
    pub(crate) fn count(&self) -> usize {
        self.count
    }
    pub(crate) fn scope<'scope, R>(&self, _: bool, f: impl FnOnce(Option<&Scope<'scope>>) -> R) -> R {
        f(None)
    }
}

impl fmt::Debug for StagingThreads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StagingThreads({})", self.count())
    }
}
