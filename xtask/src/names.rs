//! Names of tests by which a check runs a part of them, or leaves a part out: without this check a name that no test has would go unnoticed.

use std::fmt::Write;
use std::path::Path;

/// The tests that a test program has listed (`name: test`) or run (`test name ... ok`).
fn tests_in(printed: &str) -> Vec<&str> {
    printed
        .lines()
        .filter_map(|line| {
            let ran =
                line.strip_prefix("test ").and_then(|rest| rest.split_once(" ... ")).map(|(name, _)| name);
            // An expected panic stands behind the name.
            ran.map(|name| name.split(" - ").next().unwrap_or(name)).or_else(|| line.strip_suffix(": test"))
        })
        .collect()
}

/// Each name that is part of no test's, a line each.
pub(crate) fn missing(printed: &str, names: &[String]) -> String {
    let tests = tests_in(printed);
    let mut out = String::new();
    for name in names.iter().filter(|name| !tests.iter().any(|test| test.contains(name.as_str()))) {
        let _ = writeln!(out, "no test is named '{name}', of {}", tests.len());
    }
    out
}

/// Each name that is part of no function's in these sources: of tests that are left out, which no program lists.
pub(crate) fn missing_in(folders: &[impl AsRef<Path>], names: &[String]) -> Result<String, String> {
    let mut functions = Vec::new();
    for folder in folders {
        for (_, text) in crate::lines::all(folder.as_ref())? {
            let code = crate::rust::code_only(&text);
            functions.extend(
                code.split("fn ")
                    .skip(1)
                    .map(|rest| rest.chars().take_while(|&c| crate::rust::is_word(c)).collect::<String>()),
            );
        }
    }
    let mut out = String::new();
    for name in names.iter().filter(|name| !functions.iter().any(|function| function.contains(name.as_str())))
    {
        let _ = writeln!(out, "no function is named '{name}', of {}", functions.len());
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::{missing, missing_in};

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_name_is_part_of_a_test_that_was_listed_or_run() {
        let listed = "early::mapping::s05_first: test\nlate::reuse: test\n\n2 tests, 0 benchmarks\n";
        assert_eq!(missing(listed, &names(&["early::mapping", "s05_", "reuse"])), "");
        assert_eq!(missing(listed, &names(&["early::reuse"])), "no test is named 'early::reuse', of 2\n");
        let ran = "running 2 tests\ntest a::b ... ok\ntest a::c - should panic ... FAILED\ntest result: ok. 1 passed\n";
        assert_eq!(missing(ran, &names(&["a::b", "a::c"])), "");
        // Not what is printed beside the names.
        assert_eq!(missing(ran, &names(&["passed", "ok", "panic"])).lines().count(), 3);
        assert_eq!(missing("", &names(&["x"])).lines().count(), 1);
    }

    #[test]
    fn a_name_that_is_left_out_is_part_of_a_function() {
        assert_eq!(missing_in(&["src"], &names(&["is_part_of_a_test", "missing"])).unwrap(), "");
        let gone = ["not_a_function", "_of_this_package"].concat();
        assert_eq!(missing_in(&["src"], &[gone]).unwrap().lines().count(), 1);
        assert!(missing_in(&["no such folder"], &[]).is_err());
    }
}
