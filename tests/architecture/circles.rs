//! Which files of a folder import each other in a circle: who changes one of them has to understand all. It reads `use` declarations and
//! other paths that begin with `crate`, `super` or `self`; methods reached through a value are not seen.

use crate::sources::{is_word, read, without_tests};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// A file as a module: the names that lead to it from its package's root.
fn module_of(file: &Path, root: &Path) -> Vec<String> {
    let inside = file.strip_prefix(root).expect("a file of the folder").with_extension("");
    let mut names: Vec<String> = inside.iter().map(|n| n.to_string_lossy().into_owned()).collect();
    if names.last().is_some_and(|n| n == "mod" || n == "lib") {
        names.pop();
    }
    names
}

/// All paths of a use tree that begins at `at`, and where it ends: `a::{b, c::d}` are `a::b` and `a::c::d`.
fn paths(code: &str, mut at: usize, before: &[String], found: &mut Vec<Vec<String>>) -> usize {
    let mut path = before.to_vec();
    loop {
        let rest = &code[at..];
        at += rest.len() - rest.trim_start().len();
        if code[at..].starts_with('{') {
            at += 1;
            loop {
                at = paths(code, at, &path, found);
                let rest = &code[at..];
                at += rest.len() - rest.trim_start().len();
                match code[at..].chars().next() {
                    Some(',') => at += 1,
                    _ => return at + usize::from(code[at..].starts_with('}')),
                }
            }
        }
        let name: String = code[at..].chars().take_while(|&c| is_word(c)).collect();
        at += name.len();
        if name.is_empty() {
            at += usize::from(code[at..].starts_with('*'));
        } else {
            path.push(name);
        }
        if code[at..].starts_with("::") {
            at += 2;
            continue;
        }
        // `a as b` is `a`.
        if let Some(renamed) = code[at..].strip_prefix(" as ") {
            at += 4 + renamed.chars().take_while(|&c| is_word(c)).count();
        }
        found.push(path);
        return at;
    }
}

/// The paths that a file names, from its package's root.
fn named(module: &[String], source: &str) -> Vec<Vec<String>> {
    let code = without_tests(source);
    let mut found = Vec::new();
    for first in ["crate::", "super::", "self::"] {
        for (at, _) in code.match_indices(first) {
            if code[..at].ends_with(|c| is_word(c) || c == ':' || c == '$') {
                continue;
            }
            let mut all = Vec::new();
            paths(&code, at, &[], &mut all);
            for path in all {
                let mut from = if path[0] == "crate" { Vec::new() } else { module.to_vec() };
                let ups = path.iter().take_while(|n| *n == "super").count();
                from.truncate(from.len().saturating_sub(ups));
                let rest = path.into_iter().skip_while(|n| ["crate", "super", "self"].contains(&n.as_str()));
                found.push(from.into_iter().chain(rest).collect());
            }
        }
    }
    found
}

/// The files that each file imports. The first file of a folder, `mod.rs` or `lib.rs`, stands for what it re-exports: whoever names it
/// depends on all of it, so it is no file of its own here, and the path behind it counts as far as it leads. For imports between folders
/// it counts as a file of its folder, and only `lib.rs` is none.
fn arrows(files: &[PathBuf], root: &Path, between_folders: bool) -> Vec<Vec<usize>> {
    let modules: BTreeMap<Vec<String>, usize> =
        files.iter().enumerate().map(|(i, f)| (module_of(f, root), i)).collect();
    let first = |i: usize| files[i].ends_with("lib.rs") || files[i].ends_with("mod.rs") && !between_folders;
    files
        .iter()
        .enumerate()
        .map(|(i, file)| {
            if first(i) {
                return Vec::new();
            }
            let module = module_of(file, root);
            let mut to: Vec<usize> = named(&module, &read(file))
                .iter()
                .filter_map(|path| (1..=path.len()).rev().find_map(|n| modules.get(&path[..n]).copied()))
                .filter(|&to| to != i && !first(to))
                .collect();
            to.sort_unstable();
            to.dedup();
            to
        })
        .collect()
}

/// The imports between files, those of a folder's first file among them: who, and whom.
pub(crate) fn imports<'a>(files: &'a [PathBuf], root: &Path) -> Vec<(&'a PathBuf, &'a PathBuf)> {
    let named = arrows(files, root, true).into_iter().enumerate();
    named.flat_map(|(from, to)| to.into_iter().map(move |to| (&files[from], &files[to]))).collect()
}

/// Every set of two and more files that reach each other, the largest first.
pub(crate) fn circles(files: &[PathBuf], root: &Path) -> Vec<Vec<PathBuf>> {
    let arrows = arrows(files, root, false);
    let reached = |from: usize| {
        let (mut seen, mut todo) = (vec![false; files.len()], arrows[from].clone());
        while let Some(at) = todo.pop() {
            if !std::mem::replace(&mut seen[at], true) {
                todo.extend(&arrows[at]);
            }
        }
        seen
    };
    let reach: Vec<Vec<bool>> = (0..files.len()).map(reached).collect();
    let mut found: Vec<Vec<PathBuf>> = Vec::new();
    for (i, from) in reach.iter().enumerate() {
        let circle: Vec<usize> = (0..files.len()).filter(|&j| from[j] && reach[j][i]).collect();
        if circle.first() == Some(&i) && circle.len() > 1 {
            found.push(circle.into_iter().map(|j| files[j].clone()).collect());
        }
    }
    found.sort_by_key(|c| std::cmp::Reverse(c.len()));
    found
}
