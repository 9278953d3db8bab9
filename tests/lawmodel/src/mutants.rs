//! The mutants of the laws that the model can run, and the variants that are also correct.
//!
//! A mutant breaks one clause, and the search must find an execution that violates something. Names that begin with `V` and a few
//! marked "stays clean" must not be found: they are freedoms that the implementation has. This file lists the mutants; the code that
//! implements one is found by a search for its name.

macro_rules! mutants {
    ($($(#[doc = $doc:literal])* $name:ident,)*) => {
        /// Which clause is broken; `None` is the laws themselves.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum Mutant { $($(#[doc = $doc])* $name),* }
        /// All of them, in the order of the laws.
        pub const ALL: &[Mutant] = &[$(Mutant::$name),*];
    };
}

mutants! {
    /// The laws.
    None,

    // O1, reuse
    /// A drain takes a range as soon as one of its several uses is ordered.
    OneOfTwoUses,
    /// A failed query counts as "ready".
    QueryErrorReady,
    /// A stamp is `submitted`, not `submitted + 1`.
    StampNotPlusOne,
    /// The remainder of a split is stamped "complete".
    SplitRemainderZero,
    /// A merge keeps the older stamp.
    MergeMin,
    /// A merge keeps the left neighbour's stamp.
    MergeLeft,

    // O4, release
    /// A moved handle's old mapping is removed at once.
    UnmapEarly,
    /// A moved handle's old mapping is removed when the uses of its home stream are complete, whatever the other streams' are.
    UnmapHomeOnly,
    /// Memory is released when its uses are ordered, not complete.
    ReleaseOnOrder,
    /// An old mapping is removed early because another one exists.
    UnmapNotOnlyMapping,

    // O5, restamp on entry
    /// A drained range keeps the stamp it was freed with.
    DrainKeepsStamp,
    /// A migrated range keeps the stamp of the pool that it came from.
    MigrationKeepsStamp,
    /// A migration loads the new stamp before it checks the order.
    StampBeforeFactMigration,
    /// The same in a drain (stays clean).
    StampBeforeFactDrain,
    /// The same in a free (rare: found by long searches only).
    StampBeforeFactFree,
    /// Ranges enter with stamp 0 when their uses are ordered but not complete.
    ZeroIfOrdered,
    /// A drain gives stamp 0 if the cross-stream uses are complete, without a check of the home stamp.
    ZeroCrossStreamOnly,
    /// A moved handle enters with stamp 0.
    MoveZero,
    /// A range put back after a failed wait loses its stamp.
    PutBackZero,
    /// Memory from a stream-ordered source enters with stamp 0.
    UpstreamZero,
    /// Nothing ever enters with stamp 0 (stays clean, with more waits).
    NeverZero,
    /// A closed pool stamps what it drains with the number of a marker that will never be recorded.
    ClosedStampC1,
    /// A closed pool admits ordered ranges under its last marker (stays clean).
    ClosedAdmitsOrdered,
    /// A closed pool refuses a range that is put back unchanged.
    ClosedRefusesPutBack,

    // O6, uses
    /// An open use is sealed with the number at its registration.
    SealEarly,
    /// A range in flight has no home stamp.
    NoHomeInflight,
    /// A migration of a range in flight waits for the cross-stream uses only.
    MigrationInflCrossStreamOnly,
    /// A write replaces every other write.
    OneLastWrite,
    /// A whole-array write replaces open uses too.
    WholeReplacesOpen,
    /// A sub-view's write replaces as if it were the whole array.
    SubviewReplaces,
    /// A write replaces although its marker failed.
    ReplaceOnMarkFail,
    /// A read replaces too.
    ReplaceUnordered,
    /// An operation that waits for an open use before the free closes that use.
    NeedClosesOpen,
    /// Two operations share one open entry.
    SharedOpenEntry,
    /// Exact uses on one stream: the last to arrive wins, instead of the newest.
    ExactLastWins,
    /// An exact use's marker is reserved before its operation.
    ExactReservedBeforeOp,
    /// A use is registered after its operation.
    RegisterAfterOp,
    /// A free lowers the count of open uses before it seals them.
    OpenDroppedBeforeSeal,
    /// A borrowed use is sealed with the number at its call.
    BorrowSealedAtCall,
    /// A write to a part of the array ends borrowed uses too.
    BorrowEndsAtPart,
    /// A read of the whole array ends borrowed uses too.
    BorrowEndsAtRead,

    // O7, birth
    /// An allocation has no birth stamp.
    NoBirth,
    /// The birth stamp is loaded before an inserted wait.
    BirthBeforeWait,

    // O8, reserve, copy, record, publish
    /// The number is reserved after the record.
    CountAfterRecord,
    /// The clock is copied after the record.
    CopyAfterRecord,
    /// A wait joins the other stream's current clock, not the marker's copy.
    CopyAtWait,
    /// A wait joins no copy (stays clean, with more waits).
    NoCopyTravels,
    /// A marker is published before its record.
    PublishBeforeRecord,
    /// The clock is updated before the wait is enqueued.
    KBeforeWait,
    /// A failed record publishes its number.
    FailedRecordCounts,
    /// A query that answers "ready" proves the newest number after the call, instead of its marker's.
    QueryNumberAfter,
    /// A synchronise proves the newest number after the call, instead of the one before it.
    SyncNumberAfter,

    // O1 for several uses at once
    /// A wait is left out because another candidate's marker covers its use.
    CoverOther,
    /// The same, except that of two which cover each other's use the first is waited for.
    CoverTie,

    // O9, drop and due markers
    /// Due markers are made after the launch (stays clean: they cover more).
    DueAfterLaunch,
    /// A failed marker clears the due flag (stays clean: later ones are made on demand).
    DueClearedOnFail,

    // Kinds of streams, closing
    /// A pool closes with live allocations, and its stamps do not increase after that.
    CloseEarly,
    /// The closed flag is set after the closing marker.
    ClosedFlagLate,
    /// The native stream is destroyed while a thread is making a marker on it.
    DestroyWhileMarking,
    /// A free with unknown uses records uses of the known streams only.
    UnknownKnownOnly,
    /// A free with unknown uses is covered by the newest context-wide marker that exists, instead of the next one.
    CtxMarkerAtMostOnce,

    // Moving handles
    /// A second mapping is made without waiting for the handle's uses.
    SecondMapNoWait,
    /// A move waits for the stamp of one pool's pieces of the handle, not of all pools'.
    HandleOneStamp,
    /// Only a free's stamp is written to units; other ranges that enter are treated as if theirs were.
    HandleStampAtFreeOnly,
    /// A unit keeps the stamp that was written last, instead of the latest.
    UnitOverwritten,
    /// Where ranges merge, only the one that arrives is written to its units.
    UnitNeighbourUnwritten,
    /// A unit loses its stamp when a part of it leaves or is taken.
    UnitForgottenAtPart,
    /// The stamp of a part is that of the first unit it touches.
    UnitFirstOnly,
    /// Only the in-flight ranges of the requesting stream's pool are drained.
    DrainOwnOnly,

    // Correct variants: freedoms and improvements
    /// The remainder of a mixed range after a cut counts as not mixed.
    VMixedForgotten,
    /// The birth stamp is the chunk's stamp.
    VBirthIsChunkStamp,
    /// An operation waits for the newest use of each stream only.
    VMaxPerStream,
    /// Both of the above.
    VBirthAndMax,
    /// A wait is preceded by a query.
    VQueryBeforeWait,
    /// A range enters with the first number reserved after its order became known.
    VLearnedStamp,
    /// A completed marker completes everything in its copy of the clock.
    VDoneJoinsCopy,
    /// A context-wide marker's copy of the clock has the newest number of every stream.
    VCtxCopiesSubmitted,
}
