//! The library that these tests open: the one that cargo has just built, and no other that lies about.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Its path. Cargo builds it beside the tests; the copy a folder above is as old as the last `cargo build`.
pub(crate) fn library() -> PathBuf {
    let exe = std::env::current_exe().expect("a test has a path");
    let path = exe.parent().expect("it lies in a folder").join("libmillpond_plug.so");
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    is_fresh(&path, &[&root.join("src"), &root.join("../src")]);
    path
}

/// Fails unless a file is as new as all that lies in these folders.
pub(crate) fn is_fresh(library: &Path, sources: &[&Path]) {
    let built = modified(library).expect("cargo builds the library before its tests");
    let newest = sources.iter().map(|folder| newest(folder)).max().flatten();
    assert!(newest.is_some(), "there is no source in {sources:?}");
    assert!(
        newest <= Some(built),
        "{} is older than the source: another build put it there; remove it",
        library.display()
    );
}

fn modified(path: &Path) -> Option<SystemTime> {
    path.metadata().and_then(|m| m.modified()).ok()
}

fn newest(folder: &Path) -> Option<SystemTime> {
    let entries = folder.read_dir().ok()?.flatten();
    entries.map(|e| if e.path().is_dir() { newest(&e.path()) } else { modified(&e.path()) }).max()?
}
