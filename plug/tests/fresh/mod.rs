//! The library that these tests open: the one that cargo has just built, and no other that lies about.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Its path. Cargo builds it beside the tests; the copy a folder above is as old as the last `cargo build`.
pub(crate) fn library() -> PathBuf {
    let exe = std::env::current_exe().expect("a test has a path");
    let path = exe.parent().expect("it lies in a folder").join("libmillpond_plug.so");
    let built = modified(&path).expect("cargo builds the library before its tests");
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let newest = newest(&root.join("src")).max(newest(&root.join("../src")));
    assert!(
        newest <= Some(built),
        "{} is older than the source: another build put it there; remove it",
        path.display()
    );
    path
}

fn modified(path: &Path) -> Option<SystemTime> {
    path.metadata().and_then(|m| m.modified()).ok()
}

fn newest(folder: &Path) -> Option<SystemTime> {
    let entries = folder.read_dir().ok()?.flatten();
    entries.map(|e| if e.path().is_dir() { newest(&e.path()) } else { modified(&e.path()) }).max()?
}
