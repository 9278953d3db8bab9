//! The text form and the rules of a well-formed program, by example. Round trips over all programs are in
//! `replay/tests/replay/codec.rs`, in the package of `replay`.

use super::*;

const ALL: &str = "millpond trace 1
name \"every verb\"
streams 2
alloc b0 64KiB on s0
alloc b1 1000 on s0 align 4KiB
alloc-pinned b2 64KiB
write b0 on s0
wait s1 for s0
t1: read b0 on s1
read b0 on s0 unrecorded
record-use b0 on s1
share b1 with s1
copy b2 to b0 512 on s1
record e0 on s1
record-use b0 until e0
wait s0 for e0
query e0
sync e0
sync s0
sync device
open s2
advance s2 4294967295
close s2
free b0
free b1 on s1
alloc b0 0 on s0
free b0 unknown
t65535: free b2
trim s0
trim all
limit 1GiB
limit none
tick
not-ready 1
";

#[test]
fn every_verb_reads_back_as_written() {
    let program = Program::from_text_checked(ALL).unwrap();
    assert_eq!(program.to_string(), ALL);
    assert_eq!(program.steps.len(), ALL.lines().count() - 3);
    assert_eq!(program.steps[5].thread, ThreadNo(1));
    assert_eq!(
        program.steps[1].op,
        Op::Alloc { block: BlockNo(1), bytes: 1000, align: Some(4096), stream: StreamNo(0) }
    );
}

#[test]
fn comments_blank_lines_bare_names_and_blanks_mean_nothing() {
    let text = "\u{feff}# a story\n\n  millpond   trace 1 # version\nname short\nstreams 1\n\talloc b7 4096 on s0# glued\n";
    let written = Written::parse(text).unwrap();
    assert_eq!(written.program.name, "short");
    assert_eq!(written.lines, [6]);
    assert_eq!(
        written.program.to_string(),
        "millpond trace 1\nname \"short\"\nstreams 1\nalloc b7 4KiB on s0\n"
    );
}

#[test]
fn any_name_survives() {
    for name in ["", "a # b", "say \"x\\y\"", "two\nlines\r\t\u{1b}", "naïve \u{85}\u{2028}"] {
        let program = Program::new(name, 1);
        assert_eq!(program.to_string().parse(), Ok(program), "{name:?}");
    }
}

/// The message of the error in `lines`, which follow a good header of two lines.
fn error(lines: &str) -> String {
    let text = format!("millpond trace 1\nstreams 2\n{lines}");
    Program::from_text_checked(&text).unwrap_err().to_string()
}

#[test]
fn errors_name_the_place_what_was_found_and_what_was_expected() {
    insta::assert_snapshot!(
        [
            "alloc b0 64kb on s0",
            "alloc b0 on s0",
            "alloc b0 17000000TiB on s0",
            "alloc b0 1 on s0 aligned 8",
            "alloc b4294967296 1 on s0",
            "free b0 soon",
            "tick\ntick tock",
            "frobnicate b0",
            "  write b0 to s0",
            "read b0 on s99999",
            "wait s0 for t1",
            "sync world",
            "t: free b0",
            "t1:",
            "limit lots",
            "advance s0 -1",
            "advance s0 +1",
            "tick\nname late",
            "streams 3",
            "query",
        ]
        .map(error)
        .join("\n"),
        @r#"
        line 3, column 10: found "64kb"; expected a size in bytes, like 4096 or 64KiB
        line 3, column 10: found "on"; expected a size in bytes, like 4096 or 64KiB
        line 3, column 10: found "17000000TiB"; expected a size below 2^64 bytes
        line 3, column 18: found "aligned"; expected `align`
        line 3, column 7: found "b4294967296"; expected a block, b0 to b4294967295
        line 3, column 9: found "soon"; expected `on` and a stream, `unknown`, or the end of the line
        line 4, column 6: found "tock"; expected the end of the line
        line 3, column 1: found "frobnicate"; expected a verb: alloc, alloc-pinned, free, read, write, record-use, share, copy, record, wait, sync, query, open, close, trim, limit, advance, tick or not-ready
        line 3, column 12: found "to"; expected `on`
        line 3, column 12: found "s99999"; expected a stream, s0 to s65535
        line 3, column 13: found "t1"; expected a stream, s0 to s65535
        line 3, column 6: found "world"; expected a stream, an event, or `device`
        line 3, column 1: found "t"; expected a thread, t0 to t65535
        line 3, column 4: found nothing; expected a verb: alloc, alloc-pinned, free, read, write, record-use, share, copy, record, wait, sync, query, open, close, trim, limit, advance, tick or not-ready
        line 3, column 7: found "lots"; expected a size in bytes, like 4096 or 64KiB
        line 3, column 12: found "-1"; expected how many pieces of work
        line 3, column 12: found "+1"; expected how many pieces of work
        line 4, column 1: found "name"; expected an operation: the header comes before the first one
        line 3, column 1: found "streams"; expected it once only
        line 3, column 6: found nothing; expected an event, e0 to e65535
        "#
    );
    insta::assert_snapshot!(
        ["", "# only a comment\n", "Thread,Time,Action\n", "millpond trace 2\n", "millpond trace x\n",
         "millpond trace 1\n", "millpond trace 1\ntick", "millpond trace 1\nname \"open\nstreams 1",
         "millpond trace 1\nname \"a\\q\"", "millpond trace 1\nname"]
            .map(|text| Program::from_text_checked(text).unwrap_err().to_string())
            .join("\n"),
        @r#"
        line 1, column 1: found nothing; expected `millpond trace 1`, the first line
        line 2, column 1: found nothing; expected `millpond trace 1`, the first line
        line 1, column 1: found "Thread,Time,Action"; expected `millpond trace 1`, the first line
        line 1, column 16: found "2"; expected version 1: a newer millpond wrote this, read it with that one
        line 1, column 16: found "x"; expected the version, 1
        line 2, column 1: found nothing; expected `streams` and their count
        line 2, column 1: found "tick"; expected `streams` and their count before the first operation
        line 2, column 6: found "\""; expected a closing quote on the same line
        line 2, column 8: found "\\"; expected one of \" \\ \n \u{1b}
        line 2, column 5: found nothing; expected a name, in quotes if it has blanks
        "#
    );
}

#[test]
fn broken_rules_name_the_lines() {
    insta::assert_snapshot!(
        [
            "alloc b0 1 on s0\n# comment\nalloc b0 2 on s0",
            "alloc b0 1 on s0\nfree b0\nfree b0",
            "read b3 on s1",
            "wait s1 for s2",
            "open s1",
            "close s0\nrecord e0 on s0",
            "alloc-pinned b0 8\nfree b0 on s1",
            "alloc-pinned b0 8\nshare b0 with s0",
            "alloc b0 8 on s0\ncopy b0 to b0 8 on s0",
            "alloc-pinned b0 8\nalloc-pinned b1 8\ncopy b0 to b1 8 on s0",
            "alloc b0 8 on s0\nalloc b1 9 on s0\ncopy b1 to b0 9 on s0",
        ]
        .map(error)
        .join("\n"),
        @r#"
        line 5, column 1: found "alloc b0 2 on s0"; b0 is alive since line 3: free it first, or give another number
        line 5, column 1: found "free b0"; b0 is not alive: line 4 freed it
        line 3, column 1: found "read b3 on s1"; b3 is not alive: nothing before this allocates it
        line 3, column 1: found "wait s1 for s2"; s2 is not open: open it, or raise the header's count of streams
        line 3, column 1: found "open s1"; s1 is open already: close it first
        line 4, column 1: found "record e0 on s0"; s0 is not open: open it, or raise the header's count of streams
        line 4, column 1: found "free b0 on s1"; b0 is pinned memory, which no stream's pool owns: free it with a plain free
        line 4, column 1: found "share b0 with s0"; b0 is pinned memory, which belongs to no stream: record each use with `record-use`
        line 4, column 1: found "copy b0 to b0 8 on s0"; a copy from b0 to b0 needs two different blocks, one of them device memory
        line 5, column 1: found "copy b0 to b1 8 on s0"; a copy from b0 to b1 needs two different blocks, one of them device memory
        line 5, column 1: found "copy b1 to b0 9 on s0"; a copy of 9 bytes; the shorter block has 8
        "#
    );
}

#[test]
fn a_fault_names_the_step() {
    let mut p = Program::new("", 1);
    p.push(Op::Tick).push(Op::Free { block: BlockNo(0) });
    let fault = p.check().unwrap_err();
    assert_eq!(fault.step, 1);
    assert_eq!(fault.to_string(), "step 1: b0 is not alive: nothing before this allocates it");
}

/// For programs that are made step by step: what breaks a rule is refused by its number, and changes nothing.
#[test]
fn rules_judge_step_by_step() {
    let mut rules = Rules::new(1);
    let alloc = Op::Alloc { block: BlockNo(7), bytes: 8, align: None, stream: StreamNo(0) };
    assert_eq!(rules.step(&alloc), Ok(()));
    let fault = rules.step(&Op::CloseStream { stream: StreamNo(1) }).unwrap_err();
    assert_eq!((fault.step, rules.steps()), (1, 2));
    assert_eq!(fault.reason, Reason::StreamNotOpen { stream: StreamNo(1) });
    assert_eq!(rules.step(&alloc).unwrap_err().reason, Reason::BlockAlive { block: BlockNo(7), since: 0 });
    assert_eq!(rules.step(&Op::Free { block: BlockNo(7) }), Ok(()));
    assert_eq!(rules.step(&alloc), Ok(()));
}

#[test]
fn normalise_drops_what_makes_no_sense_and_numbers_the_rest_again() {
    let program: Program = "millpond trace 1\nstreams 9
        t9: alloc b70 1 on s1
        free b71
        alloc b70 2 on s0
        t4: record e5 on s1
        free b70
        t9: alloc b70 3 on s1
        wait s9 for e5
        wait s0 for e5
        alloc b3 4 on s0
        free b70
        free b70
    "
    .parse()
    .unwrap();
    assert!(!program.is_well_formed());
    let n = program.normalise();
    insta::assert_snapshot!(n, @r"
        millpond trace 1
        streams 2
        alloc b0 1 on s1
        t1: record e0 on s1
        t2: free b0
        alloc b1 3 on s1
        t2: wait s0 for e0
        t2: alloc b2 4 on s0
        t2: free b1
        ");
    assert!(n.is_well_formed());
    assert_eq!(n.normalise(), n);
}

#[test]
fn normalise_keeps_every_step_of_a_well_formed_program() {
    let program = Program::from_text_checked(ALL).unwrap();
    let n = program.normalise();
    assert_eq!(n.steps.len(), program.steps.len());
    // The second life of b0 is a block of its own.
    assert!(n.to_string().contains("alloc b3 0 on s0\nfree b3 unknown"));
}

mod recorders {
    use crate::*;
    use millpond_driver::units::{Addr, AllocationId, DeviceId, StreamId};
    use std::io::{self, Write};

    fn story() -> Vec<Event> {
        let id = AllocationId { pool: 2, chunk: 3, generation: 1 };
        let (addr, stream) = (Addr(0x8_0000_0000), StreamId(7));
        vec![
            Event::Grow { addr, bytes: 2 << 20, stream },
            Event::Allocate { id, addr, requested: 24, rounded: 512, stream, hit: false },
            Event::Free { id, addr, rounded: 512, stream, in_flight: true },
            Event::Migrate { addr, bytes: 512, from: stream, to: StreamId(8) },
            Event::Wait { stream, on: Some(StreamId(8)) },
            Event::Wait { stream, on: None },
            Event::HostWait { stream: Some(stream) },
            Event::HostWait { stream: None },
            Event::Trim { addr, bytes: 2 << 20 },
            Event::SoftLimit { reserved: 3 << 20, limit: 2 << 20, of_group: true },
            Event::OutOfMemory { requested: u64::MAX, stream },
        ]
    }

    /// Row C8: the first fields of `alloc`, `malloc` and `free` lines are those of the other pool's hook, in its order.
    #[test]
    fn c8_json_lines() {
        let ring = Ring::new(100);
        let lines = JsonLines::new(DeviceId(1), Vec::new());
        for (n, e) in story().iter().enumerate() {
            ring.event(n as u64, e);
            lines.event(n as u64, e);
        }
        let mut out = Vec::new();
        ring.write_json(DeviceId(1), &mut out).unwrap();
        lines.finish().unwrap();
        let text = String::from_utf8(out).unwrap();
        insta::assert_snapshot!(text, @r#"
        {"hook":"alloc","device_id":1,"mem_size":2097152,"mem_ptr":34359738368,"stream":7,"number":0}
        {"hook":"malloc","device_id":1,"size":24,"mem_size":512,"mem_ptr":34359738368,"pmem_id":"0x20000000300000001","stream":7,"hit":false,"number":1}
        {"hook":"free","device_id":1,"mem_size":512,"mem_ptr":34359738368,"pmem_id":"0x20000000300000001","stream":7,"in_flight":true,"number":2}
        {"hook":"migrate","device_id":1,"mem_size":512,"mem_ptr":34359738368,"from":7,"to":8,"number":3}
        {"hook":"wait","device_id":1,"stream":7,"on":8,"number":4}
        {"hook":"wait","device_id":1,"stream":7,"on":null,"number":5}
        {"hook":"host_wait","device_id":1,"stream":7,"number":6}
        {"hook":"host_wait","device_id":1,"stream":null,"number":7}
        {"hook":"trim","device_id":1,"mem_size":2097152,"mem_ptr":34359738368,"number":8}
        {"hook":"soft_limit","device_id":1,"reserved":3145728,"limit":2097152,"of_group":true,"number":9}
        {"hook":"out_of_memory","device_id":1,"size":18446744073709551615,"stream":7,"number":10}
        "#);
        #[cfg(feature = "serde")]
        for line in text.lines() {
            serde_json::from_str::<serde_json::Value>(line).unwrap();
        }
    }

    #[cfg(feature = "serde")]
    #[test]
    fn events_and_programs_are_read_back_as_they_were_written() {
        let text = serde_json::to_string(&story()).unwrap();
        assert_eq!(serde_json::from_str::<Vec<Event>>(&text).unwrap(), story());
        let program: Program = super::ALL.parse().unwrap();
        let text = serde_json::to_string(&program).unwrap();
        assert_eq!(serde_json::from_str::<Program>(&text).unwrap(), program);
    }

    #[test]
    fn the_ring_keeps_the_newest_and_counts_the_rest() {
        let ring = Ring::new(3);
        let events = story();
        for (n, e) in events.iter().enumerate() {
            ring.event(n as u64, e);
        }
        assert_eq!((ring.dropped(), ring.capacity()), (8, 3));
        assert_eq!(ring.events().iter().map(|(n, _)| *n).collect::<Vec<_>>(), [8, 9, 10]);
        assert_eq!(ring.events()[2].1, events[10]);
        assert_eq!(ring.take().len(), 3);
        assert_eq!((ring.events().len(), ring.dropped()), (0, 0));
        let none = Ring::new(0);
        none.event(0, &events[0]);
        assert_eq!((none.events().len(), none.dropped()), (0, 1));
    }

    #[test]
    fn the_ring_takes_events_from_many_threads() {
        let ring = Ring::new(64);
        std::thread::scope(|s| {
            for t in 0..4 {
                let ring = &ring;
                s.spawn(move || (0..100).for_each(|n| ring.event(t * 100 + n, &story()[0])));
            }
        });
        assert_eq!(ring.events().len() as u64 + ring.dropped(), 400);
    }

    #[test]
    fn a_failing_writer_is_reported_once_and_stops() {
        struct Full(usize);
        impl Write for Full {
            fn write(&mut self, b: &[u8]) -> io::Result<usize> {
                self.0 += 1;
                if self.0 == 1 { Ok(b.len()) } else { Err(io::Error::other("no space")) }
            }
            fn flush(&mut self) -> io::Result<()> {
                assert_eq!(self.0, 2, "nothing is written after a failure");
                Ok(())
            }
        }
        let lines = JsonLines::new(DeviceId(0), Full(0));
        for e in story() {
            lines.event(0, &e);
        }
        assert_eq!(lines.finish().unwrap_err().to_string(), "no space");
        lines.finish().unwrap();
    }

    /// A disk is full, and then is not: the lines end where the failure was.
    #[test]
    fn nothing_is_written_behind_a_failure_that_was_returned() {
        struct Once(u32);
        impl Write for Once {
            fn write(&mut self, b: &[u8]) -> io::Result<usize> {
                self.0 += 1;
                assert!(self.0 < 3, "nothing is written after a failure");
                if self.0 == 1 { Ok(b.len()) } else { Err(io::Error::other("no space")) }
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let lines = JsonLines::new(DeviceId(0), Once(0));
        let events = story();
        lines.event(0, &events[0]);
        lines.event(1, &events[1]);
        lines.finish().unwrap_err();
        lines.event(2, &events[2]);
        lines.finish().unwrap();
    }

    #[test]
    fn the_last_of_all_streams_is_one_of_a_log_too() {
        let last = StreamNo(u16::MAX);
        let mut program = Program::new("far", 0);
        program.push(Op::OpenStream { stream: last });
        program.push(Op::Alloc { block: BlockNo(0), bytes: 512, align: None, stream: last });
        let (log, left_out) = Log::from_program(&program).unwrap();
        assert_eq!((log.streams.len(), left_out), (1 << 16, 1));
        assert_eq!(log.to_program().check(), Ok(()));
    }

    #[test]
    fn events_become_a_log() {
        let mut events: Vec<(u64, Event)> =
            story().into_iter().enumerate().map(|(n, e)| (n as u64, e)).collect();
        events.push((10, events[2].1.clone()));
        let log = Log::from_events("run", &events);
        let calls: Vec<String> = log.calls.iter().map(|c| format!("{c:?}")).collect();
        assert_eq!(calls, ["t0: alloc b0 24 on s1 at 1 us", "t0: free b0 24 on s1 at 2 us"]);
        assert_eq!((log.streams, log.skipped), (vec![0, 7], 1));
    }
}
