//! Parts of end-to-end tests: the built command, a migrated engine, the config of a collector on it, HTTP.
//!
//! Ports are free ports of the loopback, and processes end with their test.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    time::Duration,
};

use bytes::Bytes;
use clickhouse::Client;
use epwatch_collector::{
    config::CollectorConfig,
    schema::{DATABASE, Retention},
};
use epwatch_model::{
    Cause, CohortKey, CohortVerdict, Incident, IncidentCohort, IncidentKey, Severity, VerdictClass,
};
use epwatch_proto::hex;
use epwatch_server::Period;
use epwatch_store::embedded::EmbeddedStore;
use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper_util::client::legacy::Client as HttpClient;
use hyper_util::rt::TokioExecutor;
use jiff::Timestamp;
use serde_json::Value;
use sha2::{Digest, Sha256};
use tempfile::TempDir;

/// The built command.
pub(crate) const EPWATCH: &str = env!("CARGO_BIN_EXE_epwatch");

/// Returns the command with these words as arguments, without the config of the shell that runs the tests.
pub(crate) fn epwatch(words: &str) -> Command {
    let mut command = Command::new(EPWATCH);
    command.env_remove("EPWATCH_CONFIG").stdin(Stdio::null());
    command.args(words.split_whitespace());
    command
}

/// Returns a command that takes devices and operators on free ports, and prints its addresses as JSON.
pub(crate) fn server(words: &str, data_dir: &Path) -> Command {
    let mut command = epwatch(words);
    command
        .args(["--json", "--listen", "127.0.0.1:0", "--data-dir"])
        .arg(data_dir)
        .env("EPWATCH_COLLECTOR__HTTP_LISTEN", "127.0.0.1:0")
        .env("EPWATCH_PAGE__LISTEN", "127.0.0.1:0");
    command
}

/// Returns a config with short buckets and steps instead of a fake clock. The window is long enough for the starts of
/// all devices of a test.
pub(crate) fn short_windows(app: &str, key: &str) -> String {
    format!(
        r#"
[collector]
refresh = "500ms"

[collector.rollup]
bucket = "2s"

[[collector.keys]]
sha256 = "{}"
app = "{app}"
kind = "own"

[detector]
window = "20m"
step = "5s"
lookback = "2h"
"#,
        hex(&Sha256::digest(key))
    )
}

/// Returns an open incident that pages for this cohort.
pub(crate) fn incident_of(key: CohortKey) -> Incident {
    let (now, class) = (Timestamp::now(), VerdictClass::PartialFallback);
    let window = (now, Duration::from_secs(3_600));
    let verdict = CohortVerdict::new(key.clone(), window, class, Severity::Page);
    let cohort = IncidentCohort {
        confirmed: Severity::Page,
        ..IncidentCohort::new(&verdict)
    };
    let key = IncidentKey {
        model: key.model,
        model_version: key.model_version,
        cause: Cause::Slower,
    };
    Incident {
        cohorts: vec![cohort],
        ..Incident::begin(key, window, now)
    }
}

/// Returns a file of the TLS fixtures: certificates of a private CA, and another CA.
pub(crate) fn tls(name: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/tls")).join(name)
}

/// Runs a command that must end with this exit code; returns standard output and standard error.
#[track_caller]
pub(crate) fn check_ends(command: &mut Command, code: i32) -> (String, String) {
    check_ended(&command.output().unwrap(), code)
}

/// Checks the exit code, and returns standard output and standard error.
#[track_caller]
pub(crate) fn check_ended(output: &Output, code: i32) -> (String, String) {
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(code), "{stdout}\n{stderr}");
    (stdout, stderr)
}

/// Runs a command that must succeed, and returns its standard output.
#[track_caller]
pub(crate) fn check_succeeds(command: &mut Command) -> String {
    check_ends(command, 0).0
}

/// Runs a command that must succeed, and returns the document that it prints.
#[track_caller]
pub(crate) fn json(command: &mut Command) -> Value {
    serde_json::from_str(&check_succeeds(command.arg("--json"))).unwrap()
}

/// Runs a command that must end with this exit code and this text on standard error.
#[track_caller]
pub(crate) fn check_fails(command: &mut Command, code: i32, expected: &str) {
    let (_, stderr) = check_ends(command, code);
    assert!(stderr.contains(expected), "{command:?}: {stderr}");
}

/// A process that is killed when it goes out of scope.
#[derive(Debug)]
pub(crate) struct Running(pub(crate) Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Running {
    /// Starts a command that prints one JSON document once it runs, and returns both.
    #[track_caller]
    pub(crate) fn start(command: &mut Command) -> (Self, Value) {
        let mut running = Self(command.stdout(Stdio::piped()).spawn().unwrap());
        let stdout = running.0.stdout.take().unwrap();
        let mut documents = serde_json::Deserializer::from_reader(stdout).into_iter();
        let document = documents.next().map(Result::unwrap);
        (
            running,
            document.unwrap_or_else(|| panic!("{command:?} ended")),
        )
    }
}

/// The text of a file of `docs`.
pub(crate) fn docs(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("docs")
        .join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path:?}: {e}"))
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
    // A Connect answer is a binary message, so invalid text is replaced.
    let text = String::from_utf8_lossy(&body).into_owned();
    Ok(Page { status, text })
}

/// Returns a collector's config: free ports, buckets of a second, this WAL.
pub(crate) fn collector_config(wal: PathBuf) -> CollectorConfig {
    let any_port = SocketAddr::from(([127, 0, 0, 1], 0));
    let mut config = CollectorConfig {
        listen: any_port,
        http_listen: any_port,
        ..CollectorConfig::default()
    };
    config.wal.dir = wal;
    config.batch.period = Period(Duration::from_millis(100));
    config.rollup.bucket = Period(Duration::from_secs(1));
    config.rollup.collector_timeout = Some(Period(Duration::from_secs(3600)));
    config
}

/// An engine in its own temporary folder.
#[derive(Debug)]
pub(crate) struct Store {
    pub(crate) engine: EmbeddedStore,
    pub(crate) dir: TempDir,
}

impl Store {
    pub(crate) async fn start() -> Self {
        let store = Self::without_schema().await;
        store.migrate(Retention::default()).await;
        store
    }

    /// Returns the migrations that were missing.
    pub(crate) async fn migrate(&self, retention: Retention) -> Vec<u32> {
        epwatch_faults::migrate(&self.engine, retention)
            .await
            .unwrap()
    }

    pub(crate) async fn without_schema() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let engine = epwatch_faults::start_store(EPWATCH.as_ref(), dir.path()).await;
        let engine = engine.unwrap();
        Self { engine, dir }
    }

    /// Returns the engine's address, for `--clickhouse`.
    pub(crate) fn address(&self) -> String {
        format!("unix:{}", self.engine.socket().display())
    }

    pub(crate) fn client(&self) -> Client {
        self.engine.client(DATABASE)
    }

    /// Returns a collector's config: free ports, buckets of a second, a WAL of its own.
    pub(crate) fn collector_config(&self, name: &str) -> CollectorConfig {
        collector_config(self.wal_dir(name))
    }

    pub(crate) fn wal_dir(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Returns the one number of a query.
    pub(crate) async fn count(&self, sql: &str) -> u64 {
        self.client()
            .query(&format!("SELECT toUInt64(assumeNotNull(({sql})))"))
            .fetch_one()
            .await
            .unwrap()
    }
}
