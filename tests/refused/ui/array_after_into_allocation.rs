//! An array whose allocation was taken out of it.

use millpond::{Allocator, Config, units::GIB};
use millpond_sim::Sim;

pub fn main() -> Result<(), Box<dyn std::error::Error>> {
    let sim = Sim::new(GIB);
    let gpu = Allocator::new(sim.clone(), Config::default())?;
    let stream = gpu.stream()?;
    let x = gpu.zeros::<f32>(8, &stream)?;
    let block = x.into_allocation();
    drop(x.to_pinned(&stream)?); //~
    drop(block);
    sim.verdict()?;
    Ok(())
}
