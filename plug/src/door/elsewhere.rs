//! Uses of an allocation on streams of other devices, and the frees that such a use prevents.
//!
//! A free records an event behind what the other device's stream holds; a stream of our own, on behalf of all of them, waits for the event and
//! is a user like any other. If the event cannot be recorded, because the stream captures, has ended or the driver fails, the allocation is not ended. A free
//! that cannot fail is postponed then: the allocation keeps its slot, marked, so that every call treats it as freed, and its bytes are not
//! reused. It ends when the uses can be recorded, or after a wait for their devices, which needs no stream.
//!
//! An allocation's uses are read and written while its slot is held. It does not know which allocators exist.

use super::{Door, peek, record_use};
use crate::index::{Hold, index};
use crate::status::{Failure, MillpondStatus as Status};
use crate::tag::{PER_THREAD, Tag};
use core::ffi::c_void;
use core::sync::atomic::{AtomicUsize, Ordering};
use parking_lot::Mutex;
use pond::Event;
use pond::cuda::Cuda;
use pond::units::StreamId;
use std::collections::{BTreeMap, VecDeque};

/// By address, for allocations whose tags say that there are any: each free of those looks here.
static USES: Mutex<BTreeMap<usize, Vec<Use>>> = Mutex::new(BTreeMap::new());
static LATER: Mutex<Later> = Mutex::new(Later { next: 0, all: VecDeque::new() });
/// How many frees are postponed: a free takes no lock to see that there are none.
static WAITING: AtomicUsize = AtomicUsize::new(0);

/// Postponed frees, by address, in the order in which they were last tried, each with its number.
struct Later {
    next: u64,
    all: VecDeque<(usize, u64)>,
}

/// The stream that a handle meant when its use was reported.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum User {
    Known(StreamId),
    /// It could not be queried, and may be any device's.
    Unqueried,
    /// One that can no longer be marked: only a wait for its device shows that it is done.
    Unmarked,
}

/// By a stream of that allocator's device.
#[derive(Clone, Copy)]
struct Use {
    on: &'static Door,
    handle: usize,
    user: User,
}

impl Use {
    fn is(&self, on: &Door, handle: usize) -> bool {
        self.handle == handle && core::ptr::eq(self.on, on)
    }

    /// A use of what the stream holds by now, as one of ours.
    fn record(&mut self, of: &Door, ptr: *const c_void, hold: &Hold<'_>) -> Result<(), Failure> {
        if self.user == User::Unmarked {
            return Err(self.stream_is_gone());
        }
        let event = self.on.on(self.handle, |lane| match self.user {
            User::Known(id) if id != lane.stream.id() && !mutant!(DoorElsewhereByHandle) => {
                Err(self.stream_is_gone())
            }
            _ => Ok(lane.stream.record()?),
        });
        match event {
            Ok(event) => of.use_behind(ptr, hold, &event),
            // Not a stream of that device.
            Err(e) if e.status == Status::WrongAllocator && self.user == User::Unqueried => Ok(()),
            // Another stream has its handle, or none.
            Err(e) if e.for_good || e.status == Status::WrongAllocator => {
                self.user = User::Unmarked;
                Err(self.stream_is_gone())
            }
            Err(_) if mutant!(DoorElsewhereLost) => Ok(()),
            // A stream that captures, or a driver that fails.
            Err(e) => Err(e),
        }
    }

    #[cold]
    fn stream_is_gone(&self) -> Failure {
        let message = format!(
            "the stream {:#x} of device {} used this memory and has ended since, or cannot be identified: millpond_torch_free and millpond_free_unknown free it behind a wait for that device, which millpond_torch_empty_cache and millpond_synchronize are",
            self.handle, self.on.device
        );
        Failure { for_good: true, ..Failure::new(Status::Driver, message) }
    }
}

impl Door {
    /// The device of a stream that was not declared, if the driver has no stream ids: then it is not followed, and any allocator can answer this.
    pub(crate) fn home_without_ids(&self, handle: usize) -> Option<u32> {
        let cuda = self.gpu.driver();
        if cuda.has_stream_ids() {
            return None;
        }
        // SAFETY: the caller that names a stream promises that it is alive, and the reference ends here.
        let stream = unsafe { cuda.permanent_stream(core::ptr::without_provenance_mut(handle)) };
        stream.ok().map(|stream| stream.info().device.0)
    }

    /// The id of a stream that was declared permanent here, by its handle alone.
    pub(crate) fn declared(&self, handle: usize) -> Option<StreamId> {
        let lasting = StreamId(u64::MAX);
        let crowded = || self.lanes.lock().get(&(handle, lasting)).map(|lane| lane.stream.id());
        self.permanent(handle).map(|lane| lane.stream.id()).or_else(crowded).filter(|_| handle > PER_THREAD)
    }

    /// The id of a stream of this allocator's device.
    ///
    /// # Errors
    /// It belongs to another device; it cannot be queried.
    pub(crate) fn stream_id_of(&self, handle: usize) -> Result<StreamId, Failure> {
        self.on(handle, |lane| Ok(lane.stream.id()))
    }

    pub(crate) fn device(&self) -> u32 {
        self.device
    }

    /// Work on a stream of `on`'s device, queued by now or before the free, uses the bytes.
    pub(crate) fn used_elsewhere(
        &self,
        ptr: *const c_void,
        on: &'static Door,
        handle: usize,
        user: User,
    ) -> Result<(), Failure> {
        let (mut hold, tag) = self.hold(ptr)?;
        {
            let mut all = USES.lock();
            let uses = all.entry(ptr.addr()).or_default();
            // The stream that had the handle has ended.
            let is_another = |of: &mut Use| matches!((of.user, user), (User::Known(one), User::Known(other)) if one != other);
            let ended = uses.extract_if(.., |of| of.is(on, handle) && is_another(of)).count() > 0;
            for user in [Some(user), ended.then_some(User::Unmarked)].into_iter().flatten() {
                if !uses.iter().any(|of| of.is(on, handle) && of.user == user) {
                    uses.push(Use { on, handle, user });
                }
            }
        }
        hold.set_tag(tag.elsewhere(true).word());
        Ok(())
    }

    /// Records the uses on other devices of an allocation that has some. They stay until its end, or until its free is postponed: their streams may do
    /// more, and this free may still fail.
    ///
    /// # Errors
    /// It cannot be freed yet. If one of them may be recorded later, the error says why not now.
    #[cold]
    pub(super) fn behind_elsewhere(&self, ptr: *const c_void, hold: &mut Hold<'_>) -> Result<(), Failure> {
        let mut uses = USES.lock().get(&ptr.addr()).cloned().unwrap_or_default();
        let is_over = Tag::of(hold.entry().tag).is_deferred();
        let mut failed: Result<(), Failure> = Ok(());
        uses.retain_mut(|of| match of.record(self, ptr, hold) {
            Ok(()) => !is_over,
            Err(e) => {
                if failed.as_ref().err().is_none_or(|first| first.for_good && !e.for_good) {
                    failed = Err(e);
                }
                true
            }
        });
        Door::are_left(ptr, hold, uses);
        failed
    }

    /// An allocation ends: before its slot is reused.
    #[inline]
    pub(super) fn forget_elsewhere(ptr: *const c_void, hold: &Hold<'_>) {
        if Tag::of(hold.entry().tag).is_elsewhere() {
            let uses = USES.lock().remove(&ptr.addr());
            drop(uses);
        }
    }

    fn are_left(ptr: *const c_void, hold: &mut Hold<'_>, uses: Vec<Use>) {
        let any = !uses.is_empty();
        {
            let mut all = USES.lock();
            if any { drop(all.insert(ptr.addr(), uses)) } else { drop(all.remove(&ptr.addr())) }
        }
        hold.set_tag(Tag::of(hold.entry().tag).elsewhere(any).word());
    }

    /// Work behind an event of another device's stream uses the bytes.
    fn use_behind(&self, ptr: *const c_void, hold: &Hold<'_>, event: &Event<Cuda>) -> Result<(), Failure> {
        let mut waits = self.waits.lock();
        let stream = match &mut *waits {
            Some(stream) => stream,
            none => none.insert(self.gpu.stream()?),
        };
        stream.wait(event)?;
        Ok(peek(ptr.addr() as u64, hold.entry()).record_use(stream)?)
    }

    /// As [`Door::hold_to_free`], for a free by an unknown stream: `None` if the uses elsewhere cannot be queried, and it is postponed.
    pub(super) fn hold_or_put_off(&self, ptr: *mut c_void) -> Result<Option<Hold<'static>>, Failure> {
        match self.hold_to_free(ptr) {
            Ok((hold, _)) => Ok(Some(hold)),
            Err(e) if e.for_good => self.put_off(ptr, None).map(|()| None),
            Err(e) => Err(e),
        }
    }

    /// As [`Door::free_unknown`], but never postponed.
    pub(crate) fn free_unknown_now(&self, ptr: *mut c_void) -> Result<(), Failure> {
        let (hold, _) = self.hold_to_free(ptr)?;
        self.end_unknown(ptr, hold);
        Ok(())
    }

    pub(super) fn end_unknown(&self, ptr: *mut c_void, hold: Hold<'_>) {
        Door::end(ptr, hold, true);
        self.freed();
    }

    /// Postpones a free, on a stream or by an unknown one. For callers the allocation is freed from here on. What the stream of the free holds is recorded as a use now: the end may be made
    /// later on another thread, and the stream may be gone.
    pub(crate) fn put_off(&self, ptr: *mut c_void, handle: Option<usize>) -> Result<(), Failure> {
        let (mut hold, mut tag) = self.hold(ptr)?;
        match handle {
            Some(handle) if tag.is_home(handle) => {}
            Some(handle) => {
                let allocation = peek(ptr.addr() as u64, hold.entry());
                if self.on(handle, |lane| record_use(&allocation, lane)).is_err() {
                    tag = tag.unknown();
                }
            }
            None => tag = tag.unknown(),
        }
        hold.set_tag(tag.deferred().word());
        let mut later = LATER.lock();
        let number = later.next;
        later.next += 1;
        if mutant!(DoorLaterLost) {
            return Ok(());
        }
        later.all.push_back((ptr.addr(), number));
        WAITING.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// How many frees are postponed.
    #[inline]
    pub(crate) fn put_off_now() -> usize {
        WAITING.load(Ordering::Relaxed)
    }

    /// Whether an allocation's is.
    pub(crate) fn is_put_off(addr: usize) -> bool {
        index().hold(addr as u64).is_some_and(|hold| Tag::of(hold.entry().tag).is_deferred())
    }

    /// Retries this many postponed frees; returns how many were made.
    #[cold]
    pub(crate) fn try_again(max: usize) -> usize {
        let max = max.min(LATER.lock().all.len());
        (0..max)
            .filter(|_| Door::again(|door, ptr, hold, _| door.behind_elsewhere(ptr, hold).is_ok()))
            .count()
    }

    /// Ends the oldest one if `may_end` says so.
    fn again(may_end: impl FnOnce(&Door, *const c_void, &mut Hold<'_>, u64) -> bool) -> bool {
        let Some((addr, number)) = LATER.lock().all.pop_front() else { return false };
        let ptr = core::ptr::without_provenance_mut(addr);
        // While it is postponed no other call ends it, and its allocator is PyTorch's, which lasts.
        let Some(mut hold) = index().hold(addr as u64) else { return false };
        let tag = Tag::of(hold.entry().tag);
        let Some(door) = Door::tagged(tag) else { return false };
        if tag.is_elsewhere() && !may_end(door, ptr, &mut hold, number) {
            LATER.lock().all.push_back((addr, number));
            return false;
        }
        WAITING.fetch_sub(1, Ordering::Relaxed);
        Door::end(ptr, hold, tag.is_unknown());
        door.freed();
        true
    }

    /// The number of frees postponed so far: read it before a wait, and pass it to [`Door::waited_for`] after it.
    pub(super) fn put_off_until_now() -> u64 {
        LATER.lock().next
    }

    /// Everything queued on the device when `before` was read is complete: uses by streams there, of frees that had been postponed by then, are over.
    /// Returns how many frees were made.
    pub(super) fn waited_for(device: u32, before: u64) -> usize {
        if Door::put_off_now() == 0 {
            return 0;
        }
        let all = LATER.lock().all.len();
        let mut made = 0;
        for _ in 0..all {
            made += usize::from(Door::again(|_, ptr, hold, number| {
                let mut uses = USES.lock().get(&ptr.addr()).cloned().unwrap_or_default();
                uses.retain(|of| of.on.device != device || number >= before);
                let none = uses.is_empty();
                Door::are_left(ptr, hold, uses);
                none
            }));
        }
        made
    }
}
