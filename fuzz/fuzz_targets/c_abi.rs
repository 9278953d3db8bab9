#![no_main]
//! See `src/c_abi.rs`.

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    assert!(
        millpond_fuzz::c_abi::run(data),
        "the stand-in driver is not built, or not named by MILLPOND_FAKE_LIBCUDA"
    );
});
