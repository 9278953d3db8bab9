//! How many bytes each part of a program allocated, and how many of them came from the device (requirements T7 and H13).
//!
//! A profile watches two counters that only grow: bytes handed out, and bytes reserved from the device. Each scope is
//! charged what the counters grew by while it was the innermost one, so the rows add up to the total and nothing
//! is counted twice, even if scopes nest or recurse. Allocated over reserved is the reuse factor: how often each byte
//! from the device was handed out.
//!
//! One profile follows one sequence of nested scopes; threads that are to be distinguished need one each. This module does not
//! know where the counters come from.

use super::Unit;
use core::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// Two counters that only grow, at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Usage {
    /// Bytes handed out so far, as requested.
    pub allocated: u64,
    /// Bytes reserved from the device so far.
    pub reserved: u64,
}

/// One name's share.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct ProfileRow {
    /// The scopes' name.
    pub name: String,
    /// Bytes handed out in scopes of this name, not counting those in scopes inside them.
    pub allocated: u64,
    /// Bytes reserved from the device, counted likewise.
    pub reserved: u64,
    /// Bytes handed out between the beginning and the end of these scopes, to any requester; a scope inside another of the
    /// same name adds nothing. These rows do not add up to the total.
    pub allocated_within: u64,
    /// Bytes reserved from the device, counted likewise.
    pub reserved_within: u64,
    /// How many scopes of this name were entered.
    pub occurrences: u64,
}

impl ProfileRow {
    /// Bytes handed out for each byte reserved from the device; infinite if none was reserved.
    pub fn reuse(&self) -> f64 {
        reuse(self.allocated, self.reserved)
    }
}

fn reuse(allocated: u64, reserved: u64) -> f64 {
    match (allocated, reserved) {
        (0, 0) => 1.0,
        (_, 0) => f64::INFINITY,
        _ => allocated as f64 / reserved as f64,
    }
}

/// An entered scope, to be passed to [`Profile::exit`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Scope(u64);

/// Shares by name, in the order in which the names were first entered.
///
/// ```
/// use millpond::{Allocator, Config, report::Profile, units::{GIB, MIB}};
/// use millpond_sim::Sim;
/// # fn main() -> Result<(), millpond::Error> {
/// let gpu = Allocator::new(Sim::new(GIB), Config::default())?;
/// let stream = gpu.stream()?;
/// let mut profile = Profile::new();
/// for step in 0..3 {
///     let scope = profile.enter(if step == 0 { "warm-up" } else { "step" }, gpu.usage());
///     drop(gpu.alloc(2 * MIB, &stream)?);
///     profile.exit(scope, gpu.usage());
/// }
/// let [warm_up, step] = profile.rows() else { panic!("{profile}") };
/// assert_eq!((warm_up.allocated, step.allocated), (2 * MIB, 4 * MIB));
/// assert!(warm_up.reserved > 0 && step.reserved == 0);      // the steps reuse what the first one reserved
/// # Ok(()) }
/// ```
#[derive(Clone, Default, Debug)]
pub struct Profile {
    rows: Vec<ProfileRow>,
    open: Vec<Open>,
    entered: u64,
}

#[derive(Clone, Debug)]
struct Open {
    scope: Scope,
    row: usize,
    start: Usage,
    /// The counters when this scope was last charged.
    charged: Usage,
}

impl Profile {
    /// A profile with no rows.
    pub fn new() -> Profile {
        Profile::default()
    }

    /// Enters a scope inside those that are open.
    pub fn enter(&mut self, name: &str, now: Usage) -> Scope {
        self.charge(now);
        let row = self.rows.iter().position(|r| r.name == name).unwrap_or_else(|| {
            let row = ProfileRow {
                name: name.to_owned(),
                allocated: 0,
                reserved: 0,
                allocated_within: 0,
                reserved_within: 0,
                occurrences: 0,
            };
            self.rows.push(row);
            self.rows.len() - 1
        });
        self.rows[row].occurrences += 1;
        let scope = Scope(self.entered);
        self.entered += 1;
        self.open.push(Open { scope, row, start: now, charged: now });
        scope
    }

    /// Leaves a scope. Scopes inside it that are still open end with it; leaving one that has ended does nothing, so that
    /// guards may be dropped in any order.
    pub fn exit(&mut self, scope: Scope, now: Usage) {
        let Some(depth) = self.open.iter().position(|o| o.scope == scope) else { return };
        self.charge(now);
        while self.open.len() > depth {
            let Some(ended) = self.open.pop() else { return };
            // Inside another scope of its name, that one will count these bytes.
            if self.open.iter().all(|o| o.row != ended.row) {
                let row = &mut self.rows[ended.row];
                row.allocated_within += now.allocated.saturating_sub(ended.start.allocated);
                row.reserved_within += now.reserved.saturating_sub(ended.start.reserved);
            }
        }
        // The time inside was charged to the ended scopes.
        if let Some(outer) = self.open.last_mut() {
            outer.charged = now;
        }
    }

    /// Runs `body` in a scope, with the counters that `usage` reads before and after it, even if it panics.
    ///
    /// ```
    /// use millpond::{Allocator, Config, report::Profile, units::{GIB, MIB}};
    /// use millpond_sim::Sim;
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let gpu = Allocator::new(Sim::new(GIB), Config::default())?;
    /// let stream = gpu.stream()?;
    /// let mut profile = Profile::new();
    /// profile.within("epoch", || gpu.usage(), |profile| {
    ///     for _ in 0..10 {
    ///         profile.within("layer", || gpu.usage(), |_| gpu.alloc(MIB, &stream).map(drop))?;
    ///     }
    ///     Ok::<(), millpond::Error>(())
    /// })?;
    /// assert_eq!((profile.rows()[1].allocated, profile.rows()[1].occurrences), (10 * MIB, 10));
    /// println!("{profile}");
    /// # Ok(()) }
    /// ```
    pub fn within<R>(
        &mut self,
        name: &str,
        usage: impl Fn() -> Usage,
        body: impl FnOnce(&mut Profile) -> R,
    ) -> R {
        let scope = self.enter(name, usage());
        let result = catch_unwind(AssertUnwindSafe(|| body(self)));
        self.exit(scope, usage());
        result.unwrap_or_else(|panic| resume_unwind(panic))
    }

    /// Charges the innermost open scope up to now.
    fn charge(&mut self, now: Usage) {
        if let Some(top) = self.open.last_mut() {
            let row = &mut self.rows[top.row];
            row.allocated += now.allocated.saturating_sub(top.charged.allocated);
            row.reserved += now.reserved.saturating_sub(top.charged.reserved);
            top.charged = now;
        }
    }

    /// The rows, in the order in which the names were first entered. Open scopes are charged up to the last enter or exit.
    pub fn rows(&self) -> &[ProfileRow] {
        &self.rows
    }

    /// The sum of all rows: what was handed out and reserved inside any scope.
    pub fn total(&self) -> Usage {
        let sum = |of: fn(&ProfileRow) -> u64| self.rows.iter().map(of).sum();
        Usage { allocated: sum(|r| r.allocated), reserved: sum(|r| r.reserved) }
    }

    /// Whether some scope had others inside it, so that its own use differs from what was allocated within it.
    fn is_nested(&self) -> bool {
        self.rows.iter().any(|r| (r.allocated, r.reserved) != (r.allocated_within, r.reserved_within))
    }

    /// A table with one line per name and one for the total. Allocated and reserved are each scope's own; if scopes were
    /// nested, two more columns have what was allocated and reserved from their beginning to their end, which the total counts
    /// once.
    pub fn render(&self, unit: Unit) -> String {
        let total = self.total();
        let column = |of: fn(&ProfileRow) -> u64, total: u64| {
            let all: Vec<u64> = self.rows.iter().map(of).chain([total]).collect();
            unit.column(&all)
        };
        let allocated = column(|r| r.allocated, total.allocated);
        let reserved = column(|r| r.reserved, total.reserved);
        let allocated_within = column(|r| r.allocated_within, total.allocated);
        let reserved_within = column(|r| r.reserved_within, total.reserved);
        let times: u64 = self.rows.iter().map(|r| r.occurrences).sum();
        let lines = self.rows.iter().map(|r| (r.name.as_str(), r.reuse(), r.occurrences));
        let lines = lines.chain([("total", reuse(total.allocated, total.reserved), times)]).enumerate();
        let heads =
            ["scope", "allocated", "reserved", "reuse", "occurrences", "allocated within", "reserved within"];
        let heads = if self.is_nested() { &heads[..] } else { &heads[..5] };
        let mut table = super::render::Table::new(heads);
        for (k, (name, reuse, times)) in lines {
            let cells = [
                name.to_owned(),
                allocated[k].clone(),
                reserved[k].clone(),
                factor(reuse),
                times.to_string(),
            ];
            let within = [allocated_within[k].clone(), reserved_within[k].clone()];
            table.row(cells.into_iter().chain(within).take(heads.len()).collect::<Vec<_>>());
        }
        table.to_string()
    }
}

#[cfg(feature = "serde")]
impl Profile {
    /// The profile as one JSON object on one line: `scopes` has every row's fields by name and its `reuse`, `total` their
    /// sum. A reuse that is infinite, because nothing was reserved, is null.
    pub fn to_json(&self) -> String {
        use serde_json::json;
        let row = |row: &ProfileRow| {
            let mut value = json!(row);
            value["reuse"] = json!(row.reuse());
            value
        };
        let total = self.total();
        let mut sum = json!(total);
        sum["reuse"] = json!(reuse(total.allocated, total.reserved));
        json!({ "scopes": self.rows.iter().map(row).collect::<Vec<_>>(), "total": sum }).to_string()
    }
}

fn factor(x: f64) -> String {
    if x.is_finite() { format!("{x:.1}x") } else { "all".into() }
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.render(Unit::Auto))
    }
}
