//! Whether a library is as new as its sources: cargo builds a test anew but not the library that it loads, and a build folder may
//! have one of another build. Included by the tests that load a library; it knows none of them.

#![allow(dead_code, unreachable_pub, reason = "each test uses some of it")]

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Fails unless a file is as new as all files in these folders, except tests and planted bugs, which are not part of a library.
pub fn is_fresh(library: &Path, sources: &[&Path]) {
    let built = modified(library).expect("cargo builds the library before its tests");
    let newest = sources.iter().filter_map(|folder| newest(folder)).max();
    let (changed, file) = newest.unwrap_or_else(|| panic!("there is no source in {sources:?}"));
    assert!(
        changed <= built,
        "{} is older than the source, as {}: another build put it there; remove it, or build its package",
        library.display(),
        file.display()
    );
}

fn modified(path: &Path) -> Option<SystemTime> {
    path.metadata().and_then(|m| m.modified()).ok()
}

fn newest(folder: &Path) -> Option<(SystemTime, PathBuf)> {
    let paths = folder.read_dir().ok()?.flatten().map(|entry| entry.path());
    // Files that only a build with planted bugs compiles do not count for an ordinary build: cargo does not build that anew for them.
    let is_left_out = |name: &OsStr| name == "tests" || !cfg!(millpond_mutants) && name == "mutant";
    let paths = paths.filter(|path| !path.file_stem().is_some_and(is_left_out));
    paths
        .filter_map(|path| if path.is_dir() { newest(&path) } else { modified(&path).map(|at| (at, path)) })
        .max()
}
