//! Compiles `epwatch/v1/*.proto`, in pure Rust, to `src/generated/v1.rs`; with `--check` compares the two.

mod digest;

use std::{env, error::Error, fs, path::Path};

use tonic_prost_build::Config;

/// Message fields that stay bytes in our Rust types; on the wire the two are the same. The collector makes the received
/// bytes durable and compares them. It also bounds a certified placement's length before it decodes the placement.
const KEPT_AS_BYTES: [(&str, &str); 2] = [
    ("RecordedReport", "report"),
    ("PutCertifiedPlacementRequest", "placement"),
];

fn main() -> Result<(), Box<dyn Error>> {
    let proto = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("this crate lies in proto/");
    let code = generate(proto)?;
    let path = proto.join("src/generated/v1.rs");
    match env::args().nth(1).as_deref() {
        None => fs::write(path, code)?,
        Some("--check") if fs::read_to_string(&path)? == code => {}
        Some("--check") => return Err("src/generated/v1.rs is stale: run `just generate`".into()),
        Some(other) => return Err(format!("{other}: expected --check or nothing").into()),
    }
    Ok(())
}

fn generate(proto: &Path) -> Result<String, Box<dyn Error>> {
    let mut files = protox::compile([proto.join("epwatch/v1/collector.proto")], [proto])?;
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
    // Written by hand, to bound the memory that decoding takes: src/upload_wire.rs, src/manifest_wire.rs.
    for (message, path) in [("UploadRequest", "upload_wire::BoundedUploadRequest"), ("ModelManifest", "manifest_wire::BoundedManifest")] {
        config.extern_path(
            format!(".epwatch.v1.{message}"),
            format!("crate::{path}"),
        );
    }
    let out = env::temp_dir().join(format!("epwatch-generate-{}", std::process::id()));
    fs::create_dir_all(&out)?;
    tonic_prost_build::configure()
        .client_mod_attribute(".", "#[cfg(feature = \"client\")]")
        .server_mod_attribute(".", "#[cfg(feature = \"server\")]")
        .codec_path("crate::codec::FittingCodec")
        .emit_rerun_if_changed(false)
        .out_dir(&out)
        .compile_fds_with_config(files, config)?;
    let code = fs::read_to_string(out.join("epwatch.v1.rs"))?;
    fs::remove_dir_all(out)?;
    let digest = digest::contract_digest(proto)?;
    Ok(format!(
        "// Made from epwatch/v1/*.proto by `just generate`; not to be edited.\n// contract: {digest}\n{code}"
    ))
}
