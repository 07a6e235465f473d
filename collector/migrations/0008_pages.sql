-- Views for pages.

-- How far the store has come, in one row. Pages are read again when it moves. A time that does not exist yet is 0.
CREATE OR REPLACE VIEW store_progress_v1 ${on_cluster} AS
SELECT
    assumeNotNull((SELECT toInt64(toUnixTimestamp(max(closed_until))) * 1000 FROM rollup_watermark)) AS closed_until_ms,
    toInt64(toUnixTimestamp64Milli(max(cohort_windows.judged_at))) AS judged_at_ms,
    toInt64(toUnixTimestamp64Milli(max(cohort_windows.window_end))) AS judged_until_ms,
    -- End of the window before that.
    toInt64(toUnixTimestamp64Milli(maxIf(cohort_windows.window_end,
        cohort_windows.window_end < (SELECT max(window_end) FROM cohort_windows)))) AS judged_before_ms
FROM cohort_windows;

-- Answers of collectors other than a plain ack, added over collectors.
CREATE OR REPLACE VIEW report_outcomes_v1 ${on_cluster} AS
SELECT bucket, app_id, environment, outcome, sum(report_outcomes.reports) AS reports
FROM report_outcomes
GROUP BY bucket, app_id, environment, outcome;
