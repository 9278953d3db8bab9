//! What others' texts and tests show, claim or fail at, a row each, and what shows that it works here.
//!
//! Keys: S two articles on asynchronous transfers from pinned memory, T a talk on a caching pool for arrays, P a tutorial
//! on pinned and non-blocking copies, G an issue asking for a prefetcher, H the library that both point to, C behaviours
//! that users of array libraries compare, 7 tests of others, D side-by-side demonstrations. A row's test is named after
//! it. This file knows where the evidence is, not what it proves.

#[allow(dead_code, reason = "shared with architecture.rs, which uses the rest")]
mod house;

use Evidence::{Bench, Docs, Owed, Suite, Test};
use house::{code_only, is_word, read, root};
use std::collections::BTreeSet;
use std::io::Write;

/// What shows that a row works here.
#[derive(Clone, Copy, Debug)]
enum Evidence {
    /// A test: its file and its function.
    Test(&'static str, &'static str),
    /// A test of the conformance suite, which every device is put to: its function in tests/suite/rows.rs.
    Suite(&'static str),
    /// A bench that reports the row's figures: its file.
    Bench(&'static str),
    /// A sentence that stands in DESIGN.md or README.md, in one line or broken over several.
    Docs(&'static str),
    /// Nothing yet: the room that it waits for.
    Owed(&'static str),
}

/// Rooms that are not built yet and what of the allocator is left for later.
const LATER: &[&str] =
    &["array", "transfer", "feed", "kernel", "virtual memory", "allocator::host", "plug", "doctor"];

/// Where the tests of rows at allocator level are.
const ALLOCATOR: &str = "tests/rows_allocator.rs";

/// Where the tests of rows about copies are.
const TRANSFERS: &str = "tests/transfers.rs";

/// Where the tests of chapter 7 are.
const PARITY: &str = "tests/parity.rs";

/// Where the conformance suite's rows are, and where they are listed to be run.
const ROOM: &str = "tests/suite/rows.rs";
const LIST: &str = "tests/suite/mod.rs";

/// Where the suite of lifetimes has the orders of drops.
const ORDERS: &str = "tests/lifetimes/orders.rs";

/// Tests and sentences of the table that are not written yet. To be emptied: what is named here is printed, not demanded.
const PENDING: &[&str] = &[];

/// The rows: id, what must hold, and what shows it.
const ROWS: &[(&str, &str, Evidence)] = &[
    ("S1", "data larger than the device is fed batch by batch, copies behind compute", Owed("feed")),
    (
        "S2",
        "two copies from pageable memory on two streams do not overlap a kernel",
        Suite("s02_pageable_sources_serialise"),
    ),
    ("S3", "the same from pinned memory does overlap", Test(TRANSFERS, "s03_pinned_copies_overlap_a_kernel")),
    (
        "S4",
        "both copies on one stream cannot overlap",
        Docs("Two copies queued on one stream run one after the other, whatever else is asynchronous."),
    ),
    ("S5", "arrays in pinned memory, with a shape", Test(TRANSFERS, "s05_pinned_arrays_have_a_shape")),
    ("S6", "waiting for one stream leaves the others running", Test(ALLOCATOR, "s06_stream_wait_is_local")),
    (
        "S7",
        "the legacy default stream destroys overlap between blocking streams",
        Suite("s07_the_legacy_stream_destroys_overlap"),
    ),
    (
        "S8",
        "a kernel that reads before the copy is ordered is caught",
        Test(ALLOCATOR, "s08_read_before_copy_detected"),
    ),
    (
        "S9",
        "a host thread does not make a blocking copy asynchronous",
        Docs("A host thread around a blocking copy does not make the copy asynchronous."),
    ),
    (
        "S10",
        "an array from host data without blocking, through a pinned slot",
        Test(TRANSFERS, "s10_an_array_from_host_data_without_blocking"),
    ),
    (
        "S11",
        "a copy into an array checks shape, type and layout",
        Test(TRANSFERS, "s11_a_copy_checks_the_shape"),
    ),
    (
        "S12",
        "a copy to the host without blocking",
        Test(TRANSFERS, "s12_a_copy_to_the_host_without_blocking"),
    ),
    ("S13", "a copy to pageable host memory blocks", Test(TRANSFERS, "s13_a_copy_to_pageable_memory_blocks")),
    ("S14", "warm up before measuring", Bench("benches/traces.rs")),
    ("S15", "a timeline of copies and pools to look at", Owed("transfer")),
    (
        "S16",
        "a pinned source overwritten while its copy is in flight",
        Test(ALLOCATOR, "s16_mutate_pinned_in_flight"),
    ),
    ("S17", "a pinned source dropped while its copy is in flight", Suite("s17_drop_pinned_in_flight")),
    ("T1", "what a plain allocation costs against a cached one", Bench("examples/gpu_rows.rs")),
    ("T2", "the old pool: exact sizes only, as a baseline", Test(ALLOCATOR, "t02_exact_fit_baseline")),
    (
        "T3",
        "exact sizes miss although larger chunks are cached",
        Test(ALLOCATOR, "t03_exact_fit_misses_where_best_fit_hits"),
    ),
    ("T4", "the tightest chunk is taken and split", Test(ALLOCATOR, "t04_best_fit_splits")),
    ("T5", "a freed chunk merges with both neighbours", Test(ALLOCATOR, "t05_merge_on_free")),
    ("T6", "best fit takes a fraction of exact fit's memory on varying lengths", Bench("benches/traces.rs")),
    (
        "T7",
        "bytes used and bytes acquired, by scope",
        Test(ALLOCATOR, "t07_bytes_used_and_acquired_by_scope"),
    ),
    ("T8", "timelines in a profiler", Owed("transfer")),
    (
        "T9",
        "both copy directions and a kernel at the same time",
        Test(TRANSFERS, "t09_both_copies_and_a_kernel_at_once"),
    ),
    (
        "T10",
        "one stream: reuse at once, before the kernel is done",
        Test(ALLOCATOR, "t10_same_stream_early_reuse_ok"),
    ),
    (
        "T11",
        "two streams over one pool go wrong, and are caught",
        Test(ALLOCATOR, "t11_two_streams_one_pool_is_caught"),
    ),
    ("T12", "a pool for each stream", Test(ALLOCATOR, "t12_pool_per_stream")),
    (
        "T13",
        "one stream's cached memory serves another, in order",
        Test(ALLOCATOR, "t13_cross_stream_reclaim"),
    ),
    ("T14", "freeing in a stream callback against an event", Bench("examples/gpu_rows.rs")),
    (
        "T15",
        "the stream of an allocation and of a launch is named",
        Docs("Streams are arguments: there is no current stream and no thread-local state."),
    ),
    (
        "T16",
        "the default stream waits for blocking streams only",
        Test(ALLOCATOR, "t16_default_stream_waits_only_for_blocking"),
    ),
    (
        "T17",
        "an input read by two streams is reused after both",
        Test(ALLOCATOR, "t17_shared_reader_two_streams"),
    ),
    ("T18", "bytes used, free and total, and free chunks", Test(ALLOCATOR, "t18_pool_statistics")),
    ("P1", "pageable sources go through a staging buffer", Bench("examples/gpu_transfers/rates.rs")),
    (
        "P2",
        "a blocking copy is an asynchronous one and a synchronise",
        Test(TRANSFERS, "p02_a_blocking_copy_is_an_asynchronous_one_and_a_wait"),
    ),
    (
        "P3",
        "overlap needs a copy engine, a stream of its own and a pinned source",
        Bench("examples/gpu_transfers/overlap.rs"),
    ),
    ("P4", "copying from pinned memory against pinning first", Owed("transfer")),
    ("P5", "many small copies and one synchronise", Owed("transfer")),
    ("P6", "many large copies: blocking or not, pageable or pinned", Owed("transfer")),
    (
        "P7",
        "reading the target of a copy to the host too early",
        Suite("p07_data_of_a_copy_to_the_host_come_behind_the_wait"),
    ),
    (
        "P8",
        "a copy to the device is ordered before later work on its stream",
        Test(TRANSFERS, "p08_work_on_the_copys_stream_comes_after_it"),
    ),
    (
        "P9",
        "a pinned source changed or freed too early",
        Test(TRANSFERS, "p09_a_source_cannot_change_while_it_is_read"),
    ),
    (
        "P10",
        "copies to targets that no stream orders",
        Docs("A copy to a target that no stream orders is safe to read only after a synchronise."),
    ),
    ("P11", "threads that fill pinned slots in place", Owed("feed")),
    ("P12", "several threads pin and copy", Owed("transfer")),
    ("P13", "filling pinned memory is the limit, not the copy", Owed("transfer")),
    ("P14", "bytes in flight have a budget", Owed("feed")),
    ("P15", "pinned memory has a cap, and an error above it", Owed("allocator::host")),
    ("P16", "cores, load, memory, copy engines and link, told", Owed("doctor")),
    (
        "P17",
        "a copy to the host is waited for before it is read",
        Docs("A copy to the host is waited for before its target is read, never after."),
    ),
    ("P18", "figures of our own", Bench("benches/RESULTS.md")),
    ("G1", "wait for a batch, start copying the next, train", Owed("feed")),
    ("G2", "the same one after the other leaves the device idle", Owed("feed")),
    ("G3", "a prefetcher that always holds a batch blocks nobody's trim", Owed("feed")),
    (
        "G4",
        "a copying thread cannot change the stream of another",
        Docs("Streams are arguments: there is no current stream and no thread-local state."),
    ),
    ("G5", "allocated on one thread, used on a second, freed on a third", Test(ALLOCATOR, "g05_thread_hop")),
    (
        "G6",
        "a stream waits for an event or for a stream",
        Test(ALLOCATOR, "g06_wait_for_a_stream_or_an_event"),
    ),
    ("G7", "pinned batches, copied without blocking", Test(TRANSFERS, "g07_pinned_batches_without_blocking")),
    ("G8", "what an asynchronous loader gained elsewhere", Owed("feed")),
    ("G9", "share of the bound with no loading, by workers", Owed("feed")),
    ("G10", "a prefetcher is part of it", Owed("feed")),
    ("G11", "a batch is written once, into its pinned slot", Owed("feed")),
    (
        "H1",
        "a pinned buffer lives until its copy is complete",
        Test(TRANSFERS, "h01_a_pinned_buffer_lives_until_its_copy_is_done"),
    ),
    (
        "H2",
        "a copy between devices keeps both ends alive",
        Test(TRANSFERS, "h02_a_copy_between_devices_keeps_both_ends"),
    ),
    ("H3", "the next batch travels while this one trains", Owed("feed")),
    ("H4", "a slot is refilled only after it was read", Suite("h04_a_slot_is_overwritten_behind_its_reads")),
    ("H5", "no step synchronises the device", Owed("feed")),
    ("H6", "several slots, first in first out", Owed("feed")),
    ("H7", "batches of varying size without a synchronise", Owed("feed")),
    ("H8", "equal bytes in another shape or type are another slot", Owed("feed")),
    ("H9", "its tests run on a device too", Owed("feed")),
    ("H10", "ragged examples are padded, batches are tuples or structs", Owed("feed")),
    ("H11", "sources are plain iterators or channels", Owed("feed")),
    ("H12", "sizes in units that people read", Test(ALLOCATOR, "h12_report_units")),
    ("H13", "bytes used over bytes acquired", Test(ALLOCATOR, "h13_profile_reuse_factor")),
    ("C1", "trim one stream or all", Test(ALLOCATOR, "c01_trim_one_stream_or_all")),
    (
        "C2",
        "a limit in bytes, as a fraction, from the environment",
        Test(ALLOCATOR, "c02_limit_by_bytes_fraction_and_environment"),
    ),
    ("C3", "the allocator of a scope", Test("tests/erased.rs", "c03_the_allocator_of_a_scope")),
    (
        "C4",
        "sources of memory: plain, stream-ordered, pinned host",
        Test("tests/cuda_backend.rs", "c04_sources_of_memory"),
    ),
    (
        "C5",
        "a foreign pointer with its owner kept alive",
        Test("tests/foreign.rs", "c05_foreign_memory_with_its_owner"),
    ),
    (
        "C6",
        "a capturing stream is refused, others go on",
        Test(ALLOCATOR, "c06_capturing_stream_refused_others_go_on"),
    ),
    (
        "C7",
        "a per-thread default stream is itself, not its handle",
        Suite("c07_per_thread_default_streams_are_known_by_their_ids"),
    ),
    ("C8", "events as JSON lines", Test(ALLOCATOR, "c08_json_lines_hook")),
    ("7.1", "sizes are rounded up", Test(PARITY, "parity_rounding")),
    (
        "7.2",
        "four in two in one, and back, in both orders of dropping",
        Test(PARITY, "parity_split_tree_merges_back_in_both_drop_orders"),
    ),
    ("7.3", "live chunks are distinct", Test(PARITY, "parity_live_chunks_are_distinct")),
    (
        "7.4",
        "a split hands out its head first, then its tail",
        Test(PARITY, "parity_split_order_head_then_tail"),
    ),
    (
        "7.5",
        "a limit admits five and refuses one more, until raised",
        Test(PARITY, "parity_limit_five_plus_one"),
    ),
    ("7.6", "a limit over fragmented chunks", Test(PARITY, "parity_fragmented_limit")),
    ("7.7", "a freed address is reused", Test(PARITY, "parity_reuse_of_the_same_address")),
    (
        "7.8",
        "no reuse across streams unless ordered",
        Test(PARITY, "parity_no_reuse_across_streams_unless_ordered"),
    ),
    (
        "7.9",
        "trim of whole and split segments, of one stream and of all",
        Test(PARITY, "parity_trim_whole_split_one_stream_all"),
    ),
    ("7.10", "used, free and total bytes, by stream", Test(PARITY, "parity_bytes_per_stream")),
    (
        "7.11",
        "limits by size and by fraction, and their errors",
        Test(PARITY, "parity_limits_by_size_and_fraction_and_their_errors"),
    ),
    ("7.12", "the limit in the environment: 0, bytes, percent", Test(PARITY, "parity_environment_limit")),
    ("7.13", "zero bytes take nothing from the pool", Test(PARITY, "parity_zero_size_unpooled")),
    ("7.14", "a double free is found", Test(PARITY, "parity_double_free")),
    ("7.15", "a knob: never reuse across streams", Test(PARITY, "parity_knob_cross_stream_reuse_never")),
    ("7.16", "a knob: grow by exactly what was asked", Test(PARITY, "parity_knob_exact_growth")),
    ("7.17", "a knob: bytes count as free once dropped", Test(PARITY, "parity_knob_accounting_at_drop")),
    (
        "7.18",
        "a knob: remainders are split off down to one granule",
        Test(PARITY, "parity_knob_remainders_down_to_a_granule"),
    ),
    (
        "7.19",
        "a knob: trim leaves split segments where they are",
        Test(PARITY, "parity_knob_trim_keeps_split_addresses"),
    ),
    (
        "7.20",
        "eight threads, random sizes, trims in between",
        Test(PARITY, "parity_eight_threads_random_sizes_with_trims"),
    ),
    ("7.21", "a recorded log of another allocator replays", Test(PARITY, "parity_replay_of_rmm_logs")),
    (
        "7.22",
        "a stream destroyed before its arrays",
        Test(PARITY, "parity_stream_destroyed_before_its_arrays"),
    ),
    (
        "D1",
        "a pinned source dropped behind a slow kernel keeps its bytes",
        Suite("d01_a_pinned_source_dropped_in_flight"),
    ),
    (
        "D2",
        "an array read on another stream, dropped, its bytes reused in order",
        Suite("d02_an_array_dropped_under_a_reader"),
    ),
    (
        "D3",
        "a stream dropped with work pending, its handle's value back",
        Suite("d03_a_stream_dropped_with_work_pending"),
    ),
    (
        "D4",
        "an early read of a copy to the host does not compile",
        Test("tests/compile_fail.rs", "d04_an_early_read_does_not_compile"),
    ),
    (
        "D5",
        "a fresh stream per epoch keeps the footprint flat",
        Test(ORDERS, "d05_a_fresh_stream_per_epoch_stays_flat"),
    ),
    ("D6", "prefetching stays near the bytes alive", Owed("virtual memory")),
    (
        "D7",
        "a pinned request takes what was asked",
        Test(TRANSFERS, "d07_a_pinned_request_takes_what_was_asked"),
    ),
    (
        "D8",
        "one slow stream does not grow the pinned pool",
        Test(TRANSFERS, "d08_one_slow_stream_does_not_grow_the_pinned_pool"),
    ),
    ("D9", "a large request fits where every other piece was freed", Owed("virtual memory")),
    ("D10", "giving memory back waits for nobody's kernel", Owed("virtual memory")),
    ("D11", "least memory of all on varying lengths", Owed("virtual memory")),
    ("D12", "a fed training loop against the bound with no loading", Owed("feed")),
    ("D13", "staged copies against copies from pinned memory", Owed("transfer")),
];

/// Every id there must be, in order.
fn every_id() -> Vec<String> {
    let chapters = [("S", 17), ("T", 18), ("P", 18), ("G", 11), ("H", 13), ("C", 8), ("7.", 22), ("D", 13)];
    chapters.iter().flat_map(|&(key, last)| (1..=last).map(move |n| format!("{key}{n}"))).collect()
}

/// Whether the code has a test function of this name.
fn has_test(code: &str, name: &str) -> bool {
    let head = format!("fn {name}(");
    code.match_indices(&head).any(|(at, _)| {
        // Between the attribute and the function: other attributes, `pub`, but no other item.
        code[..at].rfind("#[test]").is_some_and(|from| !code[from..at].contains(['{', '}', ';']))
    })
}

/// Whether the suite's room has this function, and its list names it.
fn in_suite(room: &str, list: &str, name: &str) -> bool {
    let listed = code_only(list).split(|c: char| !is_word(c)).any(|word| word == name);
    listed && code_only(room).contains(&format!("pub fn {name}<"))
}

/// Text with every run of white space made one space, so that a sentence is found over line breaks.
fn on_one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// What a row's evidence is called, and what is wrong with it.
fn missing(id: &str, evidence: Evidence) -> Option<(&'static str, String)> {
    let exists = |file: &str| root().join(file).exists();
    match evidence {
        Test(file, name) if !exists(file) => Some((name, format!("{id}: {file} is not there"))),
        Test(file, name) if !has_test(&code_only(&read(file)), name) => {
            Some((name, format!("{id}: {file} has no #[test] fn {name}")))
        }
        Suite(name) if !in_suite(&read(ROOM), &read(LIST), name) => {
            Some((name, format!("{id}: {ROOM} has no such function, or {LIST} does not run it: {name}")))
        }
        Bench(file) if !exists(file) => Some((file, format!("{id}: {file} is not there"))),
        Docs(sentence) => {
            let documents = ["DESIGN.md", "README.md"].into_iter().filter(|d| exists(d));
            let stands = documents.map(|d| on_one_line(&read(d))).any(|text| text.contains(sentence));
            (!stands).then(|| (sentence, format!("{id}: DESIGN.md and README.md do not say: {sentence}")))
        }
        Owed(room) if !LATER.contains(&room) => {
            Some((room, format!("{id}: owed to {room:?}, which is no later room")))
        }
        Test(..) | Suite(_) | Bench(_) | Owed(_) => None,
    }
}

#[test]
fn the_table_has_every_row_once_and_in_order() {
    let ids: Vec<&str> = ROWS.iter().map(|r| r.0).collect();
    assert_eq!(ids, every_id());
}

#[test]
fn every_row_has_its_evidence() {
    let (mut absent, mut pending, mut found) = (Vec::new(), Vec::new(), 0);
    for &(id, _, evidence) in ROWS {
        match missing(id, evidence) {
            Some((name, _)) if PENDING.contains(&name) => pending.push(format!("{id} {name}")),
            Some((_, why)) => absent.push(why),
            None => found += 1,
        }
    }
    let owed = ROWS.iter().filter(|r| matches!(r.2, Owed(_))).count();
    // Past the test harness, which shows what a passing test prints to nobody.
    let mut out = std::io::stderr();
    let _ = writeln!(
        out,
        "{} rows: {} shown, {} pending, {owed} owed to later rooms",
        ROWS.len(),
        found - owed,
        pending.len()
    );
    let _ = pending.iter().try_for_each(|p| writeln!(out, "  pending: {p}"));
    assert!(absent.is_empty(), "rows without what shows them:\n  {}\n", absent.join("\n  "));
}

#[test]
fn what_is_pending_belongs_to_a_row() {
    let named: BTreeSet<&str> = ROWS
        .iter()
        .filter_map(|r| match r.2 {
            Test(_, name) | Suite(name) | Bench(name) | Docs(name) => Some(name),
            Owed(_) => None,
        })
        .collect();
    let strays: Vec<_> = PENDING.iter().filter(|p| !named.contains(*p)).collect();
    assert!(strays.is_empty(), "pending, but in no row: {strays:?}");
}

#[test]
fn tests_are_named_after_their_rows_and_stand_for_one_each() {
    let mut seen = BTreeSet::new();
    for &(id, behaviour, evidence) in ROWS {
        assert!(
            !behaviour.is_empty() && !behaviour.contains('\n'),
            "{id}: one line that says what must hold"
        );
        let (Test(_, name) | Suite(name)) = evidence else { continue };
        let prefix = match id.split_at(1) {
            ("7", _) => "parity_".to_owned(),
            (key, number) => format!("{}{:02}_", key.to_lowercase(), number.parse::<u32>().unwrap()),
        };
        assert!(name.starts_with(&prefix), "{id}: {name} should begin with {prefix}");
        assert!(seen.insert(name), "{id}: {name} stands for another row too");
    }
}

/// The tests that a chapter of DESIGN.md names in tables, and the files where it says that they are: what is missing.
fn not_there(chapter: &str, text_of: impl Fn(&str) -> String) -> Vec<String> {
    let mut missing = Vec::new();
    for row in chapter.lines().filter(|line| line.starts_with("| ")) {
        let (paths, names): (Vec<&str>, Vec<&str>) =
            row.split('`').skip(1).step_by(2).partition(|word| word.contains('/'));
        let code: Vec<String> = paths.iter().map(|path| code_only(&text_of(path))).collect();
        let is_there = |name: &str| {
            code.iter().any(|c| has_test(c, name) || c.contains(&format!("pub fn {name}<T: Bench>(b: &T)")))
        };
        missing.extend(names.into_iter().filter(|name| !is_there(name)).map(str::to_owned));
    }
    missing
}

#[test]
fn the_backends_promises_name_tests_that_are_there() {
    let design = read("DESIGN.md");
    let (_, rest) = design.split_once("### The CUDA backend, clause by clause\n").expect("the chapter");
    let chapter = rest.split("\n## ").next().expect("its end");
    assert!(chapter.matches('`').count() > 60, "a table of tests: {chapter}");
    assert_eq!(not_there(chapter, |path| read(path)), Vec::<String>::new());
    let code = |_: &str| "#[test]\nfn there() {}".to_owned();
    assert_eq!(
        not_there("| a | `there`, `nowhere` | `tests/some.rs` |\n`not in a table`", code),
        ["nowhere"]
    );
}

#[test]
fn missing_evidence_is_reported() {
    let here = "tests/rows.rs";
    assert!(missing("S1", Test(here, "missing_evidence_is_reported")).is_none());
    assert!(missing("S1", Test(here, "on_one_line")).is_some(), "a function that is no test");
    assert!(missing("S1", Test(here, "s99_nobody_wrote_this")).is_some());
    assert!(missing("S1", Test("tests/no_such_file.rs", "s01_x")).is_some());
    assert!(missing("S1", Docs("A sentence that nobody would write in a document about memory.")).is_some());
    assert!(missing("S1", Suite("s99_nobody_wrote_this")).is_some());
    assert!(missing("S1", Bench("benches/no_such_file.rs")).is_some());
    assert!(in_suite("pub fn a<T>() {}", "room: [a, b]", "a"));
    assert!(!in_suite("pub fn a<T>() {}", "room: [ab, b] // a", "a"), "not run");
    assert!(!in_suite("// pub fn a<T>() {}", "room: [a]", "a"), "not there");
    assert!(missing("S1", Owed("attic")).is_some());
    assert!(!has_test("#[test]\nfn a() {}\nfn b() {}", "b"));
    assert!(has_test("#[test]\n#[should_panic]\nfn b() {}", "b"));
}
