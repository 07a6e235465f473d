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
    -- The version that most of its devices ran before; empty where none is known.
    follows LowCardinality(String),
    devices UInt64,
    -- Of all versions of the model on the chipset, each device once: a device that was updated within the window is among
    -- the `devices` of two versions.
    devices_on_chipset UInt64,
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
    -- NULL without a deadline in the detector's config.
    deadline_us Nullable(Float64),
    -- Share of the clean runs that take longer, in [0, 1].
    late_share Nullable(Float64),
    signal_id Array(LowCardinality(String)),
    signal_value Array(Float64),
    signal_p Array(Float64),
    signal_hits Array(UInt64),
    signal_devices Array(UInt64),
    -- Whether each signal was a finding: enough devices, enough effect, a small enough chance.
    signal_fires Array(Bool),
    verdict LowCardinality(String),
    severity LowCardinality(String),
    reasons Array(String),
    judged_at DateTime64(3, 'UTC')
) ENGINE = ${replicated}ReplacingMergeTree(judged_at)
PARTITION BY toYYYYMM(window_end)
ORDER BY (app_id, environment, model_id, window_end, model_version, chipset, firmware, window_seconds)
TTL toDateTime(window_end) + INTERVAL ${rollup_ttl_days} DAY
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;

-- Windows that were judged and are stored whole, also those without a cohort. A window without a row here is missing in
-- the history.
CREATE TABLE IF NOT EXISTS judged_windows ${on_cluster} (
    window_end DateTime64(3, 'UTC'),
    window_seconds Float64,
    -- From one window's end to the next one's.
    step_seconds Float64,
    cohorts UInt64,
    judged_at DateTime64(3, 'UTC')
) ENGINE = ${replicated}ReplacingMergeTree(judged_at)
ORDER BY (window_seconds, window_end)
TTL toDateTime(window_end) + INTERVAL ${rollup_ttl_days} DAY
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;

-- The shape behind a verdict on a chipset, without ids: about 1 KB before compression. Bins are equally wide on a
-- logarithmic axis, so a plot is drawn without raw reports, which are gone after days.
CREATE TABLE IF NOT EXISTS cohort_evidence ${on_cluster} (
    -- The end of a window with a finding; 1970 for all others, of which each cohort's latest replaces the ones before.
    place DateTime64(3, 'UTC'),
    window_end DateTime64(3, 'UTC'),
    window_seconds Float64,
    app_id LowCardinality(String),
    environment LowCardinality(String),
    model_id LowCardinality(String),
    model_version LowCardinality(String),
    chipset LowCardinality(String),
    algo LowCardinality(String),
    verdict LowCardinality(String),
    severity LowCardinality(String),
    -- The input shape that most devices ran; the rest is about it.
    shape_key LowCardinality(String),
    -- Clean runs and their quantiles.
    runs UInt64,
    p10_us Nullable(Float64),
    p50_us Nullable(Float64),
    p90_us Nullable(Float64),
    -- Clean runs in bins of a sixteenth of an octave. The first begins at 2 to the power of a sixteenth of `hist_first` us.
    hist_first Int32,
    hist_runs Array(UInt64) CODEC(T64, ZSTD(1)),
    -- The version before this one on the chipset, and its runs in this window; empty if it had none.
    reference_version LowCardinality(String),
    reference_runs UInt64,
    reference_p50_us Nullable(Float64),
    reference_hist_first Int32,
    reference_hist_runs Array(UInt64) CODEC(T64, ZSTD(1)),
    -- Devices by the ratio of their p10 to their own earlier one, in bins of an eighth of an octave: the first begins at 2
    -- to the power of an eighth of `ratio_first`. Apart are those with over 2 % of the work on the CPU.
    ratio_first Int32,
    ratio_npu_devices Array(UInt32) CODEC(T64, ZSTD(1)),
    ratio_cpu_devices Array(UInt32) CODEC(T64, ZSTD(1)),
    -- Devices whose earlier p10 is not known.
    devices_without_past UInt64,
    -- Two groups of runs, if two fit better than one.
    mixture_slow_share Nullable(Float64),
    mixture_fast_us Nullable(Float64),
    mixture_slow_us Nullable(Float64),
    mixture_separation Nullable(Float64),
    -- Two modes with a valley in between.
    mode_fast_us Nullable(Float64),
    mode_slow_us Nullable(Float64),
    valley_depth Nullable(Float64),
    npu_share Nullable(Float64),
    reference_npu_share Nullable(Float64),
    judged_at DateTime64(3, 'UTC')
) ENGINE = ${replicated}ReplacingMergeTree(judged_at)
PARTITION BY toYYYYMM(place)
ORDER BY (app_id, environment, model_id, chipset, model_version, window_seconds, place)
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
    -- What notifications of this state say; empty before there is one.
    notification String,
    -- The whole state, for the detector after a restart.
    document String
) ENGINE = ${replicated}MergeTree
ORDER BY (incident_id, changed_at)
TTL toDateTime(changed_at) + INTERVAL ${rollup_ttl_days} DAY
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;

-- Beats of detectors, which decide the one that judges and notifies. The store's clock stamps them, so the
-- detectors' clocks need not agree. All lie on one shard, because a detector that reads its own beat back must see
-- all beats before it.
CREATE TABLE IF NOT EXISTS detector_beats ${on_cluster} (
    -- What is decided; the same in all rows.
    election LowCardinality(String) DEFAULT 'leader',
    holder UInt64,
    -- Grows with each beat of a holder.
    beat UInt64,
    leads Bool,
    -- A holder that has stopped gives the lease back with its last beat.
    is_gone Bool,
    -- Time that the beat holds.
    lease_ms UInt32 DEFAULT 20000,
    beaten_at DateTime64(3, 'UTC') DEFAULT now64(3)
) ENGINE = ${replicated}MergeTree
ORDER BY election
TTL toDateTime(beaten_at) + INTERVAL 1 DAY;
