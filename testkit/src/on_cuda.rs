//! The CUDA backend on the bench: the suite's kernels are the backend's own. What lies under it, a GPU or the stand-in,
//! it does not know.

use crate::suite::{Bench, PATIENCE};
use cudarc::driver::sys;
use millpond::allocator::VirtualMemory;
use millpond::cuda::{Cuda, GpuGate, GpuStream};
use millpond::driver::{DriverResult, Fences, Memory};
use millpond::units::Addr;
use millpond::{Allocator, Config};
use std::time::Duration;

/// A context of a device, and what judges it beside its own checks.
pub struct OnCuda {
    cuda: Cuda,
    judge: Box<dyn Judge>,
}

/// A check that has something to report when the backend itself is gone.
pub trait Judge: Sync {
    /// What is wrong, if anything.
    fn finish(self: Box<Self>) -> Result<(), String>;
}

impl OnCuda {
    pub fn new(cuda: Cuda, judge: impl Judge + 'static) -> OnCuda {
        // The first launch of a kernel that is not loaded waits for running ones: load them before any test.
        cuda.load_kernels().expect("our kernels");
        OnCuda { cuda, judge: Box::new(judge) }
    }

    /// Makes a call that the backend has no verb for, in its context; answers the driver's code.
    #[allow(unsafe_code, reason = "foreign calls")]
    fn foreign(&self, call: impl FnOnce() -> sys::CUresult) -> u32 {
        // SAFETY: the context lives as long as `cuda`.
        let pushed = unsafe { sys::cuCtxPushCurrent_v2(self.cuda.context()) };
        assert_eq!(pushed, sys::CUresult::CUDA_SUCCESS);
        let code = call() as u32;
        let mut popped = std::ptr::null_mut();
        // SAFETY: the pointer is a local's.
        let restored = unsafe { sys::cuCtxPopCurrent_v2(&raw mut popped) };
        assert_eq!(restored, sys::CUresult::CUDA_SUCCESS);
        code
    }
}

impl Bench for OnCuda {
    type Device = Cuda;
    type Gate = GpuGate;

    fn device(&self) -> &Cuda {
        &self.cuda
    }
    /// With `MILLPOND_VIRTUAL=auto` in the environment, virtual memory is beneath the pools.
    fn allocator(&self, config: Config) -> Allocator<Cuda> {
        let windows = std::env::var("MILLPOND_VIRTUAL").is_ok_and(|choice| choice == "auto");
        let config = if windows { config.virtual_memory(VirtualMemory::Auto) } else { config };
        Allocator::new(self.cuda.clone(), config).expect("an allocator")
    }
    fn gate(&self, on: &GpuStream) -> GpuGate {
        self.cuda.relaxed(|| self.cuda.gate(on, 2 * PATIENCE)).expect("a gate")
    }
    fn open(&self, gate: GpuGate) {
        assert!(!gate.timed_out(), "the gate has ended by itself: what was behind it was not held");
        gate.open();
    }
    fn waits(&self, on: &GpuStream, call: &mut dyn FnMut() -> DriverResult<()>) -> bool {
        let gate = self.cuda.gate(on, Duration::from_millis(100)).expect("a gate");
        let behind = self.cuda.create_event().expect("an event");
        self.cuda.record(&behind, on).expect("recorded");
        call().expect("the call succeeds");
        let waited = self.cuda.query(&behind).expect("an answer");
        drop(gate);
        waited
    }
    fn write(&self, on: &GpuStream, addr: Addr, bytes: u64, word: u64) {
        self.cuda.write_pattern(on, addr, bytes, word).expect("a launch");
    }
    fn check(&self, on: &GpuStream, addr: Addr, bytes: u64, word: u64) {
        self.cuda.check_pattern(on, addr, bytes, word, None).expect("a launch");
    }
    fn tally(&self) -> Result<(), String> {
        match self.cuda.bad_ranges(true) {
            Ok((bad, total)) => bad
                .first()
                .map_or(Ok(()), |first| Err(format!("wrong contents in {total} checks, such as a {first}"))),
            Err(e) => Err(e.to_string()),
        }
    }
    fn legacy(&self) -> GpuStream {
        self.cuda.legacy_stream().expect("the default stream")
    }
    fn per_thread(&self) -> GpuStream {
        self.cuda.per_thread_stream().expect("the default stream of this thread")
    }
    fn handle(&self, stream: &GpuStream) -> u64 {
        stream.handle().addr() as u64
    }
    #[allow(unsafe_code, reason = "foreign calls")]
    fn query_id(&self, stream: &GpuStream) -> Result<u64, u32> {
        let mut id = 0;
        // SAFETY: the stream is alive, the pointer a local's.
        let code = self.foreign(|| unsafe { sys::cuStreamGetId(stream.handle(), &raw mut id) });
        if code == 0 { Ok(id) } else { Err(code) }
    }
    #[allow(unsafe_code, reason = "foreign calls")]
    fn raw_context_event(&self) -> u32 {
        let mut event = std::ptr::null_mut();
        // SAFETY: the pointer is a local's.
        assert_eq!(self.foreign(|| unsafe { sys::cuEventCreate(&raw mut event, 2) }), 0);
        // SAFETY: the event was just made, the context lives as long as `cuda`.
        let code = self.foreign(|| unsafe { sys::cuCtxRecordEvent(self.cuda.context(), event) });
        // SAFETY: ours, and used no more.
        assert_eq!(self.foreign(|| unsafe { sys::cuEventDestroy_v2(event) }), 0);
        code
    }
    #[allow(unsafe_code, reason = "foreign calls")]
    fn begin_capture(&self, stream: &GpuStream) {
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
        // SAFETY: the stream is alive.
        let code = self.foreign(|| unsafe { sys::cuStreamBeginCapture_v2(stream.handle(), mode) });
        assert_eq!(code, 0, "a capture begins");
    }
    #[allow(unsafe_code, reason = "foreign calls")]
    fn end_capture(&self, stream: &GpuStream) -> Result<(), u32> {
        let mut graph = std::ptr::null_mut();
        // SAFETY: the stream is alive, the pointer a local's.
        let code = self.foreign(|| unsafe { sys::cuStreamEndCapture(stream.handle(), &raw mut graph) });
        if graph.is_null() {
            return Err(code);
        }
        // SAFETY: the graph is ours, and nothing was made of it.
        assert_eq!(self.foreign(|| unsafe { sys::cuGraphDestroy(graph) }), 0);
        if code == 0 { Ok(()) } else { Err(code) }
    }
    fn finish(self) -> Result<(), String> {
        let contents = self.tally();
        let OnCuda { cuda, judge } = self;
        let (left, errors) = (cuda.outstanding(), cuda.deferred());
        drop(cuda);
        let own = contents.and_then(|()| {
            if left.is_empty() && errors.is_empty() {
                return Ok(());
            }
            Err(format!("left: {left:?}; errors of destructors: {errors:?}"))
        });
        // Both are checked, so that the next test begins with nothing of this one's.
        let theirs = judge.finish();
        own.and(theirs)
    }
}

crate::conformance_list! { conformance_code [crate::on_cuda::OnCuda] }
