//! Sessions that are made again within a window: part of it on the NPU, part of it not.

use epwatch_detector::verdict::VerdictClass;
use epwatch_fleet::labelled::{FamilyReport, FamilySpec, Fault, FaultKind, PlacementView, Story};

use super::{DAY_MS, INCIDENT, PLAIN, START_MS, judged, pages, reports, spec};

/// The DSP of some devices restarts: what ran on the NPU until then runs on the CPU from then on.
fn restarted(
    view: PlacementView,
    at_ms: i64,
    restarts: impl Fn(&FamilyReport) -> bool,
) -> Vec<FamilyReport> {
    let split = |story| {
        reports(FamilySpec {
            reports: 12,
            ..spec(20, story, view)
        })
    };
    let is_after = |report: &FamilyReport| report.received_ms >= at_ms && restarts(report);
    let mut told = split(PLAIN);
    told.retain(|report| !is_after(report));
    told.extend(split(INCIDENT).into_iter().filter(is_after));
    told
}

async fn check(told: Vec<FamilyReport>, class: VerdictClass) {
    let pages = pages(&judged(&told).await);
    let expected = (
        "2026-01-09T00:00:00Z".to_owned(),
        vec!["SM8650".to_owned()],
        class,
    );
    assert_eq!(pages, [expected]);
}

const NOON: i64 = START_MS + 7 * DAY_MS + DAY_MS / 2;

#[tokio::test]
async fn a_placement_that_changes_within_a_window_pages_if_it_is_slower() {
    let told = restarted(PlacementView::Full, NOON, |_| true);
    check(told, VerdictClass::PartialFallback).await;
}

#[tokio::test]
async fn a_dsp_restart_of_some_devices_is_named_so() {
    let told = restarted(PlacementView::Full, NOON, |report| {
        report.report.key.installation.as_bytes()[0] < 100
    });
    check(told, VerdictClass::SomeDevicesFallback).await;
}

/// Nothing shows where it runs; each device has fast runs and slow ones.
#[tokio::test]
async fn a_dsp_restart_that_placements_do_not_show_is_intermittent() {
    let told = restarted(PlacementView::Missing, NOON + DAY_MS / 4, |_| true);
    check(told, VerdictClass::IntermittentFallback).await;
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
