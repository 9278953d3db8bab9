//! The allocator on the simulated device: what callers see, behaviour by behaviour. One binary, so that the allocator is compiled
//! for that device once.

mod corners;
mod fast_path;
mod faults;
mod figures;
mod fuzz_seeds;
mod lifetimes;
mod out_of_memory;
mod parity;
mod peaks;
mod report_pieces;
mod rows_allocator;
mod stream_order;
mod windows;

use millpond_testkit::rig;
