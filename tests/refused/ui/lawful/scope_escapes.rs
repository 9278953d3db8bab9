//! Keeping the scope, to queue copies behind its wait.

use millpond::{Allocator, Config, transfer, units::GIB};
use millpond_sim::Sim;

pub fn main() -> Result<(), Box<dyn std::error::Error>> {
    let sim = Sim::new(GIB);
    let gpu = Allocator::new(sim.clone(), Config::default())?;
    let stream = gpu.stream()?;
    let mut x = gpu.zeros::<f32>(8, &stream)?;
    let from = gpu.pinned_zeros::<f32>(8)?;
    transfer::scope(&stream, |copies| copies.upload(&mut x, from.view()))??; //~
    sim.verdict()?;
    Ok(())
}
