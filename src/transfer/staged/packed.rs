//! Many short copies to the device at once: packed into a few pinned slots, copied as a whole, and taken to their places by a kernel.
//!
//! A copy of its own costs the driver some microseconds whatever its length; a kernel that moves a thousand pieces costs as much as one that moves one.
//! Sources are divided into groups that fill a slot each, with a table of the places behind them. Slots are filled, ahead of the copies, as those of one long copy
//! are (`send`). It does not know what the arrays are used for.

use super::moves::Move;
use super::plan::Plan;
use super::{Incomplete, Remote, Slot, send};
use crate::allocator::Stream;
use crate::allocator::access::{Mark, Touch, operate};
use crate::array::{DeviceViewMut, Shape};
use crate::driver::{Argument, Called, Driver, Grid, KernelLaunch, KernelRange, Kernels, RangeUse};
use crate::error::Error;
use crate::kernel::UNPACK;
use crate::transfer::same_shape;
use crate::units::{Addr, AllocationId};
use bytemuck::Pod;
use core::fmt;
use core::ops::Range;

/// The longest piece that one block of the kernel moves.
const LONGEST: usize = 64 << 10;
/// The kernel moves so many bytes at a time, at multiples of this.
const STEP: usize = 16;
/// Bytes of the table for a piece: its place, where its bytes begin, and how many they are.
const ENTRY: usize = 3 * size_of::<u64>();
/// More blocks than this take several pieces each.
const MOST_BLOCKS: usize = 1056;

/// Many short copies of slices to device arrays, queued together.
///
/// ```
/// use millpond::{Allocator, Config, transfer::Uploads, units::GIB};
/// use millpond_sim::Sim;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let gpu = Allocator::new(Sim::new(GIB), Config::default())?;
/// let stream = gpu.stream()?;
/// let (mut x, mut y) = (gpu.zeros::<f32>(3, &stream)?, gpu.zeros::<u8>(2, &stream)?);
/// let mut uploads = Uploads::new();
/// uploads.add(x.slice_mut(1..), &[1.5, 2.5])?;
/// uploads.add(&mut y, &[7, 8])?;
/// uploads.queue(&stream)?; // the slices have been read
/// assert_eq!(x.to_vec(&stream)?, [0.0, 1.5, 2.5]);
/// assert_eq!(y.to_vec(&stream)?, [7, 8]);
/// # Ok(()) }
/// ```
#[must_use = "nothing is copied until they are queued"]
pub struct Uploads<'a, D: Driver> {
    copies: Vec<OneCopy<'a, D>>,
}

/// One copy: where to, and from what.
struct OneCopy<'a, D: Driver> {
    to: Addr,
    touch: Touch<'a, D>,
    allocation: Option<AllocationId>,
    source: &'a [u8],
}

impl<D: Driver> Default for Uploads<'_, D> {
    fn default() -> Self {
        Uploads::new()
    }
}
impl<D: Driver> fmt::Debug for Uploads<'_, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Uploads({})", self.copies.len())
    }
}

impl<'a, D: Driver> Uploads<'a, D> {
    /// None yet.
    pub fn new() -> Uploads<'a, D> {
        Uploads { copies: Vec::new() }
    }

    /// Adds a copy of a slice to an array, or to a part of one. Both stay borrowed until the copies are queued.
    ///
    /// # Errors
    /// [`Error::Mismatch`] unless there are as many elements.
    pub fn add<T: Pod>(
        &mut self,
        target: impl Into<DeviceViewMut<'a, T, D>>,
        source: &'a [T],
    ) -> Result<(), Error> {
        let target = target.into();
        let sides =
            (("the target", Shape::line(target.len())), ("the source, a slice,", Shape::line(source.len())));
        same_shape::<T>("add", sides.0, sides.1)?;
        let (to, allocation) = (target.address(), target.id());
        let source = bytemuck::cast_slice(source);
        self.copies.push(OneCopy { to, touch: target.into_touch(), allocation, source });
        Ok(())
    }

    /// How many copies there are.
    pub fn len(&self) -> usize {
        self.copies.len()
    }
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.copies.is_empty()
    }

    /// Queues them on `stream`, behind what they conflict with. The sources have been read when this returns; the host waits for slots, not for the copies.
    /// Memory on the device for what is packed is allocated on `stream`, and free again behind the kernel.
    ///
    /// # Errors
    /// No memory on the device, or none that is pinned; an array or a stream of another device, a capturing stream, the driver's:
    /// [`Allocator::uninit`](crate::Allocator::uninit), [`Allocator::alloc_pinned`](crate::Allocator::alloc_pinned), [`Stream::launch`]. In
    /// [`Incomplete::complete`] are copies, in the order in which they were added.
    #[track_caller]
    pub fn queue(self, stream: &Stream<D>) -> Result<(), Incomplete>
    where
        D: Kernels,
    {
        let _called = Called::<D>::here();
        let (threads, sizes) = stream.staging();
        let groups = groups(&self.copies, sizes.first);
        let bytes = self.copies.iter().map(|copy| copy.source.len()).sum();
        let plan = Plan::new(bytes, threads.count(), sizes);
        let slot = groups.iter().map(Group::bytes).max().unwrap_or(0);
        let mut complete = 0;
        let fill = |group: usize, slot| Pack { slot, group: &groups[group], copies: &self.copies };
        let queued = send(stream, &plan, (groups.len(), slot), fill, |at, slot| {
            let group = &groups[at];
            let packed = stream.allocator().uninit::<u8>(group.bytes(), stream)?;
            let to = Remote { addr: packed.address(), touch: packed.view().touch() };
            let sent = to.write(0, (slot, group.bytes()), stream)?;
            unpack(group, &self.copies, &packed.view().touch(), packed.address(), packed.id(), stream)?;
            // Those of the next group's first copy that lie in this one are not all.
            complete = groups.get(at + 1).map_or(self.copies.len(), |next| next.pieces[0].copy);
            Ok(sent)
        });
        queued.map_err(|error| Incomplete { complete, error })
    }
}

/// A part of a copy, at most [`LONGEST`], and where in its slot its bytes lie.
struct Piece {
    copy: usize,
    part: Range<usize>,
    at: usize,
}

/// What one slot takes.
#[derive(Default)]
struct Group {
    pieces: Vec<Piece>,
    /// Where the table begins, behind the bytes.
    table: usize,
}

impl Group {
    /// How long it is, with its table.
    fn bytes(&self) -> usize {
        self.table + self.pieces.len() * ENTRY
    }
}

/// Divides copies into groups of about so many bytes.
fn groups<D: Driver>(copies: &[OneCopy<'_, D>], about: usize) -> Vec<Group> {
    let longest = LONGEST.min(about).max(STEP);
    let mut groups = Vec::new();
    let mut group = Group::default();
    let mut end: usize = 0;
    for (copy, OneCopy { to, source, .. }) in copies.iter().enumerate() {
        let mut done = 0;
        while done < source.len() {
            if end + group.pieces.len() * ENTRY >= about && !group.pieces.is_empty() {
                groups.push(core::mem::take(&mut group));
                end = 0;
            }
            let len = longest.min(source.len() - done);
            // As far from a step's beginning as its place is.
            let phase = (to.0 as usize + done) % STEP;
            let at = end.next_multiple_of(STEP) + phase;
            group.pieces.push(Piece { copy, part: done..done + len, at });
            (end, done) = (at + len, done + len);
            group.table = end.next_multiple_of(STEP);
        }
    }
    if !group.pieces.is_empty() {
        groups.push(group);
    }
    groups
}

/// A slot to be filled with a group's bytes and table.
struct Pack<'s, 'a, D: Driver> {
    slot: Slot<D>,
    group: &'s Group,
    copies: &'s [OneCopy<'a, D>],
}

impl<D: Driver> Move for Pack<'_, '_, D> {
    type Slot = Slot<D>;
    fn run(mut self) -> Slot<D> {
        let Group { pieces, table } = self.group;
        let (bytes, entries) = self.slot.elements_mut().split_at_mut(*table);
        for (Piece { copy, part, at }, entry) in pieces.iter().zip(entries.chunks_exact_mut(ENTRY)) {
            let OneCopy { to, source, .. } = &self.copies[*copy];
            bytes[*at..at + part.len()].copy_from_slice(&source[part.clone()]);
            let words = [to.0 + part.start as u64, *at as u64, part.len() as u64];
            entry.copy_from_slice(bytemuck::cast_slice(&words.map(u64::to_le)));
        }
        self.slot
    }
}

/// Queues the kernel that takes a group's bytes to their places.
#[allow(unsafe_code, reason = "a built-in kernel")]
fn unpack<D: Driver + Kernels>(
    group: &Group,
    copies: &[OneCopy<'_, D>],
    packed: &Touch<'_, D>,
    at: Addr,
    allocation: Option<AllocationId>,
    stream: &Stream<D>,
) -> Result<(), Error> {
    let pieces = &group.pieces;
    let arguments: [Argument; 3] = [at.into(), group.table.into(), pieces.len().into()];
    let (mut touches, mut ranges) = (vec![*packed], Vec::with_capacity(pieces.len() + 1));
    let source = KernelRange::new(at, group.bytes() as u64, RangeUse::Read);
    ranges.push(source.allocation(allocation));
    let mut last = None;
    for Piece { copy, part, .. } in pieces {
        let OneCopy { to, touch, allocation, .. } = &copies[*copy];
        let place = Addr(to.0 + part.start as u64);
        let range = KernelRange::new(place, part.len() as u64, RangeUse::ReadWrite);
        ranges.push(range.allocation(*allocation));
        if last != Some(copy) {
            touches.push(*touch);
        }
        last = Some(copy);
    }
    let blocks = u32::try_from(pieces.len().min(MOST_BLOCKS)).unwrap_or(u32::MAX);
    let launch = KernelLaunch::new(&UNPACK, Grid::new(blocks, Grid::BLOCK), &arguments, &ranges);
    let queued = operate(stream, &touches, Mark::Shared, |driver, native| {
        // SAFETY: kernels/unpack.cu takes these. It reads the packed bytes, which the copy before it on this stream has filled with such a table, and
        // writes the pieces' places, which are borrowed exclusively. All lies in allocations that are reused only behind this use.
        unsafe { driver.launch_kernel(&launch, native) }
    });
    queued.map(drop)
}
