//! The committed header is what the source says. `MILLPOND_BLESS=1` writes it anew.

use std::path::Path;

#[test]
fn the_header_is_made_from_the_source() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(here.join("cbindgen.toml")).expect("its options");
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
        "plug/millpond.h is not what the source says: MILLPOND_BLESS=1 cargo test -p millpond-plug --test header"
    );
}
