//! Pinned host memory as the input of a built-in kernel.

use millpond::{Allocator, Config, kernel, units::GIB};
use millpond_sim::Sim;

pub fn main() -> Result<(), Box<dyn std::error::Error>> {
    let sim = Sim::new(GIB);
    let gpu = Allocator::new(sim.clone(), Config::default())?;
    let stream = gpu.stream()?;
    let x = gpu.pinned_from_slice(&[1.0_f32; 8])?;
    let mut y = gpu.zeros::<f32>(8, &stream)?;
    kernel::saxpy(2.0, &x, &mut y, &stream)?; //~
    sim.verdict()?;
    Ok(())
}
