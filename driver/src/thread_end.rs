//! Whether a thread has ended, asked by other threads: nobody queues work on its default stream any more.
//!
//! The flag is raised by the destructor of one of the thread's own values. Those of other values may run later; what they still do comes after
//! the end, as far as this knows. It does not know what the thread did.

use core::cell::OnceCell;
use core::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

/// Of one thread, whether it has ended.
#[doc(hidden)]
#[derive(Clone, Debug)]
pub struct ThreadEnd(Arc<AtomicBool>);

impl ThreadEnd {
    /// Of the calling thread. None where that is ending, and its own values are gone.
    pub fn of_this_thread() -> Option<ThreadEnd> {
        MINE.try_with(|mine| ThreadEnd(Arc::clone(mine.0.get_or_init(Arc::default)))).ok()
    }
    /// Whether it has come. What the thread did by then happens before the answer.
    pub fn has_come(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// Raises the flag of its thread, if anybody has asked for it.
struct Mine(OnceCell<Arc<AtomicBool>>);

impl Drop for Mine {
    fn drop(&mut self) {
        if let Some(flag) = self.0.get() {
            flag.store(true, Ordering::Release);
        }
    }
}

crate::per_thread! {
    static MINE: Mine = Mine(OnceCell::new());
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn the_end_of_a_thread_is_seen_by_others() {
        let here = ThreadEnd::of_this_thread().unwrap();
        let (told, hears) = channel();
        let (go, waits) = channel::<()>();
        let thread = std::thread::spawn(move || {
            told.send([(); 2].map(|()| ThreadEnd::of_this_thread().unwrap())).unwrap();
            waits.recv().unwrap();
        });
        let both = hears.recv().unwrap();
        assert!(both.iter().all(|end| !end.has_come()));
        go.send(()).unwrap();
        thread.join().unwrap();
        assert!(both.iter().all(ThreadEnd::has_come) && !here.has_come());
    }

    /// Asked for by a value that outlives it, a thread's end is not known.
    #[test]
    fn a_thread_whose_values_are_gone_has_no_end_to_ask_for() {
        struct Asks(std::sync::mpsc::Sender<Option<ThreadEnd>>);
        impl Drop for Asks {
            fn drop(&mut self) {
                let _ = self.0.send(ThreadEnd::of_this_thread());
            }
        }
        std::thread_local! { static ASKS: OnceCell<Asks> = const { OnceCell::new() }; }
        let (told, hears) = channel();
        std::thread::spawn(move || {
            // Made first, so that it goes last.
            ASKS.with(|asks| assert!(asks.set(Asks(told)).is_ok()));
            assert!(ThreadEnd::of_this_thread().is_some());
        })
        .join()
        .unwrap();
        assert!(hears.recv().unwrap().is_none_or(|end| end.has_come()));
    }
}
