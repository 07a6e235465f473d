//! Devices that a directive took off the NPU.

use epwatch_detection::labelled::{FamilyReport, FamilySpec, PlacementView};
use epwatch_model::State;

use super::{DAY_MS, INCIDENT, START_MS, check_quiet, incidents, is_new, replayed, reports, spec};

/// The device obeys: its sessions do not request the NPU, and name the directive.
fn obey(report: &mut FamilyReport) {
    for session in &mut report.report.sessions {
        session.directive_id = "npu-off-1".into();
        session.placement.requested_eps.clear();
    }
}

#[tokio::test]
async fn npu_off_by_directive_does_not_page() {
    let mut changed = reports(spec(12, INCIDENT, PlacementView::Full));
    changed.iter_mut().filter(|r| is_new(r)).for_each(obey);
    check_quiet(&replayed(&changed).await);
}

/// Two windows show the fault. Then the chipset's devices obey a directive, which does not repair it.
#[tokio::test]
async fn npu_off_by_directive_mitigates_what_fires_and_resolves_nothing() {
    let mut changed = reports(FamilySpec {
        windows: (7, 7),
        ..spec(12, INCIDENT, PlacementView::Full)
    });
    let from = START_MS + 9 * DAY_MS;
    let received = changed.iter_mut().filter(|r| r.received_ms >= from);
    received
        .filter(|r| r.report.device.chipset_raw == "SM8650")
        .for_each(obey);
    let lines = replayed(&changed).await;
    let changes: Vec<(String, State)> = incidents(&lines)
        .into_iter()
        .map(|(end, incident)| (end, incident.state))
        .collect();
    let fires = ("2026-01-09T00:00:00Z".to_owned(), State::Firing);
    let mitigated = ("2026-01-11T00:00:00Z".to_owned(), State::Mitigated);
    assert_eq!(changes, [fires, mitigated]);
}
