//! A cohort's latencies from the store's buckets: quantiles, and the shape that a plot draws.

use epwatch_proto::SparseHistogram;
use epwatch_proto::histogram::{bucket_high_us, bucket_low_us};
use serde::Serialize;

/// Bins of an octave, with many runs and with few.
const FINE: f64 = 16.0;
const COARSE: f64 = 8.0;

/// Runs from which bins are fine.
const MANY_RUNS: u64 = 2_000;

/// Share of the runs that may lie outside a plot on each side.
const OUTSIDE: f64 = 0.0005;

/// Three quantiles in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Quantiles {
    pub(crate) p10_us: f64,
    pub(crate) p50_us: f64,
    pub(crate) p90_us: f64,
}

/// Share of the runs in each bin; bins are equally wide on a logarithmic axis.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Density {
    /// Bins of an octave.
    pub(crate) bins_per_octave: f64,
    /// The first bin begins at 2 to the power of this over `bins_per_octave`, in microseconds.
    pub(crate) first: i32,
    pub(crate) shares: Vec<f64>,
}

/// Clean runs of a cohort.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Latencies {
    pub(crate) runs: u64,
    pub(crate) quantiles: Quantiles,
    pub(crate) density: Density,
}

impl Latencies {
    /// Reads buckets and their counts. `None` without runs, or if they are damaged.
    pub(crate) fn of(buckets: Vec<(u16, u64)>) -> Option<Self> {
        let mut buckets = buckets;
        buckets.retain(|(_, n)| *n > 0);
        buckets.sort_unstable();
        let (indices, counts) = buckets.into_iter().unzip();
        let histogram = SparseHistogram::from_parts(indices, counts).ok()?;
        let quantiles = Quantiles {
            p10_us: histogram.quantile_us(0.1)?,
            p50_us: histogram.quantile_us(0.5)?,
            p90_us: histogram.quantile_us(0.9)?,
        };
        Some(Self {
            runs: histogram.total(),
            quantiles,
            density: Density::of(&histogram)?,
        })
    }
}

impl Density {
    fn of(histogram: &SparseHistogram) -> Option<Self> {
        let runs = histogram.total();
        let per_octave = if runs >= MANY_RUNS { FINE } else { COARSE };
        #[expect(
            clippy::cast_possible_truncation,
            reason = "latencies are below 2^26 us"
        )]
        let bin = |us: f64| (us.max(1.0).log2() * per_octave).floor() as i32;
        let first = bin(histogram.quantile_us(OUTSIDE)?);
        let last = bin(histogram.quantile_us(1.0 - OUTSIDE)?);
        let n_bins = usize::try_from(last - first + 1).ok()?;
        let mut shares = vec![0.0; n_bins];
        for (index, count) in histogram.buckets() {
            let middle = (bucket_low_us(index) + bucket_high_us(index)) as f64 / 2.0;
            let at = usize::try_from(bin(middle) - first).ok();
            if let Some(share) = at.and_then(|at| shares.get_mut(at)) {
                *share += count as f64 / runs as f64;
            }
        }
        Some(Self {
            bins_per_octave: per_octave,
            first,
            shares,
        })
    }

    fn edge(&self, bin: f64) -> f64 {
        ((f64::from(self.first) + bin) / self.bins_per_octave).exp2()
    }

    /// Returns the middle of each bin in microseconds and its share, between two empty bins.
    pub(crate) fn points(&self) -> impl Iterator<Item = (f64, f64)> {
        let inner = self.shares.iter().enumerate();
        let inner = inner.map(|(at, share)| (self.edge(at as f64 + 0.5), *share));
        let end = self.shares.len() as f64 + 0.5;
        std::iter::once((self.edge(-0.5), 0.0))
            .chain(inner)
            .chain(std::iter::once((self.edge(end), 0.0)))
    }

    /// Returns where the drawing begins and ends, in microseconds.
    pub(crate) fn ends(&self) -> [f64; 2] {
        [self.edge(-0.5), self.edge(self.shares.len() as f64 + 0.5)]
    }

    /// Returns the largest share.
    pub(crate) fn peak(&self) -> f64 {
        self.shares.iter().copied().fold(0.0, f64::max)
    }
}

#[cfg(test)]
mod tests {
    use epwatch_proto::histogram::bucket_of_us;

    use super::*;

    #[test]
    fn shares_add_up_and_quantiles_lie_in_their_buckets() {
        let buckets = vec![(bucket_of_us(60_000), 900), (bucket_of_us(180_000), 100)];
        let read = Latencies::of(buckets).unwrap();
        assert_eq!(read.runs, 1_000);
        assert!(
            (read.quantiles.p50_us - 60_000.0).abs() < 1_000.0,
            "{read:?}"
        );
        let total: f64 = read.density.shares.iter().sum();
        assert!((total - 1.0).abs() < 1e-9, "{total}");
        assert!((read.density.peak() - 0.9).abs() < 1e-9);
        let [low, high] = read.density.ends();
        assert!(low < 60_000.0 && high > 180_000.0, "{low} {high}");
    }

    #[test]
    fn no_runs_and_damaged_buckets_are_nothing() {
        assert_eq!(Latencies::of(vec![]), None);
        assert_eq!(Latencies::of(vec![(3, 0)]), None);
        assert_eq!(Latencies::of(vec![(u16::MAX, 1)]), None);
    }
}
