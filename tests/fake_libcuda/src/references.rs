//! The kernels behind millpond's safe functions: which ranges a launch touches, by its arguments, and the reference that computes the contents.
//!
//! A driver gets addresses and not what lies there, so the ranges are computed here from the kernels' sources, independently of what the
//! library declares: a function that passed a wrong length would touch memory that it does not own, and the oracle would report it. What
//! `millpond_unpack` writes says a table in the device's memory, which the copy before it brings: a launch of it is refused here. This file does not know who launches.

use crate::entry::{Fail, Outcome};
use millpond::kernel::{Argument, Kernel, builtins};
use millpond::units::Addr;
use millpond_sim::{Launch, Sim, SimStream};

/// The kernel of this name, if the library has its reference.
pub(crate) fn find(name: &str) -> Option<&'static Kernel> {
    builtins().find(|k| k.name().to_bytes() == name.as_bytes())
}

/// The kernel's name without its last part, and the element size that this part stands for.
fn parts(name: &str) -> Option<(&str, u64)> {
    let (plain, kind) = name.strip_prefix("millpond_")?.rsplit_once('_')?;
    let bytes = match kind {
        "f32" | "u32" => 4,
        "f64" | "u64" => 8,
        pieces => pieces.parse().ok()?,
    };
    Some((plain, bytes))
}

/// The ranges that a launch touches: address, bytes, and whether it may write.
fn touched(name: &str, p: &[u64], blocks: u64) -> Outcome<Vec<(u64, u64, bool)>> {
    let Some((plain, bytes)) = parts(name) else {
        return Err(Fail::unsupported(format!("nothing says what the kernel {name:?} touches")));
    };
    let long = |elements: u64| {
        elements.checked_mul(bytes).ok_or_else(|| Fail::invalid(format!("{elements} elements are too many")))
    };
    Ok(match (plain, p) {
        ("iota", &[out, n, _, _]) => vec![(out, long(n)?, true)],
        ("saxpy", &[y, x, n, _]) => vec![(y, long(n)?, true), (x, long(n)?, false)],
        ("reduce", &[out, x, n]) => {
            if n.div_ceil(8192) != blocks {
                return Err(Fail::invalid(format!(
                    "{blocks} blocks for a sum of {n} elements, 8192 a block"
                )));
            }
            vec![(out, long(blocks)?, true), (x, long(n)?, false)]
        }
        ("gather", &[out, from, length, at, n, pieces]) => {
            vec![(out, long(n * pieces)?, true), (from, long(length * pieces)?, false), (at, n * 4, false)]
        }
        ("scatter", &[out, length, from, at, n, pieces]) => {
            vec![(out, long(length * pieces)?, true), (from, long(n * pieces)?, false), (at, n * 4, false)]
        }
        _ => return Err(Fail::unsupported(format!("{name} does not take {} parameters here", p.len()))),
    })
}

/// Queues the reference.
pub(crate) fn launch(sim: &Sim, on: &SimStream, kernel: &Kernel, p: &[u64], blocks: u64) -> Outcome {
    let name = kernel.name().to_string_lossy().into_owned();
    let reference = kernel.on_cpu()?;
    let mut launch = Launch::new(name.clone());
    for (addr, bytes, writes) in touched(&name, p, blocks)? {
        if addr.checked_add(bytes).is_none() {
            return Err(Fail::invalid(format!("{bytes} bytes at {addr:#x} end beyond 2^64")));
        }
        // The write comes first, as in the simulated device's own launches.
        if writes {
            launch = launch.writes(Addr(addr), bytes);
        }
        launch = launch.reads(Addr(addr), bytes);
    }
    let arguments: Vec<Argument> = p.iter().map(|&bits| Argument::from_bits(bits)).collect();
    let launch = launch.body(move |memory| reference(memory, &arguments));
    crate::kernel::queue(sim, on, launch)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_launch_touches_is_worked_out_from_its_arguments() {
        let saxpy = touched("millpond_saxpy_f64", &[0x1000, 0x2000, 10, 0], 1).expect("known");
        assert_eq!(saxpy, [(0x1000, 80, true), (0x2000, 80, false)]);
        let gather = touched("millpond_gather_2", &[0x1000, 0x2000, 7, 0x3000, 5, 3], 1).expect("known");
        assert_eq!(gather, [(0x1000, 30, true), (0x2000, 42, false), (0x3000, 20, false)]);
        assert!(touched("millpond_reduce_f32", &[0x1000, 0x2000, 8193], 1).is_err(), "a block too few");
        assert!(touched("millpond_saxpy_f64", &[0x1000, 0x2000], 1).is_err(), "two arguments too few");
        assert!(touched("millpond_unheard_f32", &[], 1).is_err());
    }

    #[test]
    fn every_kernel_with_a_reference_is_known_here() {
        let others = [c"millpond_fill", c"millpond_unpack"];
        for kernel in builtins().filter(|k| !others.contains(&k.name())) {
            let name = kernel.name().to_str().expect("plain text");
            assert!(parts(name).is_some(), "{name}");
            let known = (3..=6).any(|n| touched(name, &vec![0; n], 0).is_ok());
            assert!(known, "{name}");
        }
    }
}
