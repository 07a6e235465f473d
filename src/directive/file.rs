//! Files of directives: an encoded `Directive`, or an encoded `SignedDirective`. `-` is standard
//! input and output.

use std::{
    fs::File,
    io::{self, Read, Write},
    path::Path,
};

use anyhow::{Context, bail};
use epwatch_proto::{Directive, SignedDirective, v1};
use prost::Message;

use crate::signing_key::SigningKey;

/// A file is read up to this length, which is longer than any signed directive.
const MAX_FILE_BYTES: u64 = 16 << 10;

/// Signs the given bytes unchanged.
pub(super) fn signed(key: &SigningKey, directive: Vec<u8>) -> SignedDirective {
    SignedDirective {
        key_id: key.key_id().to_owned(),
        signature: key.sign(&directive),
        directive: directive.into(),
    }
}

/// Content of a directive file.
#[derive(Debug)]
pub(super) enum Content {
    Signed(SignedDirective),
    Unsigned(Vec<u8>),
}

pub(super) fn read(path: &Path) -> anyhow::Result<Content> {
    let mut bytes = Vec::new();
    let failed = || format!("failed to read {}", path.display());
    let from: Box<dyn Read> = if path == Path::new("-") {
        Box::new(io::stdin())
    } else {
        Box::new(File::open(path).with_context(failed)?)
    };
    from.take(MAX_FILE_BYTES + 1)
        .read_to_end(&mut bytes)
        .with_context(failed)?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        bail!(
            "{} is not a directive: it has more than {MAX_FILE_BYTES} bytes",
            path.display()
        );
    }
    // The two messages never parse as each other. A directive's first field is text, and its fields from the fourth on
    // have types that a signed directive lacks.
    let signed = v1::SignedDirective::decode(bytes.as_slice())
        .ok()
        .and_then(|message| SignedDirective::try_from(message).ok());
    if let Some(signed) = signed {
        return Ok(Content::Signed(signed));
    }
    Directive::parse(&bytes).with_context(|| {
        format!(
            "{} is neither a signed nor an unsigned directive",
            path.display()
        )
    })?;
    Ok(Content::Unsigned(bytes))
}

pub(super) fn read_signed(path: &Path) -> anyhow::Result<SignedDirective> {
    match read(path)? {
        Content::Signed(signed) => Ok(signed),
        Content::Unsigned(_) => bail!(
            "{} is not signed yet; `epwatch directive sign` does that",
            path.display()
        ),
    }
}

pub(super) fn encode(signed: &SignedDirective) -> Vec<u8> {
    v1::SignedDirective::from(signed).encode_to_vec()
}

pub(super) fn write(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    let written = if path == Path::new("-") {
        io::stdout().write_all(bytes)
    } else {
        std::fs::write(path, bytes)
    };
    written.with_context(|| format!("failed to write {}", path.display()))
}
