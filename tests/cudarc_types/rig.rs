//! Exclusive access to a device, of the stand-in driver or a real one; streams as they are passed to cudarc; and the calls that all
//! these tests make. The program that includes it defines `WORDS` and `BYTES`, the length of an array. It knows no test.

#![allow(dead_code, unreachable_pub, reason = "each test uses some of it")]

use super::remote::{self, Fake, When};
use super::{BYTES, WORDS};
use cudarc::driver::sys::{CUdeviceptr, CUresult};
use cudarc::driver::{
    CudaContext, CudaFunction, CudaStream, DevicePtr, DevicePtrMut, DeviceSlice, LaunchConfig, PushKernelArg,
    SyncOnDrop,
};
use millpond::cuda::Cuda;
use millpond::driver::Memory;
use millpond::{Allocator, Config, DeviceArray, Growth, Limit, Reuse, Stream, Unavailable};
use std::io::Write;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub type Words = DeviceArray<u32, Cuda>;

/// A device, with the lock that keeps other tests of the process off it.
pub struct Rig {
    pub cuda: Cuda,
    pub ctx: Arc<CudaContext>,
    pub fake: Option<Fake>,
    /// The lock: held by the rig of the first device.
    pub turn: Option<MutexGuard<'static, ()>>,
}

/// The limit of pinned memory of an allocator that a test makes for itself.
pub const PINNED: u64 = 16 << 20;

static TURN: Mutex<()> = Mutex::new(());

/// A rig whose device runs as late as legal, so that a read that is not ordered gets the next owner's bytes.
pub fn rig() -> Option<Rig> {
    rig_on(When::Latest)
}

pub fn rig_on(when: When) -> Option<Rig> {
    let turn = Some(TURN.lock().unwrap_or_else(PoisonError::into_inner));
    let fake = remote::fake(1 << 30, 2, when);
    match Cuda::new(0) {
        Ok(cuda) => Some(Rig { cuda, ctx: CudaContext::new(0).expect("cudarc's context"), fake, turn }),
        Err(why @ (Unavailable::DriverMissing { .. } | Unavailable::NoDevice { .. })) => {
            // Past the test harness, which hides what a passing test prints.
            let _ = writeln!(std::io::stderr(), "SKIPPED: {why}");
            None
        }
        Err(why) => panic!("{why}"),
    }
}

impl Rig {
    /// A rig of the second device, to be dropped before the first; it has no stand-in to query.
    pub fn second() -> Rig {
        let cuda = Cuda::new(1).expect("a second device");
        Rig { cuda, ctx: CudaContext::new(1).expect("its context"), fake: None, turn: None }
    }
    /// An allocator whose limit is exactly so many arrays: the next one reuses the bytes of one that was freed.
    pub fn allocator_for(&self, arrays: u64) -> Allocator<Cuda> {
        let config = Config::default()
            .reuse(Reuse::WithWaits)
            .growth(Growth::Exact)
            .limit(Limit::Bytes(arrays * BYTES));
        // A whole segment of pinned memory takes longer to wipe than most tests.
        let config = config.pinned_limit(PINNED);
        Allocator::new(self.cuda.clone(), config).expect("an allocator")
    }
    /// Checks that no error was deferred, that everything was given back and, where there is an oracle, that it found no violation.
    pub fn check_clean(self) {
        assert_eq!(self.cuda.deferred(), Vec::new());
        self.check_no_leaks();
    }
    pub fn check_no_leaks(self) {
        assert_eq!(self.cuda.outstanding(), Vec::<String>::new());
        let Rig { cuda, ctx, fake, turn: _turn } = self;
        drop((cuda, ctx));
        if let Some(fake) = fake {
            assert_eq!(fake.verdict(), None);
            assert_eq!(fake.leaks(), None);
        }
    }
}

/// How the allocator knows the streams that cudarc is given.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Origin {
    Ours,
    Adopted,
    Unknown,
}
pub use Origin::{Adopted, Ours, Unknown};

/// A stream for cudarc's calls, and the allocator's handle of it, if there is one.
pub struct TestStream {
    pub theirs: Arc<CudaStream>,
    pub ours: Option<Stream<Cuda>>,
}

pub fn test_stream(rig: &Rig, gpu: &Allocator<Cuda>, origin: Origin) -> TestStream {
    match origin {
        Ours => {
            let ours = gpu.stream().expect("a stream");
            TestStream { theirs: ours.cudarc().expect("its alias"), ours: Some(ours) }
        }
        Adopted => {
            let theirs = rig.ctx.new_stream().expect("a stream");
            let ours = gpu.adopt(rig.cuda.adopt(Arc::clone(&theirs)).expect("adopted")).expect("a pool");
            TestStream { theirs, ours: Some(ours) }
        }
        Unknown => TestStream { theirs: rig.ctx.new_stream().expect("a stream"), ours: None },
    }
}

/// An array whose elements are all 7, filled by cudarc's copy on the array's own stream.
pub fn array_of_sevens(gpu: &Allocator<Cuda>, on: &Stream<Cuda>) -> Words {
    let mut array = gpu.uninit(WORDS, on).expect("an array");
    on.cudarc().expect("its alias").memcpy_htod(&vec![7; WORDS], &mut array).expect("sent");
    array
}

/// Allocates the freed bytes again, on the same stream, and overwrites them.
pub fn next_owner(gpu: &Allocator<Cuda>, on: &Stream<Cuda>, freed_at: u64) -> Words {
    let mut array = gpu.uninit::<u32>(WORDS, on).expect("the next owner");
    assert_eq!(array.address().0, freed_at, "the freed bytes are reused: otherwise the test shows nothing");
    on.cudarc().expect("its alias").memset_zeros(&mut array).expect("filled");
    array
}

pub fn read(on: &Arc<CudaStream>, array: &Words) -> Vec<u32> {
    let back = on.clone_dtoh(array).expect("read back");
    on.synchronize().expect("there");
    back
}

/// One of the built-in kernels, loaded by cudarc as a program would: out[i] = first + i * step.
pub fn iota(ctx: &Arc<CudaContext>) -> CudaFunction {
    let module = ctx.load_module(include_str!("../../kernels/iota.ptx").into()).expect("loaded");
    module.load_function("millpond_iota_u32").expect("a kernel")
}

pub const GRID: LaunchConfig =
    LaunchConfig { grid_dim: (256, 1, 1), block_dim: (256, 1, 1), shared_mem_bytes: 0 };

/// Launches `iota` by cudarc's builder on the guard's stream.
pub fn launch_iota(kernel: &CudaFunction, from: u32, into: &mut Words, on: &Stream<Cuda>, forget: bool) {
    let theirs = on.cudarc().expect("its alias");
    let mut guard = into.write_on(on).expect("ordered");
    let mut launch = theirs.launch_builder(kernel);
    launch.arg(&mut guard).arg(&(WORDS as u64)).arg(&from).arg(&1_u32);
    #[allow(unsafe_code, reason = "a launch")]
    // SAFETY: iota takes an address, a length, the first number and the step; it writes so many elements.
    unsafe { launch.launch(GRID) }.expect("launched");
    if forget {
        core::mem::forget(guard);
    }
}

/// Stores an error in the context, as a failing destructor does: cudarc's next call on the context is skipped.
pub fn store_error(stream: &CudaStream) {
    let error = cudarc::driver::DriverError(CUresult::CUDA_ERROR_UNKNOWN);
    stream.context().record_err::<()>(Err(error));
}

/// An array whose use stores an error in cudarc's context after the call has checked for one: the call is made, and its wait
/// at the end is skipped.
pub struct StoresError<A>(pub A);

impl DeviceSlice<u32> for StoresError<&Words> {
    fn len(&self) -> usize {
        DeviceSlice::len(self.0)
    }
    fn stream(&self) -> &Arc<CudaStream> {
        DeviceSlice::stream(self.0)
    }
}
impl DevicePtr<u32> for StoresError<&Words> {
    fn device_ptr<'a>(&'a self, stream: &'a CudaStream) -> (CUdeviceptr, SyncOnDrop<'a>) {
        store_error(stream);
        self.0.device_ptr(stream)
    }
}
impl DeviceSlice<u32> for StoresError<&mut Words> {
    fn len(&self) -> usize {
        DeviceSlice::len(&*self.0)
    }
    fn stream(&self) -> &Arc<CudaStream> {
        DeviceSlice::stream(&*self.0)
    }
}
impl DevicePtr<u32> for StoresError<&mut Words> {
    fn device_ptr<'a>(&'a self, stream: &'a CudaStream) -> (CUdeviceptr, SyncOnDrop<'a>) {
        self.0.device_ptr(stream)
    }
}
impl DevicePtrMut<u32> for StoresError<&mut Words> {
    fn device_ptr_mut<'a>(&'a mut self, stream: &'a CudaStream) -> (CUdeviceptr, SyncOnDrop<'a>) {
        store_error(stream);
        self.0.device_ptr_mut(stream)
    }
}
