//! Orders: the section of an incident with its form, the audit page, and the page of a refused order.

use askama::Template;
use epwatch_model::{OrderKind, VerdictClass};

use super::frame::{Frame, OrderRight};
use crate::orders::{MAX_WHO, MAX_WHY};
use crate::read::document::IncidentDocument;
use crate::read::incident::IncidentPage;
use crate::read::orders::{OrderRow, OrdersPage, called_false, last_number};
use crate::text::name::{Link, Name, Sentence, visible};

/// Lengths of a mute that the form has.
const LENGTHS: [(&str, &str); 6] = [
    ("1h", "1 hour"),
    ("8h", "8 hours"),
    ("1d", "1 day"),
    ("3d", "3 days"),
    ("7d", "7 days"),
    ("30d", "30 days"),
];

/// The form below an incident.
pub(super) struct OrderForm<'a> {
    pub(super) form: &'a str,
    pub(super) seen: u64,
    /// Kind and label of each button.
    pub(super) buttons: Vec<(OrderKind, &'static str)>,
    pub(super) lengths: [(&'static str, &'static str); 6],
    pub(super) max_who: usize,
    pub(super) max_why: usize,
}

/// Returns the form, if the reader may order something.
pub(super) fn form<'a>(frame: &'a Frame, page: &IncidentPage) -> Option<OrderForm<'a>> {
    let OrderRight::May { form } = &frame.orders else {
        return None;
    };
    let buttons = buttons(page);
    (!buttons.is_empty()).then(|| OrderForm {
        form,
        seen: last_number(&page.orders),
        buttons,
        lengths: LENGTHS,
        max_who: MAX_WHO,
        max_why: MAX_WHY,
    })
}

fn buttons(page: &IncidentPage) -> Vec<(OrderKind, &'static str)> {
    let orders = page.document.orders();
    let mut buttons = Vec::new();
    if page.row.is_open() {
        if orders.ack.is_none() {
            buttons.push((OrderKind::Ack, "Acknowledge"));
        }
        buttons.push((OrderKind::Mute, "Mute"));
        buttons.push((OrderKind::Resolve, "Resolve"));
        if !page.row.class().is_some_and(VerdictClass::is_of_outputs) {
            buttons.push((OrderKind::Accept, "Accept: meant so"));
        }
    }
    let is_false = called_false(&page.orders).is_some();
    if !is_false && page.row.state != "pending" {
        buttons.push((OrderKind::False, "False alarm"));
    }
    if is_false || orders.ack.is_some() || orders.mute.is_some() || orders.hold.is_some() {
        buttons.push((OrderKind::Reopen, "Reopen"));
    }
    buttons
}

/// Returns the states that orders gave an incident, in words, with feedback that came after its end.
pub(crate) fn states_of(page: &IncidentPage) -> Vec<&'static str> {
    let mut states = states(&page.document);
    let orders = page.document.orders();
    let end = orders.end.as_ref();
    if end.is_none_or(|end| end.kind != OrderKind::False) && called_false(&page.orders).is_some() {
        states.push("called a false alarm");
    }
    states
}

/// Returns the states that orders gave an incident, in words, and whether this version cannot read all of it.
fn states(document: &IncidentDocument) -> Vec<&'static str> {
    let orders = document.orders();
    let ended = orders.end.as_ref().map(|end| match end.kind {
        OrderKind::Accept => "accepted",
        OrderKind::False => "a false alarm",
        _ => "by a person",
    });
    let states = [
        orders.ack.as_ref().map(|_| "acknowledged"),
        orders.mute.as_ref().map(|_| "muted"),
        ended,
        document
            .is_of_another_version
            .then_some("made by another version of epwatch"),
    ];
    states.into_iter().flatten().collect()
}

impl OrderRow {
    /// Returns the kind in words, with the end of a mute.
    pub(super) fn words(&self, frame: &Frame) -> String {
        let until = self.until.map(|at| format!(" until {}", frame.clock(&at)));
        let until = until.unwrap_or_default();
        format!("{}{until}", visible(&self.kind))
    }

    /// Returns a note about an order that does not count or is not carried out yet.
    pub(super) fn note(&self, last: Option<u64>) -> &'static str {
        match (self.is_counted, last) {
            (false, _) => "came second, counts for nothing",
            (true, Some(last)) if self.n > last => {
                "waits for the detector, which reads orders every other second"
            }
            (true, _) => "",
        }
    }

    pub(super) fn link(&self) -> Link {
        Link::to("/incident").with("id", &self.incident)
    }
}

#[derive(Template)]
#[template(path = "orders.html")]
struct OrdersHtml<'a> {
    frame: &'a Frame,
    page: &'a OrdersPage,
}

impl OrdersHtml<'_> {
    fn headline(&self) -> String {
        let Some(last) = self.page.orders.first() else {
            return "There are no orders yet".to_owned();
        };
        let ago = last
            .ordered_at
            .map_or_else(String::new, |at| format!(", {}", self.frame.ago(&at)));
        format!(
            "{} ordered {} for {} {}{ago}",
            visible(&last.who),
            visible(&last.kind),
            visible(&last.model),
            visible(&last.version)
        )
    }
}

pub(crate) fn orders(frame: &Frame, page: &OrdersPage) -> askama::Result<String> {
    OrdersHtml { frame, page }.render()
}

#[derive(Template)]
#[template(path = "refused.html")]
struct RefusedHtml<'a> {
    frame: &'a Frame,
    problem: &'a str,
    back: Link,
}

/// Returns the page of a refused order.
pub(crate) fn refused(frame: &Frame, incident: &str, problem: &str) -> askama::Result<String> {
    let back = Link::to("/incident").with("id", incident);
    RefusedHtml {
        frame,
        problem,
        back,
    }
    .render()
}
