//! The scenarios of DESIGN.md's zoo on right code, as regression tests: in ordinary builds no bug is planted.

mod cases;

/// Every scenario passes.
#[test]
fn right_code_passes_every_scenario() {
    let cases = cases::all();
    assert!(cases.len() > 40, "{} scenarios", cases.len());
    let failed: Vec<String> = cases
        .iter()
        .filter_map(|c| cases::judge(c.run).err().map(|e| format!("{} ({}): {e}", c.name, c.kills.join(" "))))
        .collect();
    assert!(failed.is_empty(), "{} scenarios failed:\n{}", failed.len(), failed.join("\n"));
}

/// Random programs that are correct violate nothing, strand nothing and leave nothing.
#[test]
fn right_code_passes_random_programs() {
    for seed in 0..400 {
        let (_, outcome) = cases::random::run(seed);
        if let Err(e) = outcome {
            panic!("{e}");
        }
    }
}
