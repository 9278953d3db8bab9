//! What documents and comments send a reader to is in the repository: the files that they name, and no text that only its author has.
//! It reads documents whole, and of sources and scripts the comments. It does not know whether what is named says what it is named for.

use crate::sources::{code_only, is_word, root};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Names of texts that are not here.
const ELSEWHERE: &[&str] = &["the plan", "as planned", "ROWS"];

/// The one document with numbered chapters.
const CHAPTERS: &str = "DESIGN.md";

/// Endings of the files whose names are looked for.
const NAMED: &[&str] = &[".rs", ".md", ".py", ".sh", ".toml"];

/// Every file of the repository, relative to its root and sorted; build outputs and what git keeps are left out.
pub(crate) fn files() -> Vec<PathBuf> {
    let (mut found, mut todo) = (Vec::new(), vec![root().to_path_buf()]);
    while let Some(folder) = todo.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let is_ours =
                !matches!(name.as_str(), "target" | ".git" | "corpus" | "artifacts" | "__pycache__");
            if is_ours && path.is_dir() {
                todo.push(path);
            } else if is_ours {
                found.push(path.strip_prefix(root()).unwrap().to_path_buf());
            }
        }
    }
    found.sort();
    found
}

/// What a file says to a reader, the rest blanked so that lines stay where they are; nothing where its comments have no readers.
fn prose(file: &Path, text: &str) -> Option<String> {
    let ending = file.extension().and_then(|e| e.to_str()).unwrap_or_default();
    match ending {
        "md" => Some(text.to_owned()),
        "rs" => Some(comments(text)),
        "sh" | "py" | "toml" => Some(behind_hashes(text)),
        "" if text.starts_with("#!") => Some(behind_hashes(text)),
        _ => None,
    }
}

/// The comments of a Rust source: what begins with `//` where the code is blank.
fn comments(source: &str) -> String {
    let of_line = |(line, code): (&str, &str)| {
        let text: String = line.chars().skip(code.trim_end().chars().count()).collect();
        if text.trim_start().starts_with("//") { text } else { String::new() }
    };
    source.lines().zip(code_only(source).lines()).map(of_line).collect::<Vec<_>>().join("\n")
}

/// The comments of a script: from a `#` at a line's beginning or behind a space.
fn behind_hashes(text: &str) -> String {
    let of_line = |line: &str| {
        let at = if line.starts_with('#') { Some(0) } else { line.find(" #") };
        at.map_or_else(String::new, |at| line[at..].to_owned())
    };
    text.lines().map(of_line).collect::<Vec<_>>().join("\n")
}

/// Every end of a path that begins at one of its names: a file is found by its own name too.
pub(crate) fn ends(files: &[PathBuf]) -> BTreeSet<String> {
    let mut ends = BTreeSet::new();
    for file in files {
        let mut rest = file.components();
        while !rest.as_path().as_os_str().is_empty() {
            ends.insert(rest.as_path().display().to_string());
            rest.next();
        }
    }
    ends
}

/// Whether a word stands in a line by itself.
fn says(line: &str, word: &str) -> bool {
    line.match_indices(word)
        .any(|(at, _)| !line[..at].ends_with(is_word) && !line[at + word.len()..].starts_with(is_word))
}

/// What a text leads to that is not there, with lines.
pub(crate) fn dangling(file: &Path, text: &str, ends: &BTreeSet<String>) -> Vec<(usize, String)> {
    let Some(prose) = prose(file, text) else { return Vec::new() };
    let mut found = Vec::new();
    for (number, line) in prose.lines().enumerate() {
        let mut add = |what: &str| found.push((number + 1, what.to_owned()));
        ELSEWHERE.iter().filter(|word| says(line, word)).for_each(|word| add(word));
        if file != Path::new(CHAPTERS) {
            for word in ["chapter", "section"] {
                let is_numbered = line.match_indices(word).any(|(at, _)| {
                    let behind = line[at + word.len()..].strip_prefix(' ').unwrap_or_default();
                    !line[..at].ends_with(is_word) && behind.starts_with(|c: char| c.is_ascii_digit())
                });
                if is_numbered {
                    add(&format!("{word} by its number"));
                }
            }
        }
        for token in line.split(|c: char| !(is_word(c) || matches!(c, '.' | '/' | '-'))) {
            let name = token.trim_end_matches(['.', '/', '-']);
            let is_address = name.contains("//") || name == "docs.rs";
            // From the folder of the file, or from its parents.
            let name = name.trim_start_matches("../").trim_start_matches("./").trim_start_matches('/');
            if !is_address
                && NAMED.iter().any(|e| name.len() > e.len() && name.ends_with(e))
                && !ends.contains(name)
            {
                add(name);
            }
        }
    }
    found
}
