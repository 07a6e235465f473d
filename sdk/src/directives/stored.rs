//! File of held directives.
//!
//! `DIR/directives` is a [`message_file`]: the directives as they arrived, with signatures, and the server's time when
//! the file was written. It is replaced atomically under the folder's lock. Signatures are verified again at each
//! reading, so write access to the file is not enough to make up a directive. Any other file counts as one malformed
//! directive and holds none; the collector repeats directives that the device no longer names.

use std::{io, path::Path};

use epwatch_proto::v1;
use prost::Message;

use super::{
    clock::Anchor,
    held::{HeldDirective, MAX_HELD},
};
use crate::folder::{
    files,
    message_file::{self, Magic},
};

const MAGIC: &Magic = b"epwdir1\n";
/// Far above the size of a full file.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// Content of a file, not verified yet.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct StoredDirectives {
    #[prost(message, repeated, tag = "1")]
    pub(crate) held: Vec<StoredEntry>,
    #[prost(int64, tag = "2")]
    pub(crate) server_unix_ms: i64,
    #[prost(uint64, optional, tag = "3")]
    uptime_ms: Option<u64>,
    #[prost(string, tag = "4")]
    boot_id: String,
}

/// A directive, and when it is forgotten.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct StoredEntry {
    #[prost(message, required, tag = "1")]
    pub(crate) signed: v1::SignedDirective,
    #[prost(int64, tag = "2")]
    pub(crate) until_unix_ms: i64,
}

impl StoredDirectives {
    pub(crate) fn new(held: &[HeldDirective], anchor: Anchor) -> Self {
        let held = held.iter().map(|h| StoredEntry {
            signed: (&h.signed).into(),
            until_unix_ms: h.until_unix_ms,
        });
        Self {
            held: held.collect(),
            server_unix_ms: anchor.unix_ms,
            uptime_ms: anchor.uptime_ms,
            boot_id: anchor.boot_id,
        }
    }

    pub(crate) fn anchor(&self) -> Anchor {
        Anchor {
            unix_ms: self.server_unix_ms,
            uptime_ms: self.uptime_ms,
            boot_id: self.boot_id.clone(),
        }
    }

    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        message_file::to_bytes(MAGIC, self)
    }

    /// `None` unless it is a whole file that the SDK wrote.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let file: Self = message_file::parse(MAGIC, bytes)?;
        let is_ours = file.held.len() <= MAX_HELD && file.boot_id.len() <= 64;
        is_ours.then_some(file)
    }

    /// Reads the file; `Ok(Ok(None))` if there is none.
    ///
    /// # Errors
    /// Fails if the file cannot be read now, for example because the app has too many open files.
    pub(crate) fn read(path: &Path) -> io::Result<Result<Option<Self>, UnreadableFile>> {
        let bytes = files::read_ours(path, MAX_FILE_BYTES)?;
        let parsed = bytes.map(|bytes| Self::parse(&bytes).ok_or(UnreadableFile));
        Ok(parsed.transpose())
    }
}

/// The file exists, but the SDK did not write it, or it was cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct UnreadableFile;
