//! Textbook rules on merged histograms, for comparison: the detector does not use them.

use epwatch_proto::SparseHistogram;
use epwatch_proto::histogram::{bucket_high_us, bucket_low_us};

#[expect(clippy::cast_precision_loss, reason = "edges and counts below 2^53")]
fn middles(histogram: &SparseHistogram) -> impl Iterator<Item = (f64, f64)> {
    histogram.buckets().map(|(index, count)| {
        let middle = (bucket_low_us(index) + bucket_high_us(index)) as f64 / 2.0;
        (middle, count as f64)
    })
}

/// Sarle's bimodality coefficient, (skewness^2 + 1) / kurtosis; `None` without spread. A value above 0.555, the
/// coefficient of the uniform distribution, counts as bimodal.
#[must_use]
pub fn sarle(histogram: &SparseHistogram) -> Option<f64> {
    let n: f64 = middles(histogram).map(|(_, count)| count).sum();
    let mean = middles(histogram).map(|(x, count)| x * count).sum::<f64>() / n;
    let moment = |power: i32| {
        let sum: f64 = middles(histogram)
            .map(|(x, count)| (x - mean).powi(power) * count)
            .sum();
        sum / n
    };
    let variance = moment(2);
    if n < 4.0 || variance <= 0.0 {
        return None;
    }
    let skewness = moment(3) / variance.powf(1.5);
    let kurtosis = moment(4) / (variance * variance);
    Some((skewness * skewness + 1.0) / kurtosis)
}

/// Two-sample Kolmogorov-Smirnov on merged runs, asymptotic p-value.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "counts below 2^53")]
pub fn ks_p_value(a: &SparseHistogram, b: &SparseHistogram) -> Option<f64> {
    if a.is_empty() || b.is_empty() {
        return None;
    }
    let (n, m) = (a.total() as f64, b.total() as f64);
    let mut indices: Vec<u16> = a.indices().iter().chain(b.indices()).copied().collect();
    indices.sort_unstable();
    indices.dedup();
    let (mut below_a, mut below_b, mut distance) = (0.0, 0.0, 0.0_f64);
    let (mut at_a, mut at_b) = (a.buckets().peekable(), b.buckets().peekable());
    for index in indices {
        if let Some((_, count)) = at_a.next_if(|(at, _)| *at == index) {
            below_a += count as f64;
        }
        if let Some((_, count)) = at_b.next_if(|(at, _)| *at == index) {
            below_b += count as f64;
        }
        distance = distance.max((below_a / n - below_b / m).abs());
    }
    let scaled = distance * (n * m / (n + m)).sqrt();
    if scaled < 0.2 {
        return Some(1.0);
    }
    let term = |k: f64| (-2.0 * k * k * scaled * scaled).exp();
    let sum: f64 = (1..=100)
        .map(|k| {
            let k = f64::from(k);
            if k % 2.0 == 1.0 { term(k) } else { -term(k) }
        })
        .sum();
    Some((2.0 * sum).clamp(0.0, 1.0))
}

/// Wasserstein-1 distance of the logarithms of latency.
#[must_use]
pub fn wasserstein_log(a: &SparseHistogram, b: &SparseHistogram) -> Option<f64> {
    if a.is_empty() || b.is_empty() {
        return None;
    }
    let quantile = |of: &SparseHistogram, q| of.quantile_us(q).map(f64::ln);
    let steps = 200;
    let mut sum = 0.0;
    for step in 0..steps {
        let q = (f64::from(step) + 0.5) / f64::from(steps);
        sum += (quantile(a, q)? - quantile(b, q)?).abs();
    }
    Some(sum / f64::from(steps))
}
