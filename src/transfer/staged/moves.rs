//! Bytes that are moved between a program's memory and slots, by the staging threads or by the calling thread.
//!
//! The caller starts moves in the order of their pieces and takes them back in the same order. A move that no thread has begun when the caller needs it is
//! made by the caller, so that a copy does not depend on threads that are asleep or busy with another copy's pieces. Whatever happens to the caller,
//! its moves are over when [`Moves`] was dropped: those that no thread has begun are given up, the others are waited for.
//!
//! It makes no driver call, and does not know what a slot is.

use crate::allocator::staging::Scope;
use crate::driver::sync::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

/// A piece whose bytes are to be moved.
pub(super) trait Move: Send {
    /// What is free again when they are.
    type Slot: Send;
    /// Moves them.
    fn run(self) -> Self::Slot;
}

/// Moves that no thread has begun yet, with their pieces' numbers.
type Waiting<M> = Arc<Mutex<VecDeque<(usize, M)>>>;
/// A piece's number and its slot; none if the move panicked.
type Moved<S> = (usize, Option<S>);

/// The staging threads' side of a copy.
struct Crew<'a, 'scope, M: Move> {
    threads: &'a Scope<'scope>,
    waiting: Waiting<M>,
    /// What the threads have moved.
    answer: Sender<Moved<M::Slot>>,
    answers: Receiver<Moved<M::Slot>>,
    /// Moves that wait, or whose answer was not received.
    out: usize,
}

/// One copy's moves.
pub(super) struct Moves<'a, 'scope, M: Move> {
    crew: Option<Crew<'a, 'scope, M>>,
    /// What is moved and was not taken back yet.
    moved: BTreeMap<usize, M::Slot>,
    started: usize,
}

impl<'a, 'scope, M: Move + 'scope> Moves<'a, 'scope, M>
where
    M::Slot: 'scope,
{
    /// On these threads; without any, each move is made when it is started.
    pub(super) fn new(threads: Option<&'a Scope<'scope>>) -> Moves<'a, 'scope, M> {
        let crew = threads.map(|threads| {
            let (answer, answers) = channel();
            Crew { threads, waiting: Waiting::default(), answer, answers, out: 0 }
        });
        Moves { crew, moved: BTreeMap::new(), started: 0 }
    }

    /// Starts the next piece's move.
    pub(super) fn start(&mut self, of: M) {
        let piece = self.started;
        self.started += 1;
        match &mut self.crew {
            Some(crew) => crew.start(piece, of),
            None => drop(self.moved.insert(piece, of.run())),
        }
    }

    /// The slot of a piece whose move was started, when it is over.
    ///
    /// # Panics
    /// If a move has panicked: a broken invariant, since it copies between slices of one length.
    pub(super) fn finish(&mut self, piece: usize) -> M::Slot {
        loop {
            if let Some(slot) = self.moved.remove(&piece) {
                return slot;
            }
            let crew = self.crew.as_mut().expect("without threads a move is over when it was started");
            if let Some(own) = crew.take_back(piece) {
                return own.run();
            }
            let (piece, slot) = crew.receive();
            self.moved.insert(piece, slot);
        }
    }
}

impl<'scope, M: Move + 'scope> Crew<'_, 'scope, M>
where
    M::Slot: 'scope,
{
    fn start(&mut self, piece: usize, of: M) {
        self.waiting.lock().push_back((piece, of));
        self.out += 1;
        let (waiting, answer) = (Arc::clone(&self.waiting), self.answer.clone());
        self.threads.spawn(move |_| {
            let next = waiting.lock().pop_front();
            if let Some((piece, of)) = next {
                let slot = catch_unwind(AssertUnwindSafe(|| of.run())).ok();
                // The caller waits for each answer, so it is there.
                let _ = answer.send((piece, slot));
            }
        });
    }

    /// A move that no thread has begun, nor any before it.
    fn take_back(&mut self, piece: usize) -> Option<M> {
        let (_, own) = self.waiting.lock().pop_front_if(|(first, _)| *first == piece)?;
        self.out -= 1;
        Some(own)
    }

    fn receive(&mut self) -> (usize, M::Slot) {
        self.out -= 1;
        let (piece, slot) = self.answers.recv().expect("its own sender is here");
        (piece, slot.expect("moving bytes does not panic"))
    }
}

impl<M: Move> Drop for Crew<'_, '_, M> {
    fn drop(&mut self) {
        let given_up = core::mem::take(&mut *self.waiting.lock());
        self.out -= given_up.len();
        for _ in 0..self.out {
            drop(self.answers.recv());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;
    use crate::allocator::staging::StagingThreads;
    use std::sync::atomic::{AtomicUsize, Ordering};

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

    fn waiting<M: Move>(moves: &Moves<'_, '_, M>) -> Vec<()> {
        moves.crew.as_ref().expect("threads").waiting.lock().iter().map(|_| ()).collect()
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
            while !waiting(&others).is_empty() {
                std::thread::yield_now();
            }
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
            while !waiting(&moves).is_empty() {
                std::thread::yield_now();
            }
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
            while !waiting(&long).is_empty() {
                std::thread::yield_now();
            }
            for _ in 0..20 {
                long.start(Noted(&order, 'l', None));
                short.start(Noted(&order, 's', None));
            }
            open.send(()).expect("the thread waits");
            while long.moved.len() + short.moved.len() < 41 {
                for moves in [&mut long, &mut short] {
                    let crew = moves.crew.as_mut().expect("threads");
                    let answers: Vec<_> = crew.answers.try_iter().collect();
                    crew.out -= answers.len();
                    moves
                        .moved
                        .extend(answers.into_iter().map(|(piece, slot)| (piece, slot.expect("moved"))));
                }
                std::thread::yield_now();
            }
        });
        let shares: Vec<String> = order.lock()[1..].chunks(2).map(|pair| pair.iter().collect()).collect();
        assert!(shares.iter().all(|pair| pair == "ls"), "{shares:?}");
    }
}
