//! The usual speed of devices that do not report it themselves. It comes from their own runs on the version before, if
//! the store has them, else from devices of the same make on that version. If most devices have no such past, it comes
//! from their own runs on the same version in earlier windows.

use std::sync::Arc;

use epwatch_model::Installation;
use epwatch_stats::order_stat::median;
use epwatch_stats::{Moments, RangeHistogram};
use jiff::Timestamp;

use crate::judge::hash::HashMap;
use crate::judge::window::{
    CohortWindow, MIN_RUNS_HIGH, MissingBaseline, SelfBaseline, SelfBaselineKind,
};
use crate::read::interner::Texts;

/// Minimum number of devices of a make whose median counts as the median of the make.
const MIN_SAME_MODEL: usize = 5;

/// Ratio from which a device was faster on this version than on the version before.
const FASTER: f64 = 1.25;

/// The runs with which a device is compared if it does not report its own usual speed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BaselineVersion {
    /// Runs on the version before, from the device itself or from its make.
    PreviousVersion,
    /// Its own runs on the same version, in earlier windows.
    SameVersion,
}

/// The runs that a query is for.
#[derive(Debug, Clone, Copy)]
pub struct BaselineRequest {
    /// Versions whose runs count.
    pub before: BaselineVersion,
    /// End, exclusive, at or before the window's start.
    pub until: Timestamp,
    /// Approximate number of pairs of device and input shape.
    pub votes: u64,
}

/// Baselines of the devices of one version on one chipset.
#[derive(Debug, Default)]
pub struct DeviceBaselines {
    own: HashMap<(Installation, Arc<str>), SelfBaseline>,
    of_model: HashMap<(Arc<str>, Arc<str>), SelfBaseline>,
}

/// Builds the baselines while rows arrive, in any order.
#[derive(Debug, Default)]
pub(super) struct DeviceBaselinesBuilder {
    texts: Texts,
    own: HashMap<(Installation, Arc<str>), SelfBaseline>,
    by_model: HashMap<(Arc<str>, Arc<str>), Vec<SelfBaseline>>,
}

/// Clean runs of one device with one input shape.
pub(super) struct DeviceSums<'a> {
    pub(super) model_version: &'a str,
    pub(super) installation: Installation,
    pub(super) device_model: &'a str,
    pub(super) shape_key: &'a str,
    pub(super) histogram: RangeHistogram,
    pub(super) moments: Option<Moments>,
}

impl DeviceBaselinesBuilder {
    /// Adds a device with one input shape. Each pair is added once.
    pub(super) fn add(&mut self, runs: &DeviceSums<'_>, before: BaselineVersion) {
        if runs.histogram.n() < MIN_RUNS_HIGH {
            return;
        }
        let quantile = |q| runs.histogram.quantile(q);
        let (Some(p10_us), Some(p50_us), Some(p95_us)) =
            (quantile(0.1), quantile(0.5), quantile(0.95))
        else {
            return;
        };
        let kind = match before {
            BaselineVersion::PreviousVersion => {
                SelfBaselineKind::PreviousVersion(self.texts.shared(runs.model_version))
            }
            BaselineVersion::SameVersion => SelfBaselineKind::EarlierWindows,
        };
        let baseline = SelfBaseline {
            kind,
            n: runs.histogram.n(),
            p10_us,
            p50_us,
            p95_us,
            cv: runs.moments.and_then(|moments| moments.cv()).unwrap_or(0.0),
        };
        let shape = self.texts.shared(runs.shape_key);
        // Within a version, other devices are not used, because silicon of one make differs.
        if before == BaselineVersion::PreviousVersion && !runs.device_model.is_empty() {
            let device_model = self.texts.shared(runs.device_model);
            let of_model = self.by_model.entry((device_model, shape.clone()));
            of_model.or_default().push(baseline.clone());
        }
        self.own.insert((runs.installation, shape), baseline);
    }

    pub(super) fn finish(self) -> DeviceBaselines {
        let makes = self.by_model.into_iter();
        DeviceBaselines {
            own: self.own,
            of_model: makes
                .filter_map(|(key, baselines)| Some((key, typical(&baselines)?)))
                .collect(),
        }
    }
}

impl DeviceBaselines {
    /// Gives the devices of a window the usual speed that they do not report themselves.
    pub fn fill(&self, window: &mut CohortWindow) {
        for vote in &mut window.votes {
            let Some(latency) = &mut vote.latency else {
                continue;
            };
            if latency.device_baseline.is_ok() {
                continue;
            }
            let shape = &vote.shape_key;
            let own = self.own.get(&(vote.installation, shape.clone()));
            let of_model = || {
                self.of_model
                    .get(&(vote.device_model.clone(), shape.clone()))
            };
            if let Some(baseline) = own.or_else(of_model) {
                latency.learn(baseline.clone());
            }
        }
    }
}

impl DeviceBaselines {
    /// Compares the devices of a window with their usual speed on this version, if it is faster than their speed on the
    /// version before. So the worse of both comparisons counts. If the version `has_lost` its gain, and the look-back
    /// no longer shows how fast it was, devices get no baseline. The version before would then hide the fault.
    pub fn fill_faster(&self, window: &mut CohortWindow, has_lost: bool) {
        let is_forgotten = has_lost && self.own.is_empty();
        for vote in &mut window.votes {
            let Some(latency) = &mut vote.latency else {
                continue;
            };
            let own = self.own.get(&(vote.installation, vote.shape_key.clone()));
            let known = latency.device_baseline.as_ref().ok();
            match (own, known) {
                (Some(own), Some(known)) if own.p10_us * FASTER < known.p10_us => {
                    latency.device_baseline = Ok(SelfBaseline {
                        kind: SelfBaselineKind::FasterWindows,
                        ..own.clone()
                    });
                }
                (None, Some(_)) if is_forgotten => {
                    latency.device_baseline = Err(MissingBaseline::Unknown);
                    (latency.against_self, latency.own_against_self) = (None, None);
                }
                _ => {}
            }
        }
    }
}

fn typical(baselines: &[SelfBaseline]) -> Option<SelfBaseline> {
    if baselines.len() < MIN_SAME_MODEL {
        return None;
    }
    let of = |field: fn(&SelfBaseline) -> f64| {
        let values: Vec<f64> = baselines.iter().map(field).collect();
        median(&values)
    };
    Some(SelfBaseline {
        kind: SelfBaselineKind::SameModel,
        n: baselines.iter().map(|baseline| baseline.n).sum(),
        p10_us: of(|b| b.p10_us)?,
        p50_us: of(|b| b.p50_us)?,
        p95_us: of(|b| b.p95_us)?,
        cv: of(|b| b.cv)?,
    })
}
