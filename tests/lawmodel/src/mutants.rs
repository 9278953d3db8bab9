//! Every way of getting the laws wrong that the model can be asked to try, and the variants that are right.
//!
//! A mutant breaks one clause; the search must find an execution that goes wrong. Names that begin with `V` and a few
//! marked "stays clean" must not be found: they say which freedom the implementation has. This file does not know how a
//! mutant is carried out: grep for its name.

macro_rules! mutants {
    ($($(#[doc = $doc:literal])* $name:ident,)*) => {
        /// Which clause is broken; `None` is the laws as they stand.
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
    /// A drain is content with one of several uses being ordered.
    OneOfTwoUses,
    /// A failed query counts as "ready".
    QueryErrorReady,
    /// A stamp is `submitted`, not `submitted + 1`.
    StampNotPlusOne,
    /// What a split leaves behind is stamped "complete".
    SplitRemainderZero,
    /// A merge keeps the older stamp.
    MergeMin,
    /// A merge keeps the left neighbour's stamp.
    MergeLeft,

    // O4, release
    /// A moved handle's old mapping goes at once.
    UnmapEarly,
    /// A moved handle's old mapping waits for its home stream only.
    UnmapHomeOnly,
    /// Memory is released when its uses are ordered, not complete.
    ReleaseOnOrder,
    /// An old mapping may go early because another one exists.
    UnmapNotOnlyMapping,

    // O5, restamp on entry
    /// A drained range keeps the stamp it was freed with.
    DrainKeepsStamp,
    /// A lent range keeps the lender's stamp.
    LendKeepsStamp,
    /// A lend loads the new stamp before its ordering facts are checked.
    StampBeforeFactLend,
    /// The same in a drain (stays clean).
    StampBeforeFactDrain,
    /// The same in a free (rare: found by long searches only).
    StampBeforeFactFree,
    /// Ranges enter with stamp 0 when their uses are merely ordered.
    ZeroIfOrdered,
    /// A drain gives stamp 0 without asking for the home stamp.
    ZeroForeignOnly,
    /// A moved handle enters with stamp 0.
    MoveZero,
    /// A range put back after a failed wait loses its stamp.
    PutBackZero,
    /// Memory from a stream-ordered source enters with stamp 0.
    UpstreamZero,
    /// Nothing ever enters with stamp 0 (stays clean, with more waits).
    NeverZero,
    /// A closed pool restamps what it drains, with a marker that nobody will record.
    ClosedStampC1,
    /// A closed pool admits ordered ranges under its last marker (stays clean).
    ClosedAdmitsOrdered,
    /// A closed pool refuses a range that comes back unchanged.
    ClosedRefusesPutBack,

    // O6, uses
    /// An open use is sealed with the number at its registration.
    SealEarly,
    /// A range in flight has no home stamp.
    NoHomeInflight,
    /// Lending from in flight obeys the foreign uses only.
    LendInflForeignOnly,
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
    /// A need before the free closes the open use it waited for.
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
    /// A lent use is sealed with the number at its call.
    LentSealedAtCall,
    /// A write to a part of the array ends lent uses too.
    LentEndsAtPart,
    /// A read of the whole ends lent uses too.
    LentEndsAtRead,

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
    /// A wait joins the other stream's clock of now, not the marker's copy.
    CopyAtWait,
    /// A wait joins no copy (stays clean, with more waits).
    NoCopyTravels,
    /// A marker is published before its record.
    PublishBeforeRecord,
    /// The clock grows before the wait is enqueued.
    KBeforeWait,
    /// A failed record publishes its number.
    FailedRecordCounts,
    /// A query proves the number of after the call.
    QueryNumberAfter,
    /// A synchronise proves the number of after the call.
    SyncNumberAfter,

    // O1 for several uses at once
    /// A wait is left out because another candidate's marker covers its use.
    CoverOther,
    /// The same, and of two that cover each other the first is waited for.
    CoverTie,

    // O9, drop and due markers
    /// Due markers are served behind the launch (stays clean: they cover more).
    DueAfterLaunch,
    /// A failed marker clears the due flag (stays clean: later ones are made on demand).
    DueClearedOnFail,

    // Kinds of streams, closing
    /// A pool closes with live allocations, and its stamps freeze.
    CloseEarly,
    /// Closed is set after the closing marker.
    ClosedFlagLate,
    /// The native stream goes while somebody is making a marker on it.
    DestroyWhileMarking,
    /// A free with unknown uses asks the known streams only.
    UnknownKnownOnly,
    /// A free with unknown uses is content with the newest context-wide marker there is.
    CtxMarkerAtMostOnce,

    // Moving handles
    /// A second mapping is made without waiting for the handle's uses.
    SecondMapNoWait,
    /// A move obeys the stamp of one pool's pieces of the handle.
    HandleOneStamp,
    /// Frees are written to units, other entries count as if they were.
    HandleStampAtFreeOnly,
    /// A unit keeps the stamp that was written last, instead of the latest.
    UnitOverwritten,
    /// Where ranges merge, only the one that arrives is written to its units.
    UnitNeighbourUnwritten,
    /// A unit has no stamp any more when a part of it leaves or is taken.
    UnitForgottenAtPart,
    /// The stamp of a part is that of the first unit it touches.
    UnitFirstOnly,
    /// Only the asker's in-flight ranges are drained.
    DrainOwnOnly,

    // Sound variants: freedoms and improvements
    /// What a cut leaves of a mixed range counts as not mixed.
    VMixedForgotten,
    /// The birth stamp is the chunk's stamp.
    VBirthIsChunkStamp,
    /// Only the newest need per stream is waited for.
    VMaxPerStream,
    /// Both of the above.
    VBirthAndMax,
    /// A wait is preceded by a query.
    VQueryBeforeWait,
    /// Entries carry the first number reserved after their facts were learnt.
    VLearnedStamp,
    /// A completed marker completes everything in its copy.
    VDoneJoinsCopy,
    /// A context-wide marker's copy is what every stream had submitted.
    VCtxCopiesSubmitted,
}
