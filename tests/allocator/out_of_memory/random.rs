//! Random programs that run out of memory: what the refusal says is compared with a ledger of the program's own, and what it promises is
//! tried.

use super::facts;
use crate::rig;
use millpond::driver::{Fences, HostKind};
use millpond::error::Holder;
use millpond::units::{GIB, KIB, MIB};
use millpond::{
    Allocation, Allocator, Config, Growth, Limit, OutOfMemory, PinnedAllocation, Policy, Reuse, Stream, Trim,
};
use millpond_sim::{Schedule, Sim, SimStream};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use std::cell::Cell;
use std::collections::HashMap;
use std::time::Duration;

const NAMES: [&str; 3] = ["weights", "rows", "cache"];
/// Of the device's memory, and of pinned memory: whether an allocator's limit stops the programs there or the device.
const ROOM: u64 = 64 * MIB;
const PINNED: u64 = 24 * MIB;

#[derive(Clone, Debug)]
enum Step {
    /// On a stream of ours, or on one of two that were not declared.
    Alloc {
        on: usize,
        kib: u64,
        how: How,
        /// Behind a synchronisation: whatever is free is complete, and known to be.
        synchronized: bool,
    },
    Free {
        at: usize,
        by: usize,
    },
    /// Pinned memory, used by what is queued on a stream of ours.
    Pin {
        kib: u64,
        kind: HostKind,
        on: usize,
    },
    /// Gives pinned memory back; with unknown users, too.
    Unpin {
        at: usize,
        unknown: bool,
    },
    /// Of a stream that was not declared: another takes its place.
    End {
        which: usize,
    },
    Synchronize,
}

#[derive(Clone, Copy, Debug)]
enum How {
    Plain,
    Named(&'static str),
    Aligned(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let how = prop_oneof![
        3 => Just(How::Plain),
        2 => prop::sample::select(&NAMES[..]).prop_map(How::Named),
        3 => (9..27_u32).prop_map(|bits| How::Aligned(1 << bits)),
    ];
    let kib = || prop_oneof![5 => (1..24_u64).prop_map(|mib| mib << 10), 1 => 1..600_u64];
    let kind = prop_oneof![Just(HostKind::Cached), Just(HostKind::WriteCombined)];
    prop_oneof![
        12 => (0..4_usize, kib(), how, prop::bool::weighted(0.2)).prop_map(|(on, kib, how, synchronized)| Step::Alloc { on, kib, how, synchronized }),
        8 => (any::<usize>(), 0..6_usize).prop_map(|(at, by)| Step::Free { at, by }),
        4 => (kib(), kind, 0..2_usize).prop_map(|(kib, kind, on)| Step::Pin { kib, kind, on }),
        3 => (any::<usize>(), any::<bool>()).prop_map(|(at, unknown)| Step::Unpin { at, unknown }),
        2 => (0..2_usize).prop_map(|which| Step::End { which }),
        2 => Just(Step::Synchronize),
    ]
}

/// What holds for a whole program.
#[derive(Clone, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "each is drawn by itself")]
struct Setting {
    late: bool,
    reuse: Reuse,
    policy: Policy,
    exact: bool,
    /// Frees of the driver's wait for nothing: a request trims by itself.
    trims: bool,
    /// The device has no more, instead of a limit that is set.
    small_device: bool,
}

fn setting() -> impl Strategy<Value = Setting> {
    let reuse = prop_oneof![Just(Reuse::Never), Just(Reuse::Ordered), Just(Reuse::WithWaits)];
    let policy = prop_oneof![Just(Policy::Latency), Just(Policy::Footprint)];
    let coin = any::<bool>;
    (coin(), reuse, policy, coin(), coin(), coin()).prop_map(
        |(late, reuse, policy, exact, trims, small_device)| Setting {
            late,
            reuse,
            policy,
            exact,
            trims,
            small_device,
        },
    )
}

impl Setting {
    fn allocator(&self) -> (Sim, Allocator<Sim>) {
        let schedule = if self.late { Schedule::Latest } else { Schedule::Earliest };
        let (device, pinned) = if self.small_device { (ROOM, PINNED) } else { (GIB, GIB) };
        let sim = Sim::new(device).schedule(schedule).waiting_frees(!self.trims).pinned_capacity(pinned);
        let config = Config::default().reuse(self.reuse).policy(self.policy).bounded_wait(Duration::ZERO);
        let config = if self.exact { config.growth(Growth::Exact) } else { config };
        let config =
            if self.small_device { config } else { config.limit(Limit::Bytes(ROOM)).pinned_limit(PINNED) };
        (sim.clone(), Allocator::new(sim, config).unwrap())
    }
}

/// How often the programs came by what is judged here: each has to be at stake.
#[derive(Default, Debug)]
struct Seen(HashMap<&'static str, u32>);

struct Program {
    sim: Sim,
    gpu: Allocator<Sim>,
    ours: [Stream<Sim>; 2],
    theirs: [(SimStream, Stream<Sim>); 2],
    blocks: Vec<(Allocation<Sim>, Option<&'static str>)>,
    pinned: Vec<PinnedAllocation<Sim>>,
    refusals: u64,
}

fn undeclared(sim: &Sim, gpu: &Allocator<Sim>) -> (SimStream, Stream<Sim>) {
    let native = sim.stream().unwrap();
    let adopted = gpu.adopt(sim.unmanaged_stream(&native)).unwrap();
    (native, adopted)
}

/// Bytes as pools round them.
fn rounded(bytes: u64) -> u64 {
    bytes.next_multiple_of(512)
}

/// Who holds what, by the program's own ledger.
fn holders(live: impl Iterator<Item = (Option<&'static str>, u64)>) -> Vec<Holder> {
    let mut by_name: HashMap<Option<&str>, (u64, u64)> = HashMap::new();
    for (name, bytes) in live {
        let of = by_name.entry(name).or_default();
        *of = (of.0 + 1, of.1 + rounded(bytes));
    }
    let mut all: Vec<_> = by_name
        .into_iter()
        .map(|(name, (allocations, bytes))| Holder { name: name.map(str::to_owned), allocations, bytes })
        .collect();
    all.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.name.cmp(&b.name)));
    all
}

impl Program {
    fn new(setting: &Setting) -> Program {
        let (sim, gpu) = setting.allocator();
        let ours = [gpu.stream().unwrap(), gpu.stream().unwrap()];
        let theirs = [undeclared(&sim, &gpu), undeclared(&sim, &gpu)];
        Program { sim, gpu, ours, theirs, blocks: Vec::new(), pinned: Vec::new(), refusals: 0 }
    }

    fn stream(&self, on: usize) -> &Stream<Sim> {
        if on < 2 { &self.ours[on] } else { &self.theirs[on - 2].1 }
    }

    fn step(&mut self, step: &Step, seen: &mut Seen) -> Result<(), TestCaseError> {
        match *step {
            Step::Alloc { on, kib, how, synchronized } => {
                if synchronized {
                    self.gpu.synchronize().unwrap();
                }
                self.alloc(on, kib * KIB, how, synchronized, seen)?;
            }
            Step::Free { at, by } if !self.blocks.is_empty() => {
                let (block, _) = self.blocks.swap_remove(at % self.blocks.len());
                match by {
                    0 => block.free_unknown(),
                    1 | 4 | 5 => block.free_on(&self.ours[by % 2]).map_err(|e| e.1).unwrap(),
                    2 => block.free_on(&self.theirs[0].1).map_err(|e| e.1).unwrap(),
                    _ => drop(block),
                }
            }
            Step::Pin { kib, kind, on } => self.pin(kib * KIB, kind, on, seen)?,
            Step::Unpin { at, unknown } if !self.pinned.is_empty() => {
                let block = self.pinned.swap_remove(at % self.pinned.len());
                if unknown { block.free_unknown() } else { drop(block) }
            }
            Step::Free { .. } | Step::Unpin { .. } => {}
            Step::End { which } => {
                let next = undeclared(&self.sim, &self.gpu);
                let (native, adopted) = std::mem::replace(&mut self.theirs[which], next);
                drop(adopted);
                self.sim.destroy_stream(&native).unwrap();
            }
            Step::Synchronize => self.gpu.synchronize().unwrap(),
        }
        Ok(())
    }

    fn alloc(
        &mut self,
        on: usize,
        bytes: u64,
        how: How,
        synchronized: bool,
        seen: &mut Seen,
    ) -> Result<(), TestCaseError> {
        let ask = |p: &Program, on: usize, how: How| {
            let s = p.stream(on);
            let (block, name) = match how {
                How::Plain => (p.gpu.alloc(bytes, s), None),
                How::Named(name) => (p.gpu.alloc_named(bytes, name, s), Some(name)),
                How::Aligned(align) => (p.gpu.alloc_aligned(bytes, align, s), None),
            };
            block.map(|block| {
                rig::write(&p.sim, &block, s);
                (block, name)
            })
        };
        let refused = match ask(self, on, how) {
            Ok(block) => {
                self.blocks.push(block);
                return Ok(());
            }
            Err(e) => facts::<()>(Err(e)),
        };
        seen.saw("a refusal", true);
        seen.saw("of an alignment", matches!(how, How::Aligned(_)));
        seen.saw("beside memory held back", refused.report.total.held_back > 0);
        let live = self.blocks.iter().map(|(block, name)| (*name, block.len()));
        prop_assert_eq!(&refused.holders, &holders(live), "{}", refused);
        let live: u64 = self.blocks.iter().map(|(block, _)| block.len()).sum();
        prop_assert_eq!(refused.report.total.allocated, live, "{}", refused);
        let align = if let How::Aligned(align) = how { align.max(512) } else { 512 };
        prop_assert_eq!((refused.rounded, refused.needed), (rounded(bytes), rounded(bytes) + align - 512));
        let fits = Self::judge(&refused, seen)?;
        let advice = refused.advice();
        prop_assert!(!advice.contains("does not serve this request"), "there is no other stream: {refused}");
        // Of most of them before the trims below, which change what there is.
        self.refusals += 1;
        if !self.refusals.is_multiple_of(4) {
            let plain = advice.contains("ask for a smaller alignment, or allocate it earlier");
            if plain || advice.contains("wait for that stream") || advice.contains("synchronise them") {
                seen.saw("advice to synchronise", !plain);
                seen.saw("advice to ask for a smaller alignment", plain);
                self.gpu.synchronize().unwrap();
                if advice.contains("trim()") {
                    seen.saw("advice to synchronise and trim", true);
                    self.gpu.trim(Trim::All).unwrap();
                }
                let block = ask(self, on, if plain { How::Plain } else { how });
                self.blocks.push(block.unwrap_or_else(|e| panic!("{refused}\nand then: {e}")));
                return Ok(());
            }
            let there =
                (0..4).find(|&there| advice.contains(&format!("is free on {},", self.stream(there).id())));
            if let Some(there) = there.filter(|_| advice.contains("allocate there")) {
                seen.saw("advice to allocate there", true);
                let block = ask(self, there, how);
                self.blocks.push(block.unwrap_or_else(|e| panic!("{refused}\nand then: {e}")));
                return Ok(());
            }
        } else if advice.contains("free something") || advice.contains("free some of that") {
            seen.saw("advice to free", true);
            self.blocks.clear();
            self.gpu.synchronize().unwrap();
            self.gpu.trim(Trim::All).unwrap();
            let block = ask(self, on, how);
            self.blocks.push(block.unwrap_or_else(|e| panic!("{refused}\nand then: {e}")));
            return Ok(());
        }
        let brought = self.trim(|gpu| gpu.report().reserved);
        prop_assert!(brought >= refused.trim_would_free, "{brought} bytes: {refused}");
        if synchronized && refused.tried.contains(&"trim") {
            seen.saw("all that a trim brings was brought", true);
            let taken = self.gpu.report().reserved;
            prop_assert!(taken + refused.needed > ROOM, "{taken} bytes are left behind a trim: {refused}");
        }
        if fits {
            self.blocks.push(ask(self, on, how).expect("the advice said so"));
        }
        Ok(())
    }

    fn pin(&mut self, bytes: u64, kind: HostKind, on: usize, seen: &mut Seen) -> Result<(), TestCaseError> {
        let refused = match self.gpu.alloc_pinned_as(bytes, kind) {
            Ok(block) => {
                block.record_use(&self.ours[on]).unwrap();
                self.pinned.push(block);
                return Ok(());
            }
            Err(e) => facts::<()>(Err(e)),
        };
        seen.saw("a refusal of pinned memory", true);
        let report = self.gpu.report();
        prop_assert_eq!(&refused.report, &report, "{}", refused);
        let books = report.pinned.unwrap_or_default();
        let taken = format!(
            "of pinned host memory; reserved {}, allocated {}",
            size(books.reserved),
            size(books.allocated)
        );
        prop_assert!(refused.to_string().contains(&taken), "{refused}");
        prop_assert_eq!((refused.stream, refused.pinned_limit.unwrap_or(PINNED)), (None, PINNED));
        let live = holders(self.pinned.iter().map(|p| (None, p.len())));
        prop_assert_eq!(books.allocated, live.first().map_or(0, |all| all.bytes));
        prop_assert_eq!(&refused.holders, &live, "{}", refused);
        let fits = Self::judge(&refused, seen)?;
        let advice = refused.advice();
        self.refusals += 1;
        if !self.refusals.is_multiple_of(4) && advice.contains("synchronise them") {
            seen.saw("advice to synchronise of pinned memory", true);
            self.gpu.synchronize().unwrap();
            if advice.contains("trim()") {
                self.gpu.trim(Trim::All).unwrap();
            }
            let block = self.gpu.alloc_pinned_as(bytes, kind);
            self.pinned.push(block.unwrap_or_else(|e| panic!("{refused}\nand then: {e}")));
            return Ok(());
        }
        let brought = self.trim(|gpu| gpu.report().pinned.map_or(0, |p| p.reserved));
        prop_assert!(brought >= refused.trim_would_free, "{brought} bytes: {refused}");
        if fits {
            seen.saw("a promise of pinned memory", true);
            self.pinned.push(self.gpu.alloc_pinned_as(bytes, kind).expect("the advice said so"));
        }
        Ok(())
    }

    /// Whether the advice promises that the request fits after a trim; it may promise nothing that was tried, and names fragments only
    /// where there are some.
    fn judge(refused: &OutOfMemory, seen: &mut Seen) -> Result<bool, TestCaseError> {
        let advice = refused.advice();
        let r = &refused.report;
        let pinned = r.pinned.clone().unwrap_or_default();
        let (limit, taken, total) = match refused.stream {
            Some(_) => (r.limit, r.reserved, &r.total),
            None => (refused.pinned_limit, pinned.reserved, &pinned),
        };
        if refused.tried.contains(&"trim") {
            seen.saw("a trim was tried", true);
            prop_assert!(!advice.contains("trim()"), "{refused}");
        }
        if advice.contains("fragmented") {
            seen.saw("fragments", true);
            // What the limit leaves is free too, where it is the limit that refuses.
            let left =
                if refused.driver.is_none() { limit.map_or(0, |l| l.saturating_sub(taken)) } else { 0 };
            let free = total.cached + left;
            prop_assert!(free >= refused.rounded && refused.rounded > total.largest_free, "{refused}");
        }
        // If the report says that memory is held, or lies in pieces between what is held, it names the holders.
        if (advice.contains("are live") || advice.contains("fragmented"))
            && let Some(first) = refused.holders.first()
        {
            let most = r.pools.iter().map(|pool| pool.allocated).max().unwrap_or(0);
            let named = first.name.is_some() || refused.stream.is_none();
            let largest = if named { first.to_string() } else { size(most) + " on " };
            prop_assert!(advice.contains(&format!("the largest part {largest}")), "{refused}");
            seen.saw("the largest holder by its name", first.name.is_some());
            seen.saw("the stream that holds most", !named);
        }
        let fits = advice.contains("and then the request fits");
        seen.saw("a trim would bring something", refused.trim_would_free > 0);
        seen.saw("a promise", fits);
        Ok(fits)
    }

    /// What two trims on an idle device bring: the first makes the markers that are missing.
    fn trim(&self, taken: impl Fn(&Allocator<Sim>) -> u64) -> u64 {
        let before = taken(&self.gpu);
        for _ in 0..2 {
            self.sim.synchronize_device().unwrap();
            self.gpu.trim(Trim::All).unwrap();
        }
        before - taken(&self.gpu)
    }
}

/// Bytes as messages write them.
fn size(bytes: u64) -> String {
    let held = Holder { name: None, allocations: 1, bytes }.to_string();
    held.split_once(" in ").expect("bytes in allocations").0.to_owned()
}

impl Seen {
    fn saw(&mut self, what: &'static str, is: bool) {
        *self.0.entry(what).or_default() += u32::from(is);
    }
}

/// Random programs beside streams that were not declared and end: once the device is idle a trim gives back what a refusal said, or more
/// (what was in flight), and where the advice says that the request fits then, it does; so it does behind other advice. Who holds the memory is as the program knows it,
/// the facts of a pinned refusal are the pinned pool's, and the advice is never what was tried.
#[test]
fn a_trim_brings_what_was_said() {
    let seen = Cell::new(Seen::default());
    let mut runner =
        TestRunner::new(ProptestConfig { cases: 600, failure_persistence: None, ..Default::default() });
    let programs = (setting(), prop::collection::vec(step(), 10..80));
    let run = runner.run(&programs, |(setting, steps)| {
        let mut program = Program::new(&setting);
        let mut all = seen.take();
        let judged = steps.iter().try_for_each(|step| program.step(step, &mut all));
        seen.set(all);
        judged
    });
    run.unwrap();
    let Seen(seen) = seen.take();
    let often = [
        "a refusal",
        "of an alignment",
        "beside memory held back",
        "a refusal of pinned memory",
        "a promise of pinned memory",
        "a trim was tried",
        "all that a trim brings was brought",
        "fragments",
        "a trim would bring something",
        "a promise",
        "the largest holder by its name",
        "the stream that holds most",
    ];
    // Each was followed, and brought what it said.
    let now_and_then = [
        "advice to synchronise",
        "advice to synchronise and trim",
        "advice to ask for a smaller alignment",
        "advice to allocate there",
        "advice to free",
        "advice to synchronise of pinned memory",
    ];
    assert!(
        often.iter().all(|what| seen.get(what).is_some_and(|&n| n > 30))
            && now_and_then.iter().all(|what| seen.get(what).is_some_and(|&n| n > 2)),
        "the programs come by all: {seen:?}"
    );
}
