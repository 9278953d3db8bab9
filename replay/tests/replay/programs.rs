//! Generated programs are what they claim to be, judged here by a graph over steps and not by the clocks they were
//! woven with; and shrinking ends at the smallest programs.

use millpond::trace::{Access, BlockNo, Op, Program};
use millpond_replay::{hostile_programs, programs, shrink, shrink_within};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, TestRunner};
use std::collections::HashMap;

/// Steps before each step, closed under transitivity: a bit a step.
struct Before(Vec<Vec<u64>>);

impl Before {
    fn has(&self, later: usize, earlier: usize) -> bool {
        self.0[later][earlier / 64] >> (earlier % 64) & 1 == 1
    }
}

/// Happens-before by the edges of stream order: program order on a stream, event to wait, host waits to all later steps.
fn before(p: &Program) -> Before {
    let words = p.steps.len().div_ceil(64);
    let mut all: Vec<Vec<u64>> = Vec::new();
    let mut last_on = HashMap::new(); // by stream number: what later work on it comes after
    let mut events = HashMap::new();
    let mut host = vec![0u64; words];
    let mut everything: Vec<Vec<u64>> = Vec::new(); // ends of streams that were closed
    let join = |into: &mut Vec<u64>, other: &Vec<u64>| into.iter_mut().zip(other).for_each(|(a, b)| *a |= b);
    for (n, step) in p.steps.iter().enumerate() {
        let o = step.op.operands();
        let mut mine = host.clone();
        let empty = vec![0u64; words];
        match step.op {
            Op::SyncStream { stream } => join(&mut host, last_on.get(&stream).unwrap_or(&empty)),
            Op::SyncEvent { event } => join(&mut host, events.get(&event).unwrap_or(&empty)),
            Op::SyncDevice => {
                last_on.values().chain(&everything).for_each(|end| join(&mut host, end));
            }
            Op::CloseStream { stream } => everything.extend(last_on.remove(&stream)),
            Op::Alloc { .. }
            | Op::FreeOn { .. }
            | Op::Use { .. }
            | Op::Copy { .. }
            | Op::Record { .. }
            | Op::Wait { .. }
            | Op::WaitStream { .. } => {
                let stream = o.stream.unwrap();
                join(&mut mine, last_on.get(&stream).unwrap_or(&empty));
                if let Op::Wait { event, .. } = step.op {
                    join(&mut mine, events.get(&event).unwrap_or(&empty));
                }
                if let Op::WaitStream { on, .. } = step.op {
                    join(&mut mine, last_on.get(&on).unwrap_or(&empty));
                }
                let mut end = mine.clone();
                end[n / 64] |= 1 << (n % 64);
                if let Op::Record { event, .. } = step.op {
                    events.insert(event, end.clone());
                }
                last_on.insert(stream, end);
            }
            _ => {}
        }
        all.push(mine);
    }
    Before(all)
}

/// The steps that break the order: a use not after its allocation or not after a conflicting use, an unrecorded
/// cross-stream use, a free on a stream not after a use.
fn disorder(p: &Program) -> Vec<usize> {
    struct Life {
        home: Option<usize>,
        uses: Vec<(usize, Access)>,
        born: Option<usize>,
    }
    let order = before(p);
    let mut alive: HashMap<BlockNo, Life> = HashMap::new();
    let mut identity = HashMap::new(); // stream number -> which opening
    let mut bad = Vec::new();
    for (n, step) in p.steps.iter().enumerate() {
        if let Op::OpenStream { stream } = step.op {
            identity.insert(stream, n + 1_000_000);
        }
        let who = |s| identity.get(&s).copied().unwrap_or(usize::from(s.0));
        let mut touch = |alive: &mut HashMap<BlockNo, Life>, block, access| {
            let life = alive.get_mut(&block).unwrap();
            let late = |&(u, a): &(usize, Access)| {
                (a == Access::Write || access == Access::Write) && u != n && !order.has(n, u)
            };
            if life.born.is_some_and(|b| !order.has(n, b)) || life.uses.iter().any(late) {
                bad.push(n);
            }
            life.uses.push((n, access));
        };
        match step.op {
            Op::Alloc { block, stream, .. } => {
                alive.insert(block, Life { home: Some(who(stream)), uses: Vec::new(), born: Some(n) });
            }
            Op::AllocPinned { block, .. } => {
                alive.insert(block, Life { home: None, uses: Vec::new(), born: None });
            }
            Op::Use { block, stream, access, recorded } => {
                touch(&mut alive, block, access);
                if !recorded && alive[&block].home != Some(who(stream)) {
                    bad.push(n);
                }
            }
            Op::Copy { to, from, .. } => {
                touch(&mut alive, from, Access::Read);
                touch(&mut alive, to, Access::Write);
            }
            Op::FreeOn { block, .. } => {
                touch(&mut alive, block, Access::Write);
                alive.remove(&block);
            }
            Op::Free { block } | Op::FreeUnknown { block } => {
                alive.remove(&block);
            }
            _ => {}
        }
    }
    bad
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(120))]

    #[test]
    fn programs_are_correct(program in programs(3, 1..120)) {
        prop_assert_eq!(program.check(), Ok(()));
        prop_assert_eq!(disorder(&program), Vec::<usize>::new(), "{}", program);
    }

    #[test]
    fn programs_of_one_and_of_many_streams_are_correct(a in programs(1, 1..60), b in programs(40, 1..60), c in programs(0, 1..9)) {
        for program in [a, b, c] {
            prop_assert_eq!(program.check(), Ok(()));
            prop_assert_eq!(disorder(&program), Vec::<usize>::new(), "{}", program);
        }
    }

    #[test]
    fn fuzz_bytes_give_correct_programs(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
        let program = millpond_replay::from_fuzz(&bytes);
        prop_assert_eq!(program.check(), Ok(()));
        prop_assert_eq!(disorder(&program), Vec::<usize>::new(), "{}", program);
    }

    /// Shrinking ends in a well-formed program that still fails, whatever failing means.
    #[test]
    fn shrinking_keeps_failing(program in hostile_programs(3, 1..60), most in 0usize..300) {
        let fails = |p: &Program| !disorder(p).is_empty();
        let mut calls = 0;
        let small = shrink_within(&program, most, |p| { calls += 1; assert!(p.is_well_formed()); fails(p) });
        prop_assert!(calls <= most);
        if fails(&program) && most > 0 {
            prop_assert!(fails(&small));
            prop_assert!(small.steps.len() <= program.steps.len());
        } else {
            prop_assert_eq!(small, program);
        }
    }
}

/// A share of hostile programs is really wrong, and a share is right: a judge meets both.
#[test]
fn hostile_programs_are_well_formed_and_of_both_kinds() {
    let mut runner = TestRunner::deterministic();
    let strategy = hostile_programs(3, 1..60);
    let mut wrong = 0;
    for _ in 0..100 {
        let program = strategy.new_tree(&mut runner).unwrap().current();
        assert_eq!(program.check(), Ok(()));
        wrong += usize::from(!disorder(&program).is_empty());
    }
    assert!((20..=95).contains(&wrong), "{wrong} of 100");
}

/// Every verb is drawn: nothing of the language is left untested by those who use the strategies.
#[test]
fn programs_use_the_whole_language() {
    let mut runner = TestRunner::deterministic();
    let strategy = programs(4, 150..200);
    let mut seen: HashMap<String, usize> = HashMap::new();
    for _ in 0..40 {
        for step in strategy.new_tree(&mut runner).unwrap().current().steps {
            let text = step.op.to_string();
            let kind: String = text.chars().filter(|c| !c.is_ascii_digit()).collect();
            *seen.entry(kind).or_default() += 1;
        }
    }
    for verb in [
        "alloc b KiB on s",
        "alloc b KiB on s align KiB",
        "alloc-pinned b KiB",
        "free b",
        "free b on s",
        "free b unknown",
        "write b on s",
        "write b on s unrecorded",
        "read b on s",
        "record-use b on s",
        "copy b to b  on s",
        "record e on s",
        "wait s for e",
        "wait s for s",
        "sync s",
        "sync e",
        "sync device",
        "query e",
        "open s",
        "close s",
        "trim s",
        "trim all",
        "limit none",
        "limit MiB",
        "advance s ",
        "tick",
    ] {
        assert!(seen.contains_key(verb), "{verb:?} never drawn; seen {:?}", seen.keys());
    }
}

/// The shrinker of proptest works through the choices: a failure that needs one foreign read ends small.
#[test]
fn strategies_shrink_to_short_programs() {
    let mut runner = TestRunner::new_with_rng(
        Config { cases: 200, failure_persistence: None, ..Config::default() },
        proptest::test_runner::TestRng::deterministic_rng(proptest::test_runner::RngAlgorithm::ChaCha),
    );
    let result = runner.run(&programs(3, 1..100), |p| {
        let foreign = p.steps.iter().any(|s| matches!(s.op, Op::WaitStream { .. }));
        if foreign { Err(TestCaseError::fail("found")) } else { Ok(()) }
    });
    let Err(proptest::test_runner::TestError::Fail(_, small)) = result else { panic!("{result:?}") };
    assert_eq!(small.steps.len(), 1, "{small}");
    assert!(small.is_well_formed());
}

#[test]
fn shrink_finds_the_three_steps_that_matter() {
    let bytes: Vec<u8> = (0..3000u32).map(|k| (k.wrapping_mul(2_654_435_761) >> 23) as u8).collect();
    let program = millpond_replay::from_fuzz(&bytes);
    assert!(program.steps.len() > 200);
    // "Fails" when some block of 1 KiB or more is written and then freed.
    let fails = |p: &Program| {
        let mut written: Vec<BlockNo> = Vec::new();
        let mut sizes = HashMap::new();
        p.steps.iter().any(|s| match s.op {
            Op::Alloc { block, bytes, .. } => sizes.insert(block, bytes).is_some_and(|_| false),
            Op::Use { block, access: Access::Write, .. } if sizes.get(&block) >= Some(&1024) => {
                written.push(block);
                false
            }
            Op::Free { block } => written.contains(&block),
            _ => false,
        })
    };
    assert!(fails(&program));
    let small = shrink(&program, fails);
    assert_eq!(small, shrink(&program, fails), "the same each time");
    let steps: Vec<String> = small.steps.iter().map(ToString::to_string).collect();
    assert_eq!(steps.len(), 3, "{small}");
    assert!(
        steps[0].starts_with("alloc b0 ") && steps[1].starts_with("write b0") && steps[2] == "free b0",
        "{small}"
    );
    let Op::Alloc { bytes, align: None, .. } = small.steps[0].op else { panic!("{small}") };
    assert!((1024..2048).contains(&bytes), "{small}");
    assert_eq!(small.streams, 1, "{small}");
}

#[test]
fn shrink_gives_back_what_does_not_fail() {
    let mut program = Program::new("sound", 1);
    program.push(Op::Tick).push(Op::Free { block: BlockNo(9) });
    assert_eq!(shrink(&program, |_| false), program);
    assert_eq!(shrink_within(&program, 0, |_| true), program);
}
