//! Which lines no test runs, and which of these are explained.
//!
//! Lines are compared by their text, so that a list survives what is inserted above them. An entry that nothing uses would explain the next
//! line of that text, whatever it is: none may be left, but under a reason that says that it differs from run to run.

use crate::Verdict;
use std::collections::BTreeMap;
use std::fmt::Write;

/// A reason with these words is for lines that some runs come by and some do not.
const DIFFERS: &str = "differs from run to run";

/// The fewest lines that a report of the library has: one with fewer lacks most of the code.
const FEWEST: usize = 3000;

/// Lines that nothing ran.
pub(crate) struct Missed {
    /// Lines that a report knows.
    known: usize,
    /// File, number and text.
    lines: Vec<(String, usize, String)>,
}

/// Reads reports; each executable has one of its own, since two of them may have different versions of an inlined function.
pub(crate) fn missed(
    reports: &[String],
    root: &str,
    source: &dyn Fn(&str) -> Result<String, String>,
) -> Result<Missed, String> {
    let mut ran: BTreeMap<(String, usize), bool> = BTreeMap::new();
    for report in reports {
        let mut file = String::new();
        for line in report.lines() {
            if let Some(path) = line.strip_prefix("SF:") {
                path.strip_prefix(root).unwrap_or(path).clone_into(&mut file);
            } else if let Some((number, count)) = line.strip_prefix("DA:").and_then(|da| da.split_once(',')) {
                let number = number.parse().map_err(|_| format!("no line number: {line}"))?;
                let count = count.split(',').next().unwrap_or_default();
                let is_run = count.parse::<u64>().map_err(|_| format!("no count: {line}"))? > 0;
                *ran.entry((file.clone(), number)).or_default() |= is_run;
            }
        }
    }
    let known = ran.len();
    if known <= FEWEST {
        return Err(format!("{known} lines are known to the report: it lacks most of the code"));
    }
    let mut texts: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut lines = Vec::new();
    for ((file, number), is_run) in ran {
        if is_run {
            continue;
        }
        if !texts.contains_key(&file) {
            let text = source(&file)?.lines().map(|l| l.trim_start_matches(' ').to_owned()).collect();
            texts.insert(file.clone(), text);
        }
        let text =
            texts[&file].get(number - 1).ok_or_else(|| format!("{file} has no line {number}"))?.clone();
        lines.push((file, number, text));
    }
    Ok(Missed { known, lines })
}

impl Missed {
    /// How many, and each with its number.
    pub(crate) fn list(&self) -> String {
        let mut out = self.summary();
        for (file, number, text) in &self.lines {
            let _ = writeln!(out, "{file}:{number}: {text}");
        }
        out
    }

    fn summary(&self) -> String {
        let (missed, known) = (self.lines.len(), self.known);
        format!(
            "{} of {known} lines of heap, order and allocator are run; {missed} are not\n",
            known - missed
        )
    }

    /// Against the list of this name.
    pub(crate) fn judge(&self, name: &str, explained: &str) -> Verdict {
        let (mut text, mut is_good) = (self.summary(), true);
        // Entries of a text: how many are left, and how many of them may be.
        let mut left: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
        let (mut has_reason, mut differs) = (false, false);
        for (i, line) in explained.lines().enumerate() {
            if line.starts_with('#') {
                has_reason = true;
                differs |= line.contains(DIFFERS);
            } else if line.is_empty() {
                (has_reason, differs) = (false, false);
            } else if has_reason {
                let entry = left.entry(line).or_default();
                entry.0 += 1;
                entry.1 += usize::from(differs);
            } else {
                let _ = writeln!(text, "{name}:{}: no explanation stands above it", i + 1);
                is_good = false;
            }
        }
        for (file, number, line) in &self.lines {
            if let Some((entries @ 1.., _)) = left.get_mut(format!("{file}: {line}").as_str()) {
                *entries -= 1;
            } else {
                let _ = writeln!(text, "neither run nor explained: {file}:{number}: {line}");
                is_good = false;
            }
        }
        for (line, (entries, spare)) in left.into_iter().filter(|(_, (entries, _))| *entries > 0) {
            let is_stale = entries > spare;
            let _ = writeln!(text, "explained, but run{}: {line}", if is_stale { "" } else { " this time" });
            is_good &= !is_stale;
        }
        if !is_good {
            let _ = writeln!(
                text,
                "cover by a test what is not run, explain it in {name}, and take out there what is"
            );
        }
        Verdict { text, is_good }
    }
}

#[cfg(test)]
mod tests {
    use super::{FEWEST, Missed, missed};
    use std::collections::BTreeMap;
    use std::path::Path;

    /// The entries of a list for which their files have no line, or not as many as there are entries.
    fn stale(explained: &str, source: impl Fn(&str) -> Option<String>) -> Vec<String> {
        let mut entries: BTreeMap<&str, usize> = BTreeMap::new();
        for entry in explained.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            *entries.entry(entry).or_default() += 1;
        }
        let lines = |entry: &str| {
            let (file, text) = entry.split_once(": ")?;
            Some(source(file)?.lines().filter(|line| line.trim_start_matches(' ') == text).count())
        };
        entries.retain(|entry, count| lines(entry).unwrap_or(0) < *count);
        entries.into_keys().map(str::to_owned).collect()
    }

    /// `.ci/coverage` compares the list with what a run covers; it needs the compiler's own LLVM tools and takes minutes. What a rename left behind
    /// is found here in a moment.
    #[test]
    fn every_explained_line_of_this_repository_is_in_its_file() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let explained = std::fs::read_to_string(root.join("tests/uncovered.txt")).unwrap();
        let stale = stale(&explained, |file| std::fs::read_to_string(root.join(file)).ok());
        assert!(
            stale.is_empty(),
            "tests/uncovered.txt explains lines that are not there:\n{}",
            stale.join("\n")
        );
    }

    #[test]
    fn an_entry_without_a_line_of_its_own_is_stale() {
        let source = |file: &str| (file == "a.rs").then(|| "fn f() {\n    return;\n}\n".to_owned());
        let is_stale = |entries: &str| !stale(&format!("# why\n{entries}"), source).is_empty();
        assert!(!is_stale("a.rs: return;\n"));
        assert!(is_stale("a.rs: return;\na.rs: return;\n"), "two entries for one line");
        assert!(is_stale("a.rs: return\n") && is_stale("b.rs: return;\n") && is_stale("return;\n"));
    }

    /// A report of one file of so many lines, in which these are not run.
    fn report(not_run: &[usize]) -> String {
        let lines: Vec<String> = (1..=FEWEST + 1)
            .map(|n| format!("DA:{n},{}\n", usize::from(!not_run.contains(&n)) * 7))
            .collect();
        format!("SF:/r/src/a.rs\n{}end_of_record\n", lines.concat())
    }

    fn of(reports: &[String]) -> Missed {
        let source = |_: &str| {
            Ok((1..=FEWEST + 1).map(|n| ["    line ", &(n % 10).to_string(), "\n"].concat()).collect())
        };
        missed(reports, "/r/", &source).unwrap()
    }

    fn judged(not_run: &[usize], list: &str) -> (bool, String) {
        let verdict = of(&[report(not_run)]).judge("list", list);
        (verdict.is_good, verdict.text)
    }

    #[test]
    fn a_line_that_one_report_has_run_is_run() {
        let both = of(&[report(&[3, 4]), report(&[4, 5])]);
        assert_eq!(both.lines, [("src/a.rs".to_owned(), 4, "line 4".to_owned())]);
        assert!(both.list().ends_with("; 1 are not\nsrc/a.rs:4: line 4\n"), "{}", both.list());
    }

    #[test]
    fn what_is_not_run_needs_an_entry_each_and_no_entry_is_left() {
        assert!(judged(&[3], "# why\nsrc/a.rs: line 3\n").0);
        let (is_good, text) = judged(&[3, 13], "# why\nsrc/a.rs: line 3\n");
        assert!(!is_good && text.contains("neither run nor explained: src/a.rs:13: line 3"), "{text}");
        let (is_good, text) = judged(&[], "# why\nsrc/a.rs: line 3\n");
        assert!(!is_good && text.contains("explained, but run: src/a.rs: line 3"), "{text}");
        let (is_good, text) = judged(&[3], "src/a.rs: line 3\n");
        assert!(!is_good && text.contains("list:1: no explanation stands above it"), "{text}");
    }

    #[test]
    fn what_differs_from_run_to_run_may_be_left() {
        let list = "# it differs from run to run\nsrc/a.rs: line 3\n\n# why\nsrc/a.rs: line 4\n";
        let (is_good, text) = judged(&[4], list);
        assert!(is_good && text.contains("explained, but run this time: src/a.rs: line 3"), "{text}");
        assert!(judged(&[3, 4], list).0);
        assert!(!judged(&[3], list).0, "the other reason does not differ");
    }

    #[test]
    fn a_report_that_lacks_most_of_the_code_is_none() {
        let none = |_: &str| Ok(String::new());
        assert!(missed(&["SF:/r/src/a.rs\nDA:1,0\n".to_owned()], "/r/", &none).is_err());
        assert!(missed(&[report(&[]).replace("DA:1,7", "DA:1,x")], "/r/", &none).is_err());
        assert!(missed(&[report(&[5])], "/r/", &none).is_err(), "a source without the line");
    }
}
