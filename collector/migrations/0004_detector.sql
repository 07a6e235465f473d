-- Results of the detector. It alone writes here.

-- One row for each cohort and window that was judged: explaining statistics (CV, bimodality), deciding
-- signals, and the verdict. The counted devices of these rows are the cohort's own history.
CREATE TABLE IF NOT EXISTS cohort_windows ${on_cluster} (
    window_end DateTime64(3, 'UTC'),
    window_seconds Float64,
    app_id LowCardinality(String),
    environment LowCardinality(String),
    model_id LowCardinality(String),
    model_version LowCardinality(String),
    chipset LowCardinality(String),
    firmware LowCardinality(String),
    algo LowCardinality(String),
    devices UInt64,
    eligible_devices UInt64,
    devices_hit UInt64,
    runs UInt64,
    p50_us Nullable(Float64),
    p95_us Nullable(Float64),
    -- NULL where the statistic is undefined.
    cv_within Nullable(Float64),
    cv_between Nullable(Float64),
    dip Nullable(Float64),
    dip_p Nullable(Float64),
    npu_share Nullable(Float64),
    latency_ratio Nullable(Float64),
    signal_id Array(LowCardinality(String)),
    signal_value Array(Float64),
    signal_p Array(Float64),
    signal_hits Array(UInt64),
    signal_devices Array(UInt64),
    verdict LowCardinality(String),
    severity LowCardinality(String),
    reasons Array(String),
    judged_at DateTime64(3, 'UTC')
) ENGINE = ${replicated}ReplacingMergeTree(judged_at)
PARTITION BY toYYYYMM(window_end)
ORDER BY (app_id, environment, model_id, window_end, model_version, chipset, firmware, window_seconds)
TTL toDateTime(window_end) + INTERVAL ${rollup_ttl_days} DAY
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;

-- Every state of an incident. The latest by `changed_at` is its current state.
CREATE TABLE IF NOT EXISTS incidents ${on_cluster} (
    incident_id String,
    changed_at DateTime64(3, 'UTC'),
    state LowCardinality(String),
    severity LowCardinality(String),
    verdict LowCardinality(String),
    app_id LowCardinality(String),
    environment LowCardinality(String),
    model_id LowCardinality(String),
    model_version LowCardinality(String),
    chipsets Array(LowCardinality(String)),
    started_at DateTime64(3, 'UTC'),
    devices_hit UInt64,
    devices_seen UInt64,
    latency_ratio Nullable(Float64),
    cv_within Nullable(Float64),
    cv_between Nullable(Float64),
    dip Nullable(Float64),
    cpu_ops Array(LowCardinality(String)),
    cpu_macs_share Nullable(Float64),
    summary String,
    -- The whole state, for the detector after a restart.
    document String
) ENGINE = ${replicated}MergeTree
ORDER BY (incident_id, changed_at)
TTL toDateTime(changed_at) + INTERVAL ${rollup_ttl_days} DAY
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;

-- Beats of detectors, which decide the one that judges and notifies. The store's clock stamps them, so the
-- detectors' clocks need not agree.
CREATE TABLE IF NOT EXISTS detector_beats ${on_cluster} (
    holder UInt64,
    -- Grows with each beat of a holder.
    beat UInt64,
    leads Bool,
    -- A holder that has stopped gives the lease back with its last beat.
    is_gone Bool,
    beaten_at DateTime64(3, 'UTC') DEFAULT now64(3)
) ENGINE = ${replicated}MergeTree
ORDER BY (holder, beat)
TTL toDateTime(beaten_at) + INTERVAL 1 DAY;
