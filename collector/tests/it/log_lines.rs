//! Log lines that an operator or a newcomer waits for. All tests of this binary share one log, so each looks for names of
//! its own.

use std::io::{self, Write};
use std::sync::{Mutex, Once};

use epwatch_collector::config::NewKey;
use epwatch_proto::v1::Outcome;
use epwatch_server::ByteSize;
use epwatch_test_support::until;

use crate::faults::CollectorProcess;
use crate::hostile::{serves, start};
use crate::support::{
    Store, check_metrics, config, connect, key_for, report, request, start_with, store_all,
    with_key,
};

static LOG: Mutex<Vec<u8>> = Mutex::new(Vec::new());

struct Captured;

impl Write for Captured {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        LOG.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

pub(crate) fn capture() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let format = tracing_subscriber::fmt().with_ansi(false);
        format.with_writer(|| Captured).init();
    });
}

/// Returns the lines so far that contain all of these words.
pub(crate) fn lines(words: &[&str]) -> Vec<String> {
    let log = String::from_utf8_lossy(&LOG.lock().unwrap()).into_owned();
    let has_all = |line: &&str| words.iter().all(|word| line.contains(word));
    log.lines().filter(has_all).map(str::to_owned).collect()
}

/// This is the first mistake that newcomers make. Without these lines `flush` succeeds, and nothing shows the mistake.
#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_app_id_or_key_is_in_the_log_once_and_on_the_page() {
    capture();
    let dir = tempfile::tempdir().unwrap();
    let key = NewKey::random().unwrap();
    let collector = start(&dir, |config| {
        let mut entry = key_for(&key, "com.example.logged");
        entry.name = "logged-key".into();
        config.keys = vec![entry];
    })
    .await;
    let mut device = connect(&collector).await;
    for sequence in 1..=3 {
        let call = with_key(request(&[report(1, 1, sequence)]), &key.secret);
        let answer = device.upload(call).await.unwrap().into_inner();
        assert_eq!(answer.results[0].outcome(), Outcome::RefusedWrongApp);
        let detail = &answer.results[0].detail;
        assert!(detail.contains("is for com.example.logged/*"), "{detail}");
        let stranger = with_key(request(&[report(1, 1, sequence)]), "epw_no_such_key");
        device.upload(stranger).await.unwrap_err();
    }
    let found = lines(&["WARN", "reports refused", "key=\"logged-key\""]);
    assert_eq!(found.len(), 1, "{found:?}");
    for word in [
        "outcome=\"refused_wrong_app\"",
        "app=\"com.example.camera\"",
        "com.example.logged/*",
    ] {
        assert!(found[0].contains(word), "no {word} in {found:?}");
    }
    // The other tests of this binary send unknown keys too, each to a collector of its own.
    assert!(!lines(&["WARN", "calls refused: the app key is unknown"]).is_empty());
    check_metrics(
        &collector,
        &[
            "epwatch_collector_key_refused_reports_total{key=\"logged-key\",outcome=\"refused_wrong_app\"} 3",
            "epwatch_collector_key_requests_total{key=\"logged-key\",result=\"accepted\"} 3",
            "epwatch_collector_key_requests_total{key=\"\",result=\"unknown\"} 3",
            "epwatch_collector_app_keys 1",
        ],
    );
    collector.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_that_cross_a_network_in_the_clear_are_in_the_log() {
    capture();
    let key = NewKey::random().unwrap();
    for (ip, n_lines) in [([0, 0, 0, 0], 1), ([127, 0, 0, 1], 0)] {
        let dir = tempfile::tempdir().unwrap();
        let collector = start(&dir, |config| {
            config.listen = (ip, 0).into();
            config.keys = vec![key_for(&key, "com.example.clear")];
        })
        .await;
        let listen = format!("listen={}", collector.listen());
        let found = lines(&["WARN", "in the clear", "[collector.tls]", &listen]);
        assert_eq!(found.len(), n_lines, "{listen}: {found:?}");
        collector.stop().await;
    }
}

/// The file was emptied before a restart, so no earlier keys can stay in force.
#[tokio::test(flavor = "multi_thread")]
async fn a_start_without_a_key_in_force_is_in_the_log() {
    capture();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("keys.toml");
    std::fs::write(&file, "").unwrap();
    let collector = start(&dir, |config| config.keys_file = Some(file.clone())).await;
    let path = file.display().to_string();
    let found = lines(&["WARN", "no app key is in force", &path]);
    assert_eq!(found.len(), 1, "{found:?}");
    check_metrics(&collector, &["epwatch_collector_app_keys 0"]);
    collector.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_below_min_free_bytes_is_in_the_log_and_on_the_ready_page() {
    capture();
    let dir = tempfile::tempdir().unwrap();
    let collector = start(&dir, |config| {
        config.wal.min_free_bytes = ByteSize(1 << 60);
    })
    .await;
    let path = dir.path().display().to_string();
    let found = lines(&["wal refuses reports", &path]);
    assert_eq!(found.len(), 1, "{found:?}");
    for word in [
        "collector.wal.min_free_bytes",
        "free=",
        "least=1152921504606846976",
    ] {
        assert!(found[0].contains(word), "no {word} in {found:?}");
    }
    let answer = crate::http::send(collector.http_listen(), "GET", "/readyz", &[], b"");
    let text = String::from_utf8(answer.body).unwrap();
    for word in [
        "bytes are free on the volume of /",
        "less than collector.wal.min_free_bytes (1152921504606846976)",
    ] {
        assert!(text.contains(word), "no {word} in {text}");
    }
    collector.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_report_of_a_model_on_a_chipset_is_in_the_log() {
    capture();
    let store = Store::start().await;
    let mut config = config(&store.dir.path().join("wal"));
    config.names.models = 1;
    let collector = start_with(&store, config).await;
    let mut device = connect(&collector).await;
    let named = |sequence, model: &str| {
        let mut report = report(1, 1, sequence);
        report.app.as_mut().unwrap().id = "com.example.arrivals".into();
        report.sessions[0].model.as_mut().unwrap().id = model.into();
        report
    };
    for sequence in 1..=3 {
        store_all(&mut device, &[named(sequence, "segmenter")]).await;
        until("it is stored", async || collector.is_drained()).await;
    }
    // The name is beyond the limit of names, so it is not logged.
    store_all(&mut device, &[named(4, "made-up")]).await;
    until("it is stored", async || collector.is_drained()).await;
    store.end(collector).await;
    let found = lines(&["first report since the start", "com.example.arrivals"]);
    assert_eq!(found.len(), 1, "{found:?}");
    for word in ["model=\"segmenter\"", "version=\"", "chipset=\"SM8650\""] {
        assert!(found[0].contains(word), "no {word} in {found:?}");
    }
}

/// A closed terminal or a unit's reload sends SIGHUP. In a collector without files to reload it used to end the process
/// at once.
#[tokio::test(flavor = "multi_thread")]
async fn a_hangup_ends_no_collector() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("no-store.sock");
    let mut collector = CollectorProcess::start_at(&dir.path().join("wal"), &socket);
    let address = collector.address().parse().unwrap();
    assert!(serves(address, 1));
    for sequence in 2..4 {
        let pid = collector.pid().to_string();
        let sent = std::process::Command::new("kill")
            .args(["-HUP", &pid])
            .status();
        assert!(sent.unwrap().success());
        assert!(serves(address, sequence));
    }
    collector.kill();
}
