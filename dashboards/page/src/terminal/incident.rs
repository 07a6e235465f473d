//! Incidents as text: the list, and one incident as Markdown. Markdown characters in names are escaped only for a
//! ticket.

use std::fmt::Write as _;

use jiff::Timestamp;

use super::fleet::{on, past, versions};
use super::table::{head, table};
use crate::html;
use crate::read::golden;
use crate::read::incident::IncidentPage;
use crate::read::incident_list::IncidentsPage;
use crate::read::orders::OrderRow;
use crate::text::name::{visible, visible_sentence};
use crate::text::number;
use crate::text::time::ago;
use crate::text::words;

/// Returns the list.
pub(super) fn incidents(page: &IncidentsPage, now: Timestamp) -> String {
    if page.incidents.is_empty() {
        return format!(
            "No incident is open, or ended in the last {} days.\n",
            page.days
        );
    }
    let mut rows = vec![head(&[
        "STATE", "SEVERITY", "MODEL", "VERSION", "CHIPSETS", "HIT", "STARTED", "ORDERS", "ID",
    ])];
    rows.extend(page.incidents.iter().map(|listed| {
        let row = &listed.row;
        let began = row.started_at.map(|at| ago(at, now));
        let seen = listed
            .last_seen
            .map(|at| format!("last seen {}", ago(at, now)));
        let times: Vec<String> = began.into_iter().chain(seen).collect();
        let chipsets: Vec<String> = row.chipsets.iter().map(|name| visible(name)).collect();
        vec![
            match row.part_of {
                Some(_) => format!("{} (part)", row.state),
                None => row.state.clone(),
            },
            row.severity.clone(),
            visible(row.subject()),
            visible(&row.version),
            chipsets.join(" "),
            format!(
                "{} of {}",
                number::count(row.devices_hit),
                number::count(row.devices_seen)
            ),
            times.join(", "),
            row.orders(&now),
            visible(&row.incident),
        ]
    }));
    let more = match page.is_cut() {
        true => "The list has the latest; `--app` shows the incidents of one app.\n",
        false => "",
    };
    table(&rows) + more
}

/// Returns an incident as Markdown. A ticket is read later, so it has no ages; `link` is the address of its page.
pub(super) fn incident(
    page: &IncidentPage,
    link: Option<&str>,
    is_ticket: bool,
    now: Timestamp,
) -> String {
    let ago = |at: Timestamp| match is_ticket {
        true => String::new(),
        false => format!(", {}", ago(at, now)),
    };
    let text_of = TextForm { is_ticket };
    let row = &page.row;
    let states = [&*row.state].into_iter();
    let states: Vec<&str> = states.chain(html::states_of(page)).collect();
    let chipsets: Vec<String> = row.chipsets.iter().map(|name| text_of.name(name)).collect();
    let mut text = format!(
        "# {} {}{}: {}\n\n{}, {}; {} of {} devices hit, {} slower{}{}; incident {}\n",
        text_of.name(row.subject()),
        text_of.escaped(versions(&page.document, &row.version)),
        on(&chipsets),
        words::fault(&row.verdict),
        row.severity,
        states.join(", "),
        number::count(row.devices_hit),
        number::count(row.devices_seen),
        number::times(row.latency_ratio),
        page.seen_in
            .map_or_else(String::new, |seen| format!(", {}", seen.words())),
        text_of.escaped(past(page.last_seen, &page.document)),
        text_of.name(&row.incident),
    );
    _ = writeln!(
        text,
        "App {} ({}){}",
        text_of.name(&row.app),
        text_of.name(&row.environment),
        link.map_or_else(String::new, |link| format!("; {link}"))
    );
    if let Some(asked) = &page.asked_for {
        _ = writeln!(text, "Asked for {}", text_of.sentence(asked));
    }
    if let Some(whole) = &row.part_of {
        let whole = text_of.name(whole);
        _ = writeln!(
            text,
            "Part of incident {whole}, which is sent in its place: the same cause"
        );
    }
    for (n, step) in (1..).zip(page.steps()) {
        if n == 1 {
            text.push_str("\n## What to do\n\n");
        }
        _ = writeln!(text, "{n}. {}", text_of.step(&step));
    }
    let evidence = page.evidence.as_ref().filter(|of| of.ratios.devices() > 0);
    let has_why = !page.reasons.is_empty() || evidence.is_some();
    if has_why || !page.golden.is_empty() || !row.cpu_ops.is_empty() {
        let until = page.thought_until();
        let until = until.map_or_else(String::new, |at| format!(", in the window until {at:.0}"));
        _ = writeln!(text, "\n## Why{until}\n");
    }
    for reason in &page.reasons {
        _ = writeln!(text, "- {}", text_of.sentence(reason));
    }
    if let Some(evidence) = evidence {
        _ = writeln!(text, "- {}", evidence.ratio_words(page.slower));
    }
    if !page.golden.is_empty() {
        let of_chipsets = golden::words(&page.golden);
        _ = writeln!(text, "- {}", text_of.sentence(&of_chipsets));
    }
    if !row.cpu_ops.is_empty() {
        let ops: Vec<String> = row
            .cpu_ops
            .iter()
            .take(12)
            .map(|op| text_of.name(op))
            .collect();
        _ = writeln!(text, "- Ops on the CPU: {}", ops.join(", "));
    }
    text.push_str("\n## Devices\n\n");
    for cohort in page.document.cohorts().iter().take(html::MOST_COHORTS) {
        let of = &cohort.verdict;
        let firmware = of.key.firmware.as_deref().map(|name| text_of.name(name));
        _ = writeln!(
            text,
            "- {}, {}: {}, {} of {} hit",
            text_of.name(&of.key.chipset),
            firmware.map_or_else(
                || "all firmwares".to_owned(),
                |name| format!("firmware {name}")
            ),
            words::fault(of.class.as_str()),
            number::count(of.numbers.devices_hit),
            number::count(of.numbers.devices_seen)
        );
    }
    match page
        .document
        .cohorts()
        .len()
        .saturating_sub(html::MOST_COHORTS)
    {
        0 => {}
        more => _ = writeln!(text, "- {} more are left out", number::count(more as i128)),
    }
    if !page.changes.is_empty() {
        text.push_str("\n## What changed\n\n");
    }
    for change in &page.changes {
        let what = text_of.sentence(&change.text);
        _ = writeln!(text, "- {:.0}{}: {what}", change.at, ago(change.at));
    }
    if !page.orders.is_empty() {
        text.push_str("\n## Orders\n\n");
        for order in &page.orders {
            _ = writeln!(
                text,
                "- {}",
                order_line(order, page.last_obeyed(), text_of, ago)
            );
        }
    }
    text.push_str("\n## History\n\n");
    let incident = page.document.incident.as_ref();
    let times = [
        ("since", row.started_at),
        ("fired", incident.and_then(|of| of.fired_at)),
        (
            "held by a directive",
            incident.and_then(|of| of.mitigated_at),
        ),
        ("resolved", incident.and_then(|of| of.resolved_at)),
    ];
    for (word, at) in times {
        if let Some(at) = at {
            _ = writeln!(text, "- {word} {at:.0}{}", ago(at));
        }
    }
    let events = html::events(page);
    if !events.is_empty() {
        text.push_str("\n## What happened\n\n");
        if page.history.is_cut {
            text.push_str("Earlier changes and deliveries are left out.\n\n");
        }
        for event in events {
            let what = text_of.sentence(&event.text);
            _ = writeln!(text, "- {:.0}{}: {what}", event.at, ago(event.at));
        }
    }
    let channels = html::channels(page, now, |at| format!("{at:.0}"));
    if !channels.is_empty() {
        text.push_str("\n## Who was told\n\n");
        for (name, told) in channels {
            _ = writeln!(text, "- {}: {told}", text_of.name(name));
        }
    }
    text
}

/// An order: when, what, who, why.
fn order_line(
    order: &OrderRow,
    last: Option<u64>,
    text_of: TextForm,
    ago: impl Fn(Timestamp) -> String,
) -> String {
    let at = order.ordered_at;
    let at = at.map_or_else(String::new, |at| format!("{at:.0}{}", ago(at)));
    let until = order
        .until
        .map_or_else(String::new, |at| format!(" until {at:.0}"));
    let note = match (order.is_counted, last.is_some_and(|last| order.n > last)) {
        (false, _) => "; it came second and counts for nothing",
        (true, true) => "; it waits for the detector",
        (true, false) => "",
    };
    let (who, why) = (text_of.name(&order.who), text_of.sentence(&order.why));
    format!(
        "{at}: {}{until} by {who}: {why}{note}",
        text_of.name(&order.kind)
    )
}

/// The way names are written. A terminal shows them unchanged. In a ticket they are escaped, so they cannot become a
/// link, image, element or code.
#[derive(Debug, Clone, Copy)]
struct TextForm {
    is_ticket: bool,
}

impl TextForm {
    fn name(self, name: &str) -> String {
        self.escaped(visible(name))
    }

    fn sentence(self, text: &str) -> String {
        self.escaped(visible_sentence(text))
    }

    /// Writes a step of the detector. Its backticks only enclose code, in which Markdown needs no escapes.
    fn step(self, step: &str) -> String {
        let parts = step.split('`').enumerate();
        let parts = parts.map(|(at, part)| match at % 2 {
            0 => self.sentence(part),
            _ => format!("`{}`", visible_sentence(part)),
        });
        parts.collect()
    }

    fn escaped(self, text: String) -> String {
        match self.is_ticket {
            true => text
                .replace('[', "\\[")
                .replace('<', "\\<")
                .replace('`', "\\`"),
            false => text,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::read::incident::tests::{fallback, over, past};
    use crate::read::incident_list::ListedIncident;

    #[test]
    fn what_to_do_is_numbered() {
        let page = fallback("On call: keep version 1.\nThe model's owner: ask why.");
        let text = incident(&page, None, true, Timestamp::UNIX_EPOCH);
        let steps =
            "## What to do\n\n1. On call: keep version 1.\n2. The model's owner: ask why.\n";
        assert!(text.contains(steps), "{text}");
        let seen = "134 of 140 devices hit, 4.0\u{d7} slower, seen in 110 windows; incident i-1\n";
        assert!(text.contains(seen), "{text}");
        let text = incident(&fallback(""), None, true, Timestamp::UNIX_EPOCH);
        assert!(!text.contains("What to do"), "{text}");
    }

    #[test]
    fn a_past_fault_has_its_reasons_in_the_past_and_no_steps() {
        let next_step = "On call: stop the roll-out of 2.";
        let now = Timestamp::from_second(1_800_003_600).unwrap();
        let text = incident(&past(next_step), None, false, now);
        for part in [
            ", last seen in the window until 2027-01-15T08:00:00Z, 1 of 3 clean windows; incident i-1\n",
            "\n## What to do\n\n1. Nothing to do now: the incident ends by itself ",
            "\n## Why, in the window until 2027-01-15T08:00:00Z\n\n- all devices are slower\n",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let text = incident(&over(next_step), None, false, now);
        assert!(text.contains("\n## Why, in the window until "), "{text}");
        assert!(!text.contains("What to do"), "{text}");
        let page = past(next_step);
        let list = IncidentsPage {
            incidents: vec![ListedIncident {
                row: page.row,
                last_seen: page.last_seen,
            }],
            ..IncidentsPage::default()
        };
        let text = incidents(&list, now);
        assert!(text.contains("1 h ago, last seen 1 h ago"), "{text}");
    }

    #[test]
    fn names_open_nothing_in_markdown() {
        let name = "![x](http://tracker)<img>`\u{202e}";
        let ticket = TextForm { is_ticket: true };
        let expected = "!\\[x](http://tracker)\\<img>\\`\\[U+202E]";
        assert_eq!(ticket.name(name), expected);
        let shell = TextForm { is_ticket: false };
        assert_eq!(shell.name(name), "![x](http://tracker)<img>`[U+202E]");
    }

    /// People paste the command, also from a ticket.
    #[test]
    fn a_command_has_the_name_without_marks() {
        let command = "`epwatch directive make --npu-off --model='face [int8] <b>'`";
        let page = fallback(&format!("For face [int8]: {command}"));
        for (is_ticket, sentence) in [(true, "For face \\[int8]: "), (false, "For face [int8]: ")] {
            let text = incident(&page, None, is_ticket, Timestamp::UNIX_EPOCH);
            let step = format!("1. {sentence}{command}\n");
            assert!(text.contains(&step), "{text}");
        }
    }
}
