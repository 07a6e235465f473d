use epwatch_proto::{Phase, PowerSave, SessionAge, Thermal};
use proptest::prelude::*;

use super::*;
use crate::moments::Sums;

pub(crate) fn on(version: &str) -> LearntOn {
    LearntOn {
        version: version.to_owned(),
        firmware: String::new(),
        ort: "1.31.1".to_owned(),
        ep: "2.7.0".to_owned(),
    }
}

/// `n` runs of `us` microseconds.
pub(crate) fn lesson(version: &str, us: u64, n: u64) -> Lesson {
    let mut histogram = SparseHistogram::default();
    let mut sums = Sums::default();
    for _ in 0..n {
        histogram.record_n(us, 1);
        sums.add(1000 * us);
    }
    Lesson {
        key: BaselineKey {
            model: "m".to_owned(),
            requested_eps: vec!["QNNExecutionProvider".to_owned()],
            shape: "static".to_owned(),
        },
        on: on(version),
        histogram,
        moments: sums.in_units_of(1000.0),
    }
}

fn baselines(book: &BaselineBook, on: &LearntOn) -> Baselines {
    let key = lesson("", 1, 1).key;
    let of_session = book.of_session(&key.model, &key.requested_eps, on);
    of_session.of_shape(&key.shape)
}

#[track_caller]
fn check_known(book: &BaselineBook, on: &LearntOn, expected: &[(BaselineKind, &str)]) {
    let baselines = baselines(book, on);
    let known: Vec<_> = baselines.known().iter().collect();
    let got: Vec<_> = known
        .iter()
        .map(|b| (b.kind, b.model_version.as_str()))
        .collect();
    assert_eq!(got, expected);
}

#[track_caller]
fn check_absent(book: &BaselineBook, on: &LearntOn, expected: BaselineAbsence) {
    assert_eq!(baselines(book, on), Baselines::Absent(expected));
}

use BaselineKind::{EarlierRuntime, PreviousVersion};

#[test]
fn the_last_settled_version_is_the_baseline_of_the_next() {
    let mut book = BaselineBook::new(20);
    check_absent(&book, &on("1"), BaselineAbsence::FirstVersion);
    book.absorb(&lesson("1", 10_000, 19));
    check_absent(&book, &on("1"), BaselineAbsence::FirstVersion);
    check_absent(&book, &on("2"), BaselineAbsence::TooFewRuns);
    book.absorb(&lesson("1", 10_000, 1));
    check_known(&book, &on("2"), &[(PreviousVersion, "1")]);
    book.absorb(&lesson("2", 20_000, 5));
    check_known(&book, &on("2"), &[(PreviousVersion, "1")]);
    // Version 2 never settled, so 3 is compared with 1.
    check_known(&book, &on("3"), &[(PreviousVersion, "1")]);
    book.absorb(&lesson("3", 20_000, 30));
    check_known(&book, &on("4"), &[(PreviousVersion, "3")]);
    let baselines = baselines(&book, &on("4"));
    let baseline = &baselines.known()[0];
    assert_eq!(baseline.n, 30);
    assert!((baseline.p50_us - 20_000.0).abs() < 200.0, "{baseline:?}");
    assert!(baseline.cv.abs() < 1e-9);
}

#[test]
fn a_version_side_by_side_with_its_successor_stays_its_baseline() {
    let mut book = BaselineBook::new(20);
    book.absorb(&lesson("1", 10_000, 30));
    for _ in 0..3 {
        book.absorb(&lesson("2", 40_000, 10));
        book.absorb(&lesson("1", 90_000, 10));
    }
    check_known(&book, &on("2"), &[(PreviousVersion, "1")]);
    assert!(baselines(&book, &on("2")).known()[0].p95_us < 11_000.0);
    check_known(&book, &on("1"), &[(PreviousVersion, "2")]);
}

#[test]
fn another_runtime_is_a_baseline_of_its_own() {
    let mut book = BaselineBook::new(20);
    book.absorb(&lesson("1", 10_000, 30));
    book.absorb(&lesson("2", 10_000, 30));
    let updated = LearntOn {
        ep: "2.8.0".to_owned(),
        ..on("2")
    };
    let both = [(PreviousVersion, "1"), (EarlierRuntime, "2")];
    check_known(&book, &updated, &both);
    book.absorb(&Lesson {
        on: updated.clone(),
        ..lesson("2", 10_000, 1)
    });
    check_known(&book, &updated, &both);
}

#[test]
fn other_requests_and_shapes_are_no_reference() {
    let mut book = BaselineBook::new(20);
    book.absorb(&lesson("1", 10_000, 30));
    let npu = lesson("", 1, 1).key.requested_eps;
    let cpu = book.of_session("m", &[], &on("2"));
    assert_eq!(
        cpu.of_shape("static").absence(),
        Some(BaselineAbsence::FirstVersion)
    );
    let other_shape = book.of_session("m", &npu, &on("2"));
    assert_eq!(
        other_shape.of_shape("x:1x2").absence(),
        Some(BaselineAbsence::NewShape)
    );
}

#[test]
fn learning_ends_before_a_late_fault_becomes_usual() {
    let mut book = BaselineBook::new(20);
    book.absorb(&lesson("1", 10_000, policy::MAX_BASELINE_RUNS));
    book.absorb(&lesson("1", 90_000, policy::MAX_BASELINE_RUNS));
    assert!(baselines(&book, &on("2")).known()[0].p95_us < 11_000.0);
}

#[test]
fn a_file_that_cannot_be_read_is_lost_and_says_so() {
    for junk in [&b"{"[..], b"[[1,2]]", b"", b"null"] {
        let book = BaselineBook::from_json(junk, 20);
        check_absent(&book, &on("1"), BaselineAbsence::Lost);
    }
    let mut book = BaselineBook::new(20);
    book.absorb(&lesson("1", 10_000, 30));
    let json = String::from_utf8(book.to_json()).unwrap();
    let lying = json.replace("\"n\":30", "\"n\":31");
    assert_ne!(json, lying);
    check_absent(
        &BaselineBook::from_json(lying.as_bytes(), 20),
        &on("2"),
        BaselineAbsence::Lost,
    );
}

#[test]
fn only_clean_runs_teach() {
    let clean = Stratum {
        phase: Phase::Warm,
        thermal: Thermal::Light,
        power_save: PowerSave::Unknown,
        performance_mode: String::new(),
        shape_key: "static".to_owned(),
        session_age: SessionAge::Under1Min,
    };
    assert!(is_clean(&clean));
    let unclean = [
        Stratum {
            phase: Phase::Cold,
            ..clean.clone()
        },
        Stratum {
            thermal: Thermal::Moderate,
            ..clean.clone()
        },
        Stratum {
            power_save: PowerSave::On,
            ..clean.clone()
        },
        Stratum {
            shape_key: interner::OTHER.to_owned(),
            ..clean.clone()
        },
    ];
    assert!(!unclean.iter().any(is_clean));
}

#[test]
fn the_book_is_bounded() {
    let mut book = BaselineBook::new(20);
    for model in 0..2 * policy::MAX_BASELINES {
        let mut lesson = lesson("1", 10_000, 1);
        lesson.key.model = model.to_string();
        book.absorb(&lesson);
    }
    assert_eq!(book.entries.len(), policy::MAX_BASELINES);
}

#[test]
fn a_downgrade_is_another_version() {
    let mut book = BaselineBook::new(20);
    book.absorb(&lesson("2", 10_000, 30));
    book.absorb(&lesson("3", 12_000, 30));
    // Back to one that was never seen here: compared with what ran last, like any new one.
    check_known(&book, &on("1"), &[(PreviousVersion, "3")]);
    book.absorb(&lesson("1", 40_000, 30));
    check_known(&book, &on("1"), &[(PreviousVersion, "3")]);
    // Back to the one before: it is not learnt again, and is compared with the one it replaces.
    let mut book = BaselineBook::new(20);
    book.absorb(&lesson("2", 10_000, 30));
    book.absorb(&lesson("3", 12_000, 30));
    book.absorb(&lesson("2", 90_000, 30));
    check_known(&book, &on("2"), &[(PreviousVersion, "3")]);
    check_known(&book, &on("4"), &[(PreviousVersion, "3")]);
}

#[test]
fn firmware_is_part_of_what_latency_was_learnt_on() {
    let with = |firmware: &str| LearntOn {
        firmware: firmware.to_owned(),
        ..on("1")
    };
    let learn = |book: &mut BaselineBook, firmware: &str, us, n| {
        book.absorb(&Lesson {
            on: with(firmware),
            ..lesson("1", us, n)
        });
    };
    let mut book = BaselineBook::new(20);
    learn(&mut book, "a", 10_000, 30);
    check_known(&book, &with("b"), &[(EarlierRuntime, "1")]);
    learn(&mut book, "b", 20_000, 19);
    // Too few runs on b: on c it is a that counts as earlier, and says so.
    learn(&mut book, "c", 30_000, 1);
    check_known(&book, &with("c"), &[(EarlierRuntime, "1")]);
    let known = baselines(&book, &with("c"));
    assert_eq!(known.known()[0].vendor_fingerprint_hash, "a");
    // An update that is taken back is not learnt a second time.
    learn(&mut book, "a", 90_000, 30);
    assert!(baselines(&book, &with("c")).known()[0].p95_us < 11_000.0);
    // The next version is compared with what 1 was where it settled, before it began and after.
    for _ in 0..2 {
        check_known(&book, &on("2"), &[(PreviousVersion, "1")]);
        assert_eq!(
            baselines(&book, &on("2")).known()[0].vendor_fingerprint_hash,
            "a"
        );
        book.absorb(&lesson("2", 10_000, 1));
    }
}

#[test]
fn an_earlier_version_that_never_settled_is_not_denied() {
    let mut book = BaselineBook::new(20);
    book.absorb(&lesson("1", 10_000, 5));
    for _ in 0..2 {
        check_absent(&book, &on("2"), BaselineAbsence::TooFewRuns);
        book.absorb(&lesson("2", 10_000, 30));
    }
}

/// In steps of learning: a clock that was in 2099 for a day would keep its entries for ever, and
/// evict every later one as soon as it came.
#[test]
fn the_one_that_learnt_longest_ago_is_forgotten_and_said_to_be() {
    let mut book = BaselineBook::new(20);
    let of = |model: usize| {
        let mut lesson = lesson("1", 10_000, 30);
        lesson.key.model = model.to_string();
        lesson
    };
    for model in 0..policy::MAX_BASELINES {
        book.absorb(&of(model));
    }
    book.absorb(&of(0));
    book.absorb(&of(1_000));
    let models: Vec<_> = book.entries.keys().map(|key| key.model.as_str()).collect();
    assert!(models.contains(&"0") && models.contains(&"1000") && !models.contains(&"1"));
    let absence = |book: &BaselineBook| {
        let of_session = book.of_session("1", &of(1).key.requested_eps, &on("2"));
        of_session.of_shape("static").absence()
    };
    assert_eq!(absence(&book), Some(BaselineAbsence::Lost));
    let again = BaselineBook::from_json(&book.to_json(), 20);
    assert_eq!(absence(&again), Some(BaselineAbsence::Lost));
}

#[test]
fn a_loss_is_still_known_after_the_next_start() {
    let mut book = BaselineBook::from_json(b"torn", 20);
    book.absorb(&lesson("1", 10_000, 30));
    let again = BaselineBook::from_json(&book.to_json(), 20);
    check_absent(&again, &on("1"), BaselineAbsence::Lost);
    // What was learnt since is there.
    check_known(&again, &on("2"), &[(PreviousVersion, "1")]);
}

#[test]
fn a_file_whose_texts_no_collector_would_take_is_lost() {
    for bad in ["", "two\nlines", &"v".repeat(65)] {
        let mut book = BaselineBook::new(20);
        book.absorb(&Lesson {
            on: on(bad),
            ..lesson("1", 10_000, 30)
        });
        check_absent(
            &BaselineBook::from_json(&book.to_json(), 20),
            &on("2"),
            BaselineAbsence::Lost,
        );
    }
}

proptest! {
    #[test]
    fn the_book_comes_back_from_its_file(
        lessons in prop::collection::vec((0_u8..4, 1_u64..1_000_000, 1_u64..40), 0..12),
    ) {
        let mut book = BaselineBook::new(20);
        for (version, us, n) in lessons {
            book.absorb(&lesson(&version.to_string(), us, n));
        }
        let again = BaselineBook::from_json(&book.to_json(), 20);
        prop_assert!(!again.is_lost);
        for version in 0..5 {
            let on = on(&version.to_string());
            prop_assert_eq!(baselines(&again, &on), baselines(&book, &on));
        }
    }
}
