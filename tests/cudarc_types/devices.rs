//! Random programs of cudarc's safe calls on two devices: an allocator on each, two of cudarc's values for the context of each, streams that
//! the allocator made, adopted or never heard of, and default ones; and copies from one device to the other. They need no
//! rules, as those on one device (`random`): every value is what it would be if each call ended before the next one began.
//!
//! 50 programs in a full run, a third of them in an ordinary one, or what `MILLPOND_CASES` says.

use super::random::search;
use super::*;
use cudarc::driver::CudaStream;
use millpond::interop::PooledSlice;
use millpond::{Growth, Limit, PinnedArray, Reuse, Stream};
use proptest::collection::vec;
use proptest::prelude::*;

const ARRAYS: usize = 2;
const STREAMS: usize = 5;

/// A call; numbers say which device, array and stream.
#[derive(Clone, Copy, Debug)]
enum Call {
    /// Our own fill, on the stream of the array.
    Fill(usize, usize, u8),
    /// `memset_zeros`.
    Zero(usize, usize, usize),
    /// `memcpy_dtod`, to the other array of the device.
    Copy(usize, usize, usize),
    /// `memcpy_htod`, from the device's pinned array.
    Send(usize, usize, usize),
    /// `memcpy_dtoh`, into it.
    Fetch(usize, usize, usize),
    /// The host's own.
    Write(usize, u32),
    Look(usize),
    /// The array is dropped, and the other one's bytes, or these, are the next one's.
    Renew(usize, usize),
    /// `copy_from_peer`, from this array to one of the other device, perhaps made for it just now.
    Cross(usize, usize, usize, bool),
    /// A stream of this device's for an array of the other one: refused.
    Far(usize, usize, usize),
    /// `memcpy_dtoh`, and a look at it.
    Read(usize, usize, usize),
    /// The stream that the allocator does not know is dropped, with what is queued on it.
    End(usize),
    /// Another pooled slice in the place of the device's one, filled from this array on the array's stream.
    Pool(usize, usize),
    /// `memcpy_dtod` from it, or from a view of a view.
    FromPool(usize, usize, usize),
    /// `memcpy_dtod` into it.
    ToPool(usize, usize, usize),
    /// The first half of the slice is read, and the other half of the array written: on a stream of the other device, which is refused.
    FarPool(usize, usize, usize),
}

fn a_call() -> impl Strategy<Value = Call> {
    let place = || (0..2_usize, 0..ARRAYS, 0..STREAMS);
    let of = |call: fn(usize, usize, usize) -> Call| place().prop_map(move |(d, x, on)| call(d, x, on));
    prop_oneof![
        4 => (0..2_usize, 0..ARRAYS, 1..200_u8).prop_map(|(d, x, value)| Call::Fill(d, x, value)),
        2 => of(Call::Zero),
        3 => of(Call::Copy),
        3 => of(Call::Send),
        3 => of(Call::Fetch),
        2 => (0..2_usize, 1..200_u32).prop_map(|(d, value)| Call::Write(d, value)),
        1 => (0..2_usize).prop_map(Call::Look),
        4 => (0..2_usize, 0..ARRAYS).prop_map(|(d, x)| Call::Renew(d, x)),
        6 => (0..2_usize, 0..ARRAYS, 0..ARRAYS, any::<bool>()).prop_map(|(d, x, y, new)| Call::Cross(d, x, y, new)),
        1 => of(Call::Far),
        2 => of(Call::Read),
        1 => (0..2_usize).prop_map(Call::End),
        3 => (0..2_usize, 0..ARRAYS).prop_map(|(d, x)| Call::Pool(d, x)),
        5 => of(Call::FromPool),
        4 => of(Call::ToPool),
        1 => of(Call::FarPool),
    ]
}

/// What there is on a device.
struct Side {
    gpu: Allocator<Cuda>,
    contexts: [Arc<CudaContext>; 2],
    homes: [Stream<Cuda>; 2],
    streams: Vec<Arc<CudaStream>>,
    /// Each with what all its elements are.
    arrays: Vec<(Words, u32)>,
    host: (PinnedArray<u32, Cuda>, u32),
    pooled: Option<(PooledSlice<u32>, u32)>,
}

impl Side {
    fn new(device: u32) -> Side {
        let cuda = Cuda::new(device).expect("the device");
        // No room for more: the next one has to have the bytes of one that was freed.
        let config = Config::default()
            .reuse(Reuse::WithWaits)
            .growth(Growth::Exact)
            .limit(Limit::Bytes((ARRAYS as u64 + 2) * BYTES));
        let gpu = Allocator::new(cuda.clone(), config).expect("an allocator");
        let contexts = [(); 2].map(|()| CudaContext::new(device as usize).expect("a value of the context"));
        let theirs = contexts[0].new_stream().expect("a stream");
        let adopted = gpu.adopt(cuda.adopt(Arc::clone(&theirs)).expect("adopted")).expect("a pool");
        let homes = [gpu.stream().expect("a stream"), adopted];
        let streams = vec![
            homes[0].cudarc().expect("its alias"),
            theirs,
            contexts[0].default_stream(),
            contexts[1].default_stream(),
            contexts[1].new_stream().expect("a stream"),
        ];
        let host = (gpu.pinned_zeros(WORDS).expect("pinned"), 0);
        let arrays = homes.iter().map(|home| (gpu.zeros(WORDS, home).expect("there is room"), 0)).collect();
        Side { gpu, contexts, homes, streams, arrays, host, pooled: None }
    }

    fn renew(&mut self, x: usize) {
        let home = &self.homes[x];
        // Before the new one is made, which may have its bytes at once.
        self.arrays[x].0 = self.gpu.uninit(0, home).expect("nothing");
        let made = self.gpu.zeros(WORDS, home).or_else(|_| {
            self.gpu.synchronize()?;
            self.gpu.zeros(WORDS, home)
        });
        self.arrays[x] = (made.expect("there is room"), 0);
    }

    fn pool(&mut self, x: usize) {
        self.pooled = None;
        let home = &self.homes[x];
        let made = self.gpu.cuda_slice::<u32>(WORDS, home).or_else(|_| {
            self.gpu.synchronize()?;
            self.gpu.cuda_slice(WORDS, home)
        });
        let (mut slice, (from, value)) = (made.expect("there is room"), &self.arrays[x]);
        let theirs = home.cudarc().expect("its alias");
        theirs.memcpy_dtod(from, &mut slice.as_view_mut()).expect("queued");
        self.pooled = Some((slice, *value));
    }

    /// An array, and the other one to be written.
    fn two(&mut self, x: usize) -> (&(Words, u32), &mut (Words, u32)) {
        let (one, other) = self.arrays.split_at_mut(1);
        if x == 0 { (&one[0], &mut other[0]) } else { (&other[0], &mut one[0]) }
    }

    fn read(&self, x: usize, on: usize) {
        let (array, value) = &self.arrays[x];
        let mut found = vec![0; WORDS];
        self.streams[on].memcpy_dtoh(array, &mut found).expect("queued");
        self.streams[on].synchronize().expect("there");
        assert_eq!([found[0], found[WORDS / 2], found[WORDS - 1]], [*value; 3]);
    }
}

fn make(sides: &mut [Side; 2], call: Call) {
    match call {
        Call::Fill(d, x, value) => {
            let Side { homes, arrays, .. } = &mut sides[d];
            arrays[x].0.fill_bytes(value, &homes[x]).expect("queued");
            arrays[x].1 = u32::from_ne_bytes([value; 4]);
        }
        Call::Zero(d, x, on) => {
            let Side { streams, arrays, .. } = &mut sides[d];
            streams[on].memset_zeros(&mut arrays[x].0).expect("queued");
            arrays[x].1 = 0;
        }
        Call::Copy(d, x, on) => {
            let theirs = Arc::clone(&sides[d].streams[on]);
            let ((from, value), to) = sides[d].two(x);
            theirs.memcpy_dtod(from, &mut to.0).expect("queued");
            to.1 = *value;
        }
        Call::Send(d, x, on) => {
            let Side { streams, arrays, host, .. } = &mut sides[d];
            streams[on].memcpy_htod(&host.0, &mut arrays[x].0).expect("queued");
            arrays[x].1 = host.1;
        }
        Call::Fetch(d, x, on) => {
            let Side { streams, arrays, host, .. } = &mut sides[d];
            streams[on].memcpy_dtoh(&arrays[x].0, &mut host.0).expect("queued");
            host.1 = arrays[x].1;
        }
        Call::Write(d, value) => {
            sides[d].host.0.fill(value);
            sides[d].host.1 = value;
        }
        Call::Look(d) => {
            let (host, value) = &sides[d].host;
            assert_eq!([host[0], host[WORDS - 1]], [*value; 2]);
        }
        Call::Renew(d, x) => sides[d].renew(x),
        Call::Cross(d, x, y, new) => {
            if new {
                sides[1 - d].renew(y);
            }
            let [zero, one] = sides;
            let (from, to) = if d == 0 { (zero, one) } else { (one, zero) };
            let (source, value) = &from.arrays[x];
            to.arrays[y].0.copy_from_peer(source, &from.homes[x], &to.homes[y]).expect("queued");
            to.arrays[y].1 = *value;
        }
        Call::Far(d, x, on) => {
            let theirs = Arc::clone(&sides[d].streams[on]);
            theirs.memset_zeros(&mut sides[1 - d].arrays[x].0).expect_err("of another device");
            forget_errors(sides);
        }
        Call::Read(d, x, on) => sides[d].read(x, on),
        Call::End(d) => {
            let Side { contexts, streams, .. } = &mut sides[d];
            streams[STREAMS - 1] = contexts[1].new_stream().expect("a stream");
        }
        Call::Pool(d, x) => sides[d].pool(x),
        Call::FromPool(d, x, on) => {
            let Side { streams, arrays, pooled, .. } = &mut sides[d];
            if let Some((slice, value)) = pooled {
                let view = slice.slice(..);
                streams[on].memcpy_dtod(&view.slice(..), &mut arrays[x].0).expect("queued");
                arrays[x].1 = *value;
            }
        }
        Call::ToPool(d, x, on) => {
            let Side { streams, arrays, pooled, .. } = &mut sides[d];
            if let Some((slice, value)) = pooled {
                streams[on].memcpy_dtod(&arrays[x].0, &mut slice.as_view_mut()).expect("queued");
                *value = arrays[x].1;
            }
        }
        Call::FarPool(d, x, on) => {
            let far = Arc::clone(&sides[1 - d].streams[on]);
            let Side { arrays, pooled, .. } = &mut sides[d];
            if let Some((slice, _)) = pooled {
                let (first, second) = (..WORDS / 2, WORDS / 2..);
                far.memcpy_dtod(&slice.slice(first), &mut arrays[x].0.slice_mut(second.clone()))
                    .expect_err("of another device");
                far.memset_zeros(&mut slice.slice_mut(second)).expect_err("of another device");
                forget_errors(sides);
            }
        }
    }
}

fn forget_errors(sides: &[Side; 2]) {
    for context in sides.iter().flat_map(|side| &side.contexts) {
        let _ = context.check_err();
    }
    for home in sides.iter().flat_map(|side| &side.homes) {
        let _ = home.cudarc().map(|theirs| theirs.context().check_err());
    }
}

#[test]
fn programs_on_two_devices() {
    if rig().is_none_or(|rig| rig.fake.is_none()) {
        return;
    }
    search(50, &vec(a_call(), 1..50), |rig, calls| {
        let mut sides = [Side::new(0), Side::new(1)];
        for call in calls {
            make(&mut sides, call);
        }
        for (d, x) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            make(&mut sides, Call::Read(d, x, 0));
        }
        for d in 0..2 {
            make(&mut sides, Call::Look(d));
        }
        drop(sides);
        // What a stream of another device was refused is reported to the array's context, too.
        rig.check_no_leaks();
    });
}
