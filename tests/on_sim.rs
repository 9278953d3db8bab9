//! The conformance suite on the simulated device: early, late and random, both oracles judging.

use millpond_sim::Schedule;
use millpond_testkit::on_sim::bench;

mod early {
    millpond_testkit::conformance!(crate::bench(crate::Schedule::Earliest));
}
mod late {
    millpond_testkit::conformance!(crate::bench(crate::Schedule::Latest));
}
mod random {
    millpond_testkit::conformance!(crate::bench(crate::Schedule::Random(7)));
}
