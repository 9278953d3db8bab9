//! Calls in which things are made for one call alone: many streams, and a value of cudarc's whose owner has slices of cudarc's own. It knows no test.

use super::super::WORDS;
use super::super::rig::{PINNED, Words};
use super::{Outcome, World, described};
use cudarc::driver::CudaContext;
use millpond::cuda::Cuda;
use millpond::{Allocator, Config};

/// More than the streams of which an array keeps a use each.
const MANY: usize = 70;
/// Elements that each of them reads.
const FEW: usize = 16;

/// The driver calls by which a value's first slice is made, and how many are made of each.
pub const OF_A_FIRST_SLICE: [(&str, u64); 5] = [
    ("cuCtxSynchronize", 2),
    ("cuStreamCreate", 1),
    ("cuEventCreate", 3),
    ("cuEventRecord", 2),
    ("cuStreamWaitEvent", 1),
];

/// What many streams have read, in memory of another allocator's.
pub struct Crowd(Vec<Words>);

impl Crowd {
    fn new(cuda: &Cuda) -> Result<Crowd, String> {
        let gpu = described(Allocator::new(cuda.clone(), Config::default().pinned_limit(PINNED)))?;
        let home = described(gpu.stream())?;
        let arrays: Result<_, _> = (0..MANY).map(|_| gpu.uninit(FEW, &home)).collect();
        Ok(Crowd(described(arrays)?))
    }
}

impl World<'_> {
    /// Each stream reads a little of the array, and goes.
    pub(super) fn crowd(&mut self, x: usize) -> Outcome {
        if self.captures() {
            return Ok(());
        }
        let crowd = match &mut self.crowd {
            Some(crowd) => crowd,
            none => none.insert(Crowd::new(&self.rig.cuda)?),
        };
        let from = self.arrays[x].array.slice(..FEW);
        for to in &mut crowd.0 {
            // Held while the call is made: else it counts as a stream without references.
            let on = described(self.gpu.stream())?;
            described(described(on.cudarc())?.memcpy_dtod(&from, to))?;
        }
        Ok(())
    }

    /// A value of cudarc's in which there is no stream: its owner's own slice was written when the first pooled slice is made there, which fails at a
    /// driver call, or not if there are fewer. What the owner's first stream reads then is what was written.
    pub(super) fn owner(&mut self, which: usize, nth: u64) -> Outcome {
        let Some(fake) = self.rig.fake.as_ref().filter(|_| self.alone && !self.captures()) else {
            return Ok(());
        };
        let another = described(CudaContext::new(self.rig.ctx.ordinal()))?;
        let made = described(self.rig.ctx.new_stream())?;
        // SAFETY: `made` outlives everything that is done on it.
        #[allow(unsafe_code, reason = "a borrowed stream")]
        let borrowed = unsafe { another.wrap_borrowed_stream(made.cu_stream()) };
        let home = described(self.gpu.adopt_cudarc(borrowed))?;
        let owners = another.default_stream();
        let mut theirs = described(owners.alloc_zeros::<u32>(WORDS))?;
        described(owners.memcpy_htod(&vec![7; WORDS], &mut theirs))?;
        fake.fail_here(&[OF_A_FIRST_SLICE[which].0], nth, 999);
        drop(self.gpu.cuda_slice::<u32>(FEW, &home));
        fake.fail_here(&[], 0, 0);
        let mut back = vec![0; WORDS];
        let first = described(another.new_stream())?;
        described(first.memcpy_dtoh(&theirs, &mut back))?;
        described(first.synchronize())?;
        assert_eq!([back[0], back[WORDS - 1]], [7; 2], "the owner's first stream waits for what they queued");
        Ok(())
    }
}
