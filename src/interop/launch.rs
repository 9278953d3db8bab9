//! Guards as arguments of cudarc's launches. It does not know what a launch is.

use crate::cuda::Cuda;
use crate::kernel::{ReadOn, WriteOn};
use bytemuck::Pod;
use cudarc::driver::{LaunchArgs, PushKernelArg};

/// The kernel gets the address, to read. The launch's stream has to be the guard's; cudarc does not show it to us, so
/// the caller of `launch`, which is unsafe, promises that.
// SAFETY: what is pushed is an address in device memory, a number that `DeviceRepr` covers, and it lies in the guard, which
// is borrowed for as long as the arguments. Waits and records are the guard's.
#[allow(unsafe_code, reason = "cudarc's trait is unsafe to implement")]
unsafe impl<'a, 'b: 'a, T: Pod> PushKernelArg<&'b ReadOn<'_, T, Cuda>> for LaunchArgs<'a> {
    #[inline(always)]
    #[allow(clippy::inline_always, reason = "cudarc asks for it, so that references stay valid")]
    fn arg(&mut self, guard: &'b ReadOn<'_, T, Cuda>) -> &mut Self {
        self.arg(guard.argument())
    }
}

/// The kernel gets the address, to read and write. As for [`ReadOn`].
// SAFETY: as for `ReadOn`; the guard is borrowed exclusively, so that one launch does not name it twice.
#[allow(unsafe_code, reason = "cudarc's trait is unsafe to implement")]
unsafe impl<'a, 'b: 'a, T: Pod> PushKernelArg<&'b mut WriteOn<'_, T, Cuda>> for LaunchArgs<'a> {
    #[inline(always)]
    #[allow(clippy::inline_always, reason = "cudarc asks for it, so that references stay valid")]
    fn arg(&mut self, guard: &'b mut WriteOn<'_, T, Cuda>) -> &mut Self {
        let guard: &'b WriteOn<'_, T, Cuda> = guard;
        self.arg(guard.argument())
    }
}
