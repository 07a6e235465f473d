//! What earlier windows of the same length had: devices by chipset, and CV by version and chipset.

use std::collections::BTreeMap;

use clickhouse::{Client, Row};
use serde::Deserialize;

use crate::cohort::ModelKey;

use super::{SourceError, Span, failed};

/// Median number of devices of earlier windows. From the detector's own table, where a window that was
/// judged again has one row; what is asked first is the same in all rows of a window. Binds: look-back,
/// window length.
const DEVICES: &str = "
    SELECT app_id, environment, model_id, chipset, quantileExact(0.5)(n) AS devices,
        count() AS windows
    FROM (
        SELECT app_id, environment, model_id, chipset, window_end, sum(c.devices) AS n
        FROM cohort_windows AS c FINAL
        PREWHERE firmware = '' AND window_end >= toDateTime(?) AND window_end < toDateTime(?)
            AND window_seconds = ?
        GROUP BY app_id, environment, model_id, chipset, window_end
    )
    GROUP BY app_id, environment, model_id, chipset";

/// Mean CV of earlier windows, read in the same way. Binds: look-back, window length.
const CV: &str = "
    SELECT app_id, environment, model_id, model_version, chipset,
        avg(sqrt(pow(assumeNotNull(cv_within), 2) + pow(assumeNotNull(cv_between), 2))) AS cv,
        avg(assumeNotNull(w.cv_within)) AS within
    FROM cohort_windows AS w FINAL
    PREWHERE firmware = '' AND window_end >= toDateTime(?) AND window_end < toDateTime(?)
        AND window_seconds = ?
    WHERE isNotNull(cv_within) AND isNotNull(cv_between)
    GROUP BY app_id, environment, model_id, model_version, chipset";

#[derive(Debug, Row, Deserialize)]
struct DevicesRow {
    app_id: String,
    environment: String,
    model_id: String,
    chipset: String,
    devices: u64,
    windows: u64,
}

#[derive(Debug, Row, Deserialize)]
struct CvRow {
    app_id: String,
    environment: String,
    model_id: String,
    model_version: String,
    chipset: String,
    cv: f64,
    within: f64,
}

/// Devices that a chipset usually has in a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct UsualDevices {
    /// Median over earlier windows.
    pub devices: u64,
    /// How many windows that are.
    pub windows: u64,
}

/// Coefficients of variation that a cohort usually has: means over earlier windows.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct UsualCv {
    /// Of all runs, every device counted the same.
    pub all: f64,
    /// Within a device.
    pub within: f64,
}

impl UsualOfModel {
    /// Returns the CV of the previous version on a chipset, else that of this one.
    #[must_use]
    pub fn cv_of(&self, version: &str, previous: Option<&str>, chipset: &str) -> Option<UsualCv> {
        let of = |version: &str| self.cv.get(&(version.to_owned(), chipset.to_owned()));
        previous.and_then(of).or_else(|| of(version)).copied()
    }
}

/// What one model usually has.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct UsualOfModel {
    /// By chipset, over all versions.
    pub devices: BTreeMap<String, UsualDevices>,
    /// Mean CV, by (version, chipset).
    pub cv: BTreeMap<(String, String), UsualCv>,
}

/// What all models usually have.
#[derive(Debug, Default)]
pub(super) struct Usual(pub(super) BTreeMap<ModelKey, UsualOfModel>);

pub(super) async fn read(client: &Client, span: &Span) -> Result<Usual, SourceError> {
    let bound = |query: &str| {
        let query = client.query(query).bind(span.earliest_s());
        query.bind(span.end_s()).bind(span.window.as_secs_f64())
    };
    let what = "earlier windows";
    let devices = bound(DEVICES).fetch_all::<DevicesRow>().await;
    let cv = bound(CV).fetch_all::<CvRow>().await;
    let mut usual = Usual::default();
    for row in devices.map_err(failed(what))? {
        let of_model = usual.0.entry(ModelKey {
            app_id: row.app_id,
            environment: row.environment,
            model_id: row.model_id,
        });
        let found = UsualDevices {
            devices: row.devices,
            windows: row.windows,
        };
        of_model.or_default().devices.insert(row.chipset, found);
    }
    for row in cv.map_err(failed(what))? {
        let of_model = usual.0.entry(ModelKey {
            app_id: row.app_id,
            environment: row.environment,
            model_id: row.model_id,
        });
        let cohort = (row.model_version, row.chipset);
        let cv = UsualCv {
            all: row.cv,
            within: row.within,
        };
        of_model.or_default().cv.insert(cohort, cv);
    }
    Ok(usual)
}

impl Usual {
    pub(super) fn of(&self, model: &ModelKey) -> UsualOfModel {
        self.0.get(model).cloned().unwrap_or_default()
    }
}
