//! The part of an incident's page that lists what happened and what people were told.

use std::collections::BTreeSet;

use epwatch_model::{Severity, State};
use jiff::Timestamp;

use crate::read::history::{IncidentChange, IncidentNews};
use crate::read::incident::IncidentPage;
use crate::text::name::{visible, visible_sentence};
use crate::text::{number, words};

/// An entry of the list.
pub(crate) struct Event {
    pub(crate) at: Timestamp,
    pub(crate) text: String,
}

/// Returns an incident's states, its deliveries, and the orders that counted, in order of time.
pub(crate) fn events(page: &IncidentPage) -> Vec<Event> {
    let history = &page.history;
    let event = |at: Option<Timestamp>, text| Some(Event { at: at?, text });
    let changes = history.changes.iter();
    let chipset = page.row.chipsets.first();
    let said = |text: &str| words::of_accelerator(chipset.map_or("", String::as_str), text);
    let changes = changes.filter_map(|change| event(change.at, said(&state(change))));
    let deliveries = history.deliveries.iter().filter_map(|delivery| {
        let news = history.news.iter().find(|news| news.news == delivery.news);
        let what = match delivery.is_refused {
            true => "was given up, refused to the end",
            false => "was told",
        };
        // The store does not keep the text of old news.
        let title = news.map_or_else(String::new, |news| format!(": {}", visible(news.title())));
        let notifier = visible(&delivery.notifier);
        event(delivery.at, format!("{notifier} {what}{title}"))
    });
    let orders = page.orders.iter().filter(|order| order.is_counted);
    let orders = orders.filter_map(|order| {
        let (who, kind) = (visible(&order.who), visible(&order.kind));
        event(order.ordered_at, format!("{who} ordered: {kind}"))
    });
    let mut all: Vec<Event> = changes.chain(deliveries).chain(orders).collect();
    all.sort_by_key(|event| event.at);
    all
}

/// Returns, for each channel, the numbers of notifications that it accepted and that were given up. Also returns
/// whether the latest is still to be sent or held back by a mute, and how often attempts to send it failed. The same
/// news sent again is not counted. Only the latest news is ever sent, so older news that a later one replaced does not
/// count as missing.
pub(crate) fn channels(
    page: &IncidentPage,
    now: Timestamp,
    clock: impl Fn(Timestamp) -> String,
) -> Vec<(&str, String)> {
    let Some(incident) = &page.document.incident else {
        return Vec::new();
    };
    let muted = page.row.muted_until;
    let muted = muted.filter(|until| page.row.is_open() && *until > now);
    let names: BTreeSet<&String> = incident
        .delivered
        .keys()
        .chain(incident.failing.keys())
        .collect();
    let channels = names.into_iter().map(|name| {
        let news = incident.delivered.get(name).copied().unwrap_or(0);
        let mut all = page.history.channels.iter();
        let mut said = Vec::new();
        if let Some(channel) = all.find(|channel| channel.notifier == *name) {
            match channel.told {
                0 => {}
                1 => said.push("told once".to_owned()),
                n => said.push(format!("told {} times", number::count(n))),
            }
            said.extend(
                channel
                    .last_told_at
                    .map(|at| format!("last at {}", clock(at))),
            );
            if channel.refused > 0 {
                let n = number::count(channel.refused);
                said.push(format!("{n} given up, refused until the incident was over for a day"));
            }
        }
        let is_missing = news < incident.news;
        match muted.filter(|_| is_missing) {
            Some(until) => said.push(format!(
                "the latest is held back by the mute until {}",
                clock(until)
            )),
            None if is_missing => said.push("the latest is still to be told".to_owned()),
            None => {}
        }
        if let Some(of) = incident.failing.get(name) {
            let since = clock(of.since);
            let times = number::count(of.times);
            let answer = visible(&of.answer);
            said.push(format!(
                "failed {times} times since {since}: {answer}; it is tried again until it works or the incident is over"
            ));
        }
        (&**name, said.join(", "))
    });
    channels.collect()
}

fn state(change: &IncidentChange) -> String {
    let devices = format!(
        "{} of {} hit",
        number::count(change.devices_hit),
        number::of_them(change.devices_seen, "device")
    );
    let severity = Severity::parse(&change.severity);
    match (State::parse(&change.state), severity) {
        (Some(State::Pending), _) => format!("Pending, so nobody is told yet; {devices}"),
        (Some(State::Firing), Some(Severity::Page)) => format!("Page; {devices}"),
        (Some(State::Firing), Some(Severity::Ticket)) => format!("Ticket; {devices}"),
        (Some(State::Mitigated), _) => "Held: a directive took its devices off the NPU".to_owned(),
        (Some(State::Resolved), _) => "Resolved".to_owned(),
        (Some(State::Inactive), _) => "Not confirmed, so it is over".to_owned(),
        _ => {
            let (state, severity) = (visible(&change.state), visible(&change.severity));
            format!("{state}, {severity}; {devices}")
        }
    }
}

impl IncidentNews {
    /// Returns the occasion, as the first line begins: `PAGE (grown)`.
    pub(super) fn title(&self) -> &str {
        let line = self.text.lines().next().unwrap_or_default();
        line.split("  ").next().unwrap_or_default()
    }

    /// Returns its lines, each made visible.
    pub(super) fn shown(&self) -> String {
        let lines: Vec<String> = self.text.lines().map(visible_sentence).collect();
        lines.join("\n")
    }
}

#[cfg(test)]
mod tests {
    use epwatch_model::FailedAttempts;

    use super::*;
    use crate::read::incident::tests::fallback;

    /// The channel never accepted news, so no list of deliveries contains it.
    #[test]
    fn a_channel_that_takes_nothing_says_how_often_since_when_and_why() {
        let mut page = fallback("");
        let incident = page.document.incident.as_mut().unwrap();
        incident.news = 1;
        let attempts = FailedAttempts {
            since: Timestamp::from_second(1_800_000_000).unwrap(),
            times: 14,
            answer: "404".to_owned(),
        };
        incident.failing.insert("slack".to_owned(), attempts);
        let now = Timestamp::from_second(1_800_000_600).unwrap();
        let said = channels(&page, now, |at| format!("{at:.0}"));
        let expected = "the latest is still to be told, failed 14 times since 2027-01-15T08:00:00Z: 404; it is tried again until it \
                        works or the incident is over";
        assert_eq!(said, [("slack", expected.to_owned())]);
    }
    /// The channel accepted the second of four news; of the later two, only the last will be sent.
    #[test]
    fn a_mute_holds_back_the_latest_news_until_it_is_over() {
        let mut page = fallback("");
        let incident = page.document.incident.as_mut().unwrap();
        incident.news = 4;
        incident.delivered.insert("slack".to_owned(), 2);
        let at = |second: i64| Timestamp::from_second(1_800_000_000 + second).unwrap();
        page.row.muted_until = Some(at(60));
        let said = |page: &IncidentPage, now| {
            let said = channels(page, now, |at| format!("{at:.0}"));
            said.into_iter().next().unwrap().1
        };
        let expected = "the latest is held back by the mute until 2027-01-15T08:01:00Z";
        assert_eq!(said(&page, at(0)), expected);
        assert_eq!(said(&page, at(61)), "the latest is still to be told");
        let incident = page.document.incident.as_mut().unwrap();
        incident.delivered.insert("slack".to_owned(), 4);
        assert_eq!(said(&page, at(0)), "");
    }
}
