//! Host threads: each does its own acts, in turns or freely.
//!
//! **In turns** the acts happen in the order of the log. The table of blocks is a baton: the thread that holds it does its stretch
//! of acts and passes it to the thread of the next one. Other threads have nothing to access, so there is no lock; if a
//! thread panics the baton is dropped, every waiting thread sees its channel closed, and the panic resumes.
//!
//! **Freely** each thread runs through its own acts as fast as it can. The acts of one slot still follow each other: an
//! act waits for the act before it of the same slot, which is earlier in the log, so the earliest act that is not done
//! never waits, and there is no deadlock.
//!
//! This file does not know what an act does.

use super::run::{Halt, Life, Pass, halt};
use super::touch::Touch;
use super::workload::What;
use core::sync::atomic::Ordering;
use core::sync::atomic::{AtomicBool, AtomicU32};
use parking_lot::Condvar;
use parking_lot::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

/// What the thread whose turn it is holds.
struct Baton<'a, S> {
    state: S,
    /// The next thing to do.
    at: usize,
    to: Vec<Sender<Baton<'a, S>>>,
    home: Sender<S>,
}

/// Calls `step` for the stretches of `0..count` whose items belong to one thread, each stretch on its own thread, in
/// order, until one says stop by an error.
///
/// # Panics
/// When `step` does.
pub(super) fn take_turns<S: Send, E: Send>(
    threads: u16,
    count: usize,
    of: impl Fn(usize) -> u16 + Sync,
    state: S,
    step: impl Fn(&mut S, usize, usize) -> Result<(), E> + Sync,
) -> (S, Result<(), E>) {
    let failed: Mutex<Option<E>> = Mutex::new(None);
    let (home, came_home) = channel();
    let (to, mine): (Vec<Sender<_>>, Vec<Receiver<_>>) =
        (0..threads).map(|_| channel::<Baton<'_, S>>()).unzip();
    let mut state = Some(state);
    thread::scope(|scope| {
        for mine in mine {
            scope.spawn(|| {
                let mine = mine;
                while let Ok(mut baton) = mine.recv() {
                    let thread = of(baton.at);
                    let mut end = baton.at + 1;
                    while end < count && of(end) == thread {
                        end += 1;
                    }
                    let done = step(&mut baton.state, baton.at, end);
                    baton.at = end;
                    let stop = done.is_err();
                    if let Err(e) = done {
                        *failed.lock() = Some(e);
                    }
                    pass_on(baton, count, stop, &of);
                }
            });
        }
        let state = state.take().expect("put there above");
        pass_on(Baton { state, at: 0, to, home }, count, false, &of);
    });
    // A thread that panicked took the baton with it; the scope has passed its panic on.
    let state = came_home.recv().expect("the baton comes home, or the scope panicked");
    (state, failed.into_inner().map_or(Ok(()), Err))
}

fn pass_on<S>(baton: Baton<'_, S>, count: usize, stop: bool, of: &impl Fn(usize) -> u16) {
    if stop || baton.at >= count {
        // Dropping the other senders ends the threads.
        let _ = baton.home.send(baton.state);
        return;
    }
    let next = baton.to[usize::from(of(baton.at))].clone();
    // A receiver lives until its channel closes.
    let _ = next.send(baton);
}

/// One pass in turns.
pub(super) fn taken<D: Touch>(
    pass: &Pass<'_, D>,
    lives: &mut Vec<Life<D>>,
    threads: u16,
) -> Result<(), Halt> {
    let acts = &pass.plan.acts;
    let (state, ran) = take_turns(
        threads,
        acts.len(),
        |at| acts[at].thread,
        core::mem::take(lives),
        |lives, from, to| pass.stretch(lives, from, to),
    );
    *lives = state;
    ran
}

/// Slots that share a bell: few enough to be cheap, many enough that threads rarely wake for nothing.
const BELLS: usize = 64;

/// Free threads' meeting points.
struct Meeting {
    /// How many acts of each slot are done.
    done: Vec<AtomicU32>,
    bells: Vec<(Mutex<()>, Condvar)>,
    stop: AtomicBool,
}

impl Meeting {
    /// Waits until so many acts of a slot are done; `false` if everything stops.
    fn reach(&self, slot: u32, turn: u32) -> bool {
        // Pairs with the release in `finish`: what the earlier act did is seen.
        let ready = || self.done[slot as usize].load(Ordering::Acquire) >= turn;
        if !ready() {
            let (lock, bell) = &self.bells[slot as usize % BELLS];
            let mut guard = lock.lock();
            while !ready() {
                if self.stop.load(Ordering::Relaxed) {
                    return false;
                }
                bell.wait(&mut guard);
            }
        }
        !self.stop.load(Ordering::Relaxed)
    }

    fn finish(&self, slot: u32) {
        self.done[slot as usize].fetch_add(1, Ordering::Release);
        let (lock, bell) = &self.bells[slot as usize % BELLS];
        // Under the lock, so that no thread checks before and sleeps after.
        drop(lock.lock());
        bell.notify_all();
    }

    fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
        for (lock, bell) in &self.bells {
            drop(lock.lock());
            bell.notify_all();
        }
    }
}

/// Stops the others when a thread ends early, also by a panic.
struct StopOthers<'a>(&'a Meeting, bool);

impl Drop for StopOthers<'_> {
    fn drop(&mut self) {
        if self.1 {
            self.0.stop();
        }
    }
}

/// One pass in which threads run freely.
pub(super) fn free<D: Touch>(pass: &Pass<'_, D>, lives: &mut Vec<Life<D>>, threads: u16) -> Result<(), Halt> {
    let shared: Vec<Mutex<Life<D>>> = lives.drain(..).map(Mutex::new).collect();
    let meeting = Meeting {
        done: shared.iter().map(|_| AtomicU32::new(0)).collect(),
        bells: (0..BELLS).map(|_| (Mutex::new(()), Condvar::new())).collect(),
        stop: AtomicBool::new(false),
    };
    let first: Mutex<Option<Halt>> = Mutex::new(None);
    thread::scope(|scope| {
        for thread in 0..threads {
            let (shared, meeting, first) = (&shared, &meeting, &first);
            scope.spawn(move || {
                let mut others = StopOthers(meeting, true);
                let mine = pass.plan.acts.iter().enumerate().filter(|(_, a)| a.thread == thread);
                let mut calls = 0;
                for (at, act) in mine {
                    if !meeting.reach(act.slot, act.turn) {
                        break;
                    }
                    let _called = pass.called(at);
                    let done = pass.stage.act(&mut shared[act.slot as usize].lock(), act, pass.plan);
                    if let Err(e) = done {
                        first.lock().get_or_insert(halt(pass.plan, at, act, e));
                        pass.made(calls);
                        return;
                    }
                    calls += u64::from(!matches!(act.what, What::CrossStreamUse { .. }));
                    if calls >= 1024 {
                        pass.made(core::mem::take(&mut calls));
                    }
                    meeting.finish(act.slot);
                }
                pass.made(calls);
                others.1 = false;
            });
        }
    });
    lives.extend(shared.into_iter().map(Mutex::into_inner));
    first.into_inner().map_or(Ok(()), Err)
}

#[cfg(test)]
mod tests {
    use super::take_turns;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::thread::{self, ThreadId};

    const THREADS: [u16; 7] = [0, 0, 2, 1, 1, 2, 0];

    #[test]
    fn stretches_happen_in_order_each_on_its_own_thread() {
        let mut seen: Vec<(usize, usize, ThreadId)> = Vec::new();
        let note = |seen: &mut Vec<_>, from, to| {
            seen.push((from, to, thread::current().id()));
            Ok::<(), ()>(())
        };
        let (state, ran) = take_turns(3, THREADS.len(), |at| THREADS[at], core::mem::take(&mut seen), note);
        assert_eq!(ran, Ok(()));
        let stretches: Vec<_> = state.iter().map(|s| (s.0, s.1)).collect();
        assert_eq!(stretches, [(0, 2), (2, 3), (3, 5), (5, 6), (6, 7)]);
        assert_eq!(state[0].2, state[4].2);
        assert_eq!(state[1].2, state[3].2);
        assert_ne!(state[0].2, state[1].2);
    }

    #[test]
    fn an_error_ends_it_and_the_state_comes_back() {
        let step = |seen: &mut Vec<usize>, from, _| {
            seen.push(from);
            if from == 3 { Err("three") } else { Ok(()) }
        };
        let (state, ran) = take_turns(3, THREADS.len(), |at| THREADS[at], Vec::new(), step);
        assert_eq!((state, ran), (vec![0, 2, 3], Err("three")));
    }

    #[test]
    fn a_panic_goes_on_and_no_thread_hangs() {
        let step = |(): &mut (), from: usize, _| {
            assert_ne!(from, 3, "planted");
            Ok::<(), ()>(())
        };
        let ran = catch_unwind(AssertUnwindSafe(|| take_turns(3, THREADS.len(), |at| THREADS[at], (), step)));
        assert!(ran.is_err());
    }

    #[test]
    fn nothing_to_do() {
        let (state, ran) = take_turns(2, 0, |_| 0, 7, |_: &mut i32, _, _| Err::<(), ()>(()));
        assert_eq!((state, ran), (7, Ok(())));
    }
}
