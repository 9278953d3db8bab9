//! What the README shows is what the example prints.

#[allow(dead_code, reason = "its main prints what is compared here")]
#[path = "../examples/missing_wait.rs"]
mod missing_wait;

#[test]
fn the_readme_shows_what_the_example_prints() {
    let readme = include_str!("../README.md");
    let said = missing_wait::judged(false).expect("it runs");
    assert!(readme.contains(&format!("```text\n{said}\n```")), "the README should show\n{said}");
    assert_eq!(missing_wait::judged(true).expect("it runs"), "4 accesses, every one ordered");
}
