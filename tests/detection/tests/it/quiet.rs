//! Silent fleets make a ticket for an app or a version. Healthy fleets whose devices moved or pause do not.

use std::sync::Arc;

use epwatch_detection::labelled::{Circumstance, FamilyReport, FamilySpec, PlacementView};
use epwatch_detector::read::Source;
use epwatch_detector::read::recorded::{Intake, SenderDecision};
use epwatch_detector::replay::Line;
use epwatch_model::summary::IncidentSummary;
use epwatch_model::{Severity, State, VerdictClass};

use super::{DAY_MS, HOUR, PLAIN, START_MS, incidents, lines_of, reports, spec};

/// Number of windows until the fleet becomes silent: a week, and some more to learn the usual numbers.
const QUIET_FROM: i64 = 10;

/// 80 devices on each of two chipsets.
fn fleet(seed: u64, windows: (u32, u32)) -> FamilySpec {
    FamilySpec {
        chipsets: 2,
        devices: 80,
        windows,
        runs: 20.0,
        ..spec(seed, PLAIN, PlacementView::Full)
    }
}

fn window(report: &FamilyReport) -> i64 {
    (report.received_ms - START_MS) / DAY_MS
}

fn version(report: &FamilyReport) -> &str {
    let session = report.report.sessions.first();
    session.map_or("", |session| &session.model.version)
}

/// Replays the reports together with an app that keeps reporting.
async fn beside_another(camera: &[FamilyReport]) -> Vec<Line> {
    let other = reports(FamilySpec {
        devices: 20,
        ..fleet(72, (14, 0))
    });
    let mut intake = Intake::new(HOUR);
    for (app, reports) in [("camera", camera), ("scanner", &other)] {
        for report in reports {
            let (app, mark) = ((app, "production"), SenderDecision::default());
            intake.add_marked(report.received_ms, app, &report.report, &report.sent, mark);
        }
    }
    let (recording, _) = intake.finish().unwrap();
    lines_of(Source::recorded(Arc::new(recording), 2_000_000)).await
}

fn quiet(lines: &[Line]) -> Vec<(String, IncidentSummary)> {
    let of_quiet = |(_, incident): &(String, IncidentSummary)| {
        incident.verdict == Some(VerdictClass::DataQuality)
    };
    incidents(lines).into_iter().filter(of_quiet).collect()
}

/// Checks the state and window of each change, for one app's model and version.
#[track_caller]
fn check_told(lines: &[Line], (model, version): (&str, &str), expected: &[(State, &str)]) {
    let told = quiet(lines);
    let found: Vec<(State, &str)> = told
        .iter()
        .map(|(end, incident)| (incident.state, &end[..10]))
        .collect();
    assert_eq!(found, expected, "{told:#?}");
    for (_, incident) in &told {
        let of = (&*incident.app, &*incident.model, &*incident.version);
        assert_eq!(of, ("camera", model, version));
        assert_eq!(incident.severity, Severity::Ticket);
        assert!(incident.chipsets.is_empty(), "{incident:?}");
    }
}

#[track_caller]
fn check_silent(lines: &[Line]) {
    let told = quiet(lines);
    assert!(told.is_empty(), "{told:#?}");
}

#[tokio::test]
async fn an_app_without_a_device_is_a_ticket_until_it_is_back() {
    let mut camera = reports(fleet(71, (14, 0)));
    camera.retain(|report| window(report) != QUIET_FROM);
    let lines = beside_another(&camera).await;
    let expected = [
        (State::Firing, "2026-01-12"),
        (State::Resolved, "2026-01-15"),
    ];
    check_told(&lines, ("", ""), &expected);
    let line = lines.iter().find_map(|line| match line {
        Line::Verdict(verdict) if verdict.chipset.is_empty() => Some(verdict),
        _ => None,
    });
    let line = line.unwrap();
    assert_eq!(
        (line.devices_hit, line.devices_seen),
        (line.devices_seen, line.devices_seen)
    );
    let says = format!(
        "0 devices reported in the window; {} is usual",
        line.devices_seen
    );
    assert!(line.reasons[0].starts_with(&says), "{:?}", line.reasons);
}

/// A few devices run an older release, whose key is still valid.
#[tokio::test]
async fn an_app_with_a_tenth_of_its_devices_is_a_ticket() {
    let mut camera = reports(fleet(73, (14, 0)));
    let is_on_an_older_release =
        |report: &FamilyReport| report.report.key.installation.as_bytes()[0].is_multiple_of(10);
    camera.retain(|report| window(report) < QUIET_FROM || is_on_an_older_release(report));
    let lines = beside_another(&camera).await;
    check_told(&lines, ("", ""), &[(State::Firing, "2026-01-12")]);
}

/// Half of the devices are on a version whose next release has a bad key.
#[tokio::test]
async fn a_version_without_a_device_is_a_ticket_while_the_app_goes_on() {
    let two = fleet(74, (1, 13)).under(Circumstance::AbHalves);
    let mut camera = reports(two);
    camera.retain(|report| window(report) < QUIET_FROM || version(report) != "2.1.0");
    let lines = beside_another(&camera).await;
    let expected = [(State::Firing, "2026-01-12")];
    check_told(&lines, ("segmenter", "2.1.0"), &expected);
}

#[tokio::test]
async fn the_end_of_an_ab_test_is_silent() {
    let two = fleet(75, (1, 13)).under(Circumstance::AbHalves);
    let mut camera = reports(two);
    for report in &mut camera {
        if window(report) >= QUIET_FROM {
            for session in &mut report.report.sessions {
                session.model.version = "2.0.0".into();
            }
        }
    }
    check_silent(&beside_another(&camera).await);
}

#[tokio::test]
async fn a_roll_over_to_the_next_version_is_silent() {
    check_silent(&beside_another(&reports(fleet(76, (10, 4)))).await);
    let frequent = fleet(77, (8, 6)).under(Circumstance::FrequentVersions);
    check_silent(&beside_another(&reports(frequent)).await);
}

/// The app is used at work, so weekends are silent.
#[tokio::test]
async fn a_weekend_is_silent() {
    let mut camera = reports(fleet(78, (14, 0)));
    let is_at_work = |report: &FamilyReport| {
        window(report) % 7 < 5 || report.report.key.installation.as_bytes()[0].is_multiple_of(20)
    };
    camera.retain(is_at_work);
    check_silent(&beside_another(&camera).await);
}
