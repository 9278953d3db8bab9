//! The fuzz targets' bodies over their committed seeds, with no fuzzer: what one once found stays found.

#![allow(dead_code, unreachable_pub, reason = "the bodies are a library of the fuzz package too")]

#[path = "../../fuzz/src/heap_ops.rs"]
mod heap_ops;
#[path = "../../fuzz/src/stream_ops.rs"]
mod stream_ops;
#[path = "../../fuzz/src/trace_codec.rs"]
mod trace_codec;
#[path = "../../fuzz/src/trace_import.rs"]
mod trace_import;

use millpond_testkit::effort::ordinary_or_full;
use std::path::Path;

fn each_seed(target: &str, run: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/seeds").join(target);
    let mut seeds: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|e| e.unwrap().path()).collect();
    seeds.sort();
    assert!(seeds.len() >= 3, "{} seeds in {}", seeds.len(), folder.display());
    for seed in seeds {
        // Shown when the run below panics.
        println!("seed {}", seed.display());
        run(&std::fs::read(seed).unwrap());
    }
}

#[test]
fn heap_ops_seeds() {
    each_seed("heap_ops", heap_ops::run);
}

/// Each seed with every combination of options, in an ordinary run with every fifth; the device has another temper with each policy and mode.
#[test]
fn stream_ops_seeds() {
    each_seed("stream_ops", |data| {
        let program = millpond_replay::from_fuzz(&data[2..]);
        for (low, schedule) in (0..).zip([0, 64, 97, 98]) {
            for high in (0..=0xFF).step_by(4).step_by(ordinary_or_full(5, 1)) {
                stream_ops::run_with(schedule, high | low, &program);
            }
        }
    });
}

/// A program that is not correct is found out: the order and the contents of what the executor touches are judged.
#[test]
fn stream_ops_judges() {
    let wrong = "millpond trace 1\nstreams 2\nalloc b0 4096 on s0\nwrite b0 on s0\nread b0 on s1\n";
    let program: millpond::trace::Program = wrong.parse().unwrap();
    let said = std::panic::catch_unwind(|| stream_ops::run_with(0, 0, &program)).unwrap_err();
    let said = said.downcast_ref::<String>().expect("a text");
    assert!(said.contains("mend:") && said.contains("with schedule 0, options 0"), "{said}");
}

#[test]
fn trace_codec_seeds() {
    each_seed("trace_codec", trace_codec::run);
}

#[test]
fn trace_import_seeds() {
    each_seed("trace_import", trace_import::run);
}
