//! Intended changes: firmware, runtime, the kind of graph. None of them is a fault by itself, but a fault that comes
//! with one is found.

use epwatch_detection::labelled::{Benign, FamilyReport, FamilySpec, PlacementView, Truth};
use epwatch_model::{State, VerdictClass};
use epwatch_proto::device::vendor_fingerprint_hash;
use epwatch_proto::placement::CPU_EP;
use epwatch_proto::{CpuNode, Fingerprint, GraphKind, Placement, ReasonCode};

use super::{
    DAY_MS, INCIDENT, PLAIN, START_MS, check_paged, check_quiet, incidents, is_new, pages,
    replayed, reports, spec, verdicts,
};

/// 2.0.0 runs on all devices for four windows before anything changes.
fn settled(seed: u64, truth: Truth, view: PlacementView) -> Vec<FamilyReport> {
    reports(FamilySpec {
        windows: (3, 6),
        reports: 6,
        ..spec(seed, truth, view)
    })
}

const NOON: i64 = START_MS + 7 * DAY_MS + DAY_MS / 2;

/// From noon on half of the devices of each chipset have new firmware, which falls back on the first chipset if
/// `worse`.
fn updated(worse: bool) -> Vec<FamilyReport> {
    let is_updated = |report: &FamilyReport| {
        report.received_ms >= NOON && report.report.key.installation.as_bytes()[0] < 128
    };
    let mut received = settled(15, PLAIN, PlacementView::Full);
    if worse {
        received.retain(|report| !is_updated(report));
        let fallen = settled(15, INCIDENT, PlacementView::Full);
        received.extend(fallen.into_iter().filter(is_updated));
    }
    for report in received.iter_mut().filter(|report| is_updated(report)) {
        report.report.device.vendor_fingerprint_hash = vendor_fingerprint_hash("f9");
    }
    received
}

#[tokio::test]
async fn a_firmware_update_in_mid_window_is_no_fault() {
    let lines = replayed(&updated(false)).await;
    check_quiet(&lines);
    let found = verdicts(&lines, "2.0.0", "SM8650");
    assert_eq!(found[3..], [VerdictClass::Healthy; 3], "{found:?}");
}

/// Checks with and without an earlier version to compare with.
#[tokio::test]
async fn a_firmware_that_falls_back_pages_and_is_named() {
    for first_ms in [START_MS, START_MS + 3 * DAY_MS] {
        let mut received = updated(true);
        received.retain(|report| report.received_ms >= first_ms);
        let lines = replayed(&received).await;
        let fires = incidents(&lines);
        let (end, incident) = fires.first().unwrap();
        assert_eq!(
            (&**end, incident.state),
            ("2026-01-09T00:00:00Z", State::Firing)
        );
        assert_eq!(incident.verdict, Some(VerdictClass::SomeDevicesFallback));
        assert_eq!(incident.chipsets, ["SM8650"]);
        assert_eq!(incident.firmwares, [vendor_fingerprint_hash("f9")]);
        assert_eq!(pages(&lines).len(), 1);
    }
}

/// Node names, counts and fingerprints change with the runtime; latency does not.
#[tokio::test]
async fn a_runtime_that_renames_and_recounts_is_no_fault() {
    let truth = Truth::Benign(Benign::ChangedCounting);
    for view in [PlacementView::Full, PlacementView::NodesOnly] {
        check_quiet(&replayed(&reports(spec(13, truth, view))).await);
    }
}

/// A new runtime fuses and names nodes differently, so every fingerprint changes.
fn renamed(placement: &mut Placement) {
    for print in [&mut placement.exact, &mut placement.normalised] {
        *print = print.map(|print| Fingerprint {
            value: print.value ^ 0x5555,
            ..print
        });
    }
    for node in &mut placement.cpu_nodes {
        node.name = format!("{}_fused_by_1.33", node.name);
    }
}

fn with_new_runtime(mut received: Vec<FamilyReport>) -> Vec<FamilyReport> {
    for report in received.iter_mut().filter(|report| is_new(report)) {
        report.report.runtime.ort_version = "1.33.0".into();
        for session in &mut report.report.sessions {
            renamed(&mut session.placement);
        }
    }
    received
}

#[tokio::test]
async fn a_runtime_that_renames_nodes_is_no_fault() {
    for view in [PlacementView::Full, PlacementView::NodesOnly] {
        let lines = replayed(&with_new_runtime(settled(22, PLAIN, view))).await;
        check_quiet(&lines);
        let found = verdicts(&lines, "2.0.0", "SM8650");
        assert_eq!(
            found[3..],
            [VerdictClass::Healthy; 3],
            "{view:?}: {found:?}"
        );
    }
}

/// Renamed nodes do not hide a fallback.
#[tokio::test]
async fn a_runtime_that_renames_nodes_and_falls_back_pages() {
    let mut received = settled(22, PLAIN, PlacementView::Full);
    received.retain(|report| !is_new(report));
    let fallen = settled(22, INCIDENT, PlacementView::Full);
    received.extend(fallen.into_iter().filter(is_new));
    check_paged(
        &replayed(&with_new_runtime(received)).await,
        VerdictClass::PartialFallback,
    );
}

/// The NPU's nodes become one node; nodes on the CPU keep their names.
fn collapsed(placement: &mut Placement) {
    placement.graph_kind = GraphKind::EpContext;
    let mut n_nodes = 0;
    for ep in &mut placement.eps {
        if ep.ep != CPU_EP {
            ep.n_nodes = 1;
            ep.op_types.clear();
            ep.op_types.insert("EPContext".into(), 1);
        }
        ep.macs_share = None;
        n_nodes += ep.n_nodes;
    }
    placement.n_nodes = n_nodes;
    placement.macs_attributed = None;
    for node in &mut placement.cpu_nodes {
        node.macs_share = None;
    }
}

fn precompiled(mut received: Vec<FamilyReport>) -> Vec<FamilyReport> {
    for report in received.iter_mut().filter(|report| is_new(report)) {
        for session in &mut report.report.sessions {
            collapsed(&mut session.placement);
        }
    }
    received
}

/// Some nodes are on the CPU before and after; only the count of the rest changes.
#[tokio::test]
async fn a_switch_to_epcontext_is_no_fault() {
    for view in [PlacementView::Full, PlacementView::NodesOnly] {
        let received = reports(spec(14, Truth::Benign(Benign::HarmlessSplit), view));
        check_quiet(&replayed(&precompiled(received)).await);
        check_quiet(&replayed(&precompiled(reports(spec(14, PLAIN, view)))).await);
    }
}

/// Nodes of the two kinds of graph cannot be compared, so the page is based on latency.
#[tokio::test]
async fn a_switch_to_epcontext_that_leaves_more_on_the_cpu_pages() {
    let received = precompiled(reports(spec(14, INCIDENT, PlacementView::Full)));
    let n_cpu = |received: &FamilyReport| -> usize {
        let nodes = |node: &&CpuNode| !node.benign && node.reason == ReasonCode::OpConfigRejected;
        let sessions = received.report.sessions.iter();
        sessions
            .map(|session| session.placement.cpu_nodes.iter().filter(nodes).count())
            .sum()
    };
    assert!(
        received
            .iter()
            .any(|report| is_new(report) && n_cpu(report) > 0)
    );
    check_paged(
        &replayed(&received).await,
        VerdictClass::SlowWithoutPlacement,
    );
}
