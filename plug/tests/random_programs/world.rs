//! Runs a program's steps, which call the C interface and the driver, with a model of what each call must return. A call that returns a code
//! other than OK must have changed nothing, which is checked after each. `show` prints the calls as C.

use crate::driver;
use crate::model::{Block, Door, ENDED, Made, Named, Pinned, Read, Stats, Who, last};
use crate::program::{Fault, Kind, Step, Verb};
use captures::Capture;
use millpond_plug::status::MillpondStatus as Status;
use millpond_plug::{READABLE, ffi, torch};
use shared::Shared;
use std::ffi::{CString, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, RwLock};

macro_rules! say {
    ($world:expr, $($words:tt)*) => {
        if $world.show { println!($($words)*); }
    };
}

#[path = "blocks.rs"]
mod blocks;
#[path = "breaks.rs"]
mod breaks;
#[path = "captures.rs"]
mod captures;
#[path = "judge.rs"]
mod judge;
#[path = "manage.rs"]
mod manage;
#[path = "pinned.rs"]
mod pinned;
#[path = "pytorch.rs"]
mod pytorch;
#[path = "shared.rs"]
mod shared;
#[allow(dead_code, reason = "the soak's")]
#[path = "steady.rs"]
pub(crate) mod steady;
#[path = "unchanged.rs"]
mod unchanged;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;
/// The options of allocators. Every value that the parser accepts is in one of them, which a test checks.
const OPTIONS: [&str; 2 * STEADY] = [
    "reuse=waits,growth=exact,limit=6MiB",
    "",
    "policy=footprint,reuse=known,growth=exact",
    "reuse=never,growth=exact",
    "scrub=1,reuse=waits,growth=exact,limit=8MiB",
    "deterministic=1,growth=exact",
    "deterministic=1,reuse=waits,growth=exact,limit=3MiB",
    "reuse=ordered,growth=exact",
    "reuse=ordered,growth=exact,limit=4MiB,wait_ms=0",
    "reuse=waits,policy=latency,growth=rounded,limit=none,deterministic=0,scrub=0,pinned_limit=none,soft_limit=none,low_watermark=none,high_watermark=none,export=none,rdma=0,one_handle=none",
    "policy=footprint,reuse=ordered,growth=rounded,limit=25%,pinned_limit=1048576,staging_threads=64,virtual=never,slack=5%,moves=none,move_time=0%,soft_limit=90%,low_watermark=80%,high_watermark=90%",
    "deterministic=1,reuse=ordered,growth=exact,limit=4MiB,one_handle=8388608",
    "scrub=1,reuse=ordered,growth=exact,export=fabric,one_handle=8MiB",
    "policy=footprint,reuse=waits,growth=exact,limit=5242880,virtual=auto,handle=2MiB,moves=8,move_credit_ms=5,export=fd,rdma=1,one_handle=3MiB,soft_limit=1073741824,low_watermark=1073741824,high_watermark=2147483648,pinned_limit=40%",
];
/// How many of them the soak uses.
const STEADY: usize = 7;
const LIMITS: [Option<u64>; OPTIONS.len()] = {
    let mut limits = [None; OPTIONS.len()];
    limits[0] = Some(6 << 20);
    limits[4] = Some(8 << 20);
    limits[6] = Some(3 << 20);
    limits[8] = Some(4 << 20);
    // A quarter of a device of 64 GiB.
    limits[10] = Some(16 << 30);
    limits[11] = Some(4 << 20);
    limits[13] = Some(5 << 20);
    limits
};
const SIZES: [usize; 8] = [512, 1000, 4 * KIB, 64 * KIB, MIB, MIB, 2 * MIB, 2 * MIB];
/// The first three are on device 0, the last on device 1.
const STREAMS: usize = 4;
const SLOTS: usize = 4;
/// Bytes of the program's own memory on each device.
const SCRATCH: usize = 1 << 30;

#[allow(clippy::struct_excessive_bools, reason = "each says another thing, and none of the others")]
pub(crate) struct World {
    contexts: [u64; 2],
    pub(crate) doors: Vec<Door>,
    /// The allocators that steps name: two on device 0, one on device 1, `PyTorch`'s.
    slots: [usize; SLOTS],
    /// `PyTorch`'s allocators, one for each device.
    torch: [usize; 2],
    streams: [Option<Made>; STREAMS],
    /// The stream that threads which run at once have in common: none of them captures on it.
    shared: Option<Who>,
    blocks: Vec<Block>,
    /// Threads' default streams that have had memory, with the allocator.
    own: Vec<(usize, Who)>,
    pinned: Vec<Pinned>,
    captures: Vec<Capture>,
    freed: Vec<usize>,
    /// Blocks whose free by `PyTorch` is put off: a stream of another device that uses them captured, or a call failed.
    later: Vec<Block>,
    /// The address of the block that is being freed by PyTorch's function, which may put it off.
    freeing: Option<usize>,
    reads: Vec<Read>,
    scratch: [u64; 2],
    scratch_used: usize,
    events: Vec<usize>,
    names: u32,
    value: u8,
    /// How many threads there can be at once; below, how many there were in all.
    threads: usize,
    pub(crate) begun: u32,
    /// A driver call has failed: what a failed call recorded may stay recorded.
    struck: bool,
    show: bool,
    /// Nothing captures but on declared streams, and allocators are created with that promise.
    quiet: bool,
    /// What threads that run at once share, if they do; then this is the world of one of these threads, or the first one.
    concurrent: Option<Arc<Concurrent>>,
    /// Steps may name the legacy default stream.
    pub(crate) has_legacy: bool,
    first: bool,
    /// Used by the soak, whose other programs count failed calls that cannot return a code.
    steady: bool,
    /// How often a steady program reached the step at which a stream may end.
    next: u64,
    /// How often [`World::looks`] was called.
    looks: u64,
    /// Streams whose handle an allocator takes for that of a destroyed stream, and which the program never names.
    unnamed: Vec<(usize, usize)>,
    /// How many of the first allocators have ended so long ago that their reports may not be readable any more.
    crowded: usize,
    /// The allocator that the call under way ends.
    ending: Option<usize>,
    /// How many threads' ends may have had a fault, so that their streams' pools stay open.
    unended: usize,
}

/// What threads share that run at once.
#[derive(Default)]
pub(crate) struct Concurrent {
    /// Allocators are created and ended during other threads' calls.
    rough: bool,
    blocks: Mutex<Vec<Block>>,
    /// How many captures are open. A wait for the device holds this for reading, because no program may wait for it during a capture.
    captures: RwLock<usize>,
    /// How many steps so far were to break the driver.
    breaks: AtomicU8,
    /// The stream that all threads use.
    shared: Shared,
    /// All allocators so far, and which of them steps name.
    doors: Mutex<(Vec<Door>, [usize; SLOTS])>,
}

impl Concurrent {
    /// `ends`: now and then a thread ends the stream that all use.
    pub(crate) fn new(rough: bool, ends: bool) -> Arc<Concurrent> {
        Arc::new(Concurrent { rough, shared: Shared::new(ends), ..Concurrent::default() })
    }
}

/// The thread that makes the calls of a step.
#[derive(Clone, Copy)]
pub(crate) struct Here {
    /// Its number among all threads so far.
    pub(crate) thread: u32,
}

/// What destroyed allocators may keep.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lasting {
    pub(crate) streams: usize,
    pub(crate) events: usize,
    pub(crate) modules: usize,
    pub(crate) pages: usize,
}

/// Memory of the program's own on each device.
fn own(contexts: [u64; 2]) -> [u64; 2] {
    contexts.map(|context| {
        driver::bind(context);
        let mut at = 0;
        driver::alloc(&raw mut at, SCRATCH);
        at
    })
}

impl World {
    /// A world with five allocators, two of them `PyTorch`'s. `concurrent`: its threads run at once.
    pub(crate) fn new(threads: usize, show: bool, quiet: bool, concurrent: Option<Arc<Concurrent>>) -> World {
        let contexts = driver::contexts();
        let mut world = World {
            contexts,
            doors: Vec::new(),
            slots: [0; SLOTS],
            torch: [0; 2],
            streams: [None; STREAMS],
            shared: None,
            blocks: Vec::new(),
            own: Vec::new(),
            pinned: Vec::new(),
            captures: Vec::new(),
            freed: Vec::new(),
            later: Vec::new(),
            freeing: None,
            reads: Vec::new(),
            scratch: own(contexts),
            scratch_used: 0,
            events: Vec::new(),
            names: 0,
            value: 0,
            threads,
            begun: 0,
            struck: false,
            show,
            quiet,
            concurrent,
            has_legacy: true,
            first: true,
            steady: false,
            next: 0,
            looks: 0,
            unnamed: Vec::new(),
            crowded: 0,
            ending: None,
            unended: 0,
        };
        driver::bind(contexts[0]);
        world.create(0, 0, 0, 0);
        world.create(1, 1, 0, 0);
        world.create(2, 1, 1, 0);
        world.torch(0);
        world.torch(1);
        world.slots[3] = world.torch[0];
        if let Some(concurrent) = &world.concurrent {
            *concurrent.doors.lock().expect("no thread panicked") = (world.doors.clone(), world.slots);
        }
        world
    }

    /// Begins with an allocator that has ended with a live block, and more allocators that ended after it than stay readable: each create then drops one
    /// that has nothing left, and finds what is left of the first.
    pub(crate) fn crowded(mut self) -> World {
        let here = Here { thread: 0 };
        self.alloc(0, 0, 3, 0, here);
        assert!(self.destroy(self.slots[0], false, 0));
        say!(
            self,
            "// {} more, each with a block that is freed, and which end one after the other",
            READABLE + 6
        );
        for n in 0..READABLE + 6 {
            let mut number = 0;
            // Whether captures are expected counts for all allocators of a device.
            let options = if self.quiet { c"captures=none" } else { c"" };
            let made = ffi::millpond_create(0, options.as_ptr(), &raw mut number);
            let (on, mut at) = (self.stream((n % 8) as u8, 0, here), null_mut());
            let had = ffi::millpond_alloc(number, 512, on.raw(), &raw mut at);
            let freed = ffi::millpond_free_on(number, at, on.raw());
            let ended = match n % 2 {
                0 => ffi::millpond_destroy(number),
                _ => ffi::millpond_release(number),
            };
            assert_eq!([made, had, freed, ended], [Status::Ok; 4], "{}", last());
        }
        // Threads that run at once have streams of their own.
        for slot in 0..STREAMS {
            self.close(slot);
        }
        // Slot 0 had the very first allocator.
        self.crowded = 1;
        self.create(0, 0, 0, 0);
        if let Some(concurrent) = &self.concurrent {
            *concurrent.doors.lock().expect("no thread panicked") = (self.doors.clone(), self.slots);
        }
        self
    }

    /// Takes over which allocators other threads have created and destroyed.
    pub(crate) fn refresh(&mut self) {
        let Some(concurrent) = self.concurrent.as_ref().filter(|concurrent| concurrent.rough) else { return };
        let all = concurrent.doors.lock().expect("no thread panicked");
        self.doors.extend_from_slice(&all.0[self.doors.len()..]);
        self.slots = all.1;
        drop(all);
        self.doors.iter_mut().for_each(|d| d.open = d.life.load(Ordering::Acquire) & ENDED == 0);
    }

    fn is_rough(&self) -> bool {
        self.concurrent.as_ref().is_some_and(|concurrent| concurrent.rough)
    }

    /// Whether another thread is ending it, or it has ended.
    fn is_ending(&self, door: usize) -> bool {
        let own = u8::from(self.ending == Some(door));
        self.is_rough() && self.doors[door].life.load(Ordering::Acquire) > own
    }

    /// The world of one of the threads that run at once: the same allocators, and everything else separate.
    pub(crate) fn beside(&mut self) -> World {
        self.begun += 1;
        World {
            doors: self.doors.clone(),
            blocks: Vec::new(),
            own: Vec::new(),
            pinned: Vec::new(),
            captures: Vec::new(),
            freed: Vec::new(),
            later: Vec::new(),
            freeing: None,
            reads: Vec::new(),
            scratch: own(self.contexts),
            events: Vec::new(),
            unnamed: Vec::new(),
            concurrent: self.concurrent.clone(),
            names: self.begun * 1_000_000,
            first: false,
            ..*self
        }
    }

    /// Takes over what is left of a thread's world, and the streams that it named.
    pub(crate) fn learn(&mut self, other: &mut World) {
        // Blocks that it could not free.
        self.blocks.append(&mut other.blocks);
        self.later.append(&mut other.later);
        self.pinned.append(&mut other.pinned);
        for (door, same) in self.doors.iter_mut().zip(&other.doors) {
            door.handles.extend(&same.handles);
            door.lasting.extend(&same.lasting);
            door.met.extend(&same.met);
            door.declared.extend(&same.declared);
        }
    }

    fn torch(&mut self, device: usize) {
        let mut number = 0;
        let options = if self.quiet {
            c"growth=exact,pinned_limit=1MiB,captures=none"
        } else {
            c"growth=exact,pinned_limit=1MiB"
        };
        let status = crate::inside(|| {
            torch::millpond_torch_allocator(i32::from(device > 0), options.as_ptr(), &raw mut number)
        });
        assert_eq!(status, Status::Ok, "{}", last());
        say!(self, "millpond_torch_allocator({device}, {options:?}, &a{number});");
        self.torch[device] = self.doors.len();
        self.doors.push(Door {
            number,
            device,
            open: true,
            torch: true,
            scrubs: false,
            expects: !self.quiet,
            limit: None,
            ..Door::default()
        });
    }

    fn live_of(&self, door: usize) -> (u64, u64) {
        let of = || self.blocks.iter().chain(&self.later).filter(|b| b.door == door);
        (of().count() as u64, of().map(|b| b.bytes as u64).sum())
    }

    fn look(&self, block: &Block, offset: usize) {
        // Another thread may have carried out the free that was put off by now, and the memory may have a new owner.
        if self.freeing == Some(block.at) && self.concurrent.is_some() {
            return;
        }
        let (mut begin, mut bytes) = (null_mut(), 0);
        let number = self.doors[block.door].number;
        let at = (block.at + offset) as *const c_void;
        let status = ffi::millpond_find(number, at, &raw mut begin, &raw mut bytes);
        let expected = if self.freeing == Some(block.at) && torch::is_put_off(block.at) {
            (Status::UnknownPointer, 0, 0)
        } else {
            (Status::Ok, block.at, block.bytes)
        };
        assert_eq!((status, begin.addr(), bytes), expected, "p{}", block.name);
    }

    fn name(&mut self) -> u32 {
        self.names += 1;
        self.names
    }
    fn fresh_value(&mut self) -> u8 {
        self.value = self.value % 250 + 1;
        self.value
    }

    /// The options that a number stands for, as text and by their place in the list; and whether the allocator expects captures: if it is created,
    /// memory of other allocators is held back from then on.
    pub(crate) fn options(quiet: bool, number: usize) -> (String, usize, bool) {
        let asks = number / STEADY % 4 == 3;
        let which = number % STEADY + STEADY * (number / (4 * STEADY) % 2);
        let mut words: Vec<&str> = OPTIONS[which].split(',').filter(|word| !word.is_empty()).collect();
        for word in ["pinned_limit=1MiB", "wait_ms=1"] {
            let (name, _) = word.split_once('=').expect("a name and a value");
            if !words.iter().any(|w| w.starts_with(name)) {
                words.push(word);
            }
        }
        match (asks, quiet) {
            (true, _) => words.push("captures=expected"),
            (false, true) => words.push("captures=none"),
            (false, false) => {}
        }
        (words.join(","), which, asks || !quiet)
    }

    fn create(&mut self, slot: usize, options: usize, device: usize, fault: Fault) -> bool {
        let (text, options, expects) = World::options(self.quiet, options);
        let text = CString::new(text).expect("words");
        let mut number = 77;
        let words = format!("millpond_create({device}, {text:?}, &a{})", self.doors.len() + 1);
        let made = self.must(fault, Status::Ok, &words, || {
            ffi::millpond_create(i32::from(device > 0), text.as_ptr(), &raw mut number)
        });
        if !made {
            assert_eq!(number, 0, "a failed call stores no number");
            return false;
        }
        assert!(self.doors.iter().all(|d| d.number != number), "{number} was used before");
        self.slots[slot] = self.doors.len();
        let limit = LIMITS[options];
        self.doors.push(Door {
            number,
            device,
            open: true,
            torch: false,
            scrubs: OPTIONS[options].contains("scrub=1"),
            expects,
            limit,
            ..Door::default()
        });
        true
    }

    /// The stream that a step names: one of the program's, created if there is none, or a default stream.
    fn stream(&mut self, which: u8, device: usize, here: Here) -> Named {
        let slot = match which % 8 {
            6 if self.has_legacy => {
                return Named { who: Who::Legacy(device), handle: usize::from(which) / 8 % 2 };
            }
            7 => return Named { who: Who::PerThread(here.thread, device), handle: 2 },
            _ if device == 1 => 3,
            n => usize::from(n) % 3,
        };
        self.made(slot, u32::from(which >= 64))
    }

    fn made(&mut self, slot: usize, flags: u32) -> Named {
        if let Some(made) = self.streams[slot] {
            return made.named;
        }
        let device = usize::from(slot == 3);
        driver::bind(self.contexts[device]);
        let handle = if driver::is_broken() { 0 } else { driver::stream(flags) };
        if handle == 0 {
            return Named { who: Who::Legacy(device), handle };
        }
        let named = Named { who: Who::Made(self.name()), handle };
        say!(self, "cuStreamCreate(&{named}, {flags}); // {:#x}", named.handle);
        self.streams[slot] =
            Some(Made { named, permanent: false, kept: false, declared: false, blocking: flags == 0 });
        named
    }

    /// The stream's handle on this thread, if the thread can name it.
    fn named(&self, who: Who, here: Here) -> Option<Named> {
        match who {
            Who::Made(_) => self.streams.iter().flatten().map(|m| m.named).find(|n| n.who == who),
            Who::Legacy(_) => Some(Named { who, handle: 0 }),
            Who::PerThread(thread, _) => (thread == here.thread).then_some(Named { who, handle: 2 }),
        }
    }

    fn names_to(&mut self, door: usize, stream: Named) {
        let lasting = match stream.who {
            Who::Made(_) => self.streams.iter().flatten().any(|m| m.permanent && m.named.who == stream.who),
            Who::Legacy(_) => true,
            Who::PerThread(..) => false,
        };
        let Door { handles, lasting: last, met, .. } = &mut self.doors[door];
        if !met.contains(&stream.who) {
            met.push(stream.who);
        }
        let to = if lasting { last } else { handles };
        if !matches!(stream.who, Who::PerThread(..)) && !to.contains(&stream.handle) {
            to.push(stream.handle);
        }
    }

    fn event(&mut self, on: Named) -> usize {
        let event = driver::mark(on.handle);
        self.events.push(event);
        say!(self, "cuEventRecord(e{}, {on});", self.events.len());
        event
    }
    fn wait(&mut self, on: Named, events: &[usize]) {
        for &event in events.iter().filter(|event| **event != 0) {
            let name = self.events.iter().position(|e| *e == event).map_or(0, |n| n + 1);
            say!(self, "cuStreamWaitEvent({on}, e{name}, 0);");
            driver::wait(on.raw(), event as driver::Handle, 0);
        }
    }

    fn pick(&self, which: u8) -> Option<usize> {
        pick(self.blocks.len(), which)
    }

    pub(crate) fn step(&mut self, step: Step, here: Here) {
        if !self.ends_shared(step) {
            self.while_it_lives(|world| world.run_step(step, here));
        }
    }

    fn run_step(&mut self, step: Step, here: Here) {
        driver::bind(self.contexts[0]);
        let Step { verb, a, b, c, fault, .. } = step;
        let fault = if driver::is_broken() { 0 } else { fault };
        let step = Step { fault, ..step };
        self.refresh();
        // Wrong calls whose results depend on no other thread: they name what this thread has.
        if self.concurrent.is_some() && verb == Verb::Hostile && matches!(c % 8, 0 | 1 | 6 | 7) {
            return self.hostile(a, b, c, here);
        }
        if self.concurrent.is_some() && verb.is_for_one() && !(self.is_rough() && verb.is_rough()) {
            return self.exchange_block(verb, a);
        }
        match verb {
            Verb::Alloc => self.alloc(a, b, c, fault, here),
            Verb::Write | Verb::Read => {
                if let Some(x) = self.pick(a) {
                    self.touch(x, b, verb == Verb::Write, here);
                }
            }
            Verb::Declare => {
                if let Some(x) = self.pick(a) {
                    let stream = self.stream(b, self.device_of(x), here);
                    self.declare(x, stream, fault);
                }
            }
            Verb::Free | Verb::FreeOn | Verb::FreeUnknown | Verb::FreeAfter => {
                if let Some(x) = self.pick(a) {
                    self.free(x, verb, b, fault, here);
                }
            }
            Verb::TorchAlloc => self.torch_alloc(b, c, fault, here),
            Verb::TorchUse | Verb::TorchFree => {
                let of = |b: &Block| self.doors[b.door].torch;
                let torch: Vec<usize> = (0..self.blocks.len()).filter(|&n| of(&self.blocks[n])).collect();
                if let Some(n) = pick(torch.len(), a) {
                    if verb == Verb::TorchUse {
                        self.torch_use(torch[n], b, fault, here);
                    } else {
                        self.torch_free(torch[n], fault, here);
                    }
                }
            }
            Verb::Open => {
                self.made(usize::from(a) % STREAMS, u32::from(b % 4 > 0));
            }
            Verb::Close => {
                let slot = usize::from(a) % STREAMS;
                if self.released(slot, here) {
                    self.close(slot);
                }
            }
            Verb::Permanent => self.permanent(a, b, fault),
            Verb::DestroyPermanent => self.destroy_permanent(usize::from(a) % STREAMS, b),
            Verb::Pin => self.pin(a, c, fault),
            Verb::PinIn | Verb::PinOut | Verb::PinDeclare | Verb::PinFree | Verb::PinFreeUnknown => {
                if let Some(x) = pick(self.pinned.len(), a) {
                    self.use_pinned(x, verb, b, fault, here);
                }
            }
            Verb::WaitStream => self.beside_no_capture(|world| {
                let stream = world.stream(b, 0, here);
                say!(world, "cuStreamSynchronize({stream});");
                driver::synchronize_stream(stream.raw());
            }),
            Verb::WaitDevice => self.beside_no_capture(|world| {
                say!(world, "cuCtxSynchronize();");
                driver::synchronize();
            }),
            Verb::Capture => self.capture(a, b, c, here),
            Verb::CaptureEnds => self.end_one(a, b, here),
            Verb::CaptureDies => self.destroy_capturing(a, b),
            Verb::CaptureMeanwhile => self.capture_meanwhile(a, b, c, fault, here),
            Verb::ThreadEnds => self.leave(here),
            Verb::Sync | Verb::Destroy if self.concurrent.is_some() => {
                self.beside_no_capture(|world| world.manage(step));
            }
            Verb::Create if self.concurrent.is_some() => self.create_beside_others(a, b, fault),
            Verb::Trim | Verb::Limit | Verb::Sync | Verb::Destroy | Verb::Create | Verb::Look => {
                self.manage(step);
            }
            Verb::EmptyCache if self.concurrent.is_some() => {
                self.beside_no_capture(|world| world.torch_empty_cache(fault));
            }
            Verb::EmptyCache => self.torch_empty_cache(fault),
            Verb::Hostile => self.hostile(a, b, c, here),
            Verb::Breaks => self.breaks(a, b),
            Verb::Mends if self.concurrent.is_none() => self.mends(),
            Verb::Mends => {}
            Verb::NextStream => self.next_stream(a, here),
        }
    }

    /// Leaves a block for another thread that runs at once, or takes one.
    fn exchange_block(&mut self, verb: Verb, a: u8) {
        let Some(concurrent) = self.concurrent.clone() else { return };
        let mut concurrent = concurrent.blocks.lock().expect("no thread panicked");
        let leaves =
            if self.is_rough() { a.is_multiple_of(2) } else { matches!(verb, Verb::Hostile | Verb::Destroy) };
        if !leaves {
            self.blocks.extend(concurrent.pop());
        } else if let Some(x) = self.pick(a).filter(|&x| self.blocks[x].elsewhere.is_empty()) {
            concurrent.push(self.blocks.swap_remove(x));
        }
        drop(concurrent);
        // The block may be of an allocator that this world does not have yet.
        self.refresh();
    }

    /// Creates an allocator, for all threads, in a slot whose allocator has ended.
    fn create_beside_others(&mut self, a: u8, b: u8, fault: Fault) {
        let slot = usize::from(a) % SLOTS;
        let Some(concurrent) = self.concurrent.clone() else { return };
        let mut all = concurrent.doors.lock().expect("no thread panicked");
        let door = all.1[slot];
        let ended = all.0[door].life.load(Ordering::Acquire) & ENDED > 0;
        // The oracle and the final check of memory look at each allocator, so there are not too many.
        if !ended || all.0.len() >= 40 {
            return;
        }
        self.doors.extend_from_slice(&all.0[self.doors.len()..]);
        let device = self.doors[door].device;
        if self.create(slot, usize::from(b), device, fault) {
            all.0.push(self.doors.last().expect("made").clone());
            all.1 = self.slots;
        }
    }

    /// A program's end: it frees all it has, in no special order.
    pub(crate) fn end(&mut self, here: Here) {
        self.while_it_lives(|world| world.give_back_all(here));
    }

    fn give_back_all(&mut self, here: Here) {
        say!(self, "// the end");
        if self.first {
            self.mends();
        }
        self.leave(here);
        driver::bind(self.contexts[0]);
        if let Some(concurrent) = self.concurrent.as_ref().filter(|_| self.first) {
            self.blocks.append(&mut concurrent.blocks.lock().expect("no thread panicked"));
        }
        self.refresh();
        self.free_all(here);
        if self.first && !driver::is_broken() {
            // This carries out what other threads have put off, too.
            self.torch_empty_cache(0);
            assert!(self.all_frees_done(), "{:?} are put off for no reason", self.later);
        }
        for slot in 0..STREAMS {
            self.close(slot);
        }
        for door in 0..self.doors.len() {
            if self.doors[door].open && self.first {
                self.destroy(door, false, 0);
            }
        }
    }

    fn free_all(&mut self, here: Here) {
        if driver::is_broken() {
            return self.free_what_can_be(here);
        }
        let mut turn = 0_u8;
        while let Some(x) = self.pick(255) {
            if driver::is_broken() {
                return self.free_what_can_be(here);
            }
            turn = turn.wrapping_add(1);
            let verb = [Verb::Free, Verb::FreeOn, Verb::FreeAfter][usize::from(turn) % 3];
            self.free(x, verb, turn.wrapping_mul(37), 0, here);
        }
        while !self.pinned.is_empty() {
            self.free_pinned(0, Verb::PinFree, 0, here);
        }
    }

    /// What a program may leave; `None` after the context was lost. What could not be destroyed stays, and nothing else can be destroyed while no
    /// context can be made current; but memory comes back nevertheless.
    pub(crate) fn may_be_left(&self) -> Option<Lasting> {
        let any = Lasting { streams: usize::MAX, events: usize::MAX, modules: usize::MAX, pages: 0 };
        let kept = World::has_kept() || driver::has_broken();
        let most = if kept { any } else { self.lasting() };
        let pages = if driver::has_broken() { usize::MAX } else { 0 };
        (!driver::is_lost()).then_some(Lasting { pages, ..most })
    }

    /// An allocator that scrubs has an internal stream. No events are left: the last call waited for the device, and nothing was pending.
    fn lasting(&self) -> Lasting {
        let streams = self.doors.iter().filter(|d| d.scrubs).count();
        Lasting { streams, events: 0, modules: 0, pages: 0 }
    }

    /// After the program's threads have ended: whatever is left goes back when the next allocator of its device ends, or at a synchronise of one that
    /// has ended there; then nothing is left.
    pub(crate) fn after(&mut self) {
        if driver::is_lost() {
            return self.live_figures_agree();
        }
        driver::bind(self.contexts[0]);
        driver::synchronize();
        driver::bind(self.contexts[1]);
        driver::synchronize();
        driver::bind(self.contexts[0]);
        for (slot, device) in [(0, 0), (SLOTS - 1, 1)] {
            let ended = self.doors.iter().rev().find(|d| d.device == device && !d.open);
            if let Some(number) = ended.map(|d| d.number).filter(|_| self.names.is_multiple_of(2)) {
                let words = format!("millpond_synchronize(a{number})");
                self.must(0, Status::Ok, &words, || ffi::millpond_synchronize(number));
                continue;
            }
            self.create(slot, 1, device, 0);
            self.destroy(self.slots[slot], false, 0);
        }
        for (_, door, stats) in self.reports() {
            let left = (stats.total("live"), stats.field("reserved"), stats.pinned("reserved"));
            assert!(left == (0, 0, 0), "a{} still has {left:?}: {stats}", door.number);
        }
        self.tidy();
    }

    /// The reports of all allocators, ended ones included, if they are readable. An ended allocator is dropped if nothing of it is alive and as many have ended
    /// after it as stay readable; the ones in the slots count among these, which may have been created before.
    fn reports(&self) -> impl Iterator<Item = (usize, &Door, Stats)> {
        let latest = self.doors.len().saturating_sub(READABLE - SLOTS);
        self.doors.iter().enumerate().filter_map(move |(d, door)| {
            let crowded = d < self.crowded;
            if door.open || d >= latest && !crowded || self.live_of(d) != (0, 0) {
                return Some((d, door, Stats::of(door.number)));
            }
            Some((d, door, Stats::of_ended(door.number)?))
        })
    }

    fn check_reads(&self) {
        for read in &self.reads {
            for at in [0, read.bytes / 2, read.bytes - 1] {
                let mut byte = 0;
                driver::copy_back(&raw mut byte, read.at + at as u64, 1);
                assert_eq!(byte, read.value, "byte {at} of p{} as it was read", read.name);
            }
        }
    }

    /// Checks that what was read is what had been written, and frees the program's own memory, streams and events.
    pub(crate) fn tidy(&mut self) {
        if driver::is_lost() {
            return;
        }
        driver::bind(self.contexts[0]);
        // If threads ran at once and the driver was broken, some of their copies, or writes before them, may have been refused.
        if self.concurrent.is_none() || !driver::has_broken() {
            self.check_reads();
        }
        self.shared = self.shared.filter(|_| !self.first);
        for slot in 0..STREAMS {
            if let Some(made) = &mut self.streams[slot] {
                (made.permanent, made.kept) = (false, false);
            }
            self.close(slot);
        }
        for event in std::mem::take(&mut self.events).into_iter().filter(|event| *event != 0) {
            driver::destroy_event(event as driver::Handle);
        }
        for (device, handle) in std::mem::take(&mut self.unnamed) {
            driver::bind(self.contexts[device]);
            driver::destroy_stream(handle as driver::Handle);
        }
        for (device, at) in self.scratch.into_iter().enumerate() {
            driver::bind(self.contexts[device]);
            driver::free(at);
        }
    }
}

/// Picks one of `of`, the latest ones more often than the others.
fn pick(of: usize, which: u8) -> Option<usize> {
    let which = usize::from(which);
    match of {
        0 => None,
        _ if which < 128 => Some(of - 1 - which % of.min(3)),
        _ => Some(which % of),
    }
}
