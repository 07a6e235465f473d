-- Views for pages.

-- The store's progress, in one row: pages are read again when it moves. `judged_before` is the end of the window before
-- the last one. A time that does not exist yet is 1970.
CREATE OR REPLACE VIEW store_progress_v1 ${on_cluster} AS
SELECT
    assumeNotNull((SELECT max(rollup_watermark.closed_until) FROM rollup_watermark)) AS closed_until,
    max(cohort_windows.judged_at) AS judged_at,
    max(cohort_windows.window_end) AS judged_until,
    maxIf(cohort_windows.window_end,
        cohort_windows.window_end < (SELECT max(window_end) FROM cohort_windows)) AS judged_before
FROM cohort_windows;

-- Answers of collectors other than a plain ack, added over collectors.
CREATE OR REPLACE VIEW report_outcomes_v1 ${on_cluster} AS
SELECT bucket, app_id, environment, outcome, sum(report_outcomes.reports) AS reports
FROM report_outcomes
GROUP BY bucket, app_id, environment, outcome;
