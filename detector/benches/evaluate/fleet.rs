//! A fleet in the store. The store itself makes the rows of the raw tables, from `numbers()`.
//!
//! Every cohort (app, model, version, chipset) gets 100 reports in the window and on each day before it. Each report
//! has one session and one clean series of 20 buckets. There are two versions, the second rolled out ten days ago. One
//! cohort in 100 has a fallback on a third of its devices. A tenth of the devices has no self baseline.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clickhouse::Client;
use epwatch_store::embedded::EmbeddedStore;
use jiff::Timestamp;

use crate::schema::apply_schema;

pub(crate) const DATABASE: &str = "epwatch";

const REPORTS_A_COHORT: u64 = 100;
const CHIPSETS: u64 = 10;
const VERSIONS: u64 = 2;
const DAY_S: u64 = 86_400;
/// Age of the second version, in days.
const SECOND_VERSION_DAYS: u64 = 10;
/// WAL offsets per second of the fleet's day. There are enough that no two reports have the same offset.
const OFFSETS_A_SECOND: u64 = 10_000_000;
/// Number of rows that one statement inserts.
const CHUNK: u64 = 500_000;
/// These settings make few and large parts, with at most one block of rows in memory.
const BLOCKS: &str = "SETTINGS min_insert_block_size_rows = 250000, max_insert_threads = 1, \
    min_insert_block_size_bytes = 0, max_threads = 2";

/// The size of a fleet.
#[derive(Debug, Clone)]
pub(crate) struct Fleet {
    /// Number of reports in the window.
    pub(crate) reports: u64,
    pub(crate) apps: u64,
    pub(crate) reports_a_device: u64,
    /// Number of earlier windows, of one day each.
    pub(crate) days: u64,
    /// Further installations of the first app, which report in the window and ran no model.
    pub(crate) installations: u64,
    pub(crate) end: Timestamp,
}

impl Fleet {
    /// Returns a smaller fleet of this number of reports. Its number of apps shrinks by the same ratio.
    pub(crate) fn of_size(&self, reports: u64) -> Fleet {
        Fleet {
            reports,
            apps: (self.apps * reports / self.reports.max(1)).max(1),
            ..self.clone()
        }
    }

    fn cohorts(&self) -> u64 {
        (self.reports / REPORTS_A_COHORT).max(1)
    }
}

/// Fills the store, unless it was filled before. Returns the fleet and the time that filling took.
pub(crate) async fn filled(
    store: &EmbeddedStore,
    fleet: &Fleet,
    dir: &Path,
) -> Result<(Fleet, Duration)> {
    apply_schema(&store.target(DATABASE)).await;
    let mark = dir.join("filled-until");
    if let Ok(end) = fs::read_to_string(&mark) {
        let end = Timestamp::from_second(end.trim().parse()?)?;
        return Ok((
            Fleet {
                end,
                ..fleet.clone()
            },
            Duration::ZERO,
        ));
    }
    let began = Instant::now();
    let now = Timestamp::now().as_second();
    let end = now - now % 3600;
    let client = store.client(DATABASE);
    let day = i64::try_from(DAY_S)?;
    let mut done = 0;
    while done < fleet.reports {
        let rows = CHUNK.min(fleet.reports - done);
        execute(&client, &reports_sql(fleet, end - day, (done, rows))).await?;
        done += rows;
    }
    for ago in 1..=fleet.days {
        execute(&client, &earlier_day_sql(end - day, ago)).await?;
    }
    for ago in 0..=fleet.days {
        let start = end - day * (i64::try_from(ago)? + 1);
        execute(&client, &copies_sql(start)).await?;
    }
    let mut done = 0;
    while done < fleet.installations {
        let rows = CHUNK.min(fleet.installations - done);
        execute(&client, &installations_sql(end - day, (done, rows))).await?;
        done += rows;
    }
    eprintln!("{} days: {:?}", fleet.days + 1, began.elapsed());
    execute(&client, &placements_sql(fleet, end)).await?;
    for ago in 1..=fleet.days {
        execute(
            &client,
            &windows_sql(fleet, end - day * i64::try_from(ago)?),
        )
        .await?;
    }
    // All buckets but the last hour's are closed, as the collector's roll-up leaves them.
    let closed = format!(
        "INSERT INTO rollup_watermark VALUES (toDateTime({}), now64(3))",
        end - 3600
    );
    execute(&client, &closed).await?;
    let end = Timestamp::from_second(end)?;
    fs::write(&mark, end.as_second().to_string())?;
    Ok((
        Fleet {
            end,
            ..fleet.clone()
        },
        began.elapsed(),
    ))
}

/// Returns the number of reports in earlier windows.
pub(crate) async fn stored(client: &Client, fleet: &Fleet) -> Result<u64> {
    let all: u64 = client
        .query("SELECT count() FROM reports")
        .fetch_one()
        .await?;
    Ok(all - fleet.reports - fleet.installations)
}

async fn execute(client: &Client, sql: &str) -> Result<()> {
    client
        .query(sql)
        .execute()
        .await
        .with_context(|| sql.to_owned())
}

/// Some reports of the window, in the table's order.
fn reports_sql(fleet: &Fleet, start: i64, (offset, rows): (u64, u64)) -> String {
    let columns: Vec<&str> = REPORT.iter().map(|(name, _)| *name).collect();
    let values: Vec<String> = REPORT.iter().map(|(_, sql)| spelled(sql)).collect();
    format!(
        "INSERT INTO reports ({}) SELECT {} FROM ({}) {BLOCKS}",
        columns.join(", "),
        values.join(", "),
        rows_sql(fleet, start, offset, rows)
    )
}

/// The same devices on an earlier day. Copying stored rows costs the engine a third of making new ones, because stored
/// rows are in order and have the table's types.
fn earlier_day_sql(start: i64, ago: u64) -> String {
    let seconds = ago * DAY_S;
    format!(
        "INSERT INTO reports SELECT * REPLACE (\
            received_at - {seconds} AS received_at, occurred_at - {seconds} AS occurred_at, \
            bucket - {seconds} AS bucket, sequence - {seconds} AS sequence, \
            wal_offset - {seconds} * {OFFSETS_A_SECOND} AS wal_offset, \
            arrayMap(at -> at - {seconds}, session_created_at) AS session_created_at) \
         FROM reports AS r \
         WHERE r.bucket >= toDateTime({start}) AND r.received_at >= toDateTime({start}) {} \
         {BLOCKS}",
        if ago > SECOND_VERSION_DAYS {
            "AND session_model_version[1] = '1.0.0'"
        } else {
            ""
        }
    )
}

/// The copies of a day: each report came once.
fn copies_sql(start: i64) -> String {
    format!(
        "INSERT INTO report_copies SELECT installation, stream_id, sequence, received_at, \
            collector_id, wal_offset, bucket, app_id, toUInt32(0) \
         FROM reports WHERE received_at >= toDateTime({start}) \
            AND received_at < toDateTime({start} + {DAY_S}) {BLOCKS}"
    )
}

/// Installations that report once in the window, from many networks.
fn installations_sql(start: i64, (offset, rows): (u64, u64)) -> String {
    format!(
        "INSERT INTO reports (collector_id, wal_offset, received_at, bucket, installation, stream_id, sequence, \
            occurred_at, network, network_wide, app_id, environment, chipset) \
         SELECT 2, number + {offset} AS nth, toDateTime64({start} + nth % {DAY_S}, 3, 'UTC') AS at, \
            toStartOfHour(at), MD5(toString(('further', nth))), nth, 1, at, 1 + nth % 60000, 1 + nth % 500, \
            'app-0', 'production', 'SM8350' \
         FROM numbers({rows}) {BLOCKS}"
    )
}

/// The reports of the window, one row each. `offset + number` counts reports of the day.
fn rows_sql(fleet: &Fleet, start: i64, offset: u64, rows: u64) -> String {
    let (cohorts, apps) = (fleet.cohorts(), fleet.apps);
    let devices = (REPORTS_A_COHORT / fleet.reports_a_device).max(1);
    let cells = CHIPSETS * VERSIONS;
    format!(
        "SELECT number + {offset} AS nth, nth % {cohorts} AS cohort, intDiv(nth, {cohorts}) AS turn, \
            cohort % {apps} AS app, intDiv(cohort, {apps}) AS cell, \
            cell % {CHIPSETS} AS chip, intDiv(cell, {CHIPSETS}) % {VERSIONS} AS version, \
            intDiv(cell, {cells}) AS model, \
            turn % {devices} AS device, intDiv(turn, {devices}) AS nth_of_device, \
            MD5(toString((app, intDiv(model, 2), chip, version, device))) AS installation, \
            sipHash64(installation, model) AS stream_id, \
            toUInt64({start} + nth_of_device) AS sequence, \
            toDateTime64({start} + intDiv({DAY_S}, {each}) * nth_of_device + nth % 1800 \
                + (device % 6) * 3600, 3, 'UTC') AS received_at, \
            toStartOfHour(received_at) AS bucket, \
            toUInt64(1) AS collector_id, toUInt64({start} * {OFFSETS_A_SECOND} + nth) AS wal_offset \
         FROM numbers({rows})",
        each = fleet.reports_a_device,
    )
}

/// The detector's findings about every cohort, in every hour of the day that ends at `end`.
fn windows_sql(fleet: &Fleet, end: i64) -> String {
    format!(
        "INSERT INTO cohort_windows (window_end, window_seconds, app_id, environment, model_id, \
            model_version, chipset, algo, devices, devices_on_chipset, eligible_devices, runs, p50_us, p95_us, \
            cv_within, cv_between, signal_id, signal_value, signal_p, signal_hits, signal_devices, \
            verdict, severity, judged_at) \
         SELECT toDateTime64({end} - 3600 * hour, 3, 'UTC'), {DAY_S}, \
            concat('app-', toString(cohort % {apps})), 'production', \
            concat('model-', toString(intDiv(cell, {cells}))), \
            concat(toString(intDiv(cell, {CHIPSETS}) % {VERSIONS} + 1), '.0.0'), \
            concat('SM8', leftPad(toString(350 + cell % {CHIPSETS} * 50), 3, '0')), 'v1', \
            25, 25, 25, 4400, 8640, 9200, 0.03, 0.02, \
            arrayConcat(['placement_change', 'slower_with_placement_change', 'median_ratio', 'slow_device_share'], \
                arrayMap(ratio -> concat('slower_than_', ratio, 'x'), ['1.6', '2.0', '2.5', '3.2', '4.0']), \
                arrayMap(percent -> concat('intermittent_runs_from_', toString(percent), '_percent'), \
                    [3, 5, 10, 20, 40])), \
            arrayResize([0.], 14), arrayResize([1.], 14), arrayResize([toUInt64(0)], 14), \
            arrayResize(emptyArrayUInt64(), 14, toUInt64(25)), \
            'healthy', 'none', toDateTime64({end} - 3600 * hour, 3, 'UTC') \
         FROM (SELECT number % {cohorts} AS cohort, intDiv(number, {cohorts}) AS hour, \
            intDiv(cohort, {apps}) AS cell FROM numbers({cohorts} * 24))",
        apps = fleet.apps,
        cohorts = fleet.cohorts(),
        cells = CHIPSETS * VERSIONS,
    )
}

fn placements_sql(fleet: &Fleet, end: i64) -> String {
    format!(
        "INSERT INTO placements (app_id, environment, model_id, model_version, \
            fingerprint_algorithm, fingerprint_exact, fingerprint_normalised, first_seen, \
            cpu_node_name, cpu_node_op_type, cpu_node_benign, cpu_node_reason, \
            cpu_node_macs_share, cpu_nodes_truncated) \
         SELECT concat('app-', toString(app)), 'production', concat('model-', toString(model)), \
            concat(toString(version + 1), '.0.0'), 1, print, print, toDateTime64({end}, 3, 'UTC'), \
            ['gelu_7'], ['Gelu'], [false], ['fp16_not_supported'], [0.18], false \
         FROM (SELECT number % {apps} AS app, intDiv(number, {apps}) AS model, version, \
                 1000 * (version + 1) + 7 AS print \
             FROM numbers({n}) ARRAY JOIN [0, 1] AS version)",
        apps = fleet.apps,
        n = (fleet.cohorts() / (CHIPSETS * VERSIONS)).max(fleet.apps),
    )
}

/// Replaces the words in capitals in [`REPORT`] by their SQL.
fn spelled(sql: &str) -> String {
    let words = [
        ("FIRST", "toUInt16(896 + device % 7 + FALLEN * 256)"),
        (
            "MIDDLE",
            "(8640 + 64 * (device % 7)) * if(FALLEN = 1, 4, 1)",
        ),
        ("USUAL", "(8640 + 64 * (device % 7))"),
        ("KNOWS", "(nth_device % 10 != 0)"),
        (
            "FALLEN",
            "toUInt32(version = 1 AND cohort % 100 = 13 AND device % 3 = 0)",
        ),
        ("nth_device", "(device + chip)"),
    ];
    words
        .into_iter()
        .fold(sql.to_owned(), |sql, (word, meaning)| {
            sql.replace(word, meaning)
        })
}

/// Columns of `reports` with the SQL of their values; the other columns keep their defaults.
const REPORT: &[(&str, &str)] = &[
    ("collector_id", "collector_id"),
    ("wal_offset", "wal_offset"),
    ("received_at", "received_at"),
    ("bucket", "bucket"),
    ("installation", "installation"),
    ("stream_id", "stream_id"),
    ("sequence", "sequence"),
    ("occurred_at", "received_at"),
    ("occurred_source", "'wall'"),
    ("app_id", "concat('app-', toString(app))"),
    ("environment", "'production'"),
    ("app_version", "'7.1'"),
    (
        "chipset",
        "concat('SM8', leftPad(toString(350 + chip * 50), 3, '0'))",
    ),
    ("device_model", "concat('phone-', toString(device % 5))"),
    (
        "firmware",
        "concat('firmware-', toString(chip), '-', toString(device % 2))",
    ),
    ("ort_version", "'1.31.1'"),
    ("ep_version", "'2.7.0'"),
    ("session_uid", "[nth]"),
    ("session_model_id", "[concat('model-', toString(model))]"),
    (
        "session_model_version",
        "[concat(toString(version + 1), '.0.0')]",
    ),
    ("session_directive_id", "['']"),
    ("session_requests_npu", "[true]"),
    ("session_requested_eps", "[['QNNExecutionProvider']]"),
    ("session_graph_kind", "['jit']"),
    ("session_placement_source", "['assignment_api']"),
    ("session_fingerprint_algorithm", "[1]"),
    // A third of the devices of the second version falls back in one cohort of 100.
    (
        "session_fingerprint_exact",
        "[1000 * (version + 1) + FALLEN * 7]",
    ),
    (
        "session_fingerprint_normalised",
        "[1000 * (version + 1) + FALLEN * 7]",
    ),
    ("session_n_nodes", "[43]"),
    ("session_npu_nodes", "[42 - FALLEN]"),
    ("session_npu_partitions", "[1 + FALLEN]"),
    ("session_cpu_nodes", "[1 + FALLEN]"),
    ("session_cpu_benign_nodes", "[1]"),
    ("session_npu_macs_share", "[1.0 - 0.18 * FALLEN]"),
    ("session_macs_attributed", "[1.0]"),
    ("session_reasons", "[[]]"),
    ("session_creation_us", "[400000]"),
    ("session_created_at", "[received_at]"),
    ("series_session", "[1]"),
    ("series_phase", "['warm']"),
    ("series_thermal", "['none']"),
    ("series_power_save", "['off']"),
    ("series_performance_mode", "['']"),
    ("series_shape_key", "['static']"),
    ("series_session_age", "['unknown']"),
    ("series_is_clean", "[true]"),
    ("series_hist_scheme", "['hdr_us_2sd_1_60s']"),
    // Buckets of 64 us from 8.2 ms on. Devices that fell back have theirs two octaves higher.
    ("series_hist_bucket", "[range(FIRST, FIRST + 20)]"),
    (
        "series_hist_count",
        "[[1,1,2,3,3,4,4,5,4,3,3,2,2,1,1,1,1,1,1,1]]",
    ),
    ("series_n", "[44]"),
    ("series_sum_us", "[44 * MIDDLE]"),
    ("series_m2_us2", "[44 * pow(MIDDLE * 0.03, 2)]"),
    ("series_min_us", "[MIDDLE * 0.95]"),
    ("series_max_us", "[MIDDLE * 1.1]"),
    ("series_runs_seen", "[44]"),
    ("series_sampled_one_in", "[1]"),
    ("series_dropped_runs", "[0]"),
    ("series_first_runs_us", "[[]]"),
    ("series_slow_fast_switches", "[0]"),
    ("series_longest_slow_streak", "[0]"),
    ("series_beyond_1_4x", "[0]"),
    ("series_beyond_2x", "[0]"),
    ("series_beyond_3x", "[0]"),
    (
        "series_previous_version",
        "[if(KNOWS, concat(toString(version), '.0.0'), '')]",
    ),
    ("series_previous_n", "[if(KNOWS, 200, 0)]"),
    ("series_previous_p10_us", "[if(KNOWS, USUAL * 0.97, 0)]"),
    ("series_previous_p50_us", "[if(KNOWS, USUAL, 0)]"),
    ("series_previous_p95_us", "[if(KNOWS, USUAL * 1.06, 0)]"),
    ("series_previous_cv", "[if(KNOWS, 0.03, 0)]"),
    ("series_earlier_firmware", "['']"),
    ("series_earlier_runtime", "['']"),
    ("series_earlier_n", "[0]"),
    ("series_earlier_p10_us", "[0]"),
    ("series_earlier_p50_us", "[0]"),
    ("series_earlier_p95_us", "[0]"),
    ("series_earlier_cv", "[0]"),
    (
        "series_baseline_absence",
        "[if(KNOWS, '', 'first_version')]",
    ),
];
