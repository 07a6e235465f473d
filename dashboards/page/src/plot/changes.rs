//! Changes on the time axis of a drawing: a numbered tag below the plot and a line up through it. The list next to
//! the drawing has the same numbers.

use super::svg::Svg;

/// Height of the row of tags.
pub(super) const HEIGHT: f64 = 24.0;

/// Height of a tag.
const TAG: f64 = 16.0;

/// Width of a character in a tag.
const CHARACTER: f64 = 7.2;

/// Space between two tags.
const ROOM: f64 = 3.0;

/// Changes that share a tag: first and last number.
#[derive(Debug, PartialEq)]
struct Tag {
    x: f64,
    first: usize,
    last: usize,
}

impl Tag {
    fn label(&self) -> String {
        match self.first == self.last {
            true => self.first.to_string(),
            false => format!("{}\u{2013}{}", self.first, self.last),
        }
    }

    fn width(&self) -> f64 {
        (self.label().chars().count() as f64 * CHARACTER + 8.0).max(TAG)
    }

    fn end(&self) -> f64 {
        self.x + self.width() / 2.0
    }
}

/// Puts changes in order of time into tags that do not overlap.
fn tags(xs: impl Iterator<Item = f64>) -> Vec<Tag> {
    let mut tags: Vec<Tag> = Vec::new();
    for (at, x) in xs.enumerate() {
        let mut tag = Tag {
            x,
            first: at + 1,
            last: at + 1,
        };
        // A tag that grows may reach the one before it.
        while let Some(before) = tags.last() {
            if before.end() + ROOM <= tag.x - tag.width() / 2.0 {
                break;
            }
            tag = Tag {
                x: (before.x + tag.x) / 2.0,
                first: before.first,
                last: tag.last,
            };
            tags.pop();
        }
        tags.push(tag);
    }
    tags
}

/// Draws changes at shares of the period, in order of time: lines from `top`, and tags in the row that begins at `bottom`.
pub(super) fn draw(
    svg: &mut Svg,
    changes: &[f64],
    (top, bottom): (f64, f64),
    (left, right): (f64, f64),
) {
    let x_of = |at: &f64| left + at.clamp(0.0, 1.0) * (right - left);
    for x in changes.iter().map(x_of) {
        svg.line("chg-l", [(x, top), (x, bottom + 4.0)]);
    }
    for tag in tags(changes.iter().map(x_of)) {
        let width = tag.width();
        let x = (tag.x - width / 2.0).max(0.0);
        svg.rect("chg", (x, bottom + 4.0), (width, TAG));
        svg.text("chg-t m", (x + width / 2.0, bottom + 16.0), &tag.label());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(xs: &[f64], expected: &[&str]) {
        let tags = tags(xs.iter().copied());
        let labels: Vec<String> = tags.iter().map(Tag::label).collect();
        assert_eq!(labels, expected);
        for pair in tags.windows(2) {
            assert!(
                pair[0].end() <= pair[1].x - pair[1].width() / 2.0,
                "{tags:?}"
            );
        }
    }

    #[test]
    fn changes_close_to_each_other_share_a_tag() {
        check(&[], &[]);
        check(&[10.0, 100.0, 200.0], &["1", "2", "3"]);
        check(&[10.0, 12.0, 200.0], &["1\u{2013}2", "3"]);
        // A tag that grows takes in the one before it.
        check(&[10.0, 30.0, 41.0, 52.0], &["1\u{2013}3", "4"]);
        check(&[10.0; 40], &["1\u{2013}40"]);
    }
}
