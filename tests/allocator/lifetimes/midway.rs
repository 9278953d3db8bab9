//! The driver panics in the middle of what belongs together, a host function of the program's for example: borrows end after their copies, a use is
//! recorded, memory and streams go back nevertheless, and the panic passes through.

use super::disturbed::panics;
use crate::rig::{all_clean, late, on};
use millpond::array::ExternalMemory;
use millpond::driver::{Fences, Memory, StreamOptions};
use millpond::transfer::scope;
use millpond::units::MIB;
use millpond::{Config, DeviceArray, DriverErrorKind, Growth, Limit, Trim};
use millpond_sim::{Call, Launch, Sim};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

fn room_for_one() -> Config {
    Config::default().growth(Growth::Exact).limit(Limit::Bytes(MIB))
}

/// What was borrowed for copies in a scope can be read when the scope is over, whichever way it ended.
#[test]
fn borrows_of_a_scope_end_behind_its_copies() {
    for call in [Call::EventSynchronize, Call::StreamSynchronize] {
        let sim = late();
        let gpu = on(&sim, Config::default());
        let s = gpu.stream().unwrap();
        let mut x = gpu.uninit::<u8>(4096, &s).unwrap();
        x.fill_bytes(7, &s).unwrap();
        let mut to = gpu.pinned_zeros::<u8>(4096).unwrap();
        sim.panic_behind(call, 1);
        let copied = catch_unwind(AssertUnwindSafe(|| scope(&s, |c| c.download(&x, to.view_mut()))));
        assert_eq!(copied.is_err(), call == Call::EventSynchronize, "{call:?}");
        assert!(to.iter().all(|&byte| byte == 7), "{call:?}: the copy is over");
        sim.clear_faults();
        drop((x, to, s, gpu));
        sim.verdict().unwrap();
    }
}

/// The host's memory of a copy behind which the driver panics, or fails in the record and in the wait, goes back when the copy is done, and not before.
#[test]
fn the_hosts_memory_goes_back_behind_its_copy() {
    for panicking in [true, false] {
        let sim = late();
        let gpu = on(&sim, Config::default());
        let s = gpu.stream().unwrap();
        let mut x = gpu.uninit::<u8>(4096, &s).unwrap();
        x.fill_bytes(7, &s).unwrap();
        let from = Arc::new(gpu.pinned_from_fn(4096, |_| 5u8).unwrap());
        if panicking {
            sim.panic_behind(Call::MemcpyHtoD, 1);
            panics(|| drop(x.copy_from(Arc::clone(&from), &s).unwrap()));
        } else {
            sim.fail(Call::EventRecord, 1, DriverErrorKind::InvalidValue);
            sim.fail(Call::StreamSynchronize, 1, DriverErrorKind::InvalidValue);
            let refused = x.copy_from(Arc::clone(&from), &s).unwrap_err();
            assert!(refused.host.is_none(), "the copy is pending");
        }
        sim.clear_faults();
        assert_eq!(Arc::strong_count(&from), 2, "the device reads it");
        s.synchronize().unwrap();
        gpu.trim(Trim::All).unwrap();
        assert_eq!(Arc::strong_count(&from), 1, "it is done");
        assert!(x.to_pinned(&s).unwrap().wait().unwrap().iter().all(|&byte| byte == 5));
        drop((x, from, s));
        all_clean(&sim, gpu);
    }
}

/// A limit that is set below what is taken, and whose trim panics, is the one before.
#[test]
fn a_limit_that_is_not_reached_is_not_set() {
    let sim = late();
    let gpu = on(&sim, Config::default().growth(Growth::Exact).limit(Limit::Bytes(4 * MIB)));
    let s = gpu.stream().unwrap();
    drop(gpu.alloc(2 * MIB, &s).unwrap());
    s.synchronize().unwrap();
    sim.panic_behind(Call::MemFree, 1);
    panics(|| gpu.set_limit(Limit::Bytes(MIB)).unwrap());
    assert_eq!(gpu.report().limit, Some(4 * MIB));
    drop(gpu.alloc(4 * MIB, &s).expect("as before"));
    drop(s);
    all_clean(&sim, gpu);
}

/// Bytes that are freed behind a stream's work are, though the driver panics when it is queried about the stream, or in what is due.
#[test]
fn a_free_on_a_stream_is_behind_it() {
    let sim = late();
    let gpu = on(&sim, room_for_one());
    let s = gpu.stream().unwrap();
    let t = gpu.adopt(sim.create_stream(StreamOptions::default()).unwrap()).unwrap();
    let x = gpu.alloc(MIB, &s).unwrap();
    t.wait_stream(&s).unwrap();
    sim.launch(t.native(), Launch::new("reads").reads(x.address(), MIB)).unwrap();
    sim.panic_behind(Call::StreamIsCapturing, 1);
    panics(|| x.free_on(&t).map_err(|(_, e)| e).unwrap());
    let y = gpu.alloc(MIB, &s).unwrap();
    sim.launch(s.native(), Launch::new("writes").writes(y.address(), MIB)).unwrap();
    drop((y, s, t, gpu));
    sim.verdict().unwrap();
}

/// Bytes with unknown users become free, though the driver panics in due maintenance before, or in the marker after; pinned ones too.
#[test]
fn a_free_by_unknown_streams_is_one() {
    for call in [Call::EventRecord, Call::CtxRecordEvent] {
        let sim = late();
        let gpu = on(&sim, Config::default().pinned_limit(64 * MIB));
        let s = gpu.stream().unwrap();
        // The last of a stream is an allocation, whose drop makes no driver call: a later call closes it.
        let closable = || {
            let other = gpu.stream().unwrap();
            let block = gpu.alloc(4096, &other).unwrap();
            drop(other);
            drop(block);
        };
        let (x, pinned) = (gpu.alloc(MIB, &s).unwrap(), gpu.alloc_pinned(64 * MIB).unwrap());
        closable();
        sim.panic_behind(call, 1);
        panics(|| x.free_unknown());
        closable();
        sim.panic_behind(call, 1);
        panics(|| pinned.free_unknown());
        gpu.synchronize().unwrap();
        assert_eq!(gpu.report().total.allocated, 0, "{call:?}");
        drop(gpu.alloc_pinned(64 * MIB).unwrap());
        gpu.check();
        drop((s, gpu));
        assert_eq!(sim.leaks(), [], "{call:?}");
        sim.verdict().unwrap();
    }
}

/// The last owner goes, and the driver panics in the wait: all goes back, and what others still read is behind its reads.
#[test]
fn the_end_of_an_allocator_gives_everything_back() {
    let sim = late();
    let gpu = on(&sim, Config::default());
    let s = gpu.stream().unwrap();
    let x = gpu.alloc(MIB, &s).unwrap();
    sim.launch(s.native(), Launch::new("writes").writes(x.address(), MIB)).unwrap();
    drop((x, gpu));
    sim.panic_behind(Call::EventSynchronize, 1);
    panics(|| drop(s));
    sim.clear_faults();
    assert_eq!(sim.leaks(), []);
    sim.verdict().unwrap();
}

/// Two values are kept for copies under way when their allocator ends, and the wait for the first panics: the second one's goes on.
#[test]
fn each_kept_value_is_waited_for() {
    let sim = late();
    let (gpu, source) = (on(&sim, Config::default()), on(&sim, Config::default().pinned_limit(64 * MIB)));
    let (s, t) = (gpu.stream().unwrap(), gpu.stream().unwrap());
    let sources = [(); 2].map(|()| Arc::new(source.pinned_from_fn(4096, |_| 7_u8).unwrap()));
    let mut to = [&s, &t].map(|on| gpu.uninit::<u8>(4096, on).unwrap());
    for (to, (from, on)) in to.iter_mut().zip(sources.iter().zip([&s, &t])) {
        drop(to.copy_from(Arc::clone(from), on).unwrap());
    }
    drop(sources);
    sim.panic_behind(Call::EventSynchronize, 1);
    let ended = catch_unwind(AssertUnwindSafe(|| drop((to, s, t, gpu))));
    assert!(ended.is_err(), "the wait panics");
    sim.clear_faults();
    // The next owner of a source's memory writes it at once.
    let mut next = source.pinned_zeros::<u8>(4096).unwrap();
    next.fill(9);
    drop((next, source));
    sim.verdict().unwrap();
}

/// Memory that is brought in while an owner that is kept goes, whose drop panics: its own owner stays for the work before.
#[test]
fn an_owner_outlives_the_work_before_though_another_ones_drop_panics() {
    struct Panics;
    impl Drop for Panics {
        fn drop(&mut self) {
            panic!("an owner's drop");
        }
    }
    let sim = late();
    let gpu = on(&sim, Config::default());
    let s = gpu.stream().unwrap();
    let (first, second) = (sim.allocate(4096).unwrap(), sim.allocate(4096).unwrap());
    let (one, two) = (first.addr(), second.addr());
    let memory = |address| ExternalMemory { address, bytes: 4096, device: gpu.device() };
    // SAFETY: the ranges live as long as their owners.
    #[allow(unsafe_code, reason = "memory of others")]
    let bring_in = |address, owner: Box<dyn Send>| unsafe {
        DeviceArray::<u8, Sim>::from_external(memory(address), 4096, owner, &s).map_err(|(_, e)| e).unwrap()
    };
    let t = gpu.stream().unwrap();
    let x = bring_in(one, Box::new(Panics));
    drop(x);
    t.wait_stream(&s).unwrap();
    sim.run_until_idle();
    // The work before, on the stream that it is brought in on.
    sim.launch(s.native(), Launch::new("before").writes(two, 4096)).unwrap();
    let owner = Arc::new(());
    panics(|| drop(bring_in(two, Box::new(Arc::clone(&owner)))));
    assert_eq!(Arc::strong_count(&owner), 2, "kept for the work before");
    gpu.synchronize().unwrap();
    assert_eq!(Arc::strong_count(&owner), 1);
    drop((first, second, s, t, gpu));
    sim.verdict().unwrap();
}

/// A use of memory of others is recorded, though the driver panics in what is due before.
#[test]
fn a_use_of_memory_of_others_is_recorded() {
    let sim = late();
    let gpu = on(&sim, Config::default());
    let (s, t) = (gpu.stream().unwrap(), gpu.stream().unwrap());
    let range = sim.allocate(4096).unwrap();
    let memory = ExternalMemory { address: range.addr(), bytes: 4096, device: gpu.device() };
    let owner = Arc::new(());
    // SAFETY: the range lives until the end of the test.
    #[allow(unsafe_code, reason = "memory of others")]
    let made = unsafe { DeviceArray::<u8, Sim>::from_external(memory, 4096, Arc::clone(&owner), &s) };
    let x = made.map_err(|(_, e)| e).unwrap();
    // The last of a stream is an allocation, whose drop makes no driver call: a later call closes it.
    let other = gpu.stream().unwrap();
    let block = gpu.alloc(4096, &other).unwrap();
    drop(other);
    drop(block);
    sim.panic_behind(Call::EventRecord, 1);
    panics(|| x.record_use(&t).unwrap());
    sim.launch(t.native(), Launch::new("reads").reads(range.addr(), 4096)).unwrap();
    drop(x);
    s.synchronize().unwrap();
    drop(s.record().unwrap());
    assert_eq!(Arc::strong_count(&owner), 2, "kept for the reader");
    gpu.synchronize().unwrap();
    assert_eq!(Arc::strong_count(&owner), 1);
    drop((range, s, t, gpu));
    sim.verdict().unwrap();
}

/// What was begun before user code ran, and is done or taken back though that panics: an owner whose drop panics is dropped by the verb itself.
#[test]
fn what_a_verb_began_is_done_or_taken_back_though_an_owners_drop_panics() {
    type Verb = fn(&Owned);
    let verbs: [(&str, Verb); 4] = [
        ("record_use", |o| {
            let (x, t) = (o.block(), o.reader());
            o.owned();
            panics(|| x.record_use(&t).unwrap());
            o.reads(&t, x.address());
            drop(x);
            o.is_in_flight("the use");
        }),
        ("free_on", |o| {
            let (x, t) = (o.block(), o.reader());
            o.owned();
            o.reads(&t, x.address());
            panics(|| x.free_on(&t).map_err(|(_, e)| e).unwrap());
            o.is_in_flight("the use");
        }),
        ("record_use of pinned memory", |o| {
            let (pinned, t) = (o.gpu.alloc_pinned(4096).unwrap(), o.reader());
            o.owned();
            panics(|| pinned.record_use(&t).unwrap());
            let gate = o.sim.gate(t.native()).unwrap();
            drop(pinned);
            assert!(o.gpu.report().pinned.unwrap().in_flight > 0, "the use is recorded");
            gate.open();
        }),
        ("record_use of memory of others", |o| {
            let owner = Arc::new(());
            let (x, t) = (o.brought_in(Arc::clone(&owner)), o.reader());
            o.owned();
            panics(|| x.record_use(&t).unwrap());
            o.reads(&t, x.address());
            drop(x);
            o.home.synchronize().unwrap();
            drop(o.home.record().unwrap());
            assert_eq!(Arc::strong_count(&owner), 2, "kept for the reader");
        }),
    ];
    for (what, verb) in verbs {
        let owned = Owned::new();
        verb(&owned);
        owned.gpu.synchronize().unwrap();
        owned.gpu.check();
        owned.end(what);
    }
}

/// An allocator with an owner to be dropped by the next call that may, whose drop panics.
struct Owned {
    sim: Sim,
    gpu: millpond::Allocator<Sim>,
    home: millpond::Stream<Sim>,
    kept: std::cell::RefCell<Vec<millpond::driver::OwnedRange<Sim>>>,
}

struct DropPanics;
impl Drop for DropPanics {
    fn drop(&mut self) {
        panic!("an owner's drop");
    }
}

impl Owned {
    fn new() -> Owned {
        let sim = late();
        let gpu = on(&sim, Config::default().growth(Growth::Exact).limit(Limit::Bytes(4 * MIB)));
        Owned { home: gpu.stream().unwrap(), gpu, sim, kept: std::cell::RefCell::default() }
    }
    /// An array in external memory.
    fn brought_in<O: Send + 'static>(&self, owner: O) -> DeviceArray<u8, Sim> {
        let range = self.sim.allocate(4096).unwrap();
        let memory = ExternalMemory { address: range.addr(), bytes: 4096, device: self.gpu.device() };
        self.kept.borrow_mut().push(range);
        // SAFETY: the range lives until the end of the test.
        #[allow(unsafe_code, reason = "memory of others")]
        let made = unsafe { DeviceArray::from_external(memory, 4096, owner, &self.home) };
        made.map_err(|(_, e)| e).unwrap()
    }
    /// One that is over and not yet known to be: the next call that queries drops its owner.
    fn owned(&self) {
        let mut x = self.brought_in(DropPanics);
        x.fill_bytes(1, &self.home).unwrap();
        drop(x);
        drop(self.home.record().unwrap());
        self.sim.run_until_idle();
    }
    fn block(&self) -> millpond::Allocation<Sim> {
        self.gpu.alloc(MIB, &self.home).unwrap()
    }
    fn reader(&self) -> millpond::Stream<Sim> {
        self.gpu.stream().unwrap()
    }
    fn reads(&self, on: &millpond::Stream<Sim>, at: millpond::units::Addr) {
        self.sim.launch(on.native(), Launch::new("reads").reads(at, 4096)).unwrap();
    }
    fn is_in_flight(&self, what: &str) {
        assert!(self.gpu.report().total.in_flight > 0, "{what} is recorded");
    }
    fn end(self, what: &str) {
        let Owned { sim, gpu, home, kept } = self;
        drop((gpu, home));
        drop(kept);
        assert_eq!(sim.leaks(), [], "{what}");
        sim.verdict().unwrap_or_else(|v| panic!("{what}: {v}"));
    }
}
