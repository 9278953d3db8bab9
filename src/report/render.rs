//! Reports as text and as JSON.
//!
//! The text is for a person at a terminal: one line with what matters most, a sentence on cached bytes, which are often
//! taken for a leak, a table of the pools, the miss ladder, the driver calls. `{}` ends there; `{:#}` adds the
//! sizes. Nothing here computes what the data does not hold.

use super::{PoolReport, Report, Rung, bytes};
use core::fmt;

/// A number with its noun, in the singular if it is 1.
pub(super) fn counted(n: u64, noun: &str) -> String {
    format!("{n} {noun}{}", if n == 1 { "" } else { "s" })
}

/// Pools shown one by one; the rest share a line.
const POOLS_SHOWN: usize = 20;

/// Columns as wide as their widest cell: the first left-aligned, the others right-aligned.
pub(super) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(super) fn new(header: &[&str]) -> Table {
        Table { rows: vec![header.iter().map(|h| (*h).to_owned()).collect()] }
    }
    pub(super) fn row(&mut self, cells: impl Into<Vec<String>>) {
        self.rows.push(cells.into());
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = |k: usize| self.rows.iter().map(|r| r[k].chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..self.rows[0].len()).map(width).collect();
        for row in &self.rows {
            let mut line = String::new();
            for (k, (cell, &width)) in row.iter().zip(&widths).enumerate() {
                let cell = if k == 0 { format!("{cell:<width$}") } else { format!("   {cell:>width$}") };
                line.push_str(&cell);
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

/// A part of a whole, with two digits.
fn part(x: f64) -> String {
    format!("{x:.2}")
}

fn pool_name(pool: &PoolReport) -> String {
    let mut name = pool.place();
    if pool.closed {
        name += " closed";
    }
    name
}

const HEADER: [&str; 10] = [
    "pool",
    "allocated",
    "cached",
    "in flight",
    "peak",
    "allocs",
    "hits",
    "moved in",
    "waits",
    "fragmentation",
];

/// The peak of several pools: known, or a bound.
fn peak_of_several(known: Option<u64>, at_most: u64) -> String {
    known.map_or_else(|| format!("at most {}", bytes(at_most)), bytes)
}

fn pool_cells(name: String, p: &PoolReport, peak: String) -> [String; 10] {
    let c = &p.counters;
    let hits = if c.allocations == 0 { "-".into() } else { format!("{:.1} %", 100.0 * p.hit_rate()) };
    [
        name,
        bytes(p.allocated),
        bytes(p.cached),
        bytes(p.in_flight),
        peak,
        c.allocations.to_string(),
        hits,
        c.migrations_in.to_string(),
        c.waits_inserted.to_string(),
        part(p.fragmentation()),
    ]
}

impl Report {
    fn head(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let t = &self.total;
        let of = match self.capacity {
            0 => String::new(),
            capacity => format!(" of {}", bytes(capacity)),
        };
        let limit = self.limit.map_or("none".into(), bytes);
        let live = match self.peak_allocated() {
            Some(live) => bytes(live),
            None => format!(
                "at least {}, at most {}",
                bytes(self.allocated_peak),
                bytes(self.allocated_peak_at_most)
            ),
        };
        let ratio = match (self.reserved_over_allocated(), self.reserved_over_allocated_bounds()) {
            (Some(r), _) => format!("{r:.3}"),
            (None, Some((least, max))) => format!("{least:.3} to {max:.3}"),
            (None, None) => "-".into(),
        };
        writeln!(
            f,
            "{}    reserved {} (peak {})   peak allocated {live}   ratio {ratio}   limit {limit}{of}   largest free {}   in flight {}",
            self.device,
            bytes(self.reserved),
            bytes(self.reserved_peak),
            bytes(t.largest_free),
            bytes(t.in_flight),
        )?;
        writeln!(
            f,
            "cached      {} kept for reuse, not leaked: allocations take from it first, trim() gives it back to the device",
            bytes(t.cached)
        )?;
        let over = |of: Option<f64>| of.map_or("-".into(), |of| format!("{of:.3}"));
        writeln!(
            f,
            "slack       {} reserved and not allocated (at the peak {}); allocated over reserved {} (at the peak {}); largest request without growth {}",
            bytes(self.slack()),
            self.slack_at_peak().map_or("-".into(), bytes),
            over(self.allocated_over_reserved()),
            over(self.allocated_over_reserved_at_peak()),
            bytes(self.largest_request)
        )?;
        if self.sparse > 0 {
            writeln!(
                f,
                "sparse      {} in {} of which less than half is allocated, {}: they cannot go back",
                bytes(self.sparse_bytes),
                if self.sparse == 1 {
                    "1 segment or handle".into()
                } else {
                    format!("{} segments and handles", self.sparse)
                },
                bytes(self.sparse_live)
            )?;
        }
        if let Some(soft) = self.soft_limit {
            writeln!(f, "soft limit  {}", bytes(soft))?;
        }
        if let Some(group) = &self.group {
            writeln!(f, "group       {group}")?;
        }
        if self.moving > 0 {
            writeln!(f, "moving      {} on the way from one pool to another", bytes(self.moving))?;
        }
        Ok(())
    }

    fn table(&self) -> Table {
        let mut table = Table::new(&HEADER);
        // The largest first if there are many, else in the order in which they were made.
        let mut order: Vec<&PoolReport> = self.pools.iter().collect();
        if order.len() > POOLS_SHOWN {
            order.sort_by_key(|p| core::cmp::Reverse(p.reserved));
        }
        let (shown, rest) = order.split_at(order.len().min(POOLS_SHOWN));
        for pool in shown {
            table.row(pool_cells(pool_name(pool), pool, bytes(pool.allocated_peak)));
        }
        if !rest.is_empty() {
            let name = format!("{} smaller pools", rest.len());
            let rest = PoolReport::sum(rest.iter().copied());
            let peak = peak_of_several(None, rest.allocated_peak);
            table.row(pool_cells(name, &rest, peak));
        }
        if self.pools.len() > 1 {
            let peak = peak_of_several(self.peak_allocated(), self.allocated_peak_at_most);
            table.row(pool_cells("total".into(), &self.total, peak));
        }
        if let Some(pinned) = &self.pinned {
            table.row(pool_cells("pinned host".into(), pinned, bytes(pinned.allocated_peak)));
        }
        table
    }

    fn work(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "miss ladder")?;
        for (name, Rung { tried, served }) in self.ladder.rungs() {
            write!(f, "   {name} {served}/{tried}")?;
        }
        writeln!(f, "   (served/tried)")?;
        let t = &self.total;
        writeln!(
            f,
            "work        {}, {}, {}, {}, {} now ({} created, {} released), {}",
            counted(t.counters.splits, "split"),
            counted(t.counters.merges, "merge"),
            counted(self.growths, "growth"),
            counted(self.releases, "release"),
            counted(self.segments, "segment"),
            self.segments_created,
            self.segments_released,
            counted(t.counters.host_waits, "host wait")
        )?;
        if let Some(physical) = &self.physical {
            write!(f, "{physical}")?;
        }
        let held_back = t.held_back + self.pinned.as_ref().map_or(0, |p| p.held_back);
        if held_back > 0 {
            writeln!(
                f,
                "held back   {} until their streams are named again, or the program synchronises",
                bytes(held_back)
            )?;
        }
        if let Some(markers) = t.oldest_in_flight {
            let (ranges, bytes) = (counted(t.in_flight_ranges, "range"), bytes(t.in_flight));
            let markers = counted(markers, "marker");
            writeln!(f, "in flight   {ranges}, {bytes}; the oldest use lies {markers} back")?;
        }
        let all: u64 = self.driver_calls.values().sum();
        if all > 0 {
            let mut calls: Vec<_> = self.driver_calls.iter().filter(|(_, n)| **n > 0).collect();
            calls.sort_by(|a, b| b.1.cmp(a.1).then(a.0.cmp(b.0)));
            let calls: Vec<String> = calls.iter().map(|(name, n)| format!("{name} {n}")).collect();
            writeln!(f, "driver      {}: {}", counted(all, "call"), calls.join(", "))?;
        }
        if let Some(pinned) = &self.pinned_host {
            writeln!(f, "pinned      {pinned}")?;
        }
        if self.events_lost > 0 {
            writeln!(
                f,
                "events      {} lost: call deliver_events() between long runs of frees",
                self.events_lost
            )?;
        }
        self.deferred_errors
            .iter()
            .try_for_each(|e| writeln!(f, "error       in a call that returns none: {e}"))
    }
}

impl fmt::Display for Report {
    /// Text for a person. `{:#}` adds the histogram of sizes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.head(f)?;
        if self.pools.is_empty() && self.pinned.is_none() {
            writeln!(f, "no pools yet: nothing was allocated")?;
        } else {
            write!(f, "{}", self.table())?;
        }
        self.work(f)?;
        if f.alternate() {
            write!(f, "sizes of all requests\n{}", self.total.sizes)?;
        }
        Ok(())
    }
}

#[cfg(feature = "serde")]
impl Report {
    /// The report as one JSON object on one line: every field by its name, and the figures that the text shows beside them
    /// (`reserved_over_allocated`, null unless it is known, and its bounds `reserved_over_allocated_at_least` and `reserved_over_allocated_at_most`;
    /// `slack`, `slack_at_peak`, `allocated_over_reserved` and `allocated_over_reserved_at_peak`, null where they are not known; in
    /// each pool `fragmentation` and `hit_rate`). It is read back as an equal report.
    ///
    /// ```
    /// use millpond::{Allocator, Config, report::Report, units::GIB};
    /// use millpond_sim::Sim;
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let report = Allocator::new(Sim::new(GIB), Config::default())?.report();
    /// assert_eq!(serde_json::from_str::<Report>(&report.to_json())?, report);
    /// # Ok(()) }
    /// ```
    pub fn to_json(&self) -> String {
        self.to_value().to_string()
    }

    /// The report as a JSON value, to be put inside another.
    pub fn to_value(&self) -> serde_json::Value {
        use serde_json::{Value, json};
        let pool = |p: &PoolReport| {
            let mut v = json!(p);
            v["fragmentation"] = json!(p.fragmentation());
            v["hit_rate"] = json!(p.hit_rate());
            v
        };
        let mut v = json!(self);
        v["reserved_over_allocated"] = json!(self.reserved_over_allocated());
        let bounds = self.reserved_over_allocated_bounds();
        v["reserved_over_allocated_at_least"] = json!(bounds.map(|b| b.0));
        v["reserved_over_allocated_at_most"] = json!(bounds.map(|b| b.1));
        v["slack"] = json!(self.slack());
        v["slack_at_peak"] = json!(self.slack_at_peak());
        v["allocated_over_reserved"] = json!(self.allocated_over_reserved());
        v["allocated_over_reserved_at_peak"] = json!(self.allocated_over_reserved_at_peak());
        v["total"] = pool(&self.total);
        v["pools"] = self.pools.iter().map(pool).collect();
        v["pinned"] = self.pinned.as_ref().map_or(Value::Null, pool);
        v
    }
}
