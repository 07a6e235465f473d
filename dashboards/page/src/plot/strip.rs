//! Latency in a table row: p10 to p90 and the median, with the version before below, on the table's one axis.

use super::scale::{LogScale, tick_label};
use super::svg::{Drawing, Svg};
use crate::histogram::Quantiles;

/// Width of the column.
const WIDTH: f64 = 262.0;

/// Coordinates of the axis within it; the labels of both ends need space.
const AXIS: (f64, f64) = (14.0, 240.0);

/// Returns the axis of all rows, in milliseconds.
pub(crate) fn axis_of(all: impl IntoIterator<Item = Quantiles>) -> Option<LogScale> {
    let values = all.into_iter().flat_map(|q| [q.p10_us, q.p90_us]);
    LogScale::round(values.map(|us| us / 1000.0), AXIS.0, AXIS.1)
}

/// Draws the column's head.
pub(crate) fn head(axis: LogScale) -> Drawing {
    let mut svg = Svg::new(WIDTH, 20.0);
    let ticks = axis.ticks(5);
    for (at, tick) in ticks.iter().enumerate() {
        let (x, label) = (axis.at(*tick), tick_label(*tick));
        match at + 1 == ticks.len() {
            true => svg.text("e", (WIDTH.min(x + 34.0), 15.0), &format!("{label} ms")),
            false => svg.text("m", (x, 15.0), &label),
        }
    }
    svg.decoration()
}

/// Draws one row.
pub(crate) fn row(
    axis: LogScale,
    now: Quantiles,
    before: Option<Quantiles>,
    is_bad: bool,
    label: &str,
) -> Drawing {
    let mut svg = Svg::new(WIDTH, 34.0);
    for tick in axis.ticks(5) {
        let x = axis.at(tick);
        svg.line("grid", [(x, 0.0), (x, 34.0)]);
    }
    let mut draw = |q: Quantiles, classes: (&'static str, &'static str), y: f64, h: f64| {
        let x = |us: f64| axis.at(us / 1000.0);
        let width = (x(q.p90_us) - x(q.p10_us)).max(2.0);
        svg.rect(classes.0, (x(q.p10_us), y), (width, h));
        svg.line(
            classes.1,
            [(x(q.p50_us), y - 2.0), (x(q.p50_us), y + h + 2.0)],
        );
    };
    if let Some(before) = before {
        draw(before, ("bar-b", "tick-b"), 20.0, 7.0);
    }
    let classes = if is_bad {
        ("bar-n", "tick-n")
    } else {
        ("bar-f", "tick-f")
    };
    draw(now, classes, 7.0, 9.0);
    svg.small(label)
}
