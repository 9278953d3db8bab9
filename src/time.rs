//! The host's time, by which requests bound their waits. It knows nothing of a device's time.

use core::time::Duration;

/// The time since a point that is the same for the whole process.
pub(crate) fn process_time() -> Duration {
    #[cfg(all(test, not(any(loom, shuttle))))]
    if let Some(now) = clock::read() {
        return now;
    }
    millpond_driver::patience::process_time()
}

/// A test's own clock in place of the process's, so that a time bound is counted and not measured.
#[cfg(all(test, not(any(loom, shuttle))))]
pub(crate) mod clock {
    use core::time::Duration;
    use std::cell::RefCell;

    type Clock = Box<dyn FnMut() -> Duration>;

    std::thread_local! {
        static HERE: RefCell<Option<Clock>> = const { RefCell::new(None) };
    }

    /// While `f` runs, this thread's time comes from `clock`.
    pub(crate) fn with<R>(clock: impl FnMut() -> Duration + 'static, f: impl FnOnce() -> R) -> R {
        HERE.set(Some(Box::new(clock)));
        let result = f();
        HERE.set(None);
        result
    }

    pub(super) fn read() -> Option<Duration> {
        let mut clock = HERE.take()?;
        let now = clock();
        HERE.set(Some(clock));
        Some(now)
    }
}
