//! Queries of the views: filters and sums, nothing else. Each query is for several apps at once. A query that grows
//! with the number of devices is made for one slice of devices after another.

use clickhouse::query::Query;
use epwatch_model::{ModelKey, VersionOnChipset};
use epwatch_proto::HistScheme;

/// App, environment, model, version and chipset. A tuple is enough for rows with few other columns.
pub(super) type CohortNames<'a> = (&'a str, &'a str, &'a str, &'a str, &'a str);

pub(super) fn cohort_of(
    (app, environment, model, version, chipset): CohortNames<'_>,
) -> VersionOnChipset {
    let model = ModelKey::of((app, environment), model);
    (model, version.to_owned(), chipset.to_owned())
}

/// The only bucket scheme whose edges this program has; histograms with other schemes are not read.
pub(super) fn hist_scheme() -> &'static str {
    HistScheme::HdrUs2sd160s.as_str()
}

/// Clean series that vote, of some apps, with the columns that the queries here need. The view `device_series_v1`
/// unfolds every list of a report, which costs several times as much. Binds, by [`of_clean_series`]: scheme, apps,
/// span, its start, slices, slice.
const CLEAN_SERIES: &str = "(
    SELECT app_id, environment, bucket, received_at, stream_id, session_chipset[at] AS chipset, firmware, device_model,
        installation, session_uid[at] AS session_uid, session_model_id[at] AS model_id,
        session_model_version[at] AS model_version, session_graph_kind[at] AS graph_kind,
        session_placement_source[at] AS placement_source,
        session_fingerprint_algorithm[at] AS fingerprint_algorithm,
        session_fingerprint_normalised[at] AS fingerprint_normalised,
        shape_key, hist_bucket, hist_count, n, sum_us, m2_us2
    FROM counted_reports_v1
    ARRAY JOIN series_session AS at, series_is_clean AS is_clean,
        series_hist_scheme AS hist_scheme, series_shape_key AS shape_key,
        series_hist_bucket AS hist_bucket, series_hist_count AS hist_count, series_n AS n,
        series_sum_us AS sum_us, series_m2_us2 AS m2_us2
    WHERE is_clean AND hist_scheme = ? AND session_requests_npu[at]
        AND session_directive_id[at] = '' AND NOT (is_late OR is_unproven)
        AND (app_id, environment) IN ?
        AND bucket >= toDateTime(?) AND bucket < toDateTime(?) AND received_at >= toDateTime(?)
        AND sipHash64(installation) % ? = ?
)";

/// Sums over clean series `s`.
const SUMMED: &str = "
    sumMap(mapFromArrays(s.hist_bucket, s.hist_count)) AS merged, sum(s.n) AS runs, sum(s.sum_us) AS total,
    greatest(0, sum(s.m2_us2) + sum(pow(s.sum_us, 2) / s.n) - pow(sum(s.sum_us), 2) / sum(s.n)) AS deviations";

/// These sums as columns of a row.
const SUMS: &str = "mapKeys(merged) AS hist_bucket, mapValues(merged) AS hist_count, runs AS n,
    total AS sum_us, deviations AS m2_us2";

/// The columns that identify a vote.
const VOTE_KEY: &str =
    "app_id, environment, model_id, model_version, chipset, firmware, installation,
    graph_kind, placement_source, fingerprint_algorithm, fingerprint_normalised, shape_key";

/// Versions on chipsets, in the order of [`CohortNames`].
const COHORT: &str = "app_id, environment, model_id, model_version, chipset";

/// Binds the selection of clean series: apps, span in seconds, number of slices, and the slice.
pub(super) fn of_clean_series(
    query: Query,
    apps: &[(&str, &str)],
    (from_s, to_s): (i64, i64),
    (slices, slice): (u64, u64),
) -> Query {
    let query = query.bind(hist_scheme()).bind(apps);
    let query = query.bind(from_s).bind(to_s).bind(from_s);
    query.bind(slices).bind(slice)
}

/// Earlier windows of votes with too few runs, the latest first; 20 windows hold at least 20 runs. Whole windows are
/// read, because it must not matter how often a device reports within one. Binds: start of the window, its length,
/// clean series before the window, clean series of the window.
pub(super) fn earlier() -> String {
    format!(
        "SELECT {VOTE_KEY}, {SUMS}
        FROM (
            SELECT intDiv(? - 1 - toUnixTimestamp(bucket), ?) AS windows_back, {VOTE_KEY}, {SUMMED}
            FROM {CLEAN_SERIES} AS s
            WHERE ({VOTE_KEY}) IN (
                SELECT {VOTE_KEY} FROM {CLEAN_SERIES} AS t GROUP BY {VOTE_KEY} HAVING sum(t.n) < 20)
            GROUP BY windows_back, {VOTE_KEY}
        )
        ORDER BY windows_back
        LIMIT 20 BY {VOTE_KEY}"
    )
}

/// Merged clean histograms before the window. Binds: clean series, model, version, chipset.
pub(super) fn latency_before() -> String {
    format!(
        "SELECT shape_key, mapKeys(merged) AS hist_bucket, mapValues(merged) AS hist_count
        FROM (
            SELECT shape_key, sumMap(mapFromArrays(s.hist_bucket, s.hist_count)) AS merged
            FROM {CLEAN_SERIES} AS s
            WHERE model_id = ? AND model_version = ? AND chipset = ?
            GROUP BY shape_key
        )"
    )
}

/// Runs of each device of some versions on chipsets before the window. Binds: clean series, versions.
pub(super) fn device_baselines() -> String {
    format!(
        "SELECT ({COHORT}) AS cohort, installation, device_model, shape_key, {SUMS}
        FROM (
            SELECT {COHORT}, installation, shape_key,
                argMax(s.device_model, (s.received_at, s.stream_id, s.session_uid)) AS device_model, {SUMMED}
            FROM {CLEAN_SERIES} AS s
            WHERE ({COHORT}) IN ?
            GROUP BY {COHORT}, installation, shape_key
        )"
    )
}

/// Nodes behind fingerprints. Binds: model, version, fingerprints.
pub(super) const NODES: &str = "
    SELECT fingerprint_algorithm, fingerprint_normalised, cpu_node_op_type AS op_type,
        cpu_node_benign AS benign, cpu_node_reason AS reason, cpu_node_macs_share AS macs_share
    FROM placements_v1
    WHERE app_id = ? AND environment = ? AND model_id = ? AND model_version = ?
        AND fingerprint_normalised IN ?
    ORDER BY first_seen, fingerprint_exact";

/// Every certification, the latest first.
pub(super) const CERTIFIED: &str = "
    SELECT ?fields FROM certified_placements_v1
    ORDER BY stored_at DESC, ort_version, ep_version";

/// Every session with its placement, its bucket and the time of its report, in the columns of [`super::groups`]. Each
/// report's copy is named once, by the hash that [`COUNTED_COPIES`] adds up. Rows are not grouped, because grouping
/// here costs the store twice as much again. Binds: buckets, the first of them.
pub(super) const SEEN: &str = "
    SELECT app_id, environment, of_cohort AS chipset, ort_version, ep_version, installation,
        toUInt32(bucket) AS at_s, received_at,
        if(nth > 1, 0, cityHash64(collector_id, wal_offset)) AS copy,
        toBool(requests_npu AND NOT (is_late OR is_unproven) AND directive_id = '') AS votes, is_unproven, is_own,
        model_id, model_version, graph_kind, placement_source, fingerprint_algorithm,
        fingerprint_exact, fingerprint_normalised, n_nodes, npu_nodes, cpu_nodes,
        cpu_benign_nodes, npu_macs_share, macs_attributed
    FROM counted_reports_v1
    ARRAY JOIN arrayEnumerate(session_model_id) AS nth,
        session_chipset AS of_cohort,
        session_model_id AS model_id, session_model_version AS model_version,
        session_directive_id AS directive_id, session_requests_npu AS requests_npu,
        session_graph_kind AS graph_kind, session_placement_source AS placement_source,
        session_fingerprint_algorithm AS fingerprint_algorithm,
        session_fingerprint_exact AS fingerprint_exact,
        session_fingerprint_normalised AS fingerprint_normalised,
        session_n_nodes AS n_nodes, session_npu_nodes AS npu_nodes,
        session_cpu_nodes AS cpu_nodes, session_cpu_benign_nodes AS cpu_benign_nodes,
        session_npu_macs_share AS npu_macs_share, session_macs_attributed AS macs_attributed
    WHERE bucket IN ? AND received_at >= toDateTime(?)";

/// Devices that reported without any session, by bucket. A join that keeps such reports costs the store six times as
/// much. Binds: buckets, the first of them.
pub(super) const SESSIONLESS: &str = "
    SELECT app_id, environment, reinterpretAsUInt128(installation) AS device,
        toUInt32(bucket) AS at_s, cityHash64(collector_id, wal_offset) AS copy, is_unproven, is_own
    FROM counted_reports_v1
    WHERE bucket IN ? AND received_at >= toDateTime(?) AND empty(session_model_id)";

/// Copies of open buckets that do not count, and one further row of such a copy, if there is any. Binds: at most so many
/// copies.
pub(super) const OPEN_SURPLUS: &str = "
    SELECT collector_id, wal_offset, false AS is_repeated FROM open_surplus_copies_v1 LIMIT ?
    UNION ALL
    SELECT collector_id, wal_offset, true FROM open_repeated_rows_v1 LIMIT 1";

/// The parts of the store's reports, from the day of the look-back's start on, with their numbers of rows. The engine
/// counts them without reading rows. Binds: start of the look-back.
pub(super) const PARTS: &str = "
    SELECT _part AS part, count() AS n FROM reports
    WHERE toUInt32(left(_partition_id, 8)) >= toYYYYMMDD(toDateTime(?), 'UTC') GROUP BY part";

/// One number for all copies of each bucket in some parts. It costs a fraction of finding the copies that count. Binds:
/// parts.
pub(super) const PART_STATES: &str = "
    SELECT _part AS part, toUInt32(r.bucket) AS bucket, sum(cityHash64(collector_id, wal_offset)) AS state
    FROM reports AS r WHERE part IN ? GROUP BY part, bucket";

/// States that decide which copies of buckets count. Kind 0: the copies that are named as surplus, in each bucket. Kind
/// 1: the hidden installations. Kind 2: the time until which buckets are closed. Binds: look-back.
pub(super) const BUCKET_STATES: &str = "
    SELECT toUInt8(0) AS kind, toUInt32(s.bucket) AS bucket,
        sum(DISTINCT cityHash64('surplus', collector_id, wal_offset)) AS state
    FROM surplus_copies AS s
    WHERE s.bucket >= toDateTime(?) AND s.bucket < toDateTime(?)
    GROUP BY s.bucket
    UNION ALL
    SELECT toUInt8(1), toUInt32(0), sum(DISTINCT cityHash64(installation)) FROM hidden_installations
    UNION ALL
    SELECT toUInt8(2), toUInt32(max(closed_until)), toUInt64(0) FROM rollup_watermark";

/// For some buckets, one number that identifies the copies that count, and how many of these have self-tests and failed
/// starts. Of tests and starts, only the lengths of the lists are read. Binds: buckets, the first of them.
pub(super) const COUNTED_COPIES: &str = "
    SELECT toUInt32(c.bucket) AS bucket, count() AS reports,
        sum(cityHash64(collector_id, wal_offset)) AS copies,
        countIf(length(self_test_session) > 0) AS with_tests,
        countIf(length(start_failure_model_id) > 0) AS with_failed_starts
    FROM counted_reports_v1 AS c
    WHERE c.bucket IN ? AND received_at >= toDateTime(?)
    GROUP BY c.bucket";

/// Maximum number of devices that one query names, at 32 bytes each. The embedded engine accepts a query of 1 MiB.
pub(super) const MAX_NAMED_DEVICES: usize = 24_000;

/// Largest query in bytes, for that many devices. By default, servers accept only 256 KiB.
pub(super) const MAX_QUERY_BYTES: &str = "1048576";

/// The senders of the voting reports of some devices of an app in the window. The store groups only these reports, and
/// finds them by its index if the devices are few. Networks are in the raw table only, because readers of the views
/// have no use for them. Binds: app, environment, the window's buckets, the first of them, the devices in hex, their
/// number.
pub(super) const SENDERS: &str = "
    SELECT reinterpretAsUInt128(installation) AS device, min(is_own) AS is_own,
        minIf((network, network_wide), network != 0) AS first_network
    FROM reports
    WHERE app_id = ? AND environment = ? AND NOT (is_late OR is_unproven)
        AND bucket >= toDateTime(?) AND bucket < toDateTime(?) AND received_at >= toDateTime(?)
        AND installation IN (
            SELECT toFixedString(substring(unhex(?), 1 + 16 * number, 16), 16) FROM numbers(?))
    GROUP BY installation";
