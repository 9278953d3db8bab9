//! Virtual memory: the [`Mapping`] of the simulated device, with the driver's rules.
//!
//! Granularity 2 MiB; a handle is mapped, unmapped and made accessible whole, though one call may span several; access
//! must be granted again after every map; one handle may be mapped at two addresses; a handle released while mapped lives until
//! it is unmapped; contents survive a move; nothing here waits for anything. It does not know whether work is pending:
//! unmapping memory under it is the caller's mistake, which the oracle and the contents detect.

use super::Sim;
use super::call::Call;
use super::contents::Contents;
use super::memory::{Backing, Store};
use super::oracle::{PhysKey, Space};
use super::world::{Device, GRANULARITY, MAPPING, World, bad_handle, invalid};
use millpond_driver::units::Addr;
use millpond_driver::{DriverError, DriverErrorKind};
use millpond_driver::{DriverResult, Mapping, MappingFacts, Properties};

/// Windows of this size have tables of their own: the first mapping in one and the last out of it cost more.
const WINDOW: u64 = 512 << 20;

/// A piece of physical memory of a simulated device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SimHandle {
    world: u64,
    device: usize,
    phys: PhysKey,
    bytes: u64,
    /// Whether it can be exported.
    shared: bool,
    /// The number of the import, if it is one.
    import: Option<u32>,
}

impl SimHandle {
    /// Its length in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

fn check_size(bytes: u64, call: Call) -> DriverResult<()> {
    if bytes > 0 && bytes.is_multiple_of(GRANULARITY) {
        return Ok(());
    }
    Err(invalid(
        call,
        format!("requested {bytes} bytes: virtual memory comes in multiples of {GRANULARITY}, not 0"),
    ))
}

fn check_range(addr: Addr, bytes: u64, call: Call) -> DriverResult<u64> {
    check_size(bytes, call)?;
    if !addr.0.is_multiple_of(GRANULARITY) {
        return Err(invalid(call, format!("the address {addr} is no multiple of {GRANULARITY}")));
    }
    addr.0.checked_add(bytes).ok_or_else(|| invalid(call, format!("{bytes} bytes at {addr} end beyond 2^64")))
}

impl Device {
    /// Whether all of a range is reserved; adjacent reservations count as one.
    fn is_reserved(&self, start: u64, end: u64) -> bool {
        let mut at = start;
        while at < end {
            match self.reservations.range(..=at).next_back() {
                Some((&s, &bytes)) if at < s + bytes => at = s + bytes,
                _ => return false,
            }
        }
        true
    }
}

impl World {
    /// Called by whatever makes addresses and handles; a device that has neither refuses the rest anyway.
    fn supports_mapping(&self, call: Call) -> DriverResult<()> {
        if self.mapping.is_some() {
            return Ok(());
        }
        let message = "this device has no virtual memory (`Sim::virtual_memory`): use plain segments";
        Err(DriverError::new(call.name(), 801, DriverErrorKind::NotSupported, message))
    }

    /// The price of per-handle calls: the low one if anything else is mapped in the window, else the high one.
    fn window_price(&self, addr: u64, cheap: u64, dear: u64) -> u64 {
        let start = addr - addr % WINDOW;
        let others = self.memory.all_in(start, start + WINDOW).any(|(s, _)| s != addr);
        if others { cheap } else { dear }
    }

    /// The starts of the handles mapped in a range, which must not cut one, and must hold at least one.
    fn whole_handles(&self, sim: &Sim, addr: Addr, bytes: u64, call: Call) -> DriverResult<Vec<u64>> {
        let end = check_range(addr, bytes, call)?;
        if !self.devices[sim.index()].is_reserved(addr.0, end) {
            return Err(invalid(
                call,
                format!("{bytes} bytes at {addr} are not all reserved on this device"),
            ));
        }
        let mut starts = Vec::new();
        for (start, m) in self.memory.all_in(addr.0, end) {
            if start < addr.0 || m.end > end {
                return Err(invalid(
                    call,
                    format!(
                        "{bytes} bytes at {addr} cut the handle at {start:#x}..{:#x}: a handle is whole",
                        m.end
                    ),
                ));
            }
            starts.push(start);
        }
        if starts.is_empty() {
            return Err(invalid(call, format!("nothing is mapped in {bytes} bytes at {addr}")));
        }
        Ok(starts)
    }

    /// A handle that may still be mapped or released.
    fn live_handle(&self, sim: &Sim, handle: &SimHandle, call: Call) -> DriverResult<()> {
        let live = self.memory.phys(handle.phys).is_some_and(|p| match handle.import {
            None => !p.released,
            Some(number) => p.imports.contains(&number),
        });
        if handle.world == self.serial && handle.device == sim.index() && live {
            return Ok(());
        }
        Err(bad_handle(
            call,
            "the handle was released, or is another device's: release each handle once, after its last map",
        ))
    }

    /// The memory of a handle is gone: its capacity comes back.
    fn handle_gone(&mut self, phys: PhysKey, device: usize, bytes: u64) {
        self.devices[device].reserved -= bytes;
        let host = self.host();
        if let Some(oracle) = &mut self.oracle {
            oracle.memory_released(host, phys);
        }
    }
}

#[cfg(unix)]
impl Sim {
    /// [`Mapping::import`] of whatever length the memory has, as the driver's call does.
    ///
    /// # Errors
    /// The descriptor is of no memory of this device.
    #[doc(hidden)]
    pub fn import_any(&self, from: std::os::fd::BorrowedFd<'_>) -> DriverResult<SimHandle> {
        self.import_of(from, None)
    }

    fn import_of(&self, from: std::os::fd::BorrowedFd<'_>, bytes: Option<u64>) -> DriverResult<SimHandle> {
        let call = Call::Import;
        self.call(call, |w| {
            w.supports_mapping(call)?;
            let found = super::shared::read(from).map_err(|e| invalid(call, format!("no memory: {e}")))?;
            let [serial, device, phys, length] = found;
            let phys = PhysKey(u32::try_from(phys).unwrap_or(u32::MAX));
            let here = serial == w.serial && device == self.index() as u64;
            let here = here && bytes.is_none_or(|bytes| bytes == length);
            let import = if here { w.memory.import(phys) } else { None };
            if import.is_none() {
                return Err(invalid(call, "the descriptor is of no memory of this device and length"));
            }
            Ok(SimHandle { world: serial, device: self.index(), phys, bytes: length, shared: true, import })
        })
    }
}

/// What a byte count adds to the price of creating and releasing, in nanoseconds.
fn size_price(bytes: u64) -> u64 {
    (bytes >> 10) / 5
}

#[allow(unsafe_code, reason = "the contract is kept by the table of mappings")]
// SAFETY: M1: mappings are disjoint; check_range and whole_handles refuse anything that is not whole.
unsafe impl Mapping for Sim {
    type Handle = SimHandle;

    /// No driver call. `None` after [`Sim::virtual_memory`]`(false)`.
    fn mapping(&self) -> Option<MappingFacts> {
        self.lock().borrow().mapping
    }

    fn reserve(&self, bytes: u64, at: Option<Addr>) -> DriverResult<Addr> {
        let call = Call::AddressReserve;
        self.call(call, |w| {
            w.supports_mapping(call)?;
            check_size(bytes, call)?;
            let d = &mut w.devices[self.index()];
            let wanted = at.filter(|a| a.0.is_multiple_of(GRANULARITY));
            let found = match wanted {
                Some(a) if d.virtual_space.take_at(a.0, bytes) => Some(a.0),
                _ => d.virtual_space.take(bytes),
            };
            let addr = found.ok_or_else(|| {
                let message = format!("no free range of {bytes} addresses: give reservations back");
                DriverError::new(call.name(), 2, DriverErrorKind::OutOfMemory, message)
            })?;
            d.reservations.insert(addr, bytes);
            Ok(Addr(addr))
        })
    }

    unsafe fn unreserve(&self, addr: Addr, bytes: u64) -> DriverResult<()> {
        let call = Call::AddressFree;
        self.call(call, |w| {
            if w.devices[self.index()].reservations.get(&addr.0) != Some(&bytes) {
                return Err(invalid(
                    call,
                    format!("{bytes} bytes at {addr} are no reservation: give each back whole, once"),
                ));
            }
            if let Some((start, _)) = w.memory.first_in(addr.0, addr.0 + bytes) {
                return Err(invalid(
                    call,
                    format!("something is still mapped at {start:#x}: unmap it first"),
                ));
            }
            let d = &mut w.devices[self.index()];
            d.reservations.remove(&addr.0);
            d.virtual_space.give(addr.0, bytes);
            Ok(())
        })
    }

    fn create(&self, bytes: u64) -> DriverResult<SimHandle> {
        self.create_with(bytes, Properties::default())
    }

    fn create_with(&self, bytes: u64, properties: Properties) -> DriverResult<SimHandle> {
        let call = Call::Create;
        self.call(call, |w| {
            w.supports_mapping(call)?;
            check_size(bytes, call)?;
            if properties.and(MAPPING.may) != properties {
                return Err(invalid(call, format!("physical memory has {:?} at most", MAPPING.may)));
            }
            w.take_capacity(self.index(), bytes, call)?;
            let phys =
                w.memory.create(self.index(), bytes, Backing::Virtual, Store::Device(Contents::new(0)));
            w.host_works(size_price(bytes));
            if let Some(oracle) = &mut w.oracle {
                oracle.memory_created(phys, Space::Device, bytes);
            }
            let shared = properties.file_descriptor;
            Ok(SimHandle { world: w.serial, device: self.index(), phys, bytes, shared, import: None })
        })
    }

    /// The descriptor is of a file that has no name any more and says which memory it is: any simulated device of this world in this process can import it.
    #[cfg(unix)]
    fn export(&self, handle: &SimHandle) -> DriverResult<std::os::fd::OwnedFd> {
        let call = Call::Export;
        self.call(call, |w| {
            w.live_handle(self, handle, call)?;
            if !handle.shared {
                return Err(invalid(call, "the handle was not created to be exported"));
            }
            let words = [w.serial, handle.device as u64, u64::from(handle.phys.0), handle.bytes];
            super::shared::write(&words).map_err(|e| invalid(call, format!("no descriptor: {e}")))
        })
    }

    #[cfg(unix)]
    fn import(&self, from: std::os::fd::BorrowedFd<'_>, bytes: u64) -> DriverResult<SimHandle> {
        self.import_of(from, Some(bytes))
    }

    unsafe fn map(&self, addr: Addr, handle: &SimHandle) -> DriverResult<()> {
        let call = Call::Map;
        self.call(call, |w| {
            w.live_handle(self, handle, call)?;
            let end = check_range(addr, handle.bytes, call)?;
            let inside = w.devices[self.index()].reservations.range(..=addr.0).next_back();
            if inside.is_none_or(|(&s, &bytes)| end > s + bytes) {
                return Err(invalid(
                    call,
                    format!("{} bytes at {addr} are not inside one reservation of this device", handle.bytes),
                ));
            }
            if let Some((start, _)) = w.memory.first_in(addr.0, end) {
                return Err(invalid(
                    call,
                    format!("something is mapped at {start:#x} already: unmap it first"),
                ));
            }
            let map = w.memory.map(addr.0, handle.phys);
            if let Some(oracle) = &mut w.oracle {
                oracle.mapped(map, handle.phys);
            }
            Ok(())
        })
    }

    unsafe fn set_access(&self, addr: Addr, bytes: u64) -> DriverResult<()> {
        let call = Call::SetAccess;
        self.call(call, |w| {
            for start in w.whole_handles(self, addr, bytes, call)? {
                w.memory.give_access(start);
                w.host_works(w.window_price(start, 16_500, 28_000));
            }
            Ok(())
        })
    }

    #[track_caller]
    unsafe fn unmap(&self, addr: Addr, bytes: u64) -> DriverResult<()> {
        let call = Call::Unmap;
        self.call(call, |w| {
            let host = w.host();
            for start in w.whole_handles(self, addr, bytes, call)? {
                w.host_works(w.window_price(start, 11_700, 18_500));
                let Some((mapping, gone)) = w.memory.unmap(start) else { continue };
                if let Some(oracle) = &mut w.oracle {
                    oracle.unmapped(host, mapping.map);
                }
                if let Some(piece) = gone {
                    w.handle_gone(mapping.phys, piece.device, piece.bytes);
                }
            }
            Ok(())
        })
    }

    #[track_caller]
    unsafe fn release(&self, handle: &SimHandle) -> DriverResult<()> {
        let call = Call::Release;
        self.call(call, |w| {
            w.live_handle(self, handle, call)?;
            w.host_works(size_price(handle.bytes));
            let gone = match handle.import {
                None => w.memory.release(handle.phys),
                Some(number) => w.memory.release_import(handle.phys, number),
            };
            if gone.is_some() {
                w.handle_gone(handle.phys, handle.device, handle.bytes);
            }
            Ok(())
        })
    }
}
