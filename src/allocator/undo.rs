//! What is done if a driver call between two steps panics: what was claimed or taken out goes back.
//!
//! An error is handled where it is met; a panic passes through, and this is on its way.

use std::any::Any;
use std::panic::resume_unwind;

/// A panic that was held back until other steps were done is on its way again. Not beside another one: told again, out of a destructor,
/// it would be the end of the process.
pub(crate) fn resume(panic: Option<Box<dyn Any + Send>>) {
    if let Some(panic) = panic.filter(|_| !std::thread::panicking()) {
        resume_unwind(panic);
    }
}

/// Runs what it was given unless it is forgotten.
pub(crate) struct Undo<F: FnOnce()>(Option<F>);

impl<F: FnOnce()> Undo<F> {
    pub(crate) fn new(undo: F) -> Undo<F> {
        Undo(Some(undo))
    }
    /// The step returned: nothing is undone.
    pub(crate) fn forget(mut self) {
        self.0 = None;
    }
}

impl<F: FnOnce()> Drop for Undo<F> {
    fn drop(&mut self) {
        if let Some(undo) = self.0.take() {
            undo();
        }
    }
}
