//! What is asked of the views: filters and sums, nothing else.

/// One row for each vote: a device's clean runs of the window, added. Binds: scheme, model, window.
pub(super) const VOTES: &str = "
    SELECT model_version, chipset, firmware, device_model, installation,
        graph_kind, placement_source, fingerprint_algorithm, fingerprint_normalised, shape_key,
        mapKeys(merged) AS hist_bucket, mapValues(merged) AS hist_count,
        runs AS n, total AS sum_us, deviations AS m2_us2,
        previous, earlier, absence
    FROM (
        SELECT model_version, chipset, firmware, installation,
            graph_kind, placement_source, fingerprint_algorithm, fingerprint_normalised, shape_key,
            sumMap(mapFromArrays(s.hist_bucket, s.hist_count)) AS merged,
            sum(s.n) AS runs, sum(s.sum_us) AS total,
            greatest(0, sum(s.m2_us2) + sum(pow(s.sum_us, 2) / s.n)
                - pow(sum(s.sum_us), 2) / sum(s.n)) AS deviations,
            argMax(s.device_model, (s.received_at, s.stream_id, s.session_uid)) AS device_model,
            argMax((s.previous_version, s.previous_n, s.previous_p10_us, s.previous_p50_us,
                s.previous_p95_us, s.previous_cv),
                (s.received_at, s.stream_id, s.session_uid)) AS previous,
            argMax((s.earlier_firmware, s.earlier_runtime, s.earlier_n, s.earlier_p10_us,
                s.earlier_p50_us, s.earlier_p95_us, s.earlier_cv),
                (s.received_at, s.stream_id, s.session_uid)) AS earlier,
            argMax(s.baseline_absence, (s.received_at, s.stream_id, s.session_uid)) AS absence
        FROM device_series_v1 AS s
        WHERE is_clean AND requests_npu AND NOT (is_late OR is_unproven) AND directive_id = ''
            AND hist_scheme = ? AND app_id = ? AND environment = ? AND model_id = ?
            AND bucket >= toDateTime(?) AND bucket < toDateTime(?)
        GROUP BY model_version, chipset, firmware, installation,
            graph_kind, placement_source, fingerprint_algorithm, fingerprint_normalised, shape_key
    )";

/// Earlier buckets of votes with too few runs, the latest first; 20 buckets hold at least 20 runs.
/// Binds: scheme, model, span before the window, scheme, model, window.
pub(super) const EARLIER: &str = "
    SELECT model_version, chipset, firmware, installation,
        graph_kind, placement_source, fingerprint_algorithm, fingerprint_normalised, shape_key,
        mapKeys(merged) AS hist_bucket, mapValues(merged) AS hist_count,
        runs AS n, total AS sum_us, deviations AS m2_us2
    FROM (
        SELECT bucket, model_version, chipset, firmware, installation,
            graph_kind, placement_source, fingerprint_algorithm, fingerprint_normalised, shape_key,
            sumMap(mapFromArrays(s.hist_bucket, s.hist_count)) AS merged,
            sum(s.n) AS runs, sum(s.sum_us) AS total,
            greatest(0, sum(s.m2_us2) + sum(pow(s.sum_us, 2) / s.n)
                - pow(sum(s.sum_us), 2) / sum(s.n)) AS deviations
        FROM device_series_v1 AS s
        WHERE is_clean AND requests_npu AND NOT (is_late OR is_unproven) AND directive_id = ''
            AND hist_scheme = ? AND app_id = ? AND environment = ? AND model_id = ?
            AND bucket >= toDateTime(?) AND bucket < toDateTime(?)
            AND (installation, model_version, chipset, firmware, graph_kind, placement_source,
                fingerprint_algorithm, fingerprint_normalised, shape_key) IN (
                SELECT installation, model_version, chipset, firmware, graph_kind, placement_source,
                    fingerprint_algorithm, fingerprint_normalised, shape_key
                FROM device_series_v1 AS t
                WHERE is_clean AND requests_npu AND NOT (is_late OR is_unproven) AND directive_id = ''
                    AND hist_scheme = ? AND app_id = ? AND environment = ? AND model_id = ?
                    AND bucket >= toDateTime(?) AND bucket < toDateTime(?)
                GROUP BY installation, model_version, chipset, firmware, graph_kind,
                    placement_source, fingerprint_algorithm, fingerprint_normalised, shape_key
                HAVING sum(t.n) < 20)
        GROUP BY bucket, model_version, chipset, firmware, installation,
            graph_kind, placement_source, fingerprint_algorithm, fingerprint_normalised, shape_key
    )
    ORDER BY bucket DESC
    LIMIT 20 BY installation, model_version, chipset, firmware, graph_kind, placement_source,
        fingerprint_algorithm, fingerprint_normalised, shape_key";

/// One row for each device and placement of the window. Of placements that differ in what the
/// normalised fingerprint leaves out, the first by runtime and exact fingerprint speaks. Binds:
/// model, window.
pub(super) const PLACEMENTS: &str = "
    SELECT model_version, chipset, firmware, installation, graph_kind, placement_source,
        fingerprint_algorithm, fingerprint_normalised, NOT (is_late OR is_unproven) AS votes,
        directive_id != '' AS directed,
        argMin((p.runtime, p.n_nodes, p.npu_nodes, p.cpu_nodes, p.cpu_benign_nodes,
            p.npu_macs_share, p.macs_attributed), (p.runtime, p.fingerprint_exact)) AS numbers,
        arraySort(groupUniqArrayArray(p.reasons)) AS reasons
    FROM device_sessions_v1 AS p
    WHERE (requests_npu OR directive_id != '')
        AND app_id = ? AND environment = ? AND model_id = ?
        AND bucket >= toDateTime(?) AND bucket < toDateTime(?)
    GROUP BY model_version, chipset, firmware, installation, graph_kind, placement_source,
        fingerprint_algorithm, fingerprint_normalised, votes, directed";

/// How many devices had which placement, in the window and before it. Binds: start of the window,
/// the same, model, look-back.
pub(super) const CENSUS: &str = "
    SELECT model_version, chipset, graph_kind, placement_source,
        fingerprint_algorithm, fingerprint_normalised,
        argMin((p.runtime, p.n_nodes, p.npu_nodes, p.cpu_nodes, p.cpu_benign_nodes,
            p.npu_macs_share, p.macs_attributed), (p.runtime, p.fingerprint_exact)) AS numbers,
        uniqExact(p.installation) AS devices,
        uniqExactIf(p.installation, p.bucket < toDateTime(?)) AS devices_before
    FROM device_sessions_v1 AS p
    WHERE requests_npu AND NOT (is_late OR is_unproven) AND directive_id = ''
        AND app_id = ? AND environment = ? AND model_id = ?
        AND bucket >= toDateTime(?) AND bucket < toDateTime(?)
    GROUP BY model_version, chipset, graph_kind, placement_source,
        fingerprint_algorithm, fingerprint_normalised";

/// When each version was first seen. Binds: model, look-back.
pub(super) const VERSIONS: &str = "
    SELECT model_version, toUnixTimestamp64Milli(min(p.received_at)) AS first_seen_ms
    FROM device_sessions_v1 AS p
    WHERE app_id = ? AND environment = ? AND model_id = ?
        AND bucket >= toDateTime(?) AND bucket < toDateTime(?)
    GROUP BY model_version";

/// Counts of earlier windows without a finding, or with one that only CV shows. A version's windows repeat the same devices, so it
/// counts with its mean hits and its largest window. Binds: model, look-back, window length.
pub(super) const HISTORY: &str = "
    SELECT model_version, chipset, id AS signal,
        avg(hits) AS mean_hits, avg(devices) AS mean_devices, max(devices) AS max_devices
    FROM cohort_windows_v1
    ARRAY JOIN signal_id AS id, signal_hits AS hits, signal_devices AS devices
    WHERE verdict IN ('healthy', 'not_enough_data', 'cv_spike') AND firmware = '' AND devices > 0
        AND app_id = ? AND environment = ? AND model_id = ?
        AND window_end >= toDateTime(?) AND window_end <= toDateTime(?) AND window_seconds = ?
    GROUP BY model_version, chipset, signal";

/// Merged clean histograms before the window. Binds: scheme, model, version, chipset, span.
pub(super) const LATENCY_BEFORE: &str = "
    SELECT shape_key, mapKeys(merged) AS hist_bucket, mapValues(merged) AS hist_count
    FROM (
        SELECT shape_key, sumMap(mapFromArrays(s.hist_bucket, s.hist_count)) AS merged
        FROM device_series_v1 AS s
        WHERE is_clean AND requests_npu AND NOT (is_late OR is_unproven) AND directive_id = ''
            AND hist_scheme = ? AND app_id = ? AND environment = ? AND model_id = ?
            AND model_version = ? AND chipset = ?
            AND bucket >= toDateTime(?) AND bucket < toDateTime(?)
        GROUP BY shape_key
    )";

/// What each device of a version on a chipset did before the window. Binds: scheme, model, version,
/// chipset, span.
pub(super) const SELVES_BEFORE: &str = "
    SELECT installation, device_model, shape_key,
        mapKeys(merged) AS hist_bucket, mapValues(merged) AS hist_count,
        runs AS n, total AS sum_us, deviations AS m2_us2
    FROM (
        SELECT installation, shape_key,
            argMax(s.device_model, (s.received_at, s.stream_id, s.session_uid)) AS device_model,
            sumMap(mapFromArrays(s.hist_bucket, s.hist_count)) AS merged,
            sum(s.n) AS runs, sum(s.sum_us) AS total,
            greatest(0, sum(s.m2_us2) + sum(pow(s.sum_us, 2) / s.n)
                - pow(sum(s.sum_us), 2) / sum(s.n)) AS deviations
        FROM device_series_v1 AS s
        WHERE is_clean AND requests_npu AND NOT (is_late OR is_unproven) AND directive_id = ''
            AND hist_scheme = ? AND app_id = ? AND environment = ? AND model_id = ?
            AND model_version = ? AND chipset = ?
            AND bucket >= toDateTime(?) AND bucket < toDateTime(?)
        GROUP BY installation, shape_key
    )
    ORDER BY installation, shape_key";

/// Nodes behind fingerprints. Binds: model, version, fingerprints.
pub(super) const NODES: &str = "
    SELECT fingerprint_algorithm, fingerprint_normalised, cpu_node_op_type AS op_type,
        cpu_node_benign AS benign, cpu_node_reason AS reason, cpu_node_macs_share AS macs_share
    FROM placements_v1
    WHERE app_id = ? AND environment = ? AND model_id = ? AND model_version = ?
        AND fingerprint_normalised IN ?
    ORDER BY first_seen, fingerprint_exact";

/// Installations and when each was first received. Binds: look-back.
pub(super) const ARRIVALS: &str = "
    SELECT app_id, environment, installation, toUnixTimestamp64Milli(min(r.received_at)) AS first_ms
    FROM counted_reports_v1 AS r
    WHERE bucket >= toDateTime(?) AND bucket < toDateTime(?)
    GROUP BY app_id, environment, installation";
