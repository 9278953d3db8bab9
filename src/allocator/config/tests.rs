//! Options as serde values, in both directions.

use super::*;
use crate::trace::Ring;
use proptest::prelude::*;

fn limits() -> impl Strategy<Value = Limit> {
    let refcounts = prop_oneof![Just(0.0), Just(1.0), Just(f64::MIN_POSITIVE), 0.0..=1.0];
    prop_oneof![Just(Limit::None), any::<u64>().prop_map(Limit::Bytes), refcounts.prop_map(Limit::Fraction)]
}

fn growths() -> impl Strategy<Value = Growth> {
    let rounded = any::<[u64; 3]>();
    let rounded = rounded.prop_map(|[small, large, multiple]| Growth::Rounded { small, large, multiple });
    prop_oneof![Just(Growth::Exact), rounded]
}

fn footprints() -> impl Strategy<Value = Footprint> {
    let all = (0.0..=1.0, any::<u64>(), any::<Option<u32>>(), 0.0..=1.0, any::<Duration>());
    all.prop_map(|(slack, largest_handle, moves, time, credit)| Footprint {
        slack,
        largest_handle,
        moves,
        time,
        credit,
    })
}

/// All options that are data.
fn configs() -> impl Strategy<Value = Config> {
    let waits = proptest::option::of(any::<Duration>());
    let policies = prop_oneof![Just(Policy::Latency), Just(Policy::Footprint)];
    let reuses = prop_oneof![
        Just(Reuse::Never),
        Just(Reuse::Ordered),
        Just(Reuse::KnownWaits),
        Just(Reuse::WithWaits)
    ];
    let numbers = (any::<Option<u64>>(), any::<[Option<usize>; 2]>(), footprints());
    let memory =
        prop_oneof![Just(VirtualMemory::Auto), Just(VirtualMemory::Never), Just(VirtualMemory::Always)];
    let bounds = [limits(), limits(), limits(), limits()];
    let all = (bounds, growths(), policies, reuses, waits, numbers, any::<[bool; 3]>(), memory);
    all.prop_map(
        |(
            bounds,
            growth,
            policy,
            reuse,
            wait,
            (pinned_limit, [few, staging_threads], footprint),
            flags,
            virtual_memory,
        )| {
            let [deterministic, exact_fit, scrub] = flags;
            let [limit, soft_limit, low_watermark, high_watermark] = bounds;
            Config {
                limit,
                soft_limit,
                low_watermark,
                high_watermark,
                pinned_limit: pinned_limit.map(Limit::Bytes),
                policy,
                reuse,
                growth,
                deterministic,
                exact_fit,
                scrub,
                virtual_memory,
                footprint,
                handles: Handles { exportable: exact_fit, one_above: pinned_limit, ..Handles::default() },
                wait,
                few,
                staging_threads,
                staging_pieces: StagingPieces::default(),
                sinks: Vec::new(),
                hook: None,
                clock: None,
                group: None,
            }
        },
    )
}

/// `Debug` shows every field of a `Config`.
fn shown(config: &Config) -> String {
    format!("{config:?}")
}

proptest! {
    #[test]
    fn options_are_read_back_as_they_were_written(config in configs()) {
        let text = serde_json::to_string(&config).unwrap();
        prop_assert_eq!(shown(&serde_json::from_str(&text).unwrap()), shown(&config), "{}", text);
        let value = serde_json::to_value(&config).unwrap();
        prop_assert_eq!(shown(&serde_json::from_value(value).unwrap()), shown(&config));
        // In the order of the fields, as formats without names have them.
        let serde_json::Value::Object(fields) = serde_json::to_value(&config).unwrap() else { panic!() };
        let names = [
            "limit", "soft_limit", "low_watermark", "high_watermark", "pinned_limit", "policy", "reuse", "growth", "deterministic", "exact_fit", "scrub",
            "virtual_memory", "footprint", "handles", "bounded_wait", "look_at_each_of", "staging_threads",
        ];
        prop_assert_eq!(fields.len(), names.len());
        let row: Vec<_> = names.iter().map(|name| fields[*name].clone()).collect();
        prop_assert_eq!(shown(&serde_json::from_value(row.into()).unwrap()), shown(&config));
    }
}

#[test]
fn sinks_and_callbacks_are_no_data() {
    let config = Config::new().sink(Arc::new(Ring::new(1))).on_out_of_memory(|_| false).scrub(true);
    let read: Config = serde_json::from_str(&serde_json::to_string(&config).unwrap()).unwrap();
    assert_eq!(shown(&read), shown(&Config::new().scrub(true)));
}

#[test]
fn what_is_missing_has_its_default_and_what_is_unknown_is_passed_over() {
    let read = |text| shown(&serde_json::from_str(text).unwrap());
    assert_eq!(read("{}"), shown(&Config::default()));
    let text = r#"{"feeder": {"depth": [3]}, "reuse": "ordered", "growth": "exact", "limit": {"bytes": 7}}"#;
    let right = Config::new().reuse(Reuse::Ordered).growth(Growth::Exact).limit(Limit::Bytes(7));
    assert_eq!(read(text), shown(&right));
}

#[test]
fn a_wrong_value_is_refused_by_the_name_of_its_option() {
    let refused = |text| serde_json::from_str::<Config>(text).unwrap_err().to_string();
    let all = [
        r#"{"scrub": "yes"}"#,
        r#"{"policy": "fast"}"#,
        r#"{"reuse": 1}"#,
        r#"{"limit": {"fraction": 1.5}}"#,
        r#"{"limit": {"bytes": -1}}"#,
        r#"{"growth": {"rounded": {"small": 1, "large": 2}}}"#,
        r#"{"bounded_wait": 2000}"#,
        r#"{"footprint": {"slack": "much"}}"#,
        r#"{"pinned_limit": "4GiB"}"#,
        "7",
    ];
    insta::assert_snapshot!(all.map(refused).join("\n"), @r#"
    scrub: invalid type: string "yes", expected a boolean at line 1 column 15
    policy: unknown variant `fast`, expected `latency` or `footprint` at line 1 column 17
    reuse: expected value at line 1 column 11
    limit: found 1.5; expected a fraction from 0 to 1 (0% to 100%) at line 1 column 27
    limit: invalid value: integer `-1`, expected u64 at line 1 column 22
    growth: missing field `multiple` at line 1 column 47
    bounded_wait: invalid type: integer `2000`, expected struct Duration at line 1 column 21
    footprint: slack: invalid type: string "much", expected f64 at line 1 column 30
    pinned_limit: unknown variant `4GiB`, expected one of `none`, `bytes`, `fraction` at line 1 column 23
    invalid type: integer `7`, expected a struct Config at line 1 column 1
    "#);
}

#[test]
fn the_documentation_has_the_variables() {
    let row = |v: &Variable| format!("    /// | `{}` | {} | {} |\n", v.name, v.values, v.effect);
    let rows: Vec<String> = Config::VARIABLES.iter().map(row).collect();
    let table = "    /// | variable | values | effect |\n    /// |---|---|---|\n".to_owned() + &rows.concat();
    assert!(
        include_str!("../config.rs").contains(&(table.clone() + "    ///\n")),
        "in Config::from_env:\n{table}"
    );
}
