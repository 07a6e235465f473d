-- uid: epwatch-loss-ledger
-- title: Loss ledger
-- page: /ledger?app=${app:raw}&environment=${environment:raw}
-- about: What became of every report and run: recorded = stored + dropped + refused + missing.
-- variables: app environment
-- range: now-14d

-- panel: Reports of the last 14 days: is each accounted for?
-- as: stat 24x4
-- unit: short
-- about: Reports of the last 14 days, whatever the time range, as a collector read them a minute ago at most. Missing ones are on their way, or lost:
--     if they stay, look at the days below. Not accounted is never other than 0.
-- none: No report was stored yet
SELECT sum(loss_ledger_read_daily_v1.recorded) AS recorded, sum(loss_ledger_read_daily_v1.stored) AS stored,
    sum(loss_ledger_read_daily_v1.dropped) AS dropped, sum(loss_ledger_read_daily_v1.refused) AS refused,
    sum(loss_ledger_read_daily_v1.missing) AS missing, recorded - stored - dropped - refused - missing AS not_accounted
FROM loss_ledger_read_daily_v1
WHERE {scope} AND day > today() - 14
HAVING count() > 0

-- panel: Reports by day
-- as: barchart 12x9
-- unit: short
-- stack: normal
-- about: Fate of the reports by day of receipt. Dropped: given up on the device. Refused: given up because a collector
--     refused it for good. A missing report may still come: devices keep theirs for 12 days.
-- none: No report in this range
SELECT toString(day) AS date, stored, dropped, refused, greatest(missing, 0) AS missing
FROM loss_ledger_read_daily_v1
WHERE {scope} AND $__dateFilter(day)
ORDER BY date

-- panel: Answers of collectors
-- as: timeseries 12x9
-- unit: short
-- about: Reports by the collectors' answer, beside a plain ack. A refused one that comes again is answered again.
--     docs/monitor.md, What to watch, has the action for each outcome.
-- none: Every report was acknowledged
SELECT $__timeInterval(bucket) AS time, {words outcome} AS answer, toFloat64(sum(report_outcomes_v1.reports)) AS reports
FROM report_outcomes_v1
WHERE {scope} AND $__timeFilter(bucket)
GROUP BY time, answer
ORDER BY time, answer

-- panel: Dropped on the device
-- as: table 12x9
-- about: Reports and runs that devices gave up, by reason. A full spool and reports that expired are devices without
--     a way to the collector; the rest is in docs/views.md.
-- none: No device gave up a report in this range
SELECT day, {words reason} AS why, sum(loss_ledger_read_v1.reports) AS reports, sum(loss_ledger_read_v1.runs) AS runs
FROM loss_ledger_read_v1
WHERE {scope} AND kind IN ('dropped', 'refused') AND $__dateFilter(day)
GROUP BY day, reason
ORDER BY day DESC, reports DESC
LIMIT 500

-- panel: Runs by day
-- as: table 12x9
-- about: Runs in histograms, as devices count them. Of reports that never came, the runs are counted only if the device
--     gave them up.
-- none: No report in this range
SELECT day, recorded, stored, dropped, refused, missing, duplicate, conflict
FROM loss_ledger_runs_read_daily_v1
WHERE {scope} AND $__dateFilter(day)
ORDER BY day DESC

-- panel: Devices that count in verdicts
-- as: table 12x8
-- about: Installations without a vote do not count in verdicts. They exceed the usual number of new ones of an app or a network: a launch, or made-up
--     devices. `[collector.new_installations]` has the numbers.
-- none: No report in this range
SELECT day, sumIf(total, name = 'installations') AS installations, sumIf(total, name = 'unproven') AS unproven,
    sumIf(total, name = 'reports') AS reports, sumIf(total, name = 'unproven_reports') AS unproven_reports
FROM daily_counts_v1
WHERE {scope} AND $__dateFilter(day)
GROUP BY day
ORDER BY day DESC

-- panel: Names beyond an app's limit
-- as: table 12x8
-- about: Reports with a name stored as `__other__`, by dimension. An app that puts ids into names fills the limit: tell
--     its team.
-- none: No report in this range
SELECT day, sumIf(total, name = 'models') AS models, sumIf(total, name = 'versions') AS versions,
    sumIf(total, name = 'chipsets') AS chipsets, sumIf(total, name = 'shape_keys') AS shape_keys,
    sumIf(total, name = 'limited_reports') AS limited_reports, sumIf(total, name = 'reports') AS reports
FROM daily_counts_v1
WHERE {scope} AND $__dateFilter(day)
GROUP BY day
ORDER BY day DESC

-- panel: Deletions
-- as: table 8x6
-- about: Installations that asked to be deleted, of all apps. Asked and hidden differ only while the store is away.
-- none: No deletion was asked for
SELECT count() AS asked, countIf(hidden_at > 0) AS hidden, countIf(erased_at > 0) AS erased, max(requested_at) AS latest
FROM deletions_v1
HAVING asked > 0

-- panel: Directives in force
-- as: table 16x6
-- about: Directives on offer to this app's devices. `epwatch directive revoke` ends one before its time.
-- none: No directive is in force
SELECT id, {words action} AS act, app_id AS app, model_id AS model, model_version AS version, chipset, firmware, not_before, expires
FROM directives_v1
WHERE (app_id = {name app} OR app_id = '') AND NOT is_revoked AND expires > now()
ORDER BY expires
LIMIT 200
