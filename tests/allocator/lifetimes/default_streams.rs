//! A per-thread default stream is its own thread's. On another thread its handle means that thread's own stream, so every
//! verb that names it fails there, before it has done anything; what has no need of the handle works on any thread.

#![allow(unsafe_code, reason = "memory from elsewhere is taken at its word")]

use crate::rig::{all_clean, late, on, write};
use millpond::array::ExternalMemory;
use millpond::transfer::{Uploads, scope};
use millpond::units::{GIB, MIB};
use millpond::{
    Allocation, Allocator, Config, DeviceArray, DriverErrorKind, Error, Growth, Limit, PinnedAllocation,
    Stream, Trim, kernel,
};
use millpond_sim::{Schedule, Sim};
use std::sync::Arc;

const LEN: usize = 1024;

/// What the verbs are given: the stream `p`, another one, and something on each.
struct Stage {
    sim: Sim,
    gpu: Allocator<Sim>,
    p: Stream<Sim>,
    s: Stream<Sim>,
    of_p: DeviceArray<u32, Sim>,
    of_s: DeviceArray<u32, Sim>,
    block: Allocation<Sim>,
    pinned: PinnedAllocation<Sim>,
    source: Arc<millpond::PinnedArray<u32, Sim>>,
    external: Allocation<Sim>,
    /// Indices for gathers and scatters: all 0.
    at: DeviceArray<u32, Sim>,
}

impl Stage {
    fn new(config: Config) -> Stage {
        let sim = Sim::new(GIB);
        let gpu = on(&sim, config);
        let (p, s) = (gpu.adopt(sim.per_thread_stream()).unwrap(), gpu.stream().unwrap());
        Stage {
            of_p: gpu.zeros(LEN, &p).unwrap(),
            of_s: gpu.zeros(LEN, &s).unwrap(),
            block: gpu.alloc(MIB, &s).unwrap(),
            pinned: gpu.alloc_pinned(MIB).unwrap(),
            source: Arc::new(gpu.pinned_zeros(LEN).unwrap()),
            external: gpu.alloc(4 * LEN as u64, &s).unwrap(),
            at: gpu.zeros(LEN, &s).unwrap(),
            sim,
            gpu,
            p,
            s,
        }
    }

    fn end(self) {
        let Stage { sim, gpu, p, s, .. } = self;
        drop((self.of_p, self.of_s, self.block, self.pinned, self.source, self.external, self.at, p, s));
        gpu.synchronize().unwrap();
        gpu.trim(Trim::All).unwrap();
        all_clean(&sim, gpu);
    }
}

type Verb = (&'static str, fn(&mut Stage) -> Result<(), Error>);

/// Every verb that is given a stream, given `p`. `tests/architecture/main.rs` reads the sources for others.
const VERBS: &[Verb] = &[
    ("alloc", |st| st.gpu.alloc(4096, &st.p).map(drop)),
    ("alloc, a miss", |st| st.gpu.alloc(64 * MIB, &st.p).map(drop)),
    ("alloc of nothing", |st| st.gpu.alloc(0, &st.p).map(drop)),
    ("alloc_not_capturing", |st| st.gpu.alloc_not_capturing(4096, &st.p).map(drop)),
    ("alloc_aligned", |st| st.gpu.alloc_aligned(4096, 4096, &st.p).map(drop)),
    ("alloc_named", |st| st.gpu.alloc_named(4096, "x", &st.p).map(drop)),
    ("uninit", |st| st.gpu.uninit::<u8>(LEN, &st.p).map(drop)),
    ("zeros", |st| st.gpu.zeros::<u8>(LEN, &st.p).map(drop)),
    ("fill_bytes, at home", |st| st.of_p.fill_bytes(1, &st.p)),
    ("fill_bytes, elsewhere", |st| st.of_s.fill_bytes(1, &st.p)),
    ("fill_bytes of a view", |st| st.of_s.slice_mut(1..9).fill_bytes(1, &st.p)),
    ("array_from_pinned", |st| {
        st.gpu.array_from_pinned(Arc::clone(&st.source), &st.p).map(drop).map_err(|r| r.error)
    }),
    ("copy_from", |st| st.of_s.copy_from(Arc::clone(&st.source), &st.p).map(drop).map_err(|r| r.error)),
    ("copy_from_device", |st| st.of_p.copy_from_device(&st.of_s, &st.p)),
    ("copy_from_peer, to", |st| st.of_p.copy_from_peer(&st.of_s, &st.s, &st.p)),
    ("copy_from_peer, from", |st| st.of_s.copy_from_peer(&st.of_p, &st.p, &st.s)),
    ("to_pinned", |st| st.of_s.to_pinned(&st.p)?.wait().map(drop)),
    ("copy_from_slice", |st| Ok(st.of_s.copy_from_slice(&[7; LEN], &st.p)?)),
    ("copy_to_slice", |st| Ok(st.of_s.copy_to_slice(&mut [0; LEN], &st.p)?)),
    ("queue", |st| {
        let mut uploads = Uploads::new();
        uploads.add(&mut st.of_s, &[7; LEN])?;
        Ok(uploads.queue(&st.p)?)
    }),
    ("array_from_slice", |st| st.gpu.array_from_slice(&[7_u32; LEN], &st.p).map(drop)),
    ("copy_to", |st| {
        st.of_s.copy_to(st.gpu.pinned_zeros(LEN)?, &st.p).map_err(|r| r.error)?.wait().map(drop)
    }),
    ("copy_from_plane", |st| {
        let from = st.of_s.view().plane(2, 4, 8)?;
        st.of_p.view_mut().plane(2, 4, 8)?.copy_from_plane(&from, &st.p)
    }),
    ("to_vec", |st| st.of_p.to_vec(&st.p).map(drop)),
    ("duplicate", |st| st.of_s.duplicate(&st.p).map(drop)),
    ("to_pinned of a plane", |st| st.of_s.view().plane(2, 4, 8)?.to_pinned(&st.p)?.wait().map(drop)),
    ("a kernel", |st| kernel::fill(&mut st.of_s, 3, &st.p)),
    ("a kernel on two arrays", |st| kernel::saxpy(2, &st.of_p, &mut st.of_s, &st.p)),
    ("iota", |st| kernel::iota(&mut st.of_p, 0, 1, &st.p)),
    ("reduce_sum", |st| kernel::reduce_sum(&st.of_s, &mut st.of_p.slice_mut(0..1), &st.p)),
    ("gather", |st| kernel::gather(&st.of_s, &st.at, &mut st.of_p, &st.p)),
    ("scatter", |st| kernel::scatter(&st.of_s, &st.at, &mut st.of_p, &st.p)),
    ("read_on", |st| st.of_s.read_on(&st.p).map(drop)),
    ("write_on", |st| st.of_p.write_on(&st.p).map(drop)),
    ("record", |st| st.p.record().map(drop)),
    ("wait", |st| st.p.wait(&st.s.record()?)),
    ("wait_stream, waiting", |st| st.p.wait_stream(&st.s)),
    ("wait_stream, waited for", |st| st.s.wait_stream(&st.p)),
    ("synchronize", |st| st.p.synchronize()),
    ("record_use", |st| st.block.record_use(&st.p)),
    ("record_use of pinned memory", |st| st.pinned.record_use(&st.p)),
    ("record_use of an array", |st| st.of_s.record_use(&st.p)),
    ("share_with", |st| st.block.share_with(&st.p)),
    ("wait_on", |st| st.of_s.wait_on(&st.p)),
    ("free_on", |st| {
        let block = st.gpu.alloc(512, &st.s)?;
        block.free_on(&st.p).map_err(|(block, e)| {
            assert_eq!(block.len(), 512, "given back");
            e
        })
    }),
    ("from_external", |st| {
        let memory = ExternalMemory {
            device: st.gpu.device(),
            address: st.external.address(),
            bytes: st.external.len(),
        };
        // SAFETY: the range is an allocation's that outlives the array, and nothing else uses it.
        unsafe { DeviceArray::<u32, _>::from_external(memory, LEN, (), &st.p) }.map(drop).map_err(|((), e)| e)
    }),
];

/// On its own thread each verb works. On another one it fails, with an error that says why, and nothing was queued on
/// either thread's stream.
#[test]
fn every_verb_fails_on_another_thread() {
    for config in [Config::default, || Config::default().scrub(true), || Config::default().exact_fit(true)] {
        let mut st = Stage::new(config());
        for (name, verb) in VERBS {
            verb(&mut st).unwrap_or_else(|e| panic!("{name}, on its own thread: {e}"));
        }
        let mut st = std::thread::spawn(move || {
            for (name, verb) in VERBS {
                let before = st.sim.ledger();
                let live = st.gpu.report().total.live;
                match verb(&mut st) {
                    Err(Error::Driver(e)) => {
                        assert_eq!((e.kind, e.code), (DriverErrorKind::InvalidHandle, 400), "{name}: {e}");
                        assert!(e.message.contains("another thread"), "{name}: {e}");
                    }
                    other => panic!("{name} on another thread came to {other:?}"),
                }
                assert_eq!(st.gpu.report().total.live, live, "{name}");
                let now = st.sim.ledger();
                // These mark the other stream first, or ask it.
                let marks =
                    ["wait", "wait_stream, waiting", "free_on", "copy_from_peer, from"].contains(name);
                assert!(marks || now.calls == before.calls, "{name}: {:?}", now.calls);
            }
            st
        })
        .join()
        .unwrap();
        for (name, verb) in VERBS {
            verb(&mut st).unwrap_or_else(|e| panic!("{name}, back on its own thread: {e}"));
        }
        st.end();
    }
}

/// What does not act on the stream itself is any thread's: frees, events, uses of its memory on other streams, the ends of
/// guards and tokens, trims.
#[test]
fn what_needs_no_handle_works_on_any_thread() {
    for schedule in [Schedule::Earliest, Schedule::Latest, Schedule::Random(3)] {
        let sim = Sim::new(GIB).schedule(schedule);
        let gpu = on(&sim, Config::default());
        let (p, s) = (gpu.adopt(sim.per_thread_stream()).unwrap(), gpu.stream().unwrap());
        let mut x = gpu.zeros::<u32>(LEN, &p).unwrap();
        x.fill_bytes(3, &p).unwrap();
        let (plain, unknown) = (gpu.alloc(MIB, &p).unwrap(), gpu.alloc(MIB, &p).unwrap());
        let (event, download) = (p.record().unwrap(), x.to_pinned(&p).unwrap());
        let (gpu_ref, sim_ref, s_ref, p_ref) = (&gpu, &sim, &s, &p);
        std::thread::scope(|threads| {
            let guard = x.read_on(&p).unwrap();
            threads.spawn(move || {
                drop(guard);
                plain.record_use_until(&event).unwrap();
                s_ref.wait(&event).unwrap();
                drop(plain);
                unknown.free_unknown();
                assert!(download.wait().unwrap().iter().all(|&v| v == 0x0303_0303));
                event.synchronize(std::time::Duration::from_secs(1)).unwrap();
                assert!(event.is_complete().unwrap());
                assert_eq!(p_ref.clone().id(), event.stream());
                gpu_ref.trim(Trim::Stream(p_ref)).unwrap();
                // This thread's own has the same handle, and is another stream.
                let own = gpu_ref.adopt(sim_ref.per_thread_stream()).unwrap();
                assert_ne!(own.id(), p_ref.id());
                drop(gpu_ref.zeros::<u8>(LEN, &own).unwrap());
            });
        });
        std::thread::scope(|threads| {
            threads.spawn(|| {
                x.fill_bytes(4, &s).unwrap();
                assert!(x.to_vec(&s).unwrap().iter().all(|&v| v == 0x0404_0404));
                drop(x);
            });
        });
        drop((p, s));
        all_clean(&sim, gpu);
    }
}

/// Threads that confuse their default streams get errors, and no data of each other's.
#[test]
fn confused_default_streams_never_race() {
    for seed in 0..40 {
        let sim = Sim::new(GIB).schedule(Schedule::Random(seed));
        let gpu = on(&sim, Config::default());
        let (theirs, own) = (gpu.adopt(sim.per_thread_stream()).unwrap(), gpu.stream().unwrap());
        let mut x = gpu.zeros::<u32>(LEN, &theirs).unwrap();
        x.fill_bytes(1, &theirs).unwrap();
        let (gpu_ref, sim_ref) = (&gpu, &sim);
        let (x, y) = std::thread::scope(|threads| {
            let confused = || {
                let mut x = x;
                assert!(x.fill_bytes(2, &theirs).is_err() && theirs.record().is_err());
                let mine = gpu_ref.adopt(sim_ref.per_thread_stream()).unwrap();
                x.fill_bytes(3, &mine).unwrap();
                let y = x.duplicate(&own).unwrap();
                assert!(x.fill_bytes(4, &theirs).is_err());
                (x, y)
            };
            threads.spawn(confused).join().unwrap()
        });
        for array in [&x, &y] {
            assert!(array.to_vec(&theirs).unwrap().iter().all(|&v| v == 0x0303_0303), "seed {seed}");
        }
        drop((x, y, theirs, own));
        all_clean(&sim, gpu);
    }
}

/// Borrowed memory is copied on a stream of the caller's choice: the same check.
#[test]
fn a_scope_refuses_another_threads_default_stream() {
    let mut st = Stage::new(Config::default());
    let Stage { gpu, p, of_p, .. } = &mut st;
    std::thread::scope(|threads| {
        threads.spawn(|| {
            let source = gpu.pinned_zeros::<u32>(LEN).unwrap();
            let refused = scope(p, |copies| copies.upload(of_p, source.view()));
            assert!(matches!(refused, Ok(Err(Error::Driver(e))) if e.kind == DriverErrorKind::InvalidHandle));
        });
    });
    st.end();
}

/// A reference to a thread's default stream means the stream of the thread that adopts it, wherever it was made: the end of the thread that
/// made it ends no use.
#[test]
fn a_reference_is_its_adopters_not_its_makers() {
    let sim = late();
    let gpu = on(&sim, Config::default().limit(Limit::Bytes(4 * MIB)).growth(Growth::Exact));
    let reference = std::thread::scope(|threads| threads.spawn(|| sim.per_thread_stream()).join().unwrap());
    let (s, mine) = (gpu.stream().unwrap(), gpu.adopt(reference).unwrap());
    let others: Vec<_> = (0..12).map(|_| gpu.stream().unwrap()).collect();
    let block = gpu.alloc(4 * MIB, &s).unwrap();
    write(&sim, &block, &s);
    for user in [&mine].into_iter().chain(&others) {
        user.wait_stream(&s).unwrap();
        block.share_with(user).unwrap();
    }
    let before = mine.record().unwrap();
    write(&sim, &block, &mine);
    s.wait(&before).unwrap();
    for other in &others {
        s.wait_stream(other).unwrap();
    }
    drop(block);
    // Behind all but the last write.
    let next = gpu.alloc(4 * MIB, &s).unwrap();
    write(&sim, &next, &s);
    drop((next, before, s, mine, others));
    gpu.synchronize().unwrap();
    all_clean(&sim, gpu);
}

/// Threads that adopt one reference use streams of their own, and their ends end the uses of a block that stays.
#[test]
fn a_shared_references_uses_end_with_the_adopting_threads() {
    let sim = Sim::new(GIB);
    let gpu = on(&sim, Config::default());
    let (s, reference) = (gpu.stream().unwrap(), sim.per_thread_stream());
    let block = gpu.alloc(MIB, &s).unwrap();
    for _ in 0..200 {
        std::thread::scope(|threads| {
            threads
                .spawn(|| block.record_use(&gpu.adopt(reference.clone()).unwrap()).unwrap())
                .join()
                .unwrap();
        });
        gpu.synchronize().unwrap();
    }
    let left = gpu.bookkeeping();
    assert!(left.uses < 30 && left.timelines < 60, "of 200 threads that ended: {:?}", left.counts());
    drop((block, s));
    all_clean(&sim, gpu);
}
