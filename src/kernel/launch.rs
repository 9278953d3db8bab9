//! The launch of a kernel with its operands. It does not know what the kernel does: the caller promises that.

use super::operand::{Arguments, Parameter, Parameters, collect};
use crate::allocator::Stream;
use crate::allocator::access::{Mark, Touch, operate};
use crate::driver::{Argument, Called, Driver, Grid, Kernel, KernelLaunch, KernelRange, Kernels};
use crate::error::Error;
use smallvec::SmallVec;

impl<D: Driver + Kernels> Stream<D> {
    /// Queues a kernel on this stream, behind what it conflicts with on any stream; the host does not wait.
    /// Later operations on its operands come after it. Memory that it shares with other work by plain addresses is not ordered.
    ///
    /// `grid` is a number of threads (at least so many run, in blocks of 256) or a [`Grid`]; with none nothing is queued.
    /// `arguments` is a tuple of numbers and of operands, each of which is passed as its address. The first launch in a
    /// context loads the kernel, which may wait for running ones ([`Kernels::load_kernel`]).
    ///
    /// ```
    /// use millpond::kernel::{Argument, Kernel, ReferenceMemory};
    /// use millpond::{Allocator, Config, units::{Addr, GIB}};
    /// use millpond_sim::Sim;
    ///
    /// // On a GPU the text runs, on the simulated device the reference.
    /// static NEGATE: Kernel = Kernel::new(c"negate", c".version 7.0 ...").reference(negate);
    /// fn negate(memory: &mut dyn ReferenceMemory, arguments: &[Argument]) {
    ///     let &[at, n] = arguments else { panic!("negate(int *at, unsigned n)") };
    ///     for i in 0..u64::from(n.as_u32()) {
    ///         let (at, mut bytes) = (Addr(at.as_addr().0 + 4 * i), [0; 4]);
    ///         memory.read(at, &mut bytes);
    ///         memory.write(at, &(-i32::from_le_bytes(bytes)).to_le_bytes());
    ///     }
    /// }
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let gpu = Allocator::new(Sim::new(GIB), Config::default())?;
    /// let (s, t) = (gpu.stream()?, gpu.stream()?);
    /// let (mut x, sent) = gpu.array_from_pinned(gpu.pinned_from_slice(&[1_i32, -2, 3])?, &s)?;
    /// // SAFETY: `negate` takes these two, touches 3 elements of `x`, and ends.
    /// unsafe { t.launch(&NEGATE, 3, (x.write(), 3_u32))? };
    /// assert_eq!(&x.to_pinned(&s)?.wait()?[..], &[-1, 2, -3]);
    /// # drop(sent);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// An array or a stream of another device, a capturing stream; a text or a grid that the driver refuses, no reference where
    /// one is needed: nothing was then queued.
    ///
    /// # Safety
    /// The kernel takes these arguments, in number, order and type, and grids such as this. It touches only the bytes of its
    /// operands; it does not write those of a [`read`](crate::DeviceArray::read) operand. It
    /// terminates. If it gets memory in another way, by an address in a number or in memory, the program keeps
    /// that alive and in order ([`DeviceArray::wait_on`](crate::DeviceArray::wait_on),
    /// [`DeviceArray::record_use`](crate::DeviceArray::record_use)).
    #[track_caller]
    #[allow(unsafe_code, reason = "only the author of a kernel knows what it does")]
    pub unsafe fn launch<'a>(
        &self,
        kernel: &Kernel,
        grid: impl Into<Grid>,
        arguments: impl Arguments<'a, D>,
    ) -> Result<(), Error>
    where
        D: 'a,
    {
        let _called = Called::<D>::here();
        let (grid, parameters) = (grid.into(), collect(arguments));
        if grid.is_empty() {
            return Ok(());
        }
        // SAFETY: the caller's promise, forwarded.
        unsafe { self.launch_collected(kernel, grid, &parameters) }
    }

    /// Launches a kernel over a grid with at least one thread.
    ///
    /// # Safety
    /// The conditions of [`Stream::launch`].
    #[inline]
    #[allow(unsafe_code, reason = "only the author of a kernel knows what it does")]
    pub(super) unsafe fn launch_collected(
        &self,
        kernel: &Kernel,
        grid: Grid,
        parameters: &Parameters<'_, D>,
    ) -> Result<(), Error> {
        let mut words = SmallVec::<[Argument; 6]>::new();
        let mut touches = SmallVec::<[Touch<'_, D>; 4]>::new();
        let mut ranges = SmallVec::<[KernelRange; 4]>::new();
        for parameter in parameters {
            match parameter {
                Parameter::Number(number) => words.push(*number),
                Parameter::Operand(operand) => {
                    words.push(operand.range.addr.into());
                    touches.push(operand.touch);
                    ranges.push(operand.range);
                }
            }
        }
        let launch = KernelLaunch::new(kernel, grid, &words, &ranges);
        // A marker behind the kernel if an operand lives on several streams, as for any operation that is not a copy.
        let queued = operate(self, &touches, Mark::Shared, |driver, native| {
            // SAFETY: the caller's promise; operands lie in allocations that are reused only behind this use.
            unsafe { driver.launch_kernel(&launch, native) }
        });
        queued.map(drop)
    }
}
