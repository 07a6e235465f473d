//! Sessions that are created again within a window, so that only a part of the runs is on the NPU.

use epwatch_detection::labelled::{
    FamilyReport, FamilySpec, Fault, FaultKind, PlacementView, Truth,
};
use epwatch_model::VerdictClass;

use super::{DAY_MS, INCIDENT, PLAIN, START_MS, check_paged, pages, replayed, reports, spec};

/// The DSP of some devices restarts: sessions on the NPU run on the CPU from then on.
fn restarted(
    view: PlacementView,
    at_ms: i64,
    restarts: impl Fn(&FamilyReport) -> bool,
) -> Vec<FamilyReport> {
    let split = |truth| {
        reports(FamilySpec {
            reports: 12,
            ..spec(20, truth, view)
        })
    };
    let is_after = |report: &FamilyReport| report.received_ms >= at_ms && restarts(report);
    let mut received = split(PLAIN);
    received.retain(|report| !is_after(report));
    received.extend(split(INCIDENT).into_iter().filter(is_after));
    received
}

async fn check(received: Vec<FamilyReport>, class: VerdictClass) {
    check_paged(&replayed(&received).await, class);
}

const NOON: i64 = START_MS + 7 * DAY_MS + DAY_MS / 2;

#[tokio::test]
async fn a_placement_that_changes_within_a_window_pages_if_it_is_slower() {
    let received = restarted(PlacementView::Full, NOON, |_| true);
    check(received, VerdictClass::PartialFallback).await;
}

#[tokio::test]
async fn a_dsp_restart_of_some_devices_is_named_so() {
    let received = restarted(PlacementView::Full, NOON, |report| {
        report.report.key.installation.as_bytes()[0] < 100
    });
    check(received, VerdictClass::SomeDevicesFallback).await;
}

/// Placements are missing; each device has fast runs and slow ones.
#[tokio::test]
async fn a_dsp_restart_that_placements_do_not_show_is_intermittent() {
    let received = restarted(PlacementView::Missing, NOON + DAY_MS / 4, |_| true);
    check(received, VerdictClass::IntermittentFallback).await;
}

/// Sessions alternate between NPU and CPU. The devices are not called faulty, whatever share of them has such a session
/// in a window.
#[tokio::test]
async fn sessions_that_alternate_are_intermittent() {
    let fault = Fault {
        kind: FaultKind::IntermittentSessions(0.4),
        factor: 4.0,
        moved: 1.0,
    };
    check(
        reports(spec(17, Truth::Fault(fault), PlacementView::Full)),
        VerdictClass::IntermittentFallback,
    )
    .await;
}

/// On 40 % of the devices sessions are created again on the CPU, which is a real fallback.
#[tokio::test]
async fn sessions_that_come_back_on_the_cpu_page() {
    let fault = Fault {
        kind: FaultKind::IntermittentSessions(0.4),
        factor: 4.0,
        moved: 0.9,
    };
    let lines = replayed(&reports(spec(16, Truth::Fault(fault), PlacementView::Full))).await;
    let pages = pages(&lines);
    assert_eq!(pages[0].1, ["SM8650"], "{pages:?}");
}
