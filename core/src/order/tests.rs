//! The numbers of the laws, one rule at a time. Tests under the oracle, in tests/, check what they mean on a device.

use super::*;
use hashbrown::HashMap;

const S: TimelineId = TimelineId(1);
const T: TimelineId = TimelineId(2);
const U: TimelineId = TimelineId(3);

/// What was seen complete; a timeline that is not named is at 0.
#[derive(Default)]
struct Seen(HashMap<TimelineId, Epoch>);
impl Completed for Seen {
    fn completed(&self, on: TimelineId) -> Epoch {
        self.0.get(&on).copied().unwrap_or_default()
    }
}
fn seen(all: &[(TimelineId, u64)]) -> Seen {
    Seen(all.iter().map(|&(on, e)| (on, Epoch(e))).collect())
}
fn pending(on: TimelineId, epoch: u64) -> Pending {
    Pending { on, epoch: Epoch(epoch) }
}

#[test]
fn o1_a_use_is_over_by_identity_by_clock_or_by_completion_and_not_otherwise() {
    let mut clock = Clock::EMPTY;
    clock.raise(S, Epoch(5));
    assert!(is_ordered(T, &Clock::EMPTY, &seen(&[]), pending(T, 9)), "the own stream");
    assert!(is_ordered(T, &clock, &seen(&[]), pending(S, 5)));
    assert!(!is_ordered(T, &clock, &seen(&[]), pending(S, 6)), "the clock stops at 5");
    assert!(is_ordered(T, &clock, &seen(&[(S, 6)]), pending(S, 6)), "complete");
    assert!(
        !is_ordered(T, &clock, &seen(&[(S, 99)]), pending(U, 1)),
        "another stream's completion says nothing"
    );
    assert!(is_ordered(T, &Clock::EMPTY, &seen(&[]), pending(S, 0)), "epoch 0 is complete");
}

#[test]
fn o3_a_clock_only_grows() {
    let mut clock = Clock::EMPTY;
    clock.raise(S, Epoch(5));
    clock.raise(S, Epoch(3));
    assert_eq!(clock.get(S), Epoch(5));
}

#[test]
fn o8_what_travels_with_a_marker_is_the_clock_copied_when_it_was_made() {
    let mut s: MarkerLog<&str> = MarkerLog::new(S);
    let mut t: MarkerLog<&str> = MarkerLog::new(T);
    s.waited(U, &Marker { number: Epoch(4), event: "u4", copy: Clock::EMPTY });
    let marker = Marker { number: Epoch(1), event: "s1", copy: s.clock().clone() };
    // Learnt after the copy: must not leak into it.
    s.waited(U, &Marker { number: Epoch(9), event: "u9", copy: Clock::EMPTY });
    t.waited(S, &marker);
    assert_eq!(
        (t.clock().get(S), t.clock().get(U)),
        (Epoch(1), Epoch(4)),
        "A after B after C counts, no more"
    );
    assert_eq!(t.clock().get(T), Epoch(0), "a stream needs no entry for itself");
}

#[test]
fn o8_markers_published_out_of_order_are_found_by_number() {
    let mut s: MarkerLog<u64> = MarkerLog::new(S);
    for n in [3, 1, 2, 7] {
        s.publish(Marker { number: Epoch(n), event: n, copy: Clock::EMPTY });
    }
    assert_eq!(s.covering(Epoch(2)).map(|m| m.event), Some(2), "the one that waits for least");
    assert_eq!(s.covering(Epoch(4)).map(|m| m.event), Some(7), "a failed number is covered by the next");
    assert!(s.covering(Epoch(8)).is_none());
    assert_eq!(s.above(Epoch(2)).map(|m| m.event).collect::<Vec<_>>(), [3, 7]);
    assert_eq!(s.retire(Epoch(3)).map(|m| m.event).collect::<Vec<_>>(), [1, 2, 3]);
    assert_eq!(s.newest(), Epoch(7));
}

fn published(numbers: impl IntoIterator<Item = u64>) -> MarkerLog<u64> {
    let mut markers = MarkerLog::new(S);
    for n in numbers {
        markers.publish(Marker { number: Epoch(n), event: n, copy: Clock::EMPTY });
    }
    markers
}

#[test]
fn the_newest_complete_marker_is_found_with_few_questions_wherever_it_is() {
    for count in 0..40_u64 {
        let markers = published((1..=count).map(|i| 3 * i));
        for complete in 0..=count {
            for was_behind in [false, true] {
                let (mut done, mut open, mut questions, mut behind) = (Epoch(0), None, 0, was_behind);
                while let Some(probe) = markers.probe(done, open, behind) {
                    questions += 1;
                    if probe.event <= 3 * complete {
                        (done, behind) = (probe.number, false);
                    } else {
                        open = Some(probe.number);
                    }
                }
                assert_eq!(done, Epoch(3 * complete), "{complete} of {count}");
                let max = match complete {
                    _ if count == 0 => 0,
                    0 if was_behind => 1,
                    _ if complete == count => 1 + u32::from(was_behind && count > 1),
                    _ => 2 + count.ilog2() + u32::from(was_behind),
                };
                assert!(questions <= max, "{questions} questions for {complete} of {count}, {was_behind}");
            }
        }
    }
}

#[test]
fn thinning_keeps_the_newest_and_leaves_every_epoch_covered() {
    for newest in 1..6_usize {
        for count in 0..60_u64 {
            let mut markers = published(1..=count);
            let out = markers.thin(newest);
            let left: Vec<u64> = markers.above(Epoch(0)).map(|m| m.event).collect();
            assert_eq!(out.len() + left.len(), count as usize, "none is lost");
            if count as usize <= 2 * newest {
                assert!(out.is_empty());
                continue;
            }
            assert!(left.len() <= 2 * newest, "{left:?}");
            assert!(left.ends_with(&(count - newest as u64 + 1..=count).collect::<Vec<_>>()), "{left:?}");
            for epoch in 1..=count {
                let covering = markers.covering(Epoch(epoch)).expect("the newest covers all");
                // Evenly: as often halved as had to be.
                let apart = (count as usize / newest).next_power_of_two() as u64;
                assert!((epoch..epoch + apart).contains(&covering.event), "{epoch} by {}", covering.event);
            }
        }
    }
}

#[test]
fn what_a_marker_taken_out_covered_the_next_one_covers() {
    for count in 0..8_u64 {
        for gone in 0..10 {
            let mut markers = published(1..=count);
            let is_there = (1..=count).contains(&gone);
            assert_eq!(markers.take_out(Epoch(gone)).map(|m| m.event), is_there.then_some(gone));
            assert!(markers.take_out(Epoch(gone)).is_none(), "once");
            for epoch in 1..=count {
                let next = epoch + u64::from(epoch == gone);
                let covering = markers.covering(Epoch(epoch)).map(|m| m.event);
                assert_eq!(covering, (next <= count).then_some(next), "{epoch} of {count} without {gone}");
            }
        }
    }
}

#[test]
fn uses_that_are_complete_go_when_they_are_a_quarter_more_than_before() {
    let mut uses = Uses::default();
    let mut done = Seen::default();
    for reader in 0..1000 {
        let on = TimelineId(10 + reader);
        uses.exact(on, Access::Read, Epoch(1));
        // The newest three are pending.
        if let Some(old) = reader.checked_sub(3) {
            done.0.insert(TimelineId(10 + old), Epoch(1));
        }
        if uses.is_crowded() {
            uses.retire(&done);
            assert_eq!(uses.len(), 3, "what is pending stays");
        }
        assert!(uses.len() <= 8, "{} uses of which 3 are pending", uses.len());
    }
    let mut open = Uses::default();
    open.declare(S);
    open.exact(S, Access::Write, Epoch(1));
    open.retire(&seen(&[(S, 9)]));
    assert_eq!(open.at_free(None, |_| Epoch(4))[..], [pending(S, 4)], "an open use is never over");
}

#[test]
fn ranges_in_flight_are_crowded_when_they_are_twice_as_many_as_the_last_drain_left() {
    let mut flight = InFlight::new();
    let mut drains = 0;
    for chunk in 0..10_000 {
        flight.insert(entry(chunk, 4, &[pending(T, u64::from(chunk) + 1)]));
        if flight.is_crowded() {
            drains += 1;
            // The newest five are pending.
            let done = seen(&[(T, u64::from(chunk.saturating_sub(4)))]);
            flight.drain(|p| done.is_complete(p));
            assert_eq!(flight.len(), 5);
        }
        assert!(flight.len() < 32);
    }
    assert!((300..=400).contains(&drains), "{drains}");
}

#[test]
#[should_panic(expected = "O8: marker Epoch(1) of TimelineId(1) published twice")]
fn o8_a_number_is_published_once() {
    let mut s: MarkerLog<u64> = MarkerLog::new(S);
    s.publish(Marker { number: Epoch(1), event: 0, copy: Clock::EMPTY });
    s.publish(Marker { number: Epoch(1), event: 0, copy: Clock::EMPTY });
}

#[test]
fn a_clock_forgets_what_is_complete() {
    let mut clock = Clock::EMPTY;
    clock.raise(S, Epoch(5));
    clock.raise(U, Epoch(2));
    clock.retire(&seen(&[(S, 5), (U, 1)]));
    assert_eq!(clock.iter().collect::<Vec<_>>(), [(U, Epoch(2))]);
}

#[test]
fn o6_a_declared_use_is_sealed_at_the_free_and_not_at_the_call() {
    let mut uses = Uses::default();
    assert!(uses.declare(S));
    assert!(!uses.declare(S), "one a stream");
    let at_free = uses.at_free(Some(T), |_| Epoch(8));
    assert_eq!(at_free.as_slice(), [pending(S, 8)]);
}

/// A stream on which no more work can be queued holds what it held when that was found, whatever number it reaches.
#[test]
fn o6_a_declared_use_is_sealed_when_its_stream_takes_no_more_work() {
    let mut uses = Uses::default();
    assert!(uses.declare(S) && uses.declare(U));
    let ended = uses.end(false, |u| (u.on == S).then_some(Epoch(3)));
    assert_eq!(ended[..], [S], "its stream's count of open uses falls");
    assert_eq!(uses.at_free(Some(T), |_| Epoch(8))[..], [pending(S, 3), pending(U, 8)]);
    uses.retire(&seen(&[(S, 2), (U, 9)]));
    assert_eq!(uses.len(), 2, "sealed, and still pending");
    uses.retire(&seen(&[(S, 3), (U, 9)]));
    assert_eq!(uses.at_free(Some(T), |_| Epoch(8))[..], [pending(U, 8)], "over; the other is open");
}

/// Streams that are declared users come and go, and are waited for now and then: what is kept is what is pending or can still be queued
/// on, and a look happens when there are a quarter more.
#[test]
fn declared_uses_of_streams_that_come_and_go_are_as_many_as_are_pending() {
    let (mut uses, mut done, mut asked) = (Uses::default(), Seen::default(), 0);
    for user in 0..10_000_u32 {
        let on = |user| TimelineId(10 + user);
        assert!(uses.declare(on(user)));
        // The newest two are alive, and the ten before them pending.
        if let Some(over) = user.checked_sub(12) {
            done.0.insert(on(over), Epoch(1));
        }
        if uses.is_crowded() {
            drop(uses.end(false, |u| {
                asked += 1;
                (u.on.0 + 2 <= on(user).0).then_some(Epoch(1))
            }));
            uses.retire(&done);
        }
        // One that ends at this look may be known to be over at the next one.
        assert!(uses.len() <= 20, "{} uses of which 12 are pending or alive", uses.len());
    }
    assert!(asked <= 4 * 10_000, "{asked} streams were queried, of 10,000 that were declared");
}

/// Whatever the number of users: declaring one again or anew, sealing, and freeing each look at a few uses, and never at all of them for each.
#[test]
fn a_use_costs_the_logarithm_of_the_uses_there_are() {
    let steps = |many: u32| {
        let (mut uses, before) = (Uses::default(), compared::so_far());
        for user in 0..many {
            // In no particular order.
            let on = TimelineId(10 + user.wrapping_mul(7919) % many);
            assert!(uses.declare(on) && !uses.declare(on));
            let (operation, new) = uses.open(on, Access::Read);
            assert!(new && uses.close(operation));
            uses.exact(on, Access::Read, Epoch(1));
            if uses.is_crowded() {
                drop(uses.end(false, |_| None));
                uses.retire(&Seen::default());
            }
        }
        assert_eq!(uses.at_free(None, |_| Epoch(4)).len(), many as usize, "one a stream");
        let ended = uses.end(false, |_| Some(Epoch(2)));
        assert_eq!(ended.len(), many as usize);
        uses.retire(&Seen((10..10 + many).map(|on| (TimelineId(on), Epoch(2))).collect()));
        assert!(uses.is_empty());
        (compared::so_far() - before) / u64::from(many)
    };
    let (few, many) = (steps(250), steps(4000));
    // Sixteen times as many are four levels more, which each of some twenty searches passes.
    assert!(many <= 2 * few, "{few} uses looked at for each of 250, {many} for each of 4,000");
}

/// A table is the same whether it is a list or a tree, at the edge between the two.
#[test]
fn few_uses_and_many_are_kept_alike() {
    for many in 1..40 {
        let mut uses = Uses::default();
        for user in (0..many).rev() {
            assert!(uses.declare(TimelineId(10 + user)) && uses.borrow(TimelineId(10 + user), Access::Read));
            uses.exact(TimelineId(10 + user), Access::Write, Epoch(7));
        }
        assert_eq!(uses.len(), 3 * many as usize);
        let mut at_free = uses.at_free(Some(TimelineId(10)), |_| Epoch(4));
        at_free.sort_unstable();
        let expected: Vec<_> = (1..many).map(|user| pending(TimelineId(10 + user), 7)).collect();
        assert_eq!(at_free[..], expected[..]);
        assert_eq!(uses.forget_exact().len(), many as usize, "what was borrowed ended");
        assert_eq!((uses.len(), uses.open_on().count()), (many as usize, many as usize));
        drop(uses.end(false, |u| (u.on.0 > 10).then_some(Epoch(9))));
        uses.retire(&Seen((10..60).map(|on| (TimelineId(on), Epoch(9))).collect()));
        assert_eq!(uses.at_free(None, |_| Epoch(5))[..], [pending(TimelineId(10), 5)]);
    }
}

#[test]
fn o6_uses_of_the_home_stream_need_no_entry() {
    let mut uses = Uses::default();
    uses.declare(S);
    assert!(uses.at_free(Some(S), |_| Epoch(8)).is_empty());
    assert_eq!(uses.at_free(None, |_| Epoch(8)).len(), 1, "pinned memory has no home");
}

#[test]
fn o6_an_open_use_is_closed_by_the_last_of_its_operations() {
    let mut uses = Uses::default();
    let (first, new) = uses.open(S, Access::Write);
    let (second, again) = uses.open(S, Access::Write);
    assert_eq!((new, again), (true, false), "one a stream and kind");
    let (read, other) = uses.open(S, Access::Read);
    assert!(other && uses.close(read));
    assert!(!uses.close(first), "the second is still open");
    uses.exact(S, Access::Write, Epoch(3));
    assert_eq!(uses.open_on().count(), 1);
    assert_eq!(uses.at_free(Some(T), |_| Epoch(9)).as_slice(), [pending(S, 9)]);
    assert!(uses.close(second));
    assert_eq!(uses.at_free(Some(T), |_| Epoch(9)).as_slice(), [pending(S, 3)]);
}

#[test]
fn o6_forgotten_operations_are_one_use_a_stream_until_a_write_to_the_whole() {
    let mut uses = Uses::default();
    for n in 0..1000 {
        assert_eq!(uses.open(S, Access::Read).1, n == 0);
    }
    assert_eq!((uses.len(), uses.open_on().count()), (1, 1));
    assert_eq!(uses.conflicts(T, Access::Write, |_| Epoch(6)).as_slice(), [pending(S, 6)], "it grows");
    assert_eq!(uses.forget_exact()[..], [S]);
    assert!(uses.is_empty());
}

#[test]
fn o6_exact_uses_of_one_stream_keep_the_maximum_whichever_was_published_last() {
    let mut uses = Uses::default();
    uses.exact(S, Access::Write, Epoch(7));
    uses.exact(S, Access::Write, Epoch(4));
    assert_eq!(uses.at_free(Some(T), |_| Epoch(0)).as_slice(), [pending(S, 7)]);
}

#[test]
fn o6_a_whole_write_replaces_all_uses_but_declared_ones() {
    let mut uses = Uses::default();
    uses.exact(S, Access::Write, Epoch(7));
    assert!(uses.open(S, Access::Read).1);
    assert!(uses.declare(U));
    assert_eq!(uses.replace_exact(T, Epoch(2))[..], [S], "a forgotten operation's ended");
    let set = uses.at_free(Some(TimelineId(99)), |_| Epoch(5));
    assert_eq!(set.as_slice(), [pending(U, 5), pending(T, 2)]);
}

#[test]
fn o6_what_is_borrowed_is_open_until_a_write_to_the_whole() {
    let mut uses = Uses::default();
    assert!(uses.borrow(S, Access::Read));
    assert!(!uses.borrow(S, Access::Read), "one a stream and kind");
    assert!(uses.borrow(S, Access::Write) && uses.borrow(U, Access::Read) && uses.declare(U));
    assert!(uses.conflicts(T, Access::Read, |_| Epoch(4)).contains(&pending(S, 4)), "not exact: it grows");
    assert!(uses.conflicts(T, Access::Read, |_| Epoch(6)).contains(&pending(S, 6)));
    assert_eq!(uses.open_on().count(), 4);
    let mut ended = uses.replace_exact(T, Epoch(2));
    ended.sort_unstable();
    assert_eq!(ended[..], [S, S, U], "each of them counted once");
    assert_eq!(
        uses.at_free(None, |_| Epoch(9)).as_slice(),
        [pending(U, 9), pending(T, 2)],
        "declared ones stay"
    );
    assert!(uses.borrow(S, Access::Read), "a new one");
    assert_eq!(uses.forget_exact()[..], [S]);
}

/// Borrowed by streams that come and go: at most this many, and two for all of them, one to read and one to write. What ended and what
/// began is what the counts of open uses change by.
#[test]
fn o6_what_more_streams_borrow_than_that_is_borrowed_by_all() {
    const ALL: TimelineId = TimelineId(0);
    let (mut uses, mut open) = (Uses::default(), HashMap::new());
    uses.exact(T, Access::Read, Epoch(3));
    assert!(uses.declare(T));
    for n in 0..1000 {
        let (on, access) = (TimelineId(10 + n), if n % 3 == 0 { Access::Write } else { Access::Read });
        if uses.borrow(on, access) {
            *open.entry(on).or_insert(0) += 1;
        }
        let (ended, began) = uses.borrow_by_all(ALL, 64);
        for on in ended {
            *open.get_mut(&on).expect("it was open") -= 1;
        }
        *open.entry(ALL).or_insert(0) += began;
        assert!(uses.len() <= 2 + 64 + 2, "{} uses after {} streams", uses.len(), n + 1);
        // A writer comes after the stream, or after all of them.
        let pending = uses.conflicts(U, Access::Write, |_| Epoch(7));
        assert!(pending.iter().any(|p| p.on == on || p.on == ALL), "stream {n} is forgotten");
    }
    open.retain(|_, n| *n > 0);
    assert_eq!(open.values().sum::<usize>(), uses.open_on().filter(|on| *on != T).count());
    assert_eq!(open[&ALL], 2);
    // What a pool keeps of each allocation that had uses (docs/kept.md).
    assert!(size_of::<Uses>() <= 80, "{} bytes", size_of::<Uses>());
}

#[test]
fn a_read_conflicts_with_writes_only() {
    let mut uses = Uses::default();
    uses.exact(S, Access::Read, Epoch(3));
    uses.exact(U, Access::Write, Epoch(4));
    assert_eq!(uses.conflicts(T, Access::Read, |_| Epoch(0)).as_slice(), [pending(U, 4)]);
    assert_eq!(uses.conflicts(T, Access::Write, |_| Epoch(0)).len(), 2);
    assert!(uses.conflicts(U, Access::Read, |_| Epoch(0)).is_empty(), "the own stream needs no wait");
}

fn entry(chunk: u32, len: u32, uses: &[Pending]) -> Entry {
    Entry { chunk, generation: 0, len: Granules(len), uses: uses.iter().copied().collect(), home: Epoch(1) }
}
use crate::units::Granules;

#[test]
fn a_range_leaves_when_every_use_is_over_whatever_the_order() {
    for order in [[(S, 1), (T, 1)], [(T, 1), (S, 1)]] {
        let mut flight = InFlight::new();
        flight.insert(entry(1, 4, &[pending(S, 1), pending(T, 1)]));
        let first = seen(&order[..1]);
        assert!(flight.drain(|p| first.is_complete(p)).is_empty(), "one of two is not enough (Z27)");
        let both = seen(&order);
        assert_eq!(flight.drain(|p| both.is_complete(p)).len(), 1);
        assert!(flight.is_empty() && flight.oldest().next().is_none());
    }
}

#[test]
fn a_slow_stream_holds_back_what_it_uses_and_nothing_else() {
    let mut flight = InFlight::new();
    for chunk in 0..100 {
        let on = if chunk % 10 == 0 { S } else { T };
        flight.insert(entry(chunk, 4, &[pending(on, u64::from(chunk) + 1)]));
    }
    let done = seen(&[(T, 100)]);
    assert_eq!(flight.drain(|p| done.is_complete(p)).len(), 90);
    assert_eq!(flight.len(), 10);
    assert_eq!(flight.oldest().collect::<Vec<_>>(), [pending(S, 1)]);
}

#[test]
fn the_shortest_that_fits_is_taken_and_leaves_no_trace() {
    let mut flight = InFlight::new();
    for (chunk, len) in [(1, 16), (2, 4), (3, 8)] {
        flight.insert(entry(chunk, len, &[pending(S, 1)]));
    }
    assert_eq!(flight.take_at_least(Granules(5), 8, |_| true).map(|e| e.chunk), Some(3));
    assert_eq!(flight.take_at_least(Granules(5), 8, |_| true).map(|e| e.chunk), Some(1));
    assert!(flight.take_at_least(Granules(5), 8, |_| true).is_none());
    assert_eq!(flight.remove(2).map(|e| e.len), Some(Granules(4)));
    assert_eq!(flight.oldest().count(), 0);
}

/// How many uses this thread's searches looked at.
pub(super) mod compared {
    use core::cell::Cell;

    std::thread_local! {
        static COUNT: Cell<u64> = const { Cell::new(0) };
    }
    pub(crate) fn count() {
        COUNT.set(COUNT.get() + 1);
    }
    /// The count since the thread began.
    pub(crate) fn so_far() -> u64 {
        COUNT.get()
    }
}

#[test]
fn edges_are_kept_once_and_go_with_their_timelines() {
    let mut edges = Edges::NONE;
    assert!(edges.is_empty() && !edges.has(T));
    for n in [5, 1, 9, 5, 3, 7, 1] {
        edges.add(TimelineId(n));
    }
    let shared = edges.clone();
    let all = |edges: &Edges| (0..12).filter(|&n| edges.has(TimelineId(n))).collect::<Vec<_>>();
    assert_eq!((all(&edges), edges.len()), (vec![1, 3, 5, 7, 9], 5));
    edges.keep(|on| on.0 != 5 && on.0 < 9);
    assert_eq!((all(&edges), edges.len()), (vec![1, 3, 7], 3));
    assert_eq!(all(&shared), [1, 3, 5, 7, 9], "what a request took stays as it was");
    edges.keep(|_| false);
    assert!(edges.is_empty() && all(&edges).is_empty());
}
