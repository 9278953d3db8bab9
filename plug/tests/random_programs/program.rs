//! Programs: the steps of host threads, as numbers that have a meaning in every state. If a step is removed the others remain
//! correct, so that programs shrink well.

use proptest::prelude::*;
use std::fmt;
use std::str::FromStr;

macro_rules! verbs {
    ($($verb:ident $weight:literal)*) => {
        /// What a step does; `world` says how.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub(crate) enum Verb { $($verb,)* }
        /// Each verb with how often it is chosen. Those with weight 0 (captures, broken drivers and promises) have scenes of their own; `NextStream` is for
        /// steady programs.
        const VERBS: &[(u32, Verb)] = &[$(($weight, Verb::$verb),)*];
    };
}
verbs! {
    Alloc 30 Write 14 Read 8 Declare 5 Free 12 FreeOn 8 FreeUnknown 3 FreeAfter 3
    TorchAlloc 6 TorchUse 6 TorchFree 6
    Open 5 Close 8 Permanent 2 DestroyPermanent 0
    Pin 4 PinIn 4 PinOut 3 PinDeclare 2 PinFree 4 PinFreeUnknown 1
    Trim 1 Limit 1 Sync 1 Destroy 2 Create 2 Look 1 Hostile 4 EmptyCache 2
    ThreadEnds 2 WaitStream 2 WaitDevice 1
    Capture 0 CaptureEnds 0 CaptureDies 0 CaptureMeanwhile 0
    Breaks 0 Mends 0
    NextStream 0
}

impl Verb {
    /// Whether it may run during other threads' calls in programs that are judged by codes and the oracle alone.
    pub(crate) fn is_rough(self) -> bool {
        use Verb::{Create, Destroy, Permanent, ThreadEnds};
        matches!(self, Create | Destroy | Permanent | ThreadEnds)
    }
    /// Whether it is not for threads that run at once: others rely on what it changes, or its result depends on what they do.
    pub(crate) fn is_for_one(self) -> bool {
        use Verb::{
            CaptureMeanwhile, Create, Destroy, DestroyPermanent, Hostile, Limit, Permanent, ThreadEnds,
        };
        matches!(
            self,
            DestroyPermanent | CaptureMeanwhile | Create | Destroy | Hostile | Limit | Permanent | ThreadEnds
        )
    }
}

/// Which driver call of a step fails, counted from 1 in the low byte, and above it the code that the call returns; 0 is none.
pub(crate) type Fault = u32;

/// The `nth` driver call fails with this code.
pub(crate) fn fault(nth: u8, code: u32) -> Fault {
    if nth == 0 { 0 } else { Fault::from(nth) | code << 8 }
}

/// Which call fails, and with what code.
pub(crate) fn parts(fault: Fault) -> (u64, u32) {
    (u64::from(fault & 0xff), fault >> 8)
}

/// The codes of one failing call: an unknown error (999), out of memory, invalid value, no current context, invalid handle, not ready where that is no
/// valid result, not supported, and the codes with which calls are refused because of captures.
pub(crate) const CODES: [u32; 14] = [999, 2, 1, 201, 400, 600, 801, 900, 901, 904, 905, 906, 907, 908];
/// Codes that all calls return for ever once one has returned it: the context is lost.
pub(crate) const STICKY: [u32; 6] = [700, 719, 702, 214, 718, 46];

/// One step: the thread, the verb, its operands, and which of its driver calls fails.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    pub(crate) thread: u8,
    pub(crate) verb: Verb,
    pub(crate) a: u8,
    pub(crate) b: u8,
    pub(crate) c: u8,
    pub(crate) fault: Fault,
}

#[derive(Clone)]
pub(crate) struct Program {
    /// The device's schedule: 0 runs work at once, 1 as late as it may, others at random with this seed.
    pub(crate) schedule: u64,
    /// How often each thread makes its steps, while the others make theirs. 0: once, and in the program's order.
    pub(crate) rounds: u64,
    /// During other threads' calls it also destroys and creates allocators, declares streams and ends threads.
    pub(crate) rough: bool,
    /// Only declared streams capture, and its allocators are created with that promise.
    pub(crate) quiet: bool,
    /// It begins after many allocators have ended: each one that it creates drops such a one.
    pub(crate) crowded: bool,
    pub(crate) steps: Vec<Step>,
}

/// Which driver calls fail.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Faults {
    None,
    /// One of a step's driver calls.
    Single,
    /// All driver calls from some call on, perhaps not for ever.
    Lasting,
}

/// What programs are made of.
#[derive(Clone, Copy)]
pub(crate) struct Kind {
    pub(crate) threads: u8,
    pub(crate) faults: Faults,
    /// The program also captures graphs.
    pub(crate) captures: bool,
    pub(crate) rounds: u64,
    pub(crate) rough: bool,
    /// The limit on scenes, which have a few steps each.
    pub(crate) scenes: usize,
}

impl Kind {
    pub(crate) fn programs(self) -> impl Strategy<Value = Program> {
        let more = prop_oneof![self.destroyed_permanent(), self.refused_use()];
        let more = prop::collection::vec((any::<prop::sample::Index>(), more), 0..3);
        (self.plain(), prop::bool::weighted(0.125), more).prop_map(|(mut program, crowded, more)| {
            for (at, scene) in more {
                let at = at.index(program.steps.len() + 1);
                program.steps.splice(at..at, scene);
            }
            Program { crowded, ..program }
        })
    }

    /// Programs with few allocators at the beginning and in which permanent streams are not destroyed, as a program that never ends needs.
    pub(crate) fn plain(self) -> impl Strategy<Value = Program> {
        let scene = prop_oneof![
            if self.rough { 4 } else { 0 } => self.rough_step(),
            u32::from(self.faults == Faults::Single) => self.making(),
            if self.faults == Faults::Lasting { 2 } else { 0 } => self.broken(),
            12 => self.any_step().prop_map(|step| vec![step]),
            6 => self.life(),
            2 => self.pinned_life(),
            1 => self.limits(),
        ];
        let scene = if self.captures {
            prop_oneof![14 => scene, 4 => self.capture(), 1 => self.owing()].boxed()
        } else {
            scene.boxed()
        };
        let schedule = prop_oneof![1 => Just(0), 3 => Just(1), 3 => 2..1000_u64];
        let quiet = prop::bool::weighted(0.3);
        let scenes = prop::collection::vec(scene, 1..self.scenes);
        (schedule, quiet, scenes).prop_map(move |(schedule, quiet, scenes)| Program {
            schedule,
            rounds: self.rounds,
            rough: self.rough,
            quiet,
            crowded: false,
            steps: scenes.concat(),
        })
    }

    /// Which driver call of a call fails. Most calls make a few; a destroy or a trim, which give much back, makes dozens.
    fn fault(self) -> BoxedStrategy<Fault> {
        if self.faults != Faults::Single {
            return Just(0).boxed();
        }
        let nth = prop_oneof![18 => Just(0), 5 => 1..8_u8, 2 => 8..24_u8, 1 => 24..64_u8];
        // Nothing works after the context was lost, so this happens in few programs, and seldom at their beginning.
        let code =
            prop_oneof![150 => prop::sample::select(&CODES[..]), 1 => prop::sample::select(&STICKY[..])];
        (nth, code).prop_map(|(nth, code)| fault(nth, code)).boxed()
    }

    /// The driver fails from one of the next calls on; steps that are made meanwhile; and its recovery, in most cases.
    fn broken(self) -> impl Strategy<Value = Vec<Step>> {
        let between = prop_oneof![
            3 => prop::collection::vec(self.any_step(), 1..8),
            2 => self.life(),
            1 => self.pinned_life(),
            1 => self.limits(),
        ];
        (0..self.threads, any::<[u8; 3]>(), prop::collection::vec(between, 1..4)).prop_map(
            |(thread, [code, nth, mends], between)| {
                let step = |verb, a, b| Step { thread, verb, a, b, c: 0, fault: 0 };
                let mut steps = vec![step(Verb::Breaks, code, nth % 24)];
                steps.extend(between.concat());
                // Some failures last to the program's end, or until another scene's recovery.
                if mends < 200 {
                    steps.push(step(Verb::Mends, 0, 0));
                }
                steps
            },
        )
    }

    fn any_step(self) -> impl Strategy<Value = Step> {
        let verbs = prop::strategy::Union::new_weighted(
            VERBS.iter().filter(|v| v.0 > 0).map(|&(weight, verb)| (weight, Just(verb))).collect(),
        );
        (0..self.threads, verbs, any::<[u8; 3]>(), self.fault())
            .prop_map(|(thread, verb, [a, b, c], fault)| Step { thread, verb, a, b, c, fault })
    }

    /// A permanent stream is destroyed after it freed something, or while it has live memory; its handle is reused, or not.
    fn destroyed_permanent(self) -> impl Strategy<Value = Vec<Step>> {
        (0..self.threads, 0..2_u8, any::<[u8; 3]>()).prop_map(|(thread, door, [slot, b, c])| {
            let step = |verb, a, b, c| Step { thread, verb, a, b, c, fault: 0 };
            let mut steps =
                vec![step(Verb::Permanent, door, slot % 3, 0), step(Verb::Alloc, door, slot % 3, c)];
            if c < 160 {
                steps.push(step(Verb::Free, 0, 0, 0));
            }
            steps.push(step(Verb::DestroyPermanent, slot % 3, b, 0));
            if b < 64 {
                // The declaration names the stream that has its handle now.
                steps.push(step(Verb::Permanent, door, slot % 3, 0));
            }
            steps.push(step(Verb::Alloc, door, b, c));
            steps
        })
    }

    /// Records a use by a known stream that does not use the block. That may fail; then a free that names the block's own stream waits for nothing.
    fn refused_use(self) -> impl Strategy<Value = Vec<Step>> {
        let nth = if self.faults == Faults::Single { 1..4_u8 } else { 0..1 };
        let code = prop::sample::select(&CODES[..]);
        (0..self.threads, 0..2_u8, any::<[u8; 3]>(), nth, code).prop_map(
            |(thread, door, [on, other, c], nth, code)| {
                let step = |verb, a, b, c| Step { thread, verb, a, b, c, fault: 0 };
                let other = 100 + other % 100;
                vec![
                    step(Verb::Alloc, door, other, c),
                    step(Verb::Alloc, door, on, c),
                    Step { fault: fault(nth, code), ..step(Verb::Declare, 0, other, 0) },
                    step(Verb::FreeOn, 0, on, 0),
                ]
            },
        )
    }

    fn rough_step(self) -> impl Strategy<Value = Vec<Step>> {
        let verbs =
            prop::sample::select(vec![Verb::Destroy, Verb::Create, Verb::Permanent, Verb::ThreadEnds]);
        (0..self.threads, verbs, any::<[u8; 3]>(), self.fault())
            .prop_map(|(thread, verb, [a, b, c], fault)| vec![Step { thread, verb, a, b, c, fault }])
    }

    /// An allocation that one or two other streams use, perhaps on another thread. It is freed, and the next allocation may get its bytes at once.
    /// Random steps do this too rarely.
    fn life(self) -> impl Strategy<Value = Vec<Step>> {
        use Verb::{Alloc, Close, Declare, Free, FreeAfter, FreeOn, FreeUnknown};
        use Verb::{Read, TorchAlloc, TorchFree, TorchUse, Write};
        let free = prop::sample::select(vec![Free, FreeOn, FreeOn, FreeUnknown, FreeAfter, Declare]);
        let uses = prop::collection::vec((0..8_u8, any::<bool>(), prop::bool::weighted(0.3)), 1..3);
        let threads = (0..self.threads, 0..self.threads);
        (threads, 0..5_u8, 0..8_u8, uses, free, 0..32_u8, [self.fault(), self.fault()], any::<u8>()).prop_map(
            |((home, user), door, stream, uses, free, size, [first, second], ends)| {
                let step = |thread, verb, a, b, c, fault| Step { thread, verb, a, b, c, fault };
                let torch = door > 2;
                // PyTorch's allocator on the second device.
                let on = stream + if door == 4 { 192 } else { 0 };
                let alloc = step(home, if torch { TorchAlloc } else { Alloc }, door, on, size, 0);
                let mut steps = vec![alloc];
                for (on, writes, there) in uses {
                    // In `b`, 16 puts PyTorch's use on the other device; from 100 on the use is not on the block's own stream; from 128 on PyTorch's use
                    // is a write.
                    let verb = match (torch, writes) {
                        (true, _) => TorchUse,
                        (false, true) => Write,
                        (false, false) => Read,
                    };
                    let there = if torch && there { 16 } else { 0 };
                    steps.push(step(user, verb, 0, if writes { 128 } else { 104 } + on + there, 0, first));
                }
                if ends < 60 {
                    steps.push(step(user, Close, ends % 3, 0, 0, 0));
                }
                let free = if torch { TorchFree } else { free };
                steps.push(step(if torch { home } else { user }, free, 0, ends, 0, second));
                if free == Declare && ends % 2 == 0 {
                    // Whether the use was recorded or not, this free names all that used it, and its own stream.
                    steps.push(step(home, FreeAfter, 0, 128 + stream, 0, 0));
                }
                steps.push(alloc);
                steps
            },
        )
    }

    /// Creates an allocator that may expect captures, with a driver call that fails, and makes a free whose memory would be held back because of that.
    fn making(self) -> impl Strategy<Value = Vec<Step>> {
        let code = prop::sample::select(&CODES[..]);
        (0..self.threads, 0..3_u8, 14..28_u8, 4..9_u8, code).prop_map(|(thread, slot, options, nth, code)| {
            let make =
                Step { thread, verb: Verb::Create, a: slot, b: options, c: 0, fault: fault(nth, code) };
            // Another allocator on the same device, except for slot 2, which is alone on its device.
            let of = if slot == 2 { 2 } else { 1 - slot };
            let alloc = Step { verb: Verb::Alloc, a: of, b: 0, c: 3, fault: 0, ..make };
            vec![make, alloc, Step { verb: Verb::FreeUnknown, a: 0, ..alloc }]
        })
    }

    /// An ended allocator has memory to give back while a stream captures, and another one is trimmed.
    fn owing(self) -> impl Strategy<Value = Vec<Step>> {
        (0..self.threads, 0..2_u8, any::<[u8; 3]>(), 1..7_u8).prop_map(
            |(thread, slot, [on, mode, c], end)| {
                let step = |verb, a, b, c| Step { thread, verb, a, b, c, fault: 0 };
                vec![
                    step(Verb::Alloc, slot, on, 3),
                    step(Verb::Destroy, slot, 0, 0),
                    step(Verb::Write, 0, on, 0),
                    step(Verb::Capture, on.wrapping_add(1), mode % 3, c),
                    step(Verb::Free, 0, 0, 0),
                    step(Verb::Trim, 1 - slot, 0, 0),
                    step(Verb::CaptureEnds, 255, end, 0),
                    step(Verb::Create, slot, 0, 0),
                ]
            },
        )
    }

    /// Sets a limit below what is reserved, and removes it.
    fn limits(self) -> impl Strategy<Value = Vec<Step>> {
        (0..self.threads, 0..3_u8, self.fault()).prop_map(|(thread, a, fault)| {
            let limit = Step { thread, verb: Verb::Limit, a, b: 1, c: 0, fault };
            vec![Step { verb: Verb::Alloc, c: 6, fault: 0, ..limit }, limit, Step { b: 0, fault: 0, ..limit }]
        })
    }

    /// A capture, steps that are made meanwhile, perhaps by another thread, and its end; or a capture that begins during a call.
    fn capture(self) -> impl Strategy<Value = Vec<Step>> {
        let between = prop_oneof![
            3 => prop::collection::vec(self.any_step(), 1..4),
            3 => self.life(),
            1 => self.pinned_life(),
            1 => self.limits(),
        ];
        let what = (0..self.threads, any::<[u8; 3]>(), 0..8_u8, self.fault());
        (what, between).prop_map(|((thread, [a, b, c], end, fault), between)| {
            let step = |verb, a, b, c, fault| Step { thread, verb, a, b, c, fault };
            if end == 7 {
                // It begins on a permanent stream that freed memory which another stream needs.
                let (door, on) = (a % 3, b % 3);
                let mut steps = Vec::new();
                if a >= 128 {
                    // A deterministic allocator queries no event, so an allocation at the limit waits for the first event that it finds.
                    steps.push(step(Verb::Close, on, 0, 0, 0));
                    steps.push(step(Verb::Create, door, 6, 0, 0));
                }
                steps.push(step(Verb::Permanent, door, on, 0, 0));
                steps.push(step(Verb::Alloc, door, on, 6, 0));
                steps.push(step(Verb::Free, 0, 0, 0, 0));
                steps.push(step(Verb::CaptureMeanwhile, door, on, c, fault));
                return steps;
            }
            let mut steps = vec![step(Verb::Capture, a, b, c, 0)];
            steps.extend(between);
            // Some captures stay open to the program's end, or until another step ends them; some end with one of their streams, which the next step
            // names again.
            if end == 6 {
                steps.push(step(Verb::CaptureDies, 0, c, 0, 0));
                steps.push(step(Verb::Alloc, a % 3, a, 3, 0));
            } else if end > 0 {
                steps.push(step(Verb::CaptureEnds, 255, end, 0, 0));
            }
            steps
        })
    }

    /// The same with pinned memory.
    fn pinned_life(self) -> impl Strategy<Value = Vec<Step>> {
        use Verb::{Close, Pin, PinFree, PinFreeUnknown, PinIn, PinOut};
        let verbs = (any::<bool>(), any::<bool>());
        (0..self.threads, any::<[u8; 3]>(), verbs, self.fault()).prop_map(
            |(thread, [door, on, size], (writes, unknown), fault)| {
                let step = |verb, a, b, c, fault| Step { thread, verb, a, b, c, fault };
                let pin = step(Pin, door, 0, size, 0);
                let mut steps = vec![pin, step(if writes { PinOut } else { PinIn }, 0, on, 0, 0)];
                if on < 60 {
                    steps.push(step(Close, on % 3, 0, 0, 0));
                }
                steps.push(step(if unknown { PinFreeUnknown } else { PinFree }, 0, on, 0, fault));
                steps.push(pin);
                steps
            },
        )
    }
}

impl Program {
    /// The program with as few steps and faults as still fail.
    pub(crate) fn minimised(mut self, fails: impl Fn(&Program) -> bool) -> Program {
        let mut at = self.steps.len();
        while at > 0 {
            at -= 1;
            let mut less = self.clone();
            less.steps.remove(at);
            if !less.steps.is_empty() && fails(&less) {
                self = less;
                continue;
            }
            let mut less = self.clone();
            less.steps[at].fault = 0;
            if self.steps[at].fault > 0 && fails(&less) {
                self = less;
            }
        }
        self
    }
}

impl fmt::Debug for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\n{self}")
    }
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rough = if self.rough { " rough" } else { "" };
        let quiet = if self.quiet { " quiet" } else { "" };
        let crowded = if self.crowded { " crowded" } else { "" };
        writeln!(f, "schedule {} rounds {}{rough}{quiet}{crowded}", self.schedule, self.rounds)?;
        self.steps.iter().try_for_each(|s| {
            write!(f, "{:?} {} {} {} {} ", s.verb, s.thread, s.a, s.b, s.c)?;
            match parts(s.fault) {
                (0, _) => writeln!(f, "0"),
                (nth, code) => writeln!(f, "{nth}:{code}"),
            }
        })
    }
}

impl FromStr for Program {
    type Err = String;
    fn from_str(text: &str) -> Result<Program, String> {
        let mut lines = text.lines().map(str::trim).filter(|l| !l.is_empty());
        let first: Vec<&str> = lines.next().unwrap_or_default().split(' ').collect();
        let ["schedule", schedule, "rounds", rounds, ref more @ ..] = first[..] else {
            return Err(
                "the first line is `schedule NUMBER rounds NUMBER`, and perhaps `rough`, `quiet`, `crowded`"
                    .to_owned(),
            );
        };
        let (rough, quiet) = (more.contains(&"rough"), more.contains(&"quiet"));
        let crowded = more.contains(&"crowded");
        let number = |text: &str| text.parse().map_err(|_| format!("no number: {text}"));
        let (schedule, rounds) = (number(schedule)?, number(rounds)?);
        let steps = lines.map(step).collect::<Result<_, _>>()?;
        Ok(Program { schedule, rounds, rough, quiet, crowded, steps })
    }
}

fn step(line: &str) -> Result<Step, String> {
    let (name, numbers) = line.split_once(' ').ok_or_else(|| format!("no step: {line}"))?;
    let verb = VERBS.iter().map(|v| v.1).find(|v| format!("{v:?}") == name);
    let verb = verb.ok_or_else(|| format!("no verb: {line}"))?;
    // Without a code it is 999.
    let (numbers, code) = numbers.split_once(':').unwrap_or((numbers, "999"));
    let numbers: Result<Vec<u8>, _> = numbers.split(' ').map(str::parse).collect();
    match (numbers.as_deref(), code.parse()) {
        (Ok(&[thread, a, b, c, nth]), Ok(code)) => {
            Ok(Step { thread, verb, a, b, c, fault: fault(nth, code) })
        }
        _ => Err(format!("five small numbers follow a verb, and perhaps `:` and a code: {line}")),
    }
}
