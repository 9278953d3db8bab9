//! Modules and kernels, with the references of millpond's own kernels.
//!
//! A module is PTX text, of which the kernels' names and the parameters' lengths are read. A kernel runs if it has a reference here:
//!
//! | kernel | parameters | does |
//! |---|---|---|
//! | `fill` | address, bytes, word | writes a repeating 8-byte word, the first of it at the address |
//! | `check` | address, bytes, word, out, tag | counts words that differ, in its own slot, the four 8-byte words at `out` |
//! | `spin` | cell, limit in nanoseconds | runs until the first of two 4-byte words at `cell`, in pinned memory, is not 0 |
//!
//! or if `references` finds one in the library. Names may begin with `millpond_`. The kernels' sources say what a slot and a cell hold. A launch writes
//! its slot, for the oracle too: two launches that share one must be ordered. The shape of the grid matters for sums only.

use crate::entry::{Fail, NOT_FOUND, Outcome};
use crate::ptx::{self, Entry};
use crate::raw::{Array, Out, Text};
use crate::references;
use crate::spin::Spin;
use crate::state::{here, state, stream};
use millpond::units::Addr;
use millpond_sim::{KernelMemory, Launch, Sim, SimStream};
use std::ffi::{c_int, c_uint, c_void};

/// A loaded module.
#[derive(Debug)]
pub(crate) struct Module {
    entries: Vec<Entry>,
    /// The handles of its functions that programs have requested.
    functions: Vec<u64>,
}

impl Module {
    pub(crate) fn names(&self) -> Vec<&str> {
        self.entries.iter().map(|e| e.name.as_str()).collect()
    }
}

/// The kernels that have a reference here, and how many parameters they take.
const REFERENCES: &[(&str, usize)] = &[("fill", 3), ("check", 5), ("spin", 2)];

fn reference(name: &str) -> Option<(&'static str, usize)> {
    let plain = name.strip_prefix("millpond_").unwrap_or(name);
    REFERENCES.iter().find(|t| t.0 == plain).copied()
}

fn load(image: Text) -> Outcome<u64> {
    here()?;
    let Some(entries) = ptx::entries(&image.get()?) else {
        return Err(Fail::new(218, "the module is not PTX that can be read here"));
    };
    Ok(state().modules.insert(Module { entries, functions: Vec::new() }))
}

/// How many bytes are compared in one step: a multiple of 8.
const PIECE: u64 = 1 << 20;

/// The result of a check.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Found {
    /// How many words differ, or bytes where bytes are compared.
    bad: u64,
    /// The lowest offset of a difference, in bytes.
    lowest: u64,
    /// The value there.
    seen: u64,
}

/// Compares a range with a repeating word, piece by piece. It compares words; in a range that is not aligned to words, and
/// after the last whole one, it compares bytes.
fn compare(addr: u64, bytes: u64, word: u64, mut read: impl FnMut(u64, &mut [u8])) -> Found {
    let mut found = Found { bad: 0, lowest: u64::MAX, seen: 0 };
    let mut differs = |offset: u64, seen: u64| {
        if found.bad == 0 {
            (found.lowest, found.seen) = (offset, seen);
        }
        found.bad += 1;
    };
    let expected = word.to_le_bytes();
    let whole = if addr.is_multiple_of(8) { bytes - bytes % 8 } else { 0 };
    let mut buffer = vec![0_u8; PIECE.min(bytes) as usize];
    let mut at = 0;
    while at < bytes {
        let limit = if at < whole { whole } else { bytes };
        let piece = &mut buffer[..PIECE.min(limit - at) as usize];
        read(addr + at, piece);
        if at < whole {
            for (chunk, offset) in piece.as_chunks::<8>().0.iter().zip((at..).step_by(8)) {
                if *chunk != expected {
                    differs(offset, u64::from_le_bytes(*chunk));
                }
            }
        } else {
            for (&byte, offset) in piece.iter().zip(at..) {
                if byte != expected[(offset % 8) as usize] {
                    differs(offset, byte.into());
                }
            }
        }
        at += piece.len() as u64;
    }
    found
}

/// Adds a result to a slot, as the kernel's atomics do.
fn add_to_slot(memory: &mut KernelMemory<'_>, out: u64, tag: u64, found: Found) {
    if found.bad == 0 {
        return;
    }
    let mut word = |index: u64, change: &dyn Fn(u64) -> u64| {
        let (at, mut bytes) = (Addr(out + 8 * index), [0; 8]);
        memory.read(at, &mut bytes);
        let before = u64::from_le_bytes(bytes);
        memory.write(at, &change(before).to_le_bytes());
        before
    };
    if word(0, &|n| n.wrapping_add(found.bad)) == 0 {
        word(2, &|_| tag);
        word(3, &|_| found.seen);
    }
    word(1, &|lowest| lowest.min(found.lowest));
}

fn check(sim: &Sim, on: &SimStream, p: &[u64]) -> Outcome {
    let &[addr, bytes, word, out, tag] = p else {
        return Err(Fail::invalid("a check has five parameters"));
    };
    end_of(out, 32)?;
    let slot = Launch::new("check").reads(Addr(addr), bytes).reads(Addr(out), 32).writes(Addr(out), 32);
    let launch = slot.body(move |memory| {
        let found = compare(addr, bytes, word, |at, into| memory.read(Addr(at), into));
        add_to_slot(memory, out, tag, found);
    });
    queue(sim, on, launch)
}

fn spin(sim: &Sim, on: &SimStream, cell: u64, limit_nanos: u64) -> Outcome {
    if !state().is_pinned_cell(cell) {
        return Err(Fail::unsupported(format!(
            "the cell at {cell:#x} is no aligned pair of words in pinned memory"
        )));
    }
    let gate = sim.gate(on)?;
    Spin::begin(gate, cell, limit_nanos);
    Ok(())
}

/// The end of a range, which must not be beyond 2^64.
fn end_of(addr: u64, bytes: u64) -> Outcome<u64> {
    addr.checked_add(bytes)
        .ok_or_else(|| Fail::invalid(format!("{bytes} bytes at {addr:#x} end beyond 2^64")))
}

/// The reference that runs a launch.
enum Runs {
    /// A reference of this file.
    Here(&'static str),
    /// A reference of the library.
    Library(&'static millpond::kernel::Kernel),
}

/// Queues a kernel of the simulated device, on memory of any device.
#[allow(unsafe_code, reason = "a launch from C: its caller is responsible for the memory")]
pub(crate) fn queue(sim: &Sim, on: &SimStream, launch: Launch) -> Outcome {
    // SAFETY: the program's contract with the driver: what the kernel touches stays allocated until the kernel is done.
    Ok(unsafe { sim.launch_anywhere(on, launch) }?)
}

fn launch(function: u64, on: u64, blocks: u64, parameters: Array) -> Outcome {
    let (runs, lengths) = {
        let state = state();
        let Some(&(module, index)) = state.functions.get(&function) else {
            return Err(Fail::new(
                crate::entry::INVALID_HANDLE,
                format!("no function has the value {function:#x} now"),
            ));
        };
        let entry = &state.modules.get(module)?.entries[index];
        let runs = match (reference(&entry.name), references::find(&entry.name)) {
            (Some((name, count)), _) => {
                if entry.parameters.len() != count {
                    return Err(Fail::unsupported(format!(
                        "{name} takes {count} parameters here, the module says {}",
                        entry.parameters.len()
                    )));
                }
                Runs::Here(name)
            }
            (None, Some(kernel)) => Runs::Library(kernel),
            (None, None) => {
                return Err(Fail::unsupported(format!(
                    "the kernel {:?} has no reference on the stand-in",
                    entry.name
                )));
            }
        };
        (runs, entry.parameters.clone())
    };
    let p: Vec<u64> = lengths
        .iter()
        .enumerate()
        .map(|(i, &bytes)| parameters.parameter(i, bytes))
        .collect::<Outcome<_>>()?;
    let (sim, _, on) = stream(on)?;
    let name = match runs {
        Runs::Here(name) => name,
        Runs::Library(kernel) => return references::launch(&sim, &on, kernel, &p, blocks),
    };
    match name {
        "spin" => spin(&sim, &on, p[0], p[1]),
        _ if p[1] == 0 => Ok(()),
        "check" => {
            end_of(p[0], p[1])?;
            check(&sim, &on, &p)
        }
        _ => {
            end_of(p[0], p[1])?;
            queue(&sim, &on, Launch::write_pattern(Addr(p[0]), p[1], p[2]))
        }
    }
}

driver_calls! {
    /// Loads a module from PTX text.
    fn cuModuleLoadData(module: Out<u64>, image: Text) {
        module.put(load(image)?)
    }
    /// As `cuModuleLoadData`; options are ignored.
    fn cuModuleLoadDataEx(module: Out<u64>, image: Text, count: c_uint, options: *mut c_uint, values: *mut *mut c_void) {
        let _ = (count, options, values);
        module.put(load(image)?)
    }
    /// Unloads a module and its functions.
    fn cuModuleUnload(module: u64) {
        let mut state = state();
        let gone = state.modules.remove(module)?;
        for function in gone.functions {
            state.functions.remove(&function);
        }
        Ok(())
    }
    /// A kernel of a module by its name.
    fn cuModuleGetFunction(function: Out<u64>, module: u64, name: Text) {
        let name = name.get()?;
        let mut guard = state();
        let state = &mut *guard;
        let m = state.modules.get_mut(module)?;
        let Some(index) = m.entries.iter().position(|e| e.name == name) else {
            return Err(Fail::new(NOT_FOUND, format!("the module has no kernel {name:?}, it has {:?}", m.names())));
        };
        let value = module + 1 + index as u64;
        if !m.functions.contains(&value) {
            m.functions.push(value);
        }
        state.functions.insert(value, (module, index));
        function.put(value)
    }
    /// Not found: modules have no variables here.
    fn cuModuleGetGlobal_v2(address: Out<u64>, bytes: Out<usize>, module: u64, name: Text) {
        let _ = (address, bytes);
        state().modules.get(module)?;
        Err(Fail::new(NOT_FOUND, format!("the module has no variable {:?}", name.get()?)))
    }
    /// An attribute of a kernel: 1024 threads in a block, all others 0.
    fn cuFuncGetAttribute(value: Out<c_int>, attribute: c_uint, function: u64) {
        let _ = function;
        value.put(if attribute == 0 { 1024 } else { 0 })
    }
    /// Accepts a setting of a kernel without effect.
    fn cuFuncSetAttribute(function: u64, attribute: c_uint, value: c_int) {
        let _ = (function, attribute, value);
        Ok(())
    }
    /// Loads a kernel before its first launch, which needs no work here.
    fn cuFuncLoad(function: u64) {
        let state = state();
        state.functions.get(&function).map(|_| ()).ok_or_else(|| Fail::new(crate::entry::INVALID_HANDLE, "no such function"))
    }
    /// Launches a kernel that has a reference.
    fn cuLaunchKernel(
        function: u64,
        grid_x: c_uint,
        grid_y: c_uint,
        grid_z: c_uint,
        block_x: c_uint,
        block_y: c_uint,
        block_z: c_uint,
        shared_bytes: c_uint,
        on: u64,
        parameters: Array,
        extra: *mut *mut c_void,
    ) {
        let empty = [grid_x, grid_y, grid_z, block_x, block_y, block_z].contains(&0);
        if empty || u64::from(block_x) * u64::from(block_y) * u64::from(block_z) > 1024 {
            return Err(Fail::invalid("a grid or a block that no device can run"));
        }
        if !extra.is_null() {
            return Err(Fail::unsupported("parameters are passed one by one here"));
        }
        let _ = shared_bytes;
        let blocks = u64::from(grid_x) * u64::from(grid_y) * u64::from(grid_z);
        launch(function, on, blocks, parameters)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_count_where_they_are_whole_and_bytes_elsewhere() {
        let word = u64::from_le_bytes(*b"abcdefgh");
        let find = |addr: u64, text: &[u8]| {
            compare(addr, text.len() as u64, word, |at, into| {
                into.copy_from_slice(&text[(at - addr) as usize..][..into.len()]);
            })
        };
        let nothing = Found { bad: 0, lowest: u64::MAX, seen: 0 };
        assert_eq!(find(64, b"abcdefghabcdefghabc"), nothing);
        let second = u64::from_le_bytes(*b"XbcdeXgh");
        assert_eq!(find(64, b"abcdefghXbcdeXghabX"), Found { bad: 2, lowest: 8, seen: second });
        assert_eq!(find(3, b"XbcdeXgh"), Found { bad: 2, lowest: 0, seen: u64::from(b'X') });
    }
}
