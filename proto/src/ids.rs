//! Ids of installations, streams, reports, sessions and models. The text form of an installation is shortened,
//! because logs hold no device identifiers.

use std::{fmt, num::NonZeroU64};

use serde::{Serialize, Serializer};
use sha2::{Digest, Sha256};

use crate::{
    error::ParseError,
    message::{Checked, Exact, Kind, MAX_COUNT, message},
    text::{hex, unhex},
    v1,
    wire::Value,
};

pub(crate) const MAX_DIRECTIVE_ID_BYTES: usize = 64;

/// One installation of an app: 128 bits of SHA-256 over a secret that it never shows.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct InstallationId([u8; 16]);

impl InstallationId {
    /// The id that belongs to a secret. Who presents the secret owns the installation.
    pub fn from_secret(secret: &[u8]) -> Self {
        let hash = Sha256::digest(secret);
        let mut id = [0; 16];
        id.copy_from_slice(&hash[..16]);
        Self(id)
    }

    /// An id from its bytes.
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// The bytes, for storage and the wire.
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }

    /// The whole id in hexadecimal, for storage. Logs use `Display` instead.
    pub fn to_hex(&self) -> String {
        hex(&self.0)
    }
}

impl From<[u8; 16]> for InstallationId {
    fn from(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }
}

impl AsRef<[u8]> for InstallationId {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// First two bytes only: enough to tell lines of a log apart, too little to name a device.
impl fmt::Display for InstallationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}…", hex(&self.0[..2]))
    }
}

impl fmt::Debug for InstallationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "InstallationId({self})")
    }
}

/// One start of a process that reports: 64 random bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StreamId(pub u64);

impl StreamId {
    const fn new(value: u64) -> Option<Self> {
        Some(Self(value))
    }

    const fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for StreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// Position of a report in its stream: starts at 1, grows by one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Sequence(NonZeroU64);

impl Sequence {
    /// The first report of a stream.
    pub const FIRST: Self = Self(NonZeroU64::MIN);

    /// `None` for zero and beyond the bound of counters.
    pub fn new(value: u64) -> Option<Self> {
        NonZeroU64::new(value.min(MAX_COUNT))
            .filter(|least| least.get() == value)
            .map(Self)
    }

    /// Returns the number on the wire.
    pub const fn get(self) -> u64 {
        self.0.get()
    }

    /// The sequence of the stream's next report; `None` where numbers end.
    pub fn next(self) -> Option<Self> {
        Self::new(self.get() + 1)
    }
}

impl fmt::Display for Sequence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// One ORT session: random, not zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionUid(NonZeroU64);

impl SessionUid {
    /// `None` for zero.
    pub fn new(value: u64) -> Option<Self> {
        NonZeroU64::new(value).map(Self)
    }

    /// Returns the number on the wire.
    pub const fn get(self) -> u64 {
        self.0.get()
    }
}

impl fmt::Display for SessionUid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// SHA-256 of a model file or a manifest; hexadecimal as text.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ModelHash([u8; 32]);

impl ModelHash {
    /// The hash of a file's content.
    pub fn of(content: &[u8]) -> Self {
        Self(Sha256::digest(content).into())
    }

    /// A hash from its bytes.
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Reads 64 hexadecimal digits.
    pub fn from_hex(text: &str) -> Option<Self> {
        unhex(text)?.try_into().ok().map(Self)
    }

    /// Returns the 32 bytes of the hash.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl From<[u8; 32]> for ModelHash {
    fn from(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }
}

impl AsRef<[u8]> for ModelHash {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Display for ModelHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex(&self.0))
    }
}

impl fmt::Debug for ModelHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ModelHash({self})")
    }
}

impl Serialize for ModelHash {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

/// Key of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ReportKey {
    /// The reporting installation.
    pub installation: InstallationId,
    /// The start of the process that made the report.
    pub stream: StreamId,
    /// Position of the report in the stream.
    pub sequence: Sequence,
}

impl ReportKey {
    /// Reads the key of an encoded report that may be malformed elsewhere.
    ///
    /// `None` if the bytes cannot be read up to the key. Reads no further than field 1.
    pub fn peek(report: &[u8]) -> Option<Self> {
        use prost::{Message, encoding};
        let mut rest = report;
        while !rest.is_empty() {
            let (tag, wire_type) = encoding::decode_key(&mut rest).ok()?;
            if tag == 1 && wire_type == encoding::WireType::LengthDelimited {
                let len = usize::try_from(encoding::decode_varint(&mut rest).ok()?).ok()?;
                let key = v1::ReportKey::decode(rest.get(..len)?).ok()?;
                return Self::try_from(key).ok();
            }
            let context = encoding::DecodeContext::default();
            encoding::skip_field(wire_type, tag, &mut rest, context).ok()?;
        }
        None
    }
}

impl fmt::Display for ReportKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.installation, self.stream, self.sequence)
    }
}

message! {
    mod key_fields: ReportKey = v1::ReportKey {
        1 installation_id as installation: Exact<InstallationId, 16>,
        2 stream_id as stream: StreamId,
        3 sequence as sequence: Sequence,
    }
    keeps Self = |seen| Some(Self {
        installation: InstallationId(seen.installation_id?),
        stream: StreamId(seen.stream_id),
        sequence: Sequence::new(seen.sequence)?,
    });
}

/// Declares the kinds of ids that are numbers: the reader on the wire, and the text of the bound.
macro_rules! numbers {
    ($( $id:ident as $read:ident, $expected:literal; )+) => { $(
        impl Kind for $id {
            type Wire = u64;
            type Parsed = Self;

            fn parse(field: &str, value: u64) -> Result<Self, ParseError> {
                Self::new(value).ok_or_else(|| ParseError::malformed(field, $expected, value))
            }

            fn encode(value: &Self) -> u64 {
                value.get()
            }
        }

        impl Checked for $id {
            type Seen<'a> = u64;

            #[inline]
            fn see<'a>(seen: &mut u64, value: Value<'a>) -> Option<()> {
                *seen = value.$read()?;
                Some(())
            }

            #[inline]
            fn is_there(seen: &u64) -> bool {
                Self::new(*seen).is_some()
            }
        }
    )+ };
}

numbers! {
    StreamId as fixed64, "a number";
    Sequence as u64, "1 or more";
    SessionUid as fixed64, "a session's uid";
}

#[cfg(test)]
mod tests {
    use super::*;
    use prost::Message;

    /// `printf 'secret' | sha256sum`
    #[test]
    fn installation_is_the_cut_hash_of_its_secret() {
        let id = InstallationId::from_secret(b"secret");
        assert_eq!(id.to_hex(), "2bb80d537b1da3e38bd30361aa855686");
    }

    #[test]
    fn text_of_an_installation_names_no_device() {
        let id = InstallationId::from_secret(b"secret");
        assert_eq!(format!("{id} {id:?}"), "2bb8… InstallationId(2bb8…)");
    }

    #[test]
    fn key_is_read_from_a_report_that_is_broken_behind_it() {
        let key = ReportKey {
            installation: InstallationId::from_secret(b"x"),
            stream: StreamId(7),
            sequence: Sequence::FIRST,
        };
        let report = v1::Report {
            key: Some((&key).into()),
            ..Default::default()
        };
        let mut bytes = report.encode_to_vec();
        bytes.extend([0x62, 0xff, 0xff]);
        assert!(v1::Report::decode(&bytes[..]).is_err());
        assert_eq!(ReportKey::peek(&bytes), Some(key));
        assert_eq!(ReportKey::peek(&bytes[..5]), None);
        assert_eq!(ReportKey::peek(&[]), None);
    }

    #[test]
    fn hash_reads_its_own_text() {
        let hash = ModelHash::of(b"model");
        assert_eq!(ModelHash::from_hex(&hash.to_string()), Some(hash));
        assert_eq!(ModelHash::from_hex("12"), None);
        assert_eq!(ModelHash::from_hex(&"g".repeat(64)), None);
    }
}
