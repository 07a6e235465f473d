//! A real Alertmanager of Debian's, on a free loopback port.

use std::process::{Child, Command, Stdio};

use epwatch_engines::Engine;
use serde_json::Value;
use tempfile::TempDir;

use crate::support::until;

const CONFIG: &str = "route:\n  receiver: nobody\nreceivers:\n  - name: nobody\n";

/// A running Alertmanager; dropping it ends it.
#[derive(Debug)]
pub(crate) struct Alertmanager {
    child: Child,
    pub(crate) url: String,
    _dir: TempDir,
}

impl Alertmanager {
    pub(crate) async fn start() -> Self {
        let binary = epwatch_engines::for_tests(Engine::Alertmanager).alertmanager_binary();
        let dir = tempfile::tempdir().unwrap();
        let config = dir.path().join("alertmanager.yml");
        std::fs::write(&config, CONFIG).unwrap();
        // It cannot be told to choose a port itself and say which.
        let port = std::net::TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap()
            .port();
        let child = Command::new(binary)
            .arg(format!("--config.file={}", config.display()))
            .arg(format!("--storage.path={}", dir.path().display()))
            .arg(format!("--web.listen-address=127.0.0.1:{port}"))
            .arg("--cluster.listen-address=")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let manager = Self {
            child,
            url: format!("http://127.0.0.1:{port}"),
            _dir: dir,
        };
        let ready = format!("{}/-/ready", manager.url);
        until("Alertmanager is ready", || async {
            reqwest::get(&ready)
                .await
                .is_ok_and(|answer| answer.status().is_success())
        })
        .await;
        manager
    }

    /// The alerts it holds.
    pub(crate) async fn alerts(&self) -> Vec<Value> {
        let url = format!("{}/api/v2/alerts", self.url);
        reqwest::get(url).await.unwrap().json().await.unwrap()
    }
}

impl Drop for Alertmanager {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
