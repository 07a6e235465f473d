//! Tables that the detector writes: a row for each judged window, and one for every state of an incident. A restart
//! reads the states of incidents, so that no notification is repeated or lost. People's orders are read here too.

use std::collections::{BTreeMap, BTreeSet};

use clickhouse::{Client, Row, RowWrite};
use epwatch_model::rows::{
    CohortEvidenceRow, CohortWindowRow, IncidentOrderRow, JudgedWindowRow, StoredIncidentRow,
};
use epwatch_model::summary::{IncidentSummary, SignalSummary};
use epwatch_model::{
    CohortEvidence, CohortVerdict, Incident, IncidentKey, Order, OrderKind, State, VerdictClass,
    WindowStatistics, read_document, write_document,
};
use epwatch_proto::error_chain;
use jiff::Timestamp;
use serde::Deserialize;

use crate::notify::{Notification, block, summary};

/// Version of the statistics behind a row. Rows of different versions are never combined.
const ALGO: &str = "v1";

/// The reason why verdicts or incidents were not stored or read.
#[derive(Debug, thiserror::Error)]
#[error("failed to {what}")]
pub struct StoreError {
    what: &'static str,
    #[source]
    source: clickhouse::error::Error,
}

fn failed(what: &'static str) -> impl FnOnce(clickhouse::error::Error) -> StoreError {
    move |source| StoreError { what, source }
}

/// Access to the tables of verdicts and incidents.
#[derive(Clone)]
pub struct VerdictStore {
    client: Client,
}

impl std::fmt::Debug for VerdictStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VerdictStore").finish_non_exhaustive()
    }
}

/// The rows of one judged window.
#[derive(Debug)]
pub(crate) struct JudgedWindow {
    pub(crate) end: Timestamp,
    pub(crate) window_seconds: f64,
    pub(crate) step_seconds: f64,
    pub(crate) verdicts: Vec<CohortVerdict>,
    pub(crate) evidence: Vec<CohortEvidence>,
    pub(crate) judged_at: Timestamp,
}

#[derive(Debug, Row, Deserialize)]
struct DocumentRow {
    incident_id: String,
    changed_at_ms: i64,
    document: String,
}

/// A person's order of an incident, as the store holds it.
#[derive(Debug, Clone)]
pub(crate) struct StoredOrder {
    /// The order's own id.
    pub(crate) id: String,
    pub(crate) incident: String,
    pub(crate) order: Order,
}

/// Returns the order of a row; `None` for a kind of order from a newer version.
fn order_of(row: IncidentOrderRow) -> Option<StoredOrder> {
    let Some(kind) = OrderKind::parse(&row.order_kind) else {
        let (incident, kind) = (row.incident_id, row.order_kind);
        tracing::error!(
            incident,
            kind,
            "an order is of no kind that this detector knows"
        );
        return None;
    };
    let order = Order {
        n: row.order_number,
        kind,
        who: row.who,
        at: Timestamp::from_millisecond(row.ordered_at).ok()?,
        until: row
            .until
            .and_then(|ms| Timestamp::from_millisecond(ms).ok()),
        why: row.why,
    };
    Some(StoredOrder {
        id: row.order_id,
        incident: row.incident_id,
        order,
    })
}

/// Orders after the last one that was obeyed, for each incident. The number of rows per incident is limited, so that
/// one incident cannot delay another's orders. The next reading continues where this one ended. Kinds of a newer
/// version come last, because no number moves past them until a later order is obeyed.
const ORDERS: &str = "
    SELECT ?fields FROM incident_orders_v1
    WHERE has(?, incident_id) AND is_counted AND order_number > arrayElement(?, indexOf(?, incident_id))
    ORDER BY incident_id, has(?, toString(order_kind)) DESC, order_number
    LIMIT 100 BY incident_id";

/// The state that a detector starts from.
#[derive(Debug, Default)]
pub struct StoredState {
    /// Open incidents, closed ones of the last 7 days, which may not be delivered yet, and those that a person ended.
    pub incidents: Vec<Incident>,
    /// Latest change of an incident.
    pub changed_at: Option<Timestamp>,
    /// Ends of the windows in the look-back that were judged, in order.
    pub judged: Vec<Timestamp>,
    /// Ids of incidents that this version cannot read.
    pub unreadable: BTreeSet<String>,
}

impl VerdictStore {
    /// Writes through `client`, whose database has the migrations.
    #[must_use]
    pub fn new(client: Client) -> Self {
        Self { client }
    }

    /// Stores verdicts. A verdict that is stored again is replaced.
    ///
    /// # Errors
    /// The store did not take them.
    pub async fn add_windows(
        &self,
        verdicts: &[CohortVerdict],
        judged_at: Timestamp,
    ) -> Result<(), StoreError> {
        let rows = verdicts.iter().map(|one| window_row(one, judged_at));
        let written = self.insert::<CohortWindowRow>("cohort_windows", rows).await;
        written.map_err(failed("store judged windows"))
    }

    /// Stores the mark that a window was judged and wholly stored, even a window without cohorts.
    pub(crate) async fn add_judged_window(&self, window: &JudgedWindow) -> Result<(), StoreError> {
        let row = JudgedWindowRow {
            window_end: window.end.as_millisecond(),
            window_seconds: window.window_seconds,
            step_seconds: window.step_seconds,
            cohorts: window.verdicts.len() as u64,
            judged_at: window.judged_at.as_millisecond(),
        };
        let rows = std::iter::once(row);
        let written = self.insert::<JudgedWindowRow>("judged_windows", rows).await;
        written.map_err(failed("store that a window was judged"))
    }

    /// Returns the ends of judged windows since `since`, in order. Ends in the future, from a clock that was ahead, do
    /// not count.
    pub(crate) async fn judged_windows(
        &self,
        window_seconds: f64,
        since: Timestamp,
        now: Timestamp,
    ) -> Result<Vec<Timestamp>, StoreError> {
        let query = self.client.query(
            "SELECT DISTINCT toInt64(toUnixTimestamp64Milli(window_end)) AS end_ms FROM judged_windows \
             WHERE window_seconds = ? AND end_ms >= ? AND end_ms <= ? ORDER BY end_ms",
        );
        let query = query.bind(window_seconds).bind(since.as_millisecond());
        let ends = query.bind(now.as_millisecond()).fetch_all::<i64>().await;
        let ends = ends.map_err(failed("read the judged windows"))?.into_iter();
        Ok(ends
            .filter_map(|ms| Timestamp::from_millisecond(ms).ok())
            .collect())
    }

    /// Stores the evidence of verdicts. Evidence of a window with a finding stays. Without a finding, only each
    /// cohort's latest evidence stays.
    ///
    /// # Errors
    /// The store did not take it.
    pub async fn add_evidence(
        &self,
        evidence: &[CohortEvidence],
        judged_at: Timestamp,
    ) -> Result<(), StoreError> {
        let rows = evidence.iter().map(|one| evidence_row(one, judged_at));
        let written = self.insert::<CohortEvidenceRow>("cohort_evidence", rows);
        written.await.map_err(failed("store evidence"))
    }

    /// Stores the state of incidents. `changed_at` must grow from call to call.
    ///
    /// # Errors
    /// The store did not take them.
    pub async fn add_incidents(
        &self,
        incidents: &[Incident],
        changed_at: Timestamp,
    ) -> Result<(), StoreError> {
        let rows = incidents.iter().map(|one| incident_row(one, changed_at));
        let written = self.insert::<StoredIncidentRow>("incidents", rows).await;
        written.map_err(failed("store incidents"))
    }

    async fn insert<'a, T: RowWrite>(
        &self,
        table: &str,
        rows: impl ExactSizeIterator<Item = T::Value<'a>>,
    ) -> Result<(), clickhouse::error::Error> {
        if rows.len() == 0 {
            return Ok(());
        }
        let mut insert = self.client.insert::<T>(table).await?;
        for row in rows {
            insert.write(&row).await?;
        }
        insert.end().await
    }

    /// Returns those among `ids` for which the store has an incident, open or over.
    pub(crate) async fn known_incidents(
        &self,
        ids: &[&str],
    ) -> Result<BTreeSet<String>, StoreError> {
        let query = "SELECT DISTINCT incident_id FROM incidents_v1 WHERE has(?, incident_id)";
        let known = self.client.query(query).bind(ids).fetch_all::<String>();
        let known = known.await.map_err(failed("read incidents"))?;
        Ok(known.into_iter().collect())
    }

    /// Returns the orders of these incidents after the given numbers, by number, at most a hundred each.
    pub(crate) async fn orders(
        &self,
        after: &BTreeMap<String, u64>,
    ) -> Result<Vec<StoredOrder>, StoreError> {
        if after.is_empty() {
            return Ok(Vec::new());
        }
        let ids: Vec<&str> = after.keys().map(String::as_str).collect();
        let last: Vec<u64> = after.values().copied().collect();
        let known: Vec<&str> = OrderKind::ALL.iter().map(|kind| kind.as_str()).collect();
        let query = self.client.query(ORDERS).bind(&ids).bind(last).bind(&ids);
        let rows = query.bind(known).fetch_all::<IncidentOrderRow>().await;
        let rows = rows.map_err(failed("read orders"))?.into_iter();
        let mut orders: Vec<StoredOrder> = rows.filter_map(order_of).collect();
        orders.sort_by(|a, b| (&a.incident, a.order.n).cmp(&(&b.incident, b.order.n)));
        Ok(orders)
    }

    /// Returns the SHA-256 in hex of the file that most sessions of a model version loaded since `from`; `None` if
    /// no device sent it.
    pub(crate) async fn model_file(
        &self,
        key: &IncidentKey,
        from: Timestamp,
    ) -> Result<Option<String>, StoreError> {
        let query = self.client.query(
            "SELECT sha256 FROM reports ARRAY JOIN session_model_id AS id, \
                 session_model_version AS version, session_model_sha256 AS sha256 \
             WHERE app_id = ? AND environment = ? AND received_at >= fromUnixTimestamp64Milli(?) \
                 AND id = ? AND version = ? AND sha256 != '' \
             GROUP BY sha256 ORDER BY count() DESC, sha256 LIMIT 1 SETTINGS max_execution_time = 5",
        );
        let query = query.bind(&key.model.app_id).bind(&key.model.environment);
        let query = query.bind(from.as_millisecond());
        let query = query.bind(&key.model.model_id).bind(&key.model_version);
        let file = query.fetch_optional::<String>().await;
        file.map_err(failed("read the hash of a model's file"))
    }

    /// Reads the state that a restart needs, with the windows judged since `since`. Documents of another version stay as
    /// they are, and are named in the log.
    ///
    /// # Errors
    /// The store did not answer.
    pub async fn read_state(
        &self,
        window_seconds: f64,
        since: Timestamp,
        now: Timestamp,
    ) -> Result<StoredState, StoreError> {
        let what = "read incidents";
        let query = self.client.query(
            "SELECT incident_id, toUnixTimestamp64Milli(changed_at) AS changed_at_ms, document \
             FROM incidents_v1 \
             WHERE state IN ('pending', 'firing', 'mitigated') \
                OR (state = 'resolved' AND changed_at > now() - INTERVAL 7 DAY) \
                OR (state = 'resolved' AND incident_id IN ( \
                    SELECT incident_id FROM incident_orders_v1 WHERE order_kind IN ('resolve', 'accept', 'false'))) \
             ORDER BY incident_id",
        );
        let rows = query
            .fetch_all::<DocumentRow>()
            .await
            .map_err(failed(what))?;
        let mut stored = StoredState::default();
        for row in rows {
            let changed_at = Timestamp::from_millisecond(row.changed_at_ms).ok();
            stored.changed_at = stored.changed_at.max(changed_at);
            match read_document(&row.document) {
                Ok(incident) => stored.incidents.push(incident),
                Err(error) => {
                    let (incident, error) = (row.incident_id, error_chain(&error));
                    tracing::error!(
                        incident,
                        error,
                        "a stored incident was made by another version of epwatch: it stays as it is, and nothing ends it"
                    );
                    stored.unreadable.insert(incident);
                }
            }
        }
        stored.judged = self.judged_windows(window_seconds, since, now).await?;
        Ok(stored)
    }
}

fn window_row(verdict: &CohortVerdict, judged_at: Timestamp) -> CohortWindowRow {
    let (key, numbers, statistics) = (&verdict.key, &verdict.numbers, &verdict.statistics);
    let counted = verdict.signals.iter().chain(&verdict.tallies);
    let signals = counted
        .map(SignalSummary::from)
        .chain(described(statistics));
    let signals: Vec<SignalSummary> = signals.collect();
    let counted = verdict.signals.iter().chain(&verdict.tallies);
    let mut fires: Vec<bool> = counted.map(|signal| signal.fires).collect();
    // Statistics never fire, so the rest is filled with `false`.
    fires.resize(signals.len(), false);
    let late = numbers.late_runs.as_ref();
    CohortWindowRow {
        window_end: verdict.window_end.as_millisecond(),
        window_seconds: verdict.window.as_secs_f64(),
        app_id: key.model.app_id.clone(),
        environment: key.model.environment.clone(),
        model_id: key.model.model_id.clone(),
        model_version: key.model_version.clone(),
        chipset: key.chipset.clone(),
        firmware: key.firmware.clone().unwrap_or_default(),
        algo: ALGO.to_owned(),
        follows: verdict.follows.clone().unwrap_or_default(),
        devices: numbers.devices_seen,
        devices_on_chipset: numbers.devices_on_chipset,
        eligible_devices: numbers.devices_eligible,
        devices_hit: numbers.devices_hit,
        runs: numbers.runs,
        p50_us: statistics.p50_us,
        p95_us: statistics.p95_us,
        cv_within: statistics.cv_within,
        cv_between: statistics.cv_between,
        dip: statistics.dip,
        dip_p: statistics.dip_p,
        npu_share: numbers.npu_share,
        latency_ratio: numbers.latency_ratio,
        deadline_us: late.map(|late| 1_000.0 * late.deadline_ms),
        late_share: late.map(|late| late.share),
        signal_id: signals.iter().map(|signal| signal.id.clone()).collect(),
        signal_value: signals.iter().map(|signal| signal.value).collect(),
        signal_p: signals.iter().map(|signal| signal.p).collect(),
        signal_hits: signals.iter().map(|signal| signal.hits).collect(),
        signal_devices: signals.iter().map(|signal| signal.devices).collect(),
        signal_fires: fires,
        verdict: verdict.class.as_str().to_owned(),
        severity: verdict.severity.as_str().to_owned(),
        reasons: verdict.reason_texts().collect(),
        judged_at: judged_at.as_millisecond(),
    }
}

fn evidence_row(evidence: &CohortEvidence, judged_at: Timestamp) -> CohortEvidenceRow {
    let (key, runs, ratios) = (&evidence.key, &evidence.runs, &evidence.ratios);
    let window_end = evidence.window_end.as_millisecond();
    let (groups, modes) = (evidence.statistics.mixture, evidence.statistics.modes);
    let reference = evidence.reference.as_ref();
    let reference_runs: &[u64] = reference.map_or(&[], |(_, bins)| &bins.runs);
    CohortEvidenceRow {
        place: if evidence.is_kept() { window_end } else { 0 },
        window_end,
        window_seconds: evidence.window.as_secs_f64(),
        app_id: key.model.app_id.clone(),
        environment: key.model.environment.clone(),
        model_id: key.model.model_id.clone(),
        model_version: key.model_version.clone(),
        chipset: key.chipset.clone(),
        algo: ALGO.to_owned(),
        verdict: evidence.class.as_str().to_owned(),
        severity: evidence.severity.as_str().to_owned(),
        shape_key: evidence.statistics.shape_key.clone(),
        runs: runs.runs.iter().sum(),
        p10_us: runs.p10_us,
        p50_us: runs.p50_us,
        p90_us: runs.p90_us,
        hist_first: runs.first,
        hist_runs: runs.runs.clone(),
        reference_version: reference.map_or_else(String::new, |(version, _)| version.clone()),
        reference_runs: reference_runs.iter().sum(),
        reference_p50_us: reference.and_then(|(_, bins)| bins.p50_us),
        reference_hist_first: reference.map_or(0, |(_, bins)| bins.first),
        reference_hist_runs: reference_runs.to_vec(),
        ratio_first: ratios.first,
        ratio_npu_devices: ratios.on_npu.clone(),
        ratio_cpu_devices: ratios.on_cpu.clone(),
        devices_without_past: ratios.without_past,
        mixture_slow_share: groups.map(|groups| groups.slow_share),
        mixture_fast_us: groups.map(|groups| groups.fast_us),
        mixture_slow_us: groups.map(|groups| groups.slow_us),
        mixture_separation: groups.map(|groups| groups.separation),
        mode_fast_us: modes.map(|modes| modes.fast_us),
        mode_slow_us: modes.map(|modes| modes.slow_us),
        valley_depth: modes.map(|modes| modes.depth),
        npu_share: evidence.numbers.npu_share,
        reference_npu_share: evidence.numbers.reference_npu_share,
        judged_at: judged_at.as_millisecond(),
    }
}

/// Returns the statistics without a column of their own, which are stored as signals. They have no devices, so
/// that they are never used as counts.
fn described(statistics: &WindowStatistics) -> impl Iterator<Item = SignalSummary> {
    let (modes, groups) = (statistics.modes, statistics.mixture);
    let described = [
        ("cv", statistics.cv),
        ("valley_depth", modes.map(|modes| modes.depth)),
        ("mixture_separation", groups.map(|groups| groups.separation)),
        ("mixture_slow_share", groups.map(|groups| groups.slow_share)),
    ];
    let described = described.into_iter();
    described.filter_map(|(id, value)| Some(SignalSummary::statistic(id, value?)))
}

fn incident_row(incident: &Incident, changed_at: Timestamp) -> StoredIncidentRow {
    let facts = IncidentSummary::from(incident);
    StoredIncidentRow {
        incident_id: facts.incident,
        changed_at: changed_at.as_millisecond(),
        state: facts.state.as_str().to_owned(),
        severity: match facts.state {
            State::Inactive => "none",
            _ => facts.severity.as_str(),
        }
        .to_owned(),
        verdict: facts.verdict.map_or("", VerdictClass::as_str).to_owned(),
        app_id: facts.app,
        environment: facts.environment,
        model_id: facts.model,
        model_version: facts.version,
        chipsets: facts.chipsets,
        started_at: incident.started_at.as_millisecond(),
        devices_hit: facts.devices_hit,
        devices_seen: facts.devices_seen,
        latency_ratio: facts.latency_ratio,
        cv_within: facts.cv_within,
        cv_between: facts.cv_between,
        dip: facts.dip,
        cpu_ops: facts.cpu_ops,
        cpu_macs_share: facts.cpu_macs_share,
        summary: summary(incident),
        notification: match incident.news {
            0 => String::new(),
            _ => block(&Notification::news(incident.clone())),
        },
        document: write_document(incident),
    }
}
