//! Reading the repository's own sources, for tests that keep its habits. Knows files and Rust's lexical shape, no rule.

use std::fs;
use std::path::{Path, PathBuf};

/// The repository's root.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// A file of the repository.
pub(crate) fn read(path: impl AsRef<Path>) -> String {
    let path = root().join(path);
    fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Every Rust source under these folders, relative to the root and sorted; build outputs are left out.
pub(crate) fn rust_files(folders: &[&str]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut todo: Vec<PathBuf> = folders.iter().map(|f| root().join(f)).filter(|f| f.is_dir()).collect();
    while let Some(folder) = todo.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() && path.file_name().is_some_and(|n| n != "target") {
                todo.push(path);
            } else if path.extension().is_some_and(|e| e == "rs") {
                found.push(path.strip_prefix(root()).unwrap().to_path_buf());
            }
        }
    }
    found.sort();
    found
}

/// The source with comments, strings and character literals blanked, so that every line and column stays where it was.
pub(crate) fn code_only(source: &str) -> String {
    let text: Vec<char> = source.chars().collect();
    let mut out = text.clone();
    let at = |i: usize| text.get(i).copied().unwrap_or('\0');
    let mut i = 0;
    while i < text.len() {
        let end = match (text[i], at(i + 1)) {
            ('/', '/') => (i..text.len()).find(|&j| text[j] == '\n').unwrap_or(text.len()),
            ('/', '*') => end_of_block_comment(&text, i),
            ('"', _) => end_of_string(&text, i),
            ('r', '"' | '#') if !(i > 0 && is_word(text[i - 1]) && text[i - 1] != 'b') => {
                end_of_raw_string(&text, i)
            }
            // 'x' and '\n' are characters; 'a on its own is a lifetime.
            ('\'', '\\') => (i + 3..text.len()).find(|&j| text[j] == '\'').map_or(text.len(), |j| j + 1),
            ('\'', _) if at(i + 2) == '\'' => i + 3,
            _ => i,
        };
        for slot in &mut out[i..end] {
            if *slot != '\n' {
                *slot = ' ';
            }
        }
        i = end.max(i + 1);
    }
    out.into_iter().collect()
}

/// Whether a character may be part of a name.
pub(crate) fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn end_of_block_comment(text: &[char], start: usize) -> usize {
    let (mut i, mut depth) = (start + 2, 1);
    while i < text.len() && depth > 0 {
        match (text[i], text.get(i + 1)) {
            ('/', Some('*')) => (depth, i) = (depth + 1, i + 1),
            ('*', Some('/')) => (depth, i) = (depth - 1, i + 1),
            _ => {}
        }
        i += 1;
    }
    i.min(text.len())
}

fn end_of_string(text: &[char], start: usize) -> usize {
    let mut i = start + 1;
    while i < text.len() && text[i] != '"' {
        i += if text[i] == '\\' { 2 } else { 1 };
    }
    (i + 1).min(text.len())
}

/// `r"…"`, `r#"…"#` and so on; `start` itself where it is no string but a raw name such as `r#type`.
fn end_of_raw_string(text: &[char], start: usize) -> usize {
    let hashes = text[start + 1..].iter().take_while(|&&c| c == '#').count();
    if text.get(start + 1 + hashes) != Some(&'"') {
        return start;
    }
    let closes =
        |j: &usize| text[*j] == '"' && text[j + 1..].iter().take_while(|&&c| c == '#').count() >= hashes;
    (start + 2 + hashes..text.len()).find(closes).map_or(text.len(), |j| j + 1 + hashes)
}
