//! The median over time in a table row.

use super::scale::LogScale;
use super::svg::{Drawing, Svg};

const WIDTH: f64 = 100.0;
const HEIGHT: f64 = 34.0;

/// A version's medians by time: share of the period in [0, 1], and microseconds.
pub(crate) type Points = [(f64, f64)];

/// Draws the median of a version and of the one before. `None` without two points.
pub(crate) fn medians(now: &Points, before: &Points, is_bad: bool, label: &str) -> Option<Drawing> {
    if now.len() + before.len() < 2 {
        return None;
    }
    let all = now.iter().chain(before).map(|(_, us)| *us);
    let scale = LogScale::over(all, HEIGHT - 7.0, 7.0)?;
    let place = |points: &Points| -> Vec<(f64, f64)> {
        let points = points.iter();
        points
            .map(|(at, us)| (2.0 + at * (WIDTH - 4.0), scale.at(*us)))
            .collect()
    };
    let mut svg = Svg::new(WIDTH, HEIGHT);
    if let Some((began, _)) = now.first().filter(|_| !before.is_empty()) {
        let x = 2.0 + began * (WIDTH - 4.0);
        svg.line("limit", [(x, 2.0), (x, HEIGHT - 2.0)]);
    }
    svg.line("before-s", place(before));
    svg.line(if is_bad { "now-l" } else { "fine-l" }, place(now));
    Some(svg.small(label))
}
