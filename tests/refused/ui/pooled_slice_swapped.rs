//! A pooled slice as a `&mut CudaSlice`, which a swap would hand to cudarc's own free.

use cudarc::driver::{CudaSlice, DeviceSlice};
use millpond::cuda::Cuda;
use millpond::interop::PooledSlice;
use millpond::{Allocator, Config};

fn exchange(ours: &mut PooledSlice<u32>, theirs: &mut CudaSlice<u32>) -> Result<(), cudarc::driver::DriverError> {
    let stream = ours.stream().clone();
    std::mem::swap(&mut **ours, theirs); //~
    stream.synchronize()
}

pub fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Where there is a GPU it runs.
    let Ok(cuda) = Cuda::new(0) else { return Ok(()) };
    let gpu = Allocator::new(cuda, Config::default())?;
    let stream = gpu.stream()?;
    let mut ours = gpu.cuda_slice::<u32>(8, &stream)?;
    let mut theirs = stream.cudarc()?.alloc_zeros::<u32>(8)?;
    exchange(&mut ours, &mut theirs)?;
    Ok(())
}
