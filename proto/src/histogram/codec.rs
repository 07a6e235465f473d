//! HdrHistogram's V2 encoding, straight to and from sparse buckets.
//!
//! ```text
//! u32 cookie 0x1c849313 | u32 payload length | u32 normalising offset (0) | u32 digits
//! u64 lowest | u64 highest | f64 conversion ratio (1.0) | payload        (all big-endian)
//! ```
//!
//! The payload is zig-zag LEB128 numbers of at most 9 bytes (the ninth holds 8 bits). Each is the count of the next
//! bucket or, if negative, the number of empty buckets. The crate's own decoder trusts the header's length and
//! bounds, and allocates as much. This one allocates at most one entry per received byte.

use bytes::Bytes;

use super::{
    HIGHEST_US, HistBounds, LOWEST_US, MAX_ENCODED_BYTES, N_BUCKETS, SIGNIFICANT_DIGITS,
    SparseHistogram,
};
use crate::error::{Inside, ParseError};
use crate::message::{Checked, Kind};
use crate::wire::Value;

const COOKIE: u32 = 0x1c84_9313;
const HEADER_BYTES: usize = 40;

impl Kind for SparseHistogram {
    type Wire = Bytes;
    type Parsed = Self;

    fn parse(field: &str, value: Bytes) -> Result<Self, ParseError> {
        Self::decode_v2(&value).inside(field)
    }

    fn encode(value: &Self) -> Bytes {
        value.encode_v2().into()
    }
}

impl Checked for SparseHistogram {
    type Seen<'a> = &'a [u8];

    /// The series checks the bytes, once, because it needs their total.
    #[inline]
    fn see<'a>(seen: &mut &'a [u8], value: Value<'a>) -> Option<()> {
        *seen = value.bytes()?;
        Some(())
    }
}

impl SparseHistogram {
    /// Reads V2 bytes of the fleet's scheme.
    ///
    /// # Errors
    /// Fails on another cookie (deflated bytes too), another layout, or a length that is not the payload's. Fails on a
    /// torn number, and on a bucket or a total out of range. The error's field is relative.
    pub fn decode_v2(bytes: &[u8]) -> Result<Self, ParseError> {
        let payload = checked_payload(bytes)?;
        // A bucket takes a byte or more, so the reserved space is bounded by the received bytes.
        let mut read = Self {
            indices: Vec::with_capacity(payload.len()),
            counts: Vec::with_capacity(payload.len()),
            total: 0,
        };
        read.total = walk(payload, |index, count| {
            if count > 0 {
                read.indices.push(index);
                read.counts.push(count);
            }
        })?;
        Ok(read)
    }

    /// Bounds and total of V2 bytes that [`SparseHistogram::decode_v2`] reads, without building a histogram.
    ///
    /// # Errors
    /// Fails as `decode_v2` does.
    pub(crate) fn bounds_of_v2(bytes: &[u8]) -> Result<HistBounds, ParseError> {
        let mut bounds = HistBounds::default();
        walk(checked_payload(bytes)?, |index, count| {
            bounds.add(index, count);
        })?;
        Ok(bounds)
    }

    /// Writes V2 bytes: the same that the crate's serializer makes of the same counts.
    pub fn encode_v2(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEADER_BYTES + 3 * self.indices().len() + 1);
        out.extend(COOKIE.to_be_bytes());
        out.extend([0; 4]);
        out.extend(0_u32.to_be_bytes());
        out.extend(u32::from(SIGNIFICANT_DIGITS).to_be_bytes());
        out.extend(LOWEST_US.to_be_bytes());
        out.extend(HIGHEST_US.to_be_bytes());
        out.extend(1_f64.to_be_bytes());

        let mut next = 0;
        for (index, count) in self.buckets() {
            match index - next {
                0 => {}
                1 => write_varint(&mut out, 0),
                gap => write_varint(&mut out, zig_zag(-i64::from(gap))),
            }
            let count = i64::try_from(count).expect("total fits i64: checked when made");
            write_varint(&mut out, zig_zag(count));
            next = index + 1;
        }
        if self.indices().is_empty() {
            write_varint(&mut out, 0);
        }
        let payload = u32::try_from(out.len() - HEADER_BYTES).expect("at most 9 bytes a bucket");
        out[4..8].copy_from_slice(&payload.to_be_bytes());
        out
    }
}

/// Content after the header of V2 bytes in the fleet's scheme.
fn checked_payload(bytes: &[u8]) -> Result<&[u8], ParseError> {
    if bytes.len() > MAX_ENCODED_BYTES {
        let expected = format!("at most {MAX_ENCODED_BYTES} bytes");
        return Err(ParseError::malformed("", expected, bytes.len()));
    }
    let Some((header, payload)) = bytes.split_at_checked(HEADER_BYTES) else {
        let expected = "a V2 header of 40 bytes";
        return Err(ParseError::malformed("", expected, bytes.len()));
    };
    check_header(header, payload.len())?;
    Ok(payload)
}

fn check_header(header: &[u8], payload_len: usize) -> Result<(), ParseError> {
    let u32_at = |at: usize| u32::from_be_bytes(array(&header[at..at + 4]));
    let u64_at = |at: usize| u64::from_be_bytes(array(&header[at..at + 8]));
    if u32_at(0) != COOKIE {
        let got = format!("{:#010x}", u32_at(0));
        let expected = "0x1c849313 (V2, not deflated)";
        return Err(ParseError::malformed("cookie", expected, got));
    }
    let ratio = f64::from_bits(u64_at(32));
    if ratio.to_bits() != 1_f64.to_bits() {
        return Err(ParseError::malformed("conversion_ratio", "1", ratio));
    }
    let numbers = [
        ("payload_length", u64::from(u32_at(4)), payload_len as u64),
        ("normalising_offset", u64::from(u32_at(8)), 0),
        (
            "significant_digits",
            u64::from(u32_at(12)),
            u64::from(SIGNIFICANT_DIGITS),
        ),
        ("lowest_us", u64_at(16), LOWEST_US),
        ("highest_us", u64_at(24), HIGHEST_US),
    ];
    for (field, got, expected) in numbers {
        if got != expected {
            return Err(ParseError::malformed(field, expected.to_string(), got));
        }
    }
    Ok(())
}

/// Hands on each occupied bucket and its count, indices rising, and returns the total. The first bucket of a gap comes too,
/// with a count of 0. Processors cannot predict whether a number is a count or a gap, so nothing branches on it.
#[inline]
fn walk(mut payload: &[u8], mut take: impl FnMut(u16, u64)) -> Result<u64, ParseError> {
    let mut next: u16 = 0;
    let mut total: u64 = 0;
    while let Some((&first, rest)) = payload.split_first() {
        // Most counts and gaps take one byte.
        let number = if first < 0x80 {
            payload = rest;
            u64::from(first)
        } else {
            read_long_varint(&mut payload)?
        };
        // Even is a count, odd a number of empty buckets less one, each doubled.
        let half = number >> 1;
        let is_count = (number & 1 == 0) & (half > 0);
        let count = if is_count { half } else { 0 };
        let step = if is_count { 1 } else { half + 1 };
        if step > u64::from(N_BUCKETS - next) {
            let expected = format!("at most {N_BUCKETS} buckets");
            let got = u64::from(next) + step;
            return Err(ParseError::malformed("payload", expected, got));
        }
        total = total.saturating_add(count);
        take(next, count);
        next += u16::try_from(step).expect("at most N_BUCKETS");
    }
    if i64::try_from(total).is_err() {
        return Err(ParseError::malformed("total", "at most 2^63 - 1", "more"));
    }
    Ok(total)
}

fn read_long_varint(bytes: &mut &[u8]) -> Result<u64, ParseError> {
    let mut value = 0;
    for position in 0..9 {
        let Some((&byte, rest)) = bytes.split_first() else {
            let expected = "whole numbers";
            return Err(ParseError::malformed("payload", expected, "a torn one"));
        };
        *bytes = rest;
        if position == 8 {
            // The ninth byte holds eight bits and is the last, whatever its high bit says.
            value |= u64::from(byte) << 56;
            break;
        }
        value |= u64::from(byte & 0x7f) << (7 * position);
        if byte & 0x80 == 0 {
            break;
        }
    }
    Ok(value)
}

fn write_varint(out: &mut Vec<u8>, mut value: u64) {
    for _ in 0..8 {
        let low = (value & 0x7f) as u8;
        value >>= 7;
        if value == 0 {
            out.push(low);
            return;
        }
        out.push(low | 0x80);
    }
    out.push(u8::try_from(value).expect("64 - 8 x 7 bits are left"));
}

fn zig_zag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)).cast_unsigned()
}

fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    bytes.try_into().expect("the caller cuts N bytes")
}

#[cfg(test)]
mod tests {
    use super::super::tests::recording_histogram;
    use super::super::{bucket_high_us, bucket_low_us};
    use super::*;
    use hdrhistogram::{
        Histogram,
        serialization::{Deserializer, Serializer, V2Serializer},
    };
    use proptest::prelude::*;

    fn crate_bytes(hdr: &Histogram<u64>) -> Vec<u8> {
        let mut bytes = Vec::new();
        V2Serializer::new().serialize(hdr, &mut bytes).unwrap();
        bytes
    }

    fn valid_bytes() -> Vec<u8> {
        let mut hdr = recording_histogram();
        for value in [0, 1, 2, 700, 701, 9_999, 60_000_000] {
            hdr.record(value).unwrap();
        }
        crate_bytes(&hdr)
    }

    #[track_caller]
    fn check_refused(bytes: &[u8], field: &str) {
        let error = SparseHistogram::decode_v2(bytes).unwrap_err();
        assert_eq!(error.field(), field, "{error}");
    }

    #[test]
    fn another_layout_is_refused_by_name() {
        let at = |offset: usize, new: &[u8]| {
            let mut bytes = valid_bytes();
            bytes[offset..offset + new.len()].copy_from_slice(new);
            bytes
        };
        check_refused(&at(0, &0x1c84_9314_u32.to_be_bytes()), "cookie");
        check_refused(&at(4, &u32::MAX.to_be_bytes()), "payload_length");
        check_refused(&at(8, &[1]), "normalising_offset");
        check_refused(&at(12, &5_u32.to_be_bytes()), "significant_digits");
        check_refused(&at(16, &u64::MAX.to_be_bytes()), "lowest_us");
        check_refused(&at(24, &u64::MAX.to_be_bytes()), "highest_us");
        check_refused(&at(32, &f64::NAN.to_be_bytes()), "conversion_ratio");
        check_refused(&valid_bytes()[..39], "");
        check_refused(&[], "");
        check_refused(&vec![0; MAX_ENCODED_BYTES + 1], "");
    }

    fn with_payload(payload: &[u8]) -> Vec<u8> {
        let mut bytes = valid_bytes();
        bytes.truncate(HEADER_BYTES);
        let len = u32::try_from(payload.len()).unwrap();
        bytes[4..8].copy_from_slice(&len.to_be_bytes());
        bytes.extend(payload);
        bytes
    }

    #[test]
    fn payload_that_lies_is_refused() {
        check_refused(&with_payload(&[0x80]), "payload");
        // i64::MIN empty buckets.
        check_refused(&with_payload(&[0xff; 9]), "payload");
        let mut beyond = Vec::new();
        write_varint(&mut beyond, zig_zag(-i64::from(N_BUCKETS)));
        assert!(SparseHistogram::decode_v2(&with_payload(&beyond)).is_ok());
        beyond.push(2);
        check_refused(&with_payload(&beyond), "payload");
        // Two counts of i64::MAX.
        let mut overflow = Vec::new();
        write_varint(&mut overflow, zig_zag(i64::MAX));
        write_varint(&mut overflow, zig_zag(i64::MAX));
        check_refused(&with_payload(&overflow), "total");
    }

    #[test]
    fn empty_histogram_round_trips() {
        let hdr = recording_histogram();
        let sparse = SparseHistogram::decode_v2(&crate_bytes(&hdr)).unwrap();
        assert_eq!(sparse.total(), 0);
        assert_eq!(sparse.encode_v2(), crate_bytes(&hdr));
    }

    proptest! {
        #[test]
        fn bytes_are_the_crates_bytes(
            samples in prop::collection::vec((0..=HIGHEST_US, 1_u64..1 << 40), 0..60),
        ) {
            let mut hdr = recording_histogram();
            for (value, count) in samples {
                hdr.record_n(value, count).unwrap();
            }
            let bytes = crate_bytes(&hdr);
            let sparse = SparseHistogram::decode_v2(&bytes).unwrap();
            prop_assert_eq!(sparse.total(), hdr.len());
            let mut occupied = SparseHistogram::default();
            for step in hdr.iter_recorded() {
                let value = hdr.lowest_equivalent(step.value_iterated_to());
                occupied.record_n(value, step.count_at_value());
            }
            prop_assert_eq!(&sparse, &occupied);
            let bounds = SparseHistogram::bounds_of_v2(&bytes).unwrap();
            let edges = |index: Option<&u16>| {
                index.map_or((0.0, 0.0), |at| (bucket_low_us(*at) as f64, bucket_high_us(*at) as f64))
            };
            prop_assert_eq!(bounds.total, hdr.len());
            prop_assert_eq!(bounds.first_us(), edges(sparse.indices().first()));
            prop_assert_eq!(bounds.last_us(), edges(sparse.indices().last()));
            let sum = |edge: fn(u16) -> u64| -> f64 {
                sparse.buckets().map(|(at, n)| n as f64 * edge(at) as f64).sum()
            };
            prop_assert_eq!(bounds.sum_us, (sum(bucket_low_us), sum(bucket_high_us)));
            prop_assert_eq!(sparse.encode_v2(), bytes);
            let back: Histogram<u64> =
                Deserializer::new().deserialize(&mut &sparse.encode_v2()[..]).unwrap();
            prop_assert_eq!(back, hdr);
        }

        #[test]
        fn any_payload_ends_within_bounds(payload in prop::collection::vec(any::<u8>(), 0..600)) {
            if let Ok(sparse) = SparseHistogram::decode_v2(&with_payload(&payload)) {
                prop_assert!(sparse.indices().len() <= payload.len());
                let again = SparseHistogram::decode_v2(&sparse.encode_v2()).unwrap();
                prop_assert_eq!(again, sparse);
            }
        }

        #[test]
        fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = SparseHistogram::decode_v2(&bytes);
        }
    }
}
