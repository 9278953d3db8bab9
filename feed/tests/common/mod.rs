//! What the test programs have in common.

use millpond_sim::Sim;

/// When all has run and all is dropped: no access was wrong, nothing is left on the device, and no drop met an error.
#[track_caller]
pub(crate) fn clean(sim: &Sim) {
    nothing_left(sim);
    assert!(sim.drop_errors().is_empty(), "{:?}", sim.drop_errors());
}

/// The same where a fault may have struck in a drop.
#[track_caller]
pub(crate) fn nothing_left(sim: &Sim) {
    sim.run_until_idle();
    sim.verdict().unwrap_or_else(|v| panic!("{v}"));
    assert!(sim.leaks().is_empty(), "{:?}", sim.leaks());
}
