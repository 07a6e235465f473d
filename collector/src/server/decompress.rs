//! Inflates request bodies with three hard limits: the inflated size, its ratio to the compressed size, and the number
//! of members. The first limit bounds memory, and the second stops a bomb early. The third bounds time, because an
//! empty member takes only 20 bytes and still needs its own set-up. One body of a few MB could contain 150,000 of them.

use std::io::Read;

use bytes::Bytes;

/// Reports of one device repeat most of their text, so a ratio of 20 is normal.
const MAX_RATIO: usize = 100;
/// Below this size the ratio is not checked.
const FREE_BYTES: usize = 64 << 10;
/// The largest window of a zstd frame: 8 MiB, which RFC 8878 recommends that decoders support.
const MAX_WINDOW_LOG: u32 = 23;
const CHUNK_BYTES: usize = 16 << 10;
/// The most members of a gzip stream, or frames of a zstd stream. Every known client sends one; a proxy may concatenate
/// a few.
const MAX_MEMBERS: usize = 4;

/// Compression of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Encoding {
    Gzip,
    Zstd,
}

impl Encoding {
    /// All encodings as a header value.
    pub(crate) const NAMES: &str = "gzip, zstd, identity";

    /// Parses a header value; `Ok(None)` means uncompressed.
    pub(crate) fn parse(name: &str) -> Result<Option<Self>, ()> {
        match name.trim() {
            "" => Ok(None),
            name if name.eq_ignore_ascii_case("identity") => Ok(None),
            name if name.eq_ignore_ascii_case("gzip") => Ok(Some(Self::Gzip)),
            name if name.eq_ignore_ascii_case("zstd") => Ok(Some(Self::Zstd)),
            _ => Err(()),
        }
    }
}

/// The reason why a body was not inflated. A retry would fail in the same way.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum InflateError {
    #[error("inflated request exceeds {max_bytes} bytes")]
    Size { max_bytes: usize },
    #[error("inflated request is more than {MAX_RATIO} times its {compressed} bytes")]
    Ratio { compressed: usize },
    #[error("request has more than {MAX_MEMBERS} members of {0:?}")]
    Members(Encoding),
    #[error("request is not a valid {0:?} stream")]
    Corrupt(Encoding),
}

pub(crate) fn inflate(
    encoding: Encoding,
    compressed: &[u8],
    max_bytes: usize,
) -> Result<Bytes, InflateError> {
    let corrupt = || InflateError::Corrupt(encoding);
    let mut out = BoundedOutput {
        bytes: Vec::with_capacity(compressed.len().saturating_mul(4).min(max_bytes)),
        compressed: compressed.len(),
        max_bytes,
    };
    let mut rest = compressed;
    let mut n_members = 0;
    // An empty body is not a gzip stream. For zstd it is an empty message, which no call accepts.
    while !rest.is_empty() || (n_members == 0 && encoding == Encoding::Gzip) {
        n_members += 1;
        if n_members > MAX_MEMBERS {
            return Err(InflateError::Members(encoding));
        }
        rest = match encoding {
            Encoding::Gzip => {
                let mut reader = flate2::bufread::GzDecoder::new(rest);
                out.fill(encoding, &mut reader)?;
                reader.into_inner()
            }
            Encoding::Zstd => {
                let reader = zstd::stream::read::Decoder::with_buffer(rest);
                let mut reader = reader.map_err(|_| corrupt())?.single_frame();
                reader
                    .window_log_max(MAX_WINDOW_LOG)
                    .map_err(|_| corrupt())?;
                out.fill(encoding, &mut reader)?;
                reader.finish()
            }
        };
    }
    Ok(out.bytes.into())
}

/// The inflated body within its limits.
struct BoundedOutput {
    bytes: Vec<u8>,
    compressed: usize,
    max_bytes: usize,
}

impl BoundedOutput {
    /// Reads a member to its end.
    fn fill(&mut self, encoding: Encoding, reader: &mut impl Read) -> Result<(), InflateError> {
        let Self {
            bytes: out,
            compressed,
            max_bytes,
        } = self;
        let (compressed, max_bytes) = (*compressed, *max_bytes);
        let by_ratio = compressed.saturating_mul(MAX_RATIO).max(FREE_BYTES);
        loop {
            let start = out.len();
            out.resize(start + CHUNK_BYTES, 0);
            let n = reader
                .read(&mut out[start..])
                .map_err(|_| InflateError::Corrupt(encoding))?;
            out.truncate(start + n);
            if out.len() > max_bytes {
                return Err(InflateError::Size { max_bytes });
            }
            if out.len() > by_ratio {
                return Err(InflateError::Ratio { compressed });
            }
            if n == 0 {
                return Ok(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    const MAX: usize = 1 << 20;

    fn gzip(plain: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        encoder.write_all(plain).unwrap();
        encoder.finish().unwrap()
    }

    fn zstd(plain: &[u8]) -> Vec<u8> {
        zstd::encode_all(plain, 19).unwrap()
    }

    /// Bytes that hardly compress.
    fn noise(n: usize) -> Vec<u8> {
        let mut state = 1_u32;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            state.to_be_bytes()[0]
        };
        (0..n).map(|_| next()).collect()
    }

    #[test]
    fn what_was_compressed_comes_out() {
        for plain in [Vec::new(), b"report".to_vec(), noise(MAX)] {
            assert_eq!(inflate(Encoding::Gzip, &gzip(&plain), MAX).unwrap(), plain);
            assert_eq!(inflate(Encoding::Zstd, &zstd(&plain), MAX).unwrap(), plain);
        }
    }

    #[test]
    fn size_and_ratio_end_a_bomb() {
        let (zeros, large) = (vec![0; MAX], noise(MAX + 1));
        for (encoding, compress) in [
            (Encoding::Gzip, gzip as fn(&[u8]) -> Vec<u8>),
            (Encoding::Zstd, zstd),
        ] {
            let size = inflate(encoding, &compress(&large), MAX).unwrap_err();
            assert_eq!(size, InflateError::Size { max_bytes: MAX });
            let ratio = inflate(encoding, &compress(&zeros), MAX).unwrap_err();
            assert!(matches!(ratio, InflateError::Ratio { .. }), "{ratio}");
        }
    }

    #[test]
    fn a_few_members_are_one_body_and_thousands_are_refused() {
        let joined =
            |compress: fn(&[u8]) -> Vec<u8>, n: usize, plain: &[u8]| compress(plain).repeat(n);
        for (encoding, compress) in [
            (Encoding::Gzip, gzip as fn(&[u8]) -> Vec<u8>),
            (Encoding::Zstd, zstd),
        ] {
            let few = joined(compress, MAX_MEMBERS, b"report");
            let plain = b"report".repeat(MAX_MEMBERS);
            assert_eq!(inflate(encoding, &few, MAX).unwrap(), plain);
            let many = joined(compress, 150_000, b"");
            assert_eq!(
                inflate(encoding, &many, MAX),
                Err(InflateError::Members(encoding))
            );
        }
        // Skippable frames of zstd are skipped, and still count as members.
        let skippable = [0x50, 0x2a, 0x4d, 0x18, 0, 0, 0, 0].repeat(100_000);
        assert_eq!(
            inflate(Encoding::Zstd, &skippable, MAX),
            Err(InflateError::Members(Encoding::Zstd))
        );
    }

    #[test]
    fn torn_and_foreign_streams_are_refused() {
        for (encoding, whole) in [
            (Encoding::Gzip, gzip(b"report report")),
            (Encoding::Zstd, zstd(b"report report")),
        ] {
            for bytes in [&whole[..whole.len() - 1], b"no stream at all", &[]] {
                // zstd inflates an empty input to an empty body, in which decoding then finds no message.
                let inflated = inflate(encoding, bytes, MAX);
                let is_refused = inflated == Err(InflateError::Corrupt(encoding));
                assert!(is_refused || bytes.is_empty(), "{encoding:?} {inflated:?}");
            }
        }
        // A frame with a window of 2 GiB allocates none of it.
        let mut giant = vec![0x28, 0xb5, 0x2f, 0xfd, 0x00, 0xa8];
        giant.extend([0x01, 0x00, 0x00]);
        assert_eq!(
            inflate(Encoding::Zstd, &giant, MAX),
            Err(InflateError::Corrupt(Encoding::Zstd))
        );
    }
}
