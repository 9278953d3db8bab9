//! One array as the input and the output of one kernel.

use millpond::{Allocator, Config, kernel, units::GIB};
use millpond_sim::Sim;

pub fn main() -> Result<(), Box<dyn std::error::Error>> {
    let sim = Sim::new(GIB);
    let gpu = Allocator::new(sim.clone(), Config::default())?;
    let stream = gpu.stream()?;
    let mut x = gpu.zeros::<f32>(8, &stream)?;
    let (input, mut output) = x.split_at_mut(4); //~
    kernel::saxpy(2.0, input.view(), &mut output, &stream)?; //~
    sim.verdict()?;
    Ok(())
}
