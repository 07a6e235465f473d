//! Latencies that are shown to people. Each is for one input shape, because shapes differ by design.

use std::collections::BTreeMap;

use epwatch_stats::order_stat::median;

/// A device's latency with an input shape.
#[derive(Debug, Clone, Copy)]
pub(super) struct BeforeAndNow<'a> {
    pub(super) shape_key: &'a str,
    /// The latency now in microseconds, like `before_us`.
    pub(super) now_us: f64,
    pub(super) before_us: f64,
}

/// Returns the medians now and before, over the commonest shape.
pub(super) fn medians(all: &[BeforeAndNow<'_>]) -> Option<(f64, f64)> {
    let mut by_shape: BTreeMap<&str, (Vec<f64>, Vec<f64>)> = BTreeMap::new();
    for one in all {
        let (now, before) = by_shape.entry(one.shape_key).or_default();
        now.push(one.now_us);
        before.push(one.before_us);
    }
    let (now, before) = by_shape.into_values().max_by_key(|(now, _)| now.len())?;
    median(&now).zip(median(&before))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_shape_that_few_have_does_not_lead_astray() {
        let of = |shape_key, now_us, before_us| BeforeAndNow {
            shape_key,
            now_us,
            before_us,
        };
        let small = [
            of("small", 24.0, 8.0),
            of("small", 27.0, 9.0),
            of("small", 30.0, 10.0),
        ];
        let large = [of("large", 300.0, 100.0), of("large", 330.0, 110.0)];
        let all = [large.as_slice(), small.as_slice()].concat();
        assert_eq!(medians(&all), Some((27.0, 9.0)));
        assert_eq!(medians(&[]), None);
    }
}
