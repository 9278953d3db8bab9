//! Creates and ends streams and allocators, sets limits, trims, and makes wrong calls.

use super::{Here, SLOTS, World};
use crate::driver;
use crate::model::{Block, Door, ENDED, Made, Stats, Who};
use crate::program::{Fault, Step, Verb};
use millpond_plug::ffi;
use millpond_plug::status::MillpondStatus as Status;
use std::ffi::{CString, c_void};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// What an allocator has reserved, device memory and pinned memory.
fn held(stats: &Stats) -> u64 {
    stats.field("reserved") + stats.pinned("reserved")
}

impl World {
    /// Whether an allocator takes a stream with this handle for one that was declared permanent and destroyed nevertheless.
    pub(super) fn is_taken_for_another(&self, device: usize, handle: usize) -> bool {
        self.doors.iter().any(|d| d.device == device && d.broken.contains(&handle))
    }

    /// Destroys a stream, unannounced, whatever work it has. But a stream that is taken for a destroyed permanent one must be idle first, as that
    /// one was.
    pub(super) fn close(&mut self, slot: usize) {
        let shared = self.shared;
        let device = usize::from(slot == 3);
        let ends = |m: &Made| !m.permanent && !m.kept && shared != Some(m.named.who) && !driver::is_broken();
        let Some(made) = self.streams[slot].filter(ends) else { return };
        let first = self.is_taken_for_another(device, made.named.handle);
        // A program must not wait for a stream during a capture.
        if !first || self.captures.is_empty() {
            self.streams[slot] = None;
            driver::bind(self.contexts[device]);
            if first {
                say!(self, "cuStreamSynchronize({}); // it is taken for a permanent one", made.named);
                driver::synchronize_stream(made.named.raw());
            }
            say!(self, "cuStreamDestroy({});", made.named);
            driver::destroy_stream(made.named.raw());
        }
    }

    pub(super) fn permanent(&mut self, a: u8, b: u8, fault: Fault) {
        let door = self.slots[usize::from(a) % SLOTS];
        let Door { number, device, open, .. } = self.doors[door];
        let slot = if device == 1 { 3 } else { usize::from(b) % 3 };
        if driver::is_broken() && self.streams[slot].is_none() {
            return;
        }
        let stream = self.made(slot, 1);
        // The program keeps the promise, even if the call fails.
        self.lasts(stream);
        self.streams[slot].as_mut().expect("made").permanent = true;
        let expected: &[Status] = match open {
            false => &[Status::UnknownAllocator],
            // A stream that is known already is not queried.
            true if self.captures(stream) => &[Status::Capturing, Status::Ok],
            // A destroyed stream had this handle.
            true if self.doors[door].broken.contains(&stream.handle) => &[Status::BadArgument],
            true => &[Status::Ok],
        };
        let words = format!("millpond_declare_permanent(a{number}, {stream})");
        let first = !self.doors.iter().any(|d| d.met.contains(&stream.who));
        let done =
            self.may(fault, expected, &words, || ffi::millpond_declare_permanent(number, stream.raw()));
        self.names_to(door, stream);
        self.streams[slot].as_mut().expect("made").declared |= done;
        if done && !self.doors[door].promised.contains(&stream.handle) {
            self.doors[door].promised.push(stream.handle);
        }
        if done && first {
            self.doors[door].declared.push(stream.who);
        }
    }

    /// Destroys a stream that was declared permanent, when it is idle: the next stream with its handle is taken for it. With an even `b` that is a
    /// stream that the program never names.
    pub(super) fn destroy_permanent(&mut self, slot: usize, b: u8) {
        let Some(made) = self.streams[slot].filter(|m| m.permanent && !m.kept) else { return };
        // A program must not wait for a stream during a capture. And the next stream with its handle must be made by this thread.
        if self.concurrent.is_some() || !self.captures.is_empty() || driver::is_broken() {
            return;
        }
        let (device, handle) = (usize::from(slot == 3), made.named.handle);
        driver::bind(self.contexts[device]);
        say!(self, "cuStreamSynchronize({}); // it was declared permanent", made.named);
        driver::synchronize_stream(made.named.raw());
        self.streams[slot].as_mut().expect("it is there").permanent = false;
        self.close(slot);
        let declared = |d: &&mut Door| d.device == device && d.promised.contains(&handle);
        self.doors.iter_mut().filter(declared).for_each(|d| d.broken.push(handle));
        if b.is_multiple_of(2) {
            let handle = driver::stream(1);
            say!(self, "cuStreamCreate(&unnamed, 1); // {handle:#x}");
            self.unnamed.push((device, handle));
        }
    }

    pub(super) fn manage(&mut self, Step { verb, a, b, c, fault, .. }: Step) {
        let slot = usize::from(a) % SLOTS;
        let door = self.slots[slot];
        // PyTorch has an allocator on each device.
        let door = if self.doors[door].torch && b >= 192 { self.torch[1] } else { door };
        let Door { number, device, open, torch, .. } = self.doors[door];
        let expected = if open { Status::Ok } else { Status::UnknownAllocator };
        match verb {
            Verb::Trim if torch && c.is_multiple_of(2) && self.concurrent.is_none() => {
                self.torch_empty_cache(fault);
            }
            Verb::Sync if torch && c.is_multiple_of(2) => self.torch_empty_cache(fault),
            Verb::Trim => self.trim(door, fault),
            Verb::Sync => {
                let words = format!("millpond_synchronize(a{number})");
                let expected = self.waits_for_devices(door, fault);
                let done = self.must(fault, expected, &words, || ffi::millpond_synchronize(number));
                if done && !open && self.must_have_returned_all(door, fault) {
                    let left = held(&Stats::of(number));
                    assert_eq!(
                        left, 0,
                        "{words}: it has ended, nothing of it is alive, and the device is idle"
                    );
                }
            }
            Verb::Limit if torch => self.torch_memory_fraction(door, b, fault),
            Verb::Limit => {
                let limit = [None, Some(1 << 20), Some(16 << 20)][usize::from(b) % 3];
                let text = limit.map_or("none".to_owned(), |n: u64| n.to_string());
                let words = format!("millpond_set_limit(a{number}, \"{text}\")");
                let text = CString::new(text).expect("words");
                if self.must(fault, expected, &words, || ffi::millpond_set_limit(number, text.as_ptr())) {
                    self.doors[door].limit = limit;
                }
            }
            Verb::Destroy if !torch => {
                self.destroy(door, c % 4 == 3, fault);
            }
            Verb::Create if !torch && self.doors.len() < 12 => {
                if open && !self.destroy(door, c % 4 == 3, 0) {
                    return;
                }
                self.create(slot, usize::from(b), device, fault);
            }
            Verb::Look => match (c / 64, self.pick(b)) {
                (0, Some(x)) => {
                    let block = &self.blocks[x];
                    self.look(block, usize::from(c) * 7919 % block.bytes);
                }
                (1, Some(x)) => self.torch_base(x, usize::from(c) * 7919 % self.blocks[x].bytes),
                (2, _) => self.report(door, b),
                _ => self.reset_peaks(door, fault),
            },
            _ => {}
        }
    }

    /// A trim frees as many bytes as it returns, in an ended allocator too; there it frees everything that is complete.
    fn trim(&mut self, door: usize, fault: Fault) {
        let Door { number, open, .. } = self.doors[door];
        let (mut freed, before) = (0, held(&Stats::of(number)));
        let words = format!("millpond_trim(a{number}, &freed)");
        let done = self.must(fault, Status::Ok, &words, || ffi::millpond_trim(number, &raw mut freed));
        if !done || fault > 0 || self.concurrent.is_some() {
            return;
        }
        let stats = Stats::of(number);
        assert_eq!(held(&stats) + freed as u64, before, "{words}: {freed} bytes went back: {stats}");
        let waits = |stats: &Stats| stats.total("in_flight") + stats.total("held_back");
        if open || !self.must_have_returned_all(door, fault) || waits(&stats) > 0 || !self.captures.is_empty()
        {
            return;
        }
        // What was freed on its own stream may be marked while the device has not run it yet.
        if stats.field("reserved") > 0 {
            say!(self, "cuCtxSynchronize();");
            driver::bind(self.contexts[self.doors[door].device]);
            driver::synchronize();
            driver::bind(self.contexts[0]);
            self.must(0, Status::Ok, &words, || ffi::millpond_trim(number, &raw mut freed));
        }
        let stats = Stats::of(number);
        assert_eq!(stats.field("reserved"), 0, "{words}: it has ended, and all of it is complete: {stats}");
    }

    /// Whether nothing of it is alive, no other thread runs, and no driver call has failed.
    fn must_have_returned_all(&self, door: usize, fault: Fault) -> bool {
        let pinned = self.pinned.iter().any(|p| p.door == door);
        !pinned && self.live_of(door).0 == 0 && self.concurrent.is_none() && fault == 0 && !self.struck
    }

    /// The report as text: as much of it as the buffer has room for.
    fn report(&mut self, door: usize, room: u8) {
        let Door { number, .. } = self.doors[door];
        let words = format!("millpond_report(a{number}, text, {room}, &needed)");
        let (mut text, mut needed) = ([0xff_u8; 256], 0);
        let room = usize::from(room);
        self.must(0, Status::Ok, &words, || {
            ffi::millpond_report(number, text.as_mut_ptr().cast(), room, &raw mut needed)
        });
        let fits = room.min(needed);
        assert!(needed > 256, "{words}: only {needed} bytes");
        assert!(text[..fits.saturating_sub(1)].iter().all(|b| !matches!(b, 0 | 0xff)), "{words}: {text:?}");
        assert!(fits == 0 || text[fits - 1] == 0, "{words}: {text:?}");
        assert!(text[fits..].iter().all(|b| *b == 0xff), "{words} writes past the buffer: {text:?}");
    }

    fn reset_peaks(&mut self, door: usize, fault: Fault) {
        let Door { number, open, .. } = self.doors[door];
        let expected = if open { Status::Ok } else { Status::UnknownAllocator };
        let words = format!("millpond_reset_peaks(a{number})");
        if !self.must(fault, expected, &words, || ffi::millpond_reset_peaks(number))
            || self.concurrent.is_some()
        {
            return;
        }
        let stats = Stats::of(number);
        let (now, peak) = (stats.total("allocated"), stats.field("allocated_peak"));
        assert_eq!(peak, now, "{words}: {stats}");
    }

    /// Ends an allocator: by a destroy, which waits for its device, or a release, which returns OK whatever the driver does. Neither ends a capture.
    pub(super) fn destroy(&mut self, door: usize, releases: bool, fault: Fault) -> bool {
        let Door { number, open, .. } = self.doors[door];
        if !self.is_rough() {
            self.check_pools(door);
        }
        let (expected, name) = if !open && !releases {
            (Status::UnknownAllocator, "millpond_destroy")
        } else if !releases {
            (self.waits_beside_captures(door, fault), "millpond_destroy")
        } else if open {
            (Status::Ok, "millpond_release")
        } else {
            (Status::UnknownAllocator, "millpond_release")
        };
        let words = format!("{name}(a{number})");
        let life = Arc::clone(&self.doors[door].life);
        life.fetch_add(1, Ordering::AcqRel);
        self.ending = Some(door);
        let end = if releases { ffi::millpond_release } else { ffi::millpond_destroy };
        let done = self.must(fault, expected, &words, || end(number));
        self.ending = None;
        assert!(done || !releases || expected != Status::Ok || self.is_rough(), "{words} failed");
        self.doors[door].open &= !done;
        if done {
            // Only one call that ends it may return OK.
            let before = life.fetch_or(ENDED, Ordering::AcqRel);
            assert!(before < ENDED, "{words}: a second OK");
        }
        life.fetch_sub(1, Ordering::AcqRel);
        done
    }

    /// A handle means one stream at a time: the pool of the stream that had it before is closed, unless it has live memory or a thread remembers that stream.
    /// A thread's default stream ends with the thread, and one more thread runs besides the program's.
    pub(super) fn check_pools(&mut self, door: usize) {
        if !self.looks() {
            return;
        }
        let stats = Stats::of(self.doors[door].number);
        let most = self.live_of(door).0 as usize
            + self.doors[door].handles.len() * (1 + self.threads)
            + self.doors[door].lasting.len()
            + self.threads
            + self.unended
            + 1;
        assert!(stats.open_pools() <= most, "more than {most} pools are open: {stats}");
    }

    /// The allocators in which a thread's default stream has a pool with no live memory, each with how many pools are open there.
    pub(crate) fn before_the_end(&self, thread: u32) -> Vec<(usize, usize)> {
        let here = |who| matches!(who, Who::PerThread(of, _) if of == thread);
        let of_it = |&(door, who): &(usize, Who)| {
            // A block whose free is put off still counts as live.
            let mut blocks = self.blocks.iter().chain(&self.later);
            let alive = blocks.any(|b| b.door == door && b.home.who == who);
            self.doors[door].open && here(who) && !alive
        };
        let doors = self.own.iter().filter(|own| of_it(own)).map(|&(door, _)| door);
        doors.map(|door| (door, Stats::of(self.doors[door].number).open_pools())).collect()
    }

    /// Checks that the thread's default stream has ended with the thread.
    pub(crate) fn has_ended(&mut self, thread: u32, before: &[(usize, usize)], struck: &str) {
        // If the stream could not be queried or marked, its pool stays open until a synchronise.
        let failed = !struck.is_empty() || driver::is_broken();
        self.unended += usize::from(failed);
        for &(door, open) in before.iter().filter(|_| !failed) {
            let stats = Stats::of(self.doors[door].number);
            assert!(stats.open_pools() < open, "thread {thread} ended and left its pool open: {stats}");
        }
        self.own.retain(|(_, who)| !matches!(who, Who::PerThread(of, _) if *of == thread));
    }

    /// Frees pinned memory in an allocator that it does not belong to.
    fn foreign_pinned(&mut self, a: u8, other: usize) {
        let theirs = self.pinned.iter().filter(|p| p.door != other);
        let Some((at, name)) = theirs.map(|p| (p.at, p.name)).nth(usize::from(a) % 2) else { return };
        let wrong = self.doors[other].number;
        let words = format!("millpond_free_pinned(a{wrong}, h{name})");
        self.must(0, Status::WrongAllocator, &words, || ffi::millpond_free_pinned(wrong, at as *mut c_void));
        let words = format!("millpond_free_pinned_unknown(a{wrong}, h{name})");
        self.must(0, Status::WrongAllocator, &words, || {
            ffi::millpond_free_pinned_unknown(wrong, at as *mut c_void)
        });
    }

    /// Wrong calls, each with the code that it must return.
    pub(super) fn hostile(&mut self, a: u8, b: u8, c: u8, here: Here) {
        let other = self.slots[usize::from(b) % SLOTS];
        let (wrong, open) = (self.doors[other].number, self.doors[other].open);
        let Some(x) = self.pick(a) else { return };
        let Block { at, door, bytes, name, .. } = self.blocks[x];
        let (ptr, number) = (at as *mut c_void, self.doors[door].number);
        let double = self.freed.get(usize::from(b) % self.freed.len().max(1)).copied();
        let is_live = |at: usize| self.blocks.iter().any(|b| b.at == at);
        match c % 8 {
            0 if door != other => {
                let words = format!("millpond_free(a{wrong}, p{name})");
                self.must(0, Status::WrongAllocator, &words, || ffi::millpond_free(wrong, ptr));
            }
            1 if bytes > 512 => {
                let inside = ptr.wrapping_byte_add(512);
                let words = format!("millpond_free(a{number}, p{name} + 512)");
                self.must(0, Status::UnknownPointer, &words, || ffi::millpond_free(number, inside));
            }
            2 if double.is_some_and(|d| !is_live(d)) => {
                let double = double.unwrap_or(0);
                let words = format!("millpond_free_unknown(a{number}, {double:#x})");
                self.must(0, Status::UnknownPointer, &words, || {
                    ffi::millpond_free_unknown(number, double as *mut c_void)
                });
            }
            3 => {
                let stream = self.stream(b, 1 - self.doors[door].device, here);
                // To this allocator that handle is the permanent stream's which was destroyed, of its own device.
                let is_taken_for_its_own = self.doors[door].broken.contains(&stream.handle);
                if let (Who::Made(_), true, false, false) =
                    (stream.who, self.doors[door].open, self.captures(stream), is_taken_for_its_own)
                {
                    self.names_to(door, stream);
                    let words = format!("millpond_record_use(a{number}, p{name}, {stream})");
                    self.must(0, Status::WrongAllocator, &words, || {
                        ffi::millpond_record_use(number, ptr, stream.raw())
                    });
                    let words = format!("millpond_free_on(a{number}, p{name}, {stream})");
                    // Or the code of what keeps the block from being freed at all.
                    let block = &self.blocks[x];
                    let answers: &[Status] = if block.unsure || self.is_stuck_elsewhere(block) {
                        &[Status::WrongAllocator, Status::Capturing, Status::Driver]
                    } else {
                        &[Status::WrongAllocator]
                    };
                    self.may(0, answers, &words, || ffi::millpond_free_on(number, ptr, stream.raw()));
                }
            }
            4 => {
                let expected = if open { Status::BadArgument } else { Status::UnknownAllocator };
                let words = format!("millpond_set_limit(a{wrong}, \"much\")");
                self.must(0, expected, &words, || ffi::millpond_set_limit(wrong, c"much".as_ptr()));
            }
            5 => self.torch_hostile(b),
            6 => self.foreign_pinned(a, other),
            _ => {
                let words = format!("millpond_free_pinned(a{number}, p{name})");
                self.must(0, Status::UnknownPointer, &words, || ffi::millpond_free_pinned(number, ptr));
            }
        }
    }
}
