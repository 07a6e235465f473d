//! The incident that this product is made for, and windows that come in several reports.

use epwatch_detection::labelled::{Benign, FamilySpec, Fault, FaultKind, PlacementView, Truth};
use epwatch_detector::replay::Line;
use epwatch_detector::verdict::{Severity, VerdictClass};

use super::{INCIDENT, check_paged, replayed, reports, spec};

#[tokio::test]
async fn the_incident_pages_in_its_first_window_whatever_placements_say() {
    for (view, class) in [
        (PlacementView::Full, VerdictClass::PartialFallback),
        (PlacementView::Missing, VerdictClass::SlowWithoutPlacement),
        (PlacementView::Lying, VerdictClass::SlowWithoutPlacement),
    ] {
        for seed in [1, 2, 3] {
            let lines = replayed(&reports(spec(seed, INCIDENT, view))).await;
            check_paged(&lines, class);
        }
    }
}

#[tokio::test]
async fn splitting_a_window_into_more_reports_changes_no_verdict() {
    let runs = Fault {
        kind: FaultKind::IntermittentRuns(0.3),
        factor: 4.0,
        moved: 0.3,
    };
    let stories = [
        (INCIDENT, PlacementView::Full),
        (Truth::Fault(runs), PlacementView::Missing),
        (Truth::Benign(Benign::Contention), PlacementView::NodesOnly),
    ];
    // With few runs a device, earlier windows are added.
    let courses = stories
        .into_iter()
        .flat_map(|received| [(received, 50.0), (received, 9.0)]);
    for ((truth, view), runs) in courses {
        let mut answers = Vec::new();
        for split in [1, 6, 24] {
            let received = reports(FamilySpec {
                reports: split,
                runs,
                devices: 40,
                chipsets: 2,
                peers: 0.5,
                ..spec(5, truth, view)
            });
            answers.push(as_judged(&replayed(&received).await));
        }
        assert!(!answers[0].is_empty());
        assert_eq!(answers[0], answers[1], "{truth:?}");
        assert_eq!(answers[0], answers[2], "{truth:?}");
    }
}

/// End of the window, model, version, chipset and firmware, verdict, devices hit.
type AsJudged = (String, [String; 3], VerdictClass, Severity, u64);

fn as_judged(lines: &[Line]) -> Vec<AsJudged> {
    let verdicts = lines.iter().filter_map(|line| match line {
        Line::Verdict(verdict) => Some(verdict),
        _ => None,
    });
    let judged = verdicts.map(|v| {
        let cohort = [
            v.model.clone(),
            v.version.clone(),
            v.chipset.clone() + &v.firmware,
        ];
        let end = v.window_end.clone();
        (end, cohort, v.verdict, v.severity, v.devices_hit)
    });
    judged.collect()
}
