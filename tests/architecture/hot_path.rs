//! From `Allocator::alloc` to the chunk a hit goes through few files and functions, those of the table at the head of `src/allocator/fast.rs`.
//!
//! What counts: every function of this repository that a hit enters, except readers, whose body is one expression without a loop and that enter nothing but
//! counted functions and other readers. `READERS` lists them, and each is checked. So is the table: a function that it names may call its own, readers and
//! the standard library, and nothing else but what `APART` gives a reason for. Names are compared, not types: a call of another type's
//! method of the same name is not seen, nor are operators.

use crate::sources::{code_only, is_word, read};
use std::collections::BTreeSet;

const FILES_MOST: usize = 8;
const FUNCTIONS_MOST: usize = 15;

/// Functions that only read: not counted.
const READERS: &[(&str, &str)] = &[
    ("src/allocator/stream.rs", "Stream::pool"),
    ("src/allocator/stream.rs", "Stream::is_watched"),
    ("src/allocator/mod.rs", "Allocator::core"),
    ("src/allocator/core.rs", "Owner::core"),
    ("src/allocator/pool.rs", "Pool::lock"),
    ("src/allocator/pool.rs", "Pool::id_of"),
    ("src/allocator/fast.rs", "Pool::kind"),
    ("core/src/heap/hit.rs", "Request::len"),
    ("core/src/heap/hit.rs", "Taken::chunk"),
    ("core/src/heap/hit.rs", "Taken::generation"),
    ("core/src/heap/chunk.rs", "ChunkId::index"),
    ("core/src/heap/chunk.rs", "Chunk::offset"),
    ("core/src/heap/chunk.rs", "Place::offset"),
    ("core/src/heap/chunk.rs", "Slab::all_mut"),
    ("core/src/heap/bins.rs", "Bins::first"),
    ("core/src/heap/bins.rs", "Bin::of"),
    ("core/src/heap/bins.rs", "Bin::word"),
    ("core/src/heap/bins.rs", "Bin::place_in_word"),
    ("driver/src/sync/quick.rs", "Flag::try_take"),
    ("driver/src/units.rs", "Addr::offset"),
    ("driver/src/units.rs", "Granules::bytes"),
];

/// What a hit does not enter, or what is nothing in a program's own build: why.
const APART: &[(&str, &str)] = &[
    ("alloc_otherwise", "a miss, or a stream that is watched"),
    ("search", "the first chunk of the bin is longer than the request"),
    ("count_miss", "a miss"),
    ("take_contended", "another thread holds the lock"),
    ("mint", "once in 256 allocations"),
    ("note", "the device's own; empty on a GPU"),
];

/// The standard library's, and `law!`'s arguments when a law is broken.
const STANDARD: &[&str] = &[
    "ptr_eq",
    "as_ptr",
    "from_raw",
    "get",
    "map",
    "saturating_sub",
    "wrapping_sub",
    "wrapping_add",
    "checked_sub",
    "checked_add",
    "expect",
    "ilog2",
    "replace",
    "as_mut_slice",
    "compare_exchange",
    "is_ok",
    "store",
    "from",
];

/// The files and functions that a hit goes through, by the table.
fn hot_path(fast: &str) -> Vec<(String, Vec<String>)> {
    let rows = fast.lines().filter_map(|line| line.strip_prefix("//! | `"));
    rows.map(|row| {
        let mut names = row.split('`').step_by(2);
        let file = names.next().expect("a file").to_owned();
        (file, names.map(str::to_owned).collect())
    })
    .collect()
}

/// Where the bracket that opens at `at` closes.
fn closing(code: &str, at: usize) -> usize {
    let mut depth = 0_usize;
    for (i, c) in code[at..].char_indices() {
        match c {
            '{' | '(' | '[' => depth += 1,
            '}' | ')' | ']' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return at + i;
        }
    }
    code.len()
}

/// Where the statement that begins at `at` ends: behind its semicolon, or behind its braces.
fn end_of_statement(code: &str, at: usize) -> usize {
    let mut depth = 0_usize;
    for (i, c) in code[at..].char_indices() {
        match c {
            '{' | '(' | '[' => depth += 1,
            '}' | ')' | ']' => depth -= 1,
            _ => {}
        }
        if depth == 0 && (c == ';' || c == '}') {
            return at + i + 1;
        }
    }
    code.len()
}

/// The type of an `impl`'s head: what stands last before its generics.
fn owner_of(head: &str) -> &str {
    let of = head.rsplit_once(" for ").map_or(head, |(_, of)| of);
    let of = of.split(" where").next().unwrap_or_default().trim();
    let of = of.split_once("> ").map_or(of.trim_start_matches("impl "), |(_, of)| of);
    of.split('<').next().unwrap_or_default().trim()
}

/// The body of a function of a source, with its owner before the name where it has one in the table: blank where only debug builds
/// and model checkers have code.
fn body_of(source: &str, function: &str) -> Option<String> {
    let code = code_only(source);
    let (owner, name) = function.rsplit_once("::").map_or((None, function), |(o, n)| (Some(o), n));
    let (at, _) = code.match_indices("fn ").find(|(at, _)| {
        let rest = &code[at + 3..];
        let named = rest.strip_prefix(name).is_some_and(|rest| rest.starts_with(['(', '<']));
        let head = code[..*at]
            .rfind("\nimpl")
            .map(|from| &code[from + 1..from + code[from..].find('{').unwrap_or(0)]);
        named && owner.is_none_or(|owner| head.is_some_and(|head| owner_of(head) == owner))
    })?;
    let open = at + code[at..].find('{')?;
    let mut body = code[open + 1..closing(&code, open)].to_owned();
    for attribute in ["#[cfg(debug_assertions)]", "#[cfg(shuttle)]"] {
        while let Some(from) = body.find(attribute) {
            let end = end_of_statement(&body, from + attribute.len());
            body.replace_range(from..end, "");
        }
    }
    Some(body)
}

/// The functions that a body calls, macros and types apart.
fn calls(body: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (at, _) in body.match_indices('(') {
        let before = &body[..at];
        // `name::<T>(`
        let before = if before.ends_with('>') {
            before.rsplit_once("::<").map_or("", |(name, _)| name)
        } else {
            before
        };
        let start = before.rfind(|c| !is_word(c)).map_or(0, |i| i + 1);
        let name = &before[start..];
        let is_function = name.starts_with(|c: char| c.is_lowercase() || c == '_');
        if is_function && !["if", "match", "in", "return", "while", "for", "move"].contains(&name) {
            found.insert(name.to_owned());
        }
    }
    found
}

/// Whether a body is one expression: no statement before it, and no loop.
fn is_one_expression(body: &str) -> bool {
    let words = || body.split(|c: char| !is_word(c));
    !body.contains(';')
        && !words().any(|w| ["for", "while", "loop", "let"].contains(&w))
        && words().filter(|w| *w == "if").count() <= 1
}

/// What a body calls that is in none of the lists.
fn unknown(body: &str, counted: &BTreeSet<&str>) -> Vec<String> {
    let known = |name: &str| {
        let reader = READERS.iter().any(|(_, of)| of.rsplit("::").next() == Some(name));
        reader
            || counted.contains(name)
            || APART.iter().any(|(of, _)| *of == name)
            || STANDARD.contains(&name)
    };
    calls(body).into_iter().filter(|name| !known(name)).collect()
}

/// From `Allocator::alloc` to the chunk and back: eight files and fifteen functions at most, each where the table says, and none beside them.
#[test]
fn a_hit_goes_through_few_files_and_functions() {
    let table = hot_path(&read("src/allocator/fast.rs"));
    let files: BTreeSet<&str> = table.iter().map(|(file, _)| &file[..]).collect();
    let functions: Vec<&str> =
        table.iter().flat_map(|(_, functions)| functions).map(String::as_str).collect();
    assert!((4..=FILES_MOST).contains(&files.len()), "{files:?}");
    assert!((8..=FUNCTIONS_MOST).contains(&functions.len()), "{} functions: {functions:?}", functions.len());
    let counted: BTreeSet<&str> = functions.iter().filter_map(|of| of.rsplit("::").next()).collect();
    let mut called = BTreeSet::new();
    for (file, function) in table.iter().flat_map(|(file, of)| of.iter().map(move |f| (file, f))) {
        let body = body_of(&read(file), function).unwrap_or_else(|| panic!("{file} has no {function}"));
        let unknown = unknown(&body, &counted);
        assert!(
            unknown.is_empty(),
            "{function} calls {unknown:?}: count them in the table, or list them here as readers"
        );
        called.append(&mut calls(&body));
    }
    for (file, function) in READERS {
        let body = body_of(&read(file), function).unwrap_or_else(|| panic!("{file} has no {function}"));
        assert!(is_one_expression(&body), "{function} is more than one expression: count it in the table");
        let unknown = unknown(&body, &counted);
        assert!(unknown.is_empty(), "{function} calls {unknown:?}");
        called.append(&mut calls(&body));
    }
    // What nothing calls would let a call of that name through later.
    let named = READERS.iter().filter_map(|(_, of)| of.rsplit("::").next());
    let named = named.chain(APART.iter().map(|(of, _)| *of)).chain(STANDARD.iter().copied());
    let idle: Vec<&str> = named.filter(|of| !called.contains(*of)).collect();
    assert_eq!(idle, [""; 0], "listed, and called by no function of the hit");
}

#[test]
fn a_planted_call_and_a_planted_statement_are_found() {
    let source = "\nimpl<T> Other<T> {\n    fn hit(&self) { nothing() }\n}\nimpl<D: Driver> Pool<D> {\n    fn hit(&self) -> u8 {\n        let held = self.lock();\n        \
                  #[cfg(debug_assertions)]\n        look(|| { twice(); });\n        law!(H3, x, \"{}\", Shown(1));\n        planted::<u8>(Some(held.kind(1)))\n    }\n}\n";
    let body = body_of(source, "Pool::hit").expect("it is there");
    assert_eq!(unknown(&body, &BTreeSet::from(["lock"])), ["planted"]);
    assert_eq!(unknown(&body_of(source, "Other::hit").expect("it too"), &BTreeSet::new()), ["nothing"]);
    assert_eq!(body_of(source, "Third::hit"), None);
    assert!(is_one_expression(" if a { b } else { c } ") && !is_one_expression(&body));
    assert!(!is_one_expression(" for a in b {} ") && !is_one_expression("if a { if b { c } } else { d }"));
    assert_eq!(owner_of("impl<T, K: LockKind> Ranked<T, K> "), "Ranked");
    assert_eq!(owner_of("impl<D: Driver> Drop for Allocation<D> "), "Allocation");
    assert_eq!(owner_of("impl Bin "), "Bin");
}
