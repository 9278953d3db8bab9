//! Two views to write, of parts that overlap.

use millpond::{Allocator, Config, units::GIB};
use millpond_sim::Sim;

pub fn main() -> Result<(), Box<dyn std::error::Error>> {
    let sim = Sim::new(GIB);
    let gpu = Allocator::new(sim.clone(), Config::default())?;
    let stream = gpu.stream()?;
    let mut x = gpu.zeros::<f32>(8, &stream)?;
    let (mut low, mut high) = (x.slice_mut(..5), x.slice_mut(3..)); //~
    low.fill_bytes(1, &stream)?;
    high.fill_bytes(2, &stream)?;
    sim.verdict()?;
    Ok(())
}
