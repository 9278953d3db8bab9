//! Programs that link the library ask for it by the name it is installed under, and one that opened it never unloads it.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let part = |name: &str| std::env::var(format!("CARGO_PKG_VERSION_{name}")).expect("cargo sets it");
    // A version that may change a function has another name: before 1.0 each minor one, as of Rust's packages.
    let interface = match part("MAJOR").as_str() {
        "0" => format!("0.{}", part("MINOR")),
        major => major.to_owned(),
    };
    // For the tests, which link programs.
    println!("cargo::rustc-env=MILLPOND_SONAME=libmillpond.so.{interface}");
    if std::env::var("CARGO_CFG_TARGET_OS").is_ok_and(|os| os == "linux") {
        println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libmillpond.so.{interface}");
        // It stays when a program closes it: threads remember streams to their end, and memory that is alive has its table here.
        println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    }
}
