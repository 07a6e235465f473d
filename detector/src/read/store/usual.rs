//! The query for what earlier windows usually had.

use std::collections::BTreeMap;

use clickhouse::{Client, Row};
use serde::Deserialize;

use crate::cohort::ModelKey;
use crate::hash::HashMap;
use crate::read::error::{SourceError, failed};
use crate::read::span::PastSpan;
use crate::read::usual::{Usual, UsualCv, UsualDevices};

/// What each cohort had in earlier windows: its devices window by window, and the mean of its CVs. From
/// the detector's own table, where a window that was judged again has one row; what is asked first is
/// the same in all rows of a window. Counts of several versions are added when they are read: the store
/// would have to look at each window of each by its names. Binds: first and last end of windows, which of
/// them ([`PastSpan`]).
const COHORTS: &str = "
    SELECT app_id, environment, model_id, model_version, chipset,
        groupArray(toUnixTimestamp64Milli(window_end)) AS ends_ms, groupArray(c.devices) AS devices,
        avgOrDefaultIf(sqrt(pow(assumeNotNull(cv_within), 2) + pow(assumeNotNull(cv_between), 2)),
            isNotNull(cv_within) AND isNotNull(cv_between)) AS cv,
        avgOrDefaultIf(assumeNotNull(c.cv_within),
            isNotNull(cv_within) AND isNotNull(cv_between)) AS within,
        countIf(isNotNull(cv_within) AND isNotNull(cv_between)) AS cv_windows
    FROM cohort_windows AS c FINAL
    PREWHERE firmware = '' AND window_end >= toDateTime(?) AND window_end <= toDateTime(?)
        AND window_seconds = ? AND intDiv(toUnixTimestamp(window_end) % ?, ?) = ?
    GROUP BY app_id, environment, model_id, model_version, chipset";

#[derive(Debug, Row, Deserialize)]
struct CohortRow<'a> {
    app_id: &'a str,
    environment: &'a str,
    model_id: &'a str,
    model_version: &'a str,
    chipset: &'a str,
    ends_ms: Vec<i64>,
    devices: Vec<u64>,
    cv: f64,
    within: f64,
    cv_windows: u64,
}

pub(super) async fn read(client: &Client, past: &PastSpan) -> Result<Usual, SourceError> {
    let what = "earlier windows";
    // Most of the answer are numbers, and checking each costs as much as reading it.
    let client = client.clone().with_validation(false);
    let query = client.query(COHORTS);
    let query = past.bind(query.bind(past.from_s).bind(past.until_s));
    let mut rows = query.fetch::<CohortRow<'_>>().map_err(failed(what))?;
    let mut usual = Usual::default();
    let mut windows: BTreeMap<(ModelKey, String), HashMap<i64, u64>> = BTreeMap::new();
    while let Some(row) = rows.next().await.map_err(failed(what))? {
        let model = ModelKey {
            app_id: row.app_id.to_owned(),
            environment: row.environment.to_owned(),
            model_id: row.model_id.to_owned(),
        };
        if row.cv_windows > 0 {
            let cohort = (row.model_version.to_owned(), row.chipset.to_owned());
            let cv = UsualCv {
                all: row.cv,
                within: row.within,
            };
            let of_model = usual.0.entry(model.clone()).or_default();
            of_model.cv.insert(cohort, cv);
        }
        let on_chipset = windows.entry((model, row.chipset.to_owned())).or_default();
        for (end_ms, devices) in row.ends_ms.into_iter().zip(row.devices) {
            let slot = on_chipset.entry(end_ms).or_default();
            *slot = slot.saturating_add(devices);
        }
    }
    for ((model, chipset), windows) in windows {
        let of_model = usual.0.entry(model).or_default();
        let counts = windows.into_values().collect();
        of_model
            .devices
            .extend(UsualDevices::of(counts).map(|usual| (chipset, usual)));
    }
    Ok(usual)
}
