//! Small fleets for unit tests: devices that differ, lognormal runs, spikes. The noise is enough to break a rule
//! on merged runs. The full generator is the crate `epwatch-fleet`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use epwatch_model::{
    CohortKey, CohortVerdict, Installation, ModelKey, Origin, Placement, PlacementReference,
};
use epwatch_proto::histogram::bucket_of_us;
use epwatch_stats::Moments;
use jiff::Timestamp;

use crate::judge::baseline::Baseline;
use crate::judge::describe::describe;
use crate::judge::device_events::{DeviceEvents, FailedStart, GoldenTest};
use crate::judge::placement::tests::placed;
use crate::judge::signals::{Controls, Limits, PeerRatios, SignalEvidence};
use crate::judge::verdict::{CpuNode, CpuNodes, judge};
use crate::judge::window::{
    CohortWindow, DeviceVote, MissingBaseline, SelfBaseline, SelfBaselineKind, VoteLatency,
    Voteless, histogram_of,
};

/// A small generator with a seed: splitmix64.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn seeded(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0xd1b5_4a32_d192_ed03)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a uniform number in (0, 1).
    pub(crate) fn uniform(&mut self) -> f64 {
        ((self.next() >> 11) as f64 + 0.5) / (1u64 << 53) as f64
    }

    /// Returns a standard normal number (Box and Muller).
    pub(crate) fn normal(&mut self) -> f64 {
        let radius = (-2.0 * self.uniform().ln()).sqrt();
        radius * (std::f64::consts::TAU * self.uniform()).cos()
    }
}

/// One version on one chipset in one window.
#[derive(Debug, Clone)]
pub(crate) struct Fleet {
    pub(crate) seed: u64,
    pub(crate) devices: u32,
    pub(crate) runs: u32,
    pub(crate) version: &'static str,
    /// Version of the devices' baselines; `None` if they have none.
    pub(crate) before: Option<&'static str>,
    /// Median of the model on the NPU, in microseconds.
    pub(crate) base_us: f64,
    /// The version's latency relative to the one before.
    pub(crate) weight: f64,
    /// Share of the devices that are hit, and are slower by `slow_factor`.
    pub(crate) hit_share: f64,
    pub(crate) slow_factor: f64,
    /// Share of the runs of a device hit that are slower. A larger share has the runs of a smaller one, and more.
    pub(crate) slow_run_share: f64,
    pub(crate) placement: Placement,
    pub(crate) hit_placement: Placement,
    /// Slows every device by this factor, with every model.
    pub(crate) heat: f64,
}

impl Default for Fleet {
    fn default() -> Self {
        let healthy = placed(20, 25, 0, Some(1.0));
        Fleet {
            seed: 1,
            devices: 60,
            runs: 50,
            version: "2.0.0",
            before: Some("1.0.0"),
            base_us: 8_200.0,
            weight: 1.0,
            hit_share: 0.0,
            slow_factor: 1.0,
            slow_run_share: 1.0,
            hit_placement: healthy.clone(),
            placement: healthy,
            heat: 1.0,
        }
    }
}

pub(crate) fn model() -> ModelKey {
    ModelKey {
        app_id: "camera".into(),
        environment: "production".into(),
        model_id: "segmenter".into(),
    }
}

pub(crate) fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + second).unwrap()
}

impl Fleet {
    /// The fault that most tests use: the model's head moved to the CPU, 2.9 times slower.
    pub(crate) fn with_fallback(hit_share: f64) -> Self {
        Fleet {
            hit_share,
            slow_factor: 2.9,
            hit_placement: placed(21, 20, 5, Some(0.74)),
            ..Fleet::default()
        }
    }

    pub(crate) fn window(&self) -> CohortWindow {
        let mut random = Random::seeded(self.seed);
        let (firmware, shape): (Arc<str>, Arc<str>) = ("f1".into(), "static".into());
        let healthy = Arc::new(self.placement.clone());
        let fallen = Arc::new(self.hit_placement.clone());
        let n_hit = (f64::from(self.devices) * self.hit_share).round();
        let mut merged: BTreeMap<u16, u64> = BTreeMap::new();
        let mut votes = Vec::new();
        for device in 0..self.devices {
            let is_hit = f64::from(device) < n_hit;
            // Devices differ by some percent; runs of a device by a few more, with rare spikes.
            let silicon = self.base_us * (0.06 * random.normal()).exp();
            let drift = (0.03 * random.normal()).exp();
            let usual = self.weight * self.heat;
            let mut luck_of_runs = Random::seeded(self.seed + 1_000 * u64::from(device + 1));
            let mut counts: BTreeMap<u16, u64> = BTreeMap::new();
            let mut values = Vec::new();
            for _ in 0..self.runs {
                let spike = if random.uniform() < 0.02 {
                    1.0 + 2.0 * random.uniform()
                } else {
                    1.0
                };
                let is_slow = is_hit && luck_of_runs.uniform() < self.slow_run_share;
                let factor = usual * if is_slow { self.slow_factor } else { 1.0 };
                let us = silicon * drift * factor * spike * (0.05 * random.normal()).exp();
                values.push(us);
                #[expect(clippy::cast_possible_truncation, reason = "microseconds of some ms")]
                let bucket = bucket_of_us(us.round() as u64);
                *counts.entry(bucket).or_default() += 1;
            }
            for (bucket, count) in &counts {
                *merged.entry(*bucket).or_default() += count;
            }
            let device_baseline = self.before.map_or(
                Err(MissingBaseline::Told("first_version".into())),
                |version| {
                    Ok(SelfBaseline {
                        kind: SelfBaselineKind::PreviousVersion(version.into()),
                        n: 100,
                        p10_us: silicon * (-1.28f64 * 0.05).exp(),
                        p50_us: silicon,
                        p95_us: silicon * (1.64f64 * 0.05).exp(),
                        // Two runs in a hundred take one to three times as long.
                        cv: 0.17,
                    })
                },
            );
            let histogram = histogram_of(counts).unwrap();
            let moments: Moments = values.into_iter().collect();
            votes.push(DeviceVote {
                installation: self::device(device),
                firmware: firmware.clone(),
                device_model: "phone".into(),
                shape_key: shape.clone(),
                placement: if is_hit {
                    fallen.clone()
                } else {
                    healthy.clone()
                },
                created_s: None,
                latency: Some(VoteLatency::from_sums(&histogram, moments, device_baseline)),
                is_proven: true,
                reports_heat: true,
            });
        }
        CohortWindow {
            key: CohortKey {
                model: model(),
                model_version: self.version.into(),
                chipset: "SM8635".into(),
                firmware: None,
            },
            end: at(0),
            length: Duration::from_secs(3600),
            votes,
            histograms: BTreeMap::from([((firmware, shape), histogram_of(merged).unwrap())]),
            voteless: Voteless::default(),
            device_events: DeviceEvents::default(),
        }
    }
}

/// Returns the installation of a fleet's device.
pub(crate) fn device(at: u32) -> Installation {
    let mut installation = [0; 16];
    installation[..4].copy_from_slice(&at.to_be_bytes());
    installation
}

/// Returns a window whose first devices say that their compiled model was made for others, with their firmware.
pub(crate) fn compiled_for_another(
    mut window: CohortWindow,
    devices: std::ops::Range<u32>,
    firmware: &str,
) -> CohortWindow {
    let hit: Vec<Installation> = devices.map(device).collect();
    for vote in &mut window.votes {
        if hit.contains(&vote.installation) {
            let mut placement = Placement::clone(&vote.placement);
            placement.reasons.push("epcontext_for_another".into());
            (vote.placement, vote.firmware) = (Arc::new(placement), firmware.into());
        }
    }
    window
}

/// Returns one self-test for each device, with this output hash and difference; the tolerance is 0.05.
pub(crate) fn golden_tests(
    devices: std::ops::Range<u32>,
    hash: &str,
    firmware: &str,
    max_abs: f64,
) -> Vec<GoldenTest> {
    let test = |at| GoldenTest {
        installation: device(at),
        firmware: firmware.into(),
        input_id: "golden".into(),
        npu_hash: hash.into(),
        tolerance: Some(0.05),
        max_abs: Some(max_abs),
        cosine: Some(0.9),
        top1_equal: Some(at % 2 == 0),
        first_off: "".into(),
        has_run: true,
        is_proven: true,
    };
    devices.map(test).collect()
}

/// Returns golden tests without a tolerance, with this cosine of NPU and CPU.
pub(crate) fn cosine_tests(devices: std::ops::Range<u32>, cosine: f64) -> Vec<GoldenTest> {
    let mut tests = golden_tests(devices, "aa", "f1", 1.0 - cosine);
    for test in &mut tests {
        (test.tolerance, test.cosine) = (None, Some(cosine));
    }
    tests
}

/// Returns a healthy window whose first devices differ by `max_abs` in the self-test, with their output and firmware.
pub(crate) fn tested(
    mut window: CohortWindow,
    off: std::ops::Range<u32>,
    hash: &str,
    firmware: &str,
    max_abs: f64,
) -> CohortWindow {
    let others = golden_tests(off.end..60, "aa", "f1", 0.01);
    window.device_events.tests = golden_tests(off, hash, firmware, max_abs);
    window.device_events.tests.extend(others);
    window
}

/// Returns a failed start of each device.
pub(crate) fn failed_starts(
    devices: std::ops::Range<u32>,
    firmware: &str,
    reason: &str,
) -> Vec<FailedStart> {
    let start = |at| FailedStart {
        installation: device(at),
        firmware: firmware.into(),
        reason: reason.into(),
        count: 1,
        is_proven: true,
    };
    devices.map(start).collect()
}

/// Returns the slow-downs of another model on the chipset whose devices have these votes.
pub(crate) fn peers(votes: &[DeviceVote]) -> PeerRatios {
    let mut other = Fleet::default().window().key;
    other.model.model_id = "other".into();
    let mut peers = PeerRatios::default();
    peers.add(&other, votes);
    peers
}

/// Returns a window in which some devices have half of their runs at four times the usual latency. Their coefficient of
/// variation is over three times the earlier one.
pub(crate) fn noisy(share: f64) -> CohortWindow {
    let fleet = Fleet::default();
    let mut window = fleet.window();
    let n_noisy = f64::from(fleet.devices) * share;
    for (at, vote) in window.votes.iter_mut().enumerate() {
        let Some(latency) = vote.latency.as_mut().filter(|_| (at as f64) < n_noisy) else {
            continue;
        };
        let values = (0..fleet.runs).map(|run| fleet.base_us * f64::from(1 + 3 * (run % 2)));
        let moments: Moments = values.clone().collect();
        #[expect(clippy::cast_possible_truncation, reason = "microseconds of some ms")]
        let counts = values.map(|us| (bucket_of_us(us as u64), 1));
        let histogram = histogram_of(counts).unwrap();
        *latency = VoteLatency::from_sums(&histogram, moments, latency.device_baseline.clone());
    }
    window
}

/// Returns the baseline of the tests: version 1.0.0, wholly on the NPU.
pub(crate) fn reference() -> Baseline {
    Baseline {
        previous_version: Some("1.0.0".into()),
        placements: vec![PlacementReference::Placement {
            origin: Origin::PreviousVersion,
            placement: placed(10, 42, 0, Some(1.0)),
        }],
        ..Baseline::default()
    }
}

pub(crate) fn nodes() -> CpuNodes {
    let node = |op_type: &str, macs_share| CpuNode {
        op_type: op_type.into(),
        reason: "fp16_not_supported".into(),
        macs_share,
    };
    let head = vec![
        node("Gemm", Some(0.25)),
        node("LayerNormalization", None),
        node("Gemm", Some(0.01)),
    ];
    CpuNodes::from([((1, 21), head)])
}

/// Judges with 1,000 cohort windows a day.
pub(crate) fn judged(
    window: &CohortWindow,
    previous: Option<&CohortWindow>,
    baseline: &Baseline,
) -> CohortVerdict {
    judged_with_peers(window, previous, &PeerRatios::default(), baseline)
}

pub(crate) fn judged_with_peers(
    window: &CohortWindow,
    previous: Option<&CohortWindow>,
    peers: &PeerRatios,
    baseline: &Baseline,
) -> CohortVerdict {
    let controls = Controls {
        previous,
        peers,
        chipsets: &[],
    };
    judged_with_controls(window, controls, baseline)
}

pub(crate) fn judged_with_controls(
    window: &CohortWindow,
    controls: Controls<'_>,
    baseline: &Baseline,
) -> CohortVerdict {
    let limits = Limits::for_windows_a_day(1_000.0);
    let evidence = SignalEvidence::gather(window, controls, baseline, &limits);
    judge(
        window,
        baseline,
        &evidence,
        describe(window).unwrap(),
        &nodes(),
    )
}
