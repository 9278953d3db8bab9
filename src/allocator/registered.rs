//! Memory of the program's that an allocator has registered: the handle. When a registration ends that was dropped, `pinned/registered.rs` knows.
//!
//! It does not know which copies use the memory: their tokens own it until they are complete.

use super::core::Core;
use crate::driver::{Driver, RegisteredHost, StableMemory};
use crate::error::{DriverError, Error};
use crate::sync::{Arc, assert_unlocked};

/// The driver's error, by which a context may be known to be lost.
fn refused<D: Driver>(core: &Core<D>, e: DriverError) -> Error {
    Error::Driver(core.registry.watch::<()>(Err(e)).expect_err("an error stays one"))
}

/// Memory of the program's, registered with an allocator until it is released; when dropped, until the allocator's next trim.
pub(crate) struct Registered<O: StableMemory, D: Driver> {
    memory: Option<RegisteredHost<D, O>>,
    core: Arc<Core<D>>,
}

impl<O: StableMemory, D: Driver> Registered<O, D> {
    /// Registers it.
    ///
    /// # Errors
    /// The driver's, and the owner.
    pub(super) fn new(core: &Arc<Core<D>>, owner: O) -> Result<Registered<O, D>, (O, Error)> {
        if !core.registry.alive() {
            return Err((owner, super::core::lost()));
        }
        let made = core.driver.relaxed(|| RegisteredHost::new(&core.driver, owner));
        let memory = match made {
            Ok(memory) => memory,
            Err((owner, e)) => return Err((owner, refused(core, e))),
        };
        core.host.registrations.add(memory.bytes());
        Ok(Registered { memory: Some(memory), core: Arc::clone(core) })
    }

    fn held(&self) -> &RegisteredHost<D, O> {
        self.memory.as_ref().expect("taken only where the value ends")
    }
    /// The owner.
    pub(crate) fn owner(&self) -> &O {
        self.held().owner()
    }
    /// The owner's elements, for writing.
    pub(crate) fn elements_mut(&mut self) -> &mut [O::Item] {
        self.memory.as_mut().expect("taken only where the value ends").elements_mut()
    }

    /// Ends the registration and gives the owner back. The driver's call waits for the device.
    ///
    /// # Errors
    /// The driver's, and the value: it is still registered.
    pub(crate) fn release(mut self) -> Result<O, (Self, Error)> {
        let memory = self.memory.take().expect("taken only where the value ends");
        let (core, bytes) = (Arc::clone(&self.core), memory.bytes());
        assert_unlocked("a registration ends");
        match core.driver.relaxed(|| memory.release()) {
            Ok(owner) => {
                core.host.registrations.remove(bytes);
                Ok(owner)
            }
            Err((memory, e)) => {
                self.memory = Some(memory);
                let e = refused(&core, e);
                Err((self, e))
            }
        }
    }
}

impl<O: StableMemory, D: Driver> Drop for Registered<O, D> {
    fn drop(&mut self) {
        let Some(memory) = self.memory.take() else { return };
        let registrations = &self.core.host.registrations;
        // The allocator is gone with all its streams: this waits, as the last handle of pinned memory does.
        if let Some(left) = registrations.leave(Box::new(memory)) {
            registrations.remove(left.bytes());
            self.core.driver.relaxed(|| drop(left));
        }
    }
}
