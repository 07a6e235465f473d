//! One record on disk: a 24-byte header, the payload, zeros up to the next multiple of 8.
//!
//! | at | size | field |
//! |---|---|---|
//! | 0 | 4 | payload length, 1 to [`MAX_PAYLOAD_BYTES`], little endian like all below |
//! | 4 | 4 | CRC-32C of the payload |
//! | 8 | 8 | receive time, microseconds since 1970 |
//! | 16 | 4 | reserved, zero |
//! | 20 | 4 | CRC-32C of WAL id, record offset and bytes 0..20 |
//!
//! The header's checksum binds a record to its WAL and its offset. So neither old content of a recycled segment nor a
//! crafted payload is ever taken for a record. After damage, the search for the next record costs one small checksum
//! per 8 bytes.

use std::ops::Range;

/// Bytes before each payload.
pub(crate) const HEADER_BYTES: usize = 24;

/// The longest payload of one record. Requests are far smaller; the limit bounds the allocation if a length is damaged.
pub(crate) const MAX_PAYLOAD_BYTES: usize = 32 << 20;

/// A position in the WAL: bytes of frames since its start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WalOffset(pub u64);

impl std::fmt::Display for WalOffset {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(&self.0, f)
    }
}

const ALIGNMENT: usize = 8;

/// Binds records to one WAL: a checksum over its random id. Each header's checksum continues it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FrameKey(u32);

impl FrameKey {
    pub(crate) fn new(wal_id: &[u8; 16]) -> Self {
        Self(crc32c::crc32c(wal_id))
    }

    fn header_crc(self, offset: u64, header: &[u8]) -> u32 {
        let with_offset = crc32c::crc32c_append(self.0, &offset.to_le_bytes());
        crc32c::crc32c_append(with_offset, header)
    }
}

/// Bytes that a payload of `len` takes in the WAL.
pub(crate) const fn frame_bytes(len: usize) -> usize {
    (HEADER_BYTES + len).next_multiple_of(ALIGNMENT)
}

/// Appends one frame without offset and time, which the writer thread adds. The payload's checksum is computed here, on
/// the caller's thread.
///
/// The payload's length is in `1..=MAX_PAYLOAD_BYTES`: [`super::Batch::push`] checks it.
pub(crate) fn push_unsealed(out: &mut Vec<u8>, parts: &[&[u8]]) {
    let start = out.len();
    out.resize(start + HEADER_BYTES, 0);
    let mut crc = 0;
    for part in parts {
        crc = crc32c::crc32c_append(crc, part);
        out.extend_from_slice(part);
    }
    let len = u32::try_from(out.len() - start - HEADER_BYTES).expect("payloads are bounded");
    out[start..start + 4].copy_from_slice(&len.to_le_bytes());
    out[start + 4..start + 8].copy_from_slice(&crc.to_le_bytes());
    let end = (out.len() - start).next_multiple_of(ALIGNMENT) + start;
    out.resize(end, 0);
}

/// Adds the receive time and the header's checksum to each frame; the first frame is at `offset`. Returns the number of
/// frames.
pub(crate) fn seal(key: FrameKey, frames: &mut [u8], offset: u64, received_at_us: u64) -> u64 {
    let mut at = 0;
    let mut n_frames = 0;
    while at < frames.len() {
        let header = &mut frames[at..at + HEADER_BYTES];
        header[8..16].copy_from_slice(&received_at_us.to_le_bytes());
        let crc = key.header_crc(offset + at as u64, &header[..20]);
        header[20..24].copy_from_slice(&crc.to_le_bytes());
        at += frame_bytes(read_u32(header, 0) as usize);
        n_frames += 1;
    }
    n_frames
}

/// Content at one position of the WAL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Parsed {
    Record {
        received_at_us: u64,
        payload: Range<usize>,
        frame_bytes: usize,
    },
    /// A valid header whose frame is longer than the given bytes.
    NeedMore { frame_bytes: usize },
    /// A valid header over a payload with a wrong checksum.
    BadPayload { frame_bytes: usize },
    /// No header of this WAL and position.
    NoHeader,
}

/// Parses the start of `bytes`, which is at `offset` of the WAL.
pub(crate) fn parse(key: FrameKey, bytes: &[u8], offset: u64) -> Parsed {
    let Some(header) = bytes.get(..HEADER_BYTES) else {
        return Parsed::NoHeader;
    };
    let len = read_u32(header, 0) as usize;
    if len == 0 || len > MAX_PAYLOAD_BYTES {
        return Parsed::NoHeader;
    }
    if key.header_crc(offset, &header[..20]) != read_u32(header, 20) {
        return Parsed::NoHeader;
    }
    let frame_bytes = frame_bytes(len);
    if bytes.len() < frame_bytes {
        return Parsed::NeedMore { frame_bytes };
    }
    let payload = HEADER_BYTES..HEADER_BYTES + len;
    if crc32c::crc32c(&bytes[payload.clone()]) != read_u32(header, 4) {
        return Parsed::BadPayload { frame_bytes };
    }
    let received_at_us = u64::from_le_bytes(header[8..16].try_into().expect("eight bytes"));
    Parsed::Record {
        received_at_us,
        payload,
        frame_bytes,
    }
}

/// Finds the first valid header in `bytes` at or after `from`, a multiple of 8. `bytes` begin at `offset` of the WAL.
/// `Err` has the index up to which no header was found.
pub(crate) fn find_header(
    key: FrameKey,
    bytes: &[u8],
    offset: u64,
    from: usize,
) -> Result<usize, usize> {
    let mut at = from;
    while at + HEADER_BYTES <= bytes.len() {
        if parse(key, &bytes[at..], offset + at as u64) != Parsed::NoHeader {
            return Ok(at);
        }
        at += ALIGNMENT;
    }
    Err(at)
}

fn read_u32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn key() -> FrameKey {
        FrameKey::new(&[7; 16])
    }

    fn sealed(payloads: &[Vec<u8>], offset: u64) -> Vec<u8> {
        let mut out = Vec::new();
        for payload in payloads {
            push_unsealed(&mut out, &[payload]);
        }
        seal(key(), &mut out, offset, 42);
        out
    }

    proptest! {
        #[test]
        fn frames_round_trip(
            payloads in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..200), 1..20),
            offset in 0_u64..1 << 40,
        ) {
            let bytes = sealed(&payloads, offset);
            let mut at = 0;
            for expected in &payloads {
                let Parsed::Record { received_at_us, payload, frame_bytes } =
                    parse(key(), &bytes[at..], offset + at as u64)
                else {
                    panic!("no record at {at}");
                };
                prop_assert_eq!(received_at_us, 42);
                prop_assert_eq!(&bytes[at..][payload], &expected[..]);
                at += frame_bytes;
            }
            prop_assert_eq!(at, bytes.len());
        }

        #[test]
        fn any_changed_bit_is_noticed(
            payload in prop::collection::vec(any::<u8>(), 1..64),
            bit in any::<prop::sample::Index>(),
        ) {
            let mut bytes = sealed(std::slice::from_ref(&payload), 64);
            let bit = bit.index((HEADER_BYTES + payload.len()) * 8);
            bytes[bit / 8] ^= 1 << (bit % 8);
            let parsed = parse(key(), &bytes, 64);
            let is_record = matches!(parsed, Parsed::Record { .. });
            prop_assert!(!is_record);
        }

        #[test]
        fn hostile_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            parse(key(), &bytes, 0);
            let _ = find_header(key(), &bytes, 0, 0);
        }
    }

    #[test]
    fn a_record_at_another_offset_or_of_another_wal_is_no_record() {
        let bytes = sealed(&[b"report".to_vec()], 128);
        assert_eq!(parse(key(), &bytes, 136), Parsed::NoHeader);
        assert_eq!(
            parse(FrameKey::new(&[8; 16]), &bytes, 128),
            Parsed::NoHeader
        );
    }

    #[test]
    fn the_next_record_after_damage_is_found() {
        let mut bytes = sealed(&[b"first".to_vec(), b"second".to_vec()], 0);
        bytes[0] ^= 0xff;
        let at = find_header(key(), &bytes, 0, 0).expect("the second is whole");
        assert_eq!(at, frame_bytes(5));
    }
}
