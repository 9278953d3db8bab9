//! The soak of the C interface: programs that make the calls of a C program in a loop over the stand-in driver, where nothing may grow.
//!
//! The functions are linked into this program, so that the host memory of the interface and the library under it is counted
//! by this program's allocator; the stand-in driver is a separate library with its own allocator, so the memory of the simulated
//! device and its oracle is not in the figures. Each program has a process of its own. It synchronises once
//! in 100 rounds without the library's knowledge, as programs in C do: by the driver's own call.
//!
//! A program runs 4,000 rounds, a random one 3,000, or what `MILLPOND_SOAK_ROUNDS` says, and then a line is printed for each program and device.
//! tests/soak.rs says what is compared and why.

#![allow(unsafe_code, reason = "functions of a driver, found by name")]

#[path = "../../testkit/src/counting.rs"]
#[allow(
    dead_code,
    unreachable_pub,
    reason = "a module of tests; here the device's memory is in another library"
)]
mod counting;
#[path = "random_programs/driver.rs"]
#[allow(dead_code, reason = "the random programs call more of it")]
mod driver;
mod figures;
#[path = "../../tests/soak/judge.rs"]
mod judge;
#[path = "random_programs/model.rs"]
#[allow(dead_code, reason = "the random programs of one round use more of it")]
mod model;
#[path = "random_programs/program.rs"]
#[allow(dead_code, reason = "as above")]
mod program;
#[path = "../../tests/fake_libcuda/remote.rs"]
mod remote;
#[path = "random_programs/world.rs"]
#[allow(dead_code, reason = "as above")]
mod world;

use counting::Account;
use driver::{
    Handle, create_stream, destroy_stream, init, retain, set, set_current, synchronize, synchronize_stream,
};
use figures::field;
use judge::{Highest, PERIOD, Windows, first_tenth, grown_or_rising, rounds, rounds_requested};
use millpond_plug::{ffi, status::MillpondStatus, torch};
use program::Step;
use remote::{Fake, When};
use std::ffi::{CStr, CString, c_char};
use std::fmt::Write;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard};
use world::World;
use world::steady::{self, Beyond, HERE, OTHER};

#[global_allocator]
static COUNTED: counting::Counting = counting::Counting;

const KIB: usize = 1 << 10;
const GIB: u64 = 1 << 30;
// The program's own driver calls.

fn stream() -> Handle {
    let mut stream = null_mut();
    create_stream(&raw mut stream, 1);
    stream
}

/// The default stream of the calling thread.
const PER_THREAD: usize = 2;

#[derive(Clone, Copy)]
struct Context(Handle);
// SAFETY: a handle is a number that every thread may name.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    fn bind(self) {
        set_current(self.0);
    }
}

fn context() -> Context {
    let mut context = null_mut();
    init(0);
    retain(&raw mut context, 0);
    set_current(context);
    Context(context)
}

// The C interface.

/// How many calls of the C interface there were.
static OPERATIONS: AtomicU64 = AtomicU64::new(0);

/// Makes a random program's call of the interface, whose host memory counts as the library's; all other memory of such a program does not.
fn inside<R>(call: impl FnOnce() -> R) -> R {
    OPERATIONS.fetch_add(1, Relaxed);
    counting::library(call)
}

fn must(status: MillpondStatus) {
    OPERATIONS.fetch_add(1, Relaxed);
    // SAFETY: never null, and it stays until the thread's next failure.
    let said = || unsafe { CStr::from_ptr(ffi::millpond_last_error()) }.to_string_lossy().into_owned();
    assert!(status == MillpondStatus::Ok, "{status:?}: {}", said());
}

#[derive(Clone, Copy)]
struct Door(u32);

impl Door {
    fn new(options: &str) -> Door {
        let (options, mut number) = (CString::new(options).expect("words"), 0);
        must(ffi::millpond_create(0, options.as_ptr(), &raw mut number));
        Door(number)
    }
    fn alloc(self, bytes: usize, on: Handle) -> Handle {
        let mut ptr = null_mut();
        must(ffi::millpond_alloc(self.0, bytes, on, &raw mut ptr));
        ptr
    }
    fn free(self, ptr: Handle) {
        must(ffi::millpond_free(self.0, ptr));
    }
    fn use_on(self, ptr: Handle, on: Handle) {
        must(ffi::millpond_record_use(self.0, ptr, on));
    }
    fn stats(self) -> String {
        let mut needed = 0;
        must(ffi::millpond_stats_json(self.0, null_mut(), 0, &raw mut needed));
        let mut text = vec![0u8; needed];
        must(ffi::millpond_stats_json(self.0, text.as_mut_ptr().cast::<c_char>(), needed, null_mut()));
        text.pop();
        String::from_utf8(text).expect("text")
    }
    fn taken_and_held_back(self) -> [u64; 2] {
        let stats = self.stats();
        ["reserved", "held_back"].map(|name| field(&stats, name))
    }
    fn destroy(self) {
        must(ffi::millpond_destroy(self.0));
    }
}

// The loop.

/// A figure may vary by one part in this many, as in tests/soak.rs.
const PART: u64 = 4;

/// No program has more than a MiB live or pending: more than this means that memory is not given back.
const MOST_TAKEN: u64 = 128 << 20;

/// Runs one round of a program, given its number.
type Round = Box<dyn FnMut(u64)>;

/// A program that goes on for ever.
struct Steady {
    round: Round,
    rounds: u64,
    /// The allocators whose memory is checked.
    doors: Box<dyn Fn() -> Vec<Door>>,
    /// What has to be done after the last round.
    end: Box<dyn FnOnce()>,
}

impl Steady {
    fn of(door: Option<Door>, round: Round) -> Steady {
        let doors = move || door.into_iter().collect();
        Steady { round, rounds: rounds(), doors: Box::new(doors), end: Box::new(|| ()) }
    }
}

/// The limit on driver calls that only serve the library's bookkeeping: how many of each kind a call of the C interface may make in the second
/// half of the rounds, without the program's own.
const CALLS_AN_OPERATION: u64 = 2;
const KEEPING: [&str; 7] = [
    "cuEventCreate",
    "cuEventDestroy_v2",
    "cuEventRecord",
    "cuEventQuery",
    "cuEventSynchronize",
    "cuStreamWaitEvent",
    "cuCtxSynchronize",
];
/// On a device that runs work at once, at most one event is created for this many calls.
const OPERATIONS_AN_EVENT: u64 = 16;
/// An allocator pools its own events and its trims destroy all of them, so that an ended one has none. So each trim creates an event to mark each of
/// its permanent streams, and so does the wait of a destroy, which waits for markers first. From an allocator's creation to the free after its end
/// there are this many events for each permanent stream: three of the destroy, one of the next create, which gives back what that free left.
const MARKS_OF_AN_END: u64 = 4;
/// Permanent streams of allocators that have ended: a stream counts once for each of them.
static ENDED: AtomicU64 = AtomicU64::new(0);
/// The end of a random program's allocator destroys the events that it pools, and the next one creates them anew: at most this many; 56 were
/// seen in 50 rounds of 12 calls.
const EVENTS_OF_AN_ALLOCATOR: u64 = 64;
/// How many allocators of a random program have ended.
static REPLACED: AtomicU64 = AtomicU64::new(0);

/// How often the library called each of these functions, how many calls of the C interface there were, and the values of `ENDED` and `REPLACED`.
type Calls = [u64; KEEPING.len() + 3];

fn calls(fake: &Fake) -> Calls {
    let by_library = |name: &str| fake.calls(name) - driver::own_calls(name);
    std::array::from_fn(|n| match KEEPING.get(n) {
        Some(name) => by_library(name),
        None => [&OPERATIONS, &ENDED, &REPLACED][n - KEEPING.len()].load(Relaxed),
    })
}

/// Which functions were called too often since `before`, as text.
fn too_often(fake: &Fake, before: Calls, pools_events: bool) -> String {
    let mut found = String::new();
    let since = calls(fake);
    let of = |n: usize| since[n] - before[n];
    let [operations, ended, replaced] = std::array::from_fn(|n| of(KEEPING.len() + n));
    for (n, name) in KEEPING.iter().enumerate() {
        let most = match *name {
            "cuEventCreate" | "cuEventDestroy_v2" if pools_events => {
                64 + operations / OPERATIONS_AN_EVENT
                    + MARKS_OF_AN_END * ended
                    + EVENTS_OF_AN_ALLOCATOR * replaced
            }
            _ => 100 + CALLS_AN_OPERATION * operations,
        };
        if of(n) > most {
            let _ = write!(
                found,
                "\n    {name} in the second half: {} for {operations} calls and {ended} streams of ended allocators, more than {most}",
                of(n)
            );
        }
    }
    found
}

/// The program creates its streams with the first, the library with the second.
const STREAMS_MADE: [&str; 2] = ["cuStreamCreate", "cuStreamCreateWithPriority"];

type Counts = judge::Counts<11>;

fn counts(account: Account, fake: &Fake, doors: &[Door]) -> Counts {
    let of_driver = |made: &[&str], ended: &str| {
        let live =
            |calls: &dyn Fn(&str) -> u64| made.iter().map(|made| calls(made)).sum::<u64>() - calls(ended);
        live(&|name| fake.calls(name)) - live(&driver::own_calls)
    };
    let events = of_driver(&["cuEventCreate"], "cuEventDestroy_v2");
    let streams = of_driver(&STREAMS_MADE, "cuStreamDestroy_v2");
    let contexts = of_driver(&["cuDevicePrimaryCtxRetain"], "cuDevicePrimaryCtxRelease_v2");
    let pinned = of_driver(&["cuMemHostAlloc"], "cuMemFreeHost")
        + of_driver(&["cuMemHostRegister_v2"], "cuMemHostUnregister");
    let modules = of_driver(&["cuModuleLoadData"], "cuModuleUnload");
    let stats: Vec<String> = doors.iter().map(|door| door.stats()).collect();
    let of = |name| stats.iter().map(|stats| field(stats, name)).sum();
    let (taken, in_flight, segments) = (of("reserved"), of("in_flight"), of("segments"));
    drop(stats);
    let held = account.library();
    let number = |count: i64| u64::try_from(count).unwrap_or(0);
    [
        ("driver events", events),
        ("driver streams", streams),
        ("holds of contexts", contexts),
        ("pinned ranges", pinned),
        ("modules", modules),
        ("frees put off", torch::put_off() as u64),
        ("bytes taken", taken),
        ("bytes in flight", in_flight),
        ("segments", segments),
        ("host blocks", number(held.blocks)),
        // Without the library's table of addresses: a quarter of that would hide everything else.
        (
            "host bytes",
            number(held.bytes).checked_sub(ROOT).map_or(0, |bytes| bytes.checked_sub(LEAF).unwrap_or(bytes)),
        ),
    ]
}

/// Bytes of the table of addresses (`plug/src/index.rs`): its root, and a leaf; all memory of a program here is in one leaf.
const ROOT: u64 = 128 << 20;
const LEAF: u64 = 16 << 20;

/// Rounds in which a random program keeps an allocator, so that the first tenth of the rounds has allocators with all options, and more than the 64
/// ended ones that are kept.
const LIFE: u64 = 12;

/// Runs a program in a process of its own, on a device that runs at once and on one that runs late.
fn soak(test: &str, options: &str, program: fn(Option<Door>, Context) -> Steady) {
    const HERE: &str = "MILLPOND_SOAK_ALONE";
    let name = test.rsplit_once("::").map_or(test, |(_, name)| name);
    let Ok(when) = std::env::var(HERE) else {
        if remote::fake_or_skip(GIB, 1, When::Latest).is_none() {
            return;
        }
        let exe = std::env::current_exe().expect("a test has a path");
        let mut found = String::new();
        for when in ["at once", "late"] {
            let run = std::process::Command::new(&exe)
                .args(["--exact", name, "--include-ignored", "--nocapture", "--test-threads", "1"])
                .env(HERE, when)
                .env("RUST_BACKTRACE", "0")
                .output()
                .expect("it runs");
            let said = String::from_utf8_lossy(&run.stdout) + String::from_utf8_lossy(&run.stderr);
            let verdict = said.lines().find(|line| line.starts_with("ok  ") || line.starts_with("FAIL "));
            if let Some(line) = verdict.filter(|_| rounds_requested().is_some()) {
                remote::say(line);
            }
            if !run.status.success() || !said.contains("1 passed") {
                found += &said;
            }
        }
        assert!(found.is_empty(), "{found}");
        return;
    };
    let fake = remote::fake(64 * GIB, 2, if when == "late" { When::Latest } else { When::Earliest });
    let fake = fake.expect("it was found before");
    let context = context();
    let account = Account::open();
    let start = std::time::Instant::now();
    let Watched { rounds, first, last, found } =
        account.scope(|| watch(account, &fake, context, options, program, when != "late"));
    let took = (rounds, start.elapsed().as_secs_f64());
    remote::say(&judge::line(&format!("{name}, device {when}"), took, &first, &last, &found));
    assert!(found.is_empty(), "{name}, device {when}, {rounds} rounds:{found}");
    assert_eq!(fake.verdict(), None);
}

/// The result of a run: what was found, and the highest counters of the first tenth of the rounds and of the last.
struct Watched {
    rounds: u64,
    first: Counts,
    last: Counts,
    found: String,
}

fn watch(
    account: Account,
    fake: &Fake,
    context: Context,
    options: &str,
    program: fn(Option<Door>, Context) -> Steady,
    at_once: bool,
) -> Watched {
    // These options mean that the program creates its own allocators.
    let its_own = matches!(options, "none" | "table" | "table, permanent") || options.starts_with("random");
    let door = (!its_own).then(|| Door::new(options));
    let Steady { mut round, rounds, doors, end } = program(door, context);
    let tenth = first_tenth(rounds);
    let (mut early, mut late, mut parts) = (Highest(None), Highest(None), Windows::new());
    let mut found = String::new();
    let mut half = None;
    for i in 0..rounds {
        if i == rounds / 2 {
            half = Some(calls(fake));
        }
        round(i);
        if i % PERIOD == PERIOD - 1 {
            synchronize();
        }
        // Coprime to the period, so that each of its rounds is checked in turn; not in every round, because the report is expensive.
        if i % 7 != 0 {
            continue;
        }
        let now = counts(account, fake, &doors());
        parts.add(i, rounds, &now);
        let taken = now.iter().find(|(name, _)| *name == "bytes taken").map_or(0, |(_, bytes)| *bytes);
        if taken > MOST_TAKEN {
            let _ = write!(found, "\n    bytes taken: {taken} after {i} rounds");
            late.add(&now);
            break;
        }
        if i < tenth {
            early.add(&now);
        } else if i >= rounds - tenth {
            late.add(&now);
        } else if judge::runs_away(early.0.as_ref().expect("the first tenth is over"), &now, PART) {
            late.add(&now);
            break;
        }
    }
    // A trim destroys all pooled events, so that each marker after it creates a new one.
    let pools_events = at_once && options != "random, trims";
    found += &half.map_or_else(String::new, |half| too_often(fake, half, pools_events));
    drop((round, doors));
    end();
    if let Some(door) = door {
        door.destroy();
    }
    let (first, last) = (early.0.expect("rounds"), late.0.expect("rounds"));
    found += &grown_or_rising((&first, &last), PART, &parts, rounds / PERIOD);
    // A stream that lasts as long as the process may have one marker; PyTorch's allocator lasts as long, too.
    let [(_, left), ..] = counts(account, fake, &[]);
    let streams =
        STREAMS_MADE.iter().map(|made| fake.calls(made)).sum::<u64>() - fake.calls("cuStreamDestroy_v2");
    let most = if options == "table, permanent" { 2 * streams } else { streams };
    if left > most && options != "none" && !options.starts_with("random") {
        let _ = write!(found, "\n    driver events after the end: {left}");
    }
    Watched { rounds, first, last, found: Account::unassigned().scope(|| found.clone()) }
}

macro_rules! programs {
    ($($(#[$long:meta])? $name:ident: $options:literal, $program:expr;)*) => {$(
        $(#[$long])?
        #[test]
        fn $name() {
            soak(stringify!($name), $options, |door, context| Steady::of(door, ($program)(door, context)));
        }
    )*};
}
programs! {
    pairs: "", pairs_on_one_stream;
    a_use_on_another_stream: "", |door, _| users(door, 1, false, false);
    two_users: "", |door, _| users(door, 2, false, false);
    two_permanent_users: "", |door, _| users(door, 2, true, false);
    two_users_deterministically: "deterministic=1", |door, _| users(door, 2, false, true);
    two_permanent_users_deterministically: "deterministic=1", |door, _| users(door, 2, true, true);
    two_users_and_a_small_footprint: "policy=footprint", |door, _| users(door, 2, false, false);
    two_permanent_users_and_a_small_footprint: "policy=footprint", |door, _| users(door, 2, true, false);
    two_users_and_no_reuse: "reuse=never", |door, _| users(door, 2, false, false);
    frees_on_another_stream: "", free_on_another;
    frees_that_name_their_own_stream: "", free_after_itself;
    frees_by_unknown_streams: "", free_unknown;
    what_is_held_back_is_all_that_grows: "growth=exact", held_back;
    streams_that_come_and_go: "", streams_come_and_go;
    #[ignore = "takes long: run by .ci/soak"]
    streams_that_come_and_go_and_are_named: "", named_streams_come_and_go;
    threads_that_come_and_go: "", threads_come_and_go;
    pinned_memory: "", pinned;
    the_pair_for_pytorch: "none", pytorch;
    the_program_of_the_readme: "limit=40%", of_the_readme;
    the_example_in_c: "limit=40%", example_in_c;
    allocators_that_come_and_go: "table", |_, _| allocators(false);
    allocators_that_come_and_go_with_permanent_streams: "table, permanent", |_, _| allocators(true);
}

#[test]
fn the_pair_for_pytorch_beside_captures_of_another_device() {
    soak("the_pair_for_pytorch_beside_captures_of_another_device", "none", |_, _| pytorch_beside_captures());
}

macro_rules! random {
    ($($name:ident: $seed:literal, $beyond:ident;)*) => {$(
        #[ignore = "takes long: run by .ci/soak"]
        #[test]
        fn $name() {
            let options = match Beyond::$beyond {
                beyond if beyond.ends_allocators() => "random, table",
                Beyond::Tidies => "random, trims",
                _ => "random",
            };
            soak(stringify!($name), options, |_, context| random($seed, Beyond::$beyond, context));
        }
    )*};
}
random! {
    random_0: 0, Nothing;
    random_1: 1, Nothing;
    random_2: 2, Nothing;
    random_3: 3, Nothing;
    random_4: 4, Nothing;
    random_5: 5, Nothing;
    random_6: 6, Nothing;
    random_captures_1: 1, Captures;
    random_captures_3: 3, Captures;
    random_threads_that_end_0: 0, ThreadEnds;
    random_turns_0: 0, Turns;
    random_unsynchronized_0: 0, Unsynchronized;
    random_unsynchronized_7: 7, Unsynchronized;
    random_trims_0: 0, Tidies;
    random_trims_1: 1, Tidies;
    random_allocators_0: 0, Allocators;
    random_allocators_1: 1, Allocators;
    random_allocators_2: 2, Allocators;
    random_captures_and_threads_that_end_3: 3, CapturesAndThreadEnds;
    random_captures_and_threads_that_end_6: 6, CapturesAndThreadEnds;
    random_captures_and_allocators_0: 0, CapturesAndAllocators;
    random_captures_and_allocators_1: 1, CapturesAndAllocators;
}

/// Rounds of a random program, a dozen calls each, unless `MILLPOND_SOAK_ROUNDS` is set: there are as many of these programs as named ones.
fn random_rounds() -> u64 {
    rounds_requested().map_or(3000, |_| rounds())
}

/// A program of the generator of `random_programs/program.rs`, from a seed: it makes the same steps in every round. The model checks what each call promises in
/// each round too; its own memory does not count as the library's.
fn random(seed: u64, beyond: Beyond, context: Context) -> Steady {
    let base =
        std::env::var("MILLPOND_SOAK_SEED").map_or(0, |n| n.parse().expect("MILLPOND_SOAK_SEED is a number"));
    let seed = base + seed;
    let rounds = random_rounds();
    // At most 1000 threads, as in `threads_come_and_go`: the oracle has a clock for each.
    let every = (rounds / 1000).max(1);
    let allocator_every = LIFE.min(first_tenth(rounds) / steady::CYCLE).max(1);
    counting::device(|| {
        let (steps, world) = (steady::steps(seed, beyond), Arc::new(Mutex::new(World::steady(seed))));
        let of = Arc::clone(&world);
        let doors = move || counting::device(|| locked(&of).open().into_iter().map(Door).collect());
        let other = (beyond == Beyond::Turns).then(|| Beside::new(context));
        let same = Arc::clone(&world);
        let round = move |i: u64| {
            counting::device(|| {
                if beyond.ends_threads() && i.is_multiple_of(every) {
                    a_thread_s_round(&world, &steps, context);
                } else {
                    for &step in &steps {
                        match &other {
                            Some(other) if step.thread == 1 => other.step(&world, step),
                            _ => locked(&world).step(step, HERE),
                        }
                    }
                    locked(&world).ends_round(HERE);
                }
                let turn = beyond.ends_allocators() && i % allocator_every == allocator_every - 1;
                if turn {
                    let lasting = locked(&world).next_allocator(seed, i / allocator_every);
                    ENDED.fetch_add(lasting as u64, Relaxed);
                    REPLACED.fetch_add(1, Relaxed);
                }
                // Each allocator begins on an idle device, so that two allocators with the same options keep the same.
                if turn || i % PERIOD == PERIOD - 1 {
                    locked(&world).rest(beyond != Beyond::Unsynchronized);
                }
            });
        };
        let end = move || counting::device(|| locked(&same).over());
        Steady { round: Box::new(round), rounds, doors: Box::new(doors), end: Box::new(end) }
    })
}

fn locked(world: &Mutex<World>) -> MutexGuard<'_, World> {
    world.lock().expect("no thread panicked")
}

/// A round on a thread that ends with the round, as does its default stream.
fn a_thread_s_round(world: &Arc<Mutex<World>>, steps: &[Step], context: Context) {
    let account = Account::here();
    let here = locked(world).fresh_thread();
    let theirs = || {
        account.scope(|| {
            counting::device(|| {
                context.bind();
                let mut world = locked(world);
                for &step in steps {
                    world.step(step, here);
                }
                world.ends_round(here);
                world.before_the_end(here.thread)
            })
        })
    };
    let before = std::thread::scope(|threads| threads.spawn(theirs).join().expect("its round does not fail"));
    locked(world).has_ended(here.thread, &before, "");
}

/// The program's second thread: it makes a call on request, while the first one waits for it.
struct Beside {
    orders: Option<SyncSender<(Arc<Mutex<World>>, Step)>>,
    done: Receiver<()>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Beside {
    fn new(context: Context) -> Beside {
        let (orders, taken) = sync_channel::<(Arc<Mutex<World>>, Step)>(0);
        let (tell, done) = sync_channel(0);
        let account = Account::here();
        let make = move || {
            account.scope(|| {
                counting::device(|| {
                    context.bind();
                    while let Ok((world, step)) = taken.recv() {
                        locked(&world).step(step, OTHER);
                        drop(world);
                        tell.send(()).expect("the first thread waits");
                    }
                });
            });
        };
        Beside { orders: Some(orders), done, thread: Some(std::thread::spawn(make)) }
    }

    fn step(&self, world: &Arc<Mutex<World>>, step: Step) {
        let orders = self.orders.as_ref().expect("it is there");
        let given = orders.send((Arc::clone(world), step)).is_ok() && self.done.recv().is_ok();
        assert!(given, "a call failed: its thread has printed why");
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        self.orders = None;
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            assert!(ended.is_ok() || std::thread::panicking(), "the second thread panicked");
        }
    }
}

fn pairs_on_one_stream(door: Option<Door>, _: Context) -> Round {
    let (door, s) = (door.expect("an allocator"), stream());
    Box::new(move |i| {
        let x = door.alloc((1 + i as usize % 9) * 3 * KIB, s);
        set(x.addr() as u64, 1, KIB, s);
        door.free(x);
    })
}

/// One block at a time, used on other streams. A deterministic allocator queries no event: memory that permanent streams used comes back by waits
/// between streams, and other memory by a wait of the host.
fn users(door: Option<Door>, users: usize, permanent: bool, deterministic: bool) -> Round {
    let door = door.expect("an allocator");
    let streams: Vec<_> = (0..=users).map(|_| stream()).collect();
    if permanent {
        for &s in &streams {
            must(ffi::millpond_declare_permanent(door.0, s));
        }
    }
    Box::new(move |i| {
        let x = door.alloc(4 * KIB, streams[0]);
        for &user in &streams[1..] {
            door.use_on(x, user);
        }
        door.free(x);
        if i % PERIOD == 50 {
            synchronize_stream(streams[users]);
            if deterministic && !permanent {
                must(ffi::millpond_synchronize(door.0));
            }
        }
    })
}

fn free_on_another(door: Option<Door>, _: Context) -> Round {
    let (door, s, t) = (door.expect("an allocator"), stream(), stream());
    Box::new(move |i| {
        let x = door.alloc((1 + i as usize % 5) * 40 * KIB, s);
        must(ffi::millpond_free_on(door.0, x, t));
    })
}

/// Each free marks the block's own stream, which gets the block again at once: no call needs a marker, or queries one.
fn free_after_itself(door: Option<Door>, _: Context) -> Round {
    let (door, s) = (door.expect("an allocator"), stream());
    Box::new(move |_| {
        let x = door.alloc(4 * KIB, s);
        set(x.addr() as u64, 1, KIB, s);
        must(ffi::millpond_free_after(door.0, x, &raw const s, 1));
    })
}

/// Memory whose users cannot be marked comes back when the program synchronises the allocator.
fn quiet_now_and_then(door: Door, i: u64) {
    if i % PERIOD == 50 {
        must(ffi::millpond_synchronize(door.0));
    }
}

fn free_unknown(door: Option<Door>, _: Context) -> Round {
    let (door, s) = (door.expect("an allocator"), stream());
    Box::new(move |i| {
        must(ffi::millpond_free_unknown(door.0, door.alloc(4 * KIB, s)));
        quiet_now_and_then(door, i);
    })
}

/// Rounds between two synchronises of the allocator.
const SYNCHRONISED_EVERY: u64 = 500;

/// Blocks are used on another stream and freed with unknown users. Until the program synchronises the allocator, whatever it has waited for itself,
/// the reserved memory grows by what is reported as held back, to the byte. Then nothing is held back and nothing more is reserved, and a trim gives
/// all of it back.
fn held_back(door: Option<Door>, _: Context) -> Round {
    let (door, s, t) = (door.expect("an allocator"), stream(), stream());
    let mut freed = 0;
    Box::new(move |i| {
        let bytes = (1 + i as usize % 3) * 4 * KIB;
        let x = door.alloc(bytes, s);
        set(x.addr() as u64, 1, KIB, s);
        door.use_on(x, t);
        must(ffi::millpond_free_unknown(door.0, x));
        freed += bytes as u64;
        let synchronises = i % SYNCHRONISED_EVERY == SYNCHRONISED_EVERY - 1;
        if synchronises {
            // The allocator does not notice the program's own waits.
            synchronize();
        }
        if synchronises || i % 7 == 0 {
            assert_eq!(door.taken_and_held_back(), [freed; 2], "round {i}");
        }
        if synchronises {
            must(ffi::millpond_synchronize(door.0));
            assert_eq!(door.taken_and_held_back(), [freed, 0], "round {i}");
            // The same bytes are handed out again.
            door.free(door.alloc(4 * KIB, s));
            must(ffi::millpond_synchronize(door.0));
            assert_eq!(door.taken_and_held_back(), [freed, 0], "round {i}");
            must(ffi::millpond_trim(door.0, null_mut()));
            assert_eq!(door.taken_and_held_back(), [0; 2], "round {i}");
            freed = 0;
        }
    })
}

/// Streams of one round, which are named at each free before they end, and whose handles are reused: nothing is held back.
fn named_streams_come_and_go(door: Option<Door>, _: Context) -> Round {
    let (door, home) = (door.expect("an allocator"), stream());
    Box::new(move |_| {
        let s = stream();
        let (x, y) = (door.alloc(4 * KIB, s), door.alloc(4 * KIB, home));
        set(x.addr() as u64, 1, KIB, s);
        must(ffi::millpond_free_on(door.0, x, s));
        must(ffi::millpond_free_on(door.0, y, s));
        destroy_stream(s);
    })
}

/// Streams of one round, which end before or after a free that does not name them.
fn streams_come_and_go(door: Option<Door>, _: Context) -> Round {
    let (door, home) = (door.expect("an allocator"), stream());
    Box::new(move |i| {
        let s = stream();
        let (x, y) = (door.alloc(4 * KIB, s), door.alloc(4 * KIB, home));
        set(x.addr() as u64, 1, KIB, s);
        door.use_on(y, s);
        if i % 2 == 0 {
            destroy_stream(s);
            door.free(x);
        } else {
            door.free(x);
            destroy_stream(s);
        }
        door.free(y);
        quiet_now_and_then(door, i);
    })
}

/// A thousand threads, one after another, each on its default stream. Not more, because the oracle has a clock for each. No call of the
/// allocator waits, because that would give back what a thread's end leaves.
fn threads_come_and_go(door: Option<Door>, context: Context) -> Round {
    let (door, every) = (door.expect("an allocator"), rounds() / 1000);
    Box::new(move |i| {
        if i % every != 0 {
            return;
        }
        let theirs = move || {
            context.bind();
            let on = std::ptr::without_provenance_mut(PER_THREAD);
            let x = door.alloc(4 * KIB, on);
            set(x.addr() as u64, 1, KIB, on);
            door.free(x);
        };
        std::thread::scope(|threads| threads.spawn(theirs).join().expect("no panic"));
    })
}

fn pinned(door: Option<Door>, _: Context) -> Round {
    let (door, s, t) = (door.expect("an allocator"), stream(), stream());
    Box::new(move |i| {
        let mut x = null_mut();
        must(ffi::millpond_alloc_pinned(door.0, 8 * KIB, &raw mut x));
        must(ffi::millpond_record_pinned_use(door.0, x, s));
        must(ffi::millpond_record_pinned_use(door.0, x, t));
        must(if i % 5 == 0 {
            ffi::millpond_free_pinned_unknown(door.0, x)
        } else {
            ffi::millpond_free_pinned(door.0, x)
        });
        quiet_now_and_then(door, i);
    })
}

fn pytorch(_: Option<Door>, _: Context) -> Round {
    let (s, t) = (stream(), stream());
    Box::new(move |i| {
        let bytes = (1 + i as usize % 7) * 100 * KIB;
        let x = torch::millpond_torch_alloc(bytes, 0, s);
        if i % 2 == 0 {
            torch::millpond_torch_record_stream(x, t);
        }
        torch::millpond_torch_free(x, bytes, 0, if i % 3 == 0 { t } else { s });
        assert_eq!(torch::millpond_torch_untold(), 0);
        OPERATIONS.fetch_add(2, Relaxed);
    })
}

/// A stream of the other device uses the memory, and in one of two rounds captures when it is freed: such a free is put off, and carried out by a
/// later one.
fn pytorch_beside_captures() -> Steady {
    let contexts = driver::contexts();
    let doors = [0, 1].map(|device| {
        let mut number = 0;
        must(torch::millpond_torch_allocator(device, null(), &raw mut number));
        Door(number)
    });
    driver::bind(contexts[1]);
    let t = stream();
    driver::bind(contexts[0]);
    let s = stream();
    let round = move |i: u64| {
        let (bytes, captures) = ((1 + i as usize % 7) * 10 * KIB, i.is_multiple_of(2));
        let x = torch::millpond_torch_alloc(bytes, 0, s);
        torch::millpond_torch_record_stream(x, t);
        if captures {
            driver::bind(contexts[1]);
            driver::begin_capture(t, 2);
            driver::bind(contexts[0]);
        }
        torch::millpond_torch_free(x, bytes, 0, s);
        assert_eq!(torch::is_put_off(x.addr()), captures, "round {i}");
        driver::bind(contexts[1]);
        if captures {
            let mut graph = null_mut();
            assert_eq!(driver::end_capture(t, &raw mut graph), 0, "round {i}: the capture lives");
            driver::destroy_graph(graph);
        }
        OPERATIONS.fetch_add(3, Relaxed);
        if i % PERIOD == PERIOD - 1 {
            synchronize();
        }
        driver::bind(contexts[0]);
    };
    Steady {
        round: Box::new(round),
        rounds: rounds(),
        doors: Box::new(move || doors.to_vec()),
        end: Box::new(|| ()),
    }
}

/// What README.md shows between the creation of the allocator and its end: [`README`].
fn of_the_readme(door: Option<Door>, _: Context) -> Round {
    let (door, s, other) = (door.expect("an allocator"), stream(), stream());
    must(ffi::millpond_declare_permanent(door.0, s));
    Box::new(move |i| {
        let x = door.alloc(1 << 20, s);
        door.use_on(x, other);
        door.free(x);
        // The other stream is not declared permanent.
        quiet_now_and_then(door, i);
    })
}

/// What examples/copy.c does between these: [`EXAMPLE`].
fn example_in_c(door: Option<Door>, _: Context) -> Round {
    let (door, s) = (door.expect("an allocator"), stream());
    must(ffi::millpond_declare_permanent(door.0, s));
    Box::new(move |_| {
        let (from, to) = (door.alloc(1 << 20, s), door.alloc(1 << 20, s));
        set(from.addr() as u64, 7, 1 << 20, s);
        driver::copy(to.addr() as u64, from.addr() as u64, 1 << 20, s);
        door.free(from);
        door.free(to);
        let mut report = [0 as c_char; 4096];
        must(ffi::millpond_report(door.0, report.as_mut_ptr(), report.len(), null_mut()));
    })
}

/// The calls of the interface that the loops above make, in the order of the texts, with those before and after the loop: the creation of the
/// allocator, and its end.
const README: &[&str] = &["create", "declare_permanent", "alloc", "record_use", "free"];
const EXAMPLE: &[&str] =
    &["create", "declare_permanent", "alloc", "alloc", "free", "free", "report", "destroy"];
/// Other texts with programs, and why they have no loop here.
const NO_LOOP: &[(&str, &str)] = &[(
    "python/README.md",
    "it makes the calls of the pair for PyTorch, and allocates and frees; what Python keeps for these calls is freed by Python",
)];

/// The calls of the interface in a C text, except `millpond_last_error`.
fn calls_in(text: &str) -> Vec<String> {
    let calls = text.split("millpond_").skip(1).filter_map(|rest| rest.split_once('('));
    let named = |name: &&str| name.chars().all(|c| c.is_ascii_lowercase() || c == '_');
    calls
        .map(|(name, _)| name)
        .filter(named)
        .filter(|name| *name != "last_error")
        .map(str::to_owned)
        .collect()
}

fn blocks_in(text: &str, fence: &str) -> Vec<String> {
    let blocks = text.split(fence).skip(1).filter_map(|rest| rest.split("```").next());
    blocks.map(str::to_owned).collect()
}

/// Fails if a program is added to the texts, or a call to one of them, without a loop here.
#[test]
fn every_program_of_the_texts_has_a_loop_or_a_reason() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let read =
        |path: &str| std::fs::read_to_string(root.join(path)).unwrap_or_else(|e| panic!("{path}: {e}"));
    let readme = blocks_in(&read("README.md"), "```c\n");
    assert_eq!(readme.iter().map(|block| calls_in(block)).collect::<Vec<_>>(), [README]);
    let examples = std::fs::read_dir(root.join("examples")).expect("examples");
    let examples: Vec<_> = examples.map(|file| file.expect("a file").file_name()).collect();
    assert_eq!(examples, ["copy.c"]);
    assert_eq!(calls_in(&read("examples/copy.c")), EXAMPLE);
    for (path, why) in NO_LOOP {
        assert_eq!(
            blocks_in(&read(path), "```python\n").len(),
            1,
            "programs of {path}, of which one has no loop: {why}"
        );
    }
    // The comparison can fail.
    assert_ne!(calls_in(&(readme.concat() + "millpond_trim(gpu, NULL);")), README);
}

/// One allocator after another, more than a process can have at one time, each with a block that outlives it.
fn allocators(permanent: bool) -> Round {
    let (s, t) = (stream(), stream());
    Box::new(move |_| {
        let (door, lasting) = (Door::new(""), if permanent { &[s, t][..] } else { &[] });
        for &s in lasting {
            must(ffi::millpond_declare_permanent(door.0, s));
        }
        let (x, y) = (door.alloc(4 * KIB, s), door.alloc(4 * KIB, s));
        door.use_on(x, t);
        door.free(x);
        door.destroy();
        ENDED.fetch_add(lasting.len() as u64, Relaxed);
        door.free(y);
    })
}

/// Planted leaks are found by named programs, whose steps do not change with the generator, and some by random ones too, on a device that runs
/// at once, in as many rounds as an ordinary run, in which the same programs pass. Built and run by `.ci/mutants`.
#[cfg(millpond_mutants)]
#[test]
fn every_leak_of_the_c_interface_is_found() {
    use pond::mutant::Bug;
    use std::io::Write;

    const FINDERS: &[(Bug, &str)] = &[
        (Bug::DoorLaneKept, "streams_that_come_and_go_and_are_named"),
        (Bug::DoorThreadStays, "threads_that_come_and_go"),
        (Bug::NamedNotServed, "two_users"),
        (Bug::LeakUnlooked, "frees_that_name_their_own_stream"),
        (Bug::LeakUnpooled, "frees_that_name_their_own_stream"),
        (Bug::LeakUnfiled, "two_users_and_a_small_footprint"),
        (Bug::DoorLaterLost, "the_pair_for_pytorch_beside_captures_of_another_device"),
        (Bug::LeakUnpooled, "random_threads_that_end_0"),
        (Bug::SweepNever, "random_threads_that_end_0"),
        (Bug::DoorLaneKept, "random_unsynchronized_0"),
        (Bug::NamedNotServed, "random_unsynchronized_0"),
    ];
    assert!(remote::path().is_some(), "the stand-in driver is not built");
    let exe = std::env::current_exe().expect("a test has a path");
    let mut missed = Vec::new();
    for &(bug, name) in FINDERS {
        let run = std::process::Command::new(&exe)
            .args(["--exact", name, "--include-ignored", "--nocapture", "--test-threads", "1"])
            .env("MILLPOND_SOAK_ALONE", "at once")
            .env("MILLPOND_PLANT", bug.name())
            .env("RUST_BACKTRACE", "0")
            .output()
            .expect("it runs");
        // The bug must be found by the soak's own check, and not by another panic.
        let said = String::from_utf8_lossy(&run.stderr);
        let found = said.lines().skip_while(|line| !line.starts_with("FAIL ")).nth(1);
        match found {
            // Past the test harness, which hides what a passing test prints.
            Some(found) => {
                let _ = std::io::stderr().write_all(format!("{bug}: {name}: {}\n", found.trim()).as_bytes());
            }
            None => missed.push(format!("{bug} passes {name}: {said}")),
        }
    }
    assert!(missed.is_empty(), "{missed:#?}");
}
