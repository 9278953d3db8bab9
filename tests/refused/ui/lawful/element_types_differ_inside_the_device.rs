//! A copy from one array to another of other elements, of as many bytes each.

use millpond::{Allocator, Config, units::GIB};
use millpond_sim::Sim;

pub fn main() -> Result<(), Box<dyn std::error::Error>> {
    let sim = Sim::new(GIB);
    let gpu = Allocator::new(sim.clone(), Config::default())?;
    let stream = gpu.stream()?;
    let mut x = gpu.zeros::<f32>(8, &stream)?;
    let y = gpu.zeros::<f32>(8, &stream)?; //~
    x.copy_from_device(&y, &stream)?;
    sim.verdict()?;
    Ok(())
}
