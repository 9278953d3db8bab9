//! README shows what the oracle says of its second program without the wait. That program is a file here, and is run: the text is compared with README's,
//! and what it ends with, places and all, with the verdict there. That the program with its wait is right is a test of the documentation.

/// The program as README has it, in a folder where its own places in the source are those of a program of its own.
mod program {
    include!("readme/src/main.rs");

    pub(super) fn run() -> Result<(), Box<dyn std::error::Error>> {
        main()
    }
}

/// The first block of README in this language, and what is behind it.
fn block<'a>(readme: &'a str, language: &str) -> (&'a str, &'a str) {
    let (_, from) = readme.split_once(&format!("\n```{language}\n")).expect("a block");
    from.split_once("```\n").expect("its end")
}

#[test]
fn the_readme_shows_what_its_program_without_its_wait_ends_with() {
    let readme = include_str!("../../README.md");
    let (right, rest) = block(readme, "rust");
    let (verdict, _) = block(rest, "text");
    let mut wrong: Vec<&str> = right.lines().collect();
    let lines = wrong.len();
    wrong.retain(|line| !line.contains(".wait_stream("));
    assert_eq!(wrong.len() + 1, lines, "README's program waits once");
    assert_eq!(
        include_str!("readme/src/main.rs").lines().collect::<Vec<_>>(),
        wrong,
        "tests/arrays/readme/src/main.rs"
    );

    let why = program::run().expect_err("nothing orders the kernels");
    // What a `main` that returns it prints; of a long path the oracle shows the end.
    let printed = format!("{why:?}").replace("…/readme/", "");
    assert_eq!(printed, verdict.trim_end());
}
