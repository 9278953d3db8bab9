//! Rows with a stride: the description of a two-dimensional copy. It knows no device.

use crate::units::Addr;

/// One side of a two-dimensional copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CopySide {
    /// Device memory.
    Device(Addr),
    /// Page-locked host memory, by the address of its first byte.
    Pinned(*mut u8),
}

impl CopySide {
    /// The first byte's address.
    pub fn addr(self) -> Addr {
        match self {
            CopySide::Device(addr) => addr,
            CopySide::Pinned(first) => Addr(first.addr() as u64),
        }
    }
}

/// A copy of `rows` rows of `width` bytes each; the next row begins a pitch further on. At least one side is device memory.
///
/// ```text
/// |<---- pitch ---->|
/// |<- width ->|.....|    row 0
/// |<- width ->|.....|    row 1
/// |<- width ->|          row 2, the last: 2 × pitch + width bytes in all
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pitched {
    /// Where to.
    pub to: CopySide,
    /// Bytes from one row of the target to the next, at least `width`.
    pub to_pitch: u64,
    /// Where from.
    pub from: CopySide,
    /// Bytes from one row of the source to the next, at least `width`.
    pub from_pitch: u64,
    /// Bytes of a row.
    pub width: u64,
    /// How many rows.
    pub rows: u64,
}

/// The bytes from the first to the last that `rows` rows span, if 64 bits can count them.
fn span(width: u64, pitch: u64, rows: u64) -> Option<u64> {
    match rows.checked_sub(1) {
        Some(more) if width > 0 => pitch.checked_mul(more)?.checked_add(width),
        _ => Some(0),
    }
}

impl Pitched {
    /// The bytes that the target's rows span, and the source's; `None` if they cannot be counted, or rows overlap.
    pub fn spans(&self) -> Option<(u64, u64)> {
        if self.to_pitch < self.width || self.from_pitch < self.width {
            return None;
        }
        Some((span(self.width, self.to_pitch, self.rows)?, span(self.width, self.from_pitch, self.rows)?))
    }
    /// The bytes that are copied.
    pub fn bytes(&self) -> u64 {
        self.width * self.rows
    }
    /// The addresses of each row: the target's, the source's.
    pub fn each_row(&self) -> impl Iterator<Item = (Addr, Addr)> + use<> {
        let (to, from, to_pitch, from_pitch) =
            (self.to.addr().0, self.from.addr().0, self.to_pitch, self.from_pitch);
        (0..self.rows).map(move |row| (Addr(to + row * to_pitch), Addr(from + row * from_pitch)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_row_ends_with_its_width() {
        assert_eq!(span(100, 128, 3), Some(356));
        assert_eq!((span(100, 128, 0), span(0, 128, 3)), (Some(0), Some(0)));
        assert_eq!(span(1, u64::MAX, 3), None);
        let copy = |to_pitch, from_pitch| Pitched {
            to: CopySide::Device(Addr(1000)),
            to_pitch,
            from: CopySide::Device(Addr(9000)),
            from_pitch,
            width: 8,
            rows: 2,
        };
        assert_eq!(copy(7, 8).spans(), None, "its rows overlap");
        assert_eq!(copy(16, 8).spans(), Some((24, 16)));
        let rows: Vec<_> = copy(16, 8).each_row().collect();
        assert_eq!(rows, [(Addr(1000), Addr(9000)), (Addr(1016), Addr(9008))]);
    }
}
