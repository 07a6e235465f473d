//! Gauges of the loss ledger for today and yesterday (UTC), from a reading of the ledger that is made every minute
//! ([`ledger_readings`]). Every collector shows the whole store, so queries take the maximum over collectors, not the
//! sum.

use std::collections::{BTreeMap, HashSet};
use std::time::{Duration, Instant};

use clickhouse::Row;
use epwatch_proto::{DropReason, Outcome};
use serde::Deserialize;
use tokio_util::sync::CancellationToken;

use crate::context::Context;
use crate::ledger_readings;
use crate::metrics::{LedgerGauges, LedgerLabels, LossLedgerGauges};
use crate::rollup::RollUp;
use crate::store::{SinkError, note_failure};
use crate::store_size;

/// The most pairs of app and environment with gauges. With keys there are few pairs; without keys a sender can name
/// any.
const MAX_APPS: usize = 200;

/// The reason of runs that a device lost before they were sealed, because the device does not count these by reason.
const UNSEALED: &str = "unsealed";
/// Stands for reasons that this version does not know.
const OTHER: &str = "other";

#[derive(Debug, Default, Row, Deserialize)]
struct Line {
    app_id: String,
    environment: String,
    is_today: bool,
    recorded: i64,
    stored: i64,
    dropped: i64,
    refused: i64,
    missing: i64,
    duplicate: i64,
    conflict: i64,
    unproven: i64,
    implausible: i64,
    dropped_by_reason: Vec<(String, i64)>,
    answered_by_outcome: Vec<(String, i64)>,
}

/// The longest pause after a slow reading: alerts on the ledger need a reading within the hour.
const LONGEST_REST: Duration = Duration::from_secs(30 * 60);

/// Returns the pause after a reading that took `took`: so long that readings take a fifth of the time, but at most
/// [`LONGEST_REST`].
fn rest(period: Duration, took: Duration) -> Duration {
    period.max((took * 4).min(LONGEST_REST))
}

/// Reads the ledger every `period`, or less often if a reading takes long, until `stop` is cancelled.
pub(crate) async fn keep_fresh(rollup: RollUp, period: Duration, stop: CancellationToken) {
    let context = rollup.context.clone();
    let mut shown = Shown::default();
    loop {
        let began = Instant::now();
        let read = async {
            ledger_readings::refresh(&context, &rollup).await?;
            refresh(&context, &mut shown).await
        };
        tokio::select! {
            read = read => if let Err(error) = read {
                note_failure(&context.metrics, "loss_ledger", &error);
            },
            () = stop.cancelled() => return,
        }
        tokio::select! {
            read = store_size::refresh(&context) => if let Err(error) = read {
                note_failure(&context.metrics, "store_size", &error);
            },
            () = stop.cancelled() => return,
        }
        tokio::select! {
            () = tokio::time::sleep(rest(period, began.elapsed())) => {}
            () = stop.cancelled() => return,
        }
    }
}

/// Labels of all current gauges, by view.
type Shown = BTreeMap<&'static str, HashSet<LedgerLabels>>;

async fn refresh(context: &Context, shown: &mut Shown) -> Result<(), SinkError> {
    let (sink, metrics) = (&context.sink, &context.metrics);
    // The ledger of runs has no counts by outcome or stream, so these columns are empty.
    let none = "toInt64(0) AS implausible, dropped_by_reason, CAST(map(), 'Map(String, Int64)') AS answered_by_outcome";
    let both = [
        (
            "loss_ledger_read_daily_v1",
            "implausible, dropped_by_reason, answered_by_outcome",
            &metrics.ledger_reports,
        ),
        ("loss_ledger_runs_read_daily_v1", none, &metrics.ledger_runs),
    ];
    for (view, rest, gauges) in both {
        let sql = format!(
            "SELECT toString(app_id) AS app_id, toString(environment) AS environment, \
             day = toDate(now('UTC')) AS is_today, recorded, stored, dropped, refused, missing, duplicate, conflict, \
             unproven, {rest} FROM {view} WHERE day >= toDate(now('UTC')) - 1 AND app_id != '' \
             ORDER BY max(recorded) OVER (PARTITION BY app_id, environment) DESC, app_id, environment LIMIT {}",
            2 * MAX_APPS
        );
        let mut lines = sink.fetch::<Line>(view, &sql).await?;
        add_begun_day(&mut lines);
        let now = show(gauges, lines);
        // Gauges of older days are removed, not set to zero. All other gauges exist at any time, because a gap in one
        // scrape would restart the `for` of an alert.
        let before = shown.entry(view).or_default();
        for gone in before.difference(&now) {
            gauges.entries.remove(gone);
            gauges.reasons.remove(gone);
        }
        *before = now;
    }
    Ok(())
}

/// Adds zeros for apps without a report today. Without them the gauges of `today` would be absent from midnight until
/// the first report.
fn add_begun_day(lines: &mut Vec<Line>) {
    let of = |line: &Line| (line.app_id.clone(), line.environment.clone());
    let today = lines.iter().filter(|line| line.is_today).map(of);
    let today: HashSet<_> = today.collect();
    let without = lines.iter().filter(|line| !today.contains(&of(line)));
    let zeros =
        |counts: &[(String, i64)]| counts.iter().map(|(name, _)| (name.clone(), 0)).collect();
    let begun: Vec<Line> = without
        .map(|line| Line {
            app_id: line.app_id.clone(),
            environment: line.environment.clone(),
            is_today: true,
            dropped_by_reason: zeros(&line.dropped_by_reason),
            answered_by_outcome: zeros(&line.answered_by_outcome),
            ..Line::default()
        })
        .collect();
    lines.extend(begun);
}

/// Sets the gauges and returns their labels.
fn show(gauges: &LossLedgerGauges, lines: Vec<Line>) -> HashSet<LedgerLabels> {
    let mut shown = HashSet::new();
    let mut set = |gauges: &LedgerGauges, labels: LedgerLabels, n| {
        gauges.get_or_create(&labels).set(n);
        shown.insert(labels);
    };
    for line in lines {
        let day = if line.is_today { "today" } else { "yesterday" };
        let labels = |entry: &str| {
            vec![
                ("app", line.app_id.clone()),
                ("environment", line.environment.clone()),
                ("day", day.to_owned()),
                ("entry", entry.to_owned()),
            ]
        };
        for (entry, n) in [
            ("recorded", line.recorded),
            ("stored", line.stored),
            ("dropped", line.dropped),
            ("refused", line.refused),
            ("missing", line.missing),
            ("duplicate", line.duplicate),
            ("conflict", line.conflict),
            ("unproven", line.unproven),
            ("implausible", line.implausible),
        ] {
            set(&gauges.entries, labels(entry), n);
        }
        for (entry, counts) in [
            ("dropped", by_known_reason(&line.dropped_by_reason, is_drop)),
            (
                "answered",
                by_known_reason(&line.answered_by_outcome, is_outcome),
            ),
        ] {
            for (reason, n) in counts {
                let mut labels = labels(entry);
                labels.push(("reason", reason.to_owned()));
                set(&gauges.reasons, labels, n);
            }
        }
    }
    shown
}

fn is_drop(reason: &str) -> bool {
    reason == UNSEALED || DropReason::from_name(reason).is_some()
}

fn is_outcome(reason: &str) -> bool {
    Outcome::from_name(reason).is_some()
}

/// Sums by known reason, so that rows of the store cannot add labels.
fn by_known_reason(counts: &[(String, i64)], is_known: fn(&str) -> bool) -> BTreeMap<&str, i64> {
    let mut by_reason = BTreeMap::new();
    for (reason, n) in counts {
        let reason = if is_known(reason) { reason } else { OTHER };
        *by_reason.entry(reason).or_default() += n;
    }
    by_reason
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Metrics;

    #[test]
    fn readings_take_a_fifth_of_the_time_at_most() {
        let minute = Duration::from_secs(60);
        assert_eq!(rest(minute, Duration::from_secs(2)), minute);
        assert_eq!(rest(minute, 3 * minute), 12 * minute);
    }

    /// One reading that hung for an hour must not silence the ledger for four hours.
    #[test]
    fn the_rest_after_a_slow_reading_is_half_an_hour_at_most() {
        let (minute, hour) = (Duration::from_secs(60), Duration::from_secs(3_600));
        assert_eq!(rest(minute, hour), hour / 2);
        assert_eq!(rest(2 * hour, hour), 2 * hour, "as it is configured");
    }

    #[test]
    fn after_midnight_the_gauges_of_today_are_zero_and_not_gone() {
        let yesterday = Line {
            app_id: "camera".into(),
            environment: "production".into(),
            recorded: 7,
            stored: 6,
            dropped: 1,
            dropped_by_reason: vec![("spool_full".into(), 1)],
            ..Line::default()
        };
        let mut lines = vec![yesterday];
        add_begun_day(&mut lines);
        add_begun_day(&mut lines);
        assert_eq!(lines.len(), 2, "once");
        let metrics = Metrics::new();
        show(&metrics.ledger_reports, lines);
        let page = metrics.encode();
        for line in [
            "loss_ledger_reports{app=\"camera\",environment=\"production\",day=\"today\",entry=\"recorded\"} 0",
            "loss_ledger_reports{app=\"camera\",environment=\"production\",day=\"yesterday\",entry=\"recorded\"} 7",
            "day=\"today\",entry=\"dropped\",reason=\"spool_full\"} 0",
        ] {
            assert!(page.contains(line), "no {line} in\n{page}");
        }
    }
}
