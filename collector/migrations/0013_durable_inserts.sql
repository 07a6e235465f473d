-- An insert into these is on disk before it is acknowledged: after that nobody else holds the rows. The log
-- gives its segments up, a deletion or directive is said to be done, and summaries outlive their reports.
-- What is left out is written again by itself: checkpoints, watermarks, checks and beats.
ALTER TABLE reports ${on_cluster} MODIFY SETTING fsync_after_insert = 1, fsync_part_directory = 1;

ALTER TABLE report_copies ${on_cluster} MODIFY SETTING fsync_after_insert = 1, fsync_part_directory = 1;

ALTER TABLE surplus_copies ${on_cluster} MODIFY SETTING fsync_after_insert = 1, fsync_part_directory = 1;

ALTER TABLE placements ${on_cluster} MODIFY SETTING fsync_after_insert = 1, fsync_part_directory = 1;

ALTER TABLE report_outcomes ${on_cluster} MODIFY SETTING fsync_after_insert = 1, fsync_part_directory = 1;

ALTER TABLE tombstones ${on_cluster} MODIFY SETTING fsync_after_insert = 1, fsync_part_directory = 1;

ALTER TABLE deletion_log ${on_cluster} MODIFY SETTING fsync_after_insert = 1, fsync_part_directory = 1;

ALTER TABLE directives ${on_cluster} MODIFY SETTING fsync_after_insert = 1, fsync_part_directory = 1;

ALTER TABLE model_manifests ${on_cluster} MODIFY SETTING fsync_after_insert = 1, fsync_part_directory = 1;

ALTER TABLE certified_placements ${on_cluster} MODIFY SETTING fsync_after_insert = 1, fsync_part_directory = 1;

ALTER TABLE bucket_revisions ${on_cluster} MODIFY SETTING fsync_after_insert = 1, fsync_part_directory = 1;

ALTER TABLE cohort_buckets ${on_cluster} MODIFY SETTING fsync_after_insert = 1, fsync_part_directory = 1;

ALTER TABLE cohort_sessions ${on_cluster} MODIFY SETTING fsync_after_insert = 1, fsync_part_directory = 1;

ALTER TABLE cohort_windows ${on_cluster} MODIFY SETTING fsync_after_insert = 1, fsync_part_directory = 1;

ALTER TABLE incidents ${on_cluster} MODIFY SETTING fsync_after_insert = 1, fsync_part_directory = 1;
