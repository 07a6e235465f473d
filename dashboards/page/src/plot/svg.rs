//! One drawing: shapes, lines and escaped text. A number that is not finite draws nothing.

use std::fmt::{self, Write as _};

use askama::filters::HtmlSafe;

use super::style::OF_DRAWING;
use crate::text::name::escape;

/// Largest coordinate; a drawing is never larger.
const MAX: f64 = 100_000.0;

/// A finished drawing, which needs no escape.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Drawing {
    text: String,
    width: f64,
    height: f64,
}

impl Drawing {
    /// Returns the drawing as a separate document, which another document can embed.
    pub(crate) fn standalone(&self) -> String {
        let (width, height) = (self.width, self.height);
        let head = format!(
            r#"<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0}" height="{height:.0}" "#
        );
        let text = self.text.replacen("<svg ", &head, 1);
        let style = format!(
            r#"</desc><style>{}</style><rect class="paper" width="{width:.0}" height="{height:.0}"/>"#,
            *OF_DRAWING
        );
        text.replacen("</desc>", &style, 1)
    }
}

impl fmt::Display for Drawing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl HtmlSafe for Drawing {}

/// Returns a coordinate with one decimal; `None` for NaN, infinity, and values far outside the drawing.
fn coordinate(value: f64) -> Option<String> {
    let is_drawn = value.is_finite() && value.abs() <= MAX;
    // Adding zero removes the sign of a negative one.
    is_drawn.then(|| format!("{:.1}", (value * 10.0).round() / 10.0 + 0.0))
}

/// A drawing to which shapes are still added.
#[derive(Debug)]
pub(crate) struct Svg {
    width: f64,
    height: f64,
    body: String,
}

impl Svg {
    pub(crate) fn new(width: f64, height: f64) -> Self {
        Self {
            width,
            height,
            body: String::new(),
        }
    }

    pub(crate) fn rect(&mut self, class: &'static str, (x, y): (f64, f64), (w, h): (f64, f64)) {
        let all = (coordinate(x), coordinate(y), coordinate(w), coordinate(h));
        let (Some(x), Some(y), Some(w), Some(h)) = all else {
            return;
        };
        if w.starts_with('-') || h.starts_with('-') {
            return;
        }
        let body = &mut self.body;
        _ = write!(
            body,
            r#"<rect class="{class}" x="{x}" y="{y}" width="{w}" height="{h}"/>"#
        );
    }

    pub(crate) fn circle(&mut self, class: &'static str, (x, y): (f64, f64), r: f64) {
        if let (Some(x), Some(y), Some(r)) = (coordinate(x), coordinate(y), coordinate(r)) {
            let body = &mut self.body;
            _ = write!(
                body,
                r#"<circle class="{class}" cx="{x}" cy="{y}" r="{r}"/>"#
            );
        }
    }

    /// Draws dots of one diameter, as one path: the round ends of lines without length.
    pub(crate) fn dots(&mut self, class: &'static str, points: &[(f64, f64)], diameter: f64) {
        let points = points
            .iter()
            .filter_map(|(x, y)| Some((coordinate(*x)?, coordinate(*y)?)));
        let data: String = points.map(|(x, y)| format!("M{x} {y}h0")).collect();
        let Some(diameter) = coordinate(diameter).filter(|_| !data.is_empty()) else {
            return;
        };
        _ = write!(
            self.body,
            r#"<path class="{class}" stroke-width="{diameter}" d="{data}"/>"#
        );
    }

    /// Draws lines through the points. A point that is not finite ends one line and begins another, so gaps stay gaps.
    pub(crate) fn line(
        &mut self,
        class: &'static str,
        points: impl IntoIterator<Item = (f64, f64)>,
    ) {
        self.path(class, points, false);
    }

    /// Same as [`Self::line`], filled.
    pub(crate) fn area(
        &mut self,
        class: &'static str,
        points: impl IntoIterator<Item = (f64, f64)>,
    ) {
        self.path(class, points, true);
    }

    fn path(
        &mut self,
        class: &'static str,
        points: impl IntoIterator<Item = (f64, f64)>,
        is_closed: bool,
    ) {
        let mut data = String::new();
        let mut is_down = false;
        for (x, y) in points {
            let (Some(x), Some(y)) = (coordinate(x), coordinate(y)) else {
                is_down = false;
                continue;
            };
            _ = write!(data, "{}{x} {y}", if is_down { 'L' } else { 'M' });
            is_down = true;
        }
        if data.is_empty() {
            return;
        }
        if is_closed {
            data.push('Z');
        }
        _ = write!(self.body, r#"<path class="{class}" d="{data}"/>"#);
    }

    pub(crate) fn text(&mut self, class: &'static str, (x, y): (f64, f64), text: &str) {
        if let (Some(x), Some(y)) = (coordinate(x), coordinate(y)) {
            _ = write!(self.body, r#"<text class="{class}" x="{x}" y="{y}">"#);
            _ = escape(&mut self.body, text);
            self.body.push_str("</text>");
        }
    }

    /// Finishes a figure, which has one form for wide screens and one for narrow ones. `id` is unique on a page.
    pub(crate) fn figures(
        wide: Self,
        narrow: Self,
        id: &str,
        title: &str,
        words: &str,
    ) -> [Drawing; 2] {
        let narrow_id = format!("{id}n");
        [
            wide.figure("wide", id, title, words),
            narrow.figure("narrow", &narrow_id, title, words),
        ]
    }

    /// Finishes one form of a figure, with its title and a sentence that describes it. The class decides on which
    /// screens it is drawn.
    fn figure(self, class: &'static str, id: &str, title: &str, words: &str) -> Drawing {
        let (w, h) = (self.width, self.height);
        let mut out = format!(
            r#"<svg class="{class}" viewBox="0 0 {w:.0} {h:.0}" role="img" aria-labelledby="{id}-t {id}-d"><title id="{id}-t">"#
        );
        _ = escape(&mut out, title);
        _ = write!(out, r#"</title><desc id="{id}-d">"#);
        _ = escape(&mut out, words);
        _ = write!(out, "</desc>{}</svg>", self.body);
        Drawing {
            text: out,
            width: w,
            height: h,
        }
    }

    /// Finishes a small drawing in a table. Its label describes it for readers who do not see it.
    pub(crate) fn small(self, label: &str) -> Drawing {
        let (w, h) = (self.width, self.height);
        let mut out = format!(
            r#"<svg width="{w:.0}" height="{h:.0}" viewBox="0 0 {w:.0} {h:.0}" role="img" aria-label=""#
        );
        _ = escape(&mut out, label);
        _ = write!(out, r#"">{}</svg>"#, self.body);
        Drawing {
            text: out,
            width: w,
            height: h,
        }
    }

    /// Finishes a drawing that only repeats the words next to it.
    pub(crate) fn decoration(self) -> Drawing {
        let (w, h, body) = (self.width, self.height, self.body);
        let text = format!(
            r#"<svg width="{w:.0}" height="{h:.0}" viewBox="0 0 {w:.0} {h:.0}" aria-hidden="true">{body}</svg>"#
        );
        Drawing {
            text,
            width: w,
            height: h,
        }
    }
}
