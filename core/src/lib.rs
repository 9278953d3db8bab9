#![doc = include_str!("../README.md")]

// Planted bugs; ordinary builds have none.
#[macro_use]
extern crate millpond_driver as driver;

pub mod heap;
pub mod laws;
pub mod order;
pub mod physical;

use driver::units;
