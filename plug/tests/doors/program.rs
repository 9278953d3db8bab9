//! Programs: what a host thread does, step by step, as numbers that mean something in whatever state they meet. A step that
//! is left out leaves the others lawful, so that programs shrink well.

use proptest::prelude::*;
use std::fmt;
use std::str::FromStr;

macro_rules! verbs {
    ($($verb:ident $weight:literal)*) => {
        /// What a step does; `world` says how.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub(crate) enum Verb { $($verb,)* }
        /// Each with how often it is chosen. Captures and drivers that break have scenes of their own, and steady programs a stream that ends.
        const VERBS: &[(u32, Verb)] = &[$(($weight, Verb::$verb),)*];
    };
}
verbs! {
    Alloc 30 Write 14 Read 8 Declare 5 Free 12 FreeOn 8 FreeUnknown 3 FreeAfter 3
    TorchAlloc 6 TorchUse 6 TorchFree 6
    Open 5 Close 8 Permanent 2 BreaksItsWord 0
    Pin 4 PinIn 4 PinOut 3 PinDeclare 2 PinFree 4 PinFreeUnknown 1
    Trim 1 Limit 1 Sync 1 Destroy 2 Create 2 Look 1 Hostile 4 EmptyCache 2
    ThreadEnds 2 WaitStream 2 WaitDevice 1
    Capture 0 CaptureEnds 0 CaptureDies 0 CaptureMeanwhile 0
    Breaks 0 Mends 0
    NextStream 0
}

impl Verb {
    /// Beside other threads' calls at once, where nothing but codes and the oracle judges.
    pub(crate) fn is_rough(self) -> bool {
        use Verb::{Create, Destroy, Permanent, ThreadEnds};
        matches!(self, Create | Destroy | Permanent | ThreadEnds)
    }
    /// Not for threads that run at once: others rely on what it changes, or its answer hangs on what they do.
    pub(crate) fn is_for_one(self) -> bool {
        use Verb::{BreaksItsWord, CaptureMeanwhile, Create, Destroy, Hostile, Limit, Permanent, ThreadEnds};
        matches!(
            self,
            BreaksItsWord | CaptureMeanwhile | Create | Destroy | Hostile | Limit | Permanent | ThreadEnds
        )
    }
}

/// Which driver call of a step fails, from 1, and above the low byte the code that it answers; 0 is none.
pub(crate) type Fault = u32;

/// The `nth` driver call fails with this code.
pub(crate) fn fault(nth: u8, code: u32) -> Fault {
    if nth == 0 { 0 } else { Fault::from(nth) | code << 8 }
}

/// Which call, and with what code.
pub(crate) fn parts(fault: Fault) -> (u64, u32) {
    (u64::from(fault & 0xff), fault >> 8)
}

/// What one call answers when it fails: arguments, memory, a context that is not current, a handle that is none, not ready
/// where that is no answer, what captures have calls refused with, not supported, and a code that says nothing.
pub(crate) const CODES: [u32; 14] = [999, 2, 1, 201, 400, 600, 801, 900, 901, 904, 905, 906, 907, 908];
/// What is answered once is answered for ever: the context is lost.
pub(crate) const STICKY: [u32; 6] = [700, 719, 702, 214, 718, 46];

/// One step: on which thread, what, with what, and what of it fails.
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
    /// The device's schedule: at once, as late as it may, or a coin with this seed.
    pub(crate) schedule: u64,
    /// So often each thread makes its steps, at the same time as the others. 0: once, and in the program's order.
    pub(crate) rounds: u64,
    /// Beside the others' calls at once it also destroys and makes allocators, declares streams and ends threads.
    pub(crate) rough: bool,
    /// Nothing captures but on streams that were declared, and its allocators are told so.
    pub(crate) quiet: bool,
    /// It begins behind many allocators that have ended: each one that it makes lets such a one go.
    pub(crate) crowded: bool,
    pub(crate) steps: Vec<Step>,
}

/// Which driver calls fail.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Faults {
    None,
    /// One of a step's.
    Single,
    /// All from some call on, perhaps not for ever.
    Lasting,
}

/// What programs are made of.
#[derive(Clone, Copy)]
pub(crate) struct Kind {
    pub(crate) threads: u8,
    pub(crate) faults: Faults,
    /// The program captures graphs beside what it does.
    pub(crate) captures: bool,
    pub(crate) rounds: u64,
    pub(crate) rough: bool,
    /// At most so many, a few steps each.
    pub(crate) scenes: usize,
}

impl Kind {
    pub(crate) fn programs(self) -> impl Strategy<Value = Program> {
        let more = prop_oneof![self.broken_word(), self.refused_use()];
        let more = prop::collection::vec((any::<prop::sample::Index>(), more), 0..3);
        (self.plain(), prop::bool::weighted(0.125), more).prop_map(|(mut program, crowded, more)| {
            for (at, scene) in more {
                let at = at.index(program.steps.len() + 1);
                program.steps.splice(at..at, scene);
            }
            Program { crowded, ..program }
        })
    }

    /// Of one allocator a slot at the beginning and streams that keep their word, as a program that never ends has them.
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

    /// Which of a call's driver calls fails. Most calls make a few; a destroy or a trim, which give much back, dozens.
    fn fault(self) -> BoxedStrategy<Fault> {
        if self.faults != Faults::Single {
            return Just(0).boxed();
        }
        let nth = prop_oneof![18 => Just(0), 5 => 1..8_u8, 2 => 8..24_u8, 1 => 24..64_u8];
        // Behind a lost context nothing works: of few programs, and of those not at the beginning.
        let code =
            prop_oneof![150 => prop::sample::select(&CODES[..]), 1 => prop::sample::select(&STICKY[..])];
        (nth, code).prop_map(|(nth, code)| fault(nth, code)).boxed()
    }

    /// The driver fails from one of the next calls on, what is done meanwhile, and its recovery, if it is one of those that there are.
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
                // Some last to the program's end, or until another scene's.
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

    /// A stream that was to last is destroyed, and has freed something or has something alive; its handle comes back, or does not.
    fn broken_word(self) -> impl Strategy<Value = Vec<Step>> {
        (0..self.threads, 0..2_u8, any::<[u8; 3]>()).prop_map(|(thread, door, [slot, b, c])| {
            let step = |verb, a, b, c| Step { thread, verb, a, b, c, fault: 0 };
            let mut steps =
                vec![step(Verb::Permanent, door, slot % 3, 0), step(Verb::Alloc, door, slot % 3, c)];
            if c < 160 {
                steps.push(step(Verb::Free, 0, 0, 0));
            }
            steps.push(step(Verb::BreaksItsWord, slot % 3, b, 0));
            if b < 64 {
                // By whoever has its handle now.
                steps.push(step(Verb::Permanent, door, slot % 3, 0));
            }
            steps.push(step(Verb::Alloc, door, b, c));
            steps
        })
    }

    /// A use by a stream that was met and does not use the block. It may be refused; then a free that names the block's own stream is behind nothing.
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

    /// An allocation that one or two other streams use, perhaps of another thread; which is freed, and whose bytes may serve the
    /// next one at once. Random steps come by this too rarely.
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
                // PyTorch's on the second device.
                let on = stream + if door == 4 { 192 } else { 0 };
                let alloc = step(home, if torch { TorchAlloc } else { Alloc }, door, on, size, 0);
                let mut steps = vec![alloc];
                for (on, writes, there) in uses {
                    // With 16 PyTorch's is on the other device. From 100 on it is no use on the own stream; from 128 on PyTorch's is a write.
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
                    // Whether it was declared or not: all that used it, and its own stream.
                    steps.push(step(home, FreeAfter, 0, 128 + stream, 0, 0));
                }
                steps.push(alloc);
                steps
            },
        )
    }

    /// An allocator that may expect captures, one of whose driver calls fails, and a free that would be held back by that.
    fn making(self) -> impl Strategy<Value = Vec<Step>> {
        let code = prop::sample::select(&CODES[..]);
        (0..self.threads, 0..3_u8, 14..28_u8, 4..9_u8, code).prop_map(|(thread, slot, options, nth, code)| {
            let make =
                Step { thread, verb: Verb::Create, a: slot, b: options, c: 0, fault: fault(nth, code) };
            // On the same device, which slot 2 has not in common with the others.
            let of = if slot == 2 { 2 } else { 1 - slot };
            let alloc = Step { verb: Verb::Alloc, a: of, b: 0, c: 3, fault: 0, ..make };
            vec![make, alloc, Step { verb: Verb::FreeUnknown, a: 0, ..alloc }]
        })
    }

    /// An allocator that has ended owes something while other code captures, and another one is trimmed.
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

    /// A limit below what is taken, and none again.
    fn limits(self) -> impl Strategy<Value = Vec<Step>> {
        (0..self.threads, 0..3_u8, self.fault()).prop_map(|(thread, a, fault)| {
            let limit = Step { thread, verb: Verb::Limit, a, b: 1, c: 0, fault };
            vec![Step { verb: Verb::Alloc, c: 6, fault: 0, ..limit }, limit, Step { b: 0, fault: 0, ..limit }]
        })
    }

    /// A capture, what is done beside it, perhaps by another thread, and its end. Or one that begins inside a call.
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
                // On a stream that all know, which freed what another one wants.
                let (door, on) = (a % 3, b % 3);
                let mut steps = Vec::new();
                if a >= 128 {
                    // Where nobody asks whether an event is over, an allocation at the limit waits for the first it gets.
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
            // Some stay open to the program's end, or until another step ends them; some end with a stream of theirs, named again by what follows.
            if end == 6 {
                steps.push(step(Verb::CaptureDies, 0, c, 0, 0));
                steps.push(step(Verb::Alloc, a % 3, a, 3, 0));
            } else if end > 0 {
                steps.push(step(Verb::CaptureEnds, 255, end, 0, 0));
            }
            steps
        })
    }

    /// The same of pinned memory.
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
    /// With fewer steps and faults, while it fails still.
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
