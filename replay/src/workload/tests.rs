use super::*;
use millpond_trace::{BlockNo, StreamNo, ThreadNo};
use std::collections::{HashMap, HashSet};

/// `count` blocks that live for ten calls each, on the log's streams 0 and 2 in the ratio 3 to 1.
fn log(count: u32) -> Log {
    let mut calls = Vec::new();
    let stream = |b: u32| StreamNo(if b.is_multiple_of(4) { 2 } else { 0 });
    for b in 0..count + 5 {
        if b < count {
            calls.push(Call::alloc(BlockNo(b), 1000 + u64::from(b), stream(b), ThreadNo(0), b.into()));
        }
        if let Some(old) = b.checked_sub(5).filter(|o| o % 7 != 0) {
            calls.push(Call::free(BlockNo(old), 1000 + u64::from(old), stream(old), ThreadNo(0), b.into()));
        }
    }
    Log::new("made", calls, vec![0, 1, 2], vec![0])
}

fn plan(workload: &Workload) -> Plan {
    workload.plan(&log(400)).unwrap()
}

#[test]
fn the_default_is_the_log_itself() {
    let d = plan(&Workload::default());
    assert_eq!((d.streams, d.threads, d.uses.len()), (2, 1, 0), "stream 1 is never named");
    assert_eq!(d.acts.len(), log(400).calls.len());
    for (act, call) in d.acts.iter().zip(&log(400).calls) {
        assert_eq!(act.stream, call.stream().0 / 2);
        assert_eq!(matches!(act.what, What::Alloc { .. }), call.action() == Action::Alloc);
    }
}

#[test]
fn own_streams_stay_apart_and_share_by_weight() {
    let d = plan(&Workload { streams: Some(9), ..Workload::default() });
    let mut used: HashMap<u16, HashSet<u16>> = HashMap::new();
    for (act, call) in d.acts.iter().zip(&log(400).calls) {
        used.entry(call.stream().0).or_default().insert(act.stream);
    }
    assert!(used[&0].is_disjoint(&used[&2]));
    // One each, and 7 to share: 5 by three quarters, the rest to the last.
    assert_eq!((used[&0].len(), used[&2].len()), (6, 3));
    assert_eq!(d.streams, 9);
}

#[test]
fn too_few_streams_are_shared() {
    let d = plan(&Workload { streams: Some(1), ..Workload::default() });
    assert_eq!(d.streams, 1);
    assert!(d.acts.iter().all(|a| a.stream == 0));
}

#[test]
fn streams_and_threads_come_in_runs() {
    let d = plan(&Workload { streams: Some(8), threads: Some(4), ..Workload::default() });
    let changes = d.acts.windows(2).filter(|w| w[0].thread != w[1].thread).count();
    assert!(changes > 10 && changes < d.acts.len() / 4, "{changes} of {}", d.acts.len());
    assert_eq!(d.acts.iter().map(|a| a.thread).collect::<HashSet<_>>().len(), 4);
}

#[test]
fn the_same_seed_gives_the_same_and_another_does_not() {
    let with = |seed| {
        format!("{:?}", plan(&Workload { streams: Some(4), uses: 0.3, seed, ..Workload::default() }).acts)
    };
    assert_eq!(with(1), with(1));
    assert_ne!(with(1), with(2));
}

#[test]
fn threads_change_nothing_but_threads() {
    let acts = |threads| {
        let plan = plan(&Workload { streams: Some(4), threads, uses: 0.3, ..Workload::default() });
        plan.acts.into_iter().map(|a| format!("{:?}", Act { thread: 0, ..a })).collect::<Vec<_>>()
    };
    assert_eq!(acts(None), acts(Some(7)));
}

#[test]
fn a_use_lies_in_its_blocks_life_on_another_stream() {
    let d = plan(&Workload { streams: Some(3), uses: 0.5, ..Workload::default() });
    assert!(d.uses.len() > 150, "half of 400 blocks, one or two each: {}", d.uses.len());
    let mut home: HashMap<u32, u16> = HashMap::new();
    let mut seen = HashSet::new();
    for act in &d.acts {
        match act.what {
            What::Alloc { .. } => assert!(home.insert(act.slot, act.stream).is_none()),
            What::Free | What::FreeOn { .. } => assert_eq!(home.remove(&act.slot), Some(act.stream)),
            What::CrossStreamUse { number } => {
                assert_eq!(home[&act.slot], act.stream);
                assert_ne!(d.uses[number as usize].stream, act.stream);
                assert!(seen.insert(number));
            }
        }
    }
    assert_eq!(seen.len(), d.uses.len(), "each happens once");
    let declared: HashSet<_> = d.uses.iter().map(|v| format!("{:?}", v.declared)).collect();
    assert_eq!(declared.len(), 5, "every way of telling occurs: {declared:?}");
    assert!(d.uses.iter().all(|v| v.bug.is_none()));
}

#[test]
fn one_stream_gets_another_for_its_uses() {
    let d = plan(&Workload { streams: Some(1), uses: 1.0, ..Workload::default() });
    assert_eq!(d.streams, 2);
    assert!(d.uses.iter().all(|v| v.stream == 1));
    assert!(d.acts.iter().all(|a| a.stream == 0), "no block lives there");
}

#[test]
fn injected_bugs_come_in_all_kinds_and_only_where_they_break_something() {
    let d = plan(&Workload { streams: Some(3), uses: 1.0, broken: 1.0, ..Workload::default() });
    let kinds: HashSet<_> = d.uses.iter().map(|v| format!("{:?}", v.bug)).collect();
    assert_eq!(kinds.len(), 3, "{kinds:?}");
    for v in &d.uses {
        match v.bug {
            Some(InjectedBug::Undeclared) => assert_eq!(v.access, Access::Read),
            Some(InjectedBug::Unjoined) => assert_eq!(v.access, Access::Write),
            bug => assert_eq!(bug, Some(InjectedBug::Unordered)),
        }
    }
}

#[test]
fn acts_of_a_slot_are_counted() {
    for racy in [false, true] {
        let d = plan(&Workload { uses: 0.5, threads: Some(3), racy, ..Workload::default() });
        let mut turns = vec![0; d.slots as usize];
        for act in &d.acts {
            assert_eq!(act.turn, turns[act.slot as usize]);
            turns[act.slot as usize] += 1;
        }
        let most_live = 400 / 7 + 8;
        assert!(if racy { d.slots == 400 } else { d.slots <= most_live }, "{racy}: {} slots", d.slots);
    }
}

#[test]
fn a_free_on_another_stream_of_the_log_stays_one() {
    let calls = vec![
        Call::alloc(BlockNo(0), 512, StreamNo(0), ThreadNo(0), 0),
        Call::alloc(BlockNo(1), 512, StreamNo(1), ThreadNo(0), 1),
        Call::free(BlockNo(0), 512, StreamNo(1), ThreadNo(0), 2),
    ];
    let log = Log::new("", calls, vec![0, 1], vec![0]);
    let d = Workload::default().plan(&log).unwrap();
    assert!(matches!(d.acts[2].what, What::FreeOn { other: 1 }), "{:?}", d.acts[2]);
    assert_eq!(d.acts[2].stream, 0, "the last read is at home");
}
