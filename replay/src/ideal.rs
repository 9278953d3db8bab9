//! The run to compare with: the same acts on the same device model, with unlimited memory.
//!
//! Every block gets addresses of its own from one giant range, taken before the clock starts to matter, so there is no
//! reuse, nothing waits for reuse, and the device does only what the program itself requests: its kernels,
//! its events and its waits. What the other run takes longer is the price of an allocator. Contents and the oracle are
//! off: there is nothing to judge.
//!
//! It does not know allocators.

use super::outcome::ReplayError;
use super::workload::{CrossStreamUse, InjectedBug, Plan, What};
use core::time::Duration;
use millpond_driver::units::{Addr, GRANULE_BYTES};
use millpond_driver::{DriverResult, Fences, Memory};
use millpond_sim::{Launch, Sim, SimEvent, SimStream};
use millpond_trace::Access;

/// Addresses to allocate in order: as many as one simulated device has. A log that allocates more begins anew.
const RANGE: u64 = 1 << 46;

/// A block: its address, its length, and the points behind its accesses that a stream may wait for.
#[derive(Default)]
struct Block {
    addr: Addr,
    bytes: u64,
    marks: Vec<(SimEvent, u16, Access, bool)>,
}

/// The makespan of a workload where memory costs nothing.
pub(super) fn makespan(plan: &Plan) -> Result<Duration, ReplayError> {
    run(plan).map_err(|e| ReplayError::Setup(e.into()))
}

fn run(plan: &Plan) -> DriverResult<Duration> {
    let sim = Sim::new(u64::MAX).oracle(false).contents(false);
    let range = sim.allocate(RANGE)?;
    let before = Sim::makespan(&sim);
    let streams = (0..plan.streams)
        .map(|n| if plan.legacy == Some(n) { Ok(sim.legacy_stream()) } else { sim.stream() })
        .collect::<DriverResult<Vec<_>>>()?;
    let mut blocks: Vec<Block> = Vec::new();
    blocks.resize_with(plan.slots as usize, Block::default);
    let mut next = 0;
    let began = sim.host_time();
    for (at, act) in plan.acts.iter().enumerate() {
        if let Some(&time) = plan.times.get(at).filter(|_| plan.paced) {
            sim.idle_until(began + time);
        }
        let block = &mut blocks[act.slot as usize];
        let home = &streams[usize::from(act.stream)];
        match act.what {
            What::Alloc { bytes, marked } => {
                let bytes = bytes.min(RANGE);
                let rounded = bytes.next_multiple_of(GRANULE_BYTES);
                if next + rounded > RANGE {
                    next = 0;
                }
                *block = Block { addr: Addr(range.addr().0 + next), bytes, marks: Vec::new() };
                next += rounded;
                if bytes > 0 {
                    sim.launch(home, Launch::new("write").writes(block.addr, bytes))?;
                }
                if marked {
                    block.marks.push((recorded(&sim, home)?, act.stream, Access::Write, false));
                }
            }
            What::Free | What::FreeOn { .. } => {
                for mark in block.marks.drain(..).filter(|m| m.3) {
                    sim.wait(home, &mark.0)?;
                }
                if block.bytes > 0 {
                    sim.launch(home, Launch::new("read").reads(block.addr, block.bytes))?;
                }
                block.bytes = 0;
            }
            What::CrossStreamUse { number } => {
                cross_use(&sim, block, (home, act.stream), plan.uses[number as usize], &streams)?;
            }
        }
    }
    // The other run reads what the log left alive, too.
    for act in plan.acts.iter().rev() {
        let block = &mut blocks[act.slot as usize];
        if block.bytes > 0 {
            let home = &streams[usize::from(act.stream)];
            for mark in block.marks.drain(..).filter(|m| m.3) {
                sim.wait(home, &mark.0)?;
            }
            sim.launch(home, Launch::new("read").reads(block.addr, block.bytes))?;
            block.bytes = 0;
        }
    }
    Ok(Sim::makespan(&sim).saturating_sub(before))
}

fn recorded(sim: &Sim, stream: &SimStream) -> DriverResult<SimEvent> {
    let event = sim.event()?;
    sim.record(&event, stream)?;
    Ok(event)
}

fn cross_use(
    sim: &Sim,
    block: &mut Block,
    (home, number): (&SimStream, u16),
    cross: CrossStreamUse,
    streams: &[SimStream],
) -> DriverResult<()> {
    if block.bytes == 0 {
        return Ok(());
    }
    let there = &streams[usize::from(cross.stream)];
    if cross.bug != Some(InjectedBug::Unordered) {
        if !block.marks.iter().any(|m| m.1 == number) {
            block.marks.push((recorded(sim, home)?, number, Access::Write, false));
        }
        for (event, stream, access, _) in &block.marks {
            if (*access == Access::Write || cross.access == Access::Write) && *stream != cross.stream {
                sim.wait(there, event)?;
            }
        }
    }
    let launch = match cross.access {
        Access::Write => Launch::new("write").writes(block.addr, block.bytes),
        Access::Read => Launch::new("read").reads(block.addr, block.bytes),
    };
    sim.launch(there, launch)?;
    let joined = cross.access == Access::Write && cross.bug != Some(InjectedBug::Unjoined);
    block.marks.push((recorded(sim, there)?, cross.stream, cross.access, joined));
    Ok(())
}
