//! Importing: the recorded traces have the calls they should, each kind of bad input names its place, and no bytes make
//! the importer panic.

use flate2::{Compression, write::GzEncoder};
use millpond::trace::{Action, BlockNo, Log, Op, Program, Ring, StreamNo};
use millpond::units::{DeviceId, GIB};
use millpond::{Allocator, Config, Trim};
use millpond_replay::import::{FilePosition, ImportError, Options, Reason, Trace, open, read};
use millpond_replay::{Workload, programs, replay, replay_log};
use millpond_sim::Sim;
use proptest::prelude::*;
use std::io::{self, Read, Write};
use std::sync::Arc;

fn any_device() -> Options {
    Options::default()
}
const HEADER: &str = "Thread,Time,Action,Pointer,Size,Stream\n";

fn recorded(name: &str) -> Log {
    let path = format!("{}/../tests/traces/{name}.csv.gz", env!("CARGO_MANIFEST_DIR"));
    match open(path, any_device()) {
        Ok(Trace::Log(log)) => log,
        other => panic!("{name}: {other:?}"),
    }
}

fn log(text: &str) -> Log {
    match read("log", text.as_bytes(), any_device()) {
        Ok(Trace::Log(log)) => log,
        other => panic!("{other:?}"),
    }
}

/// A log of `n` lines.
fn lines(n: u32, line: impl Fn(u32) -> String) -> String {
    (0..n).fold(String::from(HEADER), |text, k| text + &line(k) + "\n")
}

fn refused(bytes: impl AsRef<[u8]>) -> ImportError {
    read("file", bytes.as_ref(), any_device()).unwrap_err()
}

fn gz(bytes: &[u8]) -> Vec<u8> {
    let mut e = GzEncoder::new(Vec::new(), Compression::fast());
    e.write_all(bytes).unwrap();
    e.finish().unwrap()
}

/// What a recorder wrote is read back as the calls that it saw, and replays; an allocation from before the recording is skipped.
#[test]
fn a_recorders_lines_are_a_log() {
    let ring = Arc::new(Ring::new(10_000));
    let sim = Sim::new(GIB);
    let gpu = Allocator::new(sim.clone(), Config::default().sink(ring.clone())).unwrap();
    let text = "millpond trace 1\nstreams 2\nalloc b0 1MiB on s0\nalloc b1 24 on s1\nfree b0\nalloc b0 3000 on s1\nalloc b2 1GiB on s0\n\
                free b1\nalloc b3 5 on s0\nfree b3\nalloc b4 6 on s0\n";
    replay(&Program::from_text_checked(text).unwrap(), &gpu).unwrap();
    // Events of frees come with the next call that may deliver them.
    gpu.trim(Trim::All).unwrap();
    let device = DeviceId(3);
    let mut lines = Vec::new();
    ring.write_json(device, &mut lines).unwrap();
    let lines = String::from_utf8(lines).unwrap();
    let from_events = Log::from_events("log", &ring.events());
    let shape = |log: &Log| {
        let stream = |n: StreamNo| log.streams[usize::from(n.0)];
        let calls = log.calls.iter().map(|c| (c.action(), c.block(), c.bytes(), stream(c.stream())));
        (calls.collect::<Vec<_>>(), log.skipped)
    };
    let imported = log(&lines);
    assert_eq!(shape(&imported), shape(&from_events));
    assert_eq!(imported.info().allocations, 5, "{lines}");
    let outcome = replay_log(&imported, &Workload::default(), Sim::new(GIB), Config::default(), &|_| {});
    assert!(outcome.unwrap().is_clean());

    let (_, cut) = lines.split_once("\n{\"hook\":\"free\"").unwrap();
    let cut = format!("{{\"hook\":\"free\"{cut}");
    assert!(log(&cut).skipped > 0, "{cut}");
    let other = lines.replace("\"device_id\":3", "\"device_id\":0");
    let both = format!("{lines}{other}");
    assert!(matches!(refused(&both).reason, Reason::SeveralDevices { .. }));
    let chosen = read("log", both.as_bytes(), Options::default().device(3)).unwrap();
    assert!(matches!(chosen, Trace::Log(l) if shape(&l) == shape(&from_events)));
    let none = read("log", lines.as_bytes(), Options::default().device(2)).map(drop).unwrap_err();
    assert!(none.to_string().ends_with("no device 2: the file has traces of 3"), "{none}");
}

/// `CuPy`'s printing hook writes the same fields and no more.
#[test]
fn a_hooks_lines_are_a_log() {
    let malloc = r#"{"hook":"malloc","device_id":0,"size":24,"mem_size":512,"mem_ptr":7,"pmem_id":"0x1"}"#;
    let free = r#"{"hook":"free","device_id":0,"mem_size":512,"mem_ptr":7,"pmem_id":"0x1"}"#;
    let l = log(&format!("{malloc}\n{{\"hook\":\"alloc\",\"mem_size\":512}}\n\n{free}\n{malloc}\n"));
    let calls: Vec<_> = l.calls.iter().map(|c| (c.action(), c.block(), c.bytes(), c.micros())).collect();
    let expected = [(Action::Alloc, 0, 24, 0), (Action::Free, 0, 24, 3), (Action::Alloc, 1, 24, 4)];
    assert_eq!(calls, expected.map(|(action, block, bytes, at)| (action, BlockNo(block), bytes, at)));
    for (lines, words) in [
        (
            format!("{malloc}\n{malloc}\n"),
            "line 2, column 1: an allocation of the name \"0x1\", which is alive since line 1",
        ),
        (
            "{\"hook\":\"malloc\",\"size\":1}".into(),
            "line 1, column 1: an allocation or a free without `pmem_id`",
        ),
        (
            "{\"hook\":\"malloc\",\"pmem_id\":1}".into(),
            "line 1, column 1: an allocation or a free without `size`",
        ),
        (format!("{malloc}\n{{\"hook\":\n"), "line 2, column 8: no event: EOF while parsing a value"),
        ("{\"hook\":\"wait\",\"stream\":1}".into(), "no allocations"),
    ] {
        let said = refused(&lines).to_string();
        assert!(said.contains(words), "{said}");
    }
}

/// Calls, allocations, streams, blocks alive at the end: counted from the files with other tools.
#[test]
fn recorded_traces_have_every_call() {
    for (name, calls, allocations, streams) in [
        ("gpt2_varlen_train", 170_483, 85_243, 1),
        ("gnn_train", 44_115, 22_059, 1),
        ("seq2seq_lstm", 63_123, 31_563, 1),
        ("prefetch_multistream", 10_199, 5_101, 4),
        ("llama_generate", 1_100_965, 550_483, 1),
    ] {
        let log = recorded(name);
        let info = log.info();
        assert_eq!(info.name, name);
        assert_eq!((info.calls, info.allocations, info.streams), (calls, allocations, streams), "{name}");
        assert_eq!(info.blocks_at_end, 2 * allocations - calls, "{name}");
        assert_eq!(info.sizes.iter().sum::<u64>(), allocations, "{name}");
        assert!(info.peak_live <= info.peak_live_rounded && info.largest <= info.peak_live, "{name}");
        assert_eq!((info.threads, info.skipped), (1, 0), "{name}");
        assert_eq!(log.streams, (0..streams).collect::<Vec<_>>(), "{name}");
    }
}

#[test]
fn a_recorded_trace_survives_rmm_csv_and_program_forms() {
    let log = recorded("prefetch_multistream");
    let mut csv = Vec::new();
    log.write_rmm(&mut csv).unwrap();
    assert_eq!(read(&log.name, csv.as_slice(), any_device()), Ok(Trace::Log(log.clone())));

    let program = log.to_program();
    assert_eq!(program.check(), Ok(()));
    assert_eq!(
        read("other", program.to_string().as_bytes(), any_device()),
        Ok(Trace::Program(program.clone()))
    );
    assert_eq!(
        read("other", program.to_binary().as_slice(), any_device()),
        Ok(Trace::Program(program.clone()))
    );
    let (back, left_out) = Log::from_program(&program).unwrap();
    assert_eq!(left_out, 0);
    assert_eq!(back.to_program(), program);
    let same = |a: &Log, b: &Log| {
        let of = |l: &Log| {
            l.calls.iter().map(|c| (c.action(), c.block(), c.bytes(), c.stream())).collect::<Vec<_>>()
        };
        of(a) == of(b)
    };
    assert!(same(&back, &log));
}

/// Blocks of no bytes are calls as others are.
#[test]
fn a_log_of_empty_blocks_survives_rmm_csv() {
    let program: Program =
        "millpond trace 1\nstreams 3\nalloc b0 0 on s0\nfree b0\nalloc b1 0 on s2\n".parse().unwrap();
    let (log, _) = Log::from_program(&program).unwrap();
    let mut csv = Vec::new();
    log.write_rmm(&mut csv).unwrap();
    let Ok(Trace::Log(back)) = read("log", csv.as_slice(), any_device()) else { panic!() };
    assert_eq!((back.calls.len(), back.skipped), (3, 0));
    assert_eq!(back.streams, [0, 2], "by their own values; nothing was on s1");
}

#[test]
fn columns_are_found_by_name_and_numbers_read_both_ways() {
    let log = log("\u{feff}Size, stream ,Note,Action,Pointer,Time,Thread\r\n\
         1024,0x7f00,x,allocate,0xABC0,17,9\r\n\
         \r\n\
         10,0,,allocate,2752,18,0x10\r\n\
         0,0x7f00,,allocate failure,0x0,18,9\r\n\
         0,0,,free,43968,20,9");
    assert_eq!(log.streams, [0, 0x7f00]);
    assert_eq!(log.threads, [9, 16]);
    assert_eq!(log.skipped, 1);
    let calls: Vec<String> = log.calls.iter().map(|c| format!("{c:?}")).collect();
    assert_eq!(
        calls,
        [
            "t0: alloc b0 1024 on s1 at 17 us",
            "t1: alloc b1 10 on s0 at 18 us",
            "t0: free b0 1024 on s0 at 20 us"
        ]
    );
    // The free on another stream stays one.
    assert_eq!(log.to_program().steps[2].op, Op::FreeOn { block: BlockNo(0), stream: StreamNo(0) });
}

/// RMM itself writes wall-clock times and pointers that come back; an empty allocation gives the null pointer each time.
#[test]
fn logs_as_rmm_writes_them() {
    let log = log(&format!(
        "{HEADER}\
         140,23:59:59.999999,allocate,0x7f0,512,0x0\n\
         140,23:59:59.999998,free,0x7f0,512,0x0\n\
         141,00:00:00:5,allocate,0x7f0,100,0x2\n\
         141,00:00:01,allocate,0x0,0,0x2\n\
         141,00:00:01,allocate,0x0,0,0x2\n\
         141,00:00:01,free,0x0,0,0x2\n"
    ));
    assert_eq!(log.skipped, 3);
    let of = |k: usize| (log.calls[k].action(), log.calls[k].block().0, log.calls[k].micros());
    assert_eq!(
        [of(0), of(1), of(2)],
        [(Action::Alloc, 0, 0), (Action::Free, 0, 0), (Action::Alloc, 1, 500_001)]
    );
    assert_eq!((log.info().peak_live, log.info().live_at_end, log.info().blocks_at_end), (512, 100, 1));
}

/// A line that comes late over midnight is of the day before, and no day passes by it.
#[test]
fn a_late_line_over_midnight_is_of_the_day_before() {
    let log = log(&lines(5, |k| {
        let time = ["23:59:59.900000", "00:00:00.000000", "23:59:59.950000", "00:00:00.100000", "12:30:00"];
        format!("1,{},allocate,{},512,0", time[k as usize], 0x7f0 + k)
    }));
    let micros: Vec<_> = log.calls.iter().map(millpond::trace::Call::micros).collect();
    assert_eq!(micros, [0, 100_000, 50_000, 200_000, 45_000_100_000]);
}

#[test]
fn info_sums_up() {
    let info = log(&format!(
        "{HEADER}0,5,allocate,1,1,0\n0,6,allocate,2,513,0\n0,7,allocate,3,0,0\n0,8,free,1,1,0\n0,9,allocate,4,1025,3\n"
    ))
    .info();
    assert_eq!(
        (info.bytes, info.peak_live, info.peak_live_rounded, info.live_at_end),
        (1539, 1538, 2560, 1538)
    );
    assert_eq!((info.largest, info.micros, info.streams, info.blocks_at_end), (1025, 4, 2, 3));
    assert_eq!(info.sizes, [2, 1, 1]);
}

/// Each bad log, with the place and the words.
#[test]
fn bad_logs_name_line_column_and_reason() {
    let long = format!("{HEADER}{}", "1".repeat(5000));
    let bad = |lines: &str| refused(format!("{HEADER}{lines}")).to_string();
    insta::assert_snapshot!(
        [
            refused("").to_string(),
            refused("\n").to_string(),
            refused("Thread,Time,Action,Pointer,Stream\n").to_string(),
            refused("Thread,Time,Action,Pointer,Size,Size,Stream\n").to_string(),
            refused("0,4,allocate,0,154389504,0\n").to_string(),
            refused([0u8, 159, 146, 150].as_slice()).to_string(),
            refused(&long).to_string(),
            bad("0,1,allocate,16,512"),
            bad("0,1"),
            bad("0,1,allocate,16,12x,0"),
            bad("0,1,allocate,16,-1,0"),
            bad("0,1,allocate,16,99999999999999999999,0"),
            bad("0,1,allocate,0xZZ,512,0"),
            bad("0,1,allocate,,512,0"),
            bad("0,1,allocate,16,512,none"),
            bad("x,1,allocate,16,512,0"),
            bad("0,soon,allocate,16,512,0"),
            bad("0,24:00:00,allocate,16,512,0"),
            bad("0,1:2:3.1234567,allocate,16,512,0"),
            bad("0,1,realloc,16,512,0"),
            bad("0,1,allocate,16,512,0\n\n0,2,free,17,512,0"),
            bad("0,1,allocate,16,512,0\n0,2,free,16,512,0\n0,3,free,16,512,0"),
            bad("0,1,allocate,16,512,0\n0,2,allocate,16,8,0"),
            bad("0,1,allocate,16,512,0\n0,2,free,16,8,0"),
        ]
        .join("\n"),
        @r#"
        file: the file is empty; expected an RMM log, a memory snapshot as JSON, a recorder's JSON lines, or a millpond trace
        file: line 1, column 1: no column Thread in the header ""; expected Thread,Time,Action,Pointer,Size,Stream in any order
        file: line 1, column 1: no column Size in the header "Thread,Time,Action,Pointer,Stream"; expected Thread,Time,Action,Pointer,Size,Stream in any order
        file: line 1, column 33: column Size occurs twice in the header
        file: line 1, column 1: no column Thread in the header "0,4,allocate,0,154389504,0"; expected Thread,Time,Action,Pointer,Size,Stream in any order
        file: line 1, column 1: no column Thread in the header "\0���"; expected Thread,Time,Action,Pointer,Size,Stream in any order
        file: line 2, column 4097: a line of more than 4096 bytes; expected an RMM log with six short columns, or a recorder's JSON lines
        file: line 2, column 20: the line ends before column Stream
        file: line 2, column 4: the line ends before column Action
        file: line 2, column 17: Size is "12x"; expected a number of bytes
        file: line 2, column 17: Size is "-1"; expected a number of bytes
        file: line 2, column 17: Size is "99999999999999999999"; expected a number of bytes
        file: line 2, column 14: Pointer is "0xZZ"; expected an address, decimal or 0x and hexadecimal digits
        file: line 2, column 14: Pointer is ""; expected an address, decimal or 0x and hexadecimal digits
        file: line 2, column 21: Stream is "none"; expected a stream's number or handle
        file: line 2, column 1: Thread is "x"; expected a thread's number
        file: line 2, column 3: Time is "soon"; expected microseconds, or a clock like 15:04:05.123456
        file: line 2, column 3: Time is "24:00:00"; expected microseconds, or a clock like 15:04:05.123456
        file: line 2, column 3: Time is "1:2:3.1234567"; expected microseconds, or a clock like 15:04:05.123456
        file: line 2, column 5: Action is "realloc"; expected allocate, free or allocate failure
        file: line 4, column 10: a free of 17 (0x11), which is not alive: its allocation is missing, or it was freed before
        file: line 4, column 10: a free of 16 (0x10), which is not alive: its allocation is missing, or it was freed before
        file: line 3, column 14: an allocation at 16 (0x10), which is alive since line 2: a free is missing in the log
        file: line 3, column 13: a free of 16 (0x10) with 8 bytes; line 2 allocated it with 512: a call is missing between
        "#
    );
    let e = refused(format!("{HEADER}0,1,allocate,16,512,0\n0,2,free,17,512,0\n"));
    assert_eq!(e.place, FilePosition::Line { line: 3, column: 10 });
    assert_eq!(e.reason, Reason::NotAlive { pointer: 17 });
}

#[test]
fn too_many_streams_are_an_error() {
    let e = refused(lines(70_000, |k| format!("0,1,allocate,{k},8,{}", k + 1)));
    assert_eq!(e.reason, Reason::TooMany { what: "streams", most: 65_535 });
    assert!(matches!(e.place, FilePosition::Line { line: 65_536, .. }), "{e}");
}

#[test]
fn gzip_is_seen_by_its_first_bytes_and_a_cut_is_an_error() {
    let text = lines(3000, |k| format!("0,{k},allocate,{k},512,0"));
    let packed = gz(text.as_bytes());
    let Ok(Trace::Log(log)) = read("x.csv", packed.as_slice(), any_device()) else { panic!() };
    assert_eq!(log.calls.len(), 3000);
    // Two members, one after the other, are one file.
    let (head, tail) = text.split_at(100);
    let members = [gz(head.as_bytes()), gz(tail.as_bytes())].concat();
    assert_eq!(read("x.csv", members.as_slice(), any_device()), Ok(Trace::Log(log)));
    for cut in [2, 5, 12, packed.len() / 2, packed.len() - 9, packed.len() - 1] {
        let e = refused(&packed[..cut]);
        assert!(matches!(e.reason, Reason::Compressed(_)), "cut at {cut}: {e}");
        assert_eq!(e.place, FilePosition::Whole, "cut at {cut}: {e}");
    }
    let mut damaged = packed.clone();
    let middle = damaged.len() / 2;
    damaged[middle..middle + 8].fill(0xff);
    refused(&damaged);
}

/// A reader that fails, and one that gives a byte at a time.
#[test]
fn readers_may_fail_or_trickle() {
    struct Broken;
    impl Read for Broken {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::Error::other("the disk is gone"))
        }
    }
    struct Trickle<'a>(&'a [u8]);
    impl Read for Trickle<'_> {
        fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
            let n = out.len().min(1);
            self.0.read(&mut out[..n])
        }
    }
    let e = read("f", Broken, any_device()).unwrap_err();
    assert_eq!(e.to_string(), "f: cannot be read: the disk is gone");
    let half = HEADER.as_bytes().chain(Broken);
    assert!(matches!(read("f", half, any_device()).unwrap_err().reason, Reason::Read(_)));
    let text = format!("{HEADER}0,1,allocate,16,512,0\n");
    assert!(read("f", Trickle(text.as_bytes()), any_device()).is_ok());
    assert!(read("f", Trickle(&gz(text.as_bytes())), any_device()).is_ok());
    assert!(matches!(open("/no/such/file", any_device()).unwrap_err().reason, Reason::Read(_)));
}

const SNAPSHOT: &str = r#"{
  "segments": [{"blocks": [{"size": 1}]}],
  "device_traces": [
    [],
    [
      {"action": "free_completed", "addr": 99, "size": 4, "stream": 0, "time_us": 1000},
      {"action": "segment_alloc", "addr": 4096, "size": 2097152, "stream": 0, "time_us": 1001, "frames": [{"line": 3}]},
      {"action": "alloc", "addr": 4096, "size": 512, "stream": 0, "frames": [[["deep"]]], "time_us": 1002},
      {"action": "free_requested", "addr": 4096, "size": 512, "stream": 0, "time_us": 1003},
      {"action": "free_completed", "addr": 4096, "size": 512, "stream": 0, "time_us": 1005},
      {"action": "alloc", "addr": 4096, "size": 700, "stream": 140001, "time_us": 1006},
      {"action": "oom", "device_free": 3, "size": 9, "stream": 0},
      {"action": "free_completed", "addr": 4096, "size": 700, "stream": 140001, "time_us": 1009}
    ]
  ]
}"#;

#[test]
fn snapshots_give_allocations_and_requested_frees() {
    for bytes in [SNAPSHOT.as_bytes().to_vec(), gz(SNAPSHOT.as_bytes())] {
        let Ok(Trace::Log(log)) = read("snap", bytes.as_slice(), any_device()) else { panic!() };
        let calls: Vec<String> = log.calls.iter().map(|c| format!("{c:?}")).collect();
        assert_eq!(
            calls,
            [
                "t0: alloc b0 512 on s0 at 2 us",
                "t0: free b0 512 on s0 at 3 us",
                "t0: alloc b1 700 on s1 at 6 us",
                "t0: free b1 700 on s1 at 9 us",
            ]
        );
        assert_eq!((log.streams, log.skipped), (vec![0, 140_001], 1));
    }
    // The traces alone, as a list.
    let list = SNAPSHOT.split_once("\"device_traces\": ").unwrap().1.trim_end_matches('}').trim_end();
    let Ok(Trace::Log(log)) = read("snap", list.as_bytes(), any_device()) else { panic!() };
    assert_eq!(log.calls.len(), 4);
}

#[test]
fn bad_snapshots_name_the_place() {
    let alloc = |addr: u64| format!(r#"{{"action":"alloc","addr":{addr},"size":8,"stream":0}}"#);
    let traces = |t: &str| format!(r#"{{"device_traces":[{t}]}}"#);
    let one = alloc(1);
    let several = traces(&format!("[{one}],[],[{one},{}]", alloc(2)));
    let chosen = |device| read("snap", several.as_bytes(), Options::default().device(device));
    insta::assert_snapshot!(
        [
            refused("{").to_string(),
            refused("{}").to_string(),
            refused("{\n\"device_traces\": 7}").to_string(),
            refused("[[{\"addr\": 1}]]").to_string(),
            refused("[[{\"action\": \"alloc\",\n \"addr\": -1}]]").to_string(),
            refused(traces("")).to_string(),
            refused(traces("[]")).to_string(),
            refused(traces(&format!("[{one},{one}]"))).to_string(),
            refused(traces("[{\"action\":\"alloc\"}]")).to_string(),
            refused(traces("[{\"action\":\"alloc\",\"addr\":3}]")).to_string(),
            refused(traces(&format!("[{one}]")) + "x").to_string(),
            refused(&several).to_string(),
            chosen(7).unwrap_err().to_string(),
        ]
        .join("\n"),
        @r"
        file: line 1, column 1: no memory snapshot: EOF while parsing an object; expected an object with `device_traces`, a list of entries a device
        file: line 1, column 2: no memory snapshot: missing field `device_traces`; expected an object with `device_traces`, a list of entries a device
        file: line 2, column 19: no memory snapshot: invalid type: integer `7`, expected a sequence; expected an object with `device_traces`, a list of entries a device
        file: line 1, column 13: no memory snapshot: missing field `action`; expected an object with `device_traces`, a list of entries a device
        file: line 2, column 12: no memory snapshot: invalid value: integer `-1`, expected u64; expected an object with `device_traces`, a list of entries a device
        file: no allocations: was the history recorded before the snapshot was taken?
        file: no allocations: was the history recorded before the snapshot was taken?
        file: device 0, entry 1: an allocation at 1 (0x1), which is alive since entry 0: a free is missing in the log
        file: device 0, entry 0: an allocation or a free without `addr`
        file: device 0, entry 0: an allocation or a free without `size`
        file: line 1, column 70: no memory snapshot: trailing characters; expected an object with `device_traces`, a list of entries a device
        file: several devices have allocations, choose one: device 0 (1 calls) device 2 (2 calls)
        snap: no device 7: the file has traces of 3, counted from 0
        "
    );
    let Ok(Trace::Log(log)) = chosen(2) else { panic!() };
    assert_eq!(log.calls.len(), 2);
    let deep = "[".repeat(100_000);
    assert!(matches!(refused(&deep).reason, Reason::Json(_)));
}

/// What stands before a file's first word says nothing of what it is: a mark of its encoding, blanks, many of them.
#[test]
fn a_file_may_begin_with_a_mark_and_blanks() {
    let allocation = r#"{"action":"alloc","addr":512,"size":5,"stream":0,"time_us":1}"#;
    let log = format!("{HEADER}1,0,allocate,512,5,0\n");
    let program = "millpond trace 1\nstreams 1\nalloc b0 5 on s0\n".to_owned();
    let texts =
        [format!(r#"{{"device_traces":[[{allocation}]]}}"#), format!("[[{allocation}]]"), program, log];
    for text in &texts {
        for before in
            ["", "\u{feff}", "\n", &" \n".repeat(1000), &("\u{feff}".to_owned() + &"\n".repeat(1000))]
        {
            if text.starts_with("Thread") && before.contains('\n') {
                continue;
            }
            let calls = match read("f", format!("{before}{text}").as_bytes(), any_device()) {
                Ok(Trace::Log(log)) => log.calls.len(),
                Ok(Trace::Program(program)) => program.steps.len(),
                Err(e) => panic!("{} blanks before {text}: {e}", before.len()),
            };
            assert_eq!(calls, 1);
        }
    }
}

#[test]
fn programs_are_checked_on_the_way_in() {
    let text = "millpond trace 1\nstreams 1\nalloc b0 1 on s0\nfree b0\nfree b0\n";
    insta::assert_snapshot!(refused(text), @r#"
        file: line 5, column 1: found "free b0"; b0 is not alive: line 4 freed it
        "#);
    let mut broken = Program::new("", 0);
    broken.push(Op::Free { block: BlockNo(1) });
    insta::assert_snapshot!(refused(broken.to_binary()), @"file: step 0: b1 is not alive: nothing before this allocates it");
    insta::assert_snapshot!(refused(b"millpond trace 1\nstreams 1\ntick \xff\n"), @"file: line 3, column 6: not UTF-8; expected a millpond trace in the text form");
    insta::assert_snapshot!(refused(b"MLPD\x09"), @"file: byte 4: version 9 of the binary form; this millpond reads version 1");
    // A program without a name gets the file's.
    let Ok(Trace::Program(p)) = read("story", "# hi\nmillpond trace 1\nstreams 1\n".as_bytes(), any_device())
    else {
        panic!()
    };
    assert_eq!(p.name, "story");
}

/// Lines made of the pieces of good ones.
fn almost_csv() -> impl Strategy<Value = String> {
    let field = prop_oneof![
        Just("0"),
        Just("1"),
        Just("0x1"),
        Just("allocate"),
        Just("free"),
        Just("allocate failure"),
        Just(""),
        Just("99999999999999999999"),
        Just("1:2:3"),
        Just("é"),
        Just("\0"),
        Just(" "),
    ];
    let line = proptest::collection::vec(field, 0..8).prop_map(|f| f.join(","));
    proptest::collection::vec(line, 0..20).prop_map(|l| format!("{HEADER}{}", l.join("\n")))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300), front in 0usize..6) {
        let fronts: [&[u8]; 6] = [b"", HEADER.as_bytes(), b"\x1f\x8b\x08\0\0\0\0\0\0\xff", b"{\"device_traces\":[[", b"MLPD\x01", b"millpond trace 1\n"];
        let all = [fronts[front], &bytes].concat();
        if let Ok(Trace::Program(p)) = read("f", all.as_slice(), any_device()) {
            prop_assert!(p.is_well_formed());
        }
    }

    #[test]
    fn almost_logs_never_panic(text in almost_csv()) {
        match read("f", text.as_bytes(), any_device()) {
            Ok(Trace::Log(log)) => prop_assert!(log.to_program().is_well_formed()),
            Ok(Trace::Program(p)) => prop_assert!(false, "{}", p),
            Err(e) => prop_assert!(!matches!(e.place, FilePosition::Line { line, .. } if line as usize > text.lines().count() + 1), "{}", e),
        }
    }

    /// Damaging a byte of a compressed log gives an error or a log, never a panic.
    #[test]
    fn damaged_gzip_never_panics(at in any::<prop::sample::Index>(), to in any::<u8>()) {
        let text = lines(50, |k| format!("0,{k},allocate,{k},512,0"));
        let mut packed = gz(text.as_bytes());
        let at = at.index(packed.len());
        packed[at] = to;
        if let Ok(Trace::Log(log)) = read("f", packed.as_slice(), any_device()) {
            prop_assert!(log.calls.len() <= 50);
        }
    }

    /// Program to log to CSV and back: the allocations and frees of device memory, and nothing else.
    #[test]
    fn programs_become_logs(program in programs(3, 1..80)) {
        let (log, left_out) = Log::from_program(&program).unwrap();
        prop_assert_eq!(log.calls.len() + left_out, program.steps.len());
        let device = program.steps.iter().filter(|s| matches!(s.op, Op::Alloc { .. })).count();
        prop_assert_eq!(log.calls.iter().filter(|c| c.action() == Action::Alloc).count(), device);
        prop_assert_eq!(log.to_program().check(), Ok(()));
        let mut csv = Vec::new();
        log.write_rmm(&mut csv).unwrap();
        let Ok(Trace::Log(back)) = read(&log.name, csv.as_slice(), any_device()) else {
            prop_assert!(log.name.is_empty() && log.calls.is_empty(), "{}", program);
            return Ok(());
        };
        prop_assert_eq!((back.calls.len(), back.skipped), (log.calls.len(), 0));
        prop_assert_eq!(back.info().peak_live, log.info().peak_live);
    }
}
