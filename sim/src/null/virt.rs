//! Virtual memory of the null device: addresses, byte counts, and which handle is where.
//!
//! Addresses never come back, as those of plain ranges do not; a handle counts against the capacity from its creation until it is released and mapped
//! nowhere. A wrong call is refused. There are no contents, so setting access is only checked to be of something mapped.

use super::{ADDRESS_ALIGN, Call, Null, refused};
use millpond_driver::units::Addr;
use millpond_driver::{DriverError, DriverErrorKind, DriverResult, Mapping, MappingFacts};
use std::collections::BTreeMap;

/// A piece of physical memory of [`Null`]: a number and a length.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NullHandle {
    number: u64,
    bytes: u64,
}

/// What was made and not given back.
#[derive(Default, Debug)]
pub(super) struct Table {
    next: u64,
    /// First address to length.
    reservations: BTreeMap<u64, u64>,
    /// By number.
    handles: BTreeMap<u64, Created>,
    /// First address to handle.
    mappings: BTreeMap<u64, NullHandle>,
}

#[derive(Debug)]
struct Created {
    mappings: u32,
    released: bool,
}

impl Table {
    pub(super) fn outstanding(&self) -> (usize, usize, usize) {
        (self.reservations.len(), self.handles.len(), self.mappings.len())
    }

    /// Forgets a handle that is released and mapped nowhere; its bytes.
    fn forget(&mut self, handle: NullHandle) -> u64 {
        match self.handles.get(&handle.number) {
            Some(created) if created.released && created.mappings == 0 => {
                self.handles.remove(&handle.number);
                handle.bytes
            }
            _ => 0,
        }
    }

    /// The mappings in a range, each of which must be whole in it.
    fn whole(&self, call: Call, start: u64, bytes: u64) -> DriverResult<Vec<(u64, NullHandle)>> {
        let end = start.saturating_add(bytes);
        let found: Vec<_> = self.overlapping(start, end).collect();
        let cut = found.iter().any(|(at, handle)| *at < start || at + handle.bytes > end);
        if cut || found.is_empty() {
            return Err(wrong(
                call,
                format!("{bytes} bytes at {start:#x} have no handle, or a part of one: name whole handles"),
            ));
        }
        Ok(found)
    }

    fn overlapping(&self, start: u64, end: u64) -> impl Iterator<Item = (u64, NullHandle)> {
        let before = self.mappings.range(..start).next_back();
        let inside = self.mappings.range(start..end.max(start));
        let all = before.into_iter().chain(inside).map(|(&at, &handle)| (at, handle));
        all.filter(move |(at, handle)| at + handle.bytes > start)
    }
}

fn wrong(call: Call, message: String) -> DriverError {
    refused(call, DriverErrorKind::InvalidValue, message)
}

fn whole_units(call: Call, bytes: u64) -> DriverResult<()> {
    if bytes > 0 && bytes.is_multiple_of(ADDRESS_ALIGN) {
        return Ok(());
    }
    Err(wrong(call, format!("requested {bytes} bytes; virtual memory comes in multiples of {ADDRESS_ALIGN}")))
}

// SAFETY: reserved addresses only grow, so reservations are disjoint for ever, and mappings that overlap are refused. No memory is behind them.
#[allow(unsafe_code, reason = "a driver declares that it keeps the contract")]
unsafe impl Mapping for Null {
    type Handle = NullHandle;

    /// Not counted.
    fn mapping(&self) -> Option<MappingFacts> {
        Some(MappingFacts::new(ADDRESS_ALIGN))
    }

    /// Always the next addresses, whatever `at` is: behind the last reservation only if nothing was handed out since.
    fn reserve(&self, bytes: u64, _at: Option<Addr>) -> DriverResult<Addr> {
        self.count(Call::Reserve);
        whole_units(Call::Reserve, bytes)?;
        let mut live = self.0.live.lock();
        let Some(next) = live.next_behind(bytes) else {
            let message = format!("there are no {bytes} addresses left");
            return Err(refused(Call::Reserve, DriverErrorKind::OutOfMemory, message));
        };
        let addr = core::mem::replace(&mut live.next_address, next);
        live.virt.reservations.insert(addr, bytes);
        Ok(Addr(addr))
    }

    unsafe fn unreserve(&self, addr: Addr, bytes: u64) -> DriverResult<()> {
        self.count(Call::Unreserve);
        let virt = &mut self.0.live.lock().virt;
        let is_whole = virt.reservations.get(&addr.0) == Some(&bytes);
        if !is_whole || virt.overlapping(addr.0, addr.0 + bytes).next().is_some() {
            let message = format!("{bytes} bytes at {addr} are no reservation, or something is mapped there");
            return Err(wrong(Call::Unreserve, message));
        }
        virt.reservations.remove(&addr.0);
        Ok(())
    }

    fn create(&self, bytes: u64) -> DriverResult<NullHandle> {
        self.count(Call::Create);
        whole_units(Call::Create, bytes)?;
        let mut live = self.0.live.lock();
        let taken = self.with_more(bytes).ok_or_else(|| self.is_full(Call::Create, bytes))?;
        self.set_reserved(taken);
        live.virt.next += 1;
        let handle = NullHandle { number: live.virt.next, bytes };
        live.virt.handles.insert(handle.number, Created { mappings: 0, released: false });
        Ok(handle)
    }

    unsafe fn map(&self, addr: Addr, handle: &NullHandle) -> DriverResult<()> {
        self.count(Call::Map);
        let virt = &mut self.0.live.lock().virt;
        let end = addr.0.saturating_add(handle.bytes);
        let inside = virt.reservations.range(..=addr.0).next_back();
        let inside = inside.is_some_and(|(&start, &bytes)| end <= start + bytes);
        let aligned = addr.0.is_multiple_of(ADDRESS_ALIGN);
        if !inside || !aligned || virt.overlapping(addr.0, end).next().is_some() {
            let message = format!("{} bytes at {addr} are not reserved, or not free", handle.bytes);
            return Err(wrong(Call::Map, message));
        }
        let Some(created) = virt.handles.get_mut(&handle.number).filter(|created| !created.released) else {
            return Err(refused(Call::Map, DriverErrorKind::InvalidHandle, "the handle was released".into()));
        };
        created.mappings += 1;
        virt.mappings.insert(addr.0, *handle);
        Ok(())
    }

    unsafe fn set_access(&self, addr: Addr, bytes: u64) -> DriverResult<()> {
        self.count(Call::SetAccess);
        self.0.live.lock().virt.whole(Call::SetAccess, addr.0, bytes).map(drop)
    }

    unsafe fn unmap(&self, addr: Addr, bytes: u64) -> DriverResult<()> {
        self.count(Call::Unmap);
        let virt = &mut self.0.live.lock().virt;
        for (at, handle) in virt.whole(Call::Unmap, addr.0, bytes)? {
            virt.mappings.remove(&at);
            if let Some(created) = virt.handles.get_mut(&handle.number) {
                created.mappings -= 1;
            }
            self.set_reserved(self.reserved() - virt.forget(handle));
        }
        Ok(())
    }

    unsafe fn release(&self, handle: &NullHandle) -> DriverResult<()> {
        self.count(Call::Release);
        let virt = &mut self.0.live.lock().virt;
        let Some(created) = virt.handles.get_mut(&handle.number).filter(|created| !created.released) else {
            let message = "the handle was released before".into();
            return Err(refused(Call::Release, DriverErrorKind::InvalidHandle, message));
        };
        created.released = true;
        self.set_reserved(self.reserved() - virt.forget(*handle));
        Ok(())
    }
}
