//! `PyTorch`'s functions. Where they have nobody to tell they count, and where they would throw they answer null: there is no C++ here.

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
            assert!(!captures, "{words}: it captures");
            self.born(at.addr(), bytes, door, stream, c);
        } else {
            assert!(captures || limit.is_some() || may_fail(fault), "{words}: {}", last());
        }
    }

    /// A call with nobody to tell: what it came to, by what the thread's last failure says, and by the count of all threads' failures.
    fn untold(&mut self, fault: Fault, words: &str, call: impl FnOnce()) -> bool {
        let alone = self.mail.is_none();
        // It is for all devices, and tries each.
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
                "{more} failures of one call"
            );
            if failed { Status::Driver } else { Status::Ok }
        });
        status == Status::Ok
    }

    /// Waits for the device and gives idle memory back, as `PyTorch` does, and ends no capture.
    pub(super) fn torch_empty_cache(&mut self, fault: Fault) {
        let at_once = self.mail.is_some();
        let well = self.torch.map(|door| self.waits_beside_captures(door, fault)) == [Status::Ok; 2];
        let done = self.untold(fault, "millpond_torch_empty_cache()", || torch::millpond_torch_empty_cache());
        assert!(done == well || !done && may_fail(fault), "{well}: {}", last());
        if !done || at_once {
            return;
        }
        let waits = self.later.iter().find(|b| !self.is_stuck_elsewhere(b) && !self.may_be_stuck(b));
        assert!(waits.is_none() || may_fail(fault), "{waits:?} waits for nobody");
        for door in self.torch {
            let stats = Stats::of(self.doors[door].number);
            assert_eq!(stats.total("held_back"), 0, "the device is quiet: {stats}");
            let (number, mut freed) = (self.doors[door].number, 77);
            let words = format!("millpond_trim(a{number}, &freed)");
            let trimmed = self.must(0, Status::Ok, &words, || ffi::millpond_trim(number, &raw mut freed));
            assert!(trimmed && freed == 0 || may_fail(fault), "{freed} bytes were idle still: {stats}");
        }
    }

    /// The device has 64 GiB.
    pub(super) fn torch_memory_fraction(&mut self, door: usize, b: u8, fault: Fault) {
        let device = self.doors[door].device;
        let (fraction, limit) = [(1.0, 64 << 30), (1.0 / 65_536.0, 1 << 20), (0.0, 0)][usize::from(b) % 3];
        let words = format!("millpond_torch_memory_fraction({fraction}, {device})");
        let done = self
            .untold(fault, &words, || torch::millpond_torch_memory_fraction(fraction, i32::from(device > 0)));
        assert!(done || may_fail(fault), "{words}: {}", last());
        if done {
            self.doors[door].limit = Some(limit);
            let now = Stats::of(self.doors[door].number).limit();
            assert_eq!(now, Some(limit), "{words}");
        }
    }

    /// Where an allocation begins: `PyTorch`'s, or another, which it has not.
    pub(super) fn torch_base(&mut self, x: usize, offset: usize) {
        let Block { name, at, bytes, door, .. } = self.blocks[x];
        let ours = self.doors[door].torch;
        if !ours && (self.mail.is_some() || self.steady) {
            return;
        }
        let (mut begin, mut size) = (null_mut(), 77);
        let words = format!("millpond_torch_base(p{name} + {offset}, &size)");
        let done = self.untold(0, &words, || {
            begin = torch::millpond_torch_base((at + offset) as *mut c_void, &raw mut size);
        });
        let expected = if ours { (true, at, bytes) } else { (false, 0, 77) };
        assert_eq!((done, begin.addr(), size), expected, "{words}");
    }

    /// Shares that are none, and of a device that is none.
    pub(super) fn torch_hostile(&mut self, b: u8) {
        if self.steady {
            return;
        }
        let (fraction, device) =
            [(1.5, 0), (-0.5, 0), (f64::NAN, 0), (0.5, -1), (0.5, 64)][usize::from(b) % 5];
        let words = format!("millpond_torch_memory_fraction({fraction}, {device})");
        let done = self.untold(0, &words, || torch::millpond_torch_memory_fraction(fraction, device));
        assert!(!done, "{words} was done");
    }

    /// A use on a stream, and `record_stream`: if that cannot be done it is as good as a use by nobody knows whom.
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
        let told = self.untold(fault, &words, || {
            torch::millpond_torch_record_stream(at as *mut c_void, stream.raw());
        });
        assert!(told, "p{name} and its stream are known: {}", last());
    }

    /// It is destroyed no more, as no stream of `PyTorch`'s is.
    fn keep(&mut self, stream: Named) {
        if let Some(made) = self.streams.iter_mut().flatten().find(|m| m.named.who == stream.who) {
            made.kept = true;
        }
        self.lasts(stream);
    }

    /// The same on a stream of the other device, which lasts from then on. It is said before it is made: whatever fails meanwhile, the free finds it.
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

    /// Whether a stream of another device that uses it captures: nobody frees it then.
    pub(super) fn is_stuck_elsewhere(&self, block: &Block) -> bool {
        let captures = |who: &Who| {
            let made = self.streams.iter().flatten().find(|m| m.named.who == *who);
            made.is_some_and(|m| self.captures(m.named))
        };
        block.elsewhere.iter().any(captures)
    }

    /// Whether one that could not be asked may be such a stream. Nobody frees it meanwhile, or it is none and it is freed.
    pub(super) fn may_be_stuck(&self, block: &Block) -> bool {
        block.unsure && (self.mail.is_some() || !self.captures.is_empty())
    }

    /// By no other call than `PyTorch`'s either, which has nobody to tell.
    pub(super) fn is_not_freed(&mut self, x: usize, verb: Verb, fault: Fault) {
        let Block { name, at, door, .. } = self.blocks[x];
        let (number, ptr) = (self.doors[door].number, at as *mut c_void);
        let (call, words): (extern "C" fn(u32, *mut c_void) -> Status, _) = match verb {
            Verb::Free if self.blocks[x].uses.undeclared.is_empty() => (ffi::millpond_free, "millpond_free"),
            _ => (ffi::millpond_free_unknown, "millpond_free_unknown"),
        };
        let stuck = self.is_stuck_elsewhere(&self.blocks[x]);
        let unknown = words.ends_with("unknown");
        // Of one that cannot be asked nobody can tell what it holds: who says so is freed behind a wait.
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

    /// What had to wait and does so no more.
    pub(super) fn settle(&mut self) {
        if self.later.is_empty() || self.mail.is_some() {
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

    /// Whether nothing waits, once all threads have ended.
    pub(super) fn settled(&mut self) -> bool {
        if self.mail.is_some() {
            // Of all that is alive in PyTorch's nothing is in these lists.
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
        let told = self.untold(fault, &words, || {
            torch::millpond_torch_free(at as *mut c_void, bytes, i32::from(device > 0), home.raw());
        });
        self.freeing = None;
        let block = &self.blocks[x];
        let (stuck, may_be) = (self.is_stuck_elsewhere(block), self.may_be_stuck(block));
        let looked_for = block.unsure || !block.elsewhere.is_empty();
        // By a driver that failed when it was asked who that is.
        let may_have_ended = block.unsure && !block.elsewhere.is_empty();
        assert!(!(told && stuck) || driver::is_broken(), "{words} did not wait for a stream that captures");
        assert!(
            told || stuck || may_be || may_have_ended || looked_for && may_fail(fault),
            "p{name} is known: {}",
            last()
        );
        self.died(x);
    }
}

/// Has the calling thread's last failure be one that no other call fails with.
fn another_failure() -> String {
    let status = ffi::millpond_trim(u32::MAX, null_mut());
    assert_eq!(status, Status::UnknownAllocator);
    last()
}
