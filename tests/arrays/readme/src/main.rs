use millpond::{Allocator, Config, units::{GIB, MIB}};
use millpond_sim::{Launch, Schedule, Sim};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let sim = Sim::new(144 * GIB).schedule(Schedule::Latest);
    let gpu = Allocator::new(sim.clone(), Config::default())?;
    let (copy, work) = (gpu.stream()?, gpu.stream()?);

    let batch = gpu.alloc(64 * MIB, &copy)?;
    sim.launch(copy.native(), Launch::new("load").writes(batch.address(), batch.len()))?;
    batch.record_use(&work)?;                                   // `work` uses the bytes from here on
    sim.launch(work.native(), Launch::new("train").reads(batch.address(), batch.len()))?;
    drop(batch);                                                // at any time, on any thread

    let next = gpu.alloc(64 * MIB, &copy)?;                     // other bytes: `work` may still read the first
    println!("{next:?}\n{}", gpu.report());
    sim.verdict()?;
    Ok(())
}
