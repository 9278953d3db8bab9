//! The library that these tests open: the one that cargo has just built, and no other that lies about.

pub(crate) use crate::remote::age::is_fresh;
use std::path::{Path, PathBuf};

/// Its path. Cargo builds it beside the tests; the copy a folder above is as old as the last `cargo build`.
pub(crate) fn library() -> PathBuf {
    let exe = std::env::current_exe().expect("a test has a path");
    let path = exe.parent().expect("it lies in a folder").join("libmillpond_plug.so");
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    is_fresh(
        &path,
        &[&root.join("src"), &root.join("../src"), &root.join("../driver/src"), &root.join("../cuda/src")],
    );
    path
}
