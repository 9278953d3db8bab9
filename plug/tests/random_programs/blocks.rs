//! Device memory: allocations, the program's work on them, and all ways to free them.

use super::breaks::may_fail;
use super::{Here, SCRATCH, SIZES, SLOTS, World};
use crate::driver;
use crate::model::{Block, Door, Named, Read, Stats, Uses, Who, last};
use crate::program::{Fault, Verb};
use millpond_plug::status::MillpondStatus as Status;
use millpond_plug::{ffi, torch};
use std::ffi::c_void;
use std::ptr::null_mut;

impl World {
    pub(super) fn device_of(&self, block: usize) -> usize {
        self.doors[self.blocks[block].door].device
    }

    fn device_of_stream(&self, stream: Named) -> usize {
        match stream.who {
            Who::Legacy(device) | Who::PerThread(_, device) => device,
            Who::Made(_) => usize::from(self.streams[3].is_some_and(|m| m.named.who == stream.who)),
        }
    }

    pub(super) fn alloc(&mut self, a: u8, b: u8, c: u8, fault: Fault, here: Here) {
        // PyTorch's allocator is used by PyTorch's functions only.
        let door = self.slots[usize::from(a) % (SLOTS - 1)];
        let (Door { number, device, open, limit, .. }, bytes) =
            (self.doors[door].clone(), SIZES[usize::from(c) % SIZES.len()]);
        let stream = self.stream(b, device, here);
        self.names_to(door, stream);
        let mut at = null_mut();
        let name = self.names + 1;
        let words = format!("millpond_alloc(a{number}, {bytes}, {stream}, &p{name})");
        let status =
            self.call(fault, &words, || ffi::millpond_alloc(number, bytes, stream.raw(), &raw mut at));
        let captures = self.captures(stream);
        match status {
            Status::Ok => {
                assert!(
                    open && (!captures || driver::is_broken()),
                    "{words}: the allocator has ended, or the stream captures"
                );
            }
            Status::OutOfMemory => assert!(limit.is_some() || may_fail(fault), "{words}: {}", last()),
            Status::UnknownAllocator => assert!(!open || self.is_ending(door), "{words}: {}", last()),
            // The request's stream captures, or that of memory that it would have needed.
            Status::Capturing if captures || limit.is_some() && self.may_be_capturing(device) => {}
            _ => assert!(may_fail(fault), "{words}: {status:?}: {}", last()),
        }
        assert_eq!(status == Status::Ok, !at.is_null(), "{words}: it returns a pointer or fails");
        if status == Status::Ok {
            self.born(at.addr(), bytes, door, stream, c);
        }
    }

    pub(super) fn born(&mut self, at: usize, bytes: usize, door: usize, home: Named, c: u8) {
        let name = self.name();
        assert!(at.is_multiple_of(512), "p{name} is {at:#x}");
        for other in self.blocks.iter().chain(self.later.iter().filter(|_| self.concurrent.is_none())) {
            let apart = at + bytes <= other.at || other.at + other.bytes <= at;
            assert!(
                apart,
                "p{name}, {at:#x} + {bytes}, overlaps p{}, {:#x} + {}",
                other.name, other.at, other.bytes
            );
        }
        self.freed.retain(|f| *f != at);
        let own = (door, home.who);
        if matches!(home.who, Who::PerThread(..)) && !self.own.contains(&own) {
            self.own.push(own);
        }
        driver::bind(self.contexts[self.doors[door].device]);
        self.blocks.push(Block {
            name,
            at,
            bytes,
            door,
            home,
            value: None,
            refused: false,
            elsewhere: Vec::new(),
            unsure: false,
            uses: Uses::default(),
        });
        let x = self.blocks.len() - 1;
        if c & 64 == 0 {
            self.access(x, home, true);
        } else if !driver::is_broken() {
            // Another stream may be the first to use it, after the allocation.
            let event = self.event(home);
            self.blocks[x].uses.accessed(home.who, event, true);
        }
    }

    /// The program's work on a block, after the work that it depends on.
    pub(super) fn access(&mut self, x: usize, on: Named, writes: bool) {
        let block = self.blocks[x].clone();
        let device = self.doors[block.door].device;
        driver::bind(self.contexts[self.device_of_stream(on)]);
        // If the driver was broken at the allocation, there is no event that others can wait for: the block's own stream must be the first.
        if self.captures(on) || driver::is_broken() || block.uses.is_fresh() && on.who != block.home.who {
            return;
        }
        self.wait(on, &block.uses.before(on.who, writes));
        let Block { name, at, bytes, .. } = block;
        if writes {
            let value = self.fresh_value();
            say!(self, "cuMemsetD8Async(p{name}, {value}, {bytes}, {on});");
            driver::set(at as u64, value, bytes, on.raw());
            self.blocks[x].value = Some(value);
        } else {
            let Some(value) = block.value else { return };
            let to = self.scratch(bytes, device);
            say!(self, "cuMemcpyDtoDAsync(own, p{name}, {bytes}, {on}); // {value}");
            driver::copy(to, at as u64, bytes, on.raw());
            self.reads.push(Read { at: to, bytes, value, name });
        }
        let event = self.event(on);
        let block = &mut self.blocks[x];
        block.uses.accessed(on.who, event, writes);
        if on.who != block.home.who {
            block.uses.must_be_declared(on.who);
        }
    }

    pub(super) fn scratch(&mut self, bytes: usize, device: usize) -> u64 {
        let at = self.scratch_used;
        self.scratch_used += bytes.next_multiple_of(512);
        assert!(self.scratch_used <= SCRATCH, "the program needs more scratch memory than it has");
        self.scratch[device] + at as u64
    }

    pub(super) fn touch(&mut self, x: usize, b: u8, writes: bool, here: Here) {
        // Mostly the block's own stream, while it exists.
        let home = self.blocks[x].home;
        let on = match self.named(home.who, here) {
            Some(home) if b < 100 => home,
            _ => self.stream(b, self.device_of(x), here),
        };
        self.access(x, on, writes);
    }

    pub(super) fn declare(&mut self, x: usize, stream: Named, fault: Fault) -> bool {
        let Block { name, at, door, home, .. } = self.blocks[x];
        let Door { number, open, .. } = self.doors[door];
        self.names_to(door, stream);
        let words = format!("millpond_record_use(a{number}, p{name}, {stream})");
        let expected = self.answers(open, stream, home);
        let done = self.may(fault, expected, &words, || {
            ffi::millpond_record_use(number, at as *mut c_void, stream.raw())
        });
        if done {
            self.blocks[x].uses.declare(stream.who);
        }
        done
    }

    /// Records all uses that can be recorded, and then frees the block as the verb says if that is correct; otherwise with unknown users.
    pub(super) fn free(&mut self, x: usize, verb: Verb, b: u8, fault: Fault, here: Here) {
        let device = self.device_of(x);
        driver::bind(self.contexts[device]);
        let block = &self.blocks[x];
        let may_have_ended = block.unsure && !block.elsewhere.is_empty();
        if self.is_stuck_elsewhere(block) || self.may_be_stuck(block) || may_have_ended {
            return self.is_not_freed(x, verb, fault);
        }
        let Block { name, at, door, ref uses, .. } = self.blocks[x];
        let (ptr, number, open) = (at as *mut c_void, self.doors[door].number, self.doors[door].open);
        let users: Option<Vec<Named>> = uses.undeclared.iter().map(|&who| self.named(who, here)).collect();
        // A stream that captures cannot be named.
        let stuck = users.iter().flatten().any(|s| self.captures(*s));
        let before = self.held_back(x, fault);
        let freed = match (verb, users) {
            (Verb::Free | Verb::FreeOn, Some(_)) if stuck => self.free_unknown(x, fault),
            (Verb::Free, Some(users)) if open || users.is_empty() => {
                let declared = users.into_iter().all(|s| self.declare(x, s, 0));
                assert!(declared || self.is_ending(door) || driver::is_broken());
                if declared {
                    let words = format!("millpond_free(a{number}, p{name})");
                    let freed = self.must(fault, Status::Ok, &words, || ffi::millpond_free(number, ptr));
                    self.waits_for_no_other(x, before.filter(|_| freed), &[], &words);
                    freed
                } else {
                    self.free_unknown(x, fault)
                }
            }
            (Verb::FreeOn, Some(users)) if open || users.len() < 2 => {
                let (last, others) = match users.split_last() {
                    Some((last, others)) => (*last, others.to_vec()),
                    None => (self.stream(b, device, here), Vec::new()),
                };
                let declared = others.into_iter().all(|s| self.declare(x, s, 0));
                assert!(declared || self.is_ending(door) || driver::is_broken());
                self.names_to(door, last);
                let words = format!("millpond_free_on(a{number}, p{name}, {last})");
                let expected = self.answers(true, last, self.blocks[x].home);
                if declared {
                    let freed =
                        self.may(fault, expected, &words, || ffi::millpond_free_on(number, ptr, last.raw()));
                    let before = before.filter(|_| freed);
                    self.holds_nothing_back(x, before, &[last.who], &words);
                    self.waits_for_no_other(x, before, &[last.who], &words);
                    freed
                } else {
                    self.free_unknown(x, fault)
                }
            }
            (Verb::FreeAfter, Some(mut users)) => {
                if b >= 128 {
                    let more = self.stream(b, device, here);
                    users.insert(usize::from(b) % (users.len() + 1), more);
                }
                let list: Vec<String> = users.iter().map(Named::to_string).collect();
                let words = format!(
                    "millpond_free_after(a{number}, p{name}, {{{}}}, {})",
                    list.join(", "),
                    list.len()
                );
                for stream in &users {
                    self.names_to(door, *stream);
                }
                let raw: Vec<driver::Handle> = users.iter().map(|s| s.raw()).collect();
                let captures = users.iter().any(|s| self.captures(*s));
                let expected = if captures { Status::Capturing } else { Status::Ok };
                let freed = self.must(fault, expected, &words, || {
                    ffi::millpond_free_after(number, ptr, raw.as_ptr(), raw.len())
                });
                self.blocks[x].refused |= !freed;
                let named: Vec<Who> = users.iter().map(|s| s.who).collect();
                let before = before.filter(|_| freed);
                self.holds_nothing_back(x, before, &named, &words);
                self.waits_for_no_other(x, before, &named, &words);
                freed
            }
            _ => self.free_unknown(x, fault),
        };
        if freed {
            self.died(x);
        } else {
            // A driver that failed may have returned that a stream of another device is gone.
            self.blocks[x].unsure |= may_fail(fault) && !self.blocks[x].elsewhere.is_empty();
        }
    }

    /// What is held back, and what is in flight, before a free of this block, if only the free itself can change that.
    fn held_back(&mut self, x: usize, fault: Fault) -> Option<[u64; 2]> {
        if !self.looks() {
            return None;
        }
        let door = &self.doors[self.blocks[x].door];
        // An earlier free that failed may have left uses recorded, because of which this block comes back later.
        let quiet = !self.blocks[x].refused
            && !may_fail(fault)
            && self.concurrent.is_none()
            && self.captures.is_empty();
        (quiet && door.open && !door.torch).then(|| {
            let stats = Stats::of(door.number);
            ["held_back", "in_flight"].map(|name| stats.total(name))
        })
    }

    /// A free that named all users and the block's own stream holds nothing back.
    fn holds_nothing_back(&self, x: usize, before: Option<[u64; 2]>, named: &[Who], words: &str) {
        let Block { door, home, ref uses, .. } = self.blocks[x];
        let Some([before, _]) = before.filter(|_| named.contains(&home.who) && uses.are_all_in(named)) else {
            return;
        };
        let after = Stats::of(self.doors[door].number);
        assert!(after.total("held_back") <= before, "{words}: more than {before} is held back: {after}");
    }

    /// A free of a block that only its own stream has used waits for no other stream. Uses count if the call that recorded them returned OK.
    fn waits_for_no_other(&self, x: usize, before: Option<[u64; 2]>, named: &[Who], words: &str) {
        let Block { door, home, ref uses, .. } = self.blocks[x];
        let alone = uses.are_none() && named.iter().all(|who| *who == home.who);
        let Some([_, before]) = before.filter(|_| alone) else { return };
        let after = Stats::of(self.doors[door].number);
        assert!(
            after.total("in_flight") <= before,
            "{words}: more than {before} is in flight, and only its own stream has used it: {after}"
        );
    }

    fn free_unknown(&mut self, x: usize, fault: Fault) -> bool {
        let before = self.held_back(x, fault);
        let Block { name, at, door, ref uses, .. } = self.blocks[x];
        let Door { number, device, .. } = self.doors[door];
        // If no captures are expected, a block without a user that must be named is marked at once.
        let expects = self.doors.iter().any(|d| d.expects && d.device == device);
        let before = before.filter(|_| !expects && uses.are_all_in(&[]));
        let words = format!("millpond_free_unknown(a{number}, p{name})");
        let freed =
            self.must(fault, Status::Ok, &words, || ffi::millpond_free_unknown(number, at as *mut c_void));
        if let Some([before, _]) = before {
            let after = Stats::of(number);
            assert!(
                after.total("held_back") <= before,
                "{words}: more than {before} is held back, and no captures are expected: {after}"
            );
        }
        freed
    }

    pub(super) fn died(&mut self, x: usize) {
        let block = self.blocks.swap_remove(x);
        if torch::is_put_off(block.at) {
            self.later.push(block);
        } else {
            self.freed.push(block.at);
        }
    }
}
