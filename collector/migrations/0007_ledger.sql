-- The fate of every report and run, by day of receipt (UTC). The ledger closes in reports and in runs, for
-- each app, environment and day, and so in total:
--     recorded = stored + dropped + refused + missing
--
-- A stream spans days. The recorded reports of a day are the growth of the stream's highest known sequence
-- since the end of the day before, and likewise for drops on the device. A report that arrives days late is
-- stored on the day of its arrival and reduces what is missing: `missing` is negative on a day that fills gaps
-- of earlier days. In total it counts reports that are not, or not yet, seen.
--
-- Refusals appear twice. `refused` counts reports that devices dropped because a collector refused them for
-- good; it closes the sum. The collectors' answers by outcome are not part of the sum: a report that may come
-- again is answered each time, and a made-up report belongs to no stream.
--
-- A key of kind `app` is public, so counters can be made up. Streams without a proven report are beside the sum, as
-- `unproven`. Counters of the others count as far as a stream can have sent: what is stored of it, 2,000 reports, and one
-- for each minute since it was first seen; a phone seals one in 15 minutes. Runs count by the largest report of the
-- stream. Streams that claim more are counted as `implausible`. Devices of `own` keys are trusted as they are.
--
-- All of it is read from raw, so it reaches back as far as raw does. Older streams are counted from there on;
-- their first two days here may include an earlier loss.

-- One stream on one day, as its reports say: its highest known sequence, and its drops so far.
CREATE OR REPLACE VIEW stream_days_v1 ${on_cluster} AS
SELECT
    app_id, environment, installation, stream_id, toDate(at) AS day,
    max(known_sequence) AS last_sequence,
    minIf(known_sequence, is_stored) AS first_stored,
    countIf(is_stored) AS stored,
    sum(runs) AS stored_runs,
    max(runs) AS most_runs,
    max(runs_recorded) AS recorded_runs,
    max(unsealed) AS unsealed_runs,
    maxMap(reports_given_up) AS dropped_reports,
    maxMap(runs_given_up) AS dropped_runs,
    min(at) AS first_at,
    max(at) AS last_at,
    min(unproven) AS is_unproven,
    min(own) AS is_own
FROM (
    SELECT app_id, environment, installation, stream_id, received_at AS at, sequence AS known_sequence, true AS is_stored,
        is_unproven AS unproven, is_own AS own,
        arraySum(series_n) AS runs, health_runs_recorded AS runs_recorded, toUInt64(0) AS unsealed,
        CAST(health_dropped_reports, 'Map(String, UInt64)') AS reports_given_up,
        CAST(health_dropped_runs, 'Map(String, UInt64)') AS runs_given_up
    FROM counted_reports_v1
    UNION ALL
    -- A later stream names it. The content of its reports that never came is unknown.
    SELECT app_id, environment, installation, id AS stream_id, received_at AS at, ifNull(last, 0) AS known_sequence, false AS is_stored,
        is_unproven AS unproven, is_own AS own,
        toUInt64(0) AS runs, toUInt64(0) AS runs_recorded, ifNull(left_over, 0) AS unsealed,
        CAST(map(), 'Map(String, UInt64)') AS reports_given_up,
        CAST(map(), 'Map(String, UInt64)') AS runs_given_up
    FROM counted_reports_v1 ARRAY JOIN ended_stream_id AS id, ended_last_sequence AS last, ended_unsealed_runs AS left_over
)
GROUP BY app_id, environment, installation, stream_id, day;

-- The entries of each stream on each day, as (kind, reason, reports, runs), from counters within their bounds.
-- Windows sort by the random `stream_id` first: one comparison decides the order of most rows, which saves a fifth of the time.
CREATE OR REPLACE VIEW stream_ledger_v1 ${on_cluster} AS
SELECT app_id, environment, installation, stream_id, day, entries
FROM (
    SELECT
        app_id, environment, installation, stream_id, day,
        if(is_cut, base_sequence, sequence_before) AS sequence_from,
        if(is_cut, base_runs, runs_before) AS runs_from,
        if(is_cut, unsealed_runs, unsealed_before) AS unsealed_from,
        if(is_cut, dropped_reports, dropped_reports_before) AS dropped_reports_from,
        if(is_cut, dropped_runs, dropped_runs_before) AS dropped_runs_from,
        toInt64(greatest(last_sequence, sequence_from) - sequence_from) AS new_reports,
        toInt64(greatest(recorded_runs, runs_from) - runs_from) AS new_runs,
        toInt64(greatest(unsealed_runs, unsealed_from) - unsealed_from) AS new_unsealed,
        -- `clipped` runs are in the histograms.
        arrayFilter(r -> r != 'clipped', arrayDistinct(arrayConcat(mapKeys(dropped_reports), mapKeys(dropped_runs)))) AS reasons,
        arrayMap(r -> (
            if(r = 'refused', 'refused', 'dropped'), r,
            toInt64(greatest(dropped_reports[r], dropped_reports_from[r]) - dropped_reports_from[r]),
            toInt64(greatest(dropped_runs[r], dropped_runs_from[r]) - dropped_runs_from[r])), reasons) AS given_up,
        -- These runs never were in a sealed report, so the device's own count of recorded runs lacks them.
        arraySum(arrayMap(d -> d.4, arrayFilter(d -> d.2 IN ('contended', 'consent'), given_up))) AS new_lost,
        if(is_never_proven,
            [('unproven', '', toInt64(stored), toInt64(stored_runs))],
            arrayConcat(
                [('recorded', '', new_reports, new_runs + new_unsealed + toInt64(new_lost)),
                 ('stored', '', toInt64(stored), toInt64(stored_runs)),
                 ('dropped', 'unsealed', toInt64(0), new_unsealed),
                 ('implausible', '', toInt64(is_beyond), toInt64(0))],
                given_up)) AS entries
    FROM (
        SELECT
            *,
            max(last_sequence) OVER earlier AS sequence_before,
            max(recorded_runs) OVER earlier AS runs_before,
            max(unsealed_runs) OVER earlier AS unsealed_before,
            maxMap(dropped_reports) OVER earlier AS dropped_reports_before,
            maxMap(dropped_runs) OVER earlier AS dropped_runs_before
        FROM (
            SELECT
                app_id, environment, installation, stream_id, day, stored, stored_runs, is_never_proven, base_sequence, base_runs,
                is_old AND place = 1 AS is_cut,
                if(is_trusted, toUInt64(pow(2, 60)),
                    stored_so_far + 2000 + intDiv(toUInt64(greatest(dateDiff('second', seen_since, last_at), 0)), 60)) AS reports_possible,
                if(is_trusted, toUInt64(pow(2, 60)),
                    stored_runs_so_far + toUInt64(reports_possible - stored_so_far) * greatest(most_runs_so_far, 1000)) AS runs_possible,
                least(claims.last_sequence, base_sequence + reports_possible) AS last_sequence,
                least(claims.recorded_runs, base_runs + runs_possible) AS recorded_runs,
                least(claims.unsealed_runs, base_unsealed + runs_possible) AS unsealed_runs,
                mapApply((r, n) -> (r, least(n, base_dropped_reports[r] + reports_possible)), claims.dropped_reports) AS dropped_reports,
                mapApply((r, n) -> (r, least(n, base_dropped_runs[r] + runs_possible)), claims.dropped_runs) AS dropped_runs,
                last_sequence < claims.last_sequence OR recorded_runs < claims.recorded_runs OR unsealed_runs < claims.unsealed_runs
                    OR dropped_reports != claims.dropped_reports OR dropped_runs != claims.dropped_runs AS is_beyond
            FROM (
                SELECT
                    *,
                    row_number() OVER so_far AS place,
                    min(is_unproven) OVER whole AS is_never_proven,
                    min(is_own) OVER whole AS is_trusted,
                    min(first_at) OVER so_far AS seen_since,
                    sum(stored) OVER so_far AS stored_so_far,
                    sum(stored_runs) OVER so_far AS stored_runs_so_far,
                    max(most_runs) OVER so_far AS most_runs_so_far,
                    -- A stream that may have rows beyond the horizon counts from its first day here.
                    min(day) OVER so_far <= toDate(now('UTC')) - ${raw_ttl_days} + 1 AS is_old,
                    if(is_old, first_value(if(stored = 0, last_sequence, toUInt64(first_stored - 1))) OVER so_far, 0) AS base_sequence,
                    if(is_old, first_value(toUInt64(recorded_runs - least(recorded_runs, stored_runs))) OVER so_far, 0) AS base_runs,
                    if(is_old, first_value(unsealed_runs) OVER so_far, 0) AS base_unsealed,
                    if(is_old, first_value(dropped_reports) OVER so_far, CAST(map(), 'Map(String, UInt64)')) AS base_dropped_reports,
                    if(is_old, first_value(dropped_runs) OVER so_far, CAST(map(), 'Map(String, UInt64)')) AS base_dropped_runs
                FROM stream_days_v1
                WINDOW so_far AS (PARTITION BY stream_id, installation, app_id, environment ORDER BY day
                    ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW),
                whole AS (PARTITION BY stream_id, installation, app_id, environment ORDER BY day
                    ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING)
            ) AS claims
        )
        WINDOW earlier AS (PARTITION BY stream_id, installation, app_id, environment ORDER BY day
            ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
    )
);

-- The ledger of each installation by day, in reports.
CREATE OR REPLACE VIEW installation_ledger_v1 ${on_cluster} AS
SELECT
    app_id, environment, day, installation,
    sumIf(entry.3, entry.1 = 'recorded') AS recorded,
    sumIf(entry.3, entry.1 = 'stored') AS stored,
    sumIf(entry.3, entry.1 = 'dropped') AS dropped,
    sumIf(entry.3, entry.1 = 'refused') AS refused,
    recorded - stored - dropped - refused AS missing,
    sumIf(entry.3, entry.1 = 'implausible') AS implausible,
    sumIf(entry.3, entry.1 = 'unproven') AS unproven
FROM stream_ledger_v1 ARRAY JOIN entries AS entry
GROUP BY app_id, environment, day, installation;

-- The installation that brings most of a figure of the day, and the figure over all installations that have some.
CREATE OR REPLACE VIEW largest_in_ledger_v1 ${on_cluster} AS
SELECT
    app_id, environment, day, figure.1 AS entry,
    argMax(installation, (figure.2, installation)) AS largest_installation,
    max(figure.2) AS largest_reports,
    sum(figure.2) AS reports
FROM installation_ledger_v1
-- More was dropped than recorded where `missing` is negative: that hides a loss of others.
ARRAY JOIN [('missing', abs(missing)), ('dropped', toUInt64(dropped)), ('refused', toUInt64(refused))] AS figure
WHERE figure.2 > 0
GROUP BY app_id, environment, day, entry;

-- The entries of the ledger. `kind` is recorded, stored, dropped, refused, unproven, implausible, duplicate, conflict
-- or answered. `reason` is the device's reason of a drop, or the outcome of an answer. `unproven` counts stored reports
-- of streams without a proven one, `implausible` streams whose counters are beyond their bounds.
CREATE OR REPLACE VIEW loss_ledger_entries_v1 ${on_cluster} AS
SELECT app_id, environment, day, entry.1 AS kind, entry.2 AS reason, sum(entry.3) AS reports, sum(entry.4) AS runs
FROM stream_ledger_v1
ARRAY JOIN entries AS entry
WHERE entry.3 != 0 OR entry.4 != 0 OR entry.1 IN ('recorded', 'stored')
GROUP BY app_id, environment, day, kind, reason
UNION ALL
-- Copies beyond the counted one: found as surplus in the store, the same report or another one with its key ...
SELECT app_id, environment, toDate(received_at) AS day,
    if((collector_id, wal_offset) IN (SELECT collector_id, wal_offset FROM conflicting_copies_v1), 'conflict', 'duplicate') AS kind,
    'surplus' AS reason,
    toInt64(count()) AS reports, toInt64(sum(arraySum(series_n))) AS runs
FROM reports
WHERE (collector_id, wal_offset) IN (SELECT collector_id, wal_offset FROM surplus_copies_v1)
  AND (collector_id, wal_offset, _block_number, _block_offset) NOT IN (
    SELECT collector_id, wal_offset, block_number, block_offset FROM repeated_rows_v1)
  AND installation NOT IN (SELECT installation FROM hidden_installations)
GROUP BY app_id, environment, day, kind
UNION ALL
-- ... or answered at once, without counting their runs. A refused conflict is an answer too.
SELECT app_id, environment, toDate(bucket) AS day,
    arrayJoin(multiIf(outcome = 'duplicate', ['duplicate'], outcome = 'refused_conflict', ['conflict', 'answered'], ['answered'])) AS kind,
    toString(outcome) AS reason,
    toInt64(sum(report_outcomes.reports)) AS reports, toInt64(0) AS runs
FROM report_outcomes
WHERE bucket >= toDateTime(toDate(now('UTC')) - ${raw_ttl_days}, 'UTC')
GROUP BY app_id, environment, day, kind, reason;

-- The ledger by day, in reports. An empty app stands for refused calls without a valid key.
CREATE OR REPLACE VIEW loss_ledger_daily_v1 ${on_cluster} AS
SELECT
    app_id, environment, day,
    sumIf(reports, kind = 'recorded') AS recorded,
    sumIf(reports, kind = 'stored') AS stored,
    sumIf(reports, kind = 'dropped') AS dropped,
    sumIf(reports, kind = 'refused') AS refused,
    recorded - stored - dropped - refused AS missing,
    sumIf(reports, kind = 'duplicate') AS duplicate,
    -- Other reports with the key of a stored one: the first that was received counts.
    sumIf(reports, kind = 'conflict') AS conflict,
    -- Beside the sum: stored reports of streams without a proven one, and streams that claim too much.
    sumIf(reports, kind = 'unproven') AS unproven,
    sumIf(reports, kind = 'implausible') AS implausible,
    sumMapIf(map(reason, reports), kind = 'dropped' AND reports != 0) AS dropped_by_reason,
    -- Answers of collectors by outcome; not part of the sum.
    sumMapIf(map(reason, reports), kind = 'answered') AS answered_by_outcome
FROM loss_ledger_entries_v1
GROUP BY app_id, environment, day;

-- The ledger by day, in runs that devices counted: the sampled ones, not all runs of the app.
CREATE OR REPLACE VIEW loss_ledger_runs_daily_v1 ${on_cluster} AS
SELECT
    app_id, environment, day,
    sumIf(runs, kind = 'recorded') AS recorded,
    sumIf(runs, kind = 'stored') AS stored,
    sumIf(runs, kind = 'dropped') AS dropped,
    sumIf(runs, kind = 'refused') AS refused,
    recorded - stored - dropped - refused AS missing,
    -- Of surplus copies in the store; copies that were answered at once were not read.
    sumIf(runs, kind = 'duplicate') AS duplicate,
    sumIf(runs, kind = 'conflict') AS conflict,
    sumIf(runs, kind = 'unproven') AS unproven,
    sumMapIf(map(reason, runs), kind = 'dropped' AND runs != 0) AS dropped_by_reason
FROM loss_ledger_entries_v1
WHERE kind != 'answered'
GROUP BY app_id, environment, day;

-- The ledger of an app as a whole.
CREATE OR REPLACE VIEW loss_ledger_v1 ${on_cluster} AS
SELECT
    app_id, environment,
    toUInt64(sumIf(reports, kind = 'recorded')) AS recorded,
    toUInt64(sumIf(reports, kind = 'stored')) AS stored,
    toUInt64(sumIf(reports, kind = 'dropped')) AS dropped,
    toUInt64(sumIf(reports, kind = 'refused')) AS refused,
    toInt64(recorded) - toInt64(stored) - toInt64(dropped) - toInt64(refused) AS missing,
    toUInt64(sumIf(reports, kind = 'unproven')) AS unproven,
    toUInt64(sumIf(reports, kind = 'implausible')) AS implausible
FROM loss_ledger_entries_v1
WHERE kind IN ('recorded', 'stored', 'dropped', 'refused', 'unproven', 'implausible')
GROUP BY app_id, environment;

-- Reports with a name that the cardinality limit replaced by `__other__`, by dimension.
CREATE OR REPLACE VIEW cardinality_limited_daily_v1 ${on_cluster} AS
SELECT
    app_id, environment, toDate(received_at) AS day,
    countIf(has(session_model_id, '__other__') OR has(start_failure_model_id, '__other__')) AS models,
    countIf(has(session_model_version, '__other__') OR has(start_failure_model_version, '__other__')) AS versions,
    countIf(chipset = '__other__') AS chipsets,
    countIf(has(series_shape_key, '__other__')) AS shape_keys,
    countIf(chipset = '__other__' OR has(session_model_id, '__other__') OR has(start_failure_model_id, '__other__')
        OR has(session_model_version, '__other__') OR has(start_failure_model_version, '__other__')
        OR has(series_shape_key, '__other__')) AS limited_reports,
    count() AS reports
FROM counted_reports_v1
GROUP BY app_id, environment, day;

-- Installations by whether they vote. Unproven ones exceeded the usual number of new installations of their
-- app or network.
CREATE OR REPLACE VIEW installations_daily_v1 ${on_cluster} AS
SELECT
    app_id, environment, toDate(received_at) AS day,
    uniqExact(installation) AS installations,
    uniqExactIf(installation, is_unproven) AS unproven,
    count() AS reports,
    countIf(is_unproven) AS unproven_reports
FROM counted_reports_v1
GROUP BY app_id, environment, day;

-- The ledger's entries as a collector read them last, since the views above read all of raw. Each collector reads them
-- every minute, less often where that takes long, with half an hour of rest at most, and inserts those that changed. A day
-- that raw no longer holds whole keeps its last reading.
CREATE TABLE IF NOT EXISTS loss_ledger_readings ${on_cluster} (
    app_id LowCardinality(String),
    environment LowCardinality(String),
    day Date,
    kind LowCardinality(String),
    reason LowCardinality(String),
    reports Int64,
    runs Int64,
    read_at DateTime64(3, 'UTC')
) ENGINE = ${replicated}ReplacingMergeTree(read_at)
ORDER BY (app_id, environment, day, kind, reason)
TTL day + INTERVAL ${rollup_ttl_days} DAY
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;

-- Counts of a day's reports and installations by name, read as `loss_ledger_readings` are, of today and yesterday.
CREATE TABLE IF NOT EXISTS daily_counts ${on_cluster} (
    app_id LowCardinality(String),
    environment LowCardinality(String),
    day Date,
    name LowCardinality(String),
    total UInt64,
    read_at DateTime64(3, 'UTC')
) ENGINE = ${replicated}ReplacingMergeTree(read_at)
ORDER BY (app_id, environment, day, name)
TTL day + INTERVAL ${rollup_ttl_days} DAY
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;

-- The entries of `loss_ledger_entries_v1` as read last: a minute old at most, and quick to read.
CREATE OR REPLACE VIEW loss_ledger_read_v1 ${on_cluster} AS
SELECT * FROM loss_ledger_readings FINAL;

-- `loss_ledger_daily_v1` as read last.
CREATE OR REPLACE VIEW loss_ledger_read_daily_v1 ${on_cluster} AS
SELECT
    app_id, environment, day,
    sumIf(reports, kind = 'recorded') AS recorded,
    sumIf(reports, kind = 'stored') AS stored,
    sumIf(reports, kind = 'dropped') AS dropped,
    sumIf(reports, kind = 'refused') AS refused,
    recorded - stored - dropped - refused AS missing,
    sumIf(reports, kind = 'duplicate') AS duplicate,
    -- Other reports with the key of a stored one: the first that was received counts.
    sumIf(reports, kind = 'conflict') AS conflict,
    -- Beside the sum: stored reports of streams without a proven one, and streams that claim too much.
    sumIf(reports, kind = 'unproven') AS unproven,
    sumIf(reports, kind = 'implausible') AS implausible,
    sumMapIf(map(reason, reports), kind = 'dropped' AND reports != 0) AS dropped_by_reason,
    -- Answers of collectors by outcome; not part of the sum.
    sumMapIf(map(reason, reports), kind = 'answered') AS answered_by_outcome,
    max(loss_ledger_read_v1.read_at) AS read_at
FROM loss_ledger_read_v1
GROUP BY app_id, environment, day;

-- `loss_ledger_runs_daily_v1` as read last.
CREATE OR REPLACE VIEW loss_ledger_runs_read_daily_v1 ${on_cluster} AS
SELECT
    app_id, environment, day,
    sumIf(runs, kind = 'recorded') AS recorded,
    sumIf(runs, kind = 'stored') AS stored,
    sumIf(runs, kind = 'dropped') AS dropped,
    sumIf(runs, kind = 'refused') AS refused,
    recorded - stored - dropped - refused AS missing,
    sumIf(runs, kind = 'duplicate') AS duplicate,
    sumIf(runs, kind = 'conflict') AS conflict,
    sumIf(runs, kind = 'unproven') AS unproven,
    sumMapIf(map(reason, runs), kind = 'dropped' AND runs != 0) AS dropped_by_reason
FROM loss_ledger_read_v1
WHERE kind != 'answered'
GROUP BY app_id, environment, day;

-- `daily_counts` as read last: `installations_daily_v1` and `cardinality_limited_daily_v1`, a row for each number.
CREATE OR REPLACE VIEW daily_counts_v1 ${on_cluster} AS
SELECT * FROM daily_counts FINAL;

-- Sessions of a day that could not be created, read as `loss_ledger_readings` are, of today and yesterday.
CREATE TABLE IF NOT EXISTS start_failures_daily ${on_cluster} (
    app_id LowCardinality(String),
    environment LowCardinality(String),
    day Date,
    model_id LowCardinality(String),
    model_version LowCardinality(String),
    chipset LowCardinality(String),
    start_phase LowCardinality(String),
    start_reason LowCardinality(String),
    ort_status Int32,
    failures UInt64,
    devices UInt64,
    read_at DateTime64(3, 'UTC')
) ENGINE = ${replicated}ReplacingMergeTree(read_at)
ORDER BY (app_id, environment, model_id, day, model_version, chipset, start_phase, start_reason, ort_status)
TTL day + INTERVAL ${rollup_ttl_days} DAY
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;

-- Devices of a day by the result of their golden self-tests, read likewise. A row without a hash is of all hashes; the
-- commonest ones have a row each.
CREATE TABLE IF NOT EXISTS self_tests_daily ${on_cluster} (
    app_id LowCardinality(String),
    environment LowCardinality(String),
    day Date,
    model_id LowCardinality(String),
    model_version LowCardinality(String),
    chipset LowCardinality(String),
    input_id LowCardinality(String),
    npu_hash String,
    devices UInt64,
    -- Those with a test in which the NPU's output has the CPU's hash or largest element, has another largest element,
    -- or is not there.
    devices_equal UInt64,
    devices_differ UInt64,
    devices_failed UInt64,
    -- 0 and 1 if no output was compared. The median is over tests; a device has one test for each firmware.
    worst_abs Float64,
    worst_cosine Float64,
    median_cosine Float64,
    read_at DateTime64(3, 'UTC')
) ENGINE = ${replicated}ReplacingMergeTree(read_at)
ORDER BY (app_id, environment, model_id, day, model_version, chipset, input_id, npu_hash)
TTL day + INTERVAL ${rollup_ttl_days} DAY
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;

-- Runs of a day that ONNX Runtime ended with an error, read likewise.
CREATE TABLE IF NOT EXISTS run_errors_daily ${on_cluster} (
    app_id LowCardinality(String),
    environment LowCardinality(String),
    day Date,
    model_id LowCardinality(String),
    model_version LowCardinality(String),
    chipset LowCardinality(String),
    ort_status Int32,
    errors UInt64,
    devices UInt64,
    read_at DateTime64(3, 'UTC')
) ENGINE = ${replicated}ReplacingMergeTree(read_at)
ORDER BY (app_id, environment, model_id, day, model_version, chipset, ort_status)
TTL day + INTERVAL ${rollup_ttl_days} DAY
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;

-- Failed starts by day, as read last: a minute old at most. Devices of several days must not be added.
CREATE OR REPLACE VIEW start_failures_daily_v1 ${on_cluster} AS
SELECT * FROM start_failures_daily FINAL;

-- Golden self-tests by day, as read last. `npu_hash` is empty for all hashes together; the eight commonest have rows too.
CREATE OR REPLACE VIEW self_tests_daily_v1 ${on_cluster} AS
SELECT * FROM self_tests_daily FINAL;

-- Failed runs by day, as read last.
CREATE OR REPLACE VIEW run_errors_daily_v1 ${on_cluster} AS
SELECT * FROM run_errors_daily FINAL;
