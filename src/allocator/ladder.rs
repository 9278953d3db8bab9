//! How a request that no free range serves climbs the ladder: rounds over the rungs, until one serves or a round shows that none can.
//!
//! Other threads allocate and free while the rungs look at one pool after the other, so a climb may find every pool
//! empty though at no moment all were: the bytes were in transit, or were freed in pools that it had passed while those ahead were
//! taken. Before it gives up, a climb waits for what is in transit and goes through the rungs once more, counting
//! frees meanwhile; only a round in which nothing moved is an answer.
//!
//! It does not know what a rung does, nor which memory is requested: the [`Rungs`] of device memory are in `miss`, those of pinned memory in
//! `host`.

use super::core::Core;
use super::in_transit::{InTransit, TransitGuard};
use super::waiting::{Patience, wait_for_some};
use crate::driver::Driver;
use crate::error::{DriverError, DriverErrorKind, Error, OutOfMemory};
use crate::heap::{Taken, Want};
use crate::order::{Pending, TimelineId};
use crate::report::{self, Ladder};
use crate::time::process_time;
use core::cell::Cell;
use core::time::Duration;
use smallvec::SmallVec;

/// The largest number of rounds for one request before time counts: while others make progress and patience is left, a
/// request that loses every race for what they free goes on.
const ROUNDS: usize = 32;
/// How many more tries one request may get from the callback.
const CALLBACKS: usize = 3;

/// A rung, with its name in reports.
#[derive(Clone, Copy)]
pub(crate) enum Rung {
    Poll,
    Migrate,
    Grow,
    MigrateWithWait,
    MoveHandles,
    Trim,
    Wait,
    Callback,
}

impl Rung {
    /// Its name in an error, and its counts.
    fn entry(self, of: &mut Ladder) -> (&'static str, &mut report::Rung) {
        match self {
            Rung::Poll => ("poll", &mut of.poll),
            Rung::Migrate => ("migrate", &mut of.migrate),
            Rung::Grow => ("grow", &mut of.grow),
            Rung::MigrateWithWait => ("migrate_with_wait", &mut of.migrate_with_wait),
            Rung::MoveHandles => ("move_handles", &mut of.move_handles),
            Rung::Trim => ("trim", &mut of.trim),
            Rung::Wait => ("wait", &mut of.wait),
            Rung::Callback => ("callback", &mut of.callback),
        }
    }
}

/// The result of a rung.
pub(crate) type Step = Result<Option<Taken>, Error>;

/// Climbs a rung: returns if it serves, counts it either way.
macro_rules! rung {
    ($climb:ident: $rung:ident, $climbed:expr) => {{
        let served = $climbed?;
        $climb.count(Rung::$rung, served.is_some());
        if served.is_some() {
            return Ok(served);
        }
    }};
}
pub(crate) use rung;

/// One request for memory of a pool that climbs the ladder.
pub(crate) struct Climb<'a, D: Driver, P> {
    pub(crate) core: &'a Core<D>,
    pub(crate) pool: &'a P,
    pub(crate) want: Want,
    pub(crate) requested: u64,
    in_transit: &'a InTransit,
    /// How many transits of this request have ended.
    pub(crate) own: &'a Cell<u64>,
    pub(super) tried: Vec<&'static str>,
    /// How long the host may still wait, for the device or for others.
    pub(super) patience: Patience,
    /// When it began, and its patience then.
    begun: (Duration, Duration),
    rounds: usize,
    callbacks: usize,
    /// How many of the uses that it waits for next have to complete.
    pub(super) enough: usize,
    /// The stamps of free ranges when they were last listed, for the wait rung to wait for.
    pub(super) stamps: Vec<Pending>,
    /// Whether ranges may be free whose stamps are not in that list.
    pub(super) stamps_due: bool,
    /// The count of frees when it was last read.
    frees: u64,
    /// The driver's last refusal.
    pub(crate) refusal: Option<DriverError>,
    /// Timelines for which no wait could be inserted in this round.
    pub(crate) refused_on: SmallVec<[TimelineId; 4]>,
    /// Why memory that a stream holds was passed over: the stream captures, or is gone.
    pub(super) passed_over: Option<DriverError>,
    /// The timelines that these errors concern, where they are known.
    pub(super) passed_over_on: SmallVec<[(TimelineId, DriverErrorKind); 4]>,
    /// This round decides whether the request is out of memory: it looks at everything.
    pub(crate) thorough: bool,
}

/// One pass over the rungs.
struct Round {
    /// How many transits had ended when it began, of all requests and of this one.
    arrived: (u64, u64),
    /// Whether something moved that may serve another round.
    progress: bool,
}

/// What follows from a round that did not serve.
#[derive(PartialEq, Eq)]
enum Verdict {
    /// Something moved, or another round has to confirm that nothing did.
    Again,
    /// Nothing moved though everything was looked at, or the driver fails: only the user's callback may help.
    Stuck,
}

/// What the rungs of one kind of memory do.
pub(crate) trait Rungs {
    /// Whether a driver error other than out of memory is returned even if something moved.
    const FAILS_AT_ONCE: bool;
    /// Whether reports count these rungs.
    const IS_COUNTED: bool;
    /// Whether no amount of waiting and trimming can help.
    fn is_hopeless(&self) -> bool {
        false
    }
    /// Climbs all rungs but the callback, in their order. Sets `progress` if something moved.
    fn climb_once(&mut self, progress: &mut bool) -> Step;
    /// How many frees there were so far.
    fn frees(&self) -> u64;
    /// What an error reports.
    fn facts(&self) -> OutOfMemory;
}

impl<'a, D: Driver, P> Climb<'a, D, P> {
    pub(crate) fn new(
        core: &'a Core<D>,
        pool: &'a P,
        (want, requested): (Want, u64),
        (in_transit, own): (&'a InTransit, &'a Cell<u64>),
    ) -> Climb<'a, D, P> {
        let patience = Patience::new(core.config.wait);
        Climb {
            core,
            pool,
            want,
            requested,
            in_transit,
            own,
            tried: Vec::new(),
            begun: (process_time(), patience.left()),
            patience,
            rounds: 0,
            callbacks: 0,
            enough: 1,
            stamps: Vec::new(),
            stamps_due: true,
            frees: 0,
            refusal: None,
            refused_on: SmallVec::new(),
            passed_over: None,
            passed_over_on: SmallVec::new(),
            thorough: false,
        }
    }

    /// Notes that what this timeline holds was passed over, and why; the timeline may be unknown.
    pub(super) fn pass_over(&mut self, on: Option<TimelineId>, why: DriverError) {
        if let Some(on) = on {
            self.passed_over_on.retain(|of| of.0 != on);
            self.passed_over_on.push((on, why.kind));
        }
        self.passed_over = Some(why);
    }

    /// A failed driver call on a rung: a lost context ends the climb; any other error is noted and the next rung is
    /// tried. The rung has put everything back.
    pub(crate) fn refused(&mut self, error: DriverError) -> Step {
        if error.is_context_lost() {
            return Err(Error::Driver(error));
        }
        if error.kind == DriverErrorKind::Capturing {
            // It says nothing about memory, and is reported beside it.
            self.pass_over(None, error);
        } else {
            self.refusal = Some(error);
        }
        Ok(None)
    }

    /// A failed driver call about what one stream holds; its timeline may be known. If the error says that the stream captures or is gone,
    /// other streams' memory may still serve, and the error is reported only if none does.
    pub(crate) fn one_refused(&mut self, on: Option<TimelineId>, error: DriverError) -> Step {
        if error.is_of_one_stream() && !error.is_context_lost() {
            self.pass_over(on, error);
            return Ok(None);
        }
        self.refused(error)
    }

    /// Waits, while there is patience, until `enough` of these are complete, of those that the host may wait for
    /// ([`Waitable`](super::bounded::Waitable)); returns how many are. `first` is called with each before the first wait for it. What a capturing
    /// stream holds, or what no marker can be made for, cannot be waited for: then it waits for what `before` returns instead, and for the others.
    ///
    /// # Errors
    /// That the context is lost.
    pub(super) fn wait_for(
        &mut self,
        mut batch: Vec<Pending>,
        enough: usize,
        first: impl FnMut(Pending),
        before: impl Fn(Pending) -> Option<Pending>,
    ) -> Result<usize, Error> {
        let core = self.core;
        batch.sort_unstable();
        batch.dedup();
        let waitable = core.registry.waitable();
        batch.retain(|&p| waitable.by_host(p));
        let mut patience = core::mem::replace(&mut self.patience, Patience::new(Some(Duration::ZERO)));
        let device = (&*core.registry, &core.driver);
        let done = wait_for_some(device, batch, enough, &mut patience, first, |p, e| {
            self.one_refused(Some(p.on), e)?;
            Ok(before(p))
        });
        self.patience = patience;
        done
    }

    /// Begins a transit: until the guard is dropped, a request that finds nothing waits for these bytes instead of failing.
    pub(crate) fn transit(&self) -> TransitGuard<'a> {
        self.in_transit.take(self.own)
    }
}

impl<D: Driver, P> Climb<'_, D, P>
where
    Self: Rungs,
{
    /// Climbs until a rung serves or nothing is left to try.
    ///
    /// # Errors
    /// Out of memory with its facts; but a driver error other than out of memory is returned as it is. A capture is reported
    /// inside the out-of-memory error, so that callers that match that error find it.
    pub(crate) fn climb(&mut self) -> Result<Taken, Error> {
        loop {
            if !self.is_hopeless() {
                let mut round =
                    Round { arrived: (self.in_transit.arrived(), self.own.get()), progress: false };
                if let Some(taken) = self.climb_once(&mut round.progress)? {
                    return Ok(taken);
                }
                if self.verdict(round) == Verdict::Again {
                    continue;
                }
            }
            if !(self.callbacks < CALLBACKS && self.callback()) {
                break;
            }
            self.callbacks += 1;
            // The obstacle may be gone now.
            self.passed_over = None;
            self.passed_over_on.clear();
        }
        let other = self.refusal.take_if(|e| !e.is_out_of_memory());
        Err(other.map_or_else(|| self.facts().into(), Error::Driver))
    }

    fn verdict(&mut self, mut round: Round) -> Verdict {
        let (in_transit, before, own) = (self.in_transit, round.arrived.0, self.own.get() - round.arrived.1);
        let mut moved =
            self.patience.spend(process_time, |left| in_transit.others_arrived(before, own, left));
        moved |= self.thorough && self.others_freed();
        // What was in transit or live when the wait rung looked may be free by now, with a stamp that it did not wait for.
        self.stamps_due |= moved;
        round.progress |= moved;
        // A request that loses every race must end too.
        let (start, whole) = self.begun;
        round.progress &= self.rounds < ROUNDS || process_time().saturating_sub(start) < whole;
        self.rounds += 1;
        // A driver error other than out of memory is returned at once.
        let failing = self.refusal.as_ref().is_some_and(|e| !e.is_out_of_memory());
        // A round that found nothing: the next one confirms it.
        self.thorough = !self.thorough && !round.progress && !failing;
        let again = self.thorough || round.progress && !(failing && Self::FAILS_AT_ONCE);
        if again { Verdict::Again } else { Verdict::Stuck }
    }

    /// Counts a climbed rung. A miss is served once: if the callback requested another try, by the callback.
    pub(super) fn count(&mut self, rung: Rung, served: bool) {
        let mut uncounted = Ladder::default();
        let mut guard = Self::IS_COUNTED.then(|| self.core.ladder.lock());
        let ladder = guard.as_deref_mut().unwrap_or(&mut uncounted);
        let (name, counts) = rung.entry(ladder);
        counts.tried += 1;
        let helped = self.callbacks > 0;
        counts.served += u64::from(served && !helped);
        ladder.callback.served += u64::from(served && helped);
        if !self.tried.contains(&name) {
            self.tried.push(name);
        }
    }

    /// Whether anything was freed since the last call.
    pub(super) fn others_freed(&mut self) -> bool {
        let now = self.frees();
        core::mem::replace(&mut self.frees, now) != now
    }

    fn callback(&mut self) -> bool {
        let Some(again) = self.core.run_callback(|| self.facts()) else { return false };
        self.count(Rung::Callback, false);
        again
    }
}
