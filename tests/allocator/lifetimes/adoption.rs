//! Streams that other code made: adopted twice, again after a close, by two allocators, on the wrong thread, and
//! destroyed without the allocator's knowledge.

use crate::rig::{all_back, all_clean, check, late, on, write};
use millpond::driver::Fences;
use millpond::units::{GIB, MIB};
use millpond::{Config, Error, Limit, Reuse, Trim};
use millpond_sim::Sim;

#[test]
fn adopting_one_stream_twice_gives_one_pool() {
    let sim = late();
    let gpu = on(&sim, Config::default());
    let native = sim.stream().unwrap();
    let (one, two) = (gpu.adopt(native.clone()).unwrap(), gpu.adopt(native).unwrap());
    assert_eq!(one.id(), two.id());
    let x = gpu.alloc(MIB, &one).unwrap();
    let at = x.address();
    write(&sim, &x, &one);
    drop((x, one));
    let y = gpu.alloc(MIB, &two).unwrap();
    assert_eq!(y.address(), at, "one pool, which the first handle's drop did not close");
    write(&sim, &y, &two);
    assert_eq!(gpu.report().pools.len(), 1);
    drop((y, two));
    all_clean(&sim, gpu);
}

/// A stream adopted again after its pool closed gets a new pool; the old one's bytes still find their way to it.
#[test]
fn adopting_again_after_the_close() {
    let sim = late();
    let gpu = on(&sim, Config::default().limit(Limit::Bytes(64 * MIB)));
    let native = sim.stream().unwrap();
    for _ in 0..5 {
        let s = gpu.adopt(native.clone()).unwrap();
        let x = gpu.alloc(64 * MIB, &s).unwrap();
        write(&sim, &x, &s);
        check(&sim, &x, &s);
    }
    assert_eq!(gpu.report().growths, 1);
    drop(native);
    all_clean(&sim, gpu);
}

/// A closed pool whose stream is still marked for another's sake must not hide the open pool of the same stream:
/// `adopt` found the closed one first and made a new pool at every call.
#[test]
fn adopting_twice_after_a_close_with_an_open_use_gives_one_pool() {
    let sim = late();
    let gpu = on(&sim, Config::default());
    let (native, home) = (sim.stream().unwrap(), gpu.stream().unwrap());
    let x = gpu.alloc(MIB, &home).unwrap();
    let s = gpu.adopt(native.clone()).unwrap();
    let cached = gpu.alloc(MIB, &s).unwrap();
    s.wait_stream(&home).unwrap();
    x.record_use(&s).unwrap();
    drop(cached);
    // The pool closes; the timeline stays, because x may still be used there.
    drop(s);
    let (one, two) = (gpu.adopt(native.clone()).unwrap(), gpu.adopt(native.clone()).unwrap());
    let y = gpu.alloc(3 * MIB, &one).unwrap();
    let at = y.address();
    drop(y);
    let z = gpu.alloc(3 * MIB, &two).unwrap();
    assert_eq!(z.address(), at, "two handles of one pool");
    drop((z, x, one, two, home, native));
    all_clean(&sim, gpu);
}

/// Two allocators that adopt the same streams share what is known of their order.
#[test]
fn two_allocators_share_timelines() {
    let sim = late();
    let options = || Config::default().limit(Limit::Bytes(64 * MIB));
    let (one, two) = (on(&sim, options()), on(&sim, options()));
    let natives = [sim.stream().unwrap(), sim.stream().unwrap()];
    let [a1, b1] = natives.each_ref().map(|n| one.adopt(n.clone()).unwrap());
    let [a2, b2] = natives.each_ref().map(|n| two.adopt(n.clone()).unwrap());
    let x = two.alloc(64 * MIB, &a2).unwrap();
    write(&sim, &x, &a2);
    drop(x);
    // Ordered through the first allocator, known to the second.
    b1.wait_stream(&a1).unwrap();
    let y = two.alloc(64 * MIB, &b2).unwrap();
    write(&sim, &y, &b2);
    let report = two.report();
    assert_eq!((report.growths, report.total.counters.waits_inserted), (1, 0));
    // A block of one, used on a stream of the other.
    let z = one.alloc(MIB, &a1).unwrap();
    z.share_with(&b2).unwrap();
    write(&sim, &z, &b2);
    drop((z, y, a1, b1, a2, b2, natives));
    one.check();
    drop(one);
    all_clean(&sim, two);
}

/// Streams of another allocator and of another device are typed errors wherever a stream is taken.
#[test]
fn streams_of_other_allocators_are_typed_errors() {
    let world = Sim::devices(2, GIB);
    let (here, there) = (on(&world[0], Config::default()), on(&world[1], Config::default()));
    let sibling = on(&world[0], Config::default());
    let (mine, theirs, siblings) =
        (here.stream().unwrap(), there.stream().unwrap(), sibling.stream().unwrap());
    assert!(
        matches!(here.alloc(512, &siblings), Err(Error::OtherAllocator { stream, .. }) if stream == siblings.id())
    );
    assert!(matches!(here.alloc(512, &theirs), Err(Error::WrongDevice { .. })));
    assert!(matches!(here.trim(Trim::Stream(&theirs)), Err(Error::WrongDevice { .. })));
    assert!(matches!(here.adopt(theirs.native().clone()), Err(Error::WrongDevice { .. })));
    let x = here.alloc(512, &mine).unwrap();
    assert!(matches!(x.record_use(&theirs), Err(Error::WrongDevice { .. })));
    assert!(matches!(x.share_with(&theirs), Err(Error::WrongDevice { .. })));
    let event = theirs.record().unwrap();
    assert!(matches!(x.record_use_until(&event), Err(Error::WrongDevice { .. })));
    let (x, e) = x.free_on(&theirs).unwrap_err();
    assert!(e.to_string().contains("device 1") && e.to_string().contains("device 0"), "{e}");
    let pinned = here.alloc_pinned(512).unwrap();
    assert!(matches!(pinned.record_use(&theirs), Err(Error::WrongDevice { .. })));
    assert!(matches!(pinned.record_use_until(&event), Err(Error::WrongDevice { .. })));
    // Order across devices is the device's, and works.
    mine.wait(&event).unwrap();
    drop((x, pinned, event, mine, theirs, siblings));
    sibling.check();
    drop(sibling);
    there.check();
    drop(there);
    all_clean(&world[0], here);
    all_back(&world[1]);
}

/// The handle 2 means another stream on each thread: a verb that names it on a wrong thread would act on that thread's
/// stream while the clocks say it acted on the owner's. (All verbs: `default_streams`.)
#[test]
fn a_per_thread_default_stream_on_a_wrong_thread_orders_nothing() {
    let sim = late();
    let gpu = on(&sim, Config::default().limit(Limit::Bytes(64 * MIB)));
    let (mine, other) = (gpu.adopt(sim.per_thread_stream()).unwrap(), gpu.stream().unwrap());
    let x = gpu.alloc(64 * MIB, &other).unwrap();
    write(&sim, &x, &other);
    drop(x);
    std::thread::scope(|t| {
        let (mine, other, gpu) = (&mine, &other, &gpu);
        t.spawn(move || {
            for e in [
                mine.wait_stream(other).unwrap_err(),
                mine.synchronize().unwrap_err(),
                gpu.alloc(64 * MIB, mine).map(drop).unwrap_err(),
                mine.record().map(drop).unwrap_err(),
            ] {
                assert!(e.to_string().contains("another thread"), "{e}");
            }
            let counters = gpu.report().total.counters;
            assert_eq!((counters.waits_inserted, counters.host_waits), (0, 0));
        });
    });
    // On its own thread all of it works.
    let y = gpu.alloc(64 * MIB, &mine).unwrap();
    write(&sim, &y, &mine);
    mine.synchronize().unwrap();
    drop((y, mine, other));
    all_clean(&sim, gpu);
}

/// The last handle of a per-thread default stream may go on another thread, with no context-wide markers to be had: the
/// stream's end must not be read off the wrong thread's stream.
#[test]
fn a_per_thread_default_stream_closed_by_another_thread() {
    use millpond::DriverErrorKind::NotSupported;
    use millpond_sim::Call;
    let sim = late();
    let gpu = on(&sim, Config::default().limit(Limit::Bytes(64 * MIB)));
    let (mine, other) = (gpu.adopt(sim.per_thread_stream()).unwrap(), gpu.stream().unwrap());
    let x = gpu.alloc(64 * MIB, &mine).unwrap();
    write(&sim, &x, &mine);
    check(&sim, &x, &mine);
    drop(x);
    sim.fail(Call::CtxRecordEvent, 1, NotSupported);
    std::thread::scope(|t| {
        t.spawn(move || drop(mine));
    });
    sim.clear_faults();
    let y = gpu.alloc(64 * MIB, &other).unwrap();
    write(&sim, &y, &other);
    drop((y, other));
    all_clean(&sim, gpu);
}

/// A stream that its owner destroyed although it was adopted: later verbs say so, nothing is reused too early, and a
/// synchronise of the device gives its memory back to use.
#[test]
fn an_adopted_stream_destroyed_by_its_owner() {
    let sim = late();
    let gpu = on(&sim, Config::default().limit(Limit::Bytes(64 * MIB)));
    let (native, other) = (sim.stream().unwrap(), gpu.stream().unwrap());
    let s = gpu.adopt(native.clone()).unwrap();
    let x = gpu.alloc(64 * MIB, &s).unwrap();
    write(&sim, &x, &s);
    sim.destroy_stream(&native).unwrap();
    drop(x);
    assert!(matches!(s.record(), Err(Error::Driver(_))));
    let refused = gpu.alloc(64 * MIB, &other).unwrap_err();
    let facts = refused.out_of_memory().unwrap_or_else(|| panic!("{refused:?}"));
    assert!(facts.passed_over.is_some(), "no marker can be made: {refused}");
    gpu.check();
    gpu.synchronize().unwrap();
    let y = gpu.alloc(64 * MIB, &other).unwrap();
    write(&sim, &y, &other);
    drop((y, s, other, native));
    all_clean(&sim, gpu);
}

/// An unadopted stream's work, destroyed stream or not, is covered by `free_unknown`.
#[test]
fn free_unknown_covers_raw_and_destroyed_streams() {
    for destroyed in [false, true] {
        let sim = late();
        let gpu = on(&sim, Config::default().reuse(Reuse::WithWaits).limit(Limit::Bytes(64 * MIB)));
        let (home, raw) = (gpu.stream().unwrap(), sim.stream().unwrap());
        let x = gpu.alloc(64 * MIB, &home).unwrap();
        write(&sim, &x, &home);
        let written = sim.event().unwrap();
        sim.record(&written, home.native()).unwrap();
        sim.wait(&raw, &written).unwrap();
        // By handle, as foreign code would: nothing here owns the stream.
        let foreign = sim.stream_from_handle(raw.handle());
        let pattern = crate::rig::word(&x);
        let launch = millpond_sim::Launch::check_pattern(x.address(), x.len(), pattern);
        sim.launch(&foreign, launch).unwrap();
        if destroyed {
            sim.destroy_stream(&raw).unwrap();
        }
        x.free_unknown();
        assert_eq!(gpu.report().total.in_flight, 64 * MIB);
        let y = gpu.alloc(64 * MIB, &home).unwrap();
        write(&sim, &y, &home);
        assert_eq!(gpu.report().total.counters.waits_inserted, 1, "for the whole context");
        drop((y, home, raw, foreign, written));
        all_clean(&sim, gpu);
    }
}

/// A driver too old for context-wide markers: a request does not wait for the whole context instead, the program may; and
/// `trim` does not fail for ever.
#[test]
fn free_unknown_where_context_markers_are_not_supported() {
    use millpond::DriverErrorKind::NotSupported;
    use millpond_sim::Call;
    let sim = late();
    let gpu = on(&sim, Config::default().limit(Limit::Bytes(64 * MIB)));
    let home = gpu.stream().unwrap();
    for nth in 1..100 {
        sim.fail(Call::CtxRecordEvent, nth, NotSupported);
    }
    let x = gpu.alloc(64 * MIB, &home).unwrap();
    write(&sim, &x, &home);
    x.free_unknown();
    let trimmed = gpu.trim(Trim::All).expect("nothing to be had is no failure");
    assert_eq!(trimmed.bytes, 0, "it is not known to be complete");
    assert!(gpu.alloc(64 * MIB, &home).unwrap_err().out_of_memory().is_some());
    assert_eq!((gpu.report().total.counters.host_waits, sim.ledger().host_waits), (0, 0));
    gpu.synchronize().unwrap();
    let y = gpu.alloc(64 * MIB, &home).expect("behind a synchronise of the context");
    write(&sim, &y, &home);
    y.free_unknown();
    gpu.synchronize().unwrap();
    assert_eq!(gpu.trim(Trim::All).unwrap().bytes, 64 * MIB);
    drop(home);
    all_clean(&sim, gpu);
}
