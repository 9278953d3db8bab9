//! How the host waits by polling, where no wait with a limit is available.
//!
//! The obvious way is to query and to sleep alternately. The shortest sleep lasts 50 µs and more on Linux, five times
//! as long as a small copy; so first the host only queries, then it yields in between, and sleeps only when
//! it has waited for long: never for more than an eighth of what it has waited already, so that no answer comes much later
//! than it could. This file does not know what is queried.

use crate::DriverResult;
use core::time::Duration;
use std::sync::LazyLock;
use std::time::Instant;

/// The host's time, from a point that is the same for the whole process.
pub fn process_time() -> Duration {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    START.elapsed()
}

/// For this long the host only queries.
const KEEN: Duration = Duration::from_micros(50);
/// Up to this time it yields between two queries.
const POLITE: Duration = Duration::from_micros(500);
/// The longest sleep.
const LONGEST: Duration = Duration::from_millis(1);

/// What the host does between two queries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Pause {
    None,
    Yield,
    Sleep(Duration),
}

/// The pause after having waited this long, of at most `limit`.
fn pause(waited: Duration, limit: Duration) -> Pause {
    if waited < KEEN {
        Pause::None
    } else if waited < POLITE {
        Pause::Yield
    } else {
        Pause::Sleep((waited / 8).min(LONGEST).min(limit.saturating_sub(waited)))
    }
}

/// Queries until the answer is yes, or `limit` is over: then no. It queries at least once, and an error ends it.
pub fn query_until(limit: Duration, mut ask: impl FnMut() -> DriverResult<bool>) -> DriverResult<bool> {
    let start = Instant::now();
    loop {
        if ask()? {
            return Ok(true);
        }
        let waited = start.elapsed();
        if waited >= limit {
            return Ok(false);
        }
        match pause(waited, limit) {
            Pause::None => core::hint::spin_loop(),
            Pause::Yield => std::thread::yield_now(),
            Pause::Sleep(time) => std::thread::sleep(time),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DriverError, DriverErrorKind};

    #[test]
    fn pauses_grow_with_what_was_waited() {
        let micros = Duration::from_micros;
        assert_eq!(pause(micros(49), Duration::MAX), Pause::None);
        assert_eq!(pause(micros(50), Duration::MAX), Pause::Yield);
        assert_eq!(pause(micros(800), Duration::MAX), Pause::Sleep(micros(100)));
        assert_eq!(pause(Duration::from_secs(9), Duration::MAX), Pause::Sleep(LONGEST));
        assert_eq!(pause(micros(800), micros(830)), Pause::Sleep(micros(30)), "not beyond the limit");
    }

    #[test]
    fn it_queries_once_at_least_and_ends_with_an_error() {
        let mut asked = 0;
        let mut count = |answer: DriverResult<bool>| {
            asked += 1;
            answer
        };
        assert_eq!(query_until(Duration::ZERO, || count(Ok(false))), Ok(false));
        assert_eq!(query_until(Duration::ZERO, || count(Ok(true))), Ok(true));
        let lost = || DriverError::new("query", 719, DriverErrorKind::ContextLost, "gone");
        assert_eq!(query_until(Duration::MAX, || count(Err(lost()))), Err(lost()));
        assert_eq!(asked, 3);
        let mut left = 40;
        let answer = query_until(Duration::MAX, || {
            left -= 1;
            Ok(left == 0)
        });
        assert_eq!((answer, left), (Ok(true), 0));
    }
}
