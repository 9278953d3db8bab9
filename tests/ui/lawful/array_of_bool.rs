//! Elements that not every bit pattern is a value of.

use millpond::{DeviceArray, driver::sim::Sim};

fn holds(_: &DeviceArray<u8, Sim>) {} //~

pub fn main() -> Result<(), Box<dyn std::error::Error>> {
    let _ = holds;
    Ok(())
}
