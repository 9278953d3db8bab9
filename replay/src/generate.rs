//! Turns arbitrary choices into programs that make sense: what fuzzers and property tests feed on.
//!
//! The simple version would draw an operation and its operands, and throw the program away if it is wrong; almost all
//! would be. Instead each choice is six bytes that always mean something: the bytes pick among what is possible at
//! that point, and before a use on another stream the wait that makes it correct is put in. So removing a choice or
//! making its bytes smaller gives another correct program, which is what lets a failing case shrink.
//!
//! Correct here means, with a position for each operation on its stream:
//! * a use comes after its block's allocation, and after every earlier use of the block that it conflicts with;
//! * a use on another stream than the block's own is recorded;
//! * a free on a stream comes after every use.
//!
//! Order is known by clocks: for each stream and event, and for the host, how much of every stream lies before it. This
//! module keeps its own small ones. It knows neither the allocator's laws nor the oracle, which judge what it generates.

use millpond_trace::Program;
use millpond_trace::{Access, BlockNo, EventNo, Op, Step, StreamNo, ThreadNo};

/// One choice: the operation, three picks among what is live or open, a size, and a thread.
pub(super) type Choice = [u8; CHOICE_BYTES];
const CHOICE_BYTES: usize = 6;

/// Events in use: few, so that they are recorded again and again.
const EVENTS: u8 = 4;
/// Streams opened beyond the first ones: bounds the clocks.
const OPENED_MOST: usize = 16;

/// How much care is taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Manner {
    /// Every use is ordered and recorded.
    Correct,
    /// Some waits and some records are left out.
    Hostile,
}

/// A correct program out of any bytes: well-formed, uses ordered and recorded. For fuzzers; the same bytes always give the same
/// program, and a byte changed changes one operation and what depends on it.
pub fn from_fuzz(bytes: &[u8]) -> Program {
    from_bytes(bytes, Manner::Correct)
}

/// A well-formed program out of any bytes, in which some waits and records may be missing: for tests of judges.
pub fn from_fuzz_hostile(bytes: &[u8]) -> Program {
    from_bytes(bytes, Manner::Hostile)
}

fn from_bytes(bytes: &[u8], manner: Manner) -> Program {
    let (streams, rest) = bytes.split_first().map_or((1, bytes), |(b, rest)| (1 + u16::from(b % 4), rest));
    let choices = rest.chunks(CHOICE_BYTES).map(|c| core::array::from_fn(|k| c.get(k).copied().unwrap_or(0)));
    generate(streams, choices, manner)
}

/// The program of these choices over `streams` streams, one at least.
pub(super) fn generate(streams: u16, choices: impl IntoIterator<Item = Choice>, manner: Manner) -> Program {
    let mut generator = Generator::new(streams.max(1), manner);
    for choice in choices {
        generator.step(choice);
    }
    generator.program
}

/// A place: the stream by identity, and its position there.
type Place = (usize, u32);

/// How much of each stream, by identity, lies before something. Missing entries are 0.
#[derive(Clone, Default)]
struct Clock(Vec<u32>);

impl Clock {
    fn of(&self, stream: usize) -> u32 {
        self.0.get(stream).copied().unwrap_or(0)
    }
    fn raise(&mut self, stream: usize, to: u32) {
        if self.0.len() <= stream {
            self.0.resize(stream + 1, 0);
        }
        self.0[stream] = self.0[stream].max(to);
    }
    fn join(&mut self, other: &Clock) {
        for (stream, &to) in other.0.iter().enumerate() {
            self.raise(stream, to);
        }
    }
}

struct Life {
    block: BlockNo,
    bytes: u64,
    /// Identity of the stream whose pool owns it; `None` for pinned memory.
    home: Option<usize>,
    born: Option<Place>,
    written: Option<Place>,
    /// Reads since the last write.
    read: Vec<Place>,
}

struct Generator {
    program: Program,
    manner: Manner,
    thread: ThreadNo,
    /// Open streams by number, with identity.
    open: Vec<(StreamNo, usize)>,
    /// By identity: what lies before the stream's next operation. Its own entry is its position.
    clocks: Vec<Clock>,
    host: Clock,
    events: Vec<Clock>,
    alive: Vec<Life>,
    next_block: u32,
    opened: usize,
}

impl Generator {
    fn new(streams: u16, manner: Manner) -> Generator {
        Generator {
            program: Program::new("", streams),
            manner,
            thread: ThreadNo(0),
            open: (0..streams).map(|s| (StreamNo(s), usize::from(s))).collect(),
            clocks: vec![Clock::default(); usize::from(streams)],
            host: Clock::default(),
            events: vec![Clock::default(); usize::from(EVENTS)],
            alive: Vec::new(),
            next_block: 0,
            opened: 0,
        }
    }

    fn emit(&mut self, op: Op) {
        self.program.steps.push(Step { thread: self.thread, op });
    }

    /// An operation enters a stream: it comes after what the host knows, and takes the next position.
    fn tick(&mut self, stream: usize) -> Place {
        let host = self.host.clone();
        let clock = &mut self.clocks[stream];
        clock.join(&host);
        let position = clock.of(stream) + 1;
        clock.raise(stream, position);
        (stream, position)
    }

    fn step(&mut self, [verb, a, b, c, size, thread]: Choice) {
        self.thread = ThreadNo(if thread < 192 { 0 } else { 1 + u16::from(thread % 3) });
        let (stream, id) = self.open[usize::from(a) % self.open.len()];
        let (other, other_id) = self.open[usize::from(b) % self.open.len()];
        let number = EventNo(u16::from(b % EVENTS));
        let event = usize::from(number.0);
        let block = if self.alive.is_empty() { None } else { Some(usize::from(b) % self.alive.len()) };
        // The weights are the widths: small numbers are the simplest operations, since choices shrink towards zero.
        match (verb, block) {
            (0..4, _) => self.emit(Op::Tick),
            (4..60, _) | (60..180, None) => self.alloc(stream, id, c, size),
            (60..120, Some(block)) => {
                let access = if c % 2 == 0 { Access::Write } else { Access::Read };
                self.touch(block, stream, id, access, c);
            }
            (120..164, Some(block)) => {
                let life = self.alive.remove(block);
                self.emit(Op::Free { block: life.block });
            }
            (164..170, Some(block)) => self.free_on(block, stream, id, c),
            (170..173, Some(block)) => {
                if self.alive[block].home.is_some() {
                    let life = self.alive.remove(block);
                    self.emit(Op::FreeUnknown { block: life.block });
                }
            }
            (173..177, Some(block)) => {
                let life = &self.alive[block];
                self.emit(Op::RecordUse { block: life.block, stream });
            }
            (177..180, Some(_)) | (180..190, _) => {
                self.copy(usize::from(b), usize::from(size), stream, id, c);
            }
            (190..200, _) => self.record(number, stream, id),
            (200..212, _) => self.wait(stream, id, number),
            (212..220, _) => self.wait_stream(stream, id, other, other_id),
            (220..224, _) => {
                let known = self.clocks[id].clone();
                self.host.join(&known);
                self.emit(Op::SyncStream { stream });
            }
            (224..227, _) => {
                let known = self.events[event].clone();
                self.host.join(&known);
                self.emit(Op::SyncEvent { event: number });
            }
            (227..229, _) => self.sync_device(),
            (229..234, _) => self.emit(Op::Query { event: number }),
            (234..237, _) => self.open_stream(),
            (237..240, _) => {
                if self.open.len() > 1 {
                    self.open.retain(|(s, _)| *s != stream);
                    self.emit(Op::CloseStream { stream });
                }
            }
            (240..244, _) => self.emit(Op::Trim { stream: if b % 2 == 0 { None } else { Some(stream) } }),
            (244..246, _) => {
                self.emit(Op::SetLimit {
                    bytes: if b % 2 == 0 { None } else { Some(u64::from(size) << 18) },
                });
            }
            (246..251, _) => self.emit(Op::Advance { stream, steps: 1 + u32::from(size % 8) }),
            (251.., _) => {
                let block = self.name_block();
                let bytes = bytes_of(size);
                self.emit(Op::AllocPinned { block, bytes });
                self.alive.push(Life {
                    block,
                    bytes,
                    home: None,
                    born: None,
                    written: None,
                    read: Vec::new(),
                });
            }
        }
    }

    fn name_block(&mut self) -> BlockNo {
        self.next_block += 1;
        BlockNo(self.next_block - 1)
    }

    fn alloc(&mut self, stream: StreamNo, id: usize, c: u8, size: u8) {
        let block = self.name_block();
        let bytes = bytes_of(size);
        // One in thirty has an alignment: 1 KiB to 128 KiB.
        let align = (c >= 248).then(|| 1024 << (c - 248));
        self.emit(Op::Alloc { block, bytes, align, stream });
        let born = Some(self.tick(id));
        self.alive.push(Life { block, bytes, home: Some(id), born, written: None, read: Vec::new() });
    }

    /// A use, after everything it must come after. The first use of a block writes it: nothing reads bytes that were never written.
    fn touch(&mut self, block: usize, stream: StreamNo, id: usize, access: Access, c: u8) {
        let access = if self.alive[block].written.is_none() { Access::Write } else { access };
        self.order(block, stream, id, access, c);
        let life = &self.alive[block];
        let cross_stream = life.home != Some(id);
        let forgotten = self.manner == Manner::Hostile && c & 0x60 == 0x20;
        let recorded = if cross_stream { !forgotten } else { c & 0x80 != 0 };
        self.emit(Op::Use { block: life.block, stream, access, recorded });
        self.mark(block, id, access);
    }

    /// Notes that an operation just emitted on a stream used a block.
    fn mark(&mut self, block: usize, id: usize, access: Access) {
        let place = self.tick(id);
        self.mark_at(block, place, access);
    }

    fn mark_at(&mut self, block: usize, place: Place, access: Access) {
        let life = &mut self.alive[block];
        match access {
            Access::Read => life.read.push(place),
            Access::Write => {
                life.written = Some(place);
                life.read.clear();
            }
        }
    }

    fn copy(&mut self, to: usize, from: usize, stream: StreamNo, id: usize, c: u8) {
        let n = self.alive.len();
        if n < 2 {
            return;
        }
        let to = to % n;
        let from = (to + 1 + from % (n - 1)) % n;
        if self.alive[to].home.is_none() && self.alive[from].home.is_none() {
            return;
        }
        let bytes = self.alive[to].bytes.min(self.alive[from].bytes);
        for (block, part) in [(from, 0), (to, bytes)] {
            if self.alive[block].written.is_none() && self.alive[block].bytes > part {
                self.touch(block, stream, id, Access::Write, c);
            }
        }
        self.order(from, stream, id, Access::Read, c);
        self.order(to, stream, id, Access::Write, c);
        self.emit(Op::Copy { to: self.alive[to].block, from: self.alive[from].block, bytes, stream });
        let place = self.tick(id);
        self.mark_at(from, place, Access::Read);
        self.mark_at(to, place, Access::Write);
    }

    fn free_on(&mut self, block: usize, stream: StreamNo, id: usize, c: u8) {
        if self.alive[block].home.is_none() {
            return;
        }
        self.order(block, stream, id, Access::Write, c);
        let life = self.alive.remove(block);
        self.emit(Op::FreeOn { block: life.block, stream });
        self.tick(id);
    }

    /// Puts in the waits that a use of a block on a stream needs. A hostile program leaves them out one time in four.
    fn order(&mut self, block: usize, stream: StreamNo, id: usize, access: Access, c: u8) {
        if self.manner == Manner::Hostile && c & 0x18 == 0x18 {
            return;
        }
        let life = &self.alive[block];
        let mut before: Vec<Place> = life.born.into_iter().chain(life.written).collect();
        if access == Access::Write {
            before.extend(&life.read);
        }
        for (on_id, position) in before {
            if self.clocks[id].of(on_id).max(self.host.of(on_id)) >= position {
                continue;
            }
            match self.open.iter().find(|(_, i)| *i == on_id) {
                Some(&(on, _)) if c & 4 == 0 => self.wait_stream(stream, id, on, on_id),
                Some(&(on, _)) => {
                    let event = EventNo(u16::from(c) % u16::from(EVENTS));
                    self.record(event, on, on_id);
                    self.wait(stream, id, event);
                }
                // The stream is closed: only the device as a whole can still be waited for.
                None => self.sync_device(),
            }
        }
    }

    fn record(&mut self, event: EventNo, stream: StreamNo, id: usize) {
        self.tick(id);
        self.events[usize::from(event.0)] = self.clocks[id].clone();
        self.emit(Op::Record { event, stream });
    }

    fn wait(&mut self, stream: StreamNo, id: usize, event: EventNo) {
        let known = self.events[usize::from(event.0)].clone();
        self.clocks[id].join(&known);
        self.tick(id);
        self.emit(Op::Wait { stream, event });
    }

    fn wait_stream(&mut self, stream: StreamNo, id: usize, on: StreamNo, on_id: usize) {
        self.tick(on_id);
        let known = self.clocks[on_id].clone();
        self.clocks[id].join(&known);
        self.tick(id);
        self.emit(Op::WaitStream { stream, on });
    }

    fn sync_device(&mut self) {
        for clock in &self.clocks {
            self.host.join(clock);
        }
        self.emit(Op::SyncDevice);
    }

    fn open_stream(&mut self) {
        let free = (0..u16::MAX).map(StreamNo).find(|s| self.open.iter().all(|(o, _)| o != s));
        if let Some(stream) = free.filter(|_| self.opened < OPENED_MOST) {
            self.opened += 1;
            self.open.push((stream, self.clocks.len()));
            self.clocks.push(Clock::default());
            self.emit(Op::OpenStream { stream });
        }
    }
}

/// Sizes by octave, 512 B to 4 MiB, with odd ones between and now and then nothing at all.
fn bytes_of(size: u8) -> u64 {
    match size {
        255 => 0,
        250..255 => u64::from(size - 249) * 7,
        _ => {
            let octave = 512u64 << (size / 16).min(12);
            let part = u64::from(size % 16);
            octave + octave * part / 16 + part % 3
        }
    }
}
