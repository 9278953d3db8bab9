//! A map of device memory: every segment and window, range by range, as data and as text.
//!
//! The text has a line for each row of at most 64 cells, at most eight rows a segment, and fits 100 columns. It does not know how the ranges were
//! gathered, nor why one is what it is.

use super::bytes;
use crate::units::{Addr, SegmentId, StreamId};
use core::fmt;
use std::collections::BTreeMap;

/// Cells in a row, and rows of a segment at most.
const CELLS: u64 = 64;
const ROWS: u64 = 8;
/// The shortest cell in bytes.
const CELL: u64 = 4096;

/// What a range of addresses is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[cfg_attr(not(feature = "internals"), non_exhaustive)]
pub enum RangeState {
    /// Handed out.
    Live,
    /// Freed while another stream may still use it.
    InFlight,
    /// A handle that moved is still mapped here as well, or the driver did not unmap it: nobody gets these addresses before they are unmapped.
    FormerPlace,
    /// Kept for the next request.
    Free,
    /// Physical memory that was being moved from one place to another while the map was made.
    Moving,
    /// Of a window: nothing is mapped here.
    #[default]
    Hole,
}

/// One range of a segment, with one state.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(not(feature = "internals"), non_exhaustive)]
pub struct MapRange {
    /// Where it begins in the segment, in bytes.
    pub offset: u64,
    /// Its length in bytes.
    pub bytes: u64,
    /// What it is.
    pub state: RangeState,
    /// The stream whose pool it is in; `None` if it is in no pool.
    pub stream: Option<StreamId>,
}

/// A plain segment or a window of [virtual memory](crate::Config::virtual_memory): addresses without a gap.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(not(feature = "internals"), non_exhaustive)]
pub struct MapSegment {
    /// Its number in the allocator.
    pub id: SegmentId,
    /// Its first address.
    pub addr: Addr,
    /// Its length in bytes.
    pub bytes: u64,
    /// Whether it is a window.
    pub window: bool,
    /// Whether it serves small requests; otherwise large ones.
    pub small: bool,
    /// Of a window, the stream whose requests fill its holes; `None` if that stream is gone, and of a plain segment.
    pub stream: Option<StreamId>,
    /// Its ranges by offset: no gap, no overlap.
    pub ranges: Vec<MapRange>,
}

/// Every plain segment and every window of an allocator, by number, at one moment: [`Allocator::memory_map`](crate::Allocator::memory_map).
///
/// ```
/// use millpond::{Allocator, Config, allocator::VirtualMemory, units::MIB};
/// use millpond_sim::Sim;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let gpu = Allocator::new(Sim::new(1 << 30), Config::default().virtual_memory(VirtualMemory::Always))?;
/// let work = gpu.stream()?;
/// let kept = gpu.alloc(6 * MIB, &work)?;
/// drop(gpu.alloc(2 * MIB, &work)?);
/// let map = gpu.memory_map();
/// assert_eq!((map.segments.len(), map.segments[0].largest_hole()), (1, 504 * MIB));
/// println!("{map}");
/// # drop(kept);
/// # Ok(()) }
/// ```
#[derive(Clone, PartialEq, Eq, Default, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(not(feature = "internals"), non_exhaustive)]
pub struct MemoryMap {
    /// The segments and windows, by number.
    pub segments: Vec<MapSegment>,
}

impl MapSegment {
    /// Bytes of a state.
    pub fn bytes_of(&self, state: RangeState) -> u64 {
        self.ranges.iter().filter(|range| range.state == state).map(|range| range.bytes).sum()
    }

    /// The longest hole; 0 if there is none.
    pub fn largest_hole(&self) -> u64 {
        let holes = self.ranges.iter().filter(|range| range.state == RangeState::Hole);
        holes.map(|range| range.bytes).max().unwrap_or(0)
    }

    /// Where the last range ends that is no hole.
    fn extent(&self) -> u64 {
        let last = self.ranges.iter().rev().find(|range| range.state != RangeState::Hole);
        last.map_or(0, |range| range.offset + range.bytes)
    }

    /// Bytes a cell: so many that what is mapped fits in the rows that a segment may have.
    fn cell(&self) -> u64 {
        self.extent().div_ceil(CELLS * ROWS).next_power_of_two().max(CELL)
    }

    /// The sign of a cell.
    fn sign(&self, from: u64, to: u64) -> char {
        let mut amounts: BTreeMap<RangeState, u64> = BTreeMap::new();
        let first = self.ranges.partition_point(|range| range.offset + range.bytes <= from);
        for range in self.ranges[first..].iter().take_while(|range| range.offset < to) {
            let bytes = (range.offset + range.bytes).min(to) - range.offset.max(from);
            *amounts.entry(range.state).or_default() += bytes;
        }
        // What is live shows however little it is; of the rest what there is most of.
        if let Some(&live) = amounts.get(&RangeState::Live) {
            return if 2 * live >= to - from { '#' } else { '+' };
        }
        let most = amounts.into_iter().rev().max_by_key(|&(_, bytes)| bytes);
        match most.map(|(state, _)| state) {
            Some(RangeState::Live) => '#',
            Some(RangeState::InFlight) => '~',
            Some(RangeState::FormerPlace) => '%',
            Some(RangeState::Free) => '-',
            Some(RangeState::Moving) => '?',
            Some(RangeState::Hole) | None => '.',
        }
    }

    /// The streams that have some of it, those with the most bytes first.
    fn holders(&self) -> Vec<(StreamId, u64)> {
        let mut of: BTreeMap<StreamId, u64> = BTreeMap::new();
        for range in &self.ranges {
            if let Some(stream) = range.stream {
                *of.entry(stream).or_default() += range.bytes;
            }
        }
        let mut of: Vec<(StreamId, u64)> = of.into_iter().collect();
        of.sort_by_key(|&(stream, bytes)| (core::cmp::Reverse(bytes), stream));
        of
    }

    fn head(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = if self.window { "window" } else { "segment" };
        let small = if self.small { "small" } else { "large" };
        write!(f, "{what} {} at {}: {}, {small} requests", self.id.0, self.addr, bytes(self.bytes))?;
        if self.window {
            let of = self.stream.map_or("nobody, its stream is gone".to_owned(), |of| of.to_string());
            let (holes, largest) = (bytes(self.bytes_of(RangeState::Hole)), bytes(self.largest_hole()));
            write!(f, " of {of}, holes {holes} (largest {largest})")?;
        }
        write!(f, "\n  live {}, free {}", self.shown(RangeState::Live), self.shown(RangeState::Free))?;
        for (name, state) in [
            ("in flight", RangeState::InFlight),
            ("former", RangeState::FormerPlace),
            ("moving", RangeState::Moving),
        ] {
            if self.bytes_of(state) > 0 {
                write!(f, ", {name} {}", self.shown(state))?;
            }
        }
        writeln!(f, ", cell {}", bytes(self.cell()))?;
        let holders = self.holders();
        if holders.len() > 1 || self.stream.is_none() && !holders.is_empty() {
            let shown = holders.iter().take(3).map(|(stream, held)| format!("{stream} {}", bytes(*held)));
            let more =
                if holders.len() > 3 { format!(", {} more", holders.len() - 3) } else { String::new() };
            writeln!(f, "  in the pools of {}{more}", shown.collect::<Vec<_>>().join(", "))?;
        }
        Ok(())
    }

    fn shown(&self, state: RangeState) -> String {
        bytes(self.bytes_of(state))
    }
}

impl fmt::Display for MapSegment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.head(f)?;
        let (cell, extent) = (self.cell(), self.extent());
        let mut at = 0;
        while at < extent {
            let end = extent.min(at + CELLS * cell);
            let row: String = (0..(end - at).div_ceil(cell))
                .map(|n| self.sign(at + n * cell, (at + (n + 1) * cell).min(self.bytes)))
                .collect();
            writeln!(f, "  {:>9}  {row}", format!("+{}", bytes(at)))?;
            at = end;
        }
        Ok(())
    }
}

impl fmt::Display for MemoryMap {
    /// A legend, and for each segment two lines, or three if several streams have some of it, and its rows. What is behind the last mapping of a window is a
    /// hole, for which there is no row.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "map   # live   + less than half live   - free   ~ in flight   % former place   . hole   ? moving"
        )?;
        self.segments.iter().try_for_each(|segment| write!(f, "{segment}"))
    }
}
