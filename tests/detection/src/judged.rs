//! What the detector says of some families, held against what is the matter with them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use epwatch_detector::DetectorConfig;
use epwatch_detector::incident::State;
use epwatch_detector::period::Period;
use epwatch_detector::replay::{Line, ReplayOptions, replay, to_json};
use epwatch_detector::source::Source;
use epwatch_detector::source::recorded::Intake;
use epwatch_detector::verdict::{Severity, VerdictClass};
use epwatch_fleet::labelled::{CohortLabel, Family, FamilySpec};

use crate::START_MS;
use crate::stories::Named;

/// Families that are judged as one fleet.
const FLEET: usize = 20;

/// One story's figures.
#[derive(Debug, Default)]
pub(crate) struct Judged {
    pub(crate) name: String,
    pub(crate) is_benign: bool,
    pub(crate) healthy_windows: u64,
    pub(crate) false_pages: u64,
    pub(crate) faults: u64,
    pub(crate) paged: u64,
    pub(crate) in_first_window: u64,
    pub(crate) windows_to_page: Vec<u64>,
    pub(crate) classes: BTreeMap<String, u64>,
    pub(crate) tickets: u64,
    pub(crate) seconds: f64,
    pub(crate) reports: u64,
}

impl Judged {
    pub(crate) fn per_10_000(&self) -> f64 {
        self.false_pages as f64 * 10_000.0 / self.healthy_windows.max(1) as f64
    }

    pub(crate) fn recall(&self) -> f64 {
        self.paged as f64 / self.faults.max(1) as f64
    }

    pub(crate) fn line(&self) -> String {
        format!(
            "{:<28} healthy windows {:>6} false pages {:>3} ({:.1} per 10,000) tickets {:>3} | faults {:>3} paged {:>3} \
             ({:.3}) in first window {:>3} {:?} | {} reports {:.1} s",
            self.name,
            self.healthy_windows,
            self.false_pages,
            self.per_10_000(),
            self.tickets,
            self.faults,
            self.paged,
            self.recall(),
            self.in_first_window,
            self.classes,
            self.reports,
            self.seconds
        )
    }
}

/// Judges the families of a story.
pub(crate) async fn judge(
    story: &Named,
    specs: &[FamilySpec],
    verbose: bool,
) -> anyhow::Result<Judged> {
    let mut judged = Judged {
        name: story.name.clone(),
        is_benign: story.is_benign(),
        ..Judged::default()
    };
    for fleet in specs.chunks(FLEET) {
        judge_fleet(fleet, verbose, &mut judged).await?;
    }
    Ok(judged)
}

async fn judge_fleet(
    specs: &[FamilySpec],
    verbose: bool,
    judged: &mut Judged,
) -> anyhow::Result<()> {
    let mut intake = Intake::new(Duration::from_secs(3_600));
    let mut labels: BTreeMap<(String, String, String, String), CohortLabel> = BTreeMap::new();
    let mut specs_of = BTreeMap::new();
    for spec in specs {
        let family = Family::new(spec.clone(), START_MS);
        specs_of.insert(family.app_id(), spec.clone());
        for window in 0..family.n_windows() {
            for report in family.window(window) {
                intake.add_report(
                    report.received_ms,
                    (&family.app_id(), "production"),
                    &report.report,
                    &report.sent,
                );
            }
        }
        for label in family.labels() {
            let key = (
                label.app.clone(),
                label.model.clone(),
                label.version.clone(),
                label.chipset.clone(),
            );
            labels.insert(key, label);
        }
    }
    let began = Instant::now();
    let (recording, summary) = intake.finish();
    let options = ReplayOptions {
        config: DetectorConfig {
            step: Period(Duration::from_secs(86_400)),
            ..DetectorConfig::default()
        },
        from: None,
        to: None,
        all: true,
    };
    let mut lines = Vec::new();
    let source = Source::recorded(Arc::new(recording), 2_000_000);
    let mut keep = |line: Line| {
        lines.push(line);
        Ok(())
    };
    replay(source, &options, &mut keep).await?;
    judged.seconds += began.elapsed().as_secs_f64();
    judged.reports += summary.reports;

    let mut paged: BTreeMap<&CohortLabel2, String> = BTreeMap::new();
    let keys: Vec<CohortLabel2> = labels.keys().cloned().collect();
    for line in &lines {
        match line {
            Line::Verdict(verdict) if verdict.firmware.is_empty() => {
                let key = (
                    verdict.app.clone(),
                    verdict.model.clone(),
                    verdict.version.clone(),
                    verdict.chipset.clone(),
                );
                let label = labels.get(&key);
                if label.is_some_and(|label| !label.is_fault) {
                    judged.healthy_windows += 1;
                }
                let quiet = matches!(
                    verdict.verdict,
                    VerdictClass::Healthy | VerdictClass::NotEnoughData
                );
                if verbose && !quiet {
                    eprint_line(line, label, specs_of.get(&verdict.app));
                }
                if verbose && quiet && label.is_some_and(|label| label.is_fault) {
                    eprint_line(line, label, specs_of.get(&verdict.app));
                }
            }
            Line::Incident(line) if line.incident.state == State::Firing => {
                let incident = &line.incident;
                if incident.severity != Severity::Page {
                    judged.tickets += 1;
                    continue;
                }
                for chipset in &incident.chipsets {
                    let key = (
                        incident.app.clone(),
                        incident.model.clone(),
                        incident.version.clone(),
                        chipset.clone(),
                    );
                    let Some(label) = labels.get(&key) else {
                        continue;
                    };
                    let known = keys.iter().find(|known| **known == key);
                    let Some(known) = known else { continue };
                    if paged.contains_key(known) {
                        continue;
                    }
                    paged.insert(known, line.window_end.clone());
                    if !label.is_fault {
                        judged.false_pages += 1;
                    } else if label.is_page_worthy {
                        judged.paged += 1;
                        let class = incident.verdict.map(|class| class.to_string());
                        *judged.classes.entry(class.unwrap_or_default()).or_default() += 1;
                        let end: jiff::Timestamp = line.window_end.parse()?;
                        let late = end.as_millisecond() - label.fault_from_ms.unwrap_or(0);
                        let windows = u64::try_from(late / 86_400_000).unwrap_or(0);
                        judged.windows_to_page.push(windows + 1);
                        judged.in_first_window += u64::from(windows == 0);
                    }
                }
            }
            _ => {}
        }
    }
    judged.faults += labels.values().filter(|label| label.is_page_worthy).count() as u64;
    Ok(())
}

type CohortLabel2 = (String, String, String, String);

fn eprint_line(line: &Line, label: Option<&CohortLabel>, spec: Option<&FamilySpec>) {
    use std::io::Write;
    let fault = label.is_some_and(|label| label.is_fault);
    let _ = writeln!(
        std::io::stderr(),
        "  {} {} {:?}",
        if fault { "FAULT" } else { "sound" },
        to_json(line),
        spec.map(|spec| (spec.story, spec.devices, spec.runs, spec.view))
    );
}
