//! The words of verdicts, severities, signals and outcomes, by their names in the store. An unknown name, of a newer
//! detector, is shown as it is.

use std::borrow::Cow;

use askama::filters::HtmlSafe;
use epwatch_proto::Outcome;
use epwatch_proto::chipset::SOCS;

use super::name::visible;

/// Returns a verdict as a title.
pub(crate) fn verdict(name: &str) -> Cow<'_, str> {
    Cow::Borrowed(match name {
        "total_fallback" => "Total CPU fallback",
        "partial_fallback" => "Partial CPU fallback",
        "some_devices_fallback" => "CPU fallback on some devices",
        "intermittent_fallback" => "Intermittent CPU fallback",
        "wrong_outputs" => "Wrong outputs",
        "npu_start_failure" => "The NPU does not start",
        "slow_without_placement" => "Slower, cause unknown",
        "cv_spike" => "Latency varies more",
        "thermal_or_load" => "Devices hot or busy",
        "data_quality" => "Counted differently",
        "not_enough_data" => "Not enough data",
        "healthy" => "Healthy",
        other => return Cow::Owned(visible(other)),
    })
}

/// Returns the verdict of an incident as a title. Of data quality there is one kind: next to no devices report.
pub(crate) fn fault(name: &str) -> Cow<'_, str> {
    match name {
        "data_quality" => Cow::Borrowed("Next to no reports"),
        other => verdict(other),
    }
}

/// How loud a verdict is on a page. Differs in colour, in shape and in words.
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
        match (severity, verdict) {
            ("page", _) => Self::Page,
            ("ticket", _) => Self::Ticket,
            (_, "healthy") => Self::Fine,
            (_, "not_enough_data") => Self::Quiet,
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

/// A small drawing beside a word. Its words say the same.
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
    let (text, unit, is_ratio) = match signal {
        "EJ" => (
            "Placement got worse and the device is slower",
            "share of them",
            false,
        ),
        "EP" => (
            "More of the model on the CPU than before",
            "of the work moved",
            false,
        ),
        "EC" => (
            "More of the model on the CPU than certified",
            "of the work moved",
            false,
        ),
        "A" => ("Median device against its own past", "times slower", true),
        "B" => (
            "Devices slower than their own past",
            "share of devices",
            false,
        ),
        "B'" => (
            "Devices slower than others of their make were",
            "share of devices",
            false,
        ),
        "C" => (
            "Devices with many runs far beyond their own p95",
            "share of devices",
            false,
        ),
        "M" => (
            "Median moved while the fastest runs did not",
            "share of devices",
            false,
        ),
        "S" => ("The NPU does not start", "share of devices", false),
        "O" => ("Outputs differ from the CPU's", "share of devices", false),
        "OH" => ("Outputs differ between devices", "share of devices", false),
        "CV" => ("Spread within a device grew", "share of devices", false),
        _ => return None,
    };
    Some(Question {
        text,
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

/// Returns the market name of a chipset, without the maker's.
pub(crate) fn chipset_name(chipset: &str) -> &'static str {
    let known = SOCS.iter().find(|soc| soc.soc == chipset);
    known.map_or("", |soc| {
        soc.name.strip_prefix("Snapdragon ").unwrap_or(soc.name)
    })
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
        assert_eq!(chipset_name("other:x"), "");
    }
}
