//! Tests the commands that read a store. They read a `serve` with its WAL and detector, a device by the id that the SDK
//! prints, and an incident for a ticket. Stores that are unreachable, silent, or have another schema are tested too.

use std::{net::TcpListener, process::Command, thread, time::Duration};

use clickhouse::Client;
use epwatch_model::{CohortKey, ModelKey, write_document};
use epwatch_proto::{Placement, ReasonCode, SessionOptions};
use epwatch_sdk::{ModelInfo, SdkConfig, Watch};
use epwatch_test_support::until;
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::support::{
    Running, Store, check_fails, check_succeeds, epwatch, get, incident_of, json, server,
};

const KEY: &str = "look-key";

/// Every command that prints a page.
const LOOKS: [&str; 10] = [
    "status",
    "show app model",
    "show app model 2 SM8635",
    "incident",
    "incident open-1",
    "devices",
    "devices --latest",
    "ledger",
    "health",
    "orders",
];

/// Checks that all commands fail with a clear line and the code of "could not find out", and do not hang.
#[track_caller]
fn check_all_fail(store: &str, expected: &str) {
    thread::scope(|scope| {
        for look in LOOKS {
            let mut command = epwatch(look);
            command.args(["--clickhouse", store]);
            scope.spawn(move || check_fails(&mut command, 3, expected));
        }
    });
}

#[test]
fn a_store_that_is_away_or_silent_is_a_clear_line() {
    check_all_fail("http://127.0.0.1:1", "the store does not answer");
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", silent.local_addr().unwrap());
    // This store accepts connections, but does not answer requests.
    check_all_fail(&address, "the store did not answer in time");
}

/// Writes an incident.
async fn put_incident(store: &Client) {
    let document = "{}";
    let incident = "INSERT INTO incidents (incident_id, changed_at, state, severity, verdict, app_id, environment, \
        model_id, model_version, chipsets, started_at, devices_hit, devices_seen, document) \
        SELECT 'open-1', now64(3), 'firing', 'page', 'partial_fallback', 'camera', 'production', 'model', '2', \
        ['SM8635'], now64(3), 10, 12, ?";
    let insert = store.query(incident).bind(document);
    insert.execute().await.unwrap();
}

/// Writes an incident with 1,300 states and a news for each. A channel accepts every second news, which is sent to it
/// twice, and refuses news 6 for good.
async fn put_long_incident(store: &Client) {
    // The SQL statement replaces these by each row's numbers.
    const NEWS: u64 = 900_001;
    const DELIVERED: u64 = 900_002;
    let mut document = incident_of(CohortKey {
        model: ModelKey::of(("camera", "production"), "model"),
        model_version: "3".to_owned(),
        chipset: "SM8635".to_owned(),
        firmware: None,
    });
    (document.news, document.delivered) = (NEWS, [("slack".to_owned(), DELIVERED)].into());
    let first = write_document(&document);
    document.refused = [("slack".to_owned(), 6)].into();
    let incident = format!(
        "INSERT INTO incidents (incident_id, changed_at, state, severity, verdict, app_id, environment, \
        model_id, model_version, chipsets, started_at, devices_hit, devices_seen, notification, document) \
        SELECT 'long-1', now64(3) - toIntervalSecond(1300 - number), if(number % 2 = 0, 'firing', 'resolved'), 'ticket', \
        'partial_fallback', 'camera', 'production', 'model', '3', ['SM8635'], now64(3), 10, 12, \
        concat('TICKET ', toString(number + 1), '  text'), \
        replaceAll(replaceAll(if(number < 4, ?, ?), '{NEWS}', toString(number + 1)), \
            '{DELIVERED}', toString(intDiv(number, 2) * 2 + 2)) \
        FROM numbers(1300)"
    );
    let insert = store.query(&incident).bind(first);
    let insert = insert.bind(write_document(&document));
    insert.execute().await.unwrap();
}

/// Checks that a history keeps its newest rows, says that it is cut, and counts deliveries once.
#[track_caller]
fn check_long_history(look: impl Fn(&str) -> Command) {
    let document = json(&mut look("incident long-1"));
    let history = &document["history"];
    assert_eq!(history["is_cut"], true);
    let last = |list: &str| {
        let rows = history[list].as_array().unwrap();
        (rows.len(), rows.last().unwrap().clone())
    };
    let (n, change) = last("changes");
    assert_eq!((n, &change["state"]), (500, &"resolved".into()));
    let (n, news) = last("news");
    assert_eq!((n, &news["news"]), (30, &1_300.into()));
    let (n, delivery) = last("deliveries");
    assert_eq!((n, &delivery["news"]), (500, &1_300.into()));
    let channel = &history["channels"][0];
    assert_eq!(
        (&channel["told"], &channel["refused"]),
        (&649.into(), &1.into())
    );
    let text = check_succeeds(&mut look("incident long-1"));
    for part in [
        "Earlier changes and deliveries are left out.",
        ": slack was told: TICKET 1300\n",
        "- slack: told 649 times, last at ",
        "1 given up, refused until the incident was over for a day",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_incident_for_a_ticket_and_a_store_of_another_version() {
    let store = Store::start().await;
    let client = store.client();
    put_incident(&client).await;
    let at = store.address();
    let look = |words: &str| {
        let mut command = epwatch(words);
        command.args(["--clickhouse", &at]);
        command
    };
    let why = ["--who", "Ada", "--why", "on it"];
    check_succeeds(look("incident ack open-1").args(why));

    let mut ticket = look("incident open-1 --markdown");
    let dashboard = "https://epwatch.example/incident?id={incident}";
    ticket.env("EPWATCH_DETECTOR__DASHBOARD_URL", dashboard);
    let text = check_succeeds(&mut ticket);
    let line = "\nApp camera (production); https://epwatch.example/incident?id=open-1\n";
    assert!(text.starts_with("# model 2 on SM8635"), "{text}");
    assert!(text.contains(line), "{text}");
    assert!(text.contains("ack by Ada: on it"), "{text}");
    for ages in [" ago", "judged"] {
        assert!(!text.contains(ages), "{text}");
    }
    let text = check_succeeds(&mut look("incident open-1"));
    assert!(text.contains(" ago"), "{text}");
    check_fails(&mut look("incident --markdown"), 2, "<ID>");

    let text = check_succeeds(&mut look("orders"));
    let row = text.lines().nth(1).unwrap();
    for word in ["ack", "model", "Ada", "on it", "open-1"] {
        assert!(row.contains(word), "{text}");
    }
    put_long_incident(&client).await;
    check_long_history(look);

    let orders = json(&mut look("orders"));
    assert_eq!(orders["orders"][0]["who"], "Ada");
    assert_eq!(json(&mut look("ledger"))["query"]["days"], 14);
    check_fails(&mut look("ledger --days 15"), 2, "1..=14");

    // Here a config names the same store, and no `serve` runs on the folder.
    let elsewhere = tempfile::tempdir().unwrap();
    let mut named = epwatch("status");
    named.env("EPWATCH_STORE__CLICKHOUSE", &at);
    let text = check_succeeds(named.current_dir(elsewhere.path()));
    let fact = format!("\nStore  {at} answers. Each collector has its WAL on its own /metrics.");
    assert!(text.contains(&fact), "{text}");

    // The store of a newer program can be read as long as it has this program's views.
    let newer = "INSERT INTO schema_migrations (series, version, checksum) \
        SELECT any(series), 999, 'x' FROM schema_migrations";
    client.query(newer).execute().await.unwrap();
    check_succeeds(&mut look("incident"));
    let gone = client.query("DROP VIEW store_progress_v1");
    gone.execute().await.unwrap();
    for words in ["status", "incident", "health", "orders"] {
        check_fails(&mut look(words), 3, "another version of epwatch");
    }
    store.engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_without_our_tables_is_of_another_schema() {
    let store = Store::without_schema().await;
    let client = store.engine.client("");
    let made = client
        .query("CREATE DATABASE IF NOT EXISTS epwatch")
        .execute()
        .await;
    made.unwrap();
    check_all_fail(&store.address(), "`epwatch migrate --dry-run` lists");
    store.engine.stop().await;
}

/// Starts a `serve` whose WAL takes reports only with this much free space on its volume.
fn serve(dir: &std::path::Path, min_free: &str) -> (Running, Value) {
    let config = dir.join("epwatch.toml");
    let sha256 = epwatch_proto::hex(&Sha256::digest(KEY));
    let text = format!(
        "[detector]\nwindow = \"2h\"\n[collector.wal]\nmin_free_bytes = {min_free:?}\n\
         [collector.batch]\nperiod = \"100ms\"\n\
         [[collector.keys]]\nsha256 = {sha256:?}\napp = \"look\"\nkind = \"own\"\n"
    );
    std::fs::write(&config, text).unwrap();
    let words = format!("serve --config {}", config.display());
    let mut server = server(&words, &dir.join("data"));
    server.env("EPWATCH_LOG", "error,epwatch_collector::report_path=debug");
    let log = std::fs::File::create(dir.join("log")).unwrap();
    Running::start(server.stderr(log))
}

fn at(dir: &std::path::Path, words: &str) -> Command {
    let mut command = epwatch(words);
    command.arg("--data-dir").arg(dir.join("data"));
    command
}

/// Returns the status of a part from a page's JSON.
fn fact(document: &Value, part: &str) -> (bool, String) {
    let facts = document["facts"].as_array().unwrap();
    let fact = facts.iter().find(|fact| fact["part"] == part);
    let fact = fact.unwrap_or_else(|| panic!("{part}: {document:#}"));
    let text = fact["text"].as_str().unwrap().to_owned();
    (fact["is_fine"].as_bool().unwrap(), text)
}

/// Sends one report with failures, and returns the id that the SDK's `explain()` prints.
fn send_a_report(endpoint: &str, folder: &std::path::Path) -> String {
    let config = SdkConfig::builder("look", endpoint, KEY, folder).with_consent(true);
    let watch = Watch::start(config.build().unwrap()).unwrap();
    let placement = Placement::unavailable(vec![], ReasonCode::AssignmentApiUnavailable);
    let model = ModelInfo::new("segmenter", "3").unwrap();
    let session = watch.simulated_session(model, placement, SessionOptions::default());
    session.run(|| thread::sleep(Duration::from_micros(100)));
    for _ in 0..3 {
        session.recorder().record_error(11);
    }
    for _ in 0..2 {
        let refiner = ModelInfo::new("refiner", "4").unwrap();
        let message = "Load model from refiner.onnx failed: File doesn't exist";
        watch.attach(refiner, None).failed(3, message);
    }
    watch.flush(Duration::from_secs(60)).unwrap();
    let explained = watch.explain();
    let id = explained.installation.clone().unwrap();
    assert!(
        explained
            .to_string()
            .contains(&format!("installation: {id}\n"))
    );
    id
}

/// Checks that a device's page has the failures of `send_a_report`.
#[track_caller]
fn check_failures(device: &Value, text: &str) {
    assert_eq!(device["left_out"], serde_json::json!([]), "{device:#}");
    let (failure, error) = (&device["start_failures"][0], &device["run_errors"][0]);
    let expected = [
        (failure, "model", Value::from("refiner")),
        (failure, "version", "4".into()),
        (failure, "phase", "session_creation".into()),
        (failure, "ort_status", 3.into()),
        (failure, "failures", 2.into()),
        (error, "model", "segmenter".into()),
        (error, "version", "3".into()),
        (error, "ort_status", 11.into()),
        (error, "errors", 3.into()),
    ];
    for (row, key, value) in expected {
        assert_eq!(row[key], value, "{key}: {device:#}");
    }
    let (_, text) = text
        .split_once("\nSessions that could not be made:\n")
        .unwrap();
    let (sessions, runs) = text.split_once("\nRuns that failed:\n").unwrap();
    assert!(sessions.contains("\nrefiner  4        2      "), "{text}");
    assert!(sessions.contains("  3       Load model from "), "{text}");
    assert!(sessions.contains(" File doesn't exist"), "{text}");
    assert!(runs.contains("\nsegmenter  3        3      "), "{text}");
    assert!(runs.contains("  11\n"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn status_and_health_have_the_wal_and_a_device_is_found_by_the_id_that_it_prints() {
    let dir = tempfile::tempdir().unwrap();
    let (running, addresses) = serve(dir.path(), "1KiB");
    let text = check_succeeds(&mut at(dir.path(), "status"));
    for part in [
        "\nWAL       Takes reports. ",
        // The command has no config file, so these values come from the running detector.
        "\nDetector  Judges a window of 2h every 1h.",
    ] {
        assert!(text.contains(part), "{text}");
    }
    for words in ["status", "show app model", "health"] {
        let text = check_succeeds(&mut at(dir.path(), words));
        assert_eq!(text.matches("s judged yet").count(), 1, "{words}: {text}");
    }
    let health = json(&mut at(dir.path(), "health"));
    assert!(fact(&health, "WAL").0, "{health:#}");
    let page = format!("http://{}/health.json", addresses["page"].as_str().unwrap());
    // The store's status is only known once the writer has written to it.
    until("each part works", async || {
        let shown = get(&page).await.unwrap();
        let shown: Value = serde_json::from_str(&shown.text).unwrap();
        let parts = ["Collector", "WAL", "Store", "Detector"];
        parts.iter().all(|part| fact(&shown, part).0)
    })
    .await;

    let endpoint = format!("http://{}", addresses["collector"].as_str().unwrap());
    let id = send_a_report(&endpoint, &dir.path().join("device"));
    until("the report is stored", async || {
        at(dir.path(), "devices --latest")
            .output()
            .unwrap()
            .status
            .success()
    })
    .await;
    let device = json(at(dir.path(), "devices").arg(&id));
    assert_eq!(device["installation"]["id"], *id, "{device:#}");
    let text = check_succeeds(at(dir.path(), "devices").arg(&id));
    check_failures(&device, &text);
    // The report does not have the plugin's version.
    let runtime = device["installation"]["runtime"].as_str().unwrap();
    assert!(!runtime.contains('/'), "{device:#}");

    // The next `serve` on the folder writes its own address as soon as it has the lock.
    let data = dir.path().join("data");
    assert!(data.join("metrics.address").exists());
    let lock = std::fs::File::open(data.join("lock")).unwrap();
    let pid = running.0.id().to_string();
    let sent = Command::new("kill").arg(&pid).status().unwrap();
    assert!(sent.success());
    let began = std::time::Instant::now();
    while lock.try_lock().is_err() {
        assert!(
            began.elapsed() < epwatch_test_support::DEADLINE,
            "it still has the folder"
        );
        thread::yield_now();
    }
    assert!(!data.join("metrics.address").exists());
    drop(running);
    check_report_path(
        &std::fs::read_to_string(dir.path().join("log")).unwrap(),
        &id,
    );
}

/// Words of the log lines that a report causes on its way through a collector.
const REPORT_PATH: [&[&str]; 4] = [
    &[
        "upload{",
        "reports=1",
        "reports are validated",
        "accepted=1",
    ],
    &["a group of reports is on disk", "from=", "end="],
    &["upload{", "reports are on disk", "group_end="],
    &[
        "batch{from=",
        "end=",
        "rows are stored",
        "table=\"reports\" rows=1",
    ],
];

/// Checks the log lines by which CONTRIBUTING.md follows a report. None of them names its device.
#[track_caller]
fn check_report_path(log: &str, installation: &str) {
    for words in REPORT_PATH {
        let has_all = |line: &str| words.iter().all(|word| line.contains(word));
        assert!(log.lines().any(has_all), "no line with {words:?}: {log}");
    }
    assert!(!log.contains(installation), "{log}");
}

/// The health page does not show the config but what really happens.
#[tokio::test(flavor = "multi_thread")]
async fn a_wal_that_refuses_reports_is_no_fine_one() {
    let dir = tempfile::tempdir().unwrap();
    let (_running, addresses) = serve(dir.path(), "8000000GiB");
    let text = check_succeeds(&mut at(dir.path(), "status"));
    assert!(text.contains("\nWAL       LOOK: Refuses reports"), "{text}");
    let text = check_succeeds(&mut at(dir.path(), "health"));
    assert!(text.starts_with("Look at: "), "{text}");
    let page = format!("http://{}/health.json", addresses["page"].as_str().unwrap());
    let shown = get(&page).await.unwrap();
    let shown: Value = serde_json::from_str(&shown.text).unwrap();
    let (is_fine, text) = fact(&shown, "WAL");
    assert!(!is_fine && text.starts_with("Refuses reports"), "{text}");
}
