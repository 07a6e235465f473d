-- Views for pages.

-- Answers of collectors other than a plain ack, added over collectors.
CREATE OR REPLACE VIEW report_outcomes_v1 ${on_cluster} AS
SELECT bucket, app_id, environment, outcome, sum(report_outcomes.reports) AS reports
FROM report_outcomes
GROUP BY bucket, app_id, environment, outcome;
