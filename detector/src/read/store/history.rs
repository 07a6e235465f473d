//! Earlier windows from the detector's own table, held while evaluations need the same windows. Consecutive evaluations
//! mostly need the same ([`PastSpan`]), and verdicts of past days do not change.

use std::sync::Arc;

use clickhouse::{Client, Row};
use epwatch_model::{ModelKey, SignalId};
use parking_lot::Mutex;
use serde::Deserialize;
use tokio::sync::OnceCell;

use crate::judge::signals::UNSURPRISING_P;
use crate::read::error::{SourceError, failed};
use crate::read::history::{HistoryByModel, HistorySums, SignalSums, UsualCv};
use crate::read::interner::Texts;
use crate::read::span::PastSpan;

use super::queries::CohortNames;

/// Each cohort's earlier windows. Columns are the devices with the end of their window (sorted, because two shards
/// change the order), sums of CVs, and the least ratio. Counts of signals come from settled windows that show nothing
/// in this signal, or only CV. The rows are read from the detector's own table, where a window that was judged again
/// has one row. The PREWHERE is the same in all rows of a window. Signals are added up by position, because most
/// windows have the same ones. Binds first the last end of settled windows, and the chance above which a signal is not
/// part of a finding. Then it binds the first and last end of windows, and the values that select among them
/// ([`PastSpan`]).
const COHORTS: &str = "
    WITH isNotNull(cv_within) AND isNotNull(cv_between) AS has_cv,
        window_end <= toDateTime(?) AS is_settled,
        verdict IN ('healthy', 'not_enough_data', 'cv_spike') AS is_quiet,
        verdict = 'healthy' AND isNotNull(latency_ratio) AS is_healthy,
        arrayMap((of, p) -> if(is_quiet OR p > ?, of, 0), signal_devices, signal_p) AS of_history
    SELECT (app_id, environment, model_id, model_version, chipset) AS cohort, signal_id,
        arraySort(groupArray((toUnixTimestamp(window_end), c.devices_on_chipset))) AS devices_by_end,
        sumIf(sqrt(pow(assumeNotNull(cv_within), 2) + pow(assumeNotNull(cv_between), 2)), has_cv) AS cv,
        sumIf(assumeNotNull(c.cv_within), has_cv) AS within, countIf(has_cv) AS cv_windows,
        minIf(assumeNotNull(c.latency_ratio), is_healthy) AS ratio, countIf(is_healthy) AS ratio_windows,
        sumForEachIf(arrayMap((n, of) -> if(of > 0, n, 0), signal_hits, of_history), is_settled) AS hits,
        sumForEachIf(of_history, is_settled) AS counted,
        sumForEachIf(arrayMap(of -> toUInt64(of > 0), of_history), is_settled) AS windows,
        maxForEachIf(of_history, is_settled) AS largest,
        toUnixTimestamp(minIf(window_end, is_settled AND arrayExists(of -> of > 0, of_history))) AS first_s
    FROM cohort_windows AS c FINAL
    PREWHERE firmware = '' AND window_end >= toDateTime(?) AND window_end <= toDateTime(?)
        AND window_seconds = ? AND intDiv(toUnixTimestamp(window_end) % ?, ?) = ?
    GROUP BY app_id, environment, model_id, model_version, chipset, signal_id";

#[derive(Debug, Row, Deserialize)]
struct CohortHistoryRow<'a> {
    #[serde(borrow)]
    cohort: CohortNames<'a>,
    signal_id: Vec<&'a str>,
    devices_by_end: Vec<(u32, u64)>,
    cv: f64,
    within: f64,
    cv_windows: u64,
    ratio: f64,
    ratio_windows: u64,
    hits: Vec<u64>,
    counted: Vec<u64>,
    windows: Vec<u64>,
    largest: Vec<u64>,
    first_s: u32,
}

/// The earlier windows that were read last.
#[derive(Debug, Default)]
pub(super) struct CachedHistory(Mutex<Option<(PastSpan, HistoryCell)>>);

/// Empty until the store answers.
type HistoryCell = Arc<OnceCell<Arc<HistoryByModel>>>;

impl CachedHistory {
    /// Returns the history of these windows, and drops the held history of other windows.
    pub(super) async fn read(
        &self,
        client: &Client,
        past: PastSpan,
    ) -> Result<Arc<HistoryByModel>, SourceError> {
        let cell = {
            let mut held = self.0.lock();
            let known = held.take().filter(|(of, _)| *of == past);
            held.insert(known.unwrap_or_else(|| (past, Arc::default())))
                .1
                .clone()
        };
        let read = || async { read(client, &past).await.map(Arc::new) };
        cell.get_or_try_init(read).await.cloned()
    }
}

async fn read(client: &Client, past: &PastSpan) -> Result<HistoryByModel, SourceError> {
    let what = "earlier windows";
    // The answer is mostly numbers, and checking each costs as much as reading it.
    let client = client.clone().with_validation(false);
    let query = client.query(COHORTS).bind(past.settled_until_s);
    let query = query.bind(UNSURPRISING_P);
    let query = past.bind(query.bind(past.from_s).bind(past.until_s));
    let mut rows = query
        .fetch::<CohortHistoryRow<'_>>()
        .map_err(failed(what))?;
    let mut texts = Texts::default();
    let mut sums = HistorySums::default();
    while let Some(row) = rows.next().await.map_err(failed(what))? {
        let (app, environment, model, version, chipset) = row.cohort;
        let cohort = (texts.shared(version), texts.shared(chipset));
        let sums = sums.model(&ModelKey::of((app, environment), model));
        for (end_s, devices) in row.devices_by_end {
            sums.add_devices(&cohort.1, i64::from(end_s), devices);
        }
        let cv = UsualCv {
            all: row.cv,
            within: row.within,
        };
        sums.add_cv(&cohort, cv, row.cv_windows);
        if row.ratio_windows > 0 {
            sums.add_ratio(&cohort, row.ratio);
        }
        // The array is empty if no window counts.
        for (at, windows) in row.windows.iter().enumerate().filter(|(_, n)| **n > 0) {
            let numbers = (row.hits.get(at), row.counted.get(at), row.largest.get(at));
            // Signals of other versions of epwatch are unknown.
            let signal = row.signal_id.get(at).and_then(|name| SignalId::parse(name));
            if let (Some(signal), (Some(hits), Some(devices), Some(largest))) = (signal, numbers) {
                let added = SignalSums {
                    hits: *hits,
                    devices: *devices,
                    windows: *windows,
                    largest: *largest,
                    first_end_s: row.first_s.into(),
                };
                sums.add_signal(&cohort, signal, added);
            }
        }
    }
    Ok(sums.finish())
}
