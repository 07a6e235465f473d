//! Series of one device, added: histograms bucket by bucket, moments by Chan's formula.

use epwatch_proto::SparseHistogram;
use epwatch_stats::Moments;

use crate::interner::TextId;

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

    pub(super) fn device_model(&self) -> TextId {
        self.latest
            .map_or(TextId::EMPTY, |series| series.device_model)
    }
}

impl Series {
    pub(super) fn add_to(&self, histogram: &mut SparseHistogram) {
        packed::add(&self.histogram, histogram);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interner::Texts;

    /// Series that were received at once are read in any order.
    #[test]
    fn a_sum_is_the_same_in_whichever_order_series_are_read() {
        let mut texts = Texts::default();
        let names = ["", "first", "second", "third"].map(|name| texts.id(name));
        let series = |sequence: u32| Series {
            bucket: 0,
            order: (5, 6, sequence.into(), 8),
            device: 0,
            place: 0,
            shape: TextId::EMPTY,
            device_model: names[sequence as usize],
            sum_us: f64::from(sequence) / 10.0,
            m2_us2: f64::from(sequence) / 30.0,
            n: 30,
            histogram: packed::pack(&SparseHistogram::default()),
            baselines: None,
            absence: TextId::EMPTY,
        };
        let all = [series(1), series(2), series(3)];
        let sum_of = |order: [usize; 3]| {
            let mut sum = Sum::default();
            order.iter().for_each(|one| sum.add(&all[*one]));
            let moments = sum.moments();
            let bits = (moments.sum().to_bits(), moments.m2().to_bits());
            (sum.device_model(), bits)
        };
        let expected = sum_of([0, 1, 2]);
        assert_eq!(expected.0, names[3]);
        assert_eq!(sum_of([2, 1, 0]), expected);
        assert_eq!(sum_of([1, 2, 0]), expected);
    }
}
