//! What is asked of the views: filters and sums, nothing else. Each is asked for several apps at
//! once; what grows with devices is asked for one slice of them after another.

/// One row for each vote: a device's clean runs of the window, added. Binds: scheme, apps, window,
/// slices, slice.
pub(super) const VOTES: &str = "
    SELECT app_id, environment, model_id, model_version, chipset, firmware, device_model, installation,
        graph_kind, placement_source, fingerprint_algorithm, fingerprint_normalised, shape_key,
        mapKeys(merged) AS hist_bucket, mapValues(merged) AS hist_count,
        runs AS n, total AS sum_us, deviations AS m2_us2,
        previous, earlier, absence
    FROM (
        SELECT app_id, environment, model_id, model_version, chipset, firmware, installation,
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
            AND hist_scheme = ? AND (app_id, environment) IN ?
            AND bucket >= toDateTime(?) AND bucket < toDateTime(?)
            AND sipHash64(installation) % ? = ?
        GROUP BY app_id, environment, model_id, model_version, chipset, firmware, installation,
            graph_kind, placement_source, fingerprint_algorithm, fingerprint_normalised, shape_key
    )";

/// Earlier buckets of votes with too few runs, the latest first; 20 buckets hold at least 20 runs.
/// Binds: scheme, apps, span before the window, slices, slice, scheme, apps, window, slices, slice.
pub(super) const EARLIER: &str = "
    SELECT app_id, environment, model_id, model_version, chipset, firmware, installation,
        graph_kind, placement_source, fingerprint_algorithm, fingerprint_normalised, shape_key,
        mapKeys(merged) AS hist_bucket, mapValues(merged) AS hist_count,
        runs AS n, total AS sum_us, deviations AS m2_us2
    FROM (
        SELECT bucket, app_id, environment, model_id, model_version, chipset, firmware, installation,
            graph_kind, placement_source, fingerprint_algorithm, fingerprint_normalised, shape_key,
            sumMap(mapFromArrays(s.hist_bucket, s.hist_count)) AS merged,
            sum(s.n) AS runs, sum(s.sum_us) AS total,
            greatest(0, sum(s.m2_us2) + sum(pow(s.sum_us, 2) / s.n)
                - pow(sum(s.sum_us), 2) / sum(s.n)) AS deviations
        FROM device_series_v1 AS s
        WHERE is_clean AND requests_npu AND NOT (is_late OR is_unproven) AND directive_id = ''
            AND hist_scheme = ? AND (app_id, environment) IN ?
            AND bucket >= toDateTime(?) AND bucket < toDateTime(?)
            AND sipHash64(installation) % ? = ?
            AND (app_id, environment, model_id, installation, model_version, chipset, firmware,
                graph_kind, placement_source, fingerprint_algorithm, fingerprint_normalised,
                shape_key) IN (
                SELECT app_id, environment, model_id, installation, model_version, chipset, firmware, graph_kind, placement_source,
                    fingerprint_algorithm, fingerprint_normalised, shape_key
                FROM device_series_v1 AS t
                WHERE is_clean AND requests_npu AND NOT (is_late OR is_unproven) AND directive_id = ''
                    AND hist_scheme = ? AND (app_id, environment) IN ?
                    AND bucket >= toDateTime(?) AND bucket < toDateTime(?)
                    AND sipHash64(installation) % ? = ?
                GROUP BY app_id, environment, model_id, installation, model_version, chipset, firmware, graph_kind,
                    placement_source, fingerprint_algorithm, fingerprint_normalised, shape_key
                HAVING sum(t.n) < 20)
        GROUP BY bucket, app_id, environment, model_id, model_version, chipset, firmware, installation,
            graph_kind, placement_source, fingerprint_algorithm, fingerprint_normalised, shape_key
    )
    ORDER BY bucket DESC
    LIMIT 20 BY app_id, environment, model_id, installation, model_version, chipset, firmware,
        graph_kind, placement_source, fingerprint_algorithm, fingerprint_normalised, shape_key";

/// One row for each device and placement of the window. Of placements that differ in what the
/// normalised fingerprint leaves out, the first by runtime and exact fingerprint speaks. Binds:
/// apps, window, slices, slice.
pub(super) const PLACEMENTS: &str = "
    SELECT app_id, environment, model_id, model_version, chipset, firmware, installation, graph_kind, placement_source,
        fingerprint_algorithm, fingerprint_normalised, NOT (is_late OR is_unproven) AS votes,
        directive_id != '' AS directed,
        argMin((p.runtime, p.n_nodes, p.npu_nodes, p.cpu_nodes, p.cpu_benign_nodes,
            p.npu_macs_share, p.macs_attributed), (p.runtime, p.fingerprint_exact)) AS numbers,
        arraySort(groupUniqArrayArray(p.reasons)) AS reasons
    FROM device_sessions_v1 AS p
    WHERE (requests_npu OR directive_id != '')
        AND (app_id, environment) IN ?
        AND bucket >= toDateTime(?) AND bucket < toDateTime(?)
        AND sipHash64(installation) % ? = ?
    GROUP BY app_id, environment, model_id, model_version, chipset, firmware, installation, graph_kind, placement_source,
        fingerprint_algorithm, fingerprint_normalised, votes, directed";

/// How many devices had which placement, in the window and before it. Binds: start of the
/// window, apps, look-back.
pub(super) const CENSUS: &str = "
    SELECT app_id, environment, model_id, model_version, chipset, graph_kind, placement_source,
        fingerprint_algorithm, fingerprint_normalised,
        argMin((p.runtime, p.n_nodes, p.npu_nodes, p.cpu_nodes, p.cpu_benign_nodes,
            p.npu_macs_share, p.macs_attributed), (p.runtime, p.fingerprint_exact)) AS numbers,
        uniqExact(p.installation) AS devices,
        uniqExactIf(p.installation, p.bucket < toDateTime(?)) AS devices_before
    FROM device_sessions_v1 AS p
    WHERE requests_npu AND NOT (is_late OR is_unproven) AND directive_id = ''
        AND (app_id, environment) IN ?
        AND bucket >= toDateTime(?) AND bucket < toDateTime(?)
    GROUP BY app_id, environment, model_id, model_version, chipset, graph_kind, placement_source,
        fingerprint_algorithm, fingerprint_normalised";

/// When each version was first seen. Binds: apps, look-back.
pub(super) const VERSIONS: &str = "
    SELECT app_id, environment, model_id, model_version, toUnixTimestamp64Milli(min(p.received_at)) AS first_seen_ms
    FROM device_sessions_v1 AS p
    WHERE (app_id, environment) IN ?
        AND bucket >= toDateTime(?) AND bucket < toDateTime(?)
    GROUP BY app_id, environment, model_id, model_version";

/// Counts of earlier windows without a finding. A version's windows repeat the same devices, so it
/// counts with its mean hits and its largest window; of windows that overlap, those near a whole
/// number of lengths before this one speak. Read from the detector's own table, where a window that
/// was judged again has one row. Binds: apps, look-back, window length, end, length, phase.
pub(super) const HISTORY: &str = "
    SELECT app_id, environment, model_id, model_version, chipset, id AS signal,
        avg(hits) AS mean_hits, avg(devices) AS mean_devices, max(devices) AS max_devices
    FROM cohort_windows FINAL
    ARRAY JOIN signal_id AS id, signal_hits AS hits, signal_devices AS devices
    WHERE verdict IN ('healthy', 'not_enough_data') AND firmware = '' AND devices > 0
        AND (app_id, environment) IN ?
        AND window_end >= toDateTime(?) AND window_end <= toDateTime(?) AND window_seconds = ?
        AND (? - toUnixTimestamp(window_end)) % ? <= ?
    GROUP BY app_id, environment, model_id, model_version, chipset, signal";

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

/// What each device of some versions on chipsets did before the window, version by version. Binds:
/// scheme, apps, versions, span.
pub(super) const SELVES_BEFORE: &str = "
    SELECT app_id, environment, model_id, model_version, chipset, installation, device_model, shape_key,
        mapKeys(merged) AS hist_bucket, mapValues(merged) AS hist_count,
        runs AS n, total AS sum_us, deviations AS m2_us2
    FROM (
        SELECT app_id, environment, model_id, model_version, chipset, installation, shape_key,
            argMax(s.device_model, (s.received_at, s.stream_id, s.session_uid)) AS device_model,
            sumMap(mapFromArrays(s.hist_bucket, s.hist_count)) AS merged,
            sum(s.n) AS runs, sum(s.sum_us) AS total,
            greatest(0, sum(s.m2_us2) + sum(pow(s.sum_us, 2) / s.n)
                - pow(sum(s.sum_us), 2) / sum(s.n)) AS deviations
        FROM device_series_v1 AS s
        WHERE is_clean AND requests_npu AND NOT (is_late OR is_unproven) AND directive_id = ''
            AND hist_scheme = ? AND (app_id, environment) IN ?
            AND (app_id, environment, model_id, model_version, chipset) IN ?
            AND bucket >= toDateTime(?) AND bucket < toDateTime(?)
        GROUP BY app_id, environment, model_id, model_version, chipset, installation, shape_key
    )
    ORDER BY app_id, environment, model_id, model_version, chipset, installation, shape_key";

/// Nodes behind fingerprints. Binds: model, version, fingerprints.
pub(super) const NODES: &str = "
    SELECT fingerprint_algorithm, fingerprint_normalised, cpu_node_op_type AS op_type,
        cpu_node_benign AS benign, cpu_node_reason AS reason, cpu_node_macs_share AS macs_share
    FROM placements_v1
    WHERE app_id = ? AND environment = ? AND model_id = ? AND model_version = ?
        AND fingerprint_normalised IN ?
    ORDER BY first_seen, fingerprint_exact";

/// New installations with the time each was first received; the others counted by the window they
/// were new in, under the end of that window. Binds: start of the window in ms, length in ms
/// (twice), look-back.
pub(super) const ARRIVALS: &str = "
    SELECT app_id, environment, who AS installation, at_ms, count() AS devices
    FROM (
        SELECT app_id, environment, min(toUnixTimestamp64Milli(r.received_at)) AS first_ms,
            ? AS start_ms, first_ms >= start_ms AS is_new,
            if(is_new, r.installation, toFixedString('', 16)) AS who,
            if(is_new, first_ms, start_ms - 1 - intDiv(start_ms - 1 - first_ms, ?) * ?) AS at_ms
        FROM counted_reports_v1 AS r
        WHERE bucket >= toDateTime(?) AND bucket < toDateTime(?)
        GROUP BY app_id, environment, r.installation
    )
    GROUP BY app_id, environment, who, at_ms";
