//! Everything may be dropped in every order, on every thread, at any time; every knob may be turned, every absurd number
//! asked for, every callback may panic. Afterwards both oracles are content and the device has everything back.

#![allow(clippy::many_single_char_names, reason = "streams a, b, c and blocks x, y, z, as in the traces")]

#[path = "lifetimes/adoption.rs"]
mod adoption;
#[path = "lifetimes/bounds.rs"]
mod bounds;
#[path = "lifetimes/callbacks.rs"]
mod callbacks;
#[path = "lifetimes/captures.rs"]
mod captures;
#[path = "lifetimes/default_streams.rs"]
mod default_streams;
#[path = "lifetimes/disturbed.rs"]
mod disturbed;
#[path = "lifetimes/hidden.rs"]
mod hidden;
#[path = "lifetimes/kept.rs"]
mod kept;
#[path = "lifetimes/knobs.rs"]
mod knobs;
#[path = "lifetimes/orders.rs"]
mod orders;
#[path = "lifetimes/pinned.rs"]
mod pinned;
#[path = "lifetimes/remembered.rs"]
mod remembered;
mod rig;
#[path = "lifetimes/uses.rs"]
mod uses;
