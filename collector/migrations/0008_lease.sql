-- Which detector judges and tells people. Detectors append beats; the store's clock stamps them, so that
-- theirs need not agree.
CREATE TABLE IF NOT EXISTS detector_beats ${on_cluster} (
    holder UInt64,
    -- Grows with each beat of a holder.
    beat UInt64,
    leads Bool,
    -- A holder that has stopped gives the lease back with its last beat.
    is_gone Bool,
    beaten_at DateTime64(3, 'UTC') DEFAULT now64(3)
) ENGINE = ${replicated}MergeTree
ORDER BY (holder, beat)
TTL toDateTime(beaten_at) + INTERVAL 1 DAY;
