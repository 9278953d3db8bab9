//! Virtual memory that is safe to use: it reserves, creates and maps, and gives back only what it made, once.
//!
//! The methods of [`Mapping`] are unsafe because they take any address and any handle. [`VirtualMemory`] keeps a table of what it
//! made and passes only that to the driver. So its methods are safe in the sense in which those of [`OwnedRange`](crate::OwnedRange) are:
//! **the caller that unmaps or releases ensures that all uses are complete** (law O4). Each method makes one change, whole or not at all;
//! what could not be undone is in its error.
//!
//! ```text
//!   reservation  |<------------------------------------------->|   reserve ... unreserve
//!   places       |   map(a, ..)   |         | map(b, ..) |  ...    map ... unmap
//!   handles             a              c           b               create ... release: c is mapped nowhere
//! ```
//!
//! # Invariants
//!
//! * **V1** places are disjoint, each inside one reservation; a reservation is given back only when no place is in it.
//! * **V2** a handle is released once, and only when it has no place.
//! * **V3** what one thread is changing, no other thread can change until the driver has answered. If the driver panics over a place, it is unknown
//!   whether something is mapped there: it stays a place, and an unmap of it may be tried again, which takes nothing else away. A handle whose
//!   release panics is never released again: memory that is lost is better than memory that is given back twice.
//! * **V4** the table's lock is not held over a driver call.
//!
//! A caller that requests what V1 to V3 forbid has a bug, and the method panics with the number. It does not know who uses the
//! memory, how large a piece should be, or when a use is over.

use crate::sync::{Mutex, Ordering, plain::AtomicU64};
use crate::units::Addr;
use crate::{DriverError, DriverErrorKind, DriverResult, Mapping, MappingFacts, Memory, Properties};
use core::fmt;
use std::collections::BTreeMap;

/// A piece of physical memory that a [`VirtualMemory`] created. Dropping it does nothing: see [`VirtualMemory::release`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PhysicalHandle {
    /// Never used twice in a process, so a handle of another device or one that was released is recognised.
    number: u64,
    bytes: u64,
}

impl PhysicalHandle {
    /// Its length in bytes.
    pub fn bytes(self) -> u64 {
        self.bytes
    }
}

/// A handle was not mapped.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{error}{}", undone(stuck.as_ref()))]
#[non_exhaustive]
pub struct NotMapped {
    /// The driver's error.
    pub error: DriverError,
    /// Why the mapping could not be undone, if it could not. The handle then stays mapped at that place, without access: the place is
    /// free, and the handle can be released, only after a [`VirtualMemory::unmap`] that succeeds.
    pub stuck: Option<DriverError>,
}

fn undone(stuck: Option<&DriverError>) -> String {
    stuck.map_or_else(String::new, |e| format!("; the mapping stays, because {e}: unmap it later"))
}

/// All virtual memory of one owner on one device. What is left is given back when it is dropped, so its owner makes sure before
/// that all uses are complete, or forgets it.
///
/// ```
/// use millpond_driver::units::Addr;
/// use millpond_driver::{Driver, VirtualMemory};
///
/// fn one_memory_at_two_places<D: Driver>(device: D) -> Result<(), Box<dyn std::error::Error>> {
///     let memory = VirtualMemory::new(device).ok_or("no virtual memory: use plain segments")?;
///     let unit = memory.facts().granularity;
///     let base = memory.reserve(64 * unit, None)?;
///     let handle = memory.create(2 * unit)?;
///     memory.map(handle, base)?;                      // readable and writable
///     memory.map(handle, Addr(base.0 + 8 * unit))?;   // the same memory
///     memory.unmap(base)?;
///     Ok(())
/// }
/// ```
pub struct VirtualMemory<D: Memory + Mapping> {
    device: D,
    facts: MappingFacts,
    properties: Properties,
    table: Mutex<Table<D::Handle>>,
}

/// What was made and not given back.
struct Table<H> {
    /// First address to length.
    reservations: BTreeMap<u64, u64>,
    /// By number.
    handles: BTreeMap<u64, Created<H>>,
    /// By first address.
    places: BTreeMap<u64, Place>,
}

struct Created<H> {
    native: H,
    bytes: u64,
    /// The number of its places.
    places: u32,
}

struct Place {
    handle: u64,
    bytes: u64,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// The handle is mapped there.
    Mapped,
    /// A thread is mapping or unmapping it (V3).
    Changing,
    /// The driver panicked over it: it is mapped or not.
    Unknown,
}

impl State {
    /// Whether nothing is mapped there any more, by the driver's answer to an unmap. Where it was unknown whether there was a mapping, *invalid value* says that
    /// there is none.
    fn is_gone(self, answer: &DriverResult<()>) -> bool {
        match answer {
            Ok(()) => true,
            Err(e) => self == State::Unknown && e.kind == DriverErrorKind::InvalidValue,
        }
    }
}

#[allow(unsafe_code, reason = "the one place where virtual memory is mapped and given back")]
impl<D: Memory + Mapping> VirtualMemory<D> {
    /// Virtual memory on this device, nothing at first. `None` if the device has none.
    pub fn new(device: D) -> Option<VirtualMemory<D>> {
        let facts = device.mapping()?;
        let table =
            Table { reservations: BTreeMap::new(), handles: BTreeMap::new(), places: BTreeMap::new() };
        let properties = Properties::default();
        Some(VirtualMemory { device, facts, properties, table: Mutex::new(table) })
    }
    /// Physical memory has these properties from now on, as far as the device has them.
    #[must_use]
    pub fn with(mut self, properties: Properties) -> VirtualMemory<D> {
        self.properties = properties.and(self.facts.may);
        self
    }
    /// The properties of physical memory that is created now.
    pub fn properties(&self) -> Properties {
        self.properties
    }
    /// What the device's virtual memory is like.
    pub fn facts(&self) -> MappingFacts {
        self.facts
    }

    /// Reserves addresses, at `at` if that is free.
    ///
    /// # Errors
    /// The driver's; nothing is then reserved.
    pub fn reserve(&self, bytes: u64, at: Option<Addr>) -> DriverResult<Addr> {
        let addr = self.device.reserve(bytes, at)?;
        self.table.lock().reservations.insert(addr.0, bytes);
        Ok(addr)
    }
    /// Gives a reservation back.
    ///
    /// # Errors
    /// The driver's; it is then still reserved.
    ///
    /// # Panics
    /// V1, when it is no reservation of this value's, or a place is in it.
    #[track_caller]
    pub fn unreserve(&self, addr: Addr) -> DriverResult<()> {
        let bytes = self.table.lock().take_reservation(addr);
        // SAFETY: V1: this value reserved it, it is taken out of the table, and no place is in it.
        let answer = unsafe { self.device.unreserve(addr, bytes) };
        if answer.is_err() {
            self.table.lock().reservations.insert(addr.0, bytes);
        }
        answer
    }

    /// Creates physical memory, zeroed and mapped nowhere.
    ///
    /// # Errors
    /// Out of memory, or the driver's; nothing is then created.
    pub fn create(&self, bytes: u64) -> DriverResult<PhysicalHandle> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let native = self.device.create_with(bytes, self.properties)?;
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        self.table.lock().handles.insert(number, Created { native, bytes, places: 0 });
        Ok(PhysicalHandle { number, bytes })
    }
    /// Gives physical memory back. The caller makes sure that every use of it is complete.
    ///
    /// # Errors
    /// The driver's; the handle is then still there.
    ///
    /// # Panics
    /// V2, when it is mapped, was released, or is another value's.
    #[track_caller]
    pub fn release(&self, handle: PhysicalHandle) -> DriverResult<()> {
        let created = self.table.lock().take_handle(handle);
        // SAFETY: V2: this value created it and it is taken out of the table, so this happens once; its uses are complete, as the caller
        // promises.
        let answer = unsafe { self.device.release(&created.native) };
        if answer.is_err() {
            self.table.lock().handles.insert(handle.number, created);
        }
        answer
    }

    /// A file descriptor by which others open the memory of a handle ([`Mapping::export`]).
    ///
    /// # Errors
    /// The driver's.
    ///
    /// # Panics
    /// V2, when it was released, or is another value's.
    #[cfg(unix)]
    #[track_caller]
    pub fn export(&self, handle: PhysicalHandle) -> DriverResult<std::os::fd::OwnedFd> {
        let native = self.table.lock().known(handle).native.clone();
        self.device.export(&native)
    }

    /// Maps a handle at reserved addresses, readable and writable. A handle may be mapped at several places: they are the same memory.
    ///
    /// # Errors
    /// The driver's; nothing is then mapped, unless [`NotMapped::stuck`] says why that could not be undone.
    ///
    /// # Panics
    /// V1, when the addresses are not in one reservation of this value's or something is mapped there; V2, when the handle was released or is
    /// another value's.
    #[track_caller]
    pub fn map(&self, handle: PhysicalHandle, addr: Addr) -> Result<(), NotMapped> {
        let native = self.table.lock().start_place(handle, addr);
        // SAFETY: V1: the addresses are reserved by this value, and no other place has any of them, now or until this one ends.
        if let Err(error) = self.ask(addr, || unsafe { self.device.map(addr, &native) }) {
            self.table.lock().end_place(addr);
            return Err(NotMapped { error, stuck: None });
        }
        // SAFETY: mapped above, by this thread.
        let access = || unsafe { self.device.set_access(addr, handle.bytes) };
        if !mutant!(AccessForgotten)
            && let Err(error) = self.ask(addr, access)
        {
            let stuck = self.unmap_started(addr, (handle.bytes, State::Mapped)).err();
            return Err(NotMapped { error, stuck });
        }
        self.table.lock().changed(addr, State::Mapped);
        Ok(())
    }
    /// Unmaps what is mapped at a place, by its first address. The caller makes sure that every use through these addresses is complete. If the driver
    /// panicked in a call for this place, it is tried again, and succeeds if nothing was mapped there.
    ///
    /// # Errors
    /// The driver's; it is then still mapped.
    ///
    /// # Panics
    /// V1, when nothing is mapped there, or V3, when a thread is mapping or unmapping it.
    #[track_caller]
    pub fn unmap(&self, addr: Addr) -> DriverResult<()> {
        let started = self.table.lock().start_unmap(addr);
        self.unmap_started(addr, started)
    }

    /// Gives everything back: places, then handles, then reservations. The caller makes sure that all uses are complete, and that no other
    /// thread uses this value. What the driver refuses is kept for [`Memory::deferred`], stays, and is tried again by the next call, or when this
    /// is dropped. Returns whether nothing is left.
    pub fn give_back(&self) -> bool {
        let ok = |answer: DriverResult<()>| answer.map_err(|e| self.device.drop_failed(e)).is_ok();
        let mut left = core::mem::replace(&mut *self.table.lock(), Table::new());
        left.places.retain(|&addr, place| {
            // SAFETY: V1: this value mapped it; its uses are complete, as the caller promises.
            let answer = unsafe { self.device.unmap(Addr(addr), place.bytes) };
            !(place.state.is_gone(&answer) || ok(answer))
        });
        // A handle may be released while it is mapped, and is gone when it is not any more.
        // SAFETY: V2: this value created it, and it leaves the table if the driver has it back; its uses are complete, as the caller promises.
        left.handles.retain(|_, created| !ok(unsafe { self.device.release(&created.native) }));
        let Table { places, reservations, .. } = &mut left;
        let free = |at: u64, bytes: u64| places.range(at..at + bytes).next().is_none();
        reservations.retain(|&at, &mut bytes| {
            // SAFETY: V1: this value reserved it, and nothing is mapped there.
            let is_back = free(at, bytes) && ok(unsafe { self.device.unreserve(Addr(at), bytes) });
            !is_back
        });
        let nothing = left.places.is_empty() && left.handles.is_empty() && left.reservations.is_empty();
        *self.table.lock() = left;
        nothing
    }

    /// Unmaps a place that this thread is changing, of so many bytes, which was in this state before.
    fn unmap_started(&self, addr: Addr, (bytes, before): (u64, State)) -> DriverResult<()> {
        // SAFETY: V3: this value mapped it, and only this thread changes it; its uses are complete, as the caller promises, and there are none
        // through a place that has no access yet. If the driver has unmapped it already and panicked, nothing else is there: it is still a place (V1).
        let answer = self.ask(addr, || unsafe { self.device.unmap(addr, bytes) });
        let mut table = self.table.lock();
        if before.is_gone(&answer) {
            table.end_place(addr);
            return Ok(());
        }
        table.changed(addr, before);
        answer
    }

    /// Makes a driver call about a place that this thread is changing. If the driver panics, it is unknown whether something is mapped there (V3).
    fn ask<T>(&self, addr: Addr, call: impl FnOnce() -> T) -> T {
        struct Panicked<'a, H: Clone>(&'a Mutex<Table<H>>, Addr);
        impl<H: Clone> Drop for Panicked<'_, H> {
            fn drop(&mut self) {
                self.0.lock().changed(self.1, State::Unknown);
            }
        }
        let panicked = Panicked(&self.table, addr);
        let answer = call();
        core::mem::forget(panicked);
        answer
    }
}

impl<H: Clone> Table<H> {
    fn new() -> Table<H> {
        Table { reservations: BTreeMap::new(), handles: BTreeMap::new(), places: BTreeMap::new() }
    }

    #[track_caller]
    fn take_reservation(&mut self, addr: Addr) -> u64 {
        let Some(&bytes) = self.reservations.get(&addr.0) else {
            broken("V1", format_args!("{addr} begins no reservation"))
        };
        if let Some(place) = self.place_in(addr.0, addr.0 + bytes) {
            broken("V1", format_args!("the reservation at {addr} is given back, but {place:#x} is mapped"));
        }
        self.reservations.remove(&addr.0);
        bytes
    }

    #[track_caller]
    fn take_handle(&mut self, handle: PhysicalHandle) -> Created<H> {
        let places = self.known(handle).places;
        if places > 0 {
            broken("V2", format_args!("{handle:?} is released, but mapped at {places} places"));
        }
        self.handles.remove(&handle.number).expect("found above")
    }

    /// A place where this thread maps the handle; the driver's handle.
    #[track_caller]
    fn start_place(&mut self, handle: PhysicalHandle, addr: Addr) -> H {
        let PhysicalHandle { number, bytes } = handle;
        let end = addr.0.saturating_add(bytes);
        let inside = self.reservations.range(..=addr.0).next_back().is_some_and(|(&s, &len)| end <= s + len);
        if !inside {
            broken("V1", format_args!("{bytes} bytes at {addr} are not in one reservation"));
        }
        if let Some(place) = self.place_in(addr.0, end) {
            broken(
                "V1",
                format_args!("{bytes} bytes at {addr} are mapped, but {place:#x} is mapped already"),
            );
        }
        let created = self.known(handle);
        created.places += 1;
        let native = created.native.clone();
        self.places.insert(addr.0, Place { handle: number, bytes, state: State::Changing });
        native
    }

    #[track_caller]
    fn start_unmap(&mut self, addr: Addr) -> (u64, State) {
        match self.places.get_mut(&addr.0) {
            None => broken("V1", format_args!("nothing is mapped from {addr}")),
            Some(place) if place.state == State::Changing => {
                broken("V3", format_args!("{addr} is unmapped, but another thread is changing it"))
            }
            Some(place) => (place.bytes, core::mem::replace(&mut place.state, State::Changing)),
        }
    }

    /// The driver has answered, or panicked: the place stays.
    fn changed(&mut self, addr: Addr, now: State) {
        if let Some(place) = self.places.get_mut(&addr.0) {
            place.state = now;
        }
    }

    /// Nothing is mapped there any more.
    fn end_place(&mut self, addr: Addr) {
        let place = self.places.remove(&addr.0);
        if let Some(created) = place.and_then(|place| self.handles.get_mut(&place.handle)) {
            created.places -= 1;
        }
    }

    #[track_caller]
    fn known(&mut self, handle: PhysicalHandle) -> &mut Created<H> {
        match self.handles.get_mut(&handle.number) {
            Some(created) => created,
            None => broken("V2", format_args!("{handle:?} was released, or is another device's")),
        }
    }

    /// The first address of a place that has some of these addresses.
    fn place_in(&self, start: u64, end: u64) -> Option<u64> {
        let (&first, place) = self.places.range(..end).next_back()?;
        (first + place.bytes > start).then_some(first)
    }
}

impl<D: Memory + Mapping> fmt::Debug for VirtualMemory<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let table = self.table.lock();
        let bytes: u64 = table.handles.values().map(|created| created.bytes).sum();
        let (handles, places, reservations) =
            (table.handles.len(), table.places.len(), table.reservations.len());
        write!(
            f,
            "VirtualMemory({bytes} B in {handles} handles, {places} places, {reservations} reservations)"
        )
    }
}

impl<D: Memory + Mapping> Drop for VirtualMemory<D> {
    fn drop(&mut self) {
        self.give_back();
    }
}

/// An invariant does not hold.
#[cold]
#[inline(never)]
#[track_caller]
fn broken(number: &str, what: fmt::Arguments<'_>) -> ! {
    panic!("invariant {number} of virtual memory is broken: {what}")
}
