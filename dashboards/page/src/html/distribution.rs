//! The drawing of two latency distributions, as the pages of a cohort and of an incident show it.

use crate::histogram::Latencies;
use crate::plot::density::{self, Comparison, Side};
use crate::plot::svg::Drawing;
use crate::text::name::visible;
use crate::text::number;

/// Draws a version and the one before it, wide and narrow, with both labels. `None` without runs.
pub(super) fn distribution(
    (version, now): (&str, &Latencies),
    before: Option<(&str, &Latencies)>,
    is_bad: bool,
    ratio: Option<f64>,
) -> Option<[Drawing; 2]> {
    let label = format!("version {}, now", short(version));
    let before_label = before.map(|(version, _)| format!("version {}, before", short(version)));
    let mut words = format!("{label}: {}.", sentence(now));
    if let (Some((_, latencies)), Some(label)) = (before, &before_label) {
        words += &format!(" {label}: {}.", sentence(latencies));
    }
    let before = before.zip(before_label.as_ref());
    let comparison = Comparison {
        now: side(now, &label),
        before: before.map(|((_, latencies), label)| side(latencies, label)),
        is_bad,
        ratio: number::finite(ratio),
        words: &words,
    };
    density::comparison("dist", &comparison)
}

fn side<'a>(latencies: &'a Latencies, label: &'a str) -> Side<'a> {
    Side {
        density: &latencies.density,
        label,
        median_us: latencies.quantiles.p50_us,
    }
}

fn sentence(latencies: &Latencies) -> String {
    let q = latencies.quantiles;
    format!(
        "median {}, 80 % of runs between {} and {}",
        number::ms(Some(q.p50_us)),
        number::ms(Some(q.p10_us)),
        number::ms(Some(q.p90_us))
    )
}

/// A name in a drawing, where there is little room.
pub(super) fn short(name: &str) -> String {
    let shown = visible(name);
    match shown.chars().count() > 16 {
        true => shown.chars().take(15).chain(['\u{2026}']).collect(),
        false => shown,
    }
}
