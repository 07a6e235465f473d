//! The incident that this product is made for, and windows that come in several reports.

use std::collections::BTreeSet;

use epwatch_detection::labelled::{Benign, FamilySpec, Fault, FaultKind, PlacementView, Truth};
use epwatch_detector::replay::Line;
use epwatch_model::{Severity, VerdictClass};
use epwatch_proto::SessionUid;

use super::{
    DAY_MS, INCIDENT, START_MS, check_paged, check_quiet, incidents, replayed, reports, spec,
};

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

/// Without shapes and placements, larger inputs look like a fault, but they would occur on all chipsets. With a single
/// chipset the finding stays a ticket.
#[tokio::test]
async fn slow_sessions_of_unknown_shape_page_where_other_chipsets_have_none() {
    let sessions = Fault {
        kind: FaultKind::IntermittentSessions(0.3),
        factor: 4.0,
        moved: 0.3,
    };
    for chipsets in [4, 1] {
        let received = reports(FamilySpec {
            chipsets,
            shape_known: false,
            ..spec(43, Truth::Fault(sessions), PlacementView::Missing)
        });
        let lines = replayed(&received).await;
        match chipsets {
            1 => check_quiet(&lines),
            _ => check_paged(&lines, VerdictClass::IntermittentFallback),
        }
    }
}

/// A driver takes the NPU from a second model of the app on the same devices.
#[tokio::test]
async fn one_driver_that_slows_two_models_is_one_page() {
    let fault = Fault {
        kind: FaultKind::Total,
        factor: 5.0,
        moved: 0.5,
    };
    let mut received = reports(FamilySpec {
        devices: 40,
        ..spec(41, Truth::Fault(fault), PlacementView::Full)
    });
    for report in received.iter_mut().map(|received| &mut received.report) {
        let twin = |uid: SessionUid| SessionUid::new(uid.get() + 5_000).unwrap();
        let mut sessions = report.sessions.clone();
        for session in &mut sessions {
            session.model.id = "detector".into();
            session.uid = twin(session.uid);
        }
        let mut series = report.series.clone();
        series
            .iter_mut()
            .for_each(|one| one.session_uid = twin(one.session_uid));
        report.sessions.extend(sessions);
        report.series.extend(series);
    }
    let lines = replayed(&received).await;
    check_paged(&lines, VerdictClass::PartialFallback);
    let ids: BTreeSet<String> = incidents(&lines)
        .into_iter()
        .map(|(_, one)| one.incident)
        .collect();
    assert_eq!(ids.len(), 2, "{ids:?}");
}

/// 3.0.0 replaces 2.0.0 two days after the fallback, and has the same fault.
#[tokio::test]
async fn a_fault_that_lives_on_in_the_next_version_is_one_page() {
    let mut received = reports(FamilySpec {
        windows: (7, 4),
        devices: 40,
        ..spec(42, INCIDENT, PlacementView::Full)
    });
    for received in &mut received {
        if received.received_ms >= START_MS + 9 * DAY_MS {
            let sessions = received.report.sessions.iter_mut();
            sessions.for_each(|session| session.model.version = "3.0.0".into());
        }
    }
    check_paged(&replayed(&received).await, VerdictClass::PartialFallback);
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
    // With few runs for each device, earlier windows are added.
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

/// A verdict: end of the window; model, version, chipset and firmware; class, severity and devices hit.
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
