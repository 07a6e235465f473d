//! A real Alertmanager from Debian, on a free loopback port.

use std::process::{Command, Stdio};

use epwatch_detector::DetectorConfig;
use epwatch_detector::notify::{self, AlertmanagerConfig};
use epwatch_runtimes::Package;
use serde_json::Value;
use tempfile::TempDir;

use crate::{
    fleet::{APP, MODEL, WatchedFleet},
    support::{Running, get, until},
};

const CONFIG: &str = "route:\n  receiver: nobody\nreceivers:\n  - name: nobody\n";

/// A running Alertmanager.
#[derive(Debug)]
pub(crate) struct Alertmanager {
    _running: Running,
    pub(crate) url: String,
    _dir: TempDir,
}

impl Alertmanager {
    /// Returns `None` if the user skips it.
    pub(crate) async fn start() -> Option<Self> {
        let package = epwatch_runtimes::alertmanager()?;
        let dir = tempfile::tempdir().unwrap();
        let config = dir.path().join("alertmanager.yml");
        std::fs::write(&config, CONFIG).unwrap();
        // Alertmanager does not print a port of its own choice.
        let port = std::net::TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap()
            .port();
        let child = with_its_own_share(&package)
            .arg(format!("--config.file={}", config.display()))
            .arg(format!("--storage.path={}", dir.path().display()))
            .arg(format!("--web.listen-address=127.0.0.1:{port}"))
            .arg("--cluster.listen-address=")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::inherit())
            .spawn()
            .unwrap();
        let manager = Self {
            _running: Running(child),
            url: format!("http://127.0.0.1:{port}"),
            _dir: dir,
        };
        let ready = format!("{}/-/ready", manager.url);
        until("Alertmanager is ready", || async {
            get(&ready).await.is_ok_and(|page| page.status == 200)
        })
        .await;
        Some(manager)
    }

    /// Returns the alerts that it holds.
    pub(crate) async fn alerts(&self) -> Vec<Value> {
        let url = format!("{}/api/v2/alerts", self.url);
        serde_json::from_str(&get(&url).await.unwrap().text).unwrap()
    }
}

/// Debian's build reads its templates from `/usr/share`, where the package is not installed. A mount namespace of its
/// own has it there. Without root the kernel must allow user namespaces.
fn with_its_own_share(package: &Package) -> Command {
    const SCRIPT: &str = r#"mount --bind "$0" /usr/share && exec "$@""#;
    let mut command = Command::new("unshare");
    command
        .args(["--map-root-user", "--mount", "sh", "-c", SCRIPT])
        .arg(package.folder.join("usr/share"))
        .arg(package.folder.join("usr/bin/prometheus-alertmanager"));
    command
}

/// The whole path of a page: devices, collector, engine, detector, Alertmanager.
#[tokio::test(flavor = "multi_thread")]
async fn an_incident_arrives_at_a_real_alertmanager() {
    let Some(receiver) = Alertmanager::start().await else {
        return;
    };
    let config = DetectorConfig {
        alertmanager: vec![AlertmanagerConfig::new(&receiver.url)],
        stdout: false,
        ..DetectorConfig::default()
    };
    let notifiers = notify::notifiers(&config, std::io::sink()).unwrap();
    let fleet = WatchedFleet::start(notifiers).await;
    until("a page is with Alertmanager", || async {
        receiver
            .alerts()
            .await
            .iter()
            .any(|alert| alert["labels"]["severity"] == "page")
    })
    .await;
    let alerts = receiver.alerts().await;
    let page = alerts
        .iter()
        .find(|alert| alert["labels"]["severity"] == "page")
        .unwrap();
    let labels = &page["labels"];
    assert_eq!(labels["app"], APP, "{page:#}");
    assert_eq!(labels["model"], MODEL, "{page:#}");
    assert_eq!(labels["model_version"], "2", "{page:#}");
    assert_eq!(labels["verdict"], "partial_fallback", "{page:#}");
    assert!(labels.to_string().contains("SM8635"), "{page:#}");
    assert!(!labels.to_string().contains("SM8650"), "{page:#}");
    let text = page["annotations"].to_string();
    for word in ["LayerNormalization", "CV", "between devices"] {
        assert!(text.contains(word), "no {word} in {page:#}");
    }
    fleet.stop().await;
}
