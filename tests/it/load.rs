//! `epwatch load` on a server of its own and on other collectors: over TLS, with a wrong key, and with a store that
//! lacks acknowledged reports.

use std::process::Command;

use epwatch_collector::{
    Collector,
    config::{AppKeyConfig, CollectorConfig, KeyKind, NewKey, TlsConfig},
};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::support::{Store, check_ends, check_fails, check_succeeds, epwatch, tls};

fn load(words: &str) -> Command {
    epwatch(&format!("load {words}"))
}

/// Returns the document of a load that ends with this exit code.
#[track_caller]
fn document(words: &str, code: i32) -> Value {
    let (stdout, _) = check_ends(load(words).arg("--json"), code);
    serde_json::from_str(&stdout).unwrap()
}

/// Each report that was sent is acknowledged, and counts once in the store.
#[test]
fn a_server_of_its_own_keeps_what_it_took() {
    for batch in [1, 20] {
        let document = document(&format!("--rate=200 --duration=2s --batch={batch}"), 0);
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
    let collector = start(&store, config).await;
    let wrong = format!(
        "--json --endpoint http://{} --key=wrong",
        collector.listen()
    );
    let (stdout, stderr) = check_ends(&mut load(&wrong), 3);
    assert_eq!(stdout, "");
    assert!(stderr.contains("key"), "{stderr}");
    collector.stop().await;
}

#[test]
fn a_store_without_its_collector_is_wrong_use() {
    check_fails(
        &mut load("--clickhouse http://127.0.0.1:9"),
        2,
        "--endpoint",
    );
}

async fn start(store: &Store, config: CollectorConfig) -> Collector {
    let collector = Collector::start(config, store.client(), CancellationToken::new());
    collector.await.unwrap()
}

/// One device, so that its reports have the sequences 1 to 20.
const TWENTY: &str = "--devices=1 --rate=20 --duration=1s";

fn number(document: &Value, pointer: &str) -> u64 {
    let found = document.pointer(pointer).and_then(Value::as_u64);
    found.unwrap_or_else(|| panic!("{pointer}: {document}"))
}

/// The collector has a certificate of a private CA, as operators run it. Clients check it, and a client without TLS
/// gets an error that says so.
#[tokio::test(flavor = "multi_thread")]
async fn a_collector_elsewhere_is_loaded_over_tls_and_its_store_checked() {
    let store = Store::start().await;
    let mut config = store.collector_config("wal");
    config.tls = Some(TlsConfig {
        cert_file: tls("server.pem"),
        key_file: tls("server.key"),
        ..TlsConfig::default()
    });
    let collector = start(&store, config).await;
    let port = collector.listen().port();
    let to = |ca: &str, drain: &str| {
        let (address, ca) = (store.address(), tls(ca).display().to_string());
        format!(
            "--endpoint https://localhost:{port} --clickhouse {address} {TWENTY} --drain={drain} --ca {ca}"
        )
    };
    let loaded = document(&to("ca.pem", "60s"), 0);
    for place in ["/sent", "/acked", "/store/distinct", "/store_ledger/stored"] {
        assert_eq!(number(&loaded, place), 20, "{place}: {loaded}");
    }
    check_ends(&mut load(&to("other-ca.pem", "1s")), 3);
    // Without TLS no call is answered. Each client says so at once.
    let (plain, way_out) = (
        format!("http://localhost:{port}"),
        "its address begins with https://",
    );
    let mut without_tls = load(&format!("--endpoint {plain} {TWENTY}"));
    check_fails(&mut without_tls, 3, way_out);
    let model = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/fixtures/models/e_mixed.qu8.onnx"
    );
    let mut gate = epwatch(&format!(
        "gate {model} --soc SM8650 --certify {plain} --model-id a --model-version 1"
    ));
    check_fails(&mut gate, 3, way_out);
    collector.stop().await;
    store.engine.stop().await;
}

/// For devices of its own, a collector may require client certificates. Load and gate can present one.
#[tokio::test(flavor = "multi_thread")]
async fn a_collector_that_asks_for_a_client_certificate_gets_one_from_load_and_gate() {
    let store = Store::start().await;
    let mut config = store.collector_config("wal");
    config.tls = Some(TlsConfig {
        cert_file: tls("server.pem"),
        key_file: tls("server.key"),
        client_ca: Some(tls("device-ca.pem")),
        client_cert_required: Some(vec![KeyKind::Own, KeyKind::Pipeline]),
    });
    let mut key = |kind| {
        let made = NewKey::random().unwrap();
        config.keys.push(AppKeyConfig {
            sha256: made.sha256.clone(),
            app: "epwatch.load".to_owned(),
            environment: "load".to_owned(),
            kind,
            ..AppKeyConfig::default()
        });
        made.secret
    };
    let (own, pipeline) = (key(KeyKind::Own), key(KeyKind::Pipeline));
    let collector = start(&store, config).await;
    let url = format!("https://localhost:{}", collector.listen().port());
    let file = |name: &str| tls(name).display().to_string();
    let (ca, certificate) = (file("ca.pem"), file("device.pem"));
    let presented = |key: &str| format!("--client-cert {certificate} --client-key {}", file(key));
    let with = presented("device.key");
    let address = store.address();

    let to = format!("--endpoint {url} --ca {ca} --key {own} --clickhouse {address} {TWENTY}");
    check_fails(&mut load(&to), 3, "needs a client certificate");
    let loaded = document(&format!("{to} {with}"), 0);
    assert_eq!(number(&loaded, "/store/distinct"), 20, "{loaded}");
    let wrong_key = format!("{to} {}", presented("other-device.key"));
    check_fails(&mut load(&wrong_key), 3, "certificates and key (PEM)");
    let plain = format!("--endpoint http://localhost:1 {with}");
    check_fails(&mut load(&plain), 2, "https://");
    let half = format!("--endpoint {url} --client-cert {certificate}");
    check_fails(&mut load(&half), 2, "--client-key");

    let model = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/fixtures/models/e_mixed.qu8.onnx"
    );
    let gate = |words: &str| {
        let mut gate = epwatch(&format!(
            "gate {model} --soc SM8650 --certify {url} --ca {ca} --model-id a --model-version 1 {words}"
        ));
        gate.env("EPWATCH_CERTIFY_KEY", &pipeline);
        gate
    };
    check_fails(
        &mut gate(""),
        3,
        "--client-cert and --client-key name its files",
    );
    check_succeeds(&mut gate(&with));
    let certified = "SELECT count() FROM certified_placements_v1 WHERE chipset = 'SM8650'";
    assert_eq!(store.count(certified).await, 1);
    collector.stop().await;
    store.engine.stop().await;
}

/// Checks that the load ends with exit code 1, while the SQL of `with` replaces the view that counts. `THE_VIEW` in it
/// is the view's own SQL.
async fn check_not_kept(store: &Store, to: &str, with: &str, drain: &str) -> (Value, String) {
    let view = "SELECT as_select FROM system.tables WHERE database = currentDatabase() \
                AND name = 'counted_reports_v1'";
    let as_it_was: String = store.client().query(view).fetch_one().await.unwrap();
    let replaced = |sql: &str| format!("CREATE OR REPLACE VIEW counted_reports_v1 AS {sql}");
    let wrong = with.replace("THE_VIEW", &format!("({as_it_was})"));
    let wrong = replaced(&wrong);
    store.client().query_raw(&wrong).execute().await.unwrap();
    let words = format!("{to} {TWENTY} --drain={drain}");
    let document = document(&words, 1);
    let (text, _) = check_ends(&mut load(&words), 1);
    let back = replaced(&as_it_was);
    store.client().query_raw(&back).execute().await.unwrap();
    (document, text)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_counts_one_report_twice_or_lacks_one_is_told() {
    let store = Store::start().await;
    let collector = start(&store, store.collector_config("wal")).await;
    let (endpoint, address) = (collector.listen(), store.address());
    let to = format!("--endpoint http://{endpoint} --clickhouse {address}");

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

/// A collector that refuses everything is not healthy, although it loses nothing.
#[test]
fn a_load_of_which_nothing_is_acknowledged_is_answered_with_no() {
    let mut command = load("--rate=20 --duration=1s --drain=1s");
    command.env("EPWATCH_COLLECTOR__WAL__MIN_FREE_BYTES", "8000000GiB");
    let (stdout, _) = check_ends(&mut command, 1);
    assert!(stdout.contains("NOTHING was acknowledged"), "{stdout}");
}
