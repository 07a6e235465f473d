//! The list of incidents.

use std::borrow::Cow;

use askama::Template;
use epwatch_model::{Severity, State};
use jiff::Timestamp;

use super::frame::Frame;
use crate::read::incident_list::IncidentsPage;
use crate::read::incidents::IncidentRow;
use crate::text::name::{Link, Name, visible};
use crate::text::number;
use crate::text::time::clock;
use crate::text::words::{self, Icon, Tone};

#[derive(Template)]
#[template(path = "incidents.html")]
struct IncidentsHtml<'a> {
    frame: &'a Frame,
    page: &'a IncidentsPage,
}

impl IncidentsHtml<'_> {
    /// Whether the detector has judged a window. Before that, an empty list does not mean that all is well.
    fn is_judged(&self) -> bool {
        let progress = self.frame.progress;
        progress.is_none_or(|progress| progress.judged_until.is_some())
    }

    fn headline(&self) -> String {
        if self.page.incidents.is_empty() && !self.is_judged() {
            return "Nothing is judged yet".to_owned();
        }
        let open = |severity: Severity| {
            let all = self.page.incidents.iter();
            all.filter(|of| of.row.is_told() && of.row.severity == severity.as_str())
                .count()
        };
        words::capital(&words::open(open(Severity::Page), open(Severity::Ticket)))
    }
}

impl IncidentRow {
    fn tone(&self) -> Tone {
        match self.is_open() {
            true => Tone::of(&self.verdict, &self.severity),
            false => Tone::Quiet,
        }
    }

    fn icon(&self) -> Icon {
        self.tone().icon()
    }

    /// Returns the orders that are in force: "acknowledged by Ada", "muted until 14:03:00".
    pub(crate) fn orders(&self, now: &Timestamp) -> String {
        let ack = self.acknowledged_by.as_ref();
        let mute = self.muted_until.filter(|_| self.is_open());
        let ack = ack.map(|who| format!("acknowledged by {}", visible(who)));
        let mute = mute.map(|until| format!("muted until {}", clock(until, *now)));
        let orders: Vec<String> = ack.into_iter().chain(mute).collect();
        orders.join(", ")
    }

    fn words(&self) -> String {
        let state = match self.state() {
            Some(State::Mitigated) => "held",
            _ => &self.state,
        };
        let part = match self.is_open() && !self.is_told() {
            true => ", part of another",
            false => "",
        };
        format!("{} {state}{part}", self.severity)
    }

    fn verdict_title(&self) -> Cow<'_, str> {
        words::fault(&self.verdict)
    }

    fn link(&self) -> Link {
        Link::to("/incident").with("id", &self.incident)
    }

    fn chipset_names(&self) -> Vec<Name<'_>> {
        self.chipsets
            .iter()
            .take(6)
            .map(|chipset| Name(chipset))
            .collect()
    }

    fn more_chipsets(&self) -> usize {
        self.chipsets.len().saturating_sub(6)
    }

    fn times(&self) -> String {
        number::times(self.latency_ratio)
    }

    fn hit(&self) -> String {
        number::count(self.devices_hit)
    }

    fn seen(&self) -> String {
        number::count(self.devices_seen)
    }
}

pub(crate) fn incidents(frame: &Frame, page: &IncidentsPage) -> askama::Result<String> {
    IncidentsHtml { frame, page }.render()
}
