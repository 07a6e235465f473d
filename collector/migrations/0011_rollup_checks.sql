-- How far somebody looked for rows that came while their buckets were being closed. Who closes buckets
-- looks once their end is in rollup_watermark, and writes it here then; one that ended in between left
-- it to the next one.
CREATE TABLE IF NOT EXISTS rollup_checks ${on_cluster} (
    checked_until DateTime('UTC'),
    checked_at DateTime64(3, 'UTC')
) ENGINE = ${replicated}MergeTree
ORDER BY checked_until;
