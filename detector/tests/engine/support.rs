//! A migrated engine for each test, and reports as the collector writes them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use clickhouse::Client;
use epwatch_collector::WalOffset;
use epwatch_collector::sample_rows::{self, ReceivedReport};
use epwatch_detector::DetectorConfig;
use epwatch_detector::read::Span;
use epwatch_proto::histogram::bucket_of_us;
use epwatch_proto::placement::QNN_EP;
use epwatch_proto::{DeviceType, SendClock};
use epwatch_server::Period;
use epwatch_store::embedded::EmbeddedStore;
use epwatch_test_support::engine_config;
use jiff::Timestamp;

use crate::schema::apply_schema;

/// Offsets of rows in the WAL of collector 1, each of one row.
static OFFSETS: AtomicU64 = AtomicU64::new(1);

pub(crate) struct TestStore {
    store: EmbeddedStore,
    dir: tempfile::TempDir,
}

impl TestStore {
    pub(crate) async fn start() -> TestStore {
        let store = TestStore::resume(tempfile::tempdir().unwrap()).await;
        apply_schema(&store.store.target("epwatch")).await;
        store
    }

    /// Starts an engine on the folder of an earlier one.
    pub(crate) async fn resume(dir: tempfile::TempDir) -> TestStore {
        let store = EmbeddedStore::start(engine_config(dir.path()))
            .await
            .unwrap();
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

/// Windows of 60 s that are judged every 20 s.
pub(crate) fn config() -> DetectorConfig {
    DetectorConfig {
        window: Period(Duration::from_secs(60)),
        step: Period(Duration::from_secs(1)),
        bucket: Period(Duration::from_secs(1)),
        ingest_delay: Some(Period(Duration::ZERO)),
        lease: Period(Duration::from_secs(4)),
        lookback: Period(Duration::from_secs(3600)),
        ..DetectorConfig::default()
    }
}

/// Returns a whole minute ten minutes ago, because much older rows expire.
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
    /// The EP that the app requests, by the name under which it registered it.
    pub(crate) ep: &'static str,
    /// The device that the app says, and ONNX Runtime's description of the session's device.
    pub(crate) asked_device: Option<DeviceType>,
    pub(crate) device: Option<DeviceType>,
    pub(crate) is_late: bool,
    /// Whether the installation was new beyond its quota.
    pub(crate) is_unproven: bool,
    /// Length of a bucket, in seconds.
    pub(crate) bucket_s: i64,
    /// The result of a golden input: the first byte of the output's hash, and the largest difference from the CPU. A
    /// difference of 0.05 is accepted.
    pub(crate) golden: Option<(u8, f64)>,
    /// Number of sessions that could not be made before this one.
    pub(crate) failed_starts: u64,
    /// Whether no session follows the failed ones.
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
            ep: QNN_EP,
            asked_device: None,
            device: None,
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
        stands_alone: false,
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
        let second = u64::try_from(at.as_second()).unwrap();
        let received = self.reports(at).into_iter().map(|report| ReceivedReport {
            offset: WalOffset(OFFSETS.fetch_add(1, Ordering::Relaxed)),
            received_at_us: 1_000_000 * second,
            sent: sent(at),
            is_unproven: self.is_unproven,
            report,
        });
        let bucket = Duration::from_secs(self.bucket_s.unsigned_abs());
        let received: Vec<ReceivedReport> = received.collect();
        sample_rows::store(store.client(), bucket, &received).await;
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

/// The clock of a device whose wall clock is right.
pub(crate) fn sent(at: Timestamp) -> SendClock {
    SendClock {
        wall_unix_ms: Some(at.as_millisecond()),
        ..SendClock::default()
    }
}

/// The hash of a vendor's build.
pub(crate) fn firmware(name: &str) -> String {
    name.repeat(16)
}

/// Devices differ by up to 10 %.
pub(crate) fn silicon(device: u8) -> f64 {
    1.0 + 0.01 * f64::from(device % 11)
}
