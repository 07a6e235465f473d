-- uid: epwatch-outputs
-- title: Outputs
-- page: /fleet?app=${app:raw}&environment=${environment:raw}&q=${model:raw}
-- about: Whether the NPU computes what the CPU does: self-tests, their hashes, and errors of runs, by day, as collectors
--     summed them up a minute ago at most.
-- variables: app environment model
-- range: now-7d

-- panel: Self-tests: the NPU against the CPU
-- as: table 24x9
-- about: Devices, on the day with most, whose NPU gave the CPU's answer, the worst first. A share below 1 on a chipset is
--     wrong output, however fast: see docs/oncall.md#wrong_outputs.
-- none: No self-test in this range: the app calls none
SELECT chipset, version, input, devices, agree_share, not_equal, errors, worst_abs, worst_cosine, commonest_hash
FROM (
    SELECT chipset, model_version AS version, input_id AS input, maxIf(t.devices, npu_hash = '') AS devices,
        sumIf(devices_equal, npu_hash = '') / sumIf(t.devices, npu_hash = '') AS agree_share,
        maxIf(devices_differ, npu_hash = '') AS not_equal, maxIf(devices_failed, npu_hash = '') AS errors,
        maxIf(t.worst_abs, npu_hash = '') AS worst_abs, minIf(t.worst_cosine, npu_hash = '') AS worst_cosine,
        argMaxIf(npu_hash, t.devices, npu_hash != '') AS commonest_hash
    FROM self_tests_daily_v1 AS t
    WHERE {scope} AND {model} AND $__dateFilter(day)
    GROUP BY chipset, version, input
)
WHERE devices > 0
ORDER BY agree_share, devices DESC
LIMIT 200

-- panel: Distance from the CPU, by chipset
-- as: barchart 24x8
-- unit: short
-- about: 1 - cosine of the outputs of NPU and CPU of the same device, of the median test on the day with most devices, by
--     chipset. Up to 0.02 is rounding. The same on all chipsets is your quantisation; one alone is its driver or firmware:
--     see docs/oncall.md#quantisation_loss.
-- none: No self-test in this range: the app calls none
SELECT concat(chipset, ' v', model_version) AS cohort, 1 - argMax(t.median_cosine, t.devices) AS distance
FROM self_tests_daily_v1 AS t
WHERE {scope} AND {model} AND $__dateFilter(day) AND npu_hash = '' AND t.devices > t.devices_failed
GROUP BY chipset, model_version
ORDER BY distance DESC
LIMIT 40

-- panel: Hashes of outputs
-- as: table 12x9
-- about: Devices, on the day with most, by the hash of the NPU's output; the eight commonest of each day. Several hashes on
--     one chipset and version are devices that compute differently: compare their firmware.
-- none: No self-test in this range: the app calls none
SELECT chipset, model_version AS version, substring(npu_hash, 1, 8) AS hash, max(t.devices) AS devices
FROM self_tests_daily_v1 AS t
WHERE {scope} AND {model} AND $__dateFilter(day) AND npu_hash != ''
GROUP BY chipset, version, hash
HAVING devices > 0
ORDER BY chipset, version, devices DESC
LIMIT 200

-- panel: Runs that failed
-- as: timeseries 12x9
-- unit: short
-- about: Runs a day that ONNX Runtime ended with an error, by status. A new one after a roll-out ends inferences in the
--     app: see its crash reports too.
-- none: No run failed in this range
SELECT toDateTime(day, 'UTC') AS time, concat(chipset, ', status ', toString(ort_status)) AS kind, toFloat64(sum(t.errors)) AS errors
FROM run_errors_daily_v1 AS t
WHERE {scope} AND {model} AND $__dateFilter(day)
GROUP BY time, kind
HAVING errors > 0
ORDER BY time, kind
