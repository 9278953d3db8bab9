//! How copies of pageable memory are staged: how many threads move bytes, and in pieces of which size.

use super::{Config, put};

/// More threads than this only take memory for slots: eight fill slots as fast as the link of an H200 empties them.
const THREADS: usize = 8;
/// More cannot be chosen.
const MOST_THREADS: usize = 64;
pub(super) const THREADS_EXPECTED: &str = "a number from 0 (the calling thread alone) to 64";

/// The sizes, in bytes, by which a staged copy is divided. Measured on one H200 with 16 cores (`gpu_transfers staged_sizes`): a piece that a sleeping thread has
/// to be woken for costs some 30 µs, so pieces of long copies are large, and copies of less than 2 MiB are as fast without threads. For tests and benchmarks to
/// change.
#[doc(hidden)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct StagingPieces {
    /// A copy of at most this is one piece.
    pub single: usize,
    /// A copy of at least this is moved by the staging threads.
    pub threads_from: usize,
    /// The first piece and the last, with which nothing overlaps, of a copy with staging threads.
    pub first: usize,
    /// The largest piece in the middle, of a copy with staging threads.
    pub most: usize,
    /// The largest piece of a copy by the calling thread alone, half of it at most: its slots stay in that core's cache.
    pub most_alone: usize,
    /// A piece is at most this part of what is behind it, and of what is before it.
    pub part: usize,
    /// A copy to the host of at least this is written past the caches.
    pub stream_from: usize,
}

impl Default for StagingPieces {
    fn default() -> StagingPieces {
        StagingPieces {
            single: 64 << 10,
            threads_from: 2 << 20,
            first: 1 << 20,
            most: 4 << 20,
            most_alone: 256 << 10,
            part: 3,
            stream_from: 4 << 20,
        }
    }
}

impl StagingPieces {
    /// Pieces from `first` to `most` bytes, for short copies with many of them.
    pub fn of(first: usize, most: usize) -> StagingPieces {
        StagingPieces {
            single: first,
            threads_from: 0,
            first,
            most,
            most_alone: most,
            part: 2,
            stream_from: 0,
        }
    }
}

impl Config {
    /// How many threads move the bytes of long copies from and to memory that is not pinned
    /// ([`DeviceArray::copy_from_slice`](crate::DeviceArray::copy_from_slice) and its siblings): by default as many as the machine has cores for
    /// the process, at most eight. 0: the calling thread alone, at the rate of one core. The first long copy starts them, all copies of the allocator
    /// share them, and they end with it. They move bytes and do nothing else: every call of the driver is the calling thread's, in the same order for any
    /// number of threads.
    #[must_use]
    pub fn staging_threads(mut self, threads: usize) -> Config {
        self.staging_threads = Some(threads.min(MOST_THREADS));
        self
    }

    /// In which pieces copies are staged. For programs with short copies that search for bugs in that, and for benchmarks.
    #[doc(hidden)]
    #[must_use]
    pub fn staging_pieces(mut self, pieces: StagingPieces) -> Config {
        self.staging_pieces = pieces;
        self
    }

    /// How many threads there are to be.
    pub(crate) fn threads_to_stage(&self) -> usize {
        // A model checker's threads, and Miri's, are its own.
        if cfg!(any(loom, shuttle)) || (cfg!(miri) && self.staging_threads.is_none()) {
            return 0;
        }
        let cores = || std::thread::available_parallelism().map_or(1, usize::from).min(THREADS);
        self.staging_threads.unwrap_or_else(cores)
    }
}

/// A number of threads.
pub(super) fn threads(c: &mut Config, text: &str) -> bool {
    put(&mut c.staging_threads, text.parse().ok().filter(|&n| n <= MOST_THREADS).map(Some))
}
