//! How hard the fleets are: how often textbook rules on merged runs fire where nothing is the matter.

use std::collections::BTreeMap;
use std::fmt;

use epwatch_fleet::labelled::{
    Benign, Family, FamilySpec, Story, ks_p_value, sarle, wasserstein_log,
};
use epwatch_proto::SparseHistogram;
use epwatch_stats::Moments;

use crate::START_MS;

/// Shares of healthy cohort windows.
#[derive(Debug, Default)]
pub(crate) struct Hardness {
    windows: u64,
    cv: u64,
    sarle: u64,
    against_previous: u64,
    ks: u64,
    wasserstein: u64,
}

/// Measures plain families.
pub(crate) fn measured(first_seed: u64, families: u64) -> Hardness {
    let mut hardness = Hardness::default();
    for seed in first_seed..first_seed + families {
        let spec = FamilySpec::drawn(seed + 900_000, Story::Benign(Benign::Plain));
        let family = Family::new(spec, START_MS);
        let mut before: BTreeMap<(String, String), SparseHistogram> = BTreeMap::new();
        for window in 0..family.n_windows() {
            let mut merged: BTreeMap<(String, String, String), (SparseHistogram, Moments)> =
                BTreeMap::new();
            for report in family.window(window) {
                let report = &report.report;
                for series in report
                    .series
                    .iter()
                    .filter(|series| series.stratum.is_clean())
                {
                    let Some(session) = report.session(series.session_uid) else {
                        continue;
                    };
                    if session.model.id != "segmenter" {
                        continue;
                    }
                    let key = (
                        report.device.chipset.as_str().to_owned(),
                        session.model.version.clone(),
                        series.stratum.shape_key.clone(),
                    );
                    let slot = merged.entry(key).or_default();
                    slot.0.merge(&series.histogram);
                    if let Some(moments) =
                        Moments::from_parts(series.n, series.sum_us, series.m2_us2)
                    {
                        slot.1 = slot.1.merged(&moments);
                    }
                }
            }
            for ((chipset, version, shape), (histogram, moments)) in &merged {
                hardness.windows += 1;
                hardness.cv += u64::from(moments.cv().is_some_and(|cv| cv > 0.15));
                hardness.sarle += u64::from(sarle(histogram).is_some_and(|b| b > 0.555));
                if version == "2.0.0"
                    && let Some(previous) = before.get(&(chipset.clone(), shape.clone()))
                {
                    hardness.against_previous += 1;
                    hardness.ks +=
                        u64::from(ks_p_value(histogram, previous).is_some_and(|p| p < 1e-3));
                    let far = wasserstein_log(histogram, previous).is_some_and(|d| d > 0.15);
                    hardness.wasserstein += u64::from(far);
                }
            }
            for ((chipset, version, shape), (histogram, _)) in merged {
                if version == "1.0.0" {
                    before.insert((chipset, shape), histogram);
                }
            }
        }
    }
    hardness
}

impl fmt::Display for Hardness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = |n: u64, of: u64| 100.0 * n as f64 / of.max(1) as f64;
        writeln!(
            f,
            "Of {} plain healthy cohort windows: CV > 15 % in {:.1} %, Sarle > 0.555 in {:.1} %; of {} \
             on a new version: KS p < 1e-3 in {:.1} %, Wasserstein-1 > 0.15 in {:.1} %.\n",
            self.windows,
            percent(self.cv, self.windows),
            percent(self.sarle, self.windows),
            self.against_previous,
            percent(self.ks, self.against_previous),
            percent(self.wasserstein, self.against_previous),
        )
    }
}
