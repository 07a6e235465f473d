//! The fleet page: what is open, and each model by chipset.

use std::collections::{BTreeMap, HashMap, HashSet};

use epwatch_model::CohortVerdict;
use jiff::Timestamp;
use serde::Serialize;

use super::choices::{self, Choice};
use super::document::IncidentDocument;
use super::evidence::{self, PlottedEvidence};
use super::first_judged::FirstWindows;
use super::gaps::{self, WindowGap};
use super::health::{self, PartStatus, RecentReports};
use super::incidents::{self, IncidentRow, IncidentSelect};
use super::last_seen::last_seen;
use super::ledger::{self, LedgerDay};
use super::period::PlottedPeriod;
use super::progress::Progress;
use super::scope::AppScope;
use super::store::{LeftOut, ReadError, StoreReader};
use super::windows::{self, CohortName, CohortRow, Slot, by_age};
use crate::histogram::Latencies;
use crate::text::words::Tone;

/// Number of slots of a row's line.
const SLOTS: i64 = 48;

/// Number of rows of a page; the worst come first.
const MAX_ROWS: usize = 400;

/// At most this many healthy chipsets of a model have rows of their own.
pub(crate) const MAX_FINE: usize = 12;

/// From this number on, chipsets with one device each are folded.
const MIN_STRAYS: usize = 3;

/// Parameters of the page.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(crate) struct FleetQuery {
    pub(crate) app: Option<String>,
    pub(crate) environment: Option<String>,
    /// Shows only cohorts with an open incident.
    pub(crate) only_open: bool,
    /// Text to search in models' and chipsets' names.
    pub(crate) search: String,
}

/// The fleet page. Without an app nothing was judged yet.
#[derive(Debug, Default, Serialize)]
pub(crate) struct FleetPage {
    pub(crate) query: FleetQuery,
    pub(crate) choices: Vec<Choice>,
    pub(crate) app: Option<String>,
    pub(crate) environment: Option<String>,
    pub(crate) period: Option<PlottedPeriod>,
    pub(crate) open: Vec<OpenIncident>,
    pub(crate) models: Vec<ModelGroup>,
    /// Windows that are missing in the period.
    pub(crate) gaps: Vec<WindowGap>,
    /// Rows beyond the limit.
    pub(crate) rows_left_out: usize,
    /// The outcomes of the app's reports of the last days.
    pub(crate) ledger: Option<LedgerDay>,
    /// Arrivals of reports; only while nothing was judged yet.
    pub(crate) arrivals: Option<RecentReports>,
    /// States of the server's parts, which the process that serves the page reports.
    pub(crate) facts: Vec<PartStatus>,
    pub(crate) left_out: LeftOut,
}

impl FleetPage {
    /// Returns the open incidents whose notifications are sent. An incident that is a part of another one is not sent.
    pub(crate) fn told(&self) -> impl Iterator<Item = &OpenIncident> {
        self.open.iter().filter(|open| open.row.part_of.is_none())
    }

    /// Returns the open incident's verdict on a cohort's window, whose numbers people were told.
    pub(crate) fn verdict_on(&self, cohort: &CohortRow) -> Option<&CohortVerdict> {
        let its = self
            .open
            .iter()
            .filter(|open| open.row.model == cohort.model && open.row.version == cohort.version);
        let mut verdicts = its.filter_map(|open| open.document.of_chipset(&cohort.chipset));
        verdicts.find(|verdict| Some(verdict.window_end) == cohort.window_end)
    }
}

/// An open incident with the numbers of its verdict.
#[derive(Debug, Serialize)]
pub(crate) struct OpenIncident {
    #[serde(flatten)]
    pub(crate) row: IncidentRow,
    pub(crate) document: IncidentDocument,
    /// End of the last window that shows the fault; `None` if the window that was judged last does.
    pub(crate) last_seen: Option<Timestamp>,
}

/// One model with its chipsets, the worst first.
#[derive(Debug, Serialize)]
pub(crate) struct ModelGroup {
    pub(crate) model: String,
    /// The version whose first judgement is the latest.
    pub(crate) newest: String,
    pub(crate) newest_since: Option<Timestamp>,
    /// Devices of the newest version, and of all versions, in the model's last window. A device that was updated within
    /// it counts once.
    pub(crate) devices_on_newest: u64,
    pub(crate) devices: u64,
    pub(crate) rows: Vec<FleetRow>,
    /// Chipsets with one device and too little data, if there are several: names that a device made up, or rare phones.
    pub(crate) strays: Vec<FleetRow>,
    /// Healthy chipsets beyond [`MAX_FINE`].
    pub(crate) fine: Vec<FleetRow>,
}

impl ModelGroup {
    pub(crate) fn all_rows(&self) -> impl Iterator<Item = &FleetRow> {
        self.rows.iter().chain(&self.strays).chain(&self.fine)
    }
}

/// One model's version on one chipset.
#[derive(Debug, Serialize)]
pub(crate) struct FleetRow {
    #[serde(flatten)]
    pub(crate) cohort: CohortRow,
    /// The version that most of its devices ran before, else the one judged first before it on this chipset.
    pub(crate) before: Option<String>,
    /// Clean runs of the last window with any.
    pub(crate) latencies: Option<Latencies>,
    pub(crate) latencies_before: Option<Latencies>,
    pub(crate) slots: Vec<Slot>,
    pub(crate) slots_before: Vec<Slot>,
}

impl FleetRow {
    pub(crate) fn tone(&self) -> Tone {
        self.cohort.tone()
    }
}

pub(crate) async fn read(
    store: &StoreReader,
    progress: &Progress,
    query: FleetQuery,
    scope: &AppScope,
    facts: Vec<PartStatus>,
) -> Result<FleetPage, ReadError> {
    let choices = choices::choices(store, progress, scope).await?;
    let chosen = choices::chosen(&choices, query.app.as_deref(), query.environment.as_deref());
    let (Some((app, environment)), Some(until)) = (chosen, progress.judged_until) else {
        return Ok(FleetPage {
            query,
            choices,
            arrivals: Some(health::arrivals(store, scope).await?),
            facts,
            ..FleetPage::default()
        });
    };
    let of = (&*app, &*environment);
    let (cohorts, evidence, open, ledger, first) = tokio::join!(
        windows::latest(store, of, None, until),
        evidence::latest(store, of, until),
        incidents::open(store, of),
        ledger::sum(store, of),
        windows::first_judged(store, of, None, until),
    );
    let cohorts = cohorts?;
    let mut left_out = LeftOut::default();
    let open = left_out.part("incidents", open);
    let first = left_out.part("first_judged", first);
    let began = cohorts
        .iter()
        .filter_map(|cohort| cohort.first)
        .min()
        .unwrap_or(until);
    let period = PlottedPeriod::of(began, until, SLOTS);
    let (slots, gaps) = tokio::join!(
        windows::slots(store, of, None, None, period),
        gaps::read(store, window_seconds(&cohorts), period),
    );
    let series = Series {
        first,
        slots: left_out.part("medians", slots),
        evidence: left_out.part("latency", evidence),
    };
    let versions = open.iter().map(IncidentSelect::version);
    let versions = versions.collect();
    let open = open.into_iter().map(|row| {
        let document = IncidentDocument::read(&row.document);
        let row = IncidentRow::from(row);
        OpenIncident {
            last_seen: last_seen((&row, &document), &cohorts, Some(until)),
            row,
            document,
        }
    });
    let open: Vec<OpenIncident> = open.collect();
    let (models, rows_left_out) = groups(cohorts, &versions, &series, &query);
    Ok(FleetPage {
        choices,
        period: Some(period),
        gaps: left_out.part("missing windows", gaps),
        open,
        ledger: left_out.part("ledger", ledger),
        arrivals: None,
        facts,
        models,
        rows_left_out,
        left_out,
        query,
        app: Some(app),
        environment: Some(environment),
    })
}

/// Returns the length of the window that was judged last.
fn window_seconds(cohorts: &[CohortRow]) -> f64 {
    let last = cohorts.iter().max_by_key(|cohort| cohort.window_end);
    last.map_or(0.0, |cohort| cohort.window_seconds)
}

/// The drawn data of each cohort.
struct Series {
    first: FirstWindows,
    slots: HashMap<CohortName, Vec<Slot>>,
    evidence: HashMap<CohortName, PlottedEvidence>,
}

/// Groups cohorts by model. A chipset has a row for its newest version, and for each older one that is at fault. An older
/// version that no device ran in the last window is at fault only while its incident is open.
fn groups(
    cohorts: Vec<CohortRow>,
    open: &HashSet<(String, String)>,
    series: &Series,
    query: &FleetQuery,
) -> (Vec<ModelGroup>, usize) {
    let mut models: BTreeMap<String, BTreeMap<String, Vec<CohortRow>>> = BTreeMap::new();
    for cohort in cohorts {
        let chipsets = models.entry(cohort.model.clone()).or_default();
        chipsets
            .entry(cohort.chipset.clone())
            .or_default()
            .push(cohort);
    }
    let search = query.search.to_lowercase();
    let mut groups = Vec::new();
    for (model, chipsets) in models {
        let mut rows = Vec::new();
        // A device that updated to the next version is also in the last window of its earlier version.
        let last = chipsets
            .values()
            .flatten()
            .filter_map(|cohort| cohort.window_end)
            .max();
        let in_last = |cohort: &&CohortRow| cohort.window_end == last;
        let on_chipset = chipsets.values().filter_map(|cohorts| {
            let cohorts = cohorts.iter().filter(in_last);
            cohorts.map(|cohort| cohort.devices_on_chipset).max()
        });
        let devices: u64 = on_chipset.sum();
        let first = |cohort: &CohortRow| {
            let name = (
                cohort.model.clone(),
                cohort.chipset.clone(),
                cohort.version.clone(),
            );
            series.first.get(&name).copied().or(cohort.first)
        };
        let newest = chipsets
            .values()
            .flatten()
            .max_by(|a, b| by_age((&a.version, first(a)), (&b.version, first(b))));
        let newest = newest
            .map(|cohort| cohort.version.clone())
            .unwrap_or_default();
        let of_newest = chipsets
            .values()
            .flatten()
            .filter(|cohort| cohort.version == newest);
        let newest_since = of_newest.clone().filter_map(first).min();
        let on_newest = of_newest.filter(in_last).map(|cohort| cohort.devices);
        let devices_on_newest: u64 = on_newest.sum();
        for (chipset, mut cohorts) in chipsets {
            cohorts.sort_by(|a, b| by_age((&b.version, first(b)), (&a.version, first(a))));
            let names: Vec<String> = cohorts
                .iter()
                .map(|cohort| cohort.version.clone())
                .collect();
            for (at, cohort) in cohorts.into_iter().enumerate() {
                let key = (cohort.model.clone(), cohort.version.clone());
                let lasts = at == 0 || in_last(&&cohort) || open.contains(&key);
                let is_bad = cohort.is_finding() && lasts;
                let is_found = search.is_empty()
                    || model.to_lowercase().contains(&search)
                    || chipset.to_lowercase().contains(&search);
                if (at == 0 || is_bad) && is_found && (is_bad || !query.only_open) {
                    let follows = Some(&cohort.follows).filter(|name| !name.is_empty());
                    let before = follows.or(names.get(at + 1)).cloned();
                    rows.push(row(cohort, before, series));
                }
            }
        }
        if rows.is_empty() {
            continue;
        }
        rows.sort_by(|a, b| {
            let key = |row: &FleetRow| {
                (
                    row.tone(),
                    u64::MAX - row.cohort.hit,
                    u64::MAX - row.cohort.devices,
                )
            };
            key(a).cmp(&key(b))
        });
        let is_stray = |row: &FleetRow| row.tone() == Tone::Quiet && row.cohort.devices <= 1;
        let n_strays = rows.iter().filter(|row| is_stray(row)).count();
        let folds = n_strays >= MIN_STRAYS && query.search.is_empty();
        let (strays, mut rows): (Vec<FleetRow>, Vec<FleetRow>) =
            rows.into_iter().partition(|row| folds && is_stray(row));
        let n_loud = rows.iter().filter(|row| row.tone() != Tone::Fine).count();
        let fine = match rows.len() - n_loud > MAX_FINE {
            true => rows.split_off(n_loud),
            false => Vec::new(),
        };
        groups.push(ModelGroup {
            devices,
            devices_on_newest,
            model,
            newest,
            newest_since,
            rows,
            strays,
            fine,
        });
    }
    groups.sort_by_key(|group| {
        let worst = group.all_rows().map(FleetRow::tone).min();
        (worst.unwrap_or(Tone::Fine), u64::MAX - group.devices)
    });
    let mut left = MAX_ROWS;
    let mut left_out = 0;
    for group in &mut groups {
        for rows in [&mut group.rows, &mut group.strays, &mut group.fine] {
            left_out += rows.len().saturating_sub(left);
            rows.truncate(left);
            left -= rows.len();
        }
    }
    groups.retain(|group| group.all_rows().next().is_some());
    (groups, left_out)
}

fn row(cohort: CohortRow, before: Option<String>, series: &Series) -> FleetRow {
    let name = |version: &str| {
        (
            cohort.model.clone(),
            cohort.chipset.clone(),
            version.to_owned(),
        )
    };
    let now_name = name(&cohort.version);
    let before_name = before.as_deref().map(name);
    let before_of = before_name.as_ref();
    let latencies = |name: Option<&CohortName>| series.evidence.get(name?)?.latencies.clone();
    FleetRow {
        latencies: latencies(Some(&now_name)),
        latencies_before: latencies(before_of),
        slots: series.slots.get(&now_name).cloned().unwrap_or_default(),
        slots_before: before_of
            .and_then(|name| series.slots.get(name).cloned())
            .unwrap_or_default(),
        cohort,
        before,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cohort(version: &str, end: i64, devices: u64, devices_on_chipset: u64) -> CohortRow {
        CohortRow {
            model: "m".to_owned(),
            version: version.to_owned(),
            chipset: "A".to_owned(),
            first: Timestamp::from_second(end - 60).ok(),
            window_end: Timestamp::from_second(end).ok(),
            devices,
            devices_on_chipset,
            ..CohortRow::default()
        }
    }

    /// One device made up thirteen names of chipsets.
    #[test]
    fn chipsets_with_one_device_each_are_folded() {
        let series = Series {
            first: FirstWindows::default(),
            slots: HashMap::new(),
            evidence: HashMap::new(),
        };
        let mut fine = cohort("1", 1_000, 100, 100);
        "healthy".clone_into(&mut fine.verdict);
        let stray = |n: usize| CohortRow {
            chipset: format!("x{n}"),
            verdict: "not_enough_data".to_owned(),
            ..cohort("1", 1_000, 1, 1)
        };
        let folded = |strays: usize, search: &str| {
            let cohorts = (0..strays).map(stray).chain([fine.clone()]).collect();
            let query = FleetQuery {
                search: search.to_owned(),
                ..FleetQuery::default()
            };
            let (groups, _) = groups(cohorts, &HashSet::new(), &series, &query);
            (groups[0].rows.len(), groups[0].strays.len())
        };
        assert_eq!(folded(13, ""), (1, 13));
        assert_eq!(folded(2, ""), (3, 0));
        assert_eq!(folded(13, "x1"), (4, 0));
    }

    /// One device sent 2.0.x-test for an hour between the roll-outs.
    #[test]
    fn the_version_before_is_the_one_that_most_devices_ran() {
        let series = Series {
            first: FirstWindows::default(),
            slots: HashMap::new(),
            evidence: HashMap::new(),
        };
        let mut newest = cohort("2.0.1", 3_000, 30, 30);
        newest.follows = "2.0.0".to_owned();
        let cohorts = vec![
            cohort("2.0.0", 1_000, 30, 30),
            cohort("2.0.x-test", 2_000, 1, 31),
            newest,
        ];
        let (groups, _) = groups(cohorts, &HashSet::new(), &series, &FleetQuery::default());
        let row = &groups[0].rows[0];
        assert_eq!(row.cohort.version, "2.0.1");
        assert_eq!(row.before.as_deref(), Some("2.0.0"));
    }

    /// Checks that nothing looks bad after a fix, although the last windows of older versions had a fault.
    #[test]
    fn a_fault_that_all_devices_left_is_no_row_once_its_incident_is_over() {
        let series = Series {
            first: FirstWindows::default(),
            slots: HashMap::new(),
            evidence: HashMap::new(),
        };
        let shown = |fault_ends: i64, open: &[&str]| {
            let fault = CohortRow {
                verdict: "partial_fallback".to_owned(),
                severity: "page".to_owned(),
                ..cohort("2.0.0", fault_ends, 30, 30)
            };
            let mut fixed = cohort("2.0.1", 2_000, 30, 30);
            "healthy".clone_into(&mut fixed.verdict);
            let open = open
                .iter()
                .map(|version| ("m".to_owned(), (*version).to_owned()));
            let query = FleetQuery::default();
            let (groups, _) = groups(vec![fault, fixed], &open.collect(), &series, &query);
            let rows = groups[0].all_rows();
            let versions = rows.map(|row| row.cohort.version.clone());
            versions.collect::<Vec<_>>()
        };
        assert_eq!(shown(1_000, &[]), ["2.0.1"]);
        assert_eq!(shown(1_000, &["2.0.0"]), ["2.0.0", "2.0.1"]);
        assert_eq!(shown(2_000, &[]), ["2.0.0", "2.0.1"]);
    }

    /// Version 1 has no device any more: the devices of its last window are on version 2.
    #[test]
    fn a_device_that_took_the_next_version_counts_once() {
        let series = Series {
            first: FirstWindows::default(),
            slots: HashMap::new(),
            evidence: HashMap::new(),
        };
        let cohorts = vec![cohort("1", 1_000, 100, 100), cohort("2", 2_000, 100, 100)];
        let (groups, left_out) = groups(cohorts, &HashSet::new(), &series, &FleetQuery::default());
        let of = &groups[0];
        assert_eq!((of.devices_on_newest, of.devices, left_out), (100, 100, 0));
        let both = vec![cohort("1", 2_000, 70, 100), cohort("2", 2_000, 60, 100)];
        let (groups, _) = super::groups(both, &HashSet::new(), &series, &FleetQuery::default());
        assert_eq!((groups[0].devices_on_newest, groups[0].devices), (60, 100));
    }
}
