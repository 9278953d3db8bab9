//! Launches of users' kernels: each module's text is loaded once a context, each kernel found once.
//!
//! Texts and names are known by their addresses: they live forever, so an address always means the same text. Loading
//! happens at the first launch, or before it by [`Kernels::load_kernel`]; it breaks no graph capture, and may wait for
//! running kernels. What is loaded stays until the context is dropped. This file does not know what a kernel does.

use super::Cuda;
use super::context::Device;
use super::kept::Loaded;
use super::stream::GpuStream;
use super::table::{Call, Handle, bad_handle};
use core::ffi::{CStr, c_void};
use cudarc::driver::sys::{CUfunc_st, CUmod_st};
use millpond_driver::sync::Arc;
use millpond_driver::{DriverResult, Fences, Kernel, KernelLaunch, Kernels};
use smallvec::SmallVec;

fn key(text: &'static CStr) -> usize {
    text.as_ptr().addr()
}

#[allow(unsafe_code, reason = "foreign calls")]
impl Loaded {
    fn module(&mut self, device: &Device, text: &'static CStr) -> DriverResult<Handle<CUmod_st>> {
        if let Some(&module) = self.modules.get(&key(text)) {
            return Ok(module);
        }
        let mut module = core::ptr::null_mut();
        // SAFETY: the pointer is a local's; the text ends with a zero.
        let code = unsafe { (device.table().module_load)(&raw mut module, text.as_ptr().cast()) };
        device.done(Call::module_load, code)?;
        self.modules.insert(key(text), Handle(module));
        Ok(Handle(module))
    }

    fn function(&mut self, device: &Device, kernel: &Kernel) -> DriverResult<Handle<CUfunc_st>> {
        let (text, name) = (kernel.text(), kernel.name());
        if let Some(&function) = self.functions.get(&(key(text), key(name))) {
            return Ok(function);
        }
        let bound = device.bind()?;
        let module = self.module(device, text)?;
        let mut function = core::ptr::null_mut();
        // SAFETY: the pointer is a local's, the module is loaded, the name ends with a zero.
        let code =
            unsafe { (device.table().module_get_function)(&raw mut function, module.0, name.as_ptr()) };
        device.done(Call::module_get_function, code)?;
        if let Some(load) = device.table().func_load {
            // SAFETY: the function was found above.
            let code = unsafe { load(function) };
            device.done(Call::func_load, code)?;
        }
        drop(bound);
        self.functions.insert((key(text), key(name)), Handle(function));
        Ok(Handle(function))
    }

    /// Unloads everything. For the device's own end.
    pub(super) fn unload(self, device: &Device) {
        if self.modules.is_empty() {
            return;
        }
        // Streams may have gone before their work.
        device.quietly(Call::ctx_synchronize, |table| {
            // SAFETY: no argument; `quietly` makes the context current.
            unsafe { (table.ctx_synchronize)() }
        });
        for module in self.modules.into_values() {
            device.quietly(Call::module_unload, |table| {
                // SAFETY: loaded by `module`, unloaded once; its launches are complete.
                unsafe { (table.module_unload)(module.0) }
            });
        }
    }
}

impl Cuda {
    fn function(&self, kernel: &Kernel) -> DriverResult<Handle<CUfunc_st>> {
        let known = (key(kernel.text()), key(kernel.name()));
        let mut loaded = self.device.loaded.lock();
        if let Some(&function) = loaded.functions.get(&known) {
            return Ok(function);
        }
        self.relaxed(|| loaded.function(&self.device, kernel))
    }
}

#[allow(unsafe_code, reason = "foreign calls")]
// SAFETY: a launch is one call of the driver's, with the arguments given.
unsafe impl Kernels for Cuda {
    fn load_kernel(&self, kernel: &Kernel) -> DriverResult<()> {
        self.function(kernel).map(drop)
    }

    unsafe fn launch_kernel(&self, launch: &KernelLaunch<'_>, stream: &GpuStream) -> DriverResult<()> {
        let call = Call::launch_kernel;
        if !Arc::ptr_eq(stream.device(), &self.device) {
            let message =
                format!("{stream:?} is of another device or context than this one of {}", self.device.id);
            return Err(bad_handle(call, message));
        }
        let native = stream.here(call)?;
        let function = self.function(launch.kernel)?;
        // The driver takes each argument from where its pointer points and writes nothing there.
        let mut parameters: SmallVec<[*mut c_void; 12]> =
            launch.arguments.iter().map(|a| core::ptr::from_ref(a).cast_mut().cast()).collect();
        let ([x, y, z], [across, down, deep]) = (launch.grid.blocks, launch.grid.threads);
        let (shared, none) = (launch.grid.shared_bytes, core::ptr::null_mut());
        let (queue, values) = (self.device.table().launch_kernel, parameters.as_mut_ptr());
        let bound = self.device.bind()?;
        // SAFETY: passed on from the caller; the function belongs to this context, which is current; each pointer leads
        // to the lowest of 8 bytes, and no argument is longer.
        let code = unsafe { queue(function.0, x, y, z, across, down, deep, shared, native, values, none) };
        self.device.done(call, code)?;
        drop(bound);
        Ok(())
    }
}
