#![no_main]
//! See `src/trace_import.rs`.

libfuzzer_sys::fuzz_target!(|data: &[u8]| millpond_fuzz::trace_import::run(data));
