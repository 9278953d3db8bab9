//! Arrays in external memory: allocated by another library, by the driver itself or by another process that shares it.

use super::device::DeviceArray;
use super::{Shape, bytes_of};
use crate::allocator::Stream;
use crate::allocator::access::Tracked;
use crate::allocator::external::External;
use crate::driver::Driver;
use crate::error::{Error, ExternalRange, ExternalRangeKind};
use crate::units::{Addr, DeviceId};
use bytemuck::Pod;

/// A range of device memory that is not ours. [`DeviceArray::from_external`] makes an array of it, together with the owner that keeps it alive; see the example there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ExternalMemory {
    /// The first byte.
    pub address: Addr,
    /// Its length in bytes.
    pub bytes: u64,
    /// The device that it is on.
    pub device: DeviceId,
}

impl ExternalMemory {
    /// Checks the range for elements of this many bytes with this alignment.
    fn check(self, needed: u64, align: u64) -> Result<(), Error> {
        let ExternalMemory { address, bytes, .. } = self;
        let kind = if address.0 == 0 {
            ExternalRangeKind::Null
        } else if bytes == 0 || needed == 0 {
            ExternalRangeKind::Empty
        } else if !address.0.is_multiple_of(align) {
            ExternalRangeKind::Misaligned { align }
        } else if address.0.checked_add(bytes).is_none() {
            ExternalRangeKind::Wraps
        } else if needed > bytes {
            ExternalRangeKind::TooShort { needed }
        } else {
            return Ok(());
        };
        Err(Error::ExternalRange(ExternalRange { address, bytes, kind }))
    }
}

impl<T: Pod, D: Driver> DeviceArray<T, D> {
    /// An array in external memory. `owner` is what keeps the memory alive: a guard, a counted
    /// reference, a closure's captures. It is an array like any other, except that its memory never enters a pool and that
    /// [`into_allocation`](DeviceArray::into_allocation) gives it back.
    ///
    /// **Ordering.** What is already queued on `stream` counts as a write before everything; the program orders
    /// all other writers of the memory before `stream`. When the array is dropped, `owner` is dropped when every operation on the
    /// array, on any stream, and everything that `stream` was given until then is *complete*: at once if that is
    /// known, else in a later call that may call the driver: an operation, a recorded use, another array in external memory,
    /// a request that the cache does not serve, a trim, or a wait of the host for the device, for the stream or for an event of it that proves
    /// completion. So `owner` may give the memory to any other user. Its drop runs in that call, with no lock of the allocator held, and takes
    /// as long as it takes: a drop that gives plain memory back to the driver waits for every kernel on the device, and so does the call, a request
    /// whatever its [`bounded_wait`](crate::Config::bounded_wait). If
    /// completion cannot be proved, `owner` is forgotten. An `owner` that holds this allocator or a stream of it keeps them until then.
    ///
    /// ```
    /// use millpond::array::ExternalMemory;
    /// use millpond::driver::Memory;
    /// use millpond_sim::Sim;
    /// use millpond::{Allocator, Config, DeviceArray, units::GIB};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let sim = Sim::new(GIB);
    /// let gpu = Allocator::new(sim.clone(), Config::default())?;
    /// let stream = gpu.stream()?;
    /// let theirs = sim.allocate(4096)?; // the driver's own, freed when dropped
    /// let memory = ExternalMemory { address: theirs.addr(), bytes: 4096, device: gpu.device() };
    /// // SAFETY: no other code uses the range, and it lives as long as `theirs`.
    /// let made = unsafe { DeviceArray::<u32, _>::from_external(memory, [32, 32], theirs, &stream) };
    /// let mut x = made.map_err(|(_, e)| e)?;
    /// x.fill_bytes(1, &stream)?;
    /// assert_eq!(x.to_vec(&stream)?[7], 0x0101_0101);
    /// drop(x); // `theirs` is dropped behind the copy
    /// # drop(stream);
    /// # drop(gpu);
    /// # sim.verdict()?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// Returns the owner with [`Error::ExternalRange`] for a range that is null, of no bytes, misaligned for `T`, too short, or
    /// past the end of all addresses; [`Error::WrongDevice`] for one on another device than `stream`;
    /// [`Error::Overflow`]; a per-thread default stream of another thread.
    ///
    /// # Safety
    /// The range is memory of that device, readable and writable by its kernels, until `owner` is dropped. Until then
    /// other code reads what the array writes, and writes it, only in an order that the program makes
    /// ([`DeviceArray::wait_on`], [`DeviceArray::record_use`]).
    #[allow(unsafe_code, reason = "an address is taken at its word")]
    pub unsafe fn from_external<O: Send + 'static>(
        memory: ExternalMemory,
        shape: impl Into<Shape>,
        owner: O,
        stream: &Stream<D>,
    ) -> Result<DeviceArray<T, D>, (O, Error)> {
        let shape = shape.into();
        let found = memory.device;
        let expected = stream.info().device;
        let checked = bytes_of::<T>(shape).and_then(|needed| {
            if found != expected {
                return Err(Error::WrongDevice { found, expected });
            }
            memory.check(needed, align_of::<T>() as u64)?;
            Ok(stream.timeline().own_thread("from_external")?)
        });
        match checked {
            Ok(()) => {
                let memory = External::new(memory.address, memory.bytes, stream, Box::new(owner));
                // Each new owner that may have to be kept pays for one that is kept. After the array is made, so that a panic in another owner's drop
                // drops this array, which keeps its owner for the work before.
                stream.deferred_drops().run();
                Ok(DeviceArray::of(Tracked::external(memory), shape))
            }
            Err(e) => Err((owner, e)),
        }
    }
}
