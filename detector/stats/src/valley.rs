//! The valley between two modes of a histogram, and how deep it is.
//!
//! The density of ln(us) is smoothed with a Gaussian kernel of Silverman's width,
//! 0.9 min(sd, IQR / 1.34) n^(-1/5) (B. W. Silverman, *Density Estimation*, 1986, eq. 3.31), and the
//! valley with the greatest prominence is taken: it names the two latencies a person sees.

use crate::{RangeHistogram, elementary};

/// Two modes, and the lowest point between them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Valley {
    /// Latency of the faster mode, in microseconds.
    pub fast_mode_us: f64,
    /// Latency at the bottom, in microseconds.
    pub at_us: f64,
    /// Latency of the slower mode, in microseconds.
    pub slow_mode_us: f64,
    /// 1 - density at the bottom / density at the lower of the two modes, in (0, 1].
    pub depth: f64,
    /// Height of that lower mode above the bottom, as a share of the highest density, in (0, 1]. It is small for a few
    /// stray runs however deep their valley is.
    pub prominence: f64,
}

/// The most prominent valley; `None` if the smoothed density has one mode, without runs, or with
/// `n` = 0.
///
/// `n` is the number of independent observations, devices rather than runs: it sets the width of the kernel. The
/// density is evaluated in the middle of every bucket and of every gap.
pub fn deepest(histogram: &RangeHistogram, n: u64) -> Option<Valley> {
    let (_, variance) = histogram.ln_moments()?;
    let quartiles = (histogram.quantile(0.75)?.ln() - histogram.quantile(0.25)?.ln()) / 1.34;
    if n == 0 {
        return None;
    }
    let kernel = 0.9 * variance.sqrt().min(quartiles) * (n as f64).powf(-0.2);
    let places = places(histogram);
    let density = smoothed(histogram, &places, kernel);

    // For every place, the index of the highest density to its left, and to its right.
    let mut left = vec![0; places.len()];
    let mut right = vec![places.len() - 1; places.len()];
    for i in 1..places.len() {
        let j = places.len() - 1 - i;
        left[i] = if density[i - 1] > density[left[i - 1]] {
            i - 1
        } else {
            left[i - 1]
        };
        right[j] = if density[j + 1] > density[right[j + 1]] {
            j + 1
        } else {
            right[j + 1]
        };
    }
    let highest = density.iter().copied().fold(0.0, f64::max);
    let mut found: Option<Valley> = None;
    for i in 1..places.len() - 1 {
        let mode = density[left[i]].min(density[right[i]]);
        let prominence = (mode - density[i]) / highest;
        // A prominence below 1e-9 is rounding.
        if prominence > found.map_or(1e-9, |valley| valley.prominence) {
            found = Some(Valley {
                fast_mode_us: places[left[i]].exp(),
                at_us: places[i].exp(),
                slow_mode_us: places[right[i]].exp(),
                depth: 1.0 - density[i] / mode,
                prominence,
            });
        }
    }
    found
}

/// Middles of the buckets and of the gaps between them, in ln(us), ascending.
fn places(histogram: &RangeHistogram) -> Vec<f64> {
    let mut places = Vec::with_capacity(2 * histogram.buckets().len());
    let mut end = None;
    for bucket in histogram.buckets() {
        let (low, high) = bucket.ln_edges();
        if let Some(end) = end.filter(|end| *end < low) {
            places.push(f64::midpoint(end, low));
        }
        places.push(f64::midpoint(low, high));
        end = Some(high);
    }
    places
}

/// Density of ln(us) at the places, up to a factor. Each bucket is a normal at its middle. Its variance is the sum of
/// the variances of the kernel and of an even spread over the bucket.
fn smoothed(histogram: &RangeHistogram, places: &[f64], kernel: f64) -> Vec<f64> {
    let mut density = vec![0.0; places.len()];
    for bucket in histogram.buckets() {
        let (low, high) = bucket.ln_edges();
        let sd = (kernel * kernel + (high - low).powi(2) / 12.0).sqrt();
        let (mid, height) = (f64::midpoint(low, high), bucket.count as f64 / sd);
        let narrow = -0.5 / (sd * sd);
        // Beyond 6 sd a normal adds 1.5e-8 of its height.
        let from = places.partition_point(|place| *place < mid - 6.0 * sd);
        let inside = places[from..].partition_point(|place| *place <= mid + 6.0 * sd);
        let of = from..from + inside;
        for (place, sum) in places[of.clone()].iter().zip(&mut density[of]) {
            let away = place - mid;
            *sum += height * elementary::exp(away * away * narrow);
        }
    }
    density
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Bucket;

    fn histogram(counts: &[u64]) -> RangeHistogram {
        let buckets = counts.iter().enumerate().map(|(i, count)| Bucket {
            low_us: 1000.0 * 1.05f64.powf(i as f64),
            high_us: 1000.0 * 1.05f64.powf((i + 1) as f64),
            count: *count,
        });
        RangeHistogram::from_buckets(buckets).unwrap()
    }

    #[test]
    fn the_valley_lies_between_the_modes_it_names() {
        let two = histogram(&[1, 8, 30, 60, 30, 8, 1, 0, 0, 0, 1, 6, 20, 40, 20, 6, 1]);
        let valley = deepest(&two, 100).unwrap();
        assert!((valley.fast_mode_us / (1000.0 * 1.05f64.powf(3.5)) - 1.0).abs() < 0.03);
        assert!((valley.slow_mode_us / (1000.0 * 1.05f64.powf(13.5)) - 1.0).abs() < 0.03);
        assert!(valley.fast_mode_us < valley.at_us && valley.at_us < valley.slow_mode_us);
        assert!(valley.depth > 0.8 && valley.prominence > 0.4, "{valley:?}");
    }

    #[test]
    fn a_hump_has_no_valley_and_a_stray_run_no_prominence() {
        assert_eq!(deepest(&histogram(&[1, 8, 30, 60, 30, 8, 1]), 100), None);
        assert_eq!(deepest(&histogram(&[5]), 100), None);
        assert_eq!(deepest(&RangeHistogram::default(), 100), None);
        let mut stray = vec![100, 800, 3000, 6000, 3000, 800, 100];
        stray.extend([0; 20]);
        stray.push(1);
        let valley = deepest(&histogram(&stray), 100).unwrap();
        assert!(valley.depth > 0.9 && valley.prominence < 0.01, "{valley:?}");
    }
}
