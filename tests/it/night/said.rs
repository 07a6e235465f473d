//! The night's texts as one record. A line of a speaker is recorded only if the speaker did not have it the moment
//! before. A line that a page or a terminal shows no longer is recorded as such, unless another line replaced it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
};

use jiff::Timestamp;
use serde_json::Value;

use super::receivers::CHANNELS;

/// The day that replaces the real day of the night in the record.
const DAY: &str = "2027-01-15";

/// The record so far.
#[derive(Debug)]
pub(super) struct Said {
    text: String,
    /// The real day of the night, as it is written in times.
    day: String,
    /// For each speaker, the lines of the last text. For a channel, all lines that were sent to it.
    before: BTreeMap<String, Vec<String>>,
}

impl Said {
    pub(super) fn of(began: Timestamp) -> Self {
        Self {
            text: String::new(),
            day: began.strftime("%Y-%m-%d").to_string(),
            before: BTreeMap::new(),
        }
    }

    /// Begins a moment of the night.
    pub(super) fn moment(&mut self, now: Timestamp, event: &str) {
        let gap = if self.text.is_empty() { "" } else { "\n" };
        let time = now.strftime("%H:%M:%S");
        _ = writeln!(self.text, "{gap}{time}  {event}");
    }

    /// Records the lines that the speaker did not have the moment before.
    pub(super) fn by(&mut self, speaker: &str, lines: &[String]) {
        self.but_for(speaker, lines, &BTreeSet::new());
    }

    /// Records the messages to channels. A line that several channels got at this moment is recorded once.
    pub(super) fn by_channels(&mut self, told: &[(&'static str, Value)]) {
        let mut common = BTreeSet::new();
        for (channel, message) in told {
            let lines = message_lines(channel, message);
            self.but_for(channel, &lines, &common);
            common.extend(lines.iter().map(|line| self.as_of_the_day(line)));
        }
    }

    fn but_for(&mut self, speaker: &str, lines: &[String], common: &BTreeSet<String>) {
        let mut lines: Vec<String> = lines.iter().map(|line| self.as_of_the_day(line)).collect();
        // Channels are notified in parallel, so the order of their deliveries varies.
        for group in lines.chunk_by_mut(|a, b| is_delivery(a) && is_delivery(b)) {
            group.sort();
        }
        let before = self.before.entry(speaker.to_owned()).or_default();
        let known = without_ages_of(before);
        let new = lines.iter().filter(|line| !common.contains(*line));
        let new: Vec<&String> = not_in(&known, new).collect();
        let now = without_ages_of(&lines);
        let gone = not_in(&now, before.iter());
        let gone = gone.filter(|line| !new.iter().any(|new| begins_alike(new, line)));
        // A message only has news, and a panel only has numbers, while a page has the whole state.
        let has_state = ["page ", "epwatch "]
            .iter()
            .any(|of| speaker.starts_with(of));
        let gone: Vec<&String> = gone.filter(|_| has_state).collect();
        if !new.is_empty() || !gone.is_empty() {
            _ = writeln!(self.text, "  {speaker}");
        }
        for line in new {
            _ = writeln!(self.text, "    {line}");
        }
        for line in gone {
            _ = writeln!(self.text, "    no longer: {}", clipped(line));
        }
        if !CHANNELS.contains(&speaker) {
            before.clear();
        }
        before.extend(lines);
    }

    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// Returns a line with the record's day, and with the time in place of milliseconds since 1970.
    fn as_of_the_day(&self, line: &str) -> String {
        let line = line.replace(&self.day, DAY);
        let mut shown = String::new();
        let mut rest = line.as_str();
        while let Some(at) = rest.find(|c: char| c.is_ascii_digit()) {
            shown += &rest[..at];
            let digits = rest[at..].split(|c: char| !c.is_ascii_digit()).next();
            let digits = digits.unwrap_or_default();
            let ms = digits.parse().ok().filter(|_| digits.len() == 13);
            let is_fraction =
                digits.len() == 3 && rest[..at].ends_with('.') && is_after_seconds(&shown);
            match ms.and_then(|ms| Timestamp::from_millisecond(ms).ok()) {
                // States of one moment are stored some milliseconds apart.
                _ if is_fraction => shown += "000",
                Some(time) => shown += &time.strftime("<%H:%M>").to_string(),
                None => shown += digits,
            }
            rest = &rest[at + digits.len()..];
        }
        shown + rest
    }
}

/// Whether a text ends with a time and a dot, like `12:23:08.`.
fn is_after_seconds(text: &str) -> bool {
    let before = text.len().checked_sub(4).and_then(|at| text.get(at..));
    before.is_some_and(|end| end.starts_with(':'))
}

/// Whether a line is about a delivery to a channel.
fn is_delivery(line: &str) -> bool {
    line.contains(" was told: ")
}

/// Returns the lines that are not among these lines without ages, each once.
fn not_in<'a>(
    of: &BTreeSet<String>,
    lines: impl Iterator<Item = &'a String>,
) -> impl Iterator<Item = &'a String> {
    let mut shown = BTreeSet::new();
    lines.filter(move |line| {
        let key = without_ages(line);
        !of.contains(&key) && shown.insert(key)
    })
}

fn without_ages_of(lines: &[String]) -> BTreeSet<String> {
    lines.iter().map(|line| without_ages(line)).collect()
}

/// Whether a line replaced another one: both have the same first three words.
fn begins_alike(a: &str, b: &str) -> bool {
    let begin = |line| str::split_whitespace(line).take(3);
    begin(a).eq(begin(b))
}

/// Returns the beginning of a line that is gone, which an earlier moment has whole.
fn clipped(line: &str) -> String {
    match line.char_indices().nth(80) {
        Some((end, _)) => format!("{}\u{2026}", &line[..end]),
        None => line.to_owned(),
    }
}

/// Returns a line without lengths of time such as `3 min 20 s`, which grow by themselves, and without the spaces that
/// align columns.
fn without_ages(line: &str) -> String {
    let words: Vec<&str> = line.split_whitespace().collect();
    let is_unit = |at: usize| {
        let unit = words
            .get(at)
            .map(|word| word.trim_end_matches([',', ';', ')', '.']));
        unit.is_some_and(|unit| ["s", "min", "h", "d"].contains(&unit))
    };
    let is_number = |at: usize| words[at].bytes().all(|byte| byte.is_ascii_digit());
    let kept = (0..words.len()).filter(|at| {
        let is_age =
            (is_number(*at) && is_unit(at + 1)) || (*at > 0 && is_unit(*at) && is_number(at - 1));
        !is_age
    });
    let kept: Vec<&str> = kept.map(|at| words[at]).collect();
    kept.join(" ")
}

/// Returns the lines of a channel's message, a fact each.
fn message_lines(channel: &str, message: &Value) -> Vec<String> {
    let mut lines = Vec::new();
    match channel {
        "slack" => slack(message, &mut lines),
        "pagerduty" => {
            let action = plain(&message["event_action"]);
            let payload = &message["payload"];
            let told = ["severity", "summary"].map(|name| payload[name].as_str());
            let told: Vec<&str> = told.into_iter().flatten().collect();
            lines.push(format!("{action} {}", told.join(": ")));
            for (name, fact) in payload["custom_details"].as_object().into_iter().flatten() {
                if name != "document" {
                    fact_lines(name, fact, &mut lines);
                }
            }
        }
        "alertmanager" => {
            let labels = message["labels"].as_object().unwrap().iter();
            let labels: Vec<String> = labels
                .map(|(name, of)| format!("{name}={}", plain(of)))
                .collect();
            let state = if message["fires"] == true {
                "fires"
            } else {
                "ends"
            };
            lines.push(format!("{state}: {}", labels.join(" ")));
            lines.push(format!("starts at {}", plain(&message["startsAt"])));
            for (name, fact) in message["annotations"].as_object().unwrap() {
                match name.as_str() {
                    "description" => lines.extend(plain(fact).lines().map(as_of_slack)),
                    _ => fact_lines(name, fact, &mut lines),
                }
            }
        }
        _ => {
            lines.push(format!("occasion: {}", plain(&message["occasion"])));
            for (name, fact) in message["incident"].as_object().unwrap() {
                // These annotations repeat texts of the other channels.
                if !["description", "next_step", "summary"].contains(&name.as_str()) {
                    fact_lines(name, fact, &mut lines);
                }
            }
        }
    }
    lines
}

fn plain(value: &Value) -> String {
    value
        .as_str()
        .map_or_else(|| value.to_string(), str::to_owned)
}

/// Adds the lines of a fact, with its name before the first line.
fn fact_lines(name: &str, fact: &Value, lines: &mut Vec<String>) {
    let fact = plain(fact);
    for (at, line) in fact.lines().enumerate() {
        // PagerDuty joins several facts with one name into lines of a single one.
        lines.push(match at > 0 && line.starts_with("epwatch ") {
            true => line.to_owned(),
            false => as_of_slack(&format!("{name}: {line}")),
        });
    }
}

/// Returns a step with its number first, as in Slack.
fn as_of_slack(line: &str) -> String {
    let step = line.strip_prefix("next ");
    let step = step.and_then(|rest| rest.split_once(": "));
    step.map_or_else(|| line.to_owned(), |(n, text)| format!("{n}. {text}"))
}

fn slack(message: &Value, lines: &mut Vec<String>) {
    let text = |of: &Value| {
        let text = plain(&of["text"]);
        let text = text
            .replace("&amp;", "&")
            .replace("&lt;", "<")
            .replace("&gt;", ">");
        text.replace("```", "")
    };
    for block in message["blocks"].as_array().unwrap() {
        match block["type"].as_str().unwrap() {
            "header" => lines.push(text(&block["text"])),
            "actions" => {
                for button in block["elements"].as_array().unwrap() {
                    lines.push(format!(
                        "[{}] {}",
                        text(&button["text"]),
                        plain(&button["url"])
                    ));
                }
            }
            _ => {
                for field in block["fields"].as_array().into_iter().flatten() {
                    lines.push(text(field).replacen('\n', ": ", 1));
                }
                for element in block["elements"].as_array().into_iter().flatten() {
                    lines.extend(text(element).lines().map(str::to_owned));
                }
                let own = Some(text(&block["text"])).filter(|_| block["text"].is_object());
                lines.extend(own.iter().flat_map(|own| own.lines()).map(str::to_owned));
            }
        }
    }
}

/// Returns the visible text of a page, a line for each block and each row of a table.
pub(super) fn page_lines(html: &str) -> Vec<String> {
    let main = html.split_once("<main").map_or("", |(_, rest)| rest);
    let main = main.split_once("</main>").map_or(main, |(main, _)| main);
    let mut text = main.split_once('>').map_or("", |(_, rest)| rest).to_owned();
    for name in ["svg", "form"] {
        text = without_element(&text, name);
    }
    let mut shown = String::new();
    for part in text.split('<') {
        let (tag, rest) = part.split_once('>').unwrap_or(("", part));
        let name = tag
            .trim_start_matches('/')
            .split([' ', '>'])
            .next()
            .unwrap_or_default();
        shown += match name {
            "p" | "h1" | "h2" | "h3" | "li" | "tr" | "div" | "section" | "dl" | "pre"
            | "summary" | "figure" => "\n",
            "br" => " ",
            "td" | "th" | "dd" if !tag.starts_with('/') => " | ",
            _ => "",
        };
        shown += rest;
    }
    for (code, plain) in [
        ("&lt;", "<"),
        ("&gt;", ">"),
        ("&quot;", "\""),
        ("&#34;", "\""),
        ("&#39;", "'"),
        ("&#38;", "&"),
        ("&#60;", "<"),
        ("&#62;", ">"),
        ("&amp;", "&"),
    ] {
        shown = shown.replace(code, plain);
    }
    let lines = shown
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
    let lines = lines.map(|line| line.trim_start_matches("| ").to_owned());
    lines.filter(|line| !line.is_empty()).collect()
}

fn without_element(text: &str, name: &str) -> String {
    let (open, close) = (format!("<{name}"), format!("</{name}>"));
    let mut kept = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once(&open) {
        kept += before;
        rest = after.split_once(&close).map_or("", |(_, rest)| rest);
    }
    kept + rest
}
