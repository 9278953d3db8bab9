//! Test programs that `cargo test --workspace` leaves out, by `test = false` in a manifest, are run by a check all the same, and looked at by those
//! that look at all others. It does not know which programs should be left out.

use crate::sources::read;

/// The names of the test programs that a manifest leaves out.
fn left_out(manifest: &str) -> Vec<String> {
    let sections = manifest.split("\n[[test]]\n").skip(1);
    let sections = sections.map(|section| section.split("\n[").next().unwrap_or_default());
    let left_out = sections.filter(|section| section.lines().any(|line| line == "test = false"));
    let name = |section: &str| {
        let line = section.lines().find_map(|line| line.strip_prefix("name = \"")?.strip_suffix('"'));
        line.expect("a name").to_owned()
    };
    left_out.map(name).collect()
}

/// The checks that run what is left out.
const RUN: &[&str] = &[".ci/test", ".ci/soak", ".ci/mutants", ".ci/loom", ".ci/shuttle"];

/// Whether a test program is empty in ordinary builds: all of it is of a build that a check makes for it, with planted bugs or a model checker's locks.
fn is_of_another_build(source: &str) -> bool {
    let line = source.lines().find_map(|line| line.strip_prefix("#![cfg("));
    let has = |of: &str| {
        line.is_some_and(|line| !line.contains("any(") && !line.contains("not(") && line.contains(of))
    };
    ["millpond_mutants", "loom", "shuttle"].into_iter().any(has)
}

/// The packages of the workspace, by their folders.
fn packages(manifest: &str) -> Vec<String> {
    let line = manifest.lines().find_map(|line| line.strip_prefix("members = [")?.strip_suffix(']'));
    let members = line.expect("the members").split(", ");
    members.map(|member| member.trim_matches('"').to_owned()).collect()
}

/// Whether a script runs, or looks at, the program of this name in all packages or in this one.
fn names(script: &str, program: &str) -> bool {
    let option = format!("--test {program}");
    script.lines().filter(|line| !line.trim_start().starts_with('#')).any(|line| {
        line.match_indices(&option).any(|(at, _)| {
            let rest = &line[at + option.len()..];
            rest.is_empty() || rest.starts_with([' ', ';', ')'])
        })
    })
}

#[test]
fn what_cargo_test_leaves_out_is_run_by_a_check() {
    let packages = packages(&read("Cargo.toml"));
    let programs: Vec<(String, String)> = packages
        .iter()
        .flat_map(|package| {
            let of_package = left_out(&read(format!("{package}/Cargo.toml")));
            of_package.into_iter().map(move |program| (package.clone(), program))
        })
        .collect();
    assert!(programs.contains(&("plug".to_owned(), "soak".to_owned())), "{programs:?}");
    let (run, looked_at) = (RUN.iter().map(read).collect::<String>(), read(".ci/clippy"));
    let package_check = read(".ci/package");
    let mut elsewhere = 0;
    for (package, program) in &programs {
        assert!(names(&run, program), "none of {RUN:?} runs {program} of {package}");
        let of_root = package == ".";
        if is_of_another_build(&read(format!("{package}/tests/{program}.rs"))) {
            elsewhere += 1;
            continue;
        }
        assert!(names(&looked_at, program), ".ci/clippy does not look at {program} of {package}");
        assert!(!of_root || names(&package_check, program), ".ci/package does not build {program} alone");
    }
    assert_eq!(elsewhere, 5, "programs that are empty in ordinary builds: {programs:?}");
    // It can fail.
    assert!(is_of_another_build("//! x\n#![cfg(all(loom, feature = \"cuda\"))]\n"));
    assert!(!is_of_another_build("#![cfg(not(loom))]\n") && !is_of_another_build("// #![cfg(loom)]\n"));
    let planted = "[[test]]\nname = \"a\"\n\n[[test]]\nname = \"b\"\ntest = false\n[[bin]]\nname = \"c\"\ntest = false\n";
    assert_eq!(left_out(&format!("\n{planted}")), ["b"]);
    assert!(!names("# --test b\nx --test bc", "b") && names("x --test b -- c", "b"));
}
