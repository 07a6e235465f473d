//! The health of collector and detector, as far as the store shows it.

use clickhouse::Row;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::progress::{Progress, time_of_ms};
use super::scope::AppScope;
use super::store::{LeftOut, ReadError, StoreReader};
use crate::text::number;

/// Whether data arrives and is judged: the store's progress, arrivals, and the statuses of this process's parts.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct HealthPage {
    pub(crate) progress: Progress,
    pub(crate) arrivals: Option<RecentReports>,
    pub(crate) outcomes: Vec<OutcomeCount>,
    pub(crate) verdicts: Vec<VerdictCount>,
    pub(crate) last_window: Option<LastWindow>,
    /// Statuses of the parts of this process.
    pub(crate) facts: Vec<PartStatus>,
    pub(crate) left_out: LeftOut,
}

/// The status of one part of the process that serves the page.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PartStatus {
    /// The part it is about, for example `Collector`.
    pub part: &'static str,
    /// A sentence or two.
    pub text: String,
    /// A sentence that ages by itself, such as the seconds until something happens. Two statuses that differ only in
    /// this sentence are equal.
    pub running: String,
    /// Whether the part works.
    pub is_fine: bool,
}

impl PartStatus {
    /// Returns both texts as one.
    pub(crate) fn whole(&self) -> String {
        let parts = [&*self.text, &self.running];
        let parts: Vec<&str> = parts.into_iter().filter(|part| !part.is_empty()).collect();
        parts.join(" ")
    }
}

/// Returns the statuses of the process's parts, for the health page and the page of an empty store.
pub type ReadPartStatus = Box<dyn Fn() -> Vec<PartStatus> + Send + Sync>;

/// Answers of the collectors other than a plain ack.
#[derive(Debug, Clone, PartialEq, Eq, Row, Serialize, Deserialize)]
pub(crate) struct OutcomeCount {
    pub(crate) outcome: String,
    pub(crate) reports: u64,
}

const OUTCOMES: &str = "
SELECT toString(o.outcome) AS outcome, toUInt64(sum(o.reports)) AS reports
FROM report_outcomes_v1 AS o
WHERE (? = 1 OR has(?, o.app_id)) AND o.bucket > now('UTC') - INTERVAL 1 DAY
GROUP BY o.outcome
ORDER BY reports DESC, outcome
LIMIT 50";

/// Reports that are stored. Copies in open buckets may count twice.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Row, Serialize, Deserialize)]
pub(crate) struct RecentReports {
    pub(crate) in_last_hour: u64,
    /// Reports that came with a key of kind `app`.
    pub(crate) public: u64,
    /// Reports with a key of kind `app` but without a known network, so that no network weighs their devices.
    pub(crate) unweighed: u64,
    #[serde(deserialize_with = "time_of_ms")]
    pub(crate) last: Option<Timestamp>,
}

impl RecentReports {
    /// Returns a sentence about networks that are unknown, if most reports of public keys have none.
    pub(crate) fn unweighed(&self) -> Option<String> {
        (2 * self.unweighed > self.public).then(|| {
            format!(
                "{} of {} with a public key came from private addresses in the last hour, so networks do not weigh \
                 devices: name the proxy in collector.new_installations.trusted_proxies.",
                number::count(self.unweighed),
                number::of_them(self.public, "report"),
            )
        })
    }
}

const ARRIVALS: &str = "
SELECT count() AS in_last_hour, countIf(NOT r.is_own) AS public,
    countIf(NOT (r.is_own OR r.has_network)) AS unweighed, toInt64(toUnixTimestamp64Milli(max(r.received_at))) AS last
FROM settled_reports_v1 AS r
WHERE (? = 1 OR has(?, r.app_id)) AND r.received_at > now64(3, 'UTC') - INTERVAL 1 HOUR
LIMIT 1";

/// Returns the reports of the last hour.
pub(crate) async fn arrivals(
    store: &StoreReader,
    scope: &AppScope,
) -> Result<RecentReports, ReadError> {
    let mut rows = store.rows(ARRIVALS, |sql| scope.bind(sql)).await?;
    Ok(rows.pop().unwrap_or_default())
}

/// Cohorts of the last window by verdict.
#[derive(Debug, Clone, PartialEq, Eq, Row, Serialize, Deserialize)]
pub(crate) struct VerdictCount {
    pub(crate) verdict: String,
    pub(crate) severity: String,
    pub(crate) cohorts: u64,
    pub(crate) devices: u64,
}

const VERDICTS: &str = "
SELECT toString(w.verdict) AS verdict, toString(w.severity) AS severity, count() AS cohorts, sum(w.devices) AS devices
FROM cohort_windows_v1 AS w
WHERE (? = 1 OR has(?, w.app_id)) AND w.firmware = '' AND w.window_end = fromUnixTimestamp64Milli(?)
GROUP BY w.verdict, w.severity
ORDER BY indexOf(['page', 'ticket', 'info', 'none'], severity), cohorts DESC, verdict
LIMIT 50";

/// The last window, and how long after its end it was judged.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct LastWindow {
    pub(crate) end: Timestamp,
    pub(crate) judged_at: Timestamp,
}

impl HealthPage {
    /// Returns the page with other statuses of the process's parts.
    pub(crate) fn with_facts(&self, facts: Vec<PartStatus>) -> Self {
        Self {
            facts,
            ..self.clone()
        }
    }
}

pub(crate) async fn read(
    store: &StoreReader,
    progress: &Progress,
    scope: &AppScope,
    facts: Vec<PartStatus>,
) -> Result<HealthPage, ReadError> {
    let mut left_out = LeftOut::default();
    let until = progress.judged_until.map_or(0, |at| at.as_millisecond());
    let (verdicts, arrivals, outcomes) = tokio::join!(
        store.rows(VERDICTS, |sql| scope.bind(sql).bind(until)),
        arrivals(store, scope),
        store.rows(OUTCOMES, |sql| scope.bind(sql)),
    );
    let verdicts = verdicts?;
    let arrivals = left_out.part("arrivals", arrivals.map(Some));
    let outcomes = left_out.part("answers", outcomes);
    let judged = progress.judged_until.zip(progress.judged_at);
    Ok(HealthPage {
        progress: *progress,
        arrivals,
        outcomes,
        verdicts,
        last_window: judged.map(|(end, judged_at)| LastWindow { end, judged_at }),
        facts,
        left_out,
    })
}
