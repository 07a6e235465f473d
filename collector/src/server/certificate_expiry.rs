//! The end of a certificate's validity, for a metric: RFC 5280, 4.1. `rustls` checks certificates of others and has no
//! function for one's own.
//!
//! `Certificate ::= SEQUENCE { tbsCertificate SEQUENCE { [0] version?, serial, algorithm, issuer, validity { notBefore,
//! notAfter }, ... }, ... }`. Only lengths are read on the way.

use jiff::civil::DateTime;
use jiff::tz::TimeZone;

const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
const VERSION: u8 = 0xa0;

/// Returns the time after which the certificate is not valid, in seconds since 1970; `None` for other bytes.
pub(super) fn not_after(certificate: &[u8]) -> Option<i64> {
    let (_, certificate, _) = element(certificate)?;
    let (_, mut fields, _) = element(certificate)?;
    if fields.first() == Some(&VERSION) {
        (_, _, fields) = element(fields)?;
    }
    for _serial_algorithm_issuer in 0..3 {
        (_, _, fields) = element(fields)?;
    }
    let (_, validity, _) = element(fields)?;
    let (_, _, after_not_before) = element(validity)?;
    let (tag, time, _) = element(after_not_before)?;
    let text = std::str::from_utf8(time).ok()?;
    let text = match tag {
        // Two digits of the year: from 1950 to 2049.
        UTC_TIME if text < "5" => format!("20{text}"),
        UTC_TIME => format!("19{text}"),
        GENERALIZED_TIME => text.to_owned(),
        _ => return None,
    };
    let time = DateTime::strptime("%Y%m%d%H%M%SZ", text).ok()?;
    Some(time.to_zoned(TimeZone::UTC).ok()?.timestamp().as_second())
}

/// Splits off the first DER element: its tag, its content, and the bytes after it.
fn element(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&[tag, first], rest) = bytes.split_first_chunk()?;
    let (len, rest) = match first {
        0..=0x7f => (usize::from(first), rest),
        // The number of bytes that hold the length.
        0x81..=0x84 => {
            let (digits, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
            let len = digits
                .iter()
                .fold(0, |len, digit| len << 8 | usize::from(*digit));
            (len, rest)
        }
        _ => return None,
    };
    let (content, after) = rest.split_at_checked(len)?;
    Some((tag, content, after))
}

#[cfg(test)]
mod tests {
    use rustls::pki_types::CertificateDer;
    use rustls::pki_types::pem::PemObject;

    use super::*;

    /// By `openssl x509 -enddate`: Nov 1 23:47:04 2126 GMT.
    #[test]
    fn the_end_of_a_real_certificate_is_found() {
        let pem = include_bytes!("../../tests/tls/one.pem");
        let certificate = CertificateDer::from_pem_slice(pem).unwrap();
        assert_eq!(not_after(&certificate), Some(4_949_250_424));
        for end in 0..certificate.len() {
            // Never a panic, and no time from a part that lacks it.
            let found = not_after(&certificate[..end]);
            assert!(found.is_none(), "{end}");
        }
    }

    #[test]
    fn years_of_two_digits_are_of_the_right_century() {
        let of = |time: &str| {
            let wrap = |tag: u8, content: &[u8]| {
                [&[tag, u8::try_from(content.len()).unwrap()], content].concat()
            };
            let times = [
                wrap(UTC_TIME, time.as_bytes()),
                wrap(UTC_TIME, time.as_bytes()),
            ]
            .concat();
            let fields = [
                wrap(2, &[1]),
                wrap(0x30, &[]),
                wrap(0x30, &[]),
                wrap(0x30, &times),
            ];
            not_after(&wrap(0x30, &wrap(0x30, &fields.concat())))
        };
        assert_eq!(of("490101000000Z"), Some(2_493_072_000));
        assert_eq!(of("700101000001Z"), Some(1));
        assert_eq!(of("991332000000Z"), None);
        assert_eq!(of("no time"), None);
    }
}
