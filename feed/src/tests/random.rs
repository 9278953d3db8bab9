//! Random programs of feeders, drains and allocations: kernels of other code read every batch and every block and must find what was put there,
//! results must be what was pushed, the oracle must find nothing, and nothing may be left.

use crate::planted::{Bug, planting};
use crate::{Drain, Drained, FedBatch, FeedError, Feeder, Filled};
use millpond::units::GIB;
use millpond::{Allocation, Allocator, Config, Stream, Trim, kernel};
use millpond_sim::{Launch, Schedule, Sim};
use proptest::bool::ANY;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};

type Words = Filled<(u64,)>;

/// One step of a program. Numbers are taken modulo what there is.
#[derive(Clone, Debug)]
enum Step {
    /// A batch of a feeder, for a stream.
    Next(usize, usize),
    /// A batch that is held is read by other code on another stream, too.
    Use(usize, usize),
    /// It is written in place, on its stream, by the library or by other code.
    Write(usize, bool),
    /// It is pushed into the drain.
    Push(usize),
    Drop(usize),
    /// A feeder begins anew.
    Restart(usize),
    /// A feeder ends, and another takes its place, with this depth, budget and number of threads.
    Replace(usize, usize, u64, usize),
    /// A block of other code's, and the end of one.
    Alloc(usize, u64),
    Free(usize),
    /// The program orders two streams.
    Wait(usize, usize),
    Synchronize(usize),
    Trim,
    Flush,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let any = 0..8_usize;
    let step = prop_oneof![
        8 => (0..2_usize, any.clone()).prop_map(|(f, s)| Step::Next(f, s)),
        3 => (any.clone(), any.clone()).prop_map(|(b, s)| Step::Use(b, s)),
        2 => (any.clone(), ANY).prop_map(|(b, other)| Step::Write(b, other)),
        3 => any.clone().prop_map(Step::Push),
        6 => any.clone().prop_map(Step::Drop),
        1 => (0..2_usize).prop_map(Step::Restart),
        1 => (0..2_usize, 1..5_usize, 2..20_u64, prop_oneof![3 => Just(0_usize), 1 => Just(2)])
            .prop_map(|(f, depth, kib, threads)| Step::Replace(f, depth, kib * 1024, threads)),
        3 => (any.clone(), 1..5000_u64).prop_map(|(s, n)| Step::Alloc(s, n)),
        3 => any.clone().prop_map(Step::Free),
        1 => (any.clone(), any.clone()).prop_map(|(a, b)| Step::Wait(a, b)),
        1 => any.clone().prop_map(Step::Synchronize),
        1 => Just(Step::Trim),
        1 => Just(Step::Flush),
    ];
    prop::collection::vec(step, 1..120)
}

struct World {
    sim: Sim,
    gpu: Allocator<Sim>,
    streams: Vec<Stream<Sim>>,
    feeders: Vec<Feeder<Words, std::convert::Infallible, Sim>>,
    budgets: Vec<u64>,
    threads: Vec<usize>,
    /// Batches that are held, with what they hold.
    held: Vec<(FedBatch<Words, Sim>, u64)>,
    /// The words that other code wrote into batches.
    written: BTreeSet<u64>,
    blocks: Vec<(Allocation<Sim>, u64, usize)>,
    drain: Drain<u64, String, Sim>,
    /// What was pushed, in order.
    pushed: Arc<Mutex<Vec<(usize, u64)>>>,
    next_word: u64,
    /// What the words of each feeder's epoch begin with.
    firsts: Vec<u64>,
}

/// Batches of sizes that vary, each of one word that no other has.
fn source(first: u64) -> impl Iterator<Item = Words> + Send {
    (0..60_u64).map(move |i| {
        let (n, word) = (1 + (i * 37 + first) % 97, (first << 16) + i);
        Words::new(((n as usize).into(),), move |(words,)| {
            words.fill(word);
            Ok(())
        })
    })
}

impl World {
    fn new(schedule: Schedule) -> World {
        let sim = Sim::new(GIB).schedule(schedule);
        let gpu = Allocator::new(sim.clone(), Config::default()).unwrap();
        let streams = (0..3).map(|_| gpu.stream().unwrap()).collect();
        let pushed = Arc::new(Mutex::new(Vec::new()));
        let expected = Arc::clone(&pushed);
        let sink = move |r: Drained<'_, u64>| {
            let (n, word) = expected.lock().unwrap()[r.number() as usize];
            if r.len() == n && r.iter().all(|&w| w == word) {
                return Ok(());
            }
            Err(format!("result {}: {:?} and not {n} of {word}", r.number(), &r[..]))
        };
        let drain = Drain::builder(&gpu).thread(false).depth(2).start(sink).unwrap();
        let mut world = World {
            sim,
            gpu,
            streams,
            feeders: Vec::new(),
            budgets: vec![u64::MAX; 2],
            threads: vec![0; 2],
            held: Vec::new(),
            written: BTreeSet::new(),
            blocks: Vec::new(),
            drain,
            pushed,
            next_word: 1,
            firsts: Vec::new(),
        };
        for _ in 0..2 {
            let feeder = world.feeder(2, u64::MAX, 0);
            world.feeders.push(feeder);
            world.firsts.push(world.next_word);
        }
        world
    }
    fn feeder(
        &mut self,
        depth: usize,
        budget: u64,
        threads: usize,
    ) -> Feeder<Words, std::convert::Infallible, Sim> {
        self.next_word += 1;
        let builder = Feeder::builder(&self.gpu).depth(depth).budget(budget).fillers(threads);
        builder.start(source(self.next_word)).unwrap()
    }
    fn read(&self, batch: usize, stream: usize) {
        let (batch, word) = &self.held[batch];
        let view = batch.views().0;
        let read = Launch::check_pattern(view.address(), view.size_bytes(), *word);
        self.sim.launch(self.streams[stream].native(), read).unwrap();
    }
    fn stream_of(&self, batch: usize) -> usize {
        let id = self.held[batch].0.stream().id();
        self.streams.iter().position(|s| s.id() == id).unwrap()
    }

    fn step(&mut self, step: &Step) {
        let streams = self.streams.len();
        let pick = |i: usize, of: usize| (of > 0).then(|| i % of);
        match *step {
            Step::Next(feeder, stream) => {
                // A feeder with threads waits for batches that this program holds: at a budget it may hold none.
                if self.threads[feeder] > 0 && self.budgets[feeder] < u64::MAX {
                    self.held.clear();
                }
                let stream = stream % streams;
                match self.feeders[feeder].next(&self.streams[stream]) {
                    None | Some(Err(FeedError::Held { .. } | FeedError::TooLarge { .. })) => {}
                    Some(Err(e)) => panic!("{e}"),
                    Some(Ok(batch)) => {
                        let word = (self.firsts[feeder] << 16) + batch.number();
                        self.held.push((batch, word));
                        self.read(self.held.len() - 1, stream);
                    }
                }
                let (now, peak) = self.feeders[feeder].slot_bytes();
                assert!(now.max(peak) <= self.budgets[feeder]);
            }
            Step::Use(batch, stream) => {
                let Some(batch) = pick(batch, self.held.len()) else { return };
                let stream = stream % streams;
                let to = self.streams[stream].clone();
                if self.written.contains(&self.held[batch].1) {
                    // The batch does not know of that write.
                    to.wait_stream(&self.streams[self.stream_of(batch)]).unwrap();
                }
                self.held[batch].0.record_use(&to).unwrap();
                self.read(batch, stream);
            }
            Step::Write(batch, other) => {
                let Some(batch) = pick(batch, self.held.len()) else { return };
                let stream = self.stream_of(batch);
                // Other code's readers on other streams are not known to the batch before its drop: the program orders them.
                for reader in (0..streams).filter(|&s| s != stream) {
                    self.streams[stream].wait_stream(&self.streams[reader]).unwrap();
                }
                self.next_word += 1;
                let word = self.next_word << 32;
                let (held, expected) = &mut self.held[batch];
                // A drain's copy may read it still.
                held.record_use(&self.streams[stream]).unwrap();
                let mut view = held.field_mut::<u64>(0);
                if other {
                    let write = Launch::write_pattern(view.address(), view.size_bytes(), word);
                    self.sim.launch(self.streams[stream].native(), write).unwrap();
                    self.written.insert(word);
                } else {
                    kernel::fill(&mut view, word, &self.streams[stream]).unwrap();
                }
                *expected = word;
                self.read(batch, stream);
            }
            Step::Push(batch) => {
                let Some(batch) = pick(batch, self.held.len()) else { return };
                let stream = self.stream_of(batch);
                let (held, word) = &self.held[batch];
                let view = held.views().0;
                self.pushed.lock().unwrap().push((view.len(), *word));
                self.drain.push(view, &self.streams[stream]).unwrap();
            }
            Step::Drop(batch) => {
                let Some(batch) = pick(batch, self.held.len()) else { return };
                drop(self.held.swap_remove(batch));
            }
            Step::Restart(feeder) => {
                self.next_word += 1;
                self.firsts[feeder] = self.next_word;
                self.feeders[feeder].restart(source(self.next_word)).unwrap();
            }
            Step::Replace(feeder, depth, budget, threads) => {
                let new = self.feeder(depth, budget, threads);
                (self.budgets[feeder], self.threads[feeder]) = (budget, threads);
                self.firsts[feeder] = self.next_word;
                self.feeders[feeder] = new;
            }
            Step::Alloc(stream, bytes) => {
                let stream = stream % streams;
                let block = self.gpu.alloc(bytes * 8, &self.streams[stream]).unwrap();
                self.next_word += 1;
                let write = Launch::write_pattern(block.address(), block.len(), self.next_word);
                self.sim.launch(self.streams[stream].native(), write).unwrap();
                self.blocks.push((block, self.next_word, stream));
            }
            Step::Free(block) => {
                let Some(block) = pick(block, self.blocks.len()) else { return };
                let (block, word, stream) = self.blocks.swap_remove(block);
                let read = Launch::check_pattern(block.address(), block.len(), word);
                self.sim.launch(self.streams[stream].native(), read).unwrap();
            }
            Step::Wait(a, b) => {
                let (a, b) = (a % streams, b % streams);
                if a != b {
                    self.streams[a].wait_stream(&self.streams[b]).unwrap();
                }
            }
            Step::Synchronize(stream) => self.streams[stream % streams].synchronize().unwrap(),
            Step::Trim => drop(self.gpu.trim(Trim::All).unwrap()),
            Step::Flush => self.drain.flush().unwrap(),
        }
    }

    /// Everything ends, in an order that the program's length chooses.
    fn end(self, order: usize) -> Sim {
        let World { sim, gpu, streams, feeders, held, blocks, drain, .. } = self;
        drain.finish().unwrap_or_else(|e| panic!("{e}"));
        match order % 3 {
            0 => drop((feeders, held, blocks, streams, gpu)),
            1 => drop((gpu, streams, blocks, held, feeders)),
            _ => drop((held, gpu, feeders, streams, blocks)),
        }
        sim
    }
}

fn run(program: &[Step], schedule: Schedule) {
    let mut world = World::new(schedule);
    for step in program {
        world.step(step);
    }
    let sim = world.end(program.len());
    sim.run_until_idle();
    sim.verdict().unwrap_or_else(|v| panic!("{v}"));
    assert!(sim.leaks().is_empty(), "{:?}", sim.leaks());
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn random_programs(program in steps(), seed in 0..20_u64) {
        let schedule = match seed {
            0..8 => Schedule::Latest,
            8 => Schedule::Earliest,
            _ => Schedule::Random(seed),
        };
        planting(None, || run(&program, schedule));
    }
}

/// Random programs find each of these, within so many programs.
#[test]
fn random_programs_find_planted_bugs() {
    let bugs = [
        Bug::ConsumptionUnwaited,
        Bug::ArrivalUnwaited,
        Bug::DropUnmarked,
        Bug::BudgetIgnored,
        Bug::ResultUnwaited,
    ];
    for bug in bugs {
        let mut runner = TestRunner::deterministic();
        let programs = (1..=200).find(|_| {
            let program = steps().new_tree(&mut runner).expect("a program").current();
            let found =
                planting(Some(bug), || catch_unwind(AssertUnwindSafe(|| run(&program, Schedule::Latest))));
            found.is_err()
        });
        println!("{bug:?}: found by program {}", programs.expect("the bug is to be found"));
    }
}
