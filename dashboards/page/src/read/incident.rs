//! The page of one incident: what to do, how sure it is, how it grew.

use std::collections::HashMap;

use clickhouse::Row;
use epwatch_model::{CohortVerdict, Incident, VerdictClass};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::changes::{self, Change};
use super::document::IncidentDocument;
use super::evidence::{self, PlottedEvidence};
use super::gaps::{self, WindowGap};
use super::golden::{self, GoldenRow};
use super::history::{self, IncidentHistory};
use super::incidents::{IncidentRow, IncidentSelect, select};
use super::last_seen::last_seen;
use super::orders::{self, OrderRow};
use super::period::PlottedPeriod;
use super::progress::Progress;
use super::scope::AppScope;
use super::sessions::{PlacementRow, SessionsAsked};
use super::store::{LeftOut, ReadError, StoreReader};
use super::windows::{self, CohortRow, SeenIn, Slot, Slower};

/// Number of slots of the growth.
const SLOTS: i64 = 120;

/// The page of one incident.
#[derive(Debug, Serialize)]
pub(crate) struct IncidentPage {
    #[serde(flatten)]
    pub(crate) row: IncidentRow,
    pub(crate) document: IncidentDocument,
    /// Reasons of the worst cohort's verdict, as sentences.
    pub(crate) reasons: Vec<String>,
    pub(crate) period: Option<PlottedPeriod>,
    /// The worst cohort's windows.
    pub(crate) slots: Vec<Slot>,
    /// Windows that are missing in the period.
    pub(crate) gaps: Vec<WindowGap>,
    /// Changes on the worst cohort's chipset since shortly before the incident.
    pub(crate) changes: Vec<Change>,
    /// Windows of the worst cohort that were at fault in the period.
    pub(crate) seen_in: Option<SeenIn>,
    /// End of the last window that shows the fault of an open incident; `None` if the window that was judged last does.
    pub(crate) last_seen: Option<Timestamp>,
    pub(crate) slower: Option<Slower>,
    /// The evidence of the worst cohort's verdict. Its reference comes from the last window that has one.
    pub(crate) evidence: Option<PlottedEvidence>,
    /// Golden outputs of the version by chipset, if the incident is about outputs.
    pub(crate) golden: Vec<GoldenRow>,
    /// What the version's sessions on the worst cohort's chipset asked for, in the commonest placement.
    pub(crate) asked_for: Option<String>,
    /// The same version on chipsets that are fine.
    pub(crate) fine: Vec<String>,
    /// Orders of people, the oldest first.
    pub(crate) orders: Vec<OrderRow>,
    pub(crate) history: IncidentHistory,
    pub(crate) left_out: LeftOut,
}

impl IncidentPage {
    /// Whether its fault is past: the incident is over, or the window that was judged last does not show it.
    pub(crate) fn is_past(&self) -> bool {
        let is_over = self.row.state().is_some_and(|state| !state.is_open());
        is_over || self.last_seen.is_some()
    }

    /// Returns the end of the window that its reasons are about, if the fault is past.
    pub(crate) fn thought_until(&self) -> Option<Timestamp> {
        self.lead()
            .filter(|_| self.is_past())
            .map(|lead| lead.window_end)
    }

    /// Returns the verdict on the worst cohort.
    pub(crate) fn lead(&self) -> Option<&CohortVerdict> {
        self.document.lead()
    }

    /// Returns the number of the last order that the detector has obeyed. `None` once it reads no more orders of the
    /// incident, because the incident is over and nothing of it is held.
    pub(crate) fn last_obeyed(&self) -> Option<u64> {
        let orders = self.document.orders();
        (self.row.is_open() || orders.hold.is_some()).then_some(orders.last)
    }

    /// Returns the lines of the incident's next step, each a step. Names of devices in it have neither line breaks nor
    /// backticks.
    pub(crate) fn steps(&self) -> Vec<String> {
        let incident = self.document.incident.as_ref();
        let next_step = incident.map(Incident::next_step).unwrap_or_default();
        next_step.lines().map(str::to_owned).collect()
    }
}

const ONE: &str = select!("i.document", "WHERE i.incident_id = ? LIMIT 1");

#[derive(Debug, Default, Row, Deserialize)]
struct ReasonsRow {
    reasons: Vec<String>,
    slower: u64,
    compared: u64,
}

/// For an absent signal, the numbers of devices are 0.
const REASONS: &str = "
SELECT w.reasons AS reasons, w.signal_hits[indexOf(w.signal_id, ?) AS at] AS slower, w.signal_devices[at] AS compared
FROM cohort_windows_v1 AS w
WHERE w.app_id = ? AND w.environment = ? AND w.model_id = ? AND w.model_version = ? AND w.chipset = ?
  AND w.firmware = ? AND w.window_end = fromUnixTimestamp64Milli(?)
LIMIT 1";

/// Returns an incident and its document; `None` for an unknown id.
pub(crate) async fn one(
    store: &StoreReader,
    id: &str,
) -> Result<Option<(IncidentRow, IncidentDocument)>, ReadError> {
    let rows: Vec<IncidentSelect> = store.rows(ONE, |query| query.bind(id)).await?;
    Ok(rows.into_iter().next().map(|row| {
        let document = IncidentDocument::read(&row.document);
        (IncidentRow::from(row), document)
    }))
}

/// Returns the page; `None` for an unknown id, or one of an app out of scope.
pub(crate) async fn read(
    store: &StoreReader,
    progress: &Progress,
    id: &str,
    scope: &AppScope,
) -> Result<Option<IncidentPage>, ReadError> {
    let Some((row, document)) = one(store, id).await? else {
        return Ok(None);
    };
    if !scope.has(&row.app) {
        return Ok(None);
    }
    let mut left_out = LeftOut::default();
    let of = (&*row.app, &*row.environment);
    let model = Some(&*row.model);
    let lead = document.lead().cloned();
    let lead = lead.as_ref();
    let end = row.is_open().then_some(progress.judged_until).flatten();
    let last = lead.map(|lead| lead.window_end);
    let end = end.or(row.changed_at).or(last);
    let began = document.cohorts().iter().map(|cohort| cohort.began);
    let began = began.min().or(row.started_at);
    let period = end.map(|end| PlottedPeriod::of(began.unwrap_or(end), end, SLOTS));
    let chipset = lead.map_or("", |lead| &*lead.key.chipset);
    let (orders, history, reasons, golden, slots, gaps, evidence, latest, sessions) = tokio::join!(
        orders::of_incident(store, id),
        history::read(store, id),
        reasons(store, &row, lead),
        golden::of_incident(store, &row, lead),
        async {
            match period {
                Some(period) => windows::slots(store, of, model, Some(chipset), period).await,
                None => Ok(HashMap::new()),
            }
        },
        async {
            match period.zip(lead) {
                Some((period, lead)) => gaps::read(store, lead.window.as_secs_f64(), period).await,
                None => Ok(Vec::new()),
            }
        },
        async {
            match lead {
                Some(lead) => {
                    let cohort = (&*row.model, chipset, &*row.version);
                    let (follows, end) = (lead.follows.as_deref(), lead.window_end);
                    evidence::of_window(store, of, cohort, follows, end).await
                }
                None => Ok(None),
            }
        },
        async {
            match progress.judged_until.filter(|_| row.is_open()) {
                Some(until) => windows::latest(store, of, model, until).await,
                None => Ok(Vec::new()),
            }
        },
        async {
            let period = period?;
            let asked = SessionsAsked {
                app: &row.app,
                environment: &row.environment,
                model: &row.model,
                chipset,
                from: changes::since(period.from, began),
                to: period.to,
                placed_since: period.from,
            };
            Some(changes::read(store, asked).await)
        },
    );
    let name = (row.model.clone(), chipset.to_owned(), row.version.clone());
    let orders = left_out.part("orders", orders);
    let history = left_out.part("history", history);
    let judged = left_out.part("reasons", reasons);
    let golden = left_out.part("golden outputs", golden);
    let slots = left_out.part("growth", slots).remove(&name);
    let slots = slots.unwrap_or_default();
    let gaps = left_out.part("missing windows", gaps);
    let (changes, placements) = match sessions {
        Some(read) => (read.changes, read.placements.unwrap_or_default()),
        None => (Ok(Vec::new()), HashMap::new()),
    };
    let placement = placements.get(&row.version);
    let asked_for = placement.and_then(PlacementRow::asked_for);
    let changes = left_out.part("changes", changes);
    let evidence = left_out.part("evidence", evidence);
    let latest = left_out.part("other chipsets", latest);
    let is_fine = |cohort: &&CohortRow| {
        cohort.version == row.version && cohort.class() == Some(VerdictClass::Healthy)
    };
    let fine = latest.iter().filter(is_fine);
    let fine = fine.map(|cohort| cohort.chipset.clone()).collect();
    let is_known = row.is_open() && !left_out.has("other chipsets");
    let judged_until = progress.judged_until.filter(|_| is_known);
    Ok(Some(IncidentPage {
        last_seen: last_seen((&row, &document), &latest, judged_until),
        row,
        document,
        slower: Slower::of(judged.slower, judged.compared),
        reasons: judged.reasons,
        seen_in: period.and_then(|period| SeenIn::of(&slots, period, began)),
        period,
        slots,
        gaps,
        changes,
        evidence,
        golden,
        asked_for,
        fine,
        orders,
        history,
        left_out,
    }))
}

async fn reasons(
    store: &StoreReader,
    row: &IncidentRow,
    lead: Option<&CohortVerdict>,
) -> Result<ReasonsRow, ReadError> {
    let Some(lead) = lead else {
        return Ok(ReasonsRow::default());
    };
    let rows: Vec<ReasonsRow> = store
        .rows(REASONS, |query| {
            let query = query.bind(Slower::SIGNAL.to_string()).bind(&row.app);
            let query = query.bind(&row.environment).bind(&row.model);
            let query = query.bind(&row.version).bind(&lead.key.chipset);
            query
                .bind(lead.key.firmware.as_deref().unwrap_or_default())
                .bind(lead.window_end.as_millisecond())
        })
        .await?;
    Ok(rows.into_iter().next().unwrap_or_default())
}

#[cfg(test)]
pub(crate) mod tests {
    use std::time::Duration;

    use super::*;
    use epwatch_model::{Cause, CohortKey, IncidentCohort, IncidentKey, ModelKey, Severity, State};

    /// Returns an incident with a partial fallback on one chipset.
    fn incident(next_step: &str) -> Incident {
        let model = ModelKey::of(("camera", "production"), "scenes");
        let end = Timestamp::from_second(1_800_000_000).unwrap();
        let window = Duration::from_secs(86_400);
        let key = CohortKey {
            model: model.clone(),
            model_version: "2".to_owned(),
            chipset: "SM8635".to_owned(),
            firmware: None,
        };
        let class = VerdictClass::PartialFallback;
        let verdict = CohortVerdict {
            next_step: next_step.to_owned(),
            ..CohortVerdict::new(key, (end, window), class, Severity::Page)
        };
        let key = IncidentKey {
            model,
            model_version: "2".to_owned(),
            cause: Cause::Slower,
        };
        Incident {
            cohorts: vec![IncidentCohort::new(&verdict)],
            ..Incident::begin(key, (end, window), end)
        }
    }

    /// Returns an open page about a partial fallback, whose worst cohort has this next step.
    pub(crate) fn fallback(next_step: &str) -> IncidentPage {
        let document = IncidentDocument {
            incident: Some(incident(next_step)),
            is_of_another_version: false,
        };
        let row = IncidentRow {
            incident: "i-1".to_owned(),
            state: "firing".to_owned(),
            severity: "page".to_owned(),
            verdict: "partial_fallback".to_owned(),
            app: "camera".to_owned(),
            environment: "production".to_owned(),
            model: "scenes".to_owned(),
            version: "2".to_owned(),
            chipsets: vec!["SM8635".to_owned()],
            started_at: Timestamp::from_second(1_800_000_000).ok(),
            changed_at: None,
            devices_hit: 134,
            devices_seen: 140,
            latency_ratio: Some(4.0),
            cpu_ops: Vec::new(),
            cpu_macs_share: Some(0.26),
            acknowledged_by: None,
            muted_until: None,
            part_of: None,
        };
        IncidentPage {
            row,
            document,
            reasons: Vec::new(),
            period: None,
            slots: Vec::new(),
            gaps: Vec::new(),
            changes: Vec::new(),
            seen_in: Some(SeenIn {
                windows: 110,
                is_last_day: false,
            }),
            last_seen: None,
            slower: None,
            evidence: None,
            golden: Vec::new(),
            asked_for: None,
            fine: Vec::new(),
            orders: Vec::new(),
            history: IncidentHistory::default(),
            left_out: LeftOut::default(),
        }
    }

    /// Returns the page once the fault is repaired and one window is clean.
    pub(crate) fn past(next_step: &str) -> IncidentPage {
        let mut page = fallback(next_step);
        let incident = page.document.incident.as_mut().unwrap();
        incident.state = State::Firing;
        let cohort = &mut incident.cohorts[0];
        cohort.confirmed = Severity::Page;
        cohort.clean_windows = 1;
        page.last_seen = Some(cohort.verdict.window_end);
        page.reasons = vec!["all devices are slower".to_owned()];
        page
    }

    /// Returns the page of the same incident once it is over.
    pub(crate) fn over(next_step: &str) -> IncidentPage {
        let mut page = past(next_step);
        page.document.incident.as_mut().unwrap().state = State::Resolved;
        page.row.state = "resolved".to_owned();
        page.last_seen = None;
        page
    }

    #[test]
    fn reasons_of_a_past_fault_have_their_window() {
        assert_eq!(fallback("").thought_until(), None);
        let page = past("");
        assert_eq!(page.thought_until(), page.last_seen);
        assert!(over("").thought_until().is_some());
    }

    #[test]
    fn an_incident_without_a_next_step_or_cohort_has_no_steps() {
        let mut page = fallback("On call: wait.\nThe model's owner: look.");
        assert_eq!(page.steps().len(), 2);
        assert_eq!(fallback("").steps().len(), 0);
        page.document.incident.as_mut().unwrap().cohorts.clear();
        assert_eq!(page.steps().len(), 0);
    }
}
