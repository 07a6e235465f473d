//! The list of what changed, next to the drawing that has its numbers on the axis of time.

use askama::Template;
use askama::filters::HtmlSafe;

use super::frame::Frame;
use crate::read::changes::Change;
use crate::read::period::PlottedPeriod;
use crate::text::name::Sentence;

#[derive(Template)]
#[template(path = "changes.html")]
pub(super) struct ChangesHtml<'a> {
    frame: &'a Frame,
    changes: &'a [Change],
    /// Changes before the drawing begins, which lie at its left edge.
    earlier: usize,
}

/// The template escapes what it holds.
impl HtmlSafe for ChangesHtml<'_> {}

/// Returns where changes lie on the axis of a drawing. Earlier changes lie at its start.
pub(super) fn places(changes: &[Change], period: PlottedPeriod) -> Vec<f64> {
    let places = changes.iter().map(|change| period.at(change.at));
    places.map(|at| at.clamp(0.0, 1.0)).collect()
}

/// Returns the list; `None` without a change.
pub(super) fn list<'a>(
    frame: &'a Frame,
    changes: &'a [Change],
    period: Option<PlottedPeriod>,
) -> Option<ChangesHtml<'a>> {
    let earlier = changes
        .iter()
        .filter(|change| period.is_some_and(|period| change.at < period.from))
        .count();
    (!changes.is_empty()).then_some(ChangesHtml {
        frame,
        changes,
        earlier,
    })
}
