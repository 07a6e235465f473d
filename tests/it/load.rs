//! `epwatch load` against a server of its own, and against one that does not know its key.

use std::process::{Command, Output};

use epwatch_collector::{Collector, config::AppKeyConfig};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::support::{EPWATCH, Store};

async fn load(args: &[&str]) -> Output {
    let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
    let run = move || {
        Command::new(EPWATCH)
            .arg("load")
            .args(args)
            .output()
            .unwrap()
    };
    tokio::task::spawn_blocking(run).await.unwrap()
}

fn document(output: &Output) -> Value {
    let stderr = String::from_utf8_lossy(&output.stderr);
    let document = serde_json::from_slice(&output.stdout);
    document.unwrap_or_else(|error| panic!("{error}\n{stderr}"))
}

/// Each report that was sent is acknowledged, and counts once in the store.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_of_its_own_keeps_what_it_took() {
    for batch in ["1", "20"] {
        let output = load(&["--json", "--rate=200", "--duration=2s", "--batch", batch]).await;
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        let document = document(&output);
        let n = |pointer: &str| document.pointer(pointer).and_then(Value::as_i64).unwrap();
        assert_eq!(n("/sent"), 400, "{document}");
        for place in [
            "/acked",
            "/store/reports",
            "/store/distinct",
            "/ledger/recorded",
            "/store_ledger/recorded",
            "/store_ledger/stored",
        ] {
            assert_eq!(n(place), 400, "{place}: {document}");
        }
        for place in [
            "/ledger/missing",
            "/store_ledger/missing",
            "/store_ledger/others",
        ] {
            assert_eq!(n(place), 0, "{place}: {document}");
        }
        let ms = |name: &str| document["ack_ms"][name].as_f64().unwrap();
        assert!(
            ms("p50") <= ms("p99") && ms("p99") <= ms("max"),
            "{document}"
        );
        assert!(document["server_cpu_seconds"].as_f64().unwrap() > 0.0);
    }
}

/// A key that the collector does not know ends the load with the reason, not with numbers.
#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_key_is_said_at_once() {
    let store = Store::start().await;
    let mut config = store.collector_config("wal");
    config.keys = vec![AppKeyConfig {
        sha256: "0".repeat(64),
        app: "com.example.app".to_owned(),
        environment: "production".to_owned(),
        ..AppKeyConfig::default()
    }];
    let stop = CancellationToken::new();
    let collector = Collector::start(config, store.client(), stop)
        .await
        .unwrap();
    let endpoint = format!("http://{}", collector.listen());
    let output = load(&["--json", "--endpoint", &endpoint, "--key=wrong"]).await;
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    assert!(output.stdout.is_empty(), "{output:?}");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains("key"), "{stderr}");
    collector.stop().await;
}
