//! The data of a copy to the host before the wait.

use millpond::{Allocator, Config, units::GIB};
use millpond_sim::Sim;

pub fn main() -> Result<(), Box<dyn std::error::Error>> {
    let sim = Sim::new(GIB);
    let gpu = Allocator::new(sim.clone(), Config::default())?;
    let stream = gpu.stream()?;
    let x = gpu.zeros::<f32>(8, &stream)?;
    let down = x.to_pinned(&stream)?;
    assert_eq!(down.wait()?[0], 0.0); //~
    sim.verdict()?;
    Ok(())
}
