//! What the lines are made to do: lists of operations, put together before the clock starts.

use super::Line;
use millpond::trace::{Action, Log};

/// One operation: an allocation into a slot, or with no bytes the free of what is in it.
#[derive(Clone, Copy)]
pub struct Op {
    pub bytes: u64,
    pub slot: u32,
    pub stream: u32,
}

/// Operations over a number of slots; every slot is empty at the beginning and at the end.
pub struct Workload {
    pub ops: Vec<Op>,
    pub slots: usize,
    pub streams: usize,
}

impl Workload {
    /// The calls of a log. A slot serves many blocks, one after the other; what is alive at the end is freed.
    pub fn of_log(log: &Log) -> Workload {
        let blocks = log.calls.iter().map(|c| c.block().0 as usize + 1).max().unwrap_or(0);
        let mut slot_of = vec![u32::MAX; blocks];
        let mut vacant = Vec::new();
        let mut slots = 0;
        let mut ops = Vec::with_capacity(log.calls.len());
        for call in &log.calls {
            let block = call.block().0 as usize;
            let stream = u32::from(call.stream().0);
            match call.action() {
                Action::Alloc => {
                    let slot = vacant.pop().unwrap_or_else(|| {
                        slots += 1;
                        slots - 1
                    });
                    slot_of[block] = slot;
                    ops.push(Op { bytes: call.bytes().max(1), slot, stream });
                }
                Action::Free => {
                    let slot = std::mem::replace(&mut slot_of[block], u32::MAX);
                    vacant.push(slot);
                    ops.push(Op { bytes: 0, slot, stream });
                }
            }
        }
        let alive = slot_of.iter().filter(|&&slot| slot != u32::MAX);
        ops.extend(alive.map(|&slot| Op { bytes: 0, slot, stream: 0 }));
        Workload { ops, slots: slots as usize, streams: log.streams.len().max(1) }
    }

    /// Fills `live` slots with mixed sizes, and then frees and allocates `pairs` times at random.
    pub fn churn(live: usize, pairs: usize, seed: u64) -> (Workload, Workload) {
        let mut dice = Dice(seed);
        let fill = (0..live).map(|slot| Op { bytes: dice.size(), slot: slot as u32, stream: 0 }).collect();
        let mut ops = Vec::with_capacity(2 * pairs);
        for _ in 0..pairs {
            let slot = dice.below(live as u64) as u32;
            ops.push(Op { bytes: 0, slot, stream: 0 });
            ops.push(Op { bytes: dice.size(), slot, stream: 0 });
        }
        (Workload { ops: fill, slots: live, streams: 1 }, Workload { ops, slots: live, streams: 1 })
    }

    /// Runs it. Inlined into nothing, so that every line gets the same loop.
    #[inline(never)]
    pub fn run<L: Line>(&self, line: &L, slots: &mut [Option<L::Block>], stream: Option<usize>) {
        for op in &self.ops {
            let slot = &mut slots[op.slot as usize];
            if op.bytes > 0 {
                *slot = Some(line.alloc(op.bytes, stream.unwrap_or(op.stream as usize)));
            } else if let Some(block) = slot.take() {
                line.free(block);
            }
        }
    }
}

/// What is alive, by slot.
pub type Slots<L> = Vec<Option<<L as Line>::Block>>;

/// Empty slots.
pub fn slots<L: Line>(count: usize) -> Slots<L> {
    (0..count).map(|_| None).collect()
}

/// A small generator of random numbers (xorshift), the same everywhere.
pub struct Dice(pub u64);

impl Dice {
    pub fn roll(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
    pub fn below(&mut self, n: u64) -> u64 {
        self.roll() % n
    }
    /// Tensor-like: each power of two from 512 bytes to 1 MiB as often as the next, any size inside it.
    pub fn size(&mut self) -> u64 {
        let power = 512 << self.below(11);
        power + self.below(power)
    }
}
