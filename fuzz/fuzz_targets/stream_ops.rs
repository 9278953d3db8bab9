#![no_main]
//! See `src/stream_ops.rs`.

libfuzzer_sys::fuzz_target!(|data: &[u8]| millpond_fuzz::stream_ops::run(data));
