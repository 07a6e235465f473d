//! The cohort page: one model's version on one chipset, against the version before.

use std::collections::{BTreeMap, HashMap};

use clickhouse::Row;
use serde::{Deserialize, Serialize};

use super::changes::{self, Change};
use super::document::IncidentDocument;
use super::evidence::{self, PlottedEvidence};
use super::first_judged::FirstWindows;
use super::gaps::{self, WindowGap};
use super::incidents::{self, IncidentRow};
use super::period::PlottedPeriod;
use super::progress::Progress;
use super::sessions::{PlacementRow, SessionsAsked};
use super::store::{LeftOut, ReadError, StoreReader};
use super::windows::{self, CohortName, CohortRow, Slot, Slower, by_age};
use crate::histogram::Latencies;

/// Number of slots of the timeline.
const SLOTS: i64 = 120;

/// The cohort that was asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct CohortQuery {
    pub(crate) app: String,
    pub(crate) environment: String,
    pub(crate) model: String,
    pub(crate) version: String,
    pub(crate) chipset: String,
}

/// One version on one chipset next to the version before: verdict, latencies, placement.
#[derive(Debug, Serialize)]
pub(crate) struct CohortPage {
    pub(crate) query: CohortQuery,
    pub(crate) period: PlottedPeriod,
    pub(crate) cohort: CohortRow,
    pub(crate) before: Option<CohortRow>,
    /// The same version on other chipsets: the control group.
    pub(crate) others: Vec<CohortRow>,
    pub(crate) incident: Option<IncidentRow>,
    /// The incident's document, whose numbers the page's sentences repeat.
    pub(crate) document: IncidentDocument,
    /// The evidence of the latest verdict.
    pub(crate) evidence: Option<PlottedEvidence>,
    pub(crate) slower: Option<Slower>,
    pub(crate) latencies_before: Option<Latencies>,
    /// The evidence of `others`, by chipset.
    pub(crate) controls: BTreeMap<String, PlottedEvidence>,
    pub(crate) placement: Option<PlacementRow>,
    pub(crate) placement_before: Option<PlacementRow>,
    pub(crate) cpu_nodes: Vec<CpuNodeRow>,
    /// Whether there are more nodes than `cpu_nodes` lists.
    pub(crate) cpu_nodes_cut: bool,
    pub(crate) slots: Vec<Slot>,
    pub(crate) slots_before: Vec<Slot>,
    /// Windows that are missing in the period.
    pub(crate) gaps: Vec<WindowGap>,
    /// Changes in the period, or since shortly before the incident.
    pub(crate) changes: Vec<Change>,
    pub(crate) left_out: LeftOut,
}

/// A node that a placement leaves on the CPU.
#[derive(Debug, Clone, PartialEq, Row, Serialize, Deserialize)]
pub(crate) struct CpuNodeRow {
    pub(crate) name: String,
    pub(crate) op_type: String,
    pub(crate) reason: String,
    pub(crate) benign: bool,
    pub(crate) macs_share: Option<f32>,
}

const CPU_NODES: &str = "
SELECT name, toString(op) AS op_type, toString(why) AS reason, is_benign AS benign, macs AS macs_share
FROM placements_v1
ARRAY JOIN cpu_node_name AS name, cpu_node_op_type AS op, cpu_node_reason AS why, cpu_node_benign AS is_benign,
    cpu_node_macs_share AS macs
WHERE app_id = ? AND environment = ? AND model_id = ? AND model_version = ? AND fingerprint_exact = ?
  AND fingerprint_algorithm = ?
ORDER BY benign, macs_share DESC, op_type, name
LIMIT 101";

/// At most this many nodes on the CPU are listed, the costliest first.
pub(crate) const MOST_CPU_NODES: usize = 100;

/// Returns the page; `None` if the cohort was not judged in the last day.
pub(crate) async fn read(
    store: &StoreReader,
    progress: &Progress,
    query: CohortQuery,
) -> Result<Option<CohortPage>, ReadError> {
    let Some(until) = progress.judged_until else {
        return Ok(None);
    };
    let of = (&*query.app, &*query.environment);
    let name = (&*query.model, &*query.chipset, &*query.version);
    let (all, evidence, open) = tokio::join!(
        windows::latest_with_windows(store, of, (name.0, name.1), until),
        evidence::of_cohort(store, of, name, until),
        incidents::open(store, of),
    );
    let (all, mut windows) = all?;
    let is_it = |row: &CohortRow| row.chipset == query.chipset && row.version == query.version;
    let Some(cohort) = all.iter().find(|row| is_it(row)).cloned() else {
        return Ok(None);
    };
    let mut left_out = LeftOut::default();
    let open = left_out.part("incidents", open);
    let incident = open.into_iter().find_map(|row| {
        let document = IncidentDocument::read(&row.document);
        let row = IncidentRow::from(row);
        let is_its = row.model == query.model && row.version == query.version;
        (is_its && row.chipsets.contains(&query.chipset)).then_some((row, document))
    });
    let (incident, document) =
        incident.map_or_else(Default::default, |(row, document)| (Some(row), document));
    let told = document.of_chipset(&query.chipset);
    let told = told.and_then(|verdict| verdict.follows.as_deref());
    let follows = told.or(Some(&*cohort.follows).filter(|name| !name.is_empty()));
    let is_other = |row: &&CohortRow| row.chipset == query.chipset && row.version != query.version;
    // Only then the ages of versions decide.
    let first = match follows.is_none() && all.iter().any(|row| is_other(&row)) {
        true => windows::first_judged(store, of, Some(&query.model), until).await,
        false => Ok(FirstWindows::default()),
    };
    let first = left_out.part("first_judged", first);
    let before = before(&cohort, &all, &first, follows);
    let others = all
        .iter()
        .filter(|row| row.version == query.version && row.chipset != query.chipset);
    let others: Vec<_> = others.take(12).cloned().collect();
    let both = [Some(&cohort), before.as_ref()].into_iter().flatten();
    let began = both.filter_map(|row| row.first).min().unwrap_or(until);
    let period = PlottedPeriod::of(began, until, SLOTS);
    let version_before = before.as_ref().map(|row| row.version.clone());
    let began = incident.as_ref().and_then(|incident| incident.started_at);
    let changes = SessionsAsked {
        app: &query.app,
        environment: &query.environment,
        model: &query.model,
        chipset: &query.chipset,
        from: changes::since(period.from, began),
        to: until,
        placed_since: period.from,
    };
    let (gaps, read) = tokio::join!(
        gaps::read(store, cohort.window_seconds, period),
        changes::read(store, changes),
    );
    let gaps = left_out.part("missing windows", gaps);
    let changes = left_out.part("changes", read.changes);
    let mut evidence = left_out.part("latency", evidence);
    let name = |version: &str| {
        (
            query.model.clone(),
            query.chipset.clone(),
            version.to_owned(),
        )
    };
    let mut placements = left_out.part("placement", read.placements);
    let placement = placements.remove(&query.version);
    let mut cpu_nodes = match &placement {
        Some(placement) => left_out.part("cpu_nodes", cpu_nodes(store, &query, placement).await),
        None => Vec::new(),
    };
    let cpu_nodes_cut = cpu_nodes.len() > MOST_CPU_NODES;
    cpu_nodes.truncate(MOST_CPU_NODES);
    let before_name = version_before.as_deref().map(name);
    let its_own = evidence.remove(&name(&query.version));
    let reference = its_own.as_ref().and_then(|own| own.reference.as_ref());
    let in_window =
        reference.filter(|reference| Some(&reference.version) == version_before.as_ref());
    // If no device ran the version before in this window, its own last window is shown instead.
    let latencies_before = match (in_window, &before_name) {
        (Some(reference), _) => Some(reference.latencies.clone()),
        (None, Some(name)) => evidence.remove(name).and_then(|last| last.latencies),
        (None, None) => None,
    };
    let controls = others.iter().filter_map(|row| {
        let name = (row.model.clone(), row.chipset.clone(), row.version.clone());
        Some((row.chipset.clone(), evidence.remove(&name)?))
    });
    let controls = controls.collect();
    Ok(Some(CohortPage {
        period,
        others,
        incident,
        document,
        evidence: its_own,
        slower: cohort.slower(),
        latencies_before,
        controls,
        placement,
        placement_before: version_before.and_then(|version| placements.remove(&version)),
        cpu_nodes,
        cpu_nodes_cut,
        slots: windows.slots(&name(&query.version), period),
        slots_before: before_name.map_or_else(Vec::new, |name| windows.slots(&name, period)),
        gaps,
        changes,
        left_out,
        cohort,
        before,
        query,
    }))
}

/// Returns the version before the cohort's version on its chipset. This is the version that the verdict names, even if
/// no device ran it in the last day. If the verdict names none, it is the newest version that was first judged before
/// the cohort's version.
fn before(
    cohort: &CohortRow,
    all: &[CohortRow],
    first: &HashMap<CohortName, jiff::Timestamp>,
    follows: Option<&str>,
) -> Option<CohortRow> {
    let age = |row: &CohortRow| {
        let name = (row.model.clone(), row.chipset.clone(), row.version.clone());
        first.get(&name).copied().or(row.first)
    };
    let same_chipset = || {
        let rows = all.iter();
        rows.filter(|row| row.chipset == cohort.chipset && row.version != cohort.version)
    };
    let named = same_chipset().find(|row| follows == Some(&*row.version));
    let older = same_chipset()
        .filter(|row| by_age((&row.version, age(row)), (&cohort.version, age(cohort))).is_lt())
        .max_by(|a, b| by_age((&a.version, age(a)), (&b.version, age(b))));
    let gone = follows
        .filter(|_| named.is_none())
        .map(|version| CohortRow {
            model: cohort.model.clone(),
            version: version.to_owned(),
            chipset: cohort.chipset.clone(),
            ..CohortRow::default()
        });
    named.cloned().or(gone).or(older.cloned())
}

async fn cpu_nodes(
    store: &StoreReader,
    query: &CohortQuery,
    placement: &PlacementRow,
) -> Result<Vec<CpuNodeRow>, ReadError> {
    store
        .rows(CPU_NODES, |sql| {
            let sql = sql
                .bind(&query.app)
                .bind(&query.environment)
                .bind(&query.model);
            sql.bind(&query.version)
                .bind(placement.fingerprint)
                .bind(placement.algorithm)
        })
        .await
}
