//! The simulated device: the conformance suite on it, early, late and random, both oracles judging; what the device promises, fact by
//! fact; and the scenarios of planted bugs, on right code.

mod facts;
mod scenarios;

use millpond_sim::Schedule;
use millpond_testkit::on_sim::{bench, bench_with_windows};

mod early {
    millpond_testkit::conformance!(crate::bench(crate::Schedule::Earliest));
}
mod late {
    millpond_testkit::conformance!(crate::bench(crate::Schedule::Latest));
}
mod late_with_windows {
    millpond_testkit::conformance!(crate::bench_with_windows(crate::Schedule::Latest));
}
mod random {
    millpond_testkit::conformance!(crate::bench(crate::Schedule::Random(7)));
}
