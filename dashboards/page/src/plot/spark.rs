//! The median over time in a table row.

use super::gaps::{self, Gap};
use super::scale::LogScale;
use super::svg::{Drawing, Svg};

const WIDTH: f64 = 100.0;
const HEIGHT: f64 = 34.0;

/// A version's medians by time: share of the period in [0, 1], and microseconds.
pub(crate) type Points = [(f64, f64)];

/// Draws the median of a version and of the one before, with gaps where windows are missing. `None` without two points.
pub(crate) fn medians(
    now: &Points,
    before: &Points,
    gaps: &[Gap],
    is_bad: bool,
    label: &str,
) -> Option<Drawing> {
    if now.len() + before.len() < 2 {
        return None;
    }
    let all = now.iter().chain(before).map(|(_, us)| *us);
    let scale = LogScale::over(all, HEIGHT - 7.0, 7.0)?;
    let x_of = |at: f64| 2.0 + at * (WIDTH - 4.0);
    let placed = |(at, us): (f64, f64)| (x_of(at), scale.at(us));
    let mut svg = Svg::new(WIDTH, HEIGHT);
    gaps::draw(&mut svg, gaps, (2.0, HEIGHT - 2.0), x_of);
    if let Some((began, _)) = now.first().filter(|_| !before.is_empty()) {
        let x = x_of(*began);
        svg.line("limit", [(x, 2.0), (x, HEIGHT - 2.0)]);
    }
    let now_class = if is_bad { "now-l" } else { "fine-l" };
    for (class, points) in [("before-s", before), (now_class, now)] {
        for part in gaps::parts(points.iter().copied(), gaps) {
            svg.line(class, part.into_iter().map(placed));
        }
    }
    Some(svg.small(label))
}
