//! Reads the version of a certificate, and the beginning and end of its validity, for metrics and `config check` (RFC
//! 5280, 4.1). `rustls` checks certificates of others and has no function for its own certificate.
//!
//! `Certificate ::= SEQUENCE { tbsCertificate SEQUENCE { [0] version?, serial, algorithm, issuer, validity { notBefore,
//! notAfter }, ... }, ... }`. Only lengths are read on the way.

use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};

const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
const VERSION: u8 = 0xa0;

/// When a certificate is valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Validity {
    pub(crate) not_before: Timestamp,
    pub(crate) not_after: Timestamp,
}

/// How long before its end a certificate is reported as ending soon, as in the alert `EpwatchCertificateEnds`.
pub(crate) const ENDS_SOON: SignedDuration = SignedDuration::from_hours(7 * 24);

impl Validity {
    /// Returns the time in which both are valid.
    pub(super) fn overlap(self, other: Self) -> Self {
        Self {
            not_before: self.not_before.max(other.not_before),
            not_after: self.not_after.min(other.not_after),
        }
    }

    /// Returns when an authority of clients ends, if it has ended or will soon.
    pub(super) fn end_of_authority(&self, now: Timestamp) -> Option<String> {
        let left = self.not_after.duration_since(now);
        let verb = match left.is_positive() {
            true => "ends",
            false => "ended",
        };
        (left < ENDS_SOON).then(|| format!("{verb} {}", shown(self.not_after)))
    }

    /// Returns the reason why devices cannot connect now or soon, and whether they cannot connect now.
    pub(crate) fn problem(&self, now: Timestamp) -> Option<(String, bool)> {
        let (begin, end) = (shown(self.not_before), shown(self.not_after));
        if self.not_after <= now {
            return Some((
                format!("ended {end}: no device can connect; renew it"),
                true,
            ));
        }
        if self.not_before > now {
            return Some((
                format!("is valid only from {begin}: no device can connect until then"),
                true,
            ));
        }
        let left = self.not_after.duration_since(now);
        (left < ENDS_SOON).then(|| (format!("ends {end}, within 7 days; renew it"), false))
    }
}

fn shown(time: Timestamp) -> String {
    time.strftime("%Y-%m-%d %H:%M UTC").to_string()
}

/// Returns when a certificate is valid; `None` if the bytes are not a certificate.
pub(super) fn validity(certificate: &[u8]) -> Option<Validity> {
    let (_, certificate, _) = element(certificate)?;
    let (_, mut fields, _) = element(certificate)?;
    if fields.first() == Some(&VERSION) {
        (_, _, fields) = element(fields)?;
    }
    for _serial_algorithm_issuer in 0..3 {
        (_, _, fields) = element(fields)?;
    }
    let (_, validity, _) = element(fields)?;
    let (tag, begin, after_not_before) = element(validity)?;
    let not_before = time(tag, begin)?;
    let (tag, end, _) = element(after_not_before)?;
    let not_after = time(tag, end)?;
    Some(Validity {
        not_before,
        not_after,
    })
}

/// Whether a certificate is of version 1, which has no extensions and so cannot name its server. `false` if the bytes
/// are not a certificate.
pub(super) fn is_version_1(certificate: &[u8]) -> bool {
    let fields = element(certificate).and_then(|(_, certificate, _)| element(certificate));
    fields.is_some_and(|(_, fields, _)| fields.first().is_some_and(|tag| *tag != VERSION))
}

fn time(tag: u8, time: &[u8]) -> Option<Timestamp> {
    let text = std::str::from_utf8(time).ok()?;
    let text = match tag {
        // Two digits of the year: from 1950 to 2049.
        UTC_TIME if text < "5" => format!("20{text}"),
        UTC_TIME => format!("19{text}"),
        GENERALIZED_TIME => text.to_owned(),
        _ => return None,
    };
    let time = DateTime::strptime("%Y%m%d%H%M%SZ", text).ok()?;
    Some(time.to_zoned(TimeZone::UTC).ok()?.timestamp())
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

    /// The expected time is from `openssl x509 -enddate`: Nov 1 23:47:04 2126 GMT.
    #[test]
    fn the_end_of_a_real_certificate_is_found() {
        let pem = include_bytes!("../../tests/tls/one.pem");
        let certificate = CertificateDer::from_pem_slice(pem).unwrap();
        let end = validity(&certificate).unwrap().not_after;
        assert_eq!(end.as_second(), 4_949_250_424);
        for end in 0..certificate.len() {
            // A truncated certificate never causes a panic, and never gives a time that it does not contain.
            let found = validity(&certificate[..end]);
            assert!(found.is_none(), "{end}");
            assert!(!is_version_1(&certificate[..end]), "{end}");
        }
        assert!(!is_version_1(&certificate));
        let pem = include_bytes!("../../tests/tls/version-1.pem");
        assert!(is_version_1(&CertificateDer::from_pem_slice(pem).unwrap()));
    }

    #[test]
    fn a_certificate_that_no_device_accepts_is_told_apart_from_one_that_ends_soon() {
        let day = |n: i64| Timestamp::from_second(1_800_000_000 + n * 86_400).unwrap();
        let of = |from, to| Validity {
            not_before: day(from),
            not_after: day(to),
        };
        let check = |validity: Validity, expected: Option<(&str, bool)>| {
            let found = validity.problem(day(0));
            match (found, expected) {
                (None, None) => {}
                (Some((text, is_now)), Some((says, expected))) => {
                    assert!(text.contains(says) && is_now == expected, "{text}");
                }
                other => panic!("{other:?}"),
            }
        };
        check(of(-10, 80), None);
        check(of(-10, 6), Some(("ends 2027-01-21", false)));
        check(of(-90, -30), Some(("ended 2026-12-16", true)));
        check(of(1, 90), Some(("valid only from 2027-01-16", true)));
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
            let found = validity(&wrap(0x30, &wrap(0x30, &fields.concat())))?;
            assert_eq!(found.not_before, found.not_after);
            Some(found.not_after.as_second())
        };
        assert_eq!(of("490101000000Z"), Some(2_493_072_000));
        assert_eq!(of("700101000001Z"), Some(1));
        assert_eq!(of("991332000000Z"), None);
        assert_eq!(of("no time"), None);
    }
}
