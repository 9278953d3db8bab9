//! Random requests under a tight limit, device memory and pinned, beside a kernel that does not end by itself (a collective that
//! waits for the host). It stands on an independent stream, which allocates, frees and uses too; on the others are kernels of
//! seconds. Every request is served or out of memory, waits for nothing that need not end, and blocks the host for no
//! longer than its bound, whatever it waits for one after the other.

#![allow(unreachable_pub, reason = "shared with tests/mutants.rs")]

use millpond::driver::Memory;
use millpond::units::{GIB, MIB};
use millpond::{
    Allocation, Allocator, Config, Error, Growth, Limit, PinnedAllocation, Policy, Reuse, Stream,
};
use millpond_sim::{Call, Gate, Launch, Schedule, Sim};
use millpond_testkit::dice::Dice;
use std::time::Duration;

/// Calls that wait for the whole device, or for all of a stream.
pub const UNBOUNDED: [Call; 4] =
    [Call::MemFree, Call::MemFreeHost, Call::CtxSynchronize, Call::StreamSynchronize];

/// How long a request may block for.
pub const BOUND: Duration = Duration::from_secs(3);

/// What the calls of one request take of the host beside its waits, in the simulated device's prices: pinning 128 MiB is the
/// dearest, at 65 ms.
const CALLS: Duration = Duration::from_millis(200);

/// Operations of a program.
pub const STEPS: usize = 60;

/// The streams that can be waited for; the one after them is the endless kernel's.
const DEPENDABLE: usize = 3;

/// What came of the requests of a program.
#[derive(Default)]
pub struct Requests {
    pub served: u32,
    pub refused: u32,
    /// The longest that a request for device memory, and one for pinned memory, kept the host.
    pub longest: [Duration; 2],
}

impl Requests {
    /// One more request: what it answered, after how long; which of the two kinds.
    fn count<X>(
        &mut self,
        kind: usize,
        answer: Result<X, Error>,
        took: Duration,
    ) -> Result<Option<X>, String> {
        if took > BOUND + CALLS {
            return Err(format!("a request that may block for {BOUND:?} took {took:?}"));
        }
        self.longest[kind] = took.max(self.longest[kind]);
        match answer {
            Ok(served) => {
                self.served += 1;
                Ok(Some(served))
            }
            Err(e) if e.out_of_memory().is_some() => {
                self.refused += 1;
                Ok(None)
            }
            Err(e) => Err(format!("no memory, and the error is {e}")),
        }
    }
}

/// The program of a seed, and how its requests fared.
///
/// # Errors
/// What a request did that it may not.
pub fn run(seed: u64) -> Result<Requests, String> {
    let mut random = Dice::new(seed);
    let reuse = *random.of(&[Reuse::WithWaits, Reuse::Ordered, Reuse::Never]);
    let policy = *random.of(&[Policy::Latency, Policy::Footprint]);
    let growth = *random.of(&[Growth::Exact, Growth::default()]);
    let schedule = *random.of(&[Schedule::Earliest, Schedule::Latest, Schedule::Random(seed)]);
    let sim = Sim::new(GIB).schedule(schedule).waiting_frees(random.number(3) > 0);
    let config = Config::default().reuse(reuse).policy(policy).growth(growth).bounded_wait(BOUND);
    let config = config.limit(Limit::Bytes(64 * MIB)).pinned_limit(128 * MIB);
    let gpu = Allocator::new(sim.clone(), config).map_err(|e| e.to_string())?;
    let mut world = World::new(&sim, &gpu)?;
    for _ in 0..STEPS {
        world.step(&mut random).map_err(|e| e.to_string())??;
        world.waited_for_nothing_endless()?;
    }
    let requests = world.end()?;
    gpu.check();
    drop(gpu);
    sim.run_until_idle();
    sim.verdict().map_err(|e| e.to_string())?;
    match (&sim.leaks()[..], &sim.drop_errors()[..]) {
        ([], []) => Ok(requests),
        (leaks, errors) => Err(format!("left on the device: {leaks:?}; met by destructors: {errors:?}")),
    }
}

struct World<'a> {
    sim: &'a Sim,
    gpu: &'a Allocator<Sim>,
    streams: Vec<Stream<Sim>>,
    gate: Gate,
    /// With the streams that they are of.
    blocks: Vec<(Allocation<Sim>, usize)>,
    pinned: Vec<PinnedAllocation<Sim>>,
    requests: Requests,
}

impl<'a> World<'a> {
    fn new(sim: &'a Sim, gpu: &'a Allocator<Sim>) -> Result<World<'a>, String> {
        let mut streams = Vec::new();
        for _ in 0..DEPENDABLE {
            streams.push(gpu.stream().map_err(|e| e.to_string())?);
        }
        let alone = gpu.stream().map_err(|e| e.to_string())?.independent();
        let gate = sim.gate(alone.native()).map_err(|e| e.to_string())?;
        streams.push(alone);
        let (blocks, pinned, requests) = (Vec::new(), Vec::new(), Requests::default());
        Ok(World { sim, gpu, streams, gate, blocks, pinned, requests })
    }

    /// One operation. Calls other than requests succeed.
    fn step(&mut self, random: &mut Dice) -> Result<Result<(), String>, Error> {
        let (at, other) = (random.below(DEPENDABLE + 1), random.below(DEPENDABLE + 1));
        match random.number(8) {
            0..=2 => {
                let bytes = (1 + random.number(6)) * 5 * MIB;
                let (answer, took) = self.timed(|w| w.gpu.alloc(bytes, &w.streams[at]));
                match self.requests.count(0, answer, took) {
                    Ok(Some(x)) => {
                        self.launch(at, Launch::new("write").writes(x.address(), x.len()))?;
                        if random.number(4) == 0 {
                            let long = Launch::new("long").writes(x.address(), x.len());
                            self.launch(at, long.takes(random.number(2_000) * 1_000_000))?;
                        }
                        self.blocks.push((x, at));
                    }
                    Ok(None) => {}
                    Err(e) => return Ok(Err(e)),
                }
            }
            3 => {
                let bytes = (1 + random.number(6)) * 20 * MIB;
                let (answer, took) = self.timed(|w| w.gpu.alloc_pinned(bytes));
                match self.requests.count(1, answer, took) {
                    Ok(Some(p)) => {
                        p.record_use(&self.streams[other])?;
                        self.launch(other, Launch::new("read pinned").reads(p.address(), p.len()))?;
                        self.pinned.push(p);
                    }
                    Ok(None) => {}
                    Err(e) => return Ok(Err(e)),
                }
            }
            4 if !self.pinned.is_empty() => drop(self.pinned.remove(0)),
            _ if self.blocks.is_empty() => {}
            5 | 6 => {
                let (x, home) = self.blocks.swap_remove(random.below(self.blocks.len()));
                // The endless one may come behind others; others behind it would be the program's own doing.
                if home != DEPENDABLE && random.number(3) == 0 {
                    self.streams[DEPENDABLE].wait_stream(&self.streams[home])?;
                    x.record_use(&self.streams[DEPENDABLE])?;
                    self.launch(DEPENDABLE, Launch::new("write").writes(x.address(), x.len()))?;
                }
                if random.number(6) == 0 { x.free_unknown() } else { drop(x) }
            }
            _ => {
                let (x, home) = &self.blocks[random.below(self.blocks.len())];
                if *home != DEPENDABLE && at != DEPENDABLE {
                    self.streams[at].wait_stream(&self.streams[*home])?;
                    x.share_with(&self.streams[at])?;
                    self.streams[*home].wait_stream(&self.streams[at])?;
                }
            }
        }
        Ok(Ok(()))
    }

    fn launch(&self, at: usize, launch: Launch) -> Result<(), Error> {
        Ok(self.sim.launch(self.streams[at].native(), launch)?)
    }

    /// A request, and what it took of the host's virtual time.
    fn timed<X>(&self, request: impl FnOnce(&Self) -> X) -> (X, Duration) {
        let before = self.sim.host_time();
        let answer = request(self);
        (answer, self.sim.host_time().saturating_sub(before))
    }

    fn waited_for_nothing_endless(&self) -> Result<(), String> {
        let ledger = self.sim.ledger();
        if ledger.endless_waits > 0 {
            return Err("the host waited for the endless kernel".to_owned());
        }
        let called = |call: &Call| ledger.calls_of(*call) > 0;
        // Where a free waits for nothing, a request may give memory back.
        let waits = |call: &Call| *call != Call::MemFree || Memory::free_waits_for_device(self.sim);
        match UNBOUNDED.iter().find(|call| called(call) && waits(call)) {
            Some(call) => Err(format!("a request called {}", call.name())),
            None => Ok(()),
        }
    }

    /// Streams that are not independent can be waited for, however long the endless kernel takes; then it ends.
    fn end(self) -> Result<Requests, String> {
        for s in &self.streams[..DEPENDABLE] {
            s.synchronize().map_err(|e| format!("a stream was made to wait for the endless kernel: {e}"))?;
        }
        self.gpu.check();
        self.gate.open();
        Ok(self.requests)
    }
}
