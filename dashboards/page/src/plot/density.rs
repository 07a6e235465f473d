//! Distributions of latency: one cohort now and before, and several cohorts on one axis.

use super::scale::{LogScale, tick_label};
use super::svg::{Drawing, Svg};
use crate::histogram::Density;

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

    fn classes(&self) -> (&'static str, &'static str, &'static str) {
        match self.is_bad {
            true => ("now-f", "now-l", "t-page"),
            false => ("fine-f", "fine-l", "t-npu t-b"),
        }
    }

    /// Draws both sides on a base line.
    fn draw(&self, svg: &mut Svg, scale: LogScale, base: f64, height: f64) {
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
        let (fill, line, _) = self.classes();
        if let Some(before) = &self.before {
            let points = outline(before.density);
            svg.area("before-f", filled(&points));
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
                let half = label.len() as f64 * 3.4;
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
    of.draw(&mut svg, scale, base, base - top - 24.0);
    svg.line("axis", [(margin, base), (width - margin, base)]);
    let (_, _, class_now) = of.classes();
    let now_x = scale.at(of.now.median_us / 1000.0);
    let before_x = of.before.map(|side| scale.at(side.median_us / 1000.0));
    // Labels of about 200 units must not overlap; the later one moves right.
    let half = if is_narrow { 58.0 } else { 110.0 };
    let inside = |x: f64| x.clamp(half, width - half);
    let (mut now_label, mut before_label) = (inside(now_x), before_x.map(inside));
    if let Some(before) = &mut before_label {
        let gap = 2.0 * half - (now_label - *before).abs();
        if gap > 0.0 {
            let (left, right) = match now_x >= before_x.unwrap_or(now_x) {
                true => (&mut *before, &mut now_label),
                false => (&mut now_label, &mut *before),
            };
            *left = (*left - gap / 2.0).max(half);
            *right = (*left + 2.0 * half).min(width - half);
            *left = (*right - 2.0 * half).max(half);
        }
    }
    let median = |us: f64| crate::text::number::ms(Some(us));
    let mut label = |class: &str, x: f64, side: &Side<'_>| {
        let class: &'static str = match class {
            "t-page" => "t-page t-l m",
            "t-before" => "t-before t-l m",
            _ => "t-npu t-b t-l m",
        };
        if is_narrow {
            svg.text(class, (x, 16.0), side.label);
            svg.text(class, (x, 34.0), &median(side.median_us));
        } else {
            let text = format!("{}: {}", side.label, median(side.median_us));
            svg.text(class, (x, 18.0), &text);
        }
    };
    if let (Some(before), Some(x)) = (&of.before, before_label) {
        label("t-before", x, before);
    }
    label(class_now, now_label, &of.now);
    Some(svg)
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
        row.comparison.draw(&mut svg, scale, base, HEIGHT - 16.0);
        svg.text("t-ink t-b t-m", (0.0, base - 16.0), row.title);
        svg.text("t-3", (0.0, base - 1.0), row.subtitle);
        if row.comparison.is_bad {
            let now = &row.comparison.now;
            let x = scale.at(now.median_us / 1000.0);
            let text = format!(
                "{}: {}",
                now.label,
                crate::text::number::ms(Some(now.median_us))
            );
            match x > 700.0 {
                true => svg.text("t-page e", (x - 40.0, base - 44.0), &text),
                false => svg.text("t-page", (x + 40.0, base - 44.0), &text),
            }
        }
    }
    Some(svg.figure("", id, "Latency by chipset, now and before", words))
}
