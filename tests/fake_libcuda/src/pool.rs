//! Memory in stream order: `cuMemAllocAsync` and the pools behind it.
//!
//! A simple version of the driver's pools: a freed block may be reused at once on the stream that freed it; once its last use is known to
//! be complete, which is checked only when memory is short, it goes back to the device. Blocks are virtual memory of whole 2 MiB handles,
//! so that giving one back waits for nothing. The simulator's oracle is notified of every allocation and free, so that it
//! reports a use which is not ordered between the two, whichever stream gets the bytes next.

use crate::capture;
use crate::device::number;
use crate::entry::{Fail, INVALID_HANDLE, OUT_OF_MEMORY, Outcome};
use crate::raw::{In, Out};
use crate::state::{Kind, here, state, stream};
use crate::virt::Properties;
use millpond::DriverError;
use millpond::driver::{Driver, Fences, Mapping, Note};
use millpond::units::{Addr, AllocationId, StreamId};
use millpond_sim::{Sim, SimEvent, SimHandle, SimStream};
use std::collections::HashMap;
use std::ffi::{c_int, c_uint};

/// Memory of a pool: addresses and the one handle that is mapped there.
#[derive(Debug)]
struct Block {
    addr: u64,
    bytes: u64,
    handle: SimHandle,
}

/// A free block.
#[derive(Debug)]
struct Idle {
    block: Block,
    freed_on: StreamId,
    last_use: SimEvent,
}

/// A block that a program has allocated.
#[derive(Debug)]
struct Allocated {
    block: Block,
    pool: u64,
    id: AllocationId,
    home: StreamId,
}

#[derive(Debug)]
struct Pool {
    device: usize,
    of_the_driver: bool,
    destroyed: bool,
    release_threshold: u64,
    idle: Vec<Idle>,
}

/// All pools, and the blocks that programs have allocated from them.
#[derive(Debug)]
pub(crate) struct Pools {
    by_value: HashMap<u64, Pool>,
    /// By address.
    allocated: HashMap<u64, Allocated>,
    /// The pool that each device allocates from.
    current: Vec<u64>,
    made: u64,
    generation: u32,
}

const POOL_BASE: u64 = 0xBB00_0000_0000;
const BLOCK: u64 = 2 << 20;

impl Pools {
    pub(crate) fn new(devices: usize) -> Pools {
        let mut pools = Pools {
            by_value: HashMap::new(),
            allocated: HashMap::new(),
            current: Vec::new(),
            made: 0,
            generation: 0,
        };
        for device in 0..devices {
            let pool = pools.add(device, true);
            pools.current.push(pool);
        }
        pools
    }
    fn add(&mut self, device: usize, of_the_driver: bool) -> u64 {
        self.made += 1;
        let value = POOL_BASE + 0x100 * self.made;
        let pool = Pool { device, of_the_driver, destroyed: false, release_threshold: 0, idle: Vec::new() };
        self.by_value.insert(value, pool);
        value
    }
    fn get(&mut self, value: u64) -> Outcome<&mut Pool> {
        let found = self.by_value.get_mut(&value).filter(|p| !p.destroyed);
        found.ok_or_else(|| Fail::new(INVALID_HANDLE, format!("no memory pool has the value {value:#x} now")))
    }
    pub(crate) fn made_by_the_program(&self) -> impl Iterator<Item = u64> {
        self.by_value.iter().filter(|(_, p)| !p.of_the_driver && !p.destroyed).map(|(&v, _)| v)
    }
    fn idle_bytes(&self, pool: u64) -> u64 {
        self.by_value.get(&pool).map_or(0, |p| p.idle.iter().map(|i| i.block.bytes).sum())
    }
    fn allocated_bytes(&self, pool: u64) -> u64 {
        self.allocated.values().filter(|l| l.pool == pool).map(|l| l.block.bytes).sum()
    }
}

#[allow(unsafe_code, reason = "memory of the simulated device")]
fn make(sim: &Sim, bytes: u64) -> Result<Block, DriverError> {
    let handle = sim.create(bytes)?;
    let block = match sim.reserve(bytes, None) {
        Ok(addr) => Block { addr: addr.0, bytes, handle },
        Err(e) => {
            // SAFETY: created above, and not used yet.
            let _ = unsafe { sim.release(&handle) };
            return Err(e);
        }
    };
    // SAFETY: the addresses were reserved above, and nothing is mapped there.
    unsafe { sim.map(Addr(block.addr), &block.handle) }?;
    // SAFETY: mapped above.
    unsafe { sim.set_access(Addr(block.addr), bytes) }?;
    Ok(block)
}

#[allow(unsafe_code, reason = "memory of the simulated device")]
fn unmake(sim: &Sim, block: &Block) -> Result<(), DriverError> {
    // SAFETY: the caller has seen that the block's last use is complete, and the block is free.
    unsafe { sim.unmap(Addr(block.addr), block.bytes) }?;
    // SAFETY: as above.
    unsafe { sim.release(&block.handle) }?;
    // SAFETY: unmapped above.
    unsafe { sim.unreserve(Addr(block.addr), block.bytes) }
}

/// Gives idle blocks whose last use is complete back to the device, the oldest first, until at most `keep` bytes are left.
fn trim(sim: &Sim, pool: u64, keep: u64) {
    let candidates = {
        let mut state = state();
        let Some(p) = state.pools.by_value.get_mut(&pool) else { return };
        std::mem::take(&mut p.idle)
    };
    let mut held: u64 = candidates.iter().map(|i| i.block.bytes).sum();
    let mut stay = Vec::new();
    for idle in candidates {
        let complete = held > keep && sim.query(&idle.last_use).unwrap_or(false);
        if complete && unmake(sim, &idle.block).is_ok() {
            held -= idle.block.bytes;
        } else {
            stay.push(idle);
        }
    }
    if let Some(p) = state().pools.by_value.get_mut(&pool) {
        stay.append(&mut p.idle);
        p.idle = stay;
    }
}

/// After the host waited for the whole device: gives back idle memory above each pool's threshold.
pub(crate) fn trim_at_rest(sim: &Sim, device: usize) {
    let pools: Vec<(u64, u64)> = {
        let state = state();
        let of_device = state.pools.by_value.iter().filter(|(_, p)| p.device == device && !p.idle.is_empty());
        of_device.map(|(&v, p)| (v, p.release_threshold)).collect()
    };
    for (pool, keep) in pools {
        trim(sim, pool, keep);
    }
}

fn allocate(bytes: usize, pool: Option<u64>, on: u64) -> Outcome<u64> {
    let (sim, device, on) = stream(on)?;
    if sim.is_capturing(&on)? {
        return Err(Fail::unsupported("allocations are not recorded into captures here"));
    }
    capture::forbid(&sim)?;
    let Some(rounded) = (bytes as u64).checked_next_multiple_of(BLOCK).filter(|&b| b > 0) else {
        return Err(Fail::invalid(format!("{bytes} bytes cannot be allocated")));
    };
    let home = sim.stream_info(&on)?.id;
    let pool = pool.unwrap_or_else(|| state().pools.current[device]);
    let block = match reuse(pool, rounded, home)? {
        Some(block) => block,
        None => match make(&sim, rounded) {
            Err(e) if e.is_out_of_memory() => {
                trim_at_any_price(&sim, device);
                make(&sim, rounded).map_err(|e| Fail::new(OUT_OF_MEMORY, e.message))?
            }
            made => made?,
        },
    };
    let (addr, id) = (block.addr, {
        let mut state = state();
        state.pools.generation += 1;
        let id =
            AllocationId { pool: 0, chunk: (block.addr >> 21) as u32, generation: state.pools.generation };
        state.add_range(block.addr, block.bytes, device, Kind::Pooled);
        state.pools.allocated.insert(block.addr, Allocated { block, pool, id, home });
        id
    });
    sim.note(Note::Allocated { id, addr: Addr(addr), bytes: bytes as u64, stream: Some(home) });
    Ok(addr)
}

/// The block that fits best of those that this stream freed, the latest if there are several.
fn reuse(pool: u64, bytes: u64, home: StreamId) -> Outcome<Option<Block>> {
    let mut state = state();
    let idle = &mut state.pools.get(pool)?.idle;
    let fits = idle.iter().enumerate().filter(|(_, i)| i.freed_on == home && i.block.bytes >= bytes);
    let best = fits.rev().min_by_key(|(_, i)| i.block.bytes).map(|(at, _)| at);
    Ok(best.map(|at| idle.remove(at).block))
}

/// When memory is short: gives back every idle block of a device whose last use is complete.
fn trim_at_any_price(sim: &Sim, device: usize) {
    let pools: Vec<u64> =
        state().pools.by_value.iter().filter(|(_, p)| p.device == device).map(|(&v, _)| v).collect();
    for pool in pools {
        trim(sim, pool, 0);
    }
}

/// Frees memory of a pool in stream order.
pub(crate) fn free(addr: u64, on: u64) -> Outcome {
    let (sim, device, on) = stream(on)?;
    state().range_at(addr, "stream-ordered allocation", |k| k == Kind::Pooled)?;
    let (last_use, freed_on) = last_use(&sim, &on)?;
    let allocated = {
        let mut state = state();
        state.ranges.remove(&addr);
        state.pools.allocated.remove(&addr)
    };
    let Some(Allocated { block, pool, id, home }) = allocated else {
        return Err(Fail::invalid(format!("{addr:#x} was freed by another thread meanwhile")));
    };
    if freed_on != home {
        sim.note(Note::Used { id, stream: freed_on, so_far: false });
    }
    sim.note(Note::Freed { id, unknown: false });
    let mut idle = Some(Idle { block, freed_on, last_use });
    let orphaned = match state().pools.by_value.get_mut(&pool) {
        Some(p) => {
            p.idle.extend(idle.take());
            p.destroyed
        }
        None => false,
    };
    if orphaned {
        trim(&sim, pool, 0);
    }
    let _ = device;
    Ok(())
}

/// An event after everything on a stream so far, and the stream's id.
fn last_use(sim: &Sim, on: &SimStream) -> Outcome<(SimEvent, StreamId)> {
    if sim.is_capturing(on)? {
        return Err(Fail::unsupported("frees are not recorded into captures here"));
    }
    let id = sim.stream_info(on)?.id;
    let event = sim.create_event()?;
    sim.record(&event, on)?;
    Ok((event, id))
}

/// A pool's attributes: three switches, threshold, reserved bytes (current and maximum), used bytes (current and maximum).
fn attribute(pool: u64, attribute: c_uint) -> Outcome<u64> {
    let mut state = state();
    let threshold = state.pools.get(pool)?.release_threshold;
    let (idle, allocated) = (state.pools.idle_bytes(pool), state.pools.allocated_bytes(pool));
    match attribute {
        1..=3 => Ok(1),
        4 => Ok(threshold),
        5 | 6 => Ok(idle + allocated),
        7 | 8 => Ok(allocated),
        _ => Err(Fail::invalid(format!("pool attribute {attribute} is not known"))),
    }
}

driver_calls! {
    /// Allocates in stream order, from the current pool of the stream's device.
    fn cuMemAllocAsync(address: Out<u64>, bytes: usize, on: u64) {
        address.put(allocate(bytes, None, on)?)
    }
    /// Allocates in stream order, from a pool.
    fn cuMemAllocFromPoolAsync(address: Out<u64>, bytes: usize, pool: u64, on: u64) {
        address.put(allocate(bytes, Some(pool), on)?)
    }
    /// Frees in stream order.
    fn cuMemFreeAsync(address: u64, on: u64) {
        free(address, on)
    }
    /// The driver's default pool of a device.
    fn cuDeviceGetDefaultMemPool(pool: Out<u64>, ordinal: c_int) {
        let state = state();
        let found = state.pools.by_value.iter().find(|(_, p)| p.of_the_driver && number(p.device) == ordinal);
        pool.put(*found.ok_or_else(|| Fail::invalid(format!("there is no device {ordinal}")))?.0)
    }
    /// The pool that a device allocates from.
    fn cuDeviceGetMemPool(pool: Out<u64>, ordinal: c_int) {
        let found = usize::try_from(ordinal).ok().and_then(|d| state().pools.current.get(d).copied());
        pool.put(found.ok_or_else(|| Fail::invalid(format!("there is no device {ordinal}")))?)
    }
    /// Sets the pool that a device allocates from.
    fn cuDeviceSetMemPool(ordinal: c_int, pool: u64) {
        let mut state = state();
        let device = state.pools.get(pool)?.device;
        if number(device) != ordinal {
            return Err(Fail::invalid("the pool is of another device"));
        }
        state.pools.current[device] = pool;
        Ok(())
    }
    /// Creates a pool on a device.
    fn cuMemPoolCreate(pool: Out<u64>, properties: In<Properties>) {
        let device = crate::virt::device(properties)?;
        pool.put(state().pools.add(device, false))
    }
    /// Destroys a pool; blocks that programs still have from it stay allocated.
    fn cuMemPoolDestroy(pool: u64) {
        let sim = {
            let mut state = state();
            let found = state.pools.get(pool)?;
            if found.of_the_driver {
                return Err(Fail::invalid("the driver's own pool cannot be destroyed"));
            }
            found.destroyed = true;
            let device = found.device;
            if state.pools.current[device] == pool {
                let own = state.pools.by_value.iter().find(|(_, p)| p.of_the_driver && p.device == device);
                let own = own.map(|(&v, _)| v);
                state.pools.current[device] = own.unwrap_or(pool);
            }
            state.sims[device].clone()
        };
        trim(&sim, pool, 0);
        Ok(())
    }
    /// Gives idle memory of a pool back until at most `keep` bytes are left. Waits for nothing.
    fn cuMemPoolTrimTo(pool: u64, keep: usize) {
        let sim = {
            let mut state = state();
            let device = state.pools.get(pool)?.device;
            state.sims[device].clone()
        };
        trim(&sim, pool, keep as u64);
        Ok(())
    }
    /// Returns an attribute of a pool.
    fn cuMemPoolGetAttribute(pool: u64, wanted: c_uint, value: Out<u64>) {
        let found = attribute(pool, wanted)?;
        // The first three are switches of 4 bytes.
        if wanted <= 3 { value.narrow::<c_int>().put(found as c_int) } else { value.put(found) }
    }
    /// Sets a pool's release threshold; other settings are accepted and change nothing.
    fn cuMemPoolSetAttribute(pool: u64, wanted: c_uint, value: Out<u64>) {
        let mut state = state();
        let pool = state.pools.get(pool)?;
        if wanted == 4 {
            pool.release_threshold = value.get()?;
        }
        Ok(())
    }
    /// Accepts access rights for other devices, which all have access anyway.
    fn cuMemPoolSetAccess(pool: u64, rights: In<crate::virt::Access>, count: usize) {
        let _ = (rights, count);
        here()?;
        state().pools.get(pool).map(|_| ())
    }
}
