//! Options as values: sizes and shares out of text, devices and configurations out of options.

use crate::args::When;
use millpond::cuda::Cuda;
use millpond::report::{Size, parse_size};
use millpond::{Config, Error, Unavailable};
use millpond_sim::null::Null;
use millpond_sim::{Schedule, Sim};

/// What devices and allocators are made with.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) schedule: When,
    pub(crate) capacity: u64,
    /// What goes above the environment's variables.
    pub(crate) given: [(&'static str, Option<String>); 6],
    pub(crate) check: bool,
    pub(crate) seed: u64,
}

impl Setup {
    /// A fresh simulated device.
    pub(crate) fn sim(&self) -> Sim {
        let schedule = match self.schedule {
            When::Earliest => Schedule::Earliest,
            When::Latest => Schedule::Latest,
            When::Random => Schedule::Random(self.seed),
        };
        Sim::new(self.capacity).oracle(self.check).contents(self.check).schedule(schedule)
    }

    /// A fresh device that hands out addresses.
    pub(crate) fn null(&self) -> Null {
        Null::with_capacity(self.capacity)
    }

    /// A GPU, or the reason why there is none.
    pub(crate) fn cuda(&self, ordinal: u32) -> Result<Cuda, Unavailable> {
        Cuda::new(ordinal).map(|cuda| cuda.patterns(self.check))
    }

    /// The environment's configuration with the options above it.
    pub(crate) fn config(&self) -> Result<Config, Error> {
        Config::from_env_and(|name| self.given.iter().find(|(of, _)| *of == name)?.1.clone())
    }
}

/// `10%` or `0.1`.
pub(crate) fn parse_share(text: &str) -> Result<f64, String> {
    let expected = "expected a share such as 10% or 0.1";
    let (number, whole) = match text.trim().strip_suffix('%') {
        Some(number) => (number.trim_end(), 100.0),
        None => (text.trim(), 1.0),
    };
    let share = number.parse::<f64>().map_err(|_| expected.to_owned())? / whole;
    if (0.0..=1.0).contains(&share) {
        Ok(share)
    } else {
        Err(format!("{expected}, from 0 to 1 (0% to 100%)"))
    }
}

/// `80GiB`.
pub(crate) fn parse_bytes(text: &str) -> Result<u64, String> {
    match parse_size(text) {
        Ok(Size::Bytes(bytes)) => Ok(bytes),
        Ok(Size::Fraction(_)) => Err("expected a size such as 80GiB, not a share".into()),
        Err(e) => Err(e.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares() {
        assert_eq!(parse_share("10%"), Ok(0.1));
        assert_eq!(parse_share("0.1"), Ok(0.1));
        assert_eq!(parse_share(" 100 %"), Ok(1.0));
        for bad in ["10", "-1%", "101%", "", "%", "ten", "NaN", "inf"] {
            assert!(parse_share(bad).is_err(), "{bad:?} is no share");
        }
    }

    #[test]
    fn sizes() {
        assert_eq!(parse_bytes("1KiB"), Ok(1024));
        assert!(parse_bytes("40%").is_err());
    }
}
