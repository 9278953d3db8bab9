//! Out of memory: the facts at that moment, and one sentence on what to do that follows from them.
//!
//! The sentence never advises what the request has tried, and distinguishes two states that look alike: memory that the program
//! holds, and memory that is free in ranges that are too short. It does not know how the facts were gathered.

use super::{DriverError, DriverErrorKind};
use crate::report::{GroupReport, PoolReport, Report, bytes};
use crate::units::StreamId;
use core::fmt;
use std::borrow::Cow;

/// How many names and streams are listed.
const LISTED: usize = 3;

/// Live allocations under one name.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(not(feature = "internals"), non_exhaustive)]
pub struct Holder {
    /// The name that [`Allocator::alloc_named`](crate::Allocator::alloc_named) gave them; `None` if they have none.
    pub name: Option<String>,
    /// How many there are.
    pub allocations: u64,
    /// Their bytes, rounded as the pools round them.
    pub bytes: u64,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let size = bytes(self.bytes);
        let plural = if self.allocations == 1 { "" } else { "s" };
        match &self.name {
            // A name with newlines or escapes must not break the line or the terminal.
            Some(name) => {
                let name: String = name.chars().filter(|c| !c.is_control()).collect();
                write!(f, "\"{name}\" {size} in {} allocation{plural}", self.allocations)
            }
            None => write!(f, "{size} in {} allocation{plural} without a name", self.allocations),
        }
    }
}

/// No memory: what was requested, what there is, who holds it, what was tried, and what to do.
///
/// ```
/// use millpond::{Allocator, Config, Error, Limit, units::MIB};
/// use millpond_sim::Sim;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let gpu = Allocator::new(Sim::new(1 << 30), Config::default().limit(Limit::Bytes(64 * MIB)))?;
/// let work = gpu.stream()?;
/// let weights = gpu.alloc(40 * MIB, &work)?;
/// let Err(Error::OutOfMemory(why)) = gpu.alloc(40 * MIB, &work) else { panic!("there is no room for both") };
/// assert_eq!((why.requested, why.report.limit), (40 * MIB, Some(64 * MIB)));
/// assert_eq!(why.report.total.allocated, 40 * MIB);
/// println!("{why}");                                        // who holds what, and one sentence of advice
/// # drop(weights);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub struct OutOfMemory {
    /// Requested bytes.
    pub requested: u64,
    /// Bytes after rounding.
    pub rounded: u64,
    /// Bytes of fresh memory that hold the request at any address: `rounded`, and what an alignment may skip at the front.
    pub needed: u64,
    /// For a request with an alignment: the streams with a free range that holds it at that alignment.
    pub aligned_on: Vec<StreamId>,
    /// The stream of the request; `None` for pinned host memory.
    pub stream: Option<StreamId>,
    /// The rungs of the miss ladder that were climbed, in order.
    pub tried: Vec<&'static str>,
    /// The driver's last refusal, if it was the driver that refused.
    pub driver: Option<DriverError>,
    /// Why free memory was passed over, if a capture by other code prevented its use, or a stream that is gone: the last such answer.
    pub passed_over: Option<DriverError>,
    /// The streams that such answers were about, and why: [`Capturing`](DriverErrorKind::Capturing), or that they are gone.
    pub passed_over_on: Vec<(StreamId, DriverErrorKind)>,
    /// Bytes in plain segments, and in physical handles of windows, that are wholly free and of which nothing is [held back](crate::report::PoolReport::held_back): an explicit
    /// [`trim`](crate::Allocator::trim) gives them back once the work queued on them is complete. Spare handles count.
    pub trim_would_free: u64,
    /// Bytes in segments and handles that will be wholly free once the uses of all that is in flight are over.
    pub idle_after_uses: u64,
    /// Whether free memory and memory in flight together hold the request then.
    pub serves_after_uses: bool,
    /// For pinned memory, which has two [kinds](crate::driver::HostKind): free bytes of the kind that was not requested.
    pub free_of_other_kind: u64,
    /// Bytes of [external memory](crate::DeviceArray::from_external) whose arrays were dropped, and whose owners are kept until the device
    /// no longer uses it. Ranges of two arrays count twice.
    pub kept: u64,
    /// Whether pools keep what they reserved while their streams live ([`Reuse::Never`](crate::Reuse::Never)).
    pub streams_keep: bool,
    /// Live allocations by name, the most bytes first; at most eight names.
    pub holders: Vec<Holder>,
    /// The limit of pinned host memory, if one is set. That of device memory is in the report.
    pub pinned_limit: Option<u64>,
    /// What that limit is a share of, in words, if it is no number of bytes that the program set.
    pub pinned_share: Option<String>,
    /// What the allocator held at that moment, as from [`Allocator::report`](crate::Allocator::report): also if the request
    /// was for pinned host memory, which its `pinned` describes.
    pub report: Report,
}

/// What was reserved of the requested kind of memory.
struct Figures<'a> {
    limit: Option<u64>,
    reserved: u64,
    /// Over all its pools.
    total: Cow<'a, PoolReport>,
}

impl OutOfMemory {
    fn figures(&self) -> Figures<'_> {
        let r = &self.report;
        if self.stream.is_some() {
            return Figures { limit: r.limit, reserved: r.reserved, total: Cow::Borrowed(&r.total) };
        }
        // Before the first pinned allocation there is no report of pinned memory, and all is 0.
        let pinned = r.pinned.as_ref().map_or_else(Cow::default, Cow::Borrowed);
        Figures { limit: self.pinned_limit, reserved: pinned.reserved, total: pinned }
    }

    /// One sentence on what to do, from the facts. It never advises what was [tried](OutOfMemory::tried).
    pub fn advice(&self) -> String {
        self.never_fits()
            .or_else(|| self.held_back())
            .or_else(|| self.a_run_passed_over())
            .or_else(|| self.idle_segments())
            .or_else(|| self.a_run_elsewhere())
            .or_else(|| self.wait_for_uses())
            .or_else(|| self.of_other_kind())
            .or_else(|| self.never_fits_aligned())
            .or_else(|| self.a_run_unaligned())
            .or_else(|| self.kept_for_owners())
            .or_else(|| self.fragmented())
            .unwrap_or_else(|| self.held())
    }

    /// The group of the request's allocator, if more of its kind of memory counts there than the own limit leaves: the bytes that may be reserved here.
    fn group_max(&self) -> Option<(&GroupReport, u64)> {
        let Figures { limit, reserved, .. } = self.figures();
        let group = self.report.group.as_ref().filter(|_| self.stream.is_some())?;
        let max = reserved.saturating_add(group.hard?.saturating_sub(group.reserved));
        limit.is_none_or(|limit| max < limit).then_some((group, max))
    }

    /// The bytes that may be reserved here, by the own limit and the group's.
    fn max(&self) -> Option<u64> {
        self.group_max().map(|(_, max)| max).or(self.figures().limit)
    }

    fn has_tried(&self, rung: &str) -> bool {
        self.tried.contains(&rung)
    }

    fn never_fits(&self) -> Option<String> {
        let r = &self.report;
        if let Some(limit) = self.figures().limit.filter(|&l| self.rounded > l) {
            return Some(format!(
                "The request alone is above the limit of {}{}: raise the limit ({}) or ask for less.",
                bytes(limit),
                self.limit_source(),
                self.limit_knob()
            ));
        }
        let hard = self.group_max().and_then(|(group, _)| group.hard);
        if let Some(hard) = hard.filter(|&hard| self.rounded > hard) {
            return Some(format!(
                "The request alone is above the group's limit of {}: ask for less, or make a group with more.",
                bytes(hard)
            ));
        }
        let of_device = self.stream.is_some() && r.capacity > 0 && self.rounded > r.capacity;
        of_device.then(|| {
            format!("The request alone is above the device's memory of {}: ask for less.", bytes(r.capacity))
        })
    }

    /// Only a range that happens to begin at an aligned address could hold it.
    fn never_fits_aligned(&self) -> Option<String> {
        let r = &self.report;
        let (max, what, more) = match self.figures().limit {
            Some(limit) if self.needed > limit => {
                (limit, "limit", format!(" or raise the limit ({})", self.limit_knob()))
            }
            _ if self.stream.is_some() && r.capacity > 0 && self.needed > r.capacity => {
                (r.capacity, "device's memory", String::new())
            }
            _ => return None,
        };
        Some(format!(
            "No free range holds the request at its alignment, and fresh memory that does wherever it begins is {}, above the {what} of {}: ask for a smaller alignment{more}.",
            bytes(self.needed),
            bytes(max)
        ))
    }

    /// Where the limit comes from, if the program did not say it as a number.
    fn limit_source(&self) -> String {
        let share = self.pinned_share.as_ref().filter(|_| self.stream.is_none());
        share.map_or_else(String::new, |share| format!(" ({share})"))
    }

    fn limit_knob(&self) -> &'static str {
        match self.stream {
            Some(_) => "set_limit, MILLPOND_LIMIT",
            None => "pinned_limit, MILLPOND_PINNED_LIMIT",
        }
    }

    /// Whether the request would fit if this many more bytes could be reserved; as far as can be known.
    fn fits_with(&self, more: u64) -> bool {
        let reserved = self.figures().reserved;
        let limit = self.max().unwrap_or(u64::MAX);
        let within = reserved.saturating_sub(more).saturating_add(self.needed) <= limit;
        within && (self.driver.is_none() || more >= self.needed)
    }

    fn idle_segments(&self) -> Option<String> {
        let useful = self.trim_would_free > 0 && self.fits_with(self.trim_would_free);
        (useful && !self.has_tried("trim")).then(|| {
            format!(
                "{} lie in segments or handles that are wholly free: trim() gives them back once the work queued on them is complete (it may wait for the device), and then the request fits.",
                bytes(self.trim_would_free)
            )
        })
    }

    /// Freed memory that is held back: when its uses end is unknown.
    fn held_back(&self) -> Option<String> {
        let held = self.figures().total.held_back;
        // In the pools as they are, or after a trim.
        let useful = held >= self.rounded || held > 0 && self.fits_with(held + self.trim_would_free);
        let of_the_host = || {
            format!(
                "{} are held back: used on streams that only calls which name them can mark, or freed with unknown users; say until when they were used (record_use_until), declare streams that last, or synchronise while no graph is being captured: they serve then.",
                bytes(held)
            )
        };
        useful.then(|| self.stream.map_or_else(of_the_host, |_| {
            format!(
                "{} are held back: freed on streams that only calls which name them can mark, or with unknown users; name the streams at the free (free_on), declare streams that last, or synchronise while no graph is being captured, and trim then.",
                bytes(held)
            )
        }))
    }

    /// Whether a free range of this pool is long enough, with an address at which the alignment leaves enough of it.
    fn holds(&self, pool: &PoolReport) -> bool {
        pool.largest_free >= self.needed
            || pool.largest_free >= self.rounded && pool.stream.is_some_and(|s| self.aligned_on.contains(&s))
    }

    /// A range that would fit could not be used because of streams that cannot be waited for: a wait would end the capture.
    fn a_run_passed_over(&self) -> Option<String> {
        let run = self
            .report
            .pools
            .iter()
            .filter(|_| self.stream.is_some())
            .find(|p| self.holds(p) && self.passed_over_on.iter().any(|&(on, _)| p.stream == Some(on)));
        let what = match run {
            Some(pool) => format!("A run of {} is free on {}", bytes(pool.largest_free), pool.place()),
            None if self.serves_after_uses || self.makes_room_after_uses() => self.freed_under_others(),
            None => return None,
        };
        let on = |captures: bool| -> Vec<String> {
            let all = self
                .passed_over_on
                .iter()
                .filter(|(_, why)| (*why == DriverErrorKind::Capturing) == captures);
            all.filter(|(on, _)| run.is_none_or(|pool| pool.stream == Some(*on)))
                .map(|(on, _)| on.to_string())
                .collect()
        };
        let (captured, gone) = (on(true).join(" and on "), on(false).join(" and "));
        let not_captured = (!gone.is_empty()).then(|| {
            format!("{what}, and {gone} cannot be waited for any more: synchronise the allocator while no graph is being captured, and retry.")
        });
        let captured = (!captured.is_empty()).then(|| {
            format!("{what}, and a graph is being captured there: end the capture on {captured}, and retry.")
        });
        captured.or(not_captured)
    }

    /// A free range would fit and could not be used.
    fn a_run_elsewhere(&self) -> Option<String> {
        let pool = self.stream.and(self.report.pools.iter().find(|p| self.holds(p)))?;
        let run = bytes(pool.largest_free);
        Some(if pool.stream == self.stream {
            format!(
                "A run of {run} is free on {} but does not serve this request: exact_fit stands in the way, or it was freed just now; ask again, or without exact_fit.",
                pool.place()
            )
        } else if pool.closed {
            format!(
                "A run of {run} is free on {}, which is gone and whose work on it is not over: ask later, raise bounded_wait, or synchronise the allocator.",
                pool.place()
            )
        } else if self.has_tried("migrate") && !self.streams_keep {
            format!(
                "A run of {run} is free on {}, whose work on it is not over: wait for that stream, for longer than bounded_wait, or allocate there.",
                pool.place()
            )
        } else {
            format!(
                "A run of {run} is free on {}, and Reuse::Never keeps it there: allocate there, or let streams reuse each other's memory.",
                pool.place()
            )
        })
    }

    /// A free range is long enough, and begins at an unaligned address.
    fn a_run_unaligned(&self) -> Option<String> {
        let stream = self.stream?;
        // Of pools that could serve it at another place in the range.
        let serves = |p: &PoolReport| !self.streams_keep || p.stream == Some(stream) || p.closed;
        let pool = self.report.pools.iter().find(|p| serves(p) && p.largest_free >= self.rounded)?;
        Some(format!(
            "A run of {} is free on {} but does not hold this request at its alignment, for which a run may have to be {} long: ask for a smaller alignment, or allocate it earlier.",
            bytes(pool.largest_free),
            pool.place(),
            bytes(self.needed)
        ))
    }

    fn freed_under_others(&self) -> String {
        format!("{} were freed while other streams still used them", bytes(self.figures().total.in_flight))
    }

    /// Whether memory in flight makes room in a trim, when its uses are over.
    fn makes_room_after_uses(&self) -> bool {
        self.idle_after_uses > self.trim_would_free && self.fits_with(self.idle_after_uses)
    }

    fn wait_for_uses(&self) -> Option<String> {
        let waited = if self.has_tried("wait") { ", also when the bounded wait ended" } else { "" };
        let then = if self.serves_after_uses {
            " (synchronise them) before asking, or raise bounded_wait"
        } else if !self.makes_room_after_uses() {
            return None;
        } else if self.has_tried("trim") {
            ", and the streams that they were allocated on (synchronise them), before asking"
        } else {
            ", and the streams that they were allocated on (synchronise them), and trim() then"
        };
        Some(format!("{}{waited}: let those streams end their work{then}.", self.freed_under_others()))
    }

    /// Cached and write-combined memory share no segment.
    fn of_other_kind(&self) -> Option<String> {
        let free = self.free_of_other_kind;
        (free > 0 && self.fits_with(free)).then(|| {
            format!(
                "{} are free in pinned memory of the other kind (cached, write-combined), which does not serve this one: free what is alive in the same segments, and trim() gives them back.",
                bytes(free)
            )
        })
    }

    /// The device has no more memory, and an owner whose memory is still in use may give some back.
    fn kept_for_owners(&self) -> Option<String> {
        let r = &self.report;
        let within = r.limit.is_none_or(|limit| r.reserved.saturating_add(self.needed) <= limit);
        (self.stream.is_some() && self.driver.is_some() && within && self.kept > 0).then(|| {
            format!(
                "{} of external memory are kept for their owners, because work on them is not known to be over: let the streams that use them end it (synchronise them) before asking.",
                bytes(self.kept)
            )
        })
    }

    /// Memory is free and no range is long enough. If only a small part of the reserved memory is free, the advice is about the allocated
    /// memory, and not about fragmentation.
    fn fragmented(&self) -> Option<String> {
        let Figures { reserved, total: t, .. } = self.figures();
        let room = match (self.max(), &self.driver) {
            (Some(limit), None) => limit.saturating_sub(reserved),
            _ => 0,
        };
        let cached = t.cached.saturating_sub(self.free_of_other_kind);
        let is_there = cached.saturating_add(room) >= self.rounded && t.largest_free < self.rounded;
        (is_there && cached > 0 && cached >= t.allocated / 4).then(|| {
            let left = if room > 0 { format!(", and {} are left under the limit", bytes(room)) } else { String::new() };
            format!(
                "{} are free in ranges of at most {}{left}: fragmented by what is live between them{}; free some of that, or allocate the large blocks first.",
                bytes(cached),
                bytes(t.largest_free),
                self.largest_part()
            )
        })
    }

    /// The largest holder, as a clause.
    fn largest_part(&self) -> String {
        let pool = self.report.pools.iter().max_by_key(|p| p.allocated).filter(|p| p.allocated > 0);
        match (self.holders.first(), pool, self.stream) {
            (None, _, _) => String::new(),
            // Without a name the stream is more informative.
            (Some(Holder { name: None, .. }), Some(pool), Some(_)) => format!(
                ", the largest part {} on {} (alloc_named gives allocations a name)",
                bytes(pool.allocated),
                pool.place()
            ),
            (Some(holder), _, _) => format!(", the largest part {holder}"),
        }
    }

    fn held(&self) -> String {
        let Figures { limit, reserved, total } = self.figures();
        let capacity = self.report.capacity;
        let live = bytes(total.allocated);
        let largest = self.largest_part();
        if let Some((group, max)) = self.group_max()
            && reserved.saturating_add(self.needed) > max
        {
            return format!(
                "{} of the group's limit of {} are reserved, {live} of them live here{largest}: free something, here or in another member.",
                bytes(group.reserved),
                bytes(group.hard.unwrap_or(u64::MAX))
            );
        }
        if let Some(limit) = limit.filter(|&limit| reserved.saturating_add(self.needed) > limit) {
            let raise = format!("raise the limit ({})", self.limit_knob());
            return if self.holders.is_empty() {
                format!(
                    "{} of the limit of {}{} are reserved: {raise}.",
                    bytes(reserved),
                    bytes(limit),
                    self.limit_source()
                )
            } else {
                format!(
                    "{live} of the limit of {}{} are live{largest}: free something, or {raise}.",
                    bytes(limit),
                    self.limit_source()
                )
            };
        }
        let elsewhere = self.driver.is_some() && reserved.saturating_add(self.needed) <= capacity;
        let others = if elsewhere && self.stream.is_some() {
            format!(
                "The device has no more though only {} of its {} are reserved here: something else uses it. ",
                bytes(reserved),
                bytes(capacity)
            )
        } else {
            String::new()
        };
        if self.holders.is_empty() {
            format!("{others}Nothing is live here: ask for less, or end what else uses the memory.")
        } else {
            format!("{others}{live} are live{largest}: free something, or use a smaller batch.")
        }
    }

    fn write_holders(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<String> = self.holders.iter().take(LISTED).map(ToString::to_string).collect();
        if names.is_empty() {
            return Ok(());
        }
        write!(f, "; allocated: {}", names.join(", "))?;
        if self.stream.is_some() {
            let mut pools: Vec<&PoolReport> = self.report.pools.iter().filter(|p| p.allocated > 0).collect();
            pools.sort_by_key(|p| core::cmp::Reverse(p.allocated));
            let streams: Vec<String> =
                pools.iter().take(LISTED).map(|p| format!("{} {}", p.place(), bytes(p.allocated))).collect();
            write!(f, "; by stream: {}", streams.join(", "))?;
        }
        Ok(())
    }
}

impl fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Figures { limit, reserved, total: t } = self.figures();
        write!(f, "out of memory: requested {} ({} rounded)", bytes(self.requested), bytes(self.rounded))?;
        match self.stream {
            Some(s) => {
                let pool = self.report.pools.iter().find(|p| p.stream == self.stream);
                let place = pool.map_or_else(|| s.to_string(), PoolReport::place);
                write!(f, " on {place} of {}", self.report.device)?;
            }
            None => write!(f, " of pinned host memory")?,
        }
        write!(
            f,
            "; reserved {}, allocated {}, cached {}, largest free {}, in flight {}, limit {}",
            bytes(reserved),
            bytes(t.allocated),
            bytes(t.cached),
            bytes(t.largest_free),
            bytes(t.in_flight),
            limit.map_or("none".into(), bytes)
        )?;
        if let Some(group) = self.report.group.as_ref().filter(|_| self.stream.is_some()) {
            write!(f, "; group: {group}")?;
        }
        if self.kept > 0 {
            write!(f, ", external memory kept for its owners {}", bytes(self.kept))?;
        }
        if self.trim_would_free > 0 && !self.has_tried("trim") {
            write!(f, ", a trim would free {}", bytes(self.trim_would_free))?;
        }
        self.write_holders(f)?;
        if !self.tried.is_empty() {
            write!(f, "; tried {}", self.tried.join(", "))?;
        }
        if let Some(d) = &self.driver {
            write!(f, "; {d}")?;
        }
        if let Some(why) = &self.passed_over {
            write!(f, "; free memory was passed over: {why}")?;
        }
        write!(f, ". {}", self.advice())
    }
}
