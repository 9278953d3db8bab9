//! Ended values of a table: each leaves the table when nothing is left of it, after the calls that may have found it before its end.
//!
//! Such a call may still create something in it. So what is left is checked only after they have returned: what is absent then stays absent.
//! `tests/threads_loom/ends.rs` runs every schedule of it. It does not know what ends.

use crate::presence::Calls;
use crate::sync::{Mutex, makes};
use crate::table::Table;
use std::collections::VecDeque;

/// An ended value, and the calls that may have begun before its end.
struct Ended {
    number: u32,
    before: Calls,
}

/// The ended values, in order of their ends.
pub(crate) struct Retired(Mutex<VecDeque<Ended>>);

impl Retired {
    makes! {
        pub(crate) fn new() -> Retired {
            Retired(Mutex::new(VecDeque::new()))
        }
    }

    /// A value has ended: a call that begins now and finds it sees that.
    pub(crate) fn ended(&self, number: u32) {
        let before = Calls::now();
        self.0.lock().push_back(Ended { number, before });
    }

    /// Removes from the table the ended values of which nothing is left, except the most recent ones.
    pub(crate) fn reclaim<T, const N: usize>(
        &self,
        table: &Table<T, N>,
        last: usize,
        is_spent: impl Fn(u32) -> bool,
    ) {
        let mut ended = self.0.lock();
        let old = ended.len().saturating_sub(last);
        let mut at = 0;
        ended.retain_mut(|ended| {
            at += 1;
            let may_be_called = !mutant!(DoorRemovedEarly) && !ended.before.are_over();
            let stays = at > old || may_be_called || !is_spent(ended.number);
            if !stays {
                table.leaves(ended.number);
            }
            stays
        });
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::Retired;
    use crate::presence::enter;
    use crate::table::Table;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
    use std::sync::mpsc::channel;

    #[derive(Default)]
    struct Value {
        closed: AtomicBool,
        made: AtomicUsize,
    }

    /// A call finds a value open and pauses, the value ends and is to be removed, and the call creates something in it.
    /// Whether what it created can be found then.
    fn is_found_behind_the_call() -> bool {
        let (table, retired) = (Table::<Value, 2>::new(), Retired::new());
        let is_spent = |_| table.at(0).is_none_or(|value| value.made.load(SeqCst) == 0);
        assert!(table.put(|_| Box::default()).is_some());
        let ((sender, receiver), (go, gone)) = (channel(), channel::<()>());
        std::thread::scope(|scope| {
            let call = scope.spawn(|| {
                let (sender, gone) = (sender, gone);
                let here = enter();
                let value = table.at(0).expect("it is there");
                assert!(!value.closed.load(SeqCst));
                sender.send(()).expect("the receiver waits");
                gone.recv().expect("a message");
                value.made.fetch_add(1, SeqCst);
                drop(here);
                table.at(0).is_some()
            });
            receiver.recv().expect("a message");
            table.at(0).expect("it is there").closed.store(true, SeqCst);
            retired.ended(0);
            retired.reclaim(&table, 1, is_spent);
            assert!(table.at(0).is_some(), "it is the last that ended");
            retired.reclaim(&table, 0, is_spent);
            go.send(()).expect("it waits");
            let found = call.join().expect("it is well");
            retired.reclaim(&table, 0, is_spent);
            let Some(value) = table.at(0) else { return false };
            assert_eq!(value.made.fetch_sub(1, SeqCst), 1);
            // Calls of other tests' threads may be under way.
            while table.at(0).is_some() {
                retired.reclaim(&table, 0, is_spent);
                std::thread::yield_now();
            }
            found
        })
    }

    #[test]
    fn what_a_call_makes_of_one_that_has_ended_can_be_found() {
        assert!(is_found_behind_the_call());
    }

    #[cfg(millpond_mutants)]
    #[test]
    fn one_that_is_removed_under_a_call_is_detected() {
        let _planted = pond::mutant::plant(Some(pond::mutant::Bug::DoorRemovedEarly));
        assert!(!is_found_behind_the_call());
    }
}
