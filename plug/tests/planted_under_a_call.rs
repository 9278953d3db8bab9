//! A bug of private parts of the C interface, an ended value that is removed under a call which may have found it, planted: the unit tests of
//! `plug/src/retired.rs` and what it stands on, in a program of their own. As unit tests of the library they would be a second optimised build of all that is beneath it, with
//! other features than `.ci/mutants` builds for the rest.

#![cfg(millpond_mutants)]
#![allow(dead_code, clippy::doc_markdown, reason = "parts of a library, without what uses them")]

macro_rules! mutant {
    ($bug:ident) => {
        pond::mutant::is(pond::mutant::Bug::$bug)
    };
}

#[path = "../src/presence.rs"]
mod presence;
#[path = "../src/retired.rs"]
mod retired;
#[path = "../src/sync.rs"]
mod sync;
#[path = "../src/table.rs"]
mod table;
