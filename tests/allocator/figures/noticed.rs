//! Whether a model states a report's numbers: each is made one more, and one less, and some model has to notice.
//!
//! The numbers are those of the report's JSON, so that a new one is among them without being named here: it fails until a model has it.

use millpond::report::Report;
use millpond_testkit::quiet;
use serde_json::Value;
use std::collections::BTreeMap;

/// The numbers that were changed: in how many reports by one more and by one less, and how often no model noticed that.
#[derive(Default)]
pub(crate) struct Noticed(BTreeMap<String, Seen>);

#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Seen {
    pub more: (u64, u64),
    pub less: (u64, u64),
}

/// The numbers below a value: the way to each, and its name, in which all members of a list are alike.
fn numbers(of: &Value, way: &str, name: &str, all: &mut Vec<(String, String)>) {
    match of {
        Value::Object(fields) => {
            for (field, value) in fields {
                let dot = if name.is_empty() { "" } else { "." };
                numbers(
                    value,
                    &format!("{way}/{}", field.replace('~', "~0").replace('/', "~1")),
                    &format!("{name}{dot}{field}"),
                    all,
                );
            }
        }
        Value::Array(members) => {
            for (at, value) in members.iter().enumerate() {
                numbers(value, &format!("{way}/{at}"), &format!("{name}[]"), all);
            }
        }
        Value::Number(n) if n.is_u64() => all.push((way.to_owned(), name.to_owned())),
        _ => {}
    }
}

impl Noticed {
    /// `check` panics at a report that is not the model's.
    pub(crate) fn try_all(&mut self, report: &Report, check: impl Fn(&Report)) {
        let json: Value = serde_json::from_str(&report.to_json()).expect("JSON");
        let mut all = Vec::new();
        numbers(&json, "", "", &mut all);
        for (way, name) in all {
            let was = json.pointer(&way).and_then(Value::as_u64).expect("a number");
            for (less, other) in [(false, was.checked_add(1)), (true, was.checked_sub(1))] {
                let Some(other) = other else { continue };
                let mut changed = json.clone();
                *changed.pointer_mut(&way).expect("it is there") = other.into();
                let Ok(changed) = serde_json::from_value::<Report>(changed) else { continue };
                if changed == *report {
                    // It follows from others.
                    continue;
                }
                let seen = quiet::catch(|| check(&changed)).is_err();
                let counts = self.0.entry(name.clone()).or_default();
                let count = if less { &mut counts.less } else { &mut counts.more };
                *count = (count.0 + 1, count.1 + u64::from(!seen));
            }
        }
    }

    /// Panics unless all numbers but these were noticed each time, and these at times.
    pub(crate) fn demand_all_but(&self, bounded: &[&str]) {
        assert!(bounded.iter().all(|name| self.0.contains_key(*name)), "a number that is not there");
        for (name, Seen { more, less }) in self.0.iter().filter(|(name, _)| !bounded.contains(&name.as_str()))
        {
            assert_eq!((more.1, less.1), (0, 0), "{name} may be wrong by one: {more:?} {less:?}");
        }
    }

    /// Panics unless all numbers but these were noticed at times, if there was occasion to.
    pub(crate) fn demand_at_times(&self, but: &[&str]) {
        const OCCASIONS: u64 = 10;
        for (name, Seen { more, less }) in self.0.iter().filter(|(name, _)| !but.contains(&name.as_str())) {
            let right = |(tried, unseen): (u64, u64)| unseen < tried || tried < OCCASIONS;
            assert!(right(*more) && right(*less), "{name} may be anything: {more:?} {less:?}");
        }
    }

    /// Panics unless these were noticed each time.
    pub(crate) fn demand_of(&self, names: &[&str]) {
        for name in names {
            let seen = self.0.get(*name).copied().unwrap_or_default();
            assert_eq!((seen.more.1, seen.less.1), (0, 0), "{name}: {seen:?}");
        }
    }
}
