//! An operand of a launch whose array was dropped.

use millpond::kernel::{Argument, Kernel, ReferenceMemory};
use millpond::{Allocator, Config, units::GIB};
use millpond_sim::Sim;

static LOOK: Kernel = Kernel::new(c"look", c".version 7.0").reference(look);

/// It reads its operand's first byte.
fn look(memory: &mut dyn ReferenceMemory, arguments: &[Argument]) {
    memory.read(arguments[0].as_addr(), &mut [0]);
}

#[allow(unsafe_code, reason = "what a kernel does is known to who wrote it")]
pub fn main() -> Result<(), Box<dyn std::error::Error>> {
    let sim = Sim::new(GIB);
    let gpu = Allocator::new(sim.clone(), Config::default())?;
    let stream = gpu.stream()?;
    let x = gpu.zeros::<f32>(8, &stream)?;
    let input = x.read();
    // SAFETY: `look` takes an operand, and reads a byte of it.
    unsafe { stream.launch(&LOOK, 1, (input,))? };
    drop(x); //~
    sim.verdict()?;
    Ok(())
}
