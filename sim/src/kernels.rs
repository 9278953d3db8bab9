//! Launches of the program's kernels on the simulated device: the reference runs on the contents, the oracle judges the
//! declared ranges. This file does not know what a reference computes, nor whether it is right.

use super::launch::{KernelMemory, Launch};
use super::stream::SimStream;
use super::{Call, Sim};
use millpond_driver::units::Addr;
use millpond_driver::{DriverError, DriverErrorKind};
use millpond_driver::{DriverResult, KernelLaunch, Kernels, RangeUse, ReferenceMemory};

/// Threads of a block that every device can run.
const MOST_THREADS: u128 = 1024;
/// Blocks in the first dimension that every device can run.
const MOST_BLOCKS: u32 = i32::MAX as u32;

impl ReferenceMemory for KernelMemory<'_> {
    fn read(&mut self, addr: Addr, into: &mut [u8]) {
        KernelMemory::read(self, addr, into);
    }
    fn write(&mut self, addr: Addr, from: &[u8]) {
        KernelMemory::write(self, addr, from);
    }
    fn fill(&mut self, addr: Addr, bytes: u64, word: u64) {
        KernelMemory::fill(self, addr, bytes, word);
    }
}

#[allow(
    unsafe_code,
    reason = "the contract is kept: the reference runs once, in stream order, held to its ranges"
)]
// SAFETY: a reference reaches simulated memory only, inside the ranges that the launch declared.
unsafe impl Kernels for Sim {
    /// The reference must exist before the launch, because it may run at once.
    fn load_kernel(&self, kernel: &millpond_driver::Kernel) -> DriverResult<()> {
        kernel.on_cpu().map(drop)
    }

    #[track_caller]
    unsafe fn launch_kernel(&self, launch: &KernelLaunch<'_>, stream: &SimStream) -> DriverResult<()> {
        let reference = launch.kernel.on_cpu()?;
        let grid = launch.grid;
        let threads: u128 = grid.threads.iter().map(|&t| u128::from(t)).product();
        if grid.is_empty() || threads > MOST_THREADS || grid.blocks[0] > MOST_BLOCKS {
            let message = format!(
                "no device can run {grid:?}: name at least one thread, at most {MOST_THREADS} a block"
            );
            return Err(DriverError::new(
                Call::LaunchKernel.name(),
                1,
                DriverErrorKind::InvalidValue,
                message,
            ));
        }
        let mut declared = Launch::new(launch.kernel.name().to_string_lossy().into_owned());
        for range in launch.ranges.iter().filter(|r| r.bytes > 0) {
            let kinds: &[fn(Launch, Addr, u64) -> Launch] = match range.used {
                RangeUse::Read => &[Launch::reads],
                // The write first: a read reported before it would stand for the earlier readers, and the oracle would count
                // the wait for those as unneeded.
                RangeUse::ReadWrite => &[Launch::writes, Launch::reads],
            };
            for declare in kinds {
                declared = declare(declared, range.addr, range.bytes);
                if let Some(id) = range.allocation {
                    declared = declared.tag(id);
                }
            }
        }
        let arguments = launch.arguments.to_vec();
        let declared = declared.body(move |memory| reference(memory, &arguments));
        // SAFETY: forwarded: the caller of the launch owns the ranges on the stream until the kernel is complete.
        unsafe { self.launch_anywhere(stream, declared) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millpond_driver::{Grid, Kernel};

    #[test]
    fn threads_beyond_counting_are_refused() {
        static NOTHING: Kernel = Kernel::new(c"nothing", c"").reference(|_, _| ());
        let sim = Sim::new(512);
        let stream = sim.stream().expect("a stream");
        let sizes = [
            ([8, 8, 16], true),
            ([1024, 1, 2], false),
            ([1 << 31, 1 << 31, 4], false),
            ([u32::MAX; 3], false),
        ];
        for (threads, runs) in sizes {
            let grid = Grid::of([1; 3], threads);
            let launch = KernelLaunch::new(&NOTHING, grid, &[], &[]);
            // SAFETY: it touches nothing.
            #[allow(unsafe_code, reason = "kernels work on raw addresses")]
            let launched = unsafe { sim.launch_kernel(&launch, &stream) };
            assert_eq!(launched.is_ok(), runs, "{threads:?}: {launched:?}");
        }
    }
}
