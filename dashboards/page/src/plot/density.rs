//! Distributions of latency: one cohort now and before, and several cohorts on one axis.

use super::row_layout::RowLayout;
use super::scale::{LogScale, tick_label};
use super::svg::{Drawing, Svg};
use crate::histogram::{Density, SmallMode};
use crate::text::number::{self, ms, share};

/// One side of a comparison.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Side<'a> {
    pub(crate) density: &'a Density,
    pub(crate) label: &'a str,
    pub(crate) median_us: f64,
}

/// The two sides of a comparison, and whether the change is bad.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DensityComparison<'a> {
    pub(crate) now: Side<'a>,
    pub(crate) before: Option<Side<'a>>,
    pub(crate) is_bad: bool,
    /// The verdict's ratio of the two.
    pub(crate) ratio: Option<f64>,
    /// A second mode of the present runs.
    pub(crate) small: Option<SmallMode>,
    pub(crate) words: &'a str,
}

impl DensityComparison<'_> {
    fn values(&self) -> impl Iterator<Item = f64> {
        let sides = std::iter::once(&self.now).chain(&self.before);
        sides
            .flat_map(|side| side.density.ends())
            .map(|us| us / 1000.0)
    }

    fn peak(&self) -> f64 {
        let before = self.before.as_ref().map_or(0.0, |side| side.density.peak());
        self.now.density.peak().max(before)
    }

    /// Draws both sides on a base line.
    fn draw(&self, svg: &mut Svg, scale: LogScale, (base, height): (f64, f64), fills_before: bool) {
        let peak = self.peak();
        let outline = |density: &Density| -> Vec<(f64, f64)> {
            let points = density.curve().into_iter();
            points
                .map(|(us, share)| (scale.at(us / 1000.0), base - height * share / peak))
                .collect()
        };
        let filled = |points: &[(f64, f64)]| -> Vec<(f64, f64)> {
            let (first, last) = (points.first(), points.last());
            let ends = |point: Option<&(f64, f64)>| point.map(|(x, _)| (*x, base));
            ends(first)
                .into_iter()
                .chain(points.iter().copied())
                .chain(ends(last))
                .collect()
        };
        let (fill, line) = match self.is_bad {
            true => ("now-f", "now-l"),
            false => ("fine-f", "fine-l"),
        };
        if let Some(before) = &self.before {
            let points = outline(before.density);
            if fills_before {
                svg.area("before-f", filled(&points));
            }
            svg.line("before-l", points);
        }
        let points = outline(self.now.density);
        svg.area(fill, filled(&points));
        svg.line(line, points);
    }
}

/// Draws the grid of a latency axis in milliseconds.
fn axis(svg: &mut Svg, scale: LogScale, (top, bottom): (f64, f64), right: f64, most: usize) {
    let ticks = scale.ticks(most);
    for (at, tick) in ticks.iter().enumerate() {
        let x = scale.at(*tick);
        svg.line("grid", [(x, top), (x, bottom)]);
        let label = tick_label(*tick);
        match at + 1 == ticks.len() {
            // The last label has the unit, and stays inside.
            true => {
                let label = format!("{label} ms");
                let half = label.len() as f64 * 4.2;
                svg.text("m t-3", (x.min(right - half), bottom + 20.0), &label);
            }
            false => svg.text("m t-3", (x, bottom + 20.0), &label),
        }
    }
}

/// Draws one cohort now and before, wide and narrow. `None` without runs.
pub(crate) fn comparison(id: &str, of: &DensityComparison<'_>) -> Option<[Drawing; 2]> {
    let wide = one(of, 1064.0, 300.0, false)?;
    let narrow = one(of, 358.0, 250.0, true)?;
    Some(Svg::figures(wide, narrow, id, TITLE, of.words))
}

const TITLE: &str = "Latency of clean runs, now and before";

fn one(of: &DensityComparison<'_>, width: f64, height: f64, is_narrow: bool) -> Option<Svg> {
    let margin = if is_narrow { 6.0 } else { 14.0 };
    let scale = LogScale::over(of.values(), margin, width - margin)?;
    let (top, base) = (if is_narrow { 42.0 } else { 26.0 }, height - 34.0);
    let mut svg = Svg::new(width, height);
    axis(
        &mut svg,
        scale,
        (top, base),
        width,
        if is_narrow { 6 } else { 14 },
    );
    of.draw(&mut svg, scale, (base, base - top - 24.0), true);
    svg.line("axis", [(margin, base), (width - margin, base)]);
    let lines = |side: &Side<'_>| -> Vec<String> {
        let median = ms(Some(side.median_us));
        // Two long names do not fit next to each other, so a long label is cut to its end, which differs.
        let end = side.label.rsplit(", ").next().unwrap_or_default();
        match is_narrow {
            true if side.label.chars().count() > 17 => vec![end.to_owned(), median],
            true => vec![side.label.to_owned(), median],
            false => vec![format!("{}: {median}", side.label)],
        }
    };
    let x = |side: &Side<'_>| scale.at(side.median_us / 1000.0);
    let now = Label::new(x(&of.now), lines(&of.now), width);
    let before = of
        .before
        .as_ref()
        .map(|side| Label::new(x(side), lines(side), width));
    let class_now = if of.is_bad {
        "t-page t-l m"
    } else {
        "t-npu t-b t-l m"
    };
    match before {
        Some(before) => {
            let is_left = before.x <= now.x;
            let (left, right) = match is_left {
                true => (&before, &now),
                false => (&now, &before),
            };
            let (left_x, right_x) = apart(left, right, width);
            let (before_x, now_x) = match is_left {
                true => (left_x, right_x),
                false => (right_x, left_x),
            };
            before.write(&mut svg, "t-before t-l m", before_x);
            now.write(&mut svg, class_now, now_x);
        }
        None => now.write(&mut svg, class_now, now.x),
    }
    if !is_narrow {
        arrow(&mut svg, of, scale, base - (base - top) * 0.55);
        small_mode(&mut svg, of, scale, (base, width));
    }
    Some(svg)
}

/// Returns the positions of two labels that must not overlap. Both are inside the drawing if there is space for them.
fn apart(left: &Label, right: &Label, width: f64) -> (f64, f64) {
    let distance = left.half + right.half + 16.0;
    let missing = (distance - (right.x - left.x)).max(0.0);
    let left_x = (left.x - missing / 2.0).max(left.half);
    let right_x = (right.x + missing / 2.0).max(left_x + distance);
    let right_x = right_x.min(width - right.half);
    (left_x.min(right_x - distance), right_x)
}

/// Writes the share of the runs at a small mode, above it.
fn small_mode(
    svg: &mut Svg,
    of: &DensityComparison<'_>,
    scale: LogScale,
    (base, width): (f64, f64),
) {
    let Some(mode) = of.small else {
        return;
    };
    let x = scale.at(mode.at_us / 1000.0);
    // This near to the main mode, the text would cover the curve.
    if (x - scale.at(of.now.median_us / 1000.0)).abs() < 90.0 {
        return;
    }
    let text = format!(
        "{}: {} of the runs",
        ms(Some(mode.at_us)),
        share(Some(mode.share))
    );
    let label = Label::new(x, vec![text], width);
    svg.line("lead-l", [(x, base - 12.0), (x, base - 46.0)]);
    svg.text("m t-ink", (label.x, base - 52.0), &label.lines[0]);
}

/// Lines of text above a mode, kept inside the drawing.
struct Label {
    x: f64,
    half: f64,
    lines: Vec<String>,
}

impl Label {
    fn new(x: f64, lines: Vec<String>, width: f64) -> Self {
        let longest = lines
            .iter()
            .map(|line| line.chars().count())
            .max()
            .unwrap_or(0);
        // Half the width of bold text of 15 px in a wide font.
        let half = longest as f64 * 4.6 + 4.0;
        Self {
            x: x.clamp(half.min(width / 2.0), (width - half).max(width / 2.0)),
            half,
            lines,
        }
    }

    fn write(&self, svg: &mut Svg, class: &'static str, x: f64) {
        for (at, line) in self.lines.iter().enumerate() {
            svg.text(class, (x, 18.0 + 18.0 * at as f64), line);
        }
    }
}

/// Draws an arrow from the earlier median to the present one, with the verdict's ratio, if there is space.
fn arrow(svg: &mut Svg, of: &DensityComparison<'_>, scale: LogScale, y: f64) {
    let (Some(before), Some(ratio)) = (&of.before, of.ratio.filter(|ratio| *ratio >= 1.3)) else {
        return;
    };
    let x = |us: f64| scale.at(us / 1000.0);
    let (from, to) = (x(before.median_us) + 60.0, x(of.now.median_us) - 60.0);
    if to - from < 130.0 {
        return;
    }
    svg.line("lead-l", [(from, y), (to, y)]);
    svg.line(
        "lead-l",
        [(to - 6.0, y - 4.0), (to, y), (to - 6.0, y + 4.0)],
    );
    svg.text(
        "m t-ink t-b t-l",
        ((from + to) / 2.0, y - 9.0),
        &format!("{ratio:.1} times slower"),
    );
}

/// A row of a comparison over chipsets.
#[derive(Debug)]
pub(crate) struct DensityRow<'a> {
    pub(crate) title: &'a str,
    pub(crate) subtitle: &'a str,
    pub(crate) comparison: DensityComparison<'a>,
}

/// Draws several cohorts on one axis, one below the other, wide and narrow. `None` without runs.
pub(crate) fn multiples(id: &str, rows: &[DensityRow<'_>], words: &str) -> Option<[Drawing; 2]> {
    const TITLE: &str = "Latency by chipset, now and before";
    let wide = over_chipsets(rows, &RowLayout::WIDE)?;
    let narrow = over_chipsets(rows, &RowLayout::NARROW)?;
    Some(Svg::figures(wide, narrow, id, TITLE, words))
}

fn over_chipsets(rows: &[DensityRow<'_>], layout: &RowLayout) -> Option<Svg> {
    let values = rows.iter().flat_map(|row| row.comparison.values());
    let scale = LogScale::over(values, layout.left, layout.right)?;
    let height = 72.0 + layout.title;
    let bottom = 10.0 + height * rows.len() as f64 + 6.0;
    let mut svg = Svg::new(layout.width, bottom + 28.0);
    axis(&mut svg, scale, (6.0, bottom), layout.width, layout.ticks);
    for (at, row) in rows.iter().enumerate() {
        let base = 10.0 + height * (at + 1) as f64;
        svg.line("axis", [(layout.left, base), (layout.right, base)]);
        row.comparison.draw(&mut svg, scale, (base, 56.0), false);
        layout.name(&mut svg, (base - height, base), row.title, &[row.subtitle]);
        if row.comparison.is_bad {
            mark(&mut svg, &row.comparison, scale, (base - 44.0, layout));
        }
    }
    Some(svg)
}

/// Width of a wide character in a label.
const CHAR_WIDTH: f64 = 7.6;

/// Writes both medians next to their modes, or only the present one if space is short.
fn mark(
    svg: &mut Svg,
    of: &DensityComparison<'_>,
    scale: LogScale,
    (y, layout): (f64, &RowLayout),
) {
    let x = |side: &Side<'_>| scale.at(side.median_us / 1000.0);
    let now = ms(Some(of.now.median_us));
    let slower = number::times_slower(of.ratio);
    if layout.is_narrow() {
        let text = match &slower {
            Some(_) => format!("{now}, {}", number::times(of.ratio)),
            None => now,
        };
        return match x(&of.now) > layout.width / 2.0 {
            true => svg.text("t-page e", (x(&of.now) - 22.0, y), &text),
            false => svg.text("t-page", (x(&of.now) + 22.0, y), &text),
        };
    }
    let slower = slower.map_or_else(String::new, |slower| format!(", {slower}"));
    let text = format!("{}: {now}{slower}", of.now.label);
    let room = text.chars().count() as f64 * CHAR_WIDTH;
    // The left edge of this label, which the other one must not touch.
    let edge = match x(&of.now) + 36.0 + room > layout.right {
        true => {
            svg.text("t-page e", (x(&of.now) - 36.0, y), &text);
            x(&of.now) - 36.0 - room
        }
        false => {
            svg.text("t-page", (x(&of.now) + 30.0, y), &text);
            x(&of.now) + 30.0
        }
    };
    let Some(before) = &of.before else {
        return;
    };
    let text = format!("{}: {}", before.label, ms(Some(before.median_us)));
    let room = text.chars().count() as f64 * CHAR_WIDTH;
    if x(before) + 30.0 + room + 12.0 < edge {
        svg.text("t-before", (x(before) + 30.0, y), &text);
    }
}
