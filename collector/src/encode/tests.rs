//! Sends varied reports through the WAL into the embedded engine. `tests/written.txt` has the expected content of the
//! tables, column by column.

use std::sync::Arc;

use epwatch_engines::Engine;
use epwatch_proto::report::EndedStream;
use epwatch_proto::{
    BaselineAbsence, Baselines, DropReason, Phase, Placement, ReasonCode, Report, SendClock,
    Sequence, SessionUid, SparseHistogram, StreamId,
};
use epwatch_store::embedded::{ChildProgram, EmbeddedConfig, EmbeddedStore};
use epwatch_store::migrate;
use epwatch_store::native::encode::ColumnDef;

use super::*;
use crate::schema::{MIGRATIONS, Retention, single_server};
use crate::store::Sink;
use crate::wal::{Batch, Wal, WalOffset, WalOptions};
use crate::wal_record;
use epwatch_server::ManualClock;

/// A report with every field set, and a report with only the required fields.
pub(super) const FULL: &[u8] = include_bytes!("../../../tests/fixtures/wire/report_full.bin");
const MINIMAL: &[u8] = include_bytes!("../../../tests/fixtures/wire/report_minimal.bin");
const WRITTEN: &str = include_str!("tests/written.txt");

/// A time in the year 2096: the TTL would remove older rows one day.
const RECEIVED_US: u64 = 4_000_000_000_123_456;
const BUCKET: Duration = Duration::from_secs(3600);

fn full(sequence: u64) -> Report {
    let mut report = Report::parse(FULL).unwrap();
    report.key.sequence = Sequence::new(sequence).unwrap();
    report
}

/// A report with several sessions, one of them without any data, and with series of two of them.
fn many_sessions() -> Report {
    let mut report = full(43);
    let mut second = report.sessions[0].clone();
    second.uid = SessionUid::new(8).unwrap();
    second.model.id = "modèle".into();
    second.model.sha256 = None;
    second.requested_eps.clear();
    second.directive_id.clear();
    second.creation_us = None;
    second.placement.requested_eps = vec!["CPUExecutionProvider".into()];
    second.placement.exact = None;
    second.placement.macs_attributed = None;
    for ep in &mut second.placement.eps {
        ep.macs_share = None;
    }
    let mut third = second.clone();
    third.uid = SessionUid::new(9).unwrap();
    let requested = vec![
        "QNNExecutionProvider".into(),
        "XnnpackExecutionProvider".into(),
    ];
    third.placement = Placement::unavailable(requested, ReasonCode::NoEpDevice);
    third.placement.reasons.push(ReasonCode::Unknown);
    report.sessions.extend([second, third]);

    let mut cold = report.series[0].clone();
    cold.session_uid = SessionUid::new(9).unwrap();
    cold.stratum.phase = Phase::Cold;
    cold.stratum.shape_key = "1x3x224x224".into();
    let buckets = cold.histogram.buckets().collect::<Vec<_>>();
    let (indices, counts) = std::iter::once((0, 1 << 30)).chain(buckets).unzip();
    cold.histogram = SparseHistogram::from_parts(indices, counts).unwrap();
    cold.n = cold.histogram.total();
    cold.runs_seen = cold.n + 5;
    cold.dropped_runs = 5;
    cold.min_us = 0.5;
    cold.sum_us = 1e9;
    cold.m2_us2 = 0.25;
    cold.first_runs_us = vec![3, 2, 1];
    cold.slow_fast_switches = None;
    cold.longest_slow_streak = None;
    cold.exceed = None;
    cold.baselines = Baselines::Absent(BaselineAbsence::TooFewRuns);
    let mut warm = cold.clone();
    warm.session_uid = SessionUid::new(8).unwrap();
    warm.stratum.phase = Phase::Warm;
    warm.first_runs_us.clear();
    report.series.extend([cold, warm]);

    let mut test = report.self_tests[0].clone();
    test.session_uid = SessionUid::new(9).unwrap();
    test.tolerance = None;
    test.npu_output_hash = None;
    test.cpu_output_hash = None;
    test.max_abs = None;
    test.cosine = None;
    test.top1_equal = None;
    test.error_code = -7;
    test.first_off_output.clear();
    report.self_tests.push(test);
    report
}

/// A report in which no session could be created and much was lost.
fn failures_and_losses() -> Report {
    let mut report = full(44);
    report.sessions.clear();
    report.series.clear();
    report.self_tests.clear();
    report.run_errors.clear();
    let mut failure = report.start_failures[0].clone();
    failure.model.id = "other".into();
    failure.requested_eps.clear();
    failure.text = "no \"backend\": Größe".into();
    failure.ort_status_code = i32::MIN;
    failure.count = 1 << 48;
    report.start_failures.push(failure);
    report.ended_streams = (3..6)
        .map(|stream| EndedStream {
            stream: StreamId(stream),
            last_sequence: (stream == 4).then_some(0),
            unsealed_runs: (stream == 5).then_some(1 << 48),
        })
        .collect();
    let health = &mut report.health;
    health.spool_oldest_ms = None;
    for (n, reason) in DropReason::ALL.iter().enumerate() {
        let dropped = health.dropped.entry(*reason).or_default();
        dropped.reports += n as u64;
        dropped.runs += 100 * n as u64;
    }
    report.app.rollout_labels.clear();
    report
}

fn sent(n: u64) -> SendClock {
    match n {
        0 => SendClock::default(),
        _ => SendClock {
            wall_unix_ms: Some(1_767_226_501_000 + i64::try_from(n).unwrap() * 1_000_000),
            uptime_ms: Some(5_000_000 + n * 60_000),
            boot_id: if n == 1 { "b007" } else { "" }.into(),
        },
    }
}

/// Records of these reports as the WAL gives them back.
pub(super) async fn logged(dir: &std::path::Path, reports: &[Vec<u8>]) -> Vec<Record> {
    let options = WalOptions {
        segment_bytes: 1 << 20,
        max_bytes: 8 << 20,
        clock: Arc::new(ManualClock::at_us(RECEIVED_US)),
        ..crate::wal::tests::options(&dir.join("wal"))
    };
    let wal = Wal::open(&options).unwrap().wal;
    let mut batch = Batch::default();
    let mut header = Vec::new();
    for (n, report) in reports.iter().enumerate() {
        let app = ("com.example.camera", "production");
        let mark = wal_record::SenderMark {
            is_unproven: n % 2 == 1,
            ..wal_record::SenderMark::default()
        };
        wal_record::write_header(&mut header, &sent(n as u64), app, mark);
        batch.push(&[&header, report]).unwrap();
    }
    wal.append(batch).await.unwrap();
    let most = usize::MAX;
    let chunk = wal.read(WalOffset(0), WalOffset(u64::MAX), most, most);
    chunk.unwrap().records
}

fn prepared(records: &[Record]) -> EncodedBatch {
    let mut encoder = Encoder::new(7, BUCKET, CardinalityLimiter::default());
    // Encodes the batch twice, because a batch must not contain rests of the batch before it.
    encoder.encode(records);
    encoder.known = KnownPlacements::default();
    encoder.encode(records)
}

async fn start_engine(dir: &std::path::Path) -> EmbeddedStore {
    let library = epwatch_engines::for_tests(Engine::Chdb).chdb_library();
    let program = ChildProgram::for_tests().unwrap();
    let mut config = EmbeddedConfig::new(dir.join("store"), library, program);
    config.socket = Some(dir.join("store.sock"));
    let engine = EmbeddedStore::start(config).await.unwrap();
    engine.ready().await.unwrap();
    let target = engine.target("epwatch");
    migrate(&target, MIGRATIONS, &single_server(Retention::default()))
        .await
        .unwrap();
    engine
}

/// Names and types of a table's columns, as the engine has them.
async fn columns_of(engine: &EmbeddedStore, table: &str) -> Vec<(String, String)> {
    let sql = format!(
        "SELECT name, type FROM system.columns \
         WHERE database = 'epwatch' AND table = '{table}' ORDER BY position"
    );
    let client = engine.client("epwatch");
    client.query(&sql).fetch_all().await.unwrap()
}

fn names_and_types<F>(layout: &[ColumnDef<F>]) -> Vec<(String, String)> {
    let columns = layout.iter();
    columns
        .map(|of| (of.name.to_owned(), of.data_type.to_owned()))
        .collect()
}

async fn store(engine: &EmbeddedStore, rows: &EncodedBatch) {
    let sink = Sink::new(engine.client("epwatch"));
    for (table, body) in [
        ("report_copies", &rows.copies),
        ("placements", &rows.placements),
        ("reports", &rows.reports),
    ] {
        sink.insert_body(table, body, None).await.unwrap();
    }
}

/// One line a column: `Row 1:`, dashes, `name:   value`.
async fn table(engine: &EmbeddedStore, columns: &str, rest: &str) -> String {
    let sql = format!(
        "SELECT {columns} FROM {rest} \
         SETTINGS output_format_pretty_single_large_number_tip_threshold = 0"
    );
    let client = engine.client("epwatch");
    let mut rows = client.query(&sql).fetch_bytes("Vertical").unwrap();
    let bytes = rows.collect().await.unwrap();
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// The start of SHA-256, by FIPS 180-2's example.
#[test]
fn the_hash_of_a_report_s_bytes_never_changes() {
    assert_eq!(content_of(b"abc").to_le_bytes(), [0xba, 0x78, 0x16, 0xbf]);
}

#[tokio::test(flavor = "multi_thread")]
async fn varied_reports_become_the_rows_that_are_written_down() {
    let dir = tempfile::tempdir().unwrap();
    let reports = [
        FULL.to_vec(),
        MINIMAL.to_vec(),
        many_sessions().to_bytes(),
        b"no report".to_vec(),
        failures_and_losses().to_bytes(),
    ];
    let rows = prepared(&logged(dir.path(), &reports).await);
    assert_eq!(rows.unreadable.len(), 1, "{:?}", rows.unreadable);
    assert_eq!(rows.reports.n_rows, 4);
    let engine = start_engine(dir.path()).await;
    let layouts = [
        ("reports", names_and_types(&REPORTS)),
        ("report_copies", names_and_types(&COPIES)),
        ("placements", names_and_types(&PLACEMENTS)),
    ];
    for (table, layout) in layouts {
        assert_eq!(layout, columns_of(&engine, table).await, "{table}");
    }
    store(&engine, &rows).await;
    let readable = "* REPLACE (hex(installation) AS installation)";
    let mut found = table(&engine, readable, "reports ORDER BY wal_offset").await;
    let readable = "* EXCEPT (content) REPLACE (hex(installation) AS installation)";
    found += &table(&engine, readable, "report_copies ORDER BY wal_offset").await;
    found += &table(&engine, "*", "placements ORDER BY ALL").await;
    engine.stop().await;
    for (found, written) in found.lines().zip(WRITTEN.lines()) {
        assert_eq!(found, written);
    }
    assert_eq!(found, WRITTEN);
}

/// So many distinct words that their indexes take two bytes, next to columns that repeat one word.
#[tokio::test(flavor = "multi_thread")]
async fn each_of_many_reports_keeps_its_own_words() {
    let dir = tempfile::tempdir().unwrap();
    let reports: Vec<Vec<u8>> = (1..=300)
        .map(|n| {
            let mut report = full(n);
            report.app.build = format!("build-{n}");
            report.to_bytes()
        })
        .collect();
    let rows = prepared(&logged(dir.path(), &reports).await);
    let engine = start_engine(dir.path()).await;
    store(&engine, &rows).await;
    // A batch whose lists are all empty, so that most of its columns are empty.
    let bare = tempfile::tempdir().unwrap();
    let rows = prepared(&logged(bare.path(), &[MINIMAL.to_vec()]).await);
    store(&engine, &rows).await;
    let sql = "SELECT count(), countIf(app_build = 'build-' || toString(sequence)), uniq(app_version) \
               FROM reports";
    let client = engine.client("epwatch");
    let counts = client.query(sql).fetch_one::<(u64, u64, u64)>();
    assert_eq!(counts.await.unwrap(), (301, 300, 2));
    engine.stop().await;
}
