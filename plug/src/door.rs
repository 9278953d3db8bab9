//! [`Door`]: an allocator of the C interface with its streams by handle, and the operations that callers need.
//!
//! A handle's value is reused by the next stream after a destroy, so a stream is identified by handle and id together, unless it was
//! declared permanent, or is the legacy default stream: then by its handle, in a table that all threads read and that
//! only a declaration writes. A stream that was not declared may end without notice; it is followed as unmanaged
//! (`Cuda::unmanaged_stream`): only calls that name it mark what it holds, a free that names it at once. Each thread remembers the streams
//! that it used last. Code beside a C caller may capture graphs: every context expects that
//! (`Cuda::expect_captures`) unless the caller rules it out, so memory that cannot be marked is held back until a call that waits for the device. Either way a hit takes no lock except its pool's, and
//! writes nothing that another thread's hit reads or writes.
//!
//! An allocator, with the lanes of its permanent streams (a [`Lane`] is a stream in one allocator), is freed some time after it was destroyed, when nothing of it is left and
//! no call that may hold it is under way (`presence`): a `&'static Door` lasts as long as the call that found it. A number names one allocator for the life of
//! the process. How one ends, and what is freed afterwards: `door/end.rs`.

#![allow(unsafe_code, reason = "raw handles and raw allocations, as callers promise they are")]

mod elsewhere;
mod end;
mod options;
#[cfg(millpond_mutants)]
mod planted;

pub(crate) use elsewhere::User;
pub use end::READABLE;

use crate::index::{Entry, Hold, index};
use crate::met;
use crate::pinned::Pinned;
use crate::status::{Failure, MillpondStatus as Status};
use crate::table::Table;
use crate::tag::{PER_THREAD, Tag};
use core::ffi::c_void;
use core::mem::ManuallyDrop;
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use hashbrown::HashMap;
use parking_lot::Mutex;
use pond::cuda::Cuda;
use pond::units::{Addr, StreamId};
use pond::{Allocation, Allocator, DriverErrorKind, Limit, RawAllocation, Stream};
use std::sync::Arc;

/// The maximum number of allocators at one time, including ended ones of which something is left. A number is never reused, so that a late call, for one
/// that was destroyed, returns a code and never reaches another allocator. `Tag` has room for this many places; an unused one costs 12 bytes.
const MOST: usize = 4096;
/// With this many streams of calling threads and of others, those that no thread remembers are forgotten.
const FORGETTING: usize = 16;
/// With more streams than this, a call that waits for the device forgets those that no thread remembers: four times what one thread remembers.
const CROWD: usize = 64;
/// Places for permanent streams, a power of two, and in how many of them a handle is searched. PyTorch has 97 streams per
/// device. A stream that finds no place is treated like any other.
const PLACES: usize = 256;
const PROBES: usize = 16;

static DOORS: Table<Door, MOST> = Table::new();

/// An allocator behind a number.
pub(crate) struct Door {
    number: u32,
    device: u32,
    gpu: Allocator<Cuda>,
    closed: AtomicBool,
    /// A stream was adopted by a call that must not wait: ended streams may be left for one that may.
    brought: AtomicBool,
    /// Destroyed, and something was freed that has not been given back to the device.
    postponed: AtomicBool,
    /// PyTorch's, which is never freed.
    lasting: AtomicBool,
    permanent: Box<[AtomicPtr<Lane>; PLACES]>,
    lanes: Mutex<HashMap<(usize, StreamId), Arc<Lane>>>,
    /// A stream of our own, which waits on behalf of other devices' streams.
    waits: Mutex<Option<Stream<Cuda>>>,
    pinned: Pinned,
}

/// A stream as callers name it.
pub(crate) struct Lane {
    stream: Stream<Cuda>,
    handle: usize,
    /// The handle alone identifies it, at least for this thread.
    lasting: bool,
    /// The tag of its allocations.
    tag: Tag,
}

impl Lane {
    fn new(door: u32, stream: Stream<Cuda>, handle: usize, lasting: bool) -> Lane {
        Lane { stream, handle, lasting, tag: Tag::new(door, handle, lasting) }
    }
    pub(crate) fn handle(&self) -> usize {
        self.handle
    }
    pub(crate) fn stream(&self) -> &Stream<Cuda> {
        &self.stream
    }
}

/// The result of a search for a lane.
enum Found<'a> {
    Kept(&'a Lane),
    Counted(Arc<Lane>),
}

impl core::ops::Deref for Found<'_> {
    type Target = Lane;
    fn deref(&self) -> &Lane {
        match self {
            Found::Kept(lane) => lane,
            Found::Counted(lane) => lane,
        }
    }
}

/// An allocation of a held slot, which stays in the slot.
fn peek(addr: u64, entry: Entry) -> ManuallyDrop<Allocation<Cuda>> {
    // SAFETY: the slot was filled from `to_words` of an allocation at this address, and is held; the allocation is not
    // dropped unless its slot ends.
    ManuallyDrop::new(unsafe { Allocation::from_raw(RawAllocation::from_words(Addr(addr), entry.words)) })
}

/// A use on the allocation's own stream is not recorded; the query of a stream's id also showed whether it captures.
fn record_use(allocation: &Allocation<Cuda>, lane: &Lane) -> Result<(), Failure> {
    if !lane.lasting && allocation.stream_id() == Some(lane.stream.id()) {
        return Ok(());
    }
    Ok(allocation.record_use(&lane.stream)?)
}

#[cold]
pub(crate) fn unknown(ptr: *const c_void) -> Failure {
    let message = format!("{ptr:p} is no live allocation: it was freed, never was one, or points inside one");
    Failure::new(Status::UnknownPointer, message)
}

impl Drop for Door {
    fn drop(&mut self) {
        for place in self.permanent.iter_mut() {
            let lane = core::mem::replace(place.get_mut(), core::ptr::null_mut());
            if !lane.is_null() {
                // SAFETY: from `keep`, and no thread looks at the allocator any more.
                drop(unsafe { Box::from_raw(lane) });
            }
        }
    }
}

impl Door {
    /// A new one for a device.
    pub(crate) fn open(device: u32, options: &str) -> Result<&'static Door, Failure> {
        let (config, captures) = options::config(options)?;
        Door::sweep_postponed(None);
        Door::reclaim(READABLE);
        if DOORS.is_full() {
            Door::reclaim(0);
        }
        if DOORS.is_full() {
            return Err(Door::too_many());
        }
        let cuda = Cuda::new(device).map_err(pond::Error::Unavailable)?;
        if captures && mutant!(DoorCreateNotified) {
            cuda.expect_captures();
        }
        let gpu = Allocator::new(cuda, config)?;
        let permanent = Box::new([const { AtomicPtr::new(core::ptr::null_mut()) }; PLACES]);
        let (lanes, pinned) = (Mutex::new(HashMap::new()), Mutex::new(HashMap::new()));
        let (closed, postponed) = (AtomicBool::new(false), AtomicBool::new(false));
        let waits = Mutex::new(None);
        let (brought, lasting) = (AtomicBool::new(false), AtomicBool::new(false));
        let door = DOORS.put(|number| {
            Door::hold_context(gpu.driver(), device);
            // For all allocators of the device, and never reverted: when nothing can fail any more.
            if captures {
                gpu.driver().expect_captures();
            } else {
                gpu.driver().promise_no_captures();
            }
            Box::new(Door {
                number,
                device,
                gpu,
                closed,
                brought,
                postponed,
                lasting,
                permanent,
                lanes,
                waits,
                pinned,
            })
        });
        door.ok_or_else(Door::too_many)
    }

    /// All allocators, including destroyed ones.
    pub(crate) fn all() -> impl Iterator<Item = &'static Door> {
        DOORS.iter()
    }

    #[cold]
    fn too_many() -> Failure {
        let message = format!(
            "this process has {MOST} allocators, which is as many as there can be, with ended ones whose memory is not all freed: make one a device and keep it"
        );
        Failure::new(Status::BadArgument, message)
    }

    /// The one with this name, closed or not.
    pub(crate) fn any(name: u32) -> Result<&'static Door, Failure> {
        name.checked_sub(1).and_then(Door::numbered).ok_or_else(|| Door::unknown_name(name))
    }

    /// The allocator of this number, if it still exists.
    #[inline]
    fn numbered(number: u32) -> Option<&'static Door> {
        DOORS.at(Table::<Door, MOST>::place(number)).filter(|door| door.number == number)
    }

    #[cold]
    fn unknown_name(name: u32) -> Failure {
        let message = format!(
            "there is no allocator {name}, or it was destroyed long ago and its record is gone: millpond_create returns the numbers of allocators"
        );
        Failure::new(Status::UnknownAllocator, message)
    }

    /// The one with this name, open.
    pub(crate) fn find(name: u32) -> Result<&'static Door, Failure> {
        Door::any(name)?.opened()
    }

    /// Fails if it was destroyed.
    pub(crate) fn opened(&self) -> Result<&Door, Failure> {
        if self.closed.load(Ordering::Relaxed) {
            return Err(self.destroyed());
        }
        Ok(self)
    }

    #[cold]
    fn destroyed(&self) -> Failure {
        Failure::new(Status::UnknownAllocator, format!("allocator {} was destroyed", self.name()))
    }

    /// The name of the allocator that has the live allocation that begins here.
    pub(crate) fn of(ptr: *const c_void) -> Option<u32> {
        // While its memory is alive its place is no other's.
        let hold = index().hold(ptr.addr() as u64)?;
        let tag = Tag::of(hold.entry().tag);
        Door::tagged(tag).filter(|_| !tag.is_deferred()).map(Door::name)
    }

    /// The allocator of the memory with this tag.
    fn tagged(tag: Tag) -> Option<&'static Door> {
        DOORS.at(tag.door() as usize)
    }

    /// The part of its memory's tags that names it.
    #[inline]
    fn place(&self) -> u32 {
        Table::<Door, MOST>::place(self.number) as u32
    }

    /// What callers call it; never 0.
    pub(crate) fn name(&self) -> u32 {
        self.number + 1
    }
    pub(crate) fn gpu(&self) -> &Allocator<Cuda> {
        &self.gpu
    }
    pub(crate) fn pinned(&self) -> &Pinned {
        &self.pinned
    }

    /// The places that a permanent stream's lane may have, in search order.
    #[inline]
    fn places(&self, handle: usize) -> impl Iterator<Item = &AtomicPtr<Lane>> {
        // Handles are addresses: their low bits are all the same, and the product's high bits depend on all of them.
        let first = (handle as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - PLACES.ilog2());
        (0..PROBES).map(move |n| &self.permanent[(first as usize + n) % PLACES])
    }

    /// The lane of a permanent stream.
    #[inline]
    fn permanent(&self, handle: usize) -> Option<&Lane> {
        // SAFETY: null, or a lane that `keep` put there and that stays as long as its allocator.
        let lanes = self.places(handle).map_while(|p| unsafe { p.load(Ordering::Acquire).as_ref() });
        lanes.into_iter().find(|lane| lane.handle == handle)
    }

    /// Keeps a lane as long as the allocator, if there is a place; returns the existing one, if there is one. `Err`: no place.
    fn keep(&self, lane: Lane) -> Result<&Lane, Lane> {
        let handle = lane.handle;
        let lane = Box::into_raw(Box::new(lane));
        for place in self.places(handle) {
            let null = core::ptr::null_mut();
            let Err(there) = place.compare_exchange(null, lane, Ordering::AcqRel, Ordering::Acquire) else {
                // SAFETY: made above, and from here on in a place, where it stays.
                return Ok(unsafe { &*lane });
            };
            // SAFETY: not null, and then it stays as long as the allocator.
            let there = unsafe { &*there };
            if there.handle == handle {
                // SAFETY: made above, and not yet shared.
                drop(unsafe { Box::from_raw(lane) });
                return Ok(there);
            }
        }
        // SAFETY: as above.
        Err(*unsafe { Box::from_raw(lane) })
    }

    /// Runs `then` on the stream that a handle means now.
    #[inline]
    pub(crate) fn on<R>(
        &self,
        handle: usize,
        then: impl FnOnce(&Lane) -> Result<R, Failure>,
    ) -> Result<R, Failure> {
        match self.permanent(handle) {
            Some(lane) => then(lane),
            None => self.on_other(handle, then),
        }
    }

    /// As [`Door::on`], for a stream that is not permanent.
    #[inline(never)]
    fn on_other<R>(
        &self,
        handle: usize,
        then: impl FnOnce(&Lane) -> Result<R, Failure>,
    ) -> Result<R, Failure> {
        let mut then = Some(then);
        let met = met::with(self.number, handle, |lane| {
            if !lane.lasting {
                // SAFETY: the caller that names a stream promises that it is alive.
                match unsafe { self.gpu.driver().raw_id((handle as *mut c_void).cast()) } {
                    Ok(id) if id == lane.stream.id() || mutant!(DoorHandleIsLane) => {}
                    Ok(_) => return None,
                    Err(e) => return Some(Err(e.into())),
                }
            }
            then.take().map(|then| then(lane))
        });
        if let Some(result) = met {
            return result;
        }
        let lane = self.find_lane(handle)?;
        if let Found::Counted(lane) = &lane {
            met::remember(self.number, lane);
        }
        then.take().map_or_else(|| Err(Failure::new(Status::Panic, "called twice")), |then| then(&lane))
    }

    /// As [`Door::on`], for a stream that this thread has not used lately.
    #[cold]
    fn find_lane(&self, handle: usize) -> Result<Found<'_>, Failure> {
        let native = (handle as *mut c_void).cast();
        let lasting = StreamId(u64::MAX);
        let cuda = self.gpu.driver();
        if handle > PER_THREAD
            && let Some(lane) = self.lanes.lock().get(&(handle, lasting))
        {
            return Ok(Found::Counted(Arc::clone(lane)));
        }
        // SAFETY: the caller that names a stream promises that it is alive, and every later use of this reference is in
        // a call that names it.
        let stream = unsafe { cuda.unmanaged_stream(native) }?;
        let id = stream.info().id;
        // Default streams always exist; a per-thread one is permanent for its own thread, which alone remembers it.
        let key = (handle, if handle < PER_THREAD { lasting } else { id });
        let known = self.lanes.lock().get(&key).map(Arc::clone);
        if let Some(lane) = known {
            return Ok(Found::Counted(self.owned(lane)));
        }
        // Frees and uses must not wait, and come here too: an allocation may, and does so for them.
        let stream = self.gpu.adopt_without_waiting(stream)?;
        self.brought.store(true, Ordering::Relaxed);
        let mut lane = Lane::new(self.place(), stream, handle, handle <= PER_THREAD);
        if handle < PER_THREAD {
            match self.keep(lane) {
                Ok(kept) => return Ok(Found::Kept(kept)),
                Err(refused) => lane = refused,
            }
        }
        let mut gone = Vec::new();
        let lane = {
            let mut lanes = self.lanes.lock();
            if handle > PER_THREAD {
                // The handle is now another stream's, so the one that had it has ended.
                let ended = |&(h, i): &(usize, StreamId)| h == handle && i != id && i != lasting;
                gone.extend(lanes.extract_if(|key, _| ended(key) && !mutant!(DoorLaneKept)));
            } else if lanes.len() >= FORGETTING && lanes.len().is_multiple_of(FORGETTING) {
                // Streams that ended threads could not end, and those of threads past their lists' end. A forgotten stream that comes back
                // is found anew.
                let forgotten = |lane: &Arc<Lane>| Arc::strong_count(lane) == 1;
                gone.extend(lanes.extract_if(|&(h, _), lane| h == PER_THREAD && forgotten(lane)));
            }
            Arc::clone(lanes.entry(key).or_insert_with(|| Arc::new(lane)))
        };
        drop(gone);
        Ok(Found::Counted(self.owned(lane)))
    }

    /// A thread's own default stream ends with it.
    fn owned(&self, lane: Arc<Lane>) -> Arc<Lane> {
        if lane.handle == PER_THREAD && !mutant!(DoorThreadStays) {
            met::own(self.number, &lane);
        }
        lane
    }

    /// Whether the allocator of this number was destroyed, and may no longer exist.
    pub(crate) fn is_closed(number: u32) -> bool {
        Door::numbered(number).is_none_or(|door| door.closed.load(Ordering::Acquire))
    }

    /// The calling thread ends, and its default stream with it: what was freed there is marked, and the lane ends.
    pub(crate) fn thread_ends(number: u32, lane: Arc<Lane>) {
        let _here = crate::presence::enter();
        let Some(door) = Door::numbered(number) else { return };
        let key = (PER_THREAD, lane.stream.id());
        // While the stream captures its id is not queried. And if the driver has released it before us, the handle means a new one, whose
        // events say nothing about this one.
        // SAFETY: a default stream always exists, and the handle means the calling thread's.
        let here = unsafe { door.gpu.driver().raw_id(core::ptr::without_provenance_mut(PER_THREAD)) };
        if here.is_ok_and(|id| id == key.1) {
            lane.stream.mark_frees();
            let kept = door.lanes.lock().remove(&key);
            // The last reference closes the stream if nothing on it is alive, behind one more marker. Not under the lock.
            drop((kept, lane));
            return;
        }
        // Dropped on another thread, it marks nothing.
        let spare = door.lanes.lock().insert(key, lane);
        drop(spare);
        if door.closed.load(Ordering::Acquire) {
            door.postpone();
        }
    }

    /// The stream lives as long as the process: its handle alone identifies it.
    pub(crate) fn declare_permanent(&self, handle: usize) -> Result<(), Failure> {
        if handle <= PER_THREAD {
            return self.find_lane(handle).map(drop);
        }
        if let Some(lane) = self.permanent(handle) {
            // SAFETY: the caller's promise.
            return match unsafe { self.gpu.driver().raw_id((handle as *mut c_void).cast()) } {
                Ok(id) if id != lane.stream.id() => {
                    let message = format!(
                        "the stream {handle:#x} was declared permanent, was destroyed all the same, and another one has its handle: declare only streams that live as long as the process"
                    );
                    Err(Failure::new(Status::BadArgument, message))
                }
                // Without ids the handle is the only identity.
                Err(e) if e.kind != DriverErrorKind::NotSupported => Err(e.into()),
                _ => Ok(()),
            };
        }
        // SAFETY: the caller's promise.
        let stream = unsafe { self.gpu.driver().permanent_stream((handle as *mut c_void).cast()) }?;
        // If it was known as one that may end, it is permanent from here on, for all allocators of the device.
        let stream = self.gpu.adopt(stream)?;
        let before = self.lanes.lock().remove(&(handle, stream.id()));
        drop(before);
        if let Err(lane) = self.keep(Lane::new(self.place(), stream, handle, true)) {
            let replaced = self.lanes.lock().insert((handle, StreamId(u64::MAX)), Arc::new(lane));
            drop(replaced);
        }
        Ok(())
    }

    /// Bytes on a stream; null for none.
    #[inline]
    pub(crate) fn alloc(&self, bytes: usize, handle: usize) -> Result<*mut c_void, Failure> {
        self.opened()?;
        if bytes == 0 {
            return Ok(core::ptr::null_mut());
        }
        if self.brought.load(Ordering::Relaxed) {
            self.finish_ended();
        }
        self.on(handle, |lane| {
            let allocation = if lane.lasting {
                self.gpu.alloc(bytes as u64, &lane.stream)?
            } else {
                // Its id was queried just now, and so was whether it captures.
                self.gpu.alloc_not_capturing(bytes as u64, &lane.stream)?
            };
            let raw = allocation.into_raw();
            let (addr, words) = (raw.address().0, raw.to_words());
            if !index().insert(addr, Entry { words, tag: lane.tag.word() }) {
                // SAFETY: taken apart above, and in no slot.
                drop(unsafe { Allocation::from_raw(raw) });
                let message = format!("the device gave an address that cannot be kept: {addr:#x}");
                return Err(Failure::new(Status::Driver, message));
            }
            Ok(addr as *mut c_void)
        })
        .inspect_err(|_| self.refused())
    }

    /// Finishes what calls that must not wait left undone.
    #[cold]
    fn finish_ended(&self) {
        self.brought.store(false, Ordering::Relaxed);
        self.gpu.finish_ended();
    }

    #[cold]
    fn not_ours(&self, ptr: *const c_void, tag: Tag) -> Failure {
        let theirs = Door::tagged(tag).map_or(0, Door::name);
        let message = format!("{ptr:p} is an allocation of allocator {theirs}, not of {}", self.name());
        Failure::new(Status::WrongAllocator, message)
    }

    #[inline]
    fn hold(&self, ptr: *const c_void) -> Result<(Hold<'static>, Tag), Failure> {
        let hold = index().hold(ptr.addr() as u64).ok_or_else(|| unknown(ptr))?;
        let tag = Tag::of(hold.entry().tag);
        if tag.is_deferred() && !mutant!(DoorPutOffShared) {
            return Err(unknown(ptr));
        }
        if tag.door() != self.place() {
            return Err(self.not_ours(ptr, tag));
        }
        Ok((hold, tag))
    }

    /// As [`Door::hold`], for a free: behind uses on other devices. If one cannot be recorded, the allocation stays live.
    #[inline]
    fn hold_to_free(&self, ptr: *const c_void) -> Result<(Hold<'static>, Tag), Failure> {
        let (mut hold, tag) = self.hold(ptr)?;
        if tag.is_elsewhere() && !mutant!(DoorElsewhereUnseen) {
            self.behind_elsewhere(ptr, &mut hold)?;
        }
        Ok((hold, tag))
    }

    /// Ends an allocation. Its slot first: the bytes may be reused at once.
    #[inline]
    fn end(ptr: *const c_void, hold: Hold<'_>, by_unknown: bool) {
        Door::forget_elsewhere(ptr, &hold);
        let allocation = ManuallyDrop::into_inner(peek(ptr.addr() as u64, hold.entry()));
        let late = if mutant!(DoorSlotLate) {
            Some(hold)
        } else {
            hold.end();
            None
        };
        if by_unknown && !mutant!(DoorUnknownPlain) {
            allocation.free_unknown();
        } else {
            drop(allocation);
        }
        if let Some(hold) = late {
            std::thread::yield_now();
            hold.end();
        }
    }

    /// After a free: if the thread's end can no longer be noticed, the free is marked at once. And what is freed of a destroyed
    /// allocator is postponed: giving it back is the driver's free, which may wait for the device.
    #[inline]
    pub(crate) fn freed(&self) {
        if met::is_past() {
            self.freed_late();
        }
        if self.closed.load(Ordering::Acquire) && !mutant!(DoorUntrimmed) {
            self.postpone();
            if mutant!(DoorFreeTrims) {
                let _ = self.give_back_postponed();
            }
        }
    }

    /// The thread's default stream was used again, or still had this memory, and ends once more. If its id cannot be queried, because it
    /// captures or the driver is gone, it is not marked, as at the thread's end.
    #[cold]
    fn freed_late(&self) {
        if let Ok(Found::Counted(lane)) = self.find_lane(PER_THREAD) {
            Door::thread_ends(self.number, lane);
        }
    }

    /// Frees behind the allocation's own stream and all recorded uses.
    pub(crate) fn free(&self, ptr: *mut c_void) -> Result<(), Failure> {
        if ptr.is_null() {
            return Ok(());
        }
        let (hold, tag) = self.hold_to_free(ptr)?;
        Door::end(ptr, hold, tag.is_unknown());
        self.freed();
        Ok(())
    }

    /// Also frees behind what `handle` holds.
    #[inline]
    pub(crate) fn free_on(&self, ptr: *mut c_void, handle: usize) -> Result<(), Failure> {
        if ptr.is_null() {
            return Ok(());
        }
        let (hold, tag) = self.hold_to_free(ptr)?;
        let unknown = tag.is_unknown() && !mutant!(DoorTagForgotten);
        if tag.is_home(handle) {
            Door::end(ptr, hold, unknown);
            self.freed();
            return Ok(());
        }
        self.on(handle, |lane| {
            let recorded = record_use(&peek(ptr.addr() as u64, hold.entry()), lane);
            if recorded.is_err() && mutant!(DoorEndedFirst) {
                Door::end(ptr, hold, true);
                return recorded;
            }
            recorded?;
            Door::end(ptr, hold, unknown);
            if !mutant!(DoorFreeUnmarked) {
                lane.stream.mark_frees();
            }
            self.freed();
            Ok(())
        })
    }

    /// As [`Door::free`], and marks these streams behind it.
    pub(crate) fn free_and_mark(
        &self,
        ptr: *mut c_void,
        streams: impl Iterator<Item = usize>,
    ) -> Result<(), Failure> {
        let (hold, tag) = self.hold_to_free(ptr)?;
        Door::end(ptr, hold, tag.is_unknown());
        let marked = if mutant!(DoorFreeUnmarked) { 0 } else { usize::MAX };
        streams.take(marked).for_each(|handle| self.mark_frees(handle));
        self.freed();
        Ok(())
    }

    /// Marks what was freed on a stream that is named, or behind it, until now.
    fn mark_frees(&self, handle: usize) {
        // A stream that cannot be marked is marked when named again.
        let _ = self.on(handle, |lane| {
            lane.stream.mark_frees();
            Ok(())
        });
    }

    /// Frees behind everything that any stream holds.
    pub(crate) fn free_unknown(&self, ptr: *mut c_void) -> Result<(), Failure> {
        if ptr.is_null() {
            return Ok(());
        }
        let Some(hold) = self.hold_or_put_off(ptr)? else { return Ok(()) };
        self.end_unknown(ptr, hold);
        Ok(())
    }

    /// Work on `handle`, queued by now or before the free, uses the bytes.
    pub(crate) fn record_use(&self, ptr: *mut c_void, handle: usize) -> Result<(), Failure> {
        // An empty allocation is a null pointer.
        if ptr.is_null() {
            return Ok(());
        }
        let (hold, tag) = self.hold(ptr)?;
        if tag.is_home(handle) {
            return Ok(());
        }
        let allocation = peek(ptr.addr() as u64, hold.entry());
        let recorded = self.on(handle, |lane| record_use(&allocation, lane));
        #[cfg(millpond_mutants)]
        if recorded.is_err() {
            self.use_was_refused(&allocation, hold, tag, handle);
        }
        recorded
    }

    /// The bytes have an unknown user: they are reused behind everything.
    pub(crate) fn use_unknown(&self, ptr: *mut c_void) -> Result<(), Failure> {
        let (mut hold, tag) = self.hold(ptr)?;
        hold.set_tag(tag.unknown().word());
        Ok(())
    }

    /// The live allocation that contains an address: where it begins and how long it is. Searches all of them.
    pub(crate) fn around(&self, ptr: *const c_void) -> Result<(u64, u64), Failure> {
        let at = ptr.addr() as u64;
        let live = self.gpu.live();
        let within = live.iter().find(|l| l.stream.is_some() && l.addr.0 <= at && at - l.addr.0 < l.bytes);
        let found = within.map(|l| (l.addr.0, l.bytes)).ok_or_else(|| unknown(ptr))?;
        // One that was freed, and whose end waits for another device, does not count.
        self.hold(found.0 as *const c_void).map(|_| found).map_err(|_| unknown(ptr))
    }

    /// A size, a share or none, as text.
    pub(crate) fn set_limit(&self, limit: &str) -> Result<(), Failure> {
        let limit: Limit = limit.parse()?;
        Ok(self.opened()?.gpu.set_limit(limit)?)
    }
}
