-- Each change of the TTL of reports. Days that came before `whole_since` may have lost reports to the TTL
-- that held until then: their summaries are never built again.
CREATE TABLE IF NOT EXISTS raw_retention ${on_cluster} (
    changed_at DateTime64(3, 'UTC') DEFAULT now64(3),
    raw_days UInt16,
    whole_since DateTime('UTC')
) ENGINE = ${replicated}MergeTree
ORDER BY changed_at
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;
