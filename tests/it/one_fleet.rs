//! If all devices of a fleet take a new version in the middle of a window, each counts once. This is tested for the
//! verdict, the usual number of devices, the page and Grafana.

use std::time::Duration;

use clickhouse::Client;
use epwatch_collector::WalOffset;
use epwatch_collector::sample_rows::{self, ReceivedReport};
use epwatch_detector::read::Source;
use epwatch_detector::{DetectorConfig, Evaluator, VerdictStore};
use epwatch_model::{CohortVerdict, Severity};
use epwatch_proto::placement::{CPU_EP, QNN_EP};
use epwatch_proto::{
    App, BaselineAbsence, BaselineKind, Baselines, CpuNode, EpShare, Fingerprint, LatencySeries,
    Phase, Placement, ReasonCode, Report, SelfBaseline, SendClock, Session, SparseHistogram,
    histogram::bucket_of_us, samples,
};
use epwatch_server::Period;
use jiff::{SignedDuration, Timestamp};

use crate::{
    dashboards::{Range, names, queries},
    fleet::{APP, MODEL},
    page::Served,
    support::Store,
};

pub(crate) const CHIPSET: &str = "SM8635";
pub(crate) const DEVICES: u8 = 30;
const RUNS: u64 = 40;

/// The version that all devices run: 2.0.0 has a node on the CPU, and is three times slower.
#[derive(Clone, Copy)]
pub(crate) struct Version {
    pub(crate) name: &'static str,
    pub(crate) run_us: u64,
    pub(crate) npu_macs: f64,
    pub(crate) app: &'static str,
    pub(crate) model: &'static str,
    /// The EP that the app requests, by the app's own name for it.
    pub(crate) ep: &'static str,
    /// Number of the fleet; different fleets have different devices.
    pub(crate) fleet: u8,
    pub(crate) chipset: &'static str,
    /// Version before and its latency, as in the devices' baselines.
    pub(crate) before: Option<(&'static str, u64)>,
}

pub(crate) const FIRST: Version = Version {
    name: "1.0.0",
    run_us: 8_000,
    npu_macs: 1.0,
    app: APP,
    model: MODEL,
    ep: QNN_EP,
    fleet: 0,
    chipset: CHIPSET,
    before: None,
};

pub(crate) const SECOND: Version = Version {
    name: "2.0.0",
    run_us: 24_000,
    npu_macs: 0.7,
    before: Some((FIRST.name, FIRST.run_us)),
    ..FIRST
};

impl Version {
    pub(crate) fn report(self, device: u8, at: Timestamp) -> Report {
        let mut installation = [7; 16];
        installation[..2].copy_from_slice(&[device, self.fleet]);
        let second = u64::try_from(at.as_second()).unwrap();
        let uid = samples::session_uid(1);
        let sample = samples::report(samples::key(installation, 1, second), uid);
        let end_ms = at.as_millisecond();
        Report {
            interval_start_unix_ms: end_ms,
            interval_end_unix_ms: end_ms,
            interval_length_ms: 0,
            boot_id: String::new(),
            uptime_at_end_ms: None,
            app: App {
                id: self.app.into(),
                ..sample.app
            },
            device: samples::device(self.chipset),
            sessions: vec![self.session(at)],
            series: vec![self.series(device)],
            self_tests: Vec::new(),
            start_failures: Vec::new(),
            ..sample
        }
    }

    fn is_fallen(self) -> bool {
        self.npu_macs < 1.0
    }

    fn session(self, at: Timestamp) -> Session {
        let print = Some(Fingerprint {
            algorithm: 1,
            value: self.run_us,
        });
        let share = |ep: &str, n_nodes, macs_share| EpShare {
            ep: ep.into(),
            n_nodes,
            n_partitions: None,
            op_types: Default::default(),
            macs_share: Some(macs_share),
        };
        let gemm = CpuNode {
            name: "Gemm".into(),
            op_type: "Gemm".into(),
            domain: String::new(),
            benign: false,
            reason: ReasonCode::Fp16NotSupported,
            reason_text: String::new(),
            macs_share: Some(1.0 - self.npu_macs),
        };
        let cpu_nodes: Vec<CpuNode> = self.is_fallen().then_some(gemm).into_iter().collect();
        let n_cpu = u32::from(self.is_fallen());
        let requested = vec![String::from(self.ep)];
        Session {
            model: samples::model(self.model, self.name),
            requested_eps: requested.clone(),
            directive_id: String::new(),
            placement: Placement {
                requested_eps: requested,
                eps: vec![
                    share(self.ep, 20 - n_cpu, self.npu_macs),
                    share(CPU_EP, n_cpu, 1.0 - self.npu_macs),
                ],
                n_nodes: 20,
                cpu_nodes,
                cpu_nodes_truncated: false,
                macs_attributed: Some(1.0),
                exact: print,
                normalised: print,
                reasons: Vec::new(),
                ..samples::placement()
            },
            creation_us: None,
            created_at_unix_ms: at.as_millisecond(),
            ..samples::session(samples::session_uid(1))
        }
    }

    /// Devices differ by some percent, and so do the runs of each.
    fn series(self, device: u8) -> LatencySeries {
        let silicon = 1.0 + 0.01 * f64::from(device % 11);
        let typical_us = self.run_us as f64 * silicon;
        let mut runs_us: Vec<f64> = Vec::new();
        let mut counts = std::collections::BTreeMap::new();
        for run in 0..RUNS {
            let us = typical_us * (0.95 + 0.1 * run as f64 / RUNS as f64);
            #[expect(clippy::cast_possible_truncation, reason = "microseconds of some ms")]
            let bucket = bucket_of_us(us as u64);
            *counts.entry(bucket).or_insert(0u64) += 1;
            runs_us.push(us);
        }
        let sum_us: f64 = runs_us.iter().sum();
        let mean = sum_us / RUNS as f64;
        let baselines = match self.before {
            None => Baselines::Absent(BaselineAbsence::FirstVersion),
            Some((version, run_us)) => {
                let before_us = run_us as f64 * silicon;
                Baselines::Known(vec![SelfBaseline {
                    kind: BaselineKind::PreviousVersion,
                    model_version: version.into(),
                    n: 100,
                    p10_us: 0.95 * before_us,
                    p50_us: before_us,
                    p95_us: 1.1 * before_us,
                    cv: 0.05,
                    vendor_fingerprint_hash: String::new(),
                    ort_version: String::new(),
                    ep_version: String::new(),
                }])
            }
        };
        let sample = samples::series(samples::session_uid(1), Phase::Warm, &[1]);
        LatencySeries {
            histogram: SparseHistogram::from_parts(
                counts.keys().copied().collect(),
                counts.values().copied().collect(),
            )
            .unwrap(),
            n: RUNS,
            sum_us,
            m2_us2: runs_us.iter().map(|us| (us - mean).powi(2)).sum(),
            min_us: runs_us[0],
            max_us: runs_us[runs_us.len() - 1],
            runs_seen: RUNS,
            first_runs_us: Vec::new(),
            slow_fast_switches: None,
            longest_slow_streak: None,
            exceed: None,
            baselines,
            ..sample
        }
    }

    /// Stores a report of every device.
    pub(crate) async fn store(self, client: Client, at: Timestamp) {
        self.store_with(client, at, |report| report).await;
    }

    /// Works like [`Self::store`], with a change to each report.
    pub(crate) async fn store_with(
        self,
        client: Client,
        at: Timestamp,
        change: impl Fn(Report) -> Report,
    ) {
        let second = u64::try_from(at.as_second()).unwrap();
        let first = 1_000 * (1_000 * second + u64::from(self.fleet));
        let received = (0..DEVICES).map(|device| ReceivedReport {
            offset: WalOffset(first + u64::from(device)),
            received_at_us: 1_000_000 * second,
            sent: SendClock {
                wall_unix_ms: Some(at.as_millisecond()),
                ..SendClock::default()
            },
            is_unproven: false,
            report: change(self.report(device, at)),
        });
        let received: Vec<ReceivedReport> = received.collect();
        sample_rows::store(client, Duration::from_secs(1), &received).await;
    }
}

/// Returns the config of a detector with windows of a minute, which are judged at their end.
pub(crate) fn detector_config() -> DetectorConfig {
    let seconds = |n| Period(Duration::from_secs(n));
    DetectorConfig {
        window: seconds(60),
        step: seconds(60),
        bucket: seconds(1),
        ingest_delay: Some(seconds(0)),
        lookback: seconds(3_600),
        ..DetectorConfig::default()
    }
}

/// Judges the window that ends at `end`, and stores the verdicts.
pub(crate) async fn judge(client: Client, end: Timestamp) -> Vec<CohortVerdict> {
    let config = detector_config();
    let evaluator = Evaluator::new(Source::new(client.clone(), 10_000), config);
    let evaluation = evaluator.evaluate(end).await.unwrap();
    assert!(evaluation.failures.is_empty(), "{:?}", evaluation.failures);
    let store = VerdictStore::new(client);
    let judged_at = end + SignedDuration::from_secs(1);
    let (verdicts, evidence) = (&evaluation.verdicts, &evaluation.evidence);
    store.add_windows(verdicts, judged_at).await.unwrap();
    store.add_evidence(evidence, judged_at).await.unwrap();
    evaluation.verdicts
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fleet_that_is_updated_within_a_window_counts_each_device_once() {
    let store = Store::start().await;
    let second = Timestamp::now().as_second() - 900;
    let began = Timestamp::from_second(second - second % 60).unwrap();
    let after = |seconds| began + SignedDuration::from_secs(seconds);
    for window in 0..4 {
        FIRST.store(store.client(), after(60 * window + 10)).await;
        judge(store.client(), after(60 * window + 60)).await;
    }
    FIRST.store(store.client(), after(250)).await;
    SECOND.store(store.client(), after(270)).await;
    let verdicts = judge(store.client(), after(300)).await;

    let of = |version: Version| {
        let mut of_version = verdicts.iter();
        let found = of_version.find(|verdict| verdict.key.model_version == version.name);
        found.unwrap_or_else(|| panic!("{} in {verdicts:#?}", version.name))
    };
    let devices = u64::from(DEVICES);
    for version in [FIRST, SECOND] {
        let numbers = &of(version).numbers;
        let counted = (numbers.devices_seen, numbers.devices_on_chipset);
        assert_eq!(counted, (devices, devices), "{}", version.name);
    }
    // Twice the usual number of devices would look like made-up ones, and the page would be a ticket.
    let verdict = of(SECOND);
    assert_eq!(verdict.severity, Severity::Page, "{:#?}", verdict.reasons);
    let sql = "SELECT groupUniqArray(devices_on_chipset) FROM cohort_windows_v1";
    let stored: Vec<u64> = store.client().query(sql).fetch_one().await.unwrap();
    assert_eq!(stored, [devices]);

    let page = Served::start(store.client()).await;
    let model = page.get("/fleet.json").await.json()["models"][0].clone();
    let counted = (&model["devices_on_newest"], &model["devices"]);
    assert_eq!(counted, (&devices.into(), &devices.into()), "{model:#}");
    let fleet = page.get("/fleet").await.text;
    assert!(fleet.contains("on 30 of 30 devices"), "{fleet}");
    page.stop().await;

    let panels = queries();
    let mut of_grafana = panels.iter();
    let panel = of_grafana.find(|(name, _)| name.contains("Devices by chipset"));
    let sql = Range::now().expanded(&panel.unwrap().1, &names(&["2.0.0"], &[CHIPSET]));
    let rows = store.client().query(&sql.replace('?', "??"));
    let rows: Vec<(String, u64, u64)> = rows.fetch_all().await.unwrap();
    assert_eq!(rows, [(CHIPSET.to_owned(), devices, devices)]);
    store.engine.stop().await;
}
