-- uid: epwatch-outputs
-- title: Outputs
-- about: Whether the NPU computes what the CPU does: self-tests, their hashes, and errors of runs. Everything here reads
--     the reports of the last day of the range.
-- variables: app environment model
-- range: now-24h

-- panel: Golden self-tests
-- as: table 24x9
-- about: Devices whose NPU gave the CPU's answer, the worst first. A share below 1 on a chipset is wrong output, however
--     fast: see docs/oncall.md#wrong_outputs.
-- none: No self-test on the last day of the range: the app calls none
SELECT chipset, version, input, devices, agree / devices AS agree_share, not_equal, errors, worst_abs, worst_cosine, hash AS commonest_hash
FROM (
    SELECT chipset, model_version AS version, input_id AS input, uniqExact(installation) AS devices,
        topK(1)(npu_hash)[1] AS hash, uniqExactIf(installation, npu_hash = cpu_hash OR top1_equal) AS agree,
        uniqExactIf(installation, NOT top1_equal) AS not_equal, uniqExactIf(installation, error_code != 0) AS errors,
        max(max_abs) AS worst_abs, min(cosine) AS worst_cosine
    FROM self_tests_v1
    WHERE {scope} AND {model} AND {last_day}
    GROUP BY chipset, version, input
)
ORDER BY agree_share, devices DESC
LIMIT 200

-- panel: Hashes of outputs
-- as: table 12x9
-- about: Devices by the hash of the NPU's output. Several hashes on one chipset and version are devices that compute
--     differently: compare their firmware.
-- none: No self-test on the last day of the range: the app calls none
SELECT chipset, model_version AS version, substring(npu_hash, 1, 8) AS hash, uniqExact(installation) AS devices
FROM self_tests_v1
WHERE {scope} AND {model} AND {last_day}
GROUP BY chipset, version, hash
ORDER BY chipset, version, devices DESC
LIMIT 200

-- panel: Errors of runs
-- as: timeseries 12x9
-- unit: short
-- about: Runs that ONNX Runtime ended with an error, by status. A new one after a roll-out ends inferences in the app:
--     see its crash reports too.
-- none: No run failed on the last day of the range
SELECT $__timeInterval(bucket) AS time, concat(chipset, ' status ', toString(ort_status)) AS kind, toFloat64(sum(run_errors_v1.errors)) AS errors
FROM run_errors_v1
WHERE {scope} AND {model} AND {last_day}
GROUP BY time, kind
ORDER BY time, kind
