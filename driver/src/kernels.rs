//! Kernels: code with a name, its reference on the CPU, and a launch with declared ranges.
//!
//! A [`Kernel`] is compiled text for a real device and a function for a simulated one: the same program launches either.
//! A launch declares which memory it reads and which it writes, so that a judging device can check. This file does not know
//! arrays, the order of streams, or what any kernel computes.

use crate::copies::unsupported;
use crate::units::{Addr, AllocationId};
use crate::{DriverError, DriverErrorKind};
use crate::{DriverResult, Fences};
use core::ffi::CStr;
use core::fmt;

/// Memory as a kernel's reference accesses it: the ranges that its launch declared.
pub trait ReferenceMemory {
    /// Reads bytes, which the launch declared.
    fn read(&mut self, addr: Addr, into: &mut [u8]);
    /// Writes bytes, which the launch declared as written.
    fn write(&mut self, addr: Addr, from: &[u8]);
    /// Fills a range, which the launch declared as written, with a repeating 8-byte word, little endian, beginning at
    /// `addr`.
    fn fill(&mut self, addr: Addr, bytes: u64, word: u64);
}

/// What a kernel does, on the CPU: all of its threads, with the arguments in the kernel's order.
pub type Reference = fn(&mut dyn ReferenceMemory, &[Argument]);

/// A kernel: its text, its name there, and its reference.
///
/// Make it a `static`: devices load a text once and remember it by its address.
///
/// ```
/// use millpond_driver::units::Addr;
/// use millpond_driver::{Argument, Kernel, ReferenceMemory};
///
/// // On a GPU the text runs, on a simulated device the reference.
/// static NEGATE: Kernel = Kernel::new(c"negate", c".version 7.0 ...").reference(negate);
/// fn negate(memory: &mut dyn ReferenceMemory, arguments: &[Argument]) {
///     let &[at, n] = arguments else { panic!("negate(int *at, unsigned n)") };
///     for i in 0..u64::from(n.as_u32()) {
///         let (at, mut bytes) = (Addr(at.as_addr().0 + 4 * i), [0; 4]);
///         memory.read(at, &mut bytes);
///         memory.write(at, &(-i32::from_le_bytes(bytes)).to_le_bytes());
///     }
/// }
/// assert_eq!(NEGATE.name(), c"negate");
/// assert!(NEGATE.on_cpu().is_ok());
/// ```
#[derive(Clone, Copy)]
pub struct Kernel {
    name: &'static CStr,
    text: &'static CStr,
    reference: Option<Reference>,
}

impl Kernel {
    /// A kernel by its name in a module's text, which is PTX.
    pub const fn new(name: &'static CStr, text: &'static CStr) -> Kernel {
        Kernel { name, text, reference: None }
    }
    /// Adds the function that a simulated device runs. Without one the kernel does not run there.
    #[must_use]
    pub const fn reference(self, reference: Reference) -> Kernel {
        Kernel { reference: Some(reference), ..self }
    }
    /// Its name.
    pub const fn name(&self) -> &'static CStr {
        self.name
    }
    /// The text of its module.
    pub const fn text(&self) -> &'static CStr {
        self.text
    }
    /// What it does, on the CPU.
    ///
    /// # Errors
    /// [`DriverErrorKind::NotSupported`] if it has no reference.
    pub fn on_cpu(&self) -> DriverResult<Reference> {
        self.reference.ok_or_else(|| {
            let message = format!(
                "the kernel {:?} has no reference to run on a device that is not real: give it one with Kernel::reference",
                self.name
            );
            DriverError::new("launch_kernel", 801, DriverErrorKind::NotSupported, message)
        })
    }
}

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Kernel({}{})",
            self.name.to_string_lossy(),
            if self.reference.is_some() { ", reference" } else { "" }
        )
    }
}

/// A kernel's argument: a number of at most 8 bytes, or an address.
///
/// The conversions from numbers keep their bits; a reference reads them by the type that the kernel has there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct Argument {
    /// The value in the lowest bytes, where the driver finds it by the argument's address on a little-endian host.
    bits: u64,
}

#[cfg(target_endian = "big")]
compile_error!("a kernel's argument is passed by the address of its lowest bytes: little-endian hosts only");

impl Argument {
    /// An argument with these bits; the kernel's type uses the lowest of them.
    pub const fn from_bits(bits: u64) -> Argument {
        Argument { bits }
    }
    /// All bits.
    pub const fn bits(self) -> u64 {
        self.bits
    }
    /// As the kernel's 32 bits, of either sign.
    pub const fn as_u32(self) -> u32 {
        self.bits as u32
    }
    /// As the kernel's `float`.
    pub const fn as_f32(self) -> f32 {
        f32::from_bits(self.as_u32())
    }
    /// As the kernel's `double`.
    pub const fn as_f64(self) -> f64 {
        f64::from_bits(self.bits)
    }
    /// As the kernel's pointer.
    pub const fn as_addr(self) -> Addr {
        Addr(self.bits)
    }
}

macro_rules! arguments {
    ($($number:ty => |$it:ident| $bits:expr;)*) => {$(
        impl From<$number> for Argument {
            fn from($it: $number) -> Argument {
                Argument { bits: $bits }
            }
        }
    )*};
}
arguments! {
    u8 => |n| n.into();
    u16 => |n| n.into();
    u32 => |n| n.into();
    u64 => |n| n;
    usize => |n| n as u64;
    i8 => |n| n.cast_unsigned().into();
    i16 => |n| n.cast_unsigned().into();
    i32 => |n| n.cast_unsigned().into();
    i64 => |n| n.cast_unsigned();
    isize => |n| n.cast_unsigned() as u64;
    f32 => |n| n.to_bits().into();
    f64 => |n| n.to_bits();
    Addr => |a| a.0;
}

/// How many threads run a kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Grid {
    /// Blocks, in three dimensions.
    pub blocks: [u32; 3],
    /// Threads of a block, in three dimensions; at most 1024 on every device seen.
    pub threads: [u32; 3],
    /// Shared memory of a block beyond what the kernel declares, in bytes.
    pub shared_bytes: u32,
}

impl Grid {
    /// Threads per block if the program named none.
    pub const BLOCK: u32 = 256;

    /// This many blocks of this many threads each.
    pub const fn new(blocks: u32, threads: u32) -> Grid {
        Grid::of([blocks, 1, 1], [threads, 1, 1])
    }
    /// Blocks and their threads in three dimensions, with no shared memory beyond what the kernel declares.
    pub const fn of(blocks: [u32; 3], threads: [u32; 3]) -> Grid {
        Grid { blocks, threads, shared_bytes: 0 }
    }
    /// Sets [`Grid::shared_bytes`].
    #[must_use]
    pub const fn shared_bytes(self, bytes: u32) -> Grid {
        Grid { shared_bytes: bytes, ..self }
    }
    /// Whether it has no threads.
    pub fn is_empty(&self) -> bool {
        self.blocks.contains(&0) || self.threads.contains(&0)
    }
}

/// At least this many threads, in blocks of [`Grid::BLOCK`]; the kernel has to check which are excess. Devices refuse more than 2^31 - 1
/// blocks.
impl From<usize> for Grid {
    fn from(threads: usize) -> Grid {
        let blocks = threads.div_ceil(Grid::BLOCK as usize);
        Grid::new(u32::try_from(blocks).unwrap_or(u32::MAX), Grid::BLOCK)
    }
}

/// How a kernel accesses a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RangeUse {
    /// Reads it.
    Read,
    /// May read it, and may write it.
    ReadWrite,
}

/// Memory that a launch accesses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct KernelRange {
    /// The first byte.
    pub addr: Addr,
    /// The length in bytes.
    pub bytes: u64,
    /// How it is accessed.
    pub used: RangeUse,
    /// The allocation that the launch means, for a judging device.
    pub allocation: Option<AllocationId>,
}

impl KernelRange {
    /// `bytes` from `addr`, of no allocation that a judging device is to know.
    pub const fn new(addr: Addr, bytes: u64, used: RangeUse) -> KernelRange {
        KernelRange { addr, bytes, used, allocation: None }
    }
    /// Sets [`KernelRange::allocation`].
    #[must_use]
    pub const fn allocation(self, allocation: Option<AllocationId>) -> KernelRange {
        KernelRange { allocation, ..self }
    }
}

/// One launch.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct KernelLaunch<'a> {
    /// The kernel.
    pub kernel: &'a Kernel,
    /// The threads.
    pub grid: Grid,
    /// The arguments, in the kernel's order.
    pub arguments: &'a [Argument],
    /// All memory that it accesses.
    pub ranges: &'a [KernelRange],
}

impl<'a> KernelLaunch<'a> {
    /// A launch with these arguments, which accesses these ranges.
    pub const fn new(
        kernel: &'a Kernel,
        grid: Grid,
        arguments: &'a [Argument],
        ranges: &'a [KernelRange],
    ) -> KernelLaunch<'a> {
        KernelLaunch { kernel, grid, arguments, ranges }
    }
}

/// Launches of kernels, ordered on a stream. Optional.
///
/// # Safety
/// A launch runs the kernel once with these arguments, in stream order, and nothing else.
#[allow(unsafe_code, reason = "kernels work on raw addresses")]
pub unsafe trait Kernels: Fences {
    /// Loads a kernel now, so that no launch has to: loading may wait for running kernels. Does nothing by default.
    ///
    /// # Errors
    /// The driver's.
    fn load_kernel(&self, kernel: &Kernel) -> DriverResult<()> {
        let _ = kernel;
        Ok(())
    }
    /// Queues a kernel; it is loaded if it was not yet. The host does not wait for it. By default: not supported.
    ///
    /// # Errors
    /// A text or a name that the driver refuses, a grid that the device does not support, no reference where one is needed,
    /// the driver's; nothing was then queued.
    ///
    /// # Safety
    /// The kernel has these parameters, in number and type. All memory that it accesses lies in the declared ranges,
    /// which are owned by the caller on `stream` until it is complete, and it terminates.
    unsafe fn launch_kernel(&self, launch: &KernelLaunch<'_>, stream: &Self::Stream) -> DriverResult<()> {
        let _ = (launch, stream);
        Err(unsupported("launch_kernel", "this driver launches no kernels"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_keep_their_bits() {
        assert_eq!(Argument::from(-1_i8).bits(), 0xFF);
        assert_eq!(Argument::from(-2_i32).bits(), 0xFFFF_FFFE);
        assert_eq!(Argument::from(-2_i64).bits(), u64::MAX - 1);
        assert_eq!(Argument::from(1.5_f32).as_f32().to_bits(), 1.5_f32.to_bits());
        assert_eq!(Argument::from(-0.0_f64).bits(), 1 << 63);
        assert_eq!(Argument::from(Addr(0x200)).as_addr(), Addr(0x200));
    }

    #[test]
    fn a_grid_covers_its_threads() {
        for n in [1, 255, 256, 257, 1 << 20] {
            let grid = Grid::from(n);
            let threads = grid.blocks[0] as usize * grid.threads[0] as usize;
            assert!(threads >= n && threads < n + 256, "{grid:?} for {n}");
        }
        assert!(Grid::from(0).is_empty());
        assert_eq!(Grid::from(usize::MAX).blocks[0], u32::MAX, "which a device refuses, and no wrap hides");
    }
}
