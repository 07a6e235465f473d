//! Bytes of strangers. Torn, endless and random input ends in an error, never in a panic or in more memory than the
//! bytes need.

use epwatch_proto::{
    recorded::{RecordedError, RecordedReader, write_recorded},
    *,
};
use proptest::prelude::*;

use crate::samples;

#[test]
fn report_beyond_the_limit_is_too_large() {
    let error = Report::parse(&vec![0; 262_145]).unwrap_err();
    assert_eq!(error.outcome(), Outcome::RefusedTooLarge);
}

/// An empty message takes two bytes on the wire and hundreds in memory, so messages are counted before they are
/// decoded.
#[test]
fn many_empty_messages_are_refused_by_their_count() {
    let check = |tag: u32, field: &str| {
        let mut empty = Vec::new();
        prost::encoding::encode_key(tag, prost::encoding::WireType::LengthDelimited, &mut empty);
        empty.push(0);
        let error = Report::parse(&empty.repeat(262_144 / empty.len())).unwrap_err();
        assert_eq!(error.field(), field);
    };
    check(2, "ended_streams");
    check(12, "sessions");
    check(13, "series");
    check(16, "run_errors");
}

#[test]
fn torn_report_is_malformed_at_every_length() {
    let bytes = samples::full_report().to_bytes();
    for len in 0..bytes.len() {
        let error = Report::parse(&bytes[..len]).unwrap_err();
        assert_eq!(error.outcome(), Outcome::RefusedMalformed, "{len}: {error}");
    }
}

#[test]
fn fields_of_a_newer_sender_are_passed_over() {
    let mut bytes = samples::minimal_report().to_bytes();
    bytes.extend([0xc2, 0x3e, 3, b'n', b'e', b'w']);
    assert_eq!(Report::parse(&bytes), Ok(samples::minimal_report()));
}

#[test]
fn torn_recording_gives_its_whole_records_and_says_where_it_ends() {
    let mut bytes = Vec::new();
    write_recorded(&mut bytes, &samples::recorded()[0]).unwrap();
    let first = bytes.len() as u64;
    write_recorded(&mut bytes, &samples::recorded()[1]).unwrap();
    bytes.pop();
    let mut reader = RecordedReader::new(&bytes[..]);
    assert_eq!(reader.next().unwrap().unwrap(), samples::recorded()[0]);
    let Some(Err(RecordedError::Torn { offset })) = reader.next() else {
        panic!("the second record is torn");
    };
    assert_eq!(offset, first);
    assert!(reader.next().is_none());
}

#[test]
fn recording_with_a_huge_length_allocates_nothing() {
    for bytes in [vec![0xff; 12], vec![0xff, 0xff, 0xff, 0xff, 0x7f]] {
        let mut reader = RecordedReader::new(&bytes[..]);
        let Some(Err(RecordedError::Malformed { offset: 0, source })) = reader.next() else {
            panic!("the length is refused");
        };
        assert_eq!(source.field(), "length");
        assert!(reader.next().is_none());
    }
}

proptest! {
    #[test]
    fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let _ = Report::parse(&bytes);
        let _ = ReportKey::peek(&bytes);
        let _ = Directive::parse(&bytes);
        let _ = RecordedReader::new(&bytes[..]).count();
    }

    /// Near-valid input reaches deeper than random bytes do.
    #[test]
    fn flipped_bytes_never_panic_and_what_parses_round_trips(
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let mut bytes = samples::full_report().to_bytes();
        for (at, value) in flips {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        if let Ok(report) = Report::parse(&bytes) {
            prop_assert_eq!(Report::parse(&report.to_bytes()), Ok(report));
        }
    }

    #[test]
    fn errors_stay_short(text in "\\PC{0,2000}") {
        let mut report = v1::Report::from(&samples::full_report());
        report.app.as_mut().unwrap().id = text.repeat(20) + &"x".repeat(129);
        let error = Report::try_from(report).unwrap_err();
        prop_assert!(error.to_string().len() < 200);
    }
}
