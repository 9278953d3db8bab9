//! `PyTorch`'s functions. Where they have nobody to tell they count, and where they would throw they answer null: there is no C++ here.

use super::breaks::may_fail;
use super::{Here, SIZES, World};
use crate::model::{Block, Door, Named, Stats, last};
use crate::program::{Fault, Verb};
use millpond_plug::status::MillpondStatus as Status;
use millpond_plug::{ffi, torch};
use std::ffi::c_void;
use std::ptr::null_mut;

impl World {
    pub(super) fn torch_alloc(&mut self, b: u8, c: u8, fault: Fault, here: Here) {
        let door = self.slots[3];
        let Door { open, limit, .. } = self.doors[door];
        if !open {
            return;
        }
        let (stream, bytes) = (self.stream(b, 0, here), SIZES[usize::from(c) % SIZES.len()]);
        self.names_to(door, stream);
        let words = format!("p{} = millpond_torch_alloc({bytes}, 0, {stream})", self.names + 1);
        let mut at = null_mut();
        let captures = self.captures(stream);
        let status = self.call(fault, &words, || {
            at = torch::millpond_torch_alloc(bytes, 0, stream.raw());
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
        let status = self.call(fault, words, || {
            let (before, another) = (torch::millpond_torch_untold(), another_failure());
            call();
            let more = torch::millpond_torch_untold() - before;
            let failed = last() != another;
            assert!(
                if alone { more == u64::from(failed) } else { more > 0 || !failed },
                "{more} failures of one call"
            );
            if failed { Status::Driver } else { Status::Ok }
        });
        status == Status::Ok
    }

    /// Waits for the device and gives idle memory back, as `PyTorch` does, and ends no capture.
    pub(super) fn torch_empty_cache(&mut self, fault: Fault) {
        let door = self.slots[3];
        let at_once = self.mail.is_some();
        let expected = self.waits_beside_captures(door, fault);
        let done = self.untold(fault, "millpond_torch_empty_cache()", || torch::millpond_torch_empty_cache());
        assert!(done == (expected == Status::Ok) || !done && may_fail(fault), "{expected:?}: {}", last());
        if done && !at_once {
            let stats = Stats::of(self.doors[door].number);
            assert_eq!(stats.total("held_back"), 0, "the device is quiet: {stats}");
            let (number, mut freed) = (self.doors[door].number, 77);
            let words = format!("millpond_trim(a{number}, &freed)");
            let trimmed = self.must(0, Status::Ok, &words, || ffi::millpond_trim(number, &raw mut freed));
            assert!(trimmed && freed == 0 || may_fail(fault), "{freed} bytes were idle still: {stats}");
        }
    }

    /// The device has 64 GiB.
    pub(super) fn torch_memory_fraction(&mut self, b: u8, fault: Fault) {
        let door = self.slots[3];
        let (fraction, limit) = [(1.0, 64 << 30), (1.0 / 65_536.0, 1 << 20), (0.0, 0)][usize::from(b) % 3];
        let words = format!("millpond_torch_memory_fraction({fraction}, 0)");
        let done = self.untold(fault, &words, || torch::millpond_torch_memory_fraction(fraction, 0));
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
        let Block { name, at, door, .. } = self.blocks[x];
        let stream = self.stream(b, 0, here);
        self.access(x, stream, b >= 128);
        self.names_to(door, stream);
        let words = format!("millpond_torch_record_stream(p{name}, {stream})");
        let told = self.untold(fault, &words, || {
            torch::millpond_torch_record_stream(at as *mut c_void, stream.raw());
        });
        assert!(told, "p{name} and its stream are known: {}", last());
        self.blocks[x].uses.declare(stream.who);
    }

    pub(super) fn torch_free(&mut self, x: usize, fault: Fault, here: Here) {
        let Block { name, at, bytes, home, ref uses, .. } = self.blocks[x];
        let users: Option<Vec<Named>> = uses.undeclared.iter().map(|&who| self.named(who, here)).collect();
        let (Some(users), Some(home)) = (users, self.named(home.who, here)) else {
            return self.free(x, Verb::FreeUnknown, 0, fault, here);
        };
        self.names_to(self.blocks[x].door, home);
        for stream in users {
            self.names_to(self.blocks[x].door, stream);
            let words = format!("millpond_torch_record_stream(p{name}, {stream})");
            let told = self.untold(0, &words, || {
                torch::millpond_torch_record_stream(at as *mut c_void, stream.raw());
            });
            assert!(told, "p{name} and its stream are known: {}", last());
        }
        let words = format!("millpond_torch_free(p{name}, {bytes}, 0, {home})");
        let told = self.untold(fault, &words, || {
            torch::millpond_torch_free(at as *mut c_void, bytes, 0, home.raw());
        });
        assert!(told, "p{name} is known: {}", last());
        self.died(x);
    }
}

/// Has the calling thread's last failure be one that no other call fails with.
fn another_failure() -> String {
    let status = ffi::millpond_trim(u32::MAX, null_mut());
    assert_eq!(status, Status::UnknownAllocator);
    last()
}
