//! Faults that begin within a model's only version: devices have no earlier version, but the store has their earlier
//! windows.

use epwatch_detection::labelled::{
    FamilyReport, FamilySpec, Fault, FaultKind, PlacementView, Truth,
};
use epwatch_detector::replay::Line;
use epwatch_model::{State, VerdictClass};
use epwatch_proto::{BaselineAbsence, Baselines};

use super::{
    DAY_MS, INCIDENT, PLAIN, START_MS, check_paged, check_quiet, incidents, replayed, reports,
    spec, verdicts,
};

/// 2.0.0 is the first version; it is healthy for four windows, and on one chipset `truth` holds for `faulty`
/// windows after them.
fn only_version(truth: Truth, view: PlacementView, faulty: i64) -> Vec<FamilyReport> {
    let spec = FamilySpec {
        windows: (3, 9),
        ..spec(31, truth, view)
    };
    only_version_of(spec, faulty)
}

fn only_version_of(spec: FamilySpec, faulty: i64) -> Vec<FamilyReport> {
    let received = |truth| {
        let mut received = reports(FamilySpec {
            truth,
            ..spec.clone()
        });
        received.retain(|report| report.received_ms >= START_MS + 3 * DAY_MS);
        for series in received
            .iter_mut()
            .flat_map(|received| &mut received.report.series)
        {
            series.baselines = Baselines::Absent(BaselineAbsence::FirstVersion);
            series.exceed = None;
        }
        received
    };
    let from_ms = START_MS + 7 * DAY_MS;
    let is_faulty =
        |report: &FamilyReport| (from_ms..from_ms + faulty * DAY_MS).contains(&report.received_ms);
    let mut all = received(PLAIN);
    all.retain(|report| !is_faulty(report));
    all.extend(received(spec.truth).into_iter().filter(is_faulty));
    all
}

/// Everything on the CPU.
const TOTAL: Truth = Truth::Fault(Fault {
    kind: FaultKind::Total,
    factor: 5.0,
    moved: 1.0,
});

async fn check_paged_at_once(truth: Truth, view: PlacementView, class: VerdictClass) -> Vec<Line> {
    let lines = replayed(&only_version(truth, view, 1)).await;
    check_paged(&lines, class);
    lines
}

#[tokio::test]
async fn a_placement_that_moves_pages() {
    check_paged_at_once(INCIDENT, PlacementView::Full, VerdictClass::PartialFallback).await;
    check_paged_at_once(TOTAL, PlacementView::Full, VerdictClass::TotalFallback).await;
}

/// The fault is repaired a window later. Three windows with the earlier latency resolve the incident, although no
/// reference confirms them.
#[tokio::test]
async fn devices_that_get_slower_page_without_a_placement() {
    let lines = check_paged_at_once(
        INCIDENT,
        PlacementView::Missing,
        VerdictClass::SlowWithoutPlacement,
    )
    .await;
    let (end, last) = incidents(&lines).pop().unwrap();
    assert_eq!(
        (&*end, last.state),
        ("2026-01-12T00:00:00Z", State::Resolved)
    );
    let found = verdicts(&lines, "2.0.0", "SM8650");
    assert_eq!(
        found.last(),
        Some(&VerdictClass::NotEnoughData),
        "{found:?}"
    );
}

/// By then the look-back has only faulty windows, which must not become the reference.
#[tokio::test]
async fn a_fault_outlasts_the_look_back() {
    let lasting = FamilySpec {
        windows: (3, 21),
        ..spec(31, INCIDENT, PlacementView::Missing)
    };
    let received = only_version_of(lasting, 17);
    let lines = replayed(&received).await;
    let states: Vec<State> = incidents(&lines)
        .into_iter()
        .map(|(_, received)| received.state)
        .collect();
    assert_eq!(states, [State::Firing]);
}

#[tokio::test]
async fn what_goes_on_as_before_is_not_called_healthy() {
    let lines = replayed(&only_version(PLAIN, PlacementView::Missing, 1)).await;
    check_quiet(&lines);
    let found = verdicts(&lines, "2.0.0", "SM8650");
    assert!(
        found
            .iter()
            .all(|class| *class == VerdictClass::NotEnoughData),
        "{found:?}"
    );
}
