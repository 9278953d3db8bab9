//! Bugs that this package's own tests plant, to show that each is found. An ordinary build has none: [`planted`] is `false` there.

/// A bug that can be planted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Bug {
    /// A device slot is copied to before what used it is over.
    ConsumptionUnwaited,
    /// A batch is delivered without its copy being waited for.
    ArrivalUnwaited,
    /// Slots are made beyond the budget.
    BudgetIgnored,
    /// Batches are queued as they are filled, not in their order.
    Unordered,
    /// A dropped batch marks nothing.
    DropUnmarked,
    /// A drain's copy does not wait for the stream whose result it takes.
    ResultUnwaited,
    /// Results go to sinks while an earlier one's copy is not known to be whole.
    TurnIgnored,
}

/// Whether this bug is planted.
#[cfg(not(test))]
#[inline]
pub(crate) const fn planted(_: Bug) -> bool {
    false
}

#[cfg(test)]
pub(crate) use chosen::{planted, planting};

#[cfg(test)]
mod chosen {
    use super::Bug;
    use parking_lot::{Mutex, RwLock};

    static PLANTED: RwLock<Option<Bug>> = RwLock::new(None);
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

    /// Whether this bug is planted.
    pub(crate) fn planted(bug: Bug) -> bool {
        *PLANTED.read() == Some(bug)
    }

    /// Runs with a bug planted, or with none. Tests that do this, for all threads see the bug, wait for each other.
    pub(crate) fn planting<R>(bug: Option<Bug>, run: impl FnOnce() -> R) -> R {
        struct Pulled;
        impl Drop for Pulled {
            fn drop(&mut self) {
                *PLANTED.write() = None;
            }
        }
        let _one = ONE_AT_A_TIME.lock();
        *PLANTED.write() = bug;
        let _pulled = Pulled;
        run()
    }
}
