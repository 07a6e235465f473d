//! The loss ledger balances each day and in total, for any sequence of reports. It is checked against a model of
//! devices with counts of their own.

use std::collections::BTreeMap;
use std::time::Duration;

use clickhouse::Row;
use epwatch_server::Period;
use epwatch_test_support::until;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use serde::{Deserialize, Serialize};

use crate::support::{Store, config, start_with};

const DAY_MS: i64 = 86_400_000;
const N_DAYS: i64 = 6;

/// An event of one device.
#[derive(Debug, Clone, Copy)]
enum Step {
    /// The device seals a report with this many runs, which waits in the spool.
    Seal(u64),
    /// The device sends the waiting reports, each through this many collectors.
    Send { copies: u64 },
    /// The device drops its oldest waiting report, for this reason.
    Drop(&'static str),
    /// A report is lost without being counted.
    Lose,
    /// This many runs are dropped because another thread kept the recorder busy.
    Contend(u64),
    /// The process starts again; this many runs were not sealed.
    Restart(u64),
    /// A day passes.
    Sleep,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (1..50_u64).prop_map(Step::Seal),
        4 => (1..4_u64).prop_map(|copies| Step::Send { copies }),
        1 => prop_oneof![Just("spool_full"), Just("spool_age"), Just("refused")].prop_map(Step::Drop),
        1 => Just(Step::Lose),
        1 => (1..9_u64).prop_map(Step::Contend),
        1 => (0..5_u64).prop_map(Step::Restart),
        3 => Just(Step::Sleep),
    ]
}

/// The columns of a report that the ledger reads.
#[derive(Debug, Clone, Default, PartialEq, Row, Serialize)]
struct ReportRow {
    installation: [u8; 16],
    stream_id: u64,
    sequence: u64,
    received_at: i64,
    collector_id: u64,
    wal_offset: u64,
    bucket: u32,
    app_id: String,
    environment: String,
    ended_stream_id: Vec<u64>,
    ended_last_sequence: Vec<Option<u64>>,
    ended_unsealed_runs: Vec<Option<u64>>,
    series_n: Vec<u64>,
    health_runs_recorded: u64,
    health_dropped_reports: Vec<(String, u64)>,
    health_dropped_runs: Vec<(String, u64)>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Row, Deserialize)]
struct Line {
    day: u16,
    recorded: i64,
    stored: i64,
    dropped: i64,
    refused: i64,
    missing: i64,
    duplicate: i64,
    /// Dropped reports or runs, in the order of the reasons.
    dropped_by_reason: Vec<(String, i64)>,
}

impl Line {
    fn drop(&mut self, reason: &str, n: i64) {
        self.dropped += n;
        let reasons = &mut self.dropped_by_reason;
        match reasons.iter_mut().find(|(known, _)| known == reason) {
            Some((_, sum)) => *sum += n,
            None if n > 0 => reasons.push((reason.to_owned(), n)),
            None => {}
        }
        reasons.sort();
    }
}

/// Cumulative counters, as far as received reports contained them.
#[derive(Debug, Clone, Default)]
struct Known {
    last_sequence: u64,
    runs: u64,
    unsealed: u64,
    dropped: BTreeMap<&'static str, (u64, u64)>,
}

#[derive(Debug, Default)]
struct Device {
    number: u8,
    stream: u64,
    sequence: u64,
    runs: u64,
    dropped: BTreeMap<&'static str, (u64, u64)>,
    ended: Vec<(u64, u64, u64)>,
    waiting: Vec<ReportRow>,
    /// Reports that the device dropped, by the stream that counts them.
    given_up: BTreeMap<u64, u64>,
    day: i64,
}

impl Device {
    fn give_up(&mut self, reason: &'static str, reports: u64, runs: u64) {
        let given_up = self.dropped.entry(reason).or_default();
        given_up.0 += reports;
        given_up.1 += runs;
        *self.given_up.entry(self.stream).or_default() += reports;
    }

    fn seal(&mut self, runs: u64) {
        self.sequence += 1;
        self.runs += runs;
        let of = |which: fn(&(u64, u64)) -> u64| {
            let given_up = self.dropped.iter();
            given_up
                .map(|(reason, n)| ((*reason).to_owned(), which(n)))
                .collect()
        };
        self.waiting.push(ReportRow {
            installation: [self.number; 16],
            stream_id: self.stream,
            sequence: self.sequence,
            app_id: format!("app-{}", self.number % 2),
            environment: "production".into(),
            ended_stream_id: self.ended.iter().map(|e| e.0).collect(),
            ended_last_sequence: self.ended.iter().map(|e| Some(e.1)).collect(),
            ended_unsealed_runs: self.ended.iter().map(|e| Some(e.2)).collect(),
            series_n: vec![runs],
            health_runs_recorded: self.runs,
            health_dropped_reports: of(|n| n.0),
            health_dropped_runs: of(|n| n.1),
            ..ReportRow::default()
        });
    }
}

/// The expected lines by app and day, in reports and in runs.
#[derive(Debug, Default)]
struct Expected {
    reports: BTreeMap<(String, i64), Line>,
    runs: BTreeMap<(String, i64), Line>,
    known: BTreeMap<(u8, u64), Known>,
}

impl Expected {
    fn receive(&mut self, report: &ReportRow, day: i64, copies: u64) {
        let at = (report.app_id.clone(), day);
        let reports = self.reports.entry(at.clone()).or_default();
        let runs = self.runs.entry(at).or_default();
        let device = report.installation[0];
        let n_runs = report.series_n[0];
        reports.stored += 1;
        runs.stored += signed(n_runs);
        reports.duplicate += signed(copies - 1);
        runs.duplicate += signed((copies - 1) * n_runs);

        let known = self.known.entry((device, report.stream_id)).or_default();
        reports.recorded += signed(grow(&mut known.last_sequence, report.sequence));
        runs.recorded += signed(grow(&mut known.runs, report.health_runs_recorded));
        let both = report
            .health_dropped_reports
            .iter()
            .zip(&report.health_dropped_runs);
        for ((reason, n_reports), (_, n_runs)) in both {
            let key = ["spool_full", "spool_age", "refused", "contended"]
                .into_iter()
                .find(|known| known == reason)
                .unwrap();
            let before = known.dropped.entry(key).or_default();
            let (more, more_runs) = (
                signed(grow(&mut before.0, *n_reports)),
                signed(grow(&mut before.1, *n_runs)),
            );
            let column = |line: &mut Line, n| {
                if key == "refused" {
                    line.refused += n;
                } else {
                    line.drop(key, n);
                }
            };
            column(reports, more);
            column(runs, more_runs);
            if key == "contended" {
                runs.recorded += more_runs;
            }
        }
        let ended = report
            .ended_stream_id
            .iter()
            .zip(&report.ended_last_sequence);
        for ((stream, last), unsealed) in ended.zip(&report.ended_unsealed_runs) {
            let known = self.known.entry((device, *stream)).or_default();
            reports.recorded += signed(grow(&mut known.last_sequence, last.unwrap()));
            let more = signed(grow(&mut known.unsealed, unsealed.unwrap()));
            runs.recorded += more;
            runs.drop("unsealed", more);
        }
    }

    /// Computes `missing`: recorded on the device and in no other column.
    fn close(&mut self) {
        for line in self.reports.values_mut().chain(self.runs.values_mut()) {
            line.missing = line.recorded - line.stored - line.dropped - line.refused;
        }
    }
}

/// Raises a counter to its value that is now known; returns the difference.
fn grow(counter: &mut u64, to: u64) -> u64 {
    let more = to.saturating_sub(*counter);
    *counter += more;
    more
}

fn signed(n: u64) -> i64 {
    i64::try_from(n).unwrap()
}

/// The rows of a fleet, and the expected ledger for them.
struct Played {
    reports: Vec<ReportRow>,
    expected: Expected,
    /// Number of reports, by app, that were lost and are in no report's counters.
    missing: BTreeMap<String, i64>,
    given_up: BTreeMap<(u8, u64), u64>,
}

/// Plays the steps of all devices.
fn play(fleet: &[Vec<Step>], today_ms: i64) -> Played {
    let mut played = Played {
        reports: Vec::new(),
        expected: Expected::default(),
        missing: BTreeMap::new(),
        given_up: BTreeMap::new(),
    };
    let first_day = today_ms / DAY_MS - N_DAYS;
    let mut events: Vec<(i64, ReportRow, u64)> = Vec::new();
    for (number, steps) in fleet.iter().enumerate() {
        let number = u8::try_from(number).unwrap();
        let mut device = Device {
            number,
            stream: 1,
            ..Device::default()
        };
        let app = format!("app-{}", number % 2);
        for step in steps
            .iter()
            .copied()
            .chain([Step::Seal(1), Step::Send { copies: 1 }])
        {
            match step {
                Step::Seal(runs) => device.seal(runs),
                Step::Send { copies } => {
                    for report in std::mem::take(&mut device.waiting) {
                        events.push((device.day, report, copies));
                    }
                }
                Step::Drop(reason) if !device.waiting.is_empty() => {
                    let gone = device.waiting.remove(0);
                    device.give_up(reason, 1, gone.series_n[0]);
                }
                Step::Lose => {
                    if device.waiting.pop().is_some() {
                        *played.missing.entry(app.clone()).or_default() += 1;
                    }
                }
                Step::Contend(runs) => device.give_up("contended", 0, runs),
                Step::Restart(unsealed) => {
                    let ended = (device.stream, device.sequence, unsealed);
                    device.ended.push(ended);
                    device.stream += 1;
                    device.sequence = 0;
                    device.runs = 0;
                    device.dropped.clear();
                }
                Step::Sleep => device.day = (device.day + 1).min(N_DAYS - 1),
                Step::Drop(_) => {}
            }
        }
        let given_up = device.given_up.iter();
        played
            .given_up
            .extend(given_up.map(|(stream, n)| ((number, *stream), *n)));
    }
    // The last report has the final counters, so each device ends on the same day.
    events.sort_by_key(|(day, report, _)| {
        (*day, report.installation, report.stream_id, report.sequence)
    });
    let mut offset = 0;
    for (day, report, copies) in events {
        played.expected.receive(&report, first_day + day, copies);
        for copy in 0..copies {
            offset += 1;
            let received_at = (first_day + day) * DAY_MS + signed(offset) * 10 + signed(copy);
            let row = ReportRow {
                received_at,
                bucket: u32::try_from(received_at / 1000).unwrap(),
                collector_id: 1 + copy,
                wal_offset: offset,
                ..report.clone()
            };
            played.reports.push(row);
        }
    }
    played.expected.close();
    // Reports that were dropped after a stream's last report count as missing.
    for ((device, stream), n) in &played.given_up {
        let told = played.expected.known.get(&(*device, *stream));
        let told: u64 = told.map_or(0, |known| known.dropped.values().map(|n| n.0).sum());
        *played
            .missing
            .entry(format!("app-{}", device % 2))
            .or_default() += signed(n - told);
    }
    played
}

async fn check_lines(store: &Store, view: &str, expected: &BTreeMap<(String, i64), Line>) {
    let mut found = BTreeMap::new();
    for app in ["app-0", "app-1"] {
        let sql = format!(
            "SELECT day, recorded, stored, dropped, refused, missing, duplicate, dropped_by_reason \
             FROM {view} WHERE app_id = '{app}' ORDER BY day"
        );
        let lines = store.client.query(&sql).fetch_all::<Line>().await.unwrap();
        for mut line in lines {
            line.dropped_by_reason.sort();
            let day = i64::from(line.day);
            found.insert((app.to_owned(), day), Line { day: 0, ..line });
        }
    }
    assert_eq!(&found, expected, "{view}");
    for (at, line) in &found {
        let sum = line.stored + line.dropped + line.refused + line.missing;
        assert_eq!(line.recorded, sum, "{view} does not close on {at:?}");
    }
}

async fn insert<T>(store: &Store, table: &str, rows: &[T])
where
    T: clickhouse::RowOwned + clickhouse::RowWrite + for<'a> Row<Value<'a> = T>,
{
    // The columns that the ledger does not read have their defaults.
    let client = store.client.clone().with_validation(false);
    let mut insert = client.insert::<T>(table).await.unwrap();
    for row in rows {
        insert.write(row).await.unwrap();
    }
    insert.end().await.unwrap();
}

async fn insert_reports(store: &Store, rows: &[ReportRow]) {
    insert(store, "reports", rows).await;
    let key = "installation, stream_id, sequence, received_at, collector_id, wal_offset, bucket";
    let copies = format!("INSERT INTO report_copies ({key}) SELECT {key} FROM reports");
    store.run(&copies).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_ledger_closes_every_day_and_in_total_whatever_happens_to_reports() {
    let store = Store::start().await;
    let now_ms = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap();
    let today_ms = i64::try_from(now_ms.as_millis()).unwrap();
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[7; 32]);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    let fleets = prop::collection::vec(prop::collection::vec(step(), 0..40), 1..8);
    for _case in 0..12 {
        let fleet = fleets.new_tree(&mut runner).unwrap().current();
        let played = play(&fleet, today_ms);
        for table in ["report_copies", "reports"] {
            store.run(&format!("TRUNCATE TABLE {table}")).await;
        }
        insert_reports(&store, &played.reports).await;
        check_lines(&store, "loss_ledger_daily_v1", &played.expected.reports).await;
        check_lines(&store, "loss_ledger_runs_daily_v1", &played.expected.runs).await;
        // In total, `missing` is exactly the number of reports that were lost without being counted.
        for app in ["app-0", "app-1"] {
            let sql = format!(
                "SELECT toUInt64(sum(missing)) AS n FROM loss_ledger_v1 WHERE app_id = '{app}'"
            );
            let missing = played.missing.get(app).copied().unwrap_or(0);
            assert_eq!(
                store.number(&sql).await,
                u64::try_from(missing).unwrap(),
                "{app}: {fleet:?}"
            );
        }
    }
    store.engine.stop().await;
}

/// A holder of a public key made up these counters. They are bounded, a real loss stays visible next to them, and the
/// installation with the largest counters is named.
#[tokio::test(flavor = "multi_thread")]
async fn made_up_counters_do_not_blind_the_ledger() {
    const DROPPED: u64 = 1_000_000_000_000;
    let store = Store::start().await;
    let now_ms = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap();
    let now_ms = signed(u64::try_from(now_ms.as_millis()).unwrap());
    let mut rows = Vec::new();
    let mut add = |row: ReportRow| {
        rows.push(ReportRow {
            received_at: now_ms,
            bucket: u32::try_from(now_ms / 1000).unwrap(),
            wal_offset: rows.len() as u64,
            app_id: "app-0".into(),
            environment: "production".into(),
            stream_id: 1,
            series_n: vec![7],
            ..row
        });
    };
    // 9 of 10 reports arrived.
    for sequence in [1, 2, 3, 4, 5, 6, 7, 8, 10] {
        add(ReportRow {
            installation: [1; 16],
            sequence,
            health_runs_recorded: 7 * sequence,
            ..ReportRow::default()
        });
    }
    let dropped = vec![("spool_full".to_owned(), DROPPED)];
    add(ReportRow {
        installation: [2; 16],
        sequence: 1 << 48,
        health_runs_recorded: 1 << 48,
        ..ReportRow::default()
    });
    let claims = |installation: u8| ReportRow {
        installation: [installation; 16],
        sequence: 1,
        health_runs_recorded: 7,
        health_dropped_reports: dropped.clone(),
        health_dropped_runs: dropped.clone(),
        ..ReportRow::default()
    };
    add(claims(3));
    add(claims(4));
    insert_reports(&store, &rows).await;
    // The last installation is beyond the quota of its app.
    store
        .run("ALTER TABLE reports UPDATE is_unproven = 1 WHERE installation = unhex(repeat('04', 16)) SETTINGS mutations_sync = 2")
        .await;
    let of = |what: &str, view: &str| format!("SELECT toUInt64({what}) AS n FROM {view}");
    for (what, view, expected) in [
        // A stream that is seen for the first time may have sent up to 2,000 reports that did not arrive.
        ("recorded", "loss_ledger_v1", 10 + 2_001 + 1),
        ("stored", "loss_ledger_v1", 9 + 1 + 1),
        ("dropped", "loss_ledger_v1", 2_001),
        ("implausible", "loss_ledger_v1", 2),
        ("unproven", "loss_ledger_v1", 1),
        (
            "sum(missing)",
            "installation_ledger_v1 WHERE installation = unhex(repeat('01', 16))",
            1,
        ),
        (
            "sum(dropped)",
            "loss_ledger_runs_daily_v1",
            7 + 2_000 * 1_000,
        ),
        ("sum(unproven)", "loss_ledger_runs_daily_v1", 7),
        (
            "sum(largest_reports)",
            "largest_in_ledger_v1 WHERE entry = 'dropped' AND largest_installation = unhex(repeat('03', 16))",
            2_001,
        ),
    ] {
        let sql = of(what, view);
        assert_eq!(store.number(&sql).await, expected, "{sql}");
    }
    // The operator's own machines are trusted, so their counters from a long time without a network count in full.
    store
        .run("ALTER TABLE reports UPDATE is_own = 1 WHERE installation = unhex(repeat('02', 16)) SETTINGS mutations_sync = 2")
        .await;
    let recorded = of("recorded", "loss_ledger_v1");
    assert_eq!(store.number(&recorded).await, 10 + (1 << 48) + 1);
    store.engine.stop().await;
}

#[derive(Debug, Row, Serialize)]
struct OutcomeRow {
    bucket: u32,
    app_id: String,
    environment: String,
    outcome: String,
    reports: u64,
}

/// The metrics show the reason of a loss. An unknown reason adds no label.
#[tokio::test(flavor = "multi_thread")]
async fn the_ledger_s_metrics_say_why() {
    let store = Store::start().await;
    let now_ms = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap();
    let received_at = signed(u64::try_from(now_ms.as_millis()).unwrap());
    let bucket = u32::try_from(received_at / 1000).unwrap();
    let mut device = Device {
        stream: 1,
        ..Device::default()
    };
    device.give_up("spool_full", 3, 30);
    device.give_up("eaten", 1, 10);
    device.give_up("stolen", 1, 10);
    device.sequence = 5;
    device.runs = 50;
    device.seal(7);
    let report = ReportRow {
        received_at,
        bucket,
        ..device.waiting.remove(0)
    };
    insert_reports(&store, &[report]).await;
    let answered = |outcome: &str, reports| OutcomeRow {
        bucket,
        app_id: "app-0".into(),
        environment: "production".into(),
        outcome: outcome.into(),
        reports,
    };
    let outcomes = [answered("refused_quota", 4), answered("eaten", 2)];
    insert(&store, "report_outcomes", &outcomes).await;

    let mut config = config(&store.dir.path().join("wal"));
    config.refresh = Period(Duration::from_millis(10));
    let collector = start_with(&store, config).await;
    let of = |unit: &str, entry: &str, reason: &str, n: u64| {
        // Midnight may pass while the test runs.
        let line = |day| {
            format!(
                "epwatch_collector_loss_ledger_{unit}_by_reason{{app=\"app-0\",environment=\"production\",\
                 day=\"{day}\",entry=\"{entry}\",reason=\"{reason}\"}} {n}"
            )
        };
        ["today", "yesterday"].map(line)
    };
    let expected = [
        of("reports", "dropped", "spool_full", 3),
        of("reports", "dropped", "other", 2),
        of("reports", "answered", "refused_quota", 4),
        of("reports", "answered", "other", 2),
        of("runs", "dropped", "spool_full", 30),
        of("runs", "dropped", "other", 20),
    ];
    let are_there = || {
        let page = collector.metrics().encode();
        let lines: Vec<&str> = page.lines().collect();
        let is_there = |either: &[String; 2]| either.iter().any(|l| lines.contains(&l.as_str()));
        expected.iter().all(is_there)
    };
    until("every reason is on the page", async || are_there()).await;
    let page = collector.metrics().encode();
    assert!(
        !page.contains("eaten") && !page.contains("stolen"),
        "{page}"
    );
    store.end(collector).await;
}

/// Devices count once a day, whatever the number of their reports and tests; a later reading replaces an earlier one.
#[tokio::test(flavor = "multi_thread")]
async fn failed_starts_self_tests_and_failed_runs_are_summed_by_day() {
    let store = Store::start().await;
    let report = |device: u8, sequence: u8, hash: &str, is_same: bool| {
        let columns =
            "installation, stream_id, sequence, received_at, collector_id, wal_offset, bucket";
        let key = format!(
            "unhex(repeat('0{device}', 16)), 1, {sequence}, now64(3), {device}, {sequence}, toStartOfSecond(now64(0))"
        );
        [
            format!("INSERT INTO report_copies ({columns}) SELECT {key}"),
            format!(
                "INSERT INTO reports ({columns}, app_id, environment, chipset, session_uid, session_model_id, \
                 session_model_version, self_test_session, self_test_input_id, self_test_npu_hash, self_test_cpu_hash, \
                 self_test_max_abs, self_test_cosine, self_test_top1_equal, self_test_error_code, self_test_first_off_output, \
                 start_failure_model_id, start_failure_model_version, start_failure_requested_eps, start_failure_phase, \
                 start_failure_reason, start_failure_ort_status, start_failure_count, start_failure_text, \
                 run_error_session, run_error_ort_status, run_error_count) \
                 SELECT {key}, 'app-0', 'production', 'SM8635', [7], ['m'], ['2'], [7], ['golden'], ['{hash}'], ['aa'], \
                 [0.5], [nan], [{is_same}], [0], [''], ['m'], ['2'], [['QNNExecutionProvider']], ['session_creation'], ['other'], \
                 [1], [3], ['failed'], [7], [11], [2]"
            ),
        ]
    };
    for statement in [report(1, 1, "aa", true), report(1, 2, "aa", true)].concat() {
        store.run(&statement).await;
    }
    let mut config = config(&store.dir.path().join("wal"));
    config.refresh = Period(Duration::from_millis(10));
    let collector = start_with(&store, config).await;
    let are = async |expected: [&str; 3]| {
        let tables = [
            ("start_failures_daily_v1", "failures, devices"),
            (
                "self_tests_daily_v1",
                "npu_hash, devices, devices_equal, devices_differ, devices_failed, worst_abs, worst_cosine, \
                 median_cosine",
            ),
            ("run_errors_daily_v1", "ort_status, errors, devices"),
        ];
        for ((table, columns), expected) in tables.into_iter().zip(expected) {
            let expected = expected.replace('\'', "''");
            let sql = format!(
                "SELECT toUInt64(toString(groupArray(row)) = '{expected}') AS n FROM (SELECT tuple({columns}) AS row \
                 FROM {table} WHERE app_id = 'app-0' AND model_id = 'm' AND model_version = '2' AND devices > 0 \
                 ORDER BY row)"
            );
            while store.number(&sql).await != 1 {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    };
    let timed = async |what: &str, expected| {
        let waited = tokio::time::timeout(Duration::from_secs(300), are(expected)).await;
        waited.unwrap_or_else(|_| panic!("{what}"));
    };
    timed(
        "one device",
        [
            "[(6,1)]",
            "[('',1,1,0,0,0.5,1,1),('aa',1,1,0,0,0.5,1,1)]",
            "[(11,4,1)]",
        ],
    )
    .await;
    for statement in report(2, 1, "bb", false) {
        store.run(&statement).await;
    }
    timed(
        "two devices",
        [
            "[(9,2)]",
            "[('',2,1,1,0,0.5,1,1),('aa',1,1,0,0,0.5,1,1),('bb',1,0,1,0,0.5,1,1)]",
            "[(11,6,2)]",
        ],
    )
    .await;
    store.end(collector).await;
}
