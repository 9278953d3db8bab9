//! Figures of physical memory, of what is sparse and of the longest request, against what the device itself holds, the addresses of live
//! allocations and the events of a sink. Random programs with windows beneath the pools; each number is changed by one, as in `noticed`. And what
//! the longest request is said to be, is: at a limit of what is reserved it is served, and one granule more is not.

use super::noticed::Noticed;
use super::owners::Events;
use super::{rounded, shown};
use crate::rig::{all_clean, check, late, on, write};
use millpond::allocator::VirtualMemory;
use millpond::report::{PhysicalReport, Report};
use millpond::trace::Event;
use millpond::units::{MIB, StreamId};
use millpond::{Allocation, Allocator, Config, DriverErrorKind, Error, Limit, Policy, Reuse, Stream, Trim};
use millpond_sim::{Call, Launch, Leak, Sim};
use millpond_testkit::effort::{is_full, ordinary_or_full};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

const UNIT: u64 = 2 * MIB;
/// Of a device as small as this every window is as long.
const WINDOW: u64 = 512 * MIB;
const SMALL: u64 = 256 << 10;

/// From here to there.
type Span = (u64, u64);

/// Live addresses, rounded.
fn live_of(gpu: &Allocator<Sim>) -> Vec<Span> {
    let device = gpu.live().into_iter().filter(|l| l.stream.is_some());
    device.map(|l| (l.addr.0, l.addr.0 + rounded(l.bytes))).collect()
}

fn bytes_within(of: &[Span], (from, to): Span) -> u64 {
    of.iter().map(|&(a, b)| b.min(to).saturating_sub(a.max(from))).sum()
}

/// How many of these ranges have something live and less than half, how long they are, and what is live in them.
fn sparse_of(ranges: &[Span], live: &[Span]) -> [u64; 3] {
    let mut all = [0; 3];
    for &(from, to) in ranges {
        let alive = bytes_within(live, (from, to));
        if alive > 0 && alive * 2 < to - from {
            all = [all[0] + 1, all[1] + to - from, all[2] + alive];
        }
    }
    all
}

/// The same of a device's plain memory.
pub(crate) fn sparse_segments(sim: &Sim, gpu: &Allocator<Sim>) -> [u64; 3] {
    let plain =
        |leak| if let Leak::Plain { addr, bytes } = leak { Some((addr.0, addr.0 + bytes)) } else { None };
    let ranges: Vec<Span> = sim.leaks().into_iter().filter_map(plain).collect();
    sparse_of(&ranges, &live_of(gpu))
}

#[derive(Clone, Debug)]
enum Step {
    Alloc {
        on: usize,
        bytes: u64,
    },
    Free {
        at: usize,
    },
    /// Every other block, from the oldest on.
    Thin,
    Synchronize,
    /// A stream has work to do until the program synchronises.
    Work {
        on: usize,
    },
    Trim,
    /// Of whole units: with less room than one there would be plain segments.
    Limit {
        units: Option<u64>,
    },
    Open,
    Close {
        at: usize,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let bytes = prop_oneof![1..300_000u64, 1..12 * MIB, (1..20u64).prop_map(|n| n * MIB)];
    prop_oneof![
        12 => (0..4usize, bytes).prop_map(|(on, bytes)| Step::Alloc { on, bytes }),
        7 => any::<usize>().prop_map(|at| Step::Free { at }),
        1 => Just(Step::Thin),
        2 => Just(Step::Synchronize),
        2 => (0..4usize).prop_map(|on| Step::Work { on }),
        1 => Just(Step::Trim),
        2 => prop::option::of(1..80u64).prop_map(|units| Step::Limit { units }),
        1 => Just(Step::Open),
        1 => any::<usize>().prop_map(|at| Step::Close { at }),
    ]
}

/// What the report has to say.
#[derive(Debug)]
struct Expected {
    sparse: [u64; 3],
    /// And a stream that can have it.
    largest: (u64, Option<StreamId>),
    /// Of windows without a mapping their number is not known, which the report says.
    physical: PhysicalReport,
    mapped_windows: u64,
}

struct World {
    sim: Sim,
    gpu: Allocator<Sim>,
    streams: Vec<Stream<Sim>>,
    blocks: Vec<(Allocation<Sim>, StreamId)>,
    events: Arc<Events>,
    /// What is in pools, and whose.
    owned: Vec<(u64, u64, StreamId)>,
    /// By its first address: who fills a window, and whether with small requests.
    windows: BTreeMap<u64, (StreamId, bool)>,
}

impl World {
    fn new(policy: Policy, reuse: Reuse) -> World {
        let (sim, events) = (Sim::new(WINDOW), Arc::new(Events::default()));
        let config = Config::default().virtual_memory(VirtualMemory::Always).policy(policy).reuse(reuse);
        let gpu = Allocator::new(sim.clone(), config.sink(events.clone())).unwrap();
        let streams = vec![gpu.stream().unwrap(), gpu.stream().unwrap()];
        let (owned, windows) = (Vec::new(), BTreeMap::new());
        World { sim, gpu, streams, blocks: Vec::new(), events, owned, windows }
    }

    fn step(&mut self, step: &Step) {
        let mut small = false;
        match *step {
            Step::Alloc { on, bytes } => {
                small = rounded(bytes) <= SMALL;
                let stream = &self.streams[on % self.streams.len()];
                match self.gpu.alloc(bytes, stream) {
                    Ok(x) => self.blocks.push((x, stream.id())),
                    Err(e) => drop(e.out_of_memory().expect("nothing else can be wrong")),
                }
            }
            Step::Free { at } if !self.blocks.is_empty() => {
                drop(self.blocks.swap_remove(at % self.blocks.len()));
            }
            Step::Thin => {
                let mut n = 0;
                self.blocks.retain(|_| {
                    n += 1;
                    n % 2 == 0
                });
            }
            Step::Synchronize => self.gpu.synchronize().unwrap(),
            Step::Work { on } => {
                let stream = &self.streams[on % self.streams.len()];
                self.sim.launch(stream.native(), Launch::new("work").takes(1_000_000_000)).unwrap();
            }
            Step::Trim => drop(self.gpu.trim(Trim::All).unwrap()),
            Step::Limit { units } => {
                let limit = units.map_or(Limit::None, |n| Limit::Bytes(n * UNIT));
                self.gpu.set_limit(limit).unwrap();
            }
            Step::Open if self.streams.len() < 4 => self.streams.push(self.gpu.stream().unwrap()),
            // Of one with live memory nobody could ask for what it has.
            Step::Close { at } if self.streams.len() > 1 => {
                let at = at % self.streams.len();
                let id = self.streams[at].id();
                if self.blocks.iter().all(|(_, of)| *of != id) {
                    drop(self.streams.swap_remove(at));
                }
            }
            _ => {}
        }
        self.hear(small);
    }

    /// What a request, of this kind if it was one, did to whose memory.
    fn hear(&mut self, small: bool) {
        self.gpu.deliver_events();
        for event in self.events.take() {
            match event {
                Event::Grow { addr, bytes, stream } => {
                    self.windows.insert(addr.0 / WINDOW * WINDOW, (stream, small));
                    self.owned.push((addr.0, addr.0 + bytes, stream));
                }
                Event::Migrate { addr, bytes, to, .. } => {
                    self.leave((addr.0, addr.0 + bytes));
                    self.owned.push((addr.0, addr.0 + bytes, to));
                }
                Event::Trim { addr, bytes } => self.leave((addr.0, addr.0 + bytes)),
                _ => {}
            }
        }
    }

    fn leave(&mut self, (from, to): Span) {
        let parts = core::mem::take(&mut self.owned).into_iter().flat_map(|(a, b, who)| {
            [(a, b.min(from), who), (a.max(to), b, who)].into_iter().filter(|(a, b, _)| a < b)
        });
        self.owned = parts.collect();
    }

    fn expected(&self) -> Expected {
        let (ledger, live) = (self.sim.ledger(), live_of(&self.gpu));
        let mut p = PhysicalReport {
            handles_created: ledger.calls_of(Call::Create),
            handles_released: ledger.calls_of(Call::Release),
            // No call fails, so each handle was mapped once when it was created.
            moves: ledger.calls_of(Call::Map) - ledger.calls_of(Call::Create),
            ..PhysicalReport::default()
        };
        let mut mappings = Vec::new();
        for leak in self.sim.leaks() {
            match leak {
                Leak::Mapping { addr, bytes } => mappings.push((addr.0, addr.0 + bytes)),
                Leak::Handle { bytes, mapped, .. } => {
                    p.handles += 1;
                    p.handle_bytes += bytes;
                    p.mappings += u64::from(mapped);
                    p.spare_handles += u64::from(mapped == 0);
                    p.spare_bytes += if mapped == 0 { bytes } else { 0 };
                    p.former_places += u64::from(mapped.saturating_sub(1));
                    p.former_bytes += u64::from(mapped.saturating_sub(1)) * bytes;
                }
                Leak::Reservation { bytes, .. } => p.reserved_addresses += bytes,
                _ => {}
            }
        }
        mappings.sort_unstable();
        let bases: BTreeSet<u64> = mappings.iter().map(|m| m.0 / WINDOW * WINDOW).collect();
        for hole in bases.iter().flat_map(|&base| holes(&mappings, base)) {
            p.holes += 1;
            p.hole_bytes += hole.1 - hole.0;
            p.largest_hole = p.largest_hole.max(hole.1 - hole.0);
        }
        Expected {
            sparse: sparse_of(&mappings, &live),
            largest: self.largest(&mappings, &live, p.handle_bytes),
            physical: p,
            mapped_windows: bases.len() as u64,
        }
    }

    /// The longest request, by looking at every place for one.
    fn largest(&self, mappings: &[Span], live: &[Span], handles: u64) -> (u64, Option<StreamId>) {
        let used: u64 = mappings.iter().filter(|m| bytes_within(live, **m) > 0).map(|m| m.1 - m.0).sum();
        let budget = handles - used;
        let here: Vec<Span> = self.owned.iter().map(|&(a, b, _)| (a, b)).collect();
        let is_free = |m: &Span| bytes_within(live, *m) == 0 && bytes_within(&here, *m) == m.1 - m.0;
        // A request unmaps former places, of which no pool has anything.
        let mappings: Vec<Span> = mappings.iter().copied().filter(|m| bytes_within(&here, *m) > 0).collect();
        // Whole handles are anybody's; the rest of what a stream left that is gone serves small requests.
        let mut best = (budget, None);
        let open: BTreeSet<StreamId> = self.streams.iter().map(Stream::id).collect();
        let gone = self.owned.iter().map(|o| o.2).filter(|of| !open.contains(of));
        for of in open.iter().copied().chain(gone.collect::<BTreeSet<_>>()) {
            let own: Vec<Span> = self.owned.iter().filter(|o| o.2 == of).map(|&(a, b, _)| (a, b)).collect();
            let mut free: Vec<Span> = Vec::new();
            for &(a, b) in &own {
                let mut cuts: Vec<u64> = vec![a, b];
                cuts.extend(live.iter().flat_map(|l| [l.0, l.1]).filter(|at| (a..b).contains(at)));
                cuts.sort_unstable();
                free.extend(
                    cuts.windows(2)
                        .map(|w| (w[0], w[1]))
                        .filter(|s| s.0 < s.1 && bytes_within(live, *s) == 0),
                );
            }
            if !open.contains(&of) {
                best = best.max((longest_free(&free).min(SMALL), None));
                continue;
            }
            best = best.max((longest_free(&free), Some(of)));
            for (&base, _) in self.windows.iter().filter(|(_, w)| **w == (of, false)) {
                best = best.max((stretch(&mappings, &free, &is_free, base, budget), Some(of)));
            }
        }
        best
    }

    fn verify(expected: &Expected, r: &Report) {
        assert_eq!([r.sparse, r.sparse_bytes, r.sparse_live], expected.sparse);
        assert_eq!(r.largest_request, expected.largest.0, "{expected:?}");
        let p = r.physical.expect("there are windows");
        let empty = p.windows - expected.mapped_windows;
        let e = &expected.physical;
        let right = PhysicalReport {
            // When uses were over is the device's to know.
            moves_in_use: p.moves_in_use.clamp(e.former_places, e.moves),
            windows: p.windows,
            window_bytes: p.windows * WINDOW,
            holes: e.holes + empty,
            hole_bytes: e.hole_bytes + empty * WINDOW,
            largest_hole: if empty > 0 { WINDOW } else { e.largest_hole },
            ..*e
        };
        assert_eq!(p, right);
        assert_eq!(p.handles_created - p.handles_released, p.handles);
        assert_eq!(r.segments_created - r.segments_released, r.segments);
        assert_eq!(r.releases, r.segments_released + p.handles_released);
        assert!(r.growths >= r.segments_created);
    }

    /// What is said of the longest request is so: it is served, and then a longer one is refused, which may give handles back.
    fn asks(&mut self) {
        self.gpu.synchronize().unwrap();
        let report = self.gpu.report();
        if report.reserved == 0 {
            return;
        }
        self.gpu.set_limit(Limit::Bytes(report.reserved)).unwrap();
        let (map, (largest, on)) = (self.gpu.memory_map(), self.expected().largest);
        let s = self.streams.iter().find(|s| on.is_none_or(|on| s.id() == on)).expect("it is open");
        let served = largest == 0 || self.gpu.alloc(largest, s).is_ok();
        assert!(served, "{largest} is not served on {}: {report}\n{map}", s.id());
        self.gpu.synchronize().unwrap();
        let (report, map) = (self.gpu.report(), self.gpu.memory_map());
        if report.pools.iter().any(|p| p.closed && p.cached > 0) {
            // It may serve more than is said.
            return;
        }
        let longer = report.largest_request + 512;
        let refused = |s| self.gpu.alloc(longer, s).is_err();
        assert!(self.streams.iter().all(refused), "{longer} is served: {report}\n{map}");
    }
}

fn holes(mappings: &[Span], base: u64) -> Vec<Span> {
    let inside = mappings.iter().filter(|m| m.0 / WINDOW * WINDOW == base).copied();
    let (mut end, mut holes) = (base, Vec::new());
    for (from, to) in inside.chain([(base + WINDOW, base + WINDOW)]) {
        if end < from {
            holes.push((end, from));
        }
        end = to;
    }
    holes
}

/// What touches is one.
fn longest_free(free: &[Span]) -> u64 {
    let mut free = free.to_vec();
    free.sort_unstable();
    let (mut best, mut last) = (0, (0, 0));
    for (from, to) in free {
        last = if last.1 == from && from % WINDOW != 0 { (last.0, to) } else { (from, to) };
        best = best.max(last.1 - last.0);
    }
    best
}

/// The longest request in a window: from each place on as far as it is free or a hole and what that takes is there.
fn stretch(mappings: &[Span], free: &[Span], is_free: &dyn Fn(&Span) -> bool, base: u64, budget: u64) -> u64 {
    let mut cells: Vec<(Span, bool)> = Vec::new();
    // Where a handle is wholly free another one may be, or a part of it.
    let whole = mappings.iter().filter(|m| m.0 / WINDOW * WINDOW == base && is_free(m)).copied();
    for (from, to) in holes(mappings, base).into_iter().chain(whole) {
        cells.extend((from..to).step_by(UNIT as usize).map(|at| ((at, at + UNIT), true)));
    }
    for &(from, to) in free.iter().filter(|f| f.0 / WINDOW * WINDOW == base) {
        for m in mappings.iter().filter(|m| m.0 < to && m.1 > from && !is_free(m)) {
            cells.push(((from.max(m.0), to.min(m.1)), false));
        }
    }
    cells.sort_unstable();
    let mut best = 0;
    for first in 0..cells.len() {
        let (mut cost, mut end) = (0, cells[first].0.0);
        for &((from, to), hole) in &cells[first..] {
            cost += if hole { to - from } else { 0 };
            if from != end || cost > budget {
                break;
            }
            end = to;
            best = best.max(end - cells[first].0.0);
        }
    }
    best
}

/// The numbers that this model has.
const NUMBERS: [&str; 20] = [
    "sparse",
    "sparse_bytes",
    "sparse_live",
    "largest_request",
    "physical.handles",
    "physical.handle_bytes",
    "physical.handles_created",
    "physical.handles_released",
    "physical.spare_handles",
    "physical.spare_bytes",
    "physical.moves",
    "physical.mappings",
    "physical.former_places",
    "physical.former_bytes",
    "physical.windows",
    "physical.window_bytes",
    "physical.reserved_addresses",
    "physical.holes",
    "physical.hole_bytes",
    "physical.largest_hole",
];

#[test]
fn every_figure_of_physical_memory_is_the_models() {
    let noticed = RefCell::new(Noticed::default());
    let met: [Cell<u64>; 6] = Default::default();
    let config = ProptestConfig {
        cases: ordinary_or_full(64, 512),
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    let policies = prop_oneof![Just(Policy::Latency), Just(Policy::Footprint)];
    let reuses = prop_oneof![2 => Just(Reuse::WithWaits), 1 => Just(Reuse::Ordered), 1 => Just(Reuse::Never)];
    let programs = (prop::collection::vec(step(), 1..100), policies, reuses);
    let ran = TestRunner::new(config).run(&programs, |(steps, policy, reuse)| {
        let mut world = World::new(policy, reuse);
        for (at, step) in steps.iter().enumerate() {
            world.step(step);
            if at % 5 == 4 || at + 1 == steps.len() {
                let (report, expected) = (world.gpu.report(), world.expected());
                World::verify(&expected, &report);
                shown::check(&report);
                let p = report.physical.unwrap();
                let is_more = report.largest_request > report.total.largest_free;
                let all = [
                    p.moves,
                    p.former_places,
                    p.handles_released,
                    report.sparse,
                    u64::from(is_more),
                    p.holes,
                ];
                met.iter().zip(all).for_each(|(met, n)| met.set(met.get() + u64::from(n > 0)));
                if at + 1 == steps.len() {
                    let check = |report: &Report| World::verify(&expected, report);
                    noticed.borrow_mut().try_all(&report, check);
                }
            }
        }
        world.asks();
        Ok(())
    });
    ran.unwrap_or_else(|e| panic!("{e}"));
    noticed.borrow().demand_of(&NUMBERS);
    let met = met.map(|met| met.get());
    assert!(!is_full() || met.iter().all(|&n| n >= 20), "met too rarely: {met:?}");
    assert!(met.iter().all(|&n| n > 0), "never met: {met:?}");
}

fn config(mib: u64) -> Config {
    Config::default().virtual_memory(VirtualMemory::Always).limit(Limit::Bytes(mib * MIB))
}

fn figures(gpu: &Allocator<Sim>) -> PhysicalReport {
    gpu.report().physical.unwrap()
}

/// Handles that move while their bytes are in use are mapped twice until that is over; a map shows both places.
#[test]
fn former_places_count_until_their_uses_are_over() {
    let sim = late();
    let gpu = on(&sim, config(32));
    let s = gpu.stream().unwrap();
    let mut all: Vec<_> = (0..16).map(|_| Some(gpu.alloc(2 * MIB, &s).unwrap())).collect();
    all.iter().flatten().for_each(|x| write(&sim, x, &s));
    all.iter_mut().step_by(2).for_each(|x| drop(x.take()));
    assert_eq!(gpu.report().largest_request, 16 * MIB, "of eight handles, behind what lives");
    let x = gpu.alloc(16 * MIB, &s).unwrap();
    let p = figures(&gpu);
    assert_eq!((p.handles, p.mappings, p.moves, p.moves_in_use), (16, 24, 8, 8));
    assert_eq!((p.former_places, p.former_bytes, p.spare_handles), (8, 16 * MIB, 0));
    assert_eq!((p.holes, p.hole_bytes), (1, WINDOW - 48 * MIB), "former places are no holes");
    assert!(gpu.memory_map().to_string().contains("former 16.0 MiB"));
    all.iter().flatten().for_each(|x| check(&sim, x, &s));
    sim.run_until_idle();
    gpu.trim(Trim::All).unwrap();
    let p = figures(&gpu);
    assert_eq!((p.handles, p.mappings, p.former_places, p.moves_in_use), (16, 16, 0, 8));
    assert_eq!(
        (p.holes, p.hole_bytes),
        (9, WINDOW - 32 * MIB),
        "between the eight that live, and behind all"
    );
    drop((x, all, s));
    all_clean(&sim, gpu);
}

/// A handle that the driver does not take back is spare, counts as reserved, and a trim gives it back.
#[test]
fn spare_handles_count() {
    let sim = late();
    let gpu = on(&sim, config(32));
    let s = gpu.stream().unwrap();
    drop(gpu.alloc(4 * MIB, &s).unwrap());
    gpu.synchronize().unwrap();
    sim.fail(Call::Release, 1, DriverErrorKind::Other);
    sim.fail(Call::Release, 2, DriverErrorKind::Other);
    sim.fail(Call::Release, 3, DriverErrorKind::Other);
    sim.fail(Call::Release, 4, DriverErrorKind::Other);
    gpu.trim(Trim::All).unwrap();
    let (r, p) = (gpu.report(), figures(&gpu));
    assert_eq!((p.handles, p.spare_handles, p.spare_bytes, p.mappings), (2, 2, 4 * MIB, 0));
    assert_eq!((r.reserved, r.largest_request, r.slack()), (4 * MIB, 4 * MIB, 4 * MIB));
    sim.clear_faults();
    assert_eq!(gpu.trim(Trim::All).unwrap().bytes, 4 * MIB);
    let (r, p) = (gpu.report(), figures(&gpu));
    assert_eq!((p.handles, p.handles_created, p.handles_released, p.spare_handles), (0, 2, 2, 0));
    assert_eq!((r.releases, r.segments, r.largest_request), (2, 0, 0));
    drop(s);
    all_clean(&sim, gpu);
}

/// A live range of 512 bytes pins a handle, and half a handle does not.
#[test]
fn sparse_handles_and_segments() {
    for memory in [VirtualMemory::Always, VirtualMemory::Never] {
        let sim = late();
        let gpu = Allocator::new(sim.clone(), Config::default().virtual_memory(memory)).unwrap();
        let s = gpu.stream().unwrap();
        let small = gpu.alloc(512, &s).unwrap();
        let r = gpu.report();
        assert_eq!((r.sparse, r.sparse_bytes, r.sparse_live), (1, 2 * MIB, 512), "{memory:?}");
        let rest: Vec<_> = (0..4).map(|_| gpu.alloc(256 << 10, &s).unwrap()).collect();
        assert_eq!(gpu.report().sparse, 0, "more than half");
        drop(rest);
        assert_eq!(gpu.report().sparse_bytes, 2 * MIB, "what is free counts for nothing");
        drop(small);
        assert_eq!((gpu.report().sparse, gpu.report().slack()), (0, 2 * MIB));
        drop(s);
        all_clean(&sim, gpu);
    }
}

/// An error says what a trim would give back of windows: handles that are wholly free and not yet complete, and not those beside something live or in flight.
#[test]
fn an_error_says_what_a_trim_would_give_back_of_windows() {
    let sim = late();
    let gpu = on(&sim, config(32).reuse(Reuse::Ordered).bounded_wait(Duration::ZERO));
    let (s, t) = (gpu.stream().unwrap(), gpu.stream().unwrap());
    let (used, freed) = (gpu.alloc(6 * MIB, &s).unwrap(), gpu.alloc(18 * MIB, &s).unwrap());
    let kept = gpu.alloc(7 * MIB, &s).unwrap();
    write(&sim, &freed, &s);
    used.record_use(&t).unwrap();
    write(&sim, &used, &t);
    drop((used, freed));
    let Err(Error::OutOfMemory(why)) = gpu.alloc(20 * MIB, &t) else { panic!("nothing is complete") };
    assert_eq!((why.trim_would_free, why.idle_after_uses), (18 * MIB, 24 * MIB), "{why}");
    gpu.synchronize().unwrap();
    let brought = gpu.trim(Trim::All).unwrap().bytes;
    assert_eq!(brought, 24 * MIB, "what was in flight is complete too");
    drop((kept, s, t));
    all_clean(&sim, gpu);
}
