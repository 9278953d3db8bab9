//! What `examples/first_steps.rs` prints of its two arrays: their true peak, and the ratio that follows from it.
//!
//! With two live arrays of 4 MiB it printed a peak of 4 MiB and a ratio of 5.000: the total's peak was sampled where pools miss, and
//! the second array was not looked at. The example is a module here, and what is run is its own program, at its own size; that the
//! process prints the same is `.ci/replay`'s.

#[allow(dead_code, reason = "an example, whose program is called")]
#[path = "../../examples/first_steps.rs"]
mod first_steps;

use first_steps::{N, SAXPY, steps};
use millpond::units::{GIB, MIB};
use millpond::{Allocator, Config};
use millpond_sim::{Schedule, Sim};

#[test]
fn first_steps_prints_the_peak_of_both_arrays() {
    let sim = Sim::new(144 * GIB).schedule(Schedule::Latest);
    let gpu = Allocator::new(sim.clone(), Config::default()).unwrap();
    let (copy, work) = (gpu.stream().unwrap(), gpu.stream().unwrap());
    assert_eq!(steps(&gpu, [&copy, &work], &SAXPY, N).unwrap().len(), N);
    let report = gpu.report();
    // By the device's own records nothing else was acquired: a segment, of which a part migrated to the second stream.
    assert_eq!(sim.ledger().bytes_reserved_peak, 20 * MIB);
    assert_eq!(
        (report.peak_allocated(), report.reserved_over_allocated()),
        (Some(8 * MIB), Some(2.5)),
        "{report}"
    );
    let text = report.to_string();
    let head = text.lines().next().unwrap();
    assert!(
        head.contains("reserved 20.0 MiB (peak 20.0 MiB)   peak allocated 8.00 MiB   ratio 2.500   "),
        "{head}"
    );
    let total = text.lines().find(|line| line.starts_with("total")).expect("two pools have a total");
    assert!(total.contains(" 8.00 MiB "), "{total}");
    sim.verdict().unwrap();
}
