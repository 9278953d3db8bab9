//! Gives the library the soname that programs load, so that the loader finds it if it is loaded already.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcuda.so");
}
