//! Random programs of arrays by several threads: operations with several operands, whose streams other threads order while the
//! operation looks for markers and makes them, and threads that stand still in the making of a marker; and arrays that two threads
//! read at once.
//!
//! Which thread goes on when is drawn too, so that a seed is a program and a schedule. On right code without points to stand
//! at, the same calls follow one another. What every array holds in the end is that of running the operations in order.

use super::random::of_seed;
use super::{Held, Outcome, World, at, ensure, forget_points, said};
use crate::dice::Dice;
use millpond::units::GIB;
use millpond::{Config, DeviceArray, Event, Stream, kernel};
use millpond_sim::{Schedule, Sim};
use std::collections::VecDeque;
use std::mem::ManuallyDrop;
use std::sync::{Arc, Mutex, mpsc};

/// Steps of one program.
const STEPS: usize = 24;
const LEN: usize = 512;
/// What another thread does to the order of streams.
#[derive(Clone, Copy)]
enum Order {
    /// One stream waits for another and is marked behind that.
    Learn { on: usize, of: usize },
    /// Two streams are kept in step.
    Step { one: usize, other: usize },
    /// The thread that stands still goes on, and a stream waits for the event that it was recording.
    Release { on: usize },
}

struct Run {
    w: World,
    dice: Dice,
    streams: Vec<Stream<Sim>>,
    /// One that each stream is home to, with the value that it holds.
    arrays: Vec<(DeviceArray<u8, Sim>, u8)>,
    /// The same, of indices that count up from 0.
    indices: Vec<DeviceArray<u32, Sim>>,
    /// One more of each, which threads read at once.
    shared: Vec<(Arc<DeviceArray<u8, Sim>>, u8)>,
    /// What was read of those, each with what it is to hold.
    copies: VecDeque<(DeviceArray<u8, Sim>, u8)>,
    /// A thread that stands still, wherever it is let go.
    held: Arc<Mutex<Option<Held>>>,
    events: Vec<Event<Sim>>,
}

/// Runs the program of a seed: how many operations were made, and what came of it.
pub fn run(seed: u64) -> (usize, Outcome) {
    let mut made = 0;
    let outcome = super::judge(|| {
        // What went wrong cannot always be dropped.
        let mut run = ManuallyDrop::new(Run::new(seed)?);
        for _ in 0..STEPS {
            run.step(&mut made)?;
            if let Some(v) = run.w.sim.violations().first() {
                return Err(v.to_string());
            }
        }
        ManuallyDrop::into_inner(run).finish()
    });
    (made, outcome.map_err(|e| format!("threads, seed {seed}, operation {made}: {e}")))
}

impl Run {
    fn new(seed: u64) -> Result<Run, String> {
        let mut dice = of_seed(seed);
        let schedule = if dice.one_in(4) { Schedule::Random(seed) } else { Schedule::Latest };
        let w = World::on(Sim::new(GIB).schedule(schedule), Config::default());
        let streams: Vec<_> = (0..4 + dice.below(2)).map(|_| w.stream()).collect();
        let (arrays, indices, shared) = (Vec::new(), Vec::new(), Vec::new());
        let (copies, held, events) = (VecDeque::new(), Arc::default(), Vec::new());
        let mut run = Run { w, dice, streams, arrays, indices, shared, copies, held, events };
        for on in 0..run.streams.len() {
            let s = &run.streams[on];
            run.arrays.push((run.w.gpu.uninit(LEN, s).map_err(said)?, 0));
            run.indices.push(run.w.gpu.uninit(LEN, s).map_err(said)?);
            kernel::fill(&mut run.arrays[on].0, 0, s).map_err(said)?;
            kernel::iota(&mut run.indices[on], 0, 1, s).map_err(said)?;
            let mut shared = run.w.gpu.uninit(LEN, s).map_err(said)?;
            kernel::fill(&mut shared, 0, s).map_err(said)?;
            run.shared.push((Arc::new(shared), 0));
        }
        Ok(run)
    }

    fn step(&mut self, made: &mut usize) -> Outcome {
        if self.dice.one_in(3) {
            return self.read_together(made);
        }
        self.operate_between(made)
    }

    /// Two threads read one array on one stream, mostly its home. The second one's read is queued, mostly behind a marker, while the
    /// first one stands between the stamp of its own and its record. A later write of the array comes after both.
    fn read_together(&mut self, made: &mut usize) -> Outcome {
        let home = self.dice.below(self.streams.len());
        let on = if self.dice.one_in(4) { self.dice.below(self.streams.len()) } else { home };
        let (marked, nth) = (!self.dice.one_in(4), 1 + u32::from(self.dice.one_in(4)));
        let s = self.streams[on].clone();
        let (x, holds) = (Arc::clone(&self.shared[home].0), self.shared[home].1);
        let copy = || self.w.gpu.uninit::<u8>(LEN, &s).map_err(said);
        let (mut first, mut second) = (copy()?, copy()?);
        let (brought, bring) = mpsc::channel();
        let (theirs, their_stream) = (Arc::clone(&x), s.clone());
        at("stamped", nth, move || {
            if marked {
                drop(their_stream.record().expect("no call fails"));
            }
            second.copy_from_device(&*theirs, &their_stream).expect("no call fails");
            drop(theirs);
            let _ = brought.send(second);
        });
        let read = first.copy_from_device(&*x, &s).map_err(said);
        // If no thread reached the point, the second copy is not made.
        forget_points();
        read?;
        *made += 2 + usize::from(marked);
        self.copies.push_back((first, holds));
        self.copies.extend(bring.try_recv().ok().map(|second| (second, holds)));
        drop(x);
        if !self.dice.one_in(3) {
            let (to, value) = (self.dice.below(self.streams.len()), self.dice.below(256) as u8);
            let (x, holds) = &mut self.shared[home];
            let x = Arc::get_mut(x).ok_or("the other thread is over, and has the array")?;
            kernel::fill(x, value, &self.streams[to]).map_err(said)?;
            (*holds, *made) = (value, *made + 1);
        }
        while self.copies.len() > 8 {
            self.copies.pop_front();
        }
        Ok(())
    }

    /// One operation on a stream, with operands at home on three others, and what goes on around it.
    fn operate_between(&mut self, made: &mut usize) -> Outcome {
        let mut all: Vec<usize> = (0..self.streams.len()).collect();
        let [to, from, by, on] = core::array::from_fn(|_| all.swap_remove(self.dice.below(all.len())));
        let homes = [to, from, by];
        // What the operation has to come after, mostly with no marker behind it.
        for (operand, home) in homes.into_iter().enumerate() {
            if !self.dice.one_in(8) {
                self.write(home, operand == 2)?;
                *made += 1;
            }
        }
        let held_on = self.dice.one_in(2).then(|| *self.dice.of(&homes));
        if let Some(held_on) = held_on {
            let point = *self.dice.of(&["recorded", "recorded", "numbered"]);
            *self.held.lock().expect("not poisoned") = Some(Held::at(point, &self.streams[held_on])?);
            *made += 1;
        }
        if self.dice.one_in(2) {
            // Something happens to the stream whose marker is half made.
            let on = held_on.unwrap_or(to);
            let order = Order::Learn { on, of: self.other(&homes, on) };
            carry_out(&self.streams, order, &self.held, &mut self.events)?;
            *made += 2;
        }
        let orders: Vec<_> = (0..=self.dice.below(2)).map(|_| self.order(&homes)).collect();
        *made += 1 + 2 * orders.len();
        let (streams, held) = (self.streams.clone(), Arc::clone(&self.held));
        at("not covered", 1 + self.dice.below(2) as u32, move || {
            let mut events = Vec::new();
            for order in orders {
                carry_out(&streams, order, &held, &mut events).expect("no call fails");
            }
        });
        let operated = self.operate(to, from, by, on);
        // A stop that was meant for this operation must not happen in another.
        forget_points();
        operated?;
        let held = self.held.lock().expect("not poisoned").take();
        if let Some(held) = held {
            self.events.push(held.go()?);
        }
        if self.events.len() > 8 {
            self.events.clear();
        }
        if self.dice.one_in(6) {
            self.streams[on].synchronize().map_err(said)?;
            *made += 1;
        }
        Ok(())
    }

    fn order(&mut self, homes: &[usize; 3]) -> Order {
        let one = *self.dice.of(homes);
        let other = self.other(homes, one);
        match self.dice.below(3) {
            0 => Order::Step { one, other },
            1 => Order::Learn { on: one, of: other },
            _ => Order::Release { on: one },
        }
    }

    /// Any of them but one.
    fn other(&mut self, homes: &[usize; 3], but: usize) -> usize {
        let others: Vec<usize> = homes.iter().copied().filter(|&home| home != but).collect();
        *self.dice.of(&others)
    }

    /// On its home stream, mostly, which makes no marker: of a fresh one, or of one that others have used.
    fn write(&mut self, home: usize, index: bool) -> Outcome {
        let on = if self.dice.one_in(8) { self.dice.below(self.streams.len()) } else { home };
        let (fresh, value) = (!self.dice.one_in(4), self.dice.below(256) as u8);
        let Run { w, streams, arrays, indices, .. } = self;
        if index {
            if fresh {
                indices[home] = w.gpu.uninit(LEN, &streams[home]).map_err(said)?;
            }
            return kernel::iota(&mut indices[home], 0, 1, &streams[on]).map_err(said);
        }
        let (x, holds) = &mut arrays[home];
        if fresh {
            *x = w.gpu.uninit(LEN, &streams[home]).map_err(said)?;
        }
        *holds = value;
        kernel::fill(x, value, &streams[on]).map_err(said)
    }

    /// An operation with two operands or three.
    fn operate(&mut self, to: usize, from: usize, by: usize, on: usize) -> Outcome {
        let Ok([(x, holds), (y, value)]) = self.arrays.get_disjoint_mut([to, from]) else {
            return Err("two streams are the same".to_owned());
        };
        *holds = *value;
        if self.dice.one_in(4) {
            x.copy_from_device(&*y, &self.streams[on]).map_err(said)
        } else {
            kernel::gather(&*y, &self.indices[by], x, &self.streams[on]).map_err(said)
        }
    }

    /// Everything is read once more, and judged.
    fn finish(self) -> Outcome {
        let Run { w, streams, arrays, indices, shared, copies, events, .. } = self;
        let read = shared.iter().map(|(x, holds)| (&**x, holds));
        for (x, holds) in arrays.iter().chain(&copies).map(|(x, holds)| (x, holds)).chain(read) {
            let found = x.to_vec(&streams[0]).map_err(said)?;
            ensure!(found.iter().all(|v| v == holds), "an array holds {:?}, not {holds}", found.first());
        }
        drop((streams, arrays, indices, shared, copies, events));
        w.end()
    }
}

/// Orders streams, on whatever thread.
fn carry_out(
    streams: &[Stream<Sim>],
    order: Order,
    held: &Mutex<Option<Held>>,
    events: &mut Vec<Event<Sim>>,
) -> Outcome {
    let wait = |on: usize, of: usize| streams[on].wait_stream(&streams[of]).map_err(said);
    match order {
        Order::Learn { on, of } => {
            wait(on, of)?;
            events.push(streams[on].record().map_err(said)?);
        }
        Order::Step { one, other } => {
            wait(one, other)?;
            wait(other, one)?;
        }
        Order::Release { on } => {
            let held = held.lock().expect("not poisoned").take();
            if let Some(held) = held {
                let event = held.go()?;
                streams[on].wait(&event).map_err(said)?;
                events.push(event);
            }
        }
    }
    Ok(())
}
