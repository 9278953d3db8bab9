//! The end of an allocator of the C interface beside a call that may have found it: the interface's own files, `plug/src/presence.rs`, `table.rs`
//! and `retired.rs`, on loom's atomics.
//!
//! Where the kernel makes the fences (`membarrier`), each call has one then that it is in the middle of; here each has one of its own, as where
//! the kernel does not know how. The smallest program: a thread makes one call, and the other ends what that call is for and lets it go.

use crate::presence::enter;
use crate::retired::Retired;
use crate::table::Table;
use crate::{explore, is_caught};
use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use loom::thread;
use millpond::mutant::{self, Bug};
use std::sync::Arc;

struct Value {
    closed: AtomicBool,
    /// What calls made of it that is alive: ordered by nothing here.
    made: AtomicUsize,
    /// Not explored. It is said here only, so that who looks too late looks at no other's bytes.
    freed: std::sync::atomic::AtomicBool,
}

impl Value {
    fn is_freed(&self) -> bool {
        self.freed.load(Ordering::SeqCst)
    }
}

struct World {
    table: Table<Value, 1>,
    retired: Retired,
    freed: std::sync::Mutex<Vec<Box<Value>>>,
}

impl World {
    /// As a create does, which comes later.
    fn lets_go(&self) {
        let here = enter();
        let is_spent = |_| self.table.at(0).is_none_or(|value| value.made.load(Ordering::Relaxed) == 0);
        self.retired.reclaim(&self.table, 0, is_spent);
        let gone = self.table.gone();
        let mut alive = 0;
        for value in &gone {
            alive += value.made.load(Ordering::Relaxed);
            value.freed.store(true, Ordering::SeqCst);
        }
        self.freed.lock().expect("no panic").extend(gone);
        // Not in the call, which would be left while this thread panics: loom cannot have that.
        drop(here);
        assert_eq!(alive, 0, "what is alive is freed with it");
    }
}

fn an_allocator_ends_beside_a_call() {
    let (table, retired) = (Table::new(), Retired::new());
    let world = Arc::new(World { table, retired, freed: std::sync::Mutex::default() });
    let put = world.table.put(|_| {
        let (closed, made) = (AtomicBool::new(false), AtomicUsize::new(0));
        Box::new(Value { closed, made, freed: std::sync::atomic::AtomicBool::new(false) })
    });
    assert!(put.is_some());
    let beside = Arc::clone(&world);
    let call = thread::spawn(move || {
        let here = enter();
        let found = beside.table.at(0).map(|value| {
            let is_open = !value.closed.load(Ordering::Relaxed);
            if is_open {
                value.made.fetch_add(1, Ordering::Relaxed);
            }
            (is_open, value.is_freed())
        });
        drop(here);
        let (is_open, is_freed) = found.unwrap_or_default();
        assert!(!is_freed, "in the call that found it");
        is_open
    });
    {
        let _here = enter();
        if let Some(value) = world.table.at(0) {
            value.closed.store(true, Ordering::Release);
        }
        world.retired.ended(0);
    }
    world.lets_go();
    if call.join().expect("its own panic is the model's") {
        let value = world.table.at(0).expect("what the call made is found");
        assert_eq!((value.made.fetch_sub(1, Ordering::Relaxed), value.is_freed()), (1, false));
    }
    world.lets_go();
    assert_eq!(world.freed.lock().expect("no panic").len(), 1, "nothing keeps it any more");
}

#[test]
fn an_allocator_that_ends_stays_for_the_calls_that_found_it() {
    explore(None, an_allocator_ends_beside_a_call);
}

#[test]
fn an_allocator_that_goes_too_early_is_found() {
    for bug in [Bug::DoorRemovedEarly, Bug::DoorFreedEarly, Bug::DoorBarrierSkipped] {
        // All threads of a program are one thread of the machine, for which it is planted.
        let _planted = mutant::plant(Some(bug));
        assert!(is_caught(an_allocator_ends_beside_a_call), "{bug}");
    }
}
