//! A model's first version that runs on the CPU alone: no reference shows this fault, but the request for the NPU does.

use epwatch_detection::labelled::{FamilyReport, FamilySpec, PlacementView};
use epwatch_detector::ExpectsNpu;
use epwatch_model::{Severity, State, VerdictClass};

use super::newcomers::{all_on_the_cpu, without_past};
use super::{
    PLAIN, incidents, is_new, lines_with, options, pages, recorded, replayed, reports, spec,
    verdicts,
};

/// 2.0.0 is the first version, and everything runs on the CPU.
fn on_the_cpu(seed: u64) -> Vec<FamilyReport> {
    let mut first = reports(FamilySpec {
        chipsets: 1,
        devices: 57,
        ..spec(seed, PLAIN, PlacementView::Full)
    });
    first.retain(is_new);
    for report in &mut first {
        without_past(report);
        all_on_the_cpu(report);
    }
    first
}

#[tokio::test]
async fn a_first_version_on_the_cpu_is_a_ticket_in_its_first_window() {
    for seed in 41..51 {
        let lines = replayed(&on_the_cpu(seed)).await;
        let found = verdicts(&lines, "2.0.0", "SM8650");
        assert_eq!(found[0], VerdictClass::TotalFallback, "{seed}: {found:?}");
        let (end, incident) = &incidents(&lines)[0];
        assert_eq!(end, "2026-01-09T00:00:00Z", "{seed}");
        assert_eq!(
            (incident.state, incident.severity),
            (State::Firing, Severity::Ticket)
        );
        assert!(pages(&lines).is_empty());
    }
}

/// The first version runs on the NPU from the start.
#[tokio::test]
async fn a_first_version_on_the_npu_is_no_finding() {
    let mut first = reports(spec(41, PLAIN, PlacementView::Full));
    first.retain(is_new);
    first.iter_mut().for_each(without_past);
    assert!(incidents(&replayed(&first).await).is_empty());
}

#[tokio::test]
async fn a_model_that_the_config_expects_on_the_npu_pages() {
    let expecting = |model: &str| {
        let mut options = options();
        options.config.expects_npu = vec![ExpectsNpu {
            app: "camera".into(),
            model: model.into(),
        }];
        options
    };
    let received = on_the_cpu(41);
    let lines = lines_with(recorded(&received), &expecting("segmenter")).await;
    let found = pages(&lines);
    assert_eq!(found[0].0, "2026-01-09T00:00:00Z");
    assert_eq!(found[0].2, VerdictClass::TotalFallback);
    let lines = lines_with(recorded(&received), &expecting("another")).await;
    assert!(pages(&lines).is_empty());
}
