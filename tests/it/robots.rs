//! Robots with Python programs: each is a process with epwatch's wheel, the real onnxruntime and QNN's emulator.
//! docs/robot.md describes the results of a fallback: nothing for one robot of twenty, a ticket for ten of them, a page
//! for all.

use std::{
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};

use epwatch_engines::{Engine, ensure};
use epwatch_runtimes::{Environment, ci_wheels, epwatch_wheel, is_nightly};
use serde_json::Value;

use crate::support::{Running, check_succeeds, get, server, short_windows};

const APP: &str = "com.example.robot";
const KEY: &str = "robots-key";
const CHIPSET: &str = "SM8635";
const SOC_MODEL: &str = "68";
/// The model that runs wholly on the robots' NPU.
const MODEL: &str = "mixed_v1.int8.onnx";
const AT_ONCE: usize = 4;
/// Longest time from the last report to its verdict.
const TIMEOUT: Duration = Duration::from_secs(600);

/// A version that the robots run. The first `n_on_cpu` robots run it on the CPU, four times slower.
#[derive(Clone, Copy)]
struct Version {
    name: &'static str,
    n_on_cpu: usize,
}

impl Version {
    const fn new(name: &'static str, n_on_cpu: usize) -> Self {
        Self { name, n_on_cpu }
    }

    fn place(self, robot: usize) -> (&'static str, &'static str) {
        match robot < self.n_on_cpu {
            true => ("cpu", "8000"),
            false => ("npu", "2000"),
        }
    }
}

/// Robots, and the server that they report to.
struct Fleet {
    _running: Running,
    n_robots: usize,
    python: PathBuf,
    endpoint: String,
    page: String,
    folder: tempfile::TempDir,
    npu: [PathBuf; 2],
}

impl Fleet {
    fn new(n_robots: usize) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("epwatch.toml");
        std::fs::write(&path, short_windows(APP, KEY)).unwrap();
        let mut command = server("serve", &folder.path().join("server"));
        command.env("EPWATCH_CONFIG", &path);
        let (running, addresses) = Running::start(&mut command);
        let address = |name: &str| addresses[name].as_str().unwrap().to_owned();
        let environment = Environment::new(&folder.path().join("environment"));
        let wheel = epwatch_wheel(&folder.path().join("wheel"));
        let packages = [Path::new("onnxruntime==1.31.1"), &wheel];
        environment.install(&[&ci_wheels()], packages);
        let qnn = ensure(Engine::OnnxRuntimeQnn).unwrap();
        Self {
            _running: running,
            n_robots,
            python: environment.program("python"),
            endpoint: format!("http://{}", address("collector")),
            page: format!("http://{}", address("page")),
            folder,
            npu: [qnn.qnn_provider_library(), qnn.qnn_htp_library()],
        }
    }

    /// Starts every robot's program once, a few at a time. Each loads these versions in turn.
    fn run(&self, versions: &[Version]) {
        let next = AtomicUsize::new(0);
        thread::scope(|scope| {
            for _ in 0..AT_ONCE {
                scope.spawn(|| {
                    loop {
                        let robot = next.fetch_add(1, Ordering::Relaxed);
                        if robot >= self.n_robots {
                            return;
                        }
                        self.run_robot(robot, versions);
                    }
                });
            }
        });
    }

    fn run_robot(&self, robot: usize, versions: &[Version]) {
        let file = |path: &str| Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
        let mut program = Command::new(&self.python);
        program
            .arg(file("tests/it/robots.py"))
            .args(&self.npu)
            .args([SOC_MODEL, CHIPSET]);
        for version in versions {
            let (place, latency_us) = version.place(robot);
            let model = file("tests/fixtures/models").join(MODEL);
            program.arg(version.name).arg(model);
            program.args([place, latency_us]);
        }
        program
            .env_remove("LD_LIBRARY_PATH")
            .env("EPWATCH_APP", APP)
            .env("EPWATCH_ENDPOINT", &self.endpoint)
            .env("EPWATCH_KEY", KEY)
            .env("EPWATCH_FOLDER", self.folder.path().join(robot.to_string()))
            .env("EPWATCH_CONSENT", "yes");
        check_succeeds(&mut program);
    }

    /// Returns a page with its list. On a busy machine a page may say that the list could not be read.
    async fn document(&self, path: &str, list: &str) -> Value {
        let began = Instant::now();
        loop {
            let page = get(&format!("{}/{path}", self.page)).await;
            let document: Value = serde_json::from_str(&page.unwrap().text).unwrap();
            if document[list].is_array() {
                return document;
            }
            assert!(began.elapsed() < TIMEOUT, "no {list}: {document:#}");
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    /// Waits until every robot runs a version. Then waits for the open incident of this severity with `n_hit` robots
    /// hit by it.
    async fn incident(&self, severity: &str, version: &str, n_hit: usize) -> Value {
        let began = Instant::now();
        loop {
            let all = self.document("incidents.json", "incidents").await;
            let mut incidents = all["incidents"].as_array().unwrap().iter();
            let is_it = |i: &&Value| {
                let is_open = i["severity"] == severity && i["state"] == "firing";
                let is_whole = i["devices_hit"] == n_hit && i["devices_seen"] == self.n_robots;
                is_open && is_whole && i["version"] == version
            };
            if let Some(incident) = incidents.find(is_it) {
                return incident.clone();
            }
            assert!(began.elapsed() < TIMEOUT, "no {severity}: {all:#}");
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    /// Waits for the verdict on a version once every robot runs it, and returns the row of the fleet's page.
    async fn judged(&self, version: &str) -> Value {
        let began = Instant::now();
        loop {
            let fleet = self.document("fleet.json", "models").await;
            let models = fleet["models"].as_array().unwrap().iter();
            let mut rows = models.flat_map(|model| {
                let lists = ["rows", "strays", "fine"].map(|list| model[list].as_array().unwrap());
                lists.into_iter().flatten()
            });
            let is_it = |row: &&Value| row["version"] == version && row["devices"] == self.n_robots;
            if let Some(row) = rows.find(is_it) {
                return row.clone();
            }
            assert!(began.elapsed() < TIMEOUT, "not judged: {fleet:#}");
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }
}

/// Starts robots that run these versions, and returns them with their server.
async fn started(n_robots: usize, versions: &'static [Version]) -> Fleet {
    let start = move || {
        let fleet = Fleet::new(n_robots);
        fleet.run(versions);
        fleet
    };
    tokio::task::spawn_blocking(start).await.unwrap()
}

fn check(incident: &Value, n_seen: usize) {
    assert_eq!(incident["verdict"], "npu_start_failure", "{incident:#}");
    let chipsets = serde_json::json!([CHIPSET]);
    assert_eq!(incident["chipsets"], chipsets, "{incident:#}");
    assert_eq!(incident["model"], "segmenter", "{incident:#}");
    assert_eq!(incident["devices_seen"], n_seen, "{incident:#}");
}

/// Ten devices page in their first window.
#[tokio::test(flavor = "multi_thread")]
async fn robots_of_python_that_all_fall_back_are_one_page_with_the_cause() {
    const FEW: &[Version] = &[Version::new("1", 0), Version::new("2", 10)];
    const MANY: &[Version] = &[Version::new("1", 0), Version::new("2", 20)];
    let (n, versions) = match is_nightly("ten of twenty robots of Python, and their page") {
        true => (20, MANY),
        false => (10, FEW),
    };
    let fleet = started(n, versions).await;
    check(&fleet.incident("page", "2", n).await, n);
}

/// One robot of twenty makes neither page nor ticket, because fewer than three devices prove nothing about the version.
/// Its own log and `explain` name the cause. Ten robots make a ticket in their first window; the page needs a second
/// window.
#[tokio::test(flavor = "multi_thread")]
async fn one_robot_of_twenty_falls_back_without_a_page_and_ten_are_a_ticket_at_once() {
    if !is_nightly("twenty robots of Python: one that falls back, then ten, and their ticket") {
        return;
    }
    const VERSIONS: &[Version] = &[Version::new("1", 0), Version::new("2", 1)];
    let fleet = started(20, VERSIONS).await;
    let row = fleet.judged("2").await;
    assert_eq!(row["severity"], "none", "{row:#}");
    let incidents = fleet.document("incidents.json", "incidents").await;
    assert_eq!(incidents["incidents"], serde_json::json!([]));

    let more = move || {
        fleet.run(&[Version::new("3", 10)]);
        fleet
    };
    let fleet = tokio::task::spawn_blocking(more).await.unwrap();
    check(&fleet.incident("ticket", "3", 10).await, 20);
}
