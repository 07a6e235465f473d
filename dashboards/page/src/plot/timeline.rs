//! What happened over time: medians above, one box for each judged window below, and devices hit.

use super::changes;
use super::gaps::{self, Gap};
use super::row_layout::RowLayout;
use super::scale::{LogScale, tick_label, whole_ticks};
use super::svg::{Drawing, Svg};
use crate::text::words::Tone;

/// Space left of the axis in a narrow drawing, for the labels of ticks.
const NARROW_LEFT: f64 = 52.0;

/// Mean width of a character of small text, rounded up.
const CHARACTER: f64 = 6.8;

/// One window of a cohort.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Moment {
    /// Share of the period, in [0, 1].
    pub(crate) at: f64,
    pub(crate) p50_us: Option<f64>,
    pub(crate) tone: Tone,
}

/// A version's windows.
#[derive(Debug)]
pub(crate) struct Lane<'a> {
    pub(crate) label: String,
    pub(crate) moments: &'a [Moment],
    pub(crate) is_now: bool,
}

/// A labelled moment.
#[derive(Debug)]
pub(crate) struct TimelineLabel {
    pub(crate) at: f64,
    pub(crate) label: String,
}

/// Marks on the axis of time: shares of the period, in [0, 1].
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct OverTime<'a> {
    pub(crate) gaps: &'a [Gap],
    /// Changes in order of time; the list next to the drawing has their texts.
    pub(crate) changes: &'a [f64],
    pub(crate) labels: &'a [(f64, String)],
}

impl OverTime<'_> {
    /// Height of the row of changes.
    fn changes_height(&self) -> f64 {
        match self.changes.is_empty() {
            true => 0.0,
            false => changes::HEIGHT,
        }
    }

    fn draw_changes(&self, svg: &mut Svg, layout: &RowLayout, (top, bottom): (f64, f64)) {
        changes::draw(
            svg,
            self.changes,
            (top, bottom),
            (left(layout), layout.right),
        );
        if !self.changes.is_empty() && !layout.is_narrow() {
            svg.text("t-ink", (0.0, bottom + 16.0), "what changed");
        }
    }
}

fn left(layout: &RowLayout) -> f64 {
    match layout.is_narrow() {
        true => NARROW_LEFT,
        false => layout.left,
    }
}

fn x_of(layout: &RowLayout, at: f64) -> f64 {
    left(layout) + at * (layout.right - left(layout))
}

fn box_class(tone: Tone) -> &'static str {
    match tone {
        Tone::Page => "w-page",
        Tone::Ticket => "w-ticket",
        Tone::Info => "w-info",
        Tone::Fine => "w-ok",
        Tone::Quiet => "w-none",
    }
}

/// Draws times below the plot; only the first and the last if all labels would overlap.
fn times(svg: &mut Svg, layout: &RowLayout, y: f64, labels: &[(f64, String)]) {
    let width: usize = labels
        .iter()
        .map(|(_, label)| label.chars().count() + 2)
        .sum();
    let fit = width as f64 * CHARACTER < layout.right - left(layout);
    for (n, (at, label)) in labels.iter().enumerate() {
        if !fit && n > 0 && n + 1 < labels.len() {
            continue;
        }
        let class = match *at {
            at if at < 0.05 => "t-3",
            at if at > 0.95 => "t-3 e",
            _ => "t-3 m",
        };
        svg.text(class, (x_of(layout, *at), y), label);
    }
}

/// Returns a lane's label, cut to the space left of its boxes.
fn lane_name(label: &str) -> String {
    const MOST: usize = 15;
    match label.chars().count() > MOST {
        true => label.chars().take(MOST - 1).chain(['\u{2026}']).collect(),
        false => label.to_owned(),
    }
}

/// Draws medians and windows of the versions, wide and narrow. `None` without windows.
pub(crate) fn windows(
    id: &str,
    lanes: &[Lane<'_>],
    over: OverTime<'_>,
    mark: Option<&TimelineLabel>,
    words: &str,
) -> Option<[Drawing; 2]> {
    const TITLE: &str = "Median and verdict of each judged window";
    lanes.iter().flat_map(|lane| lane.moments).next()?;
    let on = |layout| of_windows(layout, lanes, over, mark);
    let (wide, narrow) = (on(&RowLayout::WIDE), on(&RowLayout::NARROW));
    Some(Svg::figures(wide, narrow, id, TITLE, words))
}

fn of_windows(
    layout: &RowLayout,
    lanes: &[Lane<'_>],
    over: OverTime<'_>,
    mark: Option<&TimelineLabel>,
) -> Svg {
    let gaps = over.gaps;
    let moments = lanes.iter().flat_map(|lane| lane.moments);
    let ms = moments
        .filter_map(|moment| moment.p50_us)
        .map(|us| us / 1000.0);
    // A narrow drawing has the name of a lane above its boxes.
    let (boxes, pitch) = (150.0, 20.0 + layout.title);
    let bottom = boxes + pitch * lanes.len() as f64;
    let below = bottom + over.changes_height();
    let mut svg = Svg::new(layout.width, below + 24.0);
    over.draw_changes(&mut svg, layout, (24.0, bottom));
    gaps::draw(&mut svg, gaps, (6.0, bottom), |at| x_of(layout, at));
    if let Some(scale) = LogScale::over(ms, 132.0, 30.0) {
        medians(&mut svg, layout, scale, lanes, gaps);
    }
    for (at, lane) in lanes.iter().enumerate() {
        let y = boxes + pitch * at as f64 + layout.title;
        match layout.is_narrow() {
            true => svg.text("t-ink", (0.0, y - 5.0), &lane.label),
            false => svg.text("t-ink", (0.0, y + 10.0), &lane_name(&lane.label)),
        }
        let room = (layout.right - left(layout)) / lane.moments.len().max(24) as f64;
        for moment in lane.moments {
            let width = (room - 2.0).clamp(1.5, 6.0);
            svg.rect(
                box_class(moment.tone),
                (x_of(layout, moment.at) - width, y),
                (width, 11.0),
            );
        }
    }
    if let Some(mark) = mark.filter(|mark| (0.0..=1.0).contains(&mark.at)) {
        let x = x_of(layout, mark.at);
        svg.line("limit", [(x, 6.0), (x, bottom)]);
        match mark.at > 0.6 {
            true => svg.text("e", (x - 6.0, 14.0), &mark.label),
            false => svg.text("", (x + 6.0, 14.0), &mark.label),
        }
    }
    times(&mut svg, layout, below + 18.0, over.labels);
    svg
}

/// Draws the lines of the medians with their scale.
fn medians(svg: &mut Svg, layout: &RowLayout, scale: LogScale, lanes: &[Lane<'_>], gaps: &[Gap]) {
    let left = left(layout);
    for tick in scale.ticks(5) {
        let y = scale.at(tick);
        svg.line("grid", [(left, y), (layout.right, y)]);
        svg.text(
            "e t-3",
            (left - 10.0, y + 4.0),
            &format!("{} ms", tick_label(tick)),
        );
    }
    let mut ends = Vec::new();
    for lane in lanes {
        let medians = lane
            .moments
            .iter()
            .filter_map(|m| Some((m.at, m.p50_us? / 1000.0)));
        let parts = gaps::parts(medians, gaps).into_iter();
        let placed = |(at, ms): &(f64, f64)| (x_of(layout, *at), scale.at(*ms));
        let parts: Vec<Vec<_>> = parts
            .map(|part| part.iter().map(placed).collect())
            .collect();
        let is_bad = lane.moments.iter().any(|moment| moment.tone == Tone::Page);
        let class = match (lane.is_now, is_bad) {
            (false, _) => "before-s",
            (true, true) => "now-l",
            (true, false) => "fine-l",
        };
        for part in &parts {
            if let [(x, y)] = part[..] {
                svg.circle(if is_bad { "pt" } else { "pt-ok" }, (x, y), 3.0);
            }
        }
        if let Some((_, y)) = parts.last().and_then(|part| part.last()) {
            let class = match (lane.is_now, is_bad) {
                (true, true) => "e t-page",
                (true, false) => "e t-npu t-b",
                (false, _) => "e t-before",
            };
            ends.push((*y, class, format!("{}, median", lane.label)));
        }
        for part in parts {
            svg.line(class, part);
        }
    }
    // The lower of two lines has its label below, so the labels of two close lines do not overlap.
    ends.sort_by(|a, b| a.0.total_cmp(&b.0));
    for (at, (y, class, label)) in ends.into_iter().enumerate() {
        let y = if at == 0 { y - 7.0 } else { y + 16.0 };
        svg.text(class, (layout.right, y), &label);
    }
}

/// Draws the number of devices hit over time, as steps, wide and narrow. `None` without points.
pub(crate) fn devices_hit(
    id: &str,
    points: &[(f64, u64, Tone)],
    over: OverTime<'_>,
    words: &str,
) -> Option<[Drawing; 2]> {
    const TITLE: &str = "Devices hit in each judged window";
    let most = points.iter().map(|(_, hit, _)| *hit).max()?;
    let on = |layout| steps(layout, points, over, most);
    let (wide, narrow) = (on(&RowLayout::WIDE), on(&RowLayout::NARROW));
    Some(Svg::figures(wide, narrow, id, TITLE, words))
}

fn steps(layout: &RowLayout, points: &[(f64, u64, Tone)], over: OverTime<'_>, most: u64) -> Svg {
    let gaps = over.gaps;
    let (top, base) = (16.0, 116.0);
    let y_of = |hit: f64| base - (base - top) * hit / (most.max(1) as f64);
    let x_of = |at: f64| x_of(layout, at);
    let left = left(layout);
    let below = base + over.changes_height();
    let mut svg = Svg::new(layout.width, below + 26.0);
    over.draw_changes(&mut svg, layout, (top, base));
    gaps::draw(&mut svg, gaps, (top, base), x_of);
    for tick in whole_ticks(most.max(1) as f64, 4) {
        let y = y_of(tick);
        svg.line("grid", [(left, y), (layout.right, y)]);
        svg.text("e t-3", (left - 10.0, y + 4.0), &tick_label(tick));
    }
    let is_bad = points.iter().any(|(_, _, tone)| *tone == Tone::Page);
    let counts = points.iter().map(|(at, hit, _)| (*at, *hit as f64));
    for part in gaps::parts(counts, gaps) {
        let mut line: Vec<(f64, f64)> = Vec::new();
        for (at, hit) in part {
            let y = y_of(hit);
            if let Some((_, last)) = line.last().copied() {
                line.push((x_of(at), last));
            }
            line.push((x_of(at), y));
        }
        if let [(x, y)] = line[..] {
            svg.circle(if is_bad { "pt" } else { "pt-ok" }, (x, y), 3.0);
        }
        svg.line(if is_bad { "now-l" } else { "before-s" }, line);
    }
    let mut last = None;
    for (at, hit, tone) in points {
        let word = match tone {
            Tone::Page => "page",
            Tone::Ticket => "ticket",
            _ => "quiet",
        };
        if last != Some(word) && last.is_none_or(|_| word != "quiet") && word != "quiet" {
            let (x, y) = (x_of(*at), y_of(*hit as f64));
            svg.circle("pt", (x, y), 4.0);
            match *at > 0.8 {
                true => svg.text("t-ink t-b e", (x - 8.0, y + 16.0), word),
                false => svg.text("t-ink t-b", (x + 8.0, y + 16.0), word),
            }
            last = Some(word);
        }
    }
    times(&mut svg, layout, below + 20.0, over.labels);
    svg
}
