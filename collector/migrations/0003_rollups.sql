-- Roll-ups: summaries of closed buckets, for dashboards and baselines. No device ids.
--
-- A bucket closes when every collector's checkpoint has passed its end. Its surplus copies are
-- listed, then its summary is written under a new revision, then the revision is published in
-- bucket_revisions, then the watermark moves. Readers take the latest revision of closed buckets and
-- raw for open ones, so neither a build that stopped half-way nor two builders at once count twice.
CREATE TABLE IF NOT EXISTS rollup_watermark ${on_cluster} (
    -- Buckets that start before this are closed.
    closed_until DateTime('UTC'),
    closed_at DateTime64(3, 'UTC')
) ENGINE = ${replicated}MergeTree
ORDER BY closed_until;

-- The end of the last check for rows that arrived while their buckets were being closed. The collector that
-- closes buckets checks after their end is in rollup_watermark, then writes it here. If it stops in between,
-- the next one checks.
CREATE TABLE IF NOT EXISTS rollup_checks ${on_cluster} (
    checked_until DateTime('UTC'),
    checked_at DateTime64(3, 'UTC')
) ENGINE = ${replicated}MergeTree
ORDER BY checked_until;

-- Closed buckets whose summary has to be built again, because reports came into them later. The collector that stored
-- the reports adds a row; whoever built the summary adds the row again with `is_done`.
CREATE TABLE IF NOT EXISTS rebuild_requests ${on_cluster} (
    bucket DateTime('UTC'),
    collector_id UInt64,
    asked_at DateTime64(3, 'UTC'),
    is_done Bool,
    written_at DateTime64(3, 'UTC')
) ENGINE = ${replicated}MergeTree
ORDER BY (bucket, collector_id, asked_at)
TTL toDateTime(asked_at) + INTERVAL ${rollup_ttl_days} DAY
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;

-- Requests to build the summary of a closed bucket again that are not carried out yet. Until then it lacks reports that raw has.
CREATE OR REPLACE VIEW open_rebuilds_v1 ${on_cluster} AS
SELECT bucket, collector_id, asked_at
FROM rebuild_requests
GROUP BY bucket, collector_id, asked_at
HAVING NOT max(is_done);

-- Builds of summaries, with the number of rows of `reports` that their builder saw. A replica may show rows late, so the
-- rows are counted again after a while. Another number means another build.
CREATE TABLE IF NOT EXISTS rollup_builds ${on_cluster} (
    build_from DateTime('UTC'),
    build_until DateTime('UTC'),
    rows UInt64,
    built_at DateTime64(3, 'UTC') DEFAULT now64(3)
) ENGINE = ${replicated}MergeTree
ORDER BY built_at
TTL toDateTime(built_at) + INTERVAL 2 DAY
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;

CREATE TABLE IF NOT EXISTS bucket_revisions ${on_cluster} (
    app_id LowCardinality(String),
    environment LowCardinality(String),
    bucket DateTime('UTC'),
    slice UInt8,
    -- Unique to a build; a later build has a higher one.
    revision UInt64,
    reason LowCardinality(String),
    built_at DateTime64(3, 'UTC')
) ENGINE = ${replicated}MergeTree
ORDER BY (app_id, environment, bucket, slice, revision)
TTL bucket + INTERVAL ${rollup_ttl_days} DAY
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;

-- Latency of one cohort in one bucket. All numbers can be added over buckets and slices: variance
-- within devices is sum(m2_us2), between devices sum(device_square) - sum(sum_us)^2 / sum(n).
CREATE TABLE IF NOT EXISTS cohort_buckets ${on_cluster} (
    app_id LowCardinality(String),
    environment LowCardinality(String),
    bucket DateTime('UTC'),
    slice UInt8,
    revision UInt64,
    model_id LowCardinality(String),
    model_version LowCardinality(String),
    chipset LowCardinality(String),
    firmware LowCardinality(String),
    app_version LowCardinality(String),
    runtime LowCardinality(String),
    shape_key LowCardinality(String),
    fingerprint_normalised UInt64,
    -- `clean`, `cold` or `strained` (hot, saving power, or unknown on a device that could report it).
    context LowCardinality(String),
    hist_scheme LowCardinality(String),
    -- Version of the computation; sums stay within one value.
    algo LowCardinality(String),
    devices UInt64,
    n UInt64,
    sum_us Float64,
    -- Squared deviations of runs from their device's mean.
    m2_us2 Float64,
    -- Sum over devices of n times the squared mean.
    device_square Float64,
    min_us Float64,
    max_us Float64,
    hist Map(UInt16, UInt64)
) ENGINE = ${replicated}MergeTree
PARTITION BY toYYYYMM(bucket)
ORDER BY (app_id, environment, model_id, bucket, model_version, chipset)
TTL bucket + INTERVAL ${rollup_ttl_days} DAY
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;

-- Sessions and placements of one cohort in one bucket.
CREATE TABLE IF NOT EXISTS cohort_sessions ${on_cluster} (
    app_id LowCardinality(String),
    environment LowCardinality(String),
    bucket DateTime('UTC'),
    slice UInt8,
    revision UInt64,
    model_id LowCardinality(String),
    model_version LowCardinality(String),
    chipset LowCardinality(String),
    firmware LowCardinality(String),
    app_version LowCardinality(String),
    runtime LowCardinality(String),
    requests_npu Bool,
    graph_kind LowCardinality(String),
    placement_source LowCardinality(String),
    fingerprint_algorithm UInt32,
    fingerprint_exact UInt64,
    fingerprint_normalised UInt64,
    algo LowCardinality(String),
    sessions UInt64,
    devices UInt64,
    n_nodes UInt32,
    npu_nodes UInt32,
    cpu_nodes UInt32,
    cpu_benign_nodes UInt32,
    npu_partitions UInt32,
    npu_macs_share Nullable(Float32),
    macs_attributed Nullable(Float32),
    -- Of one of the sessions; in effect, without the CPU.
    requested_eps Array(LowCardinality(String)),
    -- Of one of the sessions.
    selection_policy LowCardinality(String),
    -- Of any of the sessions, at most 16.
    ep_devices Array(LowCardinality(String)),
    -- Sessions whose request a directive changed.
    directed_sessions UInt64,
    -- Of any of the sessions.
    reasons Array(LowCardinality(String))
) ENGINE = ${replicated}MergeTree
PARTITION BY toYYYYMM(bucket)
ORDER BY (app_id, environment, model_id, bucket, model_version, chipset)
TTL bucket + INTERVAL ${rollup_ttl_days} DAY
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;
