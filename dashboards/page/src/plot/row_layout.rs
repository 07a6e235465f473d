//! The positions of rows in a drawing over chipsets. A wide drawing has names on the left, a narrow one above each row.

use super::svg::Svg;

/// Widths of a drawing, and the space for the names of its rows.
#[derive(Debug)]
pub(crate) struct RowLayout {
    pub(crate) width: f64,
    /// Ends of the axis.
    pub(crate) left: f64,
    pub(crate) right: f64,
    /// Height of a name above its row.
    pub(crate) title: f64,
    /// Maximum number of ticks of the axis.
    pub(crate) ticks: usize,
}

impl RowLayout {
    pub(crate) const WIDE: Self = Self {
        width: 1064.0,
        left: 118.0,
        right: 1050.0,
        title: 0.0,
        ticks: 12,
    };

    pub(crate) const NARROW: Self = Self {
        width: 358.0,
        left: 4.0,
        right: 354.0,
        title: 20.0,
        ticks: 6,
    };

    pub(crate) fn is_narrow(&self) -> bool {
        self.title > 0.0
    }

    /// Writes the name of the row between `top` and `base`, and small lines that belong to it.
    pub(crate) fn name(&self, svg: &mut Svg, (top, base): (f64, f64), title: &str, lines: &[&str]) {
        let lines: Vec<&str> = lines
            .iter()
            .copied()
            .filter(|line| !line.is_empty())
            .collect();
        if self.is_narrow() {
            svg.text("t-ink t-b t-m", (0.0, top + 14.0), title);
            svg.text("t-3 e", (self.width, top + 14.0), &lines.join(", "));
            return;
        }
        let height = 15.0 * lines.len() as f64;
        svg.text("t-ink t-b t-m", (0.0, base - 1.0 - height), title);
        for (at, line) in lines.iter().rev().enumerate() {
            svg.text("t-3", (0.0, base - 1.0 - 15.0 * at as f64), line);
        }
    }
}
