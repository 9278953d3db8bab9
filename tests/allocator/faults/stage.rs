//! Where a scenario plays: named streams, blocks and events, and a verb for each thing that can fail.
//!
//! A verb that fails is looked at (is the error the planted one? do the invariants hold?) and asked again with the fault
//! taken away, when it must work. So each run shows that an error lost nothing.

use super::scenarios::{POOLED, Scenario};
use crate::rig;
use millpond::allocator::VirtualMemory;
use millpond::units::{GIB, MIB};
use millpond::{
    Allocation, Allocator, Config, DriverError, DriverErrorKind as Kind, Error, Event, PinnedAllocation,
    Stream, Trim,
};
use millpond_sim::{Launch, Leak, Schedule, Sim};
use std::collections::BTreeMap;

/// The context is lost: there is no going on.
#[derive(Debug)]
pub(crate) struct Stop;

/// What is left when all is dropped.
#[derive(PartialEq, Default, Debug)]
pub(crate) struct End {
    pub(crate) leaks: Vec<Leak>,
    pub(crate) drop_errors: Vec<DriverError>,
}

pub(crate) struct Stage {
    pub(crate) sim: Sim,
    gpu: Option<Allocator<Sim>>,
    pub(crate) streams: BTreeMap<&'static str, Stream<Sim>>,
    pub(crate) blocks: BTreeMap<&'static str, Allocation<Sim>>,
    pub(crate) pinned: BTreeMap<&'static str, PinnedAllocation<Sim>>,
    pub(crate) events: BTreeMap<&'static str, Event<Sim>>,
    /// What was planted, if anything.
    pub(crate) planted: Option<Kind>,
    /// Waits may time out.
    pub(crate) unready: bool,
    /// More than one fault is planted: a retry may meet the next.
    pub(crate) keep_faults: bool,
    pub(crate) errors: u64,
    pub(crate) story: String,
}

impl Stage {
    pub(crate) fn new(scenario: &Scenario, schedule: Schedule) -> Stage {
        Stage::with((scenario.config)(), scenario, schedule)
    }

    /// With virtual memory beneath the pools, but for baselines that count bytes.
    pub(crate) fn with_windows(scenario: &Scenario, schedule: Schedule) -> Stage {
        Stage::with((scenario.config)().virtual_memory(VirtualMemory::Auto), scenario, schedule)
    }

    fn with(config: Config, scenario: &Scenario, schedule: Schedule) -> Stage {
        let waiting_frees = !POOLED.contains(&scenario.name);
        let sim = Sim::new(GIB).schedule(schedule).waiting_frees(waiting_frees);
        // The first call is made before any fault is planted; a failing one has a test of its own.
        let gpu = rig::on(&sim, config);
        Stage {
            sim,
            gpu: Some(gpu),
            streams: BTreeMap::new(),
            blocks: BTreeMap::new(),
            pinned: BTreeMap::new(),
            events: BTreeMap::new(),
            planted: None,
            unready: false,
            keep_faults: false,
            errors: 0,
            story: String::new(),
        }
    }

    pub(crate) fn gpu(&self) -> &Allocator<Sim> {
        self.gpu.as_ref().expect("until the end")
    }

    /// A verb; asked again if it fails.
    pub(crate) fn act(
        &mut self,
        what: &str,
        verb: impl Fn(&mut Stage) -> Result<(), Error>,
    ) -> Result<(), Stop> {
        for _ in 0..3 {
            let Err(e) = verb(self) else {
                self.gpu().check();
                return Ok(());
            };
            self.errors += 1;
            let planted = self.planted;
            let own = match &e {
                Error::Driver(d) => Some(d.kind) == planted,
                // A stream that captures, or is gone, gets no marker, and what it did cannot be waited for before it has one.
                Error::OutOfMemory(_) => {
                    matches!(planted, Some(Kind::OutOfMemory | Kind::Capturing | Kind::InvalidHandle))
                        || self.unready
                        || (planted.is_some() && self.is_in_the_way())
                }
                Error::TimedOut { .. } => self.unready,
                _ => false,
            };
            assert!(own && !e.to_string().is_empty(), "{}: {what}: not what was planted: {e}", self.story);
            self.gpu().check();
            if planted == Some(Kind::ContextLost) {
                return Err(Stop);
            }
            if !self.keep_faults {
                self.sim.clear_faults();
            }
            if e.out_of_memory().is_some() {
                self.is_in_the_way();
            }
        }
        panic!("{}: {what} fails again and again", self.story)
    }

    /// Whether idle segments were in a request's way, which are gone now: a fault may leave smaller ones than planned, and
    /// only a trim gives them back.
    fn is_in_the_way(&self) -> bool {
        !self.gpu().trim(Trim::All).is_ok_and(|trimmed| trimmed.bytes == 0)
    }

    pub(crate) fn open(&mut self, s: &'static str) -> Result<(), Stop> {
        self.act("stream", |st| {
            let stream = st.gpu().stream()?;
            st.streams.insert(s, stream);
            Ok(())
        })
    }
    pub(crate) fn alloc(&mut self, x: &'static str, mib: u64, s: &'static str) -> Result<(), Stop> {
        self.act("alloc", |st| {
            let block = st.gpu().alloc(mib * MIB, &st.streams[s])?;
            st.blocks.insert(x, block);
            Ok(())
        })
    }
    /// Fills a block on a stream and checks it there.
    pub(crate) fn touch(&mut self, x: &'static str, s: &'static str) -> Result<(), Stop> {
        let b = &self.blocks[x];
        let (at, bytes, word, id) = (b.address(), b.len(), rig::word(b), b.id().expect("bytes"));
        for launch in [Launch::write_pattern, Launch::check_pattern] {
            self.act("launch", |st| {
                Ok(st.sim.launch(st.streams[s].native(), launch(at, bytes, word).tag(id))?)
            })?;
        }
        Ok(())
    }
    /// A block as its tenant finds it, on a stream: nothing of the former life is left.
    pub(crate) fn is_wiped(&mut self, x: &'static str, s: &'static str) -> Result<(), Stop> {
        self.act("look", |st| {
            let b = &st.blocks[x];
            let look = Launch::check_pattern(b.address(), b.len(), 0).tag(b.id().expect("bytes"));
            Ok(st.sim.launch(st.streams[s].native(), look)?)
        })
    }
    pub(crate) fn alloc_touch(&mut self, x: &'static str, mib: u64, s: &'static str) -> Result<(), Stop> {
        self.alloc(x, mib, s)?;
        self.touch(x, s)
    }
    pub(crate) fn free(&mut self, x: &'static str) {
        drop(self.blocks.remove(x).expect("a block of that name"));
        self.gpu().check();
    }
    pub(crate) fn close(&mut self, s: &'static str) {
        drop(self.streams.remove(s).expect("a stream of that name"));
        self.gpu().check();
    }
    /// A use of a block on another stream, ordered and recorded.
    pub(crate) fn use_on(
        &mut self,
        x: &'static str,
        home: &'static str,
        s: &'static str,
    ) -> Result<(), Stop> {
        self.act("wait_stream", |st| st.streams[s].wait_stream(&st.streams[home]))?;
        self.act("record_use", |st| st.blocks[x].record_use(&st.streams[s]))?;
        self.touch(x, s)
    }
    pub(crate) fn record(&mut self, e: &'static str, s: &'static str) -> Result<(), Stop> {
        self.act("record", |st| {
            let event = st.streams[s].record()?;
            st.events.insert(e, event);
            Ok(())
        })
    }
    pub(crate) fn pin(&mut self, p: &'static str, mib: u64) -> Result<(), Stop> {
        self.act("alloc_pinned", |st| {
            let pinned = st.gpu().alloc_pinned(mib * MIB)?;
            st.sim.host_writes(pinned.address(), pinned.len())?;
            st.pinned.insert(p, pinned);
            Ok(())
        })
    }
    /// Work on a stream that reads a pinned block, recorded.
    pub(crate) fn read_pinned(&mut self, p: &'static str, s: &'static str) -> Result<(), Stop> {
        self.act("record_use", |st| st.pinned[p].record_use(&st.streams[s]))?;
        self.act("launch", |st| {
            let p = &st.pinned[p];
            let launch = Launch::new("read pinned").reads(p.address(), p.len());
            Ok(st.sim.launch(st.streams[s].native(), launch)?)
        })
    }
    pub(crate) fn unpin(&mut self, p: &'static str) {
        drop(self.pinned.remove(p).expect("a pinned block of that name"));
    }

    fn drop_all(&mut self) {
        self.blocks.clear();
        self.streams.clear();
        self.gpu().check();
        self.gpu = None;
        self.pinned.clear();
        self.events.clear();
    }

    /// Everything is dropped; both oracles judge.
    pub(crate) fn end(mut self, story: &str) -> End {
        self.drop_all();
        self.sim.run_until_idle();
        if let Err(e) = self.sim.verdict() {
            panic!("{story}: {e}");
        }
        End { leaks: self.sim.leaks(), drop_errors: self.sim.drop_errors() }
    }

    /// After a lost context: every verb that needs the device says so, and a miss makes no call any more.
    pub(crate) fn is_lost_for_good(&mut self) {
        let lost = |e: &Error| matches!(e, Error::Driver(d) if d.is_context_lost());
        let story = self.story.clone();
        let gpu = self.gpu().clone();
        assert!(gpu.synchronize().is_err_and(|e| lost(&e)), "{story}: synchronize");
        assert!(gpu.stream().is_err_and(|e| lost(&e)), "{story}: stream");
        assert!(gpu.trim(millpond::Trim::All).is_err_and(|e| lost(&e)), "{story}: trim");
        assert!(Allocator::new(self.sim.clone(), Config::default()).is_err_and(|e| lost(&e)), "{story}: new");
        let calls = self.sim.call_count();
        if let Some(s) = self.streams.values().next() {
            assert!(gpu.alloc(900 * MIB, s).is_err_and(|e| lost(&e)), "{story}: alloc");
        }
        assert!(gpu.alloc_pinned(900 * MIB).is_err_and(|e| lost(&e)), "{story}: alloc_pinned");
        assert_eq!(self.sim.call_count(), calls, "{story}: a miss goes on asking the driver");
        gpu.check();
    }

    /// The end after a lost context: quiet. The driver takes nothing back, so the device keeps memory, but no stream and
    /// no event, whose destructors cannot fail.
    pub(crate) fn end_lost(mut self) {
        self.drop_all();
        self.sim.run_until_idle();
        if let Err(e) = self.sim.verdict() {
            panic!("{}: {e}", self.story);
        }
        let leaks = self.sim.leaks();
        let kept = |l: &Leak| {
            let of_windows =
                matches!(l, Leak::Handle { .. } | Leak::Mapping { .. } | Leak::Reservation { .. });
            of_windows || matches!(l, Leak::Plain { .. } | Leak::Pinned { .. })
        };
        assert!(leaks.iter().all(kept), "{}: {leaks:?}", self.story);
    }
}
