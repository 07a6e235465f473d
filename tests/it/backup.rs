//! `epwatch store backup` and `restore`: each report acknowledged before a backup is restored, once and in every view,
//! and no file is overwritten.

use std::{
    collections::HashSet,
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Child, Command, Stdio},
    time::SystemTime,
};

use clickhouse::Client;
use epwatch_collector::schema;
use epwatch_proto::{InstallationId, Placement, ReasonCode, SessionOptions};
use epwatch_sdk::{ModelInfo, SdkConfig, Watch, simulation::simulated_device};
use epwatch_store::StoreTarget;
use epwatch_test_support::{DEADLINE, until};
use serde_json::Value;

use crate::support::{Running, check_fails, epwatch, get, json, server};

/// A `serve` with buckets of a second.
pub(crate) struct Serve {
    _running: Running,
    collector: String,
    store: String,
}

impl Serve {
    pub(crate) fn start(data_dir: &Path, batch_period: &str) -> Self {
        let mut serve = server("serve", data_dir);
        serve
            .env("EPWATCH_COLLECTOR__BATCH__PERIOD", batch_period)
            .env("EPWATCH_COLLECTOR__ROLLUP__BUCKET", "1s")
            .env("EPWATCH_LOG", "warn");
        let (running, addresses) = Running::start(&mut serve);
        let text = |name: &str| addresses[name].as_str().unwrap().to_owned();
        Self {
            _running: running,
            collector: text("collector"),
            store: text("store"),
        }
    }

    pub(crate) fn client(&self) -> Client {
        let target = StoreTarget::parse(&self.store, schema::DATABASE).unwrap();
        epwatch_store::client(&target)
    }

    pub(crate) async fn number(&self, sql: &str) -> u64 {
        let sql = format!("SELECT toUInt64(assumeNotNull(({sql})))");
        self.client().query(&sql).fetch_one().await.unwrap()
    }

    /// Returns the keys of the reports that count.
    async fn keys(&self) -> Vec<String> {
        let sql = "SELECT concat(hex(installation), '-', toString(stream_id), '-', toString(sequence)) \
                   FROM counted_reports_v1";
        self.client().query(sql).fetch_all().await.unwrap()
    }

    /// Starts a load.
    pub(crate) fn load(&self, words: &str) -> Child {
        let mut load = epwatch(&format!(
            "load --json --endpoint http://{} {words}",
            self.collector
        ));
        load.stdout(Stdio::piped()).spawn().unwrap()
    }
}

/// Waits for the end of a load, and returns the number of its acknowledged reports.
pub(crate) fn acked(load: Child) -> u64 {
    let output = load.wait_with_output().unwrap();
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    document["acked"].as_u64().unwrap()
}

fn store(words: &str) -> Command {
    let mut command = epwatch(&format!("store {words}"));
    command.env("EPWATCH_LOG", "warn");
    command
}

/// Backs up or restores a data folder: `command` is `backup` or `restore`.
fn copy(command: &str, backup: &Path, data_dir: &Path) -> Value {
    let (backup, data_dir) = (backup.display(), data_dir.display());
    json(&mut store(&format!(
        "{command} {backup} --data-dir {data_dir}"
    )))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_under_load_is_saved_and_counts_the_same_when_restored() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let serve = Serve::start(&at("old"), "100ms");
    assert!(acked(serve.load("--rate 200 --duration 2s --batch 10")) >= 400);
    until("the first load is in the store", || async {
        serve.keys().await.len() >= 400
    })
    .await;
    // Deletes a device with reports in the store, as another collector does it.
    let forget = "INSERT INTO hidden_installations (installation, tombstoned_at) SELECT installation, now64(3) FROM reports \
                  ORDER BY installation LIMIT 1";
    serve.client().query(forget).execute().await.unwrap();
    let before: HashSet<String> = serve.keys().await.into_iter().collect();
    assert!(before.len() < 400);

    let second = serve.load("--rate 300 --duration 6s --batch 5");
    let n_before = before.len();
    until("the second load is on its way", || async {
        serve.keys().await.len() > n_before + 100
    })
    .await;
    let saved = copy("backup", &at("backup"), &at("old"));
    assert_eq!(saved["database"], "epwatch", "{saved}");
    let sent = acked(second);
    until("all reports are in the store", || async {
        serve
            .number("SELECT uniqExact(installation, stream_id, sequence) FROM report_copies")
            .await
            >= 400 + sent
            && serve.number("SELECT count() FROM report_copies").await
                == serve.number("SELECT count() FROM reports").await
    })
    .await;
    let all: HashSet<String> = serve.keys().await.into_iter().collect();
    drop(serve);

    let restored = copy("restore", &at("backup"), &at("new"));
    assert_eq!(restored["wal"], saved["wal"]);
    assert_eq!(restored["taken_at_ms"], saved["taken_at_ms"]);

    let serve = Serve::start(&at("new"), "100ms");
    until("the log is replayed and its buckets are closed", || async {
        // This `serve` receives no reports, so its own progress closes all buckets.
        let open = serve.number(
            "SELECT countIf(bucket >= (SELECT max(closed_until) FROM rollup_watermark)) FROM reports",
        );
        let copies = serve.number("SELECT count() FROM report_copies");
        let rows = serve.number("SELECT count() FROM reports");
        open.await == 0 && copies.await == rows.await
    })
    .await;
    let keys = serve.keys().await;
    let found: HashSet<String> = keys.iter().cloned().collect();
    assert_eq!(keys.len(), found.len(), "a report counts twice");
    assert!(found.is_superset(&before), "a report is missing");
    assert!(
        found.is_subset(&all),
        "a report nobody sent, or a deletion is gone"
    );
    // Roll-ups cover only the restored reports. The slice of the deleted installation is left out: a row inserted by
    // hand, as in this test, rebuilds no closed bucket.
    let other = "(SELECT any(epwatch_slice(installation)) FROM hidden_installations)";
    let raw =
        format!("SELECT sum(n) FROM device_series_v1 WHERE epwatch_slice(installation) != {other}");
    let summed = format!("SELECT sum(n) FROM cohort_buckets_v1 WHERE slice != {other}");
    let (raw, summed) = (serve.number(&raw).await, serve.number(&summed).await);
    assert!(raw > 0);
    assert_eq!(raw, summed);
    assert_eq!(
        serve
            .number("SELECT count() FROM hidden_installations FINAL")
            .await,
        1
    );
    // The restored `serve` takes reports.
    let more = acked(serve.load("--rate 100 --duration 1s"));
    let expected = keys.len() as u64 + more;
    until("new reports are in the restored store", || async {
        serve.keys().await.len() as u64 == expected
    })
    .await;
}

/// The WAL has records that the store lacks.
#[tokio::test(flavor = "multi_thread")]
async fn reports_that_only_the_log_had_are_replayed_after_a_restore() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let serve = Serve::start(&at("old"), "60s");
    let sent = acked(serve.load("--rate 200 --duration 1s --batch 10"));
    assert!(sent >= 200);
    let backup = at("backup").display().to_string();
    json(&mut store(&format!(
        "backup {backup} --clickhouse {}",
        serve.store
    )));
    drop(serve);

    // A stopped `serve` can be saved, and so can a restored one.
    copy("restore", &at("backup"), &at("new"));
    copy("backup", &at("backup-2"), &at("new"));
    copy("restore", &at("backup-2"), &at("new-2"));
    let serve = Serve::start(&at("new-2"), "100ms");
    until("the log is replayed", || async {
        serve.keys().await.len() as u64 == sent
    })
    .await;
    let rows = serve.number("SELECT count() FROM reports").await;
    assert_eq!(rows, sent);
}

#[test]
fn what_would_be_written_over_or_cannot_be_saved_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).display().to_string();
    std::fs::create_dir(at("there")).unwrap();
    std::fs::write(at("there/file"), "mine").unwrap();
    let (there, none, backup, new) = (at("there"), at("none"), at("b"), at("new"));
    for (words, code, expected) in [
        (format!("backup {there} --data-dir {none}"), 2, "exists"),
        (
            format!("backup {backup} --data-dir {there}"),
            2,
            "no embedded store",
        ),
        (
            format!("backup {backup} --clickhouse http://127.0.0.1:9"),
            2,
            "BACKUP of its own",
        ),
        (
            format!("restore {there} --data-dir {there}"),
            2,
            "not empty",
        ),
        (
            format!("restore {there} --data-dir {new}"),
            1,
            "not a whole backup",
        ),
        (
            format!("backup {backup} --keep 3 --data-dir {none}"),
            2,
            "--keep",
        ),
        (format!("backup {backup} --into {there}"), 2, "--into"),
    ] {
        check_fails(&mut store(&words), code, expected);
    }
    assert!(!dir.path().join("new").exists());
    assert!(!dir.path().join("b").exists());
    assert_eq!(std::fs::read_to_string(at("there/file")).unwrap(), "mine");
}

/// Returns a device with its own folder and one report in the store.
fn device(collector: &str, dir: &Path) -> (Watch, InstallationId) {
    let config = SdkConfig::builder(
        "com.example.camera",
        format!("http://{collector}"),
        "demo-key",
        dir,
    )
    .with_consent(true)
    .with_device(simulated_device("SM8650").into());
    let watch = Watch::start(config.build().unwrap()).unwrap();
    let placement = Placement::unavailable(vec![], ReasonCode::AssignmentApiUnavailable);
    let model = ModelInfo::new("detector", "7").unwrap();
    let session = watch.simulated_session(model, placement, SessionOptions::default());
    session.run(|| ());
    watch.flush(DEADLINE).unwrap();
    let secret = std::fs::read(dir.join("secret")).unwrap();
    (watch, InstallationId::from_secret(&secret))
}

/// The device got an answer and does not request the deletion again. So the restore of an earlier backup must carry it
/// out.
#[tokio::test(flavor = "multi_thread")]
async fn a_deletion_after_the_backup_is_carried_out_by_its_restore() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let serve = Serve::start(&at("old"), "100ms");
    let (leaving, deleted) = device(&serve.collector, &at("leaving"));
    let (_staying, kept) = device(&serve.collector, &at("staying"));
    let counted = "SELECT uniqExact(installation) FROM counted_reports_v1";
    until("both devices count", || async {
        serve.number(counted).await == 2
    })
    .await;
    copy("backup", &at("backup"), &at("old"));

    leaving.set_consent(false);
    let hidden = "SELECT count() FROM deletions_v1 WHERE toYear(hidden_at) > 1970";
    until("the deletion is carried out", || async {
        serve.number(hidden).await == 1
    })
    .await;
    let saved = at("saved");
    std::fs::copy(at("old/epwatch-wal/deletions"), &saved).unwrap();
    drop(serve);

    let (backup, new) = (at("backup"), at("new"));
    let words = format!("restore {} --data-dir {}", backup.display(), new.display());
    let restored = json(store(&words).arg("--deletions").arg(&saved));
    assert_eq!(restored["deletions"], 1);
    let serve = Serve::start(&new, "100ms");
    until("the restored deletion is carried out", || async {
        serve.number(hidden).await == 1
    })
    .await;
    let tombstoned = format!(
        "SELECT count() FROM deletions_v1 WHERE installation = unhex('{}')",
        deleted.to_hex()
    );
    assert_eq!(serve.number(&tombstoned).await, 1);
    // The backup's WAL may still be replaying a report of the other device.
    let kept = [kept.to_hex().to_uppercase()];
    let shown = "SELECT DISTINCT hex(installation) FROM counted_reports_v1";
    until("the other device alone counts", || async {
        let shown = serve.client().query(shown).fetch_all::<String>().await;
        shown.unwrap() == kept
    })
    .await;
}

/// A timer's backups are named by their time, only the latest are kept, and the metrics have their age.
#[tokio::test(flavor = "multi_thread")]
async fn backups_of_a_timer_replace_each_other_and_their_age_is_watched() {
    let dir = tempfile::tempdir().unwrap();
    let (data, backups) = (dir.path().join("data"), dir.path().join("backups"));
    std::fs::create_dir(&backups).unwrap();
    let (_running, addresses) = Running::start(&mut server("serve", &data));
    let page = format!("http://{}/metrics", addresses["http"].as_str().unwrap());
    let latest = async || {
        let text = get(&page).await.unwrap().text;
        let name = "epwatch_store_last_backup_timestamp_seconds ";
        let mut values = text.lines().filter_map(|line| line.strip_prefix(name));
        values.next().unwrap().parse::<u64>().unwrap()
    };
    assert_eq!(latest().await, 0);
    let words = format!(
        "backup --into {} --keep 1 --data-dir {}",
        backups.display(),
        data.display()
    );
    let first = json(&mut store(&words));
    // Names have seconds.
    let taken_at = first["taken_at_ms"].as_u64().unwrap() / 1_000;
    until("the next second", async || {
        SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs() > taken_at
    })
    .await;
    let second = json(&mut store(&words));
    assert_eq!(second["removed"], serde_json::json!([first["backup"]]));
    let left: Vec<_> = std::fs::read_dir(&backups)
        .unwrap()
        .flatten()
        .map(|entry| entry.path())
        .collect();
    assert_eq!(left, [Path::new(second["backup"].as_str().unwrap())]);
    let taken_at = second["taken_at_ms"].as_u64().unwrap() / 1_000;
    assert_eq!(latest().await, taken_at);
    // With the systemd units root makes backups, while the server runs as another user.
    let noted = std::fs::metadata(data.join("last-backup")).unwrap();
    assert_eq!(noted.permissions().mode() & 0o777, 0o644);

    let wrong = dir.path().join("wrong");
    std::fs::write(&wrong, "no deletions").unwrap();
    let (from, new) = (left[0].display(), dir.path().join("new"));
    let restore = format!("restore {from} --data-dir {} --deletions", new.display());
    check_fails(store(&restore).arg(&wrong), 3, "holds no deletion");
    assert!(!new.exists());
    let saved = data.join("epwatch-wal/deletions");
    let restored = json(store(&restore).arg(&saved));
    assert_eq!(restored["deletions"], 0);
}
