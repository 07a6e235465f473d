//! Reports of a labelled fleet, built directly in the form that the SDK sends.

use std::collections::BTreeMap;

use epwatch_proto::device::vendor_fingerprint_hash;
use epwatch_proto::histogram::bucket_of_us;
use epwatch_proto::placement::{CPU_EP, QNN_EP};
use epwatch_proto::{
    App, BaselineAbsence, Baselines, Chipset, CpuNode, Device, EpShare, ExceedCounts, Fingerprint,
    GraphKind, HistScheme, LatencySeries, Placement, PlacementSource, ReasonCode, SelfBaseline,
    Session, SessionOptions, SessionUid, SparseHistogram, samples,
};

use super::PlacementView;
use super::noise::Runs;

/// A version's placement.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Where {
    pub(super) nodes: u32,
    pub(super) cpu_nodes: u32,
    pub(super) benign: u32,
    pub(super) npu_macs: f64,
    /// The graph's fingerprint.
    pub(super) print: u64,
}

pub(super) fn placement(at: Where, view: PlacementView) -> Placement {
    let requested = vec![QNN_EP.to_owned()];
    if view == PlacementView::Missing {
        return Placement::unavailable(requested, ReasonCode::Unknown);
    }
    let macs = |share: f64| (view != PlacementView::NodesOnly).then_some(share);
    let on_cpu = at.cpu_nodes + at.benign;
    let node = |index: u32| CpuNode {
        name: format!("/node_{index}"),
        op_type: if index < at.benign {
            "QuantizeLinear".into()
        } else {
            ["GatherElements", "Resize", "Softmax"][(index % 3) as usize].into()
        },
        domain: String::new(),
        benign: index < at.benign,
        reason: if index < at.benign {
            ReasonCode::EdgeQuantization
        } else {
            ReasonCode::OpConfigRejected
        },
        reason_text: String::new(),
        macs_share: macs(if index < at.benign {
            0.0
        } else {
            (1.0 - at.npu_macs) / f64::from(at.cpu_nodes)
        }),
    };
    let mut eps = vec![EpShare {
        ep: QNN_EP.into(),
        n_nodes: at.nodes - on_cpu,
        n_partitions: Some(1 + at.cpu_nodes.min(3)),
        op_types: BTreeMap::from([("Conv".into(), at.nodes - on_cpu)]),
        macs_share: macs(at.npu_macs),
    }];
    if at.nodes == on_cpu {
        eps.clear();
    }
    if on_cpu > 0 {
        eps.push(EpShare {
            ep: CPU_EP.into(),
            n_nodes: on_cpu,
            n_partitions: None,
            op_types: BTreeMap::from([("Softmax".into(), on_cpu)]),
            macs_share: macs(1.0 - at.npu_macs),
        });
    }
    let print = |value: u64| {
        Some(Fingerprint {
            algorithm: 1,
            value,
        })
    };
    Placement {
        requested_eps: requested,
        eps,
        n_nodes: at.nodes,
        cpu_nodes: (0..on_cpu.min(200)).map(node).collect(),
        cpu_nodes_truncated: false,
        macs_attributed: macs(1.0),
        manifest_sha256: None,
        graph_kind: GraphKind::Jit,
        source: PlacementSource::AssignmentApi,
        exact: print(at.print * 2 + 1),
        normalised: print(at.print * 2 + 2),
        reasons: if at.cpu_nodes > 0 {
            vec![ReasonCode::OpConfigRejected]
        } else {
            Vec::new()
        },
    }
}

pub(super) fn session(
    uid: u64,
    (model_id, version): (&str, &str),
    placement: Placement,
    created_ms: i64,
) -> Session {
    Session {
        uid: SessionUid::new(uid.max(1)).expect("not zero"),
        model: samples::model(model_id, version),
        requested_eps: vec![QNN_EP.into()],
        directive_id: String::new(),
        options: SessionOptions::default(),
        placement,
        creation_us: Some(300_000),
        created_at_unix_ms: created_ms,
        devices: Vec::new(),
    }
}

/// Sorts the runs first, because an insert into a sparse histogram moves all buckets after it.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "microseconds"
)]
fn histogram(values: &[f64]) -> SparseHistogram {
    let buckets = values
        .iter()
        // The cast drops the fraction.
        .map(|value| bucket_of_us(*value as u64));
    let mut buckets: Vec<u16> = buckets.collect();
    buckets.sort_unstable();
    let runs = buckets.chunk_by(|a, b| a == b);
    let (indices, counts) = runs.map(|runs| (runs[0], runs.len() as u64)).unzip();
    SparseHistogram::from_parts(indices, counts).expect("in order, and none is empty")
}

#[expect(clippy::cast_precision_loss, reason = "small counts")]
pub(super) fn series(
    uid: u64,
    runs: &Runs,
    values: &[f64],
    shape_key: &str,
    baselines: &Baselines,
) -> LatencySeries {
    let (mut mean, mut m2, mut sum) = (0.0, 0.0, 0.0);
    let (mut min, mut max) = (f64::INFINITY, 0.0_f64);
    for (at, value) in values.iter().enumerate() {
        let us = value.floor();
        sum += us;
        let delta = us - mean;
        mean += delta / (at + 1) as f64;
        m2 += delta * (us - mean);
        min = min.min(us);
        max = max.max(us);
    }
    let n = values.len() as u64;
    let exceed = baselines.known().first().map(|baseline| {
        let beyond = |factor: f64| {
            let limit = factor * baseline.p95_us;
            values.iter().filter(|value| **value > limit).count() as u64
        };
        ExceedCounts {
            beyond_1_4x: beyond(1.4),
            beyond_2x: beyond(2.0),
            beyond_3x: beyond(3.0),
        }
    });
    LatencySeries {
        session_uid: SessionUid::new(uid.max(1)).expect("not zero"),
        stratum: runs.stratum(shape_key),
        hist_scheme: HistScheme::HdrUs2sd160s,
        histogram: histogram(values),
        n,
        sum_us: sum,
        m2_us2: m2.max(0.0),
        min_us: min,
        max_us: max,
        runs_seen: n,
        sampled_one_in: 1,
        dropped_runs: 0,
        first_runs_us: Vec::new(),
        slow_fast_switches: None,
        longest_slow_streak: None,
        exceed,
        baselines: baselines.clone(),
    }
}

/// Returns baselines that were learnt from these runs; absent if there are too few.
pub(super) fn baseline(version: &str, mut runs: Vec<f64>, firmware: &str) -> Baselines {
    if runs.len() < 20 {
        return Baselines::Absent(BaselineAbsence::TooFewRuns);
    }
    runs.sort_unstable_by(f64::total_cmp);
    #[expect(clippy::cast_precision_loss, reason = "few runs")]
    let n = runs.len() as f64;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "an index"
    )]
    let quantile = |q: f64| runs[((q * n) as usize).min(runs.len() - 1)];
    let mean = runs.iter().sum::<f64>() / n;
    let variance = runs.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / (n - 1.0);
    Baselines::Known(vec![SelfBaseline {
        kind: epwatch_proto::BaselineKind::PreviousVersion,
        model_version: version.into(),
        n: runs.len() as u64,
        p10_us: quantile(0.1),
        p50_us: quantile(0.5),
        p95_us: quantile(0.95),
        cv: variance.sqrt() / mean,
        vendor_fingerprint_hash: vendor_fingerprint_hash(firmware),
        ort_version: "1.31.1".into(),
        ep_version: "2.7.0".into(),
    }])
}

pub(super) fn device(chipset: &str, model: &str, firmware: &str) -> Device {
    Device {
        chipset: Chipset::normalise(chipset, "QTI", ""),
        soc_manufacturer: "QTI".into(),
        model: model.into(),
        vendor_fingerprint_hash: vendor_fingerprint_hash(firmware),
        ..samples::device(chipset)
    }
}

pub(super) fn app(id: &str) -> App {
    App {
        id: id.into(),
        version: "1".into(),
        build: String::new(),
        environment: "production".into(),
        rollout_labels: Vec::new(),
    }
}
