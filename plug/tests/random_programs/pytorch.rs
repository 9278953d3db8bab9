//! `PyTorch`'s functions. Failures of those without a code are counted; those that would throw return null, because there is no C++ here.

use super::breaks::may_fail;
use super::{Here, SIZES, World};
use crate::driver;
use crate::model::{Block, Door, Named, Stats, Who, last};
use crate::program::{Fault, Verb};
use millpond_plug::status::MillpondStatus as Status;
use millpond_plug::{ffi, torch};
use std::ffi::c_void;
use std::ptr::null_mut;

impl World {
    pub(super) fn torch_alloc(&mut self, b: u8, c: u8, fault: Fault, here: Here) {
        let device = usize::from(b >= 192);
        let door = self.torch[device];
        let Door { open, limit, .. } = self.doors[door];
        if !open {
            return;
        }
        let (stream, bytes) = (self.stream(b, device, here), SIZES[usize::from(c) % SIZES.len()]);
        self.names_to(door, stream);
        let words = format!("p{} = millpond_torch_alloc({bytes}, {device}, {stream})", self.names + 1);
        let mut at = null_mut();
        let captures = self.captures(stream);
        let status = self.call(fault, &words, || {
            at = torch::millpond_torch_alloc(bytes, i32::from(device > 0), stream.raw());
            if at.is_null() { Status::OutOfMemory } else { Status::Ok }
        });
        if status == Status::Ok {
            assert!(!captures, "{words}: the stream captures");
            self.born(at.addr(), bytes, door, stream, c);
        } else {
            assert!(captures || limit.is_some() || may_fail(fault), "{words}: {}", last());
        }
    }

    /// A call without a code. Whether it failed shows in the thread's last failure, and in the count of all threads' failures.
    fn without_code(&mut self, fault: Fault, words: &str, call: impl FnOnce()) -> bool {
        let alone = self.concurrent.is_none();
        // This call handles all devices, and may fail on each.
        let most = if words.starts_with("millpond_torch_empty_cache") { 2 } else { 1 };
        let status = self.call(fault, words, || {
            let (before, another) = (torch::millpond_torch_untold(), another_failure());
            call();
            let more = torch::millpond_torch_untold() - before;
            let failed = last() != another;
            assert!(
                if alone {
                    (u64::from(failed)..=most * u64::from(failed)).contains(&more)
                } else {
                    more > 0 || !failed
                },
                "one call counted {more} failures"
            );
            if failed { Status::Driver } else { Status::Ok }
        });
        status == Status::Ok
    }

    /// Waits for the device and gives idle memory back, as `PyTorch` does, without ending a capture.
    pub(super) fn torch_empty_cache(&mut self, fault: Fault) {
        let at_once = self.concurrent.is_some();
        let well = self.torch.map(|door| self.waits_beside_captures(door, fault)) == [Status::Ok; 2];
        let done =
            self.without_code(fault, "millpond_torch_empty_cache()", || torch::millpond_torch_empty_cache());
        assert!(done == well || !done && may_fail(fault), "{well}: {}", last());
        if !done || at_once {
            return;
        }
        let waits = self.later.iter().find(|b| !self.is_stuck_elsewhere(b) && !self.may_be_stuck(b));
        assert!(waits.is_none() || may_fail(fault), "{waits:?} is put off for no reason");
        for door in self.torch {
            let stats = Stats::of(self.doors[door].number);
            assert_eq!(stats.total("held_back"), 0, "the device is idle: {stats}");
            let (number, mut freed) = (self.doors[door].number, 77);
            let words = format!("millpond_trim(a{number}, &freed)");
            let trimmed = self.must(0, Status::Ok, &words, || ffi::millpond_trim(number, &raw mut freed));
            assert!(trimmed && freed == 0 || may_fail(fault), "{freed} bytes were still idle: {stats}");
        }
    }

    /// Sets the limit as a share of the device's 64 GiB.
    pub(super) fn torch_memory_fraction(&mut self, door: usize, b: u8, fault: Fault) {
        let device = self.doors[door].device;
        let (fraction, limit) = [(1.0, 64 << 30), (1.0 / 65_536.0, 1 << 20), (0.0, 0)][usize::from(b) % 3];
        let words = format!("millpond_torch_memory_fraction({fraction}, {device})");
        let done = self.without_code(fault, &words, || {
            torch::millpond_torch_memory_fraction(fraction, i32::from(device > 0));
        });
        assert!(done || may_fail(fault), "{words}: {}", last());
        if done {
            self.doors[door].limit = Some(limit);
            let now = Stats::of(self.doors[door].number).limit();
            assert_eq!(now, Some(limit), "{words}");
        }
    }

    /// Looks up where an allocation begins. Allocations of other allocators than `PyTorch`'s are not found.
    pub(super) fn torch_base(&mut self, x: usize, offset: usize) {
        let Block { name, at, bytes, door, .. } = self.blocks[x];
        let ours = self.doors[door].torch;
        if !ours && (self.concurrent.is_some() || self.steady) {
            return;
        }
        let (mut begin, mut size) = (null_mut(), 77);
        let words = format!("millpond_torch_base(p{name} + {offset}, &size)");
        let done = self.without_code(0, &words, || {
            begin = torch::millpond_torch_base((at + offset) as *mut c_void, &raw mut size);
        });
        let expected = if ours { (true, at, bytes) } else { (false, 0, 77) };
        assert_eq!((done, begin.addr(), size), expected, "{words}");
    }

    /// Invalid shares, and shares of invalid devices.
    pub(super) fn torch_hostile(&mut self, b: u8) {
        if self.steady {
            return;
        }
        let (fraction, device) =
            [(1.5, 0), (-0.5, 0), (f64::NAN, 0), (0.5, -1), (0.5, 64)][usize::from(b) % 5];
        let words = format!("millpond_torch_memory_fraction({fraction}, {device})");
        let done = self.without_code(0, &words, || torch::millpond_torch_memory_fraction(fraction, device));
        assert!(!done, "{words} succeeded");
    }

    /// A use on a stream, and `record_stream`: if the use cannot be recorded, the users are unknown from then on.
    pub(super) fn torch_use(&mut self, x: usize, b: u8, fault: Fault, here: Here) {
        if b & 16 > 0 {
            return self.torch_use_elsewhere(x, b, fault, here);
        }
        let stream = self.stream(b, self.device_of(x), here);
        self.access(x, stream, b >= 128);
        self.record_stream(x, stream, fault);
        self.blocks[x].uses.declare(stream.who);
    }

    fn record_stream(&mut self, x: usize, stream: Named, fault: Fault) {
        let Block { name, at, door, .. } = self.blocks[x];
        self.names_to(door, stream);
        if may_fail(fault) || self.captures(stream) {
            self.keep(stream);
            self.blocks[x].unsure = true;
        }
        let words = format!("millpond_torch_record_stream(p{name}, {stream})");
        let done = self.without_code(fault, &words, || {
            torch::millpond_torch_record_stream(at as *mut c_void, stream.raw());
        });
        assert!(done, "p{name} and its stream exist: {}", last());
    }

    /// The stream is never destroyed from now on, as `PyTorch`'s streams are not.
    fn keep(&mut self, stream: Named) {
        if let Some(made) = self.streams.iter_mut().flatten().find(|m| m.named.who == stream.who) {
            made.kept = true;
        }
        self.lasts(stream);
    }

    /// The same on a stream of the other device, which is not destroyed from then on. The use is recorded before it is made, so that the free knows of it
    /// whatever fails meanwhile.
    fn torch_use_elsewhere(&mut self, x: usize, b: u8, fault: Fault, here: Here) {
        let there = 1 - self.device_of(x);
        let stream = self.stream((b & !7) | (b % 6), there, here);
        if !matches!(stream.who, Who::Made(_)) {
            return;
        }
        self.keep(stream);
        self.names_to(self.torch[there], stream);
        self.record_stream(x, stream, fault);
        let block = &mut self.blocks[x];
        if !block.elsewhere.contains(&stream.who) {
            block.elsewhere.push(stream.who);
        }
        block.uses.declare(stream.who);
        self.access(x, stream, b >= 128);
    }

    /// Whether a stream of another device that uses the block captures: then the block cannot be freed.
    pub(super) fn is_stuck_elsewhere(&self, block: &Block) -> bool {
        let captures = |who: &Who| {
            let made = self.streams.iter().flatten().find(|m| m.named.who == *who);
            made.is_some_and(|m| self.captures(m.named))
        };
        block.elsewhere.iter().any(captures)
    }

    /// Whether a stream whose device could not be queried may be such a stream. Then a free may be refused, or not.
    pub(super) fn may_be_stuck(&self, block: &Block) -> bool {
        block.unsure && (self.concurrent.is_some() || !self.captures.is_empty())
    }

    /// Tries to free such a block by functions that return a code.
    pub(super) fn is_not_freed(&mut self, x: usize, verb: Verb, fault: Fault) {
        let Block { name, at, door, .. } = self.blocks[x];
        let (number, ptr) = (self.doors[door].number, at as *mut c_void);
        let (call, words): (extern "C" fn(u32, *mut c_void) -> Status, _) = match verb {
            Verb::Free if self.blocks[x].uses.undeclared.is_empty() => (ffi::millpond_free, "millpond_free"),
            _ => (ffi::millpond_free_unknown, "millpond_free_unknown"),
        };
        let stuck = self.is_stuck_elsewhere(&self.blocks[x]);
        let unknown = words.ends_with("unknown");
        // If the stream's device cannot be queried it is not known what the stream has pending: a free with unknown users comes after a wait.
        let expected: &[Status] = match (stuck, unknown) {
            (true, _) => &[Status::Capturing],
            (false, true) => &[Status::Capturing, Status::Ok],
            (false, false) => &[Status::Capturing, Status::Driver, Status::Ok],
        };
        self.freeing = Some(at);
        let words = format!("{words}(a{number}, p{name})");
        let freed = self.may(fault, expected, &words, || call(number, ptr));
        self.freeing = None;
        if freed {
            self.died(x);
        } else if !unknown && !stuck {
            self.is_not_freed(x, Verb::FreeUnknown, 0);
        }
    }

    /// Drops from the list the blocks whose frees were carried out.
    pub(super) fn drop_freed(&mut self) {
        if self.later.is_empty() || self.concurrent.is_some() {
            return;
        }
        let Self { later, freed, .. } = self;
        later.retain(|block| {
            let waits = torch::is_put_off(block.at);
            if !waits {
                freed.push(block.at);
            }
            waits
        });
    }

    /// Whether no free is put off, after all threads have ended.
    pub(super) fn all_frees_done(&mut self) -> bool {
        if self.concurrent.is_some() {
            // The program has freed all its blocks of PyTorch's allocators: as many frees are still put off as blocks are live there.
            let alive = |door: &usize| Stats::of(self.doors[*door].number).total("live");
            let most = self.torch.iter().map(alive).sum::<u64>();
            self.later.truncate(most as usize);
        }
        self.later.is_empty()
    }

    pub(super) fn torch_free(&mut self, x: usize, fault: Fault, here: Here) {
        let Block { name, at, bytes, home, ref uses, door, .. } = self.blocks[x];
        let device = self.doors[door].device;
        let users: Option<Vec<Named>> = uses.undeclared.iter().map(|&who| self.named(who, here)).collect();
        let (Some(users), Some(home)) = (users, self.named(home.who, here)) else {
            return self.free(x, Verb::FreeUnknown, 0, fault, here);
        };
        self.names_to(self.blocks[x].door, home);
        for stream in users {
            self.record_stream(x, stream, 0);
        }
        let words = format!("millpond_torch_free(p{name}, {bytes}, {device}, {home})");
        self.freeing = Some(at);
        let done = self.without_code(fault, &words, || {
            torch::millpond_torch_free(at as *mut c_void, bytes, i32::from(device > 0), home.raw());
        });
        self.freeing = None;
        let block = &self.blocks[x];
        let (stuck, may_be) = (self.is_stuck_elsewhere(block), self.may_be_stuck(block));
        let looked_for = block.unsure || !block.elsewhere.is_empty();
        // The driver failed when the stream's id was queried, so the stream may count as ended.
        let may_have_ended = block.unsure && !block.elsewhere.is_empty();
        assert!(!(done && stuck) || driver::is_broken(), "{words} did not wait for a stream that captures");
        assert!(
            // Or no driver answers any more, and the stream cannot be identified.
            done || stuck || may_be || may_have_ended || looked_for && may_fail(fault) || driver::is_broken(),
            "p{name} exists: {}",
            last()
        );
        self.died(x);
    }
}

/// Makes a call that fails in a way no other call does, and returns its message, which is the thread's last failure now.
fn another_failure() -> String {
    let status = ffi::millpond_trim(u32::MAX, null_mut());
    assert_eq!(status, Status::UnknownAllocator);
    last()
}
