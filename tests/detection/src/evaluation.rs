//! Compares the detector's verdicts and incidents of some families with the truth about them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::labelled::{CohortLabel, Family, FamilySpec, FaultKind, Truth};
use epwatch_detector::DetectorConfig;
use epwatch_detector::read::Source;
use epwatch_detector::read::recorded::Intake;
use epwatch_detector::replay::{Line, ReplayOptions, replay, to_json};
use epwatch_model::summary::{IncidentSummary, VerdictSummary};
use epwatch_model::{Severity, State};
use epwatch_server::Period;

use crate::outcome::{FaultOutcome, Outcome};
use crate::senders::Keys;
use crate::textbook_rules::{Answers, RULES, TextbookRules};

/// 2026-01-01.
pub(crate) const START_MS: i64 = 1_767_225_600_000;
pub(crate) const DAY_MS: i64 = 86_400_000;

/// A cohort by app, model, version and chipset.
type Cohort = (String, String, String, String);

/// Families that are evaluated together, their labels, and their figures so far.
#[derive(Debug, Default)]
struct Fleet {
    labels: BTreeMap<Cohort, CohortLabel>,
    /// The app's family, and the end of the first window after the change.
    apps: BTreeMap<String, (FamilySpec, i64)>,
    /// Answers of the textbook rules by cohort and by end of the window, in milliseconds since 1970.
    textbook: BTreeMap<(Cohort, i64), Answers>,
    faults: BTreeMap<Cohort, FaultOutcome>,
    /// Incidents and chipsets that were counted, with their severity.
    counted: BTreeSet<(String, String, bool)>,
}

/// Evaluates families as one fleet.
pub(crate) async fn evaluate(
    scenario: &str,
    specs: &[FamilySpec],
    (keys, verbose): (Keys, bool),
) -> anyhow::Result<Outcome> {
    let mut outcome = Outcome {
        scenario: scenario.to_owned(),
        ..Outcome::default()
    };
    let mut intake = Intake::new(Duration::from_secs(3_600));
    let mut fleet = Fleet::default();
    let began = Instant::now();
    for spec in specs {
        fleet.add(Family::new(spec.clone(), START_MS), keys, &mut intake);
    }
    outcome.seconds_drawing = began.elapsed().as_secs_f64();
    let began = Instant::now();
    let (recording, summary) = intake.finish()?;
    outcome.reports = summary.reports;
    let options = ReplayOptions {
        config: DetectorConfig {
            step: Period(Duration::from_secs(86_400)),
            ..DetectorConfig::default()
        },
        from: None,
        to: None,
        all: true,
        modes: false,
    };
    let mut lines = Vec::new();
    let source = Source::recorded(Arc::new(recording), 2_000_000);
    let mut keep = |line: Line| {
        lines.push(line);
        Ok(())
    };
    replay(source, &options, &mut keep).await?;
    outcome.seconds_replaying = began.elapsed().as_secs_f64();
    for line in &lines {
        let is_wrong = match line {
            Line::Verdict(verdict) if verdict.firmware.is_empty() => {
                fleet.verdict(verdict, &mut outcome)?
            }
            Line::Incident(incident) if incident.incident.state == State::Firing => {
                fleet.fires(&incident.incident, &incident.window_end, &mut outcome)?
            }
            _ => false,
        };
        if verbose && is_wrong {
            eprint(line, &fleet);
        }
    }
    if verbose {
        let missed = lines.iter().filter(|line| fleet.is_missed(line));
        missed.for_each(|line| eprint(line, &fleet));
    }
    outcome.faults = fleet.faults.into_values().collect();
    Ok(outcome)
}

impl Fleet {
    fn add(&mut self, family: Family, keys: Keys, intake: &mut Intake) {
        let app = family.app_id();
        let mut textbook = TextbookRules::default();
        for window in 0..family.n_windows() {
            family.each_report(window, |report| {
                textbook.add(&report);
                let at = (app.as_str(), "production");
                let mark = keys.mark(report.report.key.installation);
                intake.add_marked(report.received_ms, at, &report.report, &report.sent, mark);
            });
            let end = START_MS + i64::from(window + 1) * DAY_MS;
            let fired = textbook.end_window(end >= family.change_from_ms());
            for ((model, version, chipset), fired) in fired {
                let cohort = (app.clone(), model, version, chipset);
                self.textbook.insert((cohort, end), fired);
            }
        }
        let spec = family.spec();
        for label in family.labels() {
            let cohort = (
                label.app.clone(),
                label.model.clone(),
                label.version.clone(),
                label.chipset.clone(),
            );
            if label.is_fault {
                self.faults
                    .insert(cohort.clone(), fault_outcome(spec, &label));
            }
            self.labels.insert(cohort, label);
        }
        self.apps
            .insert(app, (spec.clone(), family.change_from_ms()));
    }

    /// Whether the line is a verdict on a fault of 2x or more that never paged.
    fn is_missed(&self, line: &Line) -> bool {
        let Line::Verdict(verdict) = line else {
            return false;
        };
        let cohort = (
            verdict.app.clone(),
            verdict.model.clone(),
            verdict.version.clone(),
            verdict.chipset.clone(),
        );
        let fault = self.faults.get(&cohort);
        fault.is_some_and(|fault| fault.paged_in.is_none() && fault.factor >= 2.0)
    }

    /// Counts a verdict; returns whether it is wrong.
    fn verdict(&mut self, verdict: &VerdictSummary, outcome: &mut Outcome) -> anyhow::Result<bool> {
        let cohort = (
            verdict.app.clone(),
            verdict.model.clone(),
            verdict.version.clone(),
            verdict.chipset.clone(),
        );
        let (Some(label), Some((spec, from))) =
            (self.labels.get(&cohort), self.apps.get(&verdict.app))
        else {
            return Ok(false);
        };
        let end = milliseconds(&verdict.window_end)?;
        let is_after = end >= *from;
        let truth = truth(spec, label);
        let is_page = verdict.severity == Severity::Page;
        if !label.is_fault {
            let healthy = outcome.healthy.entry(truth.clone()).or_default();
            healthy.windows += 1;
            healthy.windows_after += u64::from(is_after);
        } else if label.fault_from_ms == Some(end)
            && let Some(fault) = self.faults.get_mut(&cohort)
        {
            fault.found_first = is_page;
        }
        let counts = if label.is_fault {
            label.is_page_worthy && label.fault_from_ms.is_some_and(|from| end >= from)
        } else {
            is_after
        };
        if !counts {
            return Ok(is_page && !label.is_fault);
        }
        let class = verdict.verdict.to_string();
        let classes = outcome.verdicts.entry(truth.clone()).or_default();
        *classes.entry(class).or_default() += 1;
        let rules = outcome.rules.entry(truth).or_default();
        let mut count = |rule: usize, fires: bool| {
            let slot = rules.entry(rule).or_default();
            slot.0 += 1;
            slot.1 += u64::from(fires);
        };
        count(RULES.len(), is_page);
        if let Some(textbook) = self.textbook.get(&(cohort, end)) {
            for rule in &textbook.asked {
                count(*rule, textbook.fired.contains(rule));
            }
        }
        Ok(is_page != label.is_page_worthy)
    }

    /// Counts an incident that fires; returns whether it is false.
    fn fires(
        &mut self,
        incident: &IncidentSummary,
        window_end: &str,
        outcome: &mut Outcome,
    ) -> anyhow::Result<bool> {
        let is_page = incident.severity == Severity::Page;
        let mut is_false = false;
        // No labelled fleet becomes silent, so an incident about a silent app is false.
        if incident.chipsets.is_empty()
            && let Some((spec, _)) = self.apps.get(&incident.app)
        {
            let truth = match spec.truth {
                Truth::Benign(_) => healthy_name(spec),
                Truth::Fault(_) => "beside a fault".to_owned(),
            };
            let healthy = outcome.healthy.entry(truth).or_default();
            healthy.pages += u64::from(is_page);
            healthy.tickets += u64::from(!is_page);
            return Ok(true);
        }
        for chipset in &incident.chipsets {
            let cohort = (
                incident.app.clone(),
                incident.model.clone(),
                incident.version.clone(),
                chipset.clone(),
            );
            let (Some(label), Some((spec, _))) =
                (self.labels.get(&cohort), self.apps.get(&incident.app))
            else {
                continue;
            };
            let counted = (incident.incident.clone(), chipset.clone(), is_page);
            if !self.counted.insert(counted) {
                continue;
            }
            let Some(fault) = self.faults.get_mut(&cohort) else {
                let healthy = outcome.healthy.entry(truth(spec, label)).or_default();
                healthy.pages += u64::from(is_page);
                healthy.tickets += u64::from(!is_page);
                is_false |= is_page;
                continue;
            };
            fault.ticketed |= !is_page;
            if is_page && fault.paged_in.is_none() {
                let late = milliseconds(window_end)? - label.fault_from_ms.unwrap_or(0);
                // A fault that pages before it hits enough devices counts as found in the first window.
                fault.paged_in = Some(u64::try_from(late / DAY_MS).unwrap_or(0) + 1);
                fault.class = incident
                    .verdict
                    .map_or(String::new(), |class| class.to_string());
            }
        }
        Ok(is_false)
    }
}

pub(crate) fn milliseconds(time: &str) -> anyhow::Result<i64> {
    Ok(time.parse::<jiff::Timestamp>()?.as_millisecond())
}

/// Returns the name of the truth about a cohort in the tables.
fn truth(spec: &FamilySpec, label: &CohortLabel) -> String {
    match (spec.truth, label.is_fault) {
        (Truth::Benign(_), _) => healthy_name(spec),
        (Truth::Fault(fault), true) => kind_name(fault.kind).to_owned(),
        (Truth::Fault(_), false) => "beside a fault".to_owned(),
    }
}

fn healthy_name(spec: &FamilySpec) -> String {
    match (spec.circumstance, spec.truth) {
        (Some(circumstance), _) => circumstance.text().to_owned(),
        (None, Truth::Benign(benign)) => format!("{benign:?}"),
        (None, Truth::Fault(_)) => String::new(),
    }
}

pub(crate) fn kind_name(kind: FaultKind) -> &'static str {
    match kind {
        FaultKind::Total => "total",
        FaultKind::SomeDevices(_) => "some devices",
        FaultKind::IntermittentRuns(_) => "intermittent runs",
        FaultKind::IntermittentSessions(_) => "intermittent sessions",
        FaultKind::Drift => "drift",
    }
}

fn fault_outcome(spec: &FamilySpec, label: &CohortLabel) -> FaultOutcome {
    let Truth::Fault(fault) = spec.truth else {
        return FaultOutcome::default();
    };
    let (devices_share, runs_share) = match fault.kind {
        FaultKind::Total | FaultKind::Drift => (1.0, 1.0),
        FaultKind::SomeDevices(share) => (share, 1.0),
        FaultKind::IntermittentRuns(share) | FaultKind::IntermittentSessions(share) => (1.0, share),
    };
    FaultOutcome {
        seed: spec.seed,
        kind: kind_name(fault.kind).to_owned(),
        factor: fault.factor,
        moved: fault.moved,
        devices_share,
        runs_share,
        devices: spec.devices as u64,
        runs: spec.runs,
        view: format!("{:?}", spec.view),
        shape_known: spec.shape_known,
        circumstance: spec
            .circumstance
            .map_or(String::new(), |one| one.text().to_owned()),
        is_page_worthy: label.is_page_worthy,
        ..FaultOutcome::default()
    }
}

fn eprint(line: &Line, fleet: &Fleet) {
    use std::io::Write;
    let app = match line {
        Line::Verdict(verdict) => &verdict.app,
        Line::Incident(line) => &line.incident.app,
        _ => return,
    };
    let spec = fleet.apps.get(app).map(|(spec, _)| spec);
    let family = spec.map(|s| (s.truth, s.devices, s.runs, s.view, s.shape_known, s.peers));
    let _ = writeln!(std::io::stderr(), "  {family:?} {}", to_json(line));
}
