-- uid: epwatch-rollout
-- title: Rollout
-- page: /fleet?app=${app:raw}&environment=${environment:raw}&q=${model:raw}
-- about: A new version against the baseline on the same chipset: whether to go on with the roll-out or to stop it.
-- variables: app environment model chipset* baseline
-- range: now-7d

-- panel: May it go to more devices
-- as: table 24x7
-- about: By the detector's newest window. Stop: an incident is open, or the verdict is a page or a ticket that no person called
--     false. Go: healthy, with enough devices compared. The page /rollout looks at each firmware too, and decides.
-- none: No window of this model was judged in this range
SELECT chipset, version, multiIf(
        is_open OR (severity IN ('page', 'ticket') AND NOT is_called_false), 'stop',
        (verdict = 'healthy' OR is_called_false) AND compared >= needed, 'go',
        on_chipset < needed, 'too rare', 'not yet') AS answer,
    compared, needed, devices, verdict, times_slower, npu_share, judged, page_code
FROM (
    SELECT toString(w.chipset) AS chipset, toString(w.model_version) AS version, if(w.verdict = 'healthy', arrayMax(arrayPushBack(arrayFilter((n, id) -> has(['placement_change', 'certificate_drift',
            'slow_device_share', 'slow_device_share_of_model'], toString(id)), signal_devices, signal_id), eligible_devices)), eligible_devices) AS compared,
        if(isNull(w.npu_share), 30, 8) AS needed, w.devices AS devices, w.devices_on_chipset AS on_chipset,
        toString(w.verdict) AS verdict, toString(w.severity) AS severity, w.latency_ratio AS times_slower,
        w.npu_share AS npu_share, w.window_end AS judged, max(w.window_end) OVER () AS newest,
        severity = 'ticket' AND (version, chipset, verdict) IN (
            SELECT toString(model_version), toString(arrayJoin(chipsets)), toString(verdict)
            FROM false_incidents_v1 WHERE {scope} AND {model}) AS is_called_false,
        (version, chipset) IN (
            SELECT toString(model_version), toString(arrayJoin(chipsets))
            FROM incidents_v1 WHERE {scope} AND {model} AND state IN ('firing', 'mitigated')) AS is_open,
        {cohort: app=app_id environment=environment model=model_id version=model_version chipset=chipset} AS page_code
    FROM cohort_windows_v1 AS w
    WHERE {scope} AND {model} AND {chipset} AND firmware = '' AND $__timeFilter(window_end)
)
WHERE judged = newest
ORDER BY indexOf(['stop', 'not yet', 'go', 'too rare'], answer), devices DESC, chipset, version
LIMIT 200

-- panel: Sessions by version
-- as: timeseries 12x9
-- unit: short
-- stack: percent
-- about: How far the roll-out is. Numbers of a version that few sessions run are not worth a decision yet.
-- none: No session in this range
SELECT $__timeInterval(bucket) AS time, concat('v', model_version) AS version, toFloat64(sum(cohort_sessions_closed_v1.sessions)) AS sessions
FROM cohort_sessions_closed_v1
WHERE {scope} AND {model} AND {chipset} AND $__timeFilter(bucket)
GROUP BY time, version
ORDER BY time, version

-- panel: Devices hit
-- as: timeseries 12x9
-- unit: short
-- about: Devices hit in each window, of those that count. A number that grows with adoption is the version's own fault:
--     stop the roll-out. A line ends where windows are missing, or where no device of the cohort reported.
-- gaps: shown
-- none: No window of this model was judged in this range
SELECT window_end AS time, concat(chipset, ' v', model_version) AS cohort, toFloat64(devices_hit) AS hit, toFloat64(eligible_devices) AS devices
FROM cohort_timeline_v1
WHERE {scope} AND {model} AND {chipset} AND firmware = '' AND $__timeFilter(window_end)
ORDER BY time, cohort

-- panel: Versions against the baseline, on the same chipset
-- as: table 24x9
-- about: Clean runs of the whole range. Above 1.4 times at p10 and p50, on one chipset only, is a fallback there; on all
--     chipsets it is a heavier model.
-- none: No clean run in this range
SELECT chipset, model_version AS version, ms.1 AS p10_ms, ms.2 AS p50_ms, ms.3 AS p95_ms, nullIf(b.2, 0) AS baseline_p50_ms,
    ms.1 / nullIf(b.1, 0) AS times_p10, ms.2 / nullIf(b.2, 0) AS times_p50, runs
FROM (
    SELECT chipset, model_version, ({quantile 0.1}, {quantile 0.5}, {quantile 0.95}) AS ms, sum(n) AS runs,
        anyIf(ms, model_version = {baseline}) OVER (PARTITION BY chipset) AS b
    FROM cohort_buckets_closed_v1
    WHERE {scope} AND {model} AND {chipset} AND context = 'clean' AND $__timeFilter(bucket)
    GROUP BY chipset, model_version
)
ORDER BY times_p50 DESC, chipset, version
LIMIT 500

-- panel: Median against the baseline's of the same hours
-- as: timeseries 24x9
-- unit: suffix: ×
-- about: How many times slower than the baseline, so that heat and load of the day cancel out. A step away from
--     1 that stays is the version's.
-- none: No interval has the baseline and another version
SELECT time, concat(chipset, ' v', version) AS cohort, p50 / base AS times
FROM (
    SELECT $__timeInterval(bucket) AS time, chipset, model_version AS version, {quantile 0.5} AS p50,
        maxIf(p50, version = {baseline}) OVER (PARTITION BY time, chipset) AS base
    FROM cohort_buckets_closed_v1
    WHERE {scope} AND {model} AND {chipset} AND context = 'clean' AND $__timeFilter(bucket)
    GROUP BY time, chipset, version
)
WHERE version != {baseline} AND base > 0
ORDER BY time, cohort

-- panel: Sessions that could not start
-- as: table 24x9
-- about: Failed starts by reason, and their devices on the day with most. A new version with many is
--     not on these devices at all: stop the roll-out, see docs/oncall.md#npu_start_failure.
-- none: No session failed to start in this range
SELECT chipset, model_version AS version, {words start_phase} AS phase, {words start_reason} AS reason,
    sum(t.failures) AS failures, max(t.devices) AS devices
FROM start_failures_daily_v1 AS t
WHERE {scope} AND {model} AND {chipset} AND $__dateFilter(day)
GROUP BY chipset, version, phase, reason
HAVING failures > 0
ORDER BY failures DESC
LIMIT 100

-- row: Single reports of the last day in the range
-- folded: yes

-- panel: What ONNX Runtime said of them
-- as: table 24x9
-- about: One text of a failed start for each reason, from single reports of closed buckets.
-- none: No session failed to start on the last day of the range
SELECT chipset, version, {words phase} AS step, {words reason} AS why, sum(failures_of) AS failures, uniqExact(installation) AS devices, any(text) AS example
FROM closed_reports_v1
ARRAY JOIN
    start_failure_model_id AS model_id, start_failure_model_version AS version, start_failure_phase AS phase,
    start_failure_reason AS reason, start_failure_count AS failures_of, start_failure_text AS text
WHERE {scope} AND {model} AND {chipset} AND {last_day}
GROUP BY chipset, version, phase, reason
ORDER BY failures DESC
LIMIT 100
