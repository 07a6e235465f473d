//! ClickHouse's native compressed frames, as a client sends them with `decompress=1`.
//!
//! A frame begins with a 16-byte CityHash128 (version 1.0.2) of the rest. A method byte follows, then the compressed
//! size with this 9-byte header, and the raw size, both u32 little-endian. The payload is last.

use bytes::{Buf, Bytes, BytesMut};

const CHECKSUM_BYTES: usize = 16;
const HEADER_BYTES: usize = 9;

/// The largest frame, so that a hostile size does not reserve memory. The `clickhouse` crate sends frames of 256 KiB.
const MAX_FRAME_BYTES: usize = 64 << 20;

const METHOD_LZ4: u8 = 0x82;
const METHOD_NONE: u8 = 0x02;

/// Why a frame cannot be read; the text carries ClickHouse's code.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FrameError {
    #[error(
        "Code: 271. DB::Exception: frame of {compressed} bytes ({raw} raw) is outside \
         {HEADER_BYTES}..={MAX_FRAME_BYTES}. (CANNOT_DECOMPRESS)"
    )]
    Size { compressed: usize, raw: usize },
    #[error("Code: 40. DB::Exception: frame does not match its checksum. (CHECKSUM_DOESNT_MATCH)")]
    Checksum,
    #[error(
        "Code: 89. DB::Exception: frame has method {0:#04x}, expected LZ4 (0x82) or none \
         (0x02). (UNKNOWN_COMPRESSION_METHOD)"
    )]
    Method(u8),
    #[error("Code: 271. DB::Exception: frame is not a valid LZ4 block. (CANNOT_DECOMPRESS)")]
    Lz4,
    #[error(
        "Code: 33. DB::Exception: the body ends inside a compressed frame. (CANNOT_READ_ALL_DATA)"
    )]
    Torn,
}

/// Turns a body that arrives in pieces into raw bytes, frame by frame.
#[derive(Debug, Default)]
pub(crate) struct FrameDecoder {
    buffer: BytesMut,
}

impl FrameDecoder {
    pub(crate) fn push(&mut self, piece: &[u8]) {
        self.buffer.extend_from_slice(piece);
    }

    /// Returns the next whole frame's raw bytes, or `None` until more has arrived.
    pub(crate) fn next_frame(&mut self) -> Result<Option<Bytes>, FrameError> {
        let Some(head) = self.buffer.get(..CHECKSUM_BYTES + HEADER_BYTES) else {
            return Ok(None);
        };
        let method = head[CHECKSUM_BYTES];
        let size_at = |at: usize| {
            let bytes = head[at..at + 4].try_into().expect("four bytes");
            usize::try_from(u32::from_le_bytes(bytes)).unwrap_or(usize::MAX)
        };
        let (compressed, raw) = (size_at(CHECKSUM_BYTES + 1), size_at(CHECKSUM_BYTES + 5));
        if !(HEADER_BYTES..=MAX_FRAME_BYTES).contains(&compressed) || raw > MAX_FRAME_BYTES {
            return Err(FrameError::Size { compressed, raw });
        }
        let Some(summed) = self.buffer.get(CHECKSUM_BYTES..CHECKSUM_BYTES + compressed) else {
            return Ok(None);
        };
        if checksum(summed) != self.buffer[..CHECKSUM_BYTES] {
            return Err(FrameError::Checksum);
        }
        let payload = &summed[HEADER_BYTES..];
        let bytes = match method {
            METHOD_LZ4 => lz4_flex::block::decompress(payload, raw).map_err(|_| FrameError::Lz4)?,
            METHOD_NONE => payload.to_vec(),
            other => return Err(FrameError::Method(other)),
        };
        self.buffer.advance(CHECKSUM_BYTES + compressed);
        Ok(Some(Bytes::from(bytes)))
    }

    /// Returns whether the body ended at the end of a frame.
    pub(crate) fn finish(&self) -> Result<(), FrameError> {
        if self.buffer.is_empty() {
            Ok(())
        } else {
            Err(FrameError::Torn)
        }
    }
}

fn checksum(bytes: &[u8]) -> [u8; CHECKSUM_BYTES] {
    // ClickHouse has the two halves in the opposite order of this crate.
    cityhash_rs::cityhash_102_128(bytes)
        .rotate_right(64)
        .to_le_bytes()
}

/// Returns a frame with a correct checksum around any content.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn sealed(method: u8, raw: u32, payload: &[u8]) -> Vec<u8> {
    let compressed = u32::try_from(payload.len() + HEADER_BYTES).expect("a small payload");
    let mut summed = vec![method];
    summed.extend(compressed.to_le_bytes());
    summed.extend(raw.to_le_bytes());
    summed.extend(payload);
    let mut frame = checksum(&summed).to_vec();
    frame.extend(summed);
    frame
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(method: u8, raw: &[u8]) -> Vec<u8> {
        let payload = match method {
            METHOD_LZ4 => lz4_flex::block::compress(raw),
            _ => raw.to_vec(),
        };
        sealed(method, u32::try_from(raw.len()).unwrap(), &payload)
    }

    fn decode(body: &[u8], piece: usize) -> Result<Vec<u8>, FrameError> {
        let mut decoder = FrameDecoder::default();
        let mut out = Vec::new();
        for piece in body.chunks(piece) {
            decoder.push(piece);
            while let Some(raw) = decoder.next_frame()? {
                out.extend_from_slice(&raw);
            }
        }
        decoder.finish().map(|()| out)
    }

    #[test]
    fn frames_cut_anywhere_give_back_the_bytes() {
        let raw: Vec<u8> = (0..300_000_u32).map(|i| (i % 251) as u8).collect();
        let body = [frame(METHOD_LZ4, &raw), frame(METHOD_NONE, b"end")].concat();
        for piece in [1, 24, 25, 777, body.len()] {
            let out = decode(&body, piece).unwrap();
            assert_eq!(out, [&raw[..], b"end"].concat());
        }
    }

    #[test]
    fn damage_is_refused() {
        let mut body = frame(METHOD_LZ4, b"some rows");
        assert_eq!(decode(&body[..body.len() - 1], 9), Err(FrameError::Torn));
        *body.last_mut().unwrap() ^= 1;
        assert_eq!(decode(&body, 9), Err(FrameError::Checksum));
        assert_eq!(
            decode(&frame(0x90, b"zstd"), 9),
            Err(FrameError::Method(0x90))
        );
        let mut huge = frame(METHOD_NONE, b"x");
        huge[21..25].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(matches!(decode(&huge, 99), Err(FrameError::Size { .. })));
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_refused_or_waited_for(
            bytes in proptest::collection::vec(0_u8.., 0..200),
            piece in 1_usize..50,
        ) {
            // The checksum of random bytes does not match, so only an empty body is complete.
            assert_eq!(decode(&bytes, piece).is_ok(), bytes.is_empty());
        }
    }

    #[test]
    fn a_lying_raw_size_is_refused() {
        let body = sealed(METHOD_LZ4, 3, &lz4_flex::block::compress(b"0123456789"));
        assert_eq!(decode(&body, 99), Err(FrameError::Lz4));
    }
}
