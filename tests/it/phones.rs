//! Phones in JVMs of their own, with the Kotlin library, the real ONNX Runtime and QNN's emulator: a roll-out whose second
//! version falls back to the CPU on one chipset is one page of `serve`, with its cause.

use std::{
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::Duration,
};

use epwatch_engines::{Engine, ensure};
use epwatch_proto::hex;
use epwatch_runtimes::{build_by_maven, is_nightly};
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::support::{Running, get, server};

const KEY: &str = "phones-key";
const PHONES: usize = 60;
const AT_ONCE: usize = 4;
/// Longest time from the last report to the page.
const PATIENCE: Duration = Duration::from_secs(600);

fn file(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// Short buckets and steps instead of a false clock. The window holds the starts of all phones.
fn config() -> String {
    format!(
        r#"
[collector.rollup]
bucket = "10s"

[[collector.keys]]
sha256 = "{}"
app = "com.example.camera"
kind = "own"

[detector]
window = "20m"
step = "10s"
lookback = "2h"
"#,
        hex(&Sha256::digest(KEY))
    )
}

/// Builds the phone's program, and returns its class path.
fn built(into: &Path) -> String {
    build_by_maven(&file("sdk/android/pom.xml"), into);
    format!("{}/classes:{}/jars/*", into.display(), into.display())
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
                        if phone >= PHONES {
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
        let library = std::env::current_exe().unwrap();
        let ran = Command::new("java")
            .args(["-Xmx256m", "-XX:TieredStopAtLevel=1"])
            .arg(format!(
                "-Djava.library.path={}",
                library.parent().unwrap().display()
            ))
            .args(["-cp", &self.class_path, "checks.PhoneApp"])
            .args([&self.endpoint, KEY])
            .arg(self.folder.join(phone.to_string()))
            .arg(chipset.name)
            .arg(file("tests/fixtures/models").join(MODELS[version]))
            .arg((version + 1).to_string())
            .arg(chipset.latency_us[version].to_string())
            .args(&self.npu)
            .arg(chipset.soc_model)
            .output()
            .expect("java starts: apt-get install default-jdk-headless");
        let out = String::from_utf8_lossy(&ran.stdout);
        let err = String::from_utf8_lossy(&ran.stderr);
        assert!(ran.status.success(), "phone {phone}: {out}\n{err}");
        let explained = out.lines().find_map(|line| line.strip_prefix("explain "));
        let explained: Value = serde_json::from_str(explained.unwrap()).unwrap();
        assert_eq!(explained["host_problem"], "", "phone {phone}: {explained}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sixty_phones_of_kotlin_make_one_page_with_the_cause() {
    if !is_nightly("60 phones with the Kotlin library, and their page (Maven)") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("epwatch.toml");
    std::fs::write(&path, config()).unwrap();
    let qnn = ensure(Engine::OnnxRuntimeQnn).unwrap();
    let mut command = server("serve", &folder.path().join("server"));
    command.env("EPWATCH_CONFIG", &path);
    let (_running, addresses) = Running::start(&mut command);
    let address = |name: &str| addresses[name].as_str().unwrap().to_owned();
    let fleet = Fleet {
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
        let page = get(&format!("http://{}/incidents.json", address("page"))).await;
        let document: Value = serde_json::from_str(&page.unwrap().text).unwrap();
        document["incidents"].as_array().unwrap().clone()
    };
    let began = std::time::Instant::now();
    let page = loop {
        let all = incidents().await;
        // The page is sent before the window has every phone.
        let is_sent = |i: &&Value| {
            i["severity"] == "page" && i["state"] == "firing" && i["devices_hit"] == PHONES / 2
        };
        if let Some(page) = all.iter().find(is_sent) {
            break page.clone();
        }
        assert!(began.elapsed() < PATIENCE, "no page: {all:#?}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    };
    assert_eq!(page["verdict"], "partial_fallback", "{page:#}");
    assert_eq!(page["chipsets"], serde_json::json!(["SM8635"]), "{page:#}");
    assert_eq!(page["model"], "segmenter", "{page:#}");
    assert_eq!(page["version"], "2", "{page:#}");
    assert_eq!(page["devices_seen"], PHONES / 2, "{page:#}");
    let ops = page["cpu_ops"].as_array().unwrap();
    assert!(ops.contains(&"Gemm".into()), "{page:#}");
    for incident in incidents().await {
        let chipsets = incident["chipsets"].to_string();
        assert!(!chipsets.contains("SM8650"), "{incident:#}");
    }
    drop(fleet);
}
