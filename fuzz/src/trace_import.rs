//! Foreign logs: any bytes are a log, a program or a typed error, and a log becomes a well-formed program.

use millpond::trace::Log;
use millpond_replay::import::{Options, Trace, read};

/// Reads the bytes as a file, for the first device and for a named one.
pub fn run(data: &[u8]) {
    for options in [Options::default(), Options::default().device(0)] {
        match read("fuzz", data, options) {
            Ok(Trace::Log(log)) => becomes_a_program(&log),
            Ok(Trace::Program(program)) => {
                program.check().expect("import lets only well-formed programs through");
            }
            Err(e) => assert!(!e.to_string().is_empty()),
        }
    }
}

fn becomes_a_program(log: &Log) {
    let info = log.info();
    assert_eq!(info.calls, log.calls.len() as u64);
    let program = log.to_program();
    program.check().unwrap_or_else(|fault| panic!("a log became a bad program: {fault}"));
    // Written as a log again and read back, it is the same calls.
    let (again, _) = Log::from_program(&program).expect("a well-formed program has a log");
    let shape = |l: &Log| l.calls.iter().map(|c| (c.action(), c.block(), c.bytes())).collect::<Vec<_>>();
    assert_eq!(shape(&again), shape(log), "log -> program -> log");
    let mut csv = Vec::new();
    log.write_rmm(&mut csv).expect("writing into memory");
    match read("again", csv.as_slice(), Options::default()) {
        Ok(Trace::Log(_)) => {}
        other => panic!("what write_rmm wrote is no log: {other:?}"),
    }
}
