//! What must not compile does not, for the reason meant: each program of `ui` is refused in the compiler's words
//! beside it, and its twin in `ui/lawful`, which differs in the lines marked `//~` only, is compiled here, runs, and
//! has the oracle's blessing.
//!
//! The words are those of one compiler; another one skips the test and says so. `TRYBUILD=overwrite` writes them anew.

#![cfg(not(any(loom, shuttle, miri, millpond_mutants)))]

#[path = "../ui/lawful/mod.rs"]
mod lawful;
#[allow(dead_code, unused_imports, reason = "shared with tests/architecture, which uses the rest")]
#[path = "../../architecture/sources/mod.rs"]
mod sources;

use sources::{read, root};
use std::io::Write;
use std::process::Command;

/// Whose words they are.
const COMPILER: &str = "rustc 1.95.";

/// The programs in a folder, by name.
fn programs(folder: &str) -> Vec<String> {
    let files = std::fs::read_dir(root().join(folder)).expect("the folder");
    let paths = files.map(|f| f.expect("an entry").path());
    let sources = paths.filter(|path| path.extension().is_some_and(|extension| extension == "rs"));
    let names = sources.map(|path| path.file_name().and_then(|name| name.to_str()).map(str::to_owned));
    let mut names: Vec<String> = names.map(|name| name.expect("a plain name")).collect();
    names.sort();
    names
}

/// A program without its marked lines and its first paragraph, and how many were marked.
fn unmarked(file: &str) -> (String, usize) {
    let text = read(file);
    let (marked, plain): (Vec<&str>, Vec<&str>) = text.lines().partition(|line| line.ends_with("//~"));
    (plain.join("\n"), marked.len())
}

/// So that a program is refused for what is marked, and for nothing else.
#[test]
fn each_mistake_has_a_lawful_twin_that_differs_where_it_is_marked_and_runs() {
    let mistakes = programs("ui");
    assert!(mistakes.len() > 21, "{mistakes:?}");
    let twins: Vec<String> = lawful::ALL.iter().map(|(name, _)| format!("{name}.rs")).collect();
    assert_eq!(mistakes, twins);
    for name in mistakes {
        let (mistake, marked) = unmarked(&format!("ui/{name}"));
        let (twin, _) = unmarked(&format!("ui/lawful/{name}"));
        assert_eq!(mistake, twin, "{name}: what differs is to be marked");
        assert!(marked > 0, "{name}: nothing is marked");
    }
    for (name, program) in lawful::ALL {
        program().unwrap_or_else(|e| panic!("{name}: {e}"));
    }
}

/// The cases, unless the compiler's words are another's.
fn cases(test: &str) -> Option<trybuild::TestCases> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let version = Command::new(rustc).current_dir(root()).arg("--version").output().expect("a compiler");
    let version = String::from_utf8(version.stdout).expect("words");
    if !version.starts_with(COMPILER) {
        // Past the test harness, which hides what a passing test prints.
        let _ = writeln!(
            std::io::stderr(),
            "SKIPPED: {test}, the refusals are {COMPILER}*'s and this is {version}"
        );
        return None;
    }
    Some(trybuild::TestCases::new())
}

#[test]
fn what_must_not_compile_does_not() {
    let Some(cases) = cases("what_must_not_compile_does_not") else { return };
    cases.compile_fail("ui/*.rs");
}

/// D4: reading the target of a copy to the host before the wait.
#[test]
fn d04_an_early_read_does_not_compile() {
    let Some(cases) = cases("d04_an_early_read_does_not_compile") else { return };
    cases.compile_fail("ui/download_read_early.rs");
    cases.compile_fail("ui/scope_target_read_early.rs");
}
