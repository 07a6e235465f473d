//! The text of a notification for people, in the order in which they need it. Fault and size come first, in one line.
//! The next lines say what to do, where to look, the details, and the statistics last. Every number has its unit.

use std::fmt::Write;

use epwatch_model::numbers::{chance, counted, latency, percent};
use epwatch_model::{
    CLEAN_WINDOWS, Cause, CohortVerdict, Incident, IncidentCohort, Mixture, Order, Reason,
    Severity, State, VerdictClass,
};
use epwatch_proto::visible;
use epwatch_server::Period;
use jiff::{SignedDuration, Timestamp};

use crate::incident::recovers_in;

use super::links::Links;
use super::notifier::{Notification, Occasion};
use super::steps::{Step, StepPart, steps};

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
            _ if is_reinstall(incident) => format!(
                "new installation ids on most devices: {} {} in {app}",
                key.model.model_id, key.model_version
            ),
            true => format!("next to no devices report: {app}"),
            false => format!(
                "next to no devices report: {} {} in {app}",
                key.model.model_id, key.model_version
            ),
        });
    }
    let versions: Vec<String> = incident.versions().into_iter().map(str::to_owned).collect();
    let subject = format!("{} {}", short(&key.model.model_id), listed(&versions));
    let chipsets = listed(&incident.chipsets());
    let place = match chipsets.is_empty() {
        true => String::new(),
        false => format!(" on {chipsets}"),
    };
    let compared = incident.devices_compared();
    let devices = match incident.devices() {
        (_, 0) => String::new(),
        // If all 17 devices that could be compared are hit, "17 of 80" would understate the fault.
        (hit, seen) if hit <= compared && compared < seen => {
            format!(", {hit} of {} compared", counted(compared, "device"))
        }
        (hit, seen) => format!(", {hit} of {}", counted(seen, "device")),
    };
    let lead = incident.lead();
    let ratio = lead.and_then(|lead| lead.numbers.latency_ratio);
    let is_slower = incident.class().is_some_and(VerdictClass::is_slower);
    match (lead, ratio.filter(|ratio| is_slower && *ratio >= SLOWER)) {
        (Some(lead), Some(ratio)) => {
            let runs = match (incident.is_past(), versions.len()) {
                (true, _) => "ran",
                (false, 1) => "runs",
                (false, _) => "run",
            };
            let cause = cause(lead);
            format!("{subject} {runs} {ratio:.1} times slower{place}{devices}: {cause}")
        }
        _ => format!("{subject}: {title}{place}{devices}"),
    }
}

/// Whether the missing devices report under new installation ids.
fn is_reinstall(incident: &Incident) -> bool {
    let reasons = incident.lead().map(|lead| &lead.reasons);
    let is_it = |reason: &Reason| matches!(reason, Reason::Reinstalled { .. });
    reasons.is_some_and(|reasons| reasons.iter().any(is_it))
}

/// Ratio of medians from which a headline calls a model slower.
const SLOWER: f64 = 1.05;

/// Longest name in a headline, in characters. Channels cut a headline at its end, where the number of devices is.
const MAX_NAME_CHARS: usize = 48;

/// Number of names of a list in a headline.
const MAX_LISTED: usize = 3;

/// Returns a name for a headline, without its middle if it is long.
fn short(name: &str) -> String {
    let chars: Vec<char> = visible(name).chars().collect();
    let Some(left_out) = chars.len().checked_sub(MAX_NAME_CHARS).filter(|n| *n > 0) else {
        return chars.into_iter().collect();
    };
    let head = MAX_NAME_CHARS * 3 / 4;
    let (head, tail) = (&chars[..head], &chars[head + left_out..]);
    head.iter().chain(&['\u{2026}']).chain(tail).collect()
}

/// Returns `a, b and c`, or `a, b, c and 4 more`.
fn listed(names: &[String]) -> String {
    let mut names: Vec<String> = names.iter().map(|name| short(name)).collect();
    let last = match names.len().saturating_sub(MAX_LISTED) {
        0 => names.pop(),
        more => {
            names.truncate(MAX_LISTED);
            Some(format!("{more} more"))
        }
    };
    let Some(last) = last else {
        return String::new();
    };
    match names.is_empty() {
        true => last,
        false => format!("{} and {last}", names.join(", ")),
    }
}

/// Returns the cause of a slower model, as the end of a headline.
fn cause(lead: &CohortVerdict) -> String {
    let is_fallback = matches!(
        lead.class,
        VerdictClass::TotalFallback
            | VerdictClass::PartialFallback
            | VerdictClass::SomeDevicesFallback
    );
    match (lead.class, lead.cpu_macs_share) {
        (VerdictClass::TotalFallback, _) => "all of its work on the CPU".to_owned(),
        _ if is_fallback && !lead.cpu_ops.is_empty() => {
            format!("{} on the CPU", listed(&lead.cpu_ops))
        }
        (_, Some(share)) if is_fallback => format!("{} of its work on the CPU", percent(share)),
        (VerdictClass::SlowWithoutPlacement, _) => "placements do not say why".to_owned(),
        (class, _) => lead.key.in_words(class.title()),
    }
}

/// Returns what to do, the numbers, and the statistics, one fact in each line and a command in lines of its own.
#[must_use]
pub(crate) fn description(incident: &Incident) -> String {
    let told = message_body(incident);
    let mut lines = Vec::new();
    for (n, step) in (1..).zip(&told.steps) {
        for (at, part) in step.0.iter().enumerate() {
            lines.push(match part {
                StepPart::Text(text) if at == 0 => format!("next {n}: {text}"),
                StepPart::Text(text) | StepPart::Commands(text) => text.clone(),
            });
        }
    }
    let details = told.details.iter().chain(&told.statistics);
    lines.extend(details.map(|(name, fact)| format!("{name}: {fact}")));
    lines.join("\n")
}

/// Returns headline and description.
#[must_use]
pub(crate) fn text_of(incident: &Incident) -> String {
    format!("{}\n{}", summary(incident), description(incident))
}

/// Returns the notification as a block of text for a terminal or a log.
#[must_use]
pub fn block(notification: &Notification) -> String {
    linked_block(notification, &Links::default())
}

pub(super) fn linked_block(notification: &Notification, links: &Links) -> String {
    let incident = &notification.incident;
    let mut block = format!("{}  {}\n", title(notification), summary(incident));
    let told = message_body(incident);
    for (n, step) in (1..).zip(&told.steps) {
        for (at, part) in step.0.iter().enumerate() {
            // Writing to a String cannot fail.
            let _ = match part {
                StepPart::Text(text) if at == 0 => writeln!(block, "  next {n:<6} {text}"),
                StepPart::Text(text) => writeln!(block, "  {:<11} {text}", ""),
                StepPart::Commands(commands) => commands
                    .lines()
                    .try_for_each(|command| writeln!(block, "      {command}")),
            };
        }
    }
    let opened = links.opened(incident).map(|link| ("open", link));
    let runbook = ("runbook", links.runbook_of(incident));
    let details = told.details.into_iter().chain(told.statistics);
    for (name, fact) in opened.into_iter().chain([runbook]).chain(details) {
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

/// The text about an incident below its headline, without links.
#[derive(Debug)]
pub(super) struct MessageBody {
    /// Next steps; there are none once the incident is over.
    pub(super) steps: Vec<Step>,
    /// Details, in the order in which a person needs them.
    pub(super) details: Vec<(&'static str, String)>,
    /// How sure the verdict is, the model's file, and the incident's id.
    pub(super) statistics: Vec<(&'static str, String)>,
}

/// Returns the text about an incident.
pub(super) fn message_body(incident: &Incident) -> MessageBody {
    let mut told = MessageBody {
        steps: steps(&incident.next_step()),
        details: details(incident),
        statistics: statistics(incident),
    };
    // Most of the details contain names from devices.
    for (_, fact) in told.details.iter_mut().chain(&mut told.statistics) {
        *fact = visible(fact);
    }
    told
}

fn details(incident: &Incident) -> Vec<(&'static str, String)> {
    let model = &incident.key.model;
    let mut details = vec![
        ("app", format!("{} ({})", model.app_id, model.environment)),
        ("since", at(incident.started_at)),
    ];
    details.extend(incident.fired_at.map(|fired_at| ("fired", at(fired_at))));
    if let (State::Resolved, Some(resolved_at)) = (incident.state, incident.resolved_at) {
        let why = match &incident.orders.end {
            Some(order) => format!("{}; {}", order.kind.effect(), by(order)),
            None => match incident.quiet_until() {
                Some(until) => format!(
                    "new runs no longer show it; windows that hold earlier ones are quiet until {}",
                    at(until)
                ),
                None => incident
                    .moved()
                    .unwrap_or_else(|| "no cohort shows it any more".to_owned()),
            },
        };
        details.push(("resolved", format!("{}; {why}", at(resolved_at))));
    }
    if let Some(ack) = &incident.orders.ack {
        details.push(("taken", format!("{}, {}", at(ack.at), by(ack))));
    }
    if let Some((mute, until)) = incident
        .orders
        .mute
        .as_ref()
        .zip(incident.orders.muted_until())
    {
        details.push(("muted", format!("until {}, {}", at(until), by(mute))));
    }
    if let (State::Mitigated, Some(since)) = (incident.state, incident.mitigated_at) {
        let why = format!(
            "since {}: a directive took its devices off the NPU, so they are no longer judged. It is \
             over after {CLEAN_WINDOWS} clean windows once the directive has ended, or \
             {CLEAN_WINDOWS} of the next version",
            at(since)
        );
        let why = incident
            .lead()
            .map_or(why.clone(), |lead| lead.key.in_words(&why));
        details.push(("mitigated", why));
    }
    if let (State::Firing, Some(returned)) = (incident.state, incident.returned_at) {
        let when = format!("{}, after a directive had mitigated it", at(returned));
        details.push(("back again", when));
    }
    let (hit, seen) = incident.devices();
    let compared = incident.devices_compared();
    if incident.key.cause == Cause::DataQuality {
        let missing = match is_reinstall(incident) {
            true => "installations gone",
            false => "missing",
        };
        details.push(("devices", format!("{hit} {missing} of the usual {seen}")));
    } else if hit <= compared && compared < seen {
        let share = percent(hit as f64 / compared.max(1) as f64);
        let of = format!("{hit} hit of {compared} that could be compared ({share}), {seen} seen");
        details.push(("devices", of));
    } else if seen > 0 {
        let share = percent(hit as f64 / seen as f64);
        details.push(("devices", format!("{hit} hit of {seen} seen ({share})")));
    }
    if let Some(lead) = incident.lead() {
        details.extend(cohort_details(lead, incident.is_past()));
        details.extend(others(incident, lead));
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
        let of_model = format!("{} ", model.model_id);
        let of_model = |part: &&String| part.starts_with(&of_model);
        if let Some(next) = incident.parts.iter().rfind(of_model) {
            let text = format!("{next} has it too, so an update to it does not mend it");
            details.push(("not mended", text));
        }
        details.push((
            "also",
            format!("{parts}{more}: the same cause, not sent apart"),
        ));
    }
    if let Some(whole) = &incident.part_of {
        details.push((
            "part of",
            format!("incident {whole}, which is sent instead"),
        ));
    }
    details
}

/// Returns the facts that a person needs last.
fn statistics(incident: &Incident) -> Vec<(&'static str, String)> {
    let mut details = Vec::new();
    details.extend(ends(incident).map(|ends| ("ends", ends)));
    let lead = incident.lead();
    if let Some(lead) = lead {
        if incident.cohorts.len() > 1 {
            details.push(("worst", lead.key.to_string()));
        }
        let sure = format!(
            "chance that a healthy cohort looks like this: {}",
            chance(lead.p)
        );
        details.push(("how sure", sure));
        details.extend(spread(lead).map(|spread| ("spread", spread)));
    }
    if let Some(sha256) = &incident.model_sha256 {
        let version = &incident.key.model_version;
        let file = format!(
            "{} {version}, file with SHA-256 {sha256}",
            incident.key.model.model_id
        );
        details.push(("model", file));
    }
    let id = &incident.id;
    details.push(("incident", id.clone()));
    if !incident.is_test() {
        let more = format!("`epwatch incident {id}` has its devices by firmware and its history");
        details.push(("more", more));
    }
    details
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
    let clean = incident.clean_windows();
    if clean >= CLEAN_WINDOWS {
        let progress = incident.progress();
        return Some(format!(
            "once nearly all of its devices have a healthy version ({progress} so far)"
        ));
    }
    let earliest = incident
        .cohorts
        .iter()
        .map(IncidentCohort::earliest_end)
        .max()?;
    // Windows end in the time of reports, so the next ones are judged with the same delay as the first one.
    let detected_at = incident.detected_at.unwrap_or(incident.started_at);
    let late = detected_at.duration_since(incident.started_at)
        - SignedDuration::try_from(window.0).ok()?;
    let earliest = earliest.saturating_add(late.max(SignedDuration::ZERO));
    let earliest = earliest.unwrap_or(Timestamp::MAX);
    let sooner = recovers_in(incident).map_or_else(String::new, |shorter| {
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

/// Returns a line for each other chipset of the same severity, because their fallbacks may differ.
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
        let title = key.in_words(cohort.verdict.class.title());
        (
            "also",
            format!("{}: {title}, {hit} of {of} devices{ratio}", key.chipset),
        )
    });
    told.collect()
}

/// Returns the facts of a cohort. The reasons of a past fault begin with their window.
fn cohort_details(verdict: &CohortVerdict, is_past: bool) -> Vec<(&'static str, String)> {
    let numbers = &verdict.numbers;
    let mut details = Vec::new();
    let medians = numbers.hit_p50_us.zip(numbers.reference_p50_us);
    if let (Some((now, before)), Some(ratio)) = (medians, numbers.latency_ratio) {
        let (now, before) = (latency(now), latency(before));
        // The ratio is not the quotient of the two medians, because devices differ.
        let effect = format!(
            "median {now} instead of {before}; each device by its own ratio: {ratio:.1} times at the median"
        );
        details.push(("latency", effect));
    } else if verdict.class.is_slower() {
        details.push((
            "latency",
            "not measured yet: the devices hit have too few runs".to_owned(),
        ));
    }
    let is_late = |reason: &&Reason| matches!(reason, Reason::Late { .. });
    let late = verdict.reasons.iter().find(is_late);
    details.extend(late.map(|late| ("late", late.to_string())));
    if !verdict.cpu_ops.is_empty() {
        let ops = verdict.cpu_ops.join(", ");
        let share = verdict.cpu_macs_share.map_or(String::new(), |share| {
            format!(", {} of the model's MACs", percent(share))
        });
        details.push(("on the CPU", format!("{ops}{share}")));
    }
    let others = verdict.reasons.iter().filter(|reason| !is_late(reason));
    for (n, reason) in others.enumerate() {
        let reason = verdict.key.in_words(&reason.to_string());
        details.push(match (n, is_past) {
            (0, true) => {
                let until = at(verdict.window_end);
                ("why", format!("in the window until {until}: {reason}"))
            }
            (0, false) => ("why", reason),
            _ => ("and", reason),
        });
    }
    details
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
