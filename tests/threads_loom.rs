//! The smallest kernels between threads under loom: every interleaving of a few operations, and every value that their
//! loads may return. Built and run by `.ci/loom` only.
//!
//! The kernels are the crate's own, reached through `millpond::allocator::kernels`, or whole calls of an allocator on a
//! minimal device. Beside each stands the same program with the kernel weakened, and loom has to find the schedule in which
//! that goes wrong: a model that cannot fail proves nothing.

#![cfg(loom)]
#![allow(unsafe_code, reason = "loom's cells are reached through pointers")]

// Its bugs are planted, and `.ci/loom` builds what can.
mod minimal_device;
#[cfg(millpond_mutants)]
#[path = "threads_loom/operands.rs"]
mod operands;

/// As the C interface's own files ask.
#[cfg(millpond_mutants)]
macro_rules! mutant {
    ($bug:ident) => {
        millpond::mutant::is(millpond::mutant::Bug::$bug)
    };
}
#[cfg(millpond_mutants)]
#[path = "threads_loom/ends.rs"]
mod ends;
#[cfg(millpond_mutants)]
#[allow(dead_code, reason = "the kernel makes no fences here")]
#[path = "../plug/src/presence.rs"]
mod presence;
#[cfg(millpond_mutants)]
#[path = "../plug/src/retired.rs"]
mod retired;
#[cfg(millpond_mutants)]
#[path = "../plug/src/sync.rs"]
mod sync;
#[cfg(millpond_mutants)]
#[allow(dead_code, reason = "no test uses all of a table")]
#[path = "../plug/src/table.rs"]
mod table;

use loom::thread;
use millpond::allocator::kernels::Probe;
use millpond::heap::{Heap, Kind, Want};
use millpond::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize};
use millpond::sync::{Arc, Mutex, Ordering, Quick};
use millpond::units::{Addr, Epoch, Granules, KIB, MIB, SegmentId};
use millpond::{Allocator, Config, Growth, Limit, Reuse, Trim};
use minimal_device::{Minimal, launch};

/// One exploration at a time: the panic hook belongs to the process.
static TURN: std::sync::Mutex<()> = std::sync::Mutex::new(());

/// Words.
const STACK: usize = 1 << 16;

fn check(preemptions: Option<usize>, program: impl Fn() + Sync + Send + 'static) {
    let tried = std::sync::Arc::new(std::sync::atomic::AtomicU64::new(0));
    let count = std::sync::Arc::clone(&tried);
    let program = std::sync::Arc::new(program);
    let program = move || {
        count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let program = std::sync::Arc::clone(&program);
        // A model's own threads have stacks of 32 KiB, and an allocator is put together on the stack.
        let main = thread::Builder::new().stack_size(STACK).spawn(move || program()).expect("a thread");
        main.join().expect("the program's own panic is the model's");
    };
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = preemptions;
    builder.max_branches = 50_000;
    builder.check(program);
    let tried = tried.load(std::sync::atomic::Ordering::Relaxed);
    println!("{tried} schedules");
}

/// Every schedule, or what `MILLPOND_MAX_PREEMPTIONS` says; or, with a number, those with at most so many switches that no thread asked for.
fn explore(preemptions: Option<usize>, program: impl Fn() + Sync + Send + 'static) {
    let most = std::env::var("MILLPOND_MAX_PREEMPTIONS").ok().filter(|n| !n.is_empty());
    let most = most.map(|n| n.parse().expect("MILLPOND_MAX_PREEMPTIONS is a number"));
    let preemptions = preemptions.or(most);
    let _turn = TURN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    check(preemptions, program);
}

/// Whether loom finds a schedule in which the program panics.
fn is_caught(program: impl Fn() + Sync + Send + 'static) -> bool {
    is_caught_within(None, program)
}

/// The same, among those with at most so many preemptions.
fn is_caught_within(preemptions: Option<usize>, program: impl Fn() + Sync + Send + 'static) -> bool {
    let _turn = TURN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    // Quietly: a thread that the model gives up in the middle of a message would keep the harness's output locked.
    let loud = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| check(preemptions, program)));
    std::panic::set_hook(loud);
    caught.is_err()
}

fn probe() -> (Minimal, minimal_device::Queue, Arc<Probe<Minimal>>) {
    let device = Minimal::new(64 * MIB);
    let queue = device.queue();
    let probe = Probe::attach(device.clone(), &queue).unwrap();
    (device, queue, Arc::new(probe))
}

/// O8: a marker that reserves a stamp's number, or a later one, is recorded behind the stamp's operation.
fn a_marker_covers_what_was_stamped(counted_after: bool) {
    let (_device, queue, timeline) = probe();
    let maker = {
        let (queue, timeline) = (queue.clone(), Arc::clone(&timeline));
        thread::spawn(move || {
            if counted_after {
                // Z17: recorded first, and counted when it is too late.
                let captured = queue.position();
                Some((timeline.reserve_epoch(), captured))
            } else {
                timeline.mark().unwrap();
                None
            }
        })
    };
    let position = launch(&queue);
    let stamp = timeline.stamp();
    let mut markers: Vec<(u64, u64)> = maker.join().unwrap().into_iter().collect();
    timeline.published(|number, event| markers.push((number, event.captured())));
    assert_eq!(markers.len(), 1);
    for (number, captured) in markers {
        assert!(
            number < stamp || captured >= position,
            "marker {number} of {captured} covers {stamp} of {position}"
        );
    }
}

#[test]
fn marker_reservation_against_a_stamp() {
    explore(None, || a_marker_covers_what_was_stamped(false));
    assert!(is_caught(|| a_marker_covers_what_was_stamped(true)));
}

/// O9: what falls due while an older marker is being made gets a marker of its own at the next occasion.
fn what_falls_due_is_served(weak: bool) {
    struct Flags {
        due: AtomicBool,
        maintenance_due: AtomicBool,
    }
    let (_device, queue, timeline) = probe();
    let flags = Arc::new(Flags { due: AtomicBool::new(true), maintenance_due: AtomicBool::new(true) });
    let maintain = move |timeline: &Probe<Minimal>, flags: &Flags| {
        if !weak {
            timeline.run_maintenance();
        } else if flags.maintenance_due.swap(false, Ordering::AcqRel) && flags.due.load(Ordering::Acquire) {
            timeline.mark().unwrap();
            // A flag, cleared once the marker is there: by now it may say something else.
            flags.due.store(false, Ordering::Release);
        }
    };
    assert!(timeline.note_unmarked(16 << 20));
    timeline.request_maintenance();
    let server = {
        let (timeline, flags) = (Arc::clone(&timeline), Arc::clone(&flags));
        thread::spawn(move || maintain(&timeline, &flags))
    };
    launch(&queue);
    let stamp = timeline.stamp();
    assert!(timeline.note_unmarked(16 << 20), "a large free is due at once");
    timeline.request_maintenance();
    flags.due.store(true, Ordering::Release);
    flags.maintenance_due.store(true, Ordering::Release);
    server.join().unwrap();
    maintain(&timeline, &flags);
    let mut newest = 0;
    timeline.published(|number, _| newest = newest.max(number));
    assert!(newest >= stamp, "the free stamped {stamp} fell due, and the newest marker is {newest}");
}

#[test]
fn the_due_flag_raised_while_being_served() {
    explore(None, || what_falls_due_is_served(false));
    assert!(is_caught(|| what_falls_due_is_served(true)));
}

/// Closing: the closing marker has the last number of its line, so that whatever number is read later is covered.
fn the_closing_number_is_the_last(weak: bool) {
    let (_device, _queue, timeline) = probe();
    let maker = {
        let timeline = Arc::clone(&timeline);
        thread::spawn(move || {
            if weak {
                // Looks first and reserves later, without the lock.
                if !timeline.is_closed() {
                    timeline.reserve_unlocked();
                }
            } else {
                timeline.mark().unwrap();
                timeline.reserve_epoch();
            }
        })
    };
    timeline.detach();
    timeline.run_maintenance();
    maker.join().unwrap();
    assert!(timeline.is_closed());
    // Panics (O8) if the newest number of the closed line is covered by no marker.
    assert!(timeline.wait_for_newest().unwrap());
}

#[test]
fn closing_against_a_maker_of_markers() {
    explore(None, || the_closing_number_is_the_last(false));
    assert!(is_caught(|| the_closing_number_is_the_last(true)));
}

/// Closing: of the last pool and the last open use, whichever goes second says that the stream can close.
fn the_last_to_leave_closes(weak: bool) {
    let (_device, _queue, timeline) = probe();
    timeline.open_use();
    let user = {
        let timeline = Arc::clone(&timeline);
        thread::spawn(move || if weak { timeline.end_use_by_load() } else { timeline.end_use() })
    };
    timeline.detach();
    timeline.run_maintenance();
    user.join().unwrap();
    timeline.run_maintenance();
    assert!(timeline.is_closed(), "nothing needs the stream, and no thread closes it");
}

#[test]
fn the_last_pool_against_the_last_use() {
    explore(None, || the_last_to_leave_closes(false));
    assert!(is_caught(|| the_last_to_leave_closes(true)));
}

/// Closing: the pool is closed before its closing marker is numbered; what enters in between would carry a stamp that
/// no marker ever covers (Z37).
fn nothing_enters_behind_the_closing_marker(flag_after: bool) {
    let (_device, _queue, timeline) = probe();
    let closed = Arc::new(Mutex::new(false));
    let closer = {
        let (timeline, closed) = (Arc::clone(&timeline), Arc::clone(&closed));
        thread::spawn(move || {
            let number = flag_after.then(|| timeline.mark().unwrap().unwrap());
            *closed.lock() = true;
            number.unwrap_or_else(|| timeline.mark().unwrap().unwrap())
        })
    };
    let entered = {
        let closed = closed.lock();
        (!*closed).then(|| timeline.stamp())
    };
    let last = closer.join().unwrap();
    assert!(entered.is_none_or(|stamp| stamp <= last), "stamp {entered:?} behind the closing marker {last}");
}

#[test]
fn the_closed_flag_against_the_closing_marker() {
    explore(None, || nothing_enters_behind_the_closing_marker(false));
    assert!(is_caught(|| nothing_enters_behind_the_closing_marker(true)));
}

/// An allocator whose one segment lies free in the pool of its first stream.
fn one_segment(bytes: u64) -> (Minimal, Allocator<Minimal>, [millpond::Stream<Minimal>; 2]) {
    let device = Minimal::new(64 * MIB);
    let growth = Growth::Rounded { small: bytes, large: bytes, multiple: bytes };
    let gpu = Allocator::new(
        device.clone(),
        Config::default().reuse(Reuse::WithWaits).growth(growth).limit(Limit::Bytes(bytes)),
    )
    .unwrap();
    let streams = [gpu.stream().unwrap(), gpu.stream().unwrap()];
    drop(gpu.alloc(512, &streams[0]).unwrap());
    (device, gpu, streams)
}

/// A migration against a hit in the source's pool: the bytes are in one place, and no request finds that there are none. The
/// migration takes the whole segment, so that the source may find its own bytes gone and has to get them back.
#[test]
fn migration_hand_over() {
    explore(Some(3), || {
        let (device, gpu, [a, b]) = one_segment(256 * KIB);
        let borrower = {
            let (gpu, b) = (gpu.clone(), b.clone());
            thread::spawn(move || gpu.alloc(512, &b).expect("a segment is free, in a pool or in a hand"))
        };
        let own = gpu.alloc(512, &a).expect("what is left of the segment");
        let migrated = borrower.join().unwrap();
        assert_ne!(own.address(), migrated.address());
        gpu.check();
        drop((own, migrated, a, b, gpu));
        assert_eq!(device.taken(), 0);
    });
    // The same over the bare heap, found in one hold of the lock and cut in another.
    let in_two_holds = || {
        let mut heap = Heap::new();
        heap.add_segment(SegmentId(0), Addr(1 << 30), Granules(8), Kind::Small);
        heap.extend(SegmentId(0), Granules::ZERO, Granules(8), Epoch(0));
        let source = Arc::new(Mutex::new(heap));
        let want = Want { len: Granules(8), align: Granules(1), kind: Kind::Small };
        let owner = {
            let source = Arc::clone(&source);
            thread::spawn(move || source.lock().take(&want, 4096).map(|t| t.addr))
        };
        // Ours from here on, or so it thinks.
        let found = source.lock().find(&want, 64, |_| true).is_some();
        let cut = {
            let mut heap = source.lock();
            heap.find(&want, 64, |_| true).map(|f| heap.cut(f.chunk, f.offset, want.len))
        };
        let taken = owner.join().unwrap().is_some();
        assert!(!(found && taken), "one range, two owners; cut: {}", cut.is_some());
    };
    assert!(is_caught(in_two_holds));
}

/// The hint that saves a lock of the source's pool is never too low for good: once things are at rest, the range is found.
#[test]
fn the_hint_of_the_longest_range() {
    explore(None, || {
        let device = Minimal::new(64 * MIB);
        let gpu = Allocator::new(
            device,
            Config::default().reuse(Reuse::WithWaits).growth(Growth::Exact).limit(Limit::Bytes(MIB)),
        )
        .unwrap();
        let (a, b) = (gpu.stream().unwrap(), gpu.stream().unwrap());
        let block = gpu.alloc(MIB, &a).unwrap();
        let freer = thread::spawn(move || drop(block));
        // A report sets the hint to what it finds, while the free raises it.
        let seen = gpu.report().total.largest_free;
        assert!(seen == 0 || seen == MIB);
        freer.join().unwrap();
        drop(gpu.alloc(MIB, &b).expect("the pool of a has it"));
        let ladder = gpu.report().ladder;
        // Migrated because a's stream has nothing to do, or behind a wait.
        let found = ladder.migrate.served + ladder.migrate_with_wait.served;
        assert_eq!((found, ladder.grow.tried), (1, 2), "the hint says where it is, in the first round");
    });
    let stored_after_unlocking = || {
        let pool = Arc::new((Mutex::new(0_u32), AtomicU32::new(0)));
        let freer = {
            let pool = Arc::clone(&pool);
            thread::spawn(move || {
                let mut longest = pool.0.lock();
                *longest = 8;
                pool.1.store(8, Ordering::Relaxed);
            })
        };
        let found = *pool.0.lock();
        pool.1.store(found, Ordering::Relaxed);
        freer.join().unwrap();
        assert!(pool.1.load(Ordering::Relaxed) >= *pool.0.lock(), "no thread will look at this pool again");
    };
    assert!(is_caught(stored_after_unlocking));
}

/// The last allocation and the last owner go at once: exactly one of them gives everything back.
#[test]
fn orphans_are_counted_once() {
    explore(None, || {
        let device = Minimal::new(64 * MIB);
        let gpu = Allocator::new(device.clone(), Config::default().growth(Growth::Exact)).unwrap();
        let s = gpu.stream().unwrap();
        let block = gpu.alloc(MIB, &s).unwrap();
        drop(s);
        let freer = thread::spawn(move || drop(block));
        drop(gpu);
        freer.join().unwrap();
        // The end waits once for the one stream that has bytes.
        assert_eq!((device.taken(), device.host_waits()), (0, 1), "bytes left, times shut down");
    });
    let counted_outside_the_lock = || {
        // (live, orphan); orphans; times shut down.
        let pool = Arc::new((Mutex::new((1_u32, false)), AtomicUsize::new(0), AtomicUsize::new(0)));
        let done = |p: &(Mutex<(u32, bool)>, AtomicUsize, AtomicUsize)| {
            if p.1.fetch_sub(1, Ordering::AcqRel) == 1 {
                p.2.fetch_add(1, Ordering::AcqRel);
            }
        };
        let freer = {
            let pool = Arc::clone(&pool);
            thread::spawn(move || {
                let orphaned = {
                    let mut state = pool.0.lock();
                    state.0 -= 1;
                    state.1
                };
                if orphaned {
                    done(&pool);
                }
            })
        };
        pool.1.store(1, Ordering::Release);
        let live = pool.0.lock().0;
        // Between the two holds the last allocation goes, without any notice.
        if live > 0 {
            pool.1.fetch_add(1, Ordering::AcqRel);
        }
        pool.0.lock().1 = true;
        done(&pool);
        freer.join().unwrap();
        assert_eq!(pool.2.load(Ordering::Acquire), 1, "times shut down");
    };
    assert!(is_caught(counted_outside_the_lock));
}

/// A trim has the only segment in transit when a request looks for it: the request waits for what becomes of it.
#[test]
fn a_request_beside_a_trim() {
    explore(Some(4), || {
        let (_device, gpu, [a, b]) = one_segment(2 * MIB);
        let trimmer = {
            let gpu = gpu.clone();
            thread::spawn(move || {
                gpu.trim(Trim::All).unwrap();
            })
        };
        drop(gpu.alloc(512, &a).expect("2 MiB are free, in a pool, in a hand or on the device"));
        trimmer.join().unwrap();
        gpu.check();
        drop((a, b));
    });
}

/// Two threads behind the pools' lock: each sees what the other wrote. `weak` protects with a flag that orders nothing.
fn the_pools_lock_protects(weak: bool) {
    struct Guarded {
        lock: Quick,
        loose: AtomicBool,
        value: loom::cell::UnsafeCell<u32>,
    }
    #[allow(clippy::arc_with_non_send_sync, reason = "the cell is what the lock is there for; loom judges")]
    let guarded = Arc::new(Guarded {
        lock: Quick::new(),
        loose: AtomicBool::new(false),
        value: loom::cell::UnsafeCell::new(0),
    });
    let count = move |g: &Guarded| {
        if weak {
            while g.loose.swap(true, Ordering::Relaxed) {
                thread::yield_now();
            }
        } else {
            g.lock.take();
        }
        // SAFETY: one thread at a time is here, or loom says that it is not so.
        g.value.with_mut(|v| unsafe { *v += 1 });
        if weak {
            g.loose.store(false, Ordering::Relaxed);
        } else {
            g.lock.release();
        }
    };
    let other = Arc::clone(&guarded);
    let thread = thread::spawn(move || count(&other));
    count(&guarded);
    thread.join().unwrap();
    assert!(!guarded.lock.is_held());
    // SAFETY: the other thread is done.
    assert_eq!(guarded.value.with(|v| unsafe { *v }), 2);
}

#[test]
fn the_lock_without_waking() {
    explore(None, || the_pools_lock_protects(false));
    assert!(is_caught(|| the_pools_lock_protects(true)));
}
