//! A view of an array that was dropped.

use millpond::{Allocator, Config, units::GIB};
use millpond_sim::Sim;

pub fn main() -> Result<(), Box<dyn std::error::Error>> {
    let sim = Sim::new(GIB);
    let gpu = Allocator::new(sim.clone(), Config::default())?;
    let stream = gpu.stream()?;
    let x = gpu.zeros::<f32>(8, &stream)?;
    let view = x.view();
    drop(x); //~
    drop(view.to_pinned(&stream)?);
    sim.verdict()?;
    Ok(())
}
