//! The tables of docs/mutants.md: what is wrong with each planted bug is said once, in driver/src/mutant.rs, and written from there.
//!
//! A table of the document whose rows are of bugs stands below a comment that names its kind, `<!-- bugs: core -->`. The first two columns
//! are written: the names, in the order of the source, and what is wrong. The rest is what searches measured, and stays with its bug; a
//! table that a search printed replaces it. `<!-- bugs: some -->` is for tables of some bugs, in an order of their own.

use std::collections::BTreeMap;
use std::fmt::Write;

/// A bug's kind, its name and what is wrong.
struct Bug {
    kind: String,
    name: String,
    what: String,
}

/// What stands above a table of bugs.
const ABOVE: &str = "<!-- bugs: ";

/// The bugs of the source's list, `mutants! { … }`: an entry a line, `Z1 "z1" "what is wrong"`; a kind begins with its name and a colon.
fn bugs(source: &str) -> Result<Vec<Bug>, String> {
    let mut bugs = Vec::new();
    let mut kind = "core".to_owned();
    for line in
        source.lines().skip_while(|line| *line != "mutants! {").skip(1).take_while(|line| *line != "}")
    {
        let line = line.trim();
        if let Some(next) = line.strip_suffix(':') {
            next.clone_into(&mut kind);
        } else if line != ";" {
            let parts: Vec<&str> = line.split('"').collect();
            let [_, name, _, what, ""] = parts[..] else { return Err(format!("not a bug: {line}")) };
            bugs.push(Bug { kind: kind.clone(), name: name.to_owned(), what: what.to_owned() });
        }
    }
    if bugs.is_empty() { Err("the source lists no bugs".to_owned()) } else { Ok(bugs) }
}

/// The columns of a row.
fn columns(row: &str) -> Vec<&str> {
    row.trim().trim_start_matches('|').trim_end_matches('|').split('|').map(str::trim).collect()
}

/// The document with its tables written anew. `printed`: a table that a search printed, of the bugs that it looked for.
pub(crate) fn written(document: &str, source: &str, printed: Option<&str>) -> Result<String, String> {
    let bugs = bugs(source)?;
    let by_name: BTreeMap<&str, &Bug> = bugs.iter().map(|bug| (bug.name.as_str(), bug)).collect();
    let mut measured = BTreeMap::new();
    for row in printed.into_iter().flat_map(str::lines).filter(|line| line.starts_with("| ")) {
        if let [name, _, rest @ ..] = &columns(row)[..]
            && by_name.contains_key(name)
        {
            measured.insert((*name).to_owned(), rest.join(" | "));
        }
    }
    let mut listed: Vec<String> = Vec::new();
    let mut out = String::new();
    let mut lines = document.lines();
    while let Some(line) = lines.next() {
        let _ = writeln!(out, "{line}");
        let Some(kind) = line.strip_prefix(ABOVE).map(|rest| rest.trim_end_matches("-->").trim()) else {
            continue;
        };
        let (Some(head), Some(rule)) = (lines.next(), lines.next()) else {
            return Err(format!("no table stands below {line}"));
        };
        let _ = write!(out, "{head}\n{rule}\n");
        let wide = columns(head).len();
        // The other columns of each bug, in the order of the document.
        let mut rows: Vec<(String, String)> = Vec::new();
        let mut below = String::new();
        for row in lines.by_ref() {
            if !row.starts_with('|') {
                let _ = writeln!(below, "{row}");
                break;
            }
            let cells = columns(row);
            let [name, _, rest @ ..] = &cells[..] else { return Err(format!("not a row of a bug: {row}")) };
            // A bug that the source does not list any more is left out.
            if by_name.contains_key(name) {
                rows.push(((*name).to_owned(), rest.join(" | ")));
            }
        }
        let of_kind: Vec<&Bug> = bugs.iter().filter(|bug| bug.kind == kind).collect();
        if of_kind.is_empty() && kind != "some" {
            return Err(format!("the source has no bugs of the kind {kind:?}"));
        }
        let blank = vec!["-"; wide.saturating_sub(2)].join(" | ");
        let mut ordered: Vec<(String, String)> = Vec::new();
        for bug in &of_kind {
            let at = rows.iter().position(|(name, _)| *name == bug.name);
            let rest = at.map_or(blank.clone(), |at| rows.remove(at).1);
            let rest = if kind == "core" { measured.remove(&bug.name).unwrap_or(rest) } else { rest };
            ordered.push((bug.name.clone(), rest));
            listed.push(bug.name.clone());
        }
        ordered.extend(rows);
        for (name, rest) in ordered {
            let _ = writeln!(out, "| {name} | {} | {rest} |", by_name[name.as_str()].what);
        }
        out.push_str(&below);
    }
    let missing: Vec<&str> =
        by_name.keys().copied().filter(|name| !listed.iter().any(|l| l == name)).collect();
    if missing.is_empty() { Ok(out) } else { Err(format!("no table lists {}", missing.join(", "))) }
}

/// The lines in which the document is not what would be written.
pub(crate) fn differences(document: &str, written: &str) -> String {
    let mut out = String::new();
    let (is, ought): (Vec<&str>, Vec<&str>) = (document.lines().collect(), written.lines().collect());
    for line in is.iter().filter(|line| !ought.contains(line)) {
        let _ = writeln!(out, "is:    {line}");
    }
    for line in ought.iter().filter(|line| !is.contains(line)) {
        let _ = writeln!(out, "ought: {line}");
    }
    if out.is_empty() && is != ought {
        out.push_str("the rows are in another order than the source's list, or one is there twice\n");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::{differences, written};

    const SOURCE: &str = "macro_rules! mutants {\n}\nmutants! {\n    Z1 \"z1\" \"one\"\n    Z2 \"z2\" \"two\"\n;\nleaks:\n    L \"leak\" \"grows\"\n}\nfn f() {}\n";
    const RIGHT: &str = "# Bugs\n\n<!-- bugs: core -->\n| bug | what | found by | after |\n|---|---|---|---|\n| z1 | one | a | 3 |\n| z2 | two | b | 4 |\n\nText | with a bar\n\n<!-- bugs: leaks -->\n| bug | what | grows |\n|---|---|---|\n| leak | grows | events |\n| z1 | one | marks |\n";

    #[test]
    fn what_is_right_stays() {
        assert_eq!(written(RIGHT, SOURCE, None).unwrap(), RIGHT);
        assert_eq!(differences(RIGHT, RIGHT), "");
    }

    #[test]
    fn names_and_descriptions_are_the_sources() {
        let stale = RIGHT.replace(
            "| z1 | one | a | 3 |\n| z2 | two | b | 4 |",
            "| z2 | to | b | 4 |\n| z1 | one | a | 3 |",
        );
        assert_eq!(written(&stale, SOURCE, None).unwrap(), RIGHT);
        assert_eq!(differences(&stale, RIGHT), "is:    | z2 | to | b | 4 |\nought: | z2 | two | b | 4 |\n");
        let swapped = RIGHT.replace(
            "| z1 | one | a | 3 |\n| z2 | two | b | 4 |",
            "| z2 | two | b | 4 |\n| z1 | one | a | 3 |",
        );
        assert!(differences(&swapped, RIGHT).contains("another order"));
        let gone = RIGHT.replace("| z2 | two | b | 4 |\n", "| z9 | nine | c | 5 |\n");
        assert_eq!(written(&gone, SOURCE, None).unwrap(), RIGHT.replace("| b | 4 |", "| - | - |"));
        let elsewhere = RIGHT.replace("| z1 | one | marks |", "| z1 | won | marks |");
        assert_eq!(written(&elsewhere, SOURCE, None).unwrap(), RIGHT);
    }

    #[test]
    fn what_a_search_printed_replaces_what_was_measured() {
        let printed =
            "z1 z2\n| bug | what | found by | after |\n|---|---|---|---|\n| z2 | two | c; d | 9 |\n";
        let anew = written(RIGHT, SOURCE, Some(printed)).unwrap();
        assert_eq!(anew, RIGHT.replace("| b | 4 |", "| c; d | 9 |"));
    }

    #[test]
    fn a_kind_without_a_table_and_a_table_without_a_kind_are_reported() {
        let without = RIGHT.replace("<!-- bugs: leaks -->", "");
        assert_eq!(written(&without, SOURCE, None).unwrap_err(), "no table lists leak");
        let unknown = RIGHT.replace("<!-- bugs: leaks -->", "<!-- bugs: unknown -->");
        assert!(written(&unknown, SOURCE, None).is_err());
        assert!(written(RIGHT, "mutants! {\n}\n", None).is_err());
        assert!(written(RIGHT, "mutants! {\n    Z1 \"z1\"\n}\n", None).is_err());
    }

    /// The document is what `cargo run -p xtask -- mutants --write` writes.
    #[test]
    fn the_document_is_written_from_the_source() {
        let read = |path: &str| {
            std::fs::read_to_string(format!("{}/../{path}", env!("CARGO_MANIFEST_DIR"))).unwrap()
        };
        let document = read("docs/mutants.md");
        let anew = written(&document, &read("driver/src/mutant.rs"), None).unwrap();
        let differ = differences(&document, &anew);
        assert!(differ.is_empty(), "`cargo run -p xtask -- mutants --write`:\n{differ}");
    }
}
