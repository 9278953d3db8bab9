//! How an allocator ends, and what is owed of it afterwards.
//!
//! What is alive at an end is freed afterwards, and no free may wait: it is owed, and goes back to the device at the next create, trim,
//! synchronize or destroy of whatever allocator, a trim or synchronize of the ended one itself included, as far as its work is complete. What is
//! held back, or is a deterministic one's, goes back at the next synchronize or destroy for its device, which wait for that device and for
//! no other.
//!
//! When nothing is left of it, it is freed itself, by a later create: not under a call that found it before, and not one of the last that ended, whose
//! reports stay readable. It does not know what a stream is.

use super::{CROWD, DOORS, Door, Lane};
use crate::burial::Burial;
use crate::met;
use crate::status::Failure;
use core::sync::atomic::{AtomicBool, Ordering};
use parking_lot::Mutex;
use pond::Trim;
use pond::cuda::Cuda;
use pond::driver::Fences as _;
use pond::units::StreamId;
use std::sync::Arc;

/// Some destroyed door may hold memory that nobody has.
static OWING: AtomicBool = AtomicBool::new(false);

/// So many that ended last are kept, so that their reports can be read. The header says how many.
pub const READABLE: usize = 64;

static ENDED: Burial = Burial::new();

/// How a call waits for all that is queued on the device: for what ended allocators of it owe as for its own.
type Wait = fn(&Door) -> Result<(), pond::Error>;

impl Door {
    /// The device's primary context is held to the end of the process: a thread that remembers streams of an allocator that ended
    /// lets go of them when it ends itself, in the driver.
    pub(super) fn hold_context(cuda: &Cuda, device: u32) {
        static HELD: Mutex<Vec<(u32, Cuda)>> = Mutex::new(Vec::new());
        let mut held = HELD.lock();
        if held.iter().all(|(of, _)| *of != device) {
            held.push((device, cuda.clone()));
        }
    }

    /// Somebody will find it without its name.
    pub(crate) fn lasts(&self) {
        self.lasting.store(true, Ordering::Release);
    }

    /// Its end: from now on no request is answered. No lock is held over what a destroy waits for, so that a release never waits behind it: of calls
    /// that end one at once, one does.
    ///
    /// # Errors
    /// Another call has ended it meanwhile.
    fn ends(&self) -> Result<(), Failure> {
        if self.closed.swap(true, Ordering::AcqRel) && !mutant!(DoorClosedFirst) {
            return Err(self.destroyed());
        }
        if !self.lasting.load(Ordering::Acquire) {
            ENDED.ended(self.number);
        }
        Ok(())
    }

    /// Frees those that ended, but so many last ones. To be called where no door is held by the calling thread.
    pub(super) fn bury(last: usize) {
        ENDED.bury(&DOORS, last, Door::is_spent);
        // Their ends speak to the driver: not under a lock.
        drop(DOORS.gone());
    }

    /// Whether nothing is left of one that ended.
    fn is_spent(number: u32) -> bool {
        Door::numbered(number).is_none_or(|door| {
            !door.lasting.load(Ordering::Acquire)
                && !door.owes.load(Ordering::Acquire)
                && door.pinned.lock().is_empty()
                && (mutant!(DoorBuriedAlive) || !door.gpu.has_segments())
        })
    }

    /// Gives everything back that nobody has, and answers no request from now on. What is alive may still be freed.
    ///
    /// # Errors
    /// The driver's. Then it is as open as before, and can be closed later. Another call ended it meanwhile: what that left has been waited for all the same.
    pub(crate) fn close(&self) -> Result<(), Failure> {
        self.opened()?;
        if mutant!(DoorClosedFirst) {
            self.closed.store(true, Ordering::Release);
        }
        // What can fail comes first.
        self.empty()?;
        let ended = self.ends();
        self.let_lanes_go();
        met::forget(self.number);
        // What came back since, on other threads, and the markers with which those streams ended. Their end may not be learnt by
        // asking where an allocator is deterministic. What the driver refuses here is owed.
        let _ = self.pay();
        let _ = self.wait();
        if self.owes.load(Ordering::Acquire) {
            let _ = self.pay();
            self.rest(Door::wait);
        } else if !mutant!(DoorEventsKept) {
            self.gpu.trim_events();
        }
        ended
    }

    /// Not under their lock: they speak to the driver when they end.
    fn let_lanes_go(&self) {
        let lanes = core::mem::take(&mut *self.lanes.lock());
        let waits = self.waits.lock().take();
        drop((lanes, waits));
    }

    /// Waits for all that is queued on the device, and ends no capture there but one that the caller has said there is none of (`captures=none`).
    fn wait(&self) -> Result<(), pond::Error> {
        if self.gpu.driver().expects_captures() && !mutant!(DoorEndWaits) {
            self.gpu.synchronize_beside_captures()
        } else {
            self.gpu.synchronize()
        }
    }

    /// Waits for the device and gives everything back that nobody has, what ended allocators of the device owe too. Ends no capture.
    ///
    /// How many frees that had been put off were made.
    ///
    /// # Errors
    /// The driver's.
    pub(crate) fn empty(&self) -> Result<usize, Failure> {
        let before = Door::put_off_until_now();
        self.wait()?;
        let made = Door::waited_for(self.device, before);
        self.forget_unmet();
        self.waited(Door::wait)?;
        if !self.has_ended() {
            self.gpu.trim(Trim::All)?;
        }
        Ok(made)
    }

    /// Lets streams go that no thread remembers, of which most have ended: nobody says that one has, and its handle may never come back.
    /// Behind a wait for the device they hold nothing that a marker is wanted for. Who is forgotten and comes back is found anew.
    fn forget_unmet(&self) {
        let lasting = StreamId(u64::MAX);
        let forgotten = |lane: &Arc<Lane>| Arc::strong_count(lane) == 1;
        let gone: Vec<_> = {
            let mut lanes = self.lanes.lock();
            // Of few streams the pools are kept: their memory is cached there for those that come back.
            if lanes.len() <= CROWD {
                return;
            }
            lanes.extract_if(|&(_, id), lane| id != lasting && forgotten(lane)).collect()
        };
        // Their ends speak to the driver: not under the lock.
        drop(gone);
    }

    /// The device was waited for, in this way: what ended allocators of it owe goes back, this one's if it is one.
    fn waited(&self, wait: Wait) -> Result<(), Failure> {
        let own = if self.has_ended() { self.pay() } else { Ok(0) };
        Door::settle(Some((self.device, wait)));
        if self.has_ended() {
            self.rest(wait);
        }
        own.map(drop)
    }

    /// Of a destroyed door, in a call that waits for its device: if nothing of it is owed, the trim's own markers are over too, and no event
    /// is left, but for what is done meanwhile.
    fn rest(&self, wait: Wait) {
        if !self.owes.load(Ordering::Acquire) && !mutant!(DoorEventsKept) {
            let _ = wait(self).map(|()| self.gpu.trim_events());
        }
    }

    /// As [`Door::close`] for whoever cannot wait, nor knows who captures: what is not complete is owed.
    ///
    /// # Errors
    /// It was ended before.
    pub(crate) fn release(&self) -> Result<(), Failure> {
        self.opened()?;
        if mutant!(DoorReleaseWaits) {
            let _ = self.gpu.synchronize();
        }
        self.ends()?;
        met::forget(self.number);
        let _ = self.pay();
        Ok(())
    }

    /// Of a destroyed door: gives back what is complete, how many bytes that was. What is not, or what the driver refuses, is owed.
    ///
    /// # Errors
    /// The driver's.
    #[cold]
    pub(super) fn pay(&self) -> Result<u64, Failure> {
        // Before anything is looked at: what is freed meanwhile is owed anew.
        self.owes.store(false, Ordering::Release);
        self.let_lanes_go();
        let trimmed = self.gpu.trim(Trim::All);
        // What lies beside something that is alive goes back behind its free, which owes anew: until then there is nothing to come for.
        if trimmed.is_err() || self.gpu.unused_segment_bytes() > 0 {
            self.owe();
        }
        Ok(trimmed?.bytes)
    }

    /// Something of it is to go back, by whatever call comes for it. Each time both lines are written, which is dear between threads only
    /// where they free what outlived its allocator.
    pub(super) fn owe(&self) {
        self.owes.store(true, Ordering::Release);
        OWING.store(true, Ordering::Release);
    }

    /// A request was let in and failed. If it was closed meanwhile, what it took from the device on its way is owed.
    #[cold]
    pub(crate) fn refused(&self) {
        if self.closed.load(Ordering::Acquire) {
            self.owe();
        }
    }

    /// Gives back what destroyed doors owe. Only in a call that waits for a device, which ends captures there, and only that device's doors
    /// also what is held back, and what a deterministic one owes: a capture on another device is none of the caller's.
    pub(super) fn settle(waited_for: Option<(u32, Wait)>) {
        if !OWING.swap(false, Ordering::AcqRel) || mutant!(DoorDebtForgotten) {
            return;
        }
        for door in DOORS.iter() {
            if door.owes.swap(false, Ordering::AcqRel) {
                if let Some((_, wait)) = waited_for.filter(|(device, _)| *device == door.device) {
                    // If it fails, what is pending is owed again.
                    let _ = wait(door);
                }
                let _ = door.pay();
            }
        }
    }

    /// Whether it was destroyed.
    fn has_ended(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Gives idle memory back to the device: how many bytes. Of a destroyed one, which has no other, what it owes.
    pub(crate) fn trim(&self) -> Result<u64, Failure> {
        if self.has_ended() && mutant!(DoorEndedKept) {
            return Ok(0);
        }
        // Its own first, which is counted.
        let own = if self.has_ended() { Some(self.pay()?) } else { None };
        // The driver's frees may have waited for what it owes still: that is a later call's, which counts it, too.
        let owes = own.is_some() && self.owes.swap(false, Ordering::AcqRel);
        if mutant!(DoorTrimWaits) && OWING.load(Ordering::Acquire) {
            let _ = self.gpu.synchronize();
        }
        Door::settle(None);
        if owes {
            self.owe();
        }
        match own {
            Some(bytes) => Ok(bytes),
            None => Ok(self.gpu.trim(Trim::All)?.bytes),
        }
    }

    /// Waits for the device, and so knows everything complete, of destroyed doors too: what those owe goes back, this one's if it is one.
    pub(crate) fn synchronize(&self) -> Result<(), Failure> {
        let before = Door::put_off_until_now();
        let wait: Wait = |door| door.gpu.synchronize();
        wait(self)?;
        Door::waited_for(self.device, before);
        if self.has_ended() && mutant!(DoorEndedKept) {
            return Ok(());
        }
        self.forget_unmet();
        self.waited(wait)
    }
}
