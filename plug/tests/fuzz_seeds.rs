//! The fuzz target `c_abi` over its committed seeds, and over programs of a small generator, without a fuzzer: hostile calls of
//! the C interface against a model of what each must return. The library is linked into this program, so that a sanitizer sees its code.

#![allow(dead_code, unreachable_pub, reason = "the body is a library of the fuzz package too")]

#[path = "../../fuzz/src/c_abi.rs"]
mod c_abi;

use std::io::Write;
use std::path::Path;

/// A single test, because a process has one driver, and the target's allocators last as long as the process.
#[test]
fn hostile_calls_answer_as_the_model_says() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/seeds/c_abi");
    let mut seeds: Vec<_> =
        std::fs::read_dir(&folder).expect("seeds").map(|e| e.expect("a seed").path()).collect();
    seeds.sort();
    assert!(seeds.len() >= 3, "{} seeds in {}", seeds.len(), folder.display());
    for seed in seeds {
        // Printed if the run below panics.
        println!("seed {}", seed.display());
        if !c_abi::run(&std::fs::read(&seed).expect("it is there")) {
            // Past the test harness, which hides what a passing test prints.
            let _ = writeln!(
                std::io::stderr(),
                "SKIPPED: the stand-in driver is not built: cargo test --workspace"
            );
            return;
        }
    }
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for program in 0..200 {
        println!("program {program}");
        let mut byte = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        };
        let bytes: Vec<u8> = (0..400).map(|_| byte()).collect();
        c_abi::run(&bytes);
    }
}
