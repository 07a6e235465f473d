-- Orders of people to incidents: ack, mute, resolve, accept, false, reopen. `epwatch incident` and the built-in page append here;
-- the detector that leads reads them. Rows are never changed, so the table is the audit trail.
CREATE TABLE IF NOT EXISTS incident_orders ${on_cluster} (
    -- Random, so that a retried insert is one order.
    order_id String,
    incident_id String,
    -- One more than the number of the last order that the person saw. Of two with the same number the first counts.
    order_number UInt64,
    order_kind LowCardinality(String),
    -- As the person wrote it; nobody proves a name.
    who String,
    -- End of a mute.
    until Nullable(DateTime64(3, 'UTC')),
    why String,
    -- `command` or `page`.
    source LowCardinality(String),
    app_id LowCardinality(String),
    environment LowCardinality(String),
    model_id LowCardinality(String),
    model_version LowCardinality(String),
    -- The store's clock, so that the clocks of two people need not agree.
    ordered_at DateTime64(3, 'UTC') DEFAULT now64(3)
) ENGINE = ${replicated}MergeTree
ORDER BY (incident_id, order_number, order_id)
TTL toDateTime(ordered_at) + INTERVAL ${rollup_ttl_days} DAY
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;

-- Orders of people to incidents. Of two with the same number only the first counts: the other person did not see it.
CREATE OR REPLACE VIEW incident_orders_v1 ${on_cluster} AS
SELECT
    order_id, incident_id, order_number, order_kind, who, ordered_at, until, why, source, app_id, environment, model_id,
    model_version, row_number() OVER (PARTITION BY incident_id, order_number ORDER BY ordered_at, order_id) = 1 AS is_counted
FROM (SELECT * FROM incident_orders ORDER BY ordered_at LIMIT 1 BY order_id);

-- Incidents that a person called false, with the last reason. A reopen takes it back. `signals` fired in windows of the
-- incident with a ticket or a page.
CREATE OR REPLACE VIEW false_incidents_v1 ${on_cluster} AS
SELECT
    i.incident_id AS incident_id, any(i.app_id) AS app_id, any(i.environment) AS environment, any(i.model_id) AS model_id,
    any(i.model_version) AS model_version, any(i.chipsets) AS chipsets, any(i.verdict) AS verdict,
    any(i.severity) AS severity, any(i.started_at) AS started_at, any(i.changed_at) AS changed_at,
    any(o.who) AS who, any(o.why) AS why, any(o.ordered_at) AS ordered_at,
    arraySort(groupUniqArrayArray(if(w.window_end > i.started_at AND w.window_end <= i.changed_at
        AND has(i.chipsets, w.chipset), w.fired, []))) AS signals
FROM incidents_v1 AS i
INNER JOIN (
    SELECT a.incident_id AS incident_id, argMax(a.who, a.order_number) AS who, argMax(a.why, a.order_number) AS why,
        max(a.ordered_at) AS ordered_at
    FROM incident_orders_v1 AS a
    WHERE a.is_counted AND a.order_kind IN ('false', 'reopen')
    GROUP BY a.incident_id
    HAVING argMax(a.order_kind, a.order_number) = 'false'
) AS o ON o.incident_id = i.incident_id
LEFT JOIN (
    SELECT app_id, environment, model_id, model_version, chipset, window_end,
        arrayMap(id -> toString(id), arrayFilter((id, fires) -> fires, signal_id, signal_fires)) AS fired
    FROM cohort_windows_v1
    WHERE severity IN ('ticket', 'page')
) AS w ON w.app_id = i.app_id AND w.environment = i.environment AND w.model_id = i.model_id
    AND w.model_version = i.model_version
GROUP BY incident_id;

-- Marks of changes that no device reports, such as the deploy of a server: `epwatch mark` appends them, and pages show them
-- on the time axis of latency. Rows are never changed; a row with `undoes` takes another mark back.
CREATE TABLE IF NOT EXISTS marks ${on_cluster} (
    -- Random, so that a retried insert is one mark.
    mark_id String,
    -- An empty name stands for all.
    app_id LowCardinality(String),
    environment LowCardinality(String),
    model_id LowCardinality(String),
    chipset LowCardinality(String),
    -- As the person wrote it.
    text String,
    who String,
    -- Id of the mark that this row takes back, or empty.
    undoes String,
    -- When the change was made.
    effective_at DateTime64(3, 'UTC') DEFAULT now64(3),
    marked_at DateTime64(3, 'UTC') DEFAULT now64(3)
) ENGINE = ${replicated}MergeTree
ORDER BY (app_id, effective_at, mark_id)
TTL toDateTime(marked_at) + INTERVAL ${rollup_ttl_days} DAY
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;

-- Each mark that was not taken back, once.
CREATE OR REPLACE VIEW marks_v1 ${on_cluster} AS
SELECT mark_id, app_id, environment, model_id, chipset, text, who, effective_at, marked_at
FROM marks
WHERE undoes = '' AND mark_id NOT IN (SELECT marks.undoes FROM marks WHERE marks.undoes != '')
ORDER BY marked_at
LIMIT 1 BY mark_id;

-- The store's progress, in one row: pages are read again when it moves. `judged_before` is the end of the window before
-- the last one, `handled_at` the last change of an incident, an order, a mark or a directive. A time that does not exist yet is 1970.
CREATE OR REPLACE VIEW store_progress_v1 ${on_cluster} AS
SELECT
    assumeNotNull((SELECT max(rollup_watermark.closed_until) FROM rollup_watermark)) AS closed_until,
    max(cohort_windows.judged_at) AS judged_at,
    max(cohort_windows.window_end) AS judged_until,
    maxIf(cohort_windows.window_end,
        cohort_windows.window_end < (SELECT max(window_end) FROM cohort_windows)) AS judged_before,
    greatest(
        assumeNotNull((SELECT max(incidents.changed_at) FROM incidents)),
        assumeNotNull((SELECT max(incident_orders.ordered_at) FROM incident_orders)),
        assumeNotNull((SELECT max(marks.marked_at) FROM marks)),
        assumeNotNull((SELECT max(directives.published_at) FROM directives))) AS handled_at
FROM cohort_windows;
