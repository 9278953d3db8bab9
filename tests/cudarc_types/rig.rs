//! A device to oneself on the stand-in driver or a real one, streams as cudarc is given them, and the calls that every test here
//! makes. How long an array is says who includes it. It knows no test.

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
use millpond::{Allocator, Config, DeviceArray, Growth, Limit, Stream, Unavailable};
use std::io::Write;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub type Words = DeviceArray<u32, Cuda>;

/// A device to oneself.
pub struct Rig {
    pub cuda: Cuda,
    pub ctx: Arc<CudaContext>,
    pub fake: Option<Fake>,
    /// The first device's has it.
    pub turn: Option<MutexGuard<'static, ()>>,
}

/// Of pinned memory at most, where a test makes an allocator for itself.
pub const PINNED: u64 = 16 << 20;

static TURN: Mutex<()> = Mutex::new(());

/// With a device that runs as late as legal, so that what is not ordered reads the next owner's bytes.
pub fn rig() -> Option<Rig> {
    rig_when(When::Latest)
}

pub fn rig_when(when: When) -> Option<Rig> {
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
    /// The second device, to be dropped before the first; it has no driver at hand.
    pub fn second() -> Rig {
        let cuda = Cuda::new(1).expect("a second device");
        Rig { cuda, ctx: CudaContext::new(1).expect("its context"), fake: None, turn: None }
    }
    /// An allocator with room for so many arrays and no more: the next one has to have the bytes of one that was freed.
    pub fn room_for(&self, arrays: u64) -> Allocator<Cuda> {
        let config = Config::default().growth(Growth::Exact).limit(Limit::Bytes(arrays * BYTES));
        // A whole segment of pinned memory takes longer to wipe than most tests.
        let config = config.pinned_limit(PINNED);
        Allocator::new(self.cuda.clone(), config).expect("an allocator")
    }
    /// Nothing was deferred, everything was given back and, where there is an oracle, lawful.
    pub fn clean(self) {
        assert_eq!(self.cuda.deferred(), Vec::new());
        self.clean_but_for_errors();
    }
    pub fn clean_but_for_errors(self) {
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
pub enum Whose {
    Ours,
    Adopted,
    Unknown,
}
pub use Whose::{Adopted, Ours, Unknown};

/// A stream for cudarc's calls, and what keeps it.
pub struct Given {
    pub theirs: Arc<CudaStream>,
    pub ours: Option<Stream<Cuda>>,
}

pub fn given(rig: &Rig, gpu: &Allocator<Cuda>, whose: Whose) -> Given {
    match whose {
        Ours => {
            let ours = gpu.stream().expect("a stream");
            Given { theirs: ours.cudarc().expect("its alias"), ours: Some(ours) }
        }
        Adopted => {
            let theirs = rig.ctx.new_stream().expect("a stream");
            let ours = gpu.adopt(rig.cuda.adopt(Arc::clone(&theirs)).expect("adopted")).expect("a pool");
            Given { theirs, ours: Some(ours) }
        }
        Unknown => Given { theirs: rig.ctx.new_stream().expect("a stream"), ours: None },
    }
}

/// An array of sevens, by cudarc's copy on the array's own stream.
pub fn sevens(gpu: &Allocator<Cuda>, on: &Stream<Cuda>) -> Words {
    let mut array = gpu.uninit(WORDS, on).expect("an array");
    on.cudarc().expect("its alias").memcpy_htod(&vec![7; WORDS], &mut array).expect("sent");
    array
}

/// The next owner of freed bytes overwrites them, on the same stream.
pub fn next_owner(gpu: &Allocator<Cuda>, on: &Stream<Cuda>, freed_at: u64) -> Words {
    let mut array = gpu.uninit::<u32>(WORDS, on).expect("the next owner");
    assert_eq!(array.address().0, freed_at, "it has the same bytes, or nothing is shown");
    on.cudarc().expect("its alias").memset_zeros(&mut array).expect("filled");
    array
}

pub fn read(on: &Arc<CudaStream>, array: &Words) -> Vec<u32> {
    let back = on.clone_dtoh(array).expect("read back");
    on.synchronize().expect("there");
    back
}

/// one of the built-in kernels, as a program would load it with cudarc: out[i] = first + i * step.
pub fn iota(ctx: &Arc<CudaContext>) -> CudaFunction {
    let module = ctx.load_module(include_str!("../../kernels/iota.ptx").into()).expect("loaded");
    module.load_function("millpond_iota_u32").expect("a kernel")
}

pub const GRID: LaunchConfig =
    LaunchConfig { grid_dim: (256, 1, 1), block_dim: (256, 1, 1), shared_mem_bytes: 0 };

/// Queues `iota` by cudarc's builder on the guard's stream.
pub fn count_up(kernel: &CudaFunction, from: u32, into: &mut Words, on: &Stream<Cuda>, forget: bool) {
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

/// Leaves an error in store, as a destructor that fails does: cudarc's next call on the context is skipped.
pub fn spoil(stream: &CudaStream) {
    let error = cudarc::driver::DriverError(CUresult::CUDA_ERROR_UNKNOWN);
    stream.context().record_err::<()>(Err(error));
}

/// An array whose use leaves an error in cudarc's context, behind the call's own look at it: the call is made, and its wait
/// at the end is skipped.
pub struct Spoils<A>(pub A);

impl DeviceSlice<u32> for Spoils<&Words> {
    fn len(&self) -> usize {
        DeviceSlice::len(self.0)
    }
    fn stream(&self) -> &Arc<CudaStream> {
        DeviceSlice::stream(self.0)
    }
}
impl DevicePtr<u32> for Spoils<&Words> {
    fn device_ptr<'a>(&'a self, stream: &'a CudaStream) -> (CUdeviceptr, SyncOnDrop<'a>) {
        spoil(stream);
        self.0.device_ptr(stream)
    }
}
impl DeviceSlice<u32> for Spoils<&mut Words> {
    fn len(&self) -> usize {
        DeviceSlice::len(&*self.0)
    }
    fn stream(&self) -> &Arc<CudaStream> {
        DeviceSlice::stream(&*self.0)
    }
}
impl DevicePtr<u32> for Spoils<&mut Words> {
    fn device_ptr<'a>(&'a self, stream: &'a CudaStream) -> (CUdeviceptr, SyncOnDrop<'a>) {
        self.0.device_ptr(stream)
    }
}
impl DevicePtrMut<u32> for Spoils<&mut Words> {
    fn device_ptr_mut<'a>(&'a mut self, stream: &'a CudaStream) -> (CUdeviceptr, SyncOnDrop<'a>) {
        spoil(stream);
        self.0.device_ptr_mut(stream)
    }
}
