-- uid: epwatch-fleet
-- title: Fleet
-- page: /fleet?app=${app:raw}&environment=${environment:raw}
-- about: Every model on every chipset: what fell back, on how many devices, since when. Begin here.
-- variables: app environment
-- range: now-7d

-- panel: Open incidents
-- as: stat 6x8
-- unit: short
-- about: Open incidents, whatever the time range. A page needs someone now, a ticket in working hours; a held one
--     waits for clean windows. Details and links are on the dashboard Incidents.
-- none: No incident was ever opened
SELECT countIf(severity = 'page') AS pages, countIf(severity = 'ticket') AS tickets, countIf(state = 'mitigated') AS held
FROM incidents_v1
WHERE {scope} AND state IN ('firing', 'mitigated') AND JSONExtractString(document, 'part_of') = ''

-- panel: Devices by chipset
-- as: barchart 18x8
-- unit: short
-- about: The devices of the model that most devices of a chipset run, in its latest window, and the most that are hit of
--     one version. A device that was updated within the window counts once. Devices without that model are not counted,
--     so a fleet is at least this large. A chipset with many devices hit is where the fallback is: open its model below.
-- none: No window was judged in this range
SELECT chipset, max(of_model) AS devices, max(hit_of_cohort) AS hit
FROM (
    SELECT chipset, argMax(devices_on_chipset, window_end) AS of_model, argMax(devices_hit, window_end) AS hit_of_cohort,
        max(window_end) AS latest, max(max(window_end)) OVER (PARTITION BY chipset, model_id) AS latest_of_model
    FROM cohort_windows_v1
    WHERE {scope} AND firmware = '' AND $__timeFilter(window_end)
    GROUP BY chipset, model_id, model_version
)
WHERE latest = latest_of_model
GROUP BY chipset
ORDER BY devices DESC, chipset
LIMIT 50

-- panel: Models and chipsets, latest window
-- as: table 24x12
-- about: The detector's latest verdict on each version and chipset, the worst first. The verdict's link opens epwatch's
--     page, the model's link its latency. The number of devices hit decides. The spread is standard deviation over mean:
--     within a device it rises with heat and load, between devices with a fallback on some of them.
-- none: No window was judged in this range: see Collector and detector
SELECT
    model_id AS model, chipset, model_version AS version,
    argMax(cohort_windows_v1.verdict, window_end) AS verdict, argMax(cohort_windows_v1.severity, window_end) AS severity,
    argMax(devices_hit, window_end) AS hit, argMax(cohort_windows_v1.devices, window_end) AS devices,
    argMax(cohort_windows_v1.npu_share, window_end) AS npu_share,
    argMax(p50_us, window_end) / 1000 AS p50_ms, argMax(p95_us, window_end) / 1000 AS p95_ms,
    argMax(latency_ratio, window_end) AS times_slower,
    argMax(cohort_windows_v1.cv_within, window_end) AS cv_within, argMax(cohort_windows_v1.cv_between, window_end) AS cv_between,
    max(window_end) AS judged,
    {cohort: app=app_id environment=environment model=model_id version=model_version chipset=chipset} AS page_code,
    {link: var-model=model_id var-version=model_version var-chipset=chipset} AS link_code
FROM cohort_windows_v1
WHERE {scope} AND firmware = '' AND $__timeFilter(window_end)
GROUP BY app_id, environment, model_id, chipset, model_version
ORDER BY indexOf(['page', 'ticket', 'info', 'none'], severity), hit DESC, devices DESC
LIMIT 500

-- panel: Verdicts over time
-- as: state-timeline 24x10
-- about: Verdict on each version and chipset, window by window. Red is a fallback of most devices, an NPU that does not
--     start, or wrong outputs;
--     a gap is a window that is missing: it was not judged, or could not be stored. Compare the first red with a roll-out.
-- gaps: shown
-- none: No window was judged in this range
SELECT window_end AS time, concat(model_id, ' ', model_version, ' on ', chipset) AS cohort,
    nullIf(toFloat64(indexOf({verdicts}, ifNull(cohort_timeline_v1.verdict, ''))), 0) AS verdict
FROM cohort_timeline_v1
WHERE {scope} AND firmware = '' AND $__timeFilter(window_end)
ORDER BY time, cohort
LIMIT 20000

-- panel: Sessions wholly on the NPU
-- as: timeseries 24x8
-- unit: percentunit
-- about: Share of the sessions that asked for the NPU and got it for (nearly) all of their MACs. A step down on one
--     chipset is a fallback there: see Placement for the ops.
-- none: No session asked for the NPU in this range
SELECT $__timeInterval(bucket) AS time, chipset,
    sumIf(sessions, cpu_nodes = 0 OR abs(npu_macs_share) >= 0.999) / sum(sessions) AS share
FROM cohort_sessions_closed_v1
WHERE {scope} AND requests_npu AND n_nodes > 0 AND $__timeFilter(bucket)
GROUP BY time, chipset
ORDER BY time, chipset
