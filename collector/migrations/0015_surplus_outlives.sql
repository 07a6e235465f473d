-- What hides a copy must stay as long as the copy. A row here goes when its bucket is old enough; a report
-- goes with its whole day, hours later than that, when the store gets to it.
ALTER TABLE surplus_copies ${on_cluster} MODIFY TTL bucket + INTERVAL ${surplus_ttl_days} DAY;
