-- uid: epwatch-incidents
-- title: Incidents
-- page: /incidents?app=${app:raw}
-- about: Every incident, the open ones first and whatever the time range.
-- variables: app environment
-- range: now-7d

-- panel: Open incidents
-- as: stat 14x4
-- unit: short
-- about: Open incidents, whatever the time range. A page needs someone now, a ticket in working hours; a held one waits
--     for clean windows.
-- none: No incident was ever opened
SELECT countIf(severity = 'page') AS pages, countIf(severity = 'ticket') AS tickets, countIf(state = 'mitigated') AS held
FROM incidents_v1
WHERE {scope} AND state IN ('firing', 'mitigated') AND JSONExtractString(document, 'part_of') = ''

-- panel: From the start of a fault to its page
-- as: stat 10x4
-- unit: s
-- about: Time from the first window with the fault to its page, of the pages in the range: the median and the longest. Where
--     it grows, look at how late windows are judged: the dashboard Collector and detector.
-- none: Nobody was paged in this range
SELECT quantileExact(0.5)(took) AS median_s, max(took) AS longest_s
FROM (
    SELECT min(started_at) AS began, minIf(changed_at, state = 'firing' AND severity = 'page') AS paged,
        dateDiff('second', began, paged) AS took
    FROM incident_changes_v1
    WHERE {scope}
    GROUP BY incident_id
    HAVING countIf(state = 'firing' AND severity = 'page') > 0 AND $__timeFilter(paged)
)
HAVING count() > 0

-- panel: Incidents
-- as: table 24x12
-- about: Open incidents, whatever the time range, and those that changed in it. The verdict's link opens the incident
--     on epwatch's page, with steps and orders; the model's link its latency around the incident. docs/oncall.md has the
--     runbook of each verdict.
-- none: No incident in this range
SELECT started_at, summary, state, severity, verdict, model_id AS model, model_version AS version,
    arrayStringConcat(chipsets, ', ') AS on_chipsets, devices_hit AS hit, devices_seen AS devices,
    latency_ratio AS times_slower, arrayStringConcat(incidents_v1.cpu_ops, ', ') AS cpu_ops, cpu_macs_share,
    changed_at, incident_id, {incident} AS page_code,
    concat({link: var-model=model_id var-version=model_version},
        arrayStringConcat(arrayMap(chipset -> {link: var-chipset=chipset}, chipsets)),
        '&from=', toString(toUnixTimestamp64Milli(started_at) - 86400000),
        '&to=', if(state = 'resolved', toString(toUnixTimestamp64Milli(changed_at) + 3600000), 'now')) AS link_code
FROM incidents_v1
WHERE {scope} AND (state IN ('pending', 'firing', 'mitigated') OR $__timeFilter(changed_at))
ORDER BY state IN ('firing', 'mitigated', 'pending') DESC, severity = 'page' DESC, started_at DESC
LIMIT 200

-- panel: Devices hit
-- as: timeseries 24x8
-- unit: short
-- about: Devices hit in the windows that were worth a page or a ticket. It falls after a rollback or a directive took
--     effect; if it does not, look at the versions that still run. A line ends where windows are missing.
-- gaps: shown
-- none: No window was worth a page or a ticket in this range
SELECT window_end AS time, concat(model_id, ' ', model_version, ' on ', chipset) AS cohort, toFloat64(devices_hit) AS hit
FROM cohort_timeline_v1
WHERE {scope} AND firmware = '' AND last_severity IN ('page', 'ticket') AND $__timeFilter(window_end)
ORDER BY time, cohort
LIMIT 20000

-- panel: Changes of incidents
-- as: table 24x8
-- about: Each change of state, severity, verdict or devices hit, the newest first. One that swings between states is near
--     its limit: look at its windows before you act.
-- none: No incident changed in this range
SELECT changed_at, model_id AS model, model_version AS version, arrayStringConcat(chipsets, ', ') AS on_chipsets, state, severity,
    verdict, devices_hit AS hit, devices_seen AS devices, incident_id, {incident} AS page_code
FROM incident_changes_v1
WHERE {scope} AND $__timeFilter(changed_at)
ORDER BY changed_at DESC
LIMIT 500

-- panel: Measurements behind the latest verdict
-- as: table 24x10
-- about: What was measured in the latest window of each version and chipset that was worth a page or a ticket. The verdict
--     rests on measurements that a healthy fleet hardly ever has: a small chance with many devices hit.
-- none: No window was worth a page or a ticket in this range
SELECT model_id AS model, chipset, model_version AS version, id AS signal, value, p, hits AS hit, of_devices AS devices,
    {cohort: app=app_id environment=environment model=model_id version=model_version chipset=chipset} AS page_code,
    {link: var-model=model_id var-version=model_version var-chipset=chipset} AS link_code
FROM (
    SELECT * FROM cohort_windows_v1
    WHERE {scope} AND firmware = '' AND severity IN ('page', 'ticket') AND $__timeFilter(window_end)
    ORDER BY window_end DESC
    LIMIT 1 BY model_id, chipset, model_version
)
ARRAY JOIN signal_id AS id, signal_value AS value, signal_p AS p, signal_hits AS hits, signal_devices AS of_devices
WHERE p < 1
ORDER BY model, chipset, version, p
LIMIT 500
