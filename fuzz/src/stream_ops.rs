//! Programs on the whole allocator over the simulated device: any bytes are a correct program, so nothing may be
//! violated, no byte may change under its owner, no error but "no memory" may come, and nothing may be left.
//!
//! A small interpreter: it runs one thread, writes a word of the block's own at each write and checks it at each read,
//! and follows words through copies. It knows nothing of what the allocator does.

use millpond::driver::Copies;
use millpond::trace::{Access, BlockNo, EventNo, Op, Program, StreamNo};
use millpond::units::{Addr, MIB};
use millpond::{
    Allocation, Allocator, Config, Error, Event, Growth, Limit, PinnedAllocation, Policy, Reuse, Stream, Trim,
};
use millpond_sim::{Launch, Schedule, Sim};
use std::collections::HashMap;

/// The first two bytes choose the device's schedule and the options, the others make the program.
pub fn run(data: &[u8]) {
    let [schedule, options, rest @ ..] = data else { return };
    run_with(*schedule, *options, &millpond_replay::from_fuzz(rest));
}

/// Runs a correct program. `schedule` and `options` choose as in [`run`].
pub fn run_with(schedule: u8, options: u8, program: &Program) {
    // Too little for the 64 MiB that the pinned pool would like: real memory is what takes a fuzzer's time.
    let sim = Sim::new(48 * MIB).pinned_capacity(12 * MIB).schedule(match schedule {
        0..64 => Schedule::Latest,
        64..96 => Schedule::Earliest,
        seed => Schedule::Random(seed.into()),
    });
    let gpu = Allocator::new(sim.clone(), config(options)).expect("an allocator on a fresh device");
    let mut run = Run {
        sim: sim.clone(),
        streams: HashMap::new(),
        events: HashMap::new(),
        blocks: HashMap::new(),
        words: 0,
        gpu,
    };
    for number in 0..program.streams {
        run.open(StreamNo(number));
    }
    for (number, step) in program.steps.iter().enumerate() {
        run.step(&step.op);
        if number % 8 == 0 {
            run.gpu.check();
        }
    }
    run.gpu.check();
    drop(run);
    sim.run_until_idle();
    if let Err(e) = sim.verdict() {
        panic!("{e}\nwith schedule {schedule}, options {options}:\n{program}");
    }
    assert_eq!(sim.leaks(), [], "left on the device by:\n{program}");
    assert_eq!(sim.drop_errors(), [], "with no fault planted");
}

fn config(options: u8) -> Config {
    let bit = |n: u8| options >> n & 1 == 1;
    let mut config = Config::default().deterministic(bit(0)).limit(Limit::Bytes(32 * MIB));
    config = config.policy(if bit(1) { Policy::Footprint } else { Policy::Latency });
    config = config.growth(match options >> 2 & 3 {
        0 => Growth::Exact,
        1 => Growth::Rounded { small: MIB, large: 4 * MIB, multiple: MIB },
        2 => Growth::Rounded { small: 4096, large: 4096, multiple: 512 },
        _ => Growth::default(),
    });
    config = config.reuse(match options >> 4 & 3 {
        0 => Reuse::Never,
        1 => Reuse::Ordered,
        _ => Reuse::WithWaits,
    });
    if bit(6) { config.pinned_limit(10 * MIB) } else { config }
}

enum Memory {
    Device(Allocation<Sim>),
    Pinned(PinnedAllocation<Sim>),
}

struct Block {
    memory: Memory,
    /// What the first `known` bytes hold.
    word: u64,
    known: u64,
}

impl Block {
    fn place(&self) -> (Addr, u64) {
        match &self.memory {
            Memory::Device(a) => (a.address(), a.len()),
            Memory::Pinned(p) => (p.address(), p.len()),
        }
    }
    fn record_use(&self, s: &Stream<Sim>) {
        match &self.memory {
            Memory::Device(a) => a.record_use(s),
            Memory::Pinned(p) => p.record_use(s),
        }
        .expect("a use on a live stream of the same device");
    }
}

struct Run {
    sim: Sim,
    streams: HashMap<StreamNo, Stream<Sim>>,
    events: HashMap<EventNo, Event<Sim>>,
    blocks: HashMap<BlockNo, Block>,
    words: u64,
    gpu: Allocator<Sim>,
}

impl Run {
    fn open(&mut self, number: StreamNo) {
        self.streams.insert(number, self.gpu.stream().expect("a stream"));
    }

    fn keep(&mut self, number: BlockNo, made: Result<Memory, Error>) {
        match made {
            Ok(memory) => {
                self.blocks.insert(number, Block { memory, word: 0, known: 0 });
            }
            Err(Error::OutOfMemory(_) | Error::TooLarge { .. } | Error::BadAlignment { .. }) => {
                self.blocks.remove(&number);
            }
            Err(e) => panic!("with no fault planted: {e}"),
        }
    }

    #[allow(unsafe_code, reason = "the driver's copies work on raw memory")]
    fn step(&mut self, op: &Op) {
        match *op {
            Op::Alloc { block, bytes, align, stream } => {
                let s = &self.streams[&stream];
                let made = match align {
                    Some(align) => self.gpu.alloc_aligned(bytes, align, s),
                    None => self.gpu.alloc(bytes, s),
                };
                if let (Ok(a), Some(align)) = (&made, align) {
                    assert!(a.is_empty() || a.address().0.is_multiple_of(align), "{a:?} at {align}");
                }
                self.keep(block, made.map(Memory::Device));
            }
            Op::AllocPinned { block, bytes } => {
                let made = self.gpu.alloc_pinned(bytes);
                if let Ok(p) = &made
                    && !p.is_empty()
                {
                    // The CPU may touch fresh pinned memory at once: every use of its last life is complete.
                    self.sim.host_writes(p.address(), p.len()).expect("pinned memory");
                }
                self.keep(block, made.map(Memory::Pinned));
            }
            Op::Free { block } => drop(self.blocks.remove(&block)),
            Op::FreeOn { block, stream } => {
                if let Some(Block { memory: Memory::Device(a), .. }) = self.blocks.remove(&block) {
                    a.free_on(&self.streams[&stream]).expect("a free on a live stream");
                }
            }
            Op::FreeUnknown { block } => {
                if let Some(Block { memory: Memory::Device(a), .. }) = self.blocks.remove(&block) {
                    a.free_unknown();
                }
            }
            Op::Use { block, stream, access, recorded } => self.touch(block, stream, access, recorded),
            Op::RecordUse { block, stream } => {
                if let Some(b) = self.blocks.get(&block) {
                    b.record_use(&self.streams[&stream]);
                }
            }
            Op::Copy { to, from, bytes, stream } => self.copy(to, from, bytes, stream),
            Op::Record { event, stream } => {
                let e = self.streams[&stream].record().expect("an event");
                self.events.insert(event, e);
            }
            Op::Wait { stream, event } => {
                if let Some(e) = self.events.get(&event) {
                    self.streams[&stream].wait(e).expect("a wait");
                }
            }
            Op::WaitStream { stream, on } => {
                self.streams[&stream].wait_stream(&self.streams[&on]).expect("a wait");
            }
            Op::SyncStream { stream } => self.streams[&stream].synchronize().expect("a synchronise"),
            Op::SyncEvent { event } => {
                if let Some(e) = self.events.get(&event) {
                    e.synchronize(core::time::Duration::from_secs(1)).expect("nothing is stuck");
                }
            }
            Op::SyncDevice => self.gpu.synchronize().expect("a synchronise"),
            Op::Query { event } => {
                if let Some(e) = self.events.get(&event) {
                    e.is_complete().expect("a query");
                }
            }
            Op::OpenStream { stream } => self.open(stream),
            Op::CloseStream { stream } => drop(self.streams.remove(&stream)),
            Op::Trim { stream } => {
                let which = stream.map_or(Trim::All, |s| Trim::Stream(&self.streams[&s]));
                self.gpu.trim(which).expect("a trim");
            }
            Op::SetLimit { bytes } => {
                self.gpu.set_limit(bytes.map_or(Limit::None, Limit::Bytes)).expect("a limit");
            }
            Op::Advance { stream, steps } => {
                for _ in 0..steps {
                    self.sim.advance(self.streams[&stream].native()).expect("a live stream");
                }
            }
            Op::Tick => self.sim.tick(),
        }
    }

    #[allow(unsafe_code, reason = "blocks are touched by their addresses, pinned ones too")]
    fn touch(&mut self, block: BlockNo, stream: StreamNo, access: Access, recorded: bool) {
        let (s, Some(b)) = (&self.streams[&stream], self.blocks.get_mut(&block)) else { return };
        let (addr, bytes) = b.place();
        if bytes == 0 {
            return;
        }
        if recorded {
            b.record_use(s);
        }
        let launch = match access {
            Access::Write => {
                self.words += 1;
                (b.word, b.known) = (0x1000_0000_0000 + self.words, bytes);
                Launch::write_pattern(addr, bytes, b.word)
            }
            Access::Read => Launch::check_pattern(addr, b.known, b.word),
        };
        // SAFETY: blocks are memory of the allocator's, into which nobody made a reference.
        unsafe { self.sim.launch_anywhere(s.native(), launch) }.expect("a launch");
    }

    #[allow(unsafe_code, reason = "the driver's copies work on raw memory")]
    fn copy(&mut self, to: BlockNo, from: BlockNo, bytes: u64, stream: StreamNo) {
        let s = &self.streams[&stream];
        let (Some(t), Some(f)) = (self.blocks.get(&to), self.blocks.get(&from)) else { return };
        t.record_use(s);
        f.record_use(s);
        let (dst, src) = (t.place().0, f.place().0);
        let pointer = |at: Addr| core::ptr::with_exposed_provenance_mut::<u8>(at.0 as usize);
        // SAFETY: the program is correct: both blocks are the copy's on this stream until it is complete.
        let done = unsafe {
            match (&t.memory, &f.memory) {
                (Memory::Device(_), Memory::Pinned(_)) => {
                    self.sim.copy_h2d(dst, pointer(src), bytes, s.native())
                }
                (Memory::Pinned(_), _) => self.sim.copy_d2h(pointer(dst), src, bytes, s.native()),
                _ => self.sim.copy_d2d(dst, src, bytes, s.native()),
            }
        };
        done.expect("a copy");
        let (word, known) = (f.word, f.known.min(bytes));
        let t = self.blocks.get_mut(&to).expect("seen above");
        (t.word, t.known) = (word, known);
    }
}
