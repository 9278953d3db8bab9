//! Steady programs of holds, groups, watermarks and idle trims: what these note of memory, members and ages stays bounded, however often they begin and end.
//!
//! It does not know what is compared (`run`), nor which counters there are.

use super::programs::{block, stream, synchronise, writes};
use super::run::{Bench, Steady};
use super::windows;
use millpond::units::{KIB, MIB};
use millpond::{Allocator, Config, Group, Limit, Policy, Stream};
use millpond_testkit::counted::Device;
use std::collections::VecDeque;
use std::time::Duration;

/// Each round holds a block as a whole and a part of it, frees it while it is held, has its bytes again, and drops one hold eight rounds later.
pub fn holds_begin_and_end(b: &Bench) -> Steady {
    let (gpu, device) = (b.gpu.clone(), b.device.clone());
    let s = stream(&gpu);
    let mut held = VecDeque::new();
    let synchronise = synchronise(&s);
    let round = Box::new(move |i: u64| {
        let x = block(&gpu, MIB * (1 + i % 3), &s);
        writes(&device, s.native(), &x);
        held.push_back(gpu.hold(&x).expect("it is there"));
        drop(gpu.hold_range(x.address(), 4 * KIB).expect("it is there"));
        drop(gpu.hold_range(x.address(), x.len() + (1 << 40)).expect_err("no memory is so long"));
        drop(x);
        if held.len() > 8 {
            held.pop_front();
        }
    });
    Steady { round, synchronise, asked: 0 }
}

/// Every sixteenth round has an allocator of its own in a group with one that stays, and more memory than fits beside what that one has idle. Not every
/// round: an allocator has no event before it creates one.
pub fn members_of_a_group_come_and_go(b: &Bench) -> Steady {
    let device = b.device.clone();
    let group = Group::new(Some(48 * MIB), Some(40 * MIB));
    let member = move || {
        let config = windows::config(Policy::Footprint).group(&group);
        let gpu = Allocator::new(device.clone(), config).expect("an allocator");
        let s = stream(&gpu);
        (gpu, s)
    };
    let (device, (stays, s)) = (b.device.clone(), member());
    let synchronise = synchronise(&s);
    let has = move |gpu: &Allocator<Device>, s: &Stream<Device>, mib: u64| {
        let x = block(gpu, mib * MIB, s);
        writes(&device, s.native(), &x);
        drop(x);
        s.synchronize().expect("waited");
    };
    let round = Box::new(move |i: u64| {
        has(&stays, &s, 20 + i % 3);
        if i.is_multiple_of(16) {
            let (gpu, t) = member();
            has(&gpu, &t, 30 + i % 2);
            let members = gpu.report().group.map(|group| group.members.len());
            assert_eq!(members, Some(2), "those that ended have left");
        }
    });
    Steady { round, synchronise, asked: 2 }
}

/// Windows that are thinned, of which now and then all that is idle goes back. By an age of zero: by a longer one the time that the rounds take would
/// decide what goes back.
pub fn idle_memory_goes_back(b: &Bench) -> Steady {
    windows::thinned(b, |gpu, i| {
        if i % 50 == 49 {
            gpu.trim_idle(Duration::ZERO).expect("given back");
        }
    })
}

/// The same where watermarks say how much stays.
pub fn watermarks_are_kept(b: &Bench) -> Steady {
    windows::thinned(b, |gpu, _| {
        gpu.maintain().expect("kept");
    })
}

pub fn marked() -> Config {
    windows::config(Policy::Footprint).watermarks(Limit::Bytes(8 * MIB), Limit::Bytes(24 * MIB))
}
