//! Elements on the device, indexed by the host.

use millpond::{Allocator, Config, units::GIB};
use millpond_sim::Sim;

pub fn main() -> Result<(), Box<dyn std::error::Error>> {
    let sim = Sim::new(GIB);
    let gpu = Allocator::new(sim.clone(), Config::default())?;
    let stream = gpu.stream()?;
    let x = gpu.zeros::<f32>(8, &stream)?;
    assert_eq!(x.to_vec(&stream)?[0], 0.0); //~
    sim.verdict()?;
    Ok(())
}
