//! What devices were used to, where they do not say it themselves: from their own runs on the version
//! before, as far as the store has them, else from the devices of the same make on that version. Where
//! most have no such past, from their own runs on the same version in earlier windows.

use std::sync::Arc;

use epwatch_stats::order_stat::median;
use epwatch_stats::{HistogramError, Moments};
use jiff::Timestamp;

use crate::hash::HashMap;
use crate::interner::Texts;
use crate::window::{
    CohortWindow, Installation, MIN_RUNS_HIGH, SelfBaseline, SelfBaselineKind, histogram_of,
};

use super::rows::SelfRow;

/// Devices of a make that speak for it.
const MIN_SAME_MODEL: usize = 5;

/// Whose runs a device is held against that does not say what it was used to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Before {
    /// Those on the version before, its own or of its make.
    PreviousVersion,
    /// Its own on the same version, in earlier windows.
    SameVersion,
}

/// Which runs are asked for.
#[derive(Debug, Clone, Copy)]
pub struct Asked {
    /// Whose.
    pub before: Before,
    /// Until when, exclusive, and never into the window.
    pub until: Timestamp,
    /// About how many devices and shapes there are.
    pub votes: u64,
}

/// Earlier selves of the devices of one version on one chipset.
#[derive(Debug, Default)]
pub struct SelvesBefore {
    own: HashMap<(Installation, Arc<str>), SelfBaseline>,
    of_model: HashMap<(Arc<str>, Arc<str>), SelfBaseline>,
}

/// The same while its rows are coming, in any order.
#[derive(Debug, Default)]
pub(super) struct SelvesBuilder {
    texts: Texts,
    own: HashMap<(Installation, Arc<str>), SelfBaseline>,
    by_model: HashMap<(Arc<str>, Arc<str>), Vec<SelfBaseline>>,
}

impl SelvesBuilder {
    /// Adds a device with one input shape; each comes once.
    pub(super) fn add(&mut self, row: SelfRow, before: Before) -> Result<(), HistogramError> {
        let histogram = histogram_of(row.hist_bucket.into_iter().zip(row.hist_count))?;
        if histogram.n() < MIN_RUNS_HIGH {
            return Ok(());
        }
        let quantile = |q| histogram.quantile(q);
        let (Some(p10_us), Some(p50_us), Some(p95_us)) =
            (quantile(0.1), quantile(0.5), quantile(0.95))
        else {
            return Ok(());
        };
        let cv = Moments::from_parts(row.n, row.sum_us, row.m2_us2)
            .and_then(|moments| moments.cv())
            .unwrap_or(0.0);
        let kind = match before {
            Before::PreviousVersion => {
                SelfBaselineKind::PreviousVersion(self.texts.shared(&row.model_version))
            }
            Before::SameVersion => SelfBaselineKind::EarlierWindows,
        };
        let baseline = SelfBaseline {
            kind,
            n: histogram.n(),
            p10_us,
            p50_us,
            p95_us,
            cv,
        };
        let shape = self.texts.shared(&row.shape_key);
        // Within a version others say nothing: silicon of one make differs.
        if before == Before::PreviousVersion && !row.device_model.is_empty() {
            let device_model = self.texts.shared(&row.device_model);
            let of_model = self.by_model.entry((device_model, shape.clone()));
            of_model.or_default().push(baseline.clone());
        }
        self.own.insert((row.installation, shape), baseline);
        Ok(())
    }

    pub(super) fn finish(self) -> SelvesBefore {
        let makes = self.by_model.into_iter();
        SelvesBefore {
            own: self.own,
            of_model: makes
                .filter_map(|(key, baselines)| Some((key, typical(&baselines)?)))
                .collect(),
        }
    }
}

impl SelvesBefore {
    /// Gives the devices of a window what they do not know themselves.
    pub fn fill(&self, window: &mut CohortWindow) {
        for vote in &mut window.votes {
            let Some(latency) = &mut vote.latency else {
                continue;
            };
            if latency.earlier_self.is_ok() {
                continue;
            }
            let shape = &vote.shape_key;
            let own = self.own.get(&(vote.installation, shape.clone()));
            let of_model = || {
                self.of_model
                    .get(&(vote.device_model.clone(), shape.clone()))
            };
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
