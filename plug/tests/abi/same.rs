//! Two threads name the same pointer at once, which is an error of the program: one free of many succeeds and the others return a code; a call that
//! only looks it up or records a use sees the allocation or returns that there is none. The bytes come back once, after all their uses.

use super::{
    Door, Fake, GIB, MIB, OK, UNKNOWN_POINTER, WRONG_ALLOCATOR, When, alone, bind, function, last, program,
    read, stream, write,
};
use pond::driver::Fences;
use std::ffi::{c_int, c_void};
use std::ptr::{null_mut, without_provenance_mut};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Barrier, Mutex};

const ROUNDS: usize = 8000;
/// How many rounds the threads make before they sleep at a barrier again.
const ROW: usize = 16;
const BYTES: usize = 4096;

/// A call on an allocator that names the pointer and the handle of another stream.
type Call = fn(Door, *mut c_void, *mut c_void) -> c_int;

fn free(door: Door, x: *mut c_void, _: *mut c_void) -> c_int {
    door.free(x)
}
fn free_unknown(door: Door, x: *mut c_void, _: *mut c_void) -> c_int {
    door.free_unknown(x)
}
fn free_on(door: Door, x: *mut c_void, t: *mut c_void) -> c_int {
    function::<super::Three>("millpond_free_on")(door.0, x, t)
}
fn free_after(door: Door, x: *mut c_void, t: *mut c_void) -> c_int {
    type After = extern "C" fn(u32, *mut c_void, *const *mut c_void, usize) -> c_int;
    function::<After>("millpond_free_after")(door.0, x, &raw const t, 1)
}
fn record_use(door: Door, x: *mut c_void, t: *mut c_void) -> c_int {
    function::<super::Three>("millpond_record_use")(door.0, x, t)
}
fn find(door: Door, x: *mut c_void, _: *mut c_void) -> c_int {
    type Find = extern "C" fn(u32, *const c_void, *mut *mut c_void, *mut usize) -> c_int;
    let (mut begin, mut bytes) = (null_mut(), 0);
    let inside = x.wrapping_byte_add(BYTES / 2);
    let code = function::<Find>("millpond_find")(door.0, inside, &raw mut begin, &raw mut bytes);
    let expected = if code == OK { (x, BYTES) } else { (null_mut(), 0) };
    assert_eq!((begin, bytes), expected, "{code}");
    code
}

const FREES: [Call; 4] = [free, free_on, free_after, free_unknown];
const LOOKS: [Call; 2] = [record_use, find];

/// A thread that panics while it holds this ends the process, which runs only this test: the others would wait at a barrier for ever.
struct Together;

impl Drop for Together {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::process::abort();
        }
    }
}

/// Makes these calls at once, each on its own thread, for one pointer after another: `before` returns each round's pointer, and `after` gets the results.
/// The threads sleep at a barrier once every [`ROW`] rounds, and then spin only until all of them are awake.
fn at_once<R: Send + Copy + Default>(
    calls: &[&(dyn Fn(usize, *mut c_void) -> R + Sync)],
    mut before: impl FnMut(usize) -> *mut c_void,
    mut after: impl FnMut(usize, &[R]),
) {
    let (begins, ends) = (Barrier::new(calls.len() + 1), Barrier::new(calls.len() + 1));
    let awake = AtomicUsize::new(0);
    let pointers = [const { AtomicUsize::new(0) }; ROW];
    let answers: Vec<Mutex<[R; ROW]>> = calls.iter().map(|_| Mutex::new([R::default(); ROW])).collect();
    std::thread::scope(|scope| {
        for (call, answer) in calls.iter().zip(&answers) {
            let (begins, ends, awake, pointers) = (&begins, &ends, &awake, &pointers);
            scope.spawn(move || {
                let _together = Together;
                bind(&program());
                for first in (0..ROUNDS).step_by(ROW) {
                    begins.wait();
                    let all = (first / ROW + 1) * calls.len();
                    awake.fetch_add(1, Ordering::AcqRel);
                    for spins in 0_u64.. {
                        if awake.load(Ordering::Acquire) >= all {
                            break;
                        }
                        if spins % 1000 == 999 {
                            std::thread::yield_now();
                        }
                        std::hint::spin_loop();
                    }
                    let mut came_to = [R::default(); ROW];
                    for (n, came_to) in came_to.iter_mut().enumerate() {
                        let x = pointers[n].load(Ordering::Relaxed);
                        *came_to = call(first + n, without_provenance_mut(x));
                    }
                    *answer.lock().expect("no thread panicked") = came_to;
                    ends.wait();
                }
            });
        }
        let _together = Together;
        for first in (0..ROUNDS).step_by(ROW) {
            for (n, pointer) in pointers.iter().enumerate() {
                pointer.store(before(first + n).addr(), Ordering::Relaxed);
            }
            begins.wait();
            ends.wait();
            let rows: Vec<[R; ROW]> =
                answers.iter().map(|a| *a.lock().expect("no thread panicked")).collect();
            for n in 0..ROW {
                after(first + n, &rows.iter().map(|row| row[n]).collect::<Vec<R>>());
            }
        }
    });
}

/// One allocation per round: written on its home stream, read by another stream, whose use is recorded, and written again by the next owner, on either
/// stream. What comes back too early, or twice, is found by the oracle or an assertion.
fn judge(fake: &Fake, permanent: bool) {
    fake.reset(GIB, 2, When::Latest);
    let cuda = program();
    bind(&cuda);
    let (s, t) = (stream(&cuda), stream(&cuda));
    let (door, other) = (Door::new("limit=16MiB,wait_ms=1"), Door::new(""));
    if permanent {
        for s in [&s, &t] {
            door.declare_permanent(s);
        }
    }
    let event = cuda.create_event().expect("an event");
    let handle = t.handle().addr();
    let named = || without_provenance_mut::<c_void>(handle);
    let first = |round: usize, x| FREES[round % 4](door, x, named());
    let second = |round: usize, x| match round / 16 % 3 {
        0 => FREES[round / 4 % 4](door, x, named()),
        1 => LOOKS[round / 4 % 2](door, x, named()),
        _ => FREES[round / 4 % 4](other, x, named()),
    };
    let (mut both, mut seen, mut lost) = (0, 0, 0);
    at_once::<c_int>(
        &[&first, &second],
        |round| {
            let x = door.alloc(BYTES, &s);
            write(&cuda, &s, x, BYTES, 1);
            if round % 8 == 0 {
                cuda.record(&event, &s).expect("marked");
                cuda.wait(&t, &event).expect("the wait is queued");
                read(&cuda, &t, x, BYTES);
                assert_eq!(door.record_use(x, &t), OK, "{}", last());
            }
            x
        },
        |round, codes| {
            match (round / 16 % 3, codes) {
                (0, &[OK, UNKNOWN_POINTER] | &[UNKNOWN_POINTER, OK]) => both += 1,
                (1, &[OK, OK]) => seen += 1,
                (1, &[OK, UNKNOWN_POINTER]) => lost += 1,
                (2, &[OK, WRONG_ALLOCATOR | UNKNOWN_POINTER]) => {}
                _ => panic!("round {round}: {codes:?}"),
            }
            if round % ROW < ROW - 1 {
                return;
            }
            assert_eq!(door.stat("live"), 0, "round {round}: each is freed once");
            // Two live allocations never have the same bytes.
            let again = [door.alloc(BYTES, &s), door.alloc(BYTES, &t)];
            assert_ne!(again[0], again[1], "round {round}");
            write(&cuda, &s, again[0], BYTES, 2);
            write(&cuda, &t, again[1], BYTES, 3);
            assert_eq!([door.free_on(again[0], &s), door.free_on(again[1], &t)], [OK; 2], "{}", last());
            if round % (8 * ROW) == 8 * ROW - 1 {
                assert_eq!(door.one("millpond_synchronize"), OK, "{}", last());
            }
        },
    );
    println!(
        "{both} rounds of two frees; during a free the pointer was found {seen} times, and {lost} times not"
    );
    assert!(both > ROUNDS / 4 && seen > 0 && lost > 0, "{both}, {seen}, {lost}");
    assert_eq!(fake.verdict(), None);
    assert_eq!([door.one("millpond_synchronize"), door.trim()], [OK; 2]);
    assert_eq!((door.stat("reserved"), door.held_back()), (0, 0));
    door.destroy();
    other.destroy();
}

#[test]
fn of_calls_that_name_one_pointer_at_once_one_frees_it() {
    alone("same::of_calls_that_name_one_pointer_at_once_one_frees_it", |fake| {
        judge(fake, false);
    });
}

#[test]
fn of_calls_that_name_one_pointer_of_a_permanent_stream_one_frees_it() {
    alone("same::of_calls_that_name_one_pointer_of_a_permanent_stream_one_frees_it", |fake| {
        judge(fake, true);
    });
}

/// `PyTorch`'s functions return no codes: of two frees one succeeds, and the other is counted as a failed call.
#[test]
fn of_pytorchs_calls_that_name_one_pointer_at_once_one_frees_it() {
    type Allocator = extern "C" fn(c_int, *const std::ffi::c_char, *mut u32) -> c_int;
    type Alloc = extern "C" fn(usize, c_int, *mut c_void) -> *mut c_void;
    type Free = extern "C" fn(*mut c_void, usize, c_int, *mut c_void);
    type Record = extern "C" fn(*mut c_void, *mut c_void);
    type Base = extern "C" fn(*mut c_void, *mut usize) -> *mut c_void;
    alone("same::of_pytorchs_calls_that_name_one_pointer_at_once_one_frees_it", |fake| {
        let cuda = program();
        bind(&cuda);
        let (s, t) = (stream(&cuda), stream(&cuda));
        let mut number = 0;
        assert_eq!(function::<Allocator>("millpond_torch_allocator")(0, c"".as_ptr(), &raw mut number), OK);
        let door = Door(number);
        let unreported = || function::<extern "C" fn() -> u64>("millpond_torch_untold")();
        let (home, away) = (s.handle().addr(), t.handle().addr());
        let handle = |addr: usize| without_provenance_mut::<c_void>(addr);
        let first = |_: usize, x| {
            function::<Free>("millpond_torch_free")(x, BYTES, 0, handle(home));
            true
        };
        // Returns whether the call found the allocation.
        let second = |round: usize, x: *mut c_void| match round / ROW % 3 {
            0 => first(round, x),
            1 => {
                function::<Record>("millpond_torch_record_stream")(x, handle(away));
                true
            }
            _ => {
                let mut size = 77;
                let base = function::<Base>("millpond_torch_base")(x, &raw mut size);
                assert_eq!((base, size), if base.is_null() { (base, 77) } else { (x, BYTES) });
                !base.is_null()
            }
        };
        let (before, looks) = (std::cell::Cell::new(0), std::cell::Cell::new(0));
        let mut unseen = [0; 3];
        // On a busy machine the second call may come first, or last, in every round of a kind: then there are more rounds, 20 times at most.
        for _ in 0..20 {
            at_once::<bool>(
                &[&first, &second],
                |round| {
                    if round % ROW == 0 {
                        before.set(unreported());
                        looks.set(0);
                    }
                    let x = function::<Alloc>("millpond_torch_alloc")(BYTES, 0, s.handle().cast());
                    assert!(!x.is_null(), "{}", last());
                    write(&cuda, &s, x, BYTES, 1);
                    x
                },
                |round, saw| {
                    looks.set(looks.get() + u64::from(!saw[1]));
                    if round % ROW < ROW - 1 {
                        return;
                    }
                    let more = unreported() - before.get();
                    match round / ROW % 3 {
                        0 => {
                            assert_eq!(
                                more, ROW as u64,
                                "round {round}: one of two frees is counted as failed"
                            );
                        }
                        1 => assert!(more <= ROW as u64, "round {round}: {more}"),
                        _ => assert_eq!(more, looks.get(), "round {round}: {saw:?}"),
                    }
                    unseen[round / ROW % 3] += more;
                    assert_eq!(door.stat("live"), 0, "round {round}: each is freed once");
                    if round % (8 * ROW) == 8 * ROW - 1 {
                        assert_eq!(door.one("millpond_synchronize"), OK, "{}", last());
                    }
                },
            );
            if unseen.iter().all(|n| *n > 0) {
                break;
            }
        }
        println!("counted as failed: {unseen:?} of two frees, of a use and of a lookup during a free");
        assert!(unseen.iter().all(|n| *n > 0), "{unseen:?}");
        assert!(door.stat("reserved") <= 8 * MIB as u64);
        assert_eq!(fake.verdict(), None);
    });
}
