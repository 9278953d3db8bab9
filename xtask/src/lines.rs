//! How many lines of code each package has, and each of its rooms: neither blank nor comment nor test.

use crate::rust::code_lines;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// A package's sources: its folder, and of each file the path within and the text.
pub(crate) struct Package {
    pub(crate) folder: String,
    pub(crate) files: Vec<(PathBuf, String)>,
}

/// The Rust files of a folder, with their paths within it.
pub(crate) fn all(folder: &Path) -> Result<Vec<(PathBuf, String)>, String> {
    let (mut files, mut todo) = (Vec::new(), vec![folder.to_path_buf()]);
    while let Some(at) = todo.pop() {
        let failed = |e: std::io::Error| format!("{}: {e}", at.display());
        for entry in std::fs::read_dir(&at).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            if path.is_dir() {
                todo.push(path);
            } else if path.extension().is_some_and(|e| e == "rs") {
                let within = path.strip_prefix(folder).map_err(|e| e.to_string())?.to_path_buf();
                files.push((within, crate::read(&path)?));
            }
        }
    }
    if files.is_empty() {
        return Err(format!("{} has no sources", folder.display()));
    }
    Ok(files)
}

/// The sources in a folder, those that are tests left out.
pub(crate) fn read(folder: &Path) -> Result<Package, String> {
    let is_test = |f: &Path| f.ends_with("tests.rs") || f.components().any(|c| c.as_os_str() == "tests");
    let files = all(folder)?.into_iter().filter(|(within, _)| !is_test(within)).collect();
    Ok(Package { folder: folder.display().to_string(), files })
}

/// The room of a file: `heap.rs` and all in `heap`.
fn room(within: &Path) -> String {
    let first = within.components().next().map(|c| PathBuf::from(c.as_os_str()));
    first.unwrap_or_default().with_extension("").display().to_string()
}

/// A line for each package with its lines in all, and below it each room, the largest first.
pub(crate) fn table(packages: &[Package]) -> String {
    let mut out = String::new();
    for package in packages {
        let mut rooms: BTreeMap<String, usize> = BTreeMap::new();
        for (within, text) in &package.files {
            *rooms.entry(room(within)).or_default() += code_lines(text);
        }
        let mut rooms: Vec<(String, usize)> = rooms.into_iter().collect();
        rooms.sort_by_key(|(_, lines)| std::cmp::Reverse(*lines));
        let _ =
            writeln!(out, "{:>6} {}", rooms.iter().map(|(_, lines)| lines).sum::<usize>(), package.folder);
        for (room, lines) in rooms {
            let _ = writeln!(out, "{lines:>6}   {room}");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::{Package, read, table};
    use crate::rust::code_lines;
    use std::path::{Path, PathBuf};

    #[test]
    fn a_line_is_code_unless_it_is_blank_comment_or_test() {
        let source = r##"//! Head.

/* A block
   /* in a block */
*/ use a::b; // counts
const TEXT: &str = "first
    // second, no comment
third";
const RAW: &str = r#"
#[cfg(test)]
"#;

/// Told.
fn f() -> char { '"' }
    // #[cfg(test)]
#[cfg(test)]
const PLANTED: &str = "a
b";
#[cfg(all(test, not(loom)))]
mod tests {
    #[test]
    fn g() {}
}
#[cfg(feature = "x")]
fn h() {
}
"##;
        // The import, three lines of text and three of raw text, `f`, and three of `h`.
        assert_eq!(code_lines(source), 1 + 3 + 3 + 1 + 3);
        assert_eq!(code_lines(""), 0);
    }

    #[test]
    fn rooms_add_up_to_their_package() {
        let file = |path: &str, text: &str| (PathBuf::from(path), text.to_owned());
        let files = vec![
            file("heap.rs", "mod bins;\n"),
            file("heap/bins.rs", "a\nb\n\n// c\n"),
            file("order/mod.rs", "a\nb\nc\nd\n"),
            file("lib.rs", "//! x\n"),
        ];
        let text = table(&[Package { folder: "x/src".to_owned(), files }]);
        assert_eq!(text, "     7 x/src\n     4   order\n     3   heap\n     0   lib\n");
    }

    #[test]
    fn tests_are_not_read_and_a_folder_must_be_there() {
        let sources = read(Path::new("src")).unwrap();
        assert!(sources.files.iter().any(|(within, _)| within == Path::new("lines.rs")));
        assert!(read(Path::new("no such folder")).is_err());
        let library = read(Path::new("../src")).unwrap();
        assert!(library.files.len() > 50);
        assert!(library.files.iter().all(|(f, _)| !f.ends_with("tests.rs") && !f.starts_with("heap/tests")));
    }
}
