//! The threads of a program: each makes the calls of its own steps, one step at a time, in the program's order.

use crate::driver;
use crate::program::{Program, Step, Verb, parts};
use crate::world::{Concurrent, Here, Lasting, World};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

type Shared = Arc<Mutex<World>>;

enum Order {
    Do(Step),
    /// Ends the captures that only this thread may end.
    Leave,
    End,
}

struct Worker {
    orders: SyncSender<Order>,
    done: Receiver<()>,
    thread: JoinHandle<()>,
    number: u32,
}

impl Worker {
    fn new(world: &Shared) -> Worker {
        let (orders, taken) = sync_channel::<Order>(0);
        let (tell, done) = sync_channel::<()>(0);
        let thread = {
            let mut world = world.lock().expect("no thread panicked");
            world.begun += 1;
            world.begun
        };
        let (world, here, number) = (Arc::clone(world), Here { thread }, thread);
        let thread = std::thread::spawn(move || {
            while let Ok(order) = taken.recv() {
                let mut world = world.lock().expect("no thread panicked");
                match order {
                    Order::Do(step) => world.step(step, here),
                    Order::Leave => world.leave(here),
                    Order::End => world.end(here),
                }
                drop(world);
                if tell.send(()).is_err() {
                    return;
                }
            }
        });
        Worker { orders, done, thread, number }
    }

    fn give(&self, order: Order) {
        let sent = self.orders.send(order).is_ok();
        assert!(sent && self.done.recv().is_ok(), "a step failed: its thread has printed why");
    }

    fn end(self) {
        drop(self.orders);
        self.thread.join().expect("it does not panic");
    }
}

/// Runs a program to its end. Returns what it may leave; `None`: it may leave anything.
pub(crate) fn run(program: &Program, show: bool) -> Option<Lasting> {
    if program.rounds > 0 {
        return at_once(program, show);
    }
    let slots = program.steps.iter().map(|s| usize::from(s.thread)).max().unwrap_or(0) + 1;
    let world = World::new(slots, show, program.quiet, None);
    let world = if program.crowded { world.crowded() } else { world };
    let world = Arc::new(Mutex::new(world));
    let mut workers: Vec<Worker> = (0..slots).map(|_| Worker::new(&world)).collect();
    for &step in &program.steps {
        let slot = usize::from(step.thread);
        if show && slots > 1 {
            println!("// thread {slot}");
        }
        if step.verb == Verb::ThreadEnds {
            workers[slot].give(Order::Leave);
            let fresh = Worker::new(&world);
            let ending = std::mem::replace(&mut workers[slot], fresh);
            let thread = ending.number;
            let before = world.lock().expect("no thread panicked").before_the_end(thread);
            let fault = if driver::is_broken() { 0 } else { step.fault };
            let number = World::arm(fault);
            ending.end();
            let mut world = world.lock().expect("no thread panicked");
            let struck = world.disarm(fault, number);
            if show {
                println!(
                    "// the thread has ended{}{struck}",
                    if struck.is_empty() { "" } else { ", with a failing " }
                );
            }
            world.has_ended(thread, &before, &struck);
        } else {
            workers[slot].give(Order::Do(step));
        }
    }
    for worker in &workers {
        worker.give(Order::Leave);
    }
    workers[0].give(Order::End);
    workers.into_iter().for_each(Worker::end);
    let mut world = world.lock().expect("no thread panicked");
    world.after();
    driver::clear_faults();
    world.may_be_left()
}

/// Runs all threads at once; they pass blocks to each other, and all of them use one stream.
fn at_once(program: &Program, show: bool) -> Option<Lasting> {
    let slots = program.steps.iter().map(|s| usize::from(s.thread)).max().unwrap_or(0) + 1;
    let ends = program.steps.len().is_multiple_of(2);
    let mut first = World::new(slots, show, program.quiet, Some(Concurrent::new(program.rough, ends)));
    if program.steps.iter().any(|step| step.verb == Verb::Capture) {
        // If one of these calls fails, other threads' captures may end, and no thread knows it in time.
        World::exempt_capture_guards();
        // Work on the legacy stream ends captures on blocking streams, and no thread knows what others queue there. No allocation
        // may have been made there either, because the stream is marked for it.
        first.has_legacy = program.schedule.is_multiple_of(2);
    }
    if program.crowded {
        first = first.crowded();
    }
    // In one of three programs the common stream is blocking.
    first.share(u32::from(!program.schedule.is_multiple_of(3)));
    let worlds: Vec<World> = (0..slots).map(|_| first.beside()).collect();
    // Without this a short program would end on one thread before the next one starts.
    let begin = &std::sync::Barrier::new(slots);
    let mut ended: Vec<World> = std::thread::scope(|scope| {
        let run = |(slot, world): (usize, World)| {
            scope.spawn(move || {
                begin.wait();
                let of_it = program.steps.iter().copied().filter(|s| usize::from(s.thread) == slot);
                let steps: Vec<Step> = of_it.collect();
                lives(
                    world,
                    &steps.repeat(program.rounds as usize),
                    slot as u32 + 1,
                    (slots as u32, program.rough),
                )
            })
        };
        let threads: Vec<_> = worlds.into_iter().enumerate().map(run).collect();
        threads.into_iter().map(|t| t.join().expect("its thread has printed why")).collect()
    });
    first.refresh();
    for world in &mut ended {
        first.learn(world);
    }
    first.end(Here { thread: 0 });
    first.after();
    for mut world in ended {
        world.tidy();
    }
    first.may_be_left()
}

/// Runs the steps of one program thread on several threads, one after another: a new one after each end of a thread. No other thread has their numbers.
fn lives(mut world: World, steps: &[Step], first: u32, (apart, ends): (u32, bool)) -> World {
    let lives: Vec<&[Step]> = steps.split_inclusive(|step| ends && step.verb == Verb::ThreadEnds).collect();
    let count = lives.len();
    for (n, life) in lives.into_iter().enumerate() {
        let here = Here { thread: first + n as u32 * apart };
        // The fault strikes a driver call of the thread's end, after its last step.
        let fault = life.last().filter(|_| n + 1 < count).map_or(0, |step| step.fault);
        let run = || {
            for step in life {
                world.step(*step, here);
            }
            if n + 1 == count {
                world.end(here);
            }
            World::arm_here(fault);
        };
        std::thread::scope(|scope| scope.spawn(run).join().expect("its thread has printed why"));
        driver::is_over(parts(fault).1);
    }
    world
}
