//! Readings of the loss ledger, and of the day's counts, that pages and dashboards show: the views over raw take seconds
//! where a store holds a million reports. `loss_ledger_gauges` calls it before it reads them for its own gauges.
//!
//! Entries that changed since the last reading are inserted. Readings of several collectors differ in their times only,
//! and the latest one counts. A deletion and a late backlog change earlier days, whose entries are written again as
//! long as raw holds these days whole.

use crate::parts::Parts;
use crate::rollup::RollUp;
use crate::store::SinkError;

const DAY: u64 = 86_400;

/// Columns of the day's counts, by their view.
const COUNTS: [(&str, &[&str]); 2] = [
    (
        "installation_standing_daily_v1",
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

/// Reads the ledger and the counts of today and yesterday into the tables of readings.
///
/// # Errors
/// The store did not answer.
pub(crate) async fn refresh(parts: &Parts, rollup: &RollUp) -> Result<(), SinkError> {
    // The view has other entries for streams on the first days that raw holds.
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
    parts.sink.execute("loss_ledger_readings", &entries).await?;
    let yesterday = (parts.clock.now_us() / 1_000_000 / DAY).saturating_sub(1);
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
    parts.sink.execute("daily_counts", &counts).await
}

/// Returns the statement that inserts the rows of `fresh` that are not in `stored`, and zeros for those of `stored`
/// that are not in `fresh`.
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
    // A row of zeros that was never there before is an app without a report.
    format!(
        "INSERT INTO {table} ({key}, {columns}, read_at) SELECT {key}, {sums}, now64(3) FROM (\
         SELECT *, true AS is_fresh FROM ({fresh}) UNION ALL SELECT *, false AS is_fresh FROM ({stored})) AS entry \
         GROUP BY {key} HAVING {differ}"
    )
}
