-- For readers that look at the same reports many times: what `counted_reports_v1` finds out in each
-- query, in two parts, so that the costly one is asked once.

-- Reports less the copies that are named: those of closed buckets once each. A report of an open
-- bucket is here as often as it came; `open_surplus_copies_v1` says which of its copies do not count.
CREATE OR REPLACE VIEW settled_reports_v1 ${on_cluster} AS
SELECT * FROM reports
WHERE (collector_id, wal_offset) NOT IN (SELECT collector_id, wal_offset FROM surplus_copies)
  AND installation NOT IN (SELECT installation FROM tombstones);

-- The part of `surplus_copies_v1` that is found when it is asked for.
CREATE OR REPLACE VIEW open_surplus_copies_v1 ${on_cluster} AS
SELECT collector_id, wal_offset FROM report_copies
WHERE bucket >= (SELECT max(closed_until) FROM rollup_watermark)
  AND (installation, stream_id, sequence, received_at, collector_id, wal_offset) NOT IN (
    SELECT installation, stream_id, sequence, (min((received_at, collector_id, wal_offset)) AS first).1, first.2, first.3
    FROM report_copies
    WHERE (installation, stream_id, sequence) IN (
        SELECT installation, stream_id, sequence FROM report_copies
        WHERE bucket >= (SELECT max(closed_until) FROM rollup_watermark))
    GROUP BY installation, stream_id, sequence);
