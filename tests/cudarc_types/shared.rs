//! Random programs of several threads that use the same things: an array, a pooled slice and a pinned array that all of them read at once, by
//! cudarc's calls on streams of their own, then one of them has it alone and writes. What was read is compared when the next write is queued, so that a
//! read which that did not wait for has the wrong value.
//!
//! 40 programs in a full run, a third of them in an ordinary one, or what `MILLPOND_CASES` says.

use super::random::search;
use super::world::{STREAMS, a_stream};
use super::*;
use cudarc::driver::CudaStream;
use millpond::interop::PooledSlice;
use millpond::{PinnedArray, Stream};
use proptest::collection::vec;
use proptest::prelude::*;

const THREADS: usize = 3;
/// Reads of a thread in a round, each into an array of its own.
const READS: usize = 3;

/// What all have.
#[derive(Clone, Copy, PartialEq, Debug)]
enum What {
    Array,
    /// A view of a part of the array, and the rest by another call.
    Halves,
    Slice,
    SliceView,
    Host,
}

const ALL: [What; 5] = [What::Array, What::Halves, What::Slice, What::SliceView, What::Host];

#[derive(Clone, Debug)]
struct Round {
    /// What each thread reads, and on which of its streams.
    reads: Vec<Vec<(What, usize)>>,
    /// Who writes what, on which of its streams, or by a call of our own or a launch.
    writes: Vec<(usize, What, usize, bool)>,
    /// A thread's stream is dropped, with what is queued on it.
    ends: Option<(usize, usize)>,
}

fn a_round() -> impl Strategy<Value = Round> {
    let read = (prop::sample::select(&ALL[..]), 0..STREAMS);
    let write = (0..THREADS, prop::sample::select(&ALL[..]), 0..STREAMS, prop::bool::weighted(0.3));
    let ends = prop::option::of((0..THREADS, 0..STREAMS));
    (vec(vec(read, 0..=READS), THREADS), vec(write, 0..3), ends).prop_map(|(reads, writes, ends)| Round {
        reads,
        writes,
        ends,
    })
}

/// What a thread has to itself.
struct Own {
    streams: Vec<TestStream>,
    /// Each with what it has read.
    into: Vec<(Words, u32)>,
}

struct Common {
    home: Stream<Cuda>,
    array: Words,
    slice: PooledSlice<u32>,
    host: PinnedArray<u32, Cuda>,
    /// What each holds.
    array_is: u32,
    slice_is: u32,
    host_is: u32,
}

impl Common {
    fn read(&self, what: What, on: &Arc<CudaStream>, into: &mut (Words, u32)) {
        let (to, value) = into;
        let queued = match what {
            What::Array => on.memcpy_dtod(&self.array, to),
            What::Halves => {
                let (front, rear) = (..WORDS / 2, WORDS / 2..);
                on.memcpy_dtod(&self.array.slice(front), &mut to.slice_mut(front)).expect("queued");
                on.memcpy_dtod(&self.array.slice(rear.clone()), &mut to.slice_mut(rear))
            }
            What::Slice => on.memcpy_dtod(&self.slice, to),
            What::SliceView => on.memcpy_dtod(&self.slice.slice(..).slice(..), to),
            What::Host => {
                assert_eq!([self.host[0], self.host[WORDS - 1]], [self.host_is; 2], "a look beside others'");
                on.memcpy_htod(&self.host, to)
            }
        };
        queued.expect("queued");
        *value = match what {
            What::Array | What::Halves => self.array_is,
            What::Slice | What::SliceView => self.slice_is,
            What::Host => self.host_is,
        };
    }

    /// By the code that has all of it exclusively.
    fn write(&mut self, what: What, on: &Arc<CudaStream>, ours: bool, rig: &Rig, value: u8) {
        let word = u32::from_ne_bytes([value; 4]);
        match what {
            What::Array if ours => self.array.fill_bytes(value, &self.home).expect("queued"),
            What::Array | What::Halves => {
                on.memcpy_htod(&vec![word; WORDS], &mut self.array).expect("queued");
            }
            What::Slice if ours => {
                let (theirs, kernel) = (self.home.cudarc().expect("its alias"), iota(&rig.ctx));
                let mut launch = theirs.launch_builder(&kernel);
                launch.arg(&mut self.slice).arg(&(WORDS as u64)).arg(&word).arg(&0_u32);
                #[allow(unsafe_code, reason = "a launch")]
                // SAFETY: iota takes an address, a length, the first number and the step; it writes so many elements.
                unsafe { launch.launch(GRID) }.expect("launched");
            }
            What::Slice => on.memcpy_dtod(&self.array, &mut self.slice).expect("queued"),
            What::SliceView => {
                on.memcpy_dtod(&self.array, &mut self.slice.as_view_mut()).expect("queued");
            }
            What::Host if ours => self.host.fill(word),
            What::Host => on.memcpy_dtoh(&self.array, &mut self.host).expect("fetched"),
        }
        match (what, ours) {
            (What::Array | What::Halves, _) => self.array_is = word,
            (What::Slice, true) => self.slice_is = word,
            (What::Slice | What::SliceView, _) => self.slice_is = self.array_is,
            (What::Host, true) => self.host_is = word,
            (What::Host, false) => self.host_is = self.array_is,
        }
    }
}

/// Each thread begins its reads when all are there.
fn read_at_once(common: &Common, owns: &mut [Own], reads: &[Vec<(What, usize)>]) {
    let ready = &std::sync::Barrier::new(owns.len());
    std::thread::scope(|s| {
        for (own, reads) in owns.iter_mut().zip(reads) {
            s.spawn(move || {
                ready.wait();
                for (&(what, on), into) in reads.iter().zip(&mut own.into) {
                    common.read(what, &own.streams[on].theirs, into);
                }
            });
        }
    });
}

#[test]
fn programs_of_threads_that_share() {
    if rig().is_none() {
        return;
    }
    search(40, &vec(a_round(), 1..12), |rig, rounds| {
        let others = [(); 2].map(|()| CudaContext::new(0).expect("another value for the same context"));
        {
            let gpu = rig.allocator_for(2 + (THREADS * READS) as u64);
            let home = gpu.stream().expect("a stream");
            let mut common = Common {
                array: gpu.zeros(WORDS, &home).expect("room"),
                slice: gpu.cuda_slice(WORDS, &home).expect("room"),
                host: gpu.pinned_zeros(WORDS).expect("pinned"),
                home,
                array_is: 0,
                slice_is: 0,
                host_is: 0,
            };
            let theirs = common.home.cudarc().expect("its alias");
            theirs.memset_zeros(&mut common.slice).expect("queued");
            let own = || Own {
                streams: (0..STREAMS).map(|n| a_stream(&rig, &gpu, &others, n)).collect(),
                into: (0..READS).map(|_| (gpu.zeros(WORDS, &common.home).expect("room"), 0)).collect(),
            };
            let mut owns: Vec<Own> = (0..THREADS).map(|_| own()).collect();
            for (n, round) in rounds.into_iter().enumerate() {
                read_at_once(&common, &mut owns, &round.reads);
                if let Some((thread, on)) = round.ends {
                    owns[thread].streams[on] = a_stream(&rig, &gpu, &others, on);
                }
                for (m, &(thread, what, on, ours)) in round.writes.iter().enumerate() {
                    let on = Arc::clone(&owns[thread].streams[on].theirs);
                    common.write(what, &on, ours, &rig, 1 + (3 * n + m) as u8);
                }
                for (array, value) in owns.iter().flat_map(|own| &own.into) {
                    let found = read(&theirs, array);
                    assert_eq!([found[0], found[WORDS / 2], found[WORDS - 1]], [*value; 3], "round {n}");
                }
            }
            let found = theirs.clone_dtoh(&common.slice).expect("read");
            theirs.synchronize().expect("there");
            assert_eq!([found[0], found[WORDS - 1]], [common.slice_is; 2]);
            assert_eq!(read(&theirs, &common.array)[WORDS / 2], common.array_is);
            assert_eq!(common.host[WORDS / 2], common.host_is);
        }
        drop(others);
        rig.check_clean();
    });
}
