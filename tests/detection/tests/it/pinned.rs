//! Tests the reference of a cohort during an incident, and cohorts that are too small.

use epwatch_detection::labelled::{FamilyReport, FamilySpec, PlacementView, Truth};
use epwatch_detector::replay::Line;
use epwatch_model::{Severity, State, VerdictClass};
use epwatch_proto::device::vendor_fingerprint_hash;
use epwatch_proto::{BaselineAbsence, Baselines};

use super::{
    DAY_MS, INCIDENT, PLAIN, START_MS, check_paged, incidents, pages, replayed, reports, spec,
};

/// Seven of ten devices fall back for twenty days, longer than the look-back of fourteen keeps the healthy days. The
/// fallback does not become the reference.
#[tokio::test]
async fn a_fallback_that_lasts_does_not_become_its_own_reference() {
    let with = |truth: Truth| {
        reports(FamilySpec {
            windows: (3, 24),
            devices: 40,
            chipsets: 1,
            ..spec(23, truth, PlacementView::Full)
        })
    };
    let is_fallen = |report: &FamilyReport| {
        let updated = report.report.key.installation.as_bytes()[0] < 180;
        report.received_ms >= START_MS + 7 * DAY_MS && updated
    };
    let mut received = with(PLAIN);
    received.retain(|report| !is_fallen(report));
    received.extend(with(INCIDENT).into_iter().filter(is_fallen));
    // No other version and no device's own past gives a reference.
    received.retain(|report| report.received_ms >= START_MS + 3 * DAY_MS);
    for series in received
        .iter_mut()
        .flat_map(|report| &mut report.report.series)
    {
        series.baselines = Baselines::Absent(BaselineAbsence::FirstVersion);
        series.exceed = None;
    }
    let lines = replayed(&received).await;
    assert_eq!(pages(&lines).len(), 1);
    let states: Vec<State> = incidents(&lines)
        .iter()
        .map(|(_, incident)| incident.state)
        .collect();
    assert!(!states.contains(&State::Resolved), "{states:?}");
}

/// Fourteen firmwares have three devices each: too few for a verdict alone, but enough together.
#[tokio::test]
async fn firmwares_with_too_few_devices_are_judged_as_their_chipset() {
    let mut received = reports(FamilySpec {
        devices: 42,
        ..spec(24, INCIDENT, PlacementView::Full)
    });
    for report in &mut received {
        let stream = report.report.key.stream.0;
        let name = format!("f{}", stream % 14);
        report.report.device.vendor_fingerprint_hash = vendor_fingerprint_hash(&name);
    }
    let lines = replayed(&received).await;
    check_paged(&lines, VerdictClass::PartialFallback);
    let alone = lines.iter().filter(|line| match line {
        Line::Verdict(verdict) => !verdict.firmware.is_empty() && verdict.severity > Severity::None,
        _ => false,
    });
    assert_eq!(alone.count(), 0);
}
