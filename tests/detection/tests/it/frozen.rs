//! What a cohort is compared with while something is wrong with it, and cohorts that are too small.

use epwatch_detector::incident::State;
use epwatch_detector::replay::Line;
use epwatch_detector::verdict::{Severity, VerdictClass};
use epwatch_fleet::labelled::{FamilyReport, FamilySpec, PlacementView, Story};
use epwatch_proto::device::vendor_fingerprint_hash;
use epwatch_proto::{BaselineAbsence, Baselines};

use super::{DAY_MS, INCIDENT, PLAIN, START_MS, incidents, judged, pages, reports, spec};

/// Seven of ten devices fall back for twenty days: longer than what was before them stays in the
/// look-back of fourteen. It does not become what is right.
#[tokio::test]
async fn a_fallback_that_lasts_does_not_become_its_own_reference() {
    let tell = |story: Story| {
        reports(FamilySpec {
            windows: (3, 24),
            devices: 40,
            chipsets: 1,
            ..spec(23, story, PlacementView::Full)
        })
    };
    let is_fallen = |report: &FamilyReport| {
        let updated = report.report.key.installation.as_bytes()[0] < 180;
        report.received_ms >= START_MS + 7 * DAY_MS && updated
    };
    let mut told = tell(PLAIN);
    told.retain(|report| !is_fallen(report));
    told.extend(tell(INCIDENT).into_iter().filter(is_fallen));
    // No other version and no device tells what was before.
    told.retain(|report| report.received_ms >= START_MS + 3 * DAY_MS);
    for series in told.iter_mut().flat_map(|report| &mut report.report.series) {
        series.baselines = Baselines::Absent(BaselineAbsence::FirstVersion);
        series.exceed = None;
    }
    let lines = judged(&told).await;
    assert_eq!(pages(&lines).len(), 1);
    let states: Vec<State> = incidents(&lines)
        .iter()
        .map(|(_, incident)| incident.state)
        .collect();
    assert!(!states.contains(&State::Resolved), "{states:?}");
}

/// Three devices of each of fourteen firmwares: none can be judged alone, all together can.
#[tokio::test]
async fn firmwares_with_too_few_devices_are_judged_as_their_chipset() {
    let mut told = reports(FamilySpec {
        devices: 42,
        ..spec(24, INCIDENT, PlacementView::Full)
    });
    for report in &mut told {
        let stream = report.report.key.stream.0;
        let name = format!("f{}", stream % 14);
        report.report.device.vendor_fingerprint_hash = vendor_fingerprint_hash(&name);
    }
    let lines = judged(&told).await;
    let expected = (
        "2026-01-09T00:00:00Z".to_owned(),
        vec!["SM8650".to_owned()],
        VerdictClass::PartialFallback,
    );
    assert_eq!(pages(&lines), [expected]);
    let alone = lines.iter().filter(|line| match line {
        Line::Verdict(verdict) => !verdict.firmware.is_empty() && verdict.severity > Severity::None,
        _ => false,
    });
    assert_eq!(alone.count(), 0);
}
