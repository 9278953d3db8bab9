//! Panics that a test expects by the thousand, of which nothing is printed: each would be a message and, where backtraces are asked for, one of those,
//! which was a third of what such tests cost.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::sync::Once;

thread_local! {
    /// Whether this thread's panics are expected.
    static EXPECTED: Cell<bool> = const { Cell::new(false) };
}

/// What the call comes to, or the panic by which it ended, which is not printed. Other threads' are, and this thread's before and behind it.
pub fn catch<R>(call: impl FnOnce() -> R) -> std::thread::Result<R> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let loud = take_hook();
        set_hook(Box::new(move |panic| {
            if !EXPECTED.get() {
                loud(panic);
            }
        }));
    });
    let before = EXPECTED.replace(true);
    let outcome = catch_unwind(AssertUnwindSafe(call));
    EXPECTED.set(before);
    outcome
}
