//! Slots within a budget: pinned ones to write, device ones to copy to, each used again and again.
//!
//! A pinned slot goes round: written, owned by its copy until that is done, written again; who needs one waits for the oldest copy. A device slot
//! goes round too: copied to, held by a consumer, returned with a mark for each stream that used it; its next copy waits for those marks on the
//! device, and the host for nothing. A slot that is too small is replaced by a larger one. The bytes of all slots, whoever has them, never exceed
//! the budget: who needs more waits until something comes back.
//!
//! Invariants; S1 is asserted where a slot is made, and the package's tests look for breaches of the others:
//! - S1: `bytes` is the sum of the capacities of all slots that exist, and at most the budget.
//! - S2: a device slot is copied to only behind every mark that it came back with.
//! - S3: a pinned slot is written only when its copy is done.
//! - S4: whoever waits for a slot waits for something that comes back: when nothing is out, idle slots make room.
//!
//! It does not know batches, their order, threads or sources. No driver call is made under its lock.

use crate::meter::{Meter, Track};
use crate::planted::{Bug, planted};
use core::time::Duration;
use millpond::driver::Driver;
use millpond::transfer::Part;
use millpond::units::GRANULE_BYTES;
use millpond::{Allocator, DeviceArray, Error, Event, PinnedArray, Stream, Upload};
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// The bytes of a slot for so many: whole granules of the allocator.
pub(crate) fn rounded(bytes: u64) -> u64 {
    bytes.max(1).checked_next_multiple_of(GRANULE_BYTES).unwrap_or(u64::MAX)
}

/// What a device slot's next copy has to come after.
#[derive(Debug)]
enum Mark<D: Driver> {
    /// An event behind the use.
    Event(Event<D>),
    /// A use on this stream, at which no event could be recorded.
    Stream(Stream<D>),
}

/// Memory on the device, for one batch at a time.
#[derive(Debug)]
struct DeviceSlot<D: Driver> {
    array: DeviceArray<u8, D>,
    marks: Vec<Mark<D>>,
}

impl<D: Driver> DeviceSlot<D> {
    fn capacity(&self) -> u64 {
        self.array.size_bytes()
    }
    fn is_marked(&self) -> bool {
        !self.marks.iter().any(|mark| matches!(mark, Mark::Stream(_)))
    }
    /// Makes the copy stream wait for everything that used the slot; the events that it waits for now.
    fn order(&mut self, copy: &Stream<D>) -> Result<Vec<Event<D>>, Error> {
        let mut events = Vec::new();
        if planted(Bug::ConsumptionUnwaited) {
            self.marks.clear();
        }
        while let Some(mark) = self.marks.last() {
            let event = match mark {
                Mark::Event(event) => Some(event.clone()),
                Mark::Stream(stream) => stream.record().ok(),
            };
            if let Some(event) = event {
                copy.wait(&event)?;
                events.push(event);
            } else if let Mark::Stream(stream) = mark {
                // Another thread's default stream, or one that captures: the allocator finds a way to wait for it, or the copy fails.
                self.array.record_use(stream)?;
            }
            self.marks.pop();
        }
        Ok(events)
    }
    /// Gives the memory to the allocator, which must know the uses.
    fn retire(mut self, copy: &Stream<D>) {
        while let Some(mark) = self.marks.pop() {
            let known = match mark {
                Mark::Event(event) => copy.wait(&event).or_else(|_| event.synchronize(Duration::MAX)),
                Mark::Stream(stream) => self.array.record_use(&stream).or_else(|_| stream.synchronize()),
            };
            // In a lost context nothing runs any more; otherwise what still uses the bytes keeps them for good.
            if known.is_err_and(|e| !e.is_context_lost()) {
                core::mem::forget(self);
                return;
            }
        }
    }
}

/// A copy under way, and what it waits for.
#[derive(Debug)]
struct Flying<D: Driver> {
    upload: Upload<Part<PinnedArray<u8, D>>, D>,
    after: Vec<Event<D>>,
    capacity: u64,
    batch: u64,
}

#[derive(Debug)]
struct State<D: Driver> {
    pinned_idle: VecDeque<PinnedArray<u8, D>>,
    uploads: VecDeque<Flying<D>>,
    /// All pinned slots: idle, written, in copies.
    pinned: usize,
    /// Those that are being written, or wait for it.
    pinned_out: usize,
    device_idle: VecDeque<DeviceSlot<D>>,
    /// Device slots of batches that are not delivered.
    device_ahead: usize,
    /// Device slots of batches that consumers hold, and their bytes.
    held: usize,
    held_bytes: u64,
    /// S1.
    bytes: u64,
    bytes_peak: u64,
    largest: u64,
}

/// Why there is no slot.
#[derive(Debug)]
pub(crate) enum NoSlot {
    /// The epoch ended.
    Cancelled,
    /// Only consumers can make room.
    Held,
    /// The batch alone exceeds the budget.
    TooLarge,
    Device(Error),
}

/// Whether and how long to wait for a slot.
pub(crate) struct Patience<'a> {
    /// Whether to give up.
    pub(crate) cancelled: &'a dyn Fn() -> bool,
    /// Nobody else will make room: to say so instead of waiting.
    pub(crate) alone: bool,
}

pub(crate) struct Slots<D: Driver> {
    state: Mutex<State<D>>,
    changed: Condvar,
    budget: u64,
    depth: usize,
    meter: Arc<Meter>,
    copy: Stream<D>,
    gpu: Allocator<D>,
}

impl<D: Driver> Slots<D> {
    pub(crate) fn new(
        gpu: &Allocator<D>,
        budget: u64,
        depth: usize,
        meter: Arc<Meter>,
    ) -> Result<Arc<Slots<D>>, Error> {
        let state = State {
            pinned_idle: VecDeque::new(),
            uploads: VecDeque::new(),
            pinned: 0,
            pinned_out: 0,
            device_idle: VecDeque::new(),
            device_ahead: 0,
            held: 0,
            held_bytes: 0,
            bytes: 0,
            bytes_peak: 0,
            largest: 0,
        };
        let copy = gpu.stream()?;
        Ok(Arc::new(Slots {
            state: Mutex::new(state),
            changed: Condvar::new(),
            budget,
            depth,
            meter,
            copy,
            gpu: gpu.clone(),
        }))
    }

    pub(crate) fn budget(&self) -> u64 {
        self.budget
    }
    /// Batches that consumers hold, and the bytes of their slots.
    pub(crate) fn held(&self) -> (usize, u64) {
        let state = self.state.lock();
        (state.held, state.held_bytes)
    }
    /// The bytes of all slots now, and the most there were.
    pub(crate) fn bytes(&self) -> (u64, u64) {
        let state = self.state.lock();
        (state.bytes, state.bytes_peak)
    }
    /// Whoever waits for a slot looks again.
    pub(crate) fn wake(&self) {
        drop(self.state.lock());
        self.changed.notify_all();
    }

    /// A slot of each kind for so many bytes. To be called for one batch at a time, in the order of batches: then everything that is waited for
    /// belongs to earlier ones (S4).
    pub(crate) fn reserve(
        self: &Arc<Self>,
        bytes: u64,
        patience: &Patience<'_>,
    ) -> Result<(PinnedLease<D>, DeviceLease<D>), NoSlot> {
        if rounded(bytes).checked_mul(2).is_none_or(|both| both > self.budget) && !planted(Bug::BudgetIgnored)
        {
            return Err(NoSlot::TooLarge);
        }
        {
            let mut state = self.state.lock();
            state.largest = state.largest.max(rounded(bytes));
        }
        let mut pinned = self.pinned(bytes, patience)?;
        let device = self.device(bytes, &mut pinned, patience)?;
        Ok((pinned, device))
    }

    fn pinned(self: &Arc<Self>, bytes: u64, patience: &Patience<'_>) -> Result<PinnedLease<D>, NoSlot> {
        let mut state = self.state.lock();
        loop {
            if (patience.cancelled)() {
                return Err(NoSlot::Cancelled);
            }
            if let Some(i) = state.pinned_idle.iter().position(|slot| slot.size_bytes() >= bytes) {
                let array = state.pinned_idle.remove(i);
                let capacity = array.as_ref().map_or(0, PinnedArray::size_bytes);
                state.pinned_out += 1;
                return Ok(PinnedLease { array, capacity, in_copy: false, slots: Arc::clone(self) });
            }
            // All that are idle are too small.
            if let Some(small) = state.pinned_idle.pop_front() {
                state.pinned -= 1;
                state.bytes -= small.size_bytes();
                MutexGuard::unlocked(&mut state, || drop(small));
                continue;
            }
            let capacity = self.capacity(&state, bytes);
            // With room for its device slot, unless one is there: else pinned slots would take what those need.
            let served = state.device_idle.iter().any(|slot| slot.capacity() >= bytes);
            let both = if served { capacity } else { capacity.saturating_mul(2) };
            if state.pinned < self.depth && self.has_room(&state, both) {
                self.account(&mut state, capacity);
                (state.pinned, state.pinned_out) = (state.pinned + 1, state.pinned_out + 1);
                drop(state);
                let mut lease =
                    PinnedLease { array: None, capacity, in_copy: false, slots: Arc::clone(self) };
                lease.array = Some(self.gpu.pinned_uninit(capacity as usize).map_err(NoSlot::Device)?);
                return Ok(lease);
            }
            if let Some(flying) = state.uploads.pop_front() {
                self.land(&mut state, flying)?;
                continue;
            }
            if state.is_all_idle(0)
                && let Some(slot) = state.take_device_idle()
            {
                MutexGuard::unlocked(&mut state, || slot.retire(&self.copy));
                continue;
            }
            self.wait(&mut state, patience)?;
        }
    }

    fn device(
        self: &Arc<Self>,
        bytes: u64,
        pinned: &mut PinnedLease<D>,
        patience: &Patience<'_>,
    ) -> Result<DeviceLease<D>, NoSlot> {
        let mut state = self.state.lock();
        loop {
            if (patience.cancelled)() {
                return Err(NoSlot::Cancelled);
            }
            let fits = |slot: &DeviceSlot<D>| slot.capacity() >= bytes;
            // One whose uses have no event yet only if there is no other.
            let marked = state.device_idle.iter().position(|slot| fits(slot) && slot.is_marked());
            if let Some(i) = marked.or_else(|| state.device_idle.iter().position(fits)) {
                let slot = state.device_idle.remove(i);
                state.device_ahead += 1;
                return Ok(DeviceLease::new(slot, self));
            }
            if let Some(small) = state.take_device_idle() {
                MutexGuard::unlocked(&mut state, || small.retire(&self.copy));
                continue;
            }
            let capacity = self.capacity(&state, bytes);
            if self.has_room(&state, capacity) {
                self.account(&mut state, capacity);
                state.device_ahead += 1;
                drop(state);
                let mut lease = DeviceLease::new(None, self);
                lease.capacity = capacity;
                let array = self.gpu.uninit(capacity as usize, &self.copy).map_err(NoSlot::Device)?;
                lease.slot = Some(DeviceSlot { array, marks: Vec::new() });
                return Ok(lease);
            }
            // Pinned slots that nobody needs now make room: fewer of them are enough, since copies are quick to give them back.
            if let Some(idle) = state.pinned_idle.pop_front() {
                state.pinned -= 1;
                state.bytes -= idle.size_bytes();
                MutexGuard::unlocked(&mut state, || drop(idle));
                continue;
            }
            // All that is out is this batch's own pinned slot: what is in copies, and then that slot if it is too large, makes room.
            if state.is_all_idle(1) {
                if let Some(flying) = state.uploads.pop_front() {
                    self.land(&mut state, flying)?;
                } else if pinned.capacity > rounded(bytes) {
                    state.bytes -= pinned.capacity - rounded(bytes);
                    pinned.capacity = rounded(bytes);
                    let large = pinned.array.take();
                    MutexGuard::unlocked(&mut state, || {
                        drop(large);
                        pinned.array = Some(self.gpu.pinned_uninit(rounded(bytes) as usize)?);
                        Ok(())
                    })
                    .map_err(NoSlot::Device)?;
                } else {
                    return Err(NoSlot::TooLarge);
                }
                continue;
            }
            self.wait(&mut state, patience)?;
        }
    }

    /// Waits until something came back.
    fn wait(&self, state: &mut MutexGuard<'_, State<D>>, patience: &Patience<'_>) -> Result<(), NoSlot> {
        if patience.alone {
            return Err(NoSlot::Held);
        }
        let began = self.meter.now();
        self.changed.wait(state);
        self.meter.span(Track::Held, None, began);
        Ok(())
    }

    /// How large to make a slot: as the largest batch so far if a feeder's worth of such slots has room, so that sizes that vary soon change
    /// nothing any more.
    fn capacity(&self, state: &State<D>, bytes: u64) -> u64 {
        let slots = 2 * self.depth as u64 + 1;
        let largest = state.largest.checked_mul(slots).filter(|&all| all <= self.budget);
        largest.map_or(rounded(bytes), |_| state.largest)
    }
    fn has_room(&self, state: &State<D>, capacity: u64) -> bool {
        planted(Bug::BudgetIgnored)
            || state.bytes.checked_add(capacity).is_some_and(|bytes| bytes <= self.budget)
    }

    /// A slot is about to be made.
    fn account(&self, state: &mut State<D>, capacity: u64) {
        state.bytes += capacity;
        state.bytes_peak = state.bytes_peak.max(state.bytes);
        let (bytes, budget) = (state.bytes, self.budget);
        assert!(
            bytes <= budget || planted(Bug::BudgetIgnored),
            "S1: slots of {bytes} bytes, and a budget of {budget}"
        );
    }

    /// Waits for a copy, whose slot is idle then.
    fn land(&self, state: &mut MutexGuard<'_, State<D>>, flying: Flying<D>) -> Result<(), NoSlot> {
        let Flying { upload, after, capacity, batch } = flying;
        let landed = MutexGuard::unlocked(state, || self.landed(upload, &after, batch));
        let done = landed.map(|array| state.pinned_idle.push_back(array)).map_err(|error| {
            // The allocator has the memory, behind the copy.
            state.pinned -= 1;
            state.bytes -= capacity;
            NoSlot::Device(error)
        });
        self.changed.notify_all();
        done
    }
    fn landed(
        &self,
        upload: Upload<Part<PinnedArray<u8, D>>, D>,
        after: &[Event<D>],
        batch: u64,
    ) -> Result<PinnedArray<u8, D>, Error> {
        // Where the time goes: to what the copy waits for, and then to the copy.
        if !upload.is_done().unwrap_or(false) {
            let began = self.meter.now();
            for event in after {
                // What it fails with, the copy's own wait does too.
                let _ = event.synchronize(Duration::MAX);
            }
            self.meter.span(Track::Compute, Some(batch), began);
        }
        let began = self.meter.now();
        let part = upload.wait()?;
        self.meter.span(Track::Copy, Some(batch), began);
        Ok(part.into_inner())
    }
}

impl<D: Driver> State<D> {
    /// Whether nothing is out but so many pinned slots.
    fn is_all_idle(&self, pinned_out: usize) -> bool {
        self.pinned_out == pinned_out && self.device_ahead == 0 && self.held == 0
    }
    fn take_device_idle(&mut self) -> Option<DeviceSlot<D>> {
        let slot = self.device_idle.pop_front()?;
        self.bytes -= slot.capacity();
        Some(slot)
    }
}

impl<D: Driver> Drop for Slots<D> {
    fn drop(&mut self) {
        for slot in self.state.get_mut().device_idle.drain(..) {
            slot.retire(&self.copy);
        }
    }
}

/// A pinned slot while a batch is written into it. Dropped, it is idle again.
pub(crate) struct PinnedLease<D: Driver> {
    /// `None`: there is no memory, only its place in the account.
    array: Option<PinnedArray<u8, D>>,
    capacity: u64,
    /// A copy has the memory, and its place in the account.
    in_copy: bool,
    slots: Arc<Slots<D>>,
}

impl<D: Driver> PinnedLease<D> {
    /// The first bytes of it.
    pub(crate) fn bytes(&mut self, bytes: usize) -> Result<&mut [u8], Error> {
        match &mut self.array {
            Some(array) => Ok(&mut array.host_ready_mut()?[..bytes]),
            None => Ok(&mut []),
        }
    }
}

impl<D: Driver> Drop for PinnedLease<D> {
    fn drop(&mut self) {
        let mut state = self.slots.state.lock();
        state.pinned_out -= 1;
        if let Some(array) = self.array.take() {
            state.pinned_idle.push_back(array);
        } else if !self.in_copy {
            state.pinned -= 1;
            state.bytes -= self.capacity;
        }
        drop(state);
        self.slots.changed.notify_all();
    }
}

/// A device slot while a batch has it. Dropped, it is idle again.
pub(crate) struct DeviceLease<D: Driver> {
    /// `None`: there is no memory, only its place in the account.
    slot: Option<DeviceSlot<D>>,
    capacity: u64,
    /// A consumer has it.
    held: bool,
    slots: Arc<Slots<D>>,
}

impl<D: Driver> DeviceLease<D> {
    fn new(slot: Option<DeviceSlot<D>>, slots: &Arc<Slots<D>>) -> DeviceLease<D> {
        let capacity = slot.as_ref().map_or(0, DeviceSlot::capacity);
        DeviceLease { slot, capacity, held: false, slots: Arc::clone(slots) }
    }

    /// Queues the copy of the first bytes of a written slot, behind everything that used this one.
    pub(crate) fn fill_from(
        &mut self,
        mut pinned: PinnedLease<D>,
        bytes: usize,
        batch: u64,
    ) -> Result<(), Error> {
        let slots = Arc::clone(&self.slots);
        let Some(slot) = &mut self.slot else { return Ok(()) };
        let after = slot.order(&slots.copy)?;
        let Some(array) = pinned.array.take() else { return Ok(()) };
        // From here on the lease has no memory: whatever happens, the allocator has it, or it is put back.
        let copied = slot.array.slice_mut(..bytes).copy_from(Part::new(array, ..bytes), &slots.copy);
        match copied {
            Ok(upload) => {
                let flying = Flying { upload, after, capacity: pinned.capacity, batch };
                slots.state.lock().uploads.push_back(flying);
                pinned.in_copy = true;
                Ok(())
            }
            Err(refused) => {
                pinned.array = refused.host.map(Part::into_inner);
                Err(refused.error)
            }
        }
    }

    /// A consumer gets it, whose stream waits for its copy.
    pub(crate) fn deliver(&mut self, compute: &Stream<D>) -> Result<(), Error> {
        if let Some(slot) = &self.slot
            && !planted(Bug::ArrivalUnwaited)
        {
            slot.array.wait_on(compute)?;
        }
        let mut state = self.slots.state.lock();
        state.device_ahead -= 1;
        state.held += 1;
        state.held_bytes += self.capacity;
        self.held = true;
        Ok(())
    }

    pub(crate) fn array(&self) -> Option<&DeviceArray<u8, D>> {
        self.slot.as_ref().map(|slot| &slot.array)
    }
    pub(crate) fn array_mut(&mut self) -> Option<&mut DeviceArray<u8, D>> {
        self.slot.as_mut().map(|slot| &mut slot.array)
    }
    /// Its next copy comes after all that this stream holds by now.
    pub(crate) fn mark(&mut self, stream: &Stream<D>) {
        if let Some(slot) = &mut self.slot {
            // It runs in a drop: what a driver fails with, or panics with, is met again where the slot is next copied to.
            let recorded = catch_unwind(AssertUnwindSafe(|| stream.record()));
            let event = recorded.ok().and_then(Result::ok);
            slot.marks.push(event.map_or_else(|| Mark::Stream(stream.clone()), Mark::Event));
        }
    }
}

impl<D: Driver> Drop for DeviceLease<D> {
    fn drop(&mut self) {
        let mut state = self.slots.state.lock();
        if self.held {
            state.held -= 1;
            state.held_bytes -= self.capacity;
        } else {
            state.device_ahead -= 1;
        }
        match self.slot.take() {
            Some(slot) => state.device_idle.push_back(slot),
            None => state.bytes -= self.capacity,
        }
        drop(state);
        self.slots.changed.notify_all();
    }
}
