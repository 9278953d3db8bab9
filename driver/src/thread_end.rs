//! Whether a thread has ended, for other threads: after that no more work is queued on its default stream.
//!
//! The destructor of one of the thread's own values raises the flag. Destructors of other values may run later; what they still do comes after
//! the end, as far as this module knows. It does not know what the thread did.

use core::cell::OnceCell;
use core::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

/// Whether one thread has ended.
#[doc(hidden)]
#[derive(Clone, Debug)]
pub struct ThreadEnd(Arc<AtomicBool>);

impl ThreadEnd {
    /// The calling thread's. `None` if that is ending, and its own values are gone.
    pub fn of_this_thread() -> Option<ThreadEnd> {
        MINE.try_with(|mine| ThreadEnd(Arc::clone(mine.0.get_or_init(Arc::default)))).ok()
    }
    /// Whether the thread has ended. What the thread did by then happens before the answer.
    pub fn has_come(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// Raises the flag of its thread, if another thread may query it.
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
        let (sender, receiver) = channel();
        let (go, waits) = channel::<()>();
        let thread = std::thread::spawn(move || {
            sender.send([(); 2].map(|()| ThreadEnd::of_this_thread().unwrap())).unwrap();
            waits.recv().unwrap();
        });
        let both = receiver.recv().unwrap();
        assert!(both.iter().all(|end| !end.has_come()));
        go.send(()).unwrap();
        thread.join().unwrap();
        assert!(both.iter().all(ThreadEnd::has_come) && !here.has_come());
    }

    /// If a value that outlives the flag queries it, a thread's end is not known.
    #[test]
    fn a_thread_whose_values_are_gone_has_no_end() {
        struct Asks(std::sync::mpsc::Sender<Option<ThreadEnd>>);
        impl Drop for Asks {
            fn drop(&mut self) {
                let _ = self.0.send(ThreadEnd::of_this_thread());
            }
        }
        std::thread_local! { static ASKS: OnceCell<Asks> = const { OnceCell::new() }; }
        let (sender, receiver) = channel();
        std::thread::spawn(move || {
            // Made first, so that it is dropped last.
            ASKS.with(|asks| assert!(asks.set(Asks(sender)).is_ok()));
            assert!(ThreadEnd::of_this_thread().is_some());
        })
        .join()
        .unwrap();
        assert!(receiver.recv().unwrap().is_none_or(|end| end.has_come()));
    }
}
