//! The text and the binary form: any bytes are a program or a typed error, and what was read writes back the same.

use millpond::trace::Program;

/// Reads the bytes as text, as the binary form, and as choices for a program.
pub fn run(data: &[u8]) {
    if let Ok(text) = core::str::from_utf8(data) {
        // The error's words are made too: they quote the input.
        match text.parse::<Program>() {
            Ok(program) => survives(&program),
            Err(e) => assert!(!e.to_string().is_empty()),
        }
        if let Ok(program) = Program::from_text_checked(text) {
            program.check().expect("from_text_checked lets only well-formed programs through");
        }
    }
    match Program::from_binary(data) {
        Ok(program) => survives(&program),
        Err(e) => assert!(e.offset <= data.len() && !e.to_string().is_empty()),
    }
    let woven = millpond_replay::from_fuzz(data);
    woven.check().expect("from_fuzz makes well-formed programs");
    survives(&woven);
    let hostile = millpond_replay::from_fuzz_hostile(data);
    hostile.check().expect("hostile programs are well-formed too");
}

fn survives(program: &Program) {
    let binary = program.to_binary();
    assert_eq!(Program::from_binary(&binary).as_ref(), Ok(program), "through the binary form");
    let text = program.to_string();
    let read: Program = text.parse().unwrap_or_else(|e| panic!("{e}\nin what was written:\n{text}"));
    assert_eq!(&read, program, "through the text form:\n{text}");
    let normal = program.normalise();
    normal.check().expect("a normal program is well-formed");
    assert_eq!(normal.normalise(), normal, "normalising twice changes nothing more");
}
