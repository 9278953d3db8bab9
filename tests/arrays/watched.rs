//! Arrays on allocators with a limit, a count or a log: who watches an allocation sees the array, and copies and kernels work on it as on any.

#![cfg(not(any(loom, shuttle)))]

use super::clean;
use millpond::erased::{Arrays, GpuAlloc};
use millpond::units::{GIB, KIB};
use millpond::wrap::{Call, Counted, Limited, Logged};
use millpond::{Allocator, Config, DeviceArray, Error, Growth, Limit, kernel};
use millpond_sim::null::Null;
use millpond_sim::{Schedule, Sim};
use std::sync::{Arc, Mutex};

type Array<T> = DeviceArray<T, Sim>;

/// A device that runs nothing before it must, and an allocator that has 4 KiB of it.
fn device() -> (Sim, Allocator<Sim>) {
    let sim = Sim::new(GIB).schedule(Schedule::Latest);
    let gpu =
        Allocator::new(sim.clone(), Config::default().growth(Growth::Exact).limit(Limit::Bytes(4 * KIB)));
    (sim, gpu.unwrap())
}

#[test]
fn an_array_is_within_the_limit_until_its_drop() {
    let (sim, gpu) = device();
    let s = gpu.stream().unwrap();
    let limited = Limited::new(gpu.erase(), 2 * KIB);
    let x: Array<f32> = limited.zeros([16, 16], &s).unwrap();
    assert_eq!((limited.live(), x.shape().to_vec()), (KIB, vec![16, 16]));
    let refused = limited.uninit::<u8, _>(KIB as usize + 1, &s).unwrap_err();
    assert!(
        matches!(refused, Error::AboveLimit { requested: 1025, allocated: 1024, max: 2048 }),
        "{refused}"
    );
    let y: Array<u8> = limited.uninit(KIB as usize, &s).unwrap();
    assert!(limited.zeros::<u8, _>(1, &s).is_err(), "not one byte more");
    std::thread::scope(|threads| drop(threads.spawn(move || drop(x))));
    assert_eq!(limited.live(), KIB);
    // Elsewhere there is enough: the limit applies to users of the wrapper.
    drop(gpu.zeros::<u8>(2 * KIB as usize, &s).unwrap());
    drop(limited);
    drop((y, s, gpu));
    clean(&sim);
}

/// The same bytes again and again, on two streams, by copies and kernels: in order though nothing waits, and each use is seen.
#[test]
fn copies_and_kernels_are_ordered_and_seen() {
    let (sim, gpu) = device();
    let (s, t) = (gpu.stream().unwrap(), gpu.stream().unwrap());
    let logged_calls = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&logged_calls);
    let logged = Arc::new(Logged::new(gpu.erase(), move |_, call| sink.lock().unwrap().push(call.clone())));
    let counted = Arc::new(Counted::new(Arc::clone(&logged) as Arc<dyn GpuAlloc>));
    let part = Limited::new(Arc::clone(&counted) as Arc<dyn GpuAlloc>, 4 * KIB);
    for round in 0..4_u16 {
        let mut x: Array<f32> = part.uninit(KIB as usize, &s).unwrap();
        let sent = x.copy_from(gpu.pinned_from_fn(KIB as usize, |i| i as f32).unwrap(), &s).unwrap();
        // On its own stream: no use elsewhere.
        kernel::fill(&mut x.slice_mut(..2), 7.0, &s).unwrap();
        assert_eq!(counted.counts().uses, u64::from(round) * 2);
        kernel::fill(&mut x.slice_mut(1..3), f32::from(round), &t).unwrap();
        let back = x.to_pinned(&t).unwrap();
        assert_eq!(counted.counts().uses, u64::from(round) * 2 + 2);
        drop(x);
        assert_eq!((part.live(), counted.counts().live), (0, 0));
        assert_eq!(back.wait().unwrap()[..4], [7.0, f32::from(round), f32::from(round), 3.0]);
        drop(sent);
    }
    logged.deliver();
    let logged_calls = std::mem::take(&mut *logged_calls.lock().unwrap());
    for calls in logged_calls.chunks(4) {
        let Call::Allocated(facts) = calls[0] else { panic!("{calls:?}") };
        let used = || Call::Used { what: facts, by: t.id() };
        assert_eq!(calls[1..], [used(), used(), Call::Freed(facts)]);
    }
    assert_eq!((logged_calls.len(), counted.counts().bytes_live_peak), (16, 4 * KIB));
    drop((part, counted, logged, s, t, gpu));
    clean(&sim);
}

/// What was recorded on the allocation, and what its stream held, comes before the array's operations.
#[test]
fn an_array_knows_what_was_recorded_before_it_was_one() {
    let (sim, gpu) = device();
    let (s, t) = (gpu.stream().unwrap(), gpu.stream().unwrap());
    let counted = Counted::new(gpu.erase());
    let memory = counted.alloc(KIB, &s.erase()).unwrap();
    memory.share_with(&t.erase()).unwrap();
    let kernel = millpond_sim::Launch::new("theirs").writes(memory.address(), KIB);
    sim.launch(t.native(), kernel.tag(memory.facts().id.unwrap())).unwrap();
    let mut x: Array<u8> = memory.into_array([2, 512]).unwrap();
    x.fill_bytes(1, &s).unwrap();
    assert_eq!(x.to_vec(&s).unwrap(), [1; 1024]);
    x.record_use(&t).unwrap();
    assert_eq!(counted.counts().uses, 2);
    drop((x, s, t, gpu));
    assert_eq!(counted.counts().live, 0);
    drop(counted);
    clean(&sim);
}

#[test]
fn watchers_stay_with_the_memory_whatever_it_becomes() {
    let (sim, gpu) = device();
    let s = gpu.stream().unwrap();
    let limited = Limited::new(gpu.erase(), KIB);
    let memory = limited.alloc(KIB, &s.erase()).unwrap();
    let (memory, short) = memory.into_array::<u32, Sim>(257).unwrap_err();
    assert!(short.to_string().contains("ask for fewer elements"), "{short}");
    let (memory, other) = memory.into_array::<u32, Null>(256).unwrap_err();
    assert!(other.to_string().contains("different kinds of devices"), "{other}");
    let (memory, long) = memory.into_array::<u32, Sim>([usize::MAX, 8]).unwrap_err();
    assert!(matches!(long, Error::Overflow { .. }), "{long}");
    assert_eq!(limited.live(), KIB);
    let x: Array<u32> = memory.into_array(256).unwrap();
    let x = x.into_allocation().expect_err("the limit has to see its end");
    let memory = x.erase().unwrap();
    assert_eq!((limited.live(), memory.len()), (KIB, KIB));
    let x: Array<u64> = memory.into_array(128).unwrap();
    assert_eq!(limited.live(), KIB);
    x.erase().unwrap().free_unknown();
    assert_eq!(limited.live(), 0);
    // No watchers: the allocation comes out as it always did.
    let plain: Array<u8> = gpu.erase().zeros(KIB as usize, &s).unwrap();
    assert_eq!(plain.into_allocation().unwrap().len(), KIB);
    // No bytes are an allocation too.
    let none: Array<u8> = limited.zeros(0, &s).unwrap();
    assert!(none.is_empty() && none.erase().unwrap().is_empty());
    drop((limited, s, gpu));
    clean(&sim);
}
