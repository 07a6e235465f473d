//! A migrated engine of a test's own, and reports as the collector writes them.

use std::future::Future;
use std::time::{Duration, Instant};

use clickhouse::{Client, Row};
use epwatch_detector::DetectorConfig;
use epwatch_detector::read::Span;
use epwatch_proto::histogram::bucket_of_us;
use epwatch_server::Period;
use epwatch_store::embedded::{ChildProgram, EmbeddedConfig, EmbeddedStore};
use jiff::Timestamp;
use serde::Serialize;

use crate::schema;

pub(crate) struct TestStore {
    store: EmbeddedStore,
    dir: tempfile::TempDir,
}

impl TestStore {
    pub(crate) async fn start() -> TestStore {
        let store = TestStore::resume(tempfile::tempdir().unwrap()).await;
        schema::apply(&store.store.target("epwatch")).await.unwrap();
        store
    }

    /// Starts an engine on a folder that had one.
    pub(crate) async fn resume(dir: tempfile::TempDir) -> TestStore {
        let library = epwatch_engines::for_tests(epwatch_engines::Engine::Chdb).chdb_library();
        let child = ChildProgram::for_tests().unwrap();
        let mut config = EmbeddedConfig::new(dir.path(), library, child);
        config.memory_limit_bytes = 1 << 30;
        config.stop_timeout = Duration::from_secs(5);
        let store = EmbeddedStore::start(config).await.unwrap();
        store.ready().await.unwrap();
        TestStore { store, dir }
    }

    /// Stops the engine and keeps its folder.
    pub(crate) async fn halt(self) -> tempfile::TempDir {
        self.store.stop().await;
        self.dir
    }

    pub(crate) fn client(&self) -> Client {
        self.store.client("epwatch")
    }

    pub(crate) fn socket(&self) -> std::path::PathBuf {
        self.store.socket().to_owned()
    }

    pub(crate) async fn stop(self) {
        self.store.stop().await;
    }

    pub(crate) async fn count(&self, sql: &str) -> u64 {
        self.client().query(sql).fetch_one().await.unwrap()
    }
}

/// Polls until `condition` holds.
pub(crate) async fn eventually<F>(what: &str, mut condition: impl FnMut() -> F)
where
    F: Future<Output = bool>,
{
    let deadline = Instant::now() + Duration::from_secs(60);
    while !condition().await {
        assert!(Instant::now() < deadline, "{what} did not come true");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Windows of 60 s that are judged every 20 s.
pub(crate) fn config() -> DetectorConfig {
    DetectorConfig {
        window: Period(Duration::from_secs(60)),
        step: Period(Duration::from_secs(1)),
        bucket: Period(Duration::from_secs(1)),
        ingest_delay: Period(Duration::ZERO),
        lookback: Period(Duration::from_secs(3600)),
        ..DetectorConfig::default()
    }
}

/// Ten minutes ago, on a whole minute: rows of long ago expire.
pub(crate) fn base() -> Timestamp {
    let second = Timestamp::now().as_second() - 600;
    Timestamp::from_second(second - second % 60).unwrap()
}

/// The file of every simulated model.
pub(crate) const MODEL_SHA256: &str =
    "5f70bf18a086007016e948b04aed3b82103a36bea41755b6cddfaf10ace3c6ef";

/// Where a simulated model runs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    pub(crate) fingerprint: u64,
    pub(crate) npu_nodes: u32,
    pub(crate) cpu_nodes: u32,
    pub(crate) npu_macs_share: Option<f32>,
    pub(crate) cpu_ops: &'static [&'static str],
}

pub(crate) const V1: Place = Place {
    fingerprint: 10,
    npu_nodes: 42,
    cpu_nodes: 0,
    npu_macs_share: Some(1.0),
    cpu_ops: &[],
};

pub(crate) const V2: Place = Place {
    fingerprint: 20,
    npu_nodes: 30,
    cpu_nodes: 0,
    npu_macs_share: Some(1.0),
    cpu_ops: &[],
};

pub(crate) const V2_FALLEN: Place = Place {
    fingerprint: 21,
    npu_nodes: 25,
    cpu_nodes: 5,
    npu_macs_share: Some(0.74),
    cpu_ops: &["Gemm", "LayerNormalization", "Relu", "Gemm", "Softmax"],
};

/// One report of each of some devices.
#[derive(Debug, Clone)]
pub(crate) struct Reports {
    pub(crate) devices: std::ops::Range<u8>,
    pub(crate) chipset: &'static str,
    pub(crate) firmware: &'static str,
    pub(crate) version: &'static str,
    pub(crate) place: Place,
    pub(crate) p50_us: f64,
    pub(crate) runs: u64,
    /// Its own earlier version and median.
    pub(crate) previous: Option<(&'static str, f64)>,
    pub(crate) directive: &'static str,
    pub(crate) requests_npu: bool,
    pub(crate) is_late: bool,
    /// Whether the installation was new beyond its quota.
    pub(crate) is_unproven: bool,
    /// Length of a bucket, in seconds.
    pub(crate) bucket_s: i64,
    /// What a golden input gave: the first byte of the output's hash, and the largest difference from
    /// the CPU; 0.05 is accepted.
    pub(crate) golden: Option<(u8, f64)>,
    /// How many sessions could not be made before this one.
    pub(crate) failed_starts: u64,
    /// Whether there is no session after those.
    pub(crate) only_failed: bool,
}

impl Default for Reports {
    fn default() -> Self {
        Reports {
            devices: 0..30,
            chipset: "SM8635",
            firmware: "f1",
            version: "1.0.0",
            place: V1,
            p50_us: 8_200.0,
            runs: 40,
            previous: None,
            directive: "",
            requests_npu: true,
            is_late: false,
            is_unproven: false,
            bucket_s: 1,
            golden: None,
            failed_starts: 0,
            only_failed: false,
        }
    }
}

/// The window that ends then.
pub(crate) fn span(end: Timestamp) -> Span {
    Span {
        end,
        window: config().window.0,
        lookback: config().lookback.0,
    }
}

impl Reports {
    /// Version 2, as fast as version 1 was.
    pub(crate) fn v2() -> Reports {
        Reports {
            version: "2.0.0",
            place: V2,
            previous: Some(("1.0.0", 8_200.0)),
            ..Reports::default()
        }
    }

    /// Version 2 with its head on the CPU.
    pub(crate) fn fallen() -> Reports {
        Reports {
            place: V2_FALLEN,
            p50_us: 24_000.0,
            ..Reports::v2()
        }
    }
}

#[derive(Debug, Row, Serialize)]
struct CopyRow {
    installation: [u8; 16],
    stream_id: u64,
    sequence: u64,
    received_at: i64,
    collector_id: u64,
    wal_offset: u64,
    bucket: u32,
}

#[derive(Debug, Row, Serialize)]
struct ReportRow {
    collector_id: u64,
    wal_offset: u64,
    received_at: i64,
    bucket: u32,
    installation: [u8; 16],
    stream_id: u64,
    sequence: u64,
    occurred_at: i64,
    is_late: bool,
    is_unproven: bool,
    app_id: &'static str,
    environment: &'static str,
    chipset: &'static str,
    firmware: &'static str,
    ort_version: &'static str,
    ep_version: &'static str,
    session_uid: Vec<u64>,
    session_model_id: Vec<&'static str>,
    session_model_version: Vec<&'static str>,
    session_model_sha256: Vec<&'static str>,
    session_directive_id: Vec<&'static str>,
    session_created_at: Vec<i64>,
    session_requests_npu: Vec<bool>,
    session_graph_kind: Vec<&'static str>,
    session_placement_source: Vec<&'static str>,
    session_fingerprint_algorithm: Vec<u32>,
    session_fingerprint_exact: Vec<u64>,
    session_fingerprint_normalised: Vec<u64>,
    session_n_nodes: Vec<u32>,
    session_npu_nodes: Vec<u32>,
    session_npu_partitions: Vec<u32>,
    session_cpu_nodes: Vec<u32>,
    session_cpu_benign_nodes: Vec<u32>,
    session_npu_macs_share: Vec<Option<f32>>,
    session_macs_attributed: Vec<Option<f32>>,
    session_reasons: Vec<Vec<&'static str>>,
    series_session: Vec<u16>,
    series_phase: Vec<&'static str>,
    series_thermal: Vec<&'static str>,
    series_power_save: Vec<&'static str>,
    series_performance_mode: Vec<&'static str>,
    series_shape_key: Vec<&'static str>,
    series_session_age: Vec<&'static str>,
    series_is_clean: Vec<bool>,
    series_hist_scheme: Vec<&'static str>,
    series_hist_bucket: Vec<Vec<u16>>,
    series_hist_count: Vec<Vec<u64>>,
    series_n: Vec<u64>,
    series_sum_us: Vec<f64>,
    series_m2_us2: Vec<f64>,
    series_min_us: Vec<f64>,
    series_max_us: Vec<f64>,
    series_runs_seen: Vec<u64>,
    series_sampled_one_in: Vec<u32>,
    series_dropped_runs: Vec<u64>,
    series_first_runs_us: Vec<Vec<u64>>,
    series_slow_fast_switches: Vec<Option<u64>>,
    series_longest_slow_streak: Vec<Option<u64>>,
    series_beyond_1_4x: Vec<Option<u64>>,
    series_beyond_2x: Vec<Option<u64>>,
    series_beyond_3x: Vec<Option<u64>>,
    series_previous_version: Vec<&'static str>,
    series_previous_n: Vec<u64>,
    series_previous_p10_us: Vec<f64>,
    series_previous_p50_us: Vec<f64>,
    series_previous_p95_us: Vec<f64>,
    series_previous_cv: Vec<f64>,
    series_earlier_firmware: Vec<&'static str>,
    series_earlier_runtime: Vec<&'static str>,
    series_earlier_n: Vec<u64>,
    series_earlier_p10_us: Vec<f64>,
    series_earlier_p50_us: Vec<f64>,
    series_earlier_p95_us: Vec<f64>,
    series_earlier_cv: Vec<f64>,
    series_baseline_absence: Vec<&'static str>,
    self_test_session: Vec<u64>,
    self_test_input_id: Vec<&'static str>,
    self_test_tolerance: Vec<Option<f64>>,
    self_test_npu_hash: Vec<String>,
    self_test_cpu_hash: Vec<String>,
    self_test_max_abs: Vec<Option<f64>>,
    self_test_cosine: Vec<Option<f64>>,
    self_test_top1_equal: Vec<Option<bool>>,
    self_test_error_code: Vec<i32>,
    start_failure_model_id: Vec<&'static str>,
    start_failure_model_version: Vec<&'static str>,
    start_failure_requested_eps: Vec<Vec<&'static str>>,
    start_failure_phase: Vec<&'static str>,
    start_failure_reason: Vec<&'static str>,
    start_failure_ort_status: Vec<i32>,
    start_failure_text: Vec<String>,
    start_failure_count: Vec<u64>,
}

#[derive(Debug, Row, Serialize)]
struct PlacementRow {
    app_id: &'static str,
    environment: &'static str,
    model_id: &'static str,
    model_version: &'static str,
    fingerprint_algorithm: u32,
    fingerprint_exact: u64,
    fingerprint_normalised: u64,
    first_seen: i64,
    cpu_node_name: Vec<String>,
    cpu_node_op_type: Vec<&'static str>,
    cpu_node_benign: Vec<bool>,
    cpu_node_reason: Vec<&'static str>,
    cpu_node_macs_share: Vec<Option<f32>>,
    cpu_nodes_truncated: bool,
}

pub(crate) struct Latency {
    pub(crate) buckets: Vec<u16>,
    pub(crate) counts: Vec<u64>,
    pub(crate) sum_us: f64,
    pub(crate) m2_us2: f64,
    pub(crate) min_us: f64,
    pub(crate) max_us: f64,
}

impl Reports {
    /// Stores them as received at `at`, under offsets of their own.
    pub(crate) async fn store(&self, store: &TestStore, at: Timestamp) {
        // Columns left out are empty, which validation takes for an oversight.
        let client = store.client().with_validation(false);
        let mut copies = client.insert::<CopyRow>("report_copies").await.unwrap();
        let mut reports = client.insert::<ReportRow>("reports").await.unwrap();
        for device in self.devices.clone() {
            let report = self.report(device, at);
            copies
                .write(&CopyRow {
                    installation: report.installation,
                    stream_id: report.stream_id,
                    sequence: report.sequence,
                    received_at: report.received_at,
                    collector_id: report.collector_id,
                    wal_offset: report.wal_offset,
                    bucket: report.bucket,
                })
                .await
                .unwrap();
            reports.write(&report).await.unwrap();
        }
        copies.end().await.unwrap();
        reports.end().await.unwrap();

        let mut placements = client.insert::<PlacementRow>("placements").await.unwrap();
        placements.write(&self.placement(at)).await.unwrap();
        placements.end().await.unwrap();
    }

    fn placement(&self, at: Timestamp) -> PlacementRow {
        let ops = || self.place.cpu_ops.iter().copied();
        // One benign node at the edge, as QNN leaves it.
        let edge = || std::iter::once("QuantizeLinear");
        let op_types: Vec<&'static str> = edge().chain(ops()).collect();
        PlacementRow {
            app_id: "camera",
            environment: "production",
            model_id: "segmenter",
            model_version: self.version,
            fingerprint_algorithm: 1,
            fingerprint_exact: self.place.fingerprint,
            fingerprint_normalised: self.place.fingerprint,
            first_seen: at.as_millisecond(),
            cpu_node_name: op_types.iter().map(ToString::to_string).collect(),
            cpu_node_benign: op_types.iter().map(|op| *op == "QuantizeLinear").collect(),
            cpu_node_reason: op_types.iter().map(|_| "fp16_not_supported").collect(),
            cpu_node_macs_share: op_types
                .iter()
                .map(|op| (*op == "Gemm").then_some(0.13))
                .collect(),
            cpu_node_op_type: op_types,
            cpu_nodes_truncated: false,
        }
    }

    fn report(&self, device: u8, at: Timestamp) -> ReportRow {
        let golden: Vec<(u8, f64)> = self.golden.into_iter().collect();
        let tests = || golden.iter();
        let failed = (self.failed_starts > 0).then_some(self.failed_starts);
        let starts = || failed.iter();
        // Without a session there are no rows of its series either.
        let n = usize::from(!self.only_failed);
        let place = self.place;
        let latency = self.latency(device);
        let (previous_version, previous_us) = self.previous.unwrap_or(("", 0.0));
        let previous_us = previous_us * silicon(device);
        let (previous_n, absence) = match self.previous {
            Some(_) => (100, "unspecified"),
            None => (0, "first_version"),
        };
        let mut installation = [0; 16];
        installation[0] = device;
        installation[1..7].copy_from_slice(self.chipset.as_bytes());
        let wal_offset = u64::from(device) + 1_000 * u64::try_from(at.as_second()).unwrap();
        ReportRow {
            collector_id: 1,
            wal_offset: wal_offset * 10 + u64::from(self.chipset.as_bytes()[3]),
            received_at: at.as_millisecond(),
            bucket: u32::try_from(at.as_second() - at.as_second() % self.bucket_s).unwrap(),
            installation,
            stream_id: 1,
            sequence: u64::try_from(at.as_second()).unwrap(),
            occurred_at: at.as_millisecond(),
            is_late: self.is_late,
            is_unproven: self.is_unproven,
            app_id: "camera",
            environment: "production",
            chipset: self.chipset,
            firmware: self.firmware,
            ort_version: "1.31.1",
            ep_version: "2.7.0",
            session_uid: vec![1; n],
            session_model_id: vec!["segmenter"; n],
            session_model_version: vec![self.version; n],
            session_model_sha256: vec![MODEL_SHA256; n],
            session_directive_id: vec![self.directive; n],
            session_created_at: vec![at.as_millisecond(); n],
            session_requests_npu: vec![self.requests_npu; n],
            session_graph_kind: vec!["jit"; n],
            session_placement_source: vec!["assignment_api"; n],
            session_fingerprint_algorithm: vec![1; n],
            session_fingerprint_exact: vec![place.fingerprint; n],
            session_fingerprint_normalised: vec![place.fingerprint; n],
            session_n_nodes: vec![place.npu_nodes + place.cpu_nodes + 1; n],
            session_npu_nodes: vec![place.npu_nodes; n],
            session_npu_partitions: vec![1; n],
            session_cpu_nodes: vec![place.cpu_nodes + 1; n],
            session_cpu_benign_nodes: vec![1; n],
            session_npu_macs_share: vec![place.npu_macs_share; n],
            session_macs_attributed: vec![place.npu_macs_share.map(|_| 1.0); n],
            session_reasons: vec![Vec::new(); n],
            series_session: vec![1; n],
            series_phase: vec!["warm"; n],
            series_thermal: vec!["none"; n],
            series_power_save: vec!["off"; n],
            series_performance_mode: vec![""; n],
            series_shape_key: vec!["static"; n],
            series_session_age: vec!["unknown"; n],
            series_is_clean: vec![true; n],
            series_hist_scheme: vec!["hdr_us_2sd_1_60s"; n],
            series_hist_bucket: vec![latency.buckets; n],
            series_hist_count: vec![latency.counts; n],
            series_n: vec![self.runs; n],
            series_sum_us: vec![latency.sum_us; n],
            series_m2_us2: vec![latency.m2_us2; n],
            series_min_us: vec![latency.min_us; n],
            series_max_us: vec![latency.max_us; n],
            series_runs_seen: vec![self.runs; n],
            series_sampled_one_in: vec![1; n],
            series_dropped_runs: vec![0; n],
            series_first_runs_us: vec![Vec::new(); n],
            series_slow_fast_switches: vec![None; n],
            series_longest_slow_streak: vec![None; n],
            series_beyond_1_4x: vec![None; n],
            series_beyond_2x: vec![None; n],
            series_beyond_3x: vec![None; n],
            series_previous_version: vec![previous_version; n],
            series_previous_n: vec![previous_n; n],
            series_previous_p10_us: vec![0.95 * previous_us; n],
            series_previous_p50_us: vec![previous_us; n],
            series_previous_p95_us: vec![1.1 * previous_us; n],
            series_previous_cv: vec![0.05; n],
            series_earlier_firmware: vec![""; n],
            series_earlier_runtime: vec![""; n],
            series_earlier_n: vec![0; n],
            series_earlier_p10_us: vec![0.0; n],
            series_earlier_p50_us: vec![0.0; n],
            series_earlier_p95_us: vec![0.0; n],
            series_earlier_cv: vec![0.0; n],
            series_baseline_absence: vec![absence; n],
            self_test_session: tests().map(|_| 1).collect(),
            self_test_input_id: tests().map(|_| "golden").collect(),
            self_test_tolerance: tests().map(|_| Some(0.05)).collect(),
            self_test_npu_hash: tests()
                .map(|(hash, _)| epwatch_proto::hex(&[*hash; 16]))
                .collect(),
            self_test_cpu_hash: tests().map(|_| "00".repeat(16)).collect(),
            self_test_max_abs: tests().map(|(_, max_abs)| Some(*max_abs)).collect(),
            self_test_cosine: tests().map(|_| Some(0.9)).collect(),
            self_test_top1_equal: tests().map(|_| Some(true)).collect(),
            self_test_error_code: tests().map(|_| 0).collect(),
            start_failure_model_id: starts().map(|_| "segmenter").collect(),
            start_failure_model_version: starts().map(|_| self.version).collect(),
            start_failure_requested_eps: starts().map(|_| vec!["QNNExecutionProvider"]).collect(),
            start_failure_phase: starts().map(|_| "session_creation").collect(),
            start_failure_reason: starts().map(|_| "backend_setup_failed").collect(),
            start_failure_ort_status: starts().map(|_| 1).collect(),
            start_failure_text: starts().map(|_| String::new()).collect(),
            start_failure_count: starts().copied().collect(),
        }
    }

    /// Runs evenly spread over some percent around the device's median.
    pub(crate) fn latency(&self, device: u8) -> Latency {
        let p50_us = self.p50_us * silicon(device);
        let spread = |run: u64| 0.95 + 0.1 * (run as f64 + 0.5) / self.runs as f64;
        let values: Vec<f64> = (0..self.runs).map(|run| p50_us * spread(run)).collect();
        let sum_us: f64 = values.iter().sum();
        let mean = sum_us / self.runs as f64;
        let mut counts = std::collections::BTreeMap::new();
        for value in &values {
            #[expect(clippy::cast_possible_truncation, reason = "microseconds of some ms")]
            let bucket = bucket_of_us(*value as u64);
            *counts.entry(bucket).or_insert(0u64) += 1;
        }
        Latency {
            buckets: counts.keys().copied().collect(),
            counts: counts.values().copied().collect(),
            sum_us,
            m2_us2: values.iter().map(|value| (value - mean).powi(2)).sum(),
            min_us: values[0],
            max_us: values[values.len() - 1],
        }
    }
}

/// Devices differ by up to 10 %.
pub(crate) fn silicon(device: u8) -> f64 {
    1.0 + 0.01 * f64::from(device % 11)
}
