//! What a person reads: three lines for each kind of fault, in the program's own names and numbers.

use super::*;
use millpond_driver::Caller;

/// A program with one fault, and what that reads as.
type ReadsAs = (Fault, fn() -> Bench, &'static str);

/// What each fault reads as. The bench counts its steps where a text shows a place.
const READS_AS: &[ReadsAs] = &[
    (
        Fault::Overlap,
        overlap,
        "P1, the allocator's fault: allocation 1 (16 B) was handed out over allocation 0, which is alive\n   \
            where: allocated on stream 2 at step 1; allocation 0 was allocated on stream 1 at step 0\n   \
            mend: nothing in the program; report it: the allocator handed out bytes that were not free",
    ),
    (
        Fault::EarlyReuse,
        early_reuse,
        "P2, the allocator's fault: `fill` writes allocation 1 (256 B), bytes of allocation 0 that `gemm` may still write\n   \
            where: step 12 (operation 3 of stream 5) against step 7 (operation 16 of stream 3)\n   \
            missing edge: operation 16 of stream 3 -> operation 3 of stream 5: s5.wait_stream(&s3) by the allocator: report it",
    ),
    (
        Fault::MissingRecordUse,
        missing_record_use,
        "P2, the program's fault: `load` writes allocation 1 (512 B), bytes of \"batch\" that `train` may still read, not recorded\n   \
            where: operation 1 of stream 1 against operation 0 of stream 2\n   \
            missing edge: operation 0 of stream 2 -> the free of \"batch\": batch.record_use(&s2) before that",
    ),
    (
        Fault::NoMemory,
        no_memory,
        "P3, the allocator's fault: allocation 0 (512 B) was handed out where there is no memory\n   \
            where: allocated on stream 1 at step 4\n   \
            mend: nothing in the program; report it: memory is there from the allocation to the free",
    ),
    (
        Fault::BeforeAllocation,
        before_allocation,
        "P3, the program's fault: `early` writes allocation 0 (512 B) and is not ordered after its allocation\n   \
            where: step 3 (operation 0 of stream 2); allocated on stream 1 at step 2\n   \
            missing edge: allocation 0 -> operation 0 of stream 2: s2.wait_stream(&s1) once it is made",
    ),
    (
        Fault::AfterFree,
        after_free,
        "P3, the program's fault: `late` writes allocation 0 (512 B) after its free\n   \
            where: operation 1 of stream 1; freed behind operation 0 of stream 1; its bytes are now allocation 1\n   \
            mend: free it after the last use was queued, or keep it alive until then",
    ),
    (
        Fault::Overrun,
        overrun,
        "P3, the program's fault: `long` reads 1.00 KiB that reach beyond allocation 0 (512 B)\n   \
            where: operation 0 of stream 1; allocated on stream 1; it reaches allocation 1\n   \
            mend: check the length given to the operation against the requested bytes",
    ),
    (
        Fault::NotHandedOut,
        not_handed_out,
        "P3, the program's fault: `stray` writes 64 B that were never handed out\n   \
            where: operation 0 of stream 1\n   \
            mend: check the address and the length: they lie outside every allocation",
    ),
    (
        Fault::UnknownAllocation,
        unknown_allocation,
        "P3, the program's fault: `ghost` reads 512 B of an allocation never made, or freed long ago\n   \
            where: operation 0 of stream 1\n   \
            mend: check that it was allocated, and not freed, before the operation was queued",
    ),
    (
        Fault::NothingMapped,
        nothing_mapped,
        "P3, the program's fault: `kernel` touches 16 B at 0x10000dead0000, where nothing is mapped\n   \
            where: operation 0 of stream 1\n   \
            mend: check the address: nothing was ever mapped there, or it was given back too early",
    ),
    (
        Fault::BadFree,
        bad_free,
        "P3, the program's fault: allocation 0 (512 B) is freed again\n   \
            where: step 6 (the host); allocated on stream 2; freed at step 5\n   \
            mend: free each allocation once; look for a second owner of it",
    ),
    (
        Fault::BadUse,
        bad_use,
        "P3, the program's fault: a use by stream 3 is recorded for allocation 0 (512 B), which is not alive\n   \
            where: freed on stream 2 before its first operation\n   \
            mend: record uses before the free: later ones cannot be respected",
    ),
    (
        Fault::UnmappedWhilePending,
        unmapped_while_pending,
        "P4, the allocator's fault: memory is unmapped with bytes of allocation 0 that `kernel` may still write\n   \
            where: the host against operation 0 of stream 1\n   \
            missing edge: operation 0 of stream 1 -> the host: s1.synchronize() first; report an allocator that did not",
    ),
    (
        Fault::ReleasedWhilePending,
        released_while_pending,
        "P4, the allocator's fault: pinned memory is given back with bytes of allocation 0 that `kernel` may still read\n   \
            where: the host against operation 0 of stream 1\n   \
            missing edge: operation 0 of stream 1 -> the host: s1.synchronize() first; report an allocator that did not",
    ),
    (
        Fault::ReleasedWhileOwned,
        released_while_owned,
        "P4, the allocator's fault: memory was given back with allocation 0 (512 B) alive in it\n   \
            where: the host; allocation 0 was allocated for the host\n   \
            mend: give back only memory all of whose allocations were freed; if the allocator did, report it",
    ),
    (
        Fault::Race,
        race,
        "Race, the program's fault: `train` reads \"weights\" (512 B) and `load` writes it, in no order\n   \
            where: step 9 (operation 0 of stream 1) against step 8 (operation 0 of stream \"copies\")\n   \
            missing edge: operation 0 of stream \"copies\" -> operation 0 of stream 1: s1.wait_stream(&copies) in between",
    ),
    (
        Fault::UnorderedOperation,
        unordered_operation,
        "Race, the allocator's fault: `saxpy` reads allocation 0 (512 B) and `fill` writes it, both known and in no order\n   \
            where: operation 0 of stream 1 against operation 0 of stream 2\n   \
            missing edge: operation 0 of stream 2 -> operation 0 of stream 1: s1.wait_stream(&s2) by the allocator: report it",
    ),
];

impl Bench {
    /// What is reported next was called at this step of the program.
    fn step(&mut self, n: u64) {
        self.oracle.called_from(Some(Caller::Step(n)));
    }
    fn named(&mut self, stream: u32, what: &str, kind: AccessKind, id: AllocationId, bytes: u64) {
        let op = self.oracle.submit(HOST, StreamKey(stream), what);
        self.oracle.access(op, Some(MAP), SEGMENT, 0, bytes, kind, Some(id));
    }
    fn text(&self) -> String {
        self.oracle.violations()[0].to_string()
    }
}

fn overlap() -> Bench {
    let mut b = Bench::new();
    b.step(0);
    b.alloc(1, 0, 1024);
    b.step(1);
    b.alloc(2, 512, 16);
    b
}

fn early_reuse() -> Bench {
    let mut b = Bench::new();
    for _ in 0..16 {
        b.submit(3);
    }
    let a = b.alloc(3, 0, 512);
    b.step(7);
    b.named(3, "gemm", Write, a, 512);
    b.submit(3);
    b.free(a);
    for _ in 0..3 {
        b.submit(5);
    }
    let c = b.alloc(5, 0, 256);
    b.step(12);
    b.named(5, "fill", Write, c, 256);
    b
}

fn missing_record_use() -> Bench {
    let mut b = Bench::new();
    let a = b.alloc(1, 0, 512);
    b.oracle.allocation_named(a, "batch");
    b.write(1, a, 0, 512);
    b.order(1, 2);
    b.named(2, "train", Read, a, 512);
    b.free(a);
    let c = b.alloc(1, 0, 512);
    b.named(1, "load", Write, c, 512);
    b
}

fn no_memory() -> Bench {
    let mut b = Bench::new();
    let id = b.id();
    b.step(4);
    b.oracle.allocated(HOST, id, Addr(BASE), &[(PhysKey(77), 0, 512)], Some(StreamKey(1)));
    b
}

fn before_allocation() -> Bench {
    let mut b = Bench::new();
    b.submit(1);
    b.step(2);
    let a = b.alloc(1, 0, 512);
    b.step(3);
    b.named(2, "early", Write, a, 512);
    b
}

fn after_free() -> Bench {
    let mut b = Bench::new();
    let a = b.alloc(1, 0, 512);
    b.write(1, a, 0, 512);
    b.free(a);
    b.alloc(1, 0, 512);
    b.named(1, "late", Write, a, 512);
    b
}

fn overrun() -> Bench {
    let mut b = Bench::new();
    let a = b.alloc(1, 0, 512);
    b.alloc(1, 512, 512);
    b.named(1, "long", Read, a, 1024);
    b
}

fn not_handed_out() -> Bench {
    let mut b = Bench::new();
    b.alloc(1, 0, 512);
    let op = b.oracle.submit(HOST, StreamKey(1), "stray");
    b.oracle.access(op, Some(MAP), SEGMENT, 1024, 64, Write, None);
    b
}

fn unknown_allocation() -> Bench {
    let mut b = Bench::new();
    let never = b.id();
    b.named(1, "ghost", Read, never, 512);
    b
}

fn nothing_mapped() -> Bench {
    let mut b = Bench::new();
    let op = b.submit(1);
    b.oracle.unmapped_access(op, Addr(0x1_0000_dead_0000), 16, None);
    b
}

fn bad_free() -> Bench {
    let mut b = Bench::new();
    let a = b.alloc(2, 0, 512);
    b.write(2, a, 0, 512);
    b.step(5);
    b.free(a);
    b.step(6);
    b.free(a);
    b
}

fn bad_use() -> Bench {
    let mut b = Bench::new();
    let a = b.alloc(2, 0, 512);
    b.free(a);
    b.used(a, 3);
    b
}

fn unmapped_while_pending() -> Bench {
    let mut b = Bench::new();
    let a = b.alloc(1, 0, 512);
    b.write(1, a, 0, 512);
    b.free(a);
    b.oracle.unmapped(HOST, MAP);
    b
}

fn released_while_pending() -> Bench {
    let mut b = Bench::new();
    let a = b.pin(0, 512);
    b.touch_pinned(1, Read, a, 0, 512);
    b.used(a, 1);
    b.free(a);
    b.oracle.memory_released(HOST, PINNED);
    b
}

fn released_while_owned() -> Bench {
    let mut b = Bench::new();
    b.pin(0, 512);
    b.oracle.memory_released(HOST, PINNED);
    b
}

fn race() -> Bench {
    let mut b = Bench::new();
    b.oracle.stream_named(StreamKey(2), "copies".into());
    let a = b.alloc(1, 0, 512);
    b.oracle.allocation_named(a, "weights");
    b.order(1, 2);
    b.step(8);
    b.named(2, "load", Write, a, 512);
    b.step(9);
    b.named(1, "train", Read, a, 512);
    b
}

fn unordered_operation() -> Bench {
    let mut b = Bench::new();
    let a = b.alloc(1, 0, 512);
    b.order(1, 2);
    b.comes(a, 2, Write);
    b.named(2, "fill", Write, a, 512);
    b.comes(a, 1, Read);
    b.named(1, "saxpy", Read, a, 512);
    b
}

/// A new kind of fault does not compile here before it is in the list.
fn number(fault: Fault) -> usize {
    match fault {
        Fault::Overlap => 0,
        Fault::EarlyReuse => 1,
        Fault::MissingRecordUse => 2,
        Fault::NoMemory => 3,
        Fault::BeforeAllocation => 4,
        Fault::AfterFree => 5,
        Fault::Overrun => 6,
        Fault::NotHandedOut => 7,
        Fault::UnknownAllocation => 8,
        Fault::NothingMapped => 9,
        Fault::BadFree => 10,
        Fault::BadUse => 11,
        Fault::UnmappedWhilePending => 12,
        Fault::ReleasedWhilePending => 13,
        Fault::ReleasedWhileOwned => 14,
        Fault::Race => 15,
        Fault::UnorderedOperation => 16,
    }
}

#[test]
fn every_kind_of_fault_reads_as_three_lines() {
    let mut seen: Vec<usize> = READS_AS.iter().map(|(fault, ..)| number(*fault)).collect();
    seen.sort_unstable();
    assert_eq!(seen, (0..17).collect::<Vec<_>>(), "each once");
    for (fault, program, text) in READS_AS {
        let b = program();
        let found: Vec<_> = b.oracle.violations().iter().map(|v| v.fault).collect();
        assert_eq!(found, [*fault]);
        assert_eq!(b.text(), *text);
        assert_eq!(b.text().lines().count(), 3, "{text}");
        assert!(b.text().lines().all(|l| l.chars().count() <= 136), "{text}");
    }
}

#[test]
fn a_wait_that_came_too_early_is_reported() {
    let mut b = Bench::new();
    let a = b.alloc(1, 0, 512);
    b.read(1, a, 0, 512);
    b.order(1, 2);
    b.write(1, a, 0, 512);
    b.free(a);
    let c = b.alloc(2, 0, 512);
    b.write(2, c, 0, 512);
    let missing = b.convicts_early_reuse().missing.unwrap();
    let from = Point::Stream { id: StreamId(1), position: 2 };
    let to = Point::Stream { id: StreamId(2), position: 1 };
    assert_eq!(missing, MissingEdge { from, to, known: 1, outside_legacy: false });
    assert!(b.text().contains("1 of stream 1"), "{}", b.text());
}

#[test]
fn the_legacy_stream_and_a_non_blocking_one_are_explained() {
    let mut b = Bench::new();
    let a = b.alloc(1, 0, 512);
    b.write(1, a, 0, 512);
    b.free(a);
    let c = b.alloc(LEGACY, 0, 512);
    b.write(LEGACY, c, 0, 512);
    let text = b.convicts_early_reuse().to_string();
    assert!(text.contains("operation 0 of the default stream"), "{text}");
    assert!(text.contains("these two never wait by themselves"), "{text}");
    assert!(text.contains("legacy.wait_stream(&s1)"), "{text}");
}

#[test]
fn the_host_is_advised_to_see_completion() {
    let mut b = Bench::new();
    let a = b.pin(0, 512);
    b.touch_pinned(4, Write, a, 0, 512);
    b.cpu(Read, a, 0, 512);
    let v = b.convicts(Property::Race, Blame::Program, Fault::Race);
    assert_eq!(
        v.to_string(),
        "Race, the program's fault: the CPU reads allocation 0 (512 B) and `kernel` writes it, in no order\n   \
            where: the host against operation 0 of stream 4\n   \
            missing edge: operation 0 of stream 4 -> the host: s4.synchronize() first"
    );
}

/// Threads of the host that no lock orders: each has a clock of its own.
#[test]
fn threads_of_the_host_are_advised_to_publish() {
    let mut b = Bench::with(true);
    let a = b.pin(0, 512);
    b.cpu(Write, a, 0, 512);
    b.oracle.host_access(HostKey(1), PINNED, 0, 512, Read, None);
    let faults: Vec<_> = b.oracle.violations().iter().map(|v| v.fault).collect();
    assert!(faults.contains(&Fault::Race), "{faults:?}");
    let race = b.oracle.violations().iter().find(|v| v.fault == Fault::Race).unwrap().to_string();
    assert!(
        race.ends_with("missing edge: host thread 0 -> host thread 1: sim.host_publish(mark) there, sim.host_edge(mark) here"),
        "{race}"
    );
}

/// Of several devices each stream says which is its.
#[test]
fn streams_of_several_devices_are_distinguished() {
    let mut b = Bench::new();
    b.oracle.stream_created(StreamKey(12), StreamId(12), StreamKind::NonBlocking, DeviceId(1));
    let a = b.alloc(1, 0, 512);
    b.order(1, 12);
    b.write(1, a, 0, 512);
    b.write(12, a, 0, 512);
    let text = b.text();
    assert!(
        text.contains("operation 0 of stream 12 of device 1 against operation 0 of stream 1 of device 0"),
        "{text}"
    );
}

/// An address of the process differs in every run.
#[test]
fn no_address_of_the_process_is_shown() {
    let mut b = Bench::new();
    let op = b.submit(1);
    b.oracle.unmapped_access(op, Addr(0x7fff_dead_0000), 16, None);
    let text = b.text();
    assert!(text.contains("`kernel` touches 16 B at host memory, where nothing is mapped"), "{text}");
    assert!(!text.contains("0x"), "{text}");
}

/// Names come from the program, and neither break lines nor make them long.
#[test]
fn long_and_ugly_names_keep_the_three_lines_short() {
    let mut b = Bench::new();
    let name = "a name\nin two lines ".repeat(30);
    for stream in [1, 2] {
        b.oracle.stream_named(StreamKey(stream), name.as_str().into());
    }
    let a = b.alloc(1, 0, 512);
    b.oracle.allocation_named(a, &name);
    b.order(1, 2);
    b.named(2, &name, Write, a, 512);
    b.named(1, &name, Read, a, 512);
    let text = b.text();
    assert_eq!(text.lines().count(), 3, "{text}");
    assert!(text.lines().all(|l| l.chars().count() <= 136), "{text}");
    assert!(text.contains("`a name i") && text.contains('…'), "{text}");
    assert!(text.ends_with(": s1.wait_stream(&s2)"), "no variable has such a name: {text}");
}

#[test]
fn a_verdict_counts_and_lists_the_allocators_first() {
    let mut b = Bench::new();
    let a = b.alloc(1, 0, 512);
    b.free(a);
    b.free(a);
    let text = b.oracle.verdict().unwrap_err().to_string();
    assert!(
        text.starts_with("1 ordering violation in 0 accesses, caused by the program\n1. P3, the program's"),
        "{text}"
    );
    b.alloc(1, 0, 16);
    b.alloc(1, 0, 16);
    let text = b.oracle.verdict().unwrap_err().to_string();
    let head = "2 ordering violations in 0 accesses, 1 of them caused by the allocator\n1. P1, the allocator's fault";
    assert!(text.starts_with(head), "{text}");
    assert!(text.contains("\n2. P3, the program's fault"), "{text}");
    for _ in 0..7 {
        b.free(a);
    }
    let text = b.oracle.verdict().unwrap_err().to_string();
    assert!(text.contains("\n8. ") && !text.contains("\n9. "), "{text}");
    assert!(text.ends_with("\nand 1 more violation"), "{text}");
    assert_eq!(text.lines().count(), 1 + 8 * 3 + 1);
}
