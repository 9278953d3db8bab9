//! Writing to an array while a view to read it lives.

use millpond::{Allocator, Config, units::GIB};
use millpond_sim::Sim;

pub fn main() -> Result<(), Box<dyn std::error::Error>> {
    let sim = Sim::new(GIB);
    let gpu = Allocator::new(sim.clone(), Config::default())?;
    let stream = gpu.stream()?;
    let mut x = gpu.zeros::<f32>(8, &stream)?;
    let view = x.view();
    x.fill_bytes(1, &stream)?; //~
    drop(view.to_pinned(&stream)?);
    sim.verdict()?;
    Ok(())
}
