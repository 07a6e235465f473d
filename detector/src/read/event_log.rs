//! Self-tests and failed starts of the look-back, by cohort. Pure. A reader of the store adds new buckets, and a
//! recording adds all of its reports. An evaluation takes the events that count for its window.

use std::collections::BTreeMap;
use std::sync::Arc;

use epwatch_model::{CohortKey, Installation, ModelKey, VersionOnChipset};

use crate::judge::device_events::{DeviceEvents, FailedStart, GoldenTest};
use crate::judge::hash::HashSet;
use crate::judge::window::CohortWindow;

use super::arrivals::NewInstallations;
use super::span::{Bucket, Span};

/// Bytes of an event with its texts, which most events share.
const BYTES_AN_EVENT: usize = 256;

/// Receive time in milliseconds, stream and sequence of a report.
pub(super) type ReportOrder = (i64, u64, u64);

/// Events of reports that vote, by cohort.
#[derive(Debug, Clone, Default)]
pub(super) struct EventLog(BTreeMap<VersionOnChipset, CohortEvents>);

#[derive(Debug, Clone, Default)]
struct CohortEvents {
    tests: Vec<(Bucket, ReportOrder, GoldenTest)>,
    starts: Vec<(Bucket, FailedStart)>,
}

impl EventLog {
    pub(super) fn add_test(
        &mut self,
        cohort: VersionOnChipset,
        (bucket, order): (Bucket, ReportOrder),
        test: GoldenTest,
    ) {
        let events = self.0.entry(cohort).or_default();
        events.tests.push((bucket, order, test));
    }

    pub(super) fn add_start(&mut self, cohort: VersionOnChipset, at: Bucket, start: FailedStart) {
        self.0.entry(cohort).or_default().starts.push((at, start));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn append(&mut self, other: EventLog) {
        for (cohort, events) in other.0 {
            let known = self.0.entry(cohort).or_default();
            known.tests.extend(events.tests);
            known.starts.extend(events.starts);
        }
    }

    /// Drops some buckets.
    pub(super) fn forget(&mut self, gone: &[Bucket]) {
        self.0.retain(|_, events| {
            events.tests.retain(|(at, _, _)| !gone.contains(at));
            events.starts.retain(|(at, _)| !gone.contains(at));
            !(events.tests.is_empty() && events.starts.is_empty())
        });
    }

    /// Returns about how much memory it takes.
    pub(super) fn bytes(&self) -> usize {
        let of_cohort = |events: &CohortEvents| events.tests.len() + events.starts.len();
        self.0.values().map(of_cohort).sum::<usize>() * BYTES_AN_EVENT
    }

    /// Returns the events that count for a window.
    pub(super) fn of_window(&self, span: &Span, arrivals: &NewInstallations) -> WindowEvents {
        let cohorts = self.0.iter().map(|(cohort, events)| {
            let new = arrivals.of(&cohort.0);
            let is_proven = |device: &Installation| !new.is_some_and(|new| new.contains(device));
            let events = DeviceEvents {
                tests: events.latest_tests(span, is_proven),
                failed_starts: events.starts_in_window(span, is_proven),
            };
            (cohort.clone(), events)
        });
        WindowEvents(cohorts.collect())
    }
}

impl CohortEvents {
    /// Returns each device's latest test of each input.
    fn latest_tests(
        &self,
        span: &Span,
        is_proven: impl Fn(&Installation) -> bool,
    ) -> Vec<GoldenTest> {
        let mut latest: BTreeMap<(Installation, &str), (ReportOrder, &GoldenTest)> =
            BTreeMap::new();
        let in_span = |(at, _, _): &&(Bucket, _, _)| span.buckets().contains(at);
        for (_, order, test) in self.tests.iter().filter(in_span) {
            let key = (test.installation, &*test.input_id);
            let slot = latest.entry(key).or_insert((*order, test));
            if *order > slot.0 {
                *slot = (*order, test);
            }
        }
        let tests = latest.into_values().map(|(_, test)| GoldenTest {
            is_proven: is_proven(&test.installation),
            ..test.clone()
        });
        tests.collect()
    }

    fn starts_in_window(
        &self,
        span: &Span,
        is_proven: impl Fn(&Installation) -> bool,
    ) -> Vec<FailedStart> {
        let mut counts: BTreeMap<(Installation, &Arc<str>, &Arc<str>), u64> = BTreeMap::new();
        let in_window = |(at, _): &&(Bucket, _)| span.window_buckets().contains(at);
        for (_, start) in self.starts.iter().filter(in_window) {
            let key = (start.installation, &start.firmware, &start.reason);
            let slot = counts.entry(key).or_default();
            *slot = slot.saturating_add(start.count);
        }
        let starts = counts.into_iter();
        let starts = starts.map(|((installation, firmware, reason), count)| FailedStart {
            installation,
            firmware: firmware.clone(),
            reason: reason.clone(),
            count,
            is_proven: is_proven(&installation),
        });
        starts.collect()
    }
}

/// Events that count for one window, by cohort.
#[derive(Debug, Default)]
pub(super) struct WindowEvents(BTreeMap<VersionOnChipset, DeviceEvents>);

impl WindowEvents {
    /// Returns models with failed starts, with the number of their cohorts. Such a model may have no session at all.
    pub(super) fn failing(&self) -> BTreeMap<&ModelKey, u64> {
        let mut models: BTreeMap<&ModelKey, u64> = BTreeMap::new();
        for ((model, _, _), events) in &self.0 {
            if !events.failed_starts.is_empty() {
                *models.entry(model).or_default() += 1;
            }
        }
        models
    }

    /// Gives each cohort of a model its events. A cohort with only failed starts gets a window without votes.
    pub(super) fn attach(&self, model: &ModelKey, cohorts: &mut Vec<CohortWindow>, span: &Span) {
        let name = |key: &CohortKey| (key.model_version.clone(), key.chipset.clone());
        let known: HashSet<(String, String)> = cohorts.iter().map(|w| name(&w.key)).collect();
        let first = (model.clone(), String::new(), String::new());
        let of_model = self.0.range(first..);
        let of_model = of_model.take_while(|((of, _, _), _)| of == model);
        for ((_, version, chipset), events) in of_model {
            let name = (version.clone(), chipset.clone());
            // A cohort that is not in this window and only has earlier tests gets no window.
            if !known.contains(&name) && !events.failed_starts.is_empty() {
                let key = CohortKey {
                    model: model.clone(),
                    model_version: name.0,
                    chipset: name.1,
                    firmware: None,
                };
                cohorts.push(CohortWindow::empty(key, span.end, span.window));
            }
        }
        for window in &mut *cohorts {
            let (version, chipset) = name(&window.key);
            let events = self.0.get(&(model.clone(), version, chipset));
            window.device_events = events.cloned().unwrap_or_default();
        }
        cohorts.sort_by_cached_key(|window| name(&window.key));
    }
}
