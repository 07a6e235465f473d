//! `epwatch load` on a server of its own and on other collectors: over TLS, with a wrong key, and with a store that
//! lacks acknowledged reports.

use std::{
    path::Path,
    process::{Command, Output},
};

use epwatch_collector::{
    Collector,
    config::{AppKeyConfig, CollectorConfig, TlsConfig},
};
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

/// With a wrong key the load ends with the reason and prints no figures.
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

#[tokio::test]
async fn a_store_without_its_collector_is_wrong_use() {
    let output = load(&["--clickhouse", "http://127.0.0.1:9"]).await;
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains("--endpoint"), "{stderr}");
}

/// Starts a collector on this store, and returns it with the store's address.
async fn start(store: &Store, config: CollectorConfig) -> (Collector, String) {
    let collector = Collector::start(config, store.client(), CancellationToken::new());
    (collector.await.unwrap(), store.address())
}

/// One device, so that its reports have the sequences 1 to 20.
const TWENTY: [&str; 4] = ["--devices=1", "--rate=20", "--duration=1s", "--drain=60s"];

fn number(document: &Value, pointer: &str) -> u64 {
    let found = document.pointer(pointer).and_then(Value::as_u64);
    found.unwrap_or_else(|| panic!("{pointer}: {document}"))
}

/// The collector has a certificate of a private CA, as operators run it.
#[tokio::test(flavor = "multi_thread")]
async fn a_collector_elsewhere_is_loaded_over_tls_and_its_store_checked() {
    let fixtures = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/tls"));
    let store = Store::start().await;
    let mut config = store.collector_config("wal");
    config.tls = Some(TlsConfig {
        cert_file: fixtures.join("server.pem"),
        key_file: fixtures.join("server.key"),
    });
    let (collector, address) = start(&store, config).await;
    let endpoint = format!("https://localhost:{}", collector.listen().port());
    let to = ["--json", "--endpoint", &endpoint, "--clickhouse", &address];
    let ca = |name: &str| fixtures.join(name).display().to_string();
    let trusted = ca("ca.pem");
    let output = load(&[&to[..], &TWENTY, &["--ca", &trusted]].concat()).await;
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let document = document(&output);
    for place in ["/sent", "/acked", "/store/distinct", "/store_ledger/stored"] {
        assert_eq!(number(&document, place), 20, "{place}: {document}");
    }

    let other = ca("other-ca.pem");
    let hasty = ["--devices=1", "--rate=20", "--duration=1s", "--drain=1s"];
    let output = load(&[&to[..], &hasty, &["--ca", &other]].concat()).await;
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    collector.stop().await;
    store.engine.stop().await;
}

/// Checks that the load ends with exit code 1, while the SQL of `with` replaces the view that counts. `THE_VIEW` in it
/// is the view's own SQL.
async fn check_not_kept(store: &Store, to: &[&str], with: &str, drain: &str) -> (Value, String) {
    let view = "SELECT as_select FROM system.tables WHERE database = currentDatabase() \
                AND name = 'counted_reports_v1'";
    let as_it_was: String = store.client().query(view).fetch_one().await.unwrap();
    let replaced = |sql: &str| format!("CREATE OR REPLACE VIEW counted_reports_v1 AS {sql}");
    let wrong = with.replace("THE_VIEW", &format!("({as_it_was})"));
    let wrong = replaced(&wrong);
    store.client().query_raw(&wrong).execute().await.unwrap();
    let args = [
        "--devices=1",
        "--rate=20",
        "--duration=1s",
        "--drain",
        drain,
    ];
    let output = load(&[to, &args, &["--json"]].concat()).await;
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let said = load(&[to, &args].concat()).await;
    assert_eq!(said.status.code(), Some(1), "{said:?}");
    let back = replaced(&as_it_was);
    store.client().query_raw(&back).execute().await.unwrap();
    let text = String::from_utf8_lossy(&said.stdout).into_owned();
    (document(&output), text)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_counts_one_report_twice_or_lacks_one_is_told() {
    let store = Store::start().await;
    let (collector, address) = start(&store, store.collector_config("wal")).await;
    let endpoint = format!("http://{}", collector.listen());
    let to = ["--endpoint", &endpoint, "--clickhouse", &address];

    let twice = "SELECT * FROM THE_VIEW UNION ALL SELECT * FROM THE_VIEW WHERE sequence = 3";
    let (document, text) = check_not_kept(&store, &to, twice, "60s").await;
    assert_eq!(number(&document, "/acked"), 20, "{document}");
    assert_eq!(number(&document, "/store/distinct"), 20, "{document}");
    assert_eq!(number(&document, "/store/reports"), 21, "{document}");
    let said = "21 reports, 20 distinct, of 20 acknowledged: that is WRONG";
    assert!(text.contains(said), "{text}");

    let lacks = "SELECT * FROM THE_VIEW WHERE sequence != 3";
    let (document, text) = check_not_kept(&store, &to, lacks, "10s").await;
    assert_eq!(number(&document, "/acked"), 20, "{document}");
    assert!(number(&document, "/store/distinct") < 20, "{document}");
    assert!(text.contains("that is WRONG"), "{text}");
    collector.stop().await;
    store.engine.stop().await;
}
