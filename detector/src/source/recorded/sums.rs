//! Series of one vote, added: histograms bucket by bucket, moments by Chan's formula.

use epwatch_proto::SparseHistogram;
use epwatch_stats::Moments;

use crate::cohort::ModelKey;

use super::super::rows::{At, EarlierRow, EarlierTuple, PreviousTuple, VoteRow};
use super::{Series, packed};

/// The sum of some series.
#[derive(Debug, Default)]
pub(super) struct Sum<'a> {
    pub(super) histogram: SparseHistogram,
    moments: Moments,
    latest: Option<&'a Series>,
}

impl<'a> Sum<'a> {
    pub(super) fn add(&mut self, series: &'a Series) {
        series.add_to(&mut self.histogram);
        if let Some(moments) = Moments::from_parts(series.n, series.sum_us, series.m2_us2) {
            self.moments = self.moments.merged(&moments);
        }
        if self.latest.is_none_or(|latest| latest.order < series.order) {
            self.latest = Some(series);
        }
    }

    pub(super) fn moments(&self) -> Moments {
        self.moments
    }

    pub(super) fn at(&self) -> At {
        self.latest.map_or((0, 0, 0), |series| series.order)
    }

    pub(super) fn device_model(&self) -> u32 {
        self.latest.map_or(0, |series| series.device_model)
    }

    /// What the device was used to, as its latest series says.
    pub(super) fn baselines(&self) -> (PreviousTuple<'a>, EarlierTuple<'a>, &'a str) {
        let (mut previous, mut earlier) = (PreviousTuple::default(), EarlierTuple::default());
        let known = self.latest.and_then(|series| series.baselines.as_deref());
        if let Some((version, (n, p10, p50, p95, cv))) =
            known.and_then(|known| known.previous.as_ref())
        {
            previous = (version.as_ref(), *n, *p10, *p50, *p95, *cv);
        }
        if let Some((firmware, runtime, (n, p10, p50, p95, cv))) =
            known.and_then(|known| known.earlier.as_ref())
        {
            earlier = (
                firmware.as_ref(),
                runtime.as_str(),
                *n,
                *p10,
                *p50,
                *p95,
                *cv,
            );
        }
        let absence = self.latest.map_or("", |series| series.absence);
        (previous, earlier, absence)
    }
}

impl Series {
    pub(super) fn add_to(&self, histogram: &mut SparseHistogram) {
        packed::add(&self.histogram, histogram);
    }
}

/// A vote's runs in an earlier window.
pub(super) fn earlier_row<'a>(model: &'a ModelKey, row: VoteRow<'a>) -> EarlierRow<'a> {
    EarlierRow {
        app_id: &model.app_id,
        environment: &model.environment,
        model_id: &model.model_id,
        model_version: row.model_version,
        chipset: row.chipset,
        firmware: row.firmware,
        installation: row.installation,
        graph_kind: row.graph_kind,
        placement_source: row.placement_source,
        fingerprint_algorithm: row.fingerprint_algorithm,
        fingerprint_normalised: row.fingerprint_normalised,
        shape_key: row.shape_key,
        hist_bucket: row.hist_bucket,
        hist_count: row.hist_count,
        n: row.n,
        sum_us: row.sum_us,
        m2_us2: row.m2_us2,
    }
}
