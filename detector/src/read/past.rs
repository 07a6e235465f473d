//! Verdicts of earlier windows, held in memory: what the store's `cohort_windows_v1` gives a running
//! detector, for a replay, which writes nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};

use crate::base_rates::{BaseRates, MIN_WINDOWS};
use crate::cohort::ModelKey;
use crate::signals::{MIN_ELIGIBLE, SignalId, built_in_rate};
use crate::tally::Tally;
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

/// Version, chipset, signal: its counts.
type Counts = BTreeMap<(String, String, SignalId), Vec<Count>>;

/// What one model's windows taught.
#[derive(Debug, Default)]
struct OfModel {
    /// Version, chipset: end of its first window, whatever was found in it.
    first_end_s: BTreeMap<(String, String), i64>,
    counts: Counts,
}

/// Counts of earlier windows without a finding.
#[derive(Debug, Default)]
pub struct PastWindows {
    models: Mutex<BTreeMap<ModelKey, OfModel>>,
    judged: Mutex<Vec<Judged>>,
}

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
        let mut models = self.models.lock().unwrap_or_else(PoisonError::into_inner);
        self.note(verdicts);
        for verdict in verdicts {
            let end_s = verdict.window_end.as_second();
            let of_model = models.entry(verdict.key.model.clone()).or_default();
            let cohort = (
                verdict.key.model_version.clone(),
                verdict.key.chipset.clone(),
            );
            let first = of_model.first_end_s.entry(cohort).or_insert(end_s);
            *first = end_s.min(*first);
            // A spike of CV alone is what healthy fleets do at times: left out, it would never be learnt.
            let quiet = matches!(
                verdict.class,
                VerdictClass::Healthy | VerdictClass::NotEnoughData | VerdictClass::CvSpike
            );
            if !quiet || verdict.key.firmware.is_some() {
                continue;
            }
            for signal in verdict.signals.iter().chain(&verdict.tallies) {
                if signal.devices == 0 {
                    continue;
                }
                let key = (
                    verdict.key.model_version.clone(),
                    verdict.key.chipset.clone(),
                    signal.id,
                );
                of_model.counts.entry(key).or_default().push(Count {
                    end_s,
                    hits: signal.hits,
                    devices: signal.devices,
                });
            }
        }
    }

    fn note(&self, verdicts: &[CohortVerdict]) {
        let mut judged = self.judged.lock().unwrap_or_else(PoisonError::into_inner);
        let whole = verdicts.iter().filter(|v| v.key.firmware.is_none());
        judged.extend(whole.map(|verdict| {
            Judged {
                model: verdict.key.model.clone(),
                model_version: verdict.key.model_version.clone(),
                chipset: verdict.key.chipset.clone(),
                end_s: verdict.window_end.as_second(),
                devices: verdict.numbers.devices_seen,
                cv: verdict
                    .statistics
                    .cv_within
                    .zip(verdict.statistics.cv_between),
            }
        }));
    }

    /// Returns what the windows of the look-back had, and forgets what is older.
    pub(super) fn usual(&self, span: &Span) -> Usual {
        let mut judged = self.judged.lock().unwrap_or_else(PoisonError::into_inner);
        let past = span.past();
        judged.retain(|one| one.end_s >= past.from_s);
        let mut devices: BTreeMap<(&ModelKey, &str, i64), u64> = BTreeMap::new();
        let mut cvs: BTreeMap<(&ModelKey, &str, &str), (UsualCv, f64)> = BTreeMap::new();
        let speaks = |one: &&Judged| one.end_s <= past.until_s && past.has(one.end_s);
        for one in judged.iter().filter(speaks) {
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
        for ((model, chipset), counts) in windows {
            let of_model = usual.0.entry(model.clone()).or_default();
            let found = UsualDevices::of(counts).map(|found| (chipset.to_owned(), found));
            of_model.devices.extend(found);
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
        let models = self.models.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(of_model) = models.get(model) else {
            return Vec::new();
        };
        let past = span.past();
        let speaks = past.from_s..=past.settled_until_s;
        let mut histories = Vec::new();
        for ((version, chipset, signal), counts) in &of_model.counts {
            let recent: Vec<&Count> = counts
                .iter()
                .filter(|count| speaks.contains(&count.end_s) && past.has(count.end_s))
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
                since_s: recent
                    .iter()
                    .map(|count| count.end_s)
                    .min()
                    .unwrap_or(i64::MAX),
            });
        }
        histories
    }

    /// Learns the fleet's rates from healthy windows of every version on every chipset that is
    /// [`MIN_WINDOWS`] windows old; `None` without any.
    ///
    /// A fault that no single window makes a page comes with a version and lasts: if a cohort taught
    /// from its first window on, its fault would be its own normal, and that of others which got the
    /// same version, before it was confirmed.
    pub(super) fn rates(&self, span: &Span) -> Option<BaseRates> {
        let age_s = span.window.as_secs().saturating_mul(MIN_WINDOWS);
        let since_s = span.end_s().saturating_sub_unsigned(age_s);
        self.learnt(span.end_s(), since_s, span.past().settled_until_s)
    }

    /// Learns from all windows so far, of young cohorts too: for a period that is known to be without
    /// faults. `None` with fewer than seven windows.
    #[must_use]
    pub fn all_rates(&self) -> Option<BaseRates> {
        self.learnt(i64::MAX, i64::MAX, i64::MAX)
    }

    /// Learns from windows that ended before `end_s`, of cohorts whose first one ended at `since_s` or
    /// before: from those until `settled_s`, and the first seven in any case.
    fn learnt(&self, end_s: i64, since_s: i64, settled_s: i64) -> Option<BaseRates> {
        let models = self.models.lock().unwrap_or_else(PoisonError::into_inner);
        let ends = models
            .values()
            .flat_map(|model| model.counts.values())
            .flatten();
        let ends: BTreeSet<i64> = ends.map(|count| count.end_s).collect();
        let first_ones = ends
            .iter()
            .nth(usize::try_from(MIN_WINDOWS).unwrap_or(usize::MAX) - 1);
        let until_s = first_ones.map_or(end_s, |seventh| settled_s.max(*seventh));
        let mut windows: BTreeSet<i64> = BTreeSet::new();
        let mut cohorts: BTreeMap<SignalId, Vec<Tally>> = BTreeMap::new();
        for of_model in models.values() {
            let firsts = of_model.first_end_s.iter();
            let old: BTreeSet<(&str, &str)> = firsts
                .filter(|(_, first_end_s)| **first_end_s <= since_s)
                .map(|((version, chipset), _)| (&**version, &**chipset))
                .collect();
            for ((version, chipset, signal), counts) in &of_model.counts {
                if !old.contains(&(&**version, &**chipset)) {
                    continue;
                }
                let recent = counts.iter();
                let recent = recent.filter(|count| count.end_s < end_s && count.end_s <= until_s);
                let (mut hits, mut devices, mut most, mut n) = (0, 0, 0, 0.0);
                for count in recent {
                    windows.insert(count.end_s);
                    hits += count.hits;
                    devices += count.devices;
                    most = count.devices.max(most);
                    n += 1.0;
                }
                if most >= MIN_ELIGIBLE {
                    let tally = Tally::from_means(hits as f64 / n, devices as f64 / n, most);
                    cohorts.entry(*signal).or_default().push(tally);
                }
            }
        }
        if (windows.len() as u64) < MIN_WINDOWS {
            return None;
        }
        Some(BaseRates::learnt(&cohorts, built_in_rate))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::signals::{Limits, b_shift};
    use crate::tally::{BaseRate, surprise};
    use crate::testing::{Fleet, at, judged, reference};
    use crate::verdict::Severity;
    use crate::window::CohortWindow;

    const WINDOW_S: i64 = 3600;
    const BEYOND: SignalId = SignalId::ShiftBeyond(20);

    fn span(window: i64) -> Span {
        Span {
            end: at(window * WINDOW_S),
            window: Duration::from_secs(3600),
            lookback: Duration::from_secs(14 * 24 * 3600),
        }
    }

    /// Hands in a window of 60 devices of which a share is 2.5 times slower, placements as they were;
    /// too few for a finding.
    fn add(past: &PastWindows, (version, chipset): (&'static str, &str), window: i64, share: f64) {
        let fleet = Fleet {
            version,
            hit_share: share,
            slow_factor: 2.5,
            ..Fleet::default()
        };
        let window = CohortWindow {
            end: at(window * WINDOW_S),
            ..fleet.window()
        };
        let mut verdict = judged(&window, None, &reference());
        verdict.key.chipset = chipset.to_owned();
        assert!(verdict.severity < Severity::Ticket, "{verdict:#?}");
        past.add(&[verdict]);
    }

    fn rate(past: &PastWindows, window: i64) -> Option<BaseRate> {
        past.rates(&span(window))
            .map(|rates| rates.of(BEYOND, b_shift::FLEET_RATE))
    }

    #[test]
    fn a_version_teaches_nothing_before_it_is_seven_windows_old() {
        let past = PastWindows::default();
        for window in 1..=8 {
            for chipset in ["SM8635", "SM8650"] {
                add(&past, ("1.0.0", chipset), window, 0.0);
            }
        }
        let sound = rate(&past, 9).unwrap();
        for window in 9..=15 {
            add(&past, ("1.0.0", "SM8635"), window, 0.0);
            add(&past, ("2.0.0", "SM8650"), window, 0.05);
            let learnt = rate(&past, window + 1).unwrap();
            if window < 15 {
                assert_eq!(learnt, sound);
            } else {
                assert!(learnt.rate > 1.5 * sound.rate, "{learnt:?}, not {sound:?}");
            }
        }
    }

    /// A version that is old elsewhere is still new where it arrives.
    #[test]
    fn a_version_is_young_on_each_chipset_it_comes_to() {
        let past = PastWindows::default();
        for window in 1..=8 {
            add(&past, ("1.0.0", "SM8635"), window, 0.0);
            add(&past, ("1.0.0", "SM8650"), window, 0.0);
        }
        let sound = rate(&past, 9);
        add(&past, ("1.0.0", "SM8750"), 9, 0.05);
        assert_eq!(rate(&past, 10), sound);
    }

    #[test]
    fn overlapping_windows_make_no_version_older() {
        let past = PastWindows::default();
        for window in 0..40 {
            let end = at(WINDOW_S + window * 60);
            let mut verdict = judged(&Fleet::default().window(), None, &reference());
            verdict.window_end = end;
            past.add(&[verdict]);
        }
        assert_eq!(past.rates(&span(2)), None);
        assert!(past.all_rates().is_some());
    }

    #[test]
    fn a_fault_that_grows_is_not_its_own_past() {
        let past = PastWindows::default();
        for window in 1..=3 {
            add(&past, ("1.0.0", "SM8635"), window, 0.0);
        }
        for window in 4..=6 {
            add(&past, ("1.0.0", "SM8635"), window, 0.09);
        }
        let hits = |window| {
            let histories = past.histories(&crate::testing::model(), &span(window));
            let found = histories.iter().find(|history| history.signal == BEYOND);
            found.unwrap().tally.hits
        };
        // About 5 of 60 devices in none of three windows, in one of four, in two of five.
        assert_eq!([hits(6), hits(7), hits(8)], [0, 1, 2]);
    }

    /// Nobody is paged for ever by a fleet whose devices differ more than the built-in rates expect.
    #[test]
    fn a_fleet_noisier_than_the_built_in_rates_teaches_its_own() {
        let past = PastWindows::default();
        for window in 1..=7 {
            for (chipset, share) in [("SM8635", 0.05), ("SM8650", 0.07), ("SM8750", 0.09)] {
                add(&past, ("1.0.0", chipset), window, share);
            }
        }
        assert_eq!(past.rates(&span(7)), None);
        let learnt = past.rates(&span(8)).unwrap();
        let found = Tally {
            hits: 11,
            devices: 60,
        };
        let p = |rates: &BaseRates| {
            let fleet = rates.of(BEYOND, b_shift::FLEET_RATE);
            surprise(found, fleet, Tally::default())
        };
        let limit = Limits::for_windows_a_day(10.0).p_shift;
        let built_in = p(&BaseRates::default());
        assert!(built_in < limit, "{built_in}");
        assert!(p(&learnt) > 2.0 * limit, "{} {learnt:?}", p(&learnt));
        assert_eq!(past.all_rates(), Some(learnt));
    }
}
