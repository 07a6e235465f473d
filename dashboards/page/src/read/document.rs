//! The document of an incident, as the detector stores it: the fields that pages show. More fields may be there, and
//! any may be missing.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::text::number;

/// Version of the documents that this version reads: the detector's `DOCUMENT_VERSION`.
const DOCUMENT_VERSION: u32 = 1;

/// An incident's document.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct IncidentDocument {
    pub(crate) version: u32,
    /// Whether another version of epwatch made it, so that parts of it are not shown.
    #[serde(skip_deserializing)]
    pub(crate) is_of_another_version: bool,
    pub(crate) fired_at: Option<Timestamp>,
    pub(crate) mitigated_at: Option<Timestamp>,
    pub(crate) resolved_at: Option<Timestamp>,
    pub(crate) cohorts: Vec<DocumentCohort>,
    pub(crate) news: u64,
    /// The last news that each notifier delivered.
    pub(crate) delivered: BTreeMap<String, u64>,
    /// The attempts of a notifier that failed since the last one that was taken.
    pub(crate) failing: BTreeMap<String, DocumentAttempts>,
    pub(crate) orders: DocumentOrders,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct DocumentAttempts {
    pub(crate) since: Option<Timestamp>,
    pub(crate) times: u64,
    /// The receiver's last answer, in a few words.
    pub(crate) answer: String,
}

/// The orders of people that the detector has done.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct DocumentOrders {
    /// Number of the last one.
    pub(crate) last: u64,
    pub(crate) ack: Option<DocumentOrder>,
    pub(crate) mute: Option<DocumentOrder>,
    /// The resolve or accept that ended it.
    pub(crate) end: Option<DocumentOrder>,
    /// While the fault that was ended lasts.
    pub(crate) hold: Option<DocumentHold>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct DocumentOrder {
    pub(crate) kind: String,
    pub(crate) who: String,
    pub(crate) at: Option<Timestamp>,
    pub(crate) until: Option<Timestamp>,
    pub(crate) why: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct DocumentHold {
    pub(crate) devices_hit: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct DocumentCohort {
    pub(crate) verdict: DocumentVerdict,
    pub(crate) confirmed: String,
    pub(crate) began: Option<Timestamp>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct DocumentVerdict {
    pub(crate) key: DocumentKey,
    pub(crate) window_end: Option<Timestamp>,
    pub(crate) class: String,
    pub(crate) severity: String,
    pub(crate) numbers: DocumentNumbers,
    pub(crate) statistics: DocumentStatistics,
    pub(crate) cpu_ops: Vec<String>,
    pub(crate) cpu_macs_share: Option<f64>,
    pub(crate) next_step: String,
    pub(crate) follows: Option<String>,
    pub(crate) p: Option<f64>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct DocumentKey {
    pub(crate) model_version: String,
    pub(crate) chipset: String,
    pub(crate) firmware: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct DocumentNumbers {
    pub(crate) devices_seen: u64,
    pub(crate) devices_hit: u64,
    pub(crate) latency_ratio: Option<f64>,
    pub(crate) hit_p50_us: Option<f64>,
    pub(crate) reference_p50_us: Option<f64>,
    pub(crate) npu_share: Option<f64>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct DocumentStatistics {
    pub(crate) cv_within: Option<f64>,
    pub(crate) cv_between: Option<f64>,
    pub(crate) mixture: Option<DocumentMixture>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct DocumentMixture {
    pub(crate) slow_share: Option<f64>,
    pub(crate) fast_us: Option<f64>,
    pub(crate) slow_us: Option<f64>,
    pub(crate) separation: Option<f64>,
}

impl DocumentVerdict {
    /// Returns the median of the devices hit and of their reference, in microseconds.
    pub(crate) fn medians(&self) -> Option<(f64, f64)> {
        let us = |value| number::finite(value).filter(|us| *us > 0.0);
        Some((
            us(self.numbers.hit_p50_us)?,
            us(self.numbers.reference_p50_us)?,
        ))
    }

    /// As [`Self::medians`], if most devices were hit: then they are the medians of a chart of all runs.
    pub(crate) fn medians_of_most(&self) -> Option<(f64, f64)> {
        let of = &self.numbers;
        self.medians()
            .filter(|_| of.devices_hit.saturating_mul(2) > of.devices_seen)
    }
}

impl DocumentMixture {
    /// Whether the detector names the two groups: they are separate, and neither is a few stray runs.
    pub(crate) fn are_two(&self) -> bool {
        let separate = self.separation.is_some_and(|separation| separation >= 2.0);
        separate
            && self
                .slow_share
                .is_some_and(|share| (0.05..=0.95).contains(&share))
    }
}

impl IncidentDocument {
    /// Reads a document; one that cannot be read has nothing to show.
    pub(crate) fn read(text: &str) -> Self {
        let read = serde_json::from_str::<Self>(text).map(|document| Self {
            is_of_another_version: document.version > DOCUMENT_VERSION,
            ..document
        });
        read.unwrap_or_else(|error| {
            if !text.is_empty() {
                tracing::warn!(%error, "the document of an incident cannot be read");
            }
            Self {
                is_of_another_version: !text.is_empty(),
                ..Self::default()
            }
        })
    }

    /// Returns the worst cohort: by confirmed severity, then by the incident's verdict, then whole chipsets first, then
    /// by devices hit.
    pub(crate) fn lead(&self, verdict: &str) -> Option<&DocumentCohort> {
        self.cohorts.iter().max_by_key(|cohort| {
            let severity = ["none", "info", "ticket", "page"];
            let confirmed = severity.iter().position(|name| *name == cohort.confirmed);
            (
                confirmed,
                cohort.verdict.class == verdict,
                cohort.verdict.key.firmware.is_none(),
                cohort.verdict.numbers.devices_hit,
            )
        })
    }

    /// Returns the verdict on a whole chipset.
    pub(crate) fn of_chipset(&self, chipset: &str) -> Option<&DocumentVerdict> {
        let mut verdicts = self.cohorts.iter().map(|cohort| &cohort.verdict);
        verdicts.find(|verdict| verdict.key.chipset == chipset && verdict.key.firmware.is_none())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_of_another_version_is_known_as_such() {
        for (text, is_of_another) in [
            ("", false),
            ("{}", false),
            (r#"{"version": 1, "news": 2}"#, false),
            (r#"{"version": 2, "news": 2}"#, true),
            (r#"{"version": 1, "news": "two"}"#, true),
        ] {
            let document = IncidentDocument::read(text);
            assert_eq!(document.is_of_another_version, is_of_another, "{text}");
        }
    }
}
