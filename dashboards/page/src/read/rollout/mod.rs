//! Whether a version may go to more devices: the rows that decide it, and the answer for each chipset.

mod decide;
#[cfg(test)]
mod tests;

use clickhouse::Row;
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use super::certificates;
use super::incidents::{self, IncidentRow};
use super::progress::Progress;
use super::store::filtered;
use super::store::{ReadError, StoreReader};
use super::windows::{self, CohortRow};

pub(crate) use self::decide::{ChipsetAnswer, FirmwareAnswer};
use self::decide::{
    FalseRow, FirmwareRow, add_certificates, add_firmwares, answers, is_late, whole,
};
pub use self::decide::{Needed, RolloutAnswer, RolloutQuery};

/// The answer for each chipset, the worst first.
#[derive(Debug, Serialize)]
pub(crate) struct Rollout {
    pub(crate) query: RolloutQuery,
    pub(crate) answer: RolloutAnswer,
    pub(crate) needed: Needed,
    /// End of the last window that was judged.
    pub(crate) judged_until: Timestamp,
    /// Whether the last window is too long ago. A stopped detector finds nothing, so "go" does not count then.
    pub(crate) is_late: bool,
    pub(crate) chipsets: Vec<ChipsetAnswer>,
    /// Roll-out groups of the app with devices of the version, the group with most devices first. `None` if the store
    /// took too long.
    pub(crate) groups: Option<Vec<GroupRow>>,
}

/// A roll-out group, as the app labels its devices: how many of them have the version.
#[derive(Debug, Clone, PartialEq, Row, Serialize, Deserialize)]
pub(crate) struct GroupRow {
    pub(crate) label: String,
    pub(crate) value: String,
    /// Devices of the version in the last window.
    pub(crate) devices: u64,
    /// Devices of the model in the last window.
    pub(crate) of: u64,
}

/// Groups of the devices that reported the model in the last window.
const GROUPS: &str = "
SELECT label, value, uniqExactIf(installation, is_version) AS devices, uniqExact(installation) AS of
FROM (
    SELECT r.installation AS installation, toString(name) AS label, toString(its) AS value,
        arrayExists((model, version) -> model = ? AND version = ?, r.session_model_id, r.session_model_version) AS is_version
    FROM counted_reports_v1 AS r
    ARRAY JOIN mapKeys(r.rollout_labels) AS name, mapValues(r.rollout_labels) AS its
    WHERE r.app_id = ? AND r.environment = ? AND has(r.session_model_id, ?)
      AND r.received_at >= fromUnixTimestamp64Milli(?) AND r.received_at < fromUnixTimestamp64Milli(?)
)
GROUP BY label, value
HAVING devices > 0
ORDER BY devices DESC, label, value
LIMIT 20";

const FALSE: &str = "
SELECT CAST(f.chipsets, 'Array(String)') AS chipsets, toString(f.verdict) AS verdict, f.who AS who, f.why AS why
FROM false_incidents_v1 AS f
WHERE f.app_id = ? AND f.environment = ? AND f.model_id = ? AND f.model_version = ?
ORDER BY f.ordered_at DESC
LIMIT 100";

/// Firmwares of a version in the last window, which are judged apart from their chipset if it has several.
const FIRMWARES: &str = "
SELECT w.chipset AS chipset, w.firmware AS firmware, w.window_end AS window_end, w.verdict AS verdict, w.severity AS severity,
    w.devices AS devices, w.eligible_devices AS eligible, w.p50_us AS p50_us, w.latency_ratio AS latency_ratio,
    w.npu_share AS npu_share, w.reasons AS reasons, w.signal_id AS signal_id, w.signal_devices AS signal_devices
FROM cohort_windows_v1 AS w
WHERE w.app_id = ? AND w.environment = ? AND w.firmware != '' AND (? = 0 OR w.model_id = ?) AND w.model_version = ?
  AND w.window_end = fromUnixTimestamp64Milli(?)
ORDER BY devices DESC, chipset, firmware
LIMIT 1000";

/// The reasons for which a roll-out cannot be answered.
#[derive(Debug)]
pub(crate) enum NoRollout {
    /// Nothing was judged yet.
    NothingJudged,
    /// The app has no model with this name; the list has the models that were judged in the last day.
    Model(Vec<String>),
    /// The model has no version with this name; the list has the versions that were judged in the last day.
    Version(Vec<String>),
    Read(ReadError),
}

impl From<ReadError> for NoRollout {
    fn from(error: ReadError) -> Self {
        Self::Read(error)
    }
}

pub(crate) async fn read(
    store: &StoreReader,
    query: RolloutQuery,
    needed: Needed,
    now: Timestamp,
) -> Result<Rollout, NoRollout> {
    let progress = Progress::read(store).await?;
    let until = progress.judged_until.ok_or(NoRollout::NothingJudged)?;
    let of = (&*query.app, &*query.environment);
    let firmwares = store.rows::<FirmwareRow>(FIRMWARES, |sql| {
        let sql = filtered(sql.bind(of.0).bind(of.1), Some(&query.model));
        sql.bind(&query.version).bind(until.as_millisecond())
    });
    let called_false = store.rows::<FalseRow>(FALSE, |sql| {
        let sql = sql.bind(of.0).bind(of.1);
        sql.bind(&query.model).bind(&query.version)
    });
    let (rows, open, firmwares, called_false, certificates) = tokio::join!(
        windows::latest(store, of, None, until),
        incidents::open(store, of),
        firmwares,
        called_false,
        certificates::list(store, Some(of.0)),
    );
    let (rows, called_false) = (rows?, called_false?);
    if !rows.iter().any(|row| row.model == query.model) {
        return Err(NoRollout::Model(names(&rows, |row| &row.model)));
    }
    let rows: Vec<CohortRow> = rows
        .into_iter()
        .filter(|row| row.model == query.model)
        .collect();
    if !rows.iter().any(|row| row.version == query.version) {
        return Err(NoRollout::Version(names(&rows, |row| &row.version)));
    }
    let open: Vec<IncidentRow> = open?.into_iter().map(IncidentRow::from).collect();
    let mut chipsets = answers(&query, &rows, &open, needed, &called_false);
    add_firmwares(&mut chipsets, firmwares?, &query, &called_false);
    add_certificates(&mut chipsets, &certificates?, &query);
    let window = rows
        .iter()
        .map(|row| row.window_seconds)
        .fold(0.0, f64::max);
    let from = until - SignedDuration::try_from_secs_f64(window).unwrap_or_default();
    let groups = store.rows::<GroupRow>(GROUPS, |sql| {
        let sql = sql.bind(&query.model).bind(&query.version);
        let sql = sql
            .bind(&query.app)
            .bind(&query.environment)
            .bind(&query.model);
        sql.bind(from.as_millisecond()).bind(until.as_millisecond())
    });
    // Groups do not decide the answer, and are slow to read in a large fleet. So a failure is ignored.
    let groups = groups.await.ok();
    Ok(Rollout {
        answer: whole(&chipsets),
        is_late: is_late(until, progress.step_seconds, now),
        query,
        needed,
        judged_until: until,
        chipsets,
        groups,
    })
}

fn names(rows: &[CohortRow], name: impl Fn(&CohortRow) -> &String) -> Vec<String> {
    let mut names: Vec<String> = rows.iter().map(|row| name(row).clone()).collect();
    names.sort();
    names.dedup();
    names
}
