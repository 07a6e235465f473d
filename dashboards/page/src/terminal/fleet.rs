//! The fleet as text.

use std::fmt::Write as _;

use jiff::Timestamp;

use super::sums::sums;
use super::table::{head, table};
use crate::html;
use crate::read::document::IncidentDocument;
use crate::read::fleet::{FleetPage, FleetRow};
use crate::read::health::PartStatus;
use crate::text::name::{visible, visible_sentence};
use crate::text::number;
use crate::text::words;

/// Returns the open incidents, each model by chipset, and the statuses of this machine's servers.
pub(super) fn fleet(page: &FleetPage) -> String {
    let (Some(app), Some(environment)) = (&page.app, &page.environment) else {
        let nothing = "Nothing is judged yet: a window is judged once it is over. `epwatch devices` lists what has reported.";
        return format!("{nothing}\n\n{}", facts(&page.facts));
    };
    let mut text = format!(
        "{}\n{}, {}\n",
        html::headline(page),
        visible(app),
        visible(environment)
    );
    for open in page.told() {
        let chipsets: Vec<String> = open.row.chipsets.iter().map(|name| visible(name)).collect();
        _ = writeln!(
            text,
            "{}: {} {}{}{}; epwatch incident {}",
            open.row.severity,
            visible(open.row.subject()),
            versions(&open.document, &open.row.version),
            on(&chipsets),
            past(open.last_seen, &open.document),
            visible(&open.row.incident)
        );
    }
    let mut rows = vec![head(&[
        "VERDICT", "MODEL", "VERSION", "CHIPSET", "HIT", "MEDIAN", "SLOWER", "ON NPU", "WHY",
    ])];
    let all = page
        .models
        .iter()
        .flat_map(|group| group.rows.iter().chain(&group.fine));
    rows.extend(all.map(fleet_row));
    text.push('\n');
    text.push_str(&table(&rows));
    for group in page.models.iter().filter(|group| !group.strays.is_empty()) {
        _ = writeln!(
            text,
            "{}: {} with one device and too little data",
            visible(&group.model),
            group.n_strays()
        );
    }
    if let Some(ledger) = &page.ledger {
        _ = write!(text, "\n{}", sums(std::slice::from_ref(ledger)));
    }
    if !page.facts.is_empty() {
        text.push('\n');
        text.push_str(&facts(&page.facts));
    }
    text
}

/// Returns a line for each status.
pub(super) fn facts(facts: &[PartStatus]) -> String {
    let row = |fact: &PartStatus| {
        let mark = if fact.is_fine { "" } else { "LOOK: " };
        vec![fact.part.to_owned(), format!("{mark}{}", fact.whole())]
    };
    table(&facts.iter().map(row).collect::<Vec<_>>())
}

fn fleet_row(row: &FleetRow) -> Vec<String> {
    let of = &row.cohort;
    vec![
        words::verdict(&of.verdict).into_owned(),
        visible(&of.model),
        visible(&of.version),
        visible(&of.chipset),
        format!("{} of {}", number::count(of.hit), number::count(of.devices)),
        number::ms(of.p50_us),
        number::times(of.latency_ratio),
        number::share(of.npu_share),
        of.reasons
            .first()
            .map_or_else(String::new, |why| visible_sentence(why)),
    ]
}

/// Names the versions that an incident is about.
pub(super) fn versions(document: &IncidentDocument, own: &str) -> String {
    let versions = document.versions(own).into_iter();
    let versions: Vec<String> = versions.map(visible).collect();
    match versions.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} and {last}", rest.join(", ")),
        _ => versions.concat(),
    }
}

/// Returns when a past fault was last seen, how near the end is, and which versions its devices run by now.
pub(super) fn past(last_seen: Option<Timestamp>, document: &IncidentDocument) -> String {
    let Some(at) = last_seen else {
        return String::new();
    };
    let moved = document.moved();
    let moved = moved.map_or_else(String::new, |moved| {
        format!("; {}", visible_sentence(&moved))
    });
    let progress = document.progress();
    let progress = progress.map_or_else(String::new, |progress| format!(", {progress}"));
    format!(", last seen in the window until {at:.0}{progress}{moved}")
}

/// Names the chipsets. An incident about all chipsets lists none.
pub(super) fn on(chipsets: &[String]) -> String {
    match chipsets.is_empty() {
        true => String::new(),
        false => format!(" on {}", chipsets.join(", ")),
    }
}
