//! Verdicts of earlier windows, held in memory: what the store's `cohort_windows_v1` gives a running
//! detector, for a replay, which writes nothing.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use crate::baseline::Tally;
use crate::cohort::ModelKey;
use crate::rates::{MIN_WINDOWS, Rates};
use crate::signals::{SignalId, built_in_rate};
use crate::verdict::{CohortVerdict, VerdictClass};

use super::usual::{Usual, UsualCv, UsualDevices};
use super::{Span, VersionHistory};

/// One signal of one healthy window.
#[derive(Debug, Clone, Copy)]
struct Count {
    end_s: i64,
    hits: u64,
    devices: u64,
}

/// A window whose number of slower devices (B) is as surprising as this teaches nothing.
const DOUBTFUL_P: f64 = 1e-3;

/// Version, chipset, signal: its counts.
type Counts = BTreeMap<(String, String, SignalId), Vec<Count>>;

/// Counts of earlier windows without a finding.
#[derive(Debug, Default)]
pub struct PastWindows(Mutex<BTreeMap<ModelKey, Counts>>, Mutex<Vec<Judged>>);

/// What any window had, whatever was found in it.
#[derive(Debug)]
struct Judged {
    model: ModelKey,
    model_version: String,
    chipset: String,
    end_s: i64,
    devices: u64,
    /// Within and between devices.
    cv: Option<(f64, f64)>,
}

impl PastWindows {
    /// Takes a window's verdicts in.
    pub fn add(&self, verdicts: &[CohortVerdict]) {
        let mut models = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        self.note(verdicts);
        for verdict in verdicts {
            // A spike of CV alone is what healthy fleets do at times: left out, it would never be learnt.
            let quiet = matches!(
                verdict.class,
                VerdictClass::Healthy | VerdictClass::NotEnoughData | VerdictClass::CvSpike
            );
            // Too few slow devices for a page are not healthy ones: learnt, they would hide themselves.
            let doubtful = verdict.signals.iter().any(|signal| {
                matches!(signal.id, SignalId::Shift | SignalId::ShiftOfModel)
                    && signal.p <= DOUBTFUL_P
            });
            if doubtful || !quiet || verdict.key.firmware.is_some() {
                continue;
            }
            let counts = models.entry(verdict.key.model.clone()).or_default();
            for signal in verdict.signals.iter().chain(&verdict.tallies) {
                if signal.devices == 0 {
                    continue;
                }
                let key = (
                    verdict.key.model_version.clone(),
                    verdict.key.chipset.clone(),
                    signal.id,
                );
                counts.entry(key).or_default().push(Count {
                    end_s: verdict.window_end.as_second(),
                    hits: signal.hits,
                    devices: signal.devices,
                });
            }
        }
    }

    fn note(&self, verdicts: &[CohortVerdict]) {
        let mut judged = self.1.lock().unwrap_or_else(PoisonError::into_inner);
        let whole = verdicts.iter().filter(|v| v.key.firmware.is_none());
        judged.extend(whole.map(|verdict| {
            Judged {
                model: verdict.key.model.clone(),
                model_version: verdict.key.model_version.clone(),
                chipset: verdict.key.chipset.clone(),
                end_s: verdict.window_end.as_second(),
                devices: verdict.numbers.devices_seen,
                cv: verdict
                    .explanation
                    .cv_within
                    .zip(verdict.explanation.cv_between),
            }
        }));
    }

    /// Returns what the windows of the look-back had, and forgets what is older.
    pub(super) fn usual(&self, span: &Span) -> Usual {
        let mut judged = self.1.lock().unwrap_or_else(PoisonError::into_inner);
        judged.retain(|one| one.end_s >= span.earliest_s());
        let mut devices: BTreeMap<(&ModelKey, &str, i64), u64> = BTreeMap::new();
        let mut cvs: BTreeMap<(&ModelKey, &str, &str), (UsualCv, f64)> = BTreeMap::new();
        for one in judged.iter().filter(|one| one.end_s < span.end_s()) {
            *devices
                .entry((&one.model, &one.chipset, one.end_s))
                .or_default() += one.devices;
            if let Some((within, between)) = one.cv {
                let slot = cvs.entry((&one.model, &one.model_version, &one.chipset));
                let slot = slot.or_default();
                slot.0.all += within.hypot(between);
                slot.0.within += within;
                slot.1 += 1.0;
            }
        }
        let mut windows: BTreeMap<(&ModelKey, &str), Vec<u64>> = BTreeMap::new();
        for ((model, chipset, _), n) in devices {
            windows.entry((model, chipset)).or_default().push(n);
        }
        let mut usual = Usual::default();
        for ((model, chipset), mut counts) in windows {
            counts.sort_unstable();
            let found = UsualDevices {
                // As the store's exact quantile has it.
                devices: counts[counts.len() / 2],
                windows: counts.len() as u64,
            };
            let of_model = usual.0.entry(model.clone()).or_default();
            of_model.devices.insert(chipset.to_owned(), found);
        }
        for ((model, version, chipset), (sum, n)) in cvs {
            let cohort = (version.to_owned(), chipset.to_owned());
            let of_model = usual.0.entry(model.clone()).or_default();
            let mean = UsualCv {
                all: sum.all / n,
                within: sum.within / n,
            };
            of_model.cv.insert(cohort, mean);
        }
        usual
    }

    /// A version's windows repeat the same devices, so it counts with its mean hits and its largest
    /// window.
    pub(super) fn histories(&self, model: &ModelKey, span: &Span) -> Vec<VersionHistory> {
        let models = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(counts) = models.get(model) else {
            return Vec::new();
        };
        let mut histories = Vec::new();
        for ((version, chipset, signal), counts) in counts {
            let recent: Vec<&Count> = counts
                .iter()
                .filter(|count| (span.earliest_s()..=span.end_s()).contains(&count.end_s))
                .filter(|count| span.speaks_for_the_past(count.end_s))
                .collect();
            let Some(most) = recent.iter().map(|count| count.devices).max() else {
                continue;
            };
            let hits: u64 = recent.iter().map(|count| count.hits).sum();
            let devices: u64 = recent.iter().map(|count| count.devices).sum();
            let n = recent.len() as f64;
            histories.push(VersionHistory {
                model_version: version.clone(),
                chipset: chipset.clone(),
                signal: *signal,
                tally: Tally::from_means(hits as f64 / n, devices as f64 / n, most),
            });
        }
        histories
    }

    /// Learns the fleet's rates from every version's healthy windows on every chipset; `None` with
    /// fewer than seven windows.
    pub(super) fn rates(&self, span: &Span) -> Option<Rates> {
        self.rates_before(span.end_s())
    }

    /// Learns from all windows so far.
    #[must_use]
    pub fn all_rates(&self) -> Option<Rates> {
        self.rates_before(i64::MAX)
    }

    fn rates_before(&self, end_s: i64) -> Option<Rates> {
        let models = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut windows: std::collections::BTreeSet<i64> = std::collections::BTreeSet::new();
        let mut cohorts: BTreeMap<SignalId, Vec<Tally>> = BTreeMap::new();
        for ((_, _, signal), counts) in models.values().flatten() {
            let recent = counts.iter().filter(|count| count.end_s < end_s);
            let (mut hits, mut devices, mut most, mut n) = (0, 0, 0, 0.0);
            for count in recent {
                windows.insert(count.end_s);
                hits += count.hits;
                devices += count.devices;
                most = count.devices.max(most);
                n += 1.0;
            }
            if most >= crate::signals::MIN_ELIGIBLE {
                let tally = Tally::from_means(hits as f64 / n, devices as f64 / n, most);
                cohorts.entry(*signal).or_default().push(tally);
            }
        }
        if (windows.len() as u64) < MIN_WINDOWS {
            return None;
        }
        Some(Rates::learnt(&cohorts, built_in_rate))
    }
}
