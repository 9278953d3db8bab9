//! Allocations as plain values, for code in other languages that keeps a number and passes it back.
//!
//! A raw value keeps the pool alive as a handle does: its reference is leaked until `from_raw` takes it over.

#![allow(unsafe_code, reason = "raw values leak and take up a counted reference")]

use super::allocation::{Allocation, DANGLING, Home};
use super::pool::Pool;
use crate::driver::Driver;
use crate::heap::{ChunkId, Taken};
use crate::sync::Arc;
use crate::units::Addr;
use core::fmt;
use core::mem::ManuallyDrop;

/// An [`Allocation`] taken apart. Dropping it does nothing: the bytes stay allocated until
/// [`Allocation::from_raw`] puts the handle together again.
///
/// ```
/// use millpond::{Allocation, Allocator, Config, RawAllocation, units::{GIB, KIB}};
/// use millpond_sim::Sim;
/// # fn main() -> Result<(), millpond::Error> {
/// let gpu = Allocator::new(Sim::new(GIB), Config::default())?;
/// let stream = gpu.stream()?;
/// let raw = gpu.alloc(KIB, &stream)?.into_raw();
/// let (address, words) = (raw.address(), raw.to_words());   // what code in another language keeps
///
/// // SAFETY: these words are those of one raw value of this driver type, which is put together once.
/// let block: Allocation<Sim> = unsafe { Allocation::from_raw(RawAllocation::from_words(address, words)) };
/// assert_eq!((block.address(), block.len()), (address, KIB));
/// # Ok(()) }
/// ```
pub struct RawAllocation<D: Driver> {
    /// A leaked reference to its pool; `None` for zero bytes.
    of: Option<(*const Pool<D>, Taken)>,
    bytes: u64,
}

// SAFETY: the pointer is an `Arc<Pool<D>>` leaked, and `Pool<D>` is Send and Sync.
unsafe impl<D: Driver> Send for RawAllocation<D> {}
// SAFETY: as above; a shared raw value gives only numbers.
unsafe impl<D: Driver> Sync for RawAllocation<D> {}

#[allow(clippy::expl_impl_clone_on_copy, reason = "a derive would ask for D: Copy")]
impl<D: Driver> Clone for RawAllocation<D> {
    fn clone(&self) -> RawAllocation<D> {
        *self
    }
}
impl<D: Driver> Copy for RawAllocation<D> {}

impl<D: Driver> RawAllocation<D> {
    /// The first byte.
    #[inline]
    pub fn address(&self) -> Addr {
        self.of.map_or(DANGLING, |(_, taken)| taken.addr)
    }
    /// The requested length in bytes.
    #[allow(clippy::len_without_is_empty, reason = "a plain value with the handle's two facts")]
    pub fn len(&self) -> u64 {
        self.bytes
    }
    /// Everything but the address as three `u64`, for tables that are keyed by address. The first is 0 only for zero bytes.
    #[inline]
    pub fn to_words(&self) -> [u64; 3] {
        let Some((pool, taken)) = self.of else { return [0, 0, self.bytes] };
        let chunk = u64::from(taken.chunk().index()) << 32 | u64::from(taken.generation());
        [pool.expose_provenance() as u64, chunk, self.bytes]
    }
    /// From [`RawAllocation::to_words`] and [`RawAllocation::address`].
    ///
    /// # Safety
    /// All four came from one raw value of this driver type. (The value itself does nothing yet:
    /// [`Allocation::from_raw`] has a further condition.)
    #[allow(
        clippy::cast_possible_truncation,
        reason = "two halves of a word, and an address of this machine"
    )]
    #[inline]
    pub unsafe fn from_words(addr: Addr, [pool, chunk, bytes]: [u64; 3]) -> RawAllocation<D> {
        let taken = Taken::new(ChunkId::from_index((chunk >> 32) as u32), chunk as u32, addr);
        let of = taken.map(|taken| (core::ptr::with_exposed_provenance(pool as usize), taken));
        RawAllocation { of, bytes }
    }
}

impl<D: Driver> fmt::Debug for RawAllocation<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RawAllocation({} + {} B)", self.address(), self.bytes)
    }
}

impl<D: Driver> Allocation<D> {
    /// Takes the handle apart. An allocation of zero bytes gives a value with no pool.
    #[inline]
    pub fn into_raw(self) -> RawAllocation<D> {
        let bytes = self.bytes;
        let leaked = |home: Home<D>| (Arc::into_raw(ManuallyDrop::into_inner(home.pool)), home.taken);
        RawAllocation { of: self.into_home().map(leaked), bytes }
    }

    /// Puts a handle together again.
    ///
    /// # Safety
    /// `raw` came from [`Allocation::into_raw`] and is passed here once: a copy passed twice frees the pool's reference twice.
    #[inline]
    pub unsafe fn from_raw(raw: RawAllocation<D>) -> Allocation<D> {
        let Some((pool, taken)) = raw.of else { return Allocation::dangling() };
        // SAFETY: by the caller's promise the pointer is an `Arc` that `into_raw` leaked, and it is taken over once.
        let pool = ManuallyDrop::new(unsafe { Arc::from_raw(pool) });
        Allocation { home: Some(Home { pool, taken }), bytes: raw.bytes }
    }
}
