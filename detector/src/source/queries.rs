//! What is asked of the views: filters and sums, nothing else.

/// One row for each vote: a device's clean runs of the window, added over buckets. Binds: scheme,
/// model, window.
pub(super) const VOTES: &str = "
    SELECT model_version, chipset, firmware, installation, graph_kind, placement_source,
        fingerprint_algorithm, fingerprint_normalised, shape_key,
        mapKeys(merged) AS hist_bucket, mapValues(merged) AS hist_count,
        runs AS n, total AS sum_us, deviations AS m2_us2, previous, earlier, absence
    FROM (
        SELECT model_version, chipset, firmware, installation, graph_kind, placement_source,
            fingerprint_algorithm, fingerprint_normalised, shape_key,
            sumMap(b.hist) AS merged, sum(b.n) AS runs, sum(b.sum_us) AS total,
            greatest(0, sum(b.m2_us2) + sum(pow(b.sum_us, 2) / b.n)
                - pow(sum(b.sum_us), 2) / sum(b.n)) AS deviations,
            argMax(b.previous, b.bucket) AS previous, argMax(b.earlier, b.bucket) AS earlier,
            argMax(b.baseline_absence, b.bucket) AS absence
        FROM device_buckets_v1 AS b
        WHERE context = 'clean' AND requests_npu AND votes AND directive_id = ''
            AND hist_scheme = ? AND app_id = ? AND environment = ? AND model_id = ?
            AND bucket >= toDateTime(?) AND bucket < toDateTime(?)
        GROUP BY model_version, chipset, firmware, installation, graph_kind, placement_source,
            fingerprint_algorithm, fingerprint_normalised, shape_key
    )";

/// Earlier buckets of votes with too few runs, the latest first; 20 buckets hold at least 20 runs.
/// Binds: scheme, model, span before the window, scheme, model, window.
pub(super) const EARLIER: &str = "
    SELECT model_version, chipset, firmware, installation, graph_kind, placement_source,
        fingerprint_algorithm, fingerprint_normalised, shape_key,
        mapKeys(hist) AS hist_bucket, mapValues(hist) AS hist_count, n, sum_us, m2_us2
    FROM device_buckets_v1
    WHERE context = 'clean' AND requests_npu AND votes AND directive_id = ''
        AND hist_scheme = ? AND app_id = ? AND environment = ? AND model_id = ?
        AND bucket >= toDateTime(?) AND bucket < toDateTime(?)
        AND (installation, model_version, chipset, firmware, graph_kind, placement_source,
            fingerprint_algorithm, fingerprint_normalised, shape_key) IN (
            SELECT installation, model_version, chipset, firmware, graph_kind, placement_source,
                fingerprint_algorithm, fingerprint_normalised, shape_key
            FROM device_buckets_v1 AS b
            WHERE context = 'clean' AND requests_npu AND votes AND directive_id = ''
                AND hist_scheme = ? AND app_id = ? AND environment = ? AND model_id = ?
                AND bucket >= toDateTime(?) AND bucket < toDateTime(?)
            GROUP BY installation, model_version, chipset, firmware, graph_kind, placement_source,
                fingerprint_algorithm, fingerprint_normalised, shape_key
            HAVING sum(b.n) < 20)
    ORDER BY bucket DESC
    LIMIT 20 BY installation, model_version, chipset, firmware, graph_kind, placement_source,
        fingerprint_algorithm, fingerprint_normalised, shape_key";

/// One row for each device and placement of the window. Binds: model, window.
pub(super) const PLACEMENTS: &str = "
    SELECT model_version, chipset, firmware, installation, graph_kind, placement_source,
        fingerprint_algorithm, fingerprint_normalised, votes,
        directive_id != '' AS directed,
        any(p.runtime) AS runtime, any(p.n_nodes) AS n_nodes, any(p.npu_nodes) AS npu_nodes,
        any(p.cpu_nodes) AS cpu_nodes, any(p.cpu_benign_nodes) AS cpu_benign_nodes,
        any(p.npu_macs_share) AS npu_macs_share, any(p.macs_attributed) AS macs_attributed,
        groupUniqArrayArray(p.reasons) AS reasons
    FROM device_placements_v1 AS p
    WHERE (requests_npu OR directive_id != '')
        AND app_id = ? AND environment = ? AND model_id = ?
        AND bucket >= toDateTime(?) AND bucket < toDateTime(?)
    GROUP BY model_version, chipset, firmware, installation, graph_kind, placement_source,
        fingerprint_algorithm, fingerprint_normalised, votes, directed";

/// How many devices had which placement. Binds: model, look-back.
pub(super) const CENSUS: &str = "
    SELECT model_version, chipset, graph_kind, placement_source,
        fingerprint_algorithm, fingerprint_normalised,
        any(p.runtime) AS runtime, any(p.n_nodes) AS n_nodes, any(p.npu_nodes) AS npu_nodes,
        any(p.cpu_nodes) AS cpu_nodes, any(p.cpu_benign_nodes) AS cpu_benign_nodes,
        any(p.npu_macs_share) AS npu_macs_share, any(p.macs_attributed) AS macs_attributed,
        uniqExact(p.installation) AS devices
    FROM device_placements_v1 AS p
    WHERE requests_npu AND votes AND directive_id = ''
        AND app_id = ? AND environment = ? AND model_id = ?
        AND bucket >= toDateTime(?) AND bucket < toDateTime(?)
    GROUP BY model_version, chipset, graph_kind, placement_source,
        fingerprint_algorithm, fingerprint_normalised";

/// When each version was first seen. Binds: model.
pub(super) const VERSIONS: &str = "
    SELECT model_version, toUnixTimestamp64Milli(min(p.first_seen)) AS first_seen_ms
    FROM placements_v1 AS p
    WHERE app_id = ? AND environment = ? AND model_id = ?
    GROUP BY model_version";

/// Counts of earlier windows without a finding. A version's windows repeat the same devices, so it
/// counts with its mean hits and its largest window. Binds: model, look-back, window length.
pub(super) const HISTORY: &str = "
    SELECT model_version, chipset, id AS signal,
        avg(hits) AS mean_hits, avg(devices) AS mean_devices, max(devices) AS max_devices
    FROM cohort_windows_v1
    ARRAY JOIN signal_id AS id, signal_hits AS hits, signal_devices AS devices
    WHERE verdict IN ('healthy', 'not_enough_data') AND firmware = '' AND devices > 0
        AND app_id = ? AND environment = ? AND model_id = ?
        AND window_end >= toDateTime(?) AND window_end <= toDateTime(?) AND window_seconds = ?
    GROUP BY model_version, chipset, signal";

/// Merged clean histograms before the window. Binds: scheme, model, version, chipset, span.
pub(super) const LATENCY_BEFORE: &str = "
    SELECT shape_key, mapKeys(merged) AS hist_bucket, mapValues(merged) AS hist_count
    FROM (
        SELECT shape_key, sumMap(b.hist) AS merged
        FROM cohort_buckets_v1 AS b
        WHERE context = 'clean' AND hist_scheme = ?
            AND app_id = ? AND environment = ? AND model_id = ?
            AND model_version = ? AND chipset = ?
            AND bucket >= toDateTime(?) AND bucket < toDateTime(?)
        GROUP BY shape_key
    )";

/// Nodes behind fingerprints. Binds: model, version, fingerprints.
pub(super) const NODES: &str = "
    SELECT fingerprint_algorithm, fingerprint_normalised, cpu_node_op_type AS op_type,
        cpu_node_benign AS benign, cpu_node_reason AS reason, cpu_node_macs_share AS macs_share
    FROM placements_v1
    WHERE app_id = ? AND environment = ? AND model_id = ? AND model_version = ?
        AND fingerprint_normalised IN ?";
