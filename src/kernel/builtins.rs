//! The built-in kernels: committed PTX and CPU references, by operation and type. It does not know what launches them.

use super::references;
use crate::driver::{DriverResult, Kernel, Kernels, Reference};
use core::ffi::CStr;

/// A module's text. It is a `static`, so that all of its kernels refer to the same address.
macro_rules! text {
    ($name:ident, $file:literal) => {
        static $name: &CStr = match CStr::from_bytes_with_nul(
            concat!(include_str!(concat!("../../kernels/", $file)), "\0").as_bytes(),
        ) {
            Ok(text) => text,
            Err(_) => panic!("no text has a zero inside"),
        };
    };
}
text!(FILL_TEXT, "fill.ptx");
text!(IOTA_TEXT, "iota.ptx");
text!(SAXPY_TEXT, "saxpy.ptx");
text!(REDUCE_TEXT, "reduce.ptx");
text!(GATHER_TEXT, "gather.ptx");
text!(SCATTER_TEXT, "scatter.ptx");
text!(UNPACK_TEXT, "unpack.ptx");

const fn kernel(name: &'static CStr, text: &'static CStr, reference: Reference) -> Kernel {
    Kernel::new(name, text).reference(reference)
}

/// Fills with a word: address, bytes, word.
pub(super) static FILL: Kernel = kernel(c"millpond_fill", FILL_TEXT, references::fill);

/// Counts up: target, elements, first, step. Indexed by [`Kind`](super::number::Kind).
pub(super) static IOTA: [Kernel; 4] = [
    kernel(c"millpond_iota_u32", IOTA_TEXT, references::iota::<u32>),
    kernel(c"millpond_iota_u64", IOTA_TEXT, references::iota::<u64>),
    kernel(c"millpond_iota_f32", IOTA_TEXT, references::iota::<f32>),
    kernel(c"millpond_iota_f64", IOTA_TEXT, references::iota::<f64>),
];

/// Adds a multiple: y, x, elements, factor.
pub(super) static SAXPY: [Kernel; 4] = [
    kernel(c"millpond_saxpy_u32", SAXPY_TEXT, references::saxpy::<u32>),
    kernel(c"millpond_saxpy_u64", SAXPY_TEXT, references::saxpy::<u64>),
    kernel(c"millpond_saxpy_f32", SAXPY_TEXT, references::saxpy::<f32>),
    kernel(c"millpond_saxpy_f64", SAXPY_TEXT, references::saxpy::<f64>),
];

/// Sums of parts: target, source, elements.
pub(super) static REDUCE: [Kernel; 4] = [
    kernel(c"millpond_reduce_u32", REDUCE_TEXT, references::reduce::<u32>),
    kernel(c"millpond_reduce_u64", REDUCE_TEXT, references::reduce::<u64>),
    kernel(c"millpond_reduce_f32", REDUCE_TEXT, references::reduce::<f32>),
    kernel(c"millpond_reduce_f64", REDUCE_TEXT, references::reduce::<f64>),
];

/// Picks elements: target, source, its elements, indices, elements, pieces. Indexed by the logarithm of a piece's bytes.
pub(super) static GATHER: [Kernel; 4] = [
    kernel(c"millpond_gather_1", GATHER_TEXT, references::gather::<1>),
    kernel(c"millpond_gather_2", GATHER_TEXT, references::gather::<2>),
    kernel(c"millpond_gather_4", GATHER_TEXT, references::gather::<4>),
    kernel(c"millpond_gather_8", GATHER_TEXT, references::gather::<8>),
];

/// Spreads elements: target, its elements, source, indices, elements, pieces. Indexed like [`GATHER`].
pub(super) static SCATTER: [Kernel; 4] = [
    kernel(c"millpond_scatter_1", SCATTER_TEXT, references::scatter::<1>),
    kernel(c"millpond_scatter_2", SCATTER_TEXT, references::scatter::<2>),
    kernel(c"millpond_scatter_4", SCATTER_TEXT, references::scatter::<4>),
    kernel(c"millpond_scatter_8", SCATTER_TEXT, references::scatter::<8>),
];

/// Takes packed pieces to their places: the packed bytes, where the table of the pieces begins in them, pieces.
pub(crate) static UNPACK: Kernel = kernel(c"millpond_unpack", UNPACK_TEXT, references::unpack);

/// Every kernel behind the safe functions, for a device of your own to execute.
pub fn builtins() -> impl Iterator<Item = &'static Kernel> {
    let tables = [&IOTA, &SAXPY, &REDUCE, &GATHER, &SCATTER];
    [&FILL, &UNPACK].into_iter().chain(tables.into_iter().flatten())
}

/// Loads every kernel behind the safe functions now. Otherwise the first launch of each loads it, once a context, and may wait for
/// running kernels: a program that must not stall in the middle of its work calls this at its start. Load your own kernels
/// one by one with [`Kernels::load_kernel`].
///
/// # Errors
/// The driver's; what was loaded stays loaded.
pub fn load_builtins<D: Kernels>(device: &D) -> DriverResult<()> {
    builtins().try_for_each(|kernel| device.load_kernel(kernel))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kernel_is_in_its_text_and_there_once() {
        let mut names = Vec::new();
        for kernel in builtins() {
            let name = kernel.name().to_str().expect("plain text");
            let text = kernel.text().to_str().expect("plain text");
            assert!(text.contains(&format!(".entry {name}(")), "{name} is not in its text");
            assert!(kernel.on_cpu().is_ok(), "{name} has no reference");
            names.push(name);
        }
        let entries: usize =
            [FILL_TEXT, IOTA_TEXT, SAXPY_TEXT, REDUCE_TEXT, GATHER_TEXT, SCATTER_TEXT, UNPACK_TEXT]
                .iter()
                .map(|t| t.to_str().expect("plain text").matches(".entry ").count())
                .sum();
        assert_eq!(names.len(), entries, "an entry that no verb launches");
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), entries, "two kernels of one name");
    }
}
