//! Plain cudarc on the stand-in: it runs, and the four hazards of its safe interface are reported by the oracle or shown.
//!
//! These programs use nothing of millpond: they are what a user would write with cudarc alone, and only the one
//! that wraps another library's stream has an unsafe block. For each hazard there is a program that does the same without the mistake,
//! for which the oracle reports nothing: so it is the mistake that it reports.

#[path = "../remote.rs"]
mod remote;

use cudarc::driver::{CudaContext, CudaSlice, CudaStream, result, sys};
use remote::{Fake, When};
use std::sync::Arc;

const GIB: u64 = 1 << 30;
const WORDS: usize = 1 << 16;

fn fake(when: When) -> Fake {
    remote::fake(GIB, 1, when).expect("cargo builds the stand-in before this test")
}

/// The context that all programs use.
fn context() -> Arc<CudaContext> {
    CudaContext::new(0).expect("a context")
}

/// A slice that holds sevens, ready for every stream.
fn sevens(on: &Arc<CudaStream>) -> CudaSlice<u32> {
    let slice = on.clone_htod(&vec![7; WORDS]).expect("sent");
    on.synchronize().expect("there");
    slice
}

/// A slice to copy into, ready for every stream.
fn room(on: &Arc<CudaStream>) -> CudaSlice<u32> {
    let slice = on.alloc_zeros(WORDS).expect("room");
    on.synchronize().expect("zero");
    slice
}

/// The next owner of freed bytes overwrites them.
fn next_owner(on: &Arc<CudaStream>, freed_at: u64) -> CudaSlice<u32> {
    use cudarc::driver::DevicePtr;
    let slice = on.alloc_zeros(WORDS).expect("the next owner");
    assert_eq!(slice.device_ptr(on).0, freed_at, "without the same bytes the test shows nothing");
    slice
}

/// A slice's address. This call records a read on the slice's own stream, which replaces other reads: it must come before those.
fn address(slice: &CudaSlice<u32>) -> u64 {
    use cudarc::driver::DevicePtr;
    slice.device_ptr(slice.stream()).0
}

/// The oracle reports nothing, and nothing is left.
fn reports_nothing(fake: &Fake) {
    assert_eq!(fake.verdict(), None);
    assert_eq!(fake.leaks(), None);
}

/// The oracle reports the use that the free did not wait for.
fn reports_the_use(fake: &Fake) {
    let verdict = fake.verdict().expect("a violation");
    assert!(verdict.contains("the program's fault"), "{verdict}");
    assert!(verdict.contains("that `copy inside the device` may still read, not recorded"), "{verdict}");
    assert_eq!(fake.leaks(), None, "the program is wrong, but frees everything");
}

#[test]
fn a_lawful_program_runs_and_is_acquitted() {
    let fake = fake(When::Latest);
    {
        let ctx = context();
        assert_eq!(ctx.name().expect("a name"), "millpond stand-in");
        assert_eq!(ctx.compute_capability().expect("numbers"), (9, 0));
        let (copy, work) = (ctx.new_stream().expect("a stream"), ctx.new_stream().expect("a stream"));
        let data: Vec<u32> = (0..WORDS as u32).collect();
        let sent = copy.clone_htod(&data).expect("sent");
        let mut other = work.alloc_zeros::<u32>(WORDS).expect("zeroes");
        work.memcpy_dtod(&sent, &mut other).expect("copied");
        assert_eq!(work.clone_dtoh(&other).expect("read back"), data);
        ctx.synchronize().expect("idle");
    }
    reports_nothing(&fake);
}

/// A slice has one read event: the second reader's record replaces the first's, and the free waits for the second only.
fn two_readers(fake: &Fake, first_too: bool) -> Vec<u32> {
    let ctx = context();
    let (home, one, two) = (new(&ctx), new(&ctx), new(&ctx));
    let shared = sevens(&home);
    let at = address(&shared);
    let (mut a, mut b) = (room(&one), room(&two));
    if first_too {
        one.memcpy_dtod(&shared, &mut a).expect("the first reader");
    }
    two.memcpy_dtod(&shared, &mut b).expect("the second reader");
    drop(shared);
    let next = next_owner(&home, at);
    home.synchronize().expect("the next owner has written");
    assert_eq!(fake.verdict().is_some(), first_too, "the oracle reports it at once");
    let seen = one.clone_dtoh(&a).expect("read back");
    drop(next);
    seen
}

fn new(ctx: &Arc<CudaContext>) -> Arc<CudaStream> {
    ctx.new_stream().expect("a stream")
}

#[test]
fn hazard_1_the_first_of_two_readers_is_lost() {
    let fake = fake(When::Latest);
    let seen = two_readers(&fake, true);
    reports_the_use(&fake);
    assert_eq!(seen, vec![0; WORDS], "the reader that was not waited for read the next owner's zeroes");
}

#[test]
fn hazard_1_one_reader_is_waited_for() {
    let fake = fake(When::Latest);
    two_readers(&fake, false);
    reports_nothing(&fake);
}

/// Tracking is on while there is a stream besides the default one, and off when the last of these is dropped.
fn reader_that_is_dropped(drop_it_first: bool) {
    let ctx = context();
    let home = ctx.default_stream();
    let reader = new(&ctx);
    let shared = sevens(&home);
    let at = address(&shared);
    let mut a = room(&home);
    reader.memcpy_dtod(&shared, &mut a).expect("a reader");
    let keep = if drop_it_first {
        drop(reader);
        None
    } else {
        Some(reader)
    };
    drop(shared);
    drop(next_owner(&home, at));
    home.synchronize().expect("done");
    ctx.synchronize().expect("done");
    drop(keep);
}

#[test]
fn hazard_2_tracking_switches_itself_off_with_the_last_stream() {
    let fake = fake(When::Latest);
    reader_that_is_dropped(true);
    reports_the_use(&fake);
}

#[test]
fn hazard_2_tracking_works_while_the_stream_lives() {
    let fake = fake(When::Latest);
    reader_that_is_dropped(false);
    reports_nothing(&fake);
}

/// A stream of another library, wrapped: cudarc does not count it, and tracks nothing.
fn wrapped_reader(a_stream_of_its_own_too: bool) {
    let ctx = context();
    let home = ctx.default_stream();
    let keep = a_stream_of_its_own_too.then(|| new(&ctx));
    ctx.bind_to_thread().expect("current");
    let foreign = result::stream::create(result::stream::StreamKind::NonBlocking).expect("a foreign stream");
    #[allow(unsafe_code, reason = "the only way to wrap a foreign stream")]
    // SAFETY: just created in this context, and destroyed below, after the wrapper.
    let wrapped = unsafe { ctx.wrap_borrowed_stream(foreign) };
    let shared = sevens(&home);
    let at = address(&shared);
    let mut a = room(&home);
    wrapped.memcpy_dtod(&shared, &mut a).expect("a reader");
    drop(shared);
    drop(next_owner(&home, at));
    ctx.synchronize().expect("done");
    drop((a, wrapped));
    #[allow(unsafe_code, reason = "a raw handle")]
    // SAFETY: created above; nothing uses it any more.
    unsafe { result::stream::destroy(foreign) }.expect("destroyed");
    drop(keep);
}

#[test]
fn hazard_3_wrapped_streams_are_invisible() {
    let fake = fake(When::Latest);
    wrapped_reader(false);
    reports_the_use(&fake);
}

#[test]
fn hazard_3_wrapped_streams_are_seen_while_there_is_one_of_its_own() {
    let fake = fake(When::Latest);
    wrapped_reader(true);
    reports_nothing(&fake);
}

/// Two threads, each on its own per-thread default stream, which cudarc takes for one.
fn per_thread_reader(wait_for_it: bool) {
    let ctx = context();
    let mine = ctx.per_thread_stream();
    let shared = sevens(&mine);
    let at = address(&shared);
    let mut a = room(&mine);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let theirs = ctx.per_thread_stream();
            assert_eq!(theirs, mine, "cudarc sees no difference");
            theirs.memcpy_dtod(&shared, &mut a).expect("a reader");
            if wait_for_it {
                theirs.synchronize().expect("done");
            }
        });
    });
    drop(shared);
    drop(next_owner(&mine, at));
    ctx.synchronize().expect("done");
}

#[test]
fn hazard_3_per_thread_streams_are_taken_for_one() {
    let fake = fake(When::Latest);
    per_thread_reader(false);
    reports_the_use(&fake);
}

#[test]
fn hazard_3_per_thread_streams_need_a_wait_of_the_programs_own() {
    let fake = fake(When::Latest);
    per_thread_reader(true);
    reports_nothing(&fake);
}

#[test]
fn hazard_4_a_drop_on_a_fresh_thread_leaks_and_fails_the_next_call() {
    let fake = fake(When::Earliest);
    {
        let ctx = context();
        let slice = sevens(&ctx.default_stream());
        let at = address(&slice);
        std::thread::scope(|s| s.spawn(|| drop(slice)).join()).expect("no panic: the drop reports nothing");
        let leaked = fake.leaks().expect("the slice is still there");
        assert!(leaked.contains(&format!("{at:#x}: Pooled")), "{leaked}");
        let why = fake.last_refusal().expect("something was refused");
        assert!(why.ends_with("no context is current on this thread (201)"), "{why}");
        let next = ctx.mem_get_info().expect_err("another call returns the error");
        assert_eq!(next.0, sys::CUresult::CUDA_ERROR_INVALID_CONTEXT);
        ctx.mem_get_info().expect("only the next one");
    }
    assert_eq!(fake.verdict(), None);
    let left = fake.leaks().expect("it is lost for ever");
    assert_eq!(left.lines().count(), 3, "the slice and its two events: {left}");
}

#[test]
fn hazard_4_a_thread_that_binds_the_context_drops_well() {
    let fake = fake(When::Earliest);
    {
        let ctx = context();
        let slice = sevens(&ctx.default_stream());
        let bound = ctx.clone();
        let drops = move || {
            bound.bind_to_thread().expect("current");
            drop(slice);
        };
        std::thread::spawn(drops).join().expect("dropped");
        ctx.mem_get_info().expect("nothing to report");
    }
    reports_nothing(&fake);
}
