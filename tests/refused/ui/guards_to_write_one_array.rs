//! Two guards to write one array, for kernels on two streams.

use millpond_sim::{Launch, Sim};
use millpond::{Allocator, Config, units::GIB};

pub fn main() -> Result<(), Box<dyn std::error::Error>> {
    let sim = Sim::new(GIB);
    let gpu = Allocator::new(sim.clone(), Config::default())?;
    let (stream, other) = (gpu.stream()?, gpu.stream()?);
    let mut x = gpu.zeros::<f32>(8, &stream)?;
    let low = x.write_on(&stream)?; //~
    let high = x.write_on(&other)?; //~
    sim.launch(stream.native(), Launch::new("one").writes(low.address(), 16))?;
    sim.launch(other.native(), Launch::new("another").writes(high.address(), 16))?;
    drop((low, high));
    sim.verdict()?;
    Ok(())
}
