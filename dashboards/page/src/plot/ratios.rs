//! Devices by how much slower they are than their own past: the accused chipset above, its controls below, on one axis.

use super::scale::{LogScale, tick_label};
use super::svg::{Drawing, Svg};
use crate::read::evidence::Ratios;

const WIDTH: f64 = 1064.0;
const LEFT: f64 = 118.0;
const RIGHT: f64 = 1050.0;
const HEIGHT: f64 = 92.0;

/// One chipset's devices.
#[derive(Debug)]
pub(crate) struct RatioRow<'a> {
    pub(crate) title: &'a str,
    pub(crate) subtitle: &'a str,
    pub(crate) ratios: &'a Ratios,
}

/// Returns the ratio of a bin's end to its middle.
fn half_bin(ratios: &Ratios) -> f64 {
    (1.0 / (2.0 * ratios.bins_per_octave)).exp2()
}

/// Draws a column for each bin, with the devices on the NPU below and those on the CPU above them. `None` without
/// devices that have a past.
pub(crate) fn devices(id: &str, rows: &[RatioRow<'_>], words: &str) -> Option<Drawing> {
    let rows: Vec<_> = rows.iter().filter(|row| row.ratios.devices() > 0).collect();
    let edges = rows.iter().flat_map(|row| {
        let half = half_bin(row.ratios);
        let filled = row.ratios.bins().filter(|(_, npu, cpu)| npu + cpu > 0);
        filled.flat_map(move |(ratio, ..)| [ratio / half, ratio * half])
    });
    // One is always on the axis: as before.
    let values = edges.chain([0.8, 1.25]);
    if rows.is_empty() {
        return None;
    }
    let scale = LogScale::over(values, LEFT + 16.0, RIGHT - 16.0)?;
    let bottom = 26.0 + HEIGHT * rows.len() as f64;
    let mut svg = Svg::new(WIDTH, bottom + 30.0);
    for tick in scale.ticks(12) {
        let x = scale.at(tick);
        svg.line("grid", [(x, 24.0), (x, bottom)]);
        svg.text(
            "m t-3",
            (x, bottom + 20.0),
            &format!("{}\u{d7}", tick_label(tick)),
        );
    }
    let one = scale.at(1.0);
    svg.line("limit", [(one, 20.0), (one, bottom)]);
    svg.text("m t-3", (one, 14.0), "as before");
    for (at, row) in rows.iter().enumerate() {
        let base = 26.0 + HEIGHT * (at + 1) as f64;
        svg.line("axis", [(LEFT, base), (RIGHT, base)]);
        svg.text("t-ink t-b t-m", (0.0, base - 16.0), row.title);
        svg.text("t-3", (0.0, base - 1.0), row.subtitle);
        let most = row
            .ratios
            .bins()
            .map(|(_, npu, cpu)| npu + cpu)
            .max()
            .unwrap_or(1);
        let half = half_bin(row.ratios);
        for (ratio, npu, cpu) in row.ratios.bins() {
            let (from, to) = (scale.at(ratio / half), scale.at(ratio * half));
            let width = (to - from - 2.0).max(1.5);
            let height = |n: u32| (HEIGHT - 30.0) * f64::from(n) / f64::from(most.max(1));
            let (npu_height, cpu_height) = (height(npu), height(cpu));
            if npu > 0 {
                svg.rect("npu", (from + 1.0, base - npu_height), (width, npu_height));
            }
            if cpu > 0 {
                let gap = if npu > 0 { 2.0 } else { 0.0 };
                let top = base - npu_height - gap - cpu_height;
                svg.rect("cpu", (from + 1.0, top), (width, cpu_height));
            }
            if npu + cpu > 0 {
                let top = base - npu_height - cpu_height - 6.0;
                svg.text(
                    "m t-3",
                    (f64::midpoint(from, to), top),
                    &(npu + cpu).to_string(),
                );
            }
        }
    }
    Some(svg.figure("", id, "Devices against their own past", words))
}
