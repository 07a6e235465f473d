use epwatch_proto::{Phase, PowerSave, SessionAge, Thermal};
use proptest::prelude::*;

use super::*;
use crate::moments::Sums;

pub(crate) fn on(version: &str) -> BaselineSoftware {
    BaselineSoftware {
        version: version.to_owned(),
        firmware: String::new(),
        ort: "1.31.1".to_owned(),
        ep: "2.7.0".to_owned(),
    }
}

/// `n` runs of `us` microseconds.
pub(crate) fn update(version: &str, us: u64, n: u64) -> BaselineUpdate {
    let mut histogram = SparseHistogram::default();
    let mut sums = Sums::default();
    for _ in 0..n {
        histogram.record_n(us, 1);
        sums.add(1000 * us);
    }
    BaselineUpdate {
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

fn of(baselines: &BaselineSet, on: &BaselineSoftware) -> Baselines {
    let key = update("", 1, 1).key;
    let for_session = baselines.for_session(&key.model, &key.requested_eps, on);
    for_session.of_shape(&key.shape)
}

#[track_caller]
fn check_known(baselines: &BaselineSet, on: &BaselineSoftware, expected: &[(BaselineKind, &str)]) {
    let baselines = of(baselines, on);
    let known: Vec<_> = baselines.known().iter().collect();
    let got: Vec<_> = known
        .iter()
        .map(|b| (b.kind, b.model_version.as_str()))
        .collect();
    assert_eq!(got, expected);
}

#[track_caller]
fn check_absent(baselines: &BaselineSet, on: &BaselineSoftware, expected: BaselineAbsence) {
    assert_eq!(of(baselines, on), Baselines::Absent(expected));
}

use BaselineKind::{EarlierRuntime, PreviousVersion};

#[test]
fn the_last_settled_version_is_the_baseline_of_the_next() {
    let mut baselines = BaselineSet::new(20);
    check_absent(&baselines, &on("1"), BaselineAbsence::FirstVersion);
    baselines.apply(&update("1", 10_000, 19));
    check_absent(&baselines, &on("1"), BaselineAbsence::FirstVersion);
    check_absent(&baselines, &on("2"), BaselineAbsence::TooFewRuns);
    baselines.apply(&update("1", 10_000, 1));
    check_known(&baselines, &on("2"), &[(PreviousVersion, "1")]);
    baselines.apply(&update("2", 20_000, 5));
    check_known(&baselines, &on("2"), &[(PreviousVersion, "1")]);
    // Version 2 never settled, so 3 is compared with 1.
    check_known(&baselines, &on("3"), &[(PreviousVersion, "1")]);
    baselines.apply(&update("3", 20_000, 30));
    check_known(&baselines, &on("4"), &[(PreviousVersion, "3")]);
    let baselines = of(&baselines, &on("4"));
    let baseline = &baselines.known()[0];
    assert_eq!(baseline.n, 30);
    assert!((baseline.p50_us - 20_000.0).abs() < 200.0, "{baseline:?}");
    assert!(baseline.cv.abs() < 1e-9);
}

#[test]
fn a_version_side_by_side_with_its_successor_stays_its_baseline() {
    let mut baselines = BaselineSet::new(20);
    baselines.apply(&update("1", 10_000, 30));
    for _ in 0..3 {
        baselines.apply(&update("2", 40_000, 10));
        baselines.apply(&update("1", 90_000, 10));
    }
    check_known(&baselines, &on("2"), &[(PreviousVersion, "1")]);
    assert!(of(&baselines, &on("2")).known()[0].p95_us < 11_000.0);
    check_known(&baselines, &on("1"), &[(PreviousVersion, "2")]);
}

#[test]
fn another_runtime_is_a_baseline_of_its_own() {
    let mut baselines = BaselineSet::new(20);
    baselines.apply(&update("1", 10_000, 30));
    baselines.apply(&update("2", 10_000, 30));
    let updated = BaselineSoftware {
        ep: "2.8.0".to_owned(),
        ..on("2")
    };
    let both = [(PreviousVersion, "1"), (EarlierRuntime, "2")];
    check_known(&baselines, &updated, &both);
    baselines.apply(&BaselineUpdate {
        on: updated.clone(),
        ..update("2", 10_000, 1)
    });
    check_known(&baselines, &updated, &both);
}

#[test]
fn other_requests_and_shapes_are_no_reference() {
    let mut baselines = BaselineSet::new(20);
    baselines.apply(&update("1", 10_000, 30));
    let npu = update("", 1, 1).key.requested_eps;
    let cpu = baselines.for_session("m", &[], &on("2"));
    assert_eq!(
        cpu.of_shape("static").absence(),
        Some(BaselineAbsence::FirstVersion)
    );
    let other_shape = baselines.for_session("m", &npu, &on("2"));
    assert_eq!(
        other_shape.of_shape("x:1x2").absence(),
        Some(BaselineAbsence::NewShape)
    );
}

#[test]
fn learning_ends_before_a_late_fault_becomes_usual() {
    let mut baselines = BaselineSet::new(20);
    baselines.apply(&update("1", 10_000, policy::MAX_BASELINE_RUNS));
    baselines.apply(&update("1", 90_000, policy::MAX_BASELINE_RUNS));
    assert!(of(&baselines, &on("2")).known()[0].p95_us < 11_000.0);
}

#[test]
fn an_unreadable_file_is_reported_as_lost() {
    for junk in [&b"{"[..], b"epwbas1\n", b"", b"epwbas1\n\0\0\0\0junk"] {
        let baselines = BaselineSet::parse(junk, 20);
        check_absent(&baselines, &on("1"), BaselineAbsence::Lost);
    }
    let mut baselines = BaselineSet::new(20);
    baselines.apply(&update("1", 10_000, 30));
    for entry in &mut baselines.entries {
        entry.history.current.n += 1;
    }
    let lying = BaselineSet::parse(&baselines.to_bytes(), 20);
    check_absent(&lying, &on("2"), BaselineAbsence::Lost);
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
    let mut baselines = BaselineSet::new(20);
    for model in 0..2 * policy::MAX_BASELINES {
        let mut update = update("1", 10_000, 1);
        update.key.model = model.to_string();
        baselines.apply(&update);
    }
    assert_eq!(baselines.entries.len(), policy::MAX_BASELINES);
}

#[test]
fn a_downgrade_is_another_version() {
    let mut baselines = BaselineSet::new(20);
    baselines.apply(&update("2", 10_000, 30));
    baselines.apply(&update("3", 12_000, 30));
    // After a roll-back to a version that never ran here, it is compared with the last version, like any new version.
    check_known(&baselines, &on("1"), &[(PreviousVersion, "3")]);
    baselines.apply(&update("1", 40_000, 30));
    check_known(&baselines, &on("1"), &[(PreviousVersion, "3")]);
    // After a roll-back to the version before, that version's baseline does not change. It is compared with the version
    // that it replaces.
    let mut baselines = BaselineSet::new(20);
    baselines.apply(&update("2", 10_000, 30));
    baselines.apply(&update("3", 12_000, 30));
    baselines.apply(&update("2", 90_000, 30));
    check_known(&baselines, &on("2"), &[(PreviousVersion, "3")]);
    check_known(&baselines, &on("4"), &[(PreviousVersion, "3")]);
}

#[test]
fn another_firmware_is_another_runtime() {
    let with = |firmware: &str| BaselineSoftware {
        firmware: firmware.to_owned(),
        ..on("1")
    };
    let learn = |baselines: &mut BaselineSet, firmware: &str, us, n| {
        baselines.apply(&BaselineUpdate {
            on: with(firmware),
            ..update("1", us, n)
        });
    };
    let mut baselines = BaselineSet::new(20);
    learn(&mut baselines, "a", 10_000, 30);
    check_known(&baselines, &with("b"), &[(EarlierRuntime, "1")]);
    learn(&mut baselines, "b", 20_000, 19);
    // Runtime b has too few runs, so the earlier runtime of c is a.
    learn(&mut baselines, "c", 30_000, 1);
    check_known(&baselines, &with("c"), &[(EarlierRuntime, "1")]);
    let known = of(&baselines, &with("c"));
    assert_eq!(known.known()[0].vendor_fingerprint_hash, "a");
    // A software update that is taken back is not measured a second time.
    learn(&mut baselines, "a", 90_000, 30);
    assert!(of(&baselines, &with("c")).known()[0].p95_us < 11_000.0);
    // The next version is compared with the settled state of version 1, both before and after its own first runs.
    for _ in 0..2 {
        check_known(&baselines, &on("2"), &[(PreviousVersion, "1")]);
        assert_eq!(
            of(&baselines, &on("2")).known()[0].vendor_fingerprint_hash,
            "a"
        );
        baselines.apply(&update("2", 10_000, 1));
    }
}

#[test]
fn an_earlier_version_that_never_settled_is_not_denied() {
    let mut baselines = BaselineSet::new(20);
    baselines.apply(&update("1", 10_000, 5));
    for _ in 0..2 {
        check_absent(&baselines, &on("2"), BaselineAbsence::TooFewRuns);
        baselines.apply(&update("2", 10_000, 30));
    }
}

/// Age is counted in updates. By wall time, entries from a day when the clock stood at 2099 would stay for ever, and
/// later ones would be evicted at once.
#[test]
fn the_one_updated_longest_ago_is_evicted_and_reported() {
    let mut baselines = BaselineSet::new(20);
    let of = |model: usize| {
        let mut update = update("1", 10_000, 30);
        update.key.model = model.to_string();
        update
    };
    for model in 0..policy::MAX_BASELINES {
        baselines.apply(&of(model));
    }
    baselines.apply(&of(0));
    baselines.apply(&of(1_000));
    let models: Vec<_> = baselines
        .entries
        .iter()
        .map(|entry| entry.key.model.as_str())
        .collect();
    assert!(models.contains(&"0") && models.contains(&"1000") && !models.contains(&"1"));
    let absence = |baselines: &BaselineSet| {
        let for_session = baselines.for_session("1", &of(1).key.requested_eps, &on("2"));
        for_session.of_shape("static").absence()
    };
    assert_eq!(absence(&baselines), Some(BaselineAbsence::Lost));
    let again = BaselineSet::parse(&baselines.to_bytes(), 20);
    assert_eq!(absence(&again), Some(BaselineAbsence::Lost));
}

#[test]
fn a_loss_is_still_known_after_the_next_start() {
    let mut baselines = BaselineSet::parse(b"torn", 20);
    baselines.apply(&update("1", 10_000, 30));
    let again = BaselineSet::parse(&baselines.to_bytes(), 20);
    check_absent(&again, &on("1"), BaselineAbsence::Lost);
    // Later updates are kept.
    check_known(&again, &on("2"), &[(PreviousVersion, "1")]);
}

#[test]
fn a_file_with_texts_that_a_collector_refuses_is_lost() {
    for bad in ["", "two\nlines", &"v".repeat(65)] {
        let mut baselines = BaselineSet::new(20);
        baselines.apply(&BaselineUpdate {
            on: on(bad),
            ..update("1", 10_000, 30)
        });
        check_absent(
            &BaselineSet::parse(&baselines.to_bytes(), 20),
            &on("2"),
            BaselineAbsence::Lost,
        );
    }
}

proptest! {
    #[test]
    fn the_book_comes_back_from_its_file(
        updates in prop::collection::vec((0_u8..4, 1_u64..1_000_000, 1_u64..40), 0..12),
    ) {
        let mut baselines = BaselineSet::new(20);
        for (version, us, n) in updates {
            baselines.apply(&update(&version.to_string(), us, n));
        }
        let again = BaselineSet::parse(&baselines.to_bytes(), 20);
        prop_assert!(!again.is_lost);
        for version in 0..5 {
            let on = on(&version.to_string());
            prop_assert_eq!(of(&again, &on), of(&baselines, &on));
        }
    }
}
