//! Faults that begin within a model's only version: no device knows a version before, the store has
//! what the same devices did in earlier windows.

use epwatch_detector::incident::State;
use epwatch_detector::replay::Line;
use epwatch_detector::verdict::VerdictClass;
use epwatch_fleet::labelled::{FamilyReport, FamilySpec, Fault, FaultKind, PlacementView, Story};
use epwatch_proto::{BaselineAbsence, Baselines};

use super::{
    DAY_MS, INCIDENT, PLAIN, START_MS, check_quiet, incidents, judged, pages, reports, spec,
    verdicts,
};

/// 2.0.0 is the first version that anybody saw; it is sound for four windows, and on one chipset
/// `story` holds for as many as `faulty` after them.
fn only_version(story: Story, view: PlacementView, faulty: i64) -> Vec<FamilyReport> {
    let spec = FamilySpec {
        windows: (3, 9),
        ..spec(31, story, view)
    };
    only_version_of(spec, faulty)
}

fn only_version_of(spec: FamilySpec, faulty: i64) -> Vec<FamilyReport> {
    let told = |story| {
        let mut told = reports(FamilySpec {
            story,
            ..spec.clone()
        });
        told.retain(|report| report.received_ms >= START_MS + 3 * DAY_MS);
        for series in told.iter_mut().flat_map(|told| &mut told.report.series) {
            series.baselines = Baselines::Absent(BaselineAbsence::FirstVersion);
            series.exceed = None;
        }
        told
    };
    let from_ms = START_MS + 7 * DAY_MS;
    let is_faulty =
        |report: &FamilyReport| (from_ms..from_ms + faulty * DAY_MS).contains(&report.received_ms);
    let mut all = told(PLAIN);
    all.retain(|report| !is_faulty(report));
    all.extend(told(spec.story).into_iter().filter(is_faulty));
    all
}

/// Everything on the CPU.
const TOTAL: Story = Story::Fault(Fault {
    kind: FaultKind::Total,
    factor: 5.0,
    moved: 1.0,
});

async fn check_paged_at_once(story: Story, view: PlacementView, class: VerdictClass) -> Vec<Line> {
    let lines = judged(&only_version(story, view, 1)).await;
    let expected = (
        "2026-01-09T00:00:00Z".to_owned(),
        vec!["SM8650".to_owned()],
        class,
    );
    assert_eq!(pages(&lines), [expected]);
    lines
}

#[tokio::test]
async fn a_placement_that_moves_pages() {
    check_paged_at_once(INCIDENT, PlacementView::Full, VerdictClass::PartialFallback).await;
    check_paged_at_once(TOTAL, PlacementView::Full, VerdictClass::TotalFallback).await;
}

/// Repaired a window later: three windows as before resolve it, though nothing says that they are right.
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

/// By then the look-back has nothing but faulty windows, and what it says is not what is right.
#[tokio::test]
async fn a_fault_outlasts_the_look_back() {
    let lasting = FamilySpec {
        windows: (3, 21),
        ..spec(31, INCIDENT, PlacementView::Missing)
    };
    let told = only_version_of(lasting, 17);
    let lines = judged(&told).await;
    let states: Vec<State> = incidents(&lines)
        .into_iter()
        .map(|(_, told)| told.state)
        .collect();
    assert_eq!(states, [State::Firing]);
}

#[tokio::test]
async fn what_goes_on_as_before_is_not_called_healthy() {
    let lines = judged(&only_version(PLAIN, PlacementView::Missing, 1)).await;
    check_quiet(&lines);
    let found = verdicts(&lines, "2.0.0", "SM8650");
    assert!(
        found
            .iter()
            .all(|class| *class == VerdictClass::NotEnoughData),
        "{found:?}"
    );
}
