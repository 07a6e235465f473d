//! Phones in their own JVMs, with the Kotlin library, the real ONNX Runtime and QNN's emulator. A roll-out whose second
//! version falls back to the CPU on one chipset makes one page of `serve`, which names its cause.

use std::{
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::Duration,
};

use epwatch_engines::{Engine, ensure};
use epwatch_runtimes::{build_by_maven, is_nightly, tool};
use epwatch_test_support::until;
use serde_json::Value;

use crate::support::{Running, check_succeeds, get, server, short_windows};

const APP: &str = "com.example.camera";
const KEY: &str = "phones-key";
/// Number of phones in nightly runs and in other runs. Ten devices hit make a page in their first window.
const PHONES: [usize; 2] = [60, 24];
const AT_ONCE: usize = 4;
/// Longest time from the last report to the page.
const TIMEOUT: Duration = Duration::from_secs(600);

fn file(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// Builds the phone's program, and returns its class path.
fn built(into: &Path) -> String {
    build_by_maven(&file("sdk/android/pom.xml"), into);
    format!("{}/classes:{}/jars/*", into.display(), into.display())
}

/// Returns a separate JVM for a program of `sdk/android/checks`.
fn jvm(class_path: &str, program: &str) -> Command {
    let library = std::env::current_exe().unwrap();
    let mut command = tool("java");
    command
        .args(["-Xmx256m", "-XX:TieredStopAtLevel=1"])
        .arg(format!(
            "-Djava.library.path={}",
            library.parent().unwrap().display()
        ))
        .args(["-cp", class_path, program]);
    command
}

/// A chipset of the fleet, and the latency of each version there.
struct Chipset {
    name: &'static str,
    soc_model: &'static str,
    latency_us: [u32; 2],
}

const CHIPSETS: [Chipset; 2] = [
    Chipset {
        name: "SM8650",
        soc_model: "57",
        latency_us: [2_000, 2_000],
    },
    Chipset {
        name: "SM8635",
        soc_model: "68",
        latency_us: [2_400, 9_000],
    },
];

/// The version's model file. The second one has a float head that SM8635's NPU refuses.
const MODELS: [&str; 2] = ["mixed_v1.int8.onnx", "mixed_v2.head32.onnx"];

struct Fleet {
    n_phones: usize,
    class_path: String,
    endpoint: String,
    folder: PathBuf,
    npu: [PathBuf; 2],
}

impl Fleet {
    /// Starts the app of every phone once with this version, a few at a time.
    fn start_all(&self, version: usize) {
        let next = AtomicUsize::new(0);
        thread::scope(|scope| {
            for _ in 0..AT_ONCE {
                scope.spawn(|| {
                    loop {
                        let phone = next.fetch_add(1, Ordering::Relaxed);
                        if phone >= self.n_phones {
                            return;
                        }
                        self.start(phone, version);
                    }
                });
            }
        });
    }

    fn start(&self, phone: usize, version: usize) {
        let chipset = &CHIPSETS[phone % CHIPSETS.len()];
        let ran = jvm(&self.class_path, "checks.PhoneApp")
            .args([&self.endpoint, KEY])
            .arg(self.folder.join(phone.to_string()))
            .arg(chipset.name)
            .arg(file("tests/fixtures/models").join(MODELS[version]))
            .arg((version + 1).to_string())
            .arg(chipset.latency_us[version].to_string())
            .args(&self.npu)
            .arg(chipset.soc_model)
            .output()
            .unwrap();
        let out = String::from_utf8_lossy(&ran.stdout);
        let err = String::from_utf8_lossy(&ran.stderr);
        assert!(ran.status.success(), "phone {phone}: {out}\n{err}");
        let explained = out.lines().find_map(|line| line.strip_prefix("explain "));
        let explained: Value = serde_json::from_str(explained.unwrap()).unwrap();
        assert_eq!(explained["host_problem"], "", "phone {phone}: {explained}");
    }
}

/// Returns a program that records `runs` times in each of eight threads.
fn recording(class_path: &str, endpoint: &str, folder: &Path, runs: u64) -> Command {
    let mut command = jvm(class_path, "checks.RecordingApp");
    command
        .args([endpoint, KEY])
        .arg(folder.join("phone"))
        .arg(file("tests/fixtures/models/cnn.qu8.onnx"))
        .arg(runs.to_string());
    command
}

/// Returns the ledger's runs: recorded, stored, dropped on the device, missing.
async fn ledger(page: &str) -> [i64; 4] {
    let answer = get(&format!("http://{page}/ledger.json?count=runs")).await;
    let document: Value = serde_json::from_str(&answer.unwrap().text).unwrap();
    let days = document["entries"].as_array().unwrap();
    let sum = |column: &str| days.iter().map(|day| day[column].as_i64().unwrap()).sum();
    ["recorded", "stored", "dropped", "missing"].map(sum)
}

/// A million runs of eight threads are in the ledger once each. Then the process is killed with half a million more that
/// were not sent.
#[tokio::test(flavor = "multi_thread")]
async fn a_million_runs_of_kotlin_are_in_the_ledger_and_those_of_a_killed_process_are_counted() {
    if !is_nightly("a million runs of the Kotlin library in the ledger, and a kill (Maven)") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("epwatch.toml");
    std::fs::write(&path, short_windows(APP, KEY)).unwrap();
    let mut command = server("serve", &folder.path().join("server"));
    command.env("EPWATCH_CONFIG", &path);
    let (_running, addresses) = Running::start(&mut command);
    let address = |name: &str| addresses[name].as_str().unwrap().to_owned();
    let (endpoint, page) = (format!("http://{}", address("collector")), address("page"));
    let class_path = built(&folder.path().join("kotlin"));
    let start = |runs| recording(&class_path, &endpoint, folder.path(), runs);

    check_succeeds(&mut start(125_000));
    let known = async |runs: i64| ledger(&page).await[0] >= runs;
    until("a million runs are known", || known(1_000_000)).await;
    assert_eq!(ledger(&page).await, [1_000_000, 1_000_000, 0, 0]);

    let mut doomed = start(62_500);
    let doomed = doomed.arg("until_killed").stdout(Stdio::piped());
    let mut doomed = doomed.spawn().unwrap();
    let mut said = BufReader::new(doomed.stdout.take().unwrap()).lines();
    assert_eq!(said.next().unwrap().unwrap(), "recorded");
    doomed.kill().unwrap();
    doomed.wait().unwrap();
    check_succeeds(&mut start(1));
    until("the last start is known", || known(1_500_008)).await;
    let [recorded, stored, dropped, missing] = ledger(&page).await;
    // At most the runs of the last half a million that were not yet in the spool are missing, and they are counted.
    assert_eq!((recorded, dropped), (1_500_008, 0));
    assert_eq!(stored + missing, recorded);
    assert!(stored >= 1_000_008, "{stored}");
}

#[tokio::test(flavor = "multi_thread")]
async fn phones_of_kotlin_make_one_page_with_the_cause() {
    let n_phones = match is_nightly("36 of 60 phones with the Kotlin library, and their page") {
        true => PHONES[0],
        false => PHONES[1],
    };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("epwatch.toml");
    std::fs::write(&path, short_windows(APP, KEY)).unwrap();
    let qnn = ensure(Engine::OnnxRuntimeQnn).unwrap();
    let mut command = server("serve", &folder.path().join("server"));
    command.env("EPWATCH_CONFIG", &path);
    let (_running, addresses) = Running::start(&mut command);
    let address = |name: &str| addresses[name].as_str().unwrap().to_owned();
    let fleet = Fleet {
        n_phones,
        class_path: built(&folder.path().join("kotlin")),
        endpoint: format!("http://{}", address("collector")),
        folder: folder.path().to_owned(),
        npu: [qnn.qnn_provider_library(), qnn.qnn_htp_library()],
    };
    let fleet = tokio::task::spawn_blocking(move || {
        fleet.start_all(0);
        fleet.start_all(1);
        fleet
    })
    .await
    .unwrap();

    let incidents = async || {
        let began = std::time::Instant::now();
        loop {
            let page = get(&format!("http://{}/incidents.json", address("page"))).await;
            let document: Value = serde_json::from_str(&page.unwrap().text).unwrap();
            if let Some(incidents) = document["incidents"].as_array() {
                break incidents.clone();
            }
            // On a busy machine the page may say that they could not be read.
            assert!(began.elapsed() < TIMEOUT, "no incidents: {document:#}");
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    };
    let began = std::time::Instant::now();
    let page = loop {
        let all = incidents().await;
        // The page may be sent before the window has all phones.
        let is_sent = |i: &&Value| {
            i["severity"] == "page" && i["state"] == "firing" && i["devices_hit"] == n_phones / 2
        };
        if let Some(page) = all.iter().find(is_sent) {
            break page.clone();
        }
        assert!(began.elapsed() < TIMEOUT, "no page: {all:#?}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    };
    assert_eq!(page["verdict"], "partial_fallback", "{page:#}");
    assert_eq!(page["chipsets"], serde_json::json!(["SM8635"]), "{page:#}");
    assert_eq!(page["model"], "segmenter", "{page:#}");
    assert_eq!(page["version"], "2", "{page:#}");
    assert_eq!(page["devices_seen"], n_phones / 2, "{page:#}");
    let ops = page["cpu_ops"].as_array().unwrap();
    assert!(ops.contains(&"Gemm".into()), "{page:#}");
    for incident in incidents().await {
        let chipsets = incident["chipsets"].to_string();
        assert!(!chipsets.contains("SM8650"), "{incident:#}");
    }
    drop(fleet);
}
