//! A kernel beside its CPU reference: both run over the same memory, and the first element that differs is reported.
//!
//! The operands are copied to the host, the kernel is launched, the reference runs on the copies, and what the kernel may have
//! written is copied again. It does not know which of the two is right.

use super::operand::{Arguments, Operand, Parameter, collect};
use crate::allocator::Stream;
use crate::allocator::access::{Intent, Mark, Touch, operate};
use crate::driver::{Argument, Called, Driver, Grid, Kernel, Kernels, RangeUse, ReferenceMemory};
use crate::error::{Difference, Error};
use crate::units::Addr;

impl<D: Driver + Kernels> Stream<D> {
    /// Launches a kernel as [`Stream::launch`] does, runs a CPU reference over the same inputs, and compares every element that the
    /// kernel may write, bit by bit. For tests: it **blocks the host**, and copies all operands to it. The arrays keep the kernel's results.
    ///
    /// On a GPU the reference is usually the kernel's own, `KERNEL.on_cpu()?`: then what passes on the simulated device
    /// is what runs on the GPU. On the simulated device the reference runs in place of the kernel, and is compared with another reference.
    ///
    /// ```
    /// use millpond::kernel::{Argument, Kernel, ReferenceMemory};
    /// use millpond::{Allocator, Config, Error, units::{Addr, GIB}};
    /// use millpond_sim::Sim;
    ///
    /// fn each(memory: &mut dyn ReferenceMemory, arguments: &[Argument], of: fn(i32) -> i32) {
    ///     let &[at, n] = arguments else { panic!("negate(int *at, unsigned n)") };
    ///     for i in 0..u64::from(n.as_u32()) {
    ///         let (at, mut bytes) = (Addr(at.as_addr().0 + 4 * i), [0; 4]);
    ///         memory.read(at, &mut bytes);
    ///         memory.write(at, &of(i32::from_le_bytes(bytes)).to_le_bytes());
    ///     }
    /// }
    /// static NEGATE: Kernel = Kernel::new(c"negate", c".version 7.0 ...").reference(|m, a| each(m, a, |x| -x));
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let gpu = Allocator::new(Sim::new(GIB), Config::default())?;
    /// let stream = gpu.stream()?;
    /// let mut x = gpu.array_from_slice(&[0_i32, 1, -2], &stream)?;
    /// // SAFETY: `negate` takes these two, touches 3 elements of `x`, and ends.
    /// unsafe { stream.launch_and_compare(&NEGATE, NEGATE.on_cpu()?, 3, (x.write(), 3_u32))? };
    ///
    /// // A reference that is wrong, for numbers above 1.
    /// let wrong = |memory: &mut dyn ReferenceMemory, arguments: &[Argument]| each(memory, arguments, |x| (-x).max(-1));
    /// // SAFETY: as above.
    /// let found = unsafe { stream.launch_and_compare(&NEGATE, wrong, 3, (x.write(), 3_u32)) };
    /// let Err(Error::Differs(first)) = found else { panic!("{found:?}") };
    /// assert_eq!((first.argument, first.index, first.values::<i32>()), (0, 2, Some((-1, -2))));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::Differs`] with the first element that differs: its index, the expected and the found value. As
    /// [`Stream::launch`]; no pinned memory; the driver's.
    ///
    /// # Panics
    /// If the reference panics, reads outside the operands, or writes outside those that the launch may write.
    ///
    /// # Safety
    /// As [`Stream::launch`].
    #[track_caller]
    #[allow(unsafe_code, reason = "only the author of a kernel knows what it does")]
    pub unsafe fn launch_and_compare<'a>(
        &self,
        kernel: &Kernel,
        reference: impl FnOnce(&mut dyn ReferenceMemory, &[Argument]),
        grid: impl Into<Grid>,
        arguments: impl Arguments<'a, D>,
    ) -> Result<(), Error>
    where
        D: 'a,
    {
        // SAFETY: the caller's promise, forwarded.
        unsafe { self.launch_and_compare_by(kernel, reference, grid, arguments, |_| false) }
    }

    /// Launches a kernel and compares it with a CPU reference ([`Stream::launch_and_compare`]), with a function that judges elements that are not
    /// the same bit by bit: `true` accepts one. For floats that a GPU rounds in another order:
    ///
    /// ```
    /// # use millpond::error::Difference;
    /// let close = |it: &Difference| it.values::<f32>().is_some_and(|(a, b)| (a - b).abs() <= 1e-5 * a.abs());
    /// # let _ = close;
    /// ```
    ///
    /// # Errors
    /// [`Error::Differs`] with the first element that is not accepted; otherwise those of [`Stream::launch_and_compare`].
    ///
    /// # Panics
    /// If the reference or the judging function panics; if the reference accesses memory outside its operands.
    ///
    /// # Safety
    /// As [`Stream::launch`].
    #[track_caller]
    #[allow(unsafe_code, reason = "only the author of a kernel knows what it does")]
    pub unsafe fn launch_and_compare_by<'a>(
        &self,
        kernel: &Kernel,
        reference: impl FnOnce(&mut dyn ReferenceMemory, &[Argument]),
        grid: impl Into<Grid>,
        arguments: impl Arguments<'a, D>,
        mut passes: impl FnMut(&Difference) -> bool,
    ) -> Result<(), Error>
    where
        D: 'a,
    {
        let _called = Called::<D>::here();
        let (grid, parameters) = (grid.into(), collect(arguments));
        if grid.is_empty() {
            return Ok(());
        }
        let name = kernel.name().to_string_lossy();
        let mut words = Vec::new();
        let mut host = HostMemory { kernel: &name, parts: Vec::new() };
        for (argument, parameter) in parameters.iter().enumerate() {
            match parameter {
                Parameter::Number(number) => words.push(*number),
                Parameter::Operand(operand) => {
                    words.push(operand.range.addr.into());
                    host.parts.push(Part { argument, operand, bytes: self.contents(operand)? });
                }
            }
        }
        // SAFETY: the caller's promise, forwarded.
        unsafe { self.launch_collected(kernel, grid, &parameters)? };
        reference(&mut host, &words);
        for part in host.parts.iter().filter(|part| part.operand.range.used == RangeUse::ReadWrite) {
            let (found, size) = (self.contents(part.operand)?, part.operand.element_bytes);
            let pairs = part.bytes.chunks_exact(size.max(1)).zip(found.chunks_exact(size.max(1)));
            for (index, (expected, found)) in pairs.enumerate().filter(|(_, (a, b))| a != b) {
                let place = (part.argument, part.operand.element, index);
                let it = Difference::new(name.clone().into_owned(), place, (expected, found));
                if !passes(&it) {
                    return Err(it.into());
                }
            }
        }
        Ok(())
    }

    /// What an operand holds now. Blocks the host.
    #[allow(unsafe_code, reason = "copies work on raw addresses")]
    fn contents(&self, operand: &Operand<'_, D>) -> Result<Vec<u8>, Error> {
        let (addr, bytes) = (operand.range.addr, operand.range.bytes);
        if bytes == 0 {
            return Ok(Vec::new());
        }
        let pinned = self.allocator().alloc_pinned(bytes)?;
        // Whatever fails below, it is reused only behind what the stream holds.
        pinned.record_use(self)?;
        let to = pinned.as_ptr();
        let touch = Touch { of: operand.touch.of, intent: Intent::Read };
        operate(self, &[touch], Mark::Shared, |driver, native| {
            // SAFETY: the target is as long as the operand and is reused only behind this stream's work; the source lies in an
            // allocation that is reused only behind this use.
            unsafe { driver.copy_d2h(to.as_ptr().cast(), addr, bytes, native) }
        })?;
        self.synchronize()?;
        // SAFETY: the copy is complete and wrote this many bytes; no other code has them.
        Ok(unsafe { core::slice::from_raw_parts(to.as_ptr(), bytes as usize) }.to_vec())
    }
}

/// An operand's copy on the host.
struct Part<'p, 'a, D: Driver> {
    argument: usize,
    operand: &'p Operand<'a, D>,
    bytes: Vec<u8>,
}

/// The copies of a launch's operands, at the operands' addresses.
struct HostMemory<'p, 'a, D: Driver> {
    kernel: &'p str,
    parts: Vec<Part<'p, 'a, D>>,
}

impl<D: Driver> HostMemory<'_, '_, D> {
    /// The bytes of a range, if it lies in an operand that permits this access.
    fn range(&mut self, addr: Addr, bytes: u64, writes: bool) -> &mut [u8] {
        let kernel = self.kernel;
        self.parts
            .iter_mut()
            .filter(|part| !writes || part.operand.range.used == RangeUse::ReadWrite)
            .find_map(|part| {
                let start = addr.since(part.operand.range.addr)?;
                let end = start.checked_add(bytes)?;
                part.bytes.get_mut(usize::try_from(start).ok()?..usize::try_from(end).ok()?)
            })
            .unwrap_or_else(|| {
                let does = if writes { "writes" } else { "reads" };
                panic!("the CPU reference of {kernel} {does} {bytes} bytes at {addr}, which lie in no operand that it may use so")
            })
    }
}

impl<D: Driver> ReferenceMemory for HostMemory<'_, '_, D> {
    fn read(&mut self, addr: Addr, into: &mut [u8]) {
        into.copy_from_slice(self.range(addr, into.len() as u64, false));
    }
    fn write(&mut self, addr: Addr, from: &[u8]) {
        self.range(addr, from.len() as u64, true).copy_from_slice(from);
    }
    fn fill(&mut self, addr: Addr, bytes: u64, word: u64) {
        let word = word.to_le_bytes();
        for (to, from) in self.range(addr, bytes, true).iter_mut().zip(word.iter().cycle()) {
            *to = *from;
        }
    }
}
