//! `epwatch directive keygen`: makes the operator's key pair, in two files.

use std::{
    fs::OpenOptions,
    io::Write,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::Context;
use epwatch_proto::hex;
use serde::Serialize;

use crate::{output, signing_key};

/// Makes an Ed25519 key pair for signing directives.
///
/// The private key goes into a file that only you can read; keep it off the collector. Give the public
/// key and its id to the app's SDK configuration. The public key is also written as PEM into OUT.pub,
/// for `epwatch verify` and other tools.
#[derive(Debug, clap::Args)]
pub(super) struct KeygenArgs {
    /// Where the private key goes; an existing file is never overwritten.
    #[arg(long, value_name = "FILE", default_value = "directive-key.pem")]
    out: PathBuf,
    /// Print one JSON document.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct KeygenDocument {
    /// The first 16 digits of the public key's SHA-256.
    key_id: String,
    /// 32 bytes, lower-case hex.
    public_key: String,
    private_key_file: String,
    public_key_file: String,
}

pub(super) fn keygen(args: &KeygenArgs) -> anyhow::Result<ExitCode> {
    let (text, key) = signing_key::made()?;
    let public_key_file = PathBuf::from(format!("{}.pub", args.out.display()));
    create(&args.out, 0o600, &text)?;
    create(&public_key_file, 0o644, &key.public().pem())?;
    let document = KeygenDocument {
        key_id: key.key_id().to_owned(),
        public_key: hex(&key.public().0),
        private_key_file: args.out.display().to_string(),
        public_key_file: public_key_file.display().to_string(),
    };
    if args.json {
        output::json(&document)?;
    } else {
        output::line(format_args!("private key  {}", document.private_key_file))?;
        output::line(format_args!("key id       {}", document.key_id))?;
        output::line(format_args!("public key   {}", document.public_key))?;
        output::line(format_args!("as PEM       {}", document.public_key_file))?;
        output::line(
            "Apps obey directives signed with it once their SDK is given key id and public key.",
        )?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Writes a new file; one that exists is never overwritten.
fn create(path: &Path, mode: u32, text: &str) -> anyhow::Result<()> {
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(path)
        .with_context(|| format!("failed to make {}", path.display()))?;
    file.write_all(text.as_bytes())
        .and_then(|()| file.sync_all())
        .with_context(|| format!("failed to write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::signing_key::{PublicKey, SigningKey};

    #[test]
    fn a_made_key_is_private_and_signs() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("key.pem");
        let args = KeygenArgs {
            out: out.clone(),
            json: true,
        };
        keygen(&args).unwrap();
        let mode = std::fs::metadata(&out).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert!(
            keygen(&args).is_err(),
            "an existing key is never overwritten"
        );

        let key = SigningKey::read(&out).unwrap();
        let signature = key.sign(b"directive");
        let public = PublicKey::read(&dir.path().join("key.pem.pub")).unwrap();
        assert!(public.verifies(b"directive", &signature));
        assert!(!public.verifies(b"directivE", &signature));
    }
}
