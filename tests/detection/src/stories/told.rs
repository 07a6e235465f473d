//! Checks that a story was told: with the expected pages and tickets, and no others.

use std::collections::{BTreeMap, BTreeSet};

use epwatch_detector::replay::Line;
use epwatch_model::summary::{IncidentSummary, VerdictSummary};
use epwatch_model::{Severity, State, VerdictClass};
use epwatch_proto::device::vendor_fingerprint_hash;

use crate::evaluation::{DAY_MS, START_MS, milliseconds};

use super::{CHIPSET, FIRMWARE, LARGE_SHAPE, NEW_FROM, NEW_MAKE, NEW_RUNTIME, Story, THEN};

/// The lines of a replay.
struct Told<'a> {
    verdicts: Vec<&'a VerdictSummary>,
    /// Each change, with the end of its window.
    changes: Vec<(&'a str, &'a IncidentSummary)>,
    /// Texts of incidents that ended.
    resolved: Vec<&'a str>,
}

impl<'a> Told<'a> {
    fn of(lines: &'a [Line]) -> Self {
        let mut told = Told {
            verdicts: Vec::new(),
            changes: Vec::new(),
            resolved: Vec::new(),
        };
        for line in lines {
            match line {
                Line::Verdict(verdict) => told.verdicts.push(verdict),
                Line::Incident(line) => {
                    told.changes.push((&line.window_end, &line.incident));
                    if line.incident.state == State::Resolved {
                        told.resolved.push(&line.text);
                    }
                }
                _ => {}
            }
        }
        told
    }

    /// The last state of each incident.
    fn last(&self) -> BTreeMap<&'a str, &'a IncidentSummary> {
        let changes = self.changes.iter();
        changes
            .map(|(_, incident)| (&*incident.incident, *incident))
            .collect()
    }

    /// Pages that were sent, by day.
    fn pages(&self) -> Vec<(i64, &'a IncidentSummary)> {
        let is_page = |incident: &IncidentSummary| {
            incident.state == State::Firing
                && incident.severity == Severity::Page
                && incident.part_of.is_none()
        };
        let sent = self.changes.iter().filter(|(_, one)| is_page(one));
        sent.map(|(end, one)| (day_of(end), *one)).collect()
    }

    /// Sentences of verdicts of this severity on the chipset or its firmwares, of any model.
    fn reasons(&self, severity: Severity) -> impl Iterator<Item = &'a String> {
        let found = self
            .verdicts
            .iter()
            .filter(move |verdict| verdict.severity == severity && verdict.chipset == CHIPSET);
        found.flat_map(|verdict| &verdict.reasons)
    }
}

/// Returns the day of a window from its end.
pub(super) fn day_of(end: &str) -> i64 {
    let end_ms = milliseconds(end).expect("a time");
    (end_ms - START_MS) / DAY_MS - 1
}

fn ensure(is_right: bool, wrong: impl FnOnce() -> String) -> Result<(), String> {
    match is_right {
        true => Ok(()),
        false => Err(wrong()),
    }
}

impl Story {
    /// Compares the lines of a replay of the story's reports with the expected ones.
    ///
    /// # Errors
    /// What is wrong.
    pub fn wrong_in(self, lines: &[Line]) -> Result<(), String> {
        let told = Told::of(lines);
        let pages = told.pages();
        let from = match self {
            Story::FixAsBad
            | Story::FixThatMends
            | Story::RollBack
            | Story::RollBackOfSome
            | Story::RollBackWithoutTheHit
            | Story::FixForNone
            | Story::RollBackForNone
            | Story::FiveDevices
            | Story::ManyNames
            | Story::LargeInputs
            | Story::LateFrames => NEW_FROM,
            _ => THEN,
        };
        let is_there = |page: &IncidentSummary| match self {
            Story::ManyNames => page.chipsets.iter().any(|one| one == CHIPSET),
            _ => page.chipsets == [CHIPSET],
        };
        for (day, page) in &pages {
            ensure(*day >= from && is_there(page), || {
                format!("a page for {:?} on day {day}", page.chipsets)
            })?;
        }
        let paged = || ensure(!pages.is_empty(), || "no page".to_owned());
        let last = told.last();
        match self {
            Story::FixForNone | Story::RollBackForNone => {
                paged()?;
                let resolved = last.values().filter(|one| one.state == State::Resolved);
                ensure(resolved.count() == 0, || "it was resolved".to_owned())?;
                let sent: BTreeSet<&str> = pages.iter().map(|(_, one)| &*one.incident).collect();
                ensure(sent.len() == 1, || format!("{} pages", sent.len()))
            }
            Story::FixAsBad => {
                paged()?;
                let resolved = last.values().filter(|one| one.state == State::Resolved);
                ensure(resolved.count() == 0, || "it was resolved".to_owned())?;
                let is_next = |verdict: &&&VerdictSummary| {
                    verdict.version == "2.0.1" && verdict.severity == Severity::Page
                };
                let found = told.verdicts.iter().filter(is_next).count();
                ensure(found >= 5, || format!("2.0.1 pages in {found} windows"))
            }
            Story::FixThatMends => {
                paged()?;
                let of_next = last.values().find(|one| one.version == "2.0.1");
                ensure(of_next.is_none(), || format!("an incident: {of_next:?}"))?;
                let is_over = last.values().all(|one| one.state == State::Resolved);
                ensure(is_over, || "it stays open".to_owned())
            }
            Story::RollBack | Story::RollBackOfSome => {
                paged()?;
                let of_old = last.values().find(|one| one.version == "1.0.0");
                ensure(of_old.is_none(), || format!("an incident: {of_old:?}"))?;
                let is_over = last.values().all(|one| one.state == State::Resolved);
                ensure(is_over, || "it stays open".to_owned())?;
                let mut ends = told.resolved.iter();
                ensure(
                    ends.any(|text| text.contains(" run 1.0.0 now, healthy")),
                    || format!("no text names 1.0.0: {:?}", told.resolved),
                )
            }
            Story::RollBackWithoutTheHit => {
                paged()?;
                let of_old = last.values().find(|one| one.version == "1.0.0");
                ensure(of_old.is_none(), || format!("an incident: {of_old:?}"))?;
                let resolved = last.values().filter(|one| one.state == State::Resolved);
                ensure(resolved.count() == 0, || "it was resolved".to_owned())
            }
            Story::Alternation => ensure(pages.is_empty(), || "a page".to_owned()),
            Story::FirmwareSlowsAllModels => {
                paged()?;
                let hash = vendor_fingerprint_hash(FIRMWARE);
                let mut reasons = told.reasons(Severity::Page);
                ensure(reasons.any(|reason| reason.contains(&hash)), || {
                    "no page names the firmware".to_owned()
                })
            }
            Story::GainedAndLost => {
                paged()?;
                let mut reasons = told.reasons(Severity::Page);
                ensure(
                    reasons.any(|reason| reason.contains("same version")),
                    || "no page says that the version is the same".to_owned(),
                )
            }
            Story::FirstVersionIntermittent => {
                let found = told.changes.iter().map(|(_, one)| one);
                let mut found = found.filter(|one| one.chipsets == [CHIPSET]);
                ensure(found.any(|one| one.state == State::Firing), || {
                    "neither a page nor a ticket".to_owned()
                })
            }
            Story::NewMake => {
                ensure(pages.is_empty(), || "a page".to_owned())?;
                let is_ticket = last.values().any(|one| one.state == State::Firing);
                ensure(is_ticket, || "no ticket".to_owned())?;
                let mut reasons = told.reasons(Severity::Ticket);
                let names = |reason: &String| NEW_MAKE.iter().any(|make| reason.contains(make));
                ensure(reasons.any(names), || "nothing names the make".to_owned())
            }
            Story::LoadThatLasts => {
                ensure(pages.is_empty(), || "a page".to_owned())?;
                let found = told.changes.iter().map(|(_, one)| one);
                let mut found = found.filter(|one| one.chipsets == [CHIPSET]);
                ensure(found.any(|one| one.state == State::Firing), || {
                    "no ticket".to_owned()
                })
            }
            Story::BusyOnTheFirstDay => ensure(pages.is_empty(), || "a page".to_owned()),
            Story::FiveDevices | Story::ManyNames => paged(),
            Story::NewRuntime => {
                ensure(pages.is_empty(), || "a page".to_owned())?;
                let mut reasons = told.reasons(Severity::Ticket);
                ensure(reasons.any(|reason| reason.contains(NEW_RUNTIME)), || {
                    "no ticket names the runtime".to_owned()
                })
            }
            Story::LargeInputs => {
                paged()?;
                let mut reasons = told.reasons(Severity::Page);
                ensure(reasons.any(|reason| reason.contains(LARGE_SHAPE)), || {
                    "no page names the shape".to_owned()
                })
            }
            Story::SlowDevicesAndRuns => {
                paged()?;
                let mut reasons = told.reasons(Severity::Page);
                ensure(
                    reasons.any(|reason| reason.contains("in some of their runs")),
                    || "no page is about the slow runs".to_owned(),
                )
            }
            Story::CompiledForAnother => {
                ensure(pages.is_empty(), || "a page".to_owned())?;
                let found = told.changes.iter().map(|(_, one)| one);
                let mut found = found.filter(|one| one.chipsets == [CHIPSET]);
                let is_told = |one: &IncidentSummary| {
                    one.state == State::Firing
                        && one.verdict == Some(VerdictClass::CompiledForAnother)
                };
                ensure(found.any(|one| is_told(one)), || {
                    "no ticket is about the compiled model".to_owned()
                })
            }
            Story::LateFrames => {
                paged()?;
                let mut reasons = told.reasons(Severity::Page);
                ensure(
                    reasons.any(|reason| reason.contains(" later than ")),
                    || "no page has the share of the late runs".to_owned(),
                )
            }
            Story::Reinstall => {
                ensure(pages.is_empty(), || "a page".to_owned())?;
                let mut told = told.changes.iter().map(|(_, one)| one);
                ensure(told.any(|one| one.state == State::Firing), || {
                    "no ticket".to_owned()
                })
            }
            Story::RecountedMacs => {
                let mut found = told.changes.iter().map(|(_, one)| one);
                let fired = found.find(|one| one.state == State::Firing);
                ensure(fired.is_none(), || format!("{fired:?}"))
            }
        }
    }
}
