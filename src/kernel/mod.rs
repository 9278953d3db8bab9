//! Kernels on arrays: a few built-in ones behind safe functions, and the program's own behind one unsafe one.
//!
//! [`fill`], [`iota`], [`saxpy`], [`reduce_sum`], [`gather`] and [`scatter`] check lengths and queue kernels that touch
//! nothing else. [`Stream::launch`] queues a kernel of the program's with its operands named: [`read`](DeviceArray::read)
//! and [`write`](DeviceArray::write) say which arrays it uses and how. Either way the launch comes after whatever it
//! conflicts with, on any stream, and later operations come after it; the host never waits.
//! On the simulated device a kernel's reference runs on the contents, and the oracle judges the named operands.
//! [`Stream::launch_and_compare`] runs a kernel and a CPU reference over the same inputs, for tests.
//!
//! It does not know how waits are found or made (the allocator does), nor how a device loads and runs code.
//!
//! ```
//! use millpond::{Allocator, Config, kernel, units::GIB};
//! use millpond_sim::Sim;
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let sim = Sim::new(GIB);
//! let gpu = Allocator::new(sim.clone(), Config::default())?;
//! let (s, t) = (gpu.stream()?, gpu.stream()?);
//! let (mut x, mut y) = (gpu.uninit::<f32>(1000, &s)?, gpu.zeros::<f32>(1000, &t)?);
//! let mut total = gpu.uninit::<f32>(1, &t)?;
//! kernel::iota(&mut x, 0.0, 1.0, &s)?;
//! kernel::saxpy(2.0, &x, &mut y, &t)?;                      // `t` waits for `s`, on the device
//! kernel::reduce_sum(&y, &mut total, &t)?;
//! assert_eq!(total.to_pinned(&t)?.wait()?[0], 999_000.0);
//! sim.verdict()?;
//! # Ok(()) }
//! ```

mod builtins;
mod compare;
mod guard;
mod launch;
mod number;
mod operand;
mod references;
mod verbs;

pub use crate::driver::{Argument, Grid, Kernel, Kernels, Reference, ReferenceMemory};
pub(crate) use builtins::UNPACK;
pub use builtins::{builtins, load_builtins};
pub use guard::{ReadOn, WriteOn};
pub use number::Number;
pub use operand::{Arguments, Operand, Parameter};
pub use verbs::{fill, gather, iota, reduce_sum, saxpy, scatter};

#[cfg(doc)]
use crate::{allocator::Stream, array::DeviceArray};
