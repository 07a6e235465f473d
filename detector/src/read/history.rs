//! Figures of earlier windows of the same length: devices by chipset, CV and counts of signals by version and chipset.
//! Pure: rows of the store and verdicts in memory are added to the same sums.

use std::collections::BTreeMap;
use std::sync::Arc;

use epwatch_model::{ModelKey, SignalId};

use crate::judge::hash::HashMap;
use crate::judge::tally::Tally;

/// Devices that a chipset usually has in a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct UsualDevices {
    /// Median over earlier windows.
    pub devices: u64,
    /// Number of earlier windows.
    pub windows: u64,
}

/// Coefficients of variation that a cohort usually has: means over earlier windows.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct UsualCv {
    /// CV of all runs; every device has the same weight.
    pub all: f64,
    /// CV within a device.
    pub within: f64,
}

/// One version's counts on one chipset over its earlier healthy windows.
#[derive(Debug, Clone, PartialEq)]
pub struct VersionHistory {
    /// Model version.
    pub model_version: Arc<str>,
    /// Normalised chipset.
    pub chipset: Arc<str>,
    /// Signal whose devices were counted.
    pub signal: SignalId,
    /// Devices hit and counted. A device counts once, however many windows it is in.
    pub tally: Tally,
    /// End of the first of those windows, in seconds since 1970.
    pub since_s: i64,
}

/// Version, chipset.
pub(super) type Cohort = (Arc<str>, Arc<str>);

/// Earlier windows of one model.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct EarlierWindows {
    /// Usual devices by chipset, over all versions.
    pub devices: BTreeMap<Arc<str>, UsualDevices>,
    cv: BTreeMap<Cohort, UsualCv>,
    /// Smallest ratio, over healthy windows, of devices' medians to their baselines. It is kept although later windows
    /// are compared with the version's own earlier windows.
    ratios: BTreeMap<Cohort, f64>,
    /// Counts of settled windows.
    pub signals: Vec<VersionHistory>,
}

impl EarlierWindows {
    /// Returns the CV of the previous version on a chipset, else the CV of this version.
    #[must_use]
    pub fn cv_of(&self, version: &str, previous: Option<&str>, chipset: &str) -> Option<UsualCv> {
        let of = |version: &str| self.cv.get(&(version.into(), chipset.into()));
        previous.and_then(of).or_else(|| of(version)).copied()
    }
}

/// Ratio to the version before below which a version gained by more than noise.
const GAINED: f64 = 0.75;

impl EarlierWindows {
    /// Whether a version was faster on a chipset than the version before, in its own healthy windows.
    #[must_use]
    pub fn has_gained(&self, version: &str, chipset: &str) -> bool {
        let ratio = self.ratios.get(&(version.into(), chipset.into()));
        ratio.is_some_and(|ratio| *ratio <= GAINED)
    }
}

/// Earlier windows of all models.
pub(super) type HistoryByModel = HashMap<ModelKey, Arc<EarlierWindows>>;

/// Sums over earlier windows, while windows are added.
#[derive(Debug, Default)]
pub(super) struct HistorySums(BTreeMap<ModelKey, ModelSums>);

#[derive(Debug, Default)]
pub(super) struct ModelSums {
    /// Number of devices by chipset and end of the window.
    devices: BTreeMap<Arc<str>, HashMap<i64, u64>>,
    cohorts: BTreeMap<Cohort, CohortSums>,
}

#[derive(Debug, Default)]
struct CohortSums {
    cv: UsualCv,
    cv_windows: u64,
    ratio: Option<f64>,
    signals: BTreeMap<SignalId, SignalSums>,
}

/// Sums of one signal over windows that counted any device.
#[derive(Debug, Clone, Copy)]
pub(super) struct SignalSums {
    pub(super) hits: u64,
    pub(super) devices: u64,
    pub(super) windows: u64,
    /// Devices of the largest window.
    pub(super) largest: u64,
    pub(super) first_end_s: i64,
}

impl HistorySums {
    pub(super) fn model(&mut self, model: &ModelKey) -> &mut ModelSums {
        if !self.0.contains_key(model) {
            self.0.insert(model.clone(), ModelSums::default());
        }
        self.0.get_mut(model).expect("it is there by now")
    }

    pub(super) fn finish(self) -> HistoryByModel {
        let models = self.0.into_iter();
        models
            .map(|(model, sums)| (model, Arc::new(sums.finish())))
            .collect()
    }
}

impl ModelSums {
    /// Adds the devices of all versions on a chipset in a window. Each version's row of the window has the same number.
    pub(super) fn add_devices(&mut self, chipset: &Arc<str>, end: i64, devices: u64) {
        let windows = self.devices.entry(chipset.clone()).or_default();
        let slot = windows.entry(end).or_default();
        *slot = devices.max(*slot);
    }

    /// Adds the CVs of some windows.
    pub(super) fn add_cv(&mut self, cohort: &Cohort, sums: UsualCv, windows: u64) {
        let slot = self.cohorts.entry(cohort.clone()).or_default();
        slot.cv.all += sums.all;
        slot.cv.within += sums.within;
        slot.cv_windows += windows;
    }

    /// Adds the ratio of a healthy window, or the least one of several.
    pub(super) fn add_ratio(&mut self, cohort: &Cohort, ratio: f64) {
        let slot = self.cohorts.entry(cohort.clone()).or_default();
        slot.ratio = Some(slot.ratio.map_or(ratio, |least| least.min(ratio)));
    }

    pub(super) fn add_signal(&mut self, cohort: &Cohort, signal: SignalId, added: SignalSums) {
        let slot = self.cohorts.entry(cohort.clone()).or_default();
        let known = slot.signals.entry(signal);
        known.and_modify(|sums| sums.add(added)).or_insert(added);
    }

    fn finish(self) -> EarlierWindows {
        let mut earlier = EarlierWindows::default();
        for (chipset, windows) in self.devices {
            let mut counts: Vec<u64> = windows.into_values().collect();
            counts.sort_unstable();
            let usual = UsualDevices {
                devices: counts[counts.len() / 2],
                windows: counts.len() as u64,
            };
            earlier.devices.insert(chipset, usual);
        }
        for ((model_version, chipset), sums) in self.cohorts {
            if sums.cv_windows > 0 {
                let n = sums.cv_windows as f64;
                let mean = UsualCv {
                    all: sums.cv.all / n,
                    within: sums.cv.within / n,
                };
                let cohort = (model_version.clone(), chipset.clone());
                earlier.cv.insert(cohort, mean);
            }
            if let Some(ratio) = sums.ratio {
                let cohort = (model_version.clone(), chipset.clone());
                earlier.ratios.insert(cohort, ratio);
            }
            let histories = sums
                .signals
                .into_iter()
                .map(|(signal, sums)| VersionHistory {
                    model_version: model_version.clone(),
                    chipset: chipset.clone(),
                    signal,
                    tally: sums.tally(),
                    since_s: sums.first_end_s,
                });
            earlier.signals.extend(histories);
        }
        earlier
    }
}

impl SignalSums {
    /// Returns the sums of one window.
    pub(super) fn of_window(end_s: i64, counted: Tally) -> Self {
        Self {
            hits: counted.hits,
            devices: counted.devices,
            windows: 1,
            largest: counted.devices,
            first_end_s: end_s,
        }
    }

    pub(super) fn add(&mut self, other: Self) {
        self.hits += other.hits;
        self.devices += other.devices;
        self.windows += other.windows;
        self.largest = self.largest.max(other.largest);
        self.first_end_s = self.first_end_s.min(other.first_end_s);
    }

    /// Returns the mean hits at the size of the largest window, because a version's windows repeat the same devices.
    pub(super) fn tally(self) -> Tally {
        let n = self.windows as f64;
        Tally::from_means(self.hits as f64 / n, self.devices as f64 / n, self.largest)
    }
}
