-- Raw: the reports of devices, one row for each copy that reached the store.
--
-- A report may be here several times, because a device sends it again after a lost ack, to any collector.
-- A copy is (collector_id, wal_offset). `report_copies` decides which copy counts: the first by
-- (received_at, collector_id, wal_offset) over all copies of (app_id, installation, stream_id, sequence).
-- The writer inserts a batch into report_copies first, then into reports. A reader in between counts a
-- report too few for a moment, never twice.
--
-- Times: `received_at` is the collector's and rules buckets, partitions and TTL. `occurred_at` is an
-- estimate for charts.
--
-- An insert into tables with `fsync_after_insert` is on disk before it is acknowledged, because nothing
-- else holds the rows after that: the WAL gives its segments up, a deletion or directive is reported as
-- done, and summaries outlive their reports. Checkpoints, watermarks, checks and beats lack it, because
-- their writers repeat them.
CREATE TABLE IF NOT EXISTS report_copies ${on_cluster} (
    installation FixedString(16),
    stream_id UInt64,
    sequence UInt64 CODEC(T64, ZSTD(1)),
    received_at DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)),
    collector_id UInt64 CODEC(ZSTD(1)),
    wal_offset UInt64 CODEC(Delta, ZSTD(1)),
    bucket DateTime('UTC') CODEC(Delta, ZSTD(1)),
    -- As the app key proved: another app's key changes nothing here.
    app_id LowCardinality(String),
    -- Of the report's bytes as they came in. A copy with another hash than the first is a conflict.
    content UInt32,
    INDEX by_bucket bucket TYPE minmax GRANULARITY 1
) ENGINE = ${replicated}MergeTree
PARTITION BY toDate(received_at)
ORDER BY (installation, stream_id, sequence, received_at, collector_id, wal_offset)
TTL toDateTime(received_at) + INTERVAL ${raw_ttl_days} DAY
SETTINGS ${deduplication_window} = 10000, ttl_only_drop_parts = 1, fsync_after_insert = 1, fsync_part_directory = 1;

-- Copies of closed buckets that do not count. Rows are only ever added. A row stays at least as long as
-- its copy: a report goes with its whole day, hours after its bucket is old enough.
CREATE TABLE IF NOT EXISTS surplus_copies ${on_cluster} (
    bucket DateTime('UTC'),
    collector_id UInt64,
    wal_offset UInt64
) ENGINE = ${replicated}ReplacingMergeTree
ORDER BY (bucket, collector_id, wal_offset)
TTL bucket + INTERVAL ${surplus_ttl_days} DAY
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;

-- Rows of `reports` in closed buckets beyond the first of their log position. The insert tokens and the writer's questions
-- prevent such rows. A row put in by hand, or by two writers of one log, does not count as a copy. A row is known by its number
-- in its block, which merges keep.
CREATE TABLE IF NOT EXISTS repeated_rows ${on_cluster} (
    bucket DateTime('UTC'),
    collector_id UInt64,
    wal_offset UInt64,
    block_number UInt64,
    block_offset UInt64
) ENGINE = ${replicated}ReplacingMergeTree
ORDER BY (bucket, collector_id, wal_offset, block_number, block_offset)
TTL bucket + INTERVAL ${surplus_ttl_days} DAY
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;

-- One row for each copy. Arrays `session_*` have one element for each session of the report,
-- `series_*` one for each latency series (`series_session` is the 1-based position of its session),
-- and so on. Names, units and bounds are as in the wire contract. Enums are the contract's names
-- in lower case without their prefix.
CREATE TABLE IF NOT EXISTS reports ${on_cluster} (
    collector_id UInt64 CODEC(ZSTD(1)),
    wal_offset UInt64 CODEC(Delta, ZSTD(1)),
    received_at DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)),
    bucket DateTime('UTC') CODEC(Delta, ZSTD(1)),
    installation FixedString(16),
    stream_id UInt64,
    sequence UInt64 CODEC(T64, ZSTD(1)),

    -- Estimated end of the interval; equals received_at where the source is `unknown`.
    occurred_at DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)),
    occurred_source LowCardinality(String),
    -- Device wall clock minus ours at sending; 0 when not known.
    clock_skew_ms Int64 CODEC(T64, ZSTD(1)),
    interval_length_ms UInt64 CODEC(T64, ZSTD(1)),
    -- Stored without a vote. Late ones are charted, unproven ones are in no summary.
    is_late Bool,
    is_unproven Bool,
    -- It came with a key of kind `own`: its devices are trusted as they are.
    is_own Bool,
    -- The sender's network, IPv4 /24 or IPv6 /48, and /16 or /32: hashes with the key of `network_key`, so no
    -- address follows from them. 0: not known. No view for readers has them.
    network UInt32,
    network_wide UInt32,

    app_id LowCardinality(String),
    environment LowCardinality(String),
    app_version LowCardinality(String),
    app_build LowCardinality(String),
    rollout_labels Map(LowCardinality(String), LowCardinality(String)),

    chipset LowCardinality(String),
    chipset_raw LowCardinality(String),
    device_manufacturer LowCardinality(String),
    device_model LowCardinality(String),
    board LowCardinality(String),
    soc_id UInt32,
    abi LowCardinality(String),
    os LowCardinality(String),
    os_version LowCardinality(String),
    api_level UInt32,
    -- Device.vendor_fingerprint_hash.
    firmware LowCardinality(String),
    security_patch LowCardinality(String),
    hexagon_arch UInt32,
    ram_class LowCardinality(String),
    reportable_contexts Array(LowCardinality(String)),

    ort_version LowCardinality(String),
    ep_package LowCardinality(String),
    ep_version LowCardinality(String),
    ep_linkage LowCardinality(String),
    backend LowCardinality(String),
    qnn_sdk_version LowCardinality(String),
    backend_build_id LowCardinality(String),
    sdk_name LowCardinality(String),
    sdk_version LowCardinality(String),
    sdk_language LowCardinality(String),

    ended_stream_id Array(UInt64),
    ended_last_sequence Array(Nullable(UInt64)),
    ended_unsealed_runs Array(Nullable(UInt64)),

    session_uid Array(UInt64),
    session_model_id Array(LowCardinality(String)),
    session_model_version Array(LowCardinality(String)),
    -- Lower-case hex, or empty.
    session_model_sha256 Array(LowCardinality(String)),
    -- Of EPContext files: the hash of the model that they were compiled from, and the EP's text about compatibility.
    session_source_sha256 Array(LowCardinality(String)),
    session_ep_compatibility Array(LowCardinality(String)),
    session_app_requested_eps Array(Array(LowCardinality(String))),
    session_directive_id Array(LowCardinality(String)),
    session_performance_mode Array(LowCardinality(String)),
    session_soc_model Array(LowCardinality(String)),
    session_htp_arch Array(LowCardinality(String)),
    session_graph_optimization_level Array(LowCardinality(String)),
    -- ONNX Runtime's policy for the choice of devices, for example `prefer_npu`; empty: none.
    session_selection_policy Array(LowCardinality(String)),
    -- Device on which the requested EP was to run, `npu`, `gpu` or `cpu`; `unknown`: one of several; empty: not known.
    session_device_type Array(LowCardinality(String)),
    -- Devices to which ONNX Runtime gave inputs and outputs, for example `OpenVINOExecutionProvider on GPU (Intel)`.
    session_devices Array(Array(LowCardinality(String))),
    session_creation_us Array(UInt64),
    session_created_at Array(DateTime64(3, 'UTC')),
    -- In effect, without the CPU.
    session_requested_eps Array(Array(LowCardinality(String))),
    -- Whether one of them is an accelerator, known or not: only such sessions vote. Columns named `npu` hold the numbers of
    -- the accelerator that was asked for, which is the NPU for QNN.
    session_requests_npu Array(Bool),
    -- The chipset that the session's cohort is named by: with the accelerator in brackets if it is not the chipset's NPU.
    session_chipset Array(LowCardinality(String)) DEFAULT arrayMap(model -> chipset, session_model_id),
    session_graph_kind Array(LowCardinality(String)),
    session_placement_source Array(LowCardinality(String)),
    -- 0 where there is none. Fingerprints compare only where algorithms are equal.
    session_fingerprint_algorithm Array(UInt32),
    session_fingerprint_exact Array(UInt64),
    session_fingerprint_normalised Array(UInt64),
    session_n_nodes Array(UInt32),
    session_npu_nodes Array(UInt32),
    session_npu_partitions Array(UInt32),
    -- CPU nodes by purpose: benign ones are edge QuantizeLinear and DequantizeLinear.
    session_cpu_nodes Array(UInt32),
    session_cpu_benign_nodes Array(UInt32),
    -- 0 to 1; NULL without a manifest.
    session_npu_macs_share Array(Nullable(Float32)),
    session_macs_attributed Array(Nullable(Float32)),
    session_reasons Array(Array(LowCardinality(String))),

    series_session Array(UInt16),
    series_phase Array(LowCardinality(String)),
    series_thermal Array(LowCardinality(String)),
    series_power_save Array(LowCardinality(String)),
    series_performance_mode Array(LowCardinality(String)),
    series_shape_key Array(LowCardinality(String)),
    series_session_age Array(LowCardinality(String)),
    -- Warm, not hot, no power save: decided once, in epwatch-proto.
    series_is_clean Array(Bool),
    series_hist_scheme Array(LowCardinality(String)),
    series_hist_bucket Array(Array(UInt16)) CODEC(Delta(2), ZSTD(1)),
    series_hist_count Array(Array(UInt64)) CODEC(T64, ZSTD(1)),
    series_n Array(UInt64) CODEC(T64, ZSTD(1)),
    series_sum_us Array(Float64) CODEC(ZSTD(1)),
    series_m2_us2 Array(Float64) CODEC(ZSTD(1)),
    series_min_us Array(Float64) CODEC(ZSTD(1)),
    series_max_us Array(Float64) CODEC(ZSTD(1)),
    series_runs_seen Array(UInt64) CODEC(T64, ZSTD(1)),
    series_sampled_one_in Array(UInt32),
    series_dropped_runs Array(UInt64),
    series_first_runs_us Array(Array(UInt64)),
    series_slow_fast_switches Array(Nullable(UInt64)),
    series_longest_slow_streak Array(Nullable(UInt64)),
    series_beyond_1_4x Array(Nullable(UInt64)),
    series_beyond_2x Array(Nullable(UInt64)),
    series_beyond_3x Array(Nullable(UInt64)),
    -- Self baselines: `previous` of the version before, `earlier` of this version on earlier
    -- firmware or runtime. n is 0 where there is none.
    series_previous_version Array(LowCardinality(String)),
    series_previous_n Array(UInt64),
    series_previous_p10_us Array(Float64) CODEC(ZSTD(1)),
    series_previous_p50_us Array(Float64) CODEC(ZSTD(1)),
    series_previous_p95_us Array(Float64) CODEC(ZSTD(1)),
    series_previous_cv Array(Float64) CODEC(ZSTD(1)),
    series_earlier_firmware Array(LowCardinality(String)),
    series_earlier_runtime Array(LowCardinality(String)),
    series_earlier_n Array(UInt64),
    series_earlier_p10_us Array(Float64) CODEC(ZSTD(1)),
    series_earlier_p50_us Array(Float64) CODEC(ZSTD(1)),
    series_earlier_p95_us Array(Float64) CODEC(ZSTD(1)),
    series_earlier_cv Array(Float64) CODEC(ZSTD(1)),
    series_baseline_absence Array(LowCardinality(String)),

    self_test_session Array(UInt64),
    self_test_input_id Array(LowCardinality(String)),
    self_test_tolerance Array(Nullable(Float64)),
    self_test_npu_hash Array(String),
    self_test_cpu_hash Array(String),
    self_test_max_abs Array(Nullable(Float64)),
    self_test_cosine Array(Nullable(Float64)),
    self_test_top1_equal Array(Nullable(Bool)),
    self_test_error_code Array(Int32),
    self_test_first_off_output Array(LowCardinality(String)),

    start_failure_model_id Array(LowCardinality(String)),
    start_failure_model_version Array(LowCardinality(String)),
    start_failure_requested_eps Array(Array(LowCardinality(String))),
    -- As `session_device_type`.
    start_failure_device_type Array(LowCardinality(String)),
    -- As `session_chipset`; empty if the CPU was asked for.
    start_failure_chipset Array(LowCardinality(String)) DEFAULT arrayMap(model -> chipset, start_failure_model_id),
    start_failure_phase Array(LowCardinality(String)),
    start_failure_reason Array(LowCardinality(String)),
    start_failure_ort_status Array(Int32),
    start_failure_text Array(String),
    start_failure_count Array(UInt64),

    run_error_session Array(UInt64),
    run_error_ort_status Array(Int32),
    run_error_count Array(UInt64),

    -- Cumulative since the stream began.
    health_runs_observed UInt64 CODEC(T64, ZSTD(1)),
    health_runs_recorded UInt64 CODEC(T64, ZSTD(1)),
    health_dropped_reports Map(LowCardinality(String), UInt64),
    health_dropped_runs Map(LowCardinality(String), UInt64),
    health_overflowed_keys UInt64,
    health_upload_failures Map(LowCardinality(String), UInt64),
    health_spool_bytes UInt64 CODEC(T64, ZSTD(1)),
    health_spool_oldest_ms Nullable(UInt64),
    health_directives_applied UInt64,
    health_directives_refused Map(LowCardinality(String), UInt64),
    health_consent_changes UInt64,
    health_internal_errors UInt64
) ENGINE = ${replicated}MergeTree
PARTITION BY toDate(received_at)
ORDER BY (app_id, environment, bucket, installation, stream_id, sequence)
TTL toDateTime(received_at) + INTERVAL ${raw_ttl_days} DAY
SETTINGS ${deduplication_window} = 10000, ttl_only_drop_parts = 1, fsync_after_insert = 1, fsync_part_directory = 1,
    enable_block_number_column = 1, enable_block_offset_column = 1;

-- The nodes behind each fingerprint, once for each placement. A report's row holds the numbers of a
-- placement, this table the names that a page shows.
CREATE TABLE IF NOT EXISTS placements ${on_cluster} (
    app_id LowCardinality(String),
    environment LowCardinality(String),
    model_id LowCardinality(String),
    model_version LowCardinality(String),
    fingerprint_algorithm UInt32,
    fingerprint_exact UInt64,
    fingerprint_normalised UInt64,
    first_seen DateTime64(3, 'UTC'),
    ep Array(LowCardinality(String)),
    ep_nodes Array(UInt32),
    -- 0 where partitions mean nothing (the CPU).
    ep_partitions Array(UInt32),
    ep_macs_share Array(Nullable(Float32)),
    cpu_node_name Array(String),
    cpu_node_op_type Array(LowCardinality(String)),
    cpu_node_benign Array(Bool),
    cpu_node_reason Array(LowCardinality(String)),
    cpu_node_macs_share Array(Nullable(Float32)),
    cpu_nodes_truncated Bool
) ENGINE = ${replicated}ReplacingMergeTree
ORDER BY (app_id, environment, model_id, model_version, fingerprint_algorithm, fingerprint_exact)
TTL toDateTime(first_seen) + INTERVAL ${rollup_ttl_days} DAY
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;

-- Deleted installations that reports were received of. Rows never expire.
CREATE TABLE IF NOT EXISTS tombstones ${on_cluster} (
    installation FixedString(16),
    tombstoned_at DateTime64(3, 'UTC')
) ENGINE = ${replicated}ReplacingMergeTree
ORDER BY installation
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;

-- Deleted installations that may have rows in `reports`: every view leaves these out. A row goes some hours after its
-- reports were erased, so that a view costs the same however many tombstones there are. The writer looks up the
-- installations of a batch in `tombstones`, and adds those it finds here before it inserts their reports.
CREATE TABLE IF NOT EXISTS hidden_installations ${on_cluster} (
    installation FixedString(16),
    tombstoned_at DateTime64(3, 'UTC'),
    hidden_at DateTime64(3, 'UTC') DEFAULT now64(3)
) ENGINE = ${replicated}ReplacingMergeTree(hidden_at)
ORDER BY installation
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;

-- Counts of reports that were not stored, by outcome. They close the loss ledger. Additive.
CREATE TABLE IF NOT EXISTS report_outcomes ${on_cluster} (
    bucket DateTime('UTC'),
    collector_id UInt64,
    app_id LowCardinality(String),
    environment LowCardinality(String),
    outcome LowCardinality(String),
    reports UInt64
) ENGINE = ${replicated}SummingMergeTree
ORDER BY (app_id, environment, bucket, outcome, collector_id)
TTL bucket + INTERVAL ${rollup_ttl_days} DAY
SETTINGS ${deduplication_window} = 10000, fsync_after_insert = 1, fsync_part_directory = 1;

-- The checkpoint of each collector: every report it received before `passed_until` is in the store.
CREATE TABLE IF NOT EXISTS collector_checkpoints ${on_cluster} (
    collector_id UInt64,
    passed_until DateTime64(3, 'UTC'),
    updated_at DateTime64(3, 'UTC')
) ENGINE = ${replicated}ReplacingMergeTree(updated_at)
ORDER BY collector_id;

-- Each change of the TTL of reports. Days before `whole_since` may have lost reports to the TTL that held
-- until then, so their summaries are never rebuilt.
CREATE TABLE IF NOT EXISTS raw_retention ${on_cluster} (
    changed_at DateTime64(3, 'UTC') DEFAULT now64(3),
    raw_days UInt16,
    whole_since DateTime('UTC')
) ENGINE = ${replicated}MergeTree
ORDER BY changed_at
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;

-- The key of the networks' hashes, made once: the first row counts. Readers may not read it.
CREATE TABLE IF NOT EXISTS network_key ${on_cluster} (
    created_at DateTime64(6, 'UTC'),
    key String
) ENGINE = ${replicated}MergeTree
ORDER BY (created_at, key)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;
