//! A version that starts on no device sends no session. It pages even if another incident is open.

use epwatch_detection::labelled::{Benign, FamilySpec, PlacementView, Truth};
use epwatch_model::{Severity, VerdictClass};

use super::{DAY_MS, START_MS, fail_to_start, incidents, pages, replayed, reports, spec};

/// The store only has 2.0.0. A ticket is open since its first window, because it is heavier than the version before.
/// Then 3.0.0 reaches all devices and starts on none.
#[tokio::test]
async fn a_version_that_starts_nowhere_pages_while_a_ticket_stands() {
    let mut received = reports(FamilySpec {
        windows: (3, 8),
        ..spec(2, Truth::Benign(Benign::HeavierModel), PlacementView::Full)
    });
    received.retain(|report| report.received_ms >= START_MS + 3 * DAY_MS);
    let fails_from_ms = START_MS + 9 * DAY_MS;
    for received in received
        .iter_mut()
        .filter(|report| report.received_ms >= fails_from_ms)
    {
        let report = &mut received.report;
        report.sessions[0].model.version = "3.0.0".into();
        fail_to_start(report);
    }
    let lines = replayed(&received).await;
    let tickets = incidents(&lines).into_iter().filter(|(_, incident)| {
        incident.severity == Severity::Ticket && incident.version == "2.0.0"
    });
    assert!(tickets.count() > 0, "no ticket stands");
    let pages = pages(&lines);
    let [(end, chipsets, class)] = &pages[..] else {
        panic!("{pages:?}");
    };
    assert_eq!(end, "2026-01-11T00:00:00Z");
    assert_eq!(chipsets.len(), 4);
    assert_eq!(*class, VerdictClass::NpuStartFailure);
}
