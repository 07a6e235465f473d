//! How far each chipset's outputs are from the outputs of its devices' own CPUs, on one axis.

use epwatch_proto::ROUNDING_COSINE;

use super::row_layout::RowLayout;
use super::scale::{LogScale, tick_label};
use super::svg::{Drawing, Svg};

/// Height of a row.
const HEIGHT: f64 = 34.0;

/// Smallest distance that is drawn, because equal outputs have no position on a log axis.
const LEAST: f64 = 1e-6;

/// One chipset.
#[derive(Debug)]
pub(crate) struct GoldenDistances<'a> {
    pub(crate) title: &'a str,
    pub(crate) subtitle: &'a str,
    /// 1 - cosine of the median device.
    pub(crate) median: f64,
    /// 1 - cosine of the worst device.
    pub(crate) worst: f64,
}

/// Draws a dot for the median device of each chipset and a line to the worst one. Returns a wide and a narrow drawing;
/// `None` without rows.
pub(crate) fn distances(
    id: &str,
    rows: &[GoldenDistances<'_>],
    words: &str,
) -> Option<[Drawing; 2]> {
    const TITLE: &str = "Outputs against the CPU by chipset";
    let wide = over_chipsets(rows, &RowLayout::WIDE)?;
    let narrow = over_chipsets(rows, &RowLayout::NARROW)?;
    Some(Svg::figures(wide, narrow, id, TITLE, words))
}

fn over_chipsets(rows: &[GoldenDistances<'_>], layout: &RowLayout) -> Option<Svg> {
    if rows.is_empty() {
        return None;
    }
    let rounding = 1.0 - ROUNDING_COSINE;
    let drawn = |drop: f64| drop.clamp(LEAST, 2.0);
    let values = rows
        .iter()
        .flat_map(|row| [drawn(row.median), drawn(row.worst)]);
    let values = values.chain([rounding / 10.0, rounding * 10.0]);
    let scale = LogScale::round(values, layout.left + 16.0, layout.right - 16.0)?;
    let (head, height) = (26.0, HEIGHT + layout.title);
    let bottom = head + height * rows.len() as f64;
    let mut svg = Svg::new(layout.width, bottom + 30.0);
    for tick in scale.ticks(layout.ticks) {
        let x = scale.at(tick);
        svg.line("grid", [(x, 24.0), (x, bottom)]);
        svg.text("m t-3", (x, bottom + 20.0), &label(tick));
    }
    let limit = scale.at(rounding);
    svg.line("limit", [(limit, 20.0), (limit, bottom)]);
    svg.text("m t-3", (limit, 14.0), "rounding ends here");
    for (at, row) in rows.iter().enumerate() {
        let base = head + height * (at + 1) as f64;
        svg.line("axis", [(layout.left, base), (layout.right, base)]);
        layout.name(&mut svg, (base - height, base), row.title, &[row.subtitle]);
        let (median, worst) = (scale.at(drawn(row.median)), scale.at(drawn(row.worst)));
        let (bar, dot) = match row.median > rounding {
            true => ("bar-n", "w-page"),
            false => ("bar-f", "npu"),
        };
        let middle = base - HEIGHT / 2.0;
        svg.rect(
            bar,
            (median.min(worst), middle - 4.0),
            ((worst - median).abs().max(2.0), 8.0),
        );
        svg.circle(dot, (median, middle), 6.0);
    }
    Some(svg)
}

/// Returns a short text for a distance, without long runs of zeros.
fn label(drop: f64) -> String {
    match drop {
        drop if drop < 1.5 * LEAST => "equal".to_owned(),
        drop if drop < 0.001 => format!("{drop:.0e}"),
        drop => tick_label(drop),
    }
}
