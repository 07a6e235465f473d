//! The text of a notification for people: fault, place, start, numbers, certainty, op types, next step. Every
//! number has its unit.

use std::fmt::Write;

use epwatch_proto::visible;
use epwatch_server::Period;
use jiff::{SignedDuration, Timestamp};

use crate::describe::Mixture;
use crate::incident::{CLEAN_WINDOWS, Cause, Incident, IncidentCohort, Order, State};
use crate::reason::{chance, latency, percent};
use crate::verdict::{CohortVerdict, Severity, VerdictClass};

use super::links::Links;
use super::notifier::{Notification, Occasion};

/// Returns one line: the fault and its place.
#[must_use]
pub(crate) fn summary(incident: &Incident) -> String {
    if incident.is_test() {
        return "a test of this channel; nothing is wrong".to_owned();
    }
    let title = incident.class().map_or("incident", VerdictClass::title);
    let key = &incident.key;
    if key.cause == Cause::DataQuality {
        let app = format!("app {} ({})", key.model.app_id, key.model.environment);
        return visible(&match key.model.model_id.is_empty() {
            true => format!("next to no devices report: {app}"),
            false => format!(
                "next to no devices report: {} {} in {app}",
                key.model.model_id, key.model_version
            ),
        });
    }
    visible(&format!(
        "{title}: {} {} on {}",
        key.model.model_id,
        key.model_version,
        incident.chipsets().join(", ")
    ))
}

/// Returns the numbers and the next step, one fact in each line.
#[must_use]
pub(crate) fn description(incident: &Incident) -> String {
    let facts = facts(incident);
    let lines: Vec<String> = facts
        .iter()
        .map(|(name, fact)| format!("{name}: {fact}"))
        .collect();
    lines.join("\n")
}

/// Returns the notification as a block of text for a terminal or a log.
#[must_use]
pub fn block(notification: &Notification) -> String {
    linked_block(notification, &Links::default())
}

pub(super) fn linked_block(notification: &Notification, links: &Links) -> String {
    let incident = &notification.incident;
    let mut block = format!("{}  {}\n", title(notification), summary(incident));
    let opened = links.opened(incident).map(|link| ("open", link));
    let runbook = ("runbook", links.runbook_of(incident));
    for (name, fact) in facts(incident).into_iter().chain(opened).chain([runbook]) {
        // Writing to a String cannot fail.
        let _ = writeln!(block, "  {name:<11} {fact}");
    }
    block
}

/// Returns the severity and the occasion.
pub(super) fn title(notification: &Notification) -> &'static str {
    let is_page = notification.incident.severity() == Severity::Page;
    let state = notification.incident.state;
    match (notification.occasion, is_page) {
        (Occasion::Test, _) => "TEST",
        (Occasion::Resolved, _) => "RESOLVED",
        (Occasion::Acknowledged, _) => "ACKNOWLEDGED",
        (Occasion::Muted, _) => "MUTED",
        (_, _) if state == State::Mitigated => "MITIGATED",
        (Occasion::Returned, true) => "PAGE (back again)",
        (Occasion::Returned, false) => "TICKET (back again)",
        (Occasion::Reopened, true) => "PAGE (reopened)",
        (Occasion::Reopened, false) => "TICKET (reopened)",
        (Occasion::Grown, true) => "PAGE (grown)",
        (Occasion::Grown, false) => "TICKET (grown)",
        (_, true) => "PAGE",
        (_, false) => "TICKET",
    }
}

/// Returns the facts of an incident in the order in which a person needs them.
pub(super) fn facts(incident: &Incident) -> Vec<(&'static str, String)> {
    let model = &incident.key.model;
    let mut facts = vec![
        ("app", format!("{} ({})", model.app_id, model.environment)),
        ("since", at(incident.started_at)),
    ];
    if let Some(sha256) = &incident.model_sha256 {
        let version = &incident.key.model_version;
        let file = format!("{} {version}, file with SHA-256 {sha256}", model.model_id);
        facts.push(("model", file));
    }
    if let (State::Resolved, Some(resolved_at)) = (incident.state, incident.resolved_at) {
        let why = match &incident.orders.end {
            Some(order) => format!("{}; {}", order.kind.effect(), by(order)),
            None => match incident.quiet_until() {
                Some(until) => format!(
                    "new runs no longer show it; windows that hold earlier ones are quiet until {}",
                    at(until)
                ),
                None => "no cohort shows it any more".to_owned(),
            },
        };
        facts.push(("resolved", format!("{}; {why}", at(resolved_at))));
    }
    if let Some(ack) = &incident.orders.ack {
        facts.push(("taken", format!("{}, {}", at(ack.at), by(ack))));
    }
    if let Some((mute, until)) = incident
        .orders
        .mute
        .as_ref()
        .zip(incident.orders.muted_until())
    {
        facts.push(("muted", format!("until {}, {}", at(until), by(mute))));
    }
    if let (State::Mitigated, Some(since)) = (incident.state, incident.mitigated_at) {
        let why = format!(
            "since {}: a directive took its devices off the NPU, so they are no longer judged. It is \
             over after {CLEAN_WINDOWS} clean windows once the directive has ended, or \
             {CLEAN_WINDOWS} of the next version",
            at(since)
        );
        facts.push(("mitigated", why));
    }
    if let (State::Firing, Some(returned)) = (incident.state, incident.returned_at) {
        let when = format!("{}, after a directive had mitigated it", at(returned));
        facts.push(("back again", when));
    }
    facts.extend(ends(incident).map(|ends| ("ends", ends)));
    let (hit, seen) = incident.devices();
    let compared = incident.devices_compared();
    if incident.key.cause == Cause::DataQuality {
        facts.push(("devices", format!("{hit} missing of the usual {seen}")));
    } else if hit <= compared && compared < seen {
        let share = percent(hit as f64 / compared.max(1) as f64);
        let of = format!("{hit} hit of {compared} that could be compared ({share}), {seen} seen");
        facts.push(("devices", of));
    } else if seen > 0 {
        let share = percent(hit as f64 / seen as f64);
        facts.push(("devices", format!("{hit} hit of {seen} seen ({share})")));
    }
    if let Some(lead) = incident.lead() {
        if incident.cohorts.len() > 1 {
            facts.push(("worst", lead.key.to_string()));
        }
        facts.extend(cohort_facts(lead));
        facts.extend(others(incident, lead));
    }
    if !incident.parts.is_empty() {
        let parts: Vec<&str> = incident
            .parts
            .iter()
            .map(String::as_str)
            .take(MAX_OTHERS)
            .collect();
        let more = match incident.parts.len().saturating_sub(MAX_OTHERS) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let parts = parts.join(", ");
        facts.push((
            "also",
            format!("{parts}{more}: the same cause, not sent apart"),
        ));
    }
    if let Some(whole) = &incident.part_of {
        facts.push((
            "part of",
            format!("incident {whole}, which is sent instead"),
        ));
    }
    let id = &incident.id;
    facts.push(("incident", id.clone()));
    if !incident.is_test() {
        let more = format!("`epwatch incident {id}` has its devices by firmware and its history");
        facts.push(("more", more));
    }
    // Names of devices are in most of them.
    for (_, fact) in &mut facts {
        *fact = visible(fact);
    }
    facts
}

/// Returns who gave an order, and why.
pub(super) fn by(order: &Order) -> String {
    visible(&format!("by {}: {}", order.who, order.why))
}

/// Returns when and how a firing incident ends.
fn ends(incident: &Incident) -> Option<String> {
    if incident.state != State::Firing {
        return None;
    }
    let window = Period(incident.lead()?.window);
    let clean = incident
        .cohorts
        .iter()
        .map(|cohort| cohort.clean_windows)
        .min()?;
    let earliest = incident
        .cohorts
        .iter()
        .map(IncidentCohort::earliest_end)
        .max()?;
    // Ends of windows are in the time of reports, the start is when it was judged: the next ones are judged as late.
    let began = incident.cohorts.iter().map(|cohort| cohort.began).min()?;
    let late =
        incident.started_at.duration_since(began) - SignedDuration::try_from(window.0).ok()?;
    let earliest = earliest.saturating_add(late.max(SignedDuration::ZERO));
    let earliest = earliest.unwrap_or(Timestamp::MAX);
    let sooner = incident.recovers_in().map_or_else(String::new, |shorter| {
        let shorter = Period(shorter);
        format!(". Sooner if {shorter} show nothing, where devices run often enough to be sure")
    });
    Some(format!(
        "after {CLEAN_WINDOWS} clean windows of {window} that share no reports ({clean} so far): {} at the earliest. \
         A window with too few reports is not clean{sooner}",
        at(earliest)
    ))
}

/// Number of chipsets, and of models and versions, listed in addition to the worst.
const MAX_OTHERS: usize = 4;

/// Returns a line for each other chipset of the same severity, since their fallbacks may differ.
fn others(incident: &Incident, lead: &CohortVerdict) -> Vec<(&'static str, String)> {
    let severity = incident.severity();
    let others = incident.cohorts.iter().filter(|cohort| {
        let key = &cohort.verdict.key;
        cohort.confirmed == severity && key.firmware.is_none() && key.chipset != lead.key.chipset
    });
    let told = others.take(MAX_OTHERS).map(|cohort| {
        let (key, numbers) = (&cohort.verdict.key, &cohort.verdict.numbers);
        let (hit, of) = (numbers.devices_hit, numbers.devices_eligible);
        let ratio = numbers.latency_ratio;
        let ratio = ratio.map_or(String::new(), |ratio| format!(", {ratio:.1} times as slow"));
        let title = cohort.verdict.class.title();
        (
            "also",
            format!("{}: {title}, {hit} of {of} devices{ratio}", key.chipset),
        )
    });
    told.collect()
}

fn cohort_facts(verdict: &CohortVerdict) -> Vec<(&'static str, String)> {
    let numbers = &verdict.numbers;
    let mut facts = Vec::new();
    let medians = numbers.hit_p50_us.zip(numbers.reference_p50_us);
    if let (Some((now, before)), Some(ratio)) = (medians, numbers.latency_ratio) {
        let (now, before) = (latency(now), latency(before));
        // Not the quotient of the two medians: devices differ.
        let effect = format!(
            "median {now} instead of {before}; each device by its own ratio: {ratio:.1} times at the median"
        );
        facts.push(("latency", effect));
    } else if verdict.class.is_slower() {
        facts.push((
            "latency",
            "not measured yet: the devices hit have too few runs".to_owned(),
        ));
    }
    if !verdict.cpu_ops.is_empty() {
        let ops = verdict.cpu_ops.join(", ");
        let share = verdict.cpu_macs_share.map_or(String::new(), |share| {
            format!(", {} of the model's MACs", percent(share))
        });
        facts.push(("on the CPU", format!("{ops}{share}")));
    }
    for (at, reason) in verdict.reasons.iter().enumerate() {
        facts.push((if at == 0 { "why" } else { "and" }, reason.to_string()));
    }
    if let Some(spread) = spread(verdict) {
        facts.push(("spread", spread));
    }
    let sure = format!(
        "chance that a healthy cohort looks like this: {}",
        chance(verdict.p)
    );
    facts.push(("how sure", sure));
    if !verdict.next_step.is_empty() {
        facts.push(("next", in_one_line(&verdict.next_step)));
    }
    facts
}

/// Returns the steps of a next step as one text.
pub(super) fn in_one_line(next_step: &str) -> String {
    next_step.replace('\n', " ")
}

fn spread(verdict: &CohortVerdict) -> Option<String> {
    let told = &verdict.statistics;
    let mut parts = Vec::new();
    if let Some(cv) = told.cv_within {
        parts.push(format!("CV {cv:.3} within a device"));
    }
    if let Some(cv) = told.cv_between {
        parts.push(format!("CV {cv:.3} between devices"));
    }
    if let (Some(dip), Some(p)) = (told.dip, told.dip_p) {
        parts.push(format!(
            "dip {dip:.3} (chance with one hump: {})",
            chance(p)
        ));
    }
    if let Some(humps) = told.modes {
        let (fast, slow) = (latency(humps.fast_us), latency(humps.slow_us));
        parts.push(format!("humps at {fast} and {slow}"));
    }
    if let Some(groups) = told.mixture.filter(Mixture::are_two) {
        parts.push(format!(
            "two groups of runs, {} of them around {} and the others around {}",
            percent(groups.slow_share),
            latency(groups.slow_us),
            latency(groups.fast_us)
        ));
    }
    (!parts.is_empty()).then(|| parts.join("; "))
}

pub(super) fn at(time: Timestamp) -> String {
    time.strftime("%Y-%m-%d %H:%M:%S UTC").to_string()
}
