//! The page of collector's and detector's health.

use std::borrow::Cow;

use askama::Template;

use super::frame::Frame;
use crate::read::health::{HealthPage, OutcomeCount, PartStatus, VerdictCount};
use crate::text::number;
use crate::text::time::length;
use crate::text::words::{self, Icon, Tone};

/// Within this many seconds, buckets of the default length close: an hour, and the time until collectors agree.
const CLOSES_WITHIN_SECONDS: i64 = 3 * 3_600;

#[derive(Template)]
#[template(path = "health.html")]
struct HealthHtml<'a> {
    frame: &'a Frame,
    page: &'a HealthPage,
}

impl HealthHtml<'_> {
    fn lines(&self) -> Vec<PartStatus> {
        let frame = self.frame;
        let mut lines: Vec<PartStatus> = self.page.facts.clone();
        let arrivals = match &self.page.arrivals {
            Some(arrivals) => match arrivals.last {
                Some(at) => format!(
                    "{} in the last hour, the last one {}.",
                    number::of_them(arrivals.in_last_hour, "report"),
                    frame.ago(&at)
                ),
                None => "No report in the last hour.".to_owned(),
            },
            None => format!(
                "They could not be read{}.",
                self.page.left_out.how("arrivals")
            ),
        };
        let has_arrivals = self
            .page
            .arrivals
            .is_some_and(|arrivals| arrivals.in_last_hour > 0);
        lines.push(line("Reports arrive", arrivals, has_arrivals));
        let unweighed = self.page.arrivals.and_then(|arrivals| arrivals.unweighed());
        lines.extend(unweighed.map(|text| line("Networks", text, false)));
        let closed = self.page.progress.closed_until;
        let is_closing =
            closed.is_some_and(|at| frame.now.as_second() - at.as_second() < CLOSES_WITHIN_SECONDS);
        let closed = match closed {
            Some(at) => format!(
                "Buckets before {} UTC are summed up, {}.",
                frame.clock(&at),
                frame.ago(&at)
            ),
            None => "No bucket is closed yet.".to_owned(),
        };
        lines.push(line("Summaries", closed, is_closing));
        let judged = match &self.page.last_window {
            Some(window) => format!(
                "Judged {}, {} after the window's end; a window every {}.",
                frame.ago(&window.judged_at),
                length(window.judged_at.as_second() - window.end.as_second()),
                self.page
                    .progress
                    .step_seconds
                    .map_or_else(|| "step".to_owned(), length)
            ),
            None => "No window is judged yet.".to_owned(),
        };
        let window = self.page.last_window.as_ref();
        let is_judging = window.is_some_and(|window| {
            !frame.is_late() && !frame.was_late(window.end, window.judged_at)
        });
        lines.push(line("Verdicts", judged, is_judging));
        lines
    }

    fn headline(&self) -> String {
        let bad: Vec<String> = self
            .lines()
            .into_iter()
            .filter(|line| !line.is_fine)
            .map(|line| words::within_sentence(line.part))
            .collect();
        match bad.is_empty() {
            true => "Reports arrive and are judged".to_owned(),
            false => format!("Look at: {}", bad.join(", ")),
        }
    }
}

fn line(part: &'static str, text: String, is_fine: bool) -> PartStatus {
    PartStatus {
        part,
        text,
        running: String::new(),
        is_fine,
    }
}

impl VerdictCount {
    fn tone(&self) -> Tone {
        Tone::of(&self.verdict, &self.severity)
    }

    fn icon(&self) -> Icon {
        self.tone().icon()
    }

    fn title(&self) -> Cow<'_, str> {
        words::verdict(&self.verdict)
    }

    fn cohorts_text(&self) -> String {
        number::count(self.cohorts)
    }

    fn devices_text(&self) -> String {
        number::count(self.devices)
    }
}

impl OutcomeCount {
    pub(super) fn then(&self) -> &'static str {
        words::after_answer(&self.outcome)
    }

    pub(super) fn times(&self) -> String {
        number::count(self.reports)
    }
}

pub(crate) fn health(frame: &Frame, page: &HealthPage) -> askama::Result<String> {
    HealthHtml { frame, page }.render()
}

/// Returns the headline and the lines for a terminal.
pub(crate) fn facts(frame: &Frame, page: &HealthPage) -> (String, Vec<PartStatus>) {
    let html = HealthHtml { frame, page };
    (html.headline(), html.lines())
}
