//! One cohort window alone, from the sums of its devices to its verdict: what judging costs without
//! reading.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use epwatch_detector::signals::{Controls, Limits, PeerRatios, SignalEvidence};
use epwatch_detector::verdict::{CpuNodes, judge};
use epwatch_detector::window::{
    CohortWindow, DeviceVote, SelfBaseline, SelfBaselineKind, VoteLatency, Voteless, histogram_of,
};
use epwatch_detector::{Baseline, DeviceEvents, describe, evidence_of};
use epwatch_model::{CohortKey, ModelKey, Origin, Placement, PlacementMethod, PlacementReference};
use epwatch_stats::RangeHistogram;
use jiff::Timestamp;
use serde_json::{Value, json};

/// Microseconds that a cohort window of 25, 100 and 400 devices takes, and the part of the evidence that is kept with
/// the verdict. Each is a median of many evaluations.
pub(crate) fn measure() -> Value {
    let of = |devices| {
        let (window, baseline) = (window(devices), baseline());
        let median = |mut taken: Vec<f64>| {
            taken.sort_by(f64::total_cmp);
            taken[taken.len() / 2]
        };
        let (judged, kept): (Vec<f64>, Vec<f64>) =
            (0..201).map(|_| judged(&window, &baseline)).unzip();
        (median(judged), median(kept))
    };
    let (of_25, of_100, of_400) = (of(25), of(100), of(400));
    json!({
        "devices_25_us": of_25.0,
        "devices_100_us": of_100.0,
        "devices_400_us": of_400.0,
        "devices_25_evidence_us": of_25.1,
        "devices_100_evidence_us": of_100.1,
        "devices_400_evidence_us": of_400.1,
    })
}

/// Returns the time of the whole judgement, and of the evidence that is kept.
fn judged(window: &CohortWindow, baseline: &Baseline) -> (f64, f64) {
    let began = Instant::now();
    let window = black_box(window);
    let limits = Limits::for_windows_a_day(10_000.0);
    let controls = Controls {
        previous: None,
        peers: &PeerRatios::default(),
        chipsets: &[],
    };
    let evidence = SignalEvidence::gather(window, controls, baseline, &limits);
    let statistics = describe(window).expect("the histograms are of one scheme");
    let nodes = CpuNodes::default();
    let verdict = black_box(judge(window, baseline, &evidence, statistics, &nodes));
    let is_judged = Instant::now();
    black_box(evidence_of(window, Some(window), &verdict).expect("one scheme"));
    (
        began.elapsed().as_secs_f64() * 1e6,
        is_judged.elapsed().as_secs_f64() * 1e6,
    )
}

fn placement(fallen: bool) -> Placement {
    Placement {
        method: PlacementMethod {
            graph_kind: "jit".into(),
            source: "assignment_api".into(),
            fingerprint_algorithm: 1,
        },
        fingerprint: 10 + u64::from(fallen),
        runtime: "1.31.1/2.7.0".into(),
        n_nodes: 43,
        npu_nodes: if fallen { 41 } else { 42 },
        cpu_nodes: u32::from(fallen),
        npu_macs_share: Some(if fallen { 0.82 } else { 1.0 }),
        reasons: Vec::new(),
    }
}

fn baseline() -> Baseline {
    let reference = PlacementReference::Placement {
        origin: Origin::PreviousVersion,
        placement: placement(false),
    };
    Baseline {
        previous_version: Some("1.0.0".into()),
        placements: vec![reference],
        ..Baseline::default()
    }
}

/// A tenth of the devices fell back and is slower: every signal has something to do.
fn window(devices: u16) -> CohortWindow {
    let (sound, fallen) = (Arc::new(placement(false)), Arc::new(placement(true)));
    let (firmware, shape): (Arc<str>, Arc<str>) = ("f1".into(), "static".into());
    let mut votes = Vec::new();
    let mut merged: BTreeMap<u16, u64> = BTreeMap::new();
    for device in 0..devices {
        let is_fallen = device % 10 == 3;
        let first = 896 + device % 13 + if is_fallen { 192 } else { 0 };
        let counts: Vec<(u16, u64)> = (0..30)
            .map(|at| (first + at, 1 + u64::from(15 - at.abs_diff(12).min(15))))
            .collect();
        for (bucket, count) in &counts {
            *merged.entry(*bucket).or_default() += count;
        }
        let histogram = sketch(counts);
        let moments = histogram.estimated_moments().expect("there are runs");
        let earlier = SelfBaseline {
            kind: SelfBaselineKind::PreviousVersion("1.0.0".into()),
            n: 200,
            p10_us: 8_300.0,
            p50_us: 8_900.0,
            p95_us: 9_900.0,
            cv: 0.05,
        };
        let mut installation = [0; 16];
        installation[..2].copy_from_slice(&device.to_be_bytes());
        votes.push(DeviceVote {
            installation,
            firmware: firmware.clone(),
            device_model: "phone".into(),
            shape_key: shape.clone(),
            placement: if is_fallen { &fallen } else { &sound }.clone(),
            created_s: None,
            latency: Some(VoteLatency::from_sums(&histogram, moments, Ok(earlier))),
            is_proven: true,
            reports_heat: true,
        });
    }
    CohortWindow {
        key: CohortKey {
            model: ModelKey {
                app_id: "camera".into(),
                environment: "production".into(),
                model_id: "segmenter".into(),
            },
            model_version: "2.0.0".into(),
            chipset: "SM8650".into(),
            firmware: None,
        },
        end: Timestamp::UNIX_EPOCH,
        length: Duration::from_secs(86_400),
        votes,
        histograms: BTreeMap::from([((firmware, shape), sketch(merged))]),
        voteless: Voteless::default(),
        device_events: DeviceEvents::default(),
    }
}

fn sketch(counts: impl IntoIterator<Item = (u16, u64)>) -> RangeHistogram {
    histogram_of(counts).expect("few runs")
}
