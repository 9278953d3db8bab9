//! Calls of the C interface, wrong ones among them, over the stand-in driver: any bytes are a program of them.
//!
//! A small model knows which pointers are live, which allocator they belong to and which streams exist, and so which code each call must
//! return. Pointers are freed twice, invented, moved inwards, null, another allocator's or another device's; streams are
//! destroyed without notice, so that handles are reused, invented, or the other device's; sizes are too large; allocators do not exist or are
//! destroyed. After each program everything that is live is freed, nothing may be live, and the oracle must find no
//! violation in the writes. It knows the header, and not how it is implemented.

#[path = "../../tests/fake_libcuda/remote.rs"]
mod remote;

use core::ffi::{CStr, c_void};
use millpond_plug::ffi::{
    millpond_alloc, millpond_alloc_pinned, millpond_create, millpond_declare_permanent, millpond_destroy,
    millpond_find, millpond_free, millpond_free_after, millpond_free_on, millpond_free_pinned,
    millpond_free_pinned_unknown, millpond_free_unknown, millpond_last_error, millpond_record_pinned_use,
    millpond_record_use, millpond_release, millpond_report, millpond_reset_peaks, millpond_set_limit,
    millpond_stats_json, millpond_synchronize, millpond_trim,
};
use millpond_plug::status::MillpondStatus as Status;
use millpond_plug::torch::{
    millpond_torch_alloc, millpond_torch_allocator, millpond_torch_base, millpond_torch_empty_cache,
    millpond_torch_free, millpond_torch_memory_fraction, millpond_torch_record_stream, millpond_torch_untold,
};
use pond::cuda::{Cuda, GpuStream};
use pond::driver::{Fences, StreamOptions};
use pond::units::Addr;
use remote::{Fake, When};
use std::mem::ManuallyDrop;
use std::ptr::null_mut;
use std::sync::Mutex;

/// Bytes of memory of each of the two devices.
const CAPACITY: u64 = 64 << 20;
/// Requests above this always fail.
const TOO_LARGE: u64 = u32::MAX as u64 * 512;
/// The limit on allocators that programs destroy: more than a process can have at one time, since the places of ended ones are reused.
const DESTROYED: u32 = 20_000;

/// State that lasts as long as the process, as allocators do.
struct World {
    driver: Driver,
    cuda: [Cuda; 2],
    /// Two on device 0, PyTorch's on device 1, and the one on device 0 that is to be destroyed.
    doors: [Door; 4],
    /// A stream on device 0 that is declared permanent to most allocators.
    permanent: GpuStream,
    destroyed: u32,
    runs: u32,
}

#[derive(Clone, Copy)]
struct Door {
    name: u32,
    device: usize,
    open: bool,
}

/// The stand-in, which is never dropped: contexts and allocators use it to the end of the process.
struct Driver(ManuallyDrop<Fake>);

// SAFETY: only a lock's guard in it is not `Send`, and that is never released; the stand-in's functions take a lock of its own.
#[allow(unsafe_code, reason = "a guard that is never dropped")]
unsafe impl Send for Driver {}

static WORLD: Mutex<Option<World>> = Mutex::new(None);

impl World {
    /// `None` where the stand-in was not built.
    fn new() -> Option<World> {
        let driver = Driver(ManuallyDrop::new(remote::fake(CAPACITY, 2, When::Latest)?));
        let cuda = [0, 1].map(|d| Cuda::new(d).expect("the stand-in has two devices"));
        let mut pytorch = 0;
        assert_eq!(
            millpond_torch_allocator(1, c"wait_ms=1,pinned_limit=1MiB".as_ptr(), &raw mut pytorch),
            Status::Ok
        );
        let doors = [
            Door::new(c"growth=exact,wait_ms=1,pinned_limit=1MiB"),
            Door::new(c"policy=footprint,wait_ms=1,pinned_limit=1MiB"),
            Door { name: pytorch, device: 1, open: true },
            Door::new(c"pinned_limit=1MiB"),
        ];
        let permanent = cuda[0].create_stream(StreamOptions::default()).expect("a stream");
        assert_eq!(millpond_declare_permanent(doors[0].name, permanent.handle().cast()), Status::Ok);
        Some(World { driver, cuda, doors, permanent, destroyed: 0, runs: 0 })
    }
}

impl Door {
    /// An allocator on device 0.
    fn new(options: &CStr) -> Door {
        let mut name = 0;
        let made = millpond_create(0, options.as_ptr(), &raw mut name);
        assert_eq!(made, Status::Ok, "{}", last());
        Door { name, device: 0, open: true }
    }
}

/// Runs a program. Returns whether there was a driver to run it on.
pub fn run(data: &[u8]) -> bool {
    let mut world = WORLD.lock().expect("no program panicked before");
    if world.is_none() {
        *world = World::new();
    }
    let Some(world) = world.as_mut() else { return false };
    world.runs += 1;
    Run {
        world,
        input: data,
        live: Vec::new(),
        pinned: Vec::new(),
        freed: Vec::new(),
        streams: Default::default(),
    }
    .run();
    true
}

#[derive(Clone, Copy, Debug)]
struct Block {
    at: usize,
    bytes: usize,
    door: usize,
}

struct Run<'a> {
    world: &'a mut World,
    input: &'a [u8],
    live: Vec<Block>,
    pinned: Vec<Block>,
    /// Addresses that were freed.
    freed: Vec<usize>,
    /// Three on device 0, one on device 1; `None` while one is destroyed. The first is permanent and never destroyed.
    streams: [Option<GpuStream>; 4],
}

/// A stream as a call names it, with what the model knows of it.
#[derive(Clone, Copy)]
struct Named {
    handle: *mut c_void,
    /// The device it is on; `None` for a default stream, which each device has.
    device: Option<usize>,
    alive: bool,
    /// Its place in [`Run::streams`].
    slot: Option<usize>,
}

impl Named {
    /// What a call that needs the stream returns on a device, unless another argument is wrong.
    fn expected(self, device: usize) -> Result<(), Status> {
        match self.device {
            _ if !self.alive => Err(Status::Driver),
            Some(d) if d != device => Err(Status::WrongAllocator),
            _ => Ok(()),
        }
    }
}

impl Run<'_> {
    fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.input.split_first() else { return 0 };
        self.input = rest;
        first
    }
    fn pick(&mut self, of: usize) -> usize {
        usize::from(self.byte()) % of
    }

    fn run(mut self) {
        self.streams[0] = Some(self.world.permanent.clone());
        while !self.input.is_empty() {
            self.step();
        }
        for block in std::mem::take(&mut self.live) {
            let door = self.world.doors[block.door];
            assert_eq!(
                millpond_free(door.name, block.at as *mut c_void),
                Status::Ok,
                "{block:?}: {}",
                last()
            );
        }
        for block in std::mem::take(&mut self.pinned) {
            let door = self.world.doors[block.door];
            assert_eq!(
                millpond_free_pinned(door.name, block.at as *mut c_void),
                Status::Ok,
                "{block:?}: {}",
                last()
            );
        }
        for door in self.world.doors {
            if door.open {
                assert_eq!(millpond_synchronize(door.name), Status::Ok, "{}", last());
                // Not each time: most of a fuzzer's time goes into reserving memory anew.
                if self.world.runs.is_multiple_of(16) {
                    assert_eq!(millpond_trim(door.name, null_mut()), Status::Ok, "{}", last());
                }
                assert_eq!(millpond_set_limit(door.name, c"none".as_ptr()), Status::Ok);
            }
            let text = stats(door.name);
            let (_, total) = text.split_once("\"total\":").expect("sums");
            let (_, live) = total.split_once("\"live\":").expect("how many are live");
            assert!(live.starts_with("0,"), "{text}");
        }
        if !self.world.doors[3].open && self.world.destroyed < DESTROYED {
            self.world.doors[3] = Door::new(c"pinned_limit=1MiB");
        }
        assert_eq!(self.world.driver.0.verdict(), None);
    }

    fn open(&mut self, slot: usize) {
        let cuda = &self.world.cuda[usize::from(slot == 3)];
        self.streams[slot] = Some(cuda.create_stream(StreamOptions::default()).expect("a stream"));
    }

    /// A stream for a call: mostly one of this run's.
    fn stream(&mut self) -> Named {
        let invented =
            |handle: usize| Named { handle: handle as *mut c_void, device: None, alive: true, slot: None };
        match self.byte() {
            which @ 0..160 => {
                let slot = usize::from(which) % 4;
                if self.streams[slot].is_none() {
                    self.open(slot);
                }
                let stream = self.streams[slot].as_ref().expect("opened");
                Named {
                    handle: stream.handle().cast(),
                    device: Some(usize::from(slot == 3)),
                    alive: true,
                    slot: Some(slot),
                }
            }
            which @ 160..220 => invented(usize::from(which) % 3),
            // In a page that is not mapped.
            which => Named { alive: false, ..invented(0x7000_0000_0000 + usize::from(which) * 64) },
        }
    }

    /// A pointer, mostly to a live block; and the block that begins there.
    fn pointer(&mut self) -> (*mut c_void, Option<usize>) {
        let which = self.byte();
        let n = usize::from(self.byte());
        let at = match which {
            0..150 if !self.live.is_empty() => self.live[n % self.live.len()].at,
            150..190 if !self.live.is_empty() => self.live[n % self.live.len()].at + n * 512 / 3,
            190..230 if !self.freed.is_empty() => self.freed[n % self.freed.len()],
            0..230 => 0,
            which => [1, 511, 512, 0x1234_5600, usize::MAX, usize::MAX - 511, 1 << 52, 1 << 48]
                [(n + usize::from(which)) % 8],
        };
        (at as *mut c_void, self.live.iter().position(|b| b.at == at))
    }

    /// An allocator's name, mostly one of this run's; and its place in the list.
    fn door(&mut self) -> (u32, Option<usize>) {
        match self.byte() {
            which @ 0..240 => {
                let door = usize::from(which) % 4;
                (self.world.doors[door].name, Some(door))
            }
            which => ([0, 4096, 4097, u32::MAX][usize::from(which) % 4], None),
        }
    }

    fn is_open(&self, door: Option<usize>) -> bool {
        door.is_some_and(|d| self.world.doors[d].open)
    }

    fn step(&mut self) {
        match self.byte() {
            0..90 => self.alloc(),
            90..168 => self.end_or_use(),
            168..180 => self.end_after(),
            180..200 => self.pytorch(),
            200..220 => {
                let slot = 1 + self.pick(3);
                // Without notice, perhaps with work pending and memory alive.
                self.streams[slot] = None;
            }
            220..228 => self.look(),
            228..235 => self.pinned_memory(),
            235..245 => self.limit(),
            what @ 245..253 => {
                let (name, door) = self.door();
                if what == 245 {
                    report(name, door.is_some());
                }
                let expected = if self.is_open(door) { Status::Ok } else { Status::UnknownAllocator };
                let mut freed = 0;
                // A trim of an ended allocator gives back what was freed since.
                let known = if door.is_some() { Status::Ok } else { Status::UnknownAllocator };
                assert_eq!(millpond_trim(name, &raw mut freed), known);
                assert_eq!(millpond_reset_peaks(name), expected);
                let expected = match door {
                    Some(d) if expected == Status::Ok && self.world.doors[d].device == 1 => {
                        Status::WrongAllocator
                    }
                    _ => expected,
                };
                let stream = self.world.permanent.handle().cast();
                assert_eq!(millpond_declare_permanent(name, stream), expected, "{}", last());
            }
            what @ 253..255 => {
                let door = self.world.doors[3];
                let expected = if door.open { Status::Ok } else { Status::UnknownAllocator };
                let end = if what == 253 { millpond_destroy } else { millpond_release };
                assert_eq!(end(door.name), expected, "{}", last());
                self.world.destroyed += u32::from(door.open);
                self.world.doors[3].open = false;
            }
            255 => self.other_pytorch_calls(),
        }
    }

    /// `PyTorch`'s calls besides allocations and frees. An invalid share creates no allocator for a device that has none.
    fn other_pytorch_calls(&mut self) {
        let before = millpond_torch_untold();
        let shares = [
            (1.0, Some(CAPACITY)),
            (0.5, Some(CAPACITY / 2)),
            (-1.0, None),
            (2.0, None),
            (f64::NAN, None),
            (f64::INFINITY, None),
        ];
        let ((fraction, limit), device) = (shares[self.pick(6)], [1, 1, -1, 64, 99][self.pick(5)]);
        if self.pick(2) == 0 {
            millpond_torch_empty_cache();
            assert_eq!(millpond_torch_untold(), before, "{}", last());
        } else if let (Some(limit), 1) = (limit, device) {
            // `PyTorch`'s function throws when it is out of memory, so its allocator keeps no limit.
            let (name, none) = (self.world.doors[2].name, c"none".as_ptr());
            millpond_torch_memory_fraction(fraction, device);
            assert_eq!(millpond_torch_untold(), before, "{}", last());
            let limit = format!("\"limit\":{limit}");
            assert!(stats(name).contains(&limit), "{limit}: {}", stats(name));
            assert_eq!(millpond_set_limit(name, none), Status::Ok);
        } else {
            millpond_torch_memory_fraction(fraction, if limit.is_some() { device } else { 0 });
            assert_eq!(millpond_torch_untold(), before + 1, "{fraction} of device {device} is invalid");
        }
    }

    fn alloc(&mut self) {
        let ((name, door), stream) = (self.door(), self.stream());
        let size = usize::from(self.byte()) << 8 | usize::from(self.byte());
        let bytes = match self.byte() {
            0..140 => size,
            140..200 => size * 100,
            200..230 => 0,
            230..245 => (TOO_LARGE as usize).wrapping_add(size).wrapping_sub(1000),
            n => usize::MAX - usize::from(n) * 100,
        };
        let mut out: *mut c_void = null_mut();
        let status = millpond_alloc(name, bytes, stream.handle, &raw mut out);
        let Some(door) = door.filter(|&d| self.world.doors[d].open) else {
            assert_eq!(status, Status::UnknownAllocator);
            return;
        };
        if status != Status::Ok {
            assert!(out.is_null() && !last().is_empty());
        }
        let device = self.world.doors[door].device;
        if bytes == 0 {
            assert!(status == Status::Ok && out.is_null());
        } else if let Err(expected) = stream.expected(device) {
            assert_eq!(status, expected, "{}", last());
        } else if bytes as u64 > CAPACITY || status == Status::OutOfMemory {
            assert_eq!(status, Status::OutOfMemory, "{bytes} bytes: {}", last());
        } else {
            assert_eq!(status, Status::Ok, "{bytes} bytes: {}", last());
            self.track(Block { at: out.addr(), bytes, door }, stream);
        }
    }

    fn track(&mut self, block: Block, stream: Named) {
        assert!(block.at != 0 && block.at.is_multiple_of(512), "{block:?}");
        for other in &self.live {
            let apart = block.at + block.bytes <= other.at || other.at + other.bytes <= block.at;
            assert!(apart, "{block:?} lies in {other:?}");
        }
        self.freed.retain(|&at| at != block.at);
        if let Some(slot) = stream.slot
            && block.bytes >= 8
        {
            // Work of the program, for the oracle to judge; on a large block only its front.
            let (cuda, s) =
                (&self.world.cuda[usize::from(slot == 3)], self.streams[slot].as_ref().expect("named"));
            let words = (block.bytes as u64 / 8 * 8).min(4096);
            cuda.write_pattern(s, Addr(block.at as u64), words, 7)
                .expect("the bytes are ours on this stream");
        }
        self.live.push(block);
    }

    fn untrack(&mut self, which: usize) {
        let block = self.live.swap_remove(which);
        self.freed.push(block.at);
    }

    fn end_or_use(&mut self) {
        let ((name, door), (ptr, block), stream, verb) =
            (self.door(), self.pointer(), self.stream(), self.byte() % 4);
        let status = match verb {
            0 => millpond_free(name, ptr),
            1 => millpond_free_on(name, ptr, stream.handle),
            2 => millpond_free_unknown(name, ptr),
            _ => millpond_record_use(name, ptr, stream.handle),
        };
        let names_stream = verb == 1 || verb == 3;
        // Live memory may be freed after the end of its allocator; but a use is refused.
        let there = if verb == 3 { self.is_open(door) } else { door.is_some() };
        if !there {
            assert_eq!(status, Status::UnknownAllocator);
            return;
        }
        let expected = match block.map(|b| (b, self.live[b])) {
            None if ptr.is_null() => Status::Ok,
            None => Status::UnknownPointer,
            Some((_, b)) if Some(b.door) != door => Status::WrongAllocator,
            Some((_, b)) if names_stream => {
                stream.expected(self.world.doors[b.door].device).err().unwrap_or(Status::Ok)
            }
            Some(_) => Status::Ok,
        };
        assert_eq!(status, expected, "verb {verb} of {ptr:p}: {}", last());
        if let (Some(which), Status::Ok, 0..3) = (block, status, verb) {
            self.untrack(which);
        }
    }

    /// A free behind a list of streams, some of them invalid, or with an invalid list.
    fn end_after(&mut self) {
        let ((name, door), (ptr, block)) = (self.door(), self.pointer());
        let streams: Vec<Named> = (0..self.pick(5)).map(|_| self.stream()).collect();
        let list: Vec<*mut c_void> = streams.iter().map(|s| s.handle).collect();
        let (at, n, is_list) = match self.byte() {
            0..230 => (list.as_ptr(), list.len(), true),
            230..240 => (core::ptr::null(), list.len(), list.is_empty()),
            n => (list.as_ptr(), usize::MAX - usize::from(n), false),
        };
        let status = millpond_free_after(name, ptr, at, n);
        // The call first checks each stream; then it records a use on each, except on the allocation's own stream.
        let all_alive = streams.iter().all(|s| s.alive);
        let expected = match block.map(|b| self.live[b]) {
            _ if door.is_none() => Status::UnknownAllocator,
            _ if !is_list => Status::BadArgument,
            None if ptr.is_null() => Status::Ok,
            _ if !all_alive => Status::Driver,
            None => Status::UnknownPointer,
            Some(b) if Some(b.door) != door => Status::WrongAllocator,
            Some(b) => {
                let device = self.world.doors[b.door].device;
                let wrong = streams.iter().any(|s| s.device.is_some_and(|d| d != device));
                if wrong { Status::WrongAllocator } else { Status::Ok }
            }
        };
        assert_eq!(status, expected, "after {n} streams, of {ptr:p}: {}", last());
        if let (Some(which), Status::Ok) = (block, status) {
            self.untrack(which);
        }
    }

    /// The functions that return no code: their failures are counted.
    fn pytorch(&mut self) {
        let before = millpond_torch_untold();
        let ((ptr, block), stream, verb) = (self.pointer(), self.stream(), self.byte() % 4);
        let device = [1, 1, 1, -1, 64, 99][self.pick(6)];
        let unreported = match verb {
            0 => {
                // It throws when it fails, which a program in Rust cannot catch.
                let mut probe = null_mut();
                if millpond_alloc(self.world.doors[2].name, 4096, stream.handle, &raw mut probe) != Status::Ok
                {
                    return;
                }
                assert_eq!(millpond_free(self.world.doors[2].name, probe), Status::Ok);
                let at = millpond_torch_alloc(4096, 1, stream.handle);
                self.track(Block { at: at.addr(), bytes: 4096, door: 2 }, stream);
                false
            }
            1 => {
                millpond_torch_free(ptr, 0, device, stream.handle);
                let freed = device == 1 && block.is_some_and(|b| self.live[b].door == 2);
                if freed {
                    self.untrack(block.expect("it was live"));
                }
                !(freed || device == 1 && ptr.is_null())
            }
            2 => {
                millpond_torch_record_stream(ptr, stream.handle);
                // A stream that cannot be queried counts as an unknown stream; one of a device where PyTorch has no allocator is a failure. Blocks
                // of an ended allocator are used, too.
                let recorded = ptr.is_null()
                    || block.is_some_and(|b| {
                        let door = self.world.doors[self.live[b].door];
                        !stream.alive || stream.device.is_none_or(|d| d == door.device)
                    });
                !recorded
            }
            _ => {
                let mut bytes = 0;
                let at = millpond_torch_base(ptr, &raw mut bytes);
                let found =
                    self.live.iter().find(|b| b.door == 2 && (b.at..b.at + b.bytes).contains(&ptr.addr()));
                assert_eq!((at.addr(), bytes), found.map_or((0, 0), |b| (b.at, b.bytes)));
                found.is_none()
            }
        };
        assert_eq!(
            millpond_torch_untold() - before,
            u64::from(unreported),
            "verb {verb} of {ptr:p}: {}",
            last()
        );
    }

    fn look(&mut self) {
        let ((name, door), (ptr, _)) = (self.door(), self.pointer());
        let (mut begin, mut bytes) = (null_mut(), 0);
        let status = millpond_find(name, ptr, &raw mut begin, &raw mut bytes);
        let Some(door) = door else {
            assert_eq!(status, Status::UnknownAllocator);
            return;
        };
        let found = self.live.iter().find(|b| b.door == door && (b.at..b.at + b.bytes).contains(&ptr.addr()));
        match found {
            Some(b) => assert_eq!((status, begin.addr(), bytes), (Status::Ok, b.at, b.bytes)),
            None => assert_eq!((status, begin.addr(), bytes), (Status::UnknownPointer, 0, 0)),
        }
    }

    fn pinned_memory(&mut self) {
        let ((name, door), stream, verb, n) =
            (self.door(), self.stream(), self.byte() % 5, usize::from(self.byte()));
        let open = if self.is_open(door) { Status::Ok } else { Status::UnknownAllocator };
        if verb < 2 {
            let (mut out, bytes) = (null_mut(), n * 100);
            let status = millpond_alloc_pinned(name, bytes, &raw mut out);
            if status == Status::Ok && bytes > 0 {
                let at = out.addr();
                assert!(at != 0 && at.is_multiple_of(512), "{at:#x}");
                let apart = |b: &Block| at + bytes <= b.at || b.at + b.bytes <= at;
                assert!(self.pinned.iter().all(apart), "{at:#x} + {bytes} in {:?}", self.pinned);
                // SAFETY: pinned memory of so many bytes, which only this run uses.
                #[allow(unsafe_code, reason = "pinned memory is real")]
                unsafe {
                    out.cast::<u8>().write_bytes(0xA5, bytes);
                };
                self.pinned.push(Block { at, bytes, door: door.expect("it is open") });
            } else {
                assert!(out.is_null());
                assert!(
                    status == open || (open, status) == (Status::Ok, Status::OutOfMemory),
                    "{status:?}: {}",
                    last()
                );
            }
            return;
        }
        let ptr = match n {
            0..200 if !self.pinned.is_empty() => self.pinned[n % self.pinned.len()].at,
            200..220 if !self.pinned.is_empty() => self.pinned[n % self.pinned.len()].at + 512,
            220..240 if !self.live.is_empty() => self.live[n % self.live.len()].at,
            n => n % 2 * 4096,
        };
        let which = self.pinned.iter().position(|b| b.at == ptr && Some(b.door) == door);
        let native = ptr as *mut c_void;
        let status = match verb {
            2 => millpond_free_pinned(name, native),
            3 => millpond_free_pinned_unknown(name, native),
            _ => millpond_record_pinned_use(name, native, stream.handle),
        };
        let there = match which {
            Some(_) => Status::Ok,
            // Another allocator's, alive or ended.
            None if self.pinned.iter().any(|b| b.at == ptr) => Status::WrongAllocator,
            None => Status::UnknownPointer,
        };
        let expected = match (door, verb) {
            (None, _) => Status::UnknownAllocator,
            (Some(_), 2 | 3) if ptr == 0 => Status::Ok,
            (Some(_), 2 | 3) => there,
            (Some(_), _) if open != Status::Ok => open,
            (Some(_), _) if ptr == 0 => Status::Ok,
            (Some(d), _) => stream.expected(self.world.doors[d].device).err().unwrap_or(there),
        };
        assert_eq!(status, expected, "verb {verb} of pinned {ptr:#x}: {}", last());
        if let (Some(which), 2 | 3) = (which, verb) {
            self.pinned.swap_remove(which);
        }
    }

    fn limit(&mut self) {
        let (name, door) = self.door();
        let (words, right) = [
            (c"4MiB", true),
            (c"40%", true),
            (c"none", true),
            (c"0", true),
            (c"much", false),
            (c"-1", false),
            (c"400%", false),
            (c"\xff", false),
        ][self.pick(8)];
        // `PyTorch`'s function throws when it is out of memory, so its allocator has no limit.
        let (words, right) = if right && door == Some(2) { (c"none", true) } else { (words, right) };
        let expected = match (self.is_open(door), right) {
            (false, _) => Status::UnknownAllocator,
            (true, false) => Status::BadArgument,
            (true, true) => Status::Ok,
        };
        assert_eq!(millpond_set_limit(name, words.as_ptr()), expected, "{words:?}: {}", last());
    }
}

/// The report as text: it has the length that the call returns, is cut off in a shorter buffer, and is refused for an unknown allocator.
fn report(name: u32, known: bool) {
    let mut needed = 77;
    let status = millpond_report(name, null_mut(), 0, &raw mut needed);
    if !known {
        assert_eq!((status, needed), (Status::UnknownAllocator, 77));
        return;
    }
    assert_eq!(status, Status::Ok, "{}", last());
    let mut text = vec![b'x'; needed + 1];
    let half = needed / 2;
    assert_eq!(millpond_report(name, text.as_mut_ptr().cast(), half, null_mut()), Status::Ok);
    assert_eq!((text[half - 1], text[half]), (0, b'x'), "{half} bytes of it, the last of them a zero");
}

fn stats(door: u32) -> String {
    let mut needed = 0;
    assert_eq!(millpond_stats_json(door, null_mut(), 0, &raw mut needed), Status::Ok, "{}", last());
    let mut text = vec![b'x'; needed];
    assert_eq!(millpond_stats_json(door, text.as_mut_ptr().cast(), needed, null_mut()), Status::Ok);
    assert_eq!(text.pop(), Some(0), "it ends with a zero");
    String::from_utf8(text).expect("text")
}

fn last() -> String {
    // SAFETY: never null, and it stays until the thread's next failure.
    #[allow(unsafe_code, reason = "a text of C")]
    unsafe { CStr::from_ptr(millpond_last_error()) }.to_string_lossy().into_owned()
}
