//! How much of what is random or exhaustive a test runs, where all of it takes many seconds: a part in an ordinary run of the tests, all of it where
//! `MILLPOND_FULL` is set, as `.ci/test` and `.ci/fake-cuda` set it for the programs that they name.

/// Whether all of it was requested.
pub fn is_full() -> bool {
    std::env::var_os("MILLPOND_FULL").is_some()
}

/// The number of cases, or the length of a step through them: the first in an ordinary run, the second in a full one.
pub fn ordinary_or_full<N>(ordinary: N, full: N) -> N {
    if is_full() { full } else { ordinary }
}
