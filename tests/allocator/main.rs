//! The allocator on the simulated device: what callers see, behaviour by behaviour. One binary, so that the allocator is compiled
//! for that device once.

mod edges;
mod fast_path;
mod faults;
mod figures;
mod fuzz_seeds;
mod holds;
mod idle_streams;
mod lifetimes;
mod limits;
mod moves;
mod options_and_refusals;
mod out_of_memory;
mod parity;
mod peaks;
mod pinned_growth;
mod price;
mod report_pieces;
mod requirements;
mod sharing;
mod stream_order;
mod windows;

use millpond_testkit::rig;
