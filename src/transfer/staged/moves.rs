//! Bytes that are moved between a program's memory and slots, by the staging threads or by the calling thread.
//!
//! The caller starts moves in the order of their pieces and takes them back in the same order. A move that no thread has begun when the caller needs it is
//! made by the caller, so that a copy does not depend on threads that are asleep or busy with another copy's pieces. Whatever happens to the caller,
//! its moves are over when [`Moves`] was dropped: those that no thread has begun are given up, the others are waited for.
//!
//! It makes no driver call, and does not know what a slot is.

use crate::allocator::staging::Scope;
use crate::driver::sync::{Condvar, Mutex};
use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// A piece whose bytes are to be moved.
pub(super) trait Move: Send {
    /// What is free again when they are.
    type Slot: Send;
    /// Moves them.
    fn run(self) -> Self::Slot;
}

/// How often the caller looks for a piece, before it sleeps: to be woken takes longer than to move a piece.
const LOOKS: u32 = 2000;

/// How long a wait for a thread that moves bytes is at a time.
const LONG: Duration = Duration::from_mins(1);

/// What a copy and the staging threads share.
struct Shared<M: Move> {
    state: Mutex<State<M>>,
    /// A thread has moved something.
    answered: Condvar,
}

struct State<M: Move> {
    /// Moves that no thread has begun, with their pieces' numbers.
    waiting: VecDeque<(usize, M)>,
    /// How many moves threads have begun and not ended.
    running: usize,
    /// What threads have moved; none for a move that panicked.
    moved: BTreeMap<usize, Option<M::Slot>>,
}

/// The staging threads' side of a copy.
struct Crew<'a, 'scope, M: Move> {
    threads: &'a Scope<'scope>,
    shared: Arc<Shared<M>>,
}

/// One copy's moves.
pub(super) struct Moves<'a, 'scope, M: Move> {
    crew: Option<Crew<'a, 'scope, M>>,
    /// Without threads: what was moved when it was started.
    moved: VecDeque<M::Slot>,
    started: usize,
}

impl<'a, 'scope, M: Move + 'scope> Moves<'a, 'scope, M>
where
    M::Slot: 'scope,
{
    /// On these threads; without any, each move is made when it is started.
    pub(super) fn new(threads: Option<&'a Scope<'scope>>) -> Moves<'a, 'scope, M> {
        let crew = threads.map(|threads| {
            let state = State { waiting: VecDeque::new(), running: 0, moved: BTreeMap::new() };
            let shared = Arc::new(Shared { state: Mutex::new(state), answered: Condvar::new() });
            Crew { threads, shared }
        });
        Moves { crew, moved: VecDeque::new(), started: 0 }
    }

    /// Starts the next piece's move.
    pub(super) fn start(&mut self, of: M) {
        let piece = self.started;
        self.started += 1;
        match &mut self.crew {
            Some(crew) => crew.start(piece, of),
            None => self.moved.push_back(of.run()),
        }
    }

    /// The slot of a piece whose move was started, when it is over. Called for the pieces in their order.
    ///
    /// # Panics
    /// If a move has panicked: a broken invariant, since it copies between slices of one length.
    pub(super) fn finish(&mut self, piece: usize) -> M::Slot {
        match &self.crew {
            Some(crew) => crew.finish(piece),
            None => self.moved.pop_front().expect("without threads a move is over when it was started"),
        }
    }
}

impl<'scope, M: Move + 'scope> Crew<'_, 'scope, M>
where
    M::Slot: 'scope,
{
    fn start(&self, piece: usize, of: M) {
        self.shared.state.lock().waiting.push_back((piece, of));
        let shared = Arc::clone(&self.shared);
        self.threads.spawn(move |_| shared.run_next());
    }

    fn finish(&self, piece: usize) -> M::Slot {
        let mut state = self.shared.state.lock();
        let mut looks = 0;
        loop {
            if let Some(slot) = state.moved.remove(&piece) {
                return slot.expect("moving bytes does not panic");
            }
            if let Some((_, own)) = state.waiting.pop_front_if(|(first, _)| *first == piece) {
                drop(state);
                return own.run();
            }
            if looks < LOOKS {
                looks += 1;
                drop(state);
                (0..32).for_each(|_| core::hint::spin_loop());
                state = self.shared.state.lock();
                continue;
            }
            self.shared.answered.wait_for(&mut state, LONG);
        }
    }
}

impl<M: Move> Shared<M> {
    /// On a staging thread: the next move, unless the caller has made it.
    fn run_next(&self) {
        let next = {
            let mut state = self.state.lock();
            let next = state.waiting.pop_front();
            state.running += usize::from(next.is_some());
            next
        };
        let Some((piece, of)) = next else { return };
        let slot = catch_unwind(AssertUnwindSafe(|| of.run())).ok();
        let mut state = self.state.lock();
        state.running -= 1;
        state.moved.insert(piece, slot);
        drop(state);
        self.answered.notify_all();
    }
}

impl<M: Move> Drop for Crew<'_, '_, M> {
    fn drop(&mut self) {
        let mut state = self.shared.state.lock();
        let given_up = core::mem::take(&mut state.waiting);
        while state.running > 0 {
            self.shared.answered.wait_for(&mut state, LONG);
        }
        // A thread that comes too late finds nothing, and frees nothing.
        let moved = core::mem::take(&mut state.moved);
        drop(state);
        drop((given_up, moved));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;
    use crate::allocator::staging::StagingThreads;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc::{Receiver, channel};

    /// Counts itself when it runs, after it was let go.
    struct Counted<'a>(&'a AtomicUsize, Option<Receiver<()>>);

    impl Move for Counted<'_> {
        type Slot = usize;
        fn run(self) -> usize {
            self.1.map(|gate| gate.recv());
            self.0.fetch_add(1, Ordering::Relaxed)
        }
    }

    fn threads(count: usize) -> StagingThreads {
        StagingThreads::new(&Config::default().staging_threads(count))
    }

    /// Waits until threads have begun all moves.
    fn begun<M: Move>(moves: &Moves<'_, '_, M>) {
        while !moves.crew.as_ref().expect("threads").shared.state.lock().waiting.is_empty() {
            std::thread::yield_now();
        }
    }

    #[test]
    fn every_move_is_made_once_and_comes_back_in_order() {
        for count in [0, 1, 2, 8] {
            let (ran, threads) = (AtomicUsize::new(0), threads(count));
            threads.scope(true, |scope| {
                let mut moves = Moves::new(scope);
                (0..100).for_each(|_| moves.start(Counted(&ran, None)));
                let mut all: Vec<usize> = (0..100).map(|piece| moves.finish(piece)).collect();
                all.sort_unstable();
                assert_eq!(all, (0..100).collect::<Vec<_>>());
            });
            assert_eq!(ran.into_inner(), 100);
        }
    }

    #[test]
    fn a_move_that_no_thread_begins_is_the_callers() {
        let (ran, threads) = (AtomicUsize::new(0), threads(1));
        let (open, gate) = channel();
        threads.scope(true, |scope| {
            // Another copy's, which keeps the only thread busy.
            let mut others = Moves::new(scope);
            others.start(Counted(&ran, Some(gate)));
            begun(&others);
            let mut moves = Moves::new(scope);
            (0..10).for_each(|_| moves.start(Counted(&ran, None)));
            (0..10).for_each(|piece| assert_eq!(moves.finish(piece), piece));
            open.send(()).expect("the thread waits");
            assert_eq!(others.finish(0), 10);
        });
    }

    #[test]
    fn moves_that_nobody_takes_back_are_over_when_their_copy_ends() {
        let (ran, threads) = (AtomicUsize::new(0), threads(2));
        let (open, gate) = channel();
        threads.scope(true, |scope| {
            let mut moves = Moves::new(scope);
            moves.start(Counted(&ran, Some(gate)));
            begun(&moves);
            open.send(()).expect("the thread waits");
            drop(moves);
            assert_eq!(ran.load(Ordering::Relaxed), 1, "it was waited for");
        });
    }

    /// Two copies at once: the threads take a piece of the one and a piece of the other in turn.
    #[test]
    fn two_copies_share_the_threads_piece_by_piece() {
        struct Noted<'a>(&'a Mutex<Vec<char>>, char, Option<Receiver<()>>);
        impl Move for Noted<'_> {
            type Slot = ();
            fn run(self) {
                self.2.map(|gate| gate.recv());
                self.0.lock().push(self.1);
            }
        }
        let (order, threads) = (Mutex::new(Vec::new()), threads(1));
        let (open, gate) = channel();
        threads.scope(true, |scope| {
            let (mut long, mut short) = (Moves::new(scope), Moves::new(scope));
            long.start(Noted(&order, '-', Some(gate)));
            begun(&long);
            for _ in 0..20 {
                long.start(Noted(&order, 'l', None));
                short.start(Noted(&order, 's', None));
            }
            open.send(()).expect("the thread waits");
            begun(&long);
            begun(&short);
        });
        let shares: Vec<String> = order.lock()[1..].chunks(2).map(|pair| pair.iter().collect()).collect();
        assert!(shares.iter().all(|pair| pair == "ls"), "{shares:?}");
    }
}
