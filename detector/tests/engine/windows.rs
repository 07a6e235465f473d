//! Tests the path from rows to verdicts.

use epwatch_detector::read::{ModelWindows, Source, Span};
use epwatch_detector::{Deadline, DetectorConfig, Evaluator};
use epwatch_model::{CohortVerdict, Severity, VerdictClass};
use jiff::{SignedDuration, Timestamp};

use crate::support::{Reports, TestStore, V2, base, config, firmware, span};

pub(crate) fn after(base: Timestamp, seconds: i64) -> Timestamp {
    base + SignedDuration::from_secs(seconds)
}

pub(crate) async fn evaluate(store: &TestStore, end: Timestamp) -> Vec<CohortVerdict> {
    evaluate_with(config(), store, end).await
}

async fn evaluate_with(
    config: DetectorConfig,
    store: &TestStore,
    end: Timestamp,
) -> Vec<CohortVerdict> {
    let evaluator = Evaluator::new(Source::new(store.client(), 10_000), config);
    let evaluation = evaluator.evaluate(end).await.unwrap();
    assert!(evaluation.failures.is_empty(), "{:?}", evaluation.failures);
    evaluation.verdicts
}

#[track_caller]
pub(crate) fn of<'a>(
    verdicts: &'a [CohortVerdict],
    version: &str,
    chipset: &str,
) -> &'a CohortVerdict {
    let found: Vec<&CohortVerdict> = verdicts
        .iter()
        .filter(|v| v.key.model_version == version && v.key.chipset == chipset)
        .filter(|v| v.key.firmware.is_none())
        .collect();
    assert_eq!(found.len(), 1, "{version} on {chipset} in {verdicts:#?}");
    found[0]
}

/// Reads the only model.
async fn read_model(source: &Source, span: &Span) -> ModelWindows {
    let inputs = source.begin(span).await.unwrap();
    assert_eq!(inputs.models.len(), 1);
    let mut windows = inputs.windows(&inputs.models).await.unwrap();
    windows.remove(&inputs.models[0].model).unwrap().unwrap()
}

/// Version 1 everywhere, then version 2: SM8635 drops the head to the CPU.
pub(crate) async fn roll_out(store: &TestStore, base: Timestamp) {
    for chipset in ["SM8635", "SM8650"] {
        Reports {
            chipset,
            ..Reports::default()
        }
        .store(store, after(base, 10))
        .await;
    }
    Reports::fallen().store(store, after(base, 70)).await;
    Reports {
        chipset: "SM8650",
        ..Reports::v2()
    }
    .store(store, after(base, 70))
    .await;
}

#[tokio::test]
async fn a_version_that_falls_back_on_one_chipset_pages_for_that_chipset_alone() {
    let store = TestStore::start().await;
    let base = base();
    roll_out(&store, base).await;

    let first = evaluate(&store, after(base, 60)).await;
    assert_eq!(first.len(), 2);
    let v1 = of(&first, "1.0.0", "SM8635");
    // One other chipset is not a reference, and no device has a baseline.
    assert_eq!(v1.class, VerdictClass::NotEnoughData, "{v1:#?}");

    let second = evaluate(&store, after(base, 120)).await;
    assert_eq!(second.len(), 2);
    let sick = of(&second, "2.0.0", "SM8635");
    let answer = (sick.class, sick.severity);
    assert_eq!(
        answer,
        (VerdictClass::PartialFallback, Severity::Page),
        "{sick:#?}"
    );
    assert_eq!(
        sick.cpu_ops,
        ["Gemm", "LayerNormalization", "Relu", "Softmax"]
    );
    assert!((sick.cpu_macs_share.unwrap() - 0.26).abs() < 1e-6);
    assert_eq!(
        (sick.numbers.devices_hit, sick.numbers.devices_seen),
        (30, 30)
    );
    assert_eq!(sick.numbers.runs, 30 * 40);
    let ratio = sick.numbers.latency_ratio.unwrap();
    assert!((ratio - 24.0 / 8.2).abs() < 0.1, "{ratio}");
    let told = &sick.statistics;
    assert!((told.cv_within.unwrap() - 0.0289).abs() < 0.001, "{told:?}");
    assert!(
        told.cv_between.unwrap() > 0.02 && told.dip.is_some(),
        "{told:?}"
    );
    assert_eq!(of(&second, "2.0.0", "SM8650").class, VerdictClass::Healthy);

    store.stop().await;
}

#[tokio::test]
async fn a_copy_of_a_report_and_a_device_that_reports_often_count_once() {
    let store = TestStore::start().await;
    let base = base();
    roll_out(&store, base).await;
    // Device 0 reports six times; everybody else's first reports come twice.
    for second in 71..76 {
        Reports {
            devices: 0..1,
            ..Reports::fallen()
        }
        .store(&store, after(base, second))
        .await;
    }
    let copied = "INSERT INTO reports SELECT * REPLACE (wal_offset + 1000000000 AS wal_offset) \
                  FROM reports WHERE session_model_version = ['2.0.0']";
    store.client().query(copied).execute().await.unwrap();
    let copied = "INSERT INTO report_copies SELECT * REPLACE (wal_offset + 1000000000 AS wal_offset) \
                  FROM report_copies WHERE bucket >= now() - 3600";
    store.client().query(copied).execute().await.unwrap();

    let verdicts = evaluate(&store, after(base, 120)).await;
    let sick = of(&verdicts, "2.0.0", "SM8635");
    assert_eq!(
        (sick.numbers.devices_hit, sick.numbers.devices_seen),
        (30, 30)
    );
    assert_eq!(sick.numbers.runs, 35 * 40);
    store.stop().await;
}

#[tokio::test]
async fn devices_with_few_runs_add_earlier_windows_of_the_same_kind() {
    let store = TestStore::start().await;
    let base = base();
    let few = Reports {
        runs: 6,
        ..Reports::default()
    };
    // There are two older buckets, another firmware that must not be added, and the window.
    few.store(&store, after(base, 5)).await;
    few.store(&store, after(base, 20)).await;
    Reports {
        firmware: "f0",
        p50_us: 90_000.0,
        ..few.clone()
    }
    .store(&store, after(base, 30))
    .await;
    Reports {
        devices: 0..20,
        ..few.clone()
    }
    .store(&store, after(base, 70))
    .await;

    let source = Source::new(store.client(), 10_000);
    let read = read_model(&source, &span(after(base, 120))).await;
    assert_eq!(read.cohorts.len(), 1);
    let window = &read.cohorts[0];
    assert_eq!((window.n_devices(), window.n_runs()), (20, 20 * 6));
    for vote in &window.votes {
        let latency = vote.latency.as_ref().unwrap();
        assert_eq!(latency.moments.n(), 18);
        assert!(latency.low.unwrap().p50_us < 10_000.0 && latency.high.is_none());
    }
    // A window that is judged alone has only new runs.
    let alone = Span {
        stands_alone: true,
        ..span(after(base, 120))
    };
    let read = read_model(&source, &alone).await;
    assert_eq!(read.cohorts[0].votes.len(), 20);
    for vote in &read.cohorts[0].votes {
        assert_eq!(vote.latency.as_ref().unwrap().moments.n(), 6);
    }
    store.stop().await;
}

#[tokio::test]
async fn who_did_not_ask_for_the_npu_or_was_told_not_to_has_no_vote() {
    let store = TestStore::start().await;
    let base = base();
    roll_out(&store, base).await;
    let fallen = Reports {
        chipset: "SM8650",
        ..Reports::fallen()
    };
    let voteless = [
        Reports {
            requests_npu: false,
            devices: 100..130,
            ..fallen.clone()
        },
        Reports {
            directive: "npu-off",
            devices: 130..160,
            requests_npu: false,
            ..fallen.clone()
        },
        Reports {
            is_late: true,
            devices: 160..190,
            ..fallen
        },
    ];
    for (at, reports) in voteless.iter().enumerate() {
        reports
            .store(&store, after(base, 80 + i64::try_from(at).unwrap()))
            .await;
    }
    let verdicts = evaluate(&store, after(base, 120)).await;
    let cohort = of(&verdicts, "2.0.0", "SM8650");
    assert_eq!(
        (cohort.class, cohort.numbers.devices_seen),
        (VerdictClass::Healthy, 30)
    );
    store.stop().await;
}

#[tokio::test]
async fn firmwares_are_judged_alone_where_there_are_several() {
    let store = TestStore::start().await;
    let base = base();
    roll_out(&store, base).await;
    // Devices that were never seen before would have no vote against those that were.
    let earlier = Reports {
        devices: 50..80,
        chipset: "SM8650",
        firmware: "f2",
        ..Reports::default()
    };
    earlier.store(&store, after(base, 10)).await;
    let fallen = Reports {
        devices: 50..80,
        chipset: "SM8650",
        firmware: "f2",
        ..Reports::fallen()
    };
    fallen.store(&store, after(base, 90)).await;
    let verdicts = evaluate(&store, after(base, 120)).await;
    let pooled = of(&verdicts, "2.0.0", "SM8650");
    let answer = (
        pooled.class,
        pooled.numbers.devices_hit,
        pooled.numbers.devices_seen,
    );
    assert_eq!(answer, (VerdictClass::SomeDevicesFallback, 30, 60));
    let of_firmware = |name: &str| {
        let mut found = verdicts
            .iter()
            .filter(|v| v.key.firmware == Some(firmware(name)));
        found.next().unwrap().class
    };
    assert_eq!(of_firmware("f2"), VerdictClass::PartialFallback);
    assert_eq!(of_firmware("f1"), VerdictClass::Healthy);
    store.stop().await;
}

#[tokio::test]
async fn more_votes_than_the_bound_are_an_error_that_names_it() {
    let store = TestStore::start().await;
    let base = base();
    Reports::default().store(&store, after(base, 10)).await;
    let evaluator = Evaluator::new(Source::new(store.client(), 5), config());
    let evaluation = evaluator.evaluate(after(base, 60)).await.unwrap();
    let (_, error) = &evaluation.failures[0];
    assert!(error.to_string().contains("detector.max_votes"), "{error}");
    store.stop().await;
}

/// In every window of this cohort, two of 32 devices are slower than their baseline. That is its history.
#[tokio::test]
async fn a_cohorts_own_healthy_past_is_read_back_for_its_next_version() {
    let store = TestStore::start().await;
    let base = base();
    let v1 = Reports {
        version: "1.0.0",
        previous: Some(("0.9.0", 8_200.0)),
        ..Reports::default()
    };
    v1.store(&store, after(base, 10)).await;
    Reports {
        devices: 200..202,
        p50_us: 20_000.0,
        ..v1
    }
    .store(&store, after(base, 10))
    .await;
    let verdicts = evaluate(&store, after(base, 60)).await;
    let healthy = of(&verdicts, "1.0.0", "SM8635");
    assert_eq!(healthy.class, VerdictClass::Healthy, "{healthy:#?}");
    let written = epwatch_detector::VerdictStore::new(store.client());
    // The next step judges the same devices again, and they count once.
    written
        .add_windows(&verdicts, after(base, 61))
        .await
        .unwrap();
    let again = evaluate(&store, after(base, 65)).await;
    written.add_windows(&again, after(base, 66)).await.unwrap();

    let source = Source::new(store.client(), 10_000);
    let next = Reports {
        version: "2.0.0",
        place: V2,
        ..Reports::default()
    };
    let mut beyond_2x = Vec::new();
    for windows in [2, 4] {
        let span = span(after(base, 60 * windows));
        next.store(&store, after(base, 60 * windows - 50)).await;
        let read = read_model(&source, &span).await;
        let history = read.history("2.0.0", "SM8635", &span);
        let tally = history.of(epwatch_model::SignalId::ShiftBeyond(20));
        beyond_2x.push((tally.hits, tally.devices));
    }
    // The window just before does not count yet. Otherwise a fault that grows would become its own past.
    assert_eq!(beyond_2x, [(0, 0), (2, 32)]);
    let now = span(after(base, 240));
    let read = read_model(&source, &now).await;
    // A young version has no past of its own.
    assert_eq!(read.history("1.0.0", "SM8635", &now).0.len(), 0);
    let later = span(after(base, 60 + 7 * 60));
    Reports::default().store(&store, after(base, 470)).await;
    let read = read_model(&source, &later).await;
    let history = read.history("1.0.0", "SM8635", &later);
    let own = history.of(epwatch_model::SignalId::ShiftBeyond(20));
    // Seven windows agree on it.
    assert_eq!((own.hits, own.devices), (7 * 2, 7 * 32));
    let moved = history.of(epwatch_model::SignalId::Moved);
    assert_eq!(moved.devices, 0, "{history:?}");
    store.stop().await;
}

/// Sums of earlier windows are queried once for all windows that end in one eighth of a window's length. They may be
/// queried ahead.
#[tokio::test]
async fn earlier_windows_are_asked_once_for_neighbours_and_ahead() {
    let store = TestStore::start().await;
    // Windows of 60 s, whose eighths begin at 0 s, 7 s, 14 s of a minute.
    let base = base();
    let base = after(base, 60 - base.as_second() % 60);
    let reports = Reports {
        version: "1.0.0",
        previous: Some(("0.9.0", 8_200.0)),
        ..Reports::default()
    };
    reports.store(&store, after(base, 30)).await;
    let written = epwatch_detector::VerdictStore::new(store.client());
    for end in [60, 68] {
        let verdicts = evaluate(&store, after(base, end)).await;
        let now = after(base, end + 1);
        written.add_windows(&verdicts, now).await.unwrap();
    }

    let next = Reports {
        version: "2.0.0",
        place: V2,
        ..Reports::default()
    };
    next.store(&store, after(base, 260)).await;
    let source = Source::new(store.client(), 10_000);
    let devices_before = async |source: &Source, second| {
        let span = span(after(base, second));
        let read = read_model(source, &span).await;
        let history = read.history("2.0.0", "SM8635", &span);
        let tally = history.of(epwatch_model::SignalId::ShiftBeyond(20));
        tally.devices
    };
    let ahead = Source::new(store.client(), 10_000);
    for source in [&source, &ahead] {
        assert_eq!(devices_before(source, 300).await, 30);
    }
    ahead.look_ahead(&span(after(base, 308))).await.unwrap();
    let truncated = store.client().query("TRUNCATE TABLE cohort_windows");
    truncated.execute().await.unwrap();
    assert_eq!(devices_before(&source, 301).await, 30, "the same eighth");
    assert_eq!(devices_before(&source, 308).await, 0, "the next one");
    assert_eq!(devices_before(&ahead, 308).await, 30, "asked ahead");
    assert_eq!(devices_before(&ahead, 315).await, 0, "the one after");
    store.stop().await;
}

#[tokio::test]
async fn the_share_of_late_runs_is_stored_with_a_verdict() {
    let store = TestStore::start().await;
    let base = base();
    roll_out(&store, base).await;
    let config = DetectorConfig {
        deadlines: vec![Deadline {
            app: "camera".into(),
            model: "segmenter".into(),
            deadline_ms: 16.0,
        }],
        ..config()
    };
    let verdicts = evaluate_with(config, &store, after(base, 120)).await;
    let late = |chipset| {
        let verdict = of(&verdicts, "2.0.0", chipset);
        verdict.numbers.late_runs.clone().unwrap()
    };
    let (sick, well) = (late("SM8635"), late("SM8650"));
    assert!(sick.share > 0.9 && well.share < 0.1, "{sick:?}, {well:?}");
    assert_eq!(sick.other_chipsets, Some(well.share));
    let written = epwatch_detector::VerdictStore::new(store.client());
    let judged_at = after(base, 121);
    written.add_windows(&verdicts, judged_at).await.unwrap();
    let query = store.client().query(
        "SELECT assumeNotNull(deadline_us), assumeNotNull(late_share), \
             arrayExists(reason -> reason LIKE '% later than 16 ms on SM8635%', reasons) \
         FROM cohort_windows_v1 WHERE chipset = 'SM8635' AND firmware = ''",
    );
    let rows = query.fetch_all::<(f64, f64, u8)>().await.unwrap();
    assert_eq!(rows, [(16_000.0, sick.share, 1)]);
    store.stop().await;
}

/// A first version has nothing before it: the lab's placement shows that all of it fell back.
#[tokio::test]
async fn a_certified_placement_is_the_reference_of_a_first_version() {
    let store = TestStore::start().await;
    let base = base();
    let fallen = Reports {
        place: crate::support::Place {
            fingerprint: 30,
            npu_nodes: 0,
            cpu_nodes: 42,
            npu_macs_share: Some(0.0),
            cpu_ops: &["Conv"],
        },
        ..Reports::default()
    };
    fallen.store(&store, after(base, 10)).await;
    let before = evaluate(&store, after(base, 60)).await;
    let verdict = of(&before, "1.0.0", "SM8635");
    // The model requested the NPU and has no work there, which needs no reference.
    let found = (verdict.class, verdict.severity);
    assert_eq!(found, (VerdictClass::TotalFallback, Severity::Ticket));
    assert_eq!(verdict.numbers.reference_npu_share, None);
    store
        .client()
        .query(
            "INSERT INTO certified_placements (app_id, environment, model_id, model_version, \
             chipset, stored_at, ort_version, ep_version, graph_kind, placement_source, \
             fingerprint_algorithm, fingerprint_normalised, n_nodes, npu_nodes, npu_macs_share, \
             macs_attributed) VALUES ('camera', '*', 'segmenter', '1.0.0', 'SM8635', now64(3), \
             '1.31.1', '2.7.0', 'jit', 'assignment_api', 1, 31, 42, 42, 1.0, 1.0)",
        )
        .execute()
        .await
        .unwrap();
    let judged = evaluate(&store, after(base, 60)).await;
    let verdict = of(&judged, "1.0.0", "SM8635");
    let found = (verdict.class, verdict.severity);
    assert_eq!(found, (VerdictClass::TotalFallback, Severity::Page));
    assert_eq!(verdict.numbers.reference_npu_share, Some(1.0));
    store.stop().await;
}
