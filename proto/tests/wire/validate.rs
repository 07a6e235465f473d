//! The quick check and the full parser agree. The parser parses every report that the check accepts, to the same key
//! and app. The check accepts every report that this version's senders make.

use epwatch_proto::*;
use proptest::prelude::*;
use proptest::sample::Index;
use prost::Message;

use crate::samples;

/// The result for a report that is checked alone.
fn alone(bytes: &[u8]) -> Option<ValidReport<'_>> {
    FastValidator::default().validate(bytes)
}

/// A report that the check accepts parses to the same values, whatever reports came before.
fn agrees(bytes: &[u8]) -> Result<(), TestCaseError> {
    let before = samples::full_report().to_bytes();
    let mut quick = FastValidator::default();
    prop_assert!(quick.validate(&before).is_some());
    prop_assert_eq!(quick.validate(bytes), alone(bytes));
    prop_assert_eq!(quick.validate(bytes), alone(bytes));
    let Some(quick) = alone(bytes) else {
        return Ok(());
    };
    let full = match Report::parse(bytes) {
        Ok(full) => full,
        Err(error) => return Err(TestCaseError::fail(format!("called sound: {error}"))),
    };
    prop_assert_eq!(quick.key, full.key);
    prop_assert_eq!(quick.app_id, full.app.id);
    prop_assert_eq!(quick.environment, full.app.environment);
    Ok(())
}

fn varint(value: u64) -> Vec<u8> {
    let mut out = Vec::new();
    prost::encoding::encode_varint(value, &mut out);
    out
}

#[test]
fn samples_are_sound() {
    for report in [samples::full_report(), samples::minimal_report()] {
        let bytes = report.to_bytes();
        let quick = alone(&bytes).expect("a sender's own report");
        assert_eq!(quick.key, report.key);
        assert_eq!(
            (quick.app_id, quick.environment),
            (&*report.app.id, &*report.app.environment)
        );
    }
}

#[test]
fn torn_reports_are_not_sound_at_any_length() {
    let bytes = samples::full_report().to_bytes();
    for len in 0..bytes.len() {
        assert_eq!(alone(&bytes[..len]), None, "{len}");
    }
    assert_eq!(alone(&vec![0; 262_145]), None);
}

#[test]
fn fields_of_a_newer_sender_are_passed_over() {
    let mut bytes = samples::minimal_report().to_bytes();
    bytes.extend([0xc2, 0x3e, 3, b'n', b'e', b'w']);
    assert!(alone(&bytes).is_some());
}

/// Two apps on one device, taking turns.
#[test]
fn each_report_of_a_call_is_its_own_apps() {
    let reports = ["camera", "gallery", "gallery", "camera"].map(|app| {
        let mut report = samples::full_report();
        report.app.id = app.into();
        (app, report.to_bytes())
    });
    let mut quick = FastValidator::default();
    for (app, bytes) in &reports {
        assert_eq!(quick.validate(bytes).map(|sound| sound.app_id), Some(*app));
    }
}

/// Protobuf merges a message that is there twice; the quick check leaves that to the parser.
#[test]
fn what_is_merged_is_left_to_the_parser() {
    let report = v1::Report::from(&samples::full_report());
    let mut bytes = report.encode_to_vec();
    let again = v1::Report {
        app: Some(v1::App {
            version: "4".into(),
            ..v1::App::default()
        }),
        ..v1::Report::default()
    };
    bytes.extend(again.encode_to_vec());
    assert_eq!(alone(&bytes), None);
    assert_eq!(Report::parse(&bytes).unwrap().app.version, "4");
}

/// The last of several numbers counts, in both.
#[test]
fn a_number_that_is_there_twice_is_the_last() {
    let mut bytes = samples::minimal_report().to_bytes();
    for (length, is_sound) in [(5, true), (u64::MAX, false)] {
        bytes.extend([5 << 3]);
        bytes.extend(varint(length));
        assert_eq!(alone(&bytes).is_some(), is_sound);
        assert_eq!(Report::parse(&bytes).is_ok(), is_sound);
    }
}

/// A report with `n` sessions of `m` series each.
fn large(n: u64, m: usize) -> Report {
    let mut report = samples::full_report();
    report.self_tests.clear();
    report.run_errors.clear();
    (report.sessions, report.series) = (Vec::new(), Vec::new());
    for uid in (1..=n).filter_map(SessionUid::new) {
        let mut session = samples::session();
        session.uid = uid;
        report.sessions.push(session);
        for shape in 0..m {
            let mut series = samples::series();
            series.session_uid = uid;
            series.stratum.shape_key = format!("x:{shape}");
            report.series.push(series);
        }
    }
    report
}

#[test]
fn reports_of_common_size_are_sound_and_large_ones_are_parsed() {
    assert!(alone(&large(4, 6).to_bytes()).is_some());
    let huge = large(60, 4);
    assert_eq!(alone(&huge.to_bytes()), None);
    assert_eq!(Report::parse(&huge.to_bytes()), Ok(huge));
}

/// More sessions than one check remembers, each of another model.
fn many_sessions() -> Vec<u8> {
    let mut report = large(6, 2);
    for (session, version) in report.sessions.iter_mut().zip(1..) {
        session.model.version = format!("{version}");
    }
    report.to_bytes()
}

fn flip(bytes: &mut [u8], flips: &[(Index, u8)]) {
    for (at, mask) in flips {
        let at = at.index(bytes.len());
        bytes[at] ^= mask;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4_000, ..ProptestConfig::default() })]

    #[test]
    fn changed_bytes_are_judged_alike(
        flips in prop::collection::vec((any::<Index>(), any::<u8>()), 1..6),
    ) {
        let mut bytes = samples::full_report().to_bytes();
        for (at, value) in flips {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        agrees(&bytes)?;
        if let Ok(report) = Report::parse(&bytes) {
            prop_assert!(alone(&report.to_bytes()).is_some());
        }
    }

    /// Earlier reports change nothing, whether they are valid or broken, with the same broken parts or others.
    #[test]
    fn each_report_of_a_call_is_judged_as_if_alone(
        has_many in any::<bool>(),
        flips in prop::collection::vec((any::<Index>(), 1..=255_u8), 0..3),
        more in prop::collection::vec(prop::collection::vec((any::<Index>(), 1..=255_u8), 0..3), 1..6),
    ) {
        let many = many_sessions();
        prop_assert!(alone(&many).is_some());
        let mut first = if has_many { many.clone() } else { samples::full_report().to_bytes() };
        flip(&mut first, &flips);
        let mut reports = vec![many, first.clone()];
        for flips in more {
            let mut report = first.clone();
            flip(&mut report, &flips);
            reports.extend([report.clone(), report, first.clone()]);
        }
        let mut quick = FastValidator::default();
        for report in &reports {
            prop_assert_eq!(quick.validate(report), alone(report));
        }
    }

    /// One changed bit keeps most of the structure, and so reaches every check.
    #[test]
    fn one_changed_bit_is_judged_alike(at in any::<Index>(), bit in 0..8_u32) {
        let mut bytes = samples::full_report().to_bytes();
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        agrees(&bytes)?;
    }

    #[test]
    fn bytes_put_in_or_taken_out_are_judged_alike(
        from in any::<Index>(),
        taken in 0..12_usize,
        put in prop::collection::vec(any::<u8>(), 0..12),
    ) {
        let mut bytes = samples::full_report().to_bytes();
        let from = from.index(bytes.len());
        let to = (from + taken).min(bytes.len());
        bytes.splice(from..to, put);
        agrees(&bytes)?;
    }

    /// Appends whole fields: repeated messages, numbers that replace others, unknown fields.
    #[test]
    fn fields_put_behind_are_judged_alike(
        fields in prop::collection::vec(
            (1..20_u32, 0..6_u32, prop::collection::vec(any::<u8>(), 0..24), any::<u64>()),
            1..4,
        ),
    ) {
        let mut bytes = samples::full_report().to_bytes();
        for (number, kind, content, value) in fields {
            bytes.extend(varint(u64::from(number << 3 | kind)));
            match kind {
                0 => bytes.extend(varint(value)),
                1 => bytes.extend(value.to_le_bytes()),
                2 => {
                    bytes.extend(varint(content.len() as u64));
                    bytes.extend(content);
                }
                _ => bytes.extend(&value.to_le_bytes()[..4]),
            }
        }
        agrees(&bytes)?;
    }

    #[test]
    fn random_bytes_are_judged_alike(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        agrees(&bytes)?;
    }
}
