//! What a caller can see of an allocator, and which of it a failed call may have changed, as the header says in words.

use super::World;
use crate::driver;
use crate::model::{Stats, last};
use crate::program::{Fault, parts};
use millpond_plug::ffi;
use millpond_plug::status::MillpondStatus as Status;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// How a figure may differ after a call that failed.
#[derive(Clone, Copy, PartialEq)]
enum May {
    /// It may be less, because completed work was noticed. In a call that takes free memory or gives it back it may differ in any way.
    Fall,
    /// It may be more; in a call that takes free memory or gives it back it may differ in any way.
    Rise,
    /// It may be less; it may be more only in some of these calls, or if a capture took a marker.
    Hold,
    /// It may differ in such a call, and in no other.
    Move,
    /// It may be more in an allocation that is scrubbed: the block was allocated, and freed again because its fill failed.
    Scrub,
    /// It may differ in any way.
    Any,
}
use May::{Any, Fall, Hold, Move, Rise, Scrub};

/// The fields of the JSON report that may differ, each with the reason. All others must be equal, fields that are added later included. `*` is any name
/// or stream.
const EXCEPTIONS: &[(&str, May, &str)] = &[
    ("/driver_calls/*", Any, "the call made some"),
    ("/deferred_errors", Any, "the next report has the errors of destructors"),
    ("/ladder/*/tried", Move, "the request was refused after these rungs"),
    ("/ladder/*/served", Move, "what a rung found was given back when the rest failed"),
    ("/allocated_peak", Scrub, "the block was allocated"),
    ("/allocated_peak_at_most", Scrub, "the block was allocated"),
    ("/reserved", Move, "segments came or went"),
    ("/reserved_peak", Move, "segments came"),
    ("/segments", Move, "segments came or went"),
    ("/growths", Move, "segments came"),
    ("/releases", Move, "segments went"),
    ("/segments_created", Move, "segments came"),
    ("/segments_released", Move, "segments went"),
    ("/sparse", Move, "segments came or went"),
    ("/sparse_bytes", Move, "segments came or went"),
    ("/sparse_live", Move, "segments came or went"),
    ("/pinned_host/segments", Move, "segments came or went"),
    ("/pinned_host/segments_created", Move, "segments came"),
    ("/pinned_host/segments_released", Move, "segments went"),
    ("/pinned_host/growth_time/*", Move, "the request tried to grow"),
    ("/largest_request", Rise, "what was in flight came back"),
    ("/slack", Any, "the difference of two figures of this list"),
    ("/slack_at_peak", Any, "the difference of two figures of this list"),
    ("/allocated_over_reserved", Any, "the ratio of two figures of this list"),
    ("/allocated_over_reserved_at_peak", Any, "the ratio of two figures of this list"),
    ("/reserved_over_allocated", Any, "the ratio of two figures of this list"),
    ("/reserved_over_allocated_at_least", Any, "the ratio of two figures of this list"),
    ("/reserved_over_allocated_at_most", Any, "the ratio of two figures of this list"),
];

/// The same for each pool, for their total and for pinned memory.
const OF_POOLS: &[(&str, May, &str)] = &[
    ("/reserved", Move, "segments came or went, or migrated"),
    ("/reserved_peak", Move, "segments came"),
    ("/cached", Rise, "what was in flight came back"),
    ("/free_chunks", Any, "what came back is one, or merged with its neighbours"),
    ("/largest_free", Rise, "what came back may be the largest"),
    ("/fragmentation", Any, "the ratio of two figures of this list"),
    ("/in_flight", Fall, "completed work was noticed"),
    ("/in_flight_ranges", Fall, "completed work was noticed"),
    ("/oldest_in_flight", Any, "the stream was marked, or the range came back"),
    ("/held_back", Hold, "its streams were named"),
    ("/allocated_peak", Scrub, "the block was allocated"),
    ("/counters/allocations", Scrub, "the block was allocated"),
    ("/counters/frees", Scrub, "the block was allocated, and is freed"),
    ("/counters/bytes_served", Scrub, "the block was allocated"),
    ("/sizes/counts", Scrub, "the block was allocated"),
    ("/counters/hits", Scrub, "the block was allocated"),
    ("/counters/misses", Move, "the request was refused after the rungs"),
    ("/counters/migrations_in", Move, "memory migrated, and the rest failed"),
    ("/counters/migrations_out", Move, "memory migrated, and the rest failed"),
    ("/counters/waits_inserted", Move, "a stream waits for another's memory, and the rest failed"),
    ("/counters/host_waits", Move, "the host waited, and the rest failed"),
    ("/counters/splits", Move, "memory was cut for the request, and the rest failed"),
    ("/counters/merges", Any, "what came back merged with its neighbours"),
    ("/hit_rate", Any, "the ratio of two figures of this list"),
    ("/closed", Any, "a stream was found to have ended"),
];

/// How the figure at a path may differ; `None`: it may not.
fn may(path: &str) -> Option<May> {
    let of = |list: &[(&str, May, &str)], path: &str| list.iter().find(|e| is_like(e.0, path)).map(|e| e.1);
    let pools = ["/total", "/pinned"].into_iter().find_map(|pool| path.strip_prefix(pool));
    let pool = path.strip_prefix("/pools/").and_then(|rest| rest.find('/').map(|at| &rest[at..]));
    match pools.or(pool).filter(|rest| rest.starts_with('/')) {
        Some(rest) => of(OF_POOLS, rest),
        None => of(EXCEPTIONS, path),
    }
}

/// Whether a path matches a pattern.
fn is_like(pattern: &str, path: &str) -> bool {
    let (mut a, mut b) = (pattern.split('/'), path.split('/'));
    loop {
        match (a.next(), b.next()) {
            (None, None) => return true,
            (Some(a), Some(b)) if a == "*" || a == b => {}
            _ => return false,
        }
    }
}

/// Every figure of a report by its path: a list of plain values counts as one figure, and pools are named by their streams.
fn figures(report: &Value) -> BTreeMap<String, Value> {
    fn walk(at: &str, value: &Value, into: &mut BTreeMap<String, Value>) {
        match value {
            Value::Object(fields) => {
                fields.iter().for_each(|(name, value)| walk(&format!("{at}/{name}"), value, into));
            }
            Value::Array(list) if list.iter().any(Value::is_object) => {
                let mut times = BTreeMap::<String, u32>::new();
                for value in list {
                    let stream = value["stream"].to_string();
                    let nth = times.entry(stream.clone()).or_default();
                    *nth += 1;
                    walk(&format!("{at}/{stream}.{nth}"), value, into);
                }
            }
            plain => drop(into.insert(at.to_owned(), plain.clone())),
        }
    }
    let mut into = BTreeMap::new();
    walk("", report, &mut into);
    into
}

/// Whether a path is one of these fields of a stream's pool.
fn is_of_pools(path: &str, fields: &[&str]) -> bool {
    fields.iter().any(|field| is_like(&format!("/pools/*/{field}"), path))
}

/// Whether a value is empty or zero, which equals a missing field.
fn is_nothing(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(b) => !b,
        Value::Number(n) => n.as_f64() == Some(0.0),
        Value::Array(list) => list.iter().all(is_nothing),
        Value::String(_) | Value::Object(_) => false,
    }
}

/// What a call does, as far as the exceptions depend on it.
#[derive(Clone, Copy)]
struct Does {
    moves: bool,
    holds: bool,
    allocates: bool,
}

/// What differs between two reports and may not.
fn differ(was: &Value, is: &Value, does: Does) -> Vec<String> {
    let (before, now) = (figures(was), figures(is));
    let paths: BTreeSet<&String> = before.keys().chain(now.keys()).collect();
    let pool_of =
        |path: &str| path.strip_prefix("/pools/").and_then(|rest| rest.split('/').next()).map(str::to_owned);
    let there = |of: &BTreeMap<String, Value>, pool: &str| of.contains_key(&format!("/pools/{pool}/live"));
    let differs = |path: &&String| {
        let (was, is) = (before.get(*path), now.get(*path));
        let number = |value: Option<&Value>| value.and_then(Value::as_f64).unwrap_or(0.0);
        let sum = |value: Option<&Value>| match value {
            Some(Value::Array(list)) => list.iter().map(|n| number(Some(n))).sum(),
            one => number(one),
        };
        let lawful = match (was, is, may(path)) {
            _ if was == is => true,
            // There was no pinned memory yet, or no such stream, and all its figures are zero.
            (None, Some(is), _) if is_nothing(is) => true,
            (Some(was), None, _) if is_nothing(was) => true,
            // A pool that was empty when its stream was found to have ended. The total shows that no live memory went with it.
            (Some(_), None, _) if pool_of(path).is_some_and(|pool| !there(&now, &pool)) => true,
            // The name of a stream that the allocator did not know before.
            (None, Some(_), _) if is_of_pools(path, &["stream", "name"]) => true,
            (_, _, None) => false,
            (_, _, Some(Any)) => true,
            (_, _, Some(Fall)) => does.moves || number(is) < number(was),
            (_, _, Some(Rise)) => does.moves || number(is) > number(was),
            (_, _, Some(Hold)) => does.holds || number(is) < number(was),
            (_, _, Some(Move)) => does.moves,
            (_, _, Some(Scrub)) => does.allocates && sum(is) > sum(was),
        };
        (!lawful).then(|| format!("{path}: {was:?} became {is:?}"))
    };
    paths.iter().filter_map(differs).collect()
}

/// Lines of the text report that have counters, not current figures.
const COUNTED: [&str; 3] = ["miss ladder", "driver", "error"];

/// The state of one allocator: its reports as JSON and as text. Most calls do not fail, so the JSON is parsed only after one that failed.
pub(super) struct Seen {
    number: u32,
    scrubs: bool,
    figures: Stats,
    words: String,
}

impl Seen {
    /// `None` for an ended allocator whose report is not kept any more.
    fn of(number: u32, scrubs: bool) -> Option<Seen> {
        let figures = Stats::of_ended(number)?;
        let (mut text, mut needed) = (vec![0_u8; 1 << 14], 0);
        let status = ffi::millpond_report(number, text.as_mut_ptr().cast(), text.len(), &raw mut needed);
        assert!(status == Status::Ok && needed <= text.len(), "{status:?}, {needed} bytes");
        Some(Seen { number, scrubs, figures, words: driver::words(text.as_ptr().cast()) })
    }

    /// The figures, how many pools there are, and the text without counters.
    fn read(&self) -> (Value, usize, String) {
        let figures: Value = serde_json::from_str(&self.figures.to_string()).expect("JSON");
        let pools = figures["pools"].as_array().map_or(0, Vec::len);
        let words = self.words.lines().filter(|line| !COUNTED.iter().any(|what| line.starts_with(what)));
        (figures, pools, words.collect::<Vec<_>>().join("\n"))
    }

    /// What differs now and may not.
    fn differs(&self, does: Does, meets: usize) -> Vec<String> {
        // A create has dropped it; the model checks elsewhere that nothing of it was alive.
        let Some(now) = Seen::of(self.number, self.scrubs) else { return Vec::new() };
        let ((figures, pools, words), now) = (self.read(), now.read());
        let does = Does { allocates: does.allocates && self.scrubs, ..does };
        let mut differs = differ(&figures, &now.0, does);
        if now.1 > pools + meets {
            differs.push(format!("{pools} streams became {}", now.1));
        }
        // If all figures are equal, the text must be.
        let same = |path: &str| figures.pointer(path) == now.0.pointer(path);
        if ["/total", "/pools", "/pinned", "/reserved", "/releases", "/growths"].iter().all(|p| same(p))
            && words != now.2
        {
            differs.push(format!("{words}\nbecame\n{}", now.2));
        }
        differs
    }
}

impl World {
    /// The state of all allocators. Empty if other threads change them meanwhile, and in a soak, which counts by itself.
    pub(super) fn seen(&self) -> Vec<Seen> {
        // Also empty if a free is put off, which may be carried out by a call that fails for another reason.
        if self.concurrent.is_some() || self.steady || !self.later.is_empty() {
            return Vec::new();
        }
        self.doors.iter().filter_map(|door| Seen::of(door.number, door.scrubs)).collect()
    }

    /// After a call that failed: all that a caller can see must be unchanged, except for what the header says.
    pub(super) fn is_as_it_was(seen: &[Seen], words: &str, fault: Fault, elsewhere: usize) {
        let message = last();
        let name = words.split_once('(').map_or(words, |(name, _)| name);
        let is_of = |calls: &[&str]| calls.iter().any(|what| name.ends_with(what));
        // A marker that a capture took does not count any more, and the memory that it covered is held back.
        let taken = [parts(fault).1, driver::answer()].iter().any(|code| CAPTURED_EVENT.contains(code));
        let does =
            Does { moves: is_of(&MOVING), holds: is_of(&HOLDING) || taken, allocates: is_of(&["_alloc"]) };
        // Streams as the program names them.
        let streams = words.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| {
            let made = word.strip_prefix('s').is_some_and(|n| n.parse::<u32>().is_ok());
            made || matches!(*word, "NULL" | "cudaStreamPerThread")
        });
        // A free looks up the streams of other devices that use the block.
        let frees = if name.contains("_free") { elsewhere } else { 0 };
        let meets = streams.count() + frees;
        for before in seen {
            let differs = before.differs(does, meets);
            assert!(
                differs.is_empty(),
                "{words} failed ({message}), and a{} has changed: {}",
                before.number,
                differs.join("\n")
            );
        }
    }
}

/// The codes for an event whose record a capture took: while the capture goes on, and after it has ended.
const CAPTURED_EVENT: [u32; 2] = [907, 1];
/// Calls that may take memory from the device, or give idle memory back, before they fail.
const MOVING: [&str; 9] = [
    "_alloc",
    "_alloc_pinned",
    "_create",
    "_trim",
    "_limit",
    "_fraction",
    "_synchronize",
    "_destroy",
    "_cache",
];
/// Those of them after which memory may be held back: they migrate memory, or take memory in flight back to a stream that was not marked since, as a
/// create does for ended allocators.
const HOLDING: [&str; 6] = ["_alloc", "_create", "_trim", "_limit", "_fraction", "_cache"];

#[cfg(test)]
mod tests {
    use super::{Does, EXCEPTIONS, OF_POOLS, differ, figures, is_like, may};
    use pond::report::{PinnedReport, PoolReport, Report};
    use serde_json::{Value, json};

    const NOTHING: Does = Does { moves: false, holds: false, allocates: false };
    const ALL: Does = Does { moves: true, holds: true, allocates: true };

    fn report() -> Value {
        let mut report = Report::default();
        report.pools.push(PoolReport::default());
        report.pinned = Some(PoolReport::default());
        report.pinned_host = Some(PinnedReport::default());
        report.driver_calls.insert("some".into(), 1);
        report.to_value()
    }

    /// A changed field is accepted only if it is in a list of exceptions; a new field is not accepted.
    #[test]
    fn every_field_of_the_report_is_compared_that_is_not_excepted() {
        let report = report();
        let mut compared = 0;
        for path in figures(&report).keys() {
            let pointer = path.replacen("/null.1/", "/0/", 1);
            let mut other = report.clone();
            *other.pointer_mut(&pointer).expect("a field") = json!("something else");
            let differs = !differ(&report, &other, ALL).is_empty();
            let excepted = may(path).is_some();
            compared += u32::from(!excepted);
            // A pool of another stream is another pool.
            assert!(differs || excepted || path.ends_with("/stream"), "{path} is not compared");
        }
        assert!(compared > 20, "{compared}");
        for at in ["", "/total", "/total/counters", "/pools/0", "/pinned", "/pinned/counters"] {
            let mut other = report.clone();
            let Some(Value::Object(fields)) = other.pointer_mut(at) else { panic!("{at} has no fields") };
            fields.insert("a_new_field".to_owned(), json!(7));
            assert_eq!(differ(&report, &other, ALL).len(), 1, "{at}");
        }
    }

    #[test]
    fn what_is_excepted_is_a_field_of_the_report() {
        let figures = figures(&report());
        for (pattern, _, why) in EXCEPTIONS {
            assert!(
                figures.keys().any(|path| is_like(pattern, path)),
                "{pattern}, {why}: there is no such field"
            );
        }
        for (pattern, _, why) in OF_POOLS {
            let whole =
                [format!("/total{pattern}"), format!("/pools/*{pattern}"), format!("/pinned{pattern}")];
            let is_there = |whole: &String| figures.keys().any(|path| is_like(whole, path));
            assert!(whole.iter().all(is_there), "{pattern}, {why}: there is no such field");
        }
    }

    #[test]
    fn what_is_excepted_is_excepted_where_its_reason_holds() {
        let (was, mut is) = (report(), report());
        is["total"]["in_flight"] = json!(512);
        assert_eq!(differ(&was, &is, NOTHING).len(), 1, "more is in flight");
        assert_eq!(differ(&is, &was, NOTHING).len(), 0, "completed work was noticed");
        is = report();
        is["reserved"] = json!(512);
        assert_eq!([NOTHING, ALL].map(|does| differ(&was, &is, does).len()), [1, 0]);
        is = report();
        is["total"]["counters"]["hits"] = json!(1);
        let scrubs = Does { allocates: true, ..NOTHING };
        assert_eq!([NOTHING, scrubs].map(|does| differ(&was, &is, does).len()), [1, 0]);
    }
}
