//! A segment file: 64 bytes of header, then frames. Its name is the offset of its first frame.
//!
//! | at | size | field |
//! |---|---|---|
//! | 0 | 8 | `EPWATWAL` |
//! | 8 | 4 | format version, 1, little endian like all below |
//! | 12 | 4 | reserved, zero |
//! | 16 | 16 | WAL id (the collector id) |
//! | 32 | 8 | offset of the first frame |
//! | 40 | 8 | no frame here was received before this time, microseconds since 1970 |
//! | 48 | 12 | reserved, zero |
//! | 60 | 4 | CRC-32C of bytes 0..60 |

use super::WalError;

pub(crate) const SEGMENT_HEADER_BYTES: u64 = 64;
const MAGIC: &[u8; 8] = b"EPWATWAL";
const VERSION: u32 = 1;
const SUFFIX: &str = ".wal";
/// The highest base. It is low enough for additions to an offset; at a gigabyte a second it takes 146 years to get
/// there.
const MAX_BASE: u64 = u64::MAX >> 2;

/// Returns the file name of the segment whose first frame is at `base`.
pub(crate) fn file_name(base: u64) -> String {
    format!("{base:016x}{SUFFIX}")
}

/// Returns the base in a segment's file name; `None` for any other file, and for a base that no WAL reaches.
pub(crate) fn base_of(name: &str) -> Option<u64> {
    let digits = name.strip_suffix(SUFFIX)?;
    if digits.len() != 16 {
        return None;
    }
    let base = u64::from_str_radix(digits, 16).ok();
    base.filter(|base| *base <= MAX_BASE)
}

/// Position in the file of the frame at `offset`.
pub(crate) fn file_position(base: u64, offset: u64) -> u64 {
    SEGMENT_HEADER_BYTES + (offset - base)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SegmentHeader {
    pub(crate) wal_id: [u8; 16],
    pub(crate) base: u64,
    pub(crate) not_before_us: u64,
}

impl SegmentHeader {
    pub(crate) fn encode(&self) -> [u8; 64] {
        let mut bytes = [0; 64];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[16..32].copy_from_slice(&self.wal_id);
        bytes[32..40].copy_from_slice(&self.base.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.not_before_us.to_le_bytes());
        let crc = crc32c::crc32c(&bytes[..60]);
        bytes[60..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Parses a header; `None` if it is damaged. This loses nothing, because each frame is bound to its own offset.
    ///
    /// # Errors
    /// [`WalError::Format`] for a valid header of another version, which must not be skipped as damage.
    pub(crate) fn decode(name: &str, bytes: &[u8]) -> Result<Option<Self>, WalError> {
        let Some(bytes) = bytes.first_chunk::<64>() else {
            return Ok(None);
        };
        let crc = u32::from_le_bytes(bytes[60..].try_into().expect("four bytes"));
        if &bytes[..8] != MAGIC || crc != crc32c::crc32c(&bytes[..60]) {
            return Ok(None);
        }
        let version = u32::from_le_bytes(bytes[8..12].try_into().expect("four bytes"));
        if version != VERSION {
            return Err(WalError::Format {
                file: name.to_owned(),
                version,
                known: VERSION,
            });
        }
        Ok(Some(Self {
            wal_id: bytes[16..32].try_into().expect("sixteen bytes"),
            base: u64::from_le_bytes(bytes[32..40].try_into().expect("eight bytes")),
            not_before_us: u64::from_le_bytes(bytes[40..48].try_into().expect("eight bytes")),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_and_name_round_trip() {
        let header = SegmentHeader {
            wal_id: [9; 16],
            base: 4096,
            not_before_us: 17,
        };
        let name = file_name(header.base);
        assert_eq!(base_of(&name), Some(4096));
        assert_eq!(
            SegmentHeader::decode(&name, &header.encode()).unwrap(),
            Some(header)
        );
    }

    #[test]
    fn another_version_is_refused_and_damage_is_not_an_error() {
        let mut bytes = SegmentHeader {
            wal_id: [9; 16],
            base: 0,
            not_before_us: 0,
        }
        .encode();
        bytes[8] = 2;
        assert_eq!(
            SegmentHeader::decode("x", &bytes).unwrap(),
            None,
            "checksum is broken"
        );
        let crc = crc32c::crc32c(&bytes[..60]);
        bytes[60..].copy_from_slice(&crc.to_le_bytes());
        let error = SegmentHeader::decode("x", &bytes).unwrap_err();
        assert!(
            matches!(error, WalError::Format { version: 2, .. }),
            "{error}"
        );
    }
}
