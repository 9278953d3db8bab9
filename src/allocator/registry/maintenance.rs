//! Timelines that have maintenance pending for the next call that may call the driver: a marker that is due, or a stream that may close.
//!
//! It knows which timelines have some and in which order they are tried, not what it is. Each is listed once
//! ([`StreamTimeline::maintenance_due`]). A call takes all that are new, and of those whose last attempt failed the one that has waited longest; after
//! each of these that succeeds it takes the next one. So a call has one failure of theirs, however many fail, and maintains all that can be. A call
//! that waits for the device takes all.

use super::{Registry, StreamTimeline};
use crate::driver::Driver;
use crate::sync::{Arc, Ordering};
use smallvec::SmallVec;
use std::collections::VecDeque;

/// The timelines that no call has taken.
pub(super) struct Listed<D: Driver> {
    /// Those raised since the last call that maintained them.
    new: Vec<Arc<StreamTimeline<D>>>,
    /// Those whose last attempt failed, the next one to be tried again first.
    failing: VecDeque<Arc<StreamTimeline<D>>>,
}

impl<D: Driver> Default for Listed<D> {
    fn default() -> Listed<D> {
        Listed { new: Vec::new(), failing: VecDeque::new() }
    }
}

impl<D: Driver> Listed<D> {
    pub(super) fn put(&mut self, timeline: &Arc<StreamTimeline<D>>) {
        let timeline = Arc::clone(timeline);
        if timeline.failing.load(Ordering::Relaxed) {
            self.failing.push_back(timeline);
        } else {
            self.new.push(timeline);
        }
    }
}

/// The timelines of one call. If a driver call panics, the rest goes back to the list.
pub(super) struct Maintenance<'a, D: Driver> {
    registry: &'a Registry<D>,
    now: Option<Arc<StreamTimeline<D>>>,
    /// The last element is next.
    left: SmallVec<[Arc<StreamTimeline<D>>; 8]>,
    /// How many more of those whose last attempt failed there were.
    again: usize,
}

impl<'a, D: Driver> Maintenance<'a, D> {
    /// Takes all that are new, and of those whose last attempt failed the first, or `all`.
    pub(super) fn of(registry: &'a Registry<D>, all: bool) -> Maintenance<'a, D> {
        let mut listed = registry.maintenance.lock();
        let many = if all { listed.failing.len() } else { listed.failing.len().min(1) };
        let mut left: SmallVec<[Arc<StreamTimeline<D>>; 8]> = listed.failing.drain(..many).rev().collect();
        left.extend(listed.new.drain(..).rev());
        let again = listed.failing.len();
        if again > 0 {
            registry.maintenance_due.swap(true, Ordering::AcqRel);
        }
        Maintenance { registry, now: None, left, again }
    }
    /// The next one, which is put back if the call panics with it.
    pub(super) fn next(&mut self) -> Option<Arc<StreamTimeline<D>>> {
        let done = self.now.take().is_some_and(|timeline| !timeline.failing.load(Ordering::Relaxed));
        self.now = self.left.pop();
        // Those that failed are at the end, so what is done is one of them.
        if self.now.is_none() && done && self.again > 0 {
            self.again -= 1;
            self.now = self.registry.maintenance.lock().failing.pop_front();
        }
        self.now.clone()
    }
}

impl<D: Driver> Drop for Maintenance<'_, D> {
    fn drop(&mut self) {
        // These are marked as listed.
        if !self.left.is_empty() {
            self.registry.maintenance.lock().new.extend(self.left.drain(..).rev());
            self.registry.maintenance_due.swap(true, Ordering::AcqRel);
        }
        if let Some(now) = self.now.take() {
            self.registry.request_maintenance(&now);
        }
    }
}

#[cfg(test)]
#[cfg(not(any(loom, shuttle)))]
mod tests {
    use crate::allocator::{Allocator, Config};
    use crate::order::TimelineId;
    use crate::units::GIB;
    use millpond_sim::{Schedule, Sim};

    /// Streams that are being captured cannot be marked. Each call tries the first of them again, which is the last one then, and touches no other: before, a call
    /// took all out of the list and put them back.
    #[test]
    fn a_call_moves_one_of_those_that_fail() {
        let sim = Sim::new(GIB).schedule(Schedule::Latest);
        let gpu = Allocator::new(sim.clone(), Config::default()).unwrap();
        let s = gpu.stream().unwrap();
        let streams: Vec<_> = (0..40)
            .map(|_| {
                let native = sim.stream().unwrap();
                let t = gpu.adopt(native.clone()).unwrap();
                let used = (0..16).map(|_| gpu.alloc(512, &s).unwrap()).collect::<Vec<_>>();
                for block in &used {
                    block.record_use(&t).unwrap();
                }
                (native, t, used)
            })
            .collect();
        let (streams, used): (Vec<_>, Vec<_>) =
            streams.into_iter().map(|(n, t, used)| ((n, t), used)).unzip();
        for (native, _) in &streams {
            sim.begin_capture(native).unwrap();
        }
        // As many frees as make a marker due.
        drop(used);
        let listed = || -> Vec<TimelineId> {
            let listed = s.registry().maintenance.lock();
            assert!(listed.new.is_empty(), "all were tried");
            listed.failing.iter().map(|timeline| timeline.id).collect()
        };
        s.registry().run_maintenance(&sim);
        let mut expected = listed();
        assert_eq!(expected.len(), 40);
        for _ in 0..100 {
            s.registry().run_maintenance(&sim);
            expected.rotate_left(1);
            assert_eq!(listed(), expected);
        }
        for (native, _) in &streams {
            sim.end_capture(native).unwrap();
        }
        // One still captures: the call ends with it, and the next call does those behind it.
        sim.begin_capture(&streams[20].0).unwrap();
        s.registry().run_maintenance(&sim);
        let at = expected.iter().position(|&id| id == streams[20].1.timeline().id).unwrap();
        assert_eq!(listed(), [&expected[at + 1..], &expected[at..=at]].concat());
        s.registry().run_maintenance(&sim);
        assert_eq!(listed().len(), 1, "all that can be done are");
        sim.end_capture(&streams[20].0).unwrap();
        s.registry().run_maintenance(&sim);
        assert_eq!(listed().len(), 0);
    }
}
