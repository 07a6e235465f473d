//! Compiles `epwatch/v1/*.proto` in pure Rust: nobody needs `protoc`.

use std::{env, error::Error, path::PathBuf};

use tonic_prost_build::Config;

/// Fields that hold a message but stay bytes in our Rust types. On the wire the two are the same,
/// and the collector must keep the bytes that came in: it makes them durable, and compares them. Of a
/// placement that is certified it looks at the length before it decodes it.
const KEPT_AS_BYTES: [(&str, &str); 2] = [
    ("RecordedReport", "report"),
    ("PutCertifiedPlacementRequest", "placement"),
];

fn main() -> Result<(), Box<dyn Error>> {
    // Asked when it runs: a checkout may be moved together with what was built in it.
    let root = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?);
    println!("cargo:rerun-if-changed={}", root.join("epwatch").display());

    let mut files = protox::compile([root.join("epwatch/v1/collector.proto")], [&root])?;
    for (message, field) in KEPT_AS_BYTES {
        let field = files
            .file
            .iter_mut()
            .flat_map(|file| &mut file.message_type)
            .filter(|m| m.name() == message)
            .flat_map(|m| &mut m.field)
            .find(|f| f.name() == field)
            .ok_or_else(|| format!("no field {message}.{field}"))?;
        field.set_type(prost_types::field_descriptor_proto::Type::Bytes);
        field.type_name = None;
    }

    let mut config = Config::new();
    config.bytes(["."]);
    // Written by hand, to bound what decoding takes: src/upload_wire.rs, src/manifest_wire.rs.
    config.extern_path(
        ".epwatch.v1.UploadRequest",
        "crate::upload_wire::UploadRequest",
    );
    config.extern_path(
        ".epwatch.v1.ModelManifest",
        "crate::manifest_wire::ModelManifest",
    );
    tonic_prost_build::configure()
        .build_client(env::var_os("CARGO_FEATURE_CLIENT").is_some())
        .build_server(env::var_os("CARGO_FEATURE_SERVER").is_some())
        .codec_path("crate::codec::FittingCodec")
        .compile_fds_with_config(files, config)?;
    Ok(())
}
