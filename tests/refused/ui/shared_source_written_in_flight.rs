//! Writing to a source of which a copy owns a share.

use millpond::{Allocator, Config, units::GIB};
use millpond_sim::Sim;
use std::sync::Arc;

pub fn main() -> Result<(), Box<dyn std::error::Error>> {
    let sim = Sim::new(GIB);
    let gpu = Allocator::new(sim.clone(), Config::default())?;
    let stream = gpu.stream()?;
    let mut x = gpu.zeros::<f32>(8, &stream)?;
    let host = Arc::new(gpu.pinned_zeros::<f32>(8)?);
    let sent = x.copy_from(Arc::clone(&host), &stream)?;
    host[0] = 1.0; //~
    drop(sent);
    sim.verdict()?;
    Ok(())
}
