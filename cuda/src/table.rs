//! The driver's functions as we call them: one pointer each, resolved once, returning plain numbers.
//!
//! The obvious way would be another crate's bindings. They return a closed enum, so that a newer driver's code is
//! undefined behaviour, and they panic where a library or a symbol is missing. Here a result is a `u32` and unknown
//! numbers are data; a function that only newer drivers have is an `Option`. This file knows names and signatures. It
//! does not know what a call is for, nor when it may be made.

use super::probe::{Code, explain};
use core::ffi::{c_char, c_int, c_uint, c_void};
use core::fmt;
use cudarc::driver::sys::{CUcontext, CUdeviceptr, CUevent, CUfunction, CUmemoryPool, CUmodule, CUstream};
use libloading::Library;
use millpond_driver::{DriverError, DriverErrorKind, Unavailable};
use millpond_driver::{DriverResult, Properties};
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// A native handle: a number to us, never followed.
pub(super) struct Handle<T>(pub(super) *mut T);

impl<T> Clone for Handle<T> {
    fn clone(&self) -> Handle<T> {
        *self
    }
}
impl<T> Copy for Handle<T> {}
impl<T> Handle<T> {
    pub(super) fn number(self) -> usize {
        self.0.addr()
    }
}
impl<T> fmt::Debug for Handle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0.addr())
    }
}
// SAFETY: the pointer is only a number here; the driver takes its handles from any thread.
#[allow(unsafe_code, reason = "a raw pointer that is only a number here")]
unsafe impl<T> Send for Handle<T> {}
// SAFETY: as above.
#[allow(unsafe_code, reason = "a raw pointer that is only a number here")]
unsafe impl<T> Sync for Handle<T> {}

/// What memory is and where: `CUmemLocation`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct Location {
    pub(super) kind: c_int,
    pub(super) id: c_int,
}

impl Location {
    /// `CU_MEM_LOCATION_TYPE_DEVICE`.
    pub(super) fn device(ordinal: c_int) -> Location {
        Location { kind: 1, id: ordinal }
    }
}

/// `CUmemAllocationProp`, whose layout is the same since CUDA 10.2; zero where we say nothing.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct AllocationProp {
    /// 1 is `CU_MEM_ALLOCATION_TYPE_PINNED`, the only kind.
    pub(super) kind: c_int,
    pub(super) exported_as: c_int,
    pub(super) location: Location,
    pub(super) windows: *mut c_void,
    pub(super) flags: [u8; 8],
}

impl AllocationProp {
    pub(super) fn device(ordinal: c_int) -> AllocationProp {
        AllocationProp {
            kind: 1,
            exported_as: 0,
            location: Location::device(ordinal),
            windows: core::ptr::null_mut(),
            flags: [0; 8],
        }
    }

    /// The same, of memory with these properties.
    pub(super) fn with(self, properties: Properties) -> AllocationProp {
        // CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR and CU_MEM_HANDLE_TYPE_FABRIC, as bits.
        let exported_as = c_int::from(properties.file_descriptor) | c_int::from(properties.fabric) << 3;
        let mut flags = self.flags;
        // `gpuDirectRDMACapable`.
        flags[1] = properties.rdma.into();
        AllocationProp { exported_as, flags, ..self }
    }
}

/// `CUmemAccessDesc`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct AccessDesc {
    pub(super) location: Location,
    /// 3 is `CU_MEM_ACCESS_FLAGS_PROT_READWRITE`.
    pub(super) flags: c_int,
}

/// `CUmemPoolProps`, 88 bytes in every version; zero where we say nothing.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct PoolProps {
    pub(super) kind: c_int,
    pub(super) exported_as: c_int,
    pub(super) location: Location,
    pub(super) windows: *mut c_void,
    pub(super) rest: [u64; 8],
}

const _: () = assert!(size_of::<AllocationProp>() == 32 && size_of::<AccessDesc>() == 12);
const _: () = assert!(size_of::<PoolProps>() == 88);

/// `CUDA_MEMCPY2D`, whose layout is the same in every version; `_v2` of the function takes it.
#[repr(C)]
pub(super) struct Copy2d {
    pub(super) from_x: usize,
    pub(super) from_y: usize,
    pub(super) from: Side,
    pub(super) to_x: usize,
    pub(super) to_y: usize,
    pub(super) to: Side,
    pub(super) width: usize,
    pub(super) height: usize,
}

/// One side of it.
#[repr(C)]
pub(super) struct Side {
    /// 1 is host memory, 2 device memory.
    pub(super) kind: c_int,
    pub(super) host: *mut c_void,
    pub(super) device: u64,
    pub(super) array: *mut c_void,
    pub(super) pitch: usize,
}

const _: () = assert!(size_of::<Copy2d>() == 128);

macro_rules! functions {
    (
        required { $($need:ident = $need_symbol:literal, $need_name:literal, ($($need_arg:ty),*);)* }
        optional { $($may:ident = $may_symbol:literal, $may_name:literal, ($($may_arg:ty),*);)* }
    ) => {
        /// The functions of one driver library.
        #[derive(Clone, Copy)]
        pub(super) struct Table {
            $(pub(super) $need: unsafe extern "system" fn($($need_arg),*) -> u32,)*
            $(pub(super) $may: Option<unsafe extern "system" fn($($may_arg),*) -> u32>,)*
        }

        /// A function of the table, to be counted and named in errors.
        #[allow(non_camel_case_types, reason = "one word names the pointer, the call and its count")]
        #[allow(dead_code, reason = "the two that explain errors are never themselves counted")]
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub(super) enum Call { $($need,)* $($may,)* }

        impl Call {
            const NAMES: &'static [&'static str] = &[$($need_name,)* $($may_name,)*];
        }

        impl Table {
            /// The exported symbols that every supported driver has.
            #[cfg(test)]
            pub(super) const REQUIRED: &'static [&'static str] = &[$($need_symbol,)*];

            /// Looks every function up.
            #[allow(unsafe_code, reason = "the one place where symbols become functions")]
            pub(super) fn resolve(library: &Library) -> Result<Table, Unavailable> {
                Ok(Table {
                    $($need: {
                        // SAFETY: the library exports this C function with this signature, in every driver since 11.4.
                        let found = unsafe { library.get(concat!($need_symbol, "\0").as_bytes()) };
                        *found.map_err(|_| Unavailable::SymbolMissing { name: $need_symbol })?
                    },)*
                    $($may: {
                        // SAFETY: as above, in the drivers that have it.
                        let found = unsafe { library.get(concat!($may_symbol, "\0").as_bytes()) };
                        found.ok().map(|f| *f)
                    },)*
                })
            }
        }
    };
}

functions! {
    required {
        get_error_name = "cuGetErrorName", "cuGetErrorName", (u32, *mut *const c_char);
        get_error_string = "cuGetErrorString", "cuGetErrorString", (u32, *mut *const c_char);
        init = "cuInit", "cuInit", (c_uint);
        device_get_count = "cuDeviceGetCount", "cuDeviceGetCount", (*mut c_int);
        device_get = "cuDeviceGet", "cuDeviceGet", (*mut c_int, c_int);
        device_get_name = "cuDeviceGetName", "cuDeviceGetName", (*mut c_char, c_int, c_int);
        device_get_attribute = "cuDeviceGetAttribute", "cuDeviceGetAttribute", (*mut c_int, c_int, c_int);
        primary_retain = "cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRetain", (*mut CUcontext, c_int);
        primary_release = "cuDevicePrimaryCtxRelease_v2", "cuDevicePrimaryCtxRelease", (c_int);
        ctx_get_current = "cuCtxGetCurrent", "cuCtxGetCurrent", (*mut CUcontext);
        ctx_set_current = "cuCtxSetCurrent", "cuCtxSetCurrent", (CUcontext);
        ctx_push = "cuCtxPushCurrent_v2", "cuCtxPushCurrent", (CUcontext);
        ctx_pop = "cuCtxPopCurrent_v2", "cuCtxPopCurrent", (*mut CUcontext);
        ctx_get_device = "cuCtxGetDevice", "cuCtxGetDevice", (*mut c_int);
        ctx_synchronize = "cuCtxSynchronize", "cuCtxSynchronize", ();
        mem_get_info = "cuMemGetInfo_v2", "cuMemGetInfo", (*mut usize, *mut usize);
        mem_alloc = "cuMemAlloc_v2", "cuMemAlloc", (*mut CUdeviceptr, usize);
        mem_free = "cuMemFree_v2", "cuMemFree", (CUdeviceptr);
        mem_alloc_from_pool = "cuMemAllocFromPoolAsync", "cuMemAllocFromPoolAsync",
            (*mut CUdeviceptr, usize, CUmemoryPool, CUstream);
        mem_free_async = "cuMemFreeAsync", "cuMemFreeAsync", (CUdeviceptr, CUstream);
        mem_pool_create = "cuMemPoolCreate", "cuMemPoolCreate", (*mut CUmemoryPool, *const PoolProps);
        mem_pool_destroy = "cuMemPoolDestroy", "cuMemPoolDestroy", (CUmemoryPool);
        mem_pool_set = "cuMemPoolSetAttribute", "cuMemPoolSetAttribute", (CUmemoryPool, c_int, *mut c_void);
        mem_pool_trim = "cuMemPoolTrimTo", "cuMemPoolTrimTo", (CUmemoryPool, usize);
        mem_host_alloc = "cuMemHostAlloc", "cuMemHostAlloc", (*mut *mut c_void, usize, c_uint);
        mem_free_host = "cuMemFreeHost", "cuMemFreeHost", (*mut c_void);
        memcpy_h2d = "cuMemcpyHtoDAsync_v2", "cuMemcpyHtoDAsync", (CUdeviceptr, *const c_void, usize, CUstream);
        memcpy_d2h = "cuMemcpyDtoHAsync_v2", "cuMemcpyDtoHAsync", (*mut c_void, CUdeviceptr, usize, CUstream);
        memcpy_d2d = "cuMemcpyDtoDAsync_v2", "cuMemcpyDtoDAsync", (CUdeviceptr, CUdeviceptr, usize, CUstream);
        memcpy_2d = "cuMemcpy2DAsync_v2", "cuMemcpy2DAsync", (*const Copy2d, CUstream);
        memcpy_peer = "cuMemcpyPeerAsync", "cuMemcpyPeerAsync",
            (CUdeviceptr, CUcontext, CUdeviceptr, CUcontext, usize, CUstream);
        memset_d8 = "cuMemsetD8Async", "cuMemsetD8Async", (CUdeviceptr, u8, usize, CUstream);
        stream_create = "cuStreamCreateWithPriority", "cuStreamCreateWithPriority", (*mut CUstream, c_uint, c_int);
        stream_destroy = "cuStreamDestroy_v2", "cuStreamDestroy", (CUstream);
        stream_get_flags = "cuStreamGetFlags", "cuStreamGetFlags", (CUstream, *mut c_uint);
        stream_get_ctx = "cuStreamGetCtx", "cuStreamGetCtx", (CUstream, *mut CUcontext);
        stream_is_capturing = "cuStreamIsCapturing", "cuStreamIsCapturing", (CUstream, *mut c_int);
        stream_synchronize = "cuStreamSynchronize", "cuStreamSynchronize", (CUstream);
        stream_wait_event = "cuStreamWaitEvent", "cuStreamWaitEvent", (CUstream, CUevent, c_uint);
        exchange_capture_mode = "cuThreadExchangeStreamCaptureMode", "cuThreadExchangeStreamCaptureMode", (*mut c_int);
        event_create = "cuEventCreate", "cuEventCreate", (*mut CUevent, c_uint);
        event_destroy = "cuEventDestroy_v2", "cuEventDestroy", (CUevent);
        event_record = "cuEventRecord", "cuEventRecord", (CUevent, CUstream);
        event_query = "cuEventQuery", "cuEventQuery", (CUevent);
        event_synchronize = "cuEventSynchronize", "cuEventSynchronize", (CUevent);
        address_reserve = "cuMemAddressReserve", "cuMemAddressReserve",
            (*mut CUdeviceptr, usize, usize, CUdeviceptr, u64);
        address_free = "cuMemAddressFree", "cuMemAddressFree", (CUdeviceptr, usize);
        mem_create = "cuMemCreate", "cuMemCreate", (*mut u64, usize, *const AllocationProp, u64);
        mem_release = "cuMemRelease", "cuMemRelease", (u64);
        mem_map = "cuMemMap", "cuMemMap", (CUdeviceptr, usize, usize, u64, u64);
        mem_unmap = "cuMemUnmap", "cuMemUnmap", (CUdeviceptr, usize);
        mem_set_access = "cuMemSetAccess", "cuMemSetAccess", (CUdeviceptr, usize, *const AccessDesc, usize);
        mem_granularity = "cuMemGetAllocationGranularity", "cuMemGetAllocationGranularity",
            (*mut usize, *const AllocationProp, c_int);
        module_load = "cuModuleLoadData", "cuModuleLoadData", (*mut CUmodule, *const c_void);
        module_unload = "cuModuleUnload", "cuModuleUnload", (CUmodule);
        module_get_function = "cuModuleGetFunction", "cuModuleGetFunction",
            (*mut CUfunction, CUmodule, *const c_char);
        launch_kernel = "cuLaunchKernel", "cuLaunchKernel",
            (CUfunction, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, CUstream, *mut *mut c_void,
             *mut *mut c_void);
    }
    optional {
        stream_get_id = "cuStreamGetId", "cuStreamGetId", (CUstream, *mut u64);
        ctx_record_event = "cuCtxRecordEvent", "cuCtxRecordEvent", (CUcontext, CUevent);
        mem_host_register = "cuMemHostRegister_v2", "cuMemHostRegister", (*mut c_void, usize, c_uint);
        mem_host_unregister = "cuMemHostUnregister", "cuMemHostUnregister", (*mut c_void);
        func_load = "cuFuncLoad", "cuFuncLoad", (CUfunction);
        mem_export = "cuMemExportToShareableHandle", "cuMemExportToShareableHandle", (*mut c_void, u64, c_int, u64);
        mem_import = "cuMemImportFromShareableHandle", "cuMemImportFromShareableHandle",
            (*mut u64, *mut c_void, c_int);
    }
}

impl Call {
    /// The call's name in the driver's interface, without the version that its symbol carries.
    pub(super) fn name(self) -> &'static str {
        Call::NAMES[self as usize]
    }
}

/// How often each function was called.
///
/// The simple version is a number for each function. But if sixteen threads query whether their streams capture, all write that
/// one number, 40 ns apart and 16 times as expensive as the driver's call. So each thread counts in a stripe of its own, as long as
/// there are stripes, and the counts are added up when they are listed.
pub(super) struct Calls {
    stripes: Box<[Stripe]>,
    on: AtomicBool,
}

/// Some threads' counts, on cache lines that no others write.
#[repr(align(128))]
struct Stripe([AtomicU64; Call::NAMES.len()]);

const STRIPES: usize = 32;

/// The calling thread's stripe, assigned in turn.
#[inline]
fn stripe() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static MINE: Cell<usize> = const { Cell::new(usize::MAX) };
    }
    #[cold]
    fn assign() -> usize {
        let stripe = NEXT.fetch_add(1, Ordering::Relaxed) % STRIPES;
        MINE.set(stripe);
        stripe
    }
    match MINE.get() {
        usize::MAX => assign(),
        mine => mine,
    }
}

impl Calls {
    pub(super) fn new() -> Calls {
        let stripe = |_| Stripe([const { AtomicU64::new(0) }; Call::NAMES.len()]);
        Calls { stripes: (0..STRIPES).map(stripe).collect(), on: AtomicBool::new(true) }
    }
    pub(super) fn switch(&self, on: bool) {
        self.on.store(on, Ordering::Relaxed);
    }
    #[inline]
    pub(super) fn count(&self, call: Call) {
        if self.on.load(Ordering::Relaxed) {
            self.stripes[stripe()].0[call as usize].fetch_add(1, Ordering::Relaxed);
        }
    }
    pub(super) fn list(&self) -> Vec<(&'static str, u64)> {
        let count = |call: usize| self.stripes.iter().map(|s| s.0[call].load(Ordering::Relaxed)).sum();
        let counts = (0..Call::NAMES.len()).map(count);
        let mut list: Vec<_> = Call::NAMES.iter().copied().zip(counts).filter(|&(_, n)| n > 0).collect();
        list.sort_unstable();
        list
    }
}

/// What a code means to an allocator. Codes that no driver had when this was written are [`DriverErrorKind::Other`].
pub(super) fn kind_of(code: u32) -> DriverErrorKind {
    match code {
        1 => DriverErrorKind::InvalidValue,
        2 => DriverErrorKind::OutOfMemory,
        // 3 not initialised (a forked child), 4 shut down; 214 and 220 the memory or the link is broken; 700 and up: a
        // kernel went wrong, after which every call of the context fails.
        3 | 4 | 214 | 220 | 700 | 702 | 709 | 710 | 714..=719 | 721 => DriverErrorKind::ContextLost,
        201 | 400 => DriverErrorKind::InvalidHandle,
        801 => DriverErrorKind::NotSupported,
        900..=908 => DriverErrorKind::Capturing,
        _ => DriverErrorKind::Other,
    }
}

/// What a code means to an allocator where the call is known. A query of an event, or a wait for it, whose arguments are ours and valid,
/// has this answer when the event was last recorded in a capture that has ended (H100, driver 580.159.04, CUDA 13.0; while it goes on a
/// query is answered 907, and ends it).
pub(super) fn kind_of_answer(call: Call, code: Code) -> DriverErrorKind {
    let of_event = matches!(call, Call::event_query | Call::event_synchronize | Call::stream_wait_event);
    if of_event && code == 1 { DriverErrorKind::Capturing } else { kind_of(code) }
}

/// The result of a call as an error, with the driver's words.
#[inline]
pub(super) fn check(table: &Table, call: Call, code: Code) -> DriverResult<()> {
    if code == 0 { Ok(()) } else { Err(failed(table, call, code)) }
}

#[cold]
#[inline(never)]
pub(super) fn failed(table: &Table, call: Call, code: Code) -> DriverError {
    let kind = kind_of_answer(call, code);
    if kind == DriverErrorKind::Capturing && code == 1 {
        return DriverError::new(
            call.name(),
            code,
            kind,
            "the event was last recorded in a capture: record it again",
        );
    }
    DriverError::new(call.name(), code, kind, explain(table, code))
}

/// An error of this backend about a handle.
pub(super) fn bad_handle(call: Call, message: impl Into<std::borrow::Cow<'static, str>>) -> DriverError {
    DriverError::new(call.name(), 400, DriverErrorKind::InvalidHandle, message)
}

/// An error of this backend about an argument.
pub(super) fn invalid(call: Call, message: impl Into<std::borrow::Cow<'static, str>>) -> DriverError {
    DriverError::new(call.name(), 1, DriverErrorKind::InvalidValue, message)
}

/// An error of this backend about something that this driver or device lacks.
pub(super) fn lacking(call: Call, message: impl Into<std::borrow::Cow<'static, str>>) -> DriverError {
    DriverError::new(call.name(), 801, DriverErrorKind::NotSupported, message)
}
