//! Pinned memory: the host writes it, and streams copy from it and to it.

use super::breaks::may_fail;
use super::{Here, SIZES, SLOTS, World};
use crate::driver;
use crate::model::{Door, Named, Pinned, Read, Uses, last};
use crate::program::{Fault, Verb};
use millpond_plug::ffi;
use millpond_plug::status::MillpondStatus as Status;
use std::ffi::c_void;
use std::ptr::null_mut;

impl World {
    pub(super) fn pin(&mut self, a: u8, c: u8, fault: Fault) {
        let door = self.slots[usize::from(a) % SLOTS];
        let Door { number, open, .. } = self.doors[door];
        let bytes = SIZES[usize::from(c) % 4];
        let (mut at, name) = (null_mut::<c_void>(), self.name());
        let words = format!("millpond_alloc_pinned(a{number}, {bytes}, &h{name})");
        let status = self.call(fault, &words, || ffi::millpond_alloc_pinned(number, bytes, &raw mut at));
        match status {
            Status::Ok => assert!(open),
            Status::UnknownAllocator => assert!(!open || self.is_ending(door)),
            Status::OutOfMemory => {}
            _ => assert!(may_fail(fault), "{words}: {status:?}: {}", last()),
        }
        assert_eq!(status == Status::Ok, !at.is_null(), "{words}: it returns a pointer or fails");
        if status != Status::Ok {
            return;
        }
        let at = at.addr();
        assert!(at.is_multiple_of(512), "h{name} is {at:#x}");
        let apart = |p: &Pinned| at + bytes <= p.at || p.at + p.bytes <= at;
        assert!(
            self.pinned.iter().all(apart),
            "h{name}, {at:#x} + {bytes}, overlaps one of {:?}",
            self.pinned
        );
        let value = self.fresh_value();
        say!(self, "memset(h{name}, {value}, {bytes});");
        // SAFETY: pinned memory of `bytes` bytes that nothing else uses, as the interface promises.
        unsafe { (at as *mut u8).write_bytes(value, bytes) };
        self.pinned.push(Pinned { name, at, bytes, door, value, uses: Uses::default() });
    }

    pub(super) fn use_pinned(&mut self, x: usize, verb: Verb, b: u8, fault: Fault, here: Here) {
        let Pinned { name, at, bytes, door, value, .. } = self.pinned[x];
        let device = self.doors[door].device;
        driver::bind(self.contexts[device]);
        if let Verb::PinFree | Verb::PinFreeUnknown = verb {
            return self.free_pinned(x, verb, fault, here);
        }
        let stream = self.stream(b, device, here);
        if verb == Verb::PinDeclare {
            self.declare_pinned(x, stream, fault);
            return;
        }
        if self.captures(stream) || driver::is_broken() {
            return;
        }
        let writes = verb == Verb::PinOut;
        let waits = self.pinned[x].uses.before(stream.who, writes);
        self.wait(stream, &waits);
        let own = self.scratch(bytes, device);
        if writes {
            let value = self.fresh_value();
            say!(self, "cuMemsetD8Async(own, {value}, {bytes}, {stream});");
            driver::set(own, value, bytes, stream.raw());
            say!(self, "cuMemcpyDtoHAsync(h{name}, own, {bytes}, {stream});");
            driver::copy_out(at as u64, own, bytes, stream.raw());
            self.pinned[x].value = value;
        } else {
            say!(self, "cuMemcpyHtoDAsync(own, h{name}, {bytes}, {stream}); // {value}");
            driver::copy_in(own, at as u64, bytes, stream.raw());
            self.reads.push(Read { at: own, bytes, value, name });
        }
        let event = self.event(stream);
        let uses = &mut self.pinned[x].uses;
        uses.accessed(stream.who, event, writes);
        uses.must_be_declared(stream.who);
    }

    pub(super) fn declare_pinned(&mut self, x: usize, stream: Named, fault: Fault) -> bool {
        let Pinned { name, at, door, .. } = self.pinned[x];
        let Door { number, open, .. } = self.doors[door];
        let expected = match (open, self.captures(stream)) {
            (false, _) => Status::UnknownAllocator,
            (true, true) => Status::Capturing,
            (true, false) => Status::Ok,
        };
        self.names_to(door, stream);
        let words = format!("millpond_record_pinned_use(a{number}, h{name}, {stream})");
        let done = self.must(fault, expected, &words, || {
            ffi::millpond_record_pinned_use(number, at as *mut c_void, stream.raw())
        });
        if done {
            self.pinned[x].uses.declare(stream.who);
        }
        done
    }

    pub(super) fn free_pinned(&mut self, x: usize, verb: Verb, fault: Fault, here: Here) {
        let Pinned { name, at, door, ref uses, .. } = self.pinned[x];
        let Door { number, open, .. } = self.doors[door];
        let users: Option<Vec<Named>> = uses.undeclared.iter().map(|&who| self.named(who, here)).collect();
        let ptr = at as *mut c_void;
        let stuck = users.iter().flatten().any(|s| self.captures(*s));
        let freed = match users {
            Some(users)
                if verb == Verb::PinFree
                    && (open && !stuck || users.is_empty())
                    && users.iter().all(|s| self.declare_pinned(x, *s, 0)) =>
            {
                let words = format!("millpond_free_pinned(a{number}, h{name})");
                self.must(fault, Status::Ok, &words, || ffi::millpond_free_pinned(number, ptr))
            }
            _ => {
                let words = format!("millpond_free_pinned_unknown(a{number}, h{name})");
                self.must(fault, Status::Ok, &words, || ffi::millpond_free_pinned_unknown(number, ptr))
            }
        };
        if freed {
            self.pinned.swap_remove(x);
        }
    }
}
