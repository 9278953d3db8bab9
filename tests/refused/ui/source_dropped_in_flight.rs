//! Dropping a pinned source that a copy owns, so that its memory serves another owner.

use millpond::{Allocator, Config, units::GIB};
use millpond_sim::Sim;

pub fn main() -> Result<(), Box<dyn std::error::Error>> {
    let sim = Sim::new(GIB);
    let gpu = Allocator::new(sim.clone(), Config::default())?;
    let stream = gpu.stream()?;
    let mut x = gpu.zeros::<f32>(8, &stream)?;
    let host = gpu.pinned_zeros::<f32>(8)?;
    let sent = x.copy_from(host, &stream)?;
    drop(host); //~
    drop(sent);
    sim.verdict()?;
    Ok(())
}
