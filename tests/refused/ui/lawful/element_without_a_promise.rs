//! A type of one's own as an element, without the promise that every bit pattern is a value.

use millpond::{Allocator, Config, units::GIB};
use millpond_sim::Sim;

#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)] //~
#[repr(C)] //~
struct Sample(f32);

pub fn main() -> Result<(), Box<dyn std::error::Error>> {
    let sim = Sim::new(GIB);
    let gpu = Allocator::new(sim.clone(), Config::default())?;
    let stream = gpu.stream()?;
    drop(gpu.zeros::<Sample>(8, &stream)?);
    sim.verdict()?;
    Ok(())
}
