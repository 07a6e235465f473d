-- Views for readers. A report counts once in each; deleted installations are in none. A view never
-- changes its meaning: a new one gets the next number.
--
-- A report is never received before its bucket begins. A condition on `received_at` next to one on `bucket` only leaves
-- out partitions of earlier days.

-- Copies in open buckets that do not count. Only keys that have a copy in an open bucket are looked up, over all time.
-- Stream and sequence are two numbers that hardly two reports share, so they are looked up first. Whole keys are read
-- and compared only where both numbers match.
CREATE OR REPLACE VIEW open_surplus_copies_v1 ${on_cluster} AS
SELECT DISTINCT collector_id, wal_offset FROM report_copies
WHERE bucket >= (SELECT max(closed_until) FROM rollup_watermark)
  AND received_at >= (SELECT max(closed_until) FROM rollup_watermark)
  AND (app_id, installation, stream_id, sequence, received_at, collector_id, wal_offset) NOT IN (
    SELECT app_id, installation, stream_id, sequence, (min((received_at, collector_id, wal_offset)) AS first).1, first.2, first.3
    FROM report_copies
    PREWHERE (stream_id, sequence) IN (
        SELECT stream_id, sequence FROM report_copies
        WHERE bucket >= (SELECT max(closed_until) FROM rollup_watermark)
          AND received_at >= (SELECT max(closed_until) FROM rollup_watermark))
    WHERE (app_id, installation, stream_id, sequence) IN (
        SELECT app_id, installation, stream_id, sequence FROM report_copies
        WHERE bucket >= (SELECT max(closed_until) FROM rollup_watermark)
          AND received_at >= (SELECT max(closed_until) FROM rollup_watermark))
    GROUP BY app_id, installation, stream_id, sequence);

-- Copies that do not count. A table lists the copies of closed buckets, and this view finds the copies of open ones.
CREATE OR REPLACE VIEW surplus_copies_v1 ${on_cluster} AS
SELECT DISTINCT collector_id, wal_offset FROM (
    SELECT collector_id, wal_offset FROM surplus_copies
    UNION ALL
    SELECT collector_id, wal_offset FROM open_surplus_copies_v1);

-- Rows of open buckets beyond the first of their log position: a position is one copy, however many rows it has. All rows
-- of a position have its receive time.
CREATE OR REPLACE VIEW open_repeated_rows_v1 ${on_cluster} AS
SELECT collector_id, wal_offset, _block_number AS block_number, _block_offset AS block_offset FROM reports
WHERE bucket >= (SELECT max(closed_until) FROM rollup_watermark)
  AND received_at >= (SELECT max(closed_until) FROM rollup_watermark)
  AND (collector_id, wal_offset) IN (
    SELECT collector_id, wal_offset FROM reports
    WHERE bucket >= (SELECT max(closed_until) FROM rollup_watermark)
      AND received_at >= (SELECT max(closed_until) FROM rollup_watermark)
    GROUP BY collector_id, wal_offset HAVING count() > 1)
ORDER BY block_number, block_offset
LIMIT 1, 1000000 BY collector_id, wal_offset;

-- Rows of reports beyond the first of their log position. A table lists the rows of closed buckets, and
-- `open_repeated_rows_v1` finds the rows of open ones.
CREATE OR REPLACE VIEW repeated_rows_v1 ${on_cluster} AS
SELECT collector_id, wal_offset, block_number, block_offset FROM repeated_rows
UNION ALL
SELECT collector_id, wal_offset, block_number, block_offset FROM open_repeated_rows_v1;

-- Copies that do not count and are not the same report as the first copy of their key: two senders, or a forger.
CREATE OR REPLACE VIEW conflicting_copies_v1 ${on_cluster} AS
SELECT DISTINCT collector_id, wal_offset FROM report_copies
WHERE (collector_id, wal_offset) IN (SELECT collector_id, wal_offset FROM surplus_copies_v1)
  AND (app_id, installation, stream_id, sequence, content) NOT IN (
    SELECT app_id, installation, stream_id, sequence,
        argMin(report_copies.content, (received_at, collector_id, wal_offset))
    FROM report_copies
    WHERE (app_id, installation, stream_id, sequence) IN (
        SELECT app_id, installation, stream_id, sequence FROM report_copies
        WHERE (collector_id, wal_offset) IN (SELECT collector_id, wal_offset FROM surplus_copies_v1))
    GROUP BY app_id, installation, stream_id, sequence);

-- Every report, once.
CREATE OR REPLACE VIEW counted_reports_v1 ${on_cluster} AS
SELECT * EXCEPT (network, network_wide), network != 0 AS has_network FROM reports
WHERE (collector_id, wal_offset) NOT IN (SELECT collector_id, wal_offset FROM surplus_copies_v1)
  AND (collector_id, wal_offset, _block_number, _block_offset) NOT IN (
    SELECT collector_id, wal_offset, block_number, block_offset FROM repeated_rows_v1)
  AND installation NOT IN (SELECT installation FROM hidden_installations);

-- Reports less the listed copies and rows. A report of an open bucket is here as often as it came;
-- `open_surplus_copies_v1` has its copies that do not count, `open_repeated_rows_v1` their further rows. A reader of the
-- same reports in several queries reads this view in each, and those two once.
CREATE OR REPLACE VIEW settled_reports_v1 ${on_cluster} AS
SELECT * EXCEPT (network, network_wide), network != 0 AS has_network FROM reports
WHERE (collector_id, wal_offset) NOT IN (SELECT collector_id, wal_offset FROM surplus_copies)
  AND (collector_id, wal_offset, _block_number, _block_offset) NOT IN (
    SELECT collector_id, wal_offset, block_number, block_offset FROM repeated_rows)
  AND installation NOT IN (SELECT installation FROM hidden_installations);

-- Reports of closed buckets, once: what reads many single reports takes these, and looks up no copies of open buckets.
CREATE OR REPLACE VIEW closed_reports_v1 ${on_cluster} AS
SELECT * EXCEPT (network, network_wide), network != 0 AS has_network FROM reports
WHERE bucket < (SELECT max(closed_until) FROM rollup_watermark)
  AND (collector_id, wal_offset) NOT IN (SELECT collector_id, wal_offset FROM surplus_copies)
  AND (collector_id, wal_offset, _block_number, _block_offset) NOT IN (
    SELECT collector_id, wal_offset, block_number, block_offset FROM repeated_rows)
  AND installation NOT IN (SELECT installation FROM hidden_installations);

-- Every session of every report: a session that spans reports has a row in each.
CREATE OR REPLACE VIEW device_sessions_v1 ${on_cluster} AS
SELECT
    bucket, received_at, occurred_at, is_late, is_unproven, app_id, environment, app_version, installation, stream_id,
    session_chipset[i] AS chipset, firmware, device_manufacturer, device_model, sdk_version,
    concat(ort_version, '/', ep_version) AS runtime,
    uid AS session_uid,
    session_model_id[i] AS model_id,
    session_model_version[i] AS model_version,
    session_directive_id[i] AS directive_id,
    session_requests_npu[i] AS requests_npu,
    session_requested_eps[i] AS requested_eps,
    session_selection_policy[i] AS selection_policy,
    session_devices[i] AS ep_devices,
    session_graph_kind[i] AS graph_kind,
    session_placement_source[i] AS placement_source,
    session_fingerprint_algorithm[i] AS fingerprint_algorithm,
    session_fingerprint_exact[i] AS fingerprint_exact,
    session_fingerprint_normalised[i] AS fingerprint_normalised,
    session_n_nodes[i] AS n_nodes,
    session_npu_nodes[i] AS npu_nodes,
    session_npu_partitions[i] AS npu_partitions,
    session_cpu_nodes[i] AS cpu_nodes,
    session_cpu_benign_nodes[i] AS cpu_benign_nodes,
    session_npu_macs_share[i] AS npu_macs_share,
    session_macs_attributed[i] AS macs_attributed,
    session_reasons[i] AS reasons,
    session_creation_us[i] AS creation_us
FROM counted_reports_v1
ARRAY JOIN session_uid AS uid, arrayEnumerate(session_uid) AS i;

-- Every latency series of every report, with its session's placement.
CREATE OR REPLACE VIEW device_series_v1 ${on_cluster} AS
SELECT
    bucket, received_at, occurred_at, is_late, is_unproven, app_id, environment, app_version, installation, stream_id,
    session_chipset[s] AS chipset, firmware, device_model, sdk_version,
    concat(ort_version, '/', ep_version) AS runtime,
    session_uid[s] AS session_uid,
    session_model_id[s] AS model_id,
    session_model_version[s] AS model_version,
    session_directive_id[s] AS directive_id,
    session_requests_npu[s] AS requests_npu,
    session_graph_kind[s] AS graph_kind,
    session_placement_source[s] AS placement_source,
    session_fingerprint_algorithm[s] AS fingerprint_algorithm,
    session_fingerprint_normalised[s] AS fingerprint_normalised,
    phase, thermal, power_save, performance_mode, shape_key, session_age, is_clean,
    multiIf(is_clean, 'clean', phase = 'cold', 'cold', 'strained') AS context,
    hist_scheme, hist_bucket, hist_count, n, sum_us, m2_us2, min_us, max_us,
    runs_seen, sampled_one_in, dropped_runs, first_runs_us, slow_fast_switches, longest_slow_streak,
    beyond_1_4x, beyond_2x, beyond_3x,
    previous_version, previous_n, previous_p10_us, previous_p50_us, previous_p95_us, previous_cv,
    earlier_firmware, earlier_runtime, earlier_n, earlier_p10_us, earlier_p50_us, earlier_p95_us, earlier_cv,
    baseline_absence
FROM counted_reports_v1
ARRAY JOIN
    series_session AS s, series_phase AS phase, series_thermal AS thermal, series_power_save AS power_save,
    series_performance_mode AS performance_mode, series_shape_key AS shape_key, series_session_age AS session_age,
    series_is_clean AS is_clean, series_hist_scheme AS hist_scheme,
    series_hist_bucket AS hist_bucket, series_hist_count AS hist_count,
    series_n AS n, series_sum_us AS sum_us, series_m2_us2 AS m2_us2, series_min_us AS min_us, series_max_us AS max_us,
    series_runs_seen AS runs_seen, series_sampled_one_in AS sampled_one_in, series_dropped_runs AS dropped_runs,
    series_first_runs_us AS first_runs_us, series_slow_fast_switches AS slow_fast_switches,
    series_longest_slow_streak AS longest_slow_streak,
    series_beyond_1_4x AS beyond_1_4x, series_beyond_2x AS beyond_2x, series_beyond_3x AS beyond_3x,
    series_previous_version AS previous_version, series_previous_n AS previous_n,
    series_previous_p10_us AS previous_p10_us, series_previous_p50_us AS previous_p50_us,
    series_previous_p95_us AS previous_p95_us, series_previous_cv AS previous_cv,
    series_earlier_firmware AS earlier_firmware, series_earlier_runtime AS earlier_runtime,
    series_earlier_n AS earlier_n, series_earlier_p10_us AS earlier_p10_us, series_earlier_p50_us AS earlier_p50_us,
    series_earlier_p95_us AS earlier_p95_us, series_earlier_cv AS earlier_cv,
    series_baseline_absence AS baseline_absence;

-- One device in one bucket, per cohort, input shape, placement and context: the sums of histograms and
-- moments. A vote is the sum of these over a window.
CREATE OR REPLACE VIEW device_buckets_v1 ${on_cluster} AS
SELECT
    bucket, app_id, environment, installation, model_id, model_version, chipset, firmware, runtime, app_version,
    device_model, requests_npu, directive_id, graph_kind, placement_source,
    fingerprint_algorithm, fingerprint_normalised, shape_key, context, hist_scheme,
    -- Only these vote.
    NOT (is_late OR is_unproven) AS votes, is_unproven,
    sumMap(mapFromArrays(hist_bucket, hist_count)) AS hist,
    sum(device_series_v1.n) AS n,
    sum(device_series_v1.sum_us) AS sum_us,
    -- Chan's formula; rounding must not take it below zero.
    greatest(0, sum(device_series_v1.m2_us2) + sum(pow(device_series_v1.sum_us, 2) / device_series_v1.n)
        - pow(sum(device_series_v1.sum_us), 2) / sum(device_series_v1.n)) AS m2_us2,
    min(device_series_v1.min_us) AS min_us,
    max(device_series_v1.max_us) AS max_us,
    sum(device_series_v1.runs_seen) AS runs_seen,
    sum(device_series_v1.dropped_runs) AS dropped_runs,
    -- NULL if no series had a baseline to exceed; `n_exceed` counts the runs that had one.
    sum(device_series_v1.beyond_1_4x) AS beyond_1_4x,
    sum(device_series_v1.beyond_2x) AS beyond_2x,
    sum(device_series_v1.beyond_3x) AS beyond_3x,
    sumIf(device_series_v1.n, isNotNull(device_series_v1.beyond_2x)) AS n_exceed,
    -- The device's own baselines, from its latest series here.
    argMax((previous_version, previous_n, previous_p10_us, previous_p50_us, previous_p95_us, previous_cv), (received_at, stream_id)) AS previous,
    argMax((earlier_firmware, earlier_runtime, earlier_n, earlier_p10_us, earlier_p50_us, earlier_p95_us, earlier_cv), (received_at, stream_id)) AS earlier,
    argMax(baseline_absence, (received_at, stream_id)) AS baseline_absence,
    uniqExact(session_uid) AS sessions
FROM device_series_v1
GROUP BY
    bucket, app_id, environment, installation, model_id, model_version, chipset, firmware, runtime, app_version,
    device_model, requests_npu, directive_id, graph_kind, placement_source,
    fingerprint_algorithm, fingerprint_normalised, shape_key, context, hist_scheme, votes, is_unproven;

-- One device in one bucket, per cohort and placement.
CREATE OR REPLACE VIEW device_placements_v1 ${on_cluster} AS
SELECT
    bucket, app_id, environment, installation, model_id, model_version, chipset, firmware, runtime, app_version,
    device_model, requests_npu, directive_id, graph_kind, placement_source,
    fingerprint_algorithm, fingerprint_exact, fingerprint_normalised,
    NOT (is_late OR is_unproven) AS votes, is_unproven,
    any(device_sessions_v1.n_nodes) AS n_nodes,
    any(device_sessions_v1.npu_nodes) AS npu_nodes,
    any(device_sessions_v1.cpu_nodes) AS cpu_nodes,
    any(device_sessions_v1.cpu_benign_nodes) AS cpu_benign_nodes,
    any(device_sessions_v1.npu_partitions) AS npu_partitions,
    any(device_sessions_v1.npu_macs_share) AS npu_macs_share,
    any(device_sessions_v1.macs_attributed) AS macs_attributed,
    any(device_sessions_v1.requested_eps) AS requested_eps,
    any(device_sessions_v1.selection_policy) AS selection_policy,
    groupUniqArrayArray(16)(device_sessions_v1.ep_devices) AS ep_devices,
    groupUniqArrayArray(device_sessions_v1.reasons) AS reasons,
    uniqExact(session_uid) AS sessions
FROM device_sessions_v1
GROUP BY
    bucket, app_id, environment, installation, model_id, model_version, chipset, firmware, runtime, app_version,
    device_model, requests_npu, directive_id, graph_kind, placement_source,
    fingerprint_algorithm, fingerprint_exact, fingerprint_normalised, votes, is_unproven;

-- The nodes behind a fingerprint, as first seen.
CREATE OR REPLACE VIEW placements_v1 ${on_cluster} AS
SELECT * FROM placements
ORDER BY first_seen
LIMIT 1 BY app_id, environment, model_id, model_version, fingerprint_algorithm, fingerprint_exact;

-- The summary of a bucket, from rows counted once, without unproven installations: made-up ones would stay in it for a
-- year. The roll-up of a closed bucket is a stored answer of this view; for open buckets readers query it.
CREATE OR REPLACE VIEW cohort_buckets_fresh_v1 ${on_cluster} AS
SELECT
    app_id, environment, bucket, epwatch_slice(installation) AS slice,
    model_id, model_version, chipset, firmware, app_version, runtime, shape_key, fingerprint_normalised,
    context, hist_scheme, 'v1' AS algo,
    uniqExact(installation) AS devices,
    sum(device_buckets_v1.n) AS n,
    sum(device_buckets_v1.sum_us) AS sum_us,
    sum(device_buckets_v1.m2_us2) AS m2_us2,
    sum(pow(device_buckets_v1.sum_us, 2) / device_buckets_v1.n) AS device_square,
    min(device_buckets_v1.min_us) AS min_us,
    max(device_buckets_v1.max_us) AS max_us,
    sumMap(device_buckets_v1.hist) AS hist
FROM device_buckets_v1
WHERE NOT is_unproven
GROUP BY
    app_id, environment, bucket, slice, model_id, model_version, chipset, firmware, app_version, runtime,
    shape_key, fingerprint_normalised, context, hist_scheme;

-- Summarises a bucket's sessions; `cohort_buckets_fresh_v1` summarises its latency.
CREATE OR REPLACE VIEW cohort_sessions_fresh_v1 ${on_cluster} AS
SELECT
    app_id, environment, bucket, epwatch_slice(installation) AS slice,
    model_id, model_version, chipset, firmware, app_version, runtime,
    requests_npu, graph_kind, placement_source, fingerprint_algorithm, fingerprint_exact, fingerprint_normalised,
    'v1' AS algo,
    sum(device_placements_v1.sessions) AS sessions,
    uniqExact(installation) AS devices,
    any(device_placements_v1.n_nodes) AS n_nodes,
    any(device_placements_v1.npu_nodes) AS npu_nodes,
    any(device_placements_v1.cpu_nodes) AS cpu_nodes,
    any(device_placements_v1.cpu_benign_nodes) AS cpu_benign_nodes,
    any(device_placements_v1.npu_partitions) AS npu_partitions,
    any(device_placements_v1.npu_macs_share) AS npu_macs_share,
    any(device_placements_v1.macs_attributed) AS macs_attributed,
    any(device_placements_v1.requested_eps) AS requested_eps,
    any(device_placements_v1.selection_policy) AS selection_policy,
    groupUniqArrayArray(16)(device_placements_v1.ep_devices) AS ep_devices,
    sumIf(device_placements_v1.sessions, directive_id != '') AS directed_sessions,
    groupUniqArrayArray(device_placements_v1.reasons) AS reasons
FROM device_placements_v1
WHERE NOT is_unproven
GROUP BY
    app_id, environment, bucket, slice, model_id, model_version, chipset, firmware, app_version, runtime,
    requests_npu, graph_kind, placement_source, fingerprint_algorithm, fingerprint_exact, fingerprint_normalised;

-- A cohort's latency in a closed bucket: never read from raw, so quick. The detector judges closed buckets too.
CREATE OR REPLACE VIEW cohort_buckets_closed_v1 ${on_cluster} AS
SELECT
    app_id, environment, bucket, slice, model_id, model_version, chipset, firmware, app_version, runtime,
    shape_key, fingerprint_normalised, context, hist_scheme, algo,
    devices, n, sum_us, m2_us2, device_square, min_us, max_us, hist
FROM cohort_buckets
WHERE bucket < (SELECT max(closed_until) FROM rollup_watermark)
  AND (app_id, environment, bucket, slice, revision) IN (
    SELECT app_id, environment, bucket, slice, max(revision) FROM bucket_revisions
    GROUP BY app_id, environment, bucket, slice);

-- A cohort's sessions and placements in a closed bucket.
CREATE OR REPLACE VIEW cohort_sessions_closed_v1 ${on_cluster} AS
SELECT
    app_id, environment, bucket, slice, model_id, model_version, chipset, firmware, app_version, runtime,
    requests_npu, graph_kind, placement_source, fingerprint_algorithm, fingerprint_exact, fingerprint_normalised, algo,
    sessions, devices, n_nodes, npu_nodes, cpu_nodes, cpu_benign_nodes, npu_partitions, npu_macs_share, macs_attributed,
    requested_eps, selection_policy, ep_devices, directed_sessions, reasons
FROM cohort_sessions
WHERE bucket < (SELECT max(closed_until) FROM rollup_watermark)
  AND (app_id, environment, bucket, slice, revision) IN (
    SELECT app_id, environment, bucket, slice, max(revision) FROM bucket_revisions
    GROUP BY app_id, environment, bucket, slice);

-- A cohort's latency in a bucket, closed or open.
CREATE OR REPLACE VIEW cohort_buckets_v1 ${on_cluster} AS
SELECT
    app_id, environment, bucket, slice, model_id, model_version, chipset, firmware, app_version, runtime,
    shape_key, fingerprint_normalised, context, hist_scheme, algo,
    devices, n, sum_us, m2_us2, device_square, min_us, max_us, hist
FROM cohort_buckets_closed_v1
UNION ALL
SELECT
    app_id, environment, bucket, slice, model_id, model_version, chipset, firmware, app_version, runtime,
    shape_key, fingerprint_normalised, context, hist_scheme, algo,
    devices, n, sum_us, m2_us2, device_square, min_us, max_us, hist
FROM cohort_buckets_fresh_v1
WHERE bucket >= (SELECT max(closed_until) FROM rollup_watermark);

-- A cohort's sessions and placements in a bucket, closed or open.
CREATE OR REPLACE VIEW cohort_sessions_v1 ${on_cluster} AS
SELECT
    app_id, environment, bucket, slice, model_id, model_version, chipset, firmware, app_version, runtime,
    requests_npu, graph_kind, placement_source, fingerprint_algorithm, fingerprint_exact, fingerprint_normalised, algo,
    sessions, devices, n_nodes, npu_nodes, cpu_nodes, cpu_benign_nodes, npu_partitions, npu_macs_share, macs_attributed,
    requested_eps, selection_policy, ep_devices, directed_sessions, reasons
FROM cohort_sessions_closed_v1
UNION ALL
SELECT
    app_id, environment, bucket, slice, model_id, model_version, chipset, firmware, app_version, runtime,
    requests_npu, graph_kind, placement_source, fingerprint_algorithm, fingerprint_exact, fingerprint_normalised, algo,
    sessions, devices, n_nodes, npu_nodes, cpu_nodes, cpu_benign_nodes, npu_partitions, npu_macs_share, macs_attributed,
    requested_eps, selection_policy, ep_devices, directed_sessions, reasons
FROM cohort_sessions_fresh_v1
WHERE bucket >= (SELECT max(closed_until) FROM rollup_watermark);

-- The latest judgement of each window.
CREATE OR REPLACE VIEW cohort_windows_v1 ${on_cluster} AS
SELECT * FROM cohort_windows FINAL;

-- Windows that were judged. Between the first and the last, one that is not here is missing in `cohort_windows_v1`.
CREATE OR REPLACE VIEW judged_windows_v1 ${on_cluster} AS
SELECT * FROM judged_windows FINAL;

-- Times between two judged windows of one length in which windows are missing. Either their rows could not be stored,
-- or no detector ran, or the detector is slower than its step and has not judged them yet.
CREATE OR REPLACE VIEW missing_windows_v1 ${on_cluster} AS
SELECT
    window_seconds, gap_from, window_end AS gap_until,
    gap_from + toIntervalMillisecond(toInt64(1000 * step_seconds)) AS missing_from,
    toUInt64(round(dateDiff('millisecond', gap_from, gap_until) / (1000 * step_seconds)) - 1) AS windows
FROM (
    SELECT window_seconds, step_seconds, window_end,
        any(window_end) OVER (PARTITION BY window_seconds ORDER BY window_end ROWS BETWEEN 1 PRECEDING AND 1 PRECEDING) AS gap_from
    FROM judged_windows_v1
)
WHERE toUnixTimestamp64Milli(gap_from) > 0 AND dateDiff('millisecond', gap_from, window_end) > 1500 * step_seconds
    AND step_seconds > 0;

-- Judged windows of cohorts to draw over time. Where windows are missing, the first of them has a row without values
-- for each cohort of the last window before. The row has the severity of that window. So no line or state goes on.
CREATE OR REPLACE VIEW cohort_timeline_v1 ${on_cluster} AS
SELECT
    window_end, window_seconds, app_id, environment, model_id, model_version, chipset, firmware,
    CAST(verdict, 'Nullable(String)') AS verdict, toString(severity) AS last_severity,
    CAST(devices_hit, 'Nullable(UInt64)') AS devices_hit, CAST(eligible_devices, 'Nullable(UInt64)') AS eligible_devices,
    cv_within, cv_between, dip, signal_id, CAST(signal_value, 'Array(Nullable(Float64))') AS signal_value
FROM cohort_windows_v1
UNION ALL
SELECT
    m.missing_from, w.window_seconds, w.app_id, w.environment, w.model_id, w.model_version, w.chipset, w.firmware,
    NULL, toString(w.severity), NULL, NULL, NULL, NULL, NULL, w.signal_id, arrayMap(id -> CAST(NULL, 'Nullable(Float64)'), w.signal_id)
FROM cohort_windows_v1 AS w
INNER JOIN missing_windows_v1 AS m ON w.window_end = m.gap_from AND w.window_seconds = m.window_seconds;

-- The current state of each incident.
CREATE OR REPLACE VIEW incidents_v1 ${on_cluster} AS
SELECT * FROM incidents
ORDER BY changed_at DESC
LIMIT 1 BY incident_id;

-- What an incident became, a row for each change of state, severity, verdict, cause or devices hit.
CREATE OR REPLACE VIEW incident_changes_v1 ${on_cluster} AS
SELECT * EXCEPT (before, told)
FROM (
    SELECT *,
        (toString(state), toString(severity), toString(verdict), devices_hit, devices_seen) AS told,
        any(told) OVER (PARTITION BY incident_id ORDER BY changed_at ROWS BETWEEN 1 PRECEDING AND 1 PRECEDING) AS before
    FROM incidents
)
WHERE before != told;

-- What people were told of an incident: the first state with each number of its news, as it was sent.
CREATE OR REPLACE VIEW incident_news_v1 ${on_cluster} AS
SELECT
    incident_id, JSONExtractUInt(document, 'news') AS news, changed_at AS told_at, state, severity, devices_hit,
    devices_seen, notification
FROM incidents
WHERE notification != ''
ORDER BY changed_at
LIMIT 1 BY incident_id, news;

-- When each notifier had delivered the news of an incident up to a number, or gave them up. It gives up news that its
-- receiver refused until the incident was over for a day. A number that a later one overtook is absent.
CREATE OR REPLACE VIEW incident_deliveries_v1 ${on_cluster} AS
SELECT
    incident_id, delivery.1 AS notifier, delivery.2 AS news, min(changed_at) AS delivered_at,
    toBool(max(JSONExtractUInt(document, 'refused', notifier) = news)) AS is_refused
FROM incidents
ARRAY JOIN JSONExtractKeysAndValues(document, 'delivered', 'UInt64') AS delivery
GROUP BY incident_id, notifier, news;

-- What a verdict was made from, of each window with a finding, and of the latest window of each cohort.
CREATE OR REPLACE VIEW cohort_evidence_v1 ${on_cluster} AS
SELECT * FROM cohort_evidence FINAL;

-- Sessions that could not be created, an entry of a report in each row.
CREATE OR REPLACE VIEW start_failures_v1 ${on_cluster} AS
SELECT
    bucket, received_at, app_id, environment, app_version, installation,
    if(failed_chipset = '', reported.chipset, failed_chipset) AS chipset, firmware, device_model,
    concat(ort_version, '/', ep_version) AS runtime,
    failed_model AS model_id, failed_version AS model_version, asked AS requested_eps, at_phase AS start_phase,
    why AS start_reason, status AS ort_status, said AS start_text, times AS failures
FROM counted_reports_v1 AS reported
ARRAY JOIN
    start_failure_chipset AS failed_chipset, start_failure_model_id AS failed_model, start_failure_model_version AS failed_version,
    start_failure_requested_eps AS asked, start_failure_phase AS at_phase, start_failure_reason AS why,
    start_failure_ort_status AS status, start_failure_text AS said, start_failure_count AS times;

-- Golden self-tests, one in each row.
CREATE OR REPLACE VIEW self_tests_v1 ${on_cluster} AS
SELECT
    bucket, received_at, app_id, environment, app_version, installation,
    session_chipset[indexOf(session_uid, uid)] AS chipset, firmware, device_model,
    concat(ort_version, '/', ep_version) AS runtime,
    session_model_id[indexOf(session_uid, uid)] AS model_id,
    session_model_version[indexOf(session_uid, uid)] AS model_version,
    input AS input_id, npu AS npu_hash, cpu AS cpu_hash, distance AS max_abs, similarity AS cosine, same AS top1_equal,
    code AS error_code, off AS first_off_output
FROM counted_reports_v1
ARRAY JOIN
    self_test_session AS uid, self_test_input_id AS input, self_test_npu_hash AS npu, self_test_cpu_hash AS cpu,
    self_test_max_abs AS distance, self_test_cosine AS similarity, self_test_top1_equal AS same,
    self_test_error_code AS code, self_test_first_off_output AS off;

-- Runs that ONNX Runtime ended with an error, an entry of a report in each row.
CREATE OR REPLACE VIEW run_errors_v1 ${on_cluster} AS
SELECT
    bucket, received_at, app_id, environment, app_version, installation,
    session_chipset[indexOf(session_uid, uid)] AS chipset, firmware, device_model,
    concat(ort_version, '/', ep_version) AS runtime,
    session_model_id[indexOf(session_uid, uid)] AS model_id,
    session_model_version[indexOf(session_uid, uid)] AS model_version,
    status AS ort_status, times AS errors
FROM counted_reports_v1
ARRAY JOIN run_error_session AS uid, run_error_ort_status AS status, run_error_count AS times;

-- Copies beyond the counted one: answered as duplicate at once, or found as surplus in the store.
CREATE OR REPLACE VIEW duplicates_v1 ${on_cluster} AS
SELECT app_id, environment, sum(copies) AS duplicate
FROM (
    SELECT app_id, environment, sum(report_outcomes.reports) AS copies FROM report_outcomes
    WHERE outcome = 'duplicate' GROUP BY app_id, environment
    UNION ALL
    SELECT app_id, environment, count() AS copies FROM reports
    WHERE (collector_id, wal_offset) IN (SELECT collector_id, wal_offset FROM surplus_copies_v1)
      AND (collector_id, wal_offset) NOT IN (SELECT collector_id, wal_offset FROM conflicting_copies_v1)
      AND (collector_id, wal_offset, _block_number, _block_offset) NOT IN (
        SELECT collector_id, wal_offset, block_number, block_offset FROM repeated_rows_v1)
      AND installation NOT IN (SELECT installation FROM hidden_installations)
    GROUP BY app_id, environment
)
GROUP BY app_id, environment;
