//! Pages for a shell: the structs of the read model as JSON, and as text.

use std::fmt::Write as _;

use bytes::Bytes;
use clickhouse::Client;
use jiff::Timestamp;

use crate::html;
use crate::read::cohort::{CohortPage, CohortQuery};
use crate::read::evidence::Evidence;
use crate::read::fleet::{FleetPage, FleetQuery, FleetRow};
use crate::read::incident::IncidentPage;
use crate::read::incidents::IncidentsPage;
use crate::read::orders::OrderRow;
use crate::read::scope::Scope;
use crate::read::store::ReadError;
use crate::server::answer::{Missing, Page, Pages, Target};
use crate::text::name::{visible, visible_sentence};
use crate::text::number;
use crate::text::time::ago;
use crate::text::words;

/// A page that a shell prints.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ShellPage {
    /// Open incidents, and each model by chipset with its verdict.
    Fleet {
        /// The app; without it the one with an open page, or the most devices.
        app: Option<String>,
        /// The environment, chosen like the app.
        environment: Option<String>,
        /// Text in a model's or chipset's name.
        search: String,
    },
    /// The list of incidents.
    Incidents {
        /// Only those of this app.
        app: Option<String>,
    },
    /// An incident with its evidence, devices, history and orders.
    Incident {
        /// The id, whole, as lists and notifications have it.
        id: String,
    },
    /// One model's version on one chipset.
    Cohort {
        /// Id of the app whose key signed the reports.
        app: String,
        /// For example `production`.
        environment: String,
        /// The model's name in the app.
        model: String,
        /// As the app named it.
        version: String,
        /// Normalised, for example `SM8635`.
        chipset: String,
    },
}

/// A page in the forms that a shell prints.
#[derive(Debug)]
pub struct ShellAnswer {
    /// The JSON of the page's `.json`.
    pub json: Bytes,
    /// Lines for people; the list of an incident is Markdown too.
    pub text: String,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ShellError {
    /// Nothing has this name.
    #[error(
        "nothing in the store has this name; `epwatch status` and `epwatch incident` list names and ids"
    )]
    Unknown,
    /// No report of such an installation is in the store.
    #[error(
        "no such device has reported in the last days; `epwatch devices` lists those of the last day"
    )]
    NoDevice,
    /// No installation reported in the last day.
    #[error(
        "no device has reported in the last day; the SDK's `explain()` prints what kept a report back as `last problem`"
    )]
    NoneYet,
    /// Text that is no id of an installation.
    #[error(
        "{0} is no device's id: expected 8 to 32 hexadecimal digits, as the SDK's `explain()` prints them"
    )]
    Id(String),
    /// Several installations have an id with this beginning.
    #[error("several devices' ids begin with {0}: use more digits")]
    Several(String),
    /// The store is away, slow, or of another schema.
    #[error("failed to read the store: {0}")]
    Store(String),
}

impl From<Missing> for ShellError {
    fn from(missing: Missing) -> Self {
        match missing {
            Missing::Unknown => Self::Unknown,
            Missing::Store(error) => error.into(),
        }
    }
}

impl From<ReadError> for ShellError {
    fn from(error: ReadError) -> Self {
        Self::Store(error.to_string())
    }
}

/// Reads a page and returns its forms.
///
/// # Errors
/// Nothing has the name, or the store does not answer.
pub async fn ask(store: Client, question: ShellPage) -> Result<ShellAnswer, ShellError> {
    let pages = Pages::new(store, Box::new(Vec::new), 1);
    let progress = pages.progress().await?;
    let read = pages
        .read(&target(question), progress, &Scope::all())
        .await?
        .page;
    let now = Timestamp::now();
    let mut text = match &read.page {
        Page::Fleet(page) => fleet(page),
        Page::Cohort(page) => cohort(page),
        Page::Incidents(page) => incidents(page, now),
        Page::Incident(page) => incident(page, now),
        Page::Orders(_) | Page::Ledger(_) | Page::Health(_) => String::new(),
    };
    let judged = progress.judged_at.map_or_else(
        || "nothing is judged yet".to_owned(),
        |at| format!("judged {}", ago(at, now)),
    );
    _ = write!(text, "\n{judged}");
    for part in read.page.left_out().map_or(&[][..], |parts| &parts.0) {
        _ = write!(text, "; not read in time: {part}");
    }
    Ok(ShellAnswer {
        json: read.json,
        text,
    })
}

fn target(question: ShellPage) -> Target {
    match question {
        ShellPage::Fleet {
            app,
            environment,
            search,
        } => Target::Fleet(FleetQuery {
            app,
            environment,
            only_open: false,
            search,
        }),
        ShellPage::Incidents { app } => Target::Incidents { app },
        ShellPage::Incident { id } => Target::Incident { id },
        ShellPage::Cohort {
            app,
            environment,
            model,
            version,
            chipset,
        } => Target::Cohort(CohortQuery {
            app,
            environment,
            model,
            version,
            chipset,
        }),
    }
}

/// Returns rows with columns of equal width.
pub(crate) fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |at: usize| {
        let cells = rows.iter().filter_map(|row| row.get(at));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let cells = row.iter().zip(&widths);
        let line: Vec<String> = cells
            .map(|(cell, width)| format!("{cell:width$}"))
            .collect();
        _ = writeln!(text, "{}", line.join("  ").trim_end());
    }
    text
}

pub(crate) fn head(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

fn fleet(page: &FleetPage) -> String {
    let (Some(app), Some(environment)) = (&page.app, &page.environment) else {
        return "Nothing is judged yet: a window is judged once it is over. `epwatch devices` lists what has reported.\n".to_owned();
    };
    let mut text = format!(
        "{}\n{}, {}\n",
        html::headline(page),
        visible(app),
        visible(environment)
    );
    for open in &page.open {
        let chipsets: Vec<String> = open.row.chipsets.iter().map(|name| visible(name)).collect();
        _ = writeln!(
            text,
            "{}: {} {}{}; epwatch incident {}",
            open.row.severity,
            visible(open.row.subject()),
            visible(&open.row.version),
            on(&chipsets),
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
    text
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

fn incidents(page: &IncidentsPage, now: Timestamp) -> String {
    if page.incidents.is_empty() {
        return format!(
            "No incident is open, or ended in the last {} days.\n",
            page.days
        );
    }
    let mut rows = vec![head(&[
        "STATE", "SEVERITY", "MODEL", "VERSION", "CHIPSETS", "HIT", "STARTED", "ORDERS", "ID",
    ])];
    rows.extend(page.incidents.iter().map(|row| {
        let chipsets: Vec<String> = row.chipsets.iter().map(|name| visible(name)).collect();
        vec![
            row.state.clone(),
            row.severity.clone(),
            visible(row.subject()),
            visible(&row.version),
            chipsets.join(" "),
            format!(
                "{} of {}",
                number::count(row.devices_hit),
                number::count(row.devices_seen)
            ),
            row.started_at.map_or_else(String::new, |at| ago(at, now)),
            row.orders(&now),
            visible(&row.incident),
        ]
    }));
    table(&rows)
}

/// Names the chipsets; an incident about all of them has none.
fn on(chipsets: &[String]) -> String {
    match chipsets.is_empty() {
        true => String::new(),
        false => format!(" on {}", chipsets.join(", ")),
    }
}

/// An incident as Markdown, for a terminal and a ticket.
fn incident(page: &IncidentPage, now: Timestamp) -> String {
    let row = &page.row;
    let states = [&*row.state].into_iter();
    let states: Vec<&str> = states.chain(html::states(&page.document)).collect();
    let chipsets: Vec<String> = row.chipsets.iter().map(|name| marked(name)).collect();
    let mut text = format!(
        "# {} {}{}: {}\n\n{}, {}; {} of {} devices hit, {} slower; incident {}\n",
        marked(row.subject()),
        marked(&row.version),
        on(&chipsets),
        words::fault(&row.verdict),
        row.severity,
        states.join(", "),
        number::count(row.devices_hit),
        number::count(row.devices_seen),
        number::times(row.latency_ratio),
        marked(&row.incident),
    );
    let lead = page
        .document
        .lead(&row.verdict)
        .map(|cohort| &cohort.verdict);
    let next_step = lead
        .map(|lead| marked_sentence(&lead.next_step))
        .unwrap_or_default();
    if !next_step.is_empty() {
        _ = write!(text, "\n## What to do\n\n{next_step}\n");
    }
    if !page.reasons.is_empty() {
        text.push_str("\n## Why\n\n");
        for reason in &page.reasons {
            _ = writeln!(text, "- {}", marked_sentence(reason));
        }
    }
    if let Some(evidence) = page.evidence.as_ref().filter(|of| of.ratios.devices() > 0) {
        _ = writeln!(text, "- {}", evidence.ratios.words());
    }
    if !row.cpu_ops.is_empty() {
        let ops: Vec<String> = row.cpu_ops.iter().take(12).map(|op| marked(op)).collect();
        _ = writeln!(text, "- Ops on the CPU: {}", ops.join(", "));
    }
    text.push_str("\n## Devices\n\n");
    for cohort in page.document.cohorts.iter().take(100) {
        let of = &cohort.verdict;
        let firmware = of.key.firmware.as_deref().map(marked);
        _ = writeln!(
            text,
            "- {}, {}: {}, {} of {} hit",
            marked(&of.key.chipset),
            firmware.map_or_else(
                || "all firmwares".to_owned(),
                |name| format!("firmware {name}")
            ),
            words::fault(&of.class),
            number::count(of.numbers.devices_hit),
            number::count(of.numbers.devices_seen)
        );
    }
    if !page.orders.is_empty() {
        text.push_str("\n## Orders\n\n");
        for order in &page.orders {
            _ = writeln!(
                text,
                "- {}",
                order_line(order, page.document.orders.last, now)
            );
        }
    }
    text.push_str("\n## History\n\n");
    let document = &page.document;
    let times = [
        ("started", row.started_at),
        ("fired", document.fired_at),
        ("held by a directive", document.mitigated_at),
        ("resolved", document.resolved_at),
    ];
    for (word, at) in times {
        if let Some(at) = at {
            _ = writeln!(text, "- {word} {at:.0}, {}", ago(at, now));
        }
    }
    text
}

/// An order: when, what, who, why.
fn order_line(order: &OrderRow, last: u64, now: Timestamp) -> String {
    let at = order.ordered_at.map_or_else(String::new, |at| ago(at, now));
    let until = order
        .until
        .map_or_else(String::new, |at| format!(" until {at:.0}"));
    let note = match (order.is_counted, order.n > last) {
        (false, _) => "; it came second and counts for nothing",
        (true, true) => "; it waits for the detector",
        (true, false) => "",
    };
    let (who, why) = (marked(&order.who), marked_sentence(&order.why));
    format!("{at}: {}{until} by {who}: {why}{note}", marked(&order.kind))
}

/// A name in Markdown: it opens no link, image or element of its own.
fn marked(name: &str) -> String {
    without_links(&visible(name))
}

fn marked_sentence(text: &str) -> String {
    without_links(&visible_sentence(text))
}

fn without_links(text: &str) -> String {
    text.replace('[', "\\[").replace('<', "\\<")
}

fn cohort(page: &CohortPage) -> String {
    let (query, of) = (&page.query, &page.cohort);
    let mut text = format!(
        "{} {} on {} {}\n{}; {} of {} devices hit, median {}, {} slower, {} of the work on the NPU\n",
        visible(&query.model),
        visible(&query.version),
        visible(&query.chipset),
        words::chipset_name(&query.chipset),
        words::verdict(&of.verdict),
        number::count(of.hit),
        number::count(of.devices),
        number::ms(of.p50_us),
        number::times(of.latency_ratio),
        number::share(of.npu_share),
    );
    for reason in &of.reasons {
        _ = writeln!(text, "- {}", visible_sentence(reason));
    }
    let before = page.before.as_ref().map(|row| &*row.version);
    let own = page.evidence.as_ref().and_then(|of| of.latencies.as_ref());
    let sides = [
        (Some(&*query.version), own, &page.placement),
        (
            before,
            page.latencies_before.as_ref(),
            &page.placement_before,
        ),
    ];
    let mut rows = vec![head(&[
        "VERSION",
        "P10",
        "P50",
        "P90",
        "RUNS",
        "NODES ON NPU",
        "MACS ON NPU",
    ])];
    for (version, latencies, placement) in sides {
        let Some(version) = version else { continue };
        let quantiles = latencies.map(|latencies| latencies.quantiles);
        rows.push(vec![
            visible(version),
            number::ms(quantiles.map(|q| q.p10_us)),
            number::ms(quantiles.map(|q| q.p50_us)),
            number::ms(quantiles.map(|q| q.p90_us)),
            latencies.map_or_else(String::new, |of| number::count(of.runs)),
            placement.as_ref().map_or_else(String::new, |of| {
                format!("{} of {}", of.npu_nodes, of.n_nodes)
            }),
            number::share(placement.as_ref().and_then(|of| of.npu_macs_share)),
        ]);
    }
    text.push('\n');
    text.push_str(&table(&rows));
    if let Some(evidence) = &page.evidence {
        text.push_str(&evidence_lines(evidence));
    }
    let nodes: Vec<_> = page.cpu_nodes.iter().filter(|node| !node.benign).collect();
    if !nodes.is_empty() {
        let mut rows = vec![head(&["ON THE CPU", "OP", "REASON"])];
        let row =
            |name: &str, op: &str, reason: &str| vec![visible(name), visible(op), visible(reason)];
        rows.extend(
            nodes
                .iter()
                .map(|node| row(&node.name, &node.op_type, &node.reason)),
        );
        text.push('\n');
        text.push_str(&table(&rows));
    }
    if let Some(incident) = &page.incident {
        _ = write!(text, "\nepwatch incident {}\n", visible(&incident.incident));
    }
    text
}

/// Returns the devices by ratio to their own past, a line of marks for each bin, and the two modes.
fn evidence_lines(evidence: &Evidence) -> String {
    const WIDTH: u32 = 40;
    let mut text = String::new();
    let mut rows = vec![head(&["TIMES ITS OWN PAST", "DEVICES", ""])];
    let most = evidence.ratios.bins().map(|(_, npu, cpu)| npu + cpu).max();
    for (ratio, npu, cpu) in evidence.ratios.bins().filter(|(_, npu, cpu)| npu + cpu > 0) {
        // A device is never less than a mark.
        let width = |n: u32| match n {
            0 => 0,
            n => (n * WIDTH / most.unwrap_or(1).max(1)).max(1) as usize,
        };
        rows.push(vec![
            format!("{ratio:.2}"),
            number::count(npu + cpu),
            "N".repeat(width(npu)) + &"C".repeat(width(cpu)),
        ]);
    }
    if rows.len() > 1 {
        text.push('\n');
        text.push_str(&table(&rows));
        text.push_str("N: wholly on the NPU; C: with work on the CPU\n");
    }
    if let Some(modes) = &evidence.modes {
        _ = writeln!(
            text,
            "two modes: {} and {}",
            number::ms(Some(modes.fast_us)),
            number::ms(Some(modes.slow_us))
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_open_nothing_in_markdown() {
        let name = "![x](http://tracker)<img>\u{202e}";
        assert_eq!(marked(name), "!\\[x](http://tracker)\\<img>\\[U+202E]");
    }

    #[test]
    fn columns_are_aligned_by_characters() {
        let rows = [
            vec!["é".to_owned(), "b".to_owned()],
            vec!["long".to_owned(), "c".to_owned()],
        ];
        assert_eq!(table(&rows), "é     b\nlong  c\n");
    }
}
