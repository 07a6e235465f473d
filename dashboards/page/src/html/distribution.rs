//! The drawing of two latency distributions, as the pages of a cohort and of an incident show it.

use crate::histogram::Latencies;
use crate::plot::density::{self, DensityComparison, Side};
use crate::plot::svg::Drawing;
use crate::text::name::visible;
use crate::text::number;

/// Draws a version and the one before it, wide and narrow, with both labels. `medians` are the verdict's, now and
/// before, in microseconds. Without them the labels have the medians of the runs that are drawn. `None` without runs.
pub(super) fn distribution(
    (version, now): (&str, &Latencies),
    before: Option<(&str, &Latencies)>,
    is_bad: bool,
    ratio: Option<f64>,
    medians: Option<(f64, f64)>,
) -> Option<[Drawing; 2]> {
    let median = medians.map_or(now.quantiles.p50_us, |(now, _)| now);
    let median_before = |of: &Latencies| medians.map_or(of.quantiles.p50_us, |(_, before)| before);
    let label = format!("version {}, now", short(version));
    let before_label = before.map(|(version, _)| format!("version {}, before", short(version)));
    let mut words = format!("{label}: {}.", sentence(now, median));
    if let (Some((_, of)), Some(label)) = (before, &before_label) {
        words += &format!(" {label}: {}.", sentence(of, median_before(of)));
    }
    let before = before.zip(before_label.as_ref());
    let comparison = DensityComparison {
        now: side(now, &label, median),
        before: before.map(|((_, of), label)| side(of, label, median_before(of))),
        is_bad,
        ratio: number::finite(ratio),
        small: now.small_mode(),
        words: &words,
    };
    density::comparison("dist", &comparison)
}

fn side<'a>(of: &'a Latencies, label: &'a str, median_us: f64) -> Side<'a> {
    Side {
        density: &of.density,
        label,
        median_us,
    }
}

fn sentence(latencies: &Latencies, median_us: f64) -> String {
    let q = latencies.quantiles;
    format!(
        "median {}, 80 % of runs between {} and {}",
        number::ms(Some(median_us)),
        number::ms(Some(q.p10_us)),
        number::ms(Some(q.p90_us))
    )
}

/// Shortens a name for a drawing, which has little space.
pub(super) fn short(name: &str) -> String {
    let shown = visible(name);
    match shown.chars().count() > 16 {
        true => shown.chars().take(15).chain(['\u{2026}']).collect(),
        false => shown,
    }
}
