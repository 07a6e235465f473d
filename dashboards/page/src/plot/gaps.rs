//! Gaps in a drawing over time: no line is drawn across one, and its time is grey.

use super::svg::Svg;

/// Where a gap begins and ends, as shares of the period in [0, 1].
pub(crate) type Gap = (f64, f64);

/// Minimum width of a gap that is drawn.
const MIN_WIDTH: f64 = 2.0;

/// Gaps at least this wide have their label.
const WORD_WIDTH: f64 = 60.0;

/// Whether a gap lies between two moments.
pub(super) fn is_between(gaps: &[Gap], before: f64, after: f64) -> bool {
    const EPSILON: f64 = 1e-9;
    let is_within =
        |(from, to): &Gap| *from >= before - EPSILON && *to <= after + EPSILON && from < to;
    gaps.iter().any(is_within)
}

/// Splits points at gaps, so that no part contains a gap. A point is a moment and a value.
pub(super) fn parts(
    points: impl IntoIterator<Item = (f64, f64)>,
    gaps: &[Gap],
) -> Vec<Vec<(f64, f64)>> {
    let mut parts: Vec<Vec<(f64, f64)>> = Vec::new();
    for point in points {
        match parts.last_mut() {
            Some(part)
                if part
                    .last()
                    .is_none_or(|last| !is_between(gaps, last.0, point.0)) =>
            {
                part.push(point);
            }
            _ => parts.push(vec![point]),
        }
    }
    parts
}

/// Draws gaps between `top` and `bottom`, below all else; `x_of` places a moment.
pub(super) fn draw(
    svg: &mut Svg,
    gaps: &[Gap],
    (top, bottom): (f64, f64),
    x_of: impl Fn(f64) -> f64,
) {
    for (from, to) in gaps {
        let (from, to) = (x_of(*from), x_of(*to));
        let width = (to - from).max(MIN_WIDTH);
        svg.rect("w-gap", (from, top), (width, bottom - top));
        if width >= WORD_WIDTH && bottom - top >= 40.0 {
            svg.text("t-3 m", ((from + to) / 2.0, top + 14.0), "missing");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_ends_before_a_gap_and_begins_behind_it() {
        let points = [(0.0, 1.0), (0.2, 2.0), (0.6, 3.0), (1.0, 4.0)];
        let of = |gaps: &[Gap]| -> Vec<usize> {
            let parts = parts(points, gaps);
            parts.iter().map(Vec::len).collect()
        };
        assert_eq!(of(&[]), [4]);
        assert_eq!(of(&[(0.2, 0.6)]), [2, 2]);
        assert_eq!(of(&[(0.0, 0.2), (0.6, 1.0)]), [1, 2, 1]);
        // The gap lies within a slot that stands for several windows.
        assert_eq!(of(&[(0.1, 0.15)]), [1, 3]);
        assert_eq!(of(&[(0.15, 0.3)]), [4]);
    }
}
