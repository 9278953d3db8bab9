//! Panics that a test expects by the thousand, of which nothing is printed: each would be a message and, where backtraces are enabled, one of those,
//! which was a third of what such tests cost.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind, set_hook, take_hook};
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

thread_local! {
    /// Whether this thread's panics are expected.
    static EXPECTED: Cell<bool> = const { Cell::new(false) };
}

/// How many calls of [`all`] run: meanwhile every panic is expected.
static ALL: AtomicUsize = AtomicUsize::new(0);

/// Whether panics that a test planted are expected.
static PLANTED: AtomicBool = AtomicBool::new(false);

/// From the first call on, prints only panics that are not expected.
fn install() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let loud = take_hook();
        set_hook(Box::new(move |panic| {
            let planted = PLANTED.load(Ordering::Relaxed) && is_planted(panic);
            if !EXPECTED.get() && ALL.load(Ordering::Relaxed) == 0 && !planted {
                loud(panic);
            }
        }));
    });
}

fn is_planted(panic: &PanicHookInfo<'_>) -> bool {
    panic.payload().downcast_ref::<String>().is_some_and(|message| message.ends_with("as planted"))
}

/// The result of the call, or the panic that ended it, which is not printed. Panics of other threads are, and this thread's before and after it.
pub fn catch<R>(call: impl FnOnce() -> R) -> std::thread::Result<R> {
    install();
    let before = EXPECTED.replace(true);
    let outcome = catch_unwind(AssertUnwindSafe(call));
    EXPECTED.set(before);
    outcome
}

/// Runs the call, and prints no panic of any thread meanwhile, unless `MILLPOND_LOUD` is set. A panic that ends the call itself passes through, and is
/// not printed.
pub fn all<R>(call: impl FnOnce() -> R) -> R {
    struct Running;
    impl Drop for Running {
        fn drop(&mut self) {
            ALL.fetch_sub(1, Ordering::Relaxed);
        }
    }
    if std::env::var_os("MILLPOND_LOUD").is_some() {
        return call();
    }
    install();
    ALL.fetch_add(1, Ordering::Relaxed);
    let _running = Running;
    call()
}

/// From here on, prints no panic whose message ends with "as planted".
pub fn planted() {
    install();
    PLANTED.store(true, Ordering::Relaxed);
}
