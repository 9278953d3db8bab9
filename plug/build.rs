//! Programs that link the library ask for it by the name it is installed under, and one that opened it never unloads it.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if std::env::var("CARGO_CFG_TARGET_OS").is_ok_and(|os| os == "linux") {
        println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libmillpond.so");
        // It stays when a program closes it: threads remember streams to their end, and memory that is alive has its table here.
        println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    }
}
