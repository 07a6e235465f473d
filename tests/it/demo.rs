//! The happy path with all real parts: ONNX Runtime, QNN, the SDK, the engine, and the page.

use std::process::Stdio;

use epwatch_runtimes::is_nightly;
use epwatch_test_support::until;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;
use tokio::sync::{Mutex, watch};

use crate::browser::Browser;
use crate::support::{epwatch, get, json};

/// Demos run one after the other, since each needs the whole machine.
static ONE_AT_A_TIME: Mutex<()> = Mutex::const_new(());

fn demo(args: &str) -> Value {
    let _alone = ONE_AT_A_TIME.blocking_lock();
    let document = json(&mut epwatch(&format!("demo {args}")));
    check_ledger(&document);
    document
}

#[track_caller]
fn check_ledger(document: &Value) {
    let ledger = &document["ledger"];
    let n = |name: &str| ledger[name].as_i64().unwrap();
    assert_eq!(n("missing"), 0, "{ledger}");
    assert_eq!(
        n("recorded"),
        n("stored") + n("dropped") + n("refused"),
        "{ledger}"
    );
    assert!(n("stored") > 1_000, "{ledger}");
}

/// A demo that runs until it is interrupted.
struct RunningDemo {
    child: tokio::process::Child,
    /// The address of the demo's page, which the demo prints first.
    base: String,
}

impl RunningDemo {
    async fn start() -> Self {
        // Fewer devices than usual, because other tests use the processor too.
        let mut command = Command::from(epwatch("demo --json --devices 120"));
        let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.kill_on_drop(true).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let (said, mut base) = watch::channel(String::new());
        tokio::spawn(async move {
            // The whole output is read, so that the demo never waits for its reader.
            while let Ok(Some(line)) = lines.next_line().await {
                let opened = line.split_once("open http://");
                let address = opened.and_then(|(_, rest)| rest.split_once(" in a browser"));
                if let Some((address, _)) = address {
                    said.send_replace(format!("http://{}", address.trim_end_matches('/')));
                }
            }
        });
        let base = base
            .wait_for(|base| !base.is_empty())
            .await
            .unwrap()
            .clone();
        Self { child, base }
    }

    async fn json(&self, path: &str) -> Value {
        let page = get(&format!("{}{path}", self.base)).await.unwrap();
        serde_json::from_str(&page.text).unwrap_or_default()
    }

    /// Returns the id of the open incident that is a page; it may begin as a ticket. Empty if there is none.
    async fn page_id(&self) -> String {
        let fleet = self.json("/fleet.json").await;
        let mut open = fleet["open"].as_array().into_iter().flatten();
        let page = open.find(|incident| incident["severity"] == "page");
        let id = page.and_then(|page| page["incident"].as_str());
        id.unwrap_or_default().to_owned()
    }

    /// Returns the addresses of all the demo's pages, once each has data to show.
    async fn pages(&self) -> Vec<(&'static str, String)> {
        // On a busy machine each of these steps takes long.
        until("the demo judges", async || {
            self.json("/fleet.json").await["app"].is_string()
        })
        .await;
        until("the demo pages", async || !self.page_id().await.is_empty()).await;
        until("its ledger is read", async || {
            let ledger = self.json("/ledger.json").await;
            ledger["entries"]
                .as_array()
                .is_some_and(|days| !days.is_empty())
        })
        .await;
        let fleet = get(&format!("{}/fleet", self.base)).await.unwrap();
        let cohort = fleet
            .text
            .split("href=\"")
            .find(|part| part.starts_with("/cohort?"));
        let cohort = cohort.and_then(|part| part.split('"').next()).unwrap();
        let id = self.page_id().await;
        vec![
            ("demo-fleet", "/fleet".to_owned()),
            ("demo-cohort", cohort.replace("&amp;", "&")),
            ("demo-incidents", "/incidents".to_owned()),
            ("demo-incident", format!("/incident?id={id}")),
            ("demo-orders", "/orders".to_owned()),
            ("demo-ledger", "/ledger".to_owned()),
            ("demo-health", "/health".to_owned()),
        ]
    }

    /// Interrupts the demo and returns its document.
    async fn end(self) -> Value {
        let pid = self.child.id().unwrap().to_string();
        let told = std::process::Command::new("kill")
            .args(["-INT", &pid])
            .status();
        assert!(told.unwrap().success());
        let output = self.child.wait_with_output().await.unwrap();
        assert!(output.status.success(), "{:?}", output.status);
        serde_json::from_slice(&output.stdout).unwrap()
    }
}

/// SM8635 runs the float head of version 2 on the CPU.
fn check_one_page(document: &Value) {
    let incidents = document["incidents"].as_array().unwrap();
    let pages: Vec<_> = incidents
        .iter()
        .filter(|i| i["severity"] == "page")
        .collect();
    assert_eq!(pages.len(), 1, "{incidents:#?}");
    let page = pages[0];
    assert_eq!(page["chipsets"], serde_json::json!(["SM8635"]), "{page:#}");
    assert_eq!(page["version"], "2", "{page:#}");
    assert_eq!(page["verdict"], "partial_fallback", "{page:#}");
    let ops = page["cpu_ops"].as_array().unwrap();
    assert!(
        ops.contains(&"Gemm".into()) && ops.contains(&"LayerNormalization".into()),
        "{page:#}"
    );
    // People get the same incident.
    let mut texts = document["pages"].as_array().unwrap().iter();
    let text = texts.rfind(|page| page["is_page"] == true).unwrap();
    let text = text["text"].as_str().unwrap();
    assert!(text.contains(page["incident"].as_str().unwrap()), "{text}");
    for number in ["latency_ratio", "cv", "cv_within", "cv_between", "dip"] {
        assert!(page[number].is_f64(), "{number}: {page:#}");
    }
    let share = page["cpu_macs_share"].as_f64().unwrap();
    assert!((0.25..0.28).contains(&share), "{page:#}");
    for incident in incidents {
        // If all cores are busy for seconds, no report arrives. Then the silent app makes a ticket.
        if incident["verdict"] == "data_quality" {
            continue;
        }
        let chipsets = incident["chipsets"].to_string();
        assert!(
            !chipsets.contains("SM8650") && incident["version"] == "2",
            "{incident:#}"
        );
    }
    assert!(document["first_page_seconds"].is_f64());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_fallback_is_found_paged_with_its_cause_and_shown() {
    let _alone = ONE_AT_A_TIME.lock().await;
    let demo = RunningDemo::start().await;
    let pages = demo.pages().await;
    let mut browser = Browser::start();
    for (name, path) in &pages {
        browser.check(&demo.base, name, path);
    }
    drop(browser);
    // The demo's notifier writes to its screen.
    let (_, incident) = pages
        .iter()
        .find(|(name, _)| *name == "demo-incident")
        .unwrap();
    until("the incident says who was told", async || {
        let shown = get(&format!("{}{incident}", demo.base)).await.unwrap();
        shown.text.contains("was told: PAGE")
    })
    .await;
    let document = demo.end().await;
    check_ledger(&document);
    check_one_page(&document);
    let sessions = document["real_sessions"].as_array().unwrap();
    assert_eq!(sessions.len(), 4, "{sessions:#?}");
    for session in sessions {
        assert_eq!(session["placement_source"], "assignment_api");
        let falls_back = session["chipset"] == "SM8635" && session["version"] == "2";
        let ops = session["cpu_ops"].as_array().unwrap();
        assert_eq!(ops.contains(&"Gemm".into()), falls_back, "{session:#}");
        assert!(
            session["eps"]["QNNExecutionProvider"]["nodes"]
                .as_u64()
                .unwrap()
                > 0
        );
    }
}

#[test]
fn a_healthy_version_pages_nobody() {
    if !is_nightly("the demo of a healthy version") {
        return;
    }
    let document = demo("--seconds 35 --healthy");
    assert_eq!(document["incidents"], serde_json::json!([]));
    assert_eq!(document["first_page_seconds"], Value::Null);
    assert_eq!(document["real_sessions"].as_array().unwrap().len(), 4);
}

#[test]
fn without_the_runtimes_recorded_placements_stand_in() {
    if !is_nightly("the demo without ONNX Runtime and QNN") {
        return;
    }
    let document = demo("--seconds 80 --no-runtimes");
    check_one_page(&document);
    assert_eq!(document["real_sessions"], serde_json::json!([]));
    assert_eq!(document["no_real_sessions"], "--no-runtimes was given");
}
