//! File of held directives.
//!
//! `DIR/directives` is 8 bytes of magic, the CRC-32C (little-endian) of the rest, and an encoded message: the
//! directives as they arrived, with signatures, and the server's time at the writing. It is replaced atomically under
//! the folder's lock. Signatures are verified again at each reading, so write access to the file does not suffice to
//! make a directive. Any other file counts as one malformed directive and holds none; the collector repeats
//! directives that the device no longer names.

use std::{io, path::Path};

use epwatch_proto::v1;
use prost::Message;

use super::{
    clock::Anchor,
    held::{HeldDirective, MAX_HELD},
};
use crate::folder::files;

const MAGIC: &[u8; 8] = b"epwdir1\n";
/// Far above the size of a full file.
const MAX_FILE_BYTES: u64 = 1 << 20;

#[derive(Clone, PartialEq, Message)]
struct FileMessage {
    #[prost(message, repeated, tag = "1")]
    held: Vec<StoredEntry>,
    #[prost(int64, tag = "2")]
    server_unix_ms: i64,
    #[prost(uint64, optional, tag = "3")]
    uptime_ms: Option<u64>,
    #[prost(string, tag = "4")]
    boot_id: String,
}

#[derive(Clone, PartialEq, Message)]
struct StoredEntry {
    #[prost(message, optional, tag = "1")]
    signed: Option<v1::SignedDirective>,
    #[prost(int64, tag = "2")]
    until_unix_ms: i64,
}

/// Content of a file, not verified yet.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct StoredDirectives {
    /// Directives, and when each is forgotten.
    pub(crate) held: Vec<(v1::SignedDirective, i64)>,
    pub(crate) anchor: Anchor,
}

impl StoredDirectives {
    pub(crate) fn new(held: &[HeldDirective], anchor: Anchor) -> Self {
        let held = held.iter().map(|h| ((&h.signed).into(), h.until_unix_ms));
        Self {
            held: held.collect(),
            anchor,
        }
    }

    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let held = self.held.iter().map(|(signed, until_unix_ms)| StoredEntry {
            signed: Some(signed.clone()),
            until_unix_ms: *until_unix_ms,
        });
        let message = FileMessage {
            held: held.collect(),
            server_unix_ms: self.anchor.unix_ms,
            uptime_ms: self.anchor.uptime_ms,
            boot_id: self.anchor.boot_id.clone(),
        }
        .encode_to_vec();
        let mut bytes = MAGIC.to_vec();
        bytes.extend(crc32c::crc32c(&message).to_le_bytes());
        bytes.extend(message);
        bytes
    }

    /// `None` unless it is a whole file of ours.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let rest = bytes.strip_prefix(MAGIC)?;
        let (checksum, message) = rest.split_first_chunk::<4>()?;
        if u32::from_le_bytes(*checksum) != crc32c::crc32c(message) {
            return None;
        }
        let file = FileMessage::decode(message).ok()?;
        if file.held.len() > MAX_HELD || file.boot_id.len() > 64 {
            return None;
        }
        let held = file.held.into_iter();
        let held = held.map(|entry| Some((entry.signed?, entry.until_unix_ms)));
        Some(Self {
            held: held.collect::<Option<_>>()?,
            anchor: Anchor {
                unix_ms: file.server_unix_ms,
                uptime_ms: file.uptime_ms,
                boot_id: file.boot_id,
            },
        })
    }

    /// Reads the file; `Ok(Ok(None))` if there is none.
    ///
    /// # Errors
    /// If it cannot be read now, for example because the app has too many open files.
    pub(crate) fn read(path: &Path) -> io::Result<Result<Option<Self>, UnreadableFile>> {
        match files::read_bounded(path, MAX_FILE_BYTES) {
            Ok(Some(bytes)) => Ok(Self::parse(&bytes).map(Some).ok_or(UnreadableFile)),
            Ok(None) => Ok(Ok(None)),
            Err(error) if error.kind() == io::ErrorKind::FileTooLarge => Ok(Err(UnreadableFile)),
            Err(error) => Err(error),
        }
    }
}

/// The file exists, but is not ours or was cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct UnreadableFile;
