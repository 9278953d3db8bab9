//! Random programs of cudarc's safe calls that combine what `random` and `devices` try one by one: one device or two, with copies
//! between them; one thread, a fresh one for some calls, or two at once; captures or none; a driver that refuses calls now and then
//! or not. Behind all of it every value is one that it can be, each capture lives, and nothing is left.
//!
//! 150 programs in a full run, a third of them in an ordinary one, or what `MILLPOND_CASES` says. And a program of each verb, in which each driver call fails, one a run.

use super::random::*;
use super::world::{ARRAYS, Call, World};
use super::*;
use proptest::collection::vec;
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Barrier;

/// Of arguments, memory, what is not supported, not ready where that is no answer, what captures have calls refused with, and one that
/// says nothing.
const CODES: [u32; 10] = [999, 2, 1, 801, 600, 900, 901, 905, 906, 907];

/// What spares captures: where it fails they may end.
const CAPTURE_GUARDS: [&str; 2] = ["cuStreamIsCapturing", "cuThreadExchangeStreamCaptureMode"];

/// What orders streams, or shows what is over: where it fails the host waits, for the device if need be, which no capture survives.
const ORDERS: &[&str] = MAY_FAIL.split_at(ORDERING).0;

#[derive(Clone, Copy, PartialEq, Debug)]
enum Threads {
    One,
    /// Some calls are on a fresh thread.
    Fresh,
    /// Each with what is its own.
    Two,
}

#[derive(Clone, Debug)]
struct Step {
    device: usize,
    call: Call,
    /// On another thread than the program's.
    apart: bool,
    /// Which function's call fails, which of them, and with what code.
    fault: Option<(usize, u64, u32)>,
    /// Before it an array of the other device is copied to one here.
    cross: Option<(usize, usize)>,
}

#[derive(Clone, Debug)]
struct Program {
    devices: usize,
    threads: Threads,
    captures: bool,
    faults: bool,
    steps: Vec<Step>,
}

fn programs() -> impl Strategy<Value = Program> {
    let fault = (0..MAY_FAIL.len(), 1..4_u64, prop::sample::select(&CODES[..]));
    let cross = (0..ARRAYS, 0..ARRAYS);
    let step =
        (0..2_usize, calls_that_capture(), prop::bool::weighted(0.4), prop::option::weighted(0.3, fault));
    let step = (step, prop::option::weighted(0.1, cross))
        .prop_map(|((device, call, apart, fault), cross)| Step { device, call, apart, fault, cross });
    let threads = prop_oneof![Just(Threads::One), Just(Threads::Fresh), Just(Threads::Two)];
    (1..=2_usize, threads, any::<bool>(), any::<bool>(), vec(step, 1..40)).prop_map(
        |(devices, threads, captures, faults, steps)| {
            // A fault leaves an error in cudarc's store for the context, where another thread's end of a capture would meet it.
            let apart = threads == Threads::Two && captures && faults;
            Program { devices: if apart { 2 } else { devices }, threads, captures, faults, steps }
        },
    )
}

/// What there is on a device.
struct Place<'a> {
    rig: &'a Rig,
    gpu: Allocator<Cuda>,
    others: &'a [Arc<CudaContext>; 2],
}

impl Place<'_> {
    fn world(&self, captures: bool) -> World<'_> {
        if captures {
            world_to_capture(self.rig, &self.gpu, self.others)
        } else {
            World::new(self.rig, &self.gpu, self.others)
        }
    }
}

impl Program {
    /// The call as this program makes it.
    fn call(&self, step: &Step, world: &World) -> Call {
        let call = match step.call {
            Call::Capture { .. } if !self.captures => Call::Graph,
            // The other device is the first one's.
            Call::Far { x } if step.device > 0 || self.threads == Threads::Two => Call::Renew { x },
            // A thread's default stream is that thread's, and no other thread's calls on the legacy stream are to end a capture there.
            Call::Capture { on: 4, home } if self.threads != Threads::One => Call::Capture { on: 6, home },
            call => call,
        };
        let call = if self.threads == Threads::Fresh {
            on_stream(call, |on| if on == 4 { 1 } else { on })
        } else {
            call
        };
        if self.captures { held(call, world.captured_on()) } else { without_stored_error(call) }
    }

    /// Makes a step's call, which may fail where a driver call does. What that left without a marker counts as used by an
    /// unknown stream: where captures are expected it may be refused from then on, so that the program has all anew when nothing captures.
    fn make(&self, fake: &Fake, step: &Step, world: &mut World, unsettled: &mut bool) {
        let call = self.call(step, world);
        if *unsettled && !world.captures() {
            world.renew_all();
            *unsettled = false;
        }
        // What begins or ends a capture is the program's own, and a world that has no driver at hand cannot call a fault off.
        let own = matches!(call, Call::Capture { .. } | Call::Graph | Call::Far { .. })
            || step.device > 0 && matches!(call, Call::Pool { .. });
        match step.fault.filter(|_| self.faults && !own) {
            None if *unsettled && !matches!(call, Call::Capture { .. } | Call::Graph) => {
                attempt(fake, world, call, (0, 0, 0), true);
            }
            None => world.make(call),
            Some(fault) => {
                let (done, struck) = attempt(fake, world, call, fault, self.captures);
                assert!(
                    done || struck.is_some() || *unsettled,
                    "{call:?} failed, and no driver call of it did"
                );
                *unsettled |= struck.is_some() && self.captures;
            }
        }
        world.forget_errors();
    }

    /// The program's end, with what it has looked at.
    fn end(mut world: World, unsettled: bool) {
        world.make(Call::Graph);
        world.forget_errors();
        if unsettled {
            world.renew_all();
        }
        world.end();
    }

    fn in_turn(&self, fake: &Fake, places: &[Place]) {
        let mut worlds: Vec<World> = places.iter().map(|place| place.world(self.captures)).collect();
        let mut unsettled = [false; 2];
        for step in &self.steps {
            let step = Step { device: step.device % places.len(), ..step.clone() };
            if let (Some((x, y)), [one, two]) = (step.cross, &mut worlds[..]) {
                let (to, from) = if step.device == 0 { (one, two) } else { (two, one) };
                let crossed = to.cross(x, from, y);
                assert!(crossed.is_ok() || unsettled.contains(&true), "{crossed:?}");
            }
            let (world, unsettled) = (&mut worlds[step.device], &mut unsettled[step.device]);
            if step.apart && self.threads == Threads::Fresh {
                let apart = || {
                    relaxed(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED);
                    self.make(fake, &step, world, unsettled);
                };
                std::thread::scope(|s| s.spawn(apart).join().expect("made"));
            } else {
                self.make(fake, &step, world, unsettled);
            }
        }
        worlds.into_iter().zip(unsettled).for_each(|(world, unsettled)| Program::end(world, unsettled));
    }

    /// The first thread may capture, the second one goes on beside that; and what one is refused may be the other one's to hear.
    fn at_once(&self, fake: &Fake, places: &[Place]) {
        let (ready, ends) = (&Barrier::new(2), &Barrier::new(2));
        let of = |second: bool| {
            move || {
                relaxed(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED);
                let device = if second { places.len() - 1 } else { 0 };
                let mut world = places[device].world(self.captures);
                ready.wait();
                let mut unsettled = false;
                for step in self.steps.iter().filter(|step| step.apart == second) {
                    let step = Step { device, ..step.clone() };
                    let call = match self.call(&step, &world) {
                        // What may wait for the device.
                        Call::Remake | Call::Capture { .. } | Call::Value { which: 0 }
                            if second && self.captures =>
                        {
                            continue;
                        }
                        call if self.faults && is_cudarcs(call) => continue,
                        call => call,
                    };
                    if second && self.captures {
                        beside_a_capture(&mut world, call);
                        world.forget_errors();
                    } else if self.faults && !self.captures {
                        // The other one's faults are reported to this one, too.
                        attempt(fake, &mut world, call, step.fault.unwrap_or((0, 0, 0)), false);
                        world.forget_errors();
                    } else {
                        self.make(fake, &step, &mut world, &mut unsettled);
                    }
                }
                world.make(Call::Graph);
                ends.wait();
                world.forget_errors();
                Program::end(world, unsettled);
            }
        };
        std::thread::scope(|s| {
            let second = s.spawn(of(true));
            s.spawn(of(false)).join().expect("a thread has said why");
            second.join().expect("a thread has said why");
        });
    }
}

/// Makes a call of which a driver call may fail, and so the call; answers whether it was made, and which driver call failed.
fn attempt(
    fake: &Fake,
    world: &mut World,
    call: Call,
    (which, nth, code): (usize, u64, u32),
    captures: bool,
) -> (bool, Option<String>) {
    let all: &[&str] = if is_cudarcs(call) { &MAY_FAIL_OF_POOLS } else { &MAY_FAIL };
    let spared =
        |name: &&str| captures && CAPTURE_GUARDS.contains(name) || world.captures() && ORDERS.contains(name);
    let names: Vec<&str> = all.iter().copied().filter(|name| !spared(name)).collect();
    // All of them, or one.
    let names = if which == usize::MAX { &names[..] } else { &names[which % names.len()..][..1] };
    fake.fail_here(names, nth, code);
    // Returned, or a panic where no call can return it: a look at pinned elements.
    let answer = catch_unwind(AssertUnwindSafe(|| world.attempt(without_stored_error(call))));
    let struck = fake.struck_here();
    fake.fail_here(&[], 0, 0);
    (matches!(answer, Ok(Ok(()))), struck)
}

/// Behind it nothing is left, and nothing else planted what was deferred.
fn is_clean(rig: Rig, second: Rig) {
    let planted = |code: u32| code == 400 || CODES.contains(&code);
    for rig in [&rig, &second] {
        let foreign: Vec<_> = rig.cuda.deferred().into_iter().filter(|e| !planted(e.code)).collect();
        assert!(foreign.is_empty(), "{foreign:?} was not planted");
    }
    drop(second);
    rig.check_no_leaks();
}

#[test]
fn programs_of_all_of_it() {
    if rig().is_none_or(|rig| rig.fake.is_none()) {
        return;
    }
    search(150, &programs(), |rig, program| {
        let second = Rig::second();
        let others = [0, 1].map(|device| [(); 2].map(|()| CudaContext::new(device).expect("another value")));
        let before = relaxed(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED);
        let place = |rig, others| {
            let config = Config::default().pinned_limit(PINNED);
            Place { rig, others, gpu: Allocator::new(rig.cuda.clone(), config).expect("an allocator") }
        };
        let places = [place(&rig, &others[0]), place(&second, &others[1])];
        if program.captures {
            for place in &places {
                place.rig.cuda.expect_captures();
            }
        }
        let fake = rig.fake.as_ref().expect("asked above");
        match program.threads {
            Threads::One | Threads::Fresh => program.in_turn(fake, &places[..program.devices]),
            Threads::Two => program.at_once(fake, &places[..program.devices]),
        }
        relaxed(before);
        drop(places);
        drop(others);
        is_clean(rig, second);
    });
}

/// Each verb, in a state in which it asks the driver.
fn each_verb() -> Vec<Call> {
    use super::world::parts::{Part, Span};
    let part = |what| Call::Part { what, x: 1, on: 2 };
    vec![
        Call::Send { host: 0, x: 0, on: 2, stored_error: false },
        Call::Send { host: 1, x: 1, on: 4, stored_error: false },
        Call::Fetch { x: 0, host: 1, on: 3, stored_error: false },
        Call::Look { host: 1 },
        Call::Copy { x: 0, on: 6 },
        Call::Zero { x: 2, on: 5 },
        Call::Read { x: 2, on: 1 },
        Call::Fill { x: 1, value: 3 },
        Call::Write { host: 1, value: 4 },
        Call::Renew { x: 0 },
        Call::RenewHost { host: 0 },
        Call::Pool { x: 1, home: 0 },
        Call::FromPool { x: 2, on: 6, view: true },
        Call::ToPool { x: 1, on: 2 },
        part(Part::Copy(Span::new(0, 1, 2))),
        part(Part::Zero(Span::new(0, 3, 1))),
        part(Part::Send(Span::new(0, 1, 3), 9)),
        part(Part::Read(Span::new(2, 0, 2))),
        part(Part::FromPool(Span::new(1, 2, 2))),
        part(Part::ToPool(Span::new(3, 0, 1))),
        Call::End { on: 2 },
        Call::Launch { x: 0, home: 2, value: 5, forget: true },
        Call::Launch { x: 2, home: 1, value: 6, forget: false },
        Call::LaunchPool { value: 7 },
        Call::Pool { x: 2, home: 2 },
        Call::Renew { x: 0 },
        Call::Remake,
        Call::Value { which: 0 },
        Call::Zero { x: 1, on: 6 },
        Call::Value { which: 1 },
        Call::RenewHost { host: 1 },
        Call::Renew { x: 2 },
        Call::Fill { x: 2, value: 8 },
    ]
}

/// Each driver call of each verb that may fail does, one a run, and then every value is the old one or the new one and nothing is left:
/// of a fixed program, where random ones leave it to chance which calls are struck.
#[test]
fn each_driver_call_of_each_verb_fails_in_turn() {
    if rig().is_none_or(|rig| rig.fake.is_none()) {
        return;
    }
    let calls = each_verb();
    let (mut struck, mut failed) = (BTreeSet::new(), BTreeSet::new());
    for at in 0..calls.len() {
        for nth in 1.. {
            assert!(nth < 60, "{:?}: there is no end of its driver calls", calls[at]);
            let rig = rig().expect("it was there a moment ago");
            let others = [(); 2].map(|()| CudaContext::new(0).expect("another value for the same context"));
            let mut world = World::new(&rig, &rig.allocator_for(ARRAYS as u64 + 2), &others);
            calls[..at].iter().for_each(|&call| world.make(call));
            let fake = rig.fake.as_ref().expect("asked above");
            let code = CODES[(at + nth as usize) % CODES.len()];
            let (done, by) = attempt(fake, &mut world, calls[at], (usize::MAX, nth, code), false);
            world.forget_errors();
            calls[at + 1..].iter().for_each(|&call| {
                world.make(call);
                world.forget_errors();
            });
            world.end();
            drop(others);
            let second = Rig::second();
            is_clean(rig, second);
            let Some(by) = by else {
                assert!(done, "{:?} failed, and no driver call of it", calls[at]);
                break;
            };
            struck.insert(by);
            if !done {
                failed.insert(format!("{:?}", core::mem::discriminant(&calls[at])));
            }
        }
    }
    let silent: Vec<_> = MAY_FAIL.into_iter().filter(|name| !struck.contains(*name)).collect();
    assert_eq!(silent, Vec::<&str>::new(), "of {struck:?}");
    assert!(failed.len() > 12, "calls of so few kinds failed: {failed:?}");
}
