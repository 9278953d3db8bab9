//! Several devices in one world, and two worlds.

use super::*;
use millpond::error::DriverErrorKind;
use millpond::units::DeviceId;
use millpond_sim::Schedule;

#[test]
fn devices_have_their_own_memory_and_calls() {
    let sims = Sim::devices(2, 1024);
    let range = sims[0].allocate(1024).expect("memory");
    let other = sims[1].allocate(1024).expect("memory of its own");
    assert_ne!(range.addr(), other.addr());
    assert_eq!((sims[0].device(), sims[1].device()), (DeviceId(0), DeviceId(1)));
    assert_eq!((sims[0].ledger().calls_total(), sims[1].ledger().bytes_reserved), (1, 1024));
    assert!(free(&sims[1], range.addr(), 1024).is_err(), "another device's");
}

#[test]
fn e6_a_wait_across_devices_is_legal_and_orders() {
    let sims = Sim::devices(2, GIB);
    let (s, t) = (sims[0].stream().expect("s"), sims[1].stream().expect("t"));
    let gate = sims[0].gate(&s).expect("an endless kernel");
    let event = mark(&sims[0], &s);
    sims[1].wait(&t, &event).expect("across devices");
    assert!(!can_finish(&sims[1], &t));
    gate.open();
    assert!(can_finish(&sims[1], &t));
}

#[test]
fn e6_a_record_on_another_devices_stream_is_refused_z12() {
    let sims = Sim::devices(2, GIB);
    let (event, t) = (sims[0].event().expect("event"), sims[1].stream().expect("t"));
    let error = sims[0].record(&event, &t).expect_err("Z12");
    assert_eq!((error.code, error.kind), (400, DriverErrorKind::InvalidHandle));
    assert!(error.message.contains("device 0") && error.message.contains("device 1"), "{error}");
    assert!(sims[0].launch(&t, touch_nothing()).is_err(), "nor a launch");
}

#[test]
fn a_device_synchronisation_concerns_one_device() {
    let sims = Sim::devices(2, GIB);
    let (s, t) = (sims[0].stream().expect("s"), sims[1].stream().expect("t"));
    let gate = sims[0].gate(&s).expect("an endless kernel");
    let event = mark(&sims[1], &t);
    sims[1].synchronize_device().expect("the other device is idle");
    assert!(sims[1].query(&event).expect("a query"));
    assert!(sims[0].synchronize_device().is_err(), "this one is not");
    let everything = sims[1].event().expect("an event");
    sims[1].record_context(&everything).expect("recorded");
    assert!(sims[1].query(&everything).expect("a query"), "a context event neither");
    gate.open();
}

#[test]
fn legacy_streams_of_two_devices_are_strangers() {
    let sims = Sim::devices(2, GIB);
    let blocking = sims[0].blocking_stream().expect("b");
    let gate = sims[0].gate(&blocking).expect("an endless kernel");
    assert!(can_finish(&sims[1], &sims[1].legacy_stream()));
    assert!(!can_finish(&sims[0], &sims[0].legacy_stream()));
    gate.open();
}

#[test]
fn a_lost_context_is_one_devices() {
    let sims = Sim::devices(2, GIB);
    sims[0].lose_context();
    assert!(sims[0].memory_info().is_err() && sims[1].memory_info().is_ok());
}

#[test]
fn things_of_two_worlds_do_not_mix() {
    let (here, there) = (sim(), sim());
    let (s, event) = (there.stream().expect("s"), there.event().expect("event"));
    assert_eq!(
        here.launch(&s, touch_nothing()).expect_err("another device's stream").kind,
        DriverErrorKind::InvalidHandle
    );
    assert!(here.query(&event).is_err());
    let handle = there.create(2 * MIB).expect("memory");
    let at = here.reserve(2 * MIB, None).expect("addresses");
    assert!(map(&here, at, &handle).is_err());
}

#[test]
fn copies_run_between_devices() {
    let sims = Sim::devices(2, GIB);
    for sim in &sims {
        sim.set_schedule(Schedule::Latest);
    }
    let (s, a, b) = (
        sims[0].stream().expect("s"),
        sims[0].allocate(4096).expect("memory"),
        sims[1].allocate(4096).expect("memory"),
    );
    sims[0].launch(&s, Launch::write_pattern(a.addr(), 4096, A)).expect("queued");
    d2d(&sims[0], b.addr(), a.addr(), 4096, &s).expect("queued");
    sims[0].launch(&s, Launch::check_pattern(b.addr(), 4096, A)).expect("queued");
    assert!(sims[0].run_until_idle());
    assert_eq!(sims[1].mismatches().1, 0);
}

/// Two devices copy to a third at once: its engine for copies in takes the bytes of both, one after the other; each sender's for copies out
/// those of its own.
#[test]
fn copies_between_devices_keep_to_the_receivers_rate() {
    const BYTES: u64 = 64 * MIB;
    let lasts = Duration::from_nanos(BYTES * 1000 / 55_500);
    for (froms, tos, times) in
        [([0, 1], [2, 2], 2), ([0, 0], [1, 2], 2), ([0, 1], [1, 0], 1), ([0, 1], [1, 2], 1)]
    {
        let sims = Sim::devices(3, GIB);
        let memory: Vec<_> = sims.iter().map(|sim| sim.allocate(2 * BYTES).expect("memory")).collect();
        let before = sims[0].makespan();
        for (n, (from, to)) in froms.into_iter().zip(tos).enumerate() {
            let at = |device: usize| Addr(memory[device].addr().0 + n as u64 * BYTES);
            let stream = sims[from].stream().expect("a stream");
            peer(&sims[from], at(to), &sims[to], at(from), BYTES, &stream).expect("queued");
        }
        let over = sims[0].makespan().checked_sub(before).expect("time passes");
        let least = lasts * times;
        assert!(over >= least && over < least + lasts / 10, "{froms:?} to {tos:?}: {over:?} for {least:?}");
    }
}
