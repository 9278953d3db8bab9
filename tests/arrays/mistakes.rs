//! Random programs that make mistakes of their own: whatever the oracle finds in them is the program's, never the library's. That planted
//! bugs of the library are never the program's, tests/mutants.rs asks.

#![allow(clippy::many_single_char_names, reason = "s and t are streams; x and y are arrays")]

use millpond::array::ExternalMemory;
use millpond::driver::random::SplitMix64;
use millpond::units::{DeviceId, GIB};
use millpond::{Allocator, Config, DeviceArray, Growth, Limit, Stream, kernel};
use millpond_sim::oracle::{Blame, Violation};
use millpond_sim::{Launch, Schedule, Sim};

const LEN: usize = 512;
const STREAMS: usize = 3;

/// What a program forgets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mistake {
    Nothing,
    /// Its own kernels are not ordered after the library's operations on the same array, or not before.
    Before,
    Behind,
    /// Memory is brought in on a stream that does not come after what was done with it.
    BroughtIn,
    /// An array is dropped while a kernel that was not declared uses it.
    Unrecorded,
}

/// Choices from a seed.
struct Dice(SplitMix64);

impl Dice {
    fn below(&mut self, n: usize) -> usize {
        self.0.below(n as u64) as usize
    }
}

struct Program {
    sim: Sim,
    gpu: Allocator<Sim>,
    streams: Vec<Stream<Sim>>,
    /// The program's own: the library is given no operation for it.
    side: Stream<Sim>,
    arrays: Vec<DeviceArray<u8, Sim>>,
    brought_in: usize,
    mistake: Mistake,
    dice: Dice,
}

impl Program {
    fn new(seed: u64, mistake: Mistake) -> Program {
        let sim = Sim::new(GIB).schedule(Schedule::Random(seed));
        // Room for few arrays, so that bytes are used again soon.
        let config = Config::default().growth(Growth::Exact).limit(Limit::Bytes(24 * LEN as u64));
        let gpu = Allocator::new(sim.clone(), config).unwrap();
        let streams = (0..STREAMS).map(|_| gpu.stream().unwrap()).collect();
        let side = gpu.stream().unwrap();
        Program {
            sim,
            gpu,
            streams,
            side,
            arrays: Vec::new(),
            brought_in: 0,
            mistake,
            dice: Dice(SplitMix64::new(seed)),
        }
    }

    fn step(&mut self) {
        let n = self.arrays.len();
        let on = self.dice.below(STREAMS);
        if n < 3 {
            let mut x = self.gpu.uninit(LEN, &self.streams[on]).unwrap();
            kernel::fill(&mut x, 0, &self.streams[on]).unwrap();
            return self.arrays.push(x);
        }
        let what = self.dice.below(n);
        let s = &self.streams[on];
        match self.dice.below(9) {
            0 | 1 => kernel::fill(&mut self.arrays[what], 1, s).unwrap(),
            2 => self.arrays[what].slice_mut(0..LEN / 2).fill_bytes(2, s).unwrap(),
            3 | 4 => {
                if let Ok([x, y]) = self.arrays.get_disjoint_mut([what, (what + 1) % n]) {
                    x.copy_from_device(&*y, s).unwrap();
                }
            }
            5 => drop(self.arrays.swap_remove(what)),
            6 => self.bring_in(what, on),
            _ => self.own_kernel(what),
        }
    }

    /// A kernel of the program's own, on its own stream; all that it knows of it are its waits.
    fn own_kernel(&mut self, what: usize) {
        let (writes, recorded) = (self.dice.below(2) == 0, self.dice.below(2) == 0);
        let x = &self.arrays[what];
        let forgets = |mistake| self.mistake == mistake;
        if forgets(Mistake::Unrecorded) && x.id().is_some() {
            x.wait_on(&self.side).unwrap();
            self.launch(what, writes);
            return drop(self.arrays.swap_remove(what));
        }
        // If it is declared, the library orders what comes later; otherwise the program does.
        if recorded && !forgets(Mistake::Behind) {
            x.record_use(&self.side).unwrap();
        }
        if forgets(Mistake::Behind) {
            // By `wait_on`, or by itself: the library knows the kernel in neither case.
            if recorded {
                x.wait_on(&self.side).unwrap();
            }
            self.streams.iter().for_each(|s| self.side.wait_stream(s).unwrap());
        } else if !forgets(Mistake::Before) {
            x.wait_on(&self.side).unwrap();
        }
        self.launch(what, writes);
        if !forgets(Mistake::Behind) {
            self.streams.iter().for_each(|s| s.wait_stream(&self.side).unwrap());
        }
    }

    fn launch(&self, what: usize, writes: bool) {
        let (at, bytes) = (self.arrays[what].address(), LEN as u64);
        let own = Launch::new("own");
        let own = if writes { own.writes(at, bytes) } else { own.reads(at, bytes) };
        self.sim.launch(self.side.native(), own).unwrap();
    }

    #[allow(unsafe_code, reason = "the range lives as long as the allocation, which owns it")]
    fn bring_in(&mut self, what: usize, on: usize) {
        if self.brought_in == 8 || self.arrays[what].id().is_none() {
            return;
        }
        self.brought_in += 1;
        let s = &self.streams[on];
        let x = self.arrays.swap_remove(what);
        if self.mistake != Mistake::BroughtIn {
            self.streams.iter().for_each(|other| s.wait_stream(other).unwrap());
            s.wait_stream(&self.side).unwrap();
        }
        let block = x.into_allocation().expect("ours");
        let memory = ExternalMemory { address: block.address(), bytes: LEN as u64, device: DeviceId(0) };
        // SAFETY: the range is the block's, which owns it; what is queued in no order is judged, and touches no memory of the process.
        let made = unsafe { DeviceArray::from_external(memory, LEN, block, s) };
        self.arrays.push(made.map_err(|(_, e)| e).unwrap());
    }
}

/// What the oracle finds in a program with a mistake.
fn found(seed: u64, mistake: Mistake) -> Vec<Violation> {
    let mut program = Program::new(seed, mistake);
    for _ in 0..80 {
        program.step();
    }
    match program.sim.verdict() {
        Ok(_) => Vec::new(),
        Err(verdict) => {
            assert_eq!(verdict.mismatches_total, 0, "the kernels look at no bytes: {verdict}");
            verdict.oracle.expect("it found something").violations
        }
    }
}

#[test]
fn a_programs_own_mistakes_are_laid_to_its_own_charge() {
    for mistake in [Mistake::Before, Mistake::Behind, Mistake::BroughtIn, Mistake::Unrecorded] {
        let mut convicted = 0;
        for seed in 0..100 {
            let found = found(seed, mistake);
            let wrong = found.iter().find(|v| v.blame == Blame::Allocator);
            assert!(wrong.is_none(), "{mistake:?}, seed {seed}: {}", wrong.expect("one"));
            convicted += usize::from(!found.is_empty());
        }
        assert!(convicted >= 50, "{mistake:?}: the oracle finds it in {convicted} of 100 programs");
    }
}

#[test]
fn the_same_programs_without_a_mistake_pass() {
    for seed in 0..100 {
        let found = found(seed, Mistake::Nothing);
        assert!(found.is_empty(), "seed {seed}: {}", found[0]);
    }
}
