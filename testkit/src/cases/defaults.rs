//! Random programs of several threads' default streams: each thread has its own, all have the context's legacy one and one that other code
//! made. The threads take turns, so that a seed is a program; they end, and others begin. What a thread adopts as its own may be a reference that
//! another one made, which has ended or not.
//!
//! To order a stream after another thread's, a thread uses an event that that thread recorded, because naming the stream itself is refused there.
//! This too is drawn, with every function that names a stream: the answer is the typed error, and every figure of the report is what it was.

use super::random::of_seed;
use super::{Block, Outcome, World, ensure, said};
use crate::dice::Dice;
use millpond::report::Report;
use millpond::units::{GIB, MIB};
use millpond::{Config, DriverErrorKind, Error, Event, Growth, Limit, Policy, Reuse, Stream, Trim};
use millpond_sim::{Launch, Schedule, Sim};
use std::mem::ManuallyDrop;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// Steps of one program.
const STEPS: usize = 60;
/// Threads at one time.
const THREADS: usize = 3;

type Job = Box<dyn FnOnce() + Send>;

/// A thread that runs the jobs it receives, with the bug planted that is planted here.
struct Worker(mpsc::Sender<Job>);

impl Worker {
    fn new() -> Worker {
        let (sender, receiver) = mpsc::channel::<Job>();
        #[cfg(millpond_mutants)]
        let bug = millpond::mutant::current();
        thread::spawn(move || {
            #[cfg(millpond_mutants)]
            let _planted = millpond::mutant::plant(bug);
            for job in receiver {
                job();
            }
        });
        Worker(sender)
    }
    /// Has it done and waits for that. A panic there is one here.
    fn run<T: Send + 'static>(&self, f: impl FnOnce() -> T + Send + 'static) -> T {
        let (done, answer) = mpsc::channel();
        let job = move || {
            let _ = done.send(std::panic::catch_unwind(std::panic::AssertUnwindSafe(f)));
        };
        self.0.send(Box::new(job)).expect("it lives until it is dropped");
        answer.recv().expect("it answers").unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

/// A stream of the program's.
struct Lane {
    stream: Stream<Sim>,
    /// Whose default stream it is: the thread's number. `None`: any thread may use it.
    thread: Option<usize>,
    /// How much was done on it, and its last event, with how much was done before.
    done: u32,
    event: Option<(Event<Sim>, u32)>,
}

struct Live {
    block: Block,
    /// The last use on each lane, by how much was done there.
    uses: Vec<(usize, u32)>,
}

struct Run {
    w: World,
    dice: Dice,
    lanes: Vec<Lane>,
    live: Vec<Live>,
    /// The thread whose turn it is, and those that live.
    now: usize,
    threads: Vec<usize>,
    /// How often a stream was named on another thread than its own.
    pub strange: usize,
}

/// Runs the program of a seed: how many operations were made, and what came of it.
pub fn run(seed: u64) -> (usize, Outcome) {
    let mut made = 0;
    let outcome = super::judge(|| {
        let mut workers: Vec<(usize, Worker)> = (0..THREADS).map(|n| (n, Worker::new())).collect();
        // What went wrong cannot always be dropped.
        let mut run = ManuallyDrop::new(Run::new(seed)?);
        for (n, worker) in &workers {
            run = on(worker, *n, run, Run::open)?;
        }
        for _ in 0..STEPS {
            if run.dice.one_in(20) {
                // A thread ends, whatever is pending on its stream, and another one begins.
                let at = run.dice.below(THREADS);
                let next = run.threads.iter().max().expect("threads") + 1;
                workers[at] = (next, Worker::new());
                run.threads[at] = next;
                run = on(&workers[at].1, next, run, Run::open)?;
            }
            let (n, worker) = run.dice.of(&workers);
            run = on(worker, *n, run, Run::step)?;
            made += 1;
            if let Some(v) = run.w.sim.violations().first() {
                return Err(v.to_string());
            }
        }
        ManuallyDrop::into_inner(run).finish()
    });
    // That the threads open their streams is one.
    (made.max(1), outcome.map_err(|e| format!("default streams, seed {seed}, operation {made}: {e}")))
}

/// A part of a program on a thread of this number.
fn on(
    worker: &Worker,
    n: usize,
    mut run: ManuallyDrop<Run>,
    part: fn(&mut Run) -> Outcome,
) -> Result<ManuallyDrop<Run>, String> {
    worker.run(move || {
        run.now = n;
        part(&mut run).map(|()| run)
    })
}

impl Run {
    fn new(seed: u64) -> Result<Run, String> {
        let mut dice = of_seed(seed);
        let schedule = if dice.one_in(4) { Schedule::Random(seed) } else { Schedule::Latest };
        let mut config = Config::default()
            .reuse(Reuse::WithWaits)
            .limit(Limit::Bytes((4 + dice.below(6) as u64) * MIB))
            .growth(Growth::Exact)
            .policy(if dice.one_in(3) { Policy::Footprint } else { Policy::Latency });
        if !dice.one_in(3) {
            config = config.bounded_wait(Duration::ZERO);
        }
        let w = World::on(Sim::new(GIB).schedule(schedule), config);
        let lane = |stream| Lane { stream, thread: None, done: 0, event: None };
        let lanes = vec![lane(w.stream()), lane(w.gpu.adopt(w.sim.legacy_stream()).map_err(said)?)];
        Ok(Run { w, dice, lanes, live: Vec::new(), now: 0, threads: (0..THREADS).collect(), strange: 0 })
    }

    /// This thread's default stream.
    fn open(&mut self) -> Outcome {
        // Whichever thread made the reference, and whether it lives or not, the stream is this thread's.
        let made: Vec<_> = self.lanes[2..].iter().map(|lane| lane.stream.native().clone()).collect();
        let theirs = !made.is_empty() && self.dice.one_in(2);
        let reference = if theirs { self.dice.of(&made).clone() } else { self.w.sim.per_thread_stream() };
        let stream = self.w.gpu.adopt(reference).map_err(said)?;
        self.lanes.push(Lane { stream, thread: Some(self.now), done: 0, event: None });
        Ok(())
    }

    fn is_here(&self, lane: usize) -> bool {
        self.lanes[lane].thread.is_none_or(|n| n == self.now)
    }

    /// A lane that this thread may use: mostly its own.
    fn any(&mut self) -> usize {
        let own = self.lanes.iter().position(|lane| lane.thread == Some(self.now)).expect("it was opened");
        if self.dice.one_in(3) { self.dice.below(2) } else { own }
    }

    fn step(&mut self) -> Outcome {
        let block = if self.live.is_empty() { None } else { Some(self.dice.below(self.live.len())) };
        match (self.dice.below(20), block) {
            (0..5, Some(i)) => {
                drop(self.live.swap_remove(i));
                Ok(())
            }
            (5..10, Some(i)) => self.use_it(i),
            (10..12, _) => {
                let lane = self.any();
                let event = self.lanes[lane].stream.record().map_err(said)?;
                self.lanes[lane].event = Some((event, self.lanes[lane].done));
                Ok(())
            }
            (12, _) => {
                let lane = self.any();
                self.lanes[lane].stream.synchronize().map_err(said)
            }
            (13, _) if self.dice.one_in(3) => self.w.gpu.synchronize().map_err(said),
            (13, _) => self.w.gpu.trim(Trim::All).map(drop).map_err(said),
            (14..16, _) => self.strange(),
            _ => self.alloc(),
        }
    }

    fn alloc(&mut self) -> Outcome {
        let lane = self.any();
        match self.w.gpu.alloc((1 + self.dice.below(3) as u64) * MIB, &self.lanes[lane].stream) {
            Ok(block) => self.live.push(Live { block, uses: Vec::new() }),
            // Not all that others hold can be had.
            Err(e) if e.out_of_memory().is_some() => return Ok(()),
            Err(e) => return Err(said(e)),
        }
        self.launch(self.live.len() - 1, lane)
    }

    fn launch(&mut self, i: usize, lane: usize) -> Outcome {
        let Lane { stream, done, .. } = &mut self.lanes[lane];
        let Live { block, uses } = &mut self.live[i];
        let launch =
            Launch::new("write").writes(block.address(), block.len()).tag(block.id().expect("bytes"));
        self.w.sim.launch(stream.native(), launch).map_err(said)?;
        *done += 1;
        uses.retain(|u| u.0 != lane);
        uses.push((lane, *done));
        Ok(())
    }

    /// A use behind all others, where this thread can order it so.
    fn use_it(&mut self, i: usize) -> Outcome {
        let lane = self.any();
        let s = self.lanes[lane].stream.clone();
        let mut waits = Vec::new();
        for &(other, at) in self.live[i].uses.iter().filter(|u| u.0 != lane) {
            match &self.lanes[other].event {
                _ if self.is_here(other) => waits.push(None),
                Some((event, before)) if *before >= at => {
                    waits.push(Some(event.clone()));
                    continue;
                }
                _ => return Ok(()),
            }
            s.wait_stream(&self.lanes[other].stream).map_err(said)?;
        }
        for event in waits.into_iter().flatten() {
            s.wait(&event).map_err(said)?;
        }
        self.live[i].block.record_use(&s).map_err(said)?;
        if self.dice.one_in(3) {
            self.crowd(i)?;
            self.lanes[lane].event = Some((s.record().map_err(said)?, self.lanes[lane].done));
        }
        self.launch(i, lane)
    }

    /// So many streams that are gone at once use a block that its uses are looked at: none ends that a living thread declared.
    fn crowd(&mut self, i: usize) -> Outcome {
        (0..10).try_for_each(|_| self.live[i].block.record_use(&self.w.stream()).map_err(said))
    }

    /// Another thread's default stream, which may have ended, is named here.
    fn strange(&mut self) -> Outcome {
        let theirs: Vec<usize> = (0..self.lanes.len()).filter(|&lane| !self.is_here(lane)).collect();
        let (theirs, own) = (*self.dice.of(&theirs), self.any());
        let (p, s) = (self.lanes[theirs].stream.clone(), self.lanes[own].stream.clone());
        // So that what a verb marks first is marked before.
        let event = s.record().map_err(said)?;
        let before = facts(&self.w);
        let verb = self.dice.below(10);
        let i = if self.live.is_empty() { None } else { Some(self.dice.below(self.live.len())) };
        let answer = match (verb, i) {
            (0, _) => self.w.gpu.alloc(4096, &p).map(drop),
            (1, _) => self.w.gpu.alloc(3 * MIB, &p).map(drop),
            (2, _) => p.record().map(drop),
            (3, _) => p.synchronize(),
            (4, _) => s.wait_stream(&p),
            (5, _) => p.wait(&event),
            (6, Some(i)) => self.live[i].block.share_with(&p),
            (7, Some(i)) => {
                let Live { block, uses } = self.live.swap_remove(i);
                block.free_on(&p).map_err(|(block, e)| {
                    self.live.push(Live { block, uses });
                    e
                })
            }
            (_, Some(i)) => self.live[i].block.record_use(&p),
            _ => self.w.gpu.alloc(0, &p).map(drop),
        };
        match answer {
            Err(Error::Driver(e)) if e.kind == DriverErrorKind::InvalidHandle => {
                ensure!(e.message.contains("another thread"), "verb {verb}: {e}");
            }
            other => return Err(format!("verb {verb} named another thread's stream and came to {other:?}")),
        }
        let after = facts(&self.w);
        ensure!(before == after, "verb {verb} was refused and changed something: {before}\n{after}");
        self.strange += 1;
        Ok(())
    }

    /// Everything goes on a thread that had none of the streams, and the device is idle.
    fn finish(self) -> Outcome {
        let Run { w, lanes, live, .. } = self;
        drop(live);
        drop(lanes);
        w.gpu.synchronize().map_err(said)?;
        w.all_back()?;
        w.end()
    }
}

/// What a refused call leaves as it was: all figures but what a look itself costs, and which stamps are the oldest.
fn facts(w: &World) -> Report {
    // The first one ends a stretch of the peaks.
    drop(w.gpu.report());
    let mut report = w.gpu.report();
    report.driver_calls.clear();
    for pool in report.pools.iter_mut().chain([&mut report.total]).chain(&mut report.pinned) {
        pool.oldest_in_flight = None;
    }
    report
}
