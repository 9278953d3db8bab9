//! A safe call of the simulated device never writes memory that Rust may be looking at.
//!
//! Random programs of its safe calls, at random addresses, while references lead to pinned arrays (`&[u8]`, `&str`) and to
//! other memory of the process: each call that names bytes of a pinned range that a reference leads to is refused with a typed error, and
//! whatever is refused or not, the bytes behind every reference stay what they are. Memory is pinned, unpinned and pinned again
//! at the same addresses while calls that name them are queued. All of it is safe code.

#![forbid(unsafe_code)]

use millpond::driver::{DriverResult, Host, HostKind, Memory, OwnedRange};
use millpond::units::{Addr, KIB, MIB};
use millpond::{Allocator, Config, DeviceArray, DriverErrorKind, Stream, Trim};
use millpond_sim::{HostFunction, KernelMemory, Launch, Schedule, Sim};
use millpond_testkit::dice::Dice;
use std::hint::black_box;
use std::sync::Arc;

/// How deep references nest: each level adds one, and takes it away when those inside are gone.
const LEVELS: usize = 8;
/// Calls at each level, before the next one and behind it.
const CALLS: usize = 6;
/// Of an array: two lengths, so that addresses come back.
const LENGTHS: [usize; 2] = [512, 1536];
/// Little enough that each array is a range of its own, since no larger segment fits.
const PINNED: u64 = 16 * KIB;

/// What a reference leads to, and the one letter that all of it is.
#[derive(Clone, Copy)]
struct Held<'a> {
    bytes: &'a [u8],
    text: Option<&'a str>,
    letter: u8,
    pinned: bool,
}

impl<'a> Held<'a> {
    fn new(bytes: &'a [u8], letter: u8, pinned: bool) -> Held<'a> {
        let text = letter.is_ascii_uppercase().then(|| std::str::from_utf8(bytes).expect("letters"));
        Held { bytes, text, letter, pinned }
    }
    fn start(&self) -> u64 {
        self.bytes.as_ptr().addr() as u64
    }
    fn is_touched(&self, addr: u64, bytes: u64) -> bool {
        addr < self.start() + self.bytes.len() as u64 && self.start() < addr.saturating_add(bytes)
    }
    /// Looked at anew, through the reference that there was all the time.
    fn is_changed(&self) -> bool {
        let text = self.text.is_some_and(|text| black_box(text).bytes().any(|b| b != self.letter));
        text || black_box(self.bytes).iter().any(|&b| b != self.letter)
    }
}

struct World {
    sim: Sim,
    gpu: Allocator<Sim>,
    streams: Vec<Stream<Sim>>,
    device: OwnedRange<Sim>,
    array: DeviceArray<u8, Sim>,
    /// Where pinned memory was at some time.
    seen: Vec<u64>,
    made: usize,
    /// Calls that were refused because a reference leads there.
    refused: usize,
    /// Calls that were queued and name memory of the process.
    queued: usize,
}

const DEVICE: u64 = 4 * KIB;

impl World {
    fn new(dice: &mut Dice) -> World {
        let schedule = match dice.below(4) {
            0 => Schedule::Earliest,
            1 => Schedule::Random(dice.below(1 << 20) as u64),
            _ => Schedule::Latest,
        };
        let sim = Sim::new(64 * MIB).schedule(schedule);
        let gpu = Allocator::new(sim.clone(), Config::default().pinned_limit(PINNED)).expect("an allocator");
        let streams: Vec<_> = (0..2).map(|_| gpu.stream().expect("a stream")).collect();
        let device = sim.allocate(DEVICE).expect("memory");
        let array = gpu.uninit(LENGTHS[1], &streams[0]).expect("memory");
        World { sim, gpu, streams, device, array, seen: Vec::new(), made: 0, refused: 0, queued: 0 }
    }

    /// An address and a length: mostly at the border or in the middle of something.
    fn range(&self, dice: &mut Dice, held: &[Held<'_>]) -> (u64, u64) {
        let near = |dice: &mut Dice, start: u64, bytes: u64| {
            let at = start + dice.below(bytes as usize) as u64;
            (at.saturating_sub(dice.below(24) as u64), 1 + dice.below(64) as u64)
        };
        match dice.below(8) {
            0..=3 if !held.is_empty() => {
                let held = held[dice.below(held.len())];
                near(dice, held.start(), held.bytes.len() as u64)
            }
            0..=5 if !self.seen.is_empty() => {
                let start = self.seen[dice.below(self.seen.len())];
                near(dice, start, LENGTHS[0] as u64)
            }
            6 => ([0, 8, u64::MAX - 16][dice.below(3)], 1 + dice.below(64) as u64),
            _ => near(dice, self.device.addr().0, DEVICE - 64),
        }
    }

    /// One safe call that names addresses, or something that makes the device go on.
    fn call(&mut self, dice: &mut Dice, held: &[Held<'_>]) -> Result<(), String> {
        self.made += 1;
        let (at, bytes) = self.range(dice, held);
        let (addr, word) = (Addr(at), 0x5A5A_5A5A_5A5A_5A5A);
        let (other, _) = self.range(dice, held);
        let (other, inside) = (Addr(other), Addr(self.device.addr().0 + DEVICE - 64));
        let stream = &self.streams[dice.below(self.streams.len())];
        let on = stream.native();
        let write = move |memory: &mut KernelMemory<'_>| memory.write(addr, &vec![0x5A; bytes as usize]);
        let fill = move |memory: &mut KernelMemory<'_>| memory.fill(addr, bytes, word);
        let read = move |memory: &mut KernelMemory<'_>| memory.read(addr, &mut vec![0; bytes as usize]);
        // Whether the call would touch what it names; a host function's code is safe Rust, and one that only declares does nothing.
        let (what, does, result): (_, _, DriverResult<()>) = match dice.below(13) {
            0 => ("write", true, self.sim.launch(on, Launch::write_pattern(addr, bytes, word))),
            1 => ("check", true, self.sim.launch(on, Launch::check_pattern(addr, bytes, word))),
            2 => ("body", true, self.sim.launch(on, Launch::new("w").writes(addr, bytes).body(write))),
            3 => ("fill", true, self.sim.launch(on, Launch::new("f").writes(addr, bytes).body(fill))),
            4 => ("read", true, self.sim.launch(on, Launch::new("r").reads(addr, bytes).body(read))),
            5 => {
                let launch = Launch::new("undeclared").writes(inside, 8).body(write);
                ("undeclared", false, self.sim.launch(on, launch))
            }
            6 => ("copy to", true, self.sim.copy_between(on, addr, inside, bytes.min(64))),
            7 => ("copy from", true, self.sim.copy_between(on, inside, addr, bytes.min(64))),
            8 => ("copy", true, self.sim.copy_between(on, addr, other, bytes)),
            9 => ("declared", false, self.sim.launch(on, Launch::new("d").writes(addr, bytes))),
            10 => {
                let function = HostFunction::new("host function", || ()).writes(addr, bytes);
                ("host function", false, self.sim.host_function(on, function))
            }
            11 => ("step", false, self.sim.advance(on).map(drop)),
            _ => {
                self.sim.run_until_idle();
                ("run", false, Ok(()))
            }
        };
        let named = held.iter().any(|h| h.pinned && h.is_touched(at, bytes));
        match result {
            Err(e) if e.kind != DriverErrorKind::InvalidValue => return Err(format!("{what}: {e}")),
            Err(_) => self.refused += usize::from(named && does),
            Ok(()) if named && does => {
                return Err(format!(
                    "{what} of {bytes} bytes at {addr}, where a reference leads, is not refused"
                ));
            }
            Ok(()) => self.queued += usize::from(does && at < 1 << 48),
        }
        unchanged(held, what)
    }

    /// Calls, one more reference, calls under that, and all again inside it.
    fn level(&mut self, dice: &mut Dice, held: &[Held<'_>], left: usize) -> Result<(), String> {
        for _ in 0..CALLS {
            self.call(dice, held)?;
        }
        if left == 0 {
            self.sim.run_until_idle();
            return unchanged(held, "the end");
        }
        let letter = [b'a', b'A'][dice.below(2)] + dice.below(26) as u8;
        let len = LENGTHS[dice.below(LENGTHS.len())];
        let with = |new: Held<'_>, then: &mut dyn FnMut(&[Held<'_>]) -> Result<(), String>| {
            let mut all: Vec<Held<'_>> = held.to_vec();
            all.push(new);
            then(&all)
        };
        match dice.below(5) {
            0 => {
                let owned = vec![letter; len];
                with(Held::new(&owned, letter, false), &mut |all| self.level(dice, all, left - 1))?;
            }
            1 => {
                // Comes and goes: its addresses stay known.
                let range = self.sim.pin(len as u64, HostKind::Cached).map_err(|e| e.to_string())?;
                self.seen.push(range.addr().0);
                drop(range);
                self.level(dice, held, left - 1)?;
            }
            2 => {
                // The device may read it meanwhile, and the library says so.
                let array = Arc::new(self.gpu.pinned_from_fn(len, |_| letter).map_err(|e| e.to_string())?);
                let mut part = self.array.slice_mut(..len);
                drop(part.copy_from(Arc::clone(&array), &self.streams[0]).map_err(|e| e.to_string())?);
                with(Held::new(&array, letter, true), &mut |all| self.level(dice, all, left - 1))?;
                self.seen.push(array.as_ptr().addr() as u64);
            }
            _ => {
                let array = self.gpu.pinned_from_fn(len, |_| letter).map_err(|e| e.to_string())?;
                with(Held::new(&array, letter, true), &mut |all| self.level(dice, all, left - 1))?;
                self.seen.push(array.as_ptr().addr() as u64);
            }
        }
        // What is gone is unpinned, once in a while, so that its addresses are free.
        if dice.below(2) == 0 {
            self.gpu.trim(Trim::All).map_err(|e| e.to_string())?;
        }
        for _ in 0..CALLS {
            self.call(dice, held)?;
        }
        self.sim.run_until_idle();
        unchanged(held, "what was queued")
    }
}

/// Whether every reference leads to what it led to when it was made.
fn unchanged(held: &[Held<'_>], what: &str) -> Result<(), String> {
    match held.iter().find(|h| h.is_changed()) {
        None => Ok(()),
        Some(h) => {
            let of = if h.pinned { "pinned memory" } else { "the process" };
            Err(format!("{what}: {} bytes of {of} changed under a reference", h.bytes.len()))
        }
    }
}

fn played(seed: u64) -> (World, Result<(), String>) {
    let mut dice = Dice::new(seed);
    let mut world = World::new(&mut dice);
    let outcome = world.level(&mut dice, &[], LEVELS);
    (world, outcome)
}

/// The program of a seed: how many calls it made, and what went wrong.
#[allow(dead_code, reason = "for `tests/mutants.rs`")]
pub(crate) fn program(seed: u64) -> (usize, Result<(), String>) {
    let (world, outcome) = played(seed);
    (world.made, outcome.map_err(|e| format!("safe calls, seed {seed}: {e}")))
}

fn search(seeds: u64) {
    let (mut refused, mut queued, mut holes) = (0, 0, 0);
    for seed in 0..seeds {
        let (world, outcome) = played(seed);
        outcome.unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        (refused, queued) = (refused + world.refused, queued + world.queued);
        holes += world.sim.mismatches().1;
    }
    println!(
        "{seeds} programs: {refused} calls refused under a reference, {queued} queued, {holes} met nothing"
    );
    let least = seeds as usize;
    assert!(refused >= least && queued >= least && holes >= seeds, "what was tried proves nothing");
}

#[test]
fn no_safe_call_writes_under_a_reference() {
    search(200);
}
