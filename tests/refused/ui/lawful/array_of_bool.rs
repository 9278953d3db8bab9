//! Elements that not every bit pattern is a value of.

use millpond::DeviceArray;
use millpond_sim::Sim;

fn holds(_: &DeviceArray<u8, Sim>) {} //~

pub fn main() -> Result<(), Box<dyn std::error::Error>> {
    let _ = holds;
    Ok(())
}
