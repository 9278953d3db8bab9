//! What the tests of a failing driver run: programs that use every part of the CUDA backend, end with an error where a
//! call fails, and give back whatever they took. They do not know which call will fail, nor how.

use crate::copies;
use crate::remote::Fake;
use cudarc::driver::{CudaContext, CudaStream};
use millpond::cuda::{Backing, Cuda, GpuHandle, GpuStream};
use millpond::driver::{Copies, DriverResult, Fences, Mapping, Memory, StreamOptions};
use millpond::units::Addr;
use millpond::{Allocation, Allocator, Config, Error, Growth, Limit, Reuse, Stream, Trim, kernel};
use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

const MIB: u64 = 1 << 20;

/// A program that may fail.
#[derive(Clone, Copy)]
pub(crate) struct Program {
    pub(crate) name: &'static str,
    body: fn(&Stage<'_>) -> Result<(), Error>,
    /// It uses what other code made.
    others: bool,
    /// Calls of it whose failure must be returned to it, whatever the code.
    pub(crate) must_report: &'static [&'static str],
    /// Calls for memory of which one refusal is not reported: a ladder makes sure before it gives up.
    pub(crate) overcome: &'static [&'static str],
}

/// What asks for memory and goes on, after one refusal, with what a ladder found.
const BOTH: &[&str] = &["cuMemAlloc_v2", "cuMemHostAlloc", "cuMemHostRegister_v2"];

/// Kernels on arrays.
pub(crate) const LAUNCHES: Program = Program {
    name: "launches",
    body: launches,
    others: false,
    must_report: &["cuModuleLoadData", "cuModuleGetFunction", "cuFuncLoad", "cuLaunchKernel"],
    overcome: BOTH,
};

/// All of them.
pub(crate) const PROGRAMS: &[Program] = &[
    Program {
        name: "memory and order",
        body: memory_and_order,
        others: false,
        must_report: &["cuStreamCreateWithPriority", "cuEventRecord", "cuStreamWaitEvent", "cuMemsetD8Async"],
        overcome: BOTH,
    },
    Program {
        name: "stream-ordered memory",
        body: stream_ordered,
        others: false,
        must_report: &[
            "cuMemPoolCreate",
            "cuMemPoolSetAttribute",
            "cuMemAllocFromPoolAsync",
            "cuMemFreeAsync",
        ],
        overcome: &["cuMemHostAlloc", "cuMemHostRegister_v2"],
    },
    Program {
        name: "virtual memory",
        body: virtual_memory,
        others: false,
        must_report: &[
            "cuMemAddressReserve",
            "cuMemCreate",
            "cuMemMap",
            "cuMemSetAccess",
            "cuMemUnmap",
            "cuMemRelease",
            "cuMemAddressFree",
        ],
        overcome: &[],
    },
    Program {
        name: "our kernels",
        body: kernels,
        others: false,
        must_report: &[
            "cuModuleLoadData",
            "cuModuleGetFunction",
            "cuFuncLoad",
            "cuLaunchKernel",
            "cuMemHostAlloc",
        ],
        overcome: &[],
    },
    LAUNCHES,
    Program {
        name: "arrays",
        body: arrays,
        others: false,
        must_report: &[
            "cuMemcpyHtoDAsync_v2",
            "cuMemcpyDtoHAsync_v2",
            "cuMemcpyDtoDAsync_v2",
            "cuMemcpy2DAsync_v2",
        ],
        overcome: BOTH,
    },
    Program {
        name: "two devices",
        body: two_devices,
        others: false,
        must_report: &["cuMemcpyPeerAsync"],
        overcome: BOTH,
    },
    Program {
        name: "others' streams",
        body: others_streams,
        others: true,
        must_report: &["cuStreamIsCapturing", "cuStreamGetCtx", "cuStreamGetId", "cuStreamGetFlags"],
        overcome: &["cuMemAlloc_v2"],
    },
];

/// What other code made, with cudarc and before anything fails: a context and its streams.
struct Others {
    context: Arc<CudaContext>,
    streams: [Arc<CudaStream>; 4],
}

impl Others {
    fn new() -> Others {
        let context = CudaContext::new(0).expect("nothing fails yet");
        let streams = [(); 4].map(|()| context.new_stream().expect("nothing fails yet"));
        Others { context, streams }
    }
}

/// Where a program runs.
pub(crate) struct Stage<'a> {
    fake: &'a Fake,
    others: Option<Others>,
    /// Calls of the driver that are not the program's: they came before it.
    before: u64,
    body: Cell<u64>,
}

impl Stage<'_> {
    /// What follows are destructors.
    fn body_is_done(&self) {
        self.body.set(self.fake.calls_total() - self.before);
    }
}

/// How a run of a program went.
pub(crate) struct Ran {
    pub(crate) result: Result<(), Error>,
    /// Its calls of the driver, and those before its destructors.
    pub(crate) calls: u64,
    pub(crate) body: u64,
    /// The name of the call that was to fail, if it came to that.
    pub(crate) failed: Option<String>,
}

impl Program {
    /// Runs it, on a thread of its own: a call that failed may have left a context current. The call with this number
    /// fails with this code.
    pub(crate) fn run(&self, fake: &Fake, fault: Option<(u64, u32)>) -> Ran {
        let run = || {
            let others = self.others.then(Others::new);
            let stage = Stage { fake, others, before: fake.calls_total(), body: Cell::new(0) };
            if let Some((number, code)) = fault {
                fake.fail_call(stage.before + number, code);
            }
            let result = (self.body)(&stage);
            let calls = fake.calls_total() - stage.before;
            let failed = fault.and_then(|(number, _)| fake.call_name(stage.before + number));
            // What others made goes back well.
            fake.clear_faults();
            Ran { result, calls, body: stage.body.get(), failed }
        };
        std::thread::scope(|scope| scope.spawn(run).join()).expect("no fault makes it panic")
    }
}

/// Does what gives something back, once more if it failed: then it must work. Returns the errors that it met.
fn twice(mut give_back: impl FnMut() -> DriverResult<()>) -> DriverResult<()> {
    give_back().inspect_err(|first| {
        let again = give_back();
        assert!(again.is_ok() || first.is_context_lost(), "{first}, and then {again:?}");
    })
}

fn memory_and_order(stage: &Stage<'_>) -> Result<(), Error> {
    order_on(&Cuda::new(0)?, stage)
}

/// Segments of a pool of the driver's, the same way; and one range of it with no allocator.
fn stream_ordered(stage: &Stage<'_>) -> Result<(), Error> {
    let pooled = Cuda::new(0)?.backing(Backing::Async { keep: 2 * MIB })?;
    let range = pooled.allocate(MIB)?;
    if let Err((range, e)) = range.release() {
        // What was refused once works the next time.
        let again = range.release();
        assert!(again.is_ok() || e.is_context_lost(), "{e}, and then {again:?}");
        return Err(e.into());
    }
    order_on(&pooled, stage)
}

/// Two streams, reuse in order, cross-stream uses, an inserted wait, pinned memory, copies, a trim.
#[allow(unsafe_code, reason = "fills and copies work on raw memory")]
fn order_on(cuda: &Cuda, stage: &Stage<'_>) -> Result<(), Error> {
    let config = Config::default()
        .reuse(Reuse::WithWaits)
        .growth(Growth::Exact)
        .limit(Limit::Bytes(4 * MIB))
        .pinned_limit(MIB);
    // Scrubbing, so that fills fail too: at an allocation, and before memory goes back.
    let config = config.bounded_wait(Duration::from_millis(10)).scrub(true);
    let gpu = Allocator::new(cuda.clone(), config)?;
    let (s, t) = (gpu.stream()?, gpu.stream()?);
    let block = gpu.alloc(3 * MIB, &s)?;
    // SAFETY: the block is ours on `s`.
    unsafe { cuda.fill(block.address(), 42, block.len(), s.native()) }?;
    t.wait_stream(&s)?;
    block.record_use(&t)?;
    let host = gpu.alloc_pinned(4096)?;
    host.record_use(&t)?;
    // SAFETY: both uses are recorded, so the bytes stay until the copy is complete.
    unsafe { cuda.copy_d2h(host.as_ptr().as_ptr(), block.address(), 4096, t.native()) }?;
    drop(block);
    let next = gpu.alloc(3 * MIB, &s)?;
    // SAFETY: the block is ours on `s`.
    unsafe { cuda.fill(next.address(), 43, next.len(), s.native()) }?;
    s.record()?.synchronize(Duration::from_secs(5))?;
    drop(next);
    gpu.synchronize()?;
    // SAFETY: pinned, and what wrote it was waited for.
    let read = unsafe { std::slice::from_raw_parts(host.as_ptr().as_ptr(), 4096) };
    assert_eq!(read, [42; 4096], "nothing was reused early");
    drop(host);
    gpu.trim(Trim::All)?;
    gpu.check();
    // And once more, for the allocator's end to give back.
    drop(gpu.alloc(MIB, &s)?);
    drop(gpu.alloc_pinned(4096)?);
    stage.body_is_done();
    Ok(())
}

/// Virtual memory: one handle at two addresses, written through the one and read through the other.
#[allow(unsafe_code, reason = "mapping works on raw addresses")]
fn virtual_memory(stage: &Stage<'_>) -> Result<(), Error> {
    let cuda = Cuda::new(0)?;
    let s = cuda.create_stream(StreamOptions::default())?;
    let unit = cuda.mapping().expect("virtual memory").granularity;
    let space = cuda.reserve(2 * unit, None)?;
    let used = cuda.create(unit).and_then(|handle| {
        let both = [space, Addr(space.0 + unit)];
        let used = map_at(&cuda, &both, &handle, || {
            cuda.write_pattern(&s, both[0], unit, 42)?;
            cuda.check_pattern(&s, both[1], unit, 42, None)?;
            assert_eq!(cuda.bad_ranges(true)?.1, 0, "two addresses, one memory");
            Ok(())
        });
        // SAFETY: the handle is mapped nowhere any more.
        used.and(twice(|| unsafe { cuda.release(&handle) }))
    });
    // SAFETY: nothing is mapped there any more.
    let used = used.and(twice(|| unsafe { cuda.unreserve(space, 2 * unit) }));
    stage.body_is_done();
    Ok(used?)
}

/// Maps a handle at each of these addresses, works, and unmaps what was mapped.
#[allow(unsafe_code, reason = "mapping works on raw addresses")]
fn map_at(
    cuda: &Cuda,
    at: &[Addr],
    handle: &GpuHandle,
    work: impl FnOnce() -> DriverResult<()>,
) -> DriverResult<()> {
    let [first, rest @ ..] = at else { return work().and(twice(|| cuda.synchronize_device())) };
    // SAFETY: the addresses are the caller's, and nothing is mapped there.
    unsafe { cuda.map(*first, handle) }?;
    // SAFETY: mapped above.
    let used =
        unsafe { cuda.set_access(*first, handle.bytes()) }.and_then(|()| map_at(cuda, rest, handle, work));
    // SAFETY: what was queued was waited for, at the end of the recursion.
    used.and(twice(|| unsafe { cuda.unmap(*first, handle.bytes()) }))
}

/// Our own kernels, and a gate.
fn kernels(stage: &Stage<'_>) -> Result<(), Error> {
    let cuda = Cuda::new(0)?;
    let gpu = Allocator::new(cuda.clone(), Config::default())?;
    let s = gpu.stream()?;
    let block = gpu.alloc(MIB, &s)?;
    let gate = cuda.gate(s.native(), Duration::from_secs(5))?;
    cuda.write_pattern(s.native(), block.address(), block.len(), 42)?;
    cuda.check_pattern(s.native(), block.address(), block.len(), 42, block.id())?;
    drop(gate);
    assert_eq!(cuda.bad_ranges(true)?.1, 0, "what was read is what was written");
    stage.body_is_done();
    Ok(())
}

/// Pinned memory is wiped when it is new, and each of some two thousand runs has new memory: a segment of the usual 64
/// MiB would take tens of milliseconds each time.
fn small_pinned() -> Config {
    Config::default().pinned_limit(4 * MIB)
}

/// Kernels on arrays, over two streams.
fn launches(stage: &Stage<'_>) -> Result<(), Error> {
    let gpu = Allocator::new(Cuda::new(0)?, small_pinned())?;
    let (s, t) = (gpu.stream()?, gpu.stream()?);
    let length = 20_000_usize;
    let (mut x, mut y) = (gpu.uninit::<u64>(length, &s)?, gpu.zeros::<u64>(length, &t)?);
    let (mut at, mut sum) = (gpu.uninit::<u32>(length, &t)?, gpu.uninit::<u64>(1, &t)?);
    kernel::iota(&mut x, 5, 2, &s)?;
    kernel::iota(&mut at, length as u32 - 1, u32::MAX, &t)?;
    kernel::gather(&x, &at, &mut y, &t)?;
    kernel::scatter(&y, &at, &mut x, &s)?;
    kernel::saxpy(3, &x, &mut y, &t)?;
    kernel::fill(&mut x, 9, &s)?;
    kernel::reduce_sum(&y, &mut sum, &t)?;
    let sum = sum.to_pinned(&t)?.wait()?;
    // Turned round, turned back, and added thrice to the turned: four times all of it.
    let all = length as u64;
    assert_eq!(sum[0], 4 * (5 * all + all * (all - 1)), "what was read is what was computed");
    drop((x, y, at, sum));
    gpu.synchronize()?;
    gpu.trim(Trim::All)?;
    gpu.check();
    stage.body_is_done();
    Ok(())
}

/// Arrays and copies of every kind.
fn arrays(stage: &Stage<'_>) -> Result<(), Error> {
    let gpu = Allocator::new(Cuda::new(0)?, small_pinned())?;
    let _streams = copies::program(&gpu)?;
    stage.body_is_done();
    Ok(())
}

/// An array from one device to another, each side on a stream of its own.
fn two_devices(stage: &Stage<'_>) -> Result<(), Error> {
    let (here, there) =
        (Allocator::new(Cuda::new(0)?, small_pinned())?, Allocator::new(Cuda::new(1)?, small_pinned())?);
    let (s, t) = (here.stream()?, there.stream()?);
    let mut from = here.uninit::<u8>(5000, &s)?;
    from.fill_bytes(0x5A, &s)?;
    let mut to = there.zeros::<u8>(5000, &t)?;
    to.copy_from_peer(&from, &s, &t)?;
    drop(from);
    let came = to.to_pinned(&t)?;
    drop(to);
    assert!(came.wait()?.iter().all(|&byte| byte == 0x5A), "it came over");
    for gpu in [here, there] {
        gpu.synchronize()?;
        gpu.trim(Trim::All)?;
        gpu.check();
    }
    stage.body_is_done();
    Ok(())
}

/// Streams that other code made, taken in every way there is, and default streams: memory from each, used on the
/// next; and memory with unknown users.
#[allow(unsafe_code, reason = "raw handles are promises; fills work on raw memory")]
fn others_streams(stage: &Stage<'_>) -> Result<(), Error> {
    let Others { context, streams: [adopted, raw, permanent, unmanaged] } =
        stage.others.as_ref().expect("made before");
    let cuda = Cuda::from_context(Arc::clone(context))?;
    let config = small_pinned().growth(Growth::Exact).limit(Limit::Bytes(16 * MIB));
    let gpu = Allocator::new(cuda.clone(), config)?;
    let natives: [&dyn Fn() -> DriverResult<GpuStream>; 6] = [
        &|| cuda.adopt(Arc::clone(adopted)),
        // SAFETY: its owner keeps it until this program has ended.
        &|| unsafe { cuda.raw_stream(raw.cu_stream()) },
        // SAFETY: as above.
        &|| unsafe { cuda.permanent_stream(permanent.cu_stream()) },
        // SAFETY: as above.
        &|| unsafe { cuda.unmanaged_stream(unmanaged.cu_stream()) },
        &|| cuda.legacy_stream(),
        &|| cuda.per_thread_stream(),
    ];
    let mut before: Option<(Stream<Cuda>, Allocation<Cuda>)> = None;
    for native in natives {
        let s = gpu.adopt(native()?)?;
        let block = gpu.alloc(MIB, &s)?;
        // SAFETY: the block is ours on `s`.
        unsafe { cuda.fill(block.address(), 42, block.len(), s.native()) }?;
        if let Some((t, other)) = &before {
            s.wait_stream(t)?;
            other.record_use(&s)?;
            // SAFETY: the use is recorded, behind the work of the block's own stream.
            unsafe { cuda.fill(other.address(), 43, other.len(), s.native()) }?;
        }
        before = Some((s, block));
    }
    if let Some((s, block)) = before {
        block.free_unknown();
        let next = gpu.alloc(MIB, &s)?;
        // SAFETY: the block is ours on `s`.
        unsafe { cuda.fill(next.address(), 44, next.len(), s.native()) }?;
    }
    gpu.synchronize()?;
    gpu.trim(Trim::All)?;
    gpu.check();
    stage.body_is_done();
    Ok(())
}
