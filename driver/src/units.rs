//! Quantities with their units: addresses, granules, epochs, identities.
//!
//! A granule is 512 bytes, the unit in which every size and offset is counted. Inside a segment it fits in a `u32`
//! (2 TiB); conversions check instead of wrapping, because a size near the integer limit that wraps hands out a tiny
//! chunk for a huge request. This module knows no device, no heap and no stream order.

use core::fmt;

/// Bytes in one granule: CUDA guarantees at least 256-byte alignment; every caching pool uses 512.
pub const GRANULE_BYTES: u64 = 512;

/// 2^10 bytes.
pub const KIB: u64 = 1 << 10;
/// 2^20 bytes.
pub const MIB: u64 = 1 << 20;
/// 2^30 bytes.
pub const GIB: u64 = 1 << 30;

/// An address in device memory, or in pinned host memory, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Addr(pub u64);

impl Addr {
    /// The address `granules` further on.
    ///
    /// # Panics
    /// When the sum leaves the 64-bit address space, which no live segment can.
    #[inline]
    #[must_use]
    pub fn offset(self, granules: Granules) -> Addr {
        Addr(self.0.checked_add(granules.bytes()).expect("address beyond 2^64"))
    }
    /// Bytes from `base` up to here, if `base` is not above.
    pub fn since(self, base: Addr) -> Option<u64> {
        self.0.checked_sub(base.0)
    }
}

impl fmt::Debug for Addr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}
impl fmt::Display for Addr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// A length or an offset inside a segment, in granules of 512 bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct Granules(pub u32);

impl Granules {
    /// No granules.
    pub const ZERO: Granules = Granules(0);
    /// The longest range: 2 TiB less one granule.
    pub const MAX: Granules = Granules(u32::MAX);

    /// The fewest granules that hold `bytes`, or `None` above [`Granules::MAX`].
    ///
    /// ```
    /// use millpond_driver::units::Granules;
    /// assert_eq!(Granules::holding(513), Some(Granules(2)));
    /// assert_eq!(Granules::holding(u64::MAX), None);
    /// ```
    #[inline]
    pub const fn holding(bytes: u64) -> Option<Granules> {
        let n = bytes.div_ceil(GRANULE_BYTES);
        if n > u32::MAX as u64 { None } else { Some(Granules(n as u32)) }
    }
    /// The granules of exactly `bytes`, or `None` if that is not a whole number of them or too many.
    pub const fn exactly(bytes: u64) -> Option<Granules> {
        if bytes.is_multiple_of(GRANULE_BYTES) { Granules::holding(bytes) } else { None }
    }
    /// The length in bytes.
    #[inline]
    pub const fn bytes(self) -> u64 {
        self.0 as u64 * GRANULE_BYTES
    }
    /// The sum, or `None` above [`Granules::MAX`].
    #[inline]
    pub const fn checked_add(self, other: Granules) -> Option<Granules> {
        match self.0.checked_add(other.0) {
            Some(n) => Some(Granules(n)),
            None => None,
        }
    }
}

impl fmt::Display for Granules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} B", self.bytes())
    }
}

/// A device's ordinal.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct DeviceId(pub u32);

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "device {}", self.0)
    }
}

/// A stream's identity: the driver's unique number, never the handle, whose value comes back after a destroy.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct StreamId(pub u64);

impl fmt::Display for StreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "stream {}", self.0)
    }
}

/// A marker's number on its stream. 0 is "before the first marker": always complete.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Epoch(pub u64);

impl Epoch {
    /// The stamp of bytes with nothing pending.
    pub const COMPLETE: Epoch = Epoch(0);
    /// The next number.
    #[inline]
    #[must_use]
    pub const fn next(self) -> Epoch {
        Epoch(self.0 + 1)
    }
}

/// A segment's number in its allocator: one contiguous range from the device.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct SegmentId(pub u32);

/// One allocation in the life of a process: which pool, which slot, which generation of the slot.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct AllocationId {
    /// The pool's number in this process, never reused.
    pub pool: u32,
    /// The slot in the pool's heap.
    pub chunk: u32,
    /// How many times the slot had been handed out.
    pub generation: u32,
}

impl fmt::Display for AllocationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}.{}.{}", self.pool, self.chunk, self.generation)
    }
}
