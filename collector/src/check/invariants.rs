//! The invariants of a store, as queries that return the rows that break them.

/// How often a query runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Repeat {
    /// Once for the whole store.
    Store,
    /// Once for each day of reports, `{day}`.
    Day,
    /// Like `Day`, in slices by position, `{in_slice}`, so that its sets fit into memory.
    Slice,
    /// Once for the whole store, in slices by stream, `{in_slice}`, so that its sets fit into memory.
    Stream,
}

/// One query that answers for several invariants at once. It returns how many rows may break one of them, and 0 only if
/// all of them hold. Otherwise the query of each invariant runs and names the rows.
#[derive(Debug)]
pub(super) struct Screen {
    pub(super) holds: &'static str,
    /// The invariants, by [`Invariant::name`].
    pub(super) invariants: &'static [&'static str],
    pub(super) repeat: Repeat,
    /// Whether the query reports rows wrongly while deletions are under way.
    pub(super) needs_deletions_done: bool,
    pub(super) sql: &'static str,
}

pub(super) const SCREENS: &[Screen] = &[
    Screen {
        holds: "each position of a log is one copy and one report",
        invariants: &[
            "copies_once",
            "reports_once",
            "copies_have_reports",
            "reports_have_copies",
        ],
        repeat: Repeat::Slice,
        needs_deletions_done: false,
        sql: "SELECT countIf(copies != 1 OR reports != 1) FROM (
                SELECT countIf(is_copy) AS copies, countIf(NOT is_copy) AS reports FROM (
                    SELECT collector_id, wal_offset, true AS is_copy FROM report_copies
                    WHERE toDate(received_at) = '{day}' AND {in_slice}
                    UNION ALL
                    SELECT collector_id, wal_offset, false AS is_copy FROM reports
                    WHERE toDate(received_at) = '{day}' AND {in_slice})
                GROUP BY collector_id, wal_offset)",
    },
    // Summaries add up the sessions of each device and place in a bucket, so their sum is the number of distinct hashes
    // in the reports. If two hashes are equal, the numbers differ, and the invariant's own query decides.
    Screen {
        holds: "summaries of closed buckets have as many sessions as there are",
        invariants: &["session_summaries"],
        repeat: Repeat::Day,
        needs_deletions_done: true,
        sql: "SELECT countIf(stored != raw) FROM (
                SELECT sum(in_summaries) AS stored, sum(in_reports) AS raw FROM (
                    SELECT app_id, environment, sum(sessions) AS in_summaries, toUInt64(0) AS in_reports
                    FROM cohort_sessions
                    WHERE toDate(bucket) = '{day}' AND {is_final}
                      AND (app_id, environment, bucket, slice, revision) IN (
                        SELECT app_id, environment, bucket, slice, max(revision) FROM bucket_revisions
                        WHERE toDate(bucket) = '{day}' GROUP BY app_id, environment, bucket, slice)
                    GROUP BY app_id, environment
                    UNION ALL
                    SELECT app_id, environment, toUInt64(0) AS in_summaries, uniqExact(cityHash64(
                        bucket, installation, firmware, app_version, ort_version, ep_version, device_model, is_late,
                        uid, model, version, chipset_of, asks, directive, kind, source, algorithm, exact, normalised)) AS in_reports
                    FROM settled_reports_v1
                    ARRAY JOIN session_uid AS uid, session_model_id AS model, session_model_version AS version,
                        session_chipset AS chipset_of, session_requests_npu AS asks, session_directive_id AS directive,
                        session_graph_kind AS kind, session_placement_source AS source,
                        session_fingerprint_algorithm AS algorithm, session_fingerprint_exact AS exact,
                        session_fingerprint_normalised AS normalised
                    WHERE toDate(bucket) = '{day}' AND NOT is_unproven AND {is_final}
                    GROUP BY app_id, environment)
                GROUP BY app_id, environment)",
    },
];

/// One invariant. `{horizon}` is the first whole day of reports, `{from}` and `{until}` are the buckets whose summaries
/// are final and whose reports are all there.
#[derive(Debug)]
pub(super) struct Invariant {
    pub(super) name: &'static str,
    /// The property, as a sentence without a full stop.
    pub(super) holds: &'static str,
    /// Noun for the rows that violate it.
    pub(super) broken_by: &'static str,
    pub(super) repeat: Repeat,
    /// Whether the query reports rows wrongly while deletions are under way.
    pub(super) needs_deletions_done: bool,
    /// The query. It returns one text for each row that breaks it.
    pub(super) sql: &'static str,
}

pub(super) const INVARIANTS: &[Invariant] = &[
    Invariant {
        name: "copies_once",
        holds: "each position of a log is one copy",
        broken_by: "position with several rows in report_copies",
        repeat: Repeat::Slice,
        needs_deletions_done: false,
        sql: "SELECT concat('collector ', lower(hex(collector_id)), ', offset ', toString(wal_offset)) FROM report_copies
            WHERE toDate(received_at) = '{day}' AND {in_slice} GROUP BY collector_id, wal_offset HAVING count() > 1",
    },
    Invariant {
        name: "reports_once",
        holds: "each position of a log is one report",
        broken_by: "position with several rows in reports",
        repeat: Repeat::Slice,
        needs_deletions_done: false,
        sql: "SELECT concat('collector ', lower(hex(collector_id)), ', offset ', toString(wal_offset)) FROM reports
            WHERE toDate(received_at) = '{day}' AND {in_slice} GROUP BY collector_id, wal_offset HAVING count() > 1",
    },
    Invariant {
        name: "copies_have_reports",
        holds: "each copy has its report",
        broken_by: "copy without a report, which counts nowhere",
        repeat: Repeat::Slice,
        needs_deletions_done: false,
        sql: "SELECT concat('collector ', lower(hex(collector_id)), ', offset ', toString(wal_offset)) FROM report_copies
            WHERE toDate(received_at) = '{day}' AND {in_slice}
              AND installation NOT IN (SELECT installation FROM hidden_installations)
              AND (collector_id, wal_offset) NOT IN (
                SELECT collector_id, wal_offset FROM reports WHERE toDate(received_at) = '{day}' AND {in_slice})",
    },
    Invariant {
        name: "reports_have_copies",
        holds: "each report has its copy",
        broken_by: "report without a copy, which may count twice",
        repeat: Repeat::Slice,
        needs_deletions_done: false,
        sql: "SELECT concat('collector ', lower(hex(collector_id)), ', offset ', toString(wal_offset)) FROM reports
            WHERE toDate(received_at) = '{day}' AND {in_slice}
              AND installation NOT IN (SELECT installation FROM hidden_installations)
              AND (collector_id, wal_offset) NOT IN (
                SELECT collector_id, wal_offset FROM report_copies WHERE toDate(received_at) = '{day}' AND {in_slice})",
    },
    Invariant {
        name: "counted_once",
        holds: "a report of several copies counts once",
        broken_by: "report that counts several times",
        repeat: Repeat::Stream,
        needs_deletions_done: false,
        // Few reports have several copies. The query finds their hashes first, because grouping all copies by their
        // whole keys takes five times as long.
        sql: "SELECT concat('collector ', lower(hex(collector)), ', offset ', toString(offset)) FROM (
                SELECT any(collector_id) AS collector, any(wal_offset) AS offset FROM report_copies
                WHERE bucket < fromUnixTimestamp({until}) AND toDate(received_at) >= '{horizon}' AND {in_slice}
                  AND bucket NOT IN (SELECT bucket FROM open_rebuilds_v1)
                  AND cityHash64(app_id, installation, stream_id, sequence) IN (
                    SELECT cityHash64(app_id, installation, stream_id, sequence) AS key FROM report_copies
                    WHERE bucket < fromUnixTimestamp({until}) AND toDate(received_at) >= '{horizon}' AND {in_slice}
                    GROUP BY key HAVING count() > 1)
                GROUP BY app_id, installation, stream_id, sequence
                HAVING count() > 1 AND countIf((collector_id, wal_offset) NOT IN (
                    SELECT collector_id, wal_offset FROM surplus_copies)) > 1)",
    },
    // The first copy of a surplus copy may have expired. Resent copies come within hours.
    Invariant {
        name: "counted_at_all",
        holds: "of the copies of a report one counts",
        broken_by: "report whose copies are all listed as surplus, which counts nowhere",
        repeat: Repeat::Stream,
        needs_deletions_done: false,
        // Looks only at reports with a copy that is listed as surplus.
        sql: "SELECT concat('collector ', lower(hex(collector)), ', offset ', toString(offset)) FROM (
                SELECT any(collector_id) AS collector, any(wal_offset) AS offset FROM report_copies
                WHERE bucket < fromUnixTimestamp({until}) AND toDate(received_at) >= '{horizon}' AND {in_slice}
                  AND cityHash64(app_id, installation, stream_id, sequence) IN (
                    SELECT cityHash64(app_id, installation, stream_id, sequence) FROM report_copies
                    WHERE bucket < fromUnixTimestamp({until}) AND toDate(received_at) >= '{horizon}' AND {in_slice}
                      AND (collector_id, wal_offset) IN (SELECT collector_id, wal_offset FROM surplus_copies))
                GROUP BY app_id, installation, stream_id, sequence
                HAVING toDate(min(received_at)) >= addDays(toDate('{horizon}'), 3)
                  AND countIf((collector_id, wal_offset) NOT IN (SELECT collector_id, wal_offset FROM surplus_copies)) = 0)",
    },
    Invariant {
        name: "run_summaries",
        holds: "summaries of closed buckets have the runs of their proven installations",
        broken_by: "day of an app whose summaries have other runs",
        repeat: Repeat::Day,
        needs_deletions_done: true,
        sql: "SELECT concat(app_id, ' ', environment, ' {day}: ', toString(stored), ' runs in summaries, ',
                toString(raw), ' in reports')
            FROM (
                SELECT app_id, environment, sum(in_summaries) AS stored, sum(in_reports) AS raw FROM (
                    SELECT app_id, environment, n AS in_summaries, toUInt64(0) AS in_reports FROM cohort_buckets
                    WHERE toDate(bucket) = '{day}' AND {is_final}
                      AND (app_id, environment, bucket, slice, revision) IN (
                        SELECT app_id, environment, bucket, slice, max(revision) FROM bucket_revisions
                        WHERE toDate(bucket) = '{day}' GROUP BY app_id, environment, bucket, slice)
                    UNION ALL
                    SELECT app_id, environment, toUInt64(0) AS in_summaries, arraySum(series_n) AS in_reports
                    FROM settled_reports_v1 WHERE toDate(bucket) = '{day}' AND NOT is_unproven AND {is_final})
                GROUP BY app_id, environment)
            WHERE stored != raw",
    },
    Invariant {
        name: "session_summaries",
        holds: "summaries of closed buckets have the sessions of their proven installations",
        broken_by: "day of an app whose summaries have other sessions",
        repeat: Repeat::Day,
        needs_deletions_done: true,
        sql: "SELECT concat(app_id, ' ', environment, ' {day}: ', toString(stored), ' sessions in summaries, ',
                toString(raw), ' in reports')
            FROM (
                SELECT app_id, environment, sum(in_summaries) AS stored, sum(in_reports) AS raw FROM (
                    SELECT app_id, environment, sessions AS in_summaries, toUInt64(0) AS in_reports FROM cohort_sessions
                    WHERE toDate(bucket) = '{day}' AND {is_final}
                      AND (app_id, environment, bucket, slice, revision) IN (
                        SELECT app_id, environment, bucket, slice, max(revision) FROM bucket_revisions
                        WHERE toDate(bucket) = '{day}' GROUP BY app_id, environment, bucket, slice)
                    UNION ALL
                    SELECT app_id, environment, toUInt64(0) AS in_summaries, sessions AS in_reports
                    FROM cohort_sessions_fresh_v1 WHERE toDate(bucket) = '{day}' AND {is_final})
                GROUP BY app_id, environment)
            WHERE stored != raw",
    },
    Invariant {
        name: "ledger",
        holds: "no app has more reports than its devices recorded",
        broken_by: "app whose loss ledger is negative",
        repeat: Repeat::Store,
        needs_deletions_done: false,
        sql: "SELECT concat(app_id, ' ', environment, ': ', toString(-missing), ' too many') FROM loss_ledger_v1
            WHERE missing < 0",
    },
    Invariant {
        name: "deletions",
        holds: "deletions are carried out within two days",
        broken_by: "deleted installation whose reports are still there",
        repeat: Repeat::Store,
        needs_deletions_done: false,
        sql: "SELECT concat('installation ', lower(substring(hex(installation), 1, 8)), ', deleted ', toString(deleted))
            FROM (
                SELECT installation, min(tombstoned_at) AS deleted FROM tombstones
                WHERE installation IN (SELECT installation FROM reports WHERE received_at < now64(3) - INTERVAL 2 DAY)
                GROUP BY installation HAVING deleted < now64(3) - INTERVAL 2 DAY)",
    },
    Invariant {
        name: "clock",
        holds: "nothing was received or closed in the future",
        broken_by: "time ahead of the store's clock by more than an hour",
        repeat: Repeat::Store,
        needs_deletions_done: false,
        sql: "SELECT concat(what, ' ', toString(toDate(at))) FROM (
                SELECT 'latest report' AS what, toDateTime(max(received_at), 'UTC') AS at FROM report_copies
                UNION ALL
                SELECT 'closed until' AS what, max(closed_until) AS at FROM rollup_watermark)
            WHERE at > now() + INTERVAL 1 HOUR",
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_screen_is_for_invariants_that_have_their_own_queries() {
        for screen in SCREENS {
            for name in screen.invariants {
                let mut named = INVARIANTS.iter().filter(|of| of.name == *name);
                let of = named
                    .next()
                    .unwrap_or_else(|| panic!("{name} is not an invariant"));
                assert_eq!(of.repeat, screen.repeat, "{name}");
                assert_eq!(
                    of.needs_deletions_done, screen.needs_deletions_done,
                    "{name}"
                );
            }
        }
    }
}
