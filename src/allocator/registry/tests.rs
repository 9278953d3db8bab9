//! A stream closes while another thread needs a marker of it: that thread waits for the stream's last marker, and no longer than the bound.
//!
//! The closing thread is stopped in the driver's record of that marker for as long as the test wants. The other thread reads a clock that belongs to
//! the test and advances by a tenth of the bound with each reading: nothing is measured, and a wait without a bound is noticed.

use super::{CLOSING, StreamTimeline};
use crate::allocator::{Allocator, Config, Growth, Limit, Reuse, Stream};
use crate::error::DriverErrorKind;
use crate::order::{Pending, TimelineId};
use crate::report::PoolReport;
use crate::sync::Arc;
use crate::sync::Ordering::Relaxed;
use crate::sync::plain::AtomicU32;
use crate::time::clock;
use crate::units::{Epoch, GIB, MIB};
use core::time::Duration;
use millpond_sim::{Call, Launch, Schedule, Sim};
use std::sync::mpsc::{Sender, channel};

type Ticking = Box<dyn FnMut() -> Duration>;

/// How far the clock advances with each reading.
const TICK: Duration = Duration::from_micros(100);
/// How many readings make up the bound: one for when the wait began, and the rest until it is over.
const READINGS: u32 = 1 + (CLOSING.as_micros() / TICK.as_micros()) as u32;

/// A stream that is about to end has used all the memory there is.
struct Ending {
    sim: Sim,
    gpu: Allocator<Sim>,
    other: Stream<Sim>,
    ends: Stream<Sim>,
    timeline: Arc<StreamTimeline<Sim>>,
    freed: Pending,
}

impl Ending {
    fn new() -> Ending {
        let sim = Sim::new(GIB).schedule(Schedule::Latest);
        let config =
            Config::default().limit(Limit::Bytes(4 * MIB)).growth(Growth::Exact).reuse(Reuse::WithWaits);
        let gpu = Allocator::new(sim.clone(), config.bounded_wait(Duration::ZERO)).unwrap();
        let (other, ends) = (gpu.stream().unwrap(), gpu.stream().unwrap());
        let block = gpu.alloc(4 * MIB, &ends).unwrap();
        let kernel = Launch::new("kernel").writes(block.address(), block.len()).tag(block.id().unwrap());
        sim.launch(ends.native(), kernel).unwrap();
        let timeline = Arc::clone(ends.timeline());
        drop(block);
        let freed = Pending { on: timeline.id, epoch: timeline.stamp() };
        Ending { sim, gpu, other, ends, timeline, freed }
    }

    /// Drops the stream, which closes it. On the way into the driver, after which its last marker is published, the closing thread stops, and `then`
    /// runs on another thread with the clock that `clock` makes: until that releases it, or `then` ends.
    fn close_beside<R: Send + 'static, C: FnMut() -> Duration + 'static>(
        self,
        clock: impl FnOnce(Sender<()>) -> C + Send + 'static,
        then: impl FnOnce() -> R + Send + 'static,
    ) -> R {
        let Ending { sim, gpu, other, ends: stream, timeline, .. } = self;
        let ((go, goes_on), (ends, ended)) = (channel(), channel());
        sim.meanwhile(Call::EventRecord, 1, move || {
            assert!(timeline.state.lock().closing, "another stream's marker");
            let beside = std::thread::spawn(move || clock::with(clock(go), then));
            // When `then` ends, it drops the sender.
            let _ = goes_on.recv();
            ends.send(beside).unwrap();
        });
        drop(stream);
        let beside = ended.try_recv().expect("the stream is closed by a marker");
        let result = beside.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        // The freed memory is reused behind a wait, and the oracle has no complaint.
        let block = gpu.alloc(4 * MIB, &other).expect("the close is over");
        assert_eq!(gpu.report().total.counters.waits_inserted, 1);
        let kernel = Launch::new("next").writes(block.address(), block.len()).tag(block.id().unwrap());
        sim.launch(other.native(), kernel).unwrap();
        drop((block, other));
        gpu.check();
        drop(gpu);
        sim.run_until_idle();
        sim.verdict().unwrap();
        assert!(sim.leaks().is_empty());
        result
    }
}

/// A clock that advances by [`TICK`] with each reading, and how often it was read.
fn ticking() -> (impl FnOnce(Sender<()>) -> Ticking + Send + 'static, Arc<AtomicU32>) {
    let read = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&read);
    let clock = move |go: Sender<()>| -> Ticking {
        Box::new(move || {
            // Never sending keeps the closing thread stopped.
            let _stands = &go;
            let before = count.fetch_add(1, Relaxed);
            assert!(before < 100 * READINGS, "it waits without a bound");
            TICK * before
        })
    };
    (clock, read)
}

/// What each stream's clock names.
type Clocks = Vec<Vec<(TimelineId, Epoch)>>;

/// Everything but how often requests looked.
fn held(gpu: &Allocator<Sim>) -> (Vec<PoolReport>, u64, Clocks) {
    let mut report = gpu.report();
    for pool in &mut report.pools {
        pool.counters.misses = 0;
    }
    let clocks =
        gpu.core().registry.timelines().iter().map(|timeline| timeline.clock().iter().collect()).collect();
    (report.pools, report.moving, clocks)
}

#[test]
fn a_request_that_needs_a_streams_last_marker_waits_no_longer_than_the_bound() {
    let ending = Ending::new();
    let (sim, gpu, to, freed) = (ending.sim.clone(), ending.gpu.clone(), ending.other.clone(), ending.freed);
    let (clock, read) = ticking();
    let refused = ending.close_beside(clock, move || {
        gpu.core().registry.order_after(&sim, to.timeline(), freed, CLOSING).unwrap_err()
    });
    assert_eq!(refused.kind, DriverErrorKind::InvalidHandle);
    assert!(refused.is_of_one_stream() && refused.to_string().contains("ends"), "{refused}");
    assert_eq!(read.load(Relaxed), READINGS);
}

/// The request is out of memory, says what it passed over, and has changed nothing.
#[test]
fn a_request_beside_a_stream_that_is_being_closed_is_refused_in_time_and_changes_nothing() {
    let ending = Ending::new();
    let (sim, gpu, to) = (ending.sim.clone(), ending.gpu.clone(), ending.other.clone());
    let (clock, read) = ticking();
    ending.close_beside(clock, move || {
        let (before, ledger) = (held(&gpu), sim.ledger());
        let refused = gpu.alloc(4 * MIB, &to).unwrap_err();
        let facts = refused.out_of_memory().unwrap_or_else(|| panic!("{refused}"));
        let why = facts.passed_over.as_ref().unwrap_or_else(|| panic!("{refused}"));
        assert_eq!(why.kind, DriverErrorKind::InvalidHandle);
        assert!(
            refused.to_string().contains("the thread that ends it waits for the whole of it"),
            "{refused}"
        );
        gpu.check();
        assert_eq!(held(&gpu), before);
        let (now, none) =
            (sim.ledger(), [Call::EventRecord, Call::StreamWaitEvent, Call::MemAlloc, Call::MemFree]);
        assert_eq!(none.map(|call| now.calls_of(call)), none.map(|call| ledger.calls_of(call)));
    });
    // Two rounds, the second because the first found nothing, and what the ladder itself reads.
    let read = read.load(Relaxed);
    assert!((READINGS..=2 * READINGS + 8).contains(&read), "{read} readings");
}

/// If the close ends while the request still has patience, the request is served: the clock releases the closing thread at its `nth` reading.
#[test]
fn a_request_beside_a_stream_that_is_closed_in_time_is_served() {
    let mut waited = 0;
    for nth in 1..=READINGS {
        let ending = Ending::new();
        let (timeline, gpu, to) = (Arc::clone(&ending.timeline), ending.gpu.clone(), ending.other.clone());
        let read = Arc::new(AtomicU32::new(0));
        let count = Arc::clone(&read);
        let clock = move |go: Sender<()>| -> Ticking {
            Box::new(move || {
                let now = 1 + count.fetch_add(1, Relaxed);
                if now == nth {
                    go.send(()).unwrap();
                    while timeline.state.lock().closing {
                        std::thread::yield_now();
                    }
                }
                TICK * now
            })
        };
        ending.close_beside(clock, move || {
            drop(gpu.alloc(4 * MIB, &to).unwrap_or_else(|e| panic!("closed at reading {nth}: {e}")));
        });
        waited += u32::from(read.load(Relaxed) >= nth);
    }
    assert_eq!(waited, READINGS, "the clock was read too seldom to let the closer go on");
}

/// The number of a marker is complete before its event is published: the device was waited for meanwhile, and the stream ended and is forgotten.
/// No later call looks at the timeline, so the marker must not stay on it.
#[test]
fn a_marker_that_is_proved_before_it_is_published_leaves_at_once() {
    let sim = Sim::new(GIB).schedule(Schedule::Latest);
    let gpu = Allocator::new(sim.clone(), Config::default()).unwrap();
    let s = gpu.stream().unwrap();
    let timeline = Arc::clone(s.timeline());
    let on = timeline.id;
    sim.launch(s.native(), Launch::new("kernel")).unwrap();
    let beside = gpu.clone();
    sim.meanwhile(Call::EventRecord, 1, move || {
        drop(s);
        beside.synchronize().unwrap();
        beside.core().registry.retire();
        assert!(beside.core().registry.timeline(on).is_none(), "it has left the table");
    });
    let core = gpu.core();
    core.registry.make_marker(&core.driver, &timeline).unwrap();
    assert!(timeline.state.lock().markers.above(Epoch(0)).next().is_none(), "its marker is on no list");
    drop(timeline);
    sim.run_until_idle();
    sim.verdict().unwrap();
}
