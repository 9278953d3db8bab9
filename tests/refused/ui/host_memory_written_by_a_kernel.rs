//! Host memory as the target of a built-in kernel.

use millpond::{Allocator, Config, kernel, units::GIB};
use millpond_sim::Sim;

pub fn main() -> Result<(), Box<dyn std::error::Error>> {
    let sim = Sim::new(GIB);
    let gpu = Allocator::new(sim.clone(), Config::default())?;
    let stream = gpu.stream()?;
    let mut y = vec![0.0_f32; 8]; //~
    kernel::iota(&mut y, 0.0, 1.0, &stream)?;
    sim.verdict()?;
    Ok(())
}
