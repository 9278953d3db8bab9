//! Operations on arrays with several operands, while other threads order the streams that they come after.
//!
//! The smallest programs are run under every schedule with a bounded number of preemptions (a switch that no thread asked
//! for), larger ones at random. Each is also run with bugs planted in the waits of an operation, and has to convict them: a
//! search that cannot fail proves nothing.

use super::{all_clean, device, explore, join, on};
use bytemuck::Pod;
use millpond::mutant::{self, Bug};
use millpond::units::MIB;
use millpond::{Allocator, Config, DeviceArray, Stream, kernel};
use millpond_sim::{Schedule, Sim};
use shuttle::rand::{Rng, thread_rng};
use shuttle::scheduler::{RandomScheduler, Schedule as Replayed, Scheduler, Task, TaskId};
use shuttle::sync::{Arc, Mutex};
use shuttle::thread;
use shuttle::{Config as Shuttle, Runner};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};

const LEN: usize = 64;

/// Every schedule with at most so many preemptions, depth first. A thread that yields, waits or ends is left at no cost.
struct Preempting {
    most: usize,
    /// Of the present schedule.
    left: usize,
    /// At each point with a choice: which was taken, of how many.
    path: Vec<(usize, usize)>,
    at: usize,
    tried: Arc2,
}

/// Counts beside the checker.
type Arc2 = std::sync::Arc<AtomicUsize>;

impl Preempting {
    fn new(most: usize, tried: &Arc2) -> Preempting {
        Preempting { most, left: most, path: Vec::new(), at: 0, tried: Arc2::clone(tried) }
    }
}

impl Scheduler for Preempting {
    fn new_execution(&mut self) -> Option<Replayed> {
        if self.tried.fetch_add(1, Ordering::Relaxed) > 0 {
            // The deepest choice that has another way.
            while self.path.pop_if(|(taken, of)| *taken + 1 == *of).is_some() {}
            self.path.last_mut()?.0 += 1;
        }
        (self.left, self.at) = (self.most, 0);
        Some(Replayed::new(0))
    }

    fn next_task(&mut self, runnable: &[&Task], current: Option<TaskId>, yields: bool) -> Option<TaskId> {
        let goes_on = runnable.iter().map(|task| task.id()).find(|&id| Some(id) == current);
        let others = runnable.iter().map(|task| task.id()).filter(|&id| Some(id) != current);
        let ways: Vec<TaskId> = match goes_on {
            Some(me) if !yields || runnable.len() == 1 => {
                core::iter::once(me).chain(others.filter(|_| self.left > 0)).collect()
            }
            _ => others.collect(),
        };
        let mut taken = 0;
        if ways.len() > 1 {
            if self.at == self.path.len() {
                self.path.push((0, ways.len()));
            }
            let (way, of) = self.path[self.at];
            assert_eq!(of, ways.len(), "the same choices come again");
            (taken, self.at) = (way, self.at + 1);
        }
        self.left -= usize::from(taken > 0 && goes_on == Some(ways[0]));
        Some(ways[taken])
    }

    fn next_u64(&mut self) -> u64 {
        unreachable!("a program that is tried in every way draws nothing")
    }
}

fn config() -> Shuttle {
    let mut config = Shuttle::new();
    config.stack_size = 1 << 20;
    config
}

/// Runs a program under every schedule with at most so many preemptions: how many there are.
pub(super) fn every_schedule(preemptions: usize, program: fn()) -> usize {
    every_schedule_of(preemptions, program)
}

pub(super) fn every_schedule_of(preemptions: usize, program: impl Fn() + Send + Sync + 'static) -> usize {
    let tried = Arc2::default();
    Runner::new(Preempting::new(preemptions, &tried), config()).run(program);
    tried.load(Ordering::Relaxed) - 1
}

/// Whether a search convicts a bug. All threads of a program are one thread of the machine, for which it is planted.
pub(super) fn convicts<R>(bug: Bug, search: impl FnOnce() -> R) -> bool {
    let _planted = mutant::plant(Some(bug));
    catch_unwind(AssertUnwindSafe(search)).is_err()
}

/// Whether a bug is convicted in so many random schedules, and how many were tried.
pub(super) fn random_schedules(most: usize, bug: Bug, program: fn()) -> (bool, usize) {
    let tried = Arc2::default();
    let count = Arc2::clone(&tried);
    let random = || {
        Runner::new(RandomScheduler::new(most), config()).run(move || {
            count.fetch_add(1, Ordering::Relaxed);
            program();
        })
    };
    (convicts(bug, random), tried.load(Ordering::Relaxed))
}

/// An array that its stream has yet to fill, with no marker behind that.
fn filled<T: Pod>(gpu: &Allocator<Sim>, value: T, s: &Stream<Sim>) -> DeviceArray<T, Sim> {
    let mut x = gpu.uninit(LEN, s).expect("the device has room");
    kernel::fill(&mut x, value, s).expect("a fill");
    x
}

fn late() -> (Sim, Allocator<Sim>) {
    let sim = Sim::new(64 * MIB).schedule(Schedule::Latest);
    let gpu = on(&sim, Config::default());
    (sim, gpu)
}

/// t copies what a fills into what b fills, while another thread keeps a and b in step.
fn in_step() {
    let (sim, gpu) = late();
    let (a, b, t) = (gpu.stream().unwrap(), gpu.stream().unwrap(), gpu.stream().unwrap());
    let (from, mut to) = (filled(&gpu, 2_u8, &a), filled(&gpu, 1_u8, &b));
    let (one, other, on) = (a.clone(), b.clone(), t.clone());
    let keeps = thread::spawn(move || {
        other.wait_stream(&one).unwrap();
        one.wait_stream(&other).unwrap();
    });
    let copies = thread::spawn(move || {
        to.copy_from_device(&from, &on).unwrap();
        (from, to)
    });
    keeps.join().unwrap();
    let (from, to) = copies.join().unwrap();
    assert!(to.to_vec(&t).unwrap().iter().all(|&v| v == 2), "an operation overtook another");
    drop((from, to, a, b, t));
    all_clean(&sim, gpu);
}

/// A thread has b wait for a, and t gather by what c fills from what b fills into what a fills; another one marks b, and has c
/// wait for that.
fn out_of_order() {
    let (sim, gpu) = late();
    let (a, b, c, t) =
        (gpu.stream().unwrap(), gpu.stream().unwrap(), gpu.stream().unwrap(), gpu.stream().unwrap());
    let (mut to, from, by) = (filled(&gpu, 1_u8, &a), filled(&gpu, 2_u8, &b), filled(&gpu, 0_u32, &c));
    let known = a.record().unwrap();
    let (marked, waits, learns, on) = (b.clone(), c.clone(), b.clone(), t.clone());
    let marks = thread::spawn(move || waits.wait(&marked.record().unwrap()).unwrap());
    let gathers = thread::spawn(move || {
        learns.wait(&known).unwrap();
        drop(learns.record().unwrap());
        kernel::gather(&from, &by, &mut to, &on).unwrap();
        (from, by, to)
    });
    marks.join().unwrap();
    let (from, by, to) = gathers.join().unwrap();
    assert!(to.to_vec(&t).unwrap().iter().all(|&v| v == 2), "an operation overtook another");
    drop((to, from, by, a, b, c, t));
    all_clean(&sim, gpu);
}

/// Two streams that another thread keeps in step: every schedule with two preemptions; the bug shows itself with one.
#[test]
fn an_operation_waits_for_two_streams_that_are_kept_in_step() {
    let schedules = every_schedule(2, in_step);
    eprintln!("in step: {schedules} schedules");
    assert!(schedules > 1000, "{schedules} schedules");
    assert!(convicts(Bug::CoverOther, || every_schedule(1, in_step)));
    assert!(convicts(Bug::ArrayCoverAny, || every_schedule(1, in_step)));
}

/// Markers of one stream that are published out of order: the same, and the bug needs both preemptions.
#[test]
fn an_operation_waits_for_three_streams_whose_markers_are_out_of_order() {
    let schedules = every_schedule(2, out_of_order);
    eprintln!("out of order: {schedules} schedules");
    assert!(schedules > 1000, "{schedules} schedules");
    for bug in [Bug::CoverOther, Bug::CoverTie] {
        // One preemption for each of the two threads.
        assert!(convicts(bug, || every_schedule(2, out_of_order)), "{bug}");
    }
}

type Arrays = Mutex<Vec<(DeviceArray<u8, Sim>, u8)>>;

/// What one thread does: fills, operations with two operands and three, and the order of streams.
fn work(gpu: &Allocator<Sim>, streams: &[Stream<Sim>], table: &Arrays, steps: usize) {
    let any = || &streams[thread_rng().gen_range(0..streams.len())];
    for _ in 0..steps {
        match thread_rng().gen_range(0..4) {
            0 => {
                let (one, other) = (any(), any());
                one.wait_stream(other).unwrap();
                if thread_rng().gen_bool(0.5) {
                    other.wait_stream(one).unwrap();
                }
            }
            1 => drop(any().record().unwrap()),
            _ => {
                let taken = || table.lock().unwrap().pop();
                let (Some((from, value)), Some((mut to, _))) = (taken(), taken()) else { continue };
                if thread_rng().gen_bool(0.5) {
                    to.copy_from_device(&from, any()).unwrap();
                } else {
                    let by = filled(gpu, 0_u32, any());
                    kernel::gather(&from, &by, &mut to, any()).unwrap();
                }
                let mut table = table.lock().unwrap();
                table.push((to, value));
                let value = thread_rng().gen_range(0..100);
                table.push((filled(gpu, value, any()), value));
            }
        }
    }
}

fn together(threads: usize, steps: usize) {
    let sim = device();
    let gpu = on(&sim, Config::default());
    let streams: Vec<_> = (0..4).map(|_| gpu.stream().unwrap()).collect();
    let table: Vec<_> = (0..5_u8).map(|i| (filled(&gpu, i, &streams[usize::from(i) % 4]), i)).collect();
    let table = Arc::new(Mutex::new(table));
    let all = (0..threads)
        .map(|_| {
            let (gpu, streams, table) = (gpu.clone(), streams.clone(), Arc::clone(&table));
            thread::spawn(move || work(&gpu, &streams, &table, steps))
        })
        .collect();
    join(all);
    for (x, holds) in table.lock().unwrap().drain(..) {
        assert!(x.to_vec(&streams[0]).unwrap().iter().all(|&v| v == holds), "an operation overtook another");
    }
    drop((streams, table));
    all_clean(&sim, gpu);
}

#[test]
fn three_threads_operate_on_arrays_and_order_the_streams() {
    explore(|| together(3, 4));
    let (found, tried) = random_schedules(200_000, Bug::CoverOther, || together(3, 4));
    assert!(found, "cover-other survives {tried} random programs");
    eprintln!("cover-other: found after {tried} random schedules");
}

/// Two threads fill a half each on the array's home stream, one of them behind a marker of its own; then all of it is read elsewhere.
fn halves_at_home() {
    let (sim, gpu) = late();
    let (a, t) = (gpu.stream().unwrap(), gpu.stream().unwrap());
    let mut x = filled(&gpu, 0_u8, &a);
    let (mut first, mut second) = x.split_at_mut(LEN / 2);
    let on = &a;
    thread::scope(|threads| {
        threads.spawn(move || kernel::fill(&mut first, 1, on).unwrap());
        threads.spawn(move || {
            drop(on.record().unwrap());
            kernel::fill(&mut second, 2, on).unwrap();
        });
    });
    let found = x.to_vec(&t).unwrap();
    assert_eq!(found, [[1; LEN / 2], [2; LEN / 2]].concat(), "an operation overtook another");
    drop((x, a, t));
    all_clean(&sim, gpu);
}

/// Two threads read one array on its home stream; then all of it is written elsewhere.
fn readers_at_home() {
    let (sim, gpu) = late();
    let (a, t) = (gpu.stream().unwrap(), gpu.stream().unwrap());
    let (mut x, mut one, mut other) = (filled(&gpu, 2_u8, &a), filled(&gpu, 0, &a), filled(&gpu, 0, &a));
    let (from, on) = (&x, &a);
    thread::scope(|threads| {
        for to in [&mut one, &mut other] {
            threads.spawn(move || to.copy_from_device(from, on).unwrap());
        }
    });
    kernel::fill(&mut x, 9, &t).unwrap();
    for copy in [&one, &other] {
        assert!(copy.to_vec(&a).unwrap().iter().all(|&v| v == 2), "an operation overtook another");
    }
    drop((x, one, other, a, t));
    all_clean(&sim, gpu);
}

/// Two halves by two threads, and two readers: every schedule with two preemptions; the bug shows itself with one.
#[test]
fn two_threads_operate_on_one_array_at_home() {
    for program in [halves_at_home, readers_at_home] {
        let schedules = every_schedule(2, program);
        eprintln!("one array: {schedules} schedules");
        assert!(schedules > 1000, "{schedules} schedules");
        assert!(convicts(Bug::SealStores, || every_schedule(1, program)));
    }
}

/// Three threads fill a part of one array each, on any stream, its home among them; then all of it is read on any.
fn parts() {
    let sim = device();
    let gpu = on(&sim, Config::default());
    let streams: Vec<_> = (0..3).map(|_| gpu.stream().unwrap()).collect();
    let any = || &streams[thread_rng().gen_range(0..3)];
    let mut x = filled(&gpu, 0_u8, &streams[0]);
    let (first, rest) = x.split_at_mut(LEN / 4);
    let (second, third) = rest.split_at(LEN / 4);
    thread::scope(|threads| {
        for (value, mut part) in (1..).zip([first, second, third]) {
            threads.spawn(move || {
                part.fill_bytes(0xEE, any()).unwrap();
                if thread_rng().gen_bool(0.5) {
                    any().wait_stream(any()).unwrap();
                }
                kernel::fill(&mut part, value, any()).unwrap();
            });
        }
    });
    let found = x.to_vec(any()).unwrap();
    let last = [vec![1; LEN / 4], vec![2; LEN / 4], vec![3; LEN / 2]].concat();
    assert_eq!(found, last, "an operation overtook another");
    drop((x, streams));
    all_clean(&sim, gpu);
}

#[test]
fn three_threads_operate_on_parts_of_one_array() {
    explore(parts);
}
