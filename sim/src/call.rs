//! The driver calls that the simulated device knows: names, prices, behaviour.
//!
//! Prices are host nanoseconds as measured on a real driver (DESIGN.md, what the driver costs), with one thread and nothing else
//! running; where that table has no entry the number is an estimate and says so. This module has no state.

use millpond_driver::DriverErrorKind;

macro_rules! calls {
    ($($(#[$doc:meta])* $variant:ident = $name:literal, $price:expr;)*) => {
        /// A driver call that the simulated device counts and prices, and that can be made to fail.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        #[non_exhaustive]
        pub enum Call { $($(#[$doc])* $variant,)* }

        impl Call {
            /// All of them.
            pub const ALL: &'static [Call] = &[$(Call::$variant,)*];
            /// The call's name in the driver's interface.
            pub const fn name(self) -> &'static str {
                match self { $(Call::$variant => $name,)* }
            }
            /// What the call costs the host, in virtual nanoseconds, besides any wait and any price per byte.
            pub const fn price(self) -> u64 {
                match self { $(Call::$variant => $price,)* }
            }
        }
    };
}

calls! {
    /// Free and total memory.
    MemGetInfo = "cuMemGetInfo", 3_200;
    /// Plain allocation. The price is an estimate.
    MemAlloc = "cuMemAlloc", 100_000;
    /// Plain free; waits for the device. The price beside the wait is an estimate.
    MemFree = "cuMemFree", 100_000;
    /// Pinning; 0.3 ns a byte on top.
    MemHostAlloc = "cuMemHostAlloc", 20_000;
    /// Unpinning; waits for the device; 0.065 ns a byte on top.
    MemFreeHost = "cuMemFreeHost", 20_000;
    /// Pinning memory that the program has; 0.014 ns a byte on top, for memory that was touched.
    MemHostRegister = "cuMemHostRegister", 20_000;
    /// The end of that; waits for the device; 0.012 ns a byte on top.
    MemHostUnregister = "cuMemHostUnregister", 20_000;
    /// Stream creation. The price is an estimate.
    StreamCreate = "cuStreamCreate", 5_000;
    /// Stream destruction: returns at once, whatever is pending. The price is an estimate.
    StreamDestroy = "cuStreamDestroy", 5_000;
    /// A stream's unique number.
    StreamGetId = "cuStreamGetId", 12;
    /// Whether a stream is capturing.
    StreamIsCapturing = "cuStreamIsCapturing", 14;
    /// Event creation.
    EventCreate = "cuEventCreate", 60;
    /// Event destruction.
    EventDestroy = "cuEventDestroy", 60;
    /// Event record.
    EventRecord = "cuEventRecord", 170;
    /// Event record behind everything in the context.
    CtxRecordEvent = "cuCtxRecordEvent", 300;
    /// Event query.
    EventQuery = "cuEventQuery", 140;
    /// A stream's wait on an event.
    StreamWaitEvent = "cuStreamWaitEvent", 150;
    /// The host's wait for a stream.
    StreamSynchronize = "cuStreamSynchronize", 1_000;
    /// The host's wait for the device.
    CtxSynchronize = "cuCtxSynchronize", 1_000;
    /// The host's wait for an event.
    EventSynchronize = "cuEventSynchronize", 1_000;
    /// Host to device.
    MemcpyHtoD = "cuMemcpyHtoDAsync", 2_500;
    /// Device to host.
    MemcpyDtoH = "cuMemcpyDtoHAsync", 2_500;
    /// Device to device.
    MemcpyDtoD = "cuMemcpyDtoDAsync", 2_500;
    /// Rows with a stride. The price is an estimate.
    Memcpy2D = "cuMemcpy2DAsync", 2_500;
    /// Between devices. The price is an estimate.
    MemcpyPeer = "cuMemcpyPeerAsync", 2_500;
    /// Fill with a byte.
    MemsetD8 = "cuMemsetD8Async", 2_500;
    /// Reserve addresses.
    AddressReserve = "cuMemAddressReserve", 4_000;
    /// Give addresses back.
    AddressFree = "cuMemAddressFree", 4_000;
    /// Create physical memory; 0.2 ns a KiB on top.
    Create = "cuMemCreate", 5_200;
    /// Map a handle.
    Map = "cuMemMap", 500;
    /// Make mappings usable: the price is per handle, from 16.5 µs to 28 µs, on top.
    SetAccess = "cuMemSetAccess", 0;
    /// Unmap addresses: the price is per handle, from 11.7 µs to 18.5 µs, on top.
    Unmap = "cuMemUnmap", 0;
    /// Give physical memory back; 0.2 ns a KiB on top.
    Release = "cuMemRelease", 6_600;
    /// A file descriptor of physical memory. The price is an estimate.
    Export = "cuMemExportToShareableHandle", 5_000;
    /// Physical memory of a file descriptor. The price is an estimate.
    Import = "cuMemImportFromShareableHandle", 5_000;
    /// A kernel.
    LaunchKernel = "cuLaunchKernel", 2_600;
    /// A host function.
    LaunchHostFunc = "cuLaunchHostFunc", 670;
    /// Begin a capture. The price is an estimate.
    BeginCapture = "cuStreamBeginCapture", 1_000;
    /// End a capture. The price is an estimate.
    EndCapture = "cuStreamEndCapture", 1_000;
    /// Change this thread's capture mode.
    ExchangeCaptureMode = "cuThreadExchangeStreamCaptureMode", 15;
}

impl Call {
    /// Whether a fault can be planted in it: a destructor cannot return an error, and the capture mode cannot fail.
    pub const fn can_fail(self) -> bool {
        !matches!(self, Call::StreamDestroy | Call::EventDestroy | Call::ExchangeCaptureMode)
    }

    /// Whether it destroys a global capture, from any thread that is not relaxed.
    pub(super) const fn is_unsafe_while_capturing(self) -> bool {
        matches!(
            self,
            Call::MemAlloc
                | Call::MemFree
                | Call::MemHostAlloc
                | Call::MemFreeHost
                | Call::MemHostRegister
                | Call::MemHostUnregister
                | Call::EventQuery
                | Call::EventSynchronize
                | Call::StreamSynchronize
                | Call::CtxSynchronize
        )
    }

    /// Whether it does so even inside a relaxed batch.
    pub(super) const fn is_never_safe_while_capturing(self) -> bool {
        matches!(self, Call::CtxSynchronize)
    }
}

/// The driver's number for a kind of failure.
pub(super) const fn code_of(kind: DriverErrorKind) -> u32 {
    match kind {
        DriverErrorKind::OutOfMemory => 2,
        DriverErrorKind::InvalidValue => 1,
        DriverErrorKind::InvalidHandle => 400,
        DriverErrorKind::Capturing => 900,
        DriverErrorKind::NotSupported => 801,
        DriverErrorKind::ContextLost => 700,
        // `Other`, and kinds that are not known here: CUDA's "unknown".
        _ => 999,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn indices_and_names_are_one_to_one() {
        assert!(Call::ALL.iter().enumerate().all(|(i, &c)| c as usize == i));
        assert_eq!(Call::ALL.iter().map(|c| c.name()).collect::<HashSet<_>>().len(), Call::ALL.len());
    }
}
