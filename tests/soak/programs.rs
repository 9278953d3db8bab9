//! Steady programs with a name: the README's and the examples, by the very code; shapes of the requirements of tests/architecture/requirements.rs
//! inside one allocator that stays (`requirement_tests` has their tests' own code); and shapes that once grew for ever.

#![allow(
    clippy::many_single_char_names,
    reason = "b is the bench; s, t, u streams; x, y arrays and blocks; i the round"
)]

use super::bounds::{
    self, holds_begin_and_end, holds_begin_and_end as holds_of_segments_begin_and_end, idle_memory_goes_back,
    members_of_a_group_come_and_go, watermarks_are_kept,
};
use super::readme;
use super::run::{Bench, Pace, Steady, soak};
use super::windows::{
    self, windows_of_streams_that_come_and_go, windows_that_are_thinned, windows_whose_handles_move,
    windows_whose_handles_move as windows_whose_handles_move_at_the_limit,
};
use millpond::allocator::StagingPieces;
use millpond::array::ExternalMemory;
use millpond::driver::{Kernel, ReferenceMemory, StreamOptions};
use millpond::kernel::Argument;
use millpond::transfer::{Upload, Uploads};
use millpond::units::{KIB, MIB};
use millpond::{
    Allocation, Allocator, Config, DeviceArray, Event, Growth, Limit, PinnedArray, Policy, Reuse, Stream,
    kernel,
};
use millpond_sim::{Launch, SimStream};
use millpond_testkit::counted::{Device, Inside};
use std::collections::VecDeque;
use std::sync::Arc;

/// Each program at each pace, and the list of them.
macro_rules! programs {
    ($($(#[$long:meta])? $name:ident: $config:expr;)*) => {
        pub const NAMES: &[&str] = &[$(stringify!($name)),*];
        /// Runs one of them by its name.
        pub fn run(name: &str, run: super::run::Run) -> super::run::Soaked {
            match name {
                $(stringify!($name) => super::run::soaked(run, $config, $name),)*
                _ => panic!("no program is called {name}"),
            }
        }
        $(
        mod $name {
            use super::*;
            $(#[$long])?
            #[test]
            fn at_once() {
                soak(stringify!($name), Pace::AtOnce, $config, super::$name);
            }
            #[ignore = "takes long: run by .ci/soak"]
            #[test]
            fn behind() {
                soak(stringify!($name), Pace::Behind, $config, super::$name);
            }
            $(#[$long])?
            #[test]
            fn late() {
                soak(stringify!($name), Pace::Late, $config, super::$name);
            }
            #[ignore = "takes long: run by .ci/soak"]
            #[test]
            fn by_a_coin() {
                soak(stringify!($name), Pace::Coin(7), $config, super::$name);
            }
        }
        )*
    };
}

programs! {
    readme_plain: Config::default();
    first_steps: Config::default();
    two_streams: Config::default();
    results_looked_at_later: Config::default();
    share_between_streams: crate::share_between_streams::room_for_six(1024);
    waits_between_streams: Config::default();
    waits_between_streams_deterministically: Config::default().deterministic(true);
    a_pipeline_of_kernels: Config::default();
    copies_inside_the_device: Config::default();
    an_array_that_is_only_read: Config::default();
    streams_come_and_go: Config::default();
    streams_come_and_go_deterministically: Config::default().deterministic(true);
    users_come_and_go: Config::default();
    users_of_a_block_that_stays: Config::default();
    users_of_a_block_that_stays_deterministically: Config::default().deterministic(true);
    users_of_an_array_that_stays: Config::default();
    users_of_a_pinned_block_that_stays: Config::default();
    users_that_end_unannounced: Config::default();
    users_on_threads_that_end: Config::default();
    dropped_tokens: Config::default();
    dropped_tokens_deterministically: Config::default().deterministic(true);
    waited_tokens: Config::default();
    two_cross_stream_users: Config::default();
    two_cross_stream_users_deterministically: Config::default().deterministic(true);
    two_cross_stream_users_without_waits: Config::default().deterministic(true);
    two_cross_stream_users_and_a_small_footprint: Config::default().policy(Policy::Footprint);
    two_cross_stream_users_and_no_reuse: Config::default().reuse(Reuse::Never);
    external_memory: Config::default();
    external_memory_deterministically: Config::default().deterministic(true);
    external_memory_that_another_stream_uses: Config::default();
    external_memory_that_another_stream_uses_deterministically: Config::default().deterministic(true);
    external_memory_in_operations: Config::default();
    a_free_on_another_stream: Config::default();
    freed_by_unknown_streams: Config::default();
    events_recorded_and_dropped: Config::default();
    guards: Config::default();
    forgotten_guards: Config::default();
    pinned_blocks: Config::default();
    pageable_copies: Config::default();
    pageable_copies_in_pieces: Config::default().staging_threads(0).staging_pieces(StagingPieces::of(400, 1500));
    pageable_copies_in_pieces_deterministically: Config::default().staging_threads(0).staging_pieces(StagingPieces::of(400, 1500)).deterministic(true);
    names: Config::default();
    batches_of_growing_size: Config::default();
    scrubbed: Config::default().scrub(true);
    freed_by_another_thread: Config::default();
    adopted_streams: Config::default();
    bursts: Config::default();
    windows_that_are_thinned: windows::config(Policy::Footprint);
    windows_whose_handles_move: windows::at_a_limit(Policy::Footprint);
    windows_whose_handles_move_at_the_limit: windows::at_a_limit(Policy::Latency);
    windows_of_streams_that_come_and_go: windows::config(Policy::Latency);
    holds_begin_and_end: windows::config(Policy::Footprint);
    holds_of_segments_begin_and_end: Config::default();
    members_of_a_group_come_and_go: windows::config(Policy::Footprint);
    idle_memory_goes_back: windows::config(Policy::Footprint);
    watermarks_are_kept: bounds::marked();
    #[ignore = "takes long: run by .ci/soak"]
    a_hundred_streams: a_hundred(Policy::Latency);
    #[ignore = "takes long: run by .ci/soak"]
    a_hundred_streams_and_a_small_footprint: a_hundred(Policy::Footprint);
}

/// Room for what is at work on a few of a hundred streams: memory goes from one to the next, behind a wait for whichever had it. With waits between
/// known streams alone the host waits in their place, and each of its waits marks every stream.
fn a_hundred(policy: Policy) -> Config {
    let config = Config::default().limit(Limit::Bytes(65 * MIB)).growth(Growth::Exact).policy(policy);
    config.reuse(Reuse::WithWaits)
}

pub fn stream(gpu: &Allocator<Device>) -> Stream<Device> {
    gpu.stream().expect("a stream")
}

pub fn zeros(gpu: &Allocator<Device>, n: usize, on: &Stream<Device>) -> DeviceArray<f32, Device> {
    gpu.zeros(n, on).expect("an array")
}

pub fn block(gpu: &Allocator<Device>, bytes: u64, on: &Stream<Device>) -> Allocation<Device> {
    gpu.alloc(bytes, on).expect("memory")
}

pub fn synchronise(stream: &Stream<Device>) -> Box<dyn FnMut()> {
    let stream = stream.clone();
    Box::new(move || stream.synchronize().expect("waited"))
}

/// The program with a wait for all streams: a deterministic allocator asks no event, and learns of no stream that the program
/// never waits for.
fn all_synchronised(b: &Bench, program: Steady) -> Steady {
    let gpu = b.gpu.clone();
    Steady { synchronise: Box::new(move || gpu.synchronize().expect("waited")), ..program }
}

/// Work of the program's own on a block.
pub fn writes(device: &Device, on: &Inside<SimStream>, block: &Allocation<Device>) {
    device.launch(on, || Launch::new("write").writes(block.address(), block.len()));
}

pub fn reads(device: &Device, on: &Inside<SimStream>, block: &Allocation<Device>) {
    device.launch(on, || Launch::new("read").reads(block.address(), block.len()));
}

/// As many streams as there are places, and what waits for the first of them.
pub fn streams<const N: usize>(b: &Bench) -> ([Stream<Device>; N], Box<dyn FnMut()>) {
    let streams: [Stream<Device>; N] = std::array::from_fn(|_| stream(&b.gpu));
    let first = synchronise(&streams[0]);
    (streams, first)
}

/// The README's program for the simulated device; `complete` compares it with what stands there.
fn readme_plain(b: &Bench) -> Steady {
    let (device, gpu, ([copy, work], synchronise)) = (b.device.clone(), b.gpu.clone(), streams(b));
    let round = Box::new(move |_| {
        readme::plain(&readme::Launches(&device), &gpu, &copy, &work).expect("the README's program");
    });
    Steady { round, synchronise, asked: 2 }
}

/// The example's own kernel computes a million elements; this one stands for it.
static OWN: Kernel = Kernel::new(c"own", c"").reference(|_: &mut dyn ReferenceMemory, _: &[Argument]| {});

/// `examples/first_steps.rs`.
fn first_steps(b: &Bench) -> Steady {
    let (gpu, ([copy, work], synchronise)) = (b.gpu.clone(), streams(b));
    let round = Box::new(move |_| {
        drop(super::first_steps::steps(&gpu, [&copy, &work], &OWN, 256).expect("the example"));
    });
    Steady { round, synchronise, asked: 2 }
}

/// `examples/two_streams.rs`, eight batches a round.
fn two_streams(b: &Bench) -> Steady {
    let (gpu, ([copy, work], synchronise)) = (b.gpu.clone(), streams(b));
    let round = Box::new(move |_| {
        drop(super::two_streams::sums(&gpu, [&copy, &work], 256).expect("the example"));
    });
    Steady { round, synchronise, asked: 16 }
}

/// `examples/share_between_streams.rs`, in room for six arrays.
fn share_between_streams(b: &Bench) -> Steady {
    let (gpu, ([writer, left, right], synchronise)) = (b.gpu.clone(), streams(b));
    let round = Box::new(move |_| {
        super::share_between_streams::shared(&gpu, [&writer, &left, &right], 1024).expect("the example");
    });
    Steady { round, synchronise, asked: 3 }
}

/// As `examples/two_streams.rs`, without an end: two buffers travel by turns, results are looked at eight rounds later.
fn results_looked_at_later(b: &Bench) -> Steady {
    let gpu = b.gpu.clone();
    let (copy, work) = (stream(&gpu), stream(&gpu));
    let synchronise = synchronise(&copy);
    let mut buffers: Vec<_> = (0..2).map(|_| gpu.pinned_uninit::<f32>(1 << 12).expect("pinned")).collect();
    let mut travelling: VecDeque<Upload<PinnedArray<f32, Device>, Device>> = VecDeque::new();
    let mut results = VecDeque::new();
    let round = Box::new(move |_| {
        let buffer = buffers
            .pop()
            .unwrap_or_else(|| travelling.pop_front().expect("two travel").wait().expect("done"));
        let (x, sent) = gpu.array_from_pinned(buffer, &copy).expect("queued");
        travelling.push_back(sent);
        let mut sum = gpu.uninit::<f32>(1, &work).expect("memory");
        kernel::reduce_sum(&x, &mut sum, &work).expect("queued");
        results.push_back(sum.to_pinned(&work).expect("queued"));
        if results.len() > 8 {
            drop(results.pop_front().expect("nine").wait().expect("done"));
        }
    });
    Steady { round, synchronise, asked: 2 }
}

/// A bare wait between streams, and hits.
fn waits_between_streams(b: &Bench) -> Steady {
    let gpu = b.gpu.clone();
    let (s, t) = (stream(&gpu), stream(&gpu));
    let synchronise = synchronise(&t);
    let round = Box::new(move |_| {
        t.wait_stream(&s).expect("ordered");
        drop(block(&gpu, 4 * KIB, &t));
    });
    Steady { round, synchronise, asked: 2 }
}

/// No event is queried, and the host waits for nothing.
fn waits_between_streams_deterministically(b: &Bench) -> Steady {
    Steady { synchronise: Box::new(|| {}), ..waits_between_streams(b) }
}

/// Kernels by turns on two streams, of which the program waits for one.
fn a_pipeline_of_kernels(b: &Bench) -> Steady {
    let gpu = b.gpu.clone();
    let (s, t) = (stream(&gpu), stream(&gpu));
    let (mut x, mut y) = (zeros(&gpu, 256, &s), zeros(&gpu, 256, &t));
    let synchronise = synchronise(&s);
    let round = Box::new(move |_| {
        kernel::saxpy(2.0, &x, &mut y, &t).expect("queued");
        kernel::saxpy(2.0, &y, &mut x, &s).expect("queued");
        drop(zeros(&gpu, 1024, &s));
    });
    Steady { round, synchronise, asked: 0 }
}

/// Copies between arrays of three streams, by turns.
fn copies_inside_the_device(b: &Bench) -> Steady {
    let streams: Vec<_> = (0..3).map(|_| stream(&b.gpu)).collect();
    let mut arrays: Vec<_> = streams.iter().map(|s| zeros(&b.gpu, 256, s)).collect();
    let synchronise = synchronise(&streams[1]);
    let round = Box::new(move |i| {
        let from = i as usize % 3;
        let x = arrays.remove(from);
        arrays[0].copy_from_device(&x, &streams[(from + 1) % 3]).expect("queued");
        arrays.insert(from, x);
    });
    Steady { round, synchronise, asked: 0 }
}

/// An input that is never written again, read by eight streams and by one that is new in each round.
fn an_array_that_is_only_read(b: &Bench) -> Steady {
    let gpu = b.gpu.clone();
    let home = stream(&gpu);
    let x = zeros(&gpu, 256, &home);
    let readers: Vec<_> = (0..8).map(|_| stream(&gpu)).collect();
    let mut sums: Vec<_> = readers.iter().map(|s| zeros(&gpu, 1, s)).collect();
    let synchronise = synchronise(&readers[0]);
    let round = Box::new(move |i| {
        let which = i as usize % readers.len();
        kernel::reduce_sum(&x, &mut sums[which], &readers[which]).expect("queued");
        let fresh = stream(&gpu);
        let mut sum = zeros(&gpu, 1, &fresh);
        kernel::reduce_sum(&x, &mut sum, &fresh).expect("queued");
    });
    Steady { round, synchronise, asked: 1 }
}

/// A stream for each round, which reads an array of another's.
fn streams_come_and_go(b: &Bench) -> Steady {
    let gpu = b.gpu.clone();
    let home = stream(&gpu);
    let keep = zeros(&gpu, 256, &home);
    let synchronise = synchronise(&home);
    let round = Box::new(move |i| {
        let fresh = stream(&gpu);
        let mut x = zeros(&gpu, 256, &fresh);
        x.copy_from_device(&keep, &fresh).expect("queued");
        drop(x);
        if i % 3 == 0 {
            fresh.synchronize().expect("waited");
        }
    });
    Steady { round, synchronise, asked: 2 }
}

fn streams_come_and_go_deterministically(b: &Bench) -> Steady {
    all_synchronised(b, streams_come_and_go(b))
}

/// A stream for each round, which uses a block of another's that is freed behind it or before it ends.
fn users_come_and_go(b: &Bench) -> Steady {
    let (device, gpu) = (b.device.clone(), b.gpu.clone());
    let home = stream(&gpu);
    let synchronise = synchronise(&home);
    let round = Box::new(move |i| {
        let (x, fresh) = (block(&gpu, 4 * KIB, &home), stream(&gpu));
        fresh.wait_stream(&home).expect("ordered");
        x.record_use(&fresh).expect("recorded");
        reads(&device, fresh.native(), &x);
        if i % 2 == 0 {
            drop(fresh);
        }
        drop(x);
    });
    Steady { round, synchronise, asked: 2 }
}

/// A stream for each round, which is declared a user of what stays, reads it, and ends: weights that each request reads on a stream of its own.
fn users_of_what_stays<T: 'static>(
    b: &Bench,
    make: impl FnOnce(&Allocator<Device>, &Stream<Device>) -> T,
    uses: impl Fn(&T, &Stream<Device>) -> (millpond::units::Addr, u64) + 'static,
) -> Steady {
    let (device, gpu) = (b.device.clone(), b.gpu.clone());
    let home = stream(&gpu);
    let stays = make(&gpu, &home);
    let synchronise = synchronise(&home);
    let round = Box::new(move |_| {
        let fresh = stream(&gpu);
        fresh.wait_stream(&home).expect("ordered");
        let (at, bytes) = uses(&stays, &fresh);
        device.launch(fresh.native(), || Launch::new("read").reads(at, bytes));
    });
    Steady { round, synchronise, asked: 2 }
}

fn users_of_a_block_that_stays(b: &Bench) -> Steady {
    let uses = |x: &Allocation<Device>, on: &Stream<Device>| {
        x.record_use(on).expect("recorded");
        (x.address(), x.len())
    };
    users_of_what_stays(b, |gpu, home| block(gpu, 4 * KIB, home), uses)
}

fn users_of_a_block_that_stays_deterministically(b: &Bench) -> Steady {
    all_synchronised(b, users_of_a_block_that_stays(b))
}

fn users_of_an_array_that_stays(b: &Bench) -> Steady {
    let uses = |x: &DeviceArray<f32, Device>, on: &Stream<Device>| {
        x.record_use(on).expect("recorded");
        (x.address(), x.size_bytes())
    };
    users_of_what_stays(b, |gpu, home| zeros(gpu, 1024, home), uses)
}

fn users_of_a_pinned_block_that_stays(b: &Bench) -> Steady {
    let uses = |x: &millpond::PinnedAllocation<Device>, on: &Stream<Device>| {
        x.record_use(on).expect("recorded");
        (x.address(), x.len())
    };
    users_of_what_stays(b, |gpu, _| gpu.alloc_pinned(4 * KIB).expect("pinned"), uses)
}

/// The same with streams of other code, which ends each without notice: its handle is the next one's.
fn users_that_end_unannounced(b: &Bench) -> Steady {
    let (device, gpu) = (b.device.clone(), b.gpu.clone());
    let home = stream(&gpu);
    let x = block(&gpu, 4 * KIB, &home);
    let synchronise = synchronise(&home);
    let round = Box::new(move |_| {
        let theirs = device.wrap_stream(|sim| sim.stream().expect("a stream"));
        let unmanaged = gpu.adopt(device.wrap_stream(|sim| sim.unmanaged_stream(&theirs))).expect("adopted");
        unmanaged.wait_stream(&home).expect("ordered");
        x.record_use(&unmanaged).expect("recorded");
        reads(&device, &theirs, &x);
    });
    all_synchronised(b, Steady { round, synchronise, asked: 2 })
}

/// The same with the default streams of threads, which end.
fn users_on_threads_that_end(b: &Bench) -> Steady {
    let (device, gpu) = (b.device.clone(), b.gpu.clone());
    let home = stream(&gpu);
    let x = block(&gpu, 4 * KIB, &home);
    let synchronise = synchronise(&home);
    let round = Box::new(move |_| {
        let theirs = || {
            let own = gpu.adopt(device.wrap_stream(millpond_sim::Sim::per_thread_stream)).expect("adopted");
            own.wait_stream(&home).expect("ordered");
            x.record_use(&own).expect("recorded");
            reads(&device, own.native(), &x);
        };
        std::thread::scope(|threads| threads.spawn(theirs).join().expect("no panic"));
    });
    Steady { round, synchronise, asked: 2 }
}

/// Copies from a shared source, whose tokens are dropped.
fn dropped_tokens(b: &Bench) -> Steady {
    let gpu = b.gpu.clone();
    let (s, t) = (stream(&gpu), stream(&gpu));
    let mut x = zeros(&gpu, 256, &s);
    let source = Arc::new(gpu.pinned_from_fn(256, |i| i as f32).expect("pinned"));
    let synchronise = synchronise(&s);
    let round = Box::new(move |i| {
        drop(x.copy_from(Arc::clone(&source), &s).expect("queued"));
        let own = gpu.pinned_from_fn(64, |i| i as f32).expect("pinned");
        drop(gpu.array_from_pinned(own, if i % 2 == 0 { &s } else { &t }).expect("queued"));
        drop(x.to_pinned(&s).expect("queued"));
    });
    Steady { round, synchronise, asked: 0 }
}

fn dropped_tokens_deterministically(b: &Bench) -> Steady {
    all_synchronised(b, dropped_tokens(b))
}

/// Uploads that are waited for, a few rounds later.
fn waited_tokens(b: &Bench) -> Steady {
    let gpu = b.gpu.clone();
    let s = stream(&gpu);
    let mut x = zeros(&gpu, 256, &s);
    let mut sent = VecDeque::new();
    let synchronise = synchronise(&s);
    let round = Box::new(move |_| {
        let host = gpu.pinned_from_fn(256, |i| i as f32).expect("pinned");
        sent.push_back(x.copy_from(host, &s).expect("queued"));
        if sent.len() > 3 {
            drop(sent.pop_front().expect("four").wait().expect("done"));
        }
    });
    Steady { round, synchronise, asked: 1 }
}

/// One block at a time, used by two other streams.
fn two_cross_stream_users(b: &Bench) -> Steady {
    let (device, gpu) = (b.device.clone(), b.gpu.clone());
    let (s, t, u) = (stream(&gpu), stream(&gpu), stream(&gpu));
    let synchronise = synchronise(&s);
    let round = Box::new(move |_| {
        let x = block(&gpu, 4 * KIB, &s);
        for user in [&t, &u] {
            user.wait_stream(&s).expect("ordered");
            x.record_use(user).expect("recorded");
            reads(&device, user.native(), &x);
        }
    });
    Steady { round, synchronise, asked: 4 }
}

fn two_cross_stream_users_deterministically(b: &Bench) -> Steady {
    all_synchronised(b, two_cross_stream_users(b))
}
/// No wait of the host ever teaches the allocator anything: the device's have to do.
fn two_cross_stream_users_without_waits(b: &Bench) -> Steady {
    Steady { synchronise: Box::new(|| ()), ..two_cross_stream_users(b) }
}
fn two_cross_stream_users_and_a_small_footprint(b: &Bench) -> Steady {
    two_cross_stream_users(b)
}
fn two_cross_stream_users_and_no_reuse(b: &Bench) -> Steady {
    two_cross_stream_users(b)
}

/// An array in memory that other code has: a block here, so that whatever keeps its owner shows in every count.
///
/// # Errors
/// The allocation's and [`DeviceArray::from_external`]'s: a stream that captures.
#[allow(unsafe_code, reason = "a block that is the owner's alone")]
pub fn brought_in(
    gpu: &Allocator<Device>,
    on: &Stream<Device>,
) -> Result<DeviceArray<f32, Device>, millpond::Error> {
    let owner = gpu.alloc(4 * KIB, on)?;
    let memory = ExternalMemory { address: owner.address(), bytes: owner.len(), device: gpu.device() };
    // SAFETY: the block lives as long as its owner, and nothing else uses it.
    unsafe { DeviceArray::from_external(memory, 1024, owner, on) }.map_err(|(_, e)| e)
}

/// Nothing is queued that the allocator would see, and blocks are hits: the program's own waits let the owners go.
fn external_memory(b: &Bench) -> Steady {
    let gpu = b.gpu.clone();
    let s = stream(&gpu);
    let synchronise = synchronise(&s);
    let round = Box::new(move |_| {
        drop(brought_in(&gpu, &s).expect("memory"));
        drop(block(&gpu, 4 * KIB, &s));
    });
    Steady { round, synchronise, asked: 1 }
}
fn external_memory_deterministically(b: &Bench) -> Steady {
    external_memory(b)
}

/// The same with a use that is declared elsewhere: one stream is waited for, and an event of the other.
fn external_memory_that_another_stream_uses(b: &Bench) -> Steady {
    let (device, gpu) = (b.device.clone(), b.gpu.clone());
    let (s, t) = (stream(&gpu), stream(&gpu));
    let (first, second) = (s.clone(), t.clone());
    let synchronise = Box::new(move || {
        first.synchronize().expect("waited");
        second.record().expect("recorded").synchronize(std::time::Duration::MAX).expect("waited");
    });
    let round = Box::new(move |i| {
        let x = brought_in(&gpu, &s).expect("memory");
        t.wait_stream(&s).expect("ordered");
        x.record_use(&t).expect("recorded");
        device.launch(t.native(), || Launch::new("read").reads(x.address(), 4 * KIB));
        drop(x);
        if i % 2 == 0 {
            drop(block(&gpu, 4 * KIB, &t));
        }
    });
    Steady { round, synchronise, asked: 4 }
}
fn external_memory_that_another_stream_uses_deterministically(b: &Bench) -> Steady {
    external_memory_that_another_stream_uses(b)
}

/// The same with operations on both streams.
fn external_memory_in_operations(b: &Bench) -> Steady {
    let gpu = b.gpu.clone();
    let (s, t) = (stream(&gpu), stream(&gpu));
    let synchronise = synchronise(&s);
    let round = Box::new(move |_| {
        let mut x = brought_in(&gpu, &s).expect("memory");
        kernel::fill(&mut x, 1.0, &t).expect("queued");
        kernel::fill(&mut x, 2.0, &s).expect("queued");
    });
    Steady { round, synchronise, asked: 1 }
}

/// T14 and its like: each block goes back behind the last stream that used it.
fn a_free_on_another_stream(b: &Bench) -> Steady {
    let (device, gpu) = (b.device.clone(), b.gpu.clone());
    let (s, t) = (stream(&gpu), stream(&gpu));
    let synchronise = synchronise(&t);
    let round = Box::new(move |i| {
        let x = block(&gpu, (1 + i % 5) * 64 * KIB, &s);
        writes(&device, s.native(), &x);
        let event = s.record().expect("recorded");
        t.wait(&event).expect("ordered");
        reads(&device, t.native(), &x);
        if i % 2 == 0 {
            x.free_on(&t).expect("freed");
        } else {
            x.record_use_until(&t.record().expect("recorded")).expect("recorded");
        }
    });
    Steady { round, synchronise, asked: 3 }
}

/// Who used it is not known: everything in the context is waited for.
fn freed_by_unknown_streams(b: &Bench) -> Steady {
    let (device, gpu) = (b.device.clone(), b.gpu.clone());
    let (s, t) = (stream(&gpu), stream(&gpu));
    let synchronise = synchronise(&t);
    let round = Box::new(move |i| {
        let x = block(&gpu, 4 * KIB, &s);
        writes(&device, s.native(), &x);
        if i % 4 == 0 { x.free_unknown() } else { drop(x) }
    });
    Steady { round, synchronise, asked: 0 }
}

/// Events that the program records, keeps for a while, asks and drops.
fn events_recorded_and_dropped(b: &Bench) -> Steady {
    let (device, gpu) = (b.device.clone(), b.gpu.clone());
    let (s, t) = (stream(&gpu), stream(&gpu));
    let synchronise = synchronise(&t);
    let mut kept: VecDeque<Event<Device>> = VecDeque::new();
    let round = Box::new(move |i| {
        let x = block(&gpu, 4 * KIB, &s);
        writes(&device, s.native(), &x);
        kept.push_back(s.record().expect("recorded"));
        drop(t.record().expect("recorded"));
        if i % 3 == 0 {
            t.wait(&kept[0]).expect("ordered");
        }
        if kept.len() > 5 {
            let _ = kept.pop_front().expect("six").is_complete().expect("an answer");
        }
    });
    Steady { round, synchronise, asked: 4 }
}

/// Arrays in kernels that other code queues.
fn guards(b: &Bench) -> Steady {
    let (device, gpu) = (b.device.clone(), b.gpu.clone());
    let (s, t, u) = (stream(&gpu), stream(&gpu), stream(&gpu));
    let mut x = zeros(&gpu, 256, &s);
    let synchronise = synchronise(&u);
    let round = Box::new(move |i| {
        let bytes = x.size_bytes();
        for on in [&t, &u] {
            let guard = x.read_on(on).expect("ordered");
            device.launch(on.native(), || Launch::new("reads").reads(guard.address(), bytes));
        }
        let guard = x.write_on(if i % 2 == 0 { &s } else { &t }).expect("ordered");
        device.launch(guard.stream().native(), || Launch::new("writes").writes(guard.address(), bytes));
        // At home and elsewhere.
        if i % 15 == 0 {
            std::mem::forget(guard);
        }
    });
    Steady { round, synchronise, asked: 0 }
}

/// Of an array that is only read, on a stream that stays and on streams that come and go.
fn forgotten_guards(b: &Bench) -> Steady {
    let (device, gpu) = (b.device.clone(), b.gpu.clone());
    let (s, t, u) = (stream(&gpu), stream(&gpu), stream(&gpu));
    let x = zeros(&gpu, 256, &s);
    let synchronise = synchronise(&u);
    let round = Box::new(move |i| {
        let new = (i % 4 != 0).then(|| stream(&gpu));
        let guard = x.read_on(new.as_ref().unwrap_or(&t)).expect("ordered");
        let (at, bytes) = (guard.address(), x.size_bytes());
        device.launch(guard.stream().native(), || Launch::new("reads").reads(at, bytes));
        std::mem::forget(guard);
    });
    Steady { round, synchronise, asked: 0 }
}

/// H4, D1: pinned memory that streams use, and that comes back when they are done.
fn pinned_blocks(b: &Bench) -> Steady {
    let gpu = b.gpu.clone();
    let (s, t) = (stream(&gpu), stream(&gpu));
    let synchronise = synchronise(&t);
    let round = Box::new(move |i| {
        let x = gpu.alloc_pinned(8 * KIB).expect("pinned");
        x.record_use(&s).expect("recorded");
        if i % 2 == 0 {
            x.record_use(&t).expect("recorded");
        } else {
            x.record_use_until(&t.record().expect("recorded")).expect("recorded");
        }
        if i % 10 == 0 {
            x.free_unknown();
        }
    });
    Steady { round, synchronise, asked: 1 }
}

/// S2, S10: host data that is not pinned, through slots.
fn pageable_copies(b: &Bench) -> Steady {
    let gpu = b.gpu.clone();
    let (s, t) = (stream(&gpu), stream(&gpu));
    let mut x = zeros(&gpu, 1024, &s);
    let host = vec![1.0f32; 1024];
    let synchronise = synchronise(&s);
    let round = Box::new(move |i| {
        let on = if i % 2 == 0 { &s } else { &t };
        x.copy_from_slice(&host, on).expect("copied");
        drop(gpu.array_from_slice(&host[..64], &t).expect("copied"));
        if i % 4 == 0 {
            drop(x.to_vec(&t).expect("copied"));
        }
    });
    Steady { round, synchronise, asked: 1 }
}

/// The same through more pieces than slots, both ways, and many of them packed. By the calling thread alone: staging threads give their own memory back a little
/// after the allocator's end, and `tests/arrays/staged.rs` has loops with them.
fn pageable_copies_in_pieces(b: &Bench) -> Steady {
    let gpu = b.gpu.clone();
    let (s, t) = (stream(&gpu), stream(&gpu));
    let mut x = zeros(&gpu, 1024, &s);
    let mut some: Vec<_> = (1..10).map(|n| zeros(&gpu, 20 * n, &s)).collect();
    let mut host = vec![1.0f32; 1024];
    let synchronise = synchronise(&s);
    let round = Box::new(move |i| {
        let on = if i % 2 == 0 { &s } else { &t };
        x.copy_from_slice(&host, on).expect("copied");
        if i % 4 == 0 {
            x.copy_to_slice(&mut host, &t).expect("copied");
        }
        let mut uploads = Uploads::new();
        for array in &mut some {
            let elements = array.len();
            uploads.add(array, &host[..elements]).expect("as many");
        }
        uploads.queue(on).expect("queued");
    });
    // A record and a wait for each piece.
    Steady { round, synchronise, asked: 40 }
}
fn pageable_copies_in_pieces_deterministically(b: &Bench) -> Steady {
    pageable_copies_in_pieces(b)
}

/// Allocations with names, freed in another order.
fn names(b: &Bench) -> Steady {
    let gpu = b.gpu.clone();
    let s = stream(&gpu);
    let mut live = VecDeque::new();
    let synchronise = synchronise(&s);
    let round = Box::new(move |i| {
        live.push_back(gpu.alloc_named((1 + i % 7) * KIB, format!("block {i}"), &s).expect("memory"));
        if live.len() > 6 {
            live.remove(i as usize % 5);
        }
    });
    Steady { round, synchronise, asked: 0 }
}

/// T4: sizes that change from round to round, on two streams that feed each other.
fn batches_of_growing_size(b: &Bench) -> Steady {
    let (device, gpu) = (b.device.clone(), b.gpu.clone());
    let (s, t) = (stream(&gpu), stream(&gpu));
    let synchronise = synchronise(&t);
    let round = Box::new(move |i| {
        let x = block(&gpu, (1 + i % 50) * 300 * KIB, &s);
        let y = block(&gpu, (50 - i % 50) * 200 * KIB, &t);
        writes(&device, s.native(), &x);
        writes(&device, t.native(), &y);
        if i % 5 == 0 {
            t.wait_stream(&s).expect("ordered");
            x.record_use(&t).expect("recorded");
            reads(&device, t.native(), &x);
        }
    });
    Steady { round, synchronise, asked: 1 }
}

/// Memory that shows its next tenant nothing.
fn scrubbed(b: &Bench) -> Steady {
    let gpu = b.gpu.clone();
    let (s, t) = (stream(&gpu), stream(&gpu));
    let synchronise = synchronise(&t);
    let round = Box::new(move |_| {
        let x = block(&gpu, 4 * KIB, &s);
        x.share_with(&t).expect("ordered");
        x.record_use(&t).expect("recorded");
        drop(gpu.alloc_pinned(KIB).expect("pinned"));
    });
    Steady { round, synchronise, asked: 0 }
}

/// G5: allocated here, used there, freed by another thread, eight at a time.
fn freed_by_another_thread(b: &Bench) -> Steady {
    let (device, gpu) = (b.device.clone(), b.gpu.clone());
    let (s, t) = (stream(&gpu), stream(&gpu));
    let synchronise = synchronise(&t);
    let mut live = Vec::new();
    let round = Box::new(move |_| {
        let x = block(&gpu, 4 * KIB, &s);
        t.wait_stream(&s).expect("ordered");
        x.record_use(&t).expect("recorded");
        reads(&device, t.native(), &x);
        live.push(x);
        if live.len() == 50 {
            let live = &mut live;
            std::thread::scope(|threads| threads.spawn(|| live.clear()).join().expect("no panic"));
        }
    });
    Steady { round, synchronise, asked: 2 }
}

/// C7, T16: streams of other code, the default ones among them, adopted anew in each round.
fn adopted_streams(b: &Bench) -> Steady {
    let (device, gpu) = (b.device.clone(), b.gpu.clone());
    let theirs = device.wrap_stream(|sim| sim.stream().expect("a stream"));
    let blocking = StreamOptions::default().blocking(true);
    let home = gpu.stream_with(blocking).expect("a stream");
    let synchronise = synchronise(&home);
    let round = Box::new(move |i| {
        let legacy = gpu.adopt(device.wrap_stream(millpond_sim::Sim::legacy_stream)).expect("adopted");
        let own = gpu.adopt(device.wrap_stream(millpond_sim::Sim::per_thread_stream)).expect("adopted");
        let t = gpu.adopt(theirs.clone()).expect("adopted");
        let x = block(&gpu, 4 * KIB, &home);
        let on = [&legacy, &own, &t][i as usize % 3];
        on.wait_stream(&home).expect("ordered");
        x.record_use(on).expect("recorded");
        reads(&device, on.native(), &x);
        drop(block(&gpu, 4 * KIB, on));
    });
    Steady { round, synchronise, asked: 2 }
}

/// Many at once in one round of a period, few in the others: what the burst needed is given back.
fn bursts(b: &Bench) -> Steady {
    let (device, gpu) = (b.device.clone(), b.gpu.clone());
    let streams: Vec<_> = (0..4).map(|_| stream(&gpu)).collect();
    let synchronise = synchronise(&streams[0]);
    let mut live = Vec::new();
    let round = Box::new(move |i| {
        let many = if i % 100 == 50 { 60 } else { 1 };
        for k in 0..many {
            let (s, t) = (&streams[k % 4], &streams[(k + 1) % 4]);
            let x = block(&gpu, 16 * KIB, s);
            t.wait_stream(s).expect("ordered");
            x.record_use(t).expect("recorded");
            reads(&device, t.native(), &x);
            live.push(x);
        }
        live.clear();
    });
    Steady { round, synchronise, asked: 4 }
}

/// More streams than a miss looks at one by one: what all have is pending on most of them, and some come to be in order.
fn a_hundred_streams(b: &Bench) -> Steady {
    let (device, gpu) = (b.device.clone(), b.gpu.clone());
    let streams: Vec<_> = (0..100).map(|_| stream(&gpu)).collect();
    let synchronise = synchronise(&streams[0]);
    let round = Box::new(move |round: u64| {
        // So many that all pairs of streams have met within a tenth of the rounds.
        for i in 10 * round..10 * round + 10 {
            let of = |n: u64| &streams[(n % 100) as usize];
            let (s, t) = (of(i), of(7 * i + i / 100));
            let x = block(&gpu, 4 * MIB, s);
            writes(&device, s.native(), &x);
            let y = block(&gpu, 16 * KIB, t);
            writes(&device, t.native(), &y);
            if i % 3 == 0 {
                t.wait_stream(s).expect("ordered");
                x.record_use(t).expect("recorded");
                reads(&device, t.native(), &x);
            }
        }
    });
    all_synchronised(b, Steady { round, synchronise, asked: 10 })
}

fn a_hundred_streams_and_a_small_footprint(b: &Bench) -> Steady {
    a_hundred_streams(b)
}
