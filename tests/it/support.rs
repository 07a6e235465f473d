//! Parts of end-to-end tests: a migrated engine, collectors, and reports of real devices'
//! code. Everything is started here on free loopback ports and stopped when it goes out of scope.

use std::{
    future::Future,
    net::SocketAddr,
    path::PathBuf,
    time::{Duration, Instant},
};

use bytes::Bytes;
use clickhouse::Client;
use epwatch_collector::{
    config::CollectorConfig,
    schema::{self, Retention},
};
use epwatch_engines::Engine;
use epwatch_server::Period;
use epwatch_store::embedded::{ChildProgram, EmbeddedConfig, EmbeddedStore};
use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper_util::client::legacy::Client as HttpClient;
use hyper_util::rt::TokioExecutor;
use tempfile::TempDir;

/// The built command.
pub(crate) const EPWATCH: &str = env!("CARGO_BIN_EXE_epwatch");

/// Nothing in a test takes longer than this, however busy the machine is.
pub(crate) const DEADLINE: Duration = Duration::from_secs(120);

/// Returns once `condition` holds; panics at the deadline and names it.
pub(crate) async fn until<F: Future<Output = bool>>(what: &str, mut condition: impl FnMut() -> F) {
    let started = Instant::now();
    while !condition().await {
        assert!(started.elapsed() < DEADLINE, "gave up waiting: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// The answer of a server over HTTP.
#[derive(Debug)]
pub(crate) struct Page {
    pub(crate) status: u16,
    pub(crate) text: String,
}

/// Fetches a page of a server on this machine.
pub(crate) async fn get(url: &str) -> anyhow::Result<Page> {
    send(Request::get(url).body(Full::default())?).await
}

/// Sends a request to a server on this machine.
pub(crate) async fn send(request: Request<Full<Bytes>>) -> anyhow::Result<Page> {
    let client = HttpClient::builder(TokioExecutor::new()).build_http();
    let answer = client.request(request).await?;
    let status = answer.status().as_u16();
    let body = answer.into_body().collect().await?.to_bytes();
    // A Connect answer is a message, not text.
    let text = String::from_utf8_lossy(&body).into_owned();
    Ok(Page { status, text })
}

/// A migrated engine in a folder of its own.
#[derive(Debug)]
pub(crate) struct Store {
    pub(crate) engine: EmbeddedStore,
    pub(crate) dir: TempDir,
}

impl Store {
    pub(crate) async fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let library = epwatch_engines::for_tests(Engine::Chdb).chdb_library();
        let program = ChildProgram::new(EPWATCH, ["engine-child"]);
        let engine = EmbeddedStore::start(EmbeddedConfig::new(
            dir.path().join("store"),
            library,
            program,
        ))
        .await
        .unwrap();
        engine.ready().await.unwrap();
        let values = schema::single_server(Retention::default());
        epwatch_store::migrate(
            &engine.target(schema::DATABASE),
            schema::MIGRATIONS,
            &values,
        )
        .await
        .unwrap();
        Self { engine, dir }
    }

    pub(crate) fn client(&self) -> Client {
        self.engine.client(schema::DATABASE)
    }

    /// A collector's config: free ports, buckets of a second, a log of its own.
    pub(crate) fn collector_config(&self, name: &str) -> CollectorConfig {
        let any_port = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut config = CollectorConfig {
            listen: any_port,
            http_listen: any_port,
            ..CollectorConfig::default()
        };
        config.wal.dir = self.wal_dir(name);
        config.batch.period = Period(Duration::from_millis(100));
        config.rollup.bucket = Period(Duration::from_secs(1));
        config.rollup.collector_timeout = Some(Period(Duration::from_secs(3600)));
        config
    }

    pub(crate) fn wal_dir(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Runs a query that gives one number.
    pub(crate) async fn count(&self, sql: &str) -> u64 {
        self.client()
            .query(&format!("SELECT toUInt64(assumeNotNull(({sql})))"))
            .fetch_one()
            .await
            .unwrap()
    }
}
