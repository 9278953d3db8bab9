//! Programs that showed a defect, as they were shrunk: each with what was wrong.

pub(crate) const SHRUNK: &[(&str, &str)] = &[
    (
        "a limit stayed although the call that set it had failed in giving segments back",
        "schedule 0 rounds 0
        Permanent 0 121 2 0 0
        Alloc 0 142 10 52 0
        Limit 0 253 7 0 1:2",
    ),
    (
        "a deterministic allocator asks no event, and never gave back what was freed after its end",
        "schedule 0 rounds 0
        Create 0 146 5 0 0
        Alloc 0 233 0 0 0
        Destroy 0 202 0 0 0",
    ),
    (
        "the model let `millpond_set_limit` move idle memory and then fail, and not PyTorch's memory fraction, which sets the limit too",
        "schedule 2 rounds 0
        TorchAlloc 0 0 55 0 0
        Alloc 0 33 0 0 0
        Alloc 0 14 0 0 0
        FreeOn 0 53 120 0 0
        TorchAlloc 0 3 0 20 0
        TorchUse 0 0 110 0 0
        Limit 1 31 1 0 1",
    ),
    (
        "the model let no `millpond_create` that fails take back what was in flight of an ended allocator, to a stream that nobody marks",
        "schedule 0 rounds 0 quiet
        Alloc 0 0 0 0 0
        Create 0 0 14 0 6:999
        FreeUnknown 0 0 0 3 0
        Create 0 0 14 0 7:999",
    ),
    (
        "the judge took the wait for what a release overwrites for one for a stream of the program's",
        "schedule 0 rounds 0 quiet
        Create 0 121 152 0 0
        Permanent 0 0 190 0 0
        Alloc 0 1 1 0 0
        FreeOn 0 0 38 0 0
        Destroy 0 5 0 19 0",
    ),
    (
        "a trim of an ended allocator gave back more than it said, what its own unpinning had waited for",
        "schedule 1 rounds 0
        Alloc 0 0 3 0 0
        FreeAfter 0 0 131 0 0
        Pin 0 4 0 0 0
        Destroy 0 104 0 3 0
        PinFree 0 0 54 0 0
        Trim 0 0 0 0 0",
    ),
    (
        "the check of what is left knew no page of a wait that a driver which had broken takes back neither at once nor in its drop",
        "schedule 0 rounds 0
        Breaks 0 64 16 0 0
        Destroy 0 58 0 12 0",
    ),
    (
        "the model destroyed a stream, with work on it, whose handle an allocator takes for that of one which was to last",
        "schedule 0 rounds 0
        Permanent 0 0 0 0 0
        BreaksItsWord 0 0 67 0 0
        Alloc 0 0 0 8 0
        Close 0 0 0 0 0
        Free 0 0 0 0 0
        Alloc 0 0 0 8 0",
    ),
];
