//! A device without its type: for programs that are compiled once for all devices.
//!
//! [`AnyDriver`] is a [`Driver`] as any other, so an allocator, arrays, copies and kernels on it are the same code. Each call of the device's costs a
//! virtual call, a comparison of types where a stream or an event is named, and a box an event. What calls no driver costs nothing more, but
//! for the notes to a device that judges.
//!
//! It does not know which devices there are.

use crate::units::{Addr, DeviceId};
use crate::{
    Copies, DeviceSlot, Driver, DriverError, DriverErrorKind, DriverResult, Fences, Host, HostKind,
    HostMemory, Kernel, KernelLaunch, Kernels, Mapping, MappingFacts, Memory, MemoryInfo, Note, Pitched,
    Properties, StreamInfo, StreamOptions,
};
use core::any::Any;
use core::fmt;
use core::ptr::NonNull;
use core::time::Duration;
use std::sync::Arc;

/// A device that launches kernels, without its type.
///
/// Make one value for each device, and clone it: the allocators of one device share its timelines through clones of one value. Allocators of the device with its type, or of
/// another value, are unknown to them: their streams and arrays are refused, and only the program's own events order memory between them.
#[derive(Clone)]
pub struct AnyDriver {
    device: Arc<dyn Object>,
    slot: Arc<DeviceSlot>,
}

impl AnyDriver {
    /// This device, whatever it is.
    pub fn new<D: Driver + Kernels>(device: D) -> AnyDriver {
        AnyDriver { device: Arc::new(device), slot: Arc::default() }
    }
    /// The device with its type; `None` if it is of another.
    pub fn downcast_ref<D: Driver>(&self) -> Option<&D> {
        (&*self.device as &dyn Any).downcast_ref()
    }
}

impl fmt::Debug for AnyDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AnyDriver({})", self.device.device())
    }
}

/// A native stream of any device: a counted reference, as that is.
pub struct AnyNative(Box<dyn NativeObject>);

trait NativeObject: Any + fmt::Debug + Send + Sync {
    fn another(&self) -> AnyNative;
}

impl<S: Clone + fmt::Debug + Send + Sync + 'static> NativeObject for S {
    fn another(&self) -> AnyNative {
        AnyNative(Box::new(self.clone()))
    }
}

impl AnyNative {
    /// A device's native stream, to be adopted.
    pub fn new<S: Clone + fmt::Debug + Send + Sync + 'static>(stream: S) -> AnyNative {
        AnyNative(Box::new(stream))
    }
    /// The stream with its type; `None` if it is of another kind of device.
    pub fn downcast_ref<S: 'static>(&self) -> Option<&S> {
        (&*self.0 as &dyn Any).downcast_ref()
    }
}

/// Clones the native reference too, because the count of those shows which is the last.
impl Clone for AnyNative {
    fn clone(&self) -> AnyNative {
        self.0.another()
    }
}

impl fmt::Debug for AnyNative {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// An event of any device.
pub struct AnyEvent(Box<dyn EventObject>);

trait EventObject: Any + fmt::Debug + Send + Sync {}
impl<E: Any + fmt::Debug + Send + Sync> EventObject for E {}

impl fmt::Debug for AnyEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A handle of any device's virtual memory.
pub struct AnyHandle(Box<dyn HandleObject>);

trait HandleObject: Any + fmt::Debug + Send + Sync {
    fn another(&self) -> AnyHandle;
    fn is_same(&self, other: &AnyHandle) -> bool;
}

impl<H: Clone + fmt::Debug + PartialEq + Send + Sync + 'static> HandleObject for H {
    fn another(&self) -> AnyHandle {
        AnyHandle(Box::new(self.clone()))
    }
    fn is_same(&self, other: &AnyHandle) -> bool {
        (&*other.0 as &dyn Any).downcast_ref() == Some(self)
    }
}

impl Clone for AnyHandle {
    fn clone(&self) -> AnyHandle {
        self.0.another()
    }
}

impl PartialEq for AnyHandle {
    fn eq(&self, other: &AnyHandle) -> bool {
        self.0.is_same(other)
    }
}

impl fmt::Debug for AnyHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The error for an object that another backend made.
fn wrong_backend(call: &'static str) -> DriverError {
    DriverError::new(call, 400, DriverErrorKind::InvalidHandle, "it is of another kind of device")
}

fn stream<'a, D: Fences>(of: &'a AnyNative, call: &'static str) -> DriverResult<&'a D::Stream> {
    of.downcast_ref().ok_or_else(|| wrong_backend(call))
}

fn event<'a, D: Fences>(of: &'a AnyEvent, call: &'static str) -> DriverResult<&'a D::Event> {
    (&*of.0 as &dyn Any).downcast_ref().ok_or_else(|| wrong_backend(call))
}

fn handle<'a, D: Mapping>(of: &'a AnyHandle, call: &'static str) -> DriverResult<&'a D::Handle> {
    (&*of.0 as &dyn Any).downcast_ref().ok_or_else(|| wrong_backend(call))
}

/// What is done to a device's type as it is.
macro_rules! same {
    ($($of:ident::$name:ident($($arg:ident: $type:ty),*) $(-> $result:ty)?;)*) => {
        /// All of a device: what [`Driver`] and [`Kernels`] are made of, with streams and events without their types.
        #[allow(unsafe_code, reason = "the contracts of the traits that it stands for")]
        trait Object: Any + Send + Sync {
            $(fn $name(&self, $($arg: $type),*) $(-> $result)?;)*
            fn scrubbing(&self) -> Arc<dyn Object>;
            fn create_stream(&self, options: StreamOptions) -> DriverResult<AnyNative>;
            fn stream_info(&self, on: &AnyNative) -> DriverResult<StreamInfo>;
            fn is_capturing(&self, on: &AnyNative) -> DriverResult<bool>;
            fn may_capture(&self, on: &AnyNative) -> bool;
            fn is_last_reference(&self, on: &AnyNative) -> bool;
            fn create_event(&self) -> DriverResult<AnyEvent>;
            fn record(&self, it: &AnyEvent, on: &AnyNative) -> DriverResult<()>;
            fn record_context(&self, it: &AnyEvent) -> DriverResult<()>;
            fn query(&self, it: &AnyEvent) -> DriverResult<bool>;
            fn wait(&self, on: &AnyNative, it: &AnyEvent) -> DriverResult<()>;
            fn synchronize_stream(&self, on: &AnyNative) -> DriverResult<()>;
            fn wait_event(&self, it: &AnyEvent, limit: Duration) -> DriverResult<bool>;
            fn relaxed(&self, batch: &mut dyn FnMut());
            /// # Safety
            /// [`Memory::free_raw`]'s.
            unsafe fn free_raw(&self, addr: Addr, bytes: u64) -> DriverResult<()>;
            fn create(&self, bytes: u64) -> DriverResult<AnyHandle>;
            fn create_with(&self, bytes: u64, properties: Properties) -> DriverResult<AnyHandle>;
            #[cfg(unix)]
            fn export(&self, it: &AnyHandle) -> DriverResult<std::os::fd::OwnedFd>;
            #[cfg(unix)]
            fn import(&self, from: std::os::fd::BorrowedFd<'_>, bytes: u64) -> DriverResult<AnyHandle>;
            /// # Safety
            /// [`Mapping::unreserve`]'s.
            unsafe fn unreserve(&self, addr: Addr, bytes: u64) -> DriverResult<()>;
            /// # Safety
            /// [`Mapping::map`]'s.
            unsafe fn map(&self, addr: Addr, it: &AnyHandle) -> DriverResult<()>;
            /// # Safety
            /// [`Mapping::set_access`]'s.
            unsafe fn set_access(&self, addr: Addr, bytes: u64) -> DriverResult<()>;
            /// # Safety
            /// [`Mapping::unmap`]'s.
            unsafe fn unmap(&self, addr: Addr, bytes: u64) -> DriverResult<()>;
            /// # Safety
            /// [`Mapping::release`]'s.
            unsafe fn release(&self, it: &AnyHandle) -> DriverResult<()>;
            /// # Safety
            /// [`Host::unpin_raw`]'s.
            unsafe fn unpin_raw(&self, ptr: NonNull<u8>, bytes: u64) -> DriverResult<()>;
            /// # Safety
            /// [`Host::register_raw`]'s.
            unsafe fn register_raw(&self, ptr: NonNull<u8>, bytes: u64) -> DriverResult<()>;
            /// # Safety
            /// [`Host::unregister_raw`]'s.
            unsafe fn unregister_raw(&self, ptr: NonNull<u8>, bytes: u64) -> DriverResult<()>;
            /// # Safety
            /// That of the operation's method in [`Copies`] or [`Kernels`].
            unsafe fn operate(&self, operation: &Operation<'_>, on: &AnyNative) -> DriverResult<()>;
        }

        #[allow(unsafe_code, reason = "what is called has the contract of what calls it")]
        impl<D: Driver + Kernels> Object for D {
            $(fn $name(&self, $($arg: $type),*) $(-> $result)? {
                <D as $of>::$name(self, $($arg),*)
            })*
            fn scrubbing(&self) -> Arc<dyn Object> {
                Arc::new(Driver::scrubbing(self.clone()))
            }
            fn create_stream(&self, options: StreamOptions) -> DriverResult<AnyNative> {
                Fences::create_stream(self, options).map(AnyNative::new)
            }
            fn stream_info(&self, on: &AnyNative) -> DriverResult<StreamInfo> {
                Fences::stream_info(self, stream::<D>(on, "stream_info")?)
            }
            fn is_capturing(&self, on: &AnyNative) -> DriverResult<bool> {
                Fences::is_capturing(self, stream::<D>(on, "is_capturing")?)
            }
            fn may_capture(&self, on: &AnyNative) -> bool {
                on.downcast_ref().is_some_and(|on| Fences::may_capture(self, on))
            }
            fn is_last_reference(&self, on: &AnyNative) -> bool {
                on.downcast_ref().is_some_and(|on| Fences::is_last_reference(self, on))
            }
            fn create_event(&self) -> DriverResult<AnyEvent> {
                Fences::create_event(self).map(|event| AnyEvent(Box::new(event)))
            }
            fn record(&self, it: &AnyEvent, on: &AnyNative) -> DriverResult<()> {
                Fences::record(self, event::<D>(it, "record")?, stream::<D>(on, "record")?)
            }
            fn record_context(&self, it: &AnyEvent) -> DriverResult<()> {
                Fences::record_context(self, event::<D>(it, "record_context")?)
            }
            fn query(&self, it: &AnyEvent) -> DriverResult<bool> {
                Fences::query(self, event::<D>(it, "query")?)
            }
            fn wait(&self, on: &AnyNative, it: &AnyEvent) -> DriverResult<()> {
                Fences::wait(self, stream::<D>(on, "wait")?, event::<D>(it, "wait")?)
            }
            fn synchronize_stream(&self, on: &AnyNative) -> DriverResult<()> {
                Fences::synchronize_stream(self, stream::<D>(on, "synchronize_stream")?)
            }
            fn wait_event(&self, it: &AnyEvent, limit: Duration) -> DriverResult<bool> {
                Fences::wait_event(self, event::<D>(it, "wait_event")?, limit)
            }
            fn relaxed(&self, batch: &mut dyn FnMut()) {
                Fences::relaxed(self, batch);
            }
            unsafe fn free_raw(&self, addr: Addr, bytes: u64) -> DriverResult<()> {
                // SAFETY: the caller's, of the same range.
                unsafe { Memory::free_raw(self, addr, bytes) }
            }
            fn create(&self, bytes: u64) -> DriverResult<AnyHandle> {
                Mapping::create(self, bytes).map(|handle| AnyHandle(Box::new(handle)))
            }
            fn create_with(&self, bytes: u64, properties: Properties) -> DriverResult<AnyHandle> {
                Mapping::create_with(self, bytes, properties).map(|handle| AnyHandle(Box::new(handle)))
            }
            #[cfg(unix)]
            fn export(&self, it: &AnyHandle) -> DriverResult<std::os::fd::OwnedFd> {
                Mapping::export(self, handle::<D>(it, "export")?)
            }
            #[cfg(unix)]
            fn import(&self, from: std::os::fd::BorrowedFd<'_>, bytes: u64) -> DriverResult<AnyHandle> {
                Mapping::import(self, from, bytes).map(|handle| AnyHandle(Box::new(handle)))
            }
            unsafe fn unreserve(&self, addr: Addr, bytes: u64) -> DriverResult<()> {
                // SAFETY: the caller's, of the same addresses.
                unsafe { Mapping::unreserve(self, addr, bytes) }
            }
            unsafe fn map(&self, addr: Addr, it: &AnyHandle) -> DriverResult<()> {
                // SAFETY: the caller's, of the same addresses.
                unsafe { Mapping::map(self, addr, handle::<D>(it, "map")?) }
            }
            unsafe fn set_access(&self, addr: Addr, bytes: u64) -> DriverResult<()> {
                // SAFETY: the caller's, of the same addresses.
                unsafe { Mapping::set_access(self, addr, bytes) }
            }
            unsafe fn unmap(&self, addr: Addr, bytes: u64) -> DriverResult<()> {
                // SAFETY: the caller's, of the same addresses.
                unsafe { Mapping::unmap(self, addr, bytes) }
            }
            unsafe fn release(&self, it: &AnyHandle) -> DriverResult<()> {
                // SAFETY: the caller's, of the same handle.
                unsafe { Mapping::release(self, handle::<D>(it, "release")?) }
            }
            unsafe fn unpin_raw(&self, ptr: NonNull<u8>, bytes: u64) -> DriverResult<()> {
                // SAFETY: the caller's, of the same range.
                unsafe { Host::unpin_raw(self, ptr, bytes) }
            }
            unsafe fn register_raw(&self, ptr: NonNull<u8>, bytes: u64) -> DriverResult<()> {
                // SAFETY: the caller's, of the same range.
                unsafe { Host::register_raw(self, ptr, bytes) }
            }
            unsafe fn unregister_raw(&self, ptr: NonNull<u8>, bytes: u64) -> DriverResult<()> {
                // SAFETY: the caller's, of the same range.
                unsafe { Host::unregister_raw(self, ptr, bytes) }
            }
            unsafe fn operate(&self, operation: &Operation<'_>, on: &AnyNative) -> DriverResult<()> {
                let on = stream::<D>(on, "operate")?;
                match *operation {
                    // SAFETY: the caller's, of the same ranges and stream.
                    Operation::ToDevice(dst, src, bytes) => unsafe { self.copy_h2d(dst, src, bytes, on) },
                    // SAFETY: the caller's, of the same ranges and stream.
                    Operation::ToHost(dst, src, bytes) => unsafe { self.copy_d2h(dst, src, bytes, on) },
                    // SAFETY: the caller's, of the same ranges and stream.
                    Operation::Within(dst, src, bytes) => unsafe { self.copy_d2d(dst, src, bytes, on) },
                    // SAFETY: the caller's, of the same rows and stream.
                    Operation::Rows(copy) => unsafe { self.copy_rows(copy, on) },
                    Operation::Peer(dst, to, src, bytes) => {
                        let to = to.downcast_ref::<D>().ok_or_else(|| wrong_backend("copy_peer"))?;
                        // SAFETY: the caller's, of the same ranges, devices and stream.
                        unsafe { self.copy_peer(dst, to, src, bytes, on) }
                    }
                    // SAFETY: the caller's, of the same range and stream.
                    Operation::Fill(dst, value, bytes) => unsafe { self.fill(dst, value, bytes, on) },
                    // SAFETY: the caller's, of the same launch and stream.
                    Operation::Launch(launch) => unsafe { self.launch_kernel(launch, on) },
                }
            }
        }
    };
}

/// What a stream is given.
enum Operation<'a> {
    ToDevice(Addr, *const u8, u64),
    ToHost(*mut u8, Addr, u64),
    Within(Addr, Addr, u64),
    Rows(&'a Pitched),
    Peer(Addr, &'a AnyDriver, Addr, u64),
    Fill(Addr, u8, u64),
    Launch(&'a KernelLaunch<'a>),
}

same! {
    Memory::device() -> DeviceId;
    Memory::memory_info() -> DriverResult<MemoryInfo>;
    Memory::allocate_raw(bytes: u64) -> DriverResult<Addr>;
    Memory::free_waits_for_device() -> bool;
    Memory::free_spares_uses() -> bool;
    Memory::shares_by_ipc() -> bool;
    Memory::drop_failed(error: DriverError);
    Memory::deferred() -> Vec<DriverError>;
    Mapping::mapping() -> Option<MappingFacts>;
    Mapping::reserve(bytes: u64, at: Option<Addr>) -> DriverResult<Addr>;
    Fences::expects_captures() -> bool;
    Fences::synchronize_device() -> DriverResult<()>;
    Fences::host_time() -> Duration;
    Host::pin_raw(bytes: u64, kind: HostKind) -> DriverResult<NonNull<u8>>;
    Host::host_memory() -> Option<HostMemory>;
    Host::unpin_waits_for_device() -> bool;
    Host::unpin_spares_uses() -> bool;
    Host::unpin_failed(error: DriverError);
    Kernels::load_kernel(kernel: &Kernel) -> DriverResult<()>;
    Driver::note(note: Note);
    Driver::name(id: crate::units::AllocationId, name: &str);
    Driver::calls() -> Vec<(&'static str, u64)>;
}

/// What the device itself does.
macro_rules! passed_on {
    ($(fn $name:ident($($arg:ident: $type:ty),*) $(-> $result:ty)?;)*) => {$(
        fn $name(&self, $($arg: $type),*) $(-> $result)? {
            self.device.$name($($arg),*)
        }
    )*};
}

// SAFETY: the ranges are the device's, which is a `Memory`.
#[allow(unsafe_code, reason = "the device's own contract")]
unsafe impl Memory for AnyDriver {
    passed_on! {
        fn device() -> DeviceId;
        fn memory_info() -> DriverResult<MemoryInfo>;
        fn allocate_raw(bytes: u64) -> DriverResult<Addr>;
        fn free_waits_for_device() -> bool;
        fn free_spares_uses() -> bool;
        fn shares_by_ipc() -> bool;
        fn drop_failed(error: DriverError);
        fn deferred() -> Vec<DriverError>;
    }
    unsafe fn free_raw(&self, addr: Addr, bytes: u64) -> DriverResult<()> {
        // SAFETY: the caller's, of a range of this device.
        unsafe { self.device.free_raw(addr, bytes) }
    }
}

// SAFETY: the mappings are the device's, which is a `Mapping`; a handle of another kind is an error.
#[allow(unsafe_code, reason = "the device's own contract")]
unsafe impl Mapping for AnyDriver {
    type Handle = AnyHandle;
    passed_on! {
        fn mapping() -> Option<MappingFacts>;
        fn reserve(bytes: u64, at: Option<Addr>) -> DriverResult<Addr>;
        fn create(bytes: u64) -> DriverResult<AnyHandle>;
        fn create_with(bytes: u64, properties: Properties) -> DriverResult<AnyHandle>;
    }
    #[cfg(unix)]
    fn export(&self, handle: &AnyHandle) -> DriverResult<std::os::fd::OwnedFd> {
        self.device.export(handle)
    }
    #[cfg(unix)]
    fn import(&self, from: std::os::fd::BorrowedFd<'_>, bytes: u64) -> DriverResult<AnyHandle> {
        self.device.import(from, bytes)
    }
    unsafe fn unreserve(&self, addr: Addr, bytes: u64) -> DriverResult<()> {
        // SAFETY: the caller's, of addresses of this device.
        unsafe { self.device.unreserve(addr, bytes) }
    }
    unsafe fn map(&self, addr: Addr, handle: &AnyHandle) -> DriverResult<()> {
        // SAFETY: the caller's, of addresses of this device.
        unsafe { self.device.map(addr, handle) }
    }
    unsafe fn set_access(&self, addr: Addr, bytes: u64) -> DriverResult<()> {
        // SAFETY: the caller's, of addresses of this device.
        unsafe { self.device.set_access(addr, bytes) }
    }
    unsafe fn unmap(&self, addr: Addr, bytes: u64) -> DriverResult<()> {
        // SAFETY: the caller's, of addresses of this device.
        unsafe { self.device.unmap(addr, bytes) }
    }
    unsafe fn release(&self, handle: &AnyHandle) -> DriverResult<()> {
        // SAFETY: the caller's, of a handle of this device.
        unsafe { self.device.release(handle) }
    }
}

// SAFETY: each answer is the device's, which is a `Fences`; a stream or an event of another kind is an error, or no answer that lets go of anything.
#[allow(unsafe_code, reason = "the device's own contract")]
unsafe impl Fences for AnyDriver {
    type Stream = AnyNative;
    type Event = AnyEvent;
    passed_on! {
        fn create_stream(options: StreamOptions) -> DriverResult<AnyNative>;
        fn stream_info(stream: &AnyNative) -> DriverResult<StreamInfo>;
        fn is_capturing(stream: &AnyNative) -> DriverResult<bool>;
        fn may_capture(stream: &AnyNative) -> bool;
        fn is_last_reference(stream: &AnyNative) -> bool;
        fn expects_captures() -> bool;
        fn create_event() -> DriverResult<AnyEvent>;
        fn record(event: &AnyEvent, stream: &AnyNative) -> DriverResult<()>;
        fn record_context(event: &AnyEvent) -> DriverResult<()>;
        fn query(event: &AnyEvent) -> DriverResult<bool>;
        fn wait(stream: &AnyNative, event: &AnyEvent) -> DriverResult<()>;
        fn synchronize_stream(stream: &AnyNative) -> DriverResult<()>;
        fn synchronize_device() -> DriverResult<()>;
        fn wait_event(event: &AnyEvent, limit: Duration) -> DriverResult<bool>;
        fn host_time() -> Duration;
    }
    fn relaxed<R>(&self, batch: impl FnOnce() -> R) -> R {
        let mut batch = Some(batch);
        let mut result = None;
        self.device.relaxed(&mut || result = batch.take().map(|batch| batch()));
        // A device that does not run the batch is one whose `relaxed` returns no value of its type, which it can make nowhere else.
        result.expect("relaxed runs its batch")
    }
}

// SAFETY: each copy is the device's, which is a `Copies`.
#[allow(unsafe_code, reason = "the device's own contract")]
unsafe impl Copies for AnyDriver {
    unsafe fn copy_h2d(&self, dst: Addr, src: *const u8, bytes: u64, stream: &AnyNative) -> DriverResult<()> {
        // SAFETY: the caller's.
        unsafe { self.device.operate(&Operation::ToDevice(dst, src, bytes), stream) }
    }
    unsafe fn copy_d2h(&self, dst: *mut u8, src: Addr, bytes: u64, stream: &AnyNative) -> DriverResult<()> {
        // SAFETY: the caller's.
        unsafe { self.device.operate(&Operation::ToHost(dst, src, bytes), stream) }
    }
    unsafe fn copy_d2d(&self, dst: Addr, src: Addr, bytes: u64, stream: &AnyNative) -> DriverResult<()> {
        // SAFETY: the caller's.
        unsafe { self.device.operate(&Operation::Within(dst, src, bytes), stream) }
    }
    unsafe fn copy_rows(&self, copy: &Pitched, stream: &AnyNative) -> DriverResult<()> {
        // SAFETY: the caller's.
        unsafe { self.device.operate(&Operation::Rows(copy), stream) }
    }
    unsafe fn copy_peer(
        &self,
        dst: Addr,
        to: &AnyDriver,
        src: Addr,
        bytes: u64,
        stream: &AnyNative,
    ) -> DriverResult<()> {
        // SAFETY: the caller's.
        unsafe { self.device.operate(&Operation::Peer(dst, to, src, bytes), stream) }
    }
    unsafe fn fill(&self, dst: Addr, value: u8, bytes: u64, stream: &AnyNative) -> DriverResult<()> {
        // SAFETY: the caller's.
        unsafe { self.device.operate(&Operation::Fill(dst, value, bytes), stream) }
    }
}

// SAFETY: the ranges are the device's, which is a `Host`.
#[allow(unsafe_code, reason = "the device's own contract")]
unsafe impl Host for AnyDriver {
    passed_on! {
        fn pin_raw(bytes: u64, kind: HostKind) -> DriverResult<NonNull<u8>>;
        fn host_memory() -> Option<HostMemory>;
        fn unpin_waits_for_device() -> bool;
        fn unpin_spares_uses() -> bool;
        fn unpin_failed(error: DriverError);
    }
    unsafe fn unpin_raw(&self, ptr: NonNull<u8>, bytes: u64) -> DriverResult<()> {
        // SAFETY: the caller's, of a range of this device.
        unsafe { self.device.unpin_raw(ptr, bytes) }
    }
    unsafe fn register_raw(&self, ptr: NonNull<u8>, bytes: u64) -> DriverResult<()> {
        // SAFETY: the caller's, of the same range.
        unsafe { self.device.register_raw(ptr, bytes) }
    }
    unsafe fn unregister_raw(&self, ptr: NonNull<u8>, bytes: u64) -> DriverResult<()> {
        // SAFETY: the caller's, of a range of this device.
        unsafe { self.device.unregister_raw(ptr, bytes) }
    }
}

// SAFETY: each launch is the device's, which is a `Kernels`.
#[allow(unsafe_code, reason = "the device's own contract")]
unsafe impl Kernels for AnyDriver {
    passed_on! {
        fn load_kernel(kernel: &Kernel) -> DriverResult<()>;
    }
    unsafe fn launch_kernel(&self, launch: &KernelLaunch<'_>, stream: &AnyNative) -> DriverResult<()> {
        // SAFETY: the caller's.
        unsafe { self.device.operate(&Operation::Launch(launch), stream) }
    }
}

impl Driver for AnyDriver {
    // The device may judge, and its type is not known here: a device that does not judge pays a virtual call a note.
    const JUDGES: bool = true;
    passed_on! {
        fn note(note: Note);
        fn name(id: crate::units::AllocationId, name: &str);
        fn calls() -> Vec<(&'static str, u64)>;
    }
    fn scrubbing(self) -> AnyDriver {
        AnyDriver { device: self.device.scrubbing(), slot: self.slot }
    }
    fn slot(&self) -> &DeviceSlot {
        &self.slot
    }
}
