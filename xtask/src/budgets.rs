//! Instruction counts as the benches' runner prints them, against budgets and against each other.

use crate::Verdict;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

/// How far above its budget a count may be, and how far below: a gain that is not written down is lost unseen.
const ABOVE: f64 = 1.02;
const BELOW: f64 = 0.95;

/// How many times the instructions a step may take beside four times the streams.
const GROWTH: f64 = 1.5;

/// The counts of a bench: `bench::group::function case:(arguments)`, and in a line behind it `Instructions: count|…`.
fn counts<'a>(bench: &str, printed: &'a str) -> Vec<(&'a str, Option<&'a str>, f64)> {
    let mut found = Vec::new();
    let mut current = None;
    for line in printed.lines() {
        let mut words = line.split_whitespace();
        let first = words.next().unwrap_or_default();
        if let Some(path) = first.strip_prefix(bench).and_then(|p| p.strip_prefix("::")) {
            let case = words.next().map(|word| word.split(':').next().unwrap_or(word));
            current = Some((path.rsplit("::").next().unwrap_or(path), case));
        } else if first == "Instructions:"
            && let Some((name, case)) = current
            && let Some(count) = words.next().and_then(|w| w.split('|').next()?.parse().ok())
        {
            found.push((name, case, count));
        }
    }
    found
}

/// Repetitions in one count of a function: `TIMES`, `MIGRATIONS` and `CHURNS` of benches/hit.rs.
fn repetitions(function: &str) -> f64 {
    match function {
        "take_after_drain" => 1.0,
        "migrate" => 60.0,
        "churn" => 10_000.0,
        _ => 1000.0,
    }
}

/// Counts of benches/hit.rs against its budgets.
pub(crate) fn judge(budgets: &str, printed: &str) -> Result<Verdict, String> {
    let budgets: toml::Table = budgets.parse().map_err(|e: toml::de::Error| e.to_string())?;
    let (mut text, mut is_good) = (String::new(), true);
    let mut seen = BTreeSet::new();
    for (function, case, count) in counts("hit", printed) {
        let name = case.map_or_else(|| function.to_owned(), |case| format!("{function}.{case}"));
        let count = count / repetitions(function);
        let Some(budget) = budgets.get(&name) else {
            let _ = writeln!(text, "{name:<28} {count:8.1}: no budget");
            is_good = false;
            continue;
        };
        let budget = budget.as_integer().ok_or_else(|| format!("the budget of {name} is no number"))?;
        let verdict = if count > budget as f64 * ABOVE {
            "ABOVE THE BUDGET: find out why, or raise it and say why"
        } else if count < budget as f64 * BELOW {
            "below: lower the budget"
        } else {
            "ok"
        };
        is_good &= verdict == "ok";
        let _ = writeln!(text, "{name:<28} {count:8.1} of {budget:6}  {verdict}");
        seen.insert(name);
    }
    for name in budgets.keys().filter(|name| !seen.contains(*name)) {
        let _ = writeln!(text, "{name} has a budget but was not counted");
        is_good = false;
    }
    if seen.is_empty() {
        text.push_str("nothing was counted\n");
        is_good = false;
    }
    Ok(Verdict { text, is_good })
}

/// Counts of benches/streams.rs: cases `program_5k` and `program_20k`, each over as many steps as it has streams.
pub(crate) fn growth(printed: &str, programs: usize) -> Verdict {
    let (mut text, mut is_good) = (String::new(), true);
    let mut by_name: BTreeMap<&str, BTreeMap<&str, f64>> = BTreeMap::new();
    for (_, case, count) in counts("streams", printed) {
        if let Some((name, streams)) = case.and_then(|case| case.rsplit_once('_')) {
            let thousands: f64 = streams.trim_end_matches('k').parse().unwrap_or(f64::NAN);
            by_name.entry(name).or_default().insert(streams, count / (thousands * 1000.0));
        }
    }
    for (name, counts) in &by_name {
        let (Some(few), Some(many)) = (counts.get("5k"), counts.get("20k")) else {
            let _ = writeln!(text, "{name} was not counted beside 5,000 and 20,000 streams");
            is_good = false;
            continue;
        };
        let grows = *many > GROWTH * few;
        let verdict = if grows { "GROWS WITH THE STREAMS: find out why" } else { "ok" };
        let _ = writeln!(
            text,
            "{name:<28} {few:8.1} a step beside 5,000 streams, {many:8.1} beside 20,000  {verdict}"
        );
        is_good &= !grows;
    }
    if by_name.len() != programs {
        let _ =
            writeln!(text, "{} programs of benches/streams.rs were counted, not {programs}", by_name.len());
        is_good = false;
    }
    Verdict { text, is_good }
}

#[cfg(test)]
mod tests {
    use super::{growth, judge};

    const PRINTED: &str = "\
hit::calls::exact mib_1:hit(1 << 20)
  Baselines:                     |old
  Instructions:            334000|334000 (No change)
hit::calls::migrate windows:source(Always)
  Instructions:            438000|N/A (*********)
";

    fn judged(budgets: &str) -> (bool, String) {
        let verdict = judge(budgets, PRINTED).unwrap();
        (verdict.is_good, verdict.text)
    }

    #[test]
    fn counts_are_held_against_budgets_from_both_sides() {
        let (is_good, text) = judged("\"exact.mib_1\" = 334\n\"migrate.windows\" = 7294\n");
        assert!(is_good, "{text}");
        assert!(text.contains("exact.mib_1                     334.0 of    334  ok"), "{text}");
        assert!(text.contains("7300.0 of   7294  ok"), "60 migrations are in one count: {text}");
        assert!(judged("\"exact.mib_1\" = 327\n\"migrate.windows\" = 7294\n").1.contains("ABOVE"));
        assert!(judged("\"exact.mib_1\" = 352\n\"migrate.windows\" = 7294\n").1.contains("below"));
        for bad in ["\"exact.mib_1\" = 327", "\"exact.mib_1\" = 352", "\"exact.mib_1\" = 334"] {
            assert!(!judged(bad).0, "{bad}: one is off, or migrate has no budget");
        }
        assert!(
            judged("\"exact.mib_1\" = 334\n\"migrate.windows\" = 7294\n\"gone\" = 1")
                .1
                .contains("gone has a budget but was not counted")
        );
        assert!(!judge("\"migrate.windows\" = 7294", "").unwrap().is_good, "nothing was counted");
        assert!(judge("\"migrate.windows\" = \"many\"", PRINTED).is_err());
    }

    fn steps(few: u64, many: u64) -> String {
        format!(
            "streams::calls::step steady_5k:at(5)\n  Instructions: {}|x\nstreams::calls::step steady_20k:at(20)\n  Instructions: {}|x\n",
            few * 5000,
            many * 20_000
        )
    }

    #[test]
    fn a_step_beside_four_times_the_streams_costs_half_as_much_again_at_most() {
        assert!(growth(&steps(100, 150), 1).is_good);
        assert!(growth(&steps(100, 151), 1).text.contains("GROWS"));
        assert!(!growth(&steps(100, 151), 1).is_good);
        assert!(!growth(&steps(100, 100), 2).is_good, "a program is missing");
        let few_only = steps(100, 100).split("streams::calls::step steady_20k").next().unwrap().to_owned();
        assert!(!growth(&few_only, 1).is_good);
        assert!(growth(&few_only, 1).text.contains("steady was not counted"));
    }
}
