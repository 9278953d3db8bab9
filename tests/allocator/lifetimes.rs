//! Everything may be dropped in every order, on every thread, at any time; every knob may be turned, every absurd number
//! asked for, every callback may panic. Afterwards both oracles are content and the device has everything back.

#![allow(clippy::many_single_char_names, reason = "streams a, b, c and blocks x, y, z, as in the traces")]

mod adoption;
mod aligned;
mod bounds;
mod callbacks;
mod captures;
mod default_streams;
mod disturbed;
mod endless;
mod ends;
mod hidden;
mod kept;
mod midway;
mod options;
mod orders;
mod pinned;
mod remembered;
mod uses;
