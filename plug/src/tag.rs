//! Facts of an allocation, in the word that the index keeps with it. It does not know who uses them.

/// The calling thread's default stream: one handle for a stream of each thread.
pub(crate) const PER_THREAD: usize = 2;

/// An allocation's allocator, whether its stream's handle alone identifies the stream, whether it has uses that
/// could not be recorded, or uses on other devices, whether it was freed and its end waits for one of those, and the handle.
#[derive(Clone, Copy)]
pub(crate) struct Tag(u64);

impl Tag {
    const HANDLE: u64 = (1 << 48) - 1;
    const LASTING: u64 = 1 << 48;
    const UNKNOWN: u64 = 1 << 49;
    const ELSEWHERE: u64 = 1 << 50;
    const DEFERRED: u64 = 1 << 51;
    const DOOR: u32 = 52;

    pub(crate) fn new(door: u32, handle: usize, lasting: bool) -> Tag {
        // A handle that does not fit, or means a different stream on each thread, is compared by ids instead.
        let any_thread = handle == PER_THREAD && !mutant!(DoorAnyThreadHome);
        let lasting = lasting && handle as u64 <= Tag::HANDLE && !any_thread;
        Tag(u64::from(door) << Tag::DOOR | if lasting { Tag::LASTING | handle as u64 } else { 0 })
    }
    /// The tag of this word.
    pub(crate) fn of(word: u64) -> Tag {
        Tag(word)
    }
    pub(crate) fn word(self) -> u64 {
        self.0
    }
    /// With uses that could not be recorded.
    pub(crate) fn unknown(self) -> Tag {
        Tag(self.0 | Tag::UNKNOWN)
    }
    /// With uses on streams of other devices, or with none.
    pub(crate) fn elsewhere(self, any: bool) -> Tag {
        Tag(if any { self.0 | Tag::ELSEWHERE } else { self.0 & !Tag::ELSEWHERE })
    }
    /// Freed, as far as callers can see.
    pub(crate) fn deferred(self) -> Tag {
        Tag(self.0 | Tag::DEFERRED)
    }
    pub(crate) fn door(self) -> u32 {
        (self.0 >> Tag::DOOR) as u32
    }
    pub(crate) fn is_home(self, handle: usize) -> bool {
        self.0 & Tag::LASTING != 0 && self.0 & Tag::HANDLE == handle as u64
    }
    pub(crate) fn is_unknown(self) -> bool {
        self.0 & Tag::UNKNOWN != 0
    }
    pub(crate) fn is_elsewhere(self) -> bool {
        self.0 & Tag::ELSEWHERE != 0
    }
    pub(crate) fn is_deferred(self) -> bool {
        self.0 & Tag::DEFERRED != 0
    }
}
