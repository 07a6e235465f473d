//! `include/epwatch.h` matches the sources. `EPWATCH_BLESS=1 cargo test -p epwatch-ffi header` writes it.

use std::{fs, path::Path};

#[test]
fn the_header_is_that_of_the_sources() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(root.join("cbindgen.toml")).unwrap();
    let mut builder = cbindgen::Builder::new().with_config(config);
    for module in [
        "status",
        "text",
        "watch",
        "model",
        "plan",
        "compiled_model",
        "log",
        "session",
        "self_test",
        "assignment",
        "upload",
    ] {
        builder = builder.with_src(root.join(format!("src/{module}.rs")));
    }
    let mut written = Vec::new();
    builder.generate().unwrap().write(&mut written);
    let path = root.join("include/epwatch.h");
    if std::env::var_os("EPWATCH_BLESS").is_some() {
        fs::write(&path, &written).unwrap();
    }
    let committed = fs::read(&path).unwrap();
    assert!(
        committed == written,
        "the header is stale: EPWATCH_BLESS=1 cargo test -p epwatch-ffi header"
    );
}
