//! One fleet each for what fleets do besides breaking: the detector must page for the fault and for
//! nothing else.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use epwatch_detector::DetectorConfig;
use epwatch_detector::incident::State;
use epwatch_detector::period::Period;
use epwatch_detector::replay::{Line, ReplayOptions, read_files, replay, to_json};
use epwatch_detector::source::Source;
use epwatch_detector::source::recorded::Intake;
use epwatch_detector::verdict::{Severity, VerdictClass};
use epwatch_fleet::labelled::{
    Benign, Family, FamilyReport, FamilySpec, Fault, FaultKind, PlacementView, Story,
};
use epwatch_proto::recorded::write_recorded;
use epwatch_proto::{GraphKind, InstallationId, RecordedReport};

const START_MS: i64 = 1_767_225_600_000;
const DAY_MS: i64 = 86_400_000;
const HOUR: Duration = Duration::from_secs(3_600);

/// 100 devices on each of four chipsets, 50 runs each, seven windows before 2.0.0 reaches everyone.
fn spec(seed: u64, story: Story, view: PlacementView) -> FamilySpec {
    FamilySpec {
        view,
        chipsets: 4,
        devices: 100,
        windows: (7, 2),
        rollout: vec![1.0],
        rolls_out_twice: false,
        runs: 50.0,
        reports: 1,
        shape_known: true,
        peers: 0.0,
        base_us: 8_200.0,
        without_baseline: 0.1,
        ..FamilySpec::drawn(seed, story)
    }
}

/// One activation on the CPU of one chipset: 18 % of the FLOPs, 8.2 -> 24 ms.
const INCIDENT: Story = Story::Fault(Fault {
    kind: FaultKind::Total,
    factor: 24.0 / 8.2,
    moved: 0.18,
});
const PLAIN: Story = Story::Benign(Benign::Plain);

fn reports(spec: FamilySpec) -> Vec<FamilyReport> {
    let family = Family::new(spec, START_MS);
    (0..family.n_windows())
        .flat_map(|window| family.window(window))
        .collect()
}

fn is_new(report: &FamilyReport) -> bool {
    report.received_ms >= START_MS + 7 * DAY_MS
}

fn options() -> ReplayOptions {
    ReplayOptions {
        config: DetectorConfig {
            step: Period(24 * HOUR),
            ..DetectorConfig::default()
        },
        from: None,
        to: None,
        all: true,
    }
}

async fn lines_of(source: Source) -> Vec<Line> {
    let mut lines = Vec::new();
    let mut keep = |line: Line| {
        lines.push(line);
        Ok(())
    };
    replay(source, &options(), &mut keep).await.unwrap();
    lines
}

async fn judged(reports: &[FamilyReport]) -> Vec<Line> {
    let mut intake = Intake::new(HOUR);
    for report in reports {
        intake.add_report(
            report.received_ms,
            ("camera", "production"),
            &report.report,
            &report.sent,
        );
    }
    let (recording, _) = intake.finish();
    lines_of(Source::recorded(Arc::new(recording), 2_000_000)).await
}

/// End of the window, chipsets and verdict of each page.
fn pages(lines: &[Line]) -> Vec<(String, Vec<String>, VerdictClass)> {
    let pages = lines.iter().filter_map(|line| match line {
        Line::Incident(line) => Some(line),
        _ => None,
    });
    pages
        .filter(|line| line.incident.state == State::Firing)
        .filter(|line| line.incident.severity == Severity::Page)
        .map(|line| {
            let incident = &line.incident;
            let verdict = incident.verdict.unwrap_or(VerdictClass::Healthy);
            (line.window_end.clone(), incident.chipsets.clone(), verdict)
        })
        .collect()
}

/// Verdicts of a version, in the order of their windows.
fn verdicts(lines: &[Line], version: &str, chipset: &str) -> Vec<VerdictClass> {
    let verdicts = lines.iter().filter_map(|line| match line {
        Line::Verdict(verdict) => Some(verdict),
        _ => None,
    });
    verdicts
        .filter(|v| v.version == version && v.chipset == chipset && v.firmware.is_empty())
        .map(|v| v.verdict)
        .collect()
}

#[track_caller]
fn check_quiet(lines: &[Line]) {
    let pages = pages(lines);
    assert!(pages.is_empty(), "{pages:?}");
}

#[tokio::test]
async fn the_incident_pages_in_its_first_window_whatever_placements_say() {
    let first = "2026-01-09T00:00:00Z".to_owned();
    for (view, class) in [
        (PlacementView::Full, VerdictClass::PartialFallback),
        (PlacementView::Missing, VerdictClass::SlowWithoutPlacement),
        (PlacementView::Lying, VerdictClass::SlowWithoutPlacement),
    ] {
        for seed in [1, 2, 3] {
            let lines = judged(&reports(spec(seed, INCIDENT, view))).await;
            let expected = (first.clone(), vec!["SM8650".to_owned()], class);
            assert_eq!(pages(&lines), [expected], "{view:?} {seed}");
        }
    }
}

#[tokio::test]
async fn splitting_a_window_into_more_reports_changes_no_verdict() {
    let runs = Fault {
        kind: FaultKind::IntermittentRuns(0.3),
        factor: 4.0,
        moved: 0.3,
    };
    let stories = [
        (INCIDENT, PlacementView::Full),
        (Story::Fault(runs), PlacementView::Missing),
        (Story::Benign(Benign::Contention), PlacementView::NodesOnly),
    ];
    for (story, view) in stories {
        let mut answers = Vec::new();
        for split in [1, 6, 24] {
            let told = reports(FamilySpec {
                reports: split,
                devices: 40,
                chipsets: 2,
                peers: 0.5,
                ..spec(5, story, view)
            });
            answers.push(as_judged(&judged(&told).await));
        }
        assert!(!answers[0].is_empty());
        assert_eq!(answers[0], answers[1], "{story:?}");
        assert_eq!(answers[0], answers[2], "{story:?}");
    }
}

/// End of the window, model, version, chipset and firmware, verdict, devices hit.
type AsJudged = (String, [String; 3], VerdictClass, Severity, u64);

fn as_judged(lines: &[Line]) -> Vec<AsJudged> {
    let verdicts = lines.iter().filter_map(|line| match line {
        Line::Verdict(verdict) => Some(verdict),
        _ => None,
    });
    let judged = verdicts.map(|v| {
        let cohort = [
            v.model.clone(),
            v.version.clone(),
            v.chipset.clone() + &v.firmware,
        ];
        let end = v.window_end.clone();
        (end, cohort, v.verdict, v.severity, v.devices_hit)
    });
    judged.collect()
}

/// The DSP restarts at noon, and what ran on the NPU until then runs on the CPU from then on.
#[tokio::test]
async fn a_placement_that_changes_within_a_window_pages_if_it_is_slower() {
    let split = |story| {
        reports(FamilySpec {
            reports: 6,
            ..spec(20, story, PlacementView::Full)
        })
    };
    let noon = START_MS + 7 * DAY_MS + DAY_MS / 2;
    let mut told = split(PLAIN);
    told.retain(|report| report.received_ms < noon);
    let after = split(INCIDENT);
    told.extend(after.into_iter().filter(|r| r.received_ms >= noon));
    let pages = pages(&judged(&told).await);
    assert_eq!(pages.len(), 1, "{pages:?}");
    assert_eq!(pages[0].1, ["SM8650"], "{pages:?}");
}

/// A chipset that never ran the model before: there is nothing of its own to compare with, and it is
/// as slow as it is.
#[tokio::test]
async fn a_model_that_is_new_on_a_chipset_is_no_fault() {
    let mut told = reports(spec(21, PLAIN, PlacementView::Full));
    let is_first = |report: &FamilyReport| report.report.device.chipset_raw == "SM8650";
    told.retain(|report| !is_first(report) || is_new(report));
    for report in told.iter_mut().filter(|report| is_first(report)) {
        for series in &mut report.report.series {
            series.baselines =
                epwatch_proto::Baselines::Absent(epwatch_proto::BaselineAbsence::FirstVersion);
            series.exceed = None;
        }
    }
    check_quiet(&judged(&told).await);
}

/// 100,000 made-up installations claim what a real fault would look like.
#[tokio::test]
async fn forged_installations_do_not_page_and_raise_data_quality() {
    let mut reports_now = reports(spec(11, PLAIN, PlacementView::Full));
    let faulty = reports(spec(11, INCIDENT, PlacementView::Full));
    let claims: Vec<&FamilyReport> = faulty
        .iter()
        .filter(|report| is_new(report) && report.received_ms < START_MS + 8 * DAY_MS)
        .filter(|report| report.report.device.chipset_raw == "SM8650")
        .collect();
    for forged in 0..100_000_u32 {
        let mut claim = claims[forged as usize % claims.len()].clone();
        let name = format!("forged {forged}");
        claim.report.key.installation = InstallationId::from_secret(name.as_bytes());
        reports_now.push(claim);
    }
    let lines = judged(&reports_now).await;
    check_quiet(&lines);
    let new = verdicts(&lines, "2.0.0", "SM8650");
    assert_eq!(new[0], VerdictClass::DataQuality, "{new:?}");
}

#[tokio::test]
async fn npu_off_by_directive_does_not_page() {
    let mut changed = reports(spec(12, INCIDENT, PlacementView::Full));
    for report in changed.iter_mut().filter(|report| is_new(report)) {
        for session in &mut report.report.sessions {
            session.directive_id = "npu-off-1".into();
            session.placement.requested_eps.clear();
        }
    }
    check_quiet(&judged(&changed).await);
}

/// Node names, counts and fingerprints change with the runtime; latency does not.
#[tokio::test]
async fn a_runtime_that_renames_and_recounts_is_no_fault() {
    let story = Story::Benign(Benign::ChangedCounting);
    for view in [PlacementView::Full, PlacementView::NodesOnly] {
        check_quiet(&judged(&reports(spec(13, story, view))).await);
    }
}

#[tokio::test]
async fn a_switch_to_epcontext_is_no_fault() {
    let mut changed = reports(spec(14, PLAIN, PlacementView::Full));
    for report in changed.iter_mut().filter(|report| is_new(report)) {
        for session in &mut report.report.sessions {
            let placement = &mut session.placement;
            placement.graph_kind = GraphKind::EpContext;
            placement.n_nodes = 2;
            placement.macs_attributed = None;
            for ep in &mut placement.eps {
                ep.n_nodes = 1;
                ep.op_types.clear();
                ep.op_types.insert("EPContext".into(), 1);
                ep.macs_share = None;
            }
        }
    }
    check_quiet(&judged(&changed).await);
}

/// Half of the devices of a chipset get new firmware in the middle of a window, and nothing else
/// happens.
#[tokio::test]
async fn a_firmware_update_in_mid_window_is_no_fault() {
    let mut changed = reports(FamilySpec {
        reports: 6,
        ..spec(15, PLAIN, PlacementView::Full)
    });
    for report in &mut changed {
        if report.received_ms > START_MS + 7 * DAY_MS + DAY_MS / 2 {
            let hash = epwatch_proto::device::vendor_fingerprint_hash("f9");
            report.report.device.vendor_fingerprint_hash = hash;
        }
    }
    check_quiet(&judged(&changed).await);
}

/// On 40 % of the devices sessions are made again on the CPU: a fallback that came and is real.
#[tokio::test]
async fn sessions_that_come_back_on_the_cpu_page() {
    let fault = Fault {
        kind: FaultKind::IntermittentSessions(0.4),
        factor: 4.0,
        moved: 0.9,
    };
    let lines = judged(&reports(spec(16, Story::Fault(fault), PlacementView::Full))).await;
    let pages = pages(&lines);
    assert_eq!(pages[0].1, ["SM8650"], "{pages:?}");
}

/// 1.0.0 is new everywhere and falls back wholly on one chipset: others show it, but only as a
/// ticket, since chipsets differ by right.
#[tokio::test]
async fn a_first_version_that_falls_back_on_one_chipset_is_a_ticket() {
    let mut first = reports(spec(17, INCIDENT, PlacementView::Full));
    first.retain(is_new);
    for report in &mut first {
        let report = &mut report.report;
        for series in &mut report.series {
            series.baselines =
                epwatch_proto::Baselines::Absent(epwatch_proto::BaselineAbsence::FirstVersion);
            series.exceed = None;
        }
        if report.device.chipset_raw != "SM8650" {
            continue;
        }
        for session in &mut report.sessions {
            let placement = &mut session.placement;
            placement
                .eps
                .retain(|ep| ep.ep == epwatch_proto::placement::CPU_EP);
            for ep in &mut placement.eps {
                ep.n_nodes = placement.n_nodes;
                ep.macs_share = Some(1.0);
            }
        }
    }
    let lines = judged(&first).await;
    check_quiet(&lines);
    let found = verdicts(&lines, "2.0.0", "SM8650");
    assert_eq!(found[0], VerdictClass::TotalFallback, "{found:?}");
}

fn file_of(reports: &[FamilyReport]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for report in reports {
        let record = RecordedReport {
            received_at_unix_ms: report.received_ms,
            app_id: "camera".into(),
            environment: "production".into(),
            report: report.report.to_bytes().into(),
            sent: report.sent.clone(),
        };
        write_recorded(&mut bytes, &record).unwrap();
    }
    bytes
}

async fn texts_of(paths: &[std::path::PathBuf]) -> Vec<String> {
    let read = read_files(paths, HOUR).unwrap();
    let lines = lines_of(Source::recorded(Arc::new(read.recording), 1_000_000)).await;
    lines.iter().map(to_json).collect()
}

#[tokio::test]
async fn files_in_any_order_twice_or_packed_give_the_same_lines() {
    let dir = tempfile::tempdir().unwrap();
    let all = reports(FamilySpec {
        devices: 30,
        chipsets: 2,
        ..spec(18, INCIDENT, PlacementView::Full)
    });
    let path = |name: &str| dir.path().join(name);
    let (early, late) = all.split_at(all.len() / 2);
    std::fs::write(path("all"), file_of(&all)).unwrap();
    std::fs::write(path("early"), file_of(early)).unwrap();
    let file = std::fs::File::create(path("late.gz")).unwrap();
    let mut packed = flate2::write::GzEncoder::new(file, flate2::Compression::fast());
    packed.write_all(&file_of(late)).unwrap();
    packed.finish().unwrap();

    let expected = texts_of(&[path("all")]).await;
    let pages = expected.last().unwrap();
    assert!(pages.contains(r#""pages":1"#), "{pages}");
    assert_eq!(texts_of(&[path("late.gz"), path("early")]).await, expected);
    assert_eq!(texts_of(&[path("all"), path("early")]).await, expected);
}

#[tokio::test]
async fn a_torn_tail_and_bytes_that_are_no_records_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let all = reports(FamilySpec {
        devices: 3,
        chipsets: 1,
        ..spec(19, PLAIN, PlacementView::Full)
    });
    let mut bytes = file_of(&all);
    bytes.truncate(bytes.len() - 5);
    let torn = dir.path().join("torn");
    std::fs::write(&torn, bytes).unwrap();
    let read = read_files(std::slice::from_ref(&torn), HOUR).unwrap();
    assert_eq!(read.torn.len(), 1);
    assert_eq!(read.summary.reports, all.len() as u64 - 1);

    let text = dir.path().join("text");
    std::fs::write(&text, "{\"kind\": \"verdict\"}\n".repeat(50)).unwrap();
    let error = read_files(std::slice::from_ref(&text), HOUR).unwrap_err();
    assert!(error.to_string().contains("text"), "{error}");
    let error = read_files(&[dir.path().join("absent")], HOUR).unwrap_err();
    assert!(error.to_string().contains("absent"), "{error}");
}
