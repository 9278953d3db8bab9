//! A copy into an array of other elements than the source has, of as many bytes each.

use millpond::{Allocator, Config, units::GIB};
use millpond_sim::Sim;

pub fn main() -> Result<(), Box<dyn std::error::Error>> {
    let sim = Sim::new(GIB);
    let gpu = Allocator::new(sim.clone(), Config::default())?;
    let stream = gpu.stream()?;
    let mut x = gpu.zeros::<f32>(8, &stream)?;
    let host = gpu.pinned_zeros::<u32>(8)?; //~
    drop(x.copy_from(host, &stream)?.wait()?);
    sim.verdict()?;
    Ok(())
}
