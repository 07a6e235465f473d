//! The operator's Ed25519 key: PKCS #8 in PEM, in a file that only its owner can read. A line before
//! the PEM block names the key.

use std::{
    fs::OpenOptions,
    io::Write,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context, bail};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use epwatch_proto::{SignedDirective, hex};
use ring::{
    rand::SystemRandom,
    signature::{Ed25519KeyPair, KeyPair},
};
use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::output;

const BEGIN: &str = "-----BEGIN PRIVATE KEY-----";
const END: &str = "-----END PRIVATE KEY-----";
const KEY_ID: &str = "key-id:";
const MAX_KEY_ID_BYTES: usize = 64;

/// Makes an Ed25519 key pair for signing directives.
///
/// The private key goes into a file that only you can read; keep it off the collector. Give the public
/// key and its id to the app's SDK configuration.
#[derive(Debug, clap::Args)]
pub(super) struct KeygenArgs {
    /// Where the private key goes; an existing file is never overwritten.
    #[arg(long, value_name = "FILE", default_value = "directive-key.pem")]
    out: PathBuf,
    /// Name of the key [default: the first 16 digits of the public key's SHA-256].
    #[arg(long, value_name = "ID")]
    key_id: Option<String>,
    /// Print one JSON document.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct KeygenDocument {
    key_id: String,
    /// 32 bytes, lower-case hex.
    public_key: String,
    private_key_file: String,
}

pub(super) fn keygen(args: &KeygenArgs) -> anyhow::Result<ExitCode> {
    let pkcs8 = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new())
        .map_err(|_| anyhow::anyhow!("failed to make a key: the system gives no randomness"))?;
    let pair = Ed25519KeyPair::from_pkcs8(pkcs8.as_ref()).context("failed to make a key")?;
    let public_key = pair.public_key().as_ref();
    let key_id = match &args.key_id {
        Some(id) => checked_id(id)?.to_owned(),
        None => derived_id(public_key),
    };
    let mut text = format!("{KEY_ID} {key_id}\n{BEGIN}\n");
    let encoded = STANDARD.encode(pkcs8.as_ref());
    for line in encoded.as_bytes().chunks(64) {
        text.push_str(std::str::from_utf8(line).expect("base64 is ASCII"));
        text.push('\n');
    }
    text.push_str(END);
    text.push('\n');
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&args.out)
        .with_context(|| format!("failed to make {}", args.out.display()))?;
    file.write_all(text.as_bytes())
        .and_then(|()| file.sync_all())
        .with_context(|| format!("failed to write {}", args.out.display()))?;
    let document = KeygenDocument {
        key_id,
        public_key: hex(public_key),
        private_key_file: args.out.display().to_string(),
    };
    if args.json {
        output::json(&document)?;
    } else {
        output::line(format_args!("private key  {}", document.private_key_file))?;
        output::line(format_args!("key id       {}", document.key_id))?;
        output::line(format_args!("public key   {}", document.public_key))?;
        output::line(
            "Apps obey directives signed with it once their SDK is given key id and public key.",
        )?;
    }
    Ok(ExitCode::SUCCESS)
}

fn derived_id(public_key: &[u8]) -> String {
    hex(&Sha256::digest(public_key)[..8])
}

fn checked_id(id: &str) -> anyhow::Result<&str> {
    let fits = (1..=MAX_KEY_ID_BYTES).contains(&id.len()) && !id.chars().any(char::is_control);
    if !fits {
        bail!("a key id has 1 to {MAX_KEY_ID_BYTES} bytes without control characters");
    }
    Ok(id)
}

/// An operator's key.
pub(super) struct SigningKey {
    pair: Ed25519KeyPair,
    key_id: String,
}

impl SigningKey {
    /// Reads a file of `keygen`, or any PKCS #8 PEM file with an Ed25519 key. Errors hold nothing of its content.
    pub(super) fn read(path: &Path) -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("failed to read key file {}", path.display()))?;
        Self::parse(&text).with_context(|| format!("failed to use key file {}", path.display()))
    }

    fn parse(text: &str) -> anyhow::Result<Self> {
        let (before, rest) = text
            .split_once(BEGIN)
            .context("expected a PEM block PRIVATE KEY, as `epwatch directive keygen` makes it")?;
        let (block, _) = rest.split_once(END).context("the PEM block has no end")?;
        let digits: String = block.split_whitespace().collect();
        let pkcs8 = STANDARD.decode(digits).ok();
        let pair = pkcs8.and_then(|der| Ed25519KeyPair::from_pkcs8_maybe_unchecked(&der).ok());
        let pair = pair.context("expected an Ed25519 key in PKCS #8")?;
        let named = before
            .lines()
            .find_map(|line| line.trim().strip_prefix(KEY_ID));
        let key_id = match named {
            Some(id) => checked_id(id.trim())?.to_owned(),
            None => derived_id(pair.public_key().as_ref()),
        };
        Ok(Self { pair, key_id })
    }

    /// Signs exactly these bytes.
    pub(super) fn sign(&self, directive: Vec<u8>) -> SignedDirective {
        let signature = self.pair.sign(&directive);
        SignedDirective {
            key_id: self.key_id.clone(),
            signature: signature
                .as_ref()
                .try_into()
                .expect("an Ed25519 signature has 64 bytes"),
            directive: directive.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ring::signature::{ED25519, UnparsedPublicKey};

    /// RFC 8032, 7.1, test 1, as `openssl pkcs8` writes such a key.
    const RFC_PEM: &str = "-----BEGIN PRIVATE KEY-----
MC4CAQAwBQYDK2VwBCIEIJ1hsZ3v/VpguoRK9JLsLMREScVpezJpGXA7rAMcrn9g
-----END PRIVATE KEY-----
";
    const RFC_PUBLIC: &str = "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a";
    const RFC_SIGNATURE: &str = "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e06522490155\
        5fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b";

    #[test]
    fn a_key_of_another_tool_signs_as_the_standard_says() {
        let key = SigningKey::parse(RFC_PEM).unwrap();
        assert_eq!(hex(key.pair.public_key().as_ref()), RFC_PUBLIC);
        let signed = key.sign(Vec::new());
        assert_eq!(hex(&signed.signature), RFC_SIGNATURE);
        assert_eq!(signed.key_id, derived_id(key.pair.public_key().as_ref()));
    }

    #[test]
    fn a_made_key_is_private_and_signs() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("key.pem");
        let args = KeygenArgs {
            out: out.clone(),
            key_id: Some("ops-2026".to_owned()),
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
        let signed = key.sign(b"directive".to_vec());
        assert_eq!(signed.key_id, "ops-2026");
        let public = UnparsedPublicKey::new(&ED25519, key.pair.public_key().as_ref());
        public.verify(b"directive", &signed.signature).unwrap();
        assert!(public.verify(b"directivE", &signed.signature).is_err());
    }

    #[test]
    fn what_is_no_key_is_refused_without_being_shown() {
        for text in [
            "",
            "5ec3e7",
            "-----BEGIN PRIVATE KEY-----\n5ec3e7\n-----END PRIVATE KEY-----",
        ] {
            let error = SigningKey::parse(text).err().unwrap();
            assert!(!format!("{error:#}").contains("5ec3e7"));
        }
    }
}
