//! A store, collectors and devices for tests; all of them stop with the test.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use epwatch_collector::config::{AppKeyConfig, CollectorConfig, NewKey};
use epwatch_collector::schema::{self, DATABASE};
use epwatch_collector::{Client, Collector};
use epwatch_proto::samples;
use epwatch_proto::v1::{self, collector_service_client::CollectorServiceClient};
use epwatch_server::{ByteSize, Period};
use epwatch_store::embedded::{EmbeddedStore, EngineState};
use epwatch_store::{Cluster, StoreTarget, TemplateValues, migrate};
use epwatch_test_support::{engine_config, until};
use prost::Message;
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;
use tonic::Request;
use tonic::transport::Channel;

/// A time limit far above the time of any step, so that a failure shows as an assertion.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(300);

/// Rows of reports, copies included, and reports that count.
pub(crate) const ROWS: &str = "SELECT count() AS n FROM reports";
pub(crate) const COUNTED: &str = "SELECT count() AS n FROM counted_reports_v1";
/// Reports in buckets that are not closed.
pub(crate) const OPEN: &str = "SELECT count() AS n FROM report_copies \
                               WHERE bucket >= (SELECT max(closed_until) FROM rollup_watermark)";

/// An embedded engine with the schema applied.
pub(crate) struct Store {
    pub(crate) engine: EmbeddedStore,
    pub(crate) client: Client,
    pub(crate) dir: TempDir,
}

impl Store {
    pub(crate) async fn start() -> Store {
        Self::start_in(tempfile::tempdir().unwrap()).await
    }

    /// The store at the socket of a directory's engine, which need not run yet.
    pub(crate) fn target_in(dir: &TempDir) -> StoreTarget {
        StoreTarget::unix(&dir.path().join("store.sock"), DATABASE)
    }

    pub(crate) async fn start_in(dir: TempDir) -> Store {
        let engine = engine_in(&dir, "").await;
        let target = engine.target(DATABASE);
        let values = schema::single_server(schema::Retention::default());
        Self::migrated(engine, &target, &values, dir).await
    }

    /// Starts a store with the tables of a cluster, whose only shard is this engine, without replicas.
    pub(crate) async fn start_on_cluster() -> Store {
        let dir = tempfile::tempdir().unwrap();
        let engine = engine_in(&dir, &cluster_config()).await;
        let target = engine.target(DATABASE).of_cluster();
        // An engine in a library opens no port, so it cannot connect to itself.
        let target = target.with_setting("prefer_localhost_replica", "1");
        let cluster = Cluster::new(CLUSTER).on_each_server().without_replicas();
        let values = schema::cluster(schema::Retention::default(), cluster);
        Self::migrated(engine, &target, &values, dir).await
    }

    async fn migrated(
        engine: EmbeddedStore,
        target: &StoreTarget,
        values: &TemplateValues,
        dir: TempDir,
    ) -> Store {
        migrate(target, schema::MIGRATIONS, values).await.unwrap();
        Store {
            engine,
            client: epwatch_store::client(target),
            dir,
        }
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.engine.socket().to_owned()
    }

    /// Kills the engine's child; the supervisor starts another.
    pub(crate) async fn kill_child(&self) {
        let mut state = self.engine.state();
        let settled = state
            .wait_for(|state| matches!(state, EngineState::Ready { .. }))
            .await;
        let EngineState::Ready { pid, .. } = settled.unwrap().clone() else {
            unreachable!()
        };
        let kill = std::process::Command::new("kill")
            .args(["-9", &pid.to_string()])
            .status();
        assert!(kill.unwrap().success());
        let is_another = |state: &EngineState| !matches!(state, EngineState::Ready { pid: now, .. } if *now == pid);
        state.wait_for(is_another).await.unwrap();
    }

    /// Stops the last collector, then the engine.
    pub(crate) async fn end(self, collector: Collector) {
        collector.stop().await;
        self.engine.stop().await;
    }

    /// Runs a statement.
    pub(crate) async fn run(&self, sql: &str) {
        self.client.query_raw(sql).execute().await.unwrap();
    }

    /// Checks that every view that shows reports has the rows of this many sample reports.
    pub(crate) async fn check_views_show(&self, reports: u64) {
        for (what, view, expected) in [
            ("count()", "counted_reports_v1", reports),
            ("count()", "device_sessions_v1", reports),
            ("count()", "device_series_v1", 2 * reports),
            ("sum(n)", "device_buckets_v1", 6 * reports),
            ("sum(n)", "cohort_buckets_v1", 6 * reports),
            ("sum(sessions)", "cohort_sessions_v1", reports),
            (
                "arraySum(mapValues(sumMap(hist)))",
                "cohort_buckets_v1",
                6 * reports,
            ),
            ("sum(recorded)", "loss_ledger_v1", reports),
            ("sum(stored)", "loss_ledger_v1", reports),
            ("sum(abs(missing))", "loss_ledger_v1", 0),
        ] {
            let sql = format!("SELECT toUInt64({what}) AS n FROM {view}");
            assert_eq!(self.number(&sql).await, expected, "{what} of {view}");
        }
    }

    /// Returns one number from the store.
    pub(crate) async fn number(&self, sql: &str) -> u64 {
        number(&self.client, sql).await.unwrap()
    }

    /// Waits until a query's number is `expected`.
    #[track_caller]
    pub(crate) fn eventually(&self, sql: &str, expected: u64) -> impl Future<Output = ()> {
        let (client, sql) = (self.client.clone(), sql.to_owned());
        let caller = std::panic::Location::caller();
        async move {
            let deadline = Instant::now() + TIMEOUT;
            loop {
                let found = number(&client, &sql).await;
                if matches!(found, Ok(n) if n == expected) {
                    return;
                }
                assert!(
                    Instant::now() < deadline,
                    "{caller}: {sql}: expected {expected}, found {found:?}"
                );
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    }
}

/// An engine in a directory of its own, with more elements in its configuration.
pub(crate) async fn engine_in(dir: &TempDir, elements: &str) -> EmbeddedStore {
    let mut config = engine_config(&dir.path().join("store"));
    config.socket = Some(dir.path().join("store.sock"));
    config.engine_config = elements.to_owned();
    let engine = EmbeddedStore::start(config).await.unwrap();
    engine.ready().await.unwrap();
    engine
}

/// The name of the cluster that [`cluster_config`] defines.
pub(crate) const CLUSTER: &str = "trial";

/// The configuration of a cluster with one shard, which is the engine that reads it. The engine recognises itself by
/// the port, but does not open it.
pub(crate) fn cluster_config() -> String {
    format!(
        "<tcp_port>9000</tcp_port><remote_servers><{CLUSTER}><shard>\
         <internal_replication>true</internal_replication>\
         <replica><host>127.0.0.1</host><port>9000</port></replica>\
         </shard></{CLUSTER}></remote_servers>"
    )
}

pub(crate) async fn number(client: &Client, sql: &str) -> Result<u64, clickhouse::error::Error> {
    let rows = client.query_raw(sql).fetch_all::<u64>().await?;
    Ok(rows.first().copied().unwrap_or(0))
}

pub(crate) fn config(wal: &Path) -> CollectorConfig {
    let mut config = CollectorConfig {
        listen: ([127, 0, 0, 1], 0).into(),
        http_listen: ([127, 0, 0, 1], 0).into(),
        ..CollectorConfig::default()
    };
    config.wal.dir = wal.to_owned();
    config.wal.max_bytes = ByteSize(64 << 20);
    config.batch.period = Period(Duration::from_millis(20));
    config.rollup.bucket = Period(Duration::from_secs(1));
    config.rollup.collector_timeout = Some(Period(Duration::from_secs(600)));
    config
}

pub(crate) async fn start(store: &Store, wal: &str) -> Collector {
    start_with(store, config(&store.dir.path().join(wal))).await
}

/// A store with a collector and a device.
pub(crate) async fn started() -> (Store, Collector, Device) {
    let store = Store::start().await;
    let collector = start(&store, "wal").await;
    let device = connect(&collector).await;
    (store, collector, device)
}

pub(crate) async fn start_with(store: &Store, config: CollectorConfig) -> Collector {
    start_at(config, store.client.clone()).await
}

pub(crate) async fn start_at(config: CollectorConfig, store: Client) -> Collector {
    let starting = Collector::start(config, store, CancellationToken::new());
    starting.await.unwrap()
}

/// Starts a collector whose store is away until [`Store::start_in`] of the directory.
pub(crate) async fn start_alone(dir: &TempDir, config: CollectorConfig) -> Collector {
    start_at(config, epwatch_store::client(&Store::target_in(dir))).await
}

/// A key for one app, in any environment.
pub(crate) fn key_for(made: &NewKey, app: &str) -> AppKeyConfig {
    AppKeyConfig {
        sha256: made.sha256.clone(),
        app: app.to_owned(),
        environment: "*".to_owned(),
        ..AppKeyConfig::default()
    }
}

/// A call that sends this secret.
pub(crate) fn with_key<M>(message: M, secret: &str) -> Request<M> {
    let mut request = Request::new(message);
    let value = format!("Bearer {secret}").parse().unwrap();
    request.metadata_mut().insert("authorization", value);
    request
}

/// Fails unless the collector's page has these lines.
#[track_caller]
pub(crate) fn check_metrics(collector: &Collector, lines: &[&str]) {
    let page = collector.metrics().encode();
    for line in lines {
        assert!(page.lines().any(|l| l == *line), "no {line} in\n{page}");
    }
}

/// A number on the collector's page, by its name and labels.
pub(crate) fn metric(collector: &Collector, name: &str) -> f64 {
    let page = collector.metrics().encode();
    let line = page.lines().find_map(|line| line.strip_prefix(name));
    line.unwrap_or_else(|| panic!("no {name} in\n{page}"))
        .trim()
        .parse()
        .unwrap()
}

/// Waits until a collector has reached its store. A collector takes reports even before that.
pub(crate) async fn hears_its_store(collector: &Collector) {
    let known = [
        "epwatch_collector_known_installations_loaded",
        "epwatch_collector_store_up",
    ];
    let is_known = |name| metric(collector, name) > 0.0;
    until("the store is heard", async || {
        known.into_iter().all(is_known)
    })
    .await;
}

pub(crate) type Device = CollectorServiceClient<Channel>;

pub(crate) async fn connect(collector: &Collector) -> Device {
    Device::connect(format!("http://{}", collector.listen()))
        .await
        .unwrap()
}

/// Sends reports in one call; all of them are newly stored.
#[track_caller]
pub(crate) fn store_all(device: &mut Device, reports: &[v1::Report]) -> impl Future<Output = ()> {
    let caller = std::panic::Location::caller();
    async move {
        let others = send(device, reports).await;
        assert!(others.is_empty(), "{caller}: {others:?}");
    }
}

/// Sends reports in one call and returns the results of those that were not newly stored.
pub(crate) async fn send(device: &mut Device, reports: &[v1::Report]) -> Vec<v1::ReportResult> {
    device
        .upload(request(reports))
        .await
        .unwrap()
        .into_inner()
        .results
}

pub(crate) const REQUEST_ID: u64 = 0x1234_5678_9abc_def0;

pub(crate) fn request(reports: &[v1::Report]) -> v1::UploadRequest {
    v1::UploadRequest {
        reports: reports
            .iter()
            .map(|report| report.encode_to_vec().into())
            .collect(),
        clock: Some(v1::SendClock {
            wall_unix_ms: Some(1_760_000_060_000),
            uptime_ms: Some(120_000),
            boot_id: "boot".into(),
        }),
        sdk: Some((&samples::sdk()).into()),
        request_id: REQUEST_ID,
        ..Default::default()
    }
}

/// The sample report with this key: one session on the NPU, a warm and a cold series, six runs.
pub(crate) fn report(installation: u8, stream_id: u64, sequence: u64) -> v1::Report {
    let session_uid = u64::from(installation) << 40 | stream_id << 20 | sequence;
    let key = samples::key([installation; 16], stream_id, sequence);
    v1::Report::from(&samples::report(key, samples::session_uid(session_uid)))
}
