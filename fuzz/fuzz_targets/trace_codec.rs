#![no_main]
//! See `src/trace_codec.rs`.

libfuzzer_sys::fuzz_target!(|data: &[u8]| millpond_fuzz::trace_codec::run(data));
