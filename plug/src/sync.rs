//! The one switch between real locks and atomics and those of a model checker, for the modules by which a call keeps what it looks at:
//! `presence`, `table` and `retired`. `tests/threads_loom/ends.rs` includes these files too, under `--cfg loom`. It does not know what is protected.

#[cfg(not(loom))]
mod real {
    pub(crate) use core::sync::atomic::{
        AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, compiler_fence, fence,
    };
    pub(crate) use parking_lot::Mutex;

    /// Whether a checker has found something and is shutting down: none of its objects may be touched.
    pub(crate) fn is_over() -> bool {
        false
    }

    /// A variable shared by all threads.
    macro_rules! shared {
        ($(#[$attr:meta])* static $name:ident: $t:ty = $init:expr;) => {
            $(#[$attr])* static $name: $t = $init;
        };
    }
    /// A variable of each thread.
    macro_rules! per_thread {
        ($(#[$attr:meta])* static $name:ident: $t:ty = $init:expr;) => {
            std::thread_local! { $(#[$attr])* static $name: $t = const { $init }; }
        };
    }
    /// This many, made alike.
    macro_rules! each {
        ($init:expr; $n:expr) => {
            [const { $init }; $n]
        };
    }
    /// A function that makes the value of a static.
    macro_rules! makes {
        ($(#[$attr:meta])* $vis:vis fn $($rest:tt)*) => {
            $(#[$attr])* $vis const fn $($rest)*
        };
    }
    pub(crate) use {each, makes, per_thread, shared};
}

/// A checker's are made anew for each schedule, and not by constants.
#[cfg(loom)]
mod model {
    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, fence};
    pub(crate) use millpond::sync::Mutex;

    pub(crate) fn is_over() -> bool {
        std::thread::panicking()
    }
    /// No compiler reorders anything here.
    pub(crate) fn compiler_fence(_: core::sync::atomic::Ordering) {}

    macro_rules! shared {
        ($(#[$attr:meta])* static $name:ident: $t:ty = $init:expr;) => {
            loom::lazy_static! { $(#[$attr])* static ref $name: $t = $init; }
        };
    }
    macro_rules! per_thread {
        ($(#[$attr:meta])* static $name:ident: $t:ty = $init:expr;) => {
            loom::thread_local! { $(#[$attr])* static $name: $t = $init; }
        };
    }
    macro_rules! each {
        ($init:expr; $n:expr) => {
            core::array::from_fn(|_| $init)
        };
    }
    macro_rules! makes {
        ($(#[$attr:meta])* $vis:vis fn $($rest:tt)*) => {
            $(#[$attr])* $vis fn $($rest)*
        };
    }
    pub(crate) use {each, makes, per_thread, shared};
}

pub(crate) use core::sync::atomic::Ordering;
#[cfg(loom)]
pub(crate) use model::*;
#[cfg(not(loom))]
pub(crate) use real::*;
