//! Reading a borrowed target before the scope has waited.

use millpond::{Allocator, Config, transfer, units::GIB};
use millpond_sim::Sim;

pub fn main() -> Result<(), Box<dyn std::error::Error>> {
    let sim = Sim::new(GIB);
    let gpu = Allocator::new(sim.clone(), Config::default())?;
    let stream = gpu.stream()?;
    let x = gpu.zeros::<f32>(8, &stream)?;
    let mut to = gpu.pinned_zeros::<f32>(8)?;
    transfer::scope(&stream, |copies| {
        copies.download(&x, to.view_mut())?;
        assert_eq!(to[0], 0.0); //~
        Ok::<(), millpond::Error>(())
    })??;
    sim.verdict()?;
    Ok(())
}
