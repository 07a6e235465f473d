//! Starts an engine for one test, and waits for conditions with a deadline.

use std::path::Path;

use epwatch_store::embedded::{EmbeddedConfig, EmbeddedStore, EngineState};
use epwatch_test_support::engine_config;

/// Starts an engine, and waits until it is ready.
pub(crate) async fn ready(config: EmbeddedConfig) -> EmbeddedStore {
    let store = EmbeddedStore::start(config).await.unwrap();
    store.ready().await.unwrap();
    store
}

/// A ready engine on a folder of its own, with the database `t`.
pub(crate) struct TestStore {
    pub(crate) store: EmbeddedStore,
    pub(crate) dir: tempfile::TempDir,
}

impl TestStore {
    pub(crate) async fn start() -> TestStore {
        let dir = tempfile::tempdir().unwrap();
        let store = ready(engine_config(dir.path())).await;
        let admin = store.client("");
        admin.query("CREATE DATABASE t").execute().await.unwrap();
        TestStore { store, dir }
    }

    pub(crate) fn client(&self) -> clickhouse::Client {
        self.store.client("t")
    }

    pub(crate) async fn execute(&self, sql: &str) {
        let done = self.client().query(sql).execute().await;
        done.unwrap_or_else(|error| panic!("{sql}: {error}"));
    }

    pub(crate) async fn count(&self, sql: &str) -> u64 {
        let count = self.client().query(sql).fetch_one::<u64>().await;
        count.unwrap_or_else(|error| panic!("{sql}: {error}"))
    }

    pub(crate) async fn refusal(&self, sql: &str) -> String {
        match self.client().query(sql).execute().await {
            Ok(()) => panic!("{sql}: was not refused"),
            Err(error) => error.to_string(),
        }
    }
}

pub(crate) fn pid_of(store: &EmbeddedStore) -> Option<u32> {
    match *store.state().borrow() {
        EngineState::Ready { pid, .. } => Some(pid),
        _ => None,
    }
}

pub(crate) fn kill(pid: u32) {
    let status = std::process::Command::new("kill")
        .args(["-9", &pid.to_string()])
        .status();
    assert!(status.unwrap().success());
}

pub(crate) fn is_running(pid: u32) -> bool {
    // A zombie process has ended; its parent has only not collected its status yet.
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"));
    status.is_ok_and(|status| !status.contains("State:\tZ"))
}

/// Sends bytes as they are and returns all that comes back until the connection closes.
pub(crate) async fn raw(socket: &Path, request: &str) -> String {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut stream = tokio::net::UnixStream::connect(socket).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    // A connection that the server breaks on purpose has still delivered the bytes before the break.
    let _ = stream.read_to_end(&mut answer).await;
    String::from_utf8_lossy(&answer).into_owned()
}

pub(crate) fn post(url: &str, headers: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "POST {url} HTTP/1.1\r\nHost: store\r\nConnection: close\r\n{headers}Content-Length: \
         {length}\r\n\r\n{body}"
    )
}
