-- The same copies, found faster again. Stream and sequence are two numbers that hardly two reports share;
-- they are looked up first, and whole keys are read and compared only where they are found.
CREATE OR REPLACE VIEW open_surplus_copies_v1 ${on_cluster} AS
SELECT collector_id, wal_offset FROM report_copies
WHERE bucket >= (SELECT max(closed_until) FROM rollup_watermark)
  AND (installation, stream_id, sequence, received_at, collector_id, wal_offset) NOT IN (
    SELECT installation, stream_id, sequence, (min((received_at, collector_id, wal_offset)) AS first).1, first.2, first.3
    FROM report_copies
    PREWHERE (stream_id, sequence) IN (
        SELECT stream_id, sequence FROM report_copies
        WHERE bucket >= (SELECT max(closed_until) FROM rollup_watermark))
    WHERE (installation, stream_id, sequence) IN (
        SELECT installation, stream_id, sequence FROM report_copies
        WHERE bucket >= (SELECT max(closed_until) FROM rollup_watermark))
    GROUP BY installation, stream_id, sequence);
