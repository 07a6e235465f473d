//! How near an open incident is to its end. Notifications, pages and a terminal say it in the same words.

use std::borrow::Cow;

use super::cohort::{CLEAN_WINDOWS, IncidentCohort};
use super::{Incident, State};
use crate::class::Severity;

/// The beginning of the sentence while an incident only waits for its end.
const ENDS: &str = "Nothing to do now: the incident ends by itself";

/// The beginning of the commands of a step that makes a directive.
const DIRECTIVE: &str = "`epwatch directive make ";

impl Incident {
    /// Whether its fault is past: the incident is over or mitigated, or no confirmed cohort shows the fault any more. If
    /// the next version had the fault too, clean windows of its own version do not suffice.
    #[must_use]
    pub fn is_past(&self) -> bool {
        let is_alone = self.versions().len() == 1;
        let is_past = |of: &IncidentCohort| of.is_left() || (is_alone && of.clean_windows > 0);
        let has_any = self.confirmed().next().is_some();
        let is_away = !self.state.is_open() || self.state == State::Mitigated;
        is_away || (has_any && self.confirmed().all(is_past))
    }

    /// Returns the clean windows since the fault was last seen, of the confirmed cohort with the fewest.
    #[must_use]
    pub fn clean_windows(&self) -> u32 {
        let counted = self.confirmed().map(IncidentCohort::clean_so_far);
        counted.min().unwrap_or(0)
    }

    /// Returns how many of the clean windows that it needs an open incident has, such as "2 of 3 clean windows".
    #[must_use]
    pub fn progress(&self) -> String {
        format!("{} of {CLEAN_WINDOWS} clean windows", self.clean_windows())
    }

    /// Returns the next steps, one per line. There are none once the incident is over. While it only waits for its end, a
    /// sentence says so. While a directive mitigates it, no step makes a directive.
    #[must_use]
    pub fn next_step(&self) -> Cow<'_, str> {
        let of_lead = self.lead().map_or("", |lead| &*lead.next_step);
        match self.state {
            State::Inactive | State::Resolved => "".into(),
            State::Firing if self.is_past() => self.waits().into(),
            State::Mitigated => {
                let makes_none = |line: &&str| !line.contains(DIRECTIVE);
                let lines: Vec<&str> = of_lead.lines().filter(makes_none).collect();
                lines.join("\n").into()
            }
            State::Pending | State::Firing => of_lead.into(),
        }
    }

    fn waits(&self) -> String {
        let n = self.clean_windows();
        match n >= CLEAN_WINDOWS {
            true => format!("{ENDS} once nearly all of its devices have a healthy version."),
            false => format!("{ENDS} after {CLEAN_WINDOWS} clean windows, {n} so far."),
        }
    }

    fn confirmed(&self) -> impl Iterator<Item = &IncidentCohort> {
        let cohorts = self.cohorts.iter();
        cohorts.filter(|cohort| cohort.confirmed > Severity::None)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use jiff::Timestamp;

    use super::super::{Cause, IncidentKey, MovedTo};
    use super::*;
    use crate::class::VerdictClass;
    use crate::cohort::{CohortKey, ModelKey};
    use crate::verdict::CohortVerdict;

    const STEPS: &str = "On call: keep version 1.\nOn call: `epwatch directive make --npu-off`\nThe owner: ask why.";

    const WINDOW: Duration = Duration::from_secs(3_600);

    fn at(hour: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + 3_600 * hour).unwrap()
    }

    /// Returns a firing incident that was last seen at hour 0, on one chipset.
    fn firing() -> Incident {
        let model = ModelKey::of(("camera", "production"), "scenes");
        let key = CohortKey {
            model: model.clone(),
            model_version: "2".to_owned(),
            chipset: "SM8635".to_owned(),
            firmware: None,
        };
        let class = VerdictClass::PartialFallback;
        let verdict = CohortVerdict {
            next_step: STEPS.to_owned(),
            ..CohortVerdict::new(key, (at(0), WINDOW), class, Severity::Page)
        };
        let cohort = IncidentCohort {
            confirmed: Severity::Page,
            ..IncidentCohort::new(&verdict)
        };
        let key = IncidentKey {
            model,
            model_version: "2".to_owned(),
            cause: Cause::Slower,
        };
        Incident {
            state: State::Firing,
            cohorts: vec![cohort],
            ..Incident::begin(key, (at(0), WINDOW), at(0))
        }
    }

    /// Counts clean windows of the next version, which so many of 30 devices have.
    fn next_version_is_clean(incident: &mut Incident, windows: u32, devices: u64, hour: i64) {
        let cohort = &mut incident.cohorts[0];
        cohort.clean_successors = windows;
        cohort.successor_until = Some(at(hour));
        cohort.moved_to = vec![MovedTo {
            version: "3".to_owned(),
            devices,
            of: 30,
        }];
    }

    #[track_caller]
    fn check(incident: &Incident, is_past: bool, progress: &str, end: i64) {
        assert_eq!(incident.is_past(), is_past);
        assert_eq!(incident.progress(), progress);
        assert_eq!(incident.next_step() == STEPS, !is_past);
        assert_eq!(incident.cohorts[0].earliest_end(), at(end));
    }

    #[test]
    fn a_fault_is_past_once_its_windows_are_clean() {
        let mut incident = firing();
        check(&incident, false, "0 of 3 clean windows", 3);
        let cohort = &mut incident.cohorts[0];
        cohort.clean_windows = 2;
        cohort.counted_until = at(2);
        check(&incident, true, "2 of 3 clean windows", 3);
        let said = incident.next_step();
        assert!(said.ends_with("after 3 clean windows, 2 so far."), "{said}");
        // Every confirmed cohort counts.
        let mut other = incident.cohorts[0].clone();
        other.verdict.key.chipset = "SM8550".to_owned();
        other.clean_windows = 0;
        incident.cohorts.push(other.clone());
        check(&incident, false, "0 of 3 clean windows", 3);
        other.confirmed = Severity::None;
        incident.cohorts[1] = other;
        check(&incident, true, "2 of 3 clean windows", 3);
    }

    #[test]
    fn a_fault_is_past_once_its_devices_have_a_clean_version() {
        let mut incident = firing();
        next_version_is_clean(&mut incident, 1, 26, 1);
        assert!(!incident.is_past());
        next_version_is_clean(&mut incident, 1, 27, 1);
        check(&incident, true, "1 of 3 clean windows", 3);
        // A window that holds the incident for a part of it does not delay the end by the next version.
        incident.cohorts[0].counted_until = at(1);
        check(&incident, true, "1 of 3 clean windows", 3);
        next_version_is_clean(&mut incident, 3, 27, 3);
        let said = incident.next_step();
        assert!(said.contains("once nearly all of its devices"), "{said}");
    }

    /// A few devices that kept the first version may be healthy while the next version has the fault.
    #[test]
    fn clean_windows_of_the_first_version_say_nothing_about_the_next() {
        let mut incident = firing();
        incident.parts.insert("scenes 3".to_owned());
        incident.cohorts[0].clean_windows = 1;
        assert!(!incident.is_past());
        next_version_is_clean(&mut incident, 1, 30, 1);
        assert!(incident.is_past());
    }

    #[test]
    fn a_mitigated_incident_makes_no_directive_and_one_that_is_over_asks_for_nothing() {
        let mut incident = firing();
        incident.state = State::Mitigated;
        assert!(incident.is_past());
        let steps = "On call: keep version 1.\nThe owner: ask why.";
        assert_eq!(incident.next_step(), steps);
        incident.state = State::Resolved;
        assert!(incident.is_past() && incident.next_step().is_empty());
    }
}
