//! Figures of outcomes that all parts of the report use: which faults count, and bounds of counts and shares.

use crate::outcome::{FaultOutcome, Outcome};

/// Scenarios whose faults have a random strength.
pub(crate) const KINDS: [&str; 5] = [
    "total",
    "some devices",
    "intermittent runs",
    "intermittent sessions",
    "drift",
];

/// Returns the faults of scenarios with a random strength.
pub(crate) fn drawn_faults(outcomes: &[Outcome]) -> impl Iterator<Item = &FaultOutcome> {
    let drawn = outcomes
        .iter()
        .filter(|outcome| KINDS.contains(&outcome.scenario.as_str()));
    drawn.flat_map(|outcome| &outcome.faults)
}

/// Returns the outcomes of one scenario.
pub(crate) fn of_scenario<'a>(outcomes: &'a [Outcome], name: &str) -> Vec<&'a Outcome> {
    outcomes.iter().filter(|o| o.scenario == name).collect()
}

/// Bounds of a Poisson count, 95 % between them (Garwood's interval, by Wilson and Hilferty's
/// approximation of the chi-squared quantile).
pub(crate) fn bounds(count: u64) -> (f64, f64) {
    let quantile = |df: f64, z: f64| {
        let term = 1.0 - 2.0 / (9.0 * df) + z * (2.0 / (9.0 * df)).sqrt();
        df * term.powi(3) / 2.0
    };
    let lower = if count == 0 {
        0.0
    } else {
        quantile(2.0 * count as f64, -1.959_964)
    };
    (lower, quantile(2.0 * (count as f64 + 1.0), 1.959_964))
}

/// Returns Wilson's 95 % interval of a share.
pub(crate) fn share_bounds(hits: u64, of: u64) -> (f64, f64) {
    if of == 0 {
        return (0.0, 1.0);
    }
    let (n, p, z) = (of as f64, hits as f64 / of as f64, 1.959_964_f64);
    let middle = p + z * z / (2.0 * n);
    let half = z * (p * (1.0 - p) / n + z * z / (4.0 * n * n)).sqrt();
    let all = 1.0 + z * z / n;
    (
        ((middle - half) / all).max(0.0),
        ((middle + half) / all).min(1.0),
    )
}
