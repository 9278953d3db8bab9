//! Initialisation, and the properties of devices.
//!
//! The stand-in describes itself as a recent data-centre card, with the attributes that programs usually query first.
//! This file does not know contexts.

use crate::entry::{Fail, INVALID_DEVICE, NO_DEVICE, Outcome};
use crate::raw::Out;
use crate::state::state;
use millpond_sim::Sim;
use std::ffi::{c_char, c_int, c_uint};

/// The values of attributes; all others are 0.
const ATTRIBUTES: &[(u32, c_int)] = &[
    (1, 1024), // threads per block
    (2, 1024), // block dimensions
    (3, 1024),
    (4, 64),
    (5, 0x7FFF_FFFF), // grid dimensions
    (6, 65_535),
    (7, 65_535),
    (8, 49_152),      // shared memory per block
    (9, 65_536),      // constant memory
    (10, 32),         // threads in a warp
    (12, 65_536),     // registers per block
    (13, 1_980_000),  // clock in kHz
    (16, 132),        // multiprocessors
    (19, 1),          // maps host memory
    (31, 1),          // concurrent kernels
    (36, 3_201_000),  // memory clock in kHz
    (37, 6_144),      // bus width in bits
    (38, 62_914_560), // second-level cache
    (39, 2_048),      // threads per multiprocessor
    (40, 3),          // copy engines
    (41, 1),          // one address space
    (75, 9),          // compute capability
    (76, 0),
    (78, 1),  // stream priorities
    (91, 1),  // registered memory has the CPU's address
    (102, 1), // virtual memory
    (103, 1), // as file descriptors
    (110, 1), // which network cards may use
    (115, 1), // memory pools
];

/// The name of every device.
const NAME: &str = "millpond stand-in";

/// A count or an ordinal as a C integer.
pub(crate) fn number(n: usize) -> c_int {
    c_int::try_from(n).unwrap_or(c_int::MAX)
}

fn device(ordinal: c_int) -> Outcome<(Sim, usize)> {
    let state = state();
    let found = usize::try_from(ordinal).ok().and_then(|d| Some((state.sims.get(d)?.clone(), d)));
    found.ok_or_else(|| {
        Fail::new(INVALID_DEVICE, format!("there is no device {ordinal}, there are {}", state.sims.len()))
    })
}

driver_calls! {
    /// Initialises the driver, before any other call.
    fn cuInit(flags: c_uint) {
        let mut state = state();
        if flags != 0 {
            return Err(Fail::invalid("cuInit takes no flags"));
        }
        if state.sims.is_empty() {
            return Err(Fail::new(NO_DEVICE, "there is no device"));
        }
        state.initialised = true;
        Ok(())
    }
    /// The version of CUDA that the driver supports: 1000 times the major number plus 10 times the minor.
    fn cuDriverGetVersion(version: Out<c_int>) {
        version.put(state().version.cast_signed())
    }
    /// How many devices there are.
    fn cuDeviceGetCount(count: Out<c_int>) {
        count.put(number(state().sims.len()))
    }
    /// A device by its ordinal, which is also its value.
    fn cuDeviceGet(device_out: Out<c_int>, ordinal: c_int) {
        device(ordinal)?;
        device_out.put(ordinal)
    }
    /// A device's name.
    fn cuDeviceGetName(name: Out<c_char>, room: c_int, ordinal: c_int) {
        device(ordinal)?;
        name.put_text(NAME, usize::try_from(room).unwrap_or(0))
    }
    /// A device's unique number.
    fn cuDeviceGetUuid(uuid: Out<[u8; 16]>, ordinal: c_int) {
        let (_, index) = device(ordinal)?;
        let mut bytes = *b"millpond fake 00";
        bytes[15] = b'0' + index as u8;
        uuid.put(bytes)
    }
    /// As `cuDeviceGetUuid`.
    fn cuDeviceGetUuid_v2(uuid: Out<[u8; 16]>, ordinal: c_int) {
        let (_, index) = device(ordinal)?;
        let mut bytes = *b"millpond fake 00";
        bytes[15] = b'0' + index as u8;
        uuid.put(bytes)
    }
    /// A device's memory in bytes.
    fn cuDeviceTotalMem_v2(bytes: Out<usize>, ordinal: c_int) {
        let (sim, _) = device(ordinal)?;
        bytes.put(millpond::driver::Memory::memory_info(&sim)?.total as usize)
    }
    /// An attribute of a device.
    fn cuDeviceGetAttribute(value: Out<c_int>, attribute: c_uint, ordinal: c_int) {
        device(ordinal)?;
        let set = state().attributes.get(&attribute).copied();
        let usual = || ATTRIBUTES.iter().find(|a| a.0 == attribute).map_or(0, |a| a.1);
        value.put(set.unwrap_or_else(usual))
    }
    /// Whether one device can reach another's memory: always.
    fn cuDeviceCanAccessPeer(can: Out<c_int>, ordinal: c_int, peer: c_int) {
        device(ordinal)?;
        device(peer)?;
        can.put(c_int::from(ordinal != peer))
    }
}
