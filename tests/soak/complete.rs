//! Whether every program that others will run in a loop has one here: reads which examples, README programs and requirements there are.
//!
//! It does not know what a loop does, but that it is one: programs are listed by the macros that make the tests of them.

use super::{lasting, programs, requirement_tests};
use std::collections::BTreeSet;
use std::path::PathBuf;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// Everything that runs in a loop on a device and an allocator that live through all of it, by its name.
fn loops() -> BTreeSet<&'static str> {
    programs::NAMES.iter().chain(lasting::NAMES).copied().chain(requirement_tests::staying()).collect()
}

/// Tests that are repeated from beginning to end, with a device or an allocator of each round's: of what they leave nothing can pile up but host memory.
fn repeated() -> BTreeSet<&'static str> {
    let own = requirement_tests::OWN.iter().flat_map(|tests| tests.iter().map(|test| test.0));
    requirement_tests::SUITE.iter().copied().chain(own).collect()
}

// Examples.

/// Examples that have a test of another name.
const NAMED_OTHERWISE: &[(&str, &str)] = &[
    // `the_long_run_for_a_gpu_passes_on_the_simulated_device`, which is a soak itself.
    ("gpu_soak", "gpu_soak::soak("),
];

/// The examples that run without a GPU: those for which their package's manifest asks no `cuda`.
fn without_a_gpu(manifests: &[String], examples: &[Example]) -> Vec<Example> {
    let needs_a_gpu = |example: &&Example| {
        let sections = manifests.iter().flat_map(|manifest| manifest.split("\n[[").skip(1));
        sections.map(|section| section.split("\n[").next().unwrap_or_default()).any(|section| {
            section.contains(&format!("name = \"{}\"", example.name)) && section.contains("\"cuda\"")
        })
    };
    examples.iter().filter(|example| !needs_a_gpu(example)).cloned().collect()
}

/// The manifests of the packages whose examples and programs are looked at.
fn manifests() -> [String; 2] {
    [read("Cargo.toml"), read("benches/gpu/Cargo.toml")]
}

/// Examples that need CUDA and have no loop in `tests/cudarc_soak.rs`, and why.
const NO_LOOP_ON_CUDA: &[(&str, &str)] = &[
    ("gpu_bench", "it repeats recorded programs for a time, and frees all that they made after each"),
    (
        "gpu_feed",
        "it makes an allocator and feeders for figures; feed/tests has the programs that run for long",
    ),
    ("gpu_pinned", "it makes an allocator for each figure, and measures what pinned memory costs"),
    (
        "gpu_taken",
        "it makes an allocator for each figure, and each makes the calls of a recorded workload twice",
    ),
    ("gpu_transfers", "it measures series of copies and launches between two waits, half of them not ours"),
    ("with_cublas", "it needs libcublas, and there is no stand-in for that"),
];

/// Examples that need CUDA, and neither have a loop nor a reason.
fn forgotten(examples: &[Example], without_a_gpu: &[Example], soak: &str) -> Vec<String> {
    let has_one = |example: &Example| {
        soak.contains(&example.as_module()) && soak.contains(&format!("{}::", example.name))
    };
    let need_cuda = examples.iter().filter(|example| !without_a_gpu.contains(example));
    let lacks = need_cuda
        .filter(|example| !has_one(example) && NO_LOOP_ON_CUDA.iter().all(|(of, _)| *of != example.name));
    lacks.map(|example| example.name.clone()).collect()
}

#[test]
fn every_example_that_needs_cuda_has_a_loop_or_a_reason() {
    let (mut examples, soak) = (examples(), read("tests/cudarc_soak.rs"));
    let without_a_gpu = without_a_gpu(&manifests(), &examples);
    assert_eq!(forgotten(&examples, &without_a_gpu, &soak), Vec::<String>::new());
    for (name, why) in NO_LOOP_ON_CUDA {
        let is_in = |examples: &[Example]| examples.iter().any(|example| example.name == *name);
        assert!(is_in(&examples) && !is_in(&without_a_gpu), "{name}");
        assert!(!soak.contains(&format!("{name}.rs\"]")), "{name} has a loop, in spite of: {why}");
    }
    // It can fail.
    examples.push(Example { folder: "examples", name: "new".to_owned() });
    assert_eq!(forgotten(&examples, &without_a_gpu, &soak), ["new"]);
    assert_eq!(forgotten(&examples, &without_a_gpu, ""), ["gpu_costs", "new"]);
}

/// An example, or a program for a GPU's machine.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Example {
    folder: &'static str,
    name: String,
}

impl Example {
    /// How its very code becomes a module of a soak.
    fn as_module(&self) -> String {
        format!("#[path = \"../{}/{}.rs\"]", self.folder, self.name)
    }
}

/// All of them: files with a `main`, and folders with a `main.rs`.
fn examples() -> Vec<Example> {
    let mut found = Vec::new();
    for folder in ["benches/gpu", "examples"] {
        for entry in std::fs::read_dir(root().join(folder)).expect(folder) {
            let path = entry.expect("an entry").path();
            let is_source = path.extension().is_some_and(|e| e == "rs");
            let has_main = || std::fs::read_to_string(&path).expect("a source").contains("fn main()");
            let is_one = path.join("main.rs").exists() || is_source && has_main();
            let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
            found.extend(is_one.then_some(Example { folder, name }));
        }
    }
    found.sort();
    found
}

#[test]
fn every_example_that_needs_no_gpu_has_a_loop() {
    let examples = without_a_gpu(&manifests(), &examples());
    assert!(examples.len() >= 4, "{examples:?}");
    let (loops, front) = (loops(), read("tests/soak.rs"));
    let has_one = |example: &Example| {
        let name = example.name.as_str();
        let called = NAMED_OTHERWISE.iter().any(|(of, call)| *of == name && front.contains(call));
        // By the very code: the example's file is a module here.
        front.contains(&example.as_module()) && (loops.contains(name) || called)
    };
    let without: Vec<_> = examples.iter().filter(|example| !has_one(example)).collect();
    assert!(without.is_empty(), "examples without a loop in tests/soak: {without:?}");
}

// The README.

/// Lines of the README's programs that are not in the loop: what makes the device and its allocator, and what looks at the result.
const AROUND: &[&str] = &[
    "use ",
    "fn main()",
    "let sim = ",
    "let gpu = Allocator::new(",
    "let (copy, work) = ",
    "assert_eq!(",
    "println!(",
    "sim.verdict()?;",
];

/// The statements of a program, without comments.
fn statements(text: &str) -> Vec<String> {
    let lines = text.lines().map(|line| line.split(" // ").next().unwrap_or_default());
    let lines =
        lines.map(|line| line.split("   //").next().unwrap_or_default().trim().replace("1 << 20", "LEN"));
    lines.filter(|line| !line.is_empty() && line != "}").collect()
}

/// The same of its program for a GPU, whose rustdoc wrapping is hidden on the page.
const AROUND_ON_A_GPU: &[&str] =
    &["use ", "# ", "let gpu = Allocator::new(", "let (copy, work) = ", "Ok(())"];

/// The programs in Rust that begin so.
fn rust_blocks<'a>(readme: &'a str, fence: &str) -> Vec<&'a str> {
    readme.split(fence).skip(1).filter_map(|rest| rest.split("```").next()).collect()
}

/// Programs of the README, and the file that has them as functions.
struct Programs {
    /// How each begins there.
    fence: &'static str,
    many: usize,
    ours: &'static str,
    around: &'static [&'static str],
}

impl Programs {
    /// What the README's programs have that the functions don't, and the other way round.
    fn differences(&self, readme: &str, ours: &str) -> Vec<String> {
        let blocks = rust_blocks(readme, self.fence);
        let ours: Vec<&str> = ours.split("#[rustfmt::skip]\npub fn ").skip(1).collect();
        if blocks.len() != ours.len() {
            return vec![format!("{} programs in the README, {} here", blocks.len(), ours.len())];
        }
        let within = |line: &String| !self.around.iter().any(|a| line.starts_with(a));
        let mut found = Vec::new();
        for (block, ours) in blocks.into_iter().zip(ours) {
            let theirs: Vec<String> = statements(block).into_iter().filter(within).collect();
            let ours = ours.split("\n}").next().unwrap_or_default();
            let ours: Vec<String> = statements(ours).into_iter().skip(1).filter(within).collect();
            if theirs != ours {
                let mut both = theirs.iter().zip(&ours);
                let first = both.position(|(a, b)| a != b).unwrap_or(theirs.len().min(ours.len()));
                found.push(format!("README: {:?}\n  here: {:?}", theirs.get(first), ours.get(first)));
            }
        }
        found
    }

    /// They are the same line by line, and a README with one of these changes, from and to, is found to be another.
    fn are_the_same(&self, changes: &[(&str, &str)]) {
        let (readme, ours) = (read("README.md"), read(self.ours));
        assert_eq!(rust_blocks(&readme, self.fence).len(), self.many, "programs of the README");
        assert_eq!(self.differences(&readme, &ours), Vec::<String>::new());
        let mut changed: Vec<String> = changes.iter().map(|(from, to)| readme.replace(from, to)).collect();
        changed.push(format!("{readme}\n{}fn main() {{}}\n```\n", self.fence));
        for changed in changed {
            assert!(!self.differences(&changed, &ours).is_empty(), "a change of the README goes unseen");
        }
    }
}

#[test]
fn the_readmes_program_runs_line_by_line() {
    let ours = "tests/soak/readme.rs";
    Programs { fence: "```rust\n", many: 1, ours, around: AROUND }
        .are_the_same(&[("batch.record_use(&work)?;", ""), ("alloc(64 * MIB", "alloc(32 * MIB")]);
    assert!(loops().contains("readme_plain"));
}

#[test]
fn the_readmes_program_for_a_gpu_runs_line_by_line() {
    let (fence, ours) = ("```rust,no_run\n", "tests/soak/readme_on_a_gpu.rs");
    Programs { fence, many: 1, ours, around: AROUND_ON_A_GPU }
        .are_the_same(&[("drop((x, sent));", ""), ("saxpy(2.0", "saxpy(3.0")]);
    assert!(read("tests/cudarc_soak.rs").contains("readme_on_a_gpu::on_a_gpu("));
}

/// Programs of other packages' READMEs, and why none has a loop.
const NO_LOOP_BESIDE: &[(&str, &str)] = &[
    (
        "sim/README.md",
        "it has no allocator, and the simulated device's memory is what every loop leaves out of its account",
    ),
    (
        "replay/README.md",
        "a program has an end, and its replay gives all of it back; recorded ones are replayed on devices of their own",
    ),
    ("trace/README.md", "it reads a text and writes it again: nothing lasts longer than the value"),
    (
        "feed/README.md",
        "a feeder of its own package, whose test `many_small_batches_and_nothing_grows` runs a million batches (.ci/soak)",
    ),
    ("cuda/README.md", "it makes an allocator, as each of tests/cudarc_soak.rs does"),
];

/// READMEs beside the front page with programs in Rust.
fn beside() -> Vec<String> {
    let folders = std::fs::read_dir(root()).expect("the repository");
    let readmes = folders.map(|folder| folder.expect("a folder").path().join("README.md"));
    let mut found: Vec<String> = readmes
        .filter(|path| std::fs::read_to_string(path).is_ok_and(|text| text.contains("```rust")))
        .filter_map(|path| Some(path.strip_prefix(root()).ok()?.to_string_lossy().into_owned()))
        .collect();
    found.sort();
    found
}

#[test]
fn every_other_readme_has_a_reason() {
    let mut reasons: Vec<_> = NO_LOOP_BESIDE.iter().map(|(path, _)| (*path).to_owned()).collect();
    reasons.sort();
    assert_eq!(beside(), reasons);
}

// Requirements.

/// Requirements whose tests have no loop of their own code but one of their shape: the id, and the steady program.
const BY_SHAPE: &[(&str, &str)] = &[
    // Its test compares two numbers of epochs on purpose; the program goes on with them.
    ("D5", "streams_come_and_go"),
    // Its two streams are in no order on purpose, and each run of it ends in a conviction: the program has the wait that it leaves out.
    ("T11", "two_cross_stream_users"),
];

/// Requirements whose tests cannot be looped, and why.
const NO_LOOP: &[(&str, &str)] = &[
    (
        "C4",
        "where the CUDA backend takes memory from: its test runs on the stand-in driver. What the allocator does otherwise where frees wait for nothing, the trim rung of its ladder, random programs do (`some_programs_have_little_memory`)",
    ),
    ("T15", "its test reads the sources: no stream is kept where no call named it"),
    ("G4", "its test reads the sources: a thread keeps nothing that an order depends on"),
    ("7.14", "a double free is a panic that leaves its allocator behind, forgotten on purpose"),
];

/// A requirement of the table: its id, and the tests that show it.
#[derive(PartialEq, Eq, Debug)]
struct Requirement {
    id: String,
    tests: Vec<String>,
}

/// The requirements that tests on some device show, without those that `millpond-feed` meets, whose soak is its own test
/// `many_small_batches_and_nothing_grows`. Every list of evidence follows two texts, the requirement's id and what must hold.
fn requirements(table: &str) -> Vec<Requirement> {
    let mut found = Vec::new();
    for (at, _) in table.match_indices("&[") {
        let mut texts = table[..at].rsplit('"');
        let (Some(_), Some(_), Some(_), Some(id)) = (texts.next(), texts.next(), texts.next(), texts.next())
        else {
            continue;
        };
        // A bracket ends the list: texts in it have none.
        let evidence = table[at + 2..].split(']').next().unwrap_or_default();
        let calls = evidence.split(')').filter_map(|call| call.split_once('('));
        let of_feed = |what: &str| what.contains("FEED_") || what.contains("\"feed/");
        let shown = calls
            .filter(|(kind, what)| (kind.ends_with("Test") || kind.ends_with("Suite")) && !of_feed(what));
        let tests: Vec<String> =
            shown.filter_map(|(_, what)| Some(what.rsplit('"').nth(1)?.to_owned())).collect();
        if !tests.is_empty() {
            found.push(Requirement { id: id.to_owned(), tests });
        }
    }
    found
}

/// The table of tests/architecture/requirements.rs.
fn table() -> String {
    let text = read("tests/architecture/requirements.rs");
    let (_, table) =
        text.split_once("const REQUIREMENTS: &[(&str, Source, &str, &[Evidence])] = &[").expect("the table");
    table.split("\n];").next().expect("its end").to_owned()
}

/// Requirements without a loop.
fn without_a_loop(requirements: &[Requirement], loops: &BTreeSet<&str>) -> Vec<String> {
    let by_shape = |id: &str| BY_SHAPE.iter().any(|(shown, program)| *shown == id && loops.contains(program));
    let lacks = requirements.iter().filter(|requirement| {
        !requirement.tests.iter().any(|test| loops.contains(test.as_str()))
            && !by_shape(&requirement.id)
            && !NO_LOOP.iter().any(|(id, _)| *id == requirement.id)
    });
    lacks.map(|requirement| format!("{} {:?}", requirement.id, requirement.tests)).collect()
}

#[test]
fn every_requirement_has_a_loop() {
    let (requirements, mut loops) = (requirements(&table()), loops());
    assert!(requirements.len() > 60, "{} requirements that tests show", requirements.len());
    assert_eq!(without_a_loop(&requirements, &loops), Vec::<String>::new());
    // It can fail: a requirement is named though its test is repeated from beginning to end.
    let d07 = "d07_a_pinned_request_takes_what_was_requested";
    assert!(loops.remove(d07) && repeated().contains(d07), "the loop of D7");
    assert_eq!(without_a_loop(&requirements, &loops), [format!("D7 [\"{d07}\"]")]);
    assert!(without_a_loop(&requirements, &BTreeSet::new()).len() > 70, "without loops all are named");
    // Nothing stands on a list of exceptions that has a loop, or is no requirement.
    for (id, why) in NO_LOOP.iter().chain(BY_SHAPE) {
        let requirement =
            requirements.iter().find(|r| r.id == *id).unwrap_or_else(|| panic!("{id} is no requirement"));
        assert!(
            !requirement.tests.iter().any(|test| loops.contains(test.as_str())),
            "{id} has a loop, in spite of: {why}"
        );
        assert!(!why.is_empty());
    }
}

/// Tests that run once: 7.14 above; and one that is half a second of loops over every call that may fail.
const ONCE: &[&str] = &[
    "parity_double_free",
    "h02_a_peer_copy_is_ordered_whatever_fails",
    "h02_a_peer_copy_is_ordered_if_the_driver_panics",
];

/// Tests in the files of requirements that the table does not name are repeated too: a new one is added to its file's list.
#[test]
fn every_test_of_requirements_is_repeated() {
    let repeated = repeated();
    for file in ["tests/allocator/requirements.rs", "tests/arrays/transfers.rs", "tests/allocator/parity.rs"]
    {
        let text = read(file);
        let tests: Vec<&str> = text
            .split("#[test]\n")
            .skip(1)
            .filter_map(|rest| rest.split_once("fn ")?.1.split_once('(').map(|(name, _)| name))
            .collect();
        assert!(tests.len() > 20, "{file}: {tests:?}");
        let without: Vec<_> =
            tests.into_iter().filter(|name| !repeated.contains(name) && !ONCE.contains(name)).collect();
        assert!(without.is_empty(), "{file}: not in its list `AGAIN`: {without:?}");
    }
}

#[test]
fn the_table_is_read_as_it_stands() {
    let table = "    (\"A1\", Talk, \"what, and why\", &[Owed(\"x\")]),\n    (\n        \"A2\",\n        Talk,\n        \"two\",\n        &[\n            Suite(\"s\"),\n            Bench(F, \"b\"),\n            Test(\n                \"tests/f.rs\",\n                \"t\",\n            ),\n        ],\n    ),\n";
    assert_eq!(requirements(table), [Requirement { id: "A2".into(), tests: vec!["s".into(), "t".into()] }]);
}
