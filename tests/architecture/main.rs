//! The repository keeps its boundaries: which module may import which, where unsafe code may be, how long a file may grow, and that every
//! path the documents name exists.
//!
//! The table below is DESIGN.md's. A boundary may be moved: change the table in the same commit, and say why there.

mod arguments;
mod circles;
mod folders;
mod hot_path;
mod left_out;
mod references;
mod requirements;
mod sources;
mod words;

use sources::{code_lines, code_only, is_word, read, root, rust_files, without_tests};
use std::fmt;
use std::io::Write;
use std::path::{Path, PathBuf};

/// The library's packages, and which of each other they may depend on: Cargo keeps these walls.
const PACKAGES: &[(&str, &[&str])] = &[
    ("driver", &[]),
    ("core", &["millpond-driver"]),
    ("cuda", &["millpond-driver"]),
    ("sim", &["millpond-driver"]),
    ("trace", &["millpond-driver"]),
    (".", &["millpond-driver", "millpond-core", "millpond-cuda", "millpond-trace"]),
    ("replay", &["millpond-driver", "millpond-trace", "millpond-sim", "millpond"]),
    // Above the library's public interface.
    ("feed", &["millpond"]),
];

/// The sources of those packages.
const SOURCES: &[&str] =
    &["src", "core/src", "driver/src", "cuda/src", "sim/src", "trace/src", "replay/src", "feed/src"];

/// Each room of the root package, and of `core` beneath it, which has `laws`, `heap`, `order` and `physical`, and the rooms it may use, itself apart.
/// `driver`, `units`, `cuda` and `trace` are the other packages beneath.
const MAY_USE: &[(&str, &[&str])] = &[
    ("units", &[]),
    ("driver", &[]),
    ("cuda", &[]),
    ("trace", &[]),
    ("sync", &[]),
    ("time", &[]),
    ("error", &["units", "report"]),
    ("report", &["units"]),
    ("laws", &["units"]),
    ("heap", &["units", "laws"]),
    ("order", &["units", "laws"]),
    // The laws for what a hold forbids.
    ("physical", &["units", "order", "laws"]),
    (
        "allocator",
        &["units", "error", "sync", "time", "report", "trace", "driver", "laws", "heap", "order", "physical"],
    ),
    ("array", &["allocator", "driver", "units", "error"]),
    ("kernel", &["array", "allocator", "driver", "units", "error"]),
    // Of the kernels the one that takes packed copies to their places.
    ("transfer", &["kernel", "array", "allocator", "driver", "units", "error", "laws"]),
    ("erased", &["array", "allocator", "driver", "report", "units", "error"]),
    // The allocator for its limits and its recorder of events only.
    ("wrap", &["erased", "allocator", "report", "sync", "units", "error"]),
    ("interop", &["kernel", "array", "allocator", "cuda", "driver", "units", "error", "laws"]),
];

/// Where `allow(unsafe_code)` may stand.
const UNSAFE_ROOMS: &[&str] = &[
    "driver/src/",
    "cuda/src/",
    "sim/src/",
    "src/allocator/raw.rs",
    "src/allocator/scrub.rs",
    "src/allocator/refcount.rs",
    "src/allocator/fast.rs",
    "src/array",
    "src/transfer",
    "src/kernel",
    "src/interop",
    // Blocks of a program, pinned ones too, are touched by their addresses.
    "replay/src/",
    "plug/src/",
];

/// In how many places of the root package and of `core`, outside `core/src/laws.rs` and `core/src/laws`, code may differ by a planted bug, one of a
/// sequence that no law's function has.
const PLACES_OF_SEQUENCE: usize = 10;

/// The longest source file, in lines. About 500 is the habit; past this a second idea has moved in.
const LONGEST: usize = 700;

/// The most lines of code that the root package may have, by `cargo run -p xtask -- lines`. Who takes code out lowers the number when it is 200
/// below; who needs more says why what they add is no package's of its own, as docs/decisions/core-package.md, physical-room.md, groups-ask.md,
/// price-levels.md and neighbours.md did.
const MOST_LINES: usize = 19_300;

/// How many files of a package may import each other in a circle: three, and where there are more today, no more than that. A number
/// here may fall and not rise.
const CIRCLES: &[(&str, usize)] = &[
    ("driver/src", 3),
    ("core/src", 3),
    ("cuda/src", 3),
    ("sim/src", 3),
    ("trace/src", 3),
    ("src", 3),
    ("replay/src", 3),
    ("feed/src", 3),
    ("cli/src", 3),
    ("plug/src", 3),
];

/// Where a thread may have something of its own, or a stream may be kept for all: drivers, whose streams are the machine's, the
/// locks that count what a thread holds, and planted bugs.
const BELOW_THE_ALLOCATOR: &[&str] =
    &["driver/src/", "cuda/src/", "sim/src/", "replay/src/", "src/sync.rs", "src/time.rs"];

/// All that a thread has of its own above that: a flag against a callback inside itself, on which no order depends.
const OF_A_THREAD: &[&str] = &["src/allocator/miss.rs: IN_HOOK: Cell<bool>"];

/// The only stream in a `static`: the one on which no bytes are.
const STREAMS_FOR_ALL: &[&str] = &["src/interop/slice.rs: NOWHERE: OnceLock<Arc<CudaStream>>"];

/// Documents whose paths must exist, and what a path in them begins with.
const DOCUMENTS: &[&str] = &[
    "DESIGN.md",
    "README.md",
    "CONTRIBUTING.md",
    "docs/ordering.md",
    "docs/cudarc.md",
    "docs/kept.md",
    "docs/oracle.md",
    "docs/decisions/README.md",
    "docs/c-interface.md",
    "docs/testing.md",
    "docs/windows.md",
    "docs/limits.md",
    "docs/misses.md",
    "docs/scrubbing.md",
    "docs/mutants.md",
];
const PATH_PREFIXES: &[&str] = &[
    "src/",
    "tests/",
    "cli/",
    "benches/",
    ".ci/",
    "kernels/",
    "examples/",
    "fuzz/",
    "plug/",
    "driver/",
    "core/",
    "cuda/",
    "sim/",
    "testkit/",
    "trace/",
    "replay/",
    "feed/",
    "docs/",
];

/// One import that the table does not allow.
#[derive(PartialEq, Eq)]
struct Arrow {
    file: PathBuf,
    line: usize,
    from: String,
    to: String,
}

impl fmt::Display for Arrow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{} {} -> {}", self.file.display(), self.line, self.from, self.to)
    }
}

/// What follows `crate::`: one name, or the first names of a group in braces; each with its offset.
fn names_after(path: &str) -> Vec<(usize, String)> {
    let name_at = |start: usize| {
        let start = start + path[start..].len() - path[start..].trim_start().len();
        (start, path[start..].chars().take_while(|&c| is_word(c)).collect::<String>())
    };
    if !path.trim_start().starts_with('{') {
        return vec![name_at(0)];
    }
    let (mut names, mut depth) = (Vec::new(), 0);
    for (i, c) in path.char_indices() {
        depth += i32::from(c == '{') - i32::from(c == '}');
        if depth == 1 && (c == '{' || c == ',') {
            names.push(name_at(i + 1));
        } else if depth == 0 && c == '}' {
            break;
        }
    }
    names.retain(|(_, n)| !n.is_empty());
    names
}

/// The rooms that a file names by `crate::` paths, or by `super::` paths that climb out of its room, with lines.
fn rooms_named(file: &Path, source: &str) -> Vec<(usize, String)> {
    let code = without_tests(source);
    let in_src = in_src(file).unwrap_or(file);
    // How many `super::` lead from this file to the crate's root: heap.rs and heap/mod.rs one, heap/bins.rs two.
    let climb = in_src.components().count() - usize::from(in_src.ends_with("mod.rs"));
    let up = "super::".repeat(climb);
    let mut named = Vec::new();
    for (prefix, by_super) in [("crate::", false), (up.as_str(), true)] {
        for (at, _) in code.match_indices(prefix) {
            let before = &code[..at];
            if before.ends_with(is_word) || (by_super && before.ends_with("::")) {
                continue;
            }
            let start = at + prefix.len();
            for (offset, name) in names_after(&code[start..]) {
                if !by_super || MAY_USE.iter().any(|(room, _)| *room == name) {
                    named.push((code[..start + offset].matches('\n').count() + 1, name));
                }
            }
        }
    }
    named.sort_by_key(|(line, _)| *line);
    named
}

/// The path of a file within the sources of the root package or of `core`.
fn in_src(file: &Path) -> Option<&Path> {
    file.strip_prefix("src").or_else(|_| file.strip_prefix("core/src")).ok()
}

/// The room of a file there, and none for the front door.
fn room_of(file: &Path) -> Option<String> {
    let first = in_src(file)?.components().next()?;
    let name = Path::new(first.as_os_str()).file_stem()?.to_str()?.to_owned();
    (name != "lib").then_some(name)
}

/// The arrows of one file of the root package or of `core` that the table does not allow.
fn offending_arrows(file: &Path, source: &str) -> Vec<Arrow> {
    let Some(from) = room_of(file) else { return Vec::new() };
    let arrow = |line, to: String| Arrow { file: file.to_path_buf(), line, from: from.clone(), to };
    let Some((_, allowed)) = MAY_USE.iter().find(|(room, _)| *room == from) else {
        return vec![arrow(1, "(a room that the table in tests/architecture/main.rs does not know)".into())];
    };
    rooms_named(file, source)
        .into_iter()
        .filter(|(_, to)| *to != from && !allowed.contains(&to.as_str()))
        .map(|(line, to)| arrow(line, to))
        .collect()
}

/// Sources of the library's packages that are not tests.
fn library() -> Vec<PathBuf> {
    rust_files(SOURCES).into_iter().filter(|f| !f.ends_with("tests.rs")).collect()
}

fn assert_none<T: fmt::Display>(what: &str, found: &[T]) {
    let list: Vec<String> = found.iter().map(|f| format!("  {f}")).collect();
    assert!(found.is_empty(), "{what}:\n{}\n", list.join("\n"));
}

#[test]
fn rooms_import_only_what_the_table_allows() {
    let files = library();
    assert!(
        files.iter().any(|f| f.ends_with("allocator/mod.rs")),
        "the sources are not where this test looks"
    );
    let arrows: Vec<Arrow> = files.iter().flat_map(|f| offending_arrows(f, &read(f))).collect();
    assert_none(
        "imports that the table does not allow (name the room a thing lives in, not its re-export at the root)",
        &arrows,
    );
}

/// The packages of this library that a manifest's ordinary dependencies name.
fn ordinary_dependencies(manifest: &str) -> Vec<String> {
    let mut inside = false;
    let mut found = Vec::new();
    for line in manifest.lines() {
        if line.starts_with('[') {
            inside = line == "[dependencies]";
        }
        let name = line.split([' ', '=', '.']).next().unwrap_or_default();
        if inside && name.starts_with("millpond") {
            found.push(name.to_owned());
        }
    }
    found
}

#[test]
fn packages_depend_only_on_those_beneath_them() {
    for (folder, allowed) in PACKAGES {
        let found = ordinary_dependencies(&read(format!("{folder}/Cargo.toml")));
        assert_eq!(found, *allowed, "the packages of this library that {folder}/Cargo.toml depends on");
    }
    let planted = "[dependencies]\nmillpond = { path = \"..\" }\nmillpond-sim.workspace = true\n[dev-dependencies]\nmillpond-cuda = \"1\"\n";
    assert_eq!(ordinary_dependencies(planted), ["millpond", "millpond-sim"]);
}

/// The lines of a manifest that turn the feature `internals` on outside its development dependencies.
fn turns_internals_on(manifest: &str) -> Vec<&str> {
    let mut section = "";
    let mut found = Vec::new();
    for line in manifest.lines().map(str::trim) {
        if line.starts_with('[') && line.ends_with(']') {
            section = line;
        }
        let declares = section == "[features]" && line == "internals = []";
        if line.contains("internals")
            && !line.starts_with('#')
            && section != "[dev-dependencies]"
            && !declares
        {
            found.push(line);
        }
    }
    found
}

#[test]
fn nothing_that_is_published_turns_internals_on() {
    let folders = [
        ".",
        "driver",
        "core",
        "cuda",
        "sim",
        "trace",
        "replay",
        "feed",
        "cli",
        "plug",
        "tests/fake_libcuda",
    ];
    for folder in folders {
        assert_none("turned on", &turns_internals_on(&read(format!("{folder}/Cargo.toml"))));
    }
    assert_eq!(
        turns_internals_on(&read("fuzz/Cargo.toml")).len(),
        1,
        "fuzzers see them, and are not published"
    );
    let planted = "[features]\ndefault = [\"internals\"]\ninternals = []\n[dependencies]\nmillpond = { features = [\"internals\"] }";
    assert_eq!(turns_internals_on(planted).len(), 2);
}

#[test]
fn unsafe_code_is_allowed_in_its_rooms_only() {
    let outside = |f: &&PathBuf| !UNSAFE_ROOMS.iter().any(|room| f.to_str().unwrap().starts_with(room));
    let mut files = library();
    files.extend(rust_files(&["cli/src", "plug/src"]));
    let found: Vec<_> =
        files.iter().filter(outside).filter(|f| opens_unsafe(&read(f))).map(|f| f.display()).collect();
    assert_none("files that allow unsafe_code outside its rooms", &found);
    assert!(
        opens_unsafe(&read("driver/src/memory.rs")),
        "the search finds no `allow(unsafe_code` where there is one"
    );
}

/// Whether a lint attribute other than `deny` or `forbid` names `unsafe_code`.
fn opens_unsafe(source: &str) -> bool {
    let code: String = without_tests(source).split_whitespace().collect();
    code.match_indices("unsafe_code").any(|(at, _)| {
        let attribute = code[..at].rfind("#[").max(code[..at].rfind("#![")).map_or("", |i| &code[i..at]);
        ["allow(", "expect(", "warn("].iter().any(|level| attribute.contains(level))
    })
}

/// Whether std is queried which thread this is: behind its own end of a thread, where a destructor may call us still, it panics.
fn uses_stds_current_thread(source: &str) -> bool {
    let code: String = without_tests(source).split_whitespace().collect();
    code.match_indices("thread::current").any(|(at, word)| !code[at + word.len()..].starts_with(is_word))
        || code.match_indices("thread::{").any(|(at, word)| {
            let group = code[at + word.len()..].split_once('}').map_or("", |(group, _)| group);
            group.split(',').any(|name| name == "current")
        })
}

#[test]
fn no_module_uses_stds_current_thread() {
    let mut files = library();
    files.extend(rust_files(&["plug/src"]));
    // Of a model checker's threads.
    files.retain(|f| !f.ends_with("driver/src/sync/model.rs"));
    let found: Vec<_> =
        files.iter().filter(|f| uses_stds_current_thread(&read(f))).map(|f| f.display()).collect();
    assert_none(
        "files that name `thread::current`: `sync::current_thread` answers in any destructor",
        &found,
    );
    for planted in ["let id = std::thread::current().id();", "use std::thread::{ThreadId, current};"] {
        assert!(uses_stds_current_thread(planted), "{planted}");
    }
    assert!(!uses_stds_current_thread("thread::current_thread(); // thread::current()"));
}

/// A `static` of the code, as `NAME: Type`, and whether each thread has one of its own: it stands in a macro's braces, or
/// its type is one that threads cannot share.
fn statics(source: &str) -> Vec<(String, bool)> {
    let code = without_tests(source);
    let mut found = Vec::new();
    for (at, _) in code.match_indices("static ") {
        // A lifetime, the end of a longer word, or a macro's pattern is none.
        if code[..at].ends_with(|c| is_word(c) || c == '\'') || code[at..].starts_with("static $") {
            continue;
        }
        let item = &code[at + "static ".len()..];
        let (mut end, mut depth) = (item.len(), 0_usize);
        for (i, c) in item.char_indices() {
            match c {
                '<' | '[' | '(' => depth += 1,
                '>' | ']' | ')' => depth = depth.saturating_sub(1),
                '=' | ';' if depth == 0 || c == '=' => {
                    end = i;
                    break;
                }
                _ => {}
            }
        }
        let text = item[..end].split_whitespace().collect::<Vec<_>>().join(" ");
        let before = code[..at].trim_end();
        let before = before.trim_end_matches("pub(crate)").trim_end_matches("pub").trim_end();
        let in_macro = before.ends_with('{') && before[..before.len() - 1].trim_end().ends_with('!');
        let of_a_thread = in_macro || ["Cell<", "Rc<", "LocalKey"].iter().any(|kind| text.contains(kind));
        found.push((text, of_a_thread));
    }
    found
}

/// The statics of the rooms above the drivers, with their files.
fn statics_above_the_drivers() -> Vec<(String, bool)> {
    let above = |f: &PathBuf| !BELOW_THE_ALLOCATOR.iter().any(|room| f.to_str().unwrap().starts_with(room));
    let of = |f: PathBuf| {
        statics(&read(&f)).into_iter().map(move |(text, own)| (format!("{}: {text}", f.display()), own))
    };
    library().into_iter().filter(above).flat_map(of).collect()
}

/// G4: who copies on another thread cannot change what this one does, for a thread has nothing that says so.
#[test]
fn g04_a_thread_keeps_nothing_that_an_order_depends_on() {
    let found = statics_above_the_drivers();
    let own: Vec<&str> = found.iter().filter(|(_, own)| *own).map(|(text, _)| text.as_str()).collect();
    assert_eq!(own, OF_A_THREAD, "what each thread has of its own above the drivers");
    let named = |f: &PathBuf| {
        code_only(&read(f)).split(|c: char| !is_word(c)).any(|w| w == "thread_local" || w == "LocalKey")
    };
    let past: Vec<PathBuf> = library().into_iter().filter(named).collect();
    let outside: Vec<_> = past
        .iter()
        .filter(|f| !BELOW_THE_ALLOCATOR.iter().any(|room| f.to_str().unwrap().starts_with(room)))
        .collect();
    assert!(!past.is_empty() && outside.is_empty(), "by `sync::per_thread!` only: {outside:?}");
}

/// T15: a launch, a copy and an allocation have no stream to take but the one that they are given.
#[test]
fn t15_no_stream_is_kept_where_no_call_named_it() {
    let found = statics_above_the_drivers();
    let names_a_stream =
        |text: &str| text.split(|c: char| !is_word(c)).any(|word| word.contains("Stream") || word == "Line");
    let kept: Vec<&str> =
        found.iter().map(|(text, _)| text.as_str()).filter(|text| names_a_stream(text)).collect();
    assert_eq!(kept, STREAMS_FOR_ALL, "streams in a static");
    assert!(found.len() > 5, "the search finds no `static` where there are some: {found:?}");
}

#[test]
fn a_planted_static_is_found() {
    let source = "thread_local! {\n    /// The stream of this thread.\n    pub(crate) static CURRENT: RefCell<Option<Stream>> = x();\n}\n\
                  crate::sync::per_thread! { static DEPTH: u8 = 0; }\nstatic ALL: Mutex<Vec<[u8; 4]>> = new();\n\
                  fn f(x: &'static str) { static N: AtomicU32 = AtomicU32::new(1); }\n// static NOT: u8 = 0;\n";
    let found = statics(source);
    let found: Vec<(&str, bool)> = found.iter().map(|(text, own)| (text.as_str(), *own)).collect();
    assert_eq!(
        found,
        [
            ("CURRENT: RefCell<Option<Stream>>", true),
            ("DEPTH: u8", true),
            ("ALL: Mutex<Vec<[u8; 4]>>", false),
            ("N: AtomicU32", false)
        ]
    );
}

/// Where a source is other code if a bug is planted: each `mutant!` by its bug, and `cfg` for what only builds have that can plant.
fn planted(source: &str) -> Vec<String> {
    let code = code_only(source);
    let named = code.split("mutant!(").skip(1).filter_map(|rest| rest.split_once(')'));
    let apart = code.matches("millpond_mutants").map(|_| "cfg".to_owned());
    let mut places: Vec<String> = named.map(|(bug, _)| bug.trim().to_owned()).chain(apart).collect();
    places.sort();
    places
}

/// The name under which docs/mutants.md lists a bug, as driver/src/mutant.rs has it: `Z1 "z1" "what is wrong"`.
fn name_of_bug(list: &str, bug: &str) -> Option<String> {
    let entry = list.lines().find_map(|line| line.trim().strip_prefix(bug)?.strip_prefix(" \""))?;
    entry.split_once('"').map(|(name, _)| name.to_owned())
}

/// The bugs of sequence of docs/mutants.md, a row `| bug | what is wrong | file | why there |` each: file and name.
fn bugs_of_sequence(document: &str) -> Vec<(String, String)> {
    let (_, section) =
        document.split_once("\n**Bugs of sequence**").expect("docs/mutants.md has bugs of sequence");
    let rows = section.lines().skip_while(|line| !line.starts_with("|---")).skip(1);
    let mut bugs: Vec<(String, String)> = rows
        .take_while(|line| line.starts_with('|'))
        .map(|row| {
            let columns: Vec<&str> = row.split('|').map(str::trim).collect();
            (columns[3].trim_matches('`').to_owned(), columns[1].to_owned())
        })
        .collect();
    bugs.sort();
    bugs
}

/// Who doubts a law finds it, and every way in which it can be got wrong, in one place; and what is not there is listed.
#[test]
fn bugs_of_decision_are_planted_beside_their_laws() {
    let list = read("driver/src/mutant.rs");
    let (mut elsewhere, mut beside) = (Vec::new(), 0);
    for file in rust_files(&["src", "core/src"]) {
        let name = file.display().to_string();
        let places = planted(&read(&file));
        if name == "core/src/laws.rs" || name.starts_with("core/src/laws/") {
            beside += places.len();
        } else if name == "src/lib.rs" {
            // Shows who selects the bugs, and plants none.
            assert_eq!(places, ["cfg"], "{name}");
        } else {
            elsewhere.extend(
                places.into_iter().map(|bug| (name.clone(), name_of_bug(&list, &bug).unwrap_or(bug))),
            );
        }
    }
    elsewhere.sort();
    assert!(elsewhere.len() <= PLACES_OF_SEQUENCE, "{} places: {elsewhere:#?}", elsewhere.len());
    assert!(beside > 100, "{beside} places in core/src/laws.rs and core/src/laws");
    elsewhere.dedup();
    let listed = bugs_of_sequence(&read("docs/mutants.md"));
    assert_eq!(
        elsewhere, listed,
        "bugs planted outside core/src/laws.rs and core/src/laws, against those of sequence in docs/mutants.md"
    );
}

#[test]
fn a_bug_planted_elsewhere_is_found() {
    let source = "// mutant!(Z1)\nlet s = \"mutant!(Z2)\";\nif mutant!(Z3) || mutant!( Z4 ) && !mutant!(Z3) {}\n#[cfg(millpond_mutants)]\nfn f() {}\n";
    assert_eq!(planted(source), ["Z3", "Z3", "Z4", "cfg"]);
    let list = "    Z1 \"z1\" \"one\"\n    Z12 \"z12\" \"two\"\n    Late \"too-late\" \"three\"\n";
    assert_eq!(name_of_bug(list, "Z12").as_deref(), Some("z12"));
    assert_eq!(name_of_bug(list, "Late").as_deref(), Some("too-late"));
    assert_eq!(name_of_bug(list, "cfg"), None);
    let document = "x\n\n**Bugs of sequence** are\nfew.\n\n| bug | what | file | why |\n|---|---|---|---|\n| z2 | two | `src/b.rs` | so |\n| z1 | one | `src/a.rs` | so |\n\n| z3 | three | `src/c.rs` | so |\n";
    let pair = |file: &str, bug: &str| (file.to_owned(), bug.to_owned());
    assert_eq!(bugs_of_sequence(document), [pair("src/a.rs", "z1"), pair("src/b.rs", "z2")]);
}

#[test]
fn circles_of_files_do_not_grow() {
    for &(package, most) in CIRCLES {
        let files: Vec<PathBuf> =
            rust_files(&[package]).into_iter().filter(|f| !f.ends_with("tests.rs")).collect();
        let found = circles::circles(&files, Path::new(package));
        let largest = found.first().map_or(0, Vec::len);
        assert!(
            largest <= most,
            "{package}: {largest} files import each other, at most {most} may: {:#?}",
            found[0]
        );
        assert!(
            most == 3 || largest == most,
            "{package}: {largest} files import each other, not {most}: lower the number"
        );
    }
}

/// The pages of docs.rs that are documents of the repository: the document, and what it is there.
const PAGES: &[(&str, &str)] = &[("README.md", ""), ("docs/ordering.md", "ordering")];

/// The links that a document has, by name and path: all of them stand at its end, so that another page can give them another address.
fn links_of(document: &str) -> Result<Vec<(&str, &str)>, &'static str> {
    if document.contains("](") {
        return Err("a link has its address in its sentence: put it at the end of the page");
    }
    Ok(document.lines().filter_map(|l| l.strip_prefix('[')?.split_once("]: ")).collect())
}

/// The line of `src/lib.rs` that gives a link its address on docs.rs: another of its pages, or the repository's.
fn address_of(name: &str, path: &str) -> String {
    let (file, fragment) =
        path.split_once('#').map_or((path, String::new()), |(f, at)| (f, format!("#{at}")));
    match PAGES.iter().find(|(document, _)| *document == file) {
        Some((_, page)) => format!(r#"doc = "[{name}]: {page}{fragment}"]"#),
        None => format!(r#"concat!("[{name}]: ", env!("CARGO_PKG_REPOSITORY"), "/blob/HEAD/{path}")"#),
    }
}

/// A page that is not the repository's, as docs.rs is, shows a document's links too: each has its address in `src/lib.rs`, built from the
/// one in Cargo.toml, or a page of the crate's, and leads to a file that is there.
#[test]
fn every_link_of_a_page_of_the_crate_has_an_address() {
    let lib = read("src/lib.rs");
    for (document, _) in PAGES {
        let text = read(document);
        let links = links_of(&text).unwrap_or_else(|why| panic!("{document}: {why}"));
        assert!(links.len() > if *document == "README.md" { 10 } else { 0 }, "{document}: {links:?}");
        let folder = Path::new(document).parent().expect("a folder").to_str().expect("a name");
        for (name, path) in links {
            let path = if folder.is_empty() { path.to_owned() } else { format!("{folder}/{path}") };
            let address = address_of(name, &path);
            assert!(lib.contains(&address), "src/lib.rs lacks {address}");
            let file = path.split('#').next().unwrap_or_default();
            assert!(root().join(file).exists(), "{document} links to {path}, which is not there");
        }
        assert!(lib.contains(&format!(r#"doc = include_str!("../{document}")]"#)), "{document} is no page");
    }
    let manifest = read("Cargo.toml");
    assert!(
        manifest.contains(r#""docs/**""#) && manifest.contains(r#""README.md""#),
        "packaged with the crate"
    );
    // Without it the addresses begin with nothing, and no tool says so.
    for (package, _) in PACKAGES {
        let manifest = read(format!("{package}/Cargo.toml"));
        assert!(
            manifest.contains("\nrepository.workspace = true\n"),
            "{package}/Cargo.toml names no repository"
        );
    }
    assert!(links_of("See [it](x.md).").is_err());
    assert_eq!(address_of("a", "docs/ordering.md#b"), r#"doc = "[a]: ordering#b"]"#);
}

/// Calls that are given a stream and are not tried on another thread than its own, and why.
const ANY_THREAD: &[(&str, &str)] = &[
    ("scope", "what it copies is, `a_scope_refuses_another_threads_default_stream`"),
    ("cuda_slice", "cudarc makes no stream of a thread's default one"),
    ("launch", "`kernel::fill` and its like are made of it"),
    ("in_place", "made of a feeder's and a drain's parts"),
    ("next", "a feeder's is made of `wait_on`"),
    ("next_within", "a feeder's, as `next`"),
    ("push", "a drain's is made of `wait_stream` and `to_pinned`"),
    ("launch_and_compare", "made of `launch` and `to_vec`"),
    ("launch_and_compare_by", "made of `launch` and `to_vec`"),
];

/// Names of public functions in a source that are given a stream, or are a stream's own and call the driver for it.
fn given_a_stream(source: &str) -> Vec<String> {
    let code = code_only(source);
    let mut found = Vec::new();
    let mut of_stream = false;
    let mut rest = code.as_str();
    while let Some(at) = rest.find("fn ") {
        let (before, after) = rest.split_at(at);
        // The last block that was opened in column 0.
        if let Some(block) = before.rfind("\nimpl") {
            let head = before[block..].split('{').next().unwrap_or_default();
            of_stream = head.contains("> Stream<D>");
        }
        let is_public = before.ends_with("pub ") || before.ends_with("pub unsafe ");
        let name: String = after[3..].chars().take_while(|c| is_word(*c)).collect();
        let parameters = after.split(['{', ';']).next().unwrap_or_default();
        let parameters = parameters.split("->").next().unwrap_or_default();
        let takes = ["&Stream<", "&'scope Stream<"].iter().any(|what| parameters.contains(what));
        let calls =
            of_stream && ["record", "wait", "synchronize", "launch"].iter().any(|v| name.starts_with(v));
        if is_public && (takes || calls) {
            found.push(name);
        }
        rest = &after[3..];
    }
    found
}

/// A per-thread default stream is its own thread's: each call that names a stream checks that, or names one that is checked. Who adds a call adds it to the
/// table of those that are tried on another thread.
#[test]
fn every_call_that_names_a_stream_is_tried_on_another_thread() {
    let tried = read("tests/allocator/lifetimes/default_streams.rs");
    let (_, table) = tried.split_once("const VERBS").expect("the table");
    let table = table.split("\n];").next().expect("its end");
    let is_tried = |name: &String| {
        let calls = table.match_indices(name.as_str()).filter(|(at, _)| {
            let (before, after) = (&table[..*at], &table[at + name.len()..]);
            !before.ends_with(is_word) && (after.starts_with('(') || after.starts_with("::<"))
        });
        calls.count() > 0
    };
    let mut names: Vec<String> = library().iter().flat_map(|file| given_a_stream(&read(file))).collect();
    names.sort();
    names.dedup();
    assert!(names.len() > 30 && names.contains(&"copy_from_peer".to_owned()), "{names:?}");
    let excused = |name: &&String| ANY_THREAD.iter().any(|(of, _)| of == name);
    let missing: Vec<_> = names.iter().filter(|name| !is_tried(name) && !excused(name)).collect();
    assert_none("calls that name a stream and are not tried on another thread", &missing);
    for (name, why) in ANY_THREAD {
        assert!(names.iter().any(|n| n == name) && !is_tried(&(*name).to_owned()), "{name}: {why}");
    }
    // It can fail.
    let planted = "impl X {\n    pub fn one(&self, s: &Stream<D>) {}\n    fn two(&self, s: &Stream<D>) {}\n}\nimpl<D: Driver> Stream<D> {\n    pub fn record_all(&self) {}\n    pub fn id(&self) {}\n}";
    assert_eq!(given_a_stream(planted), ["one", "record_all"]);
}

/// The names in one of `.ci/run`'s lists.
fn checks_listed(run: &str, list: &str) -> Vec<String> {
    let line = run.lines().find_map(|l| l.strip_prefix(list)?.strip_prefix('=')).expect("the list");
    line.trim_matches(['(', ')', '"']).split_whitespace().map(str::to_owned).collect()
}

/// A check that is never run proves nothing: each script in `.ci` is in a list of `.ci/run` or called by others, and the workflow
/// runs what `--quick` leaves out, once each.
#[test]
fn every_check_is_run() {
    let run = read(".ci/run");
    let mut called = checks_listed(&run, "in_target");
    called.extend(checks_listed(&run, "elsewhere"));
    called.extend(["run", "common.sh"].map(str::to_owned));
    called.sort();
    let mut there: Vec<String> = std::fs::read_dir(root().join(".ci"))
        .expect(".ci")
        .map(|entry| entry.expect("an entry").file_name().into_string().expect("a name"))
        .collect();
    there.sort();
    assert_eq!(there, called, "scripts in .ci against the lists of .ci/run");

    let workflow = read(".github/workflows/checks.yml");
    let parts = workflow.lines().filter_map(|l| l.strip_prefix("          - "));
    let mut parts: Vec<&str> = parts.flat_map(str::split_whitespace).collect();
    let mut slow = checks_listed(&run, "slow");
    // Of the tests `--quick` runs the first of three commands.
    slow.push("test".to_owned());
    parts.sort_unstable();
    slow.sort();
    assert_eq!(parts, slow, "what the workflow runs beside `--quick` against what that leaves out");
}

/// Words that a doc comment may not begin with: they point to another item, which a reader then has to find, and do not say what this
/// one is or does. A section of it may (`# Errors`, "As [`Allocator::alloc`].").
const POINTERS: &[&str] = &["As [`", "As `", "As said", "See "];
/// "The same of a closed pool", but not "The same elements in another shape".
const BEHIND_THE_SAME: &[&str] =
    &["as", "beside", "by", "for", "from", "if", "in", "of", "on", "once", "to", "where", "with"];

/// The lines of doc comments that only point.
fn pointers(source: &str) -> Vec<usize> {
    let doc = |line: &str| line.trim_start().strip_prefix("///").map(|text| text.trim_start().to_owned());
    let points = |text: &str| {
        let same = text.strip_prefix("The same ").map(|rest| rest.split(' ').next().unwrap_or_default());
        POINTERS.iter().any(|p| text.starts_with(p))
            || same.is_some_and(|word| BEHIND_THE_SAME.contains(&word))
    };
    let docs: Vec<Option<String>> = source.lines().map(doc).collect();
    let begins = |at: usize| at == 0 || docs[at - 1].is_none();
    let of_line = |(at, text): (usize, &Option<String>)| {
        text.as_ref().filter(|text| begins(at) && points(text)).map(|_| at + 1)
    };
    docs.iter().enumerate().filter_map(of_line).collect()
}

#[test]
fn doc_comments_say_what_they_mean() {
    let files = rust_files(SOURCES);
    let found: Vec<String> = files
        .iter()
        .flat_map(|f| pointers(&read(f)).into_iter().map(move |line| format!("{}:{line}", f.display())))
        .collect();
    assert_none("doc comments that only point to another one: say what it means, then link", &found);
    // It can fail.
    let planted = "/// As [`a`], of b.\nfn a() {}\n/// Does it.\n///\n/// # Errors\n/// As [`a`].\nfn b() {}\n    /// The same of a closed pool.\nfn c() {}\n/// The same elements.\nfn d() {}";
    assert_eq!(pointers(planted), [1, 8]);
}

#[test]
fn files_stay_short() {
    let long: Vec<String> = rust_files(SOURCES)
        .iter()
        .map(|f| (f, read(f).lines().count()))
        .filter(|&(_, lines)| lines > LONGEST)
        .map(|(f, lines)| format!("{}: {lines} lines", f.display()))
        .collect();
    assert_none(&format!("files longer than {LONGEST} lines: which second idea has moved in?"), &long);
}

/// The root package is what a reader has to know: it gets no larger unseen.
#[test]
fn the_root_package_does_not_grow() {
    let is_test = |f: &PathBuf| f.ends_with("tests.rs") || f.components().any(|c| c.as_os_str() == "tests");
    let files = rust_files(&["src"]).into_iter().filter(|f| !is_test(f));
    let lines: usize = files.map(|f| code_lines(&read(f))).sum();
    assert!(lines <= MOST_LINES, "{lines} lines of code in src, and at most {MOST_LINES} may be");
    assert!(lines + 200 > MOST_LINES, "{lines} lines of code in src: lower MOST_LINES, {MOST_LINES}");
}

/// Whoever reads it once has read all of it in a quarter of an hour; what needs more words is in `docs`.
#[test]
fn the_design_stays_short() {
    let text = read("DESIGN.md");
    let (lines, words) = (text.lines().count(), text.split_whitespace().count());
    assert!(lines <= 300, "DESIGN.md has {lines} lines: move a part of it to docs");
    assert!(words <= 4_500, "DESIGN.md has {words} words: move a part of it to docs");
}

/// A reader who looks for something finds each of the allocator's files by what it does.
#[test]
fn the_documents_name_every_file_of_the_allocator() {
    let documents: Vec<String> = DOCUMENTS.iter().map(read).collect();
    let named = |file: &str| documents.iter().any(|text| text.contains(&format!("`src/allocator/{file}`")));
    let files = std::fs::read_dir(root().join("src/allocator"))
        .expect("a folder of sources")
        .map(|file| file.expect("a file").path());
    let sources = files.filter(|path| path.extension().is_some_and(|e| e == "rs"));
    let names = sources.map(|path| path.file_name().expect("a name").to_string_lossy().into_owned());
    let unnamed: Vec<String> = names.filter(|name| name != "tests.rs" && !named(name)).collect();
    assert!(unnamed.is_empty(), "no document says what these do: {unnamed:?}");
    assert!(!named("nowhere.rs"));
}

/// The paths in backticks, cut at what may follow one: a space, a line number, an item.
fn paths_named(markdown: &str) -> Vec<String> {
    let mut in_code = false;
    let prose = markdown.lines().filter(|l| {
        let fence = l.trim_start().starts_with("```");
        in_code ^= fence;
        !in_code && !fence
    });
    prose
        .flat_map(|l| l.split('`').skip(1).step_by(2))
        .filter(|p| PATH_PREFIXES.iter().any(|prefix| p.starts_with(prefix)))
        .map(|p| p.split([' ', ':', '#']).next().unwrap_or(p).to_owned())
        .collect()
}

#[test]
fn every_path_that_the_documents_name_exists() {
    let mut missing = Vec::new();
    let decisions = std::fs::read_dir(root().join("docs/decisions")).expect("a folder of decisions");
    let decisions = decisions.map(|file| file.expect("a file").path());
    for document in DOCUMENTS.iter().map(|document| root().join(document)).chain(decisions) {
        let document = document.strip_prefix(root()).expect("in the repository").display();
        let document = &document.to_string();
        if !root().join(document).exists() {
            // Past the test harness, which hides what a passing test prints.
            let _ = writeln!(std::io::stderr(), "{document} is not written yet: its paths were not checked");
            continue;
        }
        let gone = paths_named(&read(document)).into_iter().filter(|p| !root().join(p).exists());
        missing.extend(gone.map(|p| format!("{document}: {p}")));
    }
    assert_none("paths that are not there (spell every path out: no `*`, no `{a,b}`)", &missing);
}

/// Who reads a comment or a document can follow it to its end: no file that is gone, no text that was never here.
#[test]
fn nothing_leads_out_of_the_repository() {
    let files = references::files();
    let ends = references::ends(&files);
    let (mut found, mut readable) = (Vec::new(), 0);
    for file in &files {
        let Ok(text) = std::fs::read_to_string(root().join(file)) else { continue };
        readable += 1;
        let gone = references::dangling(file, &text, &ends);
        found.extend(gone.into_iter().map(|(line, what)| format!("{}:{line}: {what}", file.display())));
    }
    assert!(readable > 500, "{readable} files: they are not where this test looks");
    assert_none("what is named and is not here", &found);

    // It can fail, on each kind of text, and not on what only looks alike.
    let planted = |file: &str, text: &str| -> Vec<String> {
        let found = references::dangling(Path::new(file), text, &ends);
        found.into_iter().map(|(line, what)| format!("{line} {what}")).collect()
    };
    let source = "/// As the plan has it.\nconst ROWS: &str = \"the plan\"; // of ROWS, tests/gone.rs\n//! heap/bins.rs, docs.rs\n";
    assert_eq!(planted("src/x.rs", source), ["1 the plan", "2 ROWS", "2 tests/gone.rs"]);
    let text = "See chapter 7, [it](docs/gone.md), [this](../CHANGELOG.md), `hit.rs` and https://docs.rs/gone.rs.\nIn a crosssection 4 of the planet: BROWS.\n";
    assert_eq!(planted("docs/x.md", text), ["1 chapter by its number", "1 docs/gone.md"]);
    assert_eq!(planted("DESIGN.md", "See chapter 7.\n"), [""; 0]);
    assert_eq!(
        planted(".ci/x", "#!/usr/bin/env bash\n# What gone.sh does.\nx=gone.sh # as planned\n"),
        ["2 gone.sh", "3 as planned"]
    );
    assert_eq!(planted("x.csv", "the plan"), [""; 0]);
}

#[test]
fn a_planted_import_is_reported() {
    let source = r##"
//! crate::order in a comment, and "crate::order" quoted in one.
use crate::units::Addr;
use crate::{
    report::{bytes, Report},
    driver::{sim::{self, Sim}, Driver},
    heap::chunk,
};
/* crate::trace /* nested */ crate::trace */
const TEXT: &str = "crate::trace \" crate::trace";
const RAW: &str = r#"crate::trace"#;
fn inline<'a>(quote: char) -> bool { quote == '"' && crate::order::CLOCK == 'a' }
#[cfg(test)]
mod tests {
    use crate::allocator::Allocator;
}
pub(in crate::heap) fn climbs() { super::super::sync::assert_unlocked(super::units_of_heap()) }
fn through_the_front_door() -> crate::Error { todo() }
"##;
    let found = |file: &str| -> Vec<String> {
        offending_arrows(Path::new(file), source).iter().map(ToString::to_string).collect()
    };
    let expected = [
        "core/src/heap/bins.rs:5 heap -> report",
        "core/src/heap/bins.rs:6 heap -> driver",
        "core/src/heap/bins.rs:12 heap -> order",
        "core/src/heap/bins.rs:17 heap -> sync",
        "core/src/heap/bins.rs:18 heap -> Error",
    ];
    assert_eq!(found("core/src/heap/bins.rs"), expected);
    assert_eq!(found("core/src/order/clock.rs").len(), 6, "report, driver, heap twice, Error, sync");
    assert_eq!(found("src/lib.rs"), [""; 0], "the front door may name every room");
    assert!(found("src/attic.rs")[0].contains("does not know"));
}

#[test]
fn a_planted_permission_and_a_planted_path_are_reported() {
    assert!(opens_unsafe("#![allow(\n    clippy::pedantic,\n    unsafe_code\n)]"));
    assert!(opens_unsafe("#[cfg_attr(not(loom), expect(unsafe_code, reason = \"so\"))] fn f() {}"));
    assert!(!opens_unsafe(
        "#![deny(unsafe_code)]\n// #[allow(unsafe_code)]\n#[cfg(test)]\n#[allow(unsafe_code)]\nmod t {}"
    ));
    let text = "See `core/src/heap/bins.rs:12`, `tests/soak.rs::ids`, `.ci/run fmt` and `cargo test`.\n```\n`src/no.rs`\n```\n";
    assert_eq!(paths_named(text), ["core/src/heap/bins.rs", "tests/soak.rs", ".ci/run"]);
}
