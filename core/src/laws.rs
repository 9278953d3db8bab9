//! Every decision about order and completion: what may be reused, which stamp a range gets, which number seals a use, what a
//! marker covers, what is due.
//!
//! Each is a pure function next to the law that it follows (O1 to O9, told in docs/ordering.md with the interleavings that they forbid),
//! is called at the one place where it is decided, and is where the bugs of that decision are planted (docs/mutants.md). Which step comes
//! before which, where that is the law, is in `steps`; what only costs memory or time is in `cost`. A bug of a sequence that is none of these
//! is planted where the sequence is: docs/mutants.md lists those, and tests/architecture/main.rs counts them.
//!
//! It does not know a lock, a driver, a pool, a heap or a stream: numbers come in, an answer goes out.

#![allow(clippy::nonminimal_bool, reason = "a bug that is not planted is the constant `false`")]
#![allow(clippy::missing_errors_doc, reason = "what is given fails, and nothing else here")]

pub mod cost;
pub mod steps;

use crate::units::Epoch;

// O1: a range may be given to a stream if each of its pending uses is on that stream, known by its clock, or complete.

/// Whether work up to `epoch` is complete in the host's view, which saw its timeline complete up to `seen` (O4).
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

/// Whether a free range of another pool serves: its stamp is ordered before the asker.
#[inline]
pub fn may_migrate(ordered: bool) -> bool {
    ordered || mutant!(Z16)
}

/// Whether memory of a pool is taken over: if the law accepts it, and a closed pool's is under no other law
/// than that.
#[inline]
pub fn may_take(accepted: bool, closed: bool) -> bool {
    accepted || (closed && mutant!(Z7))
}

/// Whether an own range in flight serves before a wait for what its uses hold.
#[inline]
pub fn serves_in_flight() -> bool {
    mutant!(InFlightAtOnce)
}

/// Whether a wait on the other device's or another registry's event teaches our clocks: only our own events do.
#[inline]
pub fn teaches(own: bool) -> bool {
    own || mutant!(Z12)
}

/// Whether the driver may be told of a stream here: a per-thread default stream has its handle on its own thread alone.
#[inline]
pub fn may_name(here: bool) -> bool {
    here || mutant!(OwnThreadUnasked)
}

/// Whether nobody is made to wait for a stream, and it for nobody.
#[inline]
pub fn is_independent(declared: bool) -> bool {
    declared && !mutant!(IndependentWaits)
}

// O4: what leaves the device, or goes to the host, needs completion; a failed query is none.

/// What a query says.
pub fn is_done<E>(answer: Result<bool, E>) -> Result<bool, E> {
    answer.or_else(|e| if mutant!(Z10) { Ok(true) } else { Err(e) })
}

/// Whether so many free granules of a segment may be all of it.
#[inline]
pub fn may_be_free(free: u64, len: u64) -> bool {
    free == len || (free > 0 && mutant!(Z13))
}

/// Whether what was gathered is all of a segment.
#[inline]
pub fn is_whole(gathered: u64, len: u64) -> bool {
    gathered == len || mutant!(Z13)
}

/// Whether a segment goes back to the driver: it is whole, and all that its stamps stand for is complete.
pub fn may_release(whole: bool, complete: impl FnOnce() -> bool) -> bool {
    whole && (complete() || mutant!(TrimPending))
}

/// Whether an allocator's end gives memory back: what may use it was waited for, or the driver's free waits for that itself.
#[inline]
pub fn may_give_back(waited: bool, free_waits: bool) -> bool {
    waited || free_waits || mutant!(EndUnwaited)
}

/// Whether a trim looks first for what came back from flight: an idle pool's is there, too.
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

/// Whether a foreign owner is kept until what used its memory is complete.
#[inline]
pub fn keeps_external() -> bool {
    !mutant!(ForeignAtOnce)
}

/// Whether a dropped token's value is filed until its operation is complete.
#[inline]
pub fn files_values() -> bool {
    !mutant!(KeeperAtOnce)
}

/// Whether a value one of whose uses is over is kept for the next.
#[inline]
pub fn keeps_for_next_use() -> bool {
    !mutant!(KeeperFirstDone)
}

/// Whether a query that failed ends what is kept for it.
#[inline]
pub fn error_ends_keeping() -> bool {
    mutant!(KeeperErrorDone)
}

/// Whether a source of so many bytes is kept until its copy is complete.
#[inline]
pub fn keeps_source(bytes: u64) -> bool {
    !(mutant!(LargeSourceUnseen) && bytes > 4 << 20)
}

/// Whether a wait for the whole device may stand for one that could not be made: not where it would end somebody's capture, or may.
#[inline]
pub fn may_wait_instead(captures: bool, expects_captures: bool) -> bool {
    !captures && !expects_captures || mutant!(CudaWaitsCaptured)
}

/// Whether somebody's capture is asked for before the device is waited for.
#[inline]
pub fn asks_who_captures() -> bool {
    !mutant!(DoorEndUnasked)
}

/// Whether the device is waited for before all of it counts as complete.
#[inline]
pub fn synchronises() -> bool {
    !mutant!(Z11)
}

/// Whether a limit is taken back that could not be kept.
#[inline]
pub fn takes_limit_back(failed: bool) -> bool {
    failed && !mutant!(DoorLimitKept)
}

// O5: a range that enters a pool's free state gets the stamp of that moment, and keeps it in parts and together.

/// Whether a range in flight is over for its own pool: ordered before its stream is enough, but not once the pool is closed, whose
/// memory goes to others.
#[inline]
pub fn is_over(closed: bool, complete: impl FnOnce() -> bool, ordered: impl FnOnce() -> bool) -> bool {
    if closed && !mutant!(ClosedDrainsOrdered) { complete() } else { ordered() }
}

/// The stamp with which a range enters, after its facts were checked: none if all that it carries is complete; `now`, the pool's next
/// number, otherwise. `None`: a closed pool takes in complete ranges only. `last` is the last of what it carries.
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

/// The stamp with which a range of another pool, or of the device, becomes free here; `marked` is the number
/// of the pool's last marker.
pub fn entered_stamp(stamp: Epoch, marked: impl FnOnce() -> Epoch) -> Epoch {
    match stamp {
        Epoch::COMPLETE => stamp,
        _ if mutant!(Z1) => marked(),
        _ if mutant!(Z2) => Epoch::COMPLETE,
        _ => stamp,
    }
}

/// Whether a range with this stamp comes in: one that returns to a closed pool as it was does.
#[inline]
pub fn comes_in(closed: bool, stamp: Epoch) -> bool {
    !(mutant!(ClosedKeepsOut) && closed && stamp != Epoch::COMPLETE)
}

/// The stamp of a range that had no owner in between: its own.
#[inline]
pub fn returned_stamp(stamp: Epoch) -> Epoch {
    if mutant!(PutBackComplete) { Epoch::COMPLETE } else { stamp }
}

/// The stamp of what a split leaves: the whole's.
#[inline]
pub fn split_stamp(stamp: Epoch) -> Epoch {
    if mutant!(SplitUnstamped) { Epoch::COMPLETE } else { stamp }
}

/// The stamp of two neighbours that become one: the bytes of both are complete when the later stamp is.
#[inline]
pub fn merged_stamp(one: Epoch, other: Epoch) -> Epoch {
    if mutant!(Z23) { one.min(other) } else { one.max(other) }
}

/// The stamp of a merged range that a third neighbour joins on the other side: complete when the latest of
/// the three is.
#[inline]
pub fn merged_twice(stamp: Epoch, third: Epoch) -> Epoch {
    if mutant!(MergeBothForgets) { stamp } else { merged_stamp(stamp, third) }
}

/// What of a free serves a pool at once: order within the stream is enough (O2), unless others used the range, as its tag says.
#[inline]
pub fn free_ignores_tag() -> bool {
    mutant!(Z9)
}

// O6: uses are a set; what is open is sealed at the free, with the number that its stream's next marker will have.

/// The number that covers work queued before now on a timeline on which `submitted` markers were numbered: the next one (O8).
#[inline]
pub fn stamp(submitted: u64) -> Epoch {
    Epoch(submitted + u64::from(!mutant!(StampSubmitted)))
}

/// The number that seals an open use: of the stream's `next` marker, not of the last one that it has.
#[inline]
pub fn seal(next: impl FnOnce() -> Epoch, marked: impl FnOnce() -> Epoch) -> Epoch {
    if mutant!(SealSubmitted) { marked() } else { next() }
}

/// Whether a declared use stays open until the free.
#[inline]
pub fn stays_open() -> bool {
    !mutant!(Z21)
}

/// Whether a use on one stream is forgotten for another's.
#[inline]
pub fn use_replaces_others() -> bool {
    mutant!(Z22)
}

/// The number of two exact uses on one stream, of which `new` was published last.
#[inline]
pub fn exact_of(old: Epoch, new: Epoch) -> Epoch {
    if mutant!(Z34) { new } else { old.max(new) }
}

/// How many operations of one stream hold a use open, with one more.
#[inline]
pub fn opened_again(count: u64) -> u64 {
    count + u64::from(!mutant!(Z33))
}

/// Whether an operation's exact use is its own, beside one like it.
pub fn has_own_use(like: impl FnOnce() -> bool) -> bool {
    !(mutant!(Z33) && like())
}

/// Whether of several uses the last alone counts at the free.
#[inline]
pub fn free_forgets_uses() -> bool {
    mutant!(Z8)
}

/// Whether it counts that nobody knows who used the memory.
#[inline]
pub fn is_unknown(unknown: bool) -> bool {
    unknown && !mutant!(UnknownPlain)
}

/// The home stamp of a range in flight that is looked at by its own pool: the home stream may still use it.
#[inline]
pub fn home_of_drained(home: Epoch) -> Option<Epoch> {
    (!mutant!(Z36)).then_some(home)
}

/// The same, by another pool.
#[inline]
pub fn home_of_migrated(home: Epoch) -> Option<Epoch> {
    (!mutant!(Z29)).then_some(home)
}

/// Whether what a migration leaves of a range in flight is free.
#[inline]
pub fn rest_is_free() -> bool {
    mutant!(Z6)
}

/// How many of its uses the rest of a range in flight keeps: all.
#[inline]
pub fn rest_keeps() -> usize {
    if mutant!(RestForgetsUses) { 1 } else { usize::MAX }
}

/// Whether a use keeps a range in flight: it is not over.
#[inline]
pub fn keeps_in_flight(over: bool) -> bool {
    !over && !mutant!(Z27)
}

/// Whether an open use stays when the whole of an array was written: a declared one, which nobody ends before the free.
#[inline]
pub fn outlasts_a_write(declared: bool) -> bool {
    declared && !mutant!(ArrayWholeForgetsOpen)
}

/// Whether a guard's use is sealed when it begins.
#[inline]
pub fn guard_ends_at_once() -> bool {
    mutant!(GuardSealedEarly)
}

/// Whether a stream of which nobody else has a reference holds all that it ever will, so that an operation's open use of it ends.
pub fn is_last_user(last: impl FnOnce() -> bool) -> bool {
    mutant!(OpenEndsEarly) || last()
}

/// Whether a stream of which nobody else has a reference holds all that it ever will, so that a declared use
/// of it ends.
pub fn is_last_declared(last: impl FnOnce() -> bool) -> bool {
    mutant!(DeclaredEndsEarly) || last()
}

/// Whether a stream that nobody has any more may be had again: of what was allocated on it, while a pool of its is open.
#[inline]
pub fn may_come_back(pools: usize) -> bool {
    pools > 0 && !mutant!(RevivedEndsEarly)
}

/// Whether a stream with so many open uses and no pool may close.
#[inline]
pub fn may_close(open: usize) -> bool {
    open == 0 || mutant!(Z28)
}

/// Whether an open use that ended is counted off.
#[inline]
pub fn counts_ended() -> bool {
    !mutant!(OpenForgotten)
}

// O6 and O7 of an array: what an operation has to come after, and what it leaves.

/// What of the home stream's last write an access comes after.
#[inline]
pub fn after_write(written: impl FnOnce() -> u64) -> u64 {
    if mutant!(ArrayWriteUnseen) { 0 } else { written() }
}

/// What of the home stream's last read an access comes after: only a write has to.
#[inline]
pub fn after_read(writes: bool, read: impl FnOnce() -> u64) -> u64 {
    if writes && !mutant!(ArrayReadUnseen) { read() } else { 0 }
}

/// Whether an access comes after work on the home stream that has no number yet.
#[inline]
pub fn after_open(open: bool) -> bool {
    open && !mutant!(ArrayOpenUnseen)
}

/// What of the bytes' former life an access comes after (O7).
#[inline]
pub fn after_birth<T>(birth: Option<T>) -> Option<T> {
    birth.filter(|_| !mutant!(ArrayBirthUnseen))
}

/// Whether an access comes after other streams' uses, if there are any.
#[inline]
pub fn after_others(shared: bool) -> bool {
    shared && !mutant!(ArrayUseUnseen)
}

/// Whether an operation on another stream than home is kept as a use.
#[inline]
pub fn keeps_use() -> bool {
    !mutant!(ArrayUseLost)
}

/// Whether the home stream's stamps say nothing more after a write elsewhere: of the whole, not of a part.
#[inline]
pub fn write_ends_home(whole: bool, writes: bool) -> bool {
    whole || (mutant!(PartForgetsHome) && writes)
}

/// Whether a read ends earlier uses.
#[inline]
pub fn read_ends_uses(reads: bool) -> bool {
    mutant!(ArrayReadForgets) && reads
}

/// Whether what was borrowed before ends with the next loan: with an access to the whole alone.
#[inline]
pub fn ends_loans(whole: bool) -> bool {
    whole || mutant!(CudaLentEndsEarly)
}

/// Whether a write of the whole that was refused gives what was borrowed before it a number: all of that was queued before.
#[inline]
pub fn refused_ends_loans() -> bool {
    !mutant!(CudaLentForEver)
}

/// Whether a loan is kept as a use.
#[inline]
pub fn keeps_loan() -> bool {
    !mutant!(CudaLentUnseen)
}

/// Whether a loan is sealed when it begins.
#[inline]
pub fn loan_ends_at_once() -> bool {
    mutant!(CudaLentSealed)
}

/// Whether what was borrowed by many streams is borrowed by all of them instead.
#[inline]
pub fn borrowed_by_all() -> bool {
    !mutant!(CudaLentToNobody)
}

/// Whether an operation is kept that was queued and has no marker, because none could be made.
#[inline]
pub fn keeps_unmarked() -> bool {
    !mutant!(ArrayUnsealed)
}

/// Whether it is kept when the driver's call panicked: it may have been queued.
pub fn keeps_panicked(panicking: impl FnOnce() -> bool) -> bool {
    !(mutant!(PanicUnsealed) && panicking())
}

/// Whether the wait for the `i`th of an operation's `n` missing uses is left out because the marker for another one carries it: never,
/// candidates are not compared. `covers(i, j)`: whether the marker for the `i`th carries the `j`th.
#[inline]
pub fn is_left_to_another(i: usize, n: usize, covers: impl Fn(usize, usize) -> bool) -> bool {
    let another = |j| j != i && covers(j, i);
    (mutant!(ArrayCoverAny) && i > 0)
        || (mutant!(CoverOther) && (0..n).any(another))
        || (mutant!(CoverTie) && (0..n).any(|j| another(j) && !(i < j && covers(i, j))))
}

// O6 of memory in cudarc's hands (docs/cudarc.md).

/// Whether a slice may be made on a stream, of which it was asked whether it captures.
pub fn may_slice<E>(asked: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
    if mutant!(CudaSliceCaptured) { Ok(()) } else { asked() }
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

/// Whether a stream that reads a pooled slice leaves the last one's event alone, if that is another stream.
#[inline]
pub fn tells_readers_apart() -> bool {
    !mutant!(CudaOneReader)
}

/// Has a stream that reads a pooled slice wait for what the one that had its handle before it has read.
pub fn behind_its_handles_last<E>(wait: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
    if mutant!(CudaReaderReplaced) { Ok(()) } else { wait() }
}

/// Whether a launch that writes a pooled slice has to be told of copies that read it, as cudarc's event is not behind some.
#[inline]
pub fn launch_comes_behind_readers(are_apart: bool) -> bool {
    are_apart && !mutant!(CudaLaunchApart)
}

/// Whether nobody knows who used a pooled slice.
#[inline]
pub fn slice_users_are_unknown() -> bool {
    !mutant!(CudaPooledPlain)
}

/// Whether pinned memory that cudarc copies into is borrowed to be read only, on a default stream or another.
#[inline]
pub fn copy_only_reads(on_default: bool) -> bool {
    mutant!(CudaHostDefaultRead) && on_default
}

/// What an array keeps for cudarc's calls from one to the next.
pub fn keeps_anchor<T>(guest: Option<T>) -> Option<T> {
    guest.filter(|_| !mutant!(CudaAnchorEach))
}

// O7: the bytes' former life on the home stream.

/// What a first use on another stream comes after.
#[inline]
pub fn birth(stamp: Epoch) -> Epoch {
    if mutant!(Z20) { Epoch::COMPLETE } else { stamp }
}

/// Whether fresh bytes are overwritten before they are handed out.
#[inline]
pub fn scrubs() -> bool {
    !mutant!(ScrubSkipped)
}

/// Whether bytes that were overwritten are born behind that.
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

/// Whether a marker is needed no more: it is complete.
#[inline]
pub fn may_retire(number: Epoch, seen: Epoch) -> bool {
    number <= seen || mutant!(MarkersRetiredEarly)
}

/// Whether a timeline may leave the table: closed, with nothing pending.
#[inline]
pub fn may_leave(seen: u64, submitted: u64) -> bool {
    seen >= submitted || mutant!(LineRetiredEarly)
}

/// Whether a stream's entry goes with a timeline: it is that timeline's, and not one's that came after.
#[inline]
pub fn leaves_with(own: bool) -> bool {
    own || mutant!(LineUnlinked)
}

/// Whether a marker carries what its stream was ordered after.
#[inline]
pub fn carries_clock() -> bool {
    !mutant!(CopyEmpty)
}

/// Whether a wait is for what its stream's clock says now, beside what the marker carries.
#[inline]
pub fn learns_now() -> bool {
    mutant!(Z30)
}

/// Whether a stream learns of a marker that it was not made to wait for.
#[inline]
pub fn learns_unwaited() -> bool {
    mutant!(WaitDropped)
}

/// Of which timeline a wait teaches.
#[inline]
pub fn learnt_of(on: u32) -> u32 {
    on + u32::from(mutant!(WaitWrongLine))
}

/// Whether a host wait for a marker proves all later ones.
#[inline]
pub fn wait_proves_newest() -> bool {
    mutant!(WaitProvesNewest)
}

/// Whether the completion of a marker proves what its stream was made to wait for since.
#[inline]
pub fn completion_proves_now() -> bool {
    mutant!(CompleteJoinsNow)
}

/// Whether the marker above a complete one counts as complete.
#[inline]
pub fn completes_next() -> bool {
    mutant!(FoldOffByOne)
}

/// Whether a marker that a capture took for its own covers what it did.
#[inline]
pub fn captured_covers() -> bool {
    mutant!(CapturedCovers)
}

/// Whether a marker that fails because it was captured is taken out.
#[inline]
pub fn takes_out_captured(captured: bool) -> bool {
    captured && !mutant!(CapturedKept)
}

/// Whether somebody else's stream is asked again after a record whether it captures.
#[inline]
pub fn asks_again(asked: bool) -> bool {
    asked && !mutant!(CaptureUnseen)
}

/// Whether a context-wide marker may be made for a stream: not where it may end somebody's capture.
pub fn may_mark_context(unmanaged: bool, expects_captures: impl FnOnce() -> bool) -> bool {
    mutant!(ContextMarker) || !(unmanaged || expects_captures())
}

/// Whether the last number of a stream that nobody can mark has to cover what is on it since.
#[inline]
pub fn last_number_covers(loose: bool) -> bool {
    loose && !mutant!(LooseForgotten)
}

// O9: drops make no call, so that what they leave falls due.

/// Whether what falls due, and could not be done, is over.
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
