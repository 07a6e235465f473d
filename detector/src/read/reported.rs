//! Self-tests and failed starts, from the store's rows to the cohorts they belong to.

use std::collections::BTreeMap;
use std::sync::Arc;

use clickhouse::Row;
use serde::Deserialize;

use crate::cohort::{CohortKey, ModelKey};
use crate::device_events::{DeviceEvents, FailedStart, GoldenTest};
use crate::hash::HashSet;
use crate::window::{CohortWindow, Installation, Voteless};

use super::{Arrivals, ModelWindows, Span};

/// Firmware, hash, tolerance, greatest difference, cosine, first class equal, error code.
pub(super) type TestTuple = (
    String,
    String,
    Option<f64>,
    Option<f64>,
    Option<f64>,
    Option<bool>,
    i32,
);

#[derive(Debug, Row, Deserialize)]
pub(super) struct TestRow {
    pub(super) app_id: String,
    pub(super) environment: String,
    pub(super) model_id: String,
    pub(super) model_version: String,
    pub(super) chipset: String,
    pub(super) installation: [u8; 16],
    pub(super) input_id: String,
    pub(super) told: TestTuple,
}

#[derive(Debug, Row, Deserialize)]
pub(super) struct StartRow {
    pub(super) app_id: String,
    pub(super) environment: String,
    pub(super) model_id: String,
    pub(super) model_version: String,
    pub(super) chipset: String,
    pub(super) installation: [u8; 16],
    pub(super) firmware: String,
    pub(super) reason: String,
    pub(super) n: u64,
}

/// Model, version, chipset.
type Cohort = (ModelKey, String, String);

/// What all devices told, by cohort.
#[derive(Debug, Default)]
pub(super) struct AllReported(BTreeMap<Cohort, DeviceEvents>);

impl AllReported {
    /// Sorts rows into cohorts; installations beyond the usual number of new ones are left out.
    pub(super) fn from_rows(
        (tests, starts): (Vec<TestRow>, Vec<StartRow>),
        arrivals: &Arrivals,
    ) -> Self {
        // `None` leaves a device out; else whether it is known from earlier windows.
        let standing = |model: &ModelKey, device: &Installation| {
            let Some(new) = arrivals.of(model) else {
                return Some(true);
            };
            let is_admitted = !new.unproven.contains(device);
            is_admitted.then(|| !new.newcomers.contains(device))
        };
        // Few different texts, many rows.
        let mut texts: HashSet<Arc<str>> = HashSet::default();
        let mut text = |wanted: String| -> Arc<str> {
            if let Some(known) = texts.get(wanted.as_str()) {
                return known.clone();
            }
            let new: Arc<str> = wanted.into();
            texts.insert(new.clone());
            new
        };
        let mut cohorts: BTreeMap<Cohort, DeviceEvents> = BTreeMap::new();
        for row in tests {
            let model = ModelKey {
                app_id: row.app_id,
                environment: row.environment,
                model_id: row.model_id,
            };
            let Some(is_proven) = standing(&model, &row.installation) else {
                continue;
            };
            let (firmware, hash, tolerance, max_abs, cosine, top1_equal, error_code) = row.told;
            let cohort = (model, row.model_version, row.chipset);
            cohorts.entry(cohort).or_default().tests.push(GoldenTest {
                installation: row.installation,
                firmware: text(firmware),
                input_id: text(row.input_id),
                npu_hash: text(hash),
                tolerance,
                max_abs,
                cosine,
                top1_equal,
                has_run: error_code == 0,
                is_proven,
            });
        }
        for row in starts {
            let model = ModelKey {
                app_id: row.app_id,
                environment: row.environment,
                model_id: row.model_id,
            };
            let Some(is_proven) = standing(&model, &row.installation) else {
                continue;
            };
            let cohort = (model, row.model_version, row.chipset);
            let starts = &mut cohorts.entry(cohort).or_default().failed_starts;
            starts.push(FailedStart {
                installation: row.installation,
                firmware: text(row.firmware),
                reason: text(row.reason),
                count: row.n,
                is_proven,
            });
        }
        Self(cohorts)
    }

    /// Returns models with failed starts: each may have no session at all.
    pub(super) fn failing(&self) -> BTreeMap<ModelKey, u64> {
        let mut models: BTreeMap<ModelKey, u64> = BTreeMap::new();
        for ((model, _, _), reported) in &self.0 {
            if !reported.failed_starts.is_empty() {
                *models.entry(model.clone()).or_default() += 1;
            }
        }
        models
    }

    /// Gives each cohort of a model what its devices told; one that only failed to start gets a
    /// window without votes.
    pub(super) fn attach(&self, read: &mut ModelWindows, span: &Span) {
        let mut seen: HashSet<(String, String)> = HashSet::default();
        for window in &mut read.cohorts {
            let key = &window.key;
            let cohort = (
                read.model.clone(),
                key.model_version.clone(),
                key.chipset.clone(),
            );
            window.reported = self.0.get(&cohort).cloned().unwrap_or_default();
            seen.insert((cohort.1, cohort.2));
        }
        let first = (read.model.clone(), String::new(), String::new());
        let of_model = self.0.range(first..);
        let of_model = of_model.take_while(|((model, _, _), _)| *model == read.model);
        for ((_, version, chipset), reported) in of_model {
            let is_known = seen.contains(&(version.clone(), chipset.clone()));
            if is_known || reported.failed_starts.is_empty() {
                // Tested before and not seen in this window, where it is not known.
                continue;
            }
            read.cohorts.push(CohortWindow {
                key: CohortKey {
                    model: read.model.clone(),
                    model_version: version.clone(),
                    chipset: chipset.clone(),
                    firmware: None,
                },
                end: span.end,
                length: span.window,
                votes: Vec::new(),
                histograms: BTreeMap::new(),
                voteless: Voteless::default(),
                reported: reported.clone(),
            });
        }
        read.cohorts
            .sort_by(|a, b| order_of(&a.key).cmp(&order_of(&b.key)));
    }
}

fn order_of(key: &CohortKey) -> (&str, &str) {
    (&key.model_version, &key.chipset)
}
