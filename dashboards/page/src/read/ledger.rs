//! The loss ledger: whether the sum closes, by app and day, and the collectors' answers.

use std::collections::BTreeMap;

use clickhouse::Row;
use clickhouse::query::Query;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::health::OutcomeCount;
use super::progress::time;
use super::scope::AppScope;
use super::store::{LeftOut, ReadError, StoreReader, filtered};

/// Maximum number of days that a query may cover.
pub(crate) const MAX_DAYS: u32 = 14;

/// Parameters of the page.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct LedgerQuery {
    pub(crate) app: Option<String>,
    pub(crate) environment: Option<String>,
    pub(crate) days: u32,
    /// Counts the runs within the reports.
    pub(crate) runs: bool,
    /// Also names the installation that brings most of each figure, which is read from raw tables.
    pub(crate) largest: bool,
}

/// The page of the loss ledger.
#[derive(Debug, Serialize)]
pub(crate) struct LedgerPage {
    pub(crate) query: LedgerQuery,
    /// Apps with a report in the last [`MAX_DAYS`] days.
    pub(crate) apps: Vec<String>,
    /// The entries by app, environment and day, the newest first.
    pub(crate) entries: Vec<LedgerDay>,
    pub(crate) answers: Vec<OutcomeCount>,
    /// By app, environment, day and figure, the largest figure first; empty unless it was asked for.
    pub(crate) largest: Vec<LargestRow>,
    /// When an entry last changed; a collector reads the ledger every minute.
    pub(crate) changed_at: Option<Timestamp>,
    /// Installations of today.
    pub(crate) installations: Option<InstallationsRow>,
    pub(crate) deletions: Option<DeletionsRow>,
    pub(crate) left_out: LeftOut,
}

/// One app's reports, or runs, of one day.
#[derive(Debug, Clone, PartialEq, Eq, Row, Serialize, Deserialize)]
pub(crate) struct LedgerDay {
    pub(crate) app: String,
    pub(crate) environment: String,
    /// The day; in a sum over days the newest of them.
    pub(crate) day: String,
    pub(crate) recorded: i64,
    pub(crate) stored: i64,
    pub(crate) dropped: i64,
    pub(crate) refused: i64,
    pub(crate) missing: i64,
    pub(crate) duplicate: i64,
    pub(crate) conflict: i64,
}

macro_rules! by_day {
    ($view:literal) => {
        concat!(
            "SELECT toString(l.app_id) AS app, toString(l.environment) AS environment, toString(l.day) AS day,
                toInt64(l.recorded) AS recorded, toInt64(l.stored) AS stored, toInt64(l.dropped) AS dropped,
                toInt64(l.refused) AS refused, toInt64(l.missing) AS missing, toInt64(l.duplicate) AS duplicate,
                toInt64(l.conflict) AS conflict
             FROM ",
            $view,
            " AS l
             WHERE l.app_id != '' AND (? = 1 OR has(?, l.app_id)) AND (? = 0 OR l.app_id = ?)
               AND (? = 0 OR l.environment = ?) AND l.day > toDate(now('UTC')) - ?
             ORDER BY day DESC, recorded DESC, app, environment
             LIMIT 2000"
        )
    };
}

const REPORTS_BY_DAY: &str = by_day!("loss_ledger_read_daily_v1");
const RUNS_BY_DAY: &str = by_day!("loss_ledger_runs_read_daily_v1");

/// The installation that brings most of a figure of one day, in reports.
#[derive(Debug, Clone, PartialEq, Eq, Row, Serialize, Deserialize)]
pub(crate) struct LargestRow {
    pub(crate) app: String,
    pub(crate) environment: String,
    pub(crate) day: String,
    /// `missing`, `dropped` or `refused`.
    pub(crate) entry: String,
    /// The id in hexadecimal digits.
    pub(crate) installation: String,
    pub(crate) of_installation: u64,
    /// The figure's reports of all installations.
    pub(crate) reports: u64,
}

const LARGEST: &str = "
SELECT toString(l.app_id) AS app, toString(l.environment) AS environment, toString(l.day) AS day, toString(l.entry) AS entry,
    lower(hex(l.largest_installation)) AS installation, toUInt64(l.largest_reports) AS of_installation, toUInt64(l.reports) AS reports
FROM largest_in_ledger_v1 AS l
WHERE (? = 1 OR has(?, l.app_id)) AND (? = 0 OR l.app_id = ?) AND (? = 0 OR l.environment = ?) AND l.day > toDate(now('UTC')) - ?
ORDER BY reports DESC, day DESC, app, environment, entry
LIMIT 20";

const SUM: &str = "
SELECT l.app_id AS app, l.environment AS environment, toString(max(l.day)) AS day,
    sumIf(l.reports, l.kind = 'recorded') AS recorded, sumIf(l.reports, l.kind = 'stored') AS stored,
    sumIf(l.reports, l.kind = 'dropped') AS dropped, sumIf(l.reports, l.kind = 'refused') AS refused,
    recorded - stored - dropped - refused AS missing,
    sumIf(l.reports, l.kind = 'duplicate') AS duplicate, sumIf(l.reports, l.kind = 'conflict') AS conflict
FROM loss_ledger_read_v1 AS l
WHERE l.app_id = ? AND l.environment = ? AND l.day > toDate(now('UTC')) - ?
GROUP BY l.app_id, l.environment
LIMIT 1";

/// Returns the sum over [`MAX_DAYS`] of an app in an environment; `None` without a report.
pub(super) async fn sum(
    store: &StoreReader,
    (app, environment): (&str, &str),
) -> Result<Option<LedgerDay>, ReadError> {
    let bind = |sql: Query| sql.bind(app).bind(environment).bind(MAX_DAYS);
    let mut sums = store.rows(SUM, bind).await?;
    Ok(sums.pop())
}

/// An app with a report, and when one of its entries last changed.
#[derive(Debug, Row, Deserialize)]
struct AppRow {
    app: String,
    changed_at: i64,
}

const APPS: &str = "
SELECT l.app_id AS app, max(l.read_at) AS changed_at
FROM loss_ledger_read_v1 AS l
WHERE (? = 1 OR has(?, l.app_id)) AND l.day > toDate(now('UTC')) - ?
GROUP BY l.app_id
ORDER BY app
LIMIT 501";

const ANSWERS: &str = "
SELECT toString(o.outcome) AS outcome, toUInt64(sum(o.reports)) AS reports
FROM report_outcomes_v1 AS o
WHERE o.bucket >= toDateTime(toDate(now('UTC')) - ? + 1, 'UTC') AND (? = 1 OR has(?, o.app_id)) AND (? = 0 OR o.app_id = ?)
  AND (? = 0 OR o.environment = ?)
GROUP BY o.outcome
ORDER BY reports DESC, outcome
LIMIT 100";

/// Installations by whether they vote.
#[derive(Debug, Clone, PartialEq, Eq, Row, Serialize, Deserialize)]
pub(crate) struct InstallationsRow {
    pub(crate) installations: u64,
    pub(crate) unproven: u64,
}

const INSTALLATIONS: &str = "
SELECT sumIf(s.total, s.name = 'installations') AS installations, sumIf(s.total, s.name = 'unproven') AS unproven
FROM daily_counts_v1 AS s
WHERE s.day = toDate(now('UTC')) AND (? = 1 OR has(?, s.app_id)) AND (? = 0 OR s.app_id = ?) AND (? = 0 OR s.environment = ?)
LIMIT 1";

/// Deletions that devices asked for, of all apps.
#[derive(Debug, Clone, PartialEq, Eq, Row, Serialize, Deserialize)]
pub(crate) struct DeletionsRow {
    pub(crate) requested: u64,
    pub(crate) erased: u64,
}

const DELETIONS: &str = "
SELECT count() AS requested, countIf(toUnixTimestamp64Milli(d.erased_at) > 0) AS erased FROM deletions_v1 AS d LIMIT 1";

pub(crate) async fn read(
    store: &StoreReader,
    query: LedgerQuery,
    allowed: &AppScope,
) -> Result<LedgerPage, ReadError> {
    let (app, environment) = (query.app.as_deref(), query.environment.as_deref());
    let scope = |sql: Query| filtered(filtered(allowed.bind(sql), app), environment);
    let mut left_out = LeftOut::default();
    // An unreachable store is an error; a part that takes too long is left out.
    let deletions: Vec<DeletionsRow> = store.rows(DELETIONS, |sql| sql).await?;
    let by_day = match query.runs {
        true => RUNS_BY_DAY,
        false => REPORTS_BY_DAY,
    };
    let entries = store.rows(by_day, |sql| scope(sql).bind(query.days)).await;
    let apps = store
        .rows(APPS, |sql| allowed.bind(sql).bind(MAX_DAYS))
        .await;
    let answers = store.rows(ANSWERS, |sql| scope(sql.bind(query.days))).await;
    let apps: Vec<AppRow> = left_out.part("apps", apps);
    let changed = apps.iter().map(|row| row.changed_at).max();
    // Answers without a known app have an empty app name.
    let apps = apps.into_iter().map(|row| row.app);
    let apps = apps.filter(|app| !app.is_empty()).collect();
    let installations: Result<Vec<InstallationsRow>, _> = store.rows(INSTALLATIONS, scope).await;
    let entries: Vec<LedgerDay> = left_out.part("ledger", entries);
    let largest = match query.largest && entries.iter().any(LedgerDay::lacks) {
        true => store.rows(LARGEST, |sql| scope(sql).bind(query.days)).await,
        false => Ok(Vec::new()),
    };
    Ok(LedgerPage {
        apps,
        entries,
        largest: left_out.part("largest installations", largest),
        answers: left_out.part("answers", answers),
        changed_at: changed.and_then(time),
        installations: left_out.part("installations", installations).pop(),
        // Deletions are not split by app, so only readers of all apps see them.
        deletions: deletions.into_iter().next().filter(|_| allowed.is_all()),
        left_out,
        query,
    })
}

impl LedgerPage {
    /// Returns the sums over the days, by app and environment, the one with most reports first.
    pub(crate) fn by_app(&self) -> Vec<LedgerDay> {
        let mut sums: BTreeMap<(&str, &str), LedgerDay> = BTreeMap::new();
        for day in &self.entries {
            let name = (&*day.app, &*day.environment);
            match sums.get_mut(&name) {
                Some(sum) => sum.add(day),
                None => drop(sums.insert(name, day.clone())),
            }
        }
        let mut all: Vec<_> = sums.into_values().collect();
        all.sort_by_key(|sum| (sum.missing == 0, std::cmp::Reverse(sum.recorded)));
        all
    }

    pub(crate) fn total(&self) -> Option<LedgerDay> {
        let (first, rest) = self.entries.split_first()?;
        let mut total = first.clone();
        rest.iter().for_each(|day| total.add(day));
        Some(total)
    }
}

impl LedgerDay {
    fn add(&mut self, other: &Self) {
        self.recorded += other.recorded;
        self.stored += other.stored;
        self.dropped += other.dropped;
        self.refused += other.refused;
        self.missing += other.missing;
        self.duplicate += other.duplicate;
        self.conflict += other.conflict;
    }

    /// Whether a report was recorded that is not stored.
    fn lacks(&self) -> bool {
        self.dropped != 0 || self.refused != 0 || self.missing != 0
    }

    /// Whether every recorded report has one of the four fates.
    pub(crate) fn closes(&self) -> bool {
        self.recorded == self.stored + self.dropped + self.refused + self.missing
    }
}
