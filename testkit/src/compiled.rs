//! Allocators behind [`GpuAlloc`], each on a device that many tests have: the trait's table names every call, so that the code
//! of all of them is made here, once. These functions are never called.
//!
//! That is what `share-generics` of the compiler does with what a crate below has made already, at the levels of optimisation that
//! tests are built with. An executable that uses anything of this crate has it.

use crate::counted::Device;
use millpond::Allocator;
use millpond::cuda::Cuda;
use millpond::erased::GpuAlloc;
use millpond_sim::Sim;
use millpond_sim::null::Null;

pub fn on_sim(gpu: Allocator<Sim>) -> Box<dyn GpuAlloc> {
    Box::new(gpu)
}

pub fn on_null(gpu: Allocator<Null>) -> Box<dyn GpuAlloc> {
    Box::new(gpu)
}

pub fn counted(gpu: Allocator<Device>) -> Box<dyn GpuAlloc> {
    Box::new(gpu)
}

pub fn on_cuda(gpu: Allocator<Cuda>) -> Box<dyn GpuAlloc> {
    Box::new(gpu)
}
