//! Bars of shares: where a model runs, and what became of reports.

use super::svg::{Drawing, Svg};
use crate::text::number;

/// Draws the share of work on the NPU, or on the accelerator that `said` names, in a table row. `None` if it is not known.
pub(crate) fn npu(share: Option<f64>, said: impl Fn(&str) -> String) -> Option<Drawing> {
    const WIDTH: f64 = 74.0;
    let share = number::finite(share)?.clamp(0.0, 1.0);
    let mut svg = Svg::new(WIDTH, 22.0);
    split(&mut svg, share, (0.0, WIDTH), (5.0, 12.0));
    let label = said(&format!(
        "{} of the work on the NPU",
        number::share(Some(share))
    ));
    Some(svg.small(&label))
}

/// Draws NPU and CPU with a gap in the background's colour between them. Returns the coordinate of the CPU's part.
fn split(svg: &mut Svg, share: f64, (x, width): (f64, f64), (y, height): (f64, f64)) -> f64 {
    let npu = width * share;
    let gap = if share > 0.0 && share < 1.0 { 2.0 } else { 0.0 };
    if share > 0.0 {
        svg.rect("npu", (x, y), (npu - gap / 2.0, height));
    }
    if share < 1.0 {
        // A sliver stays visible.
        let from = (x + npu + gap / 2.0).min(x + width - 1.5);
        svg.rect("cpu", (from, y), (x + width - from, height));
    }
    x + npu
}

/// One placement as a bar.
#[derive(Debug)]
pub(crate) struct PlacementBar<'a> {
    pub(crate) title: String,
    pub(crate) subtitle: String,
    /// An optional second small line; empty for none.
    pub(crate) note: String,
    /// Share on the NPU, in [0, 1].
    pub(crate) share: f64,
    /// Share of the work that belongs on the CPU, in [0, 1].
    pub(crate) benign: f64,
    /// The nodes that run on the CPU, for the bar's text.
    pub(crate) on_cpu: &'a str,
}

/// Draws placements one below the other, wide and narrow. `accelerator` names the processor that is not the CPU.
pub(crate) fn placements(
    id: &str,
    all: &[PlacementBar<'_>],
    words: &str,
    accelerator: &str,
) -> [Drawing; 2] {
    let article = if matches!(accelerator, "NPU" | "GPU" | "accelerator") {
        "the "
    } else {
        ""
    };
    let title = format!("Work on {article}{accelerator} and on the CPU, by version");
    let wide = bars(all, 1064.0, 178.0, accelerator, false);
    let narrow = bars(all, 358.0, 0.0, accelerator, true);
    Svg::figures(wide, narrow, id, &title, words)
}

fn bars(
    all: &[PlacementBar<'_>],
    width: f64,
    left: f64,
    accelerator: &str,
    is_narrow: bool,
) -> Svg {
    let pitch = if is_narrow { 84.0 } else { 54.0 };
    let mut svg = Svg::new(width, 12.0 + pitch * all.len() as f64);
    for (at, placed) in all.iter().enumerate() {
        let top = 6.0 + pitch * at as f64;
        let bar = if is_narrow { top + 36.0 } else { top };
        svg.text("t-ink t-b t-m", (0.0, top + 13.0), &placed.title);
        match (placed.note.is_empty(), is_narrow) {
            (false, true) => {
                let line = format!("{}, {}", placed.subtitle, placed.note);
                svg.text("t-3", (0.0, top + 29.0), &line);
            }
            (is_empty, _) => {
                svg.text("t-3", (0.0, top + 29.0), &placed.subtitle);
                if !is_empty {
                    svg.text("t-3", (0.0, top + 44.0), &placed.note);
                }
            }
        }
        let share = placed.share.clamp(0.0, 1.0);
        let cpu_at = split(&mut svg, share, (left, width - left), (bar, 36.0));
        let npu_text = format!("{accelerator} {}", number::share(Some(share)));
        if share * (width - left) > 80.0 {
            svg.text("t-on t-m", (left + 12.0, bar + 23.0), &npu_text);
        }
        let on_cpu = 1.0 - share;
        let text = format!("CPU {}", number::share(Some(on_cpu)));
        let benign = (width - left) * placed.benign.clamp(0.0, on_cpu);
        if benign >= 1.0 {
            // A gap in the background's colour separates both parts.
            svg.rect("gap", (width - benign - 2.0, bar), (2.0, 36.0));
            svg.rect("benign", (width - benign, bar), (benign, 36.0));
        }
        let room = on_cpu * (width - left) - benign;
        let with_ops = format!("{text}: {}", placed.on_cpu);
        let fits = |text: &str| text.chars().count() as f64 * 7.4 + 24.0 < room;
        if !placed.on_cpu.is_empty() && fits(&with_ops) {
            svg.text("t-on t-m", (cpu_at + 12.0, bar + 23.0), &with_ops);
        } else if fits(&text) {
            svg.text("t-on t-m", (cpu_at + 12.0, bar + 23.0), &text);
        }
    }
    svg
}

/// A part of a sum.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Part {
    pub(crate) class: &'static str,
    /// The part's name, for example `stored`.
    pub(crate) label: &'static str,
    pub(crate) n: i64,
}

/// Draws the parts of a sum as one bar with their labels, wide and narrow; parts below zero are left out.
pub(crate) fn parts(id: &str, parts: &[Part], words: &str) -> Option<[Drawing; 2]> {
    const TITLE: &str = "Where the reports went";
    Some(Svg::figures(
        sum(parts, 1064.0)?,
        sum(parts, 358.0)?,
        id,
        TITLE,
        words,
    ))
}

fn sum(parts: &[Part], width: f64) -> Option<Svg> {
    let total: i64 = parts.iter().map(|part| part.n.max(0)).sum();
    if total == 0 {
        return None;
    }
    let drawn: Vec<_> = parts.iter().filter(|part| part.n > 0).collect();
    let share = |part: &Part| part.n as f64 / total as f64;
    let label = |part: &Part| format!("{}, {}", part.label, number::share(Some(share(part))));
    let room = |text: &str| text.chars().count() as f64 * 7.4 + 24.0;
    let gaps = 2.0 * (drawn.len() as f64 - 1.0);
    // A small part stays visible.
    let width_of = |part: &Part| ((width - gaps) * share(part)).max(3.0);
    // Grey has too little contrast for text.
    let is_inside = |part: &Part| part.class != "benign" && width_of(part) >= room(&label(part));
    let below: Vec<&Part> = drawn
        .iter()
        .copied()
        .filter(|part| !is_inside(part))
        .collect();
    let mut svg = Svg::new(width, 36.0 + 18.0 * below.len() as f64);
    let mut x = 0.0;
    for part in drawn {
        let part_width = width_of(part).min(width - x);
        svg.rect(part.class, (x, 6.0), (part_width, 24.0));
        if is_inside(part) {
            svg.text("t-on", (x + 12.0, 22.0), &label(part));
        }
        x += part_width + 2.0;
    }
    for (at, part) in below.into_iter().enumerate() {
        let text = format!("{} {}", number::count(part.n), label(part));
        svg.text("t-3 e", (width, 48.0 + 18.0 * at as f64), &text);
    }
    Some(svg)
}
