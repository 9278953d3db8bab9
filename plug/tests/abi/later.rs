//! `PyTorch`'s pair with memory that another device's streams use: whatever keeps the use from being recorded at the free, the bytes have no
//! other owner while they are used, the pointer is no longer an allocation, and the memory comes back.

use super::captures::{begin, end};
use super::old::alone_without_ids;
use super::{
    CAPTURING, Door, GIB, MIB, OK, UNKNOWN_ALLOCATOR, UNKNOWN_POINTER, When, alone, bind, function, last,
    program,
};
use super::{DRIVER, function_of_driver, stream, write};
use cudarc::driver::sys;
use pond::cuda::{Cuda, GpuStream};
use pond::driver::Fences;
use std::ffi::{CString, c_char, c_int, c_void};
use std::ptr::null;

const BYTES: usize = 2 * MIB;

fn of(device: c_int, options: *const c_char) -> Result<Door, c_int> {
    type Allocator = extern "C" fn(c_int, *const c_char, *mut u32) -> c_int;
    let mut number = 0;
    match function::<Allocator>("millpond_torch_allocator")(device, options, &raw mut number) {
        OK => Ok(Door(number)),
        code => Err(code),
    }
}
fn alloc(bytes: usize, s: &GpuStream) -> *mut c_void {
    type Alloc = extern "C-unwind" fn(usize, c_int, *mut c_void) -> *mut c_void;
    function::<Alloc>("millpond_torch_alloc")(bytes, 0, s.handle().cast())
}
fn free_by(ptr: *mut c_void, handle: usize) {
    type Free = extern "C" fn(*mut c_void, usize, c_int, *mut c_void);
    function::<Free>("millpond_torch_free")(ptr, BYTES, 0, std::ptr::without_provenance_mut(handle));
}
fn free(ptr: *mut c_void, s: &GpuStream) {
    free_by(ptr, s.handle().addr());
}
fn record(ptr: *mut c_void, s: &GpuStream) {
    type Record = extern "C" fn(*mut c_void, *mut c_void);
    function::<Record>("millpond_torch_record_stream")(ptr, s.handle().cast());
}
fn empty_cache() {
    function::<extern "C" fn()>("millpond_torch_empty_cache")();
}
fn unreported() -> u64 {
    function::<extern "C" fn() -> u64>("millpond_torch_untold")()
}

/// Two devices with `PyTorch`'s allocator each, and a stream of each, declared as the package does.
struct Pair {
    cudas: [Cuda; 2],
    doors: [Door; 2],
    s: GpuStream,
    t: GpuStream,
}

impl Pair {
    fn new(options: &str) -> Pair {
        let options = CString::new(options).expect("words");
        let cudas = [0, 1].map(|d| Cuda::new(d).expect("two devices"));
        let doors = [0, 1].map(|d| of(d, options.as_ptr()).expect("an allocator"));
        let [s, t] = [0, 1].map(|d: usize| stream(&cudas[d]));
        doors[0].declare_permanent(&s);
        doors[1].declare_permanent(&t);
        Pair { cudas, doors, s, t }
    }
    /// A stream of the other device that is not declared.
    fn other(&self) -> GpuStream {
        stream(&self.cudas[1])
    }
    fn begin(&self, t: &GpuStream) {
        bind(&self.cudas[1]);
        begin(t);
    }
    fn live(&self) -> u64 {
        self.doors[0].stat("live")
    }
    /// A block of s's that `t` writes after the work on s; `record` runs before that and may record the use.
    fn used_by(&self, t: &GpuStream, record: impl FnOnce(*mut c_void)) -> *mut c_void {
        let x = alloc(BYTES, &self.s);
        assert!(!x.is_null(), "{}", last());
        record(x);
        let event = self.cudas[0].create_event().expect("an event");
        self.cudas[0].record(&event, &self.s).expect("recorded");
        self.cudas[1].wait(t, &event).expect("queued");
        write(&self.cudas[1], t, x, BYTES, 1);
        x
    }
    /// The next owner of the bytes writes them at once. A free whose users on its own device could not be recorded comes back at a synchronise there.
    fn used_again(&self, x: *mut c_void) {
        assert_eq!(self.doors[0].one("millpond_synchronize"), OK, "{}", last());
        let y = alloc(BYTES, &self.s);
        assert_eq!(y, x, "without the same bytes the test shows nothing: {}", last());
        write(&self.cudas[0], &self.s, y, BYTES, 2);
        free(y, &self.s);
    }
}

const TIGHT: &str = "limit=2MiB,growth=exact";

/// The stream of a recorded use has ended, with its work complete or not: the free is made by a call that waits for that stream's device.
#[test]
fn a_stream_that_ended_keeps_no_memory_for_ever() {
    alone("later::a_stream_that_ended_keeps_no_memory_for_ever", |fake| {
        let pair = Pair::new("growth=exact");
        let waits: [fn(&Pair); 3] = [
            |_| empty_cache(),
            |pair| assert_eq!(pair.doors[1].one("millpond_synchronize"), OK, "{}", last()),
            |_| Door::on(1, "").expect("another of the device").destroy(),
        ];
        for (n, wait) in waits.iter().enumerate() {
            for captures in [false, true] {
                let u = pair.other();
                let x = if captures {
                    // While it captures its device cannot be queried, and later it has ended.
                    let x = pair.used_by(&u, |_| {});
                    pair.begin(&u);
                    record(x, &u);
                    assert!(end(&u));
                    x
                } else {
                    pair.used_by(&u, |x| record(x, &u))
                };
                drop(u);
                let before = unreported();
                free(x, &pair.s);
                assert_eq!((unreported(), pair.live()), (before + 1, 1), "wait {n}: counted, and not freed");
                free(alloc(512, &pair.s), &pair.s);
                assert_eq!(
                    (unreported(), pair.live()),
                    (before + 1, 1),
                    "wait {n}: another free does not make it"
                );
                wait(&pair);
                assert_eq!((unreported(), pair.live()), (before + 1, 0), "wait {n}");
            }
        }
        empty_cache();
        assert_eq!(pair.doors.map(|d| d.stat("reserved")), [0, 0]);
        assert_eq!(fake.verdict(), None);
    });
}

/// At the free another stream has the handle of the one that was recorded: it is not taken for it, whether on the other device or on this one.
#[test]
fn a_stream_is_not_taken_for_the_one_that_had_its_handle() {
    alone("later::a_stream_is_not_taken_for_the_one_that_had_its_handle", |fake| {
        let pair = Pair::new(TIGHT);
        for device in [1, 0] {
            let u = pair.other();
            let x = pair.used_by(&u, |x| record(x, &u));
            let handle = u.handle();
            drop(u);
            let mut others = Vec::new();
            while others.last().is_none_or(|v: &GpuStream| v.handle() != handle) {
                others.push(stream(&pair.cudas[device]));
                assert!(others.len() < 100, "the handle is not reused");
            }
            let before = unreported();
            free(x, &pair.s);
            assert_eq!(
                (unreported(), pair.live()),
                (before + 1, 1),
                "its work is pending, and it cannot be marked any more"
            );
            assert!(alloc(BYTES, &pair.s).is_null(), "the bytes are not handed out");
            assert_eq!(fake.verdict(), None);
            empty_cache();
            assert_eq!(pair.live(), 0);
            pair.used_again(x);
            assert_eq!(fake.verdict(), None, "device {device} has the handle");
        }
    });
}

/// Each driver call of a recorded use fails in turn, on either device: the bytes have no other owner while they are used.
#[test]
fn a_use_on_another_device_is_kept_whatever_fails() {
    alone("later::a_use_on_another_device_is_kept_whatever_fails", |fake| {
        let pair = Pair::new(TIGHT);
        let mut failed = 0;
        for nth in 1.. {
            let u = pair.other();
            let mut calls = 0;
            let x = pair.used_by(&u, |x| {
                let before = fake.calls_total();
                fake.fail_call(before + nth, 999);
                record(x, &u);
                calls = fake.calls_total() - before;
                fake.clear_faults();
            });
            failed += u64::from(calls >= nth);
            free(x, &pair.s);
            pair.used_again(x);
            assert_eq!((fake.verdict(), unreported()), (None, 0), "call {nth} of {calls}");
            if nth > calls {
                break;
            }
        }
        assert!(failed > 6, "only {failed} calls failed, so this test shows little");
    });
}

/// A refused free forgets no use: what the streams that it could record do afterwards is before the end of the next free, too.
#[test]
fn a_refused_free_keeps_all_recorded_uses() {
    alone("later::a_refused_free_keeps_all_recorded_uses", |fake| {
        type FreeOn = extern "C" fn(u32, *mut c_void, *mut c_void) -> c_int;
        fake.reset(GIB, 2, When::Latest);
        let pair = Pair::new(TIGHT);
        let here = pair.doors[0];
        for other_captures in [true, false] {
            let u = pair.other();
            let x = pair.used_by(&pair.t, |x| record(x, &pair.t));
            record(x, &u);
            let refused = if other_captures {
                pair.begin(&u);
                here.free(x)
            } else {
                let s = stream(&pair.cudas[0]);
                bind(&pair.cudas[0]);
                begin(&s);
                let code = function::<FreeOn>("millpond_free_on")(here.0, x, s.handle().cast());
                assert!(end(&s));
                code
            };
            assert_eq!(refused, CAPTURING, "{}", last());
            // The free was refused, so the program may use the block.
            write(&pair.cudas[1], &pair.t, x, BYTES, 3);
            if other_captures {
                assert!(end(&u));
            }
            assert_eq!(here.free(x), OK, "{}", last());
            let y = alloc(BYTES, &pair.s);
            if !y.is_null() {
                write(&pair.cudas[0], &pair.s, y, BYTES, 4);
                free(y, &pair.s);
            }
            assert_eq!(fake.verdict(), None);
            empty_cache();
        }
    });
}

/// After a free that was put off, every later call sees the pointer as freed.
#[test]
fn what_is_freed_later_has_no_owner() {
    type Base = extern "C" fn(*mut c_void, *mut usize) -> *mut c_void;
    alone("later::what_is_freed_later_has_no_owner", |fake| {
        fake.reset(GIB, 2, When::Earliest);
        let pair = Pair::new("growth=exact");
        let (canary, mut small) = (alloc(BYTES, &pair.s), [(); 4].map(|()| alloc(512, &pair.s)).into_iter());
        let mut any_free = || free(small.next().expect("one more"), &pair.s);
        let x = pair.used_by(&pair.t, |x| record(x, &pair.t));
        pair.begin(&pair.t);
        // Calls with a code return it: nothing was freed.
        let here = pair.doors[0];
        let codes = [here.free(x), here.free_on(x, &pair.s), here.free_unknown(x)];
        assert_eq!(codes, [CAPTURING; 3], "{}", last());
        assert_eq!(pair.live(), 6);
        let before = unreported();
        free(x, &pair.s);
        assert_eq!((unreported(), pair.live()), (before + 1, 6));
        let codes =
            [here.free(x), here.free_on(x, &pair.s), here.free_unknown(x), here.record_use(x, &pair.s)];
        assert_eq!(codes, [UNKNOWN_POINTER; 4], "{}", last());
        let mut size = 77;
        assert!(function::<Base>("millpond_torch_base")(x, &raw mut size).is_null());
        record(x, &pair.s);
        free(x, &pair.s);
        assert_eq!((unreported(), size), (before + 4, 77));
        assert!(end(&pair.t), "the capture lives");
        // The next free carries it out, and later ones free nothing else.
        any_free();
        assert_eq!((unreported(), pair.live()), (before + 4, 4));
        assert_eq!(here.one("millpond_synchronize"), OK);
        let y = alloc(BYTES, &pair.s);
        assert_eq!(y, x, "without the same bytes the test shows nothing");
        for _ in 0..3 {
            any_free();
            empty_cache();
        }
        assert_eq!(pair.live(), 2, "the next owner keeps them");
        free(y, &pair.s);
        free(canary, &pair.s);
        assert_eq!((unreported(), pair.live(), fake.verdict()), (before + 4, 0, None));
    });
}

/// Two threads free one pointer while the stream of another device that used it captures.
#[test]
fn of_two_frees_at_once_one_is_put_off() {
    alone("later::of_two_frees_at_once_one_is_put_off", |fake| {
        const ROUNDS: u64 = 300;
        fake.reset(GIB, 2, When::Earliest);
        let pair = Pair::new("growth=exact");
        let canary = alloc(BYTES, &pair.s);
        let before = unreported();
        for round in 0..ROUNDS {
            let x = alloc(512, &pair.s).addr();
            record(std::ptr::without_provenance_mut(x), &pair.t);
            pair.begin(&pair.t);
            let (handle, barrier) = (pair.s.handle().addr(), std::sync::Barrier::new(2));
            let once = || {
                barrier.wait();
                free_by(std::ptr::without_provenance_mut(x), handle);
            };
            std::thread::scope(|scope| {
                scope.spawn(once);
                once();
            });
            assert_eq!(
                (unreported(), pair.live()),
                (before + 2 * (round + 1), 2),
                "round {round}: put off, and refused"
            );
            bind(&pair.cudas[1]);
            assert!(end(&pair.t), "the capture lives");
            empty_cache();
            assert_eq!(pair.live(), 1, "round {round}");
        }
        free(canary, &pair.s);
        assert_eq!((unreported(), pair.live(), fake.verdict()), (before + 2 * ROUNDS, 0, None));
    });
}

/// A free names the calling thread's default stream and is put off: it is carried out on another thread, and still comes after the first thread's work.
#[test]
fn a_free_that_is_made_on_another_thread_is_behind_its_own() {
    alone("later::a_free_that_is_made_on_another_thread_is_behind_its_own", |fake| {
        let pair = Pair::new(TIGHT);
        let (x, y) = (alloc(MIB, &pair.s), alloc(MIB, &pair.s));
        record(x, &pair.t);
        bind(&pair.cudas[0]);
        let own = pair.cudas[0].per_thread_stream().expect("a stream");
        write(&pair.cudas[0], &own, x, MIB, 1);
        pair.begin(&pair.t);
        free_by(x, 2);
        assert!(end(&pair.t), "the capture lives");
        let (y, handle) = (y.addr(), pair.s.handle().addr());
        std::thread::scope(|scope| {
            scope.spawn(|| free_by(std::ptr::without_provenance_mut(y), handle));
        });
        assert_eq!(pair.live(), 0, "both are freed");
        let z = alloc(MIB, &pair.s);
        if !z.is_null() {
            write(&pair.cudas[0], &pair.s, z, MIB, 2);
        }
        let w = alloc(MIB, &pair.s);
        if !w.is_null() {
            write(&pair.cudas[0], &pair.s, w, MIB, 3);
        }
        assert_eq!(fake.verdict(), None);
    });
}

/// A side stream of the tensor's own device, declared by the package, captures: the free is not put off.
#[test]
fn a_captured_stream_of_the_own_device_puts_nothing_off() {
    alone("later::a_captured_stream_of_the_own_device_puts_nothing_off", |fake| {
        let pair = Pair::new("growth=exact");
        let side = stream(&pair.cudas[0]);
        pair.doors[0].declare_permanent(&side);
        let x = alloc(BYTES, &pair.s);
        bind(&pair.cudas[0]);
        begin(&side);
        record(x, &side);
        free(x, &pair.s);
        assert_eq!((unreported(), pair.live()), (0, 0));
        assert!(end(&side), "the capture lives");
        // A stream of the other device that was declared there is known, too.
        let y = pair.used_by(&pair.t, |_| {});
        pair.begin(&pair.t);
        record(y, &pair.t);
        assert!(end(&pair.t), "the capture lives");
        free(y, &pair.s);
        assert_eq!((unreported(), pair.live()), (0, 0));
        empty_cache();
        assert_eq!((pair.doors[0].stat("reserved"), fake.verdict()), (0, None));
    });
}

/// Without stream ids a stream that was not declared cannot be followed: what it used comes back at a wait for its device.
#[test]
fn a_stream_without_an_id_keeps_no_memory_for_ever() {
    alone_without_ids("later::a_stream_without_an_id_keeps_no_memory_for_ever", |fake| {
        let pair = Pair::new("growth=exact");
        let u = stream(&pair.cudas[0]);
        let x = alloc(BYTES, &pair.s);
        record(x, &u);
        free(x, &pair.s);
        assert_eq!(
            (unreported(), pair.live()),
            (0, 0),
            "a stream of this device: freed behind everything on it"
        );
        let v = pair.other();
        let y = pair.used_by(&v, |y| record(y, &v));
        free(y, &pair.s);
        assert_eq!((unreported(), pair.live()), (1, 1), "a stream of the other device: put off");
        empty_cache();
        assert_eq!((unreported(), pair.live(), pair.doors[0].stat("reserved")), (1, 0, 0));
        assert_eq!(fake.verdict(), None);
    });
}

/// A request that finds no memory carries out frees that were put off and can be made by now.
#[test]
fn a_request_takes_what_can_be_freed_by_now() {
    alone("later::a_request_takes_what_can_be_freed_by_now", |fake| {
        let pair = Pair::new(TIGHT);
        let x = pair.used_by(&pair.t, |x| record(x, &pair.t));
        pair.begin(&pair.t);
        free(x, &pair.s);
        assert!(alloc(BYTES, &pair.s).is_null(), "not while it captures");
        assert!(end(&pair.t), "the capture lives");
        pair.used_again(x);
        assert_eq!((pair.live(), fake.verdict()), (0, None));
    });
}

/// A forked child touches neither the driver nor what the parent has put off.
#[cfg(unix)]
#[test]
fn a_forked_child_makes_no_free_of_its_parents() {
    alone("later::a_forked_child_makes_no_free_of_its_parents", |fake| {
        unsafe extern "C" {
            fn fork() -> c_int;
            fn waitpid(child: c_int, status: *mut c_int, options: c_int) -> c_int;
            fn _exit(code: c_int) -> !;
        }
        let pair = Pair::new("growth=exact");
        let x = pair.used_by(&pair.t, |x| record(x, &pair.t));
        pair.begin(&pair.t);
        free(x, &pair.s);
        assert_eq!(pair.live(), 1);
        let (before, handle) = (fake.calls_total(), pair.s.handle().addr());
        // SAFETY: the child makes the calls under test and ends at once.
        let child = unsafe { fork() };
        if child == 0 {
            empty_cache();
            free_by(x, handle);
            let calls = fake.calls_total() - before;
            // SAFETY: the child ends here; nothing else of it may run.
            unsafe { _exit(c_int::try_from(calls).unwrap_or(99)) };
        }
        let mut status = 0;
        // SAFETY: the child that was forked above, and a pointer to a local.
        assert_eq!(unsafe { waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0, "the child called the driver, or a signal ended it");
        assert!(end(&pair.t), "the capture lives");
        empty_cache();
        assert_eq!((pair.live(), fake.verdict()), (0, None));
    });
}

/// A synchronise waits as CUDA's own call does, and never by unpinning, which stalls other threads' launches: this holds for what an ended
/// allocator has left, too.
#[test]
fn a_synchronise_unpins_nothing_for_what_others_owe() {
    alone("later::a_synchronise_unpins_nothing_for_what_others_owe", |fake| {
        let cuda = program();
        let (s, a) = (stream(&cuda), Door::new(""));
        for own in [false, true] {
            let b = Door::new("");
            let x = b.alloc(MIB, &s);
            b.destroy();
            write(&cuda, &s, x, MIB, 1);
            assert_eq!(b.free(x), OK);
            assert!(b.stat("reserved") > 0, "it has memory left");
            let before = fake.calls("cuMemFreeHost");
            assert_eq!(if own { b } else { a }.one("millpond_synchronize"), OK, "{}", last());
            assert_eq!((fake.calls("cuMemFreeHost"), b.stat("reserved")), (before, 0), "its own: {own}");
        }
        a.destroy();
        assert_eq!(fake.verdict(), None);
    });
}

/// Streams that a program makes and keeps, with an `empty_cache` now and then: the allocator's records of them do not grow.
#[test]
fn streams_that_come_and_go_leave_nothing_behind_an_empty_cache() {
    alone("later::streams_that_come_and_go_leave_nothing_behind_an_empty_cache", |fake| {
        fake.reset(GIB, 2, When::Earliest);
        let cuda = program();
        bind(&cuda);
        let door = of(0, c"growth=exact".as_ptr()).expect("an allocator");
        // So that no handle is reused, which would show that the stream before has ended.
        let mut kept = Vec::new();
        let pools = || door.stats().matches("\"closed\":").count();
        for n in 1..=400 {
            let u = stream(&cuda);
            let x = alloc(512, &u);
            free(x, &u);
            kept.push(u);
            if n % 100 == 0 {
                empty_cache();
                assert!(pools() <= 80, "{n} streams, {} pools", pools());
            }
        }
        assert_eq!((unreported(), fake.verdict()), (0, None));
    });
}

/// `PyTorch`'s functions count a call for a destroyed allocator as failed.
#[test]
fn a_destroyed_allocator_of_pytorchs_has_no_limit_and_no_name() {
    alone("later::a_destroyed_allocator_of_pytorchs_has_no_limit_and_no_name", |_fake| {
        let fraction = function::<extern "C" fn(f64, c_int)>("millpond_torch_memory_fraction");
        let door = of(0, null()).expect("an allocator");
        fraction(0.5, 0);
        assert_eq!(unreported(), 0);
        door.destroy();
        fraction(0.5, 0);
        assert_eq!(unreported(), 1, "its limit was set");
        assert!(last().contains("destroyed"), "{}", last());
        assert_eq!(of(0, null()).err(), Some(UNKNOWN_ALLOCATOR));
        let s = stream(&program());
        let set = function::<extern "C" fn(u32, *const c_char) -> c_int>("millpond_set_limit");
        assert_eq!(
            (set(door.0, c"1MiB".as_ptr()), door.try_alloc(1, &s)),
            (UNKNOWN_ALLOCATOR, Err(UNKNOWN_ALLOCATOR))
        );
    });
}

/// A declared handle whose stream id cannot be queried at the moment: a second declaration fails and does not return OK.
#[test]
fn a_declaration_that_cannot_be_looked_at_is_a_code() {
    alone("later::a_declaration_that_cannot_be_looked_at_is_a_code", |fake| {
        let (cuda, door) = (program(), Door::new(""));
        let declare =
            |s: &GpuStream| function::<super::Two>("millpond_declare_permanent")(door.0, s.handle().cast());
        let s = stream(&cuda);
        assert_eq!([declare(&s), declare(&s)], [OK, OK]);
        bind(&cuda);
        begin(&s);
        assert_eq!(declare(&s), CAPTURING);
        assert!(end(&s), "the capture lives");
        fake.fail_next("cuStreamGetId", 1, 999);
        assert_eq!([declare(&s), declare(&s)], [DRIVER, OK]);
        door.destroy();
    });
}

/// Steps of a random program.
const STEPS: usize = 400;

/// A stream of a random program: whether it captures, and whether it was recorded while it did, so that it must not be destroyed.
struct Drawn {
    stream: GpuStream,
    device: usize,
    captures: bool,
    stays: bool,
}

/// Random programs of blocks that streams of both devices read. Uses are recorded, streams capture, end, and new ones get their handles. No bytes get
/// their next owner while they are read, no pointer is handed out twice, and nothing is left at the end.
fn random(fake: &super::Fake, pair: &Pair, seed: u64) {
    let mut state = seed;
    let mut draw = move |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    let new =
        |device: usize| Drawn { stream: stream(&pair.cudas[device]), device, captures: false, stays: false };
    let mut streams = [1, 1, 1, 0].map(new);
    let mut blocks: Vec<*mut c_void> = Vec::new();
    // Where readers put what they read, a place each: nothing can be allocated during a capture.
    let alloc_own = function_of_driver::<extern "C" fn(*mut u64, usize) -> c_int>("cuMemAlloc_v2");
    let copy =
        function_of_driver::<extern "C" fn(u64, u64, usize, sys::CUstream) -> c_int>("cuMemcpyDtoDAsync_v2");
    let mut sinks = 0;
    bind(&pair.cudas[1]);
    assert_eq!(alloc_own(&raw mut sinks, STEPS * 4096), 0, "room");
    let (mut freed, mut later) = (0, 0);
    for step in 0..STEPS {
        let n = draw(streams.len());
        let bytes = 4096 << draw(8);
        let d = &mut streams[n];
        bind(&pair.cudas[d.device]);
        match draw(9) {
            0..3 => {
                let x = alloc(bytes, &pair.s);
                assert!(!blocks.contains(&x), "seed {seed}, step {step}: {x:p} is alive");
                if !x.is_null() {
                    write(&pair.cudas[0], &pair.s, x, bytes, 1);
                    blocks.push(x);
                }
            }
            3 | 4 if !blocks.is_empty() => {
                let x = blocks[draw(blocks.len())];
                if !d.captures {
                    let event = pair.cudas[0].create_event().expect("an event");
                    pair.cudas[0].record(&event, &pair.s).expect("recorded");
                    pair.cudas[d.device].wait(&d.stream, &event).expect("queued");
                    let sink = sinks + step as u64 * 4096;
                    assert_eq!(copy(sink, x.addr() as u64, 4096, d.stream.handle()), 0, "queued");
                    if draw(4) == 0 {
                        begin(&d.stream);
                        d.captures = true;
                    }
                    d.stays |= d.captures;
                    record(x, &d.stream);
                }
            }
            5 if d.captures => {
                assert!(end(&d.stream), "seed {seed}, step {step}: the capture lives");
                d.captures = false;
            }
            5 if !d.stays => *d = new(d.device),
            6 | 7 if !blocks.is_empty() => {
                let x = blocks.swap_remove(draw(blocks.len()));
                let before = unreported();
                free(x, &pair.s);
                freed += 1;
                later += unreported() - before;
            }
            8 if draw(8) == 0 => empty_cache(),
            _ => {}
        }
        assert_eq!(fake.verdict(), None, "seed {seed}, step {step}");
    }
    for d in streams.iter().filter(|d| d.captures) {
        bind(&pair.cudas[d.device]);
        assert!(end(&d.stream), "seed {seed}: the capture lives");
    }
    for x in blocks {
        free(x, &pair.s);
    }
    empty_cache();
    let left = (pair.live(), pair.doors[0].stat("reserved"), fake.verdict());
    assert_eq!(left, (0, 0, None), "seed {seed}: {freed} freed, {later} of them later");
    assert!(later > 0, "seed {seed}: nothing was put off");
}

#[test]
fn random_programs_of_two_devices_are_in_order() {
    alone("later::random_programs_of_two_devices_are_in_order", |fake| {
        let pair = Pair::new("limit=2MiB,growth=exact,wait_ms=1");
        for seed in 0..8 {
            random(fake, &pair, seed);
        }
    });
}
