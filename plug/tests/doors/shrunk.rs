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
        Create 0 146 29 0 0
        Alloc 0 233 0 0 0
        Destroy 0 202 0 0 0",
    ),
];
