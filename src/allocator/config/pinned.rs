//! The limit of pinned memory: pages that are pinned can go nowhere else, so that too many of them starve the host.

use super::{A_FRACTION, Config, Limit};
use crate::driver::HostMemory;
use crate::error::Error;

/// How much of the host's memory may be pinned if nothing else is said: half, so that at least as much is left for everything that is not.
const PINNED_SHARE: f64 = 0.5;

/// A limit of pinned memory on a host.
pub(in crate::allocator) struct PinnedLimit {
    pub(in crate::allocator) bytes: Option<u64>,
    /// What it is a share of, in words; `None` for a number of bytes.
    pub(in crate::allocator) share: Option<String>,
}

impl Config {
    /// How much host memory may be pinned, for this allocator: bytes, or a share of the machine's memory or of what a container allows the process of it,
    /// whichever is less; [`Limit::None`] for no limit. Half by default, where the device knows how much there is, as a CUDA device on Linux does; on other
    /// devices none.
    ///
    /// ```
    /// use millpond::{Config, allocator::Limit, units::GIB};
    /// let bytes = Config::default().pinned_limit(4 * GIB);
    /// let share = Config::default().pinned_limit(Limit::Fraction(0.25));
    /// # let _ = (bytes, share);
    /// ```
    ///
    /// A request that would exceed it fails with [`Error::OutOfMemory`], which says the limit and where it comes from. Memory of the program's that is
    /// [registered](crate::Allocator::register) does not count. A share on a device that does not know its host's memory is an [`Error::Config`] when the
    /// allocator is made.
    #[must_use]
    pub fn pinned_limit(mut self, limit: impl Into<Limit>) -> Config {
        self.pinned_limit = Some(limit.into());
        self
    }

    /// The limit on a host with so much memory.
    ///
    /// # Errors
    /// [`Error::Config`] for a share outside 0 to 1, or of what is not known.
    pub(in crate::allocator) fn pinned_on(&self, host: Option<HostMemory>) -> Result<PinnedLimit, Error> {
        let bad =
            |found: f64, expected| Error::Config { name: "pinned_limit", found: found.to_string(), expected };
        let (limit, said) = match (self.pinned_limit, host) {
            (Some(limit), _) => (limit, ""),
            (None, Some(_)) => (Limit::Fraction(PINNED_SHARE), ", by default"),
            (None, None) => (Limit::None, ""),
        };
        match (limit, host) {
            (Limit::None, _) => Ok(PinnedLimit { bytes: None, share: None }),
            (Limit::Bytes(bytes), _) => Ok(PinnedLimit { bytes: Some(bytes), share: None }),
            (Limit::Fraction(share), None) => {
                Err(bad(share, "bytes, or none: this device does not say how much memory its host has"))
            }
            (Limit::Fraction(share), Some(host)) => {
                let bytes = limit.bytes(host.bytes()).map_err(|_| bad(share, A_FRACTION))?;
                Ok(PinnedLimit { bytes, share: Some(format!("{:.0} % of {host}{said}", share * 100.0)) })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::GIB;

    #[test]
    fn shares_are_of_the_smaller_of_machine_and_container() {
        let machine = HostMemory::new(16 * GIB, None);
        let container = HostMemory::new(16 * GIB, Some(4 * GIB));
        let limit = |config: &Config, host| {
            let limit = config.pinned_on(host).unwrap();
            (limit.bytes, limit.share.unwrap_or_default())
        };
        let default = Config::default();
        assert_eq!(limit(&default, None), (None, String::new()));
        let said = "50 % of the 16.0 GiB of memory that this machine has, by default";
        assert_eq!(limit(&default, Some(machine)), (Some(8 * GIB), said.into()));
        let said = "50 % of the 4.00 GiB that this container may use, by default";
        assert_eq!(limit(&default, Some(container)), (Some(2 * GIB), said.into()));
        let said = "25 % of the 4.00 GiB that this container may use";
        let quarter = Config::default().pinned_limit(Limit::Fraction(0.25));
        assert_eq!(limit(&quarter, Some(container)), (Some(GIB), said.into()));
        for host in [None, Some(machine)] {
            assert_eq!(limit(&Config::default().pinned_limit(3 * GIB), host), (Some(3 * GIB), String::new()));
            assert_eq!(limit(&Config::default().pinned_limit(Limit::None), host), (None, String::new()));
        }
        let refused = |config: Config, host| config.pinned_on(host).err().map(|e| e.to_string()).unwrap();
        let said = refused(quarter, None);
        assert!(
            said.contains("pinned_limit") && said.contains("0.25") && said.contains("does not say"),
            "{said}"
        );
        let said = refused(Config::default().pinned_limit(Limit::Fraction(1.5)), Some(machine));
        assert!(said.contains("pinned_limit") && said.contains("from 0 to 1"), "{said}");
    }
}
