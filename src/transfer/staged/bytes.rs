//! Bytes between a slot and a program's memory, and the program's memory as bytes that may be uninitialised.
//!
//! A write to memory that is not in a cache reads it first, unless it goes past the caches: on one H200 machine threads that write pageable
//! memory so move 18 GB/s each instead of 11. A write into a slot gains nothing by it. It does not know threads nor copies.

#![allow(
    unsafe_code,
    reason = "streaming stores, and memory that is filled by bytes before it counts as elements"
)]

use bytemuck::Pod;
use core::mem::MaybeUninit;

/// Elements as bytes to be written.
///
/// # Safety
/// What is written to them is initialised.
pub(super) unsafe fn as_target<T: Pod>(elements: &mut [T]) -> &mut [MaybeUninit<u8>] {
    let bytes = size_of_val(elements);
    // SAFETY: the same memory, of the same length, as bytes, which need no alignment; the caller keeps it initialised.
    unsafe { core::slice::from_raw_parts_mut(elements.as_mut_ptr().cast(), bytes) }
}

/// A vector of `len` elements whose bytes `fill` writes. Nothing is written twice.
///
/// # Safety
/// Unless it returns an error, `fill` writes every byte.
pub(super) unsafe fn filled_vec<T: Pod, E>(
    len: usize,
    fill: impl FnOnce(&mut [MaybeUninit<u8>]) -> Result<(), E>,
) -> Result<Vec<T>, E> {
    let mut all = Vec::<T>::with_capacity(len);
    let room = &mut all.spare_capacity_mut()[..len];
    let bytes = size_of_val(room);
    // SAFETY: the same memory, of the same length, as bytes that may be uninitialised, as they are.
    fill(unsafe { core::slice::from_raw_parts_mut(room.as_mut_ptr().cast(), bytes) })?;
    // SAFETY: there is room for so many, all their bytes are written, and any bytes are an element.
    unsafe { all.set_len(len) };
    Ok(all)
}

/// Writes all of `to`: past the caches if that is wanted and the processor can.
///
/// # Panics
/// Unless both are of one length.
pub(super) fn move_out(from: &[u8], to: &mut [MaybeUninit<u8>], past_caches: bool) {
    assert_eq!(from.len(), to.len(), "a piece and its place");
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if past_caches && from.len() >= streaming::LEAST && streaming::copy(from, to) {
        return;
    }
    let _ = past_caches;
    to.write_copy_of_slice(from);
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod streaming {
    #![allow(
        clippy::cast_ptr_alignment,
        reason = "loads need no alignment, and the stores are made where a line begins"
    )]

    use core::arch::x86_64::{
        __m256i, __m512i, _mm_sfence, _mm256_loadu_si256, _mm256_stream_si256, _mm512_loadu_si512,
        _mm512_stream_si512,
    };
    use core::mem::MaybeUninit;
    use std::is_x86_feature_detected;

    /// Copies so many lines, the target's from a line's beginning on.
    type Lines = unsafe fn(*const u8, *mut u8, usize);

    /// Fewer bytes are not worth it.
    pub(super) const LEAST: usize = 4096;
    /// What is written at once: a line of the cache, at its beginning.
    const LINE: usize = 64;

    /// Copies past the caches, if the processor can. Both are of one length.
    pub(super) fn copy(from: &[u8], to: &mut [MaybeUninit<u8>]) -> bool {
        let lines: Lines = if is_x86_feature_detected!("avx512f") {
            by_512
        } else if is_x86_feature_detected!("avx") {
            by_256
        } else {
            return false;
        };
        let head = to.as_ptr().align_offset(LINE).min(to.len());
        let middle = (to.len() - head) / LINE * LINE;
        to[..head].write_copy_of_slice(&from[..head]);
        let end = head + middle;
        to[end..].write_copy_of_slice(&from[end..]);
        // SAFETY: the processor has the feature, as was detected; so many whole lines are in both slices, and in the target they begin at a line.
        unsafe { lines(from[head..].as_ptr(), to[head..].as_mut_ptr().cast(), middle / LINE) };
        true
    }

    /// # Safety
    /// `lines` lines are readable and writable there, which do not overlap; the target is aligned to a line.
    #[target_feature(enable = "avx512f")]
    unsafe fn by_512(from: *const u8, to: *mut u8, lines: usize) {
        for i in 0..lines {
            let at = i * LINE;
            // SAFETY: inside both, by the caller; the load needs no alignment, and the store has it.
            unsafe {
                let line = _mm512_loadu_si512(from.add(at).cast::<__m512i>());
                _mm512_stream_si512(to.add(at).cast::<__m512i>(), line);
            }
        }
        // What is read on another thread behind this thread's next release comes after these stores.
        _mm_sfence();
    }

    /// # Safety
    /// As for `by_512`.
    #[target_feature(enable = "avx")]
    unsafe fn by_256(from: *const u8, to: *mut u8, lines: usize) {
        for i in 0..lines {
            let at = i * LINE;
            // SAFETY: as in `by_512`.
            unsafe {
                let low = _mm256_loadu_si256(from.add(at).cast::<__m256i>());
                let high = _mm256_loadu_si256(from.add(at + 32).cast::<__m256i>());
                _mm256_stream_si256(to.add(at).cast::<__m256i>(), low);
                _mm256_stream_si256(to.add(at + 32).cast::<__m256i>(), high);
            }
        }
        // As in `by_512`.
        _mm_sfence();
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        /// Every alignment and every rest, with each instruction that this processor has.
        #[test]
        fn every_byte_is_written_and_none_beside() {
            let from: Vec<u8> = (0..6000_u32).map(|i| (i * 7 % 251) as u8).collect();
            let kinds: [(bool, Lines); 2] =
                [(is_x86_feature_detected!("avx512f"), by_512), (is_x86_feature_detected!("avx"), by_256)];
            for (_, lines) in kinds.into_iter().filter(|(there, _)| *there) {
                let mut to = vec![0xEE_u8; 1024];
                let head = to.as_ptr().align_offset(LINE);
                // SAFETY: the feature is there; four lines in both, at a line's beginning.
                unsafe { lines(from[3..].as_ptr(), to[head..].as_mut_ptr(), 4) };
                assert_eq!(to[head..head + 4 * LINE], from[3..3 + 4 * LINE]);
                assert!(to[..head].iter().chain(&to[head + 4 * LINE..]).all(|&b| b == 0xEE));
            }
            for begin in 0..70 {
                for len in [LEAST, LEAST + 1, LEAST + 63, LEAST + 130] {
                    let mut to = [MaybeUninit::new(0xEE_u8); 5000];
                    super::super::move_out(&from[5..5 + len], &mut to[begin..begin + len], true);
                    // SAFETY: initialised above.
                    let to = to.map(|b| unsafe { b.assume_init() });
                    assert_eq!(to[begin..begin + len], from[5..5 + len]);
                    assert!(to[..begin].iter().chain(&to[begin + len..]).all(|&b| b == 0xEE));
                }
            }
        }
    }
}
