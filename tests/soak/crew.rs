//! Threads that work the rounds of a random program: they last as long as it, take turns or run at once, and rest between rounds, where
//! the counters are read. A round takes no memory for them.

use millpond_testkit::counting::Account;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

/// What a thread does next.
#[derive(Clone, Copy)]
pub enum Task {
    /// This step.
    One(usize),
    /// All steps that are its own.
    Own,
}

struct State {
    /// By thread; none while it rests.
    tasks: Vec<Option<Task>>,
    over: bool,
    /// What one panicked with.
    failed: Option<String>,
}

struct Shared {
    state: Mutex<State>,
    wake: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no thread panics while it holds the lock")
    }
}

/// The threads.
pub struct Crew {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

/// The table in which parked threads are found grows with the number of threads that ever parked, and never shrinks: it counts for no account.
fn park_once() {
    Account::unassigned().scope(|| {
        let (lock, wake) = (parking_lot::Mutex::new(()), parking_lot::Condvar::new());
        wake.wait_for(&mut lock.lock(), Duration::from_nanos(1));
    });
}

impl Crew {
    /// So many threads, on the account and with the planted bug of this one. `work` receives the thread's number and its work.
    pub fn new(threads: usize, work: impl Fn(usize, Task) + Send + Sync + 'static) -> Crew {
        let state = State { tasks: vec![None; threads], over: false, failed: None };
        let shared = Arc::new(Shared { state: Mutex::new(state), wake: Condvar::new() });
        let (work, account) = (Arc::new(work), Account::here());
        #[cfg(millpond_mutants)]
        let bug = millpond::mutant::current();
        park_once();
        let one = |me: usize| {
            let (shared, work) = (Arc::clone(&shared), Arc::clone(&work));
            std::thread::spawn(move || {
                park_once();
                #[cfg(millpond_mutants)]
                let _planted = millpond::mutant::plant(bug);
                account.scope(|| works(&shared, me, &*work));
            })
        };
        Crew { threads: (0..threads).map(one).collect(), shared }
    }

    /// Gives a thread something to do.
    pub fn give(&self, thread: usize, task: Task) {
        self.shared.lock().tasks[thread] = Some(task);
        self.shared.wake.notify_all();
    }

    /// Waits until all have done what they were given.
    ///
    /// # Panics
    /// If one of them did.
    pub fn rest(&self) {
        let mut state = self.shared.lock();
        while state.tasks.iter().any(Option::is_some) {
            state = self.shared.wake.wait(state).expect("no thread panics while it holds the lock");
        }
        let failed = state.failed.take();
        drop(state);
        if let Some(why) = failed {
            panic!("on another thread: {why}");
        }
    }
}

fn works(shared: &Shared, me: usize, work: &dyn Fn(usize, Task)) {
    let mut state = shared.lock();
    while !state.over {
        let Some(task) = state.tasks[me] else {
            state = shared.wake.wait(state).expect("no thread panics while it holds the lock");
            continue;
        };
        drop(state);
        let done = catch_unwind(AssertUnwindSafe(|| work(me, task)));
        state = shared.lock();
        if let Err(why) = done {
            state.failed = Some(why.downcast_ref::<String>().cloned().unwrap_or_default());
        }
        state.tasks[me] = None;
        shared.wake.notify_all();
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        self.shared.lock().over = true;
        self.shared.wake.notify_all();
        for thread in self.threads.drain(..) {
            // Its panic was reported.
            let _ = thread.join();
        }
    }
}
