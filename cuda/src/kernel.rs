//! Our own kernels: fill a range with a word, check that it holds it, hold a stream behind a gate.
//!
//! They make a program's memory visible on a real device as the simulator's pattern kernels do on a simulated one: what
//! was written at allocation must still be there just before the free. They are committed PTX (`kernels/`), loaded when
//! first used and compiled by the driver; nothing is needed at build or run but the driver. The launches are safe: their
//! ranges must be live memory of this backend. This file does not know allocations or order.
//!
//! A check reports into a slot of its own, so that a launch costs no transfer. There are 65,536 slots, one lap of checks;
//! when they are used up the host waits for the device, keeps what they say and begins again, because two launches that
//! share a slot would have to be ordered. Checks are therefore launched one at a time.

use super::Cuda;
use super::context::Device;
use super::kept::{BadRange, Kernel, Kernels, Launched, Log};
use super::ranges::Reach;
use super::stream::GpuStream;
use super::table::{Call, Handle, bad_handle};
use core::ffi::{CStr, c_void};
use cudarc::driver::sys::CUstream;
use millpond_driver::sync::{Arc, Mutex};
use millpond_driver::units::{Addr, AllocationId};
use millpond_driver::{DriverResult, Fences};

const FILL: &str = concat!(include_str!("../kernels/fill.ptx"), "\0");
const CHECK: &str = concat!(include_str!("../kernels/check.ptx"), "\0");
const SPIN: &str = concat!(include_str!("../kernels/spin.ptx"), "\0");

/// Slots of checks.
const SLOTS: u64 = 1 << 16;
/// The four words of a slot, as kernels/check.cu says, in bytes.
const SLOT_BYTES: u64 = 32;
/// Threads of a block.
const BLOCK: u32 = 256;
/// Blocks of a launch, at most: enough to fill every GPU seen, each thread taking many words.
const MOST_BLOCKS: u64 = 1056;

/// Findings of earlier laps that are kept; the others are counted.
const FOUND_KEPT: usize = 64;

#[allow(unsafe_code, reason = "foreign calls")]
impl Kernel {
    fn load(device: &Device, ptx: &'static str, name: &'static CStr) -> DriverResult<Kernel> {
        let bound = device.bind()?;
        let mut module = core::ptr::null_mut();
        // SAFETY: the pointer is a local's; the text ends with a zero.
        let code = unsafe { (device.table().module_load)(&raw mut module, ptx.as_ptr().cast()) };
        device.done(Call::module_load, code)?;
        let mut function = core::ptr::null_mut();
        // SAFETY: the pointer is a local's, the module was loaded above, the name ends with a zero.
        let code = unsafe { (device.table().module_get_function)(&raw mut function, module, name.as_ptr()) };
        let kernel = Kernel { module: Handle(module), function: Handle(function) };
        let loaded = device.done(Call::module_get_function, code).and_then(|()| {
            // A kernel is otherwise loaded by its first launch, which waits for the running ones.
            let Some(load) = device.table().func_load else { return Ok(()) };
            // SAFETY: the function was found above.
            let code = unsafe { load(function) };
            device.done(Call::func_load, code)
        });
        drop(bound);
        loaded.inspect_err(|_| kernel.unload(device))?;
        Ok(kernel)
    }

    fn unload(self, device: &Device) {
        device.quietly(Call::module_unload, |table| {
            // SAFETY: loaded by `load`, unloaded once, after its launches are complete.
            unsafe { (table.module_unload)(self.module.0) }
        });
    }

    /// # Safety
    /// `parameters` point to values of the kernel's types, in order, and what the kernel touches is live memory.
    pub(super) unsafe fn launch(
        self,
        device: &Device,
        stream: CUstream,
        (blocks, threads): (u32, u32),
        parameters: &mut [*mut c_void],
    ) -> DriverResult<()> {
        let bound = device.bind()?;
        let (launch, none) = (device.table().launch_kernel, core::ptr::null_mut());
        let values = parameters.as_mut_ptr();
        // SAFETY: passed on from the caller; the function belongs to this context, which is current.
        let code = unsafe { launch(self.function.0, blocks, 1, 1, threads, 1, 1, 0, stream, values, none) };
        device.done(Call::launch_kernel, code)?;
        drop(bound);
        Ok(())
    }
}

fn pointer_to<T>(value: &mut T) -> *mut c_void {
    (&raw mut *value).cast()
}

/// Blocks for a range.
fn blocks_for(bytes: u64) -> u32 {
    let words_of_block = u64::from(BLOCK) * 8 * 4;
    bytes.div_ceil(words_of_block).clamp(1, MOST_BLOCKS) as u32
}

#[allow(unsafe_code, reason = "foreign calls")]
impl Kernels {
    fn load(device: &Device) -> DriverResult<Kernels> {
        let fill = Kernel::load(device, FILL, c"millpond_fill")?;
        let check = Kernel::load(device, CHECK, c"millpond_check").inspect_err(|_| fill.unload(device))?;
        let unload_two = |_: &_| {
            fill.unload(device);
            check.unload(device);
        };
        let spin = Kernel::load(device, SPIN, c"millpond_spin").inspect_err(unload_two)?;
        let slots = fresh_slots(device).inspect_err(|e| {
            unload_two(e);
            spin.unload(device);
        })?;
        Ok(Kernels { fill, check, spin, slots, log: Mutex::default(), cells: Mutex::default() })
    }

    /// Gives everything back. The first call waits for every kernel on the device, ours included.
    pub(super) fn unload(&self, device: &Device) {
        device.quietly(Call::mem_free, |table| {
            // SAFETY: allocated by `fresh_slots`; the call waits for every kernel that still writes there.
            unsafe { (table.mem_free)(self.slots) }
        });
        self.cells.lock().unpin(device);
        for kernel in [self.fill, self.check, self.spin] {
            kernel.unload(device);
        }
    }

    /// The slots' words. Every check is complete, as the caller saw.
    fn read_slots(&self, device: &Device) -> DriverResult<Vec<[u64; 4]>> {
        let mut words = vec![[0_u64; 4]; SLOTS as usize];
        let stream = device.internal_stream()?;
        let bound = device.bind()?;
        let (into, bytes) = (words.as_mut_ptr().cast(), size_of_val(&words[..]));
        // SAFETY: the vector is as long as the slots, and is waited for below.
        let code = unsafe { (device.table().memcpy_d2h)(into, self.slots, bytes, stream) };
        device.done(Call::memcpy_d2h, code)?;
        // SAFETY: the device's own stream.
        unsafe { device.wait_for_stream(stream)? };
        drop(bound);
        Ok(words)
    }

    /// Waits for the device and reads what the checks of this lap found.
    fn harvest(&self, cuda: &Cuda, log: &Log) -> DriverResult<Vec<BadRange>> {
        cuda.synchronize_device()?;
        let slots = self.read_slots(&cuda.device)?;
        let bad = slots.iter().zip(&log.lap).filter(|(slot, _)| slot[0] != 0);
        Ok(bad
            .map(|(&[words, offset, _, found], l)| BadRange {
                stream: l.stream,
                addr: l.addr,
                bytes: l.bytes,
                allocation: l.allocation,
                expected: l.word,
                found,
                offset,
                words,
            })
            .collect())
    }

    /// Waits for the device, keeps what this lap found and begins the next.
    fn next_lap(&self, cuda: &Cuda, log: &mut Log) -> DriverResult<()> {
        if log.used == 0 {
            let found = self.harvest(cuda, log)?;
            log.bad += found.len() as u64;
            let room = FOUND_KEPT.saturating_sub(log.found.len());
            log.found.extend(found.into_iter().take(room));
            log.used = log.lap.len();
            log.lap.clear();
        }
        clear_slots(&cuda.device, self.slots, log.used)?;
        log.used = 0;
        Ok(())
    }
}

/// Device memory for the slots.
#[allow(unsafe_code, reason = "foreign calls")]
fn fresh_slots(device: &Device) -> DriverResult<u64> {
    let bound = device.bind()?;
    let mut slots = 0;
    // SAFETY: the pointer is a local's.
    let code = unsafe { (device.table().mem_alloc)(&raw mut slots, (SLOTS * SLOT_BYTES) as usize) };
    device.done(Call::mem_alloc, code)?;
    drop(bound);
    if let Err(e) = clear_slots(device, slots, SLOTS as usize) {
        device.quietly(Call::mem_free, |table| {
            // SAFETY: allocated above, and no kernel knows it.
            unsafe { (table.mem_free)(slots) }
        });
        return Err(e);
    }
    Ok(slots)
}

/// Prepares the first `count` slots as kernels/check.cu needs them. No check is under way.
#[allow(unsafe_code, reason = "foreign calls")]
fn clear_slots(device: &Device, slots: u64, count: usize) -> DriverResult<()> {
    if count == 0 {
        return Ok(());
    }
    let words = vec![[0, u64::MAX, 0, 0]; count];
    let stream = device.internal_stream()?;
    let bound = device.bind()?;
    let (from, bytes) = (words.as_ptr().cast(), size_of_val(&words[..]));
    // SAFETY: there are no fewer slots than words in the vector, which is waited for below.
    let code = unsafe { (device.table().memcpy_h2d)(slots, from, bytes, stream) };
    device.done(Call::memcpy_h2d, code)?;
    // SAFETY: the device's own stream.
    unsafe { device.wait_for_stream(stream)? };
    drop(bound);
    Ok(())
}

/// The kernels.
impl Cuda {
    /// Loads the kernels now, so that no later launch waits for running ones. Takes 2 MiB of the device.
    ///
    /// # Errors
    /// The driver's; it compiles the kernels for its device.
    pub fn load_kernels(&self) -> DriverResult<()> {
        self.kernels().map(drop)
    }

    pub(super) fn kernels(&self) -> DriverResult<Arc<Kernels>> {
        let mut kernels = self.device.kernels.lock();
        if let Some(loaded) = &*kernels {
            return Ok(Arc::clone(loaded));
        }
        let loaded = Arc::new(self.relaxed(|| Kernels::load(&self.device))?);
        *kernels = Some(Arc::clone(&loaded));
        Ok(loaded)
    }

    /// The stream, for a kernel that touches a range.
    fn launchable(&self, stream: &GpuStream, addr: Addr, bytes: u64, reach: Reach) -> DriverResult<CUstream> {
        let call = Call::launch_kernel;
        if !Arc::ptr_eq(stream.device(), &self.device) {
            let message =
                format!("{:?} is of another device or context than this one of {}", stream, self.device.id);
            return Err(bad_handle(call, message));
        }
        self.place(addr, bytes, call, reach)?;
        stream.here(call)
    }

    /// Queues a kernel that fills a range of this backend's device memory with a repeating 8-byte word, little endian, beginning at
    /// `addr`. Ordered on `stream` only.
    ///
    /// # Errors
    /// A range that is not ours, or not whole; pinned memory, which Rust may be looking at: use
    /// [`Cuda::write_pattern_anywhere`]; the driver's. Nothing was then queued.
    pub fn write_pattern(&self, stream: &GpuStream, addr: Addr, bytes: u64, word: u64) -> DriverResult<()> {
        self.fill_with(stream, addr, bytes, word, Reach::Device)
    }

    /// [`Cuda::write_pattern`], of pinned memory too.
    ///
    /// # Errors
    /// A range that is not ours, or not whole; the driver's. Nothing was then queued.
    ///
    /// # Safety
    /// Until the kernel has run, there is no Rust reference to the bytes if they are pinned memory.
    #[allow(unsafe_code, reason = "pinned memory is the process's own, where references may lead")]
    pub unsafe fn write_pattern_anywhere(
        &self,
        stream: &GpuStream,
        addr: Addr,
        bytes: u64,
        word: u64,
    ) -> DriverResult<()> {
        self.fill_with(stream, addr, bytes, word, Reach::Anywhere)
    }

    #[allow(unsafe_code, reason = "foreign calls")]
    fn fill_with(
        &self,
        stream: &GpuStream,
        addr: Addr,
        bytes: u64,
        word: u64,
        reach: Reach,
    ) -> DriverResult<()> {
        if bytes == 0 {
            return Ok(());
        }
        let native = self.launchable(stream, addr, bytes, reach)?;
        let kernels = self.kernels()?;
        let (mut addr, mut bytes, mut word) = (addr.0, bytes, word);
        let shape = (blocks_for(bytes), BLOCK);
        let parameters = &mut [pointer_to(&mut addr), pointer_to(&mut bytes), pointer_to(&mut word)];
        // SAFETY: three 8-byte values, as kernels/fill.cu declares; the range is ours, checked above.
        unsafe { kernels.fill.launch(&self.device, native, shape, parameters) }
    }

    /// Queues a kernel that checks that a range of this backend's device memory holds a repeating word.
    /// [`Cuda::bad_ranges`] returns what it finds. Ordered on `stream` only; every 65,536th check waits for the device first.
    ///
    /// # Errors
    /// As [`Cuda::write_pattern`]; pinned memory is for [`Cuda::check_pattern_anywhere`].
    pub fn check_pattern(
        &self,
        stream: &GpuStream,
        addr: Addr,
        bytes: u64,
        word: u64,
        allocation: Option<AllocationId>,
    ) -> DriverResult<()> {
        self.check_with(stream, (addr, bytes), word, allocation, Reach::Device)
    }

    /// [`Cuda::check_pattern`], of pinned memory too.
    ///
    /// # Errors
    /// A range that is not ours, or not whole; the driver's. Nothing was then queued.
    ///
    /// # Safety
    /// Until the kernel has run, the bytes are not changed through a Rust reference if they are pinned memory.
    #[allow(unsafe_code, reason = "pinned memory is the process's own, where references may lead")]
    pub unsafe fn check_pattern_anywhere(
        &self,
        stream: &GpuStream,
        addr: Addr,
        bytes: u64,
        word: u64,
        allocation: Option<AllocationId>,
    ) -> DriverResult<()> {
        self.check_with(stream, (addr, bytes), word, allocation, Reach::Anywhere)
    }

    #[allow(unsafe_code, reason = "foreign calls")]
    fn check_with(
        &self,
        stream: &GpuStream,
        (addr, bytes): (Addr, u64),
        word: u64,
        allocation: Option<AllocationId>,
        reach: Reach,
    ) -> DriverResult<()> {
        if bytes == 0 {
            return Ok(());
        }
        let native = self.launchable(stream, addr, bytes, reach)?;
        let kernels = self.kernels()?;
        let mut log = kernels.log.lock();
        if log.lap.len() as u64 == SLOTS || log.used > 0 {
            kernels.next_lap(self, &mut log)?;
        }
        let (mut at, mut length, mut expected, mut tag) = (addr.0, bytes, word, log.checks);
        let mut out = kernels.slots + log.lap.len() as u64 * SLOT_BYTES;
        let shape = (blocks_for(bytes), BLOCK);
        let parameters = &mut [
            pointer_to(&mut at),
            pointer_to(&mut length),
            pointer_to(&mut expected),
            pointer_to(&mut out),
            pointer_to(&mut tag),
        ];
        // SAFETY: five 8-byte values, as kernels/check.cu declares; the range is ours, the slot this launch's.
        unsafe { kernels.check.launch(&self.device, native, shape, parameters)? };
        log.checks += 1;
        log.lap.push(Launched { stream: stream.info().id, addr, bytes, word, allocation });
        Ok(())
    }

    /// How many checks were queued in this context so far.
    pub fn checks(&self) -> u64 {
        // The lock of the one is not held for that of the other, which a harvest holds while it waits for the device.
        let kernels = self.device.kernels.lock().clone();
        kernels.map_or(0, |k| k.log.lock().checks)
    }

    /// What the checks found so far: the first findings, and how many there are in all. With `finish` the host first
    /// waits for the device, so that all have run, and begins a new lap of 65,536 checks, none of which waits; without,
    /// only laps that are over count, and nothing is waited for.
    ///
    /// # Errors
    /// The driver's.
    pub fn bad_ranges(&self, finish: bool) -> DriverResult<(Vec<BadRange>, u64)> {
        let kernels = self.device.kernels.lock().clone();
        let Some(kernels) = kernels else { return Ok((Vec::new(), 0)) };
        let mut log = kernels.log.lock();
        if finish {
            kernels.next_lap(self, &mut log)?;
        }
        Ok((log.found.clone(), log.bad))
    }
}
