//! Steps that undo what was claimed or taken out if a driver call in between panics.
//!
//! An error is handled where it occurs; a panic unwinds, and these steps run in the unwinding.

use std::any::Any;
use std::panic::resume_unwind;

/// Resumes a panic that was held back until other steps were done. Not during another panic: resumed out of a destructor,
/// it would abort the process.
pub(crate) fn resume(panic: Option<Box<dyn Any + Send>>) {
    if let Some(panic) = panic.filter(|_| !std::thread::panicking()) {
        resume_unwind(panic);
    }
}

/// Runs its closure when dropped, unless it is forgotten.
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
