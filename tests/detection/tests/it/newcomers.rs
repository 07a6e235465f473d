//! Chipsets, versions and installations that were never seen before, and forged installations.

use std::collections::BTreeSet;
use std::sync::Arc;

use epwatch_detection::labelled::{FamilyReport, FamilySpec, PlacementView};
use epwatch_detector::Certified;
use epwatch_detector::read::Source;
use epwatch_detector::read::recorded::{Intake, SenderDecision};
use epwatch_model::VerdictClass;
use epwatch_proto::device::vendor_fingerprint_hash;
use epwatch_proto::placement::CPU_EP;
use epwatch_proto::{BaselineAbsence, Baselines, InstallationId};

use super::{
    DAY_MS, HOUR, INCIDENT, PLAIN, START_MS, check_paged, check_quiet, fail_to_start, incidents,
    is_new, lines_of, recorded, replayed, reports, spec, verdicts,
};

fn is_first(report: &FamilyReport) -> bool {
    report.report.device.chipset_raw == "SM8650"
}

pub(super) fn without_past(report: &mut FamilyReport) {
    for series in &mut report.report.series {
        series.baselines = Baselines::Absent(BaselineAbsence::FirstVersion);
        series.exceed = None;
    }
}

pub(super) fn all_on_the_cpu(report: &mut FamilyReport) {
    for session in &mut report.report.sessions {
        let placement = &mut session.placement;
        placement.eps.retain(|ep| ep.ep == CPU_EP);
        for ep in &mut placement.eps {
            ep.n_nodes = placement.n_nodes;
            ep.macs_share = Some(1.0);
        }
    }
}

/// The first chipset never ran the model before version 2.0.0.
fn on_a_new_chipset() -> Vec<FamilyReport> {
    let mut received = reports(spec(21, INCIDENT, PlacementView::Full));
    received.retain(|report| !is_first(report) || is_new(report));
    received
        .iter_mut()
        .filter(|r| is_first(r))
        .for_each(without_past);
    received
}

fn certified() -> Certified {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("certified.jsonl");
    let row =
        r#"{"app_id":"camera","model_id":"segmenter","model_version":"2.0.0","chipset":"SM8650","#;
    let numbers = r#""fingerprint_algorithm":1,"fingerprint_normalised":"7","n_nodes":46,"npu_nodes":44,"cpu_nodes":2,"cpu_benign_nodes":2,"npu_macs_share":1.0,"macs_attributed":1.0}"#;
    std::fs::write(&path, format!("{row}{numbers}\n")).unwrap();
    Certified::from_file(&path).unwrap()
}

/// The model has no reference on this chipset, and its latency is normal for the chipset.
#[tokio::test]
async fn a_model_that_is_new_on_a_chipset_is_no_fault() {
    let mut received = reports(spec(21, PLAIN, PlacementView::Full));
    received.retain(|report| !is_first(report) || is_new(report));
    received
        .iter_mut()
        .filter(|r| is_first(r))
        .for_each(without_past);
    check_quiet(&replayed(&received).await);
    check_quiet(&lines_of(recorded(&received).with_certified(certified())).await);
}

#[tokio::test]
async fn a_total_fallback_on_a_new_chipset_pages_if_a_lab_certified_it() {
    let mut received = on_a_new_chipset();
    received
        .iter_mut()
        .filter(|r| is_first(r))
        .for_each(all_on_the_cpu);
    let lines = lines_of(recorded(&received).with_certified(certified())).await;
    check_paged(&lines, VerdictClass::TotalFallback);

    // Chipsets may differ, so a comparison with other chipsets alone only makes a ticket.
    let lines = replayed(&received).await;
    check_quiet(&lines);
    let found = verdicts(&lines, "2.0.0", "SM8650");
    assert_eq!(found[0], VerdictClass::TotalFallback, "{found:?}");
}

/// A certified placement shows which part of the model moved.
#[tokio::test]
async fn a_partial_fallback_on_a_new_chipset_is_found_if_a_lab_certified_it() {
    let lines = lines_of(recorded(&on_a_new_chipset()).with_certified(certified())).await;
    let found = verdicts(&lines, "2.0.0", "SM8650");
    assert_eq!(found[0], VerdictClass::PartialFallback, "{found:?}");
}

/// 1.0.0 is new everywhere and falls back wholly on one chipset. The comparison with other chipsets makes a ticket only,
/// because chipsets may differ.
#[tokio::test]
async fn a_first_version_that_falls_back_on_one_chipset_is_a_ticket() {
    let mut first = reports(spec(17, INCIDENT, PlacementView::Full));
    first.retain(is_new);
    first.iter_mut().for_each(without_past);
    first
        .iter_mut()
        .filter(|r| is_first(r))
        .for_each(all_on_the_cpu);
    let lines = replayed(&first).await;
    check_quiet(&lines);
    let found = verdicts(&lines, "2.0.0", "SM8650");
    assert_eq!(found[0], VerdictClass::TotalFallback, "{found:?}");
}

/// 100,000 forged installations report a fault, every day again.
#[tokio::test]
async fn forged_installations_do_not_page_and_raise_data_quality() {
    let shape = || FamilySpec {
        windows: (7, 3),
        ..spec(11, INCIDENT, PlacementView::Full)
    };
    let mut intake = Intake::new(HOUR);
    let add = |intake: &mut Intake, report: &FamilyReport| {
        let (app, mark) = (("camera", "production"), SenderDecision::default());
        intake.add_marked(report.received_ms, app, &report.report, &report.sent, mark);
    };
    let honest = reports(FamilySpec {
        truth: PLAIN,
        ..shape()
    });
    honest.iter().for_each(|report| add(&mut intake, report));
    let faulty = reports(shape());
    for day in 7..10 {
        let from = START_MS + day * DAY_MS;
        let claims: Vec<&FamilyReport> = faulty
            .iter()
            .filter(|report| (from..from + DAY_MS).contains(&report.received_ms))
            .filter(|report| is_first(report))
            .collect();
        for forged in 0..100_000_usize {
            let mut claim = claims[forged % claims.len()].clone();
            let name = format!("forged {forged}");
            claim.report.key.installation = InstallationId::from_secret(name.as_bytes());
            add(&mut intake, &claim);
        }
    }
    let (recording, _) = intake.finish().unwrap();
    let lines = lines_of(Source::recorded(Arc::new(recording), 200_000)).await;
    let received = incidents(&lines);
    assert!(received.is_empty(), "{received:?}");
    let new = verdicts(&lines, "2.0.0", "SM8650");
    assert_eq!(new, [VerdictClass::DataQuality; 3]);
}

/// Few known devices have this firmware. Most of its devices are forged installations, which report that the NPU does
/// not start.
#[tokio::test]
async fn a_firmware_of_strangers_does_not_page() {
    let mut received = reports(spec(23, PLAIN, PlacementView::Full));
    let updated: BTreeSet<InstallationId> = received
        .iter()
        .filter(|report| is_first(report))
        .map(|report| report.report.key.installation)
        .take(12)
        .collect();
    let on_its_last_day = |report: &FamilyReport| report.received_ms >= START_MS + 8 * DAY_MS;
    for report in received.iter_mut().filter(|report| on_its_last_day(report)) {
        if updated.contains(&report.report.key.installation) {
            report.report.device.vendor_fingerprint_hash = vendor_fingerprint_hash("f9");
        }
    }
    let sample = received
        .iter()
        .find(|report| is_first(report) && on_its_last_day(report))
        .unwrap()
        .clone();
    for forged in 0..400 {
        let mut claim = sample.clone();
        let report = &mut claim.report;
        report.key.installation =
            InstallationId::from_secret(format!("forged {forged}").as_bytes());
        report.device.vendor_fingerprint_hash = vendor_fingerprint_hash("f9");
        fail_to_start(report);
        received.push(claim);
    }
    let lines = replayed(&received).await;
    check_quiet(&lines);
    let last = verdicts(&lines, "2.0.0", "SM8650").pop();
    assert_eq!(last, Some(VerdictClass::DataQuality));
}
