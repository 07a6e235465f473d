//! The happy path with all real parts: ONNX Runtime, QNN, the SDK, the engine, and the page.

use std::sync::{Mutex, PoisonError};

use epwatch_runtimes::is_nightly;
use serde_json::Value;

use crate::support::{epwatch, json};

/// Demos run one after the other, since each needs the whole machine.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn demo(args: &str) -> Value {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let document = json(&mut epwatch(&format!("demo {args}")));
    let ledger = &document["ledger"];
    let n = |name: &str| ledger[name].as_i64().unwrap();
    assert_eq!(n("missing"), 0, "{ledger}");
    assert_eq!(
        n("recorded"),
        n("stored") + n("dropped") + n("refused"),
        "{ledger}"
    );
    assert!(n("stored") > 1_000, "{ledger}");
    document
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
        let chipsets = incident["chipsets"].to_string();
        assert!(
            !chipsets.contains("SM8650") && incident["version"] == "2",
            "{incident:#}"
        );
    }
    assert!(document["first_page_seconds"].is_f64());
}

#[test]
fn a_silent_fallback_is_found_and_paged_with_its_cause() {
    // A machine that runs other tests meanwhile takes longer than the 20 s of a quiet one.
    let document = demo("--seconds 80");
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
