//! The fleet page before the first window was judged.

use askama::Template;

use super::frame::Frame;
use crate::read::fleet::FleetPage;
use crate::read::health::{PartStatus, RecentReports};
use crate::text::number;

#[derive(Template)]
#[template(path = "empty.html")]
struct EmptyHtml<'a> {
    frame: &'a Frame,
    page: &'a FleetPage,
}

impl EmptyHtml<'_> {
    fn arrivals(&self) -> RecentReports {
        self.page.arrivals.unwrap_or_default()
    }

    fn has_reports(&self) -> bool {
        self.arrivals().in_last_hour > 0
    }

    fn title(&self) -> &'static str {
        match self.has_reports() {
            true => "Reports arrive; nothing is judged yet",
            false => "No report yet",
        }
    }

    fn facts(&self) -> &[PartStatus] {
        &self.page.facts
    }

    fn received(&self) -> String {
        let n = number::count(self.arrivals().in_last_hour);
        let last = self.arrivals().last;
        last.map_or_else(String::new, |at| {
            format!(
                "{n} in the last hour, the last one {}.",
                self.frame.ago(&at)
            )
        })
    }
}

pub(crate) fn empty(frame: &Frame, page: &FleetPage) -> askama::Result<String> {
    EmptyHtml { frame, page }.render()
}
