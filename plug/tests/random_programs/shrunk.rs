//! Programs that showed a defect, in their shrunk form, each with what was wrong.

pub(crate) const SHRUNK: &[(&str, &str)] = &[
    (
        "a limit stayed although the call that set it had failed in giving segments back",
        "schedule 0 rounds 0
        Permanent 0 121 2 0 0
        Alloc 0 142 10 52 0
        Limit 0 253 7 0 1:2",
    ),
    (
        "a deterministic allocator queries no event, and never gave back what was freed after its end",
        "schedule 0 rounds 0
        Create 0 146 5 0 0
        Alloc 0 233 0 0 0
        Destroy 0 202 0 0 0",
    ),
    (
        "the model allowed `millpond_set_limit` to move idle memory and then fail, but not PyTorch's memory fraction, which sets the limit too",
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
        "the model did not allow a failing `millpond_create` to take back memory in flight of an ended allocator whose stream cannot be marked",
        "schedule 0 rounds 0 quiet
        Alloc 0 0 0 0 0
        Create 0 0 14 0 6:999
        FreeUnknown 0 0 0 3 0
        Create 0 0 14 0 7:999",
    ),
    (
        "the check took a release's wait for the memory that it overwrites for a wait for a stream of the program's",
        "schedule 0 rounds 0 quiet
        Create 0 121 152 0 0
        Permanent 0 0 190 0 0
        Alloc 0 1 1 0 0
        FreeOn 0 0 38 0 0
        Destroy 0 5 0 19 0",
    ),
    (
        "a trim of an ended allocator gave back more than it returned: also memory that its own unpinning had waited for",
        "schedule 1 rounds 0
        Alloc 0 0 3 0 0
        FreeAfter 0 0 131 0 0
        Pin 0 4 0 0 0
        Destroy 0 104 0 3 0
        PinFree 0 0 54 0 0
        Trim 0 0 0 0 0",
    ),
    (
        "the check of what is left did not allow the page of a wait that a broken driver takes back neither at once nor in its drop",
        "schedule 0 rounds 0
        Breaks 0 64 16 0 0
        Destroy 0 58 0 12 0",
    ),
    (
        "the model destroyed a stream with pending work whose handle an allocator takes for that of a permanent stream",
        "schedule 0 rounds 0
        Permanent 0 0 0 0 0
        DestroyPermanent 0 0 67 0 0
        Alloc 0 0 0 8 0
        Close 0 0 0 0 0
        Free 0 0 0 0 0
        Alloc 0 0 0 8 0",
    ),
    (
        "the model expected a refusal of another device's stream whose handle an allocator takes for that of a permanent stream",
        "schedule 0 rounds 0
        Permanent 0 0 0 0 0
        DestroyPermanent 0 0 71 0 0
        Alloc 0 0 71 0 0
        Hostile 0 0 0 35 0",
    ),
];
