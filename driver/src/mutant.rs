//! Planted bugs, one at a time, to show that the suite notices each: only in builds with
//! `--cfg millpond_mutants`; ordinary builds contain no trace of them.
//!
//! `mutant!(Z19)` stands at the one place where right code and bug differ; it is the constant `false` in ordinary
//! builds. The planted bug is chosen for a thread ([`plant`]), for the process ([`plant_everywhere`]), or by the
//! variable `MILLPOND_PLANT`. `pause_point!("sealed")` marks a place where some bugs need a thread to pause while others
//! go on: [`at`] runs a closure there, on a thread of its own, and waits for it, so that the pause is exact.
//!
//! It does not know the effect of any bug, nor which test must find it; docs/mutants.md does.

use core::fmt;
use core::str::FromStr;
use std::cell::{Cell, RefCell};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};

macro_rules! mutants {
    ($($bug:ident $name:literal $what:literal)+; cuda: $($cuda:ident $cuda_name:literal $cuda_what:literal)+;
        c_interface: $($door:ident $door_name:literal $door_what:literal)+;
        leaks: $($leak:ident $leak_name:literal $leak_what:literal)+) => {
        /// A bug that can be planted.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        #[repr(u8)]
        #[allow(missing_docs, reason = "each is described by `Bug::what`")]
        pub enum Bug { $($bug,)+ $($cuda,)+ $($door,)+ $($leak,)+ }

        impl Bug {
            /// Every bug, in the order of the tables of docs/mutants.md.
            pub const ALL: &[Bug] = &[$(Bug::$bug,)+ $(Bug::$cuda,)+ $(Bug::$door,)+ $(Bug::$leak,)+];
            /// Bugs of the heap, the laws and the allocator, which the simulated device shows.
            pub const CORE: &[Bug] = &[$(Bug::$bug,)+];
            /// Bugs of the CUDA backend, which only a driver shows.
            pub const CUDA: &[Bug] = &[$(Bug::$cuda,)+];
            /// Bugs of the C interface.
            pub const C_INTERFACE: &[Bug] = &[$(Bug::$door,)+];
            /// Bugs that only make something grow for ever: only a soak shows them.
            pub const LEAKS: &[Bug] = &[$(Bug::$leak,)+];

            /// The name by which it is selected.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Bug::$bug => $name,)+ $(Bug::$cuda => $cuda_name,)+ $(Bug::$door => $door_name,)+
                    $(Bug::$leak => $leak_name,)+
                }
            }
            /// What is wrong with the code when it is planted.
            pub const fn what(self) -> &'static str {
                match self {
                    $(Bug::$bug => $what,)+ $(Bug::$cuda => $cuda_what,)+ $(Bug::$door => $door_what,)+
                    $(Bug::$leak => $leak_what,)+
                }
            }
        }
    };
}

mutants! {
    Z1 "z1" "a migrated range is guarded by the receiver's last marker, recorded before the wait, instead of the next one"
    Z2 "z2" "memory from a stream-ordered source, which another pool is, enters with no stamp"
    Z3 "z3" "a marker is published before its event is recorded"
    Z4 "z4" "a stream is known by its native handle"
    Z5 "z5" "all per-thread default streams are one, since they share a handle"
    Z6 "z6" "the remainder that a migration leaves of a range in flight is free"
    Z7 "z7" "a closed pool's memory goes to others without any order"
    Z8 "z8" "one event for all uses of an allocation: a use on a second stream forgets the first"
    Z9 "z9" "a free looks at the home stream only, whatever else used the bytes"
    Z10 "z10" "a query that fails counts as complete"
    Z11 "z11" "synchronize does not synchronize"
    Z12 "z12" "another device's event is treated as one of this device"
    Z13 "z13" "a trim takes a segment whose pieces are not the whole of it"
    Z14 "z14" "pinned memory comes back when its uses are ordered, not complete"
    Z15 "z15" "the sizes tried for a growth never shrink to the request"
    Z16 "z16" "a migration takes any free range, complete or ordered or not"
    Z17 "z17" "a marker is counted after it was recorded"
    Z18 "z18" "what a synchronise proves is read after the call"
    Z19 "z19" "a drained or migrated range keeps its old stamp"
    Z20 "z20" "an allocation has no birth stamp"
    Z21 "z21" "record_use is sealed at the call instead of at the free"
    Z22 "z22" "only one last write is kept: a second stream's replaces the first's"
    Z23 "z23" "merged chunks keep the lesser stamp"
    Z26 "z26" "a stream counts as ordered before its wait has succeeded"
    Z27 "z27" "a range in flight comes back when one of its uses is over"
    Z28 "z28" "a stream closes while a use is open on it"
    Z29 "z29" "a range in flight migrates without its home stamp"
    Z30 "z30" "a wait learns the source's current clock"
    Z32 "z32" "the stamp of a free is loaded before the order is checked"
    Z33 "z33" "two operations share one open use"
    Z34 "z34" "of two exact uses on one stream the last published counts"
    Z35 "z35" "an exact use is reserved before its operation"
    Z36 "z36" "a drained range counts as complete when its cross-stream uses are, whatever the home stream does"
    Z37 "z37" "a pool's closed flag is set after the closing marker"
    Z38 "z38" "the count of open uses falls before the seal"
    Z39 "z39" "a native stream is not kept alive while a marker is made on it"
    Z40 "z40" "a trim drains no pool: what an idle stream had in flight stays there"
    OrderOffByOne "order-off-by-one" "an epoch counts as ordered one marker too early (O1)"
    CompleteOffByOne "complete-off-by-one" "an epoch counts as complete one marker too early (O4)"
    StampSubmitted "stamp-submitted" "a stamp is the newest number reserved, not the next (O8)"
    SealSubmitted "seal-submitted" "a use is sealed with the newest number reserved, not the next (O6)"
    RestForgetsUses "rest-forgets-uses" "the remainder that a migration leaves of a range in flight keeps only one of its uses"
    MergeBothForgets "merge-both-forgets" "a range that merges on both sides forgets the stamp of the one behind"
    BinAbove "bin-above" "a free range of a bin's greatest length goes into the next higher bin"
    SplitUnstamped "split-unstamped" "the remainder of a split has no stamp"
    DrainedComplete "drained-complete" "a range that was drained because it is ordered enters as complete (O5)"
    PutBackComplete "put-back-complete" "a range that returns after a failed wait is complete"
    InFlightAtOnce "in-flight-at-once" "the own pool's ranges in flight are handed out without a wait (O1)"
    WaitDropped "wait-dropped" "an inserted wait updates the clock and is never made"
    WaitUnlearnt "wait-unlearnt" "a wait does not update the clock"
    WaitWrongTimeline "wait-wrong-timeline" "a wait updates the clock for the neighbouring timeline"
    CoverOlder "cover-older" "the marker before the one that covers an epoch is waited for"
    CopyEmpty "copy-empty" "a marker carries no copy of its stream's clock"
    FailedRecord "failed-record" "a marker whose record failed is published"
    MarkersRetiredEarly "markers-retired-early" "a timeline's markers are forgotten before they are complete"
    TimelineRetiredEarly "timeline-retired-early" "a closed timeline leaves the table before it is complete"
    PollOffByOne "poll-off-by-one" "the bisection of markers ends one too high"
    WaitProvesNewest "wait-proves-newest" "a host wait for a marker proves the newest one"
    CopyLate "copy-late" "a marker's copy of the clock is made behind its record"
    LearnLate "learn-late" "what a synchronised stream comes after is read after the call"
    DevicePromiseLate "device-promise-late" "what synchronising the device proves is read after the call"
    PromiseInTwoHolds "promise-in-two-holds" "what a synchronise will prove counts as covered before the covering number is reserved"
    NamesKept "names-kept" "a stream's clock keeps the names of timelines that are over"
    NamesPruned "names-pruned" "a clock that drops complete entries drops the others too"
    TimelineUnlinked "timeline-unlinked" "a timeline that is over removes its stream's new one from the table"
    CompleteJoinsNow "complete-joins-now" "a complete marker completes what its stream waited for later"
    TrimPending "trim-pending" "a segment is given back without a look at completion (O4)"
    PinnedAtOnce "pinned-at-once" "pinned memory comes back at the free, whatever its uses"
    UnknownPlain "unknown-plain" "free_unknown is a plain free"
    ContextMarker "context-marker" "what cannot be marked by a handle is marked by a context-wide event, even beside captures"
    CaptureUnseen "capture-unseen" "a capture that began between the query and the record is not seen"
    CapturedKept "captured-kept" "a published marker whose event a capture took stays, and is queried and waited for before the next one"
    CapturedCovers "captured-covers" "what a marker covered whose event a capture took still counts as covered"
    NamedNotServed "named-not-served" "a stream that only calls naming it may mark is not marked by them"
    LooseForgotten "loose-forgotten" "a stream that cannot be marked ends as if its last marker covered all that it holds"
    ContextDueLost "context-due-lost" "a context-wide marker that could not be made is not made later"
    DueDropped "due-dropped" "a marker that fell due and failed is not due any more"
    ClosedAdmits "closed-admits" "a closed pool admits ranges that are not complete"
    ClosedKeepsOut "closed-keeps-out" "a closed pool does not take back what was cut out of it, unless it is complete"
    ClosedDrainsOrdered "closed-drains-ordered" "a closed pool forgets uses that its stream is only ordered behind"
    OwnThreadUnqueried "own-thread-unqueried" "a thread's default stream is used on another thread, where its handle means that thread's own"
    IndependentWaits "independent-waits" "independent streams are waited for and wait for others"
    UnknownWaits "unknown-waits" "by default a wait is inserted between streams that the program has neither ordered nor declared dependable"
    OwnWaitsCount "own-waits-count" "a wait that the allocator inserted for reuse counts as the program's own order of the two streams"
    EdgesKept "edges-kept" "a stream remembers its edges to timelines that are over"
    PatienceRenewed "patience-renewed" "the time that a request waited for one marker does not count for the next"
    RequestTrims "request-trims" "a request gives plain memory back, which waits for the whole device"
    EndUnwaited "end-unwaited" "an allocator's end gives memory back that it could not wait for, where frees wait for nothing"
    IdleUnmarked "idle-unmarked" "a request grows beside memory of idle streams that no marker covers"
    HintNeverRaised "hint-never-raised" "frees do not notify other pools that there is something to give"
    ProgressLost "progress-lost" "pools that stand aside do not come back when their memory completes"
    EnteredUnnotified "entered-unnotified" "a pool that stands aside does not come back when something complete enters it"
    OpenForgotten "open-forgotten" "the count of open uses never falls"
    UnclaimForgotten "unclaim-forgotten" "a refused growth keeps the room that it claimed under the limit"
    ArrayWriteUnseen "array-write-unseen" "an operation elsewhere does not come after the home stream's last write (O6)"
    ArrayReadUnseen "array-read-unseen" "a write elsewhere does not come after the home stream's reads (O6)"
    ArrayBirthUnseen "array-birth-unseen" "an operation elsewhere does not come after the work of the bytes' previous owner (O7)"
    ArrayOpenUnseen "array-open-unseen" "work of other code declared on the home stream is not waited for (O6)"
    ArrayUseUnseen "array-use-unseen" "an operation does not come after other streams' uses (O6)"
    ArrayPastUnseen "array-past-unseen" "an array made of an allocation does not come after the uses recorded before (O6)"
    ArrayUseLost "array-use-lost" "an operation elsewhere is not recorded (O6)"
    ArrayReadForgets "array-read-forgets" "a read elsewhere replaces the uses before it, as a write of the whole may"
    ArrayWholeForgetsOpen "array-whole-forgets-open" "a write of the whole ends cross-stream uses that are declared until the free"
    ArrayUnsealed "array-unsealed" "an operation whose marker fails is not recorded"
    ArrayCoverAny "array-cover-any" "of several missing waits only one is made, whatever its marker covers"
    CoverOther "cover-other" "a wait is left out because the clock of another candidate's marker covers its use"
    CoverTie "cover-tie" "as cover-other, and of two that cover each other the first is waited for"
    PartForgetsHome "part-forgets-home" "a write of a part elsewhere ends the home stream's uses, as one of the whole may"
    SealStores "seal-stores" "an operation at home stores its stamp over a later one that another thread has stored (O6)"
    PanicUnsealed "panic-unsealed" "an operation whose driver call panicked is not recorded (O6)"
    OpenEndsEarly "open-ends-early" "an operation's open use of a stream that still has references ends when there are many"
    DeclaredEndsEarly "declared-ends-early" "a declared use of a stream that work can still be queued on is sealed when there are many"
    RevivedEndsEarly "revived-ends-early" "a use of a stream without references is sealed though an allocation gives the stream out again"
    GuardSealedEarly "guard-sealed-early" "a guard's use is sealed when the guard is made, not when it ends (O6)"
    DeferredAtOnce "deferred-at-once" "what a dropped token owned is dropped with it (O4)"
    DeferredErrorDone "deferred-error-done" "the deferred drops treat a failed query as completion (O4)"
    DeferredFirstDone "deferred-first-done" "the deferred drops release a value when the first of its uses is over (O4)"
    ArrayTokenUnwaited "array-token-unwaited" "a token gives the host's memory back before its copy is complete, to a staged copy too, which fills or empties the slot again (O4)"
    LargeSourceUnseen "large-source-unseen" "the pinned pool is not notified of the copy whose token was dropped, if the source is large (O4)"
    SimPinnedUnrefused "sim-pinned-unrefused" "a safe call of the simulated device is not refused for pinned memory"
    SimPinnedReached "sim-pinned-reached" "what a safe call of the simulated device queued reaches memory that was pinned since"
    ScrubSkipped "scrub-skipped" "memory is not wiped between owners"
    ScrubUnborn "scrub-unborn" "the birth stamp is not renewed behind the wipe (O7)"
    ExternalAtOnce "external-at-once" "the owner of external memory is dropped with the array (O4)"
    PeerTargetEarly "peer-target-early" "a copy between devices does not come after what uses its target"
    PeerUnwaited "peer-unwaited" "the target's stream does not wait for a copy between devices"
    PeerLost "peer-lost" "a copy between devices that the target's stream cannot wait for is not waited for at all"
    ClockNeverCrowded "clock-never-crowded" "a stream's clock is never looked at for complete entries, however many there are"
    ClockAlwaysCrowded "clock-always-crowded" "every wait looks at the stream's clock for complete entries"
    UsesNeverCrowded "uses-never-crowded" "an allocation's uses are never looked at for complete ones, however many there are"
    UsesAlwaysCrowded "uses-always-crowded" "every use looks at all uses of its allocation for complete ones"
    FlightNeverCrowded "flight-never-crowded" "frees never drain what is in flight, however much there is"
    FlightAlwaysCrowded "flight-always-crowded" "every free with cross-stream uses drains what is in flight"
    SweepNever "sweep-never" "pools of streams that are over never leave the list"
    SweepAlways "sweep-always" "every new stream looks through all pools for those whose streams are over"
    BurstKept "burst-kept" "the events of a burst never go back to the driver"
    BurstUnwaited "burst-unwaited" "a program that waits and makes no markers keeps the events of a burst"
    FinishNever "finish-never" "where no queries are made, closed streams are not waited for either"
    LookTooSoon "look-too-soon" "markers that are complete make the next look at all timelines due however many timelines there are"
    ReportWhole "report-whole" "a report looks at all of a pool's ranges in one hold of its lock"
    Z24 "z24" "the old mapping of physical memory that moved is taken away while a use through it is pending"
    Z25 "z25" "physical memory moves to another stream, which does not wait for its uses"
    Z31 "z31" "what becomes free beside other free memory of a window leaves no stamp on its units"
    MoveInUse "move-in-use" "physical memory moves some of which is in use"
    MoveFailedLost "move-failed-lost" "physical memory that could not be mapped where it was to move does not return to its pool"
    HeldMoves "held-moves" "physical memory moves that code outside the allocator holds"
    HeldReleased "held-released" "memory goes back to the device that code outside the allocator holds"
    HeldOnce "held-once" "a second hold of the same memory is not counted: it ends with the first"
    HeldMigrates "held-migrates" "a range that code outside the allocator holds passes to another pool"
    AccessForgotten "access-forgotten" "mapped memory is used without access to it"
    MoveUncharged "move-uncharged" "calls of requests on physical memory do not count as time that was spent"
    GroupCountsTwice "group-counts-twice" "a claim of a member counts twice in its group"
    GroupUnclaimLost "group-unclaim-lost" "what a member gives back, or the driver refused it, stays counted in its group"
    GroupEndCounts "group-end-counts" "a member that ended still counts in its group"
    SoftReportedAlways "soft-reported-always" "each growth above a soft limit is reported, not only the first"
    MarksWithoutGap "marks-without-gap" "cached memory above the low watermark goes back at once, whatever the high one"
    IdleAtOnce "idle-at-once" "idle trimming gives back what was used just now"
;
cuda:
    CudaRecordElsewhere "cuda-record-elsewhere" "an event is recorded on the legacy stream, whatever the stream"
    CudaWaitDropped "cuda-wait-dropped" "a stream does not wait for an event"
    CudaPendingDone "cuda-pending-done" "an event that is not ready counts as complete"
    CudaErrorPending "cuda-error-pending" "a query that fails counts as not ready, for ever"
    CudaNeverRelaxed "cuda-never-relaxed" "a batch runs in the thread's own capture mode"
    CudaStaysRelaxed "cuda-stays-relaxed" "a batch leaves the thread's capture mode relaxed"
    CudaIgnoresCaptures "cuda-ignores-captures" "a context-wide event is recorded even beside captures"
    CudaFirstSuspect "cuda-first-suspect" "a context-wide event is recorded if the first stream that is known does not capture"
    CudaWaitsCaptured "cuda-waits-captured" "what cannot be ordered because of a capture waits for the device instead, which destroys the capture"
    CudaHandleIsId "cuda-handle-is-id" "a stream's identity is its handle, which comes back"
    CudaAnyThread "cuda-any-thread" "another thread's default stream is used as this thread's"
    CudaContextLeft "cuda-context-left" "the last reference to an adopted stream leaves its context current"
    CudaDirtyPages "cuda-dirty-pages" "pinned pages are handed out as the driver left them"
    CudaRegisterFails "cuda-register-fails" "a refused registration fails the request for pinned memory, which the driver's own call would serve"
    CudaUnregisterIgnored "cuda-unregister-ignored" "an error of the end of a registration is ignored: the memory goes, and the device still has it"
    CudaScrubbedNot "cuda-scrubbed-not" "freed memory is not overwritten where that was requested"
    CudaPinnedUnrefused "cuda-pinned-unrefused" "a safe call of the CUDA backend is not refused for pinned memory"
    CudaPartFreed "cuda-part-freed" "a free of a part of a range frees the whole"
    CudaMappingKept "cuda-mapping-kept" "addresses that were unmapped still count as memory of ours"
    CudaBorrowEndsEarly "cuda-borrow-ends-early" "a use that cudarc borrows ends at any access, not only one to the whole (O6)"
    CudaBlockingStream "cuda-blocking-stream" "streams of ours are blocking: the legacy stream waits for them"
    CudaBorrowUnseen "cuda-borrow-unseen" "a use that cudarc borrows an array for is not recorded (O6)"
    CudaBorrowSealed "cuda-borrow-sealed" "a borrowed use is sealed when the address is taken (O6)"
    CudaBorrowForgotten "cuda-borrow-forgotten" "a borrow by many streams is forgotten, instead of counting as one by all streams (O6)"
    CudaPooledPlain "cuda-pooled-plain" "a pooled slice is freed as if cudarc's tracking knew its readers (O6)"
    CudaPooledUntracked "cuda-pooled-untracked" "work on a pooled slice on a stream of another of cudarc's values for the context is not tracked"
    CudaOneReader "cuda-one-reader" "a pooled slice remembers one of the streams that have read it since it was written, as cudarc does"
    CudaReaderReplaced "cuda-reader-replaced" "a stream with the handle of a destroyed one takes its place among a pooled slice's readers, and does not come behind it"
    CudaLaunchApart "cuda-launch-apart" "a launch that writes a pooled slice does not wait for the copies that read it"
    CudaPhantomStream "cuda-phantom-stream" "a stream that cudarc counts and could not make stays counted, though the context was not waited for"
    CudaBorrowForEver "cuda-borrow-for-ever" "a refused write of the whole leaves earlier borrowed uses open, for ever where they cannot be marked"
    CudaOtherContext "cuda-other-context" "a reference of another context of the device is treated as one of this context's"
    CudaStoreShared "cuda-store-shared" "threads that look into cudarc's stored error do not take turns"
    CudaSliceCaptured "cuda-slice-captured" "a pooled slice is made on a stream that captures, which its event destroys"
    CudaAnchorEach "cuda-anchor-each" "each pooled slice makes cudarc a stream in its value, and waits if it is the first there"
    CudaPooledHome "cuda-pooled-home" "a pooled slice is cudarc's on the stream it was made for, which its end makes wait"
    CudaAliasUnseen "cuda-alias-unseen" "a stream whose alias was given out is not queried for a capture"
    CudaHostDefaultRead "cuda-host-default-read" "cudarc's copies into a pinned array on a default stream are recorded as reads"
;
c_interface:
    DoorTagForgotten "door-tag-forgotten" "free_on forgets that the memory's users are unknown"
    DoorRecordLost "door-record-lost" "PyTorch's record_stream that is refused is lost"
    DoorLaneKept "door-lane-kept" "a stream whose handle is now another's is kept for ever"
    DoorSlotLate "door-slot-late" "an allocation leaves the table of addresses after its bytes are free"
    DoorAnyThreadHome "door-any-thread-home" "another thread's default stream counts as the allocation's own"
    DoorUntrimmed "door-untrimmed" "what is freed after the end of its allocator stays with it"
    DoorHandleIsLane "door-handle-is-lane" "a thread mistakes a stream for the one that had its handle"
    DoorUnknownPlain "door-unknown-plain" "millpond_free_unknown is a plain free"
    DoorPinnedUnknownPlain "door-pinned-unknown-plain" "millpond_free_pinned_unknown is a plain free"
    DoorPinnedUnowned "door-pinned-unowned" "another allocator's pinned memory counts as unowned"
    DoorCreateNotified "door-create-notified" "a create that fails has already notified its device that captures are expected"
    DoorFreeAfterOne "door-free-after-one" "millpond_free_after records the first stream only"
    DoorClosedFirst "door-closed-first" "a destroy that fails has ended its allocator"
    DoorEndedFirst "door-ended-first" "a free_on that fails has freed"
    DoorDebtForgotten "door-debt-forgotten" "what was postponed after the end is not given back by later calls"
    DoorLimitKept "door-limit-kept" "a limit that could not be set stays"
    DoorThreadStays "door-thread-stays" "a thread's default stream does not end with its thread"
    DoorFreeUnmarked "door-free-unmarked" "a free that names its streams marks none of them"
    DoorEndedKept "door-ended-kept" "a trim or a synchronise of an ended allocator gives nothing back"
    DoorFreeTrims "door-free-trims" "a free after the end gives memory back to the driver, which may wait"
    DoorTrimWaits "door-trim-waits" "a trim waits for the device of an ended allocator that has something postponed, which ends captures"
    DoorEndWaits "door-end-waits" "millpond_destroy and PyTorch's empty_cache wait for the device by the call that ends captures"
    DoorReleaseWaits "door-release-waits" "millpond_release waits for the device, which ends captures"
    DoorEventsKept "door-events-kept" "an allocator that has ended keeps the event of each permanent stream that it used"
    DoorUseFirst "door-use-first" "a use that cannot be recorded counts as one by an unknown stream"
    DoorUseKept "door-use-kept" "a use that cannot be recorded is recorded all the same, and refused"
    DoorRefusedTrims "door-refused-trims" "a use that cannot be recorded has given idle memory back before it is refused"
    DoorEndUnqueried "door-end-unqueried" "an end or a synchronise waits for the device without a query whether any stream captures"
    DoorElsewhereUnqueried "door-elsewhere-unqueried" "PyTorch's use on another device's stream is lost if that stream cannot be queried just now"
    DoorElsewhereLost "door-elsewhere-lost" "PyTorch's use on another device's stream is lost if the free cannot be ordered behind it"
    DoorElsewhereUnseen "door-elsewhere-unseen" "millpond_free and its like look for no use on another device's stream"
    DoorLaterLost "door-later-lost" "PyTorch's free that was postponed for a use on another device's stream is never made"
    DoorFreedAlive "door-freed-alive" "an allocator that ended long ago is freed although memory of it is alive"
    DoorHoldShared "door-hold-shared" "two calls that name one allocation at once both get it"
    DoorElsewhereByHandle "door-elsewhere-by-handle" "a use on another device is looked for by the handle of its stream, which may be another's by the free"
    DoorPutOffShared "door-put-off-shared" "a free that was postponed can be made again by another call with the pointer"
    DoorRemovedEarly "door-removed-early" "an allocator that ended leaves the table under a call that found it open"
    DoorFreedEarly "door-freed-early" "an allocator that left the table is freed under calls that found it there"
    DoorBarrierSkipped "door-barrier-skipped" "the call that frees an allocator has no fence made in the calls that have just begun"
;
leaks:
    LeakUnlooked "leak-unlooked" "a call that makes a marker does not look whether others are complete"
    LeakUnpooled "leak-unpooled" "the event of a marker or token without references is destroyed, and the next one created"
    LeakUnfiled "leak-unfiled" "a range in flight whose use is over is not listed under its next use"
    LeakThinned "leak-thinned" "a timeline that is thinned loses half of its older markers, however many there are"
    LeakUnordered "leak-unordered" "a deterministic allocator grows however much of its memory is in flight, instead of waiting on the device"
    LeakKept "leak-kept" "a value that is kept for the device is not looked at again"
}

impl fmt::Display for Bug {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A name that belongs to no bug.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("no bug is called {0:?}; there are {names}", names = Bug::ALL.iter().map(|bug| bug.name()).collect::<Vec<_>>().join(" "))]
pub struct UnknownBug(String);

impl FromStr for Bug {
    type Err = UnknownBug;
    fn from_str(name: &str) -> Result<Bug, UnknownBug> {
        let found = Bug::ALL.iter().find(|bug| bug.name().eq_ignore_ascii_case(name.trim()));
        found.copied().ok_or_else(|| UnknownBug(name.to_owned()))
    }
}

/// No bug, as a number.
const NONE: u8 = u8::MAX;
static EVERYWHERE: AtomicU8 = AtomicU8::new(NONE);

/// A thread's choice.
#[derive(Clone, Copy, Debug)]
enum Choice {
    /// The choice of the process.
    Everywhere,
    /// A bug, or none.
    Here(Option<Bug>),
}

type Frozen = Box<dyn FnOnce() + Send>;

thread_local! {
    static KEEPS_GOING: Cell<u32> = const { Cell::new(0) };
    static HERE: Cell<Choice> = const { Cell::new(Choice::Everywhere) };
    static POINTS: RefCell<Vec<(&'static str, u32, Frozen)>> = const { RefCell::new(Vec::new()) };
}

/// When dropped, restores the thread's former choice and forgets its points.
#[derive(Debug)]
#[must_use = "the bug is planted for as long as this lives"]
pub struct Planted(Choice);

impl Drop for Planted {
    fn drop(&mut self) {
        HERE.set(self.0);
        forget_points();
    }
}

/// Plants a bug, or none, for the calls of this thread.
pub fn plant(bug: Option<Bug>) -> Planted {
    Planted(HERE.replace(Choice::Here(bug)))
}

/// Plants a bug, or none, for every thread without a choice of its own.
pub fn plant_everywhere(bug: Option<Bug>) {
    EVERYWHERE.store(bug.map_or(NONE, |b| b as u8), Ordering::Relaxed);
}

/// What is planted for this thread.
///
/// # Panics
/// When `MILLPOND_PLANT` names no bug.
pub fn current() -> Option<Bug> {
    static FROM_ENV: OnceLock<()> = OnceLock::new();
    FROM_ENV.get_or_init(|| {
        if let Some(name) = std::env::var_os("MILLPOND_PLANT") {
            let name = name.into_string().unwrap_or_else(|raw| panic!("MILLPOND_PLANT: {raw:?} is no text"));
            plant_everywhere(Some(name.parse().unwrap_or_else(|e| panic!("MILLPOND_PLANT: {e}"))));
        }
    });
    match HERE.get() {
        Choice::Here(bug) => bug,
        Choice::Everywhere => Bug::ALL.get(usize::from(EVERYWHERE.load(Ordering::Relaxed))).copied(),
    }
}

/// Whether this bug is planted: what `mutant!` expands to.
pub fn is(bug: Bug) -> bool {
    current() == Some(bug)
}

/// The `nth` time that this thread reaches a point, 1 being the next, `then` runs on a thread of its own, with the same
/// bug planted, while this one waits.
pub fn at(point: &'static str, nth: u32, then: impl FnOnce() + Send + 'static) {
    POINTS.with_borrow_mut(|points| points.push((point, nth, Box::new(then))));
}

/// How many closures of [`at`] have not run yet on this thread: a scenario that never reached its point proved nothing.
pub fn waiting() -> usize {
    POINTS.with_borrow(Vec::len)
}

/// Forgets the closures of [`at`] that have not run yet on this thread.
pub fn forget_points() {
    let gone = POINTS.take();
    drop(gone);
}

/// From now on this thread is paused nowhere, until as many calls with `false` as with `true`: it has a turn that another thread may have to wait for, and
/// that one would be waited for.
pub fn keep_going(on: bool) {
    KEEPS_GOING.set(KEEPS_GOING.get().wrapping_add_signed(if on { 1 } else { -1 }));
}

/// A place where a thread may be paused: what `pause_point!` calls. Not while it [keeps going](keep_going).
///
/// # Panics
/// With what the closure panicked with.
pub fn point(name: &'static str) {
    if KEEPS_GOING.get() > 0 {
        return;
    }
    // A stream that a thread remembers to its end is dropped when the points no longer exist.
    let due = POINTS.try_with(|points| {
        let mut points = points.borrow_mut();
        for (_, left, _) in points.iter_mut().filter(|(point, _, _)| *point == name) {
            *left = left.saturating_sub(1);
        }
        points.iter().position(|(_, left, _)| *left == 0).map(|i| points.remove(i).2)
    });
    let Ok(Some(then)) = due else { return };
    let bug = current();
    let other = std::thread::spawn(move || {
        let _planted = plant(bug);
        then();
    });
    if let Err(panic) = other.join() {
        std::panic::resume_unwind(panic);
    }
}
