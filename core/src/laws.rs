//! Every decision about order and completion: what may be reused, which stamp a range gets, which number seals a use, what a
//! marker covers, what is due.
//!
//! Each is a pure function next to the law that it follows (O1 to O9, described in [docs/ordering.md] with the interleavings that they forbid),
//! is called at the one place where it is decided, and is where the bugs of that decision are planted (docs/mutants.md). Laws about an order of
//! steps are in `steps`; what O1, O4 and O5 decide about physical memory that moves is in `physical`, what a hold forbids in `holds`; which waits may be inserted is in `waits`; decisions that only cost memory or time are in `cost`, the price of moves in `price`, what counts under limits in `limits`. A bug of a sequence that is none of these
//! is planted where the sequence is: docs/mutants.md lists those, and tests/architecture/main.rs counts them.
//!
//! It does not know a lock, a driver, a pool, a heap or a stream: numbers come in, a decision goes out.
//!
#![doc = concat!("[docs/ordering.md]: ", env!("CARGO_PKG_REPOSITORY"), "/blob/HEAD/docs/ordering.md")]
#![allow(clippy::nonminimal_bool, reason = "a bug that is not planted is the constant `false`")]
#![allow(clippy::missing_errors_doc, reason = "what is given fails, and nothing else here")]

pub mod cost;
pub mod holds;
pub mod limits;
pub mod physical;
pub mod price;
pub mod steps;
pub mod waits;

use crate::units::Epoch;

// O1: a range may be given to a stream if each of its pending uses is on that stream, known by its clock, or complete.

/// Whether work up to `epoch` is complete in the host's view, which has seen its timeline complete up to `seen` (O4).
#[inline]
pub fn is_complete(epoch: Epoch, seen: impl FnOnce() -> Epoch) -> bool {
    if epoch == Epoch::COMPLETE {
        return true;
    }
    let seen = seen();
    seen >= epoch || (mutant!(CompleteOffByOne) && seen.0 + 1 == epoch.0)
}

/// Whether a stream comes after work up to `epoch`: its own (`same`), known to its clock up to `known`, or complete.
#[inline]
pub fn is_ordered(
    same: bool,
    known: impl FnOnce() -> Epoch,
    epoch: Epoch,
    complete: impl FnOnce() -> bool,
) -> bool {
    if same {
        return true;
    }
    let known = known();
    known >= epoch || complete() || (mutant!(OrderOffByOne) && known.0 + 1 == epoch.0)
}

/// Whether a free range of another pool may be used: its stamp is ordered before the requesting stream.
#[inline]
pub fn may_migrate(ordered: bool) -> bool {
    ordered || mutant!(Z16)
}

/// Whether a range of a pool is taken over: if the law accepts it. The same law applies to a closed pool's memory.
#[inline]
pub fn may_take(accepted: bool, closed: bool) -> bool {
    accepted || (closed && mutant!(Z7))
}

/// Whether an own range in flight is used before the wait for its uses.
#[inline]
pub fn serves_in_flight() -> bool {
    mutant!(InFlightAtOnce)
}

/// Whether a wait on an event of the other device or of another registry updates our clocks: only our own events do.
#[inline]
pub fn teaches(own: bool) -> bool {
    own || mutant!(Z12)
}

/// Whether the stream may be named to the driver here: a per-thread default stream has its handle on its own thread only.
#[inline]
pub fn may_name(here: bool) -> bool {
    here || mutant!(OwnThreadUnqueried)
}

// O4: what leaves the device, or goes to the host, needs completion; a failed query does not prove it.

/// The answer of a query.
pub fn is_done<E>(answer: Result<bool, E>) -> Result<bool, E> {
    answer.or_else(|e| if mutant!(Z10) { Ok(true) } else { Err(e) })
}

/// Whether this many free granules of a segment may be all of it.
#[inline]
pub fn may_be_free(free: u64, len: u64) -> bool {
    free == len || (free > 0 && mutant!(Z13))
}

/// Whether the gathered pieces are all of a segment.
#[inline]
pub fn is_whole(gathered: u64, len: u64) -> bool {
    gathered == len || mutant!(Z13)
}

/// Whether a segment goes back to the driver: it is whole, and everything that its stamps cover is complete.
pub fn may_release(whole: bool, complete: impl FnOnce() -> bool) -> bool {
    whole && (complete() || mutant!(TrimPending))
}

/// Whether an allocator's end gives memory back: what may use it was waited for, or the driver's free itself waits for that.
#[inline]
pub fn may_give_back(waited: bool, free_waits: bool) -> bool {
    waited || free_waits || mutant!(EndUnwaited)
}

/// Whether a trim first drains ranges in flight, including those of idle pools.
#[inline]
pub fn trim_drains() -> bool {
    !mutant!(Z40)
}

/// Whether a request may give memory back: not where a free waits for the whole device.
#[inline]
pub fn request_may_trim(free_waits: bool) -> bool {
    !free_waits || mutant!(RequestTrims)
}

/// Whether freed pinned memory is free at once: the host may write it when every use is complete.
#[inline]
pub fn pinned_is_free(complete: bool) -> bool {
    complete || mutant!(PinnedAtOnce)
}

/// Whether a use of pinned memory in flight is over: complete, and not only ordered.
#[inline]
pub fn pinned_use_is_over(complete: bool) -> bool {
    complete || mutant!(Z14)
}

/// Whether the owner of external memory is kept until what used its memory is complete.
#[inline]
pub fn keeps_external() -> bool {
    !mutant!(ExternalAtOnce)
}

/// Whether a dropped token's value is kept until its operation is complete.
#[inline]
pub fn files_values() -> bool {
    !mutant!(DeferredAtOnce)
}

/// Whether a value one of whose uses is over is kept for the next use.
#[inline]
pub fn keeps_for_next_use() -> bool {
    !mutant!(DeferredFirstDone)
}

/// Whether a query that failed releases what is kept for it.
#[inline]
pub fn error_ends_keeping() -> bool {
    mutant!(DeferredErrorDone)
}

/// Whether a source of this many bytes is kept until its copy is complete.
#[inline]
pub fn keeps_source(bytes: u64) -> bool {
    !(mutant!(LargeSourceUnseen) && bytes > 4 << 20)
}

/// Whether a wait for the whole device may replace one that could not be made: not where it would end a capture of other code, or may.
#[inline]
pub fn may_wait_instead(captures: bool, expects_captures: bool) -> bool {
    !captures && !expects_captures || mutant!(CudaWaitsCaptured)
}

/// Whether captures of other code are checked for before the device is waited for.
#[inline]
pub fn checks_captures() -> bool {
    !mutant!(DoorEndUnqueried)
}

/// Whether the device is waited for before everything counts as complete.
#[inline]
pub fn synchronises() -> bool {
    !mutant!(Z11)
}

/// Whether a limit that could not be met is reverted.
#[inline]
pub fn takes_limit_back(failed: bool) -> bool {
    failed && !mutant!(DoorLimitKept)
}

// O5: a range that enters a pool's free state gets the stamp of that moment, and keeps it through splits and merges.

/// Whether a range in flight is over for its own pool: ordered before its stream, or complete if the pool is closed, whose memory goes to others.
#[inline]
pub fn is_over(closed: bool, complete: impl FnOnce() -> bool, ordered: impl FnOnce() -> bool) -> bool {
    if closed && !mutant!(ClosedDrainsOrdered) { complete() } else { ordered() }
}

/// The stamp with which a range enters, after its uses were checked: none if everything that it carries is complete; otherwise `now`, the pool's
/// next number. `None`: a closed pool takes in complete ranges only. `last` is the last of what it carries.
pub fn entry_stamp(
    complete: impl FnOnce() -> bool,
    closed: bool,
    now: impl FnOnce() -> Epoch,
    last: impl FnOnce() -> Epoch,
) -> Option<Epoch> {
    if mutant!(Z19) {
        return Some(last());
    }
    if complete() {
        Some(Epoch::COMPLETE)
    } else if closed && !mutant!(ClosedAdmits) {
        None
    } else {
        Some(now())
    }
}

/// The stamp with which a range that was in flight in its own pool becomes free.
#[inline]
pub fn drained_stamp(stamp: Epoch) -> Epoch {
    if mutant!(DrainedComplete) { Epoch::COMPLETE } else { stamp }
}

/// The stamp with which a range of another pool, or of the device, becomes free here; `marked` is the number of the pool's last marker.
pub fn entered_stamp(stamp: Epoch, marked: impl FnOnce() -> Epoch) -> Epoch {
    match stamp {
        Epoch::COMPLETE => stamp,
        _ if mutant!(Z1) => marked(),
        _ if mutant!(Z2) => Epoch::COMPLETE,
        _ => stamp,
    }
}

/// Whether a range with this stamp may enter; one that returns to a closed pool unchanged may.
#[inline]
pub fn comes_in(closed: bool, stamp: Epoch) -> bool {
    !(mutant!(ClosedKeepsOut) && closed && stamp != Epoch::COMPLETE)
}

/// The stamp of a range that had no owner in between: unchanged.
#[inline]
pub fn returned_stamp(stamp: Epoch) -> Epoch {
    if mutant!(PutBackComplete) { Epoch::COMPLETE } else { stamp }
}

/// The stamp of the remainder of a split: the whole's.
#[inline]
pub fn split_stamp(stamp: Epoch) -> Epoch {
    if mutant!(SplitUnstamped) { Epoch::COMPLETE } else { stamp }
}

/// The stamp of two neighbours that become one: the bytes of both are complete when the later stamp is.
#[inline]
pub fn merged_stamp(one: Epoch, other: Epoch) -> Epoch {
    if mutant!(Z23) { one.min(other) } else { one.max(other) }
}

/// The stamp of a merged range that a third neighbour joins on the other side: complete when the latest of the three is.
#[inline]
pub fn merged_twice(stamp: Epoch, third: Epoch) -> Epoch {
    if mutant!(MergeBothForgets) { stamp } else { merged_stamp(stamp, third) }
}

/// Whether a freed range is available to its pool at once: order within the stream is enough (O2), unless others used the range, as its tag says.
#[inline]
pub fn free_ignores_tag() -> bool {
    mutant!(Z9)
}

// O6: uses are a set; open uses are sealed at the free, with the number that their stream's next marker will have.

/// The number that covers work queued before now on a timeline on which `submitted` markers are numbered: the next one (O8).
#[inline]
pub fn stamp(submitted: u64) -> Epoch {
    Epoch(submitted + u64::from(!mutant!(StampSubmitted)))
}

/// The number that seals an open use: of the stream's `next` marker, not of its last one.
#[inline]
pub fn seal(next: impl FnOnce() -> Epoch, marked: impl FnOnce() -> Epoch) -> Epoch {
    if mutant!(SealSubmitted) { marked() } else { next() }
}

/// Whether a declared use stays open until the free.
#[inline]
pub fn stays_open() -> bool {
    !mutant!(Z21)
}

/// Whether a use on one stream is replaced by another stream's.
#[inline]
pub fn use_replaces_others() -> bool {
    mutant!(Z22)
}

/// Of two exact uses on one stream, of which `new` was published last, the number that counts.
#[inline]
pub fn exact_of(old: Epoch, new: Epoch) -> Epoch {
    if mutant!(Z34) { new } else { old.max(new) }
}

/// How many operations of one stream hold a use open, including one more.
#[inline]
pub fn opened_again(count: u64) -> u64 {
    count + u64::from(!mutant!(Z33))
}

/// Whether an operation gets an exact use of its own although there is one like it.
pub fn has_own_use(like: impl FnOnce() -> bool) -> bool {
    !(mutant!(Z33) && like())
}

/// Whether only the last of several uses counts at the free.
#[inline]
pub fn free_forgets_uses() -> bool {
    mutant!(Z8)
}

/// Whether a use by an unknown stream counts.
#[inline]
pub fn is_unknown(unknown: bool) -> bool {
    unknown && !mutant!(UnknownPlain)
}

/// The home stamp of a range in flight, seen by its own pool: the home stream may still use it.
#[inline]
pub fn home_of_drained(home: Epoch) -> Option<Epoch> {
    (!mutant!(Z36)).then_some(home)
}

/// The home stamp of a range in flight, seen by another pool.
#[inline]
pub fn home_of_migrated(home: Epoch) -> Option<Epoch> {
    (!mutant!(Z29)).then_some(home)
}

/// Whether the remainder that a migration leaves of a range in flight is free.
#[inline]
pub fn rest_is_free() -> bool {
    mutant!(Z6)
}

/// How many of its uses the remainder of a range in flight keeps: all.
#[inline]
pub fn rest_keeps() -> usize {
    if mutant!(RestForgetsUses) { 1 } else { usize::MAX }
}

/// Whether a use keeps a range in flight: it is not over.
#[inline]
pub fn keeps_in_flight(over: bool) -> bool {
    !over && !mutant!(Z27)
}

/// Whether an open use survives a write of the whole array: a declared use does, because only the free ends it.
#[inline]
pub fn outlasts_a_write(declared: bool) -> bool {
    declared && !mutant!(ArrayWholeForgetsOpen)
}

/// Whether a guard's use is sealed when it begins.
#[inline]
pub fn guard_ends_at_once() -> bool {
    mutant!(GuardSealedEarly)
}

/// Whether a stream without other references holds all work that it ever will, so that an operation's open use of it ends.
pub fn is_last_user(last: impl FnOnce() -> bool) -> bool {
    mutant!(OpenEndsEarly) || last()
}

/// Whether a stream without other references holds all work that it ever will, so that a declared use of it ends.
pub fn is_last_declared(last: impl FnOnce() -> bool) -> bool {
    mutant!(DeclaredEndsEarly) || last()
}

/// Whether a stream without references may be obtained again: from an allocation made on it, while one of its pools is open.
#[inline]
pub fn may_come_back(pools: usize) -> bool {
    pools > 0 && !mutant!(RevivedEndsEarly)
}

/// Whether a stream with this many open uses and no pool may close.
#[inline]
pub fn may_close(open: usize) -> bool {
    open == 0 || mutant!(Z28)
}

/// Whether the count of open uses falls when one ends.
#[inline]
pub fn counts_ended() -> bool {
    !mutant!(OpenForgotten)
}

// O6 and O7 of an array: what an operation has to come after, and what it records.

/// The part of the home stream's last write that an access comes after.
#[inline]
pub fn after_write(written: impl FnOnce() -> u64) -> u64 {
    if mutant!(ArrayWriteUnseen) { 0 } else { written() }
}

/// The part of the home stream's last read that an access comes after: only a write has to.
#[inline]
pub fn after_read(writes: bool, read: impl FnOnce() -> u64) -> u64 {
    if writes && !mutant!(ArrayReadUnseen) { read() } else { 0 }
}

/// Whether an access comes after work on the home stream that has no number yet.
#[inline]
pub fn after_open(open: bool) -> bool {
    open && !mutant!(ArrayOpenUnseen)
}

/// The birth stamp that an access comes after (O7).
#[inline]
pub fn after_birth<T>(birth: Option<T>) -> Option<T> {
    birth.filter(|_| !mutant!(ArrayBirthUnseen))
}

/// Whether an access comes after other streams' uses, if there are any.
#[inline]
pub fn after_others(shared: bool) -> bool {
    shared && !mutant!(ArrayUseUnseen)
}

/// Whether operations of an array that is made of an allocation come after uses recorded before: they do if its chunk has a tag.
#[inline]
pub fn after_past(tag: u32) -> bool {
    tag != 0 && !mutant!(ArrayPastUnseen)
}

/// Whether an operation on another stream than home is kept as a use.
#[inline]
pub fn keeps_use() -> bool {
    !mutant!(ArrayUseLost)
}

/// Whether the home stream's stamps are obsolete after a write elsewhere: if it writes the whole, not a part.
#[inline]
pub fn write_ends_home(whole: bool, writes: bool) -> bool {
    whole || (mutant!(PartForgetsHome) && writes)
}

/// Whether a read ends earlier uses.
#[inline]
pub fn read_ends_uses(reads: bool) -> bool {
    mutant!(ArrayReadForgets) && reads
}

/// Whether earlier borrowed uses end with the next borrow: with an exclusive access to the whole.
#[inline]
pub fn ends_borrows(whole: bool) -> bool {
    whole || mutant!(CudaBorrowEndsEarly)
}

/// Whether a refused write of the whole seals earlier borrowed uses: all of their work was queued before.
#[inline]
pub fn refused_ends_borrows() -> bool {
    !mutant!(CudaBorrowForEver)
}

/// Whether a borrow is kept as a use.
#[inline]
pub fn keeps_borrow() -> bool {
    !mutant!(CudaBorrowUnseen)
}

/// Whether a borrowed use is sealed when it begins.
#[inline]
pub fn borrow_ends_at_once() -> bool {
    mutant!(CudaBorrowSealed)
}

/// Whether an array borrowed by many streams counts as borrowed by all of them instead.
#[inline]
pub fn borrowed_by_all() -> bool {
    !mutant!(CudaBorrowForgotten)
}

/// Whether an operation is kept as a use if it was queued and no marker could be made.
#[inline]
pub fn keeps_unmarked() -> bool {
    !mutant!(ArrayUnsealed)
}

/// Whether it is kept if the driver's call panicked: it may have been queued.
pub fn keeps_panicked(panicking: impl FnOnce() -> bool) -> bool {
    !(mutant!(PanicUnsealed) && panicking())
}

/// Whether the wait for the `i`th of an operation's `n` missing uses is left out because another one's marker carries it: never,
/// candidates are not compared. `covers(i, j)`: whether the marker for the `i`th carries the `j`th.
#[inline]
pub fn is_left_to_another(i: usize, n: usize, covers: impl Fn(usize, usize) -> bool) -> bool {
    let another = |j| j != i && covers(j, i);
    (mutant!(ArrayCoverAny) && i > 0)
        || (mutant!(CoverOther) && (0..n).any(another))
        || (mutant!(CoverTie) && (0..n).any(|j| another(j) && !(i < j && covers(i, j))))
}

// O6 for memory that cudarc uses (docs/cudarc.md).

/// Whether a slice may be made on a stream, after the query whether it captures.
pub fn may_slice<E>(admitted: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
    if mutant!(CudaSliceCaptured) { Ok(()) } else { admitted() }
}

/// Whether a pooled slice's event is recorded behind what its memory comes after.
#[inline]
pub fn slice_comes_behind() -> bool {
    !mutant!(CudaPooledHome)
}

/// Whether cudarc tracks a stream for a pooled slice by itself: one of the slice's own context value.
#[inline]
pub fn is_tracked(same_context: bool) -> bool {
    same_context || mutant!(CudaPooledUntracked)
}

/// Whether a stream that reads a pooled slice leaves another reader's event alone.
#[inline]
pub fn distinguishes_readers() -> bool {
    !mutant!(CudaOneReader)
}

/// Has a stream that reads a pooled slice wait for what the previous stream with its handle has read.
pub fn behind_its_handles_last<E>(wait: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
    if mutant!(CudaReaderReplaced) { Ok(()) } else { wait() }
}

/// Whether a launch that writes a pooled slice needs a separate wait for copies that read it, because cudarc's event does not cover some.
#[inline]
pub fn launch_comes_behind_readers(are_apart: bool) -> bool {
    are_apart && !mutant!(CudaLaunchApart)
}

/// Whether the users of a pooled slice are unknown.
#[inline]
pub fn slice_users_are_unknown() -> bool {
    !mutant!(CudaPooledPlain)
}

/// Whether pinned memory that cudarc copies into is borrowed only to read, on a default stream or another.
#[inline]
pub fn copy_only_reads(on_default: bool) -> bool {
    mutant!(CudaHostDefaultRead) && on_default
}

/// What an array keeps for cudarc's calls between one and the next.
pub fn keeps_anchor<T>(extension: Option<T>) -> Option<T> {
    extension.filter(|_| !mutant!(CudaAnchorEach))
}

// O7: work of the bytes' previous owner on the home stream.

/// What a first use on another stream comes after.
#[inline]
pub fn birth(stamp: Epoch) -> Epoch {
    if mutant!(Z20) { Epoch::COMPLETE } else { stamp }
}

/// Whether the bytes of a new allocation are overwritten before it is returned.
#[inline]
pub fn scrubs() -> bool {
    !mutant!(ScrubSkipped)
}

/// Whether the birth stamp of wiped bytes is taken behind the wipe.
#[inline]
pub fn born_behind_scrub() -> bool {
    !mutant!(ScrubUnborn)
}

// O8: what a marker covers, and what a wait and a completion teach.

/// Which of a timeline's markers covers a number: the oldest that is not below it, which is at `at`.
#[inline]
pub fn covering(at: usize) -> usize {
    at.saturating_sub(usize::from(mutant!(CoverOlder)))
}

/// Whether a marker is no longer needed: it is complete.
#[inline]
pub fn may_retire(number: Epoch, seen: Epoch) -> bool {
    number <= seen || mutant!(MarkersRetiredEarly)
}

/// Whether a timeline may leave the table: closed, with nothing pending.
#[inline]
pub fn may_leave(seen: u64, submitted: u64) -> bool {
    seen >= submitted || mutant!(TimelineRetiredEarly)
}

/// Whether a stream's entry is removed with a timeline: it is that timeline's, and not a later one's.
#[inline]
pub fn leaves_with(own: bool) -> bool {
    own || mutant!(TimelineUnlinked)
}

/// Whether a marker carries what its stream was ordered after.
#[inline]
pub fn carries_clock() -> bool {
    !mutant!(CopyEmpty)
}

/// Whether a wait uses the stream's current clock besides what the marker carries.
#[inline]
pub fn learns_now() -> bool {
    mutant!(Z30)
}

/// Whether a stream learns from a marker that it did not wait for.
#[inline]
pub fn learns_unwaited() -> bool {
    mutant!(WaitDropped)
}

/// Which timeline a wait updates.
#[inline]
pub fn learnt_of(on: u32) -> u32 {
    on + u32::from(mutant!(WaitWrongTimeline))
}

/// Whether a host wait for a marker proves all later ones.
#[inline]
pub fn wait_proves_newest() -> bool {
    mutant!(WaitProvesNewest)
}

/// Whether the completion of a marker proves what its stream has waited for since.
#[inline]
pub fn completion_proves_now() -> bool {
    mutant!(CompleteJoinsNow)
}

/// Whether the marker above a complete one counts as complete.
#[inline]
pub fn completes_next() -> bool {
    mutant!(PollOffByOne)
}

/// Whether a marker whose event a capture took still covers what it covered.
#[inline]
pub fn captured_covers() -> bool {
    mutant!(CapturedCovers)
}

/// Whether a marker that fails because it was captured is withdrawn.
#[inline]
pub fn takes_out_captured(captured: bool) -> bool {
    captured && !mutant!(CapturedKept)
}

/// Whether an external stream is queried again after a record whether it captures.
#[inline]
pub fn queries_again(may_capture: bool) -> bool {
    may_capture && !mutant!(CaptureUnseen)
}

/// Whether a context-wide marker may be made for a stream: not where it may end a capture of other code.
pub fn may_mark_context(unmanaged: bool, expects_captures: impl FnOnce() -> bool) -> bool {
    mutant!(ContextMarker) || !(unmanaged || expects_captures())
}

/// Whether the last number of a stream that cannot be marked has to cover its work since.
#[inline]
pub fn last_number_covers(loose: bool) -> bool {
    loose && !mutant!(LooseForgotten)
}

// O9: drops make no driver call, so the work that they leave falls due.

/// Whether due work that could not be done counts as done.
#[inline]
pub fn failed_is_served() -> bool {
    mutant!(DueDropped)
}

/// Whether a marker for the whole context that could not be made falls due.
#[inline]
pub fn context_falls_due() -> bool {
    !mutant!(ContextDueLost)
}

/// Whether a call that names a stream makes the marker that fell due for it.
#[inline]
pub fn maintains_named(named_only: bool, due: impl FnOnce() -> bool) -> bool {
    named_only && due() && !mutant!(NamedNotServed)
}

// H3: a chunk lies in the bin of its length.

/// The length by which a chunk's bin is chosen (H3).
#[inline]
pub fn binned(len: u32) -> u32 {
    len + u32::from(mutant!(BinAbove))
}
