//! The soak of cudarc's safe calls: steady programs on our arrays, pooled slices and pinned arrays, with two values of cudarc's for
//! one context, in a loop over the stand-in driver, and nothing may grow.
//!
//! The library and cudarc are linked into this program, so that the host memory of both is counted by this program's allocator; the
//! stand-in is a library of its own, with an allocator of its own. Each program runs on a device that runs at once and on one that
//! runs as late as legal. Two of them are loops of `benches/gpu/gpu_costs.rs`, one is the README's program for a GPU; `tests/soak/complete.rs` says which examples that need CUDA
//! have none here, and why. It synchronises once in 100 rounds, behind the library's back: by cudarc's own call.
//!
//! 4,000 rounds, or what `MILLPOND_SOAK_ROUNDS` says ([`FEWEST`] or more); `MILLPOND_SOAK_SEED` begins the random programs at another seed.
//! tests/soak.rs tells what is compared and why.

#![cfg(feature = "cuda")]

#[path = "../benches/gpu/gpu_costs.rs"]
#[allow(dead_code, unreachable_pub, reason = "an example, two of whose loops are called")]
mod gpu_costs;

#[path = "soak/judge.rs"]
mod judge;
#[path = "soak/readme_on_a_gpu.rs"]
#[allow(unreachable_pub, reason = "a module of a test")]
mod readme_on_a_gpu;
#[path = "fake_libcuda/remote.rs"]
mod remote;
#[path = "cudarc_types/rig.rs"]
mod rig;
#[path = "cudarc_types/world.rs"]
mod world;

use cudarc::driver::sys::CUstreamCaptureMode;
use cudarc::driver::{CudaContext, CudaStream};
use judge::{
    Counts, Highest, PERIOD, Windows, first_tenth, grown_or_rising, rounds, rounds_requested, runs_away,
};
use millpond::cuda::Cuda;
use millpond::driver::{Host, HostKind};
use millpond::{Allocator, Config, PinnedArray, Stream};
use millpond_testkit::counting::{self, Account};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config as Proptest, RngAlgorithm, TestRng, TestRunner};
use remote::{Fake, When};
use rig::{
    Adopted, Ours, Rig, StoresError, TestStream, Unknown, Words, array_of_sevens, iota, launch_iota, read,
    rig_on, test_stream,
};
use std::fmt::Write;
use std::sync::Arc;
use world::{ARRAYS, Call, HOSTS, World, all_calls, calls, relaxed};

#[global_allocator]
static COUNTED: counting::Counting = counting::Counting;

/// Elements of an array: 1 KiB of `u32`. What is kept does not hang on how long arrays are.
const WORDS: usize = 1 << 8;
const BYTES: u64 = 4 << 8;

/// What a program runs on.
struct Bench {
    gpu: Allocator<Cuda>,
    /// Other values for the context of `rig.ctx`.
    others: [Arc<CudaContext>; 2],
    account: Account,
    rounds: u64,
    /// Rounds between two synchronisations.
    period: u64,
    /// Last, so that a test that failed has let go of all else when the next one may have the driver.
    rig: Rig,
}

/// A program's round, given its number.
type Round<'a> = Box<dyn FnMut(u64) + 'a>;

impl Bench {
    fn home(&self) -> Stream<Cuda> {
        self.gpu.stream().expect("a stream")
    }
    fn zeros(&self, on: &Stream<Cuda>) -> Words {
        self.gpu.zeros(WORDS, on).expect("an array")
    }
    fn pinned(&self) -> PinnedArray<u32, Cuda> {
        self.gpu.pinned_zeros(WORDS).expect("pinned")
    }
    /// A stream of every kind that cudarc can be given: two of the other value, which are unknown like the third.
    fn streams(&self) -> Vec<TestStream> {
        let (rig, other) = (&self.rig, &self.others[0]);
        let mut all: Vec<_> =
            [Ours, Adopted, Unknown].map(|origin| test_stream(rig, &self.gpu, origin)).into();
        let unknown = [
            rig.ctx.default_stream(),
            rig.ctx.per_thread_stream(),
            other.default_stream(),
            other.new_stream().expect("a stream"),
        ];
        all.extend(unknown.map(|theirs| TestStream { theirs, ours: None }));
        all
    }
}

// The loop.

/// What the driver was called to make, and to take back.
const MADE: [(&str, &[&str], &[&str]); 7] = [
    ("driver events", &["cuEventCreate"], &["cuEventDestroy_v2"]),
    ("driver streams", &["cuStreamCreate", "cuStreamCreateWithPriority"], &["cuStreamDestroy_v2"]),
    ("contexts retained", &["cuDevicePrimaryCtxRetain"], &["cuDevicePrimaryCtxRelease_v2"]),
    ("modules", &["cuModuleLoadData", "cuModuleLoadDataEx"], &["cuModuleUnload"]),
    ("plain ranges", &["cuMemAlloc_v2"], &["cuMemFree_v2"]),
    ("handles", &["cuMemCreate"], &["cuMemRelease"]),
    (
        "pinned ranges",
        &["cuMemHostAlloc", "cuMemAllocHost_v2", "cuMemHostRegister_v2"],
        &["cuMemFreeHost", "cuMemHostUnregister"],
    ),
];

const COUNTERS: usize = 18 + MADE.len() + 2;

/// Reads every counter. What it needs itself is given back before it returns.
fn counts(bench: &Bench, fake: &Fake) -> Counts<COUNTERS> {
    let of_allocator = bench.gpu.bookkeeping().counts().map(|(name, value)| (name, value as u64));
    let of_driver = MADE.map(|(name, made, taken_back)| {
        let calls = |names: &[&str]| names.iter().map(|name| fake.calls(name)).sum::<u64>();
        (name, calls(made) - calls(taken_back))
    });
    let held = bench.account.library();
    let of_host = [("host blocks", held.blocks), ("host bytes", held.bytes)]
        .map(|(name, value)| (name, u64::try_from(value).unwrap_or(0)));
    let mut all = of_allocator.into_iter().chain(of_driver).chain(of_host);
    std::array::from_fn(|_| all.next().expect("so many"))
}

/// A program, on a bench.
type Program = for<'a> fn(&'a Bench) -> Round<'a>;

/// Of fewer rounds right code may be said to grow: the timelines of `arrays_of_one_round` are looked at once in some 300 rounds, those of
/// `launches_with_guards` in some 150, and the first tenth has to see each several times.
const FEWEST: u64 = 3000;

/// Runs a program at both paces, each on a device of its own.
fn soak(name: &str, program: Program) {
    assert!(rounds() >= FEWEST, "{} rounds show nothing: MILLPOND_SOAK_ROUNDS from {FEWEST} on", rounds());
    let mut found = String::new();
    for when in [When::Earliest, When::Latest] {
        let Some(grew) = try_soak(&format!("{name}, device {when:?}"), program, when, rounds()) else {
            return;
        };
        if !grew.is_empty() {
            let _ = write!(found, "\n  device {when:?}:{grew}");
        }
    }
    assert!(found.is_empty(), "{name}, {} rounds:{found}", rounds());
}

/// What grew, at one pace, in words; nothing where there is no stand-in.
fn try_soak(name: &str, program: Program, when: When, rounds: u64) -> Option<String> {
    on_a_bench(when, rounds, PERIOD, |bench| watch(name, bench, program, |_| ()))
}

/// What it says of a bench of its own; where that is nothing, nothing may be left at the end, which says less than what grew.
fn on_a_bench(when: When, rounds: u64, period: u64, judge: impl FnOnce(&Bench) -> String) -> Option<String> {
    let rig = rig_on(when)?;
    if rig.fake.is_none() {
        remote::not_built();
        return None;
    }
    let account = Account::open();
    Some(account.scope(|| {
        let gpu = Allocator::new(rig.cuda.clone(), Config::default()).expect("an allocator");
        let others = [(); 2].map(|()| CudaContext::new(0).expect("another value of the context"));
        let bench = Bench { gpu, others, account, rounds, period, rig };
        let grew = judge(&bench);
        let Bench { rig, gpu, others, .. } = bench;
        // Before the rig, which is what keeps other tests from the driver meanwhile.
        drop((gpu, others));
        if grew.is_empty() {
            rig.check_clean();
        }
        grew
    }))
}

/// What grew, in words; where rounds were requested, a line says how it went. `look` is shown the counters.
fn watch(name: &str, bench: &Bench, program: Program, mut look: impl FnMut(&Counts<COUNTERS>)) -> String {
    let fake = bench.rig.fake.as_ref().expect("asked before");
    let mut round = program(bench);
    let (rounds, tenth) = (bench.rounds, first_tenth(bench.rounds));
    let (mut early, mut late, mut parts) = (Highest(None), Highest(None), Windows::new());
    let (start, mut done) = (std::time::Instant::now(), 0);
    for i in 0..rounds {
        round(i);
        done = i + 1;
        if i % bench.period == bench.period - 1 {
            bench.rig.ctx.synchronize().expect("idle");
        }
        // Coprime to the period, so that each round of it is looked at.
        if i % 7 != 0 {
            continue;
        }
        let now = counts(bench, fake);
        look(&now);
        parts.add(i, rounds, &now);
        if i < tenth {
            early.add(&now);
        } else if i >= rounds - tenth {
            late.add(&now);
        } else if runs_away(early.0.as_ref().expect("the first tenth is over"), &now, PART) {
            late.add(&now);
            break;
        }
    }
    drop(round);
    let (first, last) = (early.0.expect("rounds"), late.0.expect("rounds"));
    let found = grown_or_rising((&first, &last), PART, &parts, rounds / bench.period);
    if rounds_requested().is_some() {
        let took = (done, start.elapsed().as_secs_f64());
        remote::say(&judge::line(name, took, &first, &last, &found));
    }
    found
}

/// One in so many may come and go: ranges are drained when there are twice those that the last drain left, and of that rise and fall the
/// first tenth sees a part, by chance (244 of 340 ranges, in 20,000 rounds; flat over 100,000).
const PART: u64 = 2;

/// A device that is as late as it may be has all markers pending since the last synchronise: 4 a round of this program. There are 252 of them
/// at most where it is synchronised each 50 rounds, 796 where each 100, 1,556 where each 200, and no more in 20,000 rounds than in 2,000:
/// twice those that a look left, as docs/kept.md says. The third look is the first one that leaves a whole period's, in round 300: a run of
/// 2,000 rounds ended in "markers: 476 -> 792" while it was compared with those of its first tenth.
#[test]
fn markers_are_twice_those_that_are_pending() {
    const ROUNDS: u64 = 2000;
    for period in [50, PERIOD, 2 * PERIOD] {
        let said = on_a_bench(When::Latest, ROUNDS, period, |bench| {
            let records = || bench.rig.fake.as_ref().expect("asked before").calls("cuEventRecord");
            let (before, mut most) = (records(), 0);
            let mut see = |now: &Counts<COUNTERS>| {
                most = now.iter().find(|(name, _)| *name == "markers").map_or(0, |(_, n)| most.max(*n));
            };
            let grew = watch("markers", bench, |b| of_seed(b, 2), &mut see);
            let pending = (records() - before).div_ceil(ROUNDS) * period;
            if most > (2 * pending).max(256) {
                return format!("{most} markers, of which {pending} may be pending");
            }
            if period >= PERIOD && most < pending + pending / 2 {
                return format!("{most} of {pending}: it shows less than that");
            }
            // Two of the longest periods are too few looks.
            if period > PERIOD { String::new() } else { grew }
        });
        assert!(said.as_ref().is_none_or(String::is_empty), "synchronised each {period} rounds: {said:?}");
    }
}

macro_rules! programs {
    ($($(#[$long:meta])? $name:ident: $program:expr;)*) => {$(
        $(#[$long])?
        #[test]
        fn $name() {
            soak(stringify!($name), $program);
        }
    )*};
}
programs! {
    arrays_that_stay_in_copies_on_every_stream: arrays_that_stay;
    arrays_of_one_round: freed_with_readers;
    launches_with_guards: |b| launches(b, false);
    launches_with_guards_that_are_forgotten: |b| launches(b, true);
    a_pooled_slice_that_stays: pooled_that_stays;
    pooled_slices_of_one_round: pooled_of_one_round;
    a_pooled_slice_that_meets_ever_new_streams: pooled_meets_streams;
    allocators_that_come_and_go: allocators_come_and_go;
    an_array_and_a_slice_of_another_device: two_devices;
    values_that_come_and_go: values_come_and_go;
    values_that_come_and_go_beside_a_pooled_slice_that_stays: values_beside_a_slice;
    pinned_arrays_that_stay: pinned_that_stay;
    pinned_arrays_of_one_round: pinned_of_one_round;
    streams_that_come_and_go: streams_come_and_go;
    threads_that_come_and_go: threads_come_and_go;
    threads_that_come_and_go_beside_synchronises: threads_come_and_go_beside_synchronises;
    an_array_that_is_only_read: only_read;
    an_array_that_is_only_read_beside_captures: only_read_beside_captures;
    a_pinned_array_that_is_only_read: pinned_only_read;
    the_small_program_of_gpu_costs: small_program;
    the_chain_of_gpu_costs: chain;
    the_readmes_program: readme;
    random_0: |b| random(b, 0);
    #[ignore = "takes long: run by .ci/soak"]
    random_1: |b| random(b, 1);
    #[ignore = "takes long: run by .ci/soak"]
    random_2: |b| random(b, 2);
    #[ignore = "takes long: run by .ci/soak"]
    random_3: |b| random(b, 3);
    random_all_0: |b| random_all(b, 0);
    #[ignore = "takes long: run by .ci/soak"]
    random_all_1: |b| random_all(b, 1);
    random_readers_0: |b| readers(b, 0);
    random_captures_0: |b| captures(b, 0);
    #[ignore = "takes long: run by .ci/soak"]
    random_captures_1: |b| captures(b, 1);
}

/// Borrowed on one stream after the other, and never freed.
fn arrays_that_stay(b: &Bench) -> Round<'_> {
    let (home, streams) = (b.home(), b.streams());
    let (mut x, mut y) = (array_of_sevens(&b.gpu, &home), b.zeros(&home));
    Box::new(move |i| {
        let on = |n: u64| &streams[(i + n) as usize % streams.len()].theirs;
        on(0).memcpy_dtod(&x, &mut y).expect("queued");
        on(1).memset_zeros(&mut x.slice_mut(..WORDS / 2)).expect("queued");
        on(2).memcpy_dtod(&y.slice(..), &mut x).expect("queued");
        if i % PERIOD == 50 {
            assert_eq!(read(on(3), &x), vec![7; WORDS], "round {i}");
        }
    })
}

/// `benches/gpu/gpu_costs.rs`, T1: allocate, copy in, kernel, copy out, free. Of 1 KiB in place of a MiB.
fn small_program(b: &Bench) -> Round<'_> {
    b.rig.cuda.load_kernels().expect("the built-in kernels");
    let pool = gpu_costs::Pool { home: b.home(), gpu: b.gpu.clone() };
    let host = b.rig.cuda.pin(BYTES, HostKind::Cached).expect("pinned");
    Box::new(move |_| {
        gpu_costs::program(&b.rig.cuda, Some(&pool), pool.home.native(), &host, 1).expect("the example");
    })
}

/// `benches/gpu/gpu_costs.rs`, T14: a chain of kernels, each on a block of its own that is freed behind it.
fn chain(b: &Bench) -> Round<'_> {
    b.rig.cuda.load_kernels().expect("the built-in kernels");
    let mut frees = gpu_costs::Nothing { home: b.home(), gpu: b.gpu.clone() };
    Box::new(move |_| {
        let home = frees.home.native().clone();
        gpu_costs::Frees::step(&mut frees, &b.rig.cuda, &home).expect("the example");
    })
}

/// README.md, "On a GPU".
fn readme(b: &Bench) -> Round<'_> {
    b.rig.cuda.load_kernels().expect("the built-in kernels");
    let (copy, work) = (b.home(), b.home());
    Box::new(move |_| readme_on_a_gpu::on_a_gpu(&b.gpu, &copy, &work).expect("the README's program"))
}

/// By streams that come and go.
fn only_read(b: &Bench) -> Round<'_> {
    let home = b.home();
    let (x, mut y) = (array_of_sevens(&b.gpu, &home), b.zeros(&home));
    Box::new(move |_| {
        let on = b.home();
        on.cudarc().expect("its alias").memcpy_dtod(&x, &mut y).expect("queued");
    })
}

/// The same where other code may capture, so that no use becomes one of all streams.
fn only_read_beside_captures(b: &Bench) -> Round<'_> {
    b.rig.cuda.expect_captures();
    only_read(b)
}

/// The same of pinned memory.
fn pinned_only_read(b: &Bench) -> Round<'_> {
    let home = b.home();
    let (up, mut x) = (b.pinned(), b.zeros(&home));
    Box::new(move |_| {
        let on = b.home();
        on.cudarc().expect("its alias").memcpy_htod(&up, &mut x).expect("queued");
    })
}

/// Freed with readers on three streams, one of which is the other value's.
fn freed_with_readers(b: &Bench) -> Round<'_> {
    let (home, streams) = (b.home(), b.streams());
    let mut into: Vec<_> = (0..3).map(|_| b.zeros(&home)).collect();
    Box::new(move |i| {
        let x = array_of_sevens(&b.gpu, &home);
        for (n, y) in into.iter_mut().enumerate() {
            streams[(i as usize + 2 * n) % streams.len()].theirs.memcpy_dtod(&x, y).expect("queued");
        }
    })
}

/// A forgotten guard's use is open until the array is freed, so what stays is used with guards that are dropped.
fn launches(b: &Bench, forget: bool) -> Round<'_> {
    let (home, kernel) = (b.home(), iota(&b.rig.ctx));
    let works = [Ours, Adopted].map(|origin| test_stream(&b.rig, &b.gpu, origin).ours.expect("known"));
    let mut stays = b.zeros(&home);
    Box::new(move |i| {
        let mut x = b.zeros(&home);
        launch_iota(&kernel, i as u32, &mut x, &works[0], forget);
        launch_iota(&kernel, 7, &mut stays, &works[i as usize % 2], false);
        let guard = x.read_on(&works[1]).expect("ordered");
        if forget {
            core::mem::forget(guard);
        }
    })
}

/// Used by streams of both values; cudarc keeps events of the slice's uses.
fn pooled_that_stays(b: &Bench) -> Round<'_> {
    let (home, streams) = (b.home(), b.streams());
    let (mut slice, x) =
        (b.gpu.cuda_slice::<u32>(WORDS, &home).expect("a slice"), array_of_sevens(&b.gpu, &home));
    let mut y = b.zeros(&home);
    Box::new(move |i| {
        let on = |n: u64| &streams[(i + n) as usize % streams.len()].theirs;
        on(0).memset_zeros(&mut slice.slice_mut(..WORDS / 2)).expect("queued");
        on(0).memcpy_dtod(&x, &mut slice.as_view_mut()).expect("queued");
        on(1).memcpy_dtod(&slice, &mut y).expect("queued");
        on(2).memcpy_dtod(&slice.slice(1..).slice(1..), &mut y.slice_mut(2..)).expect("queued");
        if i % PERIOD == 50 {
            assert_eq!(read(on(3), &y), vec![7; WORDS], "round {i}");
        }
    })
}

/// One stream of the other value after the other, all alive, so that no handle comes back: new ones to the last round. What is
/// remembered of them goes when the slice is written.
fn pooled_meets_streams(b: &Bench) -> Round<'_> {
    let (home, mut y) = (b.home(), b.zeros(&b.home()));
    let mut slice = b.gpu.cuda_slice::<u32>(WORDS, &home).expect("a slice");
    let streams: Vec<_> = (0..1000).map(|_| b.others[0].new_stream().expect("a stream")).collect();
    let each = (b.rounds / 1000).max(1);
    Box::new(move |i| {
        let theirs = &streams[(i / each) as usize % streams.len()];
        theirs.memcpy_dtod(&slice, &mut y).expect("queued");
        if i % 10 == 0 {
            theirs.memset_zeros(&mut slice.slice_mut(..1)).expect("queued");
        }
    })
}

/// Dropped with readers of both values under way.
fn pooled_of_one_round(b: &Bench) -> Round<'_> {
    let (home, streams, mut y) = (b.home(), b.streams(), b.zeros(&b.home()));
    Box::new(move |i| {
        let mut slice = b.gpu.cuda_slice::<u32>(WORDS, &home).expect("a slice");
        streams[i as usize % streams.len()].theirs.memset_zeros(&mut slice).expect("queued");
        for test_stream in &streams {
            test_stream.theirs.memcpy_dtod(&slice.as_view(), &mut y).expect("queued");
        }
    })
}

/// A value of cudarc's for the context, for one round, with no stream of its own but the default one.
fn passing(b: &Bench) -> Arc<CudaStream> {
    let value = CudaContext::new(b.rig.ctx.ordinal()).expect("another value of the context");
    value.default_stream()
}

fn values_come_and_go(b: &Bench) -> Round<'_> {
    let home = b.home();
    let (mut x, mut host) = (b.zeros(&home), b.pinned());
    Box::new(move |i| {
        let theirs = passing(b);
        let mut slice = b.gpu.cuda_slice::<u32>(WORDS, &home).expect("a slice");
        theirs.memset_zeros(&mut slice).expect("queued");
        theirs.memcpy_dtod(&slice, &mut x).expect("queued");
        if i % 10 == 0 {
            theirs.memcpy_dtoh(&x, &mut host).expect("fetched");
        }
    })
}

fn values_beside_a_slice(b: &Bench) -> Round<'_> {
    let (home, mut x) = (b.home(), b.zeros(&b.home()));
    let mut slice = b.gpu.cuda_slice::<u32>(WORDS, &home).expect("a slice");
    home.cudarc().expect("its alias").memset_zeros(&mut slice).expect("queued");
    Box::new(move |_| passing(b).memcpy_dtod(&slice, &mut x).expect("queued"))
}

/// Of one round, dropped before what was made of them, with readers of both values under way.
fn allocators_come_and_go(b: &Bench) -> Round<'_> {
    let (streams, mut y) = (b.streams(), b.zeros(&b.home()));
    Box::new(move |i| {
        let gpu = b.rig.allocator_for(2);
        let home = gpu.stream().expect("a stream");
        let (x, mut host) = (array_of_sevens(&gpu, &home), gpu.pinned_zeros::<u32>(WORDS).expect("pinned"));
        let mut slice = gpu.cuda_slice::<u32>(WORDS, &home).expect("a slice");
        if i % 2 == 0 {
            drop((home, gpu));
        }
        let on = |n: u64| &streams[(i + n) as usize % streams.len()].theirs;
        on(0).memcpy_dtod(&x, &mut slice).expect("queued");
        on(1).memcpy_dtod(&slice, &mut y).expect("queued");
        on(2).memcpy_dtoh(&x, &mut host).expect("fetched");
    })
}

/// An array, a pooled slice and a pinned array of the second device's, and a copy from one device to the other; what is refused, being of
/// the other device, leaves nothing.
fn two_devices(b: &Bench) -> Round<'_> {
    let (cuda, context) = (Cuda::new(1).expect("a second device"), CudaContext::new(1).expect("its context"));
    let gpu = Allocator::new(cuda, Config::default()).expect("an allocator");
    let (here, there) = (b.home(), gpu.stream().expect("a stream"));
    let (x, mut far) = (array_of_sevens(&b.gpu, &here), gpu.zeros::<u32>(WORDS, &there).expect("an array"));
    let mut host = gpu.pinned_zeros::<u32>(WORDS).expect("pinned");
    let mut slice = gpu.cuda_slice::<u32>(WORDS, &there).expect("a slice");
    Box::new(move |i| {
        far.copy_from_peer(&x, &here, &there).expect("queued");
        let theirs = context.new_stream().expect("a stream");
        theirs.memcpy_dtod(&far, &mut slice).expect("queued");
        context.default_stream().memcpy_dtoh(&slice, &mut host).expect("fetched");
        let of_one_round = gpu.zeros::<u32>(WORDS, &there).expect("an array");
        theirs.memcpy_dtod(&slice, &mut { of_one_round }).expect("queued");
        if i % PERIOD == 50 {
            context.synchronize().expect("idle");
            b.rig.ctx.bind_to_thread().expect("current");
        }
    })
}

/// In cudarc's copies, whose wait is left out now and then.
fn pinned_that_stay(b: &Bench) -> Round<'_> {
    let (home, streams) = (b.home(), b.streams());
    let (mut up, mut down, mut x) = (b.pinned(), b.pinned(), b.zeros(&home));
    Box::new(move |i| {
        let on = |n: u64| &streams[(i + n) as usize % streams.len()].theirs;
        up[0] = i as u32;
        copies(on(0), on(1), &up, &mut x, &mut down, i % 3 == 0);
        if i % 10 == 0 {
            assert_eq!(down[0], i as u32);
        }
    })
}

/// There and back; with a stored error cudarc waits for neither copy.
fn copies(
    there: &Arc<CudaStream>,
    back: &Arc<CudaStream>,
    up: &PinnedArray<u32, Cuda>,
    x: &mut Words,
    down: &mut PinnedArray<u32, Cuda>,
    stored_error: bool,
) {
    if !stored_error {
        there.memcpy_htod(up, x).expect("sent");
        back.memcpy_dtoh(x, down).expect("fetched");
        return;
    }
    there.memcpy_htod(up, &mut StoresError(&mut *x)).expect("queued");
    there.context().check_err().expect_err("cudarc did not wait");
    back.memcpy_dtoh(&StoresError(&*x), down).expect("queued");
    back.context().check_err().expect_err("cudarc did not wait");
}

/// Dropped under copies that were not waited for.
fn pinned_of_one_round(b: &Bench) -> Round<'_> {
    let (home, streams) = (b.home(), b.streams());
    let mut x = b.zeros(&home);
    Box::new(move |i| {
        let on = |n: u64| &streams[(i + n) as usize % streams.len()].theirs;
        copies(on(0), on(1), &b.pinned(), &mut x, &mut b.pinned(), i % 4 != 0);
    })
}

/// Of one round, of every kind, dropped with work on them and memory that they use freed before or behind.
fn streams_come_and_go(b: &Bench) -> Round<'_> {
    let home = b.home();
    Box::new(move |i| {
        for origin in [Ours, Adopted, Unknown] {
            let (x, test_stream) = (array_of_sevens(&b.gpu, &home), test_stream(&b.rig, &b.gpu, origin));
            let mut y = test_stream.ours.as_ref().map_or_else(|| b.zeros(&home), |ours| b.zeros(ours));
            test_stream.theirs.memcpy_dtod(&x, &mut y).expect("queued");
            if i % 2 == 0 {
                drop(test_stream);
            }
        }
        let theirs = b.others[0].new_stream().expect("a stream");
        let slice = b.gpu.cuda_slice::<u32>(WORDS, &home).expect("a slice");
        theirs.memset_zeros(&mut { slice }).expect("queued");
    })
}

/// A thousand threads, one after another, each on its default stream. Not more: the oracle has a clock for each.
fn threads_come_and_go(b: &Bench) -> Round<'_> {
    threads(b, |_| ())
}

/// The same with a synchronisation by the allocator behind each: nothing is left to be looked for among markers.
fn threads_come_and_go_beside_synchronises(b: &Bench) -> Round<'_> {
    threads(b, |gpu| gpu.synchronize().expect("no capture is open"))
}

fn threads(b: &Bench, behind: fn(&Allocator<Cuda>)) -> Round<'_> {
    let (home, every) = (b.home(), b.rounds / 1000);
    let mut y = b.zeros(&home);
    Box::new(move |i| {
        if i % every != 0 {
            return;
        }
        let x = array_of_sevens(&b.gpu, &home);
        let theirs = || {
            b.rig.ctx.per_thread_stream().memcpy_dtod(&x, &mut y).expect("queued");
            b.others[0].per_thread_stream().memcpy_dtod(&x, &mut y).expect("queued");
            drop(x);
        };
        std::thread::scope(|s| s.spawn(|| b.account.scope(theirs)).join().expect("no panic"));
        behind(&b.gpu);
    })
}

/// Calls of a round: with all 40 that may be drawn, four programs take as long as all others.
const MOST: usize = 8;

/// The generator of `tests/cudarc_types/random.rs`: what it draws, every round again.
fn random(b: &Bench, seed: u64) -> Round<'_> {
    of_seed(b, first_seed() + seed)
}

fn first_seed() -> u64 {
    std::env::var("MILLPOND_SOAK_SEED").map_or(0, |n| n.parse().expect("MILLPOND_SOAK_SEED is a number"))
}

fn of_seed(b: &Bench, seed: u64) -> Round<'_> {
    let mut calls = drawn(seed);
    calls.truncate(MOST);
    repeated(b, calls)
}

/// With kernels, and with allocators, values and streams that end: an allocator and a value in each round.
fn random_all(b: &Bench, seed: u64) -> Round<'_> {
    let mut calls = of_seed_drawn(&proptest::collection::vec(all_calls(), 40), first_seed() + seed);
    // Errors are kept, so that nothing may be left in the end; a forgotten guard has its program by name; and a crowd takes as long as all others.
    calls.retain(|call| {
        !matches!(call, Call::Far { .. } | Call::Launch { forget: true, .. } | Call::Crowd { .. })
    });
    calls.truncate(MOST);
    calls.extend([Call::Remake, Call::Value { which: seed as usize % 2 }]);
    repeated(b, calls)
}

/// The same where captures are expected, so that no use becomes one of all streams, and one array is only ever read, on two streams of each round.
/// On streams without references nothing is written, and no pooled slice dropped: no call could mark them there.
fn readers(b: &Bench, seed: u64) -> Round<'_> {
    const LAST: usize = ARRAYS - 1;
    b.rig.cuda.expect_captures();
    let mut calls = drawn(first_seed() + seed);
    calls.retain_mut(|call| match *call {
        Call::Send { x, .. }
        | Call::Copy { x, .. }
        | Call::Zero { x, .. }
        | Call::Fill { x, .. }
        | Call::Renew { x }
        | Call::Part { x, .. } => x != LAST && is_held(call),
        _ => is_held(call),
    });
    calls.truncate(MOST / 2);
    calls.extend([0, 1].map(|on| Call::End { on }));
    calls.extend([Call::Read { x: LAST, on: 0 }, Call::Copy { x: 0, on: 1 }]);
    repeated(b, calls)
}

/// A capture that begins and ends in each round, on a stream that cudarc is given or on one that arrays are made on: what names it meanwhile is
/// refused, and the rest goes on.
fn captures(b: &Bench, seed: u64) -> Round<'_> {
    b.rig.cuda.expect_captures();
    let seed = first_seed() + seed;
    let mut calls = drawn(seed);
    calls.retain_mut(|call| {
        if let Call::Send { stored_error, .. } | Call::Fetch { stored_error, .. } = call {
            *stored_error = false;
        }
        is_held(call)
    });
    calls.truncate(MOST);
    calls.insert(calls.len() / 3, Call::Capture { on: 1, home: seed % 2 == 1 });
    calls.push(Call::Graph);
    // For the rest of this thread, which runs this test alone.
    relaxed(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED);
    repeated(b, calls)
}

/// The call on streams with references; false of pooled slices.
fn is_held(call: &mut Call) -> bool {
    match call {
        Call::Send { on, .. }
        | Call::Fetch { on, .. }
        | Call::Copy { on, .. }
        | Call::Zero { on, .. }
        | Call::Read { on, .. }
        | Call::Part { on, .. }
        | Call::End { on } => *on %= 2,
        Call::Pool { .. } | Call::FromPool { .. } | Call::ToPool { .. } => return false,
        _ => {}
    }
    true
}

fn drawn(seed: u64) -> Vec<Call> {
    of_seed_drawn(&calls(), seed)
}

fn of_seed_drawn<S: Strategy>(calls: &S, seed: u64) -> S::Value {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let drawn = calls.new_tree(&mut TestRunner::new_with_rng(Proptest::default(), rng));
    drawn.expect("a program").current()
}

/// These calls, every round again.
fn repeated(b: &Bench, mut calls: Vec<Call>) -> Round<'_> {
    calls.extend((0..HOSTS).map(|host| Call::Write { host, value: 1 }));
    let mut world = World::new(&b.rig, &b.gpu, &b.others);
    Box::new(move |_| calls.iter().for_each(|&call| world.make(call)))
}

/// Planted leaks are found by programs that have a name, and three by random ones, on a device that runs at once, in fewer rounds than an ordinary run's, in which the same programs pass with
/// nothing planted. `.ci/mutants` builds and runs this, and it prints the table of docs/mutants.md.
#[cfg(millpond_mutants)]
#[test]
fn every_leak_of_cudarcs_calls_is_found() {
    use millpond::mutant::{self, Bug};
    use std::io::Write as _;

    const ROUNDS: u64 = 2000;
    const FINDERS: &[(Bug, &str, Program)] = &[
        (Bug::LeakUnlooked, "a_pooled_slice_that_stays", pooled_that_stays),
        (Bug::LeakUnfiled, "arrays_of_one_round", freed_with_readers),
        (Bug::FlightNeverCrowded, "arrays_of_one_round", freed_with_readers),
        (Bug::SweepNever, "streams_that_come_and_go", streams_come_and_go),
        (Bug::LeakUnlooked, "random_1", |b| random(b, 1)),
        (Bug::FlightNeverCrowded, "random_0", |b| random(b, 0)),
        (Bug::UsesNeverCrowded, "random_readers_0", |b| readers(b, 0)),
    ];
    let design = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/mutants.md"))
        .expect("docs/mutants.md");
    let grew = |bug: Option<Bug>, program: Program| {
        let _planted = mutant::plant(bug);
        try_soak("planted", program, When::Earliest, ROUNDS).expect("the stand-in driver is built")
    };
    let (mut table, mut missed) = (String::new(), Vec::new());
    for &(bug, name, program) in FINDERS {
        let found = grew(Some(bug), program);
        let Some(first) = found.lines().nth(1) else {
            missed.push(format!("{bug} ({}) passes {name}", bug.what()));
            continue;
        };
        let right = grew(None, program);
        if !right.is_empty() {
            missed.push(format!("right code fails {name}: {right}"));
        }
        let what = first.trim().split(':').next().unwrap_or_default();
        let row = format!("| {bug} | {} | `{name}`: {what} |", bug.what());
        if !design.contains(&row) {
            missed.push(format!("docs/mutants.md does not say this of {bug}"));
        }
        let _ = writeln!(table, "{row}");
    }
    // Past the test harness, which hides what a passing test prints.
    let _ = writeln!(
        std::io::stderr(),
        "\n| bug | what is wrong | found by, and what grows |\n|---|---|---|\n{table}"
    );
    assert!(missed.is_empty(), "{} misses:\n{}", missed.len(), missed.join("\n"));
}
