//! What a caller can see of an allocator, and what of it a call that failed may have changed: the header says the same in words.

use super::World;
use crate::driver;
use crate::model::{Stats, last};
use crate::program::{Fault, parts};
use millpond_plug::ffi;
use millpond_plug::status::MillpondStatus as Status;
use serde_json::Value;

/// How a figure may differ behind a call that failed.
#[derive(Clone, Copy, PartialEq)]
enum May {
    /// It is what it was.
    Not,
    /// It is less: completed work was noticed. In a call that takes free memory or gives it back it differs.
    Fall,
    /// The same, and it is more in few of these calls only, or where a capture took a mark.
    Hold,
    /// It differs in such a call, and in no other.
    Move,
    /// It is more in an allocation that is scrubbed: the block was had, and is freed again because its fill failed.
    Scrub,
}
use May::{Fall, Hold, Move, Not, Scrub};

/// Of the report as JSON, by paths. What is not here is counted or derived: calls of the driver, rungs that were tried, errors of destructors.
const FIGURES: &[(&str, May)] = &[
    ("/device", Not),
    ("/capacity", Not),
    ("/limit", Not),
    ("/policy", Not),
    ("/moving", Not),
    ("/allocated_peak", Scrub),
    ("/allocated_peak_at_most", Scrub),
    ("/events_lost", Not),
    ("/total/live", Not),
    ("/total/asked", Not),
    ("/total/allocated", Not),
    ("/total/counters/allocations", Scrub),
    ("/total/counters/frees", Scrub),
    ("/total/counters/bytes_served", Scrub),
    ("/total/counters/in_flight_frees", Not),
    ("/total/in_flight", Fall),
    ("/total/in_flight_ranges", Fall),
    ("/total/held_back", Hold),
    ("/total/held", Move),
    ("/taken", Move),
    ("/taken_peak", Move),
    ("/segments", Move),
    ("/growths", Move),
    ("/releases", Move),
    ("/pinned/live", Not),
    ("/pinned/asked", Not),
    ("/pinned/allocated", Not),
    ("/pinned/allocated_peak", Not),
    ("/pinned/counters/allocations", Not),
    ("/pinned/counters/frees", Not),
    ("/pinned/in_flight", Fall),
    ("/pinned/held_back", Hold),
    ("/pinned/held", Move),
];

/// Lines of the report for people that say what is counted, and not what there is.
const COUNTED: [&str; 3] = ["miss ladder", "driver", "error"];

/// One allocator, as it was: its report as JSON and for people. Most calls do not fail, so the text is read when one has.
pub(super) struct Seen {
    number: u32,
    scrubs: bool,
    figures: Stats,
    words: String,
}

impl Seen {
    fn of(number: u32, scrubs: bool) -> Seen {
        let figures = Stats::of(number);
        let (mut text, mut needed) = (vec![0_u8; 1 << 14], 0);
        let status = ffi::millpond_report(number, text.as_mut_ptr().cast(), text.len(), &raw mut needed);
        assert!(status == Status::Ok && needed <= text.len(), "{status:?}, {needed} bytes");
        Seen { number, scrubs, figures, words: driver::words(text.as_ptr().cast()) }
    }

    /// The figures, how many pools they are of, and the words but for what is counted.
    fn read(&self) -> (Value, usize, String) {
        let figures: Value = serde_json::from_str(&self.figures.to_string()).expect("JSON");
        let pools = figures["pools"].as_array().map_or(0, Vec::len);
        let words = self.words.lines().filter(|line| !COUNTED.iter().any(|what| line.starts_with(what)));
        (figures, pools, words.collect::<Vec<_>>().join("\n"))
    }

    /// What differs now that may not.
    fn differs(&self, (moves, holds, allocates): (bool, bool, bool), meets: usize) -> Vec<String> {
        let ((figures, pools, words), now) = (self.read(), Seen::of(self.number, self.scrubs).read());
        let differs = |&(path, may): &(&str, May)| {
            let (was, is) = (figures.pointer(path), now.0.pointer(path));
            let number = |value: Option<&Value>| value.and_then(Value::as_u64).unwrap_or(0);
            let lawful = match may {
                _ if was == is => true,
                // No pinned memory yet, or none that was asked for.
                _ if was.is_none() && number(is) == 0 => true,
                Fall => moves || number(is) < number(was),
                Hold => holds || number(is) < number(was),
                Move => moves,
                Scrub => allocates && self.scrubs && number(is) > number(was),
                Not => false,
            };
            (!lawful).then(|| format!("{path}: {was:?} is {is:?}"))
        };
        let mut differs: Vec<String> = FIGURES.iter().filter_map(differs).collect();
        if now.1 > pools + meets {
            differs.push(format!("{pools} streams are {}", now.1));
        }
        // Where all figures are the same, the words are.
        let same = |path: &str| figures.pointer(path) == now.0.pointer(path);
        if ["/total", "/pools", "/pinned", "/taken", "/releases", "/growths"].iter().all(|p| same(p))
            && words != now.2
        {
            differs.push(format!("{words}\nis now\n{}", now.2));
        }
        differs
    }
}

impl World {
    /// All allocators, as they are. Others change them meanwhile, where there are some; and a soak counts by itself.
    pub(super) fn seen(&self) -> Vec<Seen> {
        if self.mail.is_some() || self.steady {
            return Vec::new();
        }
        self.doors.iter().map(|door| Seen::of(door.number, door.scrubs)).collect()
    }

    /// A call failed: all that a caller can see is as it was, but for what the header says.
    pub(super) fn is_as_it_was(seen: &[Seen], words: &str, fault: Fault) {
        let told = last();
        let name = words.split_once('(').map_or(words, |(name, _)| name);
        let is_of = |calls: &[&str]| calls.iter().any(|what| name.ends_with(what));
        // A mark that a capture took is none any more, and what it stood for is held back.
        let taken = [parts(fault).1, driver::answer()].iter().any(|code| CAPTURED_EVENT.contains(code));
        let may = (is_of(&MOVING), is_of(&HOLDING) || taken, is_of(&["_alloc"]));
        // As the program names them.
        let streams = words.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| {
            let made = word.strip_prefix('s').is_some_and(|n| n.parse::<u32>().is_ok());
            made || matches!(*word, "NULL" | "cudaStreamPerThread")
        });
        let meets = streams.count();
        for before in seen {
            let differs = before.differs(may, meets);
            assert!(
                differs.is_empty(),
                "{words} failed ({told}), and of a{} {}",
                before.number,
                differs.join("\n")
            );
        }
    }
}

/// The codes of an event whose record a capture took: in one that goes on, and in one that has ended.
const CAPTURED_EVENT: [u32; 2] = [907, 1];
/// Calls that take memory of the device, or give idle memory back, before they fail.
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
/// Those of them that move memory to other streams, by which it may be held back.
const HOLDING: [&str; 4] = ["_alloc", "_trim", "_limit", "_fraction"];
