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
    series: Vec<&'a Series>,
    latest: Option<&'a Series>,
}

impl<'a> Sum<'a> {
    pub(super) fn add(&mut self, series: &'a Series) {
        series.add_to(&mut self.histogram);
        self.series.push(series);
        if self.latest.is_none_or(|latest| latest.order < series.order) {
            self.latest = Some(series);
        }
    }

    /// Merged in the order of the series, as the store's are: sums of fractions depend on it.
    pub(super) fn moments(&mut self) -> Moments {
        self.series.sort_by_key(|series| series.order);
        let parts = self
            .series
            .iter()
            .filter_map(|series| Moments::from_parts(series.n, series.sum_us, series.m2_us2));
        parts.fold(Moments::default(), |sum, part| sum.merged(&part))
    }

    pub(super) fn at(&self) -> At {
        self.latest.map_or(At::default(), |series| series.order)
    }

    pub(super) fn device_model(&self) -> u32 {
        self.latest.map_or(0, |series| series.device_model)
    }

    /// What the device was used to, as its latest series says.
    pub(super) fn baselines(&self) -> (PreviousTuple<'a>, EarlierTuple, &'a str) {
        let (mut previous, mut earlier) = (PreviousTuple::default(), EarlierTuple::default());
        let known = self.latest.and_then(|series| series.baselines.as_deref());
        if let Some((version, (n, p10, p50, p95, cv))) =
            known.and_then(|known| known.previous.as_ref())
        {
            previous = (version.as_ref(), *n, *p10, *p50, *p95, *cv);
        }
        if let Some(numbers) = known.and_then(|known| known.earlier) {
            earlier = numbers;
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
        model_version: row.ran.model_version,
        chipset: row.ran.chipset,
        firmware: row.ran.firmware,
        installation: row.ran.installation,
        graph_kind: row.ran.graph_kind,
        placement_source: row.ran.placement_source,
        fingerprint_algorithm: row.ran.fingerprint_algorithm,
        fingerprint_normalised: row.ran.fingerprint_normalised,
        shape_key: row.shape_key,
        hist_bucket: row.hist_bucket,
        hist_count: row.hist_count,
        n: row.n,
        sum_us: row.sum_us,
        m2_us2: row.m2_us2,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Series that were received at once are read in any order.
    #[test]
    fn a_sum_is_the_same_in_whichever_order_series_are_read() {
        let series = |sequence: u32| Series {
            bucket: 0,
            order: (5, 6, sequence.into(), 8),
            device: 0,
            kind: 0,
            shape: 0,
            device_model: sequence,
            sum_us: f64::from(sequence) / 10.0,
            m2_us2: f64::from(sequence) / 30.0,
            n: 30,
            histogram: packed::pack(&SparseHistogram::default()),
            baselines: None,
            absence: "",
        };
        let all = [series(1), series(2), series(3)];
        let sum_of = |order: [usize; 3]| {
            let mut sum = Sum::default();
            order.iter().for_each(|one| sum.add(&all[*one]));
            let moments = sum.moments();
            let bits = (moments.sum().to_bits(), moments.m2().to_bits());
            (sum.at(), sum.device_model(), bits)
        };
        let expected = sum_of([0, 1, 2]);
        assert_eq!((expected.0, expected.1), ((5, 6, 3, 8), 3));
        assert_eq!(sum_of([2, 1, 0]), expected);
        assert_eq!(sum_of([1, 2, 0]), expected);
    }
}
