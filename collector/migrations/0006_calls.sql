-- Data of the calls other than Upload: deletions, directives, manifests, certified placements.

-- The steps of each deletion, with their times, if reports of the installation were received. `requested`: the
-- promise is durable at a collector. `hidden`: it is in `tombstones` and `hidden_installations`, so no view shows the
-- installation, and the summaries of `buckets` slices were rebuilt without it. `erased`: its `reports` rows are gone from disk.
CREATE TABLE IF NOT EXISTS deletion_log ${on_cluster} (
    installation FixedString(16),
    step LowCardinality(String),
    collector_id UInt64,
    at DateTime64(3, 'UTC'),
    buckets UInt64,
    reports UInt64
) ENGINE = ${replicated}ReplacingMergeTree(at)
ORDER BY (installation, step, collector_id)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;

-- One row for each deletion; the time of a step that is not done yet is 1970.
CREATE OR REPLACE VIEW deletions_v1 ${on_cluster} AS
SELECT
    installation,
    minIf(deletion_log.at, step = 'requested') AS requested_at,
    maxIf(deletion_log.at, step = 'hidden') AS hidden_at,
    maxIf(deletion_log.at, step = 'erased') AS erased_at,
    sumIf(deletion_log.buckets, step = 'hidden') AS rebuilt_buckets,
    sumIf(deletion_log.reports, step = 'erased') AS erased_reports
FROM deletion_log FINAL
GROUP BY installation;

-- Directives as the operator signed them. The other columns repeat the content of the bytes, for people and
-- for matching. Ids are unique for ever, so rows never expire.
CREATE TABLE IF NOT EXISTS directives ${on_cluster} (
    id String,
    published_at DateTime64(3, 'UTC'),
    key_id String,
    -- Lower-case hex: the signature is over exactly these bytes.
    directive_hex String,
    signature_hex String,
    -- An empty column matches everything.
    app_id String,
    model_id String,
    model_version String,
    chipset String,
    firmware String,
    action LowCardinality(String),
    -- The id of the directive that this one revokes, or empty.
    revokes String,
    not_before DateTime64(3, 'UTC'),
    expires DateTime64(3, 'UTC')
) ENGINE = ${replicated}MergeTree
ORDER BY id
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;

-- Every directive once; if an id was published twice, the first one counts.
CREATE OR REPLACE VIEW directives_v1 ${on_cluster} AS
SELECT *, id IN (SELECT revokes FROM directives WHERE revokes != '') AS is_revoked
FROM directives
ORDER BY published_at
LIMIT 1 BY id;

-- Devices that a collector process sent a directive to: totals since it started, replaced as they grow.
CREATE TABLE IF NOT EXISTS directive_deliveries ${on_cluster} (
    directive_id String,
    collector_id UInt64,
    started_at DateTime64(3, 'UTC'),
    devices UInt64
) ENGINE = ${replicated}ReplacingMergeTree(devices)
ORDER BY (directive_id, collector_id, started_at)
TTL toDateTime(started_at) + INTERVAL ${rollup_ttl_days} DAY
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;

-- Devices that each directive was sent to. A device counts twice if it reports to two collectors before it has the
-- directive. So does one that refuses the directive and reports again after a collector's restart.
CREATE OR REPLACE VIEW directive_deliveries_v1 ${on_cluster} AS
SELECT directive_id, sum(devices) AS devices_sent
FROM directive_deliveries FINAL
GROUP BY directive_id;

-- MACs per node of model files. The key gives app and environment; `*` if it proves none.
CREATE TABLE IF NOT EXISTS model_manifests ${on_cluster} (
    app_id LowCardinality(String),
    environment LowCardinality(String),
    model_id LowCardinality(String),
    model_version LowCardinality(String),
    -- Lower-case hex, or empty.
    model_sha256 String,
    -- The hash that placements name; lower-case hex.
    manifest_sha256 String,
    stored_at DateTime64(3, 'UTC'),
    algorithm UInt32,
    total_macs UInt64,
    node_name Array(String) CODEC(ZSTD(1)),
    node_op_type Array(LowCardinality(String)),
    node_macs Array(UInt64) CODEC(ZSTD(1))
) ENGINE = ${replicated}ReplacingMergeTree(stored_at)
ORDER BY (app_id, environment, model_id, model_version, manifest_sha256)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;

-- The latest manifest of each model file.
CREATE OR REPLACE VIEW model_manifests_v1 ${on_cluster} AS
SELECT * FROM model_manifests FINAL;

-- Placements of models at certification: the reference of a first version.
CREATE TABLE IF NOT EXISTS certified_placements ${on_cluster} (
    app_id LowCardinality(String),
    environment LowCardinality(String),
    model_id LowCardinality(String),
    model_version LowCardinality(String),
    model_sha256 String,
    chipset LowCardinality(String),
    -- Device.vendor_fingerprint_hash, or empty.
    firmware LowCardinality(String),
    stored_at DateTime64(3, 'UTC'),
    certified_by String,
    ort_version LowCardinality(String),
    ep_package LowCardinality(String),
    ep_version LowCardinality(String),
    ep_linkage LowCardinality(String),
    backend LowCardinality(String),
    qnn_sdk_version LowCardinality(String),
    backend_build_id LowCardinality(String),
    requested_eps Array(LowCardinality(String)),
    graph_kind LowCardinality(String),
    placement_source LowCardinality(String),
    fingerprint_algorithm UInt32,
    fingerprint_exact UInt64,
    fingerprint_normalised UInt64,
    n_nodes UInt32,
    npu_nodes UInt32,
    npu_partitions UInt32,
    cpu_nodes UInt32,
    cpu_benign_nodes UInt32,
    npu_macs_share Nullable(Float32),
    macs_attributed Nullable(Float32),
    manifest_sha256 String,
    reasons Array(LowCardinality(String)),
    ep Array(LowCardinality(String)),
    ep_nodes Array(UInt32),
    ep_partitions Array(UInt32),
    ep_macs_share Array(Nullable(Float32)),
    cpu_node_name Array(String),
    cpu_node_op_type Array(LowCardinality(String)),
    cpu_node_benign Array(Bool),
    cpu_node_reason Array(LowCardinality(String)),
    cpu_node_macs_share Array(Nullable(Float32)),
    cpu_nodes_truncated Bool,
    -- Run times of measured launches; 0 without any.
    latency_launches UInt32,
    latency_runs UInt64,
    latency_p10_us UInt64,
    latency_p50_us UInt64,
    latency_p95_us UInt64
) ENGINE = ${replicated}MergeTree
ORDER BY (app_id, environment, model_id, model_version, chipset, firmware, stored_at)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;

-- The latest certification of each model version on each chipset and firmware, per runtime.
CREATE OR REPLACE VIEW certified_placements_v1 ${on_cluster} AS
SELECT * FROM certified_placements
ORDER BY stored_at DESC
LIMIT 1 BY app_id, environment, model_id, model_version, chipset, firmware, ort_version, ep_version;
