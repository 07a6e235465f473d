//! A cohort's latencies in bins that are equally wide on a logarithmic axis: quantiles, and the shape that a plot draws.

use epwatch_model::LATENCY_BINS;
use serde::Serialize;

/// Number of bins of an octave with few runs. The evidence has [`LATENCY_BINS`].
const COARSE: f64 = 8.0;

/// With at least this many runs, bins are fine.
const MANY_RUNS: u64 = 500;

/// Number of points of a curve from the middle of a bin to the middle of the next.
const STEPS: u32 = 4;

/// A small mode has at least this many runs, and at least this share of the runs.
const SMALL_RUNS: f64 = 20.0;
const SMALL_SHARE: f64 = 0.005;

/// The valley before a small mode is at most this share of the mode's height.
const VALLEY: f64 = 0.25;

/// Share of the runs that may lie outside a plot on each side.
const OUTSIDE: f64 = 0.0005;

/// Bins of latencies from 1 us to 60 s, with a margin. Latencies outside are not drawn.
const BINS: std::ops::RangeInclusive<i32> = -16..=16 * 27;

/// Three quantiles in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Quantiles {
    pub(crate) p10_us: f64,
    pub(crate) p50_us: f64,
    pub(crate) p90_us: f64,
}

/// A mode in addition to the main one, with a valley in between.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct SmallMode {
    pub(crate) at_us: f64,
    /// Share of the runs beyond the valley.
    pub(crate) share: f64,
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

    /// Works like [`Self::of`], with quantiles that are computed from the bins.
    pub(crate) fn of_bins(first: i32, runs: &[u64]) -> Option<Self> {
        let total = runs.iter().try_fold(0_u64, |sum, n| sum.checked_add(*n))?;
        let quantile = |q: f64| {
            let bin = bin_of_quantile(runs, total, q)?;
            Some(((f64::from(first) + bin as f64 + 0.5) / LATENCY_BINS).exp2())
        };
        let quantiles = Quantiles {
            p10_us: quantile(0.1)?,
            p50_us: quantile(0.5)?,
            p90_us: quantile(0.9)?,
        };
        Self::of(quantiles, first, runs)
    }

    /// Returns the largest mode other than the main one. `None` if no valley sets one apart, or it is a few stray runs.
    pub(crate) fn small_mode(&self) -> Option<SmallMode> {
        let mode = self.density.small_mode()?;
        let runs = mode.share * self.runs as f64;
        (mode.share >= SMALL_SHARE && runs >= SMALL_RUNS).then_some(mode)
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
        let per_octave = if total >= MANY_RUNS {
            LATENCY_BINS
        } else {
            COARSE
        };
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

    /// Returns the middle of each bin in microseconds and its share.
    pub(crate) fn points(&self) -> impl Iterator<Item = (f64, f64)> {
        let all = self.shares.iter().enumerate();
        all.map(|(at, share)| (self.edge(at as f64 + 0.5), *share))
    }

    /// Returns a curve of microseconds and heights: the share of an octave, so that curves of wide and of narrow bins
    /// compare. It passes the middle of each bin and turns only there, so it has no mode that the bins do not have.
    pub(crate) fn curve(&self) -> Vec<(f64, f64)> {
        let inner = self.shares.iter().map(|share| share * self.bins_per_octave);
        let heights: Vec<f64> = [0.0].into_iter().chain(inner).chain([0.0]).collect();
        let rise = |at: usize| heights[at + 1] - heights[at];
        // The harmonic mean of the slopes on both sides; flat at a turn (Fritsch and Butland 1984).
        let slope = |at: usize| match at {
            0 => 0.0,
            at if at + 1 == heights.len() => 0.0,
            at if rise(at - 1) * rise(at) <= 0.0 => 0.0,
            at => 2.0 * rise(at - 1) * rise(at) / (rise(at - 1) + rise(at)),
        };
        let mut curve = vec![(self.edge(-0.5), 0.0)];
        for (at, pair) in heights.windows(2).enumerate() {
            let (from, to) = (pair[0], pair[1]);
            let is_flat = rise(at).abs() < f64::EPSILON;
            let first = if is_flat { STEPS } else { 1 };
            for step in first..=STEPS {
                let t = f64::from(step) / f64::from(STEPS);
                let (t2, t3) = (t * t, t * t * t);
                let height = from * (2.0 * t3 - 3.0 * t2 + 1.0)
                    + slope(at) * (t3 - 2.0 * t2 + t)
                    + to * (3.0 * t2 - 2.0 * t3)
                    + slope(at + 1) * (t3 - t2);
                curve.push((self.edge(at as f64 - 0.5 + t), height));
            }
        }
        curve
    }

    /// Returns the mode on the other side of the valley that leaves the most runs behind it.
    fn small_mode(&self) -> Option<SmallMode> {
        let highest = |of: &[f64]| {
            let all = of.iter().enumerate();
            all.max_by(|a, b| a.1.total_cmp(b.1)).map(|(at, _)| at)
        };
        let main = highest(&self.shares)?;
        let end = self.shares.len();
        let beyond = |valley: usize| match valley < main {
            true => 0..valley,
            false => valley + 1..end,
        };
        let modes = (0..end).filter(|at| *at != main).filter_map(|valley| {
            let side = beyond(valley);
            let peak = side.start + highest(self.shares.get(side.clone())?)?;
            let is_apart = self.shares[valley] <= VALLEY * self.shares[peak];
            is_apart.then(|| SmallMode {
                at_us: self.edge(peak as f64 + 0.5),
                share: self.shares[side].iter().sum(),
            })
        });
        modes.max_by(|a, b| a.share.total_cmp(&b.share))
    }

    /// Returns where the drawing begins and ends, in microseconds.
    pub(crate) fn ends(&self) -> [f64; 2] {
        [self.edge(-0.5), self.edge(self.shares.len() as f64 + 0.5)]
    }

    /// Returns the largest share of an octave.
    pub(crate) fn peak(&self) -> f64 {
        self.bins_per_octave * self.shares.iter().copied().fold(0.0, f64::max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_add_up_and_quantiles_lie_in_their_bins() {
        // The first bin begins at 2 to the power of 16 us, about 66 ms.
        let mut runs = vec![0; 30];
        (runs[0], runs[29]) = (360, 40);
        let read = Latencies::of_bins(16 * 16, &runs).unwrap();
        assert_eq!(read.runs, 400);
        assert!(
            (read.quantiles.p50_us / 67_000.0 - 1.0).abs() < 0.05,
            "{read:?}"
        );
        let total: f64 = read.density.shares.iter().sum();
        assert!((total - 1.0).abs() < 1e-9, "{total}");
        assert!((read.density.peak() - 0.9 * COARSE).abs() < 1e-9);
        assert!((read.density.bins_per_octave - COARSE).abs() < 1e-9);
        let [low, high] = read.density.ends();
        assert!(low < 66_000.0 && high > 220_000.0, "{low} {high}");
        let mode = read.small_mode().unwrap();
        assert!((mode.share - 0.1).abs() < 1e-9 && mode.at_us > 200_000.0);
        let many: Vec<u64> = runs.iter().map(|n| n * 10).collect();
        let fine = Latencies::of_bins(16 * 16, &many).unwrap().density;
        assert!((fine.bins_per_octave - LATENCY_BINS).abs() < 1e-9 && fine.shares.len() == 30);
    }

    /// The same shape in bins of two widths has the same height.
    #[test]
    fn heights_do_not_depend_on_the_width_of_bins() {
        let shape = [1, 2, 4, 8, 16, 24, 30, 30, 24, 16, 8, 4, 2, 1];
        let of = |times: u64| {
            let runs: Vec<u64> = shape.iter().map(|n| n * times).collect();
            Latencies::of_bins(16 * 13, &runs).unwrap().density
        };
        let (coarse, fine) = (of(1), of(100));
        assert!(coarse.bins_per_octave < fine.bins_per_octave);
        assert!((coarse.peak() / fine.peak() - 1.0).abs() < 0.15);
    }

    #[test]
    fn a_curve_turns_only_at_the_middle_of_a_bin() {
        let density = Density {
            bins_per_octave: 8.0,
            first: 0,
            shares: vec![0.1, 0.0, 0.0, 0.2, 0.6, 0.1],
        };
        let curve = density.curve();
        assert!(curve.iter().all(|(_, height)| *height >= 0.0), "{curve:?}");
        let highest = curve.iter().map(|(_, height)| *height).fold(0.0, f64::max);
        assert!((highest - density.peak()).abs() < 1e-9, "{curve:?}");
        assert!(curve.is_sorted_by(|a, b| a.0 < b.0), "{curve:?}");
        let rises = curve.windows(2).map(|pair| pair[1].1 - pair[0].1);
        let rises: Vec<f64> = rises.filter(|rise| rise.abs() > 1e-12).collect();
        let turns = rises.windows(2).filter(|pair| pair[0] * pair[1] < 0.0);
        assert_eq!(turns.count(), 3, "{curve:?}");
    }

    #[test]
    fn a_small_mode_lies_behind_a_valley() {
        let with = |runs: &[u64]| Latencies::of_bins(16 * 14, runs).unwrap().small_mode();
        assert_eq!(with(&[10, 500, 900, 500, 10]), None);
        // A falling tail has no mode, and three runs are too few for a mode.
        assert_eq!(with(&[10, 500, 900, 500, 300, 200, 100, 50, 20]), None);
        assert_eq!(with(&[10, 500, 900, 500, 10, 0, 0, 0, 3]), None);
        let small = with(&[10, 500, 900, 500, 10, 0, 0, 20, 40, 20]).unwrap();
        assert!((small.share - 80.0 / 2_000.0).abs() < 1e-9, "{small:?}");
        let below = with(&[90, 0, 0, 500, 900, 500]).unwrap();
        assert!(below.at_us < 17_200.0, "{below:?}");
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
