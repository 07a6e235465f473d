-- uid: epwatch-model-per-chipset
-- title: Model on chipset
-- page: /fleet?app=${app:raw}&environment=${environment:raw}&q=${model:raw}
-- about: One model's latency on each chipset, against an earlier version. Latency is of clean runs: warm, not hot, no
--     power save. Links of alerts open this.
-- variables: app environment model version* chipset* baseline
-- range: now-24h

-- panel: Incidents of the model
-- as: table 24x6
-- about: Open incidents, whatever the time range, and those that changed in it. The verdict's link opens the incident
--     on epwatch's page. docs/oncall.md has the runbook of each verdict.
-- none: No incident of this model in this range
SELECT
    started_at, summary, state, severity, verdict, model_version AS version, arrayStringConcat(chipsets, ', ') AS on_chipsets,
    devices_hit AS hit, devices_seen AS devices, latency_ratio AS times_slower,
    arrayStringConcat(incidents_v1.cpu_ops, ', ') AS cpu_ops, cpu_macs_share, {incident} AS page_code
FROM incidents_v1
WHERE {scope} AND {model} AND (state IN ('pending', 'firing', 'mitigated') OR $__timeFilter(changed_at))
ORDER BY state IN ('firing', 'mitigated', 'pending') DESC, started_at DESC
LIMIT 100

-- panel: Latest verdict on each chipset
-- as: table 24x6
-- about: The detector's latest verdict and the numbers behind it; its link opens epwatch's page. The devices hit decide. The
--     deadline is the one of the detector's config; without one its two columns are empty. The spread is standard deviation
--     over mean. The sign of two groups is Hartigan's dip statistic of the latencies: near 0
--     for one group, larger for a slow and a fast one.
-- none: No window of this model was judged in this range
SELECT
    chipset, model_version AS version,
    argMax(cohort_windows_v1.verdict, window_end) AS verdict, argMax(cohort_windows_v1.severity, window_end) AS severity,
    argMax(devices_hit, window_end) AS hit, argMax(cohort_windows_v1.devices, window_end) AS devices,
    argMax(cohort_windows_v1.npu_share, window_end) AS npu_share,
    argMax(p50_us, window_end) / 1000 AS p50_ms, argMax(p95_us, window_end) / 1000 AS p95_ms,
    argMax(latency_ratio, window_end) AS times_slower,
    argMax((deadline_us, cohort_windows_v1.late_share), window_end).1 / 1000 AS deadline_ms,
    argMax((deadline_us, cohort_windows_v1.late_share), window_end).2 AS late_share,
    argMax(cohort_windows_v1.cv_within, window_end) AS cv_within, argMax(cohort_windows_v1.cv_between, window_end) AS cv_between,
    argMax(cohort_windows_v1.dip, window_end) AS dip, argMax(arrayStringConcat(reasons, '; '), window_end) AS why,
    max(window_end) AS judged,
    {cohort: app=app_id environment=environment model=model_id version=model_version chipset=chipset} AS page_code
FROM cohort_windows_v1
WHERE {scope} AND {model} AND {version} AND {chipset} AND firmware = '' AND $__timeFilter(window_end)
GROUP BY app_id, environment, model_id, chipset, model_version
ORDER BY indexOf(['page', 'ticket', 'info', 'none'], severity), chipset, version

-- row: Latency

-- panel: Distribution of latency over time
-- as: heatmap 12x9
-- unit: ms
-- about: Number of clean runs at each latency; a cell is 9 % wide. Two bands are two groups: some runs or devices on the
--     NPU, others on the CPU. One band that moves up is a slower path for all.
-- none: No clean run in this range
SELECT $__timeInterval(bucket) AS time,
    printf('%010.3f', exp2((step + 1) / 8) / 1000) AS le,
    toFloat64(sum(in_cell)) AS runs
FROM (
    SELECT bucket, floor(log2(epwatch_bucket_mid_us(b)) * 8) AS step, c AS in_cell
    FROM cohort_buckets_closed_v1 ARRAY JOIN mapKeys(hist) AS b, mapValues(hist) AS c
    WHERE {scope} AND {model} AND {version} AND {chipset} AND context = 'clean' AND $__timeFilter(bucket)
)
GROUP BY time, step
ORDER BY time, step

-- panel: Latency over time: p10, median and p95
-- as: timeseries 12x9
-- unit: ms
-- about: A tenth of the clean runs is faster than p10, and 95 % are faster than p95. If p10 rises too, even the fastest runs left the NPU; if only p95 does, look at heat
--     and at single devices.
-- none: No clean run in this range
SELECT $__timeInterval(bucket) AS time, concat(chipset, ' v', model_version) AS cohort,
    {quantile 0.1} AS p10, {quantile 0.5} AS p50, {quantile 0.95} AS p95
FROM cohort_buckets_closed_v1
WHERE {scope} AND {model} AND {version} AND {chipset} AND context = 'clean' AND $__timeFilter(bucket)
GROUP BY time, cohort
ORDER BY time, cohort

-- panel: Latency against the baseline version, in ms
-- as: barchart 12x9
-- unit: percentunit
-- about: Share of clean runs by latency, of the version chosen as baseline and of all others. Bars of the others right of
--     those of the baseline are runs that left the NPU. Choose another baseline above.
-- none: No clean run in this range
SELECT toString(round(exp2(step / 8 + 1 / 16) / 1000, 2)) AS latency_ms,
    sumIf(runs, model_version != {baseline}) / greatest(sum(sumIf(runs, model_version != {baseline})) OVER (), 1) AS now_share,
    sumIf(runs, model_version = {baseline}) / greatest(sum(sumIf(runs, model_version = {baseline})) OVER (), 1) AS baseline_share
FROM (
    SELECT model_version, floor(log2(epwatch_bucket_mid_us(b)) * 8) AS step, c AS runs
    FROM cohort_buckets_closed_v1 ARRAY JOIN mapKeys(hist) AS b, mapValues(hist) AS c
    WHERE {scope} AND {model} AND {chipset} AND context = 'clean' AND $__timeFilter(bucket)
)
GROUP BY step
ORDER BY step

-- panel: A slow and a fast group of runs
-- as: timeseries 12x9
-- unit: short
-- about: Share of the runs in the slower group, where two groups of latencies fit better than one, and how far apart the
--     groups are (Ashman's D). Above 2 they are separate: some devices or runs left the NPU. A line ends where windows are
--     missing, or where one group fits.
-- gaps: shown
-- none: No window has a slow and a fast group in this range
SELECT window_end AS time, concat(chipset, ' v', model_version) AS cohort,
    if(has(signal_id, 'mixture_slow_share'), signal_value[indexOf(signal_id, 'mixture_slow_share')], NULL) AS slow_share,
    if(has(signal_id, 'mixture_separation'), signal_value[indexOf(signal_id, 'mixture_separation')], NULL) AS apart
FROM cohort_timeline_v1
WHERE {scope} AND {model} AND {version} AND {chipset} AND firmware = '' AND $__timeFilter(window_end)
ORDER BY time, cohort

-- panel: Devices against their own past, by times slower
-- as: barchart 24x9
-- unit: short
-- stack: normal
-- about: Devices of the last judged window, by how many times slower their fastest runs (p10) are than before. Columns
--     right of 1.4 with work on the CPU are a fallback; wholly on the NPU they are a slower model, heat or load.
-- none: No device of the last judged window has a past
SELECT toString(round(exp2((bin + 0.5) / 8), 2)) AS times, sum(npu) AS on_npu, sum(cpu) AS on_cpu
FROM (
    SELECT ratio_first, ratio_npu_devices, ratio_cpu_devices
    FROM cohort_evidence_v1
    WHERE {scope} AND {model} AND {version} AND {chipset} AND $__timeFilter(window_end)
    ORDER BY window_end DESC
    LIMIT 1 BY model_version, chipset
)
ARRAY JOIN ratio_npu_devices AS npu, ratio_cpu_devices AS cpu, arrayEnumerate(ratio_npu_devices) AS number
GROUP BY ratio_first + number - 1 AS bin
ORDER BY bin

-- panel: Spread of latency, within and between devices
-- as: timeseries 12x8
-- unit: none
-- about: Standard deviation over mean (CV), as the verdict used it. Heat, contention and an intermittent fallback raise it
--     within devices; a fallback on some devices raises it between them. A line ends where windows are missing.
-- gaps: shown
-- none: No window of this model was judged in this range
SELECT window_end AS time, concat(chipset, ' v', model_version) AS cohort, cv_within, cv_between
FROM cohort_timeline_v1
WHERE {scope} AND {model} AND {version} AND {chipset} AND firmware = '' AND $__timeFilter(window_end)
ORDER BY time, cohort

-- panel: Runs that count, and runs that do not
-- as: timeseries 12x8
-- unit: short
-- stack: normal
-- about: Runs by kind. Clean: warm, not hot, no power save. Cold: the first ones of a session. Strained: the rest. Only clean
--     ones count in verdicts: if they vanish, a verdict rests on few devices.
-- none: No run in this range
SELECT $__timeInterval(bucket) AS time, context, sum(n) AS runs
FROM cohort_buckets_closed_v1
WHERE {scope} AND {model} AND {version} AND {chipset} AND $__timeFilter(bucket)
GROUP BY time, context
ORDER BY time, context

-- panel: Latency by kind of run and input shape
-- as: table 24x8
-- about: Latency of each chipset. A difference between shapes is a difference of work, not a fallback.
-- none: No run in this range
SELECT chipset, context, shape_key AS shape, sum(n) AS runs, {quantile 0.5} AS p50_ms, {quantile 0.95} AS p95_ms
FROM cohort_buckets_closed_v1
WHERE {scope} AND {model} AND {version} AND {chipset} AND $__timeFilter(bucket)
GROUP BY context, shape_key, chipset
ORDER BY chipset, context, shape
LIMIT 500

-- row: Single reports of the last day in the range
-- folded: yes

-- panel: Latency by heat and session age
-- as: table 24x9
-- about: Latency of warm runs by heat and by the session's age. If only hot devices are slow, throttling is the cause,
--     not a fallback. Of closed buckets; of a large app 5,000 to 10,000 reports a day, drawn evenly.
-- none: No warm run on the last day of the range
SELECT {words thermal} AS heat, {words age} AS session_age, sum(runs_of) AS runs,
    {quantile 0.5} AS p50_ms, {quantile 0.95} AS p95_ms
FROM (
    WITH session_model_id[s] AS model_id, session_model_version[s] AS model_version, session_chipset[s] AS chipset
    SELECT thermal, age, sumMap(mapFromArrays(buckets, counts)) AS hist, sum(n) AS runs_of
    FROM closed_reports_v1
    ARRAY JOIN
        series_session AS s, series_phase AS phase, series_thermal AS thermal, series_session_age AS age,
        series_hist_bucket AS buckets, series_hist_count AS counts, series_n AS n
    WHERE {scope} AND {model} AND {version} AND {chipset} AND phase = 'warm' AND {last_day}
        AND cityHash64(collector_id, wal_offset) % (
            SELECT intDiv(sum(greatest(stored, 0)), 10000) + 1 FROM loss_ledger_read_daily_v1
            WHERE {scope} AND day BETWEEN toDate($__toTime - INTERVAL 1 DAY) AND toDate($__toTime)) = 0
    GROUP BY thermal, age
)
GROUP BY thermal, age
ORDER BY thermal, age
