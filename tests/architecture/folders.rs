//! Folders inside a folder of sources have an order, in which each may import those before it: who changes one knows which others have to be
//! read. The rooms of the root package and of `core` have their own table, in the parent module, and imports between the files of one folder
//! are `circles`'.

use crate::sources::rust_files;
use crate::{assert_none, circles};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Where folders are looked for: the sources of each package that has any number of modules.
const PACKAGES: &[&str] = &[
    "src",
    "core/src",
    "driver/src",
    "cuda/src",
    "sim/src",
    "trace/src",
    "replay/src",
    "cli/src",
    "plug/src",
    "testkit/src",
    "xtask/src",
];

/// Whose folders are rooms, with a table of their own (`MAY_USE`).
const ROOMS: &[&str] = &["src", "core/src"];

/// The folders inside a folder, tests apart, each with its file of the same name, in their order: which of those before it each may import.
type Inside = (&'static str, &'static [(&'static str, &'static [&'static str])]);

const INSIDE: &[Inside] = &[
    (
        "src/allocator",
        &[
            ("config", &[]),
            ("registry", &[]),
            ("sources", &["registry"]),
            ("pool", &["registry"]),
            ("pinned", &["registry", "pool"]),
            ("access", &["registry", "pool"]),
        ],
    ),
    ("src/transfer", &[("staged", &[])]),
    ("core/src/order", &[("uses", &[])]),
    ("driver/src", &[("sync", &[])]),
    ("sim/src", &[("oracle", &[]), ("null", &[])]),
    ("sim/src/oracle", &[("clock", &[])]),
    ("sim/src/oracle/clock", &[("pages", &[])]),
    ("replay/src", &[("import", &[])]),
    ("plug/src", &[("door", &[])]),
    ("testkit/src", &[("suite", &[]), ("cases", &[]), ("worlds", &["cases"])]),
];

/// Folders that files beside them import and that import those, each with how many of these parts there are. A number may fall and not rise: everywhere
/// else, who changes a folder has nothing to read that needs the folder. In the allocator a folder's own file is a handle (`pool.rs`, `pinned.rs`) or
/// a table (`registry.rs`), which the rest of it holds.
const BOTH_WAYS: &[(&str, usize)] = &[
    ("src/allocator/pinned", 7),
    ("src/allocator/pool", 7),
    ("src/allocator/registry", 3),
    ("src/allocator/sources", 3),
    ("plug/src/door", 2),
];

/// The part of a folder that a file belongs to: what a file beside others is called, or the folder that it lies in.
fn part_of<'a>(folder: &Path, file: &'a Path) -> Option<&'a str> {
    let first = file.strip_prefix(folder).ok()?.components().next()?;
    Path::new(first.as_os_str()).file_stem()?.to_str()
}

fn is_of_tests(file: &Path) -> bool {
    file.components().any(|c| c.as_os_str() == "tests" || c.as_os_str() == "tests.rs")
}

/// Each folder of these files that has folders, with the folders in it.
fn found_inside(files: &[PathBuf]) -> BTreeSet<(PathBuf, String)> {
    let mut found = BTreeSet::new();
    for file in files {
        let folders: Vec<&Path> = file.ancestors().skip(1).filter(|p| !p.as_os_str().is_empty()).collect();
        for pair in folders.windows(2) {
            let name = pair[0].file_name().expect("a name").to_string_lossy().into_owned();
            found.insert((pair[1].to_path_buf(), name));
        }
    }
    found
}

/// Imports between folders inside `folder` that its table does not allow, of these imports between files.
fn not_allowed<'a>(
    (folder, table): Inside,
    imports: impl IntoIterator<Item = (&'a PathBuf, &'a PathBuf)>,
) -> Vec<String> {
    let listed = |file: &'a PathBuf| {
        let part = part_of(Path::new(folder), file)?;
        table.iter().find(|(name, _)| *name == part)
    };
    imports
        .into_iter()
        .filter(|(file, named)| match (listed(file), listed(named)) {
            (Some((from, allowed)), Some((to, _))) => from != to && !allowed.contains(to),
            _ => false,
        })
        .map(|(file, named)| format!("{} -> {}", file.display(), named.display()))
        .collect()
}

/// A folder and a part of the folder that it lies in, which reach each other by these imports.
fn both_ways<'a>(
    folder: &Path,
    inner: &str,
    imports: impl IntoIterator<Item = (&'a PathBuf, &'a PathBuf)>,
) -> Vec<String> {
    let parts = |(from, to): (&'a PathBuf, &'a PathBuf)| Some((part_of(folder, from)?, part_of(folder, to)?));
    // The first file of the folder itself stands for what it re-exports.
    let is_part = |&(from, to): &(&str, &str)| from != to && from != "mod" && to != "mod";
    let arrows: BTreeSet<(&str, &str)> = imports.into_iter().filter_map(parts).filter(is_part).collect();
    let reached = |start: &'a str, arrows: &BTreeSet<(&'a str, &'a str)>| {
        let (mut seen, mut todo) = (BTreeSet::new(), vec![start]);
        while let Some(at) = todo.pop() {
            for (_, to) in arrows.iter().filter(|(from, _)| *from == at) {
                if seen.insert(*to) {
                    todo.push(to);
                }
            }
        }
        seen
    };
    let names: BTreeSet<&str> = arrows.iter().flat_map(|(from, to)| [*from, *to]).collect();
    let Some(inner) = names.get(inner).copied() else { return Vec::new() };
    let below = reached(inner, &arrows);
    let others = below.iter().filter(|part| **part != inner && reached(part, &arrows).contains(inner));
    others.map(|part| (*part).to_owned()).collect()
}

/// The sources of a package that are not tests, with the folders in them: each with the one that it lies in.
fn of_package(package: &str) -> (Vec<PathBuf>, BTreeSet<(PathBuf, String)>) {
    let files: Vec<PathBuf> = rust_files(&[package]).into_iter().filter(|f| !is_of_tests(f)).collect();
    let mut inside = found_inside(&files);
    inside.retain(|(folder, _)| folder.starts_with(package));
    (files, inside)
}

#[test]
fn folders_inside_a_folder_have_an_order() {
    let (mut there, mut entwined) = (BTreeSet::new(), Vec::new());
    for package in PACKAGES {
        let (files, inside) = of_package(package);
        assert!(!files.is_empty(), "{package}: the sources are not where this test looks");
        let imports = circles::imports(&files, Path::new(package));
        for &(folder, table) in INSIDE.iter().filter(|(folder, _)| Path::new(folder).starts_with(package)) {
            let found = not_allowed((folder, table), imports.iter().copied());
            assert_none(
                &format!("imports between folders in {folder} that the table does not allow"),
                &found,
            );
        }
        for (folder, inner) in inside {
            let others = both_ways(&folder, &inner, imports.iter().copied());
            if !others.is_empty() {
                entwined.push((folder.join(&inner).display().to_string(), others));
            }
            if !ROOMS.iter().any(|rooms| folder == Path::new(rooms)) {
                there.insert((folder, inner));
            }
        }
    }
    let mut listed = BTreeSet::new();
    for (folder, table) in INSIDE {
        for (at, (name, allowed)) in table.iter().enumerate() {
            let before: Vec<&str> = table[..at].iter().map(|(name, _)| *name).collect();
            assert!(
                allowed.iter().all(|to| before.contains(to)),
                "{folder}/{name} may import what comes after it"
            );
            listed.insert((PathBuf::from(folder), (*name).to_owned()));
        }
    }
    assert_eq!(there, listed, "folders inside folders, against the table in tests/architecture/folders.rs");
    let counts: Vec<(&str, usize)> =
        entwined.iter().map(|(folder, others)| (&folder[..], others.len())).collect();
    assert_eq!(counts, BOTH_WAYS, "folders and parts beside them that reach each other: {entwined:#?}");
}

#[test]
fn a_planted_import_between_folders_is_found() {
    let file = |path: &str| PathBuf::from(path);
    let (pool, registry) = (file("src/allocator/pool/state.rs"), file("src/allocator/registry.rs"));
    let (top, marking) = (file("src/allocator/mod.rs"), file("src/allocator/registry/marking.rs"));
    let allocator = *INSIDE.iter().find(|(folder, _)| *folder == "src/allocator").expect("the allocator");
    let planted =
        [(&pool, &registry), (&registry, &pool), (&registry, &marking), (&top, &pool), (&marking, &top)];
    let found = not_allowed(allocator, planted);
    assert_eq!(found, ["src/allocator/registry.rs -> src/allocator/pool/state.rs"]);

    // By way of a third part, and by the folder's own file; not by the first file of all, nor one way.
    let (null, oracle, world) =
        (file("sim/src/null.rs"), file("sim/src/oracle/mod.rs"), file("sim/src/world.rs"));
    let (judge, late) = (file("sim/src/oracle/judge.rs"), file("sim/src/late.rs"));
    let planted = [(&null, &world), (&judge, &null), (&world, &oracle), (&late, &oracle)];
    assert_eq!(both_ways(Path::new("sim/src"), "oracle", planted), ["null", "world"]);
    assert_eq!(both_ways(Path::new("sim/src"), "oracle", planted[1..].iter().copied()), [""; 0]);
    let (deep, mark) = (file("a/src/b/c/d.rs"), file("a/src/b/c/tests/e.rs"));
    let inside = [("a", "src"), ("a/src", "b"), ("a/src/b", "c")].map(|(f, n)| (file(f), n.to_owned()));
    assert_eq!(found_inside(&[deep]), inside.into());
    assert!(is_of_tests(&mark));
}
