//! Words that were given up stay out: each has a standard term of the field, or a plain word, in its place (DESIGN.md has the glossary). Names, comments and
//! texts of programs are searched, and the documents that say how things are; the changelog and the tables of measurements speak of their day.

use crate::sources::{read, rust_files};
use crate::{DOCUMENTS, SOURCES, assert_none};
use std::path::{Path, PathBuf};

/// What not to write, as whole words of a line, and what to write.
const GIVEN_UP: &[(&[&str], &str)] = &[
    (&["shall"], "must, or the plain present"),
    (&["lend", "lends", "lending", "lent", "lender", "lenders"], "migrate between pools; borrow"),
    (
        &["settle", "settles", "settled", "settling"],
        "the verb of what is done: drain, complete, synchronize, finish",
    ),
    (&["deal", "deals"], "assign; generate"),
    (&["told"], "notified, reported, received"),
    (&["errand", "errands"], "maintenance"),
    (&["mortal"], "unmanaged"),
    (&["zoo", "weave", "carve", "foretold"], "mutants; generate; mark allocated; known before"),
    (
        &["is asked", "are asked", "was asked", "were asked", "be asked", "been asked"],
        "requested, queried, called",
    ),
];

/// Where what was given up may stay: in a folder, by its last word.
const MAY_STAY: &[(&str, &str)] = &[
    // A source of batches is asked for the next one.
    ("feed", "asked"),
    // The list itself, and the names of requirements.
    ("tests/architecture", ""),
];

/// The folders beside the packages' sources.
const MORE: &[&str] = &[
    "testkit/src",
    "cli",
    "plug/src",
    "plug/tests",
    "core/tests",
    "replay/tests",
    "sim/tests",
    "tests",
    "examples",
    "fuzz/src",
];

/// A line's words, in lower case and with one space before and behind each. A name is several: `is_lent` and `IsLent` are " is lent ".
fn words(line: &str) -> String {
    let mut words = String::from(" ");
    let mut lower = false;
    for c in line.chars() {
        if (!c.is_alphanumeric() || lower && c.is_uppercase()) && !words.ends_with(' ') {
            words.push(' ');
        }
        if c.is_alphanumeric() {
            words.extend(c.to_lowercase());
        }
        lower = c.is_lowercase();
    }
    if !words.ends_with(' ') {
        words.push(' ');
    }
    words
}

/// Whether a line names a rung of the miss ladder by a number. Rungs have names, those of `report::Ladder`.
fn has_numbered_rung(line: &str) -> bool {
    let line = line.to_lowercase();
    let numbered = |word: &str| {
        line.match_indices(word)
            .any(|(at, _)| line[at + word.len()..].starts_with(|c: char| c.is_ascii_digit()))
    };
    numbered("rung ") || numbered("rungs ")
}

/// The lines of a file with what was given up, and what to write.
fn found(file: &Path, text: &str) -> Vec<String> {
    let stays =
        |old: &str| MAY_STAY.iter().any(|(folder, last)| file.starts_with(folder) && old.ends_with(last));
    let mut found = Vec::new();
    for (at, line) in text.lines().enumerate() {
        if has_numbered_rung(line) && !stays("rung") {
            found.push(format!("{}:{}: a rung's number (its name)", file.display(), at + 1));
        }
        let line = words(line);
        for (old, instead) in
            GIVEN_UP.iter().flat_map(|(all, instead)| all.iter().map(move |old| (old, instead)))
        {
            if line.contains(&format!(" {old} ")) && !stays(old) {
                found.push(format!("{}:{}: {old} ({instead})", file.display(), at + 1));
            }
        }
    }
    found
}

#[test]
fn words_that_were_given_up_stay_out() {
    let mut files: Vec<PathBuf> = DOCUMENTS.iter().map(PathBuf::from).collect();
    files.extend(rust_files(SOURCES));
    files.extend(rust_files(MORE));
    assert!(files.len() > 400, "{} files: they are not where this test looks", files.len());
    let old: Vec<String> = files.iter().flat_map(|file| found(file, &read(file))).collect();
    assert_none("words that were given up", &old);

    // It can fail, on names of each form, on prose and on rungs, and not on words that only look alike.
    let planted = "fn is_lent() {}\nstruct PoolLender;\nconst SETTLED: u8 = 1;\n// Bytes that the driver is asked for, on rung 8.\n// Silent ideals, marshalled: the wait rung, 8 times; [Rung; 8]; basked.\n";
    let lines = |file: &str| -> Vec<String> {
        let short = |text: &String| text.split(" (").next().unwrap_or_default().to_owned();
        found(Path::new(file), planted).iter().map(short).collect()
    };
    let of_all = [
        "src/x.rs:1: lent",
        "src/x.rs:2: lender",
        "src/x.rs:3: settled",
        "src/x.rs:4: a rung's number",
        "src/x.rs:4: is asked",
    ];
    assert_eq!(lines("src/x.rs"), of_all);
    assert_eq!(lines("feed/src/x.rs").len(), 4, "a source of batches is asked");
    assert!(lines("tests/architecture/x.rs").is_empty());
}
