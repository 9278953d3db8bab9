//! Copies that only a wait of the host's keeps from what comes next, and whose waits fail: they are waited for by another marker, else by unpinning a
//! page, else with the whole device. Only the last is refused beside a capture by other code, and ends it; then the process ends, because nothing tells when the
//! memory is free.

#![allow(clippy::many_single_char_names, reason = "s is a stream; x, y, z arrays")]

use millpond::units::{GIB, MIB};
use millpond::{
    Allocator, Config, DeviceArray, DriverErrorKind, Error, Growth, Limit, PinnedArray, Stream, transfer,
};
use millpond_sim::{Call, Schedule, Sim, SimStream};
use std::panic::{AssertUnwindSafe, catch_unwind};

const LEN: usize = 64;

/// An adopted stream, sevens on the device, and where the host wants them; and a stream that the allocator does not know, on which other code may capture.
struct World {
    sim: Sim,
    native: SimStream,
    unknown_stream: Option<SimStream>,
    gpu: Allocator<Sim>,
    s: Stream<Sim>,
    x: DeviceArray<u32, Sim>,
    to: PinnedArray<u32, Sim>,
}

impl World {
    fn new(captures: bool) -> World {
        let sim = Sim::new(GIB).schedule(Schedule::Latest);
        let gpu = Allocator::new(sim.clone(), Config::default()).unwrap();
        let (native, unknown_stream) = (sim.stream().unwrap(), captures.then(|| sim.stream().unwrap()));
        let s = gpu.adopt(native.clone()).unwrap();
        let mut x = gpu.uninit(LEN, &s).unwrap();
        x.fill_bytes(7, &s).unwrap();
        let to = gpu.pinned_zeros(LEN).unwrap();
        if let Some(unknown_stream) = &unknown_stream {
            sim.begin_capture(unknown_stream).unwrap();
        }
        World { sim, native, unknown_stream, gpu, s, x, to }
    }
    /// A copy to borrowed memory; `before` is run behind the copy, and before the scope waits for it.
    fn scope(&mut self, before: impl FnOnce(&Sim)) -> Result<(), Error> {
        transfer::scope(&self.s, |copies| {
            copies.download(&self.x, self.to.view_mut()).unwrap();
            before(&self.sim);
        })
    }
    fn made(&self, call: Call) -> u64 {
        self.sim.ledger().calls_of(call)
    }
    /// The copy is over, whatever was met, and the capture lives.
    #[track_caller]
    fn end(self, what: &str) {
        assert!(self.to.iter().all(|&v| v == 0x0707_0707), "{what}: the borrow ended before the copy");
        let World { sim, native, unknown_stream, gpu, s, x, to } = self;
        sim.clear_faults();
        if let Some(unknown_stream) = &unknown_stream {
            sim.end_capture(unknown_stream).unwrap_or_else(|e| panic!("{what}: the capture: {e}"));
        }
        drop((native, unknown_stream, x, to, s, gpu));
        sim.verdict().unwrap_or_else(|v| panic!("{what}: {v}"));
    }
}

/// The waits of a scope's own, for the event and for the stream.
fn own_waits_fail(sim: &Sim) {
    sim.fail(Call::EventSynchronize, 1, DriverErrorKind::Other);
    sim.fail(Call::StreamSynchronize, 1, DriverErrorKind::Other);
}

/// Each way is tried when those before it fail. Beside a capture by other code the stream's own waits had only to fail, and the process ended.
#[test]
fn a_scope_that_cannot_be_waited_for_ends_no_capture() {
    let fails: [(&str, &[Call], [u64; 3]); 4] = [
        ("another marker", &[], [1, 0, 0]),
        ("a page", &[Call::EventRecord], [0, 1, 0]),
        ("the device, as no page can be pinned", &[Call::EventRecord, Call::MemHostAlloc], [0, 0, 1]),
        ("the device, as no page can be unpinned", &[Call::EventRecord, Call::MemFreeHost], [0, 1, 1]),
    ];
    for (what, more, expected) in fails {
        let mut w = World::new(expected[2] == 0);
        let calls = [Call::EventRecord, Call::MemHostAlloc, Call::CtxSynchronize];
        let mut before = [0; 3];
        let counted = w.made(Call::EventRecord);
        let scoped = w.scope(|sim| {
            before = calls.map(|call| sim.ledger().calls_of(call));
            own_waits_fail(sim);
            for &call in more {
                sim.fail(call, 1, DriverErrorKind::OutOfMemory);
            }
        });
        assert_eq!(before[0], counted + 1, "the copy has its marker");
        scoped.expect_err("the first failure is returned");
        let mut made = calls.map(|call| w.made(call));
        made.iter_mut().zip(before).for_each(|(made, before)| *made -= before);
        // What fails is made too, by the count.
        made.iter_mut().zip(calls).for_each(|(made, call)| *made -= u64::from(more.contains(&call)));
        assert_eq!(made, expected, "{what}");
        w.end(what);
    }
}

/// The stream that is to be waited for captures itself by then: it can be neither waited for nor marked, and its capture lives.
#[test]
fn a_scope_whose_stream_captures_is_waited_for_beside_the_capture() {
    let mut w = World::new(true);
    let native = w.native.clone();
    let scoped = w.scope(|sim| {
        sim.begin_capture(&native).unwrap();
        sim.fail(Call::EventSynchronize, 1, DriverErrorKind::Other);
    });
    assert!(matches!(scoped, Err(Error::Capturing { .. })), "{scoped:?}");
    w.sim.end_capture(&native).expect("it lives");
    w.end("a capture of its own, and another one");
}

/// Any one and any two of the driver calls that a scope's end makes fail, and any number from the first on, up to the last: the borrows end behind the
/// copies, and the result of the end is returned.
#[test]
fn the_borrows_of_a_scope_end_behind_its_copies_whatever_fails() {
    let run = |failing: &[u64]| {
        let mut w = World::new(false);
        let mut before = 0;
        let scoped = w.scope(|sim| {
            before = sim.call_count();
            for call in failing {
                sim.fail_call(before + call, DriverErrorKind::Other);
            }
        });
        let (made, device) = (w.sim.call_count() - before, w.made(Call::CtxSynchronize));
        w.end(&format!("calls {failing:?} fail"));
        assert!(!failing.is_empty() || scoped.is_ok());
        (made, device > 0)
    };
    let mut first: Vec<u64> = Vec::new();
    loop {
        let (made, device) = run(&first);
        for one in 1..=made {
            run(&[one]);
            for two in one + 1..=made + 1 {
                run(&[one, two]);
            }
        }
        if device {
            break;
        }
        first.push(first.len() as u64 + 1);
    }
    assert!((4..12).contains(&first.len()), "{} calls fail before the device is waited for", first.len());
}

/// A driver call of the end panics behind its work: the borrows end behind the copies, and the panic goes on.
#[test]
fn the_borrows_of_a_scope_end_behind_its_copies_if_a_fallback_panics() {
    let calls = [
        (Call::EventRecord, &[][..]),
        (Call::EventSynchronize, &[]),
        (Call::MemHostAlloc, &[Call::EventRecord]),
        (Call::MemFreeHost, &[Call::EventRecord]),
        (Call::CtxSynchronize, &[Call::EventRecord, Call::MemHostAlloc]),
    ];
    for (panicking, failing) in calls {
        let mut w = World::new(panicking != Call::CtxSynchronize);
        let scoped = catch_unwind(AssertUnwindSafe(|| {
            w.scope(|sim| {
                own_waits_fail(sim);
                for &call in failing {
                    sim.fail(call, 1, DriverErrorKind::OutOfMemory);
                }
                sim.panic_behind(panicking, 1);
            })
        }));
        assert!(scoped.is_err(), "{panicking:?} panics");
        w.end(panicking.name());
    }
}

/// Two devices: an array of sevens on the first, of a stream of its own, and one on the second, where there is room for no other: the next one has its bytes. A copy is given
/// the second's other stream.
struct Peers {
    sims: Vec<Sim>,
    gpus: [Allocator<Sim>; 2],
    /// The source's; the copy's on the target's side; the target's own.
    on: [Stream<Sim>; 3],
    x: DeviceArray<u8, Sim>,
    y: DeviceArray<u8, Sim>,
}

impl Peers {
    fn new() -> Peers {
        let sims = Sim::devices(2, GIB);
        sims[0].set_schedule(Schedule::Latest);
        let config = || Config::default().growth(Growth::Exact).limit(Limit::Bytes(MIB));
        let gpus = [0, 1].map(|i| Allocator::new(sims[i].clone(), config()).unwrap());
        let on = [0, 1, 1].map(|i| gpus[i].stream().unwrap());
        let mut x = gpus[0].uninit::<u8>(MIB as usize, &on[0]).unwrap();
        x.fill_bytes(7, &on[0]).unwrap();
        let y = gpus[1].zeros::<u8>(MIB as usize, &on[2]).unwrap();
        Peers { sims, gpus, on, x, y }
    }
}

/// A copy between devices that neither the target's stream nor a wait for the source's can be ordered behind: the same, and the next owner of the
/// target's bytes comes behind it, however many of the calls fail from the wait on, up to the last.
#[test]
fn a_peer_copy_that_cannot_be_waited_for_ends_no_capture() {
    // Whether the device was waited for.
    let run = |more: u64, captures: bool| {
        let Peers { sims, gpus, on: [a, b, c], x, mut y } = Peers::new();
        let unknown_stream = sims[0].stream().unwrap();
        if captures {
            sims[0].begin_capture(&unknown_stream).unwrap();
        }
        let fault = sims[0].clone();
        // The wait behind the copy and, from the wait for the source's stream on, so many calls.
        sims[0].meanwhile(Call::MemcpyPeer, 1, move || {
            fault.fail(Call::StreamWaitEvent, 1, DriverErrorKind::Other);
            fault.fail(Call::StreamSynchronize, 1, DriverErrorKind::Other);
            let waits = fault.clone();
            fault.meanwhile(Call::StreamSynchronize, 1, move || {
                let next = waits.call_count() + 1;
                (1..=more).for_each(|nth| waits.fail_call(next + nth, DriverErrorKind::Other));
            });
        });
        y.copy_from_peer(&x, &a, &b).expect_err("the wait behind the copy failed");
        sims[0].clear_faults();
        let device = sims[0].ledger().calls_of(Call::CtxSynchronize) > 0;
        drop(y);
        let mut next = gpus[1].uninit::<u8>(MIB as usize, &c).unwrap();
        next.fill_bytes(3, &c).unwrap();
        if captures {
            sims[0]
                .end_capture(&unknown_stream)
                .unwrap_or_else(|e| panic!("{more} more fail: the capture: {e}"));
        }
        assert!(next.to_vec(&c).unwrap().iter().all(|&v| v == 3), "{more} more fail: the next owner's bytes");
        drop((x, next, gpus, a, b, c, unknown_stream));
        sims[0].verdict().unwrap_or_else(|v| panic!("{more} more fail: {v}"));
        device
    };
    let last = (0..16).find(|&more| run(more, false)).expect("a failure came to the last wait");
    assert!(last > 1, "a marker and a page are tried before");
    assert!((0..last).all(|more| !run(more, true)), "the device is waited for where nothing else is left");
}

/// What cannot be waited for in any way is the end of the process: the memory is about to have another owner.
#[test]
fn a_scope_that_nothing_waits_for_ends_the_process() {
    const ABORTS: &str = "MILLPOND_TEST_ABORTS";
    if std::env::var_os(ABORTS).is_some() {
        let mut w = World::new(false);
        drop(w.scope(|sim| {
            own_waits_fail(sim);
            for call in [Call::EventRecord, Call::MemHostAlloc, Call::CtxSynchronize] {
                sim.fail(call, 1, DriverErrorKind::OutOfMemory);
            }
        }));
        return;
    }
    let exe = std::env::current_exe().expect("this test");
    let name = "unwaited::a_scope_that_nothing_waits_for_ends_the_process";
    let mut child = std::process::Command::new(exe);
    let ended = child.args(["--exact", name, "--nocapture"]).env(ABORTS, "1").output().expect("it runs");
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(!ended.status.success() && said.contains("the process ends"), "{said}");
}

/// The driver panics in a copy between devices, and again in the wait for it or in what is tried in its place: the target's next owner comes behind the copy.
#[test]
fn a_peer_copy_is_waited_for_though_the_driver_panics_twice() {
    let mut failures = 0;
    for (first, second, page) in (1..=6).flat_map(|first| {
        (first + 1..=8).flat_map(move |second| [false, true].map(|page| (first, second, page)))
    }) {
        let what = format!("records {first} and {second}, a page too: {page}");
        let Peers { sims, gpus, on: [a, b, c], x, mut y } = Peers::new();
        sims[0].panic_behind(Call::EventRecord, first);
        sims[0].fail(Call::StreamSynchronize, 1, DriverErrorKind::Other);
        if page {
            sims[0].fail(Call::EventRecord, second, DriverErrorKind::Other);
            sims[0].panic_behind(Call::MemHostAlloc, 1);
        } else {
            sims[0].panic_behind(Call::EventRecord, second);
        }
        let copied = catch_unwind(AssertUnwindSafe(|| y.copy_from_peer(&x, &a, &b)));
        failures += u64::from(copied.is_err());
        sims[0].clear_faults();
        drop(y);
        let mut y = gpus[1].uninit::<u8>(MIB as usize, &c).unwrap();
        y.fill_bytes(3, &c).unwrap();
        assert!(y.to_vec(&c).unwrap().iter().all(|&v| v == 3), "{what}: the next owner's bytes");
        drop((x, y));
        sims[0].verdict().unwrap_or_else(|v| panic!("{what}: {v}"));
    }
    assert!(failures > 4, "the driver panicked in {failures} copies");
}

/// A closure that panics, whose scope's waits fail, over a driver that panics in what is tried then: the borrows end behind the copies, and the closure's panic goes on.
#[test]
fn a_scope_that_a_panic_ends_is_waited_for_though_the_driver_panics_too() {
    for calls in [&[Call::EventRecord][..], &[Call::EventRecord, Call::EventRecord]] {
        let mut w = World::new(false);
        let scoped = catch_unwind(AssertUnwindSafe(|| {
            w.scope(|sim| {
                own_waits_fail(sim);
                (1..).zip(calls).for_each(|(nth, &call)| sim.panic_behind(call, nth));
                panic!("the closure's");
            })
        }));
        assert_eq!(scoped.unwrap_err().downcast_ref::<&str>(), Some(&"the closure's"));
        w.end(&format!("{calls:?} panic"));
    }
}

/// A copy whose own marker could not be made lies behind all markers that there are: what stands in for the scope's wait is a marker behind it.
#[test]
fn a_copy_without_a_marker_is_waited_for_by_one_behind_it() {
    let mut w = World::new(false);
    w.s.record().unwrap();
    let World { sim, s, x, to, .. } = &mut w;
    let scoped = transfer::scope(s, |copies| {
        sim.fail(Call::EventRecord, 1, DriverErrorKind::Other);
        let _ = copies.download(&*x, to.view_mut());
        sim.fail(Call::StreamSynchronize, 1, DriverErrorKind::Other);
    });
    scoped.expect_err("the wait failed");
    w.end("no marker");
}
