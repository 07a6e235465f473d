//! An Ed25519 key in PEM files: PKCS #8 to sign with, which only its owner can read, and SubjectPublicKeyInfo to verify
//! with. In the private key's file, a line before the PEM block names the key.

use std::{
    fmt,
    fs::OpenOptions,
    io::Write,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context, bail};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use epwatch_proto::hex;
use ring::{
    rand::SystemRandom,
    signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey},
};
use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::{
    input_file::{self, FilePurpose},
    output,
};

const PRIVATE: &str = "PRIVATE KEY";
const PUBLIC: &str = "PUBLIC KEY";
const KEY_ID: &str = "key-id:";
/// The line before the PEM block of a key that only signs evidence.
const EVIDENCE_ONLY: &str = "key-use: evidence";
const MAX_KEY_ID_BYTES: usize = 64;
/// The bytes before the 32 bytes of an Ed25519 key in DER (RFC 8410, section 4).
const SPKI: [u8; 12] = [48, 42, 48, 5, 6, 3, 43, 101, 112, 3, 33, 0];

/// The private half.
pub(crate) struct SigningKey {
    pair: Ed25519KeyPair,
    key_id: String,
    key_use: KeyUse,
}

/// Messages that a key may sign.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KeyUse {
    Directives,
    Evidence,
    /// The file does not say, as a file of another tool.
    Unnamed,
}

/// A new key pair, without its private half.
#[derive(Debug, Serialize)]
pub(crate) struct KeyPairDocument {
    /// The first 16 digits of the public key's SHA-256.
    key_id: String,
    /// The id in evidence, which `epwatch verify` prints: 64 digits, as securesystemslib makes it.
    evidence_id: String,
    /// The public key's 32 bytes in lower-case hex.
    public_key: String,
    private_key_file: String,
    public_key_file: String,
}

impl fmt::Display for KeyPairDocument {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "private key  {}", self.private_key_file)?;
        writeln!(f, "key id       {}", self.key_id)?;
        writeln!(f, "evidence id  {}", self.evidence_id)?;
        writeln!(f, "public key   {}", self.public_key)?;
        write!(f, "as PEM       {}", self.public_key_file)
    }
}

/// Makes a key pair in two files, and prints it: as one JSON document, or in words with the next step.
pub(crate) fn create_and_print(
    out: &Path,
    key_use: KeyUse,
    json: bool,
    next_step: &str,
) -> anyhow::Result<ExitCode> {
    let document = create_pair(out, key_use)?;
    if json {
        output::json(&document)?;
    } else {
        output::line(&document)?;
        output::line(next_step)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Makes a key pair in two files; existing ones are never overwritten.
pub(crate) fn create_pair(out: &Path, key_use: KeyUse) -> anyhow::Result<KeyPairDocument> {
    let (mut text, key) = made()?;
    if key_use == KeyUse::Evidence {
        text = format!("{EVIDENCE_ONLY}\n{text}");
    }
    let public_key_file = PathBuf::from(format!("{}.pub", out.display()));
    create(out, 0o600, &text)?;
    create(&public_key_file, 0o644, &key.public().pem())?;
    Ok(KeyPairDocument {
        key_id: key.key_id().to_owned(),
        evidence_id: key.public().evidence_id(),
        public_key: hex(&key.public().0),
        private_key_file: out.display().to_string(),
        public_key_file: public_key_file.display().to_string(),
    })
}

/// Writes a new file; an existing file is never overwritten.
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

/// The public half.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PublicKey(pub(crate) [u8; 32]);

/// Makes a key pair. Also returns the text of its private file.
pub(crate) fn made() -> anyhow::Result<(String, SigningKey)> {
    let pkcs8 = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new())
        .map_err(|_| anyhow::anyhow!("failed to make a key: the system gives no randomness"))?;
    let pair = Ed25519KeyPair::from_pkcs8(pkcs8.as_ref()).context("failed to make a key")?;
    let key_id = derived_id(&pair);
    let text = format!("{KEY_ID} {key_id}\n{}", pem(PRIVATE, pkcs8.as_ref()));
    let key_use = KeyUse::Directives;
    Ok((
        text,
        SigningKey {
            pair,
            key_id,
            key_use,
        },
    ))
}

impl SigningKey {
    /// Reads a file of `keygen`, or any PKCS #8 PEM file with an Ed25519 key. Errors never contain any of its content.
    pub(crate) fn read(path: &Path) -> anyhow::Result<Self> {
        let text = input_file::read_text(path, FilePurpose::Secret)
            .map_err(anyhow::Error::msg)
            .with_context(|| {
                let path = path.display();
                format!("failed to read key file {path}; `epwatch gate keygen` makes one for evidence, `epwatch directive keygen` one for directives")
            })?;
        epwatch_server::warn_of_readers(path, "private key");
        Self::parse(&text).with_context(|| format!("failed to use key file {}", path.display()))
    }

    /// Reads like [`Self::read`] a key that may sign directives.
    pub(crate) fn read_for_directives(path: &Path) -> anyhow::Result<Self> {
        let key = Self::read(path)?;
        if key.key_use == KeyUse::Evidence {
            let path = path.display();
            bail!(
                "failed to use key file {path}: `epwatch gate keygen` made it for evidence alone; `epwatch directive keygen` makes one for directives"
            );
        }
        Ok(key)
    }

    /// Reads like [`Self::read`] a key that may sign evidence. A pipeline must not have the key of directives.
    pub(crate) fn read_for_evidence(path: &Path) -> anyhow::Result<Self> {
        let key = Self::read(path)?;
        if key.key_use == KeyUse::Directives {
            let path = path.display();
            bail!(
                "failed to use key file {path}: it signs directives, which turn NPUs off; `epwatch gate keygen` makes one for evidence"
            );
        }
        Ok(key)
    }

    fn parse(text: &str) -> anyhow::Result<Self> {
        let (before, der) = der(PRIVATE, text)
            .context("expected a PEM block PRIVATE KEY, as `epwatch directive keygen` makes it")?;
        let pair = der.and_then(|der| Ed25519KeyPair::from_pkcs8_maybe_unchecked(&der).ok());
        let pair = pair.context("expected an Ed25519 key in PKCS #8")?;
        let named = before
            .lines()
            .find_map(|line| line.trim().strip_prefix(KEY_ID));
        let key_id = match named {
            Some(id) => checked_id(id.trim())?.to_owned(),
            None => derived_id(&pair),
        };
        let is_evidence = before.lines().any(|line| line.trim() == EVIDENCE_ONLY);
        let key_use = match (is_evidence, named) {
            (true, _) => KeyUse::Evidence,
            (false, Some(_)) => KeyUse::Directives,
            (false, None) => KeyUse::Unnamed,
        };
        Ok(Self {
            pair,
            key_id,
            key_use,
        })
    }

    /// Name of the key, for the receivers of directives.
    pub(crate) fn key_id(&self) -> &str {
        &self.key_id
    }

    pub(crate) fn public(&self) -> PublicKey {
        PublicKey(
            self.pair
                .public_key()
                .as_ref()
                .try_into()
                .expect("an Ed25519 key has 32 bytes"),
        )
    }

    /// Signs the given bytes unchanged.
    pub(crate) fn sign(&self, bytes: &[u8]) -> [u8; 64] {
        let signature = self.pair.sign(bytes);
        signature
            .as_ref()
            .try_into()
            .expect("an Ed25519 signature has 64 bytes")
    }
}

impl PublicKey {
    /// Returns the key's id in evidence, as securesystemslib computes it: the SHA-256 of its canonical JSON.
    pub(crate) fn evidence_id(&self) -> String {
        let public = hex(&self.0);
        let json = format!(
            r#"{{"keytype":"ed25519","keyval":{{"public":"{public}"}},"scheme":"ed25519"}}"#
        );
        hex(&Sha256::digest(json))
    }

    /// Returns the first digits of the key's SHA-256, the id in `keygen` and directives.
    pub(crate) fn short_id(&self) -> String {
        id_of(&self.0)
    }

    /// Reads a PEM file, as `keygen` and `openssl pkey -pubout` write it.
    pub(crate) fn read(path: &Path) -> anyhow::Result<Self> {
        let text = input_file::read_text(path, FilePurpose::Document)
            .map_err(anyhow::Error::msg)
            .with_context(|| format!("failed to read key file {}", path.display()))?;
        let found = der(PUBLIC, &text).and_then(|(_, der)| der);
        let key = found.and_then(|der| der.strip_prefix(&SPKI)?.try_into().ok());
        key.map(Self).with_context(|| {
            format!(
                "failed to use key file {}: expected a PEM block PUBLIC KEY with an Ed25519 key, as `epwatch directive \
                 keygen` writes it into its file .pub",
                path.display()
            )
        })
    }

    pub(crate) fn pem(&self) -> String {
        pem(PUBLIC, &[&SPKI[..], &self.0].concat())
    }

    pub(crate) fn verifies(&self, bytes: &[u8], signature: &[u8]) -> bool {
        UnparsedPublicKey::new(&ED25519, &self.0)
            .verify(bytes, signature)
            .is_ok()
    }
}

fn pem(label: &str, der: &[u8]) -> String {
    let encoded = STANDARD.encode(der);
    let mut text = format!("-----BEGIN {label}-----\n");
    for line in encoded.as_bytes().chunks(64) {
        text.push_str(std::str::from_utf8(line).expect("base64 is ASCII"));
        text.push('\n');
    }
    text + &format!("-----END {label}-----\n")
}

/// Returns the text before the PEM block and its bytes, which are `None` if they are not base64.
fn der<'a>(label: &str, text: &'a str) -> Option<(&'a str, Option<Vec<u8>>)> {
    let (before, rest) = text.split_once(&format!("-----BEGIN {label}-----"))?;
    let (block, _) = rest.split_once(&format!("-----END {label}-----"))?;
    let digits: String = block.split_whitespace().collect();
    Some((before, STANDARD.decode(digits).ok()))
}

fn derived_id(pair: &Ed25519KeyPair) -> String {
    id_of(pair.public_key().as_ref())
}

/// The first 16 digits of a public key's SHA-256.
fn id_of(public: &[u8]) -> String {
    hex(&Sha256::digest(public)[..8])
}

fn checked_id(id: &str) -> anyhow::Result<&str> {
    let fits = (1..=MAX_KEY_ID_BYTES).contains(&id.len()) && !id.chars().any(char::is_control);
    if !fits {
        bail!("a key id has 1 to {MAX_KEY_ID_BYTES} bytes without control characters");
    }
    Ok(id)
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert_eq!(hex(&key.public().0), RFC_PUBLIC);
        assert_eq!(hex(&key.sign(b"")), RFC_SIGNATURE);
        assert_eq!(key.key_id(), derived_id(&key.pair));
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
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.pub");
        let (private, key) = made().unwrap();
        for text in [String::new(), private, pem(PUBLIC, &key.public().0)] {
            std::fs::write(&path, text).unwrap();
            let error = PublicKey::read(&path).unwrap_err();
            assert!(error.to_string().contains("PUBLIC KEY"), "{error:#}");
        }
    }
}
