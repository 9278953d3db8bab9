//! What is left of an allocator that has ended: memory that was alive at the end is freed with its work pending, by a program that has no
//! other allocator. No free waits; a trim or a synchronise of the ended allocator gives the memory back.

use super::{
    Door, MIB, OK, Three, Two, UNKNOWN_ALLOCATOR, alone, bind, function, function_of_driver, last, program,
    stream, write,
};
use cudarc::driver::sys;
use pond::cuda::{Cuda, GpuStream};
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, Ordering};

/// `MILLPOND_STATUS_DRIVER`.
const DRIVER: c_int = 8;

type TorchAllocator = extern "C" fn(c_int, *const c_void, *mut u32) -> c_int;
type TorchAlloc = extern "C" fn(usize, c_int, *mut c_void) -> *mut c_void;
type TorchFree = extern "C" fn(*mut c_void, usize, c_int, *mut c_void);
type Find = extern "C" fn(u32, *const c_void, *mut *mut c_void, *mut usize) -> c_int;
type Trim = extern "C" fn(u32, *mut usize) -> c_int;
type Text = extern "C" fn(u32, *mut c_void, usize, *mut usize) -> c_int;
type Alloc = extern "C" fn(u32, usize, *mut c_void, *mut *mut c_void) -> c_int;
type Pinned = extern "C" fn(u32, usize, *mut *mut c_void) -> c_int;

/// The driver's calls that wait for the device, its own frees included.
const WAITS: [&str; 6] = [
    "cuMemFree_v2",
    "cuMemFreeHost",
    "cuMemHostUnregister",
    "cuCtxSynchronize",
    "cuStreamSynchronize",
    "cuEventSynchronize",
];

fn pinned(door: Door, bytes: usize) -> *mut c_void {
    let mut out = null_mut();
    let alloc = function::<extern "C" fn(u32, usize, *mut *mut c_void) -> c_int>("millpond_alloc_pinned");
    assert_eq!(alloc(door.0, bytes, &raw mut out), OK, "{}", last());
    out
}

/// The only allocator of the process ends while a block and a pinned block are alive; a copy uses both, and they are freed.
fn freed_after(cuda: &Cuda, s: &GpuStream, fake: &super::Fake, end: &str, options: &str) -> Door {
    let door = Door::new(options);
    let (x, h) = (door.alloc(400 * MIB, s), pinned(door, 64 * MIB));
    assert_eq!(function::<Three>("millpond_record_pinned_use")(door.0, h, s.handle().cast()), OK);
    assert_eq!(door.one(end), OK, "{}", last());
    write(cuda, s, x, 1, 1);
    let copy = function_of_driver::<extern "C" fn(u64, *const c_void, usize, sys::CUstream) -> c_int>(
        "cuMemcpyHtoDAsync_v2",
    );
    assert_eq!(copy(x.addr() as u64, h, 1, s.handle()), 0, "queued");
    let waits = || WAITS.map(|name| fake.calls(name));
    let before = waits();
    let idle = door.alloc_is_refused(s);
    let codes = [door.free_on(x, s), function::<Two>("millpond_free_pinned_unknown")(door.0, h)];
    assert_eq!((codes, idle), ([OK, OK], UNKNOWN_ALLOCATOR));
    assert_eq!(waits(), before, "no free waits: {WAITS:?}");
    door
}

impl Door {
    fn alloc_is_refused(self, s: &GpuStream) -> c_int {
        self.try_alloc(MIB, s).expect_err("it has ended")
    }
    fn trimmed(self) -> u64 {
        let mut freed = 77;
        let trim = function::<extern "C" fn(u32, *mut usize) -> c_int>("millpond_trim");
        assert_eq!(trim(self.0, &raw mut freed), OK, "{}", last());
        freed as u64
    }
}

#[test]
fn the_only_allocator_gives_back_what_was_freed_after_its_end() {
    alone("ended::the_only_allocator_gives_back_what_was_freed_after_its_end", |fake| {
        let cuda = program();
        bind(&cuda);
        let s = stream(&cuda);
        for end in ["millpond_destroy", "millpond_release"] {
            for options in ["", "deterministic=1"] {
                let door = freed_after(&cuda, &s, fake, end, options);
                assert_eq!(
                    (door.trimmed(), door.stat("reserved")),
                    (0, 400 * MIB as u64),
                    "the work is pending"
                );
                assert_eq!(door.one("millpond_synchronize"), OK, "{}", last());
                let left = fake.leaks().unwrap_or_default();
                assert_eq!(door.stat("reserved"), 0, "{end}, {options}");
                assert!(!left.lines().any(|l| l.contains("bytes")), "{end}, {options}: {left}");
                assert_eq!((door.trimmed(), door.one("millpond_synchronize")), (0, OK), "nothing is left");
                assert_eq!([door.one(end), Door(4000).trim()], [UNKNOWN_ALLOCATOR; 2]);
            }
            // A trim gives back what is known to be complete: device memory whose last stream was named, but not pinned memory that was
            // freed with unknown users.
            let door = freed_after(&cuda, &s, fake, end, "");
            // SAFETY: a stream of this test's.
            unsafe { sys::cuStreamSynchronize(s.handle()) };
            assert_eq!(door.trimmed(), 400 * MIB as u64, "{end}");
            assert_eq!((door.stat("reserved"), door.one("millpond_synchronize")), (0, OK));
        }
        assert_eq!(fake.verdict(), None);
    });
}

/// Idle memory has no pending use, and still no free gives it back: the driver's free might wait for other work.
#[test]
fn a_free_of_idle_memory_after_the_end_does_not_wait() {
    alone("ended::a_free_of_idle_memory_after_the_end_does_not_wait", |fake| {
        let cuda = program();
        bind(&cuda);
        let (s, busy) = (stream(&cuda), stream(&cuda));
        let door = Door::new("");
        let (x, other, h) = (door.alloc(MIB, &s), door.alloc(MIB, &busy), pinned(door, MIB));
        door.destroy();
        write(&cuda, &busy, other, MIB, 1);
        let waits = || WAITS.map(|name| fake.calls(name));
        let before = waits();
        assert_eq!([door.free(x), function::<Two>("millpond_free_pinned")(door.0, h)], [OK; 2]);
        assert_eq!(waits(), before, "no free waits: {WAITS:?}");
        let query = function_of_driver::<extern "C" fn(sys::CUstream) -> c_int>("cuStreamQuery");
        assert_eq!(query(busy.handle()), 600, "its work is still pending");
        assert_eq!(door.free_on(other, &busy), OK);
        assert_eq!((waits(), door.one("millpond_synchronize")), (before, OK));
        assert_eq!((door.stat("reserved"), fake.verdict()), (0, None));
    });
}

/// Events on permanent streams and on streams that may end: none is left after the allocator's end, or after a synchronise where memory is freed
/// later. All allocators together keep one reference of the context.
#[test]
fn ended_allocators_keep_no_events() {
    alone("ended::ended_allocators_keep_no_events", |fake| {
        let cuda = program();
        bind(&cuda);
        let events = || fake.calls("cuEventCreate") - fake.calls("cuEventDestroy_v2");
        let streams: Vec<_> = (0..20).map(|_| stream(&cuda)).collect();
        for round in 0..3 {
            let door = Door::new("");
            for (n, s) in streams.iter().enumerate() {
                if n % 2 == 0 {
                    door.declare_permanent(s);
                }
                let x = door.alloc(4096, s);
                write(&cuda, s, x, 4096, 1);
                let y = door.alloc(4096, s);
                write(&cuda, s, y, 4096, 1);
                assert_eq!(door.record_use(y, &streams[(n + 1) % 20]), OK);
                assert_eq!([door.free_on(x, &streams[(n + 7) % 20]), door.free(y)], [OK; 2]);
            }
            let late = (round == 2).then(|| door.alloc(4096, &streams[0]));
            assert!(events() > 0);
            door.destroy();
            if let Some(late) = late {
                write(&cuda, &streams[0], late, 4096, 1);
                assert_eq!(door.free_on(late, &streams[1]), OK);
                assert!(events() > 0, "its uses are marked");
                assert_eq!(door.one("millpond_synchronize"), OK, "{}", last());
            }
            assert_eq!(events(), 0, "round {round}: {:?}", fake.leaks());
            // The other reference is the test's own; if the library is linked into the program, both are the same.
            let linked = std::env::var_os("MILLPOND_LINKED").is_some();
            let holds = fake.calls("cuDevicePrimaryCtxRetain") - fake.calls("cuDevicePrimaryCtxRelease_v2");
            assert_eq!(holds, if linked { 1 } else { 2 }, "round {round}");
        }
    });
}

/// A block that stays alive in an ended allocator makes no work for later calls: they make as many driver calls as without it, and give the memory
/// back once it was freed.
#[test]
fn ended_allocators_that_live_on_cost_later_calls_nothing() {
    alone("ended::ended_allocators_that_live_on_cost_later_calls_nothing", |fake| {
        let cuda = program();
        bind(&cuda);
        let (s, t) = (stream(&cuda), stream(&cuda));
        let next = Door::new("");
        let calls = |call: &str| {
            let before = fake.calls_total();
            assert_eq!(if call == "trim" { next.trim() } else { next.one("millpond_synchronize") }, OK);
            fake.calls_total() - before
        };
        for end in ["millpond_destroy", "millpond_release"] {
            let (mut ended, mut beside) = (Vec::new(), Vec::new());
            for more in [1, 7] {
                ended.extend((0..more).map(|_| {
                    let door = Door::new("");
                    door.declare_permanent(&s);
                    let (x, y, h) = (door.alloc(512, &s), door.alloc(512, &s), pinned(door, 512));
                    write(&cuda, &s, y, 512, 1);
                    assert_eq!([door.record_use(y, &t), door.free(y), door.one(end)], [OK; 3]);
                    (door, x, h)
                }));
                // Work that was pending at the end lies beside the live blocks; the first rounds find it complete and destroy its events.
                beside.push([0; 4].map(|_| ["trim", "synchronize"].map(&calls))[3]);
            }
            assert_eq!(beside[0], beside[1], "{end}: driver calls beside one and beside eight");
            for &(door, x, h) in &ended {
                assert_eq!([door.free(x), function::<Two>("millpond_free_pinned")(door.0, h)], [OK; 2]);
            }
            assert_eq!(next.one("millpond_synchronize"), OK);
            let left: Vec<_> = ended.iter().map(|(door, ..)| door.stat("reserved")).collect();
            assert_eq!(left, [0; 8], "{end}: what was freed went back");
        }
        assert_eq!(fake.verdict(), None);
    });
}

/// The allocator that a test ends in the middle of another call.
static BESIDE: AtomicU32 = AtomicU32::new(0);

/// Another thread ends it now: the code of that call, if it returns.
fn ends_it(end: &'static str) -> Option<c_int> {
    let door = Door(BESIDE.load(Ordering::SeqCst));
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || sender.send(door.one(end)));
    receiver.recv_timeout(std::time::Duration::from_secs(20)).ok()
}

/// An allocator ends during an allocation, which has grown and then fails: the memory that it took from the device goes back in a later call.
#[test]
fn an_allocation_that_fails_beside_a_destroy_leaves_nothing() {
    alone("ended::an_allocation_that_fails_beside_a_destroy_leaves_nothing", |fake| {
        extern "C" fn destroys() {
            assert_eq!(ends_it("millpond_destroy"), Some(OK));
        }
        let cuda = program();
        bind(&cuda);
        let (s, door, next) = (stream(&cuda), Door::new("scrub=1"), Door::new(""));
        BESIDE.store(door.0, Ordering::SeqCst);
        fake.before_here("cuMemAlloc_v2", destroys);
        fake.fail_here(&["cuMemsetD8Async"], 1, 1);
        assert_eq!(door.try_alloc(MIB, &s), Err(DRIVER), "the fill fails");
        assert_eq!(fake.struck_here().as_deref(), Some("cuMemsetD8Async"));
        assert!(door.stat("reserved") > 0, "the allocation has grown");
        assert_eq!([door.one("millpond_destroy"), next.one("millpond_synchronize")], [UNKNOWN_ALLOCATOR, OK]);
        assert_eq!((door.stat("reserved"), fake.verdict()), (0, None));
    });
}

/// A finaliser releases an allocator while its destroy waits for the device on another thread: the release does not wait for that, and the destroy
/// returns that there is no such allocator.
#[test]
fn a_release_does_not_wait_behind_a_destroy() {
    alone("ended::a_release_does_not_wait_behind_a_destroy", |fake| {
        extern "C" fn releases() {
            assert_eq!(ends_it("millpond_release"), Some(OK), "the release waits for the destroy");
        }
        let cuda = program();
        bind(&cuda);
        let (s, door) = (stream(&cuda), Door::new(""));
        let x = door.alloc(MIB, &s);
        write(&cuda, &s, x, MIB, 1);
        assert_eq!(door.free_unknown(x), OK);
        BESIDE.store(door.0, Ordering::SeqCst);
        fake.before_here("cuMemFreeHost", releases);
        assert_eq!(door.one("millpond_destroy"), UNKNOWN_ALLOCATOR, "{}", last());
        assert_eq!(door.one("millpond_release"), UNKNOWN_ALLOCATOR);
        assert_eq!(
            (door.stat("reserved"), fake.verdict()),
            (0, None),
            "the destroy had waited for what the release left"
        );
    });
}

/// PyTorch's tensors outlive its allocator: a use that is recorded then is waited for, as before the end.
#[test]
fn pytorchs_uses_count_after_the_end() {
    alone("ended::pytorchs_uses_count_after_the_end", |fake| {
        let cuda = program();
        bind(&cuda);
        let (s, t, mut number) = (stream(&cuda), stream(&cuda), 0);
        assert_eq!(
            function::<TorchAllocator>("millpond_torch_allocator")(0, null_mut(), &raw mut number),
            OK
        );
        let door = Door(number);
        for stream in [&s, &t] {
            door.declare_permanent(stream);
        }
        let x = function::<TorchAlloc>("millpond_torch_alloc")(MIB, 0, s.handle().cast());
        door.destroy();
        write(&cuda, &t, x, MIB, 1);
        let record = function::<extern "C" fn(*mut c_void, *mut c_void)>("millpond_torch_record_stream");
        record(x, t.handle().cast());
        function::<TorchFree>("millpond_torch_free")(x, MIB, 0, s.handle().cast());
        assert_eq!(function::<extern "C" fn() -> u64>("millpond_torch_untold")(), 0, "{}", last());
        assert_eq!(door.trimmed(), 0, "t still uses it");
        assert_eq!(door.one("millpond_synchronize"), OK, "{}", last());
        assert_eq!((door.stat("reserved"), fake.verdict()), (0, None));
    });
}

/// The places of results: a failed create or allocation stores zero there, and every other failed call leaves them as they were.
#[test]
fn a_failure_leaves_the_places_of_results_as_the_header_says() {
    alone("ended::a_failure_leaves_the_places_of_results_as_the_header_says", |_fake| {
        let cuda = program();
        let (s, door) = (stream(&cuda), Door::new("limit=2MiB,growth=exact"));
        let (mut number, mut at, mut bytes) = (99, std::ptr::dangling_mut(), 77);
        let before = (at, bytes);
        let codes = [
            function::<Find>("millpond_find")(door.0, null_mut(), &raw mut at, &raw mut bytes),
            function::<Trim>("millpond_trim")(4000, &raw mut bytes),
            function::<Text>("millpond_stats_json")(4000, null_mut(), 0, &raw mut bytes),
            function::<TorchAllocator>("millpond_torch_allocator")(-1, null_mut(), &raw mut number),
        ];
        assert!(!codes.contains(&OK), "{codes:?}");
        assert_eq!(((at, bytes), number), (before, 99));
        let refused = function::<Alloc>("millpond_alloc")(door.0, 3 * MIB, s.handle().cast(), &raw mut at);
        assert_eq!((refused, at), (super::OUT_OF_MEMORY, null_mut()));
        at = before.0;
        let refused = function::<Pinned>("millpond_alloc_pinned")(4000, MIB, &raw mut at);
        assert_eq!((refused, at, Door::on(99, "").is_err()), (UNKNOWN_ALLOCATOR, null_mut(), true));
        door.destroy();
    });
}
