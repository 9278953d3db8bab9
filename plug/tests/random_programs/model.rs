//! A model of what a program has: allocators, streams, allocations, and the streams that used them. The interface is judged by it.

use crate::{driver, figures};
use millpond_plug::ffi;
use millpond_plug::status::MillpondStatus as Status;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU8;

/// A stream, distinct from others that have had its handle.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Who {
    Made(u32),
    Legacy(usize),
    /// The thread, and the device.
    PerThread(u32, usize),
}

/// A stream as a call names it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Named {
    pub(crate) who: Who,
    pub(crate) handle: usize,
}

impl Named {
    pub(crate) fn raw(self) -> driver::Handle {
        self.handle as driver::Handle
    }
}

impl fmt::Display for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.who {
            Who::Made(n) => write!(f, "s{n}"),
            Who::Legacy(_) => write!(f, "NULL"),
            Who::PerThread(..) => write!(f, "cudaStreamPerThread"),
        }
    }
}

/// A stream that the program made and has not destroyed.
#[allow(clippy::struct_excessive_bools, reason = "each says another thing, and none of the others")]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Made {
    pub(crate) named: Named,
    pub(crate) permanent: bool,
    /// It uses another device's memory, so it must not be destroyed until that is freed, as PyTorch's streams are not.
    pub(crate) kept: bool,
    /// It was declared to an allocator: then any call may check whether it captures.
    pub(crate) declared: bool,
    /// The legacy default stream waits for it.
    pub(crate) blocking: bool,
}

/// Set in [`Door::life`] when the allocator has ended; the lower bits count the calls under way that end it.
pub(crate) const ENDED: u8 = 128;

#[allow(clippy::struct_excessive_bools, reason = "each says another thing, and none of the others")]
#[derive(Clone, Default, Debug)]
pub(crate) struct Door {
    pub(crate) number: u32,
    pub(crate) device: usize,
    pub(crate) open: bool,
    /// Whether it has ended, and how many calls are ending it, for all threads that run at once.
    pub(crate) life: Arc<AtomicU8>,
    pub(crate) torch: bool,
    pub(crate) scrubs: bool,
    /// It was created with captures expected, which holds for all allocators of its device.
    pub(crate) expects: bool,
    pub(crate) limit: Option<u64>,
    /// Handles of created streams that were named in its calls.
    pub(crate) handles: Vec<usize>,
    /// The same for streams that last as long as the process.
    pub(crate) lasting: Vec<usize>,
    /// All streams that were named in its calls.
    pub(crate) met: Vec<Who>,
    /// Those that were declared permanent to it before any allocator of the device had met them.
    pub(crate) declared: Vec<Who>,
    /// Handles that were declared permanent to it.
    pub(crate) promised: Vec<usize>,
    /// Those of them whose streams were destroyed nevertheless.
    pub(crate) broken: Vec<usize>,
}

/// The streams that used some memory. Each access comes after those that it depends on.
#[derive(Clone, Default, Debug)]
pub(crate) struct Uses {
    /// The last write, and an event after it.
    writer: Option<(Who, usize)>,
    readers: Vec<(Who, usize)>,
    /// Streams that used it and whose use was not recorded.
    pub(crate) undeclared: Vec<Who>,
    declared: Vec<Who>,
}

impl Uses {
    /// The events that a stream must wait for before an access.
    pub(crate) fn before(&self, who: Who, writes: bool) -> Vec<usize> {
        let readers = self.readers.iter().filter(|_| writes);
        self.writer.iter().chain(readers).filter(|(w, _)| *w != who).map(|&(_, event)| event).collect()
    }
    pub(crate) fn accessed(&mut self, who: Who, event: usize, writes: bool) {
        if writes {
            self.readers.clear();
            self.writer = Some((who, event));
        } else {
            self.readers.push((who, event));
        }
    }
    pub(crate) fn must_be_declared(&mut self, who: Who) {
        if !self.declared.contains(&who) && !self.undeclared.contains(&who) {
            self.undeclared.push(who);
        }
    }
    /// Whether no stream has used it, not even the program's write at the allocation.
    pub(crate) fn is_fresh(&self) -> bool {
        self.writer.is_none() && self.readers.is_empty()
    }
    /// Whether no use but its own stream's was recorded or has to be.
    pub(crate) fn are_none(&self) -> bool {
        self.undeclared.is_empty() && self.declared.is_empty()
    }
    /// Whether these include all streams that used it or were recorded.
    pub(crate) fn are_all_in(&self, named: &[Who]) -> bool {
        self.undeclared.iter().chain(&self.declared).all(|who| named.contains(who))
    }
    pub(crate) fn declare(&mut self, who: Who) {
        self.undeclared.retain(|w| *w != who);
        if !self.declared.contains(&who) {
            self.declared.push(who);
        }
    }
}

/// Device memory.
#[derive(Clone, Debug)]
pub(crate) struct Block {
    /// p1, p2 and so on.
    pub(crate) name: u32,
    pub(crate) at: usize,
    pub(crate) bytes: usize,
    pub(crate) door: usize,
    pub(crate) home: Named,
    /// The value of each of its bytes.
    pub(crate) value: Option<u8>,
    /// `millpond_free_after` of it failed: the uses of some streams may be recorded.
    pub(crate) refused: bool,
    /// Streams of another device that were declared to `PyTorch`'s functions.
    pub(crate) elsewhere: Vec<Who>,
    /// A use was recorded by a stream whose device could not be queried, because it captured or a call failed: it may be of another device.
    pub(crate) unsure: bool,
    pub(crate) uses: Uses,
}

/// Pinned memory.
#[derive(Clone, Debug)]
pub(crate) struct Pinned {
    pub(crate) name: u32,
    pub(crate) at: usize,
    pub(crate) bytes: usize,
    pub(crate) door: usize,
    pub(crate) value: u8,
    pub(crate) uses: Uses,
}

/// Bytes of the program's own that must have this value when the device is done.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Read {
    pub(crate) at: u64,
    pub(crate) bytes: usize,
    pub(crate) value: u8,
    pub(crate) name: u32,
}

/// An allocator's report, as text.
pub(crate) struct Stats(String);

impl Stats {
    /// The report of an ended allocator; `None` if it is not kept any more.
    pub(crate) fn of_ended(door: u32) -> Option<Stats> {
        let there = ffi::millpond_stats_json(door, core::ptr::null_mut(), 0, core::ptr::null_mut());
        (there != Status::UnknownAllocator).then(|| Stats::of(door))
    }
    pub(crate) fn of(door: u32) -> Stats {
        // Most reports are shorter, so one call writes them. While other threads run, a report may grow from one call to the next.
        let (mut needed, mut text) = (1 << 14, Vec::new());
        while needed > text.len() {
            text = vec![b'x'; needed];
            let status =
                ffi::millpond_stats_json(door, text.as_mut_ptr().cast(), text.len(), &raw mut needed);
            assert_eq!(status, Status::Ok, "{}", last());
        }
        text.truncate(text.iter().position(|b| *b == 0).expect("it ends with a zero"));
        Stats(String::from_utf8(text).expect("text"))
    }
    pub(crate) fn field(&self, name: &str) -> u64 {
        figures::field(&self.0, name)
    }
    pub(crate) fn limit(&self) -> Option<u64> {
        figures::number(&self.0, "limit")
    }
    pub(crate) fn total(&self, name: &str) -> u64 {
        let (_, total) = self.0.split_once("\"total\":").expect("sums");
        figures::number(total, name).unwrap_or(0)
    }
    pub(crate) fn pinned(&self, name: &str) -> u64 {
        let (_, pinned) = self.0.split_once("\"pinned\":").expect("a field");
        if pinned.starts_with("null") { 0 } else { figures::number(pinned, name).unwrap_or(0) }
    }
    /// How many pools there are whose streams are not known to have ended.
    pub(crate) fn open_pools(&self) -> usize {
        let (_, pools) = self.0.split_once("\"pools\":[").expect("a list");
        let (pools, _) = pools.split_once("\"releases\":").expect("it comes later: the names are sorted");
        pools.matches("\"closed\":false").count()
    }
}

impl fmt::Display for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The message of the thread's last failure.
pub(crate) fn last() -> String {
    driver::words(ffi::millpond_last_error())
}
