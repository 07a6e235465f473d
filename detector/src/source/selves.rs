//! What devices were used to, where they do not say it themselves: from their own runs on the version
//! before, as far as the store has them, else from the devices of the same make on that version.

use std::collections::BTreeMap;
use std::sync::Arc;

use epwatch_stats::order_stat::median;
use epwatch_stats::{HistogramError, Moments};

use crate::hash::HashMap;
use crate::window::{
    CohortWindow, Installation, MIN_RUNS_HIGH, SelfBaseline, SelfBaselineKind, histogram_of,
};

use super::rows::SelfRow;

/// Devices of a make that speak for it.
const MIN_SAME_MODEL: usize = 5;

/// Earlier selves of the devices of one version on one chipset.
#[derive(Debug, Default)]
pub struct SelvesBefore {
    own: HashMap<(Installation, Arc<str>), SelfBaseline>,
    of_model: HashMap<(String, Arc<str>), SelfBaseline>,
}

impl SelvesBefore {
    pub(super) fn from_rows(version: &str, rows: Vec<SelfRow>) -> Result<Self, HistogramError> {
        let version: Arc<str> = version.into();
        let mut selves = SelvesBefore::default();
        let mut by_model: BTreeMap<(String, Arc<str>), Vec<SelfBaseline>> = BTreeMap::new();
        for row in rows {
            let histogram = histogram_of(row.hist_bucket.into_iter().zip(row.hist_count))?;
            if histogram.n() < MIN_RUNS_HIGH {
                continue;
            }
            let quantile = |q| histogram.quantile(q);
            let (Some(p10_us), Some(p50_us), Some(p95_us)) =
                (quantile(0.1), quantile(0.5), quantile(0.95))
            else {
                continue;
            };
            let cv = Moments::from_parts(row.n, row.sum_us, row.m2_us2)
                .and_then(|moments| moments.cv())
                .unwrap_or(0.0);
            let baseline = SelfBaseline {
                kind: SelfBaselineKind::PreviousVersion(version.clone()),
                n: histogram.n(),
                p10_us,
                p50_us,
                p95_us,
                cv,
            };
            let shape: Arc<str> = row.shape_key.into();
            if !row.device_model.is_empty() {
                let of_model = by_model
                    .entry((row.device_model, shape.clone()))
                    .or_default();
                of_model.push(baseline.clone());
            }
            selves.own.insert((row.installation, shape), baseline);
        }
        for (key, baselines) in by_model {
            if let Some(typical) = typical(&baselines) {
                selves.of_model.insert(key, typical);
            }
        }
        Ok(selves)
    }

    /// Gives the devices of a window what they do not know themselves.
    pub fn fill(&self, window: &mut CohortWindow) {
        for vote in &mut window.votes {
            let Some(latency) = &mut vote.latency else {
                continue;
            };
            if latency.earlier_self.is_ok() {
                continue;
            }
            let shape = vote.shape_key.clone();
            let own = self.own.get(&(vote.installation, shape.clone()));
            let of_model = || self.of_model.get(&(vote.device_model.to_string(), shape));
            if let Some(baseline) = own.or_else(of_model) {
                latency.earlier_self = Ok(baseline.clone());
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
