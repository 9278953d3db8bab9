//! Byte counts as text, both ways: for people, for tables in one unit, and from settings.
//!
//! Output uses powers of 1024 and says so (`KiB`). Input takes both kinds literally: `1 KiB` is 1024 bytes,
//! `1 KB` is 1000. This module does not know what the bytes are.

use core::str::FromStr;

/// The binary units by name, from 2^0 upwards in steps of 2^10.
const NAMES: [&str; 8] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB", "ZiB"];

/// A byte count with a unit, in three digits.
///
/// ```
/// use millpond_driver::bytes;
/// assert_eq!(bytes(512), "512 B");
/// assert_eq!(bytes(3 << 29), "1.50 GiB");
/// assert_eq!(bytes(u64::MAX), "16.0 EiB");
/// ```
pub fn bytes(n: u64) -> String {
    if n < 1024 {
        return format!("{n} B");
    }
    let mut value = n as f64;
    let mut unit = 0;
    // 1023.5 of a unit would be written 1024: it is 1.00 of the next.
    while value >= 1023.5 {
        value /= 1024.0;
        unit += 1;
    }
    let digits = if value < 9.995 { 2 } else { usize::from(value < 99.95) };
    format!("{value:.digits$} {}", NAMES[unit])
}

/// The largest unit of whole numbers, by its place in `NAMES`.
const WHOLE_MOST: u32 = 4;

/// A byte count without loss: a whole number of the largest unit up to TiB that divides it, as the trace language writes sizes.
#[doc(hidden)]
pub fn whole_bytes(n: u64) -> String {
    let unit = (1..=WHOLE_MOST).rev().find(|unit| n != 0 && n.trailing_zeros() >= 10 * unit);
    unit.map_or_else(|| n.to_string(), |unit| format!("{}{}", n >> (10 * unit), NAMES[unit as usize]))
}

/// What stands before the unit of such a text, and the unit's power of two; 0 for bytes.
#[doc(hidden)]
pub fn whole_unit(text: &str) -> (&str, u32) {
    let named = |unit: u32| Some((text.strip_suffix(NAMES[unit as usize])?, 10 * unit));
    (1..=WHOLE_MOST).find_map(named).unwrap_or((text, 0))
}

/// The unit of a table's column of byte counts (requirement H12).
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Unit {
    /// Bytes.
    B,
    /// 2^10 bytes.
    KiB,
    /// 2^20 bytes.
    MiB,
    /// 2^30 bytes.
    GiB,
    /// 2^40 bytes.
    TiB,
    /// 2^50 bytes.
    PiB,
    /// 2^60 bytes.
    EiB,
    /// 2^70 bytes.
    ZiB,
    /// One unit for a column, the largest in which its largest entry is at least 1.
    #[default]
    Auto,
    /// For each entry the largest unit in which it is at least 1.
    AutoForeach,
}

const FIXED: [Unit; 8] =
    [Unit::B, Unit::KiB, Unit::MiB, Unit::GiB, Unit::TiB, Unit::PiB, Unit::EiB, Unit::ZiB];

impl Unit {
    /// A column of byte counts as text, with two decimals.
    pub fn column(self, counts: &[u64]) -> Vec<String> {
        let largest = counts.iter().copied().max().unwrap_or(0);
        counts
            .iter()
            .map(|&n| {
                let exponent = match self {
                    Unit::Auto => exponent_of(largest),
                    Unit::AutoForeach => exponent_of(n),
                    fixed => FIXED.iter().position(|u| *u == fixed).unwrap_or(0),
                };
                format!("{:.2} {}", n as f64 / ((10 * exponent) as f64).exp2(), NAMES[exponent])
            })
            .collect()
    }
}

fn exponent_of(n: u64) -> usize {
    n.checked_ilog2().map_or(0, |log| log as usize / 10)
}

impl FromStr for Unit {
    type Err = SizeError;
    /// `B`, `KiB` or `KB` up to `ZiB` or `ZB`, `auto`, `auto_foreach`; case does not matter. Here, unlike in sizes, `KB` is
    /// another name for `KiB`, as in the reports that these are compared with.
    fn from_str(text: &str) -> Result<Unit, SizeError> {
        let name = text.to_ascii_lowercase();
        match name.as_str() {
            "auto" => return Ok(Unit::Auto),
            "auto_foreach" => return Ok(Unit::AutoForeach),
            _ => {}
        }
        let same = |unit: &str| {
            let unit = unit.to_ascii_lowercase();
            name == unit || name == unit.replace('i', "")
        };
        NAMES.iter().position(|unit| same(unit)).map(|k| FIXED[k]).ok_or_else(|| {
            SizeError::new(text, "a unit: B, KiB, MiB, GiB, TiB, PiB, EiB, ZiB, auto or auto_foreach")
        })
    }
}

/// The value of a size setting.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Size {
    /// A number of bytes.
    Bytes(u64),
    /// A fraction, from 0 to 1, of a whole that the reader of the setting knows.
    Fraction(f64),
}

impl Size {
    /// The bytes, given the whole that a fraction is of. A fraction is rounded down to whole bytes.
    #[allow(clippy::cast_sign_loss, reason = "a fraction below 0 gives 0: the cast saturates")]
    pub fn of(self, whole: u64) -> u64 {
        match self {
            Size::Bytes(n) => n,
            Size::Fraction(f) if f >= 1.0 => whole,
            Size::Fraction(f) => (whole as f64 * f) as u64,
        }
    }
}

/// A size or a unit that cannot be read.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("found {found:?}; expected {expected}")]
#[non_exhaustive]
pub struct SizeError {
    /// What was given.
    pub found: String,
    /// What is accepted.
    pub expected: &'static str,
}

impl SizeError {
    fn new(found: &str, expected: &'static str) -> SizeError {
        SizeError { found: found.chars().take(80).collect(), expected }
    }
}

const SIZE: &str = "a size like 512, 1.5GiB or 40%";

/// Reads a size from a setting: `512`, `2GiB`, `1.5 GB`, `40%`.
///
/// `KiB MiB GiB TiB PiB EiB` count in 1024, as do the bare `K M G T P E`; `KB MB GB TB PB EB` count in 1000. Case does
/// not matter. Fractions of a byte are dropped. Percentages go from 0 to 100.
///
/// ```
/// use millpond_driver::{Size, parse_size};
/// assert_eq!(parse_size("2GiB"), Ok(Size::Bytes(2 << 30)));
/// assert_eq!(parse_size("1.5 GB"), Ok(Size::Bytes(1_500_000_000)));
/// assert_eq!(parse_size("40%"), Ok(Size::Fraction(0.4)));
/// assert_eq!(parse_size("4x").unwrap_err().to_string(), "found \"4x\"; expected a size like 512, 1.5GiB or 40%");
/// ```
///
/// # Errors
/// When the text is none of these, a number of bytes is 2^64 or more, or a percentage is above 100.
pub fn parse_size(text: &str) -> Result<Size, SizeError> {
    let error = |expected| SizeError::new(text, expected);
    let trimmed = text.trim();
    let end = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(end);
    let unit = unit.trim_start().to_ascii_lowercase();
    let (whole, part) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() || part.contains('.') || (number.contains('.') && part.is_empty()) {
        return Err(error(SIZE));
    }
    if unit == "%" {
        let percent: f64 = number.parse().map_err(|_| error(SIZE))?;
        return if percent <= 100.0 {
            Ok(Size::Fraction(percent / 100.0))
        } else {
            Err(error("a percentage from 0% to 100%"))
        };
    }
    let multiplier = multiplier(&unit).ok_or_else(|| error(SIZE))?;
    if multiplier == 1 && !part.is_empty() {
        return Err(error("whole bytes; a part of the whole is written in percent, like 40%"));
    }
    // Exact: the digits are one integer, scaled by a power of ten. Digits beyond the twelfth do not matter.
    let part = &part[..part.len().min(12)];
    let too_much = || error("less than 2^64 bytes (16 EiB)");
    let digits: u128 = format!("{whole}{part}").parse().map_err(|_| too_much())?;
    let bytes = digits.checked_mul(multiplier.into()).ok_or_else(too_much)? / 10u128.pow(part.len() as u32);
    u64::try_from(bytes).map(Size::Bytes).map_err(|_| too_much())
}

/// The factor of a unit in small letters.
fn multiplier(unit: &str) -> Option<u64> {
    if matches!(unit, "" | "b") {
        return Some(1);
    }
    let (letter, rest) = unit.split_at_checked(1)?;
    let power = 1 + "kmgtpe".find(letter)? as u32;
    match rest {
        "" | "ib" => Some(1 << (10 * power)),
        "b" => Some(1000u64.pow(power)),
        _ => None,
    }
}
