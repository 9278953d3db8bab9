//! What a person reads when a program is wrong: its whole text, in the program's own names, numbers and lines, and the same
//! in every run. Each kind of fault alone has its text in the oracle's own tests.

use millpond::driver::{Copies, Driver, Fences, Host, HostKind, Memory, Note, QueuedBy, RangeUse};
use millpond::trace::Program;
use millpond::units::GIB;
use millpond::{Allocator, Config, kernel};
use millpond_replay::replay_program;
use millpond_sim::{Launch, Schedule, Sim};

fn device() -> (Sim, Allocator<Sim>) {
    let sim = Sim::new(GIB).schedule(Schedule::Latest);
    let gpu = Allocator::new(sim.clone(), Config::default()).expect("an allocator");
    (sim, gpu)
}

fn verdict(sim: &Sim) -> String {
    sim.verdict().expect_err("the program is wrong").to_string()
}

/// One violation: the header, and three lines none of which is long.
#[track_caller]
fn assert_reads(text: &str, expected: &str) {
    assert_eq!(text, expected, "\n{text}\n");
    assert_eq!(text.lines().count(), 4, "{text}");
    assert!(text.lines().all(|l| l.chars().count() <= 140), "{text}");
}

/// A kernel on each of two streams writes one allocation, and nothing orders them. The verdict has the lines of both launches.
fn two_writers() -> (String, String) {
    let (sim, gpu) = device();
    let (a, b) = (gpu.stream().unwrap(), gpu.stream().unwrap());
    let batch = gpu.alloc_named(4096, "batch", &a).unwrap();
    b.wait_stream(&a).unwrap();
    batch.record_use(&b).unwrap();
    let load = line!() + 1;
    sim.launch(a.native(), Launch::new("load").writes(batch.address(), 4096)).unwrap();
    let clear = line!() + 1;
    sim.launch(b.native(), Launch::new("clear").writes(batch.address(), 4096)).unwrap();
    let expected = format!(
        "1 ordering violation in 2 accesses, caused by the program
1. Race, the program's fault: `clear` writes \"batch\" (4.00 KiB) and `load` writes it, in no order
   where: tests/arrays/verdicts.rs:{clear} (operation 0 of stream 1) against tests/arrays/verdicts.rs:{load} (operation 0 of stream 0)
   missing edge: operation 0 of stream 0 -> operation 0 of stream 1: s1.wait_stream(&s0) in between"
    );
    (verdict(&sim), expected)
}

/// An array is read by a built-in kernel while a launch that the library does not know writes it. The verdict has the
/// program's lines, not the library's.
fn an_array_and_a_launch() -> (String, String) {
    let (sim, gpu) = device();
    let (s, t) = (gpu.stream().unwrap(), gpu.stream().unwrap());
    sim.name_stream(t.native(), "side").unwrap();
    let x = gpu.zeros::<f32>(1024, &s).unwrap();
    let mut y = gpu.zeros::<f32>(1024, &s).unwrap();
    t.wait_stream(&s).unwrap();
    let sneak = line!() + 1;
    sim.launch(t.native(), Launch::new("sneak").writes(x.address(), x.size_bytes())).unwrap();
    let axpy = line!() + 1;
    kernel::saxpy(2.0, &x, &mut y, &s).unwrap();
    let expected = format!(
        "1 ordering violation in 6 accesses, caused by the program
1. Race, the program's fault: `millpond_saxpy_f32` reads allocation 0 (4.00 KiB) and `sneak` writes it, in no order
   where: tests/arrays/verdicts.rs:{axpy} (operation 2 of stream 0) against tests/arrays/verdicts.rs:{sneak} (operation 0 of stream \"side\")
   missing edge: operation 0 of stream \"side\" -> operation 2 of stream 0: s0.wait_stream(&side) in between"
    );
    (verdict(&sim), expected)
}

/// Notified of both uses, the library queues the later one without a wait: said by notes, as the library itself would.
fn a_fault_of_the_library() -> (String, String) {
    let (sim, gpu) = device();
    let (s, t) = (gpu.stream().unwrap(), gpu.stream().unwrap());
    let a = gpu.alloc(2048, &s).unwrap();
    let id = a.id().unwrap();
    t.wait_stream(&s).unwrap();
    sim.note(Note::Operation { id, stream: s.id(), used: RangeUse::ReadWrite, by: QueuedBy::Library });
    let first = line!() + 1;
    sim.launch(s.native(), Launch::new("fill").writes(a.address(), 2048)).unwrap();
    sim.note(Note::Operation { id, stream: t.id(), used: RangeUse::Read, by: QueuedBy::Library });
    let second = line!() + 1;
    sim.launch(t.native(), Launch::new("copy").reads(a.address(), 2048)).unwrap();
    let expected = format!(
        "1 ordering violation in 2 accesses, caused by the allocator
1. Race, the allocator's fault: `copy` reads allocation 0 (2.00 KiB) and `fill` writes it, both known and in no order
   where: tests/arrays/verdicts.rs:{second} (operation 0 of stream 1) against tests/arrays/verdicts.rs:{first} (operation 0 of stream 0)
   missing edge: operation 0 of stream 0 -> operation 0 of stream 1: s1.wait_stream(&s0) by the allocator: report it"
    );
    (verdict(&sim), expected)
}

/// Bytes go to the next owner while a use that was not recorded is queued.
fn a_use_never_recorded() -> (String, String) {
    let (sim, gpu) = device();
    let (s, t) = (gpu.stream().unwrap(), gpu.stream().unwrap());
    let old = gpu.alloc_named(4096, "old", &s).unwrap();
    t.wait_stream(&s).unwrap();
    let train = line!() + 1;
    sim.launch(t.native(), Launch::new("train").reads(old.address(), 4096)).unwrap();
    drop(old);
    let new = gpu.alloc(4096, &s).unwrap();
    let load = line!() + 1;
    sim.launch(s.native(), Launch::new("load").writes(new.address(), 4096)).unwrap();
    let expected = format!(
        "1 ordering violation in 2 accesses, caused by the program
1. P2, the program's fault: `load` writes allocation 1 (4.00 KiB), bytes of \"old\" that `train` may still read, not recorded
   where: tests/arrays/verdicts.rs:{load} (operation 0 of stream 0) against tests/arrays/verdicts.rs:{train} (operation 0 of stream 1)
   missing edge: operation 0 of stream 1 -> the free of \"old\": old.record_use(&s1) before that"
    );
    (verdict(&sim), expected)
}

fn a_use_after_the_free() -> (String, String) {
    let (sim, gpu) = device();
    let s = gpu.stream().unwrap();
    let a = gpu.alloc_aligned(1024, 4096, &s).unwrap();
    let (id, addr) = (a.id().unwrap(), a.address());
    let free = line!() + 1;
    a.free_unknown();
    let late = line!() + 1;
    sim.launch(&s.native().clone(), Launch::new("late").reads(addr, 1024).tag(id)).unwrap();
    let expected = format!(
        "1 ordering violation in 1 access, caused by the program
1. P3, the program's fault: `late` reads allocation 0 (1.00 KiB) after its free
   where: tests/arrays/verdicts.rs:{late} (operation 0 of stream 0); freed at tests/arrays/verdicts.rs:{free}
   mend: free it after the last use was queued, or keep it alive until then"
    );
    (verdict(&sim), expected)
}

/// Pinned memory is at another address of the process in every run.
#[allow(unsafe_code, reason = "a copy by address")]
fn a_cpu_that_looks_too_early() -> (String, String) {
    let sim = Sim::new(GIB).schedule(Schedule::Latest);
    let (device, pinned) = (sim.allocate(4096).unwrap(), sim.pin(4096, HostKind::Cached).unwrap());
    let s = sim.stream().unwrap();
    sim.launch(&s, Launch::new("make").writes(device.addr(), 4096)).unwrap();
    let copy = line!() + 2;
    // SAFETY: no reference to the pinned bytes exists, which outlive the copy.
    unsafe { sim.copy_d2h(pinned.ptr().as_ptr(), device.addr(), 4096, &s) }.unwrap();
    let look = line!() + 1;
    sim.host_reads(pinned.addr(), 512).unwrap();
    let text = verdict(&sim);
    let expected = format!(
        "1 ordering violation in 4 accesses, caused by the program
1. Race, the program's fault: the CPU reads 512 B and `copy to pinned memory` writes it, in no order
   where: tests/arrays/verdicts.rs:{look} (the host) against tests/arrays/verdicts.rs:{copy} (operation 1 of stream 0)
   missing edge: operation 1 of stream 0 -> the host: sim.synchronize_stream(&s0)? first"
    );
    (text, expected)
}

/// A check that runs before the write that it is for: the oracle's violation, and what the contents showed.
fn wrong_bytes() -> (String, String) {
    let sim = Sim::new(GIB).oracle(false).schedule(Schedule::Latest);
    let memory = sim.allocate(4096).unwrap();
    let s = sim.stream().unwrap();
    sim.launch(&s, Launch::write_pattern(memory.addr(), 4096, 1)).unwrap();
    let check = line!() + 1;
    sim.launch(&s, Launch::check_pattern(memory.addr(), 4096, 2)).unwrap();
    let expected = format!(
        "1 operation met the wrong bytes
1. `check pattern` found 0100000000000000 instead of 0200000000000000, 0 bytes into its range
   where: tests/arrays/verdicts.rs:{check}, operation 1 of stream 0
   mend: order it: another operation ran in between, or this one ran before its data was there"
    );
    (verdict(&sim), expected)
}

/// The verdict of a replayed program has its own numbers of steps, streams and blocks: its stream 1 is the third of the device.
fn a_replayed_program() -> (String, String) {
    let program: Program = PROGRAM.parse().expect("a program");
    let sim = Sim::new(GIB).schedule(Schedule::Latest);
    let outcome = replay_program(&program, sim, Config::default(), 0).expect("it runs");
    let expected = "1 ordering violation in 2 accesses, caused by the program
1. Race, the program's fault: `write pattern` writes \"b7\" (4.00 KiB) and `write pattern` writes it, in no order
   where: step 4 (operation 0 of stream 1) against step 3 (operation 0 of stream 0)
   missing edge: operation 0 of stream 0 -> operation 0 of stream 1: s1.wait_stream(&s0) in between";
    (outcome.verdict.trim_end().to_owned(), expected.to_owned())
}

const PROGRAM: &str = "millpond trace 1
streams 2
close s1
open s1
alloc b7 4KiB on s0
write b7 on s0
write b7 on s1
";

const PROGRAMS: &[fn() -> (String, String)] = &[
    two_writers,
    an_array_and_a_launch,
    a_fault_of_the_library,
    a_use_never_recorded,
    a_use_after_the_free,
    a_cpu_that_looks_too_early,
    wrong_bytes,
    a_replayed_program,
];

#[test]
fn verdicts_are_three_lines_in_the_programs_own_words() {
    for program in PROGRAMS {
        let (text, expected) = program();
        assert_reads(&text, &expected);
    }
}

/// Whatever the process did before, and does beside: devices, allocators, streams, allocations, threads.
#[test]
fn a_program_gives_the_same_text_in_every_run() {
    let first: Vec<String> = PROGRAMS.iter().map(|p| p().0).collect();
    let mut others = Vec::new();
    for n in 0..5 {
        let (sim, gpu) = device();
        let streams: Vec<_> = (0..n).map(|_| gpu.stream().unwrap()).collect();
        let kept: Vec<_> = streams.iter().map(|s| gpu.alloc(1 << 20, s).unwrap()).collect();
        others.push((sim.pin(1 << (12 + n), HostKind::Cached).unwrap(), kept, streams, gpu, sim));
    }
    let again = || PROGRAMS.iter().map(|p| p().0).collect::<Vec<_>>();
    assert_eq!(again(), first);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(again)).collect();
        for thread in threads {
            assert_eq!(thread.join().expect("it runs"), first);
        }
    });
    drop(others);
    assert_eq!(again(), first);
}

/// The first few of many are shown, and the rest counted.
#[test]
fn many_violations_are_counted() {
    let (sim, gpu) = device();
    let (s, t) = (gpu.stream().unwrap(), gpu.stream().unwrap());
    let kept: Vec<_> = (0..100).map(|_| gpu.alloc(512, &s).unwrap()).collect();
    t.wait_stream(&s).unwrap();
    for a in &kept {
        sim.launch(s.native(), Launch::new("one").writes(a.address(), 512)).unwrap();
        sim.launch(t.native(), Launch::new("other").writes(a.address(), 512)).unwrap();
    }
    let text = verdict(&sim);
    assert!(
        text.starts_with(
            "100 ordering violations in 200 accesses, none of them caused by the allocator\n1. Race"
        ),
        "{text}"
    );
    assert!(text.ends_with("\nand 92 more violations"), "{text}");
    assert_eq!(text.lines().count(), 1 + 3 * 8 + 1);
    assert!(text.contains("allocation 7 (512 B)") && !text.contains("allocation 8 "), "{text}");
}

/// Streams have the same numbers wherever a person sees them.
#[test]
fn a_report_and_a_verdict_call_a_stream_the_same() {
    let (sim, gpu) = device();
    let (s, t) = (gpu.stream().unwrap(), gpu.stream().unwrap());
    assert_eq!([s.id().to_string(), t.id().to_string()], ["stream 0", "stream 1"]);
    assert!(format!("{:?}", t.native()).contains("stream 1"));
    assert_eq!(gpu.stream_of(t.id()).unwrap().id(), t.id());
    let legacy = gpu.adopt(sim.legacy_stream()).unwrap();
    assert_eq!(gpu.stream_of(legacy.id()).unwrap().id(), legacy.id());
    assert_eq!(
        gpu.stream().unwrap().id().to_string(),
        "stream 2",
        "default streams are none that the program made"
    );
    assert_eq!(sim.stream_info(t.native()).unwrap().id, t.id());
}
