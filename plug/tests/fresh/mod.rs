//! The library that these tests load: the one that cargo has just built, and no left-over one.

pub(crate) use crate::remote::age::is_fresh;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// The library's path. Cargo builds it beside the tests; the copy in the parent folder is as old as the last `cargo build`.
pub(crate) fn library() -> PathBuf {
    let exe = std::env::current_exe().expect("a test has a path");
    let path = exe.parent().expect("it lies in a folder").join("libmillpond_plug.so");
    let sources: Vec<PathBuf> =
        packages(Path::new(env!("CARGO_MANIFEST_DIR"))).iter().map(|p| p.join("src")).collect();
    is_fresh(&path, &sources.iter().map(PathBuf::as_path).collect::<Vec<_>>());
    path
}

/// The folders of a package and of all packages that it depends on by path, as the manifests say. The lock file does not count: cargo does not
/// build anew for its date, so that a library would stay refused.
pub(crate) fn packages(package: &Path) -> BTreeSet<PathBuf> {
    let mut all = BTreeSet::new();
    let mut open = vec![package.to_owned()];
    while let Some(package) = open.pop() {
        let package = package.canonicalize().expect("a package is there");
        let manifest = std::fs::read_to_string(package.join("Cargo.toml")).expect("it has a manifest");
        if all.insert(package.clone()) {
            open.extend(paths(&manifest).map(|path| package.join(path)));
        }
    }
    all
}

/// The paths of a manifest's dependencies, without those of tests and build scripts: `name = { path = "..", .. }`, a line each.
fn paths(manifest: &str) -> impl Iterator<Item = &str> {
    let mut inside = false;
    manifest.lines().filter_map(move |line| {
        if let Some(section) = line.strip_prefix('[') {
            inside = section.ends_with("dependencies]") && !section.contains("-dependencies");
        }
        let (_, behind) = line.split_once("path = \"").filter(|_| inside)?;
        behind.split('"').next()
    })
}
