//! A pooled slice as cudarc's own type, which looks at no stream.

use cudarc::driver::DeviceSlice; //~
use millpond::cuda::Cuda;
use millpond::interop::{PooledSlice, PooledView}; //~
use millpond::{Allocator, Config};

fn numbers(ours: &PooledSlice<u32>) -> Result<Vec<u32>, cudarc::driver::DriverError> {
    let stream = ours.stream().clone();
    stream.clone_dtoh::<u32, PooledView<'_, u32>>(&ours.as_view()) //~
}

pub fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Where there is a GPU it runs.
    let Ok(cuda) = Cuda::new(0) else { return Ok(()) };
    let gpu = Allocator::new(cuda, Config::default())?;
    let stream = gpu.stream()?;
    let mut ours = gpu.cuda_slice::<u32>(8, &stream)?;
    stream.cudarc()?.memcpy_htod(&[7; 8], &mut ours)?;
    assert_eq!(numbers(&ours)?, [7; 8]);
    Ok(())
}
