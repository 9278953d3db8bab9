//! How a request climbs that no free range serves: rounds over the rungs, until one serves or a round shows that nothing can.
//!
//! Other threads take and free while the rungs look, one pool after the other, so that a climb may find every pool
//! empty though at no moment all were: the bytes were in hand, or were freed behind its back while those ahead were
//! taken. Before it gives up, a climb waits for what is in hand and goes through the rungs once more, counting what is
//! freed meanwhile; only a round in which nothing moved is an answer.
//!
//! It does not know what a rung does, nor which memory is asked for: [`Rungs`] of device memory are in `miss`, those of pinned memory in
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

/// The ladder is climbed so often for one request before time counts: while others make progress and patience is left, a
/// request that loses every race for what they free goes on.
const ROUNDS: usize = 32;
/// The callback may ask for another try so often for one request.
const CALLBACKS: usize = 3;

/// A rung, as reports name it.
#[derive(Clone, Copy)]
pub(crate) enum Rung {
    Poll,
    Migrate,
    Grow,
    MigrateWithWait,
    Trim,
    Wait,
    Callback,
}

impl Rung {
    /// What an error calls it, and its counts.
    fn entry(self, of: &mut Ladder) -> (&'static str, &mut report::Rung) {
        match self {
            Rung::Poll => ("poll", &mut of.poll),
            Rung::Migrate => ("migrate", &mut of.migrate),
            Rung::Grow => ("grow", &mut of.grow),
            Rung::MigrateWithWait => ("migrate_with_wait", &mut of.migrate_with_wait),
            Rung::Trim => ("trim", &mut of.trim),
            Rung::Wait => ("wait", &mut of.wait),
            Rung::Callback => ("callback", &mut of.callback),
        }
    }
}

/// What a rung came to.
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

/// One request on its way up, for memory of a pool.
pub(crate) struct Climb<'a, D: Driver, P> {
    pub(crate) core: &'a Core<D>,
    pub(crate) pool: &'a P,
    pub(crate) want: Want,
    pub(crate) requested: u64,
    in_transit: &'a InTransit,
    /// What this request had in hand and put down.
    pub(crate) own: &'a Cell<u64>,
    pub(super) tried: Vec<&'static str>,
    /// How long the host may still wait, for the device or for others.
    pub(super) patience: Patience,
    /// When it began, and its patience then.
    begun: (Duration, Duration),
    rounds: usize,
    callbacks: usize,
    /// How many of those that it waits for next have to be complete.
    pub(super) enough: usize,
    /// The stamps of what was free when they were last listed, for rung 8 to wait for.
    pub(super) stamps: Vec<Pending>,
    /// Whether ranges may be free whose stamps are not among them.
    pub(super) stamps_due: bool,
    /// How often anything had been freed when this was last asked.
    frees: u64,
    /// The last thing the driver refused.
    pub(crate) refusal: Option<DriverError>,
    /// Timelines that no wait could be inserted for, in this round.
    pub(crate) refused_on: SmallVec<[TimelineId; 4]>,
    /// Why memory was passed over that a stream holds: somebody captures on it, or it is gone.
    pub(super) passed_over: Option<DriverError>,
    /// The timelines that such answers were of, where that is known.
    pub(super) passed_over_on: SmallVec<[(TimelineId, DriverErrorKind); 4]>,
    /// This round decides whether there is no memory: all is looked at.
    pub(crate) thorough: bool,
}

/// Once over the rungs.
struct Round {
    /// How many transits had ended when it began, all and the request's own.
    landed: (u64, u64),
    /// Whether something moved that may serve another round.
    progress: bool,
}

/// What a round without an answer says.
#[derive(PartialEq, Eq)]
enum Verdict {
    /// Something moved, or another round is to find out whether it is true that nothing did.
    Again,
    /// Nothing moved though everything was looked at, or the driver fails: only the user may help.
    Stuck,
}

/// What the rungs of one kind of memory do.
pub(crate) trait Rungs {
    /// Whether what the driver refuses for other reasons than memory is told even if something moved.
    const FAILS_AT_ONCE: bool;
    /// Whether reports count these rungs.
    const IS_COUNTED: bool;
    /// Whether no amount of waiting and trimming can help.
    fn is_hopeless(&self) -> bool {
        false
    }
    /// All rungs but the callback, in their order. Says whether something moved.
    fn climb_once(&mut self, progress: &mut bool) -> Step;
    /// How often anything was freed so far.
    fn frees(&self) -> u64;
    /// What an error tells.
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

    /// What this timeline holds is passed over, for such a reason; the timeline may not be known.
    pub(super) fn pass_over(&mut self, on: Option<TimelineId>, why: DriverError) {
        if let Some(on) = on {
            self.passed_over_on.retain(|of| of.0 != on);
            self.passed_over_on.push((on, why.kind));
        }
        self.passed_over = Some(why);
    }

    /// A failed driver call on a rung: a lost context ends the climb, anything else is remembered and the next rung is
    /// tried. The rung has put everything back.
    pub(crate) fn refused(&mut self, error: DriverError) -> Step {
        if error.is_context_lost() {
            return Err(Error::Driver(error));
        }
        if error.kind == DriverErrorKind::Capturing {
            // It says nothing of memory, and is told beside it.
            self.pass_over(None, error);
        } else {
            self.refusal = Some(error);
        }
        Ok(None)
    }

    /// A failed driver call for what one stream holds, of a timeline that may be known. Where it says that the stream captures or is gone,
    /// others' memory is to be had all the same; that is told if there is none.
    pub(crate) fn one_refused(&mut self, on: Option<TimelineId>, error: DriverError) -> Step {
        if error.is_of_one_stream() && !error.is_context_lost() {
            self.pass_over(on, error);
            return Ok(None);
        }
        self.refused(error)
    }

    /// Waits, as long as there is patience, until `enough` of these are complete that the host may wait for
    /// ([`Waitable`](super::bounded::Waitable)); how many are. `first` hears of each before it is first waited for. What a capturing stream holds, or
    /// what no marker can be made for, nobody can wait for: then for what `before` says in its place, and for the others.
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
        let waitable = core.registry.waitable(&core.driver);
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

    /// Takes bytes up: until the hand is dropped, a request that finds nothing waits for them instead of failing.
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
    /// Out of memory with its facts; but a driver that refused for another reason than memory is told as it is. A capture is told
    /// beside what is out of memory, so that whoever looks for that finds it.
    pub(crate) fn climb(&mut self) -> Result<Taken, Error> {
        loop {
            if !self.is_hopeless() {
                let mut round = Round { landed: (self.in_transit.landed(), self.own.get()), progress: false };
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
            // What stood in the way may not any more.
            self.passed_over = None;
            self.passed_over_on.clear();
        }
        let other = self.refusal.take_if(|e| !e.is_out_of_memory());
        Err(other.map_or_else(|| self.facts().into(), Error::Driver))
    }

    fn verdict(&mut self, mut round: Round) -> Verdict {
        let (in_transit, before, own) = (self.in_transit, round.landed.0, self.own.get() - round.landed.1);
        let mut moved = self.patience.spend(process_time, |left| in_transit.others_landed(before, own, left));
        moved |= self.thorough && self.others_freed();
        // What was in hand when rung 8 looked, or was live, is free by now: with a stamp that nobody waited for.
        self.stamps_due |= moved;
        round.progress |= moved;
        // Who loses every race has to end too.
        let (start, whole) = self.begun;
        round.progress &= self.rounds < ROUNDS || process_time().saturating_sub(start) < whole;
        self.rounds += 1;
        // A driver that fails for other reasons than memory is told at once.
        let failing = self.refusal.as_ref().is_some_and(|e| !e.is_out_of_memory());
        // A round that found nothing: the next one finds out whether that is the truth.
        self.thorough = !self.thorough && !round.progress && !failing;
        let again = self.thorough || round.progress && !(failing && Self::FAILS_AT_ONCE);
        if again { Verdict::Again } else { Verdict::Stuck }
    }

    /// A rung was climbed. A miss is served once: behind another try that the callback asked for, by the callback.
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

    /// Whether anything was freed since this was last asked.
    pub(super) fn others_freed(&mut self) -> bool {
        let now = self.frees();
        core::mem::replace(&mut self.frees, now) != now
    }

    fn callback(&mut self) -> bool {
        let Some(again) = self.core.ask_user(|| self.facts()) else { return false };
        self.count(Rung::Callback, false);
        again
    }
}
