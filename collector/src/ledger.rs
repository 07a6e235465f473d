//! The loss ledger as gauges: what `loss_ledger_daily_v1` and `loss_ledger_runs_daily_v1` say of
//! today and yesterday (UTC), read from the store from time to time. Every collector says the same
//! of the whole store: take the maximum over collectors, not the sum.

use std::sync::Arc;
use std::time::Duration;

use clickhouse::Row;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use serde::Deserialize;
use tokio_util::sync::CancellationToken;

use crate::metrics::Metrics;
use crate::store::{Sink, SinkError, note_failure};

/// Apps and environments that get gauges of their own: with keys they are few, without anyone
/// names one.
const MAX_APPS: usize = 200;

/// `app`, `environment`, `day` and `entry`.
pub(crate) type LedgerGauges = Family<Vec<(&'static str, String)>, Gauge>;

#[derive(Debug, Row, Deserialize)]
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
}

/// Reads the ledger every `period` until `stop` is cancelled.
pub(crate) async fn keep_fresh(
    sink: Sink,
    metrics: Arc<Metrics>,
    period: Duration,
    stop: CancellationToken,
) {
    loop {
        tokio::select! {
            read = refresh(&sink, &metrics) => if let Err(error) = read {
                note_failure(&metrics, "loss_ledger", &error);
            },
            () = stop.cancelled() => return,
        }
        tokio::select! {
            () = tokio::time::sleep(period) => {}
            () = stop.cancelled() => return,
        }
    }
}

async fn refresh(sink: &Sink, metrics: &Metrics) -> Result<(), SinkError> {
    let both = [
        ("loss_ledger_daily_v1", &metrics.ledger_reports),
        ("loss_ledger_runs_daily_v1", &metrics.ledger_runs),
    ];
    for (view, gauges) in both {
        let sql = format!(
            "SELECT toString(app_id) AS app_id, toString(environment) AS environment, \
             day = toDate(now('UTC')) AS is_today, recorded, stored, dropped, refused, missing, duplicate \
             FROM {view} WHERE day >= toDate(now('UTC')) - 1 AND app_id != '' \
             ORDER BY recorded DESC LIMIT {}",
            2 * MAX_APPS
        );
        show(gauges, sink.fetch::<Line>(view, &sql).await?);
    }
    Ok(())
}

fn show(gauges: &LedgerGauges, lines: Vec<Line>) {
    // A day that is neither any more is gone, not zero.
    gauges.clear();
    for line in lines {
        let day = if line.is_today { "today" } else { "yesterday" };
        for (entry, n) in [
            ("recorded", line.recorded),
            ("stored", line.stored),
            ("dropped", line.dropped),
            ("refused", line.refused),
            ("missing", line.missing),
            ("duplicate", line.duplicate),
        ] {
            let labels = vec![
                ("app", line.app_id.clone()),
                ("environment", line.environment.clone()),
                ("day", day.to_owned()),
                ("entry", entry.to_owned()),
            ];
            gauges.get_or_create(&labels).set(n);
        }
    }
}
