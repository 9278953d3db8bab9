//! A write to an array while a guard holds it for a kernel that reads it.

use millpond_sim::{Launch, Sim};
use millpond::{Allocator, Config, units::GIB};

pub fn main() -> Result<(), Box<dyn std::error::Error>> {
    let sim = Sim::new(GIB);
    let gpu = Allocator::new(sim.clone(), Config::default())?;
    let (stream, other) = (gpu.stream()?, gpu.stream()?);
    let mut x = gpu.zeros::<f32>(8, &stream)?;
    let guard = x.read_on(&stream)?;
    sim.launch(stream.native(), Launch::new("reader").reads(guard.address(), 32))?;
    drop(guard);
    x.fill_bytes(1, &other)?; //~
    sim.verdict()?;
    Ok(())
}
