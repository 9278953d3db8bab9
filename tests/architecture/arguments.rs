//! Public functions take their arguments in one order (CONTRIBUTING.md): a stream comes last, and only what runs on it, a closure, behind it. It does not know
//! what the other arguments are.

use crate::assert_none;
use crate::sources::{code_only, is_word, read, rust_files};

/// The public functions of a source, each with its parameters.
fn public_functions(source: &str) -> Vec<(String, Vec<String>)> {
    let code = code_only(source);
    let mut found = Vec::new();
    for (at, _) in code.match_indices("fn ") {
        let before = code[..at].trim_end_matches("unsafe ").trim_end_matches("const ");
        if !before.ends_with("pub ") {
            continue;
        }
        let rest = &code[at + 3..];
        let name: String = rest.chars().take_while(|&c| is_word(c)).collect();
        let (mut depth, mut in_generics, mut parameters, mut parameter) =
            (0_usize, 0_usize, Vec::new(), String::new());
        let mut last = ' ';
        for c in rest[name.len()..].chars() {
            let arrow = c == '>' && last == '-';
            last = c;
            in_generics = match c {
                '<' => in_generics + 1,
                '>' if !arrow => in_generics.saturating_sub(1),
                _ => in_generics,
            };
            let outside = depth == 0;
            match c {
                '(' if outside && in_generics == 0 => {
                    depth = 1;
                    continue;
                }
                '(' | '[' if !outside => depth += 1,
                ')' | ']' if !outside => depth -= 1,
                ',' if depth == 1 && in_generics == 0 => {
                    parameters.push(core::mem::take(&mut parameter));
                    continue;
                }
                _ => {}
            }
            if !outside && depth == 0 {
                break;
            }
            if depth > 0 {
                parameter.push(c);
            }
        }
        parameters.push(parameter);
        let parameters = parameters.iter().map(|p| p.split_whitespace().collect::<Vec<_>>().join(" "));
        found.push((name, parameters.filter(|p| !p.is_empty()).collect()));
    }
    found
}

/// Those that have something else than a closure behind a stream.
fn out_of_order(source: &str) -> Vec<String> {
    let is_stream = |p: &str| p.contains(": &") && p.contains("Stream<") && !p.contains("impl ");
    let may_follow = |p: &str| is_stream(p) || p.contains("impl Fn");
    public_functions(source)
        .into_iter()
        .filter(|(_, parameters)| {
            let first = parameters.iter().position(|p| is_stream(p));
            first.is_some_and(|first| !parameters[first..].iter().all(|p| may_follow(p)))
        })
        .map(|(name, _)| name)
        .collect()
}

#[test]
fn a_stream_is_the_last_argument() {
    let files = rust_files(&["src", "replay/src"]);
    let (mut found, mut with) = (Vec::new(), 0);
    for file in &files {
        let source = read(file);
        with += public_functions(&source)
            .iter()
            .filter(|(_, of)| of.iter().any(|p| p.contains("&Stream<")))
            .count();
        found.extend(out_of_order(&source).into_iter().map(|name| format!("{}: {name}", file.display())));
    }
    assert!(with > 30, "{with} functions take a stream: the search finds none where there are some");
    assert_none("arguments behind a stream that is not a closure's", &found);
    // It can fail.
    let planted = "pub fn a<F: Fn(u8) -> u8>(&self, s: &Stream<D>, owner: O) {}\npub unsafe fn b(&self, n: [u8; 2], s: &Stream<D>) {}\n\
                   pub fn c(s: &'s Stream<D>, then: impl FnOnce(&Scope<'s, D>) -> R) {}\nfn d(s: &Stream<D>, n: u8) {}\npub fn e(s: &Stream<D>, t: &Stream<D>) {}";
    assert_eq!(out_of_order(planted), ["a"]);
    let names: Vec<String> = public_functions(planted).into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["a", "b", "c", "e"]);
}
