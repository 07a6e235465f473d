-- uid: epwatch-placement
-- title: Placement
-- page: /fleet?app=${app:raw}&environment=${environment:raw}&q=${model:raw}
-- about: Where a model's nodes and MACs really run, by chipset and version, and which ops keep it off the NPU. A chipset with
--     another accelerator in brackets has its figures of that one.
-- variables: app environment model version* chipset*
-- range: now-7d

-- panel: Work on the NPU and on the CPU
-- as: barchart 12x9
-- unit: percentunit
-- stack: normal
-- about: Share of the model's multiply-accumulates (MACs) by place, or of its nodes where no manifest names MACs. Only
--     sessions that asked for the NPU. A chipset with less on the NPU than others needs the ops below.
-- none: No session asked for the NPU in this range
SELECT concat(chipset, ' v', model_version) AS cohort,
    sum(if(isNull(npu_macs_share), npu_nodes / n_nodes, abs(npu_macs_share)) * sessions) / sum(sessions) AS npu_share,
    1 - npu_share AS cpu_share
FROM cohort_sessions_closed_v1
WHERE {scope} AND {model} AND {version} AND {chipset} AND requests_npu AND n_nodes > 0 AND $__timeFilter(bucket)
GROUP BY chipset, model_version
ORDER BY chipset, model_version

-- panel: Sessions that asked for the NPU
-- as: table 12x9
-- about: Their share of nodes on the NPU, the sessions that got nothing of it, and the mean number of partitions.
-- none: No session asked for the NPU in this range
SELECT chipset, model_version AS version, sum(cohort_sessions_closed_v1.sessions) AS sessions,
    sum(npu_nodes * cohort_sessions_closed_v1.sessions) / sum(n_nodes * cohort_sessions_closed_v1.sessions) AS nodes_share,
    sumIf(cohort_sessions_closed_v1.sessions, npu_nodes = 0) / sum(cohort_sessions_closed_v1.sessions) AS without_npu_share,
    sum(npu_partitions * cohort_sessions_closed_v1.sessions) / sum(cohort_sessions_closed_v1.sessions) AS partitions
FROM cohort_sessions_closed_v1
WHERE {scope} AND {model} AND {version} AND {chipset} AND requests_npu AND n_nodes > 0 AND $__timeFilter(bucket)
GROUP BY chipset, model_version
ORDER BY chipset, version

-- panel: Sessions by placement
-- as: timeseries 12x9
-- unit: short
-- stack: percent
-- about: Sessions by their number of nodes on the NPU; the code in brackets tells placements with equal numbers apart. A
--     new colour is a new placement: look for a version or firmware of the same day.
-- none: No session asked for the NPU in this range
SELECT $__timeInterval(bucket) AS time,
    concat(toString(any(npu_nodes)), ' of ', toString(any(n_nodes)), ' nodes on the ', any({accelerator chipset}), ' (', lower(hex(toUInt32(bitShiftRight(fingerprint_normalised, 32)))), ')') AS placement,
    toFloat64(sum(cohort_sessions_closed_v1.sessions)) AS sessions
FROM cohort_sessions_closed_v1
WHERE {scope} AND {model} AND {version} AND {chipset} AND requests_npu AND $__timeFilter(bucket)
GROUP BY time, fingerprint_normalised
ORDER BY time, placement
LIMIT 20000

-- panel: Partitions on the NPU
-- as: timeseries 12x9
-- unit: short
-- about: Mean number of partitions. More of them mean more changes between NPU and CPU: an op in the middle fell back.
-- none: No session asked for the NPU in this range
SELECT $__timeInterval(bucket) AS time, concat(chipset, ' v', model_version) AS cohort,
    sum(npu_partitions * sessions) / sum(sessions) AS partitions
FROM cohort_sessions_closed_v1
WHERE {scope} AND {model} AND {version} AND {chipset} AND requests_npu AND $__timeFilter(bucket)
GROUP BY time, cohort
ORDER BY time, cohort

-- panel: Ops on the CPU
-- as: table 24x10
-- about: The ops of these placements that run on the CPU, the costly ones first. Harmless ones stand at an edge of the
--     model. The others are what to change in the model or to report to the EP's vendor.
-- none: No op on the CPU: all of the model runs on the NPU
SELECT op, {words reason} AS why, if(benign, 'yes', 'no') AS harmless, sum(s) AS sessions, max(macs) AS macs_share,
    arrayStringConcat(groupUniqArray(16)(chipset), ', ') AS on_chipsets, uniqExact(node) AS nodes,
    arrayStringConcat(groupUniqArray(4)(node), ', ') AS names
FROM (
    SELECT fingerprint_exact, fingerprint_algorithm, model_version, op, reason, benign, node, macs
    FROM placements_v1
    ARRAY JOIN cpu_node_op_type AS op, cpu_node_reason AS reason, cpu_node_benign AS benign, cpu_node_name AS node, cpu_node_macs_share AS macs
    WHERE {scope} AND {model}
) AS p
INNER JOIN (
    SELECT fingerprint_exact, fingerprint_algorithm, model_version, chipset, sum(sessions) AS s
    FROM cohort_sessions_closed_v1
    WHERE {scope} AND {model} AND {version} AND {chipset} AND requests_npu AND $__timeFilter(bucket)
    GROUP BY fingerprint_exact, fingerprint_algorithm, model_version, chipset
) AS c USING (fingerprint_exact, fingerprint_algorithm, model_version)
GROUP BY op, reason, benign
ORDER BY benign, macs_share DESC, sessions DESC
LIMIT 100

-- panel: Execution providers asked for and used
-- as: table 16x8
-- about: Execution providers (EPs) that sessions asked for against those that ran. Asked for the NPU and got the CPU only is a total fallback;
--     by a directive it is meant so. The policy is the app's, if it let ONNX Runtime choose devices.
-- none: No session in this range
SELECT arrayStringConcat(requested_eps, ' + ') AS asked_for, upper(selection_policy) AS policy,
    multiIf(npu_nodes = 0, 'CPU only', cpu_nodes <= cpu_benign_nodes, concat({accelerator chipset}, ' only'), concat({accelerator chipset}, ' and CPU')) AS got, {words graph_kind} AS graph,
    {words placement_source} AS source, sum(cohort_sessions_closed_v1.sessions) AS sessions, sum(directed_sessions) AS by_directive
FROM cohort_sessions_closed_v1
WHERE {scope} AND {model} AND {version} AND {chipset} AND $__timeFilter(bucket)
GROUP BY asked_for, policy, got, graph_kind, placement_source
ORDER BY sessions DESC
LIMIT 100

-- panel: Reasons for nodes off the NPU
-- as: barchart 8x8
-- unit: short
-- about: Sessions of the placements whose sessions gave a reason for nodes off the NPU, by reason. docs/oncall.md has the
--     runbook of each verdict.
-- none: No session gave a reason in this range
SELECT {words why} AS reason, sum(sessions) AS sessions
FROM cohort_sessions_closed_v1 ARRAY JOIN reasons AS why
WHERE {scope} AND {model} AND {version} AND {chipset} AND $__timeFilter(bucket)
GROUP BY reason
ORDER BY sessions DESC
LIMIT 50

-- row: Single reports of the last day in the range
-- folded: yes

-- panel: Time to create a session
-- as: barchart 24x8
-- unit: ms
-- about: Median and p95 of the last day. A rise with a new version or runtime is a compilation on the device that a cached
--     context saved before. Of closed buckets.
-- none: No session on the last day of the range
WITH session_model_id[i] AS model_id, session_model_version[i] AS model_version, session_chipset[i] AS chipset, session_creation_us[i] AS creation_us
SELECT concat(chipset, ' v', model_version) AS cohort, quantile(0.5)(creation_us) / 1000 AS p50_ms, quantile(0.95)(creation_us) / 1000 AS p95_ms
FROM closed_reports_v1
ARRAY JOIN arrayEnumerate(session_uid) AS i
WHERE {scope} AND {model} AND {version} AND {chipset} AND {last_day}
GROUP BY cohort
ORDER BY cohort
LIMIT 100
