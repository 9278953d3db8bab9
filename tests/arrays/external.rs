//! Memory that other code allocated, as arrays: on the simulated device under its oracle. That code is another
//! allocator, which reuses what its owner drops at once and in no order of ours, so that a drop too early is convicted.

#![cfg(not(any(loom, shuttle)))]
#![allow(clippy::many_single_char_names, reason = "s, t, u are streams; x, y are arrays")]

use super::clean;
use millpond::array::ExternalMemory;
use millpond::driver::Memory;
use millpond::error::ExternalRangeKind;
use millpond::units::{Addr, DeviceId, GIB, KIB, MIB};
use millpond::{Allocation, Allocator, Config, DeviceArray, Error, Growth, Limit, Stream, Trim, kernel};
use millpond_sim::{Launch, Schedule, Sim};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Another library with memory of its own, all of which is one block.
struct Library {
    gpu: Allocator<Sim>,
    stream: Stream<Sim>,
    dropped: Arc<AtomicU32>,
}

/// What keeps its memory alive.
struct Guard {
    _block: Allocation<Sim>,
    dropped: Arc<AtomicU32>,
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.dropped.fetch_add(1, Ordering::Relaxed);
    }
}

const BYTES: u64 = 4 * KIB;

impl Library {
    fn new(sim: &Sim) -> Library {
        let config = Config::default().growth(Growth::Exact).limit(Limit::Bytes(BYTES));
        let gpu = Allocator::new(sim.clone(), config).unwrap();
        Library { stream: gpu.stream().unwrap(), gpu, dropped: Arc::default() }
    }
    fn guard(&self) -> (ExternalMemory, Guard) {
        let block = self.gpu.alloc(BYTES, &self.stream).unwrap();
        let memory = ExternalMemory { address: block.address(), bytes: BYTES, device: DeviceId(0) };
        (memory, Guard { _block: block, dropped: Arc::clone(&self.dropped) })
    }
    fn dropped(&self) -> u32 {
        self.dropped.load(Ordering::Relaxed)
    }
    /// The library uses its block again, which it has only if nothing else does.
    fn reuse(&self, sim: &Sim) {
        let block = self.gpu.alloc(BYTES, &self.stream).unwrap();
        let launch = Launch::new("theirs").writes(block.address(), BYTES).tag(block.id().unwrap());
        sim.launch(self.stream.native(), launch).unwrap();
    }
}

fn device(config: Config) -> (Sim, Allocator<Sim>, Library) {
    let sim = Sim::new(GIB).schedule(Schedule::Latest);
    let library = Library::new(&sim);
    (sim.clone(), Allocator::new(sim, config).unwrap(), library)
}

#[allow(unsafe_code, reason = "the library's block lives as long as its guard, and no other code uses it")]
fn brought_in(library: &Library, stream: &Stream<Sim>) -> DeviceArray<u32, Sim> {
    let (memory, guard) = library.guard();
    // SAFETY: as said.
    unsafe { DeviceArray::from_external(memory, 1024, guard, stream) }.map_err(|(_, e)| e).unwrap()
}

/// C5: external memory is an array, of whose owner the device is sure to be done when it is dropped.
#[test]
fn c05_external_memory_with_its_owner() {
    let (sim, gpu, library) = device(Config::default());
    let (s, t) = (gpu.stream().unwrap(), gpu.stream().unwrap());
    for round in 1..4 {
        let mut x = brought_in(&library, &s);
        assert_eq!((x.len(), x.id(), x.stream_id()), (1024, None, Some(s.id())));
        let sent = x.copy_from(gpu.pinned_from_fn(1024, |i| i as u32).unwrap(), &s).unwrap();
        kernel::fill(&mut x.slice_mut(..512), round, &t).unwrap();
        let back = x.to_pinned(&s).unwrap();
        assert_eq!(library.gpu.report().total.cached, 0, "never pooled, neither here nor there");
        let refused = x.into_allocation().expect_err("it is no allocation of ours");
        std::thread::scope(|threads| drop(threads.spawn(move || drop(refused))));
        assert_eq!(library.dropped(), round - 1, "the device uses it");
        let back = back.wait().unwrap();
        assert_eq!((back[0], back[511], back[512], back[1023]), (round, round, 512, 1023));
        drop(sent);
        // Both streams come to their end, the second behind the first; the next call that speaks to the driver lets go.
        s.synchronize().unwrap();
        gpu.trim(Trim::All).unwrap();
        assert_eq!(library.dropped(), round);
        library.reuse(&sim);
        // What the library did with it is the program's to order: here, before the next array is made.
        library.stream.synchronize().unwrap();
    }
    assert_eq!(gpu.report().total.live, 0);
    drop((s, t, gpu, library));
    clean(&sim);
}

/// Each stream's uses count, the declared one too, up to the drop.
#[test]
fn the_owner_outlives_every_use() {
    for finished in 0..3 {
        let (sim, gpu, library) = device(Config::default());
        let streams = [gpu.stream().unwrap(), gpu.stream().unwrap(), gpu.stream().unwrap()];
        let [s, t, u] = &streams;
        let mut x = brought_in(&library, s);
        x.fill_bytes(1, t).unwrap();
        x.record_use(u).unwrap();
        x.wait_on(u).unwrap();
        let theirs = Launch::new("foreign kernel").writes(x.address(), BYTES);
        sim.launch(u.native(), theirs).unwrap();
        // And the stream that it was brought in on, up to the drop.
        let gates = streams.each_ref().map(|s| sim.gate(s.native()).unwrap());
        drop(x);
        for (i, gate) in gates.into_iter().enumerate() {
            if i == finished {
                gpu.trim(Trim::All).unwrap();
                assert_eq!(library.dropped(), 0, "stream {i} is not done");
            }
            gate.open();
        }
        gpu.synchronize().unwrap();
        assert_eq!(library.dropped(), 1);
        library.reuse(&sim);
        drop((streams, gpu, library));
        clean(&sim);
    }
}

/// A drop beside which nothing is pending drops the owner at once.
#[test]
fn an_unused_owner_goes_at_once() {
    let (sim, gpu, library) = device(Config::default());
    let s = gpu.stream().unwrap();
    let mut x = brought_in(&library, &s);
    x.fill_bytes(1, &s).unwrap();
    drop(x);
    assert_eq!(library.dropped(), 0);
    gpu.synchronize().unwrap();
    assert_eq!(library.dropped(), 1);
    library.reuse(&sim);
    library.stream.synchronize().unwrap();
    let mut y = brought_in(&library, &s);
    y.fill_bytes(1, &s).unwrap();
    s.synchronize().unwrap();
    y.slice_mut(8..).fill_bytes(1, &s).unwrap();
    drop((y, s, gpu));
    assert_eq!(library.dropped(), 2, "with the allocator, behind its streams");
    library.reuse(&sim);
    drop(library);
    clean(&sim);
}

/// In whichever order array, stream and allocator end.
#[test]
fn in_every_order_of_ends_the_owner_goes_last() {
    for order in 0..6 {
        for deterministic in [false, true] {
            let (sim, gpu, library) = device(Config::default().deterministic(deterministic));
            let (s, t) = (gpu.stream().unwrap(), gpu.stream().unwrap());
            let mut x = brought_in(&library, &s);
            x.fill_bytes(order, &t).unwrap();
            drop(t);
            let mut ends: Vec<Option<Box<dyn FnOnce()>>> = vec![
                Some(Box::new(move || drop(x))),
                Some(Box::new(move || drop(s))),
                Some(Box::new(move || drop(gpu))),
            ];
            let order = usize::from(order);
            for which in [order % 3, (order % 3 + 1 + order / 3) % 3, (order % 3 + 2 - order / 3) % 3] {
                ends[which].take().expect("each end comes once")();
            }
            assert_eq!(library.dropped(), 1, "order {order}");
            library.reuse(&sim);
            drop(library);
            clean(&sim);
        }
    }
}

/// One trim drops each owner all of whose uses are over, whichever stream it was imported on and whichever used it: it looks at the next use of what it
/// finds to be over, also where it has looked at that stream before.
#[test]
fn one_trim_lets_go_of_every_owner_that_is_free() {
    for home in 0..3 {
        let sim = Sim::new(GIB);
        let library = Library::new(&sim);
        let gpu = Allocator::new(sim.clone(), Config::default()).unwrap();
        let streams = [(); 3].map(|()| gpu.stream().unwrap());
        let mut x = brought_in(&library, &streams[home]);
        for on in streams.iter().cycle().skip(home).take(3) {
            kernel::fill(&mut x.slice_mut(..512), 1, on).unwrap();
        }
        drop(x);
        gpu.trim(Trim::All).unwrap();
        assert_eq!((gpu.bookkeeping().kept, library.dropped()), (0, 1), "home {home}");
        drop((streams, gpu, library));
        clean(&sim);
    }
}

/// A deterministic allocator asks nothing: it lets go of what its own waits proved.
#[test]
fn a_deterministic_allocator_lets_go_behind_its_own_waits() {
    let (sim, gpu, library) = device(Config::default().deterministic(true));
    let s = gpu.stream().unwrap();
    let mut x = brought_in(&library, &s);
    x.fill_bytes(1, &s).unwrap();
    drop(x);
    sim.run_until_idle();
    gpu.trim(Trim::All).unwrap();
    assert_eq!(library.dropped(), 0, "it did not ask");
    s.synchronize().unwrap();
    gpu.trim(Trim::All).unwrap();
    assert_eq!(library.dropped(), 1);
    drop((s, gpu, library));
    clean(&sim);
}

/// What a wait of the host's proved lets go of owners, in a program that queues nothing of ours and whose blocks are hits: of the stream, of
/// an event of it, of an event that is only asked, and of an event that was seen complete before the array was dropped.
#[test]
fn a_wait_of_the_hosts_lets_the_owner_go() {
    type Wait = fn(&Stream<Sim>, &Sim);
    let waits: [Wait; 3] = [
        |s, _| s.synchronize().unwrap(),
        |s, _| s.record().unwrap().synchronize(Duration::MAX).unwrap(),
        |s, sim| {
            let event = s.record().unwrap();
            sim.run_until_idle();
            assert!(event.is_complete().unwrap());
        },
    ];
    for (wait, elsewhere) in waits.into_iter().flat_map(|wait| [(wait, false), (wait, true)]) {
        let (sim, gpu, library) = device(Config::default());
        let (s, t) = (gpu.stream().unwrap(), gpu.stream().unwrap());
        for round in 0..100 {
            let x = brought_in(&library, &s);
            sim.launch(s.native(), Launch::new("ours").writes(x.address(), BYTES)).unwrap();
            if elsewhere {
                x.record_use(&t).unwrap();
                t.wait_stream(&s).unwrap();
                sim.launch(t.native(), Launch::new("theirs").reads(x.address(), BYTES)).unwrap();
            }
            drop(x);
            drop(gpu.alloc(4096, &s).unwrap());
            assert_eq!(library.dropped(), round, "the device uses it");
            wait(&s, &sim);
            if elsewhere {
                wait(&t, &sim);
            }
            assert_eq!((library.dropped(), gpu.bookkeeping().kept), (round + 1, 0));
            library.reuse(&sim);
            library.stream.synchronize().unwrap();
        }
        drop((s, t, gpu, library));
        clean(&sim);
    }
}

/// Arrays that are brought in, and uses that are recorded, let the owners of former ones go, though nothing waits.
#[test]
fn owners_go_while_others_come() {
    let (sim, gpu, library) = device(Config::default());
    let (s, t) = (gpu.stream().unwrap(), gpu.stream().unwrap());
    drop(brought_in(&library, &s));
    sim.launch(s.native(), Launch::new("ours")).unwrap();
    let block = gpu.alloc(4096, &s).unwrap();
    assert!(gpu.bookkeeping().kept == 1 || library.dropped() == 1);
    for _ in 0..2 {
        // The first makes the marker, if there is none.
        block.record_use(&t).unwrap();
        sim.run_until_idle();
    }
    assert_eq!((library.dropped(), gpu.bookkeeping().kept), (1, 0));
    drop(brought_in(&library, &s));
    let other = Library::new(&sim);
    for round in 1..3 {
        drop(brought_in(&other, &s));
        sim.run_until_idle();
        other.stream.synchronize().unwrap();
        assert!(gpu.bookkeeping().kept <= 2, "round {round}");
        if round == 1 {
            gpu.synchronize().unwrap();
        }
    }
    gpu.synchronize().unwrap();
    assert_eq!((library.dropped(), other.dropped()), (2, 2));
    drop((block, s, t, gpu, library, other));
    clean(&sim);
}

/// A request that the device refuses drops owners whose memory is no longer used, and waits for those that are in use for a moment;
/// one that may wait for nothing reports what is kept, and what would end that.
#[test]
#[allow(unsafe_code, reason = "a range of the driver's, which is the owner")]
fn a_request_is_served_from_what_owners_held() {
    let bring = |sim: &Sim, gpu: &Allocator<Sim>, s: &Stream<Sim>| {
        let theirs = sim.allocate(48 * MIB).unwrap();
        let memory = ExternalMemory { address: theirs.addr(), bytes: 48 * MIB, device: DeviceId(0) };
        // SAFETY: the range is the driver's, and the array's alone.
        let made = unsafe { DeviceArray::<u32, _>::from_external(memory, 1024, theirs, s) };
        let mut x = made.map_err(|(_, e)| e).unwrap();
        x.fill_bytes(1, s).unwrap();
        drop(x);
        assert_eq!(gpu.bookkeeping().kept, 1);
    };
    for deterministic in [false, true] {
        for wait in [Duration::ZERO, Duration::from_secs(1)] {
            let sim = Sim::new(64 * MIB).schedule(Schedule::Latest);
            let config = Config::default().deterministic(deterministic).bounded_wait(wait);
            let gpu = Allocator::new(sim.clone(), config).unwrap();
            let (s, t) = (gpu.stream().unwrap(), gpu.stream().unwrap());
            bring(&sim, &gpu, &s);
            if wait.is_zero() {
                let refused = gpu.alloc(32 * MIB, &t).unwrap_err();
                let facts = refused.out_of_memory().expect("out of memory");
                assert_eq!(facts.kept, 48 * MIB);
                assert!(
                    facts.to_string().contains("external memory kept for its owners 48.0 MiB"),
                    "{facts}"
                );
                assert!(facts.advice().starts_with("48.0 MiB of external memory are kept"), "{facts}");
                // Not known complete until a query.
                sim.run_until_idle();
                if deterministic {
                    assert!(gpu.alloc(32 * MIB, &t).is_err(), "it queries nothing");
                    s.synchronize().unwrap();
                }
            }
            let block = gpu.alloc(32 * MIB, &t).unwrap();
            assert_eq!(gpu.bookkeeping().kept, 0);
            drop((block, s, t, gpu));
            clean(&sim);
        }
    }
}

/// Pinned memory that a dropped token's shared source holds comes back to a request that it is in the way of.
#[test]
fn a_pinned_request_is_served_from_what_tokens_held() {
    for deterministic in [false, true] {
        let sim = Sim::new(GIB).schedule(Schedule::Latest);
        let config = Config::default().deterministic(deterministic).pinned_limit(64 * MIB);
        let gpu = Allocator::new(sim.clone(), config.bounded_wait(Duration::from_secs(1))).unwrap();
        let s = gpu.stream().unwrap();
        let source = Arc::new(gpu.pinned_from_fn(10 << 20, |i| i as u32).unwrap());
        let mut x = gpu.uninit::<u32>(10 << 20, &s).unwrap();
        drop(x.copy_from(source, &s).unwrap());
        assert_eq!(gpu.bookkeeping().kept, 1);
        drop(gpu.alloc_pinned(40 * MIB).unwrap());
        assert_eq!(gpu.bookkeeping().kept, 0);
        drop((x, s, gpu));
        clean(&sim);
    }
}

#[test]
#[allow(unsafe_code, reason = "ranges that are refused, and one of the driver's")]
fn what_is_no_memory_is_refused_with_its_owner() {
    let (sim, gpu, _) = device(Config::default());
    let (_, other, _) = device(Config::default());
    let s = gpu.stream().unwrap();
    let at = |address: u64, bytes: u64| ExternalMemory { address: Addr(address), bytes, device: DeviceId(0) };
    let refused = |memory: ExternalMemory, elements: usize| {
        let owner = String::from("the owner");
        // SAFETY: refused before it is used.
        let made = unsafe { DeviceArray::<u32, _>::from_external(memory, elements, owner, &s) };
        let (owner, error) = made.expect_err("it is refused");
        assert_eq!(owner, "the owner");
        error
    };
    let kind = |memory, elements| match refused(memory, elements) {
        Error::ExternalRange(range) => {
            let text = Error::ExternalRange(range).to_string();
            assert!(text.contains(&format!("{} bytes at {}", range.bytes, range.address)), "{text}");
            range.kind
        }
        other => panic!("{other}"),
    };
    assert_eq!(kind(at(0, 64), 16), ExternalRangeKind::Null);
    assert_eq!(kind(at(4096, 0), 16), ExternalRangeKind::Empty);
    assert_eq!(kind(at(4096, 64), 0), ExternalRangeKind::Empty);
    assert_eq!(kind(at(4098, 64), 16), ExternalRangeKind::Misaligned { align: 4 });
    assert_eq!(kind(at(u64::MAX - 63, 128), 16), ExternalRangeKind::Wraps);
    assert_eq!(kind(at(4096, 60), 16), ExternalRangeKind::TooShort { needed: 64 });
    let elsewhere = ExternalMemory { device: DeviceId(3), ..at(4096, 64) };
    let error = refused(elsewhere, 16);
    assert!(matches!(error, Error::WrongDevice { found: DeviceId(3), .. }));
    assert!(
        error.to_string().contains(&format!("is on {}, where {} was expected", DeviceId(3), gpu.device())),
        "{error}"
    );
    assert!(matches!(refused(at(4096, 64), usize::MAX), Error::Overflow { .. }));

    let range = sim.allocate(4096).unwrap();
    let memory = at(range.addr().0, 4096);
    // SAFETY: the range is the driver's, and the array's alone.
    let x =
        unsafe { DeviceArray::<u32, _>::from_external(memory, 16, range, &s) }.map_err(|(_, e)| e).unwrap();
    let t = other.stream().unwrap();
    // Another world with a device of the same number, as another context of the device is.
    let error = x.record_use(&t).unwrap_err();
    assert!(matches!(error, Error::WrongDevice { .. }));
    assert!(error.to_string().contains(&format!("another context of {}", gpu.device())), "{error}");
    assert!(x.to_pinned(&t).is_err());
    assert!(format!("{x:?}").contains("External("), "{x:?}");
    drop((x, s, gpu));
    clean(&sim);
}

/// A write to the whole by the home stream, behind another's, is all there is to come after; and many ranges that end in a
/// row make a marker fall due.
#[test]
fn a_whole_write_at_home_ends_what_others_did() {
    let (sim, gpu, library) = device(Config::default());
    let (s, t) = (gpu.stream().unwrap(), gpu.stream().unwrap());
    for round in 1..=40 {
        s.synchronize().unwrap();
        let (memory, guard) = library.guard();
        s.wait_stream(&library.stream).unwrap();
        #[allow(
            unsafe_code,
            reason = "the library's block lives as long as its guard, and no other code uses it"
        )]
        // SAFETY: as said.
        let mut x: DeviceArray<u32, Sim> =
            unsafe { DeviceArray::from_external(memory, 1024, guard, &s) }.map_err(|(_, e)| e).unwrap();
        kernel::fill(&mut x.view_mut(), round, &t).unwrap();
        x.fill_bytes(7, &s).unwrap();
        kernel::fill(&mut x.slice_mut(..100), round, &t).unwrap();
        x.fill_bytes(9, &s).unwrap();
        assert!(x.to_vec(&s).unwrap().iter().all(|&v| v == 0x0909_0909));
        x.record_use(&t).unwrap();
        drop(x);
        gpu.synchronize().unwrap();
        gpu.trim(Trim::All).unwrap();
        library.reuse(&sim);
    }
    drop((s, t, gpu, library));
    clean(&sim);
}

/// Many owners whose memory is still in use: a marker falls due, so that they go without any wait.
#[test]
fn many_owners_in_flight_make_a_marker_fall_due() {
    let (sim, gpu, _) = device(Config::default());
    let s = gpu.stream().unwrap();
    let libraries: Vec<Library> = (0..20).map(|_| Library::new(&sim)).collect();
    let arrays: Vec<_> = libraries.iter().map(|library| brought_in(library, &s)).collect();
    drop(arrays);
    s.synchronize().unwrap();
    gpu.synchronize().unwrap();
    gpu.trim(Trim::All).unwrap();
    assert!(libraries.iter().all(|library| library.dropped() == 1));
    drop((s, gpu, libraries));
    clean(&sim);
}
