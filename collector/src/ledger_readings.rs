//! Stores readings of the loss ledger, of the day's counts, and of the day's failed starts, self-tests and failed runs.
//! Pages and dashboards show these readings, because the views over raw reports take seconds once a store has a million
//! of them. `loss_ledger_gauges` calls this module before it reads them for its own gauges.
//!
//! Entries that changed since the last reading are inserted. Readings of several collectors differ in their times only,
//! and the latest one counts. A deletion or a late backlog changes earlier days. Their entries are written again as
//! long as all raw reports of these days are kept.

use crate::context::Context;
use crate::rollup::RollUp;
use crate::store::SinkError;

const DAY: u64 = 86_400;

/// The views of the day's counts, each with its columns.
const COUNTS: [(&str, &[&str]); 2] = [
    (
        "installations_daily_v1",
        &["installations", "unproven", "reports", "unproven_reports"],
    ),
    (
        "cardinality_limited_daily_v1",
        &[
            "models",
            "versions",
            "chipsets",
            "shape_keys",
            "limited_reports",
        ],
    ),
];

/// A table of events by day, and the view over raw reports from which it is filled.
struct Events {
    table: &'static str,
    /// The columns of the table's key after app, environment and day.
    key: &'static str,
    values: &'static [&'static str],
    /// SQL that computes the values of a group of rows; their alias is `e`.
    select: &'static str,
    /// The view, or a query on it.
    from: &'static str,
    /// Ends the grouped query.
    rest: &'static str,
}

/// The events. Only the eight commonest output hashes of a golden input have a row each, because each device may have
/// its own hash.
const EVENTS: [Events; 3] = [
    Events {
        table: "start_failures_daily",
        key: "model_id, model_version, chipset, start_phase, start_reason, ort_status",
        values: &["failures", "devices"],
        select: "sum(e.failures) AS failures, uniqExact(e.installation) AS devices",
        from: "start_failures_v1",
        rest: "",
    },
    Events {
        table: "self_tests_daily",
        key: "model_id, model_version, chipset, input_id, npu_hash",
        values: &[
            "devices",
            "devices_equal",
            "devices_differ",
            "devices_failed",
            "worst_abs",
            "worst_cosine",
            "median_cosine",
        ],
        select: "uniqExact(e.installation) AS devices, \
            uniqExactIf(e.installation, e.hash = e.cpu_hash OR e.top1_equal) AS devices_equal, \
            uniqExactIf(e.installation, NOT e.top1_equal) AS devices_differ, \
            uniqExactIf(e.installation, e.error_code != 0) AS devices_failed, \
            max(ifNotFinite(ifNull(e.max_abs, 0), 0)) AS worst_abs, \
            min(ifNotFinite(ifNull(e.cosine, 1), 1)) AS worst_cosine, \
            ifNotFinite(quantileExactIf(0.5)(ifNull(e.cosine, 1), isFinite(ifNull(e.cosine, nan))), 1) AS median_cosine",
        from: "(SELECT app_id, environment, received_at, installation, model_id, model_version, chipset, input_id, \
            cpu_hash, max_abs, cosine, top1_equal, error_code, t.npu_hash AS hash, \
            arrayJoin(arrayDistinct(['', t.npu_hash])) AS npu_hash FROM self_tests_v1 AS t)",
        rest: "ORDER BY devices DESC, npu_hash \
            LIMIT 9 BY app_id, environment, day, model_id, model_version, chipset, input_id",
    },
    Events {
        table: "run_errors_daily",
        key: "model_id, model_version, chipset, ort_status",
        values: &["errors", "devices"],
        select: "sum(e.errors) AS errors, uniqExact(e.installation) AS devices",
        from: "run_errors_v1",
        rest: "",
    },
];

/// Reads the ledger, the counts and the events of today and yesterday into the tables of readings.
///
/// # Errors
/// The store did not answer.
pub(crate) async fn refresh(context: &Context, rollup: &RollUp) -> Result<(), SinkError> {
    // On the first days of raw reports the view has different entries for streams.
    let whole_since = rollup.raw_since().await? / DAY + 1;
    let entries = changed(
        "loss_ledger_readings",
        "app_id, environment, day, kind, reason",
        ["reports", "runs"].as_slice(),
        &format!(
            "SELECT app_id, environment, day, kind, reason, reports, runs FROM loss_ledger_entries_v1 \
                  WHERE day >= toDate({whole_since})"
        ),
        &format!(
            "SELECT app_id, environment, day, kind, reason, reports, runs FROM loss_ledger_read_v1 \
                  WHERE day >= toDate({whole_since})"
        ),
    );
    context
        .sink
        .execute("loss_ledger_readings", &entries)
        .await?;
    let yesterday = (context.clock.now_us() / 1_000_000 / DAY).saturating_sub(1);
    let fresh = COUNTS.map(|(view, columns)| {
        let pairs = columns.iter().map(|column| format!("('{column}', toUInt64({column}))"));
        let pairs: Vec<String> = pairs.collect();
        format!(
            "SELECT app_id, environment, day, pair.1 AS name, pair.2 AS total FROM \
             (SELECT app_id, environment, day, [{}] AS pairs FROM {view} WHERE day >= toDate({yesterday})) \
             ARRAY JOIN pairs AS pair",
            pairs.join(", ")
        )
    });
    let counts = changed(
        "daily_counts",
        "app_id, environment, day, name",
        ["total"].as_slice(),
        &fresh.join(" UNION ALL "),
        &format!(
            "SELECT app_id, environment, day, name, total FROM daily_counts_v1 WHERE day >= toDate({yesterday})"
        ),
    );
    context.sink.execute("daily_counts", &counts).await?;
    for events in &EVENTS {
        let statement = events.changed(yesterday);
        context.sink.execute(events.table, &statement).await?;
    }
    Ok(())
}

impl Events {
    /// Returns the statement that inserts the rows that changed, for the days from `since` on.
    fn changed(&self, since: u64) -> String {
        let Self {
            table,
            key,
            values,
            select,
            from,
            rest,
        } = self;
        let key = format!("app_id, environment, day, {key}");
        let columns = values.join(", ");
        let fresh = format!(
            "SELECT {key}, {select} FROM (SELECT *, toDate(received_at) AS day FROM {from}) AS e \
             WHERE e.day >= toDate({since}) GROUP BY {key} {rest}"
        );
        let stored =
            format!("SELECT {key}, {columns} FROM {table}_v1 WHERE day >= toDate({since})");
        changed(table, &key, values, &fresh, &stored)
    }
}

/// Returns the statement that inserts the rows of `fresh` that are not in `stored`, and zeros for rows of `stored` that
/// are not in `fresh`.
fn changed(table: &str, key: &str, values: &[&str], fresh: &str, stored: &str) -> String {
    let each = |of: fn(&str) -> String, with: &str| {
        let all: Vec<String> = values.iter().map(|value| of(value)).collect();
        all.join(with)
    };
    let columns = values.join(", ");
    let sums = each(|value| format!("sumIf(entry.{value}, is_fresh)"), ", ");
    let differ = each(
        |value| format!("sumIf(entry.{value}, is_fresh) != sumIf(entry.{value}, NOT is_fresh)"),
        " OR ",
    );
    // `HAVING` leaves out a new row of zeros, which is an app without a report.
    format!(
        "INSERT INTO {table} ({key}, {columns}, read_at) SELECT {key}, {sums}, now64(3) FROM (\
         SELECT *, true AS is_fresh FROM ({fresh}) UNION ALL SELECT *, false AS is_fresh FROM ({stored})) AS entry \
         GROUP BY {key} HAVING {differ}"
    )
}
