//! Verdicts of earlier windows in memory, for a replay, which writes nothing. A running detector reads them from the
//! store's `cohort_windows`.

use std::collections::{BTreeMap, BTreeSet};

use epwatch_model::{CohortVerdict, ModelKey, SignalId, VerdictClass};
use parking_lot::Mutex;

use crate::judge::base_rates::{BaseRates, MIN_WINDOWS};
use crate::judge::signals::{MIN_ELIGIBLE, UNSURPRISING_P, built_in_rate};
use crate::judge::tally::Tally;

use super::history::{Cohort, HistoryByModel, HistorySums, SignalSums, UsualCv};
use super::span::Span;

/// One window of a cohort.
#[derive(Debug)]
struct PastWindow {
    end_s: i64,
    /// Devices of all versions on the chipset.
    devices: u64,
    /// CV within and between devices.
    cv: Option<(f64, f64)>,
    /// Ratio to the version before, of a healthy window.
    ratio: Option<f64>,
    /// Signals that counted devices. In a window with a finding, only signals that do not show it.
    signals: Vec<(SignalId, Tally)>,
}

/// Windows of all cohorts, in the order they were judged.
#[derive(Debug, Default)]
pub struct PastWindows(Mutex<BTreeMap<ModelKey, BTreeMap<Cohort, Vec<PastWindow>>>>);

impl PastWindows {
    /// Adds a window's verdicts. Verdicts on single firmwares are left out.
    pub fn add(&self, verdicts: &[CohortVerdict]) {
        let mut models = self.0.lock();
        let whole = |verdict: &&CohortVerdict| verdict.key.firmware.is_none();
        for verdict in verdicts.iter().filter(whole) {
            // Healthy fleets sometimes have a spike of CV alone. If such windows were left out, it would never be
            // learnt.
            let is_quiet = matches!(
                verdict.class,
                VerdictClass::Healthy | VerdictClass::NotEnoughData | VerdictClass::CvSpike
            );
            let signals = verdict.signals.iter().chain(&verdict.tallies);
            let is_history = |p: f64| is_quiet || p > UNSURPRISING_P;
            let counted = signals.filter(|signal| is_history(signal.p) && signal.devices > 0);
            let tally = |hits, devices| Tally { hits, devices };
            let statistics = &verdict.statistics;
            let window = PastWindow {
                end_s: verdict.window_end.as_second(),
                devices: verdict.numbers.devices_on_chipset,
                cv: statistics.cv_within.zip(statistics.cv_between),
                ratio: (verdict.class == VerdictClass::Healthy)
                    .then_some(verdict.numbers.latency_ratio)
                    .flatten(),
                signals: counted
                    .map(|signal| (signal.id, tally(signal.hits, signal.devices)))
                    .collect(),
            };
            let key = &verdict.key;
            let cohort = (
                key.model_version.as_str().into(),
                key.chipset.as_str().into(),
            );
            let of_model = models.entry(key.model.clone()).or_default();
            of_model.entry(cohort).or_default().push(window);
        }
    }

    /// Returns the sums over the windows of the look-back.
    pub(super) fn history(&self, span: &Span) -> HistoryByModel {
        let past = span.past();
        let mut sums = HistorySums::default();
        for (model, cohorts) in &*self.0.lock() {
            let of_model = sums.model(model);
            for (cohort, windows) in cohorts {
                let speaks = |window: &&PastWindow| {
                    (past.from_s..=past.until_s).contains(&window.end_s) && past.has(window.end_s)
                };
                for window in windows.iter().filter(speaks) {
                    of_model.add_devices(&cohort.1, window.end_s, window.devices);
                    if let Some((within, between)) = window.cv {
                        let all = within.hypot(between);
                        of_model.add_cv(cohort, UsualCv { all, within }, 1);
                    }
                    if let Some(ratio) = window.ratio {
                        of_model.add_ratio(cohort, ratio);
                    }
                    let is_settled = window.end_s <= past.settled_until_s;
                    for (signal, counted) in window.signals.iter().filter(|_| is_settled) {
                        let added = SignalSums::of_window(window.end_s, *counted);
                        of_model.add_signal(cohort, *signal, added);
                    }
                }
            }
        }
        sums.finish()
    }

    /// Learns the fleet's rates from healthy windows of every version on every chipset that is
    /// [`MIN_WINDOWS`] windows old; `None` without any.
    ///
    /// A fault that no single window makes a page comes with a version and lasts. Suppose that a cohort contributed
    /// from its first window on. Its fault would become normal before it was confirmed, for itself and for other
    /// cohorts with the same version.
    pub(super) fn rates(&self, span: &Span) -> Option<BaseRates> {
        let age_s = span.window.as_secs().saturating_mul(MIN_WINDOWS);
        let since_s = span.end_s().saturating_sub_unsigned(age_s);
        self.learnt(span.end_s(), since_s, span.past().settled_until_s)
    }

    /// Learns from all windows so far, including young cohorts, for a period that is known to have no faults. `None`
    /// with fewer than seven windows.
    #[must_use]
    pub fn all_rates(&self) -> Option<BaseRates> {
        self.learnt(i64::MAX, i64::MAX, i64::MAX)
    }

    /// Learns from windows that ended before `end_s`, of cohorts whose first window ended at `since_s` or before. Only
    /// windows that ended by `settled_s` contribute, and the first seven in any case.
    fn learnt(&self, end_s: i64, since_s: i64, settled_s: i64) -> Option<BaseRates> {
        let models = self.0.lock();
        let cohorts = || models.values().flat_map(BTreeMap::values);
        let counted = cohorts()
            .flatten()
            .filter(|window| !window.signals.is_empty());
        let ends: BTreeSet<i64> = counted.map(|window| window.end_s).collect();
        let seventh = usize::try_from(MIN_WINDOWS).unwrap_or(usize::MAX) - 1;
        let first_ones = ends.iter().nth(seventh);
        let until_s = first_ones.map_or(end_s, |seventh| settled_s.max(*seventh));
        let mut taught: BTreeSet<i64> = BTreeSet::new();
        let mut tallies: BTreeMap<SignalId, Vec<Tally>> = BTreeMap::new();
        for windows in cohorts() {
            let first_end_s = windows.iter().map(|window| window.end_s).min();
            if first_end_s.is_none_or(|first_end_s| first_end_s > since_s) {
                continue;
            }
            let mut sums: BTreeMap<SignalId, SignalSums> = BTreeMap::new();
            let recent = |window: &&PastWindow| window.end_s < end_s && window.end_s <= until_s;
            for window in windows.iter().filter(recent) {
                for (signal, counted) in &window.signals {
                    taught.insert(window.end_s);
                    let added = SignalSums::of_window(window.end_s, *counted);
                    let known = sums.entry(*signal);
                    known.and_modify(|sums| sums.add(added)).or_insert(added);
                }
            }
            for (signal, sums) in sums {
                if sums.largest >= MIN_ELIGIBLE {
                    tallies.entry(signal).or_default().push(sums.tally());
                }
            }
        }
        if (taught.len() as u64) < MIN_WINDOWS {
            return None;
        }
        Some(BaseRates::learnt(&tallies, built_in_rate))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::judge::signals::{Limits, slow_devices};
    use crate::judge::tally::{BaseRate, surprise};
    use crate::judge::window::CohortWindow;
    use crate::testing::{Fleet, at, judged, reference};
    use epwatch_model::Severity;

    const WINDOW_S: i64 = 3600;
    const BEYOND: SignalId = SignalId::ShiftBeyond(20);

    fn span(window: i64) -> Span {
        Span {
            end: at(window * WINDOW_S),
            window: Duration::from_secs(3600),
            lookback: Duration::from_secs(14 * 24 * 3600),
            stands_alone: false,
        }
    }

    /// Adds a window of 60 devices. A share of them is 2.5 times slower, too few for a finding, with unchanged
    /// placements.
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
            .map(|rates| rates.of(BEYOND, slow_devices::FLEET_RATE))
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

    /// A version that is old on one chipset is still new on another.
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

    /// Slower devices do not affect how often the NPU starts.
    #[test]
    fn a_standing_ticket_removes_the_history_of_its_own_signals_alone() {
        let past = PastWindows::default();
        let fleet = Fleet {
            weight: 2.0,
            ..Fleet::default()
        };
        for window in 1..=3 {
            let slow = CohortWindow {
                end: at(window * WINDOW_S),
                ..fleet.window()
            };
            let verdict = judged(&slow, None, &reference());
            assert_eq!(verdict.class, VerdictClass::SlowWithoutPlacement);
            past.add(&[verdict]);
        }
        let history = past.history(&span(6));
        let signals = &history[&crate::testing::model()].signals;
        let known = |signal| signals.iter().any(|history| history.signal == signal);
        assert!(known(SignalId::Start));
        assert!(known(SignalId::Placement));
        assert!(!known(BEYOND));
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
            let history = past.history(&span(window));
            let mut signals = history[&crate::testing::model()].signals.iter();
            let found = signals.find(|history| history.signal == BEYOND);
            found.unwrap().tally.hits
        };
        // About 5 of 60 devices are hit in none of three windows, in one of four, and in two of five.
        assert_eq!([hits(6), hits(7), hits(8)], [0, 1, 2]);
    }

    /// A fleet whose devices differ more than the built-in rates expect stops paging.
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
            let fleet = rates.of(BEYOND, slow_devices::FLEET_RATE);
            surprise(found, fleet, Tally::default())
        };
        let limit = Limits::for_windows_a_day(10.0).p_shift;
        let built_in = p(&BaseRates::default());
        assert!(built_in < limit, "{built_in}");
        assert!(p(&learnt) > 2.0 * limit, "{} {learnt:?}", p(&learnt));
        assert_eq!(past.all_rates(), Some(learnt));
    }
}
