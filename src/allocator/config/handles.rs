//! What handles of physical memory are made for, and how blocks lie on them.

use super::{Config, put};
use crate::driver::Properties;
use crate::report::{Size, parse_size};

/// What the handles of physical memory are made for that lie beneath the pools ([`Config::virtual_memory`]), and which blocks lie on one handle each
/// ([`Config::handles`]). By default they serve their own device, and a block lies on as many as it needs.
///
/// ```
/// use millpond::{Config, VirtualMemory, allocator::Handles, units::MIB};
/// let handles = Handles::default().exportable(true).rdma(true).one_above(8 * MIB);
/// let config = Config::default().virtual_memory(VirtualMemory::Auto).handles(handles);
/// # let _ = config;
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Handles {
    pub(crate) exportable: bool,
    pub(crate) fabric: bool,
    pub(crate) rdma: bool,
    pub(crate) one_above: Option<u64>,
}

#[cfg(feature = "serde")]
crate::report::read::read_fields!(Handles { exportable, fabric, rdma, one_above });

impl Handles {
    /// Other processes can open them by a file descriptor ([`Allocator::export`](crate::Allocator::export)), where the device has that;
    /// [`Allocator::segment`](crate::Allocator::segment) says whether it has.
    #[must_use]
    pub fn exportable(mut self, on: bool) -> Handles {
        self.exportable = on;
        self
    }
    /// Other processes, of other machines too, can open them by a fabric handle, where the device has that.
    #[must_use]
    pub fn fabric(mut self, on: bool) -> Handles {
        self.fabric = on;
        self
    }
    /// Network cards can read and write them (GPU-direct RDMA), where the device has that.
    #[must_use]
    pub fn rdma(mut self, on: bool) -> Handles {
        self.rdma = on;
        self
    }
    /// Blocks above so many bytes lie on one handle each, as long as the block in whole units of 2 MiB, so that they can be registered or exported in one piece. By
    /// default none does. Such a block takes a handle of exactly its length that is free, or a new one; it does not take what is free in pieces, nor
    /// another stream's memory at its addresses. Each allocation of a stream of this allocator is then compared with the size, out of the fast path. With
    /// plain segments every block lies in one.
    #[must_use]
    pub fn one_above(mut self, bytes: u64) -> Handles {
        self.one_above = Some(bytes);
        self
    }

    /// The properties that are requested.
    pub(crate) fn properties(self) -> Properties {
        Properties::new(self.exportable, self.fabric, self.rdma)
    }
}

/// `none`, `fd`, `fabric`: a fabric handle besides a descriptor.
pub(super) fn export(c: &mut Config, text: &str) -> bool {
    let found = match text {
        "none" => Some((false, false)),
        "fd" => Some((true, false)),
        "fabric" => Some((true, true)),
        _ => None,
    };
    found.map(|(fd, fabric)| (c.handles.exportable, c.handles.fabric) = (fd, fabric)).is_some()
}

/// `8MiB`, `none`.
pub(super) fn one_above(c: &mut Config, text: &str) -> bool {
    let found = match parse_size(text) {
        _ if text == "none" => Some(None),
        Ok(Size::Bytes(bytes)) => Some(Some(bytes)),
        _ => None,
    };
    put(&mut c.handles.one_above, found)
}
