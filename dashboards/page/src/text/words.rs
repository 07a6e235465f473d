//! The words of verdicts, severities, signals and outcomes, by their names in the store. An unknown name, from a newer
//! detector, is shown unchanged.

use std::borrow::Cow;

use askama::filters::HtmlSafe;
use epwatch_model::{Severity, SignalId, VerdictClass};
use epwatch_proto::chipset::market_name;
use epwatch_proto::{Outcome, accelerator};

use super::name::visible;
use super::number;

/// Returns a verdict as a title.
pub(crate) fn verdict(name: &str) -> Cow<'_, str> {
    match VerdictClass::parse(name) {
        Some(class) => Cow::Borrowed(class.heading()),
        None => Cow::Owned(visible(name)),
    }
}

/// Returns the verdict of an incident as a title. Incidents of data quality have one kind only: hardly any devices
/// report.
pub(crate) fn fault(name: &str) -> Cow<'_, str> {
    match VerdictClass::parse(name) {
        Some(VerdictClass::DataQuality) => Cow::Borrowed("Next to no reports"),
        _ => verdict(name),
    }
}

/// Returns a severity as the start of a label.
pub(crate) fn severity(name: &str) -> &str {
    match Severity::parse(name) {
        Some(Severity::Page) => "Page",
        Some(Severity::Ticket) => "Ticket",
        _ => name,
    }
}

/// Returns a title as a part of a sentence: `partial CPU fallback`, but `CPU fallback` and `NPU`.
pub(crate) fn within_sentence(title: &str) -> String {
    let mut chars = title.chars();
    let (first, second) = (chars.next(), title.chars().nth(1));
    let is_word = second.is_none_or(|second| !second.is_uppercase());
    match first.filter(|first| first.is_uppercase() && is_word) {
        Some(first) => first.to_lowercase().chain(chars).collect(),
        None => title.to_owned(),
    }
}

/// Returns text with its first letter in upper case.
pub(crate) fn capital(text: &str) -> String {
    let mut chars = text.chars();
    let first = chars.next();
    first
        .into_iter()
        .flat_map(char::to_uppercase)
        .chain(chars)
        .collect()
}

/// Returns a count with its noun: `one page`, `three tickets`.
pub(crate) fn things(n: usize, noun: &str) -> String {
    let s = if n == 1 { "" } else { "s" };
    format!("{} {noun}{s}", number::in_words(n))
}

/// Returns a phrase for all of several things: `both chipsets`, `all three chipsets`.
pub(crate) fn all_things(n: usize, noun: &str) -> String {
    match n {
        2 => format!("both {noun}s"),
        n => format!("all {}", things(n, noun)),
    }
}

/// Returns the pages and tickets that are open, as the start of a sentence.
pub(crate) fn open(pages: usize, tickets: usize) -> String {
    let are = |n| if n == 1 { "is" } else { "are" };
    match (pages, tickets) {
        (0, 0) => "nothing is open".to_owned(),
        (0, n) => format!("{} {} open", things(n, "ticket"), are(n)),
        (n, 0) => format!("{} {} open", things(n, "page"), are(n)),
        (n, m) => format!("{} and {} are open", things(n, "page"), things(m, "ticket")),
    }
}

/// Returns the verb form of "run" for a number of versions.
pub(crate) fn runs(versions: usize, is_past: bool) -> &'static str {
    match (is_past, versions) {
        (true, _) => "ran",
        (false, 1) => "runs",
        (false, _) => "run",
    }
}

/// The emphasis of a verdict on a page. Tones differ in colour, shape and words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Tone {
    Page,
    Ticket,
    Info,
    Quiet,
    Fine,
}

impl Tone {
    pub(crate) fn of(verdict: &str, severity: &str) -> Self {
        match (Severity::parse(severity), VerdictClass::parse(verdict)) {
            (Some(Severity::Page), _) => Self::Page,
            (Some(Severity::Ticket), _) => Self::Ticket,
            (_, Some(VerdictClass::Healthy)) => Self::Fine,
            (_, Some(VerdictClass::NotEnoughData)) => Self::Quiet,
            _ => Self::Info,
        }
    }

    pub(crate) fn class(self) -> &'static str {
        match self {
            Self::Page => "sev-page",
            Self::Ticket => "sev-ticket",
            Self::Info => "sev-info",
            Self::Quiet => "sev-none",
            Self::Fine => "sev-ok",
        }
    }

    /// Returns the shape: square, diamond, ring, dash or tick.
    pub(crate) fn icon(self) -> Icon {
        Icon(match self {
            Self::Page => "M0 0h12v12H0z",
            Self::Ticket => "M6 0l6 6-6 6-6-6z",
            Self::Info => {
                "M6 1a5 5 0 1 0 0 10A5 5 0 1 0 6 1zm0 2.4a2.6 2.6 0 1 1 0 5.2 2.6 2.6 0 1 1 0-5.2z"
            }
            Self::Quiet => "M0 5h12v2.4H0z",
            Self::Fine => "M1.2 6.6 2.7 5l2.1 2L9.4 2l1.5 1.5-6.1 6.7z",
        })
    }
}

/// A small drawing next to a word that says the same.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Icon(&'static str);

impl std::fmt::Display for Icon {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let path = self.0;
        write!(
            f,
            "<svg viewBox=\"0 0 12 12\" aria-hidden=\"true\"><path d=\"{path}\"/></svg>"
        )
    }
}

impl HtmlSafe for Icon {}

/// The question that a signal answers, and the unit of its answer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Question {
    pub(crate) text: &'static str,
    pub(crate) unit: &'static str,
    pub(crate) is_ratio: bool,
}

/// Returns the question of a signal; `None` for statistics and for counts kept as history.
pub(crate) fn question(signal: &str) -> Option<Question> {
    let signal = SignalId::parse(signal)?;
    let (unit, is_ratio) = match signal {
        SignalId::SlowerAndMoved => ("of those that ran often enough", false),
        SignalId::Placement | SignalId::Certificate => ("of the work, on devices hit", false),
        SignalId::Median => ("times slower", true),
        _ => ("share of devices", false),
    };
    Some(Question {
        text: signal.question()?,
        unit,
        is_ratio,
    })
}

/// Returns the device's next act after a collector's answer.
pub(crate) fn after_answer(outcome: &str) -> &'static str {
    let known = Outcome::ALL.iter().find(|known| known.as_str() == outcome);
    match known {
        Some(outcome) if outcome.is_ack() => "is done",
        Some(outcome) if outcome.retryable() => "keeps it and comes again",
        _ => "gives it up",
    }
}

/// Returns the cause of an answer other than an ack, and the setting that a sentence about it ends with.
pub(crate) fn cause_of_answer(outcome: &str) -> Option<(&'static str, &'static str)> {
    let outcome = Outcome::ALL
        .iter()
        .find(|known| known.as_str() == outcome)?;
    Some(match outcome {
        Outcome::RefusedQuota => (
            "A key or an address is at its limit. Devices keep those reports and send them again, so this is delay, not \
             loss. If it goes on, raise",
            "collector.limits",
        ),
        Outcome::RefusedOverloaded => (
            "The collector had too much in flight, or its WAL is full. Devices keep those reports and send them again. If \
             it goes on, see whether the store is away, or raise",
            "collector.wal.max_bytes",
        ),
        Outcome::RefusedStorage => (
            "The WAL could not be written. Devices keep those reports. Free the disk of",
            "collector.wal.dir",
        ),
        Outcome::RefusedConflict => (
            "Two senders use one installation's number, or somebody forges reports; the first report counts.",
            "",
        ),
        Outcome::RefusedWrongApp => (
            "The key proves another app or environment than the report names: compare the app's configuration with",
            "collector.keys",
        ),
        Outcome::RefusedUnsupported => (
            "Those devices run a newer SDK than the collector knows: update the collector.",
            "",
        ),
        Outcome::RefusedMalformed | Outcome::RefusedTooLarge => (
            "Those reports are damaged, or not from the SDK; a device does not send them again.",
            "",
        ),
        Outcome::Stored | Outcome::Duplicate | Outcome::RefusedDeleted => return None,
    })
}

/// Returns the market name of a chipset, without the maker's name.
pub(crate) fn chipset_name(chipset: &str) -> &'static str {
    let (chipset, _) = accelerator::split_cohort(chipset);
    let name = market_name(chipset).unwrap_or("");
    name.strip_prefix("Snapdragon ").unwrap_or(name)
}

/// Returns a text about the NPU, with the word for the accelerator of this chipset's cohort.
pub(crate) fn of_accelerator(chipset: &str, text: &str) -> String {
    accelerator::of_cohort(chipset).in_words(text).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_healthy_verdict_has_no_red() {
        assert_eq!(Tone::of("healthy", "none"), Tone::Fine);
        assert_eq!(Tone::of("partial_fallback", "page"), Tone::Page);
        assert_eq!(Tone::of("not_enough_data", "info"), Tone::Quiet);
        assert_eq!(Tone::of("thermal_or_load", "info"), Tone::Info);
        assert_eq!(verdict("of_a_newer_detector"), "of_a_newer_detector");
        assert_eq!(chipset_name("SM8635"), "8s Gen 3");
        assert_eq!(chipset_name("SM8635 [CUDA]"), "8s Gen 3");
        assert_eq!(of_accelerator("SM8635", "on the NPU"), "on the NPU");
        assert_eq!(of_accelerator("other:x [CUDA]", "on the NPU"), "on the GPU");
        assert_eq!(chipset_name("other:MT6989 [NNAPI]"), "Dimensity 9300");
        assert_eq!(chipset_name("other:x"), "");
    }

    #[test]
    fn a_title_keeps_its_names_within_a_sentence() {
        let cases = [
            ("Partial CPU fallback", "partial CPU fallback"),
            (
                "CPU fallback on some devices",
                "CPU fallback on some devices",
            ),
            ("The NPU does not start", "the NPU does not start"),
            ("'; DROP TABLE", "'; DROP TABLE"),
            ("", ""),
        ];
        for (title, expected) in cases {
            assert_eq!(within_sentence(title), expected);
        }
        assert_eq!(capital("all 45 of those"), "All 45 of those");
        assert_eq!(open(1, 2), "one page and two tickets are open");
    }
}
