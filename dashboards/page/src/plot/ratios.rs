//! Devices by how much slower they are than their own past. The suspected chipset is above its controls, on one axis.

use super::row_layout::RowLayout;
use super::scale::{LogScale, tick_label};
use super::svg::{Drawing, Svg};
use crate::read::evidence::Ratios;
use crate::read::windows::Slower;
use crate::text::number;

const HEIGHT: f64 = 92.0;

/// One chipset's devices.
#[derive(Debug)]
pub(crate) struct RatioRow<'a> {
    pub(crate) title: &'a str,
    pub(crate) subtitle: &'a str,
    pub(crate) ratios: &'a Ratios,
    pub(crate) slower: Option<Slower>,
}

/// Returns the ratio of a bin's end to its middle.
fn half_bin(ratios: &Ratios) -> f64 {
    (1.0 / (2.0 * ratios.bins_per_octave)).exp2()
}

/// Height above a row's axis in which a bin's devices must fit.
const ROOM: f64 = HEIGHT - 30.0;

/// Returns the greatest distance of two dots, from 8 down to 3.5, at which the devices of each of these bins fit above
/// the axis.
fn pitch(bins: &[Bin]) -> Option<f64> {
    let fits = |bin: &Bin, pitch: f64| {
        (bin.width() / pitch).floor() * (ROOM / pitch).floor() >= f64::from(bin.devices())
    };
    let mut pitches = (7..=16).rev().map(|half| f64::from(half) / 2.0);
    pitches.find(|pitch| bins.iter().all(|bin| fits(bin, *pitch)))
}

/// Draws a dot for each device, in the bin of its ratio. If the dots of a bin would not fit, draws a column for each
/// bin with its number above. The devices on the NPU are below, the devices on the CPU above them. Returns a wide and a
/// narrow drawing; `None` without devices that have a past.
pub(crate) fn devices(id: &str, rows: &[RatioRow<'_>], words: &str) -> Option<[Drawing; 2]> {
    const TITLE: &str = "Devices against their own past";
    let wide = over_chipsets(rows, &RowLayout::WIDE)?;
    let narrow = over_chipsets(rows, &RowLayout::NARROW)?;
    Some(Svg::figures(wide, narrow, id, TITLE, words))
}

fn over_chipsets(rows: &[RatioRow<'_>], layout: &RowLayout) -> Option<Svg> {
    let rows: Vec<_> = rows.iter().filter(|row| row.ratios.devices() > 0).collect();
    let edges = rows.iter().flat_map(|row| {
        let half = half_bin(row.ratios);
        let filled = row.ratios.bins().filter(|(_, npu, cpu)| npu + cpu > 0);
        filled.flat_map(move |(ratio, ..)| [ratio / half, ratio * half])
    });
    // The axis always shows the ratio 1, "as before", and the ratio where slower begins.
    let values = edges.chain([0.8, Slower::RATIO * 1.1]);
    if rows.is_empty() {
        return None;
    }
    let scale = LogScale::over(values, layout.left + 16.0, layout.right - 16.0)?;
    let (head, height) = (26.0, HEIGHT + layout.title);
    let bottom = head + height * rows.len() as f64;
    let mut svg = Svg::new(layout.width, bottom + 30.0);
    for tick in scale.ticks(layout.ticks) {
        let x = scale.at(tick);
        svg.line("grid", [(x, 24.0), (x, bottom)]);
        let label = format!("{}\u{d7}", tick_label(tick));
        svg.text("m t-3", (x, bottom + 20.0), &label);
    }
    limits(&mut svg, scale, bottom);
    let of_row = |row: &RatioRow<'_>| -> Vec<Bin> {
        let half = half_bin(row.ratios);
        let bins = row.ratios.bins().filter(|(_, npu, cpu)| npu + cpu > 0);
        bins.map(|(ratio, npu, cpu)| Bin {
            from: scale.at(ratio / half) + 1.0,
            to: scale.at(ratio * half) - 1.0,
            npu,
            cpu,
        })
        .collect()
    };
    let bins: Vec<Vec<Bin>> = rows.iter().map(|row| of_row(row)).collect();
    let pitch = pitch(&bins.concat());
    for (at, (row, bins)) in rows.iter().zip(&bins).enumerate() {
        let base = head + height * (at + 1) as f64;
        svg.line("axis", [(layout.left, base), (layout.right, base)]);
        let slower = row.slower.map_or_else(String::new, |slower| {
            let [devices, compared] = [slower.devices, slower.compared].map(number::count);
            format!("{devices} of {compared}")
        });
        let lines = [row.subtitle, &*slower];
        layout.name(&mut svg, (base - height, base), row.title, &lines);
        match pitch {
            Some(pitch) => dots(&mut svg, bins, base, pitch),
            None => columns(&mut svg, bins, base),
        }
    }
    Some(svg)
}

/// Draws lines at "as before" and where slower begins. Their labels point away from each other.
fn limits(svg: &mut Svg, scale: LogScale, bottom: f64) {
    let (before, slower) = (scale.at(1.0), scale.at(Slower::RATIO));
    svg.line("limit", [(before, 20.0), (before, bottom)]);
    svg.line("limit", [(slower, 20.0), (slower, bottom)]);
    let label = format!("slower from {}", number::times(Some(Slower::RATIO)));
    match slower - before > 90.0 {
        true => {
            svg.text("m t-3", (before, 14.0), "as before");
            svg.text("m t-3", (slower, 14.0), &label);
        }
        false => {
            svg.text("e t-3", (before + 4.0, 14.0), "as before");
            svg.text("t-3", (slower - 4.0, 14.0), &label);
        }
    }
}

/// The devices of a bin, and where it begins and ends.
#[derive(Debug, Clone, Copy)]
struct Bin {
    from: f64,
    to: f64,
    npu: u32,
    cpu: u32,
}

impl Bin {
    fn width(self) -> f64 {
        (self.to - self.from).max(1.5)
    }

    fn devices(self) -> u32 {
        self.npu.saturating_add(self.cpu)
    }
}

/// Draws a row's devices as dots, in lines from the axis upwards.
fn dots(svg: &mut Svg, bins: &[Bin], base: f64, pitch: f64) {
    let (mut on_npu, mut on_cpu) = (Vec::new(), Vec::new());
    for bin in bins {
        // The few devices of a nearly empty bin are drawn as a compact group, not as a line.
        let across = (bin.width() / pitch)
            .floor()
            .min(f64::from(bin.devices()).sqrt().ceil())
            .max(1.0);
        let left = f64::midpoint(bin.from, bin.to) - (across - 1.0) / 2.0 * pitch;
        for n in 0..bin.devices() {
            let (line, layout) = ((f64::from(n) / across).floor(), f64::from(n) % across);
            let at = (left + layout * pitch, base - 1.0 - (line + 0.5) * pitch);
            match n < bin.npu {
                true => on_npu.push(at),
                false => on_cpu.push(at),
            }
        }
    }
    svg.dots("npu-d", &on_npu, pitch - 1.0);
    svg.dots("cpu-d", &on_cpu, pitch - 1.0);
}

/// Draws a row's devices as columns, with the number of devices above each.
fn columns(svg: &mut Svg, bins: &[Bin], base: f64) {
    let most = bins.iter().map(|bin| bin.devices()).max().unwrap_or(1);
    for bin in bins {
        let height = |n: u32| ROOM * f64::from(n) / f64::from(most.max(1));
        let (npu, cpu) = (height(bin.npu), height(bin.cpu));
        if bin.npu > 0 {
            svg.rect("npu", (bin.from, base - npu), (bin.width(), npu));
        }
        let top = match (bin.cpu, bin.npu) {
            (0, _) => base - npu,
            (_, 0) => base - cpu,
            _ => base - npu - 2.0 - cpu,
        };
        if bin.cpu > 0 {
            svg.rect("cpu", (bin.from, top), (bin.width(), cpu));
        }
        let label = bin.devices().to_string();
        // The number of a narrow column would run into the numbers of its neighbours.
        let fits = label.len() as f64 * 7.0 < bin.width() + 4.0;
        if fits || bin.devices() == most {
            let middle = f64::midpoint(bin.from, bin.to);
            svg.text("m t-3", (middle, top - 6.0), &label);
        }
    }
}
