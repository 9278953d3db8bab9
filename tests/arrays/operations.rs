//! Random programs of arrays, views, copies, kernels, drops and forgotten tokens over several streams; and with guards, kept or
//! forgotten, shared sources, borrowed memory, external ranges and streams that end. Whatever streams they name, the outcome is that of running them one operation after the other; the order oracle is content, and the waits that were
//! inserted are counted. What holds on every device is in `testkit/src/suite/arrays.rs`.

#![allow(unreachable_pub, reason = "shared with tests/mutants.rs")]

use millpond::array::ExternalMemory;
use millpond::transfer::Part;
use millpond::units::{Addr, AllocationId, DeviceId, GIB};
use millpond::{
    Allocator, Config, DeviceArray, Download, DriverErrorKind, Growth, Limit, PinnedArray, Reuse, Stream,
    Upload, kernel, transfer,
};
use millpond_sim::{Call, Launch, Schedule, Sim};
use millpond_testkit::dice::Dice;
use millpond_testkit::effort::ordinary_or_full;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{RngAlgorithm, TestRng, TestRunner};
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

const STREAMS: usize = 3;
/// Elements of an array.
const LEN: usize = 512;
/// Streams of a crowd of readers.
const CROWD: usize = 10;

/// One step. Numbers choose among what there is at the time.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// A new array on a stream, of zeroes that another one may write.
    New {
        on: usize,
        by: usize,
    },
    Fill {
        what: usize,
        on: usize,
        part: (usize, usize),
        value: u8,
    },
    Upload {
        what: usize,
        on: usize,
        part: (usize, usize),
        value: u8,
    },
    /// From one array into another.
    Copy {
        what: usize,
        from: usize,
        on: usize,
        part: (usize, usize),
    },
    /// A built-in kernel on a part.
    Launch {
        what: usize,
        on: usize,
        part: (usize, usize),
        value: u8,
    },
    /// A kernel that picks elements of one array for another, by indices in an array of the stream's.
    Gather {
        what: usize,
        from: usize,
        on: usize,
        value: u8,
    },
    /// A kernel of the program's own on the whole of an array: declared the first time, and ordered by the program.
    Foreign {
        what: usize,
        on: usize,
        value: u8,
    },
    /// From one half of an array into the other.
    Fold {
        what: usize,
        on: usize,
    },
    Download {
        what: usize,
        on: usize,
        part: (usize, usize),
    },
    /// A token ends: waited for, dropped, forgotten.
    End {
        what: usize,
        how: usize,
    },
    Drop {
        what: usize,
    },
    Synchronize {
        on: usize,
    },
    /// The device runs something.
    Advance {
        on: usize,
    },
    Rare(Rare),
    Far(Far),
}

/// What is done beside another device, which has an allocator, streams and arrays of its own. Streams are chosen on both, the first device's first.
#[derive(Clone, Copy, Debug)]
enum Far {
    New {
        on: usize,
    },
    Fill {
        what: usize,
        on: usize,
        part: (usize, usize),
        value: u8,
    },
    /// From one device to the other, there or back; and so that a driver call of it fails or panics.
    Copy {
        what: usize,
        from: usize,
        on: (usize, usize),
        part: (usize, usize),
        back: bool,
        fault: usize,
    },
    /// A stream waits for one of the other device, for the program's own sake.
    Wait {
        on: (usize, usize),
        back: bool,
    },
    Download {
        what: usize,
        on: usize,
        part: (usize, usize),
    },
    Drop {
        what: usize,
    },
    /// A stream there ends, with whatever it holds, and another one takes its place.
    Close {
        on: usize,
    },
    Synchronize {
        on: usize,
    },
}

/// What a copy between devices may meet: the `n`th call of this kind fails, or the copy panics behind its work.
const PEER_FAULTS: [Option<(Call, u64)>; 6] = [
    Some((Call::StreamWaitEvent, 1)),
    Some((Call::StreamWaitEvent, 2)),
    Some((Call::StreamWaitEvent, 3)),
    Some((Call::EventRecord, 1)),
    Some((Call::EventRecord, 2)),
    None,
];

/// What is rarer in programs: uses that are open for a while, memory of others, streams that end.
#[derive(Clone, Copy, Debug)]
enum Rare {
    /// A kernel that other code queues while a guard is held, or after it was forgotten.
    Guard {
        what: usize,
        on: usize,
        part: (usize, usize),
        /// What it writes, or that it reads.
        value: Option<u8>,
        /// The stream is marked between the guard and the kernel, as any call may do.
        marked: bool,
        forget: bool,
    },
    /// One pinned source for two arrays, on two streams.
    Share { what: usize, other: usize, on: (usize, usize), value: u8 },
    /// Borrowed memory goes there and comes back, and the host waits.
    Scope { what: usize, on: usize, part: (usize, usize), value: u8 },
    /// An array becomes bytes, and an array again: of its own allocation, or in memory of which that is the owner.
    Reborn { what: usize, on: usize, external: bool },
    /// A stream ends, with whatever it holds, and another one takes its place.
    Close { on: usize },
    /// One half is written while a guard is held to write the other, on another stream perhaps.
    Halves { what: usize, on: (usize, usize), value: u8 },
    /// A fill that is queued, and whose call then panics.
    Panic { what: usize, on: usize, value: u8 },
    /// A fill whose marker the driver refuses.
    Unmarked { what: usize, on: usize, value: u8 },
    /// More streams than are looked at one by one read what a kernel of other code reads under a guard, which is then forgotten, or
    /// before its kernel.
    Crowd { what: usize, on: usize, forget: bool },
    /// As many declare a use and end, beside a declared stream that is marked before its kernel; in the upper half of `what` no reference
    /// to that one exists meanwhile.
    Users { what: usize, on: usize },
    /// A fill, while every query of an event is answered by an error.
    Unanswered { what: usize, on: usize, value: u8, other: u8 },
    /// A large source whose token is dropped at once, and then as much pinned memory for another owner.
    Large { on: usize, value: u8 },
    /// An operation of any kind, and one of the driver calls that it makes does its work and panics: the call of its own, or one of those
    /// about it. It may not come to that one.
    PanicIn { what: usize, from: usize, on: usize, kind: usize, call: usize, value: u8 },
}

/// The calls of the operations of [`Rare::PanicIn`], and those that an operation may make beside its own.
const OWN_CALLS: [Call; 5] =
    [Call::MemsetD8, Call::LaunchKernel, Call::MemcpyHtoD, Call::MemcpyDtoH, Call::MemcpyDtoD];
const CALLS_BESIDE: [Call; 3] = [Call::EventRecord, Call::StreamWaitEvent, Call::EventQuery];

fn rare() -> impl Strategy<Value = Step> {
    let part = prop_oneof![Just((0, LEN)), (0..LEN, 0..LEN).prop_map(|(a, b)| (a.min(b), a.max(b).max(1)))];
    let (what, on, value) = (0..16_usize, 0..STREAMS, any::<u8>());
    let rare = prop_oneof![
        4 => (what.clone(), on.clone(), part.clone(), any::<Option<u8>>(), any::<bool>(), 0..4_u8).prop_map(
            |(what, on, part, value, marked, forget)| Rare::Guard { what, on, part, value, marked, forget: forget == 0 }
        ),
        2 => (what.clone(), what.clone(), (on.clone(), on.clone()), value)
            .prop_map(|(what, other, on, value)| Rare::Share { what, other, on, value }),
        2 => (what.clone(), on.clone(), part, value)
            .prop_map(|(what, on, part, value)| Rare::Scope { what, on, part, value }),
        2 => (what.clone(), on.clone(), any::<bool>())
            .prop_map(|(what, on, external)| Rare::Reborn { what, on, external }),
        1 => on.clone().prop_map(|on| Rare::Close { on }),
        2 => (what.clone(), (on.clone(), on.clone()), any::<u8>())
            .prop_map(|(what, on, value)| Rare::Halves { what, on, value }),
        1 => (what.clone(), on.clone(), any::<u8>()).prop_map(|(what, on, value)| Rare::Panic { what, on, value }),
        2 => (what, on.clone(), any::<u8>(), any::<u8>())
            .prop_map(|(what, on, value, other)| Rare::Unanswered { what, on, value, other }),
        1 => (on, any::<u8>()).prop_map(|(on, value)| Rare::Large { on, value }),
    ];
    rare.prop_map(Step::Rare)
}

fn step(whole_only: bool) -> impl Strategy<Value = Step> {
    let part = if whole_only {
        Just((0, LEN)).boxed()
    } else {
        prop_oneof![Just((0, LEN)), (0..LEN, 0..LEN).prop_map(|(a, b)| (a.min(b), a.max(b))),].boxed()
    };
    let (what, on) = (0..16_usize, 0..STREAMS);
    let writes = prop_oneof![
        (what.clone(), on.clone(), part.clone(), any::<u8>())
            .prop_map(|(what, on, part, value)| Step::Fill { what, on, part, value }),
        (what.clone(), on.clone(), part.clone(), any::<u8>())
            .prop_map(|(what, on, part, value)| Step::Launch { what, on, part, value }),
        (what.clone(), what.clone(), on.clone(), any::<u8>())
            .prop_map(|(what, from, on, value)| Step::Gather { what, from, on, value }),
    ];
    // What waits for more than it touches.
    let coarse = prop_oneof![
        (what.clone(), on.clone()).prop_map(|(what, on)| Step::Fold { what, on }),
        (what.clone(), on.clone(), any::<u8>()).prop_map(|(what, on, value)| Step::Foreign {
            what,
            on,
            value
        }),
    ];
    prop_oneof![
        3 => (on.clone(), on.clone()).prop_map(move |(on, by)| Step::New { on, by: if whole_only { on } else { by } }),
        9 => writes,
        3 => (what.clone(), on.clone(), part.clone(), any::<u8>())
            .prop_map(|(what, on, part, value)| Step::Upload { what, on, part, value }),
        3 => (what.clone(), what.clone(), on.clone(), part.clone())
            .prop_map(|(what, from, on, part)| Step::Copy { what, from, on, part }),
        2 * u32::from(!whole_only) => coarse,
        3 => (what.clone(), on.clone(), part).prop_map(|(what, on, part)| Step::Download { what, on, part }),
        3 => (what.clone(), 0..8_usize).prop_map(|(what, how)| Step::End { what, how }),
        2 => what.prop_map(|what| Step::Drop { what }),
        1 => on.clone().prop_map(|on| Step::Synchronize { on }),
        2 => on.prop_map(|on| Step::Advance { on }),
    ]
}

/// Beside another device.
fn far_step() -> impl Strategy<Value = Step> {
    let part = prop_oneof![Just((0, LEN)), (0..LEN, 0..LEN).prop_map(|(a, b)| (a.min(b), a.max(b)))];
    let (what, on) = (0..16_usize, 0..STREAMS);
    let both = (on.clone(), on.clone());
    let far = prop_oneof![
        2 => on.clone().prop_map(|on| Far::New { on }),
        3 => (what.clone(), on.clone(), part.clone(), any::<u8>())
            .prop_map(|(what, on, part, value)| Far::Fill { what, on, part, value }),
        6 => (what.clone(), what.clone(), both.clone(), part.clone(), any::<bool>(), 0..4 * PEER_FAULTS.len())
            .prop_map(|(what, from, on, part, back, fault)| Far::Copy { what, from, on, part, back, fault }),
        1 => (both, any::<bool>()).prop_map(|(on, back)| Far::Wait { on, back }),
        2 => (what.clone(), on.clone(), part).prop_map(|(what, on, part)| Far::Download { what, on, part }),
        1 => what.prop_map(|what| Far::Drop { what }),
        1 => prop_oneof![
            on.clone().prop_map(|on| Far::Close { on }),
            on.prop_map(|on| Far::Synchronize { on }),
        ],
    ];
    prop_oneof![1 => crowded_step(), 1 => far.prop_map(Step::Far)]
}

/// Of both kinds.
fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![3 => step(false), 1 => rare()]
}

/// Of these and three that are rarer still: markers that are refused, crowds, and crowds that declare their use.
fn crowded_step() -> impl Strategy<Value = Step> {
    let (what, on) = (0..16_usize, 0..STREAMS);
    let more = prop_oneof![
        2 => (what.clone(), on.clone(), any::<u8>())
            .prop_map(|(what, on, value)| Rare::Unmarked { what, on, value }),
        1 => (what.clone(), on.clone(), any::<bool>())
            .prop_map(|(what, on, forget)| Rare::Crowd { what, on, forget }),
        1 => (what, on).prop_map(|(what, on)| Rare::Users { what, on }),
    ];
    prop_oneof![12 => any_step(), 1 => more.prop_map(Step::Rare)]
}

/// Of these and operations that panic in whichever call.
fn panicking_step() -> impl Strategy<Value = Step> {
    let (what, on) = (0..16_usize, 0..STREAMS);
    let panics = (what.clone(), what, on, 0..OWN_CALLS.len(), 0..2 * CALLS_BESIDE.len(), any::<u8>())
        .prop_map(|(what, from, on, kind, call, value)| {
            Step::Rare(Rare::PanicIn { what, from, on, kind, call, value })
        });
    prop_oneof![8 => any_step(), 2 => panics]
}

type Pinned = PinnedArray<u8, Sim>;

/// A token, and what it must bring.
enum Token {
    Up(Upload<Part<Pinned>, Sim>, u8),
    Shared(Upload<Arc<Pinned>, Sim>, u8),
    Down(Download<u8, Sim>, Vec<u8>),
}

impl Token {
    fn check(up: &[u8], value: u8) {
        assert!(up.iter().all(|&v| v == value), "the source is as it was");
    }
    fn end(self, how: usize, forgotten: &mut Vec<ManuallyDrop<Token>>) {
        match (how, self) {
            (0..3, Token::Up(t, value)) => Token::check(&t.wait().unwrap(), value),
            (0..3, Token::Shared(t, value)) => Token::check(&t.wait().unwrap(), value),
            (0..3, Token::Down(t, expected)) => assert!(t.wait().unwrap()[..] == expected[..]),
            (3, Token::Up(t, value)) => {
                if let Ok(source) = t.try_into_inner() {
                    Token::check(&source, value);
                }
            }
            (3, Token::Shared(t, value)) => {
                if let Ok(source) = t.try_into_inner() {
                    Token::check(&source, value);
                }
            }
            (3, Token::Down(t, expected)) => {
                if let Ok(data) = t.try_into_inner() {
                    assert!(data[..] == expected[..]);
                }
            }
            // Forgotten while the program runs; found again at its end, so that leaks can be distinguished from losses.
            (4, token) => forgotten.push(ManuallyDrop::new(token)),
            (_, token) => drop(token),
        }
    }
}

/// Pinned memory that the host has just written.
fn filled(gpu: &Allocator<Sim>, len: usize, value: u8) -> Pinned {
    let mut host = gpu.pinned_uninit::<u8>(len).unwrap();
    host.fill(value);
    host
}

/// A copy of a large source whose token is dropped while it is under way.
fn large(gpu: &Allocator<Sim>, stream: &Stream<Sim>, value: u8) {
    // By an allocator of its own: that of the programs' arrays is kept short of memory.
    const LARGE: usize = (4 << 20) + 512;
    let roomy = Allocator::new(gpu.driver().clone(), Config::default()).unwrap();
    let s = roomy.adopt(stream.native().clone()).unwrap();
    let mut x = roomy.uninit(LARGE, &s).unwrap();
    drop(x.copy_from(filled(&roomy, LARGE, value), &s).unwrap());
    let other = filled(&roomy, LARGE, !value);
    assert!(x.slice(LEN..2 * LEN).to_vec(&s).unwrap().iter().all(|&v| v == value));
    drop(other);
}

/// A kernel of the program's own, ordered by it, and declared if it is the first on this stream: whether it was.
fn launch_of_others(
    sim: &Sim,
    x: &DeviceArray<u8, Sim>,
    declared: &mut Vec<usize>,
    on: usize,
    stream: &Stream<Sim>,
    value: u8,
) -> bool {
    let first = !declared.contains(&on);
    if first {
        x.record_use(stream).unwrap();
        declared.push(on);
    }
    x.wait_on(stream).unwrap();
    let (at, bytes, word) = (x.address(), x.size_bytes(), u64::from_ne_bytes([value; 8]));
    let theirs = of(Launch::new("theirs").writes(at, bytes), x.id());
    sim.launch(stream.native(), theirs.body(move |m| m.fill(at, bytes, word))).unwrap();
    first
}

/// A launch that says whose bytes it touches, if they are an allocation's.
fn of(launch: Launch, id: Option<AllocationId>) -> Launch {
    if let Some(id) = id { launch.tag(id) } else { launch }
}

/// The guard, unless it is forgotten.
fn kept<G>(guard: G, forget: bool) -> Option<G> {
    let guard = ManuallyDrop::new(guard);
    (!forget).then(|| ManuallyDrop::into_inner(guard))
}

/// A kernel of other code between a guard's two ends; or after its only one.
fn guarded(
    sim: &Sim,
    x: &mut DeviceArray<u8, Sim>,
    stream: &Stream<Sim>,
    (a, b): (usize, usize),
    value: Option<u8>,
    (marked, forget): (bool, bool),
) {
    let mark = || drop(marked.then(|| stream.record().unwrap()));
    if let Some(value) = value {
        let (bytes, whole) = ((b - a) as u64, (a, b) == (0, LEN));
        // A launch without a range has no bytes.
        let id = x.id().filter(|_| bytes > 0);
        let target = if whole { x.view_mut() } else { x.slice_mut(a..b) };
        let guard = target.write_on(stream).unwrap();
        let at = guard.address();
        let theirs = of(Launch::new("guarded").writes(at, bytes), id);
        let theirs = theirs.body(move |m| (0..bytes).for_each(|i| m.write(Addr(at.0 + i), &[value])));
        let guard = kept(guard, forget);
        mark();
        sim.launch(stream.native(), theirs).unwrap();
        drop(guard);
    } else {
        guarded_read(sim, x, stream, (a, b), forget, mark);
    }
}

/// The same that reads, with something else between the guard and the kernel.
fn guarded_read(
    sim: &Sim,
    x: &DeviceArray<u8, Sim>,
    stream: &Stream<Sim>,
    (a, b): (usize, usize),
    forget: bool,
    between: impl FnOnce(),
) {
    let (view, bytes) = (x.slice(a..b), (b - a) as u64);
    let guard = view.read_on(stream).unwrap();
    // A launch without a range has no bytes.
    let theirs = of(Launch::new("guarded").reads(guard.address(), bytes), x.id().filter(|_| bytes > 0));
    let guard = kept(guard, forget);
    between();
    sim.launch(stream.native(), theirs).unwrap();
    drop(guard);
}

/// Streams that end read an array under a guard each, beside a guard whose stream is marked before its kernel.
fn crowded(sim: &Sim, gpu: &Allocator<Sim>, x: &DeviceArray<u8, Sim>, stream: &Stream<Sim>, forget: bool) {
    guarded_read(sim, x, stream, (0, LEN), forget, || {
        for _ in 0..CROWD {
            guarded_read(sim, x, &gpu.stream().unwrap(), (0, LEN), false, || ());
        }
        drop(stream.record().unwrap());
    });
}

/// Streams that end are declared as users of an array, beside one that is declared too, and marked before its kernel reads. In between no thread may
/// have that one, until it is had again from what was allocated on it. Something is declared then.
fn declared_crowd(
    sim: &Sim,
    gpu: &Allocator<Sim>,
    x: &DeviceArray<u8, Sim>,
    declared: &mut Vec<usize>,
    (on, streams): (usize, &mut [Stream<Sim>]),
    gone: bool,
) -> bool {
    let id = streams[on].id();
    if !declared.contains(&on) {
        x.record_use(&streams[on]).unwrap();
        declared.push(on);
    }
    x.wait_on(&streams[on]).unwrap();
    // Where there is room for it.
    let stays = if gone { gpu.alloc(1, &streams[on]).ok() } else { None };
    if stays.is_some() {
        streams[on] = streams[(on + 1) % STREAMS].clone();
    }
    for _ in 0..CROWD {
        x.record_use(&gpu.stream().unwrap()).unwrap();
    }
    if stays.is_some() {
        streams[on] = gpu.stream_of(id).unwrap();
    }
    let stream = &streams[on];
    drop(stream.record().unwrap());
    let theirs = of(Launch::new("theirs").reads(x.address(), x.size_bytes()), x.id());
    sim.launch(stream.native(), theirs).unwrap();
    true
}

/// An array as bytes, and again as an array: one of ours, or one in memory that its allocation keeps alive.
#[allow(
    unsafe_code,
    reason = "the range lives as long as the allocation, which owns it and is used by no other code"
)]
fn reborn(
    x: DeviceArray<u8, Sim>,
    (gpu, streams): (&Allocator<Sim>, &[Stream<Sim>]),
    stream: &Stream<Sim>,
    external: bool,
) -> DeviceArray<u8, Sim> {
    // What comes before an external range's first stream is the program's to order: that the bytes are its own, and what
    // others did with them.
    match streams.iter().find(|s| Some(s.id()) == x.stream_id()) {
        Some(home) => stream.wait_stream(home).unwrap(),
        None => gpu.synchronize().unwrap(),
    }
    x.wait_on(stream).unwrap();
    match x.into_allocation() {
        Err(external) => external,
        Ok(block) if external => {
            let memory = ExternalMemory { address: block.address(), bytes: LEN as u64, device: DeviceId(0) };
            // SAFETY: as said.
            let made = unsafe { DeviceArray::from_external(memory, LEN, block, stream) };
            made.map_err(|(_, e)| e).unwrap()
        }
        Ok(block) => DeviceArray::from_allocation(block, LEN).map_err(|(_, e)| e).unwrap(),
    }
}

/// What another device has.
struct Neighbour {
    sim: Sim,
    gpu: Allocator<Sim>,
    streams: Vec<Stream<Sim>>,
    arrays: Vec<(DeviceArray<u8, Sim>, Vec<u8>)>,
    /// Copies between the devices that were made; and of those that failed or panicked how many were not queued, and how many were.
    copied: u64,
    failed: [u64; 2],
}

/// The arrays of a program, each beside what it holds if everything is done in order.
struct Machine {
    sim: Sim,
    gpu: Allocator<Sim>,
    streams: Vec<Stream<Sim>>,
    /// Another allocator, perhaps, which has every other array, on the same streams; each operation names those of the first.
    other: Option<(Allocator<Sim>, Vec<Stream<Sim>>)>,
    neighbour: Option<Neighbour>,
    made: usize,
    /// How often operands of both met, and how often a drawn call panicked, by whether the operation was queued by then.
    met: u64,
    panicked: [u64; 2],
    /// One a stream, as long as an array has elements.
    indices: Vec<DeviceArray<u32, Sim>>,
    arrays: Vec<(DeviceArray<u8, Sim>, Vec<u8>)>,
    /// The streams that each was declared to be used on.
    declared: Vec<Vec<usize>>,
    /// Some was, at some time.
    any_declared: bool,
    /// How many arrays were first written by another stream.
    born_elsewhere: u64,
    /// How many external ranges there were: each keeps bytes longer than its array lives, so they are few.
    brought_in: usize,
    tokens: Vec<Token>,
    forgotten: Vec<ManuallyDrop<Token>>,
}

impl Machine {
    fn new(schedule: Schedule) -> Machine {
        Machine::on(Sim::new(GIB).schedule(schedule))
    }

    fn on(sim: Sim) -> Machine {
        // Room for few arrays, so that bytes are used again soon, and by other streams.
        let config = Config::default()
            .reuse(Reuse::WithWaits)
            .growth(Growth::Exact)
            .limit(Limit::Bytes((24 + 4 * STREAMS as u64) * LEN as u64));
        let gpu = Allocator::new(sim.clone(), config).unwrap();
        let streams: Vec<_> = (0..STREAMS).map(|_| gpu.stream().unwrap()).collect();
        let indices = streams.iter().map(|s| gpu.uninit(LEN, s).unwrap()).collect();
        let (arrays, declared) = (Vec::new(), Vec::new());
        Machine {
            sim,
            gpu,
            streams,
            other: None,
            neighbour: None,
            made: 0,
            met: 0,
            panicked: [0; 2],
            indices,
            arrays,
            declared,
            any_declared: false,
            born_elsewhere: 0,
            brought_in: 0,
            tokens: Vec::new(),
            forgotten: Vec::new(),
        }
    }

    /// Of two allocators.
    fn of_two(schedule: Schedule) -> Machine {
        let mut machine = Machine::new(schedule);
        let config = Config::default()
            .reuse(Reuse::WithWaits)
            .growth(Growth::Exact)
            .limit(Limit::Bytes(16 * LEN as u64));
        let other = Allocator::new(machine.sim.clone(), config).unwrap();
        let adopted = machine.streams.iter().map(|s| other.adopt(s.native().clone()).unwrap()).collect();
        machine.other = Some((other, adopted));
        machine
    }

    /// With another device beside it.
    fn of_devices(schedule: Schedule) -> Machine {
        let mut sims = Sim::devices(2, GIB);
        sims[0].set_schedule(schedule);
        let (there, here) = (sims.pop().expect("two"), sims.pop().expect("two"));
        let mut machine = Machine::on(here);
        let config = Config::default()
            .reuse(Reuse::WithWaits)
            .growth(Growth::Exact)
            .limit(Limit::Bytes(16 * LEN as u64));
        let gpu = Allocator::new(there.clone(), config).unwrap();
        let streams = (0..STREAMS).map(|_| gpu.stream().unwrap()).collect();
        let arrays = Vec::new();
        machine.neighbour = Some(Neighbour { sim: there, gpu, streams, arrays, copied: 0, failed: [0; 2] });
        machine
    }

    #[allow(clippy::too_many_lines, reason = "some lines for each")]
    fn step(&mut self, step: Step) {
        if let (Step::Copy { what, from, .. } | Step::Gather { what, from, .. }, Some((other, _))) =
            (step, &self.other)
            && let n @ 1.. = self.arrays.len()
        {
            let of_other = |at: usize| {
                self.arrays[at % n].0.id().is_some_and(|id| other.live().iter().any(|l| l.id == id))
            };
            self.met += u64::from(of_other(what) != of_other(from));
        }
        let Machine {
            sim,
            gpu,
            streams,
            indices,
            arrays,
            declared,
            any_declared,
            tokens,
            forgotten,
            born_elsewhere,
            other,
            made,
            ..
        } = self;
        let n = arrays.len();
        match step {
            Step::New { on, by } => {
                if n < 8 {
                    *made += 1;
                    let mut x = match other {
                        Some((other, adopted)) if made.is_multiple_of(2) => {
                            other.uninit(LEN, &adopted[on]).unwrap()
                        }
                        _ => gpu.uninit(LEN, &streams[on]).unwrap(),
                    };
                    kernel::fill(&mut x, 0, &streams[by]).unwrap();
                    *born_elsewhere += u64::from(on != by);
                    arrays.push((x, vec![0; LEN]));
                    declared.push(Vec::new());
                }
            }
            Step::End { what, how } => {
                if !tokens.is_empty() {
                    tokens.swap_remove(what % tokens.len()).end(how, forgotten);
                }
            }
            Step::Synchronize { on } => streams[on].synchronize().unwrap(),
            Step::Advance { on } => drop(sim.advance(streams[on].native()).unwrap()),
            Step::Rare(rare) => self.rare(rare),
            Step::Far(far) => self.far(far),
            _ if n == 0 => {}
            Step::Fill { what, on, part: (a, b), value } => {
                let (x, model) = &mut arrays[what % n];
                if (a, b) == (0, LEN) {
                    x.fill_bytes(value, &streams[on]).unwrap();
                } else {
                    x.slice_mut(a..b).fill_bytes(value, &streams[on]).unwrap();
                }
                model[a..b].fill(value);
            }
            Step::Upload { what, on, part: (a, b), value } => {
                let (x, model) = &mut arrays[what % n];
                let mut host = gpu.pinned_uninit::<u8>(b - a).unwrap();
                host.fill(value);
                let mut target = if (a, b) == (0, LEN) { x.view_mut() } else { x.slice_mut(a..b) };
                tokens.push(Token::Up(target.copy_from(Part::new(host, ..), &streams[on]).unwrap(), value));
                model[a..b].fill(value);
            }
            Step::Copy { what, from, on, part: (a, b) } => {
                let (what, from) = (what % n, from % n);
                if let Ok([(x, to), (y, from)]) = arrays.get_disjoint_mut([what, from]) {
                    let mut target = if (a, b) == (0, LEN) { x.view_mut() } else { x.slice_mut(a..b) };
                    target.copy_from_device(y.slice(a..b), &streams[on]).unwrap();
                    to[a..b].copy_from_slice(&from[a..b]);
                }
            }
            Step::Launch { what, on, part: (a, b), value } => {
                let (x, model) = &mut arrays[what % n];
                let mut target = if (a, b) == (0, LEN) { x.view_mut() } else { x.slice_mut(a..b) };
                kernel::fill(&mut target, value, &streams[on]).unwrap();
                model[a..b].fill(value);
            }
            Step::Gather { what, from, on, value } => {
                let (what, from) = (what % n, from % n);
                if let Ok([(x, to), (y, from)]) = arrays.get_disjoint_mut([what, from]) {
                    // Every element but a few, beginning somewhere.
                    let at = &mut indices[on];
                    kernel::iota(at, value.into(), 1, &streams[on]).unwrap();
                    kernel::gather(&*y, &*at, x, &streams[on]).unwrap();
                    let picked = LEN - usize::from(value);
                    to[..picked].copy_from_slice(&from[LEN - picked..]);
                }
            }
            Step::Foreign { what, on, value } => {
                let (x, model) = &mut arrays[what % n];
                *any_declared |= launch_of_others(sim, x, &mut declared[what % n], on, &streams[on], value);
                model.fill(value);
            }
            Step::Fold { what, on } => {
                let (x, model) = &mut arrays[what % n];
                let (mut low, high) = x.split_at_mut(LEN / 2);
                low.copy_from_device(high.view(), &streams[on]).unwrap();
                model.copy_within(LEN / 2.., 0);
            }
            Step::Download { what, on, part: (a, b) } => {
                let (x, model) = &arrays[what % n];
                let down = x.slice(a..b).to_pinned(&streams[on]).unwrap();
                tokens.push(Token::Down(down, model[a..b].to_vec()));
            }
            Step::Drop { what } => {
                declared.swap_remove(what % n);
                drop(arrays.swap_remove(what % n));
            }
        }
    }

    /// # Panics
    /// Without another device.
    #[allow(clippy::many_single_char_names, reason = "x and y are arrays, a and b the ends of a part")]
    fn far(&mut self, step: Far) {
        let Machine { sim, streams, arrays, any_declared, tokens, .. } = self;
        let there = self.neighbour.as_mut().expect("another device");
        // What one device's allocator learns of the other's streams it does not know.
        *any_declared = true;
        let n = there.arrays.len();
        match step {
            Far::New { on } => {
                if n < 6 {
                    let mut x = there.gpu.uninit(LEN, &there.streams[on]).unwrap();
                    x.fill_bytes(0, &there.streams[on]).unwrap();
                    there.arrays.push((x, vec![0; LEN]));
                }
            }
            Far::Wait { on, back } => {
                let (one, other) = (&streams[on.0], &there.streams[on.1]);
                if back { one.wait_stream(other).unwrap() } else { other.wait_stream(one).unwrap() }
            }
            Far::Close { on } => there.streams[on] = there.gpu.stream().unwrap(),
            Far::Synchronize { on } => there.streams[on].synchronize().unwrap(),
            _ if n == 0 => {}
            Far::Fill { what, on, part: (a, b), value } => {
                let (x, model) = &mut there.arrays[what % n];
                let mut target = if (a, b) == (0, LEN) { x.view_mut() } else { x.slice_mut(a..b) };
                target.fill_bytes(value, &there.streams[on]).unwrap();
                model[a..b].fill(value);
            }
            Far::Download { what, on, part: (a, b) } => {
                let (x, model) = &there.arrays[what % n];
                let down = x.slice(a..b).to_pinned(&there.streams[on]).unwrap();
                tokens.push(Token::Down(down, model[a..b].to_vec()));
            }
            Far::Drop { what } => drop(there.arrays.swap_remove(what % n)),
            Far::Copy { .. } if arrays.is_empty() => {}
            Far::Copy { what, from, on: (here, far), part: (a, b), back, fault } => {
                let m = arrays.len();
                let ((x, to), (y, source), from_stream, stream) = if back {
                    (&mut arrays[what % m], &mut there.arrays[from % n], &there.streams[far], &streams[here])
                } else {
                    (&mut there.arrays[what % n], &mut arrays[from % m], &streams[here], &there.streams[far])
                };
                match PEER_FAULTS.get(fault) {
                    Some(&Some((call, nth))) => sim.fail(call, nth, DriverErrorKind::Other),
                    Some(None) => sim.panic_behind(Call::MemcpyPeer, 1),
                    None => {}
                }
                let made = || [&*sim, &there.sim].map(|sim| sim.ledger().calls_of(Call::MemcpyPeer));
                let before = made();
                let mut target = if (a, b) == (0, LEN) { x.view_mut() } else { x.slice_mut(a..b) };
                let copied = catch_unwind(AssertUnwindSafe(|| {
                    target.copy_from_peer(y.slice(a..b), from_stream, stream)
                }));
                sim.clear_faults();
                let queued = made() != before;
                if matches!(copied, Ok(Ok(()))) {
                    there.copied += u64::from(queued);
                } else {
                    assert!(fault < PEER_FAULTS.len(), "nothing was planted: {copied:?}");
                    there.failed[usize::from(queued)] += 1;
                }
                if queued {
                    to[a..b].copy_from_slice(&source[a..b]);
                }
            }
        }
    }

    #[allow(clippy::too_many_lines, reason = "some lines for each")]
    fn rare(&mut self, step: Rare) {
        let Machine { sim, gpu, streams, arrays, declared, any_declared, tokens, brought_in, .. } = self;
        let n = arrays.len();
        match step {
            Rare::Close { on } => {
                streams[on] = gpu.stream().unwrap();
                if let Some((other, adopted)) = &mut self.other {
                    adopted[on] = other.adopt(streams[on].native().clone()).unwrap();
                }
                for on_it in declared.iter_mut() {
                    on_it.retain(|&stream| stream != on);
                }
                *any_declared = true;
            }
            Rare::Large { on, value } => {
                large(gpu, &streams[on], value);
                // The end of its allocator frees plain memory, for which the driver waits for the whole device: then all
                // streams come after everything, and the library does not know.
                *any_declared = true;
            }
            _ if n == 0 => {}
            Rare::Halves { what, on, value } => {
                let (x, model) = &mut arrays[what % n];
                let (mut low, high) = x.split_at_mut(LEN / 2);
                let guard = high.write_on(&streams[on.0]).unwrap();
                low.fill_bytes(value, &streams[on.1]).unwrap();
                drop(guard);
                model[..LEN / 2].fill(value);
                *any_declared = true;
            }
            Rare::Panic { what, on, value } => {
                let (x, model) = &mut arrays[what % n];
                sim.panic_behind(Call::MemsetD8, 1);
                let filled = catch_unwind(AssertUnwindSafe(|| x.fill_bytes(value, &streams[on])));
                assert!(filled.is_err(), "the call panics: {filled:?}");
                model.fill(value);
                // Its end is stamped, as no marker could be made.
                *any_declared = true;
            }
            Rare::PanicIn { what, from, on, kind, call, value } => {
                let ([what, from], own) = ([what % n, from % n], OWN_CALLS[kind]);
                // Half of them in their own call.
                let call = CALLS_BESIDE.get(call).copied().unwrap_or(own);
                let s = &streams[on];
                let source = filled(gpu, LEN, value);
                let before = sim.ledger().calls_of(own);
                sim.panic_behind(call, 1);
                let ran = catch_unwind(AssertUnwindSafe(|| match own {
                    Call::MemsetD8 => arrays[what].0.fill_bytes(value, s).unwrap(),
                    Call::LaunchKernel => kernel::fill(&mut arrays[what].0, value, s).unwrap(),
                    Call::MemcpyHtoD => {
                        let up = arrays[what].0.copy_from(Part::new(source, ..), s).unwrap();
                        tokens.push(Token::Up(up, value));
                    }
                    Call::MemcpyDtoH => {
                        let down = arrays[what].0.to_pinned(s).unwrap();
                        tokens.push(Token::Down(down, arrays[what].1.clone()));
                    }
                    _ => {
                        if let Ok([(x, _), (y, _)]) = arrays.get_disjoint_mut([what, from]) {
                            x.copy_from_device(&*y, s).unwrap();
                        }
                    }
                }));
                sim.clear_faults();
                let queued = sim.ledger().calls_of(own) > before;
                if ran.is_err() {
                    assert!(queued || call != own, "the call of its own panicked behind its work");
                    self.panicked[usize::from(queued)] += 1;
                }
                if queued {
                    match own {
                        Call::MemcpyDtoH => {}
                        Call::MemcpyDtoD => {
                            let copied = arrays[from].1.clone();
                            arrays[what].1 = copied;
                        }
                        _ => arrays[what].1.fill(value),
                    }
                }
                // Its end is stamped, as no marker could be made.
                *any_declared = true;
            }
            Rare::Unmarked { what, on, value } => {
                let (x, model) = &mut arrays[what % n];
                sim.fail(Call::EventRecord, 1, DriverErrorKind::Other);
                // If it is the marker of a stream to wait for, nothing was queued.
                if x.fill_bytes(value, &streams[on]).is_ok() {
                    model.fill(value);
                }
                sim.clear_faults();
                *any_declared = true;
            }
            Rare::Crowd { what, on, forget } => {
                *any_declared = true;
                crowded(sim, gpu, &arrays[what % n].0, &streams[on], forget);
            }
            Rare::Users { what, on } => {
                let (x, users) = (&arrays[what % n].0, &mut declared[what % n]);
                *any_declared |= declared_crowd(sim, gpu, x, users, (on, streams), what >= 8);
            }
            Rare::Unanswered { what, on, value, other } => {
                let (x, model) = &mut arrays[what % n];
                // Kept for as long as the copy is not known to be done.
                let source = Arc::new(filled(gpu, LEN, other));
                drop(x.copy_from(source, &streams[on]).unwrap());
                model.fill(other);
                sim.fail(Call::EventQuery, 1, DriverErrorKind::Other);
                let (y, model) = &mut arrays[(what + 1) % n];
                y.fill_bytes(value, &streams[on]).unwrap();
                model.fill(value);
                sim.clear_faults();
                // Another owner's, which may have the source's memory if it is not kept.
                drop(filled(gpu, LEN, value));
            }
            Rare::Guard { what, on, part: (a, b), value, marked, forget } => {
                let (x, model) = &mut arrays[what % n];
                guarded(sim, x, &streams[on], (a, b), value, (marked, forget));
                if let Some(value) = value {
                    model[a..b].fill(value);
                }
                *any_declared = true;
            }
            Rare::Share { what, other, on, value } => {
                let mut host = gpu.pinned_uninit::<u8>(LEN).unwrap();
                host.fill(value);
                let host = Arc::new(host);
                for (what, on) in [(what, on.0), (other, on.1)] {
                    let (x, model) = &mut arrays[what % n];
                    tokens.push(Token::Shared(x.copy_from(Arc::clone(&host), &streams[on]).unwrap(), value));
                    model.fill(value);
                }
            }
            Rare::Scope { what, on, part: (a, b), value } => {
                let (x, model) = &mut arrays[what % n];
                let mut from = gpu.pinned_uninit::<u8>(b - a).unwrap();
                from.fill(value);
                model[a..b].fill(value);
                let mut to = gpu.pinned_uninit::<u8>(LEN).unwrap();
                let copied = transfer::scope(&streams[on], |copies| {
                    copies.upload(&mut x.slice_mut(a..b), from.view())?;
                    copies.download(&*x, to.view_mut())
                });
                copied.unwrap().unwrap();
                assert!(to[..] == model[..]);
            }
            Rare::Reborn { what, on, external } => {
                let (x, model) = arrays.swap_remove(what % n);
                declared.swap_remove(what % n);
                let external = external && *brought_in < 8 && x.id().is_some();
                *brought_in += usize::from(external);
                arrays.push((reborn(x, (gpu, streams), &streams[on], external), model));
                // What was said of the former array's later uses was said of that one.
                declared.push(Vec::new());
                *any_declared = true;
            }
        }
    }

    /// Everything is read once more, and judged. How many waits there were, and how many were not needed.
    fn finish(mut self) -> (u64, u64) {
        for token in self.tokens {
            token.end(0, &mut self.forgotten);
        }
        for (x, model) in &self.arrays {
            assert!(x.to_vec(&self.streams[0]).unwrap() == *model);
        }
        if let Some(there) = &self.neighbour {
            for (x, model) in &there.arrays {
                assert!(x.to_vec(&there.streams[0]).unwrap() == *model, "on the other device");
            }
            there.gpu.check();
        }
        // A forgotten token keeps its own memory of the host, and nothing of the device's.
        let outlives = self.forgotten.len() % 2 == 1;
        let mut forgotten = self.forgotten.into_iter().map(ManuallyDrop::into_inner);
        if !outlives {
            forgotten.by_ref().for_each(drop);
        }
        self.gpu.check();
        // Either allocator ends first, with what the other one's streams still do with its arrays.
        let mut neighbour = self.neighbour;
        let there = neighbour.as_ref().map(|there| there.sim.clone());
        if self.made.is_multiple_of(2) {
            drop(neighbour.take());
        }
        if let Some((other, adopted)) = self.other {
            other.check();
            // One ends before the other, and arrays of one may outlive it.
            match self.made % 4 {
                0 => drop((other, adopted, self.arrays, self.indices, self.streams, self.gpu)),
                1 => drop((self.indices, self.streams, self.gpu, adopted, self.arrays, other)),
                2 => drop((adopted, self.arrays, self.gpu, other, self.indices, self.streams)),
                _ => drop((self.arrays, self.indices, self.streams, self.gpu, adopted, other)),
            }
        } else {
            drop((self.arrays, self.indices, self.streams, self.gpu));
        }
        drop(neighbour);
        if let Some(there) = there {
            assert!(
                there.ledger().bytes_reserved == 0,
                "memory of the other device is left: {:?}",
                there.leaks()
            );
        }
        assert!(self.sim.ledger().bytes_reserved == 0, "device memory is left: {:?}", self.sim.leaks());
        forgotten.for_each(drop);
        let tally = self.sim.verdict().unwrap_or_else(|v| panic!("{v}"));
        // For declared work it is unknown when it was queued: it is waited for whenever it may have been. The earlier use of the
        // bytes has the number of a marker that comes behind it (O7, O8), and perhaps behind nothing new.
        let implied = if self.any_declared { 0 } else { tally.waits_implied };
        assert!(implied <= self.born_elsewhere, "{implied} waits for what the stream came after already");
        assert!(self.sim.leaks().is_empty(), "{:?}", self.sim.leaks());
        (tally.waits, tally.waits_beyond_need)
    }
}

fn schedule() -> impl Strategy<Value = Schedule> {
    prop_oneof![Just(Schedule::Latest), any::<u64>().prop_map(Schedule::Random), Just(Schedule::Earliest)]
}

/// A random program from a seed: how many steps it made, and what was wrong. The search for planted bugs is made of them.
///
/// # Panics
/// Never: what panics is what was wrong.
pub fn program(seed: u64) -> (usize, Result<(), String>) {
    let (made, outcome) = played(seed, any_step());
    (made, outcome.map(drop))
}

/// The same with markers that are refused, and more readers at once than are looked at one by one.
pub fn crowded_program(seed: u64) -> (usize, Result<(), String>) {
    let (made, outcome) = played(seed, crowded_step());
    (made, outcome.map(drop))
}

/// The same beside another device.
pub fn peer_program(seed: u64) -> (usize, Result<(), String>) {
    let (made, outcome) = played_on(seed, Machine::of_devices, far_step());
    (made, outcome.map(drop))
}

/// On one device: as [`played_on`].
fn played(seed: u64, steps: impl Strategy<Value = Step>) -> (usize, Result<(u64, u64), String>) {
    played_on(seed, Machine::new, steps)
}

/// A program from a seed, of steps of a kind: as [`program`], and how many waits there were, and how many were not needed.
fn played_on(
    seed: u64,
    machine: fn(Schedule) -> Machine,
    steps: impl Strategy<Value = Step>,
) -> (usize, Result<(u64, u64), String>) {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let dice = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let mut runner = TestRunner::new_with_rng(ProptestConfig::default(), dice);
    let programs = (schedule(), proptest::collection::vec(steps, 20..120));
    let (schedule, steps) = programs.new_tree(&mut runner).expect("nothing is filtered").current();
    let mut made = 0;
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        // What went wrong cannot always be dropped.
        let mut machine = ManuallyDrop::new(machine(schedule));
        for step in steps {
            made += 1;
            machine.step(step);
        }
        ManuallyDrop::into_inner(machine).finish()
    }));
    let said = outcome.map_err(|panic| {
        let said = panic.downcast_ref::<String>().map(String::as_str);
        let said = said.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("something");
        format!("arrays, seed {seed}, step {made}: {said}")
    });
    (made, said)
}

/// Programs from two hundred seeds: in how many of a hundred waits were not needed.
fn needless(steps: impl Fn() -> BoxedStrategy<Step>) -> f64 {
    let (mut waits, mut beyond) = (0, 0);
    for seed in 0..200 {
        let (all, more) = played(seed, steps()).1.unwrap_or_else(|e| panic!("{e}"));
        (waits, beyond) = (waits + all, beyond + more);
    }
    assert!(waits > 2000, "{waits} waits: something to be judged by");
    100.0 * beyond as f64 / waits as f64
}

/// Seeded programs pass, and their waits are needed. Parts of an array wait for each other, guards and declared uses for
/// whatever may have been queued: in four times two hundred programs of each kind, 0, 2.1 to 2.8 and 4.1 to 5.0 of a hundred
/// waits were beyond need.
#[test]
fn seeded_programs_pass() {
    let (whole, parts, rarer) =
        (needless(|| step(true).boxed()), needless(|| step(false).boxed()), needless(|| any_step().boxed()));
    assert!(whole <= 0.5, "{whole} of a hundred waits, without parts");
    assert!(parts <= 3.5, "{parts} of a hundred waits, with parts");
    assert!(rarer <= 6.0, "{rarer} of a hundred waits, with guards and the like");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: ordinary_or_full(100, 300), ..ProptestConfig::default() })]

    #[test]
    fn any_program_comes_to_what_it_comes_to_in_order(
        schedule in schedule(),
        steps in proptest::collection::vec(step(false), 1..120),
    ) {
        let mut machine = Machine::new(schedule);
        for step in steps {
            machine.step(step);
        }
        machine.finish();
    }

    #[test]
    fn any_program_with_guards_external_ranges_and_streams_that_end_comes_to_the_same(
        schedule in schedule(),
        steps in proptest::collection::vec(crowded_step(), 1..120),
    ) {
        let mut machine = Machine::new(schedule);
        for step in steps {
            machine.step(step);
        }
        machine.finish();
    }

    /// Without parts, which wait for each other needlessly, nearly every wait was needed.
    #[test]
    fn no_needless_wait_is_inserted(steps in proptest::collection::vec(step(true), 60..120)) {
        let mut machine = Machine::new(Schedule::Latest);
        for step in steps {
            machine.step(step);
        }
        let (waits, beyond) = machine.finish();
        prop_assert!(beyond * 20 <= waits, "{beyond} of {waits} waits were beyond need");
    }
}

/// How often operands of two allocators met in programs of so many seeds, or copies between two devices were made, and how often a drawn call panicked, or
/// such a copy did or failed. An ordinary run has every fourth seed.
fn all_of(
    seeds: std::ops::Range<u64>,
    machine: fn(Schedule) -> Machine,
    steps: &BoxedStrategy<Step>,
) -> (u64, [u64; 2]) {
    let (mut met, mut panicked) = (0, [0; 2]);
    for seed in seeds.step_by(ordinary_or_full(4, 1)) {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&seed.to_le_bytes());
        let dice = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
        let mut runner = TestRunner::new_with_rng(ProptestConfig::default(), dice);
        let programs = (schedule(), proptest::collection::vec(steps.clone(), 20..120));
        let (schedule, steps) = programs.new_tree(&mut runner).expect("nothing is filtered").current();
        let mut at = 0;
        let ran = catch_unwind(AssertUnwindSafe(|| {
            // What went wrong cannot always be dropped.
            let mut machine = ManuallyDrop::new(machine(schedule));
            for step in steps {
                at += 1;
                machine.step(step);
            }
            let there = machine.neighbour.as_ref();
            met += machine.met + there.map_or(0, |there| there.copied);
            let failed = there.map_or(machine.panicked, |there| there.failed);
            panicked = [0, 1].map(|q| panicked[q] + failed[q]);
            ManuallyDrop::into_inner(machine).finish();
        }));
        if let Err(why) = ran {
            eprintln!("seed {seed}, step {at}");
            std::panic::resume_unwind(why);
        }
    }
    (met, panicked)
}

/// Arrays of two allocators of one device, on streams that both have: operations take operands of both, tokens are dropped and forgotten,
/// streams end, and one allocator ends before the other, in four orders.
#[test]
fn operands_of_two_allocators_come_to_what_they_come_to_in_order() {
    let (met, _) = all_of(0..200, Machine::of_two, &crowded_step().boxed());
    assert!(met > ordinary_or_full(50, 200), "operands of both met {met} times");
}

/// Two devices, each with an allocator: arrays are copied to and fro on streams of either that others have used, streams wait for the other device's, calls of
/// the copies fail and panic, streams end, and either allocator ends first.
#[test]
fn copies_between_devices_come_to_what_they_come_to_in_order() {
    let (copied, failed) = all_of(0..300, Machine::of_devices, &far_step().boxed());
    let [enough, rare] = ordinary_or_full([250, 12], [1000, 50]);
    assert!(copied > enough && failed.iter().all(|&n| n > rare), "{copied} copies, {failed:?} failed");
}

/// An operation's driver call panics, of its own or one about it, behind its work: what was queued by then is ordered, what was not is not
/// done, and no memory is lost.
#[test]
fn a_panic_in_any_call_of_an_operation_orders_what_was_queued() {
    let (_, panicked) = all_of(0..200, Machine::new, &panicking_step().boxed());
    assert!(
        panicked.iter().all(|&n| n > ordinary_or_full(7, 30)),
        "panics before and behind the queueing: {panicked:?}"
    );
    let (met, panicked) = all_of(200..300, Machine::of_two, &panicking_step().boxed());
    let [enough, rare] = ordinary_or_full([12, 2], [50, 10]);
    assert!(met > enough && panicked.iter().all(|&n| n > rare), "{met}, {panicked:?}");
}

/// Host threads that pass arrays to each other, over streams that they share: the thread that has an array writes it, copies it, by pinned memory and by
/// pageable, reads it back, holds a guard on it, drops it or passes it on.
struct Hall {
    sim: Sim,
    gpu: Allocator<Sim>,
    streams: Vec<Stream<Sim>>,
    /// Arrays that no thread has at the moment, each with the value that it holds.
    table: std::sync::Mutex<Vec<(DeviceArray<u8, Sim>, u8)>>,
    forgotten: std::sync::Mutex<Vec<ManuallyDrop<Token>>>,
    /// Guards, sources of several owners, pageable memory and the program's own order of streams too.
    every_verb: bool,
}

impl Hall {
    const THREADS: u64 = 4;

    fn new(schedule: Schedule, every_verb: bool) -> Hall {
        let sim = Sim::new(GIB).schedule(schedule);
        let config = Config::default()
            .reuse(Reuse::WithWaits)
            .growth(Growth::Exact)
            .limit(Limit::Bytes(64 * LEN as u64));
        let gpu = Allocator::new(sim.clone(), config).unwrap();
        let streams = (0..STREAMS).map(|_| gpu.stream().unwrap()).collect();
        let (table, forgotten) = (std::sync::Mutex::default(), std::sync::Mutex::default());
        Hall { sim, gpu, streams, table, forgotten, every_verb }
    }

    /// What one thread does.
    fn guest(&self, mut dice: Dice) {
        let mut tokens = Vec::new();
        for _ in 0..80 {
            let on = &self.streams[dice.below(STREAMS)];
            let value = dice.below(256) as u8;
            let taken = {
                let mut table = self.table.lock().unwrap();
                let n = table.len();
                // A few are left for the others; more than so many are not made.
                (n > 0 && (n > 6 || dice.below(4) > 0)).then(|| table.swap_remove(dice.below(n)))
            };
            let Some((mut x, mut holds)) = taken else {
                let mut x = self.gpu.uninit(LEN, on).unwrap();
                kernel::fill(&mut x, value, &self.streams[dice.below(STREAMS)]).unwrap();
                self.table.lock().unwrap().push((x, value));
                continue;
            };
            match dice.below(if self.every_verb { 12 } else { 8 }) {
                0 => {
                    x.fill_bytes(value, on).unwrap();
                    holds = value;
                }
                1 => {
                    kernel::fill(&mut x, value, on).unwrap();
                    holds = value;
                }
                2 => {
                    let mut host = self.gpu.pinned_uninit::<u8>(LEN).unwrap();
                    host.fill(value);
                    tokens.push(Token::Up(x.copy_from(Part::new(host, ..), on).unwrap(), value));
                    holds = value;
                }
                3 => {
                    let other = self.table.lock().unwrap().pop();
                    if let Some((y, other)) = other {
                        x.copy_from_device(&y, on).unwrap();
                        holds = other;
                        self.table.lock().unwrap().push((y, other));
                    }
                }
                4 | 5 => tokens.push(Token::Down(x.to_pinned(on).unwrap(), vec![holds; LEN])),
                6 if !tokens.is_empty() => {
                    let (which, how) = (dice.below(tokens.len()), dice.below(8));
                    let mut forgotten = Vec::new();
                    tokens.swap_remove(which).end(how, &mut forgotten);
                    self.forgotten.lock().unwrap().append(&mut forgotten);
                }
                7 => {
                    drop(x);
                    continue;
                }
                8 => {
                    let (marked, forget) = (dice.below(2) == 0, dice.below(4) == 0);
                    let write = (dice.below(2) == 0).then_some(value);
                    guarded(&self.sim, &mut x, on, (0, LEN), write, (marked, forget));
                    holds = write.unwrap_or(holds);
                }
                9 => {
                    // The token is the source's last owner, and another owner has its memory next.
                    drop(x.copy_from(Arc::new(filled(&self.gpu, LEN, value)), on).unwrap());
                    drop(filled(&self.gpu, LEN, !value));
                    holds = value;
                }
                10 if dice.below(2) == 0 => {
                    x.copy_from_slice(&[value; LEN], on).unwrap();
                    holds = value;
                }
                10 => assert!(x.to_vec(on).unwrap() == vec![holds; LEN]),
                _ => on.wait_stream(&self.streams[dice.below(STREAMS)]).unwrap(),
            }
            self.table.lock().unwrap().push((x, holds));
        }
        for token in tokens {
            token.end(0, &mut Vec::new());
        }
    }

    /// Everything is read once more, and judged. How many waits there were, and how many were not needed.
    fn close(self) -> (u64, u64) {
        for (x, holds) in self.table.into_inner().unwrap() {
            assert!(x.to_vec(&self.streams[0]).unwrap() == vec![holds; LEN]);
        }
        for token in self.forgotten.into_inner().unwrap() {
            drop(ManuallyDrop::into_inner(token));
        }
        self.gpu.check();
        assert_eq!(self.gpu.report().total.live, 0);
        drop((self.streams, self.gpu));
        let tally = self.sim.verdict().unwrap_or_else(|v| panic!("{v}"));
        assert!(self.sim.leaks().is_empty(), "{:?}", self.sim.leaks());
        (tally.waits, tally.waits_implied + tally.waits_beyond_need)
    }
}

/// How many waits there were in so many programs, and how many were not needed.
fn halls(every_verb: bool) -> (u64, u64) {
    let (mut waits, mut needless) = (0, 0);
    for seed in 0..40 {
        let schedule = if seed % 2 == 0 { Schedule::Latest } else { Schedule::Random(seed) };
        let hall = Hall::new(schedule, every_verb);
        std::thread::scope(|threads| {
            for thread in 0..Hall::THREADS {
                let hall = &hall;
                threads.spawn(move || hall.guest(Dice::new(seed * Hall::THREADS + thread)));
            }
        });
        let (all, beyond) = hall.close();
        (waits, needless) = (waits + all, needless + beyond);
    }
    (waits, needless)
}

#[test]
fn arrays_go_from_thread_to_thread() {
    let (waits, needless) = halls(false);
    // A marker is made when it is needed, and then covers what the other threads have put on its stream meanwhile.
    assert!(waits > 1000 && needless * 10 <= waits, "{needless} of {waits} waits were needless");
}

/// Waits that the program itself makes are not counted as needed.
#[test]
fn arrays_go_from_thread_to_thread_under_guards_and_copies_of_every_kind() {
    let (waits, _) = halls(true);
    assert!(waits > 1000, "{waits} waits");
}

/// A host function's panic comes out of the call that queues an operation behind it, on the stream that does not own the array: the
/// operation is queued, and a read of the array comes after it.
#[test]
fn a_host_functions_panic_out_of_the_queueing_call_orders_the_operation() {
    let sim = Sim::new(GIB).schedule(Schedule::Latest);
    let gpu = Allocator::new(sim.clone(), Config::default()).unwrap();
    let (s, t) = (gpu.stream().unwrap(), gpu.stream().unwrap());
    let mut x = gpu.zeros::<u8>(1024, &s).unwrap();
    x.fill_bytes(1, &s).unwrap();
    gpu.synchronize().unwrap();
    sim.host_function(t.native(), || panic!("a host function")).unwrap();
    sim.set_schedule(Schedule::Earliest);
    let filled = catch_unwind(AssertUnwindSafe(|| kernel::fill(&mut x, 9, &t)));
    assert_eq!(filled.unwrap_err().downcast_ref::<&str>(), Some(&"a host function"));
    sim.set_schedule(Schedule::Latest);
    assert!(x.to_vec(&s).unwrap().iter().all(|&v| v == 9));
    drop((x, s, t, gpu));
    // The verdict names the panic, and it is the only thing that was wrong.
    let said = sim.verdict().unwrap_err().to_string();
    assert!(said.starts_with("1 operation met the wrong bytes\n1. `host function` panicked"), "{said}");
    assert!(sim.leaks().is_empty(), "{:?}", sim.leaks());
}

/// Pageable copies go through slots of 4 MiB, whatever an element's length.
#[test]
fn elements_may_be_longer_than_a_slot() {
    type Element = [u8; 5 << 20];
    fn there_and_back() {
        let sim = Sim::new(GIB).schedule(Schedule::Latest);
        let gpu = Allocator::new(sim.clone(), Config::default()).unwrap();
        let (s, t) = (gpu.stream().unwrap(), gpu.stream().unwrap());
        let mut bytes = vec![0_u8; 15 << 20];
        bytes.iter_mut().enumerate().for_each(|(i, v)| *v = (i / 4099) as u8);
        let data: &[Element] = bytemuck::cast_slice(&bytes);
        let mut x = gpu.zeros::<Element>(3, &s).unwrap();
        assert!(gpu.pinned_zeros::<Element>(2).unwrap().iter().all(|e| e.iter().all(|&v| v == 0)));
        x.copy_from_slice(data, &t).unwrap();
        x.slice_mut(1..2).copy_from_slice(&data[2..], &s).unwrap();
        let back = x.to_vec(&t).unwrap();
        let expected = [&bytes[..5 << 20], &bytes[10 << 20..], &bytes[10 << 20..]].concat();
        assert!(bytemuck::cast_slice::<Element, u8>(&back) == expected);
        drop((x, s, t));
        gpu.check();
        drop(gpu);
        sim.verdict().unwrap();
        assert!(sim.leaks().is_empty(), "{:?}", sim.leaks());
    }
    // An element may come to lie on the stack.
    let thread = std::thread::Builder::new().stack_size(256 << 20).spawn(there_and_back);
    thread.unwrap().join().unwrap();
}

#[derive(Clone, Copy, PartialEq, Debug, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
struct Particle {
    at: [f32; 3],
    mass: f32,
}

#[test]
fn arrays_hold_any_plain_old_data() {
    use millpond::half::{bf16, f16};
    fn there_and_back<T: bytemuck::Pod + PartialEq + std::fmt::Debug>(values: &[T]) {
        let sim = Sim::new(GIB);
        let gpu = Allocator::new(sim.clone(), Config::default()).expect("an allocator");
        let (s, t) = (gpu.stream().expect("a stream"), gpu.stream().expect("a stream"));
        let source = gpu.pinned_from_slice(values).expect("pinned");
        let (x, sent) = gpu.array_from_pinned(source, &s).expect("queued");
        drop(sent);
        assert_eq!(&x.to_pinned(&t).expect("queued").wait().expect("copied")[..], values);
        let zeros = gpu.zeros::<T>(values.len(), &t).expect("zeros");
        let zeros = zeros.to_pinned(&t).expect("queued").wait().expect("copied");
        assert!(zeros.iter().all(|x| *x == T::zeroed()), "{zeros:?}");
        sim.verdict().expect("ordered");
    }
    there_and_back(&[f16::from_f32(1.5), f16::MAX, f16::NEG_INFINITY]);
    there_and_back(&[bf16::from_f32(-2.0), bf16::MIN_POSITIVE]);
    there_and_back(&[[1_u8; 33], [2; 33]]);
    there_and_back(&[u128::MAX, 1]);
    there_and_back(&[Particle { at: [1.0, 2.0, 3.0], mass: 0.5 }; 7]);
}
