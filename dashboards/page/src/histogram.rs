//! A cohort's latencies in bins that are equally wide on a logarithmic axis: quantiles, and the shape that a plot draws.

use serde::Serialize;

/// Bins of an octave in the evidence, and with few runs.
const FINE: f64 = 16.0;
const COARSE: f64 = 8.0;

/// Runs from which bins are fine.
const MANY_RUNS: u64 = 2_000;

/// Share of the runs that may lie outside a plot on each side.
const OUTSIDE: f64 = 0.0005;

/// Bins of latencies from 1 us to 60 s, and some more. Others are not drawn.
const BINS: std::ops::RangeInclusive<i32> = -16..=16 * 27;

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
    /// Takes exact quantiles and runs in sixteenths of an octave. `None` without runs, or if they are damaged.
    pub(crate) fn of(quantiles: Quantiles, first: i32, runs: &[u64]) -> Option<Self> {
        let of = [quantiles.p10_us, quantiles.p50_us, quantiles.p90_us];
        let are_fine = of.iter().all(|us| us.is_finite() && *us > 0.0);
        let total = runs.iter().try_fold(0_u64, |sum, n| sum.checked_add(*n))?;
        Some(Self {
            runs: total,
            quantiles: are_fine.then_some(quantiles)?,
            density: Density::of(first, runs, total)?,
        })
    }

    /// As [`Self::of`], with the quantiles of the bins.
    pub(crate) fn of_bins(first: i32, runs: &[u64]) -> Option<Self> {
        let total = runs.iter().try_fold(0_u64, |sum, n| sum.checked_add(*n))?;
        let quantile = |q: f64| {
            let bin = bin_of_quantile(runs, total, q)?;
            Some(((f64::from(first) + bin as f64 + 0.5) / FINE).exp2())
        };
        let quantiles = Quantiles {
            p10_us: quantile(0.1)?,
            p50_us: quantile(0.5)?,
            p90_us: quantile(0.9)?,
        };
        Self::of(quantiles, first, runs)
    }
}

/// Returns the bin that has a quantile. `None` without runs.
fn bin_of_quantile(runs: &[u64], total: u64, q: f64) -> Option<usize> {
    let rank = q * total as f64;
    let mut below = 0.0;
    for (at, n) in runs.iter().enumerate() {
        below += *n as f64;
        if *n > 0 && below >= rank {
            return Some(at);
        }
    }
    None
}

impl Density {
    fn of(first: i32, runs: &[u64], total: u64) -> Option<Self> {
        let last = i32::try_from(runs.len()).ok()?.checked_add(first)?;
        if !(BINS.contains(&first) && BINS.contains(&last)) {
            return None;
        }
        let from = bin_of_quantile(runs, total, OUTSIDE)?;
        let to = bin_of_quantile(runs, total, 1.0 - OUTSIDE)?;
        let per_octave = if total >= MANY_RUNS { FINE } else { COARSE };
        let wide = if total >= MANY_RUNS { 1 } else { 2 };
        let bin = |at: usize| Some((first + i32::try_from(at).ok()?).div_euclid(wide));
        let begin = bin(from)?;
        let mut shares = vec![0.0; usize::try_from(bin(to)? - begin + 1).ok()?];
        for (at, n) in runs.iter().enumerate() {
            let at = usize::try_from(bin(at)? - begin).ok();
            if let Some(share) = at.and_then(|at| shares.get_mut(at)) {
                *share += *n as f64 / total as f64;
            }
        }
        Some(Self {
            bins_per_octave: per_octave,
            first: begin,
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
    use super::*;

    #[test]
    fn shares_add_up_and_quantiles_lie_in_their_bins() {
        // 64 ms is 2 to the power of 16 us and a bit.
        let mut runs = vec![0; 30];
        (runs[0], runs[29]) = (900, 100);
        let read = Latencies::of_bins(16 * 16, &runs).unwrap();
        assert_eq!(read.runs, 1_000);
        assert!(
            (read.quantiles.p50_us / 67_000.0 - 1.0).abs() < 0.05,
            "{read:?}"
        );
        let total: f64 = read.density.shares.iter().sum();
        assert!((total - 1.0).abs() < 1e-9, "{total}");
        assert!((read.density.peak() - 0.9).abs() < 1e-9);
        assert!((read.density.bins_per_octave - COARSE).abs() < 1e-9);
        let [low, high] = read.density.ends();
        assert!(low < 66_000.0 && high > 220_000.0, "{low} {high}");
        let many: Vec<u64> = runs.iter().map(|n| n * 10).collect();
        let fine = Latencies::of_bins(16 * 16, &many).unwrap().density;
        assert!((fine.bins_per_octave - FINE).abs() < 1e-9 && fine.shares.len() == 30);
    }

    #[test]
    fn no_runs_and_damaged_bins_are_nothing() {
        let of = |first, runs: &[u64]| Latencies::of_bins(first, runs);
        assert_eq!(of(0, &[]), None);
        assert_eq!(of(0, &[0, 0]), None);
        assert_eq!(of(i32::MAX, &[1]), None);
        assert_eq!(of(10_000, &[1]), None);
        assert_eq!(of(0, &[u64::MAX, 1]), None);
        let nan = Quantiles {
            p10_us: f64::NAN,
            p50_us: 1.0,
            p90_us: 1.0,
        };
        assert_eq!(Latencies::of(nan, 0, &[1]), None);
    }
}
