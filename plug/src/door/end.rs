//! How an allocator ends, and what is given back afterwards.
//!
//! What is alive at an end is freed afterwards, and no free may wait: giving it back is postponed to the next create, trim,
//! synchronize or destroy of any allocator, including a trim or synchronize of the ended one, as far as its work is complete. Memory that is
//! held back, and a deterministic allocator's, goes back at the next synchronize or destroy for its device, which wait for that device and for
//! no other.
//!
//! When nothing is left of it, a later create frees it: not under a call that found it before, and not one of the last that ended, whose
//! reports stay readable. It does not know what a stream is.

use super::{CROWD, DOORS, Door, Lane};
use crate::met;
use crate::retired::Retired;
use crate::status::Failure;
use core::sync::atomic::{AtomicBool, Ordering};
use parking_lot::Mutex;
use pond::cuda::Cuda;
use pond::driver::Fences as _;
use pond::units::StreamId;
use pond::{DriverErrorKind, Trim};
use std::sync::Arc;

/// Some destroyed allocator may hold memory that is not in use.
static ANY_POSTPONED: AtomicBool = AtomicBool::new(false);

/// This many that ended last are kept, so that their reports can be read. The header gives the number.
pub const READABLE: usize = 64;

static ENDED: Retired = Retired::new();

/// How a call waits for all that is queued on the device: for postponed memory of its ended allocators as for its own.
type Wait = fn(&Door) -> Result<(), pond::Error>;

impl Door {
    /// A reference to the device's primary context is kept to the end of the process: a thread that remembers streams of an allocator that ended
    /// releases them in the driver when it ends itself.
    pub(super) fn hold_context(cuda: &Cuda, device: u32) {
        static HELD: Mutex<Vec<(u32, Cuda)>> = Mutex::new(Vec::new());
        let mut held = HELD.lock();
        if held.iter().all(|(of, _)| *of != device) {
            held.push((device, cuda.clone()));
        }
    }

    /// It can be found without its name.
    pub(crate) fn lasts(&self) {
        self.lasting.store(true, Ordering::Release);
    }

    /// Its end: from now on every request fails. No lock is held over what a destroy waits for, so that a release never waits behind it: of
    /// concurrent calls that end one, exactly one succeeds.
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

    /// Frees ended allocators, except this many last ones. Call it where the calling thread holds no [`Door`].
    pub(super) fn reclaim(last: usize) {
        ENDED.reclaim(&DOORS, last, Door::is_spent);
        // Their ends call the driver: not under a lock.
        drop(DOORS.gone());
    }

    /// Whether nothing is left of one that ended.
    fn is_spent(number: u32) -> bool {
        Door::numbered(number).is_none_or(|door| {
            !door.lasting.load(Ordering::Acquire)
                && !door.postponed.load(Ordering::Acquire)
                && door.pinned.lock().is_empty()
                && (mutant!(DoorFreedAlive) || !door.gpu.has_segments())
        })
    }

    /// Gives back everything that is not in use, and fails every request from now on. Live allocations may still be freed.
    ///
    /// # Errors
    /// The driver's. Then it is as open as before, and can be closed later. Another call ended it meanwhile: what that left has still been waited for.
    pub(crate) fn close(&self) -> Result<(), Failure> {
        self.opened()?;
        if mutant!(DoorClosedFirst) {
            self.closed.store(true, Ordering::Release);
        }
        // What can fail comes first.
        self.empty()?;
        let ended = self.ends();
        self.release_lanes();
        met::forget(self.number);
        // What came back since, on other threads, and the markers with which those streams ended. A deterministic allocator may not
        // learn their end by a query. What the driver refuses here is postponed.
        let _ = self.give_back_postponed();
        let _ = self.wait();
        if self.postponed.load(Ordering::Acquire) {
            let _ = self.give_back_postponed();
            self.rest(Door::wait);
        } else if !mutant!(DoorEventsKept) {
            self.gpu.trim_events();
        }
        ended
    }

    /// Not under their lock: they call the driver when they end.
    fn release_lanes(&self) {
        let lanes = core::mem::take(&mut *self.lanes.lock());
        let waits = self.waits.lock().take();
        drop((lanes, waits));
    }

    /// Waits for all that is queued on the device. It ends no capture, unless the caller has ruled captures out (`captures=none`).
    fn wait(&self) -> Result<(), pond::Error> {
        if self.gpu.driver().expects_captures() && !mutant!(DoorEndWaits) {
            self.gpu.synchronize_beside_captures()
        } else {
            self.gpu.synchronize()
        }
    }

    /// Waits for the device and gives back everything that is not in use, including what ended allocators of the device have postponed. Ends no capture.
    ///
    /// Returns how many postponed frees were made.
    ///
    /// # Errors
    /// The driver's.
    pub(crate) fn empty(&self) -> Result<usize, Failure> {
        let before = Door::put_off_until_now();
        self.wait()?;
        let made = Door::waited_for(self.device, before);
        self.forget_unmet();
        self.waited(Door::wait)?;
        if !self.has_ended()
            && let Err(e) = self.gpu.trim(Trim::All)
        {
            // Another thread has had memory behind the wait, on a stream that only calls which name it may mark: one more wait covers it.
            if !matches!(&e, pond::Error::Driver(e) if e.kind == DriverErrorKind::NotSupported) {
                return Err(e.into());
            }
            self.wait()?;
            self.gpu.trim(Trim::All)?;
        }
        Ok(made)
    }

    /// Releases streams that no thread remembers, most of which have ended: nothing reports their ends, and their handles may never come back.
    /// After a wait for the device they hold nothing that needs a marker. A forgotten stream that comes back is found anew.
    fn forget_unmet(&self) {
        let lasting = StreamId(u64::MAX);
        let forgotten = |lane: &Arc<Lane>| Arc::strong_count(lane) == 1;
        let gone: Vec<_> = {
            let mut lanes = self.lanes.lock();
            // If there are few streams the pools are kept: their memory is cached there for streams that come back.
            if lanes.len() <= CROWD {
                return;
            }
            lanes.extract_if(|&(_, id), lane| id != lasting && forgotten(lane)).collect()
        };
        // Their ends call the driver: not under the lock.
        drop(gone);
    }

    /// The device was waited for, in this way: postponed memory of its ended allocators goes back, including this one's if it has ended.
    fn waited(&self, wait: Wait) -> Result<(), Failure> {
        let own = if self.has_ended() { self.give_back_postponed() } else { Ok(0) };
        Door::sweep_postponed(Some((self.device, wait)));
        if self.has_ended() {
            self.rest(wait);
        }
        own.map(drop)
    }

    /// For a destroyed allocator, in a call that waits for its device: if nothing of it is postponed, the trim's own markers are over too, and no event
    /// is left, except for what happens meanwhile.
    fn rest(&self, wait: Wait) {
        if !self.postponed.load(Ordering::Acquire) && !mutant!(DoorEventsKept) {
            let _ = wait(self).map(|()| self.gpu.trim_events());
        }
    }

    /// As [`Door::close`] for a caller that cannot wait and does not know about captures: what is not complete is postponed.
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
        let _ = self.give_back_postponed();
        Ok(())
    }

    /// For a destroyed allocator: gives back what is complete, and returns its bytes. What is not, or what the driver refuses, is postponed.
    ///
    /// # Errors
    /// The driver's.
    #[cold]
    pub(super) fn give_back_postponed(&self) -> Result<u64, Failure> {
        // Before anything is looked at: what is freed meanwhile is postponed anew.
        self.postponed.store(false, Ordering::Release);
        self.release_lanes();
        let trimmed = self.gpu.trim(Trim::All);
        // Memory beside a live allocation goes back after that is freed, which postpones anew: until then there is nothing to do.
        if trimmed.is_err() || self.gpu.unused_segment_bytes() > 0 {
            self.postpone();
        }
        Ok(trimmed?.bytes)
    }

    /// Some of its memory is to go back, in any later call. Each time both cache lines are written, which is expensive between threads only
    /// if they free memory that outlived its allocator.
    pub(super) fn postpone(&self) {
        self.postponed.store(true, Ordering::Release);
        ANY_POSTPONED.store(true, Ordering::Release);
    }

    /// A request was admitted and failed. If the allocator was closed meanwhile, what the request took from the device is postponed.
    #[cold]
    pub(crate) fn refused(&self) {
        if self.closed.load(Ordering::Acquire) {
            self.postpone();
        }
    }

    /// Gives back the postponed memory of destroyed allocators. In a call that waits for a device, which ends captures there, also what is held back, and
    /// deterministic ones' memory, but only of that device's allocators: the caller did not allow ending a capture on another device.
    pub(super) fn sweep_postponed(waited_for: Option<(u32, Wait)>) {
        if !ANY_POSTPONED.swap(false, Ordering::AcqRel) || mutant!(DoorDebtForgotten) {
            return;
        }
        for door in DOORS.iter() {
            if door.postponed.swap(false, Ordering::AcqRel) {
                if let Some((_, wait)) = waited_for.filter(|(device, _)| *device == door.device) {
                    // If it fails, what is pending is postponed again.
                    let _ = wait(door);
                }
                let _ = door.give_back_postponed();
            }
        }
    }

    /// Whether it was destroyed.
    fn has_ended(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Gives idle memory back to the device: how many bytes. For a destroyed one, which has no other, its postponed memory.
    pub(crate) fn trim(&self) -> Result<u64, Failure> {
        if self.has_ended() && mutant!(DoorEndedKept) {
            return Ok(0);
        }
        // Its own first, which is counted.
        let own = if self.has_ended() { Some(self.give_back_postponed()?) } else { None };
        // The driver's frees may have waited for what is still postponed: that is left to a later call, which counts it, too.
        let postponed = own.is_some() && self.postponed.swap(false, Ordering::AcqRel);
        if mutant!(DoorTrimWaits) && ANY_POSTPONED.load(Ordering::Acquire) {
            let _ = self.gpu.synchronize();
        }
        Door::sweep_postponed(None);
        if postponed {
            self.postpone();
        }
        match own {
            Some(bytes) => Ok(bytes),
            None => Ok(self.gpu.trim(Trim::All)?.bytes),
        }
    }

    /// Waits for the device, and so knows everything complete, of destroyed allocators too: their postponed memory goes back, including this one's.
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
