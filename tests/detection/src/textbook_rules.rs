//! Textbook rules on merged clean runs, for comparison with the detector: how often they fire on cohort windows with
//! and without a fault. Their rate on healthy windows also measures how hard the fleets are.

use std::collections::{BTreeMap, BTreeSet};

use crate::labelled::{FamilyReport, ks_p_value, sarle, wasserstein_log};
use epwatch_detector::window::histogram_of;
use epwatch_proto::SparseHistogram;
use epwatch_stats::{Moments, dip};

/// A cohort with an input shape: model, version, chipset and shape.
type Key = (String, String, String, String);

type Merged = BTreeMap<Key, (SparseHistogram, Moments)>;

/// A window with less than this share of the known window's runs does not represent a version.
const WHOLE: f64 = 0.7;

/// The names of the rules, in the order of the table.
pub(crate) const RULES: [&str; 7] = [
    "CV > 15 %",
    "CV > 1.5x or median > 1.2x the previous version's",
    "Sarle > 0.555",
    "dip p < 0.01",
    "KS p < 1e-3 against the previous version",
    "Wasserstein-1 of log latency > 0.15",
    "two lognormals, apart",
];

/// Rules that could answer for a cohort window, and rules that fired, by their index in [`RULES`].
#[derive(Debug, Clone, Default)]
pub(crate) struct Answers {
    pub(crate) asked: BTreeSet<usize>,
    pub(crate) fired: BTreeSet<usize>,
}

/// The sums of a family's windows, in their order.
#[derive(Debug, Default)]
pub(crate) struct TextbookRules {
    /// The latest whole window of the versions before the evaluated one.
    before: BTreeMap<(String, String, String), (String, SparseHistogram, Moments)>,
    /// Clean runs of the window so far.
    merged: BTreeMap<Key, (BTreeMap<u16, u64>, Moments)>,
}

impl TextbookRules {
    /// Adds a report to the window.
    pub(crate) fn add(&mut self, report: &FamilyReport) {
        let report = &report.report;
        let clean = report.series.iter().filter(|s| s.stratum.is_clean());
        for series in clean {
            let session = report.session(series.session_uid);
            let Some(session) = session.filter(|session| session.model.id == "segmenter") else {
                continue;
            };
            let key = (
                session.model.id.clone(),
                session.model.version.clone(),
                report.device.chipset.as_str().to_owned(),
                series.stratum.shape_key.clone(),
            );
            let slot = self.merged.entry(key).or_default();
            for (index, count) in series.histogram.buckets() {
                *slot.0.entry(index).or_default() += count;
            }
            let moments = Moments::from_parts(series.n, series.sum_us, series.m2_us2);
            if let Some(moments) = moments {
                slot.1 = slot.1.merged(&moments);
            }
        }
    }

    /// Ends the window. If `is_evaluated`, returns the answers by (model, version, chipset), of any input shape.
    pub(crate) fn end_window(
        &mut self,
        is_evaluated: bool,
    ) -> BTreeMap<(String, String, String), Answers> {
        let merged = std::mem::take(&mut self.merged).into_iter();
        let merged: Merged = merged
            .map(|(key, (counts, moments))| (key, (histogram(&counts), moments)))
            .collect();
        let mut found: BTreeMap<(String, String, String), Answers> = BTreeMap::new();
        for ((model, version, chipset, shape), (histogram, moments)) in &merged {
            if !is_evaluated {
                break;
            }
            let slot = found
                .entry((model.clone(), version.clone(), chipset.clone()))
                .or_default();
            let place = (model.clone(), chipset.clone(), shape.clone());
            let previous = self
                .before
                .get(&place)
                .filter(|(known, _, _)| known != version)
                .map(|(_, histogram, moments)| (histogram, moments));
            for (rule, answer) in answers(histogram, moments, previous)
                .into_iter()
                .enumerate()
            {
                if let Some(fires) = answer {
                    slot.asked.insert(rule);
                    if fires {
                        slot.fired.insert(rule);
                    }
                }
            }
        }
        for ((model, version, chipset, shape), (histogram, moments)) in merged {
            let place = (model, chipset, shape);
            // The evaluated version is not part of its own reference, and the few devices that a roll-out leaves
            // behind do not represent their version.
            let is_less = self.before.get(&place).is_some_and(|(latest, _, known)| {
                *latest > version || moments.n() as f64 <= WHOLE * known.n() as f64
            });
            if version == "2.0.0" || is_less {
                continue;
            }
            self.before.insert(place, (version, histogram, moments));
        }
        found
    }
}

fn histogram(counts: &BTreeMap<u16, u64>) -> SparseHistogram {
    let (indices, counts) = counts.iter().map(|(index, count)| (*index, *count)).unzip();
    SparseHistogram::from_parts(indices, counts).expect("in order, and none is zero")
}

fn answers(
    histogram: &SparseHistogram,
    moments: &Moments,
    previous: Option<(&SparseHistogram, &Moments)>,
) -> [Option<bool>; 7] {
    let cv = moments.cv();
    let dip_p = histogram_of(histogram.buckets())
        .ok()
        .and_then(|of| dip::p_value(dip::of_histogram(&of)?, of.n()));
    let apart = histogram_of(histogram.buckets())
        .ok()
        .and_then(|of| epwatch_stats::mixture::fit(&of, of.n()))
        .map(|two| {
            let smaller = two.fast.weight.min(two.slow.weight);
            two.bic_gain > 10.0 && two.separation() > 2.0 && smaller >= 0.05
        });
    let moved = previous.and_then(|(before, earlier)| {
        let median = histogram.quantile_us(0.5)? / before.quantile_us(0.5)?;
        Some(cv? > 1.5 * earlier.cv()? || median > 1.2)
    });
    [
        cv.map(|cv| cv > 0.15),
        moved,
        sarle(histogram).map(|b| b > 0.555),
        dip_p.map(|p| p < 0.01),
        previous.and_then(|(before, _)| ks_p_value(histogram, before).map(|p| p < 1e-3)),
        previous.and_then(|(before, _)| wasserstein_log(histogram, before).map(|d| d > 0.15)),
        apart,
    ]
}
