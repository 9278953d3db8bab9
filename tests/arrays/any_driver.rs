//! An allocator on a device without its type: arrays, copies and kernels of code that is compiled once for all devices.

#![cfg(not(any(loom, shuttle)))]

use super::clean;
use millpond::driver::{AnyDriver, AnyNative, Fences, Mapping, VirtualMemory};
use millpond::erased::Arrays;
use millpond::error::DriverErrorKind;
use millpond::units::{Addr, GIB, KIB, MIB};
use millpond::wrap::{Counted, Limited};
use millpond::{Allocator, Config, DeviceArray, Error, Growth, Limit, Stream, Trim, kernel};
use millpond_sim::null::Null;
use millpond_sim::{Call, Launch, Schedule, Sim};
use std::sync::Arc;

type Gpu = Allocator<AnyDriver>;
type Array = DeviceArray<f32, AnyDriver>;

/// A device that runs nothing before it must, and an allocator that has not its type.
fn device(config: Config) -> (Sim, Gpu) {
    let sim = Sim::new(GIB).schedule(Schedule::Latest);
    let gpu = Allocator::new(AnyDriver::new(sim.clone()), config).unwrap();
    (sim, gpu)
}

/// A layer of some framework, which names no device: copies there and back, a kernel, rows, on two streams.
fn layer(gpu: &Gpu, copies: &Stream<AnyDriver>, work: &Stream<AnyDriver>) -> Result<Vec<f32>, Error> {
    let mut x = gpu.array_from_slice(&[1.0, 2.0, 3.0, 4.0], copies)?;
    x.reshape([2, 2])?;
    let mut y: Array = gpu.zeros([2, 2], work)?;
    kernel::saxpy(2.0, &x, &mut y, work)?;
    let more = y.rows_mut(1..).copy_from(gpu.pinned_from_fn([1, 2], |i| 10.0 + i as f32)?, copies)?;
    x.copy_from_device(&y, copies)?;
    kernel::fill(&mut x.slice_mut(..1), 0.5, work)?;
    let back = x.to_pinned(work)?;
    drop((x, y));
    let result = back.wait()?.to_vec();
    drop(more);
    Ok(result)
}

#[test]
fn arrays_copies_and_kernels_need_no_type() {
    for growth in [Growth::default(), Growth::Exact] {
        let (sim, gpu) = device(Config::default().growth(growth).scrub(growth == Growth::Exact));
        let (s, t) = (gpu.stream().unwrap(), gpu.stream().unwrap());
        for _ in 0..4 {
            assert_eq!(layer(&gpu, &s, &t).unwrap(), [0.5, 4.0, 10.0, 11.0]);
        }
        assert!(gpu.trim(Trim::All).unwrap().bytes > 0);
        gpu.synchronize().unwrap();
        drop((s, t, gpu));
        clean(&sim);
    }
    // The same function, on a device of another type.
    let null = Allocator::new(AnyDriver::new(Null::default()), Config::default()).unwrap();
    let (s, t) = (null.stream().unwrap(), null.stream().unwrap());
    assert_eq!(layer(&null, &s, &t).unwrap().len(), 4);
}

/// The oracle judges through it: reuse is in order, and a use that was not recorded is found.
#[test]
fn the_oracle_judges_through_it() {
    let config = || Config::default().growth(Growth::Exact).limit(Limit::Bytes(MIB));
    for recorded in [true, false] {
        let (sim, gpu) = device(config());
        let (s, t) = (gpu.stream().unwrap(), gpu.stream().unwrap());
        let x = gpu.alloc(MIB, &s).unwrap();
        let launch = |x: &millpond::Allocation<AnyDriver>, on: &Stream<AnyDriver>| {
            let kernel = Launch::new("theirs").writes(x.address(), x.len()).tag(x.id().unwrap());
            sim.launch(on.native().downcast_ref().unwrap(), kernel).unwrap();
        };
        t.wait_stream(&s).unwrap();
        if recorded {
            x.record_use(&t).unwrap();
        }
        launch(&x, &t);
        drop(x);
        let y = gpu.alloc(MIB, &s).unwrap();
        launch(&y, &s);
        drop(y);
        sim.run_until_idle();
        assert_eq!(sim.verdict().is_ok(), recorded);
        drop((s, t, gpu));
    }
}

/// Limits and counts of code without a type: the wrappers around it, and arrays on them.
#[test]
fn limits_hold_arrays_without_a_type() {
    let (sim, gpu) = device(Config::default());
    let s = gpu.stream().unwrap();
    let counted = Arc::new(Counted::new(gpu.erase()));
    let part = Limited::new(counted.clone(), 4 * KIB);
    let mut x: Array = part.zeros(1024, &s).unwrap();
    kernel::fill(&mut x, 3.0, &s).unwrap();
    assert!(matches!(part.zeros::<u8, _>(1, &s), Err(Error::AboveLimit { .. })));
    assert_eq!(x.to_vec(&s).unwrap()[1020..], [3.0; 4]);
    drop(x);
    assert_eq!((part.live(), counted.counts().frees), (0, 1));
    drop((part, counted, s, gpu));
    clean(&sim);
}

#[test]
fn devices_meet_by_what_they_are() {
    let sims = Sim::devices(2, GIB);
    let made = |sim: &Sim| Allocator::new(AnyDriver::new(sim.clone()), Config::default()).unwrap();
    let gpus = [made(&sims[0]), made(&sims[1])];
    let [s, t] = [gpus[0].stream().unwrap(), gpus[1].stream().unwrap()];
    let from = gpus[0].array_from_slice(&[1.0_f32, 2.0], &s).unwrap();
    let mut to: Array = gpus[1].zeros(2, &t).unwrap();
    to.copy_from_peer(&from, &s, &t).unwrap();
    assert_eq!(to.to_vec(&t).unwrap(), [1.0, 2.0]);
    // Of another kind there is no way, and nothing is queued.
    let null = Allocator::new(AnyDriver::new(Null::default()), Config::default()).unwrap();
    let far = null.stream().unwrap();
    let mut elsewhere: Array = null.zeros(2, &far).unwrap();
    let refused = elsewhere.copy_from_peer(&from, &s, &far).unwrap_err();
    assert!(refused.to_string().contains("another kind of device"), "{refused}");
    assert!(matches!(gpus[0].alloc(1, &far), Err(Error::OtherAllocator { .. })));
    // A stream of another kind is no stream of this one's, and an event of it is none.
    let device = AnyDriver::new(sims[0].clone());
    let unknown_stream = AnyNative::new(7_u64);
    assert!(device.downcast_ref::<Sim>().is_some() && device.downcast_ref::<Null>().is_none());
    assert!(unknown_stream.downcast_ref::<u64>() == Some(&7) && !device.is_last_reference(&unknown_stream));
    let refused = gpus[0].adopt(unknown_stream).unwrap_err();
    assert!(matches!(&refused, Error::Driver(e) if e.kind == DriverErrorKind::InvalidHandle), "{refused}");
    drop((from, to, s, t));
    drop(gpus);
    for sim in &sims {
        clean(sim);
    }
}

/// What a stream's references count is the native one's: none is dropped while another exists.
#[test]
fn references_are_the_native_streams() {
    let (sim, gpu) = device(Config::default());
    let driver = AnyDriver::new(sim.clone());
    let native = driver.create_stream(millpond::driver::StreamOptions::default()).unwrap();
    let other = native.clone();
    assert!(!driver.is_last_reference(&native));
    drop(other);
    assert!(driver.is_last_reference(&native));
    let s = gpu.adopt(native).unwrap();
    let x: Array = gpu.zeros(16, &s).unwrap();
    drop(s);
    assert_eq!(x.to_vec(&gpu.stream().unwrap()).unwrap(), [0.0; 16]);
    drop((x, gpu, driver));
    clean(&sim);
}

/// Virtual memory is the device's, and a device without has none.
#[test]
fn virtual_memory_needs_no_type() {
    let (sim, other) = (Sim::new(GIB), Sim::new(GIB).virtual_memory(false));
    assert!(VirtualMemory::new(AnyDriver::new(other)).is_none());
    let driver = AnyDriver::new(sim.clone());
    let memory = VirtualMemory::new(driver.clone()).unwrap();
    let unit = memory.facts().granularity;
    let base = memory.reserve(4 * unit, None).unwrap();
    let handle = memory.create(unit).unwrap();
    memory.map(handle, base).unwrap();
    memory.map(handle, Addr(base.0 + 2 * unit)).unwrap();
    assert_eq!((sim.ledger().mappings, sim.ledger().handles), (2, 1));
    sim.fail(Call::Unmap, 1, DriverErrorKind::Other);
    assert_eq!(memory.unmap(base).unwrap_err().call, "cuMemUnmap");
    memory.unmap(base).unwrap();
    drop(memory);
    // A handle is equal to its copies, and is refused by a device of another kind.
    let (one, two) = (driver.create(unit).unwrap(), driver.create(unit).unwrap());
    assert!(one == one.clone() && one != two);
    let null = AnyDriver::new(Null::default());
    assert!(one != null.create(unit).unwrap());
    let theirs = VirtualMemory::new(null.clone()).unwrap().reserve(unit, None).unwrap();
    #[allow(unsafe_code, reason = "a wrong call on purpose, and the handles of this test")]
    // SAFETY: the null device has no memory behind its addresses, and refuses what is not its own; each handle is released once.
    unsafe {
        assert_eq!(null.map(theirs, &one).unwrap_err().kind, DriverErrorKind::InvalidHandle);
        driver.release(&one).unwrap();
        driver.release(&two).unwrap();
    }
    clean(&sim);
}

/// The device's failures come through as they are.
#[test]
fn failures_are_the_devices() {
    let (sim, gpu) = device(Config::default());
    let s = gpu.stream().unwrap();
    let mut x: Array = gpu.zeros(16, &s).unwrap();
    for call in [Call::EventRecord, Call::MemsetD8] {
        sim.fail(call, 1, DriverErrorKind::Other);
        let failed = match call {
            Call::EventRecord => s.record().map(drop),
            _ => x.fill_bytes(1, &s),
        };
        assert!(matches!(failed, Err(Error::Driver(_))), "{call:?}: {failed:?}");
    }
    sim.fail(Call::MemAlloc, 1, DriverErrorKind::OutOfMemory);
    assert!(gpu.alloc(64 * MIB, &s).is_ok(), "or the ladder finds another way");
    drop((x, s, gpu));
    clean(&sim);
}
