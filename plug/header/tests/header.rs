//! The committed header is the one that the source generates. `MILLPOND_BLESS=1` writes it anew.

use std::path::Path;

#[test]
fn the_header_is_made_from_the_source() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the C interface's folder");
    let mut config = cbindgen::Config::from_file(here.join("cbindgen.toml")).expect("its options");
    config.after_includes = Some(version());
    let mut builder = cbindgen::Builder::new().with_config(config);
    for file in ["status.rs", "ffi.rs", "torch.rs"] {
        builder = builder.with_src(here.join("src").join(file));
    }
    let mut made = Vec::new();
    builder.generate().expect("a header").write(&mut made);
    let made = String::from_utf8(made).expect("text");
    for name in [
        "millpond_create",
        "millpond_alloc",
        "millpond_torch_alloc",
        "millpond_torch_free",
        "MILLPOND_STATUS_OK",
        "MILLPOND_VERSION_MAJOR",
    ] {
        assert!(made.contains(name), "{name} is not in the header:\n{made}");
    }
    let path = here.join("millpond.h");
    if std::env::var_os("MILLPOND_BLESS").is_some() {
        std::fs::write(&path, &made).expect("written");
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        committed == made,
        "plug/millpond.h is not what the source says: MILLPOND_BLESS=1 cargo test -p millpond-header --test header"
    );
}

/// The version of this header, for the preprocessor. `millpond_version` returns the library's.
fn version() -> String {
    let [major, minor, patch] =
        [env!("CARGO_PKG_VERSION_MAJOR"), env!("CARGO_PKG_VERSION_MINOR"), env!("CARGO_PKG_VERSION_PATCH")];
    format!(
        "\n/* The version of this header; millpond_version() says the library's. A number that grows with it, for the preprocessor. */\n\
         #define MILLPOND_VERSION \"{}\"\n\
         #define MILLPOND_VERSION_MAJOR {major}\n\
         #define MILLPOND_VERSION_MINOR {minor}\n\
         #define MILLPOND_VERSION_PATCH {patch}\n\
         #define MILLPOND_VERSION_NUMBER (MILLPOND_VERSION_MAJOR * 1000000 + MILLPOND_VERSION_MINOR * 1000 + MILLPOND_VERSION_PATCH)",
        env!("CARGO_PKG_VERSION"),
    )
}
