//! Tests one fleet for each event in the field, also together with faults. The detector must page for the fault and for
//! nothing else.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

mod changes;
mod compiled_models;
mod directives;
mod files;
mod first_version;
mod golden;
mod incident;
mod labelled;
mod newcomers;
mod only_version;
mod pinned;
mod quiet;
mod recorded_fleets;
mod restarts;
mod small;
mod starts;
mod stories;
mod sybil_resistance;

use std::sync::Arc;
use std::time::Duration;

use epwatch_detection::labelled::{
    Benign, Family, FamilyReport, FamilySpec, Fault, FaultKind, PlacementView, Truth,
};
use epwatch_detector::DetectorConfig;
use epwatch_detector::read::Source;
use epwatch_detector::read::recorded::{Intake, SenderDecision};
use epwatch_detector::replay::{Line, ReplayOptions, replay, to_json};
use epwatch_model::summary::IncidentSummary;
use epwatch_model::{Severity, State, VerdictClass};
use epwatch_proto::{ReasonCode, Report, StartFailure, StartPhase};
use epwatch_server::Period;

const START_MS: i64 = 1_767_225_600_000;
const DAY_MS: i64 = 86_400_000;
const HOUR: Duration = Duration::from_secs(3_600);

/// A family that gets 2.0.0 at once, with one device of ten without a self baseline.
fn spec(seed: u64, truth: Truth, view: PlacementView) -> FamilySpec {
    FamilySpec {
        without_baseline: 0.1,
        ..FamilySpec::at_once(seed, truth, view)
    }
}

/// One activation on the CPU of one chipset: 18 % of the FLOPs, 8.2 -> 24 ms.
const INCIDENT: Truth = Truth::Fault(Fault {
    kind: FaultKind::Total,
    factor: 24.0 / 8.2,
    moved: 0.18,
});
const PLAIN: Truth = Truth::Benign(Benign::Plain);

fn reports(spec: FamilySpec) -> Vec<FamilyReport> {
    let family = Family::new(spec, START_MS);
    (0..family.n_windows())
        .flat_map(|window| family.window(window))
        .collect()
}

fn is_new(report: &FamilyReport) -> bool {
    report.received_ms >= START_MS + 7 * DAY_MS
}

/// The NPU does not start: the report has a failure in the place of its sessions.
fn fail_to_start(report: &mut Report) {
    let session = &report.sessions[0];
    report.start_failures = vec![StartFailure {
        model: session.model.clone(),
        requested_eps: session.requested_eps.clone(),
        phase: StartPhase::SessionCreation,
        reason: ReasonCode::BackendSetupFailed,
        ort_status_code: 1,
        text: "device creation failed".into(),
        count: 1,
        device_type: None,
    }];
    report.sessions.clear();
    report.series.clear();
    report.self_tests.clear();
    report.run_errors.clear();
}

fn options() -> ReplayOptions {
    ReplayOptions {
        config: DetectorConfig {
            step: Period(24 * HOUR),
            ..DetectorConfig::default()
        },
        // The first report may arrive at any time of its window, so the start is given.
        from: Some(jiff::Timestamp::from_millisecond(START_MS).unwrap()),
        to: None,
        all: true,
        modes: false,
    }
}

async fn lines_of(source: Source) -> Vec<Line> {
    lines_with(source, &options()).await
}

async fn lines_with(source: Source, options: &ReplayOptions) -> Vec<Line> {
    let mut lines = Vec::new();
    let mut keep = |line: Line| {
        lines.push(line);
        Ok(())
    };
    replay(source, options, &mut keep).await.unwrap();
    lines
}

fn recorded(reports: &[FamilyReport]) -> Source {
    let mut intake = Intake::new(HOUR);
    for report in reports {
        let (app, mark) = (("camera", "production"), SenderDecision::default());
        intake.add_marked(report.received_ms, app, &report.report, &report.sent, mark);
    }
    let (recording, _) = intake.finish().unwrap();
    Source::recorded(Arc::new(recording), 2_000_000)
}

/// The statistics about two modes of latency are shown, but do not decide anything.
#[tokio::test]
async fn lines_without_modes_say_the_same_of_all_else() {
    let reports = reports(spec(1, INCIDENT, PlacementView::Missing));
    let said = async |modes| {
        let options = ReplayOptions { modes, ..options() };
        let lines = lines_with(recorded(&reports), &options).await;
        let (mut rest, mut of_modes) = (Vec::new(), 0);
        for line in &lines {
            let mut line: serde_json::Value = serde_json::from_str(&to_json(line)).unwrap();
            let fields = line.as_object_mut().unwrap();
            for name in ["dip", "dip_p", "valley_depth", "mixture_separation"] {
                of_modes += usize::from(fields.remove(name).is_some_and(|value| !value.is_null()));
            }
            // The notification's text has a line about modes, so it is not compared.
            fields.remove("text");
            rest.push(line);
        }
        (rest, of_modes)
    };
    let ((with, n_with), (without, n_without)) = (said(true).await, said(false).await);
    assert_eq!(with, without);
    assert!(n_with > 10 && n_without == 0, "{n_with} {n_without}");
}

async fn replayed(reports: &[FamilyReport]) -> Vec<Line> {
    lines_of(recorded(reports)).await
}

/// End of the window and incident, for each change of an incident.
fn incidents(lines: &[Line]) -> Vec<(String, IncidentSummary)> {
    let changes = lines.iter().filter_map(|line| match line {
        Line::Incident(line) => Some((line.window_end.clone(), line.incident.clone())),
        _ => None,
    });
    changes.collect()
}

/// End of the window, chipsets and verdict of each page that is sent.
fn pages(lines: &[Line]) -> Vec<(String, Vec<String>, VerdictClass)> {
    let firing = incidents(lines).into_iter().filter(|(_, incident)| {
        incident.state == State::Firing
            && incident.severity == Severity::Page
            && incident.part_of.is_none()
    });
    firing
        .map(|(end, incident)| {
            let verdict = incident.verdict.unwrap_or(VerdictClass::Healthy);
            (end, incident.chipsets, verdict)
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

/// The first window with a fault pages once, for the chipset that has it.
#[track_caller]
fn check_paged(lines: &[Line], class: VerdictClass) {
    let end = "2026-01-09T00:00:00Z".to_owned();
    let expected = (end, vec!["SM8650".to_owned()], class);
    assert_eq!(pages(lines), [expected]);
}
