//! Clean runs of one device, added: histograms bucket by bucket, moments by Chan's formula.

use epwatch_proto::SparseHistogram;
use epwatch_stats::Moments;

use crate::read::interner::TextId;

/// Receive time in milliseconds, stream, sequence and session: reports that were uploaded together have
/// one receive time.
pub(in crate::read) type SeriesOrder = (i64, u64, u64, u64);

/// The sums over the runs of one series, without their buckets.
#[derive(Debug, Clone, Copy)]
pub(in crate::read) struct SeriesHead {
    /// Empty if the series has impossible sums.
    pub(in crate::read) moments: Moments,
    pub(in crate::read) order: SeriesOrder,
    pub(in crate::read) device_model: TextId,
}

/// Runs of a series, or of several.
#[derive(Debug)]
pub(in crate::read) struct SeriesSum {
    pub(in crate::read) histogram: SparseHistogram,
    /// Moments of the only series, because most devices report once in a window.
    moments: Moments,
    /// Moments of each series, if there are several. Sums of fractions depend on the order, and series come in any
    /// order.
    of_each: Vec<(SeriesOrder, Moments)>,
    /// Order of the latest series.
    pub(in crate::read) order: SeriesOrder,
    /// Device model of the latest series.
    pub(in crate::read) device_model: TextId,
}

impl SeriesSum {
    /// Begins with one series.
    pub(in crate::read) fn of(
        head: &SeriesHead,
        buckets: impl IntoIterator<Item = (u16, u64)>,
    ) -> Self {
        let mut histogram = SparseHistogram::default();
        histogram.add_all(buckets);
        Self {
            histogram,
            moments: head.moments,
            of_each: Vec::new(),
            order: head.order,
            device_model: head.device_model,
        }
    }

    /// Adds another series.
    pub(in crate::read) fn add(
        &mut self,
        head: &SeriesHead,
        buckets: impl IntoIterator<Item = (u16, u64)>,
    ) {
        if self.of_each.is_empty() {
            self.of_each.push((self.order, self.moments));
        }
        self.of_each.push((head.order, head.moments));
        self.histogram.add_all(buckets);
        if self.order < head.order {
            (self.order, self.device_model) = (head.order, head.device_model);
        }
    }

    /// Returns the moments, merged in the order of the series. The series of one session are in their report's order.
    pub(in crate::read) fn moments(&mut self) -> Moments {
        self.of_each.sort_by_key(|(order, _)| *order);
        let parts = self.of_each.iter().map(|(_, part)| part);
        let merged = parts.copied().reduce(|sum, part| sum.merged(&part));
        merged.unwrap_or(self.moments)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::read::interner::Texts;

    /// Blocks of an answer come in any order, and 0.1 + 0.2 + 0.3 is not 0.3 + 0.2 + 0.1.
    #[test]
    fn a_sum_is_the_same_in_whichever_order_series_come() {
        let mut texts = Texts::default();
        let names = ["first", "second", "third"].map(|name| texts.id(name));
        let sum_of = |order: [usize; 3]| {
            let series = order.map(|one| {
                let sum_us = 0.1 * (one + 1) as f64;
                let moments = Moments::from_parts(30, sum_us, sum_us / 3.0);
                SeriesHead {
                    moments: moments.unwrap(),
                    order: (5, 6, one as u64, 8),
                    device_model: names[one],
                }
            });
            let mut sum = SeriesSum::of(&series[0], []);
            series[1..].iter().for_each(|one| sum.add(one, []));
            let moments = sum.moments();
            let bits = (moments.sum().to_bits(), moments.m2().to_bits());
            (sum.device_model, moments.n(), bits)
        };
        let expected = sum_of([0, 1, 2]);
        assert_eq!((expected.0, expected.1), (names[2], 90));
        assert_eq!(sum_of([2, 1, 0]), expected);
        assert_eq!(sum_of([1, 2, 0]), expected);
    }
}
