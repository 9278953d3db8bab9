//! The end of a stream that cannot be marked, beside a wait for the device: what the wait will prove, and what the stream's last
//! number covers, are agreed under one lock.

use super::operands::{convicts, every_schedule};
use super::{on, trim};
use millpond::mutant::Bug;
use millpond::units::MIB;
use millpond::{Config, Growth};
use millpond_sim::{Schedule, Sim};
use millpond_testkit::rig::{all_clean, write};
use shuttle::thread;

/// s writes x and x is freed; one thread waits for the device, another one ends s, a third wants memory.
fn an_end_beside_a_synchronise() {
    // A trim that gives back what is at work is convicted: a free that waited would hide it.
    let sim = Sim::new(64 * MIB).schedule(Schedule::Latest).waiting_frees(false);
    sim.expect_captures();
    let gpu = on(&sim, Config::default().growth(Growth::Exact));
    let native = sim.stream().unwrap();
    let (s, t) = (gpu.adopt(sim.unmanaged_stream(&native)).unwrap(), gpu.stream().unwrap());
    let x = gpu.alloc(MIB, &s).unwrap();
    write(&sim, &x, &s);
    drop(x);
    let waits = {
        let gpu = gpu.clone();
        thread::spawn(move || gpu.synchronize().unwrap())
    };
    let ends = {
        let (gpu, sim) = (gpu.clone(), sim.clone());
        thread::spawn(move || {
            sim.destroy_stream(&native).unwrap();
            drop((s, native));
            // Its timeline is over, and forgotten if all of it is complete.
            trim(&gpu);
        })
    };
    ends.join().unwrap();
    let y = gpu.alloc(MIB, &t).unwrap();
    write(&sim, &y, &t);
    waits.join().unwrap();
    drop((y, t));
    all_clean(&sim, gpu);
}

#[test]
fn a_stream_that_cannot_be_marked_ends_beside_a_synchronise() {
    assert!(every_schedule(2, an_end_beside_a_synchronise) > 100, "few schedules are no search");
}

#[test]
fn a_number_reserved_behind_the_promise_is_convicted() {
    assert!(convicts(Bug::PromiseInTwoHolds, || every_schedule(2, an_end_beside_a_synchronise)));
}
