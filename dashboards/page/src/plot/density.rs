//! Distributions of latency: one cohort now and before, and several cohorts on one axis.

use super::scale::{LogScale, tick_label};
use super::svg::{Drawing, Svg};
use crate::histogram::Density;
use crate::text::number::ms;

/// One side of a comparison.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Side<'a> {
    pub(crate) density: &'a Density,
    pub(crate) label: &'a str,
    pub(crate) median_us: f64,
}

/// What is compared, and whether it is bad.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Comparison<'a> {
    pub(crate) now: Side<'a>,
    pub(crate) before: Option<Side<'a>>,
    pub(crate) is_bad: bool,
    /// The verdict's ratio of the two.
    pub(crate) ratio: Option<f64>,
    pub(crate) words: &'a str,
}

impl Comparison<'_> {
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
            let points = density.points();
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
pub(crate) fn comparison(id: &str, of: &Comparison<'_>) -> Option<[Drawing; 2]> {
    let wide = one(of, 1064.0, 300.0, false)?.figure("wide", id, TITLE, of.words);
    let narrow = one(of, 358.0, 250.0, true)?.figure("narrow", &format!("{id}n"), TITLE, of.words);
    Some([wide, narrow])
}

const TITLE: &str = "Latency of clean runs, now and before";

fn one(of: &Comparison<'_>, width: f64, height: f64, is_narrow: bool) -> Option<Svg> {
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
        match is_narrow {
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
            let (left, right) = if before.x <= now.x {
                (&before, &now)
            } else {
                (&now, &before)
            };
            let gap = (left.half + right.half + 16.0 - (right.x - left.x)).max(0.0);
            let left_x = (left.x - gap / 2.0).max(left.half);
            let right_x = (left_x + left.half + right.half + 16.0)
                .max(right.x)
                .min(width - right.half);
            let is_left = before.x <= now.x;
            let (before_x, now_x) = if is_left {
                (left_x, right_x)
            } else {
                (right_x, left_x)
            };
            before.write(&mut svg, "t-before t-l m", before_x);
            now.write(&mut svg, class_now, now_x);
        }
        None => now.write(&mut svg, class_now, now.x),
    }
    if !is_narrow {
        arrow(&mut svg, of, scale, base - (base - top) * 0.55);
    }
    Some(svg)
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
        let half = longest as f64 * 4.0 + 4.0;
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

/// Draws the way from the median before to the one now, with the verdict's ratio, where there is room.
fn arrow(svg: &mut Svg, of: &Comparison<'_>, scale: LogScale, y: f64) {
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
pub(crate) struct Row<'a> {
    pub(crate) title: &'a str,
    pub(crate) subtitle: &'a str,
    pub(crate) comparison: Comparison<'a>,
}

/// Draws several cohorts on one axis, one below the other. `None` without runs.
pub(crate) fn multiples(id: &str, rows: &[Row<'_>], words: &str) -> Option<Drawing> {
    const HEIGHT: f64 = 72.0;
    const LEFT: f64 = 118.0;
    const RIGHT: f64 = 1050.0;
    let values = rows.iter().flat_map(|row| row.comparison.values());
    let scale = LogScale::over(values, LEFT, RIGHT)?;
    let bottom = 10.0 + HEIGHT * rows.len() as f64 + 6.0;
    let mut svg = Svg::new(1064.0, bottom + 28.0);
    axis(&mut svg, scale, (6.0, bottom), 1064.0, 12);
    for (at, row) in rows.iter().enumerate() {
        let base = 10.0 + HEIGHT * (at + 1) as f64;
        svg.line("axis", [(LEFT, base), (RIGHT, base)]);
        row.comparison
            .draw(&mut svg, scale, (base, HEIGHT - 16.0), false);
        svg.text("t-ink t-b t-m", (0.0, base - 16.0), row.title);
        svg.text("t-3", (0.0, base - 1.0), row.subtitle);
        if row.comparison.is_bad {
            mark(&mut svg, &row.comparison, scale, base - 44.0);
        }
    }
    Some(svg.figure("", id, "Latency by chipset, now and before", words))
}

/// Writes both medians next to their modes.
fn mark(svg: &mut Svg, of: &Comparison<'_>, scale: LogScale, y: f64) {
    let x = |side: &Side<'_>| scale.at(side.median_us / 1000.0);
    let times = of.ratio.filter(|ratio| *ratio >= 1.05);
    let times = times.map_or_else(String::new, |ratio| format!(", {ratio:.1} times slower"));
    let text = format!("{}: {}{times}", of.now.label, ms(Some(of.now.median_us)));
    let room = text.chars().count() as f64 * 7.0;
    match x(&of.now) + 36.0 + room > 1050.0 {
        true => svg.text("t-page e", (x(&of.now) - 36.0, y), &text),
        false => svg.text("t-page", (x(&of.now) + 30.0, y), &text),
    }
    let Some(before) = &of.before else {
        return;
    };
    let text = format!("{}: {}", before.label, ms(Some(before.median_us)));
    let room = text.chars().count() as f64 * 7.0 + 60.0;
    if x(&of.now) - x(before) > room {
        svg.text("t-before", (x(before) + 30.0, y), &text);
    }
}
