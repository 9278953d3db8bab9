#![no_main]
//! See `src/heap_ops.rs`.

libfuzzer_sys::fuzz_target!(|data: &[u8]| millpond_fuzz::heap_ops::run(data));
