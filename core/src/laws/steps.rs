//! What the laws say about order in time: which step comes before which. Each function takes the steps as closures and runs them in
//! the order that its law requires, so that no caller can run them in another; the bugs of that order are planted here.
//!
//! A caller puts what it has to do between two steps into the closure of one of them; in tests it pauses there, at a `pause_point!`.
//!
//! It does not know what a step does: no lock, no driver, no pool, no heap, no stream.

#![allow(clippy::nonminimal_bool, reason = "a bug that is not planted is the constant `false`")]

use crate::units::Epoch;

/// The stamp of a free whose uses on other streams may be ordered before its own: the check first, then the stamp (O5). A stamp that is
/// loaded before looks covered by a marker that another thread makes between the two. `None`: they are not ordered.
pub fn freed_stamp(ordered: impl FnOnce() -> bool, stamp: impl Fn() -> Epoch) -> Option<Epoch> {
    let early = mutant!(Z32).then(&stamp);
    ordered().then(|| early.unwrap_or_else(stamp))
}

/// A free ends the uses that it sealed: the last open use may release its stream (closing a stream), whose closing marker has to cover the
/// seals and the home stamp, so these are loaded first.
pub fn seal_then_release<T>(seal: impl FnOnce() -> T, release: impl Fn()) -> T {
    if mutant!(Z38) {
        release();
    }
    let sealed = seal();
    if !mutant!(Z38) {
        release();
    }
    sealed
}

/// The second half of a marker, whose number was reserved and whose clock was copied (O8): its event is recorded, and then `publish`
/// publishes it. One whose record failed covers nothing and is not published. Its number and its clock are not those of
/// `now` and `clock_now`: work that was queued since is not covered, and what the stream has waited for since is not carried.
pub fn record_then_publish<C: Clone, E>(
    (number, copy): (Epoch, C),
    record: impl FnOnce() -> Result<(), E>,
    publish: impl Fn(Epoch, C),
    now: impl FnOnce() -> Epoch,
    clock_now: impl FnOnce() -> C,
) -> Result<(Epoch, C), E> {
    if mutant!(Z3) {
        publish(number, copy.clone());
    }
    let recorded = record();
    let number = if mutant!(Z17) { now() } else { number };
    let copy = if mutant!(CopyLate) { clock_now() } else { copy };
    let publishes = if recorded.is_ok() { !mutant!(Z3) } else { mutant!(FailedRecord) };
    if publishes {
        publish(number, copy.clone());
    }
    recorded.map(|()| (number, copy))
}

/// A stream comes after what it waits for once the wait has returned (O8). A failed wait teaches nothing.
pub fn wait_then_learn<E>(wait: impl FnOnce() -> Result<(), E>, learn: impl Fn()) -> Result<(), E> {
    if mutant!(Z26) {
        learn();
    }
    wait()?;
    if !mutant!(WaitUnlearnt) {
        learn();
    }
    Ok(())
}

/// What synchronising a stream proves: a number that was reserved before the call, and what the stream came after by then (O8). The call did
/// not wait for work queued since.
pub fn reserve_then_synchronise<C, E>(
    reserve_epoch: impl Fn() -> Epoch,
    clock: impl Fn() -> C,
    synchronise: impl FnOnce() -> Result<(), E>,
) -> Result<(Epoch, C), E> {
    let (reserved, known) = (reserve_epoch(), clock());
    synchronise()?;
    let reserved = if mutant!(Z18) { reserve_epoch() } else { reserved };
    let known = if mutant!(LearnLate) { clock() } else { known };
    Ok((reserved, known))
}

/// What synchronising the whole device proves: a number of each of its timelines, all reserved before the
/// call (O8).
pub fn reserve_then_synchronise_all<P, E>(
    reserve_epoch: impl Fn() -> P,
    synchronise: impl FnOnce() -> Result<(), E>,
) -> Result<P, E> {
    let reserved = reserve_epoch();
    synchronise()?;
    Ok(if mutant!(DevicePromiseLate) { reserve_epoch() } else { reserved })
}

/// The host's memory of a copy is the host's again once the wait for the copy has returned (O4): a slot of a staged copy is filled again, or emptied, only then.
pub fn wait_then_take<E>(wait: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
    if mutant!(ArrayTokenUnwaited) { Ok(()) } else { wait() }
}

/// Has the source's stream wait for the uses of the target of a copy between devices.
pub fn peer_comes_behind<E>(wait: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
    if mutant!(PeerTargetEarly) { Ok(()) } else { wait() }
}

/// Has the target's stream wait for a copy between devices.
pub fn comes_behind_peer<E>(wait: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
    if mutant!(PeerUnwaited) { Ok(()) } else { wait() }
}

/// Whether the host waits for a copy between devices if the target's device is not ordered behind it, because that wait failed.
#[inline]
pub fn waits_for_lost_peer() -> bool {
    !mutant!(PeerLost)
}
